"""A session while something runs, waits or was recent: its transcript, its queue, its agent and its logs.

Owns which turn or compaction runs, the durable queue behind it, and what is waited for while that changes. A turn
belongs to the server, never to a socket. A failure of the store ends or delays the turns it hits and nothing else:
all sessions share one task group. Knows conversations, domains and users only as labels.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Literal

import anyio
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from agentic_rag.errors import (
    AgenticRagError,
    GenerationAborted,
    IdempotencyMismatch,
    LeaseLost,
    NotFound,
    ResumeLimit,
    TurnInProgress,
)
from agentic_rag.events import Error, EventBody, Interrupted, Notice, Resumed, Terminal, TurnStarted
from agentic_rag.messages import clean_text, user_message
from agentic_rag.runtime.agent import Agent
from agentic_rag.runtime.children import Delegations
from agentic_rag.runtime.compaction import Compaction, compacted_event
from agentic_rag.runtime.core.calls import PlannedCall
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.transcript import Transcript
from agentic_rag.runtime.core.turn import Turn
from agentic_rag.runtime.log.runlog import RunLog, epoch_of
from agentic_rag.runtime.services import Resources
from agentic_rag.runtime.storing import end_without_agent, load_transcript, read_interrupted, stored_definition
from agentic_rag.store import branches, images, sessions, turns
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.compactions import CompactedBy, CompactionRecord
from agentic_rag.store.turns import TurnRecord, TurnStatus

logger = logging.getLogger(__name__)

MAX_QUEUED = 5
"""Messages that may wait behind a running turn."""
MAX_RESUMES = 3
"""How often a turn is gone on with that was cut off without having come further."""
QUEUE_SECONDS = 1.0
"""How long after the store refused it a queued turn is tried again."""
MAX_ORDER = 16
"""Turns whose order of starting is remembered, for readers that follow one after the other."""

OnBusy = Literal["reject", "queue"]
"""What becomes of a message that comes while a turn runs."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A message that will not be lost. ``duplicate``: the same client message id came before."""

    turn_id: str
    user_message_id: str
    message_id: str
    client_message_id: str | None
    duplicate: bool
    queued: bool


