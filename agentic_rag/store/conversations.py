"""Conversation records.

This module lists and counts conversations. Callers check permissions. A deletion removes only the conversation's own
record; the messages belong to the session.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, UniqueConstraint
from sqlmodel import Field

from agentic_rag.base.events import WaitKind
from agentic_rag.base.ids import ConversationId, DocumentId, SessionId
from agentic_rag.base.json_form import Json
from agentic_rag.store import provenance
from agentic_rag.store.columns import Indexed, Key
from agentic_rag.store.domains import DOMAINS
from agentic_rag.store.record import Record
from agentic_rag.store.statements import Prepared, parameter
from agentic_rag.store.turns import FINISHED, HAS_NOT_ENDED, TURNS, TurnRecord, TurnStatus
from agentic_rag.store.waits import WAITS, WaitState

SortBy = Literal["started_at", "updated_at", "last_message_at", "title", "message_count"]
SortOrder = Literal["asc", "desc"]
Awaits = Literal["nothing", "input", "address"]
"""The open waits of a turn: none, none for an action at an address, or at least one of those."""


class ConversationStatus(StrEnum):
    """The status of a conversation; an archived conversation accepts no message."""

    ACTIVE = "active"
    ARCHIVED = "archived"


class TitleSource(StrEnum):
    """The origin of a title: derived automatically, or set by a user and then never replaced."""

    AUTO = "auto"
    USER = "user"


class ConversationRecord(Record, table=True):
    """A conversation; its messages are stored with the session."""

    __tablename__ = "conversations"
    __table_args__ = (
        UniqueConstraint("session_id"),
        UniqueConstraint("owner_id", "domain_id", "client_name"),
    )

    id: Key[ConversationId]
    domain_id: Indexed[str]
    owner_id: Indexed[str]
    session_id: SessionId
    title: str = ""
    title_source: TitleSource = TitleSource.AUTO
    status: ConversationStatus = ConversationStatus.ACTIVE
    message_count: int = 0
    """Number of messages as clients count them: two per finished turn."""
    compacted_count: int = 0
    """Number of messages replaced by a summary; the model no longer receives them."""
    image_id: str | None = None
    """The image (frozen definition) of the conversation's newest turn; None if there is no turn."""
    context_document_ids: list[DocumentId] = Field(default_factory=list)
    meta: dict[str, Any] = Field(default_factory=dict)
    transient: bool = False
    """Whether the conversation serves a single call without a record. It is unlisted, and removed after its turn."""
    started_at: str
    updated_at: str
    last_message_at: str | None = None
    pinned: bool = False
    """Whether the owner keeps the conversation at the top of the list."""
    folder: str | None = None
    """The folder of the owner's list that holds the conversation; None if it is in none."""
    outcome: TurnStatus | None = None
    """How the last turn ended; None if none has ended since the conversation began or switched its branch."""
    model: str | None = None
    """The model that the owner chose; None: the domain's own."""
    client_name: str | None = None
    """The id chosen by a client that names its own conversations; unique per owner and domain."""


CONVERSATIONS = ConversationRecord.__table__
_conversations = CONVERSATIONS.c
_BY_ID = _conversations.id == parameter(_conversations.id)
_GET = Prepared(sa.select(CONVERSATIONS).where(_BY_ID))
_BY_NAME = Prepared(
    sa.select(CONVERSATIONS).where(
        *(column == parameter(column) for column in (_conversations.owner_id, _conversations.domain_id)),
        _conversations.client_name == parameter(_conversations.client_name),
    )
)
_OPEN_COUNT = (_conversations.message_count - _conversations.compacted_count).label("open_count")
_MOVE_ON = (
    sa.update(CONVERSATIONS)
    .where(_BY_ID)
    .values(
        last_message_at=parameter(_conversations.last_message_at), updated_at=parameter(_conversations.last_message_at)
    )
)
_NOTE = Prepared(
    _MOVE_ON.values(image_id=parameter(_conversations.image_id)).returning(
        _conversations.title,
        _conversations.title_source,
        _conversations.status,
        _OPEN_COUNT,
        _conversations.domain_id,
        _conversations.owner_id,
    )
)
_MEMORY = sa.select(DOMAINS.c.settings["memory"]).where(DOMAINS.c.id == _conversations.domain_id).scalar_subquery()
_ADD = Prepared(
    _MOVE_ON.values(
        message_count=_conversations.message_count + parameter(_conversations.message_count),
        outcome=parameter(_conversations.outcome),
    ).returning(_conversations.domain_id, _conversations.owner_id, _MEMORY, _conversations.transient)
)
_TITLE = Prepared(sa.update(CONVERSATIONS).where(_BY_ID).values(title=parameter(_conversations.title)))


