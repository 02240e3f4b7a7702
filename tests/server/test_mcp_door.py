"""The MCP SDK's own client, unmodified, at `/mcp/{domain}` of a live server, in both eras of the protocol."""

import re
from base64 import b64decode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Literal

import anyio
import httpx2
import orjson
import pytest
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    CallToolResult,
    Request,
    RequestParams,
    Result,
    TextContent,
    TextResourceContents,
)
from mcp_types.version import SUPPORTED_PROTOCOL_VERSIONS
from pydantic import TypeAdapter

from agentic_rag.server.auth import Gate
from agentic_rag.server.doors.mcp import SESSIONS, McpDoor
from agentic_rag.server.http import make_app
from agentic_rag.testing.scripted import Broken, Scripted, Stalled
from agentic_rag.testing.steps import Cite, Say, Step, say, use
from tests.access.tenants import bearer, make_key
from tests.server.rig import Json, Rig
from tests.server.test_waits import REMEMBER
from tests.waiting import pause
from tests.ws.serving import serving

QUESTION = "How much does the pump hold?"
DOCUMENT = b"# Pumps\n\nThe pump holds twelve bar."
FOUND = (
    use("search_documents", query="pump bar"),
    Step((Say("It holds "), Say("twelve bar.", (Cite(0),)))),
)
JSON = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
INITIALIZE: Json = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
LIST: Json = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}

eras = pytest.mark.parametrize("mode", ["auto", "legacy"])
newer_every_time = pytest.mark.parametrize(
    "mode",
    ["auto", pytest.param("legacy", marks=pytest.mark.nightly("both eras search and cancel every time"))],
)


class Live(Rig):
    """A served rig with a domain that has one document, and the key of ann, a member of it."""

    address: str
    pumps: str
    ann: str

    @asynccontextmanager
    async def client(self, mode: str, key: str | None = None, **options: Any) -> AsyncGenerator[Client]:
        """Return a connected client of the domain."""
        async with (
            httpx2.AsyncClient(headers=bearer(key or self.ann), trust_env=False, timeout=30) as http,
            Client(streamable_http_client(self.url, http_client=http), mode=mode, **options) as client,
        ):
            assert (client.protocol_version >= "2026-07-28") == (mode == "auto")
            yield client

    @property
    def url(self) -> str:
        return f"http://{self.address}/mcp/{self.pumps}"

    async def post(self, body: Any, key: str | None = None, **headers: str) -> httpx2.Response:
        async with httpx2.AsyncClient(trust_env=False) as http:
            key_header = bearer(key) if key else {}
            return await http.post(self.url, json=body, headers={**JSON, **key_header, **headers})

    async def turns(self) -> list[str]:
        """Return the states of all turns."""
        return await self.application.database.read(
            lambda conn: [row[0] for row in conn.exec_driver_sql("SELECT status FROM turns ORDER BY id")]
        )


@asynccontextmanager
async def open_live(folder: Path, *steps: Scripted) -> AsyncGenerator[Live]:
    async with Live(folder, *steps) as rig, serving(rig.application.app) as address:
        rig.address = address
        rig.pumps = await rig.domain()
        assert (await rig.upload(rig.pumps, "pump.md", DOCUMENT))["status"] == "indexed"
        rig.ann = await make_key(rig, "ann", "member", rig.pumps)
        yield rig


def text_of(result: Any) -> str:
    return "".join(block.text for block in result.content if block.type == "text")


@eras
async def test_documents_are_searched_and_read_like_in_a_turn(tmp_path: Path, mode: str) -> None:
    async with open_live(tmp_path) as rig, rig.client(mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"search_documents", "read_document", "ask", "remember"}
        assert tools["search_documents"].annotations is not None
        assert tools["search_documents"].annotations.read_only_hint
        search_result = await client.call_tool("search_documents", {"query": "pump bar"})
        assert "twelve bar" in text_of(search_result)
        document_result = await client.call_tool("read_document", {"document": "pump.md"})
        assert "twelve bar" in text_of(document_result)
        empty = await client.call_tool("search_documents", {"query": " "})
        words = "`query` is empty: say what to look for."
        assert (empty.is_error, text_of(empty)) == (True, f"VALIDATION_ERROR: {words}")
        assert empty.structured_content == {"error": {"code": "VALIDATION_ERROR", "message": words}}
        # TypeScript's stock client also validates structured errors against the schema of results.
        assert [tool.output_schema for tool in tools.values()] == [None] * 4
        for answer in (search_result, document_result):
            assert answer.structured_content["hits"]
            assert "retriever" not in str(answer.meta)
        with pytest.raises(MCPError, match="There is no tool 'list_documents'"):
            await client.call_tool("list_documents", {})


