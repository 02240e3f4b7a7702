"""Retries of failed model calls. Pure: elapsed time and randomness are arguments.

Owns which errors are retried, and the delay before a retry. The agent sleeps. The model adapter only reports the error.
"""

import re
from dataclasses import dataclass

from agentic_rag.base.errors import ModelError

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
"""A common form: This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (…)."""
MAX_STEP_RESETS = 3
"""Most retries of a step after its answer had begun to stream."""
MAX_UNTIMED = 3
"""Most retries of a service that is rate limited (429) and names no time."""
MAX_TIMED = 5
"""Most retries of a service that is rate limited (429), even if it names a time."""
FIRST_DELAY = 0.5
MAX_DELAY = 16.0
"""Seconds. The delay doubles from `FIRST_DELAY` up to this one."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """The failed attempts of a step. ``waited``: seconds."""

    failed: int = 0
    resets: int = 0
    waited: float = 0.0


def retry_delay(error: ModelError, so_far: Attempts, budget: float, chance: float) -> float | None:
    """Return the seconds to wait before the next attempt, or None to give up.

    Args:
        error: the error of the last attempt.
        so_far: earlier attempts of this step.
        budget: most seconds that one step may wait in total.
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
        # The service names a minimum. The backoff also applies to a service that answers "1 s" every time.
        delay = max(delay, error.retry_after)
    return delay if so_far.waited + delay <= budget else None


def is_busy(error: ModelError) -> bool:
    """Return whether a model's service is overloaded or rate limited, so that another model may be asked."""
    return error.http_status in (429, 529) or error.kind in ("overloaded_error", "rate_limit_error")


def is_too_long(error: ModelError) -> bool:
    """Return whether a service refused a request because of its length."""
    return error.http_status == 413 or (error.http_status == 400 and _TOO_LONG.search(str(error)) is not None)


def sizes_of(error: ModelError) -> tuple[int, int] | None:
    """Return the tokens of a refused request and the model's limit, or None if the error does not name them."""
    text = str(error)
    if chat := _SIZES_OF_CHAT.search(text):
        had, most = int(chat["had"]), int(chat["most"])
        return (had, most) if had > most > 0 else None
    match = _SIZES.search(text)
    return (int(match[1]), int(match[2])) if match and int(match[1]) > int(match[2]) > 0 else None


def after(error: ModelError, so_far: Attempts, delay: float) -> Attempts:
    """Return the attempts including the one that just failed."""
    return Attempts(so_far.failed + 1, so_far.resets + error.started, so_far.waited + delay)
