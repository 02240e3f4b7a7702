"""The strict Messages API without HTTP: a `Model` that accepts, signs and counts as the service does.

It serves tests with many examples. `testing.admission` decides which requests are refused. Thinking is signed together
with the content before it, and a simulated cache computes the usage.
"""

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from agentic_rag.base.errors import ModelError
from agentic_rag.base.events import Usage
from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import Block
from agentic_rag.models.anthropic.request import request_body, search_results
from agentic_rag.models.base import MessageCompleted, Model, ModelEvent, ModelRequest, TextDelta
from agentic_rag.testing.admission import Admission, Inadmissible
from agentic_rag.testing.bindings import Signer
from agentic_rag.testing.prompt_cache import PromptCache
from agentic_rag.testing.steps import Step, step_events
from agentic_rag.tools.image_headers import read_picture

NAME = "claude-sonnet-5-5"

Brain = Callable[[Json], Step]
"""Answers a request's body."""


class StrictModel(Model):
    """Answers with its brain. ``requests`` are the accepted bodies; ``refused`` are the errors of others."""

    def __init__(self, brain: Brain, *, context_window: int | None = None) -> None:
        self._brain = brain
        self._admission = Admission(context_window=context_window)
        self._cache = PromptCache(512)
        self.requests: list[dict[str, Any]] = []
        self.refused: list[str] = []
        self.usages: list[Usage] = []
        """Usage of each request."""

    @property
    def sent_tokens(self) -> int:
        """Return the tokens of all requests."""
        return sum(usage.sent for usage in self.usages)

    @property
    def cached_tokens(self) -> int:
        """Return the tokens of all requests that came from the cache."""
        return sum(usage.cache_read for usage in self.usages)

    @property
    def name(self) -> str:
        return "strict"

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        return self._stream(request)

    @asynccontextmanager
    async def _stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        body = request_body(request)
        try:
            admitted = self._admission.admit(body, ())
        except Inadmissible as exc:
            self.refused += exc.reasons
            raise ModelError(
                f"The model's service refused the request ({exc.status}): {exc.reasons[0]}",
                http_status=exc.status,
                kind="invalid_request_error",
            ) from exc
        self.requests.append(body)
        events = step_events(
            self._brain(body),
            model=body["model"],
            results=search_results(body["messages"]),
            signer=Signer(admitted.request),
        )
        completed = events[-1]
        assert isinstance(completed, MessageCompleted)
        cache_count = self._cache.count(body, sum(isinstance(event, TextDelta) for event in events))
        usage = cache_count.usage + Usage(input=_picture_tokens(body))
        self.usages.append(usage)

        async def replay_events() -> AsyncIterator[ModelEvent]:
            for event in events[:-1]:
                yield event
            yield MessageCompleted(completed.stop_reason, usage, completed.category)

        yield replay_events()

    async def aclose(self) -> None:
        """Do nothing."""


def images_in(body: Json) -> list[Block]:
    """Return the images in a request, from users and from tool results."""
    return [
        part
        for message in body["messages"]
        for block in message["content"]
        for part in (block["content"] if block["type"] == "tool_result" else (block,))
        if part["type"] == "image"
    ]


def _picture_tokens(body: Json) -> int:
    pictures = [read_picture(base64.b64decode(block["source"]["data"])) for block in images_in(body)]
    return sum(picture.tokens for picture in pictures if picture)


def results_of(body: Json) -> dict[str, str]:
    """Return the text of each tool result in a request, by call id."""
    return {
        block["tool_use_id"]: "".join(part.get("text", "") for part in block["content"])
        for message in body["messages"]
        for block in message["content"]
        if block["type"] == "tool_result"
    }
