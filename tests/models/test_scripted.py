"""`ScriptedModel` follows its script and the API's rules."""

import anyio
import pytest

from agentic_rag.base.errors import ModelError
from agentic_rag.base.events import Usage
from agentic_rag.base.messages import Message, ToolSpec, tool_result_block, user_message
from agentic_rag.models.base import (
    BlockStarted,
    BlockStopped,
    CitationDelta,
    MessageCompleted,
    MessageStarted,
    ModelEvent,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
)
from agentic_rag.testing.problems import sign
from agentic_rag.testing.scripted import Broken, ScriptedModel, Stalled
from agentic_rag.testing.steps import Cite, RedactedThinking, Say, Step, Think, Use, pieces_of, say, step_from_json, use

HELLO = ModelRequest("m", 10, (), (user_message("hello"),))
LOOK: ToolSpec = {"name": "look", "description": "", "input_schema": {"type": "object"}}


def request_with_result(*texts: str) -> ModelRequest:
    """Return a request after a tool found one search result of these sentences."""
    result = {
        "type": "search_result",
        "source": "doc_1",
        "title": "Doc",
        "content": [{"type": "text", "text": text} for text in texts],
        "citations": {"enabled": True},
    }
    call: Message = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]}
    answer: Message = {"role": "user", "content": [tool_result_block("t", [result])]}
    return ModelRequest("m", 10, (), (user_message("hello"), call, answer), (LOOK,))


async def collect_events(model: ScriptedModel, request: ModelRequest = HELLO) -> list[ModelEvent]:
    async with model.stream(request) as events:
        return [event async for event in events]


async def test_a_step_is_streamed_block_by_block_in_the_apis_order() -> None:
    step = Step(
        (Think("hm"), RedactedThinking("x"), Say("one two"), Use("look", {"q": 1}, id="t1")), usage=Usage(1, 2, 3, 4)
    )
    async with ScriptedModel(step) as model:
        assert await collect_events(model) == [
            MessageStarted("m"),
            BlockStarted(0, {"type": "thinking", "thinking": "", "signature": ""}),
            ThinkingDelta(0, "hm"),
            BlockStopped(0, {"type": "thinking", "thinking": "hm", "signature": sign("hm")}),
            BlockStarted(1, {"type": "redacted_thinking", "data": "x"}),
            BlockStopped(1, {"type": "redacted_thinking", "data": "x"}),
            BlockStarted(2, {"type": "text", "text": ""}),
            TextDelta(2, "one "),
            TextDelta(2, "two"),
            BlockStopped(2, {"type": "text", "text": "one two"}),
            BlockStarted(3, {"type": "tool_use", "id": "t1", "name": "look", "input": {}}),
            BlockStopped(3, {"type": "tool_use", "id": "t1", "name": "look", "input": {"q": 1}}),
            MessageCompleted("tool_use", Usage(1, 2, 3, 4)),
        ]


async def test_a_citation_quotes_the_blocks_of_the_requests_search_result() -> None:
    async with ScriptedModel(say("Yes.", Cite(0, 1, 3))) as model:
        events = await collect_events(model, request_with_result("One. ", "Two. ", "Three."))
    (citation,) = [event.citation for event in events if isinstance(event, CitationDelta)]
    assert (citation.search_result_index, citation.start, citation.end) == (0, 1, 3)
    assert citation.cited_text == citation.raw["cited_text"] == "Two. Three."
    assert BlockStopped(0, {"type": "text", "text": "Yes.", "citations": [citation.raw]}) in events


async def test_a_citation_without_a_source_fails_the_test_unless_forged_on_purpose() -> None:
    model = ScriptedModel(say("Yes.", Cite(1)), say("Yes.", Cite(0, 5)), say("Yes.", Cite(9, cited_text="lie")))
    for _ in range(2):
        with pytest.raises(AssertionError, match="the step cites"):
            await collect_events(model, request_with_result("One."))
    assert any(isinstance(event, CitationDelta) for event in await collect_events(model, request_with_result("One.")))


async def test_a_callable_step_sees_the_request() -> None:
    async with ScriptedModel(lambda request: say(request.messages[-1]["content"][0]["text"])) as model:
        assert TextDelta(0, "hello") in await collect_events(model)


async def test_broken_input_is_marked_as_the_adapter_marks_it() -> None:
    async with ScriptedModel(Step((Use("look", raw='{"q": '),), stop_reason="max_tokens")) as model:
        events = await collect_events(model)
    assert isinstance(events[-2], BlockStopped)
    assert events[-2].block["_broken_input"] == '{"q": '


