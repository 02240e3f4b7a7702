"""Sessions and their messages: the append-only transcript.

This module owns the positions (``seq``) of messages in a session, its active branch, the start of the window, and the
deletion of a session's parts. Callers ensure that messages follow the rules of the Messages API.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection, Index, func, select, update

from agentic_rag.base.errors import NotFound
from agentic_rag.base.events import Usage
from agentic_rag.base.ids import NO_CONVERSATION, ConversationId, MessageId, SessionId, TurnId
from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import Block, Role, question_blocks
from agentic_rag.store import branches, evaluation, turns
from agentic_rag.store.columns import Key
from agentic_rag.store.record import Record, delete_parts
from agentic_rag.store.statements import Prepared, parameter
from agentic_rag.store.turns import TURNS, TurnRecord, TurnStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLabels:
    """The owner of a session, used to count its usage and to label its events. Unknown fields are empty."""

    conversation_id: ConversationId = NO_CONVERSATION
    domain_id: str = ""
    user_id: str = ""
    agent: str = ""
    """Path of delegates; empty for the main agent."""


class SessionRecord(Record, table=True):
    """An append-only transcript."""

    __tablename__ = "sessions"
    __table_args__ = (Index("ix_sessions_parent", "parent_turn_id", "tool_call_id"),)

    id: Key[SessionId]
    labels: SessionLabels
    parent_turn_id: TurnId | None = None
    tool_call_id: str | None = None
    """For a delegate's session: the parent's tool call that runs on this session."""
    last_seq: int = 0
    """The position of the last message over all branches."""
    leaf_message_id: MessageId | None = None
    """The last answer of the active branch, which is the conversation; None if there is no turn."""
    branched: bool = False
    """Whether the session ever had another branch."""
    window_start: int = 0
    """Messages with a smaller seq are not sent to the model."""
    window_set_at: int = 0
    """``last_seq`` when the window was last set; reports of models from before do not apply to it."""
    head: list[Block] | None = None
    """Blocks placed before the window: the summary, carried messages, the carried role."""
    compaction_id: str | None = None
    """The newest compaction, whose summary is in ``head``."""
    compacted_to: int = 0
    """Messages up to this seq are summarised in ``head``; people can still read them."""
    gap_from: int = 0
    gap_to: int = 0
    """Steps of a turn that was summarised while running; its question and newest steps are still sent in full."""
    prompt_id: str | None = None
    """The prompt that its requests begin with (`prompts`); None: chosen when the next turn begins."""
    told_id: str | None = None
    """The current prompt, as last announced in the session."""
    late_tools: list[Json] | None = None
    """Tools added after the prompt was rendered."""
    writer: str = ""
    """The process that last began a turn or changed the session; only its cached state of the session is valid."""
    created_at: str


class MessageCounts(NamedTuple):
    """Messages as clients count them: two per turn. ``compacted`` is the number of those replaced by a summary."""

    every: int
    compacted: int


class MessageRecord(Record, table=True):
    """One Messages-API message of a transcript. ``content`` is the list of blocks."""

    __tablename__ = "messages"
    __table_args__ = (Index("ix_messages_message", "session_id", "message_id"),)
    part_of = "session"

    session_id: Key[SessionId]
    seq: Key[int]
    turn_id: TurnId
    step: int
    role: Role
    content: list[Block]
    message_id: MessageId
    """The id clients know: the user's message, or the answer that all steps of a turn share."""
    parent_message_id: MessageId | None = None
    model: str | None = None
    usage: Usage | None = None
    partial: bool = False
    """Whether this is an assistant message that was cut off."""
    rewritten_at: int = 0
    """The session's ``last_seq`` when ``content`` was last replaced; 0: never."""
    created_at: str


SESSIONS = SessionRecord.__table__
MESSAGES = MessageRecord.__table__
_sessions = SESSIONS.c
_messages = MESSAGES.c
_GET = Prepared(select(SESSIONS).where(_sessions.id == parameter(_sessions.id)))
_IN_ORDER = select(MESSAGES).order_by(_messages.seq)
_MOVED = (
    update(SESSIONS)
    .where(_sessions.id == parameter(_sessions.id), _sessions.last_seq < parameter(_sessions.last_seq))
    .values(last_seq=parameter(_sessions.last_seq))
)
_MOVE = Prepared(_MOVED)
_ASK = Prepared(_MOVED.values(leaf_message_id=parameter(_sessions.leaf_message_id), writer=parameter(_sessions.writer)))


