"""Pauses: no document of a domain is stored while its collection is exchanged.

Owns who works in which domain and who waits. Knows no document.
"""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio


class Pauses:
    """Many may work in a domain, or one may have it to itself."""

    def __init__(self) -> None:
        self._changed = anyio.Condition()
        self._working: Counter[str] = Counter()
        self._paused: set[str] = set()

    @asynccontextmanager
    async def working(self, domain_id: str) -> AsyncIterator[None]:
        """Work in a domain, once it is not paused."""
        async with self._changed:
            while domain_id in self._paused:
                await self._changed.wait()
            self._working[domain_id] += 1
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):  # a lock that is held for no longer than a line
                async with self._changed:
                    self._working[domain_id] -= 1
                    self._changed.notify_all()

    @asynccontextmanager
    async def paused(self, domain_id: str) -> AsyncIterator[None]:
        """Have a domain to oneself, once nobody works in it."""
        async with self._changed:
            while domain_id in self._paused:
                await self._changed.wait()
            self._paused.add(domain_id)
            try:
                while self._working[domain_id]:
                    await self._changed.wait()
            except BaseException:
                self._paused.discard(domain_id)
                self._changed.notify_all()
                raise
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):  # as above
                async with self._changed:
                    self._paused.discard(domain_id)
                    self._changed.notify_all()
