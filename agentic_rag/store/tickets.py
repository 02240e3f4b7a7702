"""Single-use tickets: short-lived substitutes for a key or sign-in, where servers share a store.

Only the SHA-256 of a ticket is stored.
"""

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.columns import Indexed, Key
from agentic_rag.store.database_time import DatabaseTime
from agentic_rag.store.record import Record

MAX_TICKETS = 50
"""Maximum number of unused tickets per key; beyond that the oldest is deleted."""


class TicketRecord(Record, table=True):
    """One unused ticket. ``id`` is its SHA-256; ``seconds`` limits the holder's session (None: no limit)."""

    __tablename__ = "tickets"

    id: Key[str]
    key_id: Indexed[str]
    seconds: int | None
    expires_at: str


TICKETS = TicketRecord.__table__
_tickets = TICKETS.c


def issue(conn: Connection, sha256: str, key_id: str, seconds: int | None, life: float) -> None:
    """Store a ticket that is valid for ``life`` seconds."""
    conn.execute(sa.delete(TICKETS).where(_tickets.expires_at <= DatabaseTime()))
    newest = sa.select(_tickets.id).where(_tickets.key_id == key_id).order_by(_tickets.expires_at.desc())
    newest_ids = newest.limit(MAX_TICKETS - 1)
    conn.execute(sa.delete(TICKETS).where(_tickets.key_id == key_id, _tickets.id.not_in(newest_ids)))
    values = {"id": sha256, "key_id": key_id, "seconds": seconds, "expires_at": DatabaseTime(life)}
    conn.execute(sa.insert(TICKETS).values(**values))


def redeem(conn: Connection, sha256: str) -> tuple[str, int | None] | None:
    """Consume a ticket and return its key's id and seconds; None if the ticket is unknown, used or expired."""
    valid = (_tickets.id == sha256, _tickets.expires_at > DatabaseTime())
    row = conn.execute(sa.delete(TICKETS).where(*valid).returning(_tickets.key_id, _tickets.seconds)).first()
    return None if row is None else (row[0], row[1])
