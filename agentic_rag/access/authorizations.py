"""Authorizations of programs at the MCP door: a person's decision, codes, tokens, rotation and revocation.

The tokens are opaque random texts. A token opens one domain with its scopes, as long as the person who decided sees the
domain. A refresh token is exchanged once. If a code or a refresh token is presented again, one of its two holders stole
it, so the whole authorization ends (RFC 9700 4.14.2). Knows no HTTP.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.keys import PREFIX, Access, Entrant, sha256_of
from agentic_rag.access.oauth_clients import CLIENT_DAYS, OAuthClient
from agentic_rag.access.users import LOCAL, User
from agentic_rag.base.errors import Forbidden, InvalidInput, NotFound
from agentic_rag.store import authorizations
from agentic_rag.store.audit import AuditOutcome, Entry
from agentic_rag.store.authorizations import (
    AuthorizationRecord,
    CodeRecord,
    RequestRecord,
    TokenKind,
    TokenRecord,
)
from agentic_rag.store.clock import later, new_id, now, seconds_of, seconds_until, time_text
from agentic_rag.store.database import Database
from agentic_rag.tools.system import READ_DOCUMENT, SEARCH

SCOPES: Final = ("search", "ask", "remember")
"""The scopes of the MCP door, in the order in which they are shown."""
TOOL_SCOPES: Final = {
    SEARCH.name: "search",
    READ_DOCUMENT.name: "search",
    "ask": "ask",
    "remember": "remember",
}
"""The door's tools, and the scope that a token needs for each."""

REQUEST_SECONDS: Final = 600.0
"""Time limit for a person's decision."""
CODE_SECONDS: Final = 60.0
ACCESS_SECONDS: Final = 3600.0
REFRESH_SECONDS: Final = 30 * 86_400.0
AUTHORIZATION_SECONDS: Final = 90 * 86_400.0
"""After so many seconds, the person decides again, however often the tokens were renewed."""
MAX_PENDING: Final = 10_000
MAX_OWN: Final = 100
"""Maximum number of authorizations of a user; beyond that, the oldest ends."""
TOKEN_PREFIXES: Final = {TokenKind.ACCESS: f"{PREFIX}at_", TokenKind.REFRESH: f"{PREFIX}rt_"}
ENDED: Final = "This code or refresh token is not known, was used before, or has expired."
_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class DoorPlace:
    """The MCP door of one domain. ``resource`` is its address as the client sees it: the audience of its tokens."""

    domain_id: str
    resource: str


@dataclass(frozen=True, slots=True)
class AuthorizationRequest:
    """A checked request of a client. ``issuer`` and ``resource`` are our addresses as the client sees them."""

    client: OAuthClient
    domain_id: str
    redirect_uri: str
    issuer: str
    resource: str
    scopes: tuple[str, ...]
    state: str | None
    challenge: str


@dataclass(frozen=True, slots=True)
class IssuedTokens:
    """New tokens of an authorization. ``seconds``: the validity of the access token."""

    access: str
    refresh: str
    scopes: tuple[str, ...]
    seconds: float


class GrantNotValid(Exception):
    """A code or a refresh token is unknown, used, expired or of another client (`invalid_grant`)."""


