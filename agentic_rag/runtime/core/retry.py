"""When a failed model call is tried again. Pure: time spent and chance are arguments.

Owns which errors are worth another try and how long is waited before it. The agent sleeps; the model adapter only says
what happened.
"""

import re
from dataclasses import dataclass

from agentic_rag.errors import ModelError

_TOO_LONG = re.compile(
    r"prompt is too long|context[ _](?:length|size|window|limit)|request_too_large|too many (?:input )?tokens",
    re.IGNORECASE,
)
_SIZES = re.compile(r"(\d+) tokens > (\d+)")
_SIZES_OF_CHAT = re.compile(
    r"(?:maximum context length is|context size \(|n_ctx\D{0,4}|context window of) ?(?P<most>\d+)"
    r".{0,200}?(?P<had>\d+) tokens",
    re.IGNORECASE | re.DOTALL,
)
"""As most say: This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (…)."""
MAX_STEP_RESETS = 3
"""How often a step that had begun to stream is run again."""
MAX_UNTIMED = 3
"""How often a service is asked again that takes no more requests and does not say until when."""
MAX_TIMED = 5
"""How often a service is asked again that takes no more requests, whatever time it names."""
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
    if error.http_status == 429 and error.retry_after is None and so_far.failed >= MAX_UNTIMED:
        return None
    if error.http_status == 429 and so_far.failed >= MAX_TIMED:
        return None
    delay = min(MAX_DELAY, FIRST_DELAY * 2**so_far.failed) * (0.5 + chance / 2)
    if error.retry_after is not None:
        # The service says the least: one that says "1 s" every time is asked less and less often all the same.
        delay = max(delay, error.retry_after)
    return delay if so_far.waited + delay <= budget else None


def is_busy(error: ModelError) -> bool:
    """Whether a model's service takes no more requests: another's may."""
    return error.http_status in (429, 529) or error.kind in ("overloaded_error", "rate_limit_error")


def is_too_long(error: ModelError) -> bool:
    """Whether a model refused a request for its length."""
    return error.http_status == 413 or (error.http_status == 400 and _TOO_LONG.search(str(error)) is not None)


def sizes_of(error: ModelError) -> tuple[int, int] | None:
    """Return how many tokens a refused request had and how many it may have, None where the service does not say."""
    text = str(error)
    if chat := _SIZES_OF_CHAT.search(text):
        had, most = int(chat["had"]), int(chat["most"])
        return (had, most) if had > most > 0 else None
    found = _SIZES.search(text)
    return (int(found[1]), int(found[2])) if found and int(found[1]) > int(found[2]) > 0 else None


def after(error: ModelError, so_far: Attempts, delay: float) -> Attempts:
    """Return the tries including the one that just failed."""
    return Attempts(so_far.failed + 1, so_far.resets + error.started, so_far.waited + delay)
