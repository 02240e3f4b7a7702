"""A process that was suspended reads waiting data before it considers a peer silent.

To its timers a blocked event loop looks like a suspended process: they are late, and bytes wait unread.
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
import uvloop
from starlette.websockets import WebSocket
from websockets.sync.client import connect

from agentic_rag.base.silence_timers import SECOND_LOOK_SECONDS, SUSPENDED_SECONDS, SilenceScope, SilenceTimer
from agentic_rag.tools.toolset import open_toolset
from tests.tools.support import QUICK, START, call, hostile, open_hub, text_of
from tests.ws.serving import serving

SUSPENDED = 2 * SUSPENDED_SECONDS
"""Seconds of a suspension in these tests."""

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
"""The server runs on uvloop, which runs timers before it reads its sockets."""


def run(factory: Callable[[], asyncio.AbstractEventLoop], test: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_bounded(test))


async def _bounded(test: Callable[[], Awaitable[None]]) -> None:
    with anyio.fail_after(START):
        await test()


def suspend(seconds: float = SUSPENDED) -> None:
    time.sleep(seconds)


@pytest.mark.parametrize("factory", LOOPS)
def test_bytes_received_during_a_suspension_are_read_first(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def test() -> None:
        own_socket, peer_socket = socket.socketpair()
        with peer_socket:
            reader, writer = await asyncio.open_connection(sock=own_socket)
            with SilenceScope(0.05) as scope:
                peer_socket.sendall(b"one\n")
                suspend()
                assert await reader.readline() == b"one\n"
                await asyncio.sleep(0)
            assert not scope.expired
            writer.close()

    run(factory, test)


@pytest.mark.parametrize("factory", LOOPS)
def test_real_silence_times_out_after_a_second_check(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def test() -> None:
        start = time.monotonic()
        with SilenceScope(0.05) as scope:
            await anyio.sleep_forever()
        assert scope.expired
        assert time.monotonic() - start >= 0.05 + SECOND_LOOK_SECONDS / 2

    run(factory, test)


@pytest.mark.parametrize("factory", LOOPS)
def test_progress_extends_the_deadline(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def test() -> None:
        expired = asyncio.Event()
        timer = SilenceTimer(expired.set, anyio.current_time() + 0.01)
        timer.deadline = anyio.current_time() + 3600
        await asyncio.sleep(0.05 + SECOND_LOOK_SECONDS)
        assert not expired.is_set()
        timer.deadline = anyio.current_time()  # an earlier one counts as well
        await expired.wait()

    run(factory, test)


async def test_a_stopped_timer_never_calls() -> None:
    expired = asyncio.Event()
    timer = SilenceTimer(expired.set, anyio.current_time())
    timer.stop()
    timer.deadline = anyio.current_time()
    with anyio.move_on_after(3 * SECOND_LOOK_SECONDS):
        await expired.wait()
    assert not expired.is_set()


async def test_an_answer_that_arrived_during_a_suspension_is_read(tmp_path: Path) -> None:
    async with open_hub(tmp_path, patience=QUICK) as hub:
        toolset = await open_toolset(hub, [hostile()], wait=START)

        async def stand_still() -> None:
            await anyio.lowlevel.checkpoint()  # the call is sent
            suspend()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stand_still)
            outcome = await call(toolset, "fine", timeout=0.1)
        assert text_of(outcome) == "fine"


@pytest.mark.parametrize("factory", LOOPS)
def test_a_pong_during_a_suspension_keeps_the_socket_open(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def app(scope: object, receive: Callable[[], Awaitable[object]], send: object) -> None:
        websocket = WebSocket(scope, receive, send)  # type: ignore[arg-type]
        await websocket.accept()
        while (message := await websocket.receive())["type"] == "websocket.receive":
            if message["text"] == "suspend":
                await asyncio.sleep(0.06)  # a ping is pending
                suspend()
            await websocket.send_text("still here")

    def talk(address: str) -> str:
        with connect(f"ws://{address}/", proxy=None, compression=None) as socket_:
            socket_.send("suspend")
            assert socket_.recv(START) == "still here"
            socket_.send("again")
            return str(socket_.recv(START))

    async def test() -> None:
        async with serving(app, ws_ping_interval=0.05, ws_ping_timeout=0.1) as address:
            assert await asyncio.to_thread(talk, address) == "still here"

    run(factory, test)
