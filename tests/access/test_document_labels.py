"""Document labels: no endpoint shows a document to a reader who lacks one of its labels."""

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from starlette.routing import Route
from websockets.asyncio.client import connect

from agentic_rag.base.messages import without_private
from agentic_rag.models.base import ModelEvent, ModelRequest
from agentic_rag.server.routing import RouteEndpoint
from agentic_rag.testing.scripted import ScriptedModel
from agentic_rag.testing.steps import Cite, Say, Step, Use, say
from tests.access.issuer import issuing
from tests.access.tenants import as_operator, bearer
from tests.access.test_oidc import rig_with
from tests.server.rig import Json, Rig, events_of
from tests.waiting import pause
from tests.ws.serving import Client, serving

pytestmark = pytest.mark.attack(kind="web")

LABELS = ("board", "hr files", "legal")
GROUPS = ("Alle Mitarbeiter", 'a"b\\c*%/☃', "grp:{legal}")
MCP = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}


ENGRAM = {"content": "Ann likes tea.", "schema": "ann\n  tea", "strength": 0.5, "type": "ATOMIC"}


class Plant:
    """A domain whose documents have unique words, and a model that asks for all documents in every turn.

    ``name_of`` and ``words_of`` return a document's secret words, which occur only in its name and its text.
    """

    def __init__(self, rig: Rig, model: ScriptedModel, domain: str, count: int) -> None:
        self.rig, self.model, self.domain, self.count = rig, model, domain, count
        self.path = f"/api/domains/{domain}"
        self.ids: list[str] = []
        self.target = ""
        self.keys: dict[str, str] = {}

    @staticmethod
    def name_of(number: int) -> str:
        return f"zebraname{number}q"

    @staticmethod
    def words_of(number: int) -> str:
        return f"zebratext{number}q"

    async def build(self) -> None:
        for number in range(self.count):
            text = f"# Pumps\n\nThe pumpword of this plant is {self.words_of(number)}, and twelve bar."
            document = await self.rig.upload(self.domain, f"{self.name_of(number)}.md", text.encode())
            self.ids.append(document["id"])

    def secrets(self, numbers: Sequence[int]) -> list[str]:
        return [word for number in numbers for word in (self.name_of(number), self.words_of(number))]

    async def label(self, number: int, *labels: str) -> None:
        as_operator(self.rig)
        body = {"labels": list(labels)}
        document = await self.rig.ok("PATCH", f"{self.path}/documents/{self.ids[number]}", body)
        assert document["labels"] == sorted(set(labels))

    async def settings(self, **settings: Any) -> None:
        as_operator(self.rig)
        await self.rig.ok("PUT", self.path, {"settings": settings})

    async def key(self, user: str, *groups: str, role: str = "member") -> str:
        as_operator(self.rig)
        body = {"user": user, "role": role, "domains": [self.domain], "groups": list(groups)}
        return str((await self.rig.ok("POST", "/api/keys", body))["key"])

    async def ask(self, key: str, method: str, path: str, json: Any = None, **headers: str) -> httpx2.Response:
        return await self.rig.http.request(method, path, json=json, headers={**bearer(key), **headers})

    def answer(self, request: ModelRequest) -> Step:
        """Call all tools for documents, then cite the results."""
        last = request.messages[-1]["content"]
        if not any(block["type"] == "tool_result" for block in last):
            return Step(
                (
                    Use("search_documents", {"query": "pumpword of the plant", "top_k": 50}),
                    Use("list_documents", {}),
                    Use("read_document", {"document": self.target}),
                    Use("find_in_document", {"document": self.target, "pattern": "pumpword"}),
                )
            )
        hits = [part for block in last for part in block.get("content", ()) if part["type"] == "search_result"]
        return Step((Say("The pumpword is that.", (Cite(0),) if hits else ()),))


@asynccontextmanager
async def plant(folder: Path, count: int = 4, **options: Any) -> AsyncIterator[Plant]:
    made: list[Plant] = []
    model = ScriptedModel(then=lambda request: made[0].answer(request), pause=options.pop("pause", None))
    async with Rig(folder, instead=model, requests_per_second=10_000, messages_per_minute=10_000, **options) as rig:
        made.append(Plant(rig, model, await rig.domain(), count))
        await made[0].build()
        yield made[0]


