"""Routes of OAuth for the MCP door: metadata, the authorization server, a person's decision, and the list of decisions.

A client sends a person's browser to `/oauth/authorize`. The request is checked and stored, and the browser goes to the
console's page, where the person signs in as usual and decides. The console's decision is an ordinary JSON request, with
the protection of all its requests. Requests of the authorization server carry no cookies and no keys: their credentials
are ignored (`BARE_FOLDERS` in `server/http.py`).

``access.authorizations`` decides the rules. ``authorization_server`` wraps the MCP SDK, whose import takes half a
second, so that a thread imports it for the first request.
"""

import re
import time
from collections.abc import Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import anyio.to_thread
from pydantic import Field
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Message

from agentic_rag.access.authorizations import SCOPES, AuthorizationRequest, Authorizations
from agentic_rag.access.oauth_clients import ClientRefused, OAuthClient, OAuthClients
from agentic_rag.access.users import User
from agentic_rag.base.errors import BodyTooLarge, Forbidden, InvalidInput, NotFound
from agentic_rag.base.forms import Form
from agentic_rag.base.json_form import Json
from agentic_rag.directory.directory import Directory
from agentic_rag.server.auth import RESOURCE_METADATA, Gate, source_of
from agentic_rag.server.replies import Items, answer, json_response
from agentic_rag.server.routes.logins import LoginAttempts
from agentic_rag.server.routing import read_body, route
from agentic_rag.store.authorizations import AuthorizationRecord, RequestRecord

if TYPE_CHECKING:
    from agentic_rag.server.doors.authorization_server import TokenEndpoint

FOLDER: Final = "/oauth/"
METADATA_FOLDER: Final = "/.well-known/"
SERVER_METADATA: Final = f"{METADATA_FOLDER}oauth-authorization-server"
OPENID_METADATA: Final = f"{METADATA_FOLDER}openid-configuration"
"""Clients look here, too. Below a root path, this is the only address that a proxy passes on without further rules."""
AUTHORIZATIONS: Final = "/api/authorizations"
REQUEST: Final = f"{AUTHORIZATIONS}/requests/{{request_id}}"
MAX_BODY: Final = 64 * 1024
MAX_PARAMETER: Final = 2_000
BEGUN_A_SECOND, BEGUN_AT_ONCE = 1.0, 60.0
"""Authorization requests and registrations of one address: each stores a row, or fetches a document."""

OwnServer = Literal["own", "provider", "off"]
"""The issuer of tokens for the MCP door: this server, the operator's OpenID provider, or nobody."""

_DOMAIN = re.compile(r"[A-Za-z0-9_-]{1,100}")
_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")
_PAGE_POLICY = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_NO_STORE: Final = {"cache-control": "no-store", "pragma": "no-cache"}


class DecisionForm(Form):
    """A person's decision. ``scopes`` are the permitted ones; without ``allow``, nothing is permitted."""

    allow: bool
    scopes: list[str] = Field(default_factory=list, max_length=len(SCOPES))


class ListQuery(Form):
    """``user``: whose authorizations to list, for operators; without it, the caller's own."""

    user: str | None = Field(None, max_length=200)


@answer()
class PendingAuthorization:
    """A program's request to use a domain.

    ``client`` is the name that the program gives itself, which nobody has checked. ``clientHost`` is the host that
    publishes the program's description; empty if the program registered itself. ``redirectHost`` is the host that
    receives the authorization; ``local``: it is a program on the person's own computer.
    """

    domain_id: str
    domain_name: str
    client: str
    client_host: str
    redirect_host: str
    local: bool
    scopes: Sequence[str]


@answer()
class Decided:
    """``redirectTo`` is the address at which the browser returns to the program."""

    redirect_to: str


@answer()
class AuthorizedProgram:
    """A program that may use a domain in a user's name, with its scopes. ``usedAt``: when it last renewed its token."""

    id: str
    user_id: str
    domain_id: str
    client: str
    client_host: str
    redirect_host: str
    scopes: Sequence[str]
    created_at: str
    used_at: str | None
    expires_at: str


