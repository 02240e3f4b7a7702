"""A decoder from the events of a Messages API stream to model events.

Owns the state of one answer: its open blocks, usage and stop reason. Pure; knows neither SSE nor HTTP. The decoder
takes the JSON of each event. Unknown types of events and deltas are skipped, as the API requires of clients.
"""

from collections.abc import Mapping

from agentic_rag.base.events import Usage
from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import BROKEN_INPUT, Block, clean_json
from agentic_rag.models.base import (
    BlockStarted,
    BlockStopped,
    CacheMiss,
    Citation,
    CitationDelta,
    InputDelta,
    MessageCompleted,
    MessageStarted,
    ModelEvent,
    TextDelta,
    ThinkingDelta,
    token_count,
)
from agentic_rag.models.service_errors import broken_stream, stream_error
from agentic_rag.models.split_pairs import SplitPairs, loads, loads_clean

MALFORMED = "cannot be read: the service sent a malformed event"
MAX_BLOCKS = 10_000
"""Most content blocks in one answer. More is a fault of the endpoint."""
MAX_ID = 200
"""Longest id of an answer and longest reason of a cache miss, in characters. Longer ones are ignored."""
_NOT_THE_API = ValueError, KeyError, TypeError, AttributeError
"""Exceptions from reading an event that does not follow the API."""


class _OpenBlock:
    """A block during streaming: its initial state and the pieces received since."""

    __slots__ = ("block", "citations", "pieces", "signature")

    def __init__(self, block: Block) -> None:
        self.block = block
        self.pieces: list[str] = []
        self.citations: list[Json] = []
        self.signature: str = block.get("signature") or ""

    def whole(self) -> Block:
        kind, joined = self.block["type"], "".join(self.pieces)
        if kind == "text":
            whole: Block = {"type": "text", "text": self.block.get("text", "") + joined}
            if self.citations:
                whole["citations"] = self.citations
            return whole
        if kind == "thinking":
            return {
                "type": "thinking",
                "thinking": self.block.get("thinking", "") + joined,
                "signature": self.signature,
            }
        if kind == "tool_use":
            return {"type": "tool_use", "id": self.block["id"], "name": self.block["name"], **self._input(joined)}
        return self.block

    def _input(self, joined: str) -> Block:
        if not joined.strip():  # a tool without arguments streams no input
            return {"input": self.block.get("input") or {}}
        try:
            parsed = loads_clean(joined)
        except ValueError:
            parsed = None
        return {"input": parsed} if isinstance(parsed, dict) else {"input": {}, BROKEN_INPUT: joined}


