"""The events of one answer of the Messages API, as its bytes come.

Owns the way from a body to model events, and two ways on from there: whoever waits for the next one gets it; and where
our own transport brings the body, deltas can be pushed to who takes them, in the event loop's call that brought their
bytes, so that none of them wakes a task.
"""

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol, Self

from agentic_rag.base.errors import EventTooLarge, ModelError
from agentic_rag.models.anthropic.decoder import AnswerDecoder
from agentic_rag.models.anthropic.errors import model_error
from agentic_rag.models.base import (
    ModelEvent,
    ModelProgress,
    Push,
    PushingEvents,
    PushText,
    TextDelta,
    ThinkingDelta,
)
from agentic_rag.models.http_stream import chunks_of, close, expect_stream, finish
from agentic_rag.models.service_errors import Endpoint, broken_stream
from agentic_rag.models.sse import SSEReader

if TYPE_CHECKING:
    import httpx2

    from agentic_rag.models.http_push import PushedBody, SentPost


class OpenedAnswer(Protocol):
    """An answer with its body unread: ours, or the SDK's stream."""

    @property
    def response(self) -> "httpx2.Response":
        """The answer."""
        ...


Opening = Callable[[], Awaitable[OpenedAnswer]]
"""Waits for the answer to a request, or makes it anew. Raises as `Model.stream` does."""


class AnswerEvents(PushingEvents):
    """The events of an answer with 200. ``endpoint`` and ``model``: whom errors name."""

    def __init__(
        self, response: "httpx2.Response | None", decoder: AnswerDecoder, endpoint: Endpoint, model: str
    ) -> None:
        self._chunks: AsyncGenerator[bytes, None] | None = None
        self._body: PushedBody | None = None
        """Where our own transport brings it."""
        self._reader = SSEReader()
        self._decoder = decoder
        self._endpoint = endpoint
        self._model = model
        self._ready: deque[ModelEvent] = deque()
        self._failure: Exception | None = None
        if response is not None:
            self._begin(response)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ModelEvent:
        assert self._chunks is not None
        while not self._ready:
            if self._failure is not None:
                raise self._failure
            if self._decoder.completed:
                # Read to the end, so that the connection can be used again.
                if self._body is None or not self._body.end():
                    await finish(self._chunks)
                raise StopAsyncIteration
            try:
                chunk = await anext(self._chunks, None)
            except Exception as exc:
                raise model_error(exc, self._endpoint, model=self._model, started=True) from exc
            if chunk is None:
                raise broken_stream("ended before it was complete", "incomplete_stream")
            self._decode(chunk)
        return self._ready.popleft()

    async def aclose(self) -> None:
        """Read no more of the body."""
        if self._chunks is not None:
            await self._chunks.aclose()

    def push(self, take: Push, take_text: PushText | None = None) -> None:
        """See `PushingEvents.push`."""
        if self._body is not None:
            self._body.pour(self._sink(take, take_text or take))

    def _begin(self, response: "httpx2.Response") -> None:
        from agentic_rag.models.http_push import PushedBody

        self._chunks = chunks_of(response)
        self._body = response.stream if isinstance(response.stream, PushedBody) else None

    def _sink(self, take: Push, take_text: PushText) -> Callable[[bytes], bool]:
        """Return what takes a piece of the body and offers its events; whether to wait on.

        Most pieces are one event with a piece of text: such a one goes the shortest way there is.
        """
        ready, decoder, whole = self._ready, self._decoder, self._reader.whole

        def pour(piece: bytes) -> bool:
            if decoder.completed:  # what follows the answer is nothing of it
                return True
            try:
                text = None if ready or (data := whole(piece)) is None else decoder.text_of(data)
                if text is not None:
                    if take_text(text):
                        return True
                    ready.append(text)
                    return False
                self._decode(piece)
                while ready:
                    event = ready[0]
                    is_text = type(event) is TextDelta or type(event) is ThinkingDelta
                    if not (take_text(event) if is_text else take(event)):  # type: ignore[arg-type]
                        break
                    ready.popleft()
            except Exception as exc:
                ready.clear()
                self._failure = exc
            return not ready and self._failure is None and not decoder.completed

        return pour

    def _decode(self, chunk: bytes) -> None:
        """Add the events that are complete with this chunk, and what made the rest of the answer unreadable."""
        ready, decoder = self._ready, self._decoder
        try:
            for _, data in self._reader.feed(chunk):
                event = decoder.decode(data)
                if event is not None:
                    ready.append(event)
                    if decoder.completed:
                        return
        except EventTooLarge as exc:
            self._failure = broken_stream(f"cannot be read: {exc}", "malformed_stream")
        except ModelError as exc:
            self._failure = exc
        if not ready and decoder.working:
            ready.append(ModelProgress())


class EventsAhead(AnswerEvents, AbstractAsyncContextManager["EventsAhead"]):
    """The events of the answer to a request that was ``sent`` before: the call that `Model.stream` opens.

    Who takes them gets them from the body's first byte: no task is woken for the headers. ``opening``: waits for the
    answer, and asks once more where there is none; it raises what `Model.stream` does, and the first event is where.
    """

    def __init__(
        self,
        sent: "SentPost",
        opening: Opening,
        decoder: AnswerDecoder,
        endpoint: Endpoint,
        model: str,
    ) -> None:
        super().__init__(None, decoder, endpoint, model)
        self._sent = sent
        self._opening = opening
        self._response: httpx2.Response | None = None
        """Of an answer that is no plain stream of events."""
        self._taking: tuple[Push, PushText] | None = None
        self._opened = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, exc: object, trace: object) -> None:
        if not self._opened:
            self._sent.abandon()
            return
        if self._body is not None and self._body.end():
            return
        await self.aclose()
        if (body := self._response or self._body) is not None:
            await close(body)

    async def __anext__(self) -> ModelEvent:
        if self._chunks is None:
            self._opened = True
            self._body = await self._sent.stream()
            if self._body is not None:
                self._chunks = aiter(self._body)
            else:
                self._response = (await self._opening()).response
                expect_stream(self._response, self._endpoint)
                self._begin(self._response)
            if self._taking is not None:
                super().push(*self._taking)
        return await super().__anext__()

    def push(self, take: Push, take_text: PushText | None = None) -> None:
        """See `PushingEvents.push`."""
        self._taking = take, take_text or take
        self._sent.pour(self._sink(*self._taking))
