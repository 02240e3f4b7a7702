"""The check for lost leases: many turns in one query, and no query while nothing has changed."""

from functools import partial

import pytest
from sqlalchemy import Connection

from agentic_rag.base.ids import TurnId
from agentic_rag.store import turns
from agentic_rag.store.database import Database
from agentic_rag.store.fences import list_held
from agentic_rag.store.statements import sqlite_of
from tests.databases import POSTGRESQL
from tests.store.records import turn

NAMES = [TurnId(f"turn_{number}") for number in range(4)]
FIRST = dict.fromkeys(NAMES, 1)


async def begin(database: Database) -> None:
    for name in NAMES:
        await database.write(turn(name, fence=1).insert)
    assert await database.write(partial(list_held, fences=FIRST)) == set(NAMES)


def delete(conn: Connection, turn_id: TurnId) -> None:
    conn.execute(turns.TURNS.delete().where(turns.TURNS.c.id == turn_id))


async def test_stale_numbers_and_deleted_turns_are_ignored(database: Database) -> None:
    await begin(database)
    await database.write(partial(turns.release, turn_id=NAMES[0]))
    await database.write(partial(delete, turn_id=NAMES[1]))
    assert await database.write(partial(list_held, fences=FIRST)) == set(NAMES[2:])
    assert await database.write(partial(list_held, fences={**FIRST, NAMES[0]: 2})) == {NAMES[0], *NAMES[2:]}
    assert await database.write(partial(list_held, fences={TurnId("turn_9"): 1})) == set()


async def test_moves_in_a_transaction_count_only_if_it_commits(database: Database) -> None:
    await begin(database)

    def move(conn: Connection, fail: bool) -> set[TurnId]:
        turns.release(conn, NAMES[0])
        turn_ids = list_held(conn, FIRST)
        if fail:
            raise LookupError
        return turn_ids

    with pytest.raises(LookupError):
        await database.write(partial(move, fail=True))
    assert await database.write(partial(list_held, fences=FIRST)) == set(NAMES)
    assert await database.write(partial(move, fail=False)) == set(NAMES[1:])
    assert await database.write(partial(list_held, fences=FIRST)) == set(NAMES[1:])


async def test_an_interrupted_first_proof_is_repeated(database: Database) -> None:
    def fail(conn: Connection) -> None:
        list_held(conn, FIRST)
        raise LookupError

    with pytest.raises(LookupError):
        await database.write(fail)
    await begin(database)


@pytest.mark.skipif(POSTGRESQL, reason="it counts what SQLite does")
async def test_only_new_values_are_requested(sqlite: Database) -> None:
    await begin(sqlite)
    statements: list[str] = []

    def list_traced(conn: Connection, fences: dict[TurnId, int]) -> set[TurnId]:
        sqlite_of(conn).set_trace_callback(statements.append)
        try:
            return list_held(conn, fences)
        finally:
            sqlite_of(conn).set_trace_callback(None)

    assert await sqlite.write(partial(list_traced, fences=FIRST)) == set(NAMES)
    assert len(statements) == 1
    later_turn = TurnId("turn_later")
    await sqlite.write(turn(later_turn, fence=1).insert)
    assert await sqlite.write(partial(list_traced, fences={**FIRST, later_turn: 1})) == {*NAMES, later_turn}
    assert "turn_later" in statements[-1]
    assert "turn_1" not in statements[-1]
