"""Turn records: one user message and its processing up to the answer.

This module owns a turn's states, totals and lease::

    add ──> QUEUED ──start──> RUNNING ──finish──> DONE, INTERRUPTED, FAILED
    add ────────────────────>    │ ▲
                          suspend│ │wake, take_suspended, undo_suspend
                                 ▼ │
                               WAITING

The lease names the process that runs the turn (or will run it, while queued) and its end by the database's clock. A
process that takes the turn raises its fencing number, and each transaction of the owner checks the number: so a former
owner that only seemed dead cannot write. Events are in `run_events`, messages in `sessions`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Index, UniqueConstraint, and_, func, insert, not_, or_, select, text, update
from sqlmodel import Field

from agentic_rag.base.errors import LeaseLost, NotFound
from agentic_rag.base.events import Error, Reference, Usage
from agentic_rag.base.ids import ConversationId, MessageId, SessionId, TurnId
from agentic_rag.base.messages import KeptAttachment, KeptImage
from agentic_rag.store import signals
from agentic_rag.store.columns import Key
from agentic_rag.store.database_time import DatabaseTime
from agentic_rag.store.record import Record
from agentic_rag.store.signals import SignalKind
from agentic_rag.store.statements import Prepared, parameter


class TurnStatus(StrEnum):
    """The state of a turn. `FINISHED` lists the final states."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    """Suspended until a person answers: no process runs the turn."""
    DONE = "done"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


FINISHED = (TurnStatus.DONE, TurnStatus.INTERRUPTED, TurnStatus.FAILED)

LEASE_SECONDS = 15.0
"""Seconds after its last heartbeat for which a turn's owner counts as alive."""

_UNENDED = "ended_at IS NULL"
"""The condition of partial indexes. They stay small, because almost all turns have ended."""


class TurnRecord(Record, table=True):
    """One user message and its processing up to the answer."""

    __tablename__ = "turns"
    __table_args__ = (
        UniqueConstraint("session_id", "client_message_id"),  # its index serves look-ups by session too
        # a partial index over unfinished turns: queries by state include `HAS_NOT_ENDED`
        Index("ix_turns_unfinished", "status", sqlite_where=text(_UNENDED), postgresql_where=text(_UNENDED)),
    )
    part_of = "session"

    id: Key[TurnId]
    session_id: SessionId
    conversation_id: ConversationId
    client_message_id: str | None = None
    key_id: str = ""
    """The key that authorised the message; empty: the local user's."""
    content: str
    """The user's text."""
    images: tuple[KeptImage, ...] = ()
    """Images sent with the text."""
    attachments: tuple[KeptAttachment, ...] = ()
    """Files sent with the text."""
    user_message_id: MessageId
    """Shared by all turns that answer the same question again."""
    message_id: MessageId
    parent_message_id: MessageId | None = None
    """The answer that the question follows; None if the turn starts a conversation or has not begun."""
    branch_of: str | None = None
    """The user's message that this turn answers again or rephrases; None: the turn continues the conversation."""
    began: bool = False
    """Whether the question has a position in the session; a queued turn gets one when it starts."""
    status: TurnStatus = TurnStatus.RUNNING
    end_reason: str | None = None
    error: Error | None = None
    image_id: str
    role_hashes: dict[str, str] = Field(default_factory=dict)
    """Hashes of the roles used for the answer, by role id."""
    owner: str = ""
    """The process that runs the turn or has it in its queue; empty if that process has suspended it."""
    fence: int = 0
    """Number of times that the turn was begun or taken by another owner."""
    lease_until: str | None = None
    interrupt_asked: bool = False
    """Whether a user has interrupted the turn in another process than the one that runs it."""
    resumes: int = 0
    """Number of interruptions since the last committed step; intended stops do not count."""
    steps: int = 0
    usage: Usage | None = None
    """The turn's total usage, once it has ended."""
    references: tuple[Reference, ...] = ()
    timings: dict[str, int] = Field(default_factory=dict)
    """Milliseconds by name, as in `events.Done`."""
    started_at: str
    ended_at: str | None = None

    @property
    def said(self) -> tuple[object, ...]:
        """The values by which duplicate messages are recognised; refs are left out, because they are always new."""
        return self.content, self.branch_of, *self._sent

    @property
    def words(self) -> tuple[str, ...]:
        """The user's text, image checksums and attachments, for new and repeated messages alike."""
        return self.content, *self._sent

    @property
    def _sent(self) -> tuple[str, ...]:
        return (*(image.sha256 for image in self.images), *(attachment.id for attachment in self.attachments))


