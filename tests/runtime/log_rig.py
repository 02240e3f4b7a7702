"""A running log with its journal, but without a turn, for tests of its writers and readers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from agentic_rag.base.events import Done, Usage
from agentic_rag.base.ids import ConversationId, TurnId
from agentic_rag.runtime.log.reader import LogReader
from agentic_rag.runtime.log.runlog import Journal, RunLog
from agentic_rag.store.database import Database
from tests.databases import database_at
from tests.store.records import turn

DONE = Done("msg_a", Usage(1, 0, 0, 1), "end_turn", (), "scripted")
PATIENCE = 240


class Desk:
    """A running log with its journal, and its readers."""

    def __init__(self, database: Database, journal: Journal) -> None:
        self.database = database
        self.journal = journal
        self.log = RunLog(journal, ConversationId("conv_test"), TurnId("turn_test"))
        journal.add(self.log)

    def reader(self, after: int = 0) -> LogReader:
        return LogReader(self.journal, TurnId("turn_test"), after)

    async def end(self) -> None:
        await self.log.commit([DONE], lambda conn: None)
        self.log.close()


@asynccontextmanager
async def open_desk(folder: Path) -> AsyncIterator[Desk]:
    database = await Database.open(database_at(folder / "test.db"))
    try:
        async with anyio.create_task_group() as tasks:
            with anyio.fail_after(PATIENCE):
                for turn_id in ("turn_test", "turn_other"):  # only the holder of a turn's lease may store events
                    row = turn(turn_id, fence=1, conversation_id=ConversationId("conv_test"))
                    await database.write(row.insert)
                desk = Desk(database, Journal(database))
                tasks.start_soon(desk.journal.run)
                yield desk
            tasks.cancel_scope.cancel()
    finally:
        await database.aclose()
