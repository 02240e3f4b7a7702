"""Propose memories from idle conversations, in domains with this setting.

Decides when a model is asked, for which user, and within which budget. A proposal is first stored with the call's
usage, then added to the user's memory under an id derived from its turn, then removed from the queue. So after a crash
steps are repeated, but nothing is duplicated. `agentic_rag.roles.proposals` decides which answers count.
"""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from sqlalchemy import Connection

from agentic_rag.access.users import User
from agentic_rag.base import failpoints
from agentic_rag.base.budget_errors import BudgetExceeded, BudgetUnpriced
from agentic_rag.base.errors import AgenticRagError, GenerationTimeout, ModelError, NotFound
from agentic_rag.base.ids import TurnId
from agentic_rag.base.json_form import Json
from agentic_rag.base.redaction import Redactor
from agentic_rag.base.telemetry import working_for
from agentic_rag.base.threads import DomainThreads
from agentic_rag.directory.directory import Directory
from agentic_rag.directory.settings import MemorySettings
from agentic_rag.domains.definitions import Definitions
from agentic_rag.models.base import Model, ModelRequest, PartialAnswer
from agentic_rag.models.calls import ModelCalls
from agentic_rag.roles.effective_prompt import definition_now
from agentic_rag.roles.proposals import Utterance, ask, engram_of, newest, read_answer, words_in_turn
from agentic_rag.runtime.core.retry import is_busy
from agentic_rag.runtime.spending import Account, Spending
from agentic_rag.store import extractions, provenance, sessions, turns, usage
from agentic_rag.store.budgets import Payer
from agentic_rag.store.clock import later, now
from agentic_rag.store.database import Database
from agentic_rag.store.extractions import ExtractionRecord, MemoryProposal
from agentic_rag.store.usage import UsageLabels, UsageRecord
from mcp_servers.promptx.errors import MemoryFault
from mcp_servers.promptx.memory import MemoryCache, memory_folder

log = logging.getLogger(__name__)

AGENT: Final = "(memory)"
"""Agent name of these calls in the usage; no role can have this id."""
REST_SECONDS: Final = 60.0
"""Idle time after which a conversation is due."""
LOOK_SECONDS: Final = 5.0
CLAIM_SECONDS: Final = 300.0
"""How long other servers of the store leave a claimed conversation alone."""
CALL_SECONDS: Final = 60.0
BUDGET_SECONDS: Final = 3600.0
"""Maximum wait of a conversation without budget before the next attempt."""
MAX_TRIES: Final = 3
MAX_AT_ONCE: Final = 20


