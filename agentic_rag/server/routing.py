"""Declare routes and run the checks in front of each of them.

The decorator `route` declares a method of a route class: its path, its rule (who may use the route), its parameters and
its answer. From the declaration follow the checks before the handler runs, the audit row and the operation in the
OpenAPI document (``openapi``). The defaults are strict: a route below a domain is for the domain's admins, any other
route is for operators, and their changes are audited. This module knows no route by name.

::

    class Conversations:
        @route("POST", "/api/conversations", allow="user", status=201)
        async def create(self, user: User, body: NewConversation) -> Redacted[Conversation]:
            '''Create a conversation in a domain.'''

The names of a handler's parameters say which values it gets: ``user``, ``caller``, ``request``, ``body``, ``query``
and, below a domain, ``view``: the documents of the domain that the caller may see. Ids in the path are passed by their
own names. The annotations of ``body`` and ``query`` are forms. A body whose annotation is not a form is passed as
parsed JSON.
"""

import inspect
import re
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import orjson
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route, compile_path
from starlette.types import ASGIApp, ExceptionHandler, Receive, Scope, Send

from agentic_rag.access.auditing import AuditLog, change
from agentic_rag.access.document_views import DocumentViews
from agentic_rag.access.users import User, acting
from agentic_rag.base.errors import (
    AgenticRagError,
    BodyTooLarge,
    Forbidden,
    InvalidInput,
    NotFound,
    StorageFull,
    refused_write,
)
from agentic_rag.base.forms import MAX_VALUES, check_size, read_form
from agentic_rag.base.telemetry import NO_OBSERVER, Observer
from agentic_rag.base.threads import DomainThreads
from agentic_rag.server.auth import Caller, caller_of
from agentic_rag.server.replies import Attachment, Headed, Replies, json_response, request_id
from agentic_rag.tools.entries.json_text import read_json_text

Allow = Literal["anyone", "user", "member", "author", "admin", "operator"]
"""The callers that a route permits.

``anyone`` includes callers without a key. ``user`` means any user with a key. ``member``, ``author`` and ``admin``
refer to the domain in the path. The business layer checks who owns a conversation.
"""

MAX_JSON_BYTES = 1024 * 1024

GONE = 499
"""Status code of nginx: the client closed the request."""

_DOMAIN = re.compile(r"/api/domains/{domain}(/|$)")
"""Routes below a domain are for its admins unless they say otherwise; other routes are for operators."""
FREE_NAMES = frozenset({"name", "role"})
"""Path parameters that are checked by forms, because they are not ids."""
_GIVEN = frozenset({"user", "caller", "request", "body", "query", "view"})
"""Parameter names of handlers that `RouteEndpoint._read` fills. Every other parameter must be in the path."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may use a route, and how its requests are counted.

    ``sends``: each request counts as a message. ``streams``: each request holds a connection, because the answer is an
    event stream. ``audited``: the route writes an audit row if the business layer wrote none.
    """

    allow: Allow
    audited: bool = False
    sends: bool = False
    streams: bool = False

    def check(self, user: User, domain_id: str | None) -> None:
        """Check that the rule permits a user. ``domain_id`` is the domain in the path.

        Raises:
            NotFound: the domain does not exist, or the user may not see it.
            Forbidden: the user may see the domain but lacks the required role.
        """
        if domain_id is not None and not user.sees(domain_id):
            raise NotFound("domain", domain_id, hidden=True)  # not Forbidden, which would tell that the domain exists
        if self.allow == "operator" and not user.operator:
            raise Forbidden("Only an operator may do this.")
        if self.allow == "author" and not (domain_id is not None and user.writes(domain_id)):
            raise Forbidden("Only an author or an admin of the domain may do this.")
        if self.allow == "admin" and not (domain_id is not None and user.administers(domain_id)):
            raise Forbidden("Only an admin of the domain may do this.")


class Handler(Protocol):
    """A method of a class of routes."""

    __qualname__: str
    __doc__: str | None

    def __call__(self, *args: Any, **values: Any) -> Awaitable[object]: ...


