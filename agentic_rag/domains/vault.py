"""The vault: a domain's secrets, sealed in the database and write-only for clients.

Seals with AES-256-GCM and with domain and name as associated data, so that a row copied elsewhere does not open. Also
creates the masks that are shown, and rotates keys. Every opened or sealed value is registered with the redactor for its
domain. Knows no MCP server and no route.

A sealed value is ``1``, the key's id (8 bytes), the nonce (12), the ciphertext and its tag (16).
"""

import hmac
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import SecretStr
from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.base import failpoints
from agentic_rag.base.errors import NotFound, SecretLimit, SecretUnreadable
from agentic_rag.base.json_form import Json
from agentic_rag.base.redaction import Redactor
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.domains.vault_keys import (
    FILE_NAME,
    ID_BYTES,
    KEY_BYTES,
    SETTING,
    Keyring,
    SealingKey,
    configured_keys,
    file_keys,
    read_file,
    write_file,
)
from agentic_rag.store import secrets
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.secrets import SecretRecord

FORMAT = b"\x01"
NONCE_BYTES = 12
LAST4_FROM = 12
"""Minimum length for a mask with the last four characters; of shorter values they would reveal too much."""
ROTATE_ROWS = 50
"""Number of secrets that one transaction of a rotation seals."""

MAX_SECRETS, MAX_BYTES = 200, 64 * 1024
"""Limits of one domain's secrets together, because every text is searched for each secret in each encoding."""
SEAL_BYTES = 1 + ID_BYTES + NONCE_BYTES + 16

Mask = Json
"""``{"set": true, "last4"?}``"""


class Vault:
    """The secrets of one store. Signals report changes by other processes. Created by `open`."""

    def __init__(self, database: Database, keys: Keyring, redact: Redactor) -> None:
        self.redact = redact
        self._db = database
        self._keys = keys
        self._opened: dict[str, Mapping[str, str | None]] = {}
        self._epoch = 0

    @classmethod
    async def open(cls, database: Database, folder: Path, setting: SecretStr | None, redact: Redactor) -> "Vault":
        """Load or create the keys and try them on all stored secrets.

        Raises:
            BadConfiguration: a key is weak or malformed, or the key of a stored secret is missing.
        """
        rows = await database.read(secrets.list_all)
        configured = setting.get_secret_value().strip() if setting is not None else ""
        keys = configured_keys(configured, folder) if configured else file_keys(folder, make=not rows)
        self = cls(database, keys, redact)
        # A damaged row costs one secret. A missing key would make all secrets of its time unreadable, so the server
        # stops.
        unknown = [row for row in rows if keys.find(_key_id(row.sealed)) is None and row.sealed[:1] == FORMAT]
        if unknown:
            raise BadConfiguration(
                SETTING,
                f"{len(unknown)} of {len(rows)} stored secrets were sealed with a key that is not here. Put back "
                f"{folder / FILE_NAME}, or add the key after a comma. To give these secrets up: "
                "agentic-rag secrets rotate --drop-unreadable",
            )
        for row in rows:
            self._try(row)
        return self

    def seal(self, domain_id: str, name: str, value: str) -> SecretRecord:
        """Return the row for a value; the caller stores it."""
        self.redact.add(domain_id, name, value)
        return SecretRecord(
            domain_id=domain_id,
            name=name,
            sealed=seal(self._keys.current, domain_id, name, value),
            updated_at=now(),
        )

    def unseal(self, row: SecretRecord) -> str:
        """Return the value of a row.

        Raises:
            SecretUnreadable: the row does not open.
        """
        value = unseal(self._keys, row.domain_id, row.name, row.sealed)
        self.redact.add(row.domain_id, row.name, value)
        return value

    def seal_text(self, domain_id: str, name: str, text: str) -> SecretRecord:
        """Return the row for a text that contains secrets. The caller registers each of them with the redactor."""
        sealed = seal(self._keys.current, domain_id, name, text)
        return SecretRecord(domain_id=domain_id, name=name, sealed=sealed, updated_at=now())

    def open_text(self, row: SecretRecord) -> str:
        """Return the text from `seal_text`.

        Raises:
            SecretUnreadable: the row does not open.
        """
        return unseal(self._keys, row.domain_id, row.name, row.sealed)

    def derived_keys(self, purpose: str) -> list[bytes]:
        """Return a key for another purpose from each key of the secrets; the first one is the current key's."""
        # Never the sealing key itself: one purpose must not reveal anything about another.
        return [hmac.digest(key.data, f"agentic-rag {purpose}".encode(), "sha256") for key in self._keys.keys]

    def _try(self, row: SecretRecord) -> str | None:
        """Return the value, or None for a damaged row, which must not block the others."""
        try:
            return self.open_text(row) if row.name.startswith(secrets.OWN) else self.unseal(row)
        except SecretUnreadable:
            return None

    async def put(self, domain_id: str, name: str, value: str) -> Mask:
        """Store a value, replacing an earlier one. Returns its mask.

        Raises:
            SecretLimit: the domain would exceed its number or size of secrets.
        """
        row = self.seal(domain_id, name, value)
        entry = change("secret.set", f"{domain_id}/{name}")

        def save(conn: Connection) -> None:
            secrets.put(conn, row)
            check_limits(conn, domain_id, "value")
            audit(conn, entry)

        try:
            await self._db.write(save, durable=True)
        finally:  # a cancelled writer cannot know whether the value was stored
            self.forget(domain_id)
        await self.values(domain_id)  # reload: the redactor keeps the values that it saw last
        return mask(value)

    async def delete(self, domain_id: str, name: str) -> None:
        """Remove a value.

        Raises:
            NotFound: there is no such secret.
        """
        entry = change("secret.delete", f"{domain_id}/{name}")

        def remove(conn: Connection) -> bool:
            removed = bool(secrets.delete(conn, domain_id, (name,)))
            if removed:
                audit(conn, entry)
            return removed

        try:
            removed = await self._db.write(remove, durable=True)
        finally:
            self.forget(domain_id)
        if not removed:
            raise NotFound("secret", name)

    async def masks(self, domain_id: str) -> dict[str, Mask]:
        """Return the masks by name. For an unreadable secret, the mask only says that it is set."""
        rows = await self._db.read(lambda conn: secrets.of_domain(conn, domain_id))
        return {row.name: self._mask(row) for row in rows}

    def _mask(self, row: SecretRecord) -> Mask:
        value = self._try(row)
        return {"set": True} if value is None else mask(value)

    async def values(self, domain_id: str) -> Mapping[str, str | None]:
        """Return a domain's values by name, for a server that starts now. None marks an unreadable value.

        The values are cached in memory, where the redactor needs them anyway.
        """
        opened = self._opened.get(domain_id)
        if opened is None:
            epoch = self._epoch
            rows = await self._db.read(lambda conn: secrets.of_domain(conn, domain_id))
            opened = {row.name: self._try(row) for row in rows}
            # A value that changed during the read must not be cached as it was before.
            if epoch == self._epoch:
                self._opened[domain_id] = opened
        return opened

    def forget(self, domain_id: str) -> None:
        """Drop the cached values of a domain whose rows may have changed."""
        self._epoch += 1
        self._opened.pop(domain_id, None)

    async def refresh(self, domain_id: str | None) -> None:
        """Reload values that another process may have changed, for the redactor. None reloads all cached domains."""
        for affected in list(self._opened) if domain_id is None else [domain_id]:
            self.forget(affected)
            await self.values(affected)


