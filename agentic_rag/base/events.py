"""The events of a turn: one tagged union, from the turn to its readers.

Owns the event bodies and the numbered event. Knows no clock, no store and no socket; the run log makes the JSON form.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Literal, NamedTuple

import orjson

from agentic_rag.base.json_form import Absent
from agentic_rag.base.messages import KeptAttachment, KeptImage


class ToolStatus(StrEnum):
    """The outcome of a tool call. No event has ``running``; only the stored call does."""

    RUNNING = "running"
    OK = "ok"
    ERROR = "error"
    DENIED = "denied"
    INTERRUPTED = "interrupted"


class WaitKind(StrEnum):
    """The kind of input that a turn asks a person for."""

    APPROVAL = "approval"
    """Permission to run a call."""
    FORM = "form"
    """Values for a server's form."""
    URL = "url"
    """A task at an address, such as signing in."""
    QUESTION = "question"
    """An answer to a question of the model."""
    FUNCTION = "function"
    """The result of a function that the client's program runs."""


class Answerer(StrEnum):
    """The person who may answer: the conversation's owner, or an admin of its domain."""

    OWNER = "owner"
    ADMIN = "admin"


class WaitAction(StrEnum):
    """The way a wait ended. A person answers with one of the first three."""

    ACCEPT = "accept"
    DECLINE = "decline"
    CANCEL = "cancel"
    EXPIRE = "expire"


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

    def to_json(self) -> dict[str, int]:
        """Return the JSON form; ``inputTokens`` counts all input, cached or not."""
        return {
            "inputTokens": self.sent,
            "outputTokens": self.output,
            "cacheReadTokens": self.cache_read,
            "cacheWriteTokens": self.cache_write,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, int]) -> "Usage":
        """Reverse `to_json`."""
        read, write = value["cacheReadTokens"], value["cacheWriteTokens"]
        return cls(value["inputTokens"] - read - write, read, write, value["outputTokens"])


@dataclass(frozen=True, slots=True)
class RetrievalHit:
    """One passage or memory in a `Retrieval` event. ``score``: relevance, from 0 to 1."""

    id: str
    name: str
    snippet: str
    score: float
    document_id: str | None = None
    chunk_id: str | None = None
    page: int | None = None
    cells: str | None = None
    strength: Absent[float] = None
    """Strength at which a memory was saved, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class CitedTable:
    """Rows that a citation quotes, below the cells of their table's header."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """A verified citation. Equal passages of a turn share a ``number`` (from 1)."""

    number: int
    document_id: str
    document_name: str
    chunk_id: str
    cited_text: str
    score: float
    page: int | None = None
    cells: str | None = None
    """Rows of a sheet, such as ``Rates!A2:D9``."""
    agent: Absent[str] = None
    """Path of the delegate that found the passage; None: the agent itself did."""
    verified: Absent[bool] = None
    """False: the statement shares no word with the passage, whose text is shown. Such a citation has its own number."""
    table: Absent[CitedTable] = None
    """The cited rows, where the passage is a table."""
    scanned: Absent[bool] = None
    """True: the passage was read from a scan, by OCR if `scanned_by` is absent."""
    document_date: Absent[str] = None
    """The date of the document, `YYYY-MM-DD`, if it is known."""
    review_by: Absent[str] = None
    """The day until which the document should be reviewed, `YYYY-MM-DD`."""
    scanned_by: Absent[str] = None
    """``model``: a language model read the passage from the scan, not OCR."""
    source_uri: Absent[str] = None
    """The document's address in the system it came from, as a URI."""


@dataclass(frozen=True, slots=True)
class TurnStarted:
    type: ClassVar[str] = "turn_started"
    user_message_id: str
    message_id: str
    content: str
    model: str
    image_id: str
    client_message_id: str | None = None
    images: tuple[KeptImage, ...] | None = None
    """The images that were sent with the message; each has a file at ``/api/payloads/{ref}``."""
    attachments: tuple[KeptAttachment, ...] | None = None
    """The files that were sent with the message."""


@dataclass(frozen=True, slots=True)
class IterationStart:
    """A model call begins. ``continues``: its text continues where the previous call was cut off."""

    type: ClassVar[str] = "iteration_start"
    iteration: int
    continues: bool = False


@dataclass(frozen=True, slots=True)
class Thinking:
    type: ClassVar[str] = "thinking"
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    type: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """The model has named a tool and writes its arguments. `ToolCall` follows once the message is stored."""

    type: ClassVar[str] = "tool_call_started"
    tool_call_id: str
    tool_name: str
    server: str


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """A piece of the JSON of a started call's arguments; `ToolCall` has the whole."""

    type: ClassVar[str] = "tool_arguments"
    tool_call_id: str
    delta: str


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
    """The result of a call: ``content`` is the text a person reads; ``ref`` names the stored whole when ``truncated``.

    ``structured``: a user server's structured content, or ``{"_ref": …}`` for content that is stored separately.
    """

    type: ClassVar[str] = "tool_result"
    tool_call_id: str
    tool_name: str
    server: str
    status: ToolStatus
    content: str
    truncated: bool
    duration_ms: int
    ref: str | None = None
    structured: Any = None


@dataclass(frozen=True, slots=True)
class Retrieval:
    """The results of a search. ``retrieval_id``: the stored search; for memories, which are not stored, the call."""

    type: ClassVar[str] = "retrieval"
    retrieval_id: str
    source: Literal["documents", "memory"]
    query: str
    hits: tuple[RetrievalHit, ...]


