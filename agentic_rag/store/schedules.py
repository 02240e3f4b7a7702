"""Schedules: prompts that the server sends at given times or when a signed webhook arrives, and their firings.

A firing is one run of a schedule. Its row is the claim: ``(schedule_id, slot)`` is unique, and the row is stored in the
transaction that moves the schedule to its next time. So each time fires exactly once, whichever process claims it.
Callers check permissions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy import Connection, Index, UniqueConstraint, text

from agentic_rag.base.ids import ConversationId, TurnId
from agentic_rag.store import deliveries, endpoints
from agentic_rag.store.columns import Indexed, Key
from agentic_rag.store.database_time import DatabaseTime
from agentic_rag.store.deliveries import Event
from agentic_rag.store.endpoints import EventKind
from agentic_rag.store.record import Record

MAX_SCHEDULES = 50
"""Maximum schedules of a domain."""
FIRING_PREFIX = "fire_"
"""Prefix of a firing's id, which is also the client message id of its turn."""


class CatchUp(StrEnum):
    """What happens to times that passed while no server ran: none of them fires, the last one does, or all do."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class ScheduleRecord(Record, table=True):
    """A prompt that is sent as its owner at certain times, or by a webhook if ``cron`` is empty."""

    __tablename__ = "schedules"
    __table_args__ = (UniqueConstraint("domain_id", "name"),)
    part_of = "domain"

    id: Key[str]
    domain_id: Indexed[str]
    name: str
    owner_id: str
    """The user who sends the prompt and owns the conversations."""
    cron: str = ""
    """Five cron fields, or empty: a webhook fires the schedule."""
    time_zone: str = "UTC"
    prompt: str
    role: str = ""
    """The role that answers; empty: the domain's primary role."""
    allowed_tools: tuple[str, ...] = ()
    """Names of tools that run without approval."""
    max_tokens: int | None = None
    """Tokens that one run may use."""
    endpoint_id: str = ""
    """An endpoint that also receives the answer, or empty."""
    catch_up: CatchUp = CatchUp.ONCE
    max_failures: int = 3
    """Failed runs in a row after which the schedule is paused."""
    enabled: bool = True
    problem: str = ""
    """Why the server paused the schedule."""
    failures: int = 0
    """Failed runs since the last successful one."""
    next_at: Indexed[str | None] = None
    """The next firing time (UTC); None for a paused schedule and for a webhook."""
    created_by: str
    created_at: str
    updated_at: str


class FiringState(StrEnum):
    """The state of a firing. A skipped one never runs."""

    CLAIMED = "claimed"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


_OPEN = "state IN ('claimed', 'running')"


class FiringRecord(Record, table=True):
    """One run of a schedule."""

    __tablename__ = "firings"
    __table_args__ = (
        UniqueConstraint("schedule_id", "slot"),
        Index(
            "ix_firings_open",
            "schedule_id",
            "id",
            sqlite_where=text(_OPEN),
            postgresql_where=text(_OPEN),
        ),
    )
    part_of = "domain"

    id: Key[str]
    schedule_id: str
    domain_id: Indexed[str]
    slot: str
    """The firing time (UTC), or the id of the webhook's message."""
    payload: str = ""
    """The body of the webhook."""
    state: FiringState = FiringState.CLAIMED
    conversation_id: str = ""
    turn_id: Indexed[str] = ""
    detail: str = ""
    """The error of a failed run, or the reason of a skipped one."""
    created_at: str
    ended_at: Indexed[str | None] = None


SCHEDULES = ScheduleRecord.__table__
FIRINGS = FiringRecord.__table__
_schedules = SCHEDULES.c
_firings = FIRINGS.c
_OPEN_STATES = (FiringState.CLAIMED, FiringState.RUNNING)


def moment(conn: Connection) -> str:
    """Return the database's time, which all processes share."""
    return str(conn.execute(sa.select(DatabaseTime())).scalar_one())


def get(conn: Connection, schedule_id: str) -> ScheduleRecord | None:
    """Return the schedule, or None."""
    return ScheduleRecord.first(conn, sa.select(SCHEDULES).where(_schedules.id == schedule_id))


def of_domain(conn: Connection, domain_id: str) -> list[ScheduleRecord]:
    """Return the schedules of a domain by name."""
    query = sa.select(SCHEDULES).where(_schedules.domain_id == domain_id)
    return ScheduleRecord.all(conn, query.order_by(_schedules.name))


