"""The storage of memories: PromptX files beside a SQLite file, PostgreSQL for servers that share a store.

`DatabaseStock` implements `mcp_servers.promptx.memory_cache.Stock`.

Recalls run in worker threads. They call the database through its event loop, and block until it answers: never call
this module in the event loop's own thread.

PromptX files that a workspace still has (after the restore of a SQLite server, an import, or a manual copy) are moved
into the database at their next use, or by `take_all_over`. Rows in a SQLite file come from a PostgreSQL backup and
become files at the next start. ``network.json`` and ``state.json`` are not stored, because an export can create them
from the rows.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

import anyio
import anyio.to_thread
from sqlalchemy import Connection

from agentic_rag.base.errors import NotFound, StorageError, StorageFull
from agentic_rag.store import domains, engrams, memories
from agentic_rag.store.columns import BigInt
from agentic_rag.store.database import Database
from agentic_rag.store.engrams import CannotReplace, EngramInsert, EngramLesson, MemoryName, NewerNumber, TooMany
from agentic_rag.store.memories import EngramRecord, MemoryRecord
from agentic_rag.store.raw_tables import Work
from mcp_servers.promptx.errors import BadEngram, MemoryFault, MemoryFull, MemoryUnavailable, UnknownReplaced
from mcp_servers.promptx.ids import is_plain
from mcp_servers.promptx.ledger import (
    COMPANIONS,
    DATABASE,
    EMPTY,
    LOCK_FILE,
    NEWEST,
    SHARING,
    Engram,
    Ledger,
    Lesson,
    NewerEngrams,
    Tip,
    Which,
    file_lock,
    has_memory,
    keywords_of,
    schema_of,
)
from mcp_servers.promptx.memory import SHELF, Memory, MemoryCache, memory_folder
from mcp_servers.promptx.memory_cache import FILES, CachedMemory
from mcp_servers.promptx.network import Network, RecallActivation
from mcp_servers.promptx.snapshot import NETWORK, STATE, NetworkFile, read_network
from mcp_servers.safe_files import Folder

T = TypeVar("T")

READ_SECONDS = 10.0
"""Time limit of one read. Writes have the database's own limit."""
CALL_SECONDS = 45.0
"""Maximum time a thread waits for the event loop; longer than any read or write."""
CLOSE_SECONDS = 10.0
"""How long the end of the process waits to store recall counts."""
ROWS = 1000
"""Rows per query when a whole memory is read."""
TAKEN = 500
"""Engrams per transaction when a file is moved."""
LEFT_OUT = "engrams.left-out.db"
"""Backup of a file that could not be moved completely, for its owner."""
LARGEST = 2**63 - 1

log = logging.getLogger(__name__)


