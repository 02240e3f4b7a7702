"""Conversations: who talks in which domain, what was said, and sending the next message.

Owns the records, their limits, titles and owners. Holds no messages: those are the session's, read and shown as
clients count them, two a turn. Knows no socket. Another owner's id looks like one that does not exist.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from agentic_rag.access.auditing import denied_call, made_call
from agentic_rag.access.users import User
from agentic_rag.conversations.titles import title_of
from agentic_rag.conversations.transcripts import Branch, Child, ShownPage, Transcripts
from agentic_rag.directory.directory import Directory
from agentic_rag.domains.definitions import Definitions
from agentic_rag.errors import (
    ConversationArchived,
    ConversationFull,
    InvalidInput,
    MessageContentRequired,
    MessageTooLong,
    NotFound,
)
from agentic_rag.events import AgentEvent, Done, Error, EventBody, Notice, Terminal, Title, ToolStatus
from agentic_rag.forms import is_visible, one_line
from agentic_rag.roles.birth import Births
from agentic_rag.runtime.core.calls import PlannedCall
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.runtime import Runtime
from agentic_rag.runtime.session import Accepted, LiveSession, OnBusy
from agentic_rag.store import conversations, documents, payloads, sessions, turns
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.compactions import CompactionRecord
from agentic_rag.store.conversations import ConversationRecord, ConversationStatus, SortBy, SortOrder, TitleSource
from agentic_rag.store.database import Database
from agentic_rag.store.documents import DocumentStatus
from agentic_rag.store.sessions import SessionLabels
from agentic_rag.store.tool_calls import ToolCallRecord
from agentic_rag.store.turns import TurnRecord

MAX_MESSAGES = 1_000
"""Of a conversation, as clients count; those that a summary stands for do not count."""
MAX_CHARACTERS = 10_000
MAX_TITLE = 200
MAX_CONTEXT_DOCUMENTS = 1_000
MAX_KNOWN = 1_024
"""Conversations whose places are remembered between two messages."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list; ``total`` counts what matches on all pages."""

    items: list[ConversationRecord]
    total: int
    page: int
    page_size: int


@dataclass(frozen=True, slots=True)
class KeptPayload:
    """A tool result that is kept whole, with the domain whose secrets it may not show."""

    domain_id: str
    media_type: str
    data: bytes


