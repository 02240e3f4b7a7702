"""API keys, and who comes in with one: the table of what is active, in memory.

Owns making, listing and revoking keys, and the lookup of a key or of a browser's sign-in, which costs one hash and one
dict access. A key belongs to a user and permits at most what that user may do. The key itself exists in the answer to
its making and nowhere else. Knows no request.

A key is required once there is one, on loopback too; a process that has seen one goes on requiring it until it
ends, so that revoking the last key opens nothing. The command line on the data folder comes in by `local_key`,
which lives as long as the server and lies in a file only its owner can read.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

import anyio
from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.rights import grants_of, join_grants, user_of
from agentic_rag.access.users import ANONYMOUS, LOCAL, SYSTEM, User
from agentic_rag.errors import InvalidInput, NotFound
from agentic_rag.startup_errors import BadConfiguration
from agentic_rag.store import domains, keys, logins, tickets, users
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.keys import KeyRecord, KeyRole
from agentic_rag.store.logins import LoginRecord
from agentic_rag.store.users import Grant, Origin, UserRecord, UserState

PREFIX: Final = "arag_"
"""What every key begins with, so that a scanner for leaked secrets can know one."""
REFRESH_SECONDS: Final = 5.0
"""How long a key, a user or a sign-in that another process changed is unknown here."""
KEY_BYTES: Final = 32
MAX_DOMAINS: Final = 1_000

KEYLESS: Final = ""
"""Stands for a key's id where the local user came in without one: what is open so ends with the first key."""

_KEYLESS: Final = ":keyless"
"""Ends what stands in the store for the local user who came in without a key."""

_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
_RESERVED: Final = frozenset({SYSTEM, ANONYMOUS})


@dataclass(frozen=True, slots=True)
class Entrant:
    """Whom a credential stands for.

    ``key_id``: what ends that which is open with it: a key's id, a login's, or `provided_key`; None for the local
    user, and `KEYLESS` where none was shown or needed. ``counted``: under which id its load counts; empty: under
    ``key_id``. ``seconds``: how long it is still good, None for one without an end.
    """

    user: User
    key_id: str | None
    counted: str = ""
    seconds: float | None = None


class KeyUse(Protocol):
    """What is open with keys; the edge knows."""

    def end(self, key_id: str) -> None:
        """End all that is open with a key that ceased to be active, or without one (`KEYLESS`) as one is needed now."""
        ...


@dataclass(frozen=True, slots=True)
class _Active:
    """What may come in: all that was read at one time. Keys and sign-ins are by their SHA-256."""

    users: dict[str, UserRecord]
    keys: dict[str, KeyRecord]
    logins: dict[str, LoginRecord]
    entrants: dict[str, Entrant]
    """By the id of a key, of a sign-in, and what `provided_key` makes of a user's name."""
    subjects: dict[str, UserRecord]
    """Users of an OpenID provider."""


def _active(
    local: str, found: Iterable[UserRecord], made: Iterable[KeyRecord], signed: Iterable[LoginRecord]
) -> _Active:
    by_name = {user.id: user for user in found if user.state is UserState.ACTIVE}
    own = {key.id: key for key in made if key.user_id in by_name}
    entrants = {
        provided_key(user.id): Entrant(user_of(user), provided_key(user.id))
        for user in by_name.values()
        if user.origin is Origin.OIDC
    }
    entrants |= {key.id: Entrant(user_of(by_name[key.user_id], key), key.id) for key in own.values()}
    kept: dict[str, LoginRecord] = {}
    for each in signed:
        if each.key_id == local:
            entrants[each.id] = Entrant(LOCAL, each.id)
        elif each.user_id in by_name and (not each.key_id or each.key_id in own):
            user = user_of(by_name[each.user_id], own.get(each.key_id))
            entrants[each.id] = Entrant(user, each.id, each.key_id or provided_key(each.user_id))
        else:
            continue
        kept[each.sha256] = each
    subjects = {user.subject: user for user in by_name.values() if user.subject is not None}
    return _Active(by_name, {key.sha256: key for key in own.values()}, kept, entrants, subjects)


def provided_key(user_id: str) -> str:
    """Return what stands for a key's id where a user came in with a token of the OpenID provider."""
    return f"oidc:{user_id}"


