"""Domain records.

This module owns their versions, and deletes the records that belong to a domain with it.
`agentic_rag.directory.settings` gives the settings their meaning.
"""

from typing import Any, TypedDict, Unpack

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.base.errors import NotFound, VersionConflict
from agentic_rag.store import memories, signals
from agentic_rag.store.columns import Key
from agentic_rag.store.record import Record, delete_parts
from agentic_rag.store.signals import SignalKind
from agentic_rag.store.statements import Prepared, parameter


class DomainRecord(Record, table=True):
    """A named knowledge area. ``settings``: the admin's values (`agentic_rag.directory.settings.DomainSettings`)."""

    __tablename__ = "domains"

    id: Key[str]
    name: str
    description: str = ""
    settings: dict[str, Any]
    workspace: str
    """Absolute path of the folder, which the server creates."""
    version: int = 1
    created_at: str
    updated_at: str


DOMAINS = DomainRecord.__table__
_domains = DOMAINS.c
_GET = Prepared(sa.select(DOMAINS).where(_domains.id == parameter(_domains.id)))


class DomainFields(TypedDict, total=False):
    """The fields that `update` can change."""

    name: str
    description: str
    settings: dict[str, Any]
    workspace: str


def insert(conn: Connection, domain: DomainRecord) -> None:
    """Store a new domain.

    Raises:
        IntegrityError: the id is taken.
    """
    domain.insert(conn)
    signals.send(conn, SignalKind.DOMAIN, domain.id)


def get(conn: Connection, domain_id: str) -> DomainRecord | None:
    """Return the domain, or None."""
    return DomainRecord.first(conn, _GET, id=domain_id)


def list_all(conn: Connection) -> list[DomainRecord]:
    """Return all domains, oldest first."""
    return DomainRecord.all(conn, sa.select(DOMAINS).order_by(_domains.created_at, _domains.id))


def lock(conn: Connection, domain_id: str) -> None:
    """Lock a domain until the end of the transaction, so that changes of its parts follow one another.

    Raises:
        NotFound: there is no such domain.
    """
    if conn.execute(sa.select(_domains.id).where(_domains.id == domain_id).with_for_update()).first() is None:
        raise NotFound("domain", domain_id)


def update(
    conn: Connection, domain_id: str, *, version: int | None, updated_at: str, **fields: Unpack[DomainFields]
) -> int:
    """Change the given fields and return the new version. ``version``: the one the change was made from, or None.

    Raises:
        NotFound: there is no such domain.
        VersionConflict: ``version`` is not the current one; nothing was changed.
    """
    query = sa.select(_domains.version).where(_domains.id == domain_id).with_for_update()
    current: int | None = conn.execute(query).scalar()
    if current is None:
        raise NotFound("domain", domain_id)
    if version is not None and version != current:
        raise VersionConflict(version, current)
    change = {**fields, "version": current + 1, "updated_at": updated_at}
    conn.execute(sa.update(DOMAINS).where(_domains.id == domain_id).values(change))
    signals.send(conn, SignalKind.DOMAIN, domain_id)
    return current + 1


def delete(conn: Connection, domain_id: str) -> bool:
    """Delete the record and those of its documents, images, retrievals, secrets, memories and tool lists.

    Returns False if there was none. The caller must first delete the domain's conversations and their sessions, because
    their turns must end before.
    """
    delete_parts(conn, "domain", domain_id)
    memories.delete_of(conn, domain_id)
    signals.send(conn, SignalKind.DOMAIN, domain_id)
    return conn.execute(sa.delete(DOMAINS).where(_domains.id == domain_id)).rowcount == 1
