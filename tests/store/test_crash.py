"""A process killed in the middle of its writes loses nothing acknowledged, and leaves no partial write."""

import os
import subprocess

import anyio
from sqlalchemy import Connection

from agentic_rag.base.ids import SessionId, TurnId
from agentic_rag.store import run_events, sessions
from agentic_rag.store.database import Database
from tests.programs import ROOT, Program


def _write_and_kill(url: str, session_id: str, lines: int) -> int:
    """Let the writer acknowledge this number of writes, kill it, and return the last acknowledged one."""
    program = "tests.store.durable_writer"
    with Program([url, session_id], module=program, cwd=ROOT, env=os.environ, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        line = ""
        for _ in range(lines):
            line = writer.stdout.readline()
            assert line, "the writer ended by itself"
        writer.kill()
        lines_left = [line, *writer.stdout.readlines()]
    return max(int(text) for text in lines_left if text.endswith("\n"))


async def _count_stored(url: str, session_id: str) -> tuple[int, int, int]:
    def counts(conn: Connection) -> tuple[int, int, int]:
        session = sessions.get(conn, SessionId(session_id))
        assert session is not None
        return (
            session.last_seq,
            len(sessions.transcript(conn, SessionId(session_id))),
            run_events.last_seq(conn, TurnId(session_id)),
        )

    database = await Database.open(url)
    try:
        return await database.read(counts)
    finally:
        await database.aclose()


def test_kill_9_loses_no_acknowledged_write_and_leaves_no_partial_one(url: str) -> None:
    for lines in (1, 40, 7, 150):
        acknowledged = _write_and_kill(url, "sess_killed", lines)
        last_seq, messages, last_event = anyio.run(_count_stored, url, "sess_killed")
        assert last_seq >= acknowledged
        assert (messages, last_event) == (last_seq, 2 * last_seq + 1)
