"""Making a backup: a snapshot of the database, with the files, in one archive.

A crash at any point leaves the old file of that name, the complete new one, or none. The snapshot is consistent while
other processes continue to write. For SQLite, an online backup copies the file next to the backup being made.
PostgreSQL provides one repeatable-read transaction. Neither migrates the tables, and neither blocks other users of the
database.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import anyio.to_thread
from sqlalchemy import URL, Connection, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from agentic_rag.archive.files import remove_part, write_whole
from agentic_rag.backup.archive import Header, Progress, no_progress, write_archive
from agentic_rag.backup.contents import BackupOptions, BackupSources, read_header, write_contents
from agentic_rag.base import failpoints
from agentic_rag.base.errors import BackupNotWritten, BackupRefused, StorageDamaged, StorageUnavailable
from agentic_rag.store.clock import now
from agentic_rag.store.database import is_server, storage_errors
from agentic_rag.store.raw_tables import Work

T = TypeVar("T")

LOCK_SECONDS = 10.0
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


async def make_backup(
    url_or_path: str | Path,
    data: Path,
    target: Path,
    choice: BackupOptions,
    progress: Progress = no_progress,
    *,
    replaces_before: str | None = None,
) -> Header:
    """Write a backup of a data folder and its database, while a server may use both; return its header.

    ``replaces_before``: an existing file may be replaced, and the tables must not have this revision yet.

    Raises:
        BackupRefused: the file exists, another process writes it, or the tables already have that revision.
        BackupNotWritten: there is not enough space.
        StorageError: the database cannot be read.
    """
    scratch = _scratch_of(target)
    began = now()  # the backup is as old as this: commits during the copy may be missing
    with write_whole(target, replace=replaces_before is not None) as file, write_archive(file, target) as out:

        def write(conn: Connection) -> Header:
            header = read_header(conn, data, choice, began)
            if header.revision == replaces_before:
                raise BackupRefused(f"The tables have revision {header.revision} by now.")
            write_contents(conn, out, header, BackupSources(data, scratch), progress)
            return header

        return await _read_snapshot(url_or_path, scratch, write)


def remove_leftovers(target: Path) -> None:
    """Remove the files of a killed process that was writing a backup. Blocks."""
    remove_part(target)
    _remove_copy(_scratch_of(target))


def _scratch_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.records")


async def _read_snapshot(url_or_path: str | Path, scratch: Path, reading: Work[T]) -> T:
    """Run a function on a snapshot of the records. ``scratch``: path for a temporary copy, which is removed.

    Raises:
        StorageError: the database does not exist, is damaged or does not answer.
        BackupNotWritten: there is not enough space for the copy.
    """
    if is_server(url_or_path):
        # imports PostgreSQL's driver
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
    """Provide a copy of a SQLite file in the block, without blocking its writer."""
    _remove_copy(scratch)
    try:
        _copy_file(path, scratch)
        yield
    finally:
        _remove_copy(scratch)


def _copy_file(path: Path, copy: Path) -> None:
    """Copy a SQLite file as of one moment, while its owner continues to write.

    Raises:
        StorageUnavailable: the file does not exist, or is locked for too long.
        StorageDamaged: the file is no database.
        BackupNotWritten: there is not enough space for the copy.
    """
    if not path.is_file():
        raise StorageUnavailable(f"there is no {path}")
    try:
        # Read-only: the last writable connection to close would also checkpoint, in a process that does not own the
        # file.
        with (
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=LOCK_SECONDS)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
            target.execute("PRAGMA journal_mode=DELETE")  # otherwise WAL mode, but the copy has no WAL file
    except sqlite3.Error as exc:
        code = (exc.sqlite_errorcode or 0) & 0xFF
        if code in _FULL:
            raise BackupNotWritten(str(exc), str(copy)) from exc
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise StorageDamaged(str(exc)) from exc
        raise StorageUnavailable(str(exc)) from exc


def _remove_copy(scratch: Path) -> None:
    """Remove the copy of a database, including the partial files of a killed process."""
    for name in ("", "-journal", "-wal", "-shm"):
        scratch.with_name(scratch.name + name).unlink(missing_ok=True)
