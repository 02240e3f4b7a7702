"""Sessions and their messages: the append-only transcript.

Owns the places (``seq``) of messages in a session, the window's start, and the deletion of all that a
session holds. Knows no Messages-API rule and no conversation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, bindparam, func, insert, select, update

from agentic_rag.errors import NotFound
from agentic_rag.messages import Block
from agentic_rag.store.rows import Prepared, columns, names, values
from agentic_rag.store.tables import (
    CompactionRow,
    MessageRow,
    PayloadRow,
    RunEvent,
    SessionRow,
    ToolCallRow,
    Turn,
    UsageRow,
    table,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """One row of ``sessions``; fields as in `tables.SessionRow`."""

    id: str
    labels: dict[str, Any]
    created_at: str
    parent_turn_id: str | None = None
    tool_call_id: str | None = None
    last_seq: int = 0
    window_start: int = 0
    window_set_at: int = 0
    head: list[Block] | None = None
    compaction_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """One row of ``messages`` without its session; fields as in `tables.MessageRow`."""

    seq: int
    turn_id: str
    step: int
    role: str
    content: list[Block]
    message_id: str
    created_at: str
    parent_message_id: str | None = None
    model: str | None = None
    usage: dict[str, Any] | None = None
    partial: bool = False
    archived_in: str | None = None


_sessions = table(SessionRow)
_messages = table(MessageRow)
_turns = table(Turn)
_SESSION_NAMES = names(StoredSession)
_SESSION = select(*columns(_sessions, StoredSession))
_MESSAGE_NAMES = names(StoredMessage)
_MESSAGES = select(*columns(_messages, StoredMessage)).order_by(_messages.c.seq)
_CREATE = insert(_sessions)
_APPEND = Prepared(insert(_messages), (*_MESSAGE_NAMES, "session_id"))
_MOVE = Prepared(
    update(_sessions)
    .where(_sessions.c.id == bindparam("session"), _sessions.c.last_seq < bindparam("place"))
    .values(last_seq=bindparam("place")),
    ("session", "place"),
)


def create(
    conn: Connection,
    session_id: str,
    labels: Mapping[str, Any],
    *,
    created_at: str,
    parent_turn_id: str | None = None,
    tool_call_id: str | None = None,
) -> StoredSession:
    """Make an empty session. A delegate's names the parent's turn and the call that runs on it.

    Raises:
        IntegrityError: the id is taken.
    """
    session = StoredSession(
        id=session_id,
        labels=dict(labels),
        created_at=created_at,
        parent_turn_id=parent_turn_id,
        tool_call_id=tool_call_id,
    )
    conn.execute(_CREATE, values(session, _SESSION_NAMES))
    return session


def get(conn: Connection, session_id: str) -> StoredSession | None:
    """Return the session, None when there is none."""
    row = conn.execute(_SESSION.where(_sessions.c.id == session_id)).mappings().first()
    return None if row is None else StoredSession(**row)


def by_tool_call(conn: Connection, parent_turn_id: str, tool_call_id: str) -> StoredSession | None:
    """Return the session a ``delegate`` call runs on, None when it made none."""
    where = (_sessions.c.parent_turn_id == parent_turn_id, _sessions.c.tool_call_id == tool_call_id)
    row = conn.execute(_SESSION.where(*where)).mappings().first()
    return None if row is None else StoredSession(**row)


def delegated(conn: Connection, parent_turn_id: str) -> list[str]:
    """Return the ids of the sessions that the ``delegate`` calls of a turn run on."""
    query = select(_sessions.c.id).where(_sessions.c.parent_turn_id == parent_turn_id)
    return list(conn.execute(query.order_by(_sessions.c.created_at, _sessions.c.id)).scalars())


def parents(conn: Connection, session_ids: Sequence[str]) -> dict[str, str]:
    """Return the turns that delegates' sessions among these work for, by session."""
    query = select(_sessions.c.id, _sessions.c.parent_turn_id)
    rows = conn.execute(query.where(_sessions.c.id.in_(session_ids), _sessions.c.parent_turn_id.is_not(None)))
    return {row.id: row.parent_turn_id for row in rows}


def append_message(conn: Connection, session_id: str, message: StoredMessage) -> None:
    """Append a message at ``message.seq`` and move the session's ``last_seq`` there.

    Raises:
        NotFound: the session was deleted, or the place is not past its last message.
        IntegrityError: the place is taken.
    """
    row = values(message, _MESSAGE_NAMES)
    row["session_id"] = session_id
    _APPEND.run(conn, row)
    if _MOVE.run(conn, {"session": session_id, "place": message.seq}) != 1:
        raise NotFound("session", session_id)


