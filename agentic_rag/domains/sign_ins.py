"""Sign-ins at MCP servers: begin, complete, renew and revoke them.

A sign-in begins when a server refuses a request, and completes when a browser returns, on any process and after any
restart. Concurrent callers share one renewal of a token. The network requests are in `agentic_rag.tools.oauth`; secrets
are in the vault. Importing this module loads the protocol library.
"""

import hashlib
import hmac
import json
import secrets as random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
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
from agentic_rag.domains.token_storage import Account, KeptTokens, client_from, client_to, place_from, place_to
from agentic_rag.domains.vault import Vault
from agentic_rag.store import secrets, sign_ins
from agentic_rag.store.clock import later, new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.sign_ins import AccountRecord, SignInRecord
from agentic_rag.tools.entries.entry import Grant, HttpTarget, OAuthClient
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
        self._kept = KeptTokens(database, vault)
        self._locks: WeakValueDictionary[tuple[str, str, str], anyio.Lock] = WeakValueDictionary()

    # -- for connections (`Accounts`) --------------------------------------------------------------------------

    async def token(self, spec: LaunchSpec) -> str | None:
        """See `Accounts.token`."""
        found = await self._kept.find(spec, _url(spec))
        if found is not None and _ends_within(found.record, RENEW_SECONDS):
            found = await self._renew(spec, found)
        if found is not None:
            return found.access
        waiting = await self._waiting(spec, "")
        if waiting is not None:
            raise waiting
        return None

    async def newer(self, spec: LaunchSpec, refused: str) -> str | None:
        """See `Accounts.newer`."""
        found = await self._kept.find(spec, _url(spec))
        if found is not None and found.access == refused:
            found = await self._renew(spec, found)
        return None if found is None or found.access == refused else found.access

    async def answer(self, spec: LaunchSpec, challenge: Challenge) -> None:
        """See `Accounts.answer`."""
        async with self._lock(spec):
            found = await self._kept.find(spec, _url(spec))
            if found is not None and found.access != challenge.token:
                return  # a newer token exists meanwhile
            asked = ""
            if challenge.more:
                asked = self._allow_more(spec, found, challenge)
            waiting = await self._waiting(spec, union_scopes(asked, challenge.scope) or "")
            if waiting is not None:
                raise waiting
            try:
                await self._begin(spec, challenge, found)
            except NoSignIn as exc:  # report the server's refusal, not the missing OAuth support
                raise ServerUnavailable(spec.name, challenge.reason or exc.reason) from exc
            except SignInProblem as exc:
                raise ServerUnavailable(spec.name, exc.reason) from exc

    async def _begin(self, spec: LaunchSpec, challenge: Challenge, found: Account | None) -> None:
        """Get a token without a person, or open a sign-in and raise it.

        Raises:
            SignInNeeded: a person has to sign in.
            SignInProblem: no sign-in is possible.
        """
        oauth = _client_of(spec)
        web = CheckedWeb(self._rules.reach)
        place = await discover(web, _url(spec), challenge, oauth.issuer if oauth else "")
        if oauth is not None and found is not None and found.record.issuer != place.issuer and not oauth.issuer:
            raise SignInProblem(
                f"the server names {place.issuer} for its sign-ins now, not {found.record.issuer}; if that is right, "
                "set oauth.issuer in the entry"
            )
        scope = wanted_scope(place, challenge, oauth)
        if challenge.more and found is not None:
            scope = union_scopes(union_scopes(found.asked, found.record.scope), scope)
        supported = place.metadata.grant_types_supported
        alone = oauth is not None and (oauth.grant is Grant.CLIENT or (supported == [Grant.CLIENT] and not spec.owner))
        if alone and oauth is not None and oauth.secrets:
            await self._grant_own(spec, web, place, oauth, scope, found)
            return
        check_for_people(place)
        redirect = self._redirect()
        try:
            client = await self._choose_client(spec, web, place, oauth, redirect)
        except SignInProblem as exc:
            if place.guessed:
                raise NoSignIn(exc.reason) from exc
            raise
        if found is not None and not challenge.more:  # the token is refused and there is no newer one
            await self._db.write(lambda conn: forget_account(conn, found.record))
        cost = 0
        if challenge.more and found is not None:
            cost = 1 if _lacks(found.asked, challenge.scope) else REPEATED
        raise await self._open(spec, place, client, redirect, scope or "", cost)

    async def _grant_own(
        self,
        spec: LaunchSpec,
        web: CheckedWeb,
        place: ProtectedResource,
        oauth: OAuthClient[str],
        scope: str | None,
        found: Account | None,
    ) -> None:
        if found is not None and not _ended_before(later(-FRESH_SECONDS), found.record.signed_in_at):
            raise SignInProblem("it refuses the token that was just granted for it")
        client = grants.configured_client(place, oauth)
        client = replace(client, registration=client.registration.model_copy(update={"grant_types": [Grant.CLIENT]}))
        tokens = await grants.own_tokens(web, place, client, scope)
        generation = 1 if found is None else found.record.generation + 1
        await self._kept.keep(
            _new_account(spec, place, tokens, scope or "", "", generation), tokens, place, client, scope or ""
        )

    async def _choose_client(
        self, spec: LaunchSpec, web: CheckedWeb, place: ProtectedResource, oauth: OAuthClient[str] | None, redirect: str
    ) -> OAuthRegistration:
        """Return the OAuth client: the admin's, the published metadata document's, or a registered one."""
        if oauth is not None:
            return grants.configured_client(place, oauth)
        described = grants.described_client(place, self.document_url)
        if described is not None:
            return described
        name = client_name(place.issuer, spec.name, redirect)
        row = await self._db.read(lambda conn: secrets.get(conn, spec.domain, name))
        kept = None if row is None else self._kept.unseal(row)
        if kept is not None:
            client = client_from(kept)
            ends = client.registration.client_secret_expires_at
            if not ends or datetime.fromtimestamp(ends).timestamp() > datetime.now().timestamp() + OPEN_SECONDS:
                return client
        client = await grants.register_client(web, place, redirect)
        if client.registration.client_secret:
            self._vault.redact.add(spec.domain, f"{spec.name}.oauth", client.registration.client_secret)
        sealed = self._vault.seal_text(spec.domain, name, json.dumps(client_to(client)))
        await self._db.write(lambda conn: secrets.put(conn, sealed), durable=True)
        return client

    async def _open(
        self,
        spec: LaunchSpec,
        place: ProtectedResource,
        client: OAuthRegistration,
        redirect: str,
        scope: str,
        cost: int,
    ) -> SignInNeeded:
        """Store a pending sign-in and return the message for the person."""
        state, pkce, ident = random.token_urlsafe(32), PKCEParameters.generate(), new_id("sgn")
        address = grants.authorization_address(self._rules.reach, place, client, redirect, scope, state, pkce)
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
        kept = {**place_to(place), **client_to(client), "verifier": pkce.code_verifier, "address": address}
        kept |= {"redirect": redirect, "scope": scope, "cost": cost}
        sealed = self._vault.seal_text(spec.domain, pending_name(ident), json.dumps(kept))

        def store(conn: Connection) -> None:
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
        who = "owner" if record.user_id else "admin"
        return SignInNeeded(record.server, reason, record.id, address, begin, who, host, record.expires_at)

    async def _waiting(self, spec: LaunchSpec, scope: str) -> SignInNeeded | None:
        """Return the pending sign-in of an account, if it covers these scopes."""
        place = spec.domain, spec.name, spec.owner
        found = await self._db.read(lambda conn: sign_ins.open_of(conn, *place, later(LEFT_SECONDS)))
        for record in found:
            if record.url == _url(spec) and not _lacks(record.scope, scope):
                kept = await self._kept.read(record.domain_id, pending_name(record.id))
                if kept is not None:
                    return self._describe(record, kept["address"])
        return None

    def _allow_more(self, spec: LaunchSpec, found: Account | None, challenge: Challenge) -> str:
        """Return the scopes that the account was asked for, if further requests are allowed.

        Raises:
            ServerUnavailable: the server asked for more scopes too often.
        """
        if found is None:
            return ""
        record = found.record
        recent = record.stepped_at is not None and record.stepped_at > later(-STEP_UP_SECONDS)
        cost = 1 if _lacks(found.asked, challenge.scope) else REPEATED
        if recent and record.step_ups + cost > STEP_UPS:
            raise ServerUnavailable(spec.name, "it asks for more rights again and again, and was granted those before")
        return found.asked

    # -- renewal ------------------------------------------------------------------------------------------------

    async def _renew(self, spec: LaunchSpec, seen: Account) -> Account | None:
        """Return the account with a renewed token, or unchanged if no token can be had without a person.

        Returns None if the account was removed and a person has to sign in again.

        Raises:
            ServerUnavailable: the token has expired and could not be renewed now.
        """
        async with self._lock(spec):
            found = await self._kept.find(spec, _url(spec))
            oauth = _client_of(spec)
            if found is None or found.record.generation != seen.record.generation:
                return found
            own = oauth is not None and found.client.registration.grant_types == [Grant.CLIENT]
            if found.refresh is None and not own:
                return found
            record = found.record
            if not await self._db.write(lambda conn: sign_ins.claim(conn, record, now(), later(LEASE_SECONDS))):
                return await self._await_other(spec, found)
            return await self._ask_newer(spec, found, oauth)

    async def _ask_newer(self, spec: LaunchSpec, found: Account, oauth: OAuthClient[str] | None) -> Account | None:
        answers: list[Account | None] = []
        # A renewed token that is not stored is lost; each step has its own time limit.
        with anyio.CancelScope(shield=True):
            answers.append(await self._exchange(spec, found, oauth))
        return answers[0]

    async def _exchange(self, spec: LaunchSpec, found: Account, oauth: OAuthClient[str] | None) -> Account | None:
        web, record = CheckedWeb(self._rules.reach), found.record
        client = found.client if oauth is None else grants.configured_client(found.place, oauth)
        try:
            if found.refresh is None:
                tokens = await grants.own_tokens(web, found.place, client, found.asked or None)
            else:
                tokens = await grants.refresh_tokens(web, found.place, client, found.refresh)
        except SignInSilent as exc:
            await self._db.write(lambda conn: sign_ins.release(conn, record))
            if _ends_within(record, 0):
                raise ServerUnavailable(spec.name, exc.reason) from exc
            return found
        except SignInProblem as exc:
            await self._give_up(record, found, exc)
            return None
        failpoints.reached("sign_in.renewed")
        renewed = record.replace(
            scope=tokens.scope or record.scope,
            account=tokens.account or record.account,
            expires_at=None if tokens.seconds is None else later(tokens.seconds),
            generation=record.generation + 1,
            renewing_until=None,
        )
        tokens = replace(tokens, refresh=tokens.refresh or found.refresh)
        return await self._kept.keep(renewed, tokens, found.place, found.client, found.asked)

    async def _give_up(self, record: AccountRecord, found: Account, exc: SignInProblem) -> None:
        """Remove an account whose token cannot be renewed, and its client if the issuer no longer knows it."""
        redirect = [str(each) for each in found.client.registration.redirect_uris or ()]
        told = change("mcp.sign-in.end", f"{record.domain_id}/{record.server}", user=record.user_id, reason=exc.reason)

        def forget(conn: Connection) -> None:
            forget_account(conn, record)
            if isinstance(exc, GrantRefused) and exc.error in ("invalid_client", "unauthorized_client"):
                names = [client_name(record.issuer, record.server, each) for each in redirect]
                secrets.delete(conn, record.domain_id, names)
            audit(conn, told)

        await self._db.write(forget, durable=True)

    async def _await_other(self, spec: LaunchSpec, seen: Account) -> Account | None:
        """Wait for a renewal by another process and return its result."""
        failpoints.reached("sign_in.waits")
        with anyio.move_on_after(LEASE_SECONDS):
            while True:
                found = await self._kept.find(spec, _url(spec))
                if found is None or found.record.generation != seen.record.generation:
                    return found
                if found.record.renewing_until is None:
                    break  # the renewal failed
                await anyio.sleep(POLL_SECONDS)
        if _ends_within(seen.record, 0):
            raise ServerUnavailable(spec.name, "its token could not be renewed now")
        return seen

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
        said = grants.client_metadata(self._redirect()).model_dump(by_alias=True, mode="json", exclude_none=True)
        return {"client_id": url, "client_uri": f"{self._address.url}/", **said}

    async def start(self, user: User, ident: str) -> tuple[str, str]:
        """Bind a sign-in to this user's browser. Returns the authorization address and the cookie's value.

        Raises:
            NotFound: there is no such sign-in, it has ended, or it belongs to another user.
        """
        record = await self._db.read(lambda conn: sign_ins.get(conn, ident))
        if record is None or record.expires_at <= now() or not _may_complete(user, record):
            raise NotFound("sign_in", ident, hidden=record is not None)
        kept = await self._kept.read(record.domain_id, pending_name(ident))
        if kept is None:
            raise NotFound("sign_in", ident)
        cookie = random.token_urlsafe(32)
        await self._db.write(lambda conn: sign_ins.bind_browser(conn, ident, _hash(cookie), user.id))
        return kept["address"], cookie

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
        kept = await self._kept.read(record.domain_id, pending_name(record.id))

        def use_up(conn: Connection) -> bool:
            secrets.delete(conn, record.domain_id, [pending_name(record.id)])
            return sign_ins.take(conn, record.id)

        if not await self._db.write(use_up, durable=True) or kept is None:
            raise SignInProblem("this sign-in was completed before")
        who = record.begun_by if bound else user.id if user is not None else ""
        place, client = place_from(kept), client_from(kept)
        code = _code_of(answer, place)
        web = CheckedWeb(self._rules.reach)
        with anyio.CancelScope(shield=True):  # a code works once, so its answer must not be lost
            try:
                tokens = await grants.exchange_code(web, place, client, kept["redirect"], code, kept["verifier"])
            except GrantRefused as exc:
                await self._forget_unknown_client(record, place, kept["redirect"], exc)
                raise
            await self._take_in(record, who, tokens, place, client, kept)
        await self._listener.signed_in(record.domain_id, record.server, record.user_id)
        return CompletedSignIn(record.server, urlsplit(kept["address"]).hostname or "", tokens.account)

    async def _take_in(
        self,
        record: SignInRecord,
        who: str,
        tokens: Tokens,
        place: ProtectedResource,
        client: OAuthRegistration,
        kept: Mapping[str, Any],
    ) -> None:
        place_of = record.domain_id, record.server, record.user_id
        before = await self._db.read(lambda conn: sign_ins.account(conn, *place_of))
        account = AccountRecord(
            domain_id=record.domain_id,
            server=record.server,
            user_id=record.user_id,
            url=record.url,
            issuer=place.issuer,
            account=tokens.account,
            scope=tokens.scope or kept["scope"],
            signed_in_by=who,
            signed_in_at=now(),
            expires_at=None if tokens.seconds is None else later(tokens.seconds),
            generation=1 if before is None else before.generation + 1,
            renewing_until=None,
            step_ups=0,
            stepped_at=None,
        )
        if before is not None and record.step_up and before.url == record.url:
            recent = before.stepped_at is not None and before.stepped_at > later(-STEP_UP_SECONDS)
            count = (before.step_ups if recent else 0) + kept["cost"]
            account = account.replace(step_ups=count, stepped_at=before.stepped_at if recent else now())
        with acting_for(who):
            told = change(
                "mcp.sign-in", f"{record.domain_id}/{record.server}", user=record.user_id, issuer=place.issuer
            )
            await self._kept.keep(account, tokens, place, client, kept["scope"], told)

    async def _forget_unknown_client(
        self, record: SignInRecord, place: ProtectedResource, redirect: str, exc: GrantRefused
    ) -> None:
        if exc.error in ("invalid_client", "unauthorized_client"):
            name = client_name(place.issuer, record.server, redirect)
            await self._db.write(lambda conn: secrets.delete(conn, record.domain_id, [name]))

    async def accounts(self, user: User, domain_id: str, server: str) -> list[AccountRecord]:
        """Return the accounts at a domain's server: all for admins, otherwise the user's own."""
        found = await self._db.read(lambda conn: sign_ins.accounts_of(conn, domain_id, server))
        return [each for each in found if user.administers(domain_id) or each.user_id == user.id]

    async def open_for(self, user: User, domain_id: str, server: str) -> list[SignInNeeded]:
        """Return the pending sign-ins of this user at a domain's server."""
        owners = [user.id, *([""] if user.administers(domain_id) else [])]
        found = []
        for owner in owners:
            waiting = await self._db.read(lambda conn, o=owner: sign_ins.open_of(conn, domain_id, server, o, now()))  # type: ignore[misc]
            for record in waiting:
                kept = await self._kept.read(domain_id, pending_name(record.id))
                if kept is not None:
                    found.append(self._describe(record, kept["address"]))
        return found

    async def revoke(self, user: User, domain_id: str, server: str, owner: str) -> bool:
        """Remove an account, then revoke its tokens. Returns whether the authorization server revoked one.

        Raises:
            NotFound: there is no such account, or this user may not end it.
        """
        record = await self._db.read(lambda conn: sign_ins.account(conn, domain_id, server, owner))
        if record is None or not (user.administers(domain_id) or (owner and owner == user.id)):
            raise NotFound("sign_in", owner, hidden=record is not None)
        kept = await self._kept.read(domain_id, account_name(record.issuer, server, owner))
        told = change("mcp.sign-in.revoke", f"{domain_id}/{server}", user=owner)

        def forget(conn: Connection) -> None:
            forget_account(conn, record)
            audit(conn, told)

        await self._db.write(forget, durable=True)
        if kept is None:
            return False
        web, place, client = CheckedWeb(self._rules.reach), place_from(kept), client_from(kept)
        taken = False
        try:
            if kept["refresh"]:
                taken = await grants.revoke_token(web, place, client, kept["refresh"], "refresh_token")
            return await grants.revoke_token(web, place, client, kept["access"], "access_token") or taken
        except SignInProblem:
            return taken

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


