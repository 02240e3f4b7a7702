"""AG-UI 1.0: a turn as a run, its steps as steps, its delegates as subagents.

Translates events, and defines the offsets by which a client resumes in the middle of a run. Every event has the fields
of the official package's models in their order. The tests compare them byte for byte, so the encoder can do without
building a model for each delta. Events without an AG-UI counterpart become ``CUSTOM`` events under their own name.

One event may become several AG-UI events, each with its own offset: ``{turnId}:{seq}.{n}`` for all but the last, which
is ``{turnId}:{seq}``. Clients drop events whose offset they already have.

A turn that waits for a person ends the run with an interrupt, and another run continues it. Open elements are closed at
the interrupt and reopened in the next run under the same ids.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import orjson

from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.events import AgentEvent
from agentic_rag.base.json_form import Json, to_text
from agentic_rag.server.dialects.ag_ui_waits import show_interrupt
from agentic_rag.server.dialects.base import Headers, KnownWaits

PROTOCOL_VERSION = "1.0"
RESET_CODE = "STEP_RESET"
RESET_MESSAGE = "The model's answer broke off and is given again. Run this again with the same runId to get it."
NOT_RUN = "This call was not run."

_ENVELOPE = frozenset({"type", "conversationId", "turnId", "seq", "ts", "agent", "parentToolCallId"})
_RESULT_FIELDS = ("server", "status", "truncated", "ref", "durationMs", "structured")
_OFFSET = re.compile(r"(?P<turn>[^:]{1,200}):(?P<seq>[0-9]{1,15})(\.(?P<part>[0-9]{1,9}))?")

Step = tuple[str, int]
"""A step: the agent's path (empty for the main agent), and the step's number."""


@dataclass(frozen=True, slots=True)
class Offset:
    """The position of a client in a run.

    The client has all events before ``seq``, and ``part`` of ``seq`` (None: all parts).
    """

    turn_id: str
    seq: int
    part: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Offset":
        """Parse an offset that a client received earlier.

        Raises:
            InvalidInput: the text is not an offset.
        """
        match = _OFFSET.fullmatch(text)
        if match is None:
            raise InvalidInput("offset", "the id of an event of this run is expected, or -1 for all of it.")
        part = match["part"]
        return cls(match["turn"], int(match["seq"]), None if part is None else int(part))

    def covers(self, seq: int) -> bool:
        """Return whether the client has everything that an event became."""
        return seq < self.seq or (seq == self.seq and self.part is None)


@dataclass(slots=True)
class _Message:
    """A message of this run. ``text`` holds its streamed pieces, ``calls`` those of its calls' arguments."""

    head: Json
    step: Step
    text: list[str] = field(default_factory=list)
    calls: dict[str, tuple[str, list[str]]] = field(default_factory=dict)

    def to_json(self) -> Json:
        message = dict(self.head)
        call = message.pop("toolCallId", None)
        if self.text or message["role"] != "assistant":
            message["content"] = "".join(self.text)
        if call is not None:
            message["toolCallId"] = call  # last, as the official package writes it
        if self.calls:
            message["toolCalls"] = [
                {"id": call, "type": "function", "function": {"name": name, "arguments": "".join(pieces)}}
                for call, (name, pieces) in self.calls.items()
            ]
        return message


