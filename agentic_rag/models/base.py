"""The LLM boundary: what a model is asked, what it answers, and the protocol every model speaks.

Owns the request value, the model events and their meaning. Knows no provider and no turn. A model sees
prompt, messages and tool schemas only; it never sees a domain, a user or an event of ours.

Events of one call come in this order, as the Messages API streams them: `MessageStarted`, then per content
block `BlockStarted`, its deltas, `BlockStopped`, and at the end `MessageCompleted`. A stream that ends
without `MessageCompleted` raises `ModelError(started=True)`.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from agentic_rag.base.events import Usage
from agentic_rag.base.messages import Block, Message, ToolSpec
from agentic_rag.models.encoded import Settled

ThinkingMode = Literal["off", "auto"]
"""``auto``: the model thinks as it sees fit; ``off``: as little as it lets itself be told."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model call. ``messages`` still hold private ``_`` keys: the adapter drops or uses them.

    ``tool_choice`` is None (the model decides) or an API value such as ``{"type": "none"}``.
    ``temperature`` and ``effort`` None leave the model's default; one that the model does not take is not sent.
    ``max_tokens`` is what the answer may have: thinking gets its own room above it. ``settled``: what of its messages
    an adapter need not encode again.
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


@dataclass(frozen=True, slots=True)
class Citation:
    """A claim's source: blocks ``start`` to ``end`` (exclusive) of a ``search_result`` of the request.

    ``search_result_index`` counts every ``search_result`` block in the request, older turns included, in the
    order they appear. ``raw`` is the API's object, kept in the stored text block. ``verified``: False where the claim's
    sentence shares no word with the passage, which is all that can be checked of a mark. One without a block
    (``start`` is ``end``) cites nothing: it is counted and dropped.
    """

    search_result_index: int
    start: int
    end: int
    cited_text: str
    raw: dict[str, Any]
    verified: bool = True


@dataclass(frozen=True, slots=True)
class MessageStarted:
    """``usage``: what the service reports at once; known also of a call that is then cut off."""

    model: str
    usage: Usage = field(default_factory=Usage, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class BlockStarted:
    """A block opens. ``block`` is its first state; for ``tool_use`` it has ``id`` and ``name``."""

    index: int
    block: Block


@dataclass(frozen=True, slots=True)
class TextDelta:
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class InputDelta:
    """A piece of the JSON of the open ``tool_use``'s input, as the model writes it."""

    index: int
    json: str


@dataclass(frozen=True, slots=True)
class CitationDelta:
    """A citation of the open text block."""

    index: int
    citation: Citation


@dataclass(frozen=True, slots=True)
class BlockStopped:
    """A block closes. ``block`` is whole: text with citations, thinking with signature, parsed tool input.

    A ``tool_use`` whose input is not a JSON object carries ``_broken_input``: the raw text; ``input`` is ``{}``.
    """

    index: int
    block: Block


@dataclass(frozen=True, slots=True)
class MessageCompleted:
    """The call's end. ``stop_reason``: end_turn, max_tokens, stop_sequence, tool_use, pause_turn, refusal,
    model_context_window_exceeded. ``category``: of a refusal, where the service names one."""

    stop_reason: str
    usage: Usage
    category: str | None = None


@dataclass(frozen=True, slots=True)
class ModelProgress:
    """Bytes came that are no event yet, such as thinking that is not shown. Only time depends on it."""


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


class Model(Protocol):
    """A language model, or something that plays by its rules.

    ``name`` is what health shows (``anthropic``, ``extractive``). Retries are the agent's, never the model's.
    """

    @property
    def name(self) -> str: ...

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Open one call. Leaving the context closes the connection at once, finished or not.

        Raises:
            ModelError: the service refused, failed, or broke off (``started`` tells after the first event).
        """
        ...

    async def aclose(self) -> None:
        """Release connections. Idempotent."""
        ...
