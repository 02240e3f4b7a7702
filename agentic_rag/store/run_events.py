"""The run log: the numbered events of turns, as bytes.

Owns appending, reading after a number, and pruning. Knows no event type.

Events that are stored together and follow each other in number share one row: at fifty deltas a second a row for
each would be the greatest cost of the log. A row's payload is the lengths of its events, as four bytes in network order
each, then the events, then the id of their conversation. That is needed for those that do not begin with ``{``. They
are short, which a SQLite file has them: more than half of an event of the hot path is what all events of its turn
begin with, and ``text 12,…`` stands for ``{"type":"text","conversationId":"…","turnId":"…","seq":12,…`` (`lead_of`,
`whole`). Without an id all are as they are. PostgreSQL has them whole: programs of the version before read there, too.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

import orjson
from sqlalchemy import Connection, bindparam, delete, func, select

from agentic_rag.ids import ConversationId, TurnId
from agentic_rag.store.records import BigInt, RecordTable, run_by_sqlite
from agentic_rag.store.turns import FINISHED, TURNS


@dataclass(frozen=True, slots=True, kw_only=True)
class EventGroupRecord:
    """Neighbours in a turn's run log, stored together; ``payload`` is packed as the module says."""

    turn_id: TurnId
    last_seq: BigInt
    first_seq: BigInt
    payload: bytes


RUN_EVENTS = RecordTable(
    EventGroupRecord,
    "run_events",
    key=("turn_id", "last_seq"),
    part_of="turn",
    # the hottest table: with its rows in the key's own tree one costs one insertion, not two
    sqlite_with_rowid=False,
)
MOST = 512
"""Events of a row: who reads some of it reads all of it."""
_events = RUN_EVENTS.c
_APPEND = f"INSERT INTO run_events ({', '.join(RUN_EVENTS.names)}) VALUES "
_BY_SQLITE, _BY_POSTGRES = _APPEND + "(?, ?, ?, ?)", _APPEND + "($1, $2, $3, $4)"
_READ = (
    select(_events.first_seq, _events.last_seq, _events.payload)
    .where(_events.turn_id == bindparam("turn"), _events.last_seq > bindparam("after"))
    .order_by(_events.last_seq)
    .limit(bindparam("limit"))
)


class Batch(NamedTuple):
    """Events of a turn that follow each other in number, the first of which is ``first``.

    ``conversation_id``: needed if some of them are short.
    """

    turn_id: str
    first: int
    events: Sequence[bytes]
    conversation_id: str = ""

    @property
    def last(self) -> int:
        """Number of the last one; of none, the one before ``first``."""
        return self.first + len(self.events) - 1


def lead_of(conversation_id: ConversationId, turn_id: TurnId) -> bytes:
    """Return what stands in each event of a turn between the name of its type and its number."""
    return b'","conversationId":%b,"turnId":%b,"seq":' % (orjson.dumps(conversation_id), orjson.dumps(turn_id))


def whole(event: bytes, lead: bytes) -> bytes:
    """Return an event of a turn with this lead that may be a short one."""
    if event[:1] == b"{":
        return event
    kind, _, rest = event.partition(b" ")
    return b'{"type":"%b%b%b' % (kind, lead, rest)


def append(conn: Connection, batches: Iterable[Batch]) -> None:
    """Store events, those of a turn in order; a row for each batch, or for each `MOST` events of it.

    Raises:
        IntegrityError: a number of the turn is taken as the last of another row.
    """
    if conn.dialect.name == "sqlite":  # by the driver: SQLAlchemy takes longer than the statement
        for batch in batches:
            for row in _rows(batch):
                run_by_sqlite(conn, _BY_SQLITE, row)
    elif rows := [row for batch in batches for row in _rows(_as_whole(batch))]:
        conn.exec_driver_sql(_BY_POSTGRES, rows)


def _as_whole(batch: Batch) -> Batch:
    if not batch.conversation_id:
        return batch
    lead = lead_of(ConversationId(batch.conversation_id), TurnId(batch.turn_id))
    return Batch(batch.turn_id, batch.first, [whole(event, lead) for event in batch.events])


def _rows(batch: Batch) -> Iterator[tuple[str, int, int, bytes]]:
    for at in range(0, len(batch.events), MOST):
        events = batch.events[at : at + MOST]
        first = batch.first + at
        yield batch.turn_id, first + len(events) - 1, first, pack(events) + batch.conversation_id.encode()


def batches_of(
    turn_id: TurnId, events: Iterable[tuple[int, bytes]], conversation_id: ConversationId
) -> Iterator[Batch]:
    """Yield a turn's events, each with its number, as batches."""
    first, neighbours = 0, list[bytes]()
    for seq, event in events:
        if neighbours and seq != first + len(neighbours):
            yield Batch(turn_id, first, neighbours, conversation_id)
            neighbours = []
        if not neighbours:
            first = seq
        neighbours.append(event)
    if neighbours:
        yield Batch(turn_id, first, neighbours, conversation_id)


@lru_cache(maxsize=1024)
def _lengths(count: int) -> Struct:
    return Struct(f">{count}I")


def pack(events: Sequence[bytes]) -> bytes:
    """Return the lengths of events, and the events."""
    return _lengths(len(events)).pack(*map(len, events)) + b"".join(events)


def unpack(count: int, payload: bytes) -> tuple[list[bytes], bytes]:
    """Return so many events that were packed, and what follows them."""
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
        stored, conversation_id = unpack(last + 1 - first, payload)
        lead = lead_of(ConversationId(conversation_id.decode()), turn_id) if conversation_id else b""
        found = stored if not lead else [whole(event, lead) for event in stored]
        events += [(seq, event) for seq, event in enumerate(found, first) if seq > after]
        if len(events) >= limit:
            break
    return events[:limit]


def last_seq(conn: Connection, turn_id: TurnId) -> int:
    """Return the number of the turn's last stored event, 0 when it has none."""
    seq: int | None = conn.execute(select(func.max(_events.last_seq)).where(_events.turn_id == turn_id)).scalar()
    return seq or 0


def last_seqs(conn: Connection, turn_ids: Sequence[TurnId]) -> dict[TurnId, int]:
    """Return the number of the last stored event of each of these turns that has any."""
    query = select(_events.turn_id, func.max(_events.last_seq)).where(_events.turn_id.in_(turn_ids))
    return {TurnId(turn_id): int(seq) for turn_id, seq in conn.execute(query.group_by(_events.turn_id))}


def ends_group(conn: Connection, turn_id: TurnId, seq: int) -> bool:
    """Say whether events of the turn were stored together of which this number was the last."""
    query = select(_events.last_seq).where(_events.turn_id == turn_id, _events.last_seq == seq)
    return conn.execute(query).first() is not None


def exists(conn: Connection, turn_id: TurnId) -> bool:
    """Say whether the turn has a log (a pruned one has none)."""
    query = select(_events.last_seq).where(_events.turn_id == turn_id).limit(1)
    return conn.execute(query).first() is not None


def prune(conn: Connection, ended_before: str, limit: int = 100) -> int:
    """Delete the logs of at most ``limit`` turns that ended before that time; return how many.

    Bounded, because one writer serves everybody: call it again until it returns 0. Turns that have not
    ended keep their logs.
    """
    # one look into the key per logged turn, however many events and unlogged turns there are
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
    conn.execute(delete(RUN_EVENTS.table).where(_events.turn_id.in_(turn_ids)))
    return len(turn_ids)
