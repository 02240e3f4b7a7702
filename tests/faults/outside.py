"""The surroundings of the server under test, which survive its kills: the fake Messages API and an MCP server.

Both run in the event loop of one thread, so that tests and scripts can be plain functions. The last word of a message
selects the model's script, see `SCRIPTS`. The word before it is the message's key, by which effects are counted.
"""

import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from anyio.abc import TaskStatus
from anyio.from_thread import start_blocking_portal
from mcp.server import MCPServer
from mcp_types import CallToolResult, ToolAnnotations

from agentic_rag.testing.fake_api import FakeMessagesAPI, Fault, Reply, demo
from agentic_rag.testing.steps import Say, Step, Think, Use, say
from tests.waiting import pause

SECRET = "s3cr3t-of-the-tool-server-7f1c"
"""Sent with each request to the MCP server. It must appear nowhere else."""
BULK = "row of the big table\n" * 1200
"""A result above the size limit, so that a payload is written, too."""
PATIENCE = 240.0
"""Seconds after which a waiting test fails."""

SCRIPTS = ("plain", "tools", "long", "slow", "cut")
"""Scripts of the model.

``plain``: a short text. ``tools``: thinking and two calls, then a text. ``long``: a second of deltas. ``slow``: some
seconds. ``cut``: a stream that breaks once, after some deltas. Further scripts: ``lasting``: ten minutes of deltas;
``ask``, a call that asks a person; ``keep``, a call that stores the key; ``deltas=N``, as fast as they are read; and
``pages=N`` with 4 KB each.
"""


@dataclass
class Outside:
    """The model and the tools. ``spent`` counts the runs of the tool with effects by key."""

    api: FakeMessagesAPI
    tools_url: str
    journal: Path
    asked: Counter[str] = field(default_factory=Counter)
    first_steps: dict[str, Step] = field(default_factory=dict)
    """The first step of a turn whose script is ``first``, by key."""
    answers: dict[str, CallToolResult] = field(default_factory=dict)
    """The result of the tool ``answer``, by key."""

    @property
    def spent(self) -> Counter[str]:
        """Number of runs of the tool with effects, by key. Each run writes a line to a file."""
        return Counter(self.journal.read_text().split() if self.journal.exists() else ())

    @property
    def settings(self) -> dict[str, Any]:
        """Domain settings with the tool server."""
        headers = {"Authorization": f"Bearer {SECRET}"}
        return {
            "mcpServers": {"counter": {"type": "http", "url": self.tools_url, "headers": headers}},
            "toolPolicy": {"*": "allow"},
        }

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a server that uses these surroundings."""
        host = self.tools_url.split("/")[2]
        return {
            "ANTHROPIC_API_KEY": self.api.key,
            "ANTHROPIC_BASE_URL": self.api.url,
            "AGENTIC_RAG_MCP_HOSTS": host,
            "AGENTIC_RAG_TITLES": "message",  # the model only knows scripts, not titles
        }

    def answer(self, request: dict[str, Any]) -> Reply:
        """Run the script in the last word of the last message. Requests for a summary get one."""
        if "Summarise the conversation" in str(request["messages"][-1]) + str(request.get("system")):
            return Reply(say('{"facts": ["They spoke."]}'))
        place = max(number for number, message in enumerate(request["messages"]) if _speaks(message))
        words = request["messages"][place]["content"][-1]["text"].split()
        key, script = (words[-2], words[-1]) if len(words) > 1 else ("", "plain")
        steps = sum(message["role"] == "assistant" for message in request["messages"][place:])
        self.asked[key] += 1
        if script == "tools" and steps == 0:
            names = {tool["name"].rpartition("__")[2]: tool["name"] for tool in request["tools"]}
            calls = (Use("promptx_action", {"role": "assistant"}), Use(names["spend"], {"key": key}))
            return Reply(Step((Think("First my role, then I spend."), *calls)), rate=200)
        if script == "first" and steps == 0:
            return Reply(self.first_steps.pop(key))
        if script == "keep" and steps == 0:
            return Reply(Step((Use("notes__keep", {"text": key}),)))
        if script == "ask" and steps == 0:
            form = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
            params = [{"mode": "form", "message": "Who are you?", "requestedSchema": form}]
            return Reply(Step((Use("desk__ask", {"params": params}),)))
        if script == "long":
            return Reply(Step((Think("A long one."), *demo(50).blocks)), rate=50)
        if script == "slow":
            return Reply(demo(150), rate=50)
        if script == "lasting":
            return Reply(demo(30_000), rate=50)
        if script.startswith(("deltas=", "pages=")):
            kind, _, count = script.partition("=")
            return Reply(demo(int(count), "x" * (4000 if kind == "pages" else 20)))
        if script == "cut" and self.asked[key] == 1:
            return Reply(say(f"This answer to {key} breaks off."), Fault(error_after=6, error_type="overloaded_error"))
        return Reply(Step((Say(f"The answer to {key} is here, whole."),)), rate=200)


def _speaks(message: dict[str, Any]) -> bool:
    """Whether the message contains a user's text, not only tool results."""
    return message["role"] == "user" and any(block["type"] == "text" for block in message["content"])


def _tools(journal: Path, answers: dict[str, CallToolResult]) -> MCPServer:
    server = MCPServer("counter", log_level="ERROR")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))  # so that it runs without approval
    async def spend(key: str) -> str:
        """Spend one unit."""
        with journal.open("a") as file:
            file.write(key + "\n")
        return f"spent for {key}\n{BULK}"

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def answer(key: str) -> CallToolResult:
        """Return the prepared answer of a key."""
        return answers[key]

    return server


async def _serve(app: Any, task_status: TaskStatus[tuple[int, uvicorn.Server]]) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_config=None, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, [listener])
        with anyio.fail_after(PATIENCE):
            while not server.started:
                await pause()
        task_status.started((listener.getsockname()[1], server))


@contextmanager
def make_outside(folder: Path) -> Iterator[Outside]:
    """Run model and tools until the block ends. Fails if a script failed."""
    journal = folder / "spent.txt"
    with start_blocking_portal() as portal:
        ready: list[Outside] = []
        answers: dict[str, CallToolResult] = {}
        api = FakeMessagesAPI(then=lambda request: ready[0].answer(request))
        serving, (port, tool_server) = portal.start_task(_run_tools, journal, answers)
        portal.call(api.start)
        ready.append(Outside(api, f"http://127.0.0.1:{port}/mcp", journal, answers=answers))
        try:
            yield ready[0]
        finally:
            portal.call(api.stop)
            tool_server.should_exit = True
            serving.result(PATIENCE)
        api.assert_consumed()


async def _run_tools(
    journal: Path, answers: dict[str, CallToolResult], *, task_status: TaskStatus[tuple[int, uvicorn.Server]]
) -> None:
    await _serve(_tools(journal, answers).streamable_http_app(), task_status)
