"""One session in this process: its transcript, its running turn or compaction, and the queue behind it.

The life of a message:

1. `LiveSession.send` (or `branch`) stores it in one transaction, which also decides whether its turn begins now or
   joins the durable queue. A message that was accepted once is answered with the same turn.
2. `_begin` sets the turn's `Agent`, and `_run` runs it. A turn belongs to the server, never to a socket.
3. At its end, `_run` begins the next queued turn. A turn that waits for a person is suspended instead: the process
   keeps only its log, and `resume` continues it after the answer.
4. After a kill, `Runtime.recover` calls `resume` for the turns that were running, and `start_queue` for queued ones.

At most one turn or one compaction runs in a session. All sessions share one task group, so a failure of the store may
end or delay only the turns that it affects, and must not leave `_run`. Knows conversations, domains and users only as
labels.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import anyio
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from agentic_rag.base.errors import AgenticRagError, LeaseLost, NotFound, ResumeLimit, TurnInProgress
from agentic_rag.base.events import Error, Interrupted, Notice, Resumed, Terminal
from agentic_rag.base.ids import MessageId, SessionId, TurnId
from agentic_rag.base.messages import KeptAttachment, clean_text, user_message
from agentic_rag.runtime.acceptance import (
    Accepted,
    IdBehind,
    NewMessage,
    OnBusy,
    StoresTurn,
    announce_begun,
    answer,
    branch_row,
    check_free,
    claim_queued,
    find_place,
    find_sent,
    is_unstarted,
    new_row,
    queued_row,
    start_events,
    store_accepted,
)
from agentic_rag.runtime.agent import Agent
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.transcript import Transcript
from agentic_rag.runtime.delegates import Delegations
from agentic_rag.runtime.log.runlog import RunLog, epoch_of
from agentic_rag.runtime.notifier import Notifier
from agentic_rag.runtime.sent_images import KeptImages, SentImage
from agentic_rag.runtime.services import Resources
from agentic_rag.runtime.session_compaction import SessionCompaction
from agentic_rag.runtime.turn_persistence import (
    Resume,
    WaitingTurn,
    end_without_agent,
    load_transcript,
    read_interrupted,
    stored_definition,
)
from agentic_rag.store import branches, payloads, sessions, signals, turns
from agentic_rag.store.clock import advance_ids
from agentic_rag.store.compactions import CompactionRecord
from agentic_rag.store.signals import SignalKind
from agentic_rag.store.turns import TurnRecord, TurnStatus

T = TypeVar("T")
Attempt = Callable[[], Awaitable[T | None]]
"""Returns None if another turn or compaction must end first. Then it is called again."""
logger = logging.getLogger(__name__)

MAX_RESUMES = 3
"""Most resumes of a turn that was cut off each time before it committed anything."""
QUEUE_SECONDS = 1.0
"""Delay before a queued turn is retried after the store refused to begin it."""


class LiveSession:
    """One session of this process. `Runtime` creates it and finds it by its id.

    Code that decides which turn runs next holds ``_accepting``. So a message either joins the queue before the running
    turn has ended, or starts a turn after it.
    """

    def __init__(self, session_id: SessionId, resources: Resources, delegations: Delegations) -> None:
        self.id = session_id
        self._resources = resources
        self._database = resources.database
        self._delegations = delegations
        self._transcript: Transcript | None = None
        """None until it is needed, and after `unload`."""
        # What runs: an agent, a suspended turn, a compaction, or nothing.
        self._agent: Agent | None = None
        self._waiting: TurnRecord | None = None
        """The turn that is suspended until a person answers. Always None in a shared store: any process may resume."""
        self._compaction = SessionCompaction(resources)
        self._order = TurnOrder()
        self._changed = Notifier()
        """Notifies when a turn or compaction starts or ends."""
        self.begun = Notifier()
        """Notifies when a turn starts, here or in another process."""
        self._accepting = asyncio.Lock()  # mostly free; then taking it does not yield to the event loop
        self._may_have_queued = True
        """False only if the store is not shared and its queue for this session was read and is empty."""
        self._closing = False
        """Whether the session is being deleted, so that no turn may begin."""

    # State

    @property
    def turn_id(self) -> TurnId | None:
        """The running turn, or the one that waits for a person, or None."""
        if self._agent is None:
            return None if self._waiting is None else self._waiting.id
        return self._agent.row.id

    @property
    def running(self) -> bool:
        """Whether a turn runs here."""
        return self._agent is not None

    @property
    def idle(self) -> bool:
        """Whether neither a turn nor a compaction runs here. A suspended turn may exist."""
        return self._agent is None and not self._compaction.running

    @property
    def loaded(self) -> bool:
        """Whether the transcript is in memory."""
        return self._transcript is not None

    @property
    def _must_wait(self) -> bool:
        """Whether a sender must wait for an ending or interrupted turn, or for a compaction.

        A turn that runs on is no reason to wait: the message is queued or refused.
        """
        return self._compaction.running or (
            self._agent is not None and (self._agent.over or self._agent.interrupted or self._agent.lost)
        )

    def turn_after(self, after: TurnId | None) -> TurnId | None:
        """Return the turn that started after ``after``, or the running one. None: not yet."""
        return self._order.following(after, self.turn_id)

    async def next_turn(self, after: TurnId | None) -> TurnId:
        """Wait until a turn after ``after`` starts (or already runs) and return its id."""
        while (following := self.turn_after(after)) is None:
            await self._changed.wait()
        return following

    async def change(self) -> None:
        """Wait until a turn or compaction starts or ends."""
        await self._changed.wait()

    async def _next_change(self) -> None:
        """Wait as `change` does.

        Raises:
            StorageError: the store refuses writes, so the change cannot happen now.
        """
        await self._resources.journal.wait_unless_stalled(self._changed.next)

    def _notify(self, *, begun: bool = False) -> None:
        self._changed.happen()
        if begun:
            self.begun.happen()

    def handle_begun_elsewhere(self) -> None:
        """Drop the transcript, because another process has begun a turn, and notify waiting readers."""
        if self.idle:
            self.unload()
        self._notify(begun=True)

    # The transcript in memory

    async def load(self) -> None:
        """Load the transcript into memory.

        Raises:
            NotFound: the session does not exist.
        """
        if self._transcript is None:
            async with self._accepting:
                await self._read_transcript()
        self._resources.transcripts.use(self.id)

    def unload(self) -> None:
        """Drop the transcript, which is read again when needed. For an idle session only."""
        self._transcript = None
        self._resources.transcripts.forget(self.id)

    def _cache_transcript(self) -> None:
        """Add an idle session's transcript to the cache, which may unload it."""
        if self.idle and self._transcript is not None:
            self._resources.transcripts.keep(self, self._transcript.memory)

    async def _read_transcript(self, *, reload: bool = False) -> Transcript:
        """Return the transcript, read again if it was unloaded or with ``reload``. Hold ``_accepting``.

        Raises:
            NotFound: the session was deleted.
        """
        if self._closing:
            raise NotFound("session", self.id)
        if self._transcript is None or reload:
            self._transcript = transcript = await self._database.read(lambda conn: load_transcript(conn, self.id))
            self._cache_transcript()
            return transcript
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
        key_id: str = "",
        images: Sequence[SentImage] = (),
        attachments: Sequence[KeptAttachment] = (),
    ) -> Accepted:
        """Accept a user message durably and start its turn, or queue it.

        ``key_id``: the API key that sent the message. ``notices`` follow ``turn_started`` and come before the events of
        `TurnHooks.turn_accepted`. The same ``client_message_id`` and content return the same turn.

        Raises:
            NotFound: the session was deleted.
            TurnInProgress: a turn runs and ``on_busy`` is ``reject``, or the queue is full.
            IdempotencyMismatch: the client message id came with other content.
            StorageError: the store refuses writes now; nothing was stored.
        """
        message = NewMessage(clean_text(content), client_message_id, key_id, images, attachments)

        async def accept() -> Accepted | None:
            return await self._accept(message, definition, on_busy, notices)

        async with KeptImages(self._resources.payloads, images) as kept_images:
            if not (accepted := await self._when_free(accept)).duplicate:
                kept_images.keep()
            return accepted

    async def branch(
        self,
        message_id: MessageId,
        content: str | None,
        definition: Definition,
        *,
        client_message_id: str | None = None,
        notices: Sequence[Notice] = (),
        key_id: str = "",
        images: Sequence[SentImage] | None = None,
    ) -> Accepted:
        """Answer a user's message again, on a new branch that leaves the active one before the message.

        Args:
            message_id: the message, or its answer.
            content: new words for the message; None: its own.
            images: new images for the message; None: its own.

        The other parameters are those of `send`.

        Raises:
            NotFound: the session was deleted, or has no such message.
            TurnInProgress: a turn runs.
            IdempotencyMismatch: the client message id came with another message or other content.
            StorageError: the store refuses writes now; nothing was stored.
        """
        words, sent = None if content is None else clean_text(content), images or ()
        message = NewMessage(words or "", client_message_id, key_id, sent)

        async def accept() -> Accepted:
            row = new_row(self._resources, self.id, (await self._read_transcript()).labels, message, definition)
            return await self._accept_branch(row, message_id, words, definition, notices, images is not None)

        async with KeptImages(self._resources.payloads, sent) as kept_images:
            if not (accepted := await self._when_free(accept)).duplicate:
                kept_images.keep()
            return accepted

    async def activate(self, message_id: MessageId) -> None:
        """Make the newest branch with a message the active one, which is sent and continued.

        Raises:
            NotFound: the session was deleted, or has no such message.
            TurnInProgress: a turn runs.
            StorageError: the store refuses writes now; nothing has changed.
        """
        await self._when_free(partial(self._store_activation, message_id))

    async def _when_free(self, attempt: Attempt[T]) -> T:
        """Run ``attempt`` under the lock, after an ending turn or a compaction has ended."""
        while True:
            while self._must_wait:  # a client that saw the terminal event must not get "busy"
                await self._next_change()
            with anyio.CancelScope(shield=True):  # a stored turn must also start
                async with self._accepting:
                    try:
                        if not self._must_wait and (result := await attempt()) is not None:
                            return result
                    except IdBehind as exc:
                        advance_ids(exc.newest)

    async def _accept(
        self, message: NewMessage, definition: Definition, on_busy: OnBusy, notices: Sequence[Notice]
    ) -> Accepted | None:
        """Store a message and begin or queue its turn. Returns None if a turn here must end first.

        The transaction decides, because in a shared store another process may begin a turn at the same moment. `store`
        may run several times, so the session changes only after the commit.
        """
        transcript = await self._read_transcript()
        remembered = self.turn_id  # may differ from the store's in a shared store, which `find_place` checks
        row = stored_row = new_row(self._resources, self.id, transcript.labels, message, definition)
        log = self._new_log(row, definition.domain_id)
        begun_on: Transcript | None = None
        store_turn = self._turn_writer(definition, notices, log)

        def store(conn: Connection) -> TurnRecord | None:
            nonlocal stored_row, begun_on
            place = find_place(conn, self._resources, definition, transcript, remembered, row.id)
            sent = find_sent(conn, row, place.busy, on_busy)
            if sent is not None or (place.busy is None and self._agent is not None):
                return sent  # None: another process has ended the turn that runs here
            payloads.put_images(conn, row.images, self.id)
            if place.busy is None and place.home == self._resources.owner:
                begun_on = place.transcript
                stored_row = row.replace(parent_message_id=place.follows, began=True)
                store_turn(conn, stored_row, place=begun_on.last_seq + 1)
                return None
            stored_row = queued_row(row, place.home)
            store_turn(conn, stored_row)
            self._may_have_queued = True
            return None

        earlier = await self._database.write(store, durable=True)
        if earlier is not None:
            return answer(earlier, duplicate=True)
        if begun_on is not None:
            question = user_message(row.content, row.images, row.attachments)
            begun_on.append(begun_on.last_seq + 1, row.id, 0, row.user_message_id, question)
            self._start_stored(log, Agent(self._resources, begun_on, stored_row, definition, log))
        elif stored_row.status is not TurnStatus.QUEUED:
            assert self._agent is not None
            self._agent.give_up()  # the store knows an end of this turn, which another process has written
            return None
        elif not self._resources.shared:
            self._resources.journal.add(self._new_log(stored_row, definition.domain_id))
        return answer(stored_row, duplicate=False)

    async def _accept_branch(
        self,
        blank: TurnRecord,
        message_id: MessageId,
        content: str | None,
        definition: Definition,
        notices: Sequence[Notice],
        other_images: bool,
    ) -> Accepted:
        """Store a message on a new branch, and begin or queue its turn. ``blank``: see `branch_row`."""
        remembered, before = self.turn_id, await self._read_transcript()
        log = self._new_log(blank, definition.domain_id)
        store_turn = self._turn_writer(definition, notices, log)

        def store(conn: Connection) -> tuple[TurnRecord, Transcript | None]:
            place = find_place(conn, self._resources, definition, before, remembered, blank.id)
            row = branch_row(conn, blank, message_id, content, other_images=other_images)
            earlier = find_sent(conn, row, place.busy or self.turn_id, "reject")
            if earlier is not None:
                return earlier, None
            payloads.put_images(conn, blank.images, self.id)
            sessions.move_leaf(conn, self.id, row.parent_message_id)
            self._resources.hooks.session_branched(conn, self.id)
            if place.home != self._resources.owner:
                row = queued_row(row, place.home)
                store_turn(conn, row)
                sessions.set_writer(conn, self.id, self._resources.owner)  # its next process reads the branch
                return row, None
            store_turn(conn, row, place=place.transcript.last_seq + 1)
            return row, load_transcript(conn, self.id)

        row, transcript = await self._database.write(store, durable=True)
        if transcript is None:
            if row.id == blank.id:
                self.unload()
            return answer(row, duplicate=row.id != blank.id)
        self._start_stored(log, Agent(self._resources, transcript, row, definition, log))
        return answer(row, duplicate=False)

    async def _store_activation(self, message_id: MessageId) -> Transcript:
        await self._read_transcript()
        if self.turn_id is not None:
            raise TurnInProgress(self.turn_id, "A turn is running. Choose another branch once it has ended.")

        def store(conn: Connection) -> Transcript:
            check_free(conn, self.id, self._resources.owner)
            leaf = branches.read_tree(conn, self.id).leaf_after(message_id)
            if leaf is None:
                raise NotFound("message", message_id)
            sessions.move_leaf(conn, self.id, leaf)
            self._resources.hooks.session_branched(conn, self.id)
            return load_transcript(conn, self.id)

        self._transcript = transcript = await self._database.write(store, durable=True)
        self._cache_transcript()
        return transcript

    def _turn_writer(self, definition: Definition, notices: Sequence[Notice], log: RunLog) -> StoresTurn:
        """Return the function that stores a turn with its first events, which begin with these notices."""
        first = (*self._compaction.news, *notices)
        return partial(store_accepted, resources=self._resources, definition=definition, log=log, notices=first)

    def _new_log(self, row: TurnRecord, domain_id: str) -> RunLog:
        redaction = self._resources.redactor.of(domain_id)
        fence = row.fence + (row.status is TurnStatus.QUEUED)  # `_begin_queued` raises it by one
        return RunLog(self._resources.journal, row.conversation_id, row.id, redaction=redaction, fence=fence)

    # Running

    def _start_stored(self, log: RunLog, agent: Agent) -> None:
        """Begin and run a turn whose question and first events are stored.

        The task of the turn is scheduled before its readers are, because the model's service takes longer than they do.
        """
        self._resources.tasks.start_soon(self._run)
        self._begin_stored(log, agent)

    def _begin_stored(self, log: RunLog, agent: Agent) -> None:
        """Begin a turn whose question and first events are stored. `_run` then runs it."""
        self._resources.journal.add(log)
        self._transcript = agent.transcript
        log.adopt()
        self._compaction.clear_news()
        self._begin(agent)

    def _begin(self, agent: Agent) -> None:
        """Set the running agent and wake tasks that wait for the next turn.

        From here on the turn can be interrupted.
        """
        self._agent, self._waiting = agent, None
        if self._resources.interrupts.take(agent.row.id):
            agent.interrupt()
        self._order.begin(agent.row.id)
        self._resources.transcripts.forget(self.id)
        self._delegations.register(agent)
        # After the first step of the turn's task, so that no reader that this wakes delays the model's request.
        asyncio.get_running_loop().call_soon(partial(self._notify, begun=True))

    async def _run(self, resume: Resume | None = None) -> None:
        """Run the turn that has begun, and then the queued turns."""
        load = self._resources.load
        while (agent := self._agent) is not None:
            load.begin()
            try:
                await agent.run(resume)
            finally:
                load.end()
            resume = None
            if agent.suspended:
                self._release_suspended(agent.row)
                return
            self._resources.journal.remove(agent.row.id)
            if agent.garbled or agent.lost:
                self.unload()  # the store's transcript is the valid one
            else:
                await self._compact_if_due(agent)
            async with self._accepting:  # a message joins the queue before this, or starts a turn after it
                if agent.lost or not await self._begin_next():
                    self._agent = None
                    self._cache_transcript()
                    self._notify()

    async def _compact_if_due(self, agent: Agent) -> None:
        if self._transcript is not None and not self._resources.draining.is_set() and not self._closing:
            await self._compaction.run_if_due(self._transcript, agent)

    # The queue

    async def start_queue(self) -> None:
        """Begin the next queued turn, unless a turn runs."""
        if self._agent is not None:
            return
        async with self._accepting:
            begun = self.idle and self._waiting is None and await self._begin_next()
        if begun:
            self._resources.tasks.start_soon(self._run)

    async def _begin_next(self) -> bool:
        """Begin the next queued turn. Returns False if there is none, or it cannot begin now."""
        if self._closing or self._resources.draining.is_set():
            return False
        try:
            return await self._begin_queued()
        except (AgenticRagError, SQLAlchemyError, OSError) as exc:  # the store refuses; other sessions continue
            logger.error("the queue of session %s waits: %s", self.id, exc)
            self._resources.tasks.start_soon(self._retry_queue)
            return False

    async def _begin_queued(self) -> bool:
        """Begin the oldest queued turn. Returns False if none is queued, or another process must begin it."""
        if not (queued := await self._list_queued()):
            return False
        oldest = queued[0]
        if oldest.owner != self._resources.owner:
            await self._database.write(partial(signals.send, kind=SignalKind.TURNS, subject=self.id))
            return False
        before = await self._read_transcript()
        definition = await self._database.read(partial(stored_definition, image_id=oldest.image_id))
        assert definition is not None
        # on a SQLite file the log was opened when the turn was queued, or by `Runtime.recover`
        log = self._resources.journal.find(oldest.id) or self._new_log(oldest, definition.domain_id)

        def store(conn: Connection) -> tuple[TurnRecord, Transcript] | None:
            claimed = claim_queued(conn, oldest, before, self._resources.owner)
            if claimed is None:
                return None
            row, transcript = claimed
            row = row.replace(fence=row.fence + 1, status=TurnStatus.RUNNING, began=True)
            if not turns.start(conn, row):
                raise LeaseLost(row.id)
            sessions.append_question(conn, row, transcript.last_seq + 1)
            log.store_first(conn, start_events(row, definition.model, self._compaction.news))
            announce_begun(conn, row)
            return row, transcript

        with anyio.CancelScope(shield=True):  # a stored turn must also start
            if (begun := await self._database.write(store, durable=True)) is None:
                return False
            row, transcript = begun
            question = user_message(row.content, row.images, row.attachments)
            transcript.append(transcript.last_seq + 1, row.id, 0, row.user_message_id, question)
            self._begin_stored(log, Agent(self._resources, transcript, row, definition, log))
        return True

    async def _list_queued(self) -> Sequence[TurnRecord]:
        """Return the queued turns, oldest first.

        An empty queue of a single process is not read again. Hold ``_accepting``.
        """
        if not self._may_have_queued:
            return ()
        queued = await self._database.read(lambda conn: turns.list_queued(conn, self.id), single=True)
        self._may_have_queued = self._resources.shared or bool(queued)
        return queued

    async def _retry_queue(self) -> None:
        await anyio.sleep(QUEUE_SECONDS)
        if self._agent is None and not self._closing:
            await self.start_queue()

    async def _end_queued(self, turn_id: TurnId | None) -> bool:
        """End queued turns (all, or one) as interrupted before they start."""
        async with self._accepting:
            queued = [row for row in await self._list_queued() if turn_id in (None, row.id)]
            # a list, not a generator: `any` must not stop after the first turn
            return any([await end_unstarted(self._resources, row, Interrupted()) for row in queued])

    # Suspended turns

    async def suspend_after(self, seconds: float) -> None:
        """Suspend the running turn if it has waited only for people for at least ``seconds``."""
        agent = self._agent
        if agent is not None and agent.waits_for_people and anyio.current_time() - agent.waiting_since >= seconds:
            await agent.suspend()

    def _release_suspended(self, row: TurnRecord) -> None:
        """Drop the state of a suspended turn, except its log in a store of one process: its readers wait for events.

        In a shared store any process may resume the turn, so the readers look for its log there.
        """
        journal = self._resources.journal
        log = journal.find(row.id)
        if log is not None and self._resources.shared:
            journal.remove(row.id)
            log.hand_over()
        elif log is not None:
            log.unload(log.journalled)
        self.unload()
        self._agent, self._waiting = None, None if self._resources.shared else row
        self._notify()

    def register_suspended(self, waiting: WaitingTurn) -> None:
        """Register a turn that was suspended before this process started."""
        log = self._new_log(waiting.turn, waiting.domain_id)
        log.unload(waiting.last_seq)
        self._resources.journal.add(log)
        self._waiting = waiting.turn

    # Compacting

    async def compact(self, definition: Definition, key_id: str = "") -> CompactionRecord:
        """Replace the messages by a summary.

        The compaction holds the session like a turn. ``key_id``: the key that pays.

        Raises:
            NotFound: the session was deleted.
            TurnInProgress: a turn runs.
            CompactionNotNeeded: there are too few messages; nothing has changed.
            ModelError, GenerationTimeout, StorageFull: nothing has changed.
            GenerationAborted: a user interrupted it; nothing has changed.
        """
        await self._when_free(partial(self._hold_for_compaction, definition, key_id))
        try:
            return await self._compaction.run()
        finally:
            self._cache_transcript()
            self._notify()

    async def _hold_for_compaction(self, definition: Definition, key_id: str) -> Transcript:
        """Reserve the session for a compaction, and return the transcript to compact."""
        if self.turn_id is not None:
            raise TurnInProgress(self.turn_id, "A turn is running. Compact the conversation once it has ended.")
        if self._resources.shared:
            await self._database.write(partial(check_free, session_id=self.id, owner=self._resources.owner))
        transcript = await self._read_transcript(reload=self._resources.shared)
        self._compaction.hold(transcript, definition, key_id)
        return transcript

    def cancel_compaction(self) -> None:
        """Cancel a running compaction, because the process is about to stop."""
        self._compaction.cancel()

    # Ending

    async def interrupt(self, *, turn_id: TurnId | None = None, queued: bool = False) -> bool:
        """Interrupt the running turn (or the named one) or compaction, and with ``queued`` the queued turns.

        Idempotent, and without effect on a turn that has ended. Returns whether anything was interrupted.
        """
        done = False
        while self._agent is not None and self._agent.suspended:  # it is about to become the waiting turn
            await self._changed.wait()
        if turn_id is None:
            done = self._compaction.cancel()
        if queued or (turn_id is not None and turn_id != self.turn_id):
            done = await self._end_queued(None if queued else turn_id) or done
        if self._agent is not None and not self._agent.over and turn_id in (None, self.turn_id):
            self.stop()
            done = True
        elif self._agent is None and self._waiting is not None and turn_id in (None, self.turn_id):
            done = await self.interrupt_waiting(self._waiting) or done
        return done

    def stop(self) -> None:
        """Interrupt the running turn, if it has not ended."""
        if self._agent is not None and not self._agent.over:
            self._agent.interrupt()

    async def interrupt_waiting(self, suspended: TurnRecord) -> bool:
        """End a suspended turn as if it ran, so that each of its calls gets a result.

        Returns False if another process has taken the turn.
        """

        def take(conn: Connection) -> TurnRecord | None:
            fence = turns.take_suspended(conn, suspended.id, self._resources.owner)
            if fence is None:
                return None
            row = suspended.replace(owner=self._resources.owner, fence=fence)
            sessions.set_writer(conn, row.session_id, row.owner)
            announce_begun(conn, row)
            return row

        row = await self._database.write(take, durable=True)
        if row is None:
            return False
        if self._resources.shared:
            self.unload()  # the process that suspended the turn may have added messages
        await self.load()
        await self.resume(row, interrupted=True)
        return True

    def abandon(self, turn_id: TurnId) -> None:
        """Stop a running turn that another process has taken over."""
        if self._agent is not None and self.turn_id == turn_id and not self._agent.over:
            self._agent.give_up()

    async def close(self) -> None:
        """Interrupt the running turn, wait for its end, and begin no other. The session is about to be deleted.

        Raises:
            StorageError: the end cannot be stored now; the session stays.
        """
        await self.interrupt()
        self._closing = True
        try:
            while not self.idle:
                if self._agent is not None:
                    self._agent.interrupt()
                self._compaction.cancel()
                await self._next_change()
        except BaseException:
            self._closing = False
            raise

    # Resuming after a stop

    def open_queued_log(self, row: TurnRecord, domain_id: str) -> None:
        """Open the log of a turn that was queued when the server stopped, before the turn can begin."""
        self._resources.journal.add(self._new_log(row, domain_id))

    async def resume(self, row: TurnRecord, *, interrupted: bool = False) -> None:
        """Resume a turn that was taken over from a stopped server, or that was suspended.

        ``interrupted``: resume only to store its end.
        """
        while self._agent is not None:  # the answer came while the turn was being suspended
            await self._changed.wait()
        transcript = await self._read_transcript()
        saved = await self._database.read(lambda conn: read_interrupted(conn, row))
        resumed = Resumed((saved.last_seq + 1, epoch_of(row.fence)))
        if row.resumes > MAX_RESUMES or saved.definition is None:
            limit = ResumeLimit(MAX_RESUMES)
            await end_unstarted(self._resources, row, Error(limit.code, str(limit), False), resumed)
            self._waiting = None
            await self.start_queue()
            return
        log = self._resources.journal.find(row.id)
        if log is None:
            log = self._new_log(row, saved.definition.domain_id)
            self._resources.journal.add(log)
        else:  # the turn was suspended, and its readers waited
            log.resume(row.fence)
        log.append(resumed)
        agent = Agent(self._resources, transcript, row, saved.definition, log)
        if interrupted:
            agent.interrupt()
        self._begin(agent)
        self._resources.tasks.start_soon(self._run, saved.resume)