class ConversationState(NamedTuple):
    """The fields that decide whether a conversation accepts a message, and whether that message sets the title."""

    title: str
    title_source: TitleSource
    status: ConversationStatus
    open_count: int
    """Number of messages not covered by a summary."""
    domain_id: str
    owner_id: str


class ConversationPlace(NamedTuple):
    """The domain and owner of a conversation in which a turn has ended."""

    domain_id: str
    owner_id: str
    memory: Json | None
    """The memory settings of the domain; None if unset, or if the domain is gone."""
    transient: bool


class ConversationFields(TypedDict, total=False):
    """The fields that `update` can change."""

    title: str
    title_source: TitleSource
    status: ConversationStatus
    message_count: int
    compacted_count: int
    context_document_ids: list[DocumentId]
    meta: dict[str, Any]
    updated_at: str
    last_message_at: str | None
    pinned: bool
    folder: str | None
    outcome: TurnStatus | None
    model: str | None


@dataclass(frozen=True, slots=True)
class FolderCount:
    """A folder of one domain, and the number of its conversations."""

    domain_id: str
    name: str
    count: int


def insert(conn: Connection, conversation: ConversationRecord) -> None:
    """Store a new conversation.

    Raises:
        IntegrityError: the id or the session is taken.
    """
    conversation.insert(conn)


def get(conn: Connection, conversation_id: ConversationId, owner_id: str | None = None) -> ConversationRecord | None:
    """Return the conversation, or None if it does not exist or has another owner (``owner_id`` None: any owner)."""
    record = ConversationRecord.first(conn, _GET, id=conversation_id)
    return None if record is None or owner_id not in (None, record.owner_id) else record


def by_client_name(conn: Connection, owner_id: str, domain_id: str, client_name: str) -> ConversationRecord | None:
    """Return the user's conversation with this client name, or None."""
    return ConversationRecord.first(conn, _BY_NAME, owner_id=owner_id, domain_id=domain_id, client_name=client_name)


def turn_of_client_message(
    conn: Connection, owner_id: str, domain_id: str, client_message_id: str
) -> TurnRecord | None:
    """Return the newest turn created from this client message in any conversation of the user in the domain."""
    of_user = sa.and_(_conversations.owner_id == owner_id, _conversations.domain_id == domain_id)
    turn = TURNS.c
    query = (
        sa.select(TURNS)
        .join(CONVERSATIONS, _conversations.session_id == turn.session_id)
        .where(of_user, turn.client_message_id == client_message_id)
        .order_by(turn.id.desc())
    )
    return TurnRecord.first(conn, query.limit(1))


def note_message(conn: Connection, conversation_id: ConversationId, at: str, image_id: str) -> ConversationState | None:
    """Record a new message's time and its turn's image; return the conversation's state, or None if it does not exist.

    A caller that refuses the message raises, which rolls this update back too.
    """
    row = _NOTE.first(conn, id=conversation_id, last_message_at=at, image_id=image_id)
    return None if row is None else ConversationState(*row)


