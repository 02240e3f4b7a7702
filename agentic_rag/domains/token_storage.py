"""Storage of sign-in accounts and their sealed tokens.

A row and its sealed part belong to the same generation. Every token is registered with the redactor before it is used.
Makes no network requests.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata
from sqlalchemy import Connection

from agentic_rag.access.auditing import audit
from agentic_rag.base.errors import SecretUnreadable
from agentic_rag.domains.sign_in_secrets import account_name, forget_account
from agentic_rag.domains.vault import Vault
from agentic_rag.store import secrets, sign_ins
from agentic_rag.store.audit import Entry
from agentic_rag.store.database import Database
from agentic_rag.store.secrets import SecretRecord
from agentic_rag.store.sign_ins import AccountRecord
from agentic_rag.tools.launch.spec import LaunchSpec
from agentic_rag.tools.oauth.discovery import ProtectedResource
from agentic_rag.tools.oauth.grants import OAuthRegistration, Tokens


@dataclass(frozen=True, slots=True)
class Account:
    """An account with its secrets. ``asked`` holds the requested scopes, granted or not."""

    record: AccountRecord
    access: str
    refresh: str | None
    place: ProtectedResource
    client: OAuthRegistration
    asked: str


class KeptTokens:
    """The accounts of all domains."""

    def __init__(self, database: Database, vault: Vault) -> None:
        self._db = database
        self._vault = vault

    async def find(self, spec: LaunchSpec, url: str) -> Account | None:
        """Return the account for a connection, or None, also if the server had another address at sign-in."""

        def read(conn: Connection) -> tuple[AccountRecord, SecretRecord | None] | None:
            record = sign_ins.account(conn, spec.domain, spec.name, spec.owner)
            if record is None or record.url != url:
                return None
            name = account_name(record.issuer, record.server, record.user_id)
            return record, secrets.get(conn, record.domain_id, name)

        found = await self._db.read(read)
        kept = None if found is None or found[1] is None else self.unseal(found[1])
        if found is None or kept is None or kept["generation"] != found[0].generation:
            return None
        self._hide(spec.domain, spec.name, kept)
        return Account(found[0], kept["access"], kept["refresh"], place_from(kept), client_from(kept), kept["asked"])

    async def keep(
        self,
        record: AccountRecord,
        tokens: Tokens,
        place: ProtectedResource,
        client: OAuthRegistration,
        asked: str,
        told: Entry | None = None,
    ) -> Account:
        """Store an account with its tokens, replacing an earlier one. ``told`` is the audit row."""
        kept = {**place_to(place), **client_to(client), "access": tokens.access, "refresh": tokens.refresh}
        kept |= {"asked": asked, "generation": record.generation}
        self._hide(record.domain_id, record.server, kept)
        name = account_name(record.issuer, record.server, record.user_id)
        sealed = self._vault.seal_text(record.domain_id, name, json.dumps(kept))

        def store(conn: Connection) -> None:
            before = sign_ins.account(conn, record.domain_id, record.server, record.user_id)
            if before is not None:
                forget_account(conn, before)
            sign_ins.put_account(conn, record)
            secrets.put(conn, sealed)
            if told is not None:
                audit(conn, told)

        await self._db.write(store, durable=True)
        return Account(record, tokens.access, tokens.refresh, place, client, asked)

    async def read(self, domain_id: str, name: str) -> dict[str, Any] | None:
        """Return the content sealed under a name, or None if there is none or it does not open."""
        row = await self._db.read(lambda conn: secrets.get(conn, domain_id, name))
        return None if row is None else self.unseal(row)

    def unseal(self, row: SecretRecord) -> dict[str, Any] | None:
        """Return the sealed content, or None if it does not open; then it counts as missing."""
        try:
            kept: dict[str, Any] = json.loads(self._vault.open_text(row))
        except SecretUnreadable:
            return None
        return kept

    def _hide(self, domain_id: str, server: str, kept: Mapping[str, Any]) -> None:
        """Register tokens and client secrets with the redactor."""
        for value in (kept["access"], kept["refresh"], kept["client"].get("client_secret")):
            if value:
                self._vault.redact.add(domain_id, f"{server}.oauth", value)


def place_to(place: ProtectedResource) -> dict[str, Any]:
    """Return the JSON form of a place; `place_from` reads it."""
    metadata = place.metadata.model_dump(mode="json", exclude_none=True)
    return {"metadata": metadata, "resource": place.resource, "scopes": place.scopes, "guessed": place.guessed}


def place_from(kept: Mapping[str, Any]) -> ProtectedResource:
    """Return the place from its JSON form."""
    scopes = None if kept["scopes"] is None else tuple(kept["scopes"])
    return ProtectedResource(OAuthMetadata.model_validate(kept["metadata"]), kept["resource"], scopes, kept["guessed"])


def client_to(client: OAuthRegistration) -> dict[str, Any]:
    """Return the JSON form of a client; `client_from` reads it."""
    return {"client": client.registration.model_dump(mode="json", exclude_none=True), "key": client.key}


def client_from(kept: Mapping[str, Any]) -> OAuthRegistration:
    """Return the client from its JSON form."""
    return OAuthRegistration(OAuthClientInformationFull.model_validate(kept["client"]), kept["key"])