QUESTION = "What is the pumpword?"
DIALECTS = ("native", "observable", "message", "agentx", "knowledge", "chat", "ag-ui", "ui-message", "openai")
"""Dialects of the native stream. The knowledge contract's own route has the default domain and the same encoder."""
DOORS = (
    *(f"dialect {name}" for name in DIALECTS),
    *("socket", "chat completions", "completion stream", "responses", "response stream", "older chat"),
    *("AG-UI", "UI messages", "A2A", "MCP ask"),
)


async def turn_of(found: Plant, key: str, door: str, number: int, address: str) -> list[str]:
    """Run a turn through a door, and return everything that the door and the native routes show of it.

    ``number`` is the number of the round. ``address`` is the address of the application.
    """
    conversations = f"/api/conversations?domainId={found.domain}"
    part = {"type": "text", "text": QUESTION}
    texts = []
    if door.startswith("dialect ") or door == "socket":
        conversation = (await found.ask(key, "POST", "/api/conversations", {"domainId": found.domain})).json()["id"]
        if door == "socket":
            async with socket_of(address, key) as client:
                await client.ask("message", conversationId=conversation, content=QUESTION)
                texts.append(str(await client.hear_turn()))
        path = f"/api/conversations/{conversation}/messages?dialect={door.removeprefix('dialect ')}"
        body: Json = {"content": QUESTION}
    elif door in ("chat completions", "completion stream"):
        path, said = "/v1/chat/completions", [{"role": "user", "content": QUESTION}]
        body = {"model": found.domain, "messages": said, "store": True, "stream": door == "completion stream"}
    elif door in ("responses", "response stream"):
        path = "/v1/responses"
        body = {"model": found.domain, "input": QUESTION, "stream": door == "response stream"}
    elif door == "older chat":
        path, body = "/api/v1/chat", {"message": QUESTION, "agent_id": found.domain}
    elif door == "AG-UI":
        path, message = f"/api/ag-ui/{found.domain}", {"id": f"u{number}", "role": "user", "content": QUESTION}
        body = {"threadId": f"t{number}", "runId": f"r{number}", "messages": [message]}
    elif door == "UI messages":
        path = f"/api/ui-message/{found.domain}"
        body = {"id": f"c{number}", "messages": [{"id": f"u{number}", "role": "user", "parts": [part]}]}
    elif door == "A2A":
        path, parts = f"/a2a/{found.domain}", [{"kind": "text", "text": QUESTION}]
        asked: Json = {"kind": "message", "messageId": f"a{number}", "role": "user", "parts": parts}
        body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": asked}}
    else:
        texts.append(await mcp_call(found, key, "ask", {"question": QUESTION}))
    if not texts:
        response = await found.ask(key, "POST", path, body)
        assert response.status_code == 200, response.text
        texts.append(response.text)
    (latest,) = (await found.ask(key, "GET", f"{conversations}&pageSize=1")).json()["items"]
    path = f"/api/conversations/{latest['id']}"
    retrievals = await found.ask(key, "GET", f"{found.path}/retrievals?conversationId={latest['id']}")
    messages = (await found.ask(key, "GET", f"{path}/messages")).json()["items"]
    turn = messages[-1]["turnId"]
    paths = [f"{path}/messages", f"{path}/messages?format=html", f"{path}/tool-calls", path, f"{path}/branches"]
    paths += [f"{path}/export?format={form}" for form in ("markdown", "json", "html")]
    paths += [f"/api/turns/{turn}/events", f"/api/turns/{turn}", f"/api/turns/{turn}/stream?offset=-1"]
    paths += [f"/v1/responses/resp_{turn.removeprefix('turn_')}", conversations, f"{found.path}/memories/export"]
    paths += [f"{found.path}/retrievals/{line['retrievalId']}" for line in retrievals.json()["items"]]
    return [*texts, retrievals.text, *[(await found.ask(key, "GET", path)).text for path in paths]]


