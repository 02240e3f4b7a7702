"""Safe file access in folders that other programs can write to, such as a workspace or a PromptX home.

Owns every system call in these folders. The root of a `Folder` is trusted: the operator or the user named the root,
which may be a link. Nothing below the root is trusted. Each name is opened relative to the descriptor of its folder,
and links are never followed. Only regular files with one name are read. The check uses the open descriptor, so that
swapping a file after the check has no effect. Pipes cannot block these functions. Standard library only.
"""

import errno
import fcntl
import hashlib
import io
import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Kind = Literal["file", "folder", "link", "other"]
"""The type of an entry. ``other``: a pipe, a socket or a device."""
Why = Literal["link", "not-a-file", "not-a-folder", "second-name", "too-large", "outside"]

MAX_DEPTH: Final = 32
"""Most levels of nested folders that are read. Each level keeps one descriptor open."""
MEASURED_DEPTH: Final = 128
"""Most levels of nested folders that `Folder.measure` reads."""
NAME_BYTES: Final = 4096
"""Smallest disk usage counted for an entry, even for an empty file."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_LINUX: Final = sys.platform.startswith("linux")


class Refused(OSError):
    """A name refers to something that is not allowed there. ``strerror`` explains the reason for the folder's owner."""

    def __init__(self, why: Why, words: str, name: str) -> None:
        super().__init__(errno.ELOOP if why == "link" else errno.EINVAL, words, name)
        self.why = why


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """An entry of a folder. ``path`` is relative to the listed folder. ``status`` is set for files only."""

    path: str
    kind: Kind
    status: os.stat_result | None = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def stamp(self) -> str:
        """Size and modification time as a text, which changes when the file is written. Empty for other entries."""
        return "" if self.status is None else f"{self.status.st_size}:{self.status.st_mtime_ns}"