def create(
    conn: Connection,
    session_id: SessionId,
    labels: SessionLabels,
    *,
    created_at: str,
    parent_turn_id: TurnId | None = None,
    tool_call_id: str | None = None,
) -> SessionRecord:
    """Create an empty session. A delegate's session names the parent's turn and tool call.

    Raises:
        IntegrityError: the id is taken.
    """
    session = SessionRecord(
        id=session_id,
        labels=labels,
        created_at=created_at,
        parent_turn_id=parent_turn_id,
        tool_call_id=tool_call_id,
    )
    session.insert(conn)
    return session


def get(conn: Connection, session_id: SessionId) -> SessionRecord | None:
    """Return the session, or None."""
    return SessionRecord.first(conn, _GET, id=session_id)


_HEAD = Prepared(
    select(_sessions.writer, _sessions.leaf_message_id).where(_sessions.id == parameter(_sessions.id)).with_for_update()
)
_SET_WRITER = Prepared(
    update(SESSIONS).where(_sessions.id == parameter(_sessions.id)).values(writer=parameter(_sessions.writer))
)


_IN_SESSION = _messages.session_id == parameter(_messages.session_id)
_LAST_SEQ = func.coalesce(func.max(_messages.seq), 0)
_BEGUN = select(_messages.turn_id).where(_IN_SESSION, _messages.step == 0).order_by(_messages.seq).limit(1)
_SAID = Prepared(
    select(_messages.content)
    .where(_IN_SESSION, _messages.turn_id == parameter(_messages.turn_id), _messages.role == "assistant")
    .order_by(_messages.seq)
)
_AFTER_PLACE = Prepared(_BEGUN.where(_messages.seq > parameter(_messages.seq)))
_AFTER_TURN = Prepared(
    _BEGUN.where(
        _messages.seq
        > select(_LAST_SEQ).where(_IN_SESSION, _messages.turn_id == parameter(_messages.turn_id)).scalar_subquery()
    )
)


class Head(NamedTuple):
    """The state from which a session continues: its ``writer``, and the answer that the next question follows."""

    writer: str
    leaf_message_id: MessageId | None


def lock(conn: Connection, session_id: SessionId) -> Head:
    """Lock a session against new turns until the transaction ends; return the state from which it continues.

    Raises:
        NotFound: there is no such session.
    """
    row = _HEAD.first(conn, id=session_id)
    if row is None:
        raise NotFound("session", session_id)
    return Head(*row)


def set_writer(conn: Connection, session_id: SessionId, owner: str) -> None:
    """Make ``owner`` the writer, which invalidates the session state cached by other processes."""
    _SET_WRITER.run(conn, id=session_id, writer=owner)


def by_tool_call(conn: Connection, parent_turn_id: TurnId, tool_call_id: str) -> SessionRecord | None:
    """Return the session of a ``delegate`` call, or None if it created none."""
    call = (_sessions.parent_turn_id == parent_turn_id, _sessions.tool_call_id == tool_call_id)
    return SessionRecord.first(conn, select(SESSIONS).where(*call))


def list_delegated(conn: Connection, parent_turn_id: TurnId) -> list[SessionRecord]:
    """Return the sessions of a turn's ``delegate`` calls, in the order in which they began."""
    query = select(SESSIONS).where(_sessions.parent_turn_id == parent_turn_id)
    return SessionRecord.all(conn, query.order_by(_sessions.id))


def delegated_by(conn: Connection, turn_ids: Sequence[TurnId]) -> dict[SessionId, TurnId]:
    """Return the sessions of these turns' delegates, each with its turn."""
    query = select(_sessions.id, _sessions.parent_turn_id).where(_sessions.parent_turn_id.in_(turn_ids))
    return {row.id: row.parent_turn_id for row in conn.execute(query)}


