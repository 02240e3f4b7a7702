"""Ids and times of records."""

import os
import threading
import time
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Final

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: digits sort in the order of their values
_PAIRS: Final = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
"""The two-digit text of each number below 1024."""
_DIGITS: Final = 26
_PLACES: Final = tuple(range(120, -1, -10))
"""The bit shift of each of an id's 13 digit pairs."""


def _base32(number: int) -> str:
    """Return a 130-bit number as 26 digits."""
    return "".join([_PAIRS[number >> place & 1023] for place in _PLACES])


def new_id(prefix: str) -> str:
    """Return a new id such as ``turn_01j…``: 48 bits of creation time in ms, then 80 random bits (as ULID).

    Ids sort in creation order, also within one millisecond, after the clock is set back, and after a restart
    (`advance_ids`). The next id cannot be guessed.
    """
    return f"{prefix}_{_base32(_ids.take(time.time_ns() // 1_000_000))}"


def advance_ids(stored_id: str) -> None:
    """Make all further ids of this process sort after a stored id; a text that is no id is ignored.

    The clock of the process that created the stored id may have been ahead of this one.
    """
    global _last_now
    number = _number_of(stored_id)
    if number is not None:
        _ids.advance(number)
        _last_now = (0, "")


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
    """Return an id that sorts before or equal to every id created from ``seconds`` after 1970 on."""
    return f"{prefix}_{_base32(max(0, round(seconds * 1000)) << 80)}"


class _Ids:
    """The number of the last id of this process, which only grows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def take(self, ms: int) -> int:
        with self._lock:
            is_later = ms > self._last >> 80
            random = int.from_bytes(os.urandom(10 if is_later else 8), "big")  # same as `secrets`, with fewer calls
            self._last = ms << 80 | random if is_later else self._last + 1 + random
            return self._last

    def advance(self, number: int) -> None:
        with self._lock:
            self._last = max(self._last, number)

    @property
    def ms(self) -> int:
        """The time of the last id in milliseconds."""
        return self._last >> 80


_ids: Final = _Ids()

_STEP_MS: Final = 60_000
"""A smaller backward step of the clock, in ms, is hidden from records: `now` waits for the clock to catch up."""


_last_now: tuple[int, str] = (0, "")
"""The clock's last time in milliseconds, and the result of `now` for it.

Each delta has a time, and several come within one millisecond. One tuple, because `now` is called in any thread.
"""


def _not_before_last_id(ms: int) -> int:
    last = _ids.ms
    return last if 0 < last - ms < _STEP_MS else ms


def now() -> str:
    """Return the current UTC time as ISO-8601 text with milliseconds and ``Z``.

    While the clock is less than a minute behind the last id, this returns the time of that id. Lists sorted by time
    thus stay in order when a time service sets the clock back.
    """
    global _last_now
    ms = time.time_ns() // 1_000_000
    last_ms, text = _last_now
    if ms != last_ms:
        whole, rest = divmod(_not_before_last_id(ms), 1000)
        text = f"{_second(whole)}.{rest:03d}Z"
        _last_now = ms, text
    return text


def today() -> date:
    """Return the current day in UTC."""
    return datetime.now(UTC).date()


def later(seconds: float) -> str:
    """Return the time ``seconds`` from now, in the format of `now`."""
    return _text(time.time_ns() // 1_000_000 + round(seconds * 1000))


def seconds_of(time_text: str) -> float:
    """Return the seconds from 1970 to a UTC time, or to the start of a date."""
    return datetime.fromisoformat(time_text).replace(tzinfo=UTC).timestamp()


def seconds_until(time_text: str) -> float:
    """Return the seconds until a time in the format of `now`."""
    return seconds_of(time_text) - time.time()


def seconds_until_epoch(seconds: float) -> float:
    """Return the seconds until a time given in seconds since 1970."""
    return seconds - time.time()


def time_text(seconds: float) -> str:
    """Return a time given in seconds since 1970 in the format of `now`."""
    return _text(round(seconds * 1000))


def _text(milliseconds: int) -> str:
    whole, rest = divmod(milliseconds, 1000)
    return f"{_second(whole)}.{rest:03d}Z"


@lru_cache(maxsize=64)
def _second(whole: int) -> str:
    """Format a whole second. Cached, because each delta asks for the time and most deltas share a second."""
    return datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
