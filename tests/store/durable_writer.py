"""A program for `test_crash` that writes forever and prints the acknowledged writes."""

import asyncio
import sys

from sqlalchemy import Connection

from agentic_rag.base.ids import SessionId
from agentic_rag.store import run_events, sessions
from agentic_rag.store.database import Database
from agentic_rag.store.sessions import SessionLabels

from .records import AT, message


async def write(url: str, session_id: str) -> None:
    database = await Database.open(url)

    def begin(conn: Connection) -> int:
        session = sessions.get(conn, SessionId(session_id)) or sessions.create(
            conn, SessionId(session_id), SessionLabels(), created_at=AT
        )
        return session.last_seq

    seq = await database.write(begin, durable=True)
    while True:
        seq += 1

        def step(conn: Connection, seq: int = seq) -> None:
            sessions.append_message(conn, message(seq, "x" * 2000, session_id=session_id))
            run_events.append(conn, [run_events.EventBatch(session_id, 2 * seq, [b"y" * 500, b"z" * 500])])

        await database.write(step, durable=True)
        sys.stdout.write(f"{seq}\n")
        sys.stdout.flush()


def main() -> None:
    """Write until the process is killed."""
    asyncio.run(write(*sys.argv[1:]))
