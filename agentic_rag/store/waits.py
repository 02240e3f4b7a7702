"""Waits: questions of turns to people, and their answers.

There is one row for each time that a turn's call waits for a person, from the question until the call resumes with the
answer. The first answer counts. Callers check permissions to answer.
"""

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, and_, func, or_, select, update

from agentic_rag.base.events import Answerer, WaitAction, WaitKind
from agentic_rag.base.ids import ConversationId, SessionId, TurnId, WaitId
from agentic_rag.base.json_form import Json
from agentic_rag.store import deliveries, signals
from agentic_rag.store.columns import Indexed, Key
from agentic_rag.store.deliveries import Event
from agentic_rag.store.endpoints import EventKind
from agentic_rag.store.record import Record
from agentic_rag.store.signals import SignalKind
from agentic_rag.store.statements import Prepared, parameter


class WaitState(StrEnum):
    """The state of a wait."""

    OPEN = "open"
    ACCEPTED = "accepted"
    DECLINED = "declined"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


STATE_OF = {
    WaitAction.ACCEPT: WaitState.ACCEPTED,
    WaitAction.DECLINE: WaitState.DECLINED,
    WaitAction.CANCEL: WaitState.CANCELLED,
    WaitAction.EXPIRE: WaitState.EXPIRED,
}
ACTION_OF = {state: action for action, state in STATE_OF.items()}


class WaitRecord(Record, table=True):
    """One question to a person.

    ``turn_id`` and ``session_id`` identify the waiting call. ``root_turn_id`` is the user's turn that it belongs to.
    """

    __tablename__ = "waits"
    part_of = "session"

    id: Key[WaitId]
    turn_id: Indexed[TurnId]
    root_turn_id: Indexed[TurnId]
    session_id: SessionId
    conversation_id: Indexed[ConversationId]
    domain_id: str
    user_id: str
    """The conversation's owner."""
    agent: str = ""
    """Path of the delegate that waits."""
    tool_call_id: str
    kind: WaitKind
    answerer: Answerer = Answerer.OWNER
    request: dict[str, Any]
    """The question as displayed to a person, in the form of the event."""
    held: dict[str, Any] | None = None
    """Data returned to the server with the answer; never displayed."""
    subject: str = ""
    """For an approval: the exact tool and server, so that the approval can be remembered."""
    live: bool = False
    """Whether the server asks on an open connection, so that only this process can use the answer."""
    state: Indexed[WaitState] = WaitState.OPEN
    answer: dict[str, Any] | None = None
    remembered: bool = False
    """For an approval: whether it covers the same subject for the rest of the conversation."""
    answered_by: str = ""
    taken: bool = False
    """Whether the call has resumed with the answer; from then on it may have had its effect."""
    opened_at: str
    answered_at: str | None = None
    expires_at: str


WAITS = WaitRecord.__table__
_rows = WAITS.c
_OLDEST_FIRST = select(WAITS).order_by(_rows.id)
_OF_TURN = Prepared(_OLDEST_FIRST.where(_rows.turn_id == parameter(_rows.turn_id)))
_OPEN = _rows.state == WaitState.OPEN


def open_wait(conn: Connection, wait: WaitRecord) -> None:
    """Store a new wait and notify the domain's endpoints."""
    wait.insert(conn)
    facts = {**_facts(wait), "openedAt": wait.opened_at, "expiresAt": wait.expires_at}
    texts = {name: wait.request.get(name) for name in ("title", "message", "warning", "arguments", "sources")}
    deliveries.announce(conn, _event(EventKind.WAIT_CREATED, wait, facts, texts))


def _facts(wait: WaitRecord) -> Json:
    return {
        "waitId": wait.id,
        "kind": wait.kind.value,
        "answerer": wait.answerer.value,
        "conversationId": wait.conversation_id,
        "turnId": wait.root_turn_id,
        "userId": wait.user_id,
        "agent": wait.agent,
        "server": wait.request.get("server"),
        "toolName": wait.request.get("toolName"),
    }


def _event(kind: EventKind, wait: WaitRecord, facts: Json, texts: Json) -> Event:
    is_private = wait.answerer is Answerer.OWNER
    return Event(kind, wait.domain_id, facts, texts, wait.user_id, wait.conversation_id, private=is_private)


def get(conn: Connection, wait_id: WaitId) -> WaitRecord | None:
    """Return the wait, or None."""
    return WaitRecord.first(conn, select(WAITS).where(_rows.id == wait_id))


def of_turn(conn: Connection, turn_id: TurnId) -> list[WaitRecord]:
    """Return the waits of a turn's own calls, oldest first."""
    return WaitRecord.all(conn, _OF_TURN, turn_id=turn_id)


def ended_of(conn: Connection, root_turn_id: TurnId) -> list[WaitId]:
    """Return the ended waits of a user's turn, including those of its delegates."""
    query = select(_rows.id).where(_rows.root_turn_id == root_turn_id, ~_OPEN)
    return list(conn.execute(query).scalars())


