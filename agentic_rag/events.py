"""What a turn tells the world: one tagged union, from the turn to the wire.

Owns the event bodies, the envelope, and the one JSON form that the run log stores and the native
dialect sends. Knows no clock, no store and no socket. Field meanings are the specification's
(runtime.md, "Events").

The JSON form is ``{"type", "conversationId", "turnId", "seq", "ts", "agent"?, …body}`` in camelCase; it is
made once per event, so a delta costs one encoding however many clients read it.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import orjson

ToolStatus = Literal["ok", "error", "denied", "interrupted"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or more model calls. ``input`` counts uncached input only, as the API reports it."""

    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input + other.input,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.output + other.output,
        )

    @property
    def sent(self) -> int:
        """All input tokens of the request, cached or not."""
        return self.input + self.cache_read + self.cache_write

    def wire(self) -> dict[str, int]:
        """Return the wire form; ``inputTokens`` counts all input, cached or not."""
        return {
            "inputTokens": self.sent,
            "outputTokens": self.output,
            "cacheReadTokens": self.cache_read,
            "cacheWriteTokens": self.cache_write,
        }

    @classmethod
    def from_wire(cls, value: Mapping[str, int]) -> "Usage":
        """Reverse `wire`."""
        read, write = value["cacheReadTokens"], value["cacheWriteTokens"]
        return cls(value["inputTokens"] - read - write, read, write, value["outputTokens"])


@dataclass(frozen=True, slots=True)
class Hit:
    """One found passage or memory in a `Retrieval` event."""

    id: str
    name: str
    snippet: str
    score: float
    document_id: str | None = None
    chunk_id: str | None = None
    page: int | None = None
    cells: str | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """A verified citation. Equal passages of a turn share a ``number`` (from 1)."""

    number: int
    document_id: str
    document_name: str
    chunk_id: str
    cited_text: str
    relevance_score: float
    page: int | None = None
    cells: str | None = None
    """Rows of a sheet, such as ``Rates!A2:D9``."""


@dataclass(frozen=True, slots=True)
class TurnStarted:
    type: ClassVar[str] = "turn_started"
    user_message_id: str
    message_id: str
    content: str
    model: str
    image_id: str
    client_message_id: str | None = None


@dataclass(frozen=True, slots=True)
class IterationStart:
    type: ClassVar[str] = "iteration_start"
    iteration: int


@dataclass(frozen=True, slots=True)
class Thinking:
    type: ClassVar[str] = "thinking"
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    type: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    type: ClassVar[str] = "tool_call"
    tool_call_id: str
    tool_name: str
    server: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolProgress:
    type: ClassVar[str] = "tool_progress"
    tool_call_id: str
    progress: float
    total: float | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """``content`` is the text a person reads; ``ref`` names the stored whole when ``truncated``."""

    type: ClassVar[str] = "tool_result"
    tool_call_id: str
    tool_name: str
    server: str
    status: ToolStatus
    content: str
    truncated: bool
    duration_ms: int
    ref: str | None = None


@dataclass(frozen=True, slots=True)
class Retrieval:
    type: ClassVar[str] = "retrieval"
    source: Literal["documents", "memory"]
    query: str
    hits: tuple[Hit, ...]


@dataclass(frozen=True, slots=True)
class SourceReference:
    """A verified citation of the characters ``text_from`` to ``text_to`` of the step's text."""

    type: ClassVar[str] = "source_reference"
    number: int
    iteration: int
    text_from: int
    text_to: int
    document_id: str
    document_name: str
    chunk_id: str
    cited_text: str
    score: float
    page: int | None = None
    cells: str | None = None


@dataclass(frozen=True, slots=True)
class Resumed:
    """Numbers ``voids[0]`` to ``voids[1]`` (inclusive) of this turn mean nothing."""

    type: ClassVar[str] = "resumed"
    voids: tuple[int, int]


@dataclass(frozen=True, slots=True)
class StepReset:
    """Forget all text, thinking and citations of this iteration: it is run again."""

    type: ClassVar[str] = "step_reset"
    iteration: int


@dataclass(frozen=True, slots=True)
class Retrying:
    type: ClassVar[str] = "retrying"
    attempt: int
    in_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Notice:
    type: ClassVar[str] = "notice"
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Title:
    type: ClassVar[str] = "title"
    title: str


