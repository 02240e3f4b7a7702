"""The client packages for Python and JavaScript against the server, with a kill -9 in the middle of a turn."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from agentic_rag_client import Call, Client, ServerError, Text, Thinking, TurnView

from agentic_rag.testing.scripted import Broken
from agentic_rag.testing.steps import Cite, Say, Step, Think, Use, use
from tests.console.test_stream_module import run_module
from tests.e2e.serving import Server, serving_without_demo
from tests.node import PATIENCE, node
from tests.server.rig import Rig

PACKAGES = Path(__file__).parents[2] / "clients"
QUESTION = "How many days of paid leave do full-time staff have?"
ASKING = {"name": "Asking", "settings": {"toolPolicy": {"search_documents": "ask"}}}
"""A domain in which a turn waits for an approval, so that it still runs when the server is killed."""


class Address:
    """The address of a server that is killed and restarted."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = str(free.getsockname()[1])
        self._data = folder / "data"
        self.url = f"http://127.0.0.1:{self._port}"

    @contextmanager
    def serving(self) -> Iterator[Server]:
        with serving_without_demo(self._data, "--port", self._port) as server:
            yield server


def kill(server: Server) -> None:
    server.child.kill()
    server.child.wait()


@pytest.mark.slow("two servers start, one after a kill")
async def test_the_python_client_completes_a_turn_after_kill_9(tmp_path: Path) -> None:
    address = Address(tmp_path)
    with anyio.fail_after(PATIENCE):
        async with Client(address.url) as client:
            with address.serving() as server:
                domain = (await client.call("POST", "/api/domains", ASKING))["id"]
                conversation = await client.create_conversation(domain)
                turn = await client.send(conversation, QUESTION, client_message_id="m-1")
                async for event in turn:
                    if event["type"] == "input_required":
                        break
                kill(server)
            with address.serving():
                (wait,) = turn.view.waits.values()
                assert turn.view.status == "waiting"
                assert await client.answer(conversation, wait["waitId"], "accept") == "accepted"
                view = await turn.finish()
                messages = await client.messages(conversation)
                repeated = await client.send(conversation, QUESTION, client_message_id="m-1")
                assert repeated.id == turn.id, "a message sent twice made a second turn"
                assert (await repeated.finish()).text == view.text
                with pytest.raises(ServerError, match="WAIT_ANSWERED"):
                    await client.answer(conversation, wait["waitId"], "accept")
    assert view.status == "done"
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert view.text == messages[-1]["content"]
    call = [item for item in view.items if isinstance(item, Call)][-1]
    assert (call.name, call.status, call.wait_ids) == ("search_documents", "ok", [wait["waitId"]])


PROGRAM = """
import { Client } from "@agentic-rag/client";

const client = new Client({ url: process.env.RAG_URL });
const lost = new Promise((resolve) => (client.stream.onState = (state) => state === "lost" && resolve()));
const domain = await client.call("POST", "/api/domains", JSON.parse(process.env.RAG_DOMAIN));
const conversation = await client.createConversation(domain.id);
const turn = await client.send(conversation, process.env.RAG_QUESTION, { clientMessageId: "m-1" });
let answered;
for await (const event of turn) {
  if (event.type !== "input_required" || answered) continue;
  console.log("waiting");
  await lost;
  answered = await client.answer(conversation, event.waitId, "accept");
}
const stored = await client.messages(conversation);
const again = await client.send(conversation, process.env.RAG_QUESTION, { clientMessageId: "m-1" });
await again.finish();
client.close();
const calls = turn.view.items.filter((item) => item.kind === "call").map(({ name, status }) => [name, status]);
console.log(JSON.stringify({ answered, calls, status: turn.view.status, text: turn.text, again: again.text,
  same: again.id === turn.id, stored: stored.map(({ content }) => content) }));
"""