class Authorizations:
    """The authorizations of a database. ``access``: the accepted credentials."""

    def __init__(self, database: Database, access: Access) -> None:
        self._db = database
        self._access = access

    async def begin(self, request: AuthorizationRequest) -> str:
        """Store a client's request. Returns its secret name, under which a person decides."""
        secret = secrets.token_urlsafe(_BYTES)
        record = RequestRecord(
            id=sha256_of(secret),
            domain_id=request.domain_id,
            client_id=request.client.id,
            client_name=request.client.name,
            redirect_uri=request.redirect_uri,
            issuer=request.issuer,
            resource=request.resource,
            scopes=request.scopes,
            state=request.state,
            challenge=request.challenge,
            expires_at=later(REQUEST_SECONDS),
        )
        await self._db.write(lambda conn: authorizations.begin(conn, record, now(), MAX_PENDING), durable=True)
        return secret

    async def pending(self, user: User, secret: str) -> RequestRecord:
        """Return a request that waits for a decision about a domain that the user sees.

        Raises:
            NotFound: there is no such request, it was decided or has expired, or the user does not see its domain.
        """
        request = await self._db.read(partial(authorizations.request, sha256=sha256_of(secret)))
        if request is None or request.expires_at <= now():
            raise NotFound("request", secret[:100])
        if not user.sees(request.domain_id):
            raise NotFound("domain", request.domain_id, hidden=True)
        return request

    async def approve(self, user: User, secret: str, scopes: Sequence[str]) -> tuple[RequestRecord, str]:
        """Authorize the client of a request for some of the scopes that it asks for. Returns the request and a code.

        Raises:
            NotFound: see `pending`.
            Forbidden: the local operator is no user whose tokens could be listed and revoked.
            InvalidInput: no scope is chosen, or one that was not asked for.
        """
        request = await self.pending(user, secret)
        if user == LOCAL:  # a user may have this name, too, and comes in with a key
            raise Forbidden("Only a user can authorize a program. Create one: agentic-rag keys create --user NAME.")
        chosen = tuple(scope for scope in request.scopes if scope in scopes)
        # Fewer chosen than named: the person named a scope that the client did not ask for.
        if not chosen or len(chosen) != len(set(scopes)):
            raise InvalidInput("scopes", f"choose from {', '.join(request.scopes)}.")
        code, at = secrets.token_urlsafe(_BYTES), now()
        record = AuthorizationRecord(
            id=new_id("authz"),
            user_id=user.id,
            domain_id=request.domain_id,
            key_id=user.key_id,
            client_id=request.client_id,
            client_name=request.client_name,
            redirect_uri=request.redirect_uri,
            resource=request.resource,
            scopes=chosen,
            created_at=at,
            used_at=None,
            expires_at=later(CODE_SECONDS),  # until the code is exchanged; then as long as its tokens
        )
        code_record = CodeRecord(
            id=sha256_of(code),
            authorization_id=record.id,
            domain_id=record.domain_id,
            challenge=request.challenge,
            expires_at=record.expires_at,
            used=False,
        )
        entry = change(
            "authorization.create",
            record.id,
            domainId=record.domain_id,
            clientId=record.client_id,
            scopes=list(chosen),
        )

        def store(conn: Connection) -> None:
            # This deletes the request, so of two decisions at the same time only one finds it.
            if not authorizations.take_request(conn, request.id):
                raise NotFound("request", secret[:100])
            own = authorizations.active(conn, at, user.id)
            for authorization in own[: max(0, len(own) - MAX_OWN + 1)]:
                authorizations.end(conn, authorization.id)
            authorizations.insert(conn, record, code_record)
            audit(conn, entry)

        await self._db.write(store, durable=True)
        await self._access.apply_changes()
        return request, code

    async def decline(self, user: User, secret: str) -> RequestRecord:
        """Remove a request. Returns it.

        Raises:
            NotFound: see `pending`.
        """
        request = await self.pending(user, secret)
        entry = change("authorization.decline", request.domain_id, clientId=request.client_id)

        def store(conn: Connection) -> None:
            if authorizations.take_request(conn, request.id):
                audit(conn, entry)

        await self._db.write(store, durable=True)
        return request

    async def find_code(self, client_id: str, code: str) -> tuple[CodeRecord, AuthorizationRecord] | None:
        """Return an unused code of a client with its authorization. A used code ends its authorization."""
        code_record = await self._db.read(partial(authorizations.code, sha256=sha256_of(code)))
        if code_record is None:
            return None
        record = await self._db.read(partial(authorizations.get, authorization_id=code_record.authorization_id))
        if record is None or record.client_id != client_id:
            return None
        if code_record.used:
            await self._end_reused(record)
            return None
        return code_record, record

    async def exchange_code(self, client_id: str, code_sha256: str) -> IssuedTokens:
        """Exchange a code for tokens.

        Raises:
            GrantNotValid: the code was used before or has expired, or its authorization has ended.
        """
        find = partial(authorizations.code, sha256=code_sha256)
        return await self._exchange(find, authorizations.use_code, client_id, None)

    async def find_refresh(self, client_id: str, token: str) -> tuple[TokenRecord, AuthorizationRecord] | None:
        """Return an unused refresh token of a client with its authorization. A used one ends its authorization."""
        token_record = await self._db.read(partial(authorizations.token, sha256=sha256_of(token)))
        if token_record is None or token_record.kind is not TokenKind.REFRESH:
            return None
        record = await self._db.read(partial(authorizations.get, authorization_id=token_record.authorization_id))
        if record is None or record.client_id != client_id:
            return None
        if token_record.used:
            await self._end_reused(record)
            return None
        return token_record, record

    async def exchange_refresh(self, client_id: str, token: str, scopes: Sequence[str]) -> IssuedTokens:
        """Exchange a refresh token for new tokens; the access token has ``scopes``.

        Raises:
            GrantNotValid: the token was used before or has expired, or its authorization has ended.
        """
        find = partial(authorizations.token, sha256=sha256_of(token))
        return await self._exchange(find, authorizations.use_token, client_id, scopes)

    async def check(self, token: str, place: DoorPlace) -> Entrant | None:
        """Return the entrant of an access token at a door; None if the token does not open it."""
        if not token.startswith(TOKEN_PREFIXES[TokenKind.ACCESS]):
            return None
        token_record = await self._db.read(partial(authorizations.token, sha256=sha256_of(token)))
        if (
            token_record is None
            or token_record.kind is not TokenKind.ACCESS
            or token_record.domain_id != place.domain_id
        ):
            return None
        seconds = seconds_until(token_record.expires_at)
        entrant = await self._access.entrant_of_authorization(token_record.authorization_id) if seconds > 0 else None
        return None if entrant is None else replace(entrant, seconds=seconds, scopes=frozenset(token_record.scopes))

    async def list_of(self, user_id: str) -> list[AuthorizationRecord]:
        """Return the authorizations of a user whose tokens were fetched, oldest first."""
        active = await self._db.read(lambda conn: authorizations.active(conn, now(), user_id))
        return [authorization for authorization in active if authorization.used_at is not None]

    async def revoke(self, user: User, authorization_id: str) -> None:
        """End an authorization of a user, or of anyone for an operator. Its tokens and open requests end at once.

        Raises:
            NotFound: the user has no such authorization.
        """
        entry = change("authorization.revoke", authorization_id)

        def store(conn: Connection) -> None:
            authorization = authorizations.get(conn, authorization_id)
            if authorization is None or not (user.operator or authorization.user_id == user.id):
                raise NotFound("authorization", authorization_id)
            authorizations.end(conn, authorization_id)
            audit(conn, entry)

        await self._db.write(store, durable=True)
        await self._end_here(authorization_id)

    async def revoke_token(self, client_id: str, token: str) -> None:
        """End the authorization of a client's token (RFC 7009). An unknown token is ignored."""
        sha256 = sha256_of(token)

        def store(conn: Connection) -> str | None:
            token_record = authorizations.token(conn, sha256)
            record = None if token_record is None else authorizations.get(conn, token_record.authorization_id)
            if record is None or record.client_id != client_id:
                return None
            authorizations.end(conn, record.id)
            audit(conn, Entry(record.user_id, "authorization.revoke", record.id, details={"by": "client"}))
            return record.id

        ended = await self._db.write(store, durable=True)
        if ended is not None:
            await self._end_here(ended)

    async def prune(self) -> None:
        """Delete expired requests, codes and tokens, and unused registered clients."""
        before = later(-CLIENT_DAYS * 86_400.0)
        await self._db.write(lambda conn: authorizations.end_expired(conn, now(), before))

    async def _exchange(
        self,
        find: Callable[[Connection], CodeRecord | TokenRecord | None],
        use: Callable[[Connection, str], bool],
        client_id: str,
        scopes: Sequence[str] | None,
    ) -> IssuedTokens:
        """Mark a code or a refresh token as used and issue tokens for it, in one transaction."""
        access, refresh = (prefix + secrets.token_urlsafe(_BYTES) for prefix in TOKEN_PREFIXES.values())

        def store(conn: Connection) -> tuple[AuthorizationRecord, tuple[str, ...]]:
            credential = find(conn)
            record = None if credential is None else authorizations.get(conn, credential.authorization_id)
            if credential is None or record is None or record.client_id != client_id or credential.expires_at <= now():
                raise GrantNotValid(ENDED)
            if not use(conn, credential.id):
                return record, ()  # not raised: that would roll back, and the reuse has to end the authorization
            granted = record.scopes if scopes is None else tuple(scope for scope in record.scopes if scope in scopes)
            end = time_text(seconds_of(record.created_at) + AUTHORIZATION_SECONDS)
            new = [
                _token(record, TokenKind.ACCESS, access, granted, min(later(ACCESS_SECONDS), end)),
                _token(record, TokenKind.REFRESH, refresh, record.scopes, min(later(REFRESH_SECONDS), end)),
            ]
            authorizations.issue(conn, record.id, new, now())
            return record, granted

        record, granted = await self._db.write(store, durable=True)
        if not granted:  # two exchanges at the same time, and the other one was first
            await self._end_reused(record)
            raise GrantNotValid(ENDED)
        await self._access.apply_changes()
        # The rights may have changed since the person decided.
        if await self._access.entrant_of_authorization(record.id) is None:
            raise GrantNotValid("The person who authorized this client may not use the domain any more.")
        return IssuedTokens(access, refresh, granted, ACCESS_SECONDS)

    async def _end_reused(self, record: AuthorizationRecord) -> None:
        """End an authorization whose code or refresh token came twice: one of the two senders may have stolen it.

        RFC 6749 (4.1.2) asks for this for codes, RFC 9700 (4.14.2) for rotated refresh tokens.
        """
        details = {"domainId": record.domain_id, "clientId": record.client_id}
        entry = Entry(record.user_id, "authorization.reuse", record.id, AuditOutcome.DENIED, details)

        def store(conn: Connection) -> None:
            if authorizations.end(conn, record.id):
                audit(conn, entry)

        await self._db.write(store, durable=True)
        await self._end_here(record.id)

    async def _end_here(self, authorization_id: str) -> None:
        self._access.drop(authorization_ids=(authorization_id,))
        await self._access.apply_changes()


def _token(
    record: AuthorizationRecord, kind: TokenKind, value: str, scopes: tuple[str, ...], expires_at: str
) -> TokenRecord:
    return TokenRecord(
        id=sha256_of(value),
        authorization_id=record.id,
        domain_id=record.domain_id,
        kind=kind,
        scopes=scopes,
        expires_at=expires_at,
        used=False,
    )