def wanted_scope(place: ProtectedResource, challenge: Challenge, oauth: OAuthClient[str] | None) -> str | None:
    """Return the scopes to request: the server's, else the entry's, else all that the server supports."""
    scope: str | None = None
    if place.scopes is not None:
        scope = " ".join(place.scopes)
    if oauth is not None and oauth.scopes:
        scope = " ".join(oauth.scopes)
        if challenge.more:
            scope = union_scopes(scope, challenge.scope)
    elif challenge.scope is not None:
        scope = challenge.scope
    offered = place.metadata.scopes_supported or []
    return union_scopes(scope, "offline_access") if scope and "offline_access" in offered else scope


def _code_of(answer: Mapping[str, str], place: ProtectedResource) -> str:
    """Return the code in an authorization response.

    Raises:
        SignInProblem: the response comes from another issuer or contains no code.
    """
    try:
        validate_authorization_response_iss(answer.get("iss"), place.metadata)
    except OAuthFlowError as exc:
        raise SignInProblem("the answer comes from another authorization server than was asked") from exc
    code = answer.get("code", "")
    if not code:
        denied = answer.get("error") == "access_denied"
        raise SignInProblem("it was declined there" if denied else "the authorization server granted nothing")
    return code


def _new_account(
    spec: LaunchSpec, place: ProtectedResource, tokens: Tokens, scope: str, who: str, generation: int
) -> AccountRecord:
    return AccountRecord(
        domain_id=spec.domain,
        server=spec.name,
        user_id=spec.owner,
        url=_url(spec),
        issuer=place.issuer,
        account=tokens.account,
        scope=tokens.scope or scope,
        signed_in_by=who,
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


def _client_of(spec: LaunchSpec) -> OAuthClient[str] | None:
    assert isinstance(spec.target, HttpTarget)
    return spec.target.oauth


def _lacks(scope: str, wanted: str | None) -> bool:
    return not set((wanted or "").split()) <= set(scope.split())


def _ends_within(record: AccountRecord, seconds: float) -> bool:
    return record.expires_at is not None and record.expires_at <= later(seconds)


def _ended_before(time: str, moment: str) -> bool:
    return moment <= time


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
