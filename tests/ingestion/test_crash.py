"""A process killed between an upload and the exchange of the index leaves each chunk exactly once after a restart."""

from pathlib import Path

import pytest

from agentic_rag.testing.failpoints import EXIT_CODE, VARIABLE
from tests.e2e.serving import environment
from tests.programs import run_victim
from tests.retriever.tiny_model import write_model
from tests.server.rig import Rig

PLACES = (
    *("upload.placed", "upload.recorded"),
    *("ingest.claimed", "ingest.parsing", "ingest.chunking", "ingest.cleared"),
    *("ingest.batch", "ingest.upserted", "ingest.upserted:2", "ingest.stored", "ingest.indexed"),
    *("dense.embedded", "dense.stored", "dense.embedded:3"),
    *("reindex.begun", "reindex.document", "reindex.filled", "reindex.swapped"),
)
"""All places between an upload and the exchange of the index."""
ALWAYS = ("ingest.batch", "reindex.document")
"""One place of an upload and one of a rebuild."""


def text_of(chunks: int) -> bytes:
    sections = (f"# Part {n}\n\nThe car number {n} has paid leave of {n} days.\n" for n in range(chunks))
    return "\n".join(sections).encode()


@pytest.mark.sqlite("the killed server has a file")
@pytest.mark.parametrize(
    "place",
    [
        *ALWAYS,
        *(
            pytest.param(place, marks=pytest.mark.nightly("every place; one of each runs every time"))
            for place in PLACES
            if place not in ALWAYS
        ),
    ],
)
async def test_a_kill_leaves_each_chunk_exactly_once(tmp_path: Path, place: str) -> None:
    model = str(write_model(tmp_path / "model"))
    source = tmp_path / "cars.md"
    source.write_bytes(text_of(100))
    variables = environment(**{VARIABLE: place})
    process = await run_victim("tests.ingestion.victim", tmp_path, source, model, env=variables)
    assert process.returncode == EXIT_CODE, process.stderr[-2000:]
    async with Rig(tmp_path, embedding=model) as rig:
        rig.application.begin()
        (domain,) = [item["id"] for item in (await rig.ok("GET", "/api/domains"))["items"]]
        await rig.taken_up(domain)
        (document,) = (await rig.ok("GET", f"/api/domains/{domain}/documents"))["items"]
        indexed = await rig.dense(domain, document["id"])
        await rig.reindexed(domain)
        indexed = await rig.dense(domain, document["id"])
        assert (indexed["status"], indexed["chunkCount"]) == ("indexed", 100)
        path = f"/api/domains/{domain}/documents/{document['id']}/chunks"
        chunks = (await rig.ok("GET", path, params={"limit": "200"}))["items"]
        assert [chunk["ordinal"] for chunk in chunks] == list(range(100))
        answer = await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": "car number 7", "topK": 50})
        assert answer["mode"] == "hybrid"
        ids = [candidate["chunkId"] for candidate in answer["candidates"]]
        assert len(ids) == len(set(ids))
        assert set(ids) <= {chunk["chunkId"] for chunk in chunks}
