"""Queries for documents: a filter that matches nothing is refused with its place, and no list blocks others."""

from pathlib import Path
from threading import Event

import anyio
import anyio.from_thread

from agentic_rag.access.document_views import EVERY_DOCUMENT
from agentic_rag.access.users import LOCAL
from agentic_rag.base.threads import one_thread
from agentic_rag.server.replies import Items
from agentic_rag.server.routes.documents import DocumentFilter, DocumentRoutes
from tests.server.rig import Rig
from tests.waiting import pause


async def test_an_unknown_document_state_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "a.md", b"# Leave\n\nTwenty days a year.")
        path = f"/api/domains/{domain}/documents"
        counts = {}
        for status in ("queued", "parsing", "chunking", "indexing", "indexed", "failed"):
            counts[status] = len((await rig.ok("GET", path, params={"status": status}))["items"])
        assert [status for status, count in counts.items() if count] == ["indexed"]
        status_code, code, message = await rig.refused("GET", path, params={"status": "bogus"})
        assert (status_code, code) == (422, "VALIDATION_ERROR")
        assert message.startswith("status: ")
        assert all(repr(status) in message for status in counts)


async def test_a_filter_that_names_no_document_is_refused_with_its_place(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "a.md", b"# Leave\n\nTwenty days a year.")
        body = {"query": "leave", "filters": {"document": "nothing.pdf"}}
        status, code, message = await rig.refused("POST", f"/api/domains/{domain}/documents/search", body)
        assert (status, code) == (422, "VALIDATION_ERROR")
        assert message.startswith("filters.document: ")
        assert "a.md" in message


async def test_a_search_without_reranking_gives_the_reason(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain(reranker="no/such-model")
        await rig.upload(domain, "a.md", b"# Leave\n\nTwenty days a year.")
        search_result = await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": "leave"})
        assert search_result["hits"]
        assert "no/such-model" in search_result["note"]


async def test_a_citations_chunk_is_shown_at_its_place_in_the_document(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        text = "\n\n".join(f"# Part {part}\n\n" + f"Sentence {part} of the handbook. " * 60 for part in range(4))
        document = await rig.upload(domain, "a.md", text.encode())
        base = f"/api/domains/{domain}"
        chunks = (await rig.ok("GET", f"{base}/documents/{document['id']}/chunks"))["items"]
        assert len(chunks) > 2
        chunk_record = await rig.ok("GET", f"{base}/chunks/{chunks[1]['chunkId']}")
        assert (chunk_record["chunk"], chunk_record["documentId"], chunk_record["documentName"]) == (
            chunks[1],
            document["id"],
            "a.md",
        )
        assert (chunk_record["before"], chunk_record["after"]) == (chunks[0]["chunkId"], chunks[2]["chunkId"])
        assert (await rig.ok("GET", f"{base}/chunks/{chunks[0]['chunkId']}"))["before"] is None
        for unknown in ("nothing", "00000000-0000-0000-0000-000000000000"):
            assert (await rig.refused("GET", f"{base}/chunks/{unknown}"))[:2] == (404, "CHUNK_NOT_FOUND")


async def test_the_list_of_all_documents_is_built_off_the_event_loop(tmp_path: Path) -> None:
    thread, started, free, counts = one_thread(), anyio.Event(), Event(), list[int]()

    def hold() -> None:
        anyio.from_thread.run_sync(started.set)
        free.wait()

    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "one.txt", b"One document.")
        services = rig.application.services
        routes = DocumentRoutes(services.documents, services.deletion, thread, services.gate)

        async def ask() -> None:
            arguments = (routes, LOCAL, domain, DocumentFilter(), EVERY_DOCUMENT)
            answer = await DocumentRoutes.list_documents.handler(*arguments)
            assert isinstance(answer, Items)
            counts.append(len(answer.items))

        with anyio.fail_after(240):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(thread.run, "somebody", hold)
                await started.wait()
                try:
                    tasks.start_soon(ask)
                    while LOCAL.id not in thread.owners and not counts:
                        await pause()
                    assert not counts
                finally:
                    free.set()
    assert counts == [1]
    assert DocumentRoutes.list_documents.large
