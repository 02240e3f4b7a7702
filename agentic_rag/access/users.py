"""Who asks: a value that every business rule and every edge shares.

Owns the value, what its role permits in a domain, and who the present task acts for. How a caller is recognised is
``server.auth``'s.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

SYSTEM = "system"
"""Who acts when nobody asked: a start, a background task."""
ANONYMOUS = "anonymous"
"""Who is refused before he is known."""


@dataclass(frozen=True, slots=True)
class User:
    """A caller: a user by the rights of what they came in with.

    ``operator``: everything with domains and with the process. ``domains``: those that exist for the user, who has own
    conversations there. ``authored``: those of them whose roles and prompt components the user may write;
    ``administered``: whose settings, servers and documents too. Conversations are their owner's alone.
    ``key_id``: of the key they came in with, empty where there was none.
    """

    id: str
    operator: bool = False
    domains: frozenset[str] = frozenset()
    authored: frozenset[str] = frozenset()
    administered: frozenset[str] = frozenset()
    key_id: str = ""

    def sees(self, domain_id: str) -> bool:
        """Whether the domain exists for this user."""
        return self.operator or domain_id in self.domains

    def administers(self, domain_id: str) -> bool:
        """Whether the user may change the domain."""
        return self.operator or domain_id in self.administered

    def writes(self, domain_id: str) -> bool:
        """Whether the user may write the domain's roles and prompt components."""
        return self.operator or domain_id in self.authored or domain_id in self.administered

    def covers(self, other: "User") -> bool:
        """Whether this is the same user with all rights that the other has."""
        if self.id != other.id or self.operator < other.operator:
            return False
        return self.operator or (
            other.domains <= self.domains
            and other.authored <= self.authored | self.administered
            and other.administered <= self.administered
        )


LOCAL = User("local", operator=True)
"""The one user of a server without keys."""


@dataclass(slots=True)
class Acting:
    """On whose behalf a task works. ``noted`` counts the audit entries made for it."""

    user_id: str
    noted: int = 0

    def note(self) -> None:
        """Count one more entry."""
        self.noted += 1


_acting: ContextVar[Acting] = ContextVar("acting")


def acting() -> Acting:
    """Return whom the present task acts for.

    It travels beside the call, as a request's id does: as one more argument of every change, the change that forgot
    to pass it on would be one that nobody made.
    """
    return _acting.get(None) or Acting(SYSTEM)


@contextmanager
def acting_for(user_id: str) -> Iterator[Acting]:
    """Act for a user inside the block, tasks started there included."""
    token = _acting.set(Acting(user_id))
    try:
        yield _acting.get()
    finally:
        _acting.reset(token)
