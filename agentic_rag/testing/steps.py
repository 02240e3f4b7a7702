"""The answers of a scripted model: one `Step` per model call, and its conversion to model events.

Owns the vocabulary shared by `ScriptedModel` (events in process) and `FakeMessagesAPI` (the same events over HTTP), and
its JSON form. Knows no transport; `FakeMessagesAPI` has the faults of a connection.

The JSON form of a step (``blocks`` may be a bare string: one text block)::

    {"blocks": [{"type": "thinking", "thinking": "…"},
                {"type": "text", "text": "…", "pieces": ["…"]?,
                 "citations": [{"result": 0, "start": 0, "end": 1, "cited_text": "…"?}]?},
                {"type": "tool_use", "name": "…", "input": {…}, "id": "…"?, "raw": "…"?},
                {"type": "redacted_thinking", "data": "…"}],
     "stop_reason": "…"?, "usage": {"input": 1, "cache_read": 0, "cache_write": 0, "output": 1}?}
"""

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import orjson

from agentic_rag.base.events import Usage
from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import BROKEN_INPUT, Block
from agentic_rag.models.base import (
    BlockStarted,
    BlockStopped,
    Citation,
    CitationDelta,
    InputDelta,
    MessageCompleted,
    MessageStarted,
    ModelEvent,
    TextDelta,
    ThinkingDelta,
)
from agentic_rag.testing.bindings import sign

_PIECE = re.compile(r"\s*\S{1,12}\s?", re.UNICODE)


@dataclass(frozen=True, slots=True)
class Cite:
    """A citation of blocks of one of the request's search results.

    Cites blocks ``start`` to ``end`` (exclusive, default one block) of the search result number ``result`` (from 0,
    counted over the whole request). ``cited_text`` forges the quote; without it the result must exist in the request.
    """

    result: int
    start: int = 0
    end: int | None = None
    cited_text: str | None = None


@dataclass(frozen=True, slots=True)
class Say:
    """A text block. ``pieces`` are its deltas; by default about a word each."""

    text: str
    cites: tuple[Cite, ...] = ()
    pieces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Think:
    """A thinking block, signed so that the stand-ins accept it in later requests."""

    text: str
    pieces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RedactedThinking:
    """A redacted thinking block."""

    data: str


@dataclass(frozen=True, slots=True)
class Use:
    """A tool call. An empty ``id`` is replaced by a fresh one. ``raw`` replaces the input's JSON, to break it.

    ``pieces`` are the deltas of the input's JSON; by default the JSON only comes with the block's end.
    """

    name: str
    input: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    raw: str | None = None
    pieces: tuple[str, ...] = ()


StepBlock = Say | Think | RedactedThinking | Use


@dataclass(frozen=True, slots=True)
class Step:
    """One model call's answer. ``stop_reason`` defaults to ``tool_use`` if a tool is called, else ``end_turn``.

    ``usage`` None: each stand-in computes its own figures.
    """

    blocks: tuple[StepBlock, ...] = ()
    stop_reason: str | None = None
    usage: Usage | None = None
    category: str | None = None
    """Policy category of a refusal."""


def say(text: str, *cites: Cite) -> Step:
    """Return the step that answers with one text block."""
    return Step((Say(text, cites),))


def use(name: str, /, **arguments: Any) -> Step:
    """Return the step that calls one tool."""
    return Step((Use(name, arguments),))


class Signs(Protocol):
    """Signs an answer's thinking; gets every other block, too, in their order."""

    def sign(self, thinking: str) -> str: ...
    def take(self, block: Block) -> None: ...


class Unbound:
    """Signs thinking for stand-ins that do not check the prefix."""

    def sign(self, thinking: str) -> str:
        return sign(thinking)

    def take(self, block: Block) -> None:
        """Ignore the block: the signatures do not depend on it."""


Display = Literal["summarized", "omitted"]


def step_events(
    step: Step,
    *,
    model: str,
    results: Sequence[Block] = (),
    signer: Signs | None = None,
    display: Display = "summarized",
) -> list[ModelEvent]:
    """Return the events of a step in order.

    Args:
        step: the answer.
        model: the model's name.
        results: the request's search results, which citations index.
        signer: signs the thinking; by default for stand-ins that check no prefix.
        display: whether the text of thinking is streamed.

    Raises:
        AssertionError: The step cites a search result or block that is not in the request.
    """
    events: list[ModelEvent] = [MessageStarted(model)]
    for index, block in enumerate(step.blocks):
        if isinstance(block, Think) and display == "omitted":
            block = Think("", ("",))
        events += _block_events(index, block, results, signer or Unbound())
    calls = any(isinstance(block, Use) for block in step.blocks)
    deltas = sum(isinstance(event, TextDelta | ThinkingDelta) for event in events)
    events.append(
        MessageCompleted(
            step.stop_reason or ("tool_use" if calls else "end_turn"),
            step.usage or Usage(input=10, output=max(1, deltas)),
        )
    )
    return events


