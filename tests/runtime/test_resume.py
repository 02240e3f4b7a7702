"""A server stops in the middle of a turn, and the next one resumes or ends the turn."""

from pathlib import Path

import anyio
from sqlalchemy import update

from agentic_rag.runtime.core.definition import Limits
from agentic_rag.runtime.log.runlog import EPOCH
from agentic_rag.runtime.session import MAX_RESUMES
from agentic_rag.store import turns
from agentic_rag.store.database import Database
from agentic_rag.testing.scripted import ScriptedModel, Stalled
from agentic_rag.testing.steps import Say, Step, Use, say, use
from agentic_rag.tools.base import CallOutcome, CallRequest
from tests.databases import database_at
from tests.runtime.harness import bench, definition, kinds, ok, text_of, toolset


async def run_for_ever(request: CallRequest) -> CallOutcome:
    await anyio.sleep_forever()
    raise AssertionError("slept for ever")


async def answer_quickly(request: CallRequest) -> CallOutcome:
    return ok("quick result")


async def test_a_turn_stopped_in_a_step_repeats_that_step(tmp_path: Path) -> None:
    slow_step = Stalled(say("One two three four."), 3)
    async with ScriptedModel(slow_step) as model, bench(tmp_path, model) as b:
        accepted = await b.send("A", definition())
        await slow_step.reached.wait()
    async with ScriptedModel(say("Whole.")) as model, bench(tmp_path, model) as b:
        assert await b.runtime.recover() == 1
        with anyio.fail_after(240):
            events = [event async for event in b.runtime.follow(accepted.turn_id)]
        assert kinds(events)[-1] == "done"
        resumed_event = next(event for event in events if event.type == "resumed")
        first_void, last_void = resumed_event.fields()["voids"]
        assert last_void == resumed_event.seq - 1
        assert last_void == EPOCH, "each owner numbers in an epoch of its own"
        assert not [event for event in events if first_void <= event.seq <= last_void]
        reset_index = kinds(events).index("step_reset")
        assert text_of(events[reset_index:]) == "Whole."
        transcript = await b.transcript()
        assert transcript[-1]["content"] == [{"type": "text", "text": "Whole."}]


async def test_finished_calls_keep_their_results_and_unsafe_ones_are_not_repeated(tmp_path: Path) -> None:
    step = Step((Use("quick", {"query": "a"}), Use("never", {"query": "b"}), Use("search_documents", {"query": "c"})))
    first_tools = toolset(quick=answer_quickly, never=run_for_ever, search_documents=run_for_ever)
    async with ScriptedModel(step) as model, bench(tmp_path, model, first_tools) as b:
        accepted = await b.send("A", definition())
        with anyio.fail_after(240):
            async for event in b.runtime.follow(accepted.turn_id):
                if event.type == "tool_result":
                    break
    second_tools = toolset(quick=run_for_ever, never=answer_quickly, search_documents=answer_quickly)
    async with ScriptedModel(say("Done.")) as model, bench(tmp_path, model, second_tools) as b:
        await b.runtime.recover()
        with anyio.fail_after(240):
            events = [event async for event in b.runtime.follow(accepted.turn_id)]
        assert [request.tool.name for request in second_tools.requests] == ["search_documents"]
        assert kinds(events).count("tool_result") == 3
        assert kinds(events).count("step_reset") == 0
        results = {block["tool_use_id"]: block["content"][0]["text"] for block in (await b.transcript())[2]["content"]}
        assert list(results.values()) == [
            "quick result",
            "outcome unknown: the server stopped while this ran",
            "quick result",
        ]
        assert kinds(events)[-1] == "done"


async def test_a_queued_message_survives_a_restart(tmp_path: Path) -> None:
    slow_step = Stalled(say("One two three."), 1)
    async with ScriptedModel(slow_step) as model, bench(tmp_path, model) as b:
        await b.send("A", definition())
        await slow_step.reached.wait()
        queued_turn = await b.send("B", definition(), on_busy="queue")
    async with ScriptedModel(say("To A."), say("To B.")) as model, bench(tmp_path, model) as b:
        await b.runtime.recover()
        with anyio.fail_after(240):
            events = [event async for event in b.runtime.follow(queued_turn.turn_id)]
        assert text_of(events) == "To B."


async def kill(folder: Path) -> None:
    """Make the previous stop look like a kill, in which no turn was suspended."""
    database = await Database.open(database_at(folder / "test.db"))
    try:
        change_owner = update(turns.TURNS).where(turns.TURNS.c.status == "running").values(owner="run_dead")
        await database.write(lambda conn: conn.execute(change_owner).close())
    finally:
        await database.aclose()


