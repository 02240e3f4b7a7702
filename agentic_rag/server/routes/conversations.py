"""REST routes for conversations, messages and turns, with a turn's events as a stream.

This module defines the forms and answers, and chooses between a stream and a plain answer. It knows no rule.
"""

from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request

from agentic_rag.access.users import User
from agentic_rag.base.errors import (
    CompactionNotNeeded,
    ContextTooLong,
    ConversationArchived,
    ConversationFull,
    Forbidden,
    GenerationAborted,
    GenerationTimeout,
    IdempotencyMismatch,
    ImageTooLarge,
    ImageUnsupported,
    InvalidInput,
    LogGone,
    MessageContentRequired,
    MessageTooLong,
    ModelError,
    ModelNotAllowed,
    NotFound,
    QuotaExceeded,
    TurnInProgress,
)
from agentic_rag.base.events import ToolStatus
from agentic_rag.base.forms import Form, OwnJson
from agentic_rag.base.ids import ConversationId, DocumentId, MessageId, TurnId
from agentic_rag.conversations.conversations import MAX_ATTACHMENTS, USUAL_TERMS, Conversations, TurnTerms
from agentic_rag.conversations.search import ConversationSearch
from agentic_rag.conversations.sent_images import MAX_IMAGES, MAX_IMAGES_JSON, GivenImage
from agentic_rag.operations.deletion import Deletion
from agentic_rag.runtime.acceptance import Accepted
from agentic_rag.server.dialects import DEFAULT_DIALECT, get_dialect, join, joins_repeats
from agentic_rag.server.dialects.ag_ui import AgUi, Offset
from agentic_rag.server.dialects.base import Dialect
from agentic_rag.server.dialects.chat import Chat
from agentic_rag.server.dialects.message import MessageAnswer
from agentic_rag.server.dialects.message import MessageDialect as MessageDialect
from agentic_rag.server.json_response import CollectedAnswer
from agentic_rag.server.replies import FILE_ENDINGS, Attachment, CountedPage, Items, Part, Redacted, answer_from
from agentic_rag.server.routes.conversation_answers import (
    AcceptedMessage,
    Archive,
    BranchAnswer,
    ContractMessage,
    ContractMessages,
    Conversation,
    ConversationFolder,
    DelegateAnswer,
    FoundConversation,
    ImageAnswer,
    InterruptAnswer,
    MessagePages,
    Messages,
    StoredMessageAnswer,
    ToolCallAnswer,
    ToolReport,
    TurnAnswer,
    report_tool_call,
    show_child,
    show_contract_message,
    show_conversation,
    show_found,
    show_tool_call,
    show_turn,
)
from agentic_rag.server.routes.role_forms import TriedFiles
from agentic_rag.server.routes.usage import TimeRangeQuery
from agentic_rag.server.routing import route
from agentic_rag.server.sse import EventStream, read_settled
from agentic_rag.store.conversations import ConversationRecord, ConversationStatus, SortBy

CONVERSATIONS = "/api/conversations"
CONVERSATION = "/api/conversations/{conversation}"
CONVERSATION_SEARCH = "/api/conversation-search"
CONVERSATION_FOLDERS = "/api/conversation-folders"
TURN = "/api/turns/{turn}"

SORT_KEYS: dict[str, SortBy] = {
    "startedAt": "started_at",
    "updatedAt": "updated_at",
    "lastMessageAt": "last_message_at",
    "title": "title",
    "messageCount": "message_count",
}

SENDING_ERRORS = (
    MessageContentRequired,
    MessageTooLong,
    ModelNotAllowed,
    ConversationArchived,
    ConversationFull,
    TurnInProgress,
    IdempotencyMismatch,
    ImageUnsupported,
    ImageTooLarge,
    LogGone,
)
"""Reasons to refuse a message, for every protocol. Later failures are events of the turn."""

WAITING_ERRORS = (*SENDING_ERRORS, ModelError, GenerationTimeout, GenerationAborted)
"""Reasons to refuse a message or to fail, for requests that wait for the answer."""

