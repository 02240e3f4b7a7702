"""All live sessions of the process: accepting messages, running turns, following their events.

Owns which turn runs in which session, the queue behind it, and the task group in which turns live; a turn
belongs to the server, never to a socket. Knows conversations, domains and users only as labels.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import anyio
from anyio.abc import TaskGroup
from sqlalchemy import Connection

from agentic_rag.errors import NotFound, ResumeLimit
from agentic_rag.events import AgentEvent, Error, EventBody, Interrupted, Resumed, Terminal, Usage
from agentic_rag.messages import Block, clean_text, user_message
from agentic_rag.runtime.accepting import (
    Accepted,
    Duplicate,
    accepted_as,
    load_session,
    refuse_busy,
    spent_so_far,
    store_start,
)
from agentic_rag.runtime.agent import Agent, World
from agentic_rag.runtime.calls import PlannedCall
from agentic_rag.runtime.definition import Definition
from agentic_rag.runtime.image import Image
from agentic_rag.runtime.live import Live
from agentic_rag.runtime.runlog import MAX_UNJOURNALLED, Journal, RunLog, follow
from agentic_rag.runtime.session import Session
from agentic_rag.runtime.turn import Turn
from agentic_rag.store import images, run_events, tool_calls, turns
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.turns import StoredTurn

logger = logging.getLogger(__name__)

MAX_RESUMES = 3
MAX_TRANSCRIPTS = 256
"""Idle sessions whose transcripts stay in memory."""


class Runtime:
    """Runs turns. An async context manager: leaving it stops turns where they are, to be resumed later."""

    def __init__(self, world: World, *, owner: str = "") -> None:
        self._world = world
        self._database = world.database
        self._owner = owner or new_id("run")
        self._journal = Journal(world.database)
        self._logs: dict[str, RunLog] = {}
        self._live: dict[str, Live] = {}
        self._task_group: TaskGroup

    async def __aenter__(self) -> Self:
        self._task_group = await anyio.create_task_group().__aenter__()
        self._task_group.start_soon(self._journal.run)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        self._task_group.cancel_scope.cancel()
        return await self._task_group.__aexit__(exc_type, exc, tb)

    async def drain(self, seconds: float) -> int:
        """Wait for running turns, at most so long; return how many still run (they resume later)."""
        with anyio.move_on_after(seconds):
            while running := [live for live in self._live.values() if live.turn_id is not None]:
                await running[0].changed.wait()
        return sum(live.turn_id is not None for live in self._live.values())

    # Sending

    async def send(
        self,
        session_id: str,
        content: str,
        definition: Definition,
        *,
        client_message_id: str | None = None,
        on_busy: Literal["reject", "queue"] = "reject",
        on_accept: Callable[[Connection, StoredTurn], Sequence[EventBody]] | None = None,
    ) -> Accepted:
        """Accept a user message durably and start its turn, or queue it.

        ``on_accept`` runs inside the accepting transaction: what it raises refuses the message, what it
        returns follows ``turn_started``. Same ``client_message_id`` and content: the same turn again.

        Raises:
            NotFound: no such session.
            TurnInProgress: a turn runs and ``on_busy`` is ``reject``, or the queue is full.
            IdempotencyMismatch: the client message id came with other content.
            StorageFull: nothing was kept.
        """
        live = await self._loaded(session_id)
        while live.ending:  # its terminal event may be out: who has seen that must not be told "busy"
            await live.changed.wait()
        with anyio.CancelScope(shield=True):  # once stored, the turn must also start
            async with live.accepting:
                accepted = await self._accept(
                    live, clean_text(content), definition, client_message_id, on_busy, on_accept
                )
        return accepted

    async def _accept(
        self,
        live: Live,
        content: str,
        definition: Definition,
        client_message_id: str | None,
        on_busy: str,
        on_accept: Callable[[Connection, StoredTurn], Sequence[EventBody]] | None,
    ) -> Accepted:
        session = live.session
        if session is None or live.dropped:
            raise NotFound("session", live.id)
        image = Image.of(definition)
        busy = live.turn_id
        row = self._new_row(session, content, image, client_message_id, queued=busy is not None)
        log = RunLog(self._journal, row.conversation_id, row.id)
        entries = session.planned(row.id, 0, row.user_message_id, [user_message(content)])

        def store(conn: Connection) -> list[AgentEvent]:
            refuse_busy(conn, row, busy, on_busy)
            extra = on_accept(conn, row) if on_accept is not None else ()
            images.put(conn, image.id, definition.domain_id, definition.to_json())
            turns.accept(conn, row)
            if busy is not None:
                return []
            return store_start(conn, row, entries, log, extra, definition.model)

        try:
            first = await self._database.write(store, durable=True)
        except Duplicate as known:
            return accepted_as(known.turn, duplicate=True)
        self._logs[row.id] = log
        if busy is None:
            session.extend(entries)
            log.adopt(first)
            live.begin(row.id, Agent(self._world, session, row, definition, log))
            self._task_group.start_soon(self._run_session, live)
        return accepted_as(row, duplicate=False)

    def _new_row(
        self, session: Session, content: str, image: Image, client_message_id: str | None, *, queued: bool
    ) -> StoredTurn:
        return StoredTurn(
            id=new_id("turn"),
            session_id=session.id,
            conversation_id=session.labels.get("conversation_id", session.id),
            client_message_id=client_message_id,
            content=content,
            user_message_id=new_id("msg"),
            message_id=new_id("msg"),
            image_id=image.id,
            status="queued" if queued else "running",
            owner=self._owner,
            fence=1,
            started_at=now(),
        )

    # Running

    async def _run_session(self, live: Live, resume: Callable[[Turn], Sequence[PlannedCall]] | None = None) -> None:
        """Run the turn that has begun and then whatever is queued behind it."""
        while live.agent is not None and live.turn_id is not None:
            await live.agent.run(resume)
            resume = None
            self._logs.pop(live.turn_id, None)
            async with live.accepting:  # a message is either queued before this or starts a turn after it
                if live.dropped or not await self._begin_queued(live):
                    live.end()
        self._trim()

    async def _begin_queued(self, live: Live) -> bool:
        """Begin the oldest queued turn; False when none waits."""
        session = live.session
        assert session is not None
        waiting = await self._database.read(lambda conn: turns.queued(conn, live.id))
        if not waiting:
            return False
        row = waiting[0]
        log = self._logs[row.id]
        entries = session.planned(row.id, 0, row.user_message_id, [user_message(row.content)])

        def store(conn: Connection) -> tuple[Definition, list[AgentEvent]]:
            stored = images.get(conn, row.image_id)
            assert stored is not None
            definition = Definition.from_json(stored)
            turns.start(
                conn, row.id, image_id=row.image_id, role_hashes={}, owner=self._owner, started_at=row.started_at
            )
            return definition, store_start(conn, row, entries, log, (), definition.model)

        with anyio.CancelScope(shield=True):
            definition, first = await self._database.write(store, durable=True)
            session.extend(entries)
            log.adopt(first)
            live.begin(row.id, Agent(self._world, session, row, definition, log))
        return True

    async def interrupt(self, session_id: str, *, turn_id: str | None = None, queued: bool = False) -> bool:
        """Interrupt the running turn (or the named one), and with ``queued`` those that wait.

        Idempotent: a turn that has ended stays as it is. Returns whether anything was interrupted.
        """
        live = self._live.get(session_id)
        if live is None:
            return False
        done = False
        if queued or (turn_id is not None and turn_id != live.turn_id):
            done = await self._unqueue(live, None if queued else turn_id)
        if live.agent is not None and not live.ending and turn_id in (None, live.turn_id):
            live.agent.interrupt()
            done = True
        return done

    async def _unqueue(self, live: Live, turn_id: str | None) -> bool:
        """End queued turns (all, or one) as interrupted before they start."""
        async with live.accepting:
            waiting = await self._database.read(lambda conn: turns.queued(conn, live.id))
            chosen = [row for row in waiting if turn_id in (None, row.id)]
            for row in chosen:
                await self._end_unstarted(row, Interrupted())
        return bool(chosen)

    async def _end_unstarted(self, row: StoredTurn, final: Terminal, start: int = 0) -> None:
        """Give a turn that no agent runs its terminal event."""
        log = self._logs.pop(row.id, None) or RunLog(self._journal, row.conversation_id, row.id, start=start)
        failed = final if isinstance(final, Error) else None

        def store(conn: Connection) -> None:
            turns.finish(
                conn,
                row.id,
                status="failed" if failed else "interrupted",
                end_reason="error" if failed else "interrupted",
                ended_at=now(),
                steps=row.steps,
                usage=row.usage,
                error={"code": failed.code, "message": failed.message, "retryable": False} if failed else None,
            )
            self._world.on_end(conn, row, final)

        with anyio.CancelScope(shield=True):
            await log.commit([final], store)
        log.close()

    async def drop(self, session_id: str) -> None:
        """Interrupt a session's turns, wait for their end and forget it; the caller deletes its rows."""
        live = self._live.get(session_id)
        if live is None:
            return
        live.dropped = True
        while live.turn_id is not None:
            if live.agent is not None:
                live.agent.interrupt()
            await live.changed.wait()
        self._live.pop(session_id, None)

    # Following

    def running(self, session_id: str) -> str | None:
        """Return the id of the running turn, or None."""
        live = self._live.get(session_id)
        return live.turn_id if live is not None else None

    def follow(self, turn_id: str, after: int = 0) -> AsyncGenerator[AgentEvent, None]:
        """Yield a turn's events strictly after a number: replay, then live, until its terminal event.

        Raises:
            NotFound: there is no such turn.
            LogGone: the turn ended and its log is no longer kept.
        """
        return follow(self._database, self._logs.get, turn_id, after)

    async def next_turn(self, session_id: str, after: str | None = None) -> str:
        """Wait until a turn that follows ``after`` starts (or runs already) and return its id."""
        while True:
            live = self._live.setdefault(session_id, Live(session_id))
            following = live.following(after)
            if following is not None:
                return following
            await live.changed.wait()

    # Sessions in memory

    async def _loaded(self, session_id: str) -> Live:
        live = self._live.setdefault(session_id, Live(session_id))
        if live.session is None:
            async with live.accepting:
                if live.session is None:
                    live.session = await self._load(session_id)
        return live

    async def _load(self, session_id: str) -> Session:
        try:
            return await self._database.read(lambda conn: load_session(conn, session_id))
        except NotFound:
            self._live.pop(session_id, None)
            raise

    def _trim(self) -> None:
        """Forget the transcripts of the sessions that have been idle longest."""
        idle = [live for live in self._live.values() if live.session is not None and live.turn_id is None]
        for live in idle[: max(0, len(idle) - MAX_TRANSCRIPTS)]:
            live.session = None

    # After a stop

    async def recover(self) -> int:
        """Resume the turns a stopped server left running; return how many.

        The data folder's lock proves that their owner is dead.
        """
        left = await self._database.read(turns.running)
        for row in left:
            await self._resume(row)
        waiting = await self._database.read(turns.queued)
        for row in waiting:  # readers of a waiting turn wait for its log
            self._logs[row.id] = RunLog(self._journal, row.conversation_id, row.id)
        for session_id in dict.fromkeys(row.session_id for row in waiting):
            await self._start_queue(await self._loaded(session_id))
        return len(left)

    async def _resume(self, row: StoredTurn) -> None:
        live = await self._loaded(row.session_id)
        session = live.session
        assert session is not None

        def read(conn: Connection) -> tuple[int, Mapping[str, Any] | None, dict[str, Block], Usage]:
            calls = {call.tool_call_id: call.result for call in tool_calls.of_turn(conn, row.id)}
            finished = {ident: result for ident, result in calls.items() if result is not None}
            spent = spent_so_far(conn, row.session_id, row.id)
            return run_events.last_seq(conn, row.id), images.get(conn, row.image_id), finished, spent

        last, image, finished, spent = await self._database.read(read)
        start = last + MAX_UNJOURNALLED
        if row.resumes >= MAX_RESUMES or image is None:
            limit = ResumeLimit(MAX_RESUMES)
            await self._end_unstarted(row, Error(limit.code, str(limit), False), start)
            return
        await self._database.write(lambda conn: turns.resumed(conn, row.id))
        own = session.of_turn(row.id)[1:]
        log = RunLog(self._journal, row.conversation_id, row.id, start=start)
        log.append(Resumed((last + 1, start)))
        self._logs[row.id] = log
        live.begin(row.id, Agent(self._world, session, row, Definition.from_json(image), log))
        self._task_group.start_soon(self._run_session, live, lambda turn: turn.restore(own, finished, spent))

    async def _start_queue(self, live: Live) -> None:
        if live.turn_id is not None:
            return
        async with live.accepting:
            begun = await self._begin_queued(live)
        if begun:
            self._task_group.start_soon(self._run_session, live)
