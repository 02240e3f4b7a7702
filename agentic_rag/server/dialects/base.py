"""What every dialect is: an encoder of one event stream into one format that clients read, and what a socket says.

Owns the protocols. Knows no socket, no clock and no store: an encoder is given events and returns bytes.

An installed distribution adds dialects of its own by entry points in the group ``agentic_rag.dialects``. The name of an
entry point is the dialect's; what it refers to is called without arguments for each stream and returns a `Dialect`::

    [project.entry-points."agentic_rag.dialects"]
    shout = "our_package.shout:Shout"
"""

from typing import Protocol

from agentic_rag.events import AgentEvent
from agentic_rag.json_form import Json
from agentic_rag.server.frames import ClientFrame, Reply

Headers = tuple[tuple[bytes, bytes], ...]
"""Header lines as ASGI has them: lower-case names."""


class Dialect(Protocol):
    """Encodes the events of one stream (one SSE response, or one turn on a WebSocket), in order.

    An encoder may keep what it saw of its stream, so it is never shared between streams, and one stream calls either
    `sse` or `frames`. An encoder neither waits nor raises, whatever events it is given.
    """

    @property
    def name(self) -> str:
        """The word in ``?dialect=`` and in the subprotocol ``agentic-rag.<name>``."""
        ...

    @property
    def headers(self) -> Headers:
        """Header lines of an SSE answer in this dialect, beside those of every event stream."""
        ...

    @property
    def needs_start(self) -> bool:
        """Whether it has to see a stream from its first event: a reader that goes on later is fed the earlier ones
        unsent (`agentic_rag.server.dialects.join`)."""
        ...

    @property
    def ended(self) -> bool:
        """Whether it has said its last before the turn's end; the transport then stops reading this turn.

        A dialect that cannot take back text answers ``step_reset`` with its error, code ``STEP_RESET``, and ends.
        """
        ...

    def sse(self, event: AgentEvent) -> bytes:
        """Return the bytes of a ``text/event-stream`` body, each closing blank line included; empty: nothing to say."""
        ...

    def frames(self, event: AgentEvent) -> tuple[bytes, ...]:
        """Return the UTF-8 texts of the WebSocket messages that the event makes; none: nothing to say."""
        ...


class FrameCodec(Protocol):
    """What a socket of one dialect takes and answers beside events. There is one for each connection, so it may keep
    what it saw, such as which turn a client means."""

    def read(self, value: Json) -> ClientFrame:
        """Check a parsed frame of the client and return what it asks for.

        Raises:
            InvalidInput: names the first field that does not fit and says what would.
        """
        ...

    def encode(self, reply: Reply) -> tuple[bytes, ...]:
        """Return the UTF-8 texts of the WebSocket messages that answer; none: this dialect has no word for it."""
        ...
