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
from tests.extractive.agent import TOOLS, make_request, search_result

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
        for position, name in enumerate(names):
            call_id = f"toolu_{turn}_{position}"
            arguments = {"role": draw(TEXT)} if draw(st.booleans()) else {}
            uses.append({"type": "tool_use", "id": call_id, "name": name, "input": arguments})
            results.append(tool_result_block(call_id, draw(CONTENT), is_error=draw(st.booleans())))
        notes = [text_block(text) for text in draw(st.lists(SOLID, max_size=2))]
        messages += [{"role": "assistant", "content": uses}, {"role": "user", "content": results + notes}]
    return messages


def _some(strategy: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(strategy, min_size=1, max_size=2)


@st.composite
def requests(draw: st.DrawFn) -> ModelRequest:
    choice = draw(st.sampled_from([None, {"type": "auto"}, {"type": "none"}]))
    return make_request(
        draw(conversations()), draw(OFFERED), tool_choice=choice, max_tokens=draw(st.sampled_from([1, 100, 4096]))
    )


@given(requests())
def test_every_answer_is_a_valid_assistant_message(model_request: ModelRequest) -> None:
    blocks = decide(model_request)
    assert blocks
    assert decide(model_request) == blocks
    kinds = {block["type"] for block in blocks}
    assert kinds in ({"text"}, {"tool_use"})
    if kinds == {"tool_use"}:
        _check_calls(model_request, blocks)
    else:
        _check_texts(model_request, blocks)


def _check_calls(model_request: ModelRequest, blocks: list[Block]) -> None:
    assert model_request.tool_choice != {"type": "none"}
    schemas: dict[str, Any] = {tool["name"]: tool["input_schema"] for tool in model_request.tools}
    earlier_ids = [
        block["id"] for message in model_request.messages for block in message["content"] if block["type"] == "tool_use"
    ]
    for block in blocks:
        jsonschema.validate(block["input"], schemas[block["name"]])
    ids = [block["id"] for block in blocks]
    assert len({*ids, *earlier_ids}) == len(ids) + len(set(earlier_ids))


def _check_texts(model_request: ModelRequest, blocks: list[Block]) -> None:
    hits = [
        part
        for message in model_request.messages
        for block in message["content"]
        if block["type"] == "tool_result"
        for part in block["content"]
        if part["type"] == "search_result"
    ]
    for block in blocks:
        assert block["text"].strip()
        for citation in block.get("citations", ()):
            hit = hits[citation["search_result_index"]]
            texts = [part["text"] for part in hit["content"]]
            assert 0 <= citation["start_block_index"] < citation["end_block_index"] <= len(texts)
            assert citation["cited_text"] == "".join(texts[citation["start_block_index"] : citation["end_block_index"]])
            assert (citation["source"], citation["title"]) == (hit["source"], hit["title"])


@given(requests())
async def test_the_stream_spells_out_exactly_what_was_decided(model_request: ModelRequest) -> None:
    events = await _events(model_request)
    assert events[0] == MessageStarted("extractive")
    completed = events[-1]
    assert isinstance(completed, MessageCompleted)
    assert completed.usage == Usage()
    blocks = decide(model_request)
    assert [event.block for event in events if isinstance(event, BlockStopped)] == blocks
    assert completed.stop_reason == ("tool_use" if blocks[0]["type"] == "tool_use" else "end_turn")
    for index, block in enumerate(blocks):
        block_events = [event for event in events[1:-1] if getattr(event, "index", None) == index]
        assert isinstance(block_events[0], BlockStarted)
        assert "".join(event.text for event in block_events if isinstance(event, TextDelta)) == block.get("text", "")
        assert [event.citation.raw for event in block_events if isinstance(event, CitationDelta)] == block.get(
            "citations", []
        )


async def _events(model_request: ModelRequest) -> list[ModelEvent]:
    model = ExtractiveModel()
    async with model.stream(model_request) as stream:
        events = [event async for event in stream]
    await model.aclose()
    return events


@settings(deadline=None)
@given(st.text())
def test_joined_deltas_equal_the_text(text: str) -> None:
    assert "".join(pieces(text)) == text
    assert all(pieces(text))
