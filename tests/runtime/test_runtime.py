"""Turns from message to terminal event, with a real store and a scripted model."""

from pathlib import Path

import anyio
import pytest
from sqlalchemy import Connection

from agentic_rag.base.errors import IdempotencyMismatch, ModelError, NotFound, TurnInProgress
from agentic_rag.base.events import EventBody, Notice, Title
from agentic_rag.base.ids import SessionId, TurnId
from agentic_rag.store.turns import TurnRecord
from agentic_rag.testing.scripted import Broken, ScriptedModel, Stalled
from agentic_rag.testing.steps import Cite, Say, Step, Think, Use, say, use
from agentic_rag.tools.base import CallOutcome, CallRequest
from tests.runtime.harness import SESSION, Hooks, bench, definition, hits, kinds, ok, text_of, toolset


async def search(request: CallRequest) -> CallOutcome:
    return ok("found", hits("The pump holds 3 litres.", "It weighs 2 kg."))


async def test_a_plain_answer_streams_and_is_stored(tmp_path: Path) -> None:
    async with ScriptedModel(say("Hello there, friend.")) as model, bench(tmp_path, model) as b:
        events = await b.say("Hi")
        assert kinds(events)[:2] == ["turn_started", "iteration_start"]
        assert kinds(events)[-1] == "done"
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert text_of(events) == "Hello there, friend."
        transcript = await b.transcript()
        assert [message["role"] for message in transcript] == ["user", "assistant"]
        row = await b.turn(events[0].turn_id)
        assert (row.status, row.end_reason, row.steps) == ("done", "end_turn", 1)
        assert [final.type for _, final in b.ended_turns] == ["done"]


async def test_tools_run_in_parallel_and_citations_are_tied_to_passages(tmp_path: Path) -> None:
    both_arrived = anyio.Event()
    arrivals: list[str] = []

    async def meet(request: CallRequest) -> CallOutcome:
        arrivals.append(request.id)
        if len(arrivals) == 2:
            both_arrived.set()
        await both_arrived.wait()
        return ok("met")

    tools = toolset(search_documents=search, meet=meet)
    steps = (
        Step((Think("hm"), Use("meet", {"query": "a"}), Use("meet", {"query": "b"}))),
        use("search_documents", query="pump"),
        Step((Say("It holds 3 litres.", (Cite(0),)), Say(" Really."))),
    )
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, tools) as b:
        events = await b.say("How much?")
        assert kinds(events)[-1] == "done"
        assert kinds(events).count("tool_result") == 3
        end = events[-1].fields()
        assert [(ref["number"], ref["citedText"], ref.get("page")) for ref in end["references"]] == [
            (1, "The pump holds 3 litres.", 2)
        ]
        source = next(event.fields() for event in events if event.type == "source_reference")
        assert (source["textFrom"], source["textTo"], source["iteration"]) == (0, 18, 3)
        hit = next(event.fields() for event in events if event.type == "retrieval")["hits"][0]
        assert hit["documentId"] == "doc_1"
        row = await b.turn(events[0].turn_id)
        assert row.references[0].chunk_id == "doc_1-c0"


async def test_only_real_passages_are_cited(tmp_path: Path) -> None:
    attempts = (Cite(0, 1, 2), Cite(0, cited_text="The pump holds 9 litres."), Cite(7, cited_text="Invented."))
    steps = (use("search_documents", query="pump"), Step((Say("Claims.", attempts),)))
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, toolset(search_documents=search)) as b:
        events = await b.say("How much?")
        cited_texts = [event.fields()["citedText"] for event in events if event.type == "source_reference"]
        assert cited_texts == ["It weighs 2 kg."]


async def test_a_call_with_invalid_arguments_is_answered_and_not_run(tmp_path: Path) -> None:
    tools = toolset(search_documents=search)
    steps = (
        Step((Use("search_documents", {}), Use("nothing", {"query": "x"}), Use("search_documents", {"query": "x"}))),
        say("Sorry."),
    )
    settings = definition(tool_policy={"search_*": "deny"})
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, tools) as b:
        events = await b.say("Go", definition=settings)
        statuses = [event.fields()["status"] for event in events if event.type == "tool_result"]
        assert sorted(statuses) == ["denied", "denied", "error"]
        assert tools.requests == []