async def mcp_call(found: Plant, key: str, tool: str, arguments: Json) -> str:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    begin: Json = {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }
    path = f"/mcp/{found.domain}"
    response = await found.ask(key, "POST", path, begin, **MCP)
    session = {"mcp-session-id": response.headers["mcp-session-id"]} if "mcp-session-id" in response.headers else {}
    called = await found.ask(key, "POST", path, call, **MCP, **session)
    assert '"result"' in called.text, called.text
    await found.ask(key, "DELETE", path, **MCP, **session)  # a server has few open sessions
    return called.text


async def reads_of(found: Plant, key: str, number: int, chunks: Mapping[int, str]) -> list[httpx2.Response]:
    """Ask every route for one document."""
    document = f"{found.path}/documents/{found.ids[number]}"
    chunk = f"{found.path}/chunks/{chunks[number]}"
    paths = [document, f"{document}/file", f"{document}/chunks", f"{document}/pages/1", chunk, f"{chunk}/place"]
    return [await found.ask(key, "GET", path) for path in paths]


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(len(DOORS), marks=pytest.mark.slow("runs a turn through each door")),
        pytest.param(500, marks=pytest.mark.nightly("the same with more combinations")),
    ],
)
async def test_no_endpoint_shows_a_document_to_a_reader_without_its_labels(tmp_path: Path, rounds: int) -> None:
    choice = random.Random(42)
    async with plant(tmp_path) as found, AsyncExitStack() as stack:
        chunks = {}
        for number, document in enumerate(found.ids):
            chunk_page = await found.rig.ok("GET", f"{found.path}/documents/{document}/chunks")
            chunks[number] = chunk_page["items"][0]["chunkId"]
        readers = {
            await found.key(f"reader{number}", *groups): groups
            for number, groups in enumerate([(), GROUPS[:1], GROUPS[1:], GROUPS])
        }
        address = await stack.enter_async_context(serving(found.rig.application.app))
        seen_hidden = seen_shown = 0
        for turn in range(rounds):
            group_labels = {group: choice.sample(LABELS, choice.randrange(3)) for group in choice.sample(GROUPS, 2)}
            await found.settings(groupLabels=group_labels)
            labels = {}
            for number in range(found.count):
                labels[number] = set(choice.sample(LABELS, choice.choice((0, 1, 1, 2))))
                await found.label(number, *labels[number])
            key, groups = choice.choice(list(readers.items()))
            own = {label for group in groups for label in group_labels.get(group, ())}
            hidden = [number for number in labels if not labels[number] <= own]
            shown = [number for number in labels if labels[number] <= own]
            number = choice.randrange(found.count)
            found.target = found.ids[number]
            before = len(found.model.requests)
            texts = await turn_of(found, key, DOORS[turn % len(DOORS)], turn, address)
            texts += [str(request) for request in found.model.requests[before:]]
            texts.append(await mcp_call(found, key, "search_documents", {"query": "pumpword", "top_k": 50}))
            texts.append(await mcp_call(found, key, "read_document", {"document": found.target}))
            chunk_page = await found.ask(key, "GET", f"{found.path}/documents")
            texts.append(chunk_page.text)
            assert [item["id"] for item in chunk_page.json()["items"]] == [found.ids[item] for item in shown]
            domain = (await found.ask(key, "GET", found.path)).json()
            assert domain["documentCount"] == len(shown)
            reads = await reads_of(found, key, number, chunks)
            codes = [response.status_code for response in reads]
            assert codes == ([404] * 6 if number in hidden else [200, 200, 200, 415, 200, 200]), (codes, reads)
            texts += [response.text for response in reads if number in hidden]
            for word in found.secrets(hidden):
                assert not any(word in text for text in texts), (word, labels, own)
            assert all(any(word in text for text in texts) for word in found.secrets(shown)), (labels, own)
            seen_hidden += len(hidden)
            seen_shown += len(shown)
        assert min(seen_hidden, seen_shown) > rounds / 2


