"""Feedback records: people's ratings of answers.

Callers check permissions.
"""

from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.base.ids import ConversationId, MessageId, SessionId
from agentic_rag.store import deliveries
from agentic_rag.store.columns import Indexed, Key
from agentic_rag.store.deliveries import Event
from agentic_rag.store.endpoints import EventKind
from agentic_rag.store.record import Record


class Rating(StrEnum):
    """A reader's rating of an answer."""

    UP = "up"
    DOWN = "down"


class FeedbackRecord(Record, table=True):
    """The rating of an answer by the conversation's owner; at most one per answer. ``id`` is the answer's id."""

    __tablename__ = "feedback"
    part_of = "session"

    id: Key[MessageId]
    session_id: Indexed[SessionId]
    conversation_id: ConversationId
    domain_id: Indexed[str]
    user_id: str
    rating: Rating
    reason: str
    created_at: str


FEEDBACK = FeedbackRecord.__table__
_feedback = FEEDBACK.c


def put(conn: Connection, feedback: FeedbackRecord) -> None:
    """Store feedback, replacing earlier feedback on the same answer, and notify the domain's endpoints."""
    remove(conn, feedback.id)
    feedback.insert(conn)
    facts = {
        "messageId": feedback.id,
        "conversationId": feedback.conversation_id,
        "userId": feedback.user_id,
        "rating": feedback.rating.value,
        "createdAt": feedback.created_at,
    }
    kind, texts = EventKind.FEEDBACK_CREATED, {"reason": feedback.reason}
    event = Event(kind, feedback.domain_id, facts, texts, feedback.user_id, feedback.conversation_id)
    deliveries.announce(conn, event)


def remove(conn: Connection, message_id: MessageId) -> None:
    """Remove the feedback on an answer."""
    conn.execute(sa.delete(FEEDBACK).where(_feedback.id == message_id))


def of_session(conn: Connection, session_id: SessionId) -> list[FeedbackRecord]:
    """Return all feedback of a conversation's answers, oldest first."""
    query = sa.select(FEEDBACK).where(_feedback.session_id == session_id)
    return FeedbackRecord.all(conn, query.order_by(_feedback.created_at, _feedback.id))


def of_domain(conn: Connection, domain_id: str, limit: int) -> list[FeedbackRecord]:
    """Return the newest feedback in a domain, newest first."""
    query = sa.select(FEEDBACK).where(_feedback.domain_id == domain_id)
    return FeedbackRecord.all(conn, query.order_by(_feedback.created_at.desc(), _feedback.id.desc()).limit(limit))
