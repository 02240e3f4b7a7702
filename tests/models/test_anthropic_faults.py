"""Failures of the service and the network at the adapter: no lost or false end, and the right hint about retrying."""

import gzip
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream
from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.errors import ModelError
from agentic_rag.base.events import Usage
from agentic_rag.base.messages import ToolSpec, user_message
from agentic_rag.models.anthropic.decoder import AnswerDecoder
from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.models.base import BlockStopped, MessageCompleted, ModelEvent, ModelRequest, TextDelta
from agentic_rag.models.sse import SSEReader
from agentic_rag.testing.fake_api import FakeMessagesAPI, Fault, Reply, Scripted, demo
from agentic_rag.testing.frames import PING, frames
from agentic_rag.testing.steps import Say, Step, Think, Use, say, step_events

LOOK: ToolSpec = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
HELLO = ModelRequest("claude-x", 100, (), (user_message("hello"),), (LOOK,))
STEP = Step((Think("hm"), Say("Grüße 🚀"), Use("look", {"q": "ü"}, "t1")))
FRAMES = frames(step_events(STEP, model="claude-x"), "msg_1")
SHORT = Step((Say("ü"), Use("look", {"q": "ü"}, "t1")), usage=Usage(1, 2, 3, 4))
SHORTFRAMES = frames(step_events(SHORT, model="claude-x"), "msg_" + "0" * 24)


@dataclass
class Outcome:
    """The events of a call before it failed, and the failure."""

    events: list[ModelEvent] = field(default_factory=list)
    error: ModelError | None = None


@asynccontextmanager
async def connect(*script: Scripted, key: str = "") -> AsyncIterator[tuple[AnthropicModel, FakeMessagesAPI]]:
    async with FakeMessagesAPI(*script) as api:
        model = AnthropicModel(key or api.key, api.url)
        try:
            yield model, api
        finally:
            await model.aclose()


async def call_model(model: AnthropicModel) -> Outcome:
    outcome = Outcome()
    with anyio.fail_after(240):
        try:
            async with model.stream(HELLO) as events:
                async for event in events:
                    outcome.events.append(event)
        except ModelError as exc:
            outcome.error = exc
    return outcome


async def call_with_failure(fault: Fault, step: Step = STEP) -> tuple[list[ModelEvent], ModelError]:
    """Return the events before the failure, and the failure. Afterwards the model must still work."""
    async with connect(Reply(step, fault), say("fine")) as (model, _):
        outcome = await call_model(model)
        later_outcome = await call_model(model)
    assert outcome.error is not None
    assert isinstance(later_outcome.events[-1], MessageCompleted)
    return outcome.events, outcome.error


async def call_to_the_end(fault: Fault, step: Step = STEP) -> list[ModelEvent]:
    async with connect(Reply(step, fault)) as (model, _):
        outcome = await call_model(model)
    assert outcome.error is None
    return outcome.events


# refusals with a status


@pytest.mark.parametrize("status", [500, 502, 503, 504, 529])
async def test_an_overloaded_or_failing_service_is_retryable(status: int) -> None:
    events, error = await call_with_failure(Fault(status=status, message="Overloaded"))
    assert events == []
    assert (error.http_status, error.retryable, error.started) == (status, True, False)
    assert "Overloaded" in str(error)


async def test_the_services_retry_after_is_forwarded() -> None:
    _, error = await call_with_failure(Fault(status=529, retry_after="7"))
    assert error.retry_after == 7
    assert error.kind == "overloaded_error"


async def test_a_rate_limit_is_retryable() -> None:
    _, without_header = await call_with_failure(Fault(status=429))
    _, with_header = await call_with_failure(Fault(status=429, retry_after="2"))
    assert (without_header.retryable, without_header.retry_after) == (True, None)
    assert (with_header.retryable, with_header.retry_after) == (True, 2)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413])
async def test_a_refusal_is_final(status: int) -> None:
    _, error = await call_with_failure(Fault(status=status, message="no"))
    assert (error.http_status, error.retryable, error.started) == (status, False, False)


async def test_a_wrong_key_has_a_plain_error() -> None:
    async with connect(key="sk-wrong") as (model, _):
        outcome = await call_model(model)
    assert str(outcome.error) == "The model's service refused the key. Check ANTHROPIC_API_KEY."


@pytest.mark.parametrize("packed", [True, False])
async def test_only_the_start_of_a_refusal_is_read(packed: bool) -> None:
    """An endpoint that sends a megabyte which unpacks to a gigabyte, or never ends."""
    sent_bytes = 0

    async def refuse(stream: SocketStream) -> None:
        nonlocal sent_bytes
        encoding = b"Content-Encoding: gzip\r\n" if packed else b""
        block = gzip.compress(bytes(2**20)) if packed else b"no " * 2**18
        with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
            await stream.receive()
            await stream.send(b"HTTP/1.1 400 No\r\nContent-Type: text/plain\r\n" + encoding + b"\r\n")
            while True:
                await stream.send(block)
                sent_bytes += len(block)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, refuse)
        port = listener.extra(SocketAttribute.local_port)
        model = AnthropicModel("sk-secret", f"http://127.0.0.1:{port}")
        outcome = await call_model(model)
        await model.aclose()
        tasks.cancel_scope.cancel()
    assert outcome.error is not None
    assert outcome.error.http_status == 400
    assert sent_bytes < 32 * 2**20