def set_title(conn: Connection, conversation_id: ConversationId, title: str) -> None:
    """Set the title derived from the first message."""
    _TITLE.run(conn, id=conversation_id, title=title)


def improve_title(conn: Connection, conversation_id: ConversationId, before: str, title: str) -> bool:
    """Replace the automatic title ``before`` by ``title``; return whether it was replaced.

    A title set by a user, or one that has changed since, is kept.
    """
    unnamed = _conversations.title_source == TitleSource.AUTO
    query = sa.update(CONVERSATIONS).where(_conversations.id == conversation_id, _conversations.title == before)
    return conn.execute(query.where(unnamed).values(title=title)).rowcount == 1


def by_session(conn: Connection, session_id: SessionId) -> ConversationRecord | None:
    """Return the conversation of a session, or None."""
    return ConversationRecord.first(conn, sa.select(CONVERSATIONS).where(_conversations.session_id == session_id))


def list_page(
    conn: Connection,
    *,
    page: int = 1,
    page_size: int = 20,
    sort_by: SortBy = "updated_at",
    sort_order: SortOrder = "desc",
    domain_id: str | None = None,
    status: ConversationStatus | None = None,
    q: str | None = None,
    owner_id: str | None = None,
    domain_ids: Collection[str] | None = None,
    folder: str | None = None,
    pinned_first: bool = False,
) -> tuple[list[ConversationRecord], int]:
    """Return one page (counted from 1) and the total number of matching conversations.

    ``q`` is a case-insensitive part of the title. Equal conversations are sorted by id, and those without a
    ``last_message_at`` come last. ``domain_ids`` limits the result to these domains. ``folder`` selects one folder; an
    empty text selects the conversations in none. ``pinned_first`` puts the pinned conversations before the others.
    """
    where: list[ColumnElement[bool]] = [~_conversations.transient]
    for name, value in (("domain_id", domain_id), ("status", status), ("owner_id", owner_id)):
        if value is not None:
            where.append(_conversations[name] == value)
    if domain_ids is not None:
        where.append(_conversations.domain_id.in_(domain_ids))
    if folder is not None:
        where.append(_conversations.folder == folder if folder else _conversations.folder.is_(None))
    if q:
        where.append(_conversations.title.icontains(q, autoescape=True))
    total = conn.execute(sa.select(sa.func.count()).select_from(CONVERSATIONS).where(*where)).scalar_one()
    column, tie = _conversations[sort_by], _conversations.id
    order = (column.asc(), tie.asc()) if sort_order == "asc" else (column.desc(), tie.desc())
    pins = (_conversations.pinned.desc(),) if pinned_first else ()
    query = sa.select(CONVERSATIONS).where(*where).order_by(*pins, order[0].nulls_last(), order[1])
    return ConversationRecord.all(conn, query.limit(page_size).offset((page - 1) * page_size)), total


def folders_of(
    conn: Connection,
    owner_id: str,
    *,
    domain_id: str | None,
    domain_ids: Collection[str] | None,
    status: ConversationStatus | None,
    at_most: int,
) -> list[FolderCount]:
    """Return the user's folders by name, each with the number of its conversations with this status (None: any)."""
    columns = (_conversations.domain_id, _conversations.folder)
    where = [_conversations.owner_id == owner_id, ~_conversations.transient, _conversations.folder.is_not(None)]
    if domain_id is not None:
        where.append(_conversations.domain_id == domain_id)
    if domain_ids is not None:
        where.append(_conversations.domain_id.in_(domain_ids))
    if status is not None:
        where.append(_conversations.status == status)
    query = sa.select(*columns, sa.func.count()).where(*where).group_by(*columns)
    by_name = query.order_by(_conversations.folder, _conversations.domain_id).limit(at_most)
    return [FolderCount(*row) for row in conn.execute(by_name)]


