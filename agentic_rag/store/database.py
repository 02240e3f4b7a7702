"""The database as its callers see it: run a function in one transaction.

This module chooses the database and maps its errors. All queries of the product are plain functions of a `Connection`
in this package's modules. Callers compose them in one function and pass that function here. Therefore no caller,
cancelled or failing, can leave half a transaction behind.
"""

import asyncio
import functools
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import Connection, String
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from agentic_rag.base import failpoints
from agentic_rag.base.errors import StorageDamaged, StorageError, StorageFull, StorageUnavailable
from agentic_rag.base.health_signals import Outcomes
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.store.clock import advance_ids
from agentic_rag.store.migrations import OWN, Revisions, version
from agentic_rag.store.raw_tables import Work
from agentic_rag.store.record import METADATA
from agentic_rag.store.sqlite import BUSY_SECONDS, SqliteFile

if TYPE_CHECKING:
    from agentic_rag.store.postgres import PostgresDatabase

T = TypeVar("T")

_SQLITE_UNWRITABLE = frozenset({8, 10, 13, 14})
"""Primary result codes READONLY, IOERR, FULL, CANTOPEN (sqlite.org/rescode.html)."""
_SQLITE_UNAVAILABLE = frozenset({5, 6})
"""Primary result codes BUSY, LOCKED."""
_SQLITE_DAMAGED = frozenset({11, 26})
"""Primary result codes CORRUPT, NOTADB."""
_POSTGRES_UNWRITABLE = frozenset({"25006", "53100", "58030"})
"""SQLSTATEs read_only_sql_transaction, disk_full, io_error (PostgreSQL manual, appendix A)."""
_POSTGRES_UNAVAILABLE = ("08", "40", "53", "55", "57")
"""SQLSTATE classes: connection lost, transaction rolled back, too few resources, object in use, operator intervention.
"""


class Database:
    """Runs functions of a `Connection` in transactions. Use `open` to create one.

    A function runs in another thread (SQLite) or greenlet (PostgreSQL): it must not await, must not touch the event
    loop, and must not keep the connection. Its return value is returned to the caller. An exception rolls back all its
    writes and is raised to the caller.
    """

    def __init__(self, engine: "SqliteFile | PostgresDatabase") -> None:
        self._engine = engine
        self.name = "sqlite" if isinstance(engine, SqliteFile) else "postgresql"
        self.outcomes = Outcomes()
        """The results of the most recent writes."""

    @classmethod
    async def open(cls, url_or_path: str | Path, revisions: Revisions = OWN, *, schema: str = "") -> "Database":
        """Open a SQLite file (a path) or a PostgreSQL database (``postgresql://…``) and migrate its tables.

        ``revisions`` are the migrations; only tests pass others than this program's. ``schema`` is a PostgreSQL schema,
        for tables next to those of a server.

        Raises:
            BadConfiguration: another kind of URL, PostgreSQL refuses, or a newer version of the product wrote the
                tables.
            StorageDamaged: the SQLite file is no database, or a part of it is missing.
            StorageUnavailable: another process locks the SQLite file, or PostgreSQL cannot be reached.
            StorageFull: the SQLite file cannot be created or written.
        """
        where = str(url_or_path)
        if is_server(url_or_path):
            # Imported here because only PostgreSQL needs asyncpg and SQLAlchemy's asyncio.
            from agentic_rag.store.postgres import PostgresDatabase

            try:
                database = cls(await PostgresDatabase.open(where, revisions, schema))
            except (OSError, DBAPIError) as exc:
                raise _error_of_opening(exc) from exc
            return await database._advance_ids(revisions)
        if "://" in where:
            raise BadConfiguration("AGENTIC_RAG_DATABASE_URL", "only postgresql://… (or nothing, for SQLite) is known.")
        try:
            database = cls(await SqliteFile.open(Path(where), revisions))
        except DBAPIError as exc:
            problem = f"{where} cannot be used: {exc.orig}"
            raise (_error_of(exc) or BadConfiguration("AGENTIC_RAG_DATA", problem)) from exc
        return await database._advance_ids(revisions)

    async def _advance_ids(self, revisions: Revisions) -> "Database":
        """Make new ids sort after all stored ids, because the clock may have been set back since those were created."""
        if revisions is OWN:
            with suppress(StorageError, DBAPIError):  # a damaged file is served as far as it can be read
                newest = await self.read(lambda conn: conn.exec_driver_sql(_newest_ids()).scalars().all(), single=True)
                for newest_id in newest:
                    advance_ids(newest_id or "")
        return self

    def set_option(self, name: str, value: object) -> None:
        """Set an execution option that functions can read from their connection's engine."""
        self._engine.set_option(name, value)

    @property
    def server(self) -> "PostgresDatabase | None":
        """The PostgreSQL database, for features that only PostgreSQL has; None for a SQLite file."""
        return None if isinstance(self._engine, SqliteFile) else self._engine

    @property
    def shared(self) -> bool:
        """Whether other processes may use the database; a SQLite file belongs to the owner of its data folder."""
        return not isinstance(self._engine, SqliteFile)

    async def write(self, fn: Callable[[Connection], T], *, durable: bool = False) -> T:
        """Run ``fn`` in a writing transaction and return its result after the commit.

        ``durable``: the commit, and every earlier commit, survives a power loss (fsync). Without it, a commit to a
        SQLite file survives only the end of this process; PostgreSQL's commits survive in any case. Writes to SQLite
        run one after the other, in order.

        Cancelling the call leaves the result *unknown*, not *undone*: a transaction that has begun runs to its end.

        Raises:
            StorageFull: disk full, read-only or failing; nothing was stored.
            StorageUnavailable: another process holds the file, or PostgreSQL does not answer; the result of a commit in
                progress is unknown.
            StorageDamaged: a needed part of the SQLite file cannot be read.
            IntegrityError: SQLAlchemy's, where ``fn`` documents it.
        """

        def transaction(conn: Connection) -> T:
            failpoints.reached("commit.begin")
            result = fn(conn)
            failpoints.reached("commit.ready")
            return result

        try:
            with storage_errors():
                result = await self._engine.write(transaction, durable=durable)
        except StorageError as exc:
            self.outcomes.note_failure(time.time(), exc.code, str(exc))
            raise
        self.outcomes.note_success(time.time())
        failpoints.reached("commit.done")
        return result

    async def change_all(self, fn: Work[T]) -> T:
        """Run ``fn`` in one durable transaction without a time limit, to replace the whole content.

        The caller ensures that no other process uses the database meanwhile.

        Raises:
            StorageError: as in `write`.
        """
        with storage_errors():
            if isinstance(self._engine, SqliteFile):
                return await self._engine.write(fn, durable=True)
            return await self._engine.change_all(fn)

    async def read(self, fn: Callable[[Connection], T], *, single: bool = False) -> T:
        """Run ``fn`` on one consistent snapshot that holds every earlier committed write; ``fn`` cannot write.

        ``single``: ``fn`` runs one statement, for which PostgreSQL needs no transaction. In hot code this saves two
        thirds of the cost of a read.

        Raises:
            StorageError: as in `write`.
        """
        with storage_errors():
            if isinstance(self._engine, SqliteFile):
                return await self._engine.read(fn)
            return await self._engine.read(fn, single=single)

    async def aclose(self) -> None:
        """Finish the pending writes and close all connections."""
        await self._engine.aclose()


