"""Open Responses and OpenAI's responses: a turn as its stream of events, or as one response.

Pure. The text of a step is its own message. Items are numbered in the order in which they begin, because clients
assemble them by number. The two forms (`ResponseForm`) differ in what the neutral standard has no place for: the
server's own tool calls, and citations of documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import orjson

from agentic_rag.base.errors import ServerStopping, StepTakenBack
from agentic_rag.base.events import AgentEvent
from agentic_rag.base.ids import WaitId
from agentic_rag.base.json_form import Json, to_text
from agentic_rag.runtime.core.client_functions import (
    ANY_FUNCTION,
    NO_FUNCTIONS,
    ClientFunctions,
    FunctionPauses,
    form_answer,
    form_in_text,
    function_call,
)
from agentic_rag.runtime.core.definition import ClientFunction
from agentic_rag.server.dialects.answer import is_farewell
from agentic_rag.server.dialects.base import Headers
from agentic_rag.server.dialects.openai_answer import (
    FIELD,
    AnswerCitation,
    AnswerFailure,
    CalledTool,
    OpenAiAnswer,
    failure_of,
    suffix_of,
)
from agentic_rag.server.dialects.openai_chat import more_of
from agentic_rag.tools.system import CLIENT

_CUT = {"max_tokens": "max_output_tokens", "max_steps": "max_output_tokens", "refusal": "content_filter"}


class ResponseForm(StrEnum):
    """The form of a response.

    Both have all keys that the schema of Open Responses (2026-04-24) requires.
    """

    STANDARD = "standard"
    """Only items, annotations and events of that schema. The server's own tool calls are in the extra field."""
    OPENAI = "openai"
    """Also ``mcp_call`` items and ``file_citation`` annotations, which OpenAI's own libraries know."""


@dataclass(frozen=True, slots=True)
class ResponseFrame:
    """The parts of a response that the request and the domain determine.

    ``effort`` and ``summary`` are those of the request's ``reasoning``. With a ``summary`` the model's thoughts are the
    summary of a reasoning item, else its content. ``passages`` is the base address of the domain's passages.
    """

    model: str = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation_id: str | None = None
    """Set if the conversation is kept."""
    form: ResponseForm = ResponseForm.OPENAI
    passages: str = ""
    temperature: float = 1.0
    effort: str | None = None
    summary: str | None = None
    functions: ClientFunctions = NO_FUNCTIONS
    answered: frozenset[WaitId] = frozenset()
    """The waits that the request answered: only the part of the turn after them is sent."""
    part: int = 0
    """Number of the wanted part of a stored turn that paused for the client's functions, counted from 0."""


