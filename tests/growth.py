"""How the cost of a function grows with its input, told from CPU time without being at the mercy of it.

Owns nothing. The garbage collector is off while something is measured (its pauses belong to whatever else the process
holds), and the cheapest of several runs counts: what disturbs a run only ever adds.
"""

import gc
import time
from collections.abc import Callable

RUNS = 2
LEAST = 0.02
"""Seconds below which a cost is taken to be this: a ratio of smaller ones says nothing."""


def growth(run: Callable[[str], object], short: str, long: str) -> float:
    """Return how many times the CPU time of ``run(short)`` ``run(long)`` takes."""
    return _cost(run, long) / max(_cost(run, short), LEAST)


def _cost(run: Callable[[str], object], text: str) -> float:
    costs = []
    enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(RUNS):
            began = time.process_time()
            run(text)
            costs.append(time.process_time() - began)
    finally:
        if enabled:
            gc.enable()
    return min(costs)
