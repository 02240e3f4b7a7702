"""The rules of ``rules``, put in front of every route.

Owns the check before a route runs, the audit row of its refusal, and the row of a change that told nothing itself:
whatever an admin changes over REST is told, also by a route that forgot to. Knows no route by name.
"""

import contextlib
from collections.abc import Mapping, Sequence

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, ExceptionHandler, Message, Receive, Scope, Send

from agentic_rag.access.auditing import AuditLog, change
from agentic_rag.access.users import acting
from agentic_rag.errors import AgenticRagError, NotFound
from agentic_rag.server.auth import caller_of
from agentic_rag.server.replies import on_refusal, on_routing, request_id
from agentic_rag.server.rules import check, rule_of

GONE = 499
"""A status of nginx's: the client closed the request."""


def permitted(routes: Sequence[BaseRoute], audit: AuditLog) -> list[BaseRoute]:
    """Return the routes, each behind its rule. A WebSocket's frames are checked where they are obeyed."""
    for route in routes:
        if isinstance(route, Route):
            route.app = _Permit(route.app, route.path, audit)
    return list(routes)


class _Permit:
    def __init__(self, app: ASGIApp, path: str, audit: AuditLog) -> None:
        self._app = app
        self._path = path
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = caller_of(scope)
        scope["state"]["route"] = self._path
        rule = rule_of(scope["method"], self._path)
        check(caller.user, rule, scope["path_params"].get("domain"))
        _check_ids(scope["path_params"])
        if rule.streams:
            caller.check_connections()
        if rule.sends:
            caller.take_message()
        if not rule.changes:
            await self._app(scope, receive, send)
            return

        async def telling(message: Message) -> None:
            # before the answer: whoever reads that it is done finds it told
            if message["type"] == "http.response.start" and message["status"] < 400 and not acting().noted:
                await self._audit.note(change(f"{scope['method']} {self._path}", scope["path"]))
            await send(message)

        await self._app(scope, receive, telling)


def _check_ids(params: Mapping[str, str]) -> None:
    """Refuse what PostgreSQL does not take: nothing has an id with a NUL. Other names are not looked for in it."""
    for noun, ident in params.items():
        if "\0" in ident and noun not in ("name", "role"):
            raise NotFound(noun, ident)


async def _refuse(request: Request, exc: Exception) -> Response:
    """Tell the audit log of a refusal and answer with it."""
    assert isinstance(exc, AgenticRagError)
    reference = request_id(request.scope)
    with contextlib.suppress(KeyError):  # no route ran
        action = f"{request.method} {request.scope['state']['route']}"
        await caller_of(request.scope).refused(exc, action, request.url.path, reference)
    return await on_refusal(request, exc)


async def _gone(request: Request, exc: Exception) -> Response:
    """Answer a client that left while it was sending: nobody reads it, and nothing failed here."""
    return Response(status_code=GONE)


EXCEPTION_HANDLERS: dict[type[Exception], ExceptionHandler] = {
    AgenticRagError: _refuse,
    ClientDisconnect: _gone,
    HTTPException: on_routing,
}
"""For the application: Starlette's type of a handler takes every exception."""
