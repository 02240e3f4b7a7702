"""Refusals during a server's start: a program changed after its check, or an address that redirects."""

import re
from collections import deque
from pathlib import Path

import anyio
import pytest
from starlette.types import Receive, Scope, Send

from agentic_rag.base.errors import AgenticRagError
from agentic_rag.tools.launch.allowed import ExtraRights
from agentic_rag.tools.launch.policy import LaunchPolicy, StdioCommand
from agentic_rag.tools.launch.spec import LaunchSpec
from agentic_rag.tools.transports.stdio import StdioTransport
from tests.access.admins import admin
from tests.tools.captives import CAPTIVE, PYTHON, beats, needs_bubblewrap, policy_in
from tests.tools.support import QUICK, START, Hub, stdio_spec
from tests.tools.test_http import serve


class CheckedBefore(LaunchPolicy):
    """A policy that has just allowed a start."""

    command: StdioCommand

    def resolve(self, spec: LaunchSpec) -> StdioCommand:
        return self.command


async def swap_program(folder: Path) -> tuple[LaunchPolicy, LaunchSpec, StdioCommand]:
    """Allow a program, check its start, and then change the program."""
    policy = policy_in(folder)
    program = folder / "bin" / "server.py"
    program.parent.mkdir()
    program.write_text(CAPTIVE.read_text())
    assert policy.packages is not None
    line = [PYTHON, "-I", "-S", str(program), "--heartbeat"]
    await policy.catalogue.allow(line, ExtraRights(), policy.packages, [policy.homes])
    spec = stdio_spec(*line, domain="law")
    command = policy.resolve(spec)
    program.write_text(program.read_text() + "\n")
    return policy, spec, command


@needs_bubblewrap
@pytest.mark.attack(kind="spawning")
async def test_a_program_swapped_between_check_and_start_is_reported(tmp_path: Path) -> None:
    policy, spec, command = await swap_program(tmp_path)
    reports: list[tuple[str, str, str]] = []

    class Observer:
        async def server_refused(self, spec: LaunchSpec, error: AgenticRagError) -> None:
            reports.append((f"{spec.domain}/{spec.name}", error.code, str(error)))

    gate = CheckedBefore(policy.homes, catalogue=policy.catalogue, packages=policy.packages)
    gate.command = command
    async with Hub(policy=gate, patience=QUICK, observer=Observer()) as hub:
        connection = (await hub.acquire([spec], wait=START))["x"]
        assert connection.state != "ready"
        assert any(line.startswith("not started: ") for line in connection.status().log)
    assert {(target, code) for target, code, _ in reports} == {("law/x", "MCP_COMMAND_NOT_ALLOWED")}
    assert all(
        re.search(r"^mcpServers\.x\.command: .*is not the file that was allowed", text) for _, _, text in reports
    )
    assert beats(policy.homes) == 0


@pytest.mark.attack(kind="spawning")
@pytest.mark.parametrize("script", ["exit 126", "echo 'not started: a lie' >&2; exit 0", "echo fine >&2; exit 126"])
async def test_an_expected_servers_end_is_not_reported(tmp_path: Path, script: str) -> None:
    command = StdioCommand("/bin/sh", ("-c", script), {}, tmp_path, "no-marker")
    reasons, has_ended = [], anyio.Event()

    async def note_refusal(reason: str) -> None:
        reasons.append(reason)

    async with StdioTransport(command, lambda reason: has_ended.set(), deque(), note_refusal) as (inbox, _):
        with pytest.raises(anyio.EndOfStream):
            await inbox.receive()
    assert has_ended.is_set()
    assert reasons == []


ELSEWHERE = "http://elsewhere.example:8000/messages"
STREAMS = {
    "at once": [f"event: endpoint\ndata: {ELSEWHERE}\n\n"],
    "in pieces": list(f"event: endpoint\r\ndata: {ELSEWHERE}\r\n\r\n"),
    "after a comment": [": hello\n\n", f"event: endpoint\rdata: {ELSEWHERE}\r\r: and more\n"],
    "in two lines": ["data: http://else\ndata:where.example:8000/messages\nevent: endpoint\n\n"],
    "on another port": ["event: endpoint\ndata: //127.0.0.1:1/messages\n\n"],
    "no address": ["event: endpoint\ndata: http://[1/messages\n\n"],
}


@pytest.mark.attack(kind="network")
@pytest.mark.parametrize("case", STREAMS)
async def test_a_server_that_redirects_its_message_endpoint_is_refused(tmp_path: Path, case: str) -> None:
    methods: list[str] = []

    async def announce(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        methods.append(scope["method"])
        kind = (b"content-type", b"text/event-stream")
        await send({"type": "http.response.start", "status": 200, "headers": [kind]})
        for piece in STREAMS[case]:
            await send({"type": "http.response.body", "body": piece.encode(), "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    async with serve(announce) as base, admin(tmp_path, mcp_hosts=base.removeprefix("http://")) as mallory:
        entry = {"type": "sse", "url": f"{base}/sse", "headers": {"Authorization": "Bearer theirs-0123456789"}}
        (status,) = (await mallory.test({"x": entry})).json()["items"]
        assert status["tools"] == []
        assert "wants its messages at" in status["reason"]
        rows = [row for row in await mallory.new_audit_rows() if row.outcome == "refused"]
        assert {(row.actor, row.action, row.target, row.details["path"]) for row in rows} == {
            ("mallory", "mcp.start", f"{mallory.domain}/x", "mcpServers.x.url")
        }
        assert set(methods) == {"GET"}
