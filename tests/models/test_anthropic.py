"""The adapter against the fake API over real HTTP, and against the SDK's own decoder of the same stream."""

import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import anyio
import pytest

from agentic_rag.base.errors import ModelError
from agentic_rag.base.events import Usage
from agentic_rag.base.messages import Block, Message, ToolSpec, tool_result_block, user_message
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.models.anthropic.decoder import AnswerDecoder
from agentic_rag.models.anthropic.model import AnthropicModel, CitationMode
from agentic_rag.models.anthropic.request import request_body, search_results
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
from agentic_rag.models.batches import BatchAnswer, read_line
from agentic_rag.models.marks import INSTRUCTION
from agentic_rag.testing.fake_api import FakeMessagesAPI, Fault, Reply, Scripted, demo
from agentic_rag.testing.steps import Cite, RedactedThinking, Say, Step, Think, Use, say, step_events

LOOK: ToolSpec = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
RESULT: Block = {
    "type": "search_result",
    "source": "doc_1",
    "title": "Leave",
    "content": [{"type": "text", "text": "Staff get 25 days. "}, {"type": "text", "text": "Sick leave needs a note."}],
    "citations": {"enabled": True},
    "_passage": {"document_id": "doc_1"},
}
CALL_MESSAGE: Message = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]}
RESULT_MESSAGE: Message = {"role": "user", "content": [tool_result_block("t", [RESULT])]}
HELLO = ModelRequest("claude-x", 100, (), (user_message("hello"),))
REQUEST_WITH_RESULT = ModelRequest("claude-x", 100, (), (user_message("hello"), CALL_MESSAGE, RESULT_MESSAGE), (LOOK,))

RICH_STEP = Step(
    (
        Think("Let me think, 想一想 🚀."),
        RedactedThinking("opaque"),
        Say("Staff get 25 days.", (Cite(0), Cite(0, 0, 2))),
        Say(" Ünïcödé — 二十五天 🎉\n\n```py\nx = [1]\n```"),
        Use("look", {"query": 'a "quoted" \\ 引号 \n', "deep": {"list": [1, 2.5, None, True]}}),
        Use("look", {}),
    )
)


@asynccontextmanager
async def connect(
    *script: Scripted, citations: CitationMode = "native", **options: Any
) -> AsyncIterator[tuple[AnthropicModel, FakeMessagesAPI]]:
    """Run a fake with this script and a model that uses it, within a time limit."""
    async with FakeMessagesAPI(*script, **options) as api:
        model = AnthropicModel(api.key, api.url, citations=citations)
        try:
            yield model, api
        finally:
            await model.aclose()


async def collect_events(model: AnthropicModel, request: ModelRequest = HELLO) -> list[ModelEvent]:
    with anyio.fail_after(240):
        async with model.stream(request) as events:
            return [event async for event in events]


def check_events(events: Sequence[ModelEvent], step: Step, request: ModelRequest) -> None:
    """Check that the events equal the step's, except for ids and figures that the fake invents."""

    def text_of_event(event: ModelEvent) -> str:
        text = repr(MessageCompleted(event.stop_reason, Usage()) if isinstance(event, MessageCompleted) else event)
        return re.sub(r"toolu_\w+", "toolu", text)

    expected = step_events(step, model=request.model, results=search_results(request.messages))
    complete_events = [event for event in events if not isinstance(event, InputDelta)]
    assert [text_of_event(event) for event in complete_events] == [text_of_event(event) for event in expected]
    for stopped in (event for event in events if isinstance(event, BlockStopped) and event.block["type"] == "tool_use"):
        streamed_input = "".join(e.json for e in events if isinstance(e, InputDelta) and e.index == stopped.index)
        assert json.loads(streamed_input) == stopped.block["input"]


async def test_every_kind_of_block_arrives_as_its_events() -> None:
    async with connect(RICH_STEP) as (model, _):
        check_events(await collect_events(model, REQUEST_WITH_RESULT), RICH_STEP, REQUEST_WITH_RESULT)