def check_limits(conn: Connection, domain_id: str, path: str) -> None:
    """Check a domain's limits in the transaction that stored a secret. ``path`` names the field in errors.

    Raises:
        SecretLimit: names the field and the limit.
    """
    count, sealed = secrets.total(conn, domain_id)
    if count > MAX_SECRETS:
        raise SecretLimit(path, f"the domain would have {count} secrets; at most {MAX_SECRETS} are possible.")
    if (size := sealed - count * SEAL_BYTES) > MAX_BYTES:
        reason = f"the domain's secrets would have {size} bytes together; at most {MAX_BYTES} are possible."
        raise SecretLimit(path, reason)


def mask(value: str) -> Mask:
    """Return the mask of a value."""
    return {"set": True, "last4": value[-4:]} if len(value) >= LAST4_FROM else {"set": True}


def seal(key: SealingKey, domain_id: str, name: str, value: str) -> bytes:
    """Return a value sealed for one domain and name."""
    nonce = os.urandom(NONCE_BYTES)
    # A random nonce is safe here: 96 bits, and a key seals far fewer than 2^32 values.
    return FORMAT + key.id + nonce + AESGCM(key.data).encrypt(nonce, value.encode(), _bound(domain_id, name))


def unseal(keys: Keyring, domain_id: str, name: str, sealed: bytes) -> str:
    """Return the value from `seal`.

    Raises:
        SecretUnreadable: the value was changed, sealed for another domain or name, or sealed with an unknown key.
    """
    start = len(FORMAT) + ID_BYTES
    if sealed[:1] != FORMAT or len(sealed) < start + NONCE_BYTES + 16:
        raise SecretUnreadable(name, "it is damaged")
    key = keys.find(_key_id(sealed))
    if key is None:
        raise SecretUnreadable(name, "its key is not here")
    nonce, ciphertext = sealed[start : start + NONCE_BYTES], sealed[start + NONCE_BYTES :]
    try:
        return AESGCM(key.data).decrypt(nonce, ciphertext, _bound(domain_id, name)).decode()
    except InvalidTag as exc:
        raise SecretUnreadable(name, "it was changed, or belongs to another domain or name") from exc


