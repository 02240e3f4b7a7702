"""The chain of the audit log: a changed, removed or inserted row is detected."""

from collections.abc import Callable

import pytest
from sqlalchemy import Connection, text

from agentic_rag.base.errors import InvalidInput
from agentic_rag.store import audit
from agentic_rag.store.audit import Entry, append, check
from agentic_rag.store.database import Database

pytestmark = pytest.mark.attack(kind="web")


def fill(conn: Connection) -> None:
    for number in range(1, 8):
        append(conn, Entry("ann", "domain.update", f"dom_{number}", details={"settings": ["tone"], "n": number}))


async def test_an_unmodified_audit_chain_is_valid(database: Database) -> None:
    await database.write(fill)
    verdict = await database.read(check)
    assert (verdict.rows, verdict.problems) == (7, ())
    assert await database.read(lambda conn: check(conn, verdict.head)) == verdict


def forge_appended(conn: Connection) -> None:
    """Insert a row with a valid hash, without moving the head."""
    (last_row,) = audit.page(conn, 1)
    forged = last_row.replace(seq=last_row.seq + 1, previous=last_row.hash, actor="mallory")
    forged.replace(hash=audit.digest(forged)).insert(conn)


def forge_middle(conn: Connection) -> None:
    """Replace a row by one with a valid hash of its own."""
    row = next(row for row in audit.page(conn, 10) if row.seq == 4)
    forged = row.replace(actor="mallory")
    conn.execute(text("DELETE FROM audit WHERE seq = 4"))
    forged.replace(hash=audit.digest(forged)).insert(conn)


def statement(sql: str) -> Callable[[Connection], None]:
    def run(conn: Connection) -> None:
        conn.execute(text(sql))

    return run


TAMPERINGS = {
    "who": statement("UPDATE audit SET actor = 'bob' WHERE seq = 3"),
    "what": statement("UPDATE audit SET action = 'domain.delete' WHERE seq = 3"),
    "to what": statement("UPDATE audit SET target = '' WHERE seq = 1"),
    "how it ended": statement("UPDATE audit SET outcome = 'refused' WHERE seq = 7"),
    "when": statement("UPDATE audit SET at = '2020-01-01T00:00:00.000Z' WHERE seq = 3"),
    "how many": statement("UPDATE audit SET count = 2 WHERE seq = 3"),
    "details": statement("UPDATE audit SET details = '{}' WHERE seq = 3"),
    "hash": statement("UPDATE audit SET hash = previous WHERE seq = 3"),
    "link": statement("UPDATE audit SET previous = '' WHERE seq = 3"),
    "first removed": statement("DELETE FROM audit WHERE seq = 1"),
    "middle removed": statement("DELETE FROM audit WHERE seq = 4"),
    "last removed": statement("DELETE FROM audit WHERE seq = 7"),
    "all removed": statement("DELETE FROM audit"),
    "moved": statement("UPDATE audit SET seq = 9 WHERE seq = 7"),
    "swapped": statement("UPDATE audit SET seq = 11 - seq WHERE seq = 5"),
    "inserted before": statement(
        "INSERT INTO audit SELECT 0, at, actor, action, target, outcome, details, count, '', hash FROM audit "
        "WHERE seq = 1"
    ),
    "appended": forge_appended,
    "forged": forge_middle,
    "head": statement("UPDATE audit_head SET seq = 6"),
}


@pytest.mark.parametrize("kind", TAMPERINGS)
async def test_tampering_with_the_audit_chain_is_detected(sqlite: Database, kind: str) -> None:
    await sqlite.write(fill)
    if kind == "swapped":
        await sqlite.write(statement("DELETE FROM audit WHERE seq = 6"))
    await sqlite.write(TAMPERINGS[kind])
    assert (await sqlite.read(check)).problems


async def test_a_rewritten_audit_chain_is_detected_by_an_earlier_head(sqlite: Database) -> None:
    await sqlite.write(fill)
    earlier_head = (await sqlite.read(check)).head

    def rewrite(conn: Connection) -> None:
        for name in ("audit", "audit_head"):
            conn.execute(text(f"DELETE FROM {name}"))
        for number in range(8):
            append(conn, Entry("ann", "domain.update", f"dom_{number}"))

    await sqlite.write(rewrite)
    assert (await sqlite.read(check)).problems == ()
    assert (await sqlite.read(lambda conn: check(conn, earlier_head))).problems


async def test_a_change_that_is_undone_leaves_no_row(database: Database) -> None:
    def change(conn: Connection) -> None:
        append(conn, Entry("ann", "domain.update"))
        raise InvalidInput("x", "no")

    with pytest.raises(InvalidInput):
        await database.write(change)
    assert (await database.read(check)).rows == 0


async def test_odd_text_is_kept_and_bounded(database: Database) -> None:
    odd_text = "\ud800\x00\n" + "x" * 10_000
    await database.write(lambda conn: append(conn, Entry(odd_text, odd_text, odd_text, details={"name": "\ud800 ü"})))
    (row,) = await database.read(lambda conn: audit.page(conn, 5))
    assert len(row.target) == audit.MAX_TEXT
    assert (await database.read(check)).problems == ()
