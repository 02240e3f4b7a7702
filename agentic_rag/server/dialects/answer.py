"""Shared parts of dialects that show one answer text and cannot retract any of it.

Assembles the text of an answer as people read it, and ends a stream early if necessary. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from agentic_rag.base.errors import AgenticRagError, GenerationAborted, ServerStopping, StepTakenBack
from agentic_rag.base.events import AgentEvent
from agentic_rag.base.json_form import Json, to_text
from agentic_rag.server.dialects.base import Headers
from agentic_rag.server.dialects.native import sse_id

BREAK: Final = "\n\n"
"""Separates the texts of two steps, as in stored messages."""


ANSWER_CONTINUES: Final = (
    "The model rewrote a part of its answer that was sent already: the answer continues; reload to read it."
)
"""Message to clients that cannot retract text. Sending the user's message again would only repeat the running turn."""

_END_OF_TEXT: Final = frozenset({"tool_call", "done"})
"""Events after which a step has no more text."""


def is_farewell(event: AgentEvent) -> bool:
    """Return whether an event ends this stream although the turn continues."""
    return event.seq == 0 and event.type == "notice" and event.fields().get("code") == ServerStopping.code


@dataclass(frozen=True, slots=True)
class Item:
    """One output of a dialect: its name, and JSON or plain text."""

    name: str
    data: Json | str = field(default_factory=dict)


class AnswerText:
    """The text of the main agent's steps, separated by blank lines like a stored message.

    After `reset_step` the step is written a second time. Text that the client already has is not repeated: only new
    text is returned, as long as both versions begin in the same way.
    """

    __slots__ = ("_at", "_begins", "_blank", "_continues", "_earlier", "_held", "_shown", "diverged")

    def __init__(self, *, has_text: bool = False) -> None:
        """Create the text. ``has_text`` means that earlier steps have text."""
        self._earlier = has_text
        self._begins = False
        self._continues = True
        self._blank = ""
        self._shown: list[str] = []
        self._held = ""
        self._at = 0
        self.diverged = False
        """Whether the second version of the running step differs from the text that the client has."""

    @property
    def in_step(self) -> bool:
        """Whether the client has text of the running step."""
        return bool(self._shown)

    @property
    def behind(self) -> bool:
        """Whether the client has text of the running step that its second version has not repeated yet."""
        return self._at < len(self._held)

    def begin_step(self, *, continues: bool) -> None:
        """Begin a step. ``continues`` means that its text continues the step before, which was cut off."""
        self._earlier = self._earlier or self.in_step
        self._continues = continues
        self._shown = []
        self._restart()

    def reset_step(self) -> None:
        """Expect the running step a second time."""
        self._restart()

    def _restart(self) -> None:
        self._begins = self._earlier and not self._continues
        self._blank = ""
        self._held, self._at, self.diverged = "".join(self._shown), 0, False

    def add(self, text: str) -> str:
        """Return the new text for the client. A step with only white space adds nothing."""
        if not text:
            return ""
        if self._begins:
            self._blank += text
            if not self._blank.strip():
                return ""
            text, self._begins = f"{BREAK}{self._blank}", False
        return self.add_mark(text)

    def add_mark(self, text: str) -> str:
        """Return the new text for the client, for text that is always shown, such as the name at a citation."""
        if self.behind:
            if self._held.startswith(text, self._at):  # the client has all of this piece
                self._at += len(text)
                return ""
            rest = self._held[self._at :]
            if not text.startswith(rest):  # neither a repetition nor a continuation of it
                self.diverged = True
                return ""
            text, self._at = text[len(rest) :], len(self._held)
        if text:
            self._shown.append(text)
        return text


