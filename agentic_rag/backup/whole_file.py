"""A file that is there whole or not at all: it grows under another name, and is renamed once it is on disk.

Owns that name, its lock (two writers of one file do not meet) and what a killed writer left of it. Everything blocks.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from agentic_rag import failpoints
from agentic_rag.errors import BackupNotWritten, BackupRefused

PART = ".part"


@contextmanager
def write_whole(target: Path, *, replace: bool = False) -> Iterator[FileIO]:
    """Yield the file to write into. Leaving the block puts it in place; an error leaves nothing.

    ``replace``: a file of that name goes.

    Raises:
        BackupRefused: there is a file of that name, or another process writes one.
        BackupNotWritten: the folder or its disk takes nothing.
    """
    draft = _draft_of(target)
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise BackupNotWritten(exc.strerror or "unknown reason", str(target)) from exc
    with FileIO(descriptor, "w") as file:  # without a buffer, whose rest a full disk would refuse once more at the end
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
    """Remove what a killed writer left of one file."""
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
    """Have a folder's names on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_parts(folder: Path) -> None:
    """Remove what killed writers left in a folder; what somebody writes now stays."""
    for draft in folder.glob(f".*{PART}"):
        with suppress(OSError), draft.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.unlink()
