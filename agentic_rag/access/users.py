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
    """A caller: a user by the rights of the key he came with.

    ``operator``: everything with domains and with the process. ``admin``: settings, servers, documents and roles of
    ``domains``. Else a member: own conversations in ``domains``. Conversations are their owner's alone.
    """

    id: str
    operator: bool = False
    admin: bool = False
    domains: frozenset[str] = frozenset()

    def sees(self, domain_id: str) -> bool:
        """Whether the domain exists for this user."""
        return self.operator or domain_id in self.domains

    def administers(self, domain_id: str) -> bool:
        """Whether the user may change the domain."""
        return self.operator or (self.admin and domain_id in self.domains)


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
