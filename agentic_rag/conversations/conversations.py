"""Conversations of users: records, sent messages, shown messages, turns and tool calls.

The service stands between the routes and `agentic_rag.runtime`, and checks for every call:

- The user owns the conversation and sees its domain. Another user's conversation looks like one that does not exist.
- A document that the user may no longer see appears in no message, tool call or log that this module returns.

To send a message, `Conversations` reads the domain's definition, applies the `TurnTerms` of the message, and hands both
to the session (`LiveSession.send`). Messages belong to the session; this module reads them as clients see them, two per
turn. Knows no socket.
"""

import unicodedata
from collections import OrderedDict
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import anyio.to_thread
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from agentic_rag.access.document_views import DocumentReader, DocumentViews
from agentic_rag.access.users import User
from agentic_rag.base.errors import (
    InvalidInput,
    LogGone,
    MessageContentRequired,
    MessageTooLong,
    NotFound,
)
from agentic_rag.base.events import AgentEvent, Notice, ToolStatus
from agentic_rag.base.forms import is_visible, one_line
from agentic_rag.base.ids import ConversationId, DocumentId, MessageId, SessionId, TurnId
from agentic_rag.base.messages import KeptAttachment, clean_text
from agentic_rag.conversations.exchanges import BROUGHT, Exchange, store_exchanges
from agentic_rag.conversations.hidden_passages import hide_in_call, hide_in_message, hide_in_turn
from agentic_rag.conversations.sent_images import GivenImage, read_images
from agentic_rag.conversations.shown_messages import ShownMessage
from agentic_rag.conversations.transcripts import ConversationBranch, DelegateRecords, ShownPage, Transcripts
from agentic_rag.directory.directory import Directory
from agentic_rag.domains.definitions import (
    Definitions,
    ScheduledRun,
    Staging,
    with_wishes,
    without_person,
    without_tools,
)
from agentic_rag.roles.birth import DomainCreation
from agentic_rag.roles.trials import Trials, TriedRole
from agentic_rag.runtime.acceptance import Accepted, OnBusy
from agentic_rag.runtime.core.client_functions import (
    NO_FUNCTIONS,
    ClientFunctions,
    check_function_name,
    function_note,
    with_functions,
)
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.log.reader import LogReader
from agentic_rag.runtime.runtime import Runtime
from agentic_rag.runtime.session import LiveSession
from agentic_rag.store import attachments as attachment_rows
from agentic_rag.store import (
    branches,
    conversations,
    documents,
    images,
    payloads,
    provenance,
    sessions,
    tool_calls,
    turns,
    waits,
)
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.compactions import CompactionRecord
from agentic_rag.store.conversations import (
    Awaits,
    ConversationRecord,
    ConversationStatus,
    FolderCount,
    SortBy,
    SortOrder,
    TitleSource,
)
from agentic_rag.store.database import Database
from agentic_rag.store.documents import DocumentStatus
from agentic_rag.store.images import ImageRecord
from agentic_rag.store.sessions import SessionLabels
from agentic_rag.store.tool_calls import ToolCallRecord, ToolTotal
from agentic_rag.store.turns import FINISHED, TurnRecord, TurnStatus

MAX_CHARACTERS = 10_000
MAX_TITLE = 200
READ_TITLE = 2_000
"""Characters of a title that are read; a longer one is refused."""
MAX_FOLDER = 60
"""Maximum number of characters of a folder's name."""
MAX_FOLDERS = 500
"""Maximum number of listed folders."""
MAX_CONTEXT_DOCUMENTS = 1_000
MAX_ATTACHMENTS = 8
"""Maximum attached files of one message."""
MAX_CACHED = 1_024
"""Maximum number of cached conversation records."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list. ``total`` counts the matches on all pages."""

    items: list[ConversationRecord]
    total: int
    page: int
    page_size: int


@dataclass(frozen=True, slots=True)
class KeptPayload:
    """A stored tool result, and the domain whose secrets must be redacted from it."""

    domain_id: str
    media_type: str
    data: bytes


def with_waiting(conn: Connection, records: Sequence[TurnRecord]) -> list[TurnRecord]:
    """Return turns as people see them: a running turn that waits for a person has the status ``WAITING``."""
    running = [turn.id for turn in records if turn.status is TurnStatus.RUNNING]
    waiting = waits.waiting(conn, running) if running else set()
    return [turn.replace(status=TurnStatus.WAITING) if turn.id in waiting else turn for turn in records]


@dataclass(frozen=True, slots=True)
class TurnTerms:
    """The terms of one turn, which change the domain's definition for this turn only."""

    wishes: str = ""
    """Instructions of the client's program for this answer, placed after the domain's own prompt."""
    functions: ClientFunctions = NO_FUNCTIONS
    """Functions of the client's program that the model may call."""
    attended: bool = True
    """Whether a person reads along and can be asked."""
    denied_tools: Sequence[str] = ()
    """Names of tools that the model may not call."""
    tried: TriedRole | None = None
    """A draft of a role that replaces the primary role."""
    staged: Staging | None = None
    """Unsaved settings and prompt files, for a turn of an evaluation."""
    scheduled: ScheduledRun | None = None
    """The terms of a run of a schedule."""


