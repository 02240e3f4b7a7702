"""Blocking work in threads, by domain: one domain's folder that hangs takes threads from that domain alone.

Owns how many threads a domain may have at once, how long a caller waits for one, and what becomes of a thread that
nobody waits for any more. What belongs to no domain and is short uses `anyio.to_thread` itself, with its own forty
threads.
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
"""Threads of one domain at once: as many as keep a slow disk busy."""
PATIENCE_SECONDS = 20.0
"""How long a caller waits for a thread, and a reader for what it reads."""

T = TypeVar("T")
Args = TypeVarTuple("Args")


class DomainThreads:
    """Threads for the blocking work of all domains, ``places`` for each at once.

    ``owner`` is whatever stands for a domain: its id or its workspace's path. What is kept of an owner goes with its
    last call. Callers come in the order in which they asked.
    """

    def __init__(self, places: int = PLACES, patience: float = PATIENCE_SECONDS, *, together: float = math.inf) -> None:
        """``patience`` in seconds; ``together``: threads of all owners at once."""
        self._places = places
        self._patience = patience
        self._limiters: dict[str, anyio.CapacityLimiter] = {}
        self._threads = anyio.CapacityLimiter(together)

    @property
    def owners(self) -> frozenset[str]:
        """Those with work in a thread, or that wait for one."""
        return frozenset(self._limiters)

    async def run(self, owner: str, work: Callable[[Unpack[Args]], T], *args: *Args) -> T:
        """Do work that must be known to have ended, as a change. Once it has begun, a cancelled caller waits for it.

        Raises:
            WorkspaceUnavailable: there was no place for too long; nothing was begun.
        """
        place = await self._enter(owner)
        try:
            return await anyio.to_thread.run_sync(place.work, work, args, limiter=self._threads)
        finally:
            place.give_up()

    async def read(self, owner: str, work: Callable[[Unpack[Args]], T], *args: *Args) -> T:
        """Do short work that changes nothing. Nobody waits for one that hangs; its place is taken until it ends.

        Raises:
            WorkspaceUnavailable: there was no place, or no result, for too long.
        """
        place = await self._enter(owner)
        found: list[T] = []
        try:
            with anyio.move_on_after(self._patience):
                found.append(
                    await anyio.to_thread.run_sync(
                        place.work, work, args, abandon_on_cancel=True, limiter=self._threads
                    )
                )
        finally:
            place.give_up()
        if not found:
            raise WorkspaceUnavailable(f"a read did not end within {self._patience:g} s")
        return found[0]

    async def _enter(self, owner: str) -> "_Place":
        place = _Place(self, owner)
        limiter = self._limiters.setdefault(owner, anyio.CapacityLimiter(self._places))
        try:
            limiter.acquire_on_behalf_of_nowait(place)  # one that is free is had, however late the loop is
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
            raise WorkspaceUnavailable(f"{self._places} other operations in it do not end")
        return place

    def leave(self, place: "_Place") -> None:
        """Give a place to the next one who waits for it. In the event loop, once for each place."""
        self._limiters[place.owner].release_on_behalf_of(place)
        self._forget(place.owner)

    def _forget(self, owner: str) -> None:
        """Keep nothing of an owner for whom nothing goes on."""
        limiter = self._limiters.get(owner)
        if limiter is not None and not limiter.borrowed_tokens and not limiter.statistics().tasks_waiting:
            del self._limiters[owner]


def one_thread() -> DomainThreads:
    """Return the one thread for work that keeps a processor busy, in which its owners (users) take turns.

    Many such threads at once would take the interpreter from the event loop, which every client waits for. Of each
    owner one piece of work waits for it at a time, so that nobody waits for more than one piece of each other.
    """
    return DomainThreads(1, math.inf, together=1)


class _Place:
    """One of an owner's places, until its thread is done, or until it is given up before that began."""

    __slots__ = ("_free", "_loop", "_threads", "owner")

    def __init__(self, threads: DomainThreads, owner: str) -> None:
        self.owner = owner
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._free = [True]
        """Emptied in one step, by the thread or by who gives up: the other one finds nothing to do."""

    def work(self, work: Callable[[Unpack[Args]], T], args: tuple[*Args]) -> T:
        """Do the work, in its thread, and leave."""
        if not self._claim():
            return cast(T, None)  # nobody waits for it, and nothing was begun
        try:
            return work(*args)
        finally:
            with suppress(RuntimeError):  # the loop ended before the thread
                self._loop.call_soon_threadsafe(self._threads.leave, self)

    def give_up(self) -> None:
        """Leave, unless a thread has it: that one leaves when it is done."""
        if self._claim():
            self._threads.leave(self)

    def _claim(self) -> bool:
        try:
            return self._free.pop()
        except IndexError:
            return False