async def test_a_refused_request_repeats_the_apis_reason() -> None:
    async with connect() as (model, api):
        with pytest.raises(ModelError, match="text content blocks must contain non-whitespace") as error:
            async with model.stream(ModelRequest("m", 1, (), (user_message(" "),))):
                raise AssertionError("the stream opened")
        assert api.refused
    assert error.value.kind == "invalid_request_error"


# 3


async def test_a_closed_port_may_be_tried_again_and_is_named() -> None:
    with socket.socket() as port_socket:
        port_socket.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{port_socket.getsockname()[1]}"
        model = AnthropicModel("sk-secret", url)
        outcome = await call_model(model)
        await model.aclose()
    assert outcome.error is not None
    assert (outcome.error.retryable, outcome.error.started) == (True, False)
    assert str(outcome.error) == (
        f"The model's service cannot be reached at {url}. Check ANTHROPIC_BASE_URL and the network."
    )


async def test_a_connection_closed_without_an_answer_is_retryable() -> None:
    _, error = await call_with_failure(Fault(refuse=True))
    assert (error.retryable, error.started, error.http_status) == (True, False, None)


# 4


@pytest.mark.parametrize(
    ("make_fault", "stride"),
    [
        pytest.param(lambda offset: Fault(drop_at=offset), 7, id="the connection is closed"),
        pytest.param(lambda offset: Fault(end_at=offset), 11, id="the body ends"),
        pytest.param(
            lambda offset: Fault(drop_at=offset),
            1,
            id="the connection is closed, each byte",
            marks=pytest.mark.nightly("each byte instead of every seventh"),
        ),
    ],
)
async def test_a_stream_that_stops_at_any_byte_is_never_complete(
    make_fault: Callable[[int], Fault], stride: int
) -> None:
    events = await call_to_the_end(Fault(), SHORT)
    size = sum(map(len, SHORTFRAMES)) - 1  # without its last line feed the last event is incomplete
    offsets = range(0, size, stride)
    async with connect(*[Reply(SHORT, make_fault(offset)) for offset in offsets]) as (model, _):
        for offset in offsets:
            outcome = await call_model(model)
            assert outcome.error is not None, offset
            assert (outcome.error.retryable, outcome.error.started) == (True, True), offset
            assert outcome.events == events[: len(outcome.events)], offset


async def test_a_connection_dropped_after_the_end_keeps_the_whole_answer() -> None:
    events = await call_to_the_end(Fault(drop_at=10**9))
    assert isinstance(events[-1], MessageCompleted)


# 5


@pytest.mark.parametrize("after", range(len(FRAMES)))
async def test_an_error_event_anywhere_ends_the_answer_as_an_error(after: int) -> None:
    events, error = await call_with_failure(Fault(error_after=after, message="Overloaded"))
    assert not any(isinstance(event, MessageCompleted) for event in events)
    assert (error.kind, error.http_status, error.retryable, error.started) == ("overloaded_error", 200, True, True)
    assert "Overloaded" in str(error)


async def test_an_error_event_about_the_request_is_not_retried() -> None:
    _, error = await call_with_failure(Fault(error_after=2, error_type="invalid_request_error"))
    assert not error.retryable


# 6


@pytest.mark.parametrize("garbage", ['{"type": "content_block_del', "[]", "\x00", '{"type": "content_block_delta"}'])
async def test_a_malformed_event_is_an_error_and_not_the_end(garbage: str) -> None:
    _, error = await call_with_failure(Fault(garbage_after=4, garbage=garbage))
    assert (error.kind, error.retryable, error.started) == ("malformed_stream", True, True)


CITED = {"type": "search_result_location", "search_result_index": 0, "start_block_index": 0, "end_block_index": 1}
CITED |= {"cited_text": "words", "source": "s"}


@pytest.mark.parametrize(
    "delta",
    [
        {"type": "citations_delta", "citation": CITED | {"cited_text": 5}},
        {"type": "citations_delta", "citation": CITED | {"search_result_index": "0"}},
        {"type": "citations_delta", "citation": CITED | {"end_block_index": None}},
        {"type": "citations_delta", "citation": CITED | {"start_block_index": 0.5}},
        {"type": "signature_delta", "signature": 5},
    ],
)
def test_a_delta_with_a_field_of_another_type_is_malformed(delta: dict[str, object]) -> None:
    decoder = AnswerDecoder()
    decoder.decode(b'{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}')
    with pytest.raises(ModelError) as error:
        decoder.decode(json.dumps({"type": "content_block_delta", "index": 0, "delta": delta}).encode())
    assert error.value.kind == "malformed_stream"


