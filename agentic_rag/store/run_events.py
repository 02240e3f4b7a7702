"""The run log: the numbered events of turns, as bytes.

Owns appending, reading after a number, and pruning. Knows no event type.
"""

from collections.abc import Iterable

from sqlalchemy import Connection, bindparam, delete, func, insert, select

from agentic_rag.store.tables import RunEvent, Turn, table
from agentic_rag.store.turns import FINISHED

_events = table(RunEvent)
_turns = table(Turn)
_APPEND = insert(_events)
_READ = (
    select(_events.c.seq, _events.c.payload)
    .where(_events.c.turn_id == bindparam("turn"), _events.c.seq > bindparam("after"))
    .order_by(_events.c.seq)
    .limit(bindparam("limit"))
)


def append(conn: Connection, events: Iterable[tuple[str, int, bytes]]) -> None:
    """Store events as (turn id, seq, payload).

    Raises:
        IntegrityError: a number of the turn is taken.
    """
    rows = [{"turn_id": turn_id, "seq": seq, "payload": payload} for turn_id, seq, payload in events]
    if rows:
        conn.execute(_APPEND, rows)


def read(conn: Connection, turn_id: str, after: int, limit: int) -> list[tuple[int, bytes]]:
    """Return the first ``limit`` events of the turn strictly after ``after``, as (seq, payload)."""
    found = conn.execute(_READ, {"turn": turn_id, "after": after, "limit": limit})
    return [(seq, payload) for seq, payload in found]


def last_seq(conn: Connection, turn_id: str) -> int:
    """Return the number of the turn's last stored event, 0 when it has none."""
    found: int | None = conn.execute(select(func.max(_events.c.seq)).where(_events.c.turn_id == turn_id)).scalar()
    return found or 0


def exists(conn: Connection, turn_id: str) -> bool:
    """Say whether the turn has a log (a pruned one has none)."""
    query = select(_events.c.seq).where(_events.c.turn_id == turn_id).limit(1)
    return conn.execute(query).first() is not None


def prune(conn: Connection, ended_before: str, limit: int = 100) -> int:
    """Delete the logs of at most ``limit`` turns that ended before that time; return how many.

    Bounded, because one writer serves everybody: call it again until it returns 0. Turns that have not
    ended keep their logs.
    """
    # one look into the key per logged turn, however many events and unlogged turns there are
    logged = select(func.min(_events.c.turn_id).label("id")).cte("logged", recursive=True)
    following = select(func.min(_events.c.turn_id)).where(_events.c.turn_id > logged.c.id).scalar_subquery()
    logged = logged.union_all(select(following).where(logged.c.id.is_not(None)))
    query = (
        select(_turns.c.id)
        .join(logged, logged.c.id == _turns.c.id)
        .where(_turns.c.status.in_(FINISHED), _turns.c.ended_at < ended_before)
        .limit(limit)
    )
    turn_ids = list(conn.execute(query).scalars())
    conn.execute(delete(_events).where(_events.c.turn_id.in_(turn_ids)))
    return len(turn_ids)
