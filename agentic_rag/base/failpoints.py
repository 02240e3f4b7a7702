"""Places at which a kill must do no harm: named where they are, heard by tests alone.

Owns nothing but who hears. A place is a name such as ``commit.ready``; outside a test nobody hears, and reaching one
costs a comparison.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_listener: Callable[[str], object] | None = None


def reached(name: str) -> None:
    """Say that a place is reached. What the listener raises is raised here."""
    if _listener is not None:
        _listener(name)


@contextmanager
def heard_by(listener: Callable[[str], object]) -> Iterator[None]:
    """Let a test hear of each place that any thread of this process reaches, as long as the block runs."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before
