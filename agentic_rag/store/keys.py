"""API keys as records.

Owns the rows; of a key only its SHA-256 is ever here. Knows neither how a key is made nor what it permits.
"""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Select

from agentic_rag.store.rows import columns, names, values
from agentic_rag.store.tables import KeyRow, table


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """One row of ``keys``; fields as in `tables.KeyRow`."""

    id: str
    user_id: str
    role: str
    domains: list[str]
    sha256: str
    created_at: str
    revoked_at: str | None = None


_keys = table(KeyRow)
_NAMES = names(StoredKey)
_KEYS = sa.select(*columns(_keys, StoredKey)).order_by(_keys.c.created_at, _keys.c.id)


def insert(conn: Connection, key: StoredKey) -> None:
    """Store a new key."""
    conn.execute(sa.insert(_keys), values(key, _NAMES))


def list_all(conn: Connection) -> list[StoredKey]:
    """Return all keys, oldest first, revoked ones too."""
    return _all(conn, _KEYS)


def active(conn: Connection) -> list[StoredKey]:
    """Return the keys that are not revoked."""
    return _all(conn, _KEYS.where(_keys.c.revoked_at.is_(None)))


def revoke(conn: Connection, key_id: str, at: str) -> StoredKey | None:
    """Revoke a key and return it; None, and no change, when there is no such key or it was revoked before."""
    where = (_keys.c.id == key_id, _keys.c.revoked_at.is_(None))
    if conn.execute(sa.update(_keys).where(*where).values(revoked_at=at)).rowcount != 1:
        return None
    return _all(conn, _KEYS.where(_keys.c.id == key_id))[0]


def _all(conn: Connection, query: Select[Any]) -> list[StoredKey]:
    return [StoredKey(**row) for row in conn.execute(query).mappings()]
