"""Dropped, slow, silent and many clients: nothing is lost and no client delays another."""

import asyncio
import socket
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import Close, Frame, Opcode
from websockets.protocol import State

from agentic_rag.base.events import Text
from agentic_rag.base.ids import SessionId
from agentic_rag.server.ws.fast_socket import SocketProtocol
from tests.waiting import pause
from tests.ws.memory import DONE, Desk
from tests.ws.serving import PATIENCE, Client, application, client, numbers, serving

TEXTS = [f"part {n}" for n in range(8)]
LAST_SEQ = len(TEXTS) + 2
"""Events of a turn with `TEXTS`, including its start and its end."""
FLOOD = Text("x" * 64 * 1024)
"""A few hundred of these fill every buffer of a loopback connection."""


def make_desk() -> Desk:
    desk = Desk()
    desk.open("conv_1")
    return desk


@pytest.mark.parametrize("dropped_after", range(1, LAST_SEQ + 1))
async def test_a_client_dropped_at_any_event_resumes_to_the_uninterrupted_stream(dropped_after: int) -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address, client(address) as witness:
        await witness.ask("subscribe", conversationId="conv_1")
        async with client(address) as c:
            await c.ask("message", conversationId="conv_1", content="Hi")
            desk.say("turn_1", *(Text(text) for text in TEXTS[: dropped_after - 1]))
            if dropped_after == LAST_SEQ:
                desk.say("turn_1", DONE)
            frames = [await c.hear() for _ in range(dropped_after)]
            c.connection.transport.abort()
        desk.say("turn_1", *(Text(text) for text in TEXTS[dropped_after - 1 :]))
        if dropped_after < LAST_SEQ:
            desk.say("turn_1", DONE)
        async with client(address) as c:
            subscribed = await c.ask("subscribe", conversationId="conv_1", turnId="turn_1", after=dropped_after)
            assert (subscribed["turnId"], subscribed["seq"]) == ("turn_1", dropped_after)
            while len(frames) < LAST_SEQ:
                frames.append(await c.hear())
            assert await c.ask("ping") == {"type": "pong"}
        assert frames == await witness.hear_turn()


@pytest.mark.parametrize("after", range(LAST_SEQ + 1))
async def test_a_replay_from_any_number_gives_exactly_the_later_events(after: int) -> None:
    desk = make_desk()
    desk.on_start = lambda turn_id: desk.answer(turn_id, *TEXTS)
    async with serving(application(desk, desk)) as address, client(address) as c:
        await c.ask("message", conversationId="conv_1", content="Hi")
        all_frames = await c.hear_turn()
        await c.ask("subscribe", conversationId="conv_1", turnId="turn_1", after=after)
        await c.say("ping")
        frames = [await c.hear() for _ in range(LAST_SEQ - after + 1)]
        assert [frame for frame in frames if frame["type"] != "pong"] == all_frames[after:]


async def test_a_dropped_client_never_ends_a_turn() -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address:
        async with client(address) as c:
            await c.ask("message", conversationId="conv_1", content="Hi")
        desk.say("turn_1", Text("alone"))
        assert desk.running(SessionId("sess_conv_1")) == "turn_1"
        async with client(address) as c:
            await c.ask("subscribe", conversationId="conv_1")
            desk.say("turn_1", DONE)
            assert numbers(await c.hear_turn()) == [1, 2, 3]


async def test_many_clients_of_one_turn_all_get_every_event() -> None:
    desk = make_desk()
    number_lists: list[list[int]] = []

    async def watch(address: str, ready: anyio.Semaphore) -> None:
        async with client(address) as c:
            await c.ask("subscribe", conversationId="conv_1")
            ready.release()
            number_lists.append(numbers(await c.hear_turn()))

    async with serving(application(desk, desk)) as address, anyio.create_task_group() as tg:
        ready = anyio.Semaphore(0)
        for _ in range(50):
            tg.start_soon(watch, address, ready)
        for _ in range(50):
            await ready.acquire()
        async with client(address) as c:
            await c.ask("message", conversationId="conv_1", content="Hi")
            desk.answer("turn_1", *TEXTS)
            await c.hear_turn()
    assert number_lists == [list(range(1, LAST_SEQ + 1))] * 50


