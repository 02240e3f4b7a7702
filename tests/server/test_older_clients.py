"""The five older contracts, judged by the state of their own clients at the end of a turn.

Each client below reads its stream as clients of its contract do, with its own reducer and none of our code. All five
run the same turns on one server.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from agentic_rag.base.errors import ModelError
from agentic_rag.server.dialects.answer import ANSWER_CONTINUES
from agentic_rag.testing.scripted import Broken, Stalled
from agentic_rag.testing.steps import Cite, Say, Step, Use, say, use
from tests.server.rig import WAIT_SECONDS, Json, Rig
from tests.waiting import pause
from tests.ws.serving import client as connect_ws
from tests.ws.serving import serving

LEAVE = b"# Leave\n\nFull-time staff have 27 days of paid leave a year.\n"
PARKING = b"# Parking\n\nThe garage behind the house is free.\n"
ANSWER = "You have 27 days of paid leave."
BOTH = "You have 27 days of paid leave. The garage is free."


@dataclass
class ClientView:
    """The state of a client after the last event: its messages, the sources of the last one, and an error."""

    messages: list[Json] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    streaming: str = ""
    """The current text of an unfinished answer."""
    error: Json | None = None
    ended: bool = False

    @property
    def answer(self) -> str:
        return str(self.messages[-1]["content"]) if self.messages else ""


class ChatClient:
    """`/api/v1/chat`: lines of ``data:``. The answer is stored only if ``final_message.content`` exists."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.conversation: str | None = None
        self.sessions_created = 0
        self.calls: list[str] = []
        self.view = ClientView()

    async def begin(self) -> None:
        self.conversation, self.sessions_created = None, 0

    async def send(self, words: str) -> None:
        self.view, self.calls = ClientView(), []
        body = {"message": words, "session_id": self.conversation}
        async with self.rig.http.stream("POST", "/api/v1/chat", json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    event = orjson.loads(line[6:])
                    self.reduce(event["type"], event["data"])
                elif line == "data: [DONE]":
                    self.view.ended = True

    def reduce(self, kind: str, data: Json) -> None:
        view = self.view
        match kind:
            case "session_created":
                self.conversation = data["session_id"]
                self.sessions_created += 1
            case "text":
                view.streaming += data["content"]
            case "tool_call":
                self.calls.append(data["tool_name"])
            case "done":
                final = data["final_message"]
                if final["content"]:
                    view.messages.append({"role": final["role"], "content": final["content"]})
                view.sources = [reference["document_name"] for reference in data["references"]]
                assert [tool_call["tool_name"] for tool_call in data["tool_calls"]] == self.calls
                assert data["session_id"] == self.conversation
                view.streaming = ""
            case "error":
                assert self.conversation in (None, data["session_id"])
                self.conversation = data["session_id"]
                view.error = {"message": data["error"], "code": data["code"], "retryable": data["retryable"]}

    async def reload(self) -> list[Json]:
        items = (await self.rig.ok("GET", f"/api/conversations/{self.conversation}/messages"))["items"]
        return [{"role": item["role"], "content": item["content"]} for item in items]


class KnowledgeClient:
    """`/api/conversation`: an event source whose handlers replace the references at each ``context_ready``."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.conversation: str | None = None
        self.references: list[Json] = []
        self.shown: list[list[str]] = []
        self.view = ClientView()

    async def begin(self) -> None:
        conversation = await self.rig.ok("POST", "/api/conversation", {"title": "Leave", "metadata": {"theme": "dark"}})
        self.conversation = conversation["id"]

    async def send(self, words: str) -> None:
        self.view, self.references, self.shown = ClientView(), [], []
        path = f"/api/conversation/{self.conversation}/message"
        name, data = "", list[str]()
        async with self.rig.http.stream("POST", path, json={"content": words}) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    data.append(line[6:])
                elif not line and data:
                    self.reduce(name, "\n".join(data))
                    data = []

    def reduce(self, name: str, data: str) -> None:
        view = self.view
        match name:
            case "context_ready":
                self.references = orjson.loads(data)["references"]
                self.shown.append([reference["entityName"] for reference in self.references])
                view.sources = self.shown[-1]
            case "chunk":
                assert self.shown, "the references come before the first words"
                view.streaming += data
            case "done":
                final = orjson.loads(data)
                assert final["references"] == self.references
                message = {"id": final["id"], "role": "assistant", "content": view.streaming}
                view.messages.append({**message, "references": self.references})
                view.streaming, view.ended = "", True
            case "error":
                view.error, view.ended = orjson.loads(data), True

    async def reload(self) -> list[Json]:
        items: list[Json] = await self.rig.ok("GET", f"/api/conversation/{self.conversation}/messages")
        for item in items:
            keys = {"model", "tokensUsed", "retrievalTimeMs", "generationTimeMs"}
            assert item["metadata"].keys() - {"error"} == (keys if item["role"] == "assistant" else set())
        return [{key: item[key] for key in ("id", "role", "content", "references")} for item in items]


class MessageClient:
    """Frames of the message contract on `/ws`, and its objects over REST."""

    def __init__(self, rig: Rig, socket: Any) -> None:
        self.rig = rig
        self.socket = socket
        self.conversation: str | None = None
        self.view = ClientView()

    async def begin(self) -> None:
        self.conversation = (await self.rig.ok("POST", "/api/conversations", {}))["id"]

    async def send(self, words: str) -> None:
        self.view = ClientView()
        await self.socket.say("message", conversationId=self.conversation, content=words)
        while not self.view.ended:
            self.reduce(await self.socket.hear())

    def reduce(self, frame: Json) -> None:
        view = self.view
        match frame["type"]:
            case "message_start":
                view.messages.append({"id": frame["messageId"], "role": "assistant", "content": ""})
            case "content_delta":
                view.messages[-1]["content"] += frame["delta"]
            case "source_reference":
                view.sources.append(frame["source"]["documentName"])
            case "message_complete":
                assert frame["messageId"] == view.messages[-1]["id"]
                assert frame["usage"].keys() == {"inputTokens", "outputTokens"}
                view.ended = True
            case "error":
                if view.messages:  # received text stays on the screen
                    view.streaming = view.messages.pop()["content"]
                view.error = {"message": frame["error"], "code": frame["code"], "retryable": frame["retryable"]}
                view.ended = True

    async def reload(self) -> list[Json]:
        path = f"/api/conversations/{self.conversation}/messages"
        items = (await self.rig.ok("GET", path, params={"dialect": "message"}))["items"]
        for item in items:
            assert "blocks" not in item
            if item["role"] == "assistant":
                assert item["metadata"]["tokensUsed"].keys() == {"inputTokens", "outputTokens"}
        return [{key: item[key] for key in ("id", "role", "content")} for item in items]


class AgentXClient:
    """Events of AgentX, as a stream."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.conversation: str | None = None
        self.state = "idle"
        self.tools: dict[str, str] = {}
        self.view = ClientView()

    async def begin(self) -> None:
        self.conversation = (await self.rig.ok("POST", "/api/conversations", {}))["id"]

    async def send(self, words: str) -> None:
        self.view, self.tools = ClientView(), {}
        async for event in read_events(self.rig, f"{self.conversation}", "agentx", words):
            self.reduce(event["type"], event["data"])

    def reduce(self, kind: str, data: Json) -> None:
        view = self.view
        match kind:
            case "conversation_thinking" | "conversation_responding":
                self.state = kind.removeprefix("conversation_")
            case "text_delta":
                view.streaming += data["text"]
            case "tool_planned" | "tool_executing" | "tool_completed" | "tool_failed":
                self.tools[data["toolCallId"]] = kind.removeprefix("tool_")
            case "message_complete":
                view.messages.append({"id": data["messageId"], "role": "assistant", "content": view.streaming})
                view.sources = [reference["documentName"] for reference in data["references"]]
                view.streaming = ""
            case "error":
                view.error = data
            case "conversation_interrupted":
                view.error, view.ended, self.state = {**data, "retryable": False}, True, "idle"
            case "conversation_end":
                view.ended, self.state = True, "idle"

    async def reload(self) -> list[Json]:
        return await reload_native(self.rig, self.conversation)


class ObservableClient:
    """The native events in snake_case; this client can retract a step."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.conversation: str | None = None
        self.cards: list[str] = []
        self.steps: dict[int, str] = {}
        self.message_id = ""
        self.view = ClientView()

    async def begin(self) -> None:
        self.conversation = (await self.rig.ok("POST", "/api/conversations", {}))["id"]

    async def send(self, words: str) -> None:
        self.view, self.cards, self.steps = ClientView(), [], {}
        async for event in read_events(self.rig, f"{self.conversation}", "observable", words):
            self.reduce(event["type"], event)

    def reduce(self, kind: str, event: Json) -> None:
        view = self.view
        match kind:
            case "turn_started":
                self.message_id = event["message_id"]
            case "iteration_start":
                self.steps[event["iteration"]] = ""
            case "text":
                self.steps[max(self.steps)] += event["text"]
            case "step_reset":
                self.steps[event["iteration"]] = ""
            case "retrieval":
                self.cards += [card["name"] for card in event["cards"]]
            case "done":
                view.messages.append({"id": event["message_id"], "role": "assistant", "content": self.text})
                view.sources = [reference["document_name"] for reference in event["references"]]
                view.ended = True
            case "interrupted" | "error":
                view.error, view.streaming, view.ended = {"code": "GENERATION_ABORTED", **event}, self.text, True

    @property
    def text(self) -> str:
        return "\n\n".join(text for text in self.steps.values() if text.strip())

    async def reload(self) -> list[Json]:
        return await reload_native(self.rig, self.conversation)


Client = ChatClient | KnowledgeClient | MessageClient | AgentXClient | ObservableClient


async def read_events(rig: Rig, conversation: str, dialect: str, words: str) -> AsyncIterator[Json]:
    """Yield the events of a turn in a dialect of the native doors."""
    path, query = f"/api/conversations/{conversation}/messages", {"dialect": dialect}
    async with rig.http.stream("POST", path, params=query, json={"content": words}) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                yield orjson.loads(line[6:])


async def reload_native(rig: Rig, conversation: str | None) -> list[Json]:
    items = (await rig.ok("GET", f"/api/conversations/{conversation}/messages"))["items"]
    return [{key: item[key] for key in ("id", "role", "content")} for item in items]


CONTRACTS = ["chat", "knowledge", "message", "agentx", "observable"]
BY_NIGHT = pytest.mark.nightly("chat and observable run every time; every contract ends a turn every time")


def mark_nightly(contracts: list[str]) -> list[Any]:
    """Mark all contracts but two as nightly. They share the code of a turn and differ in their frames."""
    return [name if name in ("chat", "observable") else pytest.param(name, marks=BY_NIGHT) for name in contracts]


@asynccontextmanager
async def open_client(contract: str, tmp_path: Path, *steps: Any) -> AsyncIterator[Client]:
    """Yield a client of a contract, whose server has a default domain with two documents."""
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        for name, data in (("Leave.md", LEAVE), ("Parking.md", PARKING)):
            await rig.upload(domain, name, data)
    async with Rig(tmp_path, *steps, default_domain=domain) as rig:
        match contract:
            case "chat":
                yield ChatClient(rig)
            case "knowledge":
                yield KnowledgeClient(rig)
            case "agentx":
                yield AgentXClient(rig)
            case "observable":
                yield ObservableClient(rig)
            case _:
                async with serving(rig.application.app) as address, connect_ws(address, contract) as socket:
                    yield MessageClient(rig, socket)


def check_answer(client: Client, text: str, sources: list[str]) -> None:
    """Check a client's state after a complete answer."""
    view = client.view
    assert view.error is None
    assert view.ended
    assert view.streaming == ""
    text_of_answer = view.answer
    for name in ("Leave.md", "Parking.md"):
        text_of_answer = text_of_answer.replace(f"[[{name}]]", "")
    assert text_of_answer == text
    assert view.sources == sources


async def check_reload(client: Client, *questions: str) -> None:
    """Check that the history, read again, ends with the client's state and contains all questions."""
    messages = await client.reload()
    assert messages[-1] == client.view.messages[-1]
    assert [message["content"] for message in messages if message["role"] == "user"] == list(questions)


SEARCH_LEAVE = use("search_documents", query="paid leave")


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_client_ends_each_turn_with_the_answer_its_sources_and_the_same_history(
    contract: str, tmp_path: Path
) -> None:
    word_first = Step((Say("Let me look."), Use("search_documents", {"query": "paid leave"})))
    cited_twice = Step((Say("You have 27 days of paid leave.", (Cite(0),)), Say(" The garage is free.", (Cite(1),))))
    steps = [
        say("Hello there."),
        *(SEARCH_LEAVE, say(ANSWER, Cite(0))),
        *(word_first, say(ANSWER, Cite(0))),
        *(SEARCH_LEAVE, use("search_documents", query="garage behind the house"), cited_twice),
    ]
    async with open_client(contract, tmp_path, *steps) as client:
        await client.begin()
        await client.send("Hello")
        check_answer(client, "Hello there.", [])
        await check_reload(client, "Hello")
        first = client.conversation
        await client.send("How much leave?")
        check_answer(client, ANSWER, ["Leave.md"])
        assert client.conversation == first
        await check_reload(client, "Hello", "How much leave?")
        for question, text, sources in (
            ("And after a word?", f"Let me look.\n\n{ANSWER}", ["Leave.md"]),
            ("And parking?", BOTH, ["Leave.md", "Parking.md"]),
        ):
            await client.begin()
            await client.send(question)
            check_answer(client, text, sources)
            await check_reload(client, question)
            if isinstance(client, KnowledgeClient):
                assert client.shown[-1] == sources
                assert client.shown[0] == ([] if question.startswith("And after") else sources)
            if isinstance(client, AgentXClient):
                assert set(client.tools.values()) == {"completed"}
            if isinstance(client, ObservableClient):
                assert client.cards == sources
            if isinstance(client, ChatClient):
                assert client.sessions_created == 1


@pytest.mark.parametrize("contract", mark_nightly(CONTRACTS))
async def test_a_client_reports_an_interrupt_and_an_error_and_keeps_the_text(contract: str, tmp_path: Path) -> None:
    stalled = Stalled(say("This takes long."), 3)
    failing = Broken(say("Never."), 0, ModelError("The model gives no answer."))
    async with open_client(contract, tmp_path, stalled, failing, say("Better.")) as client:
        await client.begin()
        async with anyio.create_task_group() as group:
            group.start_soon(client.send, "Go")
            await stalled.reached.wait()
            (turn,) = (await client.rig.ok("GET", "/api/conversations"))["items"]
            await client.rig.ok("POST", f"/api/conversations/{turn['id']}/interrupt", {})
        view = client.view
        assert view.ended
        assert view.error is not None
        assert view.error["code"] == "GENERATION_ABORTED"
        assert view.messages == []
        assert view.streaming.startswith("This")
        await client.send("Again")
        assert client.view.ended
        assert client.view.error is not None
        assert client.view.error["code"] == "LLM_SERVICE_ERROR"
        assert client.view.messages == []
        await client.send("And now?")
        check_answer(client, "Better.", [])
        await check_reload(client, "Go", "Again", "And now?")


@pytest.mark.parametrize("contract", mark_nightly(CONTRACTS))
async def test_a_reset_that_repeats_the_same_words_is_hidden_from_a_client(contract: str, tmp_path: Path) -> None:
    pieces = ("Full-time ", "staff ", "have 27 days", " of paid leave", ".")
    full_answer = Step((Say("".join(pieces), pieces=pieces),))
    cut_otherwise = Step((Say("".join(pieces), pieces=("Full", "-time st", "aff have 27 days of ", "paid leave.")),))
    async with open_client(contract, tmp_path, Broken(full_answer, 4), cut_otherwise) as client:
        await client.begin()
        await client.send("How much leave?")
        check_answer(client, "".join(pieces), [])
        await check_reload(client, "How much leave?")


RETRACTS_NOTHING = [contract for contract in CONTRACTS if contract != "observable"]


@pytest.mark.parametrize("contract", mark_nightly(RETRACTS_NOTHING))
async def test_after_a_reset_a_repeated_send_joins_the_turn_and_reads_it_completely(
    contract: str, tmp_path: Path
) -> None:
    first = Step((Say("First words of an answer.", pieces=("First ", "words ", "of an answer.")),))
    second_answer = Stalled(Step((Say("Other words entirely.", pieces=("Other ", "words ", "entirely.")),)), 4)
    async with open_client(contract, tmp_path, Broken(first, 3), second_answer, say("Next.")) as client:
        await client.begin()
        await client.send("How much leave?")
        view = client.view
        assert view.error is not None
        assert view.error["code"] == "STEP_RESET"
        assert view.error["retryable"] is False
        assert view.error["message"] == ANSWER_CONTINUES
        assert "the answer continues; reload to read it" in ANSWER_CONTINUES
        assert view.streaming.startswith("Fi")
        await second_answer.reached.wait()
        async with anyio.create_task_group() as group:
            group.start_soon(client.send, "How much leave?")
            await refuse_other_words(client)
            with anyio.fail_after(WAIT_SECONDS):
                while not client.rig.application.parts.runtime.reader_count:  # until it has joined
                    await pause()
            second_answer.until.set()
        check_answer(client, "Other words entirely.", [])
        await check_reload(client, "How much leave?")
        await client.send("How much leave?")
        check_answer(client, "Next.", [])
        await check_reload(client, "How much leave?", "How much leave?")


async def refuse_other_words(client: Client) -> None:
    """A different text does not join a turn."""
    path, body = f"/api/conversations/{client.conversation}/messages?dialect=message", {"content": "Something else?"}
    assert (await client.rig.refused("POST", path, body))[:2] == (409, "TURN_IN_PROGRESS")


async def test_a_client_that_waits_for_json_gets_the_answer_after_a_reset(tmp_path: Path) -> None:
    async with Rig(tmp_path, Broken(say("First words."), 3), say("Other words.")) as rig:
        path = f"/api/conversations/{await rig.conversation()}/messages"
        options: Any = {"params": {"dialect": "message"}, "headers": {"accept": "application/json"}}
        answer = await rig.ok("POST", path, {"content": "Go"}, **options)
        assert answer["content"] == "Other words."
        assert (await rig.ok("GET", path, params={"dialect": "message"}))["items"][1]["content"] == "Other words."


async def test_a_reset_retracts_the_step_for_an_observable_client(tmp_path: Path) -> None:
    async with open_client("observable", tmp_path, Broken(say("First words."), 3), say("Other words.")) as client:
        await client.begin()
        await client.send("How much leave?")
        check_answer(client, "Other words.", [])
        await check_reload(client, "How much leave?")


@pytest.mark.parametrize("dialect", [*RETRACTS_NOTHING, "observable", "native"])
async def test_the_same_client_message_id_joins_the_running_turn(dialect: str, tmp_path: Path) -> None:
    stalled = Stalled(say("This takes a while."), 3)
    async with Rig(tmp_path, stalled) as rig:
        path = f"/api/conversations/{await rig.conversation()}/messages"
        body = {"content": "Go", "clientMessageId": "m1"}
        await rig.ok("POST", path, body, headers={"accept": "application/json"})
        await stalled.reached.wait()
        assert (await rig.refused("POST", path, {**body, "content": "Other"}))[1] == "IDEMPOTENCY_MISMATCH"
        texts: list[str] = []

        async def join() -> None:
            texts.append((await rig.http.post(path, json=body, params={"dialect": dialect})).text)

        async with anyio.create_task_group() as group:
            group.start_soon(join)
            stalled.until.set()
        assert "Th" in texts[0]
        assert [item["content"] for item in (await rig.ok("GET", path))["items"]] == ["Go", "This takes a while."]
