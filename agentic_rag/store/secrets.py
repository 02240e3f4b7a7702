"""Sealed secrets: opaque bytes by domain and name.

``domains.vault`` encrypts and decrypts them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store import signals
from agentic_rag.store.records import RecordTable
from agentic_rag.store.signals import SignalKind


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRecord:
    """A sealed secret of a domain.

    ``name`` is an admin's choice, ``{server}.env.{NAME}`` for an MCP entry's own value, or `OWN` followed by its
    subject.
    """

    domain_id: str
    name: str
    sealed: bytes
    """Opaque outside ``agentic_rag.domains.vault``."""
    updated_at: str


SECRETS = RecordTable(SecretRecord, "secrets", key=("domain_id", "name"), part_of="domain")
_secrets = SECRETS.c


OWN = "sign-in:"
"""The name prefix of secrets that no person entered: tokens of sign-ins and related values. They count for no limit."""


def put(conn: Connection, secret: SecretRecord) -> None:
    """Store a sealed value, replacing an earlier one of the same name."""
    delete(conn, secret.domain_id, (secret.name,))
    SECRETS.insert(conn, secret)
    signals.send(conn, SignalKind.DOMAIN, secret.domain_id)


def get(conn: Connection, domain_id: str, name: str) -> SecretRecord | None:
    """Return the secret, or None."""
    return SECRETS.first(conn, SECRETS.select.where(_secrets.domain_id == domain_id, _secrets.name == name))


def of_domain(conn: Connection, domain_id: str) -> list[SecretRecord]:
    """Return all secrets that people entered for a domain, by name."""
    query = SECRETS.select.where(_secrets.domain_id == domain_id, _is_entered()).order_by(_secrets.name)
    return SECRETS.all(conn, query)


def total(conn: Connection, domain_id: str) -> tuple[int, int]:
    """Return the number and the total sealed size in bytes of the secrets entered for a domain."""
    query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(sa.func.length(_secrets.sealed)), 0))
    count, size = conn.execute(query.where(_secrets.domain_id == domain_id, _is_entered())).one()
    return int(count), int(size)


def _is_entered() -> sa.ColumnElement[bool]:
    return sa.not_(_secrets.name.startswith(OWN, autoescape=True))


def list_all(conn: Connection) -> list[SecretRecord]:
    """Return all secrets of all domains, in a fixed order."""
    query = SECRETS.select.order_by(_secrets.domain_id, _secrets.name)
    return SECRETS.all(conn, query)


def reseal(conn: Connection, secret: SecretRecord, sealed: bytes) -> None:
    """Replace the bytes of one secret, if they are unchanged since ``secret`` was read."""
    conn.execute(
        sa.update(SECRETS.table)
        .where(
            _secrets.domain_id == secret.domain_id,
            _secrets.name == secret.name,
            _secrets.sealed == secret.sealed,
        )
        .values(sealed=sealed)
    )
    signals.send(conn, SignalKind.DOMAIN, secret.domain_id)


def delete(conn: Connection, domain_id: str, names: Sequence[str]) -> int:
    """Delete the named secrets; return their number."""
    chosen = sa.delete(SECRETS.table).where(_secrets.domain_id == domain_id, _secrets.name.in_(names))
    removed = conn.execute(chosen).rowcount
    if removed:
        signals.send(conn, SignalKind.DOMAIN, domain_id)
    return removed
