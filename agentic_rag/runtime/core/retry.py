"""When a failed model call is tried again. Pure: time spent and chance are arguments.

Owns which errors are worth another try and how long is waited before it. The agent sleeps; the model adapter only says
what happened.
"""

import re
from dataclasses import dataclass

from agentic_rag.errors import ModelError

_TOO_LONG = re.compile(
    r"prompt is too long|context[ _]length|context window|context limit|request_too_large|too many (?:input )?tokens",
    re.IGNORECASE,
)
_SIZES = re.compile(r"(\d+) tokens > (\d+)")
MAX_STEP_RESETS = 3
"""How often a step that had begun to stream is run again."""
FIRST_DELAY = 0.5
MAX_DELAY = 16.0
"""Seconds; the delay doubles from the first to the last."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """What a step's tries have cost so far: ``waited`` in seconds."""

    failed: int = 0
    resets: int = 0
    waited: float = 0.0


def retry_delay(error: ModelError, so_far: Attempts, budget: float, chance: float) -> float | None:
    """Return the seconds to wait before the next try, or None to give up.

    Args:
        error: why the last try failed.
        so_far: earlier tries of this step.
        budget: seconds one step may wait in all.
        chance: 0..1, the jitter.
    """
    if not error.retryable:
        return None
    if error.started and so_far.resets >= MAX_STEP_RESETS:
        return None
    if error.retry_after is not None:
        delay = error.retry_after
    else:
        delay = min(MAX_DELAY, FIRST_DELAY * 2**so_far.failed) * (0.5 + chance / 2)
    return delay if so_far.waited + delay <= budget else None


def is_too_long(error: ModelError) -> bool:
    """Whether a model refused a request for its length."""
    return error.http_status == 413 or (error.http_status == 400 and _TOO_LONG.search(str(error)) is not None)


def sizes_of(error: ModelError) -> tuple[int, int] | None:
    """Return how many tokens a refused request had and how many it may have, None where the service does not say."""
    found = _SIZES.search(str(error))
    return (int(found[1]), int(found[2])) if found and int(found[1]) > int(found[2]) > 0 else None


def after(error: ModelError, so_far: Attempts, delay: float) -> Attempts:
    """Return the tries including the one that just failed."""
    return Attempts(so_far.failed + 1, so_far.resets + error.started, so_far.waited + delay)
