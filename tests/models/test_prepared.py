"""A request that lacks its last message, as bytes: with the message it is what would be sent otherwise."""

import json
from collections.abc import Sequence
from dataclasses import replace

import anyio
import httpx2
import pytest
from anyio.abc import SocketStream
from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.errors import ModelError
from agentic_rag.base.messages import Message, text_block, user_message
from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.models.anthropic.prepared import PreparedPost
from agentic_rag.models.anthropic.request import request_body
from agentic_rag.models.base import MessageCompleted, ModelRequest, SentRequest
from agentic_rag.models.http_push import PushClient, SentPost
from agentic_rag.models.http_stream import encode
from agentic_rag.models.profiles import profile_of
from agentic_rag.testing.fake_api import FakeMessagesAPI
from agentic_rag.testing.frames import frames
from agentic_rag.testing.steps import say, step_events
from tests.models.test_http_push import serving
from tests.models.test_request import FIND, HISTORY, LOOK, assistant

MODEL = "claude-sonnet-5-5"
ANSWER = assistant(text_block("So it is."))


class Pushed(PushClient):
    """Keeps the body of what is sent."""

    body = b""

    def send(self, head: bytes, body: bytes) -> SentPost | None:
        self.body = body
        return super().send(head, body)


TEXTS = st.one_of(
    st.text(st.characters()),  # lone surrogates too
    st.uuids().map(lambda each: each.hex),
    st.sampled_from(["\ud800", '"', "\\", '"}],"stream":false', "\0", " \n ", "\u2028", "x" * 100_000]),
)
HISTORIES = st.lists(TEXTS.map(user_message), max_size=2).map(lambda more: (*HISTORY, ANSWER, *more, ANSWER))


@given(
    text=TEXTS,
    history=HISTORIES,
    model=st.sampled_from([MODEL, "claude-haiku-5-5", "claude-opus-4-8", "other-model"]),
    thinking=st.sampled_from(["auto", "off"]),
    effort=st.sampled_from([None, "low", "max"]),
    temperature=st.sampled_from([None, 0.5]),
    whole=st.booleans(),
)
def test_with_any_words_it_is_the_body_that_is_sent_otherwise(
    text: str, history: tuple[Message, ...], model: str, thinking: str, effort: str, temperature: float, whole: bool
) -> None:
    request = ModelRequest(
        model,
        1000,
        (text_block("You are."),) if whole else (),
        history,
        (FIND, LOOK) if whole else (),
        temperature=temperature,
        thinking=thinking,  # type: ignore[arg-type]
        effort=effort,
    )
    push, profile = Pushed(httpx2.URL("http://127.0.0.1:1")), profile_of(model)
    prepared = PreparedPost.of(AnthropicModel("k"), push, b"", request, profile)
    assert prepared.send(text) is None, "no connection rests"
    if not text.strip():
        assert push.body == b""
        return
    asked = replace(request, messages=(*history, user_message(text)))
    assert json.loads(push.body) == json.loads(encode({**request_body(asked, profile), "stream": True}))
    assert prepared.size <= len(push.body)


REQUEST = ModelRequest(MODEL, 100, (), (user_message("hello"), ANSWER))


async def streamed(sent: SentRequest) -> int:
    async with sent.stream() as events:
        return len([event async for event in events])


async def test_it_is_prepared_once_all_is_known_and_sent_once_a_connection_rests() -> None:
    async with FakeMessagesAPI(then=lambda request: say("Hello.")) as api:
        model = AnthropicModel(api.key, api.url)
        assert model.prepare(REQUEST) is None, "there is no client yet"
        await model.warm_up()
        assert model.prepare(REQUEST) is None, "nor is it known what the model takes"
        async with model.stream(ModelRequest(MODEL, 100, (), (user_message("hello"),))) as events:
            assert isinstance([event async for event in events][-1], MessageCompleted)
        prepared = model.prepare(REQUEST)
        assert prepared is not None
        first = prepared.send("again")
        assert first is not None
        assert prepared.send("and again") is None, "the only connection is taken"
        assert await streamed(first) > 2
        given_up = prepared.send("or not")
        assert given_up is not None
        given_up.abandon()
        given_up.abandon()
        assert prepared.send("once more") is None
        await model.aclose()
        assert prepared.send("too late") is None
    assert [request["messages"][-1]["content"][0]["text"] for request in api.requests[:2]] == ["hello", "again"]


async def test_an_endpoint_that_is_given_marks_gets_each_request_when_it_is_asked() -> None:
    async with FakeMessagesAPI(then=lambda request: say("Hello.")) as api:
        model = AnthropicModel(api.key, api.url, citations="marks")
        async with model.stream(ModelRequest(MODEL, 100, (), (user_message("hello"),))) as events:
            assert [event async for event in events]
        assert model.prepare(REQUEST) is None
        await model.aclose()


def whole_answer() -> bytes:
    body = b"".join(frames(step_events(say("Here."), model=MODEL), "msg_1"))
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


CUT_REFUSAL = b"HTTP/1.1 429 Busy\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{"


async def sent_after(second: Sequence[bytes]) -> tuple[int, ModelError | None]:
    """Ask once, then ahead, to which ``second`` is the answer before the connection is closed; all others are whole.

    Return the number of requests, and what the second one's failure was.
    """
    asked = 0

    async def serve(stream: SocketStream) -> None:
        nonlocal asked
        async with stream:
            while True:
                request = b""
                while not request.endswith(b'"stream":true}'):
                    try:
                        request += await stream.receive()
                    except (anyio.EndOfStream, anyio.BrokenResourceError):
                        return
                asked += 1
                if asked == 2:
                    for piece in second:
                        await stream.send(piece)
                    return
                await stream.send(whole_answer())

    failure: ModelError | None = None
    async with serving(serve) as url:
        model = AnthropicModel("k", url)
        async with model.stream(ModelRequest("other-model", 100, (), (user_message("hello"),))) as events:
            assert [event async for event in events]
        prepared = model.prepare(ModelRequest("other-model", 100, (), (user_message("hello"), ANSWER)))
        sent = None if prepared is None else prepared.send("again")
        assert sent is not None
        try:
            await streamed(sent)
        except ModelError as exc:
            failure = exc
        await model.aclose()
    return asked, failure


async def test_what_was_sent_over_a_connection_that_the_service_closed_is_sent_again() -> None:
    assert await sent_after([]) == (3, None)


@pytest.mark.parametrize("cut", [CUT_REFUSAL, CUT_REFUSAL[:-1]])
async def test_a_refusal_that_breaks_off_is_not_asked_twice_at_once(cut: bytes) -> None:
    asked, failure = await sent_after([cut])
    assert asked == 2
    assert failure is not None
    assert failure.retryable
