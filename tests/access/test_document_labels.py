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
from tests.access.test_oidc import make_rig
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
async def make_plant(folder: Path, count: int = 4, **options: Any) -> AsyncIterator[Plant]:
    plants: list[Plant] = []
    model = ScriptedModel(then=lambda request: plants[0].answer(request), pause=options.pop("pause", None))
    async with Rig(folder, instead=model, requests_per_second=10_000, messages_per_minute=10_000, **options) as rig:
        plants.append(Plant(rig, model, await rig.domain(), count))
        await plants[0].build()
        yield plants[0]


QUESTION = "What is the pumpword?"
DIALECTS = ("native", "observable", "message", "agentx", "knowledge", "chat", "ag-ui", "ui-message", "openai")
"""Dialects of the native stream. The knowledge contract's own route has the default domain and the same encoder."""
DOORS = (
    *(f"dialect {name}" for name in DIALECTS),
    *("socket", "chat completions", "completion stream", "responses", "response stream", "older chat"),
    *("AG-UI", "UI messages", "A2A", "MCP ask"),
)


async def turn_of(plant: Plant, key: str, door: str, number: int, address: str) -> list[str]:
    """Run a turn through a door, and return everything that the door and the native routes show of it.

    ``number`` is the number of the round. ``address`` is the address of the application.
    """
    conversations = f"/api/conversations?domainId={plant.domain}"
    part = {"type": "text", "text": QUESTION}
    texts = []
    if door.startswith("dialect ") or door == "socket":
        conversation = (await plant.ask(key, "POST", "/api/conversations", {"domainId": plant.domain})).json()["id"]
        if door == "socket":
            async with socket_of(address, key) as client:
                await client.ask("message", conversationId=conversation, content=QUESTION)
                texts.append(str(await client.hear_turn()))
        path = f"/api/conversations/{conversation}/messages?dialect={door.removeprefix('dialect ')}"
        body: Json = {"content": QUESTION}
    elif door in ("chat completions", "completion stream"):
        path, input_messages = "/v1/chat/completions", [{"role": "user", "content": QUESTION}]
        body = {"model": plant.domain, "messages": input_messages, "store": True, "stream": door == "completion stream"}
    elif door in ("responses", "response stream"):
        path = "/v1/responses"
        body = {"model": plant.domain, "input": QUESTION, "stream": door == "response stream"}
    elif door == "older chat":
        path, body = "/api/v1/chat", {"message": QUESTION, "agent_id": plant.domain}
    elif door == "AG-UI":
        path, message = f"/api/ag-ui/{plant.domain}", {"id": f"u{number}", "role": "user", "content": QUESTION}
        body = {"threadId": f"t{number}", "runId": f"r{number}", "messages": [message]}
    elif door == "UI messages":
        path = f"/api/ui-message/{plant.domain}"
        body = {"id": f"c{number}", "messages": [{"id": f"u{number}", "role": "user", "parts": [part]}]}
    elif door == "A2A":
        path, parts = f"/a2a/{plant.domain}", [{"kind": "text", "text": QUESTION}]
        a2a_message: Json = {"kind": "message", "messageId": f"a{number}", "role": "user", "parts": parts}
        body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": a2a_message}}
    else:
        texts.append(await mcp_call(plant, key, "ask", {"question": QUESTION}))
    if not texts:
        response = await plant.ask(key, "POST", path, body)
        assert response.status_code == 200, response.text
        texts.append(response.text)
    (latest,) = (await plant.ask(key, "GET", f"{conversations}&pageSize=1")).json()["items"]
    path = f"/api/conversations/{latest['id']}"
    retrievals = await plant.ask(key, "GET", f"{plant.path}/retrievals?conversationId={latest['id']}")
    messages = (await plant.ask(key, "GET", f"{path}/messages")).json()["items"]
    turn = messages[-1]["turnId"]
    paths = [f"{path}/messages", f"{path}/messages?format=html", f"{path}/tool-calls", path, f"{path}/branches"]
    paths += [f"{path}/export?format={form}" for form in ("markdown", "json", "html")]
    paths += [f"/api/turns/{turn}/events", f"/api/turns/{turn}", f"/api/turns/{turn}/stream?offset=-1"]
    paths += [f"/v1/responses/resp_{turn.removeprefix('turn_')}", conversations, f"{plant.path}/memories/export"]
    paths += [f"{plant.path}/retrievals/{line['retrievalId']}" for line in retrievals.json()["items"]]
    return [*texts, retrievals.text, *[(await plant.ask(key, "GET", path)).text for path in paths]]