class AuthorizationRoutes:
    """OAuth for the MCP door. ``issuer`` is the provider's issuer where ``mode`` is ``provider``."""

    def __init__(
        self,
        authorizations: Authorizations,
        clients: OAuthClients,
        directory: Directory,
        gate: Gate,
        mode: OwnServer,
        issuer: str,
    ) -> None:
        self._authorizations = authorizations
        self._clients = clients
        self._directory = directory
        self._gate = gate
        self._mode = mode
        self._issuer = issuer
        self._begun = LoginAttempts(BEGUN_A_SECOND, BEGUN_AT_ONCE)
        self._loading = anyio.Lock()
        self._endpoint: TokenEndpoint | None = None

    # Metadata

    @route("GET", f"{RESOURCE_METADATA}/mcp/{{door}}", allow="anyone", errors=[NotFound])
    async def resource(self, request: Request, door: str) -> Response:
        """Show the metadata of a domain's MCP door (RFC 9728). It does not say whether the domain exists."""
        if self._mode == "off" or not _DOMAIN.fullmatch(door):
            raise NotFound("resource", door[:200])
        await self._load()
        from agentic_rag.server.doors.authorization_server import resource_metadata

        base = self._gate.own_url(request.scope)
        issuer = self._issuer if self._mode == "provider" else base
        return _metadata(resource_metadata(f"{base}/mcp/{door}", issuer))

    @route("GET", SERVER_METADATA, allow="anyone", errors=[NotFound])
    async def server(self, request: Request) -> Response:
        """Show the metadata of this server's authorization server (RFC 8414)."""
        return await self._server(request)

    @route("GET", OPENID_METADATA, allow="anyone", errors=[NotFound])
    async def openid(self, request: Request) -> Response:
        """Show the same metadata where clients of OpenID providers look for it."""
        return await self._server(request)

    # The authorization server

    @route("GET", f"{FOLDER}authorize", allow="anyone", errors=[NotFound])
    async def authorize(self, request: Request) -> RedirectResponse | HTMLResponse:
        """Check a client's authorization request, and send the browser to the page where a person decides."""
        self._check_own()
        self._count(request)
        pairs = request.query_params.multi_items()
        parameters = dict(pairs)
        # No parameter may be there twice (RFC 6749, 3.1).
        if len(parameters) != len(pairs) or any(len(text) > MAX_PARAMETER for text in parameters.values()):
            return _page("The program's request cannot be read", "A parameter is repeated, or is too long.")
        # Until the redirect address is known to be the client's, errors must not go there (RFC 6749, 4.1.2.1).
        try:
            client = await self._clients.find(parameters.get("client_id", ""))
        except ClientRefused as exc:
            return _page("This program cannot be authorized", str(exc))
        redirect_uri = parameters.get("redirect_uri", "")
        if not client.accepts(redirect_uri):
            reason = f"The program has not registered the address {redirect_uri[:200]!r} for this sign-in."
            return _page("This program cannot be authorized", reason)
        base = self._gate.own_url(request.scope)
        checked = _check(parameters, client, base)
        if isinstance(checked, _Refusal):
            values = {"error": checked.error, "error_description": checked.reason, "state": parameters.get("state")}
            return _return_to(redirect_uri, {**values, "iss": base})
        secret = await self._authorizations.begin(checked)
        # In the fragment, which a browser sends to no server, so that no log has the secret.
        return RedirectResponse(f"/#/authorize/{secret}", 303, _NO_STORE)

    @route("POST", f"{FOLDER}token", allow="anyone", errors=[BodyTooLarge, NotFound])
    async def token(self, request: Request) -> Response:
        """Exchange a code or a refresh token for tokens."""
        self._check_own()
        body = await _read_form(request)
        if isinstance(body, Response):
            return body
        form = dict(parse_qsl(body.decode("ascii", "replace"), keep_blank_values=True))
        if len(form.get("client_id", "")) > MAX_PARAMETER or len(form.get("code_verifier", "")) > MAX_PARAMETER:
            return _oauth_error("invalid_request", "A parameter is too long.")
        problem = await self._target_problem(form)
        if problem:
            return _oauth_error("invalid_target", problem)
        endpoint = await self._load()
        # The library reads the body from its request, so the one that was read for the checks is handed on.
        return await endpoint.answer(Request(request.scope, partial(_replay, body)))

    @route("POST", f"{FOLDER}revoke", allow="anyone", errors=[BodyTooLarge, NotFound])
    async def revoke_token(self, request: Request) -> Response:
        """Revoke a token with all tokens of its authorization (RFC 7009)."""
        self._check_own()
        body = await _read_form(request)
        if isinstance(body, Response):
            return body
        form = dict(parse_qsl(body.decode("ascii", "replace"), keep_blank_values=True))
        if not form.get("token") or not form.get("client_id"):
            return _oauth_error("invalid_request", "`token` and `client_id` are needed.")
        # A token that does not exist is answered in the same way (RFC 7009, 2.2).
        await self._authorizations.revoke_token(form["client_id"], form["token"])
        return Response(headers=_NO_STORE)

    @route("POST", f"{FOLDER}register", allow="anyone", status=201, errors=[BodyTooLarge, NotFound])
    async def register(self, request: Request) -> Response:
        """Register a client (RFC 7591), if the operator permits registration."""
        self._check_own()
        if not self._clients.registration:
            raise NotFound("registration", "oauth")
        self._count(request)  # anyone can register clients, so the rate of each address is limited
        try:
            record = await self._clients.register(await read_body(request, MAX_BODY))
        except ClientRefused as exc:
            return _oauth_error(exc.error, str(exc))
        shown = {
            "client_id": record.id,
            "client_id_issued_at": int(time.time()),
            "client_name": record.name,
            "redirect_uris": list(record.redirect_uris),
            "token_endpoint_auth_method": "none",  # public clients: PKCE takes the place of a secret
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "scope": " ".join(SCOPES),
        }
        response = json_response(shown, 201)
        response.headers.update(_NO_STORE)
        return response

    # A person's decision

    @route("GET", REQUEST, allow="user", errors=[NotFound])
    async def show(self, user: User, request_id: str) -> PendingAuthorization:
        """Show a program's request to use a domain."""
        pending = await self._authorizations.pending(user, request_id)
        domain = await self._directory.get(pending.domain_id)
        host, local = _host_of(pending.redirect_uri)
        return PendingAuthorization(
            pending.domain_id,
            domain.name,
            pending.client_name,
            _client_host(pending.client_id),
            host,
            local,
            pending.scopes,
        )

    @route("POST", REQUEST, allow="user", errors=[NotFound, Forbidden, InvalidInput])
    async def decide(self, user: User, request_id: str, body: DecisionForm) -> Decided:
        """Permit or refuse a program's request. The browser then returns to the program."""
        if body.allow:
            record, code = await self._authorizations.approve(user, request_id, body.scopes)
            return Decided(_address(record.redirect_uri, {"code": code, "state": record.state, "iss": record.issuer}))
        record = await self._authorizations.decline(user, request_id)
        return Decided(_address(record.redirect_uri, _denial(record)))

    @route("GET", AUTHORIZATIONS, allow="user", errors=[Forbidden])
    async def list_programs(self, user: User, query: ListQuery) -> Items[AuthorizedProgram]:
        """List the programs that the caller has authorized."""
        if query.user not in (None, user.id) and not user.operator:
            raise Forbidden("Only an operator may see the programs of others.")
        return Items([_show(record) for record in await self._authorizations.list_of(query.user or user.id)])

    @route("DELETE", f"{AUTHORIZATIONS}/{{authorization}}", allow="user", errors=[NotFound])
    async def revoke(self, user: User, authorization: str) -> None:
        """End a program's authorization at once, for new requests and for open ones."""
        await self._authorizations.revoke(user, authorization)

    # Parts

    async def _server(self, request: Request) -> Response:
        self._check_own()
        await self._load()
        from agentic_rag.server.doors.authorization_server import server_metadata

        return _metadata(server_metadata(self._gate.own_url(request.scope), registration=self._clients.registration))

    def _check_own(self) -> None:
        if self._mode != "own":
            raise NotFound("authorization_server", "own")

    def _count(self, request: Request) -> None:
        source, at = source_of(request.scope), time.monotonic()
        self._begun.check(at, source)
        self._begun.count(at, source)

    async def _load(self) -> "TokenEndpoint":
        async with self._loading:
            if self._endpoint is None:
                self._endpoint = await anyio.to_thread.run_sync(self._make_endpoint)
        return self._endpoint

    def _make_endpoint(self) -> "TokenEndpoint":
        from agentic_rag.server.doors.authorization_server import TokenEndpoint

        return TokenEndpoint(self._clients, self._authorizations)

    async def _target_problem(self, form: dict[str, str]) -> str:
        """Return why the resource of a token request (RFC 8707) does not fit its code or refresh token."""
        resource, client_id = form.get("resource"), form.get("client_id", "")
        if resource is None:
            return ""
        if form.get("grant_type") == "refresh_token":
            token = await self._authorizations.find_refresh(client_id, form.get("refresh_token", ""))
            record = None if token is None else token[1]
        else:
            code = await self._authorizations.find_code(client_id, form.get("code", ""))
            record = None if code is None else code[1]
        # The endpoint refuses unknown codes and tokens itself, with the error that the protocol has for them.
        if record is None or _same_resource(resource, record.resource):
            return ""
        return f"The grant is for {record.resource!r}, not for {resource[:200]!r}."


