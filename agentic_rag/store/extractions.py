"""Extractions: turns from which memories are still to be proposed, and proposals on their way into a memory.

Owns one row for each session that has such turns. A turn is noted in the transaction of its end and struck out once
what was proposed from it is in the memory, so that a kill in between costs nothing and doubles nothing. Knows no model.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

from sqlalchemy import Connection, and_, delete, or_, update

from agentic_rag.ids import ConversationId, SessionId, TurnId
from agentic_rag.store.clock import now
from agentic_rag.store.records import RecordTable


class Proposal(TypedDict):
    """A memory that was proposed; ``turn``: id of the turn in which it was said."""

    content: str
    keywords: list[str]
    turn: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionRecord:
    """The turns of a session from which nothing was proposed yet."""

    session_id: SessionId
    conversation_id: ConversationId
    domain_id: str
    user_id: str
    every: int
    """Due at so many turns; 0: once the conversation rests."""
    turn_count: int
    turn_ids: list[str]
    proposals: list[Proposal] = field(default_factory=list)
    """What a model proposed from ``proposed_from``, on its way into the memory."""
    proposed_from: list[str] = field(default_factory=list)
    tries: int = 0
    """Calls of the model that failed."""
    last_at: str
    """When the last turn ended, or was tried."""
    claimed_until: str = ""
    """Until when it is some process's."""


EXTRACTIONS = RecordTable(ExtractionRecord, "extractions", key=("session_id",), part_of="session")
_rows = EXTRACTIONS.c


def get(conn: Connection, session_id: SessionId) -> ExtractionRecord | None:
    """Return the row of a session, None when nothing is left to do."""
    return EXTRACTIONS.first(conn, EXTRACTIONS.select.where(_rows.session_id == session_id))


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
    """Note a turn that has ended. ``every``: see `ExtractionRecord`."""
    known = get(conn, session_id)
    if known is not None:
        turn_ids = [*known.turn_ids, turn_id]
        _save(conn, replace(known, turn_ids=turn_ids, turn_count=len(turn_ids), every=every, last_at=now()))
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
    EXTRACTIONS.insert(conn, row)


def claim(conn: Connection, rested_since: str, until: str, most: int) -> list[ExtractionRecord]:
    """Return what is due, oldest first, and make it the caller's ``until`` a time; ``rested_since``: who rests."""
    due = or_(
        and_(_rows.every == 0, _rows.last_at <= rested_since),
        and_(_rows.every > 0, _rows.turn_count >= _rows.every, or_(_rows.tries == 0, _rows.last_at <= rested_since)),
    )
    query = EXTRACTIONS.select.where(due, _rows.claimed_until < now()).order_by(_rows.last_at).limit(most)
    found = EXTRACTIONS.all(conn, query.with_for_update(skip_locked=True))
    ids = [row.session_id for row in found]
    conn.execute(update(EXTRACTIONS.table).where(_rows.session_id.in_(ids)).values(claimed_until=until))
    return found


def keep(conn: Connection, session_id: SessionId, proposals: Sequence[Proposal], turn_ids: Sequence[str]) -> None:
    """Keep what was proposed from these turns until it is in the memory."""
    known = get(conn, session_id)
    if known is not None:
        _save(conn, replace(known, proposals=list(proposals), proposed_from=list(turn_ids)))


def put_off(conn: Connection, session_id: SessionId) -> None:
    """Count a call that failed; the next one waits until the conversation has rested again."""
    known = get(conn, session_id)
    if known is not None:
        _save(conn, replace(known, tries=known.tries + 1, last_at=now(), claimed_until=""))


def wait(conn: Connection, session_id: SessionId, until: str) -> None:
    """Leave a conversation alone until a time, as if it had not been looked at."""
    conn.execute(update(EXTRACTIONS.table).where(_rows.session_id == session_id).values(claimed_until=until))


def strike_out(conn: Connection, session_id: SessionId, turn_ids: Collection[str]) -> None:
    """Strike out turns from which everything is in the memory, or nothing is to be."""
    known = get(conn, session_id)
    if known is None:
        return
    left = [each for each in known.turn_ids if each not in turn_ids]
    if not left:
        conn.execute(delete(EXTRACTIONS.table).where(_rows.session_id == session_id))
        return
    changed = replace(known, turn_ids=left, turn_count=len(left), proposals=[], proposed_from=[], tries=0)
    _save(conn, replace(changed, claimed_until=""))


def delete_of_user(conn: Connection, user_id: str) -> None:
    """Delete what is noted for a user."""
    conn.execute(delete(EXTRACTIONS.table).where(_rows.user_id == user_id))


def _save(conn: Connection, row: ExtractionRecord) -> None:
    values = EXTRACTIONS.values(row)
    conn.execute(update(EXTRACTIONS.table).where(_rows.session_id == row.session_id).values(**values))
