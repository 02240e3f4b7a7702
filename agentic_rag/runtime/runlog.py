"""The run log: numbered events of turns, journalled in groups, read by any number of readers.

Owns numbering, what may be delivered when, and replay then live. Text and thinking are delivered at once and
journalled with the next group; everything else, and all before it, is durable when delivered. Readers pull at
their own pace by number: a slow one costs the turn nothing. Knows no turn and no socket.
"""

from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import anyio
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from agentic_rag.errors import AgenticRagError, NotFound
from agentic_rag.events import DELTA_TYPES, AgentEvent, EventBody, decode, encode
from agentic_rag.store import run_events, turns
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database

MAX_UNJOURNALLED = 64
"""Events that may be delivered before they are journalled; a resumed turn numbers on from there."""
GROUP_SECONDS = 0.05
"""How long deltas may wait for their group."""
GROUP_EVENTS = 32
TAIL_EVENTS = 4096
"""Events of a running turn kept in memory; older ones are read from the store."""
PAGE = 500


class LogGone(AgenticRagError):
    """The log of a finished turn is no longer kept; its messages are."""

    code = "LOG_GONE"
    status = 410

    def __init__(self, turn_id: str) -> None:
        super().__init__(turn_id)
        self.turn_id = turn_id

    def __str__(self) -> str:
        return f"The events of turn {self.turn_id} are no longer kept. Read the messages instead."


class RunLog:
    """The events of one running turn.

    ``start`` is the number before the first event; a resumed turn goes on at last journalled +
    `MAX_UNJOURNALLED` + 1, since that many later numbers may have been seen.
    """

    def __init__(self, journal: "Journal", conversation_id: str, turn_id: str, *, start: int = 0):
        self.turn_id = turn_id
        self.last = start
        self.visible = start
        self.journalled = start
        self.ended = False
        self.barred = False
        """Whether delegates may write no more: the turn comes to its end."""
        self.failure: BaseException | None = None
        self._journal = journal
        self._conversation_id = conversation_id
        self._tail: deque[AgentEvent] = deque()
        self._pending: list[AgentEvent] = []
        self._in_flight = 0
        self._changed = anyio.Event()
        self._waiting = False

    # Writing

    def append(self, body: EventBody, agent: str = "") -> AgentEvent:
        """Number an event; it is delivered as soon as the rules allow. ``agent``: path of the delegate it is from."""
        event = self.number(body, agent)
        self._pending.append(event)
        self._advance()
        self._journal.note(self, urgent=event.type not in DELTA_TYPES or len(self._pending) >= GROUP_EVENTS)
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
            await self.changed()

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
            await self.changed()
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
        self._wake()

    def adopt(self, events: Sequence[AgentEvent]) -> None:
        """Say that the first events, numbered with `number`, were stored with the turn itself."""
        self._in_flight += 1
        self.settled(events)

    def number(self, body: EventBody, agent: str = "") -> AgentEvent:
        """Give a body its number; the caller sees to it that it is stored."""
        self.last += 1
        event = encode(
            body,
            conversation_id=self._conversation_id,
            turn_id=self.turn_id,
            seq=self.last,
            ts=now(),
            agent=agent,
            redact=self._journal.redact,
        )
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
        self._wake()
        if self._pending:  # came while this batch was under way
            self._journal.note(self, urgent=True)

    def failed(self, exc: BaseException) -> None:
        """Say that a batch could not be stored: the turn cannot go on."""
        self._in_flight -= 1
        self.failure = exc
        self._wake()

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
            self._wake()

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

    async def changed(self) -> None:
        """Wait for any change of the log."""
        self._waiting = True
        await self._changed.wait()

    def _wake(self) -> None:
        if self._waiting:
            self._waiting = False
            self._changed.set()
            self._changed = anyio.Event()


class Journal:
    """Writes the pending events of all running turns in common transactions."""

    def __init__(self, database: Database, redact: Callable[[Any], Any] = lambda value: value) -> None:
        """``redact`` takes secrets out of the strings of a JSON value, before it is stored or delivered."""
        self.database = database
        self.redact = redact
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
        logs, self._dirty = [log for log in self._dirty if not log.busy], {}
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


async def follow(
    database: Database, find: Callable[[str], RunLog | None], turn_id: str, after: int = 0
) -> AsyncGenerator[AgentEvent, None]:
    """Yield a turn's events strictly after a number: replay, then live, until the terminal one.

    Raises:
        NotFound: there is no such turn.
        LogGone: the turn ended and its log is no longer kept.
    """
    seq = after
    log = find(turn_id)
    while True:
        if log is not None:
            batch = log.since(seq)
            if batch is not None:
                for event in batch:
                    yield event
                    seq = event.seq
                if log.ended and seq >= log.visible:
                    return
                if seq >= log.visible:
                    await log.changed()
                continue
        page = await database.read(lambda conn, seq=seq: run_events.read(conn, turn_id, seq, PAGE))  # type: ignore[misc]
        for number, payload in page:
            event = decode(turn_id, number, payload)
            yield event
            seq = number
            if event.terminal:
                return
        if not page:
            log = log or find(turn_id)
            if log is None:
                await _end_of_log(database, turn_id, seq)
                return
            seq = max(seq, log.first - 1)  # what lies between was never stored: `resumed` voids it


async def _end_of_log(database: Database, turn_id: str, seq: int) -> None:
    """Decide what it means that a turn that does not run has no more events."""

    def look(conn: Connection) -> tuple[bool, int]:
        return turns.get(conn, turn_id) is not None, run_events.last_seq(conn, turn_id)

    exists, last = await database.read(look)
    if not exists:
        raise NotFound("turn", turn_id)
    if last == 0 or seq < last:
        raise LogGone(turn_id)
