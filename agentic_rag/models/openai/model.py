"""OpenAI, and every endpoint that speaks chat completions.

Owns the SDK's client, the life of one streamed call, and the list of parameters that an endpoint refused. `chat_body`
builds the request, `ChatDecoder` reads the answer, and `model_error` maps failures. This API has no citations, so
search results become numbered passages and citations become marks. Knows no turn: the agent has the retries, the idle
timeout and the budgets.

The SDK sends the request and maps its failures. `SSEReader` reads the raw body, as with the Messages API.
"""

import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import anyio

from agentic_rag.base.errors import EventTooLarge, ModelError
from agentic_rag.base.json_form import Json
from agentic_rag.models.base import Model, ModelEvent, ModelProgress, ModelRequest
from agentic_rag.models.http_stream import (
    PROFILE_SECONDS,
    chunks_of,
    cite,
    client_limits,
    client_timeout,
    close,
    encode,
    expect_stream,
    finish,
    run_in_daemon,
)
from agentic_rag.models.marks import with_numbered_passages
from agentic_rag.models.openai.decoder import ChatDecoder
from agentic_rag.models.openai.errors import model_error
from agentic_rag.models.openai.request import chat_body
from agentic_rag.models.profiles import profile_of
from agentic_rag.models.service_errors import NO_KEY, Endpoint, broken_stream, check_key, public_url
from agentic_rag.models.sse import SSEReader

if TYPE_CHECKING:
    from openai import AsyncOpenAI, AsyncStream

logger = logging.getLogger(__name__)

NO_HEADERS: Mapping[str, str] = {}
DEFAULT_BASE_URL: Final = "https://api.openai.com/v1"
USAGE_SECONDS: Final = 5.0
"""How long to wait for the usage after the answer. Some endpoints neither send the usage nor end the stream."""
OPTIONAL: Final = ("stream_options", "temperature", "reasoning_effort", "tool_choice")
"""Parameters that may be omitted if an endpoint refuses them."""
_UNWANTED: Final = re.compile(
    r"unsupported|not support|unknown|unrecognized|unexpected|not permitted|extra|invalid", re.I
)


