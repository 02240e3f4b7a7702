"""Whether a workspace's prompt, skills and roles are as they were when somebody looked: known at once, without a look.

Owns the watches (Linux' inotify, see its manual page) and which answers they are trusted for. The kernel notes a change
before the system call that makes it returns, so what was written before a message came is known when it is answered.
Where the system has no such notes, or a file system takes changes from elsewhere, nothing is known, and who asks looks.
"""

import ctypes
import os
import struct
import sys
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from mcp_servers.beneath import Folder, Refused

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

MOST_WORKSPACES: Final = 256
"""Workspaces that are watched, those that were used last."""
MOST_FOLDERS: Final = 128
"""Folders of one; a workspace with more is looked at each time."""
LOOK_ANEW: Final = 32
"""After so many answers one looks all the same: a change through a second name of a file, or a map, gives no note."""

SHALLOW: Final = ("", ".promptx")
"""Folders of which only the names and what stands under them counts."""
DEEP: Final = ("prompt", "skills", ".promptx/resource")

_MASK: Final = 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800 | 0x01000000
"""MODIFY, ATTRIB, CLOSE_WRITE, MOVED_FROM, MOVED_TO, CREATE, DELETE, DELETE_SELF, MOVE_SELF; ONLYDIR."""
_OVERFLOW: Final = 0x4000
"""Notes were lost."""
_NOTE: Final = struct.Struct("iIII")
"""Watch, kind, cookie, length of the name that follows (inotify(7))."""
_NOTES_BYTES: Final = 64 * 1024
_OWN_FILE_SYSTEMS: Final = frozenset({0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630, 0x2FC12FC1, 0xF2F52010})
"""ext4, XFS, Btrfs, tmpfs, overlayfs, ZFS, F2FS (statfs(2)): what changes them goes through this machine's kernel."""


@dataclass(slots=True, eq=False)
class Era:
    """A time in which nothing has changed in a workspace, as far as is known."""

    over: bool = False
    answers: int = LOOK_ANEW
    """That may still be given without a look."""


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """What a look found. ``era``: in which it holds; None: it holds for who looked."""

    era: Era | None
    found: T


@dataclass(slots=True, eq=False)
class _Watched:
    era: Era
    watches: set[int] = field(default_factory=set)


