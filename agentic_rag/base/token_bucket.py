"""The token bucket: a burst at once, and a rate per second on average. Pure: time is an argument.

Time is in seconds of a monotonic clock; if the clock goes back, nothing is added.
"""


class TokenBucket:
    """Allows ``rate`` per second on average and ``burst`` (at least 1) at once; full at first."""

    __slots__ = ("_at", "_burst", "_level", "_rate")

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = max(1.0, burst)
        self._level = self._burst
        self._at = float("-inf")

    def take(self, now: float, amount: float = 1.0) -> float:
        """Take the amount and return 0; or take nothing and return the seconds until it is available."""
        self._fill(now)
        if self._level >= amount:
            self._level -= amount
            return 0.0
        return (amount - self._level) / self._rate

    def spend(self, now: float, amount: float) -> float:
        """Take the amount, even if it is not available; return the seconds until the debt is paid."""
        self._fill(now)
        self._level -= amount
        return max(0.0, -self._level / self._rate)

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._level = min(self._burst, self._level + (now - self._at) * self._rate)
            self._at = now
