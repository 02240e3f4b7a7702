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
    with package_registry() as found:
        for name, text in found.environment(tmp_path).items():
            monkeypatch.setenv(name, text)
        yield found


class Desk:
    """A server with keys: mallory administers one domain, ann another one; root is the operator."""

    def __init__(self, rig: Rig, domain: str, keys: dict[str, str]) -> None:
        self.rig, self.domain, self.keys = rig, domain, keys

    @property
    def local(self) -> Path:
        folder = self.rig.settings.data / "mcp" / "local"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    async def ask(self, who: str, method: str, path: str, body: Any = None, **options: Any) -> httpx2.Response:
        headers = bearer(self.keys[who])
        return await self.rig.http.request(method, path, json=body, headers=headers, timeout=120, **options)

    async def ok(self, who: str, method: str, path: str, body: Any = None) -> Any:
        response = await self.ask(who, method, path, body)
        assert response.is_success, response.text
        return response.json() if response.content else None

    async def refused(self, who: str, method: str, path: str, body: Any = None) -> tuple[int, str, str]:
        response = await self.ask(who, method, path, body)
        error = response.json()["error"]
        return response.status_code, error["code"], error["message"]

    def server(self, name: str, action: str) -> str:
        return f"/api/domains/{self.domain}/mcp-servers/{name}/{action}"

    async def request(self, name: str, entry: Any) -> Json:
        made: Json = await self.ok("admin", "POST", self.server(name, "request"), entry)
        return made

    async def test(self, name: str, entry: Any) -> httpx2.Response:
        return await self.ask("admin", "POST", f"/api/domains/{self.domain}/mcp-servers/test", {name: entry})

    async def approve(self, made: Json, **grant: Any) -> Json:
        """Approve a request as it was shown, and return it after its execution."""
        path = f"/api/launch-requests/{made['id']}"
        await self.ok("root", "POST", f"{path}/approve", {"fingerprint": made["fingerprint"], **grant})
        return await self.settled(made["id"])

    async def settled(self, ident: str) -> Json:
        with anyio.fail_after(240):
            while True:
                found: Json = await self.ok("root", "GET", f"/api/launch-requests/{ident}")
                if found["state"] != "approved":
                    return found
                await pause()

    async def actions(self) -> list[str]:
        rows = (await self.ok("root", "GET", "/api/audit?limit=200"))["items"]
        return [row["action"] for row in rows if row["action"].startswith("mcp.") and row["outcome"] == "done"][::-1]


@asynccontextmanager
async def desk(folder: Path, *steps: Any, **options: Any) -> AsyncIterator[Desk]:
    async with Rig(folder, *steps, **options) as rig:
        domain, other = await rig.domain(), await rig.domain()
        keys = {"root": await make_key(rig, "root", "operator")}
        for who, role, where in (("admin", "admin", domain), ("member", "member", domain), ("other", "admin", other)):
            keys[who] = await make_key(rig, who, role, where)
        yield Desk(rig, domain, keys)


def calling(tool: str, **arguments: Any) -> Callable[[ModelRequest], Step]:
    def step(request: ModelRequest) -> Step:
        results = [block for block in request.messages[-1]["content"] if block["type"] == "tool_result"]
        return say(results[0]["content"][0]["text"]) if results else use(tool, **arguments)

    return step


@needs_bubblewrap
async def test_an_admin_requests_a_script_and_a_package_and_a_turn_calls_both(
    tmp_path: Path, registry: PackageRegistry
) -> None:
    registry.publish_npm("notes-server", "1.2.0", scripts={"postinstall": "exit 3"})
    steps = [calling("database__greet", name="Ann")] * 2 + [calling("notes__greet", name="Ben")] * 2
    async with desk(tmp_path, *steps) as found:
        missing = await found.test("database", LOCAL)
        assert (missing.status_code, missing.json()["error"]["code"]) == (422, "MCP_COMMAND_NOT_ALLOWED")
        assert "request" not in missing.json()["error"]["details"]
        assert "no 'mcp-servers/database.js' in the operator's folder mcp/local" in missing.text
        folder = found.local / "mcp-servers"
        folder.mkdir()
        shutil.copy(SCRIPT, folder / "database.js")
        (folder / "rows.json").write_text("[]")
        installed = []
        for name, entry in (("database", LOCAL), ("notes", PACKAGE)):
            offered = (await found.test(name, entry)).json()["error"]["details"]["request"]
            assert offered == found.server(name, "request")
            made = await found.ok("admin", "POST", offered, entry)
            assert (made["state"], made["requestedBy"]) == ("open", "admin")
            done = await found.approve(made, readOnly=["greet"])
            assert (done["state"], done["reason"]) == ("installed", "")
            installed.append(done)
            (tried,) = (await found.test(name, entry)).json()["items"]
            assert (tried["state"], [tool["name"] for tool in tried["tools"]]) == ("ready", ["greet"]), tried
        script, package = installed
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
        saved = {"settings": {"mcpServers": {"database": LOCAL, "notes": PACKAGE}}}
        await found.ok("admin", "PATCH", f"/api/domains/{found.domain}", saved)
        for expected in ("Hello Ann! args:  beside: database.js rows.json", "Hello Ben! args: --deep"):
            made = await found.ok("member", "POST", "/api/conversations", {"domainId": found.domain})
            path = f"/api/conversations/{made['id']}/messages"
            said = await found.ask("member", "POST", path, {"content": "Go"})
            assert expected in said.text
        assert await found.actions() == ["mcp.request", "mcp.approve", "mcp.allow"] * 2


