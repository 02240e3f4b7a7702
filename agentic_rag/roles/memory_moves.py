"""Where this server's memories are kept, and the ways from one place to the other.

Owns the choice (PromptX's files beside a SQLite file, the database where servers share one) and what a move leaves to
be done: rows of memories in a SQLite file came with a backup of PostgreSQL, and become files at the next start; files
in a workspace become rows when they are next used, or by `take_all_over`.
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
from mcp_servers.beneath import Folder
from mcp_servers.promptx.errors import MemoryFault
from mcp_servers.promptx.kept import FILES
from mcp_servers.promptx.memory import SHELF, Memory, Shelf, memory_folder

CLOSE_SECONDS = 10.0
"""How long the end of the process waits for the memories' recall counts."""

log = logging.getLogger(__name__)


async def open_shelf(stack: AsyncExitStack, database: Database) -> Shelf:
    """Return the memories of a server on this database; those that are kept where it does not look are brought over.

    Raises:
        StorageError: the database cannot be used.
    """
    if database.server is None:
        await return_to_files(database)
        return SHELF
    shelf = Shelf(DatabaseStock(database))

    async def close() -> None:
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            await anyio.to_thread.run_sync(shelf.close, abandon_on_cancel=True)

    stack.push_async_callback(close)
    return shelf


async def return_to_files(database: Database) -> None:
    """Write the memories that lie in a SQLite file as PromptX's files, and delete their rows.

    A kill leaves a memory in both places, and the next start goes on: ids come once. What cannot be written stays.
    """
    for memory in await database.read(memories.list_all):
        workspace, engrams = await database.read(partial(_read, memory))
        try:
            if workspace:
                await anyio.to_thread.run_sync(_write_files, Path(workspace), memory, engrams)
        except (MemoryFault, OSError) as exc:
            log.warning("the memory %s of role %s stays in the database: %s", memory.id, memory.role, exc)
            continue
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
        memory.add([engram_of(each) for each in engrams], record.counts)
        memory.save()
    finally:
        memory.close()


async def take_all_over(database: Database) -> int:
    """Bring the PromptX files of all workspaces into the database; return how many engrams were new.

    One that cannot be taken over is logged, and stays where it is.
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
    """Yield the folders of a workspace in which PromptX's files lie."""
    promptx = Folder(workspace, (".promptx",))
    users = [each.name for each in promptx.at("cognition.user").entries() if each.kind == "folder"]
    for around in (promptx.at("cognition"), *(promptx.at("cognition.user").at(each) for each in users)):
        for role in FILES.roles(around):
            yield around.at(role)
