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
from tests.server.test_launch_requests import Desk, call_tool, open_desk, registry
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


def change_package(**fields: Any) -> dict[str, Any]:
    """Return the document with other fields of its npm package."""
    return {**SERVER_JSON, "packages": [{**SERVER_JSON["packages"][1], **fields}]}


async def test_a_pasted_server_json_is_requested_as_its_command_line(tmp_path: Path, registry: PackageRegistry) -> None:
    registry.publish_npm("notes-server", "1.2.0")
    async with open_desk(tmp_path) as desk:
        domain = f"/api/domains/{desk.domain}"
        save = {"settings": {"mcpServers": SERVER_JSON}}
        for method, path, body in (("PATCH", domain, save), ("POST", f"{domain}/mcp-servers/test", SERVER_JSON)):
            response = await desk.ask("admin", method, path, body)
            assert response.json()["error"]["details"]["request"] == desk.server("notes", "request")
        request = await desk.request("notes", SERVER_JSON)
        line = ["-y", "notes-server@1.2.0", "serve", "--root", "${ROOT_PATH}", "plain"]
        assert (request["command"], request["args"]) == ("npx", line)
        assert request["template"] == ["serve", "--root", "{path:workspace}", "plain"]
        assert (request["env"], request["secrets"]) == (["NOTES_KEY", "NOTES_MODE"], ["NOTES_KEY"])
        assert "never-this" not in json.dumps(request)
        assert (await desk.approve(request))["state"] == "installed"
        unset = await desk.refused("admin", "POST", f"{domain}/mcp-servers/test", SERVER_JSON)
        assert "${ROOT_PATH} has no value" in unset[2]
        early = await desk.ok("admin", "PATCH", domain, save)
        assert any("${ROOT_PATH} has no value yet" in note["text"] for note in early["warnings"])
        variables = {"settings": {"variables": {"ROOT_PATH": "."}, "mcpServers": SERVER_JSON}}
        domain_record = await desk.ok("admin", "PATCH", f"/api/domains/{desk.domain}", variables)
        texts = [note["text"] for note in domain_record["changes"]]
        assert "read as a server.json of the MCP registry." in texts
        assert "set the secret NOTES_KEY of this domain." in texts
        entry = domain_record["settings"]["mcpServers"]["notes"]
        assert entry["env"]["NOTES_KEY"] == "${NOTES_KEY}"
        remote = {**SERVER_JSON, "packages": []}
        domain_after = await desk.ok(
            "admin", "PATCH", f"/api/domains/{desk.domain}", {"settings": {"mcpServers": remote}}
        )
        assert domain_after["settings"]["mcpServers"]["notes"]["url"] == "https://notes.example/mcp"


async def test_a_server_json_that_cannot_be_a_command_line_is_refused_with_its_place(
    tmp_path: Path, registry: PackageRegistry
) -> None:
    secret = {"type": "positional", "valueHint": "key", "isSecret": True}
    documents = (
        ({**SERVER_JSON, "packages": SERVER_JSON["packages"][:1], "remotes": []}, "no package of npm or PyPI"),
        (change_package(version="latest || 1"), "packages.0.version"),
        (change_package(runtimeArguments=[{"type": "named", "name": "--require"}]), "packages.0.runtimeArguments"),
        (change_package(packageArguments=[secret]), "packages.0.packageArguments.0"),
        (change_package(packageArguments="all"), "packages.0.packageArguments"),
        (change_package(identifier="git+https://example.com/x"), "no plain package"),
        (change_package(environmentVariables=[{"name": "NODE_OPTIONS", "value": "-r x"}]), "env.NODE_OPTIONS"),
    )
    async with open_desk(tmp_path) as desk:
        for document, words in documents:
            status, _, message = await desk.refused("admin", "POST", desk.server("notes", "request"), document)
            assert (status, words in message) == (422, True), message


