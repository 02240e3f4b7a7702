"""Events that are ready at the same time reach a client in one write, in their order."""

import asyncio
from typing import Any

import pytest

from agentic_rag.server.ws.fast_socket import SocketProtocol
from tests.ws.memory import Desk
from tests.ws.serving import Client, application, client, serving


class Recorder:
    """A transport that records its writes."""

    def __init__(self, transport: asyncio.Transport, written: list[bytes]) -> None:
        self._transport = transport
        self._written = written

    def write(self, data: bytes) -> None:
        self._written.append(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Written(SocketProtocol):
    """Records its writes."""

    last: "Written"

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        Written.last = self
        self.written: list[bytes] = []
        super().connection_made(Recorder(transport, self.written))  # type: ignore[arg-type]

    def count(self, *kinds: str) -> int:
        """Return the number of writes that contained the beginning of each of these frames."""
        marks = [f'"type":"{kind}"'.encode() for kind in kinds]
        return sum(all(mark in data for mark in marks) for data in self.written)


class SharedDesk(Desk):
    """One of several servers on one store."""

    @property
    def shared(self) -> bool:
        return True


def desk(kind: type[Desk] = Desk, *, prompt: bool = True) -> Desk:
    it = kind()
    it.prompt = prompt
    it.open("conv_1")
    return it


async def hear_turn(c: Client, it: Desk, turn_id: str) -> None:
    """Send a message and read its turn to the end."""
    await c.say("message", conversationId="conv_1", content="Hi")
    accepted, started = await c.hear(), await c.hear()
    assert (accepted["type"], accepted["turnId"]) == ("accepted", turn_id)
    assert (started["type"], started["turnId"], started["seq"]) == ("turn_started", turn_id, 1)
    it.answer(turn_id, "a")
    assert [(frame["turnId"], frame["seq"]) for frame in await c.hear_turn()] == [(turn_id, 2), (turn_id, 3)]


async def test_the_acceptance_is_sent_with_the_turns_first_event() -> None:
    it = desk()
    async with serving(application(it, it), ws=Written) as address, client(address) as c:
        await hear_turn(c, it, "turn_1")
        assert Written.last.count("accepted", "turn_started") == 0, "there was no reader yet"
        await hear_turn(c, it, "turn_2")
        await hear_turn(c, it, "turn_3")
        assert Written.last.count("accepted", "turn_started") == 2
        assert Written.last.count("accepted") == 3


@pytest.mark.parametrize("kind", [Desk, SharedDesk])
@pytest.mark.parametrize("prompt", [True, False])
async def test_turns_follow_each_other_on_one_socket(kind: type[Desk], prompt: bool) -> None:
    it = desk(kind, prompt=prompt)
    async with serving(application(it, it), ws=Written) as address, client(address) as c:
        for number in range(1, 5):
            await hear_turn(c, it, f"turn_{number}")


async def test_held_frames_are_sent_when_no_write_follows() -> None:
    it = desk()
    async with serving(application(it, it), ws=Written) as address, client(address) as c:
        await c.ask("ping")
        before = len(Written.last.written)
        Written.last.hold([b'{"a":1}'])
        Written.last.hold([b'{"b":2}'])
        assert len(Written.last.written) == before
        assert [await c.hear(), await c.hear()] == [{"a": 1}, {"b": 2}]
        assert len(Written.last.written) == before + 1


async def test_held_frames_are_sent_before_later_writes_and_the_close() -> None:
    it = desk()
    async with serving(application(it, it), ws=Written) as address, client(address) as c:
        await c.ask("ping")
        Written.last.hold([b'{"a":1}'])
        Written.last.write([b'{"b":2}'])
        Written.last.hold([b'{"c":3}'])
        Written.last.shutdown()
        assert [await c.hear() for _ in range(3)] == [{"a": 1}, {"b": 2}, {"c": 3}]
        assert await c.close_code() == 1012


async def test_held_frames_of_a_closed_connection_are_dropped() -> None:
    it = desk()
    async with serving(application(it, it), ws=Written) as address, client(address) as c:
        await c.ask("ping")
        Written.last.hold([b'{"a":1}'])
        Written.last.transport.abort()
        await asyncio.sleep(0)
        assert b'{"a":1}' not in b"".join(Written.last.written)
