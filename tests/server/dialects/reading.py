"""Parse event streams by the HTML standard, and encode events as the transports do."""

from collections.abc import Iterable
from dataclasses import dataclass

from agentic_rag.base.events import AgentEvent
from agentic_rag.server.dialects.base import Dialect


@dataclass(frozen=True)
class SseEvent:
    """One server-sent event."""

    event: str
    data: str
    id: str | None


def parse_sse(text: str) -> list[SseEvent]:
    """Return the events of a stream. An event without a closing blank line is dropped."""
    events: list[SseEvent] = []
    name, data, ident = "message", list[str](), None
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for line in lines[:-1]:
        if not line:
            if data:
                events.append(SseEvent(name, "\n".join(data), ident))
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
    return events


def stream(dialect: Dialect, events: Iterable[AgentEvent]) -> str:
    """Return the text of an SSE answer in this dialect, as the transport writes it."""
    pieces = []
    for event in events:
        pieces.append(dialect.sse(event))
        if dialect.ended:
            break
    return b"".join(pieces).decode()


def frames(dialect: Dialect, events: Iterable[AgentEvent]) -> list[bytes]:
    """Return the frames of a WebSocket in this dialect, as the transport writes them."""
    pieces: list[bytes] = []
    for event in events:
        pieces += dialect.frames(event)
        if dialect.ended:
            break
    return pieces
