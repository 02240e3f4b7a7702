"""The folder of a server's own backups, ``{data}/backups``: file names, retention, and the age of the newest backup.

All functions here block.
"""

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from agentic_rag.archive.files import remove_parts

FOLDER = "backups"
ENDING = ".tar.zst"
SKEW_SECONDS = 60.0
"""How far ahead of this clock a file's time may be. Files of a later time were written under a wrong clock."""
_BY_TIME = re.compile(r"agentic-rag-(\d{8}T\d{6})Z(?:-(\d+))?\.tar\.zst")

_BEFORE = re.compile(r"before-[\w.-]+\.tar\.zst", re.ASCII)


@dataclass(frozen=True, slots=True)
class StoredBackup:
    """A backup in a folder; ``modified``: seconds since 1970."""

    path: Path
    modified: float


@dataclass(frozen=True, slots=True)
class BackupFile:
    """A backup in the server's folder.

    ``modified``: seconds since 1970. ``before_upgrade``: the backup holds only the records, as they were before an
    upgrade.
    """

    name: str
    size: int
    modified: float
    before_upgrade: bool


def list_all(folder: Path) -> list[BackupFile]:
    """Return all backups in the server's folder, newest first."""
    backups = []
    for path in folder.glob(f"*{ENDING}"):
        before = _BEFORE.fullmatch(path.name) is not None
        if before or _BY_TIME.fullmatch(path.name):
            with suppress(FileNotFoundError):
                status = path.stat()
                backups.append(BackupFile(path.name, status.st_size, status.st_mtime, before))
    return sorted(backups, key=lambda backup: (backup.modified, backup.name), reverse=True)


def name_by_time(folder: Path) -> Path:
    """Return an unused name for a new backup, made from the current time."""
    stem = time.strftime("agentic-rag-%Y%m%dT%H%M%SZ", time.gmtime())
    names = (folder / f"{stem}{'' if not number else f'-{number}'}{ENDING}" for number in range(1000))
    return next(name for name in names if not name.exists())


def before_upgrade(data: Path, revision: str) -> Path:
    """Return the path of the backup of the records made before an upgrade to ``revision``."""
    return data / FOLDER / f"before-{revision}{ENDING}"


def list_kept(folder: Path) -> list[StoredBackup]:
    """Return the backups that are named after their time, newest first.

    Those of a future time come last. Before new ones, they would be kept and the new ones removed.
    """
    latest = time.strftime("%Y%m%dT%H%M%S", time.gmtime(time.time() + SKEW_SECONDS))
    backups = []
    for path in folder.glob(f"agentic-rag-*{ENDING}"):
        if match := _BY_TIME.fullmatch(path.name):
            with suppress(FileNotFoundError):
                backups.append((match[1], int(match[2] or 0), StoredBackup(path, path.stat().st_mtime)))
    backups.sort(key=lambda backup: (backup[0] <= latest, *backup[:2]), reverse=True)
    return [stored for _, _, stored in backups]


def keep_newest(folder: Path, count: int) -> list[Path]:
    """Remove all but the newest ``count`` backups of a folder, and files of killed writers; return the removed ones."""
    remove_parts(folder)
    removed = [backup.path for backup in list_kept(folder)[count:]]
    for path in removed:
        path.unlink(missing_ok=True)
    return removed


@contextmanager
def alone_in(folder: Path) -> Iterator[bool]:
    """Hold the folder's lock in the block; yields False if another process holds it.

    Of several servers with the same folder, only one writes there.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
