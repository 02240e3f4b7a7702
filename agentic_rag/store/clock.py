"""Ids and times of records."""

import secrets
import time
from datetime import UTC, datetime
from functools import lru_cache

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: sorts as the numbers do


def _base32(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 32)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


def new_id(prefix: str) -> str:
    """Return a new id such as ``turn_01j…``: sorts by creation time (ms), then 80 random bits (as ULID)."""
    return f"{prefix}_{_base32(time.time_ns() // 1_000_000, 10)}{_base32(secrets.randbits(80), 16)}"


def now() -> str:
    """Return the present UTC time as ISO-8601 text with milliseconds and ``Z``."""
    return _text(time.time_ns() // 1_000_000)


def later(seconds: float) -> str:
    """Return the time so many seconds from now, as `now` writes it."""
    return _text(time.time_ns() // 1_000_000 + round(seconds * 1000))


def _text(milliseconds: int) -> str:
    whole, rest = divmod(milliseconds, 1000)
    return f"{_second(whole)}.{rest:03d}Z"


@lru_cache(maxsize=64)
def _second(whole: int) -> str:
    """Kept: each delta asks for the time, and most of them share a second."""
    return datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
