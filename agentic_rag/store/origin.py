"""The origin of a store: its own id, and the backup that it was restored from, if any.

The migration that creates the tables inserts the row. A restored copy has another id than its original.
"""

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.clock import new_id, now
from agentic_rag.store.columns import Key
from agentic_rag.store.record import Record


class OriginRecord(Record, table=True):
    """The single row. ``restored_from`` is the id of a backup, ``restored_store`` that of the backed-up store."""

    __tablename__ = "origin"

    id: Key[int] = 1
    store_id: str
    made_at: str
    restored_from: str | None = None
    restored_store: str | None = None
    restored_at: str | None = None


ORIGIN = OriginRecord.__table__


def get(conn: Connection) -> OriginRecord | None:
    """Return the row; None if the store's rows were all deleted."""
    return OriginRecord.first(conn, sa.select(ORIGIN))


def set_restored(conn: Connection, backup: str) -> str:
    """Give a store restored from a backup a new id, and return that id."""
    before = get(conn)
    conn.execute(sa.delete(ORIGIN))
    store_id, at = new_id("store"), now()
    restored = OriginRecord(
        store_id=store_id,
        made_at=before.made_at if before else at,
        restored_from=backup,
        restored_store=before.store_id if before else None,
        restored_at=at,
    )
    restored.insert(conn)
    return store_id
