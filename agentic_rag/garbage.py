"""When Python looks for garbage in a serving process: seldom, and never in what was loaded for good.

Owns the collector's thresholds. A full collection walks every object that is not set aside, while nothing else runs:
with the clients of models and of MCP in it, each stream stands still for 50 to 165 ms.
"""

import gc
from typing import Final

THRESHOLDS: Final = (5_000, 10, 100)
"""New containers a collection of the youngest, and how many of each generation one of the next. Of Python's own
(700, 10, 10) a busy server walks its live conversations every few seconds."""


def do_not_look() -> None:
    """Look for none until `set_aside`: what a start makes lives for ever."""
    gc.disable()


def set_aside() -> None:
    """Never look again at what there is now, and seldom at what comes."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.enable()