@dataclass(frozen=True, slots=True)
class Declaration:
    """A declared route. ``reads`` maps the handler's parameters to their types; ``answer`` is its return type.

    ``status`` is the status of a JSON answer. ``takes`` is the media type of the body. ``max_bytes`` limits the body's
    size, ``max_values`` its number of items and members. ``lenient`` allows comments and trailing commas in a JSON
    body. ``large``: a thread encodes the answer, because that may take a while. ``errors`` lists refusals beyond those
    that follow from the rule and the parameters.
    """

    method: str
    path: str
    rule: Rule
    handler: Handler
    reads: Mapping[str, Any]
    answer: Any
    status: int
    takes: str
    large: bool
    max_bytes: int
    max_values: int
    lenient: bool
    errors: tuple[type[AgenticRagError], ...]

    @property
    def refuses_parameters(self) -> bool:
        """Whether requests with query parameters are refused, because the route takes none.

        Health probes may add any.
        """
        is_ours = self.path.startswith("/api/") and self.rule.allow != "anyone"
        return is_ours and not self.reads.keys() & {"query", "request"}

    @property
    def doc(self) -> str:
        """The handler's docstring, which documents the route."""
        return inspect.cleandoc(self.handler.__doc__ or "")


def route(
    method: str,
    path: str,
    *,
    allow: Allow | None = None,
    audited: bool | None = None,
    sends: bool = False,
    streams: bool = False,
    status: int | None = None,
    takes: str = "application/json",
    large: bool = False,
    max_bytes: int = MAX_JSON_BYTES,
    max_values: int = MAX_VALUES,
    lenient: bool = False,
    errors: Sequence[type[AgenticRagError]] = (),
) -> Callable[[Handler], Declaration]:
    """Declare the decorated method as a route. The module docstring explains the method's parameters.

    Raises:
        TypeError: a parameter is unknown and not in the path, or the return annotation or the docstring is missing.
    """
    if allow is None:
        allow = "admin" if _DOMAIN.match(path) else "operator"
    if audited is None:
        audited = method != "GET" and allow in ("author", "admin", "operator")
    rule = Rule(allow, audited, sends, streams)

    def declare(handler: Handler) -> Declaration:
        signature = inspect.signature(handler)
        reads = {name: parameter.annotation for name, parameter in list(signature.parameters.items())[1:]}
        unknown = set(reads) - _GIVEN - set(re.findall(r"{(\w+)", path))
        answer = signature.return_annotation
        if "view" in reads and "{domain}" not in path:
            raise TypeError(f"{method} {path}: a view of documents needs a domain in the path")
        if unknown or answer is inspect.Signature.empty or not handler.__doc__:
            raise TypeError(f"{method} {path}: unknown parameters {unknown}, no answer type, or no docstring")
        ends_with = status or (204 if answer is None else 200)
        return Declaration(
            method,
            path,
            rule,
            handler,
            reads,
            answer,
            ends_with,
            takes,
            large,
            max_bytes,
            max_values,
            lenient,
            tuple(errors),
        )

    return declare


def declarations_of(kind: type) -> list[Declaration]:
    """Return the routes that a class declares, in order."""
    return [declaration for declaration in vars(kind).values() if isinstance(declaration, Declaration)]


