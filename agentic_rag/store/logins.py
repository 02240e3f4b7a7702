"""Logins: browser sessions identified by a cookie, and pending logins at an OpenID provider.

Only the SHA-256 of a cookie is stored. ``access.logins`` and ``access.oidc`` create the rows.
"""

import sqlalchemy as sa
from sqlalchemy import Connection, UniqueConstraint

from agentic_rag.store import signals
from agentic_rag.store.columns import Indexed, Key
from agentic_rag.store.record import Record
from agentic_rag.store.signals import SignalKind


class LoginRecord(Record, table=True):
    """A browser in which a user is signed in until ``expires_at``; a renewal moves that time, up to ``ends_at``."""

    __tablename__ = "logins"
    __table_args__ = (UniqueConstraint("sha256"),)

    id: Key[str]
    user_id: Indexed[str]
    key_id: str
    """The key that the login was made with, whose rights it has; empty: it has the user's rights."""
    sha256: str
    created_at: str
    expires_at: str
    ends_at: str


class BegunRecord(Record, table=True):
    """A pending login at an OpenID provider. ``id`` is the SHA-256 of its state."""

    __tablename__ = "logins_begun"

    id: Key[str]
    browser_sha256: str
    """SHA-256 of the cookie of the browser that began the login."""
    nonce: str
    verifier: str
    return_to: str
    expires_at: Indexed[str]


LOGINS = LoginRecord.__table__
BEGUN = BegunRecord.__table__
_signed, _begun = LOGINS.c, BEGUN.c


def insert(conn: Connection, login: LoginRecord) -> None:
    """Store a new login."""
    login.insert(conn)
    signals.send(conn, SignalKind.ACCESS)


def active(conn: Connection, at: str) -> list[LoginRecord]:
    """Return the logins that have not expired, oldest first."""
    return LoginRecord.all(conn, sa.select(LOGINS).where(_signed.expires_at > at).order_by(_signed.id))


def find(conn: Connection, sha256: str) -> LoginRecord | None:
    """Return the login of a cookie, or None."""
    return LoginRecord.first(conn, sa.select(LOGINS).where(_signed.sha256 == sha256))


def renew(conn: Connection, login_id: str, until: str) -> bool:
    """Set the expiry time of a login; False if the login has ended."""
    change = sa.update(LOGINS).where(_signed.id == login_id).values(expires_at=until)
    signals.send(conn, SignalKind.ACCESS)
    return conn.execute(change).rowcount == 1


def end(conn: Connection, login_id: str) -> None:
    """Delete a login."""
    conn.execute(sa.delete(LOGINS).where(_signed.id == login_id))
    signals.send(conn, SignalKind.ACCESS)


def end_of_user(conn: Connection, user_id: str) -> None:
    """Delete all logins of a user."""
    conn.execute(sa.delete(LOGINS).where(_signed.user_id == user_id))
    signals.send(conn, SignalKind.ACCESS)


def end_of_key(conn: Connection, key_id: str) -> None:
    """Delete all logins that were made with a key."""
    conn.execute(sa.delete(LOGINS).where(_signed.key_id == key_id))
    signals.send(conn, SignalKind.ACCESS)


def end_expired(conn: Connection, at: str) -> None:
    """Delete expired logins and expired pending logins."""
    conn.execute(sa.delete(LOGINS).where(_signed.expires_at <= at))
    conn.execute(sa.delete(BEGUN).where(_begun.expires_at <= at))


def begin(conn: Connection, begun: BegunRecord, now: str, at_most: int) -> None:
    """Store a pending login; beyond ``at_most``, the one that expires first is deleted."""
    conn.execute(sa.delete(BEGUN).where(_begun.expires_at <= now))
    if conn.execute(sa.select(sa.func.count()).select_from(BEGUN)).scalar_one() >= at_most:
        first = sa.select(_begun.id).order_by(_begun.expires_at, _begun.id).limit(1)
        conn.execute(sa.delete(BEGUN).where(_begun.id == first.scalar_subquery()))
    begun.insert(conn)


def find_begun(conn: Connection, state_sha256: str) -> BegunRecord | None:
    """Return the pending login with a state, or None."""
    return BegunRecord.first(conn, sa.select(BEGUN).where(_begun.id == state_sha256))


def take_begun(conn: Connection, state_sha256: str) -> bool:
    """Delete the pending login with a state; False if it was used before."""
    return conn.execute(sa.delete(BEGUN).where(_begun.id == state_sha256)).rowcount == 1
