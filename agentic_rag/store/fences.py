"""Which turns are still their owners', asked for many of them at once.

Owns that proof. In a SQLite file one connection writes, so what it has found out stays true until it gives a turn
another fencing number, or deletes one, itself; triggers of its own tell of that, whoever asks for it. So a group of
the run log asks for the turns that have joined since the last one alone. In PostgreSQL each transaction locks what it
proves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from agentic_rag.ids import TurnId
from agentic_rag.json_form import to_text
from agentic_rag.store.records import run_by_sqlite
from agentic_rag.store.turns import is_held

_FENCES = "SELECT id, fence FROM turns WHERE id IN (SELECT value FROM json_each(?))"
_MARK = "SELECT mark FROM temp.fence_mark"
_MOVE = "BEGIN UPDATE fence_mark SET mark = random(); END"
_WATCH = (
    "CREATE TEMP TABLE fence_mark AS SELECT random() AS mark",
    f"CREATE TEMP TRIGGER fence_moved AFTER UPDATE OF fence ON main.turns {_MOVE}",
    f"CREATE TEMP TRIGGER fence_deleted AFTER DELETE ON main.turns {_MOVE}",
)
"""Undone with the transaction, as what they tell of is. A mark never comes again, so none is taken for another."""
_PROOF = "agentic_rag.fences"
MOST = 4096
"""Turns of a proof; beyond that it begins anew."""


@dataclass(slots=True)
class _Proof:
    """What a connection has found as long as its mark is this one: turns with their fencing numbers."""

    mark: int
    held: dict[str, int] = field(default_factory=dict)


def list_held(conn: Connection, fences: Mapping[TurnId, int]) -> set[TurnId]:
    """Return those of these turns whose fencing numbers still count; see `turns.is_held`."""
    if conn.dialect.name != "sqlite":
        # in one order everywhere, or two transactions that lock several turns could wait for each other
        return {turn_id for turn_id in sorted(fences) if is_held(conn, turn_id, fences[turn_id])}
    info: dict[Any, Any] = conn.info
    mark, proof = _mark(conn), info.get(_PROOF)
    if proof is None or proof.mark != mark or len(proof.held) > MOST:
        proof = info[_PROOF] = _Proof(mark)
    held = proof.held
    new = [turn_id for turn_id, fence in fences.items() if held.get(turn_id) != fence]
    if not new:
        return set(fences)
    held.update(run_by_sqlite(conn, _FENCES, [to_text(new)]).fetchall())
    return {turn_id for turn_id, fence in fences.items() if held.get(turn_id) == fence}


def _mark(conn: Connection) -> int:
    try:
        return int(run_by_sqlite(conn, _MARK).fetchone()[0])
    except OperationalError as exc:
        if "no such table" not in str(exc.orig):
            raise
        # there is none yet, or the transaction that made it was undone
        for statement in _WATCH:
            run_by_sqlite(conn, statement)
        return int(run_by_sqlite(conn, _MARK).fetchone()[0])
