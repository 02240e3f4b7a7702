"""Questions to people: the waits of one agent's calls, from the question to the resumed call.

Owns the record and the events of a wait, the delivery of an answer to its call, and the pause of the turn's clock
meanwhile. The business layer checks and stores the answer. That wakes the call through `Answers`, or lets the next
owner resume the turn. Knows no tool and no socket.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel
from sqlalchemy import Connection

from agentic_rag.base.errors import ServerStopping
from agentic_rag.base.events import Answerer, InputAnswered, InputRequired, Source, Usage, WaitAction, WaitKind
from agentic_rag.base.ids import TurnId, WaitId
from agentic_rag.base.json_form import Json, to_json
from agentic_rag.runtime.log.child_log import ChildLog
from agentic_rag.runtime.log.runlog import RunLog
from agentic_rag.runtime.services import Resources
from agentic_rag.store import turns, waits
from agentic_rag.store.clock import later, new_id, now
from agentic_rag.store.sessions import SessionLabels
from agentic_rag.store.turns import TurnRecord
from agentic_rag.store.waits import ACTION_OF, WaitRecord, WaitState
from agentic_rag.tools.base import InputGiven, InputNeeded, Withdrawal

LOOK_SECONDS = 5.0
"""Between two checks whether another process has stored the answer to a wait."""

WATCH_SECONDS = 60.0
"""Between two checks whether a person answered a question that its server may withdraw."""


class TurnClock:
    """The time limit of a turn. It pauses while a person is asked, together with the parent's."""

    def __init__(self, scope: anyio.CancelScope, parent: "TurnClock | None" = None) -> None:
        self._scope = scope
        self._parent = parent
        self._pauses = 0
        self._left = 0.0

    def start(self, seconds: float) -> None:
        """Give the turn ``seconds`` from now on."""
        self._scope.deadline = asyncio.get_running_loop().time() + seconds

    def pause(self) -> None:
        """Stop the clock. Each call needs one call of `go_on`."""
        if self._pauses == 0:
            self._left = self._scope.deadline - anyio.current_time()
            self._scope.deadline = float("inf")
        self._pauses += 1
        if self._parent is not None:
            self._parent.pause()

    def go_on(self) -> None:
        """Undo one `pause`."""
        self._pauses -= 1
        if self._pauses == 0:
            self._scope.deadline = anyio.current_time() + self._left
        if self._parent is not None:
            self._parent.go_on()


@dataclass(frozen=True, slots=True)
class QuestionRequest:
    """A question about a call. ``subject``: the key under which its approval would be remembered.

    ``usage``: that of the turn so far, for a client that runs a function. ``live``: the answer goes to an open
    connection, so no other process can resume the call with it.
    """

    call_id: str
    needed: InputNeeded
    answerer: Answerer = Answerer.OWNER
    server: str = ""
    tool_name: str = ""
    arguments: Json | None = None
    sources: tuple[Source, ...] = ()
    subject: str = ""
    live: bool = False
    usage: Usage | None = None

    def event(self, wait_id: WaitId, expires_at: str) -> InputRequired:
        """Return the event that shows the question to a person."""
        needed = self.needed
        return InputRequired(
            wait_id=wait_id,
            kind=needed.kind,
            answerer=self.answerer,
            title=needed.title,
            message=needed.message,
            expires_at=expires_at,
            tool_call_id=self.call_id,
            server=self.server or None,
            tool_name=self.tool_name or None,
            arguments=self.arguments,
            schema=needed.schema,
            url=needed.url,
            options=needed.options or None,
            multiple=needed.multiple or None,
            warning=needed.warning,
            sources=self.sources or None,
            usage=self.usage,
        )


@dataclass(frozen=True, slots=True)
class TurnPause:
    """State that the agents of one user's turn share while they wait.

    ``root_turn_id``: the user's turn. ``taking``: lock for resuming with an answer and for suspending the turn, so that
    only one of the two happens.
    """

    root_turn_id: TurnId
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)


