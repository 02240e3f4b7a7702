"""Claude, and every endpoint that speaks the Messages API.

Owns the SDK's client and the life of one streamed call. What is sent is `request_body`'s, what comes back
`AnswerDecoder`'s, what goes wrong `model_error`'s. Knows no turn: retries, the idle timeout and budgets
are the agent's.

The official SDK builds, signs and sends the request and maps its failures; the body of the answer is read raw
and parsed by our own reader, over the SDK's aiohttp transport: half the CPU of its default one, and with our
reader a quarter of the SDK's stream (a test holds both to the same events). The SDK is imported on first use, in a
thread: that takes over a second, or twenty on a busy machine, which nobody who stops waits for.
"""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlsplit

import anyio
import orjson

from agentic_rag.errors import BadConfiguration, EventTooLarge, ModelError
from agentic_rag.json_form import Json
from agentic_rag.messages import Block
from agentic_rag.models.anthropic.decoder import AnswerDecoder
from agentic_rag.models.anthropic.errors import broken_stream, model_error
from agentic_rag.models.anthropic.request import BINDING_BETA, request_body, without_thinking
from agentic_rag.models.base import Model, ModelEvent, ModelRequest, Working
from agentic_rag.models.marks import MarkedAnswer, with_numbered_passages
from agentic_rag.models.profiles import ModelProfile, is_claude, profile_of, with_capabilities
from agentic_rag.models.sse import SSEReader

if TYPE_CHECKING:
    import httpx2
    from anthropic import AsyncAnthropic

logger = logging.getLogger(__name__)

T = TypeVar("T")

CitationMode = Literal["native", "marks"]
NO_HEADERS: Mapping[str, str] = {}

DEFAULT_BASE_URL = "https://api.anthropic.com"
CONNECT_SECONDS = 10.0
WRITE_SECONDS = 60.0
"""For one write of the request's body to be taken. Reading has no limit here: the agent measures silence."""
UNLIMITED = 0
"""aiohttp's word. Connections are not limited: turns are, and a full pool would hold a turn back without a word."""
KEEPALIVE_SECONDS = 55.0
"""Longer than most tools take between two steps, shorter than the idle limit of common load balancers."""
TAIL_SECONDS = 0.1
"""How long the end of the body is awaited after ``message_stop``: read to its end, the connection is used again."""
CLOSE_SECONDS = 1.0
"""How long closing a connection may hold up a cancelled call."""
PROFILE_SECONDS = 5.0
"""How long the service may take to say what a model is; without an answer the table counts."""
BOUND_ELSEWHERE = "bound to a different conversation"
"""In the error for thinking whose prefix is not what it was."""


_NO_STREAMS = frozenset({"text/html", "application/json", "application/xhtml+xml"})