COMPACTION_ERRORS = (
    TurnInProgress,
    CompactionNotNeeded,
    ContextTooLong,
    ModelError,
    GenerationTimeout,
    GenerationAborted,
)

# Requests

ChosenModel = Annotated[str, Field(min_length=1, max_length=200)]
AttachmentId = Annotated[str, Field(min_length=1, max_length=200)]


class NewConversation(Form):
    """A conversation to create, by default in the default domain (``AGENTIC_RAG_DEFAULT_DOMAIN``).

    ``assistantId`` is an older name of ``domainId``. ``contextDocumentIds`` limits the searches of the conversation to
    these documents. ``model`` is one of the domain's ``models``.
    """

    domain_id: str | None = None
    assistant_id: str | None = None
    title: str | None = None
    model: ChosenModel | None = None
    context_document_ids: list[DocumentId] = Field(default_factory=list)
    metadata: OwnJson = None


class ConversationQuery(Form):
    """Filters and order of conversations.

    ``q`` is part of a title; ``assistantId`` is an older name of ``domainId``. ``folder`` selects one folder; an
    empty text selects the conversations in none. ``pinnedFirst`` puts the pinned ones before the others.
    """

    cleaned = frozenset({"folder"})
    page: int = Field(1, ge=1, le=1_000_000)
    page_size: int = Field(20, ge=1, le=100)
    sort_by: Literal["startedAt", "updatedAt", "lastMessageAt", "title", "messageCount"] = "updatedAt"
    sort_order: Literal["asc", "desc"] = "desc"
    domain_id: str | None = None
    assistant_id: str | None = None
    status: ConversationStatus | None = None
    q: str | None = Field(None, max_length=200)
    folder: str | None = None
    pinned_first: bool = False


class FolderQuery(Form):
    """Filters of folders: one domain or all, and the status of the conversations that count."""

    domain_id: str | None = None
    status: ConversationStatus | None = None


class SearchQuery(Form):
    """Words to search for in titles and messages, at most ``limit`` conversations, in one domain or in all."""

    q: str = Field(max_length=200)
    domain_id: str | None = None
    limit: int = Field(20, ge=1, le=50)


class ConversationChange(Form):
    """Changes to a conversation. Absent fields stay unchanged; ``metadata`` is replaced.

    ``activeLeaf`` is the id of a message. The newest branch with this message becomes the active one. ``model`` is one
    of the domain's ``models``; an empty text is the domain's own. ``folder`` has at most 60 characters; null or an
    empty text takes the conversation out of its folder.
    """

    cleaned = frozenset({"folder"})
    title: str | None = None
    status: ConversationStatus | None = None
    pinned: bool | None = None
    folder: str | None = None
    model: Annotated[str, Field(max_length=200)] | None = None
    metadata: OwnJson = None
    active_leaf: MessageId | None = Field(None, min_length=1, max_length=200)


class Rendering(Form):
    """Format of messages. With ``html`` each message also has its text as sanitised HTML."""

    format: Literal["text", "html"] = "text"

    @property
    def as_html(self) -> bool:
        return self.format == "html"


class OneMessageQuery(Rendering):
    """Format of one message. With ``dialect=message`` the answer is the message contract's object."""

    dialect: Literal["native", "message"] = "native"


class MessageQuery(Rendering):
    """A page of messages: the last ``limit`` ones, or those before the message ``before``."""

    limit: int = Field(50, ge=1, le=200)
    before: MessageId | None = None


class BranchQuery(MessageQuery):
    """A page of messages of one branch.

    ``leaf`` selects the newest branch with this message instead of the active one. With ``dialect=message`` the items
    are the message contract's objects.
    """

    leaf: MessageId | None = None
    dialect: Literal["native", "message"] = "native"


class StreamQuery(Form):
    """Encoding of the events."""

    dialect: str = DEFAULT_DIALECT


class EventQuery(StreamQuery):
    """Position in a turn's events.

    ``after`` is the number of the last event that the client has. ``Last-Event-ID`` takes precedence.
    """

    after: str = "0"


