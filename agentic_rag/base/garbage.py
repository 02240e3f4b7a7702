"""Garbage collection in a serving process: rare, and never in objects that were loaded for good.

Owns the collector's thresholds and the times of full collections. A full collection walks every object that is not
frozen and blocks everything else: with the clients of models and of MCP included, each stream stops for 50 to 165 ms.
"""

import gc
from typing import Final, Protocol

THRESHOLDS: Final = (2_000, 5, 1_000)
"""New containers per collection of the youngest generation, and collections of each generation per one of the next.

With Python's own values (700, 10, 10), a busy server walks its live conversations every few seconds. A collection of
the middle generation walks some 10 000 objects: 9 to 13 ms at most with 60 streams on a busy machine. With five times
as many it took 18 to 32 ms.
"""
QUIET_SECONDS: Final = 60.0
"""Seconds between two checks whether the server is idle."""


def do_not_look() -> None:
    """Disable collection until `set_aside`: objects that are created at start live for ever."""
    gc.disable()


def set_aside() -> None:
    """Freeze all present objects, and collect new ones rarely."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.enable()


class BlockingWork(Protocol):
    """The work that a collection would block."""

    @property
    def running_count(self) -> int: ...


async def look_where_quiet(turns: BlockingWork) -> None:
    """Run a full collection, unless a turn runs or there are too few new objects.

    Otherwise, old garbage would be collected while streams run: each stream adds some 500 objects to walk.
    """
    new_generations = gc.get_count()[2]  # collections of the middle generation since the last full one
    if new_generations and not turns.running_count:
        gc.collect()
