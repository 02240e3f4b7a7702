"""Collection records: the state of a domain's chunk collection during and after a rebuild.

The chunks are in the retriever's index.
"""

from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.records import RecordTable


class CollectionState(StrEnum):
    """The state of a collection's rebuild; a collection that was never rebuilt is ready."""

    READY = "ready"
    REBUILDING = "rebuilding"
    FAILED = "failed"
    ROLLED_BACK = "rolled_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionRecord:
    """The rebuild state of a domain's collection; there is no record if the collection was never rebuilt."""

    domain_id: str
    state: CollectionState = CollectionState.READY
    generation: int = 0
    """The newest generation built next to the live one; a deletion covers all generations up to this one."""
    reason: str | None = None
    updated_at: str


COLLECTIONS = RecordTable(CollectionRecord, "collections", key=("domain_id",), part_of="domain")
_collections = COLLECTIONS.c


def get(conn: Connection, domain_id: str) -> CollectionRecord | None:
    """Return the record, or None if the collection was never rebuilt."""
    return COLLECTIONS.first(conn, COLLECTIONS.select.where(_collections.domain_id == domain_id))


def put(conn: Connection, collection: CollectionRecord) -> None:
    """Store the record, replacing an older one."""
    conn.execute(sa.delete(COLLECTIONS.table).where(_collections.domain_id == collection.domain_id))
    COLLECTIONS.insert(conn, collection)


def list_rebuilding(conn: Connection) -> list[str]:
    """Return the ids of domains whose collections were being rebuilt."""
    return list(
        conn.execute(
            sa.select(_collections.domain_id).where(_collections.state == CollectionState.REBUILDING)
        ).scalars()
    )
