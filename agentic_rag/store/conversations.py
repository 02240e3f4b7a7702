"""Conversations as records.

Owns their listing and counting. Knows no message, no permission, and deletes nothing beside the record.
"""

from collections.abc import Collection, Sequence
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, bindparam

from agentic_rag.store.rows import Prepared, values
from agentic_rag.store.tables import Conversation, table

SortBy = Literal["started_at", "updated_at", "last_message_at", "title", "message_count"]
SortOrder = Literal["asc", "desc"]

_conversations = table(Conversation)
_NAMES = tuple(_conversations.c.keys())
_BY_ID = _conversations.c.id == bindparam("conversation")
_GET = sa.select(_conversations).where(_BY_ID)
_STATE = Prepared(
    sa.select(_conversations.c.title, _conversations.c.status, _conversations.c.message_count).where(_BY_ID),
    ("conversation",),
)
_MOVE_ON = sa.update(_conversations).where(_BY_ID).values(last_message_at=bindparam("at"), updated_at=bindparam("at"))
_TOUCH = Prepared(_MOVE_ON, ("conversation", "at"))
_ADD = Prepared(
    _MOVE_ON.values(message_count=_conversations.c.message_count + bindparam("count")), ("conversation", "at", "count")
)
_TITLE = sa.update(_conversations).where(_BY_ID).values(title=bindparam("title"))


class ConversationState(NamedTuple):
    """What decides whether a conversation takes a message, and whether that gives it a title."""

    title: str
    status: str
    message_count: int


class ConversationFields(TypedDict, total=False):
    """What `update` may change."""

    title: str
    title_source: str
    status: str
    message_count: int
    context_document_ids: list[str]
    meta: dict[str, Any]
    updated_at: str
    last_message_at: str | None


def insert(conn: Connection, conversation: Conversation) -> None:
    """Store a new conversation.

    Raises:
        IntegrityError: the id or the session is taken.
    """
    conn.execute(sa.insert(_conversations), values(conversation, _NAMES))


def get(conn: Connection, conversation_id: str, owner_id: str | None = None) -> Conversation | None:
    """Return the conversation; None when there is none, or it is not ``owner_id``'s (None: anybody's)."""
    row = conn.execute(_GET, {"conversation": conversation_id}).mappings().first()
    return None if row is None or owner_id not in (None, row["owner_id"]) else Conversation(**row)


def state(conn: Connection, conversation_id: str) -> ConversationState | None:
    """Return what a message that comes depends on, None when there is no such conversation."""
    row = _STATE.first(conn, {"conversation": conversation_id})
    return None if row is None else ConversationState(*row)


def touch(conn: Connection, conversation_id: str, at: str, title: str | None = None) -> None:
    """Note that a message came at that time; the first one gives the conversation its ``title``."""
    _TOUCH.run(conn, {"conversation": conversation_id, "at": at})
    if title is not None:
        conn.execute(_TITLE, {"conversation": conversation_id, "title": title})


def by_session(conn: Connection, session_id: str) -> Conversation | None:
    """Return the conversation that the session belongs to, None when there is none."""
    row = conn.execute(sa.select(_conversations).where(_conversations.c.session_id == session_id)).mappings().first()
    return None if row is None else Conversation(**row)


def list_page(
    conn: Connection,
    *,
    page: int = 1,
    page_size: int = 20,
    sort_by: SortBy = "updated_at",
    sort_order: SortOrder = "desc",
    domain_id: str | None = None,
    status: str | None = None,
    q: str | None = None,
    owner_id: str | None = None,
    domain_ids: Collection[str] | None = None,
) -> tuple[list[Conversation], int]:
    """Return one page (from 1) and how many conversations match in all.

    ``q`` is a part of the title, whatever its case. Equal ones are sorted by id; those without a
    ``last_message_at`` come last. ``domain_ids``: only those of these domains.
    """
    where: list[ColumnElement[bool]] = []
    for name, wanted in (("domain_id", domain_id), ("status", status), ("owner_id", owner_id)):
        if wanted is not None:
            where.append(_conversations.c[name] == wanted)
    if domain_ids is not None:
        where.append(_conversations.c.domain_id.in_(domain_ids))
    if q:
        where.append(_conversations.c.title.icontains(q, autoescape=True))
    total = conn.execute(sa.select(sa.func.count()).select_from(_conversations).where(*where)).scalar_one()
    column, tie = _conversations.c[sort_by], _conversations.c.id
    order = (column.asc(), tie.asc()) if sort_order == "asc" else (column.desc(), tie.desc())
    query = sa.select(_conversations).where(*where).order_by(order[0].nulls_last(), order[1])
    found = conn.execute(query.limit(page_size).offset((page - 1) * page_size)).mappings()
    return [Conversation(**row) for row in found], total


def ids_of_domain(conn: Connection, domain_id: str) -> Sequence[tuple[str, str]]:
    """Return (conversation id, session id) of all conversations of the domain."""
    query = sa.select(_conversations.c.id, _conversations.c.session_id).where(_conversations.c.domain_id == domain_id)
    return [(conversation_id, session_id) for conversation_id, session_id in conn.execute(query)]


def update(conn: Connection, conversation_id: str, **fields: Unpack[ConversationFields]) -> bool:
    """Change the given fields. Returns False when there is no such conversation."""
    query = sa.update(_conversations).where(_conversations.c.id == conversation_id).values(dict(fields))
    return conn.execute(query).rowcount == 1


def add_messages(conn: Connection, conversation_id: str, count: int, at: str) -> bool:
    """Count ``count`` more messages, the last one at that time. Returns False when there is no such conversation."""
    return _ADD.run(conn, {"conversation": conversation_id, "count": count, "at": at}) == 1


def delete(conn: Connection, conversation_id: str) -> bool:
    """Delete the record. Returns False when there was none."""
    return conn.execute(sa.delete(_conversations).where(_conversations.c.id == conversation_id)).rowcount == 1