async def test_a_label_given_while_a_turn_runs_counts_from_its_next_tool_call(tmp_path: Path) -> None:
    found: Plant

    async def pause(call: int, event: int, _: ModelEvent) -> None:
        if (call, event) == (1, 0):
            await found.label(0, "board")

    async with plant(tmp_path, 1, pause=pause) as found:
        key = await found.key("ann")
        found.target = found.ids[0]
        search = Use("search_documents", {"query": "pumpword of the plant"})
        steps = iter([Step((search,)), Step((search,)), say("Done.")])
        found.answer = lambda request: next(steps)  # type: ignore[method-assign]
        created = await found.ask(key, "POST", "/api/conversations", {"domainId": found.domain})
        response = await found.ask(
            key, "POST", f"/api/conversations/{created.json()['id']}/messages", {"content": "What?"}
        )
        events = events_of(response.text)
        results = [event for event in events if event["type"] == "tool_result"]
        assert found.words_of(0) in results[0]["content"]
        assert "There are no documents that can be searched." in results[1]["content"]
        assert not any(word in results[1]["content"] for word in found.secrets([0]))
        # nor is the passage of an earlier search repeated to the model
        first, second, third = (str(without_private(list(request.messages))) for request in found.model.requests)
        assert found.words_of(0) not in first
        assert found.words_of(0) in second
        assert not any(word in third for word in found.secrets([0]))


async def test_an_answer_keeps_its_text_and_loses_its_passages_with_the_label(tmp_path: Path) -> None:
    async with plant(tmp_path, 2) as found:
        await found.settings(groupLabels={"staff": ["hr files"]})
        await found.label(0, "hr files")
        await found.label(1, "board")
        key = await found.key("ann", "staff")
        found.target = found.ids[0]
        created = await found.ask(key, "POST", "/api/conversations", {"domainId": found.domain})
        path = f"/api/conversations/{created.json()['id']}"
        response = await found.ask(key, "POST", f"{path}/messages", {"content": "What?", "clientMessageId": "m1"})
        turn = events_of(response.text)[0]["turnId"]
        (_, answer) = (await found.ask(key, "GET", f"{path}/messages")).json()["items"]
        (reference,) = answer["references"]
        assert reference["documentName"].startswith(found.name_of(0))
        place = f"{found.path}/chunks/{reference['chunkId']}/place"
        assert (await found.ask(key, "GET", place)).status_code == 200
        calls = (await found.ask(key, "GET", f"{path}/tool-calls")).json()["items"]
        retrieval = (
            await found.ask(key, "GET", f"{found.path}/retrievals?conversationId={created.json()['id']}")
        ).json()

        await found.settings(groupLabels={})
        after = (await found.ask(key, "GET", f"{path}/messages")).json()["items"][1]
        assert after["content"] == answer["content"] == "The pumpword is that."
        assert [reference["number"] for reference in after["references"]] == [1]
        assert (await found.ask(key, "GET", place)).status_code == 404
        paths = [f"{path}/messages", f"{path}/messages?format=html", f"{path}/messages/{answer['id']}"]
        paths += [f"{path}/tool-calls", f"/api/turns/{turn}", f"/api/turns/{turn}/children", f"{found.path}/retrievals"]
        paths += [f"/api/turns/{turn}/events", f"/api/turns/{turn}/stream?offset=-1", f"/v1/responses/resp_{turn[5:]}"]
        paths += [f"{found.path}/retrievals/{retrieval['items'][0]['retrievalId']}", path, f"{path}/branches"]
        paths += [f"/v1/responses/resp_{turn[5:]}?stream=true", f"/api/conversation/{created.json()['id']}/messages"]
        for each in paths:
            text = (await found.ask(key, "GET", each)).text
            assert not any(word in text for word in found.secrets([0, 1])), each
        for each in (f"/api/turns/{turn}/events", f"/api/turns/{turn}/stream?offset=-1"):
            assert (await found.ask(key, "GET", each)).json()["error"]["code"] == "LOG_GONE"
        repeated = await found.ask(key, "POST", f"{path}/messages", {"content": "What?", "clientMessageId": "m1"})
        assert repeated.json()["error"]["code"] == "LOG_GONE"
        async with serving(found.rig.application.app) as address, socket_of(address, key) as client:
            await client.ask("subscribe", conversationId=created.json()["id"], turnId=turn)
            frame = await client.hear()
            assert frame["type"] == "resync"
        for call in calls:
            if ref := call.get("ref"):
                assert (await found.ask(key, "GET", f"/api/payloads/{ref}")).status_code == 404
        # the next turn repeats neither passages nor quotes to the model
        before = len(found.model.requests)
        found.target = "x"
        assert (await found.ask(key, "POST", f"{path}/messages", {"content": "And?"})).status_code == 200
        for request in found.model.requests[before:]:
            assert not any(word in str(without_private(list(request.messages))) for word in found.secrets([0, 1]))
        # with the label, everything is visible again
        await found.settings(groupLabels={"staff": ["hr files"]})
        assert (await found.ask(key, "GET", f"{path}/messages")).json()["items"][1] == answer
        assert (await found.ask(key, "GET", f"/api/turns/{turn}/events")).text == response.text


