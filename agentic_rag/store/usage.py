"""Usage: the tokens of every model call.

Owns one row per call and their sums. Knows no price and no model.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from agentic_rag.events import Usage
from agentic_rag.store.records import RecordTable
from agentic_rag.store.sessions import SessionLabels


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """The tokens of one model call, whatever became of it. ``input`` counts uncached input only."""

    id: str
    session_id: str
    turn_id: str | None = None
    """None: the call made a compaction's summary."""
    step: int = 0
    labels: SessionLabels
    agent: str = ""
    """Path of delegates; empty for the main agent."""
    model: str
    input: int
    cache_read: int
    cache_write: int
    output: int
    created_at: str


USAGE = RecordTable(UsageRecord, "usage", indexed=("session_id", "turn_id"), part_of="session")
_usage = USAGE.c


def put(conn: Connection, rows: Iterable[UsageRecord]) -> None:
    """Store the usage of calls that have ended."""
    for row in rows:
        USAGE.insert(conn, row)


def of_session(conn: Connection, session_id: str) -> list[UsageRecord]:
    """Return the calls of a session, oldest first."""
    query = USAGE.select.where(_usage.session_id == session_id)
    return USAGE.all(conn, query.order_by(_usage.created_at, _usage.step, _usage.id))


def of_turn(conn: Connection, turn_id: str) -> Usage:
    """Return what a turn has spent so far."""
    sums = [func.coalesce(func.sum(_usage[name]), 0) for name in ("input", "cache_read", "cache_write", "output")]
    row = conn.execute(select(*sums).where(_usage.turn_id == turn_id)).one()
    return Usage(*(int(number) for number in row))
