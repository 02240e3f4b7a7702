"""uvicorn's HTTP protocol with limits on headers, bodies, answers and connections of unknown clients.

Limits each connection until a request on it is authenticated, refuses connections over the limits, and counts
unauthenticated connections. Knows no route and no key: the guard reports that a request was admitted.

uvicorn only limits the idle time between two requests. A connection that sends nothing, half a header, a header of 300
MB, or an unfinished body stays open as long as its peer wants. One `Entrance` is shared by the connections of a
listening server; ``uvicorn.Config`` takes it as ``http``. With plain uvicorn::

    uvicorn agentic_rag.app.asgi:app --http agentic_rag.server.http_protocol:ENTRANCE
"""

import asyncio
import resource
import socket
from asyncio import BaseTransport, TimerHandle
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from agentic_rag.base.errors import AgenticRagError, HeadersTooLarge, MalformedRequest, RequestTimeout, ServerBusy
from agentic_rag.server.peer_credentials import uid_of
from agentic_rag.server.replies import HEADERS, refusal
from agentic_rag.server.ws.connection import ARRIVAL
from agentic_rag.store.clock import new_id

RETRY_SECONDS = 5.0
"""Retry delay for clients that were refused because of too many connections."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of a connection, in bytes and seconds.

    Attributes:
        header_bytes: of one request's target and header fields.
        header_seconds: from the first byte of the connection or request to the end of its header.
        body_seconds: without a byte of an unfinished body.
        send_seconds: during which the peer reads nothing.
        linger_seconds: how long input is read and dropped after a refusal. Closing with unread input resets the
            connection, and the peer would not see the error.
        strangers: connections without an admitted request; never more than a quarter of the descriptors.
        lingering: refused connections that linger at once; further ones are closed at once.
    """

    header_bytes: int = 64 * 1024
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    send_seconds: float = 30.0
    linger_seconds: float = 1.0
    strangers: int = 512
    lingering: int = 128


def raise_descriptor_limit() -> None:
    """Raise this process's limit of open files to the maximum that the system permits."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptor_limit() -> int:
    """Return the maximum number of descriptors of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


