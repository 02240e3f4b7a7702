"""Files that change, vanish or arrive twice during ingestion; leases; stored searches."""

import os
from pathlib import Path

import anyio
import pytest

from agentic_rag.directory.collection import collection_of
from agentic_rag.documents.search import SearchTraces
from agentic_rag.store import documents
from agentic_rag.store.clock import later, now
from agentic_rag.store.documents import DocumentRecord, DocumentStatus
from mcp_servers.retriever.retrieval import Retriever
from tests.ingestion.test_crash import text_of
from tests.retriever.tiny_reranker import write_reranker
from tests.server.rig import Json, Rig
from tests.waiting import pause

TEXT = b"# Holidays\n\nEveryone has twenty-five days of paid leave a year.\n"
OTHER = b"# Holidays\n\nEveryone has thirty days of sabbatical a year.\n"


async def search_texts(rig: Rig, domain: str, query: str, **options: object) -> list[str]:
    answer = await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": query, **options})
    return [" ".join(sentence["text"] for sentence in hit["sentences"]) for hit in answer["hits"]]


async def test_a_changed_file_is_ingested_again_under_its_id(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "a.md", TEXT)
        path = f"/api/domains/{domain}/documents/{document['id']}/chunks"
        (before,) = (await rig.ok("GET", path))["items"]
        file = rig.settings.workspaces / domain / "documents" / "a.md"
        os.utime(file, ns=(1, 1))
        assert await rig.ok("POST", f"/api/domains/{domain}/documents/rescan") == {"added": 0}
        file.write_bytes(OTHER)
        assert await rig.ok("POST", f"/api/domains/{domain}/documents/rescan") == {"added": 1}
        reingested = await rig.settled(domain, document["id"])
        assert (reingested["status"], reingested["size"]) == ("indexed", len(OTHER))
        (after,) = (await rig.ok("GET", path))["items"]
        assert after["chunkId"] != before["chunkId"], "an old citation would get a new text"
        assert await search_texts(rig, domain, "paid leave") == []
        assert await search_texts(rig, domain, "sabbatical") == ["Everyone has thirty days of sabbatical a year."]