def is_text(name: str) -> bool:
    """Whether a file name is valid UTF-8, so that it can be stored and sent."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Bounded(io.FileIO):
    """A file that raises `Refused` after ``limit`` bytes, independent of the size in its status."""

    def __init__(self, descriptor: int, limit: int, shown: str) -> None:
        super().__init__(descriptor, "rb")
        self._left = limit
        self._limit = limit
        self._shown = shown

    def readinto(self, buffer: "bytearray | memoryview") -> int | None:  # type: ignore[override]
        count = super().readinto(buffer)
        self._left -= count or 0
        if self._left < 0:
            raise Refused("too-large", f"it has more than {_amount(self._limit)}", self._shown)
        return count

    def read(self, size: int | None = -1, /) -> bytes:
        return io.RawIOBase.read(self, -1 if size is None else size) or b""  # FileIO.read would bypass `readinto`

    def readall(self) -> bytes:
        return io.RawIOBase.readall(self) or b""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder below a trusted root, given by its path components. No descriptor stays open between calls.

    ``owned``: refuse a file with a second name (a hard link), because its content may belong somewhere else.
    All methods block and raise `OSError`, or `Refused` if an entry on the path is not allowed. A ``name`` may have
    several components, relative to the folder.
    """

    root: Path
    inner: tuple[str, ...] = ()
    owned: bool = True

    def at(self, name: str) -> "Folder":
        """Return the folder with this name below this one, even if it does not exist. An empty name returns itself."""
        if not name:
            return self
        return Folder(self.root, (*self.inner, *_parts(name)), self.owned)

    @property
    def path(self) -> Path:
        """The folder's path, for messages and comparisons only."""
        return self.root.joinpath(*self.inner)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def parent(self) -> "Folder":
        """The parent folder. The parent of the root is the root."""
        return Folder(self.root, self.inner[:-1], self.owned)

    # -- inspection -------------------------------------------------------------------------------------------

    def is_there(self) -> bool:
        """Whether the folder exists and can be opened without following a link."""
        try:
            with self.descriptor():
                return True
        except OSError:
            return False

    def status(self, name: str) -> os.stat_result | None:
        """Return the status of an entry (of a link itself, not its target), or None if the entry does not exist.

        Raises:
            Refused: a component of the path is not a folder.
        """
        try:
            with self._place(name) as (folder, last):
                return os.stat(last, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def is_file(self, name: str) -> bool:
        """Whether the entry is a regular file that may be read. With ``owned``, the file must have one name only."""
        try:
            status = self.status(name)
        except OSError:
            return False
        return status is not None and _problem(status, self.owned) is None

    def check(self, name: str) -> os.stat_result | None:
        """Return the status of a file that may be read, or None if the file does not exist.

        Raises:
            Refused: the entry is not a file that may be read.
        """
        status = self.status(name)
        if status is not None:
            self._refuse_unfit(status, name)
        return status

    def entries(self) -> list[FolderEntry]:
        """Return the folder's entries, sorted by name; empty if the folder does not exist."""
        try:
            with self.descriptor() as folder:
                return _scan(folder, "")
        except FileNotFoundError:
            return []

    def walk(self, *, hidden: bool = True) -> Iterator[FolderEntry]:
        """Yield all entries below this folder except folders: each folder's entries in order, then its subfolders.

        ``hidden``: False skips names that begin with a dot. Folders deeper than `MAX_DEPTH` are always skipped.
        """
        try:
            with self.descriptor() as folder:
                yield from _walk(folder, "", hidden, MAX_DEPTH)
        except FileNotFoundError:
            return

    def measure(self, most: int) -> int:
        """Return the disk usage of everything below this folder, in bytes. Each entry counts at least `NAME_BYTES`.

        The method stops as soon as the sum exceeds ``most``. It also returns more than ``most`` if the usage cannot be
        measured: below `MEASURED_DEPTH` levels, and in an unreadable folder that this process's user owns.
        """
        try:
            with self.descriptor() as folder:
                return _measure(folder, most, MEASURED_DEPTH)
        except FileNotFoundError:
            return 0

    # -- reading ----------------------------------------------------------------------------------------------

    def open(self, name: str, limit: int | None = None) -> io.BufferedReader:
        """Open a file for reading. Reading more than ``limit`` bytes raises `Refused`."""
        descriptor = self._open_file(name, os.O_RDONLY)
        if limit is None:
            return open(descriptor, "rb")
        return io.BufferedReader(_Bounded(descriptor, limit, name))

    def read(self, name: str, limit: int) -> bytes:
        """Return the content of a file of at most ``limit`` bytes."""
        with self.open(name, limit) as file:
            return file.read()

    def hash(self, name: str) -> tuple[int, str]:
        """Return the size and SHA-256 of a file."""
        with self.open(name) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return file.tell(), digest

    # -- writing ----------------------------------------------------------------------------------------------

    def make(self) -> None:
        """Create the folder and its parents if they are missing."""
        with self.descriptor(make=True):
            pass

    def write(self, name: str, content: Iterable[bytes], *, durable: bool = True, sweep: bool = False) -> None:
        """Write a file atomically: readers see the old or the new content, even if the process is killed.

        ``durable``: sync the file and its folder to disk.
        ``sweep``: remove temporary files of earlier writers of this name that were killed. The caller must hold a lock
        that keeps other writers of this name away.
        """
        with self._place(name, make=True) as (folder, last):
            if sweep:
                _remove_drafts(folder, last)
            draft = _draft(folder, last, content, durable)
            _replace(folder, draft, last, durable)

    def write_all(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Replace several files in the given order. All contents are on disk before the first file is replaced."""
        with ExitStack() as stack:
            drafts: list[tuple[int, str, str]] = []
            try:
                for name, content in files:
                    folder, last = stack.enter_context(self._place(name, make=True))
                    drafts.append((folder, _draft(folder, last, [content], True), last))
                for folder, draft, last in drafts:
                    os.rename(draft, last, src_dir_fd=folder, dst_dir_fd=folder)
                for folder, _, _ in drafts:
                    os.fsync(folder)
            finally:
                for folder, draft, _ in drafts:
                    with suppress(OSError):
                        os.unlink(draft, dir_fd=folder)

    def take_in(self, source: Path, name: str, *, replace: bool) -> None:
        """Move a file on the same disk from a trusted folder to ``name``, and sync the folder to disk.

        Without ``replace``, the file is linked, because a link is atomic and never overwrites.

        Raises:
            FileExistsError: the name exists, and ``replace`` is False.
        """
        with self._place(name, make=True) as (folder, last):
            if replace:
                os.rename(source, last, dst_dir_fd=folder)
            else:
                os.link(source, last, dst_dir_fd=folder, follow_symlinks=False)
                source.unlink()  # at once, because readers refuse a file with two names
            os.fsync(folder)

    def create(self, name: str) -> None:
        """Create an empty file if the name does not exist."""
        with suppress(FileExistsError), self._place(name, make=True) as (folder, last):
            os.close(os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o666, dir_fd=folder))
        self.check(name)

    def remove(self, name: str) -> None:
        """Remove a file or a link (not its target). A missing name is no error."""
        with suppress(FileNotFoundError), self._place(name) as (folder, last):
            os.unlink(last, dir_fd=folder)

    def remove_empty(self) -> None:
        """Remove the empty folders below, and then the folder itself if it is empty. The root stays."""
        with suppress(FileNotFoundError):
            for entry in self.entries() if len(self.inner) < MAX_DEPTH else ():
                if entry.kind == "folder":
                    self.at(entry.name).remove_empty()
            if self.inner and not self.entries():
                with self.parent.descriptor() as around:
                    os.rmdir(self.inner[-1], dir_fd=around)

    def remove_tree(self) -> None:
        """Remove the folder with all its content, also if it is the root. Links are removed, their targets stay."""
        with suppress(FileNotFoundError):
            with self.descriptor() as folder:
                while _scan(folder, ""):
                    _empty(folder, folder, MAX_DEPTH)
            if self.inner:
                with self.parent.descriptor() as around:
                    os.rmdir(self.inner[-1], dir_fd=around)
            else:
                os.rmdir(self.root)

    # -- for programs that take descriptors or paths ----------------------------------------------------------

    @contextmanager
    def descriptor(self, *, make: bool = False) -> Iterator[int]:
        """Open the folder. ``make``: create the folder and its parents if they are missing."""
        if make:
            os.makedirs(self.root, exist_ok=True)
        folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in self.inner:
                below = _step(folder, name, make)
                os.close(folder)
                folder = below
            yield folder
        finally:
            os.close(folder)

    @contextmanager
    def real_path(self, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Yield the open folder and its current path, for a library that accepts no descriptors.

        The path contains no links. After opening something by this path, the caller must check the path with
        `leads_to`.
        """
        with self.descriptor(make=make) as folder:
            if _LINUX:
                yield folder, os.readlink(f"/proc/self/fd/{folder}")
            else:
                yield folder, os.path.realpath(self.path)

    def is_writable(self) -> bool:
        """Whether entries can be created in the folder. False on a read-only medium."""
        with self.descriptor() as folder:
            return os.access(".", os.W_OK, dir_fd=folder)

    def open_lock(self, name: str) -> int:
        """Open a lock file and return its descriptor. Creates the file, but not the folder."""
        with self._place(name) as (folder, last):
            try:
                descriptor = os.open(last, os.O_RDWR | os.O_CREAT | _FILE, 0o600, dir_fd=folder)
            except OSError as exc:
                raise _explain(exc, folder, last) from exc
        return self._check_open(descriptor, name)

    # -- parts ------------------------------------------------------------------------------------------------

    @contextmanager
    def _place(self, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Open the folder that contains a name, and yield its descriptor and the last component."""
        *around, last = _parts(name)
        with Folder(self.root, (*self.inner, *around), self.owned).descriptor(make=make) as folder:
            yield folder, last

    def _open_file(self, name: str, flags: int) -> int:
        with self._place(name) as (folder, last):
            try:
                descriptor = os.open(last, flags | _FILE, dir_fd=folder)
            except OSError as exc:
                raise _explain(exc, folder, last) from exc
        return self._check_open(descriptor, name)

    def _check_open(self, descriptor: int, name: str) -> int:
        """Check the opened file by its descriptor, because the name may refer to another file now."""
        try:
            self._refuse_unfit(os.fstat(descriptor), name)
            fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_NONBLOCK)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _refuse_unfit(self, status: os.stat_result, name: str) -> None:
        problem = _problem(status, self.owned)
        if problem is not None:
            raise Refused(problem, _WORDS[problem], name)


def leads_to(path: str, folder: int) -> bool:
    """Whether a path from `Folder.real_path` still leads to the open folder."""
    return os.path.samestat(os.stat(path), os.fstat(folder))


_WORDS: Final[dict[Why, str]] = {
    "link": "it is a link, and links are not followed here: copy the file itself",
    "not-a-file": "it is not a regular file",
    "not-a-folder": "a file stands where a folder should be",
    "second-name": "the file has a second name elsewhere (a hard link): copy it",
}


def _problem(status: os.stat_result, owned: bool) -> Why | None:
    if stat.S_ISLNK(status.st_mode):
        return "link"
    if not stat.S_ISREG(status.st_mode):
        return "not-a-file"
    # The first name may be in another domain's folder, or one of the server's own files.
    return "second-name" if owned and status.st_nlink > 1 else None


def _parts(name: str) -> list[str]:
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise Refused("outside", "it is no name below its folder", name)
    return parts


def _step(folder: int, name: str, make: bool) -> int:
    """Open a subfolder of an open folder. ``make``: create the subfolder if it is missing."""
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    except OSError as exc:
        raise _explain(exc, folder, name, "not-a-folder") from exc
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=folder)
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except OSError as exc:
        raise _explain(exc, folder, name, "not-a-folder") from exc


def _explain(exc: OSError, folder: int, name: str, otherwise: Why = "not-a-file") -> OSError:
    """Return a `Refused` for an entry that could not be opened, or ``exc`` if the failure has another reason."""
    if exc.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK, errno.ENXIO, errno.EISDIR, errno.EOPNOTSUPP):
        return exc
    with suppress(OSError):
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            return Refused("link", _WORDS["link"], name)
    return Refused(otherwise, _WORDS[otherwise], name)


def _scan(folder: int, before: str) -> list[FolderEntry]:
    entries: list[FolderEntry] = []
    with os.scandir(folder) as scanned:
        for item in scanned:
            with suppress(FileNotFoundError):  # removed since the folder was read
                entries.append(_entry(item, before))
    return sorted(entries, key=lambda entry: entry.path)


def _measure(folder: int, most: int, depth: int) -> int:
    total, inner = 0, []
    with os.scandir(folder) as scanned:
        for item in scanned:
            with suppress(FileNotFoundError):
                status = item.stat(follow_symlinks=False)
                total += max(NAME_BYTES, status.st_blocks * 512)
                if stat.S_ISDIR(status.st_mode):
                    inner.append((item.name, status.st_uid))
            if total > most:
                return total
    for name, owner in inner:
        try:
            below = _step(folder, name, False)
        except PermissionError:
            if owner == os.geteuid():
                return most + 1
            continue
        except OSError:  # removed or swapped
            continue
        try:
            total += _measure(below, most - total, depth - 1) if depth else most + 1
        finally:
            os.close(below)
        if total > most:
            break
    return total


def _entry(item: "os.DirEntry[str]", before: str) -> FolderEntry:
    path = before + item.name
    if item.is_symlink():
        return FolderEntry(path, "link")
    if item.is_dir(follow_symlinks=False):
        return FolderEntry(path, "folder")
    if not item.is_file(follow_symlinks=False):
        return FolderEntry(path, "other")
    return FolderEntry(path, "file", item.stat(follow_symlinks=False))


def _walk(folder: int, before: str, hidden: bool, depth: int) -> Iterator[FolderEntry]:
    inner: list[FolderEntry] = []
    for entry in _scan(folder, before):
        if not hidden and entry.name.startswith("."):
            continue
        if entry.kind == "folder":
            inner.append(entry)
        else:
            yield entry
    for entry in inner if depth else ():
        try:
            below = _step(folder, entry.name, False)
        except OSError:  # removed, swapped or not readable
            continue
        try:
            yield from _walk(below, f"{entry.path}/", hidden, depth - 1)
        finally:
            os.close(below)


def _draft(folder: int, name: str, content: Iterable[bytes], durable: bool) -> str:
    """Write a temporary file in the folder and return its name, which is random so that nothing can wait there."""
    draft = f".{name}.{secrets.token_hex(8)}.tmp"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o666, dir_fd=folder)
    try:
        with open(descriptor, "wb") as out:
            for part in content:
                out.write(part)
            out.flush()
            if durable:
                os.fsync(descriptor)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise
    return draft


def _replace(folder: int, draft: str, name: str, durable: bool) -> None:
    try:
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise
    if durable:
        os.fsync(folder)


def _remove_drafts(folder: int, name: str) -> None:
    for left in os.listdir(folder):
        if left.startswith(f".{name}.") and left.endswith(".tmp"):
            with suppress(OSError):
                os.unlink(left, dir_fd=folder)


def _empty(folder: int, top: int, depth: int) -> None:
    """Remove everything in an open folder.

    Folders at the maximum depth are moved to ``top`` instead, because other programs choose the depth of nesting.
    """
    for entry in _scan(folder, ""):
        if entry.kind == "folder" and not depth:
            os.rename(entry.name, secrets.token_hex(8), src_dir_fd=folder, dst_dir_fd=top)
        elif entry.kind == "folder":
            with suppress(FileNotFoundError):
                below = _step(folder, entry.name, False)
                try:
                    _empty(below, top, depth - 1)
                finally:
                    os.close(below)
                os.rmdir(entry.name, dir_fd=folder)
        else:
            with suppress(FileNotFoundError):
                os.unlink(entry.name, dir_fd=folder)


def _amount(size: int) -> str:
    return f"{size / 2**20:g} MiB" if size >= 2**20 else f"{size / 1024:g} KiB" if size >= 1024 else f"{size} bytes"
