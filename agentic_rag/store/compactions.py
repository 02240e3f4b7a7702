"""Compactions: summaries and the archives behind them.

Owns their records. Knows no model and no message's content.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, insert, select

from agentic_rag.store.rows import columns, names, values
from agentic_rag.store.tables import CompactionRow, table


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCompaction:
    """One row of ``compactions``; fields as in `tables.CompactionRow`."""

    id: str
    session_id: str
    summary: str
    from_seq: int
    to_seq: int
    message_count: int
    created_by: str
    created_at: str


_compactions = table(CompactionRow)
_NAMES = names(StoredCompaction)
_COMPACTIONS = select(*columns(_compactions, StoredCompaction))


def put(conn: Connection, compaction: StoredCompaction) -> None:
    """Store a compaction; `sessions.archive` gives it its messages.

    Raises:
        IntegrityError: the id is taken.
    """
    conn.execute(insert(_compactions), values(compaction, _NAMES))


def get(conn: Connection, session_id: str, compaction_id: str) -> StoredCompaction | None:
    """Return the session's compaction, None when it has no such one."""
    query = _COMPACTIONS.where(_compactions.c.id == compaction_id, _compactions.c.session_id == session_id)
    row = conn.execute(query).mappings().first()
    return None if row is None else StoredCompaction(**row)


def of_session(conn: Connection, session_id: str) -> list[StoredCompaction]:
    """Return the session's compactions, newest first."""
    query = _COMPACTIONS.where(_compactions.c.session_id == session_id).order_by(_compactions.c.to_seq.desc())
    return [StoredCompaction(**row) for row in conn.execute(query).mappings()]
