"""A step's model events in the form of the Messages API: frames of an SSE stream, or one message.

Owns the exact JSON of every event, with the fields of the SDK's types. Pure; knows no HTTP.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from agentic_rag.base.events import Usage
from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import Block
from agentic_rag.models.base import (
    BlockStarted,
    BlockStopped,
    CitationDelta,
    InputDelta,
    MessageCompleted,
    MessageStarted,
    ModelEvent,
    TextDelta,
    ThinkingDelta,
)
from agentic_rag.testing.steps import input_json

JSON_PIECE = 7
"""Characters of one ``input_json_delta``: small, so that pieces end inside strings and escapes."""

PING = b'event: ping\ndata: {"type": "ping"}\n\n'


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """The data of an answer in addition to its events.

    ``transformations``: thinking that was removed from the request. ``long_writes``: tokens that the cache keeps for an
    hour. ``category``: of a refusal. ``diagnostics``: why the prompt cache missed; given only if the request asked.
    """

    transformations: tuple[Json, ...] = ()
    long_writes: int = 0
    category: str | None = None
    diagnostics: Json | None = None
    diagnosed: bool = False


NO_FACTS = AnswerFacts()


def frames(events: Sequence[ModelEvent], message_id: str, facts: AnswerFacts = NO_FACTS) -> list[bytes]:
    """Return the SSE frames of a whole answer: one event each, the first block followed by a ping."""
    # The last event comes first, because `message_start`, the first frame, shows the input's usage.
    usage = next(event.usage for event in events if isinstance(event, MessageCompleted))
    result: list[bytes] = []
    written = {event.index for event in events if isinstance(event, InputDelta)}
    for event in events:
        whole = isinstance(event, BlockStopped) and event.index in written  # its input was already sent in pieces
        values = _json_events(event, message_id, usage, facts)
        result += [frame(value) for value in (values[-1:] if whole else values)]
        if isinstance(event, BlockStarted) and event.index == 0:
            result.append(PING)
    return result


def frame(value: Json) -> bytes:
    """Return one SSE frame; its event name is the value's ``type``."""
    return b"event: %s\ndata: %s\n\n" % (value["type"].encode(), orjson.dumps(value))


def error_json(kind: str, message: str, request_id: str) -> Json:
    """Return the API's error object, the same in a refusal's body and in an ``error`` event."""
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def message_json(events: Sequence[ModelEvent], message_id: str, facts: AnswerFacts = NO_FACTS) -> Json:
    """Return the answer to a request without ``stream``."""
    started = next(event for event in events if isinstance(event, MessageStarted))
    completed = next(event for event in events if isinstance(event, MessageCompleted))
    message = _message(message_id, facts, started.model, _usage(completed.usage, completed.usage.output, facts))
    content = [_public(event.block) for event in events if isinstance(event, BlockStopped)]
    ended = {"stop_reason": completed.stop_reason, "stop_details": _stop_details(completed.stop_reason, facts)}
    return {**message, "content": content, **ended}


def _json_events(event: ModelEvent, message_id: str, usage: Usage, facts: AnswerFacts) -> list[Json]:
    if isinstance(event, TextDelta):
        return [_delta(event.index, {"type": "text_delta", "text": event.text})]
    if isinstance(event, ThinkingDelta):
        return [_delta(event.index, {"type": "thinking_delta", "thinking": event.text})]
    if isinstance(event, InputDelta):
        return [_delta(event.index, {"type": "input_json_delta", "partial_json": event.json})]
    if isinstance(event, CitationDelta):
        return [_delta(event.index, {"type": "citations_delta", "citation": event.citation.raw})]
    if isinstance(event, BlockStarted):
        return [{"type": "content_block_start", "index": event.index, "content_block": event.block}]
    if isinstance(event, BlockStopped):
        return [*_last_deltas(event), {"type": "content_block_stop", "index": event.index}]
    if isinstance(event, MessageStarted):
        return [{"type": "message_start", "message": _message(message_id, facts, event.model, _usage(usage, 1, facts))}]
    return [_end_json(event, facts, usage), {"type": "message_stop"}]


def _end_json(event: ModelEvent, facts: AnswerFacts, usage: Usage) -> Json:
    assert isinstance(event, MessageCompleted)
    return {
        "type": "message_delta",
        "delta": {
            "stop_reason": event.stop_reason,
            "stop_sequence": None,
            "stop_details": _stop_details(event.stop_reason, facts),
        },
        "usage": {
            "input_tokens": usage.input,
            "cache_creation_input_tokens": usage.cache_write,
            "cache_read_input_tokens": usage.cache_read,
            "output_tokens": usage.output,
        },
    }


def _stop_details(stop_reason: str, facts: AnswerFacts) -> Json | None:
    if stop_reason != "refusal":
        return None
    explanation = f"This request was declined ({facts.category})." if facts.category else None
    return {"type": "refusal", "category": facts.category, "explanation": explanation}


def _last_deltas(event: BlockStopped) -> list[Json]:
    if event.block["type"] == "thinking":
        return [_delta(event.index, {"type": "signature_delta", "signature": event.block["signature"]})]
    if event.block["type"] == "tool_use":
        text = input_json(event.block)
        # The service begins with an empty piece.
        pieces = ["", *(text[at : at + JSON_PIECE] for at in range(0, len(text), JSON_PIECE))]
        return [_delta(event.index, {"type": "input_json_delta", "partial_json": piece}) for piece in pieces]
    return []


def _delta(index: int, delta: Json) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def _message(message_id: str, facts: AnswerFacts, model: str, usage: Json) -> Json:
    changed: Json = {"input_transformations": list(facts.transformations)} if facts.transformations else {}
    if facts.diagnosed:
        changed["diagnostics"] = facts.diagnostics
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
        **changed,
    }


def _usage(usage: Usage, output: int, facts: AnswerFacts) -> Json:
    return {
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_write - facts.long_writes,
            "ephemeral_1h_input_tokens": facts.long_writes,
        },
        "output_tokens": output,
        "service_tier": "standard",
    }


def _public(block: Block) -> Block:
    return {key: value for key, value in block.items() if not key.startswith("_")}
