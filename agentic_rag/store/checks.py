"""Whether the records fit together: what the doctor asks the tables. Functions of a connection that only read.

Owns the questions. Knows no file, no index and no remedy.
"""

from sqlalchemy import Connection, exists, or_, select

from agentic_rag.store.tables import Conversation, MessageRow, SessionRow, Turn, table
from agentic_rag.store.turns import FINISHED

_conversations = table(Conversation)
_sessions = table(SessionRow)
_turns = table(Turn)
_messages = table(MessageRow)


def conversations_without_session(conn: Connection) -> list[str]:
    """Return the ids of conversations whose session is gone."""
    there = exists().where(_sessions.c.id == _conversations.c.session_id)
    return list(conn.execute(select(_conversations.c.id).where(~there)).scalars())


def sessions_without_owner(conn: Connection) -> list[str]:
    """Return the ids of sessions that belong to no conversation and to no turn that delegated to them."""
    owned = exists().where(_conversations.c.session_id == _sessions.c.id)
    delegated = exists().where(_turns.c.id == _sessions.c.parent_turn_id)
    return list(conn.execute(select(_sessions.c.id).where(~owned, ~delegated)).scalars())


def stale_leases(conn: Connection, now: str) -> list[str]:
    """Return the ids of turns that have ended and are still leased, or that run although their lease is over."""
    ended = _turns.c.status.in_(FINISHED) & _turns.c.lease_until.is_not(None)
    left = (_turns.c.status == "running") & (_turns.c.lease_until < now)
    return list(conn.execute(select(_turns.c.id).where(or_(ended, left))).scalars())


def turns_without_message(conn: Connection) -> list[str]:
    """Return the ids of running turns that have no message: nothing can be resumed."""
    there = exists().where(_messages.c.session_id == _turns.c.session_id, _messages.c.turn_id == _turns.c.id)
    return list(conn.execute(select(_turns.c.id).where(_turns.c.status == "running", ~there)).scalars())