class OpenAIModel(Model):
    """A `Model` over chat completions. Safe for any number of simultaneous streams on one event loop.

    ``provider``: the provider's name, put before the model's name in requests and answers.
    ``in_file``: the operator's file configures the provider, not the environment.
    """

    def __init__(
        self,
        api_key: str = "",
        base_url: str | None = None,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        provider: str = "openai",
        in_file: bool = False,
    ) -> None:
        """Create the model without importing the SDK or opening a connection.

        Raises:
            BadConfiguration: the key cannot be sent in a header, or the URL is invalid.
        """
        place = f"providers.{provider}"
        names = ("OPENAI_API_KEY", "OPENAI_BASE_URL") if not in_file else (f"{place}.key", f"{place}.base_url")
        self._base_url = (base_url or DEFAULT_BASE_URL).strip()
        url = public_url(self._base_url, names[1], DEFAULT_BASE_URL)
        # Local services need no key, OpenAI does.
        secret = check_key(api_key, names[0]) if api_key.strip() or url == DEFAULT_BASE_URL else ""
        self._endpoint = Endpoint(url, *names, model="the model's name", secret=secret)
        self._headers = headers
        self._provider = provider
        self._lock = anyio.Lock()
        self._client: AsyncOpenAI | None = None
        self._closed = False
        self._refused: dict[str, frozenset[str]] = {}  # refused parameters by model

    @property
    def name(self) -> str:
        return self._provider

    def __repr__(self) -> str:
        return f"OpenAIModel({self._endpoint.url!r}, api_key=***)"

    async def warm_up(self) -> None:
        """Import the SDK and build the client, in a thread. Idempotent. Otherwise the first stream does this."""
        await self._ready()

    async def aclose(self) -> None:
        self._closed = True
        async with self._lock:
            client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def list_names(self) -> tuple[str, ...] | None:
        """Return the models that the service lists, or None if the service does not say."""
        client = await self._ready()
        try:
            with anyio.fail_after(PROFILE_SECONDS):
                listed: Any = await client.get("/models", cast_to=object)
        except Exception as exc:  # no network, no permission or no such route; the first turn will report the error
            logger.info("which models %s has is not known: %s", self._endpoint.url, type(exc).__name__)
            return None
        rows = listed.get("data") if isinstance(listed, dict) else None
        if not isinstance(rows, list):
            return None
        return tuple(str(row["id"]) for row in rows if isinstance(row, dict) and "id" in row)

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        return self._stream(request)

    @asynccontextmanager
    async def _stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        numbered, passages = with_numbered_passages(request)
        profile = profile_of(f"{self._provider}:{request.model}")
        if self._endpoint.url == DEFAULT_BASE_URL:  # OpenAI renamed the limit; compatible services have the old name
            profile = replace(profile, completion_tokens=True)
        stream = await self._open(chat_body(numbered, profile), profile.headers)
        try:
            expect_stream(stream.response, self._endpoint)
            decoder = ChatDecoder(request.model, f"{self._provider}:")
            async with aclosing(self._events(stream, decoder)) as events, aclosing(cite(events, passages)) as cited:
                yield cited
        finally:
            await close(stream.response)

    async def _open(self, body: Json, headers: Mapping[str, str]) -> "AsyncStream[Any]":
        """Send the request, and return the answer with status 200 and an unread body.

        If the service refuses a parameter, this and all later requests omit the parameter, because the turn must not
        end with that error.
        """
        model = body["model"]
        while True:  # ends: each round either omits one more parameter or raises
            refused = self._refused.get(model, frozenset())
            try:
                return await self._send(_without(body, refused), headers)
            except ModelError as error:
                unwanted = _find_unwanted(error, body) - refused
                if not unwanted:
                    raise
                logger.info("%s does not take %s for %s", self._endpoint.url, ", ".join(sorted(unwanted)), model)
                self._refused[model] = refused | unwanted

    async def _send(self, body: Json, headers: Mapping[str, str]) -> "AsyncStream[Any]":
        client = await self._ready()
        from openai import AsyncStream

        all_headers = {"Content-Type": "application/json", "Accept": "text/event-stream", **headers}
        try:
            return await client.post(
                "/chat/completions",
                content=encode(body),
                cast_to=object,
                options={"headers": all_headers},
                stream=True,
                stream_cls=AsyncStream[Any],
            )
        except Exception as exc:
            raise model_error(exc, self._endpoint, model=body["model"]) from exc

    async def _events(self, stream: "AsyncStream[Any]", decoder: ChatDecoder) -> AsyncGenerator[ModelEvent, None]:
        reader = SSEReader()
        # Read to the end, so that the connection can be used again.
        async with aclosing(chunks_of(stream.response)) as chunks:
            while True:
                parsed = await self._next(chunks, reader, decoder)
                if parsed is None:
                    for event in _last(decoder):
                        yield event
                    return
                quiet = True
                for _, data in parsed:
                    for event in decoder.decode(data):
                        quiet = False
                        yield event
                    if decoder.completed:
                        await finish(chunks)
                        return
                if quiet and decoder.working:
                    yield ModelProgress()

    async def _next(
        self, chunks: AsyncGenerator[bytes, None], reader: SSEReader, decoder: ChatDecoder
    ) -> list[tuple[str, bytes]] | None:
        """Return the next events, or None at the end of the stream or if the usage does not arrive in time."""
        try:
            with anyio.move_on_after(USAGE_SECONDS if decoder.finished else None):
                chunk = await anext(chunks, None)
                return reader.feed(chunk) if chunk is not None else None
        except EventTooLarge as exc:
            raise broken_stream(f"cannot be read: {exc}", "malformed_stream") from exc
        except Exception as exc:
            if decoder.finished:
                return None  # the answer is complete
            raise model_error(exc, self._endpoint, model="", started=True) from exc
        return None  # the time for the usage is over

    async def _ready(self) -> "AsyncOpenAI":
        client = self._client
        if client is None:
            async with self._lock:
                if self._closed:
                    raise RuntimeError("the model was closed")
                if self._client is None:
                    self._client = await run_in_daemon(self._build)
                client = self._client
        return client

    def _build(self) -> "AsyncOpenAI":
        from openai import AsyncOpenAI, DefaultAioHttpClient

        from agentic_rag.models.http_refusals import shorten_refusal

        timeout = client_timeout()
        hooks = {"response": [shorten_refusal]}
        http_client = DefaultAioHttpClient(timeout=timeout, limits=client_limits(), event_hooks=hooks)
        # The agent retries, and tells the user.
        return AsyncOpenAI(
            api_key=self._endpoint.secret or NO_KEY,
            base_url=self._base_url,
            default_headers=dict(self._headers),
            max_retries=0,
            timeout=timeout,
            http_client=http_client,
        )


def _last(decoder: ChatDecoder) -> list[ModelEvent]:
    """Return the last events of a stream that ends without ``[DONE]``.

    Raises:
        ModelError: the stream ended without a finish reason.
    """
    if not decoder.has_reason:
        raise broken_stream("ended before it was complete", "incomplete_stream")
    return list(decoder.end())


def _without(body: Json, refused: frozenset[str]) -> Json:
    """Return a body without the parameters that the service refuses. A refused limit is sent by its other name."""
    sent = {key: value for key, value in body.items() if key not in refused}
    for name, other_name in (("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")):
        if name in refused and name in body:
            sent[other_name] = body[name]
    return sent


def _find_unwanted(error: ModelError, body: Json) -> frozenset[str]:
    """Return the refused parameter that the error names, or an empty set."""
    text = str(error)
    if error.http_status not in (400, 422) or not _UNWANTED.search(text):
        return frozenset()
    limits = [name for name in ("max_tokens", "max_completion_tokens") if name in body]
    named = [name for name in (*OPTIONAL, *limits) if name in body and re.search(rf"\b{name}\b", text)]
    return frozenset(named[:1])
