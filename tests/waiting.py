"""The pause between two checks in a polling loop.

A loop without a pause would occupy a core that the awaited processes need, and children have a lower priority. A check
over HTTP costs 5 ms of CPU, so a loop of such checks passes its number of checks, and its pauses grow.
"""

import time

import anyio

SECONDS = 0.05
LONGEST_SECONDS = 0.5


async def pause(checks: int = 0) -> None:
    await anyio.sleep(min(SECONDS * 1.25 ** min(checks, 20), LONGEST_SECONDS))


def pause_thread() -> None:
    time.sleep(SECONDS)
