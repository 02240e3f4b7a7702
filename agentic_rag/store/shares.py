"""Share records: read-only links to conversations. At most one link per conversation; only a hash of its token is kept.

Callers check permissions.
"""

import sqlalchemy as sa
from sqlalchemy import Connection, UniqueConstraint

from agentic_rag.base.ids import ConversationId, MessageId, SessionId
from agentic_rag.store.columns import Key
from agentic_rag.store.record import Record


class ShareRecord(Record, table=True):
    """A link to the messages of a conversation up to ``leaf_message_id``. Later messages are not shared."""

    __tablename__ = "shares"
    __table_args__ = (UniqueConstraint("session_id"),)
    part_of = "session"

    token_hash: Key[str]
    session_id: SessionId
    conversation_id: ConversationId
    leaf_message_id: MessageId
    created_at: str


SHARES = ShareRecord.__table__
_shares = SHARES.c


def put(conn: Connection, share: ShareRecord) -> None:
    """Store a link, replacing the conversation's earlier one."""
    share.put(conn, ("session_id",))


def remove(conn: Connection, session_id: SessionId) -> bool:
    """Remove the link of a conversation. Returns False if there was none."""
    return conn.execute(sa.delete(SHARES).where(_shares.session_id == session_id)).rowcount == 1


def of_session(conn: Connection, session_id: SessionId) -> ShareRecord | None:
    """Return the link of a conversation, or None."""
    return ShareRecord.first(conn, sa.select(SHARES).where(_shares.session_id == session_id))


def by_hash(conn: Connection, token_hash: str) -> ShareRecord | None:
    """Return the link with this hash, or None."""
    return ShareRecord.first(conn, sa.select(SHARES).where(_shares.token_hash == token_hash))
