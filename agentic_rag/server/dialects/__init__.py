"""Pure encoders from agent events to wire formats.

Owns the list of dialects and the choice by name. Knows no transport.
"""

from collections.abc import Callable

from agentic_rag.errors import InvalidInput
from agentic_rag.server.dialects.base import Dialect
from agentic_rag.server.dialects.native import Native

__all__ = ["DEFAULT_DIALECT", "Dialect", "dialect_names", "get_dialect"]

DEFAULT_DIALECT = "native"

_FACTORIES: dict[str, Callable[[], Dialect]] = {"native": Native}


def dialect_names() -> tuple[str, ...]:
    """Return the names a client may ask for."""
    return tuple(_FACTORIES)


def get_dialect(name: str) -> Dialect:
    """Return a new encoder for one stream.

    Raises:
        InvalidInput: no dialect has this name; the message lists those there are.
    """
    factory = _FACTORIES.get(name)
    if factory is None:
        raise InvalidInput("dialect", f"{name[:40]!r} is not known. Known: {', '.join(_FACTORIES)}.")
    return factory()
