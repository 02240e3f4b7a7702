"""Sign-ins at MCP servers over OAuth: begin, complete, renew and revoke them.

The life of an account:

1. A server refuses a request. `SignIns.answer` finds the server's authorization server and stores a pending sign-in.
   The call fails with `SignInNeeded`, which shows a person the address for the browser. A client with its own secret
   needs no person: it gets its token at once.
2. The browser opens `BEGIN`, signs in, and returns to `CALLBACK`, on any process and after any restart. `complete`
   exchanges the code for tokens.
3. `token` gives connections the access token, and renews it before it expires. Concurrent callers share one renewal,
   by a lock in this process and a lease in the store between processes.
4. `revoke`, or an authorization server that refuses a renewal for good, ends the account.

`agentic_rag.tools.oauth` makes the network requests, and the vault seals the secrets. Importing this module loads the
protocol library.
"""

import hashlib
import hmac
import json
import secrets as random
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import anyio
from mcp.client.auth import OAuthFlowError, PKCEParameters
from mcp.client.auth.utils import union_scopes, validate_authorization_response_iss
from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.users import User, acting_for
from agentic_rag.base import failpoints
from agentic_rag.base.errors import NotFound, ServerUnavailable
from agentic_rag.domains.sign_in_secrets import (
    OwnAddress,
    SignInListener,
    account_name,
    client_name,
    forget_account,
    pending_name,
)
from agentic_rag.domains.token_storage import (
    SignInAccount,
    TokenStore,
    client_from_json,
    client_to_json,
    resource_from_json,
    resource_to_json,
)
from agentic_rag.domains.vault import Vault
from agentic_rag.store import secrets, sign_ins
from agentic_rag.store.clock import later, new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.sign_ins import AccountRecord, SignInRecord
from agentic_rag.tools.entries.entry import EntryOAuthClient, HttpTarget, OAuthGrant
from agentic_rag.tools.launch.addresses import AddressPolicy
from agentic_rag.tools.launch.spec import LaunchSpec
from agentic_rag.tools.oauth import grants
from agentic_rag.tools.oauth.discovery import Challenge, ProtectedResource, check_for_people, discover
from agentic_rag.tools.oauth.errors import GrantRefused, NoSignIn, SignInNeeded, SignInProblem, SignInSilent
from agentic_rag.tools.oauth.grants import OAuthRegistration, Tokens
from agentic_rag.tools.oauth.web import CheckedWeb

CALLBACK = "/api/oauth/callback"
BEGIN = "/api/oauth/begin"
DOCUMENT = "/client-metadata.json"

OPEN_SECONDS = 600.0
"""Time limit for a person to complete a sign-in."""
LEFT_SECONDS = 60.0
"""Remaining time that an open sign-in needs to be shown again."""
RENEW_SECONDS = 60.0
"""A token is renewed this long before it expires."""
LEASE_SECONDS = 30.0
"""Maximum time for one process to renew a token; longer than a request to a token endpoint may take."""
POLL_SECONDS = 0.1
FRESH_SECONDS = 30.0
"""A client-credentials token that is refused within this time is not requested again."""

STEP_UP_SECONDS, STEP_UPS = 3_600.0, 4
"""Limit of further requests for scopes: the weight that may be used in a time window.

A request for scopes that were asked for before weighs `REPEATED`, because repeating it rarely helps.
"""
REPEATED = 3


class Reaching(Protocol):
    """Provides the current rules for outgoing connections."""

    @property
    def reach(self) -> AddressPolicy:
        """The rules for users' servers."""
        ...


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """The sealed part of an open sign-in; `SignInRecord` is the row."""

    resource: ProtectedResource
    client: OAuthRegistration
    address: str
    """The authorization address for the browser."""
    redirect: str
    """The address to which the browser returns."""
    verifier: str
    """The PKCE verifier, which only the exchange of the code reveals."""
    scope: str
    """The requested scopes."""
    cost: int
    """The weight of a request for more scopes (see `STEP_UPS`); 0: a first sign-in."""

    def to_text(self) -> str:
        """Return the text to seal."""
        texts = {"verifier": self.verifier, "address": self.address, "redirect": self.redirect, "scope": self.scope}
        return json.dumps(
            {**resource_to_json(self.resource), **client_to_json(self.client), **texts, "cost": self.cost}
        )

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "PendingSignIn":
        """Return the sign-in from the unsealed fields of `to_text`."""
        return cls(
            resource_from_json(fields),
            client_from_json(fields),
            fields["address"],
            fields["redirect"],
            fields["verifier"],
            fields["scope"],
            fields["cost"],
        )


