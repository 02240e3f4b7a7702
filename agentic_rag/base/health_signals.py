"""Recent outcomes of a part that is used again and again: a model, the store, the index, the embedder.

Owns the window and the resulting state: ready, degraded or down. A part that was never used is ready. A part whose last
use failed keeps that state until it succeeds, however long ago the failure was. Times are seconds since 1970, given by
the caller. Knows no part.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

WINDOW_SECONDS = 300.0
MOST = 256
"""Maximum number of outcomes kept: for a busier part the window is shorter."""


class PartState(StrEnum):
    """The state of a part, worst last."""

    READY = "ready"
    DEGRADED = "degraded"
    DOWN = "down"


def worst(states: "list[PartState]") -> PartState:
    """Return the worst of several states; ready if there are none."""
    return max(states, key=list(PartState).index, default=PartState.READY)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure of a part. ``code``: for programs; ``reason``: for operators, not redacted."""

    at: float
    code: str
    reason: str


class Outcomes:
    """The last outcomes of one part. ``tolerated``: the share of failures up to which a working part is ready."""

    def __init__(self, tolerated: float = 1.0) -> None:
        self._tolerated = tolerated
        self._lately: deque[tuple[float, bool]] = deque(maxlen=MOST)
        self.last_success: float | None = None
        self.last_failure: Failure | None = None
        self.failing = False
        """Whether the last use failed."""

    def note_success(self, at: float) -> None:
        """Record a successful use."""
        self._lately.append((at, True))
        self.last_success, self.failing = at, False

    def note_failure(self, at: float, code: str, reason: str) -> None:
        """Record a failed use."""
        self._lately.append((at, False))
        self.last_failure, self.failing = Failure(at, code, reason), True

    def count(self, at: float) -> tuple[int, int]:
        """Return the numbers of uses and failures in the window before ``at``."""
        within = [done for when, done in self._lately if when > at - WINDOW_SECONDS]
        return len(within), within.count(False)

    def state(self, at: float) -> PartState:
        """Return the state: down if the last use failed and none in the window succeeded."""
        calls, failures = self.count(at)
        if self.failing:
            return PartState.DEGRADED if failures < calls else PartState.DOWN
        return PartState.DEGRADED if calls and failures / calls > self._tolerated else PartState.READY