class DatabaseStock:
    """The memories in a database. Create it in the event loop that uses the database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._loop = asyncio.get_running_loop()

    def prepare(self, folder: Folder) -> None:
        take_over(self, folder)

    def place(self, folder: Folder) -> CachedMemory:
        ledger = DatabaseLedger(self, folder)
        return CachedMemory(ledger, ledger, DatabaseCounts(self, folder))

    def has(self, folder: Folder) -> bool:
        self.prepare(folder)
        name = name_of(folder)
        return self.read(folder, lambda conn: engrams.counts(conn, name)) is not None

    def roles(self, around: Folder) -> list[str]:
        # Files that PromptX left in the workspace are moved before the database is asked.
        for role in FILES.roles(around):
            self.prepare(around.at(role))
        name = name_of(around.at("any"))
        return self.read(around, lambda conn: engrams.roles(conn, name.workspace, name.user_id))

    def remove(self, around: Folder) -> None:
        name = name_of(around.at("any"))

        def work(conn: Connection) -> None:
            with suppress(NotFound):  # deleting the domain deleted its memories
                memories.delete_of(conn, engrams.domain_id_of(conn, name.workspace), name.user_id)

        FILES.remove(around)
        self.write(around, work)

    def read(self, folder: Folder, work: Work[T]) -> T:
        """Read in one transaction. ``folder`` names the memory in errors.

        Raises:
            MemoryUnavailable: the database does not answer.
        """

        async def within() -> T:
            with anyio.fail_after(READ_SECONDS):
                return await self._database.read(work)

        return self._call(folder, within())

    def write(self, folder: Folder, work: Work[T]) -> T:
        """Write in one durable transaction. An exception in ``work`` rolls back.

        Raises:
            MemoryUnavailable: the database does not answer, or the folder's workspace belongs to no domain.
        """
        return self._call(folder, self._database.write(work, durable=True))

    def _call(self, folder: Folder, answer: Coroutine[object, object, T]) -> T:
        try:
            # The promptx server works in threads, and the database belongs to the event loop.
            return asyncio.run_coroutine_threadsafe(answer, self._loop).result(CALL_SECONDS)
        except StorageFull as exc:
            raise MemoryUnavailable(folder.path, "the database cannot be written") from exc
        except (StorageError, TimeoutError) as exc:
            raise MemoryUnavailable(folder.path, "the database does not answer") from exc
        except (RuntimeError, CancelledError) as exc:  # the event loop has ended or is ending
            answer.close()
            raise MemoryUnavailable(folder.path, "the database is closed") from exc
        except NotFound as exc:
            raise MemoryUnavailable(folder.path, "its domain is not there") from exc


def name_of(folder: Folder) -> MemoryName:
    """Return the memory name of a folder from `mcp_servers.promptx.memory.memory_folder`."""
    _, layout, *users, role = folder.inner
    return MemoryName(str(folder.root), unquote(users[0]) if layout == "cognition.user" else "", role)


class DatabaseLedger:
    """The engrams of one memory. Implements `mcp_servers.promptx.memory_cache.EngramLedger`.

    See `Ledger` for the methods.

    Stateless: one object can read and write.
    """

    def __init__(self, stock: DatabaseStock, folder: Folder) -> None:
        self._stock = stock
        self._folder = folder
        self._name = name_of(folder)

    def _read(self, work: Work[T]) -> T:
        return self._stock.read(self._folder, work)

    def reading(self) -> nullcontext[None]:
        """Return a no-op context: rows after the tip are excluded by number, so no transaction is held."""
        return nullcontext()

    def insert(self, new: Sequence[Engram], limit: int | None = None, after: int | None = None) -> int:
        return self._store(new, limit, after, superseding=False)

    def replace(self, new: Sequence[Engram], limit: int | None = None, after: int | None = None) -> int:
        return self._store(new, limit, after, superseding=True)

    def _store(self, new: Sequence[Engram], limit: int | None, after: int | None, *, superseding: bool) -> int:
        records = [EngramInsert(_record(engram), engram.cues) for engram in new]

        def work(conn: Connection) -> int:
            added = engrams.insert(conn, self._name, records, limit, after)
            if superseding:
                engrams.supersede(conn, self._name, [record.record for record in records])
            return added

        try:
            return self._stock.write(self._folder, work)
        except NewerNumber as exc:
            raise NewerEngrams from exc
        except TooMany as exc:
            raise MemoryFull(self._folder.path, limit or 0) from exc
        except CannotReplace as exc:
            old = new[exc.index].replaces
            if not exc.by:
                raise UnknownReplaced(exc.index, old) from exc
            raise BadEngram(exc.index, f"replaces: {old} was replaced before, by {exc.by}.") from exc

    def delete(self, ids: Sequence[str]) -> int:
        plain_ids = [ident for ident in ids if is_plain(ident)]
        # An id that the database refuses as a text cannot be in it.
        return self._stock.write(self._folder, lambda conn: engrams.delete(conn, self._name, plain_ids))

    def tip(self) -> Tip:
        tip = self._read(lambda conn: engrams.tip(conn, self._name))
        return EMPTY if tip is None else Tip(*tip)

    def newest_row(self) -> int:
        return self._read(lambda conn: engrams.newest(conn, self._name))

    def count_since(self, since: Tip, upto: Tip) -> int | None:
        def work(conn: Connection) -> int | None:
            if since != EMPTY and not engrams.has(conn, self._name, since.rowid, since.id):
                return None
            return engrams.count_between(conn, self._name, since.rowid, upto.rowid)

        return self._read(work)

    def lessons(self, after: int, upto: Tip) -> Iterator[Lesson]:
        rows: list[EngramLesson] = []
        while not rows or len(rows) == ROWS:
            # By pages, so that no transaction stays open while the caller works on the rows.
            since = (rows[-1].created_ms, rows[-1].number) if rows else None
            rows = self._read(_lessons_of(self._name, after, upto, since))
            if not rows:
                return
            for row in rows:
                yield row.id, keywords_of(row.cues), (row.type, row.strength, row.created_ms), not row.replaced_by

    def replaced_since(self, after: int, upto: Tip) -> list[Engram]:
        return _engrams(self._read(lambda conn: engrams.replaced_between(conn, self._name, after, upto.rowid)))

    def texts(self, after: int) -> Iterator[tuple[int, str, tuple[str, ...], str]]:
        while rows := self._read(_texts_of(self._name, after)):
            for row in rows:
                yield row.number, row.id, keywords_of(row.cues), row.content
            if len(rows) < ROWS:
                return
            after = rows[-1].number

    def near(self, words: Sequence[str]) -> list[Engram]:
        return _engrams(self._read(lambda conn: engrams.near(conn, self._name, words, SHARING, NEWEST)))

    def fetch(self, ids: Sequence[str]) -> list[Engram]:
        plain_ids = [ident for ident in ids if is_plain(ident)]
        if not plain_ids:
            return []
        records = self._read(lambda conn: engrams.fetch(conn, self._name, plain_ids))
        by_id = {engram.id: engram for engram in _engrams(records)}
        return [by_id[ident] for ident in ids if ident in by_id]

    def strongest(self, limit: int) -> list[Engram]:
        return _engrams(self._read(lambda conn: engrams.strongest(conn, self._name, limit)))

    def page(self, offset: int, limit: int, text: str, which: Which = "current") -> tuple[int, list[Engram]]:
        if not is_plain(text):
            return 0, []
        total, rows = self._read(lambda conn: engrams.page(conn, self._name, text, which, offset, limit))
        return total, _engrams(rows)

    def all(self) -> list[Engram]:
        return _engrams(self._read(lambda conn: engrams.all_of(conn, self._name)))

    def close(self) -> None:
        """Do nothing: nothing is open."""


def _lessons_of(
    name: MemoryName, after: int, upto: Tip, since: tuple[int, int] | None
) -> Callable[[Connection], list[EngramLesson]]:
    return lambda conn: engrams.lessons(conn, name, after, upto.rowid, since, ROWS)


def _texts_of(name: MemoryName, after: int) -> Callable[[Connection], list[EngramRecord]]:
    return lambda conn: engrams.list_after(conn, name, after, ROWS)


class DatabaseCounts:
    """The recall count of each cue. Implements `mcp_servers.promptx.memory_cache.RecallCounts`."""

    def __init__(self, stock: DatabaseStock, folder: Folder) -> None:
        self._stock = stock
        self._folder = folder
        self._name = name_of(folder)

    def is_there(self) -> bool:
        return self.read() is not None

    def lock(self) -> nullcontext[None]:
        """Return a no-op context: counts are added in the database, so no other server's counts are lost."""
        return nullcontext()

    def read(self) -> NetworkFile | None:
        counts = self._stock.read(self._folder, lambda conn: engrams.counts(conn, self._name))
        return None if counts is None else NetworkFile(counts, None)

    def read_changed(self) -> NetworkFile | None:
        return self.read()

    def write(
        self, network: Network, words: Sequence[str], tip: Tip, new_counts: Mapping[str, int], now_ms: int
    ) -> None:
        known_words = frozenset(words)
        self._stock.write(
            self._folder, lambda conn: engrams.add_counts(conn, self._name, new_counts, known_words, tip.rowid)
        )

    def write_state(self, mind: RecallActivation, center: str | None, now_ms: int) -> None:
        """Do nothing: PromptX's state is not kept."""

    def remove_state(self) -> None:
        """Do nothing: there is no state."""


