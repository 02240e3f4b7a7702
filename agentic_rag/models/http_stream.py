"""HTTP streaming helpers shared by all adapters.

Owns the timeouts, the reading of a body in chunks, the handling of its end, and the encoding of a request. Also owns
the thread that imports an SDK. The import takes over a second, or twenty on a busy machine, and a server that stops
must not wait for it. Knows no provider. The HTTP client is imported on first use.
"""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import anyio
import orjson

from agentic_rag.base.errors import ModelError
from agentic_rag.base.messages import Block
from agentic_rag.models.base import ModelEvent
from agentic_rag.models.marks import MarkedAnswer
from agentic_rag.models.service_errors import Endpoint

if TYPE_CHECKING:
    import httpx2
    from aiohttp import StreamReader

T = TypeVar("T")

CONNECT_SECONDS = 10.0
WRITE_SECONDS = 60.0
"""Timeout of one write of the request's body. Reading has no limit here, because the agent has an idle timeout."""
UNLIMITED = 0
"""aiohttp's value for no limit of connections. The server limits turns; a full pool would silently delay a turn."""
KEEPALIVE_SECONDS = 55.0
"""Longer than most tools take between two steps, shorter than the idle limit of common load balancers."""
TAIL_SECONDS = 0.1
"""How long to wait for the end of the body after the last event. A fully read connection can be reused."""
CLOSE_SECONDS = 1.0
"""How long closing a connection may delay a cancelled call."""
PROFILE_SECONDS = 5.0
"""How long the service may take to describe a model. Without an answer the profile table applies."""

_NO_STREAMS = frozenset({"text/html", "application/json", "application/xhtml+xml"})


def client_timeout() -> "httpx2.Timeout":
    """Return the timeouts of every client."""
    import httpx2

    return httpx2.Timeout(connect=CONNECT_SECONDS, read=None, write=WRITE_SECONDS, pool=None)


def client_limits() -> "httpx2.Limits":
    """Return the connection limits of every client."""
    import httpx2

    return httpx2.Limits(max_connections=UNLIMITED, keepalive_expiry=KEEPALIVE_SECONDS)


async def run_in_daemon(work: Callable[[], T]) -> T:
    """Run a function in a thread that neither a cancelled caller nor the process's end waits for."""
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()  # a running future stays valid if its waiter is cancelled

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as exc:
            result.set_exception(exc)

    threading.Thread(target=run, daemon=True, name="model-client").start()
    return await asyncio.wrap_future(result)


def chunks_of(response: "httpx2.Response") -> AsyncGenerator[bytes, None]:
    """Return the body in chunks. An uncompressed body skips the client's decoding layers.

    A streamed answer has one chunk for each delta, and each layer of generators runs once for each chunk. An aiohttp
    body is therefore read from aiohttp itself. Another body is read through the client.
    """
    if response.headers.get("content-encoding", "identity") != "identity":
        chunks = response.aiter_bytes()
    elif (reader := aiohttp_reader(response)) is not None:
        return _read_aiohttp(reader)
    else:
        chunks = aiter(response.stream)  # type: ignore[arg-type]
    assert isinstance(chunks, AsyncGenerator)
    return chunks


def aiohttp_reader(response: "httpx2.Response") -> "StreamReader | None":
    """Return aiohttp's reader of a body, or None if the client has another transport.

    Neither the client nor the SDK's transport publishes the reader. A test checks that it is still where this function
    looks for it.
    """
    body = getattr(response.stream, "_stream", None)
    reader: StreamReader | None = getattr(getattr(body, "_aiohttp_response", None), "content", None)
    return reader


async def _read_aiohttp(reader: "StreamReader") -> AsyncGenerator[bytes, None]:
    """Read a body with the errors that the SDK's transport raises."""
    import aiohttp
    import httpx2

    try:
        while chunk := await reader.readany():
            yield chunk
    except aiohttp.ClientError as exc:
        raise httpx2.ReadError(str(exc)) from exc


async def finish(chunks: AsyncGenerator[bytes, None]) -> None:
    """Read the rest of the body after the last event, for at most `TAIL_SECONDS`; normally there is none."""
    import httpx2

    # The answer is complete, so a connection that fails now does no harm.
    with suppress(httpx2.HTTPError), anyio.move_on_after(TAIL_SECONDS):
        async for _ in chunks:
            pass


async def close(response: "httpx2.Response | httpx2.AsyncByteStream") -> None:
    """Close a response or its body, even if the caller was cancelled."""
    with anyio.move_on_after(CLOSE_SECONDS, shield=True):
        await response.aclose()


def expect_stream(response: "httpx2.Response", endpoint: Endpoint) -> None:
    """Check that the answer is an event stream.

    A web page with status 200 comes from a captive portal or another service, so the error is not retryable.

    Raises:
        ModelError: the answer is not a stream.
    """
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _NO_STREAMS:
        raise ModelError(
            f"{endpoint.url} answers with {kind}, not with a stream. Check {endpoint.base_url}.",
            http_status=200,
            kind="no_stream",
        )


async def cite(events: AsyncIterator[ModelEvent], passages: Sequence[Block]) -> AsyncGenerator[ModelEvent, None]:
    """Convert the events of an answer with marks to those of an answer with citations. The caller closes ``events``."""
    answer = MarkedAnswer(passages)
    async for event in events:
        for cited in answer.take(event):
            yield cited


def encode(body: object) -> bytes:
    """Encode a body or a part as JSON. A lone surrogate, which services refuse, becomes a question mark."""
    try:
        return orjson.dumps(body)
    except TypeError:  # besides surrogates: integers beyond 64 bits, which are legal JSON
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
