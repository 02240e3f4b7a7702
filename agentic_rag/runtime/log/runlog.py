"""The run log: numbered events of turns, journalled in groups, read by any number of readers.

Owns numbering, what may be delivered when, and replay then live. Text and thinking are delivered at once and
journalled with the next group; everything else, and all before it, is durable when delivered. Knows no turn and
no socket; who reads a log, and how, is ``logreader``'s.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import anyio
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from agentic_rag.errors import AgenticRagError
from agentic_rag.events import DELTA_TYPES, AgentEvent, Encoder, EventBody
from agentic_rag.store import run_events
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database

MAX_UNJOURNALLED = 64
"""Events that may be delivered before they are journalled; a resumed turn numbers on from there."""
GROUP_SECONDS = 0.05
"""How long deltas may wait for their group."""
GROUP_EVENTS = 32
TAIL_EVENTS = 4096
"""Events of a running turn kept in memory; older ones are read from the store."""


class RunLog:
    """The events of one running turn.

    ``start`` is the number before the first event; a resumed turn goes on at last journalled +
    `MAX_UNJOURNALLED` + 1, since that many later numbers may have been seen.
    """

    def __init__(
        self,
        journal: "Journal",
        conversation_id: str,
        turn_id: str,
        *,
        start: int = 0,
        redact: Callable[[Any], Any] = lambda value: value,
    ):
        self.turn_id = turn_id
        self.last = start
        self.visible = start
        self.journalled = start
        self.ended = False
        self.barred = False
        """Whether delegates may write no more: the turn comes to its end."""
        self.failure: BaseException | None = None
        self._journal = journal
        self._encode = Encoder(conversation_id, turn_id, redact).encode
        self._tail: deque[AgentEvent] = deque()
        self._pending: list[AgentEvent] = []
        self._in_flight = 0
        self._readers: tuple[Callable[[], None], ...] = ()
        self._journal_moved: anyio.Event | None = None

    # Writing

    def append(self, body: EventBody, agent: str = "") -> AgentEvent:
        """Number an event; it is delivered as soon as the rules allow. ``agent``: path of the delegate it is from."""
        event = self.number(body, agent)
        pending = self._pending
        pending.append(event)
        delta = event.type in DELTA_TYPES
        if len(pending) == 1 or not delta or len(pending) >= GROUP_EVENTS:  # else the journal knows of it
            self._journal.note(self, urgent=not delta or len(pending) >= GROUP_EVENTS)
        if delta and event.seq == self.visible + 1 and event.seq <= self.journalled + MAX_UNJOURNALLED:
            self.visible = event.seq  # as `_advance` would, for the most frequent case
            self._wake_readers()
        else:
            self._advance()
        return event

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
        store: Callable[[Connection], None],
        *,
        durable: bool = False,
        agent: str = "",
    ) -> None:
        """Journal all pending events and ``bodies`` in one transaction with ``store``, then deliver them.

        Cancellation waits for the transaction; callers shield this where an unknown outcome would hurt.
        """
        while self.busy:
            await self._journal_move()
        if self.failure is not None:
            raise self.failure
        self._pending.extend(self.number(body, agent) for body in bodies)
        batch = self.take()

        def write(conn: Connection) -> None:
            store(conn)
            run_events.append(conn, [(event.turn_id, event.seq, event.data) for event in batch])

        try:
            await self._journal.database.write(write, durable=durable)
        except BaseException as exc:
            self.failed(exc)
            raise
        self.settled(batch)

    def deliver_unjournalled(self, body: EventBody) -> None:
        """Deliver a last event although it cannot be stored: the disk is full, and readers must not wait.

        Events that nobody has seen yet are taken back: they belong to a commit that the store refused.
        """
        while self._tail and self._tail[-1].seq > self.visible:
            self._tail.pop()
        self.last = self.visible
        self.number(body)
        self.visible = self.last
        self.close()

    def rewind(self) -> None:
        """Take back numbers given with `number` whose events nobody saw and the store did not take."""
        self._tail.clear()
        self.last = self.journalled

    def unstored(self) -> list[AgentEvent]:
        """Return the events that were numbered and never journalled, as far as memory keeps them."""
        return [event for event in self._tail if event.seq > self.journalled]

    def close(self) -> None:
        """Say that no event follows."""
        self.ended = True
        self._wake_readers()

    def adopt(self, events: Sequence[AgentEvent]) -> None:
        """Say that the first events, numbered with `number`, were stored with the turn itself."""
        self._in_flight += 1
        self.settled(events)

    def number(self, body: EventBody, agent: str = "") -> AgentEvent:
        """Give a body its number; the caller sees to it that it is stored."""
        self.last += 1
        event = self._encode(body, self.last, now(), agent)
        self._tail.append(event)
        if len(self._tail) > TAIL_EVENTS and self._tail[0].seq <= self.journalled:
            self._tail.popleft()
        return event

    # The journal's side

    @property
    def busy(self) -> bool:
        """Whether a batch is on its way to the store."""
        return self._in_flight > 0

    def take(self) -> list[AgentEvent]:
        """Hand out the events to be journalled now."""
        batch, self._pending = self._pending, []
        self._in_flight += 1
        return batch

    def settled(self, batch: Sequence[AgentEvent]) -> None:
        """Say that a batch is in the store."""
        self._in_flight -= 1
        if batch:
            self.journalled = max(self.journalled, batch[-1].seq)
        self._advance()
        self._wake_writer()
        if self._pending:  # came while this batch was under way
            self._journal.note(self, urgent=True)

    def failed(self, exc: BaseException) -> None:
        """Say that a batch could not be stored: the turn cannot go on."""
        self._in_flight -= 1
        self.failure = exc
        self._wake_writer()

    def _advance(self) -> None:
        """Move `visible` as far as the rules allow, and wake readers if it moved."""
        visible = max(self.visible, self.journalled)
        if self._tail and visible < self.last:
            first = self._tail[0].seq
            limit = min(self.last, self.journalled + MAX_UNJOURNALLED)
            while visible < limit and self._tail[visible + 1 - first].type in DELTA_TYPES:
                visible += 1
        if visible != self.visible:
            self.visible = visible
            self._wake_readers()

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
        first = self.first
        if after + 1 < first:
            return None
        return [self._tail[index] for index in range(after + 1 - first, self.visible + 1 - first)]

    @property
    def first(self) -> int:
        """Number of the oldest event in memory."""
        return self._tail[0].seq if self._tail else self.last + 1

    def listen(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` whenever there is more to read, or the log ends. It must not wait and not raise."""
        self._readers = (*self._readers, wake)

    def unlisten(self, wake: Callable[[], None]) -> None:
        """Undo `listen`."""
        self._readers = tuple(reader for reader in self._readers if reader != wake)

    def _wake_readers(self) -> None:
        for wake in self._readers:
            wake()


