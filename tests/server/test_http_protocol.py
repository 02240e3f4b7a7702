"""Every connection of an unauthenticated client ends: over real sockets, on the product's own HTTP protocol."""

import contextlib
import json
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from agentic_rag.server.auth import Guard
from agentic_rag.server.http_protocol import ConnectionLimits, Entrance
from tests.access.tenants import make_key
from tests.access.tenants import socket as chat_socket
from tests.e2e.serving import serving as serving_process
from tests.server.rig import Rig
from tests.waiting import pause
from tests.ws.memory import Desk
from tests.ws.serving import PATIENCE, application, client, serving

PROMPT = ConnectionLimits(header_seconds=0.2, body_seconds=0.2, send_seconds=0.2, linger_seconds=0.5)
"""Limits short enough for a test."""
CALM = ConnectionLimits()
GET = b"GET /echo HTTP/1.1\r\nHost: 127.0.0.1\r\n"
POST = b"POST /echo HTTP/1.1\r\nHost: 127.0.0.1\r\n"
HANDSHAKE = (
    b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
POUR = b"x" * (1 << 20)
"""Larger than any buffer of a loopback connection."""


async def echo(request: Request) -> Response:
    return JSONResponse({"bytes": len(await request.body())})


class Pour:
    """An answer without end; it records the end of its connection."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await StreamingResponse(self._parts())(scope, receive, send)
        finally:
            scope["app"].state.cut.set()

    async def _parts(self) -> AsyncIterator[bytes]:
        while True:
            yield POUR
            await anyio.lowlevel.checkpoint()


def plain_app(aborted: anyio.Event | None = None) -> Guard:
    app = Starlette(routes=[Route("/echo", echo, methods=["GET", "POST"]), Route("/pour", Pour())])
    app.state.cut = aborted
    return Guard(app)


class RawPeer:
    """A raw connection with a time limit."""

    def __init__(self, stream: SocketStream) -> None:
        self.stream = stream

    async def send(self, data: bytes) -> None:
        with anyio.fail_after(PATIENCE):
            await self.stream.send(data)

    async def read_to_the_end(self) -> bytes:
        """Return all bytes until the server closes the connection."""
        received = b""
        with anyio.fail_after(PATIENCE):
            while True:
                try:
                    received += await self.stream.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return received

    async def answer(self) -> tuple[int, str]:
        """Return status and error code of the only answer before the end."""
        head, _, body = (await self.read_to_the_end()).partition(b"\r\n\r\n")
        assert b"connection: close" in head.lower(), head
        return int(head.split()[1]), json.loads(body)["error"]["code"]

    async def status(self) -> int:
        """Return the status of an answer, read up to its header's end."""
        received = b""
        with anyio.fail_after(PATIENCE):
            while b"\r\n\r\n" not in received:
                received += await self.stream.receive()
        return int(received.split()[1])


@asynccontextmanager
async def connect_raw(address: str) -> AsyncIterator[RawPeer]:
    host, _, port = address.rpartition(":")
    async with await anyio.connect_tcp(host.removeprefix("http://"), int(port)) as stream:
        yield RawPeer(stream)


@asynccontextmanager
async def serve_dripping(start: bytes) -> AsyncIterator[RawPeer]:
    """Serve, and connect a peer that sends a text and then single bytes while the block runs."""

    async def drip() -> None:
        await peer.send(start)
        while True:
            await peer.send(b"x")
            await anyio.lowlevel.checkpoint()

    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(serving(plain_app(), http=Entrance(PROMPT)))
        peer = await stack.enter_async_context(connect_raw(address))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        tasks.start_soon(drip)
        yield peer
        tasks.cancel_scope.cancel()


# Headers


@pytest.mark.parametrize(
    "header",
    [
        b"X: " + b"x" * 70_000 + b"\r\n\r\n",
        b"".join(b"X-%d: %s\r\n" % (n, b"x" * 1000) for n in range(70)) + b"\r\n",
        b"X: " + b"x" * 400_000,
        b"".join(b"X-%d: x\r\n" % n for n in range(40_000)),
    ],
    ids=["one", "many", "one without end", "many without end"],
)
async def test_more_than_64_kib_of_headers_are_refused(header: bytes) -> None:
    async with serving(plain_app(), http=Entrance()) as address, connect_raw(address) as peer:
        await peer.send(GET + header)
        assert await peer.answer() == (431, "HEADERS_TOO_LARGE")


async def test_the_request_target_counts_to_the_header_limit() -> None:
    async with serving(plain_app(), http=Entrance()) as address, connect_raw(address) as peer:
        await peer.send(b"GET /echo?" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert await peer.answer() == (431, "HEADERS_TOO_LARGE")


async def test_trailers_count_to_the_limit_and_are_not_headers() -> None:
    async with serving(plain_app(), http=Entrance()) as address, connect_raw(address) as peer:
        await peer.send(
            POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n" + b"X: " + b"x" * 70_000 + b"\r\n\r\n"
        )
        assert await peer.answer() == (431, "HEADERS_TOO_LARGE")


async def test_requests_with_60_kib_of_headers_and_a_large_body_are_answered() -> None:
    async with serving(plain_app(), http=Entrance()) as address, connect_raw(address) as peer:
        await peer.send(POST + b"X: " + b"x" * 60_000 + b"\r\nContent-Length: 3000000\r\nConnection: close\r\n\r\n")
        await peer.send(b"x" * 3_000_000)
        assert b'{"bytes":3000000}' in await peer.read_to_the_end()


@pytest.mark.parametrize("data", [b"G", GET, b"\r\n" * 10], ids=["a letter", "half a header", "empty lines"])
async def test_a_header_without_an_end_times_out(data: bytes) -> None:
    async with serving(plain_app(), http=Entrance(PROMPT)) as address, connect_raw(address) as peer:
        await peer.send(data)
        assert await peer.answer() == (408, "REQUEST_TIMEOUT")


async def test_a_header_sent_byte_by_byte_times_out() -> None:
    async with serve_dripping(GET + b"X: ") as peer:
        assert await peer.answer() == (408, "REQUEST_TIMEOUT")


async def test_a_silent_connection_is_closed_without_an_answer() -> None:
    async with serving(plain_app(), http=Entrance(PROMPT)) as address, connect_raw(address) as peer:
        assert await peer.read_to_the_end() == b""


async def test_a_second_request_without_an_end_times_out() -> None:
    async with serving(plain_app(), http=Entrance(PROMPT)) as address, connect_raw(address) as peer:
        await peer.send(GET + b"\r\n" + GET)
        received = await peer.read_to_the_end()
        assert received.startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 408" in received


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64, b"\xff" * 200, b"GET /\xff\xfe HTTP/1.1\r\n\r\n"],
)
async def test_an_invalid_http_request_is_refused(data: bytes) -> None:
    async with serving(plain_app(), http=Entrance()) as address, connect_raw(address) as peer:
        await peer.send(data)
        assert await peer.answer() == (400, "BAD_REQUEST")


