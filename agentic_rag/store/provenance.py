"""Provenance: which documents a conversation has read, and which documents the memories of a turn may come from.

A memory that was saved in a conversation may repeat what a document says. Readers who must not see one of these
documents do not see the memory either. ``access.document_views`` decides that; this module stores the facts. The rows
of a turn are written before its memories are, so that a crash leaves no memory without them.
"""

from collections.abc import Collection, Iterable

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite

from agentic_rag.base.ids import ConversationId, DocumentId
from agentic_rag.base.messages import is_attachment
from agentic_rag.store.columns import Key
from agentic_rag.store.record import Record


class ConversationDocumentRecord(Record, table=True):
    """A document of which a conversation, or a delegate in it, has read a passage, the name or the headings."""

    __tablename__ = "conversation_documents"

    conversation_id: Key[ConversationId]
    document_id: Key[DocumentId]


class MemorySourceRecord(Record, table=True):
    """The documents that a conversation had read when one of its turns saved memories."""

    __tablename__ = "memory_sources"
    part_of = "domain"

    domain_id: Key[str]
    turn_id: Key[str]
    document_ids: tuple[DocumentId, ...]


READ = ConversationDocumentRecord.__table__
SOURCES = MemorySourceRecord.__table__
_read, _sources = READ.c, SOURCES.c


def note_read(conn: Connection, conversation_id: ConversationId, document_ids: Iterable[str]) -> None:
    """Record that a conversation has read documents. Known ones are ignored, and so are its own attachments."""
    read = (document_id for document_id in dict.fromkeys(document_ids) if not is_attachment(document_id))
    rows = [{"conversation_id": conversation_id, "document_id": document_id} for document_id in read]
    if rows:
        dialect = postgresql if conn.dialect.name == "postgresql" else sqlite
        conn.execute(dialect.insert(READ).on_conflict_do_nothing(), rows)


def read_by(conn: Connection, conversation_id: ConversationId) -> tuple[DocumentId, ...]:
    """Return the ids of the documents that a conversation has read, sorted."""
    query = sa.select(_read.document_id).where(_read.conversation_id == conversation_id)
    return tuple(conn.execute(query.order_by(_read.document_id)).scalars())


def note_memories(conn: Connection, domain_id: str, turn_id: str, conversation_id: ConversationId) -> None:
    """Record that a turn is about to save memories, which may come from any document its conversation has read."""
    document_ids = read_by(conn, conversation_id)
    if document_ids:
        where = (_sources.domain_id == domain_id, _sources.turn_id == turn_id)
        conn.execute(sa.delete(SOURCES).where(*where))
        MemorySourceRecord(domain_id=domain_id, turn_id=turn_id, document_ids=document_ids).insert(conn)


def sources_of(conn: Connection, domain_id: str, turn_ids: Collection[str] | None = None) -> list[MemorySourceRecord]:
    """Return the sources of the memories of a domain, or of those that these turns saved."""
    query = sa.select(SOURCES).where(_sources.domain_id == domain_id)
    return MemorySourceRecord.all(conn, query if turn_ids is None else query.where(_sources.turn_id.in_(turn_ids)))


def note_recalled(conn: Connection, domain_id: str, conversation_id: ConversationId, turn_ids: Collection[str]) -> None:
    """Record that a conversation was shown memories of these turns, and so has read what they come from."""
    if turn_ids:
        sources = sources_of(conn, domain_id, turn_ids)
        note_read(conn, conversation_id, (document_id for source in sources for document_id in source.document_ids))


def delete_of_conversation(conn: Connection, conversation_id: ConversationId) -> None:
    """Delete what a conversation has read. The sources of its memories stay as long as the domain."""
    conn.execute(sa.delete(READ).where(_read.conversation_id == conversation_id))
