"""MCP servers as sources: the items they read, when they read them again, and the cost of a bad item."""

import base64
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from agentic_rag.testing.steps import Cite, Step, Use, say
from tests.server.rig import Rig
from tests.sign_in.support import make_rig, serve_places, sign_in
from tests.sources.support import Library, documents_of, items_of, make_source, resource, run_again


@asynccontextmanager
async def open_library(folder: Path, count: int, **settings: Any) -> AsyncIterator[tuple[Rig, str, Library]]:
    library = Library(folder, count)
    async with Rig(folder, any_command=True, **settings) as rig:
        yield rig, await rig.domain(mcpServers={"library": library.entry}), library


async def test_resources_become_documents_and_only_changed_ones_are_read_again(tmp_path: Path) -> None:
    async with open_library(tmp_path, 25) as (rig, domain, library):
        library.save(page=10)
        source = await make_source(rig, domain)
        assert source["counts"] == {
            "listed": 25, "unchanged": 0, "fetched": 25, "changed": 25, "failed": 0, "missing": 0, "removed": 0,
        }  # fmt: skip
        assert set(library.count_reads().values()) == {1}
        await rig.taken_up(domain)
        documents = {document["name"]: document for document in await documents_of(rig, domain)}
        assert len(documents) == 25
        assert documents["book 3.md"]["sourceUri"] == "lib://books/0003"
        assert documents["book 3.md"]["date"] == "2026-01-01"
        for number in (3, 7, 11):
            library.edit(number, text=f"New words zebra{number}n.", lastModified="2026-02-01T00:00:00Z")
        source = await run_again(rig, domain, source)
        assert library.count_reads() == {f"lib://books/{number:04}": 1 for number in (3, 7, 11)}
        assert (source["counts"]["unchanged"], source["counts"]["changed"]) == (22, 3)
        await rig.taken_up(domain)
        changed_documents = {document["name"]: document for document in await documents_of(rig, domain)}
        assert {name: document["id"] for name, document in changed_documents.items()} == {
            name: document["id"] for name, document in documents.items()
        }
        assert changed_documents["book 3.md"]["date"] == "2026-02-01"
        hits = (await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": "zebra7n"}))["hits"]
        assert hits[0]["documentName"] == "book 7.md"


@pytest.mark.nightly("reads a thousand resources")
async def test_only_changed_resources_of_a_thousand_are_read_again(tmp_path: Path) -> None:
    async with open_library(tmp_path, 1_000) as (rig, domain, library):
        library.save(page=100)
        source = await make_source(rig, domain, seconds=1_200)
        assert source["counts"]["changed"] == 1_000
        assert set(library.count_reads().values()) == {1}
        changed_numbers = range(0, 1_000, 100)
        for number in changed_numbers:
            library.edit(number, text=f"New words zebra{number}n.", lastModified="2026-02-01T00:00:00Z")
        source = await run_again(rig, domain, source)
        assert library.count_reads() == {f"lib://books/{number:04}": 1 for number in changed_numbers}
        assert (source["counts"]["unchanged"], source["counts"]["fetched"]) == (990, 10)
        assert len(await documents_of(rig, domain)) == 1_000


async def test_without_versions_changes_are_detected_by_bytes(tmp_path: Path) -> None:
    async with open_library(tmp_path, 0) as (rig, domain, library):
        unversioned = [
            {key: value for key, value in resource(number).items() if key != "lastModified"} for number in range(3)
        ]
        tagged = resource(9, etag="a")
        del tagged["lastModified"]
        library.save(resources=[*unversioned, tagged])
        source = await make_source(rig, domain)
        ids_before = {document["id"] for document in await documents_of(rig, domain)}
        library.count_reads()
        library.edit(1, text="Other words.")
        source = await run_again(rig, domain, source)
        assert len(library.count_reads()) == 3  # the one with an etag is not read
        assert (source["counts"]["fetched"], source["counts"]["changed"]) == (3, 1)
        assert {document["id"] for document in await documents_of(rig, domain)} == ids_before


async def test_a_bad_item_costs_one_item_and_is_named(tmp_path: Path) -> None:
    async with open_library(tmp_path, 4) as (rig, domain, library):
        bad_resources = [
            resource(10, text=None, blob="no base64!"),
            resource(11, uri="lib://film", name="film.mov", mimeType="video/quicktime", text=None, blob="AAAA"),
            resource(12, uri="x" * 3_000),
            {"name": "no uri"},
            "not an object",
            resource(0, text="the same uri again"),
        ]
        for bad_resource in bad_resources[:2]:
            assert isinstance(bad_resource, dict)
            del bad_resource["text"]
        library.save(resources=[*library.state["resources"], *bad_resources], fails=["lib://books/0002"])
        source = await make_source(rig, domain)
        assert source["counts"]["listed"] == 6
        assert source["counts"]["failed"] == 3
        error_codes = {item["uri"]: item["error"]["code"] for item in await items_of(rig, domain, source, failed=True)}
        assert error_codes == {
            "lib://books/0002": "MCP_REQUEST_FAILED",
            "lib://books/0010": "SOURCE_ITEM_UNREADABLE",
            "lib://film": "DOCUMENT_UNSUPPORTED",
        }
        notes = " | ".join(source["notes"])
        assert "longer than 2000" in notes
        assert "no valid uri" in notes
        assert "lib://books/0000 is listed more than once" in notes
        assert "problem" not in source
        assert len(await documents_of(rig, domain)) == 3
        library.save(fails=[])
        source = await run_again(rig, domain, source)
        assert source["failedItems"] == 2
        assert len(await documents_of(rig, domain)) == 4


async def test_a_binary_resource_is_read_by_its_type(tmp_path: Path) -> None:
    async with open_library(tmp_path, 0) as (rig, domain, library):
        page = base64.b64encode(b"<h1>Pump</h1><p>Twelve bar.</p>").decode()
        library.save(resources=[{"uri": "lib://page/1", "name": "Page", "mimeType": "text/html", "blob": page}])
        await make_source(rig, domain)
        await rig.taken_up(domain)
        [document] = await documents_of(rig, domain)
        assert (document["name"], document["status"], document["mediaType"]) == ("Page.html", "indexed", "text/html")


async def test_a_missing_item_is_deleted_after_the_grace_period_and_can_return(tmp_path: Path) -> None:
    async with open_library(tmp_path, 3) as (rig, domain, library):
        source = await make_source(rig, domain, graceHours=24)
        missing_resource = library.state["resources"].pop(1)
        library.save()
        source = await run_again(rig, domain, source)
        assert (source["counts"]["missing"], source["counts"]["removed"]) == (1, 0)
        missing_items = [item for item in await items_of(rig, domain, source) if "missingSince" in item]
        assert [item["uri"] for item in missing_items] == [missing_resource["uri"]]
        assert len(await documents_of(rig, domain)) == 3
        path = f"/api/domains/{domain}/sources/{source['id']}"
        await rig.ok("PATCH", path, {"graceHours": 0, "enabled": False})
        source = await run_again(rig, domain, source)
        assert (source["counts"]["missing"], source["counts"]["removed"]) == (0, 1)
        assert len(await documents_of(rig, domain)) == 2
        assert len(await items_of(rig, domain, source)) == 2
        library.state["resources"].append(missing_resource)
        library.save()
        source = await run_again(rig, domain, source)
        assert len(await documents_of(rig, domain)) == 3


BROKEN: tuple[tuple[dict[str, Any], str], ...] = (
    ({"cursor": "again"}, "does not end"),
    ({"raw": {"resources": "many"}}, "cannot be read"),
    ({"raw": {}}, "is missing"),
    ({"dies": "resources/list 2", "page": 2}, "MCP server"),
    ({"raw": {"resources": [{"uri": "a" * 1_900}] * 700}}, "MCP server"),  # a line that is too long
)


async def test_a_list_that_is_not_complete_removes_nothing(tmp_path: Path) -> None:
    async with open_library(tmp_path, 6) as (rig, domain, library):
        source = await make_source(rig, domain)
        del library.state["resources"][5]
        for change, note in BROKEN:
            library.save(**change)
            source = await run_again(rig, domain, source)
            texts = " | ".join([*source["notes"], source.get("problem", {}).get("message", "")])
            assert note in texts
            assert len(await documents_of(rig, domain)) == 6
            library.save(**dict.fromkeys(change))
        source = await run_again(rig, domain, source)
        assert "problem" not in source
        assert len(await documents_of(rig, domain)) == 5


async def test_a_source_server_that_dies_keeps_the_items_read_so_far(tmp_path: Path) -> None:
    async with open_library(tmp_path, 8) as (rig, domain, library):
        library.save(dies="resources/read lib://books/0004")
        source = await make_source(rig, domain)
        assert source["problem"]["code"] == "MCP_SERVER_UNAVAILABLE"
        assert len(await documents_of(rig, domain)) == 4
        library.count_reads()
        library.save(dies=None)
        source = await run_again(rig, domain, source)
        assert library.count_reads() == {f"lib://books/{number:04}": 1 for number in range(4, 8)}
        assert len(await documents_of(rig, domain)) == 8


async def test_items_beyond_the_limit_are_left_out_and_named(tmp_path: Path) -> None:
    async with open_library(tmp_path, 30) as (rig, domain, library):
        library.save(page=10)
        source = await make_source(rig, domain, maxItems=15)
        assert source["counts"]["listed"] == 15
        assert any("more than 15" in note for note in source["notes"])
        assert len(library.count_reads()) == 15


async def test_patterns_choose_resources_and_a_named_address_needs_no_list(tmp_path: Path) -> None:
    async with open_library(tmp_path, 12) as (rig, domain, library):
        target = {"server": "library", "resources": ["lib://books/{number}1", "lib://books/0000"]}
        source = await make_source(rig, domain, mcp=target, exclude=["*11"])
        assert sorted(library.count_reads()) == ["lib://books/0000", "lib://books/0001"]
        assert source["counts"]["listed"] == 2


async def test_a_source_can_be_a_list_tool_and_a_read_tool(tmp_path: Path) -> None:
    async with open_library(tmp_path, 3) as (rig, domain, library):
        items = [
            {
                "id": f"lib://books/{number:04}",
                "title": f"Book {number}",
                "url": f"https://lib.example/b/{number}",
                "etag": "1",
            }
            for number in range(3)
        ]
        library.save(tools={"find": {"content": [], "structuredContent": {"books": items, "total": 3}}})
        tools = {"listTool": {"tool": "find", "arguments": {"shelf": 1}}, "readTool": {"tool": "read"}}
        source = await make_source(rig, domain, mcp={"server": "library", **tools})
        assert source["counts"]["changed"] == 3, source
        documents = {document["sourceUri"]: document["name"] for document in await documents_of(rig, domain)}
        assert documents == {f"https://lib.example/b/{number}": f"Book {number}.txt" for number in range(3)}
        items[1]["etag"] = "2"
        library.edit(1, text="New words.")
        source = await run_again(rig, domain, source)
        assert (source["counts"]["fetched"], source["counts"]["changed"]) == (1, 1)


async def test_a_tool_that_the_policy_denies_ends_the_run_and_keeps_the_documents(tmp_path: Path) -> None:
    async with open_library(tmp_path, 1) as (rig, domain, library):
        items = [{"id": "lib://books/0000", "title": "Book"}]
        library.save(tools={"find": {"content": [], "structuredContent": {"books": items}}})
        tools = {"listTool": {"tool": "find"}, "readTool": {"tool": "read"}}
        source = await make_source(rig, domain, mcp={"server": "library", **tools})
        assert source["counts"]["changed"] == 1
        rules: tuple[tuple[dict[str, Any], bool], ...] = (
            ({"library__read": "deny"}, True),
            ({"library__*": "deny", "library__find": "allow"}, True),
            ({"library__*": "deny", "library__find": "allow", "library__read": "allow"}, False),
            ({"library__read": {"member": "deny"}}, False),
            ({"library__read": "ask"}, False),
        )
        for policy, is_denied in rules:
            library.count_reads()
            await rig.ok(
                "PUT",
                f"/api/domains/{domain}",
                {"settings": {"mcpServers": {"library": library.entry}, "toolPolicy": policy}},
            )
            source = await run_again(rig, domain, source)
            assert ("problem" in source) == is_denied, policy
            if is_denied:
                assert source["problem"]["code"] == "SOURCE_UNREADABLE"
                assert "toolPolicy denies the tool 'read' of 'library'" in source["problem"]["message"]
            assert len(await documents_of(rig, domain)) == 1


async def test_a_source_pauses_for_a_new_sign_in_and_continues_after_it(tmp_path: Path) -> None:
    items = '[{"id": "1", "name": "one.md"}, {"id": "2", "name": "two.md"}]'
    tools = {
        "listTool": {"tool": "echo", "arguments": {"text": items}},
        "readTool": {"tool": "echo", "arguments": {"text": "Twelve bar of {name}."}},
    }
    async with serve_places() as library, make_rig(tmp_path) as rig:
        domain = await rig.domain(mcpServers={"web": {"url": library.url}})
        restart = f"/api/domains/{domain}/mcp-servers/web/restart"
        source = await make_source(rig, domain, mcp={"server": "web", **tools})
        assert source["problem"]["code"] == "SIGN_IN_NEEDED"
        for _ in range(2):
            await sign_in(rig, (await rig.ok("POST", restart))["signIn"])
            source = await run_again(rig, domain, source)
            assert "problem" not in source, source["problem"]
            assert source["counts"]["fetched"] == 2
            assert len(await documents_of(rig, domain)) == 2
            library.granting.live.clear()
            library.granting.refresh.clear()
            source = await run_again(rig, domain, source)
            assert source["problem"]["code"] == "SIGN_IN_NEEDED", source
            assert len(await documents_of(rig, domain)) == 2


async def test_equal_bytes_at_two_addresses_are_one_document_until_both_are_deleted(tmp_path: Path) -> None:
    async with open_library(tmp_path, 1) as (rig, domain, library):
        library.save(resources=[resource(0), resource(1, text=resource(0)["text"])])
        source = await make_source(rig, domain)
        [document] = await documents_of(rig, domain)
        library.edit(0, text="Own words.", lastModified="2026-02-01T00:00:00Z")
        source = await run_again(rig, domain, source)
        assert {document["id"] for document in await documents_of(rig, domain)} > {document["id"]}
        del library.state["resources"][1]
        library.save()
        source = await run_again(rig, domain, source)
        assert [document["sourceUri"] for document in await documents_of(rig, domain)] == ["lib://books/0000"]


async def test_a_persons_document_stays_when_its_source_loses_the_item(tmp_path: Path) -> None:
    async with open_library(tmp_path, 2) as (rig, domain, library):
        early_upload = await rig.upload(domain, "mine.md", resource(0)["text"].encode())
        source = await make_source(rig, domain, labels=["board"])
        assert {document["id"] for document in await documents_of(rig, domain)} > {early_upload["id"]}
        late_upload = await rig.upload(domain, "later.md", resource(1)["text"].encode())
        library.save(resources=[])
        source = await run_again(rig, domain, source)
        assert {document["id"]: document["labels"] for document in await documents_of(rig, domain)} == {
            early_upload["id"]: ["board"],
            late_upload["id"]: ["board"],
        }


ADDRESSES = {
    "https://ann:secret@wiki.example/hr?page=1&x=<b>": "https://wiki.example/hr?page=1&x=<b>",
    "lib://a shelf/1": "lib://a%20shelf/1",
    "javascript:alert(1)": None,
    "/srv/share/plan.md": None,
    "C:\\share\\plan.md": None,
    "PUMP 12": None,
}


async def test_a_cited_passage_has_the_address_of_its_resource_everywhere(tmp_path: Path) -> None:
    library = Library(tmp_path)
    library.save(resources=[resource(number, uri=uri) for number, uri in enumerate(ADDRESSES)])
    turn = (
        Step((Use("search_documents", {"query": "title of shelf", "top_k": 20}),)),
        say("It is so.", *map(Cite, range(6))),
    )
    async with Rig(tmp_path, *turn, *turn, *turn, *turn, any_command=True) as rig:
        domain = await rig.domain(mcpServers={"library": library.entry})
        source = await make_source(rig, domain)
        assert source["counts"]["changed"] == 6
        await rig.taken_up(domain)
        uris = {document["id"]: ADDRESSES[document["sourceUri"]] for document in await documents_of(rig, domain)}
        conversation = await rig.conversation(domain)
        events = await rig.say(conversation, "What is the title?")
        citation_events = [event for event in events if event["type"] == "source_reference"]
        assert {event["documentId"]: event.get("sourceUri") for event in citation_events} == uris
        messages = (await rig.ok("GET", f"/api/conversations/{conversation}/messages"))["items"]
        references = messages[-1]["references"]
        assert {reference["documentId"]: reference.get("sourceUri") for reference in references} == uris
        for reference in references:
            place = await rig.ok("GET", f"/api/domains/{domain}/chunks/{reference['chunkId']}/place")
            assert place.get("sourceUri") == uris[reference["documentId"]]
        path = f"/api/conversations/{conversation}/export"
        exported = await rig.ok("GET", path, params={"format": "json"})
        assert exported["messages"][-1]["references"] == references
        markdown = (await rig.http.get(path)).text
        assert "book 0.md <https://wiki.example/hr?page=1&x=%3Cb%3E>: “" in markdown
        assert "book 1.md <lib://a%20shelf/1>: “" in markdown
        page = (await rig.http.get(path, params={"format": "html"})).text
        assert re.findall(r'href="([^"]*)" rel="noopener noreferrer"', page) == [
            "https://wiki.example/hr?page=1&amp;x=&lt;b&gt;"
        ]
        assert "<code>lib://a%20shelf/1</code>" in page
        assert all(word not in markdown + page for word in ("javascript:", "/srv/share", "secret"))
        addresses = sorted(uri for uri in uris.values() if uri)
        for route in ("chat/completions", "responses"):
            body = {"messages": [{"role": "user", "content": "What?"}]} if route != "responses" else {"input": "What?"}
            answer = await rig.http.post(f"/v1/{route}", json={"model": domain, **body})
            uri_texts = re.findall(r'"agentic_rag":\{[^}]*"sourceUri":("[^"]*")', answer.text)
            assert sorted({json.loads(uri) for uri in uri_texts}) == addresses, route
        transport = streamable_http_client(f"http://127.0.0.1/mcp/{domain}", http_client=rig.http)
        async with Client(transport, mode="auto") as client:
            tool_result = await client.call_tool("ask", {"question": "What?"})
            assert tool_result.structured_content is not None
            citations = tool_result.structured_content["citations"]
            assert {citation["document_id"]: citation.get("source_uri") for citation in citations} == uris
            for citation in citations:
                (contents,) = (await client.read_resource(citation["uri"])).contents
                assert (contents.meta or {}).get("source_uri") == uris[citation["document_id"]]
