"""A turn as a state machine without I/O: model events and tool outcomes in; next step, events and messages out.

Owns the order of a turn: when the model is called, which calls run, what is committed and how it ends. It
decides denials from the policy and refuses calls that do not fit. Knows no model client, no MCP, no store,
no clock; `agentic_rag.runtime.agent` does what it asks for.

::

    next() → CallModel ─► begin_step, receive… ─► next() → Commit(assistant message, calls)
                ▲                                              │ committed()
                │                                              ▼
          committed()                                   next() → CallTools ─► finish_call…
                └──────────── next() → Commit(results) ◄───────┘

A `Commit` with ``final`` is the last instruction. `interrupt` and `fail` may come at any time between
instructions, also while a model or tools run; the next instruction is then such a commit.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from jsonschema.exceptions import SchemaError
from jsonschema.validators import Draft202012Validator

from agentic_rag.errors import AgenticRagError
from agentic_rag.events import (
    Done,
    Error,
    EventBody,
    Interrupted,
    IterationStart,
    Reference,
    SourceReference,
    StepReset,
    Terminal,
    Text,
    Thinking,
    ToolCall,
    Usage,
)
from agentic_rag.messages import Block, Message, kept_of_partial, text_block, tool_uses, user_message
from agentic_rag.models.base import (
    BlockStarted,
    BlockStopped,
    Citation,
    CitationDelta,
    MessageCompleted,
    MessageStarted,
    ModelEvent,
    TextDelta,
    ThinkingDelta,
)
from agentic_rag.runtime.request import REMOVED, CitablePassage
from agentic_rag.runtime.results import SEARCH_TOOL, FinishedCall, finished_call
from agentic_rag.tools.base import CallOutcome, ToolInfo

CONTINUE = "[continue]"
"""What answers a ``pause_turn``: a request must not end with an assistant message."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call of the model. ``refusal`` is set when it must not run: it is its outcome."""

    id: str
    name: str
    arguments: dict[str, Any]
    tool: ToolInfo | None
    refusal: CallOutcome | None = None

    @property
    def server(self) -> str:
        return self.tool.server if self.tool else ""

    @property
    def repeatable(self) -> bool:
        """Whether a crash in the middle allows to run it again."""
        return self.tool is not None and (self.tool.read_only or self.tool.idempotent)


@dataclass(frozen=True, slots=True)
class CallModel:
    """Build a request, call `Turn.begin_step`, stream the model into `Turn.receive`."""

    iteration: int


