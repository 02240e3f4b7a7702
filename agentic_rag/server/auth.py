"""Authentication: the guard around the whole application, and the caller that a route sees.

Handles credentials (``Authorization: Bearer`` with a key or an OpenID token, a browser's sign-in cookie, or on a
WebSocket a ticket offered as subprotocol), tickets, the limits of each key and its open connections. Also sets the
request id and the headers of every answer, including those that let a listed origin's page read it, and catches
unexpected errors. Knows no record and no route.

An invalid key or token is refused, except on a server without keys: stock clients must send one, so an unknown
``Authorization`` is ignored there. A wrong ticket is always refused. An expired cookie is ignored, because browsers
send cookies automatically. Credentials in the query string are refused, because proxies log it and browsers store it.
Without keys, a connection from this machine by the server's own user is the local operator.
"""

import hashlib
import logging
import os
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, quote, urlsplit

import anyio
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentic_rag.access.auditing import AuditLog, place_of, tells
from agentic_rag.access.authorizations import SCOPES, DoorPlace
from agentic_rag.access.keys import KEYLESS, PREFIX, Access, Entrant
from agentic_rag.access.refusals import Refusal
from agentic_rag.access.users import ANONYMOUS, LOCAL, User, acting_for
from agentic_rag.base.errors import AgenticRagError, Forbidden, Unauthenticated
from agentic_rag.base.telemetry import continuing
from agentic_rag.base.terminal import log_under
from agentic_rag.server.cookies import SIGN_IN, check_own_page, is_secure, read_cookie
from agentic_rag.server.hosts import (
    ORIGIN_ADVICE,
    ORIGIN_HINT,
    VARY,
    Field,
    Hosts,
    is_loopback,
    is_preflight,
    preflight_fields,
    shared_fields,
)
from agentic_rag.server.limits import KeyLimits, Load
from agentic_rag.server.peer_credentials import Address, uid_of
from agentic_rag.server.replies import HEADERS, failure, refusal, send_refusal
from agentic_rag.server.root_path import root_path_of
from agentic_rag.server.ws.connection import arrival_of
from agentic_rag.store.clock import new_id
from agentic_rag.store.logins import LoginRecord

log = logging.getLogger("agentic_rag.server")

TICKET_PROTOCOL = "ticket."
"""Prefix of the subprotocol that carries a ticket."""
CREDENTIAL_NAMES = frozenset(
    {"token", "access_token", "api_key", "apikey", "api-key", "key", "ticket", "auth", "authorization", "bearer"}
)
"""Query parameters in which clients of other servers send credentials that belong in a header."""

_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""A request id that a client may choose; it appears in headers, logs and the audit log."""

_DOOR = re.compile(r"/mcp/([A-Za-z0-9_-]{1,100})")
RESOURCE_METADATA = "/.well-known/oauth-protected-resource"
"""Path of the metadata of a protected resource (RFC 9728); the resource's own path follows."""

TICKET_SECONDS = 30.0


class KeylessRefusal(StrEnum):
    """The reason why a request without credentials is not the local operator's."""

    KEY_REQUIRED = "keyRequired"
    NETWORKED_SERVER = "networkedServer"
    """An MCP server may use the network, and could connect as the local operator."""
    OTHER_USER = "otherUser"
    UNKNOWN_USER = "unknownUser"
    """The system does not tell which user a connection belongs to."""


KEYLESS_TEXTS: Final = {
    KeylessRefusal.NETWORKED_SERVER: "This server asks every program for a key, because one of its MCP servers may use "
    "the network and could connect as you.",
    KeylessRefusal.OTHER_USER: "This server has no keys and answers only the user who runs it; this connection belongs "
    "to another user of this machine.",
    KeylessRefusal.UNKNOWN_USER: "This server has no keys and answers only the user who runs it; this system does not "
    "tell which user a connection belongs to.",
}
MAX_TICKETS = 50
"""Maximum unused tickets of one key; the oldest is dropped."""


@dataclass(frozen=True, slots=True)
class _Ticket:
    entrant: Entrant
    ends: float


