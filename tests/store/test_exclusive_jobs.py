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


async def do_nothing() -> None:
    pass


async def test_a_single_process_runs_the_job(sqlite: Database) -> None:
    runs: list[str] = []

    async def work() -> None:
        runs.append("x")

    for owner in ("a", "b"):
        await ExclusiveJobs(sqlite, owner).run("looking", work, 3600)
    assert runs == ["x", "x"]


@needs_postgresql
async def test_one_of_two_servers_runs_a_job_once_per_interval(shared: Database) -> None:
    a, b = ExclusiveJobs(shared, "a"), ExclusiveJobs(shared, "b")
    has_started, may_end = anyio.Event(), anyio.Event()
    runners: list[str] = []

    async def work_slowly() -> None:
        has_started.set()
        await may_end.wait()
        runners.append("a")

    async def work() -> None:
        runners.append("b")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(a.run, "looking", work_slowly, 3600)
        with anyio.fail_after(PATIENCE):
            await has_started.wait()
        await b.run("looking", work)
        await b.run("something else", do_nothing)
        may_end.set()
    await b.run("looking", work)
    await a.run("looking", work)
    assert runners == ["a"]
    await shared.write(lambda conn: conn.execute(update(LEASES).values(until=LONG_AGO)).close())
    await b.run("looking", work)
    assert runners == ["a", "b"]


@needs_postgresql
async def test_a_job_that_failed_is_free_at_once(shared: Database) -> None:
    async def fail() -> None:
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        await ExclusiveJobs(shared, "a").run("looking", fail, 3600)
    runners: list[str] = []

    async def work() -> None:
        runners.append("b")

    await ExclusiveJobs(shared, "b").run("looking", work)
    assert runners == ["b"]


@needs_postgresql
async def test_a_server_that_lost_a_job_stops_it(shared: Database) -> None:
    has_started = anyio.Event()

    async def work_forever() -> None:
        has_started.set()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ExclusiveJobs(shared, "a", renew=0.05).run, "looking", work_forever)
        with anyio.fail_after(PATIENCE):
            await has_started.wait()
            await shared.write(lambda conn: conn.execute(update(LEASES).values(owner="b")).close())
    runners: list[str] = []

    async def work() -> None:
        runners.append("b")

    await ExclusiveJobs(shared, "b").run("looking", work)
    assert runners == ["b"]
