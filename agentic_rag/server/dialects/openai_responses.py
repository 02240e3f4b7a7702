"""OpenAI's responses: a turn as its stream of events, or as one response.

Pure. Tools run on the server: each call is an ``mcp_call`` item of the output. The text of a step is its own message,
with citations as ``file_citation`` annotations. Items are numbered in the order in which they begin, because clients
assemble them by number.
"""

from dataclasses import dataclass, field
from typing import Final

import orjson

from agentic_rag.base.errors import ServerStopping, StepTakenBack
from agentic_rag.base.events import AgentEvent
from agentic_rag.base.json_form import Json, to_text
from agentic_rag.server.dialects.answer import is_farewell
from agentic_rag.server.dialects.base import Headers
from agentic_rag.server.dialects.openai_answer import (
    FIELD,
    Answer,
    CalledTool,
    Citation,
    Failure,
    failure_of,
    suffix_of,
)
from agentic_rag.server.dialects.openai_chat import more_of

_CUT = {"max_tokens": "max_output_tokens", "max_steps": "max_output_tokens", "refusal": "content_filter"}
_PARTS: Final = {"message": "output_text", "reasoning": "reasoning_text"}


@dataclass(frozen=True, slots=True)
class ResponseFrame:
    """The parts of a response that the request determines."""

    model: str = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation_id: str | None = None
    """Set if the conversation is kept."""


@dataclass(slots=True)
class _Text:
    """An output item that is written piece by piece: a message, or the reasoning before one."""

    kind: str
    id: str
    index: int
    begins_at: int
    """Index in the whole answer."""
    pieces: list[str] = field(default_factory=list)
    annotations: list[Json] = field(default_factory=list)

    def part(self) -> Json:
        text = "".join(self.pieces)
        if self.kind == "reasoning":
            return {"type": _PARTS[self.kind], "text": text}
        return {"type": _PARTS[self.kind], "text": text, "annotations": self.annotations, "logprobs": []}

    def to_json(self, status: str) -> Json:
        content = [self.part()] if self.pieces else []
        if self.kind == "reasoning":
            return {"type": "reasoning", "id": self.id, "summary": [], "content": content, "status": status}
        return {"type": "message", "id": self.id, "role": "assistant", "status": status, "content": content}


