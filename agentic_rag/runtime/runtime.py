"""All sessions of the process: the sessions in memory, recovery after a stop, and access to a turn's events.

Owns the map of sessions and the task group of their turns. `LiveSession` owns the work of one session.
"""

import logging
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio
from sqlalchemy import Connection

from agentic_rag.base.errors import NotFound, StorageError, StorageUnavailable
from agentic_rag.base.events import AgentEvent, Interrupted
from agentic_rag.base.ids import SessionId, TurnId, WaitId
from agentic_rag.base.redaction import Redactor
from agentic_rag.base.telemetry import NO_OBSERVER, Observer
from agentic_rag.base.workers import attempt
from agentic_rag.runtime.delegates import Delegations
from agentic_rag.runtime.log.fanout import InProcessFanout
from agentic_rag.runtime.log.reader import LogReader, follow
from agentic_rag.runtime.log.remote_logs import RemoteLogs
from agentic_rag.runtime.log.runlog import Journal
from agentic_rag.runtime.refused_tools import RefusedTools
from agentic_rag.runtime.services import (
    AgentServices,
    Answers,
    HiddenDocuments,
    Replica,
    Resources,
    TurnHooks,
    TurnLoad,
    TurnTimeouts,
    hide_nothing,
)
from agentic_rag.runtime.session import LiveSession
from agentic_rag.runtime.spending import Spending
from agentic_rag.runtime.transcript_cache import DEFAULT_BYTES, TranscriptCache
from agentic_rag.runtime.turn_persistence import end_without_agent, list_waiting, take_abandoned
from agentic_rag.store import payloads, sessions, turns, waits
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.payloads import PayloadFiles
from agentic_rag.store.signals import SignalKind
from agentic_rag.store.turns import TurnRecord, TurnStatus
from agentic_rag.store.waits import WaitRecord

if TYPE_CHECKING:  # imports PostgreSQL's driver
    from agentic_rag.store.signal_feed import SignalFeed

LOOK_SECONDS = 5.0
"""Between two checks for expired waits, and for turns that can be suspended."""
RENEW_SECONDS = 5.0
"""Between two renewals of the turns' leases, a third of a lease's duration."""
END_SECONDS = 30.0
"""How long `Runtime.drop` waits for turns of other processes to end. Longer than a lease."""
END_LOOK_SECONDS = 0.1
RELEASE_SECONDS = 5.0
"""How long a stopping process tries to store that its turns were left on purpose."""

logger = logging.getLogger(__name__)