class Tickets:
    """Unused tickets of a single process, or of the local operator.

    Only the hash of a ticket is stored. ``now`` is in seconds of a monotonic clock.
    """

    def __init__(self) -> None:
        self._tickets: dict[bytes, _Ticket] = {}

    def issue(self, now: float, entrant: Entrant) -> str:
        """Return a new ticket."""
        self._tickets = {hashed: ticket for hashed, ticket in self._tickets.items() if ticket.ends > now}
        own = [hashed for hashed, ticket in self._tickets.items() if ticket.entrant.key_id == entrant.key_id]
        # A dictionary keeps the order of insertion, so the oldest tickets come first.
        for hashed in own[: max(0, len(own) - MAX_TICKETS + 1)]:
            del self._tickets[hashed]
        value = secrets.token_urlsafe(32)
        self._tickets[_hash(value)] = _Ticket(entrant, now + TICKET_SECONDS)
        return value

    def redeem(self, now: float, value: str) -> Entrant | None:
        """Redeem a ticket and return its entrant, or None if the ticket is unknown, used or expired."""
        ticket = self._tickets.pop(_hash(value), None)  # a ticket is good for one use, valid or not
        return ticket.entrant if ticket is not None and ticket.ends > now else None

    def revoke(self, key_id: str) -> None:
        """Drop the tickets issued for a key."""
        self._tickets = {h: ticket for h, ticket in self._tickets.items() if ticket.entrant.key_id != key_id}


def _hash(value: str) -> bytes:
    return hashlib.sha256(value.encode(errors="replace")).digest()


class KeyUse:
    """The use of each key: its load, its connections and its unused tickets."""

    def __init__(self, limits: KeyLimits | None = None) -> None:
        self._limits = limits or KeyLimits()
        self._tickets = Tickets()
        self._loads: dict[str, Load] = {}
        self._marks: dict[str, object] = {}
        self._open: defaultdict[str, set[anyio.CancelScope]] = defaultdict(set)

    def load_of(self, entrant: Entrant) -> Load | None:
        """Return the load of a key and all its sign-ins; None for the local operator."""
        counted = entrant.counted or entrant.key_id
        if not counted:
            return None
        load = self._loads.get(counted)
        if load is None:
            load = self._loads[counted] = Load(self._limits)
        return load

    def mark_of(self, key_id: str | None) -> object:
        """Return a mark that changes when a key or sign-in ends. `hold` compares the marks."""
        return None if key_id is None else self._marks.setdefault(key_id, object())

    @property
    def open_count(self) -> int:
        """Number of open sockets and event streams."""
        return sum(map(len, self._open.values()))

    def issue_ticket(self, entrant: Entrant) -> str:
        """Return a ticket that admits the entrant once."""
        return self._tickets.issue(time.monotonic(), entrant)

    def redeem_ticket(self, value: str) -> Entrant | None:
        """Redeem a ticket and return its entrant, or None if the ticket is not valid."""
        return self._tickets.redeem(time.monotonic(), value)

    @contextmanager
    def hold(self, key_id: str, load: Load | None, mark: object, scope: anyio.CancelScope) -> Iterator[None]:
        """Count a connection, and cancel ``scope`` when its key ends or has ended since ``mark``."""
        if self._marks.get(key_id) is not mark:  # the key ended after the guard had checked it
            scope.cancel()
        scopes = self._open[key_id]
        scopes.add(scope)
        if load is not None:
            load.connections += 1
        try:
            yield
        finally:
            if load is not None:
                load.connections -= 1
            scopes.discard(scope)
            if not scopes:
                self._open.pop(key_id, None)

    def end(self, key_id: str) -> None:
        """End all connections of a revoked key, or of the keyless operator after the first key was made."""
        self._marks.pop(key_id, None)
        self._loads.pop(key_id, None)
        self._tickets.revoke(key_id)
        for scope in self._open.pop(key_id, set()):
            scope.cancel()


