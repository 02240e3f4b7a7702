"""Stateful MCP servers of a shared store: one process runs a domain's, and the next one takes over their data."""

import fcntl
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from sqlalchemy import Connection, update

from agentic_rag.operations.server_affinity import DomainHomes
from agentic_rag.store import leases, replicas
from agentic_rag.store.database import Database
from agentic_rag.testing.scripted import ScriptedModel
from agentic_rag.testing.steps import Step, say, use
from agentic_rag.tools.launch.policy import LaunchPolicy, LiftedRules
from agentic_rag.tools.launch.spec import LaunchSpec
from agentic_rag.tools.status import State
from agentic_rag.tools.toolset import open_toolset
from tests.server.rig import Rig, events_of
from tests.store.conftest import needs_postgresql
from tests.store.test_leases import store
from tests.store.test_several_servers import KEY
from tests.tools.support import QUICK, SERVERS, START, Hub, alive, call, stdio_spec, text_of

__all__ = ["store"]
KEEPING = str(SERVERS / "keeping.py")
PAST = "2000-01-01T00:00:00.000Z"

pytestmark = needs_postgresql


def spec_of_notes(starts: Path) -> LaunchSpec:
    spec = stdio_spec(sys.executable, KEEPING, name="notes", domain="law", env={"KEEPING_STARTS": str(starts)})
    return replace(spec, entry=replace(spec.entry, stateful=True))


@asynccontextmanager
async def join_hub(folder: Path, name: str, database: Database) -> AsyncIterator[Hub]:
    """The hub of one of several processes, which has announced itself to the others."""
    policy = LaunchPolicy(folder / name, lifted=LiftedRules(any_command=True, loopback=True), shared=folder / "shared")
    await database.write(lambda conn: replicas.join(conn, name, name, "1", ""))
    async with Hub(None, policy, patience=QUICK, homes=DomainHomes(database, name)) as hub:
        yield hub
    await database.write(lambda conn: replicas.leave(conn, name))


@pytest.fixture
async def shared(store: str) -> AsyncIterator[Database]:
    database = await Database.open(store)
    try:
        yield database
    finally:
        await database.aclose()


async def keep_text(hub: Hub, spec: LaunchSpec, text: str) -> str:
    connection = (await hub.acquire([spec], START))["notes"]
    if connection.state is State.FAILED:
        return connection.reason
    return text_of(await call(await open_toolset(hub, [spec], wait=START), "notes__keep", timeout=START, text=text))


def pids(starts: Path) -> list[int]:
    """Return the started processes. None of them may have started while another one lived."""
    lines = [line.split() for line in starts.read_text().splitlines()]
    assert {line[2] for line in lines} == {"0"}
    return [int(line[0]) for line in lines]


async def test_a_stateful_server_runs_in_one_process_and_its_state_moves_to_the_next(
    tmp_path: Path, shared: Database
) -> None:
    starts = tmp_path / "starts"
    spec = spec_of_notes(starts)
    async with join_hub(tmp_path, "b", shared) as b:
        async with join_hub(tmp_path, "a", shared) as a:
            assert await keep_text(a, spec, "one") == "one"
            assert "another server" in await keep_text(b, spec, "lost")
            assert await keep_text(a, spec, "two") == "one two"
            assert len(pids(starts)) == 1
        assert not alive(pids(starts)[0])
        assert await keep_text(b, spec, "three") == "one two three"
    assert len(pids(starts)) == 2
    assert await shared.read(lambda conn: leases.find_owner(conn, leases.home_of("law"))) is None


