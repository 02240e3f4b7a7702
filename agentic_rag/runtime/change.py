"""Something that happens, again and again or once, as those see it who wait for it.

Owns what they wait for. Where nobody waits, that it happens costs nothing.
"""

import asyncio


class Change:
    """What happens."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next: asyncio.Event | None = None

    @property
    def next(self) -> asyncio.Event:
        """What is set when it happens next."""
        if self._next is None:
            self._next = asyncio.Event()
        return self._next

    async def wait(self) -> None:
        """Wait until it happens next."""
        await self.next.wait()

    def happen(self) -> None:
        """Wake all who wait."""
        if self._next is not None:
            self._next.set()
            self._next = None


class Once:
    """What happens once, for good."""

    __slots__ = ("_change", "happened")

    def __init__(self) -> None:
        self.happened = False
        self._change = Change()

    def happen(self) -> None:
        """Wake all who wait, now and later."""
        self.happened = True
        self._change.happen()

    async def wait(self) -> None:
        """Wait until it has happened."""
        if not self.happened:
            await self._change.wait()
