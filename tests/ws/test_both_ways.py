"""A client receives the same frames over plain ASGI and over the direct path."""

from typing import Any

import anyio
import pytest
from starlette.types import Message
from starlette.websockets import WebSocket

from agentic_rag.base.events import Text
from agentic_rag.server.ws.connection import BUFFER_BYTES, ConnectionGone, PlainConnection
from tests.ws.memory import DONE, Desk
from tests.ws.serving import PATIENCE, Client, application, client, serving

PLAIN_OPTIONS: dict[str, Any] = {"ws": "websockets-sansio"}


def make_desk() -> Desk:
    desk = Desk()
    for name in ("conv_1", "conv_2"):
        desk.open(name)
    desk.open("conv_x", owner="somebody else")
    return desk


class Recording(Client):
    """Records the text of each frame."""

    def __init__(self, plain_client: Client) -> None:
        super().__init__(plain_client.connection)
        self.texts: list[str] = []

    async def take(self, count: int) -> None:
        with anyio.fail_after(PATIENCE):
            for _ in range(count):
                text = await self.connection.recv()
                assert isinstance(text, str)
                self.texts.append(text)


async def run_script(**options: Any) -> list[str]:
    """Run several conversations with a server and return all its frames."""
    desk = make_desk()
    async with serving(application(desk, desk), **options) as address, client(address) as plain_client:
        c = Recording(plain_client)
        await c.say("subscribe", conversationId="conv_1", requestId="r1")
        await c.take(1)
        await c.say("message", conversationId="conv_1", content="Hi", clientMessageId="m1")
        await c.take(2)
        desk.say("turn_1", Text("a"), Text("ü" * 40_000), *[Text("b" * 1_000)] * 200)
        await c.take(202)
        await c.say("message", conversationId="conv_1", content="Next", onBusy="queue")
        await c.take(1)
        await c.say("message", conversationId="conv_1", content="Not now")
        await c.take(1)
        desk.say("turn_1", DONE)
        await c.take(2)
        await c.say("interrupt", conversationId="conv_1", turnId="turn_2")
        await c.take(1)
        await c.say("subscribe", conversationId="conv_1", turnId="turn_1", after=200)
        await c.take(7)
        await c.say("subscribe", conversationId="conv_x")
        await c.say("unsubscribe", conversationId="conv_1")
        await c.connection.send("nonsense")
        await c.take(2)
        await c.say("message", conversationId="conv_2", content="Hi")
        await c.take(2)
        desk.answer("turn_3", "unheard", "heard")
        await c.take(3)
        await c.say("ping", requestId="p")
        await c.take(1)
        return c.texts


async def test_a_conversation_has_the_same_frames_both_ways() -> None:
    fast, plain = await run_script(), await run_script(**PLAIN_OPTIONS)
    assert fast == plain
    assert len(fast) > 220


async def test_a_replaced_subscription_sends_nothing_after_its_replacement_was_confirmed() -> None:
    desk = make_desk()
    async with serving(application(desk, desk), **PLAIN_OPTIONS) as address, client(address) as c:
        await c.ask("message", conversationId="conv_1", content="Hi")
        desk.say("turn_1", *[Text("x" * 10_000)] * 100)
        await c.say("subscribe", conversationId="conv_1", turnId="turn_1", after=100)
        frames = [await c.hear()]
        while frames[-1]["type"] != "subscribed":
            frames.append(await c.hear())
        assert [(await c.hear())["seq"]] == [101]
        assert await c.ask("ping") == {"type": "pong"}


async def test_an_oversize_frame_is_refused_at_every_limit() -> None:
    desk = make_desk()
    async with (
        serving(application(desk, desk), ws_max_size=16 * 1024 * 1024, **PLAIN_OPTIONS) as address,
        client(address) as c,
    ):
        await c.say("ping", padding="x" * (1024 * 1024))
        assert await c.close_code() == 1009


class Peer:
    """A client that accepts a frame only on demand, as seen by ASGI's ``send``."""

    def __init__(self) -> None:
        self.allowed = anyio.Semaphore(0)
        self.received: list[str] = []

    def connection(self, send_seconds: float) -> PlainConnection:
        scope = {"type": "websocket", "headers": [], "path": "/ws", "query_string": b""}
        return PlainConnection(WebSocket(scope, self.receive, self.send), send_seconds)

    async def receive(self) -> Message:
        return {"type": "websocket.connect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "websocket.send":
            await self.allowed.acquire()
            self.received.append(message["text"])


async def accept_connection(peer: Peer, send_seconds: float = PATIENCE) -> PlainConnection:
    connection = peer.connection(send_seconds)
    await connection._websocket.accept()
    return connection


async def test_writing_never_waits_and_unread_data_is_bounded() -> None:
    peer = Peer()
    connection = await accept_connection(peer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.relay)
        write_count = 0
        while connection.ready:
            connection.write([b"x" * 1_000])
            write_count += 1
        assert write_count * 1_000 <= BUFFER_BYTES + 1_000
        for _ in range(2):
            peer.allowed.release()
        with anyio.fail_after(PATIENCE):
            await connection.room()
        for _ in range(write_count):
            peer.allowed.release()
        with anyio.fail_after(PATIENCE):
            await connection.drain()
        assert peer.received == ["x" * 1_000] * write_count
        tasks.cancel_scope.cancel()


async def test_a_peer_that_reads_nothing_for_too_long_is_disconnected() -> None:
    connection = await accept_connection(Peer(), send_seconds=0.01)
    connection.write([b"x" * BUFFER_BYTES])
    with anyio.fail_after(PATIENCE):
        await connection.relay()
    assert not connection.ready
    with pytest.raises(ConnectionGone):
        await connection.room()
