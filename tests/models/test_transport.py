"""Answers over the SDK's transport: the same events in any pieces, and an error at every cut."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import anyio
import pytest
from aiohttp import StreamReader
from anthropic import DefaultAioHttpClient
from anyio.abc import SocketAttribute, SocketStream

from agentic_rag.base.errors import ModelError
from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import user_message
from agentic_rag.models.anthropic.model import AnthropicModel, http_options
from agentic_rag.models.base import MessageCompleted, ModelEvent, ModelProgress, ModelRequest
from agentic_rag.models.http_stream import aiohttp_reader, chunks_of
from agentic_rag.models.sse import MAX_EVENT_BYTES
from agentic_rag.testing.frames import frames
from agentic_rag.testing.steps import Say, Step, Think, Use, step_events

PATIENCE = 30
HELLO = ModelRequest("other-model", 100, (), (user_message("hello"),))
SAID = Step((Think("Let me see."), Say("Grüße 🚀 from afar."), Use("search", {"q": "a \n b"}), Say("Done. And more.")))
STREAM = b"".join(frames(step_events(SAID, model="m"), "msg_1"))
KIND = b"content-type: text/event-stream\r\n"
WITH_LENGTH = b"HTTP/1.1 200 OK\r\n%scontent-length: %d\r\n\r\n%s" % (KIND, len(STREAM), STREAM)
TO_THE_END = b"HTTP/1.1 200 OK\r\n%s\r\n%s" % (KIND, STREAM)
MOST_UNREAD = 16 * 2**20
"""Bytes of an unread answer that the client and the sockets may buffer."""

Serve = Callable[[SocketStream], Awaitable[None]]


def encode_chunks(body: bytes, sizes: Sequence[int]) -> bytes:
    """Return an answer in chunks of these sizes in turn."""
    chunks, start, number = [], 0, 0
    while start < len(body):
        size = sizes[number % len(sizes)]
        chunk = body[start : start + size]
        chunks.append(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        start, number = start + size, number + 1
    return b"".join([b"HTTP/1.1 200 OK\r\n%sTransfer-Encoding: chunked\r\n\r\n" % KIND, *chunks, b"0\r\n\r\n"])


def cut_data(data: bytes, offsets: Sequence[int]) -> list[bytes]:
    """Return the data cut at these offsets."""
    ends = sorted({offset % (len(data) + 1) for offset in offsets} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False) if end > start]


async def take_request(stream: SocketStream) -> bytes:
    """Return the bytes of the next request, or the bytes received before the connection ended."""
    received = b""
    while not received.endswith(b'"stream":true}'):
        try:
            received += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return b""
    return received


@dataclass
class Service:
    """Answers each request of a connection with the next of ``answers``, in these pieces, and then closes it."""

    answers: Sequence[Sequence[bytes]]
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0

    async def __call__(self, stream: SocketStream) -> None:
        self.connections += 1
        async with stream:
            for pieces in self.answers:
                if not (request := await take_request(stream)):
                    return
                self.requests.append(request)
                with suppress(anyio.BrokenResourceError):
                    for piece in pieces:
                        await stream.send(piece)
                        await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[str]:
    """Yield the URL of a service that runs ``serve``."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        with anyio.fail_after(PATIENCE):
            yield f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def connect(serve: Serve) -> AsyncIterator[AnthropicModel]:
    """Yield a model whose service runs ``serve``."""
    async with serving(serve) as url:
        model = AnthropicModel("k", url)
        try:
            yield model
        finally:
            await model.aclose()


async def read_answer(model: AnthropicModel) -> tuple[list[ModelEvent], ModelError | None]:
    """Return the events of one answer, and the error that ended it."""
    events: list[ModelEvent] = []
    try:
        async with model.stream(HELLO) as answer:
            async for event in answer:
                events += [] if isinstance(event, ModelProgress) else [event]
    except ModelError as exc:
        return events, exc
    return events, None


async def read_pieces(pieces: Sequence[bytes]) -> tuple[list[ModelEvent], ModelError | None]:
    async with connect(Service([pieces])) as model:
        return await read_answer(model)


