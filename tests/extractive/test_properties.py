"""For any conversation, the extractive model answers with a valid message of the Messages API."""

from typing import Any

import jsonschema
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_rag.base.events import Usage
from agentic_rag.base.messages import Block, Message, text_block, tool_result_block
from agentic_rag.models.base import (
    BlockStarted,
    BlockStopped,
    CitationDelta,
    MessageCompleted,
    MessageStarted,
    ModelEvent,
    ModelRequest,
    TextDelta,
)
from agentic_rag.models.extractive import ExtractiveModel, decide, pieces
from tests.extractive.agent import TOOLS, request, search_result

VOCABULARY = (
    "how often filters change the unit weighs 118 kilograms remember that hello E4 [removed] promptx_action role "
    '"x" and it | > - 1. : ? 。 保修 几年 过滤网 更换 请记住： 多少 \n\n'
)
WORDS = st.sampled_from(VOCABULARY.split(" "))
TEXT = st.lists(WORDS, min_size=1, max_size=12).map(" ".join) | st.text(min_size=1, max_size=40)
SOLID = TEXT.filter(lambda text: bool(text.strip()))
HIT = st.builds(lambda title, sentences: search_result(title, *sentences), TEXT, st.lists(SOLID, max_size=5))
CONTENT = st.lists(HIT | SOLID.map(text_block), max_size=3)
NAMES = st.sampled_from([*TOOLS, "other_tool"])
OFFERED = st.lists(st.sampled_from(list(TOOLS)), unique=True)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """A sendable transcript that ends with a user message; its results and hits are arbitrary."""
    messages: list[Message] = [{"role": "user", "content": [text_block(draw(SOLID))]}]
    for turn in range(draw(st.integers(0, 3))):
        names = draw(st.lists(NAMES, max_size=3))
        if not names:
            messages.append({"role": "assistant", "content": [text_block(draw(SOLID))]})
            messages.append({"role": "user", "content": [text_block(text) for text in draw(_some(SOLID))]})
            continue
        uses: list[Block] = []
        results: list[Block] = []
        for place, name in enumerate(names):
            ident = f"toolu_{turn}_{place}"
            arguments = {"role": draw(TEXT)} if draw(st.booleans()) else {}
            uses.append({"type": "tool_use", "id": ident, "name": name, "input": arguments})
            results.append(tool_result_block(ident, draw(CONTENT), is_error=draw(st.booleans())))
        more = [text_block(text) for text in draw(st.lists(SOLID, max_size=2))]
        messages += [{"role": "assistant", "content": uses}, {"role": "user", "content": results + more}]
    return messages


def _some(strategy: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(strategy, min_size=1, max_size=2)


@st.composite
def requests(draw: st.DrawFn) -> ModelRequest:
    choice = draw(st.sampled_from([None, {"type": "auto"}, {"type": "none"}]))
    return request(
        draw(conversations()), draw(OFFERED), tool_choice=choice, max_tokens=draw(st.sampled_from([1, 100, 4096]))
    )


@given(requests())
def test_every_answer_is_a_valid_assistant_message(asked: ModelRequest) -> None:
    blocks = decide(asked)
    assert blocks
    assert decide(asked) == blocks
    kinds = {block["type"] for block in blocks}
    assert kinds in ({"text"}, {"tool_use"})
    if kinds == {"tool_use"}:
        _check_calls(asked, blocks)
    else:
        _check_texts(asked, blocks)


def _check_calls(asked: ModelRequest, blocks: list[Block]) -> None:
    assert asked.tool_choice != {"type": "none"}
    offered: dict[str, Any] = {tool["name"]: tool["input_schema"] for tool in asked.tools}
    taken = [block["id"] for message in asked.messages for block in message["content"] if block["type"] == "tool_use"]
    for block in blocks:
        jsonschema.validate(block["input"], offered[block["name"]])
    ids = [block["id"] for block in blocks]
    assert len({*ids, *taken}) == len(ids) + len(set(taken))


def _check_texts(asked: ModelRequest, blocks: list[Block]) -> None:
    hits = [
        part
        for message in asked.messages
        for block in message["content"]
        if block["type"] == "tool_result"
        for part in block["content"]
        if part["type"] == "search_result"
    ]
    for block in blocks:
        assert block["text"].strip()
        for raw in block.get("citations", ()):
            hit = hits[raw["search_result_index"]]
            texts = [part["text"] for part in hit["content"]]
            assert 0 <= raw["start_block_index"] < raw["end_block_index"] <= len(texts)
            assert raw["cited_text"] == "".join(texts[raw["start_block_index"] : raw["end_block_index"]])
            assert (raw["source"], raw["title"]) == (hit["source"], hit["title"])


@given(requests())
async def test_the_stream_spells_out_exactly_what_was_decided(asked: ModelRequest) -> None:
    events = await _events(asked)
    assert events[0] == MessageStarted("extractive")
    last = events[-1]
    assert isinstance(last, MessageCompleted)
    assert last.usage == Usage()
    blocks = decide(asked)
    assert [event.block for event in events if isinstance(event, BlockStopped)] == blocks
    assert last.stop_reason == ("tool_use" if blocks[0]["type"] == "tool_use" else "end_turn")
    for index, block in enumerate(blocks):
        mine = [event for event in events[1:-1] if getattr(event, "index", None) == index]
        assert isinstance(mine[0], BlockStarted)
        assert "".join(event.text for event in mine if isinstance(event, TextDelta)) == block.get("text", "")
        assert [event.citation.raw for event in mine if isinstance(event, CitationDelta)] == block.get("citations", [])


async def _events(asked: ModelRequest) -> list[ModelEvent]:
    model = ExtractiveModel()
    async with model.stream(asked) as stream:
        events = [event async for event in stream]
    await model.aclose()
    return events


@settings(deadline=None)
@given(st.text())
def test_joined_deltas_equal_the_text(text: str) -> None:
    assert "".join(pieces(text)) == text
    assert all(pieces(text))