def is_server(url_or_path: str | Path) -> bool:
    """Return whether this is the address of a PostgreSQL database rather than the path of a SQLite file."""
    return str(url_or_path).startswith(("postgresql://", "postgres://", "postgresql+asyncpg://"))


async def find_revision(url_or_path: str | Path) -> str | None:
    """Return the revision of a database's tables without changing them, or None if there are no tables yet.

    Raises:
        StorageError, BadConfiguration: as `Database.open`.
    """
    if is_server(url_or_path):
        from agentic_rag.store.postgres import PostgresDatabase

        engine = PostgresDatabase(str(url_or_path))
        try:
            return await engine.read(version)
        except (OSError, DBAPIError) as exc:
            raise _error_of_opening(exc) from exc
        finally:
            await engine.aclose()
    return await asyncio.to_thread(_revision_of_file, Path(url_or_path))


def _revision_of_file(path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as conn:
            there = conn.execute("SELECT count(*) FROM sqlite_master WHERE name = 'alembic_version'").fetchone()[0]
            row = conn.execute("SELECT version_num FROM alembic_version").fetchone() if there else None
    except sqlite3.Error as exc:
        if exc.sqlite_errorcode & 0xFF in _SQLITE_DAMAGED:
            raise StorageDamaged(str(exc)) from exc
        if exc.sqlite_errorcode & 0xFF in _SQLITE_UNWRITABLE:
            raise StorageFull(str(exc)) from exc
        raise StorageUnavailable(str(exc)) from exc
    return None if row is None else str(row[0])


@contextmanager
def storage_errors() -> Iterator[None]:
    """Translate database exceptions raised inside into the product's errors."""
    try:
        yield
    except DBAPIError as exc:
        if (error := _error_of(exc)) is not None:
            raise error from exc
        raise
    except PoolTimeout as exc:
        raise StorageUnavailable("all connections are in use") from exc
    except TimeoutError as exc:  # also an OSError, but without a message
        raise StorageUnavailable("it took too long") from exc
    except OSError as exc:  # raised by asyncpg while connecting
        raise StorageUnavailable(str(exc)) from exc


@functools.cache
def _newest_ids() -> str:
    """Return a statement for the greatest id of each table. SQLAlchemy would take 30 ms to compile it at each start."""
    tables = METADATA.tables.values()
    named = [table.name for table in tables if "id" in table.c and isinstance(table.c.id.type, String)]
    return " UNION ALL ".join(f'SELECT max(id) FROM "{name}"' for name in named)


def _error_of_opening(exc: OSError | DBAPIError) -> StorageError | BadConfiguration:
    """Return the product's error for a failed connection to PostgreSQL: unavailable for now, or refused."""
    cause = exc.orig if isinstance(exc, DBAPIError) else exc
    if isinstance(exc, DBAPIError):
        error = _error_of(exc)
    else:  # if only one side supports TLS, asyncpg reports a failed connection
        error = None if "SSL" in str(exc) else StorageUnavailable(str(exc) or "it took too long")
    return error or BadConfiguration("AGENTIC_RAG_DATABASE_URL", f"PostgreSQL cannot be used: {cause}")


def _error_of(exc: DBAPIError) -> StorageError | None:
    """Return the product's error for a database exception, or None if there is no matching one."""
    primary = getattr(exc.orig, "sqlite_errorcode", -1) & 0xFF
    state = getattr(exc.orig, "sqlstate", None) or ""
    words = str(getattr(exc.orig, "__cause__", None) or exc.orig)  # the message of asyncpg or sqlite3
    if primary in _SQLITE_UNWRITABLE or state in _POSTGRES_UNWRITABLE:
        return StorageFull(words)
    if primary in _SQLITE_DAMAGED:
        return StorageDamaged(words)
    if exc.connection_invalidated or primary in _SQLITE_UNAVAILABLE or state.startswith(_POSTGRES_UNAVAILABLE):
        return StorageUnavailable(words)
    return None