# Statements and conditions that several functions share

TURNS = TurnRecord.__table__
_turns = TURNS.c
_BY_ID = _turns.id == parameter(_turns.id)
_OF_SESSION = _turns.session_id == parameter(_turns.session_id)
# not `not_in`, whose list is expanded when it runs: a prepared statement cannot contain one
_UNFINISHED = and_(*(_turns.status != status for status in FINISHED))
HAS_NOT_ENDED = _turns.ended_at.is_(None)
"""True for all unfinished turns and only for those; queries that include it use the partial index."""
_LEASED = and_(HAS_NOT_ENDED, _turns.status.in_((TurnStatus.QUEUED, TurnStatus.RUNNING)))
_RUNNING = and_(HAS_NOT_ENDED, _turns.status == TurnStatus.RUNNING)
_QUEUED = and_(HAS_NOT_ENDED, _turns.status == TurnStatus.QUEUED)
_WAITING = and_(HAS_NOT_ENDED, _turns.status == TurnStatus.WAITING)
_UNOWNED = and_(_turns.owner == "", _turns.status.in_((TurnStatus.WAITING, TurnStatus.RUNNING)))
"""Turns without a process: suspended ones, and those that a process has left. Both have begun before."""
_FREE = or_(_turns.lease_until.is_(None), _turns.lease_until < DatabaseTime())
"""True if no living process has the turn. The database's clock decides, because the clocks of processes differ."""
_LEASE_END = DatabaseTime(LEASE_SECONDS)
_IN_ORDER = select(TURNS).order_by(_turns.id)


# Reading

_GET = Prepared(select(TURNS).where(_BY_ID))


def get(conn: Connection, turn_id: TurnId) -> TurnRecord | None:
    """Return the turn, or None."""
    return TurnRecord.first(conn, _GET, id=turn_id)


def by_ids(conn: Connection, turn_ids: Sequence[TurnId]) -> dict[TurnId, TurnRecord]:
    """Return the existing turns among these, by id."""
    return {turn.id: turn for turn in TurnRecord.all(conn, select(TURNS).where(_turns.id.in_(turn_ids)))}


_BY_CLIENT_MESSAGE = Prepared(
    select(TURNS).where(_OF_SESSION, _turns.client_message_id == parameter(_turns.client_message_id))
)


def by_client_message(conn: Connection, session_id: SessionId, client_message_id: str) -> TurnRecord | None:
    """Return the turn created from this client message, or None."""
    return TurnRecord.first(conn, _BY_CLIENT_MESSAGE, session_id=session_id, client_message_id=client_message_id)


def of_session(conn: Connection, session_id: SessionId) -> list[TurnRecord]:
    """Return all turns of a session, oldest first."""
    return TurnRecord.all(conn, _IN_ORDER.where(_OF_SESSION), session_id=session_id)


def ids_in(conn: Connection, session_ids: Sequence[SessionId]) -> dict[TurnId, SessionId]:
    """Return the turns of sessions, each with its session."""
    rows = conn.execute(select(_turns.id, _turns.session_id).where(_turns.session_id.in_(session_ids)))
    return {row.id: row.session_id for row in rows}


_NEWEST_OF = Prepared(select(func.max(_turns.id)).where(_OF_SESSION))


def newest_id(conn: Connection, session_id: SessionId) -> str:
    """Return the id of a session's newest turn; empty if there is none."""
    row = _NEWEST_OF.first(conn, session_id=session_id)
    return "" if row is None or row[0] is None else str(row[0])


_OLDEST_OF = Prepared(select(func.min(_turns.id)).where(_OF_SESSION))


def is_first(conn: Connection, turn: TurnRecord) -> bool:
    """Return whether this is the session's first accepted turn on any branch."""
    row = _OLDEST_OF.first(conn, session_id=turn.session_id)
    return row is None or row[0] is None or str(row[0]) == turn.id


_CURRENT_OF = Prepared(_IN_ORDER.where(_OF_SESSION, _UNFINISHED))


def current_of(conn: Connection, session_id: SessionId) -> TurnRecord | None:
    """Return the running or waiting turn of a session, or else its first queued one; None if all have ended."""
    unfinished = TurnRecord.all(conn, _CURRENT_OF, session_id=session_id)
    oldest = unfinished[0] if unfinished else None
    return next((turn for turn in unfinished if turn.status is not TurnStatus.QUEUED), oldest)


