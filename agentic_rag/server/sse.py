"""A turn's events as a server-sent event stream.

Handles pings, the time limit of a send, and the end when the client disconnects. Reads the run log at the client's
pace, so that the turn never waits for it. Knows no route; a dialect does the encoding.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Protocol

import anyio
from starlette.types import Receive, Scope, Send

from agentic_rag.base.errors import AgenticRagError
from agentic_rag.base.events import AgentEvent
from agentic_rag.base.silence_timers import SUSPENDED_SECONDS, SilenceScope
from agentic_rag.server.auth import caller_of
from agentic_rag.server.dialects import Dialect
from agentic_rag.server.dialects.settled import settle

PING_SECONDS = 15.0
"""Interval of comments in an idle stream, which show proxies and clients that it is alive."""
SEND_SECONDS = 30.0
"""Maximum time of one send. After that the client counts as stalled, and the connection is cut."""
OPEN_SECONDS = 0.2
"""How long the status line waits for the first event, so that a missing log can still be answered with an error."""
_BEAT_SECONDS = 5.0
_LAST_SECONDS = 1.0
"""Time limit to send the end of an answer after its key was revoked."""

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would otherwise collect events before it passes them on
]


class TakesEvents(Protocol):
    """A reader of a turn's events; see `agentic_rag.runtime.log.reader.LogReader`."""

    async def take(self) -> Sequence[AgentEvent]:
        """Return the available events, or none."""
        ...

    async def next(self) -> Sequence[AgentEvent]:
        """Wait for events and return them, or none once the log has ended."""
        ...


async def read_settled(reader: TakesEvents) -> AsyncGenerator[AgentEvent]:
    """Yield the events of a turn from the start; retracted content is left out of those already available."""
    available: list[AgentEvent] = []
    while batch := await reader.take():
        available += batch
    for event in settle(available):
        yield event
    while batch := await reader.next():
        for event in batch:
            yield event


class EventStream:
    """The ASGI answer that relays ``events`` until they end, the client disconnects, or one send takes too long."""

    def __init__(self, events: AsyncIterator[AgentEvent], dialect: Dialect) -> None:
        self._events = events
        self._dialect = dialect
        self._started = False
        self._sending_since: float | None = None
        self._last_sent = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Relay the events.

        Raises:
            AgenticRagError: reading failed before anything was sent; the caller answers with it.
        """
        refused: AgenticRagError | None = None
        with anyio.CancelScope() as lifetime, caller_of(scope).connection(lifetime):
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch, receive, group.cancel_scope)
                group.start_soon(self._beat, send, group.cancel_scope)
                try:
                    await self._relay(send)
                except AgenticRagError as exc:  # raised below, outside the task group, so that it is not wrapped
                    refused = exc
                group.cancel_scope.cancel()
        if refused is not None:
            raise refused
        if lifetime.cancelled_caught:  # the key was revoked: end the answer properly
            with anyio.move_on_after(_LAST_SECONDS):
                await self._start(send)
                await self._body(send, b"", more=False)

    async def _relay(self, send: Send) -> None:
        try:
            async for event in self._events:
                await self._start(send)
                data = self._dialect.sse(event)
                if data:
                    await self._body(send, data, more=True)
                if self._dialect.ended:
                    break
        finally:
            if isinstance(self._events, AsyncGenerator):
                await self._events.aclose()  # now, not at garbage collection
        await self._start(send)
        await self._body(send, b"", more=False)

    async def _start(self, send: Send) -> None:
        if not self._started:
            self._started = True  # before the send, during which the other task may call this method
            await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS, *self._dialect.headers]})

    async def _body(self, send: Send, data: bytes, *, more: bool) -> None:
        self._sending_since = anyio.current_time()
        await send({"type": "http.response.body", "body": data, "more_body": more})
        self._sending_since = None
        self._last_sent = anyio.current_time()

    async def _watch(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async def _beat(self, send: Send, scope: anyio.CancelScope) -> None:
        """Check all time limits of the connection with one timer, because a timer for each event would be expensive."""
        await anyio.sleep(OPEN_SECONDS)
        await self._start(send)  # from now on an error can no longer become the answer
        self._last_sent = anyio.current_time()
        while True:
            began = anyio.current_time()
            await anyio.sleep(_BEAT_SECONDS)
            now = anyio.current_time()
            suspended = now - began - _BEAT_SECONDS > SUSPENDED_SECONDS
            if self._sending_since is not None:
                # After a suspension of this process the client may still be reading, so the next beat decides.
                if now - self._sending_since > SEND_SECONDS and not suspended:
                    scope.cancel()
            elif now - self._last_sent >= PING_SECONDS - _BEAT_SECONDS / 2:
                with SilenceScope(SEND_SECONDS):
                    await self._body(send, b": ping\n\n", more=True)
