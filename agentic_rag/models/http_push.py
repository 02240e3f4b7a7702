"""POST over HTTP/1.1 with answers that are pushed: one callback of the event loop from the socket to who waits.

Owns connections to one service, which are kept between requests, and the reading of their answers. Made for long
answers in small pieces, of which each costs several layers elsewhere. Knows neither models nor JSON, no proxy, no
redirect and no cookie: where one of these is in play, the SDK's own client asks (`PushClient.for_service`).
"""

import asyncio
import socket
import ssl
import time
import urllib.request
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Final, Self, cast

import aiohappyeyeballs
import httpx2
from httptools import HttpParserError, HttpResponseParser

from agentic_rag.models.http_stream import CONNECT_SECONDS, KEEPALIVE_SECONDS

HEAD_BYTES: Final = 64 * 1024
"""Of an answer's headers; more is a fault."""
AHEAD_BYTES: Final = 256 * 1024
"""Of an answer that may lie here unread before the service is made to wait."""
NEXT_ADDRESS_SECONDS: Final = 0.25
"""How long one address of a name is tried alone (RFC 8305)."""

Sink = Callable[[bytes], bool]
"""Takes a piece of a body and returns whether to wait on; else an empty piece comes to who waits. It must not raise."""


class PushClient:
    """Requests to one service. Safe for any number at once, on one event loop."""

    def __init__(self, url: httpx2.URL) -> None:
        """Connect to nothing. ``url``: scheme, host and port of the service."""
        self._host = url.host
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._ssl = httpx2.create_ssl_context() if url.scheme == "https" else None
        self._authority = url.netloc
        self._idle: list[tuple[_Connection, float]] = []
        """Connections that can be used again, with when they came to rest; the last one rests least."""
        self._closed = False

    @classmethod
    def for_service(cls, url: httpx2.URL) -> Self | None:
        """Return a client; None where the environment names a proxy for the address, or it holds a password."""
        proxies = urllib.request.getproxies()
        direct = url.scheme in ("http", "https") and not url.userinfo
        if not direct or (proxies.keys() & {url.scheme, "all"} and not urllib.request.proxy_bypass(url.host)):
            return None
        return cls(url)

    def head(self, path: bytes, headers: Mapping[str, str]) -> bytes:
        """Return the beginning of a request, up to its length, to be used for many.

        Raises:
            ValueError: a header holds what no header can.
        """
        lines = [b"POST %s HTTP/1.1" % path, b"host: %s" % self._authority]
        for name, value in headers.items():
            if not value.isprintable() or not name.isprintable():
                raise ValueError(f"the header {name!r} cannot be sent")
            lines.append(f"{name.lower()}: {value}".encode("latin-1"))
        return b"\r\n".join(lines)

    async def post(self, head: bytes, body: bytes) -> httpx2.Response:
        """Send a request; return its answer with the body unread, which is to be closed.

        Raises:
            httpx2.TransportError: there is no connection, or no answer came over it.
        """
        return await self._send_over(self._resting() or await self._connect(), head, body).answer()

    def send(self, head: bytes, body: bytes) -> "SentPost | None":
        """Send a request at once, over a connection that rests; None: there is none, and nothing was sent."""
        connection = self._resting()
        return None if connection is None else self._send_over(connection, head, body)

    def _send_over(self, connection: "_Connection", head: bytes, body: bytes) -> "SentPost":
        connection.send(b"%s\r\ncontent-length: %d\r\n\r\n" % (head, len(body)), body)
        return SentPost(self, connection)

    async def take_back(self, connection: "_Connection") -> None:
        """Keep a connection whose answer was read, if it may be used again; else close it."""
        if not self.keep(connection):
            await connection.aclose()

    def keep(self, connection: "_Connection") -> bool:
        """Let a connection rest whose answer was read, if it may be used again; else begin to close it."""
        keeps = not self._closed and connection.reusable
        if keeps:
            self._idle.append((connection, time.monotonic()))
        else:
            connection.abort()
        return keeps

    async def aclose(self) -> None:
        """Close the connections that rest, and let none rest any more."""
        self._closed = True
        while self._idle:
            await self._idle.pop()[0].aclose()

    def _resting(self) -> "_Connection | None":
        oldest = time.monotonic() - KEEPALIVE_SECONDS
        while self._idle and (self._idle[0][1] < oldest or not self._idle[0][0].reusable):
            self._idle.pop(0)[0].abort()
        while self._idle:
            connection, _ = self._idle.pop()
            if connection.reusable:
                return connection
        return None

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
                opened = await aiohappyeyeballs.start_connection(
                    found, happy_eyeballs_delay=NEXT_ADDRESS_SECONDS, interleave=1, loop=loop
                )
                try:
                    name = self._host if self._ssl else None
                    _, protocol = await loop.create_connection(
                        lambda: _Connection(loop), sock=opened, ssl=self._ssl, server_hostname=name
                    )
                except BaseException:
                    opened.close()
                    raise
        except TimeoutError as exc:
            raise httpx2.ConnectTimeout("no connection in time") from exc
        except (OSError, ssl.SSLError) as exc:
            raise httpx2.ConnectError(str(exc)) from exc
        return protocol