@newer_every_time
async def test_an_answer_has_the_citations_it_has_natively_and_they_can_be_read(tmp_path: Path, mode: str) -> None:
    reports: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, message))

    async with open_live(tmp_path, *FOUND * 2, say("Still twelve.")) as rig:
        native = await rig.say(await rig.conversation(rig.pumps), QUESTION)
        (reference,) = [event for event in native if event["type"] == "source_reference"]
        async with rig.client(mode) as client:
            answer = await client.call_tool("ask", {"question": QUESTION}, progress_callback=hear)
            assert (answer.is_error, text_of(answer)) == (False, "It holds twelve bar.")
            (link,) = [block for block in answer.content if block.type == "resource_link"]
            assert (link.name, link.description) == ("pump.md", reference["citedText"])
            assert link.uri == f"agentic-rag://{rig.pumps}/chunks/{reference['chunkId']}"
            structured = answer.structured_content
            (citation,) = structured["citations"]
            names = ("chunk_id", "document_id", "cited_text")
            assert [citation[name] for name in names] == [reference[x] for x in ("chunkId", "documentId", "citedText")]
            assert structured["answer"][citation["start"] : citation["end"]] == "twelve bar."
            assert [count for count, _ in reports] == list(range(1, len(reports) + 1))
            assert [message for _, message in reports] == [
                "Step 1",
                "Calling search_documents",
                "1 found for 'pump bar'",
                "Step 2",
            ]

            (contents,) = (await client.read_resource(link.uri)).contents
            assert isinstance(contents, TextResourceContents)
            assert reference["citedText"] in contents.text
            second_answer = await client.call_tool(
                "ask", {"question": "Sure?", "conversation_id": structured["conversation_id"]}
            )
            assert text_of(second_answer) == "Still twelve."
            assert second_answer.structured_content["conversation_id"] == structured["conversation_id"]
        async with httpx2.AsyncClient(headers=bearer(rig.ann), trust_env=False) as http:
            response = await http.get(
                f"http://{rig.address}/api/conversations/{structured['conversation_id']}/messages"
            )
        assert [item["content"] for item in response.json()["items"]][:2] == [QUESTION, "It holds twelve bar."]


async def test_calls_that_need_a_person_are_declined_in_ask(tmp_path: Path) -> None:
    async with open_live(tmp_path, REMEMBER, say("Done.")) as rig, rig.client("auto") as client:
        path = f"/api/domains/{rig.pumps}"
        await rig.ok("PATCH", path, {"settings": {"toolPolicy": {"promptx_remember": "ask"}, "askUser": True}})
        with anyio.fail_after(240):
            assert text_of(await client.call_tool("ask", {"question": QUESTION})) == "Done."
        assert "no person can be asked here" in str(rig.model.requests[-1].messages)
        assert "ask_user" not in {tool["name"] for tool in rig.model.requests[-1].tools}
        assert (await rig.ok("GET", "/api/waits"))["items"] == []


async def test_an_answer_that_the_model_declines_says_so(tmp_path: Path) -> None:
    async with open_live(tmp_path, Step(stop_reason="refusal")) as rig, rig.client("auto") as client:
        result = await client.call_tool("ask", {"question": QUESTION})
        assert text_of(result) == "There is no answer: the model ended with 'refusal'."
        assert (result.structured_content["answer"], result.structured_content["stop_reason"]) == ("", "refusal")


@eras
async def test_a_cancelled_request_interrupts_its_turn(tmp_path: Path, mode: str) -> None:
    stalled = Stalled(say("It holds and holds"), 2)
    async with open_live(tmp_path, stalled, say("Yes.")) as rig, rig.client(mode) as client:
        with anyio.fail_after(240):
            async with anyio.create_task_group() as group:
                group.start_soon(client.call_tool, "ask", {"question": QUESTION})
                await stalled.reached.wait()
                group.cancel_scope.cancel()
            while await rig.turns() != ["interrupted"]:
                await pause()
        assert text_of(await client.call_tool("ask", {"question": QUESTION})) == "Yes."