@dataclass(frozen=True, slots=True)
class CompletedSignIn:
    """A completed sign-in."""

    server: str
    host: str
    account: str


class SignIns:
    """The sign-ins of all domains. Implements `agentic_rag.tools.oauth.credentials.Accounts`."""

    def __init__(
        self, database: Database, vault: Vault, rules: Reaching, address: OwnAddress, listener: SignInListener
    ) -> None:
        self._db = database
        self._vault = vault
        self._rules = rules
        self._address = address
        self._listener = listener
        self._tokens = TokenStore(database, vault)
        self._locks: WeakValueDictionary[tuple[str, str, str], anyio.Lock] = WeakValueDictionary()

    # -- for connections (`Accounts`) --------------------------------------------------------------------------

    async def token(self, spec: LaunchSpec) -> str | None:
        """See `Accounts.token`."""
        account = await self._tokens.find(spec, _url(spec))
        if account is not None and _ends_within(account.record, RENEW_SECONDS):
            account = await self._renew(spec, account)
        if account is not None:
            return account.access
        waiting = await self._find_pending(spec, "")
        if waiting is not None:
            raise waiting
        return None

    async def newer(self, spec: LaunchSpec, refused: str) -> str | None:
        """See `Accounts.newer`."""
        account = await self._tokens.find(spec, _url(spec))
        if account is not None and account.access == refused:
            account = await self._renew(spec, account)
        return None if account is None or account.access == refused else account.access

    async def answer(self, spec: LaunchSpec, challenge: Challenge) -> None:
        """See `Accounts.answer`."""
        async with self._lock(spec):
            account = await self._tokens.find(spec, _url(spec))
            if account is not None and account.access != challenge.token:
                return  # a newer token exists meanwhile
            requested = ""
            if challenge.more and account is not None:
                _check_step_up(spec, account, challenge)
                requested = account.requested
            # Calls that were refused at the same time wait for this lock. All but the first find the pending sign-in.
            waiting = await self._find_pending(spec, union_scopes(requested, challenge.scope) or "")
            if waiting is not None:
                raise waiting
            try:
                await self._begin(spec, challenge, account)
            except NoSignIn as exc:  # report the server's refusal, not the missing OAuth support
                raise ServerUnavailable(spec.name, challenge.reason or exc.reason) from exc
            except SignInProblem as exc:
                raise ServerUnavailable(spec.name, exc.reason) from exc

    async def _begin(self, spec: LaunchSpec, challenge: Challenge, account: SignInAccount | None) -> None:
        """Get a token without a person, or open a sign-in and raise it.

        Raises:
            SignInNeeded: a person has to sign in.
            SignInProblem: no sign-in is possible.
        """
        oauth = _client_of(spec)
        web = CheckedWeb(self._rules.reach)
        resource = await discover(web, _url(spec), challenge, oauth.issuer if oauth else "")
        # A server that could name another issuer would get the client's secret sent there.
        if oauth is not None and account is not None and account.record.issuer != resource.issuer and not oauth.issuer:
            raise SignInProblem(
                f"the server names {resource.issuer} for its sign-ins now, not {account.record.issuer}; if that is "
                "right, set oauth.issuer in the entry"
            )
        scope = wanted_scope(resource, challenge, oauth)
        if challenge.more and account is not None:
            scope = union_scopes(union_scopes(account.requested, account.record.scope), scope)
        if oauth is not None and _needs_no_person(spec, resource, oauth):
            await self._get_own_token(spec, web, resource, oauth, scope, account)
            return
        check_for_people(resource)
        redirect = self._redirect()
        try:
            client = await self._choose_client(spec, web, resource, oauth, redirect)
        except SignInProblem as exc:
            # Nothing but the address suggested a sign-in. Without a client it is more likely that the server has none.
            if resource.guessed:
                raise NoSignIn(exc.reason) from exc
            raise
        if account is not None and not challenge.more:  # the token is refused and there is no newer one
            await self._db.write(lambda conn: forget_account(conn, account.record))
        cost = _step_up_cost(account, challenge) if challenge.more and account is not None else 0
        raise await self._create_pending(spec, resource, client, redirect, scope or "", cost)

    async def _get_own_token(
        self,
        spec: LaunchSpec,
        web: CheckedWeb,
        resource: ProtectedResource,
        oauth: EntryOAuthClient[str],
        scope: str | None,
        account: SignInAccount | None,
    ) -> None:
        """Get and store a token for the entry's own client, without a person.

        Raises:
            SignInProblem: the authorization server grants none, or the server refuses a token that was just granted.
        """
        if account is not None and account.record.signed_in_at > later(-FRESH_SECONDS):
            raise SignInProblem("it refuses the token that was just granted for it")
        client = grants.configured_client(resource, oauth)
        client = replace(
            client, registration=client.registration.model_copy(update={"grant_types": [OAuthGrant.CLIENT]})
        )
        tokens = await grants.own_tokens(web, resource, client, scope)
        generation = 1 if account is None else account.record.generation + 1
        await self._tokens.store(
            _new_account(spec, resource, tokens, scope or "", "", generation), tokens, resource, client, scope or ""
        )

    async def _choose_client(
        self,
        spec: LaunchSpec,
        web: CheckedWeb,
        resource: ProtectedResource,
        oauth: EntryOAuthClient[str] | None,
        redirect: str,
    ) -> OAuthRegistration:
        """Return the OAuth client: the admin's, the published metadata document's, or a registered one."""
        if oauth is not None:
            return grants.configured_client(resource, oauth)
        described = grants.described_client(resource, self.document_url)
        if described is not None:
            return described
        name = client_name(resource.issuer, spec.name, redirect)
        row = await self._db.read(lambda conn: secrets.get(conn, spec.domain, name))
        registered = None if row is None else self._tokens.unseal(row)
        if registered is not None:
            client = client_from_json(registered)
            ends = client.registration.client_secret_expires_at
            # Seconds since 1970, and 0 for a secret without an end (RFC 7591). It must outlast the sign-in.
            if not ends or ends > time.time() + OPEN_SECONDS:
                return client
        client = await grants.register_client(web, resource, redirect)
        if client.registration.client_secret:
            self._vault.redact.add(spec.domain, f"{spec.name}.oauth", client.registration.client_secret)
        sealed = self._vault.seal_text(spec.domain, name, json.dumps(client_to_json(client)))
        await self._db.write(lambda conn: secrets.put(conn, sealed), durable=True)
        return client

    async def _create_pending(
        self,
        spec: LaunchSpec,
        resource: ProtectedResource,
        client: OAuthRegistration,
        redirect: str,
        scope: str,
        cost: int,
    ) -> SignInNeeded:
        """Store a pending sign-in and return the message for the person."""
        state, pkce, ident = random.token_urlsafe(32), PKCEParameters.generate(), new_id("sgn")
        address = grants.authorization_address(self._rules.reach, resource, client, redirect, scope, state, pkce)
        record = SignInRecord(
            id=ident,
            domain_id=spec.domain,
            server=spec.name,
            user_id=spec.owner,
            url=_url(spec),
            state_hash=_hash(state),
            browser_hash="",
            begun_by="",
            scope=scope,
            step_up=cost > 0,
            expires_at=later(OPEN_SECONDS),
        )
        pending = PendingSignIn(resource, client, address, redirect, pkce.code_verifier, scope, cost)
        sealed = self._vault.seal_text(spec.domain, pending_name(ident), pending.to_text())

        def store(conn: Connection) -> None:
            # Expired sign-ins are removed when a new one begins, so no background job is needed.
            for old in sign_ins.list_ended(conn, now()):
                sign_ins.take(conn, old.id)
                secrets.delete(conn, old.domain_id, [pending_name(old.id)])
            sign_ins.insert(conn, record)
            secrets.put(conn, sealed)

        await self._db.write(store, durable=True)
        return self._describe(record, address)

    def _describe(self, record: SignInRecord, address: str) -> SignInNeeded:
        host = urlsplit(address).hostname or ""
        reason = "it asks for more rights than were granted" if record.step_up else "no account is signed in yet"
        begin = f"{self._address.url}{BEGIN}/{record.id}"
        actor = "owner" if record.user_id else "admin"
        return SignInNeeded(record.server, reason, record.id, address, begin, actor, host, record.expires_at)

    async def _find_pending(self, spec: LaunchSpec, scope: str) -> SignInNeeded | None:
        """Return the message about the pending sign-in of an account, or None if none covers these scopes."""
        owner = spec.domain, spec.name, spec.owner
        records = await self._db.read(lambda conn: sign_ins.open_of(conn, *owner, later(LEFT_SECONDS)))
        for record in records:
            if record.url == _url(spec) and not _lacks(record.scope, scope):
                pending = await self._read_pending(record)
                if pending is not None:
                    return self._describe(record, pending.address)
        return None

    async def _read_pending(self, record: SignInRecord) -> PendingSignIn | None:
        fields = await self._tokens.read(record.domain_id, pending_name(record.id))
        return None if fields is None else PendingSignIn.from_json(fields)

    # -- renewal ------------------------------------------------------------------------------------------------

    async def _renew(self, spec: LaunchSpec, expired: SignInAccount) -> SignInAccount | None:
        """Return the account with a renewed token, or unchanged if only a person can get a new one.

        Returns None if the account was removed and a person has to sign in again.

        Raises:
            ServerUnavailable: the token has expired and could not be renewed now.
        """
        async with self._lock(spec):
            account = await self._tokens.find(spec, _url(spec))
            oauth = _client_of(spec)
            if account is None or account.record.generation != expired.record.generation:
                return account
            has_own_grant = oauth is not None and account.client.registration.grant_types == [OAuthGrant.CLIENT]
            if account.refresh is None and not has_own_grant:
                return account
            record = account.record
            if not await self._db.write(lambda conn: sign_ins.claim(conn, record, now(), later(LEASE_SECONDS))):
                return await self._wait_for_renewal(spec, account)
            # A renewed token that is not stored is lost; each step has its own time limit.
            with anyio.CancelScope(shield=True):
                account = await self._request_newer(spec, account, oauth)
        return account

    async def _request_newer(
        self, spec: LaunchSpec, account: SignInAccount, oauth: EntryOAuthClient[str] | None
    ) -> SignInAccount | None:
        """Request a newer token and store it. Hold the lease. Returns as `_renew`."""
        web, record = CheckedWeb(self._rules.reach), account.record
        client = account.client if oauth is None else grants.configured_client(account.resource, oauth)
        try:
            if account.refresh is None:
                tokens = await grants.own_tokens(web, account.resource, client, account.requested or None)
            else:
                tokens = await grants.refresh_tokens(web, account.resource, client, account.refresh)
        except SignInSilent as exc:
            await self._db.write(lambda conn: sign_ins.release(conn, record))
            if _ends_within(record, 0):
                raise ServerUnavailable(spec.name, exc.reason) from exc
            return account
        except SignInProblem as exc:
            await self._remove_account(record, account, exc)
            return None
        # From here to the commit, a crash loses the token: most servers accept the old one no more.
        failpoints.reached("sign_in.renewed")
        renewed = record.replace(
            scope=tokens.scope or record.scope,
            account=tokens.account or record.account,
            expires_at=None if tokens.seconds is None else later(tokens.seconds),
            generation=record.generation + 1,
            renewing_until=None,
        )
        # A server that sends no new refresh token lets the old one continue (RFC 6749, 6).
        tokens = replace(tokens, refresh=tokens.refresh or account.refresh)
        return await self._tokens.store(renewed, tokens, account.resource, account.client, account.requested)

    async def _remove_account(self, record: AccountRecord, account: SignInAccount, exc: SignInProblem) -> None:
        """Remove an account whose token cannot be renewed, and its client if the issuer no longer knows it."""
        redirects = [str(uri) for uri in account.client.registration.redirect_uris or ()]
        entry = change("mcp.sign-in.end", f"{record.domain_id}/{record.server}", user=record.user_id, reason=exc.reason)

        def forget(conn: Connection) -> None:
            forget_account(conn, record)
            if isinstance(exc, GrantRefused) and exc.error in ("invalid_client", "unauthorized_client"):
                names = [client_name(record.issuer, record.server, redirect) for redirect in redirects]
                secrets.delete(conn, record.domain_id, names)
            audit(conn, entry)

        await self._db.write(forget, durable=True)

    async def _wait_for_renewal(self, spec: LaunchSpec, expired: SignInAccount) -> SignInAccount | None:
        """Wait for a renewal by another process and return its result."""
        failpoints.reached("sign_in.waits")
        # After this time the other process has lost its lease, and the next use of the account renews.
        with anyio.move_on_after(LEASE_SECONDS):
            while True:
                account = await self._tokens.find(spec, _url(spec))
                if account is None or account.record.generation != expired.record.generation:
                    return account
                if account.record.renewing_until is None:
                    break  # the renewal failed
                await anyio.sleep(POLL_SECONDS)
        if _ends_within(expired.record, 0):
            raise ServerUnavailable(spec.name, "its token could not be renewed now")
        return expired

    # -- for people ---------------------------------------------------------------------------------------------

    @property
    def document_url(self) -> str | None:
        """Address of the client metadata document, or None without https."""
        url = self._address.url
        return f"{url}{DOCUMENT}" if url is not None and url.startswith("https://") else None

    def document(self) -> dict[str, Any] | None:
        """Return the client metadata document, or None if it cannot be published."""
        url = self.document_url
        if url is None:
            return None
        metadata = grants.client_metadata(self._redirect()).model_dump(by_alias=True, mode="json", exclude_none=True)
        return {"client_id": url, "client_uri": f"{self._address.url}/", **metadata}

    async def start(self, user: User, ident: str) -> tuple[str, str]:
        """Bind a sign-in to this user's browser. Returns the authorization address and the cookie's value.

        Raises:
            NotFound: there is no such sign-in, it has ended, or it belongs to another user.
        """
        record = await self._db.read(lambda conn: sign_ins.get(conn, ident))
        if record is None or record.expires_at <= now() or not _may_complete(user, record):
            raise NotFound("sign_in", ident, hidden=record is not None)
        pending = await self._read_pending(record)
        if pending is None:
            raise NotFound("sign_in", ident)
        cookie = random.token_urlsafe(32)
        await self._db.write(lambda conn: sign_ins.bind_browser(conn, ident, _hash(cookie), user.id))
        return pending.address, cookie

    async def complete(self, answer: Mapping[str, str], user: User | None, cookie: str) -> CompletedSignIn:
        """Complete a sign-in with an authorization response, once. ``user`` is None for an unknown caller.

        Raises:
            SignInProblem: the state is unknown, expired or bound to another browser, another issuer answered, or access
                was refused.
        """
        state = answer.get("state", "")
        record = await self._db.read(lambda conn: sign_ins.by_state(conn, _hash(state)))
        if record is None or record.expires_at <= now():
            raise SignInProblem("this sign-in is not known here, was completed before, or took too long")
        bound = bool(record.browser_hash) and hmac.compare_digest(_hash(cookie), record.browser_hash)
        if not bound and (user is None or not _may_complete(user, record)):
            raise SignInProblem("another user or another browser started it")
        pending = await self._read_pending(record)

        # Before the request for tokens: a state is valid once, also if that request fails.
        def use_up(conn: Connection) -> bool:
            secrets.delete(conn, record.domain_id, [pending_name(record.id)])
            return sign_ins.take(conn, record.id)

        if not await self._db.write(use_up, durable=True) or pending is None:
            raise SignInProblem("this sign-in was completed before")
        signed_in_by = record.begun_by if bound else user.id if user is not None else ""
        resource, client = pending.resource, pending.client
        code = _code_of(answer, resource)
        web = CheckedWeb(self._rules.reach)
        with anyio.CancelScope(shield=True):  # a code works once, so its answer must not be lost
            try:
                tokens = await grants.exchange_code(web, resource, client, pending.redirect, code, pending.verifier)
            except GrantRefused as exc:
                await self._forget_unknown_client(record, resource, pending.redirect, exc)
                raise
            await self._store_account(record, pending, tokens, signed_in_by)
        await self._listener.signed_in(record.domain_id, record.server, record.user_id)
        return CompletedSignIn(record.server, urlsplit(pending.address).hostname or "", tokens.account)

    async def _store_account(
        self, record: SignInRecord, pending: PendingSignIn, tokens: Tokens, signed_in_by: str
    ) -> None:
        """Store the account of a completed sign-in, which replaces an earlier one. ``signed_in_by``: the user's id."""
        owner = record.domain_id, record.server, record.user_id
        before = await self._db.read(lambda conn: sign_ins.account(conn, *owner))
        account = AccountRecord(
            domain_id=record.domain_id,
            server=record.server,
            user_id=record.user_id,
            url=record.url,
            issuer=pending.resource.issuer,
            account=tokens.account,
            scope=tokens.scope or pending.scope,
            signed_in_by=signed_in_by,
            signed_in_at=now(),
            expires_at=None if tokens.seconds is None else later(tokens.seconds),
            generation=1 if before is None else before.generation + 1,
            renewing_until=None,
            step_ups=0,
            stepped_at=None,
        )
        if before is not None and record.step_up and before.url == record.url:
            recent = before.stepped_at is not None and before.stepped_at > later(-STEP_UP_SECONDS)
            count = (before.step_ups if recent else 0) + pending.cost
            # A new sign-in must not reset the limit: the server could ask for more rights again and again.
            account = account.replace(step_ups=count, stepped_at=before.stepped_at if recent else now())
        with acting_for(signed_in_by):
            entry = change(
                "mcp.sign-in", f"{record.domain_id}/{record.server}", user=record.user_id, issuer=account.issuer
            )
            await self._tokens.store(account, tokens, pending.resource, pending.client, pending.scope, entry)

    async def _forget_unknown_client(
        self, record: SignInRecord, resource: ProtectedResource, redirect: str, exc: GrantRefused
    ) -> None:
        if exc.error in ("invalid_client", "unauthorized_client"):
            name = client_name(resource.issuer, record.server, redirect)
            await self._db.write(lambda conn: secrets.delete(conn, record.domain_id, [name]))

    async def accounts(self, user: User, domain_id: str, server: str) -> list[AccountRecord]:
        """Return the accounts at a domain's server: all for admins, otherwise the user's own."""
        accounts = await self._db.read(lambda conn: sign_ins.accounts_of(conn, domain_id, server))
        return [account for account in accounts if user.administers(domain_id) or account.user_id == user.id]

    async def open_for(self, user: User, domain_id: str, server: str) -> list[SignInNeeded]:
        """Return the pending sign-ins of this user at a domain's server."""
        owners = [user.id, *([""] if user.administers(domain_id) else [])]

        def read(conn: Connection) -> list[SignInRecord]:
            return [record for owner in owners for record in sign_ins.open_of(conn, domain_id, server, owner, now())]

        needed = []
        for record in await self._db.read(read):
            pending = await self._read_pending(record)
            if pending is not None:
                needed.append(self._describe(record, pending.address))
        return needed

    async def revoke(self, user: User, domain_id: str, server: str, owner: str) -> bool:
        """Remove an account, then revoke its tokens. Returns whether the authorization server revoked one.

        Raises:
            NotFound: there is no such account, or this user may not end it.
        """
        record = await self._db.read(lambda conn: sign_ins.account(conn, domain_id, server, owner))
        if record is None or not (user.administers(domain_id) or (owner and owner == user.id)):
            raise NotFound("sign_in", owner, hidden=record is not None)
        sealed = await self._tokens.read(domain_id, account_name(record.issuer, server, owner))
        entry = change("mcp.sign-in.revoke", f"{domain_id}/{server}", user=owner)

        def forget(conn: Connection) -> None:
            forget_account(conn, record)
            audit(conn, entry)

        await self._db.write(forget, durable=True)
        if sealed is None:
            return False
        # After the commit: the account must be gone here even if its authorization server does not answer.
        web, resource, client = CheckedWeb(self._rules.reach), resource_from_json(sealed), client_from_json(sealed)
        revoked = False
        try:
            if sealed["refresh"]:
                revoked = await grants.revoke_token(web, resource, client, sealed["refresh"], "refresh_token")
            return await grants.revoke_token(web, resource, client, sealed["access"], "access_token") or revoked
        except SignInProblem:
            return revoked

    def _lock(self, spec: LaunchSpec) -> anyio.Lock:
        key = spec.domain, spec.name, spec.owner
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = anyio.Lock()
        return lock

    def _redirect(self) -> str:
        url = self._address.url
        if url is None:
            raise SignInProblem(
                "the address for the browser's return is not configured: the operator sets AGENTIC_RAG_PUBLIC_URL"
            )
        return f"{url}{CALLBACK}"


