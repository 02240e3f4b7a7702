"""The shell around a turn: does the I/O that `turn` asks for.

Owns one running turn: its model calls, tool calls, commits, its timeout and its interrupt. Knows nothing of
conversations, sockets or who asked. Every commit is shielded from cancellation, so what is on disk at any
moment is the state before or after an instruction.
"""

import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import anyio
from sqlalchemy import Connection

from agentic_rag.errors import AgenticRagError, GenerationTimeout, InternalError, ModelError, StorageFull
from agentic_rag.events import Done, Error, Interrupted, Notice, Retrying, StepReset, Terminal, ToolProgress
from agentic_rag.messages import text_block
from agentic_rag.models.base import Model, ModelRequest
from agentic_rag.runtime.calls import PlannedCall
from agentic_rag.runtime.definition import Definition
from agentic_rag.runtime.request import OUTCOME_UNKNOWN, build_request, cited_chunks, last_activation, turn_notes
from agentic_rag.runtime.retry import Attempts, after, retry_delay
from agentic_rag.runtime.runlog import RunLog
from agentic_rag.runtime.session import Entry, Session
from agentic_rag.runtime.turn import CallModel, CallTools, Commit, Turn
from agentic_rag.store import sessions, tool_calls, turns
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.tool_calls import StoredToolCall
from agentic_rag.store.turns import StoredTurn
from agentic_rag.tools.base import CallOutcome, CallRequest, Toolset

logger = logging.getLogger(__name__)

FINISH_SECONDS = 30.0
"""How long storing the end of a turn may take once the turn itself is over."""
PROGRESS_SECONDS = 0.1
"""Progress reports of one call that come faster are dropped."""


@dataclass(frozen=True, slots=True)
class World:
    """What agents share; made once by the composition root.

    ``role_hash(domain_id, role)`` and ``missing(chunk_ids)`` (which of them no longer exist) are awaited once
    before a turn. ``on_end`` runs inside the last transaction of a turn. ``opening`` are notices every turn
    begins with. Times in seconds.
    """

    database: Database
    model: Model
    open_toolset: Callable[[Definition], Awaitable[Toolset]]
    role_hash: Callable[[str, str], Awaitable[str | None]]
    missing: Callable[[str, set[str]], Awaitable[set[str]]]
    on_end: Callable[[Connection, StoredTurn, Terminal], None]
    opening: tuple[Notice, ...] = ()
    model_idle: float = 60
    retry_budget: float = 60


