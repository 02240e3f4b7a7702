"""The run log: numbered events of turns, journalled in groups, read by any number of readers.

Owns numbering, and what may be delivered when; how an event is written is ``encoder``'s. Text and thinking are
delivered at once and journalled with the next group; everything else, and all before it, is in the store when it is
delivered. A SQLite file takes a group as one record, whose events it gets again as rows of their turns with those
turns' next commits (`groups`). Knows no turn and no socket; how a log is read is ``reader``'s, what a delegate writes
to ``child_log``'s.

No number means two events, whatever a kill or a loss of power takes from the store. What a process has numbered it
stores under that number or not at all: a write that the store refuses is tried again as it was. And each owner of a
turn numbers in an epoch of its own (`EPOCH`), so that how much of the former one's was kept does not matter.
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

from agentic_rag.errors import LeaseLost, ServerStopping, StorageError
from agentic_rag.events import DELTA_TYPES, AgentEvent, Delegate, EventBody, Notice
from agentic_rag.ids import ConversationId, TurnId
from agentic_rag.observer import NOBODY, Observer, given_traceparent
from agentic_rag.redaction import Redaction
from agentic_rag.runtime.log.encoder import Encoder, TextKind
from agentic_rag.runtime.log.groups import Group, Groups
from agentic_rag.runtime.log.neighbours import Neighbours
from agentic_rag.store import run_events, run_groups, turns
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.run_events import Batch

T = TypeVar("T")
logger = logging.getLogger(__name__)

Transaction = Callable[[Connection], None]
"""What is run whole or not at all."""

EPOCH = 1_000_000_000
"""Numbers that one owner of a turn has for itself: more than it can ever use."""
MAX_UNJOURNALLED = 64
"""Events that may be delivered before they are journalled."""
GROUP_SECONDS = 0.05
"""How long deltas may wait for their group."""
GROUP_EVENTS = 32
TAIL_EVENTS = 4096
"""Events of a running turn kept in memory; older ones are read from the store."""
FIRST_RETRY = 0.1
LAST_RETRY = 5.0
"""Seconds after which a refused write is tried again; each wait is twice the one before, up to the last."""


class RunLog:
    """The events of one running turn.

    ``redaction``: the values that none of them may show. ``fence``: the owner's fencing number, which gives the
    number before the first event (`epoch_of`) and which every transaction with events of the log proves.
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
        self.turn_id = turn_id
        self.traceparent = given_traceparent()
        """Of who sent the message, empty: it has none; a queued turn begins in another's context."""
        self.fence = fence
        start = epoch_of(fence)
        self.last = start
        self.visible = start
        self.journalled = start
        self.ended = False
        self.gone = False
        """Whether readers must look for the log anew: another process runs the turn now, or will."""
        self.barred = False
        """Whether delegates may write no more: the turn comes to its end."""
        self.failure: BaseException | None = None
        self.settled = start
        """Up to which the store has events as rows of the turn: what of them is journalled only, nobody reads there."""
        self.first = start + 1
        """Number of the oldest event in memory, or of the next one."""
        self._journal = journal
        encoder = Encoder(conversation_id, turn_id, redaction)
        self._encode, self._encode_text = encoder.encode, encoder.encode_text
        self._shorten_event, self._restore = encoder.shorten, encoder.restore
        self._conversation_id = conversation_id
        self._tail: list[bytes] = []
        """The events from ``first`` on, short. Bytes, since Python's garbage collector looks at anything else."""
        self.newest: AgentEvent | None = None
        """The event that was numbered last, if it can be had."""
        self._taken = start
        """Up to which events are in the store, or on their way."""
        self._solid: deque[int] = deque()
        """Numbers of events that are no deltas: none is visible before it is journalled, nor is what follows it."""
        self.busy = False
        """Whether a batch is on its way to the store: one at a time."""
        self._readers: tuple[Callable[[], None], ...] = ()
        self._journal_moved: anyio.Event | None = None

    # Writing

    def append(self, body: EventBody, agent: Delegate | None = None, *, redacted: bool = False) -> AgentEvent:
        """Number an event; it is delivered as soon as the rules allow. ``agent``: the delegate it is from.

        ``redacted``: see `Encoder.encode`.
        """
        event = self._number(body, agent, redacted=redacted)
        seq, pending, delta = event.seq, event.seq - self._taken, event.type in DELTA_TYPES
        if pending == 1 or not delta or pending >= GROUP_EVENTS:  # else the journal knows of it
            self._journal.note(self, urgent=not delta or pending >= GROUP_EVENTS)
        if delta and seq == self.visible + 1 and seq <= self.journalled + MAX_UNJOURNALLED:
            self.visible = seq  # as `_advance` would, for the most frequent case
            self.wake_readers()
        else:
            self._advance()
        return event

    def say(self, kind: TextKind, text: str, agent: Delegate | None = None) -> bool:
        """Append a piece of text that holds no secret, unless it is `crowded`: as `append`, in fewer steps."""
        if self.last - self.journalled >= MAX_UNJOURNALLED:
            return False
        self.last = seq = self.last + 1
        self.newest, short = self._encode_text(kind, text, seq, now(), agent)
        tail = self._tail
        tail.append(short)
        if len(tail) > TAIL_EVENTS:
            self._shorten()
        pending = seq - self._taken
        if pending == 1 or pending >= GROUP_EVENTS:
            self._journal.note(self, urgent=pending > 1)
        if seq == self.visible + 1:
            self.visible = seq
            for wake in self._readers:
                wake()
        else:
            self._advance()
        return True

    @property
    def crowded(self) -> bool:
        """Whether the writer must wait in `room` before it appends more."""
        return self.last - self.journalled >= MAX_UNJOURNALLED

    async def room(self) -> None:
        """Wait until the journal has caught up. Raises what made the journal fail."""
        while self.crowded:
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

        The transaction extends the turn's lease. A store that refuses is asked again until it takes them, see
        `Journal.insist`. Callers shield this: a turn that is cancelled here would not know what is stored.

        Raises:
            LeaseLost: another process runs the turn; nothing is kept.
            ServerStopping: the store had not taken them when the process came to its end.
        """
        while self.busy:
            await self._journal_move()
        if self.failure is not None:
            raise self.failure
        for body in bodies:
            self._number(body, agent)
        new, unsettled = self.take(), self.unsettled
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
            self.take_failure(exc)
            raise
        if unsettled:
            self._journal.settle(self, needed)
        self.settled = batch.last
        self.take_success()

    def is_held(self, conn: Connection) -> bool:
        """Say whether the turn is still this process's, for the rest of the transaction."""
        return turns.is_held(conn, self.turn_id, self.fence)

    def withdraw(self) -> None:
        """Take back the events that nobody has seen: their commit failed for good, and not for want of a store."""
        del self._tail[max(0, self.visible + 1 - self.first) :]
        self.last, self._taken = self.visible, self.journalled
        self.newest = None
        self._solid.clear()
        self.failure = None

    def encode_aside(self, body: EventBody) -> AgentEvent:
        """Return an event that is not part of the log."""
        return self._encode(body, 0, now())

    def close(self) -> None:
        """Say that no event follows."""
        self.ended = True
        self.wake_readers()

    def lose(self) -> None:
        """Say that what follows, if anything, is another process's: where others share the store, readers go there."""
        if not self._journal.database.shared:
            self.close()
            return
        self.gone = True
        self.wake_readers()

    def rest(self, last: int) -> None:
        """Let go the events in memory, up to ``last``: the store has them all, and for a long time none follows."""
        self._tail.clear()
        self._solid.clear()
        self.newest = None
        self.last = self.visible = self.journalled = self.settled = self._taken = last
        self.first = last + 1

    def go_on(self, fence: int) -> None:
        """Begin a new owner's epoch; who reads the log reads on."""
        self.fence = fence
        self.rest(epoch_of(fence))

    def store_first(self, conn: Connection, bodies: Sequence[EventBody]) -> None:
        """Number and store a turn's first events in the transaction that stores the turn; then `adopt` them.

        Tried again after a transaction that failed, it stores the same events.
        """
        if not self._tail:
            for body in bodies:
                self._number(body)
        run_events.append(conn, (self._batch(self.settled, self.last),))

    def adopt(self) -> None:
        """Say that the transaction of `store_first` is committed: its events may be delivered."""
        self.journalled = self.settled = self._taken = self.last
        self._advance()

    def _number(self, body: EventBody, agent: Delegate | None = None, *, redacted: bool = False) -> AgentEvent:
        """Give a body its number; the caller sees to it that it is stored."""
        self.last = seq = self.last + 1
        event = self.newest = self._encode(body, seq, now(), agent, redacted=redacted)
        tail = self._tail
        tail.append(self._shorten_event(event))
        if event.type not in DELTA_TYPES:
            self._solid.append(seq)
        if len(tail) > TAIL_EVENTS:
            self._shorten()
        return event

    def _shorten(self) -> None:
        """Let go events in memory that the store has as rows: many at once, since each time the others are moved."""
        old = min(len(self._tail) - TAIL_EVENTS, self.settled + 1 - self.first)
        if old >= TAIL_EVENTS // 8:
            del self._tail[:old]
            self.first += old

    # The journal's side

    @property
    def unsettled(self) -> bool:
        """Whether something is journalled, but not as rows of the turn."""
        return self.settled < self.journalled

    def take(self) -> Batch:
        """Hand out the events to be journalled now, which may be none; `take_success` or `take_failure` follows."""
        batch = self._batch(self._taken, self.last)
        self._taken = self.last
        self.busy = True
        return batch

    def take_unsettled(self) -> Batch:
        """Hand out the journalled events that are to be rows of the turn."""
        return self._batch(self.settled, self.journalled)

    def _batch(self, after: int, last: int) -> Batch:
        events = self._tail[after + 1 - self.first : last + 1 - self.first]
        return Batch(self.turn_id, after + 1, events, self._conversation_id)

    def take_success(self) -> None:
        """Say that what was taken is in the store."""
        self.busy = False
        self.journalled = self._taken
        if self.visible < self.last:
            self._advance()
        if self._journal_moved is not None:
            self._wake_writer()
        if (pending := self.last - self._taken) > 0:  # came while this batch was under way
            self._journal.note(self, urgent=bool(self._solid) or pending >= GROUP_EVENTS)

    def take_failure(self, exc: BaseException) -> None:
        """Say that a batch could not be stored: the turn cannot go on."""
        self.busy = False
        self.failure = exc
        self._wake_writer()

    def _advance(self) -> None:
        """Move `visible` as far as the rules allow, and wake readers if it moved."""
        journalled, solid = self.journalled, self._solid
        while solid and solid[0] <= journalled:
            solid.popleft()
        limit = min(journalled + MAX_UNJOURNALLED, solid[0] - 1 if solid else self.last, self.last)
        if limit > self.visible:
            self.visible = limit
            self.wake_readers()

    async def _journal_move(self) -> None:
        """Wait until the journal has done something with this log."""
        if self._journal_moved is None:
            self._journal_moved = anyio.Event()
        await self._journal_moved.wait()

    def _wake_writer(self) -> None:
        if self._journal_moved is not None:
            self._journal_moved.set()
            self._journal_moved = None

    # Reading

    def since(self, after: int) -> list[AgentEvent] | None:
        """Return what may be delivered after a number; None if that lies before the tail."""
        if after >= self.visible:
            return []
        newest = self.newest
        if newest is not None and newest.seq == self.visible == after + 1:  # a reader that keeps pace
            return [newest]
        if after + 1 < self.first:
            return None
        batch = self._batch(after, self.visible)
        return [self._restore(seq, event) for seq, event in enumerate(batch.events, batch.first)]

    @property
    def reader_count(self) -> int:
        return len(self._readers)

    def listen(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` whenever there is more to read, or the log ends. It must not wait and not raise."""
        self._readers = (*self._readers, wake)

    def unlisten(self, wake: Callable[[], None]) -> None:
        """Undo `listen`."""
        self._readers = tuple(reader for reader in self._readers if reader != wake)

    def wake_readers(self) -> None:
        """Let readers look: there is more, or the log has ended, or the store refuses."""
        for wake in self._readers:
            wake()


def epoch_of(fence: int) -> int:
    """Return the number before the first that the owner with this fencing number gives."""
    return max(0, fence - 1) * EPOCH


@dataclass(frozen=True, slots=True, eq=False)
class Stall:
    """A time in which the store takes nothing. Each is an object of its own."""

    error: StorageError

    @property
    def notice(self) -> Notice:
        """What readers are told, once."""
        return Notice(
            "STORAGE_STALLED",
            f"{self.error.plain} Nothing is lost; the turn goes on once the store can be written again.",
        )


class Journal:
    """The open logs of the process; writes their pending events in common transactions.

    A log is open while its turn runs or waits.
    """

    def __init__(self, database: Database, neighbours: Neighbours | None = None, observer: Observer = NOBODY) -> None:
        """``neighbours``: what carries live events to and from the other processes of a shared store."""
        self.database = database
        self.groups: Groups[RunLog] = Groups()
        """Of a SQLite file; where others share the store, they read a turn's rows while it runs."""
        self.neighbours = neighbours
        self._observer = observer
        self.stall: Stall | None = None
        """What keeps turns from going on now, None if nothing does."""
        self.stalled = anyio.Event()
        """Set while there is one; each time a new event."""
        self.leaving = False
        """Whether readers are told that the server goes away, and end."""
        self._refused = 0
        self._stopping = anyio.Event()
        self._open: dict[str, RunLog] = {}
        self._dirty: dict[RunLog, None] = {}
        self._work = anyio.Event()
        self._urgent = anyio.Event()

    def add(self, log: RunLog) -> None:
        """Let readers find the log of a turn."""
        self._open[log.turn_id] = log
        if self.neighbours is not None:
            self.neighbours.begin(log)

    def find(self, turn_id: TurnId) -> RunLog | None:
        """Return the open log of a turn; None: what there is of it is in the store."""
        return self._open.get(turn_id)

    def remove(self, turn_id: TurnId) -> None:
        """Forget the log of a turn: the store has all of it."""
        log = self._open.pop(turn_id, None)
        if log is not None and log.failure is not None:  # it was lost, and is written no further
            self.groups.settle(log)
        if self.neighbours is not None:
            self.neighbours.end(turn_id)

    def note(self, log: RunLog, *, urgent: bool) -> None:
        """Remember that a log has pending events; ``urgent`` ones do not wait for a group."""
        self._dirty[log] = None
        self._work.set()
        if urgent:
            self._urgent.set()

    @property
    def reader_count(self) -> int:
        """How many readers follow the open logs."""
        return sum(log.reader_count for log in self._open.values())

    # A store that refuses

    async def insist(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Do what needs the store, again and again until the store lets it; who reads an open log is told meanwhile.

        Raises:
            ServerStopping: `stop` was called, and it has not been done.
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
        self._refused += 1
        if self.stall is None:
            logger.error("turns wait: %s", error)
            self.stall = Stall(error)
            self.stalled.set()
            self._wake_all()

    def _end_stall(self) -> None:
        self._refused -= 1
        if not self._refused:
            self.stall, self.stalled = None, anyio.Event()

    async def store(
        self,
        write: Transaction,
        batches: Sequence[Batch] = (),
        new: int = 0,
        *,
        group: int | None = None,
        durable: bool = False,
    ) -> None:
        """Run a transaction that stores these events until the store takes it. Raises as `insist` does.

        ``new``: how many of them no group has yet. ``group``: the number of the record that has them; None: they are
        rows.
        """
        tried = False
        rows = [batch for batch in batches if batch.events]

        def is_stored(conn: Connection) -> bool:
            if group is not None:
                return run_groups.is_there(conn, group)
            return any(run_events.ends_group(conn, TurnId(batch.turn_id), batch.last) for batch in rows)

        def attempt(conn: Connection) -> None:
            # A connection that broke while it committed leaves open whether it did.
            if not (tried and is_stored(conn)):
                write(conn)

        async def once() -> None:
            nonlocal tried
            began = time.monotonic()
            try:
                await self.database.write(attempt, durable=durable)
                self._observer.note_commit(new, time.monotonic() - began, durable=durable)
            except IntegrityError:
                # without events it is the rows that show it; with some it was still under way when it was looked for
                if not tried or (rows and not await self.database.read(is_stored)):
                    raise
            finally:
                tried = True

        await self.insist(once)

    async def wait_unless_stalled(self, event: asyncio.Event) -> None:
        """Wait for an event of a turn, as long as the store takes what turns write.

        Raises:
            StorageError: it refuses.
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
        """Let everybody who reads an open log hear that the server goes away; the logs go on."""
        self.leaving = True
        self._wake_all()

    def _wake_all(self) -> None:
        for log in self._open.values():
            log.wake_readers()
        if self.neighbours is not None:
            self.neighbours.wake_readers()

    def stop(self) -> None:
        """Give up what the store refuses: the process ends, and the next one goes on from what is stored."""
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
        # One batch of a log at a time: a later one must not be stored before an earlier one.
        due, dirty, self._dirty = self.groups.due(), self._dirty, {}
        logs = [log for log in (dirty | dict.fromkeys(due) if due else dirty) if not log.busy and log.failure is None]
        settling = {log: log.take_unsettled() for log in due if log in logs}
        batches = {log: batch for log in logs if (batch := log.take()).events}
        number = self.groups.begin(batches) if batches and not self.database.shared else None
        group = Group(batches, settling, number, min(self.groups.needed_without(settling), number or 0))
        try:
            if batches:
                await self.store(group.write, [*batches.values()], group.count, group=number)
        except BaseException as exc:
            # Each of these turns ends with it; a commit that waits for this group must not wait for ever.
            for log in logs:
                log.take_failure(exc if isinstance(exc, Exception) else ServerStopping())
            if isinstance(exc, Exception):
                return
            raise
        for log in logs:
            if group.lost and log in group.lost:
                log.take_failure(LeaseLost(log.turn_id))
                continue
            if number is None and log in batches:
                log.settled = batches[log].last
            log.take_success()
        if number is not None and settling:
            self._note_settled(group)

    def _note_settled(self, group: Group["RunLog"]) -> None:
        """Say what stands in records no more now that a group is stored."""
        for log, batch in group.settling.items():
            log.settled = max(log.settled, batch.last)
            self.groups.settle(log, group=group.number if log in group.batches else None)
        self.groups.drop(group.needed)

    def settle(self, log: RunLog, dropped: int) -> None:
        """Say that the store has all journalled events of a turn as its rows, and no records before that number."""
        self.groups.settle(log)
        self.groups.drop(dropped)
        if self.groups.left_over:
            self._work.set()

    async def _drop_groups(self) -> None:
        """Drop the records that two turns left to each other, each of which ended while the other still needed them."""
        needed = self.groups.needed_without(())
        with suppress(ServerStopping):  # the next start does it
            await self.store(lambda conn: run_groups.drop_before(conn, needed))
            self.groups.drop(needed)