async def test_a_slow_reader_gets_every_event_and_delays_no_other() -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address:
        slow_connection = await connect_without_reading(address)
        async with client(address) as quick_client:
            for c in (Client(slow_connection), quick_client):
                await c.ask("subscribe", conversationId="conv_1")
            await quick_client.ask("message", conversationId="conv_1", content="Hi")
            desk.say("turn_1", *[FLOOD] * 300, DONE)
            assert numbers(await quick_client.hear_turn()) == list(range(1, 303))
        assert numbers(await Client(slow_connection).hear_turn()) == list(range(1, 303))
        await slow_connection.close()


class Impatient(SocketProtocol):
    """Disconnects a peer immediately, and notifies the test."""

    send_seconds = 0.01
    close_seconds = 0.01
    lost: anyio.Event

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.lost.set()


async def test_a_client_that_never_reads_is_disconnected_and_others_are_not() -> None:
    desk = make_desk()
    Impatient.lost = anyio.Event()
    async with serving(application(desk, desk), ws=Impatient) as address:
        unread_connection = await connect_without_reading(address)
        await Client(unread_connection).ask("message", conversationId="conv_1", content="Hi")
        desk.say("turn_1", *[FLOOD] * 300)
        with anyio.fail_after(PATIENCE):
            await Impatient.lost.wait()
        async with client(address) as c:
            await c.ask("subscribe", conversationId="conv_1", turnId="turn_1", after=300)
            desk.say("turn_1", DONE)
            assert numbers(await c.hear_turn()) == [301, 302]
        unread_connection.transport.abort()


class Measured(SocketProtocol):
    """Shows the test the data that waits for the peer."""

    last: "Measured"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        Measured.last = self


async def test_pushes_to_a_client_that_never_reads_are_bounded() -> None:
    desk = make_desk()
    async with serving(application(desk, desk), ws=Measured) as address:
        unread_connection = await connect_without_reading(address)
        await Client(unread_connection).ask("message", conversationId="conv_1", content="Hi")
        transport = Measured.last.transport
        for _ in range(300):
            desk.say("turn_1", FLOOD)
            await anyio.lowlevel.checkpoint()
        assert 0 < transport.get_write_buffer_size() < 4 * len(FLOOD.text)
        unread_connection.transport.abort()


async def test_a_client_that_never_reads_its_answers_is_disconnected() -> None:
    desk = make_desk()
    Impatient.lost = anyio.Event()
    async with serving(application(desk, desk), ws=Impatient) as address:
        unread_connection = await connect_without_reading(address)
        flooding_client = Client(unread_connection)
        with anyio.fail_after(PATIENCE), suppress(ConnectionClosed):
            while True:
                await flooding_client.say("ping", requestId="x" * 200)
        assert Impatient.lost.is_set()


async def test_a_client_without_pongs_is_disconnected() -> None:
    desk = make_desk()
    Impatient.lost = anyio.Event()
    async with serving(application(desk, desk), ws=Impatient, ws_ping_interval=0.01, ws_ping_timeout=0.01) as address:
        host, port = address.split(":")
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(
                f"GET /ws HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
            )
            with anyio.fail_after(PATIENCE):
                await Impatient.lost.wait()


async def test_a_stopping_server_closes_its_sockets_with_1012() -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address:
        connection = await connect(f"ws://{address}/ws", compression=None, proxy=None)
        await Client(connection).ask("subscribe", conversationId="conv_1")
    assert await Client(connection).close_code() == 1012


async def connect_without_reading(address: str) -> ClientConnection:
    """Connect with small buffers. The connection reads nothing until it is asked to."""
    host, port = address.split(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((host, int(port)))
    sock.setblocking(False)
    return await connect(f"ws://{address}/ws", sock=sock, compression=None, proxy=None, max_queue=1)


async def test_a_server_stops_although_a_closing_client_has_unread_data() -> None:
    protocols: list[SocketProtocol] = []

    class RecordedProtocol(SocketProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            protocols.append(self)

    desk = make_desk()
    async with serving(application(desk, desk), ws=RecordedProtocol) as address, client(address) as c:
        await c.ask("message", conversationId="conv_1", content="Hi")
        c.connection.transport.pause_reading()
        desk.say("turn_1", *[FLOOD] * 300)
        with anyio.fail_after(PATIENCE):
            while not protocols[0].transport.get_write_buffer_size():
                await pause()
            c.connection.transport.write(Frame(Opcode.CLOSE, Close(1000, "").serialize()).serialize(mask=True))
            while protocols[0].conn.state is State.OPEN:
                await pause()
        protocols[0].shutdown()  # as uvicorn does with each when it stops