async def mcp_call(plant: Plant, key: str, tool: str, arguments: Json) -> str:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    begin: Json = {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }
    path = f"/mcp/{plant.domain}"
    response = await plant.ask(key, "POST", path, begin, **MCP)
    session = {"mcp-session-id": response.headers["mcp-session-id"]} if "mcp-session-id" in response.headers else {}
    result = await plant.ask(key, "POST", path, call, **MCP, **session)
    assert '"result"' in result.text, result.text
    await plant.ask(key, "DELETE", path, **MCP, **session)  # a server has few open sessions
    return result.text


async def read_everywhere(plant: Plant, key: str, number: int, chunks: Mapping[int, str]) -> list[httpx2.Response]:
    """Ask every route for one document."""
    document = f"{plant.path}/documents/{plant.ids[number]}"
    chunk = f"{plant.path}/chunks/{chunks[number]}"
    paths = [document, f"{document}/file", f"{document}/chunks", f"{document}/pages/1", chunk, f"{chunk}/place"]
    return [await plant.ask(key, "GET", path) for path in paths]


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(len(DOORS), marks=pytest.mark.slow("runs a turn through each door")),
        pytest.param(500, marks=pytest.mark.nightly("the same with more combinations")),
    ],
)
async def test_no_endpoint_shows_a_document_to_a_reader_without_its_labels(tmp_path: Path, rounds: int) -> None:
    choice = random.Random(42)
    async with make_plant(tmp_path) as plant, AsyncExitStack() as stack:
        chunks = {}
        for number, document in enumerate(plant.ids):
            page = await plant.rig.ok("GET", f"{plant.path}/documents/{document}/chunks")
            chunks[number] = page["items"][0]["chunkId"]
        readers = {
            await plant.key(f"reader{number}", *groups): groups
            for number, groups in enumerate([(), GROUPS[:1], GROUPS[1:], GROUPS])
        }
        address = await stack.enter_async_context(serving(plant.rig.application.app))
        seen_hidden = seen_shown = 0
        for turn in range(rounds):
            group_labels = {group: choice.sample(LABELS, choice.randrange(3)) for group in choice.sample(GROUPS, 2)}
            await plant.settings(groupLabels=group_labels)
            labels = {}
            for number in range(plant.count):
                labels[number] = set(choice.sample(LABELS, choice.choice((0, 1, 1, 2))))
                await plant.label(number, *labels[number])
            key, groups = choice.choice(list(readers.items()))
            own = {label for group in groups for label in group_labels.get(group, ())}
            hidden_numbers = [number for number in labels if not labels[number] <= own]
            visible_numbers = [number for number in labels if labels[number] <= own]
            number = choice.randrange(plant.count)
            plant.target = plant.ids[number]
            before = len(plant.model.requests)
            texts = await turn_of(plant, key, DOORS[turn % len(DOORS)], turn, address)
            texts += [str(request) for request in plant.model.requests[before:]]
            texts.append(await mcp_call(plant, key, "search_documents", {"query": "pumpword", "top_k": 50}))
            texts.append(await mcp_call(plant, key, "read_document", {"document": plant.target}))
            page = await plant.ask(key, "GET", f"{plant.path}/documents")
            texts.append(page.text)
            assert [item["id"] for item in page.json()["items"]] == [plant.ids[index] for index in visible_numbers]
            domain = (await plant.ask(key, "GET", plant.path)).json()
            assert domain["documentCount"] == len(visible_numbers)
            reads = await read_everywhere(plant, key, number, chunks)
            codes = [response.status_code for response in reads]
            assert codes == ([404] * 6 if number in hidden_numbers else [200, 200, 200, 415, 200, 200]), (codes, reads)
            texts += [response.text for response in reads if number in hidden_numbers]
            for word in plant.secrets(hidden_numbers):
                assert not any(word in text for text in texts), (word, labels, own)
            assert all(any(word in text for text in texts) for word in plant.secrets(visible_numbers)), (labels, own)
            seen_hidden += len(hidden_numbers)
            seen_shown += len(visible_numbers)
        assert min(seen_hidden, seen_shown) > rounds / 2


