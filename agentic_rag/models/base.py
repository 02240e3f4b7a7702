"""The LLM boundary: requests, model events, and the protocol that every model implements.

Knows no provider and no turn. A model sees the prompt, messages and tool schemas only, never a domain, a user or an
event of the server.

The events of one call come in the order of the Messages API: `MessageStarted`; for each content block `BlockStarted`,
its deltas and `BlockStopped`; and at the end `MessageCompleted`. A stream that ends without `MessageCompleted` raises
`ModelError(started=True)`.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from agentic_rag.base.events import Usage
from agentic_rag.base.messages import Block, Message, ToolSpec
from agentic_rag.models.encoded import Settled

MAX_TOKENS = 2**31 - 1
"""Most tokens that one figure of a service's usage counts: the largest number that a column of it holds."""

ThinkingMode = Literal["off", "auto"]
"""``auto``: the model decides how much to think. ``off``: as little thinking as the model allows."""


def token_count(value: object) -> int:
    """Return a number of tokens as a service reported it, from 0 to `MAX_TOKENS`; 0 for anything but a number.

    A figure that no database column holds would fail the transaction that ends the turn.
    """
    return min(max(value, 0), MAX_TOKENS) if isinstance(value, int) and not isinstance(value, bool) else 0


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model call.

    ``messages``: may hold private ``_`` keys, which the adapter drops or uses.
    ``tool_choice``: None (the model decides) or an API value such as ``{"type": "none"}``. The adapter omits a forced
    call if the service refuses it.
    ``temperature`` and ``effort``: None for the model's default. The adapter omits values that the model refuses.
    ``max_tokens``: limit of the answer. Thinking gets room in addition.
    ``settled``: the messages that an adapter need not encode again.
    ``previous_answer``: asks the service why its prompt cache missed. The id of its previous answer in the
    conversation, empty for the first request, None to ask nothing.
    ``answer_schema``: JSON schema of the answer. The adapter omits a schema that the service does not support, so the
    prompt must describe the form, too. Never set this in a conversation: another schema invalidates the prompt cache.
    """

    model: str
    max_tokens: int
    system: tuple[Block, ...]
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: dict[str, Any] | None = None
    temperature: float | None = None
    thinking: ThinkingMode = "auto"
    effort: str | None = None
    settled: Settled | None = field(default=None, compare=False, repr=False)
    previous_answer: str | None = field(default=None, compare=False)
    answer_schema: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Citation:
    """A claim's source: blocks ``start`` to ``end`` (exclusive) of a ``search_result`` of the request.

    ``search_result_index``: counts every ``search_result`` block of the request in order, older turns included.
    ``raw``: the API's object, kept in the stored text block.
    ``verified``: False if the claim's sentence shares no word with the passage. Marks allow no stronger check.

    A citation without a block (``start`` equals ``end``) cites nothing. The runtime counts and drops it.
    """

    search_result_index: int
    start: int
    end: int
    cited_text: str
    raw: dict[str, Any]
    verified: bool = True


@dataclass(frozen=True, slots=True)
class CacheMiss:
    """Why the service could not reuse the cached prompt of the previous request.

    ``reason``: the service's type, such as ``tools_changed``. ``tokens``: input tokens that the cache would have held.
    """

    reason: str
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class MessageStarted:
    """The service began to answer.

    ``usage``: the figures that the service reports at the start. They are known even if the call breaks off later.
    ``answer_id``: the service's id of the answer, for `ModelRequest.previous_answer`; empty if the service gives none.
    ``cache_miss``: the answer to `ModelRequest.previous_answer`; None if nothing changed or the service does not say.
    """

    model: str
    usage: Usage = field(default_factory=Usage, compare=False, repr=False)
    answer_id: str = field(default="", compare=False, repr=False)
    cache_miss: CacheMiss | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class BlockStarted:
    """A block opens. ``block`` is its initial state; a ``tool_use`` has ``id`` and ``name``."""

    index: int
    block: Block


# The two deltas below are not frozen like the other events: they are built for each piece of an answer, and a frozen
# dataclass takes twice as long to build. No code changes them.
@dataclass(slots=True)
class TextDelta:
    index: int
    text: str


@dataclass(slots=True)
class ThinkingDelta:
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class InputDelta:
    """A piece of the input JSON of the open ``tool_use``, as the model writes it."""

    index: int
    json: str


@dataclass(frozen=True, slots=True)
class CitationDelta:
    """A citation of the open text block."""

    index: int
    citation: Citation


@dataclass(frozen=True, slots=True)
class BlockStopped:
    """A block closes. ``block`` is complete: text with citations, thinking with signature, parsed tool input.

    If the input of a ``tool_use`` is not a JSON object, ``input`` is ``{}`` and ``_broken_input`` holds the raw text.
    """

    index: int
    block: Block


@dataclass(frozen=True, slots=True)
class MessageCompleted:
    """The call ended.

    ``stop_reason``: end_turn, max_tokens, stop_sequence, tool_use, pause_turn, refusal or
    model_context_window_exceeded. ``category``: the category of a refusal, if the service names one.
    """

    stop_reason: str
    usage: Usage
    category: str | None = None


@dataclass(frozen=True, slots=True)
class ModelProgress:
    """Bytes arrived that form no event, such as thinking that is not shown. Only timeouts use this event."""


ModelEvent = (
    ModelProgress
    | MessageStarted
    | BlockStarted
    | TextDelta
    | ThinkingDelta
    | InputDelta
    | CitationDelta
    | BlockStopped
    | MessageCompleted
)


@dataclass(slots=True)
class PartialAnswer:
    """The text, model, usage and stop reason of an answer, as far as the model has sent them.

    For calls whose answer is read as a whole. Callers read the usage after an error or a cancellation too, because such
    a call also costs something. ``model`` is the model of the request until the service names its own.
    """

    model: str
    usage: Usage = field(default_factory=Usage)
    stop_reason: str = ""
    _pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def add(self, event: ModelEvent) -> None:
        """Add the next event of the model."""
        if isinstance(event, TextDelta):
            self._pieces.append(event.text)
        elif isinstance(event, MessageStarted):
            self.model, self.usage = event.model, event.usage
        elif isinstance(event, MessageCompleted):
            self.usage, self.stop_reason = event.usage, event.stop_reason


class Model(Protocol):
    """A language model, or a substitute such as the extractive model.

    ``name``: shown by the health report (``anthropic``, ``extractive``). A model never retries: the agent does.
    """

    @property
    def name(self) -> str: ...

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Open one call. Leaving the context closes the connection at once, finished or not.

        Raises:
            ModelError: the service refused, failed, or broke off (``started`` is True after the first event).
        """
        ...

    async def aclose(self) -> None:
        """Release connections. Idempotent."""
        ...
