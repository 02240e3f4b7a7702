"""A model wrapper that reports each call to a telemetry observer.

Each call becomes a span: a child of the running span, or a root span if none is running. If the observer measures
nothing, `observe` adds no wrapper, so that streams cost nothing extra.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

from agentic_rag.base.errors import ModelError
from agentic_rag.base.events import Usage
from agentic_rag.base.messages import Block
from agentic_rag.base.telemetry import (
    NO_SPAN,
    Fact,
    Observer,
    Span,
    SpanContent,
    WorkKind,
    running_span,
    working_domain,
)
from agentic_rag.models.base import (
    BlockStopped,
    MessageCompleted,
    MessageStarted,
    Model,
    ModelEvent,
    ModelProgress,
    ModelRequest,
)

_SILENT = (ModelProgress, MessageStarted)
"""Events that carry no part of the answer."""


def observe(model: Model, observer: Observer) -> Model:
    """Return a model that reports its calls to the observer, or the same model if the observer measures nothing."""
    return ObservedModel(model, observer) if observer.metrics or observer.tracer else model


class ObservedModel(Model):
    """A `Model` that wraps another one and reports its calls."""

    def __init__(self, model: Model, observer: Observer) -> None:
        self._model = model
        self._observer = observer

    @property
    def name(self) -> str:
        return self._model.name

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Open one call inside a span; see `Model.stream`."""
        return _ObservedCall(self._model.name, request, self._model.stream(request), self._observer)

    async def aclose(self) -> None:
        await self._model.aclose()


class _ObservedCall(AsyncIterator[ModelEvent]):
    """One observed call: the context manager that `Model.stream` returns, and the iterator of its events."""

    def __init__(
        self,
        provider: str,
        request: ModelRequest,
        inner: AbstractAsyncContextManager[AsyncIterator[ModelEvent]],
        observer: Observer,
    ) -> None:
        self._provider = provider
        self._request = request
        self._observer = observer
        self._inner = inner
        self._events: AsyncIterator[ModelEvent]
        self._span: Span = NO_SPAN
        self._silent = True
        self._blocks: list[Block] = []
        self._usage = Usage()

    async def __aenter__(self) -> Self:
        request, around = self._request, running_span()
        facts: dict[str, Fact] = {
            "provider": self._provider,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
        }
        if around is NO_SPAN:
            facts["domain_id"] = working_domain()
            self._span = self._observer.begin(WorkKind.STEP, request.model, traceparent="", **facts)
        else:
            self._span = around.begin(WorkKind.STEP, request.model, **facts)
        if self._span.wants_content:
            self._span.say(SpanContent.SYSTEM, list(request.system))
            self._span.say(SpanContent.REQUEST, list(request.messages))
        try:
            self._events = (await self._inner.__aenter__()).__aiter__()
        except BaseException as exc:
            self._end(exc)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return await self._inner.__aexit__(kind, exc, trace)
        finally:
            self._end(exc)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ModelEvent:
        event = await self._events.__anext__()
        # An answer has hundreds of deltas. After the first one they are passed on without a look.
        if self._silent or type(event) in _REPORTED:
            self._take(event)
        return event

    def _take(self, event: ModelEvent) -> None:
        if self._silent and type(event) not in _SILENT:
            self._silent = False
            self._span.note_first()
        if isinstance(event, MessageStarted):
            self._usage = event.usage
            self._span.note(answered_by=event.model)
        elif isinstance(event, BlockStopped) and self._span.wants_content:
            self._blocks.append(event.block)
        elif isinstance(event, MessageCompleted):
            self._usage = event.usage
            self._span.note(stop_reason=event.stop_reason)
            if self._span.wants_content:
                self._span.say(SpanContent.ANSWER, self._blocks)

    def _end(self, exc: BaseException | None) -> None:
        used = self._usage
        self._span.note(input=used.input, cache_read=used.cache_read, cache_write=used.cache_write, output=used.output)
        if exc is None:
            self._span.end()
        elif isinstance(exc, ModelError):
            self._span.end(exc.kind or (f"http_{exc.http_status}" if exc.http_status else exc.code))
        else:
            self._span.end("cancelled" if not isinstance(exc, Exception) else type(exc).__name__)


_REPORTED = frozenset({MessageStarted, BlockStopped, MessageCompleted})
"""Events that are reported; none of them is a delta."""
