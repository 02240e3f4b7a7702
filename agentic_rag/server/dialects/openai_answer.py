"""Shared parts of OpenAI's two formats: a growing answer, its end, and its errors in OpenAI's terms.

Builds the text of an answer (as `agentic_rag.conversations.shown_messages` shows it in the end), the positions of its
citations, its tool calls and its usage. Pure: it takes the events of one turn. Knows neither format.
"""

import dataclasses
import re
from calendar import timegm
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agentic_rag.base.errors import AgenticRagError, AnswerNotInForm, GenerationAborted
from agentic_rag.base.json_form import Json
from agentic_rag.server.dialects.answer import BREAK, AnswerText

FIELD: Final = "agentic_rag"
"""The extra field for data that these formats have no place for."""

PAUSED: Final = "tool_calls"
"""The reason for the end of an answer that asks for results of the client's functions."""

_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)")


@dataclass(frozen=True, slots=True)
class AnswerFailure:
    """The reason for an incomplete answer."""

    code: str
    message: str
    retryable: bool


def failure_of(error: AgenticRagError) -> AnswerFailure:
    """Return an error as the failure of an answer."""
    return AnswerFailure(error.code, str(error), error.retryable)


@dataclass(frozen=True, slots=True)
class AnswerCitation:
    """A verified citation: a passage supports the characters ``start`` to ``end`` of the whole answer.

    ``source`` holds the fields of its ``source_reference`` event.
    """

    start: int
    end: int
    source: Mapping[str, Any]

    @property
    def document_id(self) -> str:
        return str(self.source["documentId"])

    @property
    def document_name(self) -> str:
        return str(self.source["documentName"])

    @property
    def chunk_id(self) -> str:
        return str(self.source["chunkId"])

    def address(self, passages: str) -> str:
        """Return the address of the passage. ``passages`` is the base address of the domain's passages."""
        return f"{passages}/{self.chunk_id}" if passages else f"urn:agentic-rag:passage:{self.chunk_id}"


@dataclass(slots=True)
class CalledTool:
    """A tool call. ``agent`` is the path of the delegate that made it, empty for the main agent."""

    fields: Mapping[str, Any]
    status: str = "running"
    content: str = ""

    @property
    def id(self) -> str:
        return str(self.fields["toolCallId"])

    @property
    def agent(self) -> str:
        return str(self.fields.get("agent") or "")

    def to_json(self) -> Json:
        """Return the JSON form."""
        names = ("toolCallId", "toolName", "server", "arguments", "agent")
        return {name: self.fields[name] for name in names if self.fields.get(name)} | {"status": self.status}


