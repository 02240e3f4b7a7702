"""Collections as records: a domain's set of chunks while, and after, it is rebuilt.

Owns getting and putting one. Knows no chunk.
"""

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.rows import values
from agentic_rag.store.tables import CollectionRow, table

_collections = table(CollectionRow)
_NAMES = tuple(_collections.c.keys())


def get(conn: Connection, domain_id: str) -> CollectionRow | None:
    """Return the record, None when the collection was never rebuilt."""
    row = conn.execute(sa.select(_collections).where(_collections.c.domain_id == domain_id)).mappings().first()
    return None if row is None else CollectionRow(**row)


def put(conn: Connection, collection: CollectionRow) -> None:
    """Store the record in place of an older one."""
    conn.execute(sa.delete(_collections).where(_collections.c.domain_id == collection.domain_id))
    conn.execute(sa.insert(_collections), values(collection, _NAMES))


def rebuilding(conn: Connection) -> list[str]:
    """Return the domains whose collections were being rebuilt."""
    return list(conn.execute(sa.select(_collections.c.domain_id).where(_collections.c.state == "rebuilding")).scalars())