@asynccontextmanager
async def socket_of(address: str, key: str) -> AsyncIterator[Client]:

    async with connect(
        f"ws://{address}/ws", additional_headers=bearer(key), compression=None, proxy=None
    ) as connection:
        yield Client(connection)


async def test_a_wait_names_no_document_that_its_reader_may_no_longer_see(tmp_path: Path) -> None:
    async with plant(tmp_path, 1) as found:
        await found.settings(groupLabels={"staff": ["board"]}, toolPolicy={"promptx_remember": "ask"})
        await found.label(0, "board")
        key = await found.key("ann", "staff")
        steps = iter(
            [
                Step((Use("search_documents", {"query": "pumpword of the plant"}),)),
                Step((Use("promptx_remember", {"engrams": [ENGRAM]}),)),
                say("Done."),
            ]
        )
        found.answer = lambda request: next(steps)  # type: ignore[method-assign]
        conversation = (await found.ask(key, "POST", "/api/conversations", {"domainId": found.domain})).json()["id"]
        path = f"/api/conversations/{conversation}/messages"
        await found.ask(key, "POST", path, {"content": "Remember it."}, accept="application/json")
        with anyio.fail_after(60):
            while not (waits := (await found.ask(key, "GET", "/api/waits?state=open")).json()["items"]):
                await pause()
        wait = waits[0]["id"]
        paths = [f"/api/waits/{wait}", "/api/waits?state=open", "/api/waits"]
        for each in paths:
            assert found.name_of(0) in (await found.ask(key, "GET", each)).text
        await found.settings(groupLabels={}, toolPolicy={"promptx_remember": "ask"})
        for each in paths:
            text = (await found.ask(key, "GET", each)).text
            assert found.name_of(0) not in text, each
            assert "[removed]" in text
        response = await found.ask(key, "POST", paths[0], {"action": "decline"})
        assert (response.status_code, found.name_of(0) in response.text) == (200, False)
        await found.settings(groupLabels={"staff": ["board"]})
        assert found.name_of(0) in (await found.ask(key, "GET", paths[0])).text


async def test_no_route_for_members_or_authors_names_a_hidden_document(tmp_path: Path) -> None:
    async with plant(tmp_path, 2) as found:
        await found.label(0, "board")
        chunks = await found.rig.ok("GET", f"{found.path}/documents/{found.ids[0]}/chunks")
        await found.rig.ok("POST", f"{found.path}/documents/search", {"query": "pumpword"})
        case = {"questions": ["What?"], "expect": {"cites": [{"document": found.name_of(0), "text": "twelve"}]}}
        await found.rig.ok("POST", f"{found.path}/evaluation/cases", case)
        searches = await found.rig.ok("GET", f"{found.path}/retrievals")
        ids = {
            "domain": found.domain,
            "document": found.ids[0],
            "chunk": chunks["items"][0]["chunkId"],
            "retrieval": searches["items"][0]["retrievalId"],
            "page": "1",
        }
        checked = 0
        for role in ("member", "author"):
            key = await found.key(role, role=role)
            for route in found.rig.application.app.routes:
                if not isinstance(route, Route):
                    continue
                assert isinstance(route.endpoint, RouteEndpoint)
                declaration = route.endpoint.declared
                names = [name for name in route.param_convertors if name not in ids]
                if names or declaration.rule.allow not in ("user", "member", "author"):
                    continue
                path = declaration.path.format(**ids)
                body: Json | None = None if declaration.method == "GET" else {}
                response = await found.ask(key, declaration.method, path, body)
                checked += 1
                assert not any(word in response.text for word in found.secrets([0])), (declaration.method, path)
                if {"document", "chunk", "retrieval"} & route.param_convertors.keys():
                    assert response.status_code == 404, (declaration.method, path)
        assert checked > 50


