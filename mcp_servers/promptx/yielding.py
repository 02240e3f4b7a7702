"""Pauses in the long work of a thread, so that other threads run, including the event loop's.

Owns the length of a pause. Waiting threads force a computing thread to release the interpreter lock every 5 ms. A
thread that often releases the lock itself, with each row of SQLite or each read of a file, reacquires it before the
waiting threads wake up. Their wait then starts again. In this way an event loop was blocked for 50 to 600 ms.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

PAUSE_SECONDS: Final = 0.0002
"""Pause length. Another thread has enough time to wake up and acquire the interpreter lock."""


def giving_way(items: Iterable[T], every: int) -> Iterator[T]:
    """Yield the items, and pause for other threads before the first and then before each ``every``th item."""
    for number, item in enumerate(items):
        if number % every == 0:
            time.sleep(PAUSE_SECONDS)
        yield item
