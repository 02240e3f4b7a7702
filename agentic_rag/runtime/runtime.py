"""All sessions of the process: the map of them, what happens after a stop, and the way to a turn's events.

Owns which sessions are in memory and the task group in which their turns live. What one session does is
`LiveSession`'s.
"""

import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator
from functools import partial
from types import TracebackType
from typing import Self

import anyio

from agentic_rag.errors import NotFound, StorageError
from agentic_rag.events import AgentEvent, Interrupted
from agentic_rag.redaction import Redactor
from agentic_rag.runtime.children import Delegations
from agentic_rag.runtime.log.reader import LogReader, follow
from agentic_rag.runtime.log.runlog import Journal
from agentic_rag.runtime.services import AgentServices, Patience, Resources, TurnHooks
from agentic_rag.runtime.session import LiveSession
from agentic_rag.runtime.storing import end_without_agent, take_left
from agentic_rag.store import payloads, turns
from agentic_rag.store.clock import new_id
from agentic_rag.store.database import Database
from agentic_rag.store.payloads import PayloadFiles
from agentic_rag.store.turns import TurnRecord
from agentic_rag.workers import attempt

MAX_TRANSCRIPTS = 256
"""Idle sessions whose transcripts stay in memory."""
RENEW_SECONDS = 5.0
"""How often the leases of turns are renewed, a third of what they last."""
PUT_DOWN_SECONDS = 5.0
"""How long a process that ends waits for the store to take that it does."""

logger = logging.getLogger(__name__)


