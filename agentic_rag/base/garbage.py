"""When Python looks for garbage in a serving process: seldom, and never in what was loaded for good.

Owns the collector's thresholds and when all garbage is looked for. A full collection walks every object that is not set
aside, while nothing else runs: with the clients of models and of MCP in it, each stream stands still for 50 to 165 ms.
"""

import gc
from typing import Final, Protocol

THRESHOLDS: Final = (2_000, 5, 1_000)
"""New containers a collection of the youngest, and how many of each generation one of the next. Of Python's own
(700, 10, 10) a busy server walks its live conversations every few seconds. One of the middle generation walks some
10 000: 9 to 13 ms at the longest beside 60 streams on a busy machine, where it was 18 to 32 with five times as many."""
QUIET_SECONDS: Final = 60.0
"""Between two looks whether it is quiet."""


def do_not_look() -> None:
    """Look for none until `set_aside`: what a start makes lives for ever."""
    gc.disable()


def set_aside() -> None:
    """Never look again at what there is now, and seldom at what comes."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.enable()


class Turns(Protocol):
    """What would stand still while garbage is looked for."""

    @property
    def running_count(self) -> int: ...


async def look_where_quiet(turns: Turns) -> None:
    """Look for all garbage, unless a turn runs or hardly anything came.

    What is old and garbage would else be looked for beside streams: each of them is some 500 objects to walk.
    """
    came = gc.get_count()[2]  # collections of the middle generation since the last full one
    if came and not turns.running_count:
        gc.collect()
