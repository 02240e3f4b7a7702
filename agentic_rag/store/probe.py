"""A row that health checks write to test whether the store accepts writes."""

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.columns import Key
from agentic_rag.store.record import Record


class ProbeRecord(Record, table=True):
    """The time of the last probe; the table has a single row."""

    __tablename__ = "probe"

    id: Key[int] = 1
    at: str


PROBE = ProbeRecord.__table__


def touch(conn: Connection, at: str) -> None:
    """Write the row."""
    if not conn.execute(sa.update(PROBE).values(at=at)).rowcount:
        ProbeRecord(at=at).insert(conn)
