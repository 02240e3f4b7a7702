"""Protocols of a dialect: an encoder from one event stream to one client format, and the frames of its socket.

Encoders know no socket, clock or store: they take events and return bytes.

An installed distribution adds dialects by entry points in the group ``agentic_rag.dialects``. The name of an entry
point is the dialect's name. It refers to a callable without arguments, which returns a new `Dialect` for each stream::

    [project.entry-points."agentic_rag.dialects"]
    shout = "our_package.shout:Shout"
"""

from dataclasses import dataclass
from typing import Protocol

from agentic_rag.base.events import AgentEvent
from agentic_rag.base.json_form import Json
from agentic_rag.server.ws.frames import ClientFrame, Reply

Headers = tuple[tuple[bytes, bytes], ...]
"""Header lines in ASGI's form: lower-case names."""


@dataclass(frozen=True, slots=True)
class KnownWaits:
    """The waits of a turn that need no answer any more, as an encoder knows them before the first event.

    ``ended`` holds the ids of ended waits, which do not end the stream. ``answered`` holds the ids of waits from whose
    answers the stream continues. The client already has the events before them, so these are not sent again.
    """

    ended: frozenset[str] = frozenset()
    answered: frozenset[str] = frozenset()


class Dialect(Protocol):
    """Encodes the events of one stream (one SSE response, or one turn on a WebSocket), in order.

    An encoder may be stateful, so it is never shared between streams, and one stream calls either `sse` or `frames`. An
    encoder neither waits nor raises, for any events.
    """

    @property
    def name(self) -> str:
        """The name in ``?dialect=`` and in the subprotocol ``agentic-rag.<name>``."""
        ...

    @property
    def headers(self) -> Headers:
        """Additional header lines of an SSE answer in this dialect."""
        ...

    @property
    def needs_start(self) -> bool:
        """Whether the encoder has to see a stream from its first event.

        A reader that resumes later is fed the earlier events without output (`agentic_rag.server.dialects.join`).
        """
        ...

    @property
    def ended(self) -> bool:
        """Whether the encoder has finished before the turn's end; the transport then stops reading this turn.

        A dialect that cannot retract text answers ``step_reset`` with the error ``STEP_RESET``, and ends.
        """
        ...

    def sse(self, event: AgentEvent) -> bytes:
        """Return the bytes for a ``text/event-stream`` body, including the closing blank lines; may be empty."""
        ...

    def frames(self, event: AgentEvent) -> tuple[bytes, ...]:
        """Return the UTF-8 texts of the event's WebSocket messages; may be empty."""
        ...


class FrameCodec(Protocol):
    """Reads and writes the frames of a dialect's socket other than events.

    Each connection has its own codec, which may keep state, such as the turn that a client means.
    """

    def read(self, value: Json) -> ClientFrame:
        """Validate a parsed frame of the client and return its request.

        Raises:
            InvalidInput: names the first invalid field and the expected value.
        """
        ...

    def encode(self, reply: Reply) -> tuple[bytes, ...]:
        """Return the UTF-8 texts of the WebSocket messages that answer; empty if the dialect has none for it."""
        ...
