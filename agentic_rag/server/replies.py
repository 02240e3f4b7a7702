"""JSON answers: values in camelCase, errors as ``{"error": {"code", "message", "details?", "requestId"}}``.

Owns the encoding, the mapping of exceptions to answers, and whose secrets are taken out of what a caller is shown.
Knows no route and no record.
"""

import logging
from collections.abc import Callable
from math import ceil
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from agentic_rag.access.users import User
from agentic_rag.errors import AgenticRagError, InternalError
from agentic_rag.redaction import Redactor

log = logging.getLogger("agentic_rag.server")

Redact = Callable[[Any], Any]
"""Takes secrets out of the strings of a JSON value."""

_ROUTING_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}


def reply(value: Any, status: int = 200) -> Response:
    """Return a JSON answer."""
    return Response(orjson.dumps(value), status, media_type="application/json")


def redacted(request: Request, domain_id: str, value: Any, status: int = 200) -> Response:
    """Return a JSON answer without any secret of a domain: for what models, servers and users wrote there."""
    return reply(request.app.state.redact.of(domain_id).json(value), status)


def outside_domains(redact: Redactor, user: User) -> Redact:
    """Return what redacts an answer that belongs to no domain: what it hides tells a user nothing of others."""
    return redact.json if user.operator else redact.among(user.domains).json


def _of_error(request: Request) -> Redact:
    """Return what redacts an error: below a domain that the caller sees that domain's secrets."""
    redact: Redactor = request.app.state.redact
    user: User = request.scope["state"]["caller"].user
    domain_id = str(request.path_params.get("domain", ""))
    below = domain_id and user.sees(domain_id)
    return redact.of(domain_id).json if below else outside_domains(redact, user)


def nothing() -> Response:
    """Return the empty answer of a deletion."""
    return Response(status_code=204)


def request_id(scope: Scope) -> str:
    """Return the id under which this request is logged."""
    return str(scope.get("state", {}).get("request_id", ""))


def error_body(error: AgenticRagError, reference: str) -> dict[str, Any]:
    """Return the wire form of an error."""
    body: dict[str, Any] = {"code": error.code, "message": str(error), "requestId": reference}
    if error.details:
        body["details"] = error.details
    return {"error": body}


def refusal(error: AgenticRagError, reference: str, redact: Redact = lambda body: body) -> Response:
    """Return the answer for an error raised on purpose. ``redact``: takes secrets out of its JSON."""
    response = reply(redact(error_body(error, reference)), error.status)
    retry_after = getattr(error, "retry_after", None)
    if error.status in (429, 503) and retry_after is not None:
        response.headers["retry-after"] = str(max(1, ceil(retry_after)))
    if error.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


def failure(exc: Exception, reference: str) -> Response:
    """Log an exception nobody expected and return an answer that shows nothing of it."""
    log.error("request %s failed", reference, exc_info=exc)
    return refusal(InternalError(reference), reference)


async def on_refusal(request: Request, exc: Exception) -> Response:
    """Starlette's exception hook for `AgenticRagError`."""
    assert isinstance(exc, AgenticRagError)
    return refusal(exc, request_id(request.scope), _of_error(request))


async def on_routing(request: Request, exc: Exception) -> Response:
    """Starlette's exception hook for unknown paths and methods."""
    assert isinstance(exc, HTTPException)
    code = _ROUTING_CODES.get(exc.status_code, "BAD_REQUEST")
    path = request.url.path
    message = {
        404: f"There is nothing at {path}.",
        405: f"{request.method} is not possible at {path}.",
    }.get(exc.status_code, exc.detail)
    body = {"error": {"code": code, "message": message, "requestId": request_id(request.scope)}}
    response = reply(_of_error(request)(body), exc.status_code)
    response.headers.update(exc.headers or {})
    return response
