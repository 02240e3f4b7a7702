"""Conversations as records.

Owns their listing and counting. Knows no message, no permission, and deletes nothing beside the record.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, UniqueConstraint

from agentic_rag.store.records import Prepared, RecordTable, parameter

SortBy = Literal["started_at", "updated_at", "last_message_at", "title", "message_count"]
SortOrder = Literal["asc", "desc"]


class ConversationStatus(StrEnum):
    """An archived conversation takes no message."""

    ACTIVE = "active"
    ARCHIVED = "archived"


class TitleSource(StrEnum):
    """Whose words the title is: made of the first message, or a user's own, which nothing replaces."""

    AUTO = "auto"
    USER = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRecord:
    """A business record; holds no messages."""

    id: str
    domain_id: str
    owner_id: str
    session_id: str
    title: str = ""
    title_source: TitleSource = TitleSource.AUTO
    status: ConversationStatus = ConversationStatus.ACTIVE
    message_count: int = 0
    """As clients count: two a finished turn."""
    compacted_count: int = 0
    """Those of them that a summary stands for: the model is not sent them any more."""
    context_document_ids: list[str] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)
    started_at: str
    updated_at: str
    last_message_at: str | None = None


CONVERSATIONS = RecordTable(
    ConversationRecord, "conversations", UniqueConstraint("session_id"), indexed=("domain_id", "owner_id")
)
_conversations = CONVERSATIONS.c
_BY_ID = _conversations.id == parameter(_conversations.id)
_GET = CONVERSATIONS.select.where(_BY_ID)
_OPEN_COUNT = (_conversations.message_count - _conversations.compacted_count).label("open_count")
_STATE = Prepared(
    sa.select(_conversations.title, _conversations.title_source, _conversations.status, _OPEN_COUNT).where(_BY_ID)
)
_MOVE_ON = (
    sa.update(CONVERSATIONS.table)
    .where(_BY_ID)
    .values(
        last_message_at=parameter(_conversations.last_message_at), updated_at=parameter(_conversations.last_message_at)
    )
)
_TOUCH = Prepared(_MOVE_ON)
_ADD = Prepared(_MOVE_ON.values(message_count=_conversations.message_count + parameter(_conversations.message_count)))
_TITLE = Prepared(sa.update(CONVERSATIONS.table).where(_BY_ID).values(title=parameter(_conversations.title)))


class ConversationState(NamedTuple):
    """What decides whether a conversation takes a message, and whether that gives it a title."""

    title: str
    title_source: TitleSource
    status: ConversationStatus
    open_count: int
    """Messages that no summary stands for."""


class ConversationFields(TypedDict, total=False):
    """What `update` may change."""

    title: str
    title_source: TitleSource
    status: ConversationStatus
    message_count: int
    compacted_count: int
    context_document_ids: list[str]
    meta: dict[str, Any]
    updated_at: str
    last_message_at: str | None


def insert(conn: Connection, conversation: ConversationRecord) -> None:
    """Store a new conversation.

    Raises:
        IntegrityError: the id or the session is taken.
    """
    CONVERSATIONS.insert(conn, conversation)


def get(conn: Connection, conversation_id: str, owner_id: str | None = None) -> ConversationRecord | None:
    """Return the conversation; None when there is none, or it is not ``owner_id``'s (None: anybody's)."""
    record = CONVERSATIONS.first(conn, _GET, id=conversation_id)
    return None if record is None or owner_id not in (None, record.owner_id) else record


def state(conn: Connection, conversation_id: str) -> ConversationState | None:
    """Return what a message that comes depends on, None when there is no such conversation."""
    row = _STATE.first(conn, id=conversation_id)
    return None if row is None else ConversationState(row[0], TitleSource(row[1]), ConversationStatus(row[2]), row[3])


def touch(conn: Connection, conversation_id: str, at: str, title: str | None = None) -> None:
    """Note that a message came at that time; the first one gives the conversation its ``title``."""
    _TOUCH.run(conn, id=conversation_id, last_message_at=at)
    if title is not None:
        _TITLE.run(conn, id=conversation_id, title=title)


def by_session(conn: Connection, session_id: str) -> ConversationRecord | None:
    """Return the conversation that the session belongs to, None when there is none."""
    return CONVERSATIONS.first(conn, CONVERSATIONS.select.where(_conversations.session_id == session_id))


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
) -> tuple[list[ConversationRecord], int]:
    """Return one page (from 1) and how many conversations match in all.

    ``q`` is a part of the title, whatever its case. Equal ones are sorted by id; those without a
    ``last_message_at`` come last. ``domain_ids``: only those of these domains.
    """
    where: list[ColumnElement[bool]] = []
    for name, wanted in (("domain_id", domain_id), ("status", status), ("owner_id", owner_id)):
        if wanted is not None:
            where.append(_conversations[name] == wanted)
    if domain_ids is not None:
        where.append(_conversations.domain_id.in_(domain_ids))
    if q:
        where.append(_conversations.title.icontains(q, autoescape=True))
    total = conn.execute(sa.select(sa.func.count()).select_from(CONVERSATIONS.table).where(*where)).scalar_one()
    column, tie = _conversations[sort_by], _conversations.id
    order = (column.asc(), tie.asc()) if sort_order == "asc" else (column.desc(), tie.desc())
    query = CONVERSATIONS.select.where(*where).order_by(order[0].nulls_last(), order[1])
    return CONVERSATIONS.all(conn, query.limit(page_size).offset((page - 1) * page_size)), total


def ids_of_domain(conn: Connection, domain_id: str) -> Sequence[tuple[str, str]]:
    """Return (conversation id, session id) of all conversations of the domain."""
    query = sa.select(_conversations.id, _conversations.session_id).where(_conversations.domain_id == domain_id)
    return [(conversation_id, session_id) for conversation_id, session_id in conn.execute(query)]


def update(conn: Connection, conversation_id: str, **fields: Unpack[ConversationFields]) -> bool:
    """Change the given fields. Returns False when there is no such conversation."""
    query = sa.update(CONVERSATIONS.table).where(_conversations.id == conversation_id).values(dict(fields))
    return conn.execute(query).rowcount == 1


def update_of_session(conn: Connection, session_id: str, **fields: Unpack[ConversationFields]) -> None:
    """Change the given fields of the conversation that a session belongs to, if it belongs to one."""
    conn.execute(sa.update(CONVERSATIONS.table).where(_conversations.session_id == session_id).values(dict(fields)))


def add_messages(conn: Connection, conversation_id: str, count: int, at: str) -> bool:
    """Count ``count`` more messages, the last one at that time. Returns False when there is no such conversation."""
    return _ADD.run(conn, id=conversation_id, message_count=count, last_message_at=at) == 1


def delete(conn: Connection, conversation_id: str) -> bool:
    """Delete the record. Returns False when there was none."""
    return conn.execute(sa.delete(CONVERSATIONS.table).where(_conversations.id == conversation_id)).rowcount == 1
