"""Atomic file creation: a file grows under a temporary name, and is renamed once its content is on disk.

This module owns the temporary name, its lock (which keeps two writers apart) and the removal of files of killed
writers. All functions here block.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from agentic_rag.base import failpoints
from agentic_rag.base.errors import BackupNotWritten, BackupRefused

PART = ".part"


@contextmanager
def write_whole(target: Path, *, replace: bool = False) -> Iterator[FileIO]:
    """Yield the file to write into; leaving the block renames it to ``target``, and an error removes it.

    ``replace``: an existing file of that name is replaced.

    Raises:
        BackupRefused: the file exists, or another process is writing it.
        BackupNotWritten: the folder or its disk cannot be written.
    """
    draft = _draft_of(target)
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise BackupNotWritten(exc.strerror or "unknown reason", str(target)) from exc
    with FileIO(descriptor, "w") as file:  # unbuffered: closing a buffered file would fail once more on a full disk
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            raise BackupRefused(f"{target} is being written by another process.") from exc
        try:
            if target.exists() and not replace:
                raise BackupRefused(f"{target} is there already: choose another name, or move it away.")
            file.truncate(0)
            yield file
            _put_in_place(file, draft, target)
        except BaseException:
            with suppress(OSError):
                draft.unlink()
            raise
    failpoints.reached("backup.done")


def remove_part(target: Path) -> None:
    """Remove the temporary file of a killed writer."""
    _draft_of(target).unlink(missing_ok=True)


def _draft_of(target: Path) -> Path:
    return target.with_name(f".{target.name}{PART}")


def _put_in_place(file: FileIO, draft: Path, target: Path) -> None:
    try:
        os.fsync(file.fileno())
        failpoints.reached("backup.synced")
        draft.rename(target)
        failpoints.reached("backup.renamed")
        sync_folder(target.parent)
    except OSError as exc:
        raise BackupNotWritten(exc.strerror or "unknown reason", str(target)) from exc


def sync_folder(folder: Path) -> None:
    """Write a folder's entries to disk (fsync)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_parts(folder: Path) -> None:
    """Remove the temporary files of killed writers in a folder; files being written are kept."""
    for draft in folder.glob(f".*{PART}"):
        with suppress(OSError), draft.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.unlink()