class MessageForm(Form):
    """A message of the user. With ``images`` the text may be empty.

    The same ``clientMessageId`` never starts two turns. ``roleDraft``: the turn uses this draft of a role; only authors
    of the domain may send one. ``attachments`` are ids of files attached to the conversation. ``model`` is one of the
    domain's ``models``, for this message and the later ones of the conversation.
    """

    cleaned = frozenset({"content"})
    content: str | None = None
    role_draft: TriedFiles | None = None
    images: list[GivenImage] = Field(default_factory=list, max_length=MAX_IMAGES)
    model: ChosenModel | None = None
    attachments: list[AttachmentId] = Field(default_factory=list, max_length=MAX_ATTACHMENTS)
    client_message_id: str | None = Field(None, min_length=1, max_length=200)
    on_busy: Literal["reject", "queue"] = "reject"


class Retry(Form):
    """A request for a new answer to a message. The same ``clientMessageId`` never starts two turns.

    ``model`` is as in a new message.
    """

    model: ChosenModel | None = None
    client_message_id: str | None = Field(None, min_length=1, max_length=200)


class Edit(Retry):
    """A request for a new answer to a message with a new text."""

    cleaned = frozenset({"content"})
    content: str


class Interruption(Form):
    """A request to stop the running turn, or only the turn ``turnId``. ``queued`` also drops the queued ones."""

    turn_id: TurnId | None = None
    queued: bool = False


ToolName = Annotated[str, Field(max_length=200)]


class ToolCallQuery(Form):
    """Filters for tool calls; the last ones are listed in order.

    ``agent`` is the path of a delegate, empty for the main agent. ``toolName`` may be repeated. ``turnId`` selects one
    turn; delegates have turns of their own. ``appOf`` lists the calls that the app of this call asked for; without it,
    only calls of models are listed.
    """

    tool_name: list[ToolName] = Field(default_factory=list, max_length=50)
    agent: str | None = Field(None, max_length=500)
    status: ToolStatus | None = None
    turn_id: TurnId | None = Field(None, max_length=200)
    app_of: str = Field("", max_length=200)
    limit: int = Field(100, ge=1, le=500)


class ToolReportQuery(TimeRangeQuery):
    """Filters for the tool calls of a domain: started at or after ``from`` and before ``to``, both a day or a time.

    The newest ``limit`` calls are listed. ``toolName`` may be repeated.
    """

    tool_name: list[ToolName] = Field(default_factory=list, max_length=50)
    status: ToolStatus | None = None
    limit: int = Field(100, ge=1, le=500)