def _record(engram: Engram) -> EngramRecord:
    return EngramRecord(
        memory_id="",
        id=engram.id,
        number=BigInt(0),
        content=engram.content,
        cues=schema_of(engram.cues),
        type=engram.type,
        strength=engram.strength,
        created_ms=BigInt(engram.created_at),
        author=engram.author,
        turn_id=engram.turn,
        replaces=engram.replaces,
        replaced_by=engram.replaced_by,
        proposed=engram.proposed,
    )


def _engrams(records: Sequence[EngramRecord]) -> list[Engram]:
    return [engram_of(record) for record in records]


def engram_of(record: EngramRecord) -> Engram:
    """Return the engram in a record."""
    return Engram(
        record.id,
        record.content,
        record.type,
        record.strength,
        record.created_ms,
        keywords_of(record.cues),
        record.author,
        record.turn_id,
        record.replaces,
        record.replaced_by,
        record.proposed,
    )


def take_over(stock: DatabaseStock, folder: Folder) -> int:
    """Move a PromptX file in a workspace into the database. Returns the number of new engrams.

    After a crash the next use moves the file again; each id is added once. A lock prevents two servers from moving it
    at once, which could restore engrams deleted meanwhile.

    Raises:
        MemoryUnavailable: the file or the database cannot be used.
    """
    if not has_memory(folder):
        return 0
    source = Ledger(folder, read_only=True)
    try:
        with _disk_errors(folder), file_lock(folder, LOCK_FILE):
            # Otherwise another server has moved it.
            return _take_over(stock, folder, source) if has_memory(folder) else 0
    finally:
        source.close()  # needs the lock, too


