"""Published MCP servers, from pasted JSON to a call in a turn, through the real server and as an admin adds them.

Tests are skipped by name without a registry, its client, or bubblewrap.
"""

import json
import os
import shutil
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from agentic_rag.testing.fake_api import FakeMessagesAPI, Reply
from agentic_rag.testing.steps import say, use
from tests.e2e.serving import Event, Server, serving, text_of
from tests.tools.captives import needs_bubblewrap
from tests.tools.support import alive, until
from tests.waiting import pause

INSTALL_SECONDS = 240
PASTED: dict[str, tuple[str, dict[str, Any]]] = {
    "Claude Desktop": (
        "files",
        {"mcpServers": {"files": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "."]}}},
    ),
    "Cursor": (
        "notes",
        {
            "mcpServers": {
                "notes": {
                    "command": "npx",
                    "args": ["-y", "@modelcontextprotocol/server-memory"],
                    "env": {"MEMORY_FILE_PATH": "/home/me/memory.json"},
                }
            }
        },
    ),
    "VS Code": (
        "every",
        {
            "inputs": [{"type": "promptString", "id": "key", "description": "A key"}],
            "servers": {
                "every": {
                    "type": "stdio",
                    "command": "npx",
                    "args": ["-y", "@modelcontextprotocol/server-everything@latest"],
                }
            },
        },
    ),
    "LibreChat": (
        "clock",
        {
            "mcpServers": {
                "clock": {
                    "type": "stdio",
                    "command": "uvx",
                    "args": ["mcp-server-time"],
                    "timeout": 60000,
                    "serverInstructions": True,
                }
            }
        },
    ),
}


def answer_request(request: dict[str, Any]) -> Reply:
    """Call the tool that the user names as JSON, then answer with its result; greet a user who names none."""
    # Notes about servers follow the user's message in a system message.
    last = next(message["content"] for message in reversed(request["messages"]) if message["role"] == "user")
    results = [block for block in last if block["type"] == "tool_result"]
    if results:
        return Reply(say("".join(part["text"] for part in results[0]["content"] if part["type"] == "text")))
    requested_call = next((json.loads(block["text"]) for block in last if block.get("text", "").startswith("{")), None)
    if requested_call is None:
        return Reply(say("Hello."))
    return Reply(use(requested_call["tool"], **requested_call["arguments"]))


def request(server: Server, method: str, path: str, body: Any = None) -> Any:
    """Send a request that may install something. A refusal is returned as its JSON."""
    http_request = urllib.request.Request(
        server.url + path,
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
        method=method,
    )
    try:
        with urllib.request.urlopen(http_request, timeout=INSTALL_SECONDS) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as refusal:
        return json.loads(refusal.read())


async def ask(server: Server, method: str, path: str, body: Any = None) -> Any:
    return await anyio.to_thread.run_sync(request, server, method, path, body)


async def paste(server: Server, domain: str) -> None:
    """Test and save each configuration, one after the other, as an admin does."""
    for client, (name, document) in PASTED.items():
        tested = await ask(server, "POST", f"/api/domains/{domain}/mcp-servers/test", document)
        server_state = tested["items"][0]
        if "cannot be reached" in server_state["reason"]:
            pytest.skip(f"registries: {server_state['reason']}")
        assert (server_state["name"], server_state["state"]) == (name, "ready"), (
            client,
            server_state["reason"],
            server_state["log"],
        )
        assert server_state["tools"]
        change = {"settings": {"mcpServers": document}}
        response = await ask(server, "PATCH", f"/api/domains/{domain}", change)
        assert name in response["settings"]["mcpServers"], response
        paths = {note["path"] for note in (*response["changes"], *response["warnings"])}
        assert all(path.startswith("settings.mcpServers.") for path in paths)
        assert not any("not installed" in note["text"] for note in response["warnings"])
        assert [item["name"] for item in tested["items"]] == [name]


