"""Cached encodings of messages equal fresh ones."""

import json
from dataclasses import fields
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.messages import ToolSpec, user_message
from agentic_rag.models.anthropic.request import encoded_body, request_body
from agentic_rag.models.base import ModelRequest
from agentic_rag.models.encoded import MOST_PIECES, Encoded, Settled
from agentic_rag.models.profiles import profile_of
from tests.models.test_request import HISTORY

MODELS = ("claude-sonnet-5-5", "claude-haiku-4-5", "other-model")
TOOLS = (ToolSpec(name="a", description="Reads.", input_schema={"type": "object"}),)


def body_of(request: ModelRequest) -> Any:
    return json.loads(b"".join(encoded_body(request, profile_of(request.model))))


def whole_body(request: ModelRequest) -> Any:
    """Return the body by its definition: decoded from its bytes."""
    body = {**request_body(request), "stream": True}
    return json.loads(json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"))


@given(
    st.sampled_from(MODELS),
    st.lists(st.text(st.characters(), max_size=5).map(user_message), max_size=5),
    st.lists(st.integers(1, 4), max_size=5),
)
def test_an_incrementally_encoded_conversation_equals_a_newly_encoded_one(
    model: str, more: list[Any], steps: list[int]
) -> None:
    messages, encoded, end = (*HISTORY, *more, *HISTORY), Encoded(), 0
    for step in steps:
        end += step
        request = ModelRequest(model, 10, (), messages[:end], settled=Settled(end, encoded))
        assert body_of(request) == whole_body(request)
    settled_request = ModelRequest(model, 10, (), HISTORY, settled=Settled(len(HISTORY), encoded))
    marked_body = b"".join(encoded_body(settled_request, profile_of(model), cites=False))
    assert json.loads(marked_body) == {**request_body(settled_request, cites=False), "stream": True}


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "model": st.sampled_from(MODELS),
                "max_tokens": st.sampled_from((10, 5_000)),
                "system": st.sampled_from(((), ({"type": "text", "text": "You answer."},))),
                "tools": st.sampled_from(((), TOOLS, (*TOOLS, ToolSpec(name="b", description="", input_schema={})))),
                "tool_choice": st.sampled_from((None, {"type": "none"})),
                "temperature": st.sampled_from((None, 0.5)),
                "thinking": st.sampled_from(("auto", "off")),
                "effort": st.sampled_from((None, "low", "high")),
                "previous_answer": st.sampled_from((None, "", "msg_1")),
                "answer_schema": st.sampled_from((None, {"type": "object", "additionalProperties": False})),
            }
        ),
        max_size=6,
    )
)
def test_the_encoded_frame_belongs_to_its_request(requests: list[dict[str, Any]]) -> None:
    encoded = Encoded()
    for parameters in requests:
        assert set(parameters) == {member.name for member in fields(ModelRequest)} - {"messages", "settled"}
        request = ModelRequest(**parameters, messages=HISTORY, settled=Settled(len(HISTORY), encoded))
        assert body_of(request) == body_of(request) == whole_body(request)
        assert encoded.size > 0


def test_the_request_around_the_messages_is_encoded_once_and_counts_as_memory() -> None:
    encoded, encodings = Encoded(), []

    def encode() -> bytes:
        encodings.append(encoded)
        return b"around"

    for _ in range(3):
        assert encoded.around(("a", 1), encode) == b"around"
    assert (len(encodings), encoded.size) == (1, len(b"around"))
    encoded.around(("a", 2), encode)
    assert (len(encodings), encoded.size) == (2, len(b"around"))


def test_conversations_beyond_the_cache_limit_are_encoded_each_time() -> None:
    messages = tuple(user_message(f"{number} " * 50) for number in range(40))
    encoded = Encoded(most=1_000)
    for end in (5, 30, 40):
        request = ModelRequest("claude-sonnet-5-5", 10, (), messages[:end], settled=Settled(end, encoded))
        assert body_of(request) == whole_body(request)
        assert encoded.size <= 1_000


@given(st.lists(st.integers(1, 5), min_size=1, max_size=100), st.integers(0, 300))
def test_encoded_parts_join_to_the_messages_and_changed_ones_are_replaced(steps: list[int], changed: int) -> None:
    messages = [user_message(f"{number}") for number in range(sum(steps))]
    encoded, end = Encoded(), 0
    for step in steps:
        end += step
        count, pieces = encoded.of(messages[:end], lambda message: json.dumps(message).encode())
        assert count == end
        assert json.loads(b"[" + b",".join(pieces) + b"]") == messages[:end]
        assert len(pieces) <= MOST_PIECES
    if changed < end:
        messages[changed] = user_message("another")
        count, pieces = encoded.of(messages, lambda message: json.dumps(message).encode())
        assert (count, json.loads(b"[" + b",".join(pieces) + b"]")) == (end, messages)
