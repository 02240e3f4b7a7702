"""The older contracts that have paths of their own: knowledge's conversations, and chat's one call.

Owns what these paths take and answer, in the words of their contracts. The conversations are the same as everywhere;
knowledge's are those in the default domain.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import AliasChoices, ConfigDict, Field

from agentic_rag.access.users import User
from agentic_rag.conversations.conversations import Conversations, check_content
from agentic_rag.conversations.shown_messages import ShownMessage
from agentic_rag.errors import InvalidInput, NotFound, QuotaExceeded
from agentic_rag.forms import Form
from agentic_rag.ids import ConversationId, DocumentId, MessageId
from agentic_rag.json_form import Json, to_json
from agentic_rag.operations.deletion import Deletion
from agentic_rag.server.conversation_routes import SENDING_ERRORS
from agentic_rag.server.dialects.chat import Chat
from agentic_rag.server.dialects.knowledge import Knowledge, mark_of, reference_of
from agentic_rag.server.replies import Redacted, answer
from agentic_rag.server.routes import route
from agentic_rag.server.sse import EventStream
from agentic_rag.store.conversations import ConversationRecord

KNOWLEDGE = "/api/conversation"
KNOWLEDGE_CONVERSATION = "/api/conversation/{conversation}"
CHAT = "/api/v1/chat"

PAGE = 20
"""Messages that are read at once."""


class OlderForm(Form):
    """What an older client sends: keys that nobody here knows are let pass."""

    model_config = ConfigDict(extra="ignore")


class NewKnowledgeConversation(OlderForm):
    """A conversation to begin. ``contextEntityIds``: its searches find these documents only."""

    title: str | None = None
    context_entity_ids: list[DocumentId] = Field(default_factory=list)


class KnowledgeQuery(OlderForm):
    """Which hundred conversations, from 1; the last changed come first."""

    page: int = Field(1, ge=1, le=1_000_000)


class KnowledgeMessage(OlderForm):
    """A message (``content``, or ``message``). ``contextEntityIds``: the searches of its answer find these documents
    only; none means those of the conversation."""

    cleaned = frozenset({"content", "message"})
    content: str = Field(validation_alias=AliasChoices("content", "message"))
    context_entity_ids: list[DocumentId] = Field(default_factory=list)


class ChatMessage(OlderForm):
    """A message: in session ``session_id``, or in a new one with the domain ``agent_id`` (or the default one)."""

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
    message_count: int
    created_at: str
    updated_at: str


@answer()
class ShownKnowledgeMessage:
    """A message; ``references`` are what it cites."""

    id: MessageId
    conversation_id: ConversationId
    role: Literal["user", "assistant"]
    content: str
    references: Sequence[Json]
    created_at: str


class KnowledgeRoutes:
    """Conversations of the default domain, as the knowledge contract has them."""

    def __init__(self, conversations: Conversations, deletion: Deletion) -> None:
        self._conversations = conversations
        self._deletion = deletion

    @route("POST", KNOWLEDGE, allow="user", status=201, errors=[NotFound, QuotaExceeded])
    async def create(self, user: User, body: NewKnowledgeConversation) -> Redacted[KnowledgeConversation]:
        """Begin a conversation in the default domain."""
        record = await self._conversations.create(user, None, body.title, body.context_entity_ids)
        return Redacted(record.domain_id, _conversation(record))

    @route("GET", KNOWLEDGE, allow="user")
    async def list_page(self, user: User, query: KnowledgeQuery) -> Redacted[list[KnowledgeConversation]]:
        """List the caller's conversations in the default domain, at most a hundred."""
        domain = self._conversations.default_domain
        page = await self._conversations.list_page(user, page=query.page, page_size=100, domain_id=domain)
        return Redacted(domain, [_conversation(each) for each in page.items])

    @route("GET", KNOWLEDGE_CONVERSATION, allow="user")
    async def get(self, user: User, conversation: ConversationId) -> Redacted[KnowledgeConversation]:
        """Show a conversation of the default domain."""
        record = await self._find(user, conversation)
        return Redacted(record.domain_id, _conversation(record))

    @route("DELETE", KNOWLEDGE_CONVERSATION, allow="user", audited=True)
    async def delete(self, user: User, conversation: ConversationId) -> None:
        """Delete a conversation of the default domain with all that belongs to it."""
        await self._find(user, conversation)
        await self._deletion.conversation(user, conversation)

    @route("GET", f"{KNOWLEDGE_CONVERSATION}/messages", allow="user")
    async def messages(self, user: User, conversation: ConversationId) -> Redacted[list[ShownKnowledgeMessage]]:
        """List all messages of a conversation of the default domain, oldest first."""
        record = await self._find(user, conversation)
        page = await self._conversations.messages(user, conversation, PAGE)
        found = page.messages
        while page.has_more:
            page = await self._conversations.messages(user, conversation, PAGE, found[0].id)
            found = [*page.messages, *found]
        return Redacted(record.domain_id, [_message(each) for each in found])

    @route("POST", f"{KNOWLEDGE_CONVERSATION}/message", allow="user", sends=True, streams=True, errors=SENDING_ERRORS)
    async def send(self, user: User, conversation: ConversationId, body: KnowledgeMessage) -> EventStream:
        """Send a message; the answer is the turn's event stream in the dialect ``knowledge``."""
        await self._find(user, conversation)
        accepted = await self._conversations.send(
            user, conversation, body.content, context_document_ids=body.context_entity_ids
        )
        return EventStream(self._conversations.events(accepted.turn_id), Knowledge())

    async def _find(self, user: User, conversation: ConversationId) -> ConversationRecord:
        """Return a conversation of the default domain.

        Raises:
            NotFound: there is no such conversation of this user there.
        """
        record = await self._conversations.get(user, conversation)
        if record.domain_id != self._conversations.default_domain:
            raise NotFound("conversation", conversation)
        return record


class ChatRoutes:
    """The chat contract's one call."""

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations

    @route("POST", CHAT, allow="user", sends=True, streams=True, errors=[*SENDING_ERRORS, NotFound, QuotaExceeded])
    async def send(self, user: User, body: ChatMessage) -> EventStream:
        """Send a message; the answer is the turn's event stream in the dialect ``chat``.

        Without ``session_id`` a conversation is begun, in the domain ``agent_id`` or the default one.
        """
        session = body.session_id
        if session is None:
            check_content(body.message)  # before there is a conversation without any message
            session = (await self._conversations.create(user, body.agent_id)).id
        elif body.agent_id is not None:
            record = await self._conversations.get(user, session)
            if record.domain_id != body.agent_id:
                raise InvalidInput("agent_id", "this session is with another agent; leave it out.")
        accepted = await self._conversations.send(user, session, body.message)
        return EventStream(self._conversations.events(accepted.turn_id), Chat())


def _conversation(record: ConversationRecord) -> KnowledgeConversation:
    return KnowledgeConversation(
        record.id,
        record.title,
        record.owner_id,
        record.context_document_ids,
        record.message_count,
        record.started_at,
        record.updated_at,
    )


def _with_names(message: ShownMessage) -> str:
    """Return a message's text with names at its citations, as its stream has them."""
    names = {each.number: each.document_name for each in message.references}
    text, at = "", 0
    for citation in message.citations:
        text += message.content[at : citation.end] + mark_of(names[citation.number])
        at = citation.end
    return text + message.content[at:]


def _message(message: ShownMessage) -> ShownKnowledgeMessage:
    return ShownKnowledgeMessage(
        message.id,
        message.conversation_id,
        message.role,
        _with_names(message),
        [reference_of(to_json(each)) for each in message.references],
        message.created_at,
    )