class Extraction:
    """Proposes memories. Call `run` repeatedly.

    ``model`` is None if there is no language model; then nothing is proposed. ``limit`` is the maximum number of
    memories of one user and role.
    """

    def __init__(
        self,
        database: Database,
        directory: Directory,
        definitions: Definitions,
        model: Model | None,
        calls: ModelCalls,
        redactor: Redactor,
        threads: DomainThreads,
        limit: int,
        spending: Spending,
        shelf: MemoryCache,
    ) -> None:
        self._db = database
        self._directory = directory
        self._definitions = definitions
        self._model = model
        self._calls = calls
        self._redactor = redactor
        self._threads = threads
        self._limit = limit
        self._spending = spending
        self._shelf = shelf
        self._running = anyio.Lock()

    async def run(self, rest_seconds: float = REST_SECONDS) -> None:
        """Propose memories from every due conversation. ``rest_seconds`` is the idle time."""
        until = later(CLAIM_SECONDS) if self._db.shared else ""  # without other servers no claim is needed
        claim = partial(extractions.claim, rested_since=later(-rest_seconds), until=until, most=MAX_AT_ONCE)
        async with self._running:
            for row in await self._db.write(claim):
                try:
                    await self._propose(row)
                except (BudgetExceeded, BudgetUnpriced) as exc:  # try again once there is a budget or a price
                    log.info("no memories are proposed from %s now: %s", row.conversation_id, exc)
                    wait = exc.retry_after if isinstance(exc, BudgetExceeded) else BUDGET_SECONDS
                    wait = min(max(wait, REST_SECONDS), BUDGET_SECONDS)
                    await self._db.write(partial(extractions.wait, session_id=row.session_id, until=later(wait)))
                except NotFound:  # the domain was deleted meanwhile
                    await self._strike_out(row, row.turn_ids)
                except (AgenticRagError, MemoryFault) as exc:
                    log.warning("no memories are proposed from %s now: %s", row.conversation_id, exc)
                    await self._try_later(row)

    async def _propose(self, row: ExtractionRecord) -> None:
        memory = (await self._directory.settings(row.domain_id)).memory
        turn_ids, proposals = row.proposed_from, row.proposals
        # Proposals that are stored already come from an attempt that ended before they were saved: no second call.
        if not turn_ids:
            turn_ids = row.turn_ids
            model = None if memory.every is None else self._model
            if model is not None and await self._may_call(row.user_id, memory.calls_per_day):
                proposals = await self._ask(row, model)
        if proposals:
            await self._save(row, proposals)
            failpoints.reached("extraction.saved")
        await self._strike_out(row, turn_ids)

    async def _may_call(self, user_id: str, most: int) -> bool:
        day = (datetime.now(UTC) - timedelta(days=1)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        count = partial(usage.count_calls, user_id=user_id, agent=AGENT, since=day)
        return await self._db.read(count) < most

    async def _ask(self, row: ExtractionRecord, model: Model) -> list[MemoryProposal]:
        """Return a model's proposals, after storing them with the usage of the call."""

        def read(conn: Connection) -> list[Utterance]:
            by_id = turns.by_ids(conn, list(map(TurnId, row.turn_ids)))
            own = [by_id[turn_id] for turn_id in map(TurnId, row.turn_ids) if turn_id in by_id]
            return [
                utterance
                for turn in own
                for utterance in words_in_turn(turn.id, turn.content, sessions.of_turn(conn, turn))
            ]

        utterances = newest(await self._db.read(read))
        if not utterances:
            return []
        definition = await definition_now(self._definitions, _user(row), row.domain_id)
        redact = self._redactor.of(row.domain_id)
        spent: list[UsageRecord] = []
        account = self._spending.account(Payer(row.domain_id, row.user_id))

        def count(conn: Connection) -> None:
            usage.put(conn, spent)
            account.release(conn)

        try:
            models = (definition.model, *definition.fallback_models)
            answer, stop_reason = await self._ask_in_turn(model, models, utterances, row, spent, account)
        except BaseException:
            # The service charges for a call that failed or was cancelled, too.
            try:
                if spent:
                    with anyio.CancelScope(shield=True):
                        await self._db.write(count)
            finally:
                await account.aclose()
            raise
        proposals: list[MemoryProposal] = redact.json(read_answer(answer, stop_reason, utterances))

        def keep(conn: Connection) -> None:
            count(conn)
            # In one transaction with the usage: a crash must neither lose a paid result nor pay for it twice.
            extractions.keep(conn, row.session_id, proposals, row.turn_ids)

        try:
            await self._db.write(keep, durable=True)
            account.settle()
        finally:
            await account.aclose()
        failpoints.reached("extraction.kept")
        return proposals

    async def _ask_in_turn(
        self,
        model: Model,
        names: Sequence[str],
        utterances: Sequence[Utterance],
        row: ExtractionRecord,
        spent: list[UsageRecord],
        account: Account,
    ) -> tuple[str, str]:
        """Return the answer and stop reason of the first model that is neither busy nor declines."""
        # The last model's answer counts in any case, because no other model is left.
        *earlier, last = names
        for name in earlier:
            try:
                answer, stop_reason = await self._call(model, ask(name, utterances), row, spent, account)
            except ModelError as error:
                if not is_busy(error):
                    raise
            else:
                if stop_reason != "refusal":
                    return answer, stop_reason
        return await self._call(model, ask(last, utterances), row, spent, account)

    async def _call(
        self,
        model: Model,
        request: ModelRequest,
        row: ExtractionRecord,
        spent: list[UsageRecord],
        account: Account,
    ) -> tuple[str, str]:
        """Return a model's answer and stop reason. The usage is added to ``spent`` in any case."""
        received = PartialAnswer(request.model)
        # Longer than the call, so that the reservation does not expire while the call runs.
        await account.reserve(request, CALL_SECONDS * 2)
        with self._calls.watch(request.model), working_for(row.domain_id):
            try:
                with anyio.move_on_after(CALL_SECONDS) as waited:
                    async with model.stream(request) as events:
                        async for event in events:
                            received.add(event)
            finally:
                spent.append(usage.row_of(_labels(row), received.model, received.usage))
            if waited.cancelled_caught:
                raise GenerationTimeout("The proposals", CALL_SECONDS)
        return received.text, received.stop_reason

    async def _save(self, row: ExtractionRecord, proposals: Sequence[MemoryProposal]) -> None:
        """Add proposals to the user's memory; existing ones are unchanged."""
        definition = await definition_now(self._definitions, _user(row), row.domain_id)
        binding = definition.binding

        def note_sources(conn: Connection) -> None:
            for turn_id in {proposal["turn"] for proposal in proposals}:
                provenance.note_memories(conn, row.domain_id, turn_id, row.conversation_id)

        # before the turns are read: a conversation that was deleted in the meantime has neither turns nor memories
        await self._db.write(note_sources, durable=True)
        ended = await self._db.read(lambda conn: turns.by_ids(conn, list(map(TurnId, row.turn_ids))))

        def work() -> None:
            folder = memory_folder(Path(binding.workspace), binding.scope, row.user_id, binding.role)
            engrams = []
            for number, proposal in enumerate(proposals):
                if (turn := ended.get(TurnId(proposal["turn"]))) is not None:
                    engrams.append(engram_of(proposal, number, _milliseconds(turn.ended_at), row.user_id))
            self._shelf.memory(folder).propose(engrams, self._limit)

        await self._threads.run(binding.workspace, work)

    async def _try_later(self, row: ExtractionRecord) -> None:
        # The proposals are paid for, so saving them is retried without end.
        if row.tries + 1 >= MAX_TRIES and not row.proposed_from:
            await self._strike_out(row, row.turn_ids)
        else:
            await self._db.write(lambda conn: extractions.put_off(conn, row.session_id))

    async def _strike_out(self, row: ExtractionRecord, turn_ids: Sequence[str]) -> None:
        await self._db.write(lambda conn: extractions.strike_out(conn, row.session_id, turn_ids), durable=True)


def note_turn(conn: Connection, turn: turns.TurnRecord, domain_id: str, user_id: str, settings: Json | None) -> None:
    """Queue a successful turn for proposals, in its last transaction, if its domain wants them.

    ``settings`` holds the domain's memory settings.
    """
    if not settings:
        return
    every = MemorySettings.model_validate(settings).every
    if every is not None:
        extractions.note(
            conn,
            turn.session_id,
            turn.id,
            conversation_id=turn.conversation_id,
            domain_id=domain_id,
            user_id=user_id,
            every=every,
        )


def _user(row: ExtractionRecord) -> User:
    return User(row.user_id, domains=frozenset({row.domain_id}))


def _labels(row: ExtractionRecord) -> UsageLabels:
    return UsageLabels(
        domain_id=row.domain_id,
        agent=AGENT,
        session_id=row.session_id,
        conversation_id=row.conversation_id,
        user_id=row.user_id,
    )


def _milliseconds(time: str | None) -> int:
    return round(datetime.fromisoformat(time or now()).timestamp() * 1000)
