"""The row whose only use is to be written: whether the store takes anything is seen by giving it something.

Owns that row. Knows no part of the server.
"""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.records import RecordTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRecord:
    """When the store was last asked: one row."""

    id: int = 1
    at: str


PROBE = RecordTable(ProbeRecord, "probe")


def touch(conn: Connection, at: str) -> None:
    """Write the row."""
    if not conn.execute(sa.update(PROBE.table).values(at=at)).rowcount:
        PROBE.insert(conn, ProbeRecord(at=at))
