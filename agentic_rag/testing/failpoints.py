"""Failpoints: places where a test lets the process die as by ``kill -9``.

Owns the reading of ``name:n`` (the n-th time, from 1). Inside `agentic_rag.base.failpoints.heard_by`, in a test's own
program, the failpoint is called at the product's places.
"""

import os
from collections import Counter
from collections.abc import Callable

VARIABLE = "AGENTIC_RAG_FAILPOINT"
EXIT_CODE = 86
"""Exit code by which a test knows that the place was reached."""


def failpoint_of(setting: str) -> Callable[[str], None]:
    """Return the failpoint for ``name:n``; empty: one that does nothing."""
    name, _, number = setting.partition(":")
    reached: Counter[str] = Counter()

    def failpoint(point: str) -> None:
        reached[point] += 1
        if point == name and reached[point] == int(number or 1):
            os._exit(EXIT_CODE)  # no handler, no flush: only the kernel's state survives

    return failpoint
