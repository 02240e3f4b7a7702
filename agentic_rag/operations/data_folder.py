"""The data folder: who owns it, who may look into it, and where its server listens.

Owns two files: ``lock``, held by the one process that may write the folder, and ``server.json``, by which the
command line finds a running server. Knows nothing of what else lies there, but that it is for our user alone.
"""

import errno
import fcntl
import json
import logging
import os
import shlex
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from agentic_rag.errors import StorageUnavailable, refused_write
from agentic_rag.settings import Settings
from agentic_rag.startup_errors import (
    BadConfiguration,
    DatabaseMissing,
    DataFolderOwned,
    RestoreUnfinished,
)
from agentic_rag.store.clock import new_id, now

log = logging.getLogger(__name__)

OTHERS = stat.S_IRWXG | stat.S_IRWXO
"""What group and everybody else may do with a file."""

WORKERS = "workers"
"""Holds a folder for each worker of a server, which is as a server's own."""
FILES = (
    *("lock", "name", "server.json", "secret.key"),
    *("agentic-rag.db", "agentic-rag.db-wal", "agentic-rag.db-shm", "agentic-rag.db-journal"),
)
FOLDERS = ("workspaces", "payloads", "index", "incoming", "imports", "mcp", "backups", WORKERS)
"""What of the data folder is a file, and what a folder, if it is there."""
RESTORE_MARK = "restore.json"
"""In a data folder that holds a part of a backup: no server uses it."""

SPARE, SPARE_FILES, SPARE_BYTES = "spare", 4, 16 * 1024
"""A folder with files that hold room and inodes, which a start on a full disk gives to the database (`give_way`)."""
SPARE_ROOM = 4 * 1024 * 1024
"""Bytes that the disk has to have left before room is kept."""

LENT = OTHERS | stat.S_ISUID | stat.S_ISGID
"""What no file of the data folder has: nobody else reads it, and none runs as its owner for somebody else."""


def open_command(data: Path) -> str:
    """Return the command that signs a browser of this machine in, as it works from any folder."""
    program = Path(sys.executable).with_name("agentic-rag")
    words = [str(program)] if program.exists() else [sys.executable, "-m", "agentic_rag.cli"]
    return shlex.join([*words, "open", "--data", str(data.absolute())])


