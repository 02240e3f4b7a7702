"""The calls of one agent's turn, each from its start to its stored result.

The way of a call through `ToolCalls`::

    run ─► _run ─► _outcome ─► _approval ─► _call_until_done ─► finish
                      │            │               │
                      │            └ a person      └ the server, which may ask a person in between
                      └ tools without a server: stored results, search for tools, questions, a client's functions

After a restart, `end_unfinished` ends the calls that may have had their effect, and `run` repeats the others. A call
that waited for a person continues with the stored answer (`_past`). This module knows no model and no step.
"""

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import anyio
from sqlalchemy import Connection

from agentic_rag.base import failpoints
from agentic_rag.base.errors import FunctionResultMissing
from agentic_rag.base.events import Answerer, Source, ToolProgress, ToolStatus, WaitAction, WaitKind
from agentic_rag.base.ids import TurnId
from agentic_rag.base.json_form import Json, to_text
from agentic_rag.base.messages import Message, text_block
from agentic_rag.base.telemetry import NO_SPAN, Span, SpanContent, WorkKind, running_span, working_in
from agentic_rag.runtime.core.calls import DenialReason, PlannedCall, Policy, error_outcome, sources_of
from agentic_rag.runtime.core.client_functions import function_outcome, function_request
from agentic_rag.runtime.core.deferred_tools import FIND, find_tools
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.questions import ASK_TOOL, answer_of, question_of
from agentic_rag.runtime.core.results import ResultRoom
from agentic_rag.runtime.core.sent_messages import OUTCOME_UNKNOWN
from agentic_rag.runtime.core.transcript import Transcript
from agentic_rag.runtime.core.turn import Turn
from agentic_rag.runtime.human_input import HumanInput, QuestionRequest
from agentic_rag.runtime.log.child_log import ChildLog
from agentic_rag.runtime.log.runlog import RunLog
from agentic_rag.runtime.payload_reader import READ_TOOL, read_on
from agentic_rag.runtime.services import Resources
from agentic_rag.runtime.turn_persistence import store_result
from agentic_rag.store import provenance, sessions, tool_calls, turns
from agentic_rag.store.turns import TurnRecord
from agentic_rag.store.waits import WaitRecord
from agentic_rag.tools.base import (
    Binding,
    CallOutcome,
    CallRequest,
    InputGiven,
    InputNeeded,
    RemoteTask,
    ToolInfo,
    Toolset,
)
from agentic_rag.tools.system import CLIENT, FORGET, RECALL, REMEMBER, SEARCH

PROGRESS_SECONDS = 0.1
"""Shortest time between two progress reports of one call. Earlier ones are dropped."""
MAX_ROUNDS = 20
"""Most input requests of one call, as a limit for servers that never stop asking."""
REASON_CHARS = 500
MAX_DELEGATES = 64
"""Most delegates whose messages are searched for the sources of an approval."""
APPROVAL_OVERRULED = (
    "Texts of others were read since your message; your approval for the rest of the conversation does not cover calls "
    "after that."
)
"""The warning for an approval that is needed although the conversation has an earlier one."""
MEMORY_TOOLS = frozenset({RECALL.name, REMEMBER.name, FORGET.name})
"""Tools whose argument ``role`` names a memory."""

_DECLINED = {
    WaitAction.DECLINE: "declined",
    WaitAction.CANCEL: "cancelled",
    WaitAction.EXPIRE: "not answered in time, which counts as declined",
}


class _Declined(Exception):
    """A call that needs an approval did not get it."""

    def __init__(self, answer: InputGiven) -> None:
        super().__init__(answer.action)
        self.answer = answer


