"""The oldest program that can use the tables: a migration may leave the previous version's programs working.

There is one row. The migrations themselves declare which programs they support.
"""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.records import RecordTable


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSupportRecord:
    """The single row. ``oldest`` is the revision of the oldest program that can use tables of ``revision``."""

    id: int = 1
    revision: str
    oldest: str


SCHEMA_SUPPORT = RecordTable(SchemaSupportRecord, "schema_support")
_support = SCHEMA_SUPPORT.c


def get(conn: Connection) -> SchemaSupportRecord | None:
    """Return the row, or None if the tables are too old to have it."""
    if not sa.inspect(conn).has_table(SCHEMA_SUPPORT.table.name):
        return None
    return SCHEMA_SUPPORT.first(conn, SCHEMA_SUPPORT.select.where(_support.id == 1))


def put(conn: Connection, revision: str, oldest: str) -> None:
    """Record the oldest program that tables of a revision support; does nothing if the tables lack the row."""
    if get(conn) is not None:
        conn.execute(sa.update(SCHEMA_SUPPORT.table).values(revision=revision, oldest=oldest))