async def test_folder_rules_label_files_below_them_and_follow_renames(tmp_path: Path) -> None:
    async with plant(tmp_path, 1) as found:
        key, admin = await found.key("ann"), await found.key("root", role="admin")
        folder = found.rig.settings.workspaces / found.domain / "documents"
        (folder / "HR").mkdir()
        (folder / "HR" / "pay.md").write_text("# Pay\n\nzebrapayword and more.")
        await found.settings(folderLabels={"hr": ["hr files"], "*-secret.md": ["board"]})
        await found.rig.ok("POST", f"{found.path}/documents/rescan")
        await found.rig.taken_up(found.domain)

        async def names(reader_key: str) -> set[str]:
            return {
                document["name"]
                for document in (await found.ask(reader_key, "GET", f"{found.path}/documents")).json()["items"]
            }

        all_names = {"pay.md", f"{found.name_of(0)}.md"}
        assert (await names(key), await names(admin)) == ({f"{found.name_of(0)}.md"}, all_names)
        documents = (await found.ask(admin, "GET", f"{found.path}/documents")).json()["items"]
        assert {document["name"]: document["folderLabels"] for document in documents}["pay.md"] == ["hr files"]
        (folder / "HR" / "pay.md").rename(folder / "pay.md")
        (folder / f"{found.name_of(0)}.md").rename(folder / "x-Secret.md")
        await found.rig.ok("POST", f"{found.path}/documents/rescan")
        await found.rig.taken_up(found.domain)
        assert await names(key) == {"pay.md"}
        await found.settings(groupLabels={"all": ["board"]}, folderLabels={"*-secret.md": ["board"]})
        assert await names(await found.key("bob", "all")) == {"pay.md", "x-Secret.md"}


async def test_uploads_add_labels_and_never_remove_any(tmp_path: Path) -> None:
    async with plant(tmp_path, 0) as found:
        key = await found.key("ann")

        async def upload(name: str, text: bytes, **query: str) -> Json:
            as_operator(found.rig)
            path = f"{found.path}/documents"
            response = await found.rig.ok("POST", path, params=query, files={"file": (name, text)})
            return await found.rig.settled(found.domain, response["items"][0]["id"])

        first = await upload("a.md", b"one text", label="board,legal")
        assert first["labels"] == ["board", "legal"]
        assert (await upload("b.md", b"one text"))["labels"] == ["board", "legal"]
        assert (await upload("a.md", b"another text", replace="true"))["labels"] == ["board", "legal"]
        plain = await upload("c.md", b"plain text")
        assert plain["labels"] == []
        assert (await upload("d.md", b"plain text", label="hr files"))["labels"] == ["hr files"]
        await upload("e.md", b"free text")
        # both names have the same bytes now, which are one document with the labels of both
        assert (await upload("a.md", b"free text", replace="true"))["labels"] == ["board", "legal"]
        assert (await found.ask(key, "GET", f"{found.path}/documents")).json()["items"] == []
        refusal = await found.rig.refused("POST", f"{found.path}/documents?label=%20x", files={"file": ("f.md", b"f")})
        assert refusal[:2] == (422, "VALIDATION_ERROR")
        audit = await found.rig.ok("GET", "/api/audit", params={"limit": "200"})
        assert [row["details"]["labels"] for row in audit["items"] if row["action"] == "document.update"]


async def test_a_revoked_key_and_a_change_of_groups_end_their_rights(tmp_path: Path) -> None:
    async with plant(tmp_path, 1) as found:
        await found.settings(groupLabels={"staff": ["board"]})
        await found.label(0, "board")
        with_group, without = await found.key("ann", "staff"), await found.key("ann")
        document = f"{found.path}/documents/{found.ids[0]}"
        assert (await found.ask(with_group, "GET", document)).status_code == 200
        refusal = (await found.ask(without, "GET", document)).json()["error"]
        unknown_refusal = (await found.ask(without, "GET", f"{found.path}/documents/doc_x")).json()["error"]
        assert refusal["message"].replace(found.ids[0], "doc_x") == unknown_refusal["message"]
        body: Json = {"domainId": found.domain, "contextDocumentIds": [found.ids[0]]}
        assert (await found.ask(without, "POST", "/api/conversations", body)).status_code == 404
        assert (await found.ask(with_group, "POST", "/api/conversations", body)).status_code == 201
        keys = (await found.rig.ok("GET", "/api/keys"))["items"]
        assert sorted(tuple(row["groups"]) for row in keys) == [(), ("staff",)]
        await found.settings(groupLabels={"Staff": ["board"], "staff ": ["board"]})
        assert (await found.ask(with_group, "GET", document)).status_code == 404