USUAL_TERMS = TurnTerms()
"""The domain's definition without changes."""


class Conversations:
    """The conversations of all users."""

    def __init__(
        self,
        database: Database,
        directory: Directory,
        definitions: Definitions,
        runtime: Runtime,
        births: DomainCreation,
        trials: Trials,
        default_domain: str,
        views: DocumentViews,
    ) -> None:
        """Create the service. ``default_domain`` is used for conversations created without a domain."""
        self._views = views
        self._db = database
        self._births = births
        self._trials = trials
        self._default_domain = default_domain
        self._directory = directory
        self._definitions = definitions
        self._runtime = runtime
        self._transcripts = Transcripts(database, runtime)
        self._cache: OrderedDict[str, ConversationRecord] = OrderedDict()

    # Records

    @property
    def default_domain(self) -> str:
        """The domain of conversations created without one. It may not exist."""
        return self._default_domain

    async def create(
        self,
        user: User,
        domain_id: str | None,
        title: str | None = None,
        context_document_ids: Sequence[DocumentId] = (),
        *,
        exchanges: Sequence[Exchange] = (),
        transient: bool = False,
        client_name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        model: str | None = None,
    ) -> ConversationRecord:
        """Create a conversation, in the default domain if none is named.

        Args:
            context_document_ids: limits the searches of the conversation to these documents.
            exchanges: earlier messages from elsewhere.
            transient: do not list the conversation. The caller ends it (`Deletion.end_call`); after a crash, the server
                removes it.
            client_name: the client's id for the conversation. If the user has a conversation with this id in the
                domain, return that one.
            metadata: the client's own data, stored unchanged.
            model: a model that the domain lets users choose.

        Raises:
            NotFound: there is no such domain, or it has no such document.
            ModelNotAllowed: the domain does not allow the model.
            InvalidInput: the title is too long, there are too many documents, or no domain is named and this user
                cannot see the default domain.
            QuotaExceeded: the domain has reached its limit of conversations.
        """
        domain_id, created = await self._find_domain(user, domain_id), now()
        conversation = ConversationRecord(
            id=ConversationId(new_id("conv")),
            domain_id=domain_id,
            owner_id=user.id,
            session_id=SessionId(new_id("sess")),
            title=_title(title) if title else "",
            title_source=TitleSource.USER if title or transient else TitleSource.AUTO,
            context_document_ids=_distinct(context_document_ids),
            meta=dict(metadata or {}),
            message_count=2 * len(exchanges),
            transient=transient,
            started_at=created,
            updated_at=created,
            client_name=client_name,
            model=None if model is None else await self._definitions.check_choice(domain_id, model),
        )
        labels = SessionLabels(conversation_id=conversation.id, domain_id=domain_id, user_id=user.id)

        def store(conn: Connection) -> ConversationRecord:
            existing = _find_named(conn, conversation)
            if existing is not None:
                return existing
            self._check_documents(conn, user, domain_id, conversation.context_document_ids)
            sessions.create(conn, conversation.session_id, labels, created_at=created)
            conversations.insert(conn, conversation)
            store_exchanges(conn, conversation, exchanges, created)
            # After the insert, in its transaction: two requests at the same time must not both be the last one allowed.
            self._directory.quotas.check_conversations(conn, domain_id)
            return conversation

        try:
            return await self._db.write(store, durable=True)
        except IntegrityError:  # another process has created it since the check
            existing = await self._db.read(lambda conn: _find_named(conn, conversation))
            if existing is None:
                raise
            return existing

    async def _find_domain(self, user: User, domain_ref: str | None) -> str:
        """Return the id of the named domain, or of the default one. Raises as `create`."""
        if domain_ref is None:
            return await self._find_default(user)
        if not user.sees(domain_ref):
            raise NotFound("domain", domain_ref, hidden=True)
        return (await self._directory.get(domain_ref)).id

    async def _find_default(self, user: User) -> str:
        """Return the id of the default domain. Raises `InvalidInput` if this user cannot see it."""
        try:
            if user.sees(self._default_domain):
                return (await self._directory.get(self._default_domain)).id
        except NotFound:
            pass
        problem = f"required: the default domain {self._default_domain!r} is not there, or not for you"
        raise InvalidInput("domainId", problem)

    async def get(self, user: User, conversation_id: ConversationId) -> ConversationRecord:
        """Return the record of a conversation.

        Raises:
            NotFound: this user has no such conversation.
        """
        record = await self._db.read(lambda conn: conversations.get(conn, conversation_id), single=True)
        if record is None or not _owns(user, record):
            raise NotFound("conversation", conversation_id, hidden=record is not None)
        return record

    async def owns(self, user: User, conversation_id: ConversationId) -> bool:
        """Return whether this user has such a conversation."""
        record = await self._db.read(lambda conn: conversations.get(conn, conversation_id), single=True)
        return record is not None and _owns(user, record)

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
        folder: str | None = None,
        pinned_first: bool = False,
    ) -> Page:
        """Return one page of the user's conversations.

        ``q`` searches in titles. ``folder`` selects one folder; an empty text selects the conversations in none.

        Raises:
            InvalidInput: no folder can have this name.
        """
        folder = None if folder is None else _folder(folder)
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
                folder=folder,
                pinned_first=pinned_first,
                owner_id=user.id,
                domain_ids=None if user.operator else user.domains,
            )
        )
        return Page(items, total, page, page_size)

    async def folders(
        self, user: User, domain_id: str | None, status: ConversationStatus | None
    ) -> tuple[list[FolderCount], bool]:
        """Return the user's folders by name, and whether there are more than these."""
        folders = await self._db.read(
            lambda conn: conversations.folders_of(
                conn,
                user.id,
                domain_id=domain_id,
                domain_ids=None if user.operator else user.domains,
                status=status,
                at_most=MAX_FOLDERS + 1,
            )
        )
        return folders[:MAX_FOLDERS], len(folders) > MAX_FOLDERS

    async def change(
        self,
        user: User,
        conversation_id: ConversationId,
        *,
        title: str | None = None,
        status: ConversationStatus | None = None,
        pinned: bool | None = None,
        folder: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        model: str | None = None,
    ) -> ConversationRecord:
        """Change the given fields.

        ``metadata`` replaces all previous metadata. An empty ``folder`` is none, and an empty ``model`` is
        the domain's own.

        Raises:
            NotFound: this user has no such conversation.
            InvalidInput: the title is blank, or the title or the folder's name is too long.
            ModelNotAllowed: the domain does not allow the model.
        """
        record = await self.get(user, conversation_id)
        fields: conversations.ConversationFields = {"updated_at": now()}
        if title is not None:
            fields |= {"title": _title(title), "title_source": TitleSource.USER}
        if status is not None:
            fields["status"] = status
        if pinned is not None:
            fields["pinned"] = pinned
        if folder is not None:
            fields["folder"] = _folder(folder) or None
        if metadata is not None:
            fields["meta"] = dict(metadata)
        if model is not None:
            fields["model"] = await self._definitions.check_choice(record.domain_id, model) if model else None
        await self._db.write(lambda conn: conversations.update(conn, conversation_id, **fields), durable=True)
        return await self.get(user, conversation_id)

    # Sending

    async def send(
        self,
        user: User,
        conversation_id: ConversationId,
        content: str,
        *,
        client_message_id: str | None = None,
        on_busy: OnBusy = "reject",
        images: Sequence[GivenImage] = (),
        attachments: Sequence[str] = (),
        context_document_ids: Sequence[DocumentId] = (),
        body: str = "",
        model: str | None = None,
        terms: TurnTerms = USUAL_TERMS,
    ) -> Accepted:
        """Accept a message; the message is durable when this returns. The first message sets the conversation's title.

        Args:
            client_message_id: the client's id for the message. The same id and content return the same turn.
            on_busy: what to do while a turn runs: refuse the message, queue it, or join a turn with the same text.
            images: images for the model, in the order of the message.
            attachments: ids of files that were attached to the conversation (`Attachments.receive`).
            context_document_ids: limits the searches of this turn; if empty, the conversation's documents apply.
            body: untrusted text for the model, which follows the content and does not count against its limit.
            model: the model for this message and the later ones of the conversation.
            terms: changes of the domain's definition for this turn.

        Raises:
            ModelNotAllowed: the domain does not allow the model.
            NotFound: this user has no such conversation, its domain was deleted, or it has no such document or
                attachment.
            InvalidInput: there are too many documents or attachments, or the draft is not a valid role.
            Forbidden: this user may not try drafts.
            MessageContentRequired, MessageTooLong: the content is empty or too long.
            ConversationArchived, ConversationFull: the conversation takes no messages.
            TurnInProgress: a turn runs, and ``on_busy`` is ``reject``, or is ``join`` with a different text, or the
                queue is full.
            IdempotencyMismatch: the client message id was used with other content.
            ImageUnsupported, ImageTooLarge, InvalidInput: an image cannot be accepted.
        """
        check_content(content, needed=not images)
        # In a thread: decoding and hashing megabytes would block the event loop.
        sent = await anyio.to_thread.run_sync(read_images, images) if images else []
        try:
            session, definition, notices = await self._prepare(
                user, conversation_id, terms, context_document_ids, model=model
            )
            attached = await self._find_attachments(session.id, attachments) if attachments else ()
            accepted = await session.send(
                content + body,
                definition,
                client_message_id=client_message_id,
                on_busy=on_busy,
                notices=notices,
                key_id=user.key_id,
                images=sent,
                attachments=attached,
            )
            await self._store_choice(user, conversation_id, model, accepted)
        except NotFound:
            await self._drop_cached(user, conversation_id)
            raise
        if accepted.duplicate:  # the caller will read the log of an earlier turn
            await self.check_replay(user, await self.turn(user, accepted.turn_id))
        return accepted

    async def answer_again(
        self,
        user: User,
        conversation_id: ConversationId,
        message_id: MessageId,
        content: str | None = None,
        *,
        client_message_id: str | None = None,
        images: Sequence[GivenImage] | None = None,
        model: str | None = None,
        terms: TurnTerms = USUAL_TERMS,
    ) -> Accepted:
        """Answer a user's message again on a new branch, with the same or with new content.

        ``message_id`` may also be the id of the answer. ``images`` belong to new content; None keeps the message's
        images. ``model`` and ``terms``: as in `send`.

        Raises:
            ModelNotAllowed: the domain does not allow the model.
            NotFound: this user has no such conversation, it has no such message, or its domain was deleted.
            MessageContentRequired, MessageTooLong: the content is empty or too long.
            ConversationArchived, ConversationFull: the conversation takes no messages.
            TurnInProgress: a turn runs.
            IdempotencyMismatch: the client message id was used with another message or other content.
            ImageUnsupported, ImageTooLarge, InvalidInput: an image cannot be accepted.
        """
        if content is not None:
            check_content(content, needed=not images)
        sent = None if images is None else await anyio.to_thread.run_sync(read_images, images)
        try:
            session, definition, notices = await self._prepare(user, conversation_id, terms, model=model)
            accepted = await session.branch(
                message_id,
                content,
                definition,
                client_message_id=client_message_id,
                notices=notices,
                key_id=user.key_id,
                images=sent,
            )
            await self._store_choice(user, conversation_id, model, accepted)
        except NotFound:
            await self._drop_cached(user, conversation_id)
            raise
        if accepted.duplicate:
            await self.check_replay(user, await self.turn(user, accepted.turn_id))
        return accepted

    async def send_after(
        self,
        user: User,
        conversation: ConversationRecord,
        message_id: MessageId,
        content: str,
        *,
        images: Sequence[GivenImage] = (),
        terms: TurnTerms = USUAL_TERMS,
    ) -> Accepted:
        """Accept a message after this answer, on a new branch if another message already follows.

        Raises:
            NotFound, MessageContentRequired, MessageTooLong, ConversationArchived, ConversationFull, TurnInProgress: as
                `send` and `answer_again`.
        """

        def find_follower(conn: Connection) -> MessageId | None:
            nodes = branches.read_tree(conn, conversation.session_id).nodes.values()
            return next((node.user_message_id for node in nodes if node.parent_message_id == message_id), None)

        follower_id = await self._db.read(find_follower)
        if follower_id is not None:
            return await self.answer_again(user, conversation.id, follower_id, content, images=images, terms=terms)
        # Nothing follows this answer yet, so the branch that ends with it is continued.
        await self.activate(user, conversation.id, message_id)
        return await self.send(user, conversation.id, content, images=images, terms=terms)

    async def interrupt(
        self, user: User, conversation_id: ConversationId, *, turn_id: TurnId | None = None, queued: bool = False
    ) -> bool:
        """Interrupt the running turn or the named one. Returns whether a turn was interrupted.

        An ended turn is unchanged.

        Raises:
            NotFound: this user has no such conversation.
        """
        conversation = await self.get(user, conversation_id)
        return await self._runtime.interrupt(conversation.session_id, turn_id=turn_id, queued=queued)

    async def model_choices(self, domain_id: str) -> tuple[str, ...]:
        """Return the models that a user may choose in a domain, the domain's own first; empty without a choice."""
        return await self._definitions.choices(domain_id)

    async def functions_of(self, turn: TurnRecord) -> ClientFunctions:
        """Return the functions of the client's program that a turn may call."""
        image = await self._db.read(lambda conn: images.record(conn, turn.image_id))
        if image is None or not image.definition.get("functions"):
            return NO_FUNCTIONS
        return ClientFunctions.of(Definition.from_json(image.definition))

    async def _prepare(
        self,
        user: User,
        conversation_id: ConversationId,
        terms: TurnTerms,
        document_ids: Sequence[DocumentId] = (),
        *,
        model: str | None,
    ) -> tuple[LiveSession, Definition, Sequence[Notice]]:
        """Return the session of a new turn, the definition under these terms, and its notices.

        ``document_ids`` limit the searches of the turn; if empty, the conversation's documents apply. ``model``
        replaces the conversation's; None: the conversation's.
        """
        conversation = await self._get_cached(user, conversation_id)
        if model is not None:
            chosen = await self._definitions.check_choice(conversation.domain_id, model)
            conversation = conversation.replace(model=chosen)
        elif await self._definitions.choices(conversation.domain_id):
            # the choice changes between messages, also in another process, so the cached record does not count
            conversation = conversation.replace(model=(await self.get(user, conversation_id)).model)
        if document_ids:
            conversation = conversation.replace(context_document_ids=_distinct(document_ids))
            domain_id, distinct = conversation.domain_id, conversation.context_document_ids
            await self._db.read(lambda conn: self._check_documents(conn, user, domain_id, distinct))
        await self._births.adopt(conversation.domain_id)
        draft = None if terms.staged is None else terms.staged.draft
        definition, notices = await self._definitions.definition(user, conversation, draft)
        session = await self._runtime.session(conversation.session_id)
        return session, await self._apply_terms(user, definition, terms), notices

    async def _apply_terms(self, user: User, definition: Definition, terms: TurnTerms) -> Definition:
        """Return the definition of a turn under its terms.

        Raises:
            Forbidden, InvalidInput: as `Trials.definition`.
        """
        if terms.staged is None:
            definition = await self._trials.definition(user, definition, terms.tried)
        else:
            definition = terms.staged.apply(definition)
            if terms.tried is not None:  # the evaluation has checked the right to try it
                definition = await self._trials.apply(definition, terms.tried)
        if terms.scheduled is not None:
            definition = terms.scheduled.apply(definition)
        definition = without_tools(definition, terms.denied_tools)
        if not terms.attended:
            definition = without_person(definition)
        return _for_client(definition, terms.wishes, terms.functions)

    async def _store_choice(
        self, user: User, conversation_id: ConversationId, model: str | None, accepted: Accepted
    ) -> None:
        """Store the model of an accepted message as the conversation's. A refused message changes nothing."""
        if model is None or accepted.duplicate:
            return
        record = await self.get(user, conversation_id)
        chosen = await self._definitions.check_choice(record.domain_id, model)
        if chosen != record.model:
            await self._db.write(lambda conn: conversations.update(conn, conversation_id, model=chosen))

    async def _find_attachments(self, session_id: SessionId, ids: Sequence[str]) -> list[KeptAttachment]:
        """Return the attachments of a conversation with these ids.

        Raises:
            NotFound: the conversation has no such attachment.
            InvalidInput: there are too many.
        """
        if len(ids) > MAX_ATTACHMENTS:
            raise InvalidInput("attachments", f"{len(ids)} files; at most {MAX_ATTACHMENTS} are possible in a message.")
        records = await self._db.read(lambda conn: attachment_rows.of_session(conn, session_id))
        attachments = {record.id: record.to_kept() for record in records}
        for ident in ids:
            if ident not in attachments:
                raise NotFound("attachment", ident)
        return [attachments[ident] for ident in dict.fromkeys(ids)]

    def _check_documents(
        self, conn: Connection, user: User, domain_id: str, document_ids: Sequence[DocumentId]
    ) -> None:
        """Check that a user may limit a conversation to these documents.

        Raises:
            NotFound: the domain has no such document, or the user may not see it.
        """
        if not document_ids:
            return
        view = self._views.read(conn, self._reader(user, domain_id), domain_id)
        for document_id in document_ids:
            document = documents.get(conn, document_id) if view.shows(document_id) else None
            if document is None or document.domain_id != domain_id or document.status is DocumentStatus.DELETING:
                raise NotFound("document", document_id, hidden=document is not None)

    async def _get_cached(self, user: User, conversation_id: ConversationId) -> ConversationRecord:
        """Return the record of a conversation, from the cache if possible.

        The cached title, status, metadata and model may be out of date; the other fields never change.

        Raises:
            NotFound: this user has no such conversation.
        """
        record = self._cache.get(conversation_id)
        if record is None or not _owns(user, record):
            record = self._cache[conversation_id] = await self.get(user, conversation_id)
            if len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        self._cache.move_to_end(conversation_id)
        return record

    async def _drop_cached(self, user: User, conversation_id: ConversationId) -> None:
        """Drop the cached record of a conversation after a lookup failed.

        Raises:
            NotFound: the conversation was deleted after it was cached.
        """
        if self._cache.pop(conversation_id, None) is not None:
            await self.get(user, conversation_id)

    # Messages and branches

    async def messages(
        self,
        user: User,
        conversation_id: ConversationId,
        limit: int = 50,
        before: MessageId | None = None,
        leaf: MessageId | None = None,
    ) -> ShownPage:
        """Return the last messages in order, two per turn; with ``before``, the last ones before that message.

        ``leaf`` selects the newest branch with this message instead of the active branch.

        Raises:
            NotFound: this user has no such conversation, or it has no message ``before`` or ``leaf``.
        """
        conversation = await self.get(user, conversation_id)
        page = await self._transcripts.page(conversation, limit, before, leaf=leaf)
        return await self.without_hidden(user, conversation, page)

    async def message(self, user: User, conversation_id: ConversationId, message_id: MessageId) -> ShownMessage:
        """Return one message of any branch.

        Raises:
            NotFound: this user has no such conversation, or it has no such message.
        """
        conversation = await self.get(user, conversation_id)
        message = await self._transcripts.message(conversation, message_id)
        hidden = await self.hidden_documents(user, conversation.domain_id, conversation.id)
        return hide_in_message(message, hidden) if hidden else message

    async def branches(self, user: User, conversation_id: ConversationId) -> list[ConversationBranch]:
        """Return the branches, oldest first.

        Raises:
            NotFound: this user has no such conversation.
        """
        return await self._transcripts.branches(await self.get(user, conversation_id))

    async def activate(self, user: User, conversation_id: ConversationId, message_id: MessageId) -> None:
        """Make the newest branch with this message the active one.

        Raises:
            NotFound: this user has no such conversation, or it has no such message.
            TurnInProgress: a turn runs.
        """
        conversation = await self.get(user, conversation_id)
        await (await self._runtime.session(conversation.session_id)).activate(message_id)

    async def compact(self, user: User, conversation_id: ConversationId) -> CompactionRecord:
        """Replace the messages by a summary in the model's context. Clients still see the messages.

        Raises:
            NotFound: this user has no such conversation, or its domain was deleted.
            TurnInProgress: a turn runs.
            CompactionNotNeeded: there are too few messages.
            ModelError, GenerationTimeout, GenerationAborted, StorageFull: the compaction failed; nothing has changed.
        """
        conversation = await self.get(user, conversation_id)
        definition, _ = await self._definitions.definition(user, conversation)
        session = await self._runtime.session(conversation.session_id)
        return await session.compact(definition, user.key_id)

    async def archives(self, user: User, conversation_id: ConversationId) -> list[CompactionRecord]:
        """Return the compactions of a conversation, newest first.

        Raises:
            NotFound: this user has no such conversation.
        """
        return await self._transcripts.archives(await self.get(user, conversation_id))

    async def archived_messages(
        self,
        user: User,
        conversation_id: ConversationId,
        archive_id: str,
        limit: int = 50,
        before: MessageId | None = None,
    ) -> ShownPage:
        """Return a page of the messages that one summary replaces, like `messages`.

        Raises:
            NotFound: this user has no such conversation, archive or message.
        """
        conversation = await self.get(user, conversation_id)
        page = await self._transcripts.page(conversation, limit, before, archive_id)
        return await self.without_hidden(user, conversation, page)

    # Turns

    async def turn(self, user: User, turn_id: TurnId) -> TurnRecord:
        """Return one turn.

        Raises:
            NotFound: there is no such turn in a conversation of this user.
        """

        def read(conn: Connection) -> tuple[TurnRecord | None, ConversationRecord | None]:
            turn = turns.get(conn, turn_id)
            turn = None if turn is None else with_waiting(conn, [turn])[0]
            return turn, conversations.get(conn, turn.conversation_id) if turn is not None else None

        turn, conversation = await self._db.read(read)
        if turn is None or conversation is None or not _owns(user, conversation):
            raise NotFound("turn", turn_id, hidden=conversation is not None)
        hidden = await self.hidden_documents(user, conversation.domain_id, conversation.id) if turn.references else ()
        return hide_in_turn(turn, frozenset(hidden)) if hidden else turn

    async def turns(self, conversation: ConversationRecord) -> list[TurnRecord]:
        """Return all turns of a conversation, on all branches, including queued ones."""
        return await self._db.read(lambda conn: turns.of_session(conn, conversation.session_id))

    async def turns_page(
        self,
        user: User,
        domain_id: str,
        *,
        conversation_id: ConversationId | None,
        statuses: Collection[str],
        awaits: Awaits | None,
        since: str | None,
        before: str | None,
        limit: int,
    ) -> tuple[list[TurnRecord], int]:
        """Return the newest turns of a user's listed conversations in a domain, and how many match in all.

        ``before`` is the last turn of the previous page, ``since`` the earliest time of their start or end, and
        ``awaits`` the kind of their open waits.
        """
        return await self._db.read(
            lambda conn: conversations.list_turns(
                conn,
                user.id,
                domain_id,
                conversation_id=conversation_id,
                statuses=statuses,
                awaits=awaits,
                since=since,
                before=before,
                without=BROUGHT,
                limit=limit,
            )
        )

    async def current_turns(self, records: Sequence[ConversationRecord]) -> dict[str, TurnRecord]:
        """Return the running or queued turn of each conversation, by session.

        If a conversation has several, return the one that runs first.
        """

        def read(conn: Connection) -> dict[str, TurnRecord]:
            current = turns.current(conn, [record.session_id for record in records])
            return dict(zip(current, with_waiting(conn, list(current.values())), strict=True))

        return await self._db.read(read)

    async def is_first_turn(self, user: User, turn_id: TurnId) -> bool:
        """Return whether the conversation's first message began this turn. A retry of that message is not the first.

        Raises:
            NotFound: there is no such turn in a conversation of this user.
        """
        turn = await self.turn(user, turn_id)
        return await self._db.read(lambda conn: turns.is_first(conn, turn))

    async def children(self, user: User, turn_id: TurnId) -> list[DelegateRecords]:
        """Return the delegates of a turn. Raises as `turn`."""
        turn = await self.turn(user, turn_id)
        children = await self._transcripts.children(turn)
        hidden = await self._hidden_in_turn(user, turn)
        if not hidden:
            return children
        return [
            replace(
                child,
                turn=hide_in_turn(child.turn, hidden),
                messages=tuple(hide_in_message(message, hidden) for message in child.messages),
                tool_calls=tuple(map(hide_in_call, child.tool_calls)),
            )
            for child in children
        ]

    async def check_replay(self, user: User, turn: TurnRecord) -> None:
        """Check that a user may read the log of a turn again.

        The log of an ended turn closes once the user may no longer see a document that the conversation has read: its
        events hold the passages. The messages are still there, without them.

        Raises:
            LogGone: the log is closed for this user.
        """
        if turn.status in FINISHED and await self._hidden_in_turn(user, turn):
            raise LogGone(turn.id)

    async def check_replay_of(self, user: User, turn_id: TurnId) -> None:
        """Run `check_replay` for a turn by its id. Raises as `turn` and `check_replay`."""
        await self.check_replay(user, await self.turn(user, turn_id))

    def events(self, turn_id: TurnId, after: int = 0) -> AsyncGenerator[AgentEvent, None]:
        """Iterate over a turn's events. The caller must have checked the user's access with `turn`."""
        return self._runtime.follow(turn_id, after)

    def log(self, turn_id: TurnId, after: int = 0) -> LogReader:
        """Return a reader of a turn's events. The caller must have checked the user's access with `turn`."""
        return self._runtime.read(turn_id, after)

    # Tool calls, their results, and images of turns

    async def tool_calls(
        self,
        user: User,
        conversation_id: ConversationId,
        *,
        limit: int = 100,
        tool_names: Sequence[str] = (),
        status: ToolStatus | None = None,
        agent: str | None = None,
        turn_id: TurnId | None = None,
        app_of: str = "",
    ) -> list[ToolCallRecord]:
        """Return the last tool calls in order, including those of delegates.

        Tools, status, agent and turn filter the calls. ``app_of``: return those that the app of this call asked for.

        Raises:
            NotFound: this user has no such conversation.
        """
        conversation = await self.get(user, conversation_id)
        calls = await self._transcripts.tool_calls(
            conversation,
            limit,
            tool_names=tool_names,
            status=status,
            agent=agent,
            turn_id=turn_id,
            app_of=app_of,
        )
        hidden = await self.hidden_documents(user, conversation.domain_id, conversation.id)
        return [hide_in_call(call) for call in calls] if hidden else calls

    async def tool_report(
        self,
        domain_id: str,
        limit: int,
        *,
        tool_names: Sequence[str] = (),
        status: ToolStatus | None = None,
        since: str = "",
        until: str = "",
    ) -> tuple[list[ToolCallRecord], list[ToolTotal]]:
        """Return the newest tool calls of all users of a domain, newest first, and the totals of all matching calls.

        For admins of the domain, who may see which tools ran but not the messages.

        Raises:
            NotFound: there is no such domain.
        """
        await self._directory.get(domain_id)
        return await self._db.read(
            lambda conn: tool_calls.of_domain(
                conn, domain_id, tool_names=tool_names, status=status, since=since, until=until, limit=limit
            )
        )

    async def payload(self, user: User, ref: str) -> KeptPayload:
        """Return a stored tool result for the owner of its conversation.

        Raises:
            NotFound: there is no such payload in a conversation of this user, or its file is missing.
        """

        def read(conn: Connection) -> tuple[SessionId, ConversationRecord | None]:
            # An empty id belongs to no session, so the reads below find nothing.
            session_id = payloads.session_of(conn, ref) or SessionId("")
            session = sessions.get(conn, session_id)
            return session_id, None if session is None else conversations.get(conn, session.labels.conversation_id)

        session_id, conversation = await self._db.read(read)
        if conversation is None or not _owns(user, conversation):
            raise NotFound("payload", ref, hidden=conversation is not None)
        if await self.hidden_documents(user, conversation.domain_id, conversation.id):
            raise NotFound("payload", ref, hidden=True)
        payload = await self._runtime.payload(session_id, ref)
        if payload is None:
            raise NotFound("payload", ref)
        return KeptPayload(conversation.domain_id, *payload)

    async def image(self, user: User, image_id: str) -> ImageRecord:
        """Return the image that turns ran on, for admins of its domain.

        Raises:
            NotFound: there is no such image in a domain that this user administers.
        """
        image = await self._db.read(lambda conn: images.record(conn, image_id))
        if image is None or not user.administers(image.domain_id):
            raise NotFound("image", image_id, hidden=image is not None)
        return image

    # Documents that a user may no longer see

    async def without_hidden(self, user: User, conversation: ConversationRecord, page: ShownPage) -> ShownPage:
        """Return a page of a conversation without what it shows of documents that a user may not see."""
        hidden = await self.hidden_documents(user, conversation.domain_id, conversation.id)
        if not hidden:
            return page
        return replace(page, messages=[hide_in_message(message, hidden) for message in page.messages])

    async def hidden_documents(self, user: User, domain_id: str, conversation_id: ConversationId) -> frozenset[str]:
        """Return the documents that a conversation has read and that the user may no longer see."""
        if user.reads_every_document(domain_id):
            return frozenset()

        def read(conn: Connection) -> frozenset[str]:
            document_ids = provenance.read_by(conn, conversation_id)
            if not document_ids:
                return frozenset()
            view = self._views.read(conn, self._reader(user, domain_id), domain_id)
            return frozenset(ident for ident in document_ids if not view.shows(ident))

        return await self._db.read(read)

    async def _hidden_in_turn(self, user: User, turn: TurnRecord) -> frozenset[str]:
        conversation = await self._db.read(lambda conn: conversations.get(conn, turn.conversation_id))
        if conversation is None:
            return frozenset()
        return await self.hidden_documents(user, conversation.domain_id, conversation.id)

    def _reader(self, user: User, domain_id: str) -> DocumentReader:
        return DocumentReader(user.id, user.key_id, trusted=user.reads_every_document(domain_id))


