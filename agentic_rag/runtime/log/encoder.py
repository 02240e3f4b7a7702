"""The JSON form of an event.

The form is ``{"type", "conversationId", "turnId", "seq", "ts", "agent"?, "parentToolCallId"?, …body}`` in camelCase,
without secrets. Each event is encoded once, so a delta costs one encoding for any number of clients. Knows no clock and
no log.
"""

import dataclasses
from typing import Any, Literal

import orjson

from agentic_rag.base.events import (
    AgentEvent,
    Delegate,
    EventBody,
    Option,
    Reference,
    RetrievalHit,
    Source,
    Text,
    Thinking,
    Usage,
    decode,
)
from agentic_rag.base.ids import ConversationId, TurnId
from agentic_rag.base.json_form import Json, camel, to_text
from agentic_rag.base.messages import KeptAttachment, KeptImage
from agentic_rag.base.redaction import Redaction
from agentic_rag.store.run_events import lead_of, whole

TextKind = Literal["text", "thinking"]
"""The types of events that carry a piece of text."""

_FIELDS: dict[type, tuple[tuple[str, str, bool], ...]] = {
    cls: tuple((f.name, camel(f.name), f.default is None) for f in dataclasses.fields(cls))
    for cls in (*EventBody.__args__, RetrievalHit, KeptAttachment, KeptImage, Option, Reference, Source)
}
"""For each record type: the fields with their JSON names, and whether a field is left out when its value is None."""
_PLAIN = frozenset({str, int, float, bool, dict})
"""Types whose values are JSON already. Arguments of tools are plain dicts."""


class Encoder:
    """Numbers and encodes the events of one turn. ``redaction``: the secrets that no event may contain."""

    __slots__ = ("_conversation_id", "_heads", "_lead", "_redaction", "_turn_id")

    def __init__(self, conversation_id: ConversationId, turn_id: TurnId, redaction: Redaction | None = None) -> None:
        self._conversation_id = conversation_id
        self._turn_id = turn_id
        self._redaction = redaction or Redaction()
        self._lead = lead_of(conversation_id, turn_id)
        self._heads: dict[tuple[TextKind, Delegate] | TextKind, tuple[bytes, bytes, bytes]] = {}

    def encode(
        self, body: EventBody, seq: int, ts: str, agent: Delegate | None = None, *, redacted: bool = False
    ) -> AgentEvent:
        """Return an encoded event.

        ``ts``: UTC ISO-8601 with ``Z``. ``agent``: the delegate that sent the event. ``seq`` is 0 for an event outside
        the log. ``redacted``: the text of the event has passed the same redaction, in all its pieces.
        """
        if type(body) is Text or type(body) is Thinking:
            text = body.text if redacted or self._redaction.idle else self._redaction(body.text)
            return self.encode_text("text" if type(body) is Text else "thinking", text, seq, ts, agent)[0]
        kind = body.type
        value: Json = {
            "type": kind,
            "conversationId": self._conversation_id,
            "turnId": self._turn_id,
            **({"seq": seq} if seq else {}),
            "ts": ts,
        }
        if agent is not None:
            value |= _of_delegate(agent)
        fields = _object(body)
        data = to_text(value | fields).encode()
        if not (self._redaction.idle or self._redaction.is_clear_json(data)):
            data = to_text(value | self._redaction.json(fields)).encode()
        return AgentEvent(self._turn_id, seq, kind, data)

    def encode_text(
        self, kind: TextKind, text: str, seq: int, ts: str, agent: Delegate | None = None
    ) -> tuple[AgentEvent, bytes]:
        """Return the event of a piece of text without secrets, and its short form (`shorten`).

        The bytes before the number and between time and text are cached per kind and agent.
        """
        head, mark, middle = self._heads.get(kind if agent is None else (kind, agent)) or self._head(kind, agent)
        rest = b'%d,"ts":"%b%b%b}' % (seq, ts.encode(), middle, orjson.dumps(text))
        # `AgentEvent(...)` does the same through one more call, in Python.
        event = tuple.__new__(AgentEvent, (self._turn_id, seq, kind, head + rest))
        return event, mark + rest

    def _head(self, kind: TextKind, agent: Delegate | None) -> tuple[bytes, bytes, bytes]:
        """Cache and return the bytes before the number, those of the short form, and those between time and text."""
        delegate_fields = b"," + orjson.dumps(_of_delegate(agent))[1:-1] if agent is not None else b""
        head = (
            b'{"type":"%b%b' % (kind.encode(), self._lead),
            kind.encode() + b" ",
            b'"' + delegate_fields + b',"text":',
        )
        self._heads[kind if agent is None else (kind, agent)] = head
        return head

    def shorten(self, event: AgentEvent) -> bytes:
        """Return an event without the beginning that all events of the turn share; see ``store.run_events``."""
        kind = event.type.encode()
        head = b'{"type":"%b%b' % (kind, self._lead)
        return b"%b %b" % (kind, event.data[len(head) :]) if event.data.startswith(head) else event.data

    def restore(self, seq: int, short: bytes) -> AgentEvent:
        """Return the event of a short form."""
        return decode(self._turn_id, seq, whole(short, self._lead))


def encode(body: EventBody, *, conversation_id: str, turn_id: str, seq: int, ts: str) -> AgentEvent:
    """Number and encode one event body outside a turn's log; see `Encoder`."""
    return Encoder(ConversationId(conversation_id), TurnId(turn_id)).encode(body, seq, ts)


def _of_delegate(agent: Delegate) -> Json:
    return {"agent": agent.path, "parentToolCallId": agent.tool_call_id}


def _object(record: object) -> Json:
    return {
        name: item if type(item) in _PLAIN else _plain(item)
        for attribute, name, optional in _FIELDS[type(record)]
        if (item := getattr(record, attribute)) is not None or not optional
    }


def _plain(value: object) -> Any:
    """Convert nested event values to JSON values. Tool arguments pass unchanged."""
    if isinstance(value, Usage):
        return value.to_json()
    if type(value) in _FIELDS:
        return _object(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