@newer_every_time
async def test_retracted_text_is_not_in_the_answer_and_interrupts_elsewhere_are_reported(
    tmp_path: Path, mode: str
) -> None:
    stalled = Stalled(say("It holds and holds"), 2)
    async with open_live(tmp_path, Broken(say("Half an answer."), 4), say("Whole."), stalled) as rig:
        async with rig.client(mode) as client:
            result = await client.call_tool("ask", {"question": QUESTION})
            assert (result.is_error, text_of(result), result.structured_content["answer"]) == (
                False,
                "Whole.",
                "Whole.",
            )
            conversation = result.structured_content["conversation_id"]
            answers: list[Any] = []

            async def ask() -> None:
                arguments = {"question": "Sure?", "conversation_id": conversation}
                answers.append(await client.call_tool("ask", arguments))

            async with anyio.create_task_group() as group, httpx2.AsyncClient(headers=bearer(rig.ann)) as http:
                group.start_soon(ask)
                with anyio.fail_after(240):
                    await stalled.reached.wait()
                    path = f"http://{rig.address}/api/conversations/{conversation}/interrupt"
                    assert (await http.post(path, json={})).status_code == 200
        (interrupted,) = answers
        assert (interrupted.is_error, interrupted.structured_content["error"]["code"]) == (True, "GENERATION_ABORTED")


async def test_a_revoked_key_interrupts_its_turns(tmp_path: Path) -> None:
    stalled = Stalled(say("It holds and holds"), 2)
    async with open_live(tmp_path, stalled) as rig, anyio.create_task_group() as group:
        (key,) = [item for item in (await rig.ok("GET", "/api/keys"))["items"] if item["userId"] == "ann"]
        request: Json = {**LIST, "method": "tools/call", "params": {"name": "ask", "arguments": {"question": QUESTION}}}
        session = (await rig.post(INITIALIZE, rig.ann)).headers["mcp-session-id"]
        answers: list[httpx2.Response] = []

        async def asking() -> None:
            answers.append(await rig.post(request, rig.ann, **{"mcp-session-id": session}))

        group.start_soon(asking)
        with anyio.fail_after(240):
            await stalled.reached.wait()
            await rig.ok("DELETE", f"/api/keys/{key['id']}")
            while await rig.turns() != ["interrupted"] or not answers:
                await pause()
        assert "UNAUTHENTICATED" in answers[0].text
        assert (await rig.post(LIST, rig.ann, **{"mcp-session-id": session})).status_code == 401


@newer_every_time
async def test_roles_are_prompts(tmp_path: Path, mode: str) -> None:
    async with open_live(tmp_path) as rig, rig.client(mode) as client:
        prompts = {prompt.name for prompt in (await client.list_prompts()).prompts}
        roles = await rig.ok("GET", f"/api/domains/{rig.pumps}/roles")
        assert prompts == {role["id"] for role in roles["items"]}
        name = sorted(prompts)[0]
        (message,) = (await client.get_prompt(name)).messages
        assert isinstance(message.content, TextContent)
        assert message.content.text == (await rig.ok("GET", f"/api/domains/{rig.pumps}/roles/{name}"))["text"]
        with pytest.raises(MCPError) as exc_info:
            await client.get_prompt("nobody")
        assert exc_info.value.data["code"] == "ROLE_NOT_FOUND"


ANY: Any = TypeAdapter(Any)


class SkillUri(RequestParams):
    uri: str