def list_page(
    conn: Connection,
    user_id: str,
    domains: Collection[str] | None,
    admin_of: Collection[str] | None,
    *,
    state: WaitState | None = None,
    conversation_id: ConversationId | None = None,
    limit: int = 50,
    offset: int = 0,
) -> tuple[list[WaitRecord], int]:
    """Return a page of waits, newest first, and their total number.

    The result holds a user's own waits in ``domains``, and those for admins of ``admin_of``; None means all domains.
    """
    own, for_admins = _rows.user_id == user_id, _rows.answerer == Answerer.ADMIN
    if domains is not None:
        own = and_(own, _rows.domain_id.in_(domains))
    if admin_of is not None:
        for_admins = and_(for_admins, _rows.domain_id.in_(admin_of))
    chosen = [or_(own, for_admins)]
    if state is not None:
        chosen.append(_rows.state == state)
    if conversation_id is not None:
        chosen.append(_rows.conversation_id == conversation_id)
    total = conn.execute(select(func.count()).select_from(WAITS).where(*chosen)).scalar_one()
    newest = select(WAITS).where(*chosen).order_by(_rows.id.desc())
    return WaitRecord.all(conn, newest.limit(limit).offset(offset)), int(total)


def waiting(conn: Connection, root_turn_ids: Sequence[str]) -> set[str]:
    """Return which of these users' turns wait for a person."""
    query = select(_rows.root_turn_id).where(_rows.root_turn_id.in_(root_turn_ids), _OPEN).distinct()
    return set(conn.execute(query).scalars())


def finish(
    conn: Connection,
    wait_id: WaitId,
    state: WaitState,
    *,
    answer: Json | None,
    by: str,
    at: str,
    remembered: bool = False,
) -> bool:
    """End an open wait and notify the domain's endpoints. Returns False, without a change, if it has ended before."""
    statement = update(WAITS).where(_rows.id == wait_id, _OPEN)
    values = {"state": state, "answer": answer, "answered_by": by, "answered_at": at, "remembered": remembered}
    if conn.execute(statement.values(**values)).rowcount != 1:
        return False
    signals.send(conn, SignalKind.ANSWERED, wait_id)
    wait = get(conn, wait_id)
    assert wait is not None
    facts = {**_facts(wait), "state": state.value, "answeredBy": by, "answeredAt": at}
    deliveries.announce(conn, _event(EventKind.WAIT_ANSWERED, wait, facts, {}))
    return True


def take(conn: Connection, wait_id: WaitId) -> None:
    """Mark the wait as consumed: the tool call has resumed with the answer."""
    conn.execute(update(WAITS).where(_rows.id == wait_id).values(taken=True))


def cancel(conn: Connection, turn_id: TurnId, at: str) -> list[WaitId]:
    """Cancel the open waits of a turn's own calls and return their ids, oldest first."""
    wait_ids = [wait.id for wait in of_turn(conn, turn_id) if wait.state is WaitState.OPEN]
    for wait_id in wait_ids:
        finish(conn, wait_id, WaitState.CANCELLED, answer=None, by="", at=at)
        take(conn, wait_id)
    return wait_ids


def list_open(conn: Connection, root_turn_id: TurnId) -> list[WaitRecord]:
    """Return the open waits of a user's turn and of its delegates, oldest first."""
    return WaitRecord.all(conn, _OLDEST_FIRST.where(_OPEN, _rows.root_turn_id == root_turn_id))


def list_open_urls(conn: Connection, domain_id: str) -> list[WaitRecord]:
    """Return the open waits of a domain for an action at a URL, oldest first."""
    return WaitRecord.all(conn, _OLDEST_FIRST.where(_OPEN, _rows.domain_id == domain_id, _rows.kind == WaitKind.URL))


def has_untaken(conn: Connection, root_turn_id: TurnId) -> bool:
    """Return whether an ended wait of a user's turn has not been consumed by its call."""
    query = select(_rows.id).where(_rows.root_turn_id == root_turn_id, ~_OPEN, _rows.taken.is_(False)).limit(1)
    return conn.execute(query).first() is not None


def is_any_due(conn: Connection, at: str) -> bool:
    """Return whether any open wait has expired at ``at``."""
    return conn.execute(select(_rows.id).where(_OPEN, _rows.expires_at <= at).limit(1)).first() is not None


def expire(conn: Connection, at: str) -> list[WaitRecord]:
    """End and return the open waits that have expired at ``at`` (UTC ISO-8601)."""
    due = WaitRecord.all(conn, _OLDEST_FIRST.where(_OPEN, _rows.expires_at <= at))
    return [wait for wait in due if finish(conn, wait.id, WaitState.EXPIRED, answer=None, by="", at=at)]


def forget_user(conn: Connection, user_id: str, instead: str) -> None:
    """Replace a user's name in the waits that the user answered."""
    conn.execute(update(WAITS).where(_rows.answered_by == user_id).values(answered_by=instead))


def is_remembered(conn: Connection, conversation_id: ConversationId, subject: str) -> bool:
    """Return whether a person has approved exactly this subject for the rest of the conversation."""
    chosen = (
        _rows.conversation_id == conversation_id,
        _rows.subject == subject,
        _rows.state == WaitState.ACCEPTED,
        _rows.remembered.is_(True),
    )
    return conn.execute(select(_rows.id).where(*chosen).limit(1)).first() is not None
