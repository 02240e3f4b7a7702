"""REST routes for signing in with a name and a key, renewing a sign-in, and signing out.

This module defines the forms and answers, and limits the failed attempts of one address. `routes.oidc` has the routes
for OpenID providers.
"""

import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from pydantic import Field
from starlette.requests import Request

from agentic_rag.access.keys import KEYLESS
from agentic_rag.access.logins import Logins
from agentic_rag.access.users import User
from agentic_rag.base.errors import Forbidden, RateLimited, Unauthenticated
from agentic_rag.base.forms import Form
from agentic_rag.base.token_bucket import TokenBucket
from agentic_rag.server.auth import Caller, Gate, KeylessRefusal, source_of
from agentic_rag.server.cookies import PROOF, SIGN_IN, check_proof, drop_cookie, make_cookie, set_cookie
from agentic_rag.server.hosts import is_loopback
from agentic_rag.server.replies import answer
from agentic_rag.server.routing import route
from agentic_rag.store.clock import seconds_until
from agentic_rag.store.logins import LoginRecord
from agentic_rag.store.users import Grant

AUTH = "/api/auth"

WRONG_AT_ONCE: Final = 10.0
WRONG_A_SECOND: Final = 0.1
MAX_SOURCES: Final = 10_000
"""Maximum number of addresses whose attempts are counted."""


class NewLogin(Form):
    """A user's name and one of that user's keys."""

    name: str = Field(max_length=200)
    key: str = Field(max_length=200)


class TicketLogin(Form):
    """A ticket, such as the one in the address that ``agentic-rag open`` prints."""

    ticket: str = Field(max_length=200)


@answer()
class Signed:
    """A browser's sign-in. Renewing it moves ``expiresAt``, at most to ``endsAt``."""

    name: str
    expires_at: str
    ends_at: str


@answer()
class Presence:
    """The caller, and how a caller can sign in. ``name`` is null if the server does not know the caller.

    ``signedIn`` is the sign-in of the request's cookie. ``provider``: whether an OpenID provider signs people in.
    ``needsKey``: whether every caller needs a key or a sign-in. ``grants``: the user's grant in each domain
    (``member``, ``author`` or ``admin``); empty for operators, who may do everything. ``refusal``: why a caller without
    a key or sign-in is refused; null for a known caller. ``openCommand``: the command that signs a browser in, for
    callers on the server's own machine.
    """

    name: str | None
    operator: bool
    signed_in: Signed | None
    provider: bool
    needs_key: bool
    grants: Mapping[str, Grant]
    refusal: KeylessRefusal | None
    open_command: str | None


@answer()
class SignedOut:
    """Result of signing out.

    ``logoutUrl`` is the address that ends the session at the OpenID provider, if the sign-in came from there.
    """

    logout_url: str | None


class LogoutRedirect:
    """The logout address of a provider. This base class stands for servers without an OpenID provider."""

    present = False

    async def logout_url(self) -> str | None:
        """Return the address that ends a browser's session at the provider, or None."""
        return None


class LoginAttempts:
    """A rate limit for attempts of each address, with a burst and a rate a second. The current time is an argument."""

    def __init__(self, a_second: float, at_once: float) -> None:
        self._a_second = a_second
        self._at_once = at_once
        self._sources: OrderedDict[str, TokenBucket] = OrderedDict()

    def check(self, now: float, source: str) -> None:
        """Check that an address may try again.

        Raises:
            RateLimited: the address tried too often.
        """
        bucket = self._sources.get(source)
        owed = 0.0 if bucket is None else bucket.spend(now, 0)
        if owed > 0:
            raise RateLimited(owed)

    def count(self, now: float, source: str) -> None:
        """Count an attempt of an address.

        If too many addresses are stored, the one with the oldest attempt is dropped.
        """
        # Popped and stored again, so that the address with the oldest attempt comes first.
        bucket = self._sources.pop(source, None) or TokenBucket(self._a_second, self._at_once)
        bucket.spend(now, 1)
        self._sources[source] = bucket
        if len(self._sources) > MAX_SOURCES:
            self._sources.popitem(last=False)