def _for_client(definition: Definition, wishes: str, functions: ClientFunctions) -> Definition:
    """Add the wishes and functions of a client's program to a definition."""
    for at, function in enumerate(functions.offered):
        check_function_name(f"tools.{at}.name", function.name, [entry.name for entry in definition.entries])
    wishes = "\n\n".join(filter(None, (wishes, function_note(functions))))
    return with_functions(with_wishes(definition, wishes), functions)


def check_content(content: str, *, needed: bool = True) -> None:
    """Check the text of a user's message. It may be empty unless ``needed``.

    Raises:
        MessageContentRequired, MessageTooLong: the text is empty or too long.
    """
    if len(content) > MAX_CHARACTERS:  # first: what follows reads each character
        raise MessageTooLong(len(content), MAX_CHARACTERS)
    if needed and not clean_text(content).strip():  # NUL is taken out before it is sent
        raise MessageContentRequired


def _owns(user: User, conversation: ConversationRecord) -> bool:
    """Return whether a user owns a conversation and still sees its domain."""
    return conversation.owner_id == user.id and user.sees(conversation.domain_id)


def _find_named(conn: Connection, new: ConversationRecord) -> ConversationRecord | None:
    """Return the existing conversation with the client name of a new one, or None."""
    if new.client_name is None:
        return None
    return conversations.by_client_name(conn, new.owner_id, new.domain_id, new.client_name)