class ConversationRoutes:
    """Conversations and their messages."""

    def __init__(
        self, conversations: Conversations, search: ConversationSearch, deletion: Deletion, pages: MessagePages
    ) -> None:
        self._conversations = conversations
        self._search = search
        self._deletion = deletion
        self._pages = pages

    @route("POST", CONVERSATIONS, allow="user", status=201, errors=[NotFound, QuotaExceeded, ModelNotAllowed])
    async def create(self, user: User, body: NewConversation) -> Redacted[Conversation]:
        """Create a conversation in a domain."""
        domain_id = _same_domain(body.domain_id, body.assistant_id)
        record = await self._conversations.create(
            user, domain_id, body.title, body.context_document_ids, metadata=body.metadata, model=body.model
        )
        return show_conversation(record, None)

    @route("GET", CONVERSATIONS, allow="user")
    async def list_page(self, user: User, query: ConversationQuery) -> CountedPage[Redacted[Conversation]]:
        """List the caller's conversations."""
        page = await self._conversations.list_page(
            user,
            page=query.page,
            page_size=query.page_size,
            sort_by=SORT_KEYS[query.sort_by],
            sort_order=query.sort_order,
            domain_id=_same_domain(query.domain_id, query.assistant_id),
            status=query.status,
            q=query.q,
            folder=query.folder,
            pinned_first=query.pinned_first,
        )
        current = await self._conversations.current_turns(page.items)
        items = [show_conversation(item, current.get(item.session_id)) for item in page.items]
        return CountedPage(items, page.page * page.page_size < page.total, page.total, page.page, page.page_size)

    @route("GET", CONVERSATION_FOLDERS, allow="user")
    async def folders(self, user: User, query: FolderQuery) -> Part[Redacted[ConversationFolder]]:
        """List the folders of the caller's conversations by name. Empty folders do not exist."""
        folders, more = await self._conversations.folders(user, query.domain_id, query.status)
        return Part([Redacted(folder.domain_id, answer_from(ConversationFolder, folder)) for folder in folders], more)

    @route("GET", CONVERSATION_SEARCH, allow="user")
    async def search(self, user: User, query: SearchQuery) -> Part[Redacted[FoundConversation]]:
        """Search in the titles and messages of the caller's conversations, archived ones included."""
        result = await self._search.search(user, query.q, query.domain_id, query.limit)
        current = await self._conversations.current_turns([hit.conversation for hit in result.items])
        items = [show_found(hit, current.get(hit.conversation.session_id)) for hit in result.items]
        return Part(items, result.more)

    @route("GET", CONVERSATION, allow="user")
    async def get(self, user: User, conversation: ConversationId) -> Redacted[Conversation]:
        """Show a conversation's record."""
        return await self._show(await self._conversations.get(user, conversation))

    @route("PATCH", CONVERSATION, allow="user", errors=[TurnInProgress, ModelNotAllowed])
    async def change(
        self, user: User, conversation: ConversationId, body: ConversationChange
    ) -> Redacted[Conversation]:
        """Change title, status, pin, folder, model or metadata, or switch to another branch."""
        # The switch comes first: while a turn runs it is refused, and then the other fields stay as they were.
        if body.active_leaf is not None:
            await self._conversations.activate(user, conversation, body.active_leaf)
        record = await self._conversations.change(
            user,
            conversation,
            title=body.title,
            status=body.status,
            pinned=body.pinned,
            # Null takes the conversation out of its folder, and an absent key leaves it there.
            folder=(body.folder or "") if "folder" in body.model_fields_set else None,
            metadata=body.metadata,
            model=body.model,
        )
        return await self._show(record)

    @route("DELETE", CONVERSATION, allow="user", audited=True)
    async def delete(self, user: User, conversation: ConversationId) -> None:
        """Delete a conversation with all its data."""
        await self._deletion.conversation(user, conversation)

    @route("GET", f"{CONVERSATION}/messages", allow="user")
    async def messages(
        self, user: User, conversation: ConversationId, query: BranchQuery
    ) -> Redacted[Messages] | Redacted[ContractMessages]:
        """List messages, oldest first."""
        page = await self._conversations.messages(user, conversation, query.limit, query.before, query.leaf)
        shown = await self._pages.show(user, page, as_html=query.as_html)
        if query.dialect == MessageDialect.name:
            items = [show_contract_message(message) for message in shown.items]
            return await self._within(user, conversation, ContractMessages(items, shown.has_more))
        return await self._within(user, conversation, shown)

    @route("GET", f"{CONVERSATION}/messages/{{message}}", allow="user")
    async def get_message(
        self, user: User, conversation: ConversationId, message: MessageId, query: OneMessageQuery
    ) -> Redacted[StoredMessageAnswer] | Redacted[ContractMessage]:
        """Show one message of any branch."""
        shown = await self._conversations.message(user, conversation, message)
        (rendered,) = await self._pages.render(user, [shown], as_html=query.as_html)
        is_contract = query.dialect == MessageDialect.name
        return await self._within(user, conversation, show_contract_message(rendered) if is_contract else rendered)

    @route(
        "POST",
        f"{CONVERSATION}/messages",
        allow="user",
        sends=True,
        streams=True,
        status=202,
        max_bytes=MAX_IMAGES_JSON,
        errors=(*WAITING_ERRORS, Forbidden),
    )
    async def send(
        self, request: Request, user: User, conversation: ConversationId, query: StreamQuery, body: MessageForm
    ) -> EventStream | CollectedAnswer | Redacted[AcceptedMessage]:
        """Send a message.

        The answer is the turn's event stream. With ``Accept: application/json`` the answer is the turn, which continues
        in the background; in the dialect ``message`` it is the finished answer.
        """
        dialect = get_dialect(query.dialect)
        joins = body.on_busy == "reject" and joins_repeats(dialect.name)
        accepted = await self._conversations.send(
            user,
            conversation,
            body.content or "",
            client_message_id=body.client_message_id,
            on_busy="join" if joins else body.on_busy,
            images=body.images,
            model=body.model,
            attachments=body.attachments,
            terms=TurnTerms(tried=body.role_draft.to_tried()) if body.role_draft else USUAL_TERMS,
        )
        return await self._follow(request, user, conversation, accepted, dialect)

    @route(
        "POST",
        f"{CONVERSATION}/messages/{{message}}/retry",
        allow="user",
        sends=True,
        streams=True,
        status=202,
        errors=WAITING_ERRORS,
    )
    async def retry(
        self,
        request: Request,
        user: User,
        conversation: ConversationId,
        message: MessageId,
        query: StreamQuery,
        body: Retry,
    ) -> EventStream | CollectedAnswer | Redacted[AcceptedMessage]:
        """Answer a message of the user again, on a new branch without the old answer.

        The response is the same as for sending.
        """
        dialect = get_dialect(query.dialect)
        accepted = await self._conversations.answer_again(
            user, conversation, message, client_message_id=body.client_message_id, model=body.model
        )
        return await self._follow(request, user, conversation, accepted, dialect)

    @route(
        "POST",
        f"{CONVERSATION}/messages/{{message}}/edit",
        allow="user",
        sends=True,
        streams=True,
        status=202,
        errors=WAITING_ERRORS,
    )
    async def edit(
        self,
        request: Request,
        user: User,
        conversation: ConversationId,
        message: MessageId,
        query: StreamQuery,
        body: Edit,
    ) -> EventStream | CollectedAnswer | Redacted[AcceptedMessage]:
        """Replace a message of the user and answer it on a new branch. The response is the same as for sending."""
        dialect = get_dialect(query.dialect)
        accepted = await self._conversations.answer_again(
            user, conversation, message, body.content, client_message_id=body.client_message_id, model=body.model
        )
        return await self._follow(request, user, conversation, accepted, dialect)

    @route("GET", f"{CONVERSATION}/branches", allow="user")
    async def branches(self, user: User, conversation: ConversationId) -> Redacted[Items[BranchAnswer]]:
        """List the branches of a conversation, newest last."""
        branches = await self._conversations.branches(user, conversation)
        return await self._within(user, conversation, Items([answer_from(BranchAnswer, branch) for branch in branches]))

    @route("POST", f"{CONVERSATION}/interrupt", allow="user")
    async def interrupt(self, user: User, conversation: ConversationId, body: Interruption) -> InterruptAnswer:
        """Stop the running turn. Safe to repeat."""
        return InterruptAnswer(
            await self._conversations.interrupt(user, conversation, turn_id=body.turn_id, queued=body.queued)
        )

    @route("POST", f"{CONVERSATION}/compact", allow="user", sends=True, errors=COMPACTION_ERRORS)
    async def compact(self, user: User, conversation: ConversationId) -> Redacted[Archive]:
        """Summarise the conversation. The model then reads the summary instead of the earlier messages."""
        archive = await self._conversations.compact(user, conversation)
        return await self._within(user, conversation, answer_from(Archive, archive))

    @route("GET", f"{CONVERSATION}/archives", allow="user")
    async def archives(self, user: User, conversation: ConversationId) -> Redacted[Items[Archive]]:
        """List the summaries that replace earlier messages."""
        archives = await self._conversations.archives(user, conversation)
        return await self._within(user, conversation, Items([answer_from(Archive, archive) for archive in archives]))

    @route("GET", f"{CONVERSATION}/archives/{{archive}}/messages", allow="user")
    async def list_archived_messages(
        self, user: User, conversation: ConversationId, archive: str, query: MessageQuery
    ) -> Redacted[Messages]:
        """List the messages that a summary replaces."""
        page = await self._conversations.archived_messages(user, conversation, archive, query.limit, query.before)
        return await self._within(user, conversation, await self._pages.show(user, page, as_html=query.as_html))

    @route("GET", f"{CONVERSATION}/tool-calls", allow="user")
    async def tool_calls(
        self, user: User, conversation: ConversationId, query: ToolCallQuery
    ) -> Redacted[Part[ToolCallAnswer]]:
        """List the last tool calls in order. ``hasMore``: there are earlier ones."""
        calls = await self._conversations.tool_calls(
            user,
            conversation,
            limit=query.limit + 1,  # one more than shown tells whether there are earlier ones
            tool_names=query.tool_name,
            status=query.status,
            agent=query.agent,
            turn_id=query.turn_id,
            app_of=query.app_of,
        )
        shown = [show_tool_call(call) for call in calls[-query.limit :]]
        return await self._within(user, conversation, Part(shown, len(calls) > query.limit))

    @route("GET", "/api/domains/{domain}/tool-calls", allow="admin")
    async def report_tool_calls(self, domain: str, query: ToolReportQuery) -> Redacted[ToolReport]:
        """List the tool calls of a domain without arguments and texts, newest first, with totals."""
        calls, totals = await self._conversations.tool_report(
            domain,
            query.limit + 1,
            tool_names=query.tool_name,
            status=query.status,
            since=query.since or "",
            until=query.until or "",
        )
        shown = [report_tool_call(call) for call in calls[: query.limit]]
        return Redacted(domain, ToolReport(shown, len(calls) > query.limit, totals))

    async def _show(self, record: ConversationRecord) -> Redacted[Conversation]:
        """Return a conversation's record with what runs in it."""
        current = await self._conversations.current_turns([record])
        return show_conversation(record, current.get(record.session_id))

    @route("GET", "/api/payloads/{ref}", allow="user")
    async def get_payload(self, user: User, ref: str) -> Attachment:
        """Return a tool result that is kept whole, as a file."""
        payload = await self._conversations.payload(user, ref)
        ending = FILE_ENDINGS.get(payload.media_type, "bin")
        return Attachment(payload.domain_id, f"{ref}.{ending}", payload.media_type, payload.data)

    async def _follow(
        self, request: Request, user: User, conversation: ConversationId, accepted: Accepted, dialect: Dialect
    ) -> EventStream | CollectedAnswer | Redacted[AcceptedMessage]:
        """Answer with an accepted message's events, or with its turn; in the dialect ``message`` with its answer."""
        if not _wants_json(request):
            if isinstance(dialect, Chat):
                dialect = Chat(new_session=await self._conversations.is_first_turn(user, accepted.turn_id))
            if accepted.duplicate and joins_repeats(dialect.name):  # this client cannot retract text
                return EventStream(read_settled(self._conversations.log(accepted.turn_id)), dialect)
            return EventStream(self._conversations.events(accepted.turn_id), dialect)
        if dialect.name == MessageDialect.name:
            return CollectedAnswer(self._conversations.events(accepted.turn_id), MessageAnswer())
        turn = await self._conversations.turn(user, accepted.turn_id)
        answer = answer_from(
            AcceptedMessage,
            show_turn(turn),
            user_message_id=accepted.user_message_id,
            message_id=accepted.message_id,
            client_message_id=accepted.client_message_id,
        )
        return await self._within(user, conversation, answer)

    async def _within(self, user: User, conversation: ConversationId, answer: Any) -> Redacted[Any]:
        """Return an answer from which the secrets of the conversation's domain are removed."""
        record = await self._conversations.get(user, conversation)
        return Redacted(record.domain_id, answer)


