"""Return a turn's answer as one JSON document, for clients that wait for the end.

The wait ends with the turn, when the client disconnects, or when its key is revoked. This module knows no route and no
format; a `Collector` builds the document from the events.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentic_rag.base.errors import AgenticRagError, Unauthenticated
from agentic_rag.base.events import AgentEvent
from agentic_rag.base.json_form import Json
from agentic_rag.server.auth import caller_of
from agentic_rag.server.replies import json_response


class Collector(Protocol):
    """Builds one document from the events of a turn."""

    def collect(self, event: AgentEvent) -> None:
        """Add an event."""
        ...

    def result(self) -> Json:
        """Return the document after the end of the turn.

        Raises:
            AgenticRagError: the turn has no answer.
        """
        ...


class CollectedAnswer(Response):
    """The ASGI answer that reads ``events`` to their end and sends the ``collector``'s document."""

    def __init__(self, events: AsyncGenerator[AgentEvent], collector: Collector) -> None:
        super().__init__()
        self._events = events
        self._collector = collector

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait for the end and send the document.

        Raises:
            AgenticRagError: there is no answer, or the key was revoked. The caller sends this error.
        """
        refused: AgenticRagError | None = None
        left = anyio.Event()
        with anyio.CancelScope() as lifetime, caller_of(scope).connection(lifetime):
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch, receive, left, group.cancel_scope)
                try:
                    async with aclosing(self._events) as events:
                        async for event in events:
                            self._collector.collect(event)
                except AgenticRagError as exc:  # leaves the task group as itself, not inside an ExceptionGroup
                    refused = exc
                group.cancel_scope.cancel()
        if left.is_set():  # no client reads an answer
            return
        if lifetime.cancelled_caught:
            raise Unauthenticated("The key was revoked.")
        if refused is not None:
            raise refused
        await json_response(self._collector.result())(scope, receive, send)

    async def _watch(self, receive: Receive, left: anyio.Event, scope: anyio.CancelScope) -> None:
        # Only by receiving does a server learn that the client has gone.
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()
        scope.cancel()
