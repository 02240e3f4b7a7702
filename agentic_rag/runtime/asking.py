"""Asking people: the waits of one agent's calls, from the question to the answer that is gone on with.

Owns what is stored and told of a wait, how an answer reaches the call that waits for it, and that a turn's clock
stands still meanwhile. What is answered is the business layer's to check and to store; that wakes the call through
`Answers`, or the turn through its next owner. Knows no tool and no socket.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import anyio
import anyio.lowlevel
from sqlalchemy import Connection

from agentic_rag.errors import ServerStopping
from agentic_rag.events import Answerer, InputAnswered, InputRequired, Source, WaitAction, WaitKind
from agentic_rag.ids import TurnId, WaitId
from agentic_rag.json_form import Json, to_json
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
"""How often it is looked whether another process has taken the answer to a wait."""

WATCH_SECONDS = 60.0
"""How often it is looked whether a question that its server may end itself was answered by a person."""


class TurnClock:
    """The time limit of a turn, which stands still while a person is waited for, its parent's with it."""

    def __init__(self, scope: anyio.CancelScope, parent: "TurnClock | None" = None) -> None:
        self._scope = scope
        self._parent = parent
        self._pauses = 0
        self._left = 0.0

    def start(self, seconds: float) -> None:
        """Let the turn have so much time from now on."""
        self._scope.deadline = asyncio.get_running_loop().time() + seconds

    def pause(self) -> None:
        """Stop the clock; as often as it is paused it must be gone on with."""
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
class Asked:
    """What is asked about which call. ``subject``: what an approval of it would be remembered under.

    ``live``: the answer goes to an open connection, so that no other process can go on with it.
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

    def event(self, wait_id: WaitId, expires_at: str) -> InputRequired:
        """Return what a person is told."""
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
        )


@dataclass(frozen=True, slots=True)
class TurnPause:
    """What the agents of one user's turn share of its waiting.

    ``root_turn_id``: the user's turn. ``taking``: held by whoever goes on with an answer, and by whoever puts the turn
    down: it is one or the other.
    """

    root_turn_id: TurnId
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)


class Asking:
    """The questions of one agent to people.

    Args:
        resources: what the agent works with.
        row: the agent's turn.
        labels: of its session: whose conversation it is.
        log: where the events go.
        clock: the turn's.
        pause: the whole turn's.
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
        """The call that each belongs to, if that has not begun; else an empty text."""
        self._resting: set[str] = set()
        self.since = 0.0
        """When it last began to wait, by the event loop's clock."""

    def remember(self, past: Iterable[WaitRecord]) -> None:
        """Take what an earlier process has asked for this turn, oldest first."""
        for wait in past:
            self._past.setdefault(wait.tool_call_id, []).append(wait)
            if wait.state is WaitState.OPEN:
                self._unanswered[wait.id] = _unbegun(wait)

    async def cancel_cut(self) -> None:
        """Cancel what an earlier process asked on connections that ended with it: no answer is of any use there."""
        cut = [each.id for past in self._past.values() for each in past if each.live and each.id in self._unanswered]
        if not cut:
            return

        def store(conn: Connection) -> None:
            for wait_id in cut:
                waits.finish(conn, wait_id, WaitState.CANCELLED, answer=None, by="", at=now())

        with anyio.CancelScope(shield=True):
            await self._log.commit([InputAnswered(each, WaitAction.CANCEL, "") for each in cut], store)
            for wait_id in cut:
                self._unanswered.pop(wait_id)

    def past(self, call_id: str) -> list[WaitRecord]:
        """Return what was asked about a call before this process had the turn, oldest first."""
        return self._past.setdefault(call_id, [])

    @property
    def unbegun(self) -> frozenset[str]:
        """The calls that wait to be approved or answered, and so have had no effect."""
        return frozenset(filter(None, self._unanswered.values()))

    @property
    def resting(self) -> frozenset[str]:
        """The calls of which nothing but a person's answer is missing, in whichever process."""
        return frozenset(self._resting)

    async def ask(self, asked: Asked) -> InputGiven:
        """Ask a person and wait for the answer, or for what counts as one.

        Cancelling leaves the wait open; the end of the turn closes it (`close`).
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
            tool_call_id=asked.call_id,
            kind=asked.needed.kind,
            answerer=asked.answerer,
            request=_show(asked.event(wait_id, "")),
            held=asked.needed.held,
            subject=asked.subject,
            live=asked.live,
            taken=asked.live,
            opened_at=now(),
            expires_at=later(self._resources.patience.wait_seconds),
        )

        def store(conn: Connection) -> None:
            waits.WAITS.insert(conn, record)

        self._unanswered[wait_id] = _unbegun(record)
        with anyio.CancelScope(shield=True):
            await self._log.commit([asked.event(wait_id, record.expires_at)], store, durable=True)
        await anyio.lowlevel.checkpoint_if_cancelled()
        withdrawal = asked.needed.withdrawal
        if withdrawal is None:
            return await self.join(record)
        # Not in the turn's own tasks: the turn may be put down before the server says anything.
        self._resources.tasks.start_soon(self._watch, record, withdrawal)
        given = await self.join(record)
        withdrawal.tell(WaitAction.CANCEL)
        return given

    async def _watch(self, record: WaitRecord, withdrawal: Withdrawal) -> None:
        """End a wait that nobody has answered once its server says that it needs no answer."""
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
                    if waits.finish(conn, record.id, state, answer=None, by="", at=now()):
                        turns.wake(conn, record.root_turn_id)

                await self._resources.database.write(store, durable=True)

            await self._resources.journal.insist(end)
        except ServerStopping:
            return
        self._resources.answers.tell(record.id)

    async def join(self, record: WaitRecord) -> InputGiven:
        """Wait for the answer of a wait that is stored, and go on with it; one that was gone on with is repeated."""
        if record.taken and record.state is not WaitState.OPEN:
            return _read_given(record)
        answered = self._resources.answers.expect(record.id)
        if not record.live:
            self._resting.add(record.tool_call_id)
        self.since = anyio.current_time()
        self._clock.pause()
        try:
            while (latest := await self._latest(record)).state is WaitState.OPEN:
                with anyio.move_on_after(LOOK_SECONDS):
                    await answered.wait()
        finally:
            self._clock.go_on()
            self._resting.discard(record.tool_call_id)
            self._resources.answers.forget(record.id)
        async with self._pause.taking:
            await anyio.lowlevel.checkpoint_if_cancelled()  # the turn was put down meanwhile: the answer is not ours
            with anyio.CancelScope(shield=True):
                body = InputAnswered(latest.id, ACTION_OF[latest.state], latest.answered_by)
                await self._log.commit([body], lambda conn: waits.take(conn, latest.id), durable=True)
                self._unanswered.pop(latest.id, None)
        return _read_given(latest)

    async def _latest(self, record: WaitRecord) -> WaitRecord:
        """Return a wait as it is now; one that is gone with its conversation was cancelled."""

        async def read() -> WaitRecord | None:
            return await self._resources.database.read(lambda conn: waits.get(conn, record.id))

        return await self._resources.journal.insist(read) or _cancel(record)

    async def is_remembered(self, subject: str) -> bool:
        """Whether this was approved for the rest of the conversation."""
        conversation_id = self._row.conversation_id

        async def read() -> bool:
            return await self._resources.database.read(lambda conn: waits.is_remembered(conn, conversation_id, subject))

        return await self._resources.journal.insist(read)

    def close(self) -> tuple[InputAnswered, ...]:
        """Return what is told of the waits that the end of the turn leaves without an answer."""
        left, self._unanswered = self._unanswered, {}
        return tuple(InputAnswered(wait_id, WaitAction.CANCEL, "") for wait_id in left)


def _show(event: InputRequired) -> Json:
    """Return what a client is shown of a request that it asks for, without what the record has itself."""
    value: Mapping[str, object] = to_json(event)
    apart = {"waitId", "kind", "answerer", "expiresAt", "toolCallId"}
    return {name: item for name, item in value.items() if item is not None and name not in apart}


def _read_given(record: WaitRecord) -> InputGiven:
    return InputGiven(ACTION_OF[record.state], record.answer or {}, record.held)


def _unbegun(record: WaitRecord) -> str:
    return record.tool_call_id if record.kind in (WaitKind.APPROVAL, WaitKind.QUESTION) else ""


def _cancel(record: WaitRecord) -> WaitRecord:
    return replace(record, state=WaitState.CANCELLED)