@newer_every_time
async def test_skills_are_listed_with_digests_of_their_files(tmp_path: Path, mode: str) -> None:
    text = "---\nname: tables\ndescription: Reads tables.\nlicense: MIT\n---\n\nRead rows first.\n"
    files = {"SKILL.md": text.encode(), "assets/a b.bin": b"\xff\x00"}
    async with open_live(tmp_path) as rig, rig.client(mode) as client:
        for name, data in files.items():
            path = rig.settings.workspaces / rig.pumps / "skills" / "tables" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        extensions = client.server_capabilities.extensions  # the older protocol version cannot express them
        expected = {f"io.modelcontextprotocol/{name}": dict[str, Any]() for name in ("skills", "tasks")}
        assert extensions == (expected if mode == "auto" else None)
        everything: Any = Request(method="skills/list", params=RequestParams())
        skill: Json = (await client.session.send_request(everything, ANY))["skills"][0]
        assert skill["frontmatter"] == {"name": "tables", "description": "Reads tables.", "license": "MIT"}
        assert skill["uri"] == "skill://tables/SKILL.md"
        assert [resource["uri"] for resource in skill["resources"]] == [
            skill["uri"],
            "skill://tables/assets/a%20b.bin",
        ]
        for file, data in zip(skill["resources"], files.values(), strict=True):
            (contents,) = (await client.read_resource(file["uri"])).contents
            data_read = (
                contents.text.encode() if isinstance(contents, TextResourceContents) else b64decode(contents.blob)
            )
            assert (data_read, file["size"]) == (data, len(data))
            assert file["digest"] == f"sha256:{sha256(data).hexdigest()}"
        skill_request: Any = Request(method="skills/get", params=SkillUri(uri=skill["uri"]))
        assert (await client.session.send_request(skill_request, ANY))["skill"] == skill
        for uri in ("skill://tables/assets/..%2F..%2Fx", "skill://tables/a%00b", "skill://nobody/SKILL.md"):
            with pytest.raises(MCPError) as exc_info:
                await client.read_resource(uri)
            assert exc_info.value.data["code"] == "SKILL_NOT_FOUND"
            missing: Any = Request(method="skills/get", params=SkillUri(uri=uri))
            with pytest.raises(MCPError) as exc_info:
                await client.session.send_request(missing, ANY)
            assert exc_info.value.code == INVALID_PARAMS


@eras
async def test_missing_and_foreign_items_are_refused_with_their_code(tmp_path: Path, mode: str) -> None:
    async with open_live(tmp_path) as rig, rig.client(mode) as client:
        other_domain = await rig.domain()
        document = (await rig.upload(other_domain, "pump.md", DOCUMENT))["id"]
        (chunk,) = (await rig.ok("GET", f"/api/domains/{other_domain}/documents/{document}/chunks"))["items"]
        for uri in (
            f"agentic-rag://{other_domain}/chunks/{chunk['chunkId']}",
            f"agentic-rag://{rig.pumps}/chunks/{chunk['chunkId']}",
            f"agentic-rag://{rig.pumps}/chunks/a%00b",
            "file:///etc/passwd",
        ):
            with pytest.raises(MCPError) as exc_info:
                await client.read_resource(uri)
            assert exc_info.value.data["code"] in ("RESOURCE_NOT_FOUND", "CHUNK_NOT_FOUND"), uri
        operators = await rig.conversation(rig.pumps)
        refusals: list[tuple[Json, str]] = [
            ({"question": "Hi", "conversation_id": operators}, "CONVERSATION_NOT_FOUND"),
            ({"question": "Hi", "conversation_id": "a\0b"}, "VALIDATION_ERROR"),
            ({"question": " "}, "MESSAGE_CONTENT_REQUIRED"),
            ({"question": "x" * 10_001}, "MESSAGE_TOO_LONG"),
            ({"question": 3}, "VALIDATION_ERROR"),
            ({}, "VALIDATION_ERROR"),
        ]
        for arguments, code in refusals:
            result = await client.call_tool("ask", arguments)
            assert result.is_error, arguments
            assert result.structured_content["error"]["code"] == code
        assert await rig.turns() == []