@dataclass(slots=True)
class _Text:
    """An output item that is written piece by piece: a message, or the reasoning before one."""

    kind: str
    id: str
    index: int
    begins_at: int
    """Index in the whole answer."""
    summarized: bool = False
    """Whether this is a reasoning item whose text is its summary."""
    pieces: list[str] = field(default_factory=list)
    annotations: list[Json] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def place(self) -> Json:
        """The fields of an event that say which part of which item it belongs to."""
        inner = "summary_index" if self.summarized else "content_index"
        return {"item_id": self.id, "output_index": self.index, inner: 0}

    def part(self) -> Json:
        if self.kind == "reasoning":
            return {"type": "summary_text" if self.summarized else "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": self.annotations, "logprobs": []}

    def to_json(self, status: str) -> Json:
        parts = [self.part()] if self.pieces else []
        if self.kind == "reasoning":
            summary, content = (parts, []) if self.summarized else ([], parts)
            return {"type": "reasoning", "id": self.id, "summary": summary, "content": content, "status": status}
        return {"type": "message", "id": self.id, "role": "assistant", "status": status, "content": parts}


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
        self.answer = OpenAiAnswer()
        self._frame = frame or ResponseFrame()
        self._pauses = FunctionPauses(self._frame.answered, self._frame.part)
        self._output: list[Json] = []
        self._places: dict[str, int] = {}
        """Output indices of the calls."""
        self._open: _Text | None = None
        self._paused = False
        self._number = 0

    def sse(self, event: AgentEvent) -> bytes:
        """Return the events of a response for an agent event, as server-sent events."""
        events = self._unsaid(event)
        return b"".join(b"event: %b\ndata: %b\n\n" % (kind.encode(), data) for kind, data in events)

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
        conversation = None if frame.conversation_id is None else {"id": frame.conversation_id}
        return {
            "id": response_id(answer.turn_id, self._part),
            "object": "response",
            "created_at": answer.created,
            "completed_at": answer.ended if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None if answer.failure is None else _error(answer.failure),
            "incomplete_details": None if cut is None else {"reason": cut},
            "instructions": frame.instructions,
            "max_output_tokens": None,
            "max_tool_calls": None,
            "metadata": {},
            "model": frame.model or answer.model,
            "output": list(self._output),
            "parallel_tool_calls": True,
            "previous_response_id": self._previous(),
            "conversation": conversation,
            "store": conversation is not None,
            "temperature": frame.temperature,
            "top_p": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "top_logprobs": 0,
            "reasoning": {"effort": frame.effort, "summary": frame.summary},
            "safety_identifier": None,
            "prompt_cache_key": None,
            "service_tier": "default",
            "text": {"format": self._format()},
            "tool_choice": _choice(frame.functions),
            "tools": [_tool(function) for function in frame.functions.offered],
            "truncation": "disabled",
            "usage": _usage(answer) if answer.usage else None,
            FIELD: answer.more(),
        }

    @property
    def _shows_calls(self) -> bool:
        return self._frame.form is ResponseForm.OPENAI

    def _unsaid(self, event: AgentEvent) -> list[tuple[str, bytes]]:
        number = self._number  # numbers are consecutive: the events that the client has come first
        return self._encode(event)[max(0, self._after + 1 - number) :]

    def _encode(self, event: AgentEvent) -> list[tuple[str, bytes]]:
        if self.ended:
            return []
        fields = event.fields()
        own = not fields.get("agent")
        muted, client_calls = self._pauses.muted, self._pauses.take(event, fields)
        if muted and not is_farewell(event):
            return self._skip(fields)
        if client_calls:
            return self._pause(client_calls, str(fields["ts"]))
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
        form = self._frame.functions.form
        if self.answer.over and form is not None and self.answer.failure is None:
            filled = form_in_text(self.answer.text, form)
            self.answer.fill_form(filled)
            return self._end(filled)
        if self.answer.over:
            return self._end()
        if form is not None and (grown or fields["type"] == "source_reference"):
            return []
        if grown:
            return self._write("message", grown)
        return self._say(fields, self.answer.citations[cited:], own=own)

    def _say(self, fields: Json, cited: list[AnswerCitation], *, own: bool) -> list[tuple[str, bytes]]:
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
                return [event for citation in cited for event in self._cite(citation)]
            case "tool_call":
                closed = self._close() if own else []
                # Calls of the client's functions are shown by `_pause`, when the turn waits for their results.
                shown = self._shows_calls and fields["server"] != CLIENT
                return [*closed, *self._call(self.answer.calls[fields["toolCallId"]])] if shown else closed
            case "tool_result" if fields["toolCallId"] in self._places:
                return self._finish_call(self.answer.calls[fields["toolCallId"]])
        return []

    def _format(self) -> Json:
        form = self._frame.functions.form
        if form is None:
            return {"type": "text"}
        # The schema of Open Responses only permits null here, by mistake.
        shown = dict(form) if self._shows_calls else None
        return {"type": "json_schema", "name": "answer", "description": None, "schema": shown, "strict": True}

    def _previous(self) -> str | None:
        """Return the id of the response before this one, which may be an earlier part of the same turn."""
        if self._part and self._frame.conversation_id is not None:
            return response_id(self.answer.turn_id, self._part - 1)
        return self._frame.previous_response_id

    # The client's functions

    @property
    def _part(self) -> int:
        # A pause already counts as the start of the next part, but this response is the part that it ends.
        return self._pauses.part - self._paused

    def _skip(self, fields: Json) -> list[tuple[str, bytes]]:
        """Process an event of an earlier part."""
        self.answer.take(fields)
        if self.answer.over:
            return self._end()
        if self._pauses.muted:
            return []
        self.answer.begin_part(str(fields["ts"]), self._pauses.spent)
        kinds = ("response.created", "response.in_progress")
        return [self._event(kind, response=self.response()) for kind in kinds]

    def _pause(self, client_calls: Sequence[Json], ts: str) -> list[tuple[str, bytes]]:
        """End the response with calls of the client's functions."""
        self.ended = self._paused = True
        self.answer.pause(ts, self._pauses.spent)
        filled = form_answer(client_calls)
        if filled is not None:
            self.answer.fill_form(filled)
            return self._end(filled)
        events = self._close()
        for call in client_calls:
            events += self._ask(function_call(call))
        return [*events, self._event("response.completed", response=self.response())]

    def _ask(self, call: Json) -> list[tuple[str, bytes]]:
        index = len(self._output)
        item: Json = {"type": "function_call", "id": f"fc_{call['id']}", "call_id": call["id"], "name": call["name"]}
        whole = {**item, "arguments": call["arguments"], "status": "completed"}
        self._output.append(whole)
        place = {"item_id": item["id"], "output_index": index}
        opened = {**item, "arguments": "", "status": "in_progress"}
        done = {"arguments": call["arguments"], "name": call["name"]}
        return [
            self._event("response.output_item.added", output_index=index, item=opened),
            self._event("response.function_call_arguments.delta", **place, delta=call["arguments"]),
            self._event("response.function_call_arguments.done", **place, **done),
            self._event("response.output_item.done", output_index=index, item=whole),
        ]

    # Texts

    def _write(self, kind: str, text: str) -> list[tuple[str, bytes]]:
        events = []
        if self._open is None or self._open.kind != kind:
            # The answer has this text already, so the item begins before it.
            events += [*self._close(), *self._open_text(kind, self.answer.length - len(text))]
        item = self._open
        assert item is not None
        item.pieces.append(text)
        more: Json = {"logprobs": []} if kind == "message" else {}
        return [*events, self._event(f"{self._text_event(item)}.delta", **item.place, delta=text, **more)]

    def _text_event(self, item: _Text) -> str:
        """Return the name of the events for an item's text, without its last part."""
        if item.kind == "message":
            return "response.output_text"
        if item.summarized:
            return "response.reasoning_summary_text"
        return "response.reasoning_text" if self._shows_calls else "response.reasoning"

    def _open_text(self, kind: str, begins_at: int) -> list[tuple[str, bytes]]:
        index = len(self._output)
        prefix = "msg" if kind == "message" else "rs"
        ident = f"{prefix}_{suffix_of(self.answer.turn_id)}_{index}"
        summarized = kind == "reasoning" and self._frame.summary is not None
        item = self._open = _Text(kind, ident, index, begins_at, summarized)
        shown = item.to_json("in_progress")
        self._output.append(shown)
        part = "response.reasoning_summary_part" if summarized else "response.content_part"
        return [
            self._event("response.output_item.added", output_index=index, item=shown),
            self._event(f"{part}.added", **item.place, part=item.part()),
        ]

    def _cite(self, citation: AnswerCitation) -> list[tuple[str, bytes]]:
        item = self._open
        if item is None or item.kind != "message":
            return []
        start, end = citation.start - item.begins_at, citation.end - item.begins_at
        shown: Json = {"type": "url_citation", "url": citation.address(self._frame.passages)}
        shown["title"] = citation.document_name
        if self._shows_calls:
            shown = {"type": "file_citation", "index": end, "file_id": citation.document_id}
            shown["filename"] = citation.document_name
        shown |= {"start_index": start, "end_index": end, FIELD: more_of(citation)}
        item.annotations.append(shown)
        number = len(item.annotations) - 1
        kind = "response.output_text.annotation.added"
        return [self._event(kind, **item.place, annotation_index=number, annotation=shown)]

    def _close(self) -> list[tuple[str, bytes]]:
        """End the text that is being written, if any."""
        item, self._open = self._open, None
        if item is None:
            return []
        shown = self._output[item.index] = item.to_json("completed")
        more: Json = {"logprobs": []} if item.kind == "message" else {}
        part = "response.reasoning_summary_part" if item.summarized else "response.content_part"
        return [
            self._event(f"{self._text_event(item)}.done", **item.place, text=item.text, **more),
            self._event(f"{part}.done", **item.place, part=item.part()),
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

    def _end(self, filled: str | None = None) -> list[tuple[str, bytes]]:
        """End the response, with the filled-in form as its text if there is one."""
        events = [*self._close(), *(self._write("message", filled) if filled else ()), *self._close()]
        response = self.response()
        return [*events, self._event(f"response.{response['status']}", response=response)]

    def _event(self, kind: str, **fields: object) -> tuple[str, bytes]:
        number, self._number = self._number, self._number + 1
        return kind, orjson.dumps({"type": kind, "sequence_number": number, **fields})


def response_id(turn_id: str, part: int = 0) -> str:
    """Return the id of a turn's response. Each pause for the client's functions begins another part."""
    return f"resp_{suffix_of(turn_id)}" + (f"_{part}" if part else "")


def turn_of(ident: str) -> str:
    """Return the turn id of a response."""
    return f"turn_{ident.removeprefix('resp_').partition('_')[0]}"


def part_of(ident: str) -> int:
    """Return the number of the part that is a response, counted from 0."""
    number = ident.removeprefix("resp_").partition("_")[2]
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 6 else 0


def _tool(function: ClientFunction) -> Json:
    return {
        "type": "function",
        "name": function.name,
        "description": function.description,
        "parameters": dict(function.parameters),
        "strict": False,
    }


def _choice(functions: ClientFunctions) -> object:
    if functions.choice in ("", ANY_FUNCTION):
        return functions.choice or "auto"
    return {"type": "function", "name": functions.choice}


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


def _error(failure: AnswerFailure) -> Json:
    """Return a failure. ``type`` holds this server's code, because ``code`` is limited to OpenAI's list."""
    code = "rate_limit_exceeded" if failure.code == "RATE_LIMITED" else "server_error"
    return {"code": code, "message": failure.message, "type": failure.code, FIELD: {"retryable": failure.retryable}}


def _usage(answer: OpenAiAnswer) -> Json:
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
