"""Pure encoders from agent events to formats that clients read.

Owns the list of dialects, ours and installed ones, and the choice by name. Knows no transport.
"""

import logging
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points

from agentic_rag.errors import InvalidInput
from agentic_rag.server.dialects.base import Dialect
from agentic_rag.server.dialects.native import Native

__all__ = ["DEFAULT_DIALECT", "Dialect", "choose_dialect", "dialect_names", "get_dialect"]

log = logging.getLogger(__name__)

DEFAULT_DIALECT = "native"

SUBPROTOCOL = "agentic-rag."
"""Prefix of the subprotocols that choose a dialect."""

GROUP = "agentic_rag.dialects"
"""The entry points by which installed distributions add dialects; see ``base``."""

_OWN: dict[str, Callable[[], Dialect]] = {"native": Native}


def dialect_names() -> tuple[str, ...]:
    """Return the names a client may ask for."""
    return (*_OWN, *(name for name in _load_installed() if name not in _OWN))


def get_dialect(name: str) -> Dialect:
    """Return a new encoder for one stream. None that is installed takes the place of one of ours.

    Raises:
        InvalidInput: no dialect has this name; the message lists those there are.
    """
    factory = _OWN.get(name) or _load_installed().get(name)
    if factory is None:
        raise InvalidInput("dialect", f"{name[:40]!r} is not known. Known: {', '.join(dialect_names())}.")
    return factory()


@cache
def _load_installed() -> Mapping[str, Callable[[], Dialect]]:
    """Return the dialects of installed distributions; one that cannot be imported is logged and not offered."""
    factories: dict[str, Callable[[], Dialect]] = {}
    for entry in entry_points(group=GROUP):
        try:
            factories[entry.name] = entry.load()
        except Exception as exc:  # somebody else's module: it must not end a stream of ours
            log.error("dialect %s (%s) cannot be loaded", entry.name, entry.value, exc_info=exc)
    return factories


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
