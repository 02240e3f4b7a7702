"""Extractions: turns not yet searched for memories, and proposals not yet stored in a memory.

There is one row per session with such turns. The transaction that ends a turn adds it to the row. Once the turn's
proposals are in the memory, the turn is removed. A crash between the two therefore loses no proposal and stores none
twice. No model is called here.
"""

from collections.abc import Collection, Sequence
from typing import TypedDict

from sqlalchemy import Connection, and_, delete, or_, select, update
from sqlmodel import Field

from agentic_rag.base.ids import ConversationId, SessionId, TurnId
from agentic_rag.store.clock import now
from agentic_rag.store.columns import Key
from agentic_rag.store.record import Record


class MemoryProposal(TypedDict):
    """A proposed memory; ``turn`` is the id of the turn that it comes from."""

    content: str
    keywords: list[str]
    turn: str


class ExtractionRecord(Record, table=True):
    """The turns of a session for which no memories were proposed yet."""

    __tablename__ = "extractions"
    part_of = "session"

    session_id: Key[SessionId]
    conversation_id: ConversationId
    domain_id: str
    user_id: str
    every: int
    """Number of turns that makes the row due; 0: due once the conversation is idle."""
    turn_count: int
    turn_ids: list[str]
    proposals: list[MemoryProposal] = Field(default_factory=list)
    """The model's proposals for the turns ``proposed_from``, not yet stored in the memory."""
    proposed_from: list[str] = Field(default_factory=list)
    tries: int = 0
    """Number of failed model calls."""
    last_at: str
    """Time of the last turn's end or of the last attempt."""
    claimed_until: str = ""
    """End of the current claim by a process."""


EXTRACTIONS = ExtractionRecord.__table__
_rows = EXTRACTIONS.c


def get(conn: Connection, session_id: SessionId) -> ExtractionRecord | None:
    """Return the row of a session, or None if there is no work left."""
    return ExtractionRecord.first(conn, select(EXTRACTIONS).where(_rows.session_id == session_id))


def note(
    conn: Connection,
    session_id: SessionId,
    turn_id: TurnId,
    *,
    conversation_id: ConversationId,
    domain_id: str,
    user_id: str,
    every: int,
) -> None:
    """Add a turn that has ended. ``every``: see `ExtractionRecord`."""
    extraction = get(conn, session_id)
    if extraction is not None:
        turn_ids = [*extraction.turn_ids, turn_id]
        _save(conn, extraction.replace(turn_ids=turn_ids, turn_count=len(turn_ids), every=every, last_at=now()))
        return
    row = ExtractionRecord(
        session_id=session_id,
        conversation_id=conversation_id,
        domain_id=domain_id,
        user_id=user_id,
        every=every,
        turn_count=1,
        turn_ids=[turn_id],
        last_at=now(),
    )
    row.insert(conn)


def claim(conn: Connection, rested_since: str, until: str, most: int) -> list[ExtractionRecord]:
    """Claim the due rows for the caller ``until`` a time and return them, oldest first.

    ``rested_since``: a conversation without a turn since that time counts as idle.
    """
    due = or_(
        and_(_rows.every == 0, _rows.last_at <= rested_since),
        and_(_rows.every > 0, _rows.turn_count >= _rows.every, or_(_rows.tries == 0, _rows.last_at <= rested_since)),
    )
    query = select(EXTRACTIONS).where(due, _rows.claimed_until < now()).order_by(_rows.last_at).limit(most)
    extractions = ExtractionRecord.all(conn, query.with_for_update(skip_locked=True))
    ids = [row.session_id for row in extractions]
    conn.execute(update(EXTRACTIONS).where(_rows.session_id.in_(ids)).values(claimed_until=until))
    return extractions


def keep(conn: Connection, session_id: SessionId, proposals: Sequence[MemoryProposal], turn_ids: Sequence[str]) -> None:
    """Store the proposals made from these turns until they are in the memory."""
    extraction = get(conn, session_id)
    if extraction is not None:
        _save(conn, extraction.replace(proposals=list(proposals), proposed_from=list(turn_ids)))


def put_off(conn: Connection, session_id: SessionId) -> None:
    """Count a failed model call; the next attempt waits until the conversation is idle again."""
    extraction = get(conn, session_id)
    if extraction is not None:
        _save(conn, extraction.replace(tries=extraction.tries + 1, last_at=now(), claimed_until=""))


def wait(conn: Connection, session_id: SessionId, until: str) -> None:
    """Postpone a conversation until a time, without counting an attempt."""
    conn.execute(update(EXTRACTIONS).where(_rows.session_id == session_id).values(claimed_until=until))


def strike_out(conn: Connection, session_id: SessionId, turn_ids: Collection[str]) -> None:
    """Remove turns that are done: their memories are stored, or there are none to store."""
    extraction = get(conn, session_id)
    if extraction is None:
        return
    remaining = [turn_id for turn_id in extraction.turn_ids if turn_id not in turn_ids]
    if not remaining:
        conn.execute(delete(EXTRACTIONS).where(_rows.session_id == session_id))
        return
    changed = extraction.replace(turn_ids=remaining, turn_count=len(remaining), proposals=[], proposed_from=[], tries=0)
    _save(conn, changed.replace(claimed_until=""))


def delete_of_user(conn: Connection, user_id: str) -> None:
    """Delete the rows of a user."""
    conn.execute(delete(EXTRACTIONS).where(_rows.user_id == user_id))


def _save(conn: Connection, row: ExtractionRecord) -> None:
    values = row.column_values()
    conn.execute(update(EXTRACTIONS).where(_rows.session_id == row.session_id).values(**values))