def current(conn: Connection, session_ids: Sequence[str]) -> dict[str, TurnRecord]:
    """Return the current turn of each session: the running or waiting one, or else the first queued one."""
    by_session: dict[str, TurnRecord] = {}
    for turn in TurnRecord.all(conn, _IN_ORDER.where(_turns.session_id.in_(session_ids), _UNFINISHED)):
        before = by_session.get(turn.session_id)
        if before is None or (before.status is TurnStatus.QUEUED and turn.status is not TurnStatus.QUEUED):
            by_session[turn.session_id] = turn
    return by_session


def list_running(conn: Connection) -> list[TurnRecord]:
    """Return all running turns of all sessions; after a crash, these are to be resumed."""
    return TurnRecord.all(conn, _IN_ORDER.where(_RUNNING))


def list_waiting(conn: Connection) -> list[TurnRecord]:
    """Return all suspended turns of all sessions, including those of delegates."""
    return TurnRecord.all(conn, _IN_ORDER.where(_WAITING))


_ELSEWHERE = Prepared(
    select(_turns.id).where(
        _OF_SESSION, _turns.status == TurnStatus.RUNNING, _turns.owner != parameter(_turns.owner), not_(_FREE)
    )
)


def running_elsewhere(conn: Connection, session_id: SessionId, owner: str) -> TurnId | None:
    """Return the turn of a session that a living process other than ``owner`` runs, or None."""
    row = _ELSEWHERE.first(conn, session_id=session_id, owner=owner)
    return None if row is None else TurnId(row[0])


# Accepting and ending


def _insertion(**fixed: Any) -> Prepared:
    """Return an insertion with a parameter for each column that has no fixed value."""
    values = {name: parameter(_turns[name]) for name in TurnRecord.names}
    return Prepared(insert(TURNS).values({**values, **fixed}))


_LEASE: dict[bool, Any] = {True: {"lease_until": _LEASE_END}, False: {}}
_SHARED: dict[bool, Any] = {True: {"started_at": DatabaseTime()}, False: {}}
# one statement for each kind of turn (with an owner or without) and of store (shared or not)
_ADD = {(owned, shared): _insertion(**_LEASE[owned], **_SHARED[shared]) for owned in _LEASE for shared in _SHARED}


def add(conn: Connection, turn: TurnRecord) -> None:
    """Store a new turn and begin its owner's lease, if it has one.

    In a shared store, the start time comes from the database's clock, which all its processes share.

    Raises:
        IntegrityError: the id, or the client message id in its session, is taken.
    """
    statement = _ADD[turn.owner != "", conn.dialect.name == "postgresql"]
    statement.run(conn, **turn.column_values())


@dataclass(frozen=True, kw_only=True)
class TurnEnd:
    """How a turn ended, and its totals. The fields have the names of the columns that they fill."""

    status: TurnStatus
    """One of `FINISHED`."""
    end_reason: str
    ended_at: str
    steps: int
    usage: Usage | None
    error: Error | None = None
    references: Sequence[Reference] = ()
    timings: Mapping[str, int] = field(default_factory=dict)
    role_hashes: Mapping[str, str] = field(default_factory=dict)


_FINISH = Prepared(
    update(TURNS)
    .where(_BY_ID, _UNFINISHED)
    .values({**{column.name: parameter(_turns[column.name]) for column in fields(TurnEnd)}, "lease_until": None})
)


def finish(conn: Connection, turn_id: TurnId, end: TurnEnd) -> bool:
    """Store the end of a turn.

    Returns False, without a change, if the turn has ended before or does not exist.
    """
    return _FINISH.run(conn, id=turn_id, **vars(end)) == 1


def request_interrupt(conn: Connection, turn_id: TurnId) -> bool:
    """Request the end of a turn and notify its process; False, without a change, if the turn has ended."""
    statement = update(TURNS).where(_turns.id == turn_id, _UNFINISHED).values(interrupt_asked=True)
    changed = conn.execute(statement).rowcount == 1
    if changed:
        signals.send(conn, SignalKind.INTERRUPT, turn_id)
    return changed


# The queue

_ALL_QUEUED = _IN_ORDER.where(_QUEUED)
_QUEUED_OF = Prepared(_ALL_QUEUED.where(_OF_SESSION))


def list_queued(conn: Connection, session_id: SessionId | None = None) -> list[TurnRecord]:
    """Return the queued turns of a session (None: of all), oldest first."""
    if session_id is None:
        return TurnRecord.all(conn, _ALL_QUEUED)
    return TurnRecord.all(conn, _QUEUED_OF, session_id=session_id)


