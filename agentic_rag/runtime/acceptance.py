"""Acceptance of a message: the checks, whether its turn may begin, its records, and the answer to the sender.

Functions of a connection and of records. `agentic_rag.runtime.session` calls them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from sqlalchemy import Connection

from agentic_rag.base.errors import IdempotencyMismatch, TurnInProgress
from agentic_rag.base.events import EventBody, IterationStart, TurnStarted
from agentic_rag.base.ids import ConversationId, MessageId, SessionId, TurnId
from agentic_rag.base.messages import KeptAttachment
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.transcript import Transcript
from agentic_rag.runtime.log.runlog import RunLog
from agentic_rag.runtime.sent_images import SentImage
from agentic_rag.runtime.services import Resources
from agentic_rag.runtime.turn_persistence import load_transcript
from agentic_rag.store import attachments, branches, images, leases, replicas, sessions, signals, turns
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.sessions import SessionLabels
from agentic_rag.store.signals import SignalKind
from agentic_rag.store.turns import TurnRecord, TurnStatus

MAX_QUEUED = 5
"""Most messages in the queue behind a running turn."""

OnBusy = Literal["reject", "queue", "join"]
"""The handling of a message that arrives while a turn runs.

``join``: a message with the words of the running turn or of a queued one joins that turn. Any other message is
rejected.
"""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A message that was accepted durably.

    ``duplicate``: a message with the same client message id was accepted before.
    """

    turn_id: TurnId
    user_message_id: MessageId
    message_id: MessageId
    client_message_id: str | None
    duplicate: bool
    queued: bool


def find_sent(conn: Connection, row: TurnRecord, busy: TurnId | None, on_busy: OnBusy) -> TurnRecord | None:
    """Return the turn of an earlier copy of this message, or None if the message is new.

    A copy has the same client message id and content. With ``join``, equal words are enough while their turn runs or is
    queued.

    ``busy``: the running turn.

    Raises:
        IdempotencyMismatch: the same id came with other content.
        TurnInProgress: a turn runs and ``on_busy`` is not ``queue``, or the queue is full.
    """
    if row.client_message_id is not None:
        earlier = turns.by_client_message(conn, row.session_id, row.client_message_id)
        if earlier is not None and earlier.said != row.said:
            raise IdempotencyMismatch(row.client_message_id)
        if earlier is not None:
            return earlier
    if busy is None:
        return None
    if on_busy == "join":
        unfinished = [turns.get(conn, busy), *turns.list_queued(conn, row.session_id)]
        same = next((turn for turn in unfinished if turn is not None and turn.words == row.words), None)
        if same is not None:
            return same
    if on_busy != "queue":
        raise TurnInProgress(busy)
    if len(turns.list_queued(conn, row.session_id)) >= MAX_QUEUED:
        raise TurnInProgress(busy, f"{MAX_QUEUED} messages wait already, which is the limit.")
    return None


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message from a user. ``content``: clean text. ``key_id``: the API key that sent the message."""

    content: str
    client_message_id: str | None
    key_id: str
    images: Sequence[SentImage]
    attachments: Sequence[KeptAttachment] = ()


def new_row(
    resources: Resources,
    session_id: SessionId,
    labels: SessionLabels,
    message: NewMessage,
    definition: Definition,
) -> TurnRecord:
    """Return the record of a new message's turn, for the case that the turn begins at once."""
    return TurnRecord(
        id=TurnId(new_id("turn")),
        session_id=session_id,
        conversation_id=labels.conversation_id or ConversationId(session_id),
        client_message_id=message.client_message_id,
        key_id=message.key_id,
        content=message.content,
        images=tuple(image.image for image in message.images),
        attachments=tuple(message.attachments),
        user_message_id=MessageId(new_id("msg")),
        message_id=MessageId(new_id("msg")),
        image_id=resources.images.of(definition).id,
        owner=resources.owner,
        fence=1,
        started_at=now(),
    )