@dataclass(slots=True)
class DataFolder:
    """A folder this process owns until `release` (or its death: the kernel drops the lock).

    ``shared``: the data folder, which other servers of one database use, too, where ``path`` is beside it;
    ``name``: what this process's own part of it is called.
    """

    path: Path
    _lock: IO[str]
    shared: Path | None = None
    name: str = ""
    _sharing: IO[str] | None = None

    @classmethod
    def of(cls, settings: Settings) -> "DataFolder":
        """Take the data folder for this process, or together with others, as the settings say.

        Raises:
            BadConfiguration: there is a folder of our own beside it, and the database is a SQLite file in it.
            DataFolderOwned, RestoreUnfinished, StorageUnavailable: as `own`.
        """
        if settings.local is None or settings.local.resolve() == settings.data.resolve():
            return cls.own(settings.data)
        if not settings.database_url:
            raise BadConfiguration(
                "AGENTIC_RAG_LOCAL",
                "it parts what several servers of one PostgreSQL database share from what they do not, and this server "
                "has a SQLite file of its own. Set AGENTIC_RAG_DATABASE_URL to postgresql://…, or leave this out.",
            )
        self = cls.own(settings.local)
        try:
            self._share(settings.data)
        except BaseException:
            self.release()
            raise
        return self

    def _share(self, path: Path) -> None:
        """Use the data folder as long as nobody has it alone. Raises as `own`."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            _close_to_others(path)
            _check_kinds(path)
            self.name = _name_of(self.path)
            self._sharing = lock = _open_lock(path)
            if lock is not None:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise DataFolderOwned(str(path), "another process, which does not share it") from exc
        except OSError as exc:
            raise _error_of(path, exc) from exc
        if (mark := path / RESTORE_MARK).exists():
            raise RestoreUnfinished(str(path), _backup_of(mark))
        self.shared = path

    @property
    def incoming(self) -> Path:
        """Where uploads grow, on the workspaces' disk."""
        return (self.shared or self.path) / "incoming" / self.name

    @property
    def imports(self) -> Path:
        """Where bundles are taken in, on the workspaces' disk."""
        return (self.shared or self.path) / "imports" / self.name

    @classmethod
    def own(cls, path: Path, *, restoring: bool = False) -> "DataFolder":
        """Make the folder if needed, close it to others and take its lock.

        From then on all that this process and its children write is for its user alone. ``restoring``: the caller
        restores a backup into it.

        Raises:
            DataFolderOwned: another process has it.
            RestoreUnfinished: it holds a part of a backup.
            BadConfiguration: its name is none that a folder can have, or something else stands in place of a file
                or a folder of ours in it.
            StorageUnavailable: it cannot be made or written now; its disk may yet come.
        """
        os.umask(OTHERS)
        try:
            path.mkdir(parents=True, exist_ok=True)
            _close_to_others(path)
            _check_kinds(path)
            lock = (path / "lock").open("a+", encoding="utf-8")
        except OSError as exc:
            raise _error_of(path, exc) from exc
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            lock.seek(0)
            owner = lock.read(200).strip() or "another process"
            lock.close()
            raise DataFolderOwned(str(path), owner) from exc
        if not restoring and (mark := path / RESTORE_MARK).exists():
            lock.close()
            raise RestoreUnfinished(str(path), _backup_of(mark))
        try:
            lock.truncate(0)
            os.write(lock.fileno(), f"process {os.getpid()} (since {now()})".encode())
        except OSError as exc:
            if refused_write(exc) is None:
                lock.close()
                raise _error_of(path, exc) from exc
            log.warning("%s is full: its lock is held, but does not say by which process", path)
        return cls(path, lock)

    def keep_spare(self) -> None:
        """Keep some room of the disk, if it has enough, for the next start: SQLite needs files of its own to read."""
        try:
            status = os.statvfs(self.path)
            plenty = status.f_files == 0 or status.f_favail > 4 * SPARE_FILES
            if status.f_bavail * status.f_frsize < SPARE_ROOM or not plenty:
                return
            (self.path / SPARE).mkdir(exist_ok=True)
            for number in range(SPARE_FILES):
                self._keep_file(self.path / SPARE / str(number))
        except OSError as exc:
            log.debug("no room is kept in %s: %s", self.path, exc.strerror)

    def _keep_file(self, path: Path) -> None:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except FileExistsError:
            return
        try:
            os.posix_fallocate(descriptor, 0, SPARE_BYTES)
        finally:
            os.close(descriptor)

    def give_way(self) -> bool:
        """Give up the room that `keep_spare` has kept; return whether there was any."""
        removed = False
        for number in range(SPARE_FILES):
            with suppress(OSError):
                (self.path / SPARE / str(number)).unlink()
                removed = True
        return removed

    def announce(self, url: str, key: str) -> None:
        """Tell the command line where the server listens and the key it comes in with; only our user reads it.

        Raises:
            OSError: the file cannot be written now; none is left, also not of a server before this one.
        """
        target = self.path / "server.json"
        target.unlink(missing_ok=True)  # on a full disk this makes room for the next one
        draft = target.with_suffix(".new")
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump({"url": url, "pid": os.getpid(), "key": key}, file)
        draft.replace(target)

    def release(self) -> None:
        """Give the folder back. Idempotent."""
        if not self._lock.closed:
            self.keep_spare()
            with suppress(OSError):  # a folder that turned read-only
                (self.path / "server.json").unlink(missing_ok=True)
                self._lock.truncate(0)
            self._lock.close()
        if self._sharing is not None:
            self._sharing.close()


def _open_lock(path: Path) -> IO[str] | None:
    """Open the lock of a shared folder; None for one that takes nothing now: it is read all the same."""
    try:
        return (path / "lock").open("a+", encoding="utf-8")
    except OSError as exc:
        log.error("%s takes nothing now: %s", path, exc.strerror)
        return None


def _name_of(own: Path) -> str:
    """Return what a process's part of a shared folder is called: the same at each start in one folder of its own."""
    place = own / "name"
    try:
        return place.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        name = new_id("server")
        draft = place.with_suffix(".new")
        draft.write_text(name, encoding="ascii")
        draft.replace(place)
        return name


def _backup_of(mark: Path) -> str:
    """Return the backup that a mark names."""
    try:
        return str(json.loads(mark.read_text(encoding="utf-8"))["backup"])
    except (OSError, ValueError, KeyError, TypeError):
        return "a backup"