@pytest.mark.parametrize(
    ("index", "block"),
    [
        ("0", {"type": "text", "text": ""}),
        (0, {"type": "text", "text": 5}),
        (0, {"type": "thinking", "thinking": ["a"]}),
        (0, {"type": "thinking", "thinking": "", "signature": 5}),
        (0, {"type": "tool_use", "id": 5, "name": "look", "input": {}}),
        (0, {"type": "tool_use", "id": "t1", "name": None, "input": {}}),
    ],
)
def test_a_block_with_a_field_of_another_type_is_malformed(index: object, block: dict[str, object]) -> None:
    with pytest.raises(ModelError) as error:
        AnswerDecoder().decode(
            json.dumps({"type": "content_block_start", "index": index, "content_block": block}).encode()
        )
    assert error.value.kind == "malformed_stream"


def test_a_call_that_begins_with_an_empty_text_as_its_input_has_no_arguments() -> None:
    decoder = AnswerDecoder()
    block = {"type": "tool_use", "id": "t1", "name": "look", "input": ""}
    decoder.decode(json.dumps({"type": "content_block_start", "index": 0, "content_block": block}).encode())
    stopped = decoder.decode(b'{"type":"content_block_stop","index":0}')
    assert stopped == BlockStopped(0, block | {"input": {}})


async def test_an_endless_event_is_an_error() -> None:
    _, error = await call_with_failure(Fault(garbage_after=4, garbage="x" * (17 * 1024 * 1024)))
    assert (error.kind, error.retryable, error.started) == ("malformed_stream", True, True)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 64, 10_000])
async def test_an_answer_is_the_same_in_any_chunking_and_with_any_line_ends(chunk: int, newline: str) -> None:
    step = Step(STEP.blocks, usage=None)
    assert (await call_to_the_end(Fault(chunk=chunk, newline=newline), step))[1:] == (
        await call_to_the_end(Fault(), step)
    )[1:]


async def test_an_answer_that_is_not_a_stream_names_the_endpoint() -> None:
    async with connect(Reply(STEP, Fault(content_type="text/html; charset=utf-8")), say("fine")) as (model, api):
        outcome = await call_model(model)
        assert (await call_model(model)).error is None
    assert outcome.error is not None
    assert (outcome.error.retryable, outcome.events) == (False, [])
    assert str(outcome.error) == f"{api.url} answers with text/html, not with a stream. Check ANTHROPIC_BASE_URL."


# 7


def test_pings_are_not_events_so_that_silence_can_be_measured() -> None:
    def decode_frames(stream: list[bytes]) -> list[ModelEvent]:
        reader, decoder = SSEReader(), AnswerDecoder()
        decoded = [decoder.decode(data) for frame in stream for _, data in reader.feed(frame)]
        return [event for event in decoded if event is not None]

    assert decode_frames([chunk for frame in FRAMES for chunk in (frame, PING)]) == decode_frames(FRAMES)


async def test_a_silent_stream_can_be_cancelled_at_any_time() -> None:
    async with connect(Reply(demo(3), Fault(silent_after=5, ping_seconds=0.001))) as (model, api):
        with anyio.fail_after(240):
            async with model.stream(HELLO) as events:
                first_events = [await anext(events) for _ in range(4)]
            await api.calls[0].left.wait()
    assert isinstance(first_events[-1], TextDelta)


KEYS = [
    "type",
    "index",
    "delta",
    "content_block",
    "message",
    "usage",
    "error",
    "text",
    "thinking",
    "partial_json",
    "citation",
    "stop_reason",
    "model",
]
TYPES = [
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "error",
    "text_delta",
    "thinking_delta",
    "input_json_delta",
    "citations_delta",
    "signature_delta",
    "text",
    "tool_use",
    "thinking",
]
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)


@given(st.lists(st.tuples(st.sampled_from(TYPES), st.sampled_from(TYPES), JSONS, JSONS), max_size=6))
def test_any_json_is_an_event_or_a_model_error(values: list[tuple[str, str, object, object]]) -> None:
    decoder = AnswerDecoder()
    for kind, inner_kind, first, second in values:
        inner = {"type": inner_kind, **(second if isinstance(second, dict) else {"text": second})}
        value = {"type": kind, "index": 0, "delta": inner, "content_block": inner, "message": first, "usage": first}
        with suppress(ModelError):
            decoder.decode(json.dumps(value).encode())


# 8


@pytest.mark.parametrize("raw", ['{"q": ', '{"q": "ü', "nonsense", '"text"', "[["])
async def test_truncated_or_broken_tool_input_is_reported_and_never_guessed(raw: str) -> None:
    step = Step((Use("look", raw=raw, id="t1"),), stop_reason="max_tokens")
    events = await call_to_the_end(Fault(), step)
    (block,) = [getattr(event, "block", None) for event in events if type(event).__name__ == "BlockStopped"]
    assert block == {"type": "tool_use", "id": "t1", "name": "look", "input": {}, "_broken_input": raw}
