"""Group commits of the journal: events of several turns in one shared record.

Owns the content of a group, the time when a turn's events are stored as rows of its own, and which records are needed
until then.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from sqlalchemy import Connection

from agentic_rag.base.ids import TurnId
from agentic_rag.store import run_events, run_groups
from agentic_rag.store.fences import list_held
from agentic_rag.store.run_events import EventBatch


class _Log(Protocol):
    turn_id: TurnId
    fence: int


L = TypeVar("L")
H = TypeVar("H", bound=_Log)

GROUPS = 128
"""Records after which a turn's events are stored as rows. Limits the work of a start after a kill."""
AT_ONCE = 8
"""Turns that are settled with one record, plus a sixteenth of all that are due, to keep each transaction short."""


class Groups(Generic[L]):
    """The records and logs of one process. Records are written one after another, in the order of their numbers."""

    def __init__(self) -> None:
        self._number = time.time_ns()  # greater than any number of an earlier process
        self._oldest: dict[L, int] = {}
        """The oldest record that each log needs, sorted by record."""
        self._first = self._number + 1
        """The first record that may exist; earlier ones were deleted."""

    def begin(self, logs: Iterable[L]) -> int:
        """Return the number of the next record, which will contain events of these logs."""
        self._number += 1
        for log in logs:
            self._oldest.setdefault(log, self._number)
        return self._number

    def due(self) -> list[L]:
        """Return the logs whose events have been in records for longest, to write as rows with the next record."""
        due = []
        for log, oldest in self._oldest.items():
            if oldest > self._number - GROUPS:
                break
            due.append(log)
        return due[: AT_ONCE + len(due) // 16]

    def needed_without(self, settled: Collection[L]) -> int:
        """Return the first record that is needed once the ``settled`` logs need none before the next record."""
        for log, oldest in self._oldest.items():
            if log not in settled:
                return oldest
        return self._number + 1

    def drop(self, before: int) -> None:
        """Note that the records before ``before`` were deleted."""
        self._first = max(self._first, before)

    @property
    def left_over(self) -> bool:
        """Whether records exist that no log needs."""
        return not self._oldest and self._first <= self._number

    def settle(self, log: L, *, group: int | None = None) -> None:
        """Note that a log needs no record, or only ``group``, the newest."""
        self._oldest.pop(log, None)
        if group is not None:
            self._oldest[log] = group


@dataclass(slots=True, eq=False)
class EventGroup(Generic[H]):
    """The content of one journal write: a batch of each log, and the rows of the logs that are settled.

    ``number``: the record for the batches. None: the batches are stored as rows too, and no log is settled. ``needed``:
    the first record that is needed after the write. ``lost``: logs whose turns now run in other processes; none of
    their events are stored.
    """

    batches: Mapping[H, EventBatch]
    settling: Mapping[H, EventBatch]
    number: int | None
    needed: int
    lost: set[H] = field(default_factory=set)

    @property
    def count(self) -> int:
        """The number of events in the batches."""
        return sum(len(batch.events) for batch in self.batches.values())

    def write(self, conn: Connection) -> None:
        """Store the group. The transaction may be retried."""
        logs_by_turn = {log.turn_id: log for log in (*self.batches, *self.settling)}
        held_ids = list_held(conn, {turn_id: log.fence for turn_id, log in logs_by_turn.items()})
        self.lost.clear()
        if len(held_ids) < len(logs_by_turn):
            self.lost.update(log for turn_id, log in logs_by_turn.items() if turn_id not in held_ids)
        batches = self._without_lost(self.batches)
        if self.number is None:
            run_events.append(conn, batches)
            return
        run_groups.add(conn, self.number, batches)
        if self.settling:
            run_events.append(conn, self._without_lost(self.settling))
            run_groups.drop_before(conn, self.needed)

    def _without_lost(self, batches: Mapping[H, EventBatch]) -> Iterable[EventBatch]:
        if not self.lost:
            return batches.values()
        return [batch for log, batch in batches.items() if log not in self.lost]
