"""A character that a model splits, and a half without its other half, fail no attempt and no answer."""

import json
from typing import Any

import pytest

from agentic_rag.base.errors import ModelError
from agentic_rag.models.anthropic.decoder import AnswerDecoder
from agentic_rag.models.base import BlockStopped, ModelEvent, TextDelta, ThinkingDelta
from agentic_rag.models.openai.decoder import ChatDecoder

EMOJI = "\U0001f600"
HIGH, LOW = "\ud83d", "\ude00"
CASES = [
    (["Hi " + HIGH, LOW + "!"], f"Hi {EMOJI}!"),
    ([HIGH, LOW], EMOJI),
    ([HIGH, "", LOW], EMOJI),
    ([HIGH + LOW], EMOJI),
    (["a" + LOW + "b"], "a\ufffdb"),
    (["a" + HIGH, "b"], "a\ufffdb"),
    (["a" + HIGH, HIGH, LOW], f"a\ufffd{EMOJI}"),
    (["a" + HIGH], "a\ufffd"),
    (["ä" + EMOJI, "ü"], f"ä{EMOJI}ü"),
]


DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


def decode_claude(kind: str, pieces: list[str]) -> tuple[str, dict[str, Any]]:
    """Decode an answer of one block; return its deltas and the whole block."""
    delta = {
        "text": ("text_delta", "text"),
        "thinking": ("thinking_delta", "thinking"),
        "tool_use": ("input_json_delta", "partial_json"),
    }
    name, field = delta[kind]
    block = {"type": kind, "text": "", "thinking": "", "id": "t", "name": "n", "input": {}}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"model": "m", "usage": {}}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": name, field: piece}} for piece in pieces),
        {"type": "content_block_stop", "index": 0},
    ]
    decoder = AnswerDecoder()
    decoded: list[ModelEvent | None] = []
    for event in events:
        data = json.dumps(event).encode()
        decoded.append(decoder.decode(data))
    return join_deltas(decoded)


def decode_chat(pieces: list[str]) -> tuple[str, dict[str, Any]]:
    decoder = ChatDecoder("m")
    decoded: list[ModelEvent | None] = []
    for piece in pieces:
        decoded += decoder.decode(json.dumps({"choices": [{"index": 0, "delta": {"content": piece}}]}).encode())
    decoded += decoder.decode(json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}).encode())
    return join_deltas(decoded)


def join_deltas(events: list[ModelEvent | None]) -> tuple[str, dict[str, Any]]:
    deltas = "".join(event.text for event in events if isinstance(event, TextDelta | ThinkingDelta))
    return deltas, next(event.block for event in events if isinstance(event, BlockStopped))


@pytest.mark.parametrize(("pieces", "expected"), CASES)
def test_split_characters_are_joined(pieces: list[str], expected: str) -> None:
    for kind, field in (("text", "text"), ("thinking", "thinking")):
        deltas, block = decode_claude(kind, pieces)
        assert block[field] == expected
        assert deltas == expected.removesuffix("\ufffd") or deltas == expected
    deltas, block = decode_chat(pieces)
    assert block["text"] == expected
    deltas.encode()  # whole characters only


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (['{"a": "' + HIGH, LOW + '"}'], {"a": EMOJI}),
        (['{"a": "\\ud83d', '\\ude00"}'], {"a": EMOJI}),
        (['{"a": "\\ud83d"}'], {"a": "?"}),
    ],
)
def test_arguments_of_a_call_survive_errors_too(pieces: list[str], expected: dict[str, str]) -> None:
    _, block = decode_claude("tool_use", pieces)
    assert block["input"] == expected


def test_invalid_json_is_a_malformed_stream() -> None:
    for data in (b"{", b'{"type": NaN}', b'{"a": "\\u12"}', b"\xff", b'["\\ud83d",' + b"[" * 100_000):
        with pytest.raises(ModelError):
            AnswerDecoder().decode(data)
        with pytest.raises(ModelError):
            list(ChatDecoder("m").decode(data))