async def test_deliberate_stops_do_not_count_as_resumes(tmp_path: Path) -> None:
    accepted = None
    for _ in range(6):
        slow_step = Stalled(say("One two three."), 1)
        async with ScriptedModel(slow_step) as model, bench(tmp_path, model) as b:
            if accepted is None:
                accepted = await b.send("A", definition())
            else:
                await b.runtime.recover()
            await slow_step.reached.wait()
    assert accepted is not None
    async with ScriptedModel(say("Fine.")) as model, bench(tmp_path, model) as b:
        await b.runtime.recover()
        with anyio.fail_after(240):
            events = [event async for event in b.runtime.follow(accepted.turn_id)]
        assert events[-1].type == "done"


async def test_a_turn_that_makes_progress_after_each_kill_is_not_abandoned(tmp_path: Path) -> None:
    tools = toolset(quick=answer_quickly)
    accepted = None
    settings = definition(limits=Limits(max_steps=20))
    for _ in range(6):
        slow_step = Stalled(say("One two three."), 1)
        async with ScriptedModel(use("quick", query="x"), slow_step) as model, bench(tmp_path, model, tools) as b:
            if accepted is None:
                accepted = await b.send("A", settings)
            else:
                await b.runtime.recover()
            await slow_step.reached.wait()
        await kill(tmp_path)
    assert accepted is not None
    async with ScriptedModel(say("Fine.")) as model, bench(tmp_path, model, tools) as b:
        await b.runtime.recover()
        with anyio.fail_after(240):
            events = [event async for event in b.runtime.follow(accepted.turn_id)]
        assert events[-1].type == "done"
        assert events[-1].fields().get("code") is None


async def test_readers_are_notified_of_a_shutdown(tmp_path: Path) -> None:
    slow_step = Stalled(say("One two three."), 1)
    async with ScriptedModel(slow_step) as model, bench(tmp_path, model) as b:
        accepted = await b.send("A", definition())
        await slow_step.reached.wait()
        assert await b.runtime.drain(0) == 1
        with anyio.fail_after(240):
            events = [event async for event in b.runtime.follow(accepted.turn_id)]
        assert (events[-1].type, events[-1].seq) == ("notice", 0)
        assert events[-1].fields()["code"] == "SERVER_STOPPING"
        assert not any(event.terminal for event in events)


async def test_a_turn_that_is_killed_repeatedly_is_abandoned(tmp_path: Path) -> None:
    accepted = None
    for _ in range(MAX_RESUMES + 1):
        slow_step = Stalled(say("One two three."), 1)
        async with ScriptedModel(slow_step) as model, bench(tmp_path, model) as b:
            if accepted is None:
                accepted = await b.send("A", definition())
            else:
                await b.runtime.recover()
            await slow_step.reached.wait()
        await kill(tmp_path)
    assert accepted is not None
    async with ScriptedModel(say("Fine.")) as model, bench(tmp_path, model) as b:
        await b.runtime.recover()
        with anyio.fail_after(240):
            events = [event async for event in b.runtime.follow(accepted.turn_id)]
        assert events[-1].fields()["code"] == "RESUME_LIMIT"
        last_seq = 0
        for event in events:
            if event.type == "resumed":
                assert event.fields()["voids"] == [last_seq + 1, event.seq - 1], "a gap that no event names"
            else:
                assert event.seq == last_seq + 1
            last_seq = event.seq
        assert text_of(await b.say("Next")) == "Fine."


async def test_references_and_usage_of_committed_steps_survive(tmp_path: Path) -> None:
    tools = toolset(quick=answer_quickly)
    slow_step = Stalled(Step((Say("End."),)), 1)
    async with ScriptedModel(use("quick", query="x"), slow_step) as model, bench(tmp_path, model, tools) as b:
        accepted = await b.send("A", definition())
        await slow_step.reached.wait()
    async with ScriptedModel(say("End.")) as model, bench(tmp_path, model, tools) as b:
        await b.runtime.recover()
        with anyio.fail_after(240):
            events = [event async for event in b.runtime.follow(accepted.turn_id)]
        row = await b.turn(accepted.turn_id)
        assert row.steps == 2
        assert row.usage is not None
        assert events[-1].fields()["usage"]["outputTokens"] == row.usage.output > 1
