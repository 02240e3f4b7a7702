"""What every adapter over HTTP needs around an answer's body.

Owns the timeouts, the reading of a body's bytes as they come and what is done with its end, the encoding of a request,
and the thread in which an SDK is imported: that takes over a second, or twenty on a busy machine, which nobody who
stops waits for. Knows no provider. The HTTP client is imported on first use.
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

T = TypeVar("T")

CONNECT_SECONDS = 10.0
WRITE_SECONDS = 60.0
"""For one write of the request's body to be taken. Reading has no limit here: the agent measures silence."""
UNLIMITED = 0
"""aiohttp's word. Connections are not limited: turns are, and a full pool would hold a turn back without a word."""
KEEPALIVE_SECONDS = 55.0
"""Longer than most tools take between two steps, shorter than the idle limit of common load balancers."""
TAIL_SECONDS = 0.1
"""How long the end of the body is awaited after the last event: read to its end, the connection is used again."""
CLOSE_SECONDS = 1.0
"""How long closing a connection may hold up a cancelled call."""
PROFILE_SECONDS = 5.0
"""How long the service may take to say what a model is; without an answer the table counts."""

_NO_STREAMS = frozenset({"text/html", "application/json", "application/xhtml+xml"})


def client_timeout() -> "httpx2.Timeout":
    """Return the timeouts of every client."""
    import httpx2

    return httpx2.Timeout(connect=CONNECT_SECONDS, read=None, write=WRITE_SECONDS, pool=None)


def client_limits() -> "httpx2.Limits":
    """Return the limits of every client's connections."""
    import httpx2

    return httpx2.Limits(max_connections=UNLIMITED, keepalive_expiry=KEEPALIVE_SECONDS)


async def run_in_daemon(work: Callable[[], T]) -> T:
    """Run a function in a thread that neither a cancelled caller nor the process's end waits for."""
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()  # now it cannot be cancelled, whoever waits for it is

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as exc:
            result.set_exception(exc)

    threading.Thread(target=run, daemon=True, name="model-client").start()
    return await asyncio.wrap_future(result)


def chunks_of(response: "httpx2.Response") -> AsyncGenerator[bytes, None]:
    """Return the body as it comes; where nothing is to be decoded without the three layers that would do it."""
    plain = response.headers.get("content-encoding", "identity") == "identity"
    chunks = aiter(response.stream) if plain else response.aiter_bytes()  # type: ignore[arg-type]
    assert isinstance(chunks, AsyncGenerator)
    return chunks


async def finish(chunks: AsyncGenerator[bytes, None]) -> None:
    """Read what follows the last event, normally nothing; an endpoint that goes on is cut off."""
    import httpx2

    # The answer is complete: that the connection fails now takes nothing from it.
    with suppress(httpx2.HTTPError), anyio.move_on_after(TAIL_SECONDS):
        async for _ in chunks:
            pass


async def close(response: "httpx2.Response | httpx2.AsyncByteStream") -> None:
    """Close a response or its body, also for a caller that was cancelled."""
    with anyio.move_on_after(CLOSE_SECONDS, shield=True):
        await response.aclose()


def expect_stream(response: "httpx2.Response", endpoint: Endpoint) -> None:
    """A web page with status 200 is a portal's or another service's: asking again would not help.

    Raises:
        ModelError: the answer is no stream.
    """
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _NO_STREAMS:
        raise ModelError(
            f"{endpoint.url} answers with {kind}, not with a stream. Check {endpoint.base_url}.",
            http_status=200,
            kind="no_stream",
        )


async def cite(events: AsyncIterator[ModelEvent], passages: Sequence[Block]) -> AsyncGenerator[ModelEvent, None]:
    """Yield the events of an answer with marks as those of one with citations. Who gives the events closes them."""
    answer = MarkedAnswer(passages)
    async for event in events:
        for cited in answer.take(event):
            yield cited


def encode(body: object) -> bytes:
    """Return the JSON of a body or of a part; a lone surrogate, which services refuse, becomes a question mark."""
    try:
        return orjson.dumps(body)
    except TypeError:  # besides surrogates: integers beyond 64 bits, which are legal JSON
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
