"""The UI message stream, version 1, of Vercel's AI SDK: a turn as one message made of parts.

A step is a step, and ``reset-step`` retracts its content. Tools are dynamic and run on the server
(``providerExecuted``), so that no client waits to run one. A cited passage becomes a source once, and a citation of the
text that it supports. Events of a delegate are transient ``data-delegate-event`` parts, because its text is not part of
the answer. All other events are ``data-…`` parts under their own names; pure progress is transient, too.

A wait for a person is a lasting ``data-input-required`` part. An approval of the answer's own call is also requested in
the SDK's form. Once nothing else of the step is running, the stream ends. The client's answer begins another stream,
which continues the same message.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from agentic_rag.base.events import AgentEvent, Answerer, ToolStatus, WaitAction, WaitKind
from agentic_rag.base.json_form import Json
from agentic_rag.server.dialects.base import Headers, KnownWaits

_ENVELOPE = frozenset({"type", "conversationId", "turnId", "seq", "ts"})
_LASTING: Final = frozenset({"retrieval"})
"""Events whose data parts are stored in the message; others are transient."""
_REASONS: Final = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "refusal": "content-filter"}
_MEDIA_TYPES: Final = {
    "pdf": "application/pdf",
    "md": "text/markdown",
    "txt": "text/plain",
    "csv": "text/csv",
    "html": "text/html",
    "htm": "text/html",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
}
_OF_WAITS: Final = frozenset({"input_required", "input_answered"})
_RESTING: Final = frozenset({"input_required", "tool_result"})
"""Events after which only approvals may be left."""
_ASTRAL = re.compile("[\U00010000-\U0010ffff]")
"""Characters that JavaScript counts as two."""
NOT_RUN = "This call was not run."
DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class _MessageStep:
    """The open parts of the answer's running step. ``text_from`` is the start of the open text part in its text."""

    iteration: int = 0
    begun: bool = False
    text: str = ""
    text_from: int = 0
    text_id: str | None = None
    reasoning_id: str | None = None
    parts: int = 0
    citations: list[Json] = field(default_factory=list)
    calls: dict[str, None] = field(default_factory=dict)
    """Calls that have a part but no result."""
    sources: list[int] = field(default_factory=list)


