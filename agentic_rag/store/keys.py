"""API keys as records.

Owns the rows; of a key only its SHA-256 is ever here. Knows neither how a key is made nor what it permits.
"""

from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy import Connection, UniqueConstraint

from agentic_rag.store.records import RecordTable


class KeyRole(StrEnum):
    """What the holder of a key may do: everything, or administer or use the key's domains."""

    OPERATOR = "operator"
    ADMIN = "admin"
    MEMBER = "member"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """An API key of a user, known by its SHA-256 only. Revoked ones stay: the audit log names them."""

    id: str
    user_id: str
    role: KeyRole
    domains: tuple[str, ...]
    """Ids of the domains it is for; empty for an operator's."""
    sha256: str
    created_at: str
    revoked_at: str | None = None


KEYS = RecordTable(KeyRecord, "keys", UniqueConstraint("sha256"))
_keys = KEYS.c
_IN_ORDER = KEYS.select.order_by(_keys.created_at, _keys.id)


def insert(conn: Connection, key: KeyRecord) -> None:
    """Store a new key."""
    KEYS.insert(conn, key)


def list_all(conn: Connection) -> list[KeyRecord]:
    """Return all keys, oldest first, revoked ones too."""
    return KEYS.all(conn, _IN_ORDER)


def active(conn: Connection) -> list[KeyRecord]:
    """Return the keys that are not revoked."""
    return KEYS.all(conn, _IN_ORDER.where(_keys.revoked_at.is_(None)))


def revoke(conn: Connection, key_id: str, at: str) -> KeyRecord | None:
    """Revoke a key and return it; None, and no change, when there is no such key or it was revoked before."""
    where = (_keys.id == key_id, _keys.revoked_at.is_(None))
    if conn.execute(sa.update(KEYS.table).where(*where).values(revoked_at=at)).rowcount != 1:
        return None
    return KEYS.first(conn, KEYS.select.where(_keys.id == key_id))
