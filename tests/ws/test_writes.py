"""Events that are ready at the same time reach a client in one write, in their order."""

import asyncio
from typing import Any

import pytest

from agentic_rag.server.ws.fast_socket import SocketProtocol
from tests.ws.memory import Desk
from tests.ws.serving import Client, application, client, serving


class RecordingTransport:
    """A transport that records its writes."""

    def __init__(self, transport: asyncio.Transport, writes: list[bytes]) -> None:
        self._transport = transport
        self._written = writes

    def write(self, data: bytes) -> None:
        self._written.append(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class RecordedSocket(SocketProtocol):
    """Records its writes."""

    last: "RecordedSocket"

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        RecordedSocket.last = self
        self.written: list[bytes] = []
        super().connection_made(RecordingTransport(transport, self.written))  # type: ignore[arg-type]

    def count(self, *kinds: str) -> int:
        """Return the number of writes that contained the beginning of each of these frames."""
        prefixes = [f'"type":"{kind}"'.encode() for kind in kinds]
        return sum(all(prefix in data for prefix in prefixes) for data in self.written)


class SharedDesk(Desk):
    """One of several servers on one store."""

    @property
    def shared(self) -> bool:
        return True


def make_desk(kind: type[Desk] = Desk, *, prompt: bool = True) -> Desk:
    desk = kind()
    desk.prompt = prompt
    desk.open("conv_1")
    return desk


async def hear_turn(c: Client, desk: Desk, turn_id: str) -> None:
    """Send a message and read its turn to the end."""
    await c.say("message", conversationId="conv_1", content="Hi")
    accepted, started = await c.hear(), await c.hear()
    assert (accepted["type"], accepted["turnId"]) == ("accepted", turn_id)
    assert (started["type"], started["turnId"], started["seq"]) == ("turn_started", turn_id, 1)
    desk.answer(turn_id, "a")
    assert [(frame["turnId"], frame["seq"]) for frame in await c.hear_turn()] == [(turn_id, 2), (turn_id, 3)]


async def test_the_acceptance_is_sent_with_the_turns_first_event() -> None:
    desk = make_desk()
    async with serving(application(desk, desk), ws=RecordedSocket) as address, client(address) as c:
        await hear_turn(c, desk, "turn_1")
        assert RecordedSocket.last.count("accepted", "turn_started") == 0, "there was no reader yet"
        await hear_turn(c, desk, "turn_2")
        await hear_turn(c, desk, "turn_3")
        assert RecordedSocket.last.count("accepted", "turn_started") == 2
        assert RecordedSocket.last.count("accepted") == 3


@pytest.mark.parametrize("kind", [Desk, SharedDesk])
@pytest.mark.parametrize("prompt", [True, False])
async def test_turns_follow_each_other_on_one_socket(kind: type[Desk], prompt: bool) -> None:
    desk = make_desk(kind, prompt=prompt)
    async with serving(application(desk, desk), ws=RecordedSocket) as address, client(address) as c:
        for number in range(1, 5):
            await hear_turn(c, desk, f"turn_{number}")


async def test_held_frames_are_sent_when_no_write_follows() -> None:
    desk = make_desk()
    async with serving(application(desk, desk), ws=RecordedSocket) as address, client(address) as c:
        await c.ask("ping")
        writes_before = len(RecordedSocket.last.written)
        RecordedSocket.last.hold([b'{"a":1}'])
        RecordedSocket.last.hold([b'{"b":2}'])
        assert len(RecordedSocket.last.written) == writes_before
        assert [await c.hear(), await c.hear()] == [{"a": 1}, {"b": 2}]
        assert len(RecordedSocket.last.written) == writes_before + 1


async def test_held_frames_are_sent_before_later_writes_and_the_close() -> None:
    desk = make_desk()
    async with serving(application(desk, desk), ws=RecordedSocket) as address, client(address) as c:
        await c.ask("ping")
        RecordedSocket.last.hold([b'{"a":1}'])
        RecordedSocket.last.write([b'{"b":2}'])
        RecordedSocket.last.hold([b'{"c":3}'])
        RecordedSocket.last.shutdown()
        assert [await c.hear() for _ in range(3)] == [{"a": 1}, {"b": 2}, {"c": 3}]
        assert await c.close_code() == 1012


async def test_held_frames_of_a_closed_connection_are_dropped() -> None:
    desk = make_desk()
    async with serving(application(desk, desk), ws=RecordedSocket) as address, client(address) as c:
        await c.ask("ping")
        RecordedSocket.last.hold([b'{"a":1}'])
        RecordedSocket.last.transport.abort()
        await asyncio.sleep(0)
        assert b'{"a":1}' not in b"".join(RecordedSocket.last.written)
