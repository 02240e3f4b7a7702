"""Stored searches, which explain the choice of passages."""

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.base.ids import NO_CONVERSATION, ConversationId
from agentic_rag.store.columns import Indexed, Key
from agentic_rag.store.record import Record


class RetrievalRecord(Record, table=True):
    """A stored search with the candidates of each leg, to explain the choice of passages."""

    __tablename__ = "retrievals"
    part_of = "domain"

    id: Key[str]
    domain_id: Indexed[str]
    conversation_id: Indexed[ConversationId] = NO_CONVERSATION
    """Empty if an admin tried the search, or if its turn ended before the result was stored."""
    turn_id: str = ""
    query: str
    mode: str
    trace: dict[str, Any]
    created_at: str


RETRIEVALS = RetrievalRecord.__table__
_retrievals = RETRIEVALS.c


def put(conn: Connection, retrieval: RetrievalRecord) -> None:
    """Store a search.

    Raises:
        IntegrityError: the id is taken.
    """
    retrieval.insert(conn)


def get(conn: Connection, retrieval_id: str) -> RetrievalRecord | None:
    """Return the search, or None."""
    return RetrievalRecord.first(conn, sa.select(RETRIEVALS).where(_retrievals.id == retrieval_id))


def link(conn: Connection, ids: Collection[str], conversation_id: ConversationId, turn_id: str) -> None:
    """Link searches to the turn that made them."""
    if ids:
        query = sa.update(RETRIEVALS).where(_retrievals.id.in_(ids))
        conn.execute(query.values(conversation_id=conversation_id, turn_id=turn_id))


def delete_of_conversation(conn: Connection, conversation_id: ConversationId) -> None:
    """Delete the searches of a conversation's turns."""
    conn.execute(sa.delete(RETRIEVALS).where(_retrievals.conversation_id == conversation_id))


def newest(
    conn: Connection, domain_id: str, limit: int, conversation_id: ConversationId | None = None
) -> list[RetrievalRecord]:
    """Return the newest searches of the domain, or of one conversation, newest first."""
    query = sa.select(RETRIEVALS).where(_retrievals.domain_id == domain_id)
    if conversation_id is not None:
        query = query.where(_retrievals.conversation_id == conversation_id)
    # A search's id is random, so only its time orders it.
    query = query.order_by(_retrievals.created_at.desc(), _retrievals.id.desc()).limit(limit)
    return RetrievalRecord.all(conn, query)


def prune(conn: Connection, domain_id: str, keep: int) -> int:
    """Delete all but the newest ``keep`` searches of a domain; return their number."""
    query = sa.select(_retrievals.created_at).where(_retrievals.domain_id == domain_id)
    query = query.order_by(_retrievals.created_at.desc()).offset(keep).limit(1)
    oldest: str | None = conn.execute(query).scalar()
    if oldest is None:
        return 0
    old = sa.and_(_retrievals.domain_id == domain_id, _retrievals.created_at <= oldest)
    return conn.execute(sa.delete(RETRIEVALS).where(old)).rowcount
