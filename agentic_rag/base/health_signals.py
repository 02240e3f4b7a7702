"""What lately became of something that is asked again and again: a model, the store, the index, the embedder.

Owns the window and what follows from it: whether the part is ready, degraded or down. A part that nobody asked yet is
ready, and one that failed last stays so until it succeeds, however long ago that was. Times are seconds since 1970,
given by the caller. Knows no part.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

WINDOW_SECONDS = 300.0
MOST = 256
"""Outcomes that are kept: of a busier part the window is shorter."""


class PartState(StrEnum):
    """How a part is, worst last."""

    READY = "ready"
    DEGRADED = "degraded"
    DOWN = "down"


def worst(states: "list[PartState]") -> PartState:
    """Return the worst of several states; of none, ready."""
    return max(states, key=list(PartState).index, default=PartState.READY)


@dataclass(frozen=True, slots=True)
class Failure:
    """``code``: for programs; ``reason``: for operators, not redacted."""

    at: float
    code: str
    reason: str


class Outcomes:
    """The last outcomes of one part. ``tolerated``: the share of failures that a part which succeeds again may have."""

    def __init__(self, tolerated: float = 1.0) -> None:
        self._tolerated = tolerated
        self._lately: deque[tuple[float, bool]] = deque(maxlen=MOST)
        self.last_success: float | None = None
        self.last_failure: Failure | None = None
        self.failing = False
        """Whether it failed when it was asked last."""

    def note_success(self, at: float) -> None:
        """Note that it did what it was asked."""
        self._lately.append((at, True))
        self.last_success, self.failing = at, False

    def note_failure(self, at: float, code: str, reason: str) -> None:
        """Note that it did not."""
        self._lately.append((at, False))
        self.last_failure, self.failing = Failure(at, code, reason), True

    def count(self, at: float) -> tuple[int, int]:
        """Return how often it was asked in the window before ``at``, and how often it failed."""
        within = [done for when, done in self._lately if when > at - WINDOW_SECONDS]
        return len(within), within.count(False)

    def state(self, at: float) -> PartState:
        """Return how it is: down when it failed last and nothing in the window succeeded."""
        calls, failures = self.count(at)
        if self.failing:
            return PartState.DEGRADED if failures < calls else PartState.DOWN
        return PartState.DEGRADED if calls and failures / calls > self._tolerated else PartState.READY
