"""Choose the storage of memories, and move memories between files and database.

PromptX files are used with a SQLite file, the database with a shared store. Rows in a SQLite file come from a
PostgreSQL backup and become files at the next start. Files in a workspace become rows at their next use, or by
`take_all_over`.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from sqlalchemy import Connection

from agentic_rag.roles.memory_store import DatabaseStock, engram_of, take_over
from agentic_rag.store import domains, memories
from agentic_rag.store.database import Database
from agentic_rag.store.memories import EngramRecord, MemoryRecord
from mcp_servers.promptx.errors import MemoryFault
from mcp_servers.promptx.memory import SHELF, Memory, MemoryCache, memory_folder
from mcp_servers.promptx.memory_cache import FILES
from mcp_servers.safe_files import Folder

CLOSE_SECONDS = 10.0
"""How long the end of the process waits to store recall counts."""

log = logging.getLogger(__name__)


async def open_shelf(stack: AsyncExitStack, database: Database) -> MemoryCache:
    """Return the memories of a server on this database, after moving those in the wrong place.

    Raises:
        StorageError: the database cannot be used.
    """
    if database.server is None:
        await return_to_files(database)
        return SHELF
    shelf = MemoryCache(DatabaseStock(database))

    async def close() -> None:
        # Recall counts are a convenience: a database that does not answer must not keep the process alive.
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            await anyio.to_thread.run_sync(shelf.close, abandon_on_cancel=True)

    stack.push_async_callback(close)
    return shelf


async def return_to_files(database: Database) -> None:
    """Write the memories in a SQLite file as PromptX files, and delete their rows.

    After a crash a memory may be in both places; the next start continues, and each id is added once. Memories that
    cannot be written stay in the database.
    """
    for memory in await database.read(memories.list_all):
        workspace, engrams = await database.read(partial(_read, memory))
        try:
            if workspace:
                await anyio.to_thread.run_sync(_write_files, Path(workspace), memory, engrams)
        except (MemoryFault, OSError) as exc:
            log.warning("the memory %s of role %s stays in the database: %s", memory.id, memory.role, exc)
            continue
        # After the files: a crash before this line leaves both, and the next start adds nothing twice.
        await database.write(partial(_delete, memory), durable=True)


def _read(memory: MemoryRecord, conn: Connection) -> tuple[str, list[EngramRecord]]:
    domain = domains.get(conn, memory.domain_id)
    return "" if domain is None else domain.workspace, memories.engrams_of(conn, memory.id)


def _delete(memory: MemoryRecord, conn: Connection) -> None:
    memories.delete(conn, memory.id)


def _write_files(workspace: Path, record: MemoryRecord, engrams: Sequence[EngramRecord]) -> None:
    scope = "user" if record.user_id else "domain"
    memory = Memory(memory_folder(workspace, scope, record.user_id, record.role))
    try:
        memory.add([engram_of(engram) for engram in engrams], record.counts)
        memory.save()
    finally:
        memory.close()


async def take_all_over(database: Database) -> int:
    """Move the PromptX files of all workspaces into the database. Returns the number of new engrams.

    A file that cannot be moved is logged and stays.
    """
    added, stock = 0, DatabaseStock(database)
    for domain in await database.read(domains.list_all):
        added += await anyio.to_thread.run_sync(_take_over_workspace, stock, Path(domain.workspace))
    return added


def _take_over_workspace(stock: DatabaseStock, workspace: Path) -> int:
    added = 0
    for folder in _memory_folders(workspace):
        try:
            added += take_over(stock, folder)
        except MemoryFault as exc:
            log.warning("a memory stays in its file: %s", exc)
    return added


def _memory_folders(workspace: Path) -> Iterator[Folder]:
    """Yield the folders of a workspace with PromptX files."""
    promptx = Folder(workspace, (".promptx",))
    users = [entry.name for entry in promptx.at("cognition.user").entries() if entry.kind == "folder"]
    for around in (promptx.at("cognition"), *(promptx.at("cognition.user").at(user) for user in users)):
        for role in FILES.roles(around):
            yield around.at(role)