@dataclass(slots=True)
class OpenAiAnswer:
    """One turn as a client of these formats sees it. `take` gets the fields of each event, in order.

    Of delegates only the tool calls count: their text is material for the main agent.
    """

    conversation_id: str = ""
    turn_id: str = ""
    message_id: str = ""
    model: str = ""
    created: int = 0
    """Seconds since 1970."""
    ended: int = 0
    """Seconds since 1970, once the answer is over."""
    length: int = 0
    """Characters of the text so far."""
    thinking: str = ""
    citations: list[AnswerCitation] = field(default_factory=list)
    calls: dict[str, CalledTool] = field(default_factory=dict)
    references: list[Json] = field(default_factory=list)
    retrieval_ids: list[str] = field(default_factory=list)
    usage: Mapping[str, int] = field(default_factory=dict)
    stop_reason: str = ""
    failure: AnswerFailure | None = None
    over: bool = False
    _spent: Mapping[str, int] = field(default_factory=dict)
    """The usage of earlier parts of the turn."""
    _pieces: list[str] = field(default_factory=list)
    _step: "_StepStart" = field(default_factory=lambda: _StepStart())
    _text: AnswerText = field(default_factory=AnswerText)

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def sent_in_step(self) -> bool:
        """Whether the current step has sent content that a reset would have to retract."""
        return len(self._pieces) > self._step.pieces or len(self.thinking) > self._step.thinking

    def take(self, fields: Json) -> str:
        """Process an event. Returns the text that was added to the answer."""
        match fields["type"]:
            case "tool_call":
                self.calls[fields["toolCallId"]] = CalledTool(fields)
            case "tool_result" if fields["toolCallId"] in self.calls:
                call = self.calls[fields["toolCallId"]]
                call.status, call.content = fields["status"], fields["content"]
            case "done" | "error" | "interrupted":
                self._end(fields)
            case _ if not fields.get("agent"):
                return self._take_own(fields)
        return ""

    def _take_own(self, fields: Json) -> str:
        match fields["type"]:
            case "turn_started":
                self.conversation_id, self.turn_id = fields["conversationId"], fields["turnId"]
                self.message_id, self.model = fields["messageId"], fields["model"]
                self.created = seconds_of(str(fields["ts"]))
            case "iteration_start":
                self._begin_step(continues=bool(fields.get("continues")))
            case "text":
                return self._grow(fields["text"])
            case "thinking":
                self.thinking += fields["text"]
            case "source_reference":
                begun_at = self._step.begun_at
                self.citations.append(
                    AnswerCitation(begun_at + fields["textFrom"], begun_at + fields["textTo"], fields)
                )
            case "step_reset":
                self._forget_step()
        return ""

    def _begin_step(self, *, continues: bool) -> None:
        self._step = _StepStart(continues, self.length, len(self._pieces), len(self.citations), len(self.thinking))
        self._text.begin_step(continues=continues)

    def _grow(self, text: str) -> str:
        first = not self._text.in_step
        grown = self._text.add(text)
        if not grown:
            return ""
        if first and len(grown) > len(text):  # includes the break and the held-back white space
            self._step.begun_at += len(BREAK)
        self._pieces.append(grown)
        self.length += len(grown)
        return grown

    def _forget_step(self) -> None:
        step = self._step
        del self._pieces[step.pieces :]
        del self.citations[step.citations :]
        self.length = sum(map(len, self._pieces))
        self.thinking = self.thinking[: step.thinking]
        # A new one: `reset_step` would leave out the text that it has returned before, which is deleted here.
        self._text = AnswerText(has_text=bool(self.length))
        self._begin_step(continues=step.continues)

    def _end(self, fields: Json) -> None:
        self.ended = seconds_of(str(fields["ts"]))
        match fields["type"]:
            case "done":
                self.over = True
                self.usage, self.stop_reason = self._own_usage(fields["usage"]), fields["stopReason"]
                self.references, self.retrieval_ids = list(fields["references"]), list(fields["retrievalIds"])
            case "error":
                self.fail(AnswerFailure(fields["code"], fields["message"], bool(fields["retryable"])))
            case _:
                self.fail(failure_of(GenerationAborted()))

    def _own_usage(self, whole: Mapping[str, int]) -> Mapping[str, int]:
        return {name: count - self._spent.get(name, 0) for name, count in whole.items()}

    def fail(self, failure: AnswerFailure) -> None:
        """End the answer with the encoder's own failure."""
        self.failure, self.over = failure, True

    def pause(self, ts: str, spent: Mapping[str, int]) -> None:
        """End the answer where the turn waits for results of the client's functions.

        ``spent``: the usage of the turn so far, earlier parts included.
        """
        self.over, self.stop_reason, self.ended = True, PAUSED, seconds_of(ts)
        self.usage = self._own_usage(spent)

    def fill_form(self, filled: str | None) -> None:
        """Replace the text of an ended answer by the form that the client wants; None: the model did not fill it in."""
        if self.failure is not None:
            return
        if filled is None:
            self.fail(failure_of(AnswerNotInForm()))
            return
        self._pieces, self.length, self.citations = [filled], len(filled), []
        # The model fills a form in by a call, at which the turn pauses. For the client the answer is complete.
        if self.stop_reason == PAUSED:
            self.stop_reason = "end_turn"

    def cut(self, stops: Sequence[str]) -> None:
        """Cut the text of an ended answer before the first of these texts, with the citations after that."""
        places = [place for stop in stops if (place := self.text.find(stop)) >= 0]
        if places:
            self._pieces = [self.text[: min(places)]]
            self.length = min(places)
            self.citations = [citation for citation in self.citations if citation.end <= self.length]

    def begin_part(self, ts: str, spent: Mapping[str, int]) -> None:
        """Forget the part of the turn before a pause, whose answer the client has, and its usage ``spent``."""
        fresh = OpenAiAnswer(self.conversation_id, self.turn_id, self.message_id, self.model, seconds_of(ts))
        fresh._spent = spent
        for member in dataclasses.fields(self):  # in place, because the encoders hold this object
            setattr(self, member.name, getattr(fresh, member.name))

    def more(self) -> Json:
        """Return the data that these formats have no place for."""
        return {
            "conversationId": self.conversation_id,
            "turnId": self.turn_id,
            "messageId": self.message_id,
            "model": self.model,
            "references": self.references,
            "toolCalls": [call.to_json() for call in self.calls.values()],
            "retrievalIds": self.retrieval_ids,
            "stopReason": self.stop_reason,
        }


@dataclass(slots=True)
class _StepStart:
    """The start of the current step in an `OpenAiAnswer`."""

    continues: bool = False
    begun_at: int = 0
    """The index of its first character."""
    pieces: int = 0
    citations: int = 0
    thinking: int = 0


class StopCutter:
    """Cuts a growing text before the first of some texts. Text that may begin one of them is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self._cut = False

    def add(self, text: str) -> str:
        """Add text and return the text that can be sent now."""
        if not self._stops or self._cut:
            return "" if self._cut else text
        pending = self._held + text
        places = [place for stop in self._stops if (place := pending.find(stop)) >= 0]
        if places:
            self._cut, self._held = True, ""
            return pending[: min(places)]
        # The longest end of the text that may be the beginning of a stop waits for the next piece.
        most = max(map(len, self._stops)) - 1
        tail_size = next(
            (
                size
                for size in range(min(most, len(pending)), 0, -1)
                if any(s.startswith(pending[-size:]) for s in self._stops)
            ),
            0,
        )
        self._held = pending[len(pending) - tail_size :]
        return pending[: len(pending) - tail_size]

    def rest(self) -> str:
        """Return the text that is held back, after the end of the text."""
        return self._held


def seconds_of(timestamp: str) -> int:
    """Return an event's time (``YYYY-MM-DDThh:mm:ss…Z``) as seconds since 1970; 0 if it is invalid."""
    match = _TIME.match(timestamp)
    return timegm(tuple(map(int, match.groups()))) if match else 0


def suffix_of(turn_id: str) -> str:
    """Return a turn's id without its prefix, for the ids of these formats."""
    return turn_id.removeprefix("turn_")


def error_type(status: int) -> str:
    """Return OpenAI's error type for an HTTP status."""
    match status:
        case 401:
            return "authentication_error"
        case 403:
            return "permission_error"
        case 429:
            return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
