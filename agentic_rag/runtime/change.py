"""Something that happens again and again, as those see it who wait for the next time.

Owns what they wait for. Where nobody waits, that it happens costs nothing.
"""

import anyio


class Change:
    """What happens."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next: anyio.Event | None = None

    @property
    def next(self) -> anyio.Event:
        """What is set when it happens next."""
        if self._next is None:
            self._next = anyio.Event()
        return self._next

    def happen(self) -> None:
        """Wake all who wait."""
        if self._next is not None:
            self._next.set()
            self._next = None
