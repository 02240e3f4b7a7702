"""API key records.

Only the SHA-256 of a key is stored. ``access.keys`` creates keys, and ``access.rights`` applies their limits.
"""

from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy import Connection, UniqueConstraint

from agentic_rag.store import signals
from agentic_rag.store.columns import Key
from agentic_rag.store.record import Record
from agentic_rag.store.signals import SignalKind


class KeyRole(StrEnum):
    """The limit that a key puts on its user's rights: none, or administer, write roles of, or use the key's domains."""

    OPERATOR = "operator"
    ADMIN = "admin"
    AUTHOR = "author"
    MEMBER = "member"


class KeyRecord(Record, table=True):
    """An API key of a user, stored as its SHA-256 only. Revoked keys stay, because the audit log names them."""

    __tablename__ = "keys"
    __table_args__ = (UniqueConstraint("sha256"),)

    id: Key[str]
    user_id: str
    role: KeyRole | None
    """The key's role; None: the key has the current rights of its user."""
    domains: tuple[str, ...]
    """Ids of the domains that the key is limited to; empty for an operator's key and without a role."""
    sha256: str
    groups: tuple[str, ...] = ()
    """The groups that the key acts for; domains map groups to labels of documents."""
    created_at: str
    revoked_at: str | None = None


KEYS = KeyRecord.__table__
_keys = KEYS.c
_IN_ORDER = sa.select(KEYS).order_by(_keys.id)


def get(conn: Connection, key_id: str) -> KeyRecord | None:
    """Return the key, also a revoked one, or None."""
    return KeyRecord.first(conn, sa.select(KEYS).where(_keys.id == key_id))


def insert(conn: Connection, key: KeyRecord) -> None:
    """Store a new key."""
    key.insert(conn)
    signals.send(conn, SignalKind.ACCESS)


def list_all(conn: Connection) -> list[KeyRecord]:
    """Return all keys, including revoked ones, oldest first."""
    return KeyRecord.all(conn, _IN_ORDER)


def active(conn: Connection) -> list[KeyRecord]:
    """Return the keys that are not revoked."""
    return KeyRecord.all(conn, _IN_ORDER.where(_keys.revoked_at.is_(None)))


def revoke(conn: Connection, key_id: str, at: str) -> KeyRecord | None:
    """Revoke a key and return it; None if there is no such key or it was revoked before."""
    where = (_keys.id == key_id, _keys.revoked_at.is_(None))
    if conn.execute(sa.update(KEYS).where(*where).values(revoked_at=at)).rowcount != 1:
        return None
    signals.send(conn, SignalKind.ACCESS)
    return KeyRecord.first(conn, sa.select(KEYS).where(_keys.id == key_id))


def revoke_of_user(conn: Connection, user_id: str, at: str) -> None:
    """Revoke all keys of a user."""
    where = (_keys.user_id == user_id, _keys.revoked_at.is_(None))
    conn.execute(sa.update(KEYS).where(*where).values(revoked_at=at))
    signals.send(conn, SignalKind.ACCESS)


def delete_of_user(conn: Connection, user_id: str) -> None:
    """Delete all keys of a user, including revoked ones."""
    conn.execute(sa.delete(KEYS).where(_keys.user_id == user_id))
    signals.send(conn, SignalKind.ACCESS)