def parents(conn: Connection, session_ids: Sequence[SessionId]) -> dict[SessionId, TurnId]:
    """Return the parent turns of the delegates' sessions among these, by session."""
    query = select(_sessions.id, _sessions.parent_turn_id)
    rows = conn.execute(query.where(_sessions.id.in_(session_ids), _sessions.parent_turn_id.is_not(None)))
    return {row.id: row.parent_turn_id for row in rows}


def append_message(conn: Connection, message: MessageRecord) -> None:
    """Append a message to its session at ``seq`` and move the session's ``last_seq`` there.

    Raises:
        NotFound: the session was deleted, or the position is not after its last message.
        IntegrityError: the position is taken.
    """
    message.insert(conn)
    if _MOVE.run(conn, id=message.session_id, last_seq=message.seq) != 1:
        raise NotFound("session", message.session_id)


def append_question(conn: Connection, turn: TurnRecord, place: int) -> None:
    """Append the user's message that starts a turn, and make the turn's owner the writer.

    Raises:
        NotFound, IntegrityError: as `append_message`.
    """
    message = MessageRecord(
        session_id=turn.session_id,
        seq=place,
        turn_id=turn.id,
        step=0,
        role="user",
        content=question_blocks(turn.content, turn.images, turn.attachments),
        message_id=turn.user_message_id,
        parent_message_id=turn.parent_message_id,
        created_at=turn.started_at,
    )
    message.insert(conn)
    moved = {"last_seq": place, "leaf_message_id": turn.message_id, "writer": turn.owner}
    if _ASK.run(conn, id=turn.session_id, **moved) != 1:
        raise NotFound("session", turn.session_id)


def turn_after(
    conn: Connection, session_id: SessionId, turn_id: TurnId | None, place: int | None
) -> tuple[TurnId | None, int]:
    """Return the turn that began next in a session (None if there is none), and the position to search from next time.

    The search starts after ``turn_id``, or after the position ``place``. With neither, the result is the turn that runs
    or waits, or else the next turn to begin.
    """
    if turn_id is not None:
        following = _AFTER_TURN.first(conn, session_id=session_id, turn_id=turn_id)
        return None if following is None else TurnId(following[0]), 0
    if place is None:
        current = turns.current_of(conn, session_id)
        if current is not None and current.status is not TurnStatus.QUEUED:
            return current.id, 0
        place = int(conn.execute(select(_LAST_SEQ).where(_messages.session_id == session_id)).scalar_one())
    following = _AFTER_PLACE.first(conn, session_id=session_id, seq=place)
    return None if following is None else TurnId(following[0]), place


def transcript(conn: Connection, session_id: SessionId, from_seq: int = 0) -> list[MessageRecord]:
    """Return the messages of the active branch in order, starting at ``from_seq``."""
    here = (_messages.session_id == session_id, _messages.seq >= from_seq, _on_branch(conn, session_id))
    return MessageRecord.all(conn, _IN_ORDER.where(*here))


def _on_branch(conn: Connection, session_id: SessionId, leaf: MessageId | None = None) -> sa.ColumnElement[bool]:
    """Return the condition that a message is on the active branch, or on the branch that ends with ``leaf``."""
    state = select(_sessions.leaf_message_id, _sessions.branched).where(_sessions.id == session_id)
    session = conn.execute(state).first()
    if session is None or not session.branched:
        return sa.true()
    tree = branches.read_tree(conn, session_id)
    on = {node.turn_id for node in tree.path(leaf or session.leaf_message_id)}
    off = {node.turn_id for node in tree.nodes.values()} - on
    return _messages.turn_id.in_(on) if len(on) < len(off) else _messages.turn_id.not_in(off)


