"""Measure the event loop's delay while a hostile server floods one domain and another domain calls its own server.

This module contains no tests; times are figures for a report. The tests of invariants are in tests/tools.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from agentic_rag.tools.launch.policy import LaunchPolicy, LiftedRules
from agentic_rag.tools.status import ConnectionTimeouts
from agentic_rag.tools.toolset import open_toolset
from tests.tools.support import Hub, call, hostile

FLOODS: Sequence[tuple[str, int]] = (
    ("nothing", 0), ("requests", 0), ("progress", 0), ("log", 0), ("log", 200_000), ("changes", 0), ("answers", 0),
    ("answers", 900_000), ("garbage", 0),
)  # fmt: skip
"""Kinds of floods, and the bytes of each message. ``nothing`` is the measurement without a flood."""

CALLS = 200
"""Sequential calls of the other domain during the flood."""


@dataclass
class Gaps:
    """Delays of the event loop in seconds, one for each sample."""

    seconds: list[float] = field(default_factory=list)

    def quantile(self, share: float) -> float:
        return sorted(self.seconds)[min(len(self.seconds) - 1, int(len(self.seconds) * share))]


@asynccontextmanager
async def watch_loop(gaps: Gaps, pause: float = 0.001) -> AsyncIterator[None]:
    """Sample the event loop's delay until the block ends."""

    async def look() -> None:
        while True:
            before = anyio.current_time()
            await anyio.sleep(pause)
            gaps.seconds.append(anyio.current_time() - before - pause)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        yield
        tasks.cancel_scope.cancel()


@dataclass(frozen=True)
class Outcome:
    """Result of a flood.

    ``calls`` holds the seconds of each call of the other domain; ``reason`` says why the flooding server was stopped.
    """

    gaps: Gaps
    calls: list[float]
    reason: str


async def flood_beside(folder: Path, what: str, size: int) -> Outcome:
    """Let one domain's server flood while another domain makes its calls. Return the cost for the other domain."""
    policy = LaunchPolicy(folder, lifted=LiftedRules(any_command=True, loopback=True))
    flood_options: dict[str, Any] = {"what": what, "size": size} if what != "nothing" else {"what": "log", "count": 0}
    gaps, calls = Gaps(), list[float]()
    async with Hub(policy=policy, patience=ConnectionTimeouts(initialize=30, backoff=60)) as hub:
        modest = await open_toolset(hub, [hostile(domain="modest")], wait=60)
        greedy = await open_toolset(hub, [hostile(name="greedy", domain="greedy")], wait=60)
        async with anyio.create_task_group() as tasks, watch_loop(gaps):
            tasks.start_soon(partial(call, greedy, "flood", 30, **flood_options))
            for _ in range(CALLS):
                start = anyio.current_time()
                await call(modest, "fine", 30)
                calls.append(anyio.current_time() - start)
            tasks.cancel_scope.cancel()
        reason = next((status.reason for status in hub.status() if status.name == "greedy"), "")
    policy.sweep()
    return Outcome(gaps, calls, reason)
