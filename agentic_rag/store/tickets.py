"""Tickets: what stands once, for a moment, for who came in with a key or a sign-in, where servers share a store.

Owns their rows. Of a ticket only its SHA-256 is kept. Knows no user.
"""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.database_time import DatabaseTime
from agentic_rag.store.records import RecordTable

MAX_TICKETS = 50
"""Unused ones of one key; the oldest gives way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketRecord:
    """One unused ticket. ``id``: its SHA-256; ``seconds``: how long who got it may stay, None: without an end."""

    id: str
    key_id: str
    seconds: int | None
    expires_at: str


TICKETS = RecordTable(TicketRecord, "tickets", indexed=("key_id",))
_tickets = TICKETS.c


def issue(conn: Connection, sha256: str, key_id: str, seconds: int | None, life: float) -> None:
    """Store a ticket that is good for ``life`` seconds."""
    conn.execute(sa.delete(TICKETS.table).where(_tickets.expires_at <= DatabaseTime()))
    newest = sa.select(_tickets.id).where(_tickets.key_id == key_id).order_by(_tickets.expires_at.desc())
    kept = newest.limit(MAX_TICKETS - 1)
    conn.execute(sa.delete(TICKETS.table).where(_tickets.key_id == key_id, _tickets.id.not_in(kept)))
    values = {"id": sha256, "key_id": key_id, "seconds": seconds, "expires_at": DatabaseTime(life)}
    conn.execute(sa.insert(TICKETS.table).values(**values))


def redeem(conn: Connection, sha256: str) -> tuple[str, int | None] | None:
    """Use a ticket up and return its key's id and seconds; None when it is not known, was used, or is too old."""
    mine = (_tickets.id == sha256, _tickets.expires_at > DatabaseTime())
    row = conn.execute(sa.delete(TICKETS.table).where(*mine).returning(_tickets.key_id, _tickets.seconds)).first()
    return None if row is None else (row[0], row[1])
