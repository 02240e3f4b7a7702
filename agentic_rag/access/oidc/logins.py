"""Sign-in at an OpenID provider: browsers by authorization code, API clients by token.

This module owns the sequence of steps. A pending sign-in can be completed once, within ten minutes, by the browser that
began it. The groups in the provider's token determine the user's rights from then on.
"""

import hmac
from dataclasses import dataclass, replace
from typing import Final

from agentic_rag.access.authorizations import SCOPES, DoorPlace
from agentic_rag.access.keys import Access, Entrant, sha256_of
from agentic_rag.access.logins import Logins
from agentic_rag.access.oidc.claims import Claims, Expected, groups_in, text_in
from agentic_rag.access.oidc.mapping import GroupGrants
from agentic_rag.access.oidc.tokens import OidcProvider, ProviderClient, new_secret, unavailable
from agentic_rag.access.people import MAX_NAME, People, Provided
from agentic_rag.access.rights import narrow
from agentic_rag.base.errors import Forbidden, InvalidInput, ProviderUnavailable, Unauthenticated
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.directory.document_labels import MAX_GROUP_CHARACTERS
from agentic_rag.store import logins
from agentic_rag.store.clock import later, now, seconds_until_epoch
from agentic_rag.store.database import Database
from agentic_rag.store.logins import BegunRecord, LoginRecord
from agentic_rag.store.users import UserRecord, UserState

BEGUN_SECONDS: Final = 600.0
"""Seconds within which a browser must return from the provider."""
MAX_BEGUN: Final = 10_000
"""Maximum number of pending sign-ins; beyond that the oldest is removed."""
MAX_PATH: Final = 1_000
OTHER_BROWSER: Final = "This sign-in was not begun in this browser, was ended before, or took longer than ten minutes."


@dataclass(frozen=True, slots=True)
class StartedSignIn:
    """A sign-in that continues at ``url``. ``browser`` is the value of the cookie that binds it to the browser."""

    url: str
    browser: str


@dataclass(frozen=True, slots=True)
class Returned:
    """The parameters of the provider's redirect. ``browser``: the cookie's value; ``error``: its error code."""

    state: str = ""
    code: str = ""
    issuer: str | None = None
    error: str = ""
    browser: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """A completed sign-in: the login record, the token of its cookie, and the path that the browser wanted."""

    login: LoginRecord
    token: str
    return_to: str