class Conversations:
    """The conversations of all users."""

    def __init__(
        self,
        database: Database,
        directory: Directory,
        definitions: Definitions,
        runtime: Runtime,
        births: Births,
        default_domain: str,
    ) -> None:
        """``default_domain``: where a conversation is begun for which nobody named one."""
        self._db = database
        self._births = births
        self._default_domain = default_domain
        self._directory = directory
        self._definitions = definitions
        self._runtime = runtime
        self._transcripts = Transcripts(database, runtime)
        self._known: OrderedDict[str, ConversationRecord] = OrderedDict()

    async def create(
        self, user: User, domain_id: str | None, title: str | None = None, context_document_ids: Sequence[str] = ()
    ) -> ConversationRecord:
        """Begin a conversation, in the default domain if none is named.

        ``context_document_ids`` limits what its searches see.

        Raises:
            NotFound: there is no such domain, or it has no such document.
            InvalidInput: the title is too long, there are too many documents, or no domain is named and the default
                one is not there for this user.
            QuotaExceeded: the domain has as many conversations as it may.
        """
        if domain_id is None:
            domain_id = await self._find_default(user)
        elif not user.sees(domain_id):
            raise NotFound("domain", domain_id, hidden=True)
        await self._directory.get(domain_id)
        created = now()
        conversation = ConversationRecord(
            id=new_id("conv"),
            domain_id=domain_id,
            owner_id=user.id,
            session_id=new_id("sess"),
            title=_title(title) if title else "",
            title_source=TitleSource.USER if title else TitleSource.AUTO,
            context_document_ids=_distinct(context_document_ids),
            meta={},
            started_at=created,
            updated_at=created,
        )
        labels = SessionLabels(conversation_id=conversation.id, domain_id=domain_id, user_id=user.id)

        def store(conn: Connection) -> None:
            _check_documents(conn, domain_id, conversation.context_document_ids)
            sessions.create(conn, conversation.session_id, labels, created_at=created)
            conversations.insert(conn, conversation)
            self._directory.quotas.check_conversations(conn, domain_id)

        await self._db.write(store, durable=True)
        return conversation

    async def _find_default(self, user: User) -> str:
        """Return the id of the default domain. Raises `InvalidInput` when this user has none."""
        try:
            if user.sees(self._default_domain):
                return (await self._directory.get(self._default_domain)).id
        except NotFound:
            pass
        problem = f"required: the default domain {self._default_domain!r} is not there, or not for you"
        raise InvalidInput("domainId", problem)

    async def get(self, user: User, conversation_id: str) -> ConversationRecord:
        """Return the record.

        Raises:
            NotFound: there is no such conversation of this user.
        """
        found = await self._db.read(lambda conn: conversations.get(conn, conversation_id))
        if found is None or not _owns(user, found):
            raise NotFound("conversation", conversation_id, hidden=found is not None)
        return found

    async def list_page(
        self,
        user: User,
        *,
        page: int = 1,
        page_size: int = 20,
        sort_by: SortBy = "updated_at",
        sort_order: SortOrder = "desc",
        domain_id: str | None = None,
        status: ConversationStatus | None = None,
        q: str | None = None,
    ) -> Page:
        """Return one page of the user's conversations; ``q`` is part of the title."""
        items, total = await self._db.read(
            lambda conn: conversations.list_page(
                conn,
                page=page,
                page_size=page_size,
                sort_by=sort_by,
                sort_order=sort_order,
                domain_id=domain_id,
                status=status,
                q=q,
                owner_id=user.id,
                domain_ids=None if user.operator else user.domains,
            )
        )
        return Page(items, total, page, page_size)

    async def change(
        self,
        user: User,
        conversation_id: str,
        *,
        title: str | None = None,
        status: ConversationStatus | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> ConversationRecord:
        """Change what is given; ``metadata`` replaces the whole.

        Raises:
            NotFound: there is no such conversation of this user.
            InvalidInput: the title is blank or too long.
        """
        await self.get(user, conversation_id)
        fields: conversations.ConversationFields = {"updated_at": now()}
        if title is not None:
            fields |= {"title": _title(title), "title_source": TitleSource.USER}
        if status is not None:
            fields["status"] = status
        if metadata is not None:
            fields["meta"] = dict(metadata)
        await self._db.write(lambda conn: conversations.update(conn, conversation_id, **fields), durable=True)
        return await self.get(user, conversation_id)

    async def messages(
        self,
        user: User,
        conversation_id: str,
        limit: int = 50,
        before: str | None = None,
        leaf: str | None = None,
    ) -> ShownPage:
        """Return the last messages in order, two a turn; ``before``: those before this message.

        ``leaf``: of the newest branch that has this message, instead of the active one.

        Raises:
            NotFound: there is no such conversation of this user, or it has no message ``before`` or ``leaf``.
        """
        return await self._transcripts.page(await self.get(user, conversation_id), limit, before, leaf=leaf)

    async def compact(self, user: User, conversation_id: str) -> CompactionRecord:
        """Put a summary in the place of the messages in what the model is sent; people go on reading them.

        Raises:
            NotFound: there is no such conversation of this user, or its domain is gone.
            TurnInProgress: a turn runs.
            CompactionNotNeeded: there are too few messages.
            ModelError, GenerationTimeout, GenerationAborted, StorageFull: nothing has changed.
        """
        conversation = await self.get(user, conversation_id)
        definition, _ = await self._definitions.definition(user, conversation)
        session = await self._runtime.session(conversation.session_id)
        return await session.compact(definition)

    async def archives(self, user: User, conversation_id: str) -> list[CompactionRecord]:
        """Return what was compacted, newest first.

        Raises:
            NotFound: there is no such conversation of this user.
        """
        return await self._transcripts.archives(await self.get(user, conversation_id))

    async def archived_messages(
        self, user: User, conversation_id: str, archive_id: str, limit: int = 50, before: str | None = None
    ) -> ShownPage:
        """Return the messages that one summary stands for, as `messages` does all of them.

        Raises:
            NotFound: there is no such conversation of this user, archive or message.
        """
        return await self._transcripts.page(await self.get(user, conversation_id), limit, before, archive_id)

    async def tool_calls(
        self,
        user: User,
        conversation_id: str,
        *,
        limit: int = 100,
        tool_name: str | None = None,
        status: ToolStatus | None = None,
        agent: str | None = None,
    ) -> list[ToolCallRecord]:
        """Return the last tool calls in order, delegates' included; only those of a tool, status or agent when given.

        Raises:
            NotFound: there is no such conversation of this user.
        """
        conversation = await self.get(user, conversation_id)
        return await self._transcripts.tool_calls(conversation, limit, tool_name=tool_name, status=status, agent=agent)

    async def send(
        self,
        user: User,
        conversation_id: str,
        content: str,
        *,
        client_message_id: str | None = None,
        on_busy: OnBusy = "reject",
    ) -> Accepted:
        """Accept a message: durable when this returns. The first one gives the conversation its title.

        Raises:
            NotFound: there is no such conversation of this user, or its domain is gone.
            MessageContentRequired, MessageTooLong: the content does not fit.
            ConversationArchived, ConversationFull: it takes no messages.
            TurnInProgress: a turn runs and ``on_busy`` is ``reject``, or the queue is full.
            IdempotencyMismatch: the client message id came with other content.
        """
        _check_content(content)
        try:
            session, definition, notices = await self._open(user, conversation_id)
            return await session.send(
                content, definition, client_message_id=client_message_id, on_busy=on_busy, notices=notices
            )
        except NotFound:
            await self._forget(user, conversation_id)
            raise

    async def answer_again(
        self,
        user: User,
        conversation_id: str,
        message_id: str,
        content: str | None = None,
        *,
        client_message_id: str | None = None,
    ) -> Accepted:
        """Answer a user's message (or the one of that answer) again, or with other words: on a new branch.

        Raises:
            NotFound: there is no such conversation of this user, no such message in it, or its domain is gone.
            MessageContentRequired, MessageTooLong: the content does not fit.
            ConversationArchived, ConversationFull: it takes no messages.
            TurnInProgress: a turn runs.
            IdempotencyMismatch: the client message id came with another message or other content.
        """
        if content is not None:
            _check_content(content)
        try:
            session, definition, notices = await self._open(user, conversation_id)
            return await session.branch(
                message_id, content, definition, client_message_id=client_message_id, notices=notices
            )
        except NotFound:
            await self._forget(user, conversation_id)
            raise

    async def branches(self, user: User, conversation_id: str) -> list[Branch]:
        """Return the branches, the newest last.

        Raises:
            NotFound: there is no such conversation of this user.
        """
        return await self._transcripts.branches(await self.get(user, conversation_id))

    async def activate(self, user: User, conversation_id: str, message_id: str) -> None:
        """Make the newest branch that has a message the conversation.

        Raises:
            NotFound: there is no such conversation of this user, or no such message in it.
            TurnInProgress: a turn runs.
        """
        conversation = await self.get(user, conversation_id)
        await (await self._runtime.session(conversation.session_id)).activate(message_id)

    async def _open(self, user: User, conversation_id: str) -> tuple[LiveSession, Definition, Sequence[Notice]]:
        """Return what a turn of a conversation begins with."""
        conversation = await self._place(user, conversation_id)
        await self._births.adopt(conversation.domain_id)
        definition, notices = await self._definitions.definition(user, conversation)
        return await self._runtime.session(conversation.session_id), definition, notices

    async def _forget(self, user: User, conversation_id: str) -> None:
        """Forget where a conversation stands, in which something was not found.

        Raises:
            NotFound: the conversation was deleted since it was last seen.
        """
        if self._known.pop(conversation_id, None) is not None:
            await self.get(user, conversation_id)

    async def _place(self, user: User, conversation_id: str) -> ConversationRecord:
        """Return where a conversation stands: owner, domain, session and documents, which never change."""
        known = self._known.get(conversation_id)
        if known is None or not _owns(user, known):
            known = self._known[conversation_id] = await self.get(user, conversation_id)
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        self._known.move_to_end(conversation_id)
        return known

    async def interrupt(
        self, user: User, conversation_id: str, *, turn_id: str | None = None, queued: bool = False
    ) -> bool:
        """Interrupt what runs (or the named turn); an ended one stays as it is. Returns whether anything was.

        Raises:
            NotFound: there is no such conversation of this user.
        """
        conversation = await self.get(user, conversation_id)
        return await self._runtime.interrupt(conversation.session_id, turn_id=turn_id, queued=queued)

    async def current_turns(self, found: Sequence[ConversationRecord]) -> dict[str, TurnRecord]:
        """Return the turns that run or wait in these conversations, by session: of each the one that runs first."""
        return await self._db.read(lambda conn: turns.current(conn, [each.session_id for each in found]))

    async def payload(self, user: User, ref: str) -> KeptPayload:
        """Return a tool result that is kept whole, for whoever may read its conversation.

        Raises:
            NotFound: there is no such payload in a conversation of this user, or its file is gone.
        """

        def read(conn: Connection) -> tuple[str, ConversationRecord | None]:
            session_id = payloads.session_of(conn, ref) or ""
            session = sessions.get(conn, session_id)
            return session_id, None if session is None else conversations.get(conn, session.labels.conversation_id)

        session_id, conversation = await self._db.read(read)
        if conversation is None or not _owns(user, conversation):
            raise NotFound("payload", ref, hidden=conversation is not None)
        kept = await self._runtime.payload(session_id, ref)
        if kept is None:
            raise NotFound("payload", ref)
        return KeptPayload(conversation.domain_id, *kept)

    async def children(self, user: User, turn_id: str) -> list[Child]:
        """Return the delegates that a turn has made. Raises as `turn` does."""
        return await self._transcripts.children(await self.turn(user, turn_id))

    async def turn(self, user: User, turn_id: str) -> TurnRecord:
        """Return one turn.

        Raises:
            NotFound: there is no such turn in a conversation of this user.
        """

        def read(conn: Connection) -> tuple[TurnRecord | None, ConversationRecord | None]:
            turn = turns.get(conn, turn_id)
            return turn, conversations.get(conn, turn.conversation_id) if turn is not None else None

        turn, conversation = await self._db.read(read)
        if turn is None or conversation is None or not _owns(user, conversation):
            raise NotFound("turn", turn_id, hidden=conversation is not None)
        return turn

    def events(self, turn_id: str, after: int = 0) -> AsyncIterator[AgentEvent]:
        """Read a turn's events; the caller has asked `turn` whether this user may."""
        return self._runtime.follow(turn_id, after)


class TurnBookkeeping:
    """What conversations and the audit log keep of turns, inside the turns' own transactions.

    Implements `agentic_rag.runtime.services.TurnHooks`.
    """

    def turn_accepted(self, conn: Connection, turn: TurnRecord) -> Sequence[EventBody]:
        """Refuse a message that the conversation cannot take; else note it and give an untitled one its title.

        The state that counts is the one in this transaction, not one that was remembered.

        Raises:
            NotFound: the conversation was deleted.
            ConversationArchived, ConversationFull: it takes no message.
        """
        current = conversations.state(conn, turn.conversation_id)
        if current is None:
            raise NotFound("conversation", turn.conversation_id)
        if current.status is ConversationStatus.ARCHIVED:
            raise ConversationArchived
        if current.open_count >= MAX_MESSAGES:
            raise ConversationFull(MAX_MESSAGES)
        is_first = not current.title or (turn.branch_of is not None and turn.parent_message_id is None)
        title = title_of(turn.content) if is_first and current.title_source is TitleSource.AUTO else None
        title = None if title == current.title else title
        conversations.touch(conn, turn.conversation_id, turn.started_at, title)
        return () if title is None else (Title(title),)

    def turn_ended(self, conn: Connection, turn: TurnRecord, final: Terminal) -> None:
        """Count a turn's messages."""
        conversations.add_messages(conn, turn.conversation_id, _count_of(conn, turn, final), now())

    def session_branched(self, conn: Connection, session_id: str) -> None:
        """Count the messages of the branch that is the conversation from now on."""
        counts = sessions.count_messages(conn, session_id)
        conversations.update_of_session(conn, session_id, message_count=counts.every, compacted_count=counts.compacted)

    def session_compacted(self, conn: Connection, session_id: str) -> None:
        """Count the messages that a summary stands for."""
        counts = sessions.count_messages(conn, session_id)
        conversations.update_of_session(conn, session_id, compacted_count=counts.compacted)

    def call_denied(self, conn: Connection, turn: TurnRecord, call: PlannedCall) -> None:
        """Write a call that was denied into the audit log."""
        denied_call(conn, turn, call)

    def call_made(self, conn: Connection, turn: TurnRecord, call: PlannedCall, status: ToolStatus) -> None:
        """Write a call that changes something of ours into the audit log."""
        made_call(conn, turn, call, status)


def _count_of(conn: Connection, turn: TurnRecord, final: Terminal) -> int:
    """Return how many messages of a turn that has ended clients see."""
    if isinstance(final, Done):
        return 2
    if not sessions.has_message(conn, turn.session_id, turn.user_message_id):  # it was queued and never began
        return 0
    failed = isinstance(final, Error)
    return 2 if failed or sessions.has_message(conn, turn.session_id, turn.message_id) else 1


def _check_content(content: str) -> None:
    if not content.strip():
        raise MessageContentRequired
    if len(content) > MAX_CHARACTERS:
        raise MessageTooLong(len(content), MAX_CHARACTERS)


def _owns(user: User, conversation: ConversationRecord) -> bool:
    """Whether a conversation exists for a user: his own, in a domain that he (still) sees."""
    return conversation.owner_id == user.id and user.sees(conversation.domain_id)


def _title(title: str) -> str:
    title = one_line(title)
    if not is_visible(title):
        raise InvalidInput("title", "at least one visible character is needed.")
    if len(title) > MAX_TITLE:
        raise InvalidInput("title", f"{len(title)} characters; at most {MAX_TITLE} are possible.")
    return title


def _distinct(ids: Sequence[str]) -> list[str]:
    if len(ids) > MAX_CONTEXT_DOCUMENTS:
        raise InvalidInput("contextDocumentIds", f"at most {MAX_CONTEXT_DOCUMENTS} are possible.")
    return list(dict.fromkeys(ids))


def _check_documents(conn: Connection, domain_id: str, document_ids: Sequence[str]) -> None:
    for document_id in document_ids:
        document = documents.get(conn, document_id)
        if document is None or document.domain_id != domain_id or document.status is DocumentStatus.DELETING:
            raise NotFound("document", document_id, hidden=document is not None)
