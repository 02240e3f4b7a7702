"""The run log: numbered events of turns, journalled in groups, read by any number of readers.

Owns the numbering, and when an event may be delivered:

- Text and thinking (deltas) are delivered at once, and journalled with the next group.
- Every other event, and all events before it, are in the store before delivery.

`RunLog` holds the events of one turn. `Journal` knows the open logs of the process and writes their pending events in
common transactions. A SQLite file stores such a group as one record; the events become rows of their turns with those
turns' next commits (`groups`). ``encoder`` owns the form of events, ``reader`` the reading, and ``child_log`` the
writing by delegates. This module knows no turn and no socket.

No number ever means two events, even if a kill or a power loss takes events from the store. A process stores an event
under its number or never: a refused write is retried unchanged. Each owner of a turn numbers events in an epoch of its
own (`EPOCH`), so the number of the former owner's stored events does not matter.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import anyio
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from agentic_rag.base.errors import LeaseLost, ServerStopping, StorageError
from agentic_rag.base.events import DELTA_TYPES, AgentEvent, Delegate, EventBody, Notice
from agentic_rag.base.ids import ConversationId, TurnId
from agentic_rag.base.redaction import Redaction
from agentic_rag.base.telemetry import NO_OBSERVER, Observer, given_traceparent
from agentic_rag.runtime.log.encoder import Encoder, TextKind
from agentic_rag.runtime.log.groups import EventGroup, Groups
from agentic_rag.runtime.log.remote_logs import RemoteLogs
from agentic_rag.store import run_events, run_groups, turns
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.run_events import EventBatch

T = TypeVar("T")
logger = logging.getLogger(__name__)

Transaction = Callable[[Connection], None]
"""A function that runs inside one database transaction."""

EPOCH = 1_000_000_000
"""Size of the number range of one owner of a turn, more than an owner can use."""
MAX_UNJOURNALLED = 64
"""Events that may be delivered before they are journalled."""
GROUP_SECONDS = 0.05
"""Longest time that deltas wait for their group."""
GROUP_EVENTS = 32
TAIL_EVENTS = 4096
"""Events of a running turn in memory. Older ones are read from the store."""
FIRST_RETRY = 0.1
LAST_RETRY = 5.0
"""Seconds before a refused write is retried. The delay doubles from `FIRST_RETRY` up to this one."""


class RunLog:
    """The events of one running turn.

    The public counters are numbers of events. Each event passes them in this order::

        last       it was appended
        _batched   it is in a batch that is being written, or was written
        journalled the store has it, as a row or inside a group's record
        settled    the store has it as a row of the turn

    ``visible``, the last event that readers get, is between ``journalled`` and ``last``: see `_advance`. So
    ``settled <= journalled <= _batched <= last`` and ``visible <= last`` hold between any two calls.
    """

    def __init__(
        self,
        journal: "Journal",
        conversation_id: ConversationId,
        turn_id: TurnId,
        *,
        redaction: Redaction | None = None,
        fence: int = 1,
    ) -> None:
        """Create an empty log.

        Args:
            journal: writes the events.
            conversation_id: appears in every event.
            turn_id: the turn of the user; delegates write into its log through `ChildLog`.
            redaction: the secrets that no event may contain; None: there are none.
            fence: the owner's fencing number. The first event follows `epoch_of` this number, and every transaction
                with events of the log checks the fence.
        """
        self.turn_id = turn_id
        self.traceparent = given_traceparent()
        """Trace context of the message's sender, or empty. A queued turn begins in another context."""
        self.fence = fence

        # Counters; see the class.
        start = epoch_of(fence)
        self.last = start
        self._batched = start
        self.journalled = start
        self.settled = start
        self.visible = start

        # State
        self.ended = False
        self.moved = False
        """Whether readers must look up the log again, because the turn now runs in another process, or will."""
        self.closed_to_delegates = False
        """Whether delegates may write no more, because the turn is ending."""
        self.failure: BaseException | None = None
        self.writing = False
        """Whether a batch is being written to the store. A log never has two batches in flight."""

        # Events in memory
        self.first = start + 1
        """Number of the oldest event in memory, or of the next event."""
        self._tail: list[bytes] = []
        """The events from ``first`` on, in short form.

        Bytes, because the garbage collector would visit other objects.
        """
        self.newest: AgentEvent | None = None
        """The event with the last number, if available. A reader that keeps up gets it without decoding."""
        self._blocking: deque[int] = deque()
        """Numbers of events that are not deltas.

        Such an event and all later ones are invisible until it is journalled.
        """

        self._journal = journal
        self._conversation_id = conversation_id
        encoder = Encoder(conversation_id, turn_id, redaction)
        # bound once: `append_text` runs for every delta
        self._encode, self._encode_text = encoder.encode, encoder.encode_text
        self._shorten_event, self._restore = encoder.shorten, encoder.restore
        self._readers: tuple[Callable[[], None], ...] = ()
        self._journal_moved: anyio.Event | None = None

    # Writing

    def append(self, body: EventBody, agent: Delegate | None = None, *, redacted: bool = False) -> AgentEvent:
        """Number an event and deliver it as soon as the rules allow. ``agent``: the delegate that sent it.

        ``redacted``: see `Encoder.encode`.
        """
        event = self._number(body, agent, redacted=redacted)
        seq, pending, delta = event.seq, event.seq - self._batched, event.type in DELTA_TYPES
        if pending == 1 or not delta or pending >= GROUP_EVENTS:  # otherwise the log is already marked
            self._journal.mark_dirty(self, urgent=not delta or pending >= GROUP_EVENTS)
        if delta and seq == self.visible + 1 and seq <= self.journalled + MAX_UNJOURNALLED:
            self.visible = seq  # as `_advance`, for the most frequent case
            self.wake_readers()
        else:
            self._advance()
        return event

    def append_text(self, kind: TextKind, text: str, agent: Delegate | None = None) -> bool:
        """Append a piece of text without secrets. Returns False, without a change, if the log `is_full`.

        Does the same as `append` in fewer steps, because most events of a turn are pieces of text.
        """
        if self.last - self.journalled >= MAX_UNJOURNALLED:
            return False
        self.last = seq = self.last + 1
        self.newest, short = self._encode_text(kind, text, seq, now(), agent)
        tail = self._tail
        tail.append(short)
        if len(tail) > TAIL_EVENTS:
            self._shorten()
        pending = seq - self._batched
        if pending == 1 or pending >= GROUP_EVENTS:
            self._journal.mark_dirty(self, urgent=pending > 1)
        if seq == self.visible + 1:
            self.visible = seq
            for wake in self._readers:
                wake()
        else:
            self._advance()
        return True

    @property
    def is_full(self) -> bool:
        """Whether `MAX_UNJOURNALLED` events wait for the journal, so that the writer must call `wait_for_room`."""
        return self.last - self.journalled >= MAX_UNJOURNALLED

    async def wait_for_room(self) -> None:
        """Wait until the journal has caught up.

        Raises:
            BaseException: the failure of the journal, if it failed.
        """
        while self.is_full:
            if self.failure is not None:
                raise self.failure
            await self._journal_move()

    async def commit(
        self,
        bodies: Sequence[EventBody],
        store: Transaction,
        *,
        durable: bool = False,
        agent: Delegate | None = None,
    ) -> None:
        """Journal all pending events and ``bodies`` in one transaction with ``store``, then deliver them.

        The transaction extends the turn's lease. If the store refuses, the transaction is retried until it succeeds;
        see `Journal.insist`. Callers shield this call from cancellation, because a cancelled turn would not know what
        was stored.

        Raises:
            LeaseLost: another process runs the turn; nothing was stored.
            ServerStopping: the store still refused when the process stopped.
        """
        while self.writing:
            await self._journal_move()
        if self.failure is not None:
            raise self.failure
        for body in bodies:
            self._number(body, agent)
        new, unsettled = self.take_batch(), self.unsettled
        batch = self._batch(self.settled, self.last)
        needed = self._journal.groups.needed_without((self,))

        def write(conn: Connection) -> None:
            turns.hold(conn, self.turn_id, self.fence)
            store(conn)
            run_events.append(conn, (batch,))
            if unsettled:
                run_groups.drop_before(conn, needed)

        try:
            await self._journal.store(write, (batch,), len(new.events), durable=durable)
        except BaseException as exc:
            self.fail_batch(exc)
            raise
        if unsettled:
            self._journal.settle(self, needed)
        self.settled = batch.last
        self.confirm_batch()

    def is_held(self, conn: Connection) -> bool:
        """Return whether this process holds the turn's lease, for the rest of the transaction."""
        return turns.is_held(conn, self.turn_id, self.fence)

    def drop_undelivered(self) -> None:
        """Drop the undelivered events.

        Their commit failed for good, for a reason other than an unavailable store.
        """
        del self._tail[max(0, self.visible + 1 - self.first) :]
        self.last, self._batched = self.visible, self.journalled
        self.newest = None
        self._blocking.clear()
        self.failure = None

    def encode_aside(self, body: EventBody) -> AgentEvent:
        """Return an event that is not part of the log."""
        return self._encode(body, 0, now())

    def close(self) -> None:
        """End the log: no event follows."""
        self.ended = True
        self.wake_readers()

    def hand_over(self) -> None:
        """Hand the log over to another process. In a shared store readers continue there; otherwise the log ends."""
        if not self._journal.database.shared:
            self.close()
            return
        self.moved = True
        self.wake_readers()

    def unload(self, last: int) -> None:
        """Drop the events in memory up to ``last``.

        The store has them all, and no new ones are expected for a long time.
        """
        self._tail.clear()
        self._blocking.clear()
        self.newest = None
        self.last = self.visible = self.journalled = self.settled = self._batched = last
        self.first = last + 1

    def resume(self, fence: int) -> None:
        """Start a new owner's epoch. The readers of the log continue."""
        self.fence = fence
        self.unload(epoch_of(fence))

    def store_first(self, conn: Connection, bodies: Sequence[EventBody]) -> None:
        """Number and store a turn's first events in the transaction that stores the turn.

        After the commit call `adopt`. A retry after a failed transaction stores the same events.
        """
        if not self._tail:
            for body in bodies:
                self._number(body)
        run_events.append(conn, (self._batch(self.settled, self.last),))

    def adopt(self) -> None:
        """Note that the transaction of `store_first` was committed, so that its events may be delivered."""
        self.journalled = self.settled = self._batched = self.last
        self._advance()

    def _number(self, body: EventBody, agent: Delegate | None = None, *, redacted: bool = False) -> AgentEvent:
        """Number an event. The caller must store it."""
        self.last = seq = self.last + 1
        event = self.newest = self._encode(body, seq, now(), agent, redacted=redacted)
        tail = self._tail
        tail.append(self._shorten_event(event))
        if event.type not in DELTA_TYPES:
            self._blocking.append(seq)
        if len(tail) > TAIL_EVENTS:
            self._shorten()
        return event

    def _shorten(self) -> None:
        """Drop old events from memory that the store has as rows.

        Many are dropped at once, because deleting the head of a list moves all other items.
        """
        old = min(len(self._tail) - TAIL_EVENTS, self.settled + 1 - self.first)
        if old >= TAIL_EVENTS // 8:
            del self._tail[:old]
            self.first += old

    # Interface for the journal

    @property
    def unsettled(self) -> bool:
        """Whether journalled events exist that are not yet rows of the turn."""
        return self.settled < self.journalled

    def take_batch(self) -> EventBatch:
        """Return the events to journal now, which may be none.

        The caller must call `confirm_batch` or `fail_batch` next.
        """
        batch = self._batch(self._batched, self.last)
        self._batched = self.last
        self.writing = True
        return batch

    def take_unsettled(self) -> EventBatch:
        """Return the journalled events that must become rows of the turn."""
        return self._batch(self.settled, self.journalled)

    def _batch(self, after: int, last: int) -> EventBatch:
        events = self._tail[after + 1 - self.first : last + 1 - self.first]
        return EventBatch(self.turn_id, after + 1, events, self._conversation_id)

    def confirm_batch(self) -> None:
        """Note that the events of `take_batch` are in the store."""
        self.writing = False
        self.journalled = self._batched
        if self.visible < self.last:
            self._advance()
        if self._journal_moved is not None:
            self._wake_writer()
        if (pending := self.last - self._batched) > 0:  # appended while this batch was written
            self._journal.mark_dirty(self, urgent=bool(self._blocking) or pending >= GROUP_EVENTS)

    def fail_batch(self, exc: BaseException) -> None:
        """Note that a batch could not be stored, so that the turn cannot continue."""
        self.writing = False
        self.failure = exc
        self._wake_writer()

    def _advance(self) -> None:
        """Move `visible` as far as the rules allow, and wake readers if it moved."""
        journalled, blocking = self.journalled, self._blocking
        while blocking and blocking[0] <= journalled:
            blocking.popleft()
        limit = min(journalled + MAX_UNJOURNALLED, blocking[0] - 1 if blocking else self.last, self.last)
        if limit > self.visible:
            self.visible = limit
            self.wake_readers()

    async def _journal_move(self) -> None:
        """Wait until the journal has handled a batch of this log."""
        if self._journal_moved is None:
            self._journal_moved = anyio.Event()
        await self._journal_moved.wait()

    def _wake_writer(self) -> None:
        if self._journal_moved is not None:
            self._journal_moved.set()
            self._journal_moved = None

    # Reading

    def since(self, after: int) -> list[AgentEvent] | None:
        """Return the deliverable events after a number, or None if they begin before those in memory."""
        if after >= self.visible:
            return []
        newest = self.newest
        if newest is not None and newest.seq == self.visible == after + 1:  # a reader that keeps up
            return [newest]
        if after + 1 < self.first:
            return None
        batch = self._batch(after, self.visible)
        return [self._restore(seq, event) for seq, event in enumerate(batch.events, batch.first)]

    @property
    def reader_count(self) -> int:
        return len(self._readers)

    def listen(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` whenever there are more events, or the log ends. ``wake`` must not wait and not raise."""
        self._readers = (*self._readers, wake)

    def unlisten(self, wake: Callable[[], None]) -> None:
        """Undo `listen`."""
        self._readers = tuple(reader for reader in self._readers if reader != wake)

    def wake_readers(self) -> None:
        """Wake readers for new events, the end of the log, or a notice."""
        for wake in self._readers:
            wake()


def epoch_of(fence: int) -> int:
    """Return the number before the first event of the owner with this fencing number."""
    return max(0, fence - 1) * EPOCH


@dataclass(frozen=True, slots=True, eq=False)
class Stall:
    """A period in which the store refuses writes. Instances are compared by identity."""

    error: StorageError

    @property
    def notice(self) -> Notice:
        """The notice for readers. Each reader sends it once per stall."""
        return Notice(
            "STORAGE_STALLED",
            f"{self.error.plain} Nothing is lost; the turn resumes when the store is writable again.",
        )


class Journal:
    """The open logs of the process. Writes their pending events in common transactions.

    A log is open while its turn runs or waits.
    """

    def __init__(
        self, database: Database, remote_logs: RemoteLogs | None = None, observer: Observer = NO_OBSERVER
    ) -> None:
        """``remote_logs``: sends and receives live events of the other processes of a shared store."""
        self.database = database
        self.groups: Groups[RunLog] = Groups()
        """Used for a SQLite file only. In a shared store other processes read a turn's rows while it runs."""
        self.remote_logs = remote_logs
        self._observer = observer
        self.stall: Stall | None = None
        """The current stall of the store, or None."""
        self.stalled = anyio.Event()
        """Set during a stall, and replaced at its end."""
        self.dismissed = False
        """Whether readers are notified that the server is stopping, and end."""
        self._stalled_operations = 0
        """Operations in `insist` that the store has refused. The stall ends with the last of them."""
        self._stopping = anyio.Event()
        self._open: dict[str, RunLog] = {}
        """Open logs by turn id."""
        self._dirty: dict[RunLog, None] = {}
        """Logs with pending events, in the order of their first one."""
        self._work = anyio.Event()
        """Set while a log is dirty."""
        self._urgent = anyio.Event()
        """Set while a dirty log must not wait `GROUP_SECONDS`."""

    def add(self, log: RunLog) -> None:
        """Register the log of a turn, so that readers find it."""
        self._open[log.turn_id] = log
        if self.remote_logs is not None:
            self.remote_logs.begin(log)

    def find(self, turn_id: TurnId) -> RunLog | None:
        """Return the open log of a turn, or None if its events are only in the store."""
        return self._open.get(turn_id)

    def remove(self, turn_id: TurnId) -> None:
        """Unregister the log of a turn that the store has completely."""
        log = self._open.pop(turn_id, None)
        if log is not None and log.failure is not None:  # the log was lost, and nothing more is written
            self.groups.settle(log)
        if self.remote_logs is not None:
            self.remote_logs.end(turn_id)

    def mark_dirty(self, log: RunLog, *, urgent: bool) -> None:
        """Mark a log as having pending events. ``urgent``: write them without waiting for a group."""
        self._dirty[log] = None
        self._work.set()
        if urgent:
            self._urgent.set()

    @property
    def reader_count(self) -> int:
        """How many readers follow the open logs."""
        return sum(log.reader_count for log in self._open.values())

    # Retries while the store refuses

    async def insist(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Retry an operation with backoff until the store accepts it. Readers of open logs are notified meanwhile.

        Raises:
            ServerStopping: `stop` was called before the operation succeeded.
        """
        delay, refused = FIRST_RETRY, False
        try:
            while True:
                try:
                    return await operation()
                except StorageError as exc:
                    if not refused:
                        refused = True
                        self._begin_stall(exc)
                with anyio.move_on_after(delay):
                    await self._stopping.wait()
                if self._stopping.is_set():
                    raise ServerStopping
                delay = min(delay * 2, LAST_RETRY)
        finally:
            if refused:
                self._end_stall()

    def _begin_stall(self, error: StorageError) -> None:
        self._stalled_operations += 1
        if self.stall is None:
            logger.error("turns wait: %s", error)
            self.stall = Stall(error)
            self.stalled.set()
            self._wake_all()

    def _end_stall(self) -> None:
        self._stalled_operations -= 1
        if not self._stalled_operations:
            self.stall, self.stalled = None, anyio.Event()

    async def store(
        self,
        write: Transaction,
        batches: Sequence[EventBatch] = (),
        new: int = 0,
        *,
        group: int | None = None,
        durable: bool = False,
    ) -> None:
        """Run a transaction, and retry it until the store accepts it.

        Args:
            write: the transaction. It may run again after a failed attempt.
            batches: the events that ``write`` stores. They show whether a failed attempt was committed after all.
            new: how many of these events are not in a group yet, for the metrics.
            group: the number of the record with the events; None: they are stored as rows.
            durable: the commit must survive a loss of power.

        Raises:
            ServerStopping: as `insist`.
        """
        tried = False
        rows = [batch for batch in batches if batch.events]

        def is_stored(conn: Connection) -> bool:
            if group is not None:
                return run_groups.is_there(conn, group)
            return any(run_events.ends_group(conn, TurnId(batch.turn_id), batch.last) for batch in rows)

        def attempt(conn: Connection) -> None:
            # A connection that broke during a commit leaves open whether the commit happened.
            if not (tried and is_stored(conn)):
                write(conn)

        async def once() -> None:
            nonlocal tried
            began = time.monotonic()
            try:
                await self.database.write(attempt, durable=durable)
                self._observer.note_commit(new, time.monotonic() - began, durable=durable)
            except IntegrityError:
                # Without events, the violated constraint shows that an earlier attempt succeeded. With events, an
                # earlier attempt may have been committed after `is_stored` looked for it.
                if not tried or (rows and not await self.database.read(is_stored)):
                    raise
            finally:
                tried = True

        await self.insist(once)

    async def wait_unless_stalled(self, event: asyncio.Event) -> None:
        """Wait for an event of a turn while the store accepts writes.

        Raises:
            StorageError: the store refuses writes.
        """
        if self.stall is None:
            async with anyio.create_task_group() as tasks:

                async def wait_for(either: asyncio.Event | anyio.Event) -> None:
                    await either.wait()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(wait_for, event)
                tasks.start_soon(wait_for, self.stalled)
        if self.stall is not None:
            raise self.stall.error

    def dismiss_readers(self) -> None:
        """Notify all readers of open logs that the server is stopping. The logs stay open."""
        self.dismissed = True
        self._wake_all()

    def _wake_all(self) -> None:
        for log in self._open.values():
            log.wake_readers()
        if self.remote_logs is not None:
            self.remote_logs.wake_readers()

    def stop(self) -> None:
        """Abandon refused writes, because the process ends. The next process resumes from the stored events."""
        self._stopping.set()

    # Groups

    async def run(self) -> None:
        """Write groups until cancelled."""
        while True:
            await self._work.wait()
            with anyio.move_on_after(GROUP_SECONDS):
                await self._urgent.wait()
            self._work, self._urgent = anyio.Event(), anyio.Event()
            await self._write_group()
            if self.groups.left_over:
                await self._drop_groups()

    async def _write_group(self) -> None:
        """Store one batch of each log that has new events, all in one transaction.

        On a SQLite file they become one record (``number``), which later commits turn into rows of their turns. In a
        shared store they become rows at once.
        """
        # One batch per log: a later batch must not be stored before an earlier one.
        due, dirty, self._dirty = self.groups.due(), self._dirty, {}
        logs = [
            log for log in (dirty | dict.fromkeys(due) if due else dirty) if not log.writing and log.failure is None
        ]
        settling = {log: log.take_unsettled() for log in due if log in logs}
        batches = {log: batch for log in logs if (batch := log.take_batch()).events}
        number = self.groups.begin(batches) if batches and not self.database.shared else None
        group = EventGroup(batches, settling, number, min(self.groups.needed_without(settling), number or 0))
        try:
            if batches:
                await self.store(group.write, [*batches.values()], group.count, group=number)
        except BaseException as exc:
            # These turns end with the error. A commit that waits for this group must not wait for ever.
            for log in logs:
                log.fail_batch(exc if isinstance(exc, Exception) else ServerStopping())
            if isinstance(exc, Exception):
                return
            raise
        for log in logs:
            if group.lost and log in group.lost:
                log.fail_batch(LeaseLost(log.turn_id))
                continue
            if number is None and log in batches:
                log.settled = batches[log].last
            log.confirm_batch()
        if number is not None and settling:
            self._note_settled(group)

    def _note_settled(self, group: EventGroup["RunLog"]) -> None:
        """Update the logs that a stored group settled, and the deleted records."""
        for log, batch in group.settling.items():
            log.settled = max(log.settled, batch.last)
            self.groups.settle(log, group=group.number if log in group.batches else None)
        self.groups.drop(group.needed)

    def settle(self, log: RunLog, dropped: int) -> None:
        """Note that the store has all journalled events of a turn as rows, and no records before ``dropped``."""
        self.groups.settle(log)
        self.groups.drop(dropped)
        if self.groups.left_over:
            self._work.set()

    async def _drop_groups(self) -> None:
        """Delete records that no log needs any more.

        Two turns can leave such records: each ended while the other still needed them.
        """
        needed = self.groups.needed_without(())
        with suppress(ServerStopping):  # the next start deletes them
            await self.store(lambda conn: run_groups.drop_before(conn, needed))
            self.groups.drop(needed)
