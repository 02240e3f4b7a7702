"""JSON answers: values in camelCase, errors as ``{"error": {"code", "message", "details?", "requestId"}}``.

Encodes answers, maps exceptions to answers, and redacts secrets depending on the caller. Knows no route and no record.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import ceil
from typing import Any, Generic, TypeVar, dataclass_transform

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentic_rag.access.users import User
from agentic_rag.base.errors import AgenticRagError, InsufficientScope, InternalError, refused_write
from agentic_rag.base.json_form import Absent, Json, to_cut_json, to_json, to_text
from agentic_rag.base.redaction import Redactor
from agentic_rag.server.error_shapes import headers_at, shape_error, status_at
from agentic_rag.store.clock import new_id
from agentic_rag.store.record import Record

log = logging.getLogger("agentic_rag.server")

T = TypeVar("T")
Redact = Callable[[Any], Any]
"""Removes secrets from the strings of a JSON value."""

POLICY_VIOLATION = 1008
"""Close code of RFC 6455."""

HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"x-dns-prefetch-control", b"off"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
"""Default headers of every answer: browsers must not run, frame, sniff or cache it."""

FILE_ENDINGS = {
    "text/plain": "txt",
    "application/json": "json",
    **{f"image/{kind}": kind for kind in ("png", "jpeg", "gif", "webp")},
}
"""File endings of the media types that are served under their own name."""
SANDBOX = "sandbox; default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
"""Content security policy of foreign files: nothing in them runs or is fetched."""
SHOWN_LEVELS = 64
"""Maximum shown levels of a stored value that is nested too deeply to be written."""

_ROUTING_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}


@dataclass_transform(frozen_default=True)
def answer(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """Return the decorator of answer models: a slotted dataclass without comparison and ``repr``.

    The type checker treats it as frozen. At run time it is not, because frozen classes with all methods take 1 ms each
    to create, and there are dozens at every start.
    """
    return dataclass(slots=True, eq=False, repr=False, kw_only=kw_only)


@answer()
class ErrorDetail:
    """The error. ``requestId`` is the id under which the server logs it."""

    code: str
    message: str
    request_id: str
    details: Absent[Json] = None


@answer()
class ErrorAnswer:
    """The answer of every refusal and failure."""

    error: ErrorDetail


@answer()
class Redacted(Generic[T]):
    """An answer without the secrets of a domain, for texts of models, servers and users."""

    domain_id: str
    value: T


@answer()
class Headed(Generic[T]):
    """An answer with its own header lines."""

    value: T
    headers: Mapping[str, str]


@answer()
class Attachment:
    """A file to download, never rendered by a browser, from a domain's server and without that domain's secrets."""

    domain_id: str
    name: str
    media_type: str
    data: bytes


@answer()
class Items(Generic[T]):
    """A list of answers."""

    items: Sequence[T]


@answer()
class Part(Items[T]):
    """Part of a list. ``hasMore`` says that a larger ``limit`` or another position shows more."""

    has_more: bool


@answer()
class CountedPage(Part[T]):
    """One page of several; ``total`` counts the items of all."""

    total: int
    page: int
    page_size: int


class MetricsText(Response):
    """Metrics in the text format of Prometheus."""

    def __init__(self, text: bytes) -> None:
        super().__init__(text, headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})


class CsvTable(Response):
    """A table for spreadsheets, as a download."""

    def __init__(self, name: str, text: str) -> None:
        disposition = {"content-disposition": f'attachment; filename="{name}.csv"'}
        super().__init__(text, headers=disposition, media_type="text/csv")


def answer_from(kind: type[T], record: object, **others: object) -> T:
    """Build an answer of a dataclass ``kind`` from the record's fields of the same names and ``others``.

    Raises:
        TypeError: a field without a default is neither in the record nor in ``others``.
    """
    names = [field.name for field in fields(kind) if field.name not in others]  # type: ignore[arg-type]
    if isinstance(record, Record):  # its base class has attributes such as `schema` that are not values
        names = [name for name in names if not hasattr(Record, name)]
    return kind(**{name: getattr(record, name) for name in names if hasattr(record, name)}, **others)


def redaction_for(redactor: Redactor, user: User, domain_id: str = "") -> Redact:
    """Return the function that redacts errors for a user.

    Below a domain that the user sees, that domain's secrets are replaced by their names.

    Elsewhere, redaction reveals nothing about other domains: for operators it covers all secrets, for other users those
    of their domains.
    """
    if domain_id and user.sees(domain_id):
        return redactor.of(domain_id).json
    return redactor.json if user.operator else redactor.among(user.domains).json


class Replies:
    """The answers of one application. ``redactor`` knows the secrets to remove."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def json(self, value: object) -> Any:
        """Return the JSON of an answer. Values that are nested too deeply are cut."""
        # Item by item, so that one that is nested too deeply is cut and the others stay whole.
        if isinstance(value, Items):
            shown: Json = to_json(answer_from(type(value), value, items=()))
            return {**shown, "items": [self.json(item) for item in value.items]}
        try:
            return self._whole(value)
        except RecursionError:
            return self._whole(value, SHOWN_LEVELS)

    def _whole(self, value: object, levels: int | None = None) -> Any:
        if isinstance(value, Redacted):
            return self._redactor.of(value.domain_id).json(self._whole(value.value, levels))
        return to_json(value) if levels is None else to_cut_json(value, levels)

    def attachment(self, answer: Attachment) -> Response:
        """Return a file as an answer that no browser renders: text, JSON and images by type, others as bytes."""
        data = self._redactor.of(answer.domain_id).redact_bytes(answer.data)
        media_type = answer.media_type if answer.media_type in FILE_ENDINGS else "application/octet-stream"
        headers = {
            "content-disposition": f'attachment; filename="{answer.name}"',
            "x-content-type-options": "nosniff",
            "content-security-policy": SANDBOX,
        }
        return Response(data, headers=headers, media_type=media_type)

    def refusal(self, error: AgenticRagError, connection: HTTPConnection) -> Response:
        """Return the answer to a request or a handshake for an expected error."""
        user: User = connection.scope["state"]["caller"].user
        reference, path = request_id(connection.scope), connection.scope["path"]
        challenge = connection.scope["state"].get("challenge", "")
        return refusal(error, reference, self._redact(connection), path, whole=user.operator, challenge=challenge)

    async def on_routing(self, request: Request, exc: Exception) -> Response:
        """Answer an unknown path or method. This is Starlette's exception hook."""
        assert isinstance(exc, HTTPException)
        path = request.url.path
        message = {
            404: f"There is nothing at {path}.",
            405: f"{request.method} is not possible at {path}.",
        }.get(exc.status_code, exc.detail)
        code = _ROUTING_CODES.get(exc.status_code, "BAD_REQUEST")
        body = ErrorAnswer(ErrorDetail(code, message, request_id(request.scope)))
        shown = shape_error(path, self._redact(request)(to_json(body)), exc.status_code)
        response = json_response(shown, exc.status_code)
        response.headers.update(exc.headers or {})
        return response

    def _redact(self, connection: HTTPConnection) -> Redact:
        user: User = connection.scope["state"]["caller"].user
        return redaction_for(self._redactor, user, str(connection.path_params.get("domain", "")))