def titles_of(conn: Connection, owner_id: str, domain_id: str | None, at_most: int) -> dict[ConversationId, str]:
    """Return the titles of a user's conversations, those with the newest messages first."""
    where = [_conversations.owner_id == owner_id, ~_conversations.transient]
    if domain_id is not None:
        where.append(_conversations.domain_id == domain_id)
    query = sa.select(_conversations.id, _conversations.title).where(*where)
    newest = query.order_by(_conversations.last_message_at.desc().nulls_last(), _conversations.id.desc()).limit(at_most)
    return {row.id: row.title for row in conn.execute(newest)}


def newest_of(
    conn: Connection,
    ids: Collection[ConversationId],
    owner_id: str,
    domain_ids: Collection[str] | None,
    at_most: int,
) -> list[ConversationRecord]:
    """Return those of these conversations that the user owns in these domains, newest message first."""
    where = [_conversations.id.in_(ids), _conversations.owner_id == owner_id, ~_conversations.transient]
    if domain_ids is not None:
        where.append(_conversations.domain_id.in_(domain_ids))
    query = sa.select(CONVERSATIONS).where(*where)
    newest = query.order_by(_conversations.last_message_at.desc().nulls_last(), _conversations.id.desc())
    return ConversationRecord.all(conn, newest.limit(at_most))


def left_transient(conn: Connection, before: str | None = None, *, ended: bool = True) -> list[ConversationRecord]:
    """Return the leftover transient conversations.

    ``before``: only those not changed since that time. ``ended``: only those without an unfinished turn. A conversation
    whose unfinished turn has asked for the result of a client's function is never left over.
    """
    unfinished = sa.select(TURNS.c.session_id).where(HAS_NOT_ENDED, TURNS.c.status.not_in(FINISHED))
    awaiting = sa.select(WAITS.c.session_id).where(
        WAITS.c.kind == WaitKind.FUNCTION, WAITS.c.session_id.in_(unfinished)
    )
    conditions: list[ColumnElement[bool]] = [_conversations.transient, _conversations.session_id.not_in(awaiting)]
    if ended:
        conditions.append(_conversations.session_id.not_in(unfinished))
    if before is not None:
        conditions.append(_conversations.updated_at < before)
    return ConversationRecord.all(conn, sa.select(CONVERSATIONS).where(*conditions))


def of_owner(conn: Connection, owner_id: str) -> list[ConversationRecord]:
    """Return all conversations of a user, including transient ones."""
    return ConversationRecord.all(conn, sa.select(CONVERSATIONS).where(_conversations.owner_id == owner_id))


def take_due(conn: Connection, domain_id: str, before: str, at_most: int) -> list[ConversationRecord]:
    """Archive and return conversations that are unchanged since ``before`` and have no running or waiting turn.

    ``updated_at`` is kept, so that a conversation whose removal failed is found again.
    """
    unfinished = sa.select(TURNS.c.session_id).where(HAS_NOT_ENDED, TURNS.c.status.not_in(FINISHED))
    due = (
        _conversations.domain_id == domain_id,
        _conversations.updated_at < before,
        _conversations.session_id.not_in(unfinished),
        ~_conversations.transient,
    )
    query = sa.select(CONVERSATIONS).where(*due).order_by(_conversations.updated_at).limit(at_most)
    records = ConversationRecord.all(conn, query.with_for_update(skip_locked=True))
    archived = sa.update(CONVERSATIONS).where(_conversations.id.in_([record.id for record in records]))
    conn.execute(archived.values(status=ConversationStatus.ARCHIVED))
    return records


def ids_of_domain(conn: Connection, domain_id: str) -> Sequence[tuple[ConversationId, SessionId]]:
    """Return (conversation id, session id) of all conversations of the domain."""
    query = sa.select(_conversations.id, _conversations.session_id).where(_conversations.domain_id == domain_id)
    return [(conversation_id, session_id) for conversation_id, session_id in conn.execute(query)]