class _Refusal:
    """An error that returns to the client."""

    def __init__(self, error: str, reason: str) -> None:
        self.error = error
        self.reason = reason


def _check(parameters: dict[str, str], client: OAuthClient, base: str) -> AuthorizationRequest | _Refusal:
    """Return the checked request of a client whose redirect address is its own."""
    if "request" in parameters or "request_uri" in parameters:
        return _Refusal("request_not_supported", "Requests as JWT are not supported.")
    if parameters.get("response_type") != "code":
        return _Refusal("unsupported_response_type", "response_type must be code.")
    if parameters.get("response_mode", "query") != "query":
        return _Refusal("invalid_request", "response_mode must be query.")
    if parameters.get("code_challenge_method") != "S256" or not _CHALLENGE.fullmatch(
        parameters.get("code_challenge", "")
    ):
        return _Refusal("invalid_request", "PKCE with S256 is needed: code_challenge_method and code_challenge.")
    resource = parameters.get("resource", "")
    prefix = f"{base}/mcp/"
    # Scheme and host may be written in another case: the prefix is cut off by its length and compared below.
    match = re.fullmatch(r"([A-Za-z0-9_-]{1,100})/?", resource[len(prefix) :])
    if match is None or not _same_resource(resource, prefix + match[1]):
        return _Refusal("invalid_target", f"resource must be the address of an MCP door: {prefix}<domain>.")
    requested = parameters.get("scope", "").split()
    # A client that names no scope asks for all of them.
    scopes = tuple(scope for scope in SCOPES if scope in requested or not requested)
    if not scopes:
        return _Refusal("invalid_scope", f"The scopes are {', '.join(SCOPES)}.")
    return AuthorizationRequest(
        client=client,
        domain_id=match[1],
        redirect_uri=parameters["redirect_uri"],
        issuer=base,
        resource=prefix + match[1],
        scopes=scopes,
        state=parameters.get("state"),
        challenge=parameters["code_challenge"],
    )


