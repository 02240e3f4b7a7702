"""The pause between two looks at something that offers no event.

Whoever waits without one takes a whole core from those who are waited for, and children have a lower priority than we.
"""

import time

import anyio

SECONDS = 0.02


async def pause() -> None:
    await anyio.sleep(SECONDS)


def pause_thread() -> None:
    time.sleep(SECONDS)
