"""Tool calls: what was asked of which server, and what came of it.

Owns a call's states. Knows no tool and no transcript.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, bindparam, insert, select, update

from agentic_rag.store.rows import columns, names, values
from agentic_rag.store.tables import ToolCallRow, table


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredToolCall:
    """One row of ``tool_calls``; fields as in `tables.ToolCallRow`."""

    turn_id: str
    tool_call_id: str
    session_id: str
    server: str
    tool_name: str
    arguments: dict[str, Any]
    started_at: str
    status: str = "running"
    result: dict[str, Any] | None = None
    duration_ms: int | None = None
    size: int | None = None
    ref: str | None = None


_calls = table(ToolCallRow)
_NAMES = names(StoredToolCall)
_CALLS = select(*columns(_calls, StoredToolCall)).order_by(_calls.c.started_at, _calls.c.turn_id, _calls.c.tool_call_id)
_START = insert(_calls)
_FINISH = (
    update(_calls)
    .where(
        _calls.c.turn_id == bindparam("turn"),
        _calls.c.tool_call_id == bindparam("call"),
        _calls.c.status == "running",
    )
    .values(
        status=bindparam("ended"),
        result=bindparam("block", type_=_calls.c.result.type),
        duration_ms=bindparam("milliseconds"),
        size=bindparam("bytes"),
        ref=bindparam("reference"),
    )
)


def start(conn: Connection, calls: Iterable[StoredToolCall]) -> None:
    """Store calls as running, before any of them runs.

    Raises:
        IntegrityError: the turn has a call of the same id.
    """
    rows = [values(call, _NAMES) for call in calls]
    if rows:
        conn.execute(_START, rows)


def finish(
    conn: Connection,
    turn_id: str,
    tool_call_id: str,
    *,
    status: str,
    result: Mapping[str, Any],
    duration_ms: int,
    size: int | None = None,
    ref: str | None = None,
) -> bool:
    """End a call as ``ok``, ``error``, ``denied`` or ``interrupted``; ``result`` is its ``tool_result`` block.

    ``size`` is the whole result's in bytes, ``ref`` where it is kept if the block holds only a part.
    Returns False, and changes nothing, when the call has ended before: its result stays.
    """
    changed = conn.execute(
        _FINISH,
        {
            "turn": turn_id,
            "call": tool_call_id,
            "ended": status,
            "block": dict(result),
            "milliseconds": duration_ms,
            "bytes": size,
            "reference": ref,
        },
    )
    return changed.rowcount == 1


def get(conn: Connection, turn_id: str, tool_call_id: str) -> StoredToolCall | None:
    """Return the call, None when there is none. Ids are the model's: unique in a turn only."""
    found = _all(conn, _CALLS.where(_calls.c.turn_id == turn_id, _calls.c.tool_call_id == tool_call_id))
    return found[0] if found else None


def of_turn(conn: Connection, turn_id: str) -> list[StoredToolCall]:
    """Return the turn's calls, oldest first."""
    return _all(conn, _CALLS.where(_calls.c.turn_id == turn_id))


def of_session(
    conn: Connection,
    session_id: str,
    *,
    tool_name: str | None = None,
    status: str | None = None,
    limit: int | None = None,
) -> list[StoredToolCall]:
    """Return the session's calls, oldest first; only those of one tool or one status, or the last ones when given."""
    query = select(*columns(_calls, StoredToolCall)).where(_calls.c.session_id == session_id)
    if tool_name is not None:
        query = query.where(_calls.c.tool_name == tool_name)
    if status is not None:
        query = query.where(_calls.c.status == status)
    newest = (_calls.c.started_at.desc(), _calls.c.turn_id.desc(), _calls.c.tool_call_id.desc())
    return _all(conn, query.order_by(*newest).limit(limit))[::-1]


def _all(conn: Connection, query: Select[Any]) -> list[StoredToolCall]:
    return [StoredToolCall(**row) for row in conn.execute(query).mappings()]
