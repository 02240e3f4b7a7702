"""The run log: the numbered events of turns, as bytes.

This module appends events, reads them after a number, and prunes them. Event types are opaque here.

Events that are stored together and have consecutive numbers share one row. With fifty deltas a second, one row per
event would be the largest cost of the log. A row's payload holds the lengths of its events (four bytes each, network
order), then the events, then the id of their conversation. The id is needed to expand short events, which do not begin
with ``{``.

Events of the hot path are stored in short form, because more than half of such an event is the same prefix in all
events of its turn. ``text 12,…`` stands for ``{"type":"text","conversationId":"…","turnId":"…","seq":12,…`` (`lead_of`,
`whole`). Without a conversation id all events are in full form.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

import orjson
from sqlalchemy import Connection, bindparam, delete, func, select

from agentic_rag.base.ids import ConversationId, TurnId
from agentic_rag.store.columns import BigInt, Key
from agentic_rag.store.record import Record
from agentic_rag.store.statements import run_by_sqlite
from agentic_rag.store.turns import FINISHED, TURNS


class EventGroupRecord(Record, table=True):
    """Consecutive events of a turn's run log, stored together; the module docstring describes the ``payload``."""

    __tablename__ = "run_events"
    # the hottest table: storing rows in the key's tree costs one insertion instead of two
    __table_args__ = ({"sqlite_with_rowid": False},)
    part_of = "turn"

    turn_id: Key[TurnId]
    last_seq: Key[BigInt]
    first_seq: BigInt
    payload: bytes


RUN_EVENTS = EventGroupRecord.__table__
MOST = 512
"""Maximum number of events in a row: reading a part of a row means reading all of it."""
_events = RUN_EVENTS.c
_APPEND = f"INSERT INTO run_events ({', '.join(EventGroupRecord.names)}) VALUES "
_BY_SQLITE, _BY_POSTGRES = _APPEND + "(?, ?, ?, ?)", _APPEND + "($1, $2, $3, $4)"
_READ = (
    select(_events.first_seq, _events.last_seq, _events.payload)
    .where(_events.turn_id == bindparam("turn"), _events.last_seq > bindparam("after"))
    .order_by(_events.last_seq)
    .limit(bindparam("limit"))
)


class EventBatch(NamedTuple):
    """Events of a turn with consecutive numbers, starting at ``first``.

    ``conversation_id`` is required if some of them are short.
    """

    turn_id: str
    first: int
    events: Sequence[bytes]
    conversation_id: str = ""

    @property
    def last(self) -> int:
        """Number of the last event; ``first`` - 1 if there are none."""
        return self.first + len(self.events) - 1


def lead_of(conversation_id: ConversationId, turn_id: TurnId) -> bytes:
    """Return the bytes between the type's name and the number, the same in each event of a turn."""
    return b'","conversationId":%b,"turnId":%b,"seq":' % (orjson.dumps(conversation_id), orjson.dumps(turn_id))


def whole(event: bytes, lead: bytes) -> bytes:
    """Expand an event of a turn with this lead, if the event is short."""
    if event[:1] == b"{":
        return event
    kind, _, rest = event.partition(b" ")
    return b'{"type":"%b%b%b' % (kind, lead, rest)


def append(conn: Connection, batches: Iterable[EventBatch]) -> None:
    """Store events, those of a turn in order, in one row per batch or per `MOST` events.

    Raises:
        IntegrityError: a number of the turn is taken as the last of another row.
    """
    if conn.dialect.name == "sqlite":  # by the driver: SQLAlchemy takes longer than the statement
        for batch in batches:
            for row in _rows(batch):
                run_by_sqlite(conn, _BY_SQLITE, row)
    elif rows := [row for batch in batches for row in _rows(batch)]:
        conn.exec_driver_sql(_BY_POSTGRES, rows)


def _rows(batch: EventBatch) -> Iterator[tuple[str, int, int, bytes]]:
    for at in range(0, len(batch.events), MOST):
        events = batch.events[at : at + MOST]
        first = batch.first + at
        yield batch.turn_id, first + len(events) - 1, first, pack(events) + batch.conversation_id.encode()