async def test_invalid_arguments_have_plain_errors(tmp_path: Path) -> None:
    async with open_live(tmp_path) as rig, rig.client("auto") as client:
        calls: list[tuple[str, Json, str]] = [
            ("search_documents", {"query": 3}, "arguments: query must be text, not a whole number."),
            ("search_documents", {}, "arguments: query is missing: it must be text."),
            ("search_documents", {"query": "a", "top_k": "x"}, "arguments: top_k must be a whole number, not text."),
            ("read_document", {"document": "a", "pages": [1]}, "arguments: pages must be text, not a list."),
            ("ask", {"question": 3}, "arguments: question must be text, not a whole number."),
            ("ask", {}, "arguments: question is missing: it must be text."),
        ]
        for tool, arguments, words in calls:
            result = await client.call_tool(tool, arguments)
            assert (result.is_error, text_of(result)) == (True, f"VALIDATION_ERROR: {words}")
            assert result.structured_content["error"] == {"code": "VALIDATION_ERROR", "message": words}
        session = {"mcp-session-id": (await rig.post(INITIALIZE, rig.ann)).headers["mcp-session-id"]}
        call: Json = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "ask", "arguments": {}}}
        messages: list[tuple[Json, str]] = [
            ({"params": {}}, "params.name: this key is required."),
            ({"params": {"name": 3}}, "params.name: Input should be a valid string."),
            ({"params": 7}, "params: Input should be an object."),
            ({"method": 7}, "method: Input should be a valid string."),
            ({"jsonrpc": "1.0"}, "jsonrpc: Input should be '2.0'."),
        ]
        for changes, words in messages:
            answer = await rig.post({**call, **changes}, rig.ann, **session)
            error = orjson.loads(answer.text.rpartition("data: ")[2])["error"]
            assert (error["code"], error["message"]) == (INVALID_PARAMS, words)
            assert (error["data"]["code"], error["data"]["requestId"]) == (
                "VALIDATION_ERROR",
                answer.headers["x-request-id"],
            )
            assert "pydantic" not in answer.text
        response = await rig.post([], rig.ann, **session)
        assert (response.status_code, "pydantic" in response.text) == (400, False)


async def test_the_endpoint_is_closed_to_strangers_and_other_tenants(tmp_path: Path) -> None:
    async with open_live(tmp_path) as rig:
        mallory = await make_key(rig, "mallory", "member", await rig.domain())
        for key, status, code in [
            (None, 401, "UNAUTHENTICATED"),
            ("arag_wrong", 401, "UNAUTHENTICATED"),
            (mallory, 404, "DOMAIN_NOT_FOUND"),
        ]:
            for version in ({}, {"mcp-protocol-version": "2026-07-28"}):
                refusal = await rig.post(INITIALIZE, key, **version)
                assert (refusal.status_code, refusal.json()["error"]["data"]["code"]) == (status, code)
                assert refusal.json()["jsonrpc"] == "2.0"
                assert ("www-authenticate" in refusal.headers) == (status == 401)
        for header in ({"origin": "http://evil.example"}, {"host": "evil.example"}):
            assert (await rig.post(INITIALIZE, rig.ann, **header)).status_code == 403


async def test_a_session_is_visible_to_its_owner_only(tmp_path: Path) -> None:
    async with open_live(tmp_path) as rig:
        opening = await rig.post(INITIALIZE, rig.ann)
        session = {"mcp-session-id": opening.headers["mcp-session-id"]}
        assert (await rig.post(LIST, rig.ann, **session)).status_code == 200
        other_keys = [await make_key(rig, user, "member", rig.pumps) for user in ("bob", "ann")]
        for key in (*other_keys, rig.application.access.local_key):
            assert (await rig.post(LIST, key, **session)).status_code == 404
            async with httpx2.AsyncClient(headers=bearer(key), trust_env=False) as http:
                assert (await http.delete(rig.url, headers=session)).status_code == 404
        second_domain = await rig.domain()
        rig.pumps, first = second_domain, rig.pumps
        operator = rig.application.access.local_key
        assert (await rig.post(LIST, operator, **session)).status_code == 404
        rig.pumps = first
        async with httpx2.AsyncClient(headers=bearer(rig.ann), trust_env=False) as http:
            assert (await http.delete(rig.url, headers=session)).status_code == 200
        assert (await rig.post(LIST, rig.ann, **session)).status_code == 404


async def test_sessions_are_bounded_by_key_and_requests_by_size(tmp_path: Path) -> None:
    async with open_live(tmp_path) as rig:
        bob = await make_key(rig, "bob", "member", rig.pumps)
        for _ in range(SESSIONS):
            assert (await rig.post(INITIALIZE, bob)).status_code == 200
        assert (await rig.post(INITIALIZE, bob)).status_code == 503
        assert (await rig.post(INITIALIZE, rig.ann)).status_code == 200
        large = {**LIST, "params": {"cursor": "x" * 2**20}}
        for version in ({}, {"mcp-protocol-version": "2026-07-28"}):
            assert (await rig.post(large, rig.ann, **version)).status_code == 413
            async with httpx2.AsyncClient(headers={**JSON, **bearer(rig.ann), **version}, trust_env=False) as http:
                deep = await http.post(rig.url, content=b'{"a":' + b"[" * 100_000)
                assert deep.status_code == 400
                assert deep.json()["error"]["code"] == -32700
                assert (await http.get(rig.url)).status_code == 405


