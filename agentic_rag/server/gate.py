"""Who comes in: from a request's credentials to the caller that its route sees.

Owns the credentials (``Authorization: Bearer``, or on a WebSocket a ticket offered as subprotocol), the loads of the
keys, what is open with each, and the audit row of a refusal. Knows no route.

A credential that is shown has to be true, also where none is needed: a revoked key must not become the local
operator's. None is ever taken from the query string, which proxies log and browsers keep.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qsl

import anyio
from starlette.datastructures import Headers
from starlette.types import Scope

from agentic_rag.access.auditing import AuditLog, place_of, tells
from agentic_rag.access.keys import PREFIX, Access, Entrant
from agentic_rag.access.refusals import Refusal
from agentic_rag.access.users import ANONYMOUS, LOCAL, User
from agentic_rag.errors import AgenticRagError, Unauthenticated
from agentic_rag.server.hosts import Hosts
from agentic_rag.server.limits import Limits, Load
from agentic_rag.server.rules import OPEN_PATHS
from agentic_rag.server.tickets import Tickets

TICKET_PROTOCOL = "ticket."
"""Prefix of the subprotocol that carries a ticket."""
CREDENTIAL_NAMES = frozenset(
    {"token", "access_token", "api_key", "apikey", "api-key", "key", "ticket", "auth", "authorization", "bearer"}
)
"""Query parameters in which clients of other servers send what belongs into a header."""


class Caller:
    """Whoever sends a request or holds a connection, and what he may still take of the server."""

    __slots__ = ("_gate", "entrant", "load", "source")

    def __init__(self, entrant: Entrant, source: str = "", gate: "Gate | None" = None, load: Load | None = None):
        self.entrant = entrant
        self.source = source
        self.load = load
        self._gate = gate

    @property
    def user(self) -> User:
        return self.entrant.user

    def take_request(self) -> None:
        """Count a request or a frame.

        Raises:
            RateLimited: there were too many with this key.
        """
        if self.load is not None:
            self.load.request(time.monotonic())

    def take_message(self) -> None:
        """Count a message.

        Raises:
            RateLimited: there were too many with this key.
        """
        if self.load is not None:
            self.load.message(time.monotonic())

    def check_connections(self) -> None:
        """Check that one more connection may be held.

        Raises:
            RateLimited: there are too many with this key.
        """
        if self.load is not None:
            self.load.check_connections()

    def check_subscriptions(self) -> None:
        """Check that one more conversation may be followed.

        Raises:
            RateLimited: there are too many with this key.
        """
        if self.load is not None:
            self.load.check_subscriptions()

    def count_subscriptions(self, change: int) -> None:
        """Count conversations that a socket begins or ceases to follow."""
        if self.load is not None:
            self.load.subscriptions += change

    @contextmanager
    def connection(self, scope: anyio.CancelScope) -> Iterator[None]:
        """Hold a connection inside the block; ``scope`` is cancelled when the key is revoked."""
        if self._gate is None or self.load is None:
            yield
            return
        with self._gate.held(self, scope):
            yield

    async def refused(self, error: AgenticRagError, action: str, target: str, request_id: str = "") -> None:
        """Tell the audit log of a refusal that belongs there."""
        if self._gate is not None:
            await self._gate.refused(error, self.user.id, action, target, self.source, request_id)


NOBODY = Caller(Entrant(User(ANONYMOUS), None))
"""Who asks what is answered to everybody."""


class Gate:
    """The one way in. Without ``access`` everybody is the local user, who is on this machine."""

    def __init__(
        self,
        access: Access | None = None,
        audit: AuditLog | None = None,
        *,
        hosts: Hosts | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._access = access
        self._audit = audit
        self._hosts = hosts or Hosts()
        self._limits = limits or Limits()
        self._tickets = Tickets()
        self._loads: dict[str, Load] = {}
        self._open: defaultdict[str, set[anyio.CancelScope]] = defaultdict(set)
        if access is not None:
            access.on_revoked.append(self._revoked)

    def enter(self, scope: Scope, headers: Headers) -> Caller:
        """Return who sends a request.

        Raises:
            Forbidden: the request is meant for another server, or comes from another site's page.
            Unauthenticated: a key is needed, or what was shown is none.
        """
        self._hosts.check(headers)
        if self._access is None:
            return Caller(Entrant(LOCAL, None))
        _check_query(scope)
        entrant = self._entrant(scope, headers)
        if entrant is None:
            if self._access.required and scope["path"] in OPEN_PATHS and scope["type"] == "http":
                return NOBODY
            if self._access.required:
                raise Unauthenticated
            entrant = Entrant(LOCAL, None)
        return Caller(entrant, source_of(scope), self, self._load(entrant.key_id))

    def _entrant(self, scope: Scope, headers: Headers) -> Entrant | None:
        """Return whom the credentials stand for, None when none were shown.

        Raises:
            Unauthenticated: they stand for nobody.
        """
        assert self._access is not None
        shown = False
        found: Entrant | None = None
        for value in headers.getlist("authorization"):
            scheme, _, secret = value.partition(" ")
            if scheme.lower() == "bearer":
                found = self._access.entrant(secret.strip()) if not shown else None
                shown = True
        for protocol in scope.get("subprotocols", ()):
            if protocol.startswith(TICKET_PROTOCOL):
                of_ticket = self._tickets.redeem(time.monotonic(), protocol.removeprefix(TICKET_PROTOCOL))
                found = of_ticket if not shown else None  # one credential: with two, which of them was meant?
                shown = True
        if shown and found is None:
            raise Unauthenticated("This API key or ticket is not known, was revoked, or was used before.")
        return found

    def _load(self, key_id: str | None) -> Load | None:
        if key_id is None:
            return None
        load = self._loads.get(key_id)
        if load is None:
            load = self._loads[key_id] = Load(self._limits)
        return load

    def ticket(self, caller: Caller) -> str:
        """Return a ticket that stands for the caller once."""
        return self._tickets.issue(time.monotonic(), caller.entrant)

    @contextmanager
    def held(self, caller: Caller, scope: anyio.CancelScope) -> Iterator[None]:
        """Count a connection and remember how to end it; a key that was revoked meanwhile ends it at once."""
        key_id, load = caller.entrant.key_id, caller.load
        assert key_id is not None
        assert load is not None
        if self._loads.get(key_id) is not load:
            scope.cancel()
        held = self._open[key_id]
        held.add(scope)
        load.connections += 1
        try:
            yield
        finally:
            load.connections -= 1
            held.discard(scope)
            if not held:
                self._open.pop(key_id, None)

    async def refused(
        self, error: AgenticRagError, actor: str, action: str, target: str, source: str, request_id: str = ""
    ) -> None:
        """Tell the audit log of a refusal that belongs there."""
        if self._audit is not None and tells(error):
            refusal = Refusal(actor, action, target, error.code, source, place_of(error))
            await self._audit.refused(refusal, request_id)

    def _revoked(self, key_id: str) -> None:
        self._loads.pop(key_id, None)
        self._tickets.revoke(key_id)
        for scope in self._open.pop(key_id, set()):
            scope.cancel()


def source_of(scope: Scope) -> str:
    """Return the address a request came from."""
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
