"""A strict authorization server, and a guard that makes an MCP application require its tokens.

Both run in process, over sockets. The server checks everything that RFC 6749, 7591, 7636, 8414, 8707, 9207 and 9728
allow it to check, and answers accordingly. A test changes the behaviour by a field of `Habits`. All requests are in
``requests``.
"""

import base64
import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode

import anyio
from joserfc import jwt
from joserfc.jwk import ECKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

Override = Callable[[Request], Awaitable[Response | None]]


@dataclass
class Habits:
    """The behaviour of the server. ``instead``: paths with a special answer (None: the usual one)."""

    metadata: dict[str, Any] = field(default_factory=dict)
    resource_metadata: dict[str, Any] = field(default_factory=dict)
    named_metadata: str = ""
    """The address of the metadata in a refusal; empty: where the server publishes it."""
    instead: dict[str, Override] = field(default_factory=dict)
    iss: str | None = ""
    """The ``iss`` of an authorization response; empty: the issuer, None: left out."""
    token: dict[str, Any] = field(default_factory=dict)
    registration: dict[str, Any] = field(default_factory=dict)
    seconds: int = 3600
    rotates: bool = True
    challenge_scope: str = ""
    clients: dict[str, str] = field(default_factory=dict)
    """Registered clients with their secrets; an empty secret means none."""
    client_key: ECKey | None = None


@dataclass
class ReceivedRequest:
    """One request to the server."""

    path: str
    form: dict[str, str]
    authorization: str


class AuthorizationServer:
    """Grants tokens for one resource. ``issuer`` and ``resource`` are set once the sockets are known."""

    def __init__(self, habits: Habits | None = None) -> None:
        self.habits = habits or Habits()
        self.issuer = ""
        self.resource = ""
        self.requests: list[ReceivedRequest] = []
        self.codes: dict[str, dict[str, str]] = {}
        self.live: dict[str, str] = {}
        """Valid access tokens, with their scopes."""
        self.refresh: dict[str, str] = {}
        self.count = 0

    def app(self) -> Starlette:
        """Return the server as an application."""
        return Starlette(
            routes=[
                Route("/.well-known/oauth-authorization-server", self._handle),
                Route("/authorize", self._handle),
                *(Route(path, self._handle, methods=["POST"]) for path in ("/register", "/token", "/revoke")),
            ]
        )

    def find(self, path: str) -> list[ReceivedRequest]:
        """Return the requests of one path."""
        return [request for request in self.requests if request.path == path]

    async def _handle(self, request: Request) -> Response:
        body, path = (await request.body()).decode(), request.url.path
        kind = request.headers.get("content-type", "")
        pairs = parse_qs(body or request.url.query, keep_blank_values=True) if "json" not in kind else {}
        assert all(len(values) == 1 for values in pairs.values()), "a parameter is given twice (RFC 6749, 3.2)"
        form = {"body": body} if "json" in kind else {name: values[0] for name, values in pairs.items()}
        self.requests.append(ReceivedRequest(path, form, request.headers.get("authorization", "")))
        override = self.habits.instead.get(path)
        answer = await override(request) if override is not None else None
        usual = {
            "/register": self._register,
            "/authorize": self._authorize,
            "/token": self._token,
            "/revoke": self._revoke,
        }
        return answer or usual.get(path, self._metadata)(request, form)

    def _metadata(self, request: Request, form: dict[str, str]) -> Response:
        document = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "registration_endpoint": f"{self.issuer}/register",
            "revocation_endpoint": f"{self.issuer}/revoke",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
        }
        document |= self.habits.metadata
        return JSONResponse({name: value for name, value in document.items() if value is not None})

    def _register(self, request: Request, form: dict[str, str]) -> Response:
        metadata = json.loads(form["body"])
        ident = f"client-{len(self.habits.clients) + 1}"
        method = metadata.get("token_endpoint_auth_method", "client_secret_basic")
        secret = "" if method == "none" else f"secret-of-{ident}-0123456789"
        self.habits.clients[ident] = secret
        answer = {**metadata, "client_id": ident, **({"client_secret": secret} if secret else {})}
        return JSONResponse({**answer, **self.habits.registration}, 201)

    def _authorize(self, request: Request, form: dict[str, str]) -> Response:
        assert form["response_type"] == "code"
        assert form["client_id"] in self.habits.clients or form["client_id"].startswith("https://")
        assert form["code_challenge_method"] == "S256"
        assert len(form["code_challenge"]) == 43
        assert form["resource"] == self.resource
        self.count += 1
        code = f"code-{self.count}"
        self.codes[code] = form
        back = {"code": code, "state": form["state"]}
        iss = self.issuer if self.habits.iss == "" else self.habits.iss
        if iss is not None:
            back["iss"] = iss
        return RedirectResponse(f"{form['redirect_uri']}?{urlencode(back)}", 302)

    def _token(self, request: Request, form: dict[str, str]) -> Response:
        client = self._client(request, form)
        if client is None:
            return JSONResponse({"error": "invalid_client"}, 401)
        assert form.get("resource") == self.resource
        kind = form["grant_type"]
        if kind == "client_credentials":
            return self._grant(form.get("scope", ""), refresh=False)
        if kind == "refresh_token":
            scope = self.refresh.get(form["refresh_token"])
            if scope is None:
                return JSONResponse({"error": "invalid_grant", "error_description": form["refresh_token"]}, 400)
            if self.habits.rotates:
                del self.refresh[form["refresh_token"]]
            return self._grant(scope)
        # Taken out even if the rest does not match: a code can be tried only once.
        code_grant = self.codes.pop(form["code"], None)
        digest = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()
        if (
            code_grant is None
            or code_grant["redirect_uri"] != form["redirect_uri"]
            or code_grant["code_challenge"] != digest
        ):
            return JSONResponse({"error": "invalid_grant"}, 400)
        assert code_grant["client_id"] == client
        return self._grant(code_grant.get("scope", ""))

    def _grant(self, scope: str, *, refresh: bool = True) -> Response:
        self.count += 1
        access, renewal = f"access-token-{self.count}-xyz", f"refresh-token-{self.count}-xyz"
        self.live[access] = scope
        answer: dict[str, Any] = {"access_token": access, "token_type": "bearer", "expires_in": self.habits.seconds}
        if refresh:
            self.refresh[renewal] = scope
            answer |= {"refresh_token": renewal, "id_token": _make_unsigned({"email": "anna@example.com"})}
        return JSONResponse({**answer, **self.habits.token})

    def _revoke(self, request: Request, form: dict[str, str]) -> Response:
        if self._client(request, form) is None:
            return JSONResponse({"error": "invalid_client"}, 401)
        self.live.pop(form["token"], None)
        self.refresh.pop(form["token"], None)
        return Response(status_code=200)

    def _client(self, request: Request, form: dict[str, str]) -> str | None:
        """Return the client that authenticated itself."""
        header = request.headers.get("authorization", "")
        if header.startswith("Basic "):
            ident, _, secret = base64.b64decode(header[6:]).decode().partition(":")
            ident, secret = unquote(ident), unquote(secret)
            return ident if secret and self.habits.clients.get(ident) == secret else None
        ident = form.get("client_id", "")
        if "client_assertion" in form:
            assert self.habits.client_key is not None
            claims = jwt.decode(form["client_assertion"], self.habits.client_key, algorithms=["ES256"]).claims
            return ident if claims["iss"] == claims["sub"] == ident and claims["aud"] == self.issuer else None
        # A client whose id is the address of its metadata document has no secret.
        if ident.startswith("https://"):
            return ident
        registered = self.habits.clients.get(ident)
        return ident if registered is not None and registered == form.get("client_secret", "") else None


