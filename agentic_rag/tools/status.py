"""The states of a connection, how long it waits for what, and what an admin is shown of it.

Owns values only. Knows no server and no task.
"""

from dataclasses import dataclass
from typing import Literal

State = Literal["starting", "ready", "degraded", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a connection waits for what; seconds. ``idle`` None: never stopped for want of calls.

    ``retired``: what ``idle`` becomes when its entry is changed; a turn that began before may still use it.
    """

    initialize: float = 10.0
    close: float = 6.0
    idle: float | None = 600.0
    retired: float = 30.0
    backoff: float = 0.25
    failures: int = 3
    window: float = 60.0


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What an admin is shown of one connection. ``stderr``: the last lines the server wrote there."""

    name: str
    domain: str
    user: str
    state: State
    reason: str
    tools: int
    protocol: str
    stderr: tuple[str, ...]