def check_database(path: Path) -> None:
    """Refuse to begin with an empty database in a folder that one has been used in: nobody would see what is gone.

    ``path``: of the database's file. What is evidence is made by a running server alone, after its first document or
    its first kept result.

    Raises:
        DatabaseMissing: kept results or indexed documents lie beside a database that is missing or empty.
    """
    journal = path.with_name(f"{path.name}-wal")
    if path.exists() and (path.stat().st_size or (journal.exists() and journal.stat().st_size)):
        return
    for name in ("payloads", "index"):
        folder = path.parent / name
        if folder.is_dir() and any(folder.iterdir()):
            raise DatabaseMissing(str(path), str(folder))


def _error_of(path: Path, exc: OSError) -> BadConfiguration | StorageUnavailable:
    """Return whether a folder that cannot be used is named wrongly or not there yet: a disk may still be mounted."""
    problem = f"{path} cannot be used: {exc.strerror}"
    in_its_place = any(os.path.exists(each) and not os.path.isdir(each) for each in (path, *path.parents))
    if in_its_place or exc.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL):
        return BadConfiguration("AGENTIC_RAG_DATA", problem)
    return StorageUnavailable(f"the data folder {problem}")


def _check_kinds(path: Path) -> None:
    """Refuse a folder, pipe or device where a file of ours belongs, and a file where a folder does: each would be met
    later, by a program that says less about it or waits for it.
    """
    for names, fits, expected in ((FILES, stat.S_ISREG, "a file"), (FOLDERS, stat.S_ISDIR, "a folder")):
        for each in (path / name for name in names):
            try:
                mode = each.stat().st_mode
            except FileNotFoundError:
                continue
            if not fits(mode):
                kind = next((words for is_it, words in _KINDS if is_it(mode)), "something else")
                problem = f"{each} is {kind} and must be {expected}: move it away, or put a backup in its place"
                raise BadConfiguration("AGENTIC_RAG_DATA", problem)


_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISREG, "a file"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def _close_to_others(path: Path) -> None:
    """See to it that nobody else enters a folder; what lies in it is then out of reach, whatever its own mode."""
    mode = path.stat().st_mode
    if mode & OTHERS:
        try:
            path.chmod(stat.S_IMODE(mode) & ~OTHERS)
        except PermissionError:
            log.warning("other users of this machine can look into %s, which is not ours: chmod 700 it", path)
        else:
            log.warning("other users of this machine could look into %s; it is closed to them now", path)


def lent_files(path: Path, *, repair: bool = False) -> list[str]:
    """Return what below a data folder other users may read, write or run as its owner; ``""``: the folder itself.

    Sorted, relative to the folder. ``repair``: take that from them. Links are not followed. Blocks for as long as
    looking at each file takes.
    """
    return sorted(_lend_nothing(path, repair=repair))


def _lend_nothing(path: Path, *, repair: bool) -> Iterator[str]:
    for folder, _, names, descriptor in os.fwalk(path):
        place = os.path.relpath(folder, path)
        for name in (".", *names):
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if not status.st_mode & LENT or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                continue
            yield os.path.normpath(os.path.join(place, name)).removeprefix(".")
            if repair:
                _take_back(name, descriptor)


def _take_back(name: str, folder: int) -> None:
    """Change the mode of the very file that was looked at: a link put in its place meanwhile is not followed."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode) & ~LENT)
    finally:
        os.close(descriptor)


def find_owner(path: Path) -> str | None:
    """Return who owns the folder, None when nobody does or it is not there."""
    try:
        with (path / "lock").open(encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return lock.read(200).strip() or "another process"
    except OSError:
        return None
    return None


def find_server(path: Path) -> str | None:
    """Return the address of the server that owns the folder; None when nobody does, or it does not listen yet."""
    return _read_announcement(path, "url")


def find_key(path: Path) -> str | None:
    """Return the key with which the folder's own user comes in to that server."""
    return _read_announcement(path, "key")


def _read_announcement(path: Path, name: str) -> str | None:
    """Return what a server says that has the folder, or one of its workers, all of whom say the same."""
    for folder in (path, *sorted((path / WORKERS).glob("*"))):
        if find_owner(folder) is None:
            continue  # what stands there is from a server that is gone
        with suppress(OSError, ValueError, KeyError):
            return str(json.loads((folder / "server.json").read_text(encoding="utf-8"))[name])
    return None
