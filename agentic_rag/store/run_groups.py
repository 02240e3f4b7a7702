"""Event groups: one record for the events of several turns, as a SQLite file stores a group of the run log.

This module defines the format of such a record and moves its events to the turns' own rows (`run_events`). A row per
turn would change one page of the key's tree per turn; these records are appended at the end of their table. They are
not read in normal operation. The process that wrote them holds their events in memory, stores them as rows of their
turns soon after, and then drops the records. After a crash, the next start moves the remaining records.

A payload holds the length of its heads (four bytes, network order), then the heads as JSON, each ``[turn id, first seq,
number of events]``, and then the events of all turns, packed as in one row of `run_events`. They may be short, as
there.
"""

from collections.abc import Iterable, Iterator
from struct import Struct

import orjson
from sqlalchemy import Connection, delete, select

from agentic_rag.base.ids import TurnId
from agentic_rag.store import run_events
from agentic_rag.store.columns import BigInt, Key
from agentic_rag.store.record import Record
from agentic_rag.store.run_events import EventBatch
from agentic_rag.store.statements import Prepared, parameter
from agentic_rag.store.turns import TURNS


class RunGroupRecord(Record, table=True):
    """Events that were journalled together; the module docstring describes the ``payload``."""

    __tablename__ = "run_groups"
    __table_args__ = ({"sqlite_with_rowid": False},)

    id: Key[BigInt]
    payload: bytes


# without rowid: a separate index would be needed for a key that is no row number
RUN_GROUPS = RunGroupRecord.__table__
_id = RUN_GROUPS.c.id
_LENGTH = Struct(">I")
_DROP = Prepared(delete(RUN_GROUPS).where(_id < parameter(_id)))


def add(conn: Connection, group: int, batches: Iterable[EventBatch]) -> None:
    """Store events, those of a turn in order. ``group`` is greater than any earlier one.

    Raises:
        IntegrityError: the record exists.
    """
    heads: list[tuple[str, int, int]] = []
    events: list[bytes] = []
    for turn_id, first, own, _ in batches:
        heads.append((turn_id, first, len(own)))
        events += own
    packed = orjson.dumps(heads)
    payload = b"".join((_LENGTH.pack(len(packed)), packed, run_events.pack(events)))
    RunGroupRecord(id=BigInt(group), payload=payload).insert(conn)


def is_there(conn: Connection, group: int) -> bool:
    """Return whether the record exists."""
    return conn.execute(select(_id).where(_id == group)).first() is not None


def drop_before(conn: Connection, group: int) -> None:
    """Delete the records before ``group``, whose events are all stored in rows of their turns."""
    _DROP.run(conn, id=group)


def settle(conn: Connection) -> int:
    """Move the records of a dead process to the turns' rows; return the number of records."""
    pending: dict[TurnId, list[tuple[int, bytes]]] = {}
    payloads = conn.execute(select(RUN_GROUPS.c.payload).order_by(_id)).scalars().all()
    for payload in payloads:
        for turn_id, events in _unpack(payload):
            pending.setdefault(turn_id, []).extend(events)
    query = select(TURNS.c.id, TURNS.c.conversation_id).where(TURNS.c.id.in_(pending))
    # turns that were deleted meanwhile are missing here
    there = {TurnId(turn_id): conversation_id for turn_id, conversation_id in conn.execute(query)}
    # some events are already stored: their record was kept because another turn still needed it
    last_seqs = run_events.last_seqs(conn, [*there])
    for turn_id, conversation_id in there.items():
        after = last_seqs.get(turn_id, 0)
        new = ((seq, event) for seq, event in pending[turn_id] if seq > after)
        run_events.append(conn, run_events.batches_of(turn_id, new, conversation_id))
    conn.execute(delete(RUN_GROUPS))
    return len(payloads)


def _unpack(payload: bytes) -> Iterator[tuple[TurnId, Iterable[tuple[int, bytes]]]]:
    at = _LENGTH.size + _LENGTH.unpack_from(payload)[0]
    heads = orjson.loads(payload[_LENGTH.size : at])
    events, _ = run_events.unpack(sum(count for _, _, count in heads), payload[at:])
    start = 0
    for turn_id, first, count in heads:
        yield TurnId(turn_id), enumerate(events[start : start + count], first)
        start += count
