"""Collections as records: a domain's set of chunks while, and after, it is rebuilt.

Owns getting and putting one. Knows no chunk.
"""

from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.records import RecordTable


class CollectionState(StrEnum):
    """Where the rebuilding of a collection stands; one that was never rebuilt is ready."""

    READY = "ready"
    REBUILDING = "rebuilding"
    FAILED = "failed"
    ROLLED_BACK = "rolled_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionRecord:
    """A domain's set of chunks: whether it is being rebuilt, and into what. No record: never rebuilt."""

    domain_id: str
    state: CollectionState = CollectionState.READY
    generation: int = 0
    """The newest one made beside the live one; documents are deleted in all up to it."""
    reason: str | None = None
    updated_at: str


COLLECTIONS = RecordTable(CollectionRecord, "collections", key=("domain_id",), part_of="domain")
_collections = COLLECTIONS.c


def get(conn: Connection, domain_id: str) -> CollectionRecord | None:
    """Return the record, None when the collection was never rebuilt."""
    return COLLECTIONS.first(conn, COLLECTIONS.select.where(_collections.domain_id == domain_id))


def put(conn: Connection, collection: CollectionRecord) -> None:
    """Store the record in place of an older one."""
    conn.execute(sa.delete(COLLECTIONS.table).where(_collections.domain_id == collection.domain_id))
    COLLECTIONS.insert(conn, collection)


def list_rebuilding(conn: Connection) -> list[str]:
    """Return the domains whose collections were being rebuilt."""
    return list(
        conn.execute(
            sa.select(_collections.domain_id).where(_collections.state == CollectionState.REBUILDING)
        ).scalars()
    )
