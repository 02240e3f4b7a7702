"""Background work: one life cycle for all parts that work in the background.

Owns the tasks and the handling of their failures: a part that fails is logged and, if it repeats, retried; it never
ends the process. Knows no part by name.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

import anyio
from anyio.abc import TaskGroup

from agentic_rag.base.errors import AgenticRagError

log = logging.getLogger(__name__)

REPORT_SECONDS = 60.0
"""How often a failure is logged that repeats without change: an outage of the database fails each work every second."""
_reports: dict[str, tuple[str, float]] = {}
"""The last logged failure of each failing work, and its time."""

T = TypeVar("T")


class Workers:
    """Tasks that live as long as the block; leaving it cancels them and waits for their ends.

    ``known``: exceptions, in addition to our own, whose text suffices for the log; others are logged with a traceback.
    """

    def __init__(self, *expected: type[Exception]) -> None:
        self._known = expected
        self._tasks: TaskGroup = anyio.create_task_group()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(exc_type, exc, tb)

    def start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run work once. Its failure is logged under ``name``."""
        self._tasks.start_soon(attempt, name, work, self._known)

    def repeat(self, name: str, work: Callable[[], Awaitable[None]], seconds: float, *, at_once: bool = True) -> None:
        """Run work now, or in ``seconds`` unless ``at_once``; and again ``seconds`` after each end."""
        self._tasks.start_soon(self._repeat, name, work, seconds, at_once)

    async def _repeat(self, name: str, work: Callable[[], Awaitable[None]], seconds: float, at_once: bool) -> None:
        if not at_once:
            await anyio.sleep(seconds)
        while True:
            await attempt(name, work, self._known)
            await anyio.sleep(seconds)


async def attempt(name: str, work: Callable[[], Awaitable[None]], expected: tuple[type[Exception], ...] = ()) -> None:
    """Run work whose failure must not end the process: a later run does the remaining work."""
    try:
        await work()
    except Exception as exc:  # no background work may end the server
        if isinstance(exc, (AgenticRagError, *expected)):
            _report(name, str(exc))
        else:
            log.error("%s failed", name, exc_info=exc)
    else:
        _reports.pop(name, None)


def _report(name: str, failure: str) -> None:
    """Log a failure, unless the same one was logged less than `REPORT_SECONDS` ago."""
    now = time.monotonic()
    last_failure, reported_at = _reports.get(name, (None, now))
    if failure != last_failure or now - reported_at >= REPORT_SECONDS:
        _reports[name] = (failure, now)
        log.error("%s: %s", name, failure)


class FairQueue(Generic[T]):
    """Items that wait for a worker; their owners take turns, and each has at most ``most`` items in work."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[str, deque[T]] = {}
        """By owner, in the order of their turns."""
        self._at_work: Counter[str] = Counter()
        self._free = anyio.Event()

    def put(self, owner: str, item: T) -> None:
        self._waiting.setdefault(owner, deque()).append(item)
        self._free.set()

    async def get(self) -> T:
        """Return the first item of the next owner that may begin one. The caller must `release` it."""
        while True:
            for owner, items in self._waiting.items():
                if self._at_work[owner] < self._most:
                    del self._waiting[owner]
                    item = items.popleft()
                    if items:
                        self._waiting[owner] = items  # behind all others
                    self._at_work[owner] += 1  # before the next `await`, so that no other worker exceeds the limit
                    return item
            if self._free.is_set():  # else other workers wait for the same event
                self._free = anyio.Event()
            await self._free.wait()

    def release(self, owner: str) -> None:
        """Record that an owner's item is done."""
        self._at_work[owner] -= 1
        if not self._at_work[owner]:
            del self._at_work[owner]
        self._free.set()


class Queue(Generic[T]):
    """Items that wait for a worker, in their order. Putting one never waits, and nothing has to be closed."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._count = anyio.Semaphore(0)

    def put(self, item: T) -> None:
        self._items.append(item)
        self._count.release()

    async def get(self) -> T:
        """Return the next item, once there is one."""
        await self._count.acquire()
        return self._items.popleft()