class _RunMessages:
    """The messages that a client has while a run streams: those in its request, and those streamed since.

    AG-UI can retract content only by sending all messages again (``MESSAGES_SNAPSHOT``), so a retracted step needs all
    other messages.
    """

    def __init__(self, history: Sequence[Json]) -> None:
        self._history = history
        self._messages: dict[str, _Message] = {}

    def begin(self, message_id: str, role: str, step: Step, subagent: Json) -> None:
        """Begin or continue a message. ``subagent`` is the field that names a delegate."""
        if message_id not in self._messages:
            self._messages[message_id] = _Message({**subagent, "id": message_id, "role": role}, step)

    def write(self, message_id: str, text: str) -> None:
        """Append to a message's text."""
        self._messages[message_id].text.append(text)

    def call(self, message_id: str, call_id: str, name: str) -> None:
        """Add a tool call to a message."""
        self._messages[message_id].calls[call_id] = (name, [])

    def argue(self, message_id: str, call_id: str, piece: str) -> None:
        """Append to the arguments of a message's call."""
        self._messages[message_id].calls[call_id][1].append(piece)

    def answer(self, message_id: str, call_id: str, content: str, step: Step, subagent: Json) -> None:
        """Add a tool's result."""
        head = {**subagent, "id": message_id, "role": "tool", "toolCallId": call_id}
        self._messages[message_id] = _Message(head, step, [content])

    def retract(self, step: Step) -> None:
        """Remove the content of a step.

        Its reasoning stays as an empty message, because a client keeps reasoning that a snapshot omits.
        """
        remaining: dict[str, _Message] = {}
        for ident, message in self._messages.items():
            if message.step == step and message.head["role"] != "reasoning":
                continue
            if message.step == step:
                message.text.clear()
            remaining[ident] = message
        self._messages = remaining

    def to_json(self) -> list[Json]:
        """Return all messages in order, in AG-UI's form."""
        return [*self._history, *(message.to_json() for message in self._messages.values())]


class _Take(Protocol):
    """A handler for events of one kind."""

    def __call__(self, encoder: "AgUi", agent: "_Agent", fields: Json, /) -> None: ...


@dataclass(slots=True)
class _Agent:
    """One producer of a run: the main agent, or a delegate, whose ``subagent`` field is on all its events."""

    path: str = ""
    call: str = ""
    subagent: Json = field(default_factory=dict)
    iteration: int = 0
    step: str | None = None
    message: str = ""
    writing: bool = False
    thought: str | None = None
    thoughts: int = 0
    calls: dict[str, list[str]] = field(default_factory=dict)
    """Calls whose arguments are still streamed, with the pieces so far."""
    cut: set[str] = field(default_factory=set)
    """Those calls that an interrupt has closed and this run has not reopened."""
    named: Json = field(default_factory=dict)
    announced: bool = False
    """For a delegate: whether this run has announced it."""
    unanswered: dict[str, None] = field(default_factory=dict)

    @property
    def place(self) -> Step:
        return (self.path, self.iteration)


