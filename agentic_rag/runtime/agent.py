"""The agent: runs one turn by doing the I/O that `agentic_rag.runtime.core.turn` requests.

An `Agent` owns one running turn: its model calls, tool calls, commits, timeout and interrupt. It knows no conversation,
no socket and no user. The way through this file:

- `Agent.run` → `_run`: `_prepare` opens the tools and stores the notes before the question, `_drive` runs the loop.
- `_drive` asks `Turn.next` for an instruction and carries it out: `_call_model`, `ToolCalls.run` or `_commit`.
- `_call_model` → `_request` builds a request, and `_stream` sends it. `_repair`, `_shorten` and `_ask_another` handle a
  refused request.
- `suspend` lets a turn that waits for people leave the process. `interrupt` and `give_up` stop it from outside.

Every commit is shielded from cancellation. So the store always has the state before or after an instruction, and a turn
can be resumed from there.
"""

import logging
import random
import time
from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import anyio
import anyio.lowlevel
from sqlalchemy import Connection

from agentic_rag.base.budget_errors import BudgetExceeded
from agentic_rag.base.errors import (
    AgenticRagError,
    CompactionNotNeeded,
    ContextTooLong,
    GenerationTimeout,
    InternalError,
    LeaseLost,
    ModelError,
    ServerStopping,
    StorageError,
    TurnBudgetExceeded,
    first_cause,
    refused_write,
)
from agentic_rag.base.events import Done, InputAnswered, Notice, Retrying, StepReset, WaitAction
from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import REFUSED, Block, ToolSpec, tool_uses
from agentic_rag.base.telemetry import Fact, Span, WorkKind, working_in
from agentic_rag.base.terminal import log_turn
from agentic_rag.models.base import ModelRequest
from agentic_rag.models.tool_rules import named_tools
from agentic_rag.runtime.compaction import Compaction, compacted_event
from agentic_rag.runtime.context import Context
from agentic_rag.runtime.core.calls import PlannedCall
from agentic_rag.runtime.core.client_functions import forced_choice
from agentic_rag.runtime.core.deferred_tools import list_deferred, many_tokens
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.failures import failure_of
from agentic_rag.runtime.core.model_tools import sent_key, spec_key, usable_tools
from agentic_rag.runtime.core.prompt_state import Prompt, PromptState, changes
from agentic_rag.runtime.core.request import (
    BuiltRequest,
    begin_prompt_state,
    build_request,
    prompt_of,
    servers_back,
    tool_specs,
    turn_notes,
)
from agentic_rag.runtime.core.results import ResultRoom
from agentic_rag.runtime.core.retry import Attempts, after, is_busy, is_too_long, retry_delay, sizes_of
from agentic_rag.runtime.core.transcript import Transcript
from agentic_rag.runtime.core.turn import CallModel, CallTools, Commit, Turn
from agentic_rag.runtime.human_input import HumanInput, TurnClock, TurnPause
from agentic_rag.runtime.log.child_log import ChildLog
from agentic_rag.runtime.log.runlog import RunLog
from agentic_rag.runtime.missing_passages import chunks_of, find_gone, find_hidden
from agentic_rag.runtime.model_stream import ModelStream
from agentic_rag.runtime.notifier import Once
from agentic_rag.runtime.payload_reader import Pictures, with_own_tools
from agentic_rag.runtime.refused_images import named_images, refuses_image
from agentic_rag.runtime.services import Resources
from agentic_rag.runtime.tool_calls import ToolCalls, policy_of
from agentic_rag.runtime.turn_persistence import (
    Resume,
    end_delegates,
    end_of,
    end_without_agent,
    store_commit,
    store_end,
    store_prompt_state,
)
from agentic_rag.store import sessions, turns, waits
from agentic_rag.store.budgets import Payer
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.compactions import CompactedBy
from agentic_rag.store.turns import TurnRecord
from agentic_rag.tools.base import ToolInfo, Toolset

logger = logging.getLogger(__name__)

MAX_SHORTENED = 2
"""How often one step's request is shortened after the model refused it as too long."""
MAX_REFUSED_TOOLS = 16
"""If a model's service has refused this many tools, the turn continues without any tool of users' servers."""
REFUSAL_CHARS = 400
"""Most characters of the service's error about a tool."""
CHILDREN_SECONDS = 10.0
"""Seconds that an ending turn waits for its interrupted delegates to end."""


class _Suspended(Exception):
    """Raised in place of the turn's end: the turn was suspended while it waits for people."""


