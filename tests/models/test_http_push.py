"""Our own transport: an answer for each request, the same in any pieces, and never one that was cut off for a whole."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle

import anyio
import httpx2
import pytest
from anyio.abc import SocketAttribute, SocketStream
from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.errors import ModelError
from agentic_rag.base.messages import user_message
from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.models.base import (
    MessageCompleted,
    ModelEvent,
    ModelProgress,
    ModelRequest,
    Push,
    PushingEvents,
    TextDelta,
)
from agentic_rag.models.http_push import AHEAD_BYTES, HEAD_BYTES, PushClient
from agentic_rag.models.sse import MAX_EVENT_BYTES
from agentic_rag.testing.frames import frames
from agentic_rag.testing.steps import Say, Step, Think, Use, say, step_events

BODY = "Grüße 🚀 from afar. ".encode() * 9
PATIENCE = 30

Serve = Callable[[SocketStream], Awaitable[None]]


@dataclass
class Service:
    """Answers each request of a connection with the next of ``answers``, in these pieces; then it closes."""

    answers: Sequence[Sequence[bytes]]
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0

    async def __call__(self, stream: SocketStream) -> None:
        self.connections += 1
        async with stream:
            for pieces in self.answers:
                asked = b""
                while not asked.endswith(b"{}"):
                    try:
                        asked += await stream.receive()
                    except (anyio.EndOfStream, anyio.BrokenResourceError):
                        return
                self.requests.append(asked)
                for piece in pieces:
                    await stream.send(piece)
                    await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[str]:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        with anyio.fail_after(PATIENCE):
            yield f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def asking(serve: Serve) -> AsyncIterator[tuple[PushClient, bytes]]:
    async with serving(serve) as url:
        client = PushClient(httpx2.URL(url))
        try:
            yield client, client.head(b"/v1/messages", {"x-api-key": "k"})
        finally:
            await client.aclose()


async def read(client: PushClient, head: bytes) -> tuple[int, bytes]:
    response = await client.post(head, b"{}")
    try:
        return response.status_code, b"".join([piece async for piece in response.stream])  # type: ignore[union-attr]
    finally:
        await response.aclose()


def chunked(body: bytes, sizes: Sequence[int]) -> bytes:
    """Return a body in chunks of these sizes in turn."""
    parts, at, number = [], 0, 0
    while at < len(body):
        size = sizes[number % len(sizes)]
        part = body[at : at + size]
        parts.append(b"%x\r\n%s\r\n" % (len(part), part))
        at, number = at + size, number + 1
    return b"".join([*parts, b"0\r\n\r\n"])


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False) if end > start]


def in_chunks(sizes: Sequence[int]) -> bytes:
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(BODY, sizes)


WITH_LENGTH = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY)
TO_THE_END = b"HTTP/1.1 200 OK\r\n\r\n" + BODY
ANSWERS: dict[str, Callable[[Sequence[int]], bytes]] = {
    "in chunks": in_chunks,
    "with a length": lambda sizes: WITH_LENGTH,
    "to the end": lambda sizes: TO_THE_END,
    "after an interim one": lambda sizes: b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + in_chunks(sizes),
}


@pytest.mark.parametrize("kind", ANSWERS)
@given(sizes=st.lists(st.integers(1, 60), min_size=1), places=st.lists(st.integers(0, 10_000), max_size=20))
def test_an_answer_is_the_same_in_any_pieces(kind: str, sizes: list[int], places: list[int]) -> None:
    async def main() -> None:
        service = Service([cut(ANSWERS[kind](sizes), places)])
        async with asking(service) as (client, head):
            assert await read(client, head) == (200, BODY)

    anyio.run(main)


@pytest.mark.parametrize("kind", ["in chunks", "with a length"])
@given(place=st.integers(0, 10_000))
def test_an_answer_that_is_cut_off_anywhere_is_an_error(kind: str, place: int) -> None:
    whole = ANSWERS[kind]([7])

    async def main() -> None:
        service = Service([[whole[: place % len(whole)]]])
        async with asking(service) as (client, head):
            with pytest.raises(httpx2.TransportError):
                await read(client, head)

    anyio.run(main)


async def test_one_connection_takes_one_request_after_the_other() -> None:
    service = Service([[in_chunks([9])]] * 5)
    async with asking(service) as (client, head):
        assert [await read(client, head) for _ in range(5)] == [(200, BODY)] * 5
    assert service.connections == 1
    assert service.requests[0].startswith(b"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1:")
    assert service.requests[0].endswith(b"\r\nx-api-key: k\r\ncontent-length: 2\r\n\r\n{}")


@pytest.mark.parametrize(
    "answer",
    [
        TO_THE_END,
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\nx",
        b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx",
        WITH_LENGTH + WITH_LENGTH,
        WITH_LENGTH + b"and more",
    ],
)
async def test_a_connection_that_is_not_as_it_should_be_is_not_used_again(answer: bytes) -> None:
    service = Service([[answer]])
    async with asking(service) as (client, head):
        first = await read(client, head)
        assert await read(client, head) == first
    assert service.connections == 2


async def test_an_answer_that_nobody_reads_makes_the_service_wait() -> None:
    sent = 0
    closed = anyio.Event()

    async def serve(stream: SocketStream) -> None:
        nonlocal sent
        async with stream:
            await stream.receive()
            try:
                await stream.send(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    await stream.send(bytes(2**16))
                    sent += 2**16
            except anyio.BrokenResourceError:
                closed.set()

    async with asking(serve) as (client, head):
        response = await client.post(head, b"{}")
        before = -1
        while before != sent:  # until no more is taken
            before = sent
            with anyio.move_on_after(0.2):
                await closed.wait()
        assert AHEAD_BYTES <= sent < 64 * AHEAD_BYTES
        await response.aclose()
        await closed.wait()


async def test_what_is_sent_ahead_needs_a_connection_that_rests() -> None:
    service = Service([[WITH_LENGTH]] * 2)
    async with asking(service) as (client, head):
        assert client.send(head, b"{}") is None
        assert service.connections == 0
        await read(client, head)
        sent = client.send(head, b"{}")
        assert sent is not None
        response = await sent.answer()
        assert b"".join([piece async for piece in response.stream]) == BODY  # type: ignore[union-attr]
        await response.aclose()
    assert service.connections == 1
    assert len(service.requests) == 2


@pytest.mark.parametrize("place", ["at once", "once it has come", "twice"])
async def test_what_was_sent_and_is_abandoned_closes_its_connection(place: str) -> None:
    came, closed, asked = anyio.Event(), anyio.Event(), 0

    async def serve(stream: SocketStream) -> None:
        nonlocal asked
        async with stream:
            try:
                while True:
                    await stream.receive()
                    asked += 1
                    await stream.send(WITH_LENGTH)
                    if asked == 2:
                        came.set()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                closed.set()

    async with asking(serve) as (client, head):
        await read(client, head)
        sent = client.send(head, b"{}")
        assert sent is not None
        if place != "at once":
            await came.wait()
            await anyio.wait_all_tasks_blocked()
        sent.abandon()
        if place == "twice":
            sent.abandon()
        await closed.wait()
        assert client.send(head, b"{}") is None


async def test_who_waits_for_what_was_sent_and_is_cancelled_closes_its_connection() -> None:
    closed, asked = anyio.Event(), 0

    async def serve(stream: SocketStream) -> None:
        nonlocal asked
        async with stream:
            try:
                while True:
                    await stream.receive()
                    asked += 1
                    if asked == 1:
                        await stream.send(WITH_LENGTH)
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                closed.set()

    async with asking(serve) as (client, head):
        await read(client, head)
        sent = client.send(head, b"{}")
        assert sent is not None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sent.answer)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        await closed.wait()


@pytest.mark.parametrize("second", [WITH_LENGTH, TO_THE_END, b""])
async def test_an_answer_that_is_complete_or_cut_before_anybody_reads_it(second: bytes) -> None:
    service = Service([[WITH_LENGTH], [second]])
    async with asking(service) as (client, head):
        await read(client, head)
        sent = client.send(head, b"{}")
        assert sent is not None
        while sent._connection._transport is not None:  # the service has closed it
            await anyio.lowlevel.checkpoint()
        if not second:
            with pytest.raises(httpx2.RemoteProtocolError):
                await sent.answer()
            return
        response = await sent.answer()
        assert b"".join([piece async for piece in response.stream]) == BODY  # type: ignore[union-attr]
        await response.aclose()


async def test_what_lies_unread_of_what_was_sent_ahead_is_bounded() -> None:
    sent_bytes = 0
    closed = anyio.Event()

    async def serve(stream: SocketStream) -> None:
        nonlocal sent_bytes
        async with stream:
            await stream.receive()
            await stream.send(WITH_LENGTH)
            await stream.receive()
            try:
                await stream.send(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    await stream.send(bytes(2**16))
                    sent_bytes += 2**16
            except anyio.BrokenResourceError:
                closed.set()

    async with asking(serve) as (client, head):
        await read(client, head)
        sent = client.send(head, b"{}")
        assert sent is not None
        before = -1
        while before != sent_bytes:  # until no more is taken
            before = sent_bytes
            with anyio.move_on_after(0.2):
                await closed.wait()
        assert AHEAD_BYTES <= sent_bytes < 64 * AHEAD_BYTES
        sent.abandon()
        await closed.wait()


async def test_headers_without_an_end_are_refused() -> None:
    async def serve(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 200 OK\r\n" + b"a: %s\r\n" % (b"x" * 1000) * (HEAD_BYTES // 900))
            await anyio.sleep_forever()

    async with asking(serve) as (client, head):
        with pytest.raises(httpx2.RemoteProtocolError, match="too long"):
            await client.post(head, b"{}")


async def test_what_is_no_http_is_an_error() -> None:
    async with asking(Service([[b"SSH-2.0-OpenSSH_9.6\r\n"]])) as (client, head):
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.post(head, b"{}")


@pytest.mark.parametrize("value", ["a\r\nx-other: b", "a\nb", "\0"])
def test_a_header_cannot_bring_another(value: str) -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        PushClient(httpx2.URL("http://127.0.0.1:1")).head(b"/", {"x-own": value})


def test_who_needs_a_proxy_or_a_password_gets_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert PushClient.for_service(httpx2.URL("http://api.example/v1/")) is not None
    assert PushClient.for_service(httpx2.URL("http://u:p@api.example/")) is None
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:3128")
    assert PushClient.for_service(httpx2.URL("https://api.example/")) is None
    assert PushClient.for_service(httpx2.URL("http://api.example/")) is not None
    monkeypatch.setenv("no_proxy", "api.example")
    assert PushClient.for_service(httpx2.URL("https://api.example/")) is not None


async def test_a_redirect_is_followed() -> None:
    answer = b"".join(frames(step_events(say("Here."), model="m"), "msg_1"))
    kind = b"content-type: text/event-stream\r\nconnection: close\r\n"
    asked: list[bytes] = []

    async def serve(stream: SocketStream) -> None:
        async with stream:
            request = b""
            while b'"stream":true}' not in request:
                try:
                    request += await stream.receive()
                except anyio.EndOfStream:
                    return
            asked.append(request.partition(b" HTTP")[0])
            if asked[-1] == b"POST /v1/messages":
                await stream.send(b"HTTP/1.1 307 Elsewhere\r\nlocation: /v2/messages\r\nconnection: close\r\n")
                await stream.send(b"content-length: 0\r\n\r\n")
            else:
                await stream.send(b"HTTP/1.1 200 OK\r\n%scontent-length: %d\r\n\r\n%s" % (kind, len(answer), answer))

    async with serving(serve) as url:
        model = AnthropicModel("k", url)
        for _ in range(2):
            assert isinstance((await events_of(model))[-1], MessageCompleted)
        await model.aclose()
    first, second = b"POST /v1/messages", b"POST /v2/messages"
    assert asked == [first, first, second, first, second], "by our own transport once, then by the SDK's"


SAID = Step((Think("Let me see."), Say("Grüße 🚀 from afar."), Use("search", {"q": "a \n b"}), Say("Done. And more.")))
HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
STREAM = b"".join(frames(step_events(SAID, model="m"), "msg_1"))


@given(
    sizes=st.lists(st.integers(1, 200), min_size=1),
    places=st.lists(st.integers(0, 10_000), max_size=20),
    taken=st.lists(st.booleans(), min_size=1),
)
def test_events_come_once_and_in_order_whichever_way(sizes: list[int], places: list[int], taken: list[bool]) -> None:
    """Some are taken where their bytes come, some are waited for."""

    async def main() -> None:
        answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(STREAM, sizes)
        pulled, failure = await streamed([answer])
        assert isinstance(pulled[-1], MessageCompleted)
        turn = cycle(taken)
        assert await streamed(cut(answer, places), lambda event: next(turn)) == (pulled, failure)

    anyio.run(main)


async def test_deltas_wake_nobody_and_the_rest_is_waited_for() -> None:
    """A delta that comes while the next event is waited for is taken where it comes."""
    pieces = [HEAD, *STREAM.split(b"\n\n")]
    waiting = anyio.Event()
    pushed: list[ModelEvent] = []

    async def serve(stream: SocketStream) -> None:
        async with stream:
            asked = b""
            while not asked.endswith(b'"stream":true}'):
                asked += await stream.receive()
            await stream.send(pieces[0] + pieces[1] + b"\n\n")
            await waiting.wait()
            for piece in pieces[2:]:
                await stream.send(piece + b"\n\n")
                await anyio.wait_all_tasks_blocked()

    def take(event: ModelEvent) -> bool:
        pushed.append(event)
        return isinstance(event, TextDelta)

    async with serving(serve) as url:
        model = AnthropicModel("k", url)
        async with model.stream(HELLO) as events:
            first = await anext(aiter(events))
            assert isinstance(events, PushingEvents)
            events.push(take)
            waiting.set()
            rest = [event async for event in events]
        await model.aclose()
    assert first not in pushed
    assert any(isinstance(event, TextDelta) for event in pushed)
    assert not any(isinstance(event, TextDelta) for event in rest), "each was taken where it came"
    assert [event for event in pushed if not isinstance(event, TextDelta)] == rest


@pytest.mark.parametrize(
    ("rest", "kind"),
    [
        (b"data: {\n\n", "malformed_stream"),
        (b"data: " + b"x" * MAX_EVENT_BYTES, "malformed_stream"),
        (b"", "incomplete_stream"),
    ],
)
async def test_what_breaks_an_answer_off_comes_after_what_was_before(rest: bytes, kind: str) -> None:
    half = STREAM[: STREAM.index(b"event: content_block_stop")]
    found, failure = await streamed([HEAD, half, rest], lambda event: True)
    assert found == (await streamed([HEAD, half, rest]))[0]
    assert isinstance(failure, ModelError)
    assert (failure.kind, failure.started) == (kind, True)


async def test_what_follows_an_answer_is_nothing_of_it() -> None:
    more = [STREAM[:-1], b"\n", *(each + b"\n\n" for each in STREAM.split(b"\n\n"))]
    assert await streamed([HEAD, *more], lambda event: True) == await streamed([HEAD, STREAM])


async def test_an_error_of_who_takes_is_raised_where_the_next_event_is_waited_for() -> None:
    def take(event: ModelEvent) -> bool:
        raise KeyError("no such block")

    _, failure = await streamed([HEAD, *(each + b"\n\n" for each in STREAM.split(b"\n\n"))], take)
    assert isinstance(failure, KeyError)


async def streamed(pieces: Sequence[bytes], take: Push | None = None) -> tuple[list[ModelEvent], Exception | None]:
    """Return the events of an answer in the order in which they came, either way, and what broke it off."""
    found: list[ModelEvent] = []
    failure: Exception | None = None

    def push(event: ModelEvent) -> bool:
        taken = take is not None and take(event)
        if taken:
            found.append(event)
        return taken

    async def serve(stream: SocketStream) -> None:
        async with stream:
            asked = b""
            while not asked.endswith(b'"stream":true}'):
                asked += await stream.receive()
            with suppress(anyio.BrokenResourceError):
                for piece in pieces:
                    await stream.send(piece)
                    await anyio.lowlevel.checkpoint()

    async with serving(serve) as url:
        model = AnthropicModel("k", url)
        try:
            async with model.stream(HELLO) as events:
                assert isinstance(events, PushingEvents)
                events.push(push)
                async for event in events:
                    found.append(event)  # noqa: PERF401 - the other way appends to it meanwhile
        except (ModelError, KeyError) as exc:
            failure = exc
        await model.aclose()
    return [event for event in found if not isinstance(event, ModelProgress)], failure


HELLO = ModelRequest("other-model", 100, (), (user_message("hello"),))


async def events_of(model: AnthropicModel) -> list[ModelEvent]:
    async with model.stream(HELLO) as events:
        return [event async for event in events]