@needs_bubblewrap
async def test_no_number_of_newer_requests_removes_the_bundle_of_a_pending_one(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as desk:
        request = (await send(desk, "admin", desk.server("-", "bundle"), bundle())).json()
        (bundle_file,) = (desk.rig.settings.data / "mcp" / "bundles").iterdir()
        os.utime(bundle_file, (0, 0))  # old enough to be removed
        database = desk.rig.application.database

        def crowd(conn: Connection) -> None:
            record = launch_requests.get(conn, request["id"])
            assert record is not None
            facts = replace(record.facts, registry="npm", integrity="sha512-x")
            for number in range(MOST_SHOWN):
                crowding_record = record.replace(id=new_id("lreq"), pending=f"line-{number}", facts=facts)
                launch_requests.insert(conn, crowding_record)

        await database.write(crowd)
        await desk.rig.application.services.launch_requests.take_up()
        assert bundle_file.exists()


async def test_an_mcp_bundle_is_requested_approved_and_called(tmp_path: Path) -> None:
    steps = [call_tool("notes__greet", name="Ann")] * 2
    async with open_desk(tmp_path, *steps) as desk:
        data = bundle()
        path = desk.server("-", "bundle")
        request = (await send(desk, "admin", path, data)).json()
        assert (request["server"], request["command"]) == ("notes", "mcpb")
        assert request["args"] == ["notes@1.0.0", "--root=${FOLDER}", "${MODE}"]
        assert request["template"] == ["--root={path:workspace}", "{text}"]
        assert request["secrets"] == ["NOTES_KEY"]
        assert (await send(desk, "admin", path, data)).json()["id"] == request["id"]
        assert (await send(desk, "member", path, data)).status_code == 403
        assert (await send(desk, "other", path, data)).status_code == 404
        for bad in (b"", b"no zip", bundle(manifest=change_server(type="uv")), bytes(MAX_BUNDLE_BYTES + 1)):
            assert (await send(desk, "admin", path, bad)).status_code in (413, 422)
        approved = await desk.approve(request, readOnly=["greet"])
        assert (approved["state"], approved["reason"]) == ("installed", "")
        bundles_folder = desk.rig.settings.data / "mcp" / "bundles"
        await until(lambda: not list(bundles_folder.iterdir()))
        second_request = (
            await send(desk, "admin", desk.server("more", "bundle"), bundle(files={"more.js": b""}))
        ).json()
        assert len(list(bundles_folder.iterdir())) == 1
        await desk.ok("admin", "DELETE", f"/api/domains/{desk.domain}/launch-requests/{second_request['id']}")
        assert not list(bundles_folder.iterdir())
        await desk.ok("admin", "PUT", f"/api/domains/{desk.domain}/secrets/NOTES_KEY", {"value": "key-of-the-notes"})
        settings = {"variables": {"FOLDER": ".", "MODE": "fast"}, "mcpServers": {"notes": request["entry"]}}
        await desk.ok("admin", "PATCH", f"/api/domains/{desk.domain}", {"settings": settings})
        conversation = await desk.ok("member", "POST", "/api/conversations", {"domainId": desk.domain})
        path = f"/api/conversations/{conversation['id']}/messages"
        answer_text = (await desk.ask("member", "POST", path, {"content": "Go"})).text
        files = desk.rig.settings.workspaces / desk.domain / "files"
        assert f"Hello Ann! args: --root={files} fast" in answer_text
        assert "beside: index.js" in answer_text
        assert "key-of-the-notes" not in answer_text
        assert "key: none" not in answer_text


async def send(desk: Desk, user: str, path: str, data: bytes) -> Any:
    headers = {"Authorization": f"Bearer {desk.keys[user]}", "Content-Type": "application/zip"}
    return await desk.rig.http.post(path, content=data, headers=headers)


def run(data: Path, command: str, *words: str, fails: bool = False) -> str:
    result = CliRunner().invoke(app, ["mcp", command, "--data", str(data), *words])
    assert (result.exit_code != 0) is fails, result.output
    return result.output + (str(result.exception) if fails else "")


async def test_an_operator_decides_by_command_line(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "notes.mcpb"
    file.write_bytes(bundle({**MANIFEST, "description": "\x1b[2Jgone"}))

    def decide() -> None:
        output = run(data, "propose", "demo", str(file), "--name", "ours")
        assert '{"ours": {"type": "stdio", "command": "mcpb"' in output
        (line,) = run(data, "requests").splitlines()
        ident, domain, server, state, user, _, summary = line.split("\t")
        assert (domain, server, state, user) == ("demo", "ours", "open", "local")
        assert summary.startswith("mcpb notes 1.0.0, MIT, ")
        output_of_bad_path = run(data, "approve", ident, "--", "{path:workspace}", fails=True)
        assert "would not run" in output_of_bad_path
        output = run(
            data, "approve", ident, "--network", "--read-only", "greet", "--", "--root={path:workspace}", "{text}"
        )
        assert "allowed notes-" in output
        assert "integrity: sha256-" in output
        assert "network" in run(data, "list")
        assert "installed" in run(data, "requests", "--state", "installed")
        assert run(data, "requests") == ""
        output_when_closed = run(data, "refuse", ident, "--reason", "too late", fails=True)
        assert "installed" in output_when_closed

    with serving(data, **{name: text for name, text in environment().items() if name.startswith("PIP_")}):
        await anyio.to_thread.run_sync(decide)
