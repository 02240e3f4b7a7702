"""Making a backup: combines the snapshot, the contents and the file.

A crash at any point leaves the old file of that name, the complete new one, or none.
"""

from pathlib import Path

from sqlalchemy import Connection

from agentic_rag.archive.files import remove_part, write_whole
from agentic_rag.backup.archive import Header, Progress, no_progress, write_archive
from agentic_rag.backup.contents import BackupOptions, BackupSources, read_header, write_contents
from agentic_rag.backup.snapshot import read_snapshot, remove_copy
from agentic_rag.base.errors import BackupRefused
from agentic_rag.store.clock import now


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

        return await read_snapshot(url_or_path, scratch, write)


def remove_leftovers(target: Path) -> None:
    """Remove the files of a killed process that was writing a backup. Blocks."""
    remove_part(target)
    remove_copy(_scratch_of(target))


def _scratch_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.records")
