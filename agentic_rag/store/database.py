"""The database as everybody sees it: run this function whole, in one transaction.

Owns the choice of database and the mapping of its errors. Knows no table. All queries of the product are
plain functions of a `Connection` in this package's modules; callers compose them in one function and hand
that over, so no caller, cancelled or failing, can leave half a transaction.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from agentic_rag.errors import BadConfiguration, StorageFull
from agentic_rag.store.postgres import PostgresDatabase
from agentic_rag.store.sqlite import SqliteFile

T = TypeVar("T")

_SQLITE_UNWRITABLE = frozenset({8, 10, 13, 14})
"""Primary result codes READONLY, IOERR, FULL, CANTOPEN (sqlite.org/rescode.html)."""
_POSTGRES_UNWRITABLE = frozenset({"25006", "53100", "58030"})
"""SQLSTATEs read_only_sql_transaction, disk_full, io_error (PostgreSQL manual, appendix A)."""


class Database:
    """Runs functions of a `Connection` in transactions. Made by `open`.

    A function runs in another thread (SQLite) or greenlet (PostgreSQL): it must not await, must not touch
    the event loop, and must not keep the connection. What it returns is the answer; what it raises undoes
    all it wrote and is raised to the caller.
    """

    def __init__(
        self, engine: SqliteFile | PostgresDatabase, failpoint: Callable[[str], object] = lambda name: None
    ) -> None:
        self._engine = engine
        self._failpoint = failpoint

    @classmethod
    async def open(
        cls, url_or_path: str | Path, *, failpoint: Callable[[str], object] = lambda name: None
    ) -> "Database":
        """Open a SQLite file (a path) or a PostgreSQL database (``postgresql://…``) and migrate its tables.

        ``failpoint`` is called with the name of each place of a write at which a kill must do no harm (tests).

        Raises:
            BadConfiguration: another kind of URL, PostgreSQL cannot be reached, the file is no database or is
                locked by another process, or a newer version of the product wrote the tables.
            StorageFull: the SQLite file cannot be made or written.
        """
        where = str(url_or_path)
        if where.startswith(("postgresql://", "postgres://", "postgresql+asyncpg://")):
            return cls(await PostgresDatabase.open(where), failpoint)
        if "://" in where:
            raise BadConfiguration("AGENTIC_RAG_DATABASE_URL", "only postgresql://… (or nothing, for SQLite) is known.")
        try:
            return cls(await SqliteFile.open(Path(where)), failpoint)
        except DBAPIError as exc:
            error = _mapped(exc)
            if error is exc:
                error = BadConfiguration("AGENTIC_RAG_DATA", f"{where} cannot be used: {exc.orig}")
            raise error from exc

    async def write(self, fn: Callable[[Connection], T], *, durable: bool = False) -> T:
        """Run ``fn`` in a writing transaction and return its result once that is committed.

        ``durable``: the commit, and every one before it, survives a loss of power (fsync). Without it a
        commit survives the end of this process only. Writes to SQLite run one at a time, in order.

        A cancelled call means *unknown*, not *undone*: a transaction that had begun goes on to its end.

        Raises:
            StorageFull: disk full, read-only or failing; nothing was kept.
            IntegrityError: SQLAlchemy's, where the function that was run documents it.
            TimeoutError: PostgreSQL did not answer in `postgres.WRITE_SECONDS`.
        """

        def transaction(conn: Connection) -> T:
            self._failpoint("commit.begin")
            result = fn(conn)
            self._failpoint("commit.ready")
            return result

        try:
            result = await self._engine.write(transaction, durable=durable)
        except DBAPIError as exc:
            raise _mapped(exc) from exc
        self._failpoint("commit.done")
        return result

    async def read(self, fn: Callable[[Connection], T]) -> T:
        """Run ``fn`` on one consistent snapshot that holds every write committed before; it cannot write."""
        return await self._engine.read(fn)

    async def aclose(self) -> None:
        """Finish the writes already asked for and close all connections."""
        await self._engine.aclose()


def _mapped(exc: DBAPIError) -> Exception:
    """Return the product's error for a database's, or the same one when it has none."""
    code = getattr(exc.orig, "sqlite_errorcode", None)
    state = getattr(exc.orig, "sqlstate", None)
    if (code is not None and code & 0xFF in _SQLITE_UNWRITABLE) or state in _POSTGRES_UNWRITABLE:
        return StorageFull(str(getattr(exc.orig, "__cause__", None) or exc.orig))  # asyncpg's own words, or sqlite3's
    return exc
