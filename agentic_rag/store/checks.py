"""Consistency checks across records, used by the doctor.

Functions of a connection that only read. They do not look at files or at the index, and repair nothing.
"""

from sqlalchemy import Connection, exists, or_, select

from agentic_rag.store.conversations import CONVERSATIONS
from agentic_rag.store.sessions import MESSAGES, SESSIONS
from agentic_rag.store.turns import FINISHED, TURNS, TurnStatus

_conversations, _sessions, _turns, _messages = CONVERSATIONS.c, SESSIONS.c, TURNS.c, MESSAGES.c


def conversations_without_session(conn: Connection) -> list[str]:
    """Return the ids of conversations without a session."""
    there = exists().where(_sessions.id == _conversations.session_id)
    return list(conn.execute(select(_conversations.id).where(~there)).scalars())


def sessions_without_owner(conn: Connection) -> list[str]:
    """Return the ids of sessions that belong to no conversation and to no turn that delegated to them."""
    owned = exists().where(_conversations.session_id == _sessions.id)
    delegated = exists().where(_turns.id == _sessions.parent_turn_id)
    return list(conn.execute(select(_sessions.id).where(~owned, ~delegated)).scalars())


def stale_leases(conn: Connection, now: str) -> list[str]:
    """Return the ids of turns that have ended but still hold a lease, or that run although their lease has expired."""
    ended = _turns.status.in_(FINISHED) & _turns.lease_until.is_not(None)
    overdue = (_turns.status == TurnStatus.RUNNING) & (_turns.lease_until < now)
    return list(conn.execute(select(_turns.id).where(or_(ended, overdue))).scalars())


def turns_without_message(conn: Connection) -> list[str]:
    """Return the ids of running turns that have no message and therefore cannot be resumed."""
    there = exists().where(_messages.session_id == _turns.session_id, _messages.turn_id == _turns.id)
    return list(conn.execute(select(_turns.id).where(_turns.status == TurnStatus.RUNNING, ~there)).scalars())