async def test_memories_of_a_labelled_document_are_hidden_from_readers_without_its_label(tmp_path: Path) -> None:
    async with plant(tmp_path, 1) as found:
        shared: Json = {"memoryScope": "domain", "toolPolicy": {"promptx_remember": "allow"}}
        await found.settings(groupLabels={"staff": ["board"]}, **shared)
        await found.label(0, "board")
        ann, bob = await found.key("ann", "staff"), await found.key("bob")
        memory = {"content": "Zebramemory is kept", "schema": "Zebramemory pumps", "strength": 0.9, "type": "ATOMIC"}
        own = {"content": "Bobs own fact", "schema": "Bobsfact pumps", "strength": 0.5, "type": "ATOMIC"}
        steps = iter(
            [
                Step((Use("search_documents", {"query": "pumpword"}),)),
                Step((Use("promptx_remember", {"engrams": [memory]}),)),
                say("Saved."),
                Step((Use("promptx_recall", {"query": "Zebramemory"}), Use("promptx_recall", {}))),
                Step((Use("promptx_remember", {"engrams": [memory, own]}),)),
                say("Saved mine."),
            ]
        )
        found.answer = lambda request: next(steps)  # type: ignore[method-assign]

        async def turn(key: str) -> str:
            created = await found.ask(key, "POST", "/api/conversations", {"domainId": found.domain})
            response = await found.ask(
                key, "POST", f"/api/conversations/{created.json()['id']}/messages", {"content": "Do"}
            )
            return response.text

        async def memories(key: str) -> list[str]:
            path = f"{found.path}/memories"
            page = (await found.ask(key, "GET", path)).json()
            assert page["total"] == len(page["items"])
            texts = [
                (await found.ask(key, "GET", f"{path}/{operation}?role=assistant")).text
                for operation in ("recall", "export")
            ]
            assert len({"Zebramemory" in text for text in texts}) == 1
            return [memory["content"] for memory in page["items"]]

        assert "Saved 1 memory" in await turn(ann)
        assert (await memories(ann), await memories(bob)) == (["Zebramemory is kept"], [])
        (hidden,) = (await found.ask(ann, "GET", f"{found.path}/memories")).json()["items"]
        assert (await found.ask(bob, "DELETE", f"{found.path}/memories/{hidden['id']}")).status_code == 404
        stream = await turn(bob)
        recalled = [event["content"] for event in events_of(stream) if event["type"] == "tool_result"][:2]
        assert recalled == ["This role has no memories yet."] * 2
        assert (
            "Saved 2 memories" in stream
        )  # the hidden memory with the same words does not count as a duplicate for bob
        assert sorted(await memories(bob)) == ["Bobs own fact", "Zebramemory is kept"]
        await found.label(0)
        assert len(await memories(bob)) == 3