def decode_sdk_events(raw: Sequence[anthropic.types.RawMessageStreamEvent]) -> list[ModelEvent]:
    """Decode the SDK's own event objects, serialised as JSON again."""
    decoder = AnswerDecoder()
    decoded = [decoder.decode(event.to_json(indent=None).encode("utf-8", "surrogatepass")) for event in raw]
    return [event for event in decoded if event is not None]


@pytest.mark.parametrize("fault", [Fault(), Fault(chunk=1), Fault(chunk=7), Fault(newline="\r\n")])
async def test_our_decoder_gives_the_sdks_events(fault: Fault) -> None:
    ids = Step(
        tuple(Use(b.name, b.input, f"t{i}") if isinstance(b, Use) else b for i, b in enumerate(RICH_STEP.blocks))
    )
    reply = Reply(Step(ids.blocks, usage=Usage(7, 6, 5, 4)), fault)
    async with connect(reply, reply, reply) as (model, api):
        ours = await collect_events(model, REQUEST_WITH_RESULT)
        client = anthropic.AsyncAnthropic(api_key=api.key, base_url=api.url, max_retries=0)
        async with client:
            stream = await client.messages.create(**request_body(REQUEST_WITH_RESULT), stream=True)
            sdks = [event async for event in stream]
            async with client.messages.stream(**request_body(REQUEST_WITH_RESULT)) as helper:
                final = await helper.get_final_message()
    assert ours == decode_sdk_events(sdks)
    blocks = [event.block for event in ours if isinstance(event, BlockStopped)]
    assert blocks == [_without_nulls(block.to_dict()) for block in final.content]
    assert isinstance(ours[-1], MessageCompleted)
    assert ours[-1].usage == Usage(7, 6, 5, 4)
    assert (final.usage.input_tokens, final.usage.output_tokens) == (7, 4)


def _without_nulls(block: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in block.items() if value is not None}


async def test_our_request_equals_the_sdks() -> None:
    async with connect(say("a"), say("b")) as (model, api):
        await collect_events(model, REQUEST_WITH_RESULT)
        async with anthropic.AsyncAnthropic(api_key=api.key, base_url=api.url, max_retries=0) as client:
            async for _ in await client.messages.create(**request_body(REQUEST_WITH_RESULT), stream=True):
                pass
    ours, sdks = api.calls
    assert ours.request == sdks.request
    for header in ("authorization", "anthropic-version", "content-type", "user-agent"):
        assert ours.headers[header] == sdks.headers[header]


async def test_an_answer_can_be_sent_back_unchanged() -> None:
    async with connect(Step((Think("hm"), Say("I look."), Use("look", {"q": 1}))), say("done")) as (model, _):
        answer = [
            event.block for event in await collect_events(model, HELLO_WITH_TOOL) if isinstance(event, BlockStopped)
        ]
        results = [tool_result_block(block["id"], []) for block in answer if block["type"] == "tool_use"]
        history: tuple[Message, ...] = (
            *HELLO_WITH_TOOL.messages,
            {"role": "assistant", "content": answer},
            {"role": "user", "content": results},
        )
        events = await collect_events(model, ModelRequest("claude-x", 100, (), history, (LOOK,)))
    assert isinstance(events[-1], MessageCompleted)


HELLO_WITH_TOOL = ModelRequest("claude-x", 100, (), (user_message("hello"),), (LOOK,))


async def test_tool_input_that_is_truncated_or_not_an_object_is_marked_broken() -> None:
    uses = (
        Use("look", raw='{"query": "lea'),
        Use("look", raw="[1]"),
        Use("look", raw="{nope}"),
        Use("look", {"ok": 1}),
    )
    async with connect(Step(uses, stop_reason="max_tokens")) as (model, _):
        events = await collect_events(model)
    blocks = [event.block for event in events if isinstance(event, BlockStopped)]
    assert [block.get("_broken_input") for block in blocks] == ['{"query": "lea', "[1]", "{nope}", None]
    assert [block["input"] for block in blocks] == [{}, {}, {}, {"ok": 1}]
    assert isinstance(events[-1], MessageCompleted)
    assert events[-1].stop_reason == "max_tokens"


