"""The event stream at the ASGI level: its messages, and the events that end it."""

from collections.abc import AsyncGenerator, AsyncIterator

import anyio
import pytest
from starlette.types import Message

from agentic_rag.access.keys import Entrant
from agentic_rag.access.users import LOCAL
from agentic_rag.base.errors import NotFound
from agentic_rag.base.events import AgentEvent, Text
from agentic_rag.runtime.log.encoder import encode
from agentic_rag.server.auth import Caller
from agentic_rag.server.dialects import get_dialect
from agentic_rag.server.sse import EventStream

SCOPE = {"state": {"caller": Caller(Entrant(LOCAL, None))}}


def event(seq: int) -> AgentEvent:
    return encode(Text(f"part {seq}"), conversation_id="conv_1", turn_id="turn_1", seq=seq, ts="2026-01-01T00:00:00Z")


class Peer:
    """A client: `sent` holds the messages it received; it disconnects when `leave` is set."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.leave = anyio.Event()
        self.got_body = anyio.Event()

    async def receive(self) -> Message:
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        if message["type"] == "http.response.body":
            self.got_body.set()


async def test_events_are_sent_with_their_ids_and_the_body_is_closed() -> None:
    async def events() -> AsyncIterator[AgentEvent]:
        for seq in (1, 2):
            yield event(seq)

    peer = Peer()
    await EventStream(events(), get_dialect("native"))(SCOPE, peer.receive, peer.send)
    assert dict(peer.sent[0]["headers"])[b"content-type"].startswith(b"text/event-stream")
    assert peer.sent[1]["body"].startswith(b"id: turn_1:1\nevent: text\ndata: {")
    assert peer.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


async def test_a_client_that_disconnects_ends_only_its_reader() -> None:
    ended = anyio.Event()

    async def events() -> AsyncGenerator[AgentEvent, None]:
        try:
            yield event(1)
            await anyio.sleep_forever()
        finally:
            ended.set()

    peer = Peer()
    with anyio.fail_after(240):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(EventStream(events(), get_dialect("native")), SCOPE, peer.receive, peer.send)
            await peer.got_body.wait()
            peer.leave.set()
        await ended.wait()


async def test_a_failure_before_the_first_event_is_raised_to_the_caller() -> None:
    async def events() -> AsyncIterator[AgentEvent]:
        for seq in (0,):
            if seq == 0:
                raise NotFound("turn", "turn_1")
            yield event(seq)

    peer = Peer()
    with pytest.raises(NotFound):
        await EventStream(events(), get_dialect("native"))(SCOPE, peer.receive, peer.send)
    assert peer.sent == []
