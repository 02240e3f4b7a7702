"""Turns with the same prompt share one stored prompt."""

import anyio
import asyncpg

from agentic_rag.store import prompts
from agentic_rag.store.database import Database
from agentic_rag.store.prompts import PromptRecord
from tests.store.conftest import needs_postgresql
from tests.store.test_leases import store
from tests.waiting import pause

from .records import AT

__all__ = ["store"]
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


@needs_postgresql
async def test_a_prompt_stored_by_two_turns_at_once_is_stored_once(store: str) -> None:
    prompt = PromptRecord(id="prompt_same", system=[{"type": "text", "text": "Be brief."}], tools=[], created_at=AT)
    database, other_connection = await Database.open(store), await asyncpg.connect(store)
    try:
        transaction = other_connection.transaction()
        await transaction.start()
        values = (prompt.id, '[{"type": "text", "text": "Be brief."}]', "[]", AT)
        await other_connection.execute(
            "INSERT INTO prompts (id, system, tools, created_at) VALUES ($1, $2, $3, $4)", *values
        )
        with anyio.fail_after(240):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(database.write, lambda conn: prompts.put(conn, prompt))
                while not await other_connection.fetchval(WAITING):
                    await pause()
                await transaction.commit()
        assert await database.read(lambda conn: prompts.get(conn, prompt.id)) == prompt
    finally:
        await other_connection.close()
        await database.aclose()
