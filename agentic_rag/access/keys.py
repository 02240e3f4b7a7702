"""API keys and the in-memory table of active credentials.

This module creates, lists and revokes keys, and looks up a key or a browser's login at the cost of one hash and one
dict access. A key belongs to a user and permits at most the user's rights. Only the response to its creation contains
the key itself.

Once a key exists, a key is required, on loopback too. A process that has seen a key requires one until it ends, so that
revoking the last key does not open the server. The command line on the data folder authenticates with `local_key`,
which is valid while the server runs and is stored in a file that only its owner can read.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

import anyio
from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.rights import grants_of, join_grants, narrow, user_of
from agentic_rag.access.users import ANONYMOUS, LOCAL, SYSTEM, User
from agentic_rag.base.errors import InvalidInput, NotFound
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.store import authorizations, domains, keys, logins, tickets, users
from agentic_rag.store.authorizations import AuthorizationRecord
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.keys import KeyRecord, KeyRole
from agentic_rag.store.logins import LoginRecord
from agentic_rag.store.users import Grant, RightsSource, UserRecord, UserState

PREFIX: Final = "arag_"
"""Prefix of every key, recognised by scanners for leaked secrets."""
REFRESH_SECONDS: Final = 5.0
"""Maximum seconds until a change of a key, a user or a login by another process takes effect here."""
KEY_BYTES: Final = 32
MAX_DOMAINS: Final = 1_000

KEYLESS: Final = ""
"""Replaces a key's id when the local user comes in without a key, so that the first key ends these connections."""

_KEYLESS: Final = ":keyless"
"""Suffix of the stored id of a local user who came in without a key."""

_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
_RESERVED: Final = frozenset({SYSTEM, ANONYMOUS})


@dataclass(frozen=True, slots=True)
class Entrant:
    """The holder of a credential.

    ``key_id`` identifies the credential whose end closes its open connections: the id of a key, a login or an
    authorization, or `provided_key`. It is None for the local user, and `KEYLESS` if no credential was shown or needed.
    ``counted`` is the id that its load counts for; empty: ``key_id``. ``seconds`` is the remaining validity, None for
    unlimited. ``scopes`` are those of a token for the MCP door; None: the credential is not limited to scopes.
    """

    user: User
    key_id: str | None
    counted: str = ""
    seconds: float | None = None
    scopes: frozenset[str] | None = None


class KeyConnections(Protocol):
    """The open connections per key, known to the edge."""

    def end(self, key_id: str) -> None:
        """Close the connections of an ended key, or those without a key (`KEYLESS`) once keys are required."""
        ...


@dataclass(frozen=True, slots=True)
class _Active:
    """A snapshot of all active credentials. Keys and logins are indexed by SHA-256."""

    users: dict[str, UserRecord]
    keys: dict[str, KeyRecord]
    logins: dict[str, LoginRecord]
    authorizations: dict[str, AuthorizationRecord]
    entrants: dict[str, Entrant]
    """Entrants by the id of a key, a login or an authorization, and by `provided_key`."""
    subjects: dict[str, UserRecord]
    """Users of an OpenID provider by subject."""


@dataclass(frozen=True, slots=True)
class _Records:
    """The records of credentials and users from which `_index` builds the table."""

    users: Sequence[UserRecord]
    keys: Sequence[KeyRecord]
    logins: Sequence[LoginRecord]
    authorizations: Sequence[AuthorizationRecord]


def _read_records(conn: Connection) -> _Records:
    at = now()
    return _Records(users.list_all(conn), keys.active(conn), logins.active(conn, at), authorizations.active(conn, at))


def _index(records: _Records, local: str) -> _Active:
    """Build the table of active credentials.

    Leaves out every record whose user or key is not active. ``local``: see `Access.local_name`.
    """
    by_name = {user.id: user for user in records.users if user.state is UserState.ACTIVE}
    by_key = {key.id: key for key in records.keys if key.user_id in by_name}
    entrants = {
        provided_key(user.id): Entrant(user_of(user), provided_key(user.id))
        for user in by_name.values()
        if user.origin is RightsSource.OIDC
    }
    # A key's entrant has at most the rights of its user, and a login's at most those of its key; see `user_of`.
    entrants |= {key.id: Entrant(user_of(by_name[key.user_id], key), key.id) for key in by_key.values()}
    active_logins: dict[str, LoginRecord] = {}
    for login in records.logins:
        # The command line's key has no row, so its logins name it by `local_name`.
        if login.key_id == local:
            entrants[login.id] = Entrant(LOCAL, login.id)
        elif login.user_id in by_name and (not login.key_id or login.key_id in by_key):
            user = user_of(by_name[login.user_id], by_key.get(login.key_id))
            # All browsers of a user count against the limits of the one key.
            entrants[login.id] = Entrant(user, login.id, login.key_id or provided_key(login.user_id))
        else:
            continue
        active_logins[login.sha256] = login
    active_authorizations: dict[str, AuthorizationRecord] = {}
    for authorization in records.authorizations:
        user_id, key_id = authorization.user_id, authorization.key_id
        if user_id not in by_name or (key_id and key_id not in by_key):
            continue
        active_authorizations[authorization.id] = authorization
        user = user_of(by_name[user_id], by_key.get(key_id))
        if user.sees(authorization.domain_id):
            narrowed = narrow(user, authorization.domain_id)
            entrants[authorization.id] = Entrant(narrowed, authorization.id, key_id or provided_key(user_id))
    return _Active(
        users=by_name,
        keys={key.sha256: key for key in by_key.values()},
        logins=active_logins,
        authorizations=active_authorizations,
        entrants=entrants,
        subjects={user.subject: user for user in by_name.values() if user.subject is not None},
    )