class Caller:
    """The sender of a request or holder of a connection, and its remaining limits."""

    __slots__ = ("_gate", "_load", "_mark", "entrant", "login", "source")

    def __init__(
        self, entrant: Entrant, source: str = "", gate: "Gate | None" = None, login: LoginRecord | None = None
    ):
        self.entrant = entrant
        self.source = source
        self.login = login
        """The sign-in of the request's cookie."""
        self._gate = gate
        self._load = gate.use.load_of(entrant) if gate is not None else None
        self._mark = gate.use.mark_of(entrant.key_id) if gate is not None else None

    @property
    def gate(self) -> "Gate":
        """The gate that identified the sender."""
        assert self._gate is not None
        return self._gate

    @property
    def is_nobody(self) -> bool:
        """Whether the sender of the request is anonymous."""
        return self.user.id == ANONYMOUS

    @property
    def user(self) -> User:
        return self.entrant.user

    def take_request(self) -> None:
        """Count a request or a frame.

        Raises:
            RateLimited: this key sent too many.
        """
        if self._load is not None:
            self._load.request(time.monotonic())

    def take_message(self) -> None:
        """Count a message.

        Raises:
            RateLimited: this key sent too many.
        """
        if self._load is not None:
            self._load.message(time.monotonic())

    def check_connections(self) -> None:
        """Check that one more connection may be opened.

        Raises:
            RateLimited: this key has too many connections.
        """
        if self._load is not None:
            self._load.check_connections()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request inside the block, from its header to the end of its answer.

        Raises:
            RateLimited: this key has too many concurrent requests.
        """
        if self._load is None:
            yield
            return
        self._load.check_at_once()
        self._load.at_once += 1
        try:
            yield
        finally:
            self._load.at_once -= 1

    def check_subscriptions(self) -> None:
        """Check that one more conversation may be followed.

        Raises:
            RateLimited: this key follows too many.
        """
        if self._load is not None:
            self._load.check_subscriptions()

    def count_subscriptions(self, change: int) -> None:
        """Add ``change`` to the number of followed conversations."""
        if self._load is not None:
            self._load.subscriptions += change

    @contextmanager
    def connection(self, scope: anyio.CancelScope) -> Iterator[None]:
        """Hold a connection inside the block. ``scope`` is cancelled when the key is revoked."""
        if self._gate is None or self.entrant.key_id is None:
            yield
            return
        if self.entrant.seconds is not None:
            scope.deadline = min(scope.deadline, anyio.current_time() + self.entrant.seconds)
        with self._gate.use.hold(self.entrant.key_id, self._load, self._mark, scope):
            yield

    async def note_refusal(self, error: AgenticRagError, action: str, target: str, request_id: str = "") -> None:
        """Record a refusal in the audit log if it belongs there."""
        if self._gate is not None:
            await self._gate.note_refusal(error, self.user.id, action, target, self.source, request_id)


class Networked(Protocol):
    """The network permissions of MCP servers on this machine."""

    @property
    def networked(self) -> bool:
        """Whether an MCP server may use the network, and could connect here as the server's user."""
        ...


class TokenCheck(Protocol):
    """Verifies tokens that an OpenID provider has signed."""

    async def check(self, token: str) -> Entrant | None:
        """Return the entrant of a token, or None if it is not valid."""
        ...


class DoorTokens(Protocol):
    """Verifies OAuth tokens for the MCP door."""

    async def check(self, token: str, place: DoorPlace) -> Entrant | None:
        """Return the entrant of a token, or None if the token does not open this door."""
        ...


NOBODY = Entrant(User(ANONYMOUS), None)
"""The entrant of open routes."""


