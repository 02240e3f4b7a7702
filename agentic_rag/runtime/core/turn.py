"""A turn as a state machine without I/O: model events and tool outcomes in; instructions, events and messages out.

`Turn` decides when the model is called, which tool calls run, what each commit stores and how the turn ends. It denies
calls that the policy forbids and refuses calls whose arguments do not fit. It knows no model client, no MCP, no store
and no clock: `agentic_rag.runtime.agent` carries out its instructions. A test can therefore drive a turn by hand::

    turn.offer(tools)
    turn.next()                    # CallModel(iteration=1)
    turn.begin_step(passages)      # the events to send before the model's first one
    turn.receive(event)            # for each event of the model
    commit = turn.next()           # Commit(the answer, final=Done(...))
    turn.take_commit(commit)       # after it is stored
    turn.next()                    # None: the turn is over

The order of the instructions:

::

    next() → CallModel ─► begin_step, receive… ─► next() → Commit(assistant message, calls)
                ▲                                              │ take_commit()
                │                                              ▼
          take_commit()                                 next() → CallTools ─► finish_call…
                └──────────── next() → Commit(results) ◄───────┘

A `Commit` with ``final`` is the last instruction. `interrupt` and `fail` may be called at any time, also while the
model streams or tools run. The next instruction is then the final commit, which keeps the output so far.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from agentic_rag.base.errors import AgenticRagError
from agentic_rag.base.events import (
    Done,
    EventBody,
    Interrupted,
    IterationStart,
    Notice,
    Reference,
    SourceReference,
    StepReset,
    Terminal,
    Text,
    Thinking,
    ToolArguments,
    ToolCall,
    ToolCallStarted,
    Usage,
)
from agentic_rag.base.ids import MessageId
from agentic_rag.base.json_form import to_json, to_text
from agentic_rag.base.messages import (
    BROKEN_INPUT,
    CONTINUES,
    CUT,
    MADE_BY,
    NOTE,
    REFERENCES,
    RETRIEVALS,
    SECRET,
    Activation,
    Block,
    Message,
    plain_text,
    reads_others,
    sendable_part,
    sendable_use,
    tool_uses,
    user_message,
    whole_content,
)
from agentic_rag.models.base import (
    BlockStarted,
    BlockStopped,
    CacheMiss,
    Citation,
    CitationDelta,
    InputDelta,
    MessageCompleted,
    MessageStarted,
    ModelEvent,
    TextDelta,
    ThinkingDelta,
)
from agentic_rag.runtime.core.calls import (
    NONE_MISSING,
    PlannedCall,
    Policy,
    error_outcome,
    find_missing_server,
    plan_call,
    stop_outcome,
)
from agentic_rag.runtime.core.citations import references_of, verify, with_resolving
from agentic_rag.runtime.core.deferred_tools import unwrap_call
from agentic_rag.runtime.core.failures import failure_of
from agentic_rag.runtime.core.prompt_state import note_block
from agentic_rag.runtime.core.request import last_step_note
from agentic_rag.runtime.core.results import ROOM, FinishedCall, ResultRoom, finished_call
from agentic_rag.runtime.core.sent_messages import CitablePassage
from agentic_rag.tools.base import CallOutcome, ToolInfo
from agentic_rag.tools.system import CALL_TOOL, SEARCH

# Texts for the model

CONTINUE = "[continue]"
"""The user message after a ``pause_turn``. A request must not end with an assistant message."""
GO_ON = "your answer was cut off at its length limit; continue exactly where you stopped, without repeating anything"
ANSWER_NOW = "your message was empty; finish your answer to the user now, without repeating what you said before"
CUT_CALL = "not run: the message was cut off at its length limit; call again, there is more room now"
"""Result of a call whose arguments may be incomplete. It never runs, because half a path is another path."""
CUT_REASONS = frozenset({"max_tokens", "model_context_window_exceeded"})
"""Stop reasons of a message that was cut off at its length limit."""
MAX_CONTINUED = 2
"""How many steps in a row may continue an answer that was cut off at its length limit."""

# Instructions to the agent


@dataclass(frozen=True, slots=True)
class CallModel:
    """Build a request, call `Turn.begin_step`, stream the model into `Turn.receive`.

    ``last``: no other step may follow, so the model must answer without calls. ``room``: the factor by which the usual
    length limit of an answer is raised.
    """

    iteration: int
    last: bool = False
    room: int = 1


@dataclass(frozen=True, slots=True)
class CallTools:
    """Run the calls in parallel, and pass each outcome to `Turn.finish_call` as soon as the call ends."""

    calls: tuple[PlannedCall, ...]


@dataclass(frozen=True, slots=True)
class Spent:
    """The tokens of one model call, complete or cut off. A step that was retried has several."""

    step: int
    model: str
    usage: Usage
    dropped_citations: int = 0
    unverified_citations: int = 0
    cache_miss: CacheMiss | None = None


@dataclass(frozen=True, slots=True)
class EndedCall:
    """A call that did not run to its end: the turn ended first, or its message was cut off."""

    call: PlannedCall
    outcome: CallOutcome
    finished: FinishedCall


@dataclass(frozen=True, slots=True)
class Commit:
    """Store ``messages`` with all events so far and ``bodies`` in one transaction, then call `Turn.take_commit`."""

    step: int
    messages: tuple[Message, ...]
    bodies: tuple[EventBody, ...] = ()
    """The events of this commit, without ``final``."""
    calls: tuple[PlannedCall, ...] = ()
    """The calls that start with this commit. Their ``tool_call`` events are in ``bodies``."""
    partial: bool = False
    """Whether the message was cut off."""
    usage: Usage | None = None
    final: Terminal | None = None
    """The terminal event. With it the turn is over."""
    spent: tuple[Spent, ...] = ()
    """The model calls that no earlier commit has stored."""
    ended: tuple[EndedCall, ...] = ()
    """The calls that end with this commit without having run. Their ``tool_result`` events are in ``bodies``."""


Instruction = CallModel | CallTools | Commit
"""The next thing that the agent does for a turn."""


# The state machine


_State = Literal["model", "streaming", "received", "tools", "running", "results", "over"]
"""The stage of the turn, in the order of one step.