async def test_a_label_given_while_a_turn_runs_counts_from_its_next_tool_call(tmp_path: Path) -> None:
    plant: Plant

    async def pause(call: int, event: int, _: ModelEvent) -> None:
        if (call, event) == (1, 0):
            await plant.label(0, "board")

    async with make_plant(tmp_path, 1, pause=pause) as plant:
        key = await plant.key("ann")
        plant.target = plant.ids[0]
        search = Use("search_documents", {"query": "pumpword of the plant"})
        steps = iter([Step((search,)), Step((search,)), say("Done.")])
        plant.answer = lambda request: next(steps)  # type: ignore[method-assign]
        created = await plant.ask(key, "POST", "/api/conversations", {"domainId": plant.domain})
        response = await plant.ask(
            key, "POST", f"/api/conversations/{created.json()['id']}/messages", {"content": "What?"}
        )
        events = events_of(response.text)
        results = [event for event in events if event["type"] == "tool_result"]
        assert plant.words_of(0) in results[0]["content"]
        assert "There are no documents that can be searched." in results[1]["content"]
        assert not any(word in results[1]["content"] for word in plant.secrets([0]))
        # nor is the passage of an earlier search repeated to the model
        first, second, third = (str(without_private(list(request.messages))) for request in plant.model.requests)
        assert plant.words_of(0) not in first
        assert plant.words_of(0) in second
        assert not any(word in third for word in plant.secrets([0]))


async def test_an_answer_keeps_its_text_and_loses_its_passages_with_the_label(tmp_path: Path) -> None:
    async with make_plant(tmp_path, 2) as plant:
        await plant.settings(groupLabels={"staff": ["hr files"]})
        await plant.label(0, "hr files")
        await plant.label(1, "board")
        key = await plant.key("ann", "staff")
        plant.target = plant.ids[0]
        created = await plant.ask(key, "POST", "/api/conversations", {"domainId": plant.domain})
        path = f"/api/conversations/{created.json()['id']}"
        response = await plant.ask(key, "POST", f"{path}/messages", {"content": "What?", "clientMessageId": "m1"})
        turn = events_of(response.text)[0]["turnId"]
        (_, answer) = (await plant.ask(key, "GET", f"{path}/messages")).json()["items"]
        (reference,) = answer["references"]
        assert reference["documentName"].startswith(plant.name_of(0))
        place = f"{plant.path}/chunks/{reference['chunkId']}/place"
        assert (await plant.ask(key, "GET", place)).status_code == 200
        calls = (await plant.ask(key, "GET", f"{path}/tool-calls")).json()["items"]
        retrieval = (
            await plant.ask(key, "GET", f"{plant.path}/retrievals?conversationId={created.json()['id']}")
        ).json()

        await plant.settings(groupLabels={})
        after = (await plant.ask(key, "GET", f"{path}/messages")).json()["items"][1]
        assert after["content"] == answer["content"] == "The pumpword is that."
        assert [reference["number"] for reference in after["references"]] == [1]
        assert (await plant.ask(key, "GET", place)).status_code == 404
        paths = [f"{path}/messages", f"{path}/messages?format=html", f"{path}/messages/{answer['id']}"]
        paths += [f"{path}/tool-calls", f"/api/turns/{turn}", f"/api/turns/{turn}/children", f"{plant.path}/retrievals"]
        paths += [f"/api/turns/{turn}/events", f"/api/turns/{turn}/stream?offset=-1", f"/v1/responses/resp_{turn[5:]}"]
        paths += [f"{plant.path}/retrievals/{retrieval['items'][0]['retrievalId']}", path, f"{path}/branches"]
        paths += [f"/v1/responses/resp_{turn[5:]}?stream=true", f"/api/conversation/{created.json()['id']}/messages"]
        for read_path in paths:
            text = (await plant.ask(key, "GET", read_path)).text
            assert not any(word in text for word in plant.secrets([0, 1])), read_path
        for read_path in (f"/api/turns/{turn}/events", f"/api/turns/{turn}/stream?offset=-1"):
            assert (await plant.ask(key, "GET", read_path)).json()["error"]["code"] == "LOG_GONE"
        repeated = await plant.ask(key, "POST", f"{path}/messages", {"content": "What?", "clientMessageId": "m1"})
        assert repeated.json()["error"]["code"] == "LOG_GONE"
        async with serving(plant.rig.application.app) as address, socket_of(address, key) as client:
            await client.ask("subscribe", conversationId=created.json()["id"], turnId=turn)
            frame = await client.hear()
            assert frame["type"] == "resync"
        for call in calls:
            if ref := call.get("ref"):
                assert (await plant.ask(key, "GET", f"/api/payloads/{ref}")).status_code == 404
        # the next turn repeats neither passages nor quotes to the model
        before = len(plant.model.requests)
        plant.target = "x"
        assert (await plant.ask(key, "POST", f"{path}/messages", {"content": "And?"})).status_code == 200
        for request in plant.model.requests[before:]:
            assert not any(word in str(without_private(list(request.messages))) for word in plant.secrets([0, 1]))
        # with the label, everything is visible again
        await plant.settings(groupLabels={"staff": ["hr files"]})
        assert (await plant.ask(key, "GET", f"{path}/messages")).json()["items"][1] == answer
        assert (await plant.ask(key, "GET", f"/api/turns/{turn}/events")).text == response.text


