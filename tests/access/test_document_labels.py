"""Labels of documents: no door shows a document to a reader who lacks one of its labels."""

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.routing import Route

from agentic_rag.models.base import ModelEvent, ModelRequest
from agentic_rag.server.routes import Endpoint
from agentic_rag.testing.scripted import ScriptedModel
from agentic_rag.testing.steps import Cite, Say, Step, Use, say
from tests.access.tenants import as_operator, bearer
from tests.server.rig import Json, Rig, events_of
from tests.ws.serving import Client, serving

pytestmark = pytest.mark.attack(kind="web")

LABELS = ("board", "hr files", "legal")
GROUPS = ("Alle Mitarbeiter", 'a"b\\c*%/☃', "grp:{legal}")
MCP = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}


class Plant:
    """A domain with documents, each with words of its own, and a model that asks for all of them in every turn.

    ``name_of`` and ``words_of`` return a document's secret words: they are nowhere but in its name and its text.
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
            made = await self.rig.upload(self.domain, f"{self.name_of(number)}.md", text.encode())
            self.ids.append(made["id"])

    def secrets(self, numbers: Sequence[int]) -> list[str]:
        return [word for each in numbers for word in (self.name_of(each), self.words_of(each))]

    async def label(self, number: int, *labels: str) -> None:
        as_operator(self.rig)
        body = {"labels": list(labels)}
        changed = await self.rig.ok("PATCH", f"{self.path}/documents/{self.ids[number]}", body)
        assert changed["labels"] == sorted(set(labels))

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
        """Call all tools for documents, then cite what was found."""
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
        found = [part for block in last for part in block.get("content", ()) if part["type"] == "search_result"]
        return Step((Say("That is it.", (Cite(0),) if found else ()),))


@asynccontextmanager
async def plant(folder: Path, count: int = 4, **options: Any) -> AsyncIterator[Plant]:
    made: list[Plant] = []
    model = ScriptedModel(then=lambda request: made[0].answer(request), pause=options.pop("pause", None))
    async with Rig(folder, instead=model, requests_per_second=10_000, messages_per_minute=10_000, **options) as rig:
        made.append(Plant(rig, model, await rig.domain(), count))
        await made[0].build()
        yield made[0]


async def turn_of(found: Plant, key: str, door: str) -> list[str]:
    """Run a turn through a door, and return everything that the door and the native routes show of it."""
    question = "What is the pumpword?"
    if door == "native":
        made = await found.ask(key, "POST", "/api/conversations", {"domainId": found.domain})
        path = f"/api/conversations/{made.json()['id']}"
        sent = await found.ask(key, "POST", f"{path}/messages", {"content": question})
    elif door == "chat completions":
        body = {"model": found.domain, "messages": [{"role": "user", "content": question}], "store": True}
        sent = await found.ask(key, "POST", "/v1/chat/completions", body)
        return [sent.text]
    elif door == "responses":
        sent = await found.ask(key, "POST", "/v1/responses", {"model": found.domain, "input": question})
        again = await found.ask(key, "GET", f"/v1/responses/{sent.json()['id']}")
        return [sent.text, again.text]
    else:
        sent = await found.ask(key, "POST", "/api/v1/chat", {"message": question, "agent_id": found.domain})
        return [sent.text]
    assert sent.status_code == 200, sent.text
    turn = events_of(sent.text)[0]["turnId"]
    shown = [sent.text]
    for more in (f"{path}/messages", f"{path}/tool-calls", path, f"/api/turns/{turn}/events", f"/api/turns/{turn}"):
        shown.append((await found.ask(key, "GET", more)).text)
    retrievals = await found.ask(key, "GET", f"{found.path}/retrievals?conversationId={path.rpartition('/')[2]}")
    shown.append(retrievals.text)
    for line in retrievals.json()["items"]:
        shown.append((await found.ask(key, "GET", f"{found.path}/retrievals/{line['retrievalId']}")).text)
    return shown


async def mcp_call(found: Plant, key: str, tool: str, arguments: Json) -> str:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    begin: Json = {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }
    path = f"/mcp/{found.domain}"
    begun = await found.ask(key, "POST", path, begin, **MCP)
    session = {"mcp-session-id": begun.headers["mcp-session-id"]} if "mcp-session-id" in begun.headers else {}
    return (await found.ask(key, "POST", path, call, **MCP, **session)).text


async def reads_of(found: Plant, key: str, number: int, chunks: Mapping[int, str]) -> list[httpx2.Response]:
    """Ask every route for one document."""
    document = f"{found.path}/documents/{found.ids[number]}"
    chunk = f"{found.path}/chunks/{chunks[number]}"
    paths = [document, f"{document}/file", f"{document}/chunks", f"{document}/pages/1", chunk, f"{chunk}/place"]
    return [await found.ask(key, "GET", each) for each in paths]


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(60, marks=pytest.mark.slow("runs sixty turns")),
        pytest.param(500, marks=pytest.mark.nightly("the same with more combinations")),
    ],
)
async def test_no_door_shows_a_document_to_a_reader_without_its_labels(tmp_path: Path, rounds: int) -> None:
    choice = random.Random(42)
    async with plant(tmp_path) as found:
        chunks = {}
        for number, each in enumerate(found.ids):
            listed = await found.rig.ok("GET", f"{found.path}/documents/{each}/chunks")
            chunks[number] = listed["items"][0]["chunkId"]
        readers = {
            await found.key(f"reader{number}", *groups): groups
            for number, groups in enumerate([(), GROUPS[:1], GROUPS[1:], GROUPS])
        }
        doors = ("native", "chat completions", "responses", "older chat")
        seen_hidden = seen_shown = 0
        for _ in range(rounds):
            held = {group: choice.sample(LABELS, choice.randrange(3)) for group in choice.sample(GROUPS, 2)}
            await found.settings(groupLabels=held)
            given = {}
            for number in range(found.count):
                given[number] = set(choice.sample(LABELS, choice.choice((0, 1, 1, 2))))
                await found.label(number, *given[number])
            key, groups = choice.choice(list(readers.items()))
            own = {label for group in groups for label in held.get(group, ())}
            hidden = [number for number in given if not given[number] <= own]
            shown = [number for number in given if given[number] <= own]
            number = choice.randrange(found.count)
            found.target = found.ids[number]
            before = len(found.model.requests)
            texts = await turn_of(found, key, choice.choice(doors))
            texts += [str(request) for request in found.model.requests[before:]]
            texts.append(await mcp_call(found, key, "search_documents", {"query": "pumpword", "top_k": 50}))
            texts.append(await mcp_call(found, key, "read_document", {"document": found.target}))
            listed = await found.ask(key, "GET", f"{found.path}/documents")
            texts.append(listed.text)
            assert [each["id"] for each in listed.json()["items"]] == [found.ids[each] for each in shown]
            domain = (await found.ask(key, "GET", found.path)).json()
            assert domain["documentCount"] == len(shown)
            reads = await reads_of(found, key, number, chunks)
            codes = [each.status_code for each in reads]
            assert codes == ([404] * 6 if number in hidden else [200, 200, 200, 415, 200, 200]), (codes, reads)
            texts += [each.text for each in reads if number in hidden]
            for word in found.secrets(hidden):
                assert not any(word in text for text in texts), (word, given, own)
            assert all(any(word in text for text in texts) for word in found.secrets(shown)), (given, own)
            seen_hidden += len(hidden)
            seen_shown += len(shown)
        assert min(seen_hidden, seen_shown) > rounds / 2
