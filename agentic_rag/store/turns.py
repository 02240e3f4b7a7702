"""Turns: one user message to its end, as a record.

Owns a turn's states, totals and lease columns. Knows no event and no transcript.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Select, and_, bindparam, insert, select, update

from agentic_rag.errors import LeaseLost, NotFound
from agentic_rag.store.rows import Prepared, columns, names, values
from agentic_rag.store.tables import Turn, table


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTurn:
    """One row of ``turns``; fields as in `tables.Turn`."""

    id: str
    session_id: str
    conversation_id: str
    content: str
    user_message_id: str
    message_id: str
    image_id: str
    started_at: str
    client_message_id: str | None = None
    status: str = "running"
    end_reason: str | None = None
    error: dict[str, Any] | None = None
    role_hashes: dict[str, Any] = field(default_factory=dict)
    owner: str = ""
    fence: int = 0
    lease_until: str | None = None
    resumes: int = 0
    steps: int = 0
    usage: dict[str, Any] = field(default_factory=dict)
    references: list[dict[str, Any]] = field(default_factory=list)
    timings: dict[str, Any] = field(default_factory=dict)
    ended_at: str | None = None


FINISHED = ("done", "interrupted", "failed")
_turns = table(Turn)
_NAMES = names(StoredTurn)
_TURNS = select(*columns(_turns, StoredTurn)).order_by(_turns.c.started_at, _turns.c.id)
_ACCEPT = Prepared(insert(_turns), _NAMES)
_BY_ID = _turns.c.id == bindparam("turn")
_UNFINISHED = and_(*(_turns.c.status != status for status in FINISHED))
_GET = _TURNS.where(_BY_ID)
_BY_CLIENT_MESSAGE = _TURNS.where(
    _turns.c.session_id == bindparam("session"), _turns.c.client_message_id == bindparam("client_message")
)
_QUEUED = _TURNS.where(_turns.c.status == "queued")
_QUEUED_OF = _QUEUED.where(_turns.c.session_id == bindparam("session"))


def accept(conn: Connection, turn: StoredTurn) -> None:
    """Store a new turn, running or queued.

    Raises:
        IntegrityError: the session has a turn of the same ``client_message_id`` (or the id is taken).
    """
    _ACCEPT.run(conn, values(turn, _NAMES))


def get(conn: Connection, turn_id: str) -> StoredTurn | None:
    """Return the turn, None when there is none."""
    return _first(conn, _GET, {"turn": turn_id})


def by_client_message(conn: Connection, session_id: str, client_message_id: str) -> StoredTurn | None:
    """Return the turn that this client message made, None when it made none."""
    return _first(conn, _BY_CLIENT_MESSAGE, {"session": session_id, "client_message": client_message_id})


def running(conn: Connection) -> list[StoredTurn]:
    """Return all running turns of all sessions: after a crash, those to resume."""
    return _all(conn, _TURNS.where(_turns.c.status == "running"))


def queued(conn: Connection, session_id: str | None = None) -> list[StoredTurn]:
    """Return the queued turns of a session (None: of all), oldest first."""
    return _all(conn, _QUEUED) if session_id is None else _all(conn, _QUEUED_OF, {"session": session_id})


def of_session(conn: Connection, session_id: str) -> list[StoredTurn]:
    """Return all turns of a session, oldest first."""
    return _all(conn, _TURNS.where(_turns.c.session_id == session_id))


def by_ids(conn: Connection, turn_ids: Sequence[str]) -> dict[str, StoredTurn]:
    """Return the turns that exist among these, by id."""
    return {turn.id: turn for turn in _all(conn, _TURNS.where(_turns.c.id.in_(turn_ids)))}


def start(
    conn: Connection,
    turn_id: str,
    *,
    image_id: str,
    role_hashes: Mapping[str, Any],
    owner: str,
    started_at: str,
    until: str | None = None,
) -> bool:
    """Make a queued turn a running one of ``owner``. Returns False, and changes nothing, when it is not queued."""
    changed = conn.execute(
        update(_turns)
        .where(_BY_ID, _turns.c.status == "queued")
        .values(
            status="running",
            image_id=image_id,
            role_hashes=dict(role_hashes),
            owner=owner,
            fence=_turns.c.fence + 1,
            lease_until=until,
            started_at=started_at,
        ),
        {"turn": turn_id},
    )
    return changed.rowcount == 1


_FINISH = Prepared(
    update(_turns)
    .where(_BY_ID, _UNFINISHED)
    .values(
        status=bindparam("as"),
        end_reason=bindparam("reason"),
        error=bindparam("failure", type_=_turns.c.error.type),
        references=bindparam("cited", type_=_turns.c.references.type),
        timings=bindparam("spans", type_=_turns.c.timings.type),
        usage=bindparam("spent", type_=_turns.c.usage.type),
        steps=bindparam("count"),
        ended_at=bindparam("at"),
        lease_until=None,
    ),
    ("turn", "as", "reason", "failure", "cited", "spans", "spent", "count", "at"),
)


def finish(
    conn: Connection,
    turn_id: str,
    *,
    status: str,
    end_reason: str,
    ended_at: str,
    steps: int,
    usage: Mapping[str, Any],
    error: Mapping[str, Any] | None = None,
    references: Sequence[Mapping[str, Any]] = (),
    timings: Mapping[str, Any] | None = None,
) -> bool:
    """End a turn as ``done``, ``interrupted`` or ``failed`` with its totals.

    Returns False, and changes nothing, when it has ended before (or is gone): there is one end.
    """
    changed = _FINISH.run(
        conn,
        {
            "turn": turn_id,
            "as": status,
            "reason": end_reason,
            "failure": None if error is None else dict(error),
            "cited": [dict(reference) for reference in references],
            "spans": dict(timings or {}),
            "spent": dict(usage),
            "count": steps,
            "at": ended_at,
        },
    )
    return changed == 1


def add_step_totals(conn: Connection, turn_id: str, usage: Mapping[str, int]) -> None:
    """Count one more step and add its usage, key by key.

    Raises:
        NotFound: the turn is gone.
    """
    query = select(_turns.c.steps, _turns.c.usage).where(_BY_ID).with_for_update()
    row = conn.execute(query, {"turn": turn_id}).first()
    if row is None:
        raise NotFound("turn", turn_id)
    total = {**row.usage, **{key: row.usage.get(key, 0) + count for key, count in usage.items()}}
    conn.execute(update(_turns).where(_BY_ID).values(steps=row.steps + 1, usage=total), {"turn": turn_id})


def take_lease(conn: Connection, turn_id: str, owner: str, until: str | None) -> int:
    """Make ``owner`` the one that runs the turn until that time and return its fencing number.

    The number grows with each taking; whether the former owner is dead is the caller's to know.

    Raises:
        NotFound: there is no such turn, or it has ended.
    """
    taken = conn.execute(
        update(_turns)
        .where(_BY_ID, _UNFINISHED)
        .values(owner=owner, lease_until=until, fence=_turns.c.fence + 1)
        .returning(_turns.c.fence),
        {"turn": turn_id},
    ).scalar()
    if taken is None:
        raise NotFound("turn", turn_id)
    return int(taken)


_HOLD = Prepared(
    update(_turns)
    .where(_BY_ID, _turns.c.fence == bindparam("held"), _turns.c.status == "running")
    .values(lease_until=bindparam("until")),
    ("turn", "held", "until"),
)


def hold(conn: Connection, turn_id: str, fence: int, until: str | None) -> None:
    """Extend the lease of a running turn; part of every transaction in which its owner writes.

    Raises:
        LeaseLost: the fencing number has moved on, or the turn has ended.
    """
    if _HOLD.run(conn, {"turn": turn_id, "held": fence, "until": until}) != 1:
        raise LeaseLost(turn_id)


def release(conn: Connection, turn_id: str) -> None:
    """Take a turn's lease back from an owner that is dead: who writes under its number is refused."""
    conn.execute(
        update(_turns).where(_BY_ID).values(owner="", lease_until=None, fence=_turns.c.fence + 1), {"turn": turn_id}
    )


def resumed(conn: Connection, turn_id: str) -> int:
    """Count one more resume of the turn and return how many there were, this one included.

    Raises:
        NotFound: there is no such turn.
    """
    query = update(_turns).where(_BY_ID).values(resumes=_turns.c.resumes + 1).returning(_turns.c.resumes)
    count = conn.execute(query, {"turn": turn_id}).scalar()
    if count is None:
        raise NotFound("turn", turn_id)
    return int(count)


def _first(conn: Connection, query: Select[Any], parameters: Mapping[str, str]) -> StoredTurn | None:
    row = conn.execute(query, parameters).mappings().first()
    return None if row is None else StoredTurn(**row)


def _all(conn: Connection, query: Select[Any], parameters: Mapping[str, str] | None = None) -> list[StoredTurn]:
    return [StoredTurn(**row) for row in conn.execute(query, parameters or {}).mappings()]
