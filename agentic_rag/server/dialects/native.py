"""The native dialect: the events as the run log stores them.

Only adds the SSE framing. The JSON of an event is made once, in ``agentic_rag.runtime.log.runlog``; a socket's other
frames are in ``agentic_rag.server.ws.frames``.
"""

from agentic_rag.base.events import AgentEvent
from agentic_rag.server.dialects.base import Headers


class Native:
    """Complete and stateless. SSE ``event:`` is the type, ``id:`` is ``{turnId}:{seq}``."""

    name = "native"
    headers: Headers = ()
    needs_start = False
    ended = False

    def sse(self, event: AgentEvent) -> bytes:
        """Return one SSE event. Its JSON is one line, so one ``data:`` field holds it.

        An event outside the log has no id, so the client still resumes from its last id.
        """
        return b"%bevent: %b\ndata: %b\n\n" % (sse_id(event), event.type.encode(), event.data)

    def frames(self, event: AgentEvent) -> tuple[bytes, ...]:
        """Return the event's JSON unchanged."""
        return (event.data,)


def sse_id(event: AgentEvent) -> bytes:
    """Return the ``id:`` line of an SSE event, from which ``Last-Event-ID`` resumes; empty outside the log."""
    return b"id: %b:%d\n" % (event.turn_id.encode(), event.seq) if event.seq else b""
