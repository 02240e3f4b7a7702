"""REST answers about conversations, messages and turns, built from their records.

Renders the HTML of messages on request. Knows no route.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from agentic_rag.access.users import User
from agentic_rag.base.events import Error, ToolStatus
from agentic_rag.base.ids import ConversationId, DocumentId, MessageId, SessionId, TurnId
from agentic_rag.base.json_form import Absent, Json, to_json
from agentic_rag.base.messages import STRUCTURED, Block, without_private
from agentic_rag.base.threads import DomainThreads
from agentic_rag.conversations import search, transcripts
from agentic_rag.conversations.shown_messages import ShownMessage, text_runs
from agentic_rag.conversations.transcripts import ShownPage
from agentic_rag.operations.usage import TurnCost, UsageReports
from agentic_rag.server.dialects.message import sources_and_tokens
from agentic_rag.server.replies import Items, Redacted, answer, answer_from
from agentic_rag.store.conversations import ConversationRecord, ConversationStatus
from agentic_rag.store.tool_calls import ToolCallRecord, ToolTotal
from agentic_rag.store.turns import TurnRecord, TurnStatus


@answer()
class CurrentTurn:
    """The unfinished turn of a conversation."""

    id: str
    status: TurnStatus


@answer()
class Conversation:
    """A conversation's record; its messages have their own route. ``turn`` is the running or queued one, if any.

    ``outcome`` tells how the last turn ended: ``done``, ``failed`` or ``interrupted``. ``pinned`` is absent unless
    true, and ``folder`` unless the conversation is in one. ``model`` is the chosen one, absent for the domain's own.
    ``assistantId`` is an older name of ``domainId``.
    """

    id: str
    domain_id: str
    assistant_id: str
    owner_id: str
    session_id: SessionId
    turn: CurrentTurn | None
    title: str
    title_source: str
    status: ConversationStatus
    message_count: int
    context_document_ids: Sequence[str]
    metadata: Json
    image_id: str | None
    started_at: str
    updated_at: str
    last_message_at: str | None
    pinned: Absent[bool] = None
    folder: Absent[str] = None
    outcome: Absent[TurnStatus] = None
    model: Absent[str] = None


@answer()
class ConversationFolder:
    """A folder of the caller's conversations in one domain, and the number of conversations in it."""

    domain_id: str
    name: str
    count: int


@answer()
class ExcerptAnswer:
    """Text of a message around a hit. ``marks`` are the places of the hits in it, in Unicode code points."""

    text: str
    marks: Sequence[tuple[int, int]]


@answer()
class FoundMessage:
    """The newest message of a conversation that matches a search."""

    id: MessageId
    role: Literal["user", "assistant"]
    excerpt: ExcerptAnswer


@answer()
class FoundConversation:
    """A conversation that matches a search. ``count`` is the number of its messages that match.

    ``titleMarks`` are the places in its title, in Unicode code points. ``message`` is null if only the title matches.
    """

    conversation: Conversation
    title_marks: Sequence[tuple[int, int]]
    message: FoundMessage | None
    count: int


@answer()
class CitedTableAnswer:
    """The table rows that a citation quotes, with the cells of the header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@answer()
class ReferenceAnswer:
    """A cited passage, found by ``agent``. ``verified`` is False if it shares no word with its statement.

    If known, ``documentDate`` is the document's date, ``reviewBy`` the day until which it should be reviewed, and
    ``sourceUri`` its address in the system it came from.
    """

    number: int
    document_id: DocumentId
    document_name: str
    chunk_id: str
    cited_text: str
    score: float
    page: Absent[int] = None
    cells: Absent[str] = None
    agent: Absent[str] = None
    verified: Absent[bool] = None
    table: Absent[CitedTableAnswer] = None
    scanned: Absent[bool] = None
    scanned_by: Absent[str] = None
    document_date: Absent[str] = None
    review_by: Absent[str] = None
    source_uri: Absent[str] = None


@answer()
class TextPart:
    """Text between two calls as HTML. ``block`` is the index of its first block in ``blocks``."""

    block: int
    html: str


@answer()
class AttachedFile:
    """A file that was attached to a message. ``notes`` name the parts that were not read."""

    id: str
    name: str
    media_type: str
    size: int
    passages: int
    pages: Absent[int] = None
    notes: Absent[Sequence[str]] = None


@answer()
class StoredMessageAnswer:
    """A message: its plain text and its content blocks, including tool calls and results.

    On request, ``html`` is the text as HTML for a page, with a ``sup`` of class ``citation`` for each citation; it runs
    no code and loads nothing from other servers. ``parts`` is the same in pieces between the calls.
    """

    id: str
    conversation_id: ConversationId
    turn_id: TurnId
    parent_message_id: MessageId | None
    role: Literal["user", "assistant"]
    content: str
    blocks: Sequence[Block]
    references: Sequence[ReferenceAnswer]
    metadata: Json
    created_at: str
    html: Absent[str] = None
    parts: Absent[Sequence[TextPart]] = None
    attachments: Absent[Sequence[AttachedFile]] = None


@answer()
class Messages(Items[StoredMessageAnswer]):
    """Messages in order. ``hasMore`` says that there are earlier ones."""

    has_more: bool


@answer()
class ContractMessage:
    """A message in the message contract's form: ``metadata`` with ``sources`` and ``tokensUsed``, and no blocks."""

    id: str
    conversation_id: ConversationId
    turn_id: TurnId
    parent_message_id: MessageId | None
    role: Literal["user", "assistant"]
    content: str
    references: Sequence[ReferenceAnswer]
    metadata: Json
    created_at: str
    html: Absent[str] = None