class SentPost:
    """A request that was sent. Its answer is waited for, or it is abandoned; until then it lies here up to a bound."""

    def __init__(self, client: PushClient, connection: "_Connection") -> None:
        self._client = client
        self._connection = connection

    async def answer(self) -> httpx2.Response:
        """Return the answer with the body unread, which is to be closed.

        Raises:
            httpx2.TransportError: none came over the connection.
        """
        try:
            status, headers = await self._connection.answer()
        except BaseException:
            self._connection.abort()  # a caller that was cancelled waits for nothing
            raise
        return httpx2.Response(status, headers=headers, stream=PushedBody(self._client, self._connection))

    async def stream(self) -> "PushedBody | None":
        """Wait as `answer` does; return the body, if the answer is a stream of events with 200.

        None: it is something else, or none came; `answer` returns it, or says why.
        """
        try:
            status, headers = await self._connection.answer()
        except httpx2.TransportError:
            return None
        except BaseException:
            self._connection.abort()
            raise
        streams = status == 200 and _is_event_stream(headers)
        return PushedBody(self._client, self._connection) if streams else None

    def pour(self, sink: Sink) -> None:
        """Give the body of an answer that is a stream of events to ``sink`` from its first byte, as it is waited for.

        Who waits goes on when ``sink`` says so, or nothing more comes. What came before goes the usual way.
        """
        self._connection.sink_ahead = sink

    def abandon(self) -> None:
        """Close the connection at once: nobody wants the answer."""
        self._connection.abort()


class PushedBody(httpx2.AsyncByteStream):
    """The body of an answer, piece by piece as it comes. To be read once."""

    def __init__(self, client: PushClient, connection: "_Connection") -> None:
        self._client = client
        self._connection: _Connection | None = connection

    def __aiter__(self) -> AsyncGenerator[bytes, None]:
        assert self._connection is not None, "the answer was closed"
        return self._connection.pieces()

    def pour(self, sink: Sink) -> None:
        """Give a piece to ``sink`` where it comes, while the next one is waited for."""
        if self._connection is not None:
            self._connection.sink = sink

    def end(self) -> bool:
        """Let the connection rest at once, if all of the body has come and was read; whether it did, now or before."""
        if self._connection is not None and self._connection.end():
            self._client.keep(self._connection)
            self._connection = None
        return self._connection is None

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._client.take_back(connection)


