"""The data folder: its lock, its permissions, and the address of its server.

Two files belong to this module. ``lock`` is held by the one process that may write the folder. ``server.json`` tells
the command line where that server listens. Everything in the folder is accessible to the server's user only.
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

from agentic_rag.base.errors import StorageUnavailable, refused_write
from agentic_rag.base.settings import Settings
from agentic_rag.base.startup_errors import (
    BadConfiguration,
    DatabaseMissing,
    DataFolderOwned,
    RestoreUnfinished,
)

log = logging.getLogger(__name__)

OTHERS = stat.S_IRWXG | stat.S_IRWXO
"""Permission bits of the group and of other users."""

WORKERS = "workers"
"""Folder with one subfolder per worker of a server, each laid out like a server's own folder."""
FILES = (
    *("lock", "name", "server.json", "secret.key"),
    *("agentic-rag.db", "agentic-rag.db-wal", "agentic-rag.db-shm", "agentic-rag.db-journal"),
)
FOLDERS = ("workspaces", "payloads", "index", "incoming", "imports", "mcp", "backups", WORKERS)
"""Names in the data folder that must be files, and names that must be folders, if they exist."""
RESTORE_MARK = "restore.json"
"""Marks a data folder with a partly restored backup. No server starts on such a folder."""

SPARE, SPARE_FILES, SPARE_BYTES = "spare", 4, 16 * 1024
"""Folder with files that reserve disk space and inodes. A start on a full disk frees them (`give_way`)."""
SPARE_ROOM = 4 * 1024 * 1024
"""Free bytes that the disk must have before space is reserved."""

LENT = OTHERS | stat.S_ISUID | stat.S_ISGID
"""Permission bits that no file may have: access for others, setuid and setgid."""


def open_command(data: Path) -> str:
    """Return the shell command that signs in a browser of this machine, runnable from any folder."""
    program = Path(sys.executable).with_name("agentic-rag")
    words = [str(program)] if program.exists() else [sys.executable, "-m", "agentic_rag.cli"]
    return shlex.join([*words, "open", "--data", str(data.absolute())])


@dataclass(slots=True)
class DataFolder:
    """A folder that this process owns until `release`. If the process dies, the kernel drops the lock.

    ``shared`` is the data folder that several servers of one database use; then ``path`` is this server's own folder
    beside it. ``name`` is the name of this server's subfolders in the shared folder.
    """

    path: Path
    _lock: IO[str]
    shared: Path | None = None
    name: str = ""
    _sharing: IO[str] | None = None

    @classmethod
    def of(cls, settings: Settings) -> "DataFolder":
        """Lock the data folder for this process alone or, if the settings say so, share it with other servers.

        Raises:
            BadConfiguration: a local folder is set, but the database is a SQLite file in the data folder.
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
        """Share the data folder unless another process has locked it exclusively. Raises as `own`."""
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
        """Folder for unfinished uploads, on the same disk as the workspaces."""
        return (self.shared or self.path) / "incoming" / self.name

    @property
    def imports(self) -> Path:
        """Folder for bundles during an import, on the same disk as the workspaces."""
        return (self.shared or self.path) / "imports" / self.name

    @classmethod
    def own(cls, path: Path, *, restoring: bool = False) -> "DataFolder":
        """Create the folder if needed, restrict it to its owner and lock it.

        Also sets the umask, so that files of this process and its children are accessible to its user only. Set
        ``restoring`` to restore a backup into the folder.

        Raises:
            DataFolderOwned: another process has locked the folder.
            RestoreUnfinished: the folder holds a partly restored backup.
            BadConfiguration: the path cannot be a folder, or an entry in the folder has the wrong kind.
            StorageUnavailable: the folder cannot be created or written now. The disk may be mounted later.
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
        # Importing the store takes half a second, and most users of this module are commands that only find a server.
        from agentic_rag.store.clock import now

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
        """Reserve some disk space, if there is enough, because SQLite needs files of its own to open a database."""
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
        """Delete the space that `keep_spare` reserved. Returns whether there was any."""
        removed = False
        for number in range(SPARE_FILES):
            with suppress(OSError):
                (self.path / SPARE / str(number)).unlink()
                removed = True
        return removed

    def announce(self, url: str, key: str) -> None:
        """Write the server's address and key to ``server.json`` for the command line.

        Only the server's user can read the file.

        Raises:
            OSError: the file cannot be written. Any file of an earlier server is removed.
        """
        target = self.path / "server.json"
        target.unlink(missing_ok=True)  # frees space on a full disk
        draft = target.with_suffix(".new")
        draft.unlink(missing_ok=True)
        # Created with its mode: a file that is closed to others later was open to them for a moment.
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump({"url": url, "pid": os.getpid(), "key": key}, file)
        draft.replace(target)

    def release(self) -> None:
        """Release the folder. Idempotent."""
        if not self._lock.closed:
            self.keep_spare()  # the next start may find the disk full
            with suppress(OSError):  # a folder that turned read-only
                (self.path / "server.json").unlink(missing_ok=True)
                self._lock.truncate(0)
            self._lock.close()
        if self._sharing is not None:
            self._sharing.close()


def _open_lock(path: Path) -> IO[str] | None:
    """Open the lock of a shared folder, or return None if the folder is not writable and can only be read."""
    try:
        return (path / "lock").open("a+", encoding="utf-8")
    except OSError as exc:
        log.error("%s takes nothing now: %s", path, exc.strerror)
        return None


