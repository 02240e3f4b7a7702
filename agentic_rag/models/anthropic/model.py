"""Claude, and every endpoint that speaks the Messages API.

Owns the SDK's client and the life of one streamed call. `request_body` builds the request, `AnswerDecoder` reads the
answer, and `model_error` maps failures. Knows no turn: the agent has the retries, the idle timeout and the budgets.

The official SDK sends the request over aiohttp, authenticates it and opens the answer. The bytes of the answer go to
our own decoder, so that no pydantic object is built for a delta (a test compares its events with the SDK's). The SDK
never retries: the agent does, and tells the user. The SDK is imported on first use, in a thread, because that takes
over a second, or twenty on a busy machine, and a server that stops must not wait for it.
"""

import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import anyio

from agentic_rag.base.errors import EventTooLarge, ModelError
from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import Block, clean_json
from agentic_rag.models.anthropic.decoder import AnswerDecoder
from agentic_rag.models.anthropic.errors import model_error
from agentic_rag.models.anthropic.request import BINDING_BETA, encoded_body, request_body, without_thinking
from agentic_rag.models.base import Model, ModelEvent, ModelProgress, ModelRequest
from agentic_rag.models.batches import (
    BATCH_ID,
    MAX_REQUESTS,
    READ_SECONDS,
    BatchAnswer,
    BatchState,
    read_line,
    without_batches,
)
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
from agentic_rag.models.profiles import ModelProfile, is_claude, profile_of, with_capabilities
from agentic_rag.models.service_errors import NO_KEY, Endpoint, broken_stream, check_key, public_url, unreachable
from agentic_rag.models.sse import SSEReader

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic, AsyncStream
    from anthropic.resources.messages import AsyncBatches

logger = logging.getLogger(__name__)

T = TypeVar("T")
CitationMode = Literal["native", "marks"]
NO_HEADERS: Mapping[str, str] = {}

DEFAULT_BASE_URL = "https://api.anthropic.com"
BETA = "anthropic-beta"
"""The only header whose values from the provider, the model and the request are joined."""
BOUND_ELSEWHERE = "bound to a different conversation"
"""Part of the service's error for thinking whose preceding messages have changed."""

_UNKNOWN_PARAMETER = re.compile(
    r"diagnostics|previous_message_id|output_config\.format|output_format|json_schema|structured.?output|"
    r"extra (?:inputs|fields)|"
    r"(?:unknown|unexpected|unrecognized|unsupported|additional) (?:field|parameter|propert|argument)",
    re.IGNORECASE,
)
"""Words of services that refuse a parameter they do not know."""


