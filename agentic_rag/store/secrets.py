"""Sealed secrets: opaque bytes by domain and name.

Owns putting, getting and removing them. Knows no key and no plain value.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.rows import values
from agentic_rag.store.tables import SecretRow, table

_secrets = table(SecretRow)
_NAMES = tuple(_secrets.c.keys())


def put(conn: Connection, secret: SecretRow) -> None:
    """Store a sealed value in place of an earlier one of its name."""
    delete(conn, secret.domain_id, (secret.name,))
    conn.execute(sa.insert(_secrets), values(secret, _NAMES))


def get(conn: Connection, domain_id: str, name: str) -> SecretRow | None:
    """Return one, None when there is none."""
    query = sa.select(_secrets).where(_secrets.c.domain_id == domain_id, _secrets.c.name == name)
    row = conn.execute(query).mappings().first()
    return None if row is None else SecretRow(**row)


def of_domain(conn: Connection, domain_id: str) -> list[SecretRow]:
    """Return all of a domain by name."""
    query = sa.select(_secrets).where(_secrets.c.domain_id == domain_id).order_by(_secrets.c.name)
    return [SecretRow(**row) for row in conn.execute(query).mappings()]


def list_all(conn: Connection) -> list[SecretRow]:
    """Return all of all domains, in a fixed order."""
    query = sa.select(_secrets).order_by(_secrets.c.domain_id, _secrets.c.name)
    return [SecretRow(**row) for row in conn.execute(query).mappings()]


def reseal(conn: Connection, secret: SecretRow, sealed: bytes) -> None:
    """Replace the bytes of one secret, if they are still those of ``secret``."""
    conn.execute(
        sa.update(_secrets)
        .where(
            _secrets.c.domain_id == secret.domain_id,
            _secrets.c.name == secret.name,
            _secrets.c.sealed == secret.sealed,
        )
        .values(sealed=sealed)
    )


def delete(conn: Connection, domain_id: str, names: Sequence[str]) -> int:
    """Remove the named ones; returns how many there were."""
    chosen = sa.delete(_secrets).where(_secrets.c.domain_id == domain_id, _secrets.c.name.in_(names))
    return conn.execute(chosen).rowcount
