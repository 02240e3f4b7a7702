"""Reading an event stream as the HTML standard has it, and what an encoder makes of events."""

from collections.abc import Iterable
from dataclasses import dataclass

from agentic_rag.base.events import AgentEvent
from agentic_rag.server.dialects.base import Dialect


@dataclass(frozen=True)
class Said:
    """One server-sent event."""

    event: str
    data: str
    id: str | None


def parse_sse(text: str) -> list[Said]:
    """Return the events of a stream; what is not closed by a blank line is dropped."""
    said: list[Said] = []
    name, data, ident = "message", list[str](), None
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for line in lines[:-1]:
        if not line:
            if data:
                said.append(Said(name, "\n".join(data), ident))
            name, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        elif field == "event":
            name = value
        elif field == "id":
            ident = value
        else:
            assert field in ("", "retry"), f"no field of an event stream: {line!r}"
    return said


def stream(dialect: Dialect, events: Iterable[AgentEvent]) -> str:
    """Return what an SSE answer in this dialect holds, as the transport writes it."""
    pieces = []
    for event in events:
        pieces.append(dialect.sse(event))
        if dialect.ended:
            break
    return b"".join(pieces).decode()


def frames(dialect: Dialect, events: Iterable[AgentEvent]) -> list[bytes]:
    """Return what a WebSocket in this dialect is sent, as the transport writes it."""
    sent: list[bytes] = []
    for event in events:
        sent += dialect.frames(event)
        if dialect.ended:
            break
    return sent