@asynccontextmanager
async def socket_of(address: str, key: str) -> AsyncIterator[Client]:

    async with connect(
        f"ws://{address}/ws", additional_headers=bearer(key), compression=None, proxy=None
    ) as connection:
        yield Client(connection)


async def test_a_wait_names_no_document_that_its_reader_may_no_longer_see(tmp_path: Path) -> None:
    async with make_plant(tmp_path, 1) as plant:
        await plant.settings(groupLabels={"staff": ["board"]}, toolPolicy={"promptx_remember": "ask"})
        await plant.label(0, "board")
        key = await plant.key("ann", "staff")
        steps = iter(
            [
                Step((Use("search_documents", {"query": "pumpword of the plant"}),)),
                Step((Use("promptx_remember", {"engrams": [ENGRAM]}),)),
                say("Done."),
            ]
        )
        plant.answer = lambda request: next(steps)  # type: ignore[method-assign]
        conversation = (await plant.ask(key, "POST", "/api/conversations", {"domainId": plant.domain})).json()["id"]
        path = f"/api/conversations/{conversation}/messages"
        await plant.ask(key, "POST", path, {"content": "Remember it."}, accept="application/json")
        with anyio.fail_after(60):
            while not (waits := (await plant.ask(key, "GET", "/api/waits?state=open")).json()["items"]):
                await pause()
        wait = waits[0]["id"]
        paths = [f"/api/waits/{wait}", "/api/waits?state=open", "/api/waits"]
        for wait_path in paths:
            assert plant.name_of(0) in (await plant.ask(key, "GET", wait_path)).text
        await plant.settings(groupLabels={}, toolPolicy={"promptx_remember": "ask"})
        for wait_path in paths:
            text = (await plant.ask(key, "GET", wait_path)).text
            assert plant.name_of(0) not in text, wait_path
            assert "[removed]" in text
        response = await plant.ask(key, "POST", paths[0], {"action": "decline"})
        assert (response.status_code, plant.name_of(0) in response.text) == (200, False)
        await plant.settings(groupLabels={"staff": ["board"]})
        assert plant.name_of(0) in (await plant.ask(key, "GET", paths[0])).text


