"""All live sessions of the process: accepting messages, running turns, following their events.

Owns which turn runs in which session, the queue behind it, and the task group in which turns live; a turn
belongs to the server, never to a socket. Knows conversations, domains and users only as labels.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from types import TracebackType
from typing import Literal, Self

import anyio
from anyio.abc import TaskGroup
from sqlalchemy import Connection

from agentic_rag.errors import GenerationAborted, TurnInProgress
from agentic_rag.events import AgentEvent, EventBody, Interrupted
from agentic_rag.messages import clean_text, user_message
from agentic_rag.runtime.accepting import (
    Accepted,
    Duplicate,
    accepted_as,
    refuse_busy,
    store_start,
)
from agentic_rag.runtime.agent import Agent, World
from agentic_rag.runtime.children import Children
from agentic_rag.runtime.compaction import Compaction
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.image import Image, Images
from agentic_rag.runtime.core.session import Session
from agentic_rag.runtime.live import Live
from agentic_rag.runtime.log.reader import LogReader, follow
from agentic_rag.runtime.running import Running
from agentic_rag.runtime.storing import LEASE_SECONDS
from agentic_rag.store import images, payloads, turns
from agentic_rag.store.clock import later, new_id, now
from agentic_rag.store.compactions import CompactionRecord
from agentic_rag.store.turns import TurnRecord


class Runtime:
    """Runs turns. An async context manager: leaving it stops turns where they are, to be resumed later."""

    def __init__(self, world: World, *, owner: str = "") -> None:
        self._world = world
        self._database = world.database
        self._running = Running(world, owner or new_id("run"))
        self._children = Children(world, self._running)
        self._images = Images()
        self._task_group: TaskGroup

    async def __aenter__(self) -> Self:
        self._task_group = self._running.tasks = await anyio.create_task_group().__aenter__()
        self._task_group.start_soon(self._running.journal.run)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        self._children.stopping = True
        self._task_group.cancel_scope.cancel()
        return await self._task_group.__aexit__(exc_type, exc, tb)

    async def drain(self, seconds: float) -> int:
        """Wait for running turns, at most so long; return how many still run (they resume later).

        What is queued stays so, and compactions give way.
        """
        self._running.draining = True
        for live in self._running.sessions:
            if live.compaction is not None:
                live.compaction.cancel()
        with anyio.move_on_after(seconds):
            while running := [live for live in self._running.sessions if live.turn_id is not None]:
                await running[0].changed.wait()
        return sum(live.turn_id is not None for live in self._running.sessions)

    # Sending

    async def send(
        self,
        session_id: str,
        content: str,
        definition: Definition,
        *,
        client_message_id: str | None = None,
        on_busy: Literal["reject", "queue"] = "reject",
        on_accept: Callable[[Connection, TurnRecord], Sequence[EventBody]] | None = None,
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
        live = await self._running.sessions.loaded(session_id)
        while True:
            while live.held:  # its terminal event may be out: who has seen that must not be told "busy"
                await live.changed.wait()
            with anyio.CancelScope(shield=True):  # once stored, the turn must also start
                async with live.accepting:
                    if not live.held:
                        return await self._accept(
                            live, clean_text(content), definition, client_message_id, on_busy, on_accept
                        )

    async def _accept(
        self,
        live: Live,
        content: str,
        definition: Definition,
        client_message_id: str | None,
        on_busy: str,
        on_accept: Callable[[Connection, TurnRecord], Sequence[EventBody]] | None,
    ) -> Accepted:
        session = await self._running.present(live)
        image = self._images.of(definition)
        busy = live.turn_id
        unended = list(live.unended)
        row = self._new_row(session, content, image, client_message_id, queued=busy is not None)
        log = self._running.log_of(row, definition.domain_id)
        entries = session.planned(row.id, 0, row.user_message_id, [user_message(content)])

        def store(conn: Connection) -> list[AgentEvent]:
            refuse_busy(conn, row, busy, on_busy)
            self._running.end_late(conn, unended)
            extra = on_accept(conn, row) if on_accept is not None else ()
            images.put(conn, image.id, definition.domain_id, image.content)
            turns.accept(conn, row)
            if busy is not None:
                return []
            return store_start(conn, row, entries, log, extra, definition.model)

        try:
            first = await self._database.write(store, durable=True)
        except Duplicate as known:
            return accepted_as(known.turn, duplicate=True)
        self._running.logs[row.id] = log
        live.unended = live.unended[len(unended) :]
        for ended in unended:
            self._running.logs.pop(ended.row.id, None)
        if busy is None:
            session.extend(entries)
            log.adopt(first)
            live.begin(row.id, Agent(self._world, session, row, definition, log))
            self._task_group.start_soon(self._running.run, live)
        return accepted_as(row, duplicate=False)

    def _new_row(
        self, session: Session, content: str, image: Image, client_message_id: str | None, *, queued: bool
    ) -> TurnRecord:
        return TurnRecord(
            id=new_id("turn"),
            session_id=session.id,
            conversation_id=session.labels.get("conversation_id", session.id),
            client_message_id=client_message_id,
            content=content,
            user_message_id=new_id("msg"),
            message_id=new_id("msg"),
            image_id=image.id,
            status="queued" if queued else "running",
            owner="" if queued else self._running.owner,
            fence=0 if queued else 1,
            lease_until=None if queued else later(LEASE_SECONDS),
            started_at=now(),
        )

    async def run_child(self, turn_id: str, call_id: str, role: str, task: str) -> tuple[str, bool]:
        """Do what a ``delegate`` call of a running turn asks for; see `Children.run`."""
        return await self._children.run(turn_id, call_id, role, task)

    # Compacting

    async def compact(self, session_id: str, definition: Definition) -> CompactionRecord:
        """Put a summary in the place of a session's messages; it holds the session like a turn.

        Raises:
            NotFound: no such session.
            TurnInProgress: a turn runs.
            CompactionNotNeeded: there are too few messages; nothing has changed.
            ModelError, GenerationTimeout, StorageFull: nothing has changed.
            GenerationAborted: somebody interrupted it; nothing has changed.
        """
        live = await self._running.sessions.loaded(session_id)
        while (compaction := await self._hold(live, definition)) is None:
            await live.changed.wait()
        try:
            done = await compaction.run()
        finally:
            live.compaction = None
            live.wake()
        if done is None:
            raise GenerationAborted
        return done

    async def _hold(self, live: Live, definition: Definition) -> Compaction | None:
        """Let a compaction hold the session; None when it must wait until something changes."""
        async with live.accepting:
            if live.held:
                return None
            session = await self._running.present(live)
            if live.turn_id is not None:
                raise TurnInProgress(live.turn_id, "A turn is running. Compact the conversation once it has ended.")
            live.compaction = Compaction(self._world, session, definition, "user")
            return live.compaction

    # Ending

    async def interrupt(self, session_id: str, *, turn_id: str | None = None, queued: bool = False) -> bool:
        """Interrupt the running turn (or the named one) or compaction, and with ``queued`` those that wait.

        Idempotent: a turn that has ended stays as it is. Returns whether anything was interrupted.
        """
        live = self._running.sessions.get(session_id)
        if live is None:
            return False
        done = False
        if live.compaction is not None and turn_id is None:
            live.compaction.cancel()
            done = True
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
                await self._running.end_unstarted(row, Interrupted())
        return bool(chosen)

    async def drop(self, session_id: str) -> None:
        """End a session's turns, forget it and remove the files of its payloads; the caller deletes its rows.

        The files go first: their names stand in the rows, so that a deletion that was cut off can be repeated.
        """
        live = self._running.sessions.get(session_id)
        if live is not None:
            await self._running.leave(live)
        await self._world.payloads.remove(await self._database.read(lambda conn: payloads.refs_of(conn, session_id)))

    async def payload(self, session_id: str, ref: str) -> tuple[str, bytes] | None:
        """Return media type and bytes of what a session keeps under a ref; None when it keeps nothing there."""
        kept = await self._database.read(lambda conn: payloads.get(conn, session_id, ref))
        data = None if kept is None else await self._world.payloads.read(ref)
        return None if kept is None or data is None else (kept.media_type, data)

    # After a stop

    async def recover(self) -> int:
        """Resume the turns a stopped server left running; return how many.

        The data folder's lock proves that their owner is dead.
        """
        return await self._running.recover()

    # Following

    def running(self, session_id: str) -> str | None:
        """Return the id of the running turn, or None."""
        live = self._running.sessions.get(session_id)
        return live.turn_id if live is not None else None

    def follow(self, turn_id: str, after: int = 0) -> AsyncGenerator[AgentEvent, None]:
        """Yield a turn's events strictly after a number: replay, then live, until its terminal event.

        Raises:
            NotFound: there is no such turn.
            LogGone: the turn ended and its log is no longer kept.
        """
        return follow(self.read(turn_id, after))

    def read(self, turn_id: str, after: int = 0) -> LogReader:
        """Return a reader of a turn's events strictly after a number; see `LogReader`."""
        return LogReader(self._database, self._running.logs.get, turn_id, after)

    async def next_turn(self, session_id: str, after: str | None = None) -> str:
        """Wait until a turn that follows ``after`` starts (or runs already) and return its id."""
        while True:
            live = self._running.sessions.of(session_id)
            following = live.following(after)
            if following is not None:
                return following
            await live.changed.wait()
