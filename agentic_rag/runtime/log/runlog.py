"""The run log: numbered events of turns, journalled in groups, read by any number of readers.

Owns numbering, the one JSON form of an event, what may be delivered when, and what a delegate's reader sees. Text and
thinking are delivered at once and journalled with the next group; everything else, and all before it, is durable when
delivered. Knows no turn and no socket; how a log is read is ``reader``'s.

The JSON form is ``{"type", "conversationId", "turnId", "seq", "ts", "agent"?, …body}`` in camelCase, secrets taken out;
it is made once per event, so a delta costs one encoding however many clients read it.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import orjson
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from agentic_rag.errors import AgenticRagError
from agentic_rag.events import (
    DELTA_TYPES,
    AgentEvent,
    Done,
    Error,
    EventBody,
    Hit,
    Interrupted,
    Reference,
    Text,
    Thinking,
    Usage,
)
from agentic_rag.json_form import Json, camel
from agentic_rag.redaction import Redaction
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


_FIELDS: dict[type, tuple[tuple[str, str, bool], ...]] = {
    cls: tuple((f.name, camel(f.name), f.default is None) for f in dataclasses.fields(cls))
    for cls in (*EventBody.__args__, Hit, Reference)
}
"""By record: each field, its JSON name, and whether it is left out when it is None."""


class Encoder:
    """Numbers and encodes the events of one turn. ``redaction``: the values that none of them may show."""

    __slots__ = ("_conversation_id", "_heads", "_redaction", "_turn_id")

    def __init__(self, conversation_id: str, turn_id: str, redaction: Redaction | None = None) -> None:
        self._conversation_id = conversation_id
        self._turn_id = turn_id
        self._redaction = redaction or Redaction()
        self._heads: dict[tuple[str, str], tuple[bytes, bytes]] = {}

    def encode(self, body: EventBody, seq: int, ts: str, agent: str = "") -> AgentEvent:
        """Return an event. ``ts`` is UTC ISO-8601 with ``Z``; ``agent`` a path of delegates."""
        kind = body.type
        if type(body) is Text or type(body) is Thinking:  # the hot path: only number, time and text are new
            head, middle = self._heads.get((kind, agent)) or self._head(kind, agent)
            text = orjson.dumps(body.text if self._redaction.idle else self._redaction(body.text))
            return AgentEvent(self._turn_id, seq, kind, b'%b%d,"ts":"%b%b%b}' % (head, seq, ts.encode(), middle, text))
        value: Json = {
            "type": kind,
            "conversationId": self._conversation_id,
            "turnId": self._turn_id,
            "seq": seq,
            "ts": ts,
        }
        if agent:
            value["agent"] = agent
        fields = _object(body)
        value.update(fields if self._redaction.idle else self._redaction.json(fields))
        return AgentEvent(self._turn_id, seq, kind, orjson.dumps(value))

    def _head(self, kind: str, agent: str) -> tuple[bytes, bytes]:
        """Return what stands before the number of each delta of a kind, and between its time and its text."""
        value = {"type": kind, "conversationId": self._conversation_id, "turnId": self._turn_id}
        head = orjson.dumps(value)[:-1] + b',"seq":'
        middle = (b'","agent":%b' % orjson.dumps(agent) if agent else b'"') + b',"text":'
        self._heads[kind, agent] = head, middle
        return head, middle


def encode(body: EventBody, *, conversation_id: str, turn_id: str, seq: int, ts: str, agent: str = "") -> AgentEvent:
    """Number and encode one event body alone; see `Encoder`."""
    return Encoder(conversation_id, turn_id).encode(body, seq, ts, agent)


def _object(record: object) -> Json:
    return {
        name: _plain(item)
        for attribute, name, optional in _FIELDS[type(record)]
        if (item := getattr(record, attribute)) is not None or not optional
    }


def _plain(value: object) -> Any:
    """Convert nested event values to JSON-ready ones; tool arguments pass as they are."""
    if isinstance(value, Usage):
        return value.to_json()
    if type(value) in _FIELDS:
        return _object(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


class RunLog:
    """The events of one running turn.

    ``redaction``: the values that none of them may show. ``start`` is the number before the first event; a resumed turn
    goes on at last journalled + `MAX_UNJOURNALLED` + 1, since that many later numbers may have been seen.
    """

    def __init__(
        self,
        journal: "Journal",
        conversation_id: str,
        turn_id: str,
        *,
        redaction: Redaction | None = None,
        start: int = 0,
    ) -> None:
        self.turn_id = turn_id
        self.last = start
        self.visible = start
        self.journalled = start
        self.ended = False
        self.barred = False
        """Whether delegates may write no more: the turn comes to its end."""
        self.failure: BaseException | None = None
        self._journal = journal
        self._encode = Encoder(conversation_id, turn_id, redaction).encode
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
            _append(conn, batch)

        try:
            await self._journal.database.write(write, durable=durable)
        except BaseException as exc:
            self.take_failure(exc)
            raise
        self.take_success(batch)

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
        """Take back the events of `store_first`: its transaction was not committed."""
        self._tail.clear()
        self.last = self.journalled

    def store_unjournalled(self, conn: Connection) -> None:
        """Store the events that were numbered and never journalled, as far as memory keeps them."""
        _append(conn, [event for event in self._tail if event.seq > self.journalled])

    def close(self) -> None:
        """Say that no event follows."""
        self.ended = True
        self._wake_readers()

    def store_first(self, conn: Connection, bodies: Sequence[EventBody]) -> None:
        """Number and store a turn's first events in the transaction that stores the turn; then `adopt` them."""
        _append(conn, [self.number(body) for body in bodies])

    def adopt(self) -> None:
        """Say that the transaction of `store_first` is committed: its events may be delivered."""
        self.journalled = self.last
        self._advance()

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

    def take_success(self, batch: Sequence[AgentEvent]) -> None:
        """Say that a batch is in the store."""
        self._in_flight -= 1
        if batch:
            self.journalled = max(self.journalled, batch[-1].seq)
        self._advance()
        self._wake_writer()
        if self._pending:  # came while this batch was under way
            self._journal.note(self, urgent=True)

    def take_failure(self, exc: BaseException) -> None:
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
    """The open logs of the process; writes their pending events in common transactions.

    A log is open while its turn runs or waits, and for as long as the end of its turn could not be stored.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._open: dict[str, RunLog] = {}
        self._dirty: dict[RunLog, None] = {}
        self._work = anyio.Event()
        self._urgent = anyio.Event()

    def add(self, log: RunLog) -> None:
        """Let readers find the log of a turn."""
        self._open[log.turn_id] = log

    def find(self, turn_id: str) -> RunLog | None:
        """Return the open log of a turn; None: what there is of it is in the store."""
        return self._open.get(turn_id)

    def remove(self, turn_id: str) -> None:
        """Forget the log of a turn: the store has all of it."""
        self._open.pop(turn_id, None)

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
        events = [event for _, batch in batches for event in batch]
        if not events:
            for log, batch in batches:
                log.take_success(batch)
            return
        try:
            await self.database.write(lambda conn: _append(conn, events))
        except (AgenticRagError, SQLAlchemyError, OSError) as exc:  # each of these turns ends with it
            for log, _ in batches:
                log.take_failure(exc)
            return
        for log, batch in batches:
            log.take_success(batch)


def _append(conn: Connection, events: Sequence[AgentEvent]) -> None:
    run_events.append(conn, [(event.turn_id, event.seq, event.data) for event in events])


class ChildLog:
    """A delegate's view of the run log of the turn that asked for it; what its agent writes to in place of a `RunLog`.

    All that it shows stands under the child's path and in the root turn's numbers, but neither its start nor its end,
    which the ``delegate`` call brackets. ``name``: the child's own part of the path.
    """

    def __init__(self, parent: "RunLog | ChildLog", name: str, database: Database) -> None:
        self.barred = False
        self.path: str = f"{parent.path}/{name}" if isinstance(parent, ChildLog) else name
        self._parent = parent
        self._root: RunLog = parent._root if isinstance(parent, ChildLog) else parent
        self._database = database

    @property
    def shut(self) -> bool:
        """Whether whom it works for has come to an end: nothing more may be seen of it."""
        above = self._parent.shut if isinstance(self._parent, ChildLog) else self._parent.ended
        return self._parent.barred or above

    def append(self, body: EventBody) -> None:
        """See `RunLog.append`."""
        if not self.shut:
            self._root.append(body, self.path)

    @property
    def crowded(self) -> bool:
        """See `RunLog.crowded`."""
        return not self.shut and self._root.crowded

    async def room(self) -> None:
        """See `RunLog.room`."""
        await self._root.room()

    async def commit(
        self, bodies: Sequence[EventBody], store: Callable[[Connection], None], *, durable: bool = False
    ) -> None:
        """See `RunLog.commit`; a terminal event is left out."""
        if self.shut:
            await self._database.write(store, durable=durable)
            return
        seen = [body for body in bodies if not isinstance(body, Done | Error | Interrupted)]
        await self._root.commit(seen, store, durable=durable, agent=self.path)

    def deliver_unjournalled(self, body: EventBody) -> None:
        """The end of a child is told by its call's result."""

    def close(self) -> None:
        """The log is the parent's and goes on."""