class Runtime:
    """Runs the turns of one process.

    An async context manager, with these states:

    - *entered*: `session` and `recover` begin turns. Tasks renew leases, expire waits and write the journal.
    - *draining*, after `drain`: nothing new begins. Turns that wait for a person or can be suspended leave.
    - *left*: running turns are cancelled. Their stored state stays, and the next process resumes them.

    Invariants:

    - A turn runs in the process that its lease names, and in no other. Every write of a turn proves its lease.
    - `_live` holds each session of this process at most once. A session leaves it when nothing runs or waits in it.
    - A client that disconnects ends no turn.

    Args:
        services: the services for turns outside the runtime.
        hooks: the writers that take part in a turn's transactions.
        database: the store of sessions, turns and run logs.
        payloads: the files of results and images that are stored in full.
        redactor: the secrets that no event of a domain's turn may show.
        delegations: runs the delegates of the turns; the ``delegate`` server uses it too.
        patience: timeouts for models and people.
        answers: wakes calls whose waits were answered.
        replica: this process among those of a shared store; by default the only one.
        transcript_bytes: size of the cache for idle sessions' transcripts.
        spending: the budgets for model calls; None: no budgets.
        observer: receives spans and measurements.
        hidden_documents: names the documents that the reader of a turn may not see; by default none.
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
        patience: TurnTimeouts | None = None,
        answers: Answers | None = None,
        replica: Replica | None = None,
        transcript_bytes: int = DEFAULT_BYTES,
        spending: Spending | None = None,
        observer: Observer = NO_OBSERVER,
        hidden_documents: HiddenDocuments = hide_nothing,
    ) -> None:
        self._database = database
        self._payloads = payloads
        self._delegations = delegations
        replica = replica or Replica()
        self._remote_logs = RemoteLogs(database, replica.fanout or InProcessFanout()) if database.shared else None
        self._journal = Journal(database, self._remote_logs, observer)
        self._recovered = False
        """Whether `recover` has registered the turns that an earlier process suspended. Only for a SQLite file."""
        self._awake = False
        """Whether a stored answer may be waiting for a process that resumes its turn. `check_waits` looks for one."""
        self._tasks = anyio.create_task_group()
        self._live: dict[str, LiveSession] = {}
        self._resources = Resources(
            services=services,
            hooks=hooks,
            database=database,
            payloads=payloads,
            redactor=redactor,
            patience=patience or TurnTimeouts(),
            answers=answers or Answers(),
            journal=self._journal,
            spending=spending or Spending(database),
            observer=observer,
            owner=replica.owner,
            tasks=self._tasks,
            hidden_documents=hidden_documents,
            load=TurnLoad(replica.most_turns if database.shared else 0),
            transcripts=TranscriptCache(transcript_bytes),
        )
        if replica.feed is not None:
            self._subscribe(replica.feed)

    @property
    def refused_tools(self) -> RefusedTools:
        """The tools that models' services refused."""
        return self._resources.refused_tools

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._journal.run)
        self._tasks.start_soon(self._keep_leases)
        self._tasks.start_soon(self._keep_waits)
        if self._remote_logs is not None:
            self._tasks.start_soon(self._remote_logs.run)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        has_work = self._running() or self._database.shared  # on a shared store another process takes the queue at once
        # Ends the retries of refused writes. Commits are shielded, so the cancellation below would wait for them.
        self._journal.stop()
        self._tasks.cancel_scope.cancel()
        try:
            return await self._tasks.__aexit__(exc_type, exc, tb)
        finally:
            if has_work:
                await self._release_leases()

    async def _release_leases(self) -> None:
        """Mark the running turns as left on purpose, so that their next start does not count as a resume."""
        with anyio.move_on_after(RELEASE_SECONDS, shield=True):
            try:
                await self._database.write(partial(turns.release_all, owner=self._resources.owner))
            except StorageError as exc:  # then they count as cut off
                logger.warning("turns were left without a word: %s", exc)

    async def _release_queue(self) -> None:
        await self._database.write(partial(turns.release_all, owner=self._resources.owner, only_queued=True))

    async def drain(self, seconds: float) -> int:
        """Wait up to ``seconds`` for running turns. Return how many still run; they resume later.

        Queued turns stay queued, and compactions are cancelled. In the end readers are notified that the server stops.
        """
        self._resources.draining.set()
        for live in list(self._live.values()):
            live.cancel_compaction()
            # concurrently, because a store that refuses must not delay the end
            self._tasks.start_soon(attempt, "suspending a turn", partial(live.suspend_after, 0.0))
        if self._database.shared:
            self._tasks.start_soon(attempt, "releasing the queue", self._release_queue)
        with anyio.move_on_after(seconds):
            while running := self._running():
                await running[0].change()
        self._journal.dismiss_readers()
        return len(self._running())

    @property
    def owner(self) -> str:
        """The name of this process in leases."""
        return self._resources.owner

    @property
    def shared(self) -> bool:
        """Whether other processes use the store and begin turns too."""
        return self._database.shared

    @property
    def draining(self) -> bool:
        """Whether nothing new begins any more."""
        return self._resources.draining.is_set()

    @property
    def running_count(self) -> int:
        """How many sessions have a running turn."""
        return len(self._running())

    @property
    def reader_count(self) -> int:
        """How many readers follow turns."""
        return self._journal.reader_count

    def _running(self) -> list[LiveSession]:
        """Return the sessions with a turn that runs here."""
        return [live for live in self._live.values() if live.running]

    # Other processes of the store

    def _subscribe(self, feed: "SignalFeed") -> None:
        feed.subscribe(SignalKind.INTERRUPT, lambda signal: self._on_interrupt(TurnId(signal.subject)))
        feed.subscribe(SignalKind.ANSWERED, lambda signal: self._on_answered(WaitId(signal.subject)))
        feed.subscribe(SignalKind.TURNS, lambda _: self._check_soon())
        feed.subscribe(SignalKind.BEGAN, lambda signal: self._on_begun_elsewhere(signal.subject, TurnId(signal.detail)))
        feed.subscribe(SignalKind.GAP, lambda _: self._check_soon())

    def _on_interrupt(self, turn_id: TurnId) -> None:
        for live in self._running():
            if live.turn_id == turn_id:
                live.stop()
                return
        # The signal may come before this process begins the turn.
        self._resources.interrupts.note(turn_id)

    def _on_answered(self, wait_id: WaitId) -> None:
        self._awake = True
        self._resources.answers.notify(wait_id)

    def _check_soon(self) -> None:
        self._awake = True
        self._resources.answers.wake()

    def _on_begun_elsewhere(self, session_id: str, turn_id: TurnId) -> None:
        live = self._live.get(session_id)
        if live is not None:
            live.handle_begun_elsewhere()
        if self._remote_logs is not None:
            self._remote_logs.announce_reader(turn_id)

    # Leases

    async def _keep_leases(self) -> None:
        while True:
            await anyio.sleep(RENEW_SECONDS)
            if self._running():
                await attempt("keeping leases of turns", self.renew_leases)

    async def renew_leases(self) -> None:
        """Renew the leases of this process's turns, and stop the turns that another process has taken over."""
        # Collected before the write: a turn that begins during it has a fresh lease, and is not among the renewed ones.
        began = [(live, turn_id) for live in self._running() if (turn_id := live.turn_id) is not None]
        renewed = await self._database.write(partial(turns.renew, owner=self._resources.owner))
        for live, turn_id in began:
            # The turn may have ended during the write; `abandon` compares the id with the turn that runs now.
            if turn_id not in renewed:
                live.abandon(turn_id)

    # Waits for people

    async def _keep_waits(self) -> None:
        news = self._resources.answers.news
        while True:
            with anyio.move_on_after(LOOK_SECONDS):
                await news.wait()
            # fetch the next event before the check, so that a later notification causes another check
            self._awake, news = self._awake or news.is_set(), self._resources.answers.news
            await attempt("checking waits for people", self.check_waits)

    async def check_waits(self) -> None:
        """Expire overdue waits, and suspend turns that have waited for long."""
        if self._resources.draining.is_set():
            return
        at = now()

        def expire(conn: Connection) -> list[WaitRecord]:
            over = waits.expire(conn, at)
            for wait in over:
                turns.wake(conn, wait.root_turn_id)
            return over

        if await self._database.read(partial(waits.is_any_due, at=at)):
            await self.take_answers(await self._database.write(expire, durable=True))
        if self._awake:
            await self._resume_answered()
        for live in self._running():
            await live.suspend_after(self._resources.patience.memory_seconds)

    async def take_answers(self, answered: Sequence[WaitRecord]) -> None:
        """Wake the calls and suspended turns that these waits belong to. Their answers are stored."""
        for wait in answered:
            self._resources.answers.notify(wait.id)
        if answered:
            self._awake = True
            await attempt("resuming answered turns", self._resume_answered)

    async def _resume_answered(self) -> None:
        # Cleared first, so that an answer which is stored meanwhile causes another look.
        self._awake = False
        try:
            await self.recover()
        except BaseException:
            self._awake = True
            raise

    # Sessions

    async def session(self, session_id: SessionId) -> LiveSession:
        """Return a session with its transcript in memory.

        Raises:
            NotFound: the session does not exist.
        """
        live = self._session(session_id)
        try:
            await live.load()
        except NotFound:
            self._live.pop(session_id, None)
            raise
        return live

    def _session(self, session_id: SessionId) -> LiveSession:
        """Return a session without a check that it exists, because a reader may wait for its first turn."""
        live = self._live.get(session_id)
        if live is None:
            live = self._live[session_id] = LiveSession(session_id, self._resources, self._delegations)
        return live

    async def interrupt(self, session_id: SessionId, *, turn_id: TurnId | None = None, queued: bool = False) -> bool:
        """Interrupt the running turn or compaction of a session, in any process; see `LiveSession.interrupt`."""
        live = self._session(session_id) if self._database.shared else self._live.get(session_id)
        if live is None:
            return False
        done = await live.interrupt(turn_id=turn_id, queued=queued)
        if self._database.shared and (queued or not done):
            done = await self._interrupt_elsewhere(live, turn_id) or done
        return done

    async def _interrupt_elsewhere(self, live: LiveSession, turn_id: TurnId | None) -> bool:
        """Interrupt the turn that runs or waits in a session according to the store. Its process is notified."""

        def ask(conn: Connection) -> TurnRecord | None:
            current = turns.current(conn, [live.id]).get(live.id)
            if current is None or turn_id not in (None, current.id) or current.status is TurnStatus.QUEUED:
                return None
            if current.status is TurnStatus.RUNNING:
                turns.request_interrupt(conn, current.id)
            return current

        turn = await self._database.write(ask)
        if turn is None:
            return False
        if turn.status is TurnStatus.WAITING:
            return await live.interrupt_waiting(turn)
        self._on_interrupt(turn.id)  # this process may have taken the turn over meanwhile
        return True

    async def drop(self, session_id: SessionId) -> None:
        """End a session's turns, drop the session from memory and delete its payload files.

        The caller deletes the rows.

        The files are deleted first: their names are in the rows, so that an interrupted deletion can be repeated.
        """
        live = self._live.get(session_id)
        if live is not None:
            # Its end is stored before the rows are deleted, or the turn would write into nothing.
            await live.close()
            live.unload()
            self._live.pop(session_id, None)
        if self._database.shared:
            await self._end_elsewhere(session_id)
        await self._payloads.remove(await self._database.read(lambda conn: payloads.refs_of(conn, session_id)))

    async def _end_elsewhere(self, session_id: SessionId) -> None:
        """Interrupt the turns of a session that run in other processes, and wait for their ends.

        Raises:
            StorageUnavailable: a turn did not end in time.
        """
        with anyio.move_on_after(END_SECONDS):
            while await self._database.read(lambda conn: turns.current(conn, [session_id])):
                await self.interrupt(session_id, queued=True)
                await anyio.sleep(END_LOOK_SECONDS)
            self._live.pop(session_id, None)
            return
        raise StorageUnavailable("a turn of it does not end")

    async def payload(self, session_id: SessionId, ref: str) -> tuple[str, bytes] | None:
        """Return media type and bytes of a session's payload, or None if it does not exist."""
        record = await self._database.read(lambda conn: payloads.get(conn, session_id, ref))
        data = None if record is None else await self._payloads.read(ref, record.sha256)
        return None if record is None or data is None else (record.media_type, data)

    # After a stop

    async def recover(self) -> int:
        """Resume the turns that a stopped server left running or waiting. Return how many were running.

        A SQLite file belongs to one process, so every other owner is dead. On a shared store these are turns with
        expired leases, and the caller repeats this call regularly.
        """
        if self._resources.draining.is_set():
            return 0
        if not self._database.shared:
            return await self._take_over()
        count = 0
        if await self._database.read(partial(turns.is_any_abandoned, owner=self._resources.owner), single=True):
            count = await self._take_over()
        for session_id in await self._database.read(
            partial(turns.queued_sessions, owner=self._resources.owner), single=True
        ):
            await self._start_queue(session_id)
        return count

    async def _take_over(self) -> int:
        load = self._resources.load
        room = max(0, load.most - load.running) if load.most else None
        alone = not self._database.shared
        take = partial(take_abandoned, owner=self._resources.owner, alone=alone, first=not self._recovered, room=room)
        # durable: the first event that a reader sees uses up the fence's epoch
        takeover = await self._database.write(take, durable=True)
        if alone and not self._recovered:
            self._recovered = True
            for suspended in await self._database.read(list_waiting):
                self._session(suspended.turn.session_id).register_suspended(suspended)
        if alone:
            for row, domain_id in takeover.queued:  # their logs must exist before any turn ends and begins the next one
                self._session(row.session_id).open_queued_log(row, domain_id)
        insist = self._journal.insist  # this process owns them now, so giving up here would leave them without an owner
        for row in takeover.orphans:
            write = partial(end_without_agent, row=row, final=Interrupted())
            await insist(partial(self._database.write, write))
        for row in takeover.running:
            await insist(partial(self._resume, row))
        for session_id in dict.fromkeys(row.session_id for row, _ in takeover.queued):
            await self._start_queue(session_id)
        return len(takeover.running)

    async def _start_queue(self, session_id: SessionId) -> None:
        try:
            await (await self.session(session_id)).start_queue()
        except NotFound:  # its conversation is being deleted
            logger.warning("the queue of session %s is dropped: the session was deleted", session_id)

    async def _resume(self, row: TurnRecord) -> None:
        self._session(row.session_id).unload()  # its state is older than the other process's
        try:
            await (await self.session(row.session_id)).resume(row, interrupted=row.interrupt_asked)
        except NotFound:  # its conversation is being deleted; the other turns continue
            logger.warning("turn %s is not resumed: its session was deleted", row.id)

    # Reading events

    def running(self, session_id: SessionId) -> TurnId | None:
        """Return the id of the turn that runs here, or None."""
        live = self._live.get(session_id)
        return live.turn_id if live is not None else None

    async def find_running(self, session_id: SessionId) -> TurnId | None:
        """Return the id of the turn that runs or waits for a person in any process, or None."""
        if not self._database.shared:
            return self.running(session_id)
        current = (await self._database.read(lambda conn: turns.current(conn, [session_id]))).get(session_id)
        return None if current is None or current.status is TurnStatus.QUEUED else current.id

    def follow(self, turn_id: TurnId, after: int = 0) -> AsyncGenerator[AgentEvent, None]:
        """Yield a turn's events after a number, first stored ones, then live ones, up to the terminal event.

        Raises:
            NotFound: the turn does not exist.
            LogGone: the turn has ended and its log was deleted.
        """
        return follow(self.read(turn_id, after))

    def read(self, turn_id: TurnId, after: int = 0) -> LogReader:
        """Return a reader of a turn's events after a number; see `LogReader`."""
        return LogReader(self._journal, turn_id, after)

    async def next_turn(self, session_id: SessionId, after: TurnId | None = None) -> TurnId:
        """Wait until a turn after ``after`` starts (or already runs) in any process, and return its id."""
        live = self._session(session_id)
        if not self._database.shared:
            return await live.next_turn(after)
        place: int | None = None
        while True:
            # Taken before the read of the store, so that a turn which begins between the two wakes this loop.
            begun = live.begun.next
            look = partial(sessions.turn_after, session_id=session_id, turn_id=after, place=place)
            read = partial(self._database.read, look, single=after is not None)
            next_id, place = await self._journal.insist(read)
            if next_id is not None:
                return next_id
            await begun.wait()
