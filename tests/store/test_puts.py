"""Records that several servers put in place of the same row at once, on each database."""

from collections.abc import Callable

import anyio
import pytest
import sqlalchemy as sa
from sqlalchemy import Connection, Table

from agentic_rag.base.ids import ConversationId, MessageId, SessionId
from agentic_rag.store import budgets, context_lines, secrets, shares
from agentic_rag.store.budgets import BUDGETS
from agentic_rag.store.context_lines import LINES, ContextLineRecord
from agentic_rag.store.database import Database
from agentic_rag.store.secrets import SECRETS, SecretRecord
from agentic_rag.store.shares import SHARES, ShareRecord
from tests.store.test_budgets import make_budget

COUNT = 8
TIME = "2026-01-01T00:00:00Z"


def put_share(conn: Connection, number: int) -> None:
    ids = SessionId("sess_a"), ConversationId("conv_a"), MessageId("msg_a")
    session_id, conversation_id, leaf = ids
    share = ShareRecord(
        token_hash=f"hash {number}",
        session_id=session_id,
        conversation_id=conversation_id,
        leaf_message_id=leaf,
        created_at=TIME,
    )
    shares.put(conn, share)


def put_secret(conn: Connection, number: int) -> None:
    secrets.put(conn, SecretRecord(domain_id="dom_a", name="TOKEN", sealed=b"%d" % number, updated_at=TIME))


def put_budget(conn: Connection, number: int) -> None:
    budgets.put(conn, make_budget(hard=str(number)))


def put_line(conn: Connection, number: int) -> None:
    line = ContextLineRecord(
        document_id="doc_a", digest="d", model="m", domain_id="dom_a", line=f"line {number}", updated_at=TIME
    )
    context_lines.put(conn, [line])


@pytest.mark.parametrize(
    ("put", "table"), [(put_share, SHARES), (put_secret, SECRETS), (put_budget, BUDGETS), (put_line, LINES)]
)
async def test_of_records_put_at_once_one_is_stored(
    database: Database, put: Callable[[Connection, int], None], table: Table
) -> None:
    async def write(number: int) -> None:
        await database.write(lambda conn: put(conn, number))

    async with anyio.create_task_group() as tasks:
        for number in range(COUNT):
            tasks.start_soon(write, number)
    assert await database.read(lambda conn: conn.execute(sa.select(sa.func.count()).select_from(table)).scalar()) == 1