async def test_citations_name_result_blocks_and_text() -> None:
    async with connect(say("Two sentences.", Cite(0, 0, 2))) as (model, _):
        events = await collect_events(model, REQUEST_WITH_RESULT)
    (citation,) = [event.citation for event in events if isinstance(event, CitationDelta)]
    assert (citation.search_result_index, citation.start, citation.end) == (0, 0, 2)
    assert citation.cited_text == "Staff get 25 days. Sick leave needs a note."
    assert citation.raw["type"] == "search_result_location"
    assert citation.raw["source"] == "doc_1"


async def test_marks_mode_sends_no_search_result_and_still_yields_citations() -> None:
    step = Step((Say("", pieces=("A note is needed for sick leave [", "[1", "]", "]. Bye")),))
    async with connect(step, citations="marks") as (model, api):
        events = await collect_events(model, REQUEST_WITH_RESULT)
    body = api.requests[0]
    assert "search_result" not in repr(body["messages"])
    assert body["messages"][2]["content"][0]["content"][0]["text"].startswith("[1] Leave\n")
    assert body["system"][-1]["text"] == INSTRUCTION
    (citation,) = [event.citation for event in events if isinstance(event, CitationDelta)]
    assert (citation.search_result_index, citation.start, citation.end) == (0, 1, 2)
    blocks = [event.block for event in events if isinstance(event, BlockStopped)]
    assert [block["text"] for block in blocks] == ["A note is needed for sick leave.", " Bye"]
    assert [block.get("citations") for block in blocks] == [[citation.raw], None]


async def test_marks_mode_drops_a_mark_when_nothing_was_found() -> None:
    async with connect(say("x[[1]] and [1]"), citations="marks") as (model, _):
        assert BlockStopped(0, {"type": "text", "text": "x and [1]"}) in await collect_events(model)


async def test_parameters_reach_the_endpoint() -> None:
    request = ModelRequest(
        "claude-x", 7, (), HELLO.messages, (LOOK,), {"type": "none"}, temperature=0.3, thinking="off"
    )
    async with connect(say("a"), also_allowed={"temperature"}) as (model, api):
        await collect_events(model, request)
    body = api.requests[0]
    assert body["stream"] is True
    assert body["max_tokens"] == 7
    assert body["temperature"] == 0.3
    assert body["tool_choice"] == {"type": "none"}
    assert "thinking" not in body


async def test_a_second_call_reads_what_the_first_one_cached() -> None:
    long_request = ModelRequest("claude-x", 7, ({"type": "text", "text": "rule. " * 1000},), HELLO.messages)
    async with connect(say("a"), say("b")) as (model, _):
        first_end, second_end = [(await collect_events(model, long_request))[-1] for _ in range(2)]
    assert isinstance(first_end, MessageCompleted)
    assert isinstance(second_end, MessageCompleted)
    assert first_end.usage.cache_write == second_end.usage.cache_read > 1000
    assert first_end.usage.sent == second_end.usage.sent


async def test_a_request_with_a_lone_surrogate_or_a_huge_number_is_still_sent() -> None:
    use: Message = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {"n": 10**30}}],
    }
    request = ModelRequest("claude-x", 7, (), (user_message("a\ud800b"), use, RESULT_MESSAGE), (LOOK,))
    async with connect(say("a")) as (model, api):
        await collect_events(model, request)
    assert api.requests[0]["messages"][0]["content"][0]["text"] == "a?b"
    assert api.requests[0]["messages"][1]["content"][0]["input"] == {"n": 10**30}


async def test_a_connection_is_reused_for_the_next_step() -> None:
    async with connect(*[say("a")] * 5) as (model, api):
        for _ in range(5):
            await collect_events(model)
    assert len({call.headers["x-peer"] for call in api.calls}) == 1


