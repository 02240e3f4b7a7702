"""The turns of live sessions: each to its end, then the queue behind it, a compaction between, and after a stop.

Owns the loop of a session and the records of turns that no agent runs. A failure of the store ends or delays the
turns it hits and nothing else: all sessions share one task group. Knows no sender and no reader.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import anyio
from anyio.abc import TaskGroup
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from agentic_rag.errors import AgenticRagError, LeaseLost, NotFound, ResumeLimit
from agentic_rag.events import AgentEvent, Error, Interrupted, Resumed, Terminal
from agentic_rag.messages import user_message
from agentic_rag.runtime.accepting import Left, left_running, load_session, read_left, store_start
from agentic_rag.runtime.agent import Agent, World
from agentic_rag.runtime.compaction import Compaction, is_due
from agentic_rag.runtime.core.calls import PlannedCall
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.session import Session
from agentic_rag.runtime.core.turn import Turn
from agentic_rag.runtime.live import Live, LiveSessions, Unended
from agentic_rag.runtime.log.runlog import MAX_UNJOURNALLED, Journal, RunLog
from agentic_rag.runtime.storing import LEASE_SECONDS, end_unrun, hold
from agentic_rag.store import images, run_events, turns
from agentic_rag.store.clock import later
from agentic_rag.store.turns import TurnRecord

logger = logging.getLogger(__name__)

MAX_RESUMES = 3
QUEUE_SECONDS = 1.0
"""How long after the store refused it a queued turn is tried again."""
COMPACT_AGAIN = 0.1
"""Share of ``contextTokens`` by which a session grows before a failed compaction is tried again."""


class Running:
    """Runs the turns of all sessions in ``tasks``, which its owner sets and ends.

    ``logs`` are those of turns that run, wait, or whose end could not be stored. ``draining``: nothing new begins.
    """

    tasks: TaskGroup

    def __init__(self, world: World, owner: str) -> None:
        self.owner = owner
        self.journal = Journal(world.database)
        self.logs: dict[str, RunLog] = {}
        self.sessions = LiveSessions(self._load)
        self.draining = False
        self._world = world
        self._database = world.database

    def log_of(self, row: TurnRecord, domain_id: str, start: int = 0) -> RunLog:
        """Return a log for a turn of a domain; see `RunLog`."""
        redact = self._world.redact(domain_id)
        return RunLog(self.journal, row.conversation_id, row.id, start=start, redact=redact)

    async def run(self, live: Live, resume: Callable[[Turn], Sequence[PlannedCall]] | None = None) -> None:
        """Run the turn that has begun and then whatever is queued behind it."""
        while (agent := live.agent) is not None and (turn_id := live.turn_id) is not None:
            await agent.run(resume)
            resume = None
            if agent.failure is not None:  # its log stays: the events are nowhere else
                live.unended.append(Unended(agent.row, self.logs[turn_id], agent.failure))
            else:
                self.logs.pop(turn_id, None)
            if agent.failure is not None or agent.lost:
                live.session = None  # the store's is the true one
            else:
                await self._compact_if_due(live, agent)
            async with live.accepting:  # a message is either queued before this or starts a turn after it
                if agent.lost or not await self._go_on(live):
                    live.end()
        self.sessions.trim()

    async def _go_on(self, live: Live) -> bool:
        """Begin the next queued turn; False when there is none, or it cannot begin now."""
        if live.dropped or self.draining:
            return False
        try:
            return await self._begin_queued(live)
        except (AgenticRagError, SQLAlchemyError, OSError) as exc:  # the store refuses: other sessions go on
            logger.error("the queue of session %s waits: %s", live.id, exc)
            self.tasks.start_soon(self._try_queue_again, live)
            return False

    async def _try_queue_again(self, live: Live) -> None:
        await anyio.sleep(QUEUE_SECONDS)
        if live.turn_id is None and not live.dropped:
            await self.start_queue(live)

    async def start_queue(self, live: Live) -> None:
        if live.turn_id is not None:
            return
        async with live.accepting:
            begun = live.idle and await self._go_on(live)
        if begun:
            self.tasks.start_soon(self.run, live)

    async def _begin_queued(self, live: Live) -> bool:
        """Begin the oldest queued turn; False when none waits."""
        waiting = await self._database.read(lambda conn: turns.queued(conn, live.id))
        if not waiting:
            return False
        session = await self.present(live)
        row = replace(waiting[0], owner=self.owner, fence=waiting[0].fence + 1, status="running")
        log = self.logs[row.id]
        entries = session.planned(row.id, 0, row.user_message_id, [user_message(row.content)])

        def store(conn: Connection) -> tuple[Definition, list[AgentEvent]]:
            stored = images.get(conn, row.image_id)
            assert stored is not None
            definition = Definition.from_json(stored)
            turns.start(
                conn,
                row.id,
                image_id=row.image_id,
                role_hashes={},
                owner=self.owner,
                started_at=row.started_at,
                until=later(LEASE_SECONDS),
            )
            return definition, store_start(conn, row, entries, log, (), definition.model)

        with anyio.CancelScope(shield=True):
            try:
                definition, first = await self._database.write(store, durable=True)
            except BaseException:
                log.rewind()
                raise
            session.extend(entries)
            log.adopt(first)
            live.begin(row.id, Agent(self._world, session, row, definition, log))
        return True

    async def _compact_if_due(self, live: Live, agent: Agent) -> None:
        """Compact between turns. The ended turn still holds the session; a failure costs nothing but the try."""
        session = live.session
        tokens = agent.tokens
        if session is None or self.draining or live.dropped or tokens <= live.compact_past:
            return
        if not is_due(session, agent.definition, tokens):
            return
        live.compaction = Compaction(self._world, session, agent.definition, "auto")
        live.compact_past = tokens + agent.definition.limits.context_tokens * COMPACT_AGAIN
        try:
            if await live.compaction.run() is not None:
                live.compact_past = 0
        except Exception as exc:  # the session goes on as it was, and so must all others in this task group
            logger.warning("session %s was not compacted: %s", live.id, exc, exc_info=exc)
        finally:
            live.compaction = None

    # Turns that no agent runs

    async def end_unstarted(self, row: TurnRecord, final: Terminal, resumed: Resumed | None = None) -> None:
        """Give a turn that no agent runs its terminal event, after ``resumed`` if it had begun."""
        start = 0 if resumed is None else resumed.voids[1]
        # a new log is for our own words only: there is nothing in them to redact
        log = self.logs.pop(row.id, None) or RunLog(self.journal, row.conversation_id, row.id, start=start)

        def store(conn: Connection) -> None:
            end_unrun(conn, row, final)
            self._world.on_end(conn, row, final)

        with anyio.CancelScope(shield=True):
            await log.commit([final] if resumed is None else [resumed, final], store)
        log.close()

    def end_late(self, conn: Connection, unended: Iterable[Unended]) -> None:
        """Store the ends of turns that the store refused when they came, and all their events."""
        for turn in unended:
            try:
                hold(conn, turn.row)
            except LeaseLost:
                continue
            run_events.append(conn, [(event.turn_id, event.seq, event.data) for event in turn.log.unstored()])
            end_unrun(conn, turn.row, turn.final)
            self._world.on_end(conn, turn.row, turn.final)

    # Sessions in memory

    async def _load(self, session_id: str) -> Session:
        return await self._database.read(lambda conn: load_session(conn, session_id))

    async def present(self, live: Live) -> Session:
        """Return a session's transcript, read again if it was let go meanwhile; ``live.accepting`` is held.

        Raises:
            NotFound: the session is gone.
        """
        if live.dropped:
            raise NotFound("session", live.id)
        if live.session is None:
            live.session = await self._load(live.id)
        return live.session

    async def leave(self, live: Live) -> None:
        """Interrupt what runs in a session, wait for its end and forget it."""
        live.dropped = True
        while not live.idle:
            if live.agent is not None:
                live.agent.interrupt()
            if live.compaction is not None:
                live.compaction.cancel()
            await live.changed.wait()
        self.sessions.forget(live.id)
        for ended in live.unended:
            self.logs.pop(ended.row.id, None)

    # After a stop

    async def recover(self) -> int:
        """Resume the turns a stopped server left running; return how many.

        The data folder's lock proves that their owner is dead.
        """
        left, orphans = await self._database.read(left_running)
        waiting = await self._database.read(_waiting)
        for row, domain_id in waiting:  # before any turn can end and begin the next one: it needs its log
            self.logs[row.id] = self.log_of(row, domain_id)
        for row in orphans:
            await self._database.write(partial(end_unrun, row=row, final=Interrupted()))
        for row in left:
            await self._resume(row)
        for session_id in dict.fromkeys(row.session_id for row, _ in waiting):
            await self.start_queue(await self.sessions.loaded(session_id))
        return len(left)

    async def _resume(self, row: TurnRecord) -> None:
        live = await self.sessions.loaded(row.session_id)
        session = live.session
        assert session is not None
        left = await self._database.read(lambda conn: read_left(conn, row))
        start = left.last + MAX_UNJOURNALLED
        resumed = Resumed((left.last + 1, start))
        definition = definition_of(left)
        if row.resumes >= MAX_RESUMES or definition is None:
            limit = ResumeLimit(MAX_RESUMES)
            await self.end_unstarted(row, Error(limit.code, str(limit), False), resumed)
            return

        def take(conn: Connection) -> int:
            turns.count_resume(conn, row.id)
            return turns.take_lease(conn, row.id, self.owner, later(LEASE_SECONDS))

        row = replace(row, owner=self.owner, fence=await self._database.write(take))
        own = session.of_turn(row.id)[1:]
        log = self.log_of(row, definition.domain_id, start)
        log.append(resumed)
        self.logs[row.id] = log
        live.begin(row.id, Agent(self._world, session, row, definition, log))
        self.tasks.start_soon(self.run, live, lambda turn: turn.restore(own, left.finished, left.spent))


def _waiting(conn: Connection) -> list[tuple[TurnRecord, str]]:
    """Return all queued turns with their domains."""
    return [(row, images.domain_of(conn, row.image_id)) for row in turns.queued(conn)]


def definition_of(left: Left) -> Definition | None:
    """Return what a turn ran on; None when that is gone, or of a version this program cannot run."""
    if left.image is None:
        return None
    try:
        return Definition.from_json(left.image)
    except (TypeError, KeyError) as exc:
        logger.error("a stored definition cannot be used: %r", exc)
        return None
