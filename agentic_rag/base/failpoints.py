"""Failpoints: named places at which a kill must do no harm, observed by tests only.

Owns the listener. A place has a name such as ``commit.ready``. Outside a test there is no listener, and reaching a
place costs one comparison.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_listener: Callable[[str], object] | None = None


def reached(name: str) -> None:
    """Report that a place is reached. An exception of the listener is raised here."""
    if _listener is not None:
        _listener(name)


@contextmanager
def heard_by(listener: Callable[[str], object]) -> Iterator[None]:
    """Report each place that any thread of this process reaches to a test's listener, while the block runs."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before
