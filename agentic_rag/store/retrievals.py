"""Stored searches: why these passages.

Owns putting, getting and forgetting them. Knows no index and no score.
"""

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.rows import values
from agentic_rag.store.tables import RetrievalRow, table

_retrievals = table(RetrievalRow)
_NAMES = tuple(_retrievals.c.keys())


def put(conn: Connection, retrieval: RetrievalRow) -> None:
    """Store a search.

    Raises:
        IntegrityError: the id is taken.
    """
    conn.execute(sa.insert(_retrievals), values(retrieval, _NAMES))


def get(conn: Connection, retrieval_id: str) -> RetrievalRow | None:
    """Return the search, None when there is none."""
    row = conn.execute(sa.select(_retrievals).where(_retrievals.c.id == retrieval_id)).mappings().first()
    return None if row is None else RetrievalRow(**row)


def newest(conn: Connection, domain_id: str, limit: int) -> list[RetrievalRow]:
    """Return the domain's last searches, newest first."""
    query = sa.select(_retrievals).where(_retrievals.c.domain_id == domain_id)
    query = query.order_by(_retrievals.c.created_at.desc(), _retrievals.c.id.desc()).limit(limit)
    return [RetrievalRow(**row) for row in conn.execute(query).mappings()]


def prune(conn: Connection, domain_id: str, keep: int) -> int:
    """Forget all but the newest ``keep`` searches of a domain; return how many went."""
    query = sa.select(_retrievals.c.created_at).where(_retrievals.c.domain_id == domain_id)
    query = query.order_by(_retrievals.c.created_at.desc()).offset(keep).limit(1)
    oldest: str | None = conn.execute(query).scalar()
    if oldest is None:
        return 0
    old = sa.and_(_retrievals.c.domain_id == domain_id, _retrievals.c.created_at <= oldest)
    return conn.execute(sa.delete(_retrievals).where(old)).rowcount