def transcript(
    conn: Connection, session_id: str, from_seq: int | None = None, archived: bool = False
) -> list[StoredMessage]:
    """Return the messages in order, from ``from_seq`` on; ``archived``: those a compaction replaced too."""
    query = _MESSAGES.where(_messages.c.session_id == session_id)
    if from_seq is not None:
        query = query.where(_messages.c.seq >= from_seq)
    if not archived:
        query = query.where(_messages.c.archived_in.is_(None))
    return [StoredMessage(**row) for row in conn.execute(query).mappings()]


def page(
    conn: Connection, session_id: str, limit: int, before_message_id: str | None = None, archive_id: str | None = None
) -> list[StoredMessage]:
    """Return all rows, in order, of the last ``limit`` messages as clients count them.

    Clients see two a turn: rows that share a ``message_id`` are one. ``before_message_id``: only those before it.
    ``archive_id``: those that a compaction archived, instead of those that none did.

    Raises:
        NotFound: the session holds no message ``before_message_id``.
    """
    first = func.min(_messages.c.seq)
    here = _messages.c.session_id == session_id
    groups = select(_messages.c.message_id).where(here).group_by(_messages.c.message_id)
    groups = groups.where(_messages.c.archived_in.is_not_distinct_from(archive_id))
    if before_message_id is not None:
        end = conn.execute(select(first).where(here, _messages.c.message_id == before_message_id)).scalar()
        if end is None:
            raise NotFound("message", before_message_id)
        groups = groups.having(first < end)
    chosen = list(conn.execute(groups.order_by(first.desc()).limit(limit)).scalars())
    query = _MESSAGES.where(here, _messages.c.message_id.in_(chosen))
    return [StoredMessage(**row) for row in conn.execute(query).mappings()]


def set_content(conn: Connection, session_id: str, seq: int, content: list[Block]) -> None:
    """Replace the blocks of a message that no model has seen yet (the notes of a turn join its user message).

    Raises:
        NotFound: the session holds no message there.
    """
    place = (_messages.c.session_id == session_id, _messages.c.seq == seq)
    if conn.execute(update(_messages).where(*place).values(content=content)).rowcount != 1:
        raise NotFound("session", session_id)


def set_window(conn: Connection, session_id: str, start: int, head: list[Block] | None) -> None:
    """Record that messages before ``start`` are not sent any more, and that ``head`` stands before those that are."""
    conn.execute(
        update(_sessions)
        .where(_sessions.c.id == session_id)
        .values(window_start=start, window_set_at=_sessions.c.last_seq, head=head)
    )


def archive(conn: Connection, session_id: str, compaction_id: str, to_seq: int, head: list[Block]) -> None:
    """Give all messages up to ``to_seq`` that are not archived to a compaction, and let ``head`` stand for them."""
    conn.execute(
        update(_messages)
        .where(_messages.c.session_id == session_id, _messages.c.seq <= to_seq, _messages.c.archived_in.is_(None))
        .values(archived_in=compaction_id)
    )
    set_window(conn, session_id, to_seq + 1, head)
    conn.execute(update(_sessions).where(_sessions.c.id == session_id).values(compaction_id=compaction_id))


def count_messages(conn: Connection, session_id: str) -> int:
    """Return how many messages, as clients count them, are not archived."""
    query = select(func.count(_messages.c.message_id.distinct())).where(
        _messages.c.session_id == session_id, _messages.c.archived_in.is_(None)
    )
    return conn.execute(query).scalar_one()


def children(conn: Connection, session_id: str) -> list[str]:
    """Return the ids of the sessions that delegates of this one's turns run on."""
    own = select(_turns.c.id).where(_turns.c.session_id == session_id)
    return list(conn.execute(select(_sessions.c.id).where(_sessions.c.parent_turn_id.in_(own))).scalars())


def delete(conn: Connection, session_id: str) -> bool:
    """Delete a session with all that it holds, delegates' sessions included; `payloads.refs_of` names its files.

    Returns False when there was none. A turn of it that still runs must be ended before.
    """
    for child in children(conn, session_id):
        delete(conn, child)
    for turn_id in list(conn.execute(select(_turns.c.id).where(_turns.c.session_id == session_id)).scalars()):
        conn.execute(sa.delete(table(RunEvent)).where(table(RunEvent).c.turn_id == turn_id))
    for noun in (MessageRow, Turn, ToolCallRow, UsageRow, PayloadRow, CompactionRow):
        conn.execute(sa.delete(table(noun)).where(table(noun).c.session_id == session_id))
    return conn.execute(sa.delete(_sessions).where(_sessions.c.id == session_id)).rowcount == 1
