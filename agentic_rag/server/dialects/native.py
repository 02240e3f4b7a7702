"""The native dialect: the events as the run log keeps them.

Owns nothing but the SSE framing; the JSON form of an event is made once, in ``agentic_rag.runtime.log.runlog``, and
what a socket answers beside events is in ``agentic_rag.server.frames``.
"""

from agentic_rag.events import AgentEvent
from agentic_rag.server.dialects.base import Headers


class Native:
    """Complete and without state. SSE ``event:`` is the type, ``id:`` is ``{turnId}:{seq}``."""

    name = "native"
    headers: Headers = ()
    needs_start = False
    ended = False

    def sse(self, event: AgentEvent) -> bytes:
        """Return one SSE event; its JSON is one line, so one ``data:`` field holds it.

        An event outside the log has no id: the client's last id stays the one it resumes from.
        """
        return b"%bevent: %b\ndata: %b\n\n" % (sse_id(event), event.type.encode(), event.data)

    def frames(self, event: AgentEvent) -> tuple[bytes, ...]:
        """Return the event's JSON as it is."""
        return (event.data,)


def sse_id(event: AgentEvent) -> bytes:
    """Return the ``id:`` line of an SSE event, from which ``Last-Event-ID`` resumes; empty outside the log."""
    return b"id: %b:%d\n" % (event.turn_id.encode(), event.seq) if event.seq else b""