def _name_of(own: Path) -> str:
    """Return the name of a process's subfolders in a shared folder. Each local folder keeps its name across starts."""
    place = own / "name"
    try:
        return place.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        from agentic_rag.store.clock import new_id

        name = new_id("server")
        draft = place.with_suffix(".new")
        draft.write_text(name, encoding="ascii")
        draft.replace(place)
        return name


def _backup_of(mark: Path) -> str:
    try:
        return str(json.loads(mark.read_text(encoding="utf-8"))["backup"])
    except (OSError, ValueError, KeyError, TypeError):
        return "a backup"


def check_database(path: Path) -> None:
    """Refuse to start with a missing or empty database if the data folder was used before.

    ``path`` is the file of the database. A running server creates the evidence only after its first document or its
    first stored tool result.

    Raises:
        DatabaseMissing: stored results or an index exist, but the database is missing or empty.
    """
    # After a kill before the first checkpoint, all records are in the write-ahead log, and the file is empty.
    journal = path.with_name(f"{path.name}-wal")
    if path.exists() and (path.stat().st_size or (journal.exists() and journal.stat().st_size)):
        return
    for name in ("payloads", "index"):
        folder = path.parent / name
        if folder.is_dir() and any(folder.iterdir()):
            raise DatabaseMissing(str(path), str(folder))


def _error_of(path: Path, exc: OSError) -> BadConfiguration | StorageUnavailable:
    """Return the error for an unusable data folder.

    The error is permanent if the path is wrong, and retryable if a disk may be mounted later.
    """
    problem = f"{path} cannot be used: {exc.strerror}"
    in_its_place = any(os.path.exists(parent) and not os.path.isdir(parent) for parent in (path, *path.parents))
    if in_its_place or exc.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL):
        return BadConfiguration("AGENTIC_RAG_DATA", problem)
    return StorageUnavailable(f"the data folder {problem}")


def _check_kinds(path: Path) -> None:
    """Refuse a folder, pipe or device in place of a file, and a file in place of a folder.

    Otherwise another program would fail later with a worse message, or block on a pipe.
    """
    for names, fits, expected in ((FILES, stat.S_ISREG, "a file"), (FOLDERS, stat.S_ISDIR, "a folder")):
        for file_path in (path / name for name in names):
            try:
                mode = file_path.stat().st_mode
            except FileNotFoundError:
                continue
            if not fits(mode):
                kind = next((words for is_it, words in _KINDS if is_it(mode)), "something else")
                problem = f"{file_path} is {kind} and must be {expected}: move it away, or put a backup in its place"
                raise BadConfiguration("AGENTIC_RAG_DATA", problem)


_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISREG, "a file"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def _close_to_others(path: Path) -> None:
    """Remove access of other users to a folder. The modes of files in it do not matter then."""
    mode = path.stat().st_mode
    if mode & OTHERS:
        try:
            path.chmod(stat.S_IMODE(mode) & ~OTHERS)
        except PermissionError:
            log.warning("other users of this machine can look into %s, which is not ours: chmod 700 it", path)
        else:
            log.warning("other users of this machine could look into %s; it is closed to them now", path)


def lent_files(path: Path, *, repair: bool = False) -> list[str]:
    """Return the paths below a data folder that other users may access or run as the owner.

    Paths are sorted and relative to the folder; ``""`` is the folder itself. ``repair`` removes these permissions.
    Symbolic links are not followed. Blocks while it checks every file.
    """
    return sorted(_lend_nothing(path, repair=repair))


def _lend_nothing(path: Path, *, repair: bool) -> Iterator[str]:
    for folder, _, names, descriptor in os.fwalk(path):
        place = os.path.relpath(folder, path)
        for name in (".", *names):
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if not status.st_mode & LENT or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                continue
            lent = os.path.normpath(os.path.join(place, name))
            yield "" if lent == "." else lent
            if repair:
                _take_back(name, descriptor)


def _take_back(name: str, folder: int) -> None:
    """Remove the permissions of an open file, so that a symbolic link put in its place is not followed."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode) & ~LENT)
    finally:
        os.close(descriptor)


def find_owner(path: Path) -> str | None:
    """Return the owner of the folder, or None if it has no owner or does not exist."""
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
    """Return the address of the server that owns the folder, or None if no server listens yet."""
    return _read_announcement(path, "url")


def find_key(path: Path) -> str | None:
    """Return the key that the folder's own user sends to that server."""
    return _read_announcement(path, "key")


def _read_announcement(path: Path, name: str) -> str | None:
    """Return a value from the announcement of the server or of one of its workers, which all announce the same."""
    for folder in (path, *sorted((path / WORKERS).glob("*"))):
        if find_owner(folder) is None:
            continue  # the announcement of a process that has ended
        with suppress(OSError, ValueError, KeyError):
            return str(json.loads((folder / "server.json").read_text(encoding="utf-8"))[name])
    return None


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The candidates for the server's own address.

    ``public`` is the operator's setting or empty. ``local`` is the configured address, None if other machines reach it.
    """

    public: str
    local: str | None
    data: Path

    @property
    def url(self) -> str | None:
        """See `OwnAddress.url`.

        The address that a running server announced beats the settings, whose port may be any.
        """
        if self.public or self.local is None:
            return self.public or None
        return find_server(self.data) or self.local
