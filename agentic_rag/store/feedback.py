"""Feedback records: people's ratings of answers.

Callers check permissions.
"""

from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.base.ids import ConversationId, MessageId, SessionId
from agentic_rag.store.records import RecordTable


class Rating(StrEnum):
    """A reader's rating of an answer."""

    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackRecord:
    """The rating of an answer by the conversation's owner; at most one per answer. ``id`` is the answer's id."""

    id: MessageId
    session_id: SessionId
    conversation_id: ConversationId
    domain_id: str
    user_id: str
    rating: Rating
    reason: str
    created_at: str


FEEDBACK = RecordTable(FeedbackRecord, "feedback", indexed=("session_id", "domain_id"), part_of="session")
_feedback = FEEDBACK.c


def put(conn: Connection, feedback: FeedbackRecord) -> None:
    """Store feedback, replacing earlier feedback on the same answer."""
    remove(conn, feedback.id)
    FEEDBACK.insert(conn, feedback)


def remove(conn: Connection, message_id: MessageId) -> None:
    """Remove the feedback on an answer."""
    conn.execute(sa.delete(FEEDBACK.table).where(_feedback.id == message_id))


def of_session(conn: Connection, session_id: SessionId) -> list[FeedbackRecord]:
    """Return all feedback of a conversation's answers, oldest first."""
    query = FEEDBACK.select.where(_feedback.session_id == session_id)
    return FEEDBACK.all(conn, query.order_by(_feedback.created_at, _feedback.id))


def of_domain(conn: Connection, domain_id: str, limit: int) -> list[FeedbackRecord]:
    """Return the newest feedback in a domain, newest first."""
    query = FEEDBACK.select.where(_feedback.domain_id == domain_id)
    return FEEDBACK.all(conn, query.order_by(_feedback.created_at.desc(), _feedback.id.desc()).limit(limit))
