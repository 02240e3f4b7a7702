"""REST of conversations, messages and turns; a turn's events as a stream.

Owns what these routes take and answer, and the choice between a stream and a plain answer. Knows no rule.
"""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import ConfigDict, Field
from starlette.requests import Request

from agentic_rag.access.users import User
from agentic_rag.conversations import transcripts
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.conversations.shown_messages import ShownMessage
from agentic_rag.conversations.transcripts import ShownPage
from agentic_rag.errors import InvalidInput
from agentic_rag.events import Error, ToolStatus
from agentic_rag.forms import Form, OwnJson
from agentic_rag.json_form import Absent, Json
from agentic_rag.messages import Block, without_private
from agentic_rag.operations.deletion import Deletion
from agentic_rag.runtime.session import Accepted
from agentic_rag.server.dialects import DEFAULT_DIALECT, get_dialect
from agentic_rag.server.dialects.base import Dialect
from agentic_rag.server.replies import Attachment, Items, Page, Redacted, answer, answer_from
from agentic_rag.server.routes import route
from agentic_rag.server.sse import EventStream
from agentic_rag.store.conversations import ConversationRecord, ConversationStatus, SortBy
from agentic_rag.store.tool_calls import ToolCallRecord
from agentic_rag.store.turns import TurnRecord, TurnStatus

CONVERSATIONS = "/api/conversations"
CONVERSATION = "/api/conversations/{conversation}"
TURN = "/api/turns/{turn}"

_SORT_KEYS: dict[str, SortBy] = {
    "startedAt": "started_at",
    "updatedAt": "updated_at",
    "lastMessageAt": "last_message_at",
    "title": "title",
    "messageCount": "message_count",
}

# What is taken


class NewConversation(Form):
    """A conversation to begin; without ``domainId`` in the default domain (``AGENTIC_RAG_DEFAULT_DOMAIN``).

    ``contextDocumentIds``: its searches find these documents only.
    """

    domain_id: str | None = None
    title: str | None = None
    context_document_ids: list[str] = Field(default_factory=list)


class ConversationQuery(Form):
    """Which conversations; ``q`` is part of a title."""

    page: int = Field(1, ge=1, le=1_000_000)
    page_size: int = Field(20, ge=1, le=100)
    sort_by: Literal["startedAt", "updatedAt", "lastMessageAt", "title", "messageCount"] = "updatedAt"
    sort_order: Literal["asc", "desc"] = "desc"
    domain_id: str | None = None
    status: ConversationStatus | None = None
    q: str | None = Field(None, max_length=200)


class ConversationChange(Form):
    """What to change of a conversation; the rest stays. ``metadata`` is replaced.

    ``activeLeaf``: the newest branch that has this message is the conversation from now on.
    """

    title: str | None = None
    status: ConversationStatus | None = None
    metadata: OwnJson = None
    active_leaf: str | None = Field(None, min_length=1, max_length=200)


class MessageQuery(Form):
    """The last ``limit`` messages, or those before the message ``before``."""

    limit: int = Field(50, ge=1, le=200)
    before: str | None = None


class BranchQuery(MessageQuery):
    """``leaf``: of the newest branch that has this message, instead of the active one."""

    leaf: str | None = None


class StreamQuery(Form):
    """``dialect``: how the events are encoded. Other parameters are let pass."""

    model_config = ConfigDict(extra="ignore")

    dialect: str = DEFAULT_DIALECT


class EventQuery(StreamQuery):
    """``after``: the number of the last event the client has; ``Last-Event-ID`` goes before it."""

    after: str = "0"


class NewMessage(Form):
    """A message of the user. The same ``clientMessageId`` never makes two turns."""

    cleaned = frozenset({"content"})
    content: str
    client_message_id: str | None = Field(None, min_length=1, max_length=200)
    on_busy: Literal["reject", "queue"] = "reject"


class Retry(Form):
    """Answer a message again. The same ``clientMessageId`` never makes two turns."""

    client_message_id: str | None = Field(None, min_length=1, max_length=200)


class Edit(Retry):
    """Answer a message again, with other words for it."""

    cleaned = frozenset({"content"})
    content: str


class Interruption(Form):
    """Stop the running turn, or only turn ``turnId``; ``queued`` drops the waiting ones too."""

    turn_id: str | None = None
    queued: bool = False


class ToolCallQuery(Form):
    """Which tool calls: the last ones in order. ``agent``: path of a delegate, empty for the main agent."""

    tool_name: str | None = Field(None, max_length=200)
    agent: str | None = Field(None, max_length=500)
    status: ToolStatus | None = None
    limit: int = Field(100, ge=1, le=500)


# What is answered


@answer()
class CurrentTurn:
    """The turn of a conversation that has not ended."""

    id: str
    status: TurnStatus


