"""Resource usage of a child and all its descendants: memory, processor time, processes, and disk space.

Owns the walk from a process to its descendants through ``/proc`` and the texts about exceeded limits. Linux only;
elsewhere nothing is measured. The kernel's own limits do not suffice: a limit on address space breaks every runtime
that reserves more than it uses (V8 among them), others count one process each, and a control group is available only
where the operator delegated one. There is no disk quota for an unprivileged server either: files in the writable
folders are measured, and open files that were removed. Data that is written between two measurements can exceed the
limit for that time.
"""

import os
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from mcp_servers.safe_files import Folder

PERIOD_SECONDS = 1.0
"""Time between two measurements. Meanwhile, a process is bounded by its own limit on private memory."""

CPU_WINDOW_SECONDS = 3600.0
"""The period to which a child's allowance of processor time refers."""

DISK_SHARE = 20
"""Measuring the disk takes at most one part in this many of the time, however many files there are."""
HURRIED_DISK_SHARE = 4
"""The same while the disk fills fast, or is low."""
GROWTH_BYTES = 1 << 20
"""Bytes a child may still write while the disk is below its reserve: a log of that state must not end the child."""
MOST_DESCRIPTORS = 20_000
"""Maximum number of open files per child that are measured."""

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_WRITTEN = ("Pss_Anon:", "Pss_Shmem:")
"""Lines of ``smaps_rollup`` with written memory. A page shared by two processes counts as half a page in each."""


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """``memory_bytes`` resident, ``cpu_seconds`` since the start, ``processes`` now; all descendants together."""

    memory_bytes: int
    cpu_seconds: float
    processes: int


@dataclass(frozen=True, slots=True)
class Allowance:
    """The limits of a child. ``cpu_seconds``: of one processor, in `CPU_WINDOW_SECONDS`.

    ``disk_bytes``: limit for the folders the child may write. ``disk_reserve``: bytes of the disk that it leaves free.
    """

    memory_bytes: int
    cpu_seconds: float
    processes: int
    disk_bytes: int
    disk_reserve: int


class Meter:
    """Compares the usage of one child with its limits; old processor time expires."""

    def __init__(self, pid: int, allowance: Allowance, places: Sequence[Path]) -> None:
        """Start measuring a process. ``places``: the folders it may write in."""
        self._disk = DiskMeter(places, allowance.disk_bytes, allowance.disk_reserve)
        self._pid = pid
        self._allowance = allowance
        self._at = 0.0
        self._spent = 0.0
        self._level = 0.0

    def exceeds(self, now: float) -> str:
        """Return the exceeded limit as a reason, or empty text. ``now``: a clock's seconds. Blocks if a disk does."""
        allowed = self._allowance
        usage = measure_usage(self._pid, allowed.memory_bytes, allowed.processes)
        if usage.memory_bytes > allowed.memory_bytes:
            return f"it used more than {allowed.memory_bytes >> 20} MiB of memory"
        if usage.processes > allowed.processes:
            return f"it ran more than {allowed.processes} processes"
        # A leaky bucket: the allowance of an hour flows off evenly.
        forgotten = (now - self._at) * allowed.cpu_seconds / CPU_WINDOW_SECONDS if self._at else 0.0
        # The sum drops when a child of the process ends unobserved, and must not lower the level.
        self._level = max(0.0, self._level - forgotten) + max(0.0, usage.cpu_seconds - self._spent)
        self._at, self._spent = now, usage.cpu_seconds
        if self._level > allowed.cpu_seconds:
            return f"it used more than {allowed.cpu_seconds:g} s of processor time an hour"
        return self._disk.exceeds(now, _family(self._pid, allowed.processes))


def measure_usage(pid: int, memory_bytes: int, processes: int) -> ProcessUsage:
    """Return the usage of a process and its descendants; zeros if the process has ended.

    Shared pages are attributed only once the cheap count exceeds ``memory_bytes``. At most ``processes`` plus one
    processes are measured.
    """
    if not sys.platform.startswith("linux"):
        return ProcessUsage(0, 0.0, 0)
    pids = _family(pid, processes + 1)
    memory = sum(_resident_bytes(member) for member in pids)
    # Reading shared pages is slow, so it is left to the children that seem to be over the limit.
    if memory > memory_bytes:
        memory = sum(_written_bytes(member) for member in pids)
    return ProcessUsage(memory, sum(_cpu_seconds(member) for member in pids), len(pids))