MAX_ORDER = 16


class TurnOrder:
    """The last `MAX_ORDER` turns of one session, in the order of their beginning."""

    def __init__(self) -> None:
        self._begun: list[TurnId] = []

    def begin(self, turn_id: TurnId) -> None:
        """Add a turn that begins."""
        self._begun = [*self._begun[1 - MAX_ORDER :], turn_id]

    def following(self, after: TurnId | None, current: TurnId | None) -> TurnId | None:
        """Return the turn that began after ``after``, or the ``current`` one. None: not yet."""
        if after in self._begun:
            rest = self._begun[self._begun.index(after) + 1 :]
            return rest[0] if rest else None
        return current if current != after else None


async def end_unstarted(resources: Resources, row: TurnRecord, final: Terminal, resumed: Resumed | None = None) -> bool:
    """Store the terminal event of a turn that no agent runs, after ``resumed`` if the turn had begun.

    Returns False, without any change, if another process has begun the turn meanwhile.
    """
    journal = resources.journal
    # a new log contains only our own texts, so nothing needs redaction
    log = journal.find(row.id) or RunLog(journal, row.conversation_id, row.id, fence=row.fence)
    log.drop_undelivered()  # the first events, if the store refused to begin the turn

    def store(conn: Connection) -> bool:
        if resumed is not None:
            turns.hold(conn, row.id, row.fence)
        elif not is_unstarted(conn, row):
            return False
        end_without_agent(conn, row, final)
        resources.hooks.turn_ended(conn, row, final)
        log.store_first(conn, [final] if resumed is None else [resumed, final])
        return True

    with anyio.CancelScope(shield=True):
        ended = await resources.database.write(store, durable=True)
        if ended:
            log.adopt()
            journal.remove(row.id)
            log.close()
    return ended