class OpenAiResponses:
    """Encodes one turn as the events of a response. `response` returns the current state."""

    name = "openai-responses"
    headers: Headers = ()
    needs_start = True

    def __init__(self, frame: ResponseFrame | None = None, *, retracts: bool = False, after: int = -1) -> None:
        """Create an encoder.

        ``retracts`` removes the output of a reset step, for responses that nobody has read yet. ``after`` is the number
        of the last event that the client has.
        """
        self.ended = False
        self._after = after
        self._retracts = retracts
        self._step_from = 0
        self.answer = Answer()
        self._frame = frame or ResponseFrame()
        self._output: list[Json] = []
        self._places: dict[str, int] = {}
        """Output indices of the calls."""
        self._open: _Text | None = None
        self._number = 0

    def sse(self, event: AgentEvent) -> bytes:
        """Return the events of a response for an agent event, as server-sent events."""
        said = self._unsaid(event)
        return b"".join(b"event: %b\ndata: %b\n\n" % (kind.encode(), data) for kind, data in said)

    def frames(self, event: AgentEvent) -> tuple[bytes, ...]:
        """Return the events of a response for an agent event."""
        return tuple(data for _, data in self._unsaid(event))

    def take(self, event: AgentEvent) -> None:
        """Process an event without output."""
        self._encode(event)

    def response(self) -> Json:
        """Return the current response."""
        answer, frame = self.answer, self._frame
        status, cut = "in_progress", None
        if answer.failure is not None:
            status = "failed"
        elif answer.over:
            cut = _CUT.get(answer.stop_reason)
            status = "completed" if cut is None else "incomplete"
        kept = None if frame.conversation_id is None else {"id": frame.conversation_id}
        return {
            "id": response_id(answer.turn_id),
            "object": "response",
            "created_at": answer.created,
            "status": status,
            "background": False,
            "error": None if answer.failure is None else _error(answer.failure),
            "incomplete_details": None if cut is None else {"reason": cut},
            "instructions": frame.instructions,
            "metadata": {},
            "model": frame.model or answer.model,
            "output": list(self._output),
            "parallel_tool_calls": True,
            "previous_response_id": frame.previous_response_id,
            "conversation": kept,
            "store": kept is not None,
            "temperature": None,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "truncation": "disabled",
            "usage": _usage(answer) if answer.usage else None,
            FIELD: answer.more(),
        }

    def _unsaid(self, event: AgentEvent) -> list[tuple[str, bytes]]:
        number = self._number
        return self._encode(event)[max(0, self._after + 1 - number) :]

    def _encode(self, event: AgentEvent) -> list[tuple[str, bytes]]:
        if self.ended:
            return []
        fields = event.fields()
        own = not fields.get("agent")
        if fields["type"] == "step_reset" and own and self.answer.sent_in_step:
            if not self._retracts:
                self.ended = True
                self.answer.fail(failure_of(StepTakenBack()))
                return self._end()
            self._open = None
            del self._output[self._step_from :]
        if is_farewell(event):
            self.ended = True
            self.answer.fail(failure_of(ServerStopping()))
            return self._end()
        cited = len(self.answer.citations)
        grown = self.answer.take(fields)
        if self.answer.over:
            return self._end()
        if grown:
            return self._write("message", grown)
        return self._say(fields, self.answer.citations[cited:], own=own)

    def _say(self, fields: Json, cited: list[Citation], *, own: bool) -> list[tuple[str, bytes]]:
        match fields["type"]:
            case "turn_started" if own:
                kinds = ("response.created", "response.in_progress")
                return [self._event(kind, response=self.response()) for kind in kinds]
            case "thinking" if own:
                return self._write("reasoning", fields["text"])
            case "iteration_start" if own:
                closed = self._close()
                self._step_from = len(self._output)
                return closed
            case "source_reference" if own:
                return [event for each in cited for event in self._cite(each)]
            case "tool_call":
                return [*(self._close() if own else []), *self._call(self.answer.calls[fields["toolCallId"]])]
            case "tool_result" if fields["toolCallId"] in self._places:
                return self._finish_call(self.answer.calls[fields["toolCallId"]])
        return []

    # Texts

    def _write(self, kind: str, text: str) -> list[tuple[str, bytes]]:
        events = []
        if self._open is None or self._open.kind != kind:
            events += [*self._close(), *self._open_text(kind, self.answer.length - len(text))]
        item = self._open
        assert item is not None
        item.pieces.append(text)
        place = {"item_id": item.id, "output_index": item.index, "content_index": 0}
        if kind == "reasoning":
            return [*events, self._event("response.reasoning_text.delta", **place, delta=text)]
        return [*events, self._event("response.output_text.delta", **place, delta=text, logprobs=[])]

    def _open_text(self, kind: str, begins_at: int) -> list[tuple[str, bytes]]:
        index = len(self._output)
        prefix = "msg" if kind == "message" else "rs"
        item = self._open = _Text(kind, f"{prefix}_{suffix_of(self.answer.turn_id)}_{index}", index, begins_at)
        shown = item.to_json("in_progress")
        self._output.append(shown)
        place = {"item_id": item.id, "output_index": index, "content_index": 0}
        return [
            self._event("response.output_item.added", output_index=index, item=shown),
            self._event("response.content_part.added", **place, part=item.part()),
        ]

    def _cite(self, citation: Citation) -> list[tuple[str, bytes]]:
        item = self._open
        if item is None or item.kind != "message":
            return []
        shown = {
            "type": "file_citation",
            "index": citation.end - item.begins_at,
            "file_id": citation.document_id,
            "filename": citation.document_name,
            "start_index": citation.start - item.begins_at,
            "end_index": citation.end - item.begins_at,
            FIELD: more_of(citation),
        }
        item.annotations.append(shown)
        place = {"item_id": item.id, "output_index": item.index, "content_index": 0}
        number = len(item.annotations) - 1
        return [
            self._event("response.output_text.annotation.added", **place, annotation_index=number, annotation=shown)
        ]

    def _close(self) -> list[tuple[str, bytes]]:
        """End the text that is being written, if any."""
        item, self._open = self._open, None
        if item is None:
            return []
        shown = self._output[item.index] = item.to_json("completed")
        place = {"item_id": item.id, "output_index": item.index, "content_index": 0}
        text = "".join(item.pieces)
        done = (
            self._event("response.output_text.done", **place, text=text, logprobs=[])
            if item.kind == "message"
            else self._event("response.reasoning_text.done", **place, text=text)
        )
        return [
            done,
            self._event("response.content_part.done", **place, part=item.part()),
            self._event("response.output_item.done", output_index=item.index, item=shown),
        ]

    # Calls

    def _call(self, call: CalledTool) -> list[tuple[str, bytes]]:
        index = self._places[call.id] = len(self._output)
        shown = _call_item(call, "in_progress")
        self._output.append(shown)
        place = {"item_id": shown["id"], "output_index": index}
        return [
            self._event("response.output_item.added", output_index=index, item=shown),
            self._event("response.mcp_call_arguments.done", **place, arguments=shown["arguments"]),
            self._event("response.mcp_call.in_progress", **place),
        ]

    def _finish_call(self, call: CalledTool) -> list[tuple[str, bytes]]:
        index = self._places[call.id]
        ended = "completed" if call.status == "ok" else "failed"
        shown = self._output[index] = _call_item(call, ended)
        return [
            self._event(f"response.mcp_call.{ended}", item_id=shown["id"], output_index=index),
            self._event("response.output_item.done", output_index=index, item=shown),
        ]

    # The end

    def _end(self) -> list[tuple[str, bytes]]:
        events = self._close()
        response = self.response()
        return [*events, self._event(f"response.{response['status']}", response=response)]

    def _event(self, kind: str, **fields: object) -> tuple[str, bytes]:
        number, self._number = self._number, self._number + 1
        return kind, orjson.dumps({"type": kind, "sequence_number": number, **fields})


