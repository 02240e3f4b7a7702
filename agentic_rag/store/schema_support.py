"""The oldest program that can use the tables: a migration may leave the previous version's programs working.

There is one row. The migrations themselves declare which programs they support.
"""

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.columns import Key
from agentic_rag.store.record import Record


class SchemaSupportRecord(Record, table=True):
    """The single row. ``oldest`` is the revision of the oldest program that can use tables of ``revision``."""

    __tablename__ = "schema_support"

    id: Key[int] = 1
    revision: str
    oldest: str


SCHEMA_SUPPORT = SchemaSupportRecord.__table__
_support = SCHEMA_SUPPORT.c


def get(conn: Connection) -> SchemaSupportRecord | None:
    """Return the row, or None if the tables are those of another program."""
    if not sa.inspect(conn).has_table(SCHEMA_SUPPORT.name):
        return None
    return SchemaSupportRecord.first(conn, sa.select(SCHEMA_SUPPORT).where(_support.id == 1))


def put(conn: Connection, revision: str, oldest: str) -> None:
    """Record the oldest program that tables of a revision support."""
    conn.execute(sa.update(SCHEMA_SUPPORT).values(revision=revision, oldest=oldest))
