"""A domain admin pastes hostile entries through the edge: each is refused, leaves nothing, and is audited."""

import sys
from pathlib import Path

import anyio
import pytest
from starlette.types import Receive, Scope, Send

from agentic_rag.testing.steps import say, use
from agentic_rag.tools.launch.allowed import ExtraRights
from tests.access.admins import CANARY, Admin, admin
from tests.access.tenants import bearer, make_key
from tests.server.rig import Json, events_of
from tests.tools import attack_lines
from tests.tools.captives import CAPTIVE, PYTHON, assert_no_heartbeat, beats, find_processes, needs_bubblewrap
from tests.tools.servers.plain import build
from tests.tools.support import until
from tests.tools.test_attacks import STEERING
from tests.tools.test_http import serve
from tests.tools.test_network import PRIVATE, SPELLINGS, count_connections

MEMORY = {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-memory"]}


def stdio(line: str) -> Json:
    command, *args = line.split(" ")
    return {"command": command, "args": args, "env": {"TOKEN": CANARY}}


def memory_entry(name: str) -> Json:
    return {**MEMORY, "env": {name: CANARY}}


def web(url: str, **headers: str) -> Json:
    return {"url": url, "headers": {"X-Token": CANARY, **headers}}


RESERVED = [
    "promptx",
    "PromptX",
    " retriever ",
    "ｒｅｔｒｉｅｖｅｒ",
    "рromptx",
    "prom\u200bptx",
    "delegate",
    "DELEGATE",
]
PATHS = ["..", "/etc", "~", "-", "--x", "docs\x00/etc", "../../..", "nowhere"]
WEB_ENTRIES = {
    "plain http": web("http://mcp.example.org/mcp"),
    "this machine": web("http://127.0.0.1:8000/mcp"),
    "metadata": web("http://169.254.169.254/latest/meta-data"),
    "file": web("file:///etc/passwd"),
    "gopher": web("gopher://h/"),
    "password in it": web("https://user:pw@h/mcp"),
    "no address": web("https://[::1"),
    "host header": web("https://mcp.example.org/mcp", Host="internal"),
    "split header": web("https://mcp.example.org/mcp", X="a\r\nHost: internal"),
    "proxy header": web("https://mcp.example.org/mcp", **{"Proxy-Authorization": "x"}),
    "session header": web("https://mcp.example.org/mcp", **{"Mcp-Session-Id": "x"}),
}

CLASSES: dict[str, list[tuple[str, Json]]] = {
    "interpreters": [("x", stdio(line)) for line in attack_lines.INTERPRETERS],
    "runners": [("x", stdio(line)) for line in attack_lines.RUNNERS],
    "spellings": [("x", stdio(line)) for line in attack_lines.SPELLINGS],
    "arguments": [("x", stdio(line)) for line in attack_lines.ARGUMENTS],
    "variables": [("x", memory_entry(name)) for name in STEERING.split(" ")],
    "reserved names": [(name, dict(MEMORY)) for name in RESERVED],
    "paths": [
        ("x", {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", path]}) for path in PATHS
    ],
    "web addresses": [("x", entry) for entry in WEB_ENTRIES.values()],
    "secrets in the open": [
        ("x", {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-memory", "${KEY}"]}),
        ("x", web("https://${KEY}.example.org/mcp")),
        ("x", {**MEMORY, "env": {"A": "${env:HOME}"}}),
    ],
}
CODES = {"MCP_COMMAND_NOT_ALLOWED", "MCP_SERVER_RESERVED", "VALIDATION_ERROR"}


@pytest.mark.attack(kind="spawning")
@pytest.mark.parametrize("kind", CLASSES)
async def test_each_hostile_entry_is_refused_and_audited_once(tmp_path: Path, kind: str) -> None:
    async with admin(tmp_path) as mallory:
        await mallory.ask("PUT", f"{mallory.path}/secrets/KEY", {"value": CANARY})
        await mallory.new_audit_rows()
        before = await mallory.state()
        for name, entry in CLASSES[kind]:
            for action, attempt in (
                ("PUT /api/domains/{domain}", mallory.save),
                ("POST /api/domains/{domain}/mcp-servers/test", mallory.test),
            ):
                response = await attempt({name: entry})
                error = response.json()["error"]
                assert (response.status_code, error["code"]) in {
                    *((422, code) for code in CODES),
                    (409, "MCP_SERVER_RESERVED"),
                }, (name, entry, response.text)
                (row,) = await mallory.new_audit_rows()
                assert (row.actor, row.action, row.outcome, row.count) == ("mallory", action, "refused", 1), entry
                assert row.target.startswith(mallory.path)
                assert row.details["code"] == error["code"]
                assert "mcpServers." in row.details["path"]
                assert CANARY not in response.text + str(row)
        assert await mallory.state() == before


@pytest.mark.attack(kind="spawning")
async def test_a_member_and_an_admin_of_another_domain_save_and_test_nothing(tmp_path: Path) -> None:
    async with admin(tmp_path) as mallory:
        other_domain = await mallory.rig.domain()
        member = await make_key(mallory.rig, "max", "member", mallory.domain)
        await mallory.new_audit_rows()
        before = await mallory.state()
        for key, path, expected in ((member, mallory.path, 403), (mallory.key, f"/api/domains/{other_domain}", 404)):
            for method, place, body in (
                ("PUT", path, {"settings": {"mcpServers": {"x": MEMORY}}}),
                ("PATCH", path, {"settings": {"toolPolicy": {"*": "allow"}}}),
                ("POST", f"{path}/mcp-servers/test", {"x": MEMORY}),
                ("POST", f"{path}/mcp-servers/x/restart", {}),
                ("POST", f"{path}/mcp-servers/x/accept", {}),
            ):
                response = await mallory.rig.http.request(method, place, json=body, headers=bearer(key))
                assert response.status_code == expected, place
                (row,) = await mallory.new_audit_rows()
                assert (row.outcome, row.target) == ("refused", place)
        assert await mallory.state() == before


@pytest.mark.attack(kind="network")
async def test_no_spelling_of_a_local_address_is_connected_to(tmp_path: Path) -> None:
    """Entries that may be saved: the target of a name is only known when it is connected to."""
    async with admin(tmp_path) as mallory, count_connections() as (port, knocks):
        before = await mallory.state()
        hosts = [*SPELLINGS, *(f"[{address}]" if ":" in address else address for address in PRIVATE[::3])]
        urls = [f"https://{host}:{port}/mcp" for host in hosts]
        for start in range(0, len(urls), TOGETHER):
            entries = {f"x{number}": url for number, url in enumerate(urls[start : start + TOGETHER])}
            async with anyio.create_task_group() as tasks:
                for name, url in entries.items():
                    tasks.start_soon(check_refused_at_start, mallory, name, url)
            rows = [row for row in await mallory.new_audit_rows() if row.outcome == "refused"]
            assert {row.actor for row in rows} == {"mallory"}
            assert {row.details["path"] for row in rows} == {f"mcpServers.{name}.url" for name in entries}
        assert knocks() == 0
        assert await mallory.state() == before


TOGETHER = 20
"""Fewer than the kinds of refusals that are audited one by one."""


async def check_refused_at_start(mallory: Admin, name: str, url: str) -> None:
    report = (await mallory.test({name: {"url": url}})).json()
    if "error" in report:
        assert report["error"]["code"] == "VALIDATION_ERROR", url
    else:
        assert report["items"][0]["state"] in ("failed", "degraded"), url
        assert report["items"][0]["tools"] == []


@pytest.mark.attack(kind="spawning")
@needs_bubblewrap
async def test_a_program_swapped_after_its_approval_is_reported_at_each_start(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "server.py"
    program.parent.mkdir()
    program.write_text(CAPTIVE.read_text())
    async with admin(tmp_path, say("Without it.")) as mallory:
        policy = mallory.rig.application.parts.policy
        line = [PYTHON, "-I", "-S", str(program), "--heartbeat"]
        assert policy.packages is not None
        await policy.catalogue.allow(line, ExtraRights(folders=(sys.base_prefix,)), policy.packages, [policy.homes])
        response = await mallory.save({"x": {"command": line[0], "args": line[1:]}})
        assert response.is_success, response.text
        assert (await restart_server(mallory))["state"] == "ready"
        await until(lambda: beats(policy.homes) > 2)
        await mallory.new_audit_rows()
        program.write_text(program.read_text() + "\n")
        status = await restart_server(mallory)
        assert status["state"] == "failed"
        assert "is not the file that was allowed" in status["reason"]
        await check_refused_start(mallory, "MCP_COMMAND_NOT_ALLOWED", "mcpServers.x.command")
        assert find_processes(policy.marker) == []
        await assert_no_heartbeat(policy.homes)
        events = await run_turn(mallory)
        assert events[-1]["type"] == "done"
        await check_refused_start(mallory, "MCP_COMMAND_NOT_ALLOWED", "mcpServers.x.command")


@pytest.mark.attack(kind="spawning")
async def test_a_folder_swapped_for_a_link_after_saving_is_reported_at_the_start(tmp_path: Path) -> None:
    async with admin(tmp_path) as mallory:
        policy = mallory.rig.application.parts.policy
        assert policy.packages is not None
        line = [PYTHON, "-I", "-S", str(CAPTIVE), "{path:workspace}"]
        await policy.catalogue.allow(line, ExtraRights(folders=(sys.base_prefix,)), policy.packages, [policy.homes])
        folder = mallory.rig.settings.workspaces / mallory.domain / "files" / "notes"
        folder.mkdir()
        response = await mallory.save({"x": {"command": line[0], "args": [*line[1:-1], "notes"]}})
        assert response.is_success, response.text
        folder.rmdir()
        folder.symlink_to("/etc")
        await mallory.new_audit_rows()
        assert (await restart_server(mallory))["state"] == "failed"
        await check_refused_start(mallory, "MCP_COMMAND_NOT_ALLOWED", "mcpServers.x.args")
        assert find_processes(policy.marker) == []


@pytest.mark.attack(kind="network")
@pytest.mark.parametrize("status", [301, 307])
async def test_a_redirect_to_another_host_is_reported_and_not_followed(tmp_path: Path, status: int) -> None:
    async with count_connections() as (port, knocks):

        async def redirect(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                location = f"http://127.0.0.1:{port}/mcp".encode()
                await send({"type": "http.response.start", "status": status, "headers": [(b"location", location)]})
                await send({"type": "http.response.body", "body": b""})

        async with serve(redirect) as base:
            hosts = f"{base.removeprefix('http://')}, 127.0.0.1:{port}"
            async with admin(tmp_path, mcp_hosts=hosts) as mallory:
                before = await mallory.state()
                report = (await mallory.test({"x": {"url": f"{base}/mcp", "headers": {"A": CANARY}}})).json()
                assert report["items"][0]["tools"] == []
                rows = [row for row in await mallory.new_audit_rows() if row.outcome == "refused"]
                assert {(row.actor, row.action, row.details["path"]) for row in rows} == {
                    ("mallory", "mcp.start", "mcpServers.x.url")
                }
                assert CANARY not in str(rows)
                assert await mallory.state() == before
        assert knocks() == 0


@pytest.mark.attack(kind="network")
async def test_no_mcp_server_gets_our_keys(tmp_path: Path) -> None:
    app = build().streamable_http_app()
    headers: list[tuple[bytes, bytes]] = []

    async def record_headers(scope: Scope, receive: Receive, send: Send) -> None:
        headers.extend(scope.get("headers", ()))
        await app(scope, receive, send)

    steps = (use("web__echo", text="hello"), say("Done."))
    async with (
        serve(record_headers) as base,
        admin(tmp_path, *steps, mcp_hosts=base.removeprefix("http://")) as mallory,
    ):
        await mallory.save({"web": {"url": f"{base}/mcp", "headers": {"Authorization": "Bearer theirs"}}})
        await mallory.ask("PATCH", mallory.path, {"settings": {"toolPolicy": {"web__*": "allow"}}})
        assert (await restart_server(mallory, "web"))["state"] == "ready"
        events = await run_turn(mallory)
        assert [event["status"] for event in events if event["type"] == "tool_result"] == ["ok"]
        assert (b"authorization", b"Bearer theirs") in headers
        values = b" ".join(value for _, value in headers)
        for own in (mallory.key, mallory.rig.application.access.local_key):
            assert own.encode() not in values
        assert not {b"cookie", b"origin", b"proxy-authorization"} & {name for name, _ in headers}


async def restart_server(mallory: Admin, name: str = "x") -> Json:
    response = await mallory.ask("POST", f"{mallory.path}/mcp-servers/{name}/restart")
    assert response.is_success, response.text
    status: Json = response.json()
    return status


async def run_turn(mallory: Admin) -> list[Json]:
    """Send a message as mallory and return the events of its turn."""
    conversation = (await mallory.ask("POST", "/api/conversations", {"domainId": mallory.domain})).json()
    answer = await mallory.ask("POST", f"/api/conversations/{conversation['id']}/messages", {"content": "Hi"})
    return events_of(answer.text)


async def check_refused_start(mallory: Admin, code: str, place: str) -> None:
    """Assert that the last starts of ``x``, and nothing else, were audited as refused. Equal ones are counted."""
    rows = [row for row in await mallory.new_audit_rows() if row.outcome == "refused"]
    refusals = {(row.actor, row.action, row.target, row.details["code"], row.details["path"]) for row in rows}
    assert refusals == {("mallory", "mcp.start", f"{mallory.domain}/x", code, place)}