class AnswerDecoder:
    """Decodes the events of one answer, in order, to model events.

    ``completed``: True after ``message_stop``. A stream that ends earlier has lost the rest of the answer.
    ``prefix``: put before the model's name.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self.completed = False
        self._open: dict[int, _OpenBlock] = {}
        self._pairs = SplitPairs()
        self._started = 0
        self._usage: dict[str, int] = {}
        self._stop_reason: str | None = None
        self._category: str | None = None

    @property
    def working(self) -> bool:
        """Whether an open block may receive bytes without events: thinking, or a call before its arguments."""
        return any(block.block["type"] != "text" for block in self._open.values())

    def decode(self, data: bytes) -> ModelEvent | None:
        """Decode one event's JSON. Returns None for events without a model event (pings, usage, signatures).

        Raises:
            ModelError: the service reports an error, or the data does not follow the API.
        """
        try:
            event = loads(data)
            if event["type"] == "content_block_delta":  # nearly all events; `_read` would be one more call
                return self._delta(event["index"], event["delta"])
            return self._read(event)
        except _NOT_THE_API as exc:
            raise broken_stream(MALFORMED, "malformed_stream") from exc

    def take(self, event: Json) -> ModelEvent | None:
        """Decode one parsed event; see `decode`."""
        try:
            return self._read(event)
        except _NOT_THE_API as exc:
            raise broken_stream(MALFORMED, "malformed_stream") from exc

    def _read(self, event: Json) -> ModelEvent | None:
        kind = event["type"]
        if kind == "content_block_delta":
            return self._delta(event["index"], event["delta"])
        if kind == "content_block_start":
            return self._block_start(event["index"], event["content_block"])
        if kind == "content_block_stop":
            block = self._open.pop(event["index"])
            block.pieces.append(self._pairs.end(event["index"]))
            return BlockStopped(event["index"], block.whole())
        if kind == "message_start":
            message = event["message"]
            self._count(message.get("usage") or {})
            model, usage = self._prefix + message["model"], self._usage_so_far()
            return MessageStarted(model, usage, _short_text(message.get("id")), _cache_miss(message.get("diagnostics")))
        if kind == "message_delta":
            # The API may send several; some compatible endpoints send one with the usage alone.
            delta = event["delta"]
            reason = delta.get("stop_reason")
            if not isinstance(reason, str | None):
                raise TypeError("a stop reason is no string")
            self._stop_reason = reason or self._stop_reason
            self._category = _short_text((delta.get("stop_details") or {}).get("category")) or self._category
            self._count(event.get("usage") or {})
        elif kind == "message_stop":
            return self._complete()
        elif kind == "error":
            error = event.get("error") or {}
            raise stream_error(str(error.get("type") or ""), str(error.get("message") or ""))
        return None

    def _delta(self, index: int, delta: Json) -> ModelEvent | None:
        kind = delta["type"]
        block = self._open[index]
        if kind == "text_delta":
            text = delta["text"]
            if type(text) is not str:
                raise TypeError("text is no string")
            text = self._pairs.join(index, text)
            block.pieces.append(text)
            return TextDelta(index, text) if text else None
        if kind == "thinking_delta":
            thinking = delta["thinking"]
            if type(thinking) is not str:
                raise TypeError("thinking is no string")
            thinking = self._pairs.join(index, thinking)
            block.pieces.append(thinking)
            return ThinkingDelta(index, thinking) if thinking else None
        if kind == "input_json_delta":
            piece = delta["partial_json"]
            if type(piece) is not str:
                raise TypeError("a piece of an input is no string")
            piece = self._pairs.join(index, piece)
            block.pieces.append(piece)
            return InputDelta(index, piece) if piece and block.block["type"] == "tool_use" else None
        if kind == "signature_delta":
            block.signature = delta["signature"]
            if type(block.signature) is not str:
                raise TypeError("a signature is no string")
        elif kind == "citations_delta":
            return self._citation(index, block, delta["citation"])
        return None

    def _citation(self, index: int, block: _OpenBlock, raw: Json) -> ModelEvent | None:
        raw = clean_json(raw)
        block.citations.append(raw)
        if raw["type"] != "search_result_location":
            return None
        place = raw["search_result_index"], raw["start_block_index"], raw["end_block_index"]
        if not all(type(number) is int for number in place) or type(raw["cited_text"]) is not str:
            raise TypeError("a citation has a field of another type")
        return CitationDelta(index, Citation(*place, raw["cited_text"], raw))

    def _block_start(self, index: int, block: Block) -> ModelEvent:
        self._started += 1
        if index in self._open or self._started > MAX_BLOCKS:
            raise ValueError("a block was opened twice, or too many were")
        opened = {key: clean_json(value) for key, value in block.items() if value is not None}
        _check_types(index, opened)
        if opened["type"] == "tool_use":
            opened = {key: opened[key] for key in ("type", "id", "name", "input") if key in opened}
            if not isinstance(opened.get("input"), dict):  # some endpoints begin with an empty text
                opened["input"] = {}
        self._open[index] = _OpenBlock(opened)
        return BlockStarted(index, opened)

    def _complete(self) -> ModelEvent:
        if self._open or self._stop_reason is None:
            raise ValueError("the message stopped with an open block or without a stop reason")
        self.completed = True
        return MessageCompleted(self._stop_reason, self._usage_so_far(), self._category)

    def _usage_so_far(self) -> Usage:
        usage = self._usage.get
        return Usage(
            usage("input_tokens", 0),
            usage("cache_read_input_tokens", 0),
            usage("cache_creation_input_tokens", 0),
            usage("output_tokens", 0),
        )

    def _count(self, usage: Json) -> None:
        """Update the usage. The figures are totals so far; a missing figure keeps its last value."""
        self._usage.update({key: token_count(value) for key, value in usage.items() if isinstance(value, int)})


_FIELDS: Mapping[str, Mapping[str, type]] = {
    "text": {"text": str},
    "thinking": {"thinking": str, "signature": str},
    "tool_use": {"id": str, "name": str},
}
"""The fields of a new block that are read, and their types."""


def _check_types(index: object, block: Block) -> None:
    """Check the types of a new block's fields, because other code and the next request rely on them.

    Raises:
        TypeError, KeyError: a field has another type, or a call has no id or name.
    """
    fields = _FIELDS.get(block["type"], {})
    if type(index) is not int or any(name in block and type(block[name]) is not kind for name, kind in fields.items()):
        raise TypeError("a block has a field of another type")
    if block["type"] == "tool_use" and not ("id" in block and "name" in block):
        raise KeyError("a call without an id or a name")


def _short_text(value: object) -> str:
    """Return a printable text of at most `MAX_ID` characters; empty for any other value."""
    return value if isinstance(value, str) and len(value) <= MAX_ID and value.isprintable() else ""


def _cache_miss(diagnostics: object) -> CacheMiss | None:
    """Return why the prompt cache missed. Returns None also while the service is still comparing the requests."""
    reason = diagnostics.get("cache_miss_reason") if isinstance(diagnostics, dict) else None
    name = _short_text(reason.get("type")) if isinstance(reason, dict) else ""
    if not isinstance(reason, dict) or not name:
        return None
    return CacheMiss(name, token_count(reason.get("cache_missed_input_tokens")))