def branch_row(
    conn: Connection, blank: TurnRecord, message_id: MessageId, content: str | None, *, other_images: bool
) -> TurnRecord:
    """Return the record of a turn that answers a user's message again.

    ``message_id`` may also be that of its answer.

    ``blank``: the record of a new message. ``content``: new words, or None. ``other_images``: use the images of
    ``blank``.

    Raises:
        NotFound: the session has no such message.
    """
    question = branches.question_of(conn, blank.session_id, message_id)
    sent = blank.images if other_images else question.images
    follows, user_message_id = question.parent_message_id, question.user_message_id
    row = blank.replace(
        parent_message_id=follows, began=True, branch_of=user_message_id, images=sent, attachments=question.attachments
    )
    return row if content is not None else row.replace(content=question.content, user_message_id=user_message_id)


def queued_row(row: TurnRecord, owner: str) -> TurnRecord:
    """Return the record of a queued turn. ``owner``: the process whose queue it joins, or empty for any process."""
    return row.replace(status=TurnStatus.QUEUED, began=False, fence=0, owner=owner)


def store_turn(conn: Connection, resources: Resources, row: TurnRecord, definition: Definition) -> Sequence[EventBody]:
    """Store a turn, its image and its owner's lease, if the turn has one. Return the events that the hooks add."""
    added = resources.hooks.turn_accepted(conn, row)
    if not images.is_there(conn, row.image_id):  # usually stored: do not serialise it
        images.put(conn, row.image_id, definition.domain_id, resources.images.of(definition).content)
    turns.add(conn, row)
    attachments.note_sent(conn, row.session_id, row.attachments, row.id)
    return added


class StoresTurn(Protocol):
    """`store_accepted` with the arguments of one message bound."""

    def __call__(self, conn: Connection, row: TurnRecord, *, place: int | None = None) -> None: ...


def store_accepted(
    conn: Connection,
    row: TurnRecord,
    *,
    place: int | None = None,
    resources: Resources,
    definition: Definition,
    log: RunLog,
    notices: Sequence[EventBody],
) -> None:
    """Store a turn, and also its question and its first events if the turn begins now (at ``place``)."""
    added = store_turn(conn, resources, row, definition)
    if place is not None:
        sessions.append_question(conn, row, place)
        log.store_first(conn, start_events(row, definition.model, (*notices, *added)))
        announce_begun(conn, row)
    elif row.owner != resources.owner:
        signals.send(conn, SignalKind.TURNS, row.session_id)


def start_events(row: TurnRecord, model: str, news: Sequence[EventBody]) -> Sequence[EventBody]:
    """Return a turn's first events, with ``news`` between ``turn_started`` and the start of the first step.

    The first step's event is stored with the turn, so that no other commit stands before the first delta.
    """
    started = TurnStarted(
        user_message_id=row.user_message_id,
        message_id=row.message_id,
        content=row.content,
        model=model,
        image_id=row.image_id,
        client_message_id=row.client_message_id,
        images=row.images or None,
        attachments=row.attachments or None,
    )
    return (started, *news, IterationStart(1))


def answer(row: TurnRecord, *, duplicate: bool) -> Accepted:
    """Return the answer to the sender of a message."""
    return Accepted(
        turn_id=row.id,
        user_message_id=row.user_message_id,
        message_id=row.message_id,
        client_message_id=row.client_message_id,
        duplicate=duplicate,
        queued=row.status is TurnStatus.QUEUED,
    )


# If several processes share the store, the session's row is locked. The store's state counts, not the memory of a
# process. The process that begins a turn becomes the session's writer, so that the others read its transcript again. A
# SQLite file has only one process, so these checks are skipped.


class IdBehind(Exception):
    """A new turn's id sorts before the newest id of its session, which a server with another clock made.

    Turns are sorted by their ids. The message is accepted again with new ids, after `advance_ids`.
    """

    def __init__(self, newest: str) -> None:
        super().__init__(newest)
        self.newest = newest


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """The position of a new message. ``busy``: the turn that the message waits for, or None if its turn may begin.

    ``transcript``: the session's current transcript. ``home``: the process whose queue the message joins. ``follows``:
    the id of the answer before the message if its turn begins.
    """

    transcript: Transcript
    busy: TurnId | None
    home: str
    follows: MessageId | None = None