@dataclass(frozen=True, slots=True)
class CallTools:
    """Run these in parallel; hand each outcome to `Turn.finish_call` as it comes."""

    calls: tuple[PlannedCall, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """Store ``messages`` with all events so far and ``bodies`` in one transaction, then `Turn.committed`.

    ``calls`` are started by it: their ``tool_call`` events are in ``bodies``. ``final`` is the terminal event
    (not in ``bodies``); with it the turn is over. ``partial`` marks a message that was cut off.
    """

    step: int
    messages: tuple[Message, ...]
    bodies: tuple[EventBody, ...] = ()
    calls: tuple[PlannedCall, ...] = ()
    partial: bool = False
    usage: Usage | None = None
    final: Terminal | None = None


Instruction = CallModel | CallTools | Commit
_State = Literal["model", "streaming", "received", "tools", "running", "results", "over"]


@dataclass(slots=True)
class _Step:
    """What one model call has brought so far."""

    passages: Sequence[CitablePassage | None] = ()
    references_before: int = 0
    blocks: dict[int, Block] = field(default_factory=dict)
    citations: dict[int, list[Citation]] = field(default_factory=dict)
    text_length: int = 0
    block_from: int = 0
    emitted: bool = False
    completed: MessageCompleted | None = None

    def content(self) -> list[Block]:
        return [self.blocks[index] for index in sorted(self.blocks)]


class Turn:
    """One turn from its accepted user message to its end.

    Args:
        message_id: id of the answer.
        model: the model's name until the service reports its own.
        policy: glob → ``allow`` | ``deny``, later entries win; see `Definition`.
        max_steps: model calls the turn may make.
    """

    def __init__(
        self,
        *,
        message_id: str,
        model: str,
        policy: Mapping[str, Literal["allow", "deny"]],
        max_steps: int,
    ) -> None:
        self.message_id = message_id
        self.model = model
        self.iteration = 0
        self.usage = Usage()
        self.references: list[Reference] = []
        self.dropped_citations = 0
        self.timings: dict[str, int] = {}
        self._tools: dict[str, ToolInfo] = {}
        self._policy = policy
        self._max_steps = max_steps
        self._state: _State = "model"
        self._step = _Step()
        self._calls: tuple[PlannedCall, ...] = ()
        self._finished: dict[str, FinishedCall] = {}
        self._answered = False
        self._stop: AgenticRagError | Literal["interrupt"] | None = None
        self._stop_reason: str | None = None

    def offer(self, tools: Iterable[ToolInfo]) -> None:
        """Say which tools the turn has; before its first step."""
        self._tools = {tool.name: tool for tool in tools}

    # What to do next

    def next(self) -> Instruction | None:
        """Return what to do now; None when the turn is over."""
        if self._state == "over":
            return None
        if self._stop is not None:
            return self._closing()
        if self._state in ("model", "streaming"):
            if self.iteration >= self._max_steps and self._state == "model":
                return Commit(self.iteration, (), final=self._done("max_steps"))
            if self._state == "model":
                self.iteration += 1
                self._state = "streaming"
            return CallModel(self.iteration)
        if self._state == "received":
            return self._commit_received()
        if self._state in ("tools", "running"):
            self._state = "running"
            return CallTools(tuple(call for call in self._calls if call.id not in self._finished))
        return Commit(self.iteration, (self._results(),))

    def committed(self, commit: Commit) -> None:
        """Say that a `Commit` is stored."""
        self._answered = self._answered or any(message["role"] == "assistant" for message in commit.messages)
        if commit.final is not None:
            self._state = "over"
        elif self._state == "received" and commit.calls:
            self._state = "tools"
        else:
            self._calls, self._finished = (), {}
            self._state = "model"

    # The model's side

    def begin_step(self, passages: Sequence[CitablePassage | None]) -> tuple[EventBody, ...]:
        """Begin to stream a step whose request numbers its search results as ``passages``."""
        self._step = _Step(passages=passages, references_before=len(self.references))
        return (IterationStart(self.iteration),)

    def receive(self, event: ModelEvent) -> tuple[EventBody, ...]:
        """Take one model event; return what a client should see of it."""
        step = self._step
        if type(event) is TextDelta:
            block = step.blocks[event.index]
            block["text"] += event.text
            step.text_length += len(event.text)
            step.emitted = True
            return (Text(event.text),)
        if type(event) is ThinkingDelta:
            step.blocks[event.index]["thinking"] += event.text
            step.emitted = True
            return (Thinking(event.text),)
        if type(event) is BlockStarted:
            return self._block_started(event)
        if type(event) is CitationDelta:
            step.citations.setdefault(event.index, []).append(event.citation)
        elif type(event) is BlockStopped:
            return self._block_stopped(event)
        elif type(event) is MessageCompleted:
            step.completed = event
            self.usage += event.usage
            self._state = "received"
        elif type(event) is MessageStarted:
            self.model = event.model
        return ()

    def reset_step(self) -> tuple[EventBody, ...]:
        """Forget the running step, which is streamed again; ``step_reset`` if anything of it was seen."""
        seen = self._step.emitted
        del self.references[self._step.references_before :]
        self._step = _Step(passages=self._step.passages, references_before=len(self.references))
        return (StepReset(self.iteration),) if seen else ()

    # The tools' side

    def finish_call(self, call: PlannedCall, outcome: CallOutcome) -> FinishedCall:
        """Take the outcome of a call; the last one makes the results ready to commit."""
        finished = finished_call(call.id, call.name, call.tool, call.arguments, outcome)
        self._finished[call.id] = finished
        if call.name == SEARCH_TOOL:
            self.timings["retrieval"] = self.timings.get("retrieval", 0) + outcome.duration_ms
        if all(planned.id in self._finished for planned in self._calls):
            self._state = "results"
        return finished

    def restore(self, messages: Sequence[Message], finished: Mapping[str, Block]) -> tuple[PlannedCall, ...]:
        """Go on with a turn whose server stopped.

        Args:
            messages: the turn's committed messages after the user's own, oldest first.
            finished: ``tool_result`` blocks by call id of calls that had ended.

        Returns:
            the calls of the last message that had not ended, in order.
        """
        self.iteration = sum(message["role"] == "assistant" for message in messages)
        self._answered = self.iteration > 0
        self.references = references_of(messages)
        if not messages or not tool_uses(messages[-1]["content"]):
            return ()
        self._calls = tuple(self._planned(block) for block in tool_uses(messages[-1]["content"]))
        for call in self._calls:
            if call.id in finished:
                self._finished[call.id] = FinishedCall(finished[call.id], ())
        open_calls = tuple(call for call in self._calls if call.id not in self._finished)
        self._state = "tools" if open_calls else "results"
        return open_calls

    # The end

    def interrupt(self) -> None:
        """End as a user asked; what came so far is kept."""
        if self._stop is None:
            self._stop = "interrupt"

    def fail(self, error: AgenticRagError) -> None:
        """End with an error; what came so far is kept."""
        if self._stop is None:
            self._stop = error

    def _closing(self) -> Commit:
        """Commit what may stay of the running step, answer every open call, and end."""
        messages: tuple[Message, ...] = ()
        bodies: tuple[EventBody, ...] = ()
        partial = False
        if self._state in ("streaming", "received"):
            kept = kept_of_partial(self._step.content())
            if kept:
                messages = ({"role": "assistant", "content": kept},)
                partial = True
        elif self._state in ("tools", "running", "results"):
            bodies = tuple(
                body
                for call in self._calls
                if call.id not in self._finished
                for body in self.finish_call(call, _stopped(self._stop == "interrupt")).bodies
            )
            messages = (self._results(),)
        answered = self._answered or partial
        final: Terminal
        if isinstance(self._stop, AgenticRagError):
            final = Error(self._stop.code, str(self._stop), self._stop.retryable)
        else:
            final = Interrupted(self.message_id if answered else None)
        return Commit(self.iteration, messages, bodies, partial=partial, final=final)

    def _done(self, stop_reason: str) -> Done:
        return Done(
            message_id=self.message_id,
            usage=self.usage,
            stop_reason=stop_reason,
            references=tuple(self.references),
            model=self.model,
            timings=dict(self.timings),
        )

    # A finished model call

    def _commit_received(self) -> Commit:
        step = self._step
        assert step.completed is not None
        reason = step.completed.stop_reason
        usage = step.completed.usage
        content = [block for block in step.content() if block["type"] != "text" or block["text"].strip()]
        messages: tuple[Message, ...]
        if reason == "pause_turn" and content and not tool_uses(content):
            messages = ({"role": "assistant", "content": content}, user_message(CONTINUE))
            return Commit(self.iteration, self._storable(messages), usage=usage)
        if reason in ("tool_use", "pause_turn", "end_turn", "stop_sequence") and tool_uses(content):
            self._calls = tuple(self._planned(block) for block in tool_uses(content))
            self._finished = {}
            bodies = tuple(ToolCall(call.id, call.name, call.server, call.arguments) for call in self._calls)
            messages = ({"role": "assistant", "content": content},)
            return Commit(self.iteration, self._storable(messages), bodies, self._calls, usage=usage)
        return self._final_commit(content, reason, usage)

    def _final_commit(self, content: list[Block], reason: str, usage: Usage) -> Commit:
        calls = tool_uses(content)
        bodies: tuple[EventBody, ...] = ()
        messages: tuple[Message, ...]
        if calls:  # cut off by max_tokens or refused: none of them runs, each is answered
            self._calls = tuple(self._planned(block) for block in calls)
            outcome = _error(f"not run: the message was cut off ({reason})")
            blocks = []
            for call in self._calls:
                finished = self.finish_call(call, outcome)
                blocks.append(finished.block)
                bodies += (ToolCall(call.id, call.name, call.server, call.arguments), *finished.bodies)
            messages = ({"role": "assistant", "content": content}, {"role": "user", "content": blocks})
        else:
            content = kept_of_partial(content)
            messages = ({"role": "assistant", "content": content},) if content else ()
        return Commit(self.iteration, self._storable(messages), bodies, usage=usage, final=self._done(reason))

    @staticmethod
    def _storable(messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Drop ``_broken_input``: the call's result tells what was wrong with it."""
        for message in messages:
            for block in message["content"]:
                block.pop("_broken_input", None)
        return messages

    def _results(self) -> Message:
        return {"role": "user", "content": [self._finished[call.id].block for call in self._calls]}

    # Calls

    def _planned(self, block: Block) -> PlannedCall:
        tool = self._tools.get(block["name"])
        call = PlannedCall(block["id"], block["name"], block["input"], tool)
        refusal = self._refusal(call, block.get("_broken_input"))
        return PlannedCall(call.id, call.name, call.arguments, tool, refusal)

    def _refusal(self, call: PlannedCall, broken: str | None) -> CallOutcome | None:
        if call.tool is None:
            return _error(f"There is no tool {call.name!r}. The tools are: {', '.join(self._tools)}.")
        if broken is not None:
            return _error(f"The arguments are not a JSON object: {broken[:200]!r}")
        if self._denied(call.name):
            return CallOutcome(
                "denied", (text_block(f"Denied by this domain's setting toolPolicy for {call.name!r}. Go on without."),)
            )
        problem = _schema_problem(call.tool.input_schema, call.arguments)
        return _error(f"The arguments do not fit the tool: {problem}") if problem else None

    def _denied(self, name: str) -> bool:
        verdicts = [verdict for glob, verdict in self._policy.items() if fnmatchcase(name, glob)]
        return bool(verdicts) and verdicts[-1] == "deny"

    # Blocks and citations

    def _block_started(self, event: BlockStarted) -> tuple[EventBody, ...]:
        block = dict(event.block)
        self._step.block_from = self._step.text_length
        if block["type"] == "text":
            first = block["text"] = block.get("text", "")
            self._step.text_length += len(first)
            self._step.blocks[event.index] = block
            return (Text(first),) if first else ()
        if block["type"] == "thinking":
            block["thinking"] = block.get("thinking", "")
        self._step.blocks[event.index] = block
        return ()

    def _block_stopped(self, event: BlockStopped) -> tuple[EventBody, ...]:
        block = dict(event.block)
        self._step.blocks[event.index] = block
        if block["type"] != "text":
            return ()
        bodies = []
        references = []
        for citation in self._step.citations.get(event.index, ()):
            reference = self._verified(citation)
            if reference is None:
                self.dropped_citations += 1
                continue
            references.append(reference)
            bodies.append(
                SourceReference(
                    number=reference.number,
                    iteration=self.iteration,
                    text_from=self._step.block_from,
                    text_to=self._step.text_length,
                    document_id=reference.document_id,
                    document_name=reference.document_name,
                    chunk_id=reference.chunk_id,
                    cited_text=reference.cited_text,
                    score=reference.relevance_score,
                    page=reference.page,
                )
            )
        if references:
            block["_references"] = [_reference_json(reference) for reference in references]
        return tuple(bodies)

    def _verified(self, citation: Citation) -> Reference | None:
        """Return the numbered reference, or None if the cited text is not what the passage says."""
        passages = self._step.passages
        if not 0 <= citation.search_result_index < len(passages):
            return None
        passage = passages[citation.search_result_index]
        if passage is None or not 0 <= citation.start < citation.end <= len(passage.texts):
            return None
        texts = passage.texts[citation.start : citation.end]
        cited = " ".join(citation.cited_text.split())
        stored = " ".join("".join(texts).split())
        spaced = " ".join(" ".join(texts).split())
        if not cited or REMOVED in texts or (cited not in stored and cited not in spaced):
            return None
        chunk = passage.chunk_ids[citation.start]
        for known in self.references:
            if known.chunk_id == chunk and known.cited_text == spaced:
                return known
        reference = Reference(
            number=len(self.references) + 1,
            document_id=passage.document_id,
            document_name=passage.document_name,
            chunk_id=chunk,
            page=passage.page,
            cited_text=spaced,
            relevance_score=passage.score,
        )
        self.references.append(reference)
        return reference


def references_of(messages: Sequence[Message]) -> list[Reference]:
    """Return the references of a turn from its committed messages, by number."""
    found: dict[int, Reference] = {}
    for message in messages:
        for block in message["content"]:
            for kept in block.get("_references", ()):
                found.setdefault(kept["number"], Reference(**kept))
    return [found[number] for number in sorted(found)]


def _reference_json(reference: Reference) -> dict[str, Any]:
    return {name: getattr(reference, name) for name in Reference.__slots__}


def _error(text: str) -> CallOutcome:
    return CallOutcome("error", (text_block(text),))


def _stopped(by_user: bool) -> CallOutcome:
    if by_user:
        return CallOutcome("interrupted", (text_block("interrupted by the user; the outcome is unknown"),))
    return _error("not finished: the turn ended while this ran; the outcome is unknown")


def _schema_problem(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the arguments, or None. A schema that is itself broken refuses nothing."""
    try:
        error = next(iter(Draft202012Validator(dict(schema)).iter_errors(dict(arguments))), None)
    except SchemaError:
        return None
    return None if error is None else f"{error.json_path}: {error.message}"
