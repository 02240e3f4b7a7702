"""Sealed secrets: opaque bytes by domain and name.

``domains.vault`` encrypts and decrypts them.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store import signals
from agentic_rag.store.columns import Key
from agentic_rag.store.record import Record
from agentic_rag.store.signals import SignalKind


class SecretRecord(Record, table=True):
    """A sealed secret of a domain.

    ``name`` is an admin's choice, ``{server}.env.{NAME}`` for an MCP entry's own value, or `OWN` followed by its
    subject.
    """

    __tablename__ = "secrets"
    part_of = "domain"

    domain_id: Key[str]
    name: Key[str]
    sealed: bytes
    """Opaque outside ``agentic_rag.domains.vault``."""
    updated_at: str


SECRETS = SecretRecord.__table__
_secrets = SECRETS.c


OWN = "sign-in:"
"""The name prefix of secrets that no person entered: tokens of sign-ins and related values. They count for no limit."""


def endpoint_secret(endpoint_id: str) -> str:
    """Return the name under which the address and secret of an endpoint are sealed."""
    return f"{OWN}endpoint:{endpoint_id}"


def schedule_secret(schedule_id: str) -> str:
    """Return the name under which the secret of a schedule's webhook is sealed."""
    return f"{OWN}schedule:{schedule_id}"


def put(conn: Connection, secret: SecretRecord) -> None:
    """Store a sealed value, replacing an earlier one of the same name."""
    secret.put(conn, ("domain_id", "name"))
    signals.send(conn, SignalKind.DOMAIN, secret.domain_id)


def get(conn: Connection, domain_id: str, name: str) -> SecretRecord | None:
    """Return the secret, or None."""
    return SecretRecord.first(conn, sa.select(SECRETS).where(_secrets.domain_id == domain_id, _secrets.name == name))


def of_domain(conn: Connection, domain_id: str) -> list[SecretRecord]:
    """Return all secrets that people entered for a domain, by name."""
    query = sa.select(SECRETS).where(_secrets.domain_id == domain_id, _is_entered()).order_by(_secrets.name)
    return SecretRecord.all(conn, query)


def total(conn: Connection, domain_id: str) -> tuple[int, int]:
    """Return the number and the total sealed size in bytes of the secrets entered for a domain."""
    query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(sa.func.length(_secrets.sealed)), 0))
    count, size = conn.execute(query.where(_secrets.domain_id == domain_id, _is_entered())).one()
    return int(count), int(size)


def _is_entered() -> sa.ColumnElement[bool]:
    return sa.not_(_secrets.name.startswith(OWN, autoescape=True))


def list_all(conn: Connection) -> list[SecretRecord]:
    """Return all secrets of all domains, in a fixed order."""
    query = sa.select(SECRETS).order_by(_secrets.domain_id, _secrets.name)
    return SecretRecord.all(conn, query)


def reseal(conn: Connection, secret: SecretRecord, sealed: bytes) -> None:
    """Replace the bytes of one secret, if they are unchanged since ``secret`` was read."""
    conn.execute(
        sa.update(SECRETS)
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
    chosen = sa.delete(SECRETS).where(_secrets.domain_id == domain_id, _secrets.name.in_(names))
    removed = conn.execute(chosen).rowcount
    if removed:
        signals.send(conn, SignalKind.DOMAIN, domain_id)
    return removed