class Gate:
    """Identifies callers. Without ``access``, everyone is the local operator. ``access`` ends connections in ``use``.

    ``tokens`` checks OpenID tokens, ``door`` those for the MCP door; without ``door``, the MCP door offers no sign-in.
    ``public_url`` is the server's public address with its root path; empty: the address that the client uses.
    ``open_command`` is the command that signs in a browser of this machine.
    """

    def __init__(
        self,
        access: Access | None = None,
        audit: AuditLog | None = None,
        *,
        use: KeyUse | None = None,
        hosts: Hosts | None = None,
        servers: Networked | None = None,
        tokens: TokenCheck | None = None,
        door: DoorTokens | None = None,
        public_url: str = "",
        open_command: str = "agentic-rag open",
    ) -> None:
        self.open_command = open_command
        self._tokens = tokens
        self._door = door
        self._public_url = public_url
        self._public_host = urlsplit(public_url).netloc if public_url.startswith("https:") else ""
        self.use = use or KeyUse()
        self._servers = servers
        self._uid = os.geteuid()
        self._access = access
        self._audit = audit
        self.hosts = hosts or Hosts()

    async def enter(self, scope: Scope, headers: Headers, *, origin: str = "", is_open: bool = False) -> Caller:
        """Return the caller of a request that `agentic_rag.server.hosts` has accepted.

        ``origin`` is the listed origin of the sending page. ``is_open`` marks a route that is open to everyone.

        Raises:
            Unauthenticated: a key is needed, or the credentials are not valid.
            Forbidden: the request has a cookie, but is not proven to come from the server's own page.
        """
        if self._access is None:
            return Caller(Entrant(LOCAL, None))
        _check_query(scope)
        entrant = await self._entrant(scope, headers)
        # Not for sockets: a page of any site can open one, and the browser would send the cookie with it.
        if entrant is None and (token := self.cookie_of(scope)) is not None and scope["type"] == "http":
            signed_in = await self._access.signed_in(token)
            if signed_in is not None:
                check_own_page(scope, headers, origin)
                return Caller(signed_in[0], source_of(scope), self, signed_in[1])
        if entrant is None:
            reason = self.keyless_refusal(scope)
            problem = self._foreign_page(headers, origin) if reason is None else self._keyless_error(reason)
            if problem is not None:
                if not is_open:
                    raise problem
                entrant = NOBODY
            else:
                entrant = Entrant(LOCAL, KEYLESS)
        return Caller(entrant, source_of(scope), self)

    def own_url(self, scope: Scope) -> str:
        """Return the server's address with its root path, as a client of a request sees it.

        The guard has checked that the Host of the request is one of our names.
        """
        if self._public_url:
            return self._public_url
        scheme = "https" if self.is_secure(scope) else "http"
        return f"{scheme}://{Headers(scope=scope).get('host', '')}{root_path_of(scope)}"

    def door_of(self, scope: Scope) -> DoorPlace | None:
        """Return the MCP door that a request asks for, if the door offers a sign-in."""
        match = _DOOR.fullmatch(scope["path"])
        if self._door is None or match is None or scope["type"] != "http":
            return None
        return DoorPlace(match[1], f"{self.own_url(scope)}/mcp/{match[1]}")

    def challenge(self, scope: Scope) -> str:
        """Return how a client of the requested MCP door gets a token: parameters of `WWW-Authenticate`, or empty."""
        place = self.door_of(scope)
        if place is None:
            return ""
        metadata = f"{self.own_url(scope)}{RESOURCE_METADATA}/mcp/{quote(place.domain_id, safe='')}"
        sent = Headers(scope=scope).get("authorization")
        problem = 'error="invalid_token", ' if sent else ""
        return f'{problem}resource_metadata="{metadata}", scope="{" ".join(SCOPES)}"'

    def stranger(self, scope: Scope) -> Caller:
        """Return the caller of a request whose credentials are ignored."""
        return Caller(NOBODY, source_of(scope), self)

    @property
    def needs_key(self) -> bool:
        """Whether every request needs credentials, because there are keys or an OpenID provider."""
        return self._access is not None and self._access.required

    def is_secure(self, scope: Scope) -> bool:
        """Return whether the browser of a request uses https."""
        return is_secure(scope, Headers(scope=scope), self._public_host)

    def cookie_of(self, scope: Scope) -> str | None:
        """Return the token in the sign-in cookie.

        An unknown token is ignored, because browsers send cookies automatically.
        """
        return read_cookie(Headers(scope=scope), SIGN_IN, secure=self.is_secure(scope))

    def _foreign_page(self, headers: Headers, origin: str) -> Forbidden | None:
        """Return the error for a request without credentials from another site's page, or None.

        Such a page cannot read the answer, but it could learn from it, and change things: without keys every request
        from this machine is the local user's.
        """
        if origin or headers.get("sec-fetch-site", "").strip().lower() != "cross-site":
            return None
        return Forbidden(f"Pages of other sites may not use this server. {ORIGIN_ADVICE}")

    def keyless_refusal(self, scope: Scope) -> KeylessRefusal | None:
        """Return why a request without credentials is not the local operator's, or None if it is.

        The local operator needs a server without keys, and a process of the server's own user on this machine. An MCP
        server is such a process, too: while one may use the network, the user of a connection proves nothing.
        """
        assert self._access is not None
        if self._access.required or not is_loopback(source_of(scope)):
            return KeylessRefusal.KEY_REQUIRED
        server = scope.get("server") or ("", 0)
        if server[1] is None:
            return None  # no connection: the application is called inside this process
        if self._servers is not None and self._servers.networked:
            return KeylessRefusal.NETWORKED_SERVER
        arrival = arrival_of(scope)
        uid = uid_of(_address_of(scope["client"]), _address_of(server)) if arrival is None else arrival.peer_uid()
        if uid is None:
            return KeylessRefusal.UNKNOWN_USER
        return None if uid == self._uid else KeylessRefusal.OTHER_USER

    def _keyless_error(self, reason: KeylessRefusal) -> Unauthenticated:
        if reason is KeylessRefusal.KEY_REQUIRED:
            return Unauthenticated()
        ways = f"To sign a browser in, run: {self.open_command} . Programs need a key: agentic-rag keys create."
        return Unauthenticated(f"{KEYLESS_TEXTS[reason]} {ways}")

    async def _entrant(self, scope: Scope, headers: Headers) -> Entrant | None:
        """Return the entrant of the credentials, or None without credentials.

        Raises:
            Unauthenticated: the credentials are not valid.
        """
        assert self._access is not None
        shown = False
        entrant: Entrant | None = None
        for value in headers.getlist("authorization"):
            scheme, _, secret = value.partition(" ")
            if scheme.lower() == "bearer":
                # With two Authorization headers it is unclear which one applies, so none does.
                entrant = await self._bearer(secret.strip(), scope) if not shown else None
                shown = True
        if entrant is None and not self._access.required:  # a stock client sends some key, also where none exists
            shown = False
        for protocol in scope.get("subprotocols", ()):
            if protocol.startswith(TICKET_PROTOCOL):
                redeemed = await self.redeem_ticket(protocol.removeprefix(TICKET_PROTOCOL))
                entrant = redeemed if not shown else None  # with two credentials it is unclear which one applies
                shown = True
        if shown and entrant is None:
            raise Unauthenticated("This API key or ticket is not known, was revoked, or was used before.")
        return entrant

    async def _bearer(self, secret: str, scope: Scope) -> Entrant | None:
        assert self._access is not None
        entrant = self._access.entrant(secret)
        if entrant is not None:
            return entrant
        place = self.door_of(scope)
        if place is not None and self._door is not None:
            entrant = await self._door.check(secret, place)
            if entrant is not None:
                return entrant
        # A signed token has three parts; other texts need no look at the provider's keys.
        if self._tokens is not None and secret.count(".") == 2 and not secret.startswith(PREFIX):
            return await self._tokens.check(secret)
        return None

    async def issue_ticket(self, entrant: Entrant) -> str:
        """Return a ticket that admits the entrant once, at every server of the database."""
        shared = None if self._access is None else await self._access.issue_ticket(entrant, TICKET_SECONDS)
        return self.use.issue_ticket(entrant) if shared is None else shared

    async def redeem_ticket(self, value: str) -> Entrant | None:
        """Redeem a ticket and return its entrant, or None if the ticket is not valid."""
        entrant = self.use.redeem_ticket(value)
        return await self._access.redeem_ticket(value) if entrant is None and self._access is not None else entrant

    async def note_refusal(
        self, error: AgenticRagError, actor: str, action: str, target: str, source: str, request_id: str = ""
    ) -> None:
        """Record a refusal in the audit log if it belongs there."""
        if self._audit is not None and tells(error):
            refusal = Refusal(actor, action, target, error.code, source, place_of(error))
            await self._audit.record_refusal(refusal, request_id)


