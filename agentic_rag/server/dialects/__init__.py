"""Pure encoders from agent events to wire formats.

Owns the list of dialects and the choice by name. Knows no transport.
"""

from collections.abc import Callable

from agentic_rag.errors import InvalidInput
from agentic_rag.server.dialects.base import Dialect
from agentic_rag.server.dialects.native import Native

__all__ = ["DEFAULT_DIALECT", "Dialect", "choose_dialect", "dialect_names", "get_dialect"]

DEFAULT_DIALECT = "native"

SUBPROTOCOL = "agentic-rag."
"""Prefix of the subprotocols that choose a dialect."""

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


def choose_dialect(offered: list[str]) -> tuple[str, str | None]:
    """Return the dialect and the subprotocol to answer: the first offered one that is known.

    Raises:
        InvalidInput: dialects were offered and none is known.
    """
    names = [protocol.removeprefix(SUBPROTOCOL) for protocol in offered if protocol.startswith(SUBPROTOCOL)]
    refused: InvalidInput | None = None
    for name in names:
        try:
            return get_dialect(name).name, SUBPROTOCOL + name
        except InvalidInput as exc:
            refused = refused or exc
    if refused is not None:
        raise refused
    return DEFAULT_DIALECT, None  # only what was offered may be answered
