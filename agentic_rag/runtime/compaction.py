"""Compaction: a summary takes the place of a session's messages in what a model is sent; people go on reading them.

Owns one compaction from the model's summary to the transaction that archives; until that transaction nothing
has changed, so that a failed or interrupted one leaves everything as it was. Who holds the session meanwhile is
`runtime`'s business. Knows no conversation.
"""

import random

import anyio
from sqlalchemy import Connection

from agentic_rag.errors import CompactionNotNeeded, GenerationTimeout, ModelError
from agentic_rag.events import Usage
from agentic_rag.messages import clean_text
from agentic_rag.models.base import MessageCompleted, MessageStarted, ModelRequest, TextDelta
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.retry import Attempts, after, retry_delay
from agentic_rag.runtime.core.summary import AUTOMATIC_SHARE, MINIMUM, head_after, summary_request, words_of
from agentic_rag.runtime.core.transcript import Transcript
from agentic_rag.runtime.core.turn import Spent
from agentic_rag.runtime.services import Resources
from agentic_rag.runtime.storing import usage_row
from agentic_rag.store import compactions, sessions, usage
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.compactions import CompactedBy, CompactionRecord


def is_due(transcript: Transcript, definition: Definition, tokens: int) -> bool:
    """Whether a session is compacted before its next turn; ``tokens``: of its next request."""
    return transcript.message_count >= MINIMUM and tokens > definition.limits.context_tokens * AUTOMATIC_SHARE


class Compaction:
    """One compaction of one session. `cancel` ends it, and then nothing has changed."""

    def __init__(
        self, resources: Resources, transcript: Transcript, definition: Definition, created_by: CompactedBy
    ) -> None:
        self._resources = resources
        self._transcript = transcript
        self._definition = definition
        self._created_by = created_by
        self._scope = anyio.CancelScope()
        self._spent: list[Spent] = []

    def cancel(self) -> None:
        """End it as a user asked. One that is being stored goes through."""
        self._scope.cancel()

    async def run(self) -> CompactionRecord | None:
        """Run it to its end and return what was stored; None when it was cancelled.

        Raises:
            CompactionNotNeeded: the session has too few messages.
            ModelError, GenerationTimeout: there is no summary.
            StorageFull: nothing was kept.
        """
        if self._transcript.message_count < MINIMUM:
            raise CompactionNotNeeded(self._transcript.message_count, MINIMUM)
        done: CompactionRecord | None = None
        seconds = self._definition.limits.turn_timeout
        with self._scope:
            try:
                with anyio.move_on_after(seconds):
                    summary = await self._summary()
                    with anyio.CancelScope(shield=True):
                        done = await self._store(summary)
                if done is None:
                    raise GenerationTimeout("The summary", seconds)
            finally:
                if done is None and self._spent:
                    await self._count()
        return done

    async def _summary(self) -> str:
        request = summary_request(self._definition, self._transcript.window())
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

    async def _ask(self, request: ModelRequest) -> str:
        pieces: list[str] = []
        model, reported = request.model, Usage()
        idle = self._resources.patience.model_idle
        try:
            with anyio.move_on_after(idle) as watch:
                async with self._resources.services.model(self._definition.domain_id).stream(request) as events:
                    async for event in events:
                        watch.deadline = anyio.current_time() + idle
                        if isinstance(event, TextDelta):
                            pieces.append(event.text)
                        elif isinstance(event, MessageStarted):
                            model, reported = event.model, event.usage
                        elif isinstance(event, MessageCompleted):
                            reported = event.usage
        finally:
            if reported != Usage():
                self._spent.append(Spent(0, model, reported))
        if watch.cancelled_caught:
            raise GenerationTimeout("The model's next event", idle)
        redact = self._resources.redactor.of(self._definition.domain_id)
        text = clean_text(redact("".join(pieces))).strip()  # whole: a value is found wherever its pieces were cut
        if not text:
            raise ModelError("The model gave no summary.")
        return text

    async def _store(self, summary: str) -> CompactionRecord:
        transcript = self._transcript
        said = [words_of(entry.message) for entry in transcript.in_window() if entry.step == 0]
        head = head_after(summary, transcript.window(), said, self._definition.limits.context_tokens)
        row = CompactionRecord(
            id=new_id("comp"),
            session_id=transcript.session_id,
            summary=summary,
            from_seq=transcript.entries[0].seq,
            to_seq=transcript.last_seq,
            message_count=transcript.message_count,
            created_by=self._created_by,
            created_at=now(),
        )

        def store(conn: Connection) -> None:
            compactions.put(conn, row)
            sessions.archive(conn, transcript.session_id, row.id, row.to_seq, head)
            usage.put(conn, [usage_row(transcript, None, spent, row.created_at) for spent in self._spent])
            self._resources.hooks.session_compacted(conn, transcript.session_id)

        await self._resources.database.write(store, durable=True)
        transcript.archive(head)
        return row

    async def _count(self) -> None:
        """Keep what the summary has cost although there is none."""
        rows = [usage_row(self._transcript, None, spent, now()) for spent in self._spent]
        with anyio.CancelScope(shield=True):
            await self._resources.database.write(lambda conn: usage.put(conn, rows))