@dataclass(frozen=True, slots=True)
class SourceReference:
    """A citation of the characters ``text_from`` to ``text_to`` of the step's text, which quotes a passage.

    ``verified`` is False if the cited statement shares no word with the passage. ``document_date`` and ``review_by``
    are the document's dates, and ``source_uri`` is its address in the system it came from, if they are known.
    """

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
    verified: Absent[bool] = None
    table: Absent[CitedTable] = None
    scanned: Absent[bool] = None
    document_date: Absent[str] = None
    review_by: Absent[str] = None
    scanned_by: Absent[str] = None
    source_uri: Absent[str] = None


@dataclass(frozen=True, slots=True)
class Resumed:
    """Numbers ``voids[0]`` to ``voids[1]`` (inclusive) of this turn are void."""

    type: ClassVar[str] = "resumed"
    voids: tuple[int, int]


@dataclass(frozen=True, slots=True)
class StepReset:
    """Clients must discard all text, thinking, citations and started calls of this iteration: it runs again."""

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
class Compacted:
    """A summary replaces this many messages for the model. People still see the messages."""

    type: ClassVar[str] = "compacted"
    messages: int
    summary_tokens: int


@dataclass(frozen=True, slots=True)
class Title:
    type: ClassVar[str] = "title"
    title: str


@dataclass(frozen=True, slots=True)
class Option:
    """One of the answers to choose from."""

    value: str
    title: str


@dataclass(frozen=True, slots=True)
class Source:
    """Content of others that the model has read since the user's message, and that may contain instructions.

    ``kind``: ``document``, ``memory``, ``tool`` (a result), ``delegate``, ``description`` (a tool's own) or ``webhook``
    (the body of a message that started the turn).
    """

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class InputRequired:
    """The turn waits for a person. ``answerer``: the person who may answer; ``expires_at``: when the wait is declined.

    An ``approval`` has ``tool_name``, ``arguments`` as they would be sent, their ``schema``, and ``sources``. A
    ``form`` has ``schema``. A ``url`` has the whole address, which was not opened. A ``question`` has ``options``, of
    which ``multiple`` allows several. A ``function`` has ``tool_name`` and ``arguments``, and the program that sent the
    question answers it; ``usage`` is the turn's until then. ``warning``: a text that the person should read first.
    """

    type: ClassVar[str] = "input_required"
    wait_id: str
    kind: WaitKind
    answerer: Answerer
    title: str
    message: str
    expires_at: str
    tool_call_id: str | None = None
    server: str | None = None
    tool_name: str | None = None
    arguments: Mapping[str, Any] | None = None
    schema: Mapping[str, Any] | None = None
    url: str | None = None
    options: tuple[Option, ...] | None = None
    multiple: bool | None = None
    warning: str | None = None
    sources: tuple[Source, ...] | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class InputAnswered:
    """A wait has ended. ``by``: the id of the person who answered, empty if it expired or the turn ended."""

    type: ClassVar[str] = "input_answered"
    wait_id: str
    action: WaitAction
    by: str


@dataclass(frozen=True, slots=True)
class Done:
    """Terminal. ``timings``: milliseconds by name (``total``, ``retrieval``, ``generation``).

    ``retrieval_ids``: the stored searches of the turn, delegates' included.
    """

    type: ClassVar[str] = "done"
    message_id: str
    usage: Usage
    stop_reason: str
    references: tuple[Reference, ...]
    model: str
    timings: Mapping[str, int] = field(default_factory=dict)
    retrieval_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Error:
    """Terminal."""

    type: ClassVar[str] = "error"
    code: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Terminal. ``message_id`` is None if no part of the answer was stored."""

    type: ClassVar[str] = "interrupted"
    message_id: str | None = None


EventBody = (
    TurnStarted
    | IterationStart
    | Thinking
    | Text
    | ToolCallStarted
    | ToolArguments
    | ToolCall
    | ToolProgress
    | ToolResult
    | Retrieval
    | SourceReference
    | Resumed
    | StepReset
    | Retrying
    | Notice
    | Compacted
    | Title
    | InputRequired
    | InputAnswered
    | Done
    | Error
    | Interrupted
)
Terminal = Done | Error | Interrupted

TERMINAL_TYPES = frozenset({"done", "error", "interrupted"})
DELTA_TYPES = frozenset({"text", "thinking", "tool_call_started", "tool_arguments"})
"""Event types that are delivered at once and journalled in groups; all others are durable when delivered."""


@dataclass(frozen=True, slots=True)
class Delegate:
    """The delegate that an event comes from: its path, unique in its turn, and the ``delegate`` call it serves."""

    path: str
    tool_call_id: str


class AgentEvent(NamedTuple):
    """One event of a turn. ``data`` is its JSON form, encoded once; see ``runtime.log.runlog``.

    ``type`` and ``seq`` are separate fields so that readers can route without parsing. An event with ``seq`` 0 is not
    part of the log: it describes the stream itself, its JSON has no number, and it is never replayed.
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


def decode(turn_id: str, seq: int, data: bytes) -> AgentEvent:
    """Return the event for a JSON form from a stored log."""
    match = _TYPE(data)
    return AgentEvent(turn_id, seq, match[1].decode() if match else orjson.loads(data)["type"], data)


_TYPE = re.compile(rb'\{"type":"([a-z_]+)"').match
"""The type is the first member in JSON that this program wrote."""
