"""An MCP server reached over HTTP: streamable HTTP, or the older SSE transport.

Owns the HTTP client: no credentials from the environment, no redirects, a bound on every body, and a notification of
the connection when the session is over or an address was refused. `failures` explains answers that are not MCP and
failed connections, in place of the library's texts. Knows nothing of sessions or calls. `endpoint` decides which
addresses may be reached, and `network` checks the IP addresses of a name.
"""

import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

import anyio
import httpx2
from mcp.client import Transport
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, METHOD_NOT_FOUND

from agentic_rag.base.json_form import Json
from agentic_rag.tools.entries.entry import HttpKind
from agentic_rag.tools.exchange import RESULT_BYTES, SESSION_END, SESSION_ENDED
from agentic_rag.tools.launch.addresses import HttpEndpoint
from agentic_rag.tools.oauth.credentials import Credentials, SignedTransport
from agentic_rag.tools.oauth.discovery import REASON
from agentic_rag.tools.transports.failures import (
    ERROR_BYTES,
    ERROR_SECONDS,
    explain_connection,
    explain_content,
    explain_status,
)
from agentic_rag.tools.transports.network import CheckedBackend, CheckedTransport, RefusalListener, unheard
from agentic_rag.tools.transports.proxies import proxy_name
from agentic_rag.tools.transports.stdio import parse_line, read_batch, repair_text

EVENT_BYTES = 1024 * 1024
"""A longer SSE event is refused, like a longer line of a stdio server."""

TIMEOUT = httpx2.Timeout(10.0, read=None)
"""Seconds to connect, write, and get a connection. Each call's own timeout bounds reading."""

_LINE_END = re.compile(rb"\r\n|\n|\r")
"""Line ends of an event stream."""

EVENT_LINES = 100
"""Maximum number of data lines read of one announcement: an address has one."""

_TEXT_ERROR = re.compile(rb'"error"\s*:\s*"')
"""An error that is a text in place of an object."""

_UNKNOWN_SESSION = re.compile(
    rb"(?:unknown|valid|expired|missing|bad) (?:mcp[ -])?session|session (?:id|not|has|is|expired|terminated)|"
    rb"server not initialized",
    re.IGNORECASE,
)
"""Words of a server that does not know a request's session."""

Item = SessionMessage | Exception


