"""OpenAI's chat completions: a turn as chunks, or as one completion.

Pure. ``tool_calls`` are those of the client's functions. Finished calls of the server's own tools and other data
without a place in the format are in the extra field ``agentic_rag``. Citations are ``url_citation`` annotations of
characters of the whole answer.
"""

from collections.abc import Collection, Sequence

import orjson

from agentic_rag.base.errors import ServerStopping, StepTakenBack
from agentic_rag.base.events import AgentEvent
from agentic_rag.base.ids import WaitId
from agentic_rag.base.json_form import Json
from agentic_rag.runtime.core.client_functions import (
    FunctionPauses,
    JsonSchema,
    form_answer,
    form_in_text,
    function_call,
)
from agentic_rag.server.dialects.answer import is_farewell
from agentic_rag.server.dialects.base import Headers
from agentic_rag.server.dialects.openai_answer import (
    FIELD,
    PAUSED,
    AnswerCitation,
    AnswerFailure,
    OpenAiAnswer,
    StopCutter,
    error_type,
    failure_of,
    suffix_of,
)

DONE = b"data: [DONE]\n\n"

_FINISH_REASONS = {PAUSED: "tool_calls", "max_tokens": "length", "max_steps": "length", "refusal": "content_filter"}
_SHOWN = frozenset({"tool_call", "tool_result", "retrieval", "notice", "retrying"})
"""Events that a chunk carries unchanged in the extra field."""


class OpenAiChat:
    """Encodes one turn as chunks.

    Args:
        model: the client's name of the model; empty: the name of the answering model.
        passages: the base address of the domain's passages.
        include_usage: send one more chunk with the usage.
        answered: the waits that the request answered: only the part of the turn after them is sent.
        stops: texts before which the text ends.
        form: the JSON Schema of the wanted answer. Only the filled-in form is sent, not the text before it.
    """

    name = "openai"
    headers: Headers = ()
    needs_start = True

    def __init__(
        self,
        model: str = "",
        passages: str = "",
        *,
        include_usage: bool = False,
        answered: Collection[WaitId] = (),
        form: JsonSchema | None = None,
        stops: Sequence[str] = (),
    ) -> None:
        self._cutter = StopCutter(stops)
        self._sent = 0
        """Characters of the answer's text in the chunks so far."""
        self._waiting: list[AnswerCitation] = []
        """Citations of text that is held back."""
        self.ended = False
        self._form = form
        self._pauses = FunctionPauses(answered)
        self._answer = OpenAiAnswer()
        self._model = model
        self._passages = passages
        self._include_usage = include_usage

    def sse(self, event: AgentEvent) -> bytes:
        """Return the chunks of an event, each as a ``data:`` line. ``[DONE]`` follows the last chunk."""
        if self.ended:
            return b""
        chunks = b"".join(b"data: %b\n\n" % chunk for chunk in self.frames(event))
        return chunks + DONE if self.ended or self._answer.over else chunks

    def frames(self, event: AgentEvent) -> tuple[bytes, ...]:
        """Return the chunks of an event."""
        if self.ended:
            return ()
        fields = event.fields()
        muted, client_calls = self._pauses.muted, self._pauses.take(event, fields)
        # What came before the answered waits was sent by the request that asked for their results. It is taken all the
        # same, for the usage and the ids.
        if muted and not is_farewell(event):
            self._answer.take(fields)
            if self._answer.over:
                return self._end()
            if self._pauses.muted:
                return ()
            self._answer.begin_part(str(fields["ts"]), self._pauses.spent)
            return (self._first_chunk(),)
        if client_calls:
            return self._pause(client_calls, str(fields["ts"]))
        own_reset = fields["type"] == "step_reset" and not fields.get("agent")
        # A sent chunk cannot be retracted, so a repeated answer fails. With a form no text was sent yet.
        if own_reset and self._answer.sent_in_step and self._form is None:
            self.ended = True
            return self._fail(failure_of(StepTakenBack()))
        if is_farewell(event):
            self.ended = True
            return self._fail(failure_of(ServerStopping()))
        cited = len(self._answer.citations)
        grown = self._answer.take(fields)
        if self._answer.over:
            return self._end()
        if self._form is not None and (grown or fields["type"] == "source_reference"):
            return ()
        if grown:
            return self._write(self._cutter.add(grown))
        return self._say(fields, self._answer.citations[cited:])

    def _say(self, fields: Json, cited: list[AnswerCitation]) -> tuple[bytes, ...]:
        kind = fields["type"]
        if cited:
            self._waiting += cited
            return self._cite()
        if kind in _SHOWN:
            return (self._chunk({}, more={"event": fields}),)
        if fields.get("agent"):
            return ()
        if kind == "turn_started":
            return (self._first_chunk(),)
        if kind == "thinking":
            return (self._chunk({"reasoning_content": fields["text"]}),)
        return ()

    def _write(self, text: str) -> tuple[bytes, ...]:
        self._sent += len(text)
        return (self._chunk({"content": text}), *self._cite()) if text else ()

    def _cite(self) -> tuple[bytes, ...]:
        """Return the citations of text that was sent. Those of text after a stop stay behind."""
        due = [citation for citation in self._waiting if citation.end <= self._sent]
        self._waiting = [citation for citation in self._waiting if citation.end > self._sent]
        return (
            (self._chunk({"annotations": [annotation(citation, self._passages) for citation in due]}),) if due else ()
        )

    def _first_chunk(self) -> bytes:
        more = self._answer.more()
        names = ("conversationId", "turnId", "messageId")
        return self._chunk({"role": "assistant", "content": ""}, more={name: more[name] for name in names})

    def _pause(self, client_calls: Sequence[Json], ts: str) -> tuple[bytes, ...]:
        """End the stream with calls of the client's functions."""
        self.ended = True
        self._answer.pause(ts, self._pauses.spent)
        filled = form_answer(client_calls)
        if filled is not None:
            self._answer.fill_form(filled)
            return self._chunk({"content": filled}), *self._last()
        calls = [{"index": index, **call} for index, call in enumerate(map(tool_call, client_calls))]
        return *self._write(self._cutter.rest()), self._chunk({"tool_calls": calls}), *self._last()

    def _end(self) -> tuple[bytes, ...]:
        answer = self._answer
        filled: tuple[bytes, ...] = ()
        if self._form is not None and answer.failure is None:
            answer.fill_form(form_in_text(answer.text, self._form))
            filled = (self._chunk({"content": answer.text}),)
        if answer.failure is not None:
            return self._fail(answer.failure)
        return *filled, *self._write(self._cutter.rest()), *self._last()

    def _last(self) -> tuple[bytes, ...]:
        answer = self._answer
        last = [self._chunk({}, finish=finish_reason(answer), more=answer.more())]
        if self._include_usage:
            last.append(orjson.dumps({**self._head(), "choices": [], "usage": usage(answer)}))
        return tuple(last)

    def _fail(self, failure: AnswerFailure) -> tuple[bytes, ...]:
        error = {
            "message": failure.message,
            "type": error_type(500),
            "param": None,
            "code": failure.code,
            "retryable": failure.retryable,
        }
        return (orjson.dumps({"error": error}),)

    def _chunk(self, delta: Json, *, finish: str | None = None, more: Json | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        chunk: Json = {**self._head(), "choices": [choice]}
        if self._include_usage:
            chunk["usage"] = None
        if more is not None:
            chunk[FIELD] = more
        return orjson.dumps(chunk)

    def _head(self) -> Json:
        return {
            "id": completion_id(self._answer),
            "object": "chat.completion.chunk",
            "created": self._answer.created,
            "model": self._model or self._answer.model,
        }


def tool_call(wait: Json) -> Json:
    """Return the call of a client's function for its ``input_required`` event."""
    call = function_call(wait)
    return {"id": call.pop("id"), "type": "function", "function": call}


def completion(answer: OpenAiAnswer, model: str, passages: str, client_calls: Sequence[Json] = ()) -> Json:
    """Return a whole answer as one completion. ``client_calls``: the functions that it asks the client to run."""
    message: Json = {
        "role": "assistant",
        "content": answer.text or None if client_calls else answer.text,
        "refusal": None,
        "annotations": [annotation(citation, passages) for citation in answer.citations],
    }
    if client_calls:
        message["tool_calls"] = [tool_call(call) for call in client_calls]
    if answer.thinking:
        message["reasoning_content"] = answer.thinking
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(answer)}
    return {
        "id": completion_id(answer),
        "object": "chat.completion",
        "created": answer.created,
        "model": model or answer.model,
        "choices": [choice],
        "usage": usage(answer),
        FIELD: answer.more(),
    }