def install_package(folder: Path) -> None:
    """Pack ``@agentic-rag/client`` as for publication, and install the package into a folder."""
    npm = node().parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    environment = {**os.environ, "PATH": f"{node().parent}:{os.environ['PATH']}"}

    def run(folder_path: Path, *arguments: str) -> None:
        command = [str(node()), str(npm), *arguments]
        result = subprocess.run(
            command, cwd=folder_path, env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
        assert result.returncode == 0, result.stderr

    run(PACKAGES / "javascript", "pack", "--pack-destination", str(folder))
    (archive,) = folder.glob("*.tgz")
    (folder / "package.json").write_text('{"type": "module"}')
    run(folder, "install", "--offline", "--no-audit", "--no-fund", str(archive))


@pytest.mark.slow("two servers start, one after a kill")
async def test_the_javascript_client_completes_a_turn_after_kill_9(tmp_path: Path) -> None:
    address = Address(tmp_path)
    program = tmp_path / "program"
    program.mkdir()
    install_package(program)
    (program / "main.js").write_text(PROGRAM)
    variables = {"RAG_URL": address.url, "RAG_DOMAIN": json.dumps(ASKING), "RAG_QUESTION": QUESTION}
    with anyio.fail_after(PATIENCE):
        with address.serving() as server:
            command = [str(node()), "main.js"]
            child = await anyio.open_process(command, cwd=program, env={**os.environ, **variables}, stderr=None)
            assert child.stdout is not None
            assert await child.stdout.receive() == b"waiting\n"
            kill(server)
        with address.serving():
            output = b""
            async for piece in child.stdout:
                output += piece
            assert await child.wait() == 0
    result = json.loads(output)
    assert (result["answered"], result["status"], result["same"]) == ("accepted", "done", True)
    assert result["calls"][-1] == ["search_documents", "ok"]
    assert result["text"] == result["again"] == result["stored"][-1]
    assert len(result["stored"]) == 2


async def test_a_client_with_a_wrong_key_is_refused(tmp_path: Path) -> None:
    with anyio.fail_after(PATIENCE), serving_without_demo(tmp_path / "data") as server:
        server.call("POST", "/api/keys", {"user": "ann", "role": "operator"})
        async with Client(server.url, key="arag_wrong") as client:
            with pytest.raises(ServerError) as refusal:
                await client.create_conversation("demo")
            with pytest.raises(ServerError) as closing:
                await client.send("conv_1", "Hello")
    assert refusal.value.status == closing.value.status == 401
    assert refusal.value.code == closing.value.code


async def test_both_client_packages_build_the_same_view_of_a_turn(tmp_path: Path) -> None:
    first = Step((Think("Think 💭."), Say("I look 🔎 it up. "), Use("search_documents", {"query": "leave"})))
    broken_step = Broken(Step((Think("Again"), Say("This is said and taken back. "), Say("Really."))), 6)
    cited_step = Step((Say("They have 🎉 "), Say("25 days", (Cite(0),)), Say(".")))
    async with Rig(tmp_path, first, broken_step, cited_step, use("no_such_tool", a=1), Step((Say("No."),))) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "leave.md", b"# Leave\n\nTwenty-five days of leave a year.")
        conversation = await rig.conversation(domain)
        turns = [await rig.say(conversation, "How many?"), await rig.say(conversation, "And?")]
    *views, _ = await run_module("console_stream.mjs", {"turns": turns})
    for events, javascript in zip(turns, views, strict=True):
        python = TurnView()
        for event in events:
            assert python.add(event)
            assert not python.add(event), "an event that came twice was counted"
        assert (python.text, python.status, python.usage) == tuple(
            javascript[name] for name in ("text", "status", "usage")
        )
        assert [_summarise_python(item) for item in python.items] == [
            _summarise_javascript(item) for item in javascript["items"]
        ]


def _summarise_python(item: object) -> object:
    """Return an item of the Python view in the JavaScript view's form."""
    match item:
        case Text():
            citations = [(citation.number, citation.start, citation.end) for citation in item.citations]
            return ["text", item.iteration, item.text, item.at, citations]
        case Thinking():
            return ["thinking", item.iteration, item.text]
        case Call():
            return ["call", item.id, item.name, item.server, item.status, item.arguments, item.duration_ms]
    return type(item).__name__.lower()


def _summarise_javascript(item: dict[str, object]) -> object:
    match item["kind"]:
        case "text":
            citations = [(citation["number"], citation["from"], citation["to"]) for citation in item["citations"]]  # type: ignore[attr-defined]
            return ["text", item["iteration"], item["text"], item["at"], citations]
        case "thinking":
            return ["thinking", item["iteration"], item["text"]]
        case "call":
            return ["call", *(item[name] for name in ("id", "name", "server", "status", "arguments", "durationMs"))]
    return item["kind"]
