"""The events of one answer of the Messages API, as its bytes come.

Owns the way from a body to model events, and two ways on from there: whoever waits for the next one gets it; and where
our own transport brings the body, deltas can be pushed to who takes them, in the event loop's call that brought their
bytes, so that none of them wakes a task.
"""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Self

from agentic_rag.errors import EventTooLarge, ModelError
from agentic_rag.models.anthropic.decoder import AnswerDecoder
from agentic_rag.models.anthropic.errors import model_error
from agentic_rag.models.base import ModelEvent, Push, Working
from agentic_rag.models.http_stream import chunks_of, finish
from agentic_rag.models.service_errors import Endpoint, broken_stream
from agentic_rag.models.sse import SSEReader

if TYPE_CHECKING:
    import httpx2


class AnswerEvents(AsyncIterator[ModelEvent]):
    """Implements `PushingEvents`. ``endpoint`` and ``model``: whom errors name."""

    def __init__(self, response: "httpx2.Response", decoder: AnswerDecoder, endpoint: Endpoint, model: str) -> None:
        self._response = response
        self._chunks: AsyncGenerator[bytes, None] = chunks_of(response)
        self._reader = SSEReader()
        self._decoder = decoder
        self._endpoint = endpoint
        self._model = model
        self._ready: deque[ModelEvent] = deque()
        self._failure: Exception | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ModelEvent:
        while not self._ready:
            if self._failure is not None:
                raise self._failure
            if self._decoder.completed:
                # Read to the end, so that the connection can be used again.
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
        await self._chunks.aclose()

    def push(self, take: Push) -> None:
        """See `PushingEvents.push`."""
        from agentic_rag.models.http_push import PushedBody

        body, ready = self._response.stream, self._ready

        def pour(piece: bytes) -> bool:
            if self._decoder.completed:  # what follows the answer is nothing of it
                return True
            self._decode(piece)
            try:
                while ready and take(ready[0]):
                    ready.popleft()
            except Exception as exc:
                ready.clear()
                self._failure = exc
            return not ready and self._failure is None and not self._decoder.completed

        if isinstance(body, PushedBody):
            body.pour(pour)

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
            ready.append(Working())