class Agent:
    """Runs one turn of a session to its end.

    Args:
        resources: shared parts of the runtime.
        transcript: the session's transcript, which contains the turn's user message.
        row: the accepted turn.
        definition: the settings of the turn.
        log: receives the turn's events.
        parent: for a delegate, the agent whose ``delegate`` call started it. The parent ends the delegate at its own
            end and bears its cost.
    """

    def __init__(
        self,
        resources: Resources,
        transcript: Transcript,
        row: TurnRecord,
        definition: Definition,
        log: RunLog | ChildLog,
        parent: "Agent | None" = None,
    ) -> None:
        self.resources = resources
        self.transcript, self.row = transcript, row
        self._definition = self._active = definition  # a fallback model may replace `_active` for the rest of the turn
        self._fallbacks = list(definition.fallback_models)
        self.log = log
        self._scope = anyio.CancelScope()
        self.interrupted = False
        """Whether a user asked to end the turn."""
        self._began = time.monotonic()
        self._turn = Turn(
            message_id=row.message_id,
            model=definition.model,
            policy=policy_of(definition, resources),
            max_steps=definition.limits.max_steps,
            new_ref=lambda: new_id("ref"),
            others=parent.has_read_others if parent is not None else definition.untrusted is not None,
            room=ResultRoom.of(definition.model),
        )
        self._context = Context(resources, transcript, definition, row.id, row.fence)
        self._pictures = Pictures(resources.database, resources.payloads)
        self._clock: TurnClock = TurnClock(self._scope, parent._clock if parent is not None else None)
        self._pause: TurnPause = parent._pause if parent is not None else TurnPause(row.id)
        payer = Payer(definition.domain_id, transcript.labels.user_id, row.key_id)
        self._account = resources.spending.account(payer, self._pause.root_turn_id)
        self._human_input = HumanInput(resources, row, transcript.labels, log, self._clock, self._pause)
        caller = parent._calls if parent is not None else None
        self._calls: ToolCalls = ToolCalls(
            resources, transcript, row, definition, log, self._turn, self._human_input, caller
        )
        self._toolset: Toolset | None = None
        self._tools: tuple[ToolInfo, ...] = ()
        self._restored = True
        """Whether the stored state of a resumed turn is in `_turn`. A turn that begins has none."""
        self._step_announced = False
        """Whether the event of the next step is in the log: the first one of a user's turn is stored with the turn."""
        self._full_reported = False
        """Whether the notice ``CONTEXT_FULL`` was sent."""
        self._refused_now: set[tuple[str, str]] = set()
        """Model and name of each tool that the model's service refused. The turn continues without these tools."""
        self._refused_specs: set[str] = set()
        """The keys (`spec_key`) of the refused definitions, which later requests of the turn leave out."""
        self._resumes = row.resumes
        """How often the turn was resumed since its last commit. The first commit sets it to 0."""
        self._end = ""
        """The reason of the end in one word, or empty while the turn runs."""
        self.over = False
        """Whether the terminal event was delivered, or is about to be."""
        self.garbled = False
        """Whether the transcript in memory may differ from the store."""
        self.lost = False
        """Whether this process must not write the turn any more.

        Another process holds its lease, or this server stops and the next one resumes the turn.
        """
        self.suspended = False
        """Whether the turn was suspended while it waits for people. No process runs the turn, and its log continues."""
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.ended = Once()
        self._children: list[Agent] = []
        if parent is not None:
            parent._children.append(self)
            if parent.log.closed_to_delegates:  # the parent is ending and has interrupted its other delegates
                self.interrupt()

    @property
    def definition(self) -> Definition:
        return self._definition

    @property
    def path(self) -> str:
        """The path of delegates that leads to this agent, unique in the user's turn. Empty for the main agent."""
        return self.transcript.labels.agent

    @property
    def has_read_others(self) -> bool:
        """Whether the turn has read text written by others; see `Turn.has_read_others`."""
        return self._turn.has_read_others

    @property
    def context(self) -> Context:
        """The size limits for the session's requests."""
        return self._context

    @property
    def tools(self) -> tuple[ToolInfo, ...]:
        return self._tools

    def interrupt(self) -> None:
        """End the turn at the user's request. Idempotent, and without effect after the turn has ended."""
        self.interrupted = True
        self._scope.cancel()

    def give_up(self) -> None:
        """Stop without an event, because another process runs the turn. Delegates stop too. Idempotent."""
        self.lost = True
        self._scope.cancel()
        for child in self._children:
            child.give_up()

    @property
    def _was_resumed(self) -> bool:
        """Whether the turn was suspended or cut off before.

        Then its delegates were too, and some may not run again yet.
        """
        return self.row.fence > 1

    # Waiting for people

    @property
    def waits_for_people(self) -> bool:
        """Whether every call of the running step waits for people, also those of its delegates."""
        working = [child for child in self._children if not child.ended.happened]
        return self._calls.waits_for_people(len(working)) and all(child.waits_for_people for child in working)

    @property
    def waiting_since(self) -> float:
        """The start of the newest of those waits, by the event loop's clock."""
        return max(self._human_input.since, *(child.waiting_since for child in self._children), 0.0)

    async def suspend(self) -> bool:
        """Suspend the turn if all of it waits for people. A stored answer lets a process resume the turn.

        Only for the turn of a user. Returns whether the turn was suspended.
        """
        async with self._pause.taking:
            if self.over or self.suspended or self.interrupted or self.lost or not self.waits_for_people:
                return False
            tree = list(self._tree())

            def store(conn: Connection) -> None:
                nonlocal tree
                if waits.has_untaken(conn, self.row.id):
                    tree = []
                for agent in tree:
                    turns.suspend(conn, agent.row.id, agent.row.fence)

            with anyio.CancelScope(shield=True):
                await self.log.commit((), store, durable=True)
                if self._scope.cancel_called:  # interrupted during the commit: this agent must store the end
                    await self.resources.journal.store(partial(self._undo_suspend, tree), ())
                    return False
            for agent in tree:
                agent.suspended = True
                agent._scope.cancel()
            return bool(tree)

    def _undo_suspend(self, tree: Sequence["Agent"], conn: Connection) -> None:
        for agent in tree:
            turns.undo_suspend(conn, agent.row.id, agent.row.fence, self.resources.owner)

    def _tree(self) -> Iterator["Agent"]:
        yield self
        for child in self._children:
            if not child.ended.happened:
                yield from child._tree()

    async def run(self, resume: Resume | None = None) -> None:
        """Run the turn to its end. Only cancellation from outside (the server stops) leaves the turn running.

        ``resume``: the stored state of a turn whose server stopped, or that was suspended.
        """
        with self._span() as span:
            try:
                await self._run_to_end(resume)
            finally:
                span.end(self._end or ("waiting" if self.suspended else "left"))

    @contextmanager
    def _span(self) -> Iterator[Span]:
        """Begin the turn's span; inside the block, log lines name the turn. The caller ends the span."""
        labels, log = self.transcript.labels, self.log
        name = labels.agent.rpartition("/")[2] or self._definition.binding.role or "assistant"
        facts: dict[str, Fact] = {
            "turn_id": self.row.id,
            "conversation_id": labels.conversation_id,
            "domain_id": labels.domain_id,
            "agent": labels.agent,
        }
        if self.parent is not None and isinstance(log, ChildLog):  # a delegate's turn belongs to its call
            span = self.parent._calls.span_of(log.call_id).begin(WorkKind.TURN, name, **facts)
        else:
            traceparent = log.traceparent if isinstance(log, RunLog) else ""
            span = self.resources.observer.begin(WorkKind.TURN, name, traceparent=traceparent, **facts)
        with log_turn(self.row.id, span.trace_id), working_in(span):
            yield span

    async def _run_to_end(self, resume: Resume | None) -> None:
        try:
            await self._run(resume)
        except LeaseLost as exc:
            logger.warning("%s", exc)
            self.lost = self.over = True
            self.log.hand_over()
        except ServerStopping:
            self.lost = self.over = True
        except _Suspended:
            self.over = True
        except Exception as exc:
            await self._end_with_error_only(exc)
        else:
            self.log.close()
        finally:
            if self.parent is not None:
                self.parent._turn.usage += self._turn.usage
            self.ended.happen()
            await self._account.aclose()

    async def _end_with_error_only(self, exc: Exception) -> None:
        """End a turn with only an error event, because its regular end cannot be stored. The last resort."""
        final = failure_of(first_cause(exc) or self._internal_error(exc))
        self.over = self.garbled = True
        self._end = final.code
        self.log.drop_undelivered()

        def store(conn: Connection) -> None:
            end_without_agent(conn, self.row, final)
            self._account.release(conn)
            if self.parent is None:
                self.resources.hooks.turn_ended(conn, self.row, final)

        try:
            with anyio.CancelScope(shield=True):
                await self.log.commit([final], store, durable=True)
        except Exception as again:
            logger.error("turn %s has no end until the next start", self.row.id, exc_info=again)
            self.lost = True
        self.log.close()

    async def _end_children(self) -> None:
        """Interrupt the delegates of the turn and wait for their ends. After this they write no more events."""
        for child in self._children:
            child.interrupt()
        if self._children:
            with anyio.move_on_after(CHILDREN_SECONDS, shield=True):
                for child in self._children:
                    await child.ended.wait()
        self.log.closed_to_delegates = True

    async def _run(self, resume: Resume | None) -> None:
        limits = self._definition.limits
        failure: AgenticRagError | None = None
        self._restored = resume is None
        self._step_announced = resume is None and self.parent is None
        self._clock.start(limits.turn_timeout)
        # An interrupt, the timeout, `give_up` and `suspend` all cancel this scope. The flags below tell them apart.
        with self._scope:
            try:
                await self._prepare(resume)
                await self._end_if_asked()  # interrupted before the first step: do not call the model
                await self._drive()
            except Exception as exc:  # the turn ends below, with the output so far
                failure = first_cause(exc) or refused_write(exc) or self._internal_error(exc)
        if self.suspended:
            for child in self._children:
                await child.ended.wait()
            raise _Suspended
        await self._end_children()
        if self.lost:
            raise LeaseLost(self.row.id)
        if self.over and failure is None:  # the end is stored, so later requests to end are ignored
            return
        if self._scope.cancelled_caught and not self.interrupted:
            failure = GenerationTimeout("The turn", limits.turn_timeout)
        if isinstance(failure, LeaseLost | ServerStopping):
            raise failure
        with anyio.CancelScope(shield=True):
            await self._calls.cancel_tasks()
        if failure is not None:
            if not isinstance(failure, InternalError):  # InternalError is in the log already, with its traceback
                logger.warning("turn %s failed: %s", self.row.id, failure)
            self._turn.fail(failure, self._human_input.unstarted)
        elif self.interrupted:
            self._turn.interrupt(self._human_input.unstarted)
        # The turn has a reason to stop, or has ended already. Its next instruction is the final commit, or None.
        with anyio.CancelScope(shield=True):
            if resume is not None and not self._restored:  # stopped before `_resume`: the end must keep stored results
                self._restore(resume)
            await self._drive()

    def _internal_error(self, exc: Exception) -> InternalError:
        reference = new_id("err")
        logger.error("turn %s failed (%s)", self.row.id, reference, exc_info=exc)
        return InternalError(reference)

    # Before the first step

    async def _prepare(self, resume: Resume | None) -> None:
        """Open the tools, and store the notes that the model reads before the question, or restore a resumed turn.

        The notes name what changed since the session's last request: tools, prompt, role, servers and documents. A new
        prompt would make the service's cache useless, so the first one stays and notes describe the differences.
        """
        self._toolset = toolset = await self.resources.services.open_toolset(self._definition)
        self._offer(with_own_tools(self._definition, toolset.tools, self.transcript.prompt_state))
        if resume is None and not self._context.roomy:
            await self._make_room()
            await self.resources.journal.insist(self._context.move_window)
        self._turn.take_role(self.transcript.activation)
        state, news = self._current_prompt_state()
        if resume is not None:
            await self._store_prompt_state(self.transcript.prompt_state or state, [])
            await self._resume(resume)
            return
        changed = await self._changed_role()
        for notice in missing_notices(toolset, admin=self._definition.binding.admin):
            self.log.append(notice)
        if changed:
            self.log.append(Notice("ROLE_CHANGED", f"The role {changed} was edited."))
        gone_chunks = await find_gone(self.resources, self._definition.domain_id, self.transcript)
        hidden = await find_hidden(self.resources, self._definition, self.transcript)
        gone_chunks -= chunks_of(self.transcript, hidden)  # a note would name the documents
        lost_documents = self.transcript.lost_documents(gone_chunks)
        missing = toolset.missing
        back = servers_back(self.transcript.down, missing, {tool.server for tool in self._tools})
        await self._store_prompt_state(state, turn_notes(missing, changed, news, lost_documents, back))

    def _offer(self, tools: tuple[ToolInfo, ...]) -> None:
        """Set the tools of the turn, without those that the model's service refuses."""
        assert self._toolset is not None
        tools = self._without_refused(tools)
        self._tools = tools
        self._calls.offer(self._toolset, tools, self._active.model)
        self._turn.offer(tools, self._toolset.missing)
        self._context.offer(tools)

    async def _list_again(self) -> None:
        """Ask servers that were starting for their tools, as long as at the start of the turn.

        Calls of these tools can then run. The requests of this turn keep their list of tools, so that the service's
        cache stays valid.
        """
        self._toolset = toolset = await self.resources.services.open_toolset(self._definition)
        tools = self._without_refused(with_own_tools(self._active, toolset.tools, self.transcript.prompt_state))
        self._calls.offer(toolset, tools, self._active.model)
        self._turn.offer(tools, toolset.missing)

    def _without_refused(self, tools: tuple[ToolInfo, ...]) -> tuple[ToolInfo, ...]:
        domain, model, refusals = self._definition.domain_id, self._active.model, self.resources.refused_tools
        usable = usable_tools(model, tools)
        for tool, reason in usable.refused:
            spec = ToolSpec(name=tool.name, description=tool.description, input_schema=dict(tool.input_schema))
            if refusals.add(domain, model, tool, spec, reason):
                logger.warning("domain %s: no %s is shown the tool %s: %s", domain, model, tool.name, reason)
        keys = refusals.keys(domain, model)
        allowed = [tool for tool in usable.tools if (model, tool.name) not in self._refused_now]
        if not keys:
            return tuple(allowed)
        specs = tool_specs(self._active, allowed)
        visible = [tool for tool, spec in zip(allowed, specs, strict=True) if sent_key(model, spec) not in keys]
        for tool in visible:
            if tool.origin == "user":
                refusals.settle(domain, model, tool)
        return tuple(visible)

    def _drop_refused(self, error: ModelError, request: ModelRequest) -> bool:
        """Drop the tools for which the model's service refused a request. Return whether there were any.

        A tool of a user's server is dropped until its server lists another definition, our own tools for this turn.
        """
        names = set(named_tools(error, request.tools))
        if not names:
            return False
        domain, model = self._definition.domain_id, self._active.model
        if len(self._refused_now) >= MAX_REFUSED_TOOLS:  # one by one takes too long
            names |= {tool.name for tool in self._tools if tool.origin == "user"}
        infos = {tool.name: tool for tool in self._tools}
        words = str(error)[:REFUSAL_CHARS]
        for spec in request.tools:
            if spec["name"] not in names:
                continue
            self._refused_now.add((model, spec["name"]))
            self._refused_specs.add(spec_key(spec))
            tool = infos.get(spec["name"])
            if tool is None or tool.origin != "user":
                logger.error("domain %s: %s refused our tool %s: %s", domain, model, spec["name"], words)
                self.log.append(Notice("TOOL_REFUSED", f"{spec['name']}: the model's service refused this tool."))
                continue
            reason = f"the service of {model} refused it: {words}"
            logger.warning("domain %s: tool %s of server %s: %s", domain, tool.remote_name, tool.server, reason)
            self.resources.refused_tools.add(domain, model, tool, spec, reason)
            if self._definition.binding.admin:
                self.log.append(
                    Notice("TOOL_REFUSED", f"{tool.server}: the tool {tool.remote_name!r} is left out: {reason}")
                )
        self._offer(tuple(self._tools))
        return True

    def _sent_images(self) -> AbstractSet[str]:
        """Return the refs of the images in a request to the current model."""
        return self.resources.refused_images.without_refused(self._active.model, self.transcript.pictures)

    async def _drop_images(self, error: ModelError, request: ModelRequest) -> bool:
        """Drop the images that the model's service cannot read. Return whether there were any."""
        sent = self._sent_images()
        if not sent or not refuses_image(error):
            return False
        named = named_images(error, request, await self._pictures.of(sent))
        dropped = self.resources.refused_images.refuse(self._active.model, sent, named)
        domain, words = self._definition.domain_id, str(error)[:REFUSAL_CHARS]
        logger.warning("domain %s: images %s are not sent: %s", domain, ", ".join(sorted(dropped)), words)
        what = "an image" if len(dropped) == 1 else f"{len(dropped)} images"
        self.log.append(Notice("IMAGE_REFUSED", f"The model's service cannot read {what}. The model answers without."))
        return True

    def _prompt(self) -> Prompt:
        """Return the prompt for a session that begins now."""
        return prompt_of(self._definition, self._tools, str(self.resources.services.today))

    def _current_prompt_state(self) -> tuple[PromptState, list[str]]:
        """Return the session's prompt state for this turn, and the notes on changes."""
        current = self._prompt()
        before = self.transcript.prompt_state
        if before is None:
            return begin_prompt_state(self._definition, current, self._tools), []
        listed = {tool.name for tool in list_deferred(self._tools, many_tokens(self._definition.model))}
        return before.with_current(current), changes(before, current, listed)

    async def _changed_role(self) -> str | None:
        """Return the id of the session's active role if its files were edited since its activation, else None."""
        activation = self.transcript.activation
        if activation is None:
            return None
        binding = self._definition.binding
        if binding.draft.files and activation.role == binding.role:
            return activation.role if binding.draft.hash != activation.hash else None
        role_hash = (
            self.resources.services.role_hash
        )  # None: the role is missing or broken, so there is no newer version
        current = await self.resources.journal.insist(partial(role_hash, self._definition.domain_id, activation.role))
        return activation.role if current is not None and current != activation.hash else None

    async def _store_prompt_state(self, state: PromptState, notes: list[Block]) -> None:
        """Store the session's prompt state, and insert the notes before the turn's user message."""
        transcript, session_id = self.transcript, self.transcript.session_id
        if not notes and state == transcript.prompt_state:
            return
        question = transcript.question_of(self.row.id)
        content = [*notes, *question.message["content"]]

        def store(conn: Connection) -> None:
            turns.hold(conn, self.row.id, self.row.fence)
            store_prompt_state(conn, session_id, state)
            if notes:
                sessions.set_content(conn, session_id, question.seq, content)

        with anyio.CancelScope(shield=True):
            await self.resources.journal.store(store, ())
        if notes:
            transcript.rewrite(question, content)
        transcript.set_prompt_state(state)

    async def _resume(self, resume: Resume) -> None:
        in_flight = self._restore(resume)
        if not in_flight:
            self.log.append(StepReset(self._turn.iteration + 1))
        await self._human_input.cancel_orphaned()
        await self._calls.end_unfinished(in_flight)

    def _restore(self, resume: Resume) -> Sequence[PlannedCall]:
        """Restore the state of a resumed turn and return the calls that were in flight."""
        self._restored = True
        self._human_input.remember(resume.waits)
        return self._turn.restore(resume.messages, resume.finished, resume.usage)

    # The loop

    async def _drive(self) -> None:
        """Carry out the turn's instructions until there is none."""
        while True:
            self._turn.timings["total"] = round((time.monotonic() - self._began) * 1000)
            instruction = self._turn.next()
            if instruction is None:
                return
            if isinstance(instruction, CallModel):
                await self._call_model(instruction)
                if self._turn.waits_for_server:
                    await self._list_again()
            elif isinstance(instruction, CallTools):
                await self._calls.run(instruction.calls)
            else:
                with anyio.CancelScope(shield=True):
                    await self._commit(instruction)
                await self._end_if_asked()  # after an interrupt meanwhile, no call begins

    async def _end_if_asked(self) -> None:
        """Stop here if the turn was interrupted or its time is over. Without a reason to stop, this does not yield."""
        if self._scope.cancel_called or self.resources.stopping or self.parent is not None:
            await anyio.lowlevel.checkpoint_if_cancelled()

    async def _make_room(self) -> bool:
        """Make room for the next request if needed. Return whether the request fits."""
        insist = self.resources.journal.insist
        await insist(self._context.leave_out_old)
        if self._context.is_due():
            await self._compact()
        return await insist(self._context.fit)

    async def _compact(self) -> None:
        """Replace older messages by a summary. A failed compaction changes nothing, and the turn continues."""
        compaction = Compaction(
            self.resources,
            self.transcript,
            self._definition,
            CompactedBy.AUTO,
            limit=self._context.limit,
            tools=self._tools,
            turn=self.row,
            key_id=self.row.key_id,
            account=self._account,
        )
        try:
            record = await compaction.run()
        except (ModelError, GenerationTimeout, StorageError, CompactionNotNeeded, BudgetExceeded) as exc:
            logger.warning("session %s was not compacted: %s", self.transcript.session_id, exc)
            record = None
        finally:
            self._turn.usage = sum((spent.usage for spent in compaction.spent), self._turn.usage)
        if record is None:
            self._context.note_failure()
            return
        self.log.append(compacted_event(record))
        await self._store_prompt_state(begin_prompt_state(self._definition, self._prompt(), self._tools), [])

    async def _request(self, call: CallModel) -> BuiltRequest:
        """Build the request of a step, after making room for it."""
        fits = self._context.roomy or await self._make_room()
        if not fits and not self._full_reported:
            self._full_reported = True
            self.log.append(Notice("CONTEXT_FULL", "The context is full: the answer is given without more tools."))
        built = build_request(
            self._active,
            self._tools,
            self.transcript.window(),
            state=self.transcript.prompt_state,
            gone_chunks=await find_gone(self.resources, self._definition.domain_id, self.transcript),
            hidden=await find_hidden(self.resources, self._definition, self.transcript),
            pictures=await self._pictures.of(self._sent_images()),
            tool_choice=self._tool_choice() if fits and not call.last else {"type": "none"},
            before=self.transcript.take_sent(),
            refused=self._refused_keys(),
        )
        self.transcript.keep_sent(built.messages)
        max_tokens = built.request.max_tokens
        room = self._context.answer_room(max_tokens * call.room)
        return built if room == max_tokens else replace(built, request=replace(built.request, max_tokens=room))

    def _tool_choice(self) -> Json | None:
        """Return the choice of the client that sent the question, until one of its functions was called."""
        if not self._definition.function_choice:
            return None
        turn_contents = (
            entry.message["content"] for entry in self.transcript.in_window() if entry.turn_id == self.row.id
        )
        return forced_choice(self._definition, {use["name"] for content in turn_contents for use in tool_uses(content)})

    def _refused_keys(self) -> Collection[str]:
        refused = self.resources.refused_tools.keys(self._definition.domain_id, self._active.model)
        return self._refused_specs.union(refused) if self._refused_specs else refused

    async def _shorten(self, call: CallModel, error: ModelError, *, again: bool) -> ModelRequest:
        """Return a shorter request for a step that was refused as too long.

        ``again``: a shortened one was refused too.

        Raises:
            ContextTooLong: the request cannot be shortened.
        """
        self._context.learn_limit(sizes_of(error))
        before = self._context.tokens
        built = await self._request(call)
        if again or self._context.tokens > self._context.limit or self._context.tokens >= before:
            await self.resources.journal.insist(self._context.withhold)
            built = await self._request(call)
        if self._context.tokens > self._context.limit or self._context.tokens >= before:
            raise ContextTooLong from error
        self._turn.begin_step(built.passages, built.call_ids, self._active.model)  # same step: its event was sent
        return built.request

    async def _ask_another(self, call: CallModel, why: str) -> ModelRequest:
        """Restart the step with the domain's next fallback model, which answers for the rest of the turn."""
        before, other = self._active.model, self._fallbacks.pop(0)
        for body in self._turn.reset_step():
            self.log.append(body)
        self.log.append(Notice("FALLBACK_MODEL", f"{before} {why}; {other} is asked."))
        self._active = replace(self._definition, model=other)
        self._context.ask(self._active)
        assert self._toolset is not None
        self._offer(with_own_tools(self._active, self._toolset.tools, self.transcript.prompt_state))
        built = await self._request(call)
        self._turn.begin_step(built.passages, built.call_ids, other)
        return built.request

    async def _repair(
        self, call: CallModel, error: ModelError, request: ModelRequest, shortened: int
    ) -> ModelRequest | None:
        """Return a corrected request for a step that the service refused, or None if its content was not the reason.

        Raises:
            ContextTooLong: the request was shortened `MAX_SHORTENED` times.
        """
        if is_too_long(error):
            if shortened == MAX_SHORTENED:
                raise ContextTooLong from error
            return await self._shorten(call, error, again=shortened > 0)
        if self._drop_refused(error, request):
            if self.transcript.prompt_state is not None:  # so that the next turn has no note about it
                await self._store_prompt_state(self.transcript.prompt_state.with_current(self._prompt()), [])
            return await self._rebuild(call)
        # After the tools, because the name of a refused tool may contain "image".
        return await self._rebuild(call) if await self._drop_images(error, request) else None

    async def _rebuild(self, call: CallModel) -> ModelRequest:
        """Return the request of the running step, built again."""
        built = await self._request(call)
        self._turn.begin_step(built.passages, built.call_ids, self._active.model)  # same step: its event was sent
        return built.request

    async def _call_model(self, call: CallModel) -> None:
        """Ask the model for one step, until its message is complete or an error cannot be handled.

        After a failed attempt, the first of these steps that applies follows: correct the request (`_repair`), wait and
        repeat it, or ask the next fallback model. A fallback model is also asked if the model declines to answer.
        """
        built = await self._request(call)
        for body in self._turn.begin_step(built.passages, built.call_ids, self._active.model):
            if not self._step_announced:
                self.log.append(body)
        self._step_announced = False
        request = built.request
        began = time.monotonic()
        attempts = Attempts()
        shortened = 0  # how often the request was shortened after the service refused it as too long
        while True:
            try:
                await self._stream(request)
                self.resources.refused_images.accept(request.model, self._sent_images())
                if not self._turn.refused or not self._fallbacks:
                    break
                request, attempts = await self._ask_another(call, "declined to answer"), Attempts()
            except ModelError as error:
                other = await self._repair(call, error, request, shortened)
                if other is not None:
                    request, shortened = other, shortened + is_too_long(error)
                    continue
                delay = retry_delay(error, attempts, self.resources.patience.retry_budget, random.random())
                if delay is None and is_busy(error) and self._fallbacks:
                    request, attempts = await self._ask_another(call, "takes no more requests now"), Attempts()
                    continue
                if delay is None:
                    raise
                attempts = after(error, attempts, delay)
                for body in self._turn.reset_step():
                    self.log.append(body)
                self.log.append(Retrying(attempts.failed, round(delay * 1000), failure_of(error).message))
                await anyio.sleep(delay)
        spent = round((time.monotonic() - began) * 1000)
        self._turn.timings["generation"] = self._turn.timings.get("generation", 0) + spent

    async def _stream(self, request: ModelRequest) -> None:
        """Stream one model call into the turn, if the budgets allow it.

        A silent model ends the call. Pings count as activity only while the model works.
        """
        await self._reserve(request)
        try:
            await self._receive(request)
        except ModelError as error:
            if not error.started:
                await self._account.release_unused()
            raise

    async def _reserve(self, request: ModelRequest) -> None:
        """Reserve the expected cost of a call. If the store refuses, this retries, as for any commit."""
        self._check_turn_tokens()
        if not self._account.limited:
            return
        seconds = self._definition.limits.turn_timeout + CHILDREN_SECONDS
        reserve = partial(self._account.reserve, request, seconds, self._context.tokens)
        for notice in await self.resources.journal.insist(reserve):
            if self.parent is None:
                self.log.append(notice)

    def _check_turn_tokens(self) -> None:
        """Refuse a call if the user's turn has used the tokens that its definition allows.

        Raises:
            TurnBudgetExceeded: the calls of the turn and its delegates have used them.
        """
        limit = self._definition.limits.turn_tokens
        if limit is None:
            return
        root = self
        while root.parent is not None:
            root = root.parent
        used = root._used_tokens()
        if used >= limit:
            raise TurnBudgetExceeded(used, limit)

    def _used_tokens(self) -> int:
        """Return the tokens of this agent and its delegates; those of an ended delegate are in its caller's usage."""
        usage = self._turn.usage
        running = [child for child in self._children if not child.ended.happened]
        return usage.sent + usage.output + sum(child._used_tokens() for child in running)

    async def _receive(self, request: ModelRequest) -> None:
        """Stream the model's events into the turn and its log."""
        domain, idle = self._definition.domain_id, self.resources.patience.model_idle
        stream = ModelStream(self._turn, self.log, self.resources.redactor.of(domain), idle)
        request = replace(request, previous_answer=self.transcript.previous_answer(request.model))
        self._turn.answer_id = ""
        try:
            with self.resources.services.model_calls.watch(request.model):
                await stream.run(self.resources.services.model(domain).stream(request))
        finally:
            self.transcript.note_answer(request.model, self._turn.answer_id)

    # Storing

    async def _close_waits(self) -> Sequence[InputAnswered]:
        """Return the events for the waits that the end of the turn cancels, also those of its delegates."""
        own_events = self._human_input.close()
        if not self._was_resumed or self.parent is not None:
            return own_events
        read = partial(waits.list_open, root_turn_id=self.row.id)
        open_waits = await self.resources.journal.insist(partial(self.resources.database.read, read))
        delegate_events = [
            InputAnswered(wait.id, WaitAction.CANCEL, "") for wait in open_waits if wait.turn_id != self.row.id
        ]
        return [*own_events, *delegate_events]

    async def _commit(self, commit: Commit) -> None:
        """Store a commit and deliver its events. The final one also ends the turn in the store, with its hooks.

        A question that the model declined to answer stays visible, but `REFUSED` keeps it out of later requests.
        """
        final = commit.final
        entries = self.transcript.plan(self.row.id, commit.step, self.row.message_id, commit.messages)
        refused = isinstance(final, Done) and final.stop_reason == "refusal"
        question = self.transcript.question_of(self.row.id) if refused else None
        marked = [{**block, REFUSED: True} for block in question.message["content"]] if question else []

        def store(conn: Connection) -> None:
            store_commit(conn, self.transcript, self.row, entries, commit, self._turn.model)
            self._account.release(conn)
            if self._resumes:
                turns.forget_resumes(conn, self.row.id)
            if question is not None:
                sessions.set_content(conn, self.transcript.session_id, question.seq, marked)
            if final is not None:
                if cancelled or self._was_resumed:
                    waits.cancel(conn, self.row.id, now())
                if self._was_resumed:
                    end_delegates(conn, self.row.id)
                store_end(conn, self.row, self._turn, final)
                if self.parent is None:
                    self.resources.hooks.turn_ended(conn, self.row, final)

        cancelled = [] if final is None else await self._close_waits()
        bodies = commit.bodies if final is None else (*cancelled, *commit.bodies, final)
        self.over = final is not None  # set before the write: from here on an interrupt comes too late
        self._end = "" if final is None else end_of(final)
        effects = any(call.refusal is None and not call.repeatable for call in commit.calls)
        # The end of a turn, and a call that is about to have effects, must survive a power loss.
        await self.log.commit(bodies, store, durable=effects or final is not None)
        self._account.settle()
        self._resumes = 0
        self.transcript.extend(entries)
        if question is not None:
            self.transcript.leave_out(question, marked)
        if commit.usage is not None and entries:
            self._context.take_measure(commit.usage, entries[0].seq)
        self._turn.take_commit(commit)


def missing_notices(toolset: Toolset, *, admin: bool) -> Iterator[Notice]:
    """Yield a notice for each unavailable server. Only admins see the reason, which contains paths and addresses."""
    missing = toolset.missing
    reasons: list[tuple[str, str]] = [(name, "") for name in missing]
    if admin and (notices := toolset.notices):
        noticed_names = {name for name, _ in notices}
        reasons = [*notices, *((name, "") for name in missing if name not in noticed_names)]
    for name, reason in reasons:
        starting = missing.get(name, False)
        code = "MCP_SERVER_STARTING" if starting else "MCP_SERVER_UNAVAILABLE"
        plain = "is still starting." if starting else "is not available now."
        yield Notice(code, f"{name}: {reason}" if reason else f"{name} {plain}")