class ToolCalls:
    """Runs the calls of one turn.

    Args:
        resources: shared parts of the runtime.
        transcript: the transcript of the session.
        row: the agent's turn.
        definition: the settings of the turn.
        log: receives the turn's events.
        turn: processes the end of each call.
        human_input: asks people on behalf of the agent.
        caller: the calls of the agent that delegated to this one.
    """

    def __init__(
        self,
        resources: Resources,
        transcript: Transcript,
        row: TurnRecord,
        definition: Definition,
        log: RunLog | ChildLog,
        turn: Turn,
        human_input: HumanInput,
        caller: "ToolCalls | None" = None,
    ) -> None:
        self._resources = resources
        self._transcript = transcript
        self._row = row
        self._definition = definition
        self._log = log
        self._turn = turn
        self._human_input = human_input
        self._caller = caller
        self._toolset: Toolset | None = None
        self._tools: tuple[ToolInfo, ...] = ()
        self._model = definition.model
        self._running: dict[str, PlannedCall] = {}
        """The calls in flight, by id."""
        self._spans: dict[str, Span] = {}
        self._tasks: dict[str, str] = {}
        """The servers' tasks of calls in flight, from before this process had the turn."""
        self._remote: dict[str, RemoteTask] = {}
        """The servers' tasks that run now."""

    def offer(self, toolset: Toolset, tools: tuple[ToolInfo, ...], model: str) -> None:
        """Set the tools of the turn, their toolset and the model. Must be called before the steps that use them."""
        self._toolset, self._tools, self._model = toolset, tools, model

    def waits_for_people(self, children: int) -> bool:
        """Return whether all running calls wait for people, or for one of ``children`` delegates each."""
        # A delegating call counts as waiting if its delegate does, which the caller of this method has checked.
        delegating = sum(call.delegates for call in self._running.values())
        waiting = sum(ident in self._human_input.resting for ident in self._running)
        return bool(self._running) and delegating == children and waiting + delegating == len(self._running)

    async def run(self, calls: Sequence[PlannedCall]) -> None:
        """Run calls concurrently, each to its stored result."""
        async with anyio.create_task_group() as tasks:
            for call in calls:
                tasks.start_soon(self._run, call)

    async def end_unfinished(self, in_flight: Iterable[PlannedCall]) -> None:
        """End calls of a cut-off turn that had begun and may not run again, with a result that says so.

        A call that its server runs as a task is not among them: the task is asked for its result.
        """
        turn_id = self._row.id
        self._tasks = await self._resources.database.read(lambda conn: tool_calls.open_tasks(conn, turn_id))
        for call in in_flight:
            if call.id in self._tasks:
                continue
            if call.refusal is None and not call.repeatable and not call.delegates and await self._has_begun(call):
                await self.finish(call, CallOutcome(ToolStatus.ERROR, (text_block(OUTCOME_UNKNOWN),)))

    async def cancel_tasks(self) -> None:
        """Ask the servers to stop the tasks of this turn, because no agent will read their results."""
        async with anyio.create_task_group() as cancelling:
            for task in self._remote.values():
                cancelling.start_soon(task.cancel)
        self._remote.clear()

    async def _note_task(self, call_id: str, task: RemoteTask) -> None:
        """Store the task that runs a call, before its result is awaited."""
        self._remote[call_id] = task
        # The id comes from the store, after a restart.
        if self._tasks.get(call_id) == task.id:
            return
        self._tasks[call_id], turn_id = task.id, self._row.id
        store = partial(tool_calls.note_task, turn_id=turn_id, tool_call_id=call_id, task=task.id)
        await self._resources.journal.insist(partial(self._resources.database.write, store, durable=True))

    async def _has_begun(self, call: PlannedCall) -> bool:
        """Return whether a call of a cut-off turn may have had its effect. A call that waited for a person has not."""
        past = self._human_input.past(call.id)
        if past or call.tool is None or call.approval is None:
            return past[-1].taken if past else True
        if call.approval.ask_again:
            return False
        return await self._human_input.is_remembered(subject_of(self._definition, call.tool, call.approval.answerer))

    def span_of(self, call_id: str) -> Span:
        """Return the span of a running call, or the current span if there is none."""
        return self._spans.get(call_id) or running_span()

    async def _run(self, call: PlannedCall) -> None:
        origin = call.tool.origin if call.tool is not None else ""
        span = running_span().begin(WorkKind.TOOL, call.name, call_id=call.id, server=call.server, origin=origin)
        self._running[call.id], self._spans[call.id] = call, span
        if span.wants_content:
            span.say(SpanContent.ARGUMENTS, call.arguments)
        ended = "interrupted"
        try:
            with working_in(span):
                try:
                    outcome = call.refusal or await self._outcome(call)
                except _Declined as declined:
                    outcome = describe_declined(WaitKind.APPROVAL, declined.answer)
                    call = replace(call, because=DenialReason.DECLINED)
                await self.finish(call, outcome)
            ended = "" if outcome.status is ToolStatus.OK else outcome.status.value
            if span.wants_content:
                span.say(SpanContent.RESULT, list(outcome.content))
        finally:
            span.end(ended)
            del self._running[call.id], self._spans[call.id]

    async def finish(self, call: PlannedCall, outcome: CallOutcome) -> None:
        """Store the end of a call and deliver its events."""
        finished = self._turn.finish_call(call, outcome)

        def store(conn: Connection) -> None:
            store_result(conn, self._row, call, outcome, finished)
            if outcome.status is ToolStatus.DENIED:
                self._resources.hooks.call_denied(conn, self._row, call)
            elif call.refusal is None:
                self._resources.hooks.call_made(conn, self._row, call, outcome.status)

        with anyio.CancelScope(shield=True):
            # First the files, then their records: the doctor finds a file without a record; the reverse is a loss.
            for payload in finished.kept:
                await self._resources.journal.insist(partial(self._resources.payloads.write, payload.ref, payload.data))
            await self._log.commit(finished.bodies, store)

    # Execution of a call

    async def _outcome(self, call: PlannedCall) -> CallOutcome:
        """Execute a call and return its outcome.

        Raises:
            _Declined: a person did not approve the call.
            FunctionResultMissing: the client sent no result of its function.
        """
        insist = self._resources.journal.insist
        if call.tool is READ_TOOL:
            room = ResultRoom.of(self._model)
            return await insist(partial(read_on, self._resources, self._transcript.session_id, call.arguments, room))
        if call.tool is FIND:
            late = self._transcript.prompt_state.late if self._transcript.prompt_state else ()
            return find_tools(self._tools, late, call.arguments, model=self._model)
        if call.tool is ASK_TOOL:
            return answer_of(await self._ask(call, question_of(call.arguments)))
        if call.tool is not None and call.tool.server == CLIENT:
            return function_outcome(await self._result_of_client(call))
        arguments, note = call.arguments, ""
        # A call whose server runs it as a task was approved before the restart.
        if call.approval is not None and call.id not in self._tasks:
            approval = await self._approval(call)
            if approval.action is not WaitAction.ACCEPT:
                raise _Declined(approval)
            arguments = approval.content.get("arguments", arguments)
            redact = self._resources.redactor.of(self._definition.domain_id)
            note = "" if arguments == call.arguments else redact(describe_edit(call.arguments, arguments))
        outcome = await self._call_until_done(call, arguments)
        return replace(outcome, content=(text_block(note), *outcome.content)) if note else outcome

    async def _result_of_client(self, call: PlannedCall) -> InputGiven:
        """Wait for the result of a function that the client's program runs.

        Raises:
            FunctionResultMissing: the client sent no result in time.
        """
        past = self._past(call, {WaitKind.FUNCTION})
        question = QuestionRequest(
            call.id,
            function_request(call.name),
            server=CLIENT,
            tool_name=call.name,
            arguments=call.arguments,
            usage=self._turn.usage,
        )
        answer = await (self._human_input.join(past) if past else self._human_input.ask(question))
        if answer.action is WaitAction.EXPIRE:
            raise FunctionResultMissing(call.name)
        return answer

    async def _approval(self, call: PlannedCall) -> InputGiven:
        """Return a person's answer to a call, given earlier in this conversation or now.

        An earlier answer does not count for a call that a text written by others may have caused.
        """
        assert call.tool is not None
        assert call.approval is not None
        subject = subject_of(self._definition, call.tool, call.approval.answerer)
        past = self._past(call, {WaitKind.APPROVAL})
        warning = call.approval.warning
        if past is None and await self._human_input.is_remembered(subject):
            if not call.approval.ask_again:
                return InputGiven(WaitAction.ACCEPT)
            warning = warning or APPROVAL_OVERRULED
        schema = dict(call.tool.input_schema)
        title = f"Run {call.name}?"
        label = f"{call.tool.title!r} ({call.tool.remote_name})" if call.tool.title else repr(call.tool.remote_name)
        message = f"The assistant wants to call {label} of the server {call.server!r}."
        needed = InputNeeded(WaitKind.APPROVAL, title, message, schema=schema, warning=warning)
        question = QuestionRequest(
            call.id,
            needed,
            call.approval.answerer,
            server=call.server,
            tool_name=call.name,
            arguments=call.arguments,
            sources=await self._sources(),
            subject=subject,
        )
        return await (self._human_input.join(past) if past else self._human_input.ask(question))

    async def _sources(self) -> tuple[Source, ...]:
        """Return the untrusted texts that may influence a call of this agent, including those its callers read."""
        # A delegate acts on its task, and the texts that its callers read may have shaped that.
        callers: list[ToolCalls] = []
        agent: ToolCalls | None = self
        while agent is not None:
            callers.append(agent)
            agent = agent._caller
        delegated = await self._resources.journal.insist(partial(self._read_by_delegates, [*callers]))
        sources = sources_of([*(caller._messages() for caller in callers), *delegated], self._tools)
        sender = self._definition.untrusted
        return sources if sender is None else (Source("webhook", sender), *sources)

    def _messages(self) -> list[Message]:
        """Return this turn's messages."""
        return [entry.message for entry in self._transcript.in_window() if entry.turn_id == self._row.id]

    async def _read_by_delegates(self, callers: Sequence["ToolCalls"]) -> list[list[Message]]:
        """Return the messages of all delegates that have answered one of these agents, one list per delegate."""
        answered: list[tuple[TurnId, frozenset[str] | None]] = [
            (caller._row.id, frozenset(block["tool_use_id"] for message in caller._messages()
                                     for block in message["content"] if block["type"] == "tool_result"))
            for caller in callers
        ]  # fmt: skip

        def read(conn: Connection) -> list[list[Message]]:
            conversations: list[list[Message]] = []
            waiting = list(answered)
            while waiting and len(conversations) < MAX_DELEGATES:
                turn_id, calls = waiting.pop(0)
                for session in sessions.list_delegated(conn, turn_id):
                    if calls is not None and session.tool_call_id not in calls:
                        continue
                    rows = sessions.transcript(conn, session.id)
                    conversations.append([{"role": row.role, "content": row.content} for row in rows])
                    waiting += [(turn.id, None) for turn in turns.of_session(conn, session.id)]
            return conversations

        return await self._resources.database.read(read)

    async def _call_until_done(self, call: PlannedCall, arguments: Json) -> CallOutcome:
        """Call the server, and repeat the call with each input that it requests, until there is an outcome."""
        answer: InputGiven | None = None
        past = self._past(call, {WaitKind.FORM, WaitKind.URL})
        if past is not None and not past.taken:
            answer = await self._human_input.join(past)
            if answer.action is not WaitAction.ACCEPT:
                return await self._decline(call, past.kind, answer)
        for _ in range(MAX_ROUNDS):
            outcome = await self._call(call, arguments, answer)
            if isinstance(outcome, CallOutcome):
                self._remote.pop(call.id, None)
                return outcome
            answer = await self._ask(call, outcome)
            if answer.action is not WaitAction.ACCEPT:
                return await self._decline(call, outcome.kind, answer)
        return error_outcome(f"The server {call.server!r} asked for something {MAX_ROUNDS} times and was given up.")

    async def _decline(self, call: PlannedCall, kind: WaitKind, answer: InputGiven) -> CallOutcome:
        """Return the outcome of a call whose question was declined. A task that asked it is cancelled."""
        task = self._remote.pop(call.id, None)
        if task is not None:
            await task.cancel()
        elif (known_task := self._tasks.get(call.id)) is not None and self._toolset is not None:
            await self._toolset.cancel_task(call.server, known_task)  # another process began the task
        return describe_declined(kind, answer)

    async def _call(self, call: PlannedCall, arguments: Json, answer: InputGiven | None) -> CallOutcome | InputNeeded:
        assert call.tool is not None
        assert self._toolset is not None
        limits = self._definition.limits
        # a delegate has its own clock, which pauses while it waits for a person
        patience = self._resources.patience.wait_seconds
        timeout = limits.turn_timeout + patience if call.delegates else limits.tool_timeout
        binding = await self._binding_of(call, arguments)
        task, note = self._tasks.get(call.id, ""), partial(self._note_task, call.id)
        request = CallRequest(call.id, call.tool, arguments, self._row.id, binding, answer, task, note)
        ask = partial(self._ask, call, live=True) if self._definition.has_person else None
        if call.name == REMEMBER.name:
            await self._note_memories()
        failpoints.reached("tool.begin")
        retrieval = self._begin_retrieval(call)
        try:
            outcome = await self._toolset.call(request, timeout, self._progress_of(call.id), ask)
            if retrieval is not NO_SPAN and isinstance(outcome, CallOutcome):
                retrieval.note(hits=_count_hits(outcome.structured))
        finally:
            retrieval.end()
        failpoints.reached("tool.end")
        return outcome

    async def _note_memories(self) -> None:
        """Record which documents the memories that this turn is about to save may come from."""
        row, domain_id = self._row, self._definition.domain_id
        note = partial(
            provenance.note_memories, domain_id=domain_id, turn_id=row.id, conversation_id=row.conversation_id
        )
        read = partial(provenance.read_by, conversation_id=row.conversation_id)
        # Most conversations have read no document, and the note is a write.
        if await self._resources.database.read(read):
            await self._resources.journal.insist(partial(self._resources.database.write, note))

    async def _binding_of(self, call: PlannedCall, arguments: Json) -> Binding:
        """Return the binding of a call. For a memory tool with a role, add the roles activated in this conversation."""
        binding, named_role = self._definition.binding, arguments.get("role")
        if call.name not in MEMORY_TOOLS or not named_role or named_role in (binding.role, *binding.memory_roles):
            return binding
        session_id = self._transcript.session_id

        def read(conn: Connection) -> list[str]:
            return [role for turn in turns.of_session(conn, session_id) for role in turn.role_hashes]

        activated = [*await self._resources.database.read(read), *self._turn.role_hashes]
        roles = dict.fromkeys((*binding.memory_roles, *activated))
        return replace(binding, memory_roles=tuple(roles))

    def _begin_retrieval(self, call: PlannedCall) -> Span:
        """Begin the span of a search of documents or memories. Other calls have none."""
        source = {SEARCH.name: "documents", RECALL.name: "memory"}.get(call.name)
        if source is None:
            return NO_SPAN
        requested = call.arguments.get("top_k")
        bound = self._definition.binding.top_k if source == "documents" else None
        top_k = requested if isinstance(requested, int) else bound
        span = running_span().begin(WorkKind.RETRIEVAL, source, source=source, top_k=top_k)
        if span.wants_content:
            span.say(SpanContent.QUERY, call.arguments.get("query", ""))
        return span

    async def _ask(self, call: PlannedCall, needed: InputNeeded, *, live: bool = False) -> InputGiven:
        """Ask the conversation's owner. Without a person, the question counts as declined."""
        if not self._definition.has_person:
            return InputGiven(WaitAction.DECLINE, {"reason": "no person can be asked here"})
        past = self._past(call, {needed.kind}) if needed.kind is WaitKind.QUESTION else None
        if past is not None:
            return await self._human_input.join(past)
        return await self._human_input.ask(
            QuestionRequest(call.id, needed, needed.answerer, server=call.server, live=live)
        )

    def _past(self, call: PlannedCall, kinds: set[WaitKind]) -> WaitRecord | None:
        """Return, once, the newest wait of a call from before this process had the turn."""
        past = self._human_input.past(call.id)
        wait = next((wait for wait in reversed(past) if wait.kind in kinds and not wait.live), None)
        if wait is not None:
            # An answer is used once: a second question of the same call needs its own.
            past.remove(wait)
        return wait

    def _progress_of(self, call_id: str) -> Callable[[float, float | None, str | None], Awaitable[None]]:
        last = 0.0

        async def report(progress: float, total: float | None, message: str | None) -> None:
            nonlocal last
            if anyio.current_time() - last < PROGRESS_SECONDS:
                return
            last = anyio.current_time()
            self._log.append(ToolProgress(call_id, progress, total, message))

        return report


