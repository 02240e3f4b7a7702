"""Every model call leaves a usage row, however it ended."""

from contextlib import aclosing
from pathlib import Path

import anyio
from sqlalchemy import Connection

from agentic_rag.base.errors import ModelError
from agentic_rag.base.events import Usage
from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.models.base import MessageStarted, ModelEvent
from agentic_rag.store import tool_calls, usage
from agentic_rag.store.usage import UsageRecord
from agentic_rag.testing.fake_api import FakeMessagesAPI
from agentic_rag.testing.scripted import Broken, ScriptedModel, Stalled
from agentic_rag.testing.steps import Cite, Say, Step, Use, say, use
from agentic_rag.tools.base import CallOutcome, CallRequest
from tests.runtime.harness import SESSION, Bench, bench, definition, hits, kinds, ok, text_of, toolset


async def lookup(request: CallRequest) -> CallOutcome:
    return ok("found")


async def read_usage(b: Bench) -> list[UsageRecord]:
    return await b.database.read(lambda conn: usage.of_session(conn, SESSION))


async def test_each_step_stores_labelled_usage_and_the_turn_sums_it(tmp_path: Path) -> None:
    first_step = Step((Use("lookup", {"query": "x"}),), usage=Usage(10, 20, 30, 4))
    last_step = Step((Say("Done."),), usage=Usage(1, 60, 2, 5))
    async with ScriptedModel(first_step, last_step) as model, bench(tmp_path, model, toolset(lookup=lookup)) as b:
        events = await b.say("Go")
        rows = await read_usage(b)
        assert [(row.step, row.input, row.cache_read, row.cache_write, row.output) for row in rows] == [
            (1, 10, 20, 30, 4),
            (2, 1, 60, 2, 5),
        ]
        assert {(row.turn_id, row.agent, row.model) for row in rows} == {(events[0].turn_id, "", "scripted-1")}
        assert (rows[0].conversation_id, rows[0].domain_id, rows[0].user_id) == ("conv_test", "", "")
        assert events[-1].fields()["usage"] == Usage(11, 80, 32, 9).to_json()


async def test_usage_that_an_interrupted_call_reported_early_is_counted(tmp_path: Path) -> None:
    broken_step = Broken(say("Half an answer"), 3, ModelError("dropped", retryable=True, started=True, retry_after=0.0))
    stalled_step = Stalled(say("One two three four."), 3)

    async def report(call: int, number: int, event: ModelEvent) -> None:
        if isinstance(event, MessageStarted):  # as the Messages API does with its first event
            object.__setattr__(event, "usage", Usage(100 + call, 0, 0, 1))

    async with ScriptedModel(broken_step, stalled_step, pause=report) as model, bench(tmp_path, model) as b:
        accepted = await b.send("Go", definition())
        await stalled_step.reached.wait()
        await b.runtime.interrupt(SESSION)
        with anyio.fail_after(240):
            events = [event async for event in b.runtime.follow(accepted.turn_id)]
        assert kinds(events)[-1] == "interrupted"
        assert sorted((row.step, row.input, row.output) for row in await read_usage(b)) == [(1, 100, 1), (1, 101, 1)]
        assert (await b.turn(accepted.turn_id)).usage == Usage(201, 0, 0, 2)


async def test_calls_interrupted_by_a_turns_end_are_recorded_as_ended(tmp_path: Path) -> None:
    tool_started = anyio.Event()

    async def hang(request: CallRequest) -> CallOutcome:
        tool_started.set()
        await anyio.sleep_forever()
        raise AssertionError("slept for ever")

    cut_step = Step((Use("lookup", {"query": "x"}),), stop_reason="max_tokens")
    steps = (Step((Use("hang", {"query": "x"}),)), cut_step, say("Enough."))
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, toolset(lookup=lookup, hang=hang)) as b:
        await b.send("Go", definition())
        await tool_started.wait()
        await b.runtime.interrupt(SESSION)
        await b.say("Again")

        def read_statuses(conn: Connection) -> list[tuple[str, str]]:
            return [(call.tool_name, call.status) for call in tool_calls.of_sessions(conn, [SESSION])]

        assert await b.database.read(read_statuses) == [("hang", "interrupted"), ("lookup", "error")]


async def test_a_citation_that_differs_from_its_passage_is_counted(tmp_path: Path) -> None:
    forged_answer = say("So they say.", Cite(0, cited_text="Forged."), Cite(1, cited_text="Forged too."))
    async with ScriptedModel(forged_answer) as model, bench(tmp_path, model) as b:
        await b.say("Go")
        assert [row.dropped_citations for row in await read_usage(b)] == [2]


async def test_invented_marks_are_removed_and_unverified_claims_are_marked_and_counted(
    tmp_path: Path,
) -> None:
    async def search(request: CallRequest) -> CallOutcome:
        return ok("found", hits("The pump holds 3 litres.", "It weighs 2 kg."))

    answer = "The pump holds 3 litres [1]. Cats sleep 【1】. `x[1]` it weighs 2 kg [[1, 9]]."
    async with (
        FakeMessagesAPI(use("search_documents", query="pump"), say(answer)) as api,
        aclosing(AnthropicModel(api.key, api.url, citations="marks")) as model,
        bench(tmp_path, model, toolset(search_documents=search)) as b,
    ):
        events = await b.say("How much?")
        assert text_of(events) == "The pump holds 3 litres. Cats sleep. `x[1]` it weighs 2 kg."
        sources = [event.fields() for event in events if event.type == "source_reference"]
        assert [(source["number"], source.get("verified")) for source in sources] == [(1, None), (2, False), (3, None)]
        verified_references = [
            (reference["number"], reference.get("verified", True)) for reference in events[-1].fields()["references"]
        ]
        assert verified_references == [(1, True), (2, False), (3, True)]
        assert [(row.dropped_citations, row.unverified_citations) for row in await read_usage(b)] == [(0, 0), (1, 1)]


async def test_a_paid_attempt_stays_reserved_when_the_next_is_refused(tmp_path: Path) -> None:
    broken_step = Broken(say("Half an answer"), 3, ModelError("dropped", retryable=True, started=True, retry_after=0.0))
    error = ModelError("busy", http_status=529, retryable=True, retry_after=0.0)
    last_step = Stalled(say("Whole."), 1)
    async with ScriptedModel(broken_step, error, last_step) as model, bench(tmp_path, model, hard="100000") as b:
        accepted = await b.send("Hi")
        await last_step.reached.wait()
        assert len(await b.read_reservations()) == 2, "the first, of which nothing is stored yet, and the running one"
        last_step.until.set()
        with anyio.fail_after(240):
            assert [event async for event in b.runtime.follow(accepted.turn_id)][-1].type == "done"
        assert await b.read_reservations() == []
