"""The events of a turn as one value that a user interface can render.

`TurnView.add` applies one event of the native dialect. The class opens no connection, so it also serves events that
were stored or that came as server-sent events.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

Event = Mapping[str, Any]

TurnStatus = Literal["running", "waiting", "done", "error", "interrupted"]
CallStatus = Literal["writing", "running", "ok", "error", "denied", "interrupted"]

ENDS = frozenset({"done", "error", "interrupted"})
"""The types of the event that ends a turn."""


@dataclass
class Citation:
    """A checked citation. ``start`` and ``end`` are offsets in the text of its `Text`."""

    number: int
    start: int
    end: int
    reference: dict[str, Any]
    """``documentId``, ``documentName``, ``chunkId``, ``citedText``, ``page`` and others, as the server sent them."""


@dataclass
class Text:
    """A piece of the answer. ``at`` is its offset in the text of its iteration."""

    iteration: int
    text: str
    at: int = 0
    continues: bool = False
    """Whether the text continues the last iteration's without a break."""
    citations: list[Citation] = field(default_factory=list)


@dataclass
class Thinking:
    """A piece of the model's reasoning."""

    iteration: int
    text: str


@dataclass
class Call:
    """A tool call."""

    id: str
    name: str
    server: str
    iteration: int
    status: CallStatus = "writing"
    written: str = ""
    """The JSON of the arguments as far as the model has written it."""
    arguments: dict[str, Any] | None = None
    progress: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    """``content``, ``structured``, ``truncated`` and ``ref``."""
    duration_ms: int | None = None
    wait_ids: list[str] = field(default_factory=list)


@dataclass
class Retrieval:
    """The hits of a search or a recall. ``source`` is ``documents`` or ``memory``."""

    id: str
    source: str
    query: str
    hits: list[dict[str, Any]]


@dataclass
class Notice:
    """A message of the server to the user."""

    code: str
    message: str


@dataclass
class Compaction:
    """A summary that replaces earlier messages for the model. People still see the messages."""

    messages: int
    summary_tokens: int


@dataclass
class WaitMark:
    """The place of a wait that belongs to no tool call. `TurnView.waits` has the wait."""

    id: str


Item = Text | Thinking | Call | Retrieval | Notice | Compaction | WaitMark


@dataclass
class Lane:
    """The work of one delegate."""

    agent: str
    parent_tool_call_id: str | None
    items: list[Item] = field(default_factory=list)


@dataclass
class _Iteration:
    number: int = 0
    length: int = 0
    continues: bool = False