class Journal:
    """Writes the pending events of all running turns in common transactions."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._dirty: dict[RunLog, None] = {}
        self._work = anyio.Event()
        self._urgent = anyio.Event()

    def note(self, log: RunLog, *, urgent: bool) -> None:
        """Remember that a log has pending events; ``urgent`` ones do not wait for a group."""
        self._dirty[log] = None
        self._work.set()
        if urgent:
            self._urgent.set()

    async def run(self) -> None:
        """Write groups until cancelled."""
        while True:
            await self._work.wait()
            with anyio.move_on_after(GROUP_SECONDS):
                await self._urgent.wait()
            self._work, self._urgent = anyio.Event(), anyio.Event()
            await self._write_group()

    async def _write_group(self) -> None:
        # One batch of a log at a time: a later one must not be stored before an earlier one.
        logs, self._dirty = [log for log in self._dirty if not log.busy and log.failure is None], {}
        batches = [(log, log.take()) for log in logs]
        rows = [(event.turn_id, event.seq, event.data) for _, batch in batches for event in batch]
        if not rows:
            for log, batch in batches:
                log.settled(batch)
            return
        try:
            await self.database.write(lambda conn: run_events.append(conn, rows))
        except (AgenticRagError, SQLAlchemyError, OSError) as exc:  # each of these turns ends with it
            for log, _ in batches:
                log.failed(exc)
            return
        for log, batch in batches:
            log.settled(batch)