def wanted_scope(resource: ProtectedResource, challenge: Challenge, oauth: EntryOAuthClient[str] | None) -> str | None:
    """Return the scopes to request, or None to leave the choice to the authorization server.

    The entry's scopes come first, then those of the refusal, then those in the server's metadata. A refusal for too
    few rights adds its scopes to the entry's.
    """
    scope: str | None = None
    if resource.scopes is not None:
        scope = " ".join(resource.scopes)
    if oauth is not None and oauth.scopes:
        scope = " ".join(oauth.scopes)
        if challenge.more:
            scope = union_scopes(scope, challenge.scope)
    elif challenge.scope is not None:
        scope = challenge.scope
    offered = resource.metadata.scopes_supported or []
    return union_scopes(scope, "offline_access") if scope and "offline_access" in offered else scope


def _needs_no_person(spec: LaunchSpec, resource: ProtectedResource, oauth: EntryOAuthClient[str]) -> bool:
    """Return whether the entry's client gets tokens with its own secret, so that no person signs in."""
    supported = resource.metadata.grant_types_supported
    return bool(oauth.secrets) and (
        oauth.grant is OAuthGrant.CLIENT or (supported == [OAuthGrant.CLIENT] and not spec.owner)
    )


def _step_up_cost(account: SignInAccount, challenge: Challenge) -> int:
    """Return the weight of a request for more scopes: see `STEP_UPS`."""
    return 1 if _lacks(account.requested, challenge.scope) else REPEATED