async def test_cancelling_a_stream_closes_the_connection_at_once() -> None:
    async with connect(Reply(demo(50), Fault(silent_after=20))) as (model, api):
        with anyio.fail_after(240):
            async with model.stream(HELLO) as events:
                async for event in events:
                    if isinstance(event, TextDelta):
                        break
            await api.calls[0].left.wait()


async def test_a_cancelled_call_closes_the_connection_at_once() -> None:
    async with connect(Reply(say("a"), Fault(silent_after=0))) as (model, api):
        with anyio.fail_after(240):
            async with anyio.create_task_group() as group:
                group.start_soon(collect_events, model)
                while not api.calls:
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            await api.calls[0].left.wait()


async def test_two_hundred_streams_at_once_are_answered_each_with_its_own_text() -> None:
    def echo(request: dict[str, Any]) -> Step:
        return say(request["messages"][0]["content"][0]["text"] * 20)

    async with connect(then=echo) as (model, _):

        async def check_stream(number: int) -> None:
            events = await collect_events(model, ModelRequest("m", 9, (), (user_message(f"<{number}>"),)))
            text = "".join(event.text for event in events if isinstance(event, TextDelta))
            assert text == f"<{number}>" * 20

        async with anyio.create_task_group() as group:
            for number in range(200):
                group.start_soon(check_stream, number)


async def test_preloading_creates_the_client_once_and_closing_is_idempotent() -> None:
    async with connect(say("a")) as (model, _):
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(model.warm_up)
        await collect_events(model)
        await model.aclose()
        await model.aclose()
        with pytest.raises(RuntimeError, match="closed"):
            await collect_events(model)


