"""Adaptive batch sizes, so that each call takes about the wanted time. The caller measures the time."""

SMOOTHING = 0.2
"""Weight of the newest call in the estimate."""

OUTLIER = 4
"""Largest ratio of a call's time to the estimate: longer times come from new files or a busy machine and are capped."""


class Pace:
    """Estimates the time of an item; `batch` is the number of items for the next call, from `least` to `most`."""

    def __init__(self, seconds: float, least: int, most: int) -> None:
        self._seconds = seconds
        self._least = least
        self._most = most
        self._each = seconds / least

    @property
    def batch(self) -> int:
        return min(max(int(self._seconds / self._each), self._least), self._most)

    def took(self, items: int, seconds: float) -> None:
        """Record the duration of a call with `items`."""
        self._each += SMOOTHING * (min(seconds / items, OUTLIER * self._each) - self._each)