def queued_sessions(conn: Connection, owner: str) -> list[SessionId]:
    """Return the sessions with queued turns of ``owner`` and no running or waiting turn."""
    busy = select(_turns.session_id).where(HAS_NOT_ENDED, _turns.status.in_((TurnStatus.RUNNING, TurnStatus.WAITING)))
    where = (_QUEUED, _turns.owner == owner, _turns.session_id.not_in(busy))
    return list(conn.execute(select(_turns.session_id).where(*where).distinct()).scalars())


def start(conn: Connection, turn: TurnRecord) -> bool:
    """Change a queued turn of its owner to running, and store the record's fields about its start.

    Returns False, without a change, if the turn is not queued.
    """
    # With the owner, because another process may have taken the turn into its own queue.
    queued = (_turns.id == turn.id, _turns.status == TurnStatus.QUEUED, _turns.owner == turn.owner)
    changed = conn.execute(
        update(TURNS)
        .where(*queued)
        .values(
            status=TurnStatus.RUNNING,
            image_id=turn.image_id,
            role_hashes=turn.role_hashes,
            fence=_turns.fence + 1,
            lease_until=_LEASE_END,
            started_at=turn.started_at,
            parent_message_id=turn.parent_message_id,
            began=True,
        )
    )
    return changed.rowcount == 1


def take_queued(conn: Connection, turn_ids: Sequence[str], owner: str) -> None:
    """Move queued turns into ``owner``'s queue."""
    statement = update(TURNS).where(_turns.id.in_(turn_ids), _turns.status == TurnStatus.QUEUED)
    conn.execute(statement.values(owner=owner, lease_until=_LEASE_END))


# Leases of a living owner: each transaction in which it writes calls `hold`

_HOLD = Prepared(
    update(TURNS)
    .where(_BY_ID, _turns.fence == parameter(_turns.fence), _turns.status == TurnStatus.RUNNING)
    .values(lease_until=_LEASE_END)
)


def hold(conn: Connection, turn_id: TurnId, fence: int) -> None:
    """Extend the lease of a running turn; part of every transaction in which its owner writes.

    Raises:
        LeaseLost: the fencing number has changed, or the turn has ended.
    """
    if _HOLD.run(conn, id=turn_id, fence=fence) != 1:
        raise LeaseLost(turn_id)


# A shared lock: the number cannot change before the transaction ends, and other transactions may check it meanwhile.
_FENCE = Prepared(select(_turns.fence).where(_BY_ID).with_for_update(read=True))


def is_held(conn: Connection, turn_id: TurnId, fence: int) -> bool:
    """Return whether the fencing number is current, and lock it for this transaction; the turn may have ended."""
    row = _FENCE.first(conn, id=turn_id)
    return row is not None and row[0] == fence


def renew(conn: Connection, owner: str) -> frozenset[str]:
    """Extend the leases of all turns of an owner and return their ids; any other turn is no longer the owner's."""
    query = select(_turns.id).where(_LEASED, _turns.owner == owner)
    # the same order everywhere, or two transactions that lock several turns could deadlock
    locked = query.order_by(_turns.id).with_for_update(key_share=True)
    statement = update(TURNS).where(_turns.id.in_(locked)).values(lease_until=_LEASE_END)
    return frozenset(conn.execute(statement.returning(_turns.id)).scalars())


def release_all(conn: Connection, owner: str, *, only_queued: bool = False) -> int:
    """Release the leases of all turns (or only the queued ones) of an owner that is about to end; return their number.

    Another process takes over a turn without an owner at once, which does not count as a resume.
    """
    where = (_turns.owner == owner, _LEASED, *([_turns.status == TurnStatus.QUEUED] if only_queued else []))
    count = conn.execute(update(TURNS).where(*where).values(owner="", lease_until=None)).rowcount
    if count:
        signals.send(conn, SignalKind.TURNS)
    return count


# Turns whose owner is gone


def is_any_abandoned(conn: Connection, owner: str) -> bool:
    """Return whether `lock_abandoned` might find a turn."""
    return conn.execute(select(_turns.id).where(_LEASED, _turns.owner != owner, _FREE).limit(1)).first() is not None