class AnswerDialect:
    """An encoder that turns events into a list of items, mostly one per event of the main agent.

    Subclasses implement `say` for events of the main agent, and may override `of_delegate`, `error`, `sse_item` and
    `frame`.
    """

    name = ""
    headers: Headers = ()
    needs_start = True

    def __init__(self) -> None:
        self.ended = False
        self._over = False
        self._step = 0
        self._text = AnswerText()

    def sse(self, event: AgentEvent) -> bytes:
        """Return the event's items as server-sent events. The last one carries the id, so that no part is skipped."""
        items = self._items(event)
        if not items:
            return b""
        *others, last = items
        first = "".join(self.sse_item(event, item) for item in others)
        return first.encode() + sse_id(event) + self.sse_item(event, last).encode()

    def frames(self, event: AgentEvent) -> tuple[bytes, ...]:
        """Return a WebSocket message for each of the event's items."""
        return tuple(to_text(self.frame(event, item)).encode() for item in self._items(event))

    # Methods that subclasses override

    def say(self, kind: str, fields: Json) -> Sequence[Item]:
        """Return the items for an event of the main agent, by its type and fields. Errors go to `error`."""
        return ()

    def sse_item(self, event: AgentEvent, item: Item) -> str:
        """Return an item as a server-sent event: its name, and its data with the name as ``type``."""
        assert not isinstance(item.data, str)
        return write_sse(item.name, to_text({"type": item.name, **item.data}))

    def frame(self, event: AgentEvent, item: Item) -> Json:
        """Return an item as the JSON of a WebSocket message, with the ids of conversation and turn."""
        data = {"content": item.data} if isinstance(item.data, str) else item.data
        return {"type": item.name, "conversationId": event.fields()["conversationId"], "turnId": event.turn_id, **data}

    def error(self, code: str, message: str, *, retryable: bool) -> Sequence[Item]:
        """Return the items that end the stream with an error."""
        return [Item("error", {"error": message, "code": code, "retryable": retryable})]

    def of_delegate(self, kind: str, fields: Json) -> Sequence[Item]:
        """Return the items for an event of a delegate."""
        return ()

    # The stream

    def _items(self, event: AgentEvent) -> Sequence[Item]:
        if self.ended or self._over:
            return ()
        fields = event.fields()
        if fields.get("agent"):
            return self.of_delegate(event.type, fields)
        self._over = event.terminal
        is_next = event.type == "iteration_start" and fields["iteration"] != self._step
        if self._text.behind and (is_next or event.type in _END_OF_TEXT):
            return self._take_back()  # the second version of the step is shorter than the first
        match event.type:
            case "iteration_start" if is_next:
                self._step = fields["iteration"]
                self._text.begin_step(continues=fields["continues"])
            case "step_reset" if fields["iteration"] == self._step:  # otherwise that step has not begun
                self._text.reset_step()
            case "notice" if fields["code"] == ServerStopping.code:
                self.ended = True  # readers of the native dialect reconnect instead
                return self._failure(ServerStopping())
            case "error":
                return self.error(fields["code"], fields["message"], retryable=fields["retryable"])
        items = self.say(event.type, fields)
        return self._take_back() if self._text.diverged else items

    def _take_back(self) -> Sequence[Item]:
        """End the stream, because the client has text that is no longer part of the answer."""
        self.ended = True
        return self.error(StepTakenBack.code, ANSWER_CONTINUES, retryable=False)

    def abort(self) -> Sequence[Item]:
        """Return the end of a stream whose turn a user has stopped, for dialects without a word for it."""
        return self._failure(GenerationAborted())

    def _failure(self, error: AgenticRagError) -> Sequence[Item]:
        return self.error(error.code, str(error), retryable=error.retryable)


def write_sse(name: str, data: str) -> str:
    """Return a server-sent event. Each line of its data becomes a ``data:`` field."""
    lines = data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "".join([f"event: {name}\n" if name else "", *(f"data: {line}\n" for line in lines), "\n"])


def progress_text(fields: Json) -> str:
    """Return the progress text of an event; empty if there is none."""
    match fields["type"]:
        case "iteration_start" if not fields.get("agent"):
            return f"Step {fields['iteration']}"
        case "tool_call":
            return f"Calling {fields['toolName']}"
        case "retrieval":
            return f"{len(fields['hits'])} found for {fields['query']!r}"
        case "retrying":
            return f"The model is asked again: {fields['reason']}"
    return ""
