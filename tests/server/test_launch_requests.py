"""The approval of a server outside the catalogue: an admin requests it, an operator checks and decides.

The registries' clients are the real ones; the registry runs on this machine (`tests.tools.registry`).
"""

import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from agentic_rag.models.base import ModelRequest
from agentic_rag.testing.failpoints import EXIT_CODE, VARIABLE
from agentic_rag.testing.steps import Step, say, use
from tests.access.tenants import bearer, make_key
from tests.e2e.serving import environment
from tests.programs import run_victim
from tests.server.rig import Json, Rig
from tests.tools.captives import needs_bubblewrap
from tests.tools.registry import SCRIPT, PackageRegistry, package_registry
from tests.waiting import pause

pytestmark = pytest.mark.skipif(shutil.which("npm") is None, reason="Node.js: no npm on this machine")

ROOT = Path(__file__).parents[2]
LOCAL = {"command": "node", "args": ["./mcp-servers/database.js"]}
PACKAGE = {"command": "npx", "args": ["-y", "notes-server", "--deep"]}


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageRegistry]:
    with package_registry() as packages:
        for name, text in packages.environment(tmp_path).items():
            monkeypatch.setenv(name, text)
        yield packages


class Desk:
    """A server with keys: mallory administers one domain, ann another one; root is the operator."""

    def __init__(self, rig: Rig, domain: str, keys: dict[str, str]) -> None:
        self.rig, self.domain, self.keys = rig, domain, keys

    @property
    def local(self) -> Path:
        folder = self.rig.settings.data / "mcp" / "local"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    async def ask(self, user: str, method: str, path: str, body: Any = None, **options: Any) -> httpx2.Response:
        headers = bearer(self.keys[user])
        return await self.rig.http.request(method, path, json=body, headers=headers, timeout=120, **options)

    async def ok(self, user: str, method: str, path: str, body: Any = None) -> Any:
        response = await self.ask(user, method, path, body)
        assert response.is_success, response.text
        return response.json() if response.content else None

    async def refused(self, user: str, method: str, path: str, body: Any = None) -> tuple[int, str, str]:
        response = await self.ask(user, method, path, body)
        error = response.json()["error"]
        return response.status_code, error["code"], error["message"]

    def server(self, name: str, action: str) -> str:
        return f"/api/domains/{self.domain}/mcp-servers/{name}/{action}"

    async def request(self, name: str, entry: Any) -> Json:
        request: Json = await self.ok("admin", "POST", self.server(name, "request"), entry)
        return request

    async def test(self, name: str, entry: Any) -> httpx2.Response:
        return await self.ask("admin", "POST", f"/api/domains/{self.domain}/mcp-servers/test", {name: entry})

    async def approve(self, request: Json, **grant: Any) -> Json:
        """Approve a request as it was shown, and return it after its execution."""
        path = f"/api/launch-requests/{request['id']}"
        await self.ok("root", "POST", f"{path}/approve", {"fingerprint": request["fingerprint"], **grant})
        return await self.settled(request["id"])

    async def settled(self, ident: str) -> Json:
        with anyio.fail_after(240):
            while True:
                request: Json = await self.ok("root", "GET", f"/api/launch-requests/{ident}")
                if request["state"] != "approved":
                    return request
                await pause()

    async def actions(self) -> list[str]:
        rows = (await self.ok("root", "GET", "/api/audit?limit=200"))["items"]
        return [row["action"] for row in rows if row["action"].startswith("mcp.") and row["outcome"] == "done"][::-1]


@asynccontextmanager
async def open_desk(folder: Path, *steps: Any, **options: Any) -> AsyncIterator[Desk]:
    async with Rig(folder, *steps, **options) as rig:
        domain, other_domain = await rig.domain(), await rig.domain()
        keys = {"root": await make_key(rig, "root", "operator")}
        for user, role, where in (
            ("admin", "admin", domain),
            ("member", "member", domain),
            ("other", "admin", other_domain),
        ):
            keys[user] = await make_key(rig, user, role, where)
        yield Desk(rig, domain, keys)