class Runtime:
    """Runs turns. An async context manager: leaving it stops turns where they are, to be resumed later.

    Args:
        services: what a turn needs from outside.
        hooks: what others store inside a turn's transactions.
        database: where sessions, turns and run logs are.
        payloads: where the files of what is kept whole are.
        redactor: the values that no event of a domain's turn may show.
        delegations: runs the delegates of the turns; the ``delegate`` server has it too.
        patience: how long a model is waited for.
    """

    def __init__(
        self,
        services: AgentServices,
        hooks: TurnHooks,
        *,
        database: Database,
        payloads: PayloadFiles,
        redactor: Redactor,
        delegations: Delegations,
        patience: Patience | None = None,
    ) -> None:
        self._database = database
        self._payloads = payloads
        self._delegations = delegations
        self._journal = Journal(database)
        self._tasks = anyio.create_task_group()
        self._live: OrderedDict[str, LiveSession] = OrderedDict()
        """By id, the one that was used last at the end."""
        self._resources = Resources(
            services=services,
            hooks=hooks,
            database=database,
            payloads=payloads,
            redactor=redactor,
            patience=patience or Patience(),
            journal=self._journal,
            owner=new_id("run"),
            tasks=self._tasks,
        )

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._journal.run)
        self._tasks.start_soon(self._keep_leases)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        left = self._running() or self._database.shared  # there a queue that is left is somebody else's at once
        self._journal.stop()
        self._tasks.cancel_scope.cancel()
        try:
            return await self._tasks.__aexit__(exc_type, exc, tb)
        finally:
            if left:
                await self._put_down()

    async def _put_down(self) -> None:
        """Say in the store that the turns which still run were left on purpose: their next start is no resume."""
        with anyio.move_on_after(PUT_DOWN_SECONDS, shield=True):
            try:
                await self._database.write(partial(turns.put_down, owner=self._resources.owner))
            except StorageError as exc:  # then it counts as one that was cut off
                logger.warning("turns were left without a word: %s", exc)

    async def drain(self, seconds: float) -> int:
        """Wait for running turns, at most so long; return how many still run (they resume later).

        What is queued stays so, and compactions give way. Then readers are told that the server goes away.
        """
        self._resources.draining.set()
        for live in self._live.values():
            live.give_way()
        with anyio.move_on_after(seconds):
            while running := self._running():
                await running[0].change()
        self._journal.dismiss_readers()
        return len(self._running())

    @property
    def draining(self) -> bool:
        """Whether nothing new begins any more."""
        return self._resources.draining.is_set()

    @property
    def running_count(self) -> int:
        """How many sessions have a running turn."""
        return len(self._running())

    def _running(self) -> list[LiveSession]:
        return [live for live in self._live.values() if live.turn_id is not None]

    # Leases

    async def _keep_leases(self) -> None:
        while True:
            await anyio.sleep(RENEW_SECONDS)
            if self._running():
                await attempt("keeping leases of turns", self.renew_leases)

    async def renew_leases(self) -> None:
        """Renew the leases of this process's turns, and stop those that another one has taken."""
        began = [(live, turn_id) for live in self._running() if (turn_id := live.turn_id) is not None]
        kept = await self._database.write(partial(turns.renew, owner=self._resources.owner))
        for live, turn_id in began:
            if turn_id not in kept:
                live.give_up(turn_id)

    # Sessions

    async def session(self, session_id: str) -> LiveSession:
        """Return a session with its transcript in memory.

        Raises:
            NotFound: there is no such session.
        """
        live = self._session(session_id)
        self._live.move_to_end(session_id)
        try:
            await live.load()
        except NotFound:
            self._live.pop(session_id, None)
            raise
        self._trim()
        return live

    def _session(self, session_id: str) -> LiveSession:
        """Return a session, whether it exists or not: a reader may wait for its next turn."""
        live = self._live.get(session_id)
        if live is None:
            live = self._live[session_id] = LiveSession(session_id, self._resources, self._delegations)
        return live

    def _trim(self) -> None:
        """Let go the transcripts of the sessions that have been idle longest."""
        idle = [live for live in self._live.values() if live.loaded and live.idle]
        for live in idle[: max(0, len(idle) - MAX_TRANSCRIPTS)]:
            live.unload()

    async def interrupt(self, session_id: str, *, turn_id: str | None = None, queued: bool = False) -> bool:
        """Interrupt what runs in a session, if anything does; see `LiveSession.interrupt`."""
        live = self._live.get(session_id)
        return live is not None and await live.interrupt(turn_id=turn_id, queued=queued)

    async def drop(self, session_id: str) -> None:
        """End a session's turns, forget it and remove the files of its payloads; the caller deletes its rows.

        The files go first: their names stand in the rows, so that a deletion that was cut off can be repeated.
        """
        live = self._live.get(session_id)
        if live is not None:
            await live.leave()
            self._live.pop(session_id, None)
        await self._payloads.remove(await self._database.read(lambda conn: payloads.refs_of(conn, session_id)))

    async def payload(self, session_id: str, ref: str) -> tuple[str, bytes] | None:
        """Return media type and bytes of what a session keeps under a ref; None when it keeps nothing there."""
        kept = await self._database.read(lambda conn: payloads.get(conn, session_id, ref))
        data = None if kept is None else await self._payloads.read(ref)
        return None if kept is None or data is None else (kept.media_type, data)

    # After a stop

    async def recover(self) -> int:
        """Resume the turns that a server which is gone left running or waiting; return how many were running.

        A SQLite file is its owner's alone: whoever had them is dead. Where others share the store, these are turns
        whose leases are over, and it is asked again and again.
        """
        if self._resources.draining.is_set():
            return 0
        take = partial(take_left, owner=self._resources.owner, alone=not self._database.shared)
        # durable: the epoch of a fence is used up with the first event that somebody sees
        taken = await self._database.write(take, durable=True)
        for row, domain_id in taken.queued:  # before any turn can end and begin the next one: it needs its log
            self._session(row.session_id).expect(row, domain_id)
        insist = self._journal.insist  # they are this process's now: whoever gives up here leaves them to nobody
        for row in taken.orphans:
            write = partial(end_without_agent, row=row, final=Interrupted())
            await insist(partial(self._database.write, write))
        for row in taken.running:
            await insist(partial(self._resume, row))
        for session_id in dict.fromkeys(row.session_id for row, _ in taken.queued):
            await (await self.session(session_id)).start_queue()
        return len(taken.running)

    async def _resume(self, row: TurnRecord) -> None:
        self._session(row.session_id).unload()  # what it remembers is from before the other one
        await (await self.session(row.session_id)).resume(row)

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
        return follow(self.read(turn_id, after))

    def read(self, turn_id: str, after: int = 0) -> LogReader:
        """Return a reader of a turn's events strictly after a number; see `LogReader`."""
        return LogReader(self._journal, turn_id, after)

    async def next_turn(self, session_id: str, after: str | None = None) -> str:
        """Wait until a turn that follows ``after`` starts (or runs already) and return its id."""
        return await self._session(session_id).next_turn(after)
