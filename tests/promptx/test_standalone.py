"""The server as a separate process: stdio and streamable HTTP, both protocol eras."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from mcp_servers.promptx.__main__ import config_from
from mcp_servers.promptx.errors import BadScope

ROOT = Path(__file__).parents[2]
MODULE = ["-m", "mcp_servers.promptx"]
SECONDS = 240
BARE = {"action", "recall", "remember", "forget", "discover"}


def environment(workspace: Path, **variables: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PROMPTX_PROJECT_DIR": str(workspace), **variables}


async def remember_and_recall(client: Client) -> str:
    engram = {"content": "from outside", "schema": "host other", "strength": 1, "type": "PATTERN"}
    await client.call_tool("remember", {"role": "assistant", "engrams": [engram]})
    recall = await client.call_tool("promptx_recall", {"role": "assistant", "query": "host"})
    return str(recall.structured_content["engrams"][0]["content"])


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_over_stdio_it_answers_both_sets_of_names(workspace: Path, mode: str) -> None:
    parameters = StdioServerParameters(
        command=sys.executable,
        args=MODULE,
        cwd=ROOT,
        env=environment(workspace, PROMPTX_MEMORY_SCOPE="user:alice", PROMPTX_ALLOW_ROLE_WRITE="1"),
    )
    with anyio.fail_after(SECONDS):
        async with Client(parameters, mode=mode, read_timeout_seconds=SECONDS) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert names == BARE | {f"promptx_{name}" for name in BARE} | {"role_write", "role_check"}
            assert await remember_and_recall(client) == "from outside"
    assert (workspace / ".promptx" / "cognition.user" / "alice" / "assistant" / "network.json").exists()


@contextmanager
def http_server(workspace: Path) -> Iterator[str]:
    """A server on a free port; yields its address."""
    command = [sys.executable, *MODULE, "--http", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, env=environment(workspace), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            address = next(match[0] for line in process.stderr if (match := re.search(r"http://[\d.]+:\d+", line)))
            yield f"{address}/mcp"
        finally:
            process.terminate()
            process.stderr.read()


async def test_over_http_it_serves_both_protocol_versions(workspace: Path) -> None:
    with http_server(workspace) as address, anyio.fail_after(SECONDS):
        for mode in ("auto", "legacy"):
            async with Client(address, mode=mode, read_timeout_seconds=SECONDS) as client:
                assert await remember_and_recall(client) == "from outside"
    assert (workspace / ".promptx" / "cognition" / "assistant" / "engrams.db").exists()


@pytest.mark.parametrize("scope", ["../x", "user", "user:", "user:../bob", "everyone"])
def test_a_bad_scope_prevents_the_start_with_its_reason(workspace: Path, scope: str) -> None:
    with pytest.raises(BadScope):
        config_from({"PROMPTX_PROJECT_DIR": str(workspace), "PROMPTX_MEMORY_SCOPE": scope})


def test_the_environment_sets_workspace_scope_and_author_tools(workspace: Path) -> None:
    config = config_from({"PROMPTX_PROJECT_DIR": str(workspace)})
    assert (config.workspace, config.scope, config.user, config.role_write) == (workspace, "domain", None, False)
    assert config_from({}).workspace == Path.cwd()
    assert not config.bound_by_meta