async def test_no_route_for_members_or_authors_names_a_hidden_document(tmp_path: Path) -> None:
    async with make_plant(tmp_path, 2) as plant:
        await plant.label(0, "board")
        chunks = await plant.rig.ok("GET", f"{plant.path}/documents/{plant.ids[0]}/chunks")
        await plant.rig.ok("POST", f"{plant.path}/documents/search", {"query": "pumpword"})
        case = {"questions": ["What?"], "expect": {"cites": [{"document": plant.name_of(0), "text": "twelve"}]}}
        await plant.rig.ok("POST", f"{plant.path}/evaluation/cases", case)
        searches = await plant.rig.ok("GET", f"{plant.path}/retrievals")
        ids = {
            "domain": plant.domain,
            "document": plant.ids[0],
            "chunk": chunks["items"][0]["chunkId"],
            "retrieval": searches["items"][0]["retrievalId"],
            "page": "1",
        }
        route_count = 0
        for role in ("member", "author"):
            key = await plant.key(role, role=role)
            for route in plant.rig.application.app.routes:
                if not isinstance(route, Route):
                    continue
                assert isinstance(route.endpoint, RouteEndpoint)
                declaration = route.endpoint.declared
                names = [name for name in route.param_convertors if name not in ids]
                if names or declaration.rule.allow not in ("user", "member", "author"):
                    continue
                path = declaration.path.format(**ids)
                body: Json | None = None if declaration.method == "GET" else {}
                response = await plant.ask(key, declaration.method, path, body)
                route_count += 1
                assert not any(word in response.text for word in plant.secrets([0])), (declaration.method, path)
                if {"document", "chunk", "retrieval"} & route.param_convertors.keys():
                    assert response.status_code == 404, (declaration.method, path)
        assert route_count > 50


async def test_folder_rules_label_files_below_them_and_follow_renames(tmp_path: Path) -> None:
    async with make_plant(tmp_path, 1) as plant:
        key, admin = await plant.key("ann"), await plant.key("root", role="admin")
        folder = plant.rig.settings.workspaces / plant.domain / "documents"
        (folder / "HR").mkdir()
        (folder / "HR" / "pay.md").write_text("# Pay\n\nzebrapayword and more.")
        await plant.settings(folderLabels={"hr": ["hr files"], "*-secret.md": ["board"]})
        await plant.rig.ok("POST", f"{plant.path}/documents/rescan")
        await plant.rig.taken_up(plant.domain)

        async def names(reader_key: str) -> set[str]:
            return {
                document["name"]
                for document in (await plant.ask(reader_key, "GET", f"{plant.path}/documents")).json()["items"]
            }

        all_names = {"pay.md", f"{plant.name_of(0)}.md"}
        assert (await names(key), await names(admin)) == ({f"{plant.name_of(0)}.md"}, all_names)
        documents = (await plant.ask(admin, "GET", f"{plant.path}/documents")).json()["items"]
        assert {document["name"]: document["folderLabels"] for document in documents}["pay.md"] == ["hr files"]
        (folder / "HR" / "pay.md").rename(folder / "pay.md")
        (folder / f"{plant.name_of(0)}.md").rename(folder / "x-Secret.md")
        await plant.rig.ok("POST", f"{plant.path}/documents/rescan")
        await plant.rig.taken_up(plant.domain)
        assert await names(key) == {"pay.md"}
        await plant.settings(groupLabels={"all": ["board"]}, folderLabels={"*-secret.md": ["board"]})
        assert await names(await plant.key("bob", "all")) == {"pay.md", "x-Secret.md"}


async def test_uploads_add_labels_and_never_remove_any(tmp_path: Path) -> None:
    async with make_plant(tmp_path, 0) as plant:
        key = await plant.key("ann")

        async def upload(name: str, text: bytes, **query: str) -> Json:
            as_operator(plant.rig)
            path = f"{plant.path}/documents"
            response = await plant.rig.ok("POST", path, params=query, files={"file": (name, text)})
            return await plant.rig.settled(plant.domain, response["items"][0]["id"])

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
        assert (await plant.ask(key, "GET", f"{plant.path}/documents")).json()["items"] == []
        refusal = await plant.rig.refused("POST", f"{plant.path}/documents?label=%20x", files={"file": ("f.md", b"f")})
        assert refusal[:2] == (422, "VALIDATION_ERROR")
        audit = await plant.rig.ok("GET", "/api/audit", params={"limit": "200"})
        assert [row["details"]["labels"] for row in audit["items"] if row["action"] == "document.update"]