def list_due(conn: Connection, at: str, most: int) -> list[ScheduleRecord]:
    """Return at most ``most`` enabled schedules whose next time has come, the longest overdue first."""
    due = sa.select(SCHEDULES).where(_schedules.enabled.is_(True), _schedules.next_at <= at)
    return ScheduleRecord.all(conn, due.order_by(_schedules.next_at, _schedules.id).limit(most))


def is_any_due(conn: Connection) -> bool:
    """Return whether a schedule is due, or a claimed firing can start."""
    due = sa.select(_schedules.id).where(_schedules.enabled.is_(True), _schedules.next_at <= DatabaseTime()).limit(1)
    if conn.execute(due).first() is not None:
        return True
    return bool(list_startable(conn, 1))


def update(conn: Connection, schedule_id: str, **values: object) -> bool:
    """Change columns of a schedule. Returns False if it does not exist."""
    return conn.execute(sa.update(SCHEDULES).where(_schedules.id == schedule_id).values(**values)).rowcount == 1


def advance(conn: Connection, schedule: ScheduleRecord, next_at: str | None) -> bool:
    """Move a schedule to its next time. Returns False if another process has moved, changed or paused it."""
    unmoved = (_schedules.id == schedule.id, _schedules.next_at == schedule.next_at, _schedules.enabled.is_(True))
    same = _schedules.updated_at == schedule.updated_at
    return conn.execute(sa.update(SCHEDULES).where(*unmoved, same).values(next_at=next_at)).rowcount == 1


def delete(conn: Connection, schedule_id: str) -> None:
    """Delete a schedule and its firings."""
    conn.execute(sa.delete(FIRINGS).where(_firings.schedule_id == schedule_id))
    conn.execute(sa.delete(SCHEDULES).where(_schedules.id == schedule_id))


def claim(conn: Connection, firing: FiringRecord) -> bool:
    """Store a firing. Returns False if its time or message has been claimed before."""
    query = sa.select(_firings.id).where(_firings.schedule_id == firing.schedule_id, _firings.slot == firing.slot)
    if conn.execute(query.limit(1)).first() is not None:
        return False
    firing.insert(conn)
    return True


def list_startable(conn: Connection, most: int) -> list[FiringRecord]:
    """Return the first claimed firing of each schedule that has no running one, oldest first."""
    ids = sa.select(sa.func.min(_firings.id)).where(_firings.state.in_(_OPEN_STATES)).group_by(_firings.schedule_id)
    running = sa.select(_firings.schedule_id).where(_firings.state == FiringState.RUNNING)
    first = sa.select(FIRINGS).where(
        _firings.state == FiringState.CLAIMED, _firings.id.in_(ids), _firings.schedule_id.not_in(running)
    )
    return FiringRecord.all(conn, first.order_by(_firings.id).limit(most))


def get_firing(conn: Connection, firing_id: str) -> FiringRecord | None:
    """Return the firing, or None."""
    return FiringRecord.first(conn, sa.select(FIRINGS).where(_firings.id == firing_id))


def firing_of_slot(conn: Connection, schedule_id: str, slot: str) -> FiringRecord | None:
    """Return the firing of a time or a webhook's message, or None."""
    query = sa.select(FIRINGS).where(_firings.schedule_id == schedule_id, _firings.slot == slot)
    return FiringRecord.first(conn, query)


def list_firings(conn: Connection, schedule_id: str, limit: int) -> list[FiringRecord]:
    """Return the newest firings of a schedule, newest first."""
    query = sa.select(FIRINGS).where(_firings.schedule_id == schedule_id)
    return FiringRecord.all(conn, query.order_by(_firings.id.desc()).limit(limit))


def count_open(conn: Connection, schedule_id: str) -> int:
    """Return how many firings of a schedule wait or run."""
    query = sa.select(sa.func.count()).select_from(FIRINGS)
    chosen = query.where(_firings.schedule_id == schedule_id, _firings.state.in_(_OPEN_STATES))
    return int(conn.execute(chosen).scalar_one())


def note_started(conn: Connection, firing_id: str, conversation_id: ConversationId, turn_id: TurnId) -> bool:
    """Record the turn of a claimed firing, in the transaction that accepts it. Returns False if it is not claimed."""
    claimed = sa.update(FIRINGS).where(_firings.id == firing_id, _firings.state == FiringState.CLAIMED)
    values = {"state": FiringState.RUNNING, "conversation_id": conversation_id, "turn_id": turn_id, "payload": ""}
    return conn.execute(claimed.values(**values)).rowcount == 1