def find_place(
    conn: Connection,
    resources: Resources,
    definition: Definition,
    transcript: Transcript,
    busy: TurnId | None,
    turn_id: TurnId,
) -> QueuePlace:
    """Decide whether a turn may begin in a session now.

    ``transcript`` and ``busy``: this process's view of the session.

    A process that begins no more turns leaves the turn in a queue without an owner, for another process. If the
    domain's MCP servers have their home in another living process, the turn joins that process's queue.

    Raises:
        TurnInProgress: another process runs a turn in the session, on a SQLite file.
        IdBehind: ``turn_id`` sorts before an id that a server with another clock made, on PostgreSQL.
    """
    owner, session_id = resources.owner, transcript.session_id
    head = sessions.lock(conn, session_id)
    if conn.dialect.name != "postgresql":
        # a process that runs a turn in the session is its writer
        elsewhere = turns.running_elsewhere(conn, session_id, owner) if busy is None and head.writer != owner else None
        if elsewhere is not None:
            raise TurnInProgress(elsewhere)
        return QueuePlace(transcript, busy, owner, head.leaf_message_id)
    newest = turns.newest_id(conn, session_id)
    if newest >= turn_id:
        raise IdBehind(newest)
    current = turns.current_of(conn, session_id)
    if current is not None:
        return QueuePlace(transcript, current.id, current.owner or owner)
    if head.writer != owner:
        transcript = load_transcript(conn, session_id)
    home = leases.find_owner(conn, leases.home_of(definition.domain_id)) if definition.entries else None
    if home not in (None, owner) and replicas.is_running(conn, home, replicas.ALIVE_SECONDS):
        return QueuePlace(transcript, None, home)
    return QueuePlace(transcript, None, "" if resources.full else owner, head.leaf_message_id)


def check_free(conn: Connection, session_id: SessionId, owner: str) -> None:
    """Allow a change of a session only if no turn runs or waits in it.

    Afterwards other processes read the session again.

    Raises:
        TurnInProgress: a turn runs or waits, in any process.
    """
    if conn.dialect.name != "postgresql":
        return
    sessions.lock(conn, session_id)
    current = turns.current_of(conn, session_id)
    if current is not None:
        raise TurnInProgress(current.id)
    sessions.set_writer(conn, session_id, owner)


def check_unmoved(conn: Connection, session_id: SessionId, owner: str) -> None:
    """Check that no other process has changed a session since ``owner`` read its transcript.

    Raises:
        TurnInProgress: another process has.
    """
    if conn.dialect.name != "postgresql":
        return
    head = sessions.lock(conn, session_id)
    current = turns.current_of(conn, session_id)
    if current is not None:
        raise TurnInProgress(current.id)
    if head.writer != owner:
        newest = [turn.id for turn in turns.of_session(conn, session_id)[-1:]] or [TurnId("")]
        raise TurnInProgress(newest[0], "The conversation changed meanwhile. Compact it again.")


def announce_begun(conn: Connection, row: TurnRecord) -> None:
    """Notify the other processes that a turn begins or resumes here, so that they drop their copies of the session."""
    signals.send(conn, SignalKind.BEGAN, row.session_id, row.id)


def claim_queued(
    conn: Connection, row: TurnRecord, transcript: Transcript, owner: str
) -> tuple[TurnRecord, Transcript] | None:
    """Return a queued turn and its session's transcript if ``owner`` may begin the turn next, else None.

    The turn follows the answer that is now the last one.
    """
    head = sessions.lock(conn, row.session_id)
    if conn.dialect.name != "postgresql":
        return row.replace(parent_message_id=head.leaf_message_id), transcript
    current = turns.current_of(conn, row.session_id)
    if current is None or current.id != row.id or current.status is not TurnStatus.QUEUED or current.owner != owner:
        return None
    follows = current.replace(parent_message_id=head.leaf_message_id)
    return follows, transcript if head.writer == owner else load_transcript(conn, row.session_id)


def is_unstarted(conn: Connection, row: TurnRecord) -> bool:
    """Return whether a turn is still queued, for the rest of the transaction."""
    if conn.dialect.name != "postgresql":
        return True
    sessions.lock(conn, row.session_id)
    current = turns.get(conn, row.id)
    return current is not None and current.status is TurnStatus.QUEUED
