"""An answer that reaches its length limit continues; a call that was cut in the middle is requested again."""

from pathlib import Path
from typing import Any

import pytest

from agentic_rag.base.events import AgentEvent
from agentic_rag.base.ids import ConversationId
from agentic_rag.base.json_form import Json
from agentic_rag.conversations.shown_messages import shown_messages
from agentic_rag.runtime.core.definition import Limits
from agentic_rag.store import sessions
from agentic_rag.testing.steps import Say, Step, Think, Use
from agentic_rag.tools.base import CallOutcome, CallRequest
from tests.runtime.harness import SESSION, Bench, Services, bench, definition, kinds, ok, text_of, toolset
from tests.runtime.strict_model import NAME, StrictModel, results_of

PIECES = ("The pump ho", "lds 3 lit", "res, and the tank 9.")


async def dump(request: CallRequest) -> CallOutcome:
    return ok("found")


def model_of(*steps: Step) -> StrictModel:
    remaining = list(steps)

    def answer(body: Json) -> Step:
        return remaining.pop(0)

    return StrictModel(answer)


def cut_step(*blocks: Any) -> Step:
    return Step((Think("hm"), *blocks), stop_reason="max_tokens")


def notices(events: list[AgentEvent]) -> list[str]:
    return [event.fields()["code"] for event in events if event.type == "notice"]


async def stored_text(b: Bench, turn_id: str) -> str:
    turn = await b.turn(turn_id)
    rows = await b.database.read(lambda conn: sessions.transcript(conn, SESSION))
    return shown_messages(ConversationId("conv_test"), rows, {turn.id: turn}, {})[-1].content


@pytest.mark.parametrize("max_steps", [1, 6])
async def test_a_truncated_answer_is_continued_at_its_end(tmp_path: Path, max_steps: int) -> None:
    model = model_of(cut_step(Say(PIECES[0])), cut_step(Say(PIECES[1])), Step((Say(PIECES[2]),)), Step((Say("Next."),)))
    settings = definition(model=NAME, limits=Limits(max_steps=max_steps))
    async with bench(tmp_path, model, services=Services(model, toolset(dump=dump))) as b:
        events = await b.say("How much?", definition=settings)
        assert text_of(events) == "".join(PIECES)
        assert (kinds(events)[-1], events[-1].fields()["stopReason"], notices(events)) == ("done", "end_turn", [])
        started_steps = [event.fields() for event in events if event.type == "iteration_start"]
        assert [fields.get("continues", False) for fields in started_steps] == [False, True, True]
        assert await stored_text(b, events[0].turn_id) == "".join(PIECES)
        assert text_of(await b.say("And?", definition=settings)) == "Next."
    assert model.refused == []
    assert "continue exactly where you stopped" in str(model.requests[1]["messages"][-1])
    token_limits = [request["max_tokens"] for request in model.requests]
    assert token_limits[0] < token_limits[1] < token_limits[2]
    assert token_limits[3] == token_limits[0]


async def test_an_answer_truncated_three_times_is_marked_as_truncated(tmp_path: Path) -> None:
    model = model_of(*[cut_step(Say(piece)) for piece in PIECES])
    async with bench(tmp_path, model) as b:
        events = await b.say("How much?", definition=definition(model=NAME))
        assert (events[-1].fields()["stopReason"], notices(events)) == ("max_tokens", ["ANSWER_CUT"])
        assert await stored_text(b, events[0].turn_id) == "".join(PIECES)
    assert model.refused == []


@pytest.mark.parametrize("blocks", [(), (Think("hm"),), (Say("\n\n"),)])
async def test_a_model_that_says_nothing_after_a_result_is_asked_once_more(tmp_path: Path, blocks: Any) -> None:
    call, empty, answer = Step((Use("dump", {"query": "x"}),)), Step(blocks), Step((Say("Three litres."),))
    model = model_of(call, empty, answer, Step((Say("Next."),)))
    async with bench(tmp_path, model, services=Services(model, toolset(dump=dump))) as b:
        events = await b.say("How much?", definition=definition(model=NAME))
        assert (kinds(events)[-1], await stored_text(b, events[0].turn_id)) == ("done", "Three litres.")
        assert text_of(await b.say("And?", definition=definition(model=NAME))) == "Next."
    assert model.refused == []


async def test_a_model_that_says_nothing_twice_ends_its_turn(tmp_path: Path) -> None:
    model = model_of(Step(()), Step(()), Step((Say("Next."),)))
    async with bench(tmp_path, model) as b:
        assert kinds(await b.say("How much?", definition=definition(model=NAME)))[-1] == "done"
        assert text_of(await b.say("And?", definition=definition(model=NAME))) == "Next."
    assert model.refused == []


async def test_a_truncated_call_does_not_run_and_is_requested_again(tmp_path: Path) -> None:
    cut_call = Use("dump", raw='{"query": "a long ques')
    whole_call = Use("dump", {"query": "x"})
    model = model_of(cut_step(whole_call, cut_call), Step((Think("again"), whole_call)), Step((Say("Done."),)))
    tools = toolset(dump=dump)
    async with bench(tmp_path, model, services=Services(model, tools)) as b:
        events = await b.say("Go", definition=definition(model=NAME))
        results = [event.fields() for event in events if event.type == "tool_result"]
        assert [result["status"] for result in results] == ["error", "error", "ok"]
        assert (len(tools.requests), text_of(events)) == (1, "Done.")
    assert model.refused == []
    assert all("call again" in text for text in results_of(model.requests[1]).values())
    assert model.requests[1]["max_tokens"] > model.requests[0]["max_tokens"] == model.requests[2]["max_tokens"]


async def test_thinking_that_used_the_whole_budget_is_repeated_with_more(tmp_path: Path) -> None:
    model = model_of(cut_step(), cut_step(), Step((Say("Now."),)))
    async with bench(tmp_path, model) as b:
        assert text_of(await b.say("Think", definition=definition(model=NAME))) == "Now."
    assert model.refused == []
    assert len({str(request["messages"]) for request in model.requests}) == 1
