"""Everything that is read or written below a folder in which others may write: a workspace, a PromptX home.

Owns every system call there. The root of a `Folder` is trusted (the operator or the user named it, and it may be a
link); nothing below it is. Each name is opened from the descriptor of the folder it stands in, links are never
followed, and what is read is a regular file with one name, looked at on the descriptor that is read: what is swapped
after the look has no effect. Nothing here can hang on a pipe. Standard library only.
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
"""What a name stands for; ``other``: a pipe, a socket, a device."""
Why = Literal["link", "not-a-file", "not-a-folder", "second-name", "too-large", "outside"]

MAX_DEPTH: Final = 32
"""Folders below folders that are looked into: each is an open descriptor meanwhile."""
MEASURED_DEPTH: Final = 128
"""The same where only room is measured."""
NAME_BYTES: Final = 4096
"""What a name takes of a disk at least, an empty file's too."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_LINUX: Final = sys.platform.startswith("linux")


class Refused(OSError):
    """What stands at a name is not what may stand there. ``strerror`` says what it is, in words for its owner."""

    def __init__(self, why: Why, words: str, name: str) -> None:
        super().__init__(errno.ELOOP if why == "link" else errno.EINVAL, words, name)
        self.why = why


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a folder. ``path`` is relative to the folder that was listed; ``status`` is there for a file."""

    path: str
    kind: Kind
    status: os.stat_result | None = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def stamp(self) -> str:
        """What changes when the file is written: size and time, as a text."""
        return "" if self.status is None else f"{self.status.st_size}:{self.status.st_mtime_ns}"


def is_text(name: str) -> bool:
    """Whether a name of the disk is one that can be stored and sent: valid UTF-8, and not any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Bounded(io.FileIO):
    """A file that gives up to ``limit`` bytes and then refuses, whatever its size was said to be."""

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
        return io.RawIOBase.read(self, -1 if size is None else size) or b""  # FileIO's own reads past `readinto`

    def readall(self) -> bytes:
        return io.RawIOBase.readall(self) or b""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder below a trusted root, by its names. A value: nothing is open between two calls.

    ``owned``: a file with a second name (a hard link) is refused, since its content may belong somewhere else. All
    methods block and raise `OSError`; `Refused` where something stands in the way that may not be there. A ``name``
    may have several components, relative to the folder.
    """

    root: Path
    inner: tuple[str, ...] = ()
    owned: bool = True

    def at(self, name: str) -> "Folder":
        """Return the folder of that name below this one, whether it is there or not; itself for no name."""
        if not name:
            return self
        return Folder(self.root, (*self.inner, *_parts(name)), self.owned)

    @property
    def path(self) -> Path:
        """Where it lies, for messages and for values that are only compared."""
        return self.root.joinpath(*self.inner)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def parent(self) -> "Folder":
        """The folder around it; of the root, the root."""
        return Folder(self.root, self.inner[:-1], self.owned)

    # -- what is there ----------------------------------------------------------------------------------------

    def is_there(self) -> bool:
        """Whether the folder is there and can be opened without following a link."""
        try:
            with self.descriptor():
                return True
        except OSError:
            return False

    def status(self, name: str) -> os.stat_result | None:
        """Return what is known of a name, a link's own status too; None when there is nothing.

        Raises:
            Refused: something on the way is no folder.
        """
        try:
            with self._place(name) as (folder, last):
                return os.stat(last, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def is_file(self, name: str) -> bool:
        """Whether a regular file of one name stands there that would be read."""
        try:
            found = self.status(name)
        except OSError:
            return False
        return found is not None and _problem(found, self.owned) is None

    def check(self, name: str) -> os.stat_result | None:
        """Return the status of a file that would be read; None when there is nothing.

        Raises:
            Refused: something else stands there.
        """
        found = self.status(name)
        if found is not None:
            self._refuse_unfit(found, name)
        return found

    def entries(self) -> list[Entry]:
        """Return what is in the folder, by name; empty when it is not there."""
        try:
            with self.descriptor() as folder:
                return _scan(folder, "")
        except FileNotFoundError:
            return []

    def walk(self, *, hidden: bool = True) -> Iterator[Entry]:
        """Yield everything below but folders, each folder's names in order, then the folders in it.

        ``hidden`` False: names that begin with a dot are passed over. Folders deeper than `MAX_DEPTH` are too.
        """
        try:
            with self.descriptor() as folder:
                yield from _walk(folder, "", hidden, MAX_DEPTH)
        except FileNotFoundError:
            return

    def measure(self, most: int) -> int:
        """Return how many bytes of the disk everything below takes, a name `NAME_BYTES` at least.

        More than ``most`` is returned as soon as there is more, or where it cannot be told: below `MEASURED_DEPTH`
        folders, and in a folder of ours that was closed to us.
        """
        try:
            with self.descriptor() as folder:
                return _measure(folder, most, MEASURED_DEPTH)
        except FileNotFoundError:
            return 0

    # -- reading ----------------------------------------------------------------------------------------------

    def open(self, name: str, limit: int | None = None) -> io.BufferedReader:
        """Open a file to read; reading more than ``limit`` bytes of it raises `Refused`."""
        descriptor = self._open_file(name, os.O_RDONLY)
        if limit is None:
            return open(descriptor, "rb")
        return io.BufferedReader(_Bounded(descriptor, limit, name))

    def read(self, name: str, limit: int) -> bytes:
        """Return the bytes of a file that has at most ``limit``."""
        with self.open(name, limit) as file:
            return file.read()

    def hash(self, name: str) -> tuple[int, str]:
        """Return size and SHA-256 of a file."""
        with self.open(name) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return file.tell(), digest

    # -- writing ----------------------------------------------------------------------------------------------

    def make(self) -> None:
        """Make the folder, and those around it, where they are missing."""
        with self.descriptor(make=True):
            pass

    def write(self, name: str, content: Iterable[bytes], *, durable: bool = True, sweep: bool = False) -> None:
        """Put a file in place at once: a reader sees the old content or the new one, after a kill too.

        ``sweep``: what earlier writers of this name left when they were killed is removed; the caller holds a lock
        that keeps others from writing it now.
        """
        with self._place(name, make=True) as (folder, last):
            if sweep:
                _remove_drafts(folder, last)
            draft = _draft(folder, last, content, durable)
            _replace(folder, draft, last, durable)

    def write_all(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Put files in place, the last one last; all contents are on disk before the first file is replaced."""
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
        """Move a file of the same disk here, from a folder of ours; its name is on disk when this returns.

        A link is atomic and never overwrites.

        Raises:
            FileExistsError: the name is taken, and ``replace`` is not said.
        """
        with self._place(name, make=True) as (folder, last):
            if replace:
                os.rename(source, last, dst_dir_fd=folder)
            else:
                os.link(source, last, dst_dir_fd=folder, follow_symlinks=False)
                source.unlink()  # at once: a file with two names would not be read
            os.fsync(folder)

    def create(self, name: str) -> None:
        """Make an empty file, unless there is one."""
        with suppress(FileExistsError), self._place(name, make=True) as (folder, last):
            os.close(os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o666, dir_fd=folder))
        self.check(name)

    def remove(self, name: str) -> None:
        """Remove a name, a link's own one; no error when there is none."""
        with suppress(FileNotFoundError), self._place(name) as (folder, last):
            os.unlink(last, dir_fd=folder)

    def remove_empty(self) -> None:
        """Remove the empty folders below, and the folder itself if it is empty then. The root stays."""
        with suppress(FileNotFoundError):
            for entry in self.entries() if len(self.inner) < MAX_DEPTH else ():
                if entry.kind == "folder":
                    self.at(entry.name).remove_empty()
            if self.inner and not self.entries():
                with self.parent.descriptor() as around:
                    os.rmdir(self.inner[-1], dir_fd=around)

    def remove_tree(self) -> None:
        """Remove the folder with everything in it; links go, what they lead to stays. The root may be removed so."""
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
        """Open the folder; ``make``: with those around it, where they are missing."""
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
        """Yield the open folder and the path it has now, for a library that takes no descriptors.

        The path leads there through no link. What was opened by it is used only if `leads_to` says so afterwards.
        """
        with self.descriptor(make=make) as folder:
            if _LINUX:
                yield folder, os.readlink(f"/proc/self/fd/{folder}")
            else:
                yield folder, os.path.realpath(self.path)

    def is_writable(self) -> bool:
        """Whether names can be made in the folder; not on a read-only medium."""
        with self.descriptor() as folder:
            return os.access(".", os.W_OK, dir_fd=folder)

    def open_lock(self, name: str) -> int:
        """Return the descriptor of a file to lock; it is made if need be, in a folder that is there."""
        with self._place(name) as (folder, last):
            try:
                descriptor = os.open(last, os.O_RDWR | os.O_CREAT | _FILE, 0o600, dir_fd=folder)
            except OSError as exc:
                raise _explain(exc, folder, last) from exc
        return self._check_open(descriptor, name)

    # -- parts ------------------------------------------------------------------------------------------------

    @contextmanager
    def _place(self, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Open the folder that a name stands in."""
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
        """Look at what was opened, and at nothing that a name may mean by now."""
        try:
            self._refuse_unfit(os.fstat(descriptor), name)
            fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_NONBLOCK)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _refuse_unfit(self, found: os.stat_result, name: str) -> None:
        problem = _problem(found, self.owned)
        if problem is not None:
            raise Refused(problem, _WORDS[problem], name)


def leads_to(path: str, folder: int) -> bool:
    """Whether a path that `Folder.real_path` gave still leads to the folder that is open."""
    return os.path.samestat(os.stat(path), os.fstat(folder))


_WORDS: Final[dict[Why, str]] = {
    "link": "links are not followed here: copy the file itself",
    "not-a-file": "it is not a regular file",
    "not-a-folder": "a file stands where a folder should be",
    "second-name": "the file has a second name elsewhere (a hard link): copy it",
}


def _problem(found: os.stat_result, owned: bool) -> Why | None:
    if stat.S_ISLNK(found.st_mode):
        return "link"
    if not stat.S_ISREG(found.st_mode):
        return "not-a-file"
    return "second-name" if owned and found.st_nlink > 1 else None


def _parts(name: str) -> list[str]:
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise Refused("outside", "it is no name below its folder", name)
    return parts


def _step(folder: int, name: str, make: bool) -> int:
    """Open a folder in a folder."""
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
    """Say what stands at a name that could not be opened; the error itself when it has another reason."""
    if exc.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK, errno.ENXIO, errno.EISDIR, errno.EOPNOTSUPP):
        return exc
    with suppress(OSError):
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            return Refused("link", _WORDS["link"], name)
    return Refused(otherwise, _WORDS[otherwise], name)


def _scan(folder: int, before: str) -> list[Entry]:
    found: list[Entry] = []
    with os.scandir(folder) as names:
        for each in names:
            with suppress(FileNotFoundError):
                found.append(_entry(each, before))
    return sorted(found, key=lambda entry: entry.path)


def _measure(folder: int, most: int, depth: int) -> int:
    total, inner = 0, []
    with os.scandir(folder) as names:
        for each in names:
            with suppress(FileNotFoundError):
                status = each.stat(follow_symlinks=False)
                total += max(NAME_BYTES, status.st_blocks * 512)
                if stat.S_ISDIR(status.st_mode):
                    inner.append((each.name, status.st_uid))
            if total > most:
                return total
    for name, owner in inner:
        try:
            below = _step(folder, name, False)
        except PermissionError:
            if owner == os.geteuid():
                return most + 1
            continue
        except OSError:  # gone, or swapped
            continue
        try:
            total += _measure(below, most - total, depth - 1) if depth else most + 1
        finally:
            os.close(below)
        if total > most:
            break
    return total


def _entry(each: "os.DirEntry[str]", before: str) -> Entry:
    path = before + each.name
    if each.is_symlink():
        return Entry(path, "link")
    if each.is_dir(follow_symlinks=False):
        return Entry(path, "folder")
    if not each.is_file(follow_symlinks=False):
        return Entry(path, "other")
    return Entry(path, "file", each.stat(follow_symlinks=False))


def _walk(folder: int, before: str, hidden: bool, depth: int) -> Iterator[Entry]:
    inner: list[Entry] = []
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
        except OSError:  # gone, swapped, or not ours to read
            continue
        try:
            yield from _walk(below, f"{entry.path}/", hidden, depth - 1)
        finally:
            os.close(below)


def _draft(folder: int, name: str, content: Iterable[bytes], durable: bool) -> str:
    """Write a new file beside the name; return what it is called. Random: nobody can have put something there."""
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
    """Remove everything in an open folder, but move to the top what lies too deep: depth is somebody else's choice."""
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