@answer()
class ContractMessages(Items[ContractMessage]):
    """Messages in order. ``hasMore`` says that there are earlier ones."""

    has_more: bool


@answer()
class BranchAnswer:
    """One path through a conversation. ``leaf`` is its last answer, ``parentMessageId`` the answer where it forks.

    ``firstMessageId`` and ``content`` are the user's message after the fork; ``turnCount`` counts the whole path.
    """

    leaf: str
    parent_message_id: MessageId | None
    first_message_id: MessageId
    content: str
    turn_count: int
    active: bool
    status: TurnStatus
    started_at: str


@answer()
class Archive:
    """A summary that replaces the messages before it in the model's context."""

    id: str
    summary: str
    message_count: int
    created_by: str
    created_at: str


@answer()
class ToolCallAnswer:
    """The record of a tool call. ``result`` holds the blocks for the model, null while the call runs.

    ``agent`` is the path of the delegate that made it, empty for the main agent. ``appOf`` is the call whose app asked
    for it, absent for a call of a model; such a call has no stored result. ``structured`` is the structured
    content of a user's server, or ``{"_ref": …}`` if it is stored separately (``GET /api/payloads/{ref}``).
    """

    tool_call_id: str
    turn_id: TurnId
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
    app_of: Absent[str] = None
    structured: Absent[Any] = None


@answer()
class ReportedCall:
    """A tool call without its texts. ``hitCount`` counts the found passages, ``size`` the bytes of its result.

    ``appOf`` is the call whose app asked for it, absent for a call of a model.
    """

    turn_id: TurnId
    tool_call_id: str
    agent: str
    server: str
    tool_name: str
    status: ToolStatus
    hit_count: int
    size: int | None
    started_at: str
    duration_ms: int | None
    app_of: Absent[str] = None


@answer()
class ToolReport(Items[ReportedCall]):
    """Tool calls of a domain, newest first. ``totals`` counts all matches. ``hasMore``: there are older ones."""

    has_more: bool
    totals: Sequence[ToolTotal]


@answer()
class RoleVersion:
    """A role that an answer used, and the hash of its text at that time."""

    id: str
    hash: str


@answer()
class TurnAnswer:
    """The processing of one user message."""

    id: str
    conversation_id: ConversationId
    status: TurnStatus
    end_reason: str | None
    usage: Json
    image_id: str
    roles: Sequence[RoleVersion]
    started_at: str
    ended_at: str | None
    error: Absent[Error] = None


@answer()
class ImageAnswer:
    """The settings that turns ran on, without secret values and without internal bindings."""

    id: str
    domain_id: str
    definition: Json
    created_at: str


@answer()
class DelegateAnswer:
    """A delegate of a turn: its path, the call that started it, and its records. Its turn may have delegates, too."""

    agent: str
    parent_tool_call_id: str
    turn: TurnAnswer
    messages: Sequence[StoredMessageAnswer]
    tool_calls: Sequence[ToolCallAnswer]


@answer(kw_only=True)
class AcceptedMessage(TurnAnswer):
    """The turn that a message started, with the ids of its two messages."""

    user_message_id: MessageId
    message_id: MessageId
    client_message_id: str | None


@answer()
class InterruptAnswer:
    """Whether a turn was stopped."""

    interrupted: bool


