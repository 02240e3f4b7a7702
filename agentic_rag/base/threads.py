"""Blocking work in threads, by domain: a folder that hangs uses up the threads of its own domain only.

Owns the number of threads per domain, the time a caller waits for one, and the handling of abandoned threads. Short
work that belongs to no domain uses `anyio.to_thread` directly, with its own forty threads.
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar, TypeVarTuple, Unpack, cast

import anyio
import anyio.to_thread

from agentic_rag.base.errors import WorkspaceUnavailable

PLACES = 4
"""Maximum number of concurrent threads per domain: enough to keep a slow disk busy."""
PATIENCE_SECONDS = 20.0
"""Seconds that a caller waits for a thread, and a reader for its result."""

T = TypeVar("T")
Args = TypeVarTuple("Args")


class DomainThreads:
    """Threads for the blocking work of all domains, at most ``places`` for each.

    ``owner`` is any key of a domain: its id or its workspace's path. The state of an owner is dropped after its last
    call. Callers are served in the order in which they asked.
    """

    def __init__(self, places: int = PLACES, patience: float = PATIENCE_SECONDS, *, together: float = math.inf) -> None:
        """Store the limits. ``patience`` in seconds; ``together``: concurrent threads of all owners."""
        self._places = places
        self._patience = patience
        self._limiters: dict[str, anyio.CapacityLimiter] = {}
        self._threads = anyio.CapacityLimiter(together)

    @property
    def owners(self) -> frozenset[str]:
        """Owners with work in a thread, or waiting for one."""
        return frozenset(self._limiters)

    async def run(self, owner: str, work: Callable[[Unpack[Args]], T], *args: *Args) -> T:
        """Run work that must be known to have ended, such as a change. A cancelled caller waits for begun work.

        Raises:
            WorkspaceUnavailable: No thread was free for too long; nothing was begun.
        """
        place = await self._enter(owner)
        try:
            return await anyio.to_thread.run_sync(place.work, work, args, limiter=self._threads)
        finally:
            place.give_up()

    async def read(self, owner: str, work: Callable[[Unpack[Args]], T], *args: *Args) -> T:
        """Run short work that changes nothing. No caller waits for work that hangs; its place is taken until it ends.

        Raises:
            WorkspaceUnavailable: There was no free thread, or no result, for too long.
        """
        place = await self._enter(owner)
        results: list[T] = []
        try:
            with anyio.move_on_after(self._patience):
                results.append(
                    await anyio.to_thread.run_sync(
                        place.work, work, args, abandon_on_cancel=True, limiter=self._threads
                    )
                )
        finally:
            place.give_up()
        if not results:
            raise WorkspaceUnavailable(f"a read did not end within {self._patience:g} s")
        return results[0]

    async def _enter(self, owner: str) -> "_Place":
        place = _Place(self, owner)
        limiter = self._limiters.setdefault(owner, anyio.CapacityLimiter(self._places))
        try:
            limiter.acquire_on_behalf_of_nowait(place)  # a free place is taken at once, however late the event loop is
            return place
        except anyio.WouldBlock:
            pass
        try:
            with anyio.move_on_after(self._patience) as waiting:
                await limiter.acquire_on_behalf_of(place)
        except BaseException:
            self._forget(owner)
            raise
        if waiting.cancelled_caught:
            self._forget(owner)
            raise WorkspaceUnavailable(f"{self._places} earlier operations on it have not ended")
        return place

    def leave(self, place: "_Place") -> None:
        """Release a place for the next waiter. Called in the event loop, once for each place."""
        self._limiters[place.owner].release_on_behalf_of(place)
        self._forget(place.owner)

    def _forget(self, owner: str) -> None:
        """Drop the state of an idle owner."""
        limiter = self._limiters.get(owner)
        if limiter is not None and not limiter.borrowed_tokens and not limiter.statistics().tasks_waiting:
            del self._limiters[owner]  # owners come and go, and nothing else removes them


def one_thread() -> DomainThreads:
    """Return threads with a single place, for work that keeps a processor busy; its owners (users) take turns.

    Many such threads at once would take the interpreter from the event loop, which every client waits for. Each owner
    has at most one waiting piece of work, so that no owner waits for more than one piece of each other owner.
    """
    return DomainThreads(1, math.inf, together=1)


class _Place:
    """One of an owner's places: held until its thread ends, or until it is released before the thread began."""

    __slots__ = ("_free", "_loop", "_threads", "owner")

    def __init__(self, threads: DomainThreads, owner: str) -> None:
        self.owner = owner
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._free = [True]
        """Emptied atomically, by the thread or by the caller that gives up; the other one then does nothing."""

    def work(self, work: Callable[[Unpack[Args]], T], args: tuple[*Args]) -> T:
        """Run the work in its thread, and release the place."""
        if not self._claim():
            return cast(T, None)  # its caller has gone, and nothing was begun
        try:
            return work(*args)
        finally:
            with suppress(RuntimeError):  # the loop ended before the thread
                self._loop.call_soon_threadsafe(self._threads.leave, self)

    def give_up(self) -> None:
        """Release the place, unless a thread holds it: the thread releases it when it ends."""
        if self._claim():
            self._threads.leave(self)

    def _claim(self) -> bool:
        try:
            return self._free.pop()
        except IndexError:
            return False