class UiMessage:
    """The encoder of one turn. ``waits`` holds the known waits of the turn."""

    name = "ui-message"
    headers: Headers = ((b"x-vercel-ai-ui-message-stream", b"v1"),)
    needs_start = True

    def __init__(self, waits: KnownWaits | None = None) -> None:
        self.ended = False
        self._waits = waits or KnownWaits()
        self._silent = bool(self._waits.answered)
        self._suspended = False
        self._asked: dict[str, Json] = {}
        self._approvals: dict[str, str] = {}
        self._declined: set[str] = set()
        self._begun = False
        self._about: Json = {}
        self._step = _MessageStep()
        self._sources: set[int] = set()
        self._delegates: dict[str, str] = {}
        self._out: list[Json] = []

    def sse(self, event: AgentEvent) -> bytes:
        """Return the chunks as server-sent events, and ``[DONE]`` after the last one."""
        data = b"".join(b"data: %b\n\n" % orjson.dumps(chunk) for chunk in self._say(event))
        return data + DONE if event.terminal or (data and self.ended) else data

    def frames(self, event: AgentEvent) -> tuple[bytes, ...]:
        """Return the chunks."""
        return tuple(orjson.dumps(chunk) for chunk in self._say(event))

    def _say(self, event: AgentEvent) -> list[Json]:
        self._out = []
        fields = event.fields()
        if self._silent and event.type == "input_answered" and fields["waitId"] in self._waits.answered:
            self._silent, self._suspended = False, True  # answered before the rest of the step had ended
        silent = self._silent
        if event.type == "turn_started" or not self._begun:
            self._begin(fields)
        elif self._suspended:
            self._suspended = self.ended = False
            self._emit("start", **self._about)
        if event.type == "turn_started":
            pass
        elif fields.get("agent"):
            self._tell_of_delegate(fields)
        elif event.terminal:
            self._end(event.type, fields)
        elif event.type not in _OF_WAITS:
            self._take(event.type, fields)
        if event.type in _OF_WAITS:
            self._take_wait(event.type, fields)
        if event.type in _RESTING:
            self._rest()
        return [] if silent else self._out

    def _take(self, kind: str, fields: Json) -> None:
        match kind:
            case "text":
                self._write(fields["text"])
            case "thinking":
                self._think(fields["text"])
            case "iteration_start":
                self._begin_step(fields["iteration"])
            case "tool_call_started":
                self._begin_call(fields)
            case "tool_arguments":
                if fields["toolCallId"] in self._step.calls:
                    self._emit("tool-input-delta", toolCallId=fields["toolCallId"], inputTextDelta=fields["delta"])
            case "tool_call":
                self._call(fields, fields["arguments"])
            case "tool_result":
                self._answer(fields)
            case "source_reference":
                self._cite(fields)
            case "step_reset":
                self._reset()
            case "resumed":
                pass  # never needed: a stream is always read from its start
            case _:
                self._tell(kind, fields)

    def _emit(self, kind: str, **fields: object) -> None:
        self._out.append({"type": kind, **fields})

    def _tell(self, kind: str, fields: Json) -> None:
        data = {name: value for name, value in fields.items() if name not in _ENVELOPE}
        lasting: Json = {"id": fields["retrievalId"]} if kind in _LASTING else {"transient": True}
        self._emit(f"data-{kind.replace('_', '-')}", data=data, **lasting)

    # The message

    def _begin(self, fields: Json) -> None:
        self._begun = True
        names = ("conversationId", "turnId", "userMessageId", "messageId", "model")
        metadata = {name: fields[name] for name in names if name in fields}
        named = {"messageId": fields["messageId"]} if fields.get("messageId") else {}
        self._about = {**named, "messageMetadata": metadata}
        self._emit("start", **self._about)

    def _end(self, kind: str, fields: Json) -> None:
        for call in list(self._step.calls):
            self._emit("tool-output-error", toolCallId=call, errorText=NOT_RUN, providerExecuted=True, dynamic=True)
        self._close()
        if kind == "done":
            for reference in fields["references"]:
                self._source(reference)
        if self._step.begun:
            self._emit("finish-step")
        members = {name: value for name, value in fields.items() if name not in _ENVELOPE}
        if kind == "done":
            reason = _REASONS.get(fields["stopReason"], "other")
            self._emit("finish", finishReason=reason, messageMetadata=members)
        elif kind == "interrupted":
            self._emit("abort", reason="GENERATION_ABORTED")
            self._emit("finish", finishReason="interrupted", messageMetadata={"interrupted": True})
        else:
            self._emit("message-metadata", messageMetadata={"error": members})
            self._emit("error", errorText=fields["message"], code=fields["code"], retryable=fields["retryable"])
            self._emit("finish", finishReason="error")

    # Steps

    def _begin_step(self, iteration: int) -> None:
        if self._step.begun and self._step.iteration == iteration:
            return  # the step was reset and begins again
        self._close()
        if self._step.begun:
            self._emit("finish-step")
        self._step = _MessageStep(iteration, begun=True)
        self._emit("start-step")

    def _reset(self) -> None:
        """Retract all parts of the step."""
        self._sources -= set(self._step.sources)
        step, self._step = self._step, _MessageStep(self._step.iteration, self._step.begun)
        self._step.parts = step.parts
        if step.begun:
            self._emit("reset-step")

    def _close(self) -> None:
        self._stop_thinking()
        self._stop_writing()

    # Text and thinking

    def _next_id(self, kind: str) -> str:
        self._step.parts += 1
        return f"{kind}-{self._step.iteration}-{self._step.parts}"

    def _write(self, text: str) -> None:
        step = self._step
        if step.text_id is None:
            self._stop_thinking()
            step.text_id, step.text_from = self._next_id("text"), len(step.text)
            self._emit("text-start", id=step.text_id)
        step.text += text
        self._emit("text-delta", id=step.text_id, delta=text)

    def _stop_writing(self) -> None:
        step = self._step
        if step.text_id is None:
            return
        cited = {"citations": step.citations} if step.citations else {}
        self._emit("text-end", id=step.text_id, **cited)
        step.text_id, step.citations = None, []

    def _think(self, text: str) -> None:
        step = self._step
        if step.reasoning_id is None:
            self._stop_writing()
            step.reasoning_id = self._next_id("reasoning")
            self._emit("reasoning-start", id=step.reasoning_id)
        self._emit("reasoning-delta", id=step.reasoning_id, delta=text)

    def _stop_thinking(self) -> None:
        if self._step.reasoning_id is not None:
            self._emit("reasoning-end", id=self._step.reasoning_id)
            self._step.reasoning_id = None

    # Citations

    def _cite(self, fields: Json) -> None:
        """Record a citation of the open text part, and announce its source."""
        step, begin = self._step, fields["textFrom"]
        self._source(fields)
        if step.text_id is None or begin < step.text_from:
            return
        start = _units(step.text, step.text_from, begin)
        length = _units(step.text, begin, fields["textTo"])
        source = {"type": "source", "sourceType": "document", **_source_of(fields, "id")}
        cited = {"source": source, "startIndex": start, "endIndex": start + length, "citedText": fields["citedText"]}
        step.citations.append(cited)

    def _source(self, reference: Mapping[str, object]) -> None:
        """Announce a cited passage, once."""
        number = reference["number"]
        if isinstance(number, int) and number not in self._sources:
            self._sources.add(number)
            self._step.sources.append(number)
            self._emit("source-document", **_source_of(reference, "sourceId"))

    # Tools

    def _begin_call(self, fields: Json) -> None:
        self._close()
        self._step.calls[fields["toolCallId"]] = None
        self._emit("tool-input-start", **_tool(fields))

    def _call(self, fields: Json, arguments: object) -> None:
        self._close()
        self._step.calls[fields["toolCallId"]] = None
        self._emit("tool-input-available", **_tool(fields), input=arguments)

    def _answer(self, fields: Json) -> None:
        call = fields["toolCallId"]
        for path in [path for path, of in self._delegates.items() if of == call]:
            self._delegates.pop(path)
            self._delegate(path, call, fields["status"])
        if call not in self._step.calls:
            self._call(fields, {})
        self._step.calls.pop(call)
        named = ("server", "truncated", "ref", "durationMs", "status")
        ran = {
            "toolCallId": call,
            "providerExecuted": True,
            "dynamic": True,
            "toolMetadata": {name: fields[name] for name in named if name in fields},
        }
        self._approvals.pop(call, None)
        if fields["status"] == ToolStatus.DENIED and call in self._declined:
            self._emit("tool-output-denied", toolCallId=call)
            return
        if fields["status"] != "ok":
            self._emit("tool-output-error", **ran, errorText=fields["content"])
            return
        content, structured = fields["content"], fields.get("structured")
        output = content if structured is None else {"content": content, "structured": structured}
        self._emit("tool-output-available", **ran, output=output)

    # Waits

    def _take_wait(self, kind: str, fields: Json) -> None:
        """Send a wait of any agent, or its end."""
        wait, call = fields["waitId"], fields.get("toolCallId", "")
        data = self._asked.get(wait, {})
        data |= {name: value for name, value in fields.items() if name not in _ENVELOPE}
        self._asked[wait] = data
        self._emit("data-input-required", id=wait, data=data.copy())
        if kind == "input_required":
            own = fields["answerer"] == Answerer.OWNER and not fields.get("agent") and call in self._step.calls
            over = wait in self._waits.ended and wait not in self._waits.answered
            if fields["kind"] == WaitKind.APPROVAL and own and not over:
                self._approvals[call] = wait
                self._emit("tool-approval-request", approvalId=wait, toolCallId=call, reason=fields["message"])
            return
        call_id = data.get("toolCallId", "")
        if self._approvals.pop(call_id, None) == wait or wait in self._waits.answered:
            accepted = fields["action"] == WaitAction.ACCEPT
            if not accepted:
                self._declined.add(call_id)
            self._emit("tool-approval-response", approvalId=wait, approved=accepted)

    def _rest(self) -> None:
        """End the stream if only calls waiting for approval are left: the client's answer begins another stream.

        A stream that continues from such an answer begins here.
        """
        if not self._approvals or self._step.calls.keys() - self._approvals.keys():
            return
        self._close()
        if self._step.begun:
            self._emit("finish-step")
            self._step.begun = False
        self._emit("finish", finishReason="tool-calls")
        self._suspended = True
        answered_calls = {call for call, wait in self._approvals.items() if wait in self._waits.answered}
        if not self._silent:
            self.ended = True
        elif answered_calls:
            self._silent = False
        for call in answered_calls:
            self._approvals.pop(call)

    # Delegates

    def _tell_of_delegate(self, fields: Json) -> None:
        path, call = fields["agent"], fields.get("parentToolCallId", "")
        if path not in self._delegates:
            self._delegates[path] = call
            self._delegate(path, call, "running")
        data = {name: value for name, value in fields.items() if name not in _ENVELOPE or name == "type"}
        self._emit("data-delegate-event", data=data, transient=True)

    def _delegate(self, path: str, call: str, status: str) -> None:
        data = {"agent": path, "toolCallId": call, "status": status}
        self._emit("data-delegate", id=f"{path}:{call}", data=data)


def _units(text: str, start: int, end: int) -> int:
    """Return the number of UTF-16 code units in a range of code points, because JavaScript counts those."""
    return end - start + len(_ASTRAL.findall(text[start:end]))


def _source_of(reference: Mapping[str, object], ident: str) -> Json:
    """Return a cited passage as a source document; ``ident`` names the id field."""
    name = str(reference["documentName"])
    about = (
        "number",
        "documentId",
        "chunkId",
        "page",
        "cells",
        "citedText",
        "score",
        "agent",
        "table",
        "scanned",
        "scannedBy",
        "documentDate",
        "reviewBy",
        "sourceUri",
    )
    return {
        ident: f"{reference['number']}:{reference['chunkId']}",
        "mediaType": _MEDIA_TYPES.get(name.rpartition(".")[2].lower(), "application/octet-stream"),
        "title": name,
        "filename": name,
        "providerMetadata": {"agentic-rag": {key: reference[key] for key in about if key in reference}},
    }


def _tool(fields: Json) -> Json:
    return {
        "toolCallId": fields["toolCallId"],
        "toolName": fields["toolName"],
        "providerExecuted": True,
        "dynamic": True,
        "toolMetadata": {"server": fields["server"]},
    }
