"""Feedback of people on answers: given, changed, taken back, and read by a domain's admins.

Owns who may do which, and the audit row. Knows no request.
"""

from functools import partial

from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.users import User
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.errors import InvalidInput
from agentic_rag.ids import ConversationId, MessageId
from agentic_rag.store import feedback
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.feedback import FeedbackRecord, Rating


class Feedback:
    """What people think of answers. Each is the conversation owner's to give; ``conversations`` knows who that is."""

    def __init__(self, database: Database, conversations: Conversations) -> None:
        self._db = database
        self._conversations = conversations

    async def give(
        self, user: User, conversation_id: ConversationId, message_id: MessageId, rating: Rating | None, reason: str
    ) -> FeedbackRecord | None:
        """Store what a user thinks of an answer, in place of what they thought before; None takes it back.

        Raises:
            NotFound: there is no such conversation of this user, or no such message in it.
            InvalidInput: the message is a person's own.
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
        """Return what a user thinks of the answers of a conversation.

        Raises:
            NotFound: there is no such conversation of this user.
        """
        conversation = await self._conversations.get(user, conversation_id)
        return await self._db.read(partial(feedback.of_session, session_id=conversation.session_id))

    async def of_domain(self, domain_id: str, limit: int) -> list[FeedbackRecord]:
        """Return the newest feedback in a domain, newest first."""
        return await self._db.read(partial(feedback.of_domain, domain_id=domain_id, limit=limit))
