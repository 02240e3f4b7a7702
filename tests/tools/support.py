"""Shared parts of the tool tests: specs of the test servers, a hub that may run them, and waiting."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from mcp.server import MCPServer

from agentic_rag.tools.base import Binding, CallOutcome, CallRequest, ProgressSink, ToolInfo
from agentic_rag.tools.connector import Connector
from agentic_rag.tools.entries.entry import HttpKind, HttpTarget, Identity, McpEntry, PlainValue, StdioTarget
from agentic_rag.tools.launch.policy import LaunchPolicy, LiftedRules
from agentic_rag.tools.launch.spec import LaunchSpec
from agentic_rag.tools.pool import McpPool
from agentic_rag.tools.status import ConnectionTimeouts
from agentic_rag.tools.toolset import ServerToolset
from tests.waiting import pause

SERVERS = Path(__file__).parent / "servers"
START = 60.0
"""Time limit of a start in seconds. Child processes have a lower priority, so a start may be slow on a busy machine."""

QUICK = ConnectionTimeouts(initialize=START, probe=START / 3, backoff=0.01, window=60)
"""Timeouts with fast retries and a long limit for a start."""


def stdio_spec(
    command: str,
    *args: str,
    name: str = "x",
    env: Mapping[str, str] | None = None,
    domain: str = "",
    workspace: str = "",
    user: str = "",
    identity: str = "domain",
) -> LaunchSpec:
    """Return a spec that starts a command line literally, without placeholders."""
    values = {variable: PlainValue(text) for variable, text in (env or {}).items()}
    entry = McpEntry(name, StdioTarget(command, args, values), identity=Identity(identity))
    return LaunchSpec(entry, domain, workspace, user, f"mcpServers.{name}", StdioTarget(command, args, env or {}))


def http_spec(url: str, headers: Mapping[str, str] | None = None, kind: str = "http", name: str = "web") -> LaunchSpec:
    """Return a spec that connects to an address literally."""
    values = {header: PlainValue(text) for header, text in (headers or {}).items()}
    entry = McpEntry(name, HttpTarget(url, values, HttpKind(kind)))
    target = HttpTarget(url, headers or {}, HttpKind(kind))
    return LaunchSpec(entry, "", "", "", f"mcpServers.{name}", target)


def line_of(spec: LaunchSpec) -> list[str]:
    """Return the whole command line of a stdio entry."""
    assert isinstance(spec.entry.target, StdioTarget)
    return [spec.entry.target.command, *spec.entry.target.args]


def plain(name: str = "plain", **fields: Any) -> LaunchSpec:
    """Return the spec of the well-behaved server over stdio."""
    return stdio_spec(sys.executable, str(SERVERS / "plain.py"), name=name, **fields)


def hostile(behaviour: str = "ok", name: str = "hostile", **fields: Any) -> LaunchSpec:
    """Return the spec of the server that breaks the rules."""
    return stdio_spec(sys.executable, "-I", "-S", str(SERVERS / "hostile.py"), behaviour, name=name, **fields)


class Hub(McpPool):
    """A pool with the given own servers and rules. ``options`` are those of a `Connector`."""

    def __init__(
        self, builtin: Mapping[str, MCPServer] | None = None, policy: LaunchPolicy | None = None, **options: Any
    ) -> None:
        async def load() -> Connector:
            return Connector(builtin, policy, **options)

        super().__init__(load, policy)


@asynccontextmanager
async def open_hub(homes: Path, *, patience: ConnectionTimeouts = QUICK, **fields: Any) -> AsyncIterator[Hub]:
    """Open a hub that may run anything. At the end no child may be left."""
    policy = LaunchPolicy(homes, lifted=LiftedRules(any_command=True, loopback=True))
    async with Hub(fields.pop("builtin", None), policy, patience=patience, **fields) as hub:
        yield hub
    assert policy.sweep() == 0, "a child outlived its hub"


def tool(toolset: ServerToolset, name: str) -> ToolInfo:
    return next(info for info in toolset.tools if info.name == name or info.remote_name == name)


async def call(
    toolset: ServerToolset,
    name: str,
    timeout: float = 30,
    progress: ProgressSink | None = None,
    *,
    admin: bool = True,
    **arguments: Any,
) -> CallOutcome:
    """Call a tool by either of its names. The test fails if the call takes longer than any limit.

    ``admin``: call as an admin of the domain, who can read why a server stopped.
    """
    with anyio.fail_after(240):
        request = CallRequest("c1", tool(toolset, name), arguments, "", Binding(admin=admin))
        outcome = await toolset.call(request, timeout, progress)
    assert isinstance(outcome, CallOutcome)
    return outcome


def text_of(outcome: CallOutcome) -> str:
    return "\n".join(block["text"] for block in outcome.content if block["type"] == "text")


async def until(condition: Callable[[], bool | Awaitable[bool]], seconds: float = START) -> None:
    """Wait for a condition outside this process by polling."""
    with anyio.fail_after(seconds):
        while True:
            outcome = condition()
            if outcome if isinstance(outcome, bool) else await outcome:
                return
            await pause()


def alive(pid: int) -> bool:
    """Whether a process runs and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second, if the process ends between opening and reading
        return False