async def test_an_upload_replaces_the_document_of_its_name_when_asked_to(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        path = f"/api/domains/{domain}/documents"
        first = await rig.upload(domain, "a.md", TEXT)
        answer = await rig.ok("POST", f"{path}?replace=true", files={"f": ("a.md", OTHER)})
        assert answer["items"][0]["id"] == first["id"]
        await rig.settled(domain, first["id"])
        assert await search_texts(rig, domain, "sabbatical") == ["Everyone has thirty days of sabbatical a year."]
        folder = rig.settings.workspaces / domain / "documents"
        assert [file.name for file in folder.iterdir()] == ["a.md"]


async def test_a_file_that_becomes_a_copy_of_another_joins_its_document(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        first = await rig.upload(domain, "a.md", TEXT)
        await rig.upload(domain, "b.md", OTHER)
        (rig.settings.workspaces / domain / "documents" / "b.md").write_bytes(TEXT)
        await rig.ok("POST", f"/api/domains/{domain}/documents/rescan")
        items = (await rig.ok("GET", f"/api/domains/{domain}/documents"))["items"]
        assert [item["id"] for item in items] == [first["id"]]
        assert await search_texts(rig, domain, "sabbatical") == []


@pytest.mark.parametrize(
    "place",
    [
        "ingest.upserted",
        *(
            pytest.param(place, marks=pytest.mark.nightly("a deletion at another place runs every time"))
            for place in ("ingest.parsing", "ingest.cleared", "ingest.stored")
        ),
    ],
)
async def test_a_document_deleted_while_it_is_ingested_is_gone(tmp_path: Path, place: str) -> None:
    places: list[str] = []
    async with Rig(tmp_path, failpoint=places.append) as rig:
        domain = await rig.domain()
        path = f"/api/domains/{domain}/documents"
        answer = await rig.ok("POST", path, files={"f": ("cars.md", text_of(200))})
        with anyio.fail_after(240):
            while place not in places:
                await pause()
        await rig.ok("DELETE", f"{path}/{answer['items'][0]['id']}")
        assert (await rig.ok("GET", path))["items"] == []
        assert await search_texts(rig, domain, "car number") == []
        assert (await rig.upload(domain, "a.md", TEXT))["status"] == "indexed"


async def test_a_document_leased_by_another_process_is_skipped_until_the_lease_ends(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "a.md", TEXT)
        ingestion, database = rig.application.services.documents.knowledge.ingestion, rig.application.database

        async def lease_to_other(lease_until: str) -> DocumentRecord:
            await database.write(
                lambda conn: documents.update(
                    conn, document["id"], status=DocumentStatus.INDEXING, owner="proc_other", lease_until=lease_until
                )
            )
            record = await database.read(lambda conn: documents.get(conn, document["id"]))
            assert record is not None
            return record

        ingestion.submit(await lease_to_other(later(60)))
        second = await rig.upload(domain, "b.md", OTHER)
        assert second["status"] == "indexed"
        skipped: Json = await rig.ok("GET", f"/api/domains/{domain}/documents/{document['id']}")
        assert skipped["status"] == "indexing"
        await lease_to_other(now())
        await ingestion.sweep()
        assert (await rig.settled(domain, document["id"]))["status"] == "indexed"


async def test_a_search_is_stored_with_the_scores_of_each_leg(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "a.md", TEXT)
        search = f"/api/domains/{domain}/documents/search"
        answer = await rig.ok("POST", search, {"query": "paid leave", "fusion": "rrf", "threshold": 0})
        (summary,) = (await rig.ok("GET", f"/api/domains/{domain}/retrievals"))["items"]
        assert (summary["retrievalId"], summary["query"], summary["mode"]) == (
            answer["retrievalId"],
            "paid leave",
            "lexical",
        )
        retrieval = await rig.ok("GET", f"/api/domains/{domain}/retrievals/{answer['retrievalId']}")
        assert retrieval["hits"] == answer["hits"]
        (candidate,) = retrieval["candidates"]
        assert candidate["lexical"] > 0
        assert (candidate["dense"], candidate["documentId"]) == (None, document["id"])
        assert "paid leave" in candidate["snippet"]
        other_domain = await rig.domain()
        refusal = await rig.refused("GET", f"/api/domains/{other_domain}/retrievals/{answer['retrievalId']}")
        assert refusal[:2] == (404, "RETRIEVAL_NOT_FOUND")
        await rig.ok("DELETE", f"/api/domains/{domain}/documents/{document['id']}")
        retrieval = await rig.ok("GET", f"/api/domains/{domain}/retrievals/{answer['retrievalId']}")
        assert "snippet" not in retrieval["candidates"][0]


async def test_only_the_newest_searches_are_kept(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        index = rig.application.services.documents.knowledge.index
        traces = SearchTraces(rig.application.database, index, limit=3, prune_every=4)
        retriever = Retriever(index)
        for number in range(8):
            await traces.keep(await retriever.search(collection_of(domain), f"question {number}", 5))
        queries = [row.query for row in await traces.list_of(domain, 50)]
        assert "question 7" in queries
        assert 1 <= len(queries) <= 3


async def test_filters_narrow_a_search(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "a.md", TEXT)
        await rig.upload(domain, "b.txt", b"Everyone has paid leave, says the note.")
        assert len(await search_texts(rig, domain, "paid leave")) == 2
        assert len(await search_texts(rig, domain, "paid leave", filters={"type": ".TXT"})) == 1
        assert len(await search_texts(rig, domain, "paid leave", filters={"heading": "Holidays"})) == 1
        assert len(await search_texts(rig, domain, "paid leave", filters={"document": "a.md"})) == 1
        path = f"/api/domains/{domain}/documents/search"
        unknown = {"query": "leave", "filters": {"document": "zzz"}}
        assert (await rig.refused("POST", path, unknown))[:2] == (422, "VALIDATION_ERROR")


async def test_a_domain_sets_its_fusion_and_a_missing_reranker_costs_only_reranking(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain(retrievalFusion="rrf", reranker="acme/no-such-reranker")
        await rig.upload(domain, "a.md", TEXT)
        answer = await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": "paid leave"})
        assert len(answer["hits"]) == 1
        assert "acme/no-such-reranker" in answer["note"]
        path = f"/api/domains/{domain}"
        for settings in ({"retrievalFusion": "max"}, {"reranker": "../../etc"}):
            assert (await rig.refused("PATCH", path, {"settings": settings}))[:2] == (422, "VALIDATION_ERROR")


async def test_a_domains_reranker_changes_only_the_order_of_its_hits(tmp_path: Path) -> None:
    reranker = write_reranker(tmp_path / "cache")
    async with Rig(tmp_path, model_cache=tmp_path / "cache") as rig:
        plain_domain, reranked_domain = await rig.domain(), await rig.domain(reranker=reranker)
        for domain in (plain_domain, reranked_domain):
            await rig.upload(domain, "best.md", b"Paid leave, and paid leave once more: paid leave.")
            await rig.upload(domain, "worst.md", b"Of gold and silver, of ships and sealing wax; and of leave, too.")
        assert await search_texts(rig, plain_domain, "paid leave") != await search_texts(
            rig, reranked_domain, "paid leave"
        )
        assert (await search_texts(rig, plain_domain, "paid leave"))[0].startswith("Paid leave")
        assert (await search_texts(rig, reranked_domain, "paid leave"))[0].startswith("Of gold")


@pytest.mark.parametrize("broken", ["weights", "scores"])
async def test_a_reranker_that_fails_leaves_the_fused_order_and_says_so(tmp_path: Path, broken: str) -> None:
    reranker = write_reranker(tmp_path / "cache", worth=float("inf"))
    if broken == "weights":
        (weights,) = (tmp_path / "cache").rglob("model.onnx")
        weights.write_bytes(b"not a model")
    async with Rig(tmp_path, model_cache=tmp_path / "cache") as rig:
        domain = await rig.domain(reranker=reranker)
        await rig.upload(domain, "best.md", b"Paid leave, and paid leave once more: paid leave.")
        await rig.upload(domain, "worst.md", b"Of gold and silver, of ships and sealing wax; and of leave, too.")
        assert (await search_texts(rig, domain, "paid leave"))[0].startswith("Paid leave")
        answer = await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": "paid leave"})
        assert ("cannot be loaded" if broken == "weights" else "are no numbers") in answer["note"]
