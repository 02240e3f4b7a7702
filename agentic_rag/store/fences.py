"""Fencing checks for many turns at once: which turns still belong to their owners.

A SQLite file has a single writing connection. A check by that connection stays valid until the connection itself
changes a turn's fencing number or deletes a turn. Temporary triggers on that connection detect both. A group of the run
log therefore checks only the turns that have joined since the last one. In PostgreSQL each transaction locks the turns
that it checks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from agentic_rag.base.ids import TurnId
from agentic_rag.base.json_form import to_text
from agentic_rag.store.statements import run_by_sqlite
from agentic_rag.store.turns import is_held

_FENCES = "SELECT id, fence FROM turns WHERE id IN (SELECT value FROM json_each(?))"
_MARK = "SELECT mark FROM temp.fence_mark"
_MOVE = "BEGIN UPDATE fence_mark SET mark = random(); END"
_WATCH = (
    "CREATE TEMP TABLE fence_mark AS SELECT random() AS mark",
    f"CREATE TEMP TRIGGER fence_moved AFTER UPDATE OF fence ON main.turns {_MOVE}",
    f"CREATE TEMP TRIGGER fence_deleted AFTER DELETE ON main.turns {_MOVE}",
)
"""A rollback undoes the trigger's mark together with the change. Marks are random, so that no mark is ever reused."""
_PROOF = "agentic_rag.fences"
MOST = 4096
"""Number of turns in a proof; a larger proof is discarded and rebuilt."""


@dataclass(slots=True)
class _Proof:
    """The fencing numbers that a connection has verified, valid while the mark is unchanged."""

    mark: int
    held: dict[str, int] = field(default_factory=dict)


def list_held(conn: Connection, fences: Mapping[TurnId, int]) -> set[TurnId]:
    """Return the turns whose fencing numbers are still current; see `turns.is_held`."""
    if conn.dialect.name != "sqlite":
        # the same order everywhere, or two transactions that lock several turns could deadlock
        return {turn_id for turn_id in sorted(fences) if is_held(conn, turn_id, fences[turn_id])}
    info: dict[Any, Any] = conn.info
    mark, proof = _mark(conn), info.get(_PROOF)
    if proof is None or proof.mark != mark or len(proof.held) > MOST:
        proof = info[_PROOF] = _Proof(mark)
    proven = proof.held
    new = [turn_id for turn_id, fence in fences.items() if proven.get(turn_id) != fence]
    if not new:
        return set(fences)
    proven.update(run_by_sqlite(conn, _FENCES, [to_text(new)]).fetchall())
    return {turn_id for turn_id, fence in fences.items() if proven.get(turn_id) == fence}


def _mark(conn: Connection) -> int:
    try:
        return int(run_by_sqlite(conn, _MARK).fetchone()[0])
    except OperationalError as exc:
        if "no such table" not in str(exc.orig):
            raise
        # the table does not exist yet, or its transaction was rolled back
        for statement in _WATCH:
            run_by_sqlite(conn, statement)
        return int(run_by_sqlite(conn, _MARK).fetchone()[0])