async def test_a_revoked_key_and_a_change_of_groups_end_their_rights(tmp_path: Path) -> None:
    async with make_plant(tmp_path, 1) as plant:
        await plant.settings(groupLabels={"staff": ["board"]})
        await plant.label(0, "board")
        with_group, without = await plant.key("ann", "staff"), await plant.key("ann")
        document = f"{plant.path}/documents/{plant.ids[0]}"
        assert (await plant.ask(with_group, "GET", document)).status_code == 200
        refusal = (await plant.ask(without, "GET", document)).json()["error"]
        unknown_refusal = (await plant.ask(without, "GET", f"{plant.path}/documents/doc_x")).json()["error"]
        assert refusal["message"].replace(plant.ids[0], "doc_x") == unknown_refusal["message"]
        body: Json = {"domainId": plant.domain, "contextDocumentIds": [plant.ids[0]]}
        assert (await plant.ask(without, "POST", "/api/conversations", body)).status_code == 404
        assert (await plant.ask(with_group, "POST", "/api/conversations", body)).status_code == 201
        keys = (await plant.rig.ok("GET", "/api/keys"))["items"]
        assert sorted(tuple(row["groups"]) for row in keys) == [(), ("staff",)]
        await plant.settings(groupLabels={"Staff": ["board"], "staff ": ["board"]})
        assert (await plant.ask(with_group, "GET", document)).status_code == 404


async def test_memories_of_a_labelled_document_are_hidden_from_readers_without_its_label(tmp_path: Path) -> None:
    async with make_plant(tmp_path, 1) as plant:
        shared: Json = {"memoryScope": "domain", "toolPolicy": {"promptx_remember": "allow"}}
        await plant.settings(groupLabels={"staff": ["board"]}, **shared)
        await plant.label(0, "board")
        ann, bob = await plant.key("ann", "staff"), await plant.key("bob")
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
        plant.answer = lambda request: next(steps)  # type: ignore[method-assign]

        async def turn(key: str) -> str:
            created = await plant.ask(key, "POST", "/api/conversations", {"domainId": plant.domain})
            response = await plant.ask(
                key, "POST", f"/api/conversations/{created.json()['id']}/messages", {"content": "Do"}
            )
            return response.text

        async def memories(key: str) -> list[str]:
            path = f"{plant.path}/memories"
            page = (await plant.ask(key, "GET", path)).json()
            assert page["total"] == len(page["items"])
            texts = [
                (await plant.ask(key, "GET", f"{path}/{operation}?role=assistant")).text
                for operation in ("recall", "export")
            ]
            assert len({"Zebramemory" in text for text in texts}) == 1
            return [memory["content"] for memory in page["items"]]

        assert "Saved 1 memory" in await turn(ann)
        assert (await memories(ann), await memories(bob)) == (["Zebramemory is kept"], [])
        (hidden_memory,) = (await plant.ask(ann, "GET", f"{plant.path}/memories")).json()["items"]
        assert (await plant.ask(bob, "DELETE", f"{plant.path}/memories/{hidden_memory['id']}")).status_code == 404
        stream = await turn(bob)
        recalled = [event["content"] for event in events_of(stream) if event["type"] == "tool_result"][:2]
        assert recalled == ["This role has no memories yet."] * 2
        assert (
            "Saved 2 memories" in stream
        )  # the hidden memory with the same words does not count as a duplicate for bob
        assert sorted(await memories(bob)) == ["Bobs own fact", "Zebramemory is kept"]
        await plant.label(0)
        assert len(await memories(bob)) == 3