class LoginRoutes:
    """Signing in and out."""

    def __init__(self, logins: Logins, gate: Gate, departures: LogoutRedirect | None = None) -> None:
        self._logins = logins
        self._gate = gate
        self._departures = departures or LogoutRedirect()
        self._wrong = LoginAttempts(WRONG_A_SECOND, WRONG_AT_ONCE)

    @route("GET", AUTH, allow="anyone")
    async def presence(self, request: Request, user: User, caller: Caller) -> Presence:
        """Show the caller, and how to sign in."""
        signed = None if caller.login is None else _show_login(caller.login)
        name = None if caller.is_nobody else user.id
        provider, needs_key = self._departures.present, self._gate.needs_key
        refusal = self._gate.keyless_refusal(request.scope) if caller.is_nobody else None
        command = self._gate.open_command if is_loopback(source_of(request.scope)) else None
        return Presence(name, user.operator, signed, provider, needs_key, _grants_of(user), refusal, command)

    @route("POST", f"{AUTH}/sign-in", allow="anyone", audited=False, status=201)
    async def begin(self, request: Request, body: NewLogin) -> Signed:
        """Sign this browser in and set its cookie. Needs the header `X-Requested-With`."""
        _check_own_page(request)
        source = source_of(request.scope)
        self._wrong.check(time.monotonic(), source)
        try:
            login, token = await self._logins.begin(body.name, body.key)
        except Unauthenticated:
            self._wrong.count(time.monotonic(), source)
            raise
        self._keep(request, token, login)
        return _show_login(login)

    @route("POST", f"{AUTH}/ticket", allow="anyone", audited=False, status=201)
    async def begin_with_ticket(self, request: Request, body: TicketLogin) -> Signed:
        """Sign this browser in with a ticket instead of a key. Needs the header `X-Requested-With`."""
        _check_own_page(request)
        source = source_of(request.scope)
        self._wrong.check(time.monotonic(), source)
        entrant = await self._gate.redeem_ticket(body.ticket)
        if entrant is None:
            self._wrong.count(time.monotonic(), source)
            raise Unauthenticated("This ticket is not known, was used before, or is too old.")
        login, token = await self._logins.begin_with(entrant)
        self._keep(request, token, login)
        return _show_login(login)

    @route("POST", f"{AUTH}/renew", allow="user", audited=False)
    async def renew(self, request: Request, caller: Caller) -> Signed:
        """Extend this browser's sign-in."""
        if caller.login is None:
            raise Unauthenticated("This request shows no cookie of a browser that is signed in.")
        renewed = await self._logins.renew(caller.login)
        self._keep(request, self._gate.cookie_of(request.scope) or "", renewed)
        return _show_login(renewed)

    @route("POST", f"{AUTH}/sign-out", allow="user", audited=False)
    async def end(self, request: Request, caller: Caller) -> SignedOut:
        """Sign this browser out. Its open sockets and streams end at once."""
        if caller.login is None:
            raise Unauthenticated("This request shows no cookie of a browser that is signed in.")
        await self._logins.end(caller.login)
        set_cookie(request.scope, drop_cookie(SIGN_IN, secure=self._gate.is_secure(request.scope)))
        # A sign-in with a key has no session at the provider.
        return SignedOut(None if caller.login.key_id else await self._departures.logout_url())

    def _keep(self, request: Request, token: str, login: LoginRecord) -> None:
        keep_cookie(self._gate, request, token, login)


def keep_cookie(gate: Gate, request: Request, token: str, login: LoginRecord) -> None:
    """Set the cookie of a sign-in on the answer to a request."""
    seconds = seconds_until(login.expires_at)
    set_cookie(request.scope, make_cookie(SIGN_IN, token, seconds, secure=gate.is_secure(request.scope)))


async def sign_in_local_browser(gate: Gate, logins: Logins, request: Request, caller: Caller) -> None:
    """Sign in the local user's browser before an action ends access without a key. The answer sets the cookie.

    Nothing happens for other callers, and for programs other than our page, which do not send `X-Requested-With`.
    """
    if caller.entrant.key_id == KEYLESS and PROOF in request.headers and not request.state.origin:
        login, token = await logins.begin_with(caller.entrant)
        keep_cookie(gate, request, token, login)


def _check_own_page(request: Request) -> None:
    """Check that our own page sends the sign-in request.

    Raises:
        Forbidden: a page of a listed other origin sends the request and its browser could never use the cookie, or the
            request lacks the proof that a page sends it.
    """
    if request.state.origin:
        raise Forbidden("A sign-in is for this server's own page. Pages of other origins show a key.")
    check_proof(request.scope, request.headers)


def _grants_of(user: User) -> dict[str, Grant]:
    # From the lowest grant to the highest, which replaces those before it.
    grants = dict.fromkeys(sorted(user.domains), Grant.MEMBER)
    return grants | dict.fromkeys(user.authored, Grant.AUTHOR) | dict.fromkeys(user.administered, Grant.ADMIN)


def _show_login(login: LoginRecord) -> Signed:
    return Signed(login.user_id, login.expires_at, login.ends_at)