class ProviderLogins:
    """Signs in the users of an OpenID provider. ``grants`` maps their groups to rights."""

    def __init__(
        self,
        database: Database,
        access: Access,
        people: People,
        logins: Logins,
        provider: OidcProvider,
        grants: GroupGrants,
    ) -> None:
        self._db = database
        self._access = access
        self._people = people
        self._logins = logins
        self._provider = provider
        self._grants = grants

    async def begin(self, redirect: str, return_to: str) -> StartedSignIn:
        """Begin to sign a browser in. ``redirect``: our address to which the provider sends the browser back.

        Raises:
            InvalidInput: ``return_to`` is not a path of this server.
            ProviderUnavailable: the provider does not answer, or gives an invalid answer.
        """
        if not _is_own_path(return_to):
            raise InvalidInput("returnTo", "a path of this server is expected, beginning with one '/'.")
        state, browser = new_secret(), new_secret()
        begun = BegunRecord(
            id=sha256_of(state),
            browser_sha256=sha256_of(browser),
            nonce=new_secret(),
            verifier=new_secret(),
            return_to=return_to,
            expires_at=later(BEGUN_SECONDS),
        )
        url = await self._provider.authorization_url(redirect, state, begun.nonce, begun.verifier)
        await self._db.write(lambda conn: logins.begin(conn, begun, now(), MAX_BEGUN), durable=True)
        return StartedSignIn(url, browser)

    async def finish(self, redirect: str, returned: Returned) -> Ended:
        """Complete the sign-in of a browser that returns from the provider.

        Raises:
            Unauthenticated: the browser began no such sign-in, or the provider's answer is invalid.
            Forbidden: the user is disabled, or none of the user's groups permits anything.
            ProviderUnavailable: the provider does not answer, or gives an invalid answer.
        """
        begun = await self._use_up(returned)
        # RFC 9207: the answer may name its issuer, which prevents a mix-up of two providers.
        if returned.issuer is not None and returned.issuer != self._provider.client.issuer:
            raise Unauthenticated("The answer is of another issuer.")
        if returned.error or not returned.code:
            raise Unauthenticated("The provider did not sign you in.")
        claims = await self._provider.redeem(returned.code, begun.verifier, redirect, begun.nonce)
        user = await self._user(claims)
        record, token = await self._logins.begin_provided(user.id)
        return Ended(record, token, begun.return_to)

    async def check(self, token: str) -> Entrant | None:
        """Return the entrant of a provider's token presented by an API client.

        Raises:
            Unauthenticated: the token is not accepted.
            Forbidden: the user is disabled, or none of the user's groups permits anything.
            ProviderUnavailable: the provider's keys cannot be fetched.
        """
        claims = await self._provider.read(token, self._provider.client.expectations())
        user = await self._user(claims)
        entrant = self._access.provided_entrant(user.id)
        return None if entrant is None else replace(entrant, seconds=seconds_until_epoch(float(claims["exp"])))

    async def check_at_door(self, token: str, place: DoorPlace) -> Entrant:
        """Return the entrant of a provider's token whose audience is the MCP door of a domain.

        The claims ``scope`` or ``scp`` hold the scopes. Any client of the provider may have fetched the token.

        Raises:
            Unauthenticated, Forbidden, ProviderUnavailable: see `check`.
        """
        expected = Expected(self._provider.client.issuer, place.resource, None)
        claims = await self._provider.read(token, expected)
        user = await self._user(claims)
        entrant = self._access.provided_entrant(user.id)
        if entrant is None:
            raise Unauthenticated("The user of this token is not active.")
        scope_claim = claims.get("scope", claims.get("scp", ""))
        scopes = (
            scope_claim.split()
            if isinstance(scope_claim, str)
            else scope_claim
            if isinstance(scope_claim, list)
            else []
        )
        return replace(
            entrant,
            user=narrow(entrant.user, place.domain_id),
            counted=entrant.key_id or "",
            seconds=seconds_until_epoch(float(claims["exp"])),
            scopes=frozenset(scope for scope in scopes if scope in SCOPES),
        )

    @property
    def client(self) -> ProviderClient:
        """This server's registration at the provider."""
        return self._provider.client

    @property
    def grants(self) -> GroupGrants:
        """The mapping of groups to rights."""
        return self._grants

    async def logout_url(self, back: str) -> str | None:
        """Return the URL at which a browser ends its session at the provider; None if unavailable."""
        try:
            return await self._provider.logout_url(back)
        except ProviderUnavailable:
            return None

    async def _use_up(self, returned: Returned) -> BegunRecord:
        state = sha256_of(returned.state)
        begun = await self._db.read(lambda conn: logins.find_begun(conn, state))
        bound = begun is not None and hmac.compare_digest(begun.browser_sha256, sha256_of(returned.browser))
        if begun is None or not bound or begun.expires_at <= now():
            raise Unauthenticated(OTHER_BROWSER)
        # Two requests may both have found it; only one deletes it.
        if not await self._db.write(lambda conn: logins.take_begun(conn, state), durable=True):
            raise Unauthenticated(OTHER_BROWSER)
        return begun

    async def _user(self, claims: Claims) -> UserRecord:
        """Return the user described by a token, with the current grants of the user's groups."""
        client = self._provider.client
        groups = groups_in(claims, client.groups)
        try:
            rights = self._grants.rights_of(groups)
        except BadConfiguration as exc:
            raise unavailable(str(exc)) from exc
        user = await self._people.take_in(
            Provided(
                subject=f"{client.issuer} {claims['sub']}",  # OpenID Connect: unique only together with the issuer
                name=text_in(claims, client.name, "email"),
                display_name=_one_line(text_in(claims, "name")),
                operator=rights.operator,
                grants=rights.grants,
                groups=tuple(sorted({group for group in groups if _can_be_stored(group)})),
            )
        )
        if user is None or rights.none:
            raise Forbidden("None of your groups may use this server.")
        if user.state is not UserState.ACTIVE:
            raise Forbidden("This user is disabled.")
        return user


def _can_be_stored(group: str) -> bool:
    """Return whether the settings of a domain can name a group. A provider may use any characters."""
    well_formed = "\0" not in group and not any("\ud800" <= char <= "\udfff" for char in group)
    return 0 < len(group) <= MAX_GROUP_CHARACTERS and well_formed


def _is_own_path(path: str) -> bool:
    plain = path.isprintable() and path.isascii() and "\\" not in path and len(path) <= MAX_PATH
    return plain and path.startswith("/") and not path.startswith("//")


def _one_line(text: str) -> str:
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())[:MAX_NAME]


class ProviderDoor:
    """Accepts the provider's tokens for the MCP door, if the operator lets the provider issue them."""

    def __init__(self, logins: ProviderLogins) -> None:
        self._logins = logins

    async def check(self, token: str, place: DoorPlace) -> Entrant | None:
        """Return the entrant of a token for this door; None if it is none.

        Raises:
            Forbidden, ProviderUnavailable: see `ProviderLogins.check`.
        """
        if token.count(".") != 2:
            return None
        try:
            return await self._logins.check_at_door(token, place)
        except Unauthenticated:
            return None  # the token may be one for the API
