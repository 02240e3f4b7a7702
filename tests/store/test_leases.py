"""Servers that share a PostgreSQL database.

A live server keeps its turns, another server resumes those of a dead one, and a server that was only suspended writes
nothing more.
"""

from pathlib import Path

import anyio
import pytest
from sqlalchemy import update

from agentic_rag.base.errors import TurnInProgress
from agentic_rag.base.events import AgentEvent
from agentic_rag.base.ids import TurnId
from agentic_rag.runtime.log.runlog import EPOCH
from agentic_rag.store import run_events, turns
from agentic_rag.store.database import Database
from agentic_rag.testing.scripted import ScriptedModel, Stalled
from agentic_rag.testing.steps import Say, Step, say, use
from agentic_rag.tools.base import CallOutcome, CallRequest
from tests.runtime.harness import SESSION, Bench, bench, definition, kinds, text_of, toolset
from tests.runtime.test_waits import ASKING, answer, echo, open_waits, wait_for_suspension

from .conftest import delete_rows, needs_postgresql

pytestmark = needs_postgresql
PATIENCE = 240
LONG_STEP = Step((Say("x" * 4000, pieces=("x" * 10,) * 400),))


@pytest.fixture
async def store(postgresql_url: str) -> str:
    """Address of an empty database."""
    database = await Database.open(postgresql_url)
    try:
        await database.write(delete_rows)
    finally:
        await database.aclose()
    return postgresql_url


async def expire(b: Bench) -> None:
    """Let enough time pass that every lease has expired."""
    expire_all = update(turns.TURNS).values(lease_until="2000-01-01T00:00:00.000Z")
    await b.database.write(lambda conn: conn.execute(expire_all).close())


async def take_over(a: Bench, b: Bench) -> None:
    """Let the leases of ``a`` expire until ``b`` claims its turn, because ``a`` may renew them in between."""
    with anyio.fail_after(PATIENCE):
        await expire(a)
        while (claimed := await b.runtime.recover()) == 0:
            await expire(a)
    assert claimed == 1


async def listen(b: Bench, turn_id: str) -> list[AgentEvent]:
    with anyio.fail_after(PATIENCE):
        return [event async for event in b.runtime.follow(TurnId(turn_id))]


async def test_a_second_server_leaves_the_turns_of_a_running_one(tmp_path: Path, store: str) -> None:
    slow = Stalled(say("One two three."), 1)
    async with (
        ScriptedModel(slow, say("Second.")) as first_model,
        ScriptedModel() as second_model,
        bench(tmp_path, first_model, store=store) as a,
        bench(tmp_path, second_model, store=store) as b,
    ):
        running = await a.send("Hi", definition())
        await slow.reached.wait()
        queued = await a.send("And?", definition(), on_busy="queue")
        assert await b.runtime.recover() == 0
        with pytest.raises(TurnInProgress):
            await b.send("Me too", definition())
        slow.until.set()
        assert kinds(await listen(a, running.turn_id))[-1] == "done"
        assert text_of(await listen(a, queued.turn_id)) == "Second."
        assert [(await a.turn(turn.turn_id)).fence for turn in (running, queued)] == [1, 1]


async def test_a_dead_servers_turns_are_taken_after_their_lease(tmp_path: Path, store: str) -> None:
    slow = Stalled(LONG_STEP, 100)
    async with (
        ScriptedModel(slow) as first_model,
        ScriptedModel(say("Whole."), say("Second.")) as second_model,
        bench(tmp_path, first_model, store=store) as a,
        bench(tmp_path, second_model, store=store) as b,
    ):
        running = await a.send("Hi", definition())
        await slow.reached.wait()
        queued = await a.send("And?", definition(), on_busy="queue")
        assert await b.runtime.recover() == 0
        await take_over(a, b)
        events = await listen(b, running.turn_id)
        assert (kinds(events)[-1], text_of(events[kinds(events).index("step_reset") :])) == ("done", "Whole.")
        assert text_of(await listen(b, queued.turn_id)) == "Second."
        # it was only suspended, and continues: its buffered events are more than the journal accepts without a commit
        slow.until.set()
        old_events = await listen(a, running.turn_id)
        own_events = [event for event in old_events if event.seq < EPOCH]
        assert own_events
        assert not any(event.terminal for event in own_events)
        # a reader here continues there
        assert old_events[len(own_events) :] == [event for event in events if event.seq > EPOCH]
        stored_rows = await b.database.read(lambda conn: run_events.read(conn, running.turn_id, 0, 10_000))
        assert [seq for seq, _ in stored_rows] == [event.seq for event in events]
        assert a.ended_turns == []
        assert len(b.ended_turns) == 2


async def test_a_dead_servers_reservation_does_not_block_its_resumed_turn(tmp_path: Path, store: str) -> None:
    slow = Stalled(LONG_STEP, 100)
    async with (
        ScriptedModel(slow) as first_model,
        ScriptedModel(say("Whole.")) as second_model,
        bench(tmp_path, first_model, store=store, hard="10") as a,
        bench(tmp_path, second_model, store=store, hard="10") as b,
    ):
        running = await a.send("Hi", definition())
        await slow.reached.wait()
        (reservation,) = await a.read_reservations()
        await take_over(a, b)
        assert reservation not in await b.read_reservations()
        events = await listen(b, running.turn_id)
        assert (kinds(events)[-1], text_of(events[kinds(events).index("step_reset") :])) == ("done", "Whole.")
        assert await b.read_reservations() == []