def _make_unsigned(claims: dict[str, Any]) -> str:
    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'none'})}.{part(claims)}.x"


class Guarded:
    """An MCP application that requires the tokens of an authorization server. ``scopes``: required scope by method."""

    def __init__(self, app: ASGIApp, granting: AuthorizationServer) -> None:
        self.app = app
        self.granting = granting
        self.scopes: dict[str, str] = {}
        self.refused = 0
        self.tokens: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        base, path = self.granting.resource.removesuffix("/mcp"), scope["path"]
        if path == "/.well-known/oauth-protected-resource/mcp":
            document = {"resource": self.granting.resource, "authorization_servers": [self.granting.issuer]}
            await JSONResponse({**document, **self.granting.habits.resource_metadata})(scope, receive, send)
            return
        # Clients look for metadata at several well-known paths, and without a token.
        if path.startswith("/.well-known"):
            await Response(status_code=404)(scope, receive, send)
            return
        headers = {name.decode(): text.decode() for name, text in scope["headers"]}
        token = headers.get("authorization", "").removeprefix("Bearer ")
        self.tokens.append(token)
        named = self.granting.habits.named_metadata or f"{base}/.well-known/oauth-protected-resource/mcp"
        where = f'resource_metadata="{named}"'
        if token not in self.granting.live:
            self.refused += 1
            scope_wanted = self.granting.habits.challenge_scope
            challenge = f"Bearer {where}" + (f', scope="{scope_wanted}"' if scope_wanted else "")
            await Response(status_code=401, headers={"www-authenticate": challenge})(scope, receive, send)
            return
        body, replay = await _buffer(receive)
        needed = self.scopes.get(body.get("method", ""))
        if needed and needed not in self.granting.live[token].split():
            self.refused += 1
            challenge = f'Bearer error="insufficient_scope", scope="{needed}", {where}'
            await Response(status_code=403, headers={"www-authenticate": challenge})(scope, receive, send)
            return
        await self.app(scope, replay, send)


async def _buffer(receive: Receive) -> tuple[dict[str, Any], Receive]:
    """Return the JSON of a request, and a `receive` that replays the request."""
    messages, whole = [], b""
    while True:
        message = await receive()
        messages.append(message)
        whole += message.get("body", b"")
        if message["type"] != "http.request" or not message.get("more_body"):
            break
    waiting = iter(messages)

    async def replay() -> Any:
        for message in waiting:
            return message
        return await receive()

    try:
        body = json.loads(whole)
    except ValueError:
        body = {}
    return (body if isinstance(body, dict) else {}), replay


async def never(request: Request) -> Response | None:
    """Wait for ever instead of answering."""
    await anyio.sleep_forever()
    return None