# Bodies and answers


@pytest.mark.parametrize(
    "start",
    [
        b"Content-Length: 10\r\n\r\nxxx",
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nxxx\r\n",
        b"Content-Length: 10\r\n\r\n",
    ],
    ids=["length", "chunks", "no byte"],
)
async def test_a_stalled_body_times_out(start: bytes) -> None:
    async with serving(plain_app(), http=Entrance(PROMPT)) as address, connect_raw(address) as peer:
        await peer.send(POST + start)
        assert await peer.answer() == (408, "REQUEST_TIMEOUT")


async def test_chunk_framing_is_not_part_of_the_body() -> None:
    async with serve_dripping(POST + b"Transfer-Encoding: chunked\r\n\r\n5;x=") as peer:
        assert await peer.answer() == (408, "REQUEST_TIMEOUT")


async def test_an_early_answer_does_not_wait_for_the_rest_of_the_body() -> None:
    async with serve_dripping(POST.replace(b"echo", b"nowhere") + b"Content-Length: 1000000000\r\n\r\n") as peer:
        assert (await peer.read_to_the_end()).startswith(b"HTTP/1.1 404")


async def test_an_answer_that_the_client_does_not_read_is_abandoned() -> None:
    aborted = anyio.Event()
    async with serving(plain_app(aborted), http=Entrance(PROMPT)) as address:
        with socket.socket() as deaf:
            deaf.connect(("127.0.0.1", int(address.rpartition(":")[2])))
            deaf.sendall(b"GET /pour HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            with anyio.fail_after(PATIENCE):
                await aborted.wait()
            await anyio.to_thread.run_sync(read_to_the_end, deaf)


def read_to_the_end(deaf: socket.socket) -> None:
    """Read the buffered bytes; then the connection must end."""
    deaf.settimeout(PATIENCE)
    with contextlib.suppress(ConnectionResetError):
        while deaf.recv(1 << 20):
            pass


# Handshakes


@pytest.mark.parametrize(
    "lines",
    [
        b"".join(b"X-%d: x\r\n" % n for n in range(200)) + b"\r\n",
        b"X: " + b"x" * 9000 + b"\r\n\r\n",
        b"Content-Length: 5\r\n\r\nhello",
    ],
    ids=["too many lines", "too long a line", "a body"],
)
async def test_an_unreadable_handshake_is_answered(lines: bytes) -> None:
    desk = Desk()
    async with serving(application(desk, desk)) as address, connect_raw(address) as peer:
        await peer.send(HANDSHAKE + lines)
        assert await peer.answer() == (400, "BAD_REQUEST")


@pytest.mark.parametrize("line", [b"Sec-WebSocket-Version: 8\r\n", b"Sec-WebSocket-Key: x\r\n", b"Upgrade: tea\r\n"])
async def test_a_refused_handshake_is_closed(line: bytes) -> None:
    name = line.partition(b":")[0]
    lines = [line for line in HANDSHAKE.splitlines(keepends=True) if not line.startswith(name)]
    desk = Desk()
    async with serving(application(desk, desk), http=Entrance(PROMPT)) as address, connect_raw(address) as peer:
        await peer.send(b"".join(lines) + line + b"\r\n")
        received = await peer.read_to_the_end()
        assert received.startswith(b"HTTP/1.1 4"), received


# Unauthenticated clients


@pytest.mark.parametrize("target", [b"http://evil.example/echo", b"http://127.0.0.1@evil/echo"])
@pytest.mark.parametrize("host", [b"127.0.0.1", b"evil.example"])
async def test_a_request_target_with_another_host_is_refused_under_any_host_header(target: bytes, host: bytes) -> None:
    async with serving(plain_app(), http=Entrance(CALM)) as address, connect_raw(address) as connection:
        await connection.send(b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % (target, host))
        assert (await connection.read_to_the_end()).startswith(b"HTTP/1.1 403 ")


async def test_a_request_target_with_the_requests_host_is_answered() -> None:
    async with serving(plain_app(), http=Entrance(CALM)) as address, connect_raw(address) as connection:
        await connection.send(b"GET http://127.0.0.1:1/echo HTTP/1.1\r\nHost: 127.0.0.1:1\r\nConnection: close\r\n\r\n")
        assert (await connection.read_to_the_end()).startswith(b"HTTP/1.1 200 ")


async def test_beyond_the_limit_the_oldest_anonymous_socket_is_refused(tmp_path: Path) -> None:
    entrance = Entrance(replace(CALM, strangers=20))
    async with Rig(tmp_path) as rig, AsyncExitStack() as stack:
        key = await make_key(rig, "ann", "operator")
        address = await stack.enter_async_context(serving(rig.application.app, http=entrance))
        socket_of_key = await stack.enter_async_context(chat_socket(address, key=key))
        crowd = [await stack.enter_async_context(connect_raw(address)) for _ in range(60)]
        for peer in crowd[:40]:
            assert await peer.answer() == (503, "SERVER_BUSY")
        assert entrance.strangers == 20
        assert (await socket_of_key.ask("ping"))["type"] == "pong"
        async with chat_socket(address, key=key) as another:
            assert (await another.ask("ping"))["type"] == "pong"
        assert await crowd[40].answer() == (503, "SERVER_BUSY")
        async with connect_raw(address) as peer_with_key:
            key_header = b"Authorization: Bearer %s\r\n\r\n" % key.encode()
            await peer_with_key.send(b"GET /api/domains HTTP/1.1\r\nHost: 127.0.0.1\r\n" + key_header)
            assert await peer_with_key.status() == 200
            assert entrance.strangers == 19  # it no longer counts as one of them


async def test_a_wrong_key_reveals_nothing(tmp_path: Path) -> None:
    entrance = Entrance()
    async with Rig(tmp_path) as rig:
        await make_key(rig, "ann", "operator")
        async with serving(rig.application.app, http=entrance) as address, connect_raw(address) as peer:
            for path in (b"/api/domains", b"/api/ready"):
                await peer.send(b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % path)
                await peer.status()
                assert entrance.strangers == 1


async def test_anonymous_clients_that_leave_are_forgotten() -> None:
    entrance = Entrance()
    async with serving(plain_app(), http=entrance) as address:
        async with connect_raw(address) as peer:
            await peer.send(b"junk\r\n\r\n")
            await peer.answer()
        async with connect_raw(address) as peer:
            await peer.send(GET + b"Connection: close\r\n\r\n")
            await peer.read_to_the_end()
        with anyio.fail_after(PATIENCE):
            while entrance.strangers or entrance.lingering:
                await pause()


def test_with_few_descriptors_left_new_connections_are_refused_and_old_ones_continue(tmp_path: Path) -> None:
    async def attack() -> None:
        with serving_process(tmp_path / "data", AGENTIC_RAG_EMBEDDING="none") as server:
            soft, hard = resource.prlimit(server.child.pid, resource.RLIMIT_NOFILE)
            assert soft == hard
            conversation = await server.conversation()
            resource.prlimit(server.child.pid, resource.RLIMIT_NOFILE, (100, 100))
            address = server.url.removeprefix("http://")
            async with server.chat(conversation) as chat, AsyncExitStack() as stack:
                status = 101
                while status == 101:
                    peer = await stack.enter_async_context(connect_raw(address))
                    await peer.send(HANDSHAKE + b"\r\n")
                    status = await peer.status()
                assert status == 503
                events = await chat.say("How many days of paid leave do full-time staff have?")
                assert events[-1]["type"] == "done"
            async with client(address) as late:
                assert (await late.ask("ping"))["type"] == "pong"

    anyio.run(attack)


async def test_one_key_has_a_limit_of_parallel_requests_and_another_key_continues(tmp_path: Path) -> None:
    async with Rig(tmp_path, connections_per_key=2, requests_per_second=1000) as rig:
        domain = await rig.domain()
        eve, ann = [await make_key(rig, user, "member", domain) for user in ("eve", "ann")]
        async with AsyncExitStack() as stack:
            address = await stack.enter_async_context(serving(rig.application.app, http=Entrance(CALM)))

            def begin(key: str) -> bytes:
                lines = f"POST /api/conversations HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n"
                return lines.encode() + b"Expect: 100-continue\r\nContent-Length: 100\r\n\r\n"

            async with chat_socket(address, key=eve) as chat:
                peers = [await stack.enter_async_context(connect_raw(address)) for _ in range(3)]
                for peer, status in zip(peers, (100, 100, 429), strict=True):
                    await peer.send(begin(eve))
                    assert await peer.status() == status
                other_peer = await stack.enter_async_context(connect_raw(address))
                await other_peer.send(begin(ann))
                assert await other_peer.status() == 100
                assert await chat.ask("ping") == {"type": "pong"}
                await peers[0].send(b"{}" + b" " * 98)
                assert await peers[0].status() == 422
                late = await stack.enter_async_context(connect_raw(address))
                await late.send(begin(eve))
                assert await late.status() == 100


async def test_a_rate_limited_request_is_recorded_as_refused(tmp_path: Path) -> None:
    async with Rig(tmp_path, requests_per_second=0.001) as rig:
        key = await make_key(rig, "ann", "operator")
        entrance = Entrance(CALM)
        request = f"GET /api/domains HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
        async with AsyncExitStack() as stack:
            address = await stack.enter_async_context(serving(rig.application.app, http=entrance))
            for status in (200, 429):
                peer = await stack.enter_async_context(connect_raw(address))
                await peer.send(request)
                assert await peer.status() == status
            assert entrance.strangers == 1