def lock_abandoned(conn: Connection, owner: str, *, alone: bool) -> list[TurnRecord]:
    """Lock and return the running or queued turns that no living process holds.

    These are the turns without an owner and those whose lease has expired. ``alone``: all turns that are not
    ``owner``'s, because no other process can exist.
    """
    query = _IN_ORDER.where(_LEASED, _turns.owner != owner)
    # A locked row is skipped: another process is just taking that turn.
    return TurnRecord.all(conn, (query if alone else query.where(_FREE)).with_for_update(skip_locked=True))


def take_lease(conn: Connection, turn_id: TurnId, owner: str) -> int:
    """Make ``owner`` the process that runs the turn, and return the new fencing number.

    The number grows with each call. The caller must know that the former owner is gone.

    Raises:
        NotFound: there is no such turn, or it has ended.
    """
    statement = update(TURNS).where(_turns.id == turn_id, _UNFINISHED)
    change = statement.values(owner=owner, lease_until=_LEASE_END, fence=_turns.fence + 1, status=TurnStatus.RUNNING)
    fence = conn.execute(change.returning(_turns.fence)).scalar()
    if fence is None:
        raise NotFound("turn", turn_id)
    return int(fence)


def expire(conn: Connection, owner: str) -> int:
    """End the leases of all turns of a dead owner, so that others take them at once. Returns their number.

    An owner that only seemed dead cannot write any more once the turns are taken.
    """
    where = (_turns.owner == owner, _LEASED)
    count = conn.execute(update(TURNS).where(*where).values(lease_until=None)).rowcount
    if count:
        signals.send(conn, SignalKind.TURNS)
    return count


def release(conn: Connection, turn_id: TurnId) -> None:
    """Release a dead owner's lease on a turn, and reject writes under its fencing number."""
    statement = update(TURNS).where(_turns.id == turn_id)
    conn.execute(statement.values(owner="", lease_until=None, fence=_turns.fence + 1))


def count_resume(conn: Connection, turn_id: TurnId) -> int:
    """Count one more resume of the turn and return the new number.

    Raises:
        NotFound: there is no such turn.
    """
    statement = update(TURNS).where(_turns.id == turn_id).values(resumes=_turns.resumes + 1)
    count = conn.execute(statement.returning(_turns.resumes)).scalar()
    if count is None:
        raise NotFound("turn", turn_id)
    return int(count)


def forget_resumes(conn: Connection, turn_id: TurnId) -> None:
    """Reset the number of resumes of a turn that has made progress."""
    conn.execute(update(TURNS).where(_turns.id == turn_id).values(resumes=0))


# Turns that wait for a person

_SUSPEND = Prepared(
    update(TURNS)
    .where(_BY_ID, _turns.fence == parameter(_turns.fence), _turns.status == TurnStatus.RUNNING)
    .values(status=TurnStatus.WAITING, owner="", lease_until=None)
)


def suspend(conn: Connection, turn_id: TurnId, fence: int) -> None:
    """Suspend a running turn that waits for a person, and release its lease.

    Raises:
        LeaseLost: the fencing number has changed, or the turn has ended.
    """
    if _SUSPEND.run(conn, id=turn_id, fence=fence) != 1:
        raise LeaseLost(turn_id)


def undo_suspend(conn: Connection, turn_id: TurnId, fence: int, owner: str) -> None:
    """Undo `suspend`, if no other process has taken the turn.

    Raises:
        LeaseLost: another process has taken the turn.
    """
    where = (_turns.id == turn_id, _turns.fence == fence, _UNOWNED)
    values = {"status": TurnStatus.RUNNING, "owner": owner, "lease_until": _LEASE_END}
    if conn.execute(update(TURNS).where(*where).values(**values)).rowcount != 1:
        raise LeaseLost(turn_id)


def wake(conn: Connection, turn_id: TurnId) -> bool:
    """Mark a suspended turn to be resumed by the next free process; return whether the turn was suspended."""
    statement = update(TURNS).where(_turns.id == turn_id, _turns.status == TurnStatus.WAITING)
    return conn.execute(statement.values(status=TurnStatus.RUNNING)).rowcount == 1


def take_suspended(conn: Connection, turn_id: TurnId, owner: str) -> int | None:
    """Make ``owner`` the owner of a suspended or woken turn, and return its fencing number.

    Returns None, without a change, if another process has taken the turn.
    """
    # Without an owner in the row: of two processes that try it at once, only the first one changes it.
    statement = update(TURNS).where(_turns.id == turn_id, _UNOWNED)
    change = statement.values(owner=owner, lease_until=_LEASE_END, fence=_turns.fence + 1, status=TurnStatus.RUNNING)
    return conn.execute(change.returning(_turns.fence)).scalar()
