"""Notifications for tasks of one event loop: a repeated one and a single one.

A notification without waiting tasks costs nothing.
"""

import asyncio


class Notifier:
    """A notification that can happen many times."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next: asyncio.Event | None = None

    @property
    def next(self) -> asyncio.Event:
        """The event that is set at the next notification."""
        if self._next is None:
            self._next = asyncio.Event()
        return self._next

    async def wait(self) -> None:
        """Wait for the next notification."""
        await self.next.wait()

    def happen(self) -> None:
        """Wake all waiting tasks."""
        if self._next is not None:
            self._next.set()
            self._next = None


class Once:
    """A notification that happens once and stays set."""

    __slots__ = ("_change", "happened")

    def __init__(self) -> None:
        self.happened = False
        self._change = Notifier()

    def happen(self) -> None:
        """Wake all waiting tasks, and let later ones pass at once."""
        self.happened = True
        self._change.happen()

    async def wait(self) -> None:
        """Wait until the notification has happened."""
        if not self.happened:
            await self._change.wait()
