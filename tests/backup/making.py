"""Create a data folder with content of every kind, and read one as an outside program would."""

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio

from agentic_rag.access.users import LOCAL
from agentic_rag.base.ids import ConversationId
from agentic_rag.store import payloads
from agentic_rag.store.clock import new_id
from agentic_rag.store.payloads import PayloadFiles
from agentic_rag.testing.steps import say
from mcp_servers.promptx.memory import Memory, memory_folder
from mcp_servers.promptx.new_engrams import NewEngram
from tests.server.rig import Rig

DOCUMENT = b"# Pump\n\nThe pump holds 3 litres.\n"
SECRET = "swordfish-of-the-backup-test"
ANSWER = "It holds three litres, and \u00fcber \u4e2d\u6587 too."


@contextmanager
def closed_files() -> Iterator[None]:
    """Close the test's files to other users, as the server does."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


async def fill(folder: Path, **settings: Any) -> Path:
    """Create a data folder with a domain, documents, memories, a conversation and more, and return it."""
    async with Rig(folder, say(ANSWER), **settings) as rig:
        rig.application.begin()
        domain = await rig.domain()
        await rig.upload(domain, "pump.md", DOCUMENT)
        await rig.ok("PUT", f"/api/domains/{domain}/secrets/TOKEN", {"value": SECRET})
        conversation = await rig.conversation(domain)
        await rig.say(conversation, "How much does the pump hold?")
        record = await rig.application.services.conversations.get(LOCAL, ConversationId(conversation))
        ref, data = new_id("ref"), b"a large result " * 2000
        await PayloadFiles(rig.settings.data / "payloads").write(ref, data)
        payload = payloads.record_of(ref, record.session_id, "text/plain", data)
        await rig.application.database.write(lambda conn: payloads.put(conn, payload))
        await anyio.to_thread.run_sync(_write_files, rig.settings.data, domain)
        return rig.settings.data


def _write_files(data: Path, domain: str) -> None:
    workspace = data / "workspaces" / domain
    (workspace / "files" / "notes \u00fc.txt").write_bytes(b"what a tool wrote")
    (workspace / ".promptx" / "resource" / "law.role.md").write_bytes(b"<role><personality>Calm.</personality></role>")
    memory = Memory(memory_folder(workspace, "user", LOCAL.id, "law"))
    memory.remember([NewEngram("The pump was new in 2020.", "pump 2020", 0.9, "ATOMIC")], 1)
    memory.close()
    (data / "mcp").mkdir(exist_ok=True)
    (data / "mcp" / "allowed.json").write_text('{"entries": []}')


def read_rows(database: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return all rows of a SQLite file by table, read by SQLite alone."""
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: sorted(connection.execute(f'SELECT * FROM "{name}"'), key=repr) for name in names}


def read_files(data: Path) -> dict[str, str]:
    """Return the digests of all files that a backup contains, by name. Memories are represented by their rows."""
    digests = {}
    for place in ("workspaces", "payloads", "mcp"):
        for path in sorted((data / place).rglob("*")):
            name = str(path.relative_to(data))
            if not path.is_file() or path.name.startswith(".engrams.lock") or path.name.endswith(("-wal", "-shm")):
                continue
            content = repr(read_rows(path)).encode() if path.name == "engrams.db" else path.read_bytes()
            digests[name] = hashlib.sha256(content).hexdigest()
    return digests
