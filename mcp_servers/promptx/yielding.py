"""Long work of a thread gives way to other threads, the event loop's among them.

Owns how long it does. A thread that computes is made to give up the interpreter every 5 ms by those that wait for it.
One that lets go of it by itself again and again, as with each row of SQLite and each read of a file, has it back before
they wake, and they begin to wait anew: a loop stood still for 50 to 600 ms so.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

PAUSE_SECONDS: Final = 0.0002
"""Long enough for another thread to wake and take its turn."""


def giving_way(items: Iterable[T], every: int) -> Iterator[T]:
    """Yield the items; before each ``every``th of them, the first one too, other threads have their turn."""
    for number, item in enumerate(items):
        if number % every == 0:
            time.sleep(PAUSE_SECONDS)
        yield item
