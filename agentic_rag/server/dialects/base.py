"""What every dialect is: an encoder of one event stream into one format that clients read.

Owns the protocol. Knows no socket, no clock and no store: an encoder is given events and returns bytes.

An installed distribution adds dialects of its own by entry points in the group ``agentic_rag.dialects``. The name of an
entry point is the dialect's; what it refers to is called without arguments for each stream and returns a `Dialect`::

    [project.entry-points."agentic_rag.dialects"]
    shout = "our_package.shout:Shout"
"""

from typing import Protocol

from agentic_rag.events import AgentEvent


class Dialect(Protocol):
    """Encodes the events of one stream (one SSE response, or one turn on a WebSocket), in order.

    An encoder may keep what it saw of its stream, so it is never shared between streams. Empty bytes mean
    that the event has no form in this dialect: nothing is sent. An encoder neither waits nor raises.
    """

    @property
    def name(self) -> str:
        """The word in ``?dialect=`` and in the subprotocol ``agentic-rag.<name>``."""
        ...

    def sse(self, event: AgentEvent) -> bytes:
        """Return the bytes of a ``text/event-stream`` body, the closing blank line included."""
        ...

    def frame(self, event: AgentEvent) -> bytes:
        """Return the UTF-8 text of one WebSocket message."""
        ...