def lock(path: Path) -> int:
    """Hold a lock like a child that a suspended process has left alive."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


async def test_no_second_child_starts_while_one_lives_under_any_lease(tmp_path: Path, shared: Database) -> None:
    starts = tmp_path / "starts"
    spec = spec_of_notes(starts)
    async with join_hub(tmp_path, "a", shared) as a:
        assert await keep_text(a, spec, "one") == "one"
        (file,) = (tmp_path / "shared" / "locks").iterdir()
        with pytest.raises(BlockingIOError):
            lock(file)
    descriptor = lock(file)
    async with join_hub(tmp_path, "b", shared) as b:
        assert "has not ended" in await keep_text(b, spec, "lost")
        os.close(descriptor)
        assert await keep_text(b, spec, "two") == "one two"
    assert len(pids(starts)) == 2


async def test_a_process_that_lost_the_home_lease_ends_its_child_before_the_next_starts(
    tmp_path: Path, shared: Database
) -> None:
    starts = tmp_path / "starts"
    spec = spec_of_notes(starts)
    async with join_hub(tmp_path, "a", shared) as a, join_hub(tmp_path, "b", shared) as b:
        assert await keep_text(a, spec, "one") == "one"
        await shared.write(expire_announcements)
        with anyio.fail_after(START):
            while (answer := await keep_text(b, spec, "two")) != "one two":
                assert "has not ended" in answer
        first_pid, second_pid = pids(starts)
        assert not alive(first_pid)
        assert alive(second_pid)


def expire_announcements(conn: Connection) -> None:
    """Let enough time pass that every announcement of a suspended process has expired."""
    conn.execute(update(leases.LEASES).values(until=PAST))
    conn.execute(update(replicas.REPLICAS).values(heartbeat_at=PAST))


async def test_a_home_server_whose_process_died_is_awaited(tmp_path: Path, shared: Database) -> None:
    def take_home(conn: Connection) -> None:
        assert leases.take(conn, leases.home_of("law"), "dead", 3.0)

    await shared.write(take_home)
    async with join_hub(tmp_path, "a", shared) as a:
        assert await keep_text(a, spec_of_notes(tmp_path / "starts"), "one") == "one"


def settings(starts: Path) -> dict[str, Any]:
    server = {"command": sys.executable, "args": [KEEPING], "stateful": True}
    env = {"KEEPING_STARTS": {"value": str(starts), "secret": False}}
    return {"mcpServers": {"notes": {**server, "env": env}}, "toolPolicy": {"*": "allow"}}


def call_keep(text: str) -> Step:
    return use("notes__keep", text=text)


async def test_a_turn_runs_at_its_domains_home_server(tmp_path: Path, store: str) -> None:
    starts = tmp_path / "starts"
    options: dict[str, Any] = {"database_url": store, "secret_key": KEY, "data": tmp_path / "data"}
    steps = [step for text in ("one", "two", "three") for step in (call_keep(text), say(f"A {text}."))]
    a = Rig(tmp_path, *steps, any_command=True, local=tmp_path / "a", **options)
    b = Rig(tmp_path, instead=ScriptedModel(then=say("B.")), any_command=True, local=tmp_path / "b", **options)
    async with a, b:
        domain = await a.domain(**settings(starts))
        conversations = [await a.conversation(domain) for _ in range(2)]
        assert (await a.say(conversations[0], "Keep one"))[-1]["type"] == "done"
        events = await b.say(conversations[1], "Keep two")
        results = [event for event in events if event["type"] == "tool_result"]
        assert "one two" in str(results)
        retry_path = f"/api/conversations/{conversations[1]}/messages/{events[0]['userMessageId']}/retry"
        retried = await b.http.post(retry_path, json={})
        results = [event for event in events_of(retried.text) if event["type"] == "tool_result"]
        assert "one two three" in str(results)
        for server in (a, b):
            path = f"/api/conversations/{conversations[1]}/messages"
            contents = [item["content"] for item in (await server.ok("GET", path))["items"]]
            assert "A three." in str(contents)
            assert "A two." not in str(contents)
        unassigned = await b.conversation()
        assert "B." in str(await b.say(unassigned, "Hi"))  # a domain without servers has no home
    assert len(pids(starts)) == 1