def _bound(domain_id: str, name: str) -> bytes:
    return f"{domain_id}|{name}".encode()


def _key_id(sealed: bytes) -> bytes:
    return sealed[len(FORMAT) : len(FORMAT) + ID_BYTES]


@dataclass(frozen=True, slots=True)
class UnreadableSecret:
    """A stored secret that no key opens, with the reason."""

    domain_id: str
    name: str
    reason: str


def find_unreadable(rows: Sequence[SecretRecord], folder: Path, setting: SecretStr | None) -> list[UnreadableSecret]:
    """Try the keys on stored secrets and return those that do not open. Returns no values. Blocks.

    Raises:
        BadConfiguration: a key is weak, malformed or readable by others, or it is missing although there are secrets.
    """
    configured = setting.get_secret_value().strip() if setting is not None else ""
    if not configured and not rows and not os.path.lexists(folder / FILE_NAME):
        return []  # the first server creates the key
    keys = configured_keys(configured, folder) if configured else file_keys(folder, make=False)
    unreadable = []
    for row in rows:
        try:
            unseal(keys, row.domain_id, row.name, row.sealed)
        except SecretUnreadable as exc:
            unreadable.append(UnreadableSecret(row.domain_id, row.name, exc.reason))
    return unreadable


async def rotate(
    database: Database,
    folder: Path,
    setting: SecretStr | None,
    *,
    drop_unreadable: bool = False,
) -> tuple[int, int]:
    """Seal all secrets with a new key of the key file, or with the first key of the operator's setting.

    If a rotation is interrupted, all secrets stay readable, and the next rotation continues: the old key is removed
    from the file only when no secret needs it. Returns the numbers of sealed and of dropped secrets.

    Raises:
        BadConfiguration: there is no second key to rotate to, or the key of a secret is missing.
        SecretUnreadable: a secret does not open and ``drop_unreadable`` is not set; nothing is lost.
    """
    configured = setting.get_secret_value().strip() if setting is not None else ""
    rows = await database.read(secrets.list_all)
    keys = _rotation_keys(configured, folder, has_secrets=bool(rows) and not drop_unreadable)
    sealed, dropped = 0, 0
    # With ``drop_unreadable``, also try secrets of the new key: damage shows only when they are opened.
    old = [row for row in rows if drop_unreadable or _key_id(row.sealed) != keys.current.id]
    for at in range(0, len(old), ROTATE_ROWS):
        batch: list[tuple[SecretRecord, bytes | None]] = []
        for row in old[at : at + ROTATE_ROWS]:
            try:
                value = unseal(keys, row.domain_id, row.name, row.sealed)
            except SecretUnreadable:
                if not drop_unreadable:
                    raise
                batch.append((row, None))
            else:
                batch.append((row, seal(keys.current, row.domain_id, row.name, value)))
        await database.write(lambda conn, batch=batch: _store(conn, batch), durable=True)  # type: ignore[misc]
        dropped += sum(new is None for _, new in batch)
        sealed += sum(new is not None for _, new in batch)
        failpoints.reached("rotate.batch")
    if keys.file is not None:
        write_file(keys.file, (keys.current,))
    elif (folder / FILE_NAME).exists():
        (folder / FILE_NAME).unlink()  # no secret needs its key any more
    return sealed, dropped


def _rotation_keys(configured: str, folder: Path, *, has_secrets: bool) -> Keyring:
    """Return the keys, the sealing one first. A new key is on disk before it is used."""
    if configured:
        keys = configured_keys(configured, folder)
        if len(keys.keys) == 1:
            raise BadConfiguration(SETTING, "put the new key first, then a comma and the present one, and try again.")
        return keys
    keys = file_keys(folder, make=not has_secrets)
    if len(keys.keys) == 1:
        assert keys.file is not None
        # Both keys are in the file until the end, so an interrupted rotation leaves every secret readable.
        write_file(keys.file, (SealingKey(os.urandom(KEY_BYTES)), *keys.keys))
        keys = Keyring(tuple(read_file(keys.file)), keys.file)
    return keys


def _store(conn: Connection, batch: list[tuple[SecretRecord, bytes | None]]) -> None:
    for row, new in batch:
        if new is None:
            secrets.delete(conn, row.domain_id, (row.name,))
        else:
            secrets.reseal(conn, row, new)
