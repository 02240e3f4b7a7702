"""Jobs that only one of several servers runs at a time."""

import anyio
import pytest
from sqlalchemy import update

from agentic_rag.operations.exclusive_jobs import ExclusiveJobs
from agentic_rag.store.database import Database
from agentic_rag.store.leases import LEASES

from .conftest import needs_postgresql
from .test_leases import store
from .test_members import database as shared

__all__ = ["shared", "store"]
PATIENCE = 240
LONG_AGO = "2000-01-01T00:00:00.000Z"


async def nothing() -> None:
    pass


async def test_a_single_process_runs_the_job(sqlite: Database) -> None:
    done: list[str] = []

    async def work() -> None:
        done.append("x")

    for owner in ("a", "b"):
        await ExclusiveJobs(sqlite, owner).run("looking", work, 3600)
    assert done == ["x", "x"]


@needs_postgresql
async def test_one_of_two_servers_runs_a_job_once_per_interval(shared: Database) -> None:
    a, b = ExclusiveJobs(shared, "a"), ExclusiveJobs(shared, "b")
    began, may_end = anyio.Event(), anyio.Event()
    done: list[str] = []

    async def slow() -> None:
        began.set()
        await may_end.wait()
        done.append("a")

    async def other() -> None:
        done.append("b")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(a.run, "looking", slow, 3600)
        with anyio.fail_after(PATIENCE):
            await began.wait()
        await b.run("looking", other)
        await b.run("something else", nothing)
        may_end.set()
    await b.run("looking", other)
    await a.run("looking", other)
    assert done == ["a"]
    await shared.write(lambda conn: conn.execute(update(LEASES).values(until=LONG_AGO)).close())
    await b.run("looking", other)
    assert done == ["a", "b"]


@needs_postgresql
async def test_a_job_that_failed_is_free_at_once(shared: Database) -> None:
    async def fail() -> None:
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        await ExclusiveJobs(shared, "a").run("looking", fail, 3600)
    done: list[str] = []

    async def work() -> None:
        done.append("b")

    await ExclusiveJobs(shared, "b").run("looking", work)
    assert done == ["b"]


@needs_postgresql
async def test_a_server_that_lost_a_job_stops_it(shared: Database) -> None:
    began = anyio.Event()

    async def work() -> None:
        began.set()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ExclusiveJobs(shared, "a", renew=0.05).run, "looking", work)
        with anyio.fail_after(PATIENCE):
            await began.wait()
            await shared.write(lambda conn: conn.execute(update(LEASES).values(owner="b")).close())
    done: list[str] = []

    async def other() -> None:
        done.append("b")

    await ExclusiveJobs(shared, "b").run("looking", other)
    assert done == ["b"]
