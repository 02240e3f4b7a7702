"""AG-UI over a WebSocket, as TanStack AI uses it: a socket for many runs, or one that resumes a run.

This module defines the frames and their order. A client sends ``RunAgentInput`` and ``{"type": "abort", "runId"}`` and
receives ``{"id", "chunk"}``. With ``?runId=&offset=`` in its address a socket sends the rest of that run, accepts no
frames, and closes. Closing a socket does not end a run. This module knows no turn and no encoding.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
from anyio.abc import TaskGroup
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketDisconnected

from agentic_rag.base.errors import (
    AgenticRagError,
    InvalidInput,
    NotFound,
    RateLimited,
    TooManySubscriptions,
)
from agentic_rag.base.forms import check_size
from agentic_rag.base.json_form import Json, to_json, to_text
from agentic_rag.base.redaction import Redactor
from agentic_rag.base.silence_timers import SilenceScope
from agentic_rag.server.auth import Caller, caller_of
from agentic_rag.server.doors.ag_ui import AgUiRun, AgUiRuns
from agentic_rag.server.error_shapes import run_error
from agentic_rag.server.replies import (
    POLICY_VIOLATION,
    ErrorAnswer,
    ErrorDetail,
    redaction_for,
    refusal,
    request_id,
    send_refusal,
    socket_error,
)
from agentic_rag.server.ws.connection import CLOSE_SECONDS, MAX_FRAME_BYTES, SEND_SECONDS, TOO_LARGE, ConnectionGone
from agentic_rag.server.ws.frames import read_object
from agentic_rag.server.ws.socket import MAX_REFUSED_FRAMES, MAX_SUBSCRIPTIONS, Closing

log = logging.getLogger("agentic_rag.server")

SUBPROTOCOL = "agentic-rag.ag-ui"
"""Subprotocol that is selected if the client offers it, besides its ticket."""
FINISHED = 1000
COME_AGAIN = 1012
"""Close code from RFC 6455's registry: the server restarts."""

_GONE = (WebSocketDisconnect, WebSocketDisconnected, ConnectionGone)


def run_socket_endpoint(runs: AgUiRuns, redactor: Redactor) -> Callable[[WebSocket], Awaitable[None]]:
    """Return the endpoint for AG-UI sockets. The guard has already identified the user."""

    async def endpoint(websocket: WebSocket) -> None:
        caller, reference, scope = caller_of(websocket.scope), request_id(websocket.scope), websocket.scope
        domain = str(websocket.path_params["domain"])
        try:
            # Routes of HTTP check ids for NUL before they are called, sockets do not.
            if not caller.user.sees(domain) or "\0" in domain:
                raise NotFound("domain", domain, hidden=True)
            caller.check_connections()
        except AgenticRagError as exc:
            await caller.note_refusal(exc, "WS", scope["path"], reference)
            response = refusal(exc, reference, redaction_for(redactor, caller.user), scope["path"])
            await send_refusal(response, scope, websocket.receive, websocket.send)
            return
        with anyio.CancelScope() as lifetime, caller.connection(lifetime):
            await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in scope["subprotocols"] else None)
            closing = await RunSocket(websocket, caller, runs, domain, redactor).serve()
        if lifetime.cancelled_caught:  # the caller's connections are cancelled when the key or sign-in ends
            closing = Closing(POLICY_VIOLATION, "The key is not valid any more.")
        if closing is not None:
            with suppress(*_GONE), anyio.move_on_after(CLOSE_SECONDS):
                await websocket.close(closing.code, closing.reason)

    return endpoint