class HumanInput:
    """The questions of one agent to people.

    Args:
        resources: shared parts of the runtime.
        row: the agent's turn.
        labels: labels of its session, which name the conversation.
        log: receives the events.
        clock: the clock of the turn.
        pause: the shared state of the whole turn.
    """

    def __init__(
        self,
        resources: Resources,
        row: TurnRecord,
        labels: SessionLabels,
        log: RunLog | ChildLog,
        clock: TurnClock,
        pause: TurnPause,
    ) -> None:
        self._resources = resources
        self._row = row
        self._labels = labels
        self._log = log
        self._clock = clock
        self._pause = pause
        self._past: dict[str, list[WaitRecord]] = {}
        self._unanswered: dict[WaitId, str] = {}
        """Open waits. The value is the id of the call if the call has not begun, else an empty string."""
        self._resting: set[str] = set()
        self.since = 0.0
        """The start of the newest wait, by the event loop's clock."""

    def remember(self, past: Iterable[WaitRecord]) -> None:
        """Add the waits of this turn from an earlier process, oldest first."""
        for wait in past:
            self._past.setdefault(wait.tool_call_id, []).append(wait)
            if wait.state is WaitState.OPEN:
                self._unanswered[wait.id] = _unstarted_call(wait)

    async def cancel_orphaned(self) -> None:
        """Cancel open waits on connections that ended with an earlier process, because no answer can reach them."""
        cut = [wait.id for past in self._past.values() for wait in past if wait.live and wait.id in self._unanswered]
        if not cut:
            return

        def store(conn: Connection) -> None:
            for wait_id in cut:
                waits.finish(conn, wait_id, WaitState.CANCELLED, answer=None, by="", at=now())

        with anyio.CancelScope(shield=True):
            await self._log.commit([InputAnswered(wait_id, WaitAction.CANCEL, "") for wait_id in cut], store)
            for wait_id in cut:
                self._unanswered.pop(wait_id)

    def past(self, call_id: str) -> list[WaitRecord]:
        """Return the waits of a call from before this process had the turn, oldest first."""
        return self._past.setdefault(call_id, [])

    @property
    def unstarted(self) -> frozenset[str]:
        """Ids of the calls that wait for an approval or an answer before they begin, and so had no effect."""
        return frozenset(filter(None, self._unanswered.values()))

    @property
    def resting(self) -> frozenset[str]:
        """Ids of the calls that wait only for a person's answer, which any process can resume."""
        return frozenset(self._resting)

    async def ask(self, question: QuestionRequest) -> InputGiven:
        """Ask a person and wait for the answer, or for a cancellation or timeout that counts as one.

        Cancelling this call leaves the wait open; the end of the turn closes it (`close`).
        """
        wait_id = WaitId(new_id("wait"))
        record = WaitRecord(
            id=wait_id,
            turn_id=self._row.id,
            root_turn_id=self._pause.root_turn_id,
            session_id=self._row.session_id,
            conversation_id=self._row.conversation_id,
            domain_id=self._labels.domain_id,
            user_id=self._labels.user_id,
            agent=self._labels.agent,
            tool_call_id=question.call_id,
            kind=question.needed.kind,
            answerer=question.answerer,
            request=_show(question.event(wait_id, "")),
            held=question.needed.held,
            subject=question.subject,
            live=question.live,
            taken=question.live,
            opened_at=now(),
            expires_at=later(self._resources.patience.wait_seconds),
        )

        def store(conn: Connection) -> None:
            waits.open_wait(conn, record)

        # Before the commit: if the turn ends meanwhile, `close` must know of this wait.
        self._unanswered[wait_id] = _unstarted_call(record)
        with anyio.CancelScope(shield=True):
            await self._log.commit([question.event(wait_id, record.expires_at)], store, durable=True)
        # The commit was shielded. A cancellation that came during it takes effect here.
        await anyio.lowlevel.checkpoint_if_cancelled()
        withdrawal = question.needed.withdrawal
        if withdrawal is None:
            return await self.join(record)
        # Not in the turn's own tasks, because the turn may be suspended before the server withdraws the question.
        self._resources.tasks.start_soon(self._watch, record, withdrawal)
        answer = await self.join(record)
        withdrawal.end(WaitAction.CANCEL)
        return answer

    async def _watch(self, record: WaitRecord, withdrawal: Withdrawal) -> None:
        """End an open wait when its server withdraws the question."""
        action: WaitAction | None = None
        try:
            while action is None:
                with anyio.move_on_after(WATCH_SECONDS):
                    action = await withdrawal.wait()
                if action is None and (await self._latest(record)).state is not WaitState.OPEN:
                    return
            state = waits.STATE_OF[action]

            async def end() -> None:
                def store(conn: Connection) -> None:
                    # The turn may be suspended, and then no process waits for the event.
                    if waits.finish(conn, record.id, state, answer=None, by="", at=now()):
                        turns.wake(conn, record.root_turn_id)

                await self._resources.database.write(store, durable=True)

            await self._resources.journal.insist(end)
        except ServerStopping:
            return
        self._resources.answers.notify(record.id)

    async def join(self, record: WaitRecord) -> InputGiven:
        """Wait for the answer of a stored wait and resume with it.

        An answer that was consumed before is returned again.
        """
        if record.taken and record.state is not WaitState.OPEN:
            return _read_given(record)
        # Before the first read of the store, so that an answer between the two is not missed.
        answered = self._resources.answers.expect(record.id)
        if not record.live:
            self._resting.add(record.tool_call_id)
        self.since = anyio.current_time()
        self._clock.pause()
        try:
            while (latest := await self._latest(record)).state is WaitState.OPEN:
                # Another process may take the answer. Its signal can be late, so the store is read in between.
                with anyio.move_on_after(LOOK_SECONDS):
                    await answered.wait()
        finally:
            self._clock.go_on()
            self._resting.discard(record.tool_call_id)
            self._resources.answers.forget(record.id)
        async with self._pause.taking:
            await anyio.lowlevel.checkpoint_if_cancelled()  # suspended: another process takes the answer
            with anyio.CancelScope(shield=True):
                body = InputAnswered(latest.id, ACTION_OF[latest.state], latest.answered_by)
                await self._log.commit([body], lambda conn: waits.take(conn, latest.id), durable=True)
                self._unanswered.pop(latest.id, None)
        return _read_given(latest)

    async def _latest(self, record: WaitRecord) -> WaitRecord:
        """Return a wait's current record. A wait that was deleted with its conversation counts as cancelled."""

        async def read() -> WaitRecord | None:
            return await self._resources.database.read(lambda conn: waits.get(conn, record.id))

        return await self._resources.journal.insist(read) or _cancel(record)

    async def is_remembered(self, subject: str) -> bool:
        """Return whether this was approved for the rest of the conversation."""
        conversation_id = self._row.conversation_id

        async def read() -> bool:
            return await self._resources.database.read(lambda conn: waits.is_remembered(conn, conversation_id, subject))

        return await self._resources.journal.insist(read)

    def close(self) -> tuple[InputAnswered, ...]:
        """Return the events for the waits that the end of the turn cancels."""
        open_waits, self._unanswered = self._unanswered, {}
        return tuple(InputAnswered(wait_id, WaitAction.CANCEL, "") for wait_id in open_waits)


def _show(event: InputRequired) -> Json:
    """Return the request as the API shows it to clients, without the fields of the record itself."""
    value: Mapping[str, object] = to_json(event)
    apart = {"usage", "waitId", "kind", "answerer", "expiresAt", "toolCallId"}
    return {name: item for name, item in value.items() if item is not None and name not in apart}


def _read_given(record: WaitRecord) -> InputGiven:
    return InputGiven(ACTION_OF[record.state], record.answer or {}, record.held)


def _unstarted_call(record: WaitRecord) -> str:
    return record.tool_call_id if record.kind in (WaitKind.APPROVAL, WaitKind.QUESTION) else ""


def _cancel(record: WaitRecord) -> WaitRecord:
    return record.replace(state=WaitState.CANCELLED)