def _family(pid: int, most: int) -> list[int]:
    """Return a process and its descendants. None leaves its sandbox: orphans become children of the first process."""
    members = [pid]
    # The list grows while it is walked, so grandchildren are reached, too.
    for member in members:
        members.extend(_children(member))
        if len(members) >= most:
            break
    return members[:most]


def _children(pid: int) -> Iterator[int]:
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            yield from map(int, Path(f"/proc/{pid}/task/{task}/children").read_bytes().split())
    except OSError:  # ended meanwhile
        return


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _written_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:  # ended meanwhile, or owned by another user
        return _resident_bytes(pid)
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(_WRITTEN))


def _cpu_seconds(pid: int) -> float:
    """Return the time of a process and of its children that have ended."""
    try:
        # The second field is the program's name, which may contain spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS
    except (OSError, IndexError):
        return 0.0


# Disk space


class DiskMeter:
    """Compares the disk usage of one child with its limits."""

    def __init__(self, places: Sequence[Path], most: int, reserve: int) -> None:
        """Start without a measurement.

        ``places``: the folders the child may write in. ``most``: bytes in all of them together. ``reserve``: bytes of
        the disk that stay free.
        """
        self._places = _outermost(places)
        self._most = most
        self._reserve = reserve
        self._used_bytes = 0
        self._calm = 0
        """The usage when the disk was last above the reserve."""
        self._free = 0
        self._at = float("-inf")
        self._cost = 0.0

    def exceeds(self, now: float, pids: Iterable[int]) -> str:
        """Return the exceeded limit as a reason, or empty text. ``now``: a clock's seconds. Blocks while measuring."""
        free = min(
            (free_bytes for free_bytes in map(_free_bytes, self._places) if free_bytes is not None), default=None
        )
        if free is None or not self._is_due(now, free):
            return ""
        begun = perf_counter()
        before, self._used_bytes = self._used_bytes, self._measure(pids)
        first, self._at = self._at == float("-inf"), now
        self._cost, self._free = perf_counter() - begun, free
        if self._used_bytes > self._most:
            return f"its writable folders hold more than {self._most >> 20} MiB, or more than can be looked through"
        if free >= self._reserve or first:
            self._calm = self._used_bytes
            return ""
        # A child that removes files first may write that much again.
        self._calm = min(self._calm, before)
        if self._used_bytes - self._calm > GROWTH_BYTES:
            low = f"the disk has {free >> 20} MiB left, less than the reserve of {self._reserve >> 20} MiB"
            return f"{low}, and it went on writing"
        return ""

    def _is_due(self, now: float, free: int) -> bool:
        """Return whether to measure: often if the child may soon exceed a limit, rarely if measuring takes long."""
        hurried = free < self._reserve or self._free - free > (self._most - self._used_bytes) // 4
        return now - self._at >= self._cost * (HURRIED_DISK_SHARE if hurried else DISK_SHARE)

    def _measure(self, pids: Iterable[int]) -> int:
        used, disks = 0, set()
        for place in self._places:
            with suppress(OSError):  # the folder was removed
                disks.add(os.stat(place).st_dev)
                used += Folder(place).measure(self._most - used)
            if used > self._most:
                return used
        return used + sum(_nameless(pids, disks).values())


def _outermost(places: Sequence[Path]) -> list[Path]:
    """Leave out folders that are inside another one of the list."""
    outermost: list[Path] = []
    for folder in sorted({place.resolve() for place in places}, key=lambda place: len(place.parts)):
        if not any(folder.is_relative_to(around) for around in outermost):
            outermost.append(folder)
    return outermost


def _free_bytes(place: Path) -> int | None:
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return None


def _nameless(pids: Iterable[int], disks: set[int]) -> dict[tuple[int, int], int]:
    """Return the bytes of removed files that are still open on these disks, by disk and inode: no folder lists them."""
    sizes: dict[tuple[int, int], int] = {}
    for count, path in enumerate(_descriptors(pids)):
        if count == MOST_DESCRIPTORS:
            break
        with suppress(OSError):  # closed meanwhile, or owned by another user
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode) and not status.st_nlink and status.st_dev in disks:
                sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sizes


def _descriptors(pids: Iterable[int]) -> Iterator[str]:
    for pid in pids:
        with suppress(OSError):
            yield from (f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd"))