async def wait_ready(server: Server, domain: str) -> None:
    """Wait until the servers of all configurations run. A turn has only tools that a server listed before it."""
    ready = {name: "ready" for name, _ in PASTED.values()}
    states: dict[str, str] = {}
    with anyio.move_on_after(INSTALL_SECONDS):
        while states != ready:
            await pause()
            items = (await ask(server, "GET", f"/api/domains/{domain}/mcp-servers"))["items"]
            states = {item["name"]: item["state"] for item in items if item["origin"] == "user"}
    assert states == ready


def find_processes(data: Path, word: str) -> list[int]:
    """Return the processes of a data folder with a word in their command line."""
    pids = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\x00", b" ").decode("utf-8", "replace")
        except OSError:  # ended meanwhile
            continue
        if str(data) in line and word in line:
            pids.append(int(pid))
    return sorted(pids)


def call_as_json(tool: str, **arguments: Any) -> str:
    return json.dumps({"tool": tool, "arguments": arguments})


def outcomes(events: list[Event]) -> list[str]:
    return [event["status"] for event in events if event["type"] == "tool_result"]


@pytest.mark.nightly(
    "installs four servers from npm and PyPI; test_real_servers.py runs published ones, test_mcp_servers.py pastes some"
)
@needs_bubblewrap
@pytest.mark.skipif(shutil.which("npm") is None, reason="Node.js: no npm on this machine")
async def test_pasted_servers_are_tested_saved_called_and_recover_from_a_kill(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with FakeMessagesAPI(then=answer_request) as api:
        variables = {"ANTHROPIC_API_KEY": api.key, "ANTHROPIC_BASE_URL": api.url}
        with serving(data, **variables) as server:
            domain = (await ask(server, "POST", "/api/domains", {"name": "Desk"}))["id"]
            await paste(server, domain)
            rules = {"toolPolicy": {f"{name}__*": "allow" for name in ("files", "notes", "clock", "every")}}
            await ask(server, "PATCH", f"/api/domains/{domain}", {"settings": rules})
            letter = data / "workspaces" / domain / "files" / "a.txt"
            letter.write_text("from the workspace")
            letter.chmod(0o644)  # of an operator's shell; the server reads it as another user
            async with server.chat(await server.conversation(domain)) as chat:
                assert text_of(await chat.say("Hello?")) == "Hello."  # a domain's first turn starts its servers
                await wait_ready(server, domain)
                path = str(data / "workspaces" / domain / "files" / "a.txt")
                assert text_of(await chat.say(call_as_json("files__read_text_file", path=path))) == "from the workspace"
                fact = {"name": "GDPR", "entityType": "law", "observations": ["Article 17"]}
                assert outcomes(await chat.say(call_as_json("notes__create_entities", entities=[fact]))) == ["ok"]
                assert "Article 17" in text_of(await chat.say(call_as_json("notes__search_nodes", query="GDPR")))
                last_turn = await chat.say(call_as_json("clock__get_current_time", timezone="Asia/Tokyo"))
                assert "Asia/Tokyo" in text_of(last_turn)
                assert "5" in text_of(await chat.say(call_as_json("every__get-sum", a=2, b=3)))
                killed: list[int] = []

                def kill(event: Event) -> None:
                    if event["type"] == "tool_progress" and not killed:
                        killed.extend(find_processes(data, "server-everything"))
                        os.kill(killed[-1], signal.SIGKILL)  # the server itself, in its namespace

                slow = call_as_json("every__trigger-long-running-operation", duration=60, steps=600)
                events = await chat.say(slow, on_event=kill)
                assert killed
                assert (outcomes(events), events[-1]["type"]) == (["error"], "done")
                assert "is not available" in text_of(events)
                await until(lambda: not any(alive(pid) for pid in killed))
                assert "5" in text_of(await chat.say(call_as_json("every__get-sum", a=2, b=3)))
            await wait_ready(server, domain)
            await ask(server, "PATCH", f"/api/domains/{domain}", {"settings": {"mcpServers": {"notes": None}}})
            await until(lambda: not find_processes(data, "server-memory"))
    assert api.refused == []
    await until(lambda: not find_processes(data, ""))