def provided_key(user_id: str) -> str:
    """Return the substitute for a key's id for a user with a token of the OpenID provider."""
    return f"oidc:{user_id}"


class Access:
    """The credentials accepted for one database.

    ``required``: a credential is required. ``use`` closes open connections. ``provider``: an OpenID provider signs
    users in, so that no key has to exist. ``local_key`` is shared by all workers of a server; None: create one for this
    process.
    """

    def __init__(
        self,
        database: Database,
        *,
        required: bool = False,
        use: KeyConnections | None = None,
        provider: bool = False,
        local_key: str | None = None,
    ) -> None:
        self.required = required or provider
        self.first_key = anyio.Event()
        """Set with the first key that this process sees."""
        self.local_key = local_key or new_secret()
        self._provider = provider
        self._use = use
        self._db = database
        self._local = sha256_of(self.local_key)
        self.local_name = f"local:{self._local}"
        """Replaces the id of `local_key` in the store; anything created with that key becomes invalid with it."""
        # Empty until `open` reads the store; the local key works already.
        self._active = _index(_Records((), (), (), ()), self.local_name)
        self._epoch = 0
        """Number of changes made in this process. A read that began before the newest change is out of date."""

    @property
    def alone(self) -> bool:
        """Whether only the local user can come in; permissions for a single user end with the first key."""
        return not self.required

    async def open(self) -> None:
        """Read the keys.

        Raises:
            BadConfiguration: a key is required but none exists.
        """
        await self.refresh()
        if self.required and not self._active.keys and not self._provider:
            raise BadConfiguration(
                "host",
                "beyond loopback an API key is required and there is none. Make one first, with the same data folder: "
                "agentic-rag keys create --user NAME --role operator",
            )

    async def refresh(self) -> None:
        """Read all credentials again, because other processes may have changed them and logins expire."""
        epoch = self._epoch
        records = await self._db.read(_read_records)
        if epoch == self._epoch:  # otherwise a local change happened meanwhile, and the data read may be older
            self._apply_read(records)

    def entrant(self, secret: str) -> Entrant | None:
        """Return the entrant of a key, or None if the key is unknown or revoked."""
        sha256 = sha256_of(secret)
        if hmac.compare_digest(sha256, self._local):
            return Entrant(LOCAL, None)
        key = self._active.keys.get(sha256)  # the time of a look-up by hash reveals nothing about the stored secrets
        if key is None or not hmac.compare_digest(key.sha256, sha256):
            return None
        return self._active.entrants[key.id]

    async def signed_in(self, token: str) -> tuple[Entrant, LoginRecord] | None:
        """Return the entrant and login of a browser's cookie; None if the login is unknown, ended or expired."""
        sha256 = sha256_of(token)
        if sha256 not in self._active.logins and self._db.shared:  # perhaps created by another process a moment ago
            login_record = await self._db.read(partial(logins.find, sha256=sha256))
            if login_record is not None:
                await self.refresh()
        login = self._active.logins.get(sha256)
        if login is None or not hmac.compare_digest(login.sha256, sha256) or login.expires_at <= now():
            return None
        return self._active.entrants[login.id], login

    async def entrant_of_authorization(self, authorization_id: str) -> Entrant | None:
        """Return the entrant of an authorization for its domain; None if it ended or its user lost the domain."""
        if authorization_id not in self._active.authorizations:  # perhaps made by another process a moment ago
            await self.refresh()
        return self._active.entrants.get(authorization_id)

    async def issue_ticket(self, entrant: Entrant, life: float) -> str | None:
        """Return a single-use ticket for an entrant, valid for ``life`` seconds at every server of the database.

        Returns None if the database is not shared. The local user's ticket is valid only at the workers of this server.
        """
        if not self._db.shared:
            return None
        key_id = entrant.key_id
        if key_id is None or key_id == KEYLESS:
            key_id = self.local_name + ("" if key_id is None else _KEYLESS)
        elif key_id not in self._active.entrants:
            return None
        value = secrets.token_urlsafe(KEY_BYTES)
        seconds = None if entrant.seconds is None else int(entrant.seconds)
        issue = partial(tickets.issue, sha256=sha256_of(value), key_id=key_id, seconds=seconds, life=life)
        await self._db.write(issue)
        return value

    async def redeem_ticket(self, value: str) -> Entrant | None:
        """Consume a ticket from `issue_ticket`, issued here or elsewhere; None if the ticket is invalid."""
        if not self._db.shared:
            return None
        ticket = await self._db.write(partial(tickets.redeem, sha256=sha256_of(value)))
        if ticket is None:
            return None
        key_id, seconds = ticket
        if key_id == self.local_name:
            return Entrant(LOCAL, None)
        if key_id == self.local_name + _KEYLESS:
            # The first key may have been made since the ticket was issued.
            return None if self.required else Entrant(LOCAL, KEYLESS)
        if key_id not in self._active.entrants:  # perhaps created by another process a moment ago
            await self.refresh()
        entrant = self._active.entrants.get(key_id)
        return None if entrant is None else replace(entrant, seconds=seconds)

    def user_of_subject(self, subject: str) -> UserRecord | None:
        """Return the active user of an OpenID provider with this subject, or None."""
        return self._active.subjects.get(subject)

    def user_named(self, user_id: str) -> User | None:
        """Return an active user with all rights of the user; None if there is none.

        The local user counts only while no credential is required.
        """
        if user_id == LOCAL.id:
            return LOCAL if self.alone else None
        user = self._active.users.get(user_id)
        return None if user is None else user_of(user)

    def provided_entrant(self, user_id: str) -> Entrant | None:
        """Return the entrant of a provider's token by the user's name, or None if the user is not active."""
        return self._active.entrants.get(provided_key(user_id))

    async def create(
        self,
        user_id: str,
        role: KeyRole | None = None,
        domain_ids: Sequence[str] = (),
        groups: Sequence[str] = (),
    ) -> tuple[KeyRecord, str]:
        """Create a key and return its record and the key itself, which is not stored.

        A new user is created with the rights of the key. An existing user is granted any missing rights of the key. The
        key acts for ``groups``, which the settings of domains map to labels of documents (see `rights.groups_of`).

        Raises:
            InvalidInput: the name is invalid; domains are missing, unknown, or given for an operator; the user is
                disabled, or an OpenID provider determines the user's rights.
            NotFound: a key without a role is requested for an unknown user.
        """
        granted = tuple(dict.fromkeys(domain_ids))
        check_name(user_id, "user")
        _check(role, granted)
        secret = new_secret()
        key = KeyRecord(
            id=new_id("key"),
            user_id=user_id,
            role=role,
            domains=granted,
            sha256=sha256_of(secret),
            groups=tuple(sorted(set(groups))),
            created_at=now(),
        )
        key_entry = change("key.create", key.id, userId=user_id, role=role, domains=granted, groups=key.groups)
        user_entry = change("user.create", user_id, by="key.create")
        grants_entry = change("user.update", user_id, by="key.create")

        def store(conn: Connection) -> None:
            users.lock(conn)  # otherwise two new keys of a user could each add rights to the same old ones
            for at, domain_id in enumerate(granted):
                if domains.get(conn, domain_id) is None:
                    raise InvalidInput(f"domains.{at}", f"there is no domain {domain_id!r}.")
            user = users.get(conn, user_id)
            if user is None:
                if role is None:
                    raise NotFound("user", user_id)
                users.insert(conn, _user_for(conn, key))
                audit(conn, user_entry)
            elif _raise_rights(conn, user, key):
                logins.end_of_user(conn, user_id)  # the user's logins were made with fewer rights
                audit(conn, grants_entry)
            keys.insert(conn, key)
            audit(conn, key_entry)

        await self._db.write(store, durable=True)
        await self.apply_changes()
        return key, secret

    async def list_all(self) -> list[KeyRecord]:
        """Return all keys, including revoked ones, oldest first."""
        return await self._db.read(keys.list_all)

    async def revoke(self, key_id: str) -> None:
        """Revoke a key at once: for new requests, for logins created with it, and for its open connections.

        Raises:
            NotFound: there is no such key, or it is already revoked.
        """
        entry = change("key.revoke", key_id)

        def store(conn: Connection) -> KeyRecord | None:
            revoked = keys.revoke(conn, key_id, now())
            if revoked is not None:
                logins.end_of_key(conn, key_id)
                authorizations.end_of_key(conn, key_id)
                audit(conn, entry)
            return revoked

        if await self._db.write(store, durable=True) is None:
            raise NotFound("key", key_id)
        # Effective at once, even if the store cannot be read now.
        self.drop(key_ids=(key_id,))
        await self.apply_changes()

    async def apply_changes(self) -> None:
        """Apply changes that were committed here, closing connections whose credential has ended."""
        self._epoch += 1
        with anyio.CancelScope(shield=True):  # a client that disconnects must not leave a revoked key active
            await self.refresh()

    def drop(
        self,
        *,
        user_ids: Sequence[str] = (),
        key_ids: Sequence[str] = (),
        login_ids: Sequence[str] = (),
        authorization_ids: Sequence[str] = (),
    ) -> None:
        """Remove credentials that were ended in the store, without reading the store, which may be unreadable."""
        self._epoch += 1
        before = self._active
        self._apply(
            _Records(
                [user for user in before.users.values() if user.id not in user_ids],
                [key for key in before.keys.values() if key.id not in key_ids],
                [login for login in before.logins.values() if login.id not in login_ids],
                [record for record in before.authorizations.values() if record.id not in authorization_ids],
            )
        )

    def put_login(self, login: LoginRecord) -> None:
        """Add a new or renewed login."""
        self._epoch += 1
        before = self._active
        signed_in = {**before.logins, login.sha256: login}
        self._apply(
            _Records(
                [*before.users.values()],
                [*before.keys.values()],
                [*signed_in.values()],
                [*before.authorizations.values()],
            )
        )

    def _apply_read(self, records: _Records) -> None:
        """Use records that were read from the store. The first key makes a credential required for good."""
        has_keys = bool(records.keys)
        self._apply(records)
        if has_keys and not self.required:
            self.required = True
            self._end(KEYLESS)
        if has_keys or self._provider:
            self.first_key.set()

    def _apply(self, records: _Records) -> None:
        """Replace the table, and close the connections of credentials that ended or lost rights."""
        before, self._active = self._active, _index(records, self.local_name)
        for ident, entrant in before.entrants.items():
            after = self._active.entrants.get(ident)
            # An open connection keeps the rights that it began with, so fewer rights close it.
            if after is None or not after.user.covers(entrant.user):
                self._end(ident)

    def _end(self, key_id: str) -> None:
        if self._use is not None:
            self._use.end(key_id)