def response_id(turn_id: str) -> str:
    """Return the id of a turn's response."""
    return f"resp_{suffix_of(turn_id)}"


def turn_of(ident: str) -> str:
    """Return the turn id of a response."""
    return f"turn_{ident.removeprefix('resp_')}"


def _call_item(call: CalledTool, status: str) -> Json:
    item: Json = {
        "type": "mcp_call",
        "id": f"mcp_{call.id}",
        "server_label": str(call.fields["server"]),
        "name": str(call.fields["toolName"]),
        "arguments": to_text(call.fields["arguments"]),
        "approval_request_id": None,
        "error": None,
        "output": call.content if status == "completed" else None,
        "status": status,
    }
    if status == "failed":
        item["error"] = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": call.content}]}
    return item | ({FIELD: {"agent": call.agent}} if call.agent else {})


def _error(failure: Failure) -> Json:
    """Return a failure. ``type`` holds this server's code, because ``code`` is limited to OpenAI's list."""
    code = "rate_limit_exceeded" if failure.code == "RATE_LIMITED" else "server_error"
    return {"code": code, "message": failure.message, "type": failure.code, FIELD: {"retryable": failure.retryable}}


def _usage(answer: Answer) -> Json:
    sent, written = answer.usage.get("inputTokens", 0), answer.usage.get("outputTokens", 0)
    return {
        "input_tokens": sent,
        "input_tokens_details": {
            "cached_tokens": answer.usage.get("cacheReadTokens", 0),
            "cache_write_tokens": answer.usage.get("cacheWriteTokens", 0),
        },
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": sent + written,
    }