def show_conversation(record: ConversationRecord, turn: TurnRecord | None) -> Redacted[Conversation]:
    return Redacted(record.domain_id, _conversation(record, turn))


def _conversation(record: ConversationRecord, turn: TurnRecord | None) -> Conversation:
    shown = None if turn is None else answer_from(CurrentTurn, turn)
    return answer_from(
        Conversation,
        record,
        assistant_id=record.domain_id,
        metadata=record.meta,
        turn=shown,
        pinned=record.pinned or None,
    )


def show_found(result: search.ConversationHit, turn: TurnRecord | None) -> Redacted[FoundConversation]:
    """Return a conversation that matches a search."""
    hit = result.message
    message = None if hit is None else answer_from(FoundMessage, hit, excerpt=answer_from(ExcerptAnswer, hit.excerpt))
    shown = answer_from(
        FoundConversation, result, conversation=_conversation(result.conversation, turn), message=message
    )
    return Redacted(result.conversation.domain_id, shown)


class MessagePages:
    """Builds shown messages, with the cost of answers.

    A thread shared by all users renders HTML message by message, because a malicious message takes up to a second.
    """

    def __init__(self, thread: DomainThreads, reports: UsageReports) -> None:
        self._thread = thread
        self._reports = reports

    async def show(self, user: User, page: ShownPage, *, as_html: bool) -> Messages:
        """Return a page of messages."""
        return Messages(await self.render(user, page.messages, as_html=as_html), page.has_more)

    async def render(self, user: User, messages: Sequence[ShownMessage], *, as_html: bool) -> list[StoredMessageAnswer]:
        """Return messages, on request with HTML."""
        costs = await self._reports.costs([message.turn_id for message in messages if message.role == "assistant"])
        priced = [_with_cost(message, costs.get(message.turn_id)) for message in messages]
        if not as_html:
            return [show_message(message) for message in priced]
        return [await self._thread.run(user.id, _with_html, message) for message in priced]


def _with_cost(message: ShownMessage, cost: TurnCost | None) -> ShownMessage:
    if cost is None or message.role != "assistant":
        return message
    return replace(message, metadata=message.metadata | {"cost": to_json(cost)})


def _with_html(message: ShownMessage) -> StoredMessageAnswer:
    from agentic_rag.conversations.message_html import to_html  # imported here, because it adds 0.1 s to a start

    text = to_html(message.content, message.citations, message.references, breaks=message.role == "user")
    runs = text_runs(message)
    parts = None
    if message.role == "assistant" and len(runs) > 1:
        parts = [TextPart(run.block, to_html(run.text, run.citations, message.references)) for run in runs]
    return answer_from(StoredMessageAnswer, show_message(message), html=text, parts=parts)


def show_message(message: ShownMessage) -> StoredMessageAnswer:
    metadata = message.metadata
    if message.role == "assistant":
        metadata = metadata | sources_and_tokens(to_json(message.references), metadata["usage"])
    references = [answer_from(ReferenceAnswer, reference) for reference in message.references]
    attached = [answer_from(AttachedFile, attachment) for attachment in message.attachments] or None
    return answer_from(StoredMessageAnswer, message, references=references, metadata=metadata, attachments=attached)


def show_turn(record: TurnRecord) -> TurnAnswer:
    roles = [RoleVersion(role, text_hash) for role, text_hash in record.role_hashes.items()]
    return answer_from(TurnAnswer, record, usage=record.usage.to_json() if record.usage else {}, roles=roles)


def show_child(child: transcripts.DelegateRecords) -> DelegateAnswer:
    messages = [show_message(message) for message in child.messages]
    calls = [show_tool_call(call) for call in child.tool_calls]
    return DelegateAnswer(child.agent, child.parent_tool_call_id, show_turn(child.turn), messages, calls)


def show_tool_call(record: ToolCallRecord) -> ToolCallAnswer:
    result = None if record.result is None else without_private(record.result["content"])
    structured = None if record.result is None else record.result.get(STRUCTURED)
    return answer_from(ToolCallAnswer, record, result=result, structured=structured, app_of=record.app_of or None)


def report_tool_call(record: ToolCallRecord) -> ReportedCall:
    blocks = [] if record.result is None else record.result["content"]
    hits = sum(block["type"] == "search_result" for block in blocks)
    return answer_from(ReportedCall, record, hit_count=hits, app_of=record.app_of or None)


def show_contract_message(message: StoredMessageAnswer) -> ContractMessage:
    return answer_from(ContractMessage, message)
