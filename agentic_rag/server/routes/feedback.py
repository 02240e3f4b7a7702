"""REST routes for feedback on answers.

This module defines the forms and answers. The business layer decides the rules.
"""

from collections.abc import Sequence

from pydantic import Field

from agentic_rag.access.users import User
from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.forms import Form
from agentic_rag.base.ids import ConversationId, MessageId
from agentic_rag.base.json_form import Absent
from agentic_rag.conversations.feedback import Feedback
from agentic_rag.server.replies import Items, Part, Redacted, answer, answer_from
from agentic_rag.server.routing import route
from agentic_rag.store.feedback import FeedbackRecord, Rating

CONVERSATION = "/api/conversations/{conversation}"


class NewFeedback(Form):
    """A rating of an answer: ``up``, ``down``, or null to remove the rating. ``reason`` is free text."""

    cleaned = frozenset({"reason"})
    rating: Rating | None
    reason: str = Field("", max_length=2_000)


class FeedbackQuery(Form):
    """Number of entries, newest first."""

    limit: int = Field(100, ge=1, le=500)


@answer()
class GivenFeedback:
    """Feedback on an answer. A null ``rating`` means that the feedback was removed. Only admins get ``userId``."""

    message_id: MessageId
    rating: Rating | None
    reason: str
    created_at: Absent[str] = None
    user_id: Absent[str] = None


class FeedbackRoutes:
    """Feedback on answers."""

    def __init__(self, feedback: Feedback) -> None:
        self._feedback = feedback

    @route("PUT", f"{CONVERSATION}/messages/{{message}}/feedback", allow="user", audited=True, errors=[InvalidInput])
    async def give(
        self, user: User, conversation: ConversationId, message: MessageId, body: NewFeedback
    ) -> GivenFeedback:
        """Rate an answer, replacing the caller's earlier rating."""
        stored = await self._feedback.give(user, conversation, message, body.rating, body.reason)
        return GivenFeedback(message, None, "") if stored is None else _show(stored)

    @route("GET", f"{CONVERSATION}/feedback", allow="user")
    async def list_own(self, user: User, conversation: ConversationId) -> Items[GivenFeedback]:
        """List the caller's feedback on the answers of a conversation."""
        return Items(_show_all(await self._feedback.of_conversation(user, conversation)))

    @route("GET", "/api/domains/{domain}/feedback")
    async def list_of_domain(self, domain: str, query: FeedbackQuery) -> Redacted[Part[GivenFeedback]]:
        """List feedback on answers in a domain, newest first. The answers are private and not shown."""
        entries = await self._feedback.of_domain(domain, query.limit + 1)
        shown = [answer_from(GivenFeedback, entry, message_id=entry.id) for entry in entries[: query.limit]]
        return Redacted(domain, Part(shown, len(entries) > query.limit))


def _show_all(entries: Sequence[FeedbackRecord]) -> list[GivenFeedback]:
    return [_show(entry) for entry in entries]


def _show(record: FeedbackRecord) -> GivenFeedback:
    return answer_from(GivenFeedback, record, message_id=record.id, user_id=None)
