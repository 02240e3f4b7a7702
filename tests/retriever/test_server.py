"""The tool as an MCP client sees it: in process with values bound by meta, and standalone over stdio and HTTP."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import CallToolResult, RequestParamsMeta, TextContent
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

import agentic_rag
from mcp_servers import __version__
from mcp_servers.promptx.server import PromptXConfig
from mcp_servers.promptx.server import create_server as create_promptx
from mcp_servers.retriever.__main__ import SettingError, open_searcher, read_config, serve
from mcp_servers.retriever.chunking import chunk_document
from mcp_servers.retriever.document import Block, ParsedDocument
from mcp_servers.retriever.edge_index import EdgeIndex
from mcp_servers.retriever.errors import IndexUnavailable
from mcp_servers.retriever.remote import RemoteRetriever
from mcp_servers.retriever.retrieval import Retriever
from mcp_servers.retriever.server import MAX_RESULT_BYTES, ServerConfig, create_server

from .corpus import handbook, rules

ROOT = Path(__file__).parents[2]
META = {"agentic_rag/collection": "domain_test"}


@pytest.fixture
async def index(tmp_path: Path) -> AsyncIterator[EdgeIndex]:
    async with aclosing(EdgeIndex(tmp_path / "index")) as index:
        await index.upsert("domain_test", [*handbook(), *rules()])
        yield index


async def search(index: EdgeIndex, meta: dict[str, Any] | None = None, **arguments: object) -> CallToolResult:
    async with Client(create_server(Retriever(index), bound_by_meta=True)) as client:
        return await client.call_tool("search_documents", dict(arguments), meta=make_meta(**META, **(meta or {})))


def make_meta(**values: Any) -> RequestParamsMeta:
    return cast(RequestParamsMeta, values)


def text_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


async def test_without_a_library_there_is_one_read_only_tool_and_no_bound_argument(index: EdgeIndex) -> None:
    async with Client(create_server(Retriever(index), bound_by_meta=True)) as client:
        (tool,) = (await client.list_tools()).tools
    assert tool.name == "search_documents"
    arguments = {"query", "top_k", "document", "section", "type", "after", "before"}
    assert set(tool.input_schema["properties"]) == arguments
    assert tool.input_schema["required"] == ["query"]
    assert tool.annotations is not None
    assert tool.annotations.read_only_hint
    assert tool.output_schema is not None


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_call_returns_structured_hits_beside_numbered_passages(index: EdgeIndex, mode: Any) -> None:
    async with Client(create_server(Retriever(index), bound_by_meta=True), mode=mode) as client:
        result = await client.call_tool(
            "search_documents", {"query": "unused days", "top_k": 1}, meta=make_meta(**META)
        )
    assert not result.is_error
    content = result.structured_content
    assert content["mode"] == "lexical"
    (hit,) = content["hits"]
    sentence = hit["sentences"][1]
    assert hit["document_id"] == "doc-en"
    assert hit["heading_path"] == ["Handbook", "Annual leave"]
    assert 0 < hit["relevance_score"] <= 1
    assert sentence["text"] == "Unused days expire on 31 March."
    assert handbook()[0].text[sentence["start"] : sentence["end"]] == sentence["text"]
    assert text_of(result).startswith("Searched by words only. Best match ")
    assert "\n\n[1] handbook.md › Handbook › Annual leave\nEvery employee" in text_of(result)


async def test_the_note_names_the_part_of_a_question_that_no_passage_matches(index: EdgeIndex) -> None:
    texts = ("The noise of the Falcon 20 is 71 dB.", "The noise of the Falcon 40 is 78 dB.", "The lathe is green.")
    for number, text in enumerate(texts):
        parsed = ParsedDocument((Block("prose", text),))
        await index.upsert("domain_test", chunk_document(parsed, f"d{number}", f"d{number}.md"))
    result = await search(index, query="Compare the noise of the Falcon 20 and the Falcon 60?")
    assert text_of(result).startswith("Searched by words only. ")
    assert ' No passage matches this part: "the noise of the Falcon 60".\n\n[1] d0.md' in text_of(result)
    assert result.structured_content["unmatched"] == ["the noise of the Falcon 60"]
    assert "78 dB" not in text_of(result)
    full_match = await search(index, query="Compare the noise of the Falcon 20 and the Falcon 40")
    assert "unmatched" not in full_match.structured_content
    assert "No passage" not in text_of(full_match)


async def test_page_and_cells_are_in_the_passage(index: EdgeIndex) -> None:
    blocks = (Block("prose", "Octopus on a page.", page=7), Block("table", "name\nsquid", cells="Sea!A2:A2"))
    await index.upsert("domain_test", chunk_document(ParsedDocument(blocks), "sea", "sea.pdf"))
    assert "[1] sea.pdf (page 7)\n" in text_of(await search(index, query="octopus"))
    assert "[1] sea.pdf (Sea!A2:A2)\n" in text_of(await search(index, query="squid"))


async def test_an_empty_result_has_a_plain_text_and_is_not_an_error(index: EdgeIndex) -> None:
    result = await search(index, query="zebra")
    assert not result.is_error
    assert result.structured_content["hits"] == []
    assert text_of(result).startswith("Nothing in the documents matches.")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"query": "  "}, "`query` is empty"),
        ({"query": "x" * 2001}, "longer than 2000 characters"),
        ({"query": "x", "top_k": 0}, "`top_k` is 0, but must be from 1 to 50"),
        ({"query": "x", "top_k": 51}, "`top_k` is 51"),
        ({"query": "x", "document": "nope.pdf"}, "no one document called 'nope.pdf'. Documents: handbook.md; 规定.md."),
        ({}, "query"),
        ({"query": "x", "top_k": "many"}, "top_k"),
    ],
)
async def test_bad_arguments_return_results_that_name_the_remedy(
    index: EdgeIndex, arguments: dict[str, Any], text: str
) -> None:
    result = await search(index, **arguments)
    assert result.is_error
    assert text in text_of(result)


async def test_a_call_without_a_collection_is_a_protocol_error(index: EdgeIndex) -> None:
    async with Client(create_server(Retriever(index), bound_by_meta=True)) as client:
        with pytest.raises(MCPError, match="agentic_rag/collection"):
            await client.call_tool("search_documents", {"query": "leave"})


async def test_meta_binds_documents_number_and_threshold(index: EdgeIndex) -> None:
    def ids(result: CallToolResult) -> list[str]:
        return [hit["document_id"] for hit in result.structured_content["hits"]]

    assert ids(await search(index, {"agentic_rag/documents": ["doc-zh"]}, query="leave 年假")) == ["doc-zh"]
    assert ids(await search(index, {"agentic_rag/documents": []}, query="leave 年假")) == []
    assert len(ids(await search(index, {"agentic_rag/top_k": 1}, query="leave 年假"))) == 1
    assert len(ids(await search(index, {"agentic_rag/top_k": 1}, query="leave 年假", top_k=3))) == 3
    assert ids(await search(index, {"agentic_rag/threshold": 0.99}, query="leave in general")) == []


async def test_a_result_is_bounded_by_leaving_out_whole_hits(index: EdgeIndex) -> None:
    for number in range(60):
        words = " ".join(f"term{number}x{position}" for position in range(120))
        parsed = ParsedDocument((Block("prose", f"Walrus. {words}"),))
        await index.upsert("domain_test", chunk_document(parsed, f"w{number}", f"w{number}.md"))
    result = await search(index, query="walrus", top_k=50)
    hits = result.structured_content["hits"]
    size = len(json.dumps(hits, ensure_ascii=False).encode()) + len(text_of(result).encode())
    assert 10 < len(hits) < 50
    assert MAX_RESULT_BYTES * 0.8 < size <= MAX_RESULT_BYTES * 1.05
    assert f"[{len(hits)}]" in text_of(result)
    assert f"[{len(hits) + 1}]" not in text_of(result)


async def test_an_index_that_fails_is_a_result_the_model_can_read(index: EdgeIndex) -> None:
    await index.aclose()
    result = await search(index, query="leave")
    assert result.is_error
    assert "the documents cannot be searched now" in text_of(result)


async def test_a_standalone_server_is_bound_by_configuration_and_ignores_meta(index: EdgeIndex) -> None:
    config = ServerConfig("domain_test", ("doc-zh",), 1)
    async with Client(create_server(Retriever(index), bound_by_meta=False, config=config)) as client:
        meta = make_meta(**{"agentic_rag/collection": "domain_other", "agentic_rag/documents": ["doc-en"]})
        result = await client.call_tool("search_documents", {"query": "leave 年假"}, meta=meta)
    assert [hit["document_id"] for hit in result.structured_content["hits"]] == ["doc-zh"]
    with pytest.raises(ValueError, match="needs a config"):
        create_server(Retriever(index), bound_by_meta=False)


def environment(tmp_path: Path, **variables: str) -> dict[str, str]:
    return {"RETRIEVER_INDEX_DIR": str(tmp_path / "index"), "DOMAIN_ID": "test", "PYTHONPATH": str(ROOT), **variables}


async def test_it_runs_alone_over_stdio(tmp_path: Path) -> None:
    async with aclosing(EdgeIndex(tmp_path / "index")) as index:
        await index.upsert("domain_test", handbook())
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "mcp_servers.retriever"], env=environment(tmp_path, RETRIEVAL_TOP_K="1")
    )
    with anyio.fail_after(240):
        async with Client(stdio_client(command)) as client:
            result = await client.call_tool("search_documents", {"query": "leave"})
    assert len(result.structured_content["hits"]) == 1


async def test_it_runs_alone_over_http(tmp_path: Path) -> None:
    async with aclosing(EdgeIndex(tmp_path / "index")) as index:
        await index.upsert("domain_test", handbook())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mcp_servers.retriever", "--http", "--port", str(port)]
    with anyio.fail_after(240):
        process = await anyio.open_process(command, env=environment(tmp_path), stdout=None, stderr=subprocess.PIPE)
        try:
            assert process.stderr is not None
            output = b""
            async for line in process.stderr:
                output += line
                if b"Uvicorn running" in output:
                    break
            async with Client(f"http://127.0.0.1:{port}/mcp") as client:
                result = await client.call_tool("search_documents", {"query": "leave"})
        finally:
            process.kill()
            await process.aclose()
    assert result.structured_content["hits"]


async def test_the_standalone_server_names_the_owner_of_the_index(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mcp_servers.retriever"]
    async with aclosing(EdgeIndex(tmp_path / "index")):
        process = await anyio.run_process(command, env=environment(tmp_path), check=False)
    assert process.returncode == 2
    assert f"in use by process {os.getpid()}" in process.stderr.decode()


def test_the_environment_names_collection_number_and_threshold() -> None:
    assert read_config({"DOMAIN_ID": "hr"}) == ServerConfig("domain_hr")
    full = {"QDRANT_COLLECTION": "law", "DOMAIN_ID": "hr", "RETRIEVAL_TOP_K": "9", "RETRIEVAL_THRESHOLD": "0.25"}
    assert read_config(full) == ServerConfig("law", None, 9, 0.25)


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({}, "neither QDRANT_COLLECTION nor DOMAIN_ID"),
        ({"DOMAIN_ID": "x", "RETRIEVAL_TOP_K": "99"}, "RETRIEVAL_TOP_K is '99', but must be a number from 1 to 50"),
        ({"DOMAIN_ID": "x", "RETRIEVAL_THRESHOLD": "high"}, "RETRIEVAL_THRESHOLD is 'high'"),
    ],
)
def test_a_wrong_variable_is_named(variables: dict[str, str], text: str) -> None:
    with pytest.raises(SettingError, match=text):
        read_config(variables)


async def test_a_missing_folder_is_an_error_and_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as refusal:
        await serve(environment(tmp_path), None)
    assert f"RETRIEVER_INDEX_DIR is '{tmp_path / 'index'}', but there is no such folder" in str(refusal.value)
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("variables", [{"DOMAIN_ID": "tset"}, {"QDRANT_COLLECTION": "domain_tset"}])
async def test_a_missing_collection_is_an_error_that_lists_the_existing_ones(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    variables_given = {**environment(tmp_path), **variables}
    (tmp_path / "index").mkdir()
    for listed_names in ("none", "domain_test"):
        with pytest.raises(SettingError, match=f"has no collection 'domain_tset'.*Collections there: {listed_names}$"):
            async with open_searcher(variables_given):
                pass
        async with aclosing(EdgeIndex(tmp_path / "index")) as index:
            await index.upsert("domain_test", handbook())
    assert not (tmp_path / "index" / "domain_tset").exists()
    with pytest.raises(SettingError, match="'a/b' is not a collection name"):
        async with open_searcher(variables_given | {"QDRANT_COLLECTION": "a/b"}):
            pass


async def test_the_servers_announce_the_version_of_the_product(index: EdgeIndex) -> None:
    for server in (
        create_server(Retriever(index), bound_by_meta=True),
        create_promptx(PromptXConfig(bound_by_meta=True)),
    ):
        async with Client(server) as client:
            announced = client.server_info
            assert announced is not None
            assert announced.version == __version__ == agentic_rag.__version__


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({}, "RETRIEVER_INDEX_DIR is not set"),
        ({"RETRIEVER_URL": "http://x"}, "DOMAIN_ID is not set"),
        ({"AGENTIC_RAG_EMBEDDING": "gpt"}, "AGENTIC_RAG_EMBEDDING: 'gpt' is not an embedder"),
        ({"AGENTIC_RAG_EMBEDDING": "http://host:port/v1"}, "AGENTIC_RAG_EMBEDDING: must be a URL"),
        ({"AGENTIC_RAG_EMBEDDING": "http://#model"}, "AGENTIC_RAG_EMBEDDING: must be a URL"),
    ],
)
async def test_a_search_in_a_missing_place_names_it(variables: dict[str, str], text: str) -> None:
    with pytest.raises(SettingError, match=text):
        async with open_searcher(variables):
            pass


def make_remote(answer: Response) -> tuple[RemoteRetriever, list[dict[str, Any]]]:
    """A retriever that uses a server which returns `answer`, and the requests it sent."""
    requests: list[dict[str, Any]] = []

    async def answer_search(request: Request) -> Response:
        requests.append({**await request.json(), "token": request.headers["authorization"], **request.path_params})
        return answer

    app = Starlette(routes=[Route("/api/domains/{domain}/documents/search", answer_search, methods=["POST"])])
    return RemoteRetriever("http://host/", "hr", "secret", httpx2.ASGITransport(app=app)), requests


async def test_a_command_uses_a_running_server_over_http() -> None:
    sentence = {"chunkId": "c", "text": "Twenty-five days.", "start": 0, "end": 17}
    hit = {
        "documentId": "d", "documentName": "a.pdf", "headingPath": ["Leave"], "page": 2, "cells": None,
        "score": 1.2, "relevanceScore": 0.8, "sentences": [sentence],
    }  # fmt: skip
    candidate = {"chunkId": "c", "lexical": 3.0, "dense": None, "fused": 1.2, "relevanceScore": 0.8}
    answer = {
        "retrievalId": "r", "query": "leave", "mode": "hybrid", "hits": [hit], "candidates": [candidate],
        "unmatched": ["the pay"],
    }  # fmt: skip
    retriever, requests = make_remote(JSONResponse(answer))
    config = ServerConfig("domain_hr", threshold=0.1)
    async with aclosing(retriever), Client(create_server(retriever, bound_by_meta=False, config=config)) as client:
        result = await client.call_tool("search_documents", {"query": "leave", "document": "a.pdf"})
    filters = {"document": "a.pdf", "type": None, "heading": None}
    assert requests == [
        {"query": "leave", "topK": 5, "threshold": 0.1, "filters": filters, "token": "Bearer secret", "domain": "hr"}
    ]
    assert result.structured_content["mode"] == "hybrid"
    note = 'Best match 0.80 of 1. No passage matches this part: "the pay".'
    assert text_of(result).endswith(f"{note}\n\n[1] a.pdf › Leave (page 2)\nTwenty-five days.")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (PlainTextResponse("who are you", 401), "answered 401: who are you"),
        (PlainTextResponse("hello"), "not a retrieval"),
        (JSONResponse({"hits": []}), "not a retrieval"),
    ],
)
async def test_a_server_that_refuses_or_sends_garbage_is_unavailable(answer: Response, reason: str) -> None:
    retriever, _ = make_remote(answer)
    async with aclosing(retriever):
        with pytest.raises(IndexUnavailable, match=reason) as exc_info:
            await retriever.search("c", "q", 1)
    assert "secret" not in str(exc_info.value)
