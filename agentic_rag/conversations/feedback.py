"""Feedback on answers: users give, change and withdraw it, and admins of the domain read it.

Feedback also drafts evaluation cases.

This module checks the rights and writes the audit rows. Knows no request.
"""

from functools import partial

from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.users import User
from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.ids import ConversationId, MessageId
from agentic_rag.base.json_form import Json
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.conversations.shown_messages import ShownMessage
from agentic_rag.directory.cases import MAX_TEXT, digest_of
from agentic_rag.store import domains, evaluation, feedback
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.evaluation import CaseOrigin, CaseRecord, CaseState
from agentic_rag.store.feedback import FeedbackRecord, Rating

MAX_CITED = 20
"""Passages and searches of an answer that a drafted case keeps."""
MAX_ANSWER = 20_000
"""Characters of an answer that a drafted case keeps."""


class Feedback:
    """Feedback on answers. Only the owner of a conversation, as ``conversations`` knows, may give it."""

    def __init__(self, database: Database, conversations: Conversations) -> None:
        self._db = database
        self._conversations = conversations

    async def give(
        self, user: User, conversation_id: ConversationId, message_id: MessageId, rating: Rating | None, reason: str
    ) -> FeedbackRecord | None:
        """Store a user's rating of an answer. It replaces an earlier one; None withdraws it.

        A thumbs down with a reason, and a thumbs up on an answer with citations, draft an evaluation case for the
        admins of the domain. Withdrawing the rating, or deleting the conversation, removes an unconfirmed draft.

        Raises:
            NotFound: this user has no such conversation, or it has no such message.
            InvalidInput: the message is a question.
        """
        conversation = await self._conversations.get(user, conversation_id)
        message = await self._conversations.message(user, conversation_id, message_id)
        if message.role != "assistant":
            raise InvalidInput("message", "feedback is given to answers, this is a question.")
        entry = change("feedback.give", message_id, conversationId=conversation_id, rating=rating)
        record = None
        if rating is not None:
            record = FeedbackRecord(
                id=message_id,
                session_id=conversation.session_id,
                conversation_id=conversation.id,
                domain_id=conversation.domain_id,
                user_id=user.id,
                rating=rating,
                reason=reason,
                created_at=now(),
            )

        case = None if record is None else await self._draft_case(user, record, message)

        def store(conn: Connection) -> None:
            # As for every change of cases: another server may store the same case, or confirm the draft.
            domains.lock(conn, conversation.domain_id)
            # First: a new rating replaces the draft of the earlier one, too.
            _forget_draft(conn, conversation.domain_id, message_id)
            if record is None:
                feedback.remove(conn, message_id)
            else:
                feedback.put(conn, record)
            # The same question may be a case already, of an admin or of another user.
            if case is not None and evaluation.find_case(conn, case.domain_id, case.digest) is None:
                evaluation.put_case(conn, case)
            audit(conn, entry)

        await self._db.write(store)
        return record

    async def _draft_case(self, user: User, record: FeedbackRecord, answer: ShownMessage) -> CaseRecord | None:
        """Return the evaluation case that an admin may make of a rating, or None."""
        turn = await self._conversations.turn(user, answer.turn_id)
        cited = [reference for reference in turn.references if reference.verified is not False and reference.cited_text]
        if not turn.content.strip() or not (cited if record.rating is Rating.UP else record.reason.strip()):
            return None
        questions = [turn.content.strip()[:MAX_TEXT]]
        passages = [
            {
                "document": reference.document_name,
                "page": reference.page,
                "cells": reference.cells,
                "text": reference.cited_text[:MAX_TEXT],
            }
            for reference in cited[:MAX_CITED]
        ]
        cited_passages = [{key: value for key, value in passage.items() if value is not None} for passage in passages]
        source: Json = {
            "messageId": record.id,
            "rating": record.rating.value,
            "reason": record.reason,
            "answer": answer.content[:MAX_ANSWER],
            "passages": cited_passages,
            "retrievalIds": answer.metadata.get("retrievalIds", [])[:MAX_CITED],
        }
        at = now()
        return CaseRecord(
            id=new_id("case"),
            domain_id=record.domain_id,
            questions=questions,
            expect={"cites": cited_passages[:1]} if record.rating is Rating.UP else {},
            state=CaseState.DRAFT,
            origin=CaseOrigin.FEEDBACK,
            source=source,
            author=user.id,
            digest=digest_of(questions),
            session_id=record.session_id,
            created_at=at,
            updated_at=at,
        )

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


def _forget_draft(conn: Connection, domain_id: str, message_id: MessageId) -> None:
    """Delete the unconfirmed case that an earlier rating of the answer drafted."""
    for case in evaluation.list_cases(conn, domain_id, state=CaseState.DRAFT):
        if case.source.get("messageId") == message_id:
            evaluation.delete_case(conn, case.id)
