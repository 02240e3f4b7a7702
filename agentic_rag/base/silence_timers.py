"""Timers for a peer's silence that do not count what this process missed while it was suspended.

A process that is stopped (SIGSTOP, a frozen container, a paused machine) or whose event loop was blocked finds all its
timers overdue when it resumes, while the peer's bytes wait unread in the sockets. A plain timer would end the exchange
before the event loop has read them. These timers check twice: when one is due, the event loop gets time to read, and
only silence after that counts.
"""

import asyncio
import math
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import anyio

SECOND_LOOK_SECONDS: Final = 0.1
"""Time that the event loop gets to read after a timer was due on time."""

SUSPENDED_SECONDS: Final = 0.25
"""A timer that runs this many seconds late shows that this process was suspended."""

RESUMED_SECONDS: Final = 5.0
"""Time that a peer gets after this process was suspended: the peer may have been suspended with it."""


class SilenceTimer:
    """Calls a function once a peer was silent up to a deadline. `deadline` may be moved at any time, at no cost."""

    def __init__(self, expire: Callable[[], object], deadline: float = math.inf) -> None:
        """Arm the timer.

        ``expire`` is called at most once. ``deadline``: a time of the event loop; infinite means no limit.
        """
        self._expire = expire
        self._loop = asyncio.get_running_loop()
        self._deadline = deadline
        self._handle: asyncio.TimerHandle | None = None
        self._due = math.inf
        """When the armed timer is due; uvloop's handles do not always know."""
        self._looked_at = math.nan
        """The deadline that had passed at the first check."""
        self._stopped = False
        self._arm(deadline)

    @property
    def deadline(self) -> float:
        """When the peer's silence ends the exchange, as a time of the event loop."""
        return self._deadline

    @deadline.setter
    def deadline(self, deadline: float) -> None:
        self._deadline = deadline
        # A later deadline needs no new timer: the armed one finds it when it is due.
        if not self._stopped and deadline < self._due:
            self._arm(deadline)

    def stop(self) -> None:
        """Forget the deadline for good."""
        self._stopped = True
        if self._handle is not None:
            self._handle.cancel()

    def _arm(self, when: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._due = when
        self._handle = None if math.isinf(when) else self._loop.call_at(when, self._look)

    def _look(self) -> None:
        due = self._deadline
        late = self._loop.time() - self._due
        if late > SUSPENDED_SECONDS:  # this process was suspended, and perhaps the peer with it
            self._looked_at = due
            self._arm(max(due, self._loop.time() + RESUMED_SECONDS))
        elif due > self._loop.time() and self._looked_at != due:  # the peer was heard, which moved the deadline
            self._arm(due)
        elif self._looked_at != due:  # due for the first time: the event loop gets time to read
            self._looked_at = due
            self._arm(self._loop.time() + SECOND_LOOK_SECONDS)
        else:
            self._stopped = True
            self._expire()


class SilenceScope:
    """A cancel scope that ends when a peer was silent for this many seconds; `heard` restarts the time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._scope = anyio.CancelScope()
        self._timer: SilenceTimer | None = None

    def heard(self) -> None:
        """Record a sign of life."""
        if self._timer is not None:
            self._timer.deadline = anyio.current_time() + self._seconds

    @property
    def expired(self) -> bool:
        """Whether the block was cancelled by silence."""
        return self._scope.cancelled_caught

    def __enter__(self) -> Self:
        self._scope.__enter__()
        self._timer = SilenceTimer(self._scope.cancel, anyio.current_time() + self._seconds)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._timer is not None:
            self._timer.stop()
        return bool(self._scope.__exit__(exc_type, exc, traceback))