def test_creating_a_model_imports_no_sdk() -> None:
    code = (
        "import sys; from agentic_rag.models.anthropic.model import AnthropicModel; AnthropicModel('k');"
        "print([name for name in ('anthropic', 'httpx2', 'aiohttp') if name in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert process.stdout.strip() == "[]"


@pytest.mark.parametrize("key", ["", " ", "sk with space", "sk-ключ", "sk\nx: y", "sk\x00"])
def test_a_key_that_no_header_can_carry_is_refused_without_printing_it(key: str) -> None:
    with pytest.raises(BadConfiguration, match="ANTHROPIC_API_KEY") as error:
        AnthropicModel(key)
    assert not key.strip() or key not in str(error.value)


@pytest.mark.parametrize("url", ["api.example.com", "ftp://x", "http://", "http://x:port", "http://[x", "::"])
def test_an_invalid_base_url_is_refused(url: str) -> None:
    with pytest.raises(BadConfiguration, match="ANTHROPIC_BASE_URL"):
        AnthropicModel("k", url)


def test_keys_and_url_credentials_are_not_shown() -> None:
    model = AnthropicModel("sk-secret", "https://user:pass@example.com:8443/base/?q=1")
    assert repr(model) == "AnthropicModel('https://example.com:8443/base', api_key=***)"
    assert model.name == "anthropic"


async def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeMessagesAPI(say("through the proxy")) as api:
        monkeypatch.setenv("http_proxy", api.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        model = AnthropicModel(api.key, "http://api.invalid")
        assert TextDelta(0, "through ") in await collect_events(model)
        await model.aclose()
    assert api.calls[0].headers["host"] == "api.invalid"


def decode_values(*values: str) -> list[ModelEvent | None]:
    decoder = AnswerDecoder()
    return [decoder.decode(value.encode()) for value in values]


MESSAGE_START = '{"type":"message_start","message":{"model":"m"}}'
BLOCK_START = '{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}'


def test_usage_that_no_service_can_have_is_bounded() -> None:
    decoder = AnswerDecoder()
    sent = {"input_tokens": 2**63, "cache_read_input_tokens": -5, "cache_creation_input_tokens": True}
    start = {"type": "message_start", "message": {"model": "m", "usage": sent}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 10**10}}
    for event in (start, end):
        decoder.decode(json.dumps(event).encode())
    completed = decoder.decode(b'{"type":"message_stop"}')
    assert isinstance(completed, MessageCompleted)
    assert completed.usage == Usage(MAX_TOKENS, 0, 0, MAX_TOKENS)


@pytest.mark.parametrize(
    ("result", "answer"),
    [
        ({"type": "succeeded", "message": {"model": "m", "content": 5}}, BatchAnswer(model="m")),
        (
            {
                "type": "succeeded",
                "message": {
                    "model": "\ud800",
                    "content": [{"type": "text", "text": "a\ud800\x00"}, 5],
                    "usage": {"input_tokens": 2**63, "output_tokens": -1},
                },
            },
            BatchAnswer("a?", "?", Usage(MAX_TOKENS)),
        ),
        (
            {"type": "errored", "error": {"error": {"message": "no \ud800"}}},
            BatchAnswer(failure="the service refused the request: no ?"),
        ),
    ],
)
def test_a_malformed_result_of_a_batch_can_be_stored(result: Any, answer: BatchAnswer) -> None:
    assert read_line(result) == answer


def test_a_stop_reason_that_is_no_text_is_malformed() -> None:
    with pytest.raises(ModelError, match="malformed"):
        decode_values(MESSAGE_START, '{"type":"message_delta","delta":{"stop_reason":{"a":1}}}')


def test_events_and_deltas_of_unknown_types_are_skipped() -> None:
    odd = '{"type":"content_block_delta","index":0,"delta":{"type":"odd_delta","x":1}}'
    assert decode_values(MESSAGE_START, '{"type":"news"}', BLOCK_START, odd, '{"type":"ping"}')[1:] == [
        None,
        BlockStarted(0, {"type": "text", "text": ""}),
        None,
        None,
    ]


def test_the_reason_of_the_end_and_the_usage_may_come_in_separate_events() -> None:
    reason = '{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{}}'
    usage = '{"type":"message_delta","delta":{},"usage":{"output_tokens":4}}'
    end = '{"type":"message_stop"}'
    for events in ((reason, usage), (usage, reason)):
        assert decode_values(MESSAGE_START, *events, end)[-1] == MessageCompleted("end_turn", Usage(output=4))


def test_a_block_of_an_unknown_type_is_forwarded_unchanged() -> None:
    odd = '{"type":"content_block_start","index":0,"content_block":{"type":"odd","x":[1]}}'
    assert decode_values(MESSAGE_START, odd, '{"type":"content_block_stop","index":0}')[2] == BlockStopped(
        0, {"type": "odd", "x": [1]}
    )


@pytest.mark.parametrize(
    "event",
    [
        "{",
        "[]",
        "3",
        "null",
        "{}",
        '{"type":"content_block_delta"}',
        '{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"x"}}',
        '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta"}}',
        '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":5}}',
        '{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":[]}}',
        '{"type":"content_block_delta","index":0,"delta":{"type":"citations_delta","citation":{}}}',
        '{"type":"content_block_delta","index":[],"delta":{"type":"text_delta","text":"x"}}',
        '{"type":"content_block_stop","index":4}',
        BLOCK_START,
        '{"type":"message_start"}',
        '{"type":"message_delta"}',
        '{"type":"message_stop"}',
        '{"type":"content_block_start","index":1,"content_block":{}}',
    ],
)
def test_events_the_api_never_sends_are_a_broken_stream(event: str) -> None:
    with pytest.raises(ModelError, match="malformed") as error:
        decode_values(MESSAGE_START, BLOCK_START, event)
    assert error.value.started
    assert error.value.retryable
    assert error.value.kind == "malformed_stream"


def test_empty_deltas_create_no_events() -> None:
    empty = '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":""}}'
    assert decode_values(MESSAGE_START, BLOCK_START, empty)[2] is None


def test_the_started_event_names_the_model_that_answers() -> None:
    assert decode_values(MESSAGE_START) == [MessageStarted("m")]
