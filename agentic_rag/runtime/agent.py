"""The shell around a turn: does the I/O that `turn` asks for.

Owns one running turn: its model calls, tool calls, commits, its timeout and its interrupt. Knows nothing of
conversations, sockets or who asked. Every commit is shielded from cancellation, so what is on disk at any
moment is the state before or after an instruction.
"""

import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial

import anyio
import anyio.lowlevel
from sqlalchemy import Connection

from agentic_rag import failpoints
from agentic_rag.errors import (
    AgenticRagError,
    CompactionNotNeeded,
    ContextTooLong,
    GenerationTimeout,
    InternalError,
    LeaseLost,
    ModelError,
    ServerStopping,
    StorageError,
    first_cause,
)
from agentic_rag.events import Done, Notice, Retrying, StepReset, ToolProgress, ToolStatus
from agentic_rag.messages import REFUSED, Block, refs_of_images, text_block
from agentic_rag.models.base import ModelRequest
from agentic_rag.models.redacted import RedactedAnswer
from agentic_rag.runtime.compaction import Compaction, compacted_event
from agentic_rag.runtime.context import Context
from agentic_rag.runtime.core.calls import PlannedCall, Policy
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.failures import failure_of
from agentic_rag.runtime.core.request import (
    OUTCOME_UNKNOWN,
    BuiltRequest,
    build_request,
    cited_chunks,
    last_activation,
    lost_documents,
    prompt_of,
    servers_back,
    turn_notes,
)
from agentic_rag.runtime.core.retry import Attempts, after, is_too_long, retry_delay, sizes_of
from agentic_rag.runtime.core.told import Told, changes
from agentic_rag.runtime.core.transcript import Transcript
from agentic_rag.runtime.core.turn import CallModel, CallTools, Commit, Turn
from agentic_rag.runtime.kept_results import FIND_TOOL, READ_TOOL, Pictures, find_tools, read_on, with_own_tools
from agentic_rag.runtime.log.runlog import ChildLog, RunLog
from agentic_rag.runtime.services import Resources
from agentic_rag.runtime.storing import end_without_agent, store_commit, store_end, store_result, store_told
from agentic_rag.store import sessions, turns
from agentic_rag.store.clock import new_id
from agentic_rag.store.compactions import CompactedBy
from agentic_rag.store.turns import TurnRecord
from agentic_rag.tools.base import CallOutcome, CallRequest, ToolInfo, Toolset

logger = logging.getLogger(__name__)

CHILDREN_SECONDS = 10.0
"""How long a turn that ends waits for the ends of its delegates, which it has interrupted."""
PROGRESS_SECONDS = 0.1
"""Progress reports of one call that come faster are dropped."""


