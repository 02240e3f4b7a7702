"""The indexes of look-ups that select few of many rows."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection

from agentic_rag.base.ids import SessionId, TurnId
from agentic_rag.store import conversations, sessions, tool_calls, turns, usage
from agentic_rag.store.database import Database
from agentic_rag.store.statements import run_by_sqlite, sqlite_of
from agentic_rag.store.usage import UsageGroup

from .records import AT, turn, usage_record


def _plans(conn: Connection, run_queries: Callable[[Connection], Any]) -> list[str]:
    """Return the steps of SQLite's plans for all statements of a function."""
    statements: list[str] = []
    sqlite_of(conn).set_trace_callback(statements.append)
    run_queries(conn)
    sqlite_of(conn).set_trace_callback(None)
    plans = [run_by_sqlite(conn, f"EXPLAIN QUERY PLAN {statement}") for statement in statements if statement != "BEGIN"]
    return [step for plan in plans for *_, step in plan.fetchall()]


@pytest.mark.parametrize(
    "run_queries",
    [
        turns.list_running,
        turns.list_queued,
        turns.list_waiting,
        partial(turns.is_any_abandoned, owner="host:1"),
        partial(turns.lock_abandoned, owner="host:1", alone=True),
        partial(turns.queued_sessions, owner="host:1"),
        partial(turns.renew, owner="host:1"),
        partial(turns.release_all, owner="host:1"),
        partial(turns.release_all, owner="host:1", only_queued=True),
        partial(turns.expire, owner="host:1"),
        partial(conversations.take_due, domain_id="dom_1", before=AT, at_most=5),
        conversations.left_transient,
    ],
)
async def test_running_turns_are_found_without_reading_ended_ones(
    sqlite: Database, run_queries: Callable[[Connection], Any]
) -> None:
    steps = await sqlite.write(lambda conn: _plans(conn, run_queries))
    turn_steps = [step for step in steps if " turns " in f"{step} "]
    assert any("ix_turns_unfinished" in step for step in turn_steps)
    assert not [step for step in turn_steps if "ix_turns_unfinished" not in step and "(id=?)" not in step]


@pytest.mark.parametrize(
    "run_queries",
    [
        partial(usage.count_calls, user_id="local", agent="", since=AT),
        partial(usage.totals, groups=[UsageGroup.MODEL], since=AT, until="", user_id="local", domain_ids=["dom_1"]),
    ],
)
async def test_usage_since_a_time_is_found_by_its_ids(
    sqlite: Database, run_queries: Callable[[Connection], Any]
) -> None:
    (step,) = [
        plan_step
        for plan_step in await sqlite.write(lambda conn: _plans(conn, run_queries))
        if " usage " in f"{plan_step} "
    ]
    assert step == "SEARCH usage USING INDEX sqlite_autoindex_usage_1 (id>?)"


async def test_usage_since_a_day_that_does_not_exist_is_compared_as_text(database: Database) -> None:
    await database.write(lambda conn: usage.put(conn, [usage_record("usage_1", created_at="2026-02-28T12:00:00.000Z")]))
    for since, count in (("2026-02-28", 1), ("2026-02-30", 0)):
        own = partial(usage.count_calls, user_id="local", agent="", since=since)
        assert await database.read(own) == count


async def test_a_sessions_family_includes_delegates_of_delegates(database: Database) -> None:
    def fill(conn: Connection) -> None:
        for ident, parent in (("sess_1", None), ("sess_2", "turn_1"), ("sess_3", "turn_2"), ("sess_4", None)):
            parent_turn = None if parent is None else TurnId(parent)
            sessions.create(
                conn,
                SessionId(ident),
                sessions.SessionLabels(),
                created_at=AT,
                parent_turn_id=parent_turn,
                tool_call_id="a",
            )
        for ident, session in (("turn_1", "sess_1"), ("turn_2", "sess_2"), ("turn_3", "sess_3"), ("turn_4", "sess_4")):
            turn(ident, session).insert(conn)

    await database.write(fill)
    assert sorted(await database.read(lambda conn: sessions.family(conn, SessionId("sess_1")))) == [
        "sess_1",
        "sess_2",
        "sess_3",
    ]
    assert await database.read(lambda conn: sessions.family(conn, SessionId("sess_4"))) == ["sess_4"]
    assert await database.read(lambda conn: tool_calls.of_sessions(conn, [])) == []