def call_tool(tool: str, **arguments: Any) -> Callable[[ModelRequest], Step]:
    def step(request: ModelRequest) -> Step:
        results = [block for block in request.messages[-1]["content"] if block["type"] == "tool_result"]
        return say(results[0]["content"][0]["text"]) if results else use(tool, **arguments)

    return step


@needs_bubblewrap
async def test_an_admin_requests_a_script_and_a_package_and_a_turn_calls_both(
    tmp_path: Path, registry: PackageRegistry
) -> None:
    registry.publish_npm("notes-server", "1.2.0", scripts={"postinstall": "exit 3"})
    steps = [call_tool("database__greet", name="Ann")] * 2 + [call_tool("notes__greet", name="Ben")] * 2
    async with open_desk(tmp_path, *steps) as desk:
        missing = await desk.test("database", LOCAL)
        assert (missing.status_code, missing.json()["error"]["code"]) == (422, "MCP_COMMAND_NOT_ALLOWED")
        assert "request" not in missing.json()["error"]["details"]
        assert "no 'mcp-servers/database.js' in the operator's folder mcp/local" in missing.text
        folder = desk.local / "mcp-servers"
        folder.mkdir()
        shutil.copy(SCRIPT, folder / "database.js")
        (folder / "rows.json").write_text("[]")
        records = []
        for name, entry in (("database", LOCAL), ("notes", PACKAGE)):
            request_path = (await desk.test(name, entry)).json()["error"]["details"]["request"]
            assert request_path == desk.server(name, "request")
            record = await desk.ok("admin", "POST", request_path, entry)
            assert (record["state"], record["requestedBy"]) == ("open", "admin")
            approved = await desk.approve(record, readOnly=["greet"])
            assert (approved["state"], approved["reason"]) == ("installed", "")
            records.append(approved)
            (tested,) = (await desk.test(name, entry)).json()["items"]
            assert (tested["state"], [tool["name"] for tool in tested["tools"]]) == ("ready", ["greet"]), tested
        script, package = records
        assert set(script["facts"]["files"]) == {
            *("/usr/bin/node", "mcp-servers/database.js", "mcp-servers/rows.json"),
        }
        facts = package["facts"]
        assert (facts["name"], facts["version"], facts["license"]) == ("notes-server", "1.2.0", "MIT")
        assert facts["integrity"].startswith("sha512-")
        assert (facts["sizeBytes"], facts["fileCount"]) == (4321, 2)
        assert facts["installScripts"] == ["postinstall: exit 3"]
        assert (package["args"], package["template"]) == (["-y", "notes-server@1.2.0", "--deep"], ["--deep"])
        assert package["sha256"]
        body = {"settings": {"mcpServers": {"database": LOCAL, "notes": PACKAGE}}}
        await desk.ok("admin", "PATCH", f"/api/domains/{desk.domain}", body)
        for expected in ("Hello Ann! args:  beside: database.js rows.json", "Hello Ben! args: --deep"):
            record = await desk.ok("member", "POST", "/api/conversations", {"domainId": desk.domain})
            path = f"/api/conversations/{record['id']}/messages"
            response = await desk.ask("member", "POST", path, {"content": "Go"})
            assert expected in response.text
        assert await desk.actions() == ["mcp.request", "mcp.approve", "mcp.allow"] * 2


