"""Turns: one user message to its end, as a record.

Owns a turn's states, totals and its lease: who runs it (or will, while it is queued), until when by the database's
clock, and the fencing number that each transaction of its owner proves. Knows no event and no transcript.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Index, UniqueConstraint, and_, func, insert, not_, or_, select, text, update

from agentic_rag.errors import LeaseLost, NotFound
from agentic_rag.events import Error, Reference, Usage
from agentic_rag.ids import ConversationId, MessageId, SessionId, TurnId
from agentic_rag.messages import KeptImage
from agentic_rag.store import signals
from agentic_rag.store.database_time import DatabaseTime
from agentic_rag.store.records import Prepared, RecordTable, parameter
from agentic_rag.store.signals import SignalKind


class TurnStatus(StrEnum):
    """Where a turn stands. `FINISHED` are its ends."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    """For a person, and put down: no process runs it until somebody answers."""
    DONE = "done"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


FINISHED = (TurnStatus.DONE, TurnStatus.INTERRUPTED, TurnStatus.FAILED)

LEASE_SECONDS = 15.0
"""How long after its last word a turn's owner is taken to be alive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One user message to its end."""

    id: TurnId
    session_id: SessionId
    conversation_id: ConversationId
    client_message_id: str | None = None
    key_id: str = ""
    """The key with which it was sent; empty: the local user's."""
    content: str
    """The user's text."""
    images: tuple[KeptImage, ...] = ()
    """Those that were sent with it."""
    user_message_id: MessageId
    """Shared by the turns that answer the same question again."""
    message_id: MessageId
    parent_message_id: MessageId | None = None
    """The answer that its question follows; None: it begins a conversation, or has not begun."""
    branch_of: str | None = None
    """The user's message that it answers again, or with other words; None: it goes on where the conversation ended."""
    began: bool = False
    """Whether its question has a place in the session; a queued turn's gets one when the turn starts."""
    status: TurnStatus = TurnStatus.RUNNING
    end_reason: str | None = None
    error: Error | None = None
    image_id: str
    role_hashes: dict[str, str] = field(default_factory=dict)
    """Of the roles by which its answer was given, by id."""
    owner: str = ""
    """The process that runs it or has it in its queue, none if that one has put it down."""
    fence: int = 0
    """How often it was begun or taken by another owner."""
    lease_until: str | None = None
    interrupt_asked: bool = False
    """Whether a user has ended it in another process than the one that runs it."""
    resumes: int = 0
    """How often it was cut off since its last committed step; stops on purpose do not count."""
    steps: int = 0
    usage: Usage | None = None
    """What it has spent, once it has ended."""
    references: tuple[Reference, ...] = ()
    timings: dict[str, int] = field(default_factory=dict)
    """Milliseconds by name, as in `events.Done`."""
    started_at: str
    ended_at: str | None = None

    @property
    def said(self) -> tuple[object, ...]:
        """What makes two messages the same one: refs are new each time."""
        return self.content, self.branch_of, *(image.sha256 for image in self.images)

    @property
    def words(self) -> tuple[str, ...]:
        """What a user sent: text and images, whether as a new message or again."""
        return self.content, *(image.sha256 for image in self.images)


_GOING_ON = "ended_at IS NULL"