def cited_since(conn: Connection, domain_id: str, since: str, limit: int) -> list[tuple[str, tuple[str, ...]]]:
    """Return when the newest answers of a domain began, with the documents of their citations, newest first.

    Turns of delegates do not count: the answer that passes their passages on cites them again.
    """
    turns = TURNS.c
    query = (
        sa.select(turns.started_at, turns.references)
        .join(CONVERSATIONS, _conversations.session_id == turns.session_id)
        .where(_conversations.domain_id == domain_id, turns.started_at >= since)
        .where(sa.cast(turns.references, sa.Text) != "[]")
        .order_by(turns.started_at.desc(), turns.id.desc())
        .limit(limit)
    )
    return [(at, tuple(reference.document_id for reference in references)) for at, references in conn.execute(query)]


def update(conn: Connection, conversation_id: ConversationId, **fields: Unpack[ConversationFields]) -> bool:
    """Change the given fields. Returns False when there is no such conversation."""
    query = sa.update(CONVERSATIONS).where(_conversations.id == conversation_id).values(dict(fields))
    return conn.execute(query).rowcount == 1


def update_of_session(conn: Connection, session_id: SessionId, **fields: Unpack[ConversationFields]) -> None:
    """Change the given fields of the session's conversation, if there is one."""
    conn.execute(sa.update(CONVERSATIONS).where(_conversations.session_id == session_id).values(dict(fields)))


def add_messages(
    conn: Connection, conversation_id: ConversationId, count: int, at: str, outcome: TurnStatus | None = None
) -> ConversationPlace | None:
    """Add the ``count`` messages of a turn that ended at ``at`` with ``outcome``.

    Returns the conversation's place, or None if it does not exist.
    """
    row = _ADD.first(conn, id=conversation_id, message_count=count, last_message_at=at, outcome=outcome)
    return None if row is None else ConversationPlace(*row)


def delete(conn: Connection, conversation_id: ConversationId) -> bool:
    """Delete the record and what the conversation has read. Returns False when there was none."""
    provenance.delete_of_conversation(conn, conversation_id)
    return conn.execute(sa.delete(CONVERSATIONS).where(_conversations.id == conversation_id)).rowcount == 1


def list_turns(
    conn: Connection,
    owner_id: str,
    domain_id: str,
    *,
    conversation_id: ConversationId | None,
    statuses: Collection[str],
    awaits: Awaits | None,
    since: str | None,
    before: str | None,
    without: str,
    limit: int,
) -> tuple[list[TurnRecord], int]:
    """Return the newest turns of a user's listed conversations in a domain, and the number of all that match.

    ``before`` is the id of the last turn of the previous page. ``since``: only turns that began or ended at or after
    this time. ``awaits``: only turns with these open waits. Turns of delegates are left out, and those whose end reason
    is ``without``.
    """
    turn = TURNS.c
    where = [
        _conversations.owner_id == owner_id,
        _conversations.domain_id == domain_id,
        ~_conversations.transient,
        turn.end_reason.is_distinct_from(without),
    ]
    if conversation_id is not None:
        where.append(_conversations.id == conversation_id)
    if statuses:
        where.append(turn.status.in_(statuses))
    if awaits is not None:
        is_open = sa.select(WAITS.c.root_turn_id).where(WAITS.c.state == WaitState.OPEN)
        any_open = turn.id.in_(is_open)
        address = turn.id.in_(is_open.where(WAITS.c.kind == WaitKind.URL))
        where.append({"nothing": ~any_open, "input": any_open & ~address, "address": address}[awaits])
    if since is not None:
        where.append(sa.func.coalesce(turn.ended_at, turn.started_at) >= since)
    matching = sa.select(TURNS).join(CONVERSATIONS, _conversations.session_id == turn.session_id).where(*where)
    total = conn.execute(sa.select(sa.func.count()).select_from(matching.subquery())).scalar_one()
    page = matching if before is None else matching.where(turn.id < before)
    return TurnRecord.all(conn, page.order_by(turn.id.desc()).limit(limit)), total