def source_of(scope: Scope) -> str:
    """Return the client address of a request."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def _check_query(scope: Scope) -> None:
    query = scope.get("query_string", b"")
    if not query:
        return
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name.lower() in CREDENTIAL_NAMES or value.startswith((PREFIX, f"Bearer {PREFIX}")):
            raise Unauthenticated(
                "A key or ticket is never taken from the address, which is logged on its way: send 'Authorization: "
                "Bearer <key>', or offer the subprotocol ticket.<value>. Revoke the key that was sent."
            )


def caller_of(scope: Scope) -> Caller:
    """Return the caller of an HTTP request or WebSocket, as the guard identified it."""
    caller = scope["state"]["caller"]
    assert isinstance(caller, Caller)
    return caller


def own_url_of(scope: Scope) -> str:
    """Return the server's address as the client of a request sees it; see `Gate.own_url`."""
    return caller_of(scope).gate.own_url(scope)


class Guard:
    """ASGI middleware around everything. ``gate`` identifies callers; without it everyone is the operator.

    ``open_paths`` and paths below ``open_folders`` need no key, like the files below ``page_folder``. The files are not
    counted, because a page of dozens of files would use up a user's requests per second. Paths below ``bare_folders``
    prove by themselves what they permit: credentials and cookies of such a request are ignored.
    """

    def __init__(
        self,
        app: ASGIApp,
        gate: Gate | None = None,
        open_paths: frozenset[str] = frozenset(),
        bare_folders: tuple[str, ...] = (),
        page_folder: str | None = None,
        open_folders: tuple[str, ...] = (),
    ) -> None:
        self.app = app
        self._open_folders = open_folders
        self._gate = gate or Gate()
        self._open_paths = open_paths
        self._bare_folders = bare_folders
        self._page_folder = page_folder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        reference = _reference_of(headers)
        cookies: list[Field] = []  # routes add to it (`set_cookie`), and the start of the answer takes it over
        scope["state"] = state = {**scope.get("state", {}), "request_id": reference, "cookies": cookies}
        started, sharing, origin = False, self._gate.hosts.shares, ""
        hint: Field | None = None

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                message["headers"] = _complete(
                    [*message["headers"], *cookies, *([hint] if hint else [])], reference, origin, sharing=sharing
                )
            started = True
            await send(message)

        with ExitStack() as counted:
            counted.enter_context(log_under(reference))
            counted.enter_context(continuing(headers.get("traceparent")))
            actor = ANONYMOUS
            try:
                origin = self._gate.hosts.check(headers)
                if origin and is_preflight(scope.get("method", ""), headers):
                    await _Preflight(headers)(scope, receive, sending)
                    return
                is_file = self._page_folder is not None and scope["path"].startswith(self._page_folder)
                is_open = scope["type"] == "http" and (
                    is_file or scope["path"] in self._open_paths or scope["path"].startswith(self._open_folders)
                )
                state["origin"] = origin
                if scope["type"] == "http" and scope["path"].startswith(self._bare_folders):
                    caller = self._gate.stranger(scope)
                else:
                    caller = await self._gate.enter(scope, headers, origin=origin, is_open=is_open)
                state["caller"] = caller
                state["challenge"] = self._gate.challenge(scope)
                actor = caller.user.id
                if not is_file:
                    caller.take_request()
                    counted.enter_context(caller.request())
                arrival = arrival_of(scope)
                if arrival is not None and not caller.is_nobody:  # `http_protocol` no longer counts it as a stranger
                    arrival.admit()
            except AgenticRagError as exc:
                action = scope.get("method", "WS")
                if is_preflight(action, headers):
                    hint = (b"access-control-allow-origin", ORIGIN_HINT)
                await self._gate.note_refusal(exc, actor, action, scope["path"], source_of(scope), reference)
                answer = refusal(exc, reference, path=scope["path"], challenge=self._gate.challenge(scope))
                await send_refusal(answer, scope, receive, sending)
                return
            try:
                with acting_for(caller.user.id):
                    await self.app(scope, receive, sending)
            except Exception as exc:
                # After the first byte no error answer is possible: uvicorn cuts the connection.
                if started or scope["type"] == "websocket":
                    log.error("request %s failed", reference, exc_info=exc)
                    raise
                await send_refusal(failure(exc, reference, scope["path"]), scope, receive, sending)


class _Preflight(Response):
    """The answer to a preflight request for a listed origin; no rights are checked."""

    def __init__(self, headers: Headers) -> None:
        super().__init__(status_code=204)
        self.raw_headers += preflight_fields(headers)


def _reference_of(headers: Headers) -> str:
    """Return the id of a request: the client's if it is valid, else a new one."""
    ids = headers.getlist("x-request-id")
    return ids[0] if len(ids) == 1 and _REFERENCE.fullmatch(ids[0]) else new_id("req")


def _complete(headers: Iterable[Field], reference: str, origin: str, *, sharing: bool) -> list[Field]:
    """Return an answer's header fields with the common ones. ``origin`` is the listed origin that asked."""
    own = [*headers, (b"x-request-id", reference.encode())]
    if origin:
        own += shared_fields(origin, own)
    if sharing:
        own.append(VARY)
    names = {name for name, _ in own}
    return [*own, *(field for field in HEADERS if field[0] not in names)]


def _address_of(end: Sequence[Any]) -> Address:
    """Return one end of a connection. Some servers (granian) report its port as text."""
    return str(end[0]), int(end[1])