def _count_hits(structured: object) -> int:
    """Return how many passages or memories a search found."""
    fields = structured if isinstance(structured, dict) else {}
    return len(fields.get("hits") or fields.get("engrams") or ())


def policy_of(definition: Definition, resources: Resources) -> Policy:
    """Return the policy for the calls of a turn."""
    return Policy(
        definition.tool_policy,
        definition.effects_allowed_by_default,
        shared_memory=definition.binding.scope == "domain",
        alone=lambda: resources.services.alone,
        has_person=definition.has_person,
        denies_effects=bool(definition.denies_effects),
    )


def describe_declined(kind: WaitKind, answer: InputGiven) -> CallOutcome:
    """Return the outcome of a call that a person did not approve or answer, with a text for the model."""
    subject = "approval" if kind is WaitKind.APPROVAL else "input"
    reason = answer.content.get("reason")
    why = f": {reason[:REASON_CHARS]}" if isinstance(reason, str) and reason.strip() else ""
    text = f"The {subject} that this call needs was {_DECLINED[answer.action]}{why}. Go on without."
    status = ToolStatus.DENIED if kind is WaitKind.APPROVAL else ToolStatus.ERROR
    return CallOutcome(status, (text_block(text),))


def describe_edit(requested: Json, sent: Json) -> str:
    """Return the note to the model about arguments that a person has changed."""
    names = sorted(name for name in requested.keys() | sent.keys() if requested.get(name) != sent.get(name))
    changed = to_text({name: sent[name] for name in names if name in sent})
    left_out = [name for name in names if name not in sent]
    omitted = f" Left out: {', '.join(left_out)}." if left_out else ""
    return f"[The person who approved this call changed its arguments. It ran with {changed}.{omitted}]\n"


def subject_of(definition: Definition, tool: ToolInfo, answerer: Answerer) -> str:
    """Return the key under which an approval is remembered: a hash of the tool, its server and the required answerer.

    Any change of the tool or its server needs a new approval. An owner's approval does not count once an admin's is
    required.
    """
    entry = next((entry.hash() for entry in definition.entries if entry.name == tool.server), "")
    described = [tool.remote_name, tool.description, dict(tool.input_schema)]
    described_call = to_text([answerer, tool.origin, tool.server, entry, *described])
    return hashlib.sha256(described_call.encode()).hexdigest()
