"""What a child and all it started take of the machine: memory, processor time, processes, and room on the disk.

Owns the walk from a process to its descendants through ``/proc`` and the words for what is too much. Linux only;
elsewhere nothing is measured. Why not the kernel's own limits: one on address space breaks every runtime that
reserves more than it uses (V8 among them), others count one process at a time, and a control group belongs to us only
where the operator has handed one over.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentic_rag.tools.launch.disk import DiskMeter

PERIOD_SECONDS = 1.0
"""Between two looks. What a process can take meanwhile is bounded by its own limit on private memory."""

CPU_WINDOW_SECONDS = 3600.0
"""The time for which a child's processor time is given."""

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_WRITTEN = ("Pss_Anon:", "Pss_Shmem:")
"""Of ``smaps_rollup``: memory that was written to, a page shared by two processes counted as half of it in each."""


@dataclass(frozen=True, slots=True)
class Usage:
    """``memory_bytes`` resident, ``cpu_seconds`` since the start, ``processes`` now; all descendants together."""

    memory_bytes: int
    cpu_seconds: float
    processes: int


@dataclass(frozen=True, slots=True)
class Allowance:
    """How much a child may take. ``cpu_seconds``: of one processor, in `CPU_WINDOW_SECONDS`.

    ``disk_bytes``: what may lie in the folders it may write. ``disk_reserve``: bytes of the disk that it leaves free.
    """

    memory_bytes: int
    cpu_seconds: float
    processes: int
    disk_bytes: int
    disk_reserve: int


class Meter:
    """Compares what one child takes with what it may; processor time that was taken long ago is forgotten."""

    def __init__(self, pid: int, allowance: Allowance, places: Sequence[Path]) -> None:
        """``places``: the folders it may write in."""
        self._disk = DiskMeter(places, allowance.disk_bytes, allowance.disk_reserve)
        self._pid = pid
        self._allowance = allowance
        self._at = 0.0
        self._spent = 0.0
        self._level = 0.0

    def exceeds(self, now: float) -> str:
        """Return what is exceeded, as a reason; empty: nothing. ``now``: a clock's seconds. Blocks if a disk does."""
        allowed = self._allowance
        usage = measure_usage(self._pid, allowed.memory_bytes, allowed.processes)
        if usage.memory_bytes > allowed.memory_bytes:
            return f"it used more than {allowed.memory_bytes >> 20} MiB of memory"
        if usage.processes > allowed.processes:
            return f"it ran more than {allowed.processes} processes"
        forgotten = (now - self._at) * allowed.cpu_seconds / CPU_WINDOW_SECONDS if self._at else 0.0
        self._level = max(0.0, self._level - forgotten) + max(0.0, usage.cpu_seconds - self._spent)
        self._at, self._spent = now, usage.cpu_seconds
        if self._level > allowed.cpu_seconds:
            return f"it used more than {allowed.cpu_seconds:g} s of processor time an hour"
        return self._disk.exceeds(now, _family(self._pid, allowed.processes))


def measure_usage(pid: int, memory_bytes: int, processes: int) -> Usage:
    """Return what a process and its descendants take; zeros when it is gone.

    Pages that several processes share are told apart only once the cheap count exceeds ``memory_bytes``. No more than
    ``processes`` and one more are looked at.
    """
    if not sys.platform.startswith("linux"):
        return Usage(0, 0.0, 0)
    pids = _family(pid, processes + 1)
    memory = sum(_resident_bytes(each) for each in pids)
    if memory > memory_bytes:
        memory = sum(_written_bytes(each) for each in pids)
    return Usage(memory, sum(_cpu_seconds(each) for each in pids), len(pids))


def _family(pid: int, most: int) -> list[int]:
    """Return a process and its descendants. In its sandbox none leaves: orphans become children of the first one."""
    found = [pid]
    for each in found:
        found.extend(_children(each))
        if len(found) >= most:
            break
    return found[:most]


def _children(pid: int) -> Iterator[int]:
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            yield from map(int, Path(f"/proc/{pid}/task/{task}/children").read_bytes().split())
    except OSError:  # gone meanwhile
        return


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _written_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:  # gone meanwhile, or not ours to see
        return _resident_bytes(pid)
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(_WRITTEN))


def _cpu_seconds(pid: int) -> float:
    """Return the time of a process and of those of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS
    except (OSError, IndexError):
        return 0.0
