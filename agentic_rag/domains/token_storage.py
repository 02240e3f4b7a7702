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
class SignInAccount:
    """An account with its secrets. ``requested`` holds the requested scopes, granted or not."""

    record: AccountRecord
    access: str
    refresh: str | None
    resource: ProtectedResource
    client: OAuthRegistration
    requested: str


class TokenStore:
    """The accounts of all domains."""

    def __init__(self, database: Database, vault: Vault) -> None:
        self._db = database
        self._vault = vault

    async def find(self, spec: LaunchSpec, url: str) -> SignInAccount | None:
        """Return the account for a connection, or None, also if the server had another address at sign-in."""

        def read(conn: Connection) -> tuple[AccountRecord, SecretRecord | None] | None:
            record = sign_ins.account(conn, spec.domain, spec.name, spec.owner)
            if record is None or record.url != url:
                return None
            name = account_name(record.issuer, record.server, record.user_id)
            return record, secrets.get(conn, record.domain_id, name)

        rows = await self._db.read(read)
        if rows is None:
            return None
        record, row = rows
        sealed = None if row is None else self.unseal(row)
        # Row and sealed part are written together. If they differ, a restore or an edit by hand has mixed two states.
        if sealed is None or sealed["generation"] != record.generation:
            return None
        self._hide(spec.domain, spec.name, sealed)
        resource, client = resource_from_json(sealed), client_from_json(sealed)
        return SignInAccount(record, sealed["access"], sealed["refresh"], resource, client, sealed["asked"])

    async def store(
        self,
        record: AccountRecord,
        tokens: Tokens,
        resource: ProtectedResource,
        client: OAuthRegistration,
        requested: str,
        entry: Entry | None = None,
    ) -> SignInAccount:
        """Store an account with its tokens, replacing an earlier one. ``entry`` is the audit entry, if there is one."""
        content = {
            **resource_to_json(resource),
            **client_to_json(client),
            "access": tokens.access,
            "refresh": tokens.refresh,
        }
        content |= {"asked": requested, "generation": record.generation}
        # Before the tokens are stored or used, so that no log line of either can show them.
        self._hide(record.domain_id, record.server, content)
        name = account_name(record.issuer, record.server, record.user_id)
        sealed = self._vault.seal_text(record.domain_id, name, json.dumps(content))

        def write(conn: Connection) -> None:
            before = sign_ins.account(conn, record.domain_id, record.server, record.user_id)
            # An earlier account may be sealed under another issuer, which the new row would not replace.
            if before is not None:
                forget_account(conn, before)
            sign_ins.put_account(conn, record)
            secrets.put(conn, sealed)
            if entry is not None:
                audit(conn, entry)

        await self._db.write(write, durable=True)
        return SignInAccount(record, tokens.access, tokens.refresh, resource, client, requested)

    async def read(self, domain_id: str, name: str) -> dict[str, Any] | None:
        """Return the content sealed under a name, or None if there is none or it does not open."""
        row = await self._db.read(lambda conn: secrets.get(conn, domain_id, name))
        return None if row is None else self.unseal(row)

    def unseal(self, row: SecretRecord) -> dict[str, Any] | None:
        """Return the sealed content, or None if it does not open; then it counts as missing."""
        try:
            content: dict[str, Any] = json.loads(self._vault.open_text(row))
        except SecretUnreadable:
            return None
        return content

    def _hide(self, domain_id: str, server: str, content: Mapping[str, Any]) -> None:
        """Register tokens and client secrets with the redactor."""
        for value in (content["access"], content["refresh"], content["client"].get("client_secret")):
            if value:
                self._vault.redact.add(domain_id, f"{server}.oauth", value)


def resource_to_json(resource: ProtectedResource) -> dict[str, Any]:
    """Return the JSON form of a protected resource; `resource_from_json` reads it."""
    metadata = resource.metadata.model_dump(mode="json", exclude_none=True)
    return {"metadata": metadata, "resource": resource.resource, "scopes": resource.scopes, "guessed": resource.guessed}


def resource_from_json(content: Mapping[str, Any]) -> ProtectedResource:
    """Return the resource from its JSON form."""
    scopes = None if content["scopes"] is None else tuple(content["scopes"])
    return ProtectedResource(
        OAuthMetadata.model_validate(content["metadata"]), content["resource"], scopes, content["guessed"]
    )


def client_to_json(client: OAuthRegistration) -> dict[str, Any]:
    """Return the JSON form of a client; `client_from_json` reads it."""
    return {"client": client.registration.model_dump(mode="json", exclude_none=True), "key": client.key}


def client_from_json(content: Mapping[str, Any]) -> OAuthRegistration:
    """Return the client from its JSON form."""
    return OAuthRegistration(OAuthClientInformationFull.model_validate(content["client"]), content["key"])