@dataclass(frozen=True, slots=True)
class Done:
    """Terminal. ``timings``: milliseconds by name (``total``, ``retrieval``, ``generation``)."""

    type: ClassVar[str] = "done"
    message_id: str
    usage: Usage
    stop_reason: str
    references: tuple[Reference, ...]
    model: str
    timings: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Error:
    """Terminal."""

    type: ClassVar[str] = "error"
    code: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Terminal. ``message_id`` is None when nothing of the answer was kept."""

    type: ClassVar[str] = "interrupted"
    message_id: str | None = None


EventBody = (
    TurnStarted
    | IterationStart
    | Thinking
    | Text
    | ToolCall
    | ToolProgress
    | ToolResult
    | Retrieval
    | SourceReference
    | Resumed
    | StepReset
    | Retrying
    | Notice
    | Title
    | Done
    | Error
    | Interrupted
)
Terminal = Done | Error | Interrupted

TERMINAL_TYPES = frozenset({"done", "error", "interrupted"})
DELTA_TYPES = frozenset({"text", "thinking"})
"""Delivered at once and journalled in groups; everything else is durable when delivered."""


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """One numbered event of a turn. ``data`` is its JSON form (see the module), made once.

    ``type`` and ``seq`` stand beside it so that readers can route without parsing.
    """

    turn_id: str
    seq: int
    type: str
    data: bytes

    @property
    def terminal(self) -> bool:
        return self.type in TERMINAL_TYPES

    def fields(self) -> dict[str, Any]:
        """Return the parsed JSON form (a new dict each time)."""
        parsed: dict[str, Any] = orjson.loads(self.data)
        return parsed


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


_FIELDS: dict[type, tuple[tuple[str, str, bool], ...]] = {
    cls: tuple((f.name, _camel(f.name), f.default is None) for f in dataclasses.fields(cls))
    for cls in (*EventBody.__args__, Hit, Reference)
}


def _plain(value: object) -> Any:
    """Convert nested event values to JSON-ready ones; tool arguments pass as they are."""
    if isinstance(value, Usage):
        return value.wire()
    fields = _FIELDS.get(type(value))
    if fields is not None:
        return _object(value, fields)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _object(value: object, fields: tuple[tuple[str, str, bool], ...]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, wire, optional in fields:
        item = getattr(value, name)
        if item is None and optional:
            continue
        result[wire] = _plain(item)
    return result


class Encoder:
    """Numbers and encodes the events of one turn. ``redact`` takes secrets out of the strings of a JSON value."""

    __slots__ = ("_conversation_id", "_heads", "_redact", "_turn_id")

    def __init__(self, conversation_id: str, turn_id: str, redact: Callable[[Any], Any] = lambda value: value) -> None:
        self._conversation_id = conversation_id
        self._turn_id = turn_id
        self._redact = redact
        self._heads: dict[tuple[str, str], tuple[bytes, bytes]] = {}

    def encode(self, body: EventBody, seq: int, ts: str, agent: str = "") -> AgentEvent:
        """Return an event. ``ts`` is UTC ISO-8601 with ``Z``; ``agent`` a path of delegates."""
        kind = body.type
        if type(body) is Text or type(body) is Thinking:  # the hot path: only number, time and text are new
            head, middle = self._heads.get((kind, agent)) or self._head(kind, agent)
            text = orjson.dumps(self._redact(body.text))
            return AgentEvent(self._turn_id, seq, kind, b'%b%d,"ts":"%b%b%b}' % (head, seq, ts.encode(), middle, text))
        value: dict[str, Any] = {
            "type": kind,
            "conversationId": self._conversation_id,
            "turnId": self._turn_id,
            "seq": seq,
            "ts": ts,
        }
        if agent:
            value["agent"] = agent
        value.update(self._redact(_object(body, _FIELDS[type(body)])))
        return AgentEvent(self._turn_id, seq, kind, orjson.dumps(value))

    def _head(self, kind: str, agent: str) -> tuple[bytes, bytes]:
        """Return what stands before the number of each delta of a kind, and between its time and its text."""
        value = {"type": kind, "conversationId": self._conversation_id, "turnId": self._turn_id}
        head = orjson.dumps(value)[:-1] + b',"seq":'
        middle = (b'","agent":%b' % orjson.dumps(agent) if agent else b'"') + b',"text":'
        self._heads[kind, agent] = head, middle
        return head, middle


def encode(
    body: EventBody,
    *,
    conversation_id: str,
    turn_id: str,
    seq: int,
    ts: str,
    agent: str = "",
) -> AgentEvent:
    """Number and encode one event body alone; see `Encoder`."""
    return Encoder(conversation_id, turn_id).encode(body, seq, ts, agent)


def decode(turn_id: str, seq: int, data: bytes) -> AgentEvent:
    """Return the event whose JSON form a log kept."""
    return AgentEvent(turn_id, seq, orjson.loads(data)["type"], data)