def _check_step_up(spec: LaunchSpec, account: SignInAccount, challenge: Challenge) -> None:
    """Check that a person may be asked for more scopes now.

    Raises:
        ServerUnavailable: the server asked for more scopes too often.
    """
    record = account.record
    recent = record.stepped_at is not None and record.stepped_at > later(-STEP_UP_SECONDS)
    if recent and record.step_ups + _step_up_cost(account, challenge) > STEP_UPS:
        raise ServerUnavailable(spec.name, "it asks for more rights again and again, and was granted those before")


def _code_of(answer: Mapping[str, str], resource: ProtectedResource) -> str:
    """Return the code in an authorization response.

    Raises:
        SignInProblem: the response comes from another issuer or contains no code.
    """
    try:
        validate_authorization_response_iss(answer.get("iss"), resource.metadata)
    except OAuthFlowError as exc:
        raise SignInProblem("the answer comes from another authorization server than was asked") from exc
    code = answer.get("code", "")
    if not code:
        denied = answer.get("error") == "access_denied"
        raise SignInProblem("it was declined there" if denied else "the authorization server granted nothing")
    return code


def _new_account(
    spec: LaunchSpec, resource: ProtectedResource, tokens: Tokens, scope: str, signed_in_by: str, generation: int
) -> AccountRecord:
    return AccountRecord(
        domain_id=spec.domain,
        server=spec.name,
        user_id=spec.owner,
        url=_url(spec),
        issuer=resource.issuer,
        account=tokens.account,
        scope=tokens.scope or scope,
        signed_in_by=signed_in_by,
        signed_in_at=now(),
        expires_at=None if tokens.seconds is None else later(tokens.seconds),
        generation=generation,
        renewing_until=None,
        step_ups=0,
        stepped_at=None,
    )


def _may_complete(user: User, record: SignInRecord) -> bool:
    return user.id == record.user_id if record.user_id else user.administers(record.domain_id)


def _url(spec: LaunchSpec) -> str:
    assert isinstance(spec.target, HttpTarget)
    return spec.target.url


def _client_of(spec: LaunchSpec) -> EntryOAuthClient[str] | None:
    assert isinstance(spec.target, HttpTarget)
    return spec.target.oauth


def _lacks(scope: str, requested: str | None) -> bool:
    return not set((requested or "").split()) <= set(scope.split())


def _ends_within(record: AccountRecord, seconds: float) -> bool:
    return record.expires_at is not None and record.expires_at <= later(seconds)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