def completion_id(answer: OpenAiAnswer) -> str:
    """Return the id of a turn's completion."""
    return f"chatcmpl-{suffix_of(answer.turn_id)}"


def annotation(citation: AnswerCitation, passages: str) -> Json:
    """Return a citation as an annotation."""
    shown = {
        "start_index": citation.start,
        "end_index": citation.end,
        "title": citation.document_name,
        "url": citation.address(passages),
    }
    return {"type": "url_citation", "url_citation": shown, FIELD: more_of(citation)}


def more_of(citation: AnswerCitation) -> Json:
    """Return the passage's text and position, which an annotation has no place for."""
    names = (
        "number",
        "documentId",
        "chunkId",
        "citedText",
        "score",
        "page",
        "cells",
        "table",
        "scanned",
        "scannedBy",
        "documentDate",
        "reviewBy",
        "sourceUri",
    )
    return {name: citation.source[name] for name in names if citation.source.get(name) is not None}


def finish_reason(answer: OpenAiAnswer) -> str:
    """Return the reason for the end of an answer."""
    return _FINISH_REASONS.get(answer.stop_reason, "stop")


def usage(answer: OpenAiAnswer) -> Json:
    """Return the usage of a whole answer, delegates included."""
    sent, written = answer.usage.get("inputTokens", 0), answer.usage.get("outputTokens", 0)
    cached = {
        "cached_tokens": answer.usage.get("cacheReadTokens", 0),
        "cache_write_tokens": answer.usage.get("cacheWriteTokens", 0),
    }
    return {
        "prompt_tokens": sent,
        "completion_tokens": written,
        "total_tokens": sent + written,
        "prompt_tokens_details": cached,
    }