async def test_a_command_line_is_requested_once_and_only_the_shown_line_can_be_approved(
    tmp_path: Path, registry: PackageRegistry
) -> None:
    registry.publish_npm("notes-server", "1.2.0")
    async with open_desk(tmp_path) as desk:
        first = await desk.request("notes", PACKAGE)
        assert (await desk.request("notes", PACKAGE))["id"] == first["id"]
        second_request = await desk.request("notes", {**PACKAGE, "args": ["-y", "notes-server@1.2.0", "--other"]})
        assert second_request["id"] != first["id"]
        approve = {"fingerprint": first["fingerprint"]}
        refusal = await desk.refused("root", "POST", f"/api/launch-requests/{first['id']}/approve", approve)
        assert refusal[:2] == (409, "LAUNCH_REQUEST_CLOSED")
        assert "withdrawn" in refusal[2]
        path = f"/api/launch-requests/{second_request['id']}"
        change_refusal = await desk.refused("root", "POST", f"{path}/approve", approve)
        assert change_refusal[:2] == (409, "LAUNCH_REQUEST_CHANGED")
        incomplete_approval = {"fingerprint": second_request["fingerprint"], "args": ["--root", "{path:workspace}"]}
        status, code, message = await desk.refused("root", "POST", f"{path}/approve", incomplete_approval)
        assert (status, code) == (422, "VALIDATION_ERROR")
        assert "the line that was asked for would not run" in message
        for args in (["{path:/}"], ["{anything}"]):
            invalid_approval = {"fingerprint": second_request["fingerprint"], "args": args}
            assert (await desk.refused("root", "POST", f"{path}/approve", invalid_approval))[:2] == (
                422,
                "VALIDATION_ERROR",
            )
        await desk.ok("root", "POST", f"{path}/refuse", {"reason": "We have a server for that."})
        requests = (await desk.ok("admin", "GET", f"/api/domains/{desk.domain}/launch-requests"))["items"]
        assert [(request["state"], request["reason"]) for request in requests] == [
            ("refused", "We have a server for that."),
            ("withdrawn", "another line was asked for under this name"),
        ]
        assert (await desk.ok("root", "GET", "/api/launch-requests?state=open"))["items"] == []
        third_request = await desk.request("notes", PACKAGE)
        await desk.ok("admin", "DELETE", f"/api/domains/{desk.domain}/launch-requests/{third_request['id']}")
        late = {"fingerprint": third_request["fingerprint"]}
        closed_refusal = await desk.refused("root", "POST", f"/api/launch-requests/{third_request['id']}/approve", late)
        assert closed_refusal[:2] == (409, "LAUNCH_REQUEST_CLOSED")
        assert not (tmp_path / "data" / "mcp" / "allowed.json").exists()


async def test_only_admins_request_for_their_domain_and_only_operators_decide(
    tmp_path: Path, registry: PackageRegistry
) -> None:
    registry.publish_npm("notes-server", "1.2.0")
    async with open_desk(tmp_path) as desk:
        request_path = desk.server("notes", "request")
        assert (await desk.refused("member", "POST", request_path, PACKAGE))[:2] == (403, "FORBIDDEN")
        assert (await desk.refused("other", "POST", request_path, PACKAGE))[0] == 404
        request = await desk.request("notes", PACKAGE)
        path, approval = f"/api/launch-requests/{request['id']}", {"fingerprint": request["fingerprint"]}
        for user in ("admin", "member", "other"):
            for method, action, body in (
                ("GET", "", None),
                ("POST", "/approve", approval),
                ("POST", "/refuse", {"reason": "no"}),
            ):
                assert (await desk.refused(user, method, path + action, body))[:2] == (403, "FORBIDDEN")
            assert (await desk.refused(user, "GET", "/api/launch-requests"))[:2] == (403, "FORBIDDEN")
        of_other = (await desk.ok("root", "GET", "/api/domains"))["items"]
        other_domain = next(domain["id"] for domain in of_other if domain["id"] != desk.domain)
        refusal = await desk.refused("other", "DELETE", f"/api/domains/{other_domain}/launch-requests/{request['id']}")
        assert refusal[:2] == (404, "LAUNCH_REQUEST_NOT_FOUND")
        assert (await desk.ok("root", "GET", path))["state"] == "open"
        unknown = await desk.refused("root", "POST", "/api/launch-requests/lreq_x/approve", approval)
        assert unknown[:2] == (404, "LAUNCH_REQUEST_NOT_FOUND")