async def test_a_command_line_is_requested_once_and_only_the_shown_line_can_be_approved(
    tmp_path: Path, registry: PackageRegistry
) -> None:
    registry.publish_npm("notes-server", "1.2.0")
    async with desk(tmp_path) as found:
        first = await found.request("notes", PACKAGE)
        assert (await found.request("notes", PACKAGE))["id"] == first["id"]
        second = await found.request("notes", {**PACKAGE, "args": ["-y", "notes-server@1.2.0", "--other"]})
        assert second["id"] != first["id"]
        approve = {"fingerprint": first["fingerprint"]}
        gone = await found.refused("root", "POST", f"/api/launch-requests/{first['id']}/approve", approve)
        assert gone[:2] == (409, "LAUNCH_REQUEST_CLOSED")
        assert "withdrawn" in gone[2]
        path = f"/api/launch-requests/{second['id']}"
        changed = await found.refused("root", "POST", f"{path}/approve", approve)
        assert changed[:2] == (409, "LAUNCH_REQUEST_CHANGED")
        uncovered = {"fingerprint": second["fingerprint"], "args": ["--root", "{path:workspace}"]}
        status, code, message = await found.refused("root", "POST", f"{path}/approve", uncovered)
        assert (status, code) == (422, "VALIDATION_ERROR")
        assert "the line that was asked for would not run" in message
        for args in (["{path:/}"], ["{anything}"]):
            odd = {"fingerprint": second["fingerprint"], "args": args}
            assert (await found.refused("root", "POST", f"{path}/approve", odd))[:2] == (422, "VALIDATION_ERROR")
        await found.ok("root", "POST", f"{path}/refuse", {"reason": "We have a server for that."})
        shown = (await found.ok("admin", "GET", f"/api/domains/{found.domain}/launch-requests"))["items"]
        assert [(each["state"], each["reason"]) for each in shown] == [
            ("refused", "We have a server for that."),
            ("withdrawn", "another line was asked for under this name"),
        ]
        assert (await found.ok("root", "GET", "/api/launch-requests?state=open"))["items"] == []
        third = await found.request("notes", PACKAGE)
        await found.ok("admin", "DELETE", f"/api/domains/{found.domain}/launch-requests/{third['id']}")
        late = {"fingerprint": third["fingerprint"]}
        closed = await found.refused("root", "POST", f"/api/launch-requests/{third['id']}/approve", late)
        assert closed[:2] == (409, "LAUNCH_REQUEST_CLOSED")
        assert not (tmp_path / "data" / "mcp" / "allowed.json").exists()


async def test_only_admins_request_for_their_domain_and_only_operators_decide(
    tmp_path: Path, registry: PackageRegistry
) -> None:
    registry.publish_npm("notes-server", "1.2.0")
    async with desk(tmp_path) as found:
        asked = found.server("notes", "request")
        assert (await found.refused("member", "POST", asked, PACKAGE))[:2] == (403, "FORBIDDEN")
        assert (await found.refused("other", "POST", asked, PACKAGE))[0] == 404
        made = await found.request("notes", PACKAGE)
        path, approval = f"/api/launch-requests/{made['id']}", {"fingerprint": made["fingerprint"]}
        for who in ("admin", "member", "other"):
            for method, action, body in (
                ("GET", "", None),
                ("POST", "/approve", approval),
                ("POST", "/refuse", {"reason": "no"}),
            ):
                assert (await found.refused(who, method, path + action, body))[:2] == (403, "FORBIDDEN")
            assert (await found.refused(who, "GET", "/api/launch-requests"))[:2] == (403, "FORBIDDEN")
        of_other = (await found.ok("root", "GET", "/api/domains"))["items"]
        other = next(each["id"] for each in of_other if each["id"] != found.domain)
        stolen = await found.refused("other", "DELETE", f"/api/domains/{other}/launch-requests/{made['id']}")
        assert stolen[:2] == (404, "LAUNCH_REQUEST_NOT_FOUND")
        assert (await found.ok("root", "GET", path))["state"] == "open"
        unknown = await found.refused("root", "POST", "/api/launch-requests/lreq_x/approve", approval)
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
    async with desk(tmp_path) as found:
        secret = {"value": "canary-8d1f"}
        await found.ok("admin", "PUT", f"/api/domains/{found.domain}/secrets/DB", secret)
        for entry, words in REFUSED:
            status, _, message = await found.refused("admin", "POST", found.server("notes", "request"), entry)
            assert status in (409, 422, 502), (entry, message)
            assert words in message
        assert (await found.ok("root", "GET", "/api/launch-requests"))["items"] == []


