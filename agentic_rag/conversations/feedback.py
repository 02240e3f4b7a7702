"""Feedback on answers: users give, change and withdraw it, and admins of the domain read it.

This module checks the rights and writes the audit rows. Knows no request.
"""

from functools import partial

from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.users import User
from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.ids import ConversationId, MessageId
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.store import feedback
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.feedback import FeedbackRecord, Rating


class Feedback:
    """Feedback on answers. Only the owner of a conversation, as ``conversations`` knows, may give it."""

    def __init__(self, database: Database, conversations: Conversations) -> None:
        self._db = database
        self._conversations = conversations

    async def give(
        self, user: User, conversation_id: ConversationId, message_id: MessageId, rating: Rating | None, reason: str
    ) -> FeedbackRecord | None:
        """Store a user's rating of an answer. It replaces an earlier one; None withdraws it.

        Raises:
            NotFound: this user has no such conversation, or it has no such message.
            InvalidInput: the message is a question.
        """
        conversation = await self._conversations.get(user, conversation_id)
        message = await self._conversations.message(user, conversation_id, message_id)
        if message.role != "assistant":
            raise InvalidInput("message", "feedback is given to answers, this is a question.")
        told = change("feedback.give", message_id, conversationId=conversation_id, rating=rating)
        made = None
        if rating is not None:
            made = FeedbackRecord(
                id=message_id,
                session_id=conversation.session_id,
                conversation_id=conversation.id,
                domain_id=conversation.domain_id,
                user_id=user.id,
                rating=rating,
                reason=reason,
                created_at=now(),
            )

        def store(conn: Connection) -> None:
            if made is None:
                feedback.remove(conn, message_id)
            else:
                feedback.put(conn, made)
            audit(conn, told)

        await self._db.write(store)
        return made

    async def of_conversation(self, user: User, conversation_id: ConversationId) -> list[FeedbackRecord]:
        """Return a user's feedback on the answers of a conversation.

        Raises:
            NotFound: this user has no such conversation.
        """
        conversation = await self._conversations.get(user, conversation_id)
        return await self._db.read(partial(feedback.of_session, session_id=conversation.session_id))

    async def of_domain(self, domain_id: str, limit: int) -> list[FeedbackRecord]:
        """Return the newest feedback in a domain, newest first."""
        return await self._db.read(partial(feedback.of_domain, domain_id=domain_id, limit=limit))
