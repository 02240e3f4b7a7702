"""Users as records: who may do what, and where they come from.

Owns the rows. A user is known by a name, which conversations, memories, usage and the audit log carry; a user who was
erased stays as a number. Knows neither how one signs in nor what a grant permits.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypedDict, Unpack

import sqlalchemy as sa
from sqlalchemy import Connection, UniqueConstraint

from agentic_rag.store import signals
from agentic_rag.store.records import RecordTable
from agentic_rag.store.signals import SignalKind


class Grant(StrEnum):
    """What a user may do in a domain; each includes those before it."""

    MEMBER = "member"
    """Talk, and see what is theirs."""
    AUTHOR = "author"
    """Write the domain's roles and prompt components."""
    ADMIN = "admin"
    """Change all of the domain's settings."""


class UserState(StrEnum):
    """A disabled user cannot come in; of an erased one nothing is left but a number."""

    ACTIVE = "active"
    DISABLED = "disabled"
    ERASING = "erasing"
    ERASED = "erased"


class Origin(StrEnum):
    """Who says what a user may do: an operator, or the groups of an OpenID provider."""

    LOCAL = "local"
    OIDC = "oidc"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRecord:
    """A person or a machine that comes in. ``id``: the name; ``number``: what stands for it once it is erased."""

    id: str
    number: int
    display_name: str = ""
    operator: bool = False
    """May do everything with domains and with the process."""
    grants: dict[str, Grant] = field(default_factory=dict)
    """By the domain's id."""
    state: UserState = UserState.ACTIVE
    origin: Origin = Origin.LOCAL
    subject: str | None = None
    """Of a user of an OpenID provider: its issuer and who it is there."""
    created_at: str
    updated_at: str


class UserFields(TypedDict, total=False):
    """What `update` may change."""

    display_name: str
    operator: bool
    grants: dict[str, Grant]
    state: UserState


USERS = RecordTable(UserRecord, "users", UniqueConstraint("number"), UniqueConstraint("subject"))
_users = USERS.c


def insert(conn: Connection, user: UserRecord) -> None:
    """Store a new user."""
    USERS.insert(conn, user)
    signals.send(conn, SignalKind.ACCESS)


def next_number(conn: Connection) -> int:
    """Return the number of the next user; numbers of erased ones are not used again."""
    return int(conn.execute(sa.select(sa.func.coalesce(sa.func.max(_users.number), 0))).scalar_one()) + 1


def get(conn: Connection, user_id: str) -> UserRecord | None:
    """Return a user by name."""
    return USERS.first(conn, USERS.select.where(_users.id == user_id))


def by_subject(conn: Connection, subject: str) -> UserRecord | None:
    """Return the user of an OpenID provider."""
    return USERS.first(conn, USERS.select.where(_users.subject == subject))


def list_all(conn: Connection) -> list[UserRecord]:
    """Return all users by name, erased ones too."""
    return USERS.all(conn, USERS.select.order_by(_users.id))


def update(conn: Connection, user_id: str, at: str, **fields: Unpack[UserFields]) -> None:
    """Change fields of a user, at a time."""
    conn.execute(sa.update(USERS.table).where(_users.id == user_id).values(**fields, updated_at=at))
    signals.send(conn, SignalKind.ACCESS)


def delete(conn: Connection, user_id: str) -> None:
    """Delete the row of a user."""
    conn.execute(sa.delete(USERS.table).where(_users.id == user_id))
    signals.send(conn, SignalKind.ACCESS)
