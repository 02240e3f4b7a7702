"""A conversation that is too long for its model is summarised, also inside a turn, and continues."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from sqlalchemy import update

from agentic_rag.base.events import AgentEvent
from agentic_rag.base.json_form import Json
from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.models.extractive import ExtractiveModel
from agentic_rag.runtime.core.definition import Limits
from agentic_rag.store import compactions, sessions
from agentic_rag.testing.fake_api import FakeMessagesAPI
from agentic_rag.testing.steps import Cite, Say, Step, Think, Use
from agentic_rag.tools.base import CallOutcome, CallRequest
from tests.runtime.harness import SESSION, Bench, Services, bench, definition, hits, kinds, ok, text_of, toolset
from tests.runtime.strict_model import NAME, StrictModel, results_of

FILLING = "The pump works. " * 250
GOOD_SUMMARY: Json = {
    "facts": [{"fact": "The pump holds 3 litres.", "documents": ["doc_1"]}, "Two pumps were seen."],
    "decisions": ["Take the small pump."],
    "open_questions": ["What does it cost?"],
    "wishes": ["Short answers."],
}


async def search(request: CallRequest) -> CallOutcome:
    return ok("found", hits("The pump holds 3 litres.", "It weighs 2 kg."))


async def dump(request: CallRequest) -> CallOutcome:
    return ok(f"{request.arguments['query']} {FILLING}")


def asks_for_summary(body: Json) -> bool:
    return "Summarise the conversation" in str(body["messages"][-1]) + str(body.get("system"))


class Brain:
    """Searches once, then reads ``reads`` long results, each in a step with a long text, and answers."""

    def __init__(self, reads: int, *summaries: Any, filler: str = "") -> None:
        self.reads = reads
        self.filler = filler
        self.summaries = list(summaries)
        self.summary_requests = 0
        self.count = 0

    def __call__(self, body: Json) -> Step:
        if asks_for_summary(body):
            self.summary_requests += 1
            answer = self.summaries.pop(0) if len(self.summaries) > 1 else self.summaries[0]
            return answer if isinstance(answer, Step) else Step((Think("all"), Say(json.dumps(answer))))
        if self.reads <= 0 or body.get("tool_choice") == {"type": "none"}:
            return Step((Think("done"), Say("It holds 3 litres.")))
        self.reads -= 1
        self.count += 1
        if self.count == 1:
            return Step((Think("look"), Use("search_documents", {"query": "pump"})))
        return Step(
            (Think("more"), Say(f"{self.count} {self.filler or 'on'}"), Use("dump", {"query": str(self.count)}))
        )


def long_limits(tokens: int = 12_000) -> Any:
    return definition(model=NAME, limits=Limits(max_steps=30, context_tokens=tokens))


def services(model: Any) -> Services:
    return Services(model, toolset(search_documents=search, dump=dump))


def of_type(events: list[AgentEvent], kind: str) -> list[Any]:
    return [event.fields() for event in events if event.type == kind]


async def read_archives(b: Bench) -> list[compactions.CompactionRecord]:
    return await b.database.read(lambda conn: compactions.of_session(conn, SESSION))


async def test_a_turn_is_compacted_in_its_middle_and_its_summary_stays_citable(tmp_path: Path) -> None:
    brain = Brain(14, GOOD_SUMMARY, filler="word " * 700)
    model = StrictModel(brain)
    async with bench(tmp_path, model, services=services(model)) as b:
        events = await b.say("How much does it hold?", definition=long_limits())
        assert (kinds(events)[-1], text_of(events)[-18:]) == ("done", "It holds 3 litres.")
        compacted_events = of_type(events, "compacted")
        assert len(compacted_events) >= 1
        assert compacted_events[0]["summaryTokens"] > 10
        first_summary = (await read_archives(b))[-1]
        assert "- The pump holds 3 litres. [doc_1.md, document doc_1, passages doc_1-c0]" in first_summary.summary
        assert "Open questions:\n- What does it cost?" in first_summary.summary
        row = await b.turn(events[0].turn_id)
        assert row.usage is not None
        assert row.usage.sent == model.sent_tokens, "the summary's tokens are the turn's"
        brain.reads = 2
        assert kinds(await b.say("And now?", definition=long_limits()))[-1] == "done"
    assert model.refused == []
    index = next(number for number, body in enumerate(model.requests) if asks_for_summary(body))
    request, next_request = model.requests[index : index + 2]
    usage_before, usage_of_summary = model.usages[index - 1 : index + 1]
    assert usage_of_summary.cache_read == usage_before.cache_read + usage_before.cache_write, (
        "it is asked for inside what is cached"
    )
    first_message = str(next_request["messages"][0])
    assert "Take the small pump." in first_message
    assert "How much does it hold?" in first_message
    newest_result = list(results_of(request).values())[-1]
    assert newest_result in results_of(next_request).values(), "what was not seen before the summary stays"


BAD_SUMMARIES: dict[str, Step | Json] = {
    "cut off": Step((Say(json.dumps(GOOD_SUMMARY)[:60]),), stop_reason="max_tokens"),
    "refused": Step((Say("I cannot."),), stop_reason="refusal"),
    "of an unknown document": {**GOOD_SUMMARY, "facts": [{"fact": "It is blue.", "documents": ["doc_7"]}]},
    "a call": Step((Use("dump", {"query": "x"}),)),
    "no object": Step((Say("They spoke of pumps."),)),
    "empty": Step((Say('{"facts": [], "decisions": []}'),)),
    "too long": {"facts": ["word " * 3_500]},
    "of another form": {"facts": {"a": 1}},
}


@pytest.mark.parametrize("kind", BAD_SUMMARIES)
async def test_a_bad_summary_changes_nothing_and_the_turn_goes_on(tmp_path: Path, kind: str) -> None:
    brain = Brain(8, BAD_SUMMARIES[kind], filler="word " * 900)
    model = StrictModel(brain)
    async with bench(tmp_path, model, services=services(model)) as b:
        events = await b.say("How much does it hold?", definition=long_limits())
        assert kinds(events)[-1] == "done", events[-1]
        assert await read_archives(b) == []
        assert of_type(events, "compacted") == []
        session = await b.database.read(lambda conn: sessions.get(conn, SESSION))
        assert session is not None
        assert (session.head, session.compacted_to, session.gap_to) == (None, 0, 0)
    assert [reason for reason in model.refused if "prompt is too long" not in reason] == []
    assert 2 <= brain.summary_requests <= 8, "asked once more, and not at every step again"


async def test_a_second_summary_is_requested_with_the_reason(tmp_path: Path) -> None:
    brain = Brain(9, BAD_SUMMARIES["of an unknown document"], GOOD_SUMMARY, filler="word " * 900)
    model = StrictModel(brain)
    async with bench(tmp_path, model, services=services(model)) as b:
        assert kinds(await b.say("How much?", definition=long_limits()))[-1] == "done"
        assert len(await read_archives(b)) >= 1
    second_request = [body for body in model.requests if asks_for_summary(body)][1]
    reason = "there is no document 'doc_7' in the conversation (known: doc_1)"
    assert reason in second_request["messages"][-1]["content"][-1]["text"]
    assert second_request["tool_choice"] == {"type": "none"}
    assert model.refused == []


async def test_a_prompt_that_is_too_long_is_shortened_and_retried(tmp_path: Path) -> None:
    brain = Brain(10, GOOD_SUMMARY, filler="word " * 700)
    model = StrictModel(brain, context_window=9_000)
    async with bench(tmp_path, model, services=services(model)) as b:
        events = await b.say("How much does it hold?", definition=long_limits(60_000))
        assert (kinds(events)[-1], text_of(events)[-18:]) == ("done", "It holds 3 litres.")
        assert len(of_type(events, "iteration_start")) == 11
        assert kinds(await b.say("And now?", definition=long_limits(60_000)))[-1] == "done"
    assert model.refused
    assert all("prompt is too long" in reason for reason in model.refused)


async def test_a_question_longer_than_the_model_reads_ends_with_words_for_its_user(tmp_path: Path) -> None:
    model = StrictModel(Brain(0, {"facts": ["A long text was sent."]}), context_window=3_000)
    async with bench(tmp_path, model, services=services(model)) as b:
        events = await b.say("word " * 9_000, definition=long_limits(60_000))
        end = events[-1].fields()
        assert (end["type"], end["code"], end["retryable"]) == ("error", "CONTEXT_TOO_LONG", False)
        assert "Send less at once" in end["message"]
        assert "400" not in end["message"]
        assert kinds(await b.say("A short one?", definition=long_limits(60_000)))[-1] == "done"


async def test_a_turn_that_was_compacted_and_killed_resumes_with_steps_and_references(tmp_path: Path) -> None:
    cite_step = Step((Think("x"), Say("It holds 3 litres.", (Cite(0),)), Use("dump", {"query": "a"})))
    steps = [Step((Use("search_documents", {"query": "pump"}),)), cite_step]
    brain = Brain(12, GOOD_SUMMARY, filler="word " * 700)
    call_reached = anyio.Event()

    def answer(body: Json) -> Step:
        return steps.pop(0) if steps else brain(body)

    async def stall(request: CallRequest) -> CallOutcome:
        if brain.summary_requests:
            call_reached.set()
            await anyio.sleep_forever()
        return await dump(request)

    model = StrictModel(answer)
    stalling_services = Services(model, toolset(search_documents=search, dump=stall))
    async with bench(tmp_path, model, services=stalling_services) as b:
        accepted = await b.send("How much does it hold?", long_limits())
        with anyio.fail_after(240):
            await call_reached.wait()
    brain.reads = 1
    second_model = StrictModel(brain)
    async with bench(tmp_path, second_model, services=services(second_model)) as b:
        await b.runtime.recover()
        with anyio.fail_after(240):
            events = [event async for event in b.runtime.follow(accepted.turn_id)]
        assert events[-1].type == "done"
        assert [reference["chunkId"] for reference in events[-1].fields()["references"]] == ["doc_1-c0"]
    assert second_model.refused == []
    assert "[summary of the earlier conversation]" in str(second_model.requests[0]["messages"][0])
    assert "How much does it hold?" in str(second_model.requests[0]["messages"][0])


async def test_without_a_language_model_a_long_turn_is_compacted_by_extracts(tmp_path: Path) -> None:
    model = ExtractiveModel()
    settings = definition(model="extractive", limits=Limits(context_tokens=4_000))
    async with bench(tmp_path, model, services=services(model)) as b:
        for number in range(8):
            events = await b.say(
                f"Question {number}: " + "what holds the pump, if anything? " * 40, definition=settings
            )
            assert kinds(events)[-1] == "done"
        archives = await read_archives(b)
        assert archives
        assert "The user's wishes:\n- Question 0" in archives[-1].summary


async def test_refused_thinking_costs_a_second_attempt_and_no_turn(tmp_path: Path) -> None:
    async with FakeMessagesAPI(then=Brain(1, GOOD_SUMMARY)) as api:
        model = AnthropicModel(api.key, api.url)
        await model.warm_up()
        async with bench(tmp_path, model, services=services(model)) as b:
            await b.say("How much?", definition=long_limits())
            rows = await b.database.read(lambda conn: sessions.transcript(conn, SESSION))
            forged_content = [{"type": "text", "text": "Words that nobody said."}]
            forge = (
                update(sessions.MESSAGES).where(sessions.MESSAGES.c.seq == rows[0].seq).values(content=forged_content)
            )
            await b.database.write(lambda conn: conn.execute(forge))
        async with bench(tmp_path, model, services=services(model)) as b:
            for _ in range(2):
                assert kinds(await b.say("And now?", definition=long_limits()))[-1] == "done"
        assert model.mismatches >= 1
        await model.aclose()
