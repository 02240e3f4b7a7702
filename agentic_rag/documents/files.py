"""The files of a domain's documents folder: found, hashed, placed and replaced. Blocking.

Owns what of the folder counts. Knows no record.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from agentic_rag.documents.names import numbered
from agentic_rag.errors import StorageFull


def place(source: Path, folder: Path, name: str, *, replace: bool = False) -> Path:
    """Give a received file its place: under a free name, or over the file of that name.

    A link is atomic and never overwrites; a rename is atomic and does.

    Raises:
        StorageFull: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if replace:
            source.replace(folder / name)
            return folder / name
        for candidate in numbered(name):
            try:
                os.link(source, folder / candidate)
            except FileExistsError:
                continue
            return folder / candidate
    except OSError as exc:
        raise StorageFull(exc.strerror or "unknown reason") from exc
    raise AssertionError("numbers do not end")


def files_of(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield path and stamp of the regular files below a folder, relative to it, in order.

    Hidden ones and links do not count.
    """
    for inside, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(inside, name)
            if not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path.relative_to(folder).as_posix(), stamp_of(path)


def stamp_of(path: Path) -> str:
    """Return what changes when a file is written: its size and time. Empty when it is gone."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_size}:{status.st_mtime_ns}"


def hash_of(path: Path) -> tuple[int, str]:
    """Return size and SHA-256 of a file.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()
