"""Imports that are under way: what the next start ends or takes back, if this process dies meanwhile.

Owns the rows. A row without its domain is of a domain that was not made; what was put in its workspace goes. A row of a
domain that is there is of an import over it whose settings are stored: its files follow, from the folder of its id.
"""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.records import RecordTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRecord:
    """An import under way. ``removed``: names of a bundle's form that are to go, because the bundle has them not."""

    id: str
    domain_id: str
    user_id: str
    removed: tuple[str, ...] = ()
    begun_at: str


IMPORTS = RecordTable(ImportRecord, "imports", part_of="domain")


def insert(conn: Connection, record: ImportRecord) -> None:
    """Store an import that begins."""
    IMPORTS.insert(conn, record)


def list_all(conn: Connection) -> list[ImportRecord]:
    """Return the imports that are under way, oldest first."""
    return IMPORTS.all(conn, IMPORTS.select.order_by(IMPORTS.c.id))


def end_removal(conn: Connection, import_id: str) -> None:
    """Note that what an import removes is gone: what comes to those names later is another's."""
    conn.execute(sa.update(IMPORTS.table).where(IMPORTS.c.id == import_id).values(removed=()))


def delete(conn: Connection, import_id: str) -> None:
    """Remove one that has ended."""
    conn.execute(sa.delete(IMPORTS.table).where(IMPORTS.c.id == import_id))