def _block_events(index: int, block: StepBlock, results: Sequence[Block], signer: Signs) -> list[ModelEvent]:
    if isinstance(block, Think):
        return _thinking_events(index, block, signer.sign(block.text))
    if isinstance(block, RedactedThinking):
        # A redacted block has no field for a signature; `bindings` looks for it behind the last bar of the data.
        seal = "" if isinstance(signer, Unbound) else "|" + signer.sign(block.data)
        redacted: Block = {"type": "redacted_thinking", "data": block.data + seal}
        return [BlockStarted(index, redacted), BlockStopped(index, redacted)]
    events = _said_events(index, block, results) if isinstance(block, Say) else _use_events(index, block)
    closed = events[-1]
    assert isinstance(closed, BlockStopped)
    signer.take({key: value for key, value in closed.block.items() if not key.startswith("_")})
    return events


def _said_events(index: int, block: Say, results: Sequence[Block]) -> list[ModelEvent]:
    citations = [_citation(cite, results) for cite in block.cites]
    whole: Block = {"type": "text", "text": block.text}
    if citations:
        whole["citations"] = [citation.raw for citation in citations]
    return [
        BlockStarted(index, {"type": "text", "text": ""}),
        *(TextDelta(index, piece) for piece in block.pieces or pieces_of(block.text)),
        *(CitationDelta(index, citation) for citation in citations),
        BlockStopped(index, whole),
    ]


def _thinking_events(index: int, block: Think, signature: str) -> list[ModelEvent]:
    pieces = block.pieces or pieces_of(block.text)
    return [
        BlockStarted(index, {"type": "thinking", "thinking": "", "signature": ""}),
        *(ThinkingDelta(index, piece) for piece in pieces if piece),
        BlockStopped(index, {"type": "thinking", "thinking": block.text, "signature": signature}),
    ]


def _use_events(index: int, block: Use) -> list[ModelEvent]:
    opened: Block = {"type": "tool_use", "id": block.id or f"toolu_{uuid.uuid4().hex[:20]}", "name": block.name}
    closed: Block = {**opened, "input": dict(block.input)}
    if block.raw is not None:
        closed = {**opened, "input": {}, BROKEN_INPUT: block.raw}
    written = [InputDelta(index, piece) for piece in block.pieces]
    return [BlockStarted(index, {**opened, "input": {}}), *written, BlockStopped(index, closed)]


def pieces_of(text: str) -> list[str]:
    """Cut text into deltas of about a word; joined they are the text."""
    pieces = _PIECE.findall(text)
    rest = text[sum(map(len, pieces)) :]
    return [*pieces, rest] if rest else pieces


def _citation(cite: Cite, results: Sequence[Block]) -> Citation:
    end = cite.start + 1 if cite.end is None else cite.end
    source: Block = {"source": "forged", "title": "forged"}
    text = cite.cited_text
    if text is None:
        assert cite.result < len(results), f"the step cites result {cite.result}; the request has {len(results)}"
        source = results[cite.result]
        cited = source["content"][cite.start : end]
        assert cited, f"the step cites blocks {cite.start} to {end} of a result with {len(source['content'])}"
        text = "".join(block["text"] for block in cited)
    raw = {
        "type": "search_result_location",
        "cited_text": text,
        "search_result_index": cite.result,
        "source": source["source"],
        "title": source["title"],
        "start_block_index": cite.start,
        "end_block_index": end,
    }
    return Citation(cite.result, cite.start, end, text, raw)


def step_from_json(value: Json) -> Step:
    """Return the step for its JSON form (see the module).

    Raises:
        KeyError, TypeError, ValueError: The value does not have that form.
    """
    blocks = value.get("blocks", [])
    parsed = (Say(blocks),) if isinstance(blocks, str) else tuple(_block_from_json(block) for block in blocks)
    usage = value.get("usage")
    return Step(parsed, value.get("stop_reason"), Usage(**usage) if usage is not None else None)


def _block_from_json(value: Json) -> StepBlock:
    kind, pieces = value["type"], tuple(value.get("pieces", ()))
    if kind == "text":
        return Say(value["text"], tuple(Cite(**cite) for cite in value.get("citations", ())), pieces)
    if kind == "thinking":
        return Think(value["thinking"], pieces)
    if kind == "redacted_thinking":
        return RedactedThinking(value["data"])
    if kind == "tool_use":
        return Use(value["name"], value.get("input", {}), value.get("id", ""), value.get("raw"))
    raise ValueError(f"blocks.type: {kind!r} is not one of text, thinking, redacted_thinking, tool_use")


def input_json(block: Block) -> str:
    """Return the JSON text that a ``tool_use`` block is streamed as."""
    raw = block.get(BROKEN_INPUT)
    return raw if isinstance(raw, str) else orjson.dumps(block["input"]).decode()
