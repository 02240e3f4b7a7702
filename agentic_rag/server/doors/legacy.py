"""Routes of the two older contracts with their own paths: knowledge's conversations, and chat's single call.

This module defines the forms and answers in the words of these contracts. The conversations are the same as everywhere;
knowledge's are those in the default domain.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Literal

from pydantic import AliasChoices, Field

from agentic_rag.access.users import User
from agentic_rag.base.errors import InvalidInput, NotFound, QuotaExceeded
from agentic_rag.base.events import AgentEvent
from agentic_rag.base.forms import Form, OwnJson
from agentic_rag.base.ids import ConversationId, DocumentId, MessageId
from agentic_rag.base.json_form import Json, to_json
from agentic_rag.conversations.conversations import Conversations, check_content
from agentic_rag.conversations.shown_messages import ShownMessage
from agentic_rag.operations.deletion import Deletion
from agentic_rag.runtime.acceptance import Accepted
from agentic_rag.server.dialects.chat import Chat
from agentic_rag.server.dialects.knowledge import KnowledgeDialect, mark_of, reference_of
from agentic_rag.server.replies import Headed, Redacted, answer
from agentic_rag.server.routes.conversations import SENDING_ERRORS, SORT_KEYS
from agentic_rag.server.routing import route
from agentic_rag.server.sse import EventStream, read_settled
from agentic_rag.store.conversations import ConversationRecord

KNOWLEDGE = "/api/conversation"
KNOWLEDGE_CONVERSATION = "/api/conversation/{conversation}"
CHAT = "/api/v1/chat"

HAS_MORE = "x-has-more"
TOTAL = "x-total-count"
"""Header names for lists. The contract's lists are bare arrays, so headers tell whether there are more items."""


class OlderForm(Form):
    """Base class for requests of older clients. ``userId`` is the caller's own id, or absent."""

    user_id: str | None = None

    def check_user(self, user: User, path: str = "userId") -> None:
        """Check that the client names no user other than the owner of its key.

        ``path`` is the contract's name of the field.

        Raises:
            InvalidInput: the client names another user.
        """
        if self.user_id is not None and self.user_id != user.id:
            problem = f"{self.user_id[:200]!r} is not the user of this request, {user.id!r}. Leave {path} out."
            raise InvalidInput(path, problem)


class NewKnowledgeConversation(OlderForm):
    """A conversation to create. ``contextEntityIds`` limits its searches to these documents.

    ``metadata`` is an object of the client's, stored and returned as given.
    """

    title: str | None = None
    context_entity_ids: list[DocumentId] = Field(default_factory=list)
    metadata: OwnJson = None


class KnowledgeQuery(OlderForm):
    """Page of conversations, counted from 1, and their order."""

    page: int = Field(1, ge=1, le=1_000_000)
    page_size: int = Field(20, ge=1, le=100)
    sort_by: Literal["createdAt", "startedAt", "updatedAt", "lastMessageAt", "title", "messageCount"] = "updatedAt"
    sort_order: Literal["asc", "desc"] = "desc"


class KnowledgeMessageQuery(Form):
    """A page of messages: the last ``limit`` ones, or those before the message ``before``."""

    limit: int = Field(50, ge=1, le=200)
    before: MessageId | None = None


class KnowledgeMessage(OlderForm):
    """A message in ``content`` or ``message``.

    ``contextEntityIds`` limits the searches of the answer to these documents. Without them the conversation's documents
    apply.
    """

    cleaned = frozenset({"content", "message"})
    content: str = Field(validation_alias=AliasChoices("content", "message"))
    context_entity_ids: list[DocumentId] = Field(default_factory=list)


class LegacyMessage(OlderForm):
    """A message in the session ``session_id``, or in a new session.

    A new session uses the domain ``agent_id``, or the default domain.
    """

    cleaned = frozenset({"message"})
    message: str
    session_id: ConversationId | None = Field(None, min_length=1, max_length=200)
    agent_id: str | None = Field(None, min_length=1, max_length=200)


@answer()
class KnowledgeConversation:
    """A conversation of the default domain."""

    id: ConversationId
    title: str
    user_id: str
    context_entity_ids: Sequence[DocumentId]
    metadata: Json
    message_count: int
    created_at: str
    updated_at: str


@answer()
class ShownKnowledgeMessage:
    """A message with its cited ``references``.

    ``metadata`` of an answer is ``model, tokensUsed, retrievalTimeMs, generationTimeMs``. For a question it is empty.
    """

    id: MessageId
    conversation_id: ConversationId
    role: Literal["user", "assistant"]
    content: str
    references: Sequence[Json]
    metadata: Json
    created_at: str


