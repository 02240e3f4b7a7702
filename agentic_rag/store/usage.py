"""Usage: the tokens of every model call.

Owns one row per call and their sums. A row outlives its session, its conversation and its domain: it says whose they
were by their ids. Knows no price and no model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, func, or_, select

from agentic_rag.events import Usage
from agentic_rag.json_form import Absent
from agentic_rag.store.records import RecordTable


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """The tokens of one model call, whatever became of it. ``input`` counts uncached input only."""

    id: str
    session_id: str
    turn_id: str | None = None
    """None: the call made a compaction's summary."""
    step: int = 0
    conversation_id: str = ""
    domain_id: str = ""
    user_id: str = ""
    agent: str = ""
    """Path of delegates; empty for the main agent."""
    model: str
    input: int
    cache_read: int
    cache_write: int
    output: int
    dropped_citations: int = 0
    """Citations of the call that were not what their passage says, and that nobody was shown."""
    created_at: str


class Group(StrEnum):
    """By what usage can be summed."""

    DOMAIN = "domain"
    USER = "user"
    MODEL = "model"
    AGENT = "agent"
    DAY = "day"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageTotal:
    """Tokens of ``calls`` model calls that have these in common; what is not grouped by is absent."""

    domain_id: Absent[str] = None
    user_id: Absent[str] = None
    model: Absent[str] = None
    agent: Absent[str] = None
    day: Absent[str] = None
    """UTC."""
    calls: int
    input: int
    cache_read: int
    cache_write: int
    output: int
    dropped_citations: int


USAGE = RecordTable(UsageRecord, "usage", indexed=("session_id", "turn_id", "created_at"))
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


_TOKENS = ("input", "cache_read", "cache_write", "output")
_SUMS = (*_TOKENS, "dropped_citations")
_GROUPS = {
    Group.DOMAIN: _usage.domain_id.label("domain_id"),
    Group.USER: _usage.user_id.label("user_id"),
    Group.MODEL: _usage.model.label("model"),
    Group.AGENT: _usage.agent.label("agent"),
    Group.DAY: func.substr(_usage.created_at, 1, 10).label("day"),
}


def totals(
    conn: Connection,
    groups: Sequence[Group],
    since: str,
    until: str,
    *,
    user_id: str,
    domain_ids: Sequence[str] | None,
) -> list[UsageTotal]:
    """Return the sums of each group, most tokens first. ``since`` (included) and ``until`` (not): times, or empty.

    Counted are the calls of ``user_id`` and those in ``domain_ids``; with None of the latter, all.
    """
    by = [_GROUPS[group] for group in groups]
    tokens = [func.coalesce(func.sum(_usage[name]), 0).label(name) for name in _SUMS]
    query = select(*by, func.count().label("calls"), *tokens)
    if domain_ids is not None:
        query = query.where(or_(_usage.user_id == user_id, _usage.domain_id.in_(domain_ids)))
    if since:
        query = query.where(_usage.created_at >= since)
    if until:
        query = query.where(_usage.created_at < until)
    rows = conn.execute(query.group_by(*by) if by else query).mappings()
    found = [UsageTotal(**{**row, **{name: int(row[name]) for name in _SUMS}}) for row in rows if row["calls"]]
    return sorted(found, key=lambda total: -(total.input + total.cache_read + total.cache_write + total.output))
