"""Compaction: a summary replaces a session's messages in requests, while people still see all messages.

Owns one compaction from the request for a summary to the transaction that archives the messages. Nothing changes before
that transaction, so a failed or interrupted compaction leaves everything unchanged. The request for a summary is
appended to the session's next regular request, which is in the provider's cache. If that is too long for the model, a
separate request contains the conversation as material. `session` or the running turn holds the session meanwhile. Knows
no conversation.
"""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import anyio
import anyio.lowlevel
from sqlalchemy import Connection

from agentic_rag.base.errors import CompactionNotNeeded, GenerationTimeout, ModelError, UnusableSummary
from agentic_rag.base.events import Compacted, Usage
from agentic_rag.base.messages import Block, Message
from agentic_rag.base.silence_timers import SilenceScope
from agentic_rag.base.telemetry import working_for
from agentic_rag.models.base import ModelRequest, PartialAnswer
from agentic_rag.runtime.acceptance import check_unmoved
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.request import build_request
from agentic_rag.runtime.core.retry import Attempts, after, is_too_long, retry_delay
from agentic_rag.runtime.core.sent_messages import SentMessages
from agentic_rag.runtime.core.summary import (
    CARRIED_SHARE,
    MINIMUM,
    CheckedSummary,
    answer_room,
    ask_apart,
    ask_inside,
    documents_of,
    head_after,
    read_summary,
    words_of,
)
from agentic_rag.runtime.core.transcript import Transcript, list_rewrites
from agentic_rag.runtime.core.turn import Spent
from agentic_rag.runtime.core.window import TranscriptEntry, tokens_of
from agentic_rag.runtime.missing_passages import chunks_of, find_hidden
from agentic_rag.runtime.payload_reader import Pictures
from agentic_rag.runtime.services import Resources
from agentic_rag.runtime.spending import Account
from agentic_rag.runtime.turn_persistence import usage_row
from agentic_rag.store import compactions, sessions, turns, usage
from agentic_rag.store.budgets import Payer
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.compactions import CompactedBy, CompactionRecord
from agentic_rag.store.turns import TurnRecord
from agentic_rag.tools.base import ToolInfo

YIELD_SECONDS = 0.005
"""How long events that are there already are read before other tasks run."""
TRIES = 2
"""An unusable summary is requested once more, with the reason."""


@dataclass(frozen=True, slots=True)
class _Answer:
    text: str
    stop_reason: str


