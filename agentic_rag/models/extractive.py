"""The extractive model: the default when no API key is configured. It quotes, it does not write.

Owns the streaming of what `extractive_decision` decides, and the estimate of its usage. It plays by the rules of
any model: it sees prompt, messages and tool schemas only, and cites ``search_result`` blocks as the Messages API
does. Deliberately knows no server behind a tool, no store and no clock.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import anyio.lowlevel

from agentic_rag.events import Usage
from agentic_rag.messages import Block
from agentic_rag.models.base import (
    BlockStarted,
    BlockStopped,
    Citation,
    CitationDelta,
    MessageCompleted,
    MessageStarted,
    ModelEvent,
    ModelRequest,
    TextDelta,
)
from agentic_rag.models.extractive_decision import decide, tokens_of

NAME = "extractive"

_PIECE = re.compile(r"\s*\S{1,24}|\s+")


class ExtractiveModel:
    """A `models.base.Model` without a model: it never fails and needs no network."""

    name = NAME

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """Open one call; see `models.base.Model.stream`."""
        async with aclosing(_events(request)) as events:
            yield events

    async def aclose(self) -> None:
        """Nothing is held open."""


def pieces(text: str, words: int = 3) -> list[str]:
    """Cut a text into deltas of a few words; joined they are the text."""
    found = _PIECE.findall(text)
    return ["".join(found[start : start + words]) for start in range(0, len(found), words)]


async def _events(request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
    blocks = decide(request)
    yield MessageStarted(NAME)
    for index, block in enumerate(blocks):
        if block["type"] == "tool_use":
            yield BlockStarted(index, {**block, "input": {}})
        else:
            yield BlockStarted(index, {"type": "text", "text": ""})
            for piece in pieces(block["text"]):
                # Others get their turn between deltas, as they do while a real model's bytes are awaited.
                await anyio.lowlevel.checkpoint()
                yield TextDelta(index, piece)
            for given in _citations(block):
                yield CitationDelta(index, given)
        yield BlockStopped(index, block)
    called = any(block["type"] == "tool_use" for block in blocks)
    asked = tokens_of([request.system, request.tools, request.messages])
    yield MessageCompleted("tool_use" if called else "end_turn", Usage(input=asked, output=tokens_of(blocks)))


def _citations(block: Block) -> Sequence[Citation]:
    return [
        Citation(raw["search_result_index"], raw["start_block_index"], raw["end_block_index"], raw["cited_text"], raw)
        for raw in block.get("citations", ())
    ]
