"""A model whose calls are remembered: when it answered last, and what came of those that it did not answer.

Owns what counts as a failure of the model: that it refused, broke off, or was silent until its caller gave up; not that
a request was one it cannot take, and not that somebody stopped waiting. Knows no turn.
"""

import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import anyio

from agentic_rag.errors import ModelError
from agentic_rag.models.base import Model, ModelEvent, ModelRequest
from agentic_rag.outcomes import Outcomes

TOLERATED = 0.25
"""Share of failed calls from which on a model that answers is degraded all the same."""
ANSWERED = frozenset({400, 413, 422})
"""HTTP statuses that say something of the request, and that the service works."""
PATIENCE_SHARE = 0.9
"""Of the time a caller waits for an event; the rest is for the clocks to differ."""


class WatchedModel:
    """A `Model` around another one. ``idle``: seconds without an event after which its callers give up."""

    def __init__(self, model: Model, idle: float) -> None:
        self._model = model
        self._idle = idle
        self.outcomes = Outcomes(TOLERATED)

    @property
    def name(self) -> str:
        return self._model.name

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """See `Model.stream`."""
        events: _Events | None = None
        asked = time.monotonic()
        try:
            async with self._model.stream(request) as stream:
                events = _Events(stream)
                yield events
        except ModelError as error:
            if error.http_status not in ANSWERED:
                self.outcomes.note_failure(time.time(), error.kind or error.code, str(error))
            raise
        except anyio.get_cancelled_exc_class():
            since = asked if events is None else events.asked
            if time.monotonic() - since >= self._idle * PATIENCE_SHARE:
                reason = f"no event came within {self._idle:g} s"
                self.outcomes.note_failure(time.time(), "GENERATION_TIMEOUT", reason)
            raise
        self.outcomes.note_success(time.time())

    async def aclose(self) -> None:
        """See `Model.aclose`."""
        await self._model.aclose()


class _Events:
    """The events of a call, and when the next one was asked for."""

    def __init__(self, events: AsyncIterator[ModelEvent]) -> None:
        self._events = events
        self.asked = time.monotonic()

    def __aiter__(self) -> "_Events":
        return self

    def __anext__(self) -> Awaitable[ModelEvent]:
        # Not a coroutine of its own: what is asked for is the model's.
        self.asked = time.monotonic()
        return self._events.__anext__()