REFUSED = (
    ({"command": "node", "args": ["./x.js"]}, "no 'x.js' in the operator's folder"),
    ({"command": "node", "args": ["../x.js"]}, "leads out of the operator's folder"),
    ({"command": "node", "args": ["/etc/passwd"]}, "leads out of the operator's folder"),
    ({"command": "node", "args": ["-e", "1"]}, "where its script has to stand"),
    ({"command": "python3.11", "args": ["-m", "http.server"]}, "where its script has to stand"),
    ({"command": "bash", "args": ["-c", "id"]}, "runs any program that its arguments name"),
    ({"command": "docker", "args": ["run", "x"]}, "runs any program that its arguments name"),
    ({"command": "npx", "args": ["-c", "id"]}, "it runs any program"),
    ({"command": "/home/me/server"}, "is a path"),
    ({"command": "no-such-program"}, "there is no program"),
    ({"command": "npx", "args": ["-y", "not-there"]}, "does not know it"),
    ({"command": "npx", "args": ["-y", "notes-server@9.9.9"]}, "does not know it"),
    ({"command": "npx", "args": ["notes-server", "--token=abcdefgh"]}, "looks like a secret"),
    ({"command": "npx", "args": ["notes-server", "${DB}"]}, "secrets stand in env"),
    ({"command": "npx", "args": ["notes-server", "canary-8d1f"]}, "secrets stand in env"),
    ({"command": "npx", "args": ["notes-server"], "env": {"NODE_OPTIONS": "-r x"}}, "load or run another"),
    ({"command": "npx", "args": ["notes-server", "a\nb"]}, "control character"),
    ({"url": "https://example.com/mcp"}, "an address is not asked for"),
    ({"command": "npx", "args": ["-y", "@modelcontextprotocol/server-memory"]}, "allowed already"),
)


async def test_a_command_line_without_a_hash_is_refused_at_once(tmp_path: Path, registry: PackageRegistry) -> None:
    registry.publish_npm("notes-server", "1.2.0")
    async with open_desk(tmp_path) as desk:
        secret = {"value": "canary-8d1f"}
        await desk.ok("admin", "PUT", f"/api/domains/{desk.domain}/secrets/DB", secret)
        for entry, words in REFUSED:
            status, _, message = await desk.refused("admin", "POST", desk.server("notes", "request"), entry)
            assert status in (409, 422, 502), (entry, message)
            assert words in message
        assert (await desk.ok("root", "GET", "/api/launch-requests"))["items"] == []


async def test_a_secret_in_a_pasted_variable_is_in_no_file_of_the_request(
    tmp_path: Path, registry: PackageRegistry
) -> None:
    registry.publish_npm("notes-server", "1.2.0", old=True)
    async with open_desk(tmp_path) as desk:
        request = await desk.request("notes", {**PACKAGE, "env": {"NOTES_KEY": "canary-5e2c-0917"}})
        assert (request["env"], request["secrets"]) == (["NOTES_KEY"], ["NOTES_KEY"])
        assert request["entry"]["env"] == {"NOTES_KEY": "${NOTES_KEY}"}
        assert request["facts"]["fileCount"] == 2
        assert request["facts"]["sizeBytes"] > SCRIPT.stat().st_size
        approved = await desk.approve(request)
        assert approved["state"] == "installed"
        body = {"settings": {"mcpServers": {"notes": {**PACKAGE, "env": {"NOTES_KEY": "canary-5e2c-0917"}}}}}
        await desk.ok("admin", "PATCH", f"/api/domains/{desk.domain}", body)
    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert [path for path in files if b"canary-5e2c" in path.read_bytes()] == []


async def test_a_version_that_changes_after_the_request_is_not_installed(
    tmp_path: Path, registry: PackageRegistry
) -> None:
    registry.publish_npm("notes-server", "1.2.0")
    async with open_desk(tmp_path) as desk:
        request = await desk.request("notes", PACKAGE)
        registry.publish_npm("notes-server", "1.3.0")  # a newer version exists now, which nobody has checked
        registry.publish_npm("notes-server", "1.2.0", script="process.exit(3)")
        reopened = await desk.approve(request)
        assert (reopened["state"], reopened["sha256"]) == ("open", "")
        assert "has other content under this version" in reopened["reason"]
        registry.unpublish_npm("notes-server", "1.2.0")
        withdrawn = await desk.approve(request)
        assert "does not know it in this version" in withdrawn["reason"]
        assert not (tmp_path / "data" / "mcp" / "allowed.json").exists()
        assert not list((tmp_path / "data" / "mcp").glob("npm/*"))
        registry.publish_npm("notes-server", "1.2.0")
        assert (await desk.approve(request))["state"] == "installed"