def _take_over(stock: DatabaseStock, folder: Folder, source: Ledger) -> int:
    all_engrams = source.all()
    good = [engram for engram in all_engrams if _fits(engram)]
    ledger = DatabaseLedger(stock, folder)
    # In several transactions: a large file would block all other writers of the database.
    added = sum(ledger.insert(good[start : start + TAKEN]) for start in range(0, len(good), TAKEN))
    file = read_network(folder)
    _take_counts(stock, folder, {} if file is None else file.frequencies)
    if len(good) < len(all_engrams):
        log.warning("%s: %d engrams are no text that the database takes", folder.path, len(all_engrams) - len(good))
        # The whole file, so that its owner loses nothing.
        folder.write(LEFT_OUT, [folder.read(DATABASE, 1 << 30)])
    # Last: until here a crash repeats everything, and the file is still the source.
    for name in (DATABASE, *COMPANIONS, NETWORK, STATE):
        folder.remove(name)
    log.info("%s: %d engrams were taken into the database", folder.path, added)
    return added


def _take_counts(stock: DatabaseStock, folder: Folder, counts: Mapping[str, int]) -> None:
    """Raise the stored recall counts to those of a file where the file's are greater."""
    name = name_of(folder)

    def work(conn: Connection) -> None:
        there = engrams.counts(conn, name) or {}
        more = {word: number - there.get(word, 0) for word, number in counts.items() if is_plain(word)}
        engrams.add_counts(conn, name, {word: count for word, count in more.items() if count > 0}, frozenset(), -1)

    if counts:
        stock.write(folder, work)


def _fits(engram: Engram) -> bool:
    """Return whether PostgreSQL can store an engram. Another program may have written it without checks."""
    texts = (engram.id, engram.content, engram.type, *engram.cues)
    return all(map(is_plain, texts)) and abs(engram.created_at) <= LARGEST


@contextmanager
def _disk_errors(folder: Folder) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise MemoryUnavailable(folder.path, exc.strerror or type(exc).__name__) from exc


async def open_memory_cache(stack: AsyncExitStack, database: Database) -> MemoryCache:
    """Return the memories of a server on this database, after moving those in the wrong place.

    Raises:
        StorageError: the database cannot be used.
    """
    if database.server is None:
        await return_to_files(database)
        return SHELF
    cache = MemoryCache(DatabaseStock(database))

    async def close() -> None:
        # Recall counts are a convenience: a database that does not answer must not keep the process alive.
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            await anyio.to_thread.run_sync(cache.close, abandon_on_cancel=True)

    stack.push_async_callback(close)
    return cache


async def return_to_files(database: Database) -> None:
    """Write the memories in a SQLite file as PromptX files, and delete their rows.

    After a crash a memory may be in both places; the next start continues, and each id is added once. Memories that
    cannot be written stay in the database.
    """
    for memory in await database.read(memories.list_all):
        workspace, records = await database.read(partial(_read, memory))
        try:
            if workspace:
                await anyio.to_thread.run_sync(_write_files, Path(workspace), memory, records)
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


def _write_files(workspace: Path, memory_record: MemoryRecord, records: Sequence[EngramRecord]) -> None:
    scope = "user" if memory_record.user_id else "domain"
    memory = Memory(memory_folder(workspace, scope, memory_record.user_id, memory_record.role))
    try:
        memory.add([engram_of(record) for record in records], memory_record.counts)
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
