"""Writes to SQLite that share a transaction: one commit for all, and each one atomic alone."""

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup
from sqlalchemy import Connection

from agentic_rag.base.errors import StorageFull
from agentic_rag.base.ids import TurnId
from agentic_rag.store import run_events
from agentic_rag.store.database import Database

BOUND = 30
"""Seconds after which a waiting test has failed."""

Outcomes = dict[str, Any]


def _append(number: int) -> Callable[[Connection], None]:
    """Write one event of a separate turn."""
    return lambda conn: run_events.append(conn, [run_events.EventBatch(f"turn_{number}", 1, [b"x"])])


def _list_stored(conn: Connection) -> list[int]:
    return [number for number in range(10) if run_events.last_seq(conn, TurnId(f"turn_{number}"))]


@asynccontextmanager
async def _block_writer(database: Database, outcomes: Outcomes) -> AsyncIterator[TaskGroup]:
    """Block the writer in a write of event 0 until the block, which requests others, ends; then wait for all."""
    has_started, may_finish = threading.Event(), threading.Event()

    def write_first(conn: Connection) -> None:
        has_started.set()
        assert may_finish.wait(BOUND)
        _append(0)(conn)

    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_request_write, database, outcomes, "first", write_first)
            assert await anyio.to_thread.run_sync(has_started.wait, BOUND)
            yield tasks
            await anyio.lowlevel.checkpoint()  # now all are requested
            may_finish.set()


async def _request_write(
    database: Database, outcomes: Outcomes, name: str, fn: Callable[[Connection], Any], durable: bool = False
) -> None:
    try:
        outcomes[name] = await database.write(fn, durable=durable)
    except Exception as exc:
        outcomes[name] = exc


async def test_writes_queued_during_a_write_are_committed_together(sqlite: Database) -> None:
    has_joined, may_finish = threading.Event(), threading.Event()
    outcomes: Outcomes = {}

    def write_last(conn: Connection) -> None:
        has_joined.set()
        assert may_finish.wait(BOUND)
        _append(1)(conn)

    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as observers, _block_writer(sqlite, outcomes) as tasks:
            tasks.start_soon(_request_write, sqlite, outcomes, "last", write_last)

            async def check_nothing_stored() -> None:
                assert await anyio.to_thread.run_sync(has_joined.wait, BOUND)
                assert await sqlite.read(_list_stored) == []
                assert outcomes == {}
                may_finish.set()

            observers.start_soon(check_nothing_stored)
    assert await sqlite.read(_list_stored) == [0, 1]


async def test_a_failed_write_keeps_the_other_writes_of_its_transaction(sqlite: Database) -> None:
    outcomes: Outcomes = {}

    def write_and_fail(conn: Connection) -> None:
        _append(2)(conn)
        raise ValueError("on purpose")

    async with _block_writer(sqlite, outcomes) as tasks:
        tasks.start_soon(_request_write, sqlite, outcomes, "before", _append(1))
        tasks.start_soon(_request_write, sqlite, outcomes, "half", write_and_fail)
        tasks.start_soon(_request_write, sqlite, outcomes, "taken", _append(1))
        tasks.start_soon(_request_write, sqlite, outcomes, "after", _append(3))
    assert outcomes["before"] is outcomes["after"] is None
    assert str(outcomes["half"]) == "on purpose"
    assert type(outcomes["taken"]).__name__ == "IntegrityError"
    assert await sqlite.read(_list_stored) == [0, 1, 3]


async def test_a_rolled_back_shared_transaction_fails_all_its_writes(sqlite: Database) -> None:
    outcomes: Outcomes = {}

    def roll_back(conn: Connection) -> None:  # as SQLite itself may do when the disk is full
        conn.exec_driver_sql("ROLLBACK")
        raise ValueError("all is undone")

    async with _block_writer(sqlite, outcomes) as tasks:
        tasks.start_soon(_request_write, sqlite, outcomes, "undo", roll_back)
        tasks.start_soon(_request_write, sqlite, outcomes, "after", _append(2))
    assert str(outcomes["first"]) == str(outcomes["undo"]) == "all is undone"
    assert outcomes["after"] is None
    assert await sqlite.read(_list_stored) == [2]


async def test_acknowledged_writes_survive_a_full_disk(sqlite: Database) -> None:
    pages = await sqlite.read(lambda conn: conn.exec_driver_sql("PRAGMA page_count").scalar_one())
    await sqlite.write(lambda conn: conn.exec_driver_sql(f"PRAGMA max_page_count={pages + 4}").close())
    outcomes: Outcomes = {}

    def append_too_much(conn: Connection) -> None:
        _append(2)(conn)
        run_events.append(conn, [run_events.EventBatch("turn_2", 3, [b"x" * 100_000])])

    async with _block_writer(sqlite, outcomes) as tasks:
        for name, write in (("1", _append(1)), ("2", append_too_much), ("3", _append(3))):
            tasks.start_soon(_request_write, sqlite, outcomes, name, write)
    assert isinstance(outcomes["2"], StorageFull)
    acknowledged_numbers = [number for number, name in enumerate(("first", "1", "2", "3")) if outcomes[name] is None]
    assert await sqlite.read(_list_stored) == acknowledged_numbers


async def test_a_durable_write_joins_no_transaction_without_fsync(sqlite: Database) -> None:
    outcomes: Outcomes = {}
    async with _block_writer(sqlite, outcomes) as tasks:
        tasks.start_soon(
            _request_write,
            sqlite,
            outcomes,
            "durable",
            lambda conn: conn.exec_driver_sql("PRAGMA synchronous").scalar_one(),
            True,
        )
    assert outcomes["durable"] == 2  # FULL: sqlite.org/pragma.html#pragma_synchronous


async def test_a_closed_database_refuses_each_write(tmp_path: Path) -> None:
    database = await Database.open(tmp_path / "store.db")
    await database.aclose()
    for _ in range(2):
        with anyio.fail_after(BOUND), pytest.raises(RuntimeError):
            await database.write(_append(1))


async def test_a_queued_write_of_a_cancelled_caller_never_runs(sqlite: Database) -> None:
    async with _block_writer(sqlite, {}), anyio.create_task_group() as leaving:
        leaving.start_soon(sqlite.write, _append(1))
        await anyio.lowlevel.checkpoint()
        leaving.cancel_scope.cancel()
    await sqlite.write(_append(2))
    assert await sqlite.read(_list_stored) == [0, 2]