class TurnRoutes:
    """Turns and their events."""

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations

    @route("GET", TURN, allow="user")
    async def get(self, user: User, turn: TurnId) -> Redacted[TurnAnswer]:
        """Show a turn."""
        record = await self._conversations.turn(user, turn)
        conversation = await self._conversations.get(user, record.conversation_id)
        return Redacted(conversation.domain_id, show_turn(record))

    @route("GET", "/api/images/{image}", allow="user")
    async def get_image(self, user: User, image: str) -> Redacted[ImageAnswer]:
        """Show the settings that a turn ran on, to admins of its domain."""
        record = await self._conversations.image(user, image)
        definition = {name: value for name, value in record.definition.items() if name != "binding"}
        return Redacted(record.domain_id, answer_from(ImageAnswer, record, definition=definition))

    @route("GET", f"{TURN}/children", allow="user")
    async def list_children(self, user: User, turn: TurnId) -> Redacted[Items[DelegateAnswer]]:
        """List the delegates of a turn with their messages and tool calls."""
        record = await self._conversations.turn(user, turn)
        conversation = await self._conversations.get(user, record.conversation_id)
        children = await self._conversations.children(user, turn)
        return Redacted(conversation.domain_id, Items([show_child(child) for child in children]))

    @route("GET", f"{TURN}/events", allow="user", streams=True, errors=[LogGone])
    async def events(self, request: Request, user: User, turn: TurnId, query: EventQuery) -> EventStream:
        """Stream a turn's events after the given one until the turn ends."""
        dialect = get_dialect(query.dialect)
        last_event_id, part = request.headers.get("last-event-id"), None
        if isinstance(dialect, AgUi) and last_event_id is not None:  # it numbers the parts of an event
            last_event_id, part = _split_part(last_event_id)
        after = _after(last_event_id, query.after, turn)
        await self._conversations.check_replay(user, await self._conversations.turn(user, turn))
        await self._conversations.log(turn, after).check()  # a missing log is refused while a status can be sent
        if isinstance(dialect, Chat):
            dialect = Chat(new_session=await self._conversations.is_first_turn(user, turn))
        if not after and joins_repeats(dialect.name):
            return EventStream(read_settled(self._conversations.log(turn)), dialect)
        if part is not None:
            return EventStream(self._conversations.events(turn, 0), AgUi(after=Offset(turn, after, part)))
        # An encoder that needs the start is fed with all events, and `join` drops what the reader has.
        start = 0 if dialect.needs_start else after
        return EventStream(self._conversations.events(turn, start), join(dialect, after))


