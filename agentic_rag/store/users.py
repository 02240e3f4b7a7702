"""User records: rights and origin.

A user is identified by a name, which conversations, memories, usage and the audit log refer to. An erased user remains
as a number. ``access`` signs users in and applies their grants.
"""

from enum import StrEnum
from typing import TypedDict, Unpack

import sqlalchemy as sa
from sqlalchemy import Connection, UniqueConstraint
from sqlmodel import Field

from agentic_rag.store import signals
from agentic_rag.store.columns import Key
from agentic_rag.store.record import Record
from agentic_rag.store.signals import SignalKind


class Grant(StrEnum):
    """A user's role in a domain; each includes the previous ones."""

    MEMBER = "member"
    """Chat, and see one's own data."""
    AUTHOR = "author"
    """Write the domain's roles and prompt components."""
    ADMIN = "admin"
    """Change all of the domain's settings."""


class UserState(StrEnum):
    """The state of a user. A disabled user cannot sign in; of an erased user only a number remains."""

    ACTIVE = "active"
    DISABLED = "disabled"
    ERASING = "erasing"
    ERASED = "erased"


class RightsSource(StrEnum):
    """The source of a user's rights: an operator, or the groups of an OpenID provider."""

    LOCAL = "local"
    OIDC = "oidc"


class UserRecord(Record, table=True):
    """A person or a machine with access. ``id`` is the name; ``number`` replaces the name after erasure."""

    __tablename__ = "users"
    __table_args__ = (
        UniqueConstraint("number"),
        UniqueConstraint("subject"),
    )

    id: Key[str]
    number: int
    display_name: str = ""
    operator: bool = False
    """Whether the user may manage all domains and the process."""
    grants: dict[str, Grant] = Field(default_factory=dict)
    """Grants by domain id."""
    state: UserState = UserState.ACTIVE
    origin: RightsSource = RightsSource.LOCAL
    subject: str | None = None
    """For a user of an OpenID provider: the issuer and the user's subject there."""
    groups: tuple[str, ...] = ()
    """For a user of an OpenID provider: the groups in the user's newest token, sorted."""
    created_at: str
    updated_at: str


class UserFields(TypedDict, total=False):
    """The fields that `update` can change."""

    display_name: str
    operator: bool
    grants: dict[str, Grant]
    state: UserState
    groups: tuple[str, ...]


USERS = UserRecord.__table__
_users = USERS.c


def insert(conn: Connection, user: UserRecord) -> None:
    """Store a new user."""
    user.insert(conn)
    signals.send(conn, SignalKind.ACCESS)


def lock(conn: Connection) -> None:
    """Let no other transaction change users until this one ends. Call before a user is looked up to be created.

    The names, subjects and numbers of users are unique, and a user that does not exist yet has no row to lock.
    """
    if conn.dialect.name == "postgresql":  # SQLite has one writer
        conn.exec_driver_sql(f"LOCK TABLE {USERS.name} IN SHARE ROW EXCLUSIVE MODE")


def next_number(conn: Connection) -> int:
    """Return the number of the next user; numbers of erased users are not reused. The caller has called `lock`."""
    return int(conn.execute(sa.select(sa.func.coalesce(sa.func.max(_users.number), 0))).scalar_one()) + 1


def get(conn: Connection, user_id: str) -> UserRecord | None:
    """Return the user with this name, or None."""
    return UserRecord.first(conn, sa.select(USERS).where(_users.id == user_id))


def by_subject(conn: Connection, subject: str) -> UserRecord | None:
    """Return the user with this OpenID subject, or None."""
    return UserRecord.first(conn, sa.select(USERS).where(_users.subject == subject))


def list_all(conn: Connection) -> list[UserRecord]:
    """Return all users by name, including erased ones."""
    return UserRecord.all(conn, sa.select(USERS).order_by(_users.id))


def update(conn: Connection, user_id: str, at: str, **fields: Unpack[UserFields]) -> None:
    """Change fields of a user; ``at`` becomes the time of the update."""
    conn.execute(sa.update(USERS).where(_users.id == user_id).values(**fields, updated_at=at))
    signals.send(conn, SignalKind.ACCESS)


def delete(conn: Connection, user_id: str) -> None:
    """Delete the row of a user."""
    conn.execute(sa.delete(USERS).where(_users.id == user_id))
    signals.send(conn, SignalKind.ACCESS)