async def test_an_error_in_the_script_is_raised_before_any_event() -> None:
    async with ScriptedModel(ModelError("busy", http_status=529, retryable=True)) as model:
        with pytest.raises(ModelError, match="busy"):
            await collect_events(model)


@pytest.mark.parametrize("after", range(6))
async def test_a_step_breaks_off_after_the_scripted_number_of_events(after: int) -> None:
    passed_events: list[ModelEvent] = []

    async def pause(call: int, number: int, event: ModelEvent) -> None:
        passed_events.append(event)

    async with ScriptedModel(Broken(say("one two"), after), pause=pause) as model:
        with pytest.raises(ModelError) as error:
            await collect_events(model)
    assert len(passed_events) == after
    assert error.value.started
    assert error.value.retryable


async def test_a_scripted_fault_after_the_last_event_is_an_error_of_the_test() -> None:
    with pytest.raises(AssertionError, match="has 5 events"):
        await collect_events(ScriptedModel(Broken(say("one"), 9)))


async def test_a_stalled_step_continues_when_it_is_released() -> None:
    stalled_step = Stalled(say("one two"), after=3)
    received: list[ModelEvent] = []

    async def consume() -> None:
        received.extend(await collect_events(model))

    async with ScriptedModel(stalled_step) as model:
        with anyio.fail_after(240):
            async with anyio.create_task_group() as group:
                group.start_soon(consume)
                await stalled_step.reached.wait()
                assert not received
                stalled_step.until.set()
    assert isinstance(received[-1], MessageCompleted)


async def test_a_test_can_stop_a_call_at_every_event() -> None:
    stops: list[tuple[int, int]] = []

    async def pause(call: int, number: int, event: ModelEvent) -> None:
        stops.append((call, number))

    async with ScriptedModel(say("one"), say("two"), pause=pause) as model:
        await collect_events(model)
        await collect_events(model)
    assert stops == [(call, number) for call in range(2) for number in range(5)]


async def test_cancelling_a_call_early_closes_it() -> None:
    async with ScriptedModel(say("one two")) as model:
        async with model.stream(HELLO) as events:
            await anext(events)
            assert model.open_streams == 1
        assert model.open_streams == 0


async def test_unrequested_steps_fail_the_test() -> None:
    model = ScriptedModel(say("one"), say("two"))
    await collect_events(model)
    with pytest.raises(AssertionError, match="1 of 2 scripted steps"):
        await model.__aexit__(None, None, None)


async def test_a_call_beyond_the_script_fails_the_test_even_if_its_error_is_swallowed() -> None:
    model = ScriptedModel()
    with pytest.raises(AssertionError, match="call 1 of a model with 0"):
        await collect_events(model)
    with pytest.raises(AssertionError, match="1 calls more"):
        model.assert_consumed()


async def test_calls_after_the_script_can_be_answered() -> None:
    async with ScriptedModel(then=use("look")) as model:
        await collect_events(model)
        await collect_events(model)
    assert len(model.requests) == 2
    assert model.closed


async def test_a_request_the_api_would_refuse_fails_the_call_and_the_test() -> None:
    model = ScriptedModel(say("one"))
    with pytest.raises(ModelError) as error:
        await collect_events(model, ModelRequest("m", 10, (), (user_message(" "),)))
    assert error.value.http_status == 400
    with pytest.raises(AssertionError, match="non-whitespace"):
        model.assert_consumed()


async def test_the_failure_of_a_test_is_not_hidden_by_the_script() -> None:
    with pytest.raises(ZeroDivisionError):
        async with ScriptedModel(say("never asked")):
            raise ZeroDivisionError


def test_the_parts_of_a_text_join_to_the_text() -> None:
    for text in ("one two", " lead", "trail  ", "\n\n", "没有空格的中文文本也会被切开成几块", "a" * 40, ""):
        assert "".join(pieces_of(text)) == text


def test_a_step_has_a_json_form() -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "So.", "pieces": ["S", "o."], "citations": [{"result": 0, "start": 1}]},
        {"type": "tool_use", "name": "look", "input": {"q": 1}, "id": "t1"},
    ]
    parsed = step_from_json({"blocks": blocks, "stop_reason": "max_tokens", "usage": {"input": 1, "output": 2}})
    assert parsed == Step(
        (
            Think("hm"),
            RedactedThinking("x"),
            Say("So.", (Cite(0, 1),), ("S", "o.")),
            Use("look", {"q": 1}, "t1"),
        ),
        "max_tokens",
        Usage(input=1, output=2),
    )
    assert step_from_json({"blocks": "just text"}) == say("just text")
    with pytest.raises(ValueError, match="'audio' is not one of"):
        step_from_json({"blocks": [{"type": "audio"}]})