async def test_a_yanked_version_cannot_be_requested(tmp_path: Path, registry: PackageRegistry) -> None:
    registry.publish_wheel("clock-server", "1.0.0")
    registry.publish_wheel("clock-server", "1.1.0", yanked="it deletes files")
    async with open_desk(tmp_path) as desk:
        yanked = {"command": "uvx", "args": ["clock-server==1.1.0"]}
        status, _, message = await desk.refused("admin", "POST", desk.server("clock", "request"), yanked)
        assert (status, "took this version back" in message) == (502, True)
        request = await desk.request("clock", {"command": "uvx", "args": ["clock-server"]})
        facts = request["facts"]
        assert (facts["version"], facts["license"], facts["programs"]) == ("1.0.0", "MIT", ["clock-server"])
        assert request["args"] == ["clock-server==1.0.0"]


@needs_bubblewrap
async def test_a_local_script_that_was_changed_does_not_start_until_it_is_approved_again(tmp_path: Path) -> None:
    script_entry = {"command": "node", "args": ["./notes.js"]}
    async with open_desk(tmp_path) as desk:
        script = desk.local / "notes.js"
        shutil.copy(SCRIPT, script)
        (desk.local / "other.js").write_text("")
        request = await desk.request("notes", script_entry)
        assert set(request["facts"]["files"]) == {"/usr/bin/node", "notes.js"}
        script.write_text(f"{SCRIPT.read_text()}//")
        approval = {"fingerprint": request["fingerprint"]}
        refusal = await desk.refused("root", "POST", f"/api/launch-requests/{request['id']}/approve", approval)
        assert refusal[:2] == (409, "LAUNCH_REQUEST_CHANGED")
        second_request = await desk.request("notes", script_entry)
        assert second_request["id"] != request["id"]
        await desk.approve(second_request)
        assert (await desk.test("notes", script_entry)).json()["items"][0]["state"] == "ready"
        script.write_text(f"{SCRIPT.read_text()}// changed")
        (tested,) = (await desk.test("notes", script_entry)).json()["items"]
        assert (tested["state"], "is not the file that was allowed" in tested["reason"]) == ("failed", True)
        script.unlink()
        os.symlink("other.js", script)
        (tested,) = (await desk.test("notes", script_entry)).json()["items"]
        assert tested["state"] == "failed"


@pytest.mark.sqlite("the killed server has a file")
@pytest.mark.parametrize(
    "place",
    [
        "launch.installed",
        pytest.param("launch.approved", marks=pytest.mark.nightly("a kill at a later place runs every time")),
        pytest.param("launch.allowed", marks=pytest.mark.nightly("a kill at an earlier place runs every time")),
    ],
)
async def test_an_approval_interrupted_by_a_kill_is_completed_at_the_next_start(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "data" / "mcp" / "local"
    folder.mkdir(parents=True)
    shutil.copy(SCRIPT, folder / "notes.js")
    victim = await run_victim("tests.server.approving", tmp_path, env=environment(**{VARIABLE: place}))
    assert victim.returncode == EXIT_CODE, victim.stderr[-2000:]
    async with Rig(tmp_path) as rig:
        desk = Desk(rig, "", {"root": victim.stdout.strip()})
        (request,) = (await desk.ok("root", "GET", "/api/launch-requests"))["items"]
        installed = await desk.settled(request["id"])
        assert (installed["state"], installed["sha256"]) == ("installed", installed["facts"]["integrity"])
        assert await desk.actions() == ["mcp.request", "mcp.approve", "mcp.allow"]
    assert len(json.loads((tmp_path / "data" / "mcp" / "allowed.json").read_text())["entry"]) == 1
