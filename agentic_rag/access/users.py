"""The caller: a value shared by all business rules and edges.

This module defines the value, its rights in a domain, and the user of the current task. Callers are recognised in
``server.auth``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

SYSTEM = "system"
"""The actor of work that no user requested: a start or a background task."""
ANONYMOUS = "anonymous"
"""The actor of a refused request whose user is unknown."""


@dataclass(frozen=True, slots=True)
class User:
    """A caller: a user with the rights of the presented credential.

    ``operator``: may manage all domains and the process. ``domains``: visible domains, in which the user has own
    conversations. ``authored``: domains whose roles and prompt components the user may write. ``administered``: domains
    whose settings, servers and documents the user may change too. Conversations are visible only to their owner.
    ``key_id`` is the id of the presented key, empty if there was none. ``reads_all``: an internal user, whose results
    only admins see, reads documents regardless of their labels.
    """

    id: str
    operator: bool = False
    domains: frozenset[str] = frozenset()
    authored: frozenset[str] = frozenset()
    administered: frozenset[str] = frozenset()
    key_id: str = ""
    reads_all: bool = False

    def reads_every_document(self, domain_id: str) -> bool:
        """Return whether the user sees the domain's documents regardless of their labels."""
        return self.reads_all or self.administers(domain_id)

    def sees(self, domain_id: str) -> bool:
        """Return whether the domain is visible to this user."""
        return self.operator or domain_id in self.domains

    def administers(self, domain_id: str) -> bool:
        """Return whether the user may change the domain."""
        return self.operator or domain_id in self.administered

    def writes(self, domain_id: str) -> bool:
        """Return whether the user may write the domain's roles and prompt components."""
        return self.operator or domain_id in self.authored or domain_id in self.administered

    def covers(self, other: "User") -> bool:
        """Return whether this is the same user with at least all rights of the other."""
        if self.id != other.id or self.operator < other.operator:
            return False
        return self.operator or (
            other.domains <= self.domains
            and other.authored <= self.authored | self.administered
            and other.administered <= self.administered
        )


class ActiveUsers(Protocol):
    """Finds active users by their id."""

    def user_named(self, user_id: str) -> User | None:
        """Return an active user with all rights, or None."""
        ...


LOCAL = User("local", operator=True)
"""The only user of a server without keys."""


@dataclass(slots=True)
class Acting:
    """The user that a task works for. ``noted`` counts the audit entries written for the task."""

    user_id: str
    noted: int = 0

    def note(self) -> None:
        """Count one more entry."""
        self.noted += 1


_acting: ContextVar[Acting] = ContextVar("acting")


def acting() -> Acting:
    """Return the user that the current task works for.

    The user is a context variable, like a request's id. If each change took the user as an argument, a change that
    forgot to pass it on would be recorded without an actor.
    """
    return _acting.get(None) or Acting(SYSTEM)


@contextmanager
def acting_for(user_id: str) -> Iterator[Acting]:
    """Act for a user inside the block, including tasks started there."""
    token = _acting.set(Acting(user_id))
    try:
        yield _acting.get()
    finally:
        _acting.reset(token)
