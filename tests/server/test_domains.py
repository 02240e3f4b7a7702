"""Domains and roles over REST: merge rules, versions, reserved names, deletion."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentic_rag.testing.steps import say
from tests.server.rig import Rig, types_of

STDIO = {"type": "stdio", "command": "/usr/bin/true", "args": ["x"]}


async def test_a_domain_is_created_with_defaults_and_our_servers(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.ok("POST", "/api/domains", {"name": " Law ", "settings": {"retrieval_top_k": 7}})
        assert (domain["name"], domain["version"], domain["documentCount"]) == ("Law", 1, 0)
        assert domain["settings"]["retrievalTopK"] == 7
        assert domain["settings"]["tone"] == "friendly"
        assert domain["settings"]["model"] is None
        servers = domain["settings"]["mcpServers"]
        assert list(servers) == ["promptx"]
        assert (servers["promptx"]["origin"], servers["promptx"]["readOnly"]) == ("system", True)
        assert [item["id"] for item in (await rig.ok("GET", "/api/domains"))["items"]] == [domain["id"]]


async def test_the_retriever_is_offered_while_there_are_documents(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain(retrievalTopK=3)
        document = await rig.upload(domain, "a.md", b"# Leave\n\nTwenty days a year.")
        domain_record = await rig.ok("GET", f"/api/domains/{domain}")
        assert domain_record["documentCount"] == 1
        retriever = domain_record["settings"]["mcpServers"]["retriever"]
        assert retriever["origin"] == "builtin"
        assert retriever["env"]["QDRANT_COLLECTION"] == f"domain_{domain}"
        assert retriever["env"]["RETRIEVAL_TOP_K"] == "3"
        await rig.ok("DELETE", f"/api/domains/{domain}/documents/{document['id']}")
        assert "retriever" not in (await rig.ok("GET", f"/api/domains/{domain}"))["settings"]["mcpServers"]


async def test_a_get_answer_can_be_edited_and_put_back(tmp_path: Path) -> None:
    async with Rig(tmp_path, any_command=True) as rig:
        domain = await rig.domain(mcpServers={"files": STDIO})
        await rig.upload(domain, "a.md", b"# Leave\n\nTwenty days a year.")
        path = f"/api/domains/{domain}"
        document = await rig.ok("GET", path)
        document["settings"]["tone"] = "formal"
        document["settings"]["mcpServers"]["files"]["args"] = ["y"]
        stored_domain = await rig.ok("PUT", path, document)
        assert (stored_domain["version"], stored_domain["settings"]["tone"]) == (2, "formal")
        assert stored_domain["settings"]["mcpServers"]["files"]["args"] == ["y"]
        assert stored_domain["settings"]["mcpServers"] | {} == document["settings"]["mcpServers"]


async def test_put_replaces_maps_and_patch_merges_them(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain(variables={"A": "1", "B": "2"}, expertise="law", maxTokens=99)
        path = f"/api/domains/{domain}"
        change = {"settings": {"variables": {"B": None, "C": "3"}, "expertise": None}}
        patched = (await rig.ok("PATCH", path, change))["settings"]
        assert (patched["variables"], patched["expertise"], patched["maxTokens"]) == ({"A": "1", "C": "3"}, "", 99)
        stored_settings = (await rig.ok("PUT", path, {"settings": {"variables": {"D": "4"}}}))["settings"]
        assert (stored_settings["variables"], stored_settings["maxTokens"]) == ({"D": "4"}, 99)


async def test_a_stale_version_is_refused_with_the_current_one(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        path = f"/api/domains/{await rig.domain()}"
        await rig.ok("PATCH", path, {"name": "Two", "version": 1})
        response = await rig.http.patch(path, json={"name": "Three"}, headers={"if-match": '"1"'})
        assert response.status_code == 409
        assert response.json()["error"]["details"] == {"given": 1, "current": 2}
        await rig.ok("PATCH", path, {"name": "Three"}, headers={"if-match": '"2"'})
        assert (await rig.refused("PATCH", path, {}, headers={"if-match": "x"}))[:2] == (422, "VALIDATION_ERROR")


async def test_concurrent_changes_without_a_version_are_all_kept(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        path = f"/api/domains/{await rig.domain()}"

        async def set_variable(name: str) -> None:
            await rig.ok("PATCH", path, {"settings": {"variables": {name: "1"}}})

        names = {f"V{number}" for number in range(16)}
        async with anyio.create_task_group() as clients:
            for name in names:
                clients.start_soon(set_variable, name)
        domain_record = await rig.ok("GET", path)
        assert (set(domain_record["settings"]["variables"]), domain_record["version"]) == (names, 17)


async def test_one_of_several_concurrent_changes_of_a_version_is_kept(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        path = f"/api/domains/{await rig.domain()}"
        statuses: list[int] = []

        async def rename(name: str) -> None:
            statuses.append((await rig.http.patch(path, json={"name": name, "version": 1})).status_code)

        async with anyio.create_task_group() as clients:
            for number in range(5):
                clients.start_soon(rename, f"N{number}")
        assert sorted(statuses) == [200, 409, 409, 409, 409]


@pytest.mark.parametrize("name", ["A\x1b[2J", "A\u202egnp", "A\u2066B", "A\x00", "A\nB", "\u200b\u2060"])
async def test_a_domains_name_with_misleading_characters_is_refused(tmp_path: Path, name: str) -> None:
    async with Rig(tmp_path) as rig:
        path = f"/api/domains/{await rig.domain()}"
        for method, place in (("POST", "/api/domains"), ("PATCH", path)):
            status, code, message = await rig.refused(method, place, {"name": name})
            assert (status, code, message.partition(":")[0]) == (422, "VALIDATION_ERROR", "name")
            assert message.isprintable()
        status, _, message = await rig.refused("PATCH", path, {"description": "a\u202eb"})
        assert (status, message.partition(":")[0]) == (422, "description")


@pytest.mark.parametrize("name", ["نام‌ها", "शक्‍ति", "👩‍⚖️ Law", "Ünïcode – 法律", "שלום\u200e (A)"])
async def test_a_domains_name_can_use_any_script(tmp_path: Path, name: str) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.ok("POST", "/api/domains", {"name": name, "description": "one\n\ttwo"})
        assert (domain["name"], domain["description"]) == (name, "one\n\ttwo")


async def test_a_conversations_title_loses_control_and_bidi_characters(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        conversation = await rig.conversation(title="A\u202e\x1b \n B")
        path = f"/api/conversations/{conversation}"
        assert (await rig.ok("GET", path))["title"] == "A B"
        assert (await rig.ok("PATCH", path, {"title": "\u2067C\x07"}))["title"] == "C"
        assert (await rig.refused("PATCH", path, {"title": "\u202e"}))[:2] == (422, "VALIDATION_ERROR")


MISNAMED: list[tuple[dict[str, Any], str, str]] = [
    ({"variables": {"A B": "x"}}, "settings.variables.A B", "letters, digits and _"),
    ({"variables": {"1A": "x"}}, "settings.variables.1A", "does not begin with a digit"),
    ({"toolPolicy": {"a b": "deny"}}, "settings.toolPolicy.a b", "*"),
    ({"language": "not a language"}, "settings.language", "auto"),
    ({"primaryRoleId": "a b"}, "settings.primaryRoleId", "letters, digits"),
    ({"reranker": "../x y"}, "settings.reranker", "model"),
]


async def test_errors_describe_valid_names_in_words(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        path = f"/api/domains/{await rig.domain()}"
        for settings, place, words in MISNAMED:
            _, _, message = await rig.refused("PATCH", path, {"settings": settings})
            assert message.startswith(f"{place}: ")
            assert words in message
            assert not set("^$") & set(message)
        _, _, message = await rig.refused("PUT", f"{path}/secrets/1-x", {"value": "value-1"})
        assert "letters, digits and _" in message
        assert not set("^$") & set(message)


async def test_built_in_entries_of_a_get_can_be_sent_back_without_documents(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain(subRoleIds=["assistant"])
        path = f"/api/domains/{domain}"
        document = await rig.upload(domain, "a.md", b"# Leave\n\nTwenty days a year.")
        servers = (await rig.ok("GET", path))["settings"]["mcpServers"]
        assert set(servers) == {"promptx", "delegate", "retriever"}
        await rig.ok("DELETE", f"{path}/documents/{document['id']}")
        await rig.ok("PATCH", path, {"settings": {"subRoleIds": None}})
        for method in ("PUT", "PATCH"):
            domain_record = await rig.ok(method, path, {"settings": {"mcpServers": servers}})
            assert set(domain_record["settings"]["mcpServers"]) == {"promptx"}
        servers_to_put = {"retriever": {**servers["retriever"], "enabled": False}}
        assert (await rig.refused("PUT", path, {"settings": {"mcpServers": servers_to_put}}))[0] == 409


async def test_an_unknown_reranker_is_reported_on_saving(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        path = f"/api/domains/{await rig.domain()}"
        patched = await rig.ok("PATCH", path, {"settings": {"reranker": "no/such-model"}})
        assert [note["path"] for note in patched["warnings"]] == ["settings.reranker"]
        assert "no/such-model" in patched["warnings"][0]["text"]
        assert (await rig.ok("PATCH", path, {"name": "Other"}))["warnings"] == []
        created_domain = await rig.ok("POST", "/api/domains", {"name": "N", "settings": {"reranker": "no/such-model"}})
        assert [note["path"] for note in created_domain["warnings"]] == ["settings.reranker"]
        body = {"settings": {"reranker": "Xenova/ms-marco-MiniLM-L-6-v2"}}
        text = (await rig.ok("PATCH", path, body))["warnings"][0]["text"]
        assert "fetch-model Xenova/ms-marco-MiniLM-L-6-v2" in text


@pytest.mark.parametrize("name", ["promptx", "Retriever", " delegate ", "ｐｒｏｍｐｔｘ"])
async def test_a_reserved_name_is_refused_in_any_spelling(tmp_path: Path, name: str) -> None:
    async with Rig(tmp_path, any_command=True) as rig:
        path = f"/api/domains/{await rig.domain()}"
        for method in ("PUT", "PATCH"):
            refusal = await rig.refused(method, path, {"settings": {"mcpServers": {name: STDIO}}})
            assert refusal[:2] == (409, "MCP_SERVER_RESERVED")
        promptx = {**(await rig.ok("GET", path))["settings"]["mcpServers"]["promptx"], "enabled": False}
        body = {"settings": {"mcpServers": {"promptx": promptx}}}
        assert (await rig.refused("PUT", path, body))[:2] == (409, "MCP_SERVER_RESERVED")


BAD_SETTINGS: list[tuple[dict[str, Any], str, str]] = [
    ({"colour": "red"}, "VALIDATION_ERROR", "settings.colour"),
    ({"maxSteps": 0}, "VALIDATION_ERROR", "settings.maxSteps"),
    ({"language": "not a language"}, "VALIDATION_ERROR", "settings.language"),
    ({"toolPolicy": {"*": "perhaps"}}, "VALIDATION_ERROR", "settings.toolPolicy"),
    ({"toolPolicy": {"*": {}}}, "VALIDATION_ERROR", "settings.toolPolicy"),
    ({"toolPolicy": {"*": {"owner": "allow"}}}, "VALIDATION_ERROR", "settings.toolPolicy"),
    ({"mcpServers": {"x": STDIO}}, "MCP_COMMAND_NOT_ALLOWED", "settings.mcpServers.x.command"),
    ({"mcpServers": {"x": {"type": "stdio"}}}, "VALIDATION_ERROR", "settings.mcpServers.x"),
    ({"mcpServers": {"x": {**STDIO, "args": ["{{K}}"]}}}, "VALIDATION_ERROR", "settings.mcpServers.x.args.0"),
    (
        {"mcpServers": {"x": {"type": "http", "url": "http://h"}}},
        "MCP_COMMAND_NOT_ALLOWED",
        "settings.mcpServers.x",
    ),
    ({"mcpServers": []}, "VALIDATION_ERROR", "settings.mcpServers"),
]


async def test_a_bad_setting_is_refused_with_its_path_and_nothing_is_saved(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        path = f"/api/domains/{await rig.domain()}"
        before = await rig.ok("GET", path)
        for settings, code, place in BAD_SETTINGS:
            _, found_code, message = await rig.refused("PATCH", path, {"settings": settings})
            assert (place, found_code) == (place, code)
            assert message.startswith(place)
            assert await rig.ok("GET", path) == before
            assert (await rig.refused("POST", "/api/domains", {"name": "N", "settings": settings}))[1] == code
            assert len((await rig.ok("GET", "/api/domains"))["items"]) == 1


async def test_deleting_a_domain_removes_all_of_it_and_its_folder_only_on_request(tmp_path: Path) -> None:
    async with Rig(tmp_path, any_command=True) as rig:
        for workspace in ("false", "true"):
            domain = await rig.domain()
            await rig.upload(domain, "a.md", b"# Leave\n\nTwenty days a year.")
            conversation = await rig.conversation(domain)
            folder = rig.settings.workspaces / domain
            await rig.ok("DELETE", f"/api/domains/{domain}", params={"workspace": workspace})
            assert (await rig.refused("GET", f"/api/domains/{domain}"))[0] == 404
            assert (await rig.refused("GET", f"/api/conversations/{conversation}"))[0] == 404
            assert folder.exists() is (workspace == "false")
            assert not (rig.settings.index / f"domain_{domain}").exists()


async def test_roles_are_listed_rendered_and_checked(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        path = f"/api/domains/{domain}/roles"
        folder = rig.settings.workspaces / domain / ".promptx" / "resource" / "role"
        folder.mkdir()
        (folder / "clerk.role.md").write_text("<role><principle>\nBe exact. @!thought://nothing\n</principle></role>")
        (folder / "broken.role.md").write_text("<role><principle>")
        roles = {item["id"]: item for item in (await rig.ok("GET", path))["items"]}
        assert roles["clerk"]["source"] == "workspace"
        assert roles["assistant"]["source"] == "builtin"
        clerk = await rig.ok("GET", f"{path}/clerk")
        assert "Be exact." in clerk["text"]
        assert clerk["hash"]
        assert clerk["findings"][0]["line"] == 2
        role = await rig.ok("GET", f"{path}/broken")
        assert role["text"] is None
        assert role["findings"]
        findings = (await rig.ok("GET", f"/api/domains/{domain}/role-findings"))["items"]
        assert {Path(finding["file"]).name for finding in findings} >= {"clerk.role.md", "broken.role.md"}
        for unknown in ("nobody", "..%2F..%2Fetc", "%00"):
            assert (await rig.refused("GET", f"{path}/{unknown}"))[0] == 404
        assert (await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"primaryRoleId": "clerk"}}))[
            "version"
        ] == 2


@pytest.mark.parametrize("strange", [os.mkfifo, Path.touch, lambda place: place.symlink_to("/")])
async def test_a_file_in_place_of_a_folder_causes_a_notice_and_the_turn_continues(
    tmp_path: Path, strange: Callable[[Path], None]
) -> None:
    names = ("documents", ".promptx", "files")
    async with Rig(tmp_path, say("Fine.")) as rig:
        domain = await rig.domain()
        for name in names:
            shutil.rmtree(rig.settings.workspaces / domain / name)
            strange(rig.settings.workspaces / domain / name)
        events = await rig.say(await rig.conversation(domain), "Hi")
        notices = [event["message"] for event in events if event.get("code") == "WORKSPACE_FOLDER_BROKEN"]
        assert [notice.partition(" cannot be used: ")[0] for notice in notices] == list(names)
        assert types_of(events)[-1] == "done"


async def test_a_broken_prompt_component_causes_a_notice_and_the_turn_continues(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Fine.")) as rig:
        domain = await rig.domain()
        prompt = rig.settings.workspaces / domain / "prompt"
        (prompt / "10-identity.md").write_text("You are the clerk of the court.")
        (prompt / "20-rules.md").write_bytes(b"\xff\xfe broken")
        events = await rig.say(await rig.conversation(domain), "Hi")
        assert "PROMPT_COMPONENT_BROKEN" in [event.get("code") for event in events]
        assert types_of(events)[-1] == "done"
        assert "clerk of the court" in str(rig.model.requests[0].system)