@dataclass
class TurnView:
    """A turn as far as its events are known."""

    turn_id: str | None = None
    seq: int = 0
    """The number of the last event."""
    status: TurnStatus = "running"
    content: str | None = None
    """The user's message."""
    user_message_id: str | None = None
    message_id: str | None = None
    model: str | None = None
    items: list[Item] = field(default_factory=list)
    """Text, calls and the rest, in order."""
    lanes: dict[str, Lane] = field(default_factory=dict)
    """The delegates, by their path."""
    waits: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Each wait by its id. ``state`` is ``open`` or the action that ended it."""
    references: list[dict[str, Any]] = field(default_factory=list)
    """The cited passages, by number."""
    retrying: dict[str, Any] | None = None
    """``attempt``, ``inMs`` and ``reason`` while the server retries a model call."""
    title: str | None = None
    usage: dict[str, Any] | None = None
    stop_reason: str | None = None
    error: dict[str, Any] | None = None
    """``code``, ``message`` and ``retryable`` of a failed turn."""
    _iterations: dict[str, _Iteration] = field(default_factory=dict, repr=False)

    @property
    def ended(self) -> bool:
        """Whether the turn has its terminal event."""
        return self.status in ENDS

    @property
    def text(self) -> str:
        """The answer as the server stores it: iterations apart by an empty line, continued ones joined."""
        said = ""
        last: int | None = None
        for item in self.items:
            if isinstance(item, Text):
                if said and item.iteration != last and not item.continues:
                    said += "\n\n"
                said += item.text
                last = item.iteration
        return said

    def add(self, event: Event) -> bool:
        """Apply one event. Returns False if the view has it already. Unknown types only advance ``seq``."""
        seq = event.get("seq")
        if seq is not None:
            if seq <= self.seq:
                return False
            self.seq = seq
            if event["type"] != "retrying":
                self.retrying = None
        self.turn_id = event.get("turnId", self.turn_id)
        change = self._CHANGES.get(event["type"])
        if change is not None:
            change(self, event)
        return True

    def _items(self, event: Event) -> list[Item]:
        agent = event.get("agent")
        if not agent:
            return self.items
        lane = self.lanes.setdefault(agent, Lane(agent, event.get("parentToolCallId")))
        return lane.items

    def _iteration(self, event: Event) -> _Iteration:
        return self._iterations.setdefault(event.get("agent") or "", _Iteration())

    def _call(self, event: Event) -> Call | None:
        calls = (item for item in reversed(self._items(event)) if isinstance(item, Call))
        return next((call for call in calls if call.id == event.get("toolCallId")), None)

    def _turn_started(self, event: Event) -> None:
        self.user_message_id = event["userMessageId"]
        self.message_id = event["messageId"]
        self.content = event["content"]
        self.model = event["model"]

    def _iteration_start(self, event: Event) -> None:
        self._iterations[event.get("agent") or ""] = _Iteration(event["iteration"], 0, event.get("continues", False))

    def _add_text(self, event: Event) -> None:
        items, iteration, text = self._items(event), self._iteration(event), event["text"]
        if items and isinstance(items[-1], Text) and items[-1].iteration == iteration.number:
            items[-1].text += text
        else:
            continues = iteration.continues and iteration.length == 0
            items.append(Text(iteration.number, text, iteration.length, continues))
        iteration.length += len(text)

    def _add_thinking(self, event: Event) -> None:
        items, iteration = self._items(event), self._iteration(event)
        if items and isinstance(items[-1], Thinking) and items[-1].iteration == iteration.number:
            items[-1].text += event["text"]
        else:
            items.append(Thinking(iteration.number, event["text"]))

    def _start_call(self, event: Event) -> None:
        number = self._iteration(event).number
        self._items(event).append(Call(event["toolCallId"], event["toolName"], event["server"], number))

    def _write_arguments(self, event: Event) -> None:
        if call := self._call(event):
            call.written += event["delta"]

    def _run_call(self, event: Event) -> None:
        if self._call(event) is None:
            self._start_call(event)
        call = self._call(event)
        assert call is not None
        call.name, call.server, call.arguments = event["toolName"], event["server"], event["arguments"]
        call.status = "running"

    def _progress(self, event: Event) -> None:
        if call := self._call(event):
            call.progress = {name: event.get(name) for name in ("progress", "total", "message")}

    def _finish_call(self, event: Event) -> None:
        if call := self._call(event):
            call.status, call.duration_ms, call.progress = event["status"], event["durationMs"], None
            call.result = {name: event.get(name) for name in ("content", "structured", "truncated", "ref")}

    def _add_retrieval(self, event: Event) -> None:
        found = Retrieval(event["retrievalId"], event["source"], event["query"], event["hits"])
        self._items(event).append(found)

    def _cite(self, event: Event) -> None:
        reference = {name: value for name, value in event.items() if name not in _ENVELOPE}
        for item in reversed(self._items(event)):
            if isinstance(item, Text) and item.iteration == event["iteration"] and item.at < event["textTo"]:
                start, end = max(0, event["textFrom"] - item.at), event["textTo"] - item.at
                item.citations.append(Citation(event["number"], start, end, reference))
                break
        if all(known["number"] != event["number"] for known in self.references):
            self.references = sorted([*self.references, reference], key=lambda known: int(known["number"]))

    def _reset_step(self, event: Event) -> None:
        """Drop what the server will send again: an iteration's text, thinking, citations and started calls."""
        items = self._items(event)
        items[:] = [item for item in items if not _is_dropped(item, event["iteration"])]
        before = self._iteration(event)
        self._iterations[event.get("agent") or ""] = _Iteration(event["iteration"], 0, before.continues)
        everything = [*self.items, *(item for lane in self.lanes.values() for item in lane.items)]
        cited = {citation.number for item in everything if isinstance(item, Text) for citation in item.citations}
        self.references = [reference for reference in self.references if reference["number"] in cited]

    def _retry(self, event: Event) -> None:
        self.retrying = {name: event[name] for name in ("attempt", "inMs", "reason")}

    def _notice(self, event: Event) -> None:
        self._items(event).append(Notice(event["code"], event["message"]))

    def _compact(self, event: Event) -> None:
        self._items(event).append(Compaction(event["messages"], event["summaryTokens"]))

    def _title(self, event: Event) -> None:
        self.title = event["title"]

    def _open_wait(self, event: Event) -> None:
        wait = {name: value for name, value in event.items() if name not in _ENVELOPE}
        self.waits[event["waitId"]] = {**wait, "state": "open"}
        if call := self._call(event):
            call.wait_ids.append(event["waitId"])
        else:
            self._items(event).append(WaitMark(event["waitId"]))
        self.status = "waiting"

    def _close_wait(self, event: Event) -> None:
        if wait := self.waits.get(event["waitId"]):
            wait.update(state=event["action"], by=event.get("by", ""))
        if all(wait["state"] != "open" for wait in self.waits.values()):
            self.status = "running"

    def _end(self, event: Event) -> None:
        self.status = event["type"]
        self.message_id = event.get("messageId") or self.message_id
        for items in (self.items, *(lane.items for lane in self.lanes.values())):
            for item in items:
                if isinstance(item, Call) and item.status in ("writing", "running"):
                    item.status = "interrupted"
        if event["type"] == "error":
            self.error = {
                "code": event["code"],
                "message": event["message"],
                "retryable": event.get("retryable", False),
            }
        elif event["type"] == "done":
            self.usage, self.stop_reason = event.get("usage"), event.get("stopReason")
            self.references = event.get("references", self.references)
            self.model = event.get("model") or self.model

    _CHANGES: ClassVar[dict[str, Callable[["TurnView", Event], None]]] = {
        "turn_started": _turn_started,
        "iteration_start": _iteration_start,
        "text": _add_text,
        "thinking": _add_thinking,
        "tool_call_started": _start_call,
        "tool_arguments": _write_arguments,
        "tool_call": _run_call,
        "tool_progress": _progress,
        "tool_result": _finish_call,
        "retrieval": _add_retrieval,
        "source_reference": _cite,
        "step_reset": _reset_step,
        "retrying": _retry,
        "notice": _notice,
        "compacted": _compact,
        "title": _title,
        "input_required": _open_wait,
        "input_answered": _close_wait,
        "done": _end,
        "error": _end,
        "interrupted": _end,
    }


_ENVELOPE = frozenset({"type", "seq", "ts", "turnId", "conversationId"})


def _is_dropped(item: Item, iteration: int) -> bool:
    if isinstance(item, Text | Thinking):
        return item.iteration == iteration
    return isinstance(item, Call) and item.iteration == iteration and item.status == "writing"
