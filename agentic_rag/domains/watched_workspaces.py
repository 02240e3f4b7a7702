"""Detect changes of a workspace's prompt, skills and roles without reading the files.

Uses Linux inotify watches (see its manual page). The kernel queues an event before the changing system call returns, so
a change made before a message arrives is known when the message is answered. If inotify is missing, or the file system
can be changed from elsewhere, callers have to read the files each time.
"""

import ctypes
import errno
import fcntl
import os
import stat
import struct
import sys
import termios
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from mcp_servers.safe_files import MAX_DEPTH, Folder, Refused

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

MOST_WORKSPACES: Final = 256
"""Maximum watched workspaces; the least recently used one is dropped."""
MOST_FOLDERS: Final = 128
"""Maximum watched folders of a workspace, including those on its path; larger workspaces are read each time."""
LOOK_ANEW: Final = 32
"""Number of answers after which the files are read again in any case.

Some changes cause no event: through a hard link or a memory map, a mount over a folder, and permissions of folders
above a workspace.
"""

SHALLOW: Final = ("", ".promptx")
"""Folders of which only the entries' names matter."""
DEEP: Final = {"prompt": 0, "skills": 1, ".promptx/resource": MAX_DEPTH}
"""Folders whose files matter, with the depth of watched subfolders."""

_ADDED: Final = 0x20000000
"""MASK_ADD: a folder may be on the path to one workspace and inside another."""
_ON_PATH: Final = 0x400 | 0x800 | _ADDED
"""DELETE_SELF, MOVE_SELF: the contents of folders on the path do not matter."""
_LINK: Final = _ON_PATH | 0x4
"""ATTRIB: a symbolic link that is open only loses its name."""
_NAMES: Final = _LINK | 0x40 | 0x80 | 0x100 | 0x200 | 0x01000000
"""MOVED_FROM, MOVED_TO, CREATE, DELETE; ONLYDIR."""
_ALL: Final = _NAMES | 0x2 | 0x8
"""MODIFY, CLOSE_WRITE."""
_OVERFLOW: Final = 0x4000
"""Events were lost."""
_EVENT: Final = struct.Struct("iIII")
"""Watch, event mask, cookie, length of the name that follows (inotify(7))."""
_OWN_FILE_SYSTEMS: Final = frozenset({0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630, 0xF2F52010})
"""File systems that only this kernel changes: ext4, XFS, Btrfs, tmpfs, overlayfs, F2FS (statfs(2)).

ZFS is missing, because it can be rolled back while it is mounted.
"""


@dataclass(slots=True, eq=False)
class WorkspaceVersion:
    """A period without known changes in a workspace."""

    over: bool = False
    answers: int = LOOK_ANEW
    """Remaining number of answers without reading the files."""


@dataclass(frozen=True, slots=True)
class WorkspaceSnapshot(Generic[T]):
    """The result of a read. ``era`` is the period in which it is valid, None if it must not be cached."""

    era: WorkspaceVersion | None
    found: T


@dataclass(slots=True, eq=False)
class _WatchedWorkspace:
    era: WorkspaceVersion = field(default_factory=WorkspaceVersion)
    watches: set[int] = field(default_factory=set)


