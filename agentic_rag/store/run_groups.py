"""Events of several turns in one record: how a SQLite file takes a group of the run log.

Owns the form of such a record, and the way from it to the turns' own rows (`run_events`). A row for each turn would
change a page of the key's tree for each; these records stand one after the other at the end of theirs. They are read
by nobody: the process that wrote them has their events in memory, stores them as rows of their turns before long and
drops the records then; what a killed one left is moved by the next start.

A payload is the length of its heads, as four bytes in network order, the heads, ``[turn id, first seq, number of
events]`` each, as JSON, and the events of all of them, packed as those of one row of `run_events`; they may be short,
as there.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import Struct

import orjson
from sqlalchemy import Connection, delete, select

from agentic_rag.ids import TurnId
from agentic_rag.store import run_events
from agentic_rag.store.records import BigInt, Prepared, RecordTable, parameter
from agentic_rag.store.run_events import Batch
from agentic_rag.store.turns import TURNS


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroupRecord:
    """Events that were journalled together; ``payload`` is packed as the module says."""

    id: BigInt
    payload: bytes


# in the key's own tree: a key that is no row number would have an index beside it
RUN_GROUPS = RecordTable(RunGroupRecord, "run_groups", sqlite_with_rowid=False)
_id = RUN_GROUPS.c.id
_LENGTH = Struct(">I")
_DROP = Prepared(delete(RUN_GROUPS.table).where(_id < parameter(_id)))


def add(conn: Connection, group: int, batches: Iterable[Batch]) -> None:
    """Store events, those of a turn in order. ``group``: greater than any before.

    Raises:
        IntegrityError: there is that record.
    """
    heads: list[tuple[str, int, int]] = []
    events: list[bytes] = []
    for turn_id, first, own, _ in batches:
        heads.append((turn_id, first, len(own)))
        events += own
    packed = orjson.dumps(heads)
    payload = b"".join((_LENGTH.pack(len(packed)), packed, run_events.pack(events)))
    RUN_GROUPS.insert(conn, RunGroupRecord(id=BigInt(group), payload=payload))


def is_there(conn: Connection, group: int) -> bool:
    """Say whether there is a record."""
    return conn.execute(select(_id).where(_id == group)).first() is not None


def drop_before(conn: Connection, group: int) -> None:
    """Delete the records before one: all their events stand in rows of their turns."""
    _DROP.run(conn, id=group)


def settle(conn: Connection) -> int:
    """Move what a process that is gone left here to the turns' rows; return how many records there were."""
    left: dict[TurnId, list[tuple[int, bytes]]] = {}
    payloads = conn.execute(select(RUN_GROUPS.c.payload).order_by(_id)).scalars().all()
    for payload in payloads:
        for turn_id, events in _unpack(payload):
            left.setdefault(turn_id, []).extend(events)
    query = select(TURNS.c.id, TURNS.c.conversation_id).where(TURNS.c.id.in_(left))
    there = {TurnId(turn_id): conversation_id for turn_id, conversation_id in conn.execute(query)}  # or deleted
    stored = run_events.last_seqs(conn, [*there])  # by a commit whose record another turn still needed
    for turn_id, conversation_id in there.items():
        after = stored.get(turn_id, 0)
        new = ((seq, event) for seq, event in left[turn_id] if seq > after)
        run_events.append(conn, run_events.batches_of(turn_id, new, conversation_id))
    conn.execute(delete(RUN_GROUPS.table))
    return len(payloads)


def _unpack(payload: bytes) -> Iterator[tuple[TurnId, Iterable[tuple[int, bytes]]]]:
    at = _LENGTH.size + _LENGTH.unpack_from(payload)[0]
    heads = orjson.loads(payload[_LENGTH.size : at])
    events, _ = run_events.unpack(sum(count for _, _, count in heads), payload[at:])
    start = 0
    for turn_id, first, count in heads:
        yield TurnId(turn_id), enumerate(events[start : start + count], first)
        start += count