class HttpEdge:
    """The shared parts of all routes: answers, error handling and the audit log."""

    def __init__(
        self,
        replies: Replies,
        audit: AuditLog,
        thread: DomainThreads,
        views: DocumentViews,
        observer: Observer = NO_OBSERVER,
        note_refused: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """Take the collaborators. ``thread`` encodes large answers; ``observer`` counts refusals.

        ``views`` decides which documents a caller may see.
        ``note_refused`` is called with the reason when the disk refuses a write.
        """
        self._note_refused = note_refused
        self._observer = observer
        self.replies = replies
        self.audit = audit
        self.thread = thread
        self.views = views

    def routes_of(self, owner: object) -> list[Route]:
        """Return the routes that the class of ``owner`` declares, in order."""
        return [
            DeclaredRoute(declared, RouteEndpoint(declared, owner, self)) for declared in declarations_of(type(owner))
        ]

    def exception_handlers(self) -> dict[Any, ExceptionHandler]:
        """Return the handlers for exceptions of routes and of routing."""
        return {
            AgenticRagError: self._refuse,
            OSError: self._refuse_write,
            ClientDisconnect: _leave,
            HTTPException: self.replies.on_routing,
        }

    async def _refuse_write(self, request: Request, exc: Exception) -> Response:
        """Answer a write that the disk refused. Any other `OSError` is raised again, as a server error."""
        refused = refused_write(exc)
        if refused is None:
            raise exc
        self._note_refused(refused.reason)
        return await self._refuse(request, refused)

    async def _refuse(self, request: Request, exc: Exception) -> Response:
        """Write a refusal to the audit log and send it."""
        assert isinstance(exc, AgenticRagError)
        # Other causes are the database's errors, or none: a limit that the server sets itself.
        if isinstance(exc, StorageFull) and isinstance(exc.__cause__, OSError):
            self._note_refused(exc.reason)
        self._observer.note_error(exc.code)
        endpoint = request.scope.get("endpoint")
        if isinstance(endpoint, RouteEndpoint):
            action, reference = f"{request.method} {endpoint.declared.path}", request_id(request.scope)
            await caller_of(request.scope).note_refusal(exc, action, request.url.path, reference)
        return self.replies.refusal(exc, request)


class DeclaredRoute(Route):
    """A route that compiles its pattern for the first path that could match it.

    Starlette compiles each pattern at once. For all 250 that takes 60 ms of CPU at each start of a server, and at each
    command that works without one, and most of them are not used.
    """

    def __init__(self, declared: Declaration, endpoint: "RouteEndpoint") -> None:
        # Route.__init__ is not called, because it compiles the pattern.
        self.path = declared.path
        self.endpoint = self.app = endpoint
        self.name = type(endpoint).__name__
        self.include_in_schema = True
        self.methods = {declared.method, "HEAD"} if declared.method == "GET" else {declared.method}
        self._start, _, _ = declared.path.partition("{")
        _, _, self._end = declared.path.rpartition("}")

    def __getattr__(self, name: str) -> Any:
        """Compile the pattern when one of the three attributes that come from it is read first."""
        if name not in ("path_regex", "path_format", "param_convertors"):
            raise AttributeError(name)
        self.path_regex, self.path_format, self.param_convertors = compile_path(self.path)
        return self.__dict__[name]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match a path. Its fixed start and end are compared first, which needs no pattern."""
        if scope["type"] != "http":
            return Match.NONE, {}
        path: str = scope["path"]
        below = scope.get("root_path")  # the path begins with it
        if not path.endswith(self._end) or not (below or path.startswith(self._start)):
            return Match.NONE, {}
        return super().matches(scope)


class RouteEndpoint:
    """The ASGI application of one route. The handler is a method of ``owner``.

    The order of a request: rights, form of the ids, limits, parameters, handler, audit row, answer. A refusal is raised
    and becomes an answer in `HttpEdge`. Rights come before look-ups in the store, so a stranger costs none.
    """

    def __init__(self, declared: Declaration, owner: object, edge: HttpEdge) -> None:
        self.declared = declared
        self._owner = owner
        self._edge = edge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared, caller, request = self.declared, caller_of(scope), Request(scope, receive, send)
        # The rule comes first: no other check may tell a caller without rights anything about the domain.
        declared.rule.check(caller.user, scope["path_params"].get("domain"))
        _check_ids(scope["path_params"])
        if declared.rule.streams:
            caller.check_connections()
        # Counted before the message is read, so malformed ones use up the rate, too.
        if declared.rule.sends:
            caller.take_message()
        if declared.refuses_parameters:
            _refuse_parameters(request)
        values = {name: await self._read(name, kind, request, caller) for name, kind in declared.reads.items()}
        response = await self._response(await declared.handler(self._owner, **values), caller.user)
        if declared.rule.audited and not acting().noted:
            # Before the answer: a client that reads the answer must find the change in the audit log.
            await self._edge.audit.note(change(f"{request.method} {declared.path}", scope["path"]))
        await response(scope, receive, send)

    async def _read(self, name: str, kind: Any, request: Request, caller: Caller) -> object:
        """Return the argument for a handler's parameter."""
        match name:
            case "user":
                return caller.user
            case "caller":
                return caller
            case "request":
                return request
            case "view":
                return await self._edge.views.of(caller.user, request.path_params["domain"])
            case "query":
                return read_form(kind, _parameters(kind, request))
            case "body":
                value = await _read_json(request, self.declared)
                return read_form(kind, value) if isinstance(kind, type) and issubclass(kind, BaseModel) else value
            case _:
                return request.path_params[name]

    async def _response(self, answer: object, user: User) -> ASGIApp:
        if callable(answer):
            return answer  # already an ASGI application, for example an event stream
        if isinstance(answer, Attachment):
            return await self._edge.thread.run(user.id, self._edge.replies.attachment, answer)
        if answer is None:
            return Response(status_code=self.declared.status)
        if self.declared.large:
            return await self._edge.thread.run(user.id, self._json, answer)
        return self._json(answer)

    def _json(self, answer: object) -> Response:
        if isinstance(answer, Headed):
            response = self._json(answer.value)
            response.headers.update(answer.headers)
            return response
        return json_response(self._edge.replies.json(answer), self.declared.status)


async def _read_json(request: Request, declared: Declaration) -> object:
    """Return the parsed body. An empty body is read as ``{}``.

    Raises:
        BodyTooLarge: the body is longer than ``max_bytes``.
        InvalidInput: the body is not JSON, is nested too deeply, or has more than ``max_values`` values.
    """
    body = await read_body(request, declared.max_bytes)
    if not body.strip():
        return {}
    if declared.lenient:
        value = read_json_text(body)
    else:
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError as exc:
            raise InvalidInput("body", f"not valid JSON: {exc}.") from exc
    check_size(value, "body", declared.max_values)
    return value


def check_announced(request: Request, limit: int) -> None:
    """Refuse a too large body before reading it, because the client may be waiting for `100 Continue`.

    Raises:
        BodyTooLarge: ``Content-Length`` is more than ``limit`` bytes.
    """
    announced = request.headers.get("content-length", "")
    # Numbers of so many digits are not converted: Python refuses those of more than 4 300 digits with an error.
    if announced.isdecimal() and (len(announced) > 18 or int(announced) > limit):
        raise BodyTooLarge(limit)


async def read_body(request: Request, limit: int) -> bytes:
    """Return the bytes of a body that is not JSON of a form.

    Raises:
        BodyTooLarge: the body is longer than ``limit`` bytes.
    """
    check_announced(request, limit)
    # A body that comes in chunks has no announced length, so its bytes are counted as well.
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise BodyTooLarge(limit)
    return bytes(body)


def _parameters(kind: type[BaseModel], request: Request) -> dict[str, Any]:
    """Return the query parameters by name. A list parameter collects all its values and splits each at commas.

    Raises:
        InvalidInput: a parameter that takes one value is given twice.
    """
    lists = {  # forms accept a field's own name besides its alias
        alias
        for name, field in kind.model_fields.items()
        if typing.get_origin(field.annotation) is list
        for alias in (name, field.alias)
    }
    values: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in lists:
            values.setdefault(name, []).extend(part for part in value.split(",") if part)
        elif name in values and kind.model_config.get("extra") == "forbid":
            raise InvalidInput(name[:200], "this parameter is given twice; one value is expected.")
        else:
            values[name] = value
    return values


def _refuse_parameters(request: Request) -> None:
    """Refuse query parameters on a route that takes none, such as a `page` that would have no effect.

    Raises:
        InvalidInput: names the first parameter.
    """
    for name in request.query_params:
        raise InvalidInput(name[:200], "this parameter is not known here: the path takes none.")


def _check_ids(params: Mapping[str, str]) -> None:
    """Refuse ids with a NUL, which PostgreSQL does not accept. Names in `FREE_NAMES` are not ids and are not checked.

    Raises:
        NotFound: an id contains a NUL, so no such record exists.
    """
    for noun, ident in params.items():
        if "\0" in ident and noun not in FREE_NAMES:
            raise NotFound(noun, ident)


async def _leave(request: Request, exc: Exception) -> Response:
    """Answer a client that disconnected while sending.

    The client does not read the answer, and the server did not fail.
    """
    return Response(status_code=GONE)
