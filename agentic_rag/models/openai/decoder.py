"""A decoder from the chunks of a chat completion to model events.

Owns the state of one answer. Endpoints differ in almost everything that the format leaves open. Deltas may be null.
Tool calls may come whole or in pieces, interleaved, without an index, several under one index, with missing or
duplicate ids. Usage, the finish reason and ``[DONE]`` may be missing. Pure; knows neither SSE nor HTTP.
"""

import uuid
from collections.abc import Iterator
from typing import Any, Final

import orjson

from agentic_rag.base.events import Usage
from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import BROKEN_INPUT, Block, clean_text, text_block
from agentic_rag.models.base import (
    BlockStarted,
    BlockStopped,
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

DONE: Final = b"[DONE]"
MAX_CALLS: Final = 1_000
"""Most tool calls in one answer. More is a fault of the endpoint."""
MAX_NAME: Final = 200
_REASONS: Final = {
    "stop": "end_turn",
    "length": "max_tokens",
    "content_filter": "refusal",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
}


class _Call:
    """One tool call during streaming. ``index``: the index of its block once the block is open."""

    __slots__ = ("_looked_at", "_whole", "closed", "id", "index", "name", "pieces", "place")

    def __init__(self, place: object, ident: str, name: str) -> None:
        self.place, self.id, self.name = place, ident, name
        self.pieces: list[str] = []
        self.index: int | None = None
        self.closed = False
        self._looked_at, self._whole = 0, False

    @property
    def whole(self) -> bool:
        """Whether the arguments are a complete JSON object. Parsed at most once for each piece."""
        if self._looked_at != len(self.pieces):
            self._looked_at = len(self.pieces)
            ends = self.pieces[-1].rstrip().endswith("}")
            self._whole = ends and _object_of("".join(self.pieces)) is not None
        return self._whole

    def first_block(self) -> Block:
        ident = self.id or f"call_{uuid.uuid4().hex[:24]}"
        self.id = ident
        return {"type": "tool_use", "id": ident, "name": self.name, "input": {}}

    def whole_block(self) -> Block:
        joined = "".join(self.pieces)
        arguments = _object_of(joined) if joined.strip() else {}
        block: Block = {"type": "tool_use", "id": self.id, "name": self.name, "input": arguments or {}}
        return block if arguments is not None else block | {BROKEN_INPUT: joined}


class ChatDecoder:
    """Decodes the events of one answer, in order, to model events. Call `end` at the end of the stream.

    ``model``: the requested model. ``prefix``: put before the name of the model that answered.
    ``completed``: nothing follows.
    """

    def __init__(self, model: str, prefix: str = "") -> None:
        self.completed = False
        self.has_reason = False
        """Whether the service has given a finish reason."""
        self._model, self._prefix = model, prefix
        self._started = False
        self._blocks = 0
        self._open: Block | None = None  # the open text or thinking block
        self._pieces: list[str] = []
        self._pairs = SplitPairs()
        self._calls: list[_Call] = []
        self._live: _Call | None = None  # the call whose arguments are yielded at once
        self._reason = ""
        self._refused = False
        self._usage = Usage()

    @property
    def working(self) -> bool:
        """Whether bytes may arrive without events: hidden reasoning, or calls that wait for an earlier call."""
        return self._started and self._open is None

    @property
    def finished(self) -> bool:
        """Whether only the usage should follow: a finish reason was given, and no later piece is open."""
        return self.has_reason and self._open is None and self._live is None

    def decode(self, data: bytes) -> Iterator[ModelEvent]:
        """Decode one event's data and yield its model events.

        Raises:
            ModelError: the service reports an error, or the data does not follow the API.
        """
        if data.strip() == DONE:
            yield from self.end()
            return
        try:
            chunk = loads(data)
            if not isinstance(chunk, dict):
                raise TypeError("a chunk is no object")
            yield from self._chunk(chunk)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise broken_stream("cannot be read: the service sent a malformed event", "malformed_stream") from exc

    def end(self) -> Iterator[ModelEvent]:
        """End the stream: close the open blocks and yield `MessageCompleted`.

        Raises:
            ModelError: the stream ended before its first chunk.
        """
        if self.completed:
            return
        if not self._started:
            raise broken_stream("ended before it was complete", "incomplete_stream")
        yield from self._finish()
        self.completed = True
        yield MessageCompleted(self._stop_reason(), self._usage)

    def _chunk(self, chunk: Json) -> Iterator[ModelEvent]:
        if error := chunk.get("error"):
            raise _stream_error(error)
        if not self._started:
            self._started = True
            yield MessageStarted(self._prefix + _shown_name(chunk.get("model"), self._model))
        if usage := chunk.get("usage"):
            self._usage = _usage(usage)
        for choice in chunk.get("choices") or ():
            if choice.get("index") not in (0, None):
                continue  # the request asks for one answer only
            # Some endpoints send a whole message in place of a delta.
            yield from self._delta(choice.get("delta") or choice.get("message") or {})
            if reason := choice.get("finish_reason"):
                self._reason = str(reason)
                if self._reason == "error":
                    raise _stream_error(choice.get("error") or {})
                yield from self._finish()

    def _delta(self, delta: Json) -> Iterator[ModelEvent]:
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(reasoning, str) and reasoning:
            yield from self._say("thinking", reasoning)
        content = delta.get("content")
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        for part in parts:
            if text := part.get("text"):
                yield from self._say("text", _string(text))
        if refusal := delta.get("refusal"):
            self._refused = True
            yield from self._say("text", _string(refusal))
        for call in delta.get("tool_calls") or ():
            yield from self._call(call)

    def _say(self, kind: str, text: str) -> Iterator[ModelEvent]:
        if self._open is None or self._open["type"] != kind:
            if self._live is not None and kind == "text" and not text.strip():
                return  # line feeds between calls
            yield from self._close()
            self._open = text_block("") if kind == "text" else {"type": "thinking", "thinking": "", "signature": ""}
            yield BlockStarted(self._blocks, self._open)
        text = self._pairs.join("said", text)
        if not text:
            return
        self._pieces.append(text)
        yield (TextDelta if kind == "text" else ThinkingDelta)(self._blocks, text)

    def _close(self) -> Iterator[ModelEvent]:
        """Close the open block: text, thinking or a tool call."""
        if self._open is not None:
            key = "text" if self._open["type"] == "text" else "thinking"
            joined = "".join(self._pieces) + self._pairs.end("said")
            block, self._open, self._pieces = {**self._open, key: joined}, None, []
            self._blocks += 1
            yield BlockStopped(self._blocks - 1, block)
        live = self._live
        if live is not None:
            yield from self._close_call(live)

    # Calls

    def _call(self, piece: Json) -> Iterator[ModelEvent]:
        function = piece.get("function") or {}
        name, raw = function.get("name") or "", function.get("arguments")
        # Some endpoints send the arguments as an object instead of its JSON text.
        arguments = raw if isinstance(raw, str) else "" if raw is None else orjson.dumps(raw).decode()
        call = self._call_of(piece, _string(name), arguments)
        arguments = self._pairs.join(id(call), arguments)
        call.name = call.name or clean_text(_string(name)[:MAX_NAME])
        call.id = call.id or clean_text(_string(piece.get("id") or ""))
        if arguments and not call.closed:
            call.pieces.append(arguments)
        if self._live is None and call.index is None and call.name and self._is_next(call):
            yield from self._open_call(call)
            if joined := "".join(call.pieces):
                yield InputDelta(self._blocks, joined)
        elif call is self._live and arguments:
            yield InputDelta(self._blocks, arguments)
        elif self._live is not None and self._live is not call and self._live.whole:
            # The endpoint began another call. Complete arguments end the open one; incomplete ones may still grow.
            yield from self._close_call(self._live)
            if call.name and self._is_next(call):
                yield from self._open_call(call)
                if joined := "".join(call.pieces):
                    yield InputDelta(self._blocks, joined)

    def _call_of(self, piece: Json, name: str, arguments: str) -> _Call:
        """Return the call of a piece by its index, or a new call if the id or the name shows that one begins."""
        place, ident = piece.get("index"), piece.get("id") or ""
        candidates = [call for call in self._calls if place is None or call.place == place]
        last = candidates[-1] if candidates else None
        # Without an index, an id finds its call, a name alone begins a call, and a bare piece belongs to the last one.
        if place is None and ident:
            last = next((call for call in candidates if call.id == ident), None)
        elif place is None and name:
            last = None
        begins = last is None or (ident and last.id and ident != last.id)
        # A name and arguments behind complete arguments: the endpoint sends several calls under one index.
        again = last is not None and name and arguments.strip() and last.pieces and last.whole
        if last is None or begins or again:
            if len(self._calls) >= MAX_CALLS:
                raise ValueError("too many calls")
            last = _Call(place, _string(ident), clean_text(name[:MAX_NAME]))
            self._calls.append(last)
        return last

    def _is_next(self, call: _Call) -> bool:
        """Whether all calls before this one are closed. Blocks keep the order of their calls."""
        return all(earlier.closed for earlier in self._calls[: self._calls.index(call)])

    def _open_call(self, call: _Call) -> Iterator[ModelEvent]:
        if self._open is not None:
            yield from self._close()
        self._live, call.index = call, self._blocks
        yield BlockStarted(self._blocks, call.first_block())

    def _close_call(self, call: _Call) -> Iterator[ModelEvent]:
        call.closed, self._live = True, None
        self._blocks += 1
        yield BlockStopped(self._blocks - 1, call.whole_block())

    def _finish(self) -> Iterator[ModelEvent]:
        """Close the open blocks, and yield the calls that had to wait for an earlier call.

        May be called again: some endpoints send a piece of the answer behind the finish reason, or the reason twice.
        """
        self.has_reason = True
        yield from self._close()
        for call in self._calls:
            if call.closed:
                continue
            yield from self._open_call(call)
            if joined := "".join(call.pieces):
                yield InputDelta(self._blocks, joined)
            yield from self._close_call(call)

    def _stop_reason(self) -> str:
        reason = _REASONS.get(self._reason, "end_turn")
        if self._refused and reason == "end_turn":
            return "refusal"
        if reason in ("end_turn", "tool_use"):  # some endpoints confuse "stop" and "tool_calls"
            return "tool_use" if self._calls else "end_turn"
        return reason


def _object_of(text: str) -> Json | None:
    try:
        value = loads_clean(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no string")
    return value


def _shown_name(reported: object, requested: str) -> str:
    """Return the name of the model that answered, or the requested name if the endpoint reports a file path."""
    if (
        isinstance(reported, str)
        and 0 < len(reported) <= MAX_NAME
        and not reported.startswith(("/", ".", "~"))
        and "\\" not in reported
    ):
        return clean_text(reported)
    return requested


def _stream_error(error: Any) -> Exception:
    if not isinstance(error, dict):
        return stream_error("", str(error))
    kind = error.get("type") or error.get("code") or ""
    return stream_error(str(kind), str(error.get("message") or ""))


def _usage(usage: Json) -> Usage:
    """Return the usage of a chunk, as totals so far. The API includes cached tokens in the prompt tokens."""
    details = usage.get("prompt_tokens_details") or {}
    cached = token_count(details.get("cached_tokens")) or token_count(usage.get("prompt_cache_hit_tokens"))
    sent = token_count(usage.get("prompt_tokens"))
    cached = min(cached, sent)  # an endpoint may report impossible counts, and none must become negative
    return Usage(input=sent - cached, cache_read=cached, output=token_count(usage.get("completion_tokens")))