class RunSocket:
    """One accepted connection, from its first frame to its end."""

    def __init__(
        self, websocket: WebSocket, caller: Caller, runs: AgUiRuns, domain_id: str, redactor: Redactor
    ) -> None:
        self._ws = websocket
        self._caller = caller
        self._runs = runs
        self._domain_id = domain_id
        self._redactor = redactor
        self._sending = 0
        """Number of runs that are being sent."""
        self._refused = 0
        self._closing: Closing | None = None

    async def serve(self) -> Closing | None:
        """Serve until the connection ends. Return how to close it, or None if it is already closed."""
        query = self._ws.query_params
        async with anyio.create_task_group() as tasks:
            if "offset" in query:
                tasks.start_soon(self._go_on, query.get("runId", ""), query["offset"], tasks.cancel_scope)
                await self._watch()  # only by receiving does a server learn that the client has gone
            else:
                with suppress(*_GONE):
                    await self._take_frames(tasks)
            tasks.cancel_scope.cancel()
        return self._closing

    async def _watch(self) -> None:
        """Wait until the client disconnects, ignoring its frames."""
        while (await self._ws.receive())["type"] != "websocket.disconnect":
            pass

    async def _go_on(self, run_id: str, offset: str, serving: anyio.CancelScope) -> None:
        """Send the rest of a run and close."""
        try:
            run = await self._runs.resume(self._caller.user, self._domain_id, run_id, offset)
            whole = await self._tell(run)
            self._closing = Closing(FINISHED, "") if whole else Closing(COME_AGAIN, "Come again.")
        except _GONE:
            pass
        except Exception as exc:
            error = socket_error(exc)
            with suppress(*_GONE):
                await self._refuse(error, "WS resume", {"runId": run_id})
            self._closing = Closing(POLICY_VIOLATION, error.code)
        serving.cancel()

    async def _take_frames(self, tasks: TaskGroup) -> None:
        while self._refused < MAX_REFUSED_FRAMES:
            message = await self._ws.receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            if text is not None and len(text) > MAX_FRAME_BYTES:
                self._closing = Closing(TOO_LARGE, "The frame is too large.")
                return
            await self._take(text, tasks)
        self._closing = Closing(POLICY_VIOLATION, "Too many frames.")

    async def _take(self, text: str | None, tasks: TaskGroup) -> None:
        frame: Json = {}
        try:
            self._count()
            frame = read_object(text)
            check_size(frame, "frame")
            # Before the limits of new runs: a client that has reached them can still stop one.
            if frame.get("type") == "abort":
                await self._runs.interrupt(self._caller.user, self._domain_id, _run_of(frame))
                return
            if self._sending >= MAX_SUBSCRIPTIONS:
                raise TooManySubscriptions(0, MAX_SUBSCRIPTIONS)
            self._caller.check_subscriptions()
            self._caller.take_message()
            run = await self._runs.begin(self._caller.user, self._domain_id, frame)
            tasks.start_soon(self._follow, run, frame, tasks.cancel_scope)
        except _GONE:
            raise
        except Exception as exc:
            await self._refuse(socket_error(exc), "WS abort" if frame.get("type") == "abort" else "WS run", frame)

    def _count(self) -> None:
        """Count a frame before parsing it.

        Raises:
            RateLimited: the key sent too many.
        """
        try:
            self._caller.take_request()
        except RateLimited:
            self._refused += 1
            raise
        self._refused = 0  # only frames in a row close the connection

    async def _follow(self, run: AgUiRun, frame: Json, serving: anyio.CancelScope) -> None:
        """Send a run that this socket started."""
        self._sending += 1
        self._caller.count_subscriptions(1)
        try:
            if not await self._tell(run):
                self._closing = Closing(COME_AGAIN, "Come again.")
                serving.cancel()
        except _GONE:
            serving.cancel()
        except Exception as exc:
            with suppress(*_GONE):
                await self._refuse(socket_error(exc), "WS run", frame)
        finally:
            self._sending -= 1
            self._caller.count_subscriptions(-1)

    async def _tell(self, run: AgUiRun) -> bool:
        """Send the events of a run. Return True if the run was sent to its end."""
        try:
            async for event in run.events:
                for text in run.encoder.frames(event):
                    await self._send(text.decode())
                if event.terminal or run.encoder.ended:
                    return True
        finally:
            # Closed in this task and now: else it would stay open until the garbage collector finds it.
            if isinstance(run.events, AsyncGenerator):
                await run.events.aclose()
        return False

    async def _refuse(self, error: AgenticRagError, action: str, frame: Json) -> None:
        """Send a refusal as the event that ends a run."""
        reference, user = request_id(self._ws.scope), self._caller.user
        await self._caller.note_refusal(error, action, self._domain_id, reference)
        redact = redaction_for(self._redactor, user, self._domain_id)
        error_event = refusal_event(error, reference, redact, whole=user.operator)
        ids = {name: frame[name] for name in ("threadId", "runId") if isinstance(frame.get(name), str)}
        await self._send(to_text({**error_event, **ids}))

    async def _send(self, text: str) -> None:
        with SilenceScope(SEND_SECONDS) as limit:
            await self._ws.send({"type": "websocket.send", "text": text})
        if limit.expired:
            raise ConnectionGone


def refusal_event(error: AgenticRagError, reference: str, redact: Callable[[Any], Any], *, whole: bool) -> Json:
    """Return the event for a refusal. ``whole``: with the reason that only operators may read."""
    message = str(error) if whole else error.plain
    detail = ErrorDetail(error.code, message, reference, error.details or None)
    return run_error(redact(to_json(ErrorAnswer(detail))), error.status)


def _run_of(frame: Json) -> str:
    run_id = frame.get("runId")
    if not isinstance(run_id, str):
        raise InvalidInput("runId", "required: the run to stop.")
    return run_id
