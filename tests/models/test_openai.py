"""The chat-completions adapter against a service as strict, and as sloppy, as the real ones."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest

from agentic_rag.base.errors import ModelError
from agentic_rag.base.events import Usage
from agentic_rag.base.messages import (
    BROKEN_INPUT,
    Block,
    Message,
    ToolSpec,
    plain_text,
    text_block,
    tool_result_block,
    user_message,
)
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.models.base import (
    MAX_TOKENS,
    BlockStarted,
    BlockStopped,
    CitationDelta,
    InputDelta,
    MessageCompleted,
    MessageStarted,
    ModelEvent,
    ModelRequest,
    TextDelta,
)
from agentic_rag.models.openai.decoder import ChatDecoder
from agentic_rag.models.openai.model import OpenAIModel
from agentic_rag.models.tool_rules import named_tools
from agentic_rag.testing.chat_frames import Shape
from agentic_rag.testing.chat_problems import ChatRules
from agentic_rag.testing.fake_api import Fault, Reply, Scripted
from agentic_rag.testing.fake_chat import FakeChatAPI
from agentic_rag.testing.steps import Cite, Say, Step, Think, Use, say

TOOL: Any = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}
PASSAGE: Block = {
    "type": "search_result",
    "source": "doc",
    "title": "Leave",
    "content": [{"type": "text", "text": "Staff get 25 days."}, {"type": "text", "text": "Ask HR."}],
    "_passage": {},
}
REQUEST = ModelRequest("small-1", 500, (text_block("Be brief."),), (user_message("Hi"),), (TOOL,))
TWO = Step((Say("So:"), Use("look", {"a": 1}, "call_a"), Use("look", {"b": [1, "x"]}, "call_b")))


@asynccontextmanager
async def connect(*script: Scripted, **options: Any) -> AsyncIterator[tuple[OpenAIModel, FakeChatAPI]]:
    async with FakeChatAPI(*script, **options) as api:
        model = OpenAIModel(api.key, api.base_url)
        try:
            yield model, api
        finally:
            await model.aclose()


async def collect_events(model: OpenAIModel, request: ModelRequest = REQUEST) -> list[ModelEvent]:
    with anyio.fail_after(240):
        async with model.stream(request) as events:
            return [event async for event in events]


def blocks(events: Sequence[ModelEvent]) -> list[Block]:
    return [event.block for event in events if isinstance(event, BlockStopped)]


def calls(events: Sequence[ModelEvent]) -> list[tuple[str, Any]]:
    return [(block["name"], block["input"]) for block in blocks(events) if block["type"] == "tool_use"]


def find_end(events: Sequence[ModelEvent]) -> MessageCompleted:
    (completed,) = [event for event in events if isinstance(event, MessageCompleted)]
    assert events[-1] is completed
    return completed


def check_order(events: Sequence[ModelEvent]) -> None:
    """Check that one block is open at a time, and that the streamed pieces add up to the final blocks."""
    open_index, pieces, count = None, "", 0
    for event in events:
        if isinstance(event, BlockStarted):
            assert open_index is None
            assert event.index == count
            open_index, pieces, count = event.index, "", count + 1
        elif isinstance(event, TextDelta):
            pieces += event.text
        elif isinstance(event, InputDelta):
            assert event.index == open_index
            pieces += event.json
        elif isinstance(event, BlockStopped):
            assert event.index == open_index
            assert event.block["type"] != "text" or event.block["text"] == pieces
            open_index = None
    assert open_index is None


async def test_thinking_text_and_two_calls_are_streamed_in_order() -> None:
    step = Step((Think("Let me see."), *TWO.blocks), usage=Usage(10, 20, 0, 4))
    async with connect(step) as (model, api):
        events = await collect_events(model)
    check_order(events)
    assert events[0] == MessageStarted("openai:small-1")
    assert blocks(events)[0] == {"type": "thinking", "thinking": "Let me see.", "signature": ""}
    assert calls(events) == [("look", {"a": 1}), ("look", {"b": [1, "x"]})]
    assert [block["id"] for block in blocks(events) if block["type"] == "tool_use"] == ["call_a", "call_b"]
    assert find_end(events) == MessageCompleted("tool_use", Usage(10, 20, 0, 4))
    assert api.requests[0]["messages"] == [
        {"role": "system", "content": api.requests[0]["messages"][0]["content"]},
        {"role": "user", "content": "Hi"},
    ]
    assert api.requests[0]["max_tokens"] == 500
    assert api.calls[0].headers["authorization"] == f"Bearer {api.key}"


SHAPES = {
    "null deltas": Shape(nulls=True),
    "ids missing": Shape(ids="none"),
    "ids doubled": Shape(ids="same"),
    "all under one index": Shape(one_index=True),
    "no index": Shape(no_index=True),
    "no index and no ids": Shape(no_index=True, ids="none"),
    "interleaved": Shape(interleaved=True),
    "arguments as objects": Shape(as_objects=True),
    "no usage": Shape(usage=False),
    "no [DONE]": Shape(done=False),
    "no reason": Shape(reason=False),
    "always stop": Shape(stop=True),
    "nothing at the end": Shape(done=False, usage=False),
    "its own reasoning": Shape(thought="reasoning"),
}


@pytest.mark.parametrize("name", SHAPES)
async def test_fields_omitted_by_a_service_do_not_change_the_answer(name: str) -> None:
    step = Step((Think("Hm."), *TWO.blocks), usage=Usage(10, 20, 0, 4))
    async with connect(step, shape=SHAPES[name]) as (model, _):
        events = await collect_events(model)
    check_order(events)
    assert [block["type"] for block in blocks(events)] == ["thinking", "text", "tool_use", "tool_use"]
    assert calls(events) == [("look", {"a": 1}), ("look", {"b": [1, "x"]})]
    assert all(block["id"] for block in blocks(events) if block["type"] == "tool_use")
    assert find_end(events).stop_reason == "tool_use"
    assert find_end(events).usage == (Usage(10, 20, 0, 4) if SHAPES[name].usage else Usage())


async def test_argument_deltas_are_forwarded_at_once() -> None:
    use = Use("look", {"query": "pumps"}, "call_a", pieces=('{"que', 'ry": "pu', 'mps"}'))
    async with connect(Step((use,))) as (model, _):
        events = await collect_events(model)
    assert [event.json for event in events if isinstance(event, InputDelta)] == ['{"que', 'ry": "pu', 'mps"}']
    assert calls(events) == [("look", {"query": "pumps"})]


@pytest.mark.parametrize("raw", ['{"query": "pu', "[1]", "pumps", '{"a": 1}{"b": 2}'])
async def test_arguments_that_are_not_an_object_are_reported_unchanged(raw: str) -> None:
    async with connect(Step((Use("look", raw=raw),))) as (model, _):
        (block,) = blocks(await collect_events(model))
    assert (block["input"], block[BROKEN_INPUT]) == ({}, raw)


@pytest.mark.parametrize(
    ("service_reason", "reason"),
    [("max_tokens", "max_tokens"), ("refusal", "refusal"), ("end_turn", "end_turn"), ("tool_use", "end_turn")],
)
async def test_the_stop_reason_is_claudes(service_reason: str, reason: str) -> None:
    async with connect(Step((Say("Half an"),), stop_reason=service_reason)) as (model, _):
        assert find_end(await collect_events(model)).stop_reason == reason


async def test_marks_become_citations_and_are_sent_back_as_marks() -> None:
    call: Message = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]}
    call_result: Message = {"role": "user", "content": [tool_result_block("t", [PASSAGE])]}
    request = replace(REQUEST, messages=(user_message("Days?"), call, call_result))
    for mark in ("[[{}]]", "[{}]", "【{}】", "【{}†leave】", "[[{}, 1]]"):
        step = Step((Say("Staff get 25 days", (Cite(0),)), Say(". `a[1]` Ask.")))
        async with connect(step, say("Fine."), shape=Shape(mark=mark)) as (model, api):
            events = await collect_events(model, request)
            assert plain_text(blocks(events)) == "Staff get 25 days. `a[1]` Ask."
            citations = [event.citation for event in events if isinstance(event, CitationDelta)]
            assert [(citation.search_result_index, citation.start, citation.end) for citation in citations] == [
                (0, 0, 1)
            ]
            answer: Message = {"role": "assistant", "content": blocks(events)}
            await collect_events(model, replace(request, messages=(*request.messages, answer, user_message("And?"))))
            assert api.requests[0]["messages"][3]["content"].startswith("[1] Leave\nStaff get 25 days.")
            assert api.requests[1]["messages"][4]["content"] == "Staff get 25 days.[[1]] `a[1]` Ask."
            assert api.refused == []


def transcript(*results: Block) -> tuple[Message, ...]:
    uses = [{"type": "tool_use", "id": result["tool_use_id"], "name": "look", "input": {}} for result in results]
    thought = {"type": "thinking", "thinking": "I look.", "signature": ""}
    call_message: Message = {"role": "assistant", "content": [thought, *uses]}
    return user_message("Look"), call_message, {"role": "user", "content": [*results, text_block("[note]")]}


async def test_results_images_and_notes_are_sent_in_the_services_order() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    picture_result = tool_result_block("x" * 60, [text_block("A plan."), {"type": "image", "source": source}])
    error_result = tool_result_block("b", [text_block("no such file")], is_error=True)
    request = replace(REQUEST, messages=transcript(picture_result, error_result), tool_choice={"type": "none"})
    async with connect(say("A plan.")) as (model, api):
        await collect_events(model, request)
        _, _, assistant, first_result, second_result, user = api.requests[0]["messages"]
        assert assistant["content"] is None
        assert "reasoning_content" not in assistant
        assert (first_result["content"], second_result["content"]) == (
            "A plan.\n\n(its images follow)",
            "Error: no such file",
        )
        assert first_result["tool_call_id"] == assistant["tool_calls"][0]["id"]
        assert [content_part["type"] for content_part in user["content"]] == ["image_url", "text"]
        assert api.requests[0]["tool_choice"] == "none"
        assert api.refused == []
        api.rules = ChatRules(images=False)
        with pytest.raises(ModelError, match="does not support image_url"):
            await collect_events(model, request)


async def test_reasoning_is_sent_back_where_supported_and_only_inside_a_turn() -> None:
    earlier_turn = transcript(tool_result_block("a", [text_block("one")]))
    answer: Message = {"role": "assistant", "content": [text_block("One.")]}
    current_turn = transcript(tool_result_block("b", [text_block("two")]))
    request = replace(REQUEST, model="deepseek-chat", messages=(*earlier_turn, answer, *current_turn))
    async with connect(say("Two."), rules=ChatRules(replays=True)) as (model, api):
        request = replace(request, messages=_without_notes(request.messages))
        with pytest.raises(ModelError, match="Missing reasoning_content"):
            await collect_events(model, replace(request, model="other"))
        api.refused.clear()
        await collect_events(model, request)
        sent_reasoning = [
            message.get("reasoning_content") for message in api.requests[-1]["messages"] if message.get("tool_calls")
        ]
        assert sent_reasoning == [None, "I look."]
        assert api.refused == []


def _without_notes(messages: Sequence[Message]) -> tuple[Message, ...]:
    changed_messages = []
    for message in messages:
        results = [block for block in message["content"] if block["type"] == "tool_result"]
        changed_messages.append(Message(role=message["role"], content=results or message["content"]))
    return tuple(changed_messages)


@pytest.mark.parametrize(
    ("rules", "request_", "left_out"),
    [
        (ChatRules(reasons=True), REQUEST, "max_tokens"),
        (ChatRules(refuses=frozenset({"stream_options"})), REQUEST, "stream_options"),
        (ChatRules(refuses=frozenset({"temperature"})), replace(REQUEST, temperature=0.2), "temperature"),
        (
            ChatRules(refuses=frozenset({"tool_choice", "stream_options"})),
            replace(REQUEST, tool_choice={"type": "none"}),
            "tool_choice",
        ),
    ],
)
async def test_a_refused_parameter_is_left_out_of_later_requests(
    rules: ChatRules, request_: ModelRequest, left_out: str
) -> None:
    async with connect(say("One."), say("Two."), rules=rules) as (model, api):
        assert plain_text(blocks(await collect_events(model, request_))) == "One."
        call_count = len(api.calls)
        assert plain_text(blocks(await collect_events(model, request_))) == "Two."
        assert len(api.calls) == call_count + 1
        assert left_out in api.requests[0]
        assert left_out not in api.requests[-1]


async def test_a_reasoning_model_gets_only_supported_parameters() -> None:
    request = replace(REQUEST, model="gpt-5-mini", temperature=0.5, effort="high")
    async with connect(say("Well."), rules=ChatRules(reasons=True)) as (model, api):
        await collect_events(model, request)
        assert api.refused == []
        assert api.requests[0]["reasoning_effort"] == "high"
        assert api.requests[0]["max_completion_tokens"] > 500


async def test_bad_unicode_leaves_as_a_question_mark() -> None:
    call_block = {"type": "tool_use", "id": "a", "name": "look", "input": {"n": 2**70, "s": "x"}}
    result: Message = {"role": "user", "content": [tool_result_block("a", [text_block("b\udc00")])]}
    messages: tuple[Message, ...] = (user_message("a\ud800"), {"role": "assistant", "content": [call_block]}, result)
    async with connect(say("Well.")) as (model, api):
        await collect_events(model, replace(REQUEST, messages=messages))
        assert api.requests[0]["messages"][1]["content"] == "a?"


FAULTS = {
    "busy": (Fault(status=429), 429, True),
    "no money": (Fault(status=429, error_type="insufficient_quota"), 429, False),
    "down": (Fault(status=503), 503, True),
    "overloaded": (Fault(status=529, retry_after="3"), 529, True),
    "no key": (Fault(status=401), 401, False),
    "refused": (Fault(status=400, message="no"), 400, False),
    "hung up": (Fault(refuse=True), None, True),
    "html": (Fault(content_type="text/html"), 200, False),
    "json": (Fault(content_type="application/json"), 200, False),
    "cut": (Fault(drop_at=700), 200, True),
    "ended": (Fault(end_at=700), 200, True),
    "error inside": (Fault(error_after=3), 200, True),
    "final error inside": (Fault(error_after=3, error_type="invalid_request_error"), 200, False),
    "garbage": (Fault(garbage_after=3), 200, True),
    "a list": (Fault(garbage_after=3, garbage="[1]"), 200, True),
    "odd delta": (Fault(garbage_after=3, garbage='{"choices": [{"delta": {"content": 7}}]}'), 200, True),
    "odd calls": (Fault(garbage_after=3, garbage='{"choices": [{"delta": {"tool_calls": [3]}}]}'), 200, True),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_every_injected_fault_is_a_model_error(name: str) -> None:
    fault, status, retryable = FAULTS[name]
    long_step = say("A long answer with quite some words in it.")
    async with connect(Reply(long_step, fault), key="sk-very-secret") as (model, _):
        with pytest.raises(ModelError) as error_info:
            await collect_events(model)
    error = error_info.value
    assert (error.http_status, error.retryable) == (status, retryable)
    assert "sk-very-secret" not in repr(error)
    assert error.retry_after == (3 if name == "overloaded" else None)
    if name == "no key":
        assert "OPENAI_API_KEY" in str(error)


async def test_a_chunked_stream_and_other_line_ends_give_the_same_answer() -> None:
    for fault in (Fault(chunk=3), Fault(newline="\r\n"), Fault(newline="\r", chunk=1)):
        async with connect(Reply(TWO, fault)) as (model, _):
            assert calls(await collect_events(model)) == [("look", {"a": 1}), ("look", {"b": [1, "x"]})]


async def test_a_stream_left_open_after_the_answer_still_ends() -> None:
    shape = Shape(usage=False, done=False)
    fault = Fault(silent_after=20)
    async with connect(Reply(say("Well."), fault), shape=shape) as (model, _):
        assert plain_text(blocks(await collect_events(model))) == "Well."


@pytest.mark.parametrize(
    ("late", "expected", "reason"),
    [
        ({"content": " More."}, text_block(" More."), "end_turn"),
        (
            {"tool_calls": [{"index": 0, "id": "call_a", "function": {"name": "look", "arguments": '{"a": 1}'}}]},
            {"type": "tool_use", "id": "call_a", "name": "look", "input": {"a": 1}},
            "tool_use",
        ),
    ],
)
def test_what_follows_the_finish_reason_still_becomes_a_whole_block(late: Block, expected: Block, reason: str) -> None:
    decoder = ChatDecoder("small-1")
    choices = [{"delta": {"content": "Well."}, "finish_reason": "stop"}, {"delta": late}]
    frames = [json.dumps({"choices": [choice]}) for choice in choices]
    events = [event for frame in (*frames, "[DONE]") for event in decoder.decode(frame.encode())]
    check_order(events)
    assert blocks(events) == [text_block("Well."), expected]
    assert find_end(events).stop_reason == reason


def test_usage_that_no_service_can_have_is_bounded() -> None:
    decoder = ChatDecoder("small-1")
    usage = {"prompt_tokens": 2**63, "completion_tokens": -5, "prompt_tokens_details": {"cached_tokens": True}}
    frames = [json.dumps({"choices": [], "usage": usage}), "[DONE]"]
    events = [event for frame in frames for event in decoder.decode(frame.encode())]
    assert find_end(events).usage == Usage(input=MAX_TOKENS)


def test_an_answer_with_an_open_piece_behind_the_finish_reason_is_not_finished() -> None:
    decoder = ChatDecoder("small-1")
    call = {"tool_calls": [{"index": 0, "id": "call_a", "function": {"name": "look", "arguments": '{"a": '}}]}
    finished = []
    for choice in (
        {"delta": {"content": "Well."}, "finish_reason": "stop"},
        {"delta": {"content": " More."}},
        {"delta": call},
        {"delta": {}, "finish_reason": "tool_calls"},
    ):
        list(decoder.decode(json.dumps({"choices": [choice]}).encode()))
        finished.append(decoder.finished)
    assert finished == [True, False, False, True]


async def test_models_listed_by_a_service_are_known() -> None:
    async with connect(models=("small-1", "big-1")) as (model, _):
        assert await model.list_names() == ("small-1", "big-1")
        with pytest.raises(ModelError, match="does not know the model 'other'"):
            await collect_events(model, replace(REQUEST, model="other"))
    async with connect() as (model, _):
        assert await model.list_names() is None


def test_unusable_settings_are_named() -> None:
    for key, url, setting in (
        ("", None, "OPENAI_API_KEY"),
        ("ä", None, "OPENAI_API_KEY"),
        ("k", "x", "OPENAI_BASE_URL"),
    ):
        with pytest.raises(BadConfiguration, match=setting):
            OpenAIModel(key, url)
    with pytest.raises(BadConfiguration, match=r"providers\.local\.base_url"):
        OpenAIModel("k", "x", provider="local", in_file=True)
    assert "sk-1" not in repr(OpenAIModel("sk-1", "http://u:p@localhost:1/v1"))


def test_creating_a_model_imports_no_sdk() -> None:
    program = (
        "import sys; from agentic_rag.models.openai.model import OpenAIModel; OpenAIModel('k');"
        "assert not {'openai', 'httpx2', 'aiohttp'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Invalid schema for function 'look': In context=(), object schema missing properties.", ("look",)),
        ("Invalid 'tools[2].function.description': string too long.", ("walk",)),
        ("tools.1.custom.input_schema: JSON schema is invalid", ("hear",)),
        (
            "* GenerateContentRequest.tools[0].function_declarations[2].parameters.properties[a].items: missing",
            ("walk",),
        ),
        ("The model is overloaded.", ()),
    ],
)
def test_the_tools_that_a_refusal_names_are_found(text: str, names: tuple[str, ...]) -> None:
    tools = [ToolSpec(name=name, description="", input_schema={}) for name in ("look", "hear", "walk")]
    assert named_tools(ModelError(text, http_status=400), tools) == names
