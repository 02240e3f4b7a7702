"""A row that health checks write to test whether the store accepts writes."""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.records import RecordTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRecord:
    """The time of the last probe; the table has a single row."""

    id: int = 1
    at: str


PROBE = RecordTable(ProbeRecord, "probe")


def touch(conn: Connection, at: str) -> None:
    """Write the row."""
    if not conn.execute(sa.update(PROBE.table).values(at=at)).rowcount:
        PROBE.insert(conn, ProbeRecord(at=at))