def _same_resource(resource: str, own: str) -> bool:
    """Return whether two addresses of a resource are equal but for the case of scheme and host and a last slash."""
    try:
        first, other = urlsplit(resource), urlsplit(own)
    except ValueError:
        return False
    if first.query or first.fragment or "?" in resource or "#" in resource:
        return False
    places = [(parts.scheme.lower(), parts.netloc.lower(), parts.path.removesuffix("/")) for parts in (first, other)]
    return places[0] == places[1]


def _address(redirect_uri: str, values: dict[str, str | None]) -> str:
    """Return a client's redirect address with the parameters of an answer."""
    query = urlencode({name: value for name, value in values.items() if value is not None})
    return f"{redirect_uri}{'&' if '?' in redirect_uri else '?'}{query}"


def _return_to(redirect_uri: str, values: dict[str, str | None]) -> RedirectResponse:
    return RedirectResponse(_address(redirect_uri, values), 303, _NO_STORE)


def _denial(record: RequestRecord) -> dict[str, str | None]:
    return {
        "error": "access_denied",
        "error_description": "The person did not permit it.",
        "state": record.state,
        "iss": record.issuer,
    }


def _show(record: AuthorizationRecord) -> AuthorizedProgram:
    host, _ = _host_of(record.redirect_uri)
    return AuthorizedProgram(
        record.id,
        record.user_id,
        record.domain_id,
        record.client_name,
        _client_host(record.client_id),
        host,
        record.scopes,
        record.created_at,
        record.used_at,
        record.expires_at,
    )


def _client_host(client_id: str) -> str:
    return urlsplit(client_id).netloc if "://" in client_id else ""


def _host_of(redirect_uri: str) -> tuple[str, bool]:
    """Return the host that receives a code, and whether the receiver is a program on the person's computer."""
    parts = urlsplit(redirect_uri)
    local = parts.scheme != "https"  # a loopback address or a scheme of an app; `redirect_problem` refuses the others
    return (f"{parts.scheme}:" if parts.scheme not in ("http", "https") else unquote(parts.netloc)), local


def _metadata(value: Json) -> Response:
    response = json_response(value)
    response.headers["cache-control"] = "public, max-age=300"
    return response


def _oauth_error(error: str, reason: str, status: int = 400) -> Response:
    response = json_response({"error": error, "error_description": reason}, status)
    response.headers.update(_NO_STORE)
    return response


def _page(title: str, reason: str) -> HTMLResponse:
    """Return a page for the person whose program sent an invalid request. It loads nothing and runs no script."""
    body = f"<h1>{escape(title)}</h1><p>{escape(reason)}</p><p>Nothing was permitted. You can close this page.</p>"
    page = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>{body}</html>'
    return HTMLResponse(page, 400, {"content-security-policy": _PAGE_POLICY, "referrer-policy": "no-referrer"})


async def _read_form(request: Request) -> bytes | Response:
    """Return the body of a form without repeated parameters, or the refusal of another body."""
    kind = Headers(scope=request.scope).get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        return _oauth_error("invalid_request", "The body must be application/x-www-form-urlencoded.")
    body = await read_body(request, MAX_BODY)
    try:
        names = [name for name, _ in parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=50)]
    except ValueError:
        return _oauth_error("invalid_request", "The body is no form.")
    if len(set(names)) != len(names):
        return _oauth_error("invalid_request", "A parameter is repeated.")
    return body


async def _replay(body: bytes) -> Message:
    return {"type": "http.request", "body": body, "more_body": False}
