"""Stored searches: why these passages.

Owns putting, getting and forgetting them. Knows no index and no score.
"""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.records import RecordTable


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalRecord:
    """Why these passages: a stored search with the candidates of each leg."""

    id: str
    domain_id: str
    query: str
    mode: str
    trace: dict[str, Any]
    created_at: str


RETRIEVALS = RecordTable(RetrievalRecord, "retrievals", indexed=("domain_id",), part_of="domain")
_retrievals = RETRIEVALS.c


def put(conn: Connection, retrieval: RetrievalRecord) -> None:
    """Store a search.

    Raises:
        IntegrityError: the id is taken.
    """
    RETRIEVALS.insert(conn, retrieval)


def get(conn: Connection, retrieval_id: str) -> RetrievalRecord | None:
    """Return the search, None when there is none."""
    return RETRIEVALS.first(conn, RETRIEVALS.select.where(_retrievals.id == retrieval_id))


def newest(conn: Connection, domain_id: str, limit: int) -> list[RetrievalRecord]:
    """Return the domain's last searches, newest first."""
    query = RETRIEVALS.select.where(_retrievals.domain_id == domain_id)
    query = query.order_by(_retrievals.created_at.desc(), _retrievals.id.desc()).limit(limit)
    return RETRIEVALS.all(conn, query)


def prune(conn: Connection, domain_id: str, keep: int) -> int:
    """Forget all but the newest ``keep`` searches of a domain; return how many went."""
    query = sa.select(_retrievals.created_at).where(_retrievals.domain_id == domain_id)
    query = query.order_by(_retrievals.created_at.desc()).offset(keep).limit(1)
    oldest: str | None = conn.execute(query).scalar()
    if oldest is None:
        return 0
    old = sa.and_(_retrievals.domain_id == domain_id, _retrievals.created_at <= oldest)
    return conn.execute(sa.delete(RETRIEVALS.table).where(old)).rowcount
