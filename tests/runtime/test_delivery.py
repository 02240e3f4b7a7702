"""The events that a run log delivers before they are journalled, and those that it does not."""

from pathlib import Path

from agentic_rag.base.events import IterationStart, Text
from agentic_rag.base.ids import ConversationId, TurnId
from agentic_rag.runtime.log.runlog import MAX_UNJOURNALLED, Journal, RunLog
from agentic_rag.store.database import Database
from tests.databases import database_at


async def test_deltas_are_delivered_at_once_and_other_events_when_durable(tmp_path: Path) -> None:
    database = await Database.open(database_at(tmp_path / "test.db"))
    try:
        log = RunLog(Journal(database), ConversationId("conv_test"), TurnId("turn_test"))
        for body in (Text("one"), IterationStart(2), Text("two")):
            log.append(body)
        assert [event.type for event in log.since(0) or ()] == ["text"]
        log.take_batch()
        log.confirm_batch()
        assert [event.type for event in log.since(0) or ()] == ["text", "iteration_start", "text"]
        for _ in range(MAX_UNJOURNALLED + 10):
            log.append(Text("more"))
        assert log.visible - log.journalled == MAX_UNJOURNALLED
    finally:
        await database.aclose()
