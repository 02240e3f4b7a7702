"""A server killed anywhere in a run of a source loses and duplicates nothing, and every document has its labels."""

from pathlib import Path

import pytest

from agentic_rag.testing.failpoints import EXIT_CODE, VARIABLE
from tests.e2e.serving import environment
from tests.programs import run_victim
from tests.server.rig import Rig
from tests.sources import victim
from tests.sources.support import documents_of, items_of, run_again, wait_for_end

FIRST = ("source.begun", "source.listed", "source.fetched", "upload.placed:3", "upload.recorded:3", "source.stored:3")
SECOND = (
    *("source.begun:2", "source.listed:2", "source.fetched:7", "upload.placed:7", "source.stored:7", "source.noted:7"),
    *("upload.placed:9", "upload.recorded:7", "delete.marked", "delete.unlinked", "source.removed", "source.ended:2"),
)
PLACES = (*FIRST, "source.noted:3", "source.ended", *SECOND)
ALWAYS = ("source.stored:7", "delete.unlinked")
"""An item that changes, and one that is removed."""


@pytest.mark.sqlite("the killed server has a file")
@pytest.mark.parametrize(
    "place",
    [
        *ALWAYS,
        *(
            pytest.param(place, marks=pytest.mark.nightly("every place; a changed and a removed item run every time"))
            for place in PLACES
            if place not in ALWAYS
        ),
    ],
)
async def test_a_kill_loses_and_repeats_nothing(tmp_path: Path, place: str) -> None:
    process = await run_victim("tests.sources.victim", tmp_path, env=environment(**{VARIABLE: place}))
    assert process.returncode == EXIT_CODE, process.stderr[-2000:]
    share = tmp_path / "share"
    async with Rig(tmp_path, source_folders=str(share)) as rig:
        rig.application.begin()
        (domain,) = [item["id"] for item in (await rig.ok("GET", "/api/domains"))["items"]]
        assert all(document["labels"] == ["board"] for document in await documents_of(rig, domain))
        (source,) = (await rig.ok("GET", f"/api/domains/{domain}/sources"))["items"]
        if source["state"] == "running" or source["endedAt"] is None:
            source = await wait_for_end(rig, domain, source["id"], None)
        if (share / "5.md").exists():
            victim.change(share)
        source = await run_again(rig, domain, source)
        assert "problem" not in source
        source = await run_again(rig, domain, source)
        assert (source["counts"]["unchanged"], source["counts"]["fetched"]) == (6, 0)
        await rig.taken_up(domain)
        documents = await documents_of(rig, domain)
        assert sorted(document["name"] for document in documents) == [f"{number}.md" for number in (0, 1, 2, 3, 4, 6)]
        assert all((document["labels"], document["status"]) == (["board"], "indexed") for document in documents)
        assert {item["documentId"] for item in await items_of(rig, domain, source)} == {
            document["id"] for document in documents
        }
        for query, count in (("lion1q", 1), ("zebra1q", 0), ("zebra6q", 1), ("zebra5q", 0)):
            answer = await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": query, "threshold": 0})
            texts = {hit["documentName"] for hit in answer["hits"] if query in str(hit["sentences"])}
            assert len(texts) == count, query
        folder = tmp_path / "data" / "workspaces" / domain / "documents" / "sources" / "Library"
        assert len(list(folder.iterdir())) == 6
