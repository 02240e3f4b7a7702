"""Which events of running turns stand in records of the store that several turns share, and nowhere else.

Pure. Owns when a turn's events are to be stored as rows of its own, and which records are needed until then.
"""

import time
from collections.abc import Collection, Iterable
from typing import Generic, TypeVar

L = TypeVar("L")

GROUPS = 128
"""Records after which a turn's events are stored as its own: what a start after a kill has to move at most."""
AT_ONCE = 8
"""Turns that are settled with one record, or a sixteenth of all that are due: none of them is to take long."""


class Groups(Generic[L]):
    """The records and logs of one process. Records are written one at a time, in the order of their numbers."""

    def __init__(self) -> None:
        self._number = time.time_ns()  # greater than any that a process before this one gave
        self._oldest: dict[L, int] = {}
        """The oldest record that a log needs, the oldest of all first."""
        self._first = self._number + 1
        """Before which there are no records."""

    def begin(self, logs: Iterable[L]) -> int:
        """Return the number of the next record, which is to have events of these logs."""
        self._number += 1
        for log in logs:
            self._oldest.setdefault(log, self._number)
        return self._number

    def due(self) -> list[L]:
        """Return the logs that are to be settled with the next record."""
        due = []
        for log, oldest in self._oldest.items():
            if oldest > self._number - GROUPS:
                break
            due.append(log)
        return due[: AT_ONCE + len(due) // 16]

    def needed_without(self, settled: Collection[L]) -> int:
        """Return the number of the first record that is needed when these logs need none but a next one."""
        for log, oldest in self._oldest.items():
            if log not in settled:
                return oldest
        return self._number + 1

    def drop(self, before: int) -> None:
        """Say that the records before one were deleted."""
        self._first = max(self._first, before)

    @property
    def left_over(self) -> bool:
        """Whether there are records and no log needs any."""
        return not self._oldest and self._first <= self._number

    def settle(self, log: L, *, group: int | None = None) -> None:
        """Say that a log needs no record, or only this, the newest."""
        self._oldest.pop(log, None)
        if group is not None:
            self._oldest[log] = group