class Agent:
    """Runs one turn of a session to its end.

    Args:
        world: what it works with.
        session: the live session; the turn's user message is already in it.
        row: the accepted turn.
        definition: what the turn runs on.
        log: where its events go.
    """

    def __init__(self, world: World, session: Session, row: StoredTurn, definition: Definition, log: RunLog) -> None:
        self._world = world
        self._session = session
        self._row = row
        self._definition = definition
        self._log = log
        self._scope = anyio.CancelScope()
        self._interrupted = False
        self._began = time.monotonic()
        self._turn = Turn(
            message_id=row.message_id,
            model=definition.model,
            policy=definition.tool_policy,
            max_steps=definition.limits.max_steps,
        )
        self._toolset: Toolset | None = None
        self._gone: set[str] = set()
        self.over = False
        """Whether the terminal event is out, or about to be."""

    def interrupt(self) -> None:
        """End the turn as a user asked. Idempotent; a turn that has ended stays as it is."""
        self._interrupted = True
        self._scope.cancel()

    async def run(self, resume: Callable[[Turn], Sequence[PlannedCall]] | None = None) -> None:
        """Run the turn to its end; only cancellation from outside (the server stops) leaves it running.

        ``resume`` puts a turn whose server stopped back where it was and returns the calls that were in flight.
        """
        try:
            await self._run(resume)
        except Exception as exc:  # the last resort: readers must see an end whatever happened
            error = exc if isinstance(exc, AgenticRagError) else self._unexpected(exc)
            self._log.deliver_unjournalled(Error(error.code, str(error), error.retryable))
        else:
            self._log.close()

    async def _run(self, resume: Callable[[Turn], Sequence[PlannedCall]] | None) -> None:
        limits = self._definition.limits
        failure: AgenticRagError | None = None
        with self._scope:
            self._scope.deadline = anyio.current_time() + limits.turn_timeout
            try:
                await self._prepare(resume)
                await self._drive()
            except Exception as exc:  # ended below, with what came so far
                failure = _first_cause(exc) or self._unexpected(exc)
        if self._scope.cancelled_caught and not self._interrupted:
            failure = GenerationTimeout("The turn", limits.turn_timeout)
        if isinstance(failure, StorageFull):
            raise failure
        if failure is not None:
            self._turn.fail(failure)
        elif self._interrupted:
            self._turn.interrupt()
        with anyio.fail_after(FINISH_SECONDS, shield=True):
            await self._drive()

    def _unexpected(self, exc: Exception) -> InternalError:
        reference = new_id("err")
        logger.error("turn %s failed (%s)", self._row.id, reference, exc_info=exc)
        return InternalError(reference)

    # Before the first step

    async def _prepare(self, resume: Callable[[Turn], Sequence[PlannedCall]] | None) -> None:
        self._toolset = toolset = await self._world.open_toolset(self._definition)
        self._turn.offer(toolset.tools)
        window = self._session.window()
        chunks = cited_chunks(window)
        if chunks:
            self._gone = await self._world.missing(self._definition.domain_id, chunks)
        if resume is not None:
            await self._resume(resume)
            return
        for notice in self._world.opening:
            self._log.append(notice)
        changed = await self._changed_role()
        for name, reason in toolset.notices:
            self._log.append(Notice("MCP_SERVER_UNAVAILABLE", f"{name}: {reason}"))
        if changed:
            self._log.append(Notice("ROLE_CHANGED", f"The role {changed} was edited."))
        notes = turn_notes(toolset.notices, changed)
        if notes:
            await self._prepend(notes)

    async def _changed_role(self) -> str | None:
        activation = last_activation(self._session.window())
        if activation is None:
            return None
        role, known = activation
        current = await self._world.role_hash(self._definition.domain_id, role)
        return role if current is not None and current != known else None

    async def _prepend(self, notes: list[dict[str, object]]) -> None:
        """Put notes at the start of the turn's user message, in memory and in the store."""
        entry = next(entry for entry in reversed(self._session.entries) if entry.turn_id == self._row.id)
        content = [*notes, *entry.message["content"]]
        with anyio.CancelScope(shield=True):
            await self._world.database.write(
                lambda conn: sessions.set_content(conn, self._session.id, entry.seq, content)
            )
        entry.message["content"] = content

    async def _resume(self, resume: Callable[[Turn], Sequence[PlannedCall]]) -> None:
        in_flight = resume(self._turn)
        if not in_flight:
            self._log.append(StepReset(self._turn.iteration + 1))
        for call in in_flight:
            if call.refusal is None and not call.repeatable:
                await self._finish_call(call, CallOutcome("error", (text_block(OUTCOME_UNKNOWN),)))

    # The loop

    async def _drive(self) -> None:
        while True:
            self._turn.timings["total"] = round((time.monotonic() - self._began) * 1000)
            instruction = self._turn.next()
            if instruction is None:
                return
            if isinstance(instruction, CallModel):
                await self._call_model()
            elif isinstance(instruction, CallTools):
                await self._call_tools(instruction.calls)
            else:
                with anyio.CancelScope(shield=True):
                    await self._commit(instruction)

    async def _call_model(self) -> None:
        assert self._toolset is not None
        built = build_request(self._definition, self._toolset.tools, self._session.window(), gone=self._gone)
        for body in self._turn.begin_step(built.passages):
            self._log.append(body)
        began = time.monotonic()
        attempts = Attempts()
        while True:
            try:
                await self._stream(built.request)
                break
            except ModelError as error:
                delay = retry_delay(error, attempts, self._world.retry_budget, random.random())
                if delay is None:
                    raise
                attempts = after(error, attempts, delay)
                for body in self._turn.reset_step():
                    self._log.append(body)
                self._log.append(Retrying(attempts.failed, round(delay * 1000), str(error)))
                await anyio.sleep(delay)
        spent = round((time.monotonic() - began) * 1000)
        self._turn.timings["generation"] = self._turn.timings.get("generation", 0) + spent

    async def _stream(self, request: ModelRequest) -> None:
        """Stream one model call into the turn. Pings are no events: silence ends the call."""
        idle = self._world.model_idle
        pushed = anyio.current_time()
        with anyio.move_on_after(idle) as watch:
            async with self._world.model.stream(request) as events:
                async for event in events:
                    present = anyio.current_time()
                    if present - pushed > idle / 20:  # moving a deadline costs more than reading the clock
                        watch.deadline = present + idle
                        pushed = present
                    for body in self._turn.receive(event):
                        self._log.append(body)
                    if self._log.crowded:
                        await self._log.room()
        if watch.cancelled_caught:
            raise GenerationTimeout("The model's next event", idle)

    # Tools

    async def _call_tools(self, calls: Sequence[PlannedCall]) -> None:
        async with anyio.create_task_group() as tasks:
            for call in calls:
                tasks.start_soon(self._run_call, call)

    async def _run_call(self, call: PlannedCall) -> None:
        outcome = call.refusal
        if outcome is None:
            assert call.tool is not None
            assert self._toolset is not None
            bound = {**self._definition.bound, "turn": self._row.id} if call.tool.origin != "user" else {}
            request = CallRequest(call.id, call.tool, call.arguments, bound)
            outcome = await self._toolset.call(
                request, self._definition.limits.tool_timeout, self._progress_of(call.id)
            )
        await self._finish_call(call, outcome)

    async def _finish_call(self, call: PlannedCall, outcome: CallOutcome) -> None:
        finished = self._turn.finish_call(call, outcome)

        def store(conn: Connection) -> None:
            tool_calls.finish(
                conn,
                self._row.id,
                call.id,
                status=outcome.status,
                result=finished.block,
                duration_ms=outcome.duration_ms,
            )

        with anyio.CancelScope(shield=True):
            await self._log.commit(finished.bodies, store)

    def _progress_of(self, call_id: str) -> Callable[[float, float | None, str | None], Awaitable[None]]:
        last = 0.0

        async def report(progress: float, total: float | None, message: str | None) -> None:
            nonlocal last
            if anyio.current_time() - last < PROGRESS_SECONDS:
                return
            last = anyio.current_time()
            self._log.append(ToolProgress(call_id, progress, total, message))

        return report

    # Storing

    async def _commit(self, commit: Commit) -> None:
        final = commit.final
        entries = self._session.planned(self._row.id, commit.step, self._row.message_id, commit.messages)
        started = now()

        def store(conn: Connection) -> None:
            for entry in entries:
                sessions.append_message(conn, self._session.id, _stored(entry, commit, self._turn.model, started))
            tool_calls.start(conn, [_call_row(call, self._row, started) for call in commit.calls])
            if final is not None:
                self._store_end(conn, final)

        bodies = commit.bodies if final is None else (*commit.bodies, final)
        self.over = final is not None
        effects = any(call.refusal is None and not call.repeatable for call in commit.calls)
        await self._log.commit(bodies, store, durable=effects)
        self._session.extend(entries)
        self._turn.committed(commit)

    def _store_end(self, conn: Connection, final: Terminal) -> None:
        status, reason = _END[type(final)]
        if isinstance(final, Done):
            reason = final.stop_reason
        turns.finish(
            conn,
            self._row.id,
            status=status,
            end_reason=reason,
            ended_at=now(),
            steps=self._turn.iteration,
            usage=self._turn.usage.wire(),
            error={"code": final.code, "message": final.message, "retryable": final.retryable}
            if isinstance(final, Error)
            else None,
            references=[{name: getattr(ref, name) for name in ref.__slots__} for ref in self._turn.references],
            timings=self._turn.timings,
        )
        self._world.on_end(conn, self._row, final)


