"""Limits on the messages that a server sends unasked, and on the wait for its first answer.

Owns the bounds on requests, notifications and unrequested answers of one session over any transport, and the timeout of
the newer era's first question: a server that does not answer it is asked in the older era's way within the same start.
Knows neither processes nor HTTP.
"""

import contextlib
import math
from collections.abc import Callable
from contextlib import AsyncExitStack
from contextvars import Context
from types import TracebackType
from typing import Any, Self

import anyio
import mcp_types as types
from mcp.client import Transport
from mcp.shared.message import SessionMessage

from agentic_rag.base.token_bucket import TokenBucket
from agentic_rag.tools.server_answers import READ_METHODS, RESOURCE_METHODS, wrap_answer

REQUESTS, REQUESTS_A_SECOND = 100, 10.0
"""Requests of a server: burst size, and average per second; each costs an answer."""

NOTICES, NOTICES_A_SECOND = 500, 100.0
"""Notifications that are passed on; the rest is dropped: each is sent again soon, or was sent just before."""

MESSAGES, MESSAGES_A_SECOND = 20_000, 2_000.0
"""All unrequested messages, dropped or not."""

PARTS = 20_000
"""Items and members of one message that the protocol library validates, each against every possible type."""

_OPAQUE = frozenset({"structuredContent", "inputSchema", "outputSchema", "_meta"})
"""Members that are arbitrary JSON to the library: it validates nothing inside them."""

OPEN_QUESTIONS = 4_096
"""Maximum number of our unanswered requests that are remembered."""

DISCOVER = "server/discover"
"""The newer era's first question."""

_HANDSHAKE = frozenset({DISCOVER, "initialize"})

Item = SessionMessage | Exception


class Inflow:
    """Counts the messages that one server sends. Pure: time is an argument."""

    def __init__(self) -> None:
        self._asked: dict[str, str] = {}
        self._requests = TokenBucket(REQUESTS_A_SECOND, REQUESTS)
        self._notices = TokenBucket(NOTICES_A_SECOND, NOTICES)
        self._messages = TokenBucket(MESSAGES_A_SECOND, MESSAGES)

    def ask(self, message: types.JSONRPCMessage) -> None:
        """Record a message of ours, so that one answer to it is expected."""
        if isinstance(message, types.JSONRPCRequest):
            self._asked[str(message.id)] = message.method
            if len(self._asked) > OPEN_QUESTIONS:
                self._asked.pop(next(iter(self._asked)))  # its caller gave up long ago

    def method_of(self, item: Item) -> str:
        """Return the method of our request that a message answers; empty for every other message."""
        message = item.message if isinstance(item, SessionMessage) else None
        return self._asked.get(str(message.id), "") if isinstance(message, types.JSONRPCResponse) else ""

    def excess(self, item: Item, now: float) -> str:
        """Return why a server that sent this message must be disconnected; empty if it may continue."""
        message = item.message if isinstance(item, SessionMessage) else None
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError) and str(message.id) in self._asked:
            # Expected once: a second answer with this id counts as unrequested.
            del self._asked[str(message.id)]
            return ""
        if self._messages.take(now) > 0:
            return f"it sent more than {MESSAGES} unrequested messages"
        if isinstance(message, types.JSONRPCRequest) and self._requests.take(now) > 0:
            return f"it sent more than {REQUESTS} requests, and more than {REQUESTS_A_SECOND:g} a second"
        return ""

    def passes(self, item: Item, now: float) -> bool:
        """Return whether to pass a message on; dropped messages cost nothing but their reading."""
        if not isinstance(item, SessionMessage) or not isinstance(item.message, types.JSONRPCNotification):
            return True
        return self._notices.take(now) == 0


def _is_wide(item: Item) -> bool:
    """Return whether a message has more than `PARTS`, which would take seconds of the event loop to be read."""
    message = item.message if isinstance(item, SessionMessage) else None
    if isinstance(message, types.JSONRPCResponse):
        layer: list[Any] = [message.result]
    elif isinstance(message, types.JSONRPCRequest | types.JSONRPCNotification):
        layer = [message.params]
    else:
        return False
    count = 0
    while layer:
        inside: list[Any] = []
        for node in layer:
            if isinstance(node, dict):
                inside += [value for key, value in node.items() if key not in _OPAQUE]
            elif isinstance(node, list):
                inside += node
        count += len(inside)
        if count > PARTS:
            return True
        layer = inside
    return False