class LiveSession:
    """One session of this process. `Runtime` makes it and finds it again by its id.

    Whatever decides what runs next holds ``_accepting``: a message is either queued before the running turn has
    ended, or starts a turn after it.
    """

    def __init__(self, session_id: str, resources: Resources, delegations: Delegations) -> None:
        self.id = session_id
        self._resources = resources
        self._database = resources.database
        self._delegations = delegations
        self._transcript: Transcript | None = None
        self._agent: Agent | None = None
        self._compaction: Compaction | None = None
        self._compacted: tuple[EventBody, ...] = ()
        """What the next turn tells of a compaction between turns."""
        self._order: list[str] = []
        self._changed = anyio.Event()
        self._accepting = anyio.Lock()
        self._dropped = False

    # What it is doing

    @property
    def turn_id(self) -> str | None:
        """The running turn, or None."""
        return None if self._agent is None else self._agent.row.id

    @property
    def idle(self) -> bool:
        return self._agent is None and self._compaction is None

    @property
    def loaded(self) -> bool:
        """Whether its transcript is in memory."""
        return self._transcript is not None

    @property
    def _held(self) -> bool:
        """Whether a sender must wait for a moment: a turn is ending or was interrupted, or a compaction runs."""
        return self._compaction is not None or (
            self._agent is not None and (self._agent.over or self._agent.interrupted)
        )

    def following(self, after: str | None) -> str | None:
        """Return the turn that started after another one, or the running one; None: not yet."""
        if after in self._order:
            rest = self._order[self._order.index(after) + 1 :]
            return rest[0] if rest else None
        return self.turn_id if self.turn_id != after else None

    async def next_turn(self, after: str | None) -> str:
        """Wait until a turn that follows ``after`` starts (or runs already) and return its id."""
        while (following := self.following(after)) is None:
            await self._changed.wait()
        return following

    async def change(self) -> None:
        """Wait until something starts or ends."""
        await self._changed.wait()

    async def _next_change(self) -> None:
        """Wait as `change` does.

        Raises:
            StorageError: what is waited for waits for a store that refuses.
        """
        journal = self._resources.journal
        if journal.stall is None:
            async with anyio.create_task_group() as tasks:

                async def wait_for(event: anyio.Event) -> None:
                    await event.wait()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(wait_for, self._changed)
                tasks.start_soon(wait_for, journal.stalled)
        if journal.stall is not None:
            raise journal.stall.error

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    # Its transcript in memory

    async def load(self) -> None:
        """Have the transcript in memory.

        Raises:
            NotFound: there is no such session.
        """
        if self._transcript is None:
            async with self._accepting:
                await self._present()

    def unload(self) -> None:
        """Let the transcript go; it is read again when it is needed. For an idle session only."""
        self._transcript = None

    async def _present(self) -> Transcript:
        """Return the transcript, read again if it was let go meanwhile; ``_accepting`` is held.

        Raises:
            NotFound: the session is gone.
        """
        if self._dropped:
            raise NotFound("session", self.id)
        if self._transcript is None:
            self._transcript = await self._database.read(lambda conn: load_transcript(conn, self.id))
        return self._transcript

    # Sending

    async def send(
        self,
        content: str,
        definition: Definition,
        *,
        client_message_id: str | None = None,
        on_busy: OnBusy = "reject",
        notices: Sequence[Notice] = (),
    ) -> Accepted:
        """Accept a user message durably and start its turn, or queue it.

        ``notices`` follow ``turn_started``, before what `TurnHooks.turn_accepted` adds. Same ``client_message_id`` and
        content: the same turn again.

        Raises:
            NotFound: the session is gone.
            TurnInProgress: a turn runs and ``on_busy`` is ``reject``, or the queue is full.
            IdempotencyMismatch: the client message id came with other content.
            StorageError: the store takes nothing now; nothing was kept.
        """
        words = clean_text(content)
        async with self._free():
            return await self._accept(words, definition, client_message_id, on_busy, notices)

    async def branch(
        self,
        message_id: str,
        content: str | None,
        definition: Definition,
        *,
        client_message_id: str | None = None,
        notices: Sequence[Notice] = (),
    ) -> Accepted:
        """Answer a user's message (or the one of that answer) again, on a new branch that ends before it.

        ``content``: other words for it. Other branches stay as they are. Same ``client_message_id``: the same turn.

        Raises:
            NotFound: the session is gone, or it holds no such message.
            TurnInProgress: a turn runs.
            IdempotencyMismatch: the client message id came with another message or other content.
            StorageError: the store takes nothing now; nothing was kept.
        """
        words = None if content is None else clean_text(content)
        async with self._free():
            return await self._accept_again(message_id, words, definition, client_message_id, notices)

    async def activate(self, message_id: str) -> None:
        """Make the newest branch that has a message the active one: it is what is sent and gone on with.

        Raises:
            NotFound: the session is gone, or it holds no such message.
            TurnInProgress: a turn runs.
            StorageError: the store takes nothing now; nothing has changed.
        """
        async with self._free():
            await self._activate(message_id)

    async def _activate(self, message_id: str) -> None:
        await self._present()
        if self.turn_id is not None:
            raise TurnInProgress(self.turn_id, "A turn is running. Choose another branch once it has ended.")

        def store(conn: Connection) -> Transcript:
            elsewhere = turns.running_elsewhere(conn, self.id, self._resources.owner)
            if elsewhere is not None:
                raise TurnInProgress(elsewhere)
            leaf = branches.read_tree(conn, self.id).leaf_after(message_id)
            if leaf is None:
                raise NotFound("message", message_id)
            sessions.move_leaf(conn, self.id, leaf)
            self._resources.hooks.session_branched(conn, self.id)
            return load_transcript(conn, self.id)

        self._transcript = await self._database.write(store, durable=True)

    @asynccontextmanager
    async def _free(self) -> AsyncGenerator[None]:
        """Decide what runs next, once nothing is about to end or to be compacted; nothing else decides meanwhile."""
        while True:
            while self._held:  # its terminal event may be out: who has seen that must not be told "busy"
                await self._next_change()
            with anyio.CancelScope(shield=True):  # once stored, the turn must also start
                async with self._accepting:
                    if not self._held:
                        yield
                        return

    async def _accept(
        self,
        content: str,
        definition: Definition,
        client_message_id: str | None,
        on_busy: OnBusy,
        notices: Sequence[Notice],
    ) -> Accepted:
        transcript = await self._present()
        image = self._resources.images.of(definition)
        busy = self.turn_id
        row = self._new_row(transcript, content, image.id, client_message_id, queued=busy is not None)
        log = self._log_of(row, definition.domain_id)
        place = transcript.last_seq + 1

        def store(conn: Connection) -> None:
            _refuse(conn, row, busy, on_busy)
            self._store_accepted(conn, row, definition, notices, log, None if busy else place)

        try:
            await self._database.write(store, durable=True)
        except _Duplicate as known:
            return _answer(known.turn, duplicate=True)
        self._resources.journal.add(log)
        if busy is None:
            transcript.append(place, row.id, 0, row.user_message_id, user_message(content))
            self._start(transcript, row, definition, log)
        return _answer(row, duplicate=False)

    async def _accept_again(
        self,
        message_id: str,
        content: str | None,
        definition: Definition,
        client_message_id: str | None,
        notices: Sequence[Notice],
    ) -> Accepted:
        before = await self._present()
        image, busy = self._resources.images.of(definition), self.turn_id
        blank = self._new_row(before, content or "", image.id, client_message_id, queued=False)
        log = self._log_of(blank, definition.domain_id)

        def store(conn: Connection) -> tuple[TurnRecord, Transcript]:
            question = branches.question_of(conn, self.id, message_id)
            row = replace(blank, parent_message_id=question.parent_message_id, branch_of=question.user_message_id)
            if content is None:
                row = replace(row, content=question.content, user_message_id=question.user_message_id)
            _refuse(conn, row, busy, "reject")
            sessions.move_leaf(conn, self.id, question.parent_message_id)
            self._resources.hooks.session_branched(conn, self.id)
            self._store_accepted(conn, row, definition, notices, log, before.last_seq + 1)
            return row, load_transcript(conn, self.id)

        try:
            row, transcript = await self._database.write(store, durable=True)
        except _Duplicate as known:
            return _answer(known.turn, duplicate=True)
        self._resources.journal.add(log)
        self._transcript = transcript
        self._start(transcript, row, definition, log)
        return _answer(row, duplicate=False)

    def _store_accepted(
        self,
        conn: Connection,
        row: TurnRecord,
        definition: Definition,
        notices: Sequence[Notice],
        log: RunLog,
        place: int | None,
    ) -> None:
        """Store a turn, and if it begins now (at ``place``) its question and its first events."""
        image = self._resources.images.of(definition)
        added = self._resources.hooks.turn_accepted(conn, row)
        images.put(conn, image.id, definition.domain_id, image.content)
        turns.TURNS.insert(conn, row)
        turns.begin_lease(conn, row.id)
        if place is not None:
            sessions.append_question(conn, row, place)
            log.store_first(conn, (_start_event(row, definition.model), *self._compacted, *notices, *added))

    def _start(self, transcript: Transcript, row: TurnRecord, definition: Definition, log: RunLog) -> None:
        """Start a turn whose question and first events are stored."""
        log.adopt()
        self._compacted = ()
        self._begin(Agent(self._resources, transcript, row, definition, log))
        self._resources.tasks.start_soon(self._run)

    def _new_row(
        self, transcript: Transcript, content: str, image_id: str, client_message_id: str | None, *, queued: bool
    ) -> TurnRecord:
        return TurnRecord(
            id=new_id("turn"),
            session_id=self.id,
            conversation_id=transcript.labels.conversation_id or self.id,
            client_message_id=client_message_id,
            content=content,
            user_message_id=new_id("msg"),
            message_id=new_id("msg"),
            image_id=image_id,
            status=TurnStatus.QUEUED if queued else TurnStatus.RUNNING,
            owner=self._resources.owner,
            fence=0 if queued else 1,
            started_at=now(),
        )

    def _log_of(self, row: TurnRecord, domain_id: str) -> RunLog:
        return RunLog(
            self._resources.journal,
            row.conversation_id,
            row.id,
            redaction=self._resources.redactor.of(domain_id),
            fence=row.fence + (row.status is TurnStatus.QUEUED),  # the number it will begin with
        )

    # Running

    def _begin(self, agent: Agent) -> None:
        """Note that a turn starts, and wake who waits for the next one. From here on it can be interrupted."""
        self._agent = agent
        self._order = [*self._order[1 - MAX_ORDER :], agent.row.id]
        self._delegations.register(agent)
        self._wake()

    async def _run(self, resume: Callable[[Turn], Sequence[PlannedCall]] | None = None) -> None:
        """Run the turn that has begun and then whatever is queued behind it."""
        while (agent := self._agent) is not None:
            await agent.run(resume)
            resume = None
            self._resources.journal.remove(agent.row.id)
            if agent.garbled or agent.lost:
                self._transcript = None  # the store's is the true one
            else:
                await self._compact_if_due(agent)
            async with self._accepting:  # a message is either queued before this or starts a turn after it
                if agent.lost or not await self._go_on():
                    self._agent = None
                    self._wake()

    async def _go_on(self) -> bool:
        """Begin the next queued turn; False when there is none, or it cannot begin now."""
        if self._dropped or self._resources.draining.is_set():
            return False
        try:
            return await self._begin_queued()
        except (AgenticRagError, SQLAlchemyError, OSError) as exc:  # the store refuses: other sessions go on
            logger.error("the queue of session %s waits: %s", self.id, exc)
            self._resources.tasks.start_soon(self._try_queue_again)
            return False

    async def _try_queue_again(self) -> None:
        await anyio.sleep(QUEUE_SECONDS)
        if self._agent is None and not self._dropped:
            await self.start_queue()

    async def start_queue(self) -> None:
        """Begin what is queued, unless something runs."""
        if self._agent is not None:
            return
        async with self._accepting:
            begun = self.idle and await self._go_on()
        if begun:
            self._resources.tasks.start_soon(self._run)

    async def _begin_queued(self) -> bool:
        """Begin the oldest queued turn; False when none waits."""
        waiting = await self._database.read(lambda conn: turns.list_queued(conn, self.id))
        if not waiting or waiting[0].owner != self._resources.owner:
            return False
        transcript = await self._present()
        row = replace(waiting[0], fence=waiting[0].fence + 1, status=TurnStatus.RUNNING)
        log = self._resources.journal.find(row.id)
        assert log is not None  # opened when it was queued, or by `Runtime.recover`
        place = transcript.last_seq + 1

        def store(conn: Connection) -> Definition:
            definition = stored_definition(images.get(conn, row.image_id))
            assert definition is not None
            if not turns.start(
                conn, row.id, image_id=row.image_id, role_hashes={}, owner=row.owner, started_at=row.started_at
            ):
                raise LeaseLost(row.id)
            sessions.append_question(conn, row, place)
            log.store_first(conn, (_start_event(row, definition.model), *self._compacted))
            return definition

        with anyio.CancelScope(shield=True):
            definition = await self._database.write(store, durable=True)
            transcript.append(place, row.id, 0, row.user_message_id, user_message(row.content))
            log.adopt()
            self._compacted = ()
            self._begin(Agent(self._resources, transcript, row, definition, log))
        return True

    # Compacting

    async def compact(self, definition: Definition) -> CompactionRecord:
        """Put a summary in the place of the messages; it holds the session like a turn.

        Raises:
            NotFound: the session is gone.
            TurnInProgress: a turn runs.
            CompactionNotNeeded: there are too few messages; nothing has changed.
            ModelError, GenerationTimeout, StorageFull: nothing has changed.
            GenerationAborted: somebody interrupted it; nothing has changed.
        """
        while (compaction := await self._hold(definition)) is None:
            await self._next_change()
        try:
            record = await compaction.run()
        finally:
            self._compaction = None
            self._wake()
        if record is None:
            raise GenerationAborted
        self._compacted = (compacted_event(record),)
        return record

    async def _hold(self, definition: Definition) -> Compaction | None:
        """Let a compaction hold the session; None when it must wait until something changes."""
        async with self._accepting:
            if self._held:
                return None
            transcript = await self._present()
            if self.turn_id is not None:
                raise TurnInProgress(self.turn_id, "A turn is running. Compact the conversation once it has ended.")
            self._compaction = Compaction(self._resources, transcript, definition, CompactedBy.USER)
            return self._compaction

    async def _compact_if_due(self, agent: Agent) -> None:
        """Compact between turns. The ended turn still holds the session; a failure costs nothing but the try."""
        transcript = self._transcript
        if transcript is None or self._resources.draining.is_set() or self._dropped:
            return
        if not agent.context.is_due(over=True):
            return
        self._compaction = Compaction(
            self._resources,
            transcript,
            agent.definition,
            CompactedBy.AUTO,
            limit=agent.context.limit,
            tools=agent.tools,
        )
        try:
            if (record := await self._compaction.run()) is not None:
                self._compacted = (compacted_event(record),)
            else:
                agent.context.note_failure()
        except Exception as exc:  # the session goes on as it was, and so must all others in this task group
            logger.warning("session %s was not compacted: %s", self.id, exc, exc_info=exc)
            agent.context.note_failure()
        finally:
            self._compaction = None

    def give_up(self, turn_id: str) -> None:
        """Stop a running turn that is another process's now."""
        if self._agent is not None and self.turn_id == turn_id and not self._agent.over:
            self._agent.give_up()

    def give_way(self) -> None:
        """End a compaction, if one runs: the process is about to stop."""
        if self._compaction is not None:
            self._compaction.cancel()

    # Ending

    async def interrupt(self, *, turn_id: str | None = None, queued: bool = False) -> bool:
        """Interrupt the running turn (or the named one) or compaction, and with ``queued`` those that wait.

        Idempotent: a turn that has ended stays as it is. Returns whether anything was interrupted.
        """
        done = False
        if self._compaction is not None and turn_id is None:
            self._compaction.cancel()
            done = True
        if queued or (turn_id is not None and turn_id != self.turn_id):
            done = await self._unqueue(None if queued else turn_id)
        if self._agent is not None and not self._agent.over and turn_id in (None, self.turn_id):
            self._agent.interrupt()
            done = True
        return done

    async def _unqueue(self, turn_id: str | None) -> bool:
        """End queued turns (all, or one) as interrupted before they start."""
        async with self._accepting:
            waiting = await self._database.read(lambda conn: turns.list_queued(conn, self.id))
            chosen = [row for row in waiting if turn_id in (None, row.id)]
            for row in chosen:
                await self._end_unstarted(row, Interrupted())
        return bool(chosen)

    async def leave(self) -> None:
        """Interrupt what runs, wait for its end, and begin nothing any more.

        Raises:
            StorageError: the end cannot be stored now; the session stays.
        """
        self._dropped = True
        try:
            while not self.idle:
                if self._agent is not None:
                    self._agent.interrupt()
                if self._compaction is not None:
                    self._compaction.cancel()
                await self._next_change()
        except BaseException:
            self._dropped = False
            raise

    # Turns that no agent runs

    async def _end_unstarted(self, row: TurnRecord, final: Terminal, resumed: Resumed | None = None) -> None:
        """Give a turn that no agent runs its terminal event, after ``resumed`` if it had begun."""
        journal = self._resources.journal
        # a new log is for our own words only: there is nothing in them to redact
        log = journal.find(row.id) or RunLog(journal, row.conversation_id, row.id, fence=row.fence)
        log.withdraw()  # the first events, if the store refused to begin it

        def store(conn: Connection) -> None:
            if resumed is not None:
                turns.hold(conn, row.id, row.fence)
            end_without_agent(conn, row, final)
            self._resources.hooks.turn_ended(conn, row, final)
            log.store_first(conn, [final] if resumed is None else [resumed, final])

        with anyio.CancelScope(shield=True):
            await self._database.write(store, durable=True)
            log.adopt()
            journal.remove(row.id)
            log.close()

    # After a stop

    def expect(self, row: TurnRecord, domain_id: str) -> None:
        """Open the log of a turn that was queued when the server stopped, before anything can begin it."""
        self._resources.journal.add(self._log_of(row, domain_id))

    async def resume(self, row: TurnRecord) -> None:
        """Go on with a turn that was taken over from a server that is gone; its transcript is loaded."""
        transcript = self._transcript
        assert transcript is not None
        left = await self._database.read(lambda conn: read_interrupted(conn, row))
        resumed = Resumed((left.last_seq + 1, epoch_of(row.fence)))
        if row.resumes > MAX_RESUMES or left.definition is None:
            limit = ResumeLimit(MAX_RESUMES)
            await self._end_unstarted(row, Error(limit.code, str(limit), False), resumed)
            return
        log = self._log_of(row, left.definition.domain_id)
        log.append(resumed)
        self._resources.journal.add(log)
        self._begin(Agent(self._resources, transcript, row, left.definition, log))
        self._resources.tasks.start_soon(self._run, lambda turn: turn.restore(left.messages, left.finished, left.usage))


