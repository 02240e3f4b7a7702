"""The one JSON form of an event.

It is ``{"type", "conversationId", "turnId", "seq", "ts", "agent"?, "parentToolCallId"?, …body}`` in camelCase, secrets
taken out; it is made once per event, so a delta costs one encoding however many clients read it. Knows no clock and no
log.
"""

import dataclasses
from typing import Any, Literal

import orjson

from agentic_rag.events import (
    AgentEvent,
    Delegate,
    EventBody,
    Hit,
    Option,
    Reference,
    Source,
    Text,
    Thinking,
    Usage,
)
from agentic_rag.ids import ConversationId, TurnId
from agentic_rag.json_form import Json, camel, to_text
from agentic_rag.messages import KeptImage
from agentic_rag.redaction import Redaction

TextKind = Literal["text", "thinking"]
"""The types of the events that are pieces of text."""

_FIELDS: dict[type, tuple[tuple[str, str, bool], ...]] = {
    cls: tuple((f.name, camel(f.name), f.default is None) for f in dataclasses.fields(cls))
    for cls in (*EventBody.__args__, Hit, KeptImage, Option, Reference, Source)
}
"""By record: each field, its JSON name, and whether it is left out when it is None."""


class Encoder:
    """Numbers and encodes the events of one turn. ``redaction``: the values that none of them may show."""

    __slots__ = ("_conversation_id", "_heads", "_redaction", "_turn_id")

    def __init__(self, conversation_id: ConversationId, turn_id: TurnId, redaction: Redaction | None = None) -> None:
        self._conversation_id = conversation_id
        self._turn_id = turn_id
        self._redaction = redaction or Redaction()
        self._heads: dict[tuple[TextKind, Delegate] | TextKind, tuple[bytes, bytes]] = {}

    def encode(
        self, body: EventBody, seq: int, ts: str, agent: Delegate | None = None, *, redacted: bool = False
    ) -> AgentEvent:
        """Return an event. ``ts`` is UTC ISO-8601 with ``Z``; ``agent``: whose it is; 0: outside the log.

        ``redacted``: a text in it has gone through the same redaction, all pieces of it.
        """
        if type(body) is Text or type(body) is Thinking:
            text = body.text if redacted or self._redaction.idle else self._redaction(body.text)
            return self.encode_text("text" if type(body) is Text else "thinking", text, seq, ts, agent)
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
        value.update(fields if self._redaction.idle else self._redaction.json(fields))
        return AgentEvent(self._turn_id, seq, kind, to_text(value).encode())

    def encode_text(self, kind: TextKind, text: str, seq: int, ts: str, agent: Delegate | None = None) -> AgentEvent:
        """Return the event of a piece of text that holds no secret. Only number, time and text are new in it."""
        head, middle = self._heads.get(kind if agent is None else (kind, agent)) or self._head(kind, agent)
        data = b'%b%d,"ts":"%b%b%b}' % (head, seq, ts.encode(), middle, orjson.dumps(text))
        return AgentEvent(self._turn_id, seq, kind, data)

    def _head(self, kind: TextKind, agent: Delegate | None) -> tuple[bytes, bytes]:
        """Return what stands before the number of each piece of a kind, and between its time and its text."""
        value = {"type": kind, "conversationId": self._conversation_id, "turnId": self._turn_id}
        head = orjson.dumps(value)[:-1] + b',"seq":'
        whose = b"," + orjson.dumps(_of_delegate(agent))[1:-1] if agent is not None else b""
        middle = b'"' + whose + b',"text":'
        self._heads[kind if agent is None else (kind, agent)] = head, middle
        return head, middle


def encode(body: EventBody, *, conversation_id: str, turn_id: str, seq: int, ts: str) -> AgentEvent:
    """Number and encode one event body alone; see `Encoder`."""
    return Encoder(ConversationId(conversation_id), TurnId(turn_id)).encode(body, seq, ts)


def _of_delegate(agent: Delegate) -> Json:
    return {"agent": agent.path, "parentToolCallId": agent.tool_call_id}


def _object(record: object) -> Json:
    return {
        name: _plain(item)
        for attribute, name, optional in _FIELDS[type(record)]
        if (item := getattr(record, attribute)) is not None or not optional
    }


def _plain(value: object) -> Any:
    """Convert nested event values to JSON-ready ones; tool arguments pass as they are."""
    if isinstance(value, Usage):
        return value.to_json()
    if type(value) in _FIELDS:
        return _object(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
