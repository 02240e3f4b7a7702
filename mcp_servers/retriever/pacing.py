"""How much to ask of something in one call, so that each call takes about as long as wanted. Pure: no clock."""

SMOOTHING = 0.2
"""What the newest call counts in the estimate."""

OUTLIER = 4
"""A call counts as at most this many times as slow as expected: what a new file or a busy machine cost says little."""


class Pace:
    """`batch` is how many items the next call should have, between `least` and `most`."""

    def __init__(self, seconds: float, least: int, most: int) -> None:
        self._seconds = seconds
        self._least = least
        self._most = most
        self._each = seconds / least

    @property
    def batch(self) -> int:
        return min(max(int(self._seconds / self._each), self._least), self._most)

    def took(self, items: int, seconds: float) -> None:
        """A call with `items` took so long."""
        self._each += SMOOTHING * (min(seconds / items, OUTLIER * self._each) - self._each)
