"""Pure encoders from agent events to the formats of clients.

Lists the built-in and installed dialects, selects one by name, and resumes in the middle of a stream. Knows no
transport.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import entry_points

from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.events import AgentEvent
from agentic_rag.server.dialects.ag_ui import AgUi
from agentic_rag.server.dialects.agentx import AgentX
from agentic_rag.server.dialects.answer import AnswerDialect
from agentic_rag.server.dialects.base import Dialect, FrameCodec, Headers
from agentic_rag.server.dialects.chat import Chat
from agentic_rag.server.dialects.knowledge import KnowledgeDialect
from agentic_rag.server.dialects.message import MessageDialect, MessageFrames
from agentic_rag.server.dialects.native import Native
from agentic_rag.server.dialects.observable import Observable, ObservableFrames
from agentic_rag.server.dialects.openai_chat import OpenAiChat
from agentic_rag.server.dialects.ui_message import UiMessage
from agentic_rag.server.ws.frames import NativeFrames

__all__ = [
    "DEFAULT_DIALECT",
    "Dialect",
    "FrameCodec",
    "choose_dialect",
    "dialect_names",
    "get_codec",
    "get_dialect",
    "join",
    "joins_repeats",
]

log = logging.getLogger(__name__)

DEFAULT_DIALECT = "native"

SUBPROTOCOL = "agentic-rag."
"""Prefix of the WebSocket subprotocols that select a dialect."""

PARAMETER = "dialect"
"""The query parameter that selects a dialect."""

GROUP = "agentic_rag.dialects"
"""Entry point group by which installed distributions add dialects; see `agentic_rag.server.dialects.base`."""

_OWN: dict[str, Callable[[], Dialect]] = {
    "native": Native,
    "observable": Observable,
    "message": MessageDialect,
    "agentx": AgentX,
    "knowledge": KnowledgeDialect,
    "chat": Chat,
    "ag-ui": AgUi,
    "ui-message": UiMessage,
    "openai": OpenAiChat,
}

_STRICT = partial(NativeFrames, forbid_unknown=True)

_CODECS: dict[str, Callable[[], FrameCodec]] = {
    "observable": ObservableFrames,
    "message": MessageFrames,
    "agentx": _STRICT,
    "knowledge": _STRICT,
    "chat": _STRICT,
}
"""Frame codecs of dialects whose sockets differ from the native one.

The older contracts do not change, so an unknown key is a mistake of the client and is refused.
"""


def dialect_names() -> tuple[str, ...]:
    """Return the names that a client may select."""
    return (*_OWN, *(name for name in _load_installed() if name not in _OWN))


def get_dialect(name: str) -> Dialect:
    """Return a new encoder for one stream. An installed dialect cannot replace a built-in one.

    Raises:
        InvalidInput: no dialect has this name; the message lists the known names.
    """
    factory = _OWN.get(name) or _load_installed().get(name)
    if factory is None:
        raise InvalidInput("dialect", f"{name[:40]!r} is not known. Known: {', '.join(dialect_names())}.")
    return factory()


def joins_repeats(name: str) -> bool:
    """Return whether clients of a dialect join the running turn by sending the same message again.

    Such clients cannot retract text, so after a lost stream they send the message again to get the answer.
    """
    factory = _OWN.get(name)
    return isinstance(factory, type) and issubclass(factory, AnswerDialect)


def get_codec(name: str) -> FrameCodec:
    """Return the frame codec for one socket of a dialect."""
    return _CODECS.get(name, NativeFrames)()


@cache
def _load_installed() -> Mapping[str, Callable[[], Dialect]]:
    """Return the dialects of installed distributions. One that cannot be imported is logged and left out."""
    factories: dict[str, Callable[[], Dialect]] = {}
    for entry in entry_points(group=GROUP):
        try:
            factories[entry.name] = entry.load()
        except Exception as exc:  # a foreign module must not end a stream
            log.error("dialect %s (%s) cannot be loaded", entry.name, entry.value, exc_info=exc)
    return factories


def choose_dialect(
    offered: Sequence[str], parameter: str | None = None, default: str = DEFAULT_DIALECT
) -> tuple[str, str | None]:
    """Return the dialect of a socket, and the subprotocol to answer with.

    The first known dialect among the offered subprotocols wins, then ``parameter`` (the ``?dialect=`` of the address),
    then ``default``, the operator's setting.

    Raises:
        InvalidInput: dialects were requested, but none is known.
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
    # Answer only with an offered subprotocol.
    return get_dialect(default if parameter is None else parameter).name, None


def join(dialect: Dialect, after: int) -> Dialect:
    """Return an encoder for a reader that has all events of a turn up to number ``after``.

    If it `needs_start`, feed it from event 1, otherwise from the event after ``after``.
    """
    return _Later(dialect, after) if after and dialect.needs_start else dialect


class _Later:
    """An encoder that is fed from the start of a stream and outputs only events that its reader lacks."""

    needs_start = True

    def __init__(self, dialect: Dialect, after: int) -> None:
        self._dialect = dialect
        self._after = after
        self._seq = 0

    @property
    def name(self) -> str:
        return self._dialect.name

    @property
    def headers(self) -> Headers:
        return self._dialect.headers

    @property
    def ended(self) -> bool:
        return self._dialect.ended and self._seq > self._after

    def sse(self, event: AgentEvent) -> bytes:
        self._seq = event.seq or self._seq
        encoded = self._dialect.sse(event)
        return b"" if 0 < event.seq <= self._after else encoded

    def frames(self, event: AgentEvent) -> tuple[bytes, ...]:
        self._seq = event.seq or self._seq
        encoded = self._dialect.frames(event)
        return () if 0 < event.seq <= self._after else encoded
