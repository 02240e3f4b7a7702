"""The writes of a turn to a SQLite file: statements and pages of its acceptance and of its end, counted."""

from pathlib import Path

import pytest

from agentic_rag.store.statements import sqlite_of
from agentic_rag.testing.steps import say
from tests.databases import POSTGRESQL

from .rig import Rig

pytestmark = pytest.mark.skipif(POSTGRESQL, reason="it counts what SQLite does")

TURNS = 6
WAL_HEAD, FRAME_HEAD, PAGE = 32, 24, 4096


class Transactions:
    """The statements of each transaction of a writer, as SQLite runs them, and the pages that it changed."""

    def __init__(self, wal: Path) -> None:
        self._wal = wal
        self._running: list[str] = []
        self.done: list[tuple[list[str], int]] = []

    def note(self, statement: str) -> None:
        if statement.startswith("BEGIN"):
            self.finish()
        # The full-text index and its trigger run inside our statement. SQLite names that statement for each of them.
        if statement.startswith("--") or (
            statement.startswith("INSERT INTO message_texts") and statement in self._running
        ):
            return
        self._running.append(statement)

    def finish(self) -> None:
        """Record the pages written by the previous transaction."""
        self.done.append((self._running, self._count()))
        self._running = []

    def _count(self) -> int:
        """Return the number of pages in the write-ahead log since its last restart."""
        data = self._wal.read_bytes()
        salt = data[16:24]
        frames = range(WAL_HEAD, len(data), FRAME_HEAD + PAGE)
        return sum(data[start + 8 : start + 16] == salt for start in frames)

    def of(self, mark: str) -> tuple[list[int], list[int]]:
        """Return the numbers of statements and of pages of the transactions with a statement that contains this."""
        statements, pages = [], []
        for (_, before), (run, after) in zip(self.done, self.done[1:], strict=False):
            if any(mark in statement for statement in run):
                statements.append(len(run))
                pages.append(after - before)
        return statements, pages


async def test_a_turns_transactions_stay_small(tmp_path: Path) -> None:
    async with Rig(tmp_path, *[say("Yes.")] * (TURNS + 1)) as rig:
        conversation = await rig.conversation()
        await rig.say(conversation, "The first message gives the title.")
        transactions = Transactions(rig.settings.data / "agentic-rag.db-wal")
        await rig.application.database.write(lambda conn: sqlite_of(conn).set_trace_callback(transactions.note))
        for number in range(TURNS):
            await rig.say(conversation, f"Question {number}?")
        await rig.application.database.write(lambda conn: sqlite_of(conn).set_trace_callback(None))
        transactions.finish()
    # The end reads the answer and adds question and answer to the full-text index: three statements, and its pages.
    for mark, most_statements, most_pages in (("INSERT INTO turns", 9, 10), ("SET status='done'", 13, 17)):
        statements, pages = transactions.of(mark)
        assert len(statements) == TURNS
        assert min(statements) <= most_statements  # a journal write before an end adds one
        assert min(pages) <= most_pages  # a full page splits into several