class HttpTransport(anyio.AsyncContextManagerMixin):
    """One session with one endpoint, as a `mcp.client.Transport`. Single use."""

    def __init__(
        self,
        endpoint: HttpEndpoint,
        kind: HttpKind,
        on_lost: Callable[[str], None],
        refused: RefusalListener = unheard,
        credentials: Credentials | None = None,
        note: str = "",
    ) -> None:
        """Store the configuration; nothing is opened.

        ``on_lost`` is called, with the reason, when nothing more will come; ``refused`` when an address was refused.
        ``credentials`` belong to a server that people sign in at; None if the entry's headers suffice. ``note``: a hint
        for the admin about this way to the server.
        """
        self.note = note
        self._endpoint = endpoint
        self._kind = kind
        self._lost = on_lost
        self._refused = refused
        self._credentials = credentials
        self._observed = _Observations()

    @property
    def kind(self) -> HttpKind:
        """The transport in use."""
        return self._kind

    @property
    def answered(self) -> bool:
        """Whether the server spoke this transport at least once."""
        return self._observed.answered

    @property
    def suggests_other(self) -> bool:
        """Whether the address answered like a server of the other transport."""
        return not self._observed.answered and self._observed.like_other

    def _client(
        self,
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        endpoint = self._endpoint
        backend = CheckedBackend(endpoint.exempt, unchecked=endpoint.unchecked, refused=self._refused)
        signed = self._credentials is not None
        transport: httpx2.AsyncBaseTransport = _Bounded(
            backend, endpoint, self._kind, self._observed, self._lost, self._refused, signed=signed
        )
        if self._credentials is not None:
            transport = SignedTransport(
                transport, self._credentials, endpoint.url, self._lost if self._kind is HttpKind.SSE else None
            )
        return httpx2.AsyncClient(
            transport=transport,
            headers={**endpoint.headers, **(headers or {}), "accept-encoding": "identity"},
            timeout=TIMEOUT,
            trust_env=False,
            follow_redirects=False,  # its headers are for the address the admin wrote, and for no other
        )

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncIterator[Any]:
        try:
            httpx2.URL(self._endpoint.url)
        except httpx2.InvalidURL as exc:  # unusual spellings of numbers, letters that look like others
            # The library that connects would refuse the address too, with another error text.
            await self._refused(str(exc))
            raise
        async with AsyncExitStack() as stack:
            transport: Transport
            if self._kind is HttpKind.SSE:
                transport = sse_client(self._endpoint.url, httpx_client_factory=self._client)
            else:
                client = await stack.enter_async_context(self._client())
                transport = streamable_http_client(
                    self._endpoint.url, http_client=client, max_sse_event_size=EVENT_BYTES
                )
            read, write = await stack.enter_async_context(transport)
            yield _WatchedStream(read, self._lost), write


class _WatchedStream:
    """A read stream that reports its end: the protocol library closes it on a broken connection and continues."""

    def __init__(self, stream: Any, on_lost: Callable[[str], None]) -> None:
        self._stream = stream
        self._lost = on_lost

    @property
    def last_context(self) -> Context | None:
        """The context in which the last message was sent; see `mcp.shared._context_streams`."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Item:
        try:
            item: Item = await self._stream.receive()
        except Exception:
            self._lost("the connection was closed")
            raise
        return item

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> "_WatchedStream":
        return self

    async def __anext__(self) -> Item:
        try:
            item: Item = await self._stream.__anext__()
        except StopAsyncIteration:
            self._lost("the connection was closed")
            raise
        return item

    async def __aenter__(self) -> "_WatchedStream":
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class _Bounded(CheckedTransport):
    """Bounds every body that is not an event stream, and detects a session that the server no longer knows."""

    def __init__(
        self,
        backend: CheckedBackend,
        endpoint: HttpEndpoint,
        kind: HttpKind,
        observed: "_Observations",
        on_lost: Callable[[str], None],
        refused: RefusalListener,
        *,
        signed: bool,
    ) -> None:
        """Store the configuration. ``signed``: a `SignedTransport` around this one handles requests for a sign-in."""
        super().__init__(backend)
        self._signed = signed
        self._endpoint = endpoint
        self._observed = observed
        self._lost = on_lost
        self._refused = refused
        self._announces = kind is HttpKind.SSE
        """Whether an event stream begins with the address at which the server expects its messages."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()  # a request that follows a redirect is a stream, whose content is looked at below
        try:
            response = await super().handle_async_request(request)
        except httpx2.TransportError as exc:
            proxy = None if isinstance(exc, httpx2.UnsupportedProtocol) else self.proxy_for(request.url)
            reason = explain_connection(exc, request.url, proxy_name(proxy) if proxy is not None else "")
            raise type(exc)(reason, request=request) from exc
        if response.status_code == 404 and "mcp-session-id" in request.headers:
            return await self._end_session(request, response)
        if response.status_code >= 400 or not self._is_expected(request, response):
            return await self._explain(request, response)
        if response.has_redirect_location:
            await self._look_at_redirect(request.url, response.headers["location"])
            # The library would quote the whole address in its error, with the secrets in it.
            if self._endpoint.url_secrets and not _stays(request.url, response):
                reason = f"{request.url.host} redirects elsewhere (HTTP {response.status_code}), which is not followed"
                await response.aclose()
                return _as_error(reason, 502, request)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()  # unrequested compression: a megabyte may expand to a gigabyte
            reason = f"{request.url.host} compresses its answers, which it was asked not to do"
            self._lost(reason)
            raise httpx2.RemoteProtocolError(reason)
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _BoundedBody(response.stream)
            if response.headers.get("content-type", "").lower().startswith("application/json"):
                response.stream = _RepairedBody(response.stream, lines=False)
        elif self._announces:
            self._observed.like_other = True  # until the server announces where it expects its messages
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = Announcement(
                _RepairedBody(response.stream, lines=True), partial(self._goes_elsewhere, request.url)
            )
        else:
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _RepairedBody(response.stream, lines=True)
        # A server of the older transport answers no POST at this address, so this one speaks ours.
        if request.method == "POST" and not self._announces and response.status_code < 300:
            self._observed.answered = True
        return response

    async def _end_session(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """Report that the server does not know the session any more, and so did not run the request.

        The caller of a request learns this from the answer, see `is_session_end`, and ends the session itself. For a
        notification, and for our answer to a request of the server, there is no caller.
        """
        if request.method != "POST" or not _is_request(request.content):
            self._lost(SESSION_ENDED)
            return response
        await response.aclose()
        return _as_error(SESSION_ENDED, 404, request, data=SESSION_END)

    def _is_expected(self, request: httpx2.Request, response: httpx2.Response) -> bool:
        """Return whether this transport accepts an answer's content for this request."""
        kind = response.headers.get("content-type", "").lower()
        if not response.is_success:
            return True  # a redirect
        if self._announces:
            return request.method != "GET" or kind.startswith("text/event-stream")
        if request.method != "POST" or b'"id"' not in request.content or response.status_code != 200:
            return True
        return kind.startswith(("application/json", "text/event-stream"))

    async def _explain(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """Replace an answer that is not MCP by one that explains the failure; a JSON-RPC error is kept."""
        status = response.status_code
        body = await _read_error(response)
        if request.method == ("GET" if self._announces else "POST"):
            self._observed.like_other |= status in (_SSE_MISSES if self._announces else (404, 405))
        # Many servers answer 400 in place of 404, as the examples of both official SDKs did.
        if status == 400 and "mcp-session-id" in request.headers and _UNKNOWN_SESSION.search(body):
            return await self._end_session(request, response)
        if status < 400:
            self._observed.like_other |= self._announces
            return self._end(explain_content(request, response, body, self._endpoint), 502, request)
        # A refusal is reported by its status, not its body: a sign-in may be the answer to it.
        if status not in (401, 403) and _is_rpc_error(body) and not self._announces:
            headers = {"content-type": "application/json"}
            return httpx2.Response(status, headers=headers, content=body, request=request)
        reason = explain_status(request, response, body, self._endpoint)
        if request.method == "GET" and not self._announces:  # no stream for the server's requests: most have none
            return httpx2.Response(status, request=request)
        return self._end(reason, status, request, response.headers.get("www-authenticate", ""))

    def _end(self, reason: str, status: int, request: httpx2.Request, challenge: str = "") -> httpx2.Response:
        if self._announces and not (self._signed and status in (401, 403)):
            # Without this, the library would show its own text, which contains the whole address.
            raise httpx2.RemoteProtocolError(reason, request=request)
        return _as_error(reason, status, request, challenge)

    async def _goes_elsewhere(self, url: httpx2.URL, address: str) -> bool:
        """Return whether an announced address belongs to another server. Such an address ends the session."""
        self._observed.answered = True  # whichever address it is, the server speaks this transport
        with contextlib.suppress(httpx2.InvalidURL):
            target = url.join(address)
            if _origin(target) == _origin(url):
                return False
            address = target.host
        reason = f"{url.host} wants its messages at {address}, where none is sent"
        await self._refused(reason)
        self._lost(reason)
        return True

    async def _look_at_redirect(self, url: httpx2.URL, location: str) -> None:
        """Report a redirect to another host: neither we nor the protocol library follow it."""
        try:
            target = url.join(location)
        except httpx2.InvalidURL:
            return
        if _origin(target) != _origin(url):
            await self._refused(f"{url.host} redirects to {target.host}, which is not followed")


_SSE_MISSES = (400, 404, 405, 406, 415, 501)
"""Statuses with which a server of the newer transport answers the first request of the older one."""


@dataclass(slots=True)
class _Observations:
    """Observations from the requests of one session. ``like_other``: an answer looked like the other transport."""

    answered: bool = False
    like_other: bool = False


async def _read_error(response: httpx2.Response) -> bytes:
    """Return the beginning of a failed answer's body, and close it."""
    body = bytearray()
    # Neither is read: compressed bytes may unpack to any size, and an event stream may never end.
    coded = response.headers.get("content-encoding", "identity").lower() != "identity"
    stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
    try:
        with anyio.move_on_after(0 if coded or stream else ERROR_SECONDS):
            async for part in response.aiter_raw():
                body += part
                if len(body) >= ERROR_BYTES:
                    break
    except httpx2.TransportError:
        pass
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(1):
            await response.aclose()
    return bytes(body[:ERROR_BYTES])


def _is_request(body: bytes) -> bool:
    """Return whether one of our messages is a request, which a caller waits for."""
    message: Json = json.loads(body)
    return {"id", "method"} <= message.keys()


def _is_rpc_error(body: bytes) -> bool:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("jsonrpc") == "2.0" and isinstance(value.get("error"), dict)


def _as_error(
    reason: str, status: int, request: httpx2.Request, challenge: str = "", data: Json | None = None
) -> httpx2.Response:
    """Return a failed answer with a JSON-RPC error as its body, which the library passes to the waiting caller."""
    code = METHOD_NOT_FOUND if status in (404, 405) else INTERNAL_ERROR
    error: Json = {"code": code, "message": reason} if data is None else {"code": code, "message": reason, "data": data}
    headers = {"www-authenticate": challenge} if challenge else {}
    return httpx2.Response(
        status,
        headers=headers,
        json={"jsonrpc": "2.0", "id": None, "error": error},
        request=request,
        extensions={REASON: reason},
    )


def _stays(url: httpx2.URL, response: httpx2.Response) -> bool:
    """Return whether the library follows a redirect: within the origin, with the same method."""
    try:
        target = url.join(response.headers["location"])
    except httpx2.InvalidURL:
        return False
    upgrade = (url.scheme, target.scheme) == ("http", "https") and url.host == target.host
    return response.status_code in (307, 308) and (upgrade or _origin(target) == _origin(url))


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


class Announcement(httpx2.AsyncByteStream):
    """An event stream that ends before an ``endpoint`` event that leads to another server.

    The protocol library refuses such an event too, but then waits until the start times out, and reports nothing.
    """

    def __init__(self, body: httpx2.AsyncByteStream, elsewhere: Callable[[str], Awaitable[bool]]) -> None:
        self._body = body
        self._elsewhere = elsewhere
        self._line = bytearray()
        self._returned = False
        """Whether the last part ended with ``\\r``. A ``\\n`` that follows belongs to the same line end."""
        self._event = ""
        self._data: list[str] = []

    async def __aiter__(self) -> AsyncIterator[bytes]:
        announced = False
        async for part in self._body:
            # Checked before the part is passed on: the library connects as soon as it sees the event.
            for address in () if announced else self.take(part):
                announced = True
                if await self._elsewhere(address):
                    return
            yield part

    def take(self, part: bytes) -> Iterator[str]:
        """Take a part of the stream; yield the address of each ``endpoint`` event that the part completes.

        Each byte is scanned once, however small the parts are. Lines and events are stored only up to their limits. A
        carriage return ends its line at once, as in the protocol library, which would otherwise see the event first.
        """
        if self._returned:
            part = part.removeprefix(b"\n")
        self._returned = part.endswith(b"\r")
        *lines, rest = _LINE_END.split(part)
        for line in lines:
            self._keep(line)
            name, _, value = self._line.decode("utf-8", "replace").partition(":")
            self._line.clear()
            if name == "event":
                self._event = value.strip()
            elif name == "data" and len(self._data) < EVENT_LINES:
                self._data.append(value.strip())
            elif not line and not name:
                if self._event == "endpoint":
                    yield "".join(self._data)[:EVENT_BYTES]
                self._event = ""
                self._data.clear()
        self._keep(rest)

    def _keep(self, piece: bytes) -> None:
        self._line += piece[: EVENT_BYTES - len(self._line)]

    async def aclose(self) -> None:
        await self._body.aclose()


class _BoundedBody(httpx2.AsyncByteStream):
    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._body:
            size += len(part)
            if size > RESULT_BYTES:
                raise httpx2.StreamError(f"the answer is longer than {RESULT_BYTES} bytes")
            yield part

    async def aclose(self) -> None:
        await self._body.aclose()


def _complete(body: bytes) -> bytes:
    """Return an answer with the members that JSON-RPC requires, if it is evident that some are missing."""
    is_bare = b'"jsonrpc"' not in body and b'"result"' in body
    message = parse_line(body) if is_bare or _TEXT_ERROR.search(body) else None
    return body if message is None else message.model_dump_json(by_alias=True, exclude_unset=True).encode()


def _answer_in(batch: list[bytes]) -> bytes:
    """Return the answer in a batch of messages; empty if there is none. A request over HTTP has one answer."""
    answers = [message for message in batch if not json.loads(message).keys().isdisjoint(("result", "error"))]
    return answers[0] if len(answers) == 1 else b""


class _RepairedBody(httpx2.AsyncByteStream):
    """A body with U+FFFD in place of lone surrogates and of bytes that are not UTF-8.

    A list around the answer is removed. The protocol library refuses a whole answer for one of them. Servers that cut a
    text within an emoji send them. ``lines``: the body is an event stream, and each part is passed on up to its last
    complete line.
    """

    def __init__(self, body: httpx2.AsyncByteStream, *, lines: bool) -> None:
        self._body = body
        self._lines = lines

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts: list[bytes] = []
        size = 0
        async for part in self._body:
            end = max(part.rfind(b"\n"), part.rfind(b"\r")) + 1 if self._lines else 0
            if end:
                yield repair_text(b"".join((*parts, part[:end])))
                parts, size, part = [], 0, part[end:]
            parts.append(part)
            size += len(part)
            if size > RESULT_BYTES:  # longer than any accepted answer
                yield b"".join(parts)
                parts, size = [], 0
        if parts:
            body = b"".join(parts)
            yield repair_text(body) if self._lines else _complete(_answer_in(read_batch(body)) or repair_text(body))

    async def aclose(self) -> None:
        await self._body.aclose()
