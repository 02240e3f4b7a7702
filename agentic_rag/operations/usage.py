"""What model calls have cost, as far as a user may see it: his own, that of domains he administers, or all.

Owns who sees which rows. Knows no price.
"""

from collections.abc import Sequence

from agentic_rag.access.users import User
from agentic_rag.store import usage
from agentic_rag.store.database import Database
from agentic_rag.store.usage import Group, UsageTotal


class UsageReports:
    """Sums over the usage of a database."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def totals(self, user: User, groups: Sequence[Group], since: str, until: str) -> list[UsageTotal]:
        """Return the sums of each group, largest first. ``since`` (included) and ``until`` (not): times, or empty."""
        domains = None if user.operator else sorted(user.domains) if user.admin else ()
        return await self._db.read(
            lambda conn: usage.totals(conn, groups, since, until, user_id=user.id, domain_ids=domains)
        )
