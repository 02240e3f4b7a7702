"""The servers of one database: their members, and the uniqueness of their names."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import update

from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.base.workers import Workers
from agentic_rag.operations.members import Members
from agentic_rag.store import replicas
from agentic_rag.store.database import Database
from agentic_rag.store.database_time import DatabaseTime

from .conftest import needs_postgresql
from .test_leases import store

__all__ = ["store"]
pytestmark = needs_postgresql


@pytest.fixture
async def database(store: str) -> AsyncIterator[Database]:
    database = await Database.open(store)
    try:
        yield database
    finally:
        await database.aclose()


def make_members(database: Database, name: str, run: str) -> Members:
    return Members(database, name, run)


async def test_cluster_members_see_each_other_until_they_leave(database: Database) -> None:
    a, b = make_members(database, "a", "run_1"), make_members(database, "b", "run_2")
    await a.join()
    await b.join()
    b.locate("http://b.example")
    await b.tell_leaving()
    members = await a.list_alive()
    assert [(record.id, record.own, record.leaving) for record in members] == [
        ("a", True, False),
        ("b", False, True),
    ]
    assert members[1].address == "http://b.example"
    await b.leave()
    assert [record.id for record in await a.list_alive()] == ["a"]


async def test_a_name_in_use_by_a_running_server_is_refused(database: Database) -> None:
    holder = make_members(database, "a", "run_1")
    await holder.join()
    async with Workers() as workers:
        workers.start("the heartbeat", holder.run)
        with pytest.raises(BadConfiguration, match="AGENTIC_RAG_REPLICA"):
            await make_members(database, "a", "run_2").join()
    assert [record.own for record in await holder.list_alive()] == [True]


async def test_the_name_of_a_killed_server_is_free_for_its_next_start(database: Database) -> None:
    killed = make_members(database, "a", "run_1")
    await killed.join()
    restarted = make_members(database, "a", "run_2")
    await restarted.join()
    assert [record.own for record in await restarted.list_alive()] == [True]
    await killed.beat()  # it was only suspended, so the name stays the other's
    assert [record.own for record in await restarted.list_alive()] == [True]


async def test_a_returning_server_gets_its_name_again(database: Database) -> None:
    returning = make_members(database, "a", "run_1")
    await returning.join()
    long_ago = update(replicas.REPLICAS).values(heartbeat_at=DatabaseTime(-60.0))
    await database.write(lambda conn: conn.execute(long_ago).close())
    await database.write(lambda conn: replicas.prune(conn, 30.0))
    assert await returning.list_alive() == []
    await returning.beat()
    assert [record.id for record in await returning.list_alive()] == ["a"]


async def test_a_server_without_a_name_creates_one(database: Database) -> None:
    assert make_members(database, "", "run_1").name != make_members(database, "", "run_2").name
