"""``server.json`` of the MCP registry and bundles (``.mcpb``) as proposals, and the command line on both sides."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from sqlalchemy import Connection
from typer.testing import CliRunner

from agentic_rag.cli import app
from agentic_rag.domains.launch_requests import MOST_SHOWN
from agentic_rag.store import launch_requests
from agentic_rag.store.clock import new_id
from agentic_rag.tools.launch.bundles import MAX_BUNDLE_BYTES
from tests.e2e.serving import environment, serving
from tests.server.test_launch_requests import Desk, calling, desk, registry
from tests.tools.bundles import MANIFEST, bundle, change_server
from tests.tools.captives import needs_bubblewrap
from tests.tools.registry import PackageRegistry
from tests.tools.support import until

__all__ = ["registry"]

SERVER_JSON: dict[str, Any] = {
    "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
    "name": "io.github.ann/notes",
    "description": "Notes.",
    "version": "2.0.0",
    "packages": [
        {"registryType": "oci", "identifier": "docker.io/ann/notes", "transport": {"type": "stdio"}},
        {
            "registryType": "npm",
            "identifier": "notes-server",
            "version": "1.2.0",
            "transport": {"type": "stdio"},
            "packageArguments": [
                {"type": "positional", "value": "serve"},
                {"type": "named", "name": "--root", "valueHint": "root_path", "format": "filepath", "isRequired": True},
                {"type": "positional", "valueHint": "mode", "default": "plain"},
            ],
            "environmentVariables": [
                {"name": "NOTES_KEY", "isSecret": True, "isRequired": True, "default": "never-this"},
                {"name": "NOTES_MODE", "default": "fast"},
            ],
        },
    ],
    "remotes": [{"type": "streamable-http", "url": "https://notes.example/mcp"}],
}


def described(**fields: Any) -> dict[str, Any]:
    """Return the document with other fields of its npm package."""
    return {**SERVER_JSON, "packages": [{**SERVER_JSON["packages"][1], **fields}]}


async def test_a_pasted_server_json_is_requested_as_its_command_line(tmp_path: Path, registry: PackageRegistry) -> None:
    registry.publish_npm("notes-server", "1.2.0")
    async with desk(tmp_path) as found:
        domain = f"/api/domains/{found.domain}"
        save = {"settings": {"mcpServers": SERVER_JSON}}
        for method, path, body in (("PATCH", domain, save), ("POST", f"{domain}/mcp-servers/test", SERVER_JSON)):
            tried = await found.ask("admin", method, path, body)
            assert tried.json()["error"]["details"]["request"] == found.server("notes", "request")
        made = await found.request("notes", SERVER_JSON)
        line = ["-y", "notes-server@1.2.0", "serve", "--root", "${ROOT_PATH}", "plain"]
        assert (made["command"], made["args"]) == ("npx", line)
        assert made["template"] == ["serve", "--root", "{path:workspace}", "plain"]
        assert (made["env"], made["secrets"]) == (["NOTES_KEY", "NOTES_MODE"], ["NOTES_KEY"])
        assert "never-this" not in json.dumps(made)
        assert (await found.approve(made))["state"] == "installed"
        unset = await found.refused("admin", "POST", f"{domain}/mcp-servers/test", SERVER_JSON)
        assert "${ROOT_PATH} has no value" in unset[2]
        early = await found.ok("admin", "PATCH", domain, save)
        assert any("${ROOT_PATH} has no value yet" in note["text"] for note in early["warnings"])
        variables = {"settings": {"variables": {"ROOT_PATH": "."}, "mcpServers": SERVER_JSON}}
        saved = await found.ok("admin", "PATCH", f"/api/domains/{found.domain}", variables)
        texts = [note["text"] for note in saved["changes"]]
        assert "read as a server.json of the MCP registry." in texts
        assert "set the secret NOTES_KEY of this domain." in texts
        entry = saved["settings"]["mcpServers"]["notes"]
        assert entry["env"]["NOTES_KEY"] == "${NOTES_KEY}"
        remote = {**SERVER_JSON, "packages": []}
        far = await found.ok("admin", "PATCH", f"/api/domains/{found.domain}", {"settings": {"mcpServers": remote}})
        assert far["settings"]["mcpServers"]["notes"]["url"] == "https://notes.example/mcp"


async def test_a_server_json_that_cannot_be_a_command_line_is_refused_with_its_place(
    tmp_path: Path, registry: PackageRegistry
) -> None:
    secret = {"type": "positional", "valueHint": "key", "isSecret": True}
    documents = (
        ({**SERVER_JSON, "packages": SERVER_JSON["packages"][:1], "remotes": []}, "no package of npm or PyPI"),
        (described(version="latest || 1"), "packages.0.version"),
        (described(runtimeArguments=[{"type": "named", "name": "--require"}]), "packages.0.runtimeArguments"),
        (described(packageArguments=[secret]), "packages.0.packageArguments.0"),
        (described(packageArguments="all"), "packages.0.packageArguments"),
        (described(identifier="git+https://example.com/x"), "no plain package"),
        (described(environmentVariables=[{"name": "NODE_OPTIONS", "value": "-r x"}]), "env.NODE_OPTIONS"),
    )
    async with desk(tmp_path) as found:
        for document, words in documents:
            status, _, message = await found.refused("admin", "POST", found.server("notes", "request"), document)
            assert (status, words in message) == (422, True), message


@needs_bubblewrap
async def test_no_number_of_newer_requests_removes_the_bundle_of_a_pending_one(tmp_path: Path) -> None:
    async with desk(tmp_path) as found:
        made = (await send(found, "admin", found.server("-", "bundle"), bundle())).json()
        (kept,) = (found.rig.settings.data / "mcp" / "bundles").iterdir()
        os.utime(kept, (0, 0))  # old enough to be removed
        database = found.rig.application.database

        def crowd(conn: Connection) -> None:
            record = launch_requests.get(conn, made["id"])
            assert record is not None
            facts = replace(record.facts, registry="npm", integrity="sha512-x")
            for number in range(MOST_SHOWN):
                other = record.replace(id=new_id("lreq"), pending=f"line-{number}", facts=facts)
                launch_requests.insert(conn, other)

        await database.write(crowd)
        await found.rig.application.business.launch_requests.take_up()
        assert kept.exists()


async def test_an_mcp_bundle_is_requested_approved_and_called(tmp_path: Path) -> None:
    steps = [calling("notes__greet", name="Ann")] * 2
    async with desk(tmp_path, *steps) as found:
        data = bundle()
        path = found.server("-", "bundle")
        made = (await send(found, "admin", path, data)).json()
        assert (made["server"], made["command"]) == ("notes", "mcpb")
        assert made["args"] == ["notes@1.0.0", "--root=${FOLDER}", "${MODE}"]
        assert made["template"] == ["--root={path:workspace}", "{text}"]
        assert made["secrets"] == ["NOTES_KEY"]
        assert (await send(found, "admin", path, data)).json()["id"] == made["id"]
        assert (await send(found, "member", path, data)).status_code == 403
        assert (await send(found, "other", path, data)).status_code == 404
        for bad in (b"", b"no zip", bundle(manifest=change_server(type="uv")), bytes(MAX_BUNDLE_BYTES + 1)):
            assert (await send(found, "admin", path, bad)).status_code in (413, 422)
        done = await found.approve(made, readOnly=["greet"])
        assert (done["state"], done["reason"]) == ("installed", "")
        kept = found.rig.settings.data / "mcp" / "bundles"
        await until(lambda: not list(kept.iterdir()))
        other = (await send(found, "admin", found.server("more", "bundle"), bundle(files={"more.js": b""}))).json()
        assert len(list(kept.iterdir())) == 1
        await found.ok("admin", "DELETE", f"/api/domains/{found.domain}/launch-requests/{other['id']}")
        assert not list(kept.iterdir())
        await found.ok("admin", "PUT", f"/api/domains/{found.domain}/secrets/NOTES_KEY", {"value": "key-of-the-notes"})
        settings = {"variables": {"FOLDER": ".", "MODE": "fast"}, "mcpServers": {"notes": made["entry"]}}
        await found.ok("admin", "PATCH", f"/api/domains/{found.domain}", {"settings": settings})
        talk = await found.ok("member", "POST", "/api/conversations", {"domainId": found.domain})
        path = f"/api/conversations/{talk['id']}/messages"
        said = (await found.ask("member", "POST", path, {"content": "Go"})).text
        files = found.rig.settings.workspaces / found.domain / "files"
        assert f"Hello Ann! args: --root={files} fast" in said
        assert "beside: index.js" in said
        assert "key-of-the-notes" not in said
        assert "key: none" not in said


async def send(found: Desk, who: str, path: str, data: bytes) -> Any:
    headers = {"Authorization": f"Bearer {found.keys[who]}", "Content-Type": "application/zip"}
    return await found.rig.http.post(path, content=data, headers=headers)


def run(data: Path, command: str, *words: str, fails: bool = False) -> str:
    done = CliRunner().invoke(app, ["mcp", command, "--data", str(data), *words])
    assert (done.exit_code != 0) is fails, done.output
    return done.output + (str(done.exception) if fails else "")


async def test_an_operator_decides_by_command_line(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "notes.mcpb"
    file.write_bytes(bundle({**MANIFEST, "description": "\x1b[2Jgone"}))

    def decide() -> None:
        said = run(data, "propose", "demo", str(file), "--name", "ours")
        assert '{"ours": {"type": "stdio", "command": "mcpb"' in said
        (listed,) = run(data, "requests").splitlines()
        ident, domain, server, state, who, _, what = listed.split("\t")
        assert (domain, server, state, who) == ("demo", "ours", "open", "local")
        assert what.startswith("mcpb notes 1.0.0, MIT, ")
        odd = run(data, "approve", ident, "--", "{path:workspace}", fails=True)
        assert "would not run" in odd
        said = run(
            data, "approve", ident, "--network", "--read-only", "greet", "--", "--root={path:workspace}", "{text}"
        )
        assert "allowed notes-" in said
        assert "integrity: sha256-" in said
        assert "network" in run(data, "list")
        assert "installed" in run(data, "requests", "--state", "installed")
        assert run(data, "requests") == ""
        closed = run(data, "refuse", ident, "--reason", "too late", fails=True)
        assert "installed" in closed

    with serving(data, **{name: text for name, text in environment().items() if name.startswith("PIP_")}):
        await anyio.to_thread.run_sync(decide)