def _user_for(conn: Connection, key: KeyRecord) -> UserRecord:
    """Return a new user with the rights of a first key."""
    return UserRecord(
        id=key.user_id,
        number=users.next_number(conn),
        operator=key.role is KeyRole.OPERATOR,
        grants=grants_of(key.role, key.domains),
        created_at=key.created_at,
        updated_at=key.created_at,
    )


def _raise_rights(conn: Connection, user: UserRecord, key: KeyRecord) -> bool:
    """Grant the user any rights the new key requires but the user lacks. Returns True if something was granted."""
    if user.state is not UserState.ACTIVE:
        raise InvalidInput("user", f"{user.id} is {user.state.value}: enable the user first.")
    operator = user.operator or key.role is KeyRole.OPERATOR
    grants = user.grants if operator else join_grants(user.grants, grants_of(key.role, key.domains))
    if (operator, grants) == (user.operator, user.grants):
        return False
    if user.origin is RightsSource.OIDC:
        raise InvalidInput("role", f"what {user.id} may do is said by the OpenID provider: at most that is possible.")
    users.update(conn, user.id, key.created_at, operator=operator, grants=grants)
    return True


def check_name(user_id: str, field: str) -> None:
    """Check a user's name.

    Raises:
        InvalidInput: the name is invalid or reserved.
    """
    if not _USER.fullmatch(user_id) or user_id in _RESERVED:
        raise InvalidInput(field, "1 to 64 letters, digits and . _ @ + - are expected, and no reserved name.")


def check_grants(conn: Connection, grants: dict[str, Grant]) -> None:
    """Check that the domains of grants exist, inside the transaction that stores the grants.

    Raises:
        InvalidInput: a domain does not exist.
    """
    for domain_id in grants:
        if domains.get(conn, domain_id) is None:
            raise InvalidInput(f"grants.{domain_id}", f"there is no domain {domain_id!r}.")


def _check(role: KeyRole | None, granted: Sequence[str]) -> None:
    if role in (None, KeyRole.OPERATOR) and granted:
        raise InvalidInput("domains", "an operator's key is for all domains, one without a role for its user's.")
    if role not in (None, KeyRole.OPERATOR) and not granted:
        raise InvalidInput("domains", f"name at least one domain that the {role} may use.")
    if len(granted) > MAX_DOMAINS:
        raise InvalidInput("domains", f"at most {MAX_DOMAINS} are possible.")


def new_secret() -> str:
    """Return a new random key."""
    return PREFIX + secrets.token_urlsafe(KEY_BYTES)


def sha256_of(secret: str) -> str:
    """Return the SHA-256 of a secret, as stored."""
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()