TURNS = RecordTable(
    TurnRecord,
    "turns",
    UniqueConstraint("session_id", "client_message_id"),  # its index serves look-ups by session too
    # of the few that go on: what asks for a state of theirs says so (`GOES_ON`)
    Index("ix_turns_unfinished", "status", sqlite_where=text(_GOING_ON), postgresql_where=text(_GOING_ON)),
    part_of="session",
)
_turns = TURNS.c
_BY_ID = _turns.id == parameter(_turns.id)
_OF_SESSION = _turns.session_id == parameter(_turns.session_id)
_UNFINISHED = and_(*(_turns.status != status for status in FINISHED))
GOES_ON = _turns.ended_at.is_(None)
"""Of every turn that has not ended, and of no other; with it the index is used."""
_LEASED = and_(GOES_ON, _turns.status.in_((TurnStatus.QUEUED, TurnStatus.RUNNING)))
_RUNNING = and_(GOES_ON, _turns.status == TurnStatus.RUNNING)
_IN_ORDER = TURNS.select.order_by(_turns.id)
_GET = Prepared(TURNS.select.where(_BY_ID))
_BY_CLIENT_MESSAGE = Prepared(
    TURNS.select.where(_OF_SESSION, _turns.client_message_id == parameter(_turns.client_message_id))
)
_QUEUED = _IN_ORDER.where(GOES_ON, _turns.status == TurnStatus.QUEUED)
_QUEUED_OF = Prepared(_QUEUED.where(_OF_SESSION))
_CURRENT_OF = Prepared(_IN_ORDER.where(_OF_SESSION, _UNFINISHED))
_LEASE_END = DatabaseTime(LEASE_SECONDS)
_FREE = or_(_turns.lease_until.is_(None), _turns.lease_until < DatabaseTime())


def _insertion(**given: Any) -> Prepared:
    values = {name: parameter(_turns[name]) for name in TURNS.names}
    return Prepared(insert(TURNS.table).values({**values, **given}))


_LEASE: dict[bool, Any] = {True: {"lease_until": _LEASE_END}, False: {}}
_SHARED: dict[bool, Any] = {True: {"started_at": DatabaseTime()}, False: {}}
_ADD = {(owned, shared): _insertion(**_LEASE[owned], **_SHARED[shared]) for owned in _LEASE for shared in _SHARED}


def add(conn: Connection, turn: TurnRecord) -> None:
    """Store a new turn and begin its owner's lease, if it has one.

    The time of a shared store's turns is the database's, which all its processes share.

    Raises:
        IntegrityError: the id, or the client message id in its session, is taken.
    """
    statement = _ADD[turn.owner != "", conn.dialect.name == "postgresql"]
    statement.run(conn, **TURNS.values(turn))


def get(conn: Connection, turn_id: TurnId) -> TurnRecord | None:
    """Return the turn, None when there is none."""
    return TURNS.first(conn, _GET, id=turn_id)


def by_client_message(conn: Connection, session_id: SessionId, client_message_id: str) -> TurnRecord | None:
    """Return the turn that this client message made, None when it made none."""
    return TURNS.first(conn, _BY_CLIENT_MESSAGE, session_id=session_id, client_message_id=client_message_id)


def list_running(conn: Connection) -> list[TurnRecord]:
    """Return all running turns of all sessions: after a crash, those to resume."""
    return TURNS.all(conn, _IN_ORDER.where(_RUNNING))


def list_queued(conn: Connection, session_id: SessionId | None = None) -> list[TurnRecord]:
    """Return the queued turns of a session (None: of all), oldest first."""
    return TURNS.all(conn, _QUEUED) if session_id is None else TURNS.all(conn, _QUEUED_OF, session_id=session_id)


_NEWEST_OF = Prepared(select(func.max(_turns.id)).where(_OF_SESSION))
_OLDEST_OF = Prepared(select(func.min(_turns.id)).where(_OF_SESSION))


def newest_id(conn: Connection, session_id: SessionId) -> str:
    """Return the id of the newest turn of a session; empty: it has none."""
    row = _NEWEST_OF.first(conn, session_id=session_id)
    return "" if row is None or row[0] is None else str(row[0])


def is_first(conn: Connection, turn: TurnRecord) -> bool:
    """Whether no turn of the session was accepted before this one, on any branch."""
    row = _OLDEST_OF.first(conn, session_id=turn.session_id)
    return row is None or row[0] is None or str(row[0]) == turn.id


def current_of(conn: Connection, session_id: SessionId) -> TurnRecord | None:
    """Return the turn of a session that runs, or else the first that is queued; None: all have ended."""
    found = TURNS.all(conn, _CURRENT_OF, session_id=session_id)
    return next((turn for turn in found if turn.status is not TurnStatus.QUEUED), found[0] if found else None)