- ``model``: the next instruction is `CallModel`; ``streaming``: it was given, and the model streams
- ``received``: the message is complete, and the next instruction commits it
- ``tools``: the calls are stored, and the next instruction runs them; ``running``: it was given
- ``results``: all calls have ended, and the next instruction commits their results
- ``over``: the final commit is stored
"""


@dataclass(slots=True)
class _Step:
    """The output of one model call so far. Dictionaries have the index of a content block as key."""

    passages: Sequence[CitablePassage | None] = ()
    """The passages of the request, which the model's citations refer to by number."""
    used_ids: Collection[str] = ()
    """The ids of the calls in the request. A new call must not have one of these."""
    references_before: int = 0
    """The number of the turn's references when the step began."""
    model: str = ""
    """The model that was asked."""
    blocks: dict[int, Block] = field(default_factory=dict)
    open_texts: dict[int, list[str]] = field(default_factory=dict)
    """The deltas of unfinished text and thinking blocks. They are joined when needed, not with each delta."""
    citations: dict[int, list[Citation]] = field(default_factory=dict)
    call_ids: dict[int, str] = field(default_factory=dict)
    """The ids of the calls that have begun, as `content` returns them."""
    wrapped: set[int] = field(default_factory=set)
    """The indexes of uses of `CALL_TOOL`. Their tool's name is an argument, so clients see the call only when the
    arguments are complete."""
    dropped_citations: int = 0
    unverified_citations: int = 0
    text_length: int = 0
    """Characters of text in the step."""
    block_from: int = 0
    """The value of ``text_length`` when the current block began."""
    emitted: bool = False
    """Whether a client has seen any of this step, so that a retry must send ``step_reset``."""
    reported: Usage = field(default_factory=Usage)
    """Tokens that the service has reported and that are not counted yet."""
    cache_miss: CacheMiss | None = None
    completed: MessageCompleted | None = None

    def content(self) -> list[Block]:
        """Return the blocks so far. Calls have a form that a later request can contain."""
        used = set(self.used_ids)
        content = []
        for index in sorted(self.blocks):
            block = self.blocks[index]
            if index in self.open_texts:
                kind = block["type"]
                block = {**block, kind: block[kind] + "".join(self.open_texts[index])}
            if block["type"] == "tool_use":
                block = sendable_use(block, used)
                used.add(block["id"])
            elif block["type"] in ("thinking", "redacted_thinking") and self.model:
                block = {**block, MADE_BY: self.model}
            content.append(block)
        return content


