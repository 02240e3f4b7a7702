"""A step as a chat-completions service streams it: chunks of one answer, in the variants of different services.

Owns the JSON of every chunk. Citations become marks after their text, since this API has none. Pure; knows no HTTP.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from agentic_rag.base.events import Usage
from agentic_rag.base.json_form import Json
from agentic_rag.testing.steps import Say, Step, Think, Use, pieces_of

PIECE: Final = 7
"""Characters of one piece of arguments: small, so that pieces end inside strings and escapes."""
DONE: Final = b"data: [DONE]\n\n"
_REASONS: Final = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length", "refusal": "content_filter"}


@dataclass(frozen=True, slots=True)
class Shape:
    """The variant of a service. The default writes like OpenAI.

    ``ids``: of calls: given, ``none``, or the ``same`` for all.
    ``one_index``: all calls have index 0 and come whole.
    ``no_index``: without any, whole.
    ``interleaved``: pieces of all calls in turn.
    ``as_objects``: arguments are JSON.
    ``nulls``: members without a value are null, and there are empty deltas.
    ``usage``: whether usage is sent.
    ``done``: whether ``[DONE]`` ends the stream.
    ``reason``: whether the finish reason is sent.
    ``stop``: it is always ``stop``.
    ``thought``: the key of reasoning.
    ``mark``: the form of a passage's citation.
    """

    ids: str = "given"
    one_index: bool = False
    no_index: bool = False
    interleaved: bool = False
    as_objects: bool = False
    nulls: bool = False
    usage: bool = True
    done: bool = True
    reason: bool = True
    stop: bool = False
    thought: str = "reasoning_content"
    mark: str = "[[{}]]"


@dataclass(slots=True)
class ChatAnswer:
    """One answer to a request; ``usage``: its token counts."""

    step: Step
    model: str
    usage: Usage
    shape: Shape
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex[:24]}")

    def frames(self) -> list[bytes]:
        """Return the frames of the stream, one chunk each."""
        frames = [_frame(chunk) for chunk in self._chunks()]
        return [*frames, DONE] if self.shape.done else frames

    def _chunks(self) -> Iterator[Json]:
        yield self._chunk({"role": "assistant", "content": None if self.shape.nulls else ""})
        if self.shape.nulls:
            yield {**self._chunk({}), "choices": None}
            yield {**self._chunk({}), "choices": [{"index": 0, "delta": None, "finish_reason": None}]}
        for block in self.step.blocks:
            if isinstance(block, Think):
                for piece in block.pieces or pieces_of(block.text):
                    yield self._chunk({self.shape.thought: piece})
            elif isinstance(block, Say):
                for piece in (*(block.pieces or pieces_of(block.text)), *self._marks(block)):
                    yield self._chunk({"content": piece})
        yield from map(self._call_chunk, self._call_pieces())
        if self.shape.reason:
            yield self._chunk({}, "stop" if self.shape.stop else self._reason())
        if self.shape.usage:
            yield {**self._chunk({}), "choices": [], "usage": _usage(self.usage)}

    def _marks(self, block: Say) -> list[str]:
        return [self.shape.mark.format(cite.result + 1) for cite in block.cites]

    def _reason(self) -> str:
        calls = any(isinstance(block, Use) for block in self.step.blocks)
        return _REASONS.get(self.step.stop_reason or ("tool_use" if calls else "end_turn"), "stop")

    def _chunk(self, delta: Json, reason: str | None = None) -> Json:
        if self.shape.nulls:
            delta = {"content": None, self.shape.thought: None, "tool_calls": None, "refusal": None, **delta}
        return {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": 1_780_000_000,
            "model": self.model,
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}],
            **({"usage": None} if self.shape.nulls else {}),
        }

    def _call_chunk(self, piece: Json) -> Json:
        return self._chunk({"tool_calls": [piece]})

    def _call_pieces(self) -> Iterator[Json]:
        uses = [block for block in self.step.blocks if isinstance(block, Use)]
        whole = self.shape.one_index or self.shape.no_index or self.shape.as_objects
        lists = [list(self._pieces_of(place, use, whole=whole)) for place, use in enumerate(uses)]
        if self.shape.interleaved:
            for turn in range(max(map(len, lists), default=0)):
                yield from (pieces[turn] for pieces in lists if turn < len(pieces))
        else:
            yield from (piece for pieces in lists for piece in pieces)

    def _pieces_of(self, place: int, use: Use, *, whole: bool) -> Iterator[Json]:
        ident = {"none": None, "same": "call_same"}.get(self.shape.ids, use.id or f"call_{uuid.uuid4().hex[:20]}")
        index: Json = {} if self.shape.no_index else {"index": 0 if self.shape.one_index else place}
        text = use.raw if use.raw is not None else orjson.dumps(dict(use.input)).decode()
        named = {"type": "function", **({} if ident is None else {"id": ident})}
        if whole:
            arguments: Any = dict(use.input) if self.shape.as_objects else text
            yield {**index, **named, "function": {"name": use.name, "arguments": arguments}}
            return
        pieces: Sequence[str] = use.pieces or [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
        yield {**index, **named, "function": {"name": use.name, "arguments": ""}}
        for piece in pieces:
            rest: Json = {"id": None, "type": None} if self.shape.nulls else {}
            name: Json = {"name": None} if self.shape.nulls else {}
            yield {**index, **rest, "function": {**name, "arguments": piece}}


def _frame(chunk: Json) -> bytes:
    return b"data: %s\n\n" % orjson.dumps(chunk)


def error_frame(kind: str, message: str) -> bytes:
    """Return the frame of an error inside an answer."""
    return _frame({"error": {"message": message, "type": kind, "param": None, "code": None}})


def _usage(usage: Usage) -> Json:
    sent = usage.sent
    return {
        "prompt_tokens": sent,
        "completion_tokens": usage.output,
        "total_tokens": sent + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
