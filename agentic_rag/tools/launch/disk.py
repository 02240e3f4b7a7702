"""The disk usage of a child process: files in its writable folders, and open files that were removed.

Owns the times of measuring and the texts about exceeded limits. Linux offers no disk quota to an unprivileged server,
so usage is measured from outside. Data that is written between two measurements can exceed the limit for that time.
"""

import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter

from mcp_servers.safe_files import Folder

SHARE = 20
"""Measuring takes at most one part in this many of the time, however many files there are."""
HURRIED_SHARE = 4
"""The same while the disk fills fast, or is low."""
GROWTH_BYTES = 1 << 20
"""Bytes a child may still write while the disk is below its reserve: a log of that state must not end the child."""
MOST_DESCRIPTORS = 20_000
"""Maximum number of open files per child that are measured."""


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
        return now - self._at >= self._cost * (HURRIED_SHARE if hurried else SHARE)

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