class AgUi:
    """The encoder of one run.

    Args:
        thread_id: the client's id of the conversation; None: the server's id.
        run_id: the client's id of the turn; None: its client message id, or its id.
        history: the client's messages, needed to retract a step; None: unknown, so that a retracted step ends the run
            with an error.
        after: the events of this run that the client already has.
        waits: the known waits of the turn.
    """

    name = "ag-ui"
    headers: Headers = ()
    needs_start = True

    def __init__(
        self,
        thread_id: str | None = None,
        run_id: str | None = None,
        history: Sequence[Json] | None = None,
        after: Offset | None = None,
        waits: KnownWaits | None = None,
    ) -> None:
        self.ended = False
        self._thread_id = thread_id
        self._run_id = run_id
        self._history = history
        self._messages: _RunMessages | None = None
        self._after = after
        self._waits = waits or KnownWaits()
        self._silent = bool(self._waits.answered)
        self._suspended = False
        self._about: Json = {}
        self._answer_id = ""
        self._begun = False
        self._agents: dict[str, _Agent] = {"": _Agent()}
        self._entered: Counter[str] = Counter()
        self._names: dict[str, Json] = {}
        self._parents: dict[str, str] = {}
        self._starts: dict[str, Json] = {}
        self._out: list[Json] = []

    def sse(self, event: AgentEvent) -> bytes:
        """Return the AG-UI events as server-sent events; ``id:`` is their offset."""
        head = b"id: %b\ndata: %b\n\n"
        return b"".join(
            head % (offset.encode(), orjson.dumps(chunk)) if offset else b"data: %b\n\n" % orjson.dumps(chunk)
            for offset, chunk in self._say(event)
        )

    def frames(self, event: AgentEvent) -> tuple[bytes, ...]:
        """Return each AG-UI event as ``{"id", "chunk"}``. An event outside the log has no id."""
        return tuple(
            orjson.dumps({"id": offset, "chunk": chunk} if offset else chunk) for offset, chunk in self._say(event)
        )

    def _say(self, event: AgentEvent) -> list[tuple[str, Json]]:
        """Return the AG-UI events that the client lacks, with their offsets (empty outside the log)."""
        self._out = []
        silent = self._silent  # before the event: an answer that ends the silence was sent in the run before
        self._take(event)
        if silent:
            return []
        chunks, last = self._out, len(self._out) - 1
        if not event.seq:
            return [("", chunk) for chunk in chunks]
        place = f"{event.turn_id}:{event.seq}"
        placed = [(place if at == last else f"{place}.{at}", chunk) for at, chunk in enumerate(chunks)]
        after = self._after
        if after is None or event.seq > after.seq:
            return placed
        return [] if after.covers(event.seq) or after.part is None else placed[after.part + 1 :]

    def _take(self, event: AgentEvent) -> None:
        fields = event.fields()
        if event.type == "turn_started":
            self._begin(fields)
            return
        if not self._begun:
            self._begin({"conversationId": "", **fields})
        if self._suspended:
            self._suspended = self.ended = False
            self._start()
        agent = self._agent(fields.get("agent", ""), fields.get("parentToolCallId", ""))
        _TAKES.get(event.type, AgUi._tell)(self, agent, fields)

    def _emit(self, kind: str, metadata: Json | None = None, /, **fields: object) -> None:
        head: Json = {"type": kind}
        if metadata is not None:
            head["metadata"] = metadata
        self._out.append(head | fields)

    # The run

    def _begin(self, fields: Json) -> None:
        self._begun = True
        self._answer_id = fields.get("messageId") or fields.get("turnId", "")
        self._thread_id = self._thread_id or fields.get("conversationId", "")
        self._run_id = self._run_id or fields.get("clientMessageId") or fields.get("turnId", "")
        self._agents[""].message = self._message_id("", 0)
        names = ("conversationId", "turnId", "userMessageId", "messageId", "model")
        self._about = {name: fields[name] for name in names if name in fields}
        # The client may have parts of this answer from an earlier run; this run sends them again.
        if self._history is not None:
            prefix = f"{self._answer_id}."
            self._messages = _RunMessages(
                [message for message in self._history if not str(message["id"]).startswith(prefix)]
            )
        self._start()

    def _start(self) -> None:
        self._emit("RUN_STARTED", self._about, **self._ids(), protocolVersion=PROTOCOL_VERSION)

    def _ids(self) -> Json:
        return {"threadId": self._thread_id, "runId": self._run_id}

    def _finish(self, agent: _Agent, fields: Json) -> None:
        self._close_all()
        usage = fields["usage"]
        model_usage = {
            "model": fields["model"],
            "inputTokens": usage["inputTokens"],
            "outputTokens": usage["outputTokens"],
            "totalTokens": usage["inputTokens"] + usage["outputTokens"],
            "cachedInputTokens": usage["cacheReadTokens"],
            "cacheWriteInputTokens": usage["cacheWriteTokens"],
        }
        result = {name: value for name, value in fields.items() if name not in _ENVELOPE}
        self._emit("RUN_FINISHED", **self._ids(), result=result, outcome={"type": "success"}, usage=[model_usage])

    def _cancel(self, agent: _Agent, fields: Json) -> None:
        self._close_all()
        metadata = {"code": "GENERATION_ABORTED"}
        self._emit("RUN_FINISHED", metadata, **self._ids(), outcome={"type": "cancelled"})

    def _fail(self, agent: _Agent, fields: Json) -> None:
        self._close_all()
        metadata = {"retryable": fields["retryable"]}
        self._emit("RUN_ERROR", metadata, message=fields["message"], code=fields["code"])

    def _close_all(self) -> None:
        """Close everything that is open, inner agents first."""
        for agent in self._inner_first():
            if agent.path:
                self._leave(agent, None)
            else:
                self._close(agent)

    def _inner_first(self) -> list[_Agent]:
        # The main agent has the empty path and comes last.
        paths = sorted(self._agents, key=lambda path: path.count("/") if path else -1, reverse=True)
        return [self._agents[path] for path in paths]

    def _ask(self, agent: _Agent, fields: Json) -> None:
        """End the run for a person's answer, unless the answer was given before the run began."""
        wait = fields["waitId"]
        if wait in self._waits.ended and wait not in self._waits.answered:
            self._tell(agent, fields)
            return
        for inner in self._inner_first():
            self._pause(inner)
            if inner.announced:
                own = {"interruptIds": [wait]} if inner is agent else {}
                self._emit("SUBAGENT_FINISHED", **inner.subagent, outcome={"type": "suspended", **own})
                inner.announced = False
        interrupt = show_interrupt(fields, agent.subagent)
        self._emit("RUN_FINISHED", **self._ids(), outcome={"type": "interrupt", "interrupts": [interrupt]})
        self._suspended = True
        covered = self._after is not None and self._after.covers(fields["seq"])
        self.ended = not self._silent and not covered
        self._silent = self._silent and wait not in self._waits.answered

    def _resume(self, agent: _Agent, fields: Json) -> None:
        """Do nothing: this encoder never sends an offset without a meaning."""

    def _tell(self, agent: _Agent, fields: Json) -> None:
        kind = fields["type"]
        value = {name: item for name, item in fields.items() if name not in _ENVELOPE}
        if kind == "source_reference":
            value["messageId"] = agent.message
        self._emit("CUSTOM", **agent.subagent, name=kind, value=value)

    # Agents

    def _message_id(self, path: str, iteration: int) -> str:
        """Return the message id of an agent's step."""
        return ".".join(filter(None, (self._answer_id, path, str(iteration))))

    def _agent(self, path: str, call: str) -> _Agent:
        """Return the producer of an event, creating a delegate at its first event."""
        existing = self._agents.get(path)
        if existing is not None:
            self._enter(existing)
            return existing
        self._entered[path] += 1
        # A delegate that works again in the same turn is another subagent run, which needs its own id.
        again = "" if self._entered[path] == 1 else f"~{self._entered[path]}"
        ident = f"{self._answer_id}/{path}{again}"
        agent = _Agent(path, call, {"subagentRunId": ident}, message=self._message_id(path, 0))
        self._agents[path] = agent
        outer = self._agents.get(path.rpartition("/")[0])
        arguments = self._names.get(call, {})
        role, task = arguments.get("role"), arguments.get("task")
        named: Json = {"name": role if isinstance(role, str) else path.rpartition("/")[2]}
        if isinstance(task, str):
            named["description"] = task
        if outer is not None and outer.path:
            named["parentSubagentRunId"] = outer.subagent["subagentRunId"]
        if call:
            named["parentToolCallId"] = call
        if call in self._parents:
            named["parentMessageId"] = self._parents[call]
        agent.named = named
        self._enter(agent)
        return agent

    def _enter(self, agent: _Agent) -> None:
        """Announce a delegate once per run, after the delegates above it."""
        if not agent.path or agent.announced:
            return
        outer = self._agents.get(agent.path.rpartition("/")[0])
        if outer is not None:
            self._enter(outer)
        agent.announced = True
        self._emit("SUBAGENT_STARTED", **agent.subagent, **agent.named)

    def _leave(self, agent: _Agent, result: Json | None) -> None:
        """End a delegate after its own delegates. ``result`` is that of its call; None: the run ends first."""
        for path in [path for path in self._agents if path.startswith(f"{agent.path}/")]:
            self._leave(self._agents[path], None)
        self._enter(agent)
        if self._agents.pop(agent.path, None) is None:
            return
        self._close(agent)
        if result is not None and result["status"] == "ok":
            self._emit("SUBAGENT_FINISHED", **agent.subagent, outcome={"type": "success"})
            return
        status = "interrupted" if result is None else result["status"]
        message = NOT_RUN if result is None else result["content"]
        self._emit("SUBAGENT_ERROR", **agent.subagent, message=message, code=status)

    def _close(self, agent: _Agent) -> None:
        """Close the open elements of an agent, its step last."""
        self._stop_thinking(agent)
        self._stop_writing(agent)
        self._drop_calls(agent)
        self._end_step(agent)

    def _pause(self, agent: _Agent) -> None:
        """Close the open elements of an agent for now; another run continues them."""
        self._stop_thinking(agent)
        self._stop_writing(agent)
        self._cut_calls(agent)
        self._end_step(agent)

    def _end_step(self, agent: _Agent) -> None:
        if agent.step is not None:
            self._emit("STEP_FINISHED", **agent.subagent, stepName=agent.step)
            agent.step = None

    def _begin_step(self, agent: _Agent, fields: Json) -> None:
        self._close(agent)
        agent.iteration = iteration = fields["iteration"]
        if not fields.get("continues", False):
            agent.message = self._message_id(agent.path, iteration)
            agent.thoughts = 0
        agent.step = f"step {iteration}"
        self._emit("STEP_STARTED", **agent.subagent, stepName=agent.step)

    def _reset(self, agent: _Agent, fields: Json) -> None:
        """Retract the content of a step."""
        covered = self._silent or (self._after is not None and self._after.covers(fields.get("seq", 0)))
        if self._messages is None and not covered:
            self._fail(agent, {"message": RESET_MESSAGE, "code": RESET_CODE, "retryable": True})
            self.ended = True
            return
        self._stop_thinking(agent)
        self._stop_writing(agent)
        self._drop_calls(agent)
        if self._messages is not None:
            self._messages.retract(agent.place)
            self._emit("MESSAGES_SNAPSHOT", messages=self._messages.to_json())

    # Text and thinking

    def _write(self, agent: _Agent, fields: Json) -> None:
        text = fields["text"]
        if not agent.writing:
            self._stop_thinking(agent)
            self._emit("TEXT_MESSAGE_START", **agent.subagent, messageId=self._open(agent), role="assistant")
            agent.writing = True
        self._emit("TEXT_MESSAGE_CONTENT", **agent.subagent, messageId=agent.message, delta=text)
        if self._messages is not None:
            self._messages.write(agent.message, text)

    def _open(self, agent: _Agent) -> str:
        """Return the message id of an agent's step, after creating the message."""
        if self._messages is not None:
            self._messages.begin(agent.message, "assistant", agent.place, agent.subagent)
        return agent.message

    def _stop_writing(self, agent: _Agent) -> None:
        if agent.writing:
            self._emit("TEXT_MESSAGE_END", **agent.subagent, messageId=agent.message)
            agent.writing = False

    def _think(self, agent: _Agent, fields: Json) -> None:
        text = fields["text"]
        if agent.thought is None:
            self._stop_writing(agent)
            agent.thoughts += 1
            agent.thought = f"{agent.message}.thinking-{agent.thoughts}"
            self._emit("REASONING_START", **agent.subagent, messageId=agent.thought)
            self._emit("REASONING_MESSAGE_START", **agent.subagent, messageId=agent.thought, role="reasoning")
            if self._messages is not None:
                self._messages.begin(agent.thought, "reasoning", agent.place, agent.subagent)
        self._emit("REASONING_MESSAGE_CONTENT", **agent.subagent, messageId=agent.thought, delta=text)
        if self._messages is not None:
            self._messages.write(agent.thought, text)

    def _stop_thinking(self, agent: _Agent) -> None:
        if agent.thought is not None:
            self._emit("REASONING_MESSAGE_END", **agent.subagent, messageId=agent.thought)
            self._emit("REASONING_END", **agent.subagent, messageId=agent.thought)
            agent.thought = None

    # Tool calls

    def _begin_call(self, agent: _Agent, fields: Json) -> None:
        call, name = fields["toolCallId"], fields["toolName"]
        self._stop_thinking(agent)
        self._stop_writing(agent)
        parent = self._parents[call] = self._open(agent)
        named = {"toolCallId": call, "toolCallName": name, "parentMessageId": parent}
        self._emit("TOOL_CALL_START", {"server": fields["server"]}, **agent.subagent, **named)
        self._starts[call] = self._out[-1]
        agent.calls[call] = []
        agent.unanswered[call] = None
        if self._messages is not None:
            self._messages.call(parent, call, name)

    def _argue(self, agent: _Agent, fields: Json) -> None:
        call, delta = fields["toolCallId"], fields["delta"]
        pieces = agent.calls.get(call)
        if pieces is None or not delta:
            return
        self._open_again(agent, call)
        pieces.append(delta)
        self._emit("TOOL_CALL_ARGS", **agent.subagent, toolCallId=call, delta=delta)
        if self._messages is not None:
            self._messages.argue(self._parents[call], call, delta)

    def _end_call(self, agent: _Agent, fields: Json) -> None:
        """Close a call with final arguments. If the streamed pieces differ, the event's metadata has the arguments."""
        call, arguments = fields["toolCallId"], fields["arguments"]
        self._names[call] = arguments
        if call not in agent.calls:
            self._begin_call(agent, fields)
        self._open_again(agent, call)
        written = "".join(agent.calls[call])
        if not written:
            self._argue(agent, {"toolCallId": call, "delta": to_text(arguments)})
        agent.calls.pop(call)
        other = bool(written) and not _is_json_of(written, arguments)
        self._emit("TOOL_CALL_END", {"arguments": arguments} if other else None, **agent.subagent, toolCallId=call)

    def _answer(self, agent: _Agent, fields: Json) -> None:
        call = fields["toolCallId"]
        for delegate in [other for other in self._agents.values() if other.call == call and other.path]:
            self._leave(delegate, fields)
        if agent.calls.pop(call, None) is not None and call not in agent.cut:
            self._emit("TOOL_CALL_END", **agent.subagent, toolCallId=call)
        metadata = {name: fields[name] for name in _RESULT_FIELDS if name in fields}
        self._result(agent, call, fields["content"], metadata)

    def _result(self, agent: _Agent, call: str, content: str, metadata: Json) -> None:
        agent.unanswered.pop(call, None)
        ident = f"{self._answer_id}.{call}"
        answer = {"messageId": ident, "toolCallId": call, "content": content, "role": "tool"}
        self._emit("TOOL_CALL_RESULT", metadata, **agent.subagent, **answer)
        if self._messages is not None:
            self._messages.answer(ident, call, content, agent.place, agent.subagent)

    def _drop_calls(self, agent: _Agent) -> None:
        """Close the calls that will not run, so that no client waits for their results."""
        self._cut_calls(agent)
        agent.calls.clear()
        for call in list(agent.unanswered):
            self._result(agent, call, NOT_RUN, {"status": "interrupted"})

    def _cut_calls(self, agent: _Agent) -> None:
        """Close the calls whose arguments are still streamed."""
        for call in agent.calls:
            if call not in agent.cut:
                agent.cut.add(call)
                self._emit("TOOL_CALL_END", **agent.subagent, toolCallId=call)

    def _open_again(self, agent: _Agent, call: str) -> None:
        """Reopen a call that an interrupt has closed, because a client appends to its arguments."""
        if call in agent.cut:
            agent.cut.remove(call)
            self._out.append(self._starts[call])


_TAKES: Final[Mapping[str, _Take]] = {
    "iteration_start": AgUi._begin_step,
    "thinking": AgUi._think,
    "text": AgUi._write,
    "tool_call_started": AgUi._begin_call,
    "tool_arguments": AgUi._argue,
    "tool_call": AgUi._end_call,
    "tool_result": AgUi._answer,
    "step_reset": AgUi._reset,
    "input_required": AgUi._ask,
    "resumed": AgUi._resume,
    "done": AgUi._finish,
    "interrupted": AgUi._cancel,
    "error": AgUi._fail,
}
"""Handlers by event type; other events become ``CUSTOM`` events."""


def _is_json_of(text: str, value: object) -> bool:
    try:
        return bool(orjson.loads(text) == value)
    except orjson.JSONDecodeError:
        return False