async def test_a_server_that_loses_a_turn_releases_its_budget_reservation(tmp_path: Path, store: str) -> None:
    slow = Stalled(say("One two three."), 1)
    async with ScriptedModel(slow) as model, bench(tmp_path, model, store=store, hard="10") as a:
        running = await a.send("Hi", definition())
        await slow.reached.wait()
        assert len(await a.read_reservations()) == 1
        await a.database.write(lambda conn: turns.take_lease(conn, running.turn_id, "other"))
        session = await a.runtime.session(SESSION)
        with anyio.fail_after(PATIENCE):
            await a.runtime.renew_leases()
            while session.running:
                await session.change()
        assert await a.read_reservations() == []


async def test_a_stopping_server_releases_the_budget_of_its_calls(tmp_path: Path, store: str) -> None:
    slow = Stalled(say("One two three."), 1)
    async with ScriptedModel() as second_model, bench(tmp_path, second_model, store=store) as b:
        async with ScriptedModel(slow) as first_model, bench(tmp_path, first_model, store=store, hard="10") as a:
            await a.send("Hi", definition())
            await slow.reached.wait()
            assert len(await b.read_reservations()) == 1
        assert await b.read_reservations() == []


async def test_an_owner_that_renews_keeps_its_turn_and_one_that_lost_it_ends_its_calls(
    tmp_path: Path, store: str
) -> None:
    has_started, is_cancelled = anyio.Event(), anyio.Event()

    async def call_forever(request: CallRequest) -> CallOutcome:
        has_started.set()
        try:
            await anyio.sleep_forever()
        finally:
            is_cancelled.set()
        raise AssertionError("slept for ever")

    async with (
        ScriptedModel(use("look", query="x")) as first_model,
        ScriptedModel(say("Not known.")) as second_model,
        bench(tmp_path, first_model, toolset(look=call_forever), store=store) as a,
        bench(tmp_path, second_model, toolset(look=call_forever), store=store) as b,
    ):
        running = await a.send("Hi", definition())
        await has_started.wait()
        await expire(a)
        await a.runtime.renew_leases()
        assert await b.runtime.recover() == 0
        await take_over(a, b)
        assert kinds(await listen(b, running.turn_id))[-1] == "done"
        assert not is_cancelled.is_set()
        await a.runtime.renew_leases()
        with anyio.fail_after(PATIENCE):
            await is_cancelled.wait()
        assert kinds(await listen(a, running.turn_id))[-1] == "done"
        assert a.ended_turns == []


async def test_a_suspended_turn_is_taken_by_another_server_at_once(tmp_path: Path, store: str) -> None:
    slow = Stalled(say("One two three."), 1)
    async with (
        ScriptedModel(say("Whole."), say("Second.")) as second_model,
        bench(tmp_path, second_model, store=store) as b,
    ):
        async with ScriptedModel(slow) as first_model, bench(tmp_path, first_model, store=store) as a:
            running = await a.send("Hi", definition())
            await slow.reached.wait()
            queued = await a.send("And?", definition(), on_busy="queue")
        await b.runtime.recover()  # unless it has been notified before
        assert kinds(await listen(b, running.turn_id))[-1] == "done"
        assert text_of(await listen(b, queued.turn_id)) == "Second."
        assert (await b.turn(running.turn_id)).resumes == 0


async def test_two_servers_polling_at_once_take_each_turn_once(tmp_path: Path, store: str) -> None:
    slow = Stalled(say("One two three."), 1)
    async with (
        ScriptedModel(say("Whole.")) as second_model,
        bench(tmp_path, second_model, store=store) as b,
        bench(tmp_path, second_model, store=store) as c,
    ):
        async with ScriptedModel(slow) as first_model, bench(tmp_path, first_model, store=store) as a:
            running = await a.send("Hi", definition())
            await slow.reached.wait()
        claims: list[int] = []

        async def recover(server: Bench) -> None:
            claims.append(await server.runtime.recover())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(recover, b)
            tasks.start_soon(recover, c)
        assert sum(claims) <= 1, "one of them may have heard of it before it looked"
        assert kinds(await listen(b, running.turn_id))[-1] == "done"
        assert len(second_model.requests) == 1


async def test_a_waiting_turn_that_ended_on_another_server_is_released(tmp_path: Path, store: str) -> None:
    async with (
        ScriptedModel(use("write", query="a"), say("Next.")) as first_model,
        ScriptedModel(say("Written.")) as second_model,
        bench(tmp_path, first_model, toolset(write=echo), store=store) as a,
    ):
        running = await a.send("Write it.", definition(**ASKING))
        (wait,) = await open_waits(a)
        await wait_for_suspension(a, running)
        queued = await a.send("And then?", definition(**ASKING), on_busy="queue")
        followed: list[AgentEvent] = []

        async def follow() -> None:
            followed.extend(await listen(a, running.turn_id))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            async with bench(tmp_path, second_model, toolset(write=echo), store=store) as b:
                await answer(b, wait)
                answered = await listen(b, running.turn_id)
            await a.runtime.recover()
        assert kinds(followed)[-1] == "done"
        assert followed == answered
        assert text_of(await listen(a, queued.turn_id)) == "Next."
