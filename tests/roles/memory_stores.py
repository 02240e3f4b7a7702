"""The two stores of memories, for tests: PromptX's files, and a database with its own event loop."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from agentic_rag.roles.memory_store import DatabaseStock
from agentic_rag.store import domains
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.domains import DomainRecord
from mcp_servers.promptx.memory import Memory, MemoryCache, memory_folder
from tests.store.conftest import delete_rows

T = TypeVar("T")
WAIT_SECONDS = 240
ROLE = "assistant"
DOMAIN = "dom_memories"


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(WAIT_SECONDS)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WAIT_SECONDS)
        self.loop.close()


@contextmanager
def open_database(url: str) -> Iterator[tuple[Loop, Database]]:
    loop = Loop()
    try:
        database = loop.run(Database.open(url))
        try:
            yield loop, database
        finally:
            loop.run(database.aclose())
    finally:
        loop.close()


@contextmanager
def open_stock(url: str) -> Iterator[DatabaseStock]:
    """Open the memories in a database as one server does."""

    async def make_stock(database: Database) -> DatabaseStock:
        return DatabaseStock(database)

    with open_database(url) as (loop, database):
        yield loop.run(make_stock(database))


def prepare(url: str, workspace: Path) -> None:
    """Delete all rows of a database and create a domain with that workspace."""
    domain = DomainRecord(
        id=DOMAIN, name="M", settings={}, workspace=str(workspace), created_at=now(), updated_at=now()
    )

    with open_database(url) as (loop, database):
        loop.run(database.write(delete_rows))
        loop.run(database.write(lambda conn: domains.insert(conn, domain)))


class Ground:
    """A workspace and the store of its roles' memories. A test may open it as several servers."""

    def __init__(self, workspace: Path, stack: ExitStack, url: str = "") -> None:
        self.workspace = workspace
        self.url = url
        self._stack = stack

    def shelf(self) -> MemoryCache:
        """Return a memory cache as another server or process has it."""
        cache = MemoryCache(self._stack.enter_context(open_stock(self.url))) if self.url else MemoryCache()
        self._stack.callback(cache.close)
        return cache

    def memory(self, cache: MemoryCache | None = None, role: str = ROLE, user: str = "") -> Memory:
        folder = memory_folder(self.workspace, "user" if user else "domain", user, role)
        return (cache or self.shelf()).memory(folder)