async def test_a_bundle_carries_labels_that_apply_before_the_first_scan(tmp_path: Path) -> None:
    async with plant(tmp_path, 2) as found:
        await found.settings(groupLabels={"staff": ["board"]}, folderLabels={f"{found.name_of(1)}*": ["hr files"]})
        await found.label(0, "board", "legal")
        dates = {"date": "2020-02-29", "reviewBy": "2021-01-01"}
        await found.rig.ok("PATCH", f"{found.path}/documents/{found.ids[0]}", dates)
        as_operator(found.rig)
        bundle = (await found.rig.http.get(f"{found.path}/bundle")).content
        response = await found.rig.http.post(
            "/api/bundles", content=bundle, headers={"content-type": "application/zip"}
        )
        assert response.status_code == 201, response.text
        imported_id = response.json()["domainId"]
        await found.rig.taken_up(imported_id)
        documents = (await found.rig.ok("GET", f"/api/domains/{imported_id}/documents"))["items"]
        labels = {each["name"]: (each["labels"], each["folderLabels"]) for each in documents}
        assert labels == {
            f"{found.name_of(0)}.md": (["board", "legal"], []),
            f"{found.name_of(1)}.md": ([], ["hr files"]),
        }
        (labelled,) = [document for document in documents if document["labels"]]
        assert (labelled["date"], labelled["reviewBy"]) == ("2020-02-29", "2021-01-01")
        assert (await found.rig.http.get(f"/api/domains/{imported_id}/bundle")).content == bundle
        # import over a domain that has the documents and other rules
        await found.settings()
        await found.label(0)
        path = f"{found.path}/bundle"
        over = await found.rig.http.post(path, content=bundle, headers={"content-type": "application/zip"})
        assert over.status_code == 200, over.text
        key = await found.key("ann")
        assert (await found.ask(key, "GET", f"{found.path}/documents")).json()["items"] == []


async def test_runs_of_the_evaluation_see_labelled_documents(tmp_path: Path) -> None:
    async with plant(tmp_path, 1) as found:
        await found.label(0, "board")
        found.target = found.ids[0]
        expect = {"cites": [{"document": f"{found.name_of(0)}.md", "text": "twelve bar"}]}
        await found.rig.ok("POST", f"{found.path}/evaluation/cases", {"questions": ["pumpword?"], "expect": expect})
        for tier in ("retrieval", "answers"):
            run = await found.rig.ok("POST", f"{found.path}/evaluation/runs", {"tier": tier})
            path = f"{found.path}/evaluation/runs/{run['id']}"
            ended_run = await found.rig._until(path, lambda state: state["state"] not in ("queued", "running"))
            assert ended_run["state"] == "done", ended_run
            (result,) = (await found.rig.ok("GET", f"{path}/results"))["items"]
            assert result["outcome"] == "passed", result


async def test_the_groups_of_a_provider_give_labels_until_a_token_lacks_them(tmp_path: Path) -> None:
    odd_group = 'Alle "Mitarbeiter" *\\ ☃'
    async with issuing() as issuer, rig_with(tmp_path, issuer.url) as (rig, domain):
        document = await rig.upload(domain, "plan.md", b"# Plan\n\nzebraplan")
        path = f"/api/domains/{domain}/documents/{document['id']}"
        await rig.ok("PATCH", path, {"labels": ["board"]})
        groups = {odd_group: ["board"], "*": ["legal"], "x": []}
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"groupLabels": groups}})

        async def status(*groups: object) -> int:
            token = issuer.sign(issuer.claims(groups=["legal", *groups]))
            return (await rig.http.get(path, headers=bearer(token))).status_code

        assert [await status(), await status(odd_group), await status(odd_group.lower(), "*", 7, "")] == [404, 200, 404]
        assert [await status(odd_group, "\0", "x" * 600), await status("\0" + odd_group)] == [200, 404]


async def test_exports_and_shared_links_hide_documents_by_label(tmp_path: Path) -> None:
    async with plant(tmp_path, 1, share_links="anyone") as found:
        key, other = await found.key("ann", "board"), await found.key("bob")
        await found.settings(groupLabels={"board": ["board"]})
        await found.label(0, "board")
        found.target = found.ids[0]
        created = await found.ask(key, "POST", "/api/conversations", {"domainId": found.domain})
        path = f"/api/conversations/{created.json()['id']}"
        await found.ask(key, "POST", f"{path}/messages", {"content": "What is the pumpword?"})
        shared = (await found.ask(key, "POST", f"{path}/share")).json()["path"]
        exports = [f"{path}/export?format={form}" for form in ("markdown", "json", "html")]
        for reader, pages, visible in ((key, [*exports, shared], True), (other, [shared], False)):
            for page in pages:
                text = (await found.ask(reader, "GET", page)).text
                assert "pumpword" in text
                assert [word in text for word in found.secrets([0])] == [visible, visible], page
        await found.settings(groupLabels={})
        for page in [*exports, shared]:
            text = (await found.ask(key, "GET", page)).text
            assert "pumpword is that" in text, "the answer keeps its own text"
            assert not any(word in text for word in found.secrets([0])), page