def current(conn: Connection, session_ids: Sequence[str]) -> dict[str, TurnRecord]:
    """Return the turns that have not ended, of each session the one that runs, or else the first that is queued."""
    found: dict[str, TurnRecord] = {}
    for turn in TURNS.all(conn, _IN_ORDER.where(_turns.session_id.in_(session_ids), _UNFINISHED)):
        known = found.get(turn.session_id)
        if known is None or (known.status is TurnStatus.QUEUED and turn.status is not TurnStatus.QUEUED):
            found[turn.session_id] = turn
    return found


def of_session(conn: Connection, session_id: SessionId) -> list[TurnRecord]:
    """Return all turns of a session, oldest first."""
    return TURNS.all(conn, _IN_ORDER.where(_OF_SESSION), session_id=session_id)


def ids_in(conn: Connection, session_ids: Sequence[SessionId]) -> dict[TurnId, SessionId]:
    """Return the turns of sessions, each with its session."""
    rows = conn.execute(select(_turns.id, _turns.session_id).where(_turns.session_id.in_(session_ids)))
    return {row.id: row.session_id for row in rows}


def by_ids(conn: Connection, turn_ids: Sequence[TurnId]) -> dict[TurnId, TurnRecord]:
    """Return the turns that exist among these, by id."""
    return {turn.id: turn for turn in TURNS.all(conn, TURNS.select.where(_turns.id.in_(turn_ids)))}


