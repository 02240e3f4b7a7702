"""Domains as records.

Owns their versions, and what goes with the record when it is deleted. Knows no setting's meaning.
"""

from typing import Any, TypedDict, Unpack

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.errors import NotFound, VersionConflict
from agentic_rag.store.rows import values
from agentic_rag.store.tables import CollectionRow, Document, Domain, Image, RetrievalRow, SecretRow, ToolListRow, table

_domains = table(Domain)
_NAMES = tuple(_domains.c.keys())


class DomainFields(TypedDict, total=False):
    """What `update` may change."""

    name: str
    description: str
    settings: dict[str, Any]
    workspace: str


def insert(conn: Connection, domain: Domain) -> None:
    """Store a new domain.

    Raises:
        IntegrityError: the id is taken.
    """
    conn.execute(sa.insert(_domains), values(domain, _NAMES))


def get(conn: Connection, domain_id: str) -> Domain | None:
    """Return the domain, None when there is none."""
    row = conn.execute(sa.select(_domains).where(_domains.c.id == domain_id)).mappings().first()
    return None if row is None else Domain(**row)


def list_all(conn: Connection) -> list[Domain]:
    """Return all domains, oldest first."""
    query = sa.select(_domains).order_by(_domains.c.created_at, _domains.c.id)
    return [Domain(**row) for row in conn.execute(query).mappings()]


def update(
    conn: Connection, domain_id: str, *, version: int | None, updated_at: str, **fields: Unpack[DomainFields]
) -> int:
    """Change the given fields and return the new version. ``version``: the one the change was made from, or None.

    Raises:
        NotFound: there is no such domain.
        VersionConflict: ``version`` is not the current one; nothing was changed.
    """
    query = sa.select(_domains.c.version).where(_domains.c.id == domain_id).with_for_update()
    current: int | None = conn.execute(query).scalar()
    if current is None:
        raise NotFound("domain", domain_id)
    if version is not None and version != current:
        raise VersionConflict(version, current)
    change = {**fields, "version": current + 1, "updated_at": updated_at}
    conn.execute(sa.update(_domains).where(_domains.c.id == domain_id).values(change))
    return current + 1


def delete(conn: Connection, domain_id: str) -> bool:
    """Delete the record and those of its documents, images, retrievals, secrets and tool lists.

    Returns False when there was none. Its conversations and their sessions are the caller's to delete before,
    since their turns must end first.
    """
    for noun in (Document, CollectionRow, Image, RetrievalRow, SecretRow, ToolListRow):
        conn.execute(sa.delete(table(noun)).where(table(noun).c.domain_id == domain_id))
    return conn.execute(sa.delete(_domains).where(_domains.c.id == domain_id)).rowcount == 1