def _title(title: str) -> str:
    title = title.strip()
    length, title = len(title), one_line(title[:READ_TITLE])
    if not is_visible(title):
        raise InvalidInput("title", "at least one visible character is needed.")
    if length > READ_TITLE:
        raise InvalidInput("title", f"{length} characters; at most {MAX_TITLE} are possible.")
    if len(title) > MAX_TITLE:
        raise InvalidInput("title", f"{len(title)} characters; at most {MAX_TITLE} are possible.")
    return title


def _folder(name: str) -> str:
    """Return the stored name of a folder; empty: no folder."""
    name = name.strip()
    if len(name) > READ_TITLE:
        raise InvalidInput("folder", f"{len(name)} characters; at most {MAX_FOLDER} are possible.")
    name = unicodedata.normalize("NFC", one_line(name))
    if len(name) > MAX_FOLDER:
        raise InvalidInput("folder", f"{len(name)} characters; at most {MAX_FOLDER} are possible.")
    if name and not is_visible(name):
        raise InvalidInput("folder", "at least one visible character is needed.")
    return name


def _distinct(ids: Sequence[DocumentId]) -> list[DocumentId]:
    if len(ids) > MAX_CONTEXT_DOCUMENTS:
        raise InvalidInput("contextDocumentIds", f"at most {MAX_CONTEXT_DOCUMENTS} are possible.")
    return list(dict.fromkeys(ids))
