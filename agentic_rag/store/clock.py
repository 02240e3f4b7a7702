"""Ids and times of records."""

import os
import threading
import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: sorts as the numbers do
_PAIRS: Final = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
"""The two digits of each number below 1024."""
_DIGITS: Final = 26
_PLACES: Final = tuple(range(120, -1, -10))
"""Of the 13 pairs of an id, by how many bits each is shifted."""


def _base32(number: int) -> str:
    """Return a number of 130 bits as 26 digits."""
    return "".join([_PAIRS[number >> place & 1023] for place in _PLACES])


def new_id(prefix: str) -> str:
    """Return a new id such as ``turn_01j…``: its time of creation (48 bits of ms), then 80 random bits (as ULID).

    Ids sort in the order in which they were made, also within a millisecond, while the clock goes back, and after a
    restart (`advance_ids`). The next id cannot be guessed.
    """
    return f"{prefix}_{_base32(_ids.take(time.time_ns() // 1_000_000))}"


def advance_ids(stored: str) -> None:
    """Let all further ids of this process sort after one that is stored already; a text that is no id is ignored.

    The process that made the stored id may have had a clock that was ahead of this one.
    """
    number = _number_of(stored)
    if number is not None:
        _ids.advance(number)


def _number_of(ident: str) -> int | None:
    digits = ident.rpartition("_")[2]
    if len(digits) != _DIGITS:
        return None
    number = 0
    for digit in digits:
        value = _ALPHABET.find(digit)
        if value < 0:
            return None
        number = number << 5 | value
    return number


def first_id(prefix: str, seconds: float) -> str:
    """Return an id that no id sorts before that is made so many seconds after 1970 or later."""
    return f"{prefix}_{_base32(max(0, round(seconds * 1000)) << 80)}"


class _Ids:
    """The numbers of a process's ids, which only grow."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def take(self, ms: int) -> int:
        with self._lock:
            is_later = ms > self._last >> 80
            random = int.from_bytes(os.urandom(10 if is_later else 8), "big")  # what `secrets` does in more calls
            self._last = ms << 80 | random if is_later else self._last + 1 + random
            return self._last

    def advance(self, number: int) -> None:
        with self._lock:
            self._last = max(self._last, number)

    @property
    def ms(self) -> int:
        """The time of the last id."""
        return self._last >> 80


_ids: Final = _Ids()

_STEP_MS: Final = 60_000
"""A clock that steps back by less than this shows in no time of a record: `now` waits for the clock instead."""


def _now_ms() -> int:
    ms = time.time_ns() // 1_000_000
    last = _ids.ms
    return last if 0 < last - ms < _STEP_MS else ms


def now() -> str:
    """Return the present UTC time as ISO-8601 text with milliseconds and ``Z``.

    While the clock is less than a minute behind the last id, this is the time of that id: then lists that people sort
    by time stay in order when a time service sets the clock back.
    """
    whole, rest = divmod(_now_ms(), 1000)
    return f"{_second(whole)}.{rest:03d}Z"


def later(seconds: float) -> str:
    """Return the time so many seconds from now, as `now` writes it."""
    return _text(time.time_ns() // 1_000_000 + round(seconds * 1000))


def seconds_of(time_text: str) -> float:
    """Return how many seconds after 1970 a UTC time is, or a day begins, that texts have."""
    return datetime.fromisoformat(time_text).replace(tzinfo=UTC).timestamp()


def seconds_until(time_text: str) -> float:
    """Return how far ahead a time is that `now` or `later` wrote."""
    return seconds_of(time_text) - time.time()


def seconds_until_epoch(seconds: float) -> float:
    """Return how far ahead a time is, given in seconds since 1970."""
    return seconds - time.time()


def time_text(seconds: float) -> str:
    """Return a time of so many seconds since 1970 as texts have it."""
    return _text(round(seconds * 1000))


def _text(milliseconds: int) -> str:
    whole, rest = divmod(milliseconds, 1000)
    return f"{_second(whole)}.{rest:03d}Z"


@lru_cache(maxsize=64)
def _second(whole: int) -> str:
    """Kept: each delta asks for the time, and most of them share a second."""
    return datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