@answer()
class Conversation:
    """A conversation's record; its messages have a route of their own. ``turn``: what runs or waits in it, if any."""

    id: str
    domain_id: str
    owner_id: str
    session_id: str
    turn: CurrentTurn | None
    title: str
    title_source: str
    status: ConversationStatus
    message_count: int
    context_document_ids: Sequence[str]
    metadata: Json
    started_at: str
    updated_at: str
    last_message_at: str | None


@answer()
class Reference:
    """A passage that an answer cites; ``agent``: path of the delegate that found it."""

    number: int
    document_id: str
    document_name: str
    chunk_id: str
    cited_text: str
    score: float
    page: Absent[int] = None
    cells: Absent[str] = None
    agent: Absent[str] = None


@answer()
class Message:
    """A message: its plain text, and the blocks it is made of, tool calls and results included."""

    id: str
    conversation_id: str
    turn_id: str
    parent_message_id: str | None
    role: Literal["user", "assistant"]
    content: str
    blocks: Sequence[Block]
    references: Sequence[Reference]
    metadata: Json
    created_at: str


@answer()
class Messages(Items[Message]):
    """Messages in order; ``hasMore``: there are earlier ones."""

    has_more: bool


@answer()
class Branch:
    """One way through a conversation: ``leaf`` is its last answer, ``parentMessageId`` the answer where it forks.

    ``firstMessageId`` and ``content`` are the user's message that follows the fork, ``turnCount`` counts the whole way.
    """

    leaf: str
    parent_message_id: str | None
    first_message_id: str
    content: str
    turn_count: int
    active: bool
    status: TurnStatus
    started_at: str


@answer()
class Archive:
    """A summary that stands for the messages before it."""

    id: str
    summary: str
    message_count: int
    created_by: str
    created_at: str


@answer()
class ToolCall:
    """The record of a tool call; ``result`` are the blocks the model got, null while it runs.

    ``agent``: path of the delegate that made it, empty for the main agent.
    """

    tool_call_id: str
    turn_id: str
    agent: str
    server: str
    tool_name: str
    arguments: Json
    status: ToolStatus
    result: Sequence[Block] | None
    size: int | None
    ref: str | None
    started_at: str
    duration_ms: int | None


@answer()
class RoleVersion:
    """A role by which an answer was given, and the hash of its text then."""

    id: str
    hash: str


@answer()
class Turn:
    """One user message to its end."""

    id: str
    conversation_id: str
    status: TurnStatus
    end_reason: str | None
    usage: Json
    image_id: str
    roles: Sequence[RoleVersion]
    started_at: str
    ended_at: str | None
    error: Absent[Error] = None


@answer()
class Child:
    """A delegate of a turn: its path, the call it worked for, and its records; its turn has children of its own."""

    agent: str
    parent_tool_call_id: str
    turn: Turn
    messages: Sequence[Message]
    tool_calls: Sequence[ToolCall]


@answer(kw_only=True)
class AcceptedMessage(Turn):
    """The turn that a message began, with the ids of its two messages."""

    user_message_id: str
    message_id: str
    client_message_id: str | None


@answer()
class Interrupted:
    """Whether something was stopped."""

    interrupted: bool


