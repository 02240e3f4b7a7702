"""The native dialect: the events as the run log keeps them.

Owns nothing but the SSE framing; the JSON form is made once per event in ``agentic_rag.events``.
"""

from operator import attrgetter

from agentic_rag.events import AgentEvent


class Native:
    """Complete and without state. SSE ``event:`` is the type, ``id:`` is ``{turnId}:{seq}``."""

    name = "native"

    def sse(self, event: AgentEvent) -> bytes:
        """Return one SSE event; its JSON is one line, so one ``data:`` field holds it.

        An event outside the log has no id: the client's last id stays the one it resumes from.
        """
        ident = b"id: %b:%d\n" % (event.turn_id.encode(), event.seq) if event.seq else b""
        return b"%bevent: %b\ndata: %b\n\n" % (ident, event.type.encode(), event.data)

    frame = staticmethod(attrgetter("data"))
    """The event's JSON as it is."""