async def test_the_last_step_is_the_limit(tmp_path: Path) -> None:
    tools = toolset(search_documents=search)
    async with ScriptedModel(then=use("search_documents", query="x")) as model, bench(tmp_path, model, tools) as b:
        events = await b.say("Loop")
        assert events[-1].fields()["stopReason"] == "max_steps"
        assert len(model.requests) == 6


async def test_a_repeated_client_message_is_one_turn(tmp_path: Path) -> None:
    async with ScriptedModel(say("One.")) as model, bench(tmp_path, model) as b:
        accepted = await b.send("Hi", definition(), client_message_id="m1")
        repeated = await b.send("Hi", definition(), client_message_id="m1")
        assert repeated.duplicate
        assert repeated.turn_id == accepted.turn_id
        with pytest.raises(IdempotencyMismatch):
            await b.send("Other", definition(), client_message_id="m1")
        assert [event async for event in b.runtime.follow(accepted.turn_id)][-1].type == "done"


async def test_a_second_message_waits_or_is_refused(tmp_path: Path) -> None:
    slow_step = Stalled(say("First."), 1)
    async with ScriptedModel(slow_step, say("Second.")) as model, bench(tmp_path, model) as b:
        running = await b.send("A", definition())
        await slow_step.reached.wait()
        with pytest.raises(TurnInProgress):
            await b.send("B", definition())
        queued = await b.send("C", definition(), on_busy="queue")
        assert queued.queued
        slow_step.until.set()
        with anyio.fail_after(240):
            assert await b.runtime.next_turn(SESSION, running.turn_id) == queued.turn_id
            events = [event async for event in b.runtime.follow(queued.turn_id)]
        assert text_of(events) == "Second."
        roles = [message["role"] for message in await b.transcript()]
        assert roles == ["user", "assistant", "user", "assistant"]


async def test_an_interrupt_keeps_the_text_so_far(tmp_path: Path) -> None:
    slow_step = Stalled(say("One two three four."), 3)
    async with ScriptedModel(slow_step, say("Next.")) as model, bench(tmp_path, model) as b:
        accepted = await b.send("A", definition())
        await slow_step.reached.wait()
        assert await b.runtime.interrupt(SESSION)
        with anyio.fail_after(240):
            events = [event async for event in b.runtime.follow(accepted.turn_id)]
        assert kinds(events)[-1] == "interrupted"
        assert await b.runtime.interrupt(SESSION, turn_id=accepted.turn_id) is False
        transcript = await b.transcript()
        assert transcript[-1]["role"] == "assistant"
        assert transcript[-1]["content"][0]["text"] == text_of(events)
        next_events = await b.say("B")
        assert text_of(next_events) == "Next."


async def test_an_interrupt_during_thinking_leaves_no_unsigned_block(tmp_path: Path) -> None:
    slow_step = Stalled(Step((Think("One two three four five."), Say("Six."))), 3)
    async with ScriptedModel(slow_step, say("Next.")) as model, bench(tmp_path, model) as b:
        accepted = await b.send("A", definition())
        with anyio.fail_after(240):
            await slow_step.reached.wait()
            await b.runtime.interrupt(SESSION)
            events = [event async for event in b.runtime.follow(accepted.turn_id)]
        assert events[-1].fields().get("message_id") is None
        assert [message["role"] for message in await b.transcript()] == ["user"]
        assert text_of(await b.say("B")) == "Next."


