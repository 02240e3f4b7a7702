"""The records as of one moment, of a database that others go on writing.

Owns how each kind of database gives that: SQLite by its online backup into a copy beside the backup that is made,
PostgreSQL by one repeatable-read transaction. Neither brings the tables to another version. Nothing waits for it.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import anyio.to_thread
from sqlalchemy import URL, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from agentic_rag import failpoints
from agentic_rag.errors import BackupNotWritten, StorageDamaged, StorageUnavailable
from agentic_rag.store.database import is_server, storage_errors
from agentic_rag.store.raw_tables import Work

T = TypeVar("T")

LOCK_SECONDS = 10.0
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


async def read_snapshot(url_or_path: str | Path, scratch: Path, reading: Work[T]) -> T:
    """Run a function on the records as they are now. ``scratch``: a file that may be made meanwhile, and is removed.

    Raises:
        StorageError: the database is not there, is damaged or does not answer.
        BackupNotWritten: there is no room for the copy.
    """
    if is_server(url_or_path):
        from agentic_rag.store.postgres import PostgresDatabase

        engine = PostgresDatabase(str(url_or_path))
        try:
            with storage_errors():
                return await engine.read(reading)
        finally:
            await engine.aclose()
    return await anyio.to_thread.run_sync(_read_file, Path(url_or_path), scratch, reading)


def _read_file(path: Path, scratch: Path, reading: Work[T]) -> T:
    with _copy(path, scratch):
        failpoints.reached("backup.copied")
        engine = create_engine(
            URL.create("sqlite", database=str(scratch)), poolclass=NullPool, connect_args={"isolation_level": None}
        )
        try:
            with storage_errors(), engine.connect() as conn:
                return reading(conn)
        except DBAPIError as exc:
            raise StorageDamaged(str(exc.orig)) from exc
        finally:
            engine.dispose()


@contextmanager
def _copy(path: Path, scratch: Path) -> Iterator[None]:
    """Have a copy of a SQLite file in the block, which a writer beside it never waits for."""
    remove_copy(scratch)
    try:
        copy_file(path, scratch)
        yield
    finally:
        remove_copy(scratch)


def copy_file(path: Path, copy: Path) -> None:
    """Copy a SQLite file as of one moment; who writes it goes on.

    Raises:
        StorageUnavailable: it is not there, or is locked for too long.
        StorageDamaged: it is no database.
        BackupNotWritten: the copy has no room.
    """
    if not path.is_file():
        raise StorageUnavailable(f"there is no {path}")
    try:
        # Read-only: the last connection that can write would also checkpoint, in a process that does not own the file.
        with (
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=LOCK_SECONDS)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
            target.execute("PRAGMA journal_mode=DELETE")  # it would be the log's, whose file the copy has not
    except sqlite3.Error as exc:
        code = (exc.sqlite_errorcode or 0) & 0xFF
        if code in _FULL:
            raise BackupNotWritten(str(exc), str(copy)) from exc
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise StorageDamaged(str(exc)) from exc
        raise StorageUnavailable(str(exc)) from exc


def remove_copy(scratch: Path) -> None:
    """Remove the copy of a database, whatever a killed process left of it."""
    for name in ("", "-journal", "-wal", "-shm"):
        scratch.with_name(scratch.name + name).unlink(missing_ok=True)