def page(
    conn: Connection,
    session_id: SessionId,
    limit: int,
    before_message_id: MessageId | None = None,
    places: tuple[int, int] | None = None,
    leaf: MessageId | None = None,
) -> list[MessageRecord]:
    """Return all rows, in order, of the last ``limit`` messages of a branch as clients count them.

    Clients see two messages per turn: rows that share a ``message_id`` are one. ``before_message_id``: only earlier
    messages. ``places``: only messages that begin between these positions, both included. ``leaf``: use the branch that
    ends with this answer instead of the active one.

    Raises:
        NotFound: the branch has no message ``before_message_id``.
    """
    first = func.min(_messages.seq)
    here = sa.and_(_messages.session_id == session_id, _on_branch(conn, session_id, leaf))
    groups = select(_messages.message_id).where(here).group_by(_messages.message_id)
    if places is not None:
        groups = groups.where(_messages.seq.between(*places))
    if before_message_id is not None:
        groups = groups.having(first < _place(conn, here, before_message_id))
    chosen = list(conn.execute(groups.order_by(first.desc()).limit(limit)).scalars())
    query = _IN_ORDER.where(here, _messages.message_id.in_(chosen))
    return MessageRecord.all(conn, query)


def _place(conn: Connection, here: sa.ColumnElement[bool], message_id: MessageId) -> int:
    """Return the position at which a message begins.

    An answer that failed without any content counts as following the rest of its turn.

    Raises:
        NotFound: no message matches ``here``.
    """
    place = conn.execute(select(func.min(_messages.seq)).where(here, _messages.message_id == message_id)).scalar()
    if place is None:
        failed = select(TURNS.c.id).where(TURNS.c.session_id == _messages.session_id, TURNS.c.message_id == message_id)
        end = select(func.max(_messages.seq)).where(here, _messages.turn_id.in_(failed))
        place = (conn.execute(end).scalar() or -1) + 1
    if place == 0:
        raise NotFound("message", message_id)
    return int(place)


def of_turn(conn: Connection, turn: TurnRecord) -> list[MessageRecord]:
    """Return all rows of a turn's question and answer in order."""
    query = _IN_ORDER.where(_messages.session_id == turn.session_id, _messages.turn_id == turn.id)
    return MessageRecord.all(conn, query)


def words_in_turn(conn: Connection, turn: TurnRecord) -> list[list[Block]]:
    """Return the blocks that the model wrote in a turn, by step."""
    rows = _SAID.all(conn, session_id=turn.session_id, turn_id=turn.id)
    return [row[0] for row in rows]


def of_message(conn: Connection, session_id: SessionId, message_id: MessageId) -> list[MessageRecord]:
    """Return all rows of a message in order."""
    here = (_messages.session_id == session_id, _messages.message_id == message_id)
    return MessageRecord.all(conn, _IN_ORDER.where(*here))


def has_message(conn: Connection, session_id: SessionId, message_id: MessageId) -> bool:
    """Return whether a session holds any row of a message."""
    query = select(_messages.seq).where(_messages.session_id == session_id, _messages.message_id == message_id)
    return conn.execute(query.limit(1)).first() is not None


def set_content(conn: Connection, session_id: SessionId, seq: int, content: list[Block]) -> None:
    """Replace the blocks of a message that was not yet sent to a model (notes of a turn are added to its user message).

    Raises:
        NotFound: the session has no message at this position.
    """
    place = (_messages.session_id == session_id, _messages.seq == seq)
    at = select(_sessions.last_seq).where(_sessions.id == session_id).scalar_subquery()
    if conn.execute(update(MESSAGES).where(*place).values(content=content, rewritten_at=at)).rowcount != 1:
        raise NotFound("session", session_id)


def set_window(conn: Connection, session_id: SessionId, start: int, head: list[Block] | None) -> None:
    """Stop sending the messages before ``start`` to the model, and place ``head`` before the remaining ones.

    The prompt is rendered again, because nothing of the old prefix can be reused.
    """
    conn.execute(
        update(SESSIONS)
        .where(_sessions.id == session_id)
        .values(
            window_start=start,
            window_set_at=_sessions.last_seq,
            head=head,
            prompt_id=None,
            told_id=None,
            late_tools=None,
        )
    )
    _keep_context(conn, session_id)


def set_prompt_state(
    conn: Connection, session_id: SessionId, prompt_id: str, told_id: str, late_tools: list[Json]
) -> None:
    """Store the session's prompt state: the prompt of its requests, the current prompt, and the tools added later."""
    values = {"prompt_id": prompt_id, "told_id": told_id, "late_tools": late_tools or None}
    conn.execute(update(SESSIONS).where(_sessions.id == session_id).values(**values))
    _keep_context(conn, session_id)