class Turn:
    """One turn from its accepted user message to its end.

    Args:
        message_id: id of the answer.
        model: the model's name until the service reports its own.
        policy: decides which tools may be called.
        max_steps: most model calls of the turn.
        new_ref: returns a new name for a payload that is stored outside the transcript.
        others: whether the question may contain text written by others, such as the task of a delegate.
        room: the size limits of tool results.
    """

    def __init__(
        self,
        *,
        message_id: MessageId,
        model: str,
        policy: Policy,
        max_steps: int,
        new_ref: Callable[[], str] = str,
        others: bool = False,
        room: ResultRoom = ROOM,
    ) -> None:
        self.message_id = message_id
        self.has_read_others = others
        """Whether the turn has read text written by others since the user's message.

        Set by a commit. So the calls of a step are judged by the texts that the model had read when it made them.
        """
        self.model = model
        self.answer_id = ""
        """The service's id of the newest answer, empty if the service gives none."""
        self.iteration = 0
        """The number of the current step, from 1; 0 before the first one."""
        self.usage = Usage()
        """The tokens of all model calls so far, also of calls that were cut off or repeated."""
        self.references: list[Reference] = []
        """The passages that the answer cites, in the order of their numbers."""
        self.retrieval_ids: list[str] = []
        """The ids of the turn's searches, in the order of their results."""
        self.role_hashes: dict[str, str] = {}
        """The hash of each role that was activated, by its id."""
        self.timings: dict[str, int] = {}
        """Durations in milliseconds by name. The agent fills them, because this module has no clock."""
        self._tools: dict[str, ToolInfo] = {}
        self._missing: Mapping[str, bool] = NONE_MISSING
        self._policy = policy
        self._max_steps = max_steps
        self._new_ref = new_ref
        self._room = room
        self._state: _State = "model"
        self._step = _Step()
        self._calls: tuple[PlannedCall, ...] = ()
        self._finished: dict[str, FinishedCall] = {}
        self._answered = False
        """Whether a message of the model is stored. If none is, `Interrupted` names no answer."""
        self._cuts = 0
        """How many steps in a row were cut off at their length limit."""
        self._added_steps = 0
        """Steps that continued a cut-off step. They do not count against ``max_steps``."""
        self._asked_again = False
        """Whether the model was asked once more, because it had said nothing."""
        self._continues_text = False
        """Whether the next text continues one that was cut off."""
        self._spent: list[Spent] = []
        self._stop: AgenticRagError | Literal["interrupt"] | None = None
        """The reason to end the turn at the next instruction, or None."""
        self._unstarted: Collection[str] = ()
        """The ids of calls that wait for a person and have not run."""

    def offer(self, tools: Iterable[ToolInfo], missing: Mapping[str, bool] = NONE_MISSING) -> None:
        """Set the tools of the turn. Must be called before the first step, and may be called between two steps.

        ``missing``: the servers that cannot be called; True for one that is still starting.
        """
        self._tools = {tool.name: tool for tool in tools}
        self._missing = missing

    @property
    def waits_for_server(self) -> bool:
        """Whether the received message calls a tool of a server that is still starting and has listed no such tool."""
        if self._state != "received":
            return False
        starting = [server for server, starts in self._missing.items() if starts]
        uses = tool_uses(self._step.content()) if starting else ()
        return any(find_missing_server(block, self._tools, starting) for block in uses)

    # What to do next

    def next(self) -> Instruction | None:
        """Return the next instruction, or None when the turn is over.

        Carry it out before the next call: `begin_step` and `receive`, `finish_call`, or `take_commit`.
        """
        instruction = self._next()
        return replace(instruction, spent=tuple(self._spent)) if isinstance(instruction, Commit) else instruction

    def _next(self) -> Instruction | None:
        if self._state == "over":
            return None
        if self._stop is not None:  # in any state: what the step has so far is stored, and open calls get results
            return self._stop_commit()
        if self._state in ("model", "streaming"):  # "streaming" again: `reset_step` lets the model repeat the step
            if self._is_last and self._state == "model":
                return Commit(self.iteration, (), final=self._finish("max_steps"))
            if self._state == "model":
                self.iteration += 1
                self._state = "streaming"
            return CallModel(self.iteration, self._is_last, 2**self._cuts)  # each cut doubles the room for the answer
        if self._state == "received":
            return self._commit_received()
        if self._state in ("tools", "running"):
            self._state = "running"
            return CallTools(tuple(call for call in self._calls if call.id not in self._finished))
        return Commit(self.iteration, (self._results(),))

    def take_commit(self, commit: Commit) -> None:
        """Move to the next state, because the `Commit` is stored."""
        self._answered = self._answered or any(message["role"] == "assistant" for message in commit.messages)
        self.has_read_others = self.has_read_others or reads_others(commit.messages)
        del self._spent[: len(commit.spent)]
        if commit.final is not None:
            self._state = "over"
        elif self._state == "received" and commit.calls and not commit.ended:
            self._state = "tools"
        else:
            self._calls, self._finished = (), {}
            self._state = "model"

    # Receiving from the model

    def begin_step(
        self, passages: Sequence[CitablePassage | None], used_ids: Collection[str] = (), model: str = ""
    ) -> tuple[EventBody, ...]:
        """Begin a step, and return the events that announce it.

        ``passages``: the passages of the request, in the order of the numbers by which the model cites them.
        ``used_ids``: the ids of the calls in the request. A call of this step with one of them gets a new id.
        ``model``: the model that is asked.
        """
        before = len(self.references)
        self._step = _Step(passages=passages, used_ids=used_ids, references_before=before, model=model)
        return (IterationStart(self.iteration, continues=self._continues_text),)

    def receive_text(self, event: TextDelta | ThinkingDelta) -> None:
        """Add a text or thinking delta. The caller sends the text to clients."""
        step, text = self._step, event.text
        step.open_texts.setdefault(event.index, []).append(text)
        if type(event) is TextDelta:
            step.text_length += len(text)
        step.emitted = True

    def receive(self, event: ModelEvent) -> tuple[EventBody, ...]:
        """Process one model event, and return the events for clients."""
        step = self._step
        if type(event) is TextDelta or type(event) is ThinkingDelta:
            self.receive_text(event)
            return (Text(event.text) if type(event) is TextDelta else Thinking(event.text),)
        if type(event) is BlockStarted:
            return self._block_started(event)
        if type(event) is InputDelta:
            if event.index in step.wrapped:
                return ()
            return (ToolArguments(step.call_ids[event.index], event.json),)
        if type(event) is CitationDelta:
            step.citations.setdefault(event.index, []).append(event.citation)
        elif type(event) is BlockStopped:
            return self._block_stopped(event)
        elif type(event) is MessageCompleted:
            step.completed = event
            step.reported = event.usage
            self._count_step(whole=True)
            self._state = "received"
        elif type(event) is MessageStarted:
            self.model = event.model
            step.reported, step.cache_miss = event.usage, event.cache_miss
            self.answer_id = event.answer_id
        return ()

    def _count_step(self, *, whole: bool = False) -> None:
        """Add the reported tokens of the running model call to the turn's usage, once.

        ``whole``: the call is complete, so it counts as a call even if it reported no tokens.
        """
        step = self._step
        reported, step.reported = step.reported, Usage()
        if whole or reported != Usage():
            self.usage += reported
            citations = (step.dropped_citations, step.unverified_citations)
            self._spent.append(Spent(self.iteration, self.model, reported, *citations, step.cache_miss))

    def reset_step(self) -> tuple[EventBody, ...]:
        """Discard the running step, because the model is asked again.

        Returns ``step_reset`` if clients have seen a part of the step. Tokens of the discarded call stay counted.
        """
        emitted = self._step.emitted
        self._state = "streaming"
        self._count_step()
        del self.references[self._step.references_before :]
        before = self._step
        count = len(self.references)
        self._step = _Step(
            passages=before.passages, used_ids=before.used_ids, references_before=count, model=before.model
        )
        return (StepReset(self.iteration),) if emitted else ()

    @property
    def refused(self) -> bool:
        """Whether the model has just declined to answer."""
        completed = self._step.completed
        return self._state == "received" and completed is not None and completed.stop_reason == "refusal"

    # Receiving from tools

    def finish_call(self, call: PlannedCall, outcome: CallOutcome) -> FinishedCall:
        """Store the outcome of a call. After the last outcome, the next instruction commits the results."""
        finished = finished_call(
            call.id,
            call.name,
            call.tool,
            call.arguments,
            outcome,
            self._new_ref,
            ran=call.refusal is None,
            room=self._room,
        )
        self._finished[call.id] = finished
        self._note_result(finished.block)
        if call.name == SEARCH.name:
            self.timings["retrieval"] = self.timings.get("retrieval", 0) + outcome.duration_ms
        if all(planned.id in self._finished for planned in self._calls):
            self._state = "results"
        return finished

    def _note_result(self, block: Block) -> None:
        """Note the stored searches behind a result, and the role that it activated."""
        self.retrieval_ids += [
            retrieval_id for retrieval_id in block.get(RETRIEVALS, ()) if retrieval_id not in self.retrieval_ids
        ]
        self.take_role(Activation.of(block))

    def take_role(self, activation: Activation | None) -> None:
        """Note the version of a role that was active when the turn answered."""
        if activation is not None:
            self.role_hashes[activation.role] = activation.hash

    def restore(
        self, messages: Sequence[Message], finished: Mapping[str, Block], spent: Usage
    ) -> tuple[PlannedCall, ...]:
        """Restore the state of a turn whose server stopped.

        Args:
            messages: the turn's committed messages after the user's own, oldest first, including archived ones.
            finished: the ``tool_result`` blocks of ended calls that are not in a committed message, by call id.
            spent: tokens of the committed steps.

        Returns:
            the calls of the last message that had not ended, in order.
        """
        self.iteration = sum(message["role"] == "assistant" for message in messages)
        self._answered = self.iteration > 0
        for message in messages:
            if message["role"] == "user":
                cut = any(CUT in block for block in message["content"])
                self._cuts = self._cuts + 1 if cut else 0
                self._added_steps += cut
                self._asked_again |= any(
                    ANSWER_NOW in block.get("text", "") for block in message["content"] if NOTE in block
                )
                self._continues_text = cut and not any(block["type"] == "tool_result" for block in message["content"])
        self.usage = spent
        self.references = references_of(messages)
        for block in (*(block for message in messages for block in message["content"]), *finished.values()):
            self._note_result(block)
        self.has_read_others = self.has_read_others or reads_others(messages)
        if not messages or not tool_uses(messages[-1]["content"]):
            return ()
        self._calls = self._plan(tool_uses(messages[-1]["content"]))
        for call in self._calls:
            if call.id in finished:
                self._finished[call.id] = FinishedCall(finished[call.id], ())
        open_calls = tuple(call for call in self._calls if call.id not in self._finished)
        self._state = "tools" if open_calls else "results"
        return open_calls

    # The end

    def interrupt(self, unstarted: Collection[str] = ()) -> None:
        """End the turn at a user's request, and keep the output so far.

        ``unstarted``: ids of calls that wait for a person and have not run. Only the first call of this method or of
        `fail` has an effect.
        """
        if self._stop is None:
            self._stop, self._unstarted = "interrupt", unstarted

    def fail(self, error: AgenticRagError, unstarted: Collection[str] = ()) -> None:
        """End the turn with an error, and keep the output so far. ``unstarted``: see `interrupt`."""
        if self._stop is None:
            self._stop, self._unstarted = error, unstarted

    def _stop_commit(self) -> Commit:
        """Return the final commit after `interrupt` or `fail`.

        The commit keeps the complete part of the running step. The API requires a result for each call, so each open
        call gets an error as its result.
        """
        messages: tuple[Message, ...] = ()
        ended: tuple[EndedCall, ...] = ()
        partial = False
        if self._state in ("streaming", "received"):
            self._count_step()
            partial_blocks = sendable_part(self._step.content())
            if partial_blocks:
                messages = ({"role": "assistant", "content": partial_blocks},)
                partial = True
        elif self._state in ("tools", "running", "results"):
            by_user = self._stop == "interrupt"
            still_open = [call for call in self._calls if call.id not in self._finished]
            outcomes = [stop_outcome(by_user, call.id not in self._unstarted) for call in still_open]
            both = zip(still_open, outcomes, strict=True)
            ended = tuple(EndedCall(call, outcome, self.finish_call(call, outcome)) for call, outcome in both)
            messages = (self._results(),)
        answered = self._answered or partial
        final: Terminal
        if isinstance(self._stop, AgenticRagError):
            final = failure_of(self._stop)
        else:
            final = Interrupted(self.message_id if answered else None)
        bodies = tuple(body for call in ended for body in call.finished.bodies)
        return Commit(self.iteration, messages, bodies, partial=partial, final=final, ended=ended)

    def _finish(self, stop_reason: str) -> Done:
        return Done(
            message_id=self.message_id,
            usage=self.usage,
            stop_reason=stop_reason,
            references=tuple(self.references),
            model=self.model,
            timings=dict(self.timings),
            retrieval_ids=tuple(self.retrieval_ids),
        )

    # A finished model call

    def _commit_received(self) -> Commit:
        step = self._step
        assert step.completed is not None
        reason = step.completed.stop_reason
        usage = step.completed.usage
        content = whole_content(step.content())
        messages: tuple[Message, ...]
        if reason == "pause_turn" and not tool_uses(content):
            partial = sendable_part(content)
            messages = ({"role": "assistant", "content": partial}, user_message(CONTINUE)) if partial else ()
            return Commit(self.iteration, messages, usage=usage)
        content = self._mark_text(content)
        uses = tool_uses(content)
        if self._is_last and uses:
            return self._final_commit(content, "max_steps", usage)
        if reason in CUT_REASONS and self._cuts < MAX_CONTINUED:
            return self._continue_cut_step(content, usage)
        self._cuts = 0
        is_empty = reason == "end_turn" and not uses and not plain_text(content).strip()
        if is_empty and not (self._asked_again or self._continues_text or self._is_last):
            return self._ask_again(usage)
        if reason in ("tool_use", "pause_turn", "end_turn", "stop_sequence") and uses:
            self._calls = self._plan(uses)
            self._finished = {}
            bodies = tuple(ToolCall(call.id, call.name, call.server, call.arguments) for call in self._calls)
            messages = ({"role": "assistant", "content": content},)
            return Commit(self.iteration, messages, bodies, self._calls, usage=usage)
        return self._final_commit(content, reason, usage)

    def _mark_text(self, content: list[Block]) -> list[Block]:
        """Return a step's content. If the step continues a cut-off text, the mark `CONTINUES` is on its first text."""
        if not self._continues_text:
            return content
        first = next((block for block in content if block["type"] == "text"), None)
        return [{**block, CONTINUES: True} if block is first else block for block in content]

    def _continue_cut_step(self, content: list[Block], usage: Usage) -> Commit:
        """Return the commit of a step that was cut off at its length limit and continues in another step.

        None of its calls runs, because the arguments of the last one may be cut off.
        """
        self._cuts += 1
        self._added_steps += 1
        if tool_uses(content):
            self._continues_text = False
            commit = self._commit_unrun(content, CUT_CALL, usage)
            assistant, answers = commit.messages
            marked: list[Block] = [{**block, CUT: True} for block in answers["content"]]
            return replace(commit, messages=(assistant, {"role": "user", "content": marked}))
        partial = sendable_part(content)
        if not partial:  # only thinking: repeat the request with more room
            return Commit(self.iteration, (), usage=usage)
        self._continues_text = True
        note = note_block([GO_ON]) | {NOTE: True, CUT: True}
        messages: tuple[Message, ...] = (
            {"role": "assistant", "content": partial},
            {"role": "user", "content": [note]},
        )
        return Commit(self.iteration, messages, usage=usage)

    def _ask_again(self, usage: Usage) -> Commit:
        """Return the commit of a step in which the model said nothing. The next step asks for the answer, once a turn.

        Models sometimes end their message right after the results of their calls.
        """
        self._asked_again = True
        self._added_steps += 1
        note = note_block([ANSWER_NOW]) | {NOTE: True}
        return Commit(self.iteration, ({"role": "user", "content": [note]},), usage=usage)

    def _final_commit(self, content: list[Block], reason: str, usage: Usage) -> Commit:
        if tool_uses(content):  # refused, or no other step may follow: no call runs
            commit = self._commit_unrun(content, f"not run: the message was cut off ({reason})", usage)
            return replace(commit, final=self._finish(reason))
        content = sendable_part(content)
        messages: tuple[Message, ...] = ({"role": "assistant", "content": content},) if content else ()
        notices: tuple[EventBody, ...] = ()
        if reason == "refusal":
            notices = (self._refusal(),)
        elif reason in CUT_REASONS:
            notices = (Notice("ANSWER_CUT", "The answer reached its length limit and ends here. Ask for the rest."),)
        return Commit(self.iteration, messages, notices, usage=usage, final=self._finish(reason))

    def _commit_unrun(self, content: list[Block], why: str, usage: Usage) -> Commit:
        """Return the commit of a message whose calls do not run. Each call gets an error as its result."""
        self._calls = self._plan(tool_uses(content))
        outcome = error_outcome(why)
        ended = tuple(EndedCall(call, outcome, self.finish_call(call, outcome)) for call in self._calls)
        self._state = "received"
        bodies = tuple(
            body
            for ended_call in ended
            for body in (
                ToolCall(ended_call.call.id, ended_call.call.name, ended_call.call.server, ended_call.call.arguments),
                *ended_call.finished.bodies,
            )
        )
        answers: Message = {"role": "user", "content": [ended_call.finished.block for ended_call in ended]}
        messages: tuple[Message, ...] = ({"role": "assistant", "content": content}, answers)
        return Commit(self.iteration, messages, bodies, self._calls, usage=usage, ended=ended)

    def _plan(self, uses: Sequence[Block]) -> tuple[PlannedCall, ...]:
        has_others_text = self.has_read_others
        missing = self._missing
        return tuple(plan_call(use, self._tools, self._policy, others=has_others_text, missing=missing) for use in uses)

    def _refusal(self) -> Notice:
        category = self._step.completed.category if self._step.completed else None
        why = f" (category: {category})" if category else ""
        return Notice("REFUSED", f"The model declined to answer{why}. Later questions are asked without this one.")

    @property
    def _is_last(self) -> bool:
        return self.iteration >= self._max_steps + self._added_steps

    def _results(self) -> Message:
        """Return the results of the step's calls, with a note if only one more step may follow."""
        content = [self._finished[call.id].block for call in self._calls]
        if self._stop is None and self.iteration == self._max_steps + self._added_steps - 1:
            content.append(last_step_note())
        return {"role": "user", "content": content}

    # Blocks and citations

    def _block_started(self, event: BlockStarted) -> tuple[EventBody, ...]:
        self._step.blocks[event.index] = dict(event.block)
        self._step.block_from = self._step.text_length
        if event.block["type"] == "tool_use":
            return self._call_started(event)
        first = event.block["text"] if event.block["type"] == "text" else ""
        self._step.text_length += len(first)
        return (Text(first),) if first else ()

    def _call_started(self, event: BlockStarted) -> tuple[EventBody, ...]:
        step = self._step
        use = sendable_use({**event.block, "input": {}}, {*step.used_ids, *step.call_ids.values()})
        step.call_ids[event.index] = use["id"]
        if use["name"] == CALL_TOOL.name:
            step.wrapped.add(event.index)
            return ()
        step.emitted = True
        tool = self._tools.get(use["name"])
        return (ToolCallStarted(use["id"], use["name"], tool.server if tool else ""),)

    def _wrapped_call_started(self, index: int, call: Block) -> tuple[EventBody, ...]:
        """Return the events of a call through `CALL_TOOL`, whose arguments name the tool and are complete now."""
        ident, tool = self._step.call_ids[index], self._tools.get(call["name"])
        self._step.emitted = True
        started = ToolCallStarted(ident, call["name"], tool.server if tool else "")
        if SECRET in call or BROKEN_INPUT in call:
            return (started,)
        return started, ToolArguments(ident, to_text(call["input"]))

    def _block_stopped(self, event: BlockStopped) -> tuple[EventBody, ...]:
        block = dict(event.block)
        self._step.blocks[event.index] = block
        self._step.open_texts.pop(event.index, None)
        if event.index in self._step.wrapped:
            return self._wrapped_call_started(event.index, unwrap_call(block))
        if block["type"] != "text":
            return ()
        bodies = []
        references = []
        citations = self._step.citations.get(event.index, ())
        block = self._step.blocks[event.index] = with_resolving(block, citations, self._step.passages)
        for citation in citations:
            reference = verify(citation, self._step.passages, self.references)
            if reference is None:
                self._step.dropped_citations += 1
                continue
            self._step.unverified_citations += not citation.verified
            if reference.number > len(self.references):
                self.references.append(reference)
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
                    score=reference.score,
                    page=reference.page,
                    cells=reference.cells,
                    verified=reference.verified,
                    table=reference.table,
                    scanned=reference.scanned,
                    scanned_by=reference.scanned_by,
                    document_date=reference.document_date,
                    review_by=reference.review_by,
                    source_uri=reference.source_uri,
                )
            )
        if references:
            block[REFERENCES] = to_json(references)
        return tuple(bodies)
