"""Claude, and every endpoint that speaks the Messages API.

Owns the SDK's client and the life of one streamed call. What is sent is `request_body`'s, what comes back
`AnswerDecoder`'s, what goes wrong `model_error`'s. Knows no turn: retries, the idle timeout and budgets
are the agent's.

The official SDK says what headers and key a request carries. It is sent over a transport of our own (`http_push`),
which costs a fraction of the SDK's, and read by our own reader (a test holds both to the same events); where a proxy or
a redirect is in between, the SDK's client sends it. The SDK is imported on first use, in a thread: that takes over a
second, or twenty on a busy machine, which nobody who stops waits for.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio

from agentic_rag.base.errors import ModelError
from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import Block
from agentic_rag.models.anthropic.answer import AnswerEvents, EventsAhead
from agentic_rag.models.anthropic.decoder import AnswerDecoder
from agentic_rag.models.anthropic.errors import model_error, refusal_of
from agentic_rag.models.anthropic.prepared import PreparedPost
from agentic_rag.models.anthropic.request import BINDING_BETA, encoded_body, request_body, without_thinking
from agentic_rag.models.base import Model, ModelEvent, ModelRequest, PreparedRequest, PreparingModel
from agentic_rag.models.http_stream import (
    PROFILE_SECONDS,
    cite,
    client_limits,
    client_timeout,
    close,
    encode,
    expect_stream,
    run_in_daemon,
)
from agentic_rag.models.marks import with_numbered_passages
from agentic_rag.models.profiles import ModelProfile, is_claude, profile_of, with_capabilities
from agentic_rag.models.service_errors import NO_KEY, Endpoint, check_key, public_url

if TYPE_CHECKING:
    import httpx2
    from anthropic import AsyncAnthropic, AsyncStream

    from agentic_rag.models.http_push import PushClient, SentPost

logger = logging.getLogger(__name__)

CitationMode = Literal["native", "marks"]
NO_HEADERS: Mapping[str, str] = {}

DEFAULT_BASE_URL = "https://api.anthropic.com"
BETA = "anthropic-beta"
"""The one header whose values add up: those of the provider, of the model, and of a request."""
BOUND_ELSEWHERE = "bound to a different conversation"
"""In the error for thinking whose prefix is not what it was."""


@dataclass(frozen=True, slots=True)
class PushedAnswer:
    """An answer over our own transport, where the SDK gives an `AsyncStream`."""

    response: "httpx2.Response"


Answer: TypeAlias = "PushedAnswer | AsyncStream[Any]"


class AnthropicModel(Model, PreparingModel):
    """A `Model` over the Messages API. Safe for any number of simultaneous streams on one event loop.

    ``citations``: ``native`` sends search results as they are; ``marks`` is for endpoints that refuse them
    (see `marks`). ``provider``: the name under which the operator's file has it, empty for the environment's.
    """

    def __init__(
        self,
        api_key: str,
        base_url: str | None = None,
        *,
        citations: CitationMode = "native",
        headers: Mapping[str, str] = NO_HEADERS,
        provider: str = "",
    ) -> None:
        """Import nothing and connect to nothing.

        Raises:
            BadConfiguration: the key cannot be sent in a header, or the URL is none.
        """
        self._base_url = (base_url or DEFAULT_BASE_URL).strip()
        self._endpoint = endpoint_of(provider, api_key, self._base_url)
        self._provider = provider
        self._headers = headers
        self._marks = citations == "marks"
        self._lock = anyio.Lock()
        self._client: AsyncAnthropic | None = None
        self._push: PushClient | None = None
        self._heads: dict[tuple[tuple[str, str], ...], bytes] = {}
        """The beginnings of requests by the headers that are their own."""
        self._closed = False
        self._profiles: dict[str, ModelProfile] = {}
        self.mismatches = 0
        """Requests whose thinking no longer fitted what stands before it; each was sent again without."""

    @property
    def name(self) -> str:
        return self._provider or "anthropic"

    @property
    def _tells_of_models(self) -> bool:
        """Whether the service says what a model is."""
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._endpoint.url!r}, api_key=***)"

    async def warm_up(self) -> None:
        """Import the SDK and build the client, in a thread. Idempotent; the first stream does it otherwise."""
        await self._ready()

    async def aclose(self) -> None:
        self._closed = True
        async with self._lock:
            client, self._client = self._client, None
            push, self._push = self._push, None
        if push is not None:
            await push.aclose()
        if client is not None:
            await client.close()

    def stream(
        self, request: ModelRequest, sent: "SentPost | None" = None
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """See `Model.stream`. ``sent``: the request, if it was sent already, as `prepare` made it."""
        if sent is None:
            return self._stream(request)
        opening = partial(self._open, request, self._profiles[request.model], sent, cites=True)
        return EventsAhead(sent, opening, self._decoder(), self._endpoint, request.model)

    def prepare(self, request: ModelRequest) -> PreparedRequest | None:
        """See `PreparingModel.prepare`: over our own transport, once all is known that a request needs."""
        profile = self._profiles.get(request.model)
        if self._client is None or self._push is None or profile is None or self._marks or not profile.cites:
            return None
        head = self._head(self._client, self._push, self._headers_of(profile))
        return PreparedPost.of(self, self._push, head, request, profile)

    @asynccontextmanager
    async def _stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        passages: list[Block] = []
        profile = await self._profile(request.model)
        marks = self._marks or not profile.cites
        if marks:
            request, passages = with_numbered_passages(request)
        stream = await self._open(request, profile, None, cites=not marks)
        try:
            expect_stream(stream.response, self._endpoint)
            async with aclosing(self._events(stream, self._decoder(), request.model)) as events:
                if marks:
                    async with aclosing(cite(events, passages)) as cited:
                        yield cited
                else:
                    yield events
        finally:
            await close(stream.response)

    async def _open(
        self, request: ModelRequest, profile: ModelProfile, sent: "SentPost | None", *, cites: bool
    ) -> Answer:
        """Send the request, unless it was ``sent``; return the answer with 200 and the body unread.

        Thinking that the service finds bound to other words is left out in a second try: the turn must not end with it.
        """
        try:
            if sent is not None and (answer := await self._answer_of(sent, request.model)) is not None:
                return answer
            body = b"".join(encoded_body(request, profile, cites=cites))
            return await self._send(body, self._headers_of(profile), request.model)
        except ModelError as error:
            if error.http_status != 400 or BOUND_ELSEWHERE not in str(error):
                raise
        whole = {**request_body(request, profile, cites=cites), "stream": True}
        self.mismatches += 1
        logger.warning("thinking of an earlier turn does not fit its conversation any more; sent again without it")
        if (whole.get("thinking") or {}).get("type") in ("adaptive", "enabled"):
            binding = {"prefix_mismatch_behavior": "drop_block"}
            again = {**whole, "thinking": {**whole["thinking"], "block_binding": binding}}
            try:
                return await self._send(encode(again), self._headers_of(profile, BINDING_BETA), request.model)
            except ModelError as error:
                if error.http_status != 400:
                    raise
        return await self._send(encode(without_thinking(whole)), self._headers_of(profile), request.model)

    def _headers_of(self, profile: ModelProfile, beta: str = "") -> Json:
        """Return the headers of a request: the model's, and the betas of the provider, the model and this request."""
        betas = [self._headers.get(BETA), profile.headers.get(BETA), beta]
        joined = ",".join(each for each in betas if each)
        given = {"Accept": "text/event-stream", **profile.headers}
        return {**given, BETA: joined} if joined else given

    async def _send(self, body: bytes, headers: Mapping[str, str], model: str) -> Answer:
        client = await self._ready()
        try:
            return await self._post(client, body, headers, model)
        except ModelError:
            raise
        except Exception as exc:
            raise model_error(exc, self._endpoint, model=model) from exc

    async def _post(self, client: "AsyncAnthropic", body: bytes, headers: Mapping[str, str], model: str) -> Answer:
        """Send a body as we encode it, which the SDK would do more slowly."""
        push = self._push
        if push is not None:
            response = await push.post(self._head(client, push, headers), body)
            if (answer := await self._accept(response, model)) is not None:
                return answer
            if self._push is push:
                self._push = None  # the SDK's client follows where it points, with this request and all others
                await push.aclose()
        from anthropic import AsyncStream

        return await client.post(
            "/v1/messages",
            content=body,
            cast_to=object,
            options={"headers": {"Content-Type": "application/json", **headers}},
            stream=True,
            stream_cls=AsyncStream[Any],
        )

    async def _accept(self, response: "httpx2.Response", model: str) -> PushedAnswer | None:
        """Return an answer with 200; None: it points elsewhere. Raises `ModelError` for a refusal."""
        if response.status_code == 200:
            return PushedAnswer(response)
        if not 300 <= response.status_code < 400:
            raise await refusal_of(response, self._endpoint, model=model)
        await close(response)
        return None

    async def _answer_of(self, sent: "SentPost", model: str) -> PushedAnswer | None:
        """Return the answer to a request that was sent ahead; None: it has to be sent anew, as any other."""
        import httpx2

        try:
            response = await sent.answer()
        except httpx2.TransportError:  # the connection had rested for too long
            return None
        try:
            return await self._accept(response, model)
        except httpx2.HTTPError as exc:
            raise model_error(exc, self._endpoint, model=model) from exc

    def _head(self, client: "AsyncAnthropic", push: "PushClient", headers: Mapping[str, str]) -> bytes:
        """Return the beginning of a request with these headers and those that the SDK would send."""
        own = tuple(headers.items())
        if own not in self._heads:
            given = {**client.default_headers, "x-stainless-retry-count": "0", "content-type": "application/json"}
            named = {name.lower(): value for name, value in {**given, **headers}.items() if isinstance(value, str)}
            self._heads[own] = push.head(client.base_url.raw_path + b"v1/messages", named)
        return self._heads[own]

    async def _profile(self, model: str) -> ModelProfile:
        """Return what a model takes; the service is asked once for each of its own."""
        known = self._profiles.get(model)
        if known is None:
            qualified = f"{self._provider}:{model}" if self._provider else model
            known = profile_of(qualified)
            if self._tells_of_models and is_claude(model):
                known = await self._ask_about(known, qualified)
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

    async def _ask_about(self, profile: ModelProfile, model: str) -> ModelProfile:
        client = await self._ready()
        try:
            with anyio.fail_after(PROFILE_SECONDS):
                info = await client.get(f"/v1/models/{profile.name}", cast_to=object)
        except Exception as exc:  # an endpoint that has none of this: the table counts
            logger.info("what %s takes is not known from its service: %s", profile.name, type(exc).__name__)
            return profile
        return with_capabilities(profile, info, model) if isinstance(info, dict) else profile

    def _decoder(self) -> AnswerDecoder:
        return AnswerDecoder(f"{self._provider}:" if self._provider else "")

    def _events(self, stream: Answer, decoder: AnswerDecoder, model: str) -> AnswerEvents | AsyncGenerator[ModelEvent]:
        return AnswerEvents(stream.response, decoder, self._endpoint, model)

    async def _ready(self) -> "AsyncAnthropic":
        if self._client is not None:
            return self._client
        async with self._lock:
            if self._closed:
                raise RuntimeError("the model was closed")
            if self._client is None:
                client, self._push = await run_in_daemon(self._build_both)
                self._client = client
            return self._client

    def _build_both(self) -> "tuple[AsyncAnthropic, PushClient | None]":
        client = self._build()
        return client, self._open_push(client)

    def _open_push(self, client: "AsyncAnthropic") -> "PushClient | None":
        """Return what sends requests in the place of the SDK's client; None where that has to."""
        from agentic_rag.models.http_push import PushClient

        return PushClient.for_service(client.base_url)

    def _build(self) -> "AsyncAnthropic":
        from anthropic import AsyncAnthropic

        # Retries are the agent's: it tells the user of them.
        return AsyncAnthropic(
            api_key=self._endpoint.secret or NO_KEY,
            base_url=self._base_url,
            max_retries=0,
            default_headers=dict(self._headers),
            **http_options(),
        )


def http_options() -> Json:
    """Return what every client of the SDK is made with: its aiohttp transport, our timeouts and bounds."""
    from anthropic import DefaultAioHttpClient

    from agentic_rag.models.http_refusals import shorten_refusal

    timeout = client_timeout()
    hooks = {"response": [shorten_refusal]}
    client = DefaultAioHttpClient(timeout=timeout, limits=client_limits(), event_hooks=hooks)
    return {"timeout": timeout, "http_client": client}


def endpoint_of(provider: str, key: str, base_url: str) -> Endpoint:
    """Return a service as errors name it: by the environment's variables, or by its place in the operator's file.

    Raises:
        BadConfiguration: the key cannot be sent in a header, or the URL is none.
    """
    if provider:
        place = f"providers.{provider}"
        names = Endpoint("", f"{place}.key", f"{place}.base_url", "the model's name")
    else:
        names = Endpoint("")
    url = public_url(base_url, names.base_url, DEFAULT_BASE_URL)
    secret = check_key(key, names.key) if key.strip() or not provider or url == DEFAULT_BASE_URL else ""
    return replace(names, url=url, secret=secret)