async def test_an_interrupt_reaches_running_tools(tmp_path: Path) -> None:
    tool_started = anyio.Event()
    cancelled_calls: list[str] = []

    async def hang(request: CallRequest) -> CallOutcome:
        tool_started.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled_calls.append(request.id)
        raise AssertionError("slept for ever")

    tools = toolset(search_documents=search, hang=hang)
    step = Step((Use("search_documents", {"query": "x"}), Use("hang", {"query": "y"})))
    async with ScriptedModel(step, say("Next.")) as model, bench(tmp_path, model, tools) as b:
        accepted = await b.send("A", definition())
        statuses: list[str] = []
        with anyio.fail_after(240):
            await tool_started.wait()
            async for event in b.runtime.follow(accepted.turn_id):
                if event.type == "tool_result":
                    statuses.append(event.fields()["status"])
                    await b.runtime.interrupt(SESSION)
        assert statuses == ["ok", "interrupted"]
        assert len(cancelled_calls) == 1
        results = (await b.transcript())[-1]["content"]  # the calls that had ended keep their own results
        assert [(block["type"], block.get("is_error", False)) for block in results] == [
            ("tool_result", False),
            ("tool_result", True),
        ]
        assert text_of(await b.say("B")) == "Next."


async def test_a_failing_model_is_retried_after_a_reset_event(tmp_path: Path) -> None:
    overloaded = ModelError("overloaded", http_status=529, retryable=True, retry_after=0.0)
    broken_step = Broken(say("Half an answer"), 3, ModelError("dropped", retryable=True, started=True, retry_after=0.0))
    async with ScriptedModel(overloaded, broken_step, say("Whole.")) as model, bench(tmp_path, model) as b:
        events = await b.say("Hi")
        assert kinds(events).count("retrying") == 2
        assert kinds(events).count("step_reset") == 1
        reset_index = kinds(events).index("step_reset")
        assert text_of(events[reset_index:]) == "Whole."
        transcript = await b.transcript()
        assert [block["text"] for block in transcript[-1]["content"]] == ["Whole."]


async def test_a_model_that_refuses_ends_the_turn_with_a_plain_error(tmp_path: Path) -> None:
    error = ModelError("The API key is not valid. Check ANTHROPIC_API_KEY.", http_status=401)
    async with ScriptedModel(error, say("Works now.")) as model, bench(tmp_path, model) as b:
        events = await b.say("Hi")
        assert events[-1].fields()["code"] == "LLM_SERVICE_ERROR"
        row = await b.turn(events[0].turn_id)
        assert row.status == "failed"
        assert row.error is not None
        assert row.error.message.endswith("check ANTHROPIC_API_KEY.")
        assert text_of(await b.say("Again")) == "Works now."


async def test_a_silent_model_is_abandoned(tmp_path: Path) -> None:
    silent_step = Stalled(say("One two three."), 2)
    async with ScriptedModel(silent_step) as model, bench(tmp_path, model, model_idle=0.05) as b:
        events = await b.say("Hi")
        assert events[-1].fields()["code"] == "GENERATION_TIMEOUT"


class Titling(Hooks):
    """Adds a title, or refuses."""

    def turn_accepted(self, conn: Connection, turn: TurnRecord) -> list[EventBody]:
        if turn.content.startswith("Refuse"):
            raise NotFound("conversation", "conv_x")
        return [Title("Greeting")]


async def test_opening_events_follow_the_start_and_refusals_emit_none(tmp_path: Path) -> None:
    async with ScriptedModel(say("Hello.")) as model, bench(tmp_path, model, hooks=Titling()) as b:
        with pytest.raises(NotFound):
            await b.runtime.session(SessionId("sess_other"))
        with pytest.raises(NotFound):
            await b.send("Refuse this", definition())
        assert await b.transcript() == []
        events = await b.say("Hi", notices=[Notice("CODE", "Words.")])
        assert kinds(events)[:4] == ["turn_started", "notice", "title", "iteration_start"]


async def test_a_reader_from_any_number_gets_the_later_events(tmp_path: Path) -> None:
    tools = toolset(search_documents=search)
    steps = (use("search_documents", query="pump"), Step((Say("It holds 3 litres.", (Cite(0),)),)))
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, tools) as b:
        events = await b.say("How much?")
        for after in range(len(events)):
            later_events = [event async for event in b.runtime.follow(TurnId(events[0].turn_id), after)]
            assert [event.data for event in later_events] == [event.data for event in events[after:]]