class ConversationRoutes:
    """Conversations and their messages."""

    def __init__(self, conversations: Conversations, deletion: Deletion) -> None:
        self._conversations = conversations
        self._deletion = deletion

    @route("POST", CONVERSATIONS, allow="user", status=201)
    async def create(self, user: User, body: NewConversation) -> Redacted[Conversation]:
        """Begin a conversation in a domain."""
        record = await self._conversations.create(user, body.domain_id, body.title, body.context_document_ids)
        return _conversation(record, None)

    @route("GET", CONVERSATIONS, allow="user")
    async def list_page(self, user: User, query: ConversationQuery) -> Page[Redacted[Conversation]]:
        """List the caller's conversations."""
        page = await self._conversations.list_page(
            user,
            page=query.page,
            page_size=query.page_size,
            sort_by=_SORT_KEYS[query.sort_by],
            sort_order=query.sort_order,
            domain_id=query.domain_id,
            status=query.status,
            q=query.q,
        )
        current = await self._conversations.current_turns(page.items)
        items = [_conversation(item, current.get(item.session_id)) for item in page.items]
        return Page(items, page.total, page.page, page.page_size)

    @route("GET", CONVERSATION, allow="user")
    async def get(self, user: User, conversation: str) -> Redacted[Conversation]:
        """Show a conversation's record."""
        return await self._show(await self._conversations.get(user, conversation))

    @route("PATCH", CONVERSATION, allow="user")
    async def change(self, user: User, conversation: str, body: ConversationChange) -> Redacted[Conversation]:
        """Change title, status or metadata, or go on with another branch."""
        if body.active_leaf is not None:
            await self._conversations.activate(user, conversation, body.active_leaf)
        record = await self._conversations.change(
            user, conversation, title=body.title, status=body.status, metadata=body.metadata
        )
        return await self._show(record)

    @route("DELETE", CONVERSATION, allow="user", audited=True)
    async def delete(self, user: User, conversation: str) -> None:
        """Delete a conversation with all that belongs to it."""
        await self._deletion.conversation(user, conversation)

    @route("GET", f"{CONVERSATION}/messages", allow="user")
    async def messages(self, user: User, conversation: str, query: BranchQuery) -> Redacted[Messages]:
        """List messages, oldest first."""
        page = await self._conversations.messages(user, conversation, query.limit, query.before, query.leaf)
        return await self._within(user, conversation, _messages(page))

    @route("POST", f"{CONVERSATION}/messages", allow="user", sends=True, streams=True, status=202)
    async def send(
        self, request: Request, user: User, conversation: str, query: StreamQuery, body: NewMessage
    ) -> EventStream | Redacted[AcceptedMessage]:
        """Send a message.

        The answer is the turn's event stream; with ``Accept: application/json`` the turn, which goes on by itself.
        """
        dialect = get_dialect(query.dialect)
        accepted = await self._conversations.send(
            user, conversation, body.content, client_message_id=body.client_message_id, on_busy=body.on_busy
        )
        return await self._follow(request, user, conversation, accepted, dialect)

    @route("POST", f"{CONVERSATION}/messages/{{message}}/retry", allow="user", sends=True, streams=True, status=202)
    async def retry(
        self, request: Request, user: User, conversation: str, message: str, query: StreamQuery, body: Retry
    ) -> EventStream | Redacted[AcceptedMessage]:
        """Answer a message of the user again, on a branch that ends before the old answer; answers as sending does."""
        dialect = get_dialect(query.dialect)
        accepted = await self._conversations.answer_again(
            user, conversation, message, client_message_id=body.client_message_id
        )
        return await self._follow(request, user, conversation, accepted, dialect)

    @route("POST", f"{CONVERSATION}/messages/{{message}}/edit", allow="user", sends=True, streams=True, status=202)
    async def edit(
        self, request: Request, user: User, conversation: str, message: str, query: StreamQuery, body: Edit
    ) -> EventStream | Redacted[AcceptedMessage]:
        """Answer a message of the user again, with other words for it, on a new branch; answers as sending does."""
        dialect = get_dialect(query.dialect)
        accepted = await self._conversations.answer_again(
            user, conversation, message, body.content, client_message_id=body.client_message_id
        )
        return await self._follow(request, user, conversation, accepted, dialect)

    @route("GET", f"{CONVERSATION}/branches", allow="user")
    async def branches(self, user: User, conversation: str) -> Redacted[Items[Branch]]:
        """List the ways through a conversation, the newest last."""
        found = await self._conversations.branches(user, conversation)
        return await self._within(user, conversation, Items([answer_from(Branch, each) for each in found]))

    @route("POST", f"{CONVERSATION}/interrupt", allow="user")
    async def interrupt(self, user: User, conversation: str, body: Interruption) -> Interrupted:
        """Stop the running turn; idempotent."""
        return Interrupted(
            await self._conversations.interrupt(user, conversation, turn_id=body.turn_id, queued=body.queued)
        )

    @route("POST", f"{CONVERSATION}/compact", allow="user", sends=True)
    async def compact(self, user: User, conversation: str) -> Redacted[Archive]:
        """Summarise what was said: the model reads the summary instead of the messages before it."""
        archive = await self._conversations.compact(user, conversation)
        return await self._within(user, conversation, answer_from(Archive, archive))

    @route("GET", f"{CONVERSATION}/archives", allow="user")
    async def archives(self, user: User, conversation: str) -> Redacted[Items[Archive]]:
        """List the summaries that stand for earlier messages."""
        archives = await self._conversations.archives(user, conversation)
        return await self._within(user, conversation, Items([answer_from(Archive, each) for each in archives]))

    @route("GET", f"{CONVERSATION}/archives/{{archive}}/messages", allow="user")
    async def list_archived_messages(
        self, user: User, conversation: str, archive: str, query: MessageQuery
    ) -> Redacted[Messages]:
        """List the messages that a summary stands for."""
        page = await self._conversations.archived_messages(user, conversation, archive, query.limit, query.before)
        return await self._within(user, conversation, _messages(page))

    @route("GET", f"{CONVERSATION}/tool-calls", allow="user")
    async def tool_calls(self, user: User, conversation: str, query: ToolCallQuery) -> Redacted[Items[ToolCall]]:
        """List tool calls, the last ones in order."""
        calls = await self._conversations.tool_calls(
            user, conversation, limit=query.limit, tool_name=query.tool_name, status=query.status, agent=query.agent
        )
        return await self._within(user, conversation, Items([_tool_call(each) for each in calls]))

    async def _show(self, record: ConversationRecord) -> Redacted[Conversation]:
        """Return a conversation's record with what runs in it."""
        current = await self._conversations.current_turns([record])
        return _conversation(record, current.get(record.session_id))

    @route("GET", "/api/payloads/{ref}", allow="user")
    async def get_payload(self, user: User, ref: str) -> Attachment:
        """Return a tool result that is kept whole, as a file."""
        kept = await self._conversations.payload(user, ref)
        ending = {"text/plain": "txt", "application/json": "json"}.get(kept.media_type, "bin")
        return Attachment(kept.domain_id, f"{ref}.{ending}", kept.media_type, kept.data)

    async def _follow(
        self, request: Request, user: User, conversation: str, accepted: Accepted, dialect: Dialect
    ) -> EventStream | Redacted[AcceptedMessage]:
        """Answer with an accepted message's events, or with its turn."""
        if not _wants_json(request):
            return EventStream(self._conversations.events(accepted.turn_id), dialect)
        turn = await self._conversations.turn(user, accepted.turn_id)
        answer = answer_from(
            AcceptedMessage,
            _turn(turn),
            user_message_id=accepted.user_message_id,
            message_id=accepted.message_id,
            client_message_id=accepted.client_message_id,
        )
        return await self._within(user, conversation, answer)

    async def _within(self, user: User, conversation: str, answer: Any) -> Redacted[Any]:
        """Return an answer about what was said in a conversation."""
        record = await self._conversations.get(user, conversation)
        return Redacted(record.domain_id, answer)


