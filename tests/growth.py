"""Measure how the CPU time of a function grows with its input, robustly against noise.

The garbage collector is off during a measurement, because its pauses depend on the rest of the process. The minimum of
several runs counts, because disturbances only add time.
"""

import gc
import time
from collections.abc import Callable

RUNS = 2
LEAST = 0.02
"""Minimum cost in seconds. Smaller costs are replaced by it, because their ratio is meaningless."""


def growth(run: Callable[[str], object], short: str, long: str) -> float:
    """Return the CPU time of ``run(long)`` divided by that of ``run(short)``."""
    return _cost(run, long) / max(_cost(run, short), LEAST)


def _cost(run: Callable[[str], object], text: str) -> float:
    costs = []
    enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(RUNS):
            start = time.process_time()
            run(text)
            costs.append(time.process_time() - start)
    finally:
        if enabled:
            gc.enable()
    return min(costs)
