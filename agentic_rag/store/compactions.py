"""Compaction records: summaries of archived messages.

The runtime writes the summaries.
"""

from enum import StrEnum

from sqlalchemy import Connection, select

from agentic_rag.base.ids import MessageId, SessionId
from agentic_rag.store import sessions
from agentic_rag.store.columns import Indexed, Key
from agentic_rag.store.record import Record


class CompactedBy(StrEnum):
    """The origin of a compaction: a user's request, or the server because the context was full."""

    USER = "user"
    AUTO = "auto"


class CompactionRecord(Record, table=True):
    """A summary that replaces the messages ``from_seq`` to ``to_seq`` (inclusive), which are kept as archive."""

    __tablename__ = "compactions"
    part_of = "session"

    id: Key[str]
    session_id: Indexed[SessionId]
    summary: str
    from_seq: int
    to_seq: int
    message_count: int
    """Number of messages as clients count them."""
    leaf_message_id: MessageId | None = None
    """The last answer of the branch that the messages belong to."""
    created_by: CompactedBy
    created_at: str


COMPACTIONS = CompactionRecord.__table__
_compactions = COMPACTIONS.c


def put(conn: Connection, compaction: CompactionRecord) -> None:
    """Store a compaction of a session's active branch.

    Raises:
        IntegrityError: the id is taken.
    """
    session = sessions.get(conn, compaction.session_id)
    leaf = None if session is None else session.leaf_message_id
    compaction.replace(leaf_message_id=leaf).insert(conn)


def get(conn: Connection, session_id: SessionId, compaction_id: str) -> CompactionRecord | None:
    """Return the session's compaction, or None."""
    query = select(COMPACTIONS).where(_compactions.id == compaction_id, _compactions.session_id == session_id)
    return CompactionRecord.first(conn, query)


def of_session(conn: Connection, session_id: SessionId) -> list[CompactionRecord]:
    """Return the session's compactions, newest first."""
    query = select(COMPACTIONS).where(_compactions.session_id == session_id)
    return CompactionRecord.all(conn, query.order_by(_compactions.to_seq.desc()))