class TurnRoutes:
    """Turns and their events."""

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations

    @route("GET", TURN, allow="user")
    async def get(self, user: User, turn: str) -> Redacted[Turn]:
        """Show a turn."""
        record = await self._conversations.turn(user, turn)
        conversation = await self._conversations.get(user, record.conversation_id)
        return Redacted(conversation.domain_id, _turn(record))

    @route("GET", f"{TURN}/children", allow="user")
    async def list_children(self, user: User, turn: str) -> Redacted[Items[Child]]:
        """List the delegates of a turn with their messages and calls."""
        record = await self._conversations.turn(user, turn)
        conversation = await self._conversations.get(user, record.conversation_id)
        children = await self._conversations.children(user, turn)
        return Redacted(conversation.domain_id, Items([_child(each) for each in children]))

    @route("GET", f"{TURN}/events", allow="user", streams=True)
    async def events(self, request: Request, user: User, turn: str, query: EventQuery) -> EventStream:
        """Follow a turn: what follows the given event, then what comes, to its end."""
        dialect = get_dialect(query.dialect)
        after = _after(request.headers.get("last-event-id"), query.after, turn)
        await self._conversations.turn(user, turn)
        return EventStream(self._conversations.events(turn, after), dialect)


def _conversation(record: ConversationRecord, turn: TurnRecord | None) -> Redacted[Conversation]:
    shown = None if turn is None else answer_from(CurrentTurn, turn)
    return Redacted(record.domain_id, answer_from(Conversation, record, metadata=record.meta, turn=shown))


def _messages(page: ShownPage) -> Messages:
    return Messages([_message(message) for message in page.messages], page.has_more)


def _message(message: ShownMessage) -> Message:
    return answer_from(Message, message, references=[answer_from(Reference, each) for each in message.references])


def _turn(record: TurnRecord) -> Turn:
    roles = [RoleVersion(role, text_hash) for role, text_hash in record.role_hashes.items()]
    return answer_from(Turn, record, usage=record.usage.to_json() if record.usage else {}, roles=roles)


def _child(child: transcripts.Child) -> Child:
    messages = [_message(each) for each in child.messages]
    calls = [_tool_call(each) for each in child.tool_calls]
    return Child(child.agent, child.parent_tool_call_id, _turn(child.turn), messages, calls)


def _tool_call(record: ToolCallRecord) -> ToolCall:
    result = None if record.result is None else without_private(record.result["content"])
    return answer_from(ToolCall, record, result=result)


def _wants_json(request: Request) -> bool:
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/event-stream" not in accept


def _after(last_event_id: str | None, after: str, turn_id: str) -> int:
    """Return the number to go on after: ``Last-Event-ID`` (what a reconnecting client got) before ``?after=``."""
    name, number = "after", after
    if last_event_id is not None:
        name = "Last-Event-ID"
        turn, _, number = last_event_id.rpartition(":")
        if turn != turn_id:
            raise InvalidInput(name, f"expected {turn_id}:<number>.")
    if not number.isdecimal() or len(number) > 15:
        raise InvalidInput(name, "the number of an event is expected.")
    return int(number)
