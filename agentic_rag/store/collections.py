"""Collection records: the state of a domain's chunk collection during and after a rebuild.

The chunks are in the retriever's index.
"""

from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.columns import Key
from agentic_rag.store.record import Record


class CollectionState(StrEnum):
    """The state of a collection's rebuild; a collection that was never rebuilt is ready."""

    READY = "ready"
    REBUILDING = "rebuilding"
    FAILED = "failed"
    ROLLED_BACK = "rolled_back"


class LinesUse(StrEnum):
    """Whether the passages of a live collection have context lines.

    ``trying``: a rebuild with lines is requested, and the evaluation gate decides whether it goes live. ``held``: the
    gate held it, or an admin returned to an earlier collection.
    """

    NONE = ""
    TRYING = "trying"
    HELD = "held"
    LIVE = "live"


class CollectionRecord(Record, table=True):
    """The rebuild state of a domain's collection; there is no record if the collection was never rebuilt."""

    __tablename__ = "collections"
    part_of = "domain"

    domain_id: Key[str]
    state: CollectionState = CollectionState.READY
    generation: int = 0
    """The newest generation built next to the live one; a deletion covers all generations up to this one."""
    reason: str | None = None
    lines: LinesUse = LinesUse.NONE
    updated_at: str


COLLECTIONS = CollectionRecord.__table__
_collections = COLLECTIONS.c


def get(conn: Connection, domain_id: str) -> CollectionRecord | None:
    """Return the record, or None if the collection was never rebuilt."""
    return CollectionRecord.first(conn, sa.select(COLLECTIONS).where(_collections.domain_id == domain_id))


def put(conn: Connection, collection: CollectionRecord) -> None:
    """Store the record, replacing an older one."""
    conn.execute(sa.delete(COLLECTIONS).where(_collections.domain_id == collection.domain_id))
    collection.insert(conn)


def list_rebuilding(conn: Connection) -> list[str]:
    """Return the ids of domains whose collections were being rebuilt."""
    return list(
        conn.execute(
            sa.select(_collections.domain_id).where(_collections.state == CollectionState.REBUILDING)
        ).scalars()
    )


def with_lines(conn: Connection) -> list[str]:
    """Return the ids of domains whose collections have context lines, or are about to have them."""
    query = sa.select(_collections.domain_id).where(_collections.lines != LinesUse.NONE)
    return list(conn.execute(query).scalars())