class WatchedWorkspaces:
    """The watches of one process. ``roles`` is the folder of the built-in roles, which workspaces extend."""

    def __init__(self, roles: Path) -> None:
        self.roles = roles
        self._lock = threading.Lock()
        self._watched: OrderedDict[Path, _WatchedWorkspace] = OrderedDict()
        self._watchers: dict[int, set[_WatchedWorkspace]] = {}
        """The workspaces that need each watch, including those still being set up."""
        self._libc = _libc()
        self._inotify = -1 if self._libc is None else self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)

    def begin(self, workspace: Path) -> WorkspaceVersion | None:
        """Return the era of a read that begins now, or None if changes cannot be detected. Blocks."""
        with self._lock:
            if self._inotify < 0:
                return None
            self._read_events()
            watched_workspace = self._watched.get(workspace)
            if watched_workspace is not None and not watched_workspace.era.over:
                self._watched.move_to_end(workspace)
                if watched_workspace.era.answers <= 0:
                    watched_workspace.era.over, watched_workspace.era = True, WorkspaceVersion()
                return watched_workspace.era
        # Without the lock: opening folders may block for as long as a disk does.
        watched = _WatchedWorkspace()
        try:
            self._watch(workspace, watched)
        except OSError:
            with self._lock:
                self._forget(watched)
                self._forget(self._watched.pop(workspace, None))
            return None
        with self._lock:
            if self._inotify < 0:
                return None
            self._forget(self._watched.pop(workspace, None))
            self._watched[workspace] = watched
            while len(self._watched) > MOST_WORKSPACES:
                self._forget(self._watched.popitem(last=False)[1])
        return watched.era

    def holds(self, era: WorkspaceVersion | None) -> bool:
        """Return whether a result of this era is still valid. Does not block."""
        if era is None:
            return False
        with self._lock:
            self._read_events()
            era.answers -= 1
            return not era.over and era.answers >= 0

    def close(self) -> None:
        """Remove all watches; from now on nothing is cached."""
        with self._lock:
            for watched in set[_WatchedWorkspace]().union(*self._watchers.values()):
                self._forget(watched)
            self._watched.clear()
            descriptor, self._inotify = self._inotify, -1
            if descriptor >= 0:
                os.close(descriptor)

    def _forget(self, watched: _WatchedWorkspace | None) -> None:
        """Remove the watches of a workspace. The caller holds the lock."""
        if watched is None:
            return
        watched.era.over = True
        while watched.watches:
            watch = watched.watches.pop()
            # inotify has one watch for a folder, however many workspaces lead through it.
            watchers = self._watchers[watch]
            watchers.discard(watched)
            if not watchers:
                del self._watchers[watch]
                assert self._libc is not None
                self._libc.inotify_rm_watch(self._inotify, watch)  # the watch may have ended with its folder

    def _read_events(self) -> None:
        """End the eras of changed workspaces. The caller holds the lock.

        Events that arrive meanwhile are left for later, so that a constant writer cannot keep this loop running.
        """
        if self._inotify < 0:
            return
        length = int.from_bytes(fcntl.ioctl(self._inotify, termios.FIONREAD, bytes(4)), sys.byteorder)
        data, at = os.read(self._inotify, length) if length else b"", 0
        while at < len(data):
            watch, kind, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size + length
            # After an overflow, any workspace may have changed.
            for watchers in self._watchers.values() if kind & _OVERFLOW else (self._watchers.get(watch, ()),):
                for watcher in watchers:
                    watcher.era.over = True

    # Setup in a thread

    def _watch(self, workspace: Path, watched: _WatchedWorkspace) -> None:
        """Watch all folders that a read uses, and the path to them. Raises `OSError` if that is not possible."""
        for place in (workspace, self.roles):
            for opened, is_link in _open_along(place):
                self._add(watched, opened, _LINK if is_link else _ON_PATH)
        for folder, mask in self._folders(workspace):
            with folder.descriptor() as opened:
                self._add(watched, opened, mask)
        if not Folder(workspace).entries():
            raise OSError("the system may report the removal of an empty folder late")

    def _add(self, watched: _WatchedWorkspace, opened: int, mask: int) -> None:
        """Watch an open folder. The user of the watch is registered before its events can be read."""
        assert self._libc is not None
        status = ctypes.create_string_buffer(256)
        if self._libc.fstatfs(opened, status) or _kind_of(status) not in _OWN_FILE_SYSTEMS:
            raise OSError("changes come from elsewhere")
        with self._lock:
            if self._inotify < 0 or len(watched.watches) >= MOST_FOLDERS:
                raise OSError("closed, or too many folders")
            # By the open descriptor, since another folder may have taken this name.
            watch: int = self._libc.inotify_add_watch(self._inotify, b"/proc/self/fd/%d" % opened, mask)
            if watch < 0:
                raise OSError(ctypes.get_errno(), "no watch")
            watched.watches.add(watch)
            self._watchers.setdefault(watch, set()).add(watched)

    def _folders(self, workspace: Path) -> Iterator[tuple[Folder, int]]:
        """Yield the folders to watch, parents first, each with its event mask."""
        root = Folder(workspace)
        for folder in (root.at(name) for name in SHALLOW):
            if _is_there(folder):
                yield folder, _NAMES
        deep = [(root.at(name), depth) for name, depth in DEEP.items()]
        for folder, depth in (*deep, (Folder(self.roles, owned=False), MAX_DEPTH)):
            if _is_there(folder):
                yield from ((subfolder, _ALL) for subfolder in _with_those_in(folder, depth))