async def test_an_idle_session_is_closed(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        path, application = f"/mcp/{await rig.domain()}", rig.application
        async with McpDoor(application.services, sessions=1, idle_seconds=0.2) as door:
            app = make_app(application.services, application.access, application.parts.audit, Gate(), door)
            transport = httpx2.ASGITransport(app)
            async with httpx2.AsyncClient(base_url="http://127.0.0.1", headers=JSON, transport=transport) as http:
                first = (await http.post(path, json=INITIALIZE)).headers["mcp-session-id"]
                with anyio.fail_after(240):
                    while (await http.post(path, json=INITIALIZE)).status_code == 503:
                        await pause()
                assert (await http.post(path, json=LIST, headers={"mcp-session-id": first})).status_code == 404


async def test_without_sessions_each_request_is_independent_and_ends_with_its_connection(tmp_path: Path) -> None:
    stalled = Stalled(say("It holds and holds"), 2)
    async with Live(tmp_path, stalled) as rig:
        path, application = f"/mcp/{await rig.domain()}", rig.application
        async with McpDoor(application.services, keeps_sessions=False) as door:
            app = make_app(application.services, application.access, application.parts.audit, Gate(), door)
            async with serving(app) as address, httpx2.AsyncClient(headers=JSON, trust_env=False) as http:
                url = f"http://{address}{path}"
                opening = await http.post(url, json=INITIALIZE)
                assert (opening.status_code, "mcp-session-id" in opening.headers) == (200, False)
                assert "search_documents" in (await http.post(url, json=LIST)).text
                assert "search_documents" in (await http.post(url, json=LIST, headers={"mcp-session-id": "x"})).text
                assert (await http.delete(url)).status_code == 405
                call = {"method": "tools/call", "params": {"name": "ask", "arguments": {"question": QUESTION}}}
                async with http.stream("POST", url, json={**LIST, **call}):
                    await stalled.reached.wait()
            with anyio.fail_after(240):
                while await rig.turns() != ["interrupted"]:
                    await pause()


async def test_odd_messages_are_refused_without_a_failure(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:  # its client finds each status in the OpenAPI document
        path, modern = f"/mcp/{await rig.domain()}", "2026-07-28"
        for version in ({}, {"mcp-protocol-version": modern}, {"mcp-protocol-version": "1999-01-01"}):
            for kind, body in [
                ("text/plain", b"x"),
                ("application/json", b""),
                ("application/json", b"[]"),
                ("application/json", b'{"jsonrpc": "2.0", "id": 1, "method": "nope"}'),
            ]:
                headers = {**JSON, **version, "content-type": kind}
                assert (await rig.http.post(path, content=body, headers=headers)).status_code == 400
            response = await rig.http.delete(path, headers=version)
            assert response.status_code == (405 if version else 400)
        meta = {"protocolVersion": modern, "clientCapabilities": {}}
        surrogate = r"\ud800"
        for method, name, params in [
            ("tools/call", "ask", f'"name": "ask", "arguments": {{"question": "{surrogate}"}}'),
            ("tools/call", "search_documents", f'"name": "search_documents", "arguments": {{"query": "{surrogate}"}}'),
            ("resources/read", "x", f'"uri": "agentic-rag://{surrogate}/chunks/x"'),
            ("prompts/get", "x", f'"name": "{surrogate}"'),
        ]:
            entries = ", ".join(
                f'"io.modelcontextprotocol/{key}": {orjson.dumps(value).decode()}' for key, value in meta.items()
            )
            message = (
                f'{{"jsonrpc": "2.0", "id": 1, "method": "{method}", "params": {{"_meta": {{{entries}}}, {params}}}}}'
            )
            headers = {**JSON, "mcp-protocol-version": modern, "mcp-method": method, "mcp-name": name}
            reply = (await rig.http.post(path, content=message.encode(), headers=headers)).json()
            assert "error" in reply or reply["result"]["isError"], reply
            assert "INTERNAL_ERROR" not in str(reply), reply
            assert "-32603" not in str(reply), reply


class _TaskParams(RequestParams):
    task_id: str


class _TaskRequest(Request[_TaskParams, str]):
    name_param: ClassVar[str | None] = "taskId"


class _UnroutedRequest(_TaskRequest):
    name_param: ClassVar[str | None] = None


class _Created(Result):
    result_type: Literal["task"]
    task_id: str
    status: str


async def about_task(session: Any, method: str, task_id: str, kind: type[_TaskRequest] = _TaskRequest) -> Json:
    """Query a task as the extension's specification defines it; return the result."""
    request = kind(method=f"tasks/{method}", params=_TaskParams(task_id=task_id))
    return dict(await session.send_request(request, TypeAdapter(dict[str, Any])))


class Polling(ClientExtension):
    """A client that accepts tasks and asks for their results."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self) -> None:
        self.states: list[str] = []

    def claims(self) -> Any:
        return (ResultClaim(result_type="task", model=_Created, resolve=self._resolve),)

    async def _resolve(self, created_task: _Created, context: ClaimContext) -> CallToolResult:
        while True:
            task = await about_task(context.session, "get", created_task.task_id)
            self.states.append(task["status"])
            if task["status"] == "completed":
                return CallToolResult.model_validate(task["result"])
            await pause()


async def test_a_client_that_accepts_tasks_gets_its_answer_as_a_task(tmp_path: Path) -> None:
    polling = Polling()
    async with open_live(tmp_path, *FOUND) as rig, rig.client("auto", extensions=[polling]) as client:
        answer = await client.call_tool("ask", {"question": QUESTION})
        assert text_of(answer) == "It holds twelve bar."
        assert answer.structured_content is not None
        assert answer.structured_content["citations"][0]["cited_text"] == "The pump holds twelve bar."
        assert polling.states[-1] == "completed"
        task_id = answer.structured_content["turn_id"]
        bob = await make_key(rig, "bob", "member", rig.pumps)
        async with rig.client("auto", bob, extensions=[Polling()]) as other_client:
            with pytest.raises(MCPError, match="There is no turn"):
                await about_task(other_client.session, "get", task_id)
        async with rig.client("auto") as without:
            with pytest.raises(MCPError, match="needs the client capability") as missing:
                await about_task(without.session, "get", task_id)
            assert missing.value.error.code == -32021


async def test_a_task_outlives_its_request_and_can_be_cancelled(tmp_path: Path) -> None:
    stalled = Stalled(say("Some words, and more."), after=2)
    async with open_live(tmp_path, stalled) as rig, rig.client("auto", extensions=[Polling()]) as client:
        created_task = await client.session.call_tool("ask", {"question": QUESTION}, allow_claimed=True)
        assert isinstance(created_task, _Created)
        await stalled.reached.wait()
        working = await about_task(client.session, "get", created_task.task_id)
        assert (working["status"], working["statusMessage"], working["ttlMs"]) == ("working", "Step 1", None)
        assert (await about_task(client.session, "update", created_task.task_id))["resultType"] == "complete"
        with pytest.raises(MCPError, match="must hold the request's 'taskId'") as mismatch:
            await about_task(client.session, "get", created_task.task_id, _UnroutedRequest)
        assert mismatch.value.error.code == HEADER_MISMATCH
        await about_task(client.session, "cancel", created_task.task_id)
        with anyio.fail_after(60):
            while (await about_task(client.session, "get", created_task.task_id))["status"] != "cancelled":
                await pause()
        assert await rig.turns() == ["interrupted"]


async def test_the_server_card_describes_how_to_connect(tmp_path: Path) -> None:
    async with open_live(tmp_path) as rig, httpx2.AsyncClient(trust_env=False) as http:
        await rig.ok("PATCH", f"/api/domains/{rig.pumps}", {"description": "All about pumps.\n" * 20})
        answer = await http.get(f"{rig.url}/server-card", headers=bearer(rig.ann))
        assert answer.headers["content-type"] == "application/mcp-server-card+json"
        card = answer.json()
        assert card["$schema"] == "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"
        assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", card["name"])
        assert (card["title"], len(card["description"]), "\n" in card["description"]) == ("Law", 100, False)
        (remote,) = card["remotes"]
        assert (remote["type"], remote["url"]) == ("streamable-http", rig.url)
        assert set(remote["supportedProtocolVersions"]) == set(SUPPORTED_PROTOCOL_VERSIONS)
        assert remote["headers"][0]["name"] == "Authorization"
        eve = await make_key(rig, "eve", "member", await rig.domain())
        assert (await http.get(f"{rig.url}/server-card", headers=bearer(eve))).status_code == 404