def finish(conn: Connection, firing_id: str, state: FiringState, at: str, detail: str = "") -> bool:
    """End a firing that waits or runs. Returns False if it has ended."""
    open_one = sa.update(FIRINGS).where(_firings.id == firing_id, _firings.state.in_(_OPEN_STATES))
    return conn.execute(open_one.values(state=state, ended_at=at, detail=detail, payload="")).rowcount == 1


@dataclass(frozen=True, slots=True)
class FiringResult:
    """The end of a run. ``detail``: the error of a failed run. ``answer``: the text of the answer."""

    state: FiringState
    detail: str = ""
    answer: str = ""
    conversation_id: str = ""
    turn_id: str = ""


def end_run(conn: Connection, firing_id: str, result: FiringResult, at: str) -> bool:
    """End a run: count a failure, pause the schedule after too many, and notify the endpoints.

    The schedule's own endpoint gets the answer. Returns False, without a change, if the run has ended before.
    """
    firing = get_firing(conn, firing_id)
    if firing is None or not finish(conn, firing_id, result.state, at, result.detail):
        return False
    if result.turn_id:
        ran = {"conversation_id": result.conversation_id, "turn_id": result.turn_id}
        conn.execute(sa.update(FIRINGS).where(_firings.id == firing_id).values(**ran))
    schedule = get(conn, firing.schedule_id)
    if schedule is None:
        return True
    failed = result.state is FiringState.FAILED
    failures = schedule.failures + 1 if failed else 0
    pauses = failed and failures >= schedule.max_failures and schedule.enabled
    values: dict[str, object] = {"failures": failures}
    if pauses:
        problem = f"paused after {failures} failed runs in a row; the last error: {result.detail}"
        values |= {"enabled": False, "problem": problem, "next_at": None}
    update(conn, schedule.id, **values)
    facts = {
        "scheduleId": schedule.id,
        "name": schedule.name,
        "firingId": firing.id,
        "slot": firing.slot,
        "state": result.state.value,
        "conversationId": result.conversation_id or firing.conversation_id,
        "turnId": result.turn_id or firing.turn_id,
        "userId": schedule.owner_id,
        "failures": failures,
        "paused": pauses,
    }
    texts = {"detail": result.detail, "answer": result.answer}
    owner, conversation = schedule.owner_id, result.conversation_id or firing.conversation_id
    kind = EventKind.SCHEDULE_FINISHED
    event = Event(kind, schedule.domain_id, facts, texts, owner, conversation, private=True)
    own = endpoints.get(conn, schedule.endpoint_id) if schedule.endpoint_id else None
    deliveries.announce(conn, event, without=schedule.endpoint_id)
    if own is not None and own.enabled:
        deliveries.send_to(conn, own, event, with_texts=True)
    return True


def end_of_conversation(conn: Connection, conversation_id: str, at: str) -> None:
    """End the run in a conversation that is deleted. The schedule does not count a failure."""
    running = sa.update(FIRINGS).where(
        _firings.conversation_id == conversation_id, _firings.state == FiringState.RUNNING
    )
    values = {"state": FiringState.FAILED, "ended_at": at, "detail": "the conversation was deleted"}
    conn.execute(running.values(**values))


def of_owner(conn: Connection, user_id: str) -> list[ScheduleRecord]:
    """Return the schedules that send as this user."""
    return ScheduleRecord.all(conn, sa.select(SCHEDULES).where(_schedules.owner_id == user_id))


def rename_creator(conn: Connection, user_id: str, instead: str) -> None:
    """Replace the name of a user who was erased."""
    conn.execute(sa.update(SCHEDULES).where(_schedules.created_by == user_id).values(created_by=instead))


def prune(conn: Connection, ended_before: str, most: int) -> int:
    """Delete at most ``most`` firings that ended before a time. Returns their number."""
    old: Sequence[str] = list(
        conn.execute(
            sa.select(_firings.id).where(_firings.ended_at.is_not(None), _firings.ended_at < ended_before).limit(most)
        ).scalars()
    )
    return conn.execute(sa.delete(FIRINGS).where(_firings.id.in_(old))).rowcount