def _same_domain(domain_id: str | None, assistant_id: str | None) -> str | None:
    """Return the domain that a client names by ``domainId``, by ``assistantId``, or by both.

    Raises:
        InvalidInput: the two differ.
    """
    if assistant_id is not None and domain_id not in (None, assistant_id):
        raise InvalidInput("assistantId", "an older name of domainId: give one, or the same for both.")
    return domain_id if assistant_id is None else assistant_id


def _wants_json(request: Request) -> bool:
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/event-stream" not in accept


def _split_part(last_event_id: str) -> tuple[str, int | None]:
    """Return an event's id without the number of its part, and that number."""
    event_id, dot, part = last_event_id.rpartition(".")
    return (event_id, int(part)) if dot and part.isdecimal() and len(part) < 10 else (last_event_id, None)


def _after(last_event_id: str | None, after: str, turn_id: TurnId) -> int:
    """Return the number after which to continue.

    ``Last-Event-ID``, sent by a reconnecting client, precedes ``?after=``.

    Raises:
        InvalidInput: the value is malformed, or ``Last-Event-ID`` belongs to another turn.
    """
    name, number = "after", after
    if last_event_id is not None:
        name = "Last-Event-ID"
        turn, _, number = last_event_id.rpartition(":")
        if turn != turn_id:
            raise InvalidInput(name, f"expected {turn_id}:<number>.")
    if not number.isdecimal() or len(number) > 15:
        raise InvalidInput(name, "the number of an event is expected.")
    return int(number)