def json_response(value: Any, status: int = 200) -> Response:
    """Return a JSON value as an answer."""
    return Response(to_text(value), status, media_type="application/json")


def request_id(scope: Scope) -> str:
    """Return the id under which this request is logged."""
    return str(scope.get("state", {}).get("request_id", ""))


def refusal(
    error: AgenticRagError,
    reference: str,
    redact: Redact = lambda body: body,
    path: str = "",
    *,
    whole: bool = False,
    challenge: str = "",
) -> Response:
    """Return the answer for an expected error, in the form of ``path``'s clients.

    ``redact`` removes secrets from its JSON. ``whole`` adds the reasons for operators. ``challenge`` are the parameters
    of `WWW-Authenticate` that tell a client of the MCP door how to get a token.
    """
    message = str(error) if whole else error.plain
    body = ErrorAnswer(ErrorDetail(error.code, message, reference, error.details or None))
    status = status_at(path, error.status)
    response = json_response(shape_error(path, redact(to_json(body)), status), status)
    response.headers.update(headers_at(path, retryable=error.retryable))
    retry_after = getattr(error, "retry_after", None)
    if error.status in (429, 503) and retry_after is not None:
        # HTTP takes whole seconds, and 0 would invite the client to try again at once.
        response.headers["retry-after"] = str(max(1, ceil(retry_after)))
    if error.status == 401:
        response.headers["www-authenticate"] = f"Bearer {challenge}".strip()
    elif isinstance(error, InsufficientScope) and challenge:
        # Only the address of the metadata is used. The scope is the one that this request lacks.
        metadata = challenge[challenge.index("resource_metadata=") :].partition(",")[0]
        response.headers["www-authenticate"] = f'Bearer error="insufficient_scope", scope="{error.scope}", {metadata}'
    return response


def failure(exc: Exception, reference: str, path: str = "") -> Response:
    """Log an unexpected exception. Returns an answer without its details, in the form of ``path``'s clients."""
    if (refused := refused_write(exc)) is not None:
        log.error("request %s failed: %s", reference, refused)
        return refusal(refused, reference, path=path)
    log.error("request %s failed", reference, exc_info=exc)
    return refusal(InternalError(reference), reference, path=path)


def socket_error(exc: Exception) -> AgenticRagError:
    """Return the error for a socket's client. An unexpected one is logged under the reference that the client gets."""
    if isinstance(exc, AgenticRagError):
        return exc
    if (refused := refused_write(exc)) is not None:
        return refused
    reference = new_id("req")
    log.error("websocket %s failed", reference, exc_info=exc)
    return InternalError(reference)


async def send_refusal(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Send the answer to a request or a handshake: over HTTP if the server can do that, else as a close."""
    if scope["type"] == "http" or "websocket.http.response" in (scope.get("extensions") or {}):
        await response(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})
