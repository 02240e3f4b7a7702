"""Stored searches: why these passages.

Owns putting and getting one. Knows no index and no score.
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
