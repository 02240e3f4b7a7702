"""Imports in progress: records from which the next start completes or undoes an import if this process dies.

If the record's domain does not exist, the domain was never created, and the files put in its workspace are removed. If
the domain exists, the settings of an import over that domain are stored. Its files then follow from the folder named by
the import's id.
"""

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.columns import Key
from agentic_rag.store.record import Record


class ImportRecord(Record, table=True):
    """An import in progress. ``removed``: the domain's item names to delete because the bundle lacks them."""

    __tablename__ = "imports"
    part_of = "domain"

    id: Key[str]
    domain_id: str
    user_id: str
    removed: tuple[str, ...] = ()
    begun_at: str


IMPORTS = ImportRecord.__table__


def insert(conn: Connection, record: ImportRecord) -> None:
    """Store an import that begins."""
    record.insert(conn)


def list_all(conn: Connection) -> list[ImportRecord]:
    """Return the imports in progress, oldest first."""
    return ImportRecord.all(conn, sa.select(IMPORTS).order_by(IMPORTS.c.id))


def end_removal(conn: Connection, import_id: str) -> None:
    """Record that the import's removals are done; files created under those names later are not its own."""
    conn.execute(sa.update(IMPORTS).where(IMPORTS.c.id == import_id).values(removed=()))


def delete(conn: Connection, import_id: str) -> None:
    """Remove an import that has ended."""
    conn.execute(sa.delete(IMPORTS).where(IMPORTS.c.id == import_id))
