"""Tool calls: their arguments, servers and results.

This module owns a call's states.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, update

from agentic_rag.base.events import ToolStatus
from agentic_rag.base.ids import SessionId, TurnId
from agentic_rag.base.messages import Block
from agentic_rag.store.columns import Indexed, Key
from agentic_rag.store.conversations import CONVERSATIONS
from agentic_rag.store.record import Record
from agentic_rag.store.statements import Prepared, parameter
from agentic_rag.store.turns import TURNS


class ToolCallRecord(Record, table=True):
    """One tool call. ``result`` is the Messages-API ``tool_result`` block once the call has ended."""

    __tablename__ = "tool_calls"
    part_of = "session"

    turn_id: Key[TurnId]
    tool_call_id: Key[str]
    session_id: Indexed[SessionId]
    agent: str = ""
    """Path of the delegate that made the call; empty for the main agent."""
    server: str
    tool_name: str
    arguments: dict[str, Any]
    status: ToolStatus = ToolStatus.RUNNING
    result: Block | None = None
    started_at: str
    duration_ms: int | None = None
    size: int | None = None
    """Size of the whole result in bytes."""
    ref: str | None = None
    """The payload with the whole result, if the block holds only a part."""
    task: str = ""
    """The id of the MCP server's task that runs the call; empty if the server answers directly."""
    app_of: str = ""
    """The call whose app asked for this one; empty for a call of a model. Such a call stores no result."""


TOOL_CALLS = ToolCallRecord.__table__
_calls = TOOL_CALLS.c
_IN_ORDER = sa.select(TOOL_CALLS).order_by(_calls.started_at, _calls.turn_id, _calls.tool_call_id)
_ENDED = ("status", "result", "duration_ms", "size", "ref")
_FINISH = Prepared(
    update(TOOL_CALLS)
    .where(
        _calls.turn_id == parameter(_calls.turn_id),
        _calls.tool_call_id == parameter(_calls.tool_call_id),
        _calls.status == ToolStatus.RUNNING,
    )
    .values({name: parameter(_calls[name]) for name in _ENDED})
)


def start(conn: Connection, calls: Iterable[ToolCallRecord]) -> None:
    """Store calls as running, before any of them runs.

    Raises:
        IntegrityError: the turn has a call with the same id.
    """
    for call in calls:
        call.insert(conn)


MOST_APP_CALLS = 500
"""Calls of one app that are stored; the oldest ended ones are deleted."""


def start_of_app(conn: Connection, call: ToolCallRecord) -> None:
    """Store a running call of an app, and delete the app's oldest ended calls beyond `MOST_APP_CALLS`."""
    of_app = (_calls.turn_id == call.turn_id, _calls.app_of == call.app_of)
    newest = sa.select(_calls.tool_call_id).where(*of_app).order_by(_calls.tool_call_id.desc())
    oldest = conn.execute(newest.offset(MOST_APP_CALLS - 2).limit(1)).scalar()
    if oldest is not None:
        ended = _calls.status != ToolStatus.RUNNING
        conn.execute(sa.delete(TOOL_CALLS).where(*of_app, ended, _calls.tool_call_id < oldest))
    call.insert(conn)


def end_of_app(conn: Connection, call: ToolCallRecord, status: ToolStatus, duration_ms: int, size: int | None) -> None:
    """End a call of an app."""
    key = (_calls.turn_id == call.turn_id, _calls.tool_call_id == call.tool_call_id)
    conn.execute(update(TOOL_CALLS).where(*key).values(status=status, duration_ms=duration_ms, size=size))


def end_left_of_apps(conn: Connection, before: str) -> int:
    """End the running calls of apps that began before a time: their process died. Return how many there were."""
    left = (_calls.app_of != "", _calls.status == ToolStatus.RUNNING, _calls.started_at < before)
    return conn.execute(update(TOOL_CALLS).where(*left).values(status=ToolStatus.INTERRUPTED)).rowcount


def note_task(conn: Connection, turn_id: TurnId, tool_call_id: str, task: str) -> None:
    """Store the server's task that runs a call, so that its result can be fetched after a kill."""
    conn.execute(
        update(TOOL_CALLS).where(_calls.turn_id == turn_id, _calls.tool_call_id == tool_call_id).values(task=task)
    )


def open_tasks(conn: Connection, turn_id: TurnId) -> dict[str, str]:
    """Return the servers' tasks of a turn's running calls, by the calls' ids."""
    where = (_calls.turn_id == turn_id, _calls.status == ToolStatus.RUNNING, _calls.task != "")
    return {row[0]: row[1] for row in conn.execute(sa.select(_calls.tool_call_id, _calls.task).where(*where))}


def finish(
    conn: Connection,
    turn_id: TurnId,
    tool_call_id: str,
    *,
    status: ToolStatus,
    result: Block,
    duration_ms: int,
    size: int | None = None,
    ref: str | None = None,
) -> bool:
    """End a call; ``result`` is its ``tool_result`` block.

    ``size`` is the size of the whole result in bytes. ``ref`` names the payload with the whole result if the block
    holds only a part. Returns False, without a change, if the call has ended before.
    """
    changed = _FINISH.run(
        conn,
        turn_id=turn_id,
        tool_call_id=tool_call_id,
        status=status,
        result=result,
        duration_ms=duration_ms,
        size=size,
        ref=ref,
    )
    return changed == 1


