"""Connect this process with the other servers of its database: signals, live events and membership.

This module creates and starts these parts in order. With a SQLite file there are none.
"""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from agentic_rag.access.keys import Access
from agentic_rag.base.settings import Settings
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.base.workers import Workers, attempt
from agentic_rag.conversations.naming import Naming
from agentic_rag.directory.directory import Directory
from agentic_rag.domains.vault import Vault
from agentic_rag.operations.cache_invalidation import ReplicaNews
from agentic_rag.operations.members import Members
from agentic_rag.runtime.log.fanout import PostgresFanout
from agentic_rag.runtime.runtime import Runtime
from agentic_rag.runtime.services import Replica
from agentic_rag.runtime.spending import REFRESH_SECONDS, Spending
from agentic_rag.store.database import Database
from agentic_rag.tools.lists import ToolLists
from agentic_rag.tools.pool import McpPool

if TYPE_CHECKING:  # imports the PostgreSQL driver
    from agentic_rag.store.signal_feed import SignalFeed

TAKE_UP_SECONDS = 2.0
"""Interval between searches for turns whose server has died."""


async def open_replica(stack: AsyncExitStack, settings: Settings, database: Database, owner: str) -> Replica:
    """Return this process with its connections to the other servers of the store.

    Raises:
        BadConfiguration: a Redis address is set, but the database is a SQLite file.
    """
    if database.server is None:
        if settings.redis_url:
            raise BadConfiguration(
                "AGENTIC_RAG_REDIS_URL",
                "it carries live events between the servers of one PostgreSQL database, and this server has a SQLite "
                "file of its own. Set AGENTIC_RAG_DATABASE_URL to postgresql://…, or leave this out.",
            )
        return Replica(owner)
    # PostgreSQL's driver and the Redis client are imported only by servers that use them
    from agentic_rag.store.signal_feed import SignalFeed

    feed = await stack.enter_async_context(SignalFeed(database))
    if settings.redis_url:
        from agentic_rag.runtime.log.redis_fanout import RedisFanout

        return Replica(owner, settings.max_turns, feed, RedisFanout(settings.redis_url))

    return Replica(owner, settings.max_turns, feed, PostgresFanout(database.server.notifications))


@dataclass(frozen=True, slots=True)
class SharedStore:
    """This process as a member among the servers of its database."""

    feed: "SignalFeed"
    members: Members

    def connect(
        self,
        workers: Workers,
        directory: Directory,
        vault: Vault,
        access: Access,
        spending: Spending,
        pool: McpPool,
        lists: ToolLists,
        naming: Naming,
    ) -> None:
        """Start the heartbeat, and start to receive the changes that other servers make."""
        news = ReplicaNews(self.feed, directory, vault, access, pool, lists, spending, naming)
        workers.start("hearing of other servers' changes", news.run)
        workers.start("the heartbeat", self.members.run)
        workers.repeat("reading the budgets", spending.refresh, REFRESH_SECONDS, at_once=False)

    def take_up(self, workers: Workers, runtime: Runtime) -> None:
        """Resume the turns of servers that have died, repeatedly."""

        async def take() -> None:
            await runtime.recover()

        workers.repeat("taking up turns", take, TAKE_UP_SECONDS, at_once=False)

    async def drain(self, runtime: Runtime, seconds: float) -> int:
        """Drain as `Runtime.drain` does, and notify the other servers at the same time."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attempt, "telling that this server leaves", self.members.tell_leaving)
            return await runtime.drain(seconds)
        raise AssertionError("unreachable")


def join_store(
    stack: AsyncExitStack, settings: Settings, database: Database, replica: Replica, runtime: Runtime
) -> SharedStore | None:
    """Return this process as a member of its store, or None if the store has no others.

    The stack ends the membership.
    """
    if replica.feed is None:
        return None
    members = Members(database, settings.replica, runtime.owner)
    stack.push_async_callback(members.leave)
    return SharedStore(replica.feed, members)
