"""A store that refuses writes in the middle of a turn: the turn waits, its readers are notified, and it ends once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from sqlalchemy import Connection

from agentic_rag.base.errors import StorageFull
from agentic_rag.base.events import AgentEvent
from agentic_rag.base.ids import ConversationId, TurnId
from agentic_rag.runtime.log.runlog import EPOCH
from agentic_rag.store import run_events, run_groups, sessions, turns
from agentic_rag.store.database import Database
from agentic_rag.store.sessions import SessionLabels
from agentic_rag.store.turns import TurnStatus
from agentic_rag.testing.scripted import Scripted, ScriptedModel, Stalled
from agentic_rag.testing.steps import Say, Step, say, use
from agentic_rag.tools.base import CallOutcome, CallRequest
from tests.databases import POSTGRESQL, database_at
from tests.runtime.harness import SESSION, Bench, Disk, MemoryToolset, bench, definition, info, kinds, ok, text_of

PATIENCE = 240


class Tools:
    """A tool with effects that counts its runs, and can be blocked."""

    def __init__(self) -> None:
        self.run_count = 0

    async def spend(self, request: CallRequest) -> CallOutcome:
        self.run_count += 1
        return ok("spent")

    def toolset(self) -> MemoryToolset:
        return MemoryToolset({"spend": (info("spend"), self.spend)})


def steps() -> list[Scripted]:
    return [use("spend", query="it"), say("It is spent.")]


@asynccontextmanager
async def open_full_disk(
    folder: Path, model: ScriptedModel, tools: Tools | None = None
) -> AsyncIterator[tuple[Bench, Disk]]:
    database = await Database.open(database_at(folder / "test.db"))
    disk = Disk(database)

    def create(conn: Connection) -> None:
        if sessions.get(conn, SESSION) is None:
            sessions.create(conn, SESSION, SessionLabels(conversation_id=ConversationId("c")), created_at="2026")

    try:
        await database.write(create)
        async with bench(folder, model, (tools or Tools()).toolset(), database=disk) as b:
            yield b, disk
    finally:
        with anyio.CancelScope(shield=True):
            await database.aclose()


async def read_events(b: Bench, turn_id: str, received: list[AgentEvent], last_type: str = "") -> None:
    async for event in b.runtime.follow(TurnId(turn_id)):
        received.append(event)
        if event.type == last_type:
            return


async def test_a_message_that_the_store_refuses_causes_no_call_of_the_model(tmp_path: Path) -> None:
    async with ScriptedModel(say("Hello."), say("Again.")) as model, open_full_disk(tmp_path, model) as (b, disk):
        await b.say("Hi")
        disk.fill()
        with pytest.raises(StorageFull):
            await b.send("Are you there?")
        await anyio.wait_all_tasks_blocked()
        assert len(model.requests) == 1
        disk.clear()
        assert text_of(await b.say("Are you there?")) == "Again."
        assert len(model.requests) == 2


async def test_the_first_delta_waits_for_no_commit_after_the_acceptance(tmp_path: Path) -> None:
    async with ScriptedModel(say("Hello."), say("Again.")) as model, open_full_disk(tmp_path, model) as (b, disk):
        await b.say("Hi")
        accepted = await b.send("Are you there?")
        disk.fill()
        events: list[AgentEvent] = []
        with anyio.fail_after(PATIENCE):
            await read_events(b, accepted.turn_id, events, "text")
            assert kinds([event for event in events if event.seq]) == ["turn_started", "iteration_start", "text"]
            disk.clear()
            assert [event.type async for event in b.runtime.follow(accepted.turn_id)][-1] == "done"


def check_events(events: list[AgentEvent]) -> list[AgentEvent]:
    """Check the events of one reader; return the numbered ones."""
    numbered_events = [event for event in events if event.seq]
    assert [event.seq for event in numbered_events] == sorted({event.seq for event in numbered_events})
    assert [event.terminal for event in numbered_events].count(True) <= 1
    assert not any(event.terminal for event in numbered_events[:-1])
    return numbered_events


@pytest.mark.parametrize("full_at", range(1, 9))
@pytest.mark.parametrize("refusals", [1, 2])
async def test_a_disk_that_is_full_at_any_write_only_delays_the_turn(
    tmp_path: Path, full_at: int, refusals: int
) -> None:
    tools = Tools()
    async with open_full_disk(tmp_path, ScriptedModel(*steps(), strict=False), tools) as (b, disk):
        accepted = await b.send("Spend", definition())
        disk.fill(refusals, full_at)
        events: list[AgentEvent] = []
        with anyio.fail_after(PATIENCE):
            await read_events(b, accepted.turn_id, events)
        numbered_events = check_events(events)
        assert [event.seq for event in numbered_events] == list(range(1, len(numbered_events) + 1))
        assert kinds(numbered_events)[-1] == "done"
        notices = [event for event in events if not event.seq]
        assert all(event.fields()["code"] == "STORAGE_STALLED" for event in notices)
        assert disk.refusals == refusals or notices, "the reader was not told"
        assert tools.run_count == 1
        stored_events = [event async for event in b.runtime.follow(accepted.turn_id)]
        assert [event.data for event in stored_events] == [event.data for event in numbered_events]
        assert [turn.id for turn, _ in b.ended_turns] == [accepted.turn_id]


async def test_no_terminal_event_is_visible_before_it_is_synced(tmp_path: Path) -> None:
    async with open_full_disk(tmp_path, ScriptedModel(say("Hello."))) as (b, disk):
        events = await b.say("Hi")
        assert events[-1].type == "done"
        assert disk.durable[-1], "the terminal event's commit was not synced"


async def test_a_turn_stopped_while_its_end_is_refused_has_one_end_and_no_later_effect(
    tmp_path: Path,
) -> None:
    tools = Tools()
    first_events: list[AgentEvent] = []
    async with open_full_disk(tmp_path, ScriptedModel(*steps(), strict=False), tools) as (b, disk):
        accepted = await b.send("Spend", definition())
        disk.fill()
        with anyio.fail_after(PATIENCE):
            await read_events(b, accepted.turn_id, first_events, last_type="notice")
    assert not any(event.terminal for event in check_events(first_events)), "an end was told that nothing had stored"
    async with open_full_disk(tmp_path, ScriptedModel(*steps()), tools) as (b, disk):
        assert await b.runtime.recover() == 1
        events: list[AgentEvent] = []
        with anyio.fail_after(PATIENCE):
            await read_events(b, accepted.turn_id, events)
    check_events(events)
    data_by_seq = {event.seq: event.data for event in first_events if event.seq}
    assert all(data_by_seq.get(event.seq, event.data) == event.data for event in events), "a number means two events"
    assert tools.run_count == 1


async def test_a_message_is_refused_while_the_previous_turns_end_cannot_be_stored(tmp_path: Path) -> None:
    async with open_full_disk(tmp_path, ScriptedModel(say("One."), say("Two."))) as (b, disk):
        accepted = await b.send("A", definition())
        disk.fill()
        events: list[AgentEvent] = []
        with anyio.fail_after(PATIENCE):
            await read_events(b, accepted.turn_id, events, last_type="notice")
            with pytest.raises(StorageFull):
                await b.send("B", definition(), client_message_id="m2")
            assert await b.turn(accepted.turn_id) is not None
            disk.clear()
            await read_events(b, accepted.turn_id, events)
            repeated = await b.send("B", definition(), client_message_id="m2")
            assert not repeated.duplicate
            assert text_of([event async for event in b.runtime.follow(repeated.turn_id)]) == "Two."


async def test_an_interrupt_without_a_store_ends_the_turn_when_it_returns(tmp_path: Path) -> None:
    tools = Tools()
    async with open_full_disk(tmp_path, ScriptedModel(*steps(), strict=False), tools) as (b, disk):
        accepted = await b.send("Spend", definition())
        disk.fill()
        events: list[AgentEvent] = []
        with anyio.fail_after(PATIENCE):
            await read_events(b, accepted.turn_id, events, last_type="notice")
            assert await b.runtime.interrupt(SESSION)
            disk.clear()
            await read_events(b, accepted.turn_id, events)
        assert events[-1].type == "interrupted"
        assert tools.run_count == 0, "an effect began after the interrupt"
        assert (await b.turn(accepted.turn_id)).status is TurnStatus.INTERRUPTED


async def test_a_stop_while_the_store_refuses_leaves_the_turn_to_the_next_start(tmp_path: Path) -> None:
    async with open_full_disk(tmp_path, ScriptedModel(say("Lost."))) as (b, disk):
        accepted = await b.send("Hi", definition())
        disk.fill()
        with anyio.fail_after(PATIENCE):
            await disk.refused.wait()
    async with open_full_disk(tmp_path, ScriptedModel(say("Found."))) as (b, disk):
        assert (await b.turn(accepted.turn_id)).status is TurnStatus.RUNNING
        assert await b.runtime.recover() == 1
        with anyio.fail_after(PATIENCE):
            events = [event async for event in b.runtime.follow(accepted.turn_id)]
        assert kinds(events)[-1] == "done"


async def test_event_numbers_lost_by_a_power_failure_are_not_reused(tmp_path: Path) -> None:
    """Groups of deltas are not synced, so after a power failure the log may end at the last durable commit."""
    long_step = Stalled(Step((Say("x" * 4000, pieces=("x" * 20,) * 200),)), 150)
    async with ScriptedModel(long_step) as model, bench(tmp_path, model) as b:
        accepted = await b.send("A", definition())
        received: list[AgentEvent] = []
        with anyio.fail_after(PATIENCE):
            async for event in b.runtime.follow(accepted.turn_id):
                received.append(event)
                if len(received) == 120:
                    break
    database = await Database.open(database_at(tmp_path / "test.db"))
    # PostgreSQL stores events as rows immediately
    assert await database.write(run_groups.settle) or POSTGRESQL, "no group was stored"
    later_rows = run_events.RUN_EVENTS.c.first_seq > 1
    await database.write(lambda conn: conn.execute(run_events.RUN_EVENTS.delete().where(later_rows)).close())
    await database.aclose()
    async with ScriptedModel(say("Whole.")) as model, bench(tmp_path, model) as b:
        await b.runtime.recover()
        with anyio.fail_after(PATIENCE):
            events = [event async for event in b.runtime.follow(accepted.turn_id)]
        data_by_seq = {event.seq: event.data for event in received}
        assert all(data_by_seq.get(event.seq, event.data) == event.data for event in events), (
            "a number means two events"
        )
        (resumed_event,) = [event for event in events if event.type == "resumed"]
        assert resumed_event.fields()["voids"] == [3, EPOCH], "the events stored with the turn survive"


async def test_a_new_owners_event_epoch_is_durable_before_its_first_event(tmp_path: Path) -> None:
    """The fence of an epoch is synced. Otherwise two starts with a power failure between them would share an epoch."""
    slow_step = Stalled(say("One two."), 1)
    async with ScriptedModel(slow_step) as model, bench(tmp_path, model) as b:
        accepted = await b.send("A", definition())
        await slow_step.reached.wait()
    async with open_full_disk(tmp_path, ScriptedModel(say("Whole."))) as (b, disk):
        assert await b.runtime.recover() == 1
        assert disk.durable[0], "the resume was not synced"
        with anyio.fail_after(PATIENCE):
            events = [event async for event in b.runtime.follow(accepted.turn_id)]
        assert kinds(events)[-1] == "done"
        assert await b.database.read(lambda conn: turns.list_running(conn)) == []