def get(conn: Connection, turn_id: TurnId, tool_call_id: str) -> ToolCallRecord | None:
    """Return the call, or None. The model chooses call ids: they are unique only within a turn."""
    query = sa.select(TOOL_CALLS).where(_calls.turn_id == turn_id, _calls.tool_call_id == tool_call_id)
    return ToolCallRecord.first(conn, query)


def of_turn(conn: Connection, turn_id: TurnId) -> list[ToolCallRecord]:
    """Return the calls of the turn's model, oldest first."""
    return ToolCallRecord.all(conn, _IN_ORDER.where(_calls.turn_id == turn_id, _calls.app_of == ""))


@dataclass(frozen=True, slots=True)
class CallSummary:
    """Where and how a call ran, without its arguments and result."""

    tool_call_id: str
    server: str
    status: ToolStatus
    duration_ms: int | None


def summaries(conn: Connection, turn_ids: Collection[TurnId]) -> dict[TurnId, list[CallSummary]]:
    """Return the models' calls of several turns, oldest first, without their arguments and results."""
    columns = (_calls.turn_id, _calls.tool_call_id, _calls.server, _calls.status, _calls.duration_ms)
    own = (_calls.turn_id.in_(turn_ids), _calls.app_of == "")
    query = sa.select(*columns).where(*own).order_by(_calls.started_at, _calls.tool_call_id)
    by_turn: dict[TurnId, list[CallSummary]] = {}
    for turn_id, *fields in conn.execute(query):
        by_turn.setdefault(turn_id, []).append(CallSummary(*fields))
    return by_turn


def of_sessions(
    conn: Connection,
    session_ids: Collection[SessionId],
    *,
    tool_names: Collection[str] = (),
    status: ToolStatus | None = None,
    agent: str | None = None,
    turn_id: TurnId | None = None,
    app_of: str = "",
    limit: int | None = None,
) -> list[ToolCallRecord]:
    """Return the calls made in these sessions, oldest first; with ``limit``, only the last ones.

    Optional filters: tool names, status, agent (its path, empty for the main agent) and turn. ``app_of``: return the
    calls that the app of this call asked for, instead of those of models.
    """
    query = sa.select(TOOL_CALLS).where(_calls.session_id.in_(session_ids), _calls.app_of == app_of)
    if tool_names:
        query = query.where(_calls.tool_name.in_(tool_names))
    for column, value in (
        (_calls.status, status),
        (_calls.agent, agent),
        (_calls.turn_id, turn_id),
    ):
        if value is not None:
            query = query.where(column == value)
    newest = (_calls.started_at.desc(), _calls.turn_id.desc(), _calls.tool_call_id.desc())
    return ToolCallRecord.all(conn, query.order_by(*newest).limit(limit))[::-1]


@dataclass(frozen=True, slots=True)
class ToolTotal:
    """The number of calls of a tool that ended with a status, and their total duration."""

    server: str
    tool_name: str
    status: ToolStatus
    calls: int
    duration_ms: int


def of_domain(
    conn: Connection,
    domain_id: str,
    *,
    tool_names: Collection[str] = (),
    status: ToolStatus | None = None,
    since: str = "",
    until: str = "",
    limit: int,
) -> tuple[list[ToolCallRecord], list[ToolTotal]]:
    """Return the newest calls made in a domain, newest first, and the totals of all matching calls.

    ``since`` (included) and ``until`` (not included) limit the times at which the calls began.
    """
    place = TURNS.c.conversation_id == CONVERSATIONS.c.id
    turns = sa.select(TURNS.c.id).where(place, CONVERSATIONS.c.domain_id == domain_id)
    where: list[sa.ColumnElement[bool]] = [_calls.turn_id.in_(turns)]
    if tool_names:
        where.append(_calls.tool_name.in_(tool_names))
    if status is not None:
        where.append(_calls.status == status)
    if since:
        where.append(_calls.started_at >= since)
    if until:
        where.append(_calls.started_at < until)
    newest = (_calls.started_at.desc(), _calls.turn_id.desc(), _calls.tool_call_id.desc())
    groups = (_calls.server, _calls.tool_name, _calls.status)
    duration = sa.func.coalesce(sa.func.sum(_calls.duration_ms), 0)
    totals = sa.select(*groups, sa.func.count(), duration).where(*where).group_by(*groups).order_by(*groups)
    rows = ToolCallRecord.all(conn, sa.select(TOOL_CALLS).where(*where).order_by(*newest).limit(limit))
    by_tool = [
        ToolTotal(server, name, ToolStatus(ended), calls, int(duration))
        for server, name, ended, calls, duration in conn.execute(totals)
    ]
    return rows, by_tool
