"""Where a store comes from: its own id, and the backup that it was restored from, if it was.

Owns that row, which is made with the tables. A restored copy has another id than its original. Knows no file.
"""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.clock import new_id, now
from agentic_rag.store.records import RecordTable


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginRecord:
    """One row. ``restored_from``: the id of a backup, and ``restored_store`` that of the store it was made of."""

    id: int = 1
    store_id: str
    made_at: str
    restored_from: str | None = None
    restored_store: str | None = None
    restored_at: str | None = None


ORIGIN = RecordTable(OriginRecord, "origin")


def get(conn: Connection) -> OriginRecord | None:
    """Return the row; None in a store whose rows were all taken away."""
    return ORIGIN.first(conn, ORIGIN.select)


def set_restored(conn: Connection, backup: str) -> str:
    """Give a store that a backup was put into an id of its own, which is returned."""
    before = get(conn)
    conn.execute(sa.delete(ORIGIN.table))
    store_id, at = new_id("store"), now()
    ORIGIN.insert(
        conn,
        OriginRecord(
            store_id=store_id,
            made_at=before.made_at if before else at,
            restored_from=backup,
            restored_store=before.store_id if before else None,
            restored_at=at,
        ),
    )
    return store_id
