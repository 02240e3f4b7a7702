"""An MCP server at the other end of HTTP: streamable HTTP, or the older SSE transport.

Owns the HTTP client: no proxy or credentials from the environment, no redirect, no body beyond a bound, and word to
the connection when the session is over. Knows nothing of sessions or calls. Which addresses may be reached is decided
in `endpoint` and, for what a name leads to, in `network`.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Literal

import httpx2
from mcp.client import Transport
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from agentic_rag.tools.endpoint import HttpEndpoint
from agentic_rag.tools.exchange import RESULT_BYTES
from agentic_rag.tools.network import CheckedBackend, CheckedTransport

EVENT_BYTES = 1024 * 1024
"""A longer SSE event is refused, as a longer line of a stdio server is."""

TIMEOUT = httpx2.Timeout(10.0, read=None)
"""Seconds to connect, write, and get a connection. Reading is bounded by each call's own timeout."""

Item = SessionMessage | Exception


class HttpWire:
    """One session with one endpoint, as a `mcp.client.Transport`. Single use."""

    def __init__(self, endpoint: HttpEndpoint, kind: Literal["http", "sse"], lost: Callable[[str], None]) -> None:
        """``lost`` is called, with the reason, when nothing more will come."""
        self._endpoint = endpoint
        self._kind = kind
        self._lost = lost
        self._context: AbstractAsyncContextManager[Any] | None = None

    async def __aenter__(self) -> Any:
        self._context = self._open()
        return await self._context.__aenter__()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return None if self._context is None else await self._context.__aexit__(exc_type, exc, traceback)

    def _client(
        self,
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        endpoint = self._endpoint
        return httpx2.AsyncClient(
            transport=_Bounded(CheckedBackend(endpoint.exempt, unchecked=endpoint.unchecked), self._lost),
            headers={**endpoint.headers, **(headers or {})},
            timeout=TIMEOUT,
            trust_env=False,
            follow_redirects=False,  # its headers are for the address the admin wrote, and for no other
        )

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            transport: Transport
            if self._kind == "sse":
                transport = sse_client(self._endpoint.url, httpx_client_factory=self._client)
            else:
                client = await stack.enter_async_context(self._client())
                transport = streamable_http_client(
                    self._endpoint.url, http_client=client, max_sse_event_size=EVENT_BYTES
                )
            read, write = await stack.enter_async_context(transport)
            yield _Watched(read, self._lost), write


class _Watched:
    """A read stream that tells when it ends: the protocol library closes it on a broken connection and goes on."""

    def __init__(self, stream: Any, lost: Callable[[str], None]) -> None:
        self._stream = stream
        self._lost = lost

    async def receive(self) -> Item:
        try:
            item: Item = await self._stream.receive()
        except Exception:
            self._lost("the connection was closed")
            raise
        return item

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> "_Watched":
        return self

    async def __anext__(self) -> Item:
        try:
            item: Item = await self._stream.__anext__()
        except StopAsyncIteration:
            self._lost("the connection was closed")
            raise
        return item

    async def __aenter__(self) -> "_Watched":
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class _Bounded(CheckedTransport):
    """Bounds every body that is not an event stream, and sees a session that the server no longer knows."""

    def __init__(self, backend: CheckedBackend, lost: Callable[[str], None]) -> None:
        super().__init__(backend)
        self._lost = lost

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if response.status_code == 404 and "mcp-session-id" in request.headers:
            self._lost("the server ended the session")
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _BoundedBody(response.stream)
        return response


class _BoundedBody(httpx2.AsyncByteStream):
    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        taken = 0
        async for part in self._body:
            taken += len(part)
            if taken > RESULT_BYTES:
                raise httpx2.StreamError(f"the answer is longer than {RESULT_BYTES} bytes")
            yield part

    async def aclose(self) -> None:
        await self._body.aclose()
