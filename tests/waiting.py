"""The pause between two checks in a polling loop.

A loop without a pause would occupy a core that the awaited processes need, and children have a lower priority.
"""

import time

import anyio

SECONDS = 0.02


async def pause() -> None:
    await anyio.sleep(SECONDS)


def pause_thread() -> None:
    time.sleep(SECONDS)