def start(conn: Connection, turn: TurnRecord) -> bool:
    """Make a turn that waits in its owner's queue a running one, with what the record says of how it begins.

    Returns False, and changes nothing, if none waits.
    """
    waits = (_turns.id == turn.id, _turns.status == TurnStatus.QUEUED, _turns.owner == turn.owner)
    statement = update(TURNS.table).where(*waits)
    changed = conn.execute(
        statement.values(
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


_ENDED = ("status", "end_reason", "error", "references", "timings", "role_hashes", "usage", "steps", "ended_at")
_FINISH = Prepared(
    update(TURNS.table)
    .where(_BY_ID, _UNFINISHED)
    .values({**{name: parameter(_turns[name]) for name in _ENDED}, "lease_until": None})
)


def finish(
    conn: Connection,
    turn_id: TurnId,
    *,
    status: TurnStatus,
    end_reason: str,
    ended_at: str,
    steps: int,
    usage: Usage | None,
    error: Error | None = None,
    references: Sequence[Reference] = (),
    timings: Mapping[str, int] | None = None,
    role_hashes: Mapping[str, str] | None = None,
) -> bool:
    """End a turn, in one of the states `FINISHED`, with its totals.

    Returns False, and changes nothing, when it has ended before (or is gone): there is one end.
    """
    changed = _FINISH.run(
        conn,
        id=turn_id,
        status=status,
        end_reason=end_reason,
        error=error,
        references=references,
        timings=timings or {},
        role_hashes=role_hashes or {},
        usage=usage,
        steps=steps,
        ended_at=ended_at,
    )
    return changed == 1


# Leases


def is_any_left(conn: Connection, owner: str) -> bool:
    """Whether `lock_left` would find anything, or might."""
    return conn.execute(select(_turns.id).where(_LEASED, _turns.owner != owner, _FREE).limit(1)).first() is not None


def lock_left(conn: Connection, owner: str, *, alone: bool) -> list[TurnRecord]:
    """Return the turns that run or wait and that nobody cares for any more, and keep them from others' hands.

    They are those without an owner and those whose lease is over; ``alone``: all that are not ``owner``'s, since no
    other process can be there.
    """
    query = _IN_ORDER.where(_LEASED, _turns.owner != owner)
    return TURNS.all(conn, (query if alone else query.where(_FREE)).with_for_update(skip_locked=True))


# Waiting for a person


_UNOWNED = and_(_turns.owner == "", _turns.status.in_((TurnStatus.WAITING, TurnStatus.RUNNING)))
_REST = Prepared(
    update(TURNS.table)
    .where(_BY_ID, _turns.fence == parameter(_turns.fence), _turns.status == TurnStatus.RUNNING)
    .values(status=TurnStatus.WAITING, owner="", lease_until=None)
)


def rest(conn: Connection, turn_id: TurnId, fence: int) -> None:
    """Put a running turn down that waits for a person; nobody has its lease then.

    Raises:
        LeaseLost: the fencing number has moved on, or the turn has ended.
    """
    if _REST.run(conn, id=turn_id, fence=fence) != 1:
        raise LeaseLost(turn_id)


def wake(conn: Connection, turn_id: TurnId) -> bool:
    """Let a turn that was put down be gone on with by the next process that looks; whether it was put down."""
    statement = update(TURNS.table).where(_turns.id == turn_id, _turns.status == TurnStatus.WAITING)
    return conn.execute(statement.values(status=TurnStatus.RUNNING)).rowcount == 1


def unrest(conn: Connection, turn_id: TurnId, fence: int, owner: str) -> None:
    """Undo `rest`, as long as nobody else has taken the turn.

    Raises:
        LeaseLost: somebody has.
    """
    mine = (_turns.id == turn_id, _turns.fence == fence, _UNOWNED)
    values = {"status": TurnStatus.RUNNING, "owner": owner, "lease_until": _LEASE_END}
    if conn.execute(update(TURNS.table).where(*mine).values(**values)).rowcount != 1:
        raise LeaseLost(turn_id)


def take_rested(conn: Connection, turn_id: TurnId, owner: str) -> int | None:
    """Make ``owner`` the one that runs a turn that was put down, awake or not, and return its fencing number.

    None, and nothing changes, when somebody else has taken it.
    """
    statement = update(TURNS.table).where(_turns.id == turn_id, _UNOWNED)
    change = statement.values(owner=owner, lease_until=_LEASE_END, fence=_turns.fence + 1, status=TurnStatus.RUNNING)
    return conn.execute(change.returning(_turns.fence)).scalar()


def list_waiting(conn: Connection) -> list[TurnRecord]:
    """Return all turns that were put down, of all sessions, those of delegates too."""
    return TURNS.all(conn, _IN_ORDER.where(GOES_ON, _turns.status == TurnStatus.WAITING))


_ELSEWHERE = Prepared(
    select(_turns.id).where(
        _OF_SESSION, _turns.status == TurnStatus.RUNNING, _turns.owner != parameter(_turns.owner), not_(_FREE)
    )
)


def running_elsewhere(conn: Connection, session_id: SessionId, owner: str) -> TurnId | None:
    """Return the turn of a session that a living process other than ``owner`` runs, None when there is none."""
    row = _ELSEWHERE.first(conn, session_id=session_id, owner=owner)
    return None if row is None else TurnId(row[0])


def ask_interrupt(conn: Connection, turn_id: TurnId) -> bool:
    """Note that a turn is to end, for whoever runs it, and tell that one; False, and nothing changes: it has ended."""
    statement = update(TURNS.table).where(_turns.id == turn_id, _UNFINISHED).values(interrupt_asked=True)
    asked = conn.execute(statement).rowcount == 1
    if asked:
        signals.send(conn, SignalKind.INTERRUPT, turn_id)
    return asked


def queued_sessions(conn: Connection, owner: str) -> list[SessionId]:
    """Return the sessions in which the next thing is a turn of ``owner``'s queue: nothing runs or waits there."""
    held = select(_turns.session_id).where(GOES_ON, _turns.status.in_((TurnStatus.RUNNING, TurnStatus.WAITING)))
    mine = (GOES_ON, _turns.status == TurnStatus.QUEUED, _turns.owner == owner, _turns.session_id.not_in(held))
    return list(conn.execute(select(_turns.session_id).where(*mine).distinct()).scalars())


def take_lease(conn: Connection, turn_id: TurnId, owner: str) -> int:
    """Make ``owner`` the one that runs the turn and return its fencing number.

    The number grows with each taking; whether the former owner is gone is the caller's to know.

    Raises:
        NotFound: there is no such turn, or it has ended.
    """
    statement = update(TURNS.table).where(_turns.id == turn_id, _UNFINISHED)
    change = statement.values(owner=owner, lease_until=_LEASE_END, fence=_turns.fence + 1, status=TurnStatus.RUNNING)
    fence = conn.execute(change.returning(_turns.fence)).scalar()
    if fence is None:
        raise NotFound("turn", turn_id)
    return int(fence)


def take_queued(conn: Connection, turn_ids: Sequence[str], owner: str) -> None:
    """Put queued turns into ``owner``'s queue."""
    statement = update(TURNS.table).where(_turns.id.in_(turn_ids), _turns.status == TurnStatus.QUEUED)
    conn.execute(statement.values(owner=owner, lease_until=_LEASE_END))


def renew(conn: Connection, owner: str) -> frozenset[str]:
    """Extend the leases of all turns of an owner and return their ids: what it thinks to have beside is another's."""
    mine = select(_turns.id).where(_LEASED, _turns.owner == owner)
    # in one order everywhere, or two transactions that lock several turns could wait for each other
    locked = mine.order_by(_turns.id).with_for_update(key_share=True)
    statement = update(TURNS.table).where(_turns.id.in_(locked)).values(lease_until=_LEASE_END)
    return frozenset(conn.execute(statement.returning(_turns.id)).scalars())


_HOLD = Prepared(
    update(TURNS.table)
    .where(_BY_ID, _turns.fence == parameter(_turns.fence), _turns.status == TurnStatus.RUNNING)
    .values(lease_until=_LEASE_END)
)
_FENCE = Prepared(select(_turns.fence).where(_BY_ID).with_for_update(read=True))


def hold(conn: Connection, turn_id: TurnId, fence: int) -> None:
    """Extend the lease of a running turn; part of every transaction in which its owner writes.

    Raises:
        LeaseLost: the fencing number has moved on, or the turn has ended.
    """
    if _HOLD.run(conn, id=turn_id, fence=fence) != 1:
        raise LeaseLost(turn_id)


def is_held(conn: Connection, turn_id: TurnId, fence: int) -> bool:
    """Say whether the fencing number still counts, for the rest of the transaction; the turn may have ended."""
    row = _FENCE.first(conn, id=turn_id)
    return row is not None and row[0] == fence


def put_down(conn: Connection, owner: str, *, only_queued: bool = False) -> int:
    """Take the leases of all turns from an owner that is about to end, or of its queue only; return how many.

    A turn without an owner is gone on with at once, and that counts as no resume.
    """
    mine = (_turns.owner == owner, _LEASED, *([_turns.status == TurnStatus.QUEUED] if only_queued else []))
    count = conn.execute(update(TURNS.table).where(*mine).values(owner="", lease_until=None)).rowcount
    if count:
        signals.send(conn, SignalKind.TURNS)
    return count


def expire(conn: Connection, owner: str) -> int:
    """End the leases of all turns of an owner that is dead: others take them at once. Return how many there were.

    One that only seemed to be dead writes nothing more once they are taken.
    """
    mine = (_turns.owner == owner, _LEASED)
    count = conn.execute(update(TURNS.table).where(*mine).values(lease_until=None)).rowcount
    if count:
        signals.send(conn, SignalKind.TURNS)
    return count


def release(conn: Connection, turn_id: TurnId) -> None:
    """Take a turn's lease back from an owner that is dead: what writes under its number is refused."""
    statement = update(TURNS.table).where(_turns.id == turn_id)
    conn.execute(statement.values(owner="", lease_until=None, fence=_turns.fence + 1))


def forget_resumes(conn: Connection, turn_id: TurnId) -> None:
    """Count the resumes of a turn from zero again: it has come further."""
    conn.execute(update(TURNS.table).where(_turns.id == turn_id).values(resumes=0))


def count_resume(conn: Connection, turn_id: TurnId) -> int:
    """Count one more resume of the turn and return how many there were, this one included.

    Raises:
        NotFound: there is no such turn.
    """
    statement = update(TURNS.table).where(_turns.id == turn_id).values(resumes=_turns.resumes + 1)
    count = conn.execute(statement.returning(_turns.resumes)).scalar()
    if count is None:
        raise NotFound("turn", turn_id)
    return int(count)