def batches_of(
    turn_id: TurnId, events: Iterable[tuple[int, bytes]], conversation_id: ConversationId
) -> Iterator[EventBatch]:
    """Group a turn's numbered events into batches of consecutive numbers."""
    first, neighbours = 0, list[bytes]()
    for seq, event in events:
        if neighbours and seq != first + len(neighbours):
            yield EventBatch(turn_id, first, neighbours, conversation_id)
            neighbours = []
        if not neighbours:
            first = seq
        neighbours.append(event)
    if neighbours:
        yield EventBatch(turn_id, first, neighbours, conversation_id)


@lru_cache(maxsize=1024)
def _lengths(count: int) -> Struct:
    return Struct(f">{count}I")


def pack(events: Sequence[bytes]) -> bytes:
    """Return the lengths of events, followed by the events."""
    return _lengths(len(events)).pack(*map(len, events)) + b"".join(events)


def unpack(count: int, payload: bytes) -> tuple[list[bytes], bytes]:
    """Return ``count`` packed events, and the bytes that follow them."""
    lengths = _lengths(count)
    events, at = list[bytes](), lengths.size
    for length in lengths.unpack_from(payload):
        events.append(payload[at : at + length])
        at += length
    return events, payload[at:]


def read(conn: Connection, turn_id: TurnId, after: int, limit: int) -> list[tuple[int, bytes]]:
    """Return the first ``limit`` events of the turn strictly after ``after``, as (seq, payload)."""
    events: list[tuple[int, bytes]] = []
    for first, last, payload in conn.execute(_READ, {"turn": turn_id, "after": after, "limit": limit}):
        stored_events, conversation_id = unpack(last + 1 - first, payload)
        lead = lead_of(ConversationId(conversation_id.decode()), turn_id) if conversation_id else b""
        whole_events = stored_events if not lead else [whole(event, lead) for event in stored_events]
        events += [(seq, event) for seq, event in enumerate(whole_events, first) if seq > after]
        if len(events) >= limit:
            break
    return events[:limit]


def last_seq(conn: Connection, turn_id: TurnId) -> int:
    """Return the number of the turn's last stored event, 0 if there is none."""
    seq: int | None = conn.execute(select(func.max(_events.last_seq)).where(_events.turn_id == turn_id)).scalar()
    return seq or 0


def last_seqs(conn: Connection, turn_ids: Sequence[TurnId]) -> dict[TurnId, int]:
    """Return the number of the last stored event of each of these turns that has events."""
    query = select(_events.turn_id, func.max(_events.last_seq)).where(_events.turn_id.in_(turn_ids))
    return {TurnId(turn_id): int(seq) for turn_id, seq in conn.execute(query.group_by(_events.turn_id))}


def ends_group(conn: Connection, turn_id: TurnId, seq: int) -> bool:
    """Return whether a row of the turn ends with this number."""
    query = select(_events.last_seq).where(_events.turn_id == turn_id, _events.last_seq == seq)
    return conn.execute(query).first() is not None


def exists(conn: Connection, turn_id: TurnId) -> bool:
    """Return whether the turn has a log (a pruned turn has none)."""
    query = select(_events.last_seq).where(_events.turn_id == turn_id).limit(1)
    return conn.execute(query).first() is not None


def prune(conn: Connection, ended_before: str, limit: int = 100) -> int:
    """Delete the logs of at most ``limit`` turns that ended before that time; return their number.

    The limit keeps the single writer free for others: call this function again until it returns 0. Unfinished turns
    keep their logs.
    """
    # one key look-up per logged turn, independent of the number of events and unlogged turns
    logged = select(func.min(_events.turn_id).label("id")).cte("logged", recursive=True)
    following = select(func.min(_events.turn_id)).where(_events.turn_id > logged.c.id).scalar_subquery()
    logged = logged.union_all(select(following).where(logged.c.id.is_not(None)))
    query = (
        select(TURNS.c.id)
        .join(logged, logged.c.id == TURNS.c.id)
        .where(TURNS.c.status.in_(FINISHED), TURNS.c.ended_at < ended_before)
        .limit(limit)
    )
    turn_ids = list(conn.execute(query).scalars())
    conn.execute(delete(RUN_EVENTS).where(_events.turn_id.in_(turn_ids)))
    return len(turn_ids)
