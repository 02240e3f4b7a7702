"""Resource usage of a child and all its descendants: memory, processor time, processes, and disk space.

Owns the walk from a process to its descendants through ``/proc`` and the texts about exceeded limits. Linux only;
elsewhere nothing is measured. The kernel's own limits do not suffice: a limit on address space breaks every runtime
that reserves more than it uses (V8 among them), others count one process each, and a control group is available only
where the operator delegated one.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentic_rag.tools.launch.disk import DiskMeter

PERIOD_SECONDS = 1.0
"""Time between two measurements. Meanwhile, a process is bounded by its own limit on private memory."""

CPU_WINDOW_SECONDS = 3600.0
"""The period to which a child's allowance of processor time refers."""

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