class WatchedWorkspaces:
    """The watches of one process. ``roles``: the folder of the built-in roles, which are below those of workspaces."""

    def __init__(self, roles: Path) -> None:
        self.roles = roles
        self._lock = threading.Lock()
        self._kept: OrderedDict[Path, _Watched] = OrderedDict()
        self._users: dict[int, set[Path]] = {}
        """The workspaces that need a watch."""
        self._libc = _libc()
        self._notes = -1 if self._libc is None else self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)

    def begin(self, workspace: Path) -> Era | None:
        """Return the era of a look that begins now; None: nothing is known between looks. Blocks, as a look does."""
        if self._notes < 0:
            return None
        with self._lock:
            self._take_notes()
            known = self._kept.get(workspace)
            if known is not None and not known.era.over:
                if known.era.answers <= 0:
                    known.era.over, known.era = True, Era()
                return known.era
        watches = self._watch(workspace)
        era = Era()
        with self._lock:
            self._forget(workspace)
            if watches is None:
                return None
            self._kept[workspace] = _Watched(era, watches)
            for watch in watches:
                self._users.setdefault(watch, set()).add(workspace)
            while len(self._kept) > MOST_WORKSPACES:
                self._forget(next(iter(self._kept)))
        return era

    def holds(self, era: Era | None) -> bool:
        """Whether what was seen by a look of this era is what one would see now. Does not block."""
        if era is None:
            return False
        with self._lock:
            self._take_notes()
            era.answers -= 1
            return not era.over and era.answers >= 0

    def close(self) -> None:
        """End all watches; nothing is known any more."""
        with self._lock:
            for workspace in list(self._kept):
                self._forget(workspace)
            notes, self._notes = self._notes, -1
            if notes >= 0:
                os.close(notes)

    def _forget(self, workspace: Path) -> None:
        """Watch a workspace no longer. The lock is held."""
        known = self._kept.pop(workspace, None)
        if known is None:
            return
        known.era.over = True
        for watch in known.watches:
            users = self._users[watch]
            users.discard(workspace)
            if not users:
                del self._users[watch]
                assert self._libc is not None
                self._libc.inotify_rm_watch(self._notes, watch)  # it may be gone with its folder

    def _take_notes(self) -> None:
        """End the eras of what has changed. The lock is held."""
        while self._notes >= 0:
            try:
                data = os.read(self._notes, _NOTES_BYTES)
            except BlockingIOError:
                return
            at = 0
            while at < len(data):
                watch, kind, _, length = _NOTE.unpack_from(data, at)
                at += _NOTE.size + length
                for workspace in self._kept if kind & _OVERFLOW else self._users.get(watch, ()):
                    self._kept[workspace].era.over = True

    # In a thread

    def _watch(self, workspace: Path) -> set[int] | None:
        """Watch all that a look can see; None: that cannot be."""
        watches: set[int] = set()
        try:
            for folder in self._folders(workspace):
                with folder.descriptor() as opened:
                    watches.add(self._add(opened))
                if len(watches) > MOST_FOLDERS:
                    raise OSError("too many folders")
        except OSError:
            with self._lock:
                self._drop(watches)
            return None
        return watches

    def _drop(self, watches: set[int]) -> None:
        assert self._libc is not None
        for watch in watches - self._users.keys():
            self._libc.inotify_rm_watch(self._notes, watch)

    def _add(self, opened: int) -> int:
        assert self._libc is not None
        status = ctypes.create_string_buffer(256)
        if self._libc.fstatfs(opened, status) or _kind_of(status) not in _OWN_FILE_SYSTEMS:
            raise OSError("changes come from elsewhere")
        watch: int = self._libc.inotify_add_watch(self._notes, b"/proc/self/fd/%d" % opened, _MASK)
        if watch < 0:
            raise OSError(ctypes.get_errno(), "no watch")
        return watch

    def _folders(self, workspace: Path) -> Iterator[Folder]:
        """Yield the folders of a workspace that count, those around before those in them."""
        root = Folder(workspace)
        for folder in (root.at(name) for name in SHALLOW):
            if _is_there(folder):
                yield folder
        for folder in (*(root.at(name) for name in DEEP), Folder(self.roles, owned=False)):
            if _is_there(folder):
                yield from _with_all_in(folder)


class Sights(Generic[K, T]):
    """What was seen of workspaces last, by key: those that were used last."""

    def __init__(self, watched: WatchedWorkspaces) -> None:
        self._watched = watched
        self._seen: OrderedDict[K, Seen[T]] = OrderedDict()

    def find(self, key: K) -> Seen[T] | None:
        """Return what a look would find now; None: somebody has to look."""
        seen = self._seen.get(key)
        if seen is None or not self._watched.holds(seen.era):
            return None
        self._seen.move_to_end(key)
        return seen

    def keep(self, key: K, seen: Seen[T]) -> None:
        """Keep what a look found."""
        self._seen.pop(key, None)
        if seen.era is not None:
            self._seen[key] = seen
            if len(self._seen) > MOST_WORKSPACES:
                self._seen.popitem(last=False)


def _is_there(folder: Folder) -> bool:
    """Whether a look sees the folder; what stands in its place is told of by the one around it."""
    try:
        with folder.descriptor():
            return True
    except (FileNotFoundError, Refused):
        return False


def _with_all_in(folder: Folder) -> Iterator[Folder]:
    """Yield a folder, then what is in it by then: who watches each as it comes misses none."""
    yield folder
    for entry in folder.entries():
        if entry.kind == "folder":
            yield from _with_all_in(folder.at(entry.name))


def _kind_of(status: "ctypes.Array[ctypes.c_char]") -> int:
    """Return what file system a ``statfs`` structure tells of: its first member."""
    return int.from_bytes(status.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder) & 0xFFFFFFFF


def _libc() -> Any:
    """Return the C library, if it has these notes."""
    library = ctypes.CDLL(None, use_errno=True)
    return library if sys.platform == "linux" and hasattr(library, "inotify_init1") else None
