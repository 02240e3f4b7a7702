"""One paste, one report: MCP servers in the form of other clients, checked and then saved row by row."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.rig import Rig
from tests.tools.captives import allow_captive, needs_bubblewrap

FILESYSTEM = "@modelcontextprotocol/server-filesystem"
HEAD = {"content-type": "application/json"}


async def check(rig: Rig, domain: str, text: str | bytes) -> dict[str, dict[str, Any]]:
    """Return the rows of a pasted text by their keys."""
    response = await rig.http.post(f"/api/domains/{domain}/mcp-servers/check", content=text, headers=HEAD)
    assert response.status_code == 200, response.text
    return {row["key"]: row for row in response.json()["items"]}


async def refusal(rig: Rig, domain: str, text: str | bytes) -> dict[str, Any]:
    response = await rig.http.post(f"/api/domains/{domain}/mcp-servers/check", content=text, headers=HEAD)
    assert response.status_code == 422, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


FOUR = """
{ // what four people sent
  "servers": {
    "ready": %(ready)s, /* tested at once */
    "maps": {"type": "streamableHttp", "url": "https://maps.example.org/mcp?key=${input:maps-key}"},
    "new": {"command": "npx", "args": ["-y", "@acme/unknown@1.2.3"]},
    "files": {"command": "cmd", "args": ["/c", "npx", "-y", "%(filesystem)s", "C:\\\\Users\\\\me"],},
  },
  "inputs": [{"id": "maps-key", "type": "promptString", "description": "Key of the maps", "password": true}],
}
"""


@needs_bubblewrap
async def test_a_pasted_file_of_four_servers_is_one_report_and_only_accepted_ones_are_saved(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        spec = await allow_captive(rig.application.parts.policy)
        domain = await rig.domain()
        entry = spec.entry.to_json()
        ready = {"command": entry["command"], "args": entry["args"]}
        text = FOUR % {"ready": json.dumps(ready), "filesystem": FILESYSTEM}
        before = await rig.ok("GET", f"/api/domains/{domain}")
        rows = await check(rig, domain, text)
        assert {key: row["status"] for key, row in rows.items()} == {
            "ready": "ready",
            "maps": "needs_secret",
            "new": "needs_approval",
            "files": "change_proposed",
        }
        assert [tool["name"] for tool in rows["ready"]["connection"]["tools"]] != []
        assert rows["maps"]["secrets"] == ["maps_key"]
        assert rows["maps"]["needs"][0]["description"] == "Key of the maps"
        assert rows["new"]["approval"]["request"] == f"/api/domains/{domain}/mcp-servers/new/request"
        problem = rows["files"]["problems"][0]
        assert (problem["path"], problem["value"]) == ("mcpServers.files.args.2", "C:\\Users\\me")
        assert rows["files"]["proposed"]["args"][-1] == "."
        assert await rig.ok("GET", f"/api/domains/{domain}") == before

        path = f"/api/domains/{domain}/mcp-servers/add"
        status, code, message = await rig.refused("POST", path, {"document": text, "accept": ["files", "new"]})
        assert (status, code) == (422, "VALIDATION_ERROR")
        assert message.startswith("mcpServers.new: ")
        accepted = await rig.ok("POST", path, {"document": text, "accept": ["ready", "files"]})
        assert accepted["names"] == ["ready", "files"]
        servers = (await rig.ok("GET", f"/api/domains/{domain}"))["settings"]["mcpServers"]
        assert {name for name, server in servers.items() if server["origin"] == "user"} == {"ready", "files"}
        assert servers["files"]["args"][-1] == "."


async def test_all_problems_of_an_entry_are_reported_at_once_and_affect_no_other(tmp_path: Path) -> None:
    invalid_entry = {
        "type": "carrier-pigeon",
        "command": "npx",
        "args": ["-y", "x", 3.5, None, {"a": 1}, "--api-key", "sk-0123456789abcdef0123"],
        "env": {"1": "x", "OK": "y", "BAD": ["z"]},
        "timeout": "soon",
        "disabled": "perhaps",
    }
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        new = {"command": "npx", "args": ["-y", "@acme/new@1.0.0"]}
        rows = await check(rig, domain, json.dumps({"odd": invalid_entry, "promptx": new, "none": None, "new": new}))
        paths = [problem["path"].removeprefix("mcpServers.odd.") for problem in rows["odd"]["problems"]]
        assert paths == ["type", "args.3", "args.4", "args.4", "env.1", "env.BAD", "disabled", "timeout"]
        assert rows["odd"]["problems"][0]["value"] == "carrier-pigeon"
        assert "sk-0123" not in str(rows)
        assert {key: rows[key]["status"] for key in ("odd", "promptx", "none", "new")} == {
            "odd": "not_possible",
            "promptx": "not_possible",
            "none": "not_possible",
            "new": "needs_approval",
        }


UNREADABLE: list[tuple[str | bytes, str]] = [
    ('{"a": {"command": "x"} "b": 1}', "line 1, column 24: a comma or a closing bracket is missing"),
    ('{\n"a": 1, /* open', "line 2, column 9: this comment has no end"),
    ('{"a": {"command": "C:\\Users"}}', "a backslash in a text is written twice"),
    (json.dumps({f"s{index}": {"command": "x"} for index in range(10_000)}), "10000 servers; at most 100"),
    ("[" * 100_000, "nested too deep"),
    ("{}", "there is no server in this document"),
    ('{"mcpServers": []}', "there is no server in this document"),
    ("3", "a JSON object is expected"),
    (b"\xff\x00", "as UTF-8"),
]


async def test_a_document_that_cannot_be_read_is_one_clear_error(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        for text, words in UNREADABLE:
            error = await refusal(rig, domain, text)
            assert error["code"] == "VALIDATION_ERROR"
            assert words in error["message"]


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ('\ufeff{"servers": {"a": {"command": "x-y"}}}', ["a"]),
        ('{"command": "npx", "args": ["-y", "@acme/tool@1.0.0"]}', ["@acme/tool"]),
        ('[{"name": "one", "command": "x-y"}, {"command": "x-z"},]', ["one", "server-2"]),
        ('{"a": {"command": "x-y", "env": {"U": "http://h//p", "V": "/* no comment */"}}}', ["a"]),
        ('{"context_servers": {"a": {"command": {"path": "x-y", "args": []}}}}', ["a"]),
    ],
)
async def test_configurations_of_other_hosts_are_read(tmp_path: Path, text: str, keys: list[str]) -> None:
    async with Rig(tmp_path) as rig:
        assert list(await check(rig, await rig.domain(), text.encode())) == keys


async def test_duplicate_names_and_keys_are_reported(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        rows = await check(rig, domain, '{"a": {"command": "x"}, "a": {"command": "y"}, "b": {"url": "u", "url": "v"}}')
        assert "given twice" in rows["a"]["reason"]
        assert rows["b"]["problems"][0]["path"] == "mcpServers.b.url"


async def test_the_saveable_one_of_two_rows_with_one_name_can_be_added(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        text = (
            '{"my server": {"url": "https://one.example.org/mcp"}, "my-server": {"url": "https://two.example.org/mcp"}}'
        )
        rows = await check(rig, domain, text)
        assert [(row["name"], row["saveable"]) for row in rows.values()] == [("my-server", True), ("my-server", False)]
        path = f"/api/domains/{domain}/mcp-servers/add"
        await rig.ok("POST", path, {"document": text, "accept": ["my-server"]})
        servers = (await rig.ok("GET", f"/api/domains/{domain}"))["settings"]["mcpServers"]
        assert servers["my-server"]["url"] == "https://one.example.org/mcp"


@pytest.mark.parametrize("folder", ["/etc", "~/notes", "C:\\Users\\me", "../other", "${workspaceFolder}", "file:///x"])
async def test_a_folder_path_of_another_machine_becomes_the_files_folder(tmp_path: Path, folder: str) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        entry = {"command": "npx", "args": ["-y", FILESYSTEM, folder, folder], "envFile": ".env"}
        row = (await check(rig, domain, json.dumps({"files": entry})))["files"]
        assert row["status"] == "change_proposed"
        assert row["proposed"]["args"] == ["-y", FILESYSTEM, "."]
        assert [problem["path"].split(".")[2] for problem in row["problems"]] == ["envFile", "args", "args"]
        assert row["saveable"]


async def test_a_patch_answers_with_every_problem(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        settings = {
            "colour": "red",
            "maxSteps": 0,
            "language": "not a language",
            "temperature": "warm",
            "subRoleIds": ["assistant", 3],
            "variables": {"1": "x", "OK": "y", "B": 4},
            "toolPolicy": {"a": "perhaps", "b": "ask"},
            "memoryScope": "domain",
            "memory": {"extract": "after-turn"},
            "mcpServers": {
                "a": {"command": "x", "url": "https://h"},
                "b": {"url": "ftp://h", "headers": {"bad name": "x"}},
                "c": {"command": "npx", "args": ["-y", "@acme/new@1.0.0"]},
            },
        }
        body = {"name": " ", "settings": settings}
        response = await rig.http.patch(f"/api/domains/{domain}", json=body)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (422, "VALIDATION_ERROR")
        problems = error["details"]["problems"]
        paths = {problem["path"] for problem in problems}
        assert all(problem["message"] for problem in problems)
        keys = ("colour", "maxSteps", "language", "temperature", "subRoleIds.1", "memory.extract")
        assert {f"settings.{key}" for key in keys} <= paths
        assert {"settings.variables.1", "settings.variables.B", "settings.toolPolicy.a", "name"} <= {
            ".".join(path.split(".")[:3]) for path in paths
        }
        assert {"settings.mcpServers.a.url", "settings.mcpServers.b.url"} <= paths
        assert "settings.mcpServers.b.headers.bad name" in paths
        assert "settings.mcpServers.c.command" in paths
        assert error["message"].startswith(f"{problems[0]['path']}: ")
        patch_response = await rig.http.patch(f"/api/domains/{domain}", json={"settings": {"maxSteps": 0}})
        assert [problem["path"] for problem in patch_response.json()["error"]["details"]["problems"]] == [
            "settings.maxSteps"
        ]