class _Connection(asyncio.Protocol):
    """One connection: a request, its answer, the next request."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser = HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self.sink: Sink | None = None
        """Takes what comes of this answer while somebody waits for it."""
        self.sink_ahead: Sink | None = None
        """The same for an answer whose headers are still to come, if it is a stream of events."""
        self._failure: httpx2.TransportError | None = None
        self._asked = self._headed = self._complete = self._paused = False
        self._lost = asyncio.Event()
        self._keeps = True
        """Whether the service lets the connection stand after the answer."""
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._pieces: list[bytes] = []
        self._size = 0

    # Who asks.

    @property
    def reusable(self) -> bool:
        """Whether the last answer was read to its end, and the service lets the connection stand."""
        return self._transport is not None and self._keeps and not self._asked

    def send(self, head: bytes, body: bytes) -> None:
        """Send a request, whose `answer` is then waited for."""
        self._asked, self._headed, self._complete = True, False, False
        self._headers, self._size, self.sink, self.sink_ahead = [], 0, None, None
        if self._transport is not None:
            self._transport.writelines((head, body))

    async def answer(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Return status and headers of the answer once they are there, and there is something to do for who waits."""
        while not self._headed:
            if self._transport is None:
                raise self._failure or httpx2.RemoteProtocolError("the connection was closed")
            await self._wait()
        return self._status, self._headers

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it comes, what came meanwhile in one."""
        while True:
            if self._pieces:
                piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
                self._pieces.clear()
                self._size = 0
                if self._paused and self._transport is not None:
                    self._paused = False
                    self._transport.resume_reading()
                yield piece
            elif self._complete:
                self._asked = False
                return
            else:
                await self._wait()

    def end(self) -> bool:
        """Take the answer for read, if all of it has come and nothing of it lies here; return whether it is."""
        if self._complete and not any(self._pieces):
            self._pieces.clear()
            self._asked = False
        return not self._asked

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    async def aclose(self) -> None:
        """Close the connection at once; return when it is closed."""
        self.abort()
        await self._lost.wait()

    async def _wait(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, failure: httpx2.TransportError) -> None:
        self._failure = self._failure or failure
        self._wake()
        self.abort()

    # What the event loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self._asked or self._complete:  # nobody asked for it
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except HttpParserError as exc:
            self._fail(httpx2.RemoteProtocolError(f"the answer is no HTTP: {exc}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost.set()
        if self._headed and not self._complete and not self._has_length() and exc is None:
            self._complete = True  # a body without a length ends so
        elif not self._complete:
            words = "closed the connection without an answer" if not self._headed else "ended before its end"
            self._failure = self._failure or httpx2.RemoteProtocolError(words)
        self._wake()

    def _has_length(self) -> bool:
        return any(name in (b"content-length", b"transfer-encoding") for name, _ in self._headers)

    # What the parser tells.

    def on_message_begin(self) -> None:
        if self._complete:  # another answer, that nobody asked for
            self._keeps = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))
        self._size += len(name) + len(value)
        if self._size > HEAD_BYTES:
            self._fail(httpx2.RemoteProtocolError("the answer's headers are too long"))

    def on_headers_complete(self) -> None:
        if self._complete:
            return
        status = self._parser.get_status_code()
        if status < 200:  # an interim answer: the real one follows
            self._headers.clear()
            return
        self._status, self._headed, self._size = status, True, 0
        if self.sink_ahead is not None and status == 200 and _is_event_stream(self._headers):
            self.sink = self.sink_ahead
        else:
            self._wake()

    def on_body(self, body: bytes) -> None:
        if self._complete:
            return
        if self.sink is not None and self._waiter is not None and not self._waiter.done():
            if self.sink(body):
                return
            body = b""
        self._pieces.append(body)
        self._size += len(body)
        if self._size > AHEAD_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        if self._headed and not self._complete:
            self._complete = True
            self._keeps = self._parser.should_keep_alive()
            self._wake()


def _is_event_stream(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether a body is a stream of events that needs no decoding; of what is not plainly one others make an error."""
    kind = b""
    for name, value in headers:
        if name == b"content-encoding":
            return False
        if name == b"content-type":
            kind = value
    return kind.partition(b";")[0].strip().lower() == b"text/event-stream"