class SnapshotCache(Generic[K, T]):
    """Cache of the last results of reads, by key, least recently used dropped."""

    def __init__(self, watched: WatchedWorkspaces) -> None:
        self._watched = watched
        self._snapshots: OrderedDict[K, WorkspaceSnapshot[T]] = OrderedDict()

    def find(self, key: K) -> WorkspaceSnapshot[T] | None:
        """Return the cached result if it is still valid, else None."""
        snapshot = self._snapshots.get(key)
        if snapshot is None or not self._watched.holds(snapshot.era):
            return None
        self._snapshots.move_to_end(key)
        return snapshot

    def keep(self, key: K, snapshot: WorkspaceSnapshot[T]) -> None:
        """Cache the result of a read."""
        self._snapshots.pop(key, None)
        if snapshot.era is not None:
            self._snapshots[key] = snapshot
            if len(self._snapshots) > MOST_WORKSPACES:
                self._snapshots.popitem(last=False)


def _open_along(folder: Path) -> Iterator[tuple[int, bool]]:
    """Open each folder and link on a path, before the next one is resolved, and tell which are links.

    Raises:
        OSError: the path does not exist or has too many parts.
    """
    parts_left, at = list(reversed(folder.absolute().parts)), ""
    for _ in range(MOST_FOLDERS):
        if not parts_left:
            return
        at = os.path.join(at, parts_left.pop())
        # Link by link: the target of a link may change, and the link itself, too.
        opened = os.open(at, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            is_link = stat.S_ISLNK(os.fstat(opened).st_mode)
            yield opened, is_link
            if is_link:
                parts_left += reversed(Path(os.readlink(at)).parts)
                at = os.path.dirname(at)
        finally:
            os.close(opened)
    raise OSError(errno.ELOOP, "too long a way", str(folder))


def _is_there(folder: Folder) -> bool:
    """Return whether the folder exists. The parent's watch reports anything created in its place."""
    try:
        with folder.descriptor():
            return True
    except (FileNotFoundError, Refused):
        return False


def _with_those_in(folder: Folder, depth: int) -> Iterator[Folder]:
    """Yield a folder, then its subfolders. Watching each one as it comes misses no new subfolder."""
    yield folder
    for entry in folder.entries() if depth else ():
        if entry.kind == "folder":
            yield from _with_those_in(folder.at(entry.name), depth - 1)


def _kind_of(status: "ctypes.Array[ctypes.c_char]") -> int:
    """Return the file system type in a ``statfs`` structure: its first member."""
    return int.from_bytes(status.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder) & 0xFFFFFFFF


def _libc() -> Any:
    """Return the C library if it supports inotify."""
    if sys.platform != "linux":
        return None
    try:
        library = ctypes.CDLL(None, use_errno=True)
    except OSError:  # statically linked
        return None
    return library if hasattr(library, "inotify_init1") and hasattr(library, "fstatfs") else None