class KnowledgeRoutes:
    """Conversations of the default domain in the form of the knowledge contract."""

    def __init__(self, conversations: Conversations, deletion: Deletion) -> None:
        self._conversations = conversations
        self._deletion = deletion

    @route("POST", KNOWLEDGE, allow="user", status=201, errors=[NotFound, QuotaExceeded])
    async def create(self, user: User, body: NewKnowledgeConversation) -> Redacted[KnowledgeConversation]:
        """Create a conversation in the default domain."""
        body.check_user(user)
        record = await self._conversations.create(
            user, None, body.title, body.context_entity_ids, metadata=body.metadata
        )
        return Redacted(record.domain_id, _conversation(record))

    @route("GET", KNOWLEDGE, allow="user")
    async def list_page(self, user: User, query: KnowledgeQuery) -> Headed[Redacted[list[KnowledgeConversation]]]:
        """List the caller's conversations in the default domain.

        The headers ``X-Total-Count`` and ``X-Has-More`` tell how many there are, and whether there are more pages.
        """
        query.check_user(user)
        domain = self._conversations.default_domain
        page = await self._conversations.list_page(
            user,
            page=query.page,
            page_size=query.page_size,
            sort_by=SORT_KEYS["startedAt" if query.sort_by == "createdAt" else query.sort_by],
            sort_order=query.sort_order,
            domain_id=domain,
        )
        headers = _beyond(has_more=page.page * page.page_size < page.total) | {TOTAL: str(page.total)}
        return Headed(Redacted(domain, [_conversation(record) for record in page.items]), headers)

    @route("GET", KNOWLEDGE_CONVERSATION, allow="user")
    async def get(self, user: User, conversation: ConversationId) -> Redacted[KnowledgeConversation]:
        """Show a conversation of the default domain."""
        record = await self._find(user, conversation)
        return Redacted(record.domain_id, _conversation(record))

    @route("DELETE", KNOWLEDGE_CONVERSATION, allow="user", audited=True)
    async def delete(self, user: User, conversation: ConversationId) -> None:
        """Delete a conversation of the default domain with all its data."""
        await self._find(user, conversation)
        await self._deletion.conversation(user, conversation)

    @route("GET", f"{KNOWLEDGE_CONVERSATION}/messages", allow="user")
    async def messages(
        self, user: User, conversation: ConversationId, query: KnowledgeMessageQuery
    ) -> Headed[Redacted[list[ShownKnowledgeMessage]]]:
        """List messages of a conversation of the default domain, oldest first.

        The header ``X-Has-More`` tells whether there are earlier messages.
        """
        record = await self._find(user, conversation)
        page = await self._conversations.messages(user, conversation, query.limit, query.before)
        shown = Redacted(record.domain_id, [_message(message) for message in page.messages])
        return Headed(shown, _beyond(has_more=page.has_more))

    @route("POST", f"{KNOWLEDGE_CONVERSATION}/message", allow="user", sends=True, streams=True, errors=SENDING_ERRORS)
    async def send(self, user: User, conversation: ConversationId, body: KnowledgeMessage) -> EventStream:
        """Send a message; the answer is the turn's event stream in the dialect ``knowledge``."""
        body.check_user(user)
        await self._find(user, conversation)
        # A client that lost the stream sends its message again and then joins the running turn.
        accepted = await self._conversations.send(
            user, conversation, body.content, context_document_ids=body.context_entity_ids, on_busy="join"
        )
        return EventStream(_events(self._conversations, accepted), KnowledgeDialect())

    async def _find(self, user: User, conversation: ConversationId) -> ConversationRecord:
        """Return a conversation of the default domain.

        Raises:
            NotFound: this user has no such conversation in the default domain.
        """
        record = await self._conversations.get(user, conversation)
        if record.domain_id != self._conversations.default_domain:
            raise NotFound("conversation", conversation)
        return record


class ChatRoutes:
    """The single call of the chat contract."""

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations

    @route("POST", CHAT, allow="user", sends=True, streams=True, errors=[*SENDING_ERRORS, NotFound, QuotaExceeded])
    async def send(self, user: User, body: LegacyMessage) -> EventStream:
        """Send a message; the answer is the turn's event stream in the dialect ``chat``.

        Without ``session_id`` a conversation is created in the domain ``agent_id``, or in the default domain.
        """
        body.check_user(user, "user_id")
        session = body.session_id
        if session is None:
            check_content(body.message)  # checked first, so that no conversation without messages is left behind
            session = (await self._conversations.create(user, body.agent_id)).id
        elif body.agent_id is not None:
            record = await self._conversations.get(user, session)
            if record.domain_id != body.agent_id:
                raise InvalidInput("agent_id", "this session is with another agent; leave it out.")
        accepted = await self._conversations.send(user, session, body.message, on_busy="join")
        chat = Chat(new_session=body.session_id is None)
        return EventStream(_events(self._conversations, accepted), chat)


def _events(conversations: Conversations, accepted: Accepted) -> AsyncGenerator[AgentEvent]:
    """Return the events of a message's turn. If the message joined a running turn, retracted content is left out."""
    if accepted.duplicate:
        return read_settled(conversations.log(accepted.turn_id))
    return conversations.events(accepted.turn_id)


def _beyond(*, has_more: bool) -> dict[str, str]:
    return {HAS_MORE: "true" if has_more else "false"}


def _conversation(record: ConversationRecord) -> KnowledgeConversation:
    return KnowledgeConversation(
        record.id,
        record.title,
        record.owner_id,
        record.context_document_ids,
        record.meta,
        record.message_count,
        record.started_at,
        record.updated_at,
    )


def _with_names(message: ShownMessage) -> str:
    """Return a message's text with the document name at each citation, as in its stream."""
    names = {reference.number: reference.document_name for reference in message.references}
    text, at = "", 0
    for citation in message.citations:
        text += message.content[at : citation.end] + mark_of(names[citation.number])
        at = citation.end
    return text + message.content[at:]


def _metadata(message: ShownMessage) -> Json:
    """Return the contract's metadata of an answer; for a failed answer also its ``error``."""
    if message.role == "user":
        return {}
    facts = message.metadata
    usage = facts["usage"]
    metadata = {
        "model": facts["model"],
        "tokensUsed": usage.get("inputTokens", 0) + usage.get("outputTokens", 0),
        "retrievalTimeMs": facts["retrievalTimeMs"],
        "generationTimeMs": facts["generationTimeMs"],
    }
    return metadata | {"error": facts["error"]} if "error" in facts else metadata


def _message(message: ShownMessage) -> ShownKnowledgeMessage:
    return ShownKnowledgeMessage(
        message.id,
        message.conversation_id,
        message.role,
        _with_names(message),
        [reference_of(to_json(reference)) for reference in message.references],
        _metadata(message),
        message.created_at,
    )