_END: dict[type, tuple[str, str]] = {
    Done: ("done", ""),
    Error: ("failed", "error"),
    Interrupted: ("interrupted", "interrupted"),
}


def _first_cause(exc: BaseException) -> AgenticRagError | None:
    """Return the product's own error in an exception or in a group of a task group's."""
    if isinstance(exc, AgenticRagError):
        return exc
    if isinstance(exc, BaseExceptionGroup):
        return next((found for inner in exc.exceptions if (found := _first_cause(inner))), None)
    return None


def _stored(entry: Entry, commit: Commit, model: str, created_at: str) -> sessions.StoredMessage:
    assistant = entry.message["role"] == "assistant"
    usage = commit.usage
    return sessions.StoredMessage(
        seq=entry.seq,
        turn_id=entry.turn_id,
        step=entry.step,
        role=entry.message["role"],
        content=entry.message["content"],
        message_id=entry.message_id,
        created_at=created_at,
        model=model if assistant else None,
        usage=usage.wire() if assistant and usage is not None else None,
        partial=commit.partial and assistant,
    )


def _call_row(call: PlannedCall, row: StoredTurn, started_at: str) -> StoredToolCall:
    return StoredToolCall(
        turn_id=row.id,
        tool_call_id=call.id,
        session_id=row.session_id,
        server=call.server,
        tool_name=call.name,
        arguments=call.arguments,
        started_at=started_at,
    )
