"""Claude at Amazon Bedrock and Google Vertex AI, through the SDK's own clients.

These clients rewrite and sign a request, so they get JSON instead of bytes. Bedrock answers with an AWS event stream,
which the SDK decodes. Vertex answers with an ordinary stream. Keys come from the provider's entry, else from the
cloud's own tools on the machine. Both clouds need an extra (``bedrock``, ``vertex``).
"""

import importlib
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from agentic_rag.base.errors import ModelError
from agentic_rag.base.messages import clean_json
from agentic_rag.models.anthropic.decoder import AnswerDecoder
from agentic_rag.models.anthropic.errors import model_error
from agentic_rag.models.anthropic.model import AnthropicModel, http_options
from agentic_rag.models.base import ModelEvent, ModelProgress
from agentic_rag.models.provider_file import Provider
from agentic_rag.models.service_errors import broken_stream

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic, AsyncStream

PLACES = {"bedrock": "https://bedrock-runtime.amazonaws.com", "vertex": "https://aiplatform.googleapis.com"}
"""URLs for error texts if the operator gives none. The SDK's client chooses the real address by region."""


class CloudModel(AnthropicModel):
    """A `Model` of Claude at a cloud, configured in the operator's file."""

    def __init__(self, provider: Provider) -> None:
        """Create the model without importing the SDK or opening a connection.

        Raises:
            BadConfiguration: the key cannot be sent in a header, or the URL is invalid.
        """
        super().__init__(
            provider.key,
            provider.base_url or PLACES[provider.kind],
            citations="marks" if provider.marks else "native",
            headers=provider.headers,
            provider=provider.name,
        )
        self._cloud = provider

    @property
    def _tells_of_models(self) -> bool:
        return False

    async def _post(self, client: "AsyncAnthropic", body: bytes, headers: Mapping[str, str]) -> "AsyncStream[Any]":
        from anthropic import AsyncStream

        return await client.post(
            "/v1/messages",
            body=clean_json(json.loads(body)),  # orjson would turn a large integer into a float
            cast_to=object,
            options={"headers": dict(headers)},
            stream=True,
            stream_cls=AsyncStream[Any],
        )

    def _build(self) -> "AsyncAnthropic":
        try:
            client: AsyncAnthropic = self._make_client()
            return client
        except ImportError as exc:
            raise ModelError(
                f"The provider {self._cloud.name!r} needs the extra {self._cloud.kind!r}: "
                f"pip install 'agentic-rag[{self._cloud.kind}]'.",
                kind="extra",
            ) from exc
        except ValueError as exc:  # no region, or both a key and an account
            raise ModelError(f"The provider {self._cloud.name!r} cannot be used: {exc}", kind="configuration") from exc

    def _make_client(self) -> Any:
        given: dict[str, Any] = {"max_retries": 0, "default_headers": dict(self._headers), **http_options()}
        cloud = self._cloud
        if cloud.base_url:
            given["base_url"] = cloud.base_url
        if cloud.kind == "bedrock":
            importlib.import_module("boto3")  # fail now; the SDK would fail at the first request
            from anthropic import AsyncAnthropicBedrock

            own = {"api_key": cloud.key, "aws_region": cloud.region, "aws_profile": cloud.account}
            given |= {key: value for key, value in own.items() if value}
            return AsyncAnthropicBedrock(**given)
        importlib.import_module("google.auth")
        from anthropic import AsyncAnthropicVertex

        own = {"access_token": cloud.key, "region": cloud.region, "project_id": cloud.project}
        given |= {key: value for key, value in own.items() if value}
        return AsyncAnthropicVertex(**given)


class BedrockModel(CloudModel):
    """Claude at Amazon Bedrock, which answers with an AWS event stream."""

    async def _events(
        self, stream: "AsyncStream[Any]", decoder: AnswerDecoder, model: str
    ) -> AsyncGenerator[ModelEvent, None]:
        decoded = aiter(stream)
        assert isinstance(decoded, AsyncGenerator)
        async with aclosing(decoded) as events:
            while True:
                try:
                    data = await anext(events, None)
                except Exception as exc:
                    raise model_error(exc, self._endpoint, model=model, started=True) from exc
                if data is None:
                    raise broken_stream("ended before it was complete", "incomplete_stream")
                event = decoder.take(data)
                if event is not None:
                    yield event
                    if decoder.completed:
                        return
                elif decoder.working:
                    yield ModelProgress()
