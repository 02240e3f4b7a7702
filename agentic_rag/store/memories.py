"""Memories of roles as records, used by servers that share a store, and during a move to a server that uses files.

This module owns the tables and deletes all parts of a memory. Queries are in `agentic_rag.store.engrams`.
"""

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy import Connection, Index
from sqlalchemy.dialects.postgresql import insert

from agentic_rag.store.clock import new_id
from agentic_rag.store.columns import BigInt, Key
from agentic_rag.store.record import Record, delete_parts


class MemoryRecord(Record, table=True):
    """The memory of a role in a domain. ``user_id`` is its owner; empty: the memory belongs to the whole domain."""

    __tablename__ = "memories"
    __table_args__ = (Index("ix_memories_place", "domain_id", "user_id", "role", unique=True),)

    id: Key[str]
    domain_id: str
    user_id: str
    role: str
    counts: dict[str, int]
    """Number of recalls of each cue."""


class EngramRecord(Record, table=True):
    """One engram. ``number`` counts within its memory, in the order in which engrams became visible."""

    __tablename__ = "engrams"
    __table_args__ = (Index("ix_engrams_number", "memory_id", "number", unique=True),)
    part_of = "memory"

    memory_id: Key[str]
    id: Key[str]
    number: BigInt
    content: str
    cues: str
    """The keywords in order, as JSON text in PromptX's format."""
    type: str
    strength: float
    created_ms: BigInt
    author: str
    turn_id: str
    replaces: str
    replaced_by: str
    proposed: bool


class EngramCueRecord(Record, table=True):
    """A keyword that leads to an engram; a replaced engram has none."""

    __tablename__ = "engram_cues"
    __table_args__ = (Index("ix_engram_cues_engram", "memory_id", "engram_id"),)
    part_of = "memory"

    memory_id: Key[str]
    word: Key[str]
    engram_id: Key[str]


MEMORIES = MemoryRecord.__table__
ENGRAMS = EngramRecord.__table__
ENGRAM_CUES = EngramCueRecord.__table__
_memories, _engrams = MEMORIES.c, ENGRAMS.c


def take(conn: Connection, domain_id: str, user_id: str, role: str) -> MemoryRecord:
    """Return a memory, creating it if needed, and lock it for this transaction. PostgreSQL only."""
    place = (_memories.domain_id == domain_id, _memories.user_id == user_id, _memories.role == role)
    query = sa.select(MEMORIES).where(*place).with_for_update()
    existing = MemoryRecord.first(conn, query)
    if existing is not None:
        return existing
    new = MemoryRecord(id=new_id("mem"), domain_id=domain_id, user_id=user_id, role=role, counts={})
    conn.execute(insert(MEMORIES).values(**new.column_values()).on_conflict_do_nothing())
    memory = MemoryRecord.first(conn, query)
    assert memory is not None
    return memory


def list_all(conn: Connection) -> list[MemoryRecord]:
    """Return the memories of all domains."""
    return MemoryRecord.all(conn, sa.select(MEMORIES).order_by(_memories.id))


def engrams_of(conn: Connection, memory_id: str) -> list[EngramRecord]:
    """Return a memory's engrams, oldest first."""
    query = sa.select(ENGRAMS).where(_engrams.memory_id == memory_id)
    return EngramRecord.all(conn, query.order_by(_engrams.created_ms, _engrams.number))


def put_counts(conn: Connection, memory_id: str, counts: Mapping[str, int]) -> None:
    """Store the number of recalls of each cue."""
    conn.execute(sa.update(MEMORIES).where(_memories.id == memory_id).values(counts=dict(counts)))


def delete(conn: Connection, memory_id: str) -> None:
    """Delete a memory with all its parts."""
    delete_parts(conn, "memory", memory_id)
    conn.execute(sa.delete(MEMORIES).where(_memories.id == memory_id))


def delete_of(conn: Connection, domain_id: str, user_id: str | None = None) -> None:
    """Delete a domain's memories: all of them, or only those of one user (empty: the domain's own)."""
    query = sa.select(_memories.id).where(_memories.domain_id == domain_id)
    if user_id is not None:
        query = query.where(_memories.user_id == user_id)
    for memory_id in conn.scalars(query.order_by(_memories.id).with_for_update()).all():
        delete(conn, memory_id)
