"""Roles over REST: shown with their files, written in nuwa's form, removed from the workspace only."""

import sys
from pathlib import Path
from typing import Any

import pytest

from agentic_rag.access.users import User
from agentic_rag.testing.steps import say
from tests.server.rig import Rig, types_of
from tests.tools.support import SERVERS

CLERK = {"kind": "role", "id": "书记员", "content": "<role><personality>@!thought://书记员思维</personality></role>"}
THINKING = {"kind": "thought", "id": "书记员思维", "content": "<thought><plan>Count twice.</plan></thought>"}


def resource_folder(rig: Rig, domain: str) -> Path:
    return rig.settings.workspaces / domain / ".promptx" / "resource"


def list_paths(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


async def test_a_role_is_shown_with_its_text_findings_and_raw_files(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        (resource_folder(rig, domain) / "clerk.role.md").write_text(
            "<role>\n<personality>@!thought://memory-sense\n@!thought://nothing</personality></role>"
        )
        record = await rig.ok("GET", f"/api/domains/{domain}/roles/clerk")
        assert record["source"] == "workspace"
        assert "## thought: memory-sense" in record["text"]
        assert [(finding["code"], finding["line"], finding["column"]) for finding in record["findings"]] == [
            ("missing-reference", 3, 1)
        ]
        assert record["findings"][0]["hint"]
        assert [(file["kind"], file["id"], file["source"]) for file in record["files"]] == [
            ("role", "clerk", "workspace"),
            ("thought", "memory-sense", "builtin"),
        ]
        assert record["files"][0]["content"].startswith("<role>")
        assert str(tmp_path) not in str(record)


async def test_a_written_role_is_live_and_a_deleted_one_gone(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        path = f"/api/domains/{domain}/roles/书记员"
        record = await rig.ok("PUT", path, {"files": [CLERK, THINKING]})
        assert record["written"] == [
            ".promptx/resource/role/书记员/thought/书记员思维.thought.md",
            ".promptx/resource/role/书记员/书记员.role.md",
        ]
        assert "Count twice." in record["text"]
        assert record["findings"] == []
        await rig.ok("DELETE", path)
        assert (await rig.refused("GET", path))[:2] == (404, "ROLE_NOT_FOUND")
        assert list_paths(resource_folder(rig, domain)) == []
        assert (await rig.refused("DELETE", path))[:2] == (404, "ROLE_NOT_FOUND")


@pytest.mark.parametrize(
    ("role", "body", "words"),
    [
        ("clerk", {"files": [{**CLERK, "id": "clerk"}]}, "missing-reference"),
        ("clerk", {"files": [{**CLERK, "id": "clerk", "content": "half"}]}, "no-tag"),
        ("clerk", {"files": [THINKING]}, "there is no role 'clerk' yet"),
        ("clerk", {"files": []}, "files"),
        ("clerk", {"files": [{**THINKING, "kind": "spell"}]}, "files.0.kind"),
        ("clerk", {"files": [{**THINKING, "id": "../../x"}]}, "not a valid id"),
        ("..%2Fx", {"files": [CLERK]}, ""),
        ("a%00b", {"files": [CLERK]}, "not a valid id"),
        ("clerk", {"files": [CLERK], "force": True}, "force"),
    ],
)
async def test_a_role_with_errors_changes_nothing(tmp_path: Path, role: str, body: dict[str, Any], words: str) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        status, _, message = await rig.refused("PUT", f"/api/domains/{domain}/roles/{role}", body)
        assert status in (404, 422)
        assert words in message
        assert list_paths(resource_folder(rig, domain)) == []


async def test_without_replace_an_existing_file_is_refused(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        path = f"/api/domains/{await rig.domain()}/roles/clerk"
        record = await rig.ok("PUT", path, {"replace": False})
        assert len(record["written"]) == 3
        assert record["findings"] == []
        assert "exists already" in (await rig.refused("PUT", path, {"replace": False}))[2]


async def test_a_built_in_role_returns_when_the_role_that_hid_it_is_deleted(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        path = f"/api/domains/{await rig.domain()}/roles/assistant"
        assert (await rig.refused("DELETE", path))[:2] == (404, "ROLE_NOT_FOUND")
        own = {"kind": "role", "id": "assistant", "content": "<role><personality>Mine.</personality></role>"}
        assert "Mine." in (await rig.ok("PUT", path, {"files": [own]}))["text"]
        await rig.ok("DELETE", path)
        assert (await rig.ok("GET", path))["source"] == "builtin"


async def test_deleting_keeps_files_used_by_other_roles_or_stored_elsewhere(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        base, folder = f"/api/domains/{domain}/roles", resource_folder(rig, domain)
        await rig.ok("PUT", f"{base}/书记员", {"files": [CLERK, THINKING]})
        (folder / "other.role.md").write_text("<role><personality>@!thought://书记员思维</personality></role>")
        (folder / "role" / "书记员" / "notes.txt").write_text("mine")
        await rig.ok("DELETE", f"{base}/书记员")
        assert "Count twice." in (await rig.ok("GET", f"{base}/other"))["text"]
        await rig.ok("DELETE", f"{base}/other")
        assert (folder / "role" / "书记员" / "notes.txt").read_text() == "mine"
        assert (folder / "role" / "书记员" / "thought" / "书记员思维.thought.md").exists()


@pytest.mark.attack(kind="files")
async def test_deleting_a_linked_role_removes_only_the_link(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        outside_file = tmp_path / "outside.role.md"
        outside_file.write_text("<role><personality>Secret.</personality></role>")
        (resource_folder(rig, domain) / "linked.role.md").symlink_to(outside_file)
        record = await rig.ok("GET", f"/api/domains/{domain}/roles/linked")
        assert (record["text"], record["files"][0]["content"]) == (None, None)
        await rig.ok("DELETE", f"/api/domains/{domain}/roles/linked")
        assert outside_file.exists()


async def test_the_effective_prompt_is_the_prompt_sent_to_the_model(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Hi."), any_command=True) as rig:
        server = {"type": "stdio", "command": "/usr/bin/true", "args": []}
        domain = await rig.domain(primaryRoleId="nuwa", expertise="labour law", mcpServers={"x": server})
        await rig.upload(domain, "a.md", b"# Leave\n\nTwenty days a year.")
        prompt = rig.settings.workspaces / domain / "prompt"
        (prompt / "10-identity.md").write_text("You are the clerk of the court.")
        (prompt / "20-rules.md").write_bytes(b"\xff")
        effective = await rig.ok("GET", f"/api/domains/{domain}/effective-prompt")
        assert types_of(await rig.say(await rig.conversation(domain), "Hi"))[-1] == "done"
        system_texts = [block["text"] for block in rig.model.requests[0].system]
        parts = [effective["bootstrap"], *effective["components"], effective["present"]]
        assert [part["text"] for part in parts] == system_texts
        assert [component["name"] for component in effective["components"]] == ["10-identity.md"]
        assert effective["problems"] == [{"name": "20-rules.md", "problem": "not UTF-8 at byte 0"}]
        assert effective["system"]["characters"] == sum(map(len, system_texts))
        assert effective["system"]["tokens"] > 0
        assert effective["role"]["id"] == effective["roleId"] == "nuwa"
        assert effective["role"]["characters"] == len(effective["role"]["text"])
        assert set(effective["tools"]) == {tool["name"] for tool in rig.model.requests[0].tools}


async def test_the_effective_prompt_has_the_token_cost_of_each_servers_tools(tmp_path: Path) -> None:
    large_server = {"command": sys.executable, "args": ["-I", "-S", str(SERVERS / "hostile.py"), "ok"]}
    small_server = {"command": sys.executable, "args": [str(SERVERS / "plain.py")]}
    async with Rig(tmp_path, say("Hi."), say("Hi."), any_command=True) as rig:
        domain = await rig.domain(mcpServers={"a": small_server})
        path = f"/api/domains/{domain}/effective-prompt"
        costs = {server["name"]: server for server in (await rig.ok("GET", path))["servers"]}
        assert costs["a"] == {"name": "a", "tools": 0, "tokens": 0, "deferred": False}, "it was started"
        assert costs["promptx"]["tools"] >= 4
        assert costs["promptx"]["tokens"] > 300
        await rig.say(await rig.conversation(domain), "Hi")
        effective = await rig.ok("GET", path)
        (cost,) = [server for server in effective["servers"] if server["name"] == "a"]
        assert 0 < cost["tools"] < 30
        assert (cost["deferred"], effective["catalogue"]) == (False, None)
        assert set(effective["tools"]) == {tool["name"] for tool in rig.model.requests[0].tools}

        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"mcpServers": {"b": large_server}}})
        await rig.say(await rig.conversation(domain), "Hi")
        effective = await rig.ok("GET", path)
        deferred = {server["name"]: server["tools"] for server in effective["servers"] if server["deferred"]}
        assert deferred["b"] > 30
        assert f"- b ({deferred['b']}): asks_widely, batch, chatter" in effective["catalogue"]["text"]
        assert set(effective["tools"]) == {
            tool["name"] for tool in rig.model.requests[-1].tools if not tool.get("defer_loading")
        }
        assert "find_tools" in effective["tools"]
        system_texts = [block["text"] for block in rig.model.requests[-1].system]
        assert [effective[part]["text"] for part in ("bootstrap", "catalogue", "present")] == system_texts
        assert effective["system"]["characters"] == sum(map(len, system_texts))


async def test_a_prompt_names_its_missing_role(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        path = f"/api/domains/{domain}/roles/clerk"
        await rig.ok("PUT", path, {})
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"primaryRoleId": "clerk"}})
        await rig.ok("DELETE", path)
        effective = await rig.ok("GET", f"/api/domains/{domain}/effective-prompt")
        assert (effective["roleId"], effective["role"]) == ("clerk", None)
        assert (await rig.refused("GET", "/api/domains/nope/effective-prompt"))[:2] == (404, "DOMAIN_NOT_FOUND")


async def test_only_an_admin_gets_the_author_tools(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain(primaryRoleId="nuwa")
        services = rig.application.services
        for user, allowed in (
            (User("olga", operator=True), True),
            (User("anna", domains=frozenset({domain}), administered=frozenset({domain})), True),
            (User("mara", domains=frozenset({domain})), False),
        ):
            conversation = await services.conversations.create(user, domain)
            definition, _ = await services.definitions.definition(user, conversation)
            assert ("role_write" in (definition.system[0].tools or ())) is allowed
            assert definition.binding.admin is allowed