async def read_whole_answer() -> list[ModelEvent]:
    events, failure = await read_pieces([WITH_LENGTH])
    assert failure is None
    assert isinstance(events[-1], MessageCompleted)
    return events


ANSWERS: dict[str, Callable[[Sequence[int]], bytes]] = {
    "in chunks": lambda sizes: encode_chunks(STREAM, sizes),
    "with a length": lambda sizes: WITH_LENGTH,
    "to the end": lambda sizes: TO_THE_END,
    "after an interim one": lambda sizes: b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + encode_chunks(STREAM, sizes),
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_an_answer_is_the_same_in_any_chunking(kind: str) -> None:
    expected = await read_whole_answer()
    answers = [
        ([7], [1, 10, 20, 21, 150, 151, 400]),
        ([1], [40]),
        ([60, 3], range(0, len(STREAM), 11)),
        ([len(STREAM)], [len(WITH_LENGTH) - 1]),
    ]
    for sizes, offsets in answers:
        assert await read_pieces(cut_data(ANSWERS[kind](sizes), list(offsets))) == (expected, None)


@pytest.mark.parametrize("kind", ["in chunks", "with a length"])
async def test_a_truncated_answer_is_an_error_or_complete(kind: str) -> None:
    answer = ANSWERS[kind]([7])
    truncated_answers = [answer[:length] for length in range(0, len(answer), 41)]
    remaining = iter(truncated_answers)

    async def serve(stream: SocketStream) -> None:
        async with stream:
            await take_request(stream)
            await stream.send(next(remaining))

    expected = await read_whole_answer()
    async with connect(serve) as model:
        for truncated in truncated_answers:
            events, failure = await read_answer(model)
            assert events == expected[: len(events)], truncated
            assert (len(events) == len(expected)) or (failure is not None and failure.retryable), truncated


async def test_one_connection_handles_requests_in_sequence() -> None:
    service = Service([[encode_chunks(STREAM, [9])]] * 5)
    expected = await read_whole_answer()
    async with connect(service) as model:
        assert [await read_answer(model) for _ in range(5)] == [(expected, None)] * 5
    assert service.connections == 1
    assert service.requests[0].startswith(b"POST /v1/messages HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "answer",
    [
        TO_THE_END,
        WITH_LENGTH.replace(KIND, KIND + b"connection: close\r\n"),
        WITH_LENGTH.replace(b"HTTP/1.1", b"HTTP/1.0"),
    ],
)
async def test_a_connection_that_the_service_closes_is_not_reused(answer: bytes) -> None:
    service = Service([[answer]])
    async with connect(service) as model:
        first_answer = await read_answer(model)
        assert await read_answer(model) == first_answer == (await read_whole_answer(), None)
    assert service.connections == 2


async def test_bytes_after_an_answer_are_not_part_of_the_next() -> None:
    expected = await read_whole_answer()
    service = Service([[WITH_LENGTH + WITH_LENGTH.replace(b"from", b"FROM")]])
    async with connect(service) as model:
        assert await read_answer(model) == (expected, None)
        events, failure = await read_answer(model)
    assert events == expected[: len(events)]
    assert failure is None or failure.retryable


async def test_an_unread_answer_pauses_the_service() -> None:
    sent_bytes = 0
    closed = anyio.Event()

    async def serve(stream: SocketStream) -> None:
        nonlocal sent_bytes
        async with stream:
            await take_request(stream)
            try:
                await stream.send(b"HTTP/1.1 200 OK\r\n%s\r\n" % KIND)
                while True:
                    await stream.send(b": nothing\n\n" * 2**13)
                    sent_bytes += 2**13 * 11
            except anyio.BrokenResourceError:
                closed.set()

    async with connect(serve) as model:
        async with model.stream(HELLO):
            sent_before = -1
            while sent_before != sent_bytes:  # until the socket accepts no more
                sent_before = sent_bytes
                with anyio.move_on_after(0.2):
                    await closed.wait()
            assert sent_bytes < MOST_UNREAD
        await closed.wait()


async def test_headers_without_an_end_are_refused() -> None:
    async def serve(stream: SocketStream) -> None:
        async with stream:
            await take_request(stream)
            with suppress(anyio.BrokenResourceError):
                await stream.send(b"HTTP/1.1 200 OK\r\n" + b"a: %s" % (b"x" * 2**20))
                await anyio.sleep_forever()

    async with connect(serve) as model:
        events, failure = await read_answer(model)
    assert events == []
    assert failure is not None
    assert not failure.started


async def test_an_answer_that_is_not_http_is_retryable() -> None:
    events, failure = await read_pieces([b"SSH-2.0-OpenSSH_9.6\r\n"])
    assert events == []
    assert failure is not None
    assert (failure.started, failure.retryable) == (False, True)


async def test_a_redirect_is_followed() -> None:
    request_lines: list[bytes] = []

    async def serve(stream: SocketStream) -> None:
        async with stream:
            request_lines.append((await take_request(stream)).partition(b" HTTP")[0])
            if request_lines[-1] == b"POST /v1/messages":
                await stream.send(b"HTTP/1.1 307 Elsewhere\r\nlocation: /v2/messages\r\nconnection: close\r\n")
                await stream.send(b"content-length: 0\r\n\r\n")
            else:
                await stream.send(WITH_LENGTH.replace(KIND, KIND + b"connection: close\r\n"))

    expected = await read_whole_answer()
    async with connect(serve) as model:
        assert await read_answer(model) == (expected, None)
    assert request_lines == [b"POST /v1/messages", b"POST /v2/messages"]


@pytest.mark.parametrize(
    ("rest", "kind"),
    [
        (b"data: {\n\n", "malformed_stream"),
        (b"data: " + b"x" * MAX_EVENT_BYTES, "malformed_stream"),
        (b"", "incomplete_stream"),
    ],
)
async def test_an_error_within_an_answer_comes_after_the_events_before_it(rest: bytes, kind: str) -> None:
    beginning = STREAM[: STREAM.index(b"event: content_block_stop")]
    events, failure = await read_pieces([b"HTTP/1.1 200 OK\r\n\r\n", beginning + rest])
    expected = await read_whole_answer()
    assert events == expected[: len(events)]
    assert len(events) > 2
    assert isinstance(failure, ModelError)
    assert (failure.kind, failure.started) == (kind, True)


async def test_events_after_the_end_of_an_answer_are_ignored() -> None:
    more = [STREAM[:-1], b"\n", *(event + b"\n\n" for event in STREAM.split(b"\n\n"))]
    assert await read_pieces([b"HTTP/1.1 200 OK\r\n\r\n", *more]) == (await read_whole_answer(), None)


async def test_the_body_of_an_answer_is_read_from_the_transport_itself() -> None:
    async def serve(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(WITH_LENGTH)

    async with serving(serve) as url, http_options()["http_client"] as client, client.stream("GET", url) as response:
        assert isinstance(aiohttp_reader(response), StreamReader)
        assert b"".join([chunk async for chunk in chunks_of(response)]) == STREAM


@pytest.mark.parametrize("more", [{}, {"params": {"beta": "true"}}, {"extensions": {"sni_hostname": "a"}}])
async def test_a_request_of_the_sdk_is_built_as_its_own_client_builds_it(more: Json) -> None:
    options = http_options()
    headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity", "User-Agent": "sdk", "X-Api-Key": "key"}
    arguments = {"headers": headers, "content": b"{}", "timeout": options["timeout"], "params": None, **more}
    built_requests = []
    async with options["http_client"] as client, DefaultAioHttpClient() as own_client:
        for http_client in (client, own_client):
            http_client.cookies.set("session", "1", domain="service.test")
            request = http_client.build_request("POST", "https://service.test/v1/messages", **arguments)
            request.headers.pop("connection", None)  # aiohttp keeps each connection without it
            fields = sorted(request.headers.multi_items())
            built_requests.append((request.method, request.url, fields, request.content, request.extensions))
    assert "cookie" in dict(built_requests[0][2])
    assert built_requests[0] == built_requests[1]