# Accepting: functions of a connection and of records


class _Duplicate(Exception):
    """Carries the turn an already accepted message made out of the accepting transaction."""

    def __init__(self, turn: TurnRecord) -> None:
        super().__init__(turn.id)
        self.turn = turn


def _refuse(conn: Connection, row: TurnRecord, busy: str | None, on_busy: OnBusy) -> None:
    """Refuse a message that was sent before, or that comes while turn ``busy`` runs.

    Raises:
        _Duplicate: the same client message id and content made a turn already.
        IdempotencyMismatch: the same id came with other content.
        TurnInProgress: a turn runs and ``on_busy`` is not ``queue``, or the queue is full, or another process runs it.
    """
    if row.client_message_id is not None:
        known = turns.by_client_message(conn, row.session_id, row.client_message_id)
        if known is not None and (known.content, known.branch_of) != (row.content, row.branch_of):
            raise IdempotencyMismatch(row.client_message_id)
        if known is not None:
            raise _Duplicate(known)
    if busy is None:
        elsewhere = turns.running_elsewhere(conn, row.session_id, row.owner)
        if elsewhere is not None:
            raise TurnInProgress(elsewhere)
        return
    if on_busy != "queue":
        raise TurnInProgress(busy)
    if len(turns.list_queued(conn, row.session_id)) >= MAX_QUEUED:
        raise TurnInProgress(busy, f"{MAX_QUEUED} messages wait already, which is the limit.")


def _start_event(row: TurnRecord, model: str) -> EventBody:
    return TurnStarted(
        user_message_id=row.user_message_id,
        message_id=row.message_id,
        content=row.content,
        model=model,
        image_id=row.image_id,
        client_message_id=row.client_message_id,
    )


def _answer(row: TurnRecord, *, duplicate: bool) -> Accepted:
    """Return what the sender of a message is answered."""
    return Accepted(
        turn_id=row.id,
        user_message_id=row.user_message_id,
        message_id=row.message_id,
        client_message_id=row.client_message_id,
        duplicate=duplicate,
        queued=row.status is TurnStatus.QUEUED,
    )
