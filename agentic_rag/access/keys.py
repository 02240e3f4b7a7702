"""API keys: who may come in, as whom, with which rights.

Owns making, listing and revoking keys, and the table of active ones in memory: looking a key up costs one hash and
one dict access. The key itself exists in the answer to its making and nowhere else. Knows no request.

A key is required once there is one, on loopback too; a process that has seen one goes on requiring it until it
ends, so that revoking the last key opens nothing. The command line on the data folder comes in by `local_key`,
which lives as long as the process and lies in a file only its owner can read.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import anyio
from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.users import ANONYMOUS, LOCAL, SYSTEM, User
from agentic_rag.errors import BadConfiguration, InvalidInput, NotFound
from agentic_rag.store import domains, keys
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.keys import KeyRecord, KeyRole

PREFIX: Final = "arag_"
"""What every key begins with, so that a scanner for leaked secrets can know one."""
REFRESH_SECONDS: Final = 5.0
"""How long a key that another process made or revoked is unknown here."""
KEY_BYTES: Final = 32
MAX_DOMAINS: Final = 1_000

KEYLESS: Final = ""
"""Stands for a key's id where the local user came in without one: what is open so ends with the first key."""

_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")


@dataclass(frozen=True, slots=True)
class Entrant:
    """Whom a key stands for. ``key_id`` is None for the local one, and `KEYLESS` where none was shown or needed."""

    user: User
    key_id: str | None


class KeyUse(Protocol):
    """What is open with keys; the edge knows."""

    def end(self, key_id: str) -> None:
        """End all that is open with a key that ceased to be active, or without one (`KEYLESS`) as one is needed now."""
        ...


class Access:
    """The keys of one database. ``required``: whether nobody comes in without one; ``use``: what is open with them."""

    def __init__(self, database: Database, *, required: bool = False, use: KeyUse | None = None) -> None:
        self.required = required
        self.first_key = anyio.Event()
        """Set with the first key that this process sees."""
        self.local_key = _new_secret()
        self._use = use
        self._db = database
        self._local = _sha256(self.local_key)
        self._active: dict[str, tuple[str, Entrant]] = {}
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
        if self.required and not self._active:
            raise BadConfiguration(
                "host",
                "beyond loopback an API key is required and there is none. Make one first, with the same data folder: "
                "agentic-rag keys create --user NAME --role operator",
            )

    async def refresh(self) -> None:
        """Read the keys again: another process may have made or revoked some."""
        epoch = self._epoch
        found = await self._db.read(keys.active)
        if epoch != self._epoch:
            return  # one was made or revoked here meanwhile: what was read may be older
        before = {entrant.key_id for _, entrant in self._active.values()}
        self._active = {key.sha256: (key.sha256, _entrant(key)) for key in found}
        if found:
            self._require()
        for gone in before - {key.id for key in found}:
            self._tell_revoked(gone)

    def entrant(self, secret: str) -> Entrant | None:
        """Return whom a key stands for, None when it is not known or revoked."""
        given = _sha256(secret)
        if hmac.compare_digest(given, self._local):
            return Entrant(LOCAL, None)
        known, entrant = self._active.get(given, ("", None))
        return entrant if hmac.compare_digest(known, given) else None

    async def create(self, user_id: str, role: KeyRole, domain_ids: Sequence[str] = ()) -> tuple[KeyRecord, str]:
        """Make a key and return its record and the key itself, which is not kept.

        Raises:
            InvalidInput: the name cannot be one; domains are missing, not known, or given for an operator.
        """
        granted = tuple(dict.fromkeys(domain_ids))
        _check(user_id, role, granted)
        secret = _new_secret()
        key = KeyRecord(
            id=new_id("key"), user_id=user_id, role=role, domains=granted, sha256=_sha256(secret), created_at=now()
        )
        told = change("key.create", key.id, userId=user_id, role=role, domains=granted)

        def store(conn: Connection) -> None:
            for at, domain_id in enumerate(granted):
                if domains.get(conn, domain_id) is None:
                    raise InvalidInput(f"domains.{at}", f"there is no domain {domain_id!r}.")
            keys.insert(conn, key)
            audit(conn, told)

        await self._db.write(store, durable=True)
        self._epoch += 1
        self._active[key.sha256] = (key.sha256, _entrant(key))
        self._require()
        return key, secret

    async def list_all(self) -> list[KeyRecord]:
        """Return all keys, oldest first, revoked ones too."""
        return await self._db.read(keys.list_all)

    async def revoke(self, key_id: str) -> None:
        """Revoke a key: at once for new requests and for what is open with it.

        Raises:
            NotFound: there is no such key, or it is revoked.
        """
        told = change("key.revoke", key_id)

        def store(conn: Connection) -> KeyRecord | None:
            revoked = keys.revoke(conn, key_id, now())
            if revoked is not None:
                audit(conn, told)
            return revoked

        revoked = await self._db.write(store, durable=True)
        if revoked is None:
            raise NotFound("key", key_id)
        self._epoch += 1
        self._active.pop(revoked.sha256, None)
        self._tell_revoked(key_id)

    def _require(self) -> None:
        if not self.required:
            self.required = True
            self._tell_revoked(KEYLESS)
        self.first_key.set()

    def _tell_revoked(self, key_id: str | None) -> None:
        if key_id is not None and self._use is not None:
            self._use.end(key_id)


def _check(user_id: str, role: KeyRole, granted: Sequence[str]) -> None:
    if not _USER.fullmatch(user_id) or user_id in (SYSTEM, ANONYMOUS):
        raise InvalidInput("user", "1 to 64 letters, digits and . _ @ + - are expected, and no reserved name.")
    if role is KeyRole.OPERATOR and granted:
        raise InvalidInput("domains", "an operator's key is for all domains: name none.")
    if role is not KeyRole.OPERATOR and not granted:
        raise InvalidInput("domains", f"name at least one domain that the {role} may use.")
    if len(granted) > MAX_DOMAINS:
        raise InvalidInput("domains", f"at most {MAX_DOMAINS} are possible.")


def _entrant(key: KeyRecord) -> Entrant:
    user = User(key.user_id, key.role is KeyRole.OPERATOR, key.role is KeyRole.ADMIN, frozenset(key.domains))
    return Entrant(user, key.id)


def _new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(KEY_BYTES)


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()