class AnthropicModel(Model):
    """A `Model` over the Messages API. Safe for any number of simultaneous streams on one event loop.

    ``citations``: ``native`` sends search results unchanged; ``marks`` is for endpoints that refuse them (see `marks`).
    ``provider``: the provider's name in the operator's file, or empty if the environment configures the provider.
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
        """Create the model without importing the SDK or opening a connection.

        Raises:
            BadConfiguration: the key cannot be sent in a header, or the URL is invalid.
        """
        self._base_url = (base_url or DEFAULT_BASE_URL).strip()
        self._messages_url = self._base_url.rstrip("/") + "/v1/messages"
        self._endpoint = endpoint_of(provider, api_key, self._base_url)
        self._provider = provider
        self._headers = headers
        self._marks = citations == "marks"
        self._lock = anyio.Lock()
        self._client: AsyncAnthropic | None = None
        self._closed = False
        self._profiles: dict[str, ModelProfile] = {}
        self.mismatches = 0
        """Requests whose thinking no longer matched the messages before it. Each was sent again without thinking."""

    @property
    def name(self) -> str:
        return self._provider or "anthropic"

    @property
    def _tells_of_models(self) -> bool:
        """Whether the service can describe its models."""
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._endpoint.url!r}, api_key=***)"

    async def warm_up(self) -> None:
        """Import the SDK and build the client, in a thread. Idempotent. Otherwise the first stream does this."""
        await self._ready()

    async def aclose(self) -> None:
        self._closed = True
        async with self._lock:
            client, self._client = self._client, None
        if client is not None:
            await client.close()

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Open one call; see `Model.stream`."""
        return self._stream(request)

    @asynccontextmanager
    async def _stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        passages: list[Block] = []
        profile = await self._profile(request.model)
        marks = self._marks or not profile.cites
        if marks:
            request, passages = with_numbered_passages(request)
        stream = await self._open(request, profile, cites=not marks)
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

    async def _open(self, request: ModelRequest, profile: ModelProfile, *, cites: bool) -> "AsyncStream[Any]":
        """Send the request, and return the answer with status 200 and an unread body.

        If the service refuses an optional parameter, this method sends the request again without all of them, and no
        later request for the model has them. If the service reports that thinking no longer matches its conversation,
        this method sends the request again without thinking, because the turn must not end with that error.
        """
        try:
            body = b"".join(encoded_body(request, profile, cites=cites))
            return await self._send(body, self._headers_of(profile), request.model)
        except ModelError as error:
            plain = self._without_optional(error, request, profile)
            if plain is not None:
                return await self._open(request, plain, cites=cites)
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

    def _without_optional(self, error: ModelError, request: ModelRequest, profile: ModelProfile) -> ModelProfile | None:
        """Return a profile without the optional parameters that a service refused, or None if it refused another thing.

        The profile replaces the cached one.
        """
        if error.http_status not in (400, 422) or _UNKNOWN_PARAMETER.search(str(error)) is None:
            return None
        asks = profile.diagnoses and request.previous_answer is not None
        forms = profile.structured and request.answer_schema is not None
        if not asks and not forms:
            return None
        names = ("diagnostics",) * asks + ("output_config.format",) * forms
        logger.info("%s refuses %s; requests are sent without", self._endpoint.url, " and ".join(names))
        plain = replace(profile, diagnoses=profile.diagnoses and not asks, structured=profile.structured and not forms)
        self._profiles[request.model] = plain
        return plain

    def _headers_of(self, profile: ModelProfile, beta: str = "") -> Json:
        """Return the headers of a request: the model's, and the betas of the provider, the model and this request.

        The answer must not be compressed: a delta would wait in the compressor.
        """
        betas = [self._headers.get(BETA), profile.headers.get(BETA), beta]
        joined = ",".join(each for each in betas if each)
        given = {"Accept": "text/event-stream", "Accept-Encoding": "identity", **profile.headers}
        return {**given, BETA: joined} if joined else given

    async def _send(self, body: bytes, headers: Mapping[str, str], model: str) -> "AsyncStream[Any]":
        client = await self._ready()
        try:
            return await self._post(client, body, headers)
        except Exception as exc:
            raise model_error(exc, self._endpoint, model=model) from exc

    async def _post(self, client: "AsyncAnthropic", body: bytes, headers: Mapping[str, str]) -> "AsyncStream[Any]":
        """Send an encoded body."""
        import httpx2
        from anthropic import AsyncStream

        # An absolute URL and the bare response save work of the SDK for which each first token would wait.
        response: Any = await client.post(
            self._messages_url,
            content=body,
            cast_to=httpx2.Response,
            options={"headers": {"Content-Type": "application/json", **headers}},
            stream=True,
            stream_cls=AsyncStream[Any],
        )
        return AsyncStream(cast_to=object, response=response, client=client)

    async def _profile(self, model: str) -> ModelProfile:
        """Return the cached profile of a model. The first call for a Claude model asks the service."""
        known = self._profiles.get(model)
        if known is None:
            qualified = f"{self._provider}:{model}" if self._provider else model
            known = profile_of(qualified)
            if self._tells_of_models and is_claude(model):
                known = await self._ask_about(known, qualified)
            self._profiles[model] = known
        return known

    async def knows(self, model: str) -> bool | None:
        """Return whether the service has a model of this name, or None if the service does not say."""
        if not is_claude(model):
            return None
        client = await self._ready()
        from anthropic import NotFoundError

        try:
            with anyio.fail_after(PROFILE_SECONDS):
                await client.get(f"/v1/models/{model}", cast_to=object)
        except NotFoundError as exc:  # an endpoint without this route answers 404 with another message
            return False if f"model: {model}" in (exc.api_message or "") else None
        except Exception as exc:  # no network or no permission; the first turn will report the error
            logger.info("whether there is a model %s is not known: %s", model, type(exc).__name__)
            return None
        return True

    async def _ask_about(self, profile: ModelProfile, model: str) -> ModelProfile:
        client = await self._ready()
        try:
            with anyio.fail_after(PROFILE_SECONDS):
                info = await client.get(f"/v1/models/{profile.name}", cast_to=object)
        except Exception as exc:  # an endpoint without this route: use the table's profile
            logger.info("what %s takes is not known from its service: %s", profile.name, type(exc).__name__)
            return profile
        return with_capabilities(profile, info, model) if isinstance(info, dict) else profile

    # Batches

    async def submit_batch(self, model: str, requests: Mapping[str, ModelRequest]) -> str:
        """Submit requests and return the id of the batch; see `BatchingModel`."""
        profile = await self._profile(model)
        items: list[Any] = [
            {"custom_id": custom_id, "params": clean_json(request_body(request, profile))}
            for custom_id, request in requests.items()
        ]
        batch = await self._of_batch(model, lambda batches: batches.create(requests=items))
        if BATCH_ID.fullmatch(str(batch.id)) is None:
            raise broken_stream("has a batch without a valid id", "malformed_batch")
        return str(batch.id)

    async def read_batch(self, model: str, batch_id: str) -> BatchState:
        """Return the progress of a batch; see `BatchingModel`."""
        batch = await self._of_batch(model, lambda batches: batches.retrieve(batch_id))
        return BatchState.ENDED if batch.processing_status == "ended" else BatchState.PROCESSING

    async def batch_answers(self, model: str, batch_id: str) -> dict[str, BatchAnswer]:
        """Return the answers of an ended batch; see `BatchingModel`.

        The path is ours, not the ``results_url`` of the service, so that the key goes to no other host.
        """
        answers: dict[str, BatchAnswer] = {}
        prefix = f"{self._provider}:" if self._provider else ""

        async def read(batches: "AsyncBatches") -> None:
            from anthropic._decoders.jsonl import AsyncJSONLDecoder

            client = await self._ready()
            lines = await client.get(
                f"/v1/messages/batches/{batch_id}/results",
                cast_to=AsyncJSONLDecoder[dict[str, Any]],
                options={"headers": {"Accept": "application/binary"}},
                stream=True,
            )
            async for line in lines:
                custom_id = line.get("custom_id") if isinstance(line, dict) else None
                if not isinstance(custom_id, str) or len(answers) > MAX_REQUESTS:
                    raise broken_stream("has malformed batch results", "malformed_batch")
                answers.setdefault(custom_id, read_line(line.get("result"), prefix))

        await self._of_batch(model, read)
        return answers

    async def cancel_batch(self, model: str, batch_id: str) -> None:
        """Cancel a batch; see `BatchingModel`."""
        await self._of_batch(model, lambda batches: batches.cancel(batch_id))

    async def _of_batch(self, model: str, call: "Callable[[AsyncBatches], Awaitable[T]]") -> T:
        """Return the result of a call of the SDK's batches, with errors as `ModelError`."""
        if not self._tells_of_models:  # Bedrock and Vertex have batches of another form
            raise without_batches(model)
        client = await self._ready()
        try:
            with anyio.fail_after(READ_SECONDS):
                return await call(client.messages.batches)
        except TimeoutError:
            raise unreachable(self._endpoint, in_time=False) from None
        except ModelError:
            raise
        except ValueError as exc:  # results that are not JSON lines
            raise broken_stream("has malformed batch results", "malformed_batch") from exc
        except Exception as exc:
            raise model_error(exc, self._endpoint, model=model) from exc

    def _decoder(self) -> AnswerDecoder:
        return AnswerDecoder(f"{self._provider}:" if self._provider else "")

    async def _events(
        self, stream: "AsyncStream[Any]", decoder: AnswerDecoder, model: str
    ) -> AsyncGenerator[ModelEvent, None]:
        """Yield the events of an answer, and read its body to the end so that the connection can be used again."""
        reader = SSEReader()
        async with aclosing(chunks_of(stream.response)) as chunks:
            try:
                async for chunk in chunks:
                    quiet = True
                    for _, data in reader.feed(chunk):
                        event = decoder.decode(data)
                        if event is None:
                            continue
                        quiet = False
                        yield event
                        if decoder.completed:
                            await finish(chunks)
                            return
                    if quiet and decoder.working:
                        yield ModelProgress()
            except ModelError:
                raise
            except EventTooLarge as exc:
                raise broken_stream(f"cannot be read: {exc}", "malformed_stream") from exc
            except Exception as exc:
                raise model_error(exc, self._endpoint, model=model, started=True) from exc
        raise broken_stream("ended before it was complete", "incomplete_stream")

    async def _ready(self) -> "AsyncAnthropic":
        if self._client is not None:
            return self._client
        async with self._lock:
            if self._closed:
                raise RuntimeError("the model was closed")
            if self._client is None:
                self._client = await run_in_daemon(self._build)
            return self._client

    def _build(self) -> "AsyncAnthropic":
        from anthropic import AsyncAnthropic

        # The agent retries, and tells the user.
        return AsyncAnthropic(
            api_key=self._endpoint.secret or NO_KEY,
            base_url=self._base_url,
            max_retries=0,
            default_headers=dict(self._headers),
            **http_options(),
        )


def http_options() -> Json:
    """Return the options of every SDK client: its aiohttp transport, and this project's timeouts and limits."""
    from agentic_rag.models.anthropic.http_client import ModelHttpClient
    from agentic_rag.models.http_refusals import shorten_refusal

    timeout = client_timeout()
    hooks = {"response": [shorten_refusal]}
    client = ModelHttpClient(timeout=timeout, limits=client_limits(), event_hooks=hooks)
    return {"timeout": timeout, "http_client": client}


def endpoint_of(provider: str, key: str, base_url: str) -> Endpoint:
    """Return a service's endpoint, named by environment variables or by its entry in the operator's file.

    Raises:
        BadConfiguration: the key cannot be sent in a header, or the URL is invalid.
    """
    if provider:
        place = f"providers.{provider}"
        names = Endpoint("", f"{place}.key", f"{place}.base_url", "the model's name")
    else:
        names = Endpoint("")
    url = public_url(base_url, names.base_url, DEFAULT_BASE_URL)
    secret = check_key(key, names.key) if key.strip() or not provider or url == DEFAULT_BASE_URL else ""
    return replace(names, url=url, secret=secret)