class Compaction:
    """One compaction of one session. After `cancel` nothing has changed.

    Args:
        resources: shared parts of the runtime.
        transcript: the session's transcript.
        definition: the settings of the session.
        created_by: the origin of the request. For a user the session needs enough messages.
        limit: tokens that a request may have; by default ``contextTokens``.
        tools: tools of the running turn, if any.
        turn: the running turn, whose question and newest steps stay; None between turns.
        key_id: the API key that the cost is counted for.
        account: the account of the running turn's calls, if any.
    """

    def __init__(
        self,
        resources: Resources,
        transcript: Transcript,
        definition: Definition,
        created_by: CompactedBy,
        *,
        limit: int | None = None,
        tools: Sequence[ToolInfo] = (),
        turn: TurnRecord | None = None,
        key_id: str = "",
        account: Account | None = None,
    ) -> None:
        self._resources = resources
        self._transcript = transcript
        self._definition = definition
        self._created_by = created_by
        self._limit = definition.limits.context_tokens if limit is None else limit
        self._tools = tools
        self._turn = turn
        self._key_id = key_id
        payer = Payer(definition.domain_id, transcript.labels.user_id, key_id)
        self._account = resources.spending.account(payer) if account is None else account.begin_job()
        self._scope = anyio.CancelScope()
        self._gone: frozenset[str] = frozenset()
        self._hidden: frozenset[str] = frozenset()
        self._shown: Mapping[str, str] = {}
        self.spent: list[Spent] = []
        """The cost of its model calls."""

    def cancel(self) -> None:
        """Cancel the compaction at the user's request. A running transaction is completed."""
        self._scope.cancel()

    async def run(self) -> CompactionRecord | None:
        """Run the compaction and return its record, or None if it was cancelled.

        Raises:
            CompactionNotNeeded: the session has too few messages.
            ModelError, GenerationTimeout: the model gave no usable summary.
            BudgetExceeded, BudgetUnpriced: the budgets do not allow the call.
            TurnInProgress: another process changed the session meanwhile; nothing was stored.
            StorageFull: nothing was stored.
        """
        least = MINIMUM if self._created_by is CompactedBy.USER else 1
        archived, remaining = self._transcript.split(self._turn.id if self._turn else None, self._limit)
        if self._transcript.message_count < least or not archived:
            raise CompactionNotNeeded(self._transcript.message_count, least)
        done: CompactionRecord | None = None
        seconds = self._definition.limits.turn_timeout
        with self._scope:
            try:
                with anyio.move_on_after(seconds):
                    summary = await self._summary()
                    with anyio.CancelScope(shield=True):
                        # The model was paid and the summary is usable: neither the time limit nor a cancellation may
                        # lose it now.
                        done = await self._store(summary, archived, remaining)
                if done is None:
                    raise GenerationTimeout("The summary", seconds)
            finally:
                try:
                    # With a stored summary, its transaction has the cost.
                    if done is None and self.spent:
                        await self._count()
                finally:
                    await self._account.aclose()
        return done

    # The summary

    async def _summary(self) -> CheckedSummary:
        """Ask the model for a summary. An unusable one is requested again, with the problem as a note.

        The first request continues the conversation (``inside``), so that the service's cache applies. If the service
        refuses it as too long, a separate request contains the messages as text.
        """
        missing = self._resources.services.missing_chunks
        window = self._transcript.window()
        self._shown = await Pictures(self._resources.database, self._resources.payloads).of(self._transcript.pictures)
        chunks = self._transcript.cited
        self._gone = frozenset(await missing(self._definition.domain_id, chunks)) if chunks else frozenset()
        self._hidden = await find_hidden(self._resources, self._definition, self._transcript)
        documents = documents_of(window, self._gone | chunks_of(self._transcript, self._hidden))
        most = max(512, round(self._limit * CARRIED_SHARE))
        problem, inside = "", self._transcript.prompt_state is not None
        for attempt in range(TRIES):
            try:
                answer = await self._insist(self._request(problem, inside=inside))
            except ModelError as error:
                if not inside or not is_too_long(error):
                    raise
                inside = False
                answer = await self._insist(self._request(problem, inside=False))
            try:
                summary = read_summary(answer.text, answer.stop_reason, documents, most)
                redact = self._resources.redactor.of(self._definition.domain_id)
                return CheckedSummary(redact(summary.text), redact.json(summary.sources))
            except UnusableSummary as error:
                problem = error.reason
                if attempt + 1 == TRIES:
                    raise
        raise AssertionError("unreachable")

    def _request(self, problem: str, *, inside: bool) -> ModelRequest:
        """Return the request for a summary.

        Only the second attempt forbids tools, because that invalidates the cache.
        """
        definition, window = self._definition, self._transcript.window()
        if not inside:
            if self._hidden:
                sent = SentMessages(definition.model, self._gone, self._hidden).take(window, self._tools)
                # What the user may no longer see must not come back as a summary.
                window = list(sent.messages)
            return ask_apart(definition, window, self._limit, problem)
        built = build_request(
            definition,
            self._tools,
            [*window, ask_inside(problem)],
            state=self._transcript.prompt_state,
            gone_chunks=self._gone,
            hidden=self._hidden,
            pictures=self._shown,
            tool_choice={"type": "none"} if problem else None,
        )
        return replace(built.request, max_tokens=answer_room(definition))

    async def _insist(self, request: ModelRequest) -> _Answer:
        """Ask the model, and repeat the call after errors that may pass."""
        attempts = Attempts()
        while True:
            try:
                return await self._ask(request)
            except ModelError as error:
                delay = retry_delay(error, attempts, self._resources.patience.retry_budget, random.random())
                if delay is None:
                    raise
                attempts = after(error, attempts, delay)
                await anyio.sleep(delay)

    async def _ask(self, request: ModelRequest) -> _Answer:
        received, yielded = PartialAnswer(request.model), time.monotonic()
        idle = self._resources.patience.model_idle
        await self._account.reserve(request, self._definition.limits.turn_timeout)
        with self._resources.services.model_calls.watch(request.model), working_for(self._definition.domain_id):
            try:
                with SilenceScope(idle) as watch:
                    async with self._resources.services.model(self._definition.domain_id).stream(request) as events:
                        async for event in events:
                            watch.heard()
                            if time.monotonic() - yielded > YIELD_SECONDS:  # buffered events come without waiting
                                await anyio.lowlevel.checkpoint()
                                yielded = time.monotonic()
                            received.add(event)
            finally:
                if received.usage != Usage():
                    self.spent.append(Spent(0, received.model, received.usage))
            if watch.expired:
                raise GenerationTimeout("The model's next event", idle)
        return _Answer(received.text, received.stop_reason)

    # Storing

    async def _store(
        self, summary: CheckedSummary, archived: Sequence[TranscriptEntry], remaining: Sequence[TranscriptEntry]
    ) -> CompactionRecord:
        transcript, turn = self._transcript, self._turn
        messages = [entry.message for entry in archived]
        user_texts = [words_of(entry.message) for entry in archived if entry.step == 0 and transcript.is_sent(entry)]
        before: list[Message] = [{"role": "user", "content": list(transcript.head)}] if transcript.head else []
        head = head_after(summary, [*before, *messages], user_texts, self._limit)
        staying = {entry.message_id for entry in remaining}
        row = CompactionRecord(
            id=new_id("comp"),
            session_id=transcript.session_id,
            summary=summary.text,
            from_seq=archived[0].seq,
            to_seq=archived[-1].seq,
            message_count=len({entry.message_id for entry in archived} - staying),
            created_by=self._created_by,
            created_at=now(),
        )
        changed: list[tuple[TranscriptEntry, list[Block]]] = list_rewrites(remaining)
        to_seq = remaining[0].seq - 1 if remaining else transcript.last_seq
        gap = (0, 0)
        if archived[-1].seq > to_seq:  # steps of the running turn, after its question
            gap = (next(entry.seq for entry in remaining if turn and entry.turn_id == turn.id) + 1, archived[-1].seq)

        def store(conn: Connection) -> None:
            if turn is not None:
                # Fails if another process has taken the turn or the session: its messages may have changed.
                turns.hold(conn, turn.id, turn.fence)
            else:
                check_unmoved(conn, transcript.session_id, self._resources.owner)
            compactions.put(conn, row)
            sessions.archive(conn, transcript.session_id, row.id, to_seq, head, gap)
            for entry, content in changed:
                sessions.set_content(conn, transcript.session_id, entry.seq, content)
            self._put_usage(conn)
            self._resources.hooks.session_compacted(conn, transcript.session_id)

        await self._resources.database.write(store, durable=True)
        self._account.settle()
        transcript.archive(remaining, to_seq + 1, head)
        for entry, content in changed:
            transcript.rewrite(entry, content)
        return row

    async def _count(self) -> None:
        """Store the cost of a failed summary."""
        with anyio.CancelScope(shield=True):
            await self._resources.database.write(self._put_usage)
            self._account.settle()

    def _put_usage(self, conn: Connection) -> None:
        turn_id = self._turn.id if self._turn else None
        rows = [usage_row(self._transcript, turn_id, spent, now(), self._key_id) for spent in self.spent]
        usage.put(conn, rows)
        self._account.release(conn)


def compacted_event(record: CompactionRecord) -> Compacted:
    """Return the event for a compaction."""
    return Compacted(record.message_count, tokens_of(record.summary))
