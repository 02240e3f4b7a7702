"""A database that another process locks, or that is away for a while: refusals say so, and the server survives."""

import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from agentic_rag.access.document_views import EVERY_DOCUMENT
from agentic_rag.base.errors import StorageUnavailable
from tests.server.rig import Rig

TEXT = b"# Holidays\n\nEveryone has twenty-five days of paid leave a year.\n"


class Backup:
    """Another process's lock on the database of a rig, from the moment that ingestion reaches ``place``."""

    def __init__(self, folder: Path, place: str) -> None:
        self.place = place
        self.path = folder / "data" / "agentic-rag.db"
        self.held: sqlite3.Connection | None = None

    def __call__(self, name: str) -> None:
        if name == self.place and self.held is None:
            self.held = sqlite3.connect(self.path, isolation_level=None)
            self.held.execute("BEGIN IMMEDIATE")


@pytest.mark.sqlite("locks the file")
@pytest.mark.nightly("waits for the lock many times; test_full_disk.py refuses in the same way every time")
async def test_a_server_survives_a_database_lock_and_continues_with_its_documents(tmp_path: Path) -> None:
    backup = Backup(tmp_path, "ingest.parsing")
    async with Rig(tmp_path, failpoint=backup) as rig:
        rig.application.begin()
        domain = await rig.domain()
        ingestion = rig.application.services.documents.knowledge.ingestion
        path = f"/api/domains/{domain}/documents"
        upload = await rig.ok("POST", path, files={"file": ("a.md", TEXT)})
        job = ingestion._jobs[upload["items"][0]["id"]]
        with anyio.fail_after(240):
            await job.ended.wait()
        assert backup.held is not None
        with closing(backup.held):
            refusal = await rig.refused("POST", "/api/conversations", {"domainId": domain})
            assert refusal[:2] == (503, "STORAGE_UNAVAILABLE")
            assert "Try again" in refusal[2]
            assert (await rig.ok("GET", path))["items"][0]["name"] == "a.md", "reading goes on"
        await rig.conversation(domain)
        document = upload["items"][0]["id"]
        assert await ingestion.requeue(document)
        ingestion.submit(await rig.application.services.documents.get(domain, document, EVERY_DOCUMENT))
        assert (await rig.settled(domain, document))["status"] == "indexed"


async def test_failed_background_work_does_not_stop_the_server(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        ends = [anyio.Event(), anyio.Event()]

        async def fail_storage() -> None:
            ends[0].set()
            raise StorageUnavailable("gone")

        async def fail_unexpectedly() -> None:
            ends[1].set()
            raise RuntimeError("nobody thought of this")

        rig.application.workers.start("a test", fail_storage)
        rig.application.workers.repeat("a test", fail_unexpectedly, 3600)
        with anyio.fail_after(240):
            for end in ends:
                await end.wait()
        assert (await rig.http.get("/api/health")).status_code == 200
