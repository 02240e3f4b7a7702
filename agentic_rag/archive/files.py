"""Files of archives: written completely or not at all, hashed while being read, and moved durably.

A file grows under a temporary name, and is renamed once its content is on disk. This module owns that name, its lock
(which keeps two writers apart) and the removal of files of killed writers. All functions here block.
"""

import fcntl
import hashlib
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path
from typing import IO

from agentic_rag.base import failpoints
from agentic_rag.base.errors import BackupNotWritten, BackupRefused, disk_errors

CHUNK = 256 * 1024
"""Size in bytes of the pieces in which files are read and written."""
PART = ".part"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file that is missing from an archive, and the reason."""

    name: str
    reason: str


def leads_out(name: str) -> bool:
    """Return whether an archive's name of a file is no path below a folder: absolute, or with ``..`` or NUL in it."""
    return name.startswith("/") or "\0" in name or any(part in ("", ".", "..") for part in name.split("/"))


class HashingReader(io.RawIOBase):
    """The content of a file, counted and hashed while being read."""

    def __init__(self, content: IO[bytes]) -> None:
        self._content = content
        self._digest = hashlib.sha256()
        self.size = 0
        """Number of bytes read so far."""

    @property
    def sha256(self) -> str:
        """The SHA-256 of the bytes read so far, in hexadecimal."""
        return self._digest.hexdigest()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data = self._content.read() if size < 0 else self._content.read(size)
        self._digest.update(data)
        self.size += len(data)
        return data


# Writing


def write_all(file: FileIO, data: "bytes | bytearray | memoryview") -> None:
    """Write all data to an unbuffered file, whose `write` may accept only a part of it.

    Files here are unbuffered because closing a buffered file would fail once more on a full disk.
    """
    unwritten = memoryview(data)
    while unwritten:
        unwritten = unwritten[file.write(unwritten) :]


def write_new(
    path: Path,
    content: IO[bytes] | HashingReader,
    *,
    check_room: Callable[[], None] = lambda: None,
    modified: int | None = None,
    sync: bool = True,
) -> None:
    """Write the content of an archive's member into a new file. Links are not followed.

    ``check_room`` is called before each piece, and may raise an error. ``modified``: time in nanoseconds since 1970.
    ``sync``: the content is on disk when the function returns.

    Raises:
        OSError: the file exists, or cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with FileIO(descriptor, "w") as file:
        while data := content.read(CHUNK):
            check_room()
            write_all(file, data)
        if modified is not None:
            os.utime(descriptor, ns=(modified, modified))
        if sync:
            os.fsync(descriptor)


@contextmanager
def write_whole(target: Path, *, replace: bool = False) -> Iterator[FileIO]:
    """Yield the file to write into; leaving the block renames it to ``target``, and an error removes it.

    ``replace``: an existing file of that name is replaced.

    Raises:
        BackupRefused: the file exists, or another process is writing it.
        BackupNotWritten: the folder or its disk cannot be written.
    """
    draft = _draft_of(target)
    not_written = partial(BackupNotWritten, place=str(target))
    with disk_errors(not_written):
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with FileIO(descriptor, "w") as file:
        if not _lock(file, draft):
            raise BackupRefused(f"{target} is being written by another process.")
        try:
            if target.exists() and not replace:
                raise BackupRefused(f"{target} is there already: choose another name, or move it away.")
            file.truncate(0)
            yield file
            with disk_errors(not_written):
                os.fsync(file.fileno())
                failpoints.reached("backup.synced")
                draft.rename(target)
                failpoints.reached("backup.renamed")
                sync_folder(target.parent)
        except BaseException:
            with suppress(OSError):
                draft.unlink()
            raise
    failpoints.reached("backup.done")


def _lock(file: FileIO, draft: Path) -> bool:
    """Lock a temporary file; False if another process is writing it, or has renamed it since it was opened."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), draft.lstat())
    except OSError:
        return False


def remove_part(target: Path) -> None:
    """Remove the temporary file of a killed writer."""
    _draft_of(target).unlink(missing_ok=True)


def _draft_of(target: Path) -> Path:
    return target.with_name(f".{target.name}{PART}")


def move_durably(source: Path, target: Path) -> None:
    """Rename a file or folder whose content is on disk, and write the new name to disk.

    Raises:
        OSError: the name cannot be changed.
    """
    source.rename(target)
    sync_folder(target.parent)


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
