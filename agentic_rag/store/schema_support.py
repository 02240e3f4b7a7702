"""Which programs the tables serve: the newest steps may leave those of the version before at work.

Owns one row. Knows no step; who takes them says what they leave.
"""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.records import RecordTable


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSupportRecord:
    """``oldest``: the revision of the oldest program that goes on working with tables of a ``revision``: one row."""

    id: int = 1
    revision: str
    oldest: str


SCHEMA_SUPPORT = RecordTable(SchemaSupportRecord, "schema_support")
_support = SCHEMA_SUPPORT.c


def get(conn: Connection) -> SchemaSupportRecord | None:
    """Return the row; None: the tables are older than it."""
    if not sa.inspect(conn).has_table(SCHEMA_SUPPORT.table.name):
        return None
    return SCHEMA_SUPPORT.first(conn, SCHEMA_SUPPORT.select.where(_support.id == 1))


def put(conn: Connection, revision: str, oldest: str) -> None:
    """Say which programs tables of a revision serve; nothing happens where they are older than the row."""
    if get(conn) is not None:
        conn.execute(sa.update(SCHEMA_SUPPORT.table).values(revision=revision, oldest=oldest))