class Entrance:
    """State shared by the connections of one listening server.

    Holds their limits, and the connections without an admitted request ("strangers").

    A new connection is accepted as long as there are descriptors. If there are too many strangers, the oldest stranger
    of the address with the most strangers is closed. So a client with a key, which needs some milliseconds to send it,
    gets in even during a flood of others.
    """

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self.limits = limits or ConnectionLimits()
        self.lingering = 0
        self._strangers: dict[HttpProtocol, str] = {}  # the oldest first, each with its address
        self._addresses: Counter[str] = Counter()

    def __call__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> "HttpProtocol":
        """Return the protocol of a new connection. This is uvicorn's protocol factory."""
        return HttpProtocol(self, config, server_state, app_state, _loop)

    @property
    def strangers(self) -> int:
        """Number of connections without an admitted request."""
        return len(self._strangers)

    def enter(self, connection: "HttpProtocol", descriptor: int) -> None:
        """Count a new connection. Refuse it if descriptors run short; close another stranger if there are too many."""
        limit = descriptor_limit()
        if descriptor >= limit - min(1024, limit // 8):  # descriptors are numbered from the lowest free one
            connection.refuse(ServerBusy(RETRY_SECONDS))
            return
        address = connection.client[0] if connection.client else ""
        self._strangers[connection] = address
        self._addresses[address] += 1
        if len(self._strangers) > min(self.limits.strangers, max(1, limit // 4)):
            self._longest().refuse(ServerBusy(RETRY_SECONDS))

    def leave(self, connection: "HttpProtocol") -> None:
        """Forget a stranger that was admitted, refused or closed."""
        address = self._strangers.pop(connection, None)
        if address is None:
            return
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]

    def _longest(self) -> "HttpProtocol":
        """Return the stranger to close, preferably one whose request is not being processed."""
        most = max(self._addresses.values())
        crowd = [stranger for stranger, address in self._strangers.items() if self._addresses[address] == most]
        return next((stranger for stranger in crowd if not stranger.responding), crowd[0])


class HttpProtocol(HttpToolsProtocol):
    """One HTTP connection that ends regardless of its peer. One timer checks it every few seconds."""

    def __init__(
        self,
        entrance: Entrance,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, loop)
        self._entrance = entrance
        self._limits = entrance.limits
        self._extensions: dict[str, dict[object, object]] = {ARRIVAL: {"arrival": self}}
        self._timer: TimerHandle | None = None
        self._refused = False
        self._in_header = False
        self._in_body = False
        self._header_bytes = 0
        self._unread_bytes = 0
        self._since = self._body_since = self._stalled_since = 0.0
        self._silent = True
        self._uid: tuple[int | None] | None = None  # None: not asked yet; (None,): the system does not tell

    @property
    def responding(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def admit(self) -> None:
        """Stop counting the connection as a stranger: a request on it was admitted."""
        self._entrance.leave(self)

    def peer_uid(self) -> int | None:
        """Return the user id of a peer on this machine. The system is asked only once."""
        if self._uid is None:
            own = None if self.server is None or self.server[1] is None else (self.server[0], self.server[1])
            self._uid = (None if own is None or self.client is None else uid_of(self.client, own),)
        return self._uid[0]

    # The transport's side

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._since = self.loop.time()
        self._timer = self.loop.call_later(self._limits.header_seconds, self._watch)
        peer: socket.socket | None = transport.get_extra_info("socket")
        self._entrance.enter(self, peer.fileno() if peer is not None else 0)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        if self._refused:
            self._entrance.lingering -= 1
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._stalled_since = self.loop.time()
        super().pause_writing()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return  # the connection lingers: its input is read and dropped
        self._silent = False
        self._unset_keepalive_if_required()
        began_in_header = self._in_header
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            large = self._header_bytes > self._limits.header_bytes
            self.refuse(HeadersTooLarge(self._limits.header_bytes) if large else MalformedRequest())
        except httptools.HttpParserUpgrade:
            self._upgrade()
        else:
            # An incomplete field has not been counted yet.
            self._unread_bytes = self._unread_bytes + len(data) if began_in_header and self._in_header else 0
            if self._unread_bytes > self._limits.header_bytes:
                self.refuse(HeadersTooLarge(self._limits.header_bytes))

    def _upgrade(self) -> None:
        if self._should_upgrade():
            self._stop_watching()
            self._entrance.leave(self)
            self.handle_websocket_upgrade()
        else:
            self.cycle.keep_alive = False  # answer the request normally; data after it cannot be parsed

    # The parser's side

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._since = self.loop.time()
        self._in_header = True
        self._header_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)  # and ": " and the line end, which the parser does not pass on
        if self._in_header:  # not trailers after a body
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_header, self._in_body = False, True
        self._body_since = self.loop.time()
        self.scope["extensions"] = self._extensions
        self._count_authority()
        super().on_headers_complete()

    def _count_authority(self) -> None:
        """Treat the host in a target (``GET http://host/path``) as a Host field: two different hosts are refused."""
        scheme, separator, rest = self.url.partition(b"://")
        if not separator or b"/" in scheme:
            return
        authority = rest.partition(b"/")[0].partition(b"?")[0].lower()
        if any(name == b"host" and value.lower() != authority for name, value in self.headers):
            self.headers.append((b"host", authority))

    def on_body(self, body: bytes) -> None:
        self._body_since = self.loop.time()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self._limits.header_bytes:
            raise ValueError  # stops the parser, whose error reaches `data_received`

    # The end

    def refuse(self, error: AgenticRagError) -> None:
        """Answer with an error, if no answer has begun, and close the connection."""
        self._entrance.leave(self)
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._entrance.lingering += 1
        self._stop_watching()
        self._unset_keepalive_if_required()
        if self.responding:
            has_begun = self.cycle.response_started or self.pipeline
            self.cycle.disconnected = True
            self.cycle.message_event.set()  # wakes the application, which may wait for the rest of a body
            if has_begun:
                self.transport.abort()
                return
        self.transport.write(encode_refusal(error))
        if self._entrance.lingering > self._limits.lingering:
            self.transport.close()
            return
        self.flow.resume_reading()  # unread input would reset the connection before the peer reads the error
        self.transport.write_eof()
        self._timer = self.loop.call_later(self._limits.linger_seconds, self.transport.abort)

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self) -> None:
        """Close the connection if its time is up, otherwise schedule the next check."""
        now = self.loop.time()
        due, end = self._due(now)
        if now >= due:
            end()
            return
        limits = self._limits
        # The next activity may have an earlier deadline than this one, so look again within the shortest limit.
        longest = min(limits.header_seconds, limits.body_seconds, limits.send_seconds)
        self._timer = self.loop.call_at(min(due, now + longest), self._watch)

    def _due(self, now: float) -> tuple[float, Callable[[], None]]:
        """Return the deadline of the connection's current activity, and the function that ends it."""
        limits = self._limits
        if self.flow.write_paused:
            return self._stalled_since + limits.send_seconds, self.transport.abort
        if not self.responding:
            if self._in_body:  # the request was answered before its body was read
                return self._since + limits.body_seconds, self.transport.abort
            return self._since + limits.header_seconds, self._end_unsaid
        if not self._in_body or self.cycle.waiting_for_100_continue or self.flow.read_paused:
            self._body_since = now  # the peer is not late: nothing more is asked of it now
        return self._body_since + limits.body_seconds, lambda: self.refuse(RequestTimeout("body"))

    def _end_unsaid(self) -> None:
        if self._silent:
            self._entrance.leave(self)
            self.transport.close()  # a browser's spare connection expects no answer
        else:
            self.refuse(RequestTimeout("header"))


def encode_refusal(error: AgenticRagError) -> bytes:
    """Return the whole answer to a request that did not reach the application."""
    reference = new_id("req")
    response = refusal(error, reference)
    fields = [*response.raw_headers, *HEADERS, (b"x-request-id", reference.encode()), (b"connection", b"close")]
    head = b"".join(name + b": " + value + b"\r\n" for name, value in fields)
    return STATUS_LINE[error.status] + head + b"\r\n" + bytes(response.body)


ENTRANCE: Final = Entrance()
"""The instance for a uvicorn that is started with an import string."""
