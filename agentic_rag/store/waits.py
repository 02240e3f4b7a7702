"""Waits: what turns ask people for, and what was answered.

Owns one row for each time a call of a turn waits for a person, from the question to the answer that was taken. The
first answer counts. Knows no event, no tool and no rule of who may answer what.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, and_, func, or_, select, update

from agentic_rag.events import Answerer, WaitAction, WaitKind
from agentic_rag.ids import ConversationId, SessionId, TurnId, WaitId
from agentic_rag.json_form import Json
from agentic_rag.store import signals
from agentic_rag.store.records import Prepared, RecordTable, parameter
from agentic_rag.store.signals import SignalKind


class WaitState(StrEnum):
    """Where a wait stands."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRecord:
    """One question to a person.

    ``turn_id`` and ``session_id``: whose call waits; ``root_turn_id``: the turn of the user that it belongs to.
    """

    id: WaitId
    turn_id: TurnId
    root_turn_id: TurnId
    session_id: SessionId
    conversation_id: ConversationId
    domain_id: str
    user_id: str
    """The conversation's owner."""
    agent: str = ""
    """Path of the delegate that waits."""
    tool_call_id: str
    kind: WaitKind
    answerer: Answerer = Answerer.OWNER
    request: dict[str, Any]
    """What a person is shown, as in the event."""
    held: dict[str, Any] | None = None
    """What goes back to the server with the answer; nobody is shown it."""
    subject: str = ""
    """Of an approval: the tool and its server exactly as they are, so that it can be remembered."""
    live: bool = False
    """Whether the server asks on an open connection: the answer is of no use to another process."""
    state: WaitState = WaitState.OPEN
    answer: dict[str, Any] | None = None
    remembered: bool = False
    """Of an approval: it counts for the same subject in the rest of the conversation."""
    answered_by: str = ""
    taken: bool = False
    """Whether the call has gone on with the answer: from then on it may have had its effect."""
    opened_at: str
    answered_at: str | None = None
    expires_at: str


WAITS = RecordTable(
    WaitRecord, "waits", indexed=("turn_id", "root_turn_id", "conversation_id", "state"), part_of="session"
)
_rows = WAITS.c
_OLDEST_FIRST = WAITS.select.order_by(_rows.id)
_OF_TURN = Prepared(_OLDEST_FIRST.where(_rows.turn_id == parameter(_rows.turn_id)))
_OPEN = _rows.state == WaitState.OPEN


def get(conn: Connection, wait_id: WaitId) -> WaitRecord | None:
    """Return the wait, None when there is none."""
    return WAITS.first(conn, WAITS.select.where(_rows.id == wait_id))


def of_turn(conn: Connection, turn_id: TurnId) -> list[WaitRecord]:
    """Return the waits of a turn's own calls, oldest first."""
    return WAITS.all(conn, _OF_TURN, turn_id=turn_id)


def ended_of(conn: Connection, root_turn_id: TurnId) -> list[WaitId]:
    """Return which waits of a user's turn have ended, those of its delegates included."""
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
    """Return a page of waits, the newest first, and how many there are.

    They are a user's own in ``domains``, and those for admins of ``admin_of``; None: of all domains.
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
    total = conn.execute(select(func.count()).select_from(WAITS.table).where(*chosen)).scalar_one()
    newest = WAITS.select.where(*chosen).order_by(_rows.id.desc())
    return WAITS.all(conn, newest.limit(limit).offset(offset)), int(total)


def waiting(conn: Connection, root_turn_ids: Sequence[str]) -> set[str]:
    """Return which of these turns of users wait for a person."""
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
    """End an open wait. Returns False, and changes nothing, when it has ended before."""
    statement = update(WAITS.table).where(_rows.id == wait_id, _OPEN)
    values = {"state": state, "answer": answer, "answered_by": by, "answered_at": at, "remembered": remembered}
    ended = conn.execute(statement.values(**values)).rowcount == 1
    if ended:
        signals.send(conn, SignalKind.ANSWERED, wait_id)
    return ended


def take(conn: Connection, wait_id: WaitId) -> None:
    """Note that the call has gone on with the answer."""
    conn.execute(update(WAITS.table).where(_rows.id == wait_id).values(taken=True))


def cancel(conn: Connection, turn_id: TurnId, at: str) -> list[WaitId]:
    """Cancel the open waits of a turn's own calls and return their ids, oldest first."""
    found = [each.id for each in of_turn(conn, turn_id) if each.state is WaitState.OPEN]
    for wait_id in found:
        finish(conn, wait_id, WaitState.CANCELLED, answer=None, by="", at=at)
        take(conn, wait_id)
    return found


def list_open(conn: Connection, root_turn_id: TurnId) -> list[WaitRecord]:
    """Return the open waits of a user's turn and of its delegates, oldest first."""
    return WAITS.all(conn, _OLDEST_FIRST.where(_OPEN, _rows.root_turn_id == root_turn_id))


def list_open_urls(conn: Connection, domain_id: str) -> list[WaitRecord]:
    """Return the open waits of a domain for something that is done at an address, oldest first."""
    return WAITS.all(conn, _OLDEST_FIRST.where(_OPEN, _rows.domain_id == domain_id, _rows.kind == WaitKind.URL))


def has_untaken(conn: Connection, root_turn_id: TurnId) -> bool:
    """Whether anything of a user's turn was answered that its call has not gone on with."""
    query = select(_rows.id).where(_rows.root_turn_id == root_turn_id, ~_OPEN, _rows.taken.is_(False)).limit(1)
    return conn.execute(query).first() is not None


def is_any_due(conn: Connection, at: str) -> bool:
    """Whether the time of any open wait is over at ``at``."""
    return conn.execute(select(_rows.id).where(_OPEN, _rows.expires_at <= at).limit(1)).first() is not None


def expire(conn: Connection, at: str) -> list[WaitRecord]:
    """End the open waits whose time is over at ``at`` (UTC ISO-8601), and return them."""
    due = WAITS.all(conn, _OLDEST_FIRST.where(_OPEN, _rows.expires_at <= at))
    return [each for each in due if finish(conn, each.id, WaitState.EXPIRED, answer=None, by="", at=at)]


def forget_user(conn: Connection, user_id: str, instead: str) -> None:
    """Put another name where a user has answered waits of others."""
    conn.execute(update(WAITS.table).where(_rows.answered_by == user_id).values(answered_by=instead))


def is_remembered(conn: Connection, conversation_id: ConversationId, subject: str) -> bool:
    """Whether somebody has approved exactly this subject for the rest of the conversation."""
    chosen = (
        _rows.conversation_id == conversation_id,
        _rows.subject == subject,
        _rows.state == WaitState.ACCEPTED,
        _rows.remembered.is_(True),
    )
    return conn.execute(select(_rows.id).where(*chosen).limit(1)).first() is not None