class AnthropicModel(Model):
    """A `Model` over the Messages API. Safe for any number of simultaneous streams on one event loop.

    ``citations``: ``native`` sends search results as they are; ``marks`` is for endpoints that refuse them
    (see `marks`).
    """

    def __init__(self, api_key: str, base_url: str | None = None, *, citations: CitationMode = "native") -> None:
        """Import nothing and connect to nothing.

        Raises:
            BadConfiguration: the key cannot be sent in a header, or the URL is none.
        """
        self._key = api_key.strip()
        # Checked here, since a client that fails to encode the header quotes it in its message.
        if not self._key or not self._key.isascii() or not self._key.isprintable() or " " in self._key:
            raise BadConfiguration("ANTHROPIC_API_KEY", "must be a key of printable ASCII characters without spaces")
        self._base_url = (base_url or DEFAULT_BASE_URL).strip()
        self._shown_url = _public_url(self._base_url)
        self._marks = citations == "marks"
        self._lock = anyio.Lock()
        self._client: AsyncAnthropic | None = None
        self._closed = False
        self._profiles: dict[str, ModelProfile] = {}
        self.mismatches = 0
        """Requests whose thinking no longer fitted what stands before it; each was sent again without."""

    @property
    def name(self) -> str:
        return "anthropic"

    def __repr__(self) -> str:
        return f"AnthropicModel({self._shown_url!r}, api_key=***)"

    async def warm_up(self) -> None:
        """Import the SDK and build the client, in a thread. Idempotent; the first stream does it otherwise."""
        await self._ready()

    async def aclose(self) -> None:
        self._closed = True
        async with self._lock:
            client, self._client = self._client, None
        if client is not None:
            await client.close()

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        return self._stream(request)

    @asynccontextmanager
    async def _stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        passages: list[Block] = []
        profile = await self._profile(request.model)
        marks = self._marks or not profile.cites
        if marks:
            request, passages = with_numbered_passages(request)
        response = await self._open(request, profile, cites=not marks)
        try:
            self._expect_stream(response)
            # Read to the end below, so that the connection can be used again.
            async with aclosing(_chunks(response)) as chunks:
                decoder = AnswerDecoder()
                events = self._events(chunks, decoder, request.model)
                async with aclosing(_cite(events, passages) if passages else events) as cited:
                    yield cited
                if decoder.completed:
                    await _finish(chunks)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_SECONDS):
                await response.aclose()

    async def _open(self, request: ModelRequest, profile: ModelProfile, *, cites: bool) -> "httpx2.Response":
        """Send the request; return the answer's head, with 200 and the body unread.

        Thinking that the service finds bound to other words is left out in a second try: the turn must not end with it.
        """
        body = request_body(request, profile, cites=cites)
        try:
            return await self._send(body)
        except ModelError as error:
            if error.http_status != 400 or BOUND_ELSEWHERE not in str(error):
                raise
        self.mismatches += 1
        logger.warning("thinking of an earlier turn does not fit its conversation any more; sent again without it")
        if (body.get("thinking") or {}).get("type") in ("adaptive", "enabled"):
            binding = {"prefix_mismatch_behavior": "drop_block"}
            again = {**body, "thinking": {**body["thinking"], "block_binding": binding}}
            try:
                return await self._send(again, {"anthropic-beta": BINDING_BETA})
            except ModelError as error:
                if error.http_status != 400:
                    raise
        return await self._send(without_thinking(body))

    async def _send(self, body: Json, headers: Mapping[str, str] = NO_HEADERS) -> "httpx2.Response":
        client = await self._ready()
        from anthropic import AsyncStream

        given = {"Content-Type": "application/json", "Accept": "text/event-stream", **headers}
        try:
            stream = await client.post(
                "/v1/messages",
                content=_encode({**body, "stream": True}),
                cast_to=object,
                options={"headers": given},
                stream=True,
                stream_cls=AsyncStream[Any],
            )
        except Exception as exc:
            raise model_error(exc, model=body["model"], base_url=self._shown_url, secret=self._key) from exc
        return stream.response

    async def _profile(self, model: str) -> ModelProfile:
        """Return what a model takes; the service is asked once for each of its own."""
        known = self._profiles.get(model)
        if known is None:
            known = profile_of(model)
            if is_claude(model):
                known = await self._ask_about(known)
            self._profiles[model] = known
        return known

    async def knows(self, model: str) -> bool | None:
        """Return whether the service has a model of this name; None where it does not say."""
        if not is_claude(model):
            return None
        client = await self._ready()
        from anthropic import NotFoundError

        try:
            with anyio.fail_after(PROFILE_SECONDS):
                await client.get(f"/v1/models/{model}", cast_to=object)
        except NotFoundError as exc:  # an endpoint without this route answers 404 in other words
            return False if f"model: {model}" in (exc.api_message or "") else None
        except Exception as exc:  # the boundary: no network, no rights; the first turn will tell
            logger.info("whether there is a model %s is not known: %s", model, type(exc).__name__)
            return None
        return True

    async def _ask_about(self, profile: ModelProfile) -> ModelProfile:
        client = await self._ready()
        try:
            with anyio.fail_after(PROFILE_SECONDS):
                info = await client.get(f"/v1/models/{profile.name}", cast_to=object)
        except Exception as exc:  # an endpoint that has none of this: the table counts
            logger.info("what %s takes is not known from its service: %s", profile.name, type(exc).__name__)
            return profile
        return with_capabilities(profile, info) if isinstance(info, dict) else profile

    def _expect_stream(self, response: "httpx2.Response") -> None:
        """A web page with status 200 is a portal's or another service's: asking again would not help."""
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in _NO_STREAMS:
            raise ModelError(
                f"{self._shown_url} answers with {kind}, not with a stream. Check ANTHROPIC_BASE_URL.",
                http_status=200,
                kind="no_stream",
            )

    async def _events(
        self, chunks: AsyncGenerator[bytes, None], decoder: AnswerDecoder, model: str
    ) -> AsyncGenerator[ModelEvent, None]:
        reader = SSEReader()
        decode = decoder.decode
        while True:
            try:
                chunk = await anext(chunks, None)
                parsed = reader.feed(chunk) if chunk is not None else None
            except EventTooLarge as exc:
                raise broken_stream(f"cannot be read: {exc}", "malformed_stream") from exc
            except Exception as exc:
                error = model_error(exc, model=model, base_url=self._shown_url, secret=self._key, started=True)
                raise error from exc
            if parsed is None:
                raise broken_stream("ended before it was complete", "incomplete_stream")
            quiet = True
            for _, data in parsed:
                event = decode(data)
                if event is not None:
                    quiet = False
                    yield event
                    if decoder.completed:
                        return
            if quiet and decoder.working:
                yield Working()

    async def _ready(self) -> "AsyncAnthropic":
        client = self._client
        if client is None:
            async with self._lock:
                if self._closed:
                    raise RuntimeError("the model was closed")
                if self._client is None:
                    self._client = await _run_in_daemon(self._build)
                client = self._client
        return client

    def _build(self) -> "AsyncAnthropic":
        import httpx2
        from anthropic import AsyncAnthropic, DefaultAioHttpClient

        from agentic_rag.models.anthropic.refusals import shorten_refusal

        timeout = httpx2.Timeout(connect=CONNECT_SECONDS, read=None, write=WRITE_SECONDS, pool=None)
        limits = httpx2.Limits(max_connections=UNLIMITED, keepalive_expiry=KEEPALIVE_SECONDS)
        hooks = {"response": [shorten_refusal]}
        http_client = DefaultAioHttpClient(timeout=timeout, limits=limits, event_hooks=hooks)
        # Retries are the agent's: it tells the user of them.
        return AsyncAnthropic(
            api_key=self._key, base_url=self._base_url, max_retries=0, timeout=timeout, http_client=http_client
        )