async def test_a_bundle_carries_labels_that_apply_before_the_first_scan(tmp_path: Path) -> None:
    async with make_plant(tmp_path, 2) as plant:
        await plant.settings(groupLabels={"staff": ["board"]}, folderLabels={f"{plant.name_of(1)}*": ["hr files"]})
        await plant.label(0, "board", "legal")
        dates = {"date": "2020-02-29", "reviewBy": "2021-01-01"}
        await plant.rig.ok("PATCH", f"{plant.path}/documents/{plant.ids[0]}", dates)
        as_operator(plant.rig)
        bundle = (await plant.rig.http.get(f"{plant.path}/bundle")).content
        response = await plant.rig.http.post(
            "/api/bundles", content=bundle, headers={"content-type": "application/zip"}
        )
        assert response.status_code == 201, response.text
        imported_id = response.json()["domainId"]
        await plant.rig.taken_up(imported_id)
        documents = (await plant.rig.ok("GET", f"/api/domains/{imported_id}/documents"))["items"]
        labels = {document["name"]: (document["labels"], document["folderLabels"]) for document in documents}
        assert labels == {
            f"{plant.name_of(0)}.md": (["board", "legal"], []),
            f"{plant.name_of(1)}.md": ([], ["hr files"]),
        }
        (labelled,) = [document for document in documents if document["labels"]]
        assert (labelled["date"], labelled["reviewBy"]) == ("2020-02-29", "2021-01-01")
        assert (await plant.rig.http.get(f"/api/domains/{imported_id}/bundle")).content == bundle
        # import over a domain that has the documents and other rules
        await plant.settings()
        await plant.label(0)
        path = f"{plant.path}/bundle"
        overlay = await plant.rig.http.post(path, content=bundle, headers={"content-type": "application/zip"})
        assert overlay.status_code == 200, overlay.text
        key = await plant.key("ann")
        assert (await plant.ask(key, "GET", f"{plant.path}/documents")).json()["items"] == []


async def test_runs_of_the_evaluation_see_labelled_documents(tmp_path: Path) -> None:
    async with make_plant(tmp_path, 1) as plant:
        await plant.label(0, "board")
        plant.target = plant.ids[0]
        expect = {"cites": [{"document": f"{plant.name_of(0)}.md", "text": "twelve bar"}]}
        await plant.rig.ok("POST", f"{plant.path}/evaluation/cases", {"questions": ["pumpword?"], "expect": expect})
        for tier in ("retrieval", "answers"):
            run = await plant.rig.ok("POST", f"{plant.path}/evaluation/runs", {"tier": tier})
            path = f"{plant.path}/evaluation/runs/{run['id']}"
            ended_run = await plant.rig._until(path, lambda state: state["state"] not in ("queued", "running"))
            assert ended_run["state"] == "done", ended_run
            (result,) = (await plant.rig.ok("GET", f"{path}/results"))["items"]
            assert result["outcome"] == "passed", result


async def test_the_groups_of_a_provider_give_labels_until_a_token_lacks_them(tmp_path: Path) -> None:
    odd_group = 'Alle "Mitarbeiter" *\\ ☃'
    async with issuing() as issuer, make_rig(tmp_path, issuer.url) as (rig, domain):
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
    async with make_plant(tmp_path, 1, share_links="anyone") as plant:
        key, other_key = await plant.key("ann", "board"), await plant.key("bob")
        await plant.settings(groupLabels={"board": ["board"]})
        await plant.label(0, "board")
        plant.target = plant.ids[0]
        created = await plant.ask(key, "POST", "/api/conversations", {"domainId": plant.domain})
        path = f"/api/conversations/{created.json()['id']}"
        await plant.ask(key, "POST", f"{path}/messages", {"content": "What is the pumpword?"})
        shared = (await plant.ask(key, "POST", f"{path}/share")).json()["path"]
        exports = [f"{path}/export?format={form}" for form in ("markdown", "json", "html")]
        for reader, pages, visible in ((key, [*exports, shared], True), (other_key, [shared], False)):
            for page in pages:
                text = (await plant.ask(reader, "GET", page)).text
                assert "pumpword" in text
                assert [word in text for word in plant.secrets([0])] == [visible, visible], page
        await plant.settings(groupLabels={})
        for page in [*exports, shared]:
            text = (await plant.ask(key, "GET", page)).text
            assert "pumpword is that" in text, "the answer keeps its own text"
            assert not any(word in text for word in plant.secrets([0])), page
