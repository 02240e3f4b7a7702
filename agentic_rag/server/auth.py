"""The guard around the whole application: request id, the caller, the headers of every answer, the last error net.

Owns what happens before any route and after every one. Who comes in is ``gate``'s; which route is for whom
``rules``'. Knows no record and no route.
"""

import logging
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentic_rag.access.users import ANONYMOUS, LOCAL, User, acting_for
from agentic_rag.errors import AgenticRagError
from agentic_rag.server.gate import Caller, Gate, source_of
from agentic_rag.server.hosts import is_loopback
from agentic_rag.server.replies import failure, refusal
from agentic_rag.store.clock import new_id

__all__ = ["LOCAL", "Guard", "User", "caller_of", "is_loopback", "user_of"]

log = logging.getLogger("agentic_rag.server")

HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
"""Of every answer that does not set its own: nothing here is to be run, framed, guessed at or kept by a browser."""


def caller_of(scope: Scope) -> Caller:
    """Return who sends an HTTP request or holds a WebSocket, as the guard found it."""
    caller = scope["state"]["caller"]
    assert isinstance(caller, Caller)
    return caller


def user_of(scope: Scope) -> User:
    """Return the user who sends an HTTP request or holds a WebSocket."""
    return caller_of(scope).user


class Guard:
    """ASGI middleware around everything. ``gate`` decides who comes in; without one only this machine does."""

    def __init__(self, app: ASGIApp, gate: Gate | None = None) -> None:
        self.app = app
        self._gate = gate or Gate()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        reference = new_id("req")
        scope["state"] = state = {**scope.get("state", {}), "request_id": reference}
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                message["headers"] = _complete(message["headers"], reference)
            started = True
            await send(message)

        actor = ANONYMOUS
        try:
            caller = state["caller"] = self._gate.enter(scope, Headers(scope=scope))
            actor = caller.user.id
            caller.take_request()
        except AgenticRagError as exc:
            action = scope.get("method", "WS")
            await self._gate.refused(exc, actor, action, scope["path"], source_of(scope), reference)
            await _answer(refusal(exc, reference), scope, receive, sending)
            return
        try:
            with acting_for(caller.user.id):
                await self.app(scope, receive, sending)
        except Exception as exc:
            if started or scope["type"] == "websocket":
                log.error("request %s failed", reference, exc_info=exc)
                raise
            await _answer(failure(exc, reference), scope, receive, sending)


def _complete(headers: Iterable[tuple[bytes, bytes]], reference: str) -> list[tuple[bytes, bytes]]:
    given = list(headers)
    names = {name for name, _ in given}
    return [*given, (b"x-request-id", reference.encode()), *(each for each in HEADERS if each[0] not in names)]


async def _answer(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await response(scope, receive, send)
    elif "websocket.http.response" in scope.get("extensions", {}):
        headers = response.raw_headers
        await send({"type": "websocket.http.response.start", "status": response.status_code, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": response.body})
    else:
        await send({"type": "websocket.close", "code": 1008})
