"""`ScriptedModel`: a `Model` that answers with the steps of a test.

Owns the order of scripted steps, the received requests and the faults of a model call. Knows no HTTP: `FakeMessagesAPI`
has the faults of a connection.

    async with ScriptedModel(use("search_documents", query="…"), say("Found.", Cite(0))) as model:
        ...  # leaving fails if a step was not asked for, or a request was one the API refuses

A step may be a callable that gets the `ModelRequest` and returns the step.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import anyio

from agentic_rag.base.errors import ModelError
from agentic_rag.models.anthropic.request import request_body, search_results
from agentic_rag.models.base import InputDelta, Model, ModelEvent, ModelProgress, ModelRequest
from agentic_rag.testing.problems import problems
from agentic_rag.testing.steps import Step, Use, step_events


@dataclass(frozen=True, slots=True)
class Broken:
    """The step breaks off after ``after`` events (0: before the first, yet after the answer began)."""

    step: Step
    after: int
    error: ModelError | None = None
    """Default: a dropped stream."""


@dataclass(frozen=True, slots=True)
class Stalled:
    """The step goes silent after ``after`` events until ``until`` is set; ``reached`` is set when it does."""

    step: Step
    after: int
    until: anyio.Event = field(default_factory=anyio.Event)
    reached: anyio.Event = field(default_factory=anyio.Event)


Running = Step | Broken | Stalled
Plain = Running | ModelError
"""`ModelError`: the call fails before the stream begins."""

Scripted = Plain | Callable[[ModelRequest], Plain]

Pause = Callable[[int, int, ModelEvent], Awaitable[None]]
"""Awaited before each event is handed out, with the numbers of the call and the event (both from 0).

A test can block there, or interrupt the turn, at every event.
"""


class ScriptedModel(Model):
    """A model from a list of steps, one for each call.

    ``requests`` are the calls so far. ``open_streams`` counts contexts entered and not left. A request the API would
    refuse fails in the same way (`ModelError` 400), and again at the end by `assert_consumed`. Pass ``strict=False`` in
    a test that sends one on purpose. After the last step, ``then`` answers; without it a further call is a failed
    assertion.
    """

    def __init__(
        self, *steps: Scripted, then: Scripted | None = None, pause: Pause | None = None, strict: bool = True
    ) -> None:
        self._steps = list(steps)
        self._then = then
        self._pause = pause
        self._strict = strict
        self.requests: list[ModelRequest] = []
        self._consumed = anyio.Event()
        self._look_for_end()
        self.refused: list[str] = []
        self.surplus = 0
        self.open_streams = 0
        self.closed = False

    @property
    def name(self) -> str:
        return "scripted"

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        return self._stream(request)

    def take(self, request: ModelRequest, *, check: bool) -> tuple[int, Running]:
        """Record a request and return the number of its call, from 0, with the scripted answer.

        ``check``: whether to check the request here; a service checks it itself.

        Raises:
            ModelError: The script says so, or the API would refuse the request.
        """
        call = len(self.requests)
        self.requests.append(request)
        self._look_for_end()
        scripted = self._next(call)
        if check and self._strict:
            self._check(request)
        plain = scripted(request) if callable(scripted) else scripted
        if isinstance(plain, ModelError):
            raise plain
        return call, plain

    @asynccontextmanager
    async def _stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        call, plain = self.take(request, check=True)
        scripted_events = step_events(step_of(plain), model=request.model, results=search_results(request.messages))
        async with self.play(call, plain, _one_by_one(scripted_events)) as events:
            yield events

    @asynccontextmanager
    async def play(
        self, call: int, plain: Running, source: AsyncIterator[ModelEvent]
    ) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """Yield the events of a call with its fault. Argument pieces count as events only if the step lists them."""
        self.open_streams += 1
        try:
            async with aclosing(self._events(call, plain, source)) as events:
                yield events
        finally:
            self.open_streams -= 1

    async def _events(
        self, call: int, plain: Running, source: AsyncIterator[ModelEvent]
    ) -> AsyncGenerator[ModelEvent, None]:
        fault_at = -1 if isinstance(plain, Step) else plain.after
        pieces = any(isinstance(block, Use) and block.pieces for block in step_of(plain).blocks)
        number = 0
        async for event in source:
            # Progress is no part of a step, and pieces that the step does not list depend on the service's form:
            # if they counted, the same script would break off at different places.
            counts = not isinstance(event, ModelProgress) and (pieces or not isinstance(event, InputDelta))
            if counts and number == fault_at:
                await self._fault(plain)
            if counts and self._pause is not None:
                await self._pause(call, number, event)
            yield event
            number += counts
        # Else a test of a fault would pass without its fault.
        if fault_at >= number:
            raise AssertionError(f"the step has {number} events; its fault at {fault_at} never came")

    async def _fault(self, plain: Plain) -> None:
        if isinstance(plain, Stalled):
            plain.reached.set()
            await plain.until.wait()
        elif isinstance(plain, Broken):
            raise plain.error or ModelError("The model's answer broke off.", retryable=True, started=True)

    def _next(self, call: int) -> Scripted:
        if call < len(self._steps):
            return self._steps[call]
        if self._then is None:
            self.surplus += 1
            raise AssertionError(f"call {call + 1} of a model with {len(self._steps)} scripted steps")
        return self._then

    def _check(self, request: ModelRequest) -> None:
        reasons = problems(request_body(request), also_allowed={"temperature"})
        if reasons:
            self.refused += reasons
            raise ModelError(reasons[0], http_status=400, kind="invalid_request_error")

    def _look_for_end(self) -> None:
        if len(self.requests) >= len(self._steps):
            self._consumed.set()

    async def wait_consumed(self) -> None:
        """Wait until every step was asked for."""
        await self._consumed.wait()

    def assert_consumed(self) -> None:
        """Fail unless every step was asked for, none beyond them, and no request was refused."""
        assert not self.refused, f"the API would have refused: {self.refused}"
        assert not self.surplus, f"{self.surplus} calls more than the {len(self._steps)} scripted steps"
        left = len(self._steps) - len(self.requests)
        assert left <= 0, f"{left} of {len(self._steps)} scripted steps were not asked for"

    async def aclose(self) -> None:
        self.closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
        if error is None:  # a test that failed already has its reason
            self.assert_consumed()


def step_of(plain: Running) -> Step:
    """Return the step, without its fault."""
    return plain if isinstance(plain, Step) else plain.step


async def _one_by_one(events: Iterable[ModelEvent]) -> AsyncIterator[ModelEvent]:
    for event in events:
        yield event