async def _run_in_daemon(work: Callable[[], T]) -> T:
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


def _chunks(response: "httpx2.Response") -> AsyncGenerator[bytes, None]:
    """Return the body as it comes; where nothing is to be decoded without the three layers that would do it."""
    plain = response.headers.get("content-encoding", "identity") == "identity"
    chunks = aiter(response.stream) if plain else response.aiter_bytes()  # type: ignore[arg-type]
    assert isinstance(chunks, AsyncGenerator)
    return chunks


async def _finish(chunks: AsyncGenerator[bytes, None]) -> None:
    """Read what follows the last event, normally nothing; an endpoint that goes on is cut off."""
    import httpx2

    # The answer is complete: that the connection fails now takes nothing from it.
    with suppress(httpx2.HTTPError), anyio.move_on_after(TAIL_SECONDS):
        async for _ in chunks:
            pass


async def _cite(events: AsyncGenerator[ModelEvent, None], passages: list[Block]) -> AsyncGenerator[ModelEvent, None]:
    answer = MarkedAnswer(passages)
    async with aclosing(events):
        async for event in events:
            for cited in answer.take(event):
                yield cited


def _encode(body: Json) -> bytes:
    """Return the body's JSON; a lone surrogate, which the API refuses, becomes a question mark."""
    try:
        return orjson.dumps(body)
    except TypeError:  # besides surrogates: integers beyond 64 bits, which are legal JSON
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _public_url(base_url: str) -> str:
    """Return the URL as it may be shown: without user, password, query."""
    try:
        parts = urlsplit(base_url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if parts.scheme not in ("http", "https") or not host:
        raise BadConfiguration("ANTHROPIC_BASE_URL", f"must be a URL such as {DEFAULT_BASE_URL}")
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{parts.path.rstrip('/')}"