async def test_a_secret_in_a_pasted_variable_is_in_no_file_of_the_request(
    tmp_path: Path, registry: PackageRegistry
) -> None:
    registry.publish_npm("notes-server", "1.2.0", old=True)
    async with desk(tmp_path) as found:
        made = await found.request("notes", {**PACKAGE, "env": {"NOTES_KEY": "canary-5e2c-0917"}})
        assert (made["env"], made["secrets"]) == (["NOTES_KEY"], ["NOTES_KEY"])
        assert made["entry"]["env"] == {"NOTES_KEY": "${NOTES_KEY}"}
        assert made["facts"]["fileCount"] == 2
        assert made["facts"]["sizeBytes"] > SCRIPT.stat().st_size
        done = await found.approve(made)
        assert done["state"] == "installed"
        saved = {"settings": {"mcpServers": {"notes": {**PACKAGE, "env": {"NOTES_KEY": "canary-5e2c-0917"}}}}}
        await found.ok("admin", "PATCH", f"/api/domains/{found.domain}", saved)
    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert [path for path in files if b"canary-5e2c" in path.read_bytes()] == []


async def test_a_version_that_changes_after_the_request_is_not_installed(
    tmp_path: Path, registry: PackageRegistry
) -> None:
    registry.publish_npm("notes-server", "1.2.0")
    async with desk(tmp_path) as found:
        made = await found.request("notes", PACKAGE)
        registry.publish_npm("notes-server", "1.3.0")  # a newer version exists now, which nobody has checked
        registry.publish_npm("notes-server", "1.2.0", script="process.exit(3)")
        moved = await found.approve(made)
        assert (moved["state"], moved["sha256"]) == ("open", "")
        assert "has other content under this version" in moved["reason"]
        registry.unpublish_npm("notes-server", "1.2.0")
        gone = await found.approve(made)
        assert "does not know it in this version" in gone["reason"]
        assert not (tmp_path / "data" / "mcp" / "allowed.json").exists()
        assert not list((tmp_path / "data" / "mcp").glob("npm/*"))
        registry.publish_npm("notes-server", "1.2.0")
        assert (await found.approve(made))["state"] == "installed"


async def test_a_yanked_version_cannot_be_requested(tmp_path: Path, registry: PackageRegistry) -> None:
    registry.publish_wheel("clock-server", "1.0.0")
    registry.publish_wheel("clock-server", "1.1.0", yanked="it deletes files")
    async with desk(tmp_path) as found:
        taken = {"command": "uvx", "args": ["clock-server==1.1.0"]}
        status, _, message = await found.refused("admin", "POST", found.server("clock", "request"), taken)
        assert (status, "took this version back" in message) == (502, True)
        made = await found.request("clock", {"command": "uvx", "args": ["clock-server"]})
        facts = made["facts"]
        assert (facts["version"], facts["license"], facts["programs"]) == ("1.0.0", "MIT", ["clock-server"])
        assert made["args"] == ["clock-server==1.0.0"]


@needs_bubblewrap
async def test_a_local_script_that_was_changed_does_not_start_until_it_is_approved_again(tmp_path: Path) -> None:
    alone = {"command": "node", "args": ["./notes.js"]}
    async with desk(tmp_path) as found:
        script = found.local / "notes.js"
        shutil.copy(SCRIPT, script)
        (found.local / "other.js").write_text("")
        made = await found.request("notes", alone)
        assert set(made["facts"]["files"]) == {"/usr/bin/node", "notes.js"}
        script.write_text(f"{SCRIPT.read_text()}//")
        approval = {"fingerprint": made["fingerprint"]}
        changed = await found.refused("root", "POST", f"/api/launch-requests/{made['id']}/approve", approval)
        assert changed[:2] == (409, "LAUNCH_REQUEST_CHANGED")
        again = await found.request("notes", alone)
        assert again["id"] != made["id"]
        await found.approve(again)
        assert (await found.test("notes", alone)).json()["items"][0]["state"] == "ready"
        script.write_text(f"{SCRIPT.read_text()}// changed")
        (tried,) = (await found.test("notes", alone)).json()["items"]
        assert (tried["state"], "is not the file that was allowed" in tried["reason"]) == ("failed", True)
        script.unlink()
        os.symlink("other.js", script)
        (tried,) = (await found.test("notes", alone)).json()["items"]
        assert tried["state"] == "failed"


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
    killed = await run_victim("tests.server.approving", tmp_path, env=environment(**{VARIABLE: place}))
    assert killed.returncode == EXIT_CODE, killed.stderr[-2000:]
    async with Rig(tmp_path) as rig:
        found = Desk(rig, "", {"root": killed.stdout.strip()})
        (made,) = (await found.ok("root", "GET", "/api/launch-requests"))["items"]
        done = await found.settled(made["id"])
        assert (done["state"], done["sha256"]) == ("installed", done["facts"]["integrity"])
        assert await found.actions() == ["mcp.request", "mcp.approve", "mcp.allow"]
    assert len(json.loads((tmp_path / "data" / "mcp" / "allowed.json").read_text())["entry"]) == 1