def _keep_context(conn: Connection, session_id: SessionId) -> None:
    """Store the current context, for branches that start here."""
    session = get(conn, session_id)
    if session is not None and session.leaf_message_id is not None:
        fields = {name: getattr(session, name) for name in branches.CONTEXT_FIELDS}
        branches.keep_context(
            conn, branches.ContextRecord(message_id=session.leaf_message_id, session_id=session_id, **fields)
        )


def move_leaf(conn: Connection, session_id: SessionId, leaf: MessageId | None) -> None:
    """Activate the branch that ends with this answer and restore its context; None: an empty branch."""
    path = branches.read_tree(conn, session_id).path(leaf)
    context = branches.context_after(conn, session_id, path)
    values = {name: getattr(context, name) for name in branches.CONTEXT_FIELDS}
    moved = update(SESSIONS).where(_sessions.id == session_id)
    conn.execute(moved.values(leaf_message_id=leaf, branched=True, **values))


def archive(
    conn: Connection,
    session_id: SessionId,
    compaction_id: str,
    to_seq: int,
    head: list[Block],
    gap: tuple[int, int] = (0, 0),
) -> None:
    """Replace the messages up to ``to_seq`` by ``head`` in requests to the model; the messages stay stored.

    ``gap`` is a range of later messages, first and last, that ``head`` replaces too.
    """
    compacted = {"compaction_id": compaction_id, "compacted_to": to_seq, "gap_from": gap[0], "gap_to": gap[1]}
    conn.execute(update(SESSIONS).where(_sessions.id == session_id).values(compacted))
    set_window(conn, session_id, to_seq + 1, head)


def count_messages(conn: Connection, session_id: SessionId) -> MessageCounts:
    """Return the number of messages on a session's active branch."""
    here = (_messages.session_id == session_id, _on_branch(conn, session_id))
    last = func.max(_messages.seq).label("last")
    message_count = func.count(_messages.message_id.distinct()).label("said")
    rows = select(_messages.turn_id, message_count, last).where(*here).group_by(_messages.turn_id)
    groups = rows.subquery()
    to_seq = select(_sessions.compacted_to).where(_sessions.id == session_id).scalar_subquery()
    failed = select(TURNS.c.id).where(TURNS.c.session_id == session_id, TURNS.c.status == TurnStatus.FAILED)
    count = sa.case((groups.c.turn_id.in_(failed), 2), else_=groups.c.said)
    compacted = sa.case((groups.c.last <= to_seq, count), else_=0)
    every = conn.execute(select(func.coalesce(func.sum(count), 0), func.coalesce(func.sum(compacted), 0))).one()
    return MessageCounts(int(every[0]), int(every[1]))


def children(conn: Connection, session_id: SessionId) -> list[SessionId]:
    """Return the ids of the sessions of this session's delegates."""
    own = select(TURNS.c.id).where(TURNS.c.session_id == session_id)
    return list(conn.execute(select(_sessions.id).where(_sessions.parent_turn_id.in_(own))).scalars())


def family(conn: Connection, session_id: SessionId) -> list[SessionId]:
    """Return the ids of a session and of all sessions of its delegates, at any depth."""
    own = select(sa.literal(session_id).label("id")).cte("own", recursive=True)
    below = select(_sessions.id).join(TURNS, TURNS.c.id == _sessions.parent_turn_id)
    own = own.union(below.join(own, own.c.id == TURNS.c.session_id))
    return list(conn.execute(select(own.c.id)).scalars())


def delete(conn: Connection, session_id: SessionId) -> bool:
    """Delete a session with all its parts, including delegates' sessions; `payloads.refs_of` names its files.

    Returns False if there was none. A running turn of the session must be ended before.
    """
    for child in children(conn, session_id):
        delete(conn, child)
    for turn_id in list(conn.execute(select(TURNS.c.id).where(TURNS.c.session_id == session_id)).scalars()):
        delete_parts(conn, "turn", turn_id)
    delete_parts(conn, "session", session_id)
    evaluation.delete_drafts_of_session(conn, session_id)
    return conn.execute(sa.delete(SESSIONS).where(_sessions.id == session_id)).rowcount == 1