class Access:
    """What may come in to one database. ``required``: whether nobody does without a credential; ``use``: what is open.

    ``provider``: users of an OpenID provider come in, so that no key has to be there. ``local_key``: the same for all
    workers of a server; None: one of this process's own.
    """

    def __init__(
        self,
        database: Database,
        *,
        required: bool = False,
        use: KeyUse | None = None,
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
        """Stands for the id of `local_key` in the store: what was made with it ends with it."""
        self._now = _active(self.local_name, (), (), ())
        self._epoch = 0

    @property
    def alone(self) -> bool:
        """Whether nobody but the local user can come in: what only a single user may allow ends with the first key."""
        return not self.required

    async def open(self) -> None:
        """Read the keys.

        Raises:
            BadConfiguration: one is required and there is none.
        """
        await self.refresh()
        if self.required and not self._now.keys and not self._provider:
            raise BadConfiguration(
                "host",
                "beyond loopback an API key is required and there is none. Make one first, with the same data folder: "
                "agentic-rag keys create --user NAME --role operator",
            )

    async def refresh(self) -> None:
        """Read everything again: another process may have changed it, and sign-ins expire."""
        epoch = self._epoch
        found = await self._db.read(_read)
        if epoch == self._epoch:  # else something was changed here meanwhile: what was read may be older
            self._take(found)

    def entrant(self, secret: str) -> Entrant | None:
        """Return whom a key stands for, None when it is not known or revoked."""
        given = sha256_of(secret)
        if hmac.compare_digest(given, self._local):
            return Entrant(LOCAL, None)
        key = self._now.keys.get(given)
        if key is None or not hmac.compare_digest(key.sha256, given):
            return None
        return self._now.entrants[key.id]

    async def signed_in(self, token: str) -> tuple[Entrant, LoginRecord] | None:
        """Return whom a browser's cookie stands for; None when it is not known, has ended or has expired."""
        given = sha256_of(token)
        if given not in self._now.logins and self._db.shared:  # made by another process a moment ago?
            found = await self._db.read(partial(logins.find, sha256=given))
            if found is not None:
                await self.refresh()
        login = self._now.logins.get(given)
        if login is None or not hmac.compare_digest(login.sha256, given) or login.expires_at <= now():
            return None
        return self._now.entrants[login.id], login

    async def issue_ticket(self, entrant: Entrant, life: float) -> str | None:
        """Return what stands once for somebody who came in, for ``life`` seconds, at every server of the database.

        None where there is no other server. What the local user gets is good at the workers of this one alone.
        """
        if not self._db.shared:
            return None
        key_id = entrant.key_id
        if key_id is None or key_id == KEYLESS:
            key_id = self.local_name + ("" if key_id is None else _KEYLESS)
        elif key_id not in self._now.entrants:
            return None
        value = secrets.token_urlsafe(KEY_BYTES)
        seconds = None if entrant.seconds is None else int(entrant.seconds)
        issue = partial(tickets.issue, sha256=sha256_of(value), key_id=key_id, seconds=seconds, life=life)
        await self._db.write(issue)
        return value

    async def redeem_ticket(self, value: str) -> Entrant | None:
        """Use up what `issue_ticket` returned, here or elsewhere; None when it stands for nobody."""
        if not self._db.shared:
            return None
        found = await self._db.write(partial(tickets.redeem, sha256=sha256_of(value)))
        if found is None:
            return None
        key_id, seconds = found
        if key_id == self.local_name:
            return Entrant(LOCAL, None)
        if key_id == self.local_name + _KEYLESS:
            return None if self.required else Entrant(LOCAL, KEYLESS)
        if key_id not in self._now.entrants:  # made by another process a moment ago?
            await self.refresh()
        entrant = self._now.entrants.get(key_id)
        return None if entrant is None else replace(entrant, seconds=seconds)

    def user_of_subject(self, subject: str) -> UserRecord | None:
        """Return an active user of an OpenID provider."""
        return self._now.subjects.get(subject)

    def provided_entrant(self, user_id: str) -> Entrant | None:
        """Return whom a token of the OpenID provider stands for, by the user's name; None for one who is not active."""
        return self._now.entrants.get(provided_key(user_id))

    async def create(
        self, user_id: str, role: KeyRole | None = None, domain_ids: Sequence[str] = ()
    ) -> tuple[KeyRecord, str]:
        """Make a key and return its record and the key itself, which is not kept.

        A user who is not there yet is made with the rights of the key; one who is gets those of it that are missing.

        Raises:
            InvalidInput: the name cannot be one; domains are missing, not known, or given for an operator; the user is
                disabled, or an OpenID provider says what they may do.
            NotFound: a key without a role is for a user who is there.
        """
        granted = tuple(dict.fromkeys(domain_ids))
        check_name(user_id, "user")
        _check(role, granted)
        secret = new_secret()
        key = KeyRecord(
            id=new_id("key"), user_id=user_id, role=role, domains=granted, sha256=sha256_of(secret), created_at=now()
        )
        told = change("key.create", key.id, userId=user_id, role=role, domains=granted)
        told_user = change("user.create", user_id, by="key.create")
        told_grants = change("user.update", user_id, by="key.create")

        def store(conn: Connection) -> None:
            for at, domain_id in enumerate(granted):
                if domains.get(conn, domain_id) is None:
                    raise InvalidInput(f"domains.{at}", f"there is no domain {domain_id!r}.")
            found = users.get(conn, user_id)
            if found is None:
                if role is None:
                    raise NotFound("user", user_id)
                users.insert(conn, _user_for(conn, key))
                audit(conn, told_user)
            elif _raise_rights(conn, found, key):
                logins.end_of_user(conn, user_id)
                audit(conn, told_grants)
            keys.insert(conn, key)
            audit(conn, told)

        await self._db.write(store, durable=True)
        await self.take_up()
        return key, secret

    async def list_all(self) -> list[KeyRecord]:
        """Return all keys, oldest first, revoked ones too."""
        return await self._db.read(keys.list_all)

    async def revoke(self, key_id: str) -> None:
        """Revoke a key: at once for new requests, for sign-ins that were made with it, and for what is open with it.

        Raises:
            NotFound: there is no such key, or it is revoked.
        """
        told = change("key.revoke", key_id)

        def store(conn: Connection) -> KeyRecord | None:
            revoked = keys.revoke(conn, key_id, now())
            if revoked is not None:
                logins.end_of_key(conn, key_id)
                audit(conn, told)
            return revoked

        if await self._db.write(store, durable=True) is None:
            raise NotFound("key", key_id)
        self.drop(key_ids=(key_id,))
        await self.take_up()

    async def take_up(self) -> None:
        """Take up what was committed here: what it ends, ends now."""
        self._epoch += 1
        with anyio.CancelScope(shield=True):  # a client that leaves does not leave a revoked key open
            await self.refresh()

    def drop(self, *, user_ids: Sequence[str] = (), key_ids: Sequence[str] = (), login_ids: Sequence[str] = ()) -> None:
        """Forget what was ended in the store, without reading it: also where the store can no longer be read."""
        self._epoch += 1
        held = self._now
        self._apply(
            _active(
                self.local_name,
                (user for user in held.users.values() if user.id not in user_ids),
                (key for key in held.keys.values() if key.id not in key_ids),
                (each for each in held.logins.values() if each.id not in login_ids),
            )
        )

    def put_login(self, login: LoginRecord) -> None:
        """Take up a new sign-in, or one that was renewed."""
        self._epoch += 1
        held = self._now
        signed = {**held.logins, login.sha256: login}
        self._apply(_active(self.local_name, held.users.values(), held.keys.values(), signed.values()))

    def _take(self, found: "_Read") -> None:
        self._apply(_active(self.local_name, found.users, found.keys, found.logins))
        if found.keys and not self.required:
            self.required = True
            self._end(KEYLESS)
        if found.keys or self._provider:
            self.first_key.set()

    def _apply(self, after: _Active) -> None:
        before, self._now = self._now, after
        for ident, entrant in before.entrants.items():
            kept = after.entrants.get(ident)
            if kept is None or not kept.user.covers(entrant.user):
                self._end(ident)

    def _end(self, key_id: str) -> None:
        if self._use is not None:
            self._use.end(key_id)


@dataclass(frozen=True, slots=True)
class _Read:
    users: list[UserRecord]
    keys: list[KeyRecord]
    logins: list[LoginRecord]


def _read(conn: Connection) -> _Read:
    return _Read(users.list_all(conn), keys.active(conn), logins.active(conn, now()))


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
    """Give a user what a new key needs and they do not have; return whether there was anything."""
    if user.state is not UserState.ACTIVE:
        raise InvalidInput("user", f"{user.id} is {user.state.value}: enable the user first.")
    operator = user.operator or key.role is KeyRole.OPERATOR
    grants = user.grants if operator else join_grants(user.grants, grants_of(key.role, key.domains))
    if (operator, grants) == (user.operator, user.grants):
        return False
    if user.origin is Origin.OIDC:
        raise InvalidInput("role", f"what {user.id} may do is said by the OpenID provider: at most that is possible.")
    users.update(conn, user.id, key.created_at, operator=operator, grants=grants)
    return True


def check_name(user_id: str, field: str) -> None:
    """Check a user's name.

    Raises:
        InvalidInput: it cannot be one.
    """
    if not _USER.fullmatch(user_id) or user_id in _RESERVED:
        raise InvalidInput(field, "1 to 64 letters, digits and . _ @ + - are expected, and no reserved name.")


def check_grants(conn: Connection, grants: dict[str, Grant]) -> None:
    """Check that the domains of grants are there, inside the transaction that stores them.

    Raises:
        InvalidInput: one is not.
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
    """Return a key that nobody has yet."""
    return PREFIX + secrets.token_urlsafe(KEY_BYTES)


def sha256_of(secret: str) -> str:
    """Return what is kept of a secret."""
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()