class BoundedTransport:
    """A transport with these limits, as a `mcp.client.Transport`. Single use."""

    def __init__(self, transport: Transport, on_lost: Callable[[str], None], probe: float) -> None:
        """Store the inner transport.

        ``on_lost`` is called with the reason when the server is disconnected. ``probe``: seconds for its first answer.
        """
        self._transport = transport
        self._lost = on_lost
        self._probe = probe
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Any:
        read, write = await self._stack.enter_async_context(self._transport)
        inflow = Inflow()
        inbound = _Inbound(read, inflow, self._lost, self._probe)
        return inbound, _Outbound(write, inflow, inbound)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(exc_type, exc, traceback)


def _refuse_answer(answer: types.JSONRPCResponse) -> SessionMessage:
    error = types.ErrorData(code=types.INTERNAL_ERROR, message=f"The answer was refused: more than {PARTS} parts.")
    return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=answer.id, error=error))


def _read_leniently(item: Item, method: str) -> Item:
    """Return an answer in a form that the protocol library accepts; see `wrap_answer`."""
    if method not in READ_METHODS:
        return item
    assert isinstance(item, SessionMessage)
    assert isinstance(item.message, types.JSONRPCResponse)
    answer = item.message.model_copy(update={"result": wrap_answer(method, item.message.result)})
    return SessionMessage(answer, item.metadata)


class _Inbound:
    """The messages of a server that may pass, read in the session's own task."""

    def __init__(self, stream: Any, inflow: Inflow, on_lost: Callable[[str], None], probe: float) -> None:
        self._stream = stream
        self._inflow = inflow
        self._lost = on_lost
        self._probe = probe
        self._asked: types.RequestId | None = None
        self._deadline = math.inf
        self._settled = False
        self._reading = anyio.CancelScope()

    @property
    def last_context(self) -> Context | None:
        """The context in which the message of the related call was sent, if the transport knows it."""
        return getattr(self._stream, "last_context", None)

    def ask_first(self, ident: types.RequestId, method: str) -> None:
        """Record a question of the handshake; only the newer era's first one has the short probe timeout."""
        self._asked = ident
        self._deadline = anyio.current_time() + self._probe if method == DISCOVER else math.inf
        self._reading.deadline = self._deadline  # the session is waiting for it already

    async def receive(self) -> Item:
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        while True:
            item: Item = await (self._stream.__anext__() if self._settled else self._next_of_handshake())
            now = anyio.current_time()
            method = self._inflow.method_of(item)
            reason = self._inflow.excess(item, now)
            if reason:
                self._lost(reason)
                raise StopAsyncIteration
            if not self._inflow.passes(item, now):
                continue
            if method in RESOURCE_METHODS or not _is_wide(item):  # the library validates none of those answers
                return _read_leniently(item, method)
            assert isinstance(item, SessionMessage)
            if isinstance(item.message, types.JSONRPCResponse):
                return _refuse_answer(item.message)
            if isinstance(item.message, types.JSONRPCRequest):
                self._lost(f"it sent a request of more than {PARTS} parts")
                raise StopAsyncIteration

    async def _next_of_handshake(self) -> Item:
        while True:
            with anyio.CancelScope(deadline=self._deadline) as self._reading:
                item: Item = await self._stream.__anext__()
                message = item.message if isinstance(item, SessionMessage) else None
                if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
                    self._settled = message.id != self._asked  # an answer of the normal session
                    self._deadline = math.inf
                return item
            if anyio.current_time() >= self._deadline and self._asked is not None:
                self._deadline = math.inf
                error = types.ErrorData(code=types.REQUEST_TIMEOUT, message=f"no answer to {DISCOVER}")
                return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=self._asked, error=error))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(anyio.ClosedResourceError):
            await self.aclose()


class _Outbound:
    """Sends our messages, and records them so that their answers are expected."""

    def __init__(self, stream: Any, inflow: Inflow, inbound: _Inbound) -> None:
        self._stream = stream
        self._inflow = inflow
        self._inbound = inbound

    async def send(self, item: SessionMessage) -> None:
        message = item.message
        self._inflow.ask(message)
        if isinstance(message, types.JSONRPCRequest) and message.method in _HANDSHAKE:
            self._inbound.ask_first(message.id, message.method)
        await self._stream.send(item)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stream.__aexit__(exc_type, exc, traceback)
