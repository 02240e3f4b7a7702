"""Disk full, index down: a typed reason, no partial state, and work continues after the fault."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import anyio

from agentic_rag.base.errors import StorageFull
from agentic_rag.documents.ingestion import Ingestion
from mcp_servers.retriever.errors import IndexUnavailable
from tests.ingestion.test_crash import text_of
from tests.server.rig import Rig
from tests.waiting import pause

TEXT = b"# Holidays\n\nEveryone has twenty-five days of paid leave a year.\n"


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    """Limits every file of this process to ``room`` bytes: the kernel's error is that of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_an_upload_onto_a_full_disk_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        path = f"/api/domains/{domain}/documents"
        with full_disk(600_000):
            refusal = await rig.refused("POST", path, files={"f": ("big.txt", b"word " * 400_000)})
        assert refusal[:2] == (507, "STORAGE_FULL")
        assert (await rig.ok("GET", path))["items"] == []
        assert list((rig.settings.data / "incoming").iterdir()) == []
        assert list((rig.settings.workspaces / domain / "documents").iterdir()) == []
        assert (await rig.upload(domain, "a.md", TEXT))["status"] == "indexed"


class Weather:
    """A failpoint that raises the error of a broken part while it is ``bad``."""

    def __init__(self, place: str, error: Exception) -> None:
        self.place = place
        self.error = error
        self.bad = True

    def __call__(self, name: str) -> None:
        if self.bad and name == self.place:
            raise self.error


def ingestion_of(rig: Rig) -> Ingestion:
    return rig.application.services.documents.knowledge.ingestion


async def test_a_document_that_arrives_without_an_index_is_ingested_later(tmp_path: Path) -> None:
    fault = Weather("ingest.upserted", IndexUnavailable("store chunks", "connection refused"))
    async with Rig(tmp_path, failpoint=fault) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "cars.md", text_of(100))
        assert document["status"] == "failed"
        assert document["error"]["code"] == "INDEX_UNAVAILABLE"
        assert "connection refused" in document["error"]["message"]
        search = f"/api/domains/{domain}/documents/search"
        assert (await rig.ok("POST", search, {"query": "car"}))["hits"] == [], "half a document is none"
        fault.bad = False
        await ingestion_of(rig).sweep()
        ingested = await rig.settled(domain, document["id"])
        assert (ingested["status"], ingested["chunkCount"]) == ("indexed", 100)


async def test_a_document_refused_by_a_full_disk_is_ingested_later(tmp_path: Path) -> None:
    weather = Weather("ingest.stored", StorageFull("no space left on device"))
    async with Rig(tmp_path, failpoint=weather) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "a.md", TEXT)
        assert document["error"]["code"] == "STORAGE_FULL"
        weather.bad = False
        await ingestion_of(rig).sweep()
        assert (await rig.settled(domain, document["id"]))["status"] == "indexed"


async def test_a_search_of_an_unreachable_index_server_is_reported_to_admin_and_health(tmp_path: Path) -> None:
    async with Rig(tmp_path, qdrant_url="http://127.0.0.1:9") as rig:
        rig.application.begin()
        domain = await rig.domain()
        document = await rig.upload(domain, "a.md", TEXT)
        assert document["error"]["code"] == "INDEX_UNAVAILABLE"
        search = f"/api/domains/{domain}/documents/search"
        assert (await rig.refused("POST", search, {"query": "paid leave"}))[:2] == (503, "INDEX_UNAVAILABLE")
        with anyio.fail_after(240):
            checks = count()
            while (health := await rig.ok("GET", "/api/health"))["index"]["state"] != "down":
                await pause(next(checks))
        assert health["index"]["name"] == "qdrant"
        assert health["index"]["reason"]
