"""Usage: the tokens of every model call.

Owns one row per call and their sums. Knows no price and no model.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, insert, select

from agentic_rag.events import Usage
from agentic_rag.store.rows import Prepared, columns, names, values
from agentic_rag.store.tables import UsageRow, table


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredUsage:
    """One row of ``usage``; fields as in `tables.UsageRow`."""

    id: str
    session_id: str
    labels: dict[str, Any]
    model: str
    input: int
    cache_read: int
    cache_write: int
    output: int
    created_at: str
    turn_id: str | None = None
    step: int = 0
    agent: str = ""


_usage = table(UsageRow)
_NAMES = names(StoredUsage)
_PUT = Prepared(insert(_usage), _NAMES)
_ROWS = select(*columns(_usage, StoredUsage)).order_by(_usage.c.created_at, _usage.c.step, _usage.c.id)


def put(conn: Connection, rows: Iterable[StoredUsage]) -> None:
    """Store the usage of calls that have ended."""
    _PUT.run_all(conn, [values(row, _NAMES) for row in rows])


def of_session(conn: Connection, session_id: str) -> list[StoredUsage]:
    """Return the calls of a session, oldest first."""
    return [StoredUsage(**row) for row in conn.execute(_ROWS.where(_usage.c.session_id == session_id)).mappings()]


def of_turn(conn: Connection, turn_id: str) -> Usage:
    """Return what a turn has spent so far."""
    sums = [func.coalesce(func.sum(_usage.c[name]), 0) for name in ("input", "cache_read", "cache_write", "output")]
    row = conn.execute(select(*sums).where(_usage.c.turn_id == turn_id)).one()
    return Usage(*(int(number) for number in row))
