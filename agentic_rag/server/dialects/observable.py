"""The native events with snake_case fields, for clients of the observable streams.

Contents and order are native's. Tool arguments and results are unchanged, because their keys are the tool's.
"""

import re
from functools import cache

from agentic_rag.base.events import AgentEvent
from agentic_rag.base.json_form import Json, to_text
from agentic_rag.server.dialects.base import Headers
from agentic_rag.server.dialects.native import sse_id
from agentic_rag.server.ws.frames import ClientFrame, Reply, read_frame, reply_fields

OWN = frozenset({"arguments", "schema", "structured", "timings"})
"""Fields whose inner keys belong to tools."""


class Observable:
    """Stateless, like native. Search hits are called ``cards``; a search without hits sends no event."""

    name = "observable"
    headers: Headers = ()
    needs_start = False
    ended = False

    def sse(self, event: AgentEvent) -> bytes:
        """Return one SSE event: type, ``{turn_id}:{seq}`` and one line of JSON."""
        text = _encode(event)
        return b"%bevent: %b\ndata: %b\n\n" % (sse_id(event), event.type.encode(), text) if text else b""

    def frames(self, event: AgentEvent) -> tuple[bytes, ...]:
        """Return the event's JSON."""
        text = _encode(event)
        return (text,) if text else ()


class ObservableFrames:
    """Native's frames in camelCase or snake_case, without unknown keys. The answers are in snake_case."""

    def read(self, value: Json) -> ClientFrame:
        """Read a frame as `read_frame` does; refuse unknown keys."""
        return read_frame(value, forbid_unknown=True)

    def encode(self, reply: Reply) -> tuple[bytes, ...]:
        """Return native's answer in snake_case."""
        return (to_text(_rename(reply_fields(reply))).encode(),)


def _encode(event: AgentEvent) -> bytes:
    fields = event.fields()
    if event.type == "retrieval":
        fields["cards"] = fields.pop("hits")
        if not fields["cards"]:
            return b""
    return to_text(_rename(fields)).encode()


def _rename(fields: Json) -> Json:
    return {_snake(name): item if name in OWN else _inside(item) for name, item in fields.items()}


def _inside(item: object) -> object:
    if isinstance(item, dict):
        return _rename(item)
    return [_inside(element) for element in item] if isinstance(item, list) else item


@cache
def _snake(name: str) -> str:
    """Return a camelCase name in snake_case."""
    return re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
