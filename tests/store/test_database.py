"""Transactions: atomic, and visible to every reader after the commit."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from sqlalchemy import Connection, func, select, text
from sqlalchemy.exc import IntegrityError

from agentic_rag.base.errors import StorageFull, StorageUnavailable
from agentic_rag.base.ids import ConversationId, TurnId
from agentic_rag.store import conversations, images, run_events
from agentic_rag.store.database import Database
from tests.waiting import pause

from .conftest import needs_postgresql, postgresql_server
from .records import AT, conversation

BOUND = 30
"""Seconds after which a waiting test has failed."""


def _append(number: int) -> Callable[[Connection], None]:
    return lambda conn: run_events.append(conn, [run_events.EventBatch("turn_1", number, [b"x"])])


def _count(conn: Connection) -> int:
    return conn.execute(select(func.count()).select_from(run_events.RUN_EVENTS)).scalar_one()


async def test_a_transaction_whose_function_raises_is_rolled_back(database: Database) -> None:
    def write_and_fail(conn: Connection) -> None:
        run_events.append(conn, [run_events.EventBatch("turn_1", 1, [b"x"])])
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        await database.write(write_and_fail)
    assert await database.read(_count) == 0
    await database.write(lambda conn: run_events.append(conn, [run_events.EventBatch("turn_1", 1, [b"x"])]))
    assert await database.read(_count) == 1


async def test_an_integrity_error_is_raised_and_rolled_back(database: Database) -> None:
    def append_twice(conn: Connection) -> None:
        run_events.append(conn, [run_events.EventBatch("turn_1", 1, [b"x"])])
        run_events.append(conn, [run_events.EventBatch("turn_1", 1, [b"y"])])

    with pytest.raises(IntegrityError):
        await database.write(append_twice)
    assert await database.read(_count) == 0


async def test_reads_see_every_committed_write(database: Database) -> None:
    for number in range(1, 101):
        await database.write(_append(number), durable=number % 2 == 0)
        assert await database.read(lambda conn: run_events.last_seq(conn, TurnId("turn_1"))) == number


async def test_a_read_cannot_write(database: Database) -> None:
    with pytest.raises(StorageFull, match=r"read-?only"):
        await database.read(lambda conn: run_events.append(conn, [run_events.EventBatch("turn_1", 1, [b"x"])]))
    assert await database.read(_count) == 0


async def test_readers_beside_many_writers_see_complete_transactions(database: Database) -> None:
    await database.write(lambda conn: conversations.insert(conn, conversation()))
    writers_ended = anyio.Event()
    counts: set[int] = set()

    async def write(writer: int) -> None:
        for number in range(1, 11):

            def write_one(conn: Connection, number: int = number) -> None:
                run_events.append(conn, [run_events.EventBatch(f"turn_{writer}", number, [b"x"])])
                conversations.add_messages(conn, ConversationId("conv_1"), 1, AT)

            await database.write(write_one, durable=number == 10)

    async def read() -> None:
        def read_both(conn: Connection) -> tuple[int, int]:
            record = conversations.get(conn, ConversationId("conv_1"))
            assert record is not None
            return record.message_count, _count(conn)

        while not writers_ended.is_set():
            message_count, events = await database.read(read_both)
            assert message_count == events
            counts.add(events)

    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as readers:
            for _ in range(3):
                readers.start_soon(read)
            async with anyio.create_task_group() as writers:
                for writer in range(8):
                    writers.start_soon(write, writer)
            writers_ended.set()
    record = await database.read(lambda conn: conversations.get(conn, ConversationId("conv_1")))
    assert record is not None
    assert record.message_count == 80
    assert len(counts) > 1


async def test_an_image_stored_by_many_at_once_is_stored_once(database: Database) -> None:
    async def put_image(number: int) -> None:
        await database.write(lambda conn: images.put(conn, "img_1", "dom_1", {"from": number}))

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(put_image, number)
    count = await database.read(lambda conn: conn.execute(select(func.count()).select_from(images.IMAGES)).scalar_one())
    assert count == 1


async def test_a_cancelled_write_is_complete_or_absent(database: Database) -> None:
    def append_three(conn: Connection) -> None:
        for number in (1, 2, 3):
            run_events.append(conn, [run_events.EventBatch("turn_1", number, [b"x"])])

    for _ in range(20):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await database.write(append_three)
        assert await database.write(_count) in (0, 3)
        await database.write(lambda conn: conn.execute(text("DELETE FROM run_events")))


async def test_a_running_write_completes_when_its_caller_is_cancelled(sqlite: Database) -> None:
    has_started, may_finish = threading.Event(), threading.Event()

    def write_slowly(conn: Connection) -> None:
        has_started.set()
        assert may_finish.wait(BOUND)
        run_events.append(conn, [run_events.EventBatch("turn_1", 1, [b"x"])])

    async with anyio.create_task_group() as group:
        group.start_soon(sqlite.write, write_slowly)
        assert await anyio.to_thread.run_sync(has_started.wait, BOUND)
        group.cancel_scope.cancel()
    may_finish.set()
    assert await sqlite.write(_count) == 1


@needs_postgresql
async def test_a_cancelled_read_keeps_its_connection(postgresql_url: str) -> None:
    database = await Database.open(postgresql_url)
    has_started = anyio.Event()

    def find_backend(conn: Connection) -> int:
        return int(conn.execute(text("SELECT pg_backend_pid()")).scalar_one())

    def run_slow_query(conn: Connection) -> None:
        has_started.set()
        conn.execute(text("SELECT pg_sleep(0.1)"))

    backend = await database.read(find_backend)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(database.read, run_slow_query)
        await has_started.wait()
        tasks.cancel_scope.cancel()
    with anyio.fail_after(BOUND):
        while await database.read(find_backend) != backend:
            await pause()
    await database.aclose()


@needs_postgresql
async def test_a_connection_cut_after_its_use_is_not_reused(postgresql_url: str) -> None:
    database, other_database = await Database.open(postgresql_url), await Database.open(postgresql_url)
    drivers: list[Any] = []

    def find_backend(conn: Connection) -> int:
        drivers.append(conn.connection.driver_connection)
        return int(conn.execute(text("SELECT pg_backend_pid()")).scalar_one())

    def terminate(conn: Connection, pid: int) -> None:
        conn.execute(text(f"SELECT pg_terminate_backend({pid})"))

    for access in (database.read, database.write):
        backend = await access(find_backend)
        await other_database.read(partial(terminate, pid=backend))
        with anyio.fail_after(BOUND):
            while not drivers[-1].is_closed():
                await pause()
        assert await access(find_backend) != backend
    await database.aclose()
    await other_database.aclose()


async def test_reads_are_not_delayed_by_a_long_write(sqlite: Database) -> None:
    has_started, may_finish = threading.Event(), threading.Event()

    def write_slowly(conn: Connection) -> None:
        run_events.append(conn, [run_events.EventBatch("turn_1", 1, [b"x"])])
        has_started.set()
        assert may_finish.wait(BOUND)

    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as group:
            group.start_soon(sqlite.write, write_slowly)
            assert await anyio.to_thread.run_sync(has_started.wait, BOUND)
            assert await sqlite.read(_count) == 0
            may_finish.set()
    assert await sqlite.read(_count) == 1


async def test_closing_waits_for_queued_writes(tmp_path: Path) -> None:
    database = await Database.open(tmp_path / "store.db")
    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(database.write, _append(number))
        await anyio.lowlevel.checkpoint()
        await database.aclose()
    database = await Database.open(tmp_path / "store.db")
    assert await database.read(_count) == 50
    await database.aclose()


async def test_a_write_to_a_full_disk_is_storage_full_and_leaves_nothing(sqlite: Database) -> None:
    pages = await sqlite.read(lambda conn: conn.exec_driver_sql("PRAGMA page_count").scalar_one())
    await sqlite.write(lambda conn: conn.exec_driver_sql(f"PRAGMA max_page_count={pages + 4}").close())

    def append_too_much(conn: Connection) -> None:
        run_events.append(conn, [run_events.EventBatch("turn_1", 1, [b"small"])])
        run_events.append(conn, [run_events.EventBatch("turn_1", 2, [b"x" * 100_000])])

    with pytest.raises(StorageFull) as failure:
        await sqlite.write(append_too_much, durable=True)
    assert "full" in str(failure.value)
    assert await sqlite.read(_count) == 0
    await sqlite.write(lambda conn: run_events.append(conn, [run_events.EventBatch("turn_1", 1, [b"small"])]))
    assert await sqlite.read(_count) == 1


async def test_a_read_only_file_is_storage_full(sqlite: Database) -> None:
    await sqlite.write(lambda conn: conn.exec_driver_sql("PRAGMA query_only=ON").close())
    with pytest.raises(StorageFull):
        await sqlite.write(lambda conn: run_events.append(conn, [run_events.EventBatch("turn_1", 1, [b"x"])]))


@needs_postgresql
async def test_a_read_only_server_is_storage_full(postgresql_url: str) -> None:
    def write_read_only(conn: Connection) -> None:
        conn.execute(text("SET TRANSACTION READ ONLY"))
        run_events.append(conn, [run_events.EventBatch("turn_1", 1, [b"x"])])

    database = await Database.open(postgresql_url)
    try:
        with pytest.raises(StorageFull) as failure:
            await database.write(write_read_only)
    finally:
        await database.aclose()
    assert failure.value.reason == "cannot execute INSERT in a read-only transaction"


async def test_durable_commits_are_full_and_others_normal(sqlite: Database) -> None:
    def read_synchronous(conn: Connection) -> int:
        return int(conn.exec_driver_sql("PRAGMA synchronous").scalar_one())

    full, normal = 2, 1  # sqlite.org/pragma.html#pragma_synchronous
    assert await sqlite.write(read_synchronous) == normal
    assert await sqlite.write(read_synchronous, durable=True) == full
    assert await sqlite.write(read_synchronous, durable=True) == full
    assert await sqlite.write(read_synchronous) == normal


@needs_postgresql
async def test_a_lost_server_is_unavailable_and_is_used_again_when_it_returns() -> None:
    with postgresql_server() as server:
        database = await Database.open(server.url)
        try:
            await database.write(_append(1))
            server.stop()  # as after a crash
            with pytest.raises(StorageUnavailable):
                await database.write(_append(2))
            with pytest.raises(StorageUnavailable):
                await database.read(_count)
            server.start()
            assert await database.read(_count) == 1  # a caller whose write was acknowledged has continued
            await database.write(_append(2))
            assert await database.read(_count) == 2
        finally:
            await database.aclose()
