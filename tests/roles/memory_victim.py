"""A process that writes memories to the database until it is killed. Its parent reads which ones were confirmed.

Its arguments are URL, WORKSPACE, PLACE and NTH: the process kills itself when ``PLACE`` (see `failpoints`) is reached
for the NTH time. If PLACE is empty, the parent kills it.
"""

import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

from agentic_rag.base import failpoints
from mcp_servers.promptx.new_engrams import NewEngram

from .memory_stores import Ground

BATCHES = 1000
SIZE = 3


def batch(number: int) -> list[NewEngram]:
    return [NewEngram("c" * 300, f"shared n{number}x{part}", 0.5, "LINK") for part in range(SIZE)]


def main() -> None:
    url, workspace, place, occurrence = sys.argv[1:]
    remaining = int(occurrence)

    def die(point: str) -> None:
        nonlocal remaining
        remaining -= point == place
        if point == place and not remaining:
            os.kill(os.getpid(), signal.SIGKILL)

    with ExitStack() as stack, failpoints.heard_by(die):
        memory = Ground(Path(workspace), stack, url).memory()
        for number in range(BATCHES):
            memory.remember(batch(number), 1000 + number)
            print(number, flush=True)  # noqa: T201 - the test reads it