class Agent:
    """Runs one turn of a session to its end.

    Args:
        resources: what it works with.
        transcript: the session's; the turn's user message is already in it.
        row: the accepted turn.
        definition: what the turn runs on.
        log: where its events go.
        parent: whose ``delegate`` call it works for; that one ends it with itself, and bears its cost.
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
        self.transcript = transcript
        self.row = row
        self._definition = definition
        self.log = log
        self._scope = anyio.CancelScope()
        self.interrupted = False
        """Whether a user asked to end it."""
        self._began = time.monotonic()
        self._turn = Turn(
            message_id=row.message_id,
            model=definition.model,
            policy=Policy(
                definition.tool_policy,
                definition.effects_allowed_by_default,
                shared_memory=definition.binding.scope == "domain",
                alone=lambda: resources.services.alone,
            ),
            max_steps=definition.limits.max_steps,
            new_ref=lambda: new_id("ref"),
            others=parent is not None and parent.has_read_others,
        )
        self._context = Context(resources, transcript, definition, row.id, row.fence)
        self._pictures = Pictures(resources.payloads)
        self._toolset: Toolset | None = None
        self._tools: tuple[ToolInfo, ...] = ()
        self._told_full = False
        self._setbacks = row.resumes
        self.over = False
        """Whether the terminal event is out, or about to be."""
        self.garbled = False
        """Whether the transcript in memory may say what the store's does not."""
        self.lost = False
        """Whether the turn is another process's to run: one that has its lease, or the next to start."""
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.ended = anyio.Event()
        self._children: list[Agent] = []
        if parent is not None:
            parent._children.append(self)
            if parent.log.barred:
                self.interrupt()

    @property
    def definition(self) -> Definition:
        return self._definition

    @property
    def path(self) -> str:
        """The path of delegates to it, unique in the turn of the user; empty for the main agent."""
        return self.transcript.labels.agent

    @property
    def has_read_others(self) -> bool:
        """Whether its turn has read text of others; see `Turn.has_read_others`."""
        return self._turn.has_read_others

    @property
    def context(self) -> Context:
        """What the session may send."""
        return self._context

    @property
    def tools(self) -> tuple[ToolInfo, ...]:
        return self._tools

    def interrupt(self) -> None:
        """End the turn as a user asked. Idempotent; a turn that has ended stays as it is."""
        self.interrupted = True
        self._scope.cancel()

    def give_up(self) -> None:
        """Stop without a word: the turn is another process's. Its delegates stop with it. Idempotent."""
        self.lost = True
        self._scope.cancel()
        for child in self._children:
            child.give_up()

    async def run(self, resume: Callable[[Turn], Sequence[PlannedCall]] | None = None) -> None:
        """Run the turn to its end; only cancellation from outside (the server stops) leaves it running.

        ``resume`` puts a turn whose server stopped back where it was and returns the calls that were in flight.
        """
        try:
            await self._run(resume)
        except LeaseLost as exc:
            logger.warning("%s", exc)
            self.lost = self.over = True
            self.log.close()
        except ServerStopping:
            self.lost = self.over = True
        except Exception as exc:
            await self._end_plainly(exc)
        else:
            self.log.close()
        finally:
            if self.parent is not None:
                self.parent._turn.usage += self._turn.usage
            self.ended.set()

    async def _end_plainly(self, exc: Exception) -> None:
        """End a turn whose end cannot be stored as it came with nothing but the error: the last resort."""
        final = failure_of(first_cause(exc) or self._internal_error(exc))
        self.over = self.garbled = True
        self.log.withdraw()

        def store(conn: Connection) -> None:
            end_without_agent(conn, self.row, final)
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
        """Interrupt the delegates of the turn and wait for their ends; from here on they write no event."""
        with anyio.move_on_after(CHILDREN_SECONDS, shield=True):
            for child in self._children:
                child.interrupt()
            for child in self._children:
                await child.ended.wait()
        self.log.barred = True

    async def _run(self, resume: Callable[[Turn], Sequence[PlannedCall]] | None) -> None:
        limits = self._definition.limits
        failure: AgenticRagError | None = None
        with self._scope:
            self._scope.deadline = anyio.current_time() + limits.turn_timeout
            try:
                await self._prepare(resume)
                await self._drive()
            except Exception as exc:  # ended below, with what came so far
                failure = first_cause(exc) or self._internal_error(exc)
        await self._end_children()
        if self.lost:
            raise LeaseLost(self.row.id)
        if self._scope.cancelled_caught and not self.interrupted:
            failure = GenerationTimeout("The turn", limits.turn_timeout)
        if isinstance(failure, LeaseLost | ServerStopping):
            raise failure
        if failure is not None:
            if not isinstance(failure, InternalError):  # which is in the log already, with its traceback
                logger.warning("turn %s failed: %s", self.row.id, failure)
            self._turn.fail(failure)
        elif self.interrupted:
            self._turn.interrupt()
        with anyio.CancelScope(shield=True):
            await self._drive()

    def _internal_error(self, exc: Exception) -> InternalError:
        reference = new_id("err")
        logger.error("turn %s failed (%s)", self.row.id, reference, exc_info=exc)
        return InternalError(reference)

    # Before the first step

    async def _prepare(self, resume: Callable[[Turn], Sequence[PlannedCall]] | None) -> None:
        self._toolset = toolset = await self.resources.services.open_toolset(self._definition)
        self._tools = with_own_tools(self._definition, toolset.tools)
        self._turn.offer(self._tools)
        self._context.offer(self._tools)
        if resume is None:
            await self._make_room()
            await self.resources.journal.insist(self._context.move_window)
        self._turn.take_role(last_activation(self.transcript.window()))
        told, news = self._tell()
        if resume is not None:
            await self._store_told(self.transcript.told or told, [])
            await self._resume(resume)
            return
        for notice in self.resources.services.opening_notices if self.parent is None else ():
            self.log.append(notice)
        changed = await self._changed_role()
        self._tell_of_servers(toolset)
        if changed:
            self.log.append(Notice("ROLE_CHANGED", f"The role {changed} was edited."))
        window = self.transcript.window()
        gone = await self._gone_chunks(cited_chunks(window))
        lost = lost_documents(window, gone) if gone else {}
        back = servers_back(window, toolset.missing, {tool.server for tool in self._tools})
        await self._store_told(told, turn_notes(toolset.missing, changed, news, lost, back))

    def _tell_of_servers(self, toolset: Toolset) -> None:
        """Tell of servers that cannot be called. Why, with its paths and addresses, is for admins."""
        reasons: list[tuple[str, str]] = [(name, "") for name in toolset.missing]
        if self._definition.binding.admin:
            told = {name for name, _ in toolset.notices}
            reasons = [*toolset.notices, *((name, "") for name in toolset.missing if name not in told)]
        for name, reason in reasons:
            starting = toolset.missing.get(name, False)
            code = "MCP_SERVER_STARTING" if starting else "MCP_SERVER_UNAVAILABLE"
            plain = "is still starting." if starting else "is not available now."
            self.log.append(Notice(code, f"{name}: {reason}" if reason else f"{name} {plain}"))

    def _tell(self) -> tuple[Told, list[str]]:
        """Return what the session was told once this turn has begun, and what of it is new."""
        current = prompt_of(self._definition, self._tools, str(self.resources.services.today))
        before = self.transcript.told
        if before is None:
            return Told(current, current), []
        return before.with_current(current), changes(before, current)

    async def _changed_role(self) -> str | None:
        activation = last_activation(self.transcript.window())
        if activation is None:
            return None
        role_hash = self.resources.services.role_hash
        current = await self.resources.journal.insist(partial(role_hash, self._definition.domain_id, activation.role))
        return activation.role if current is not None and current != activation.hash else None

    async def _store_told(self, told: Told, notes: list[Block]) -> None:
        """Store what the session was told, and put the notes at the start of the turn's user message."""
        transcript, session_id = self.transcript, self.transcript.session_id
        if not notes and told == transcript.told:
            return
        question = transcript.question_of(self.row.id)
        content = [*notes, *question.message["content"]]

        def store(conn: Connection) -> None:
            turns.hold(conn, self.row.id, self.row.fence)
            store_told(conn, session_id, told)
            if notes:
                sessions.set_content(conn, session_id, question.seq, content)

        with anyio.CancelScope(shield=True):
            await self.resources.journal.store(store, ())
        question.message["content"] = content
        transcript.tell(told)

    async def _resume(self, resume: Callable[[Turn], Sequence[PlannedCall]]) -> None:
        in_flight = resume(self._turn)
        if not in_flight:
            self.log.append(StepReset(self._turn.iteration + 1))
        for call in in_flight:
            if call.refusal is None and not call.repeatable and not call.delegates:
                await self._finish_call(call, CallOutcome(ToolStatus.ERROR, (text_block(OUTCOME_UNKNOWN),)))

    # The loop

    async def _drive(self) -> None:
        while True:
            self._turn.timings["total"] = round((time.monotonic() - self._began) * 1000)
            instruction = self._turn.next()
            if instruction is None:
                return
            if isinstance(instruction, CallModel):
                await self._call_model(instruction)
            elif isinstance(instruction, CallTools):
                await self._call_tools(instruction.calls)
            else:
                with anyio.CancelScope(shield=True):
                    await self._commit(instruction)
                await anyio.lowlevel.checkpoint_if_cancelled()  # an interrupt that came meanwhile: no call begins

    async def _make_room(self) -> bool:
        """Make room for the next request if it needs any; return whether it fits then."""
        insist = self.resources.journal.insist
        await insist(self._context.leave_out_old)
        if self._context.is_due():
            await self._compact()
        return await insist(self._context.fit)

    async def _compact(self) -> None:
        """Put a summary in the place of what was before; one that fails changes nothing, and the turn goes on."""
        compaction = Compaction(
            self.resources,
            self.transcript,
            self._definition,
            CompactedBy.AUTO,
            limit=self._context.limit,
            tools=self._tools,
            turn=self.row,
        )
        try:
            record = await compaction.run()
        except (ModelError, GenerationTimeout, StorageError, CompactionNotNeeded) as exc:
            logger.warning("session %s was not compacted: %s", self.transcript.session_id, exc)
            record = None
        finally:
            self._turn.usage = sum((spent.usage for spent in compaction.spent), self._turn.usage)
        if record is None:
            self._context.note_failure()
            return
        self.log.append(compacted_event(record))
        current = prompt_of(self._definition, self._tools, str(self.resources.services.today))
        await self._store_told(Told(current, current), [])

    async def _request(self, call: CallModel) -> BuiltRequest:
        """Build the request of a step, once room is made for it."""
        fits = await self._make_room()
        if not fits and not self._told_full:
            self._told_full = True
            self.log.append(Notice("CONTEXT_FULL", "The context is full: the answer is given without more tools."))
        window = self.transcript.window()
        built = build_request(
            self._definition,
            self._tools,
            window,
            told=self.transcript.told,
            gone=await self._gone_chunks(cited_chunks(window)),
            pictures=await self._pictures.of(refs_of_images(window)),
            tool_choice=None if fits and not call.last else {"type": "none"},
        )
        return replace(built, request=replace(built.request, max_tokens=built.request.max_tokens * call.room))

    async def _shorten(self, call: CallModel, error: ModelError) -> ModelRequest:
        """Return a shorter request for a step that was refused for its length.

        Raises:
            ContextTooLong: there is none.
        """
        self._context.learn_limit(sizes_of(error))
        before = self._context.tokens
        built = await self._request(call)
        if self._context.tokens > self._context.limit or self._context.tokens >= before:
            raise ContextTooLong from error
        self._turn.begin_step(built.passages, built.call_ids)  # the same step: its event is out
        return built.request

    async def _call_model(self, call: CallModel) -> None:
        built = await self._request(call)
        for body in self._turn.begin_step(built.passages, built.call_ids):
            self.log.append(body)
        request = built.request
        began = time.monotonic()
        attempts = Attempts()
        fallback, shortened = self._definition.fallback_model, False
        while True:
            try:
                await self._stream(request)
                if not self._turn.refused or fallback is None or request.model == fallback:
                    break
                for body in self._turn.reset_step():
                    self.log.append(body)
                self.log.append(Notice("FALLBACK_MODEL", f"{request.model} declined to answer; {fallback} is asked."))
                request = replace(request, model=fallback)
            except ModelError as error:
                if is_too_long(error):
                    if shortened:
                        raise ContextTooLong from error
                    request, shortened = await self._shorten(call, error), True
                    continue
                delay = retry_delay(error, attempts, self.resources.patience.retry_budget, random.random())
                if delay is None:
                    raise
                attempts = after(error, attempts, delay)
                for body in self._turn.reset_step():
                    self.log.append(body)
                self.log.append(Retrying(attempts.failed, round(delay * 1000), failure_of(error).message))
                await anyio.sleep(delay)
        spent = round((time.monotonic() - began) * 1000)
        self._turn.timings["generation"] = self._turn.timings.get("generation", 0) + spent

    async def _gone_chunks(self, chunks: set[str]) -> AbstractSet[str]:
        """Return those that no answer may cite any more. Asked at each step: a deletion interrupts nobody."""
        if not chunks:
            return frozenset()
        missing_chunks = self.resources.services.missing_chunks
        return await self.resources.journal.insist(partial(missing_chunks, self._definition.domain_id, chunks))

    async def _stream(self, request: ModelRequest) -> None:
        """Stream one model call into the turn. Silence ends the call: pings count only while the model works."""
        idle, domain = self.resources.patience.model_idle, self._definition.domain_id
        redaction = self.resources.redactor.of(domain)
        answer = None if redaction.idle else RedactedAnswer(redaction)
        pushed = time.monotonic()
        with self.resources.services.model_calls.watch():
            with anyio.move_on_after(idle) as watch:
                async with self.resources.services.model(domain).stream(request) as events:
                    async for event in events:
                        present = time.monotonic()
                        if present - pushed > idle / 20:  # moving a deadline costs more than reading the clock
                            watch.deadline = anyio.current_time() + idle
                            pushed = present
                        for each in (event,) if answer is None else answer.take(event):
                            for body in self._turn.receive(each):
                                self.log.append(body)
                        if self.log.crowded:
                            watch.deadline = math.inf  # it is the store that is waited for
                            await self.log.room()
                            pushed = time.monotonic()
                            watch.deadline = anyio.current_time() + idle
            if watch.cancelled_caught:
                raise GenerationTimeout("The model's next event", idle)

    # Tools

    async def _call_tools(self, calls: Sequence[PlannedCall]) -> None:
        async with anyio.create_task_group() as tasks:
            for call in calls:
                tasks.start_soon(self._run_call, call)

    async def _run_call(self, call: PlannedCall) -> None:
        outcome, insist = call.refusal, self.resources.journal.insist
        if outcome is None and call.tool is READ_TOOL:
            outcome = await insist(partial(read_on, self.resources, self.transcript.session_id, call.arguments))
        elif outcome is None and call.tool is FIND_TOOL:
            outcome = find_tools(self.transcript.told.late if self.transcript.told else (), call.arguments)
        elif outcome is None:
            assert call.tool is not None
            assert self._toolset is not None
            limits = self._definition.limits
            timeout = limits.turn_timeout if call.delegates else limits.tool_timeout
            request = CallRequest(call.id, call.tool, call.arguments, self.row.id, self._definition.binding)
            failpoints.reached("tool.begin")
            outcome = await self._toolset.call(request, timeout, self._progress_of(call.id))
            failpoints.reached("tool.end")
        await self._finish_call(call, outcome)

    async def _finish_call(self, call: PlannedCall, outcome: CallOutcome) -> None:
        finished = self._turn.finish_call(call, outcome)

        def store(conn: Connection) -> None:
            store_result(conn, self.row, call, outcome, finished)
            if outcome.status is ToolStatus.DENIED:
                self.resources.hooks.call_denied(conn, self.row, call)
            elif call.refusal is None:
                self.resources.hooks.call_made(conn, self.row, call, outcome.status)

        with anyio.CancelScope(shield=True):
            for kept in finished.kept:  # before the record: a file without one is found, the reverse is a loss
                await self.resources.journal.insist(partial(self.resources.payloads.write, kept.ref, kept.data))
            await self.log.commit(finished.bodies, store)

    def _progress_of(self, call_id: str) -> Callable[[float, float | None, str | None], Awaitable[None]]:
        last = 0.0

        async def report(progress: float, total: float | None, message: str | None) -> None:
            nonlocal last
            if anyio.current_time() - last < PROGRESS_SECONDS:
                return
            last = anyio.current_time()
            self.log.append(ToolProgress(call_id, progress, total, message))

        return report

    # Storing

    async def _commit(self, commit: Commit) -> None:
        final = commit.final
        entries = self.transcript.plan(self.row.id, commit.step, self.row.message_id, commit.messages)
        refused = isinstance(final, Done) and final.stop_reason == "refusal"
        question = self.transcript.question_of(self.row.id) if refused else None
        marked = [{**block, REFUSED: True} for block in question.message["content"]] if question else []

        def store(conn: Connection) -> None:
            store_commit(conn, self.transcript, self.row, entries, commit, self._turn.model)
            if self._setbacks:
                turns.forget_resumes(conn, self.row.id)
            if question is not None:
                sessions.set_content(conn, self.transcript.session_id, question.seq, marked)
            if final is not None:
                store_end(conn, self.row, self._turn, final)
                if self.parent is None:
                    self.resources.hooks.turn_ended(conn, self.row, final)

        bodies = commit.bodies if final is None else (*commit.bodies, final)
        self.over = final is not None
        effects = any(call.refusal is None and not call.repeatable for call in commit.calls)
        # What has ended, and what is about to have effects, must be so after a loss of power too.
        await self.log.commit(bodies, store, durable=effects or final is not None)
        self._setbacks = 0
        self.transcript.extend(entries)
        if question is not None:
            self.transcript.leave_out(question, marked)
        if commit.usage is not None and entries:
            self._context.take_measure(commit.usage, entries[0].seq)
        self._turn.take_commit(commit)
