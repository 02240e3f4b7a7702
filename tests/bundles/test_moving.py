"""A domain is exported as a bundle and imported again: complete, with the same bytes the second time, and no secret."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentic_rag.access.users import LOCAL
from agentic_rag.commands.doctor import examine
from agentic_rag.store.endpoints import MAX_ENDPOINTS
from agentic_rag.store.schedules import MAX_SCHEDULES
from agentic_rag.store.sources import MAX_SOURCES
from tests.access.tenants import bearer, make_key
from tests.server.rig import Rig

from .making import (
    BROKEN_ROLE,
    DOCUMENTS,
    ROLE,
    TOKEN,
    ZIP,
    bring,
    bring_over,
    export,
    fill,
    members_of,
    pack,
    plain,
    remember,
)


async def test_an_imported_bundle_exports_the_same_bytes(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.application.begin()
        domain = await fill(rig)
        data = await export(rig, domain, memories="true")
        members = members_of(data)
        assert next(iter(members)) == "bundle.json"
        assert {name: members[f"documents/{name}"] for name in DOCUMENTS} == DOCUMENTS
        assert members["roles/role/lawyer/lawyer.role.md"].decode() == ROLE
        assert members["prompt/01-tone.md"] == b"Be calm.\n"
        assert members["skills/sums/SKILL.md"].startswith(b"---")
        assert json.loads(members["memories/law.json"])["engrams"][0]["content"] == "The pump was new in 2020."
        manifest = json.loads(members["domain.json"])
        assert (manifest["name"], manifest["settings"]["language"]) == ("Law", "de")
        text = data.decode("latin-1")
        assert TOKEN not in text
        assert "team-secret-value" not in text
        assert domain not in text
        imported = await bring(rig, data)
        assert imported["withheld"] == []
        assert [(secret["name"], secret["state"]) for secret in imported["secrets"]] == [
            ("TEAM", "missing"),
            ("TOOLS_AUTHORIZATION", "missing"),
        ]
        assert json.loads(members["bundle.json"])["secrets"] == [
            {"name": secret["name"], "server": secret["server"]} for secret in imported["secrets"]
        ]
        copy = imported["domainId"]
        await rig.taken_up(copy)
        items = (await rig.ok("GET", f"/api/domains/{copy}/documents"))["items"]
        assert {(item["name"], item["status"]) for item in items} == {(name, "indexed") for name in DOCUMENTS}
        domain_view = await rig.ok("GET", f"/api/domains/{copy}")
        assert domain_view["settings"]["primaryRoleId"] == "lawyer"
        assert domain_view["settings"]["mcpServers"]["tools"]["headers"]["X-Team"] == "${TEAM}"
        assert (await rig.ok("GET", f"/api/domains/{copy}/memories"))["total"] == 1
        assert await export(rig, copy, memories="true") == data
        assert await export(rig, copy) == await export(rig, domain)
        assert [skill["name"] for skill in (await rig.ok("GET", f"/api/domains/{copy}/skills"))["items"]] == ["sums"]
        changes = (await rig.ok("GET", f"/api/domains/{copy}/history"))["items"]
        assert {change["author"] for change in changes} == {"local"}
        assert {change["kind"] for change in changes} == {"settings", "server", "prompt", "role"}
        actions = [row["action"] for row in (await rig.ok("GET", "/api/audit"))["items"]]
        assert {"domain.export", "domain.import"} <= set(actions)
        assert not any((rig.settings.data / "imports").iterdir())
    assert await examine(rig.settings, False) == []


async def test_a_dry_run_reports_its_changes_and_makes_none(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await fill(rig)
        data = await export(rig, domain)
        before = sorted(path.name for path in rig.settings.workspaces.iterdir())
        preview = await bring(rig, data, dryRun="true", name="Another")
        assert (preview["domainId"], preview["name"], preview["dryRun"]) == (None, "Another", True)
        differences = {
            (difference["kind"], difference["subject"], difference["action"]) for difference in preview["differences"]
        }
        assert ("document", "pump.md", "add") in differences
        assert ("role", "role/lawyer/lawyer.role.md", "add") in differences
        assert ("setting", "language", "add") in differences
        assert ("server", "tools", "add") in differences
        assert len((await rig.ok("GET", "/api/domains"))["items"]) == 1
        assert sorted(path.name for path in rig.settings.workspaces.iterdir()) == before
        files = {"file": ("x.zip", data)}
        response = await rig.http.post("/api/bundles", files=files, params={"name": "Named"})
        assert response.status_code == 201, response.text
        assert response.json()["name"] == "Named"


async def test_an_import_over_a_domain_previews_its_changes_and_keeps_the_rest(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.application.begin()
        domain = await fill(rig)
        await rig.ok("PUT", f"/api/domains/{domain}/prompt-components/02-own.md", {"content": "Mine.\n"})
        members = members_of(await export(rig, domain))
        members["prompt/01-tone.md"] = b"Be brief.\n"
        members["documents/pump.md"] = b"# Pump\n\nIt holds 5 litres.\n"
        members["documents/new/gauge.md"] = b"# Gauge\n\nIt shows bars.\n"
        del members["prompt/02-own.md"]
        manifest = json.loads(members["domain.json"])
        manifest["settings"]["language"] = "fr"
        members["domain.json"] = json.dumps(manifest).encode()
        data = pack(members)
        version = (await rig.ok("GET", f"/api/domains/{domain}"))["version"]
        preview = await bring_over(rig, domain, data, dryRun="true")
        differences = {(difference["kind"], difference["subject"]): difference for difference in preview["differences"]}
        assert {place: difference["action"] for place, difference in differences.items()} == {
            ("setting", "language"): "change",
            ("prompt", "01-tone.md"): "change",
            ("prompt", "02-own.md"): "keep",
            ("document", "pump.md"): "change",
            ("document", "new/gauge.md"): "add",
        }
        assert (differences["setting", "language"]["before"], differences["setting", "language"]["after"]) == (
            "de",
            "fr",
        )
        assert differences["prompt", "01-tone.md"]["lines"].splitlines()[1:] == ["-Be calm.", "+Be brief."]
        assert (await rig.ok("GET", f"/api/domains/{domain}"))["version"] == version
        report = await bring_over(rig, domain, data)
        assert report["differences"] == preview["differences"]
        await rig.taken_up(domain)
        texts = {
            component["name"]: component["content"]
            for component in (await rig.ok("GET", f"/api/domains/{domain}/prompt-components"))["items"]
        }
        assert texts == {"01-tone.md": "Be brief.\n", "02-own.md": "Mine.\n"}
        items = (await rig.ok("GET", f"/api/domains/{domain}/documents"))["items"]
        assert {item["name"] for item in items} == {*DOCUMENTS, "gauge.md"}
        domain_view = await rig.ok("GET", f"/api/domains/{domain}")
        assert domain_view["settings"]["language"] == "fr"
        assert domain_view["settings"]["mcpServers"]["tools"]["headers"]["Authorization"]["set"] is True, (
            "it stays sealed"
        )
        assert (await bring_over(rig, domain, data))["differences"] == [
            {"kind": "prompt", "subject": "02-own.md", "action": "keep"}
        ]
        removal = await bring_over(rig, domain, data, removeOthers="true")
        assert [difference["action"] for difference in removal["differences"]] == ["remove"]
        assert members_of(await export(rig, domain)).keys() == members_of(data).keys()
    assert await examine(rig.settings, False) == []


async def test_an_import_that_removes_others_deletes_files_and_records(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.application.begin()
        domain = await fill(rig)
        data = pack(plain())
        report = await bring_over(rig, domain, data, removeOthers="true")
        assert {difference["action"] for difference in report["differences"]} == {"remove"}
        assert (await rig.ok("GET", f"/api/domains/{domain}/documents"))["items"] == []
        domain_view = await rig.ok("GET", f"/api/domains/{domain}")
        assert (domain_view["name"], domain_view["settings"]["language"]) == ("Law", "auto")
        assert domain_view["settings"]["primaryRoleId"] == "assistant"
        assert set(members_of(await export(rig, domain))) == {"bundle.json", "domain.json", "mcp-servers.json"}
    assert await examine(rig.settings, False) == []


async def test_secrets_are_bound_to_other_servers_only_on_request(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await fill(rig)
        evil = {"type": "http", "url": "https://evil.example/mcp", "headers": {"X": "${TEAM}"}}
        cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
            ({"evil": evil}, {}, "evil"),
            ({"tools": {**evil, "headers": {"Authorization": "${TOOLS_AUTHORIZATION}"}}}, {}, "tools"),
            ({}, {"variables": {"HOST": "evil.example"}}, "tools"),
        ]
        for servers, settings, guilty in cases:
            data = pack(plain(servers=servers, **settings))
            place = f"/api/domains/{domain}/bundle"
            before = await rig.ok("GET", f"/api/domains/{domain}")
            status, code, message = await rig.refused("POST", place, content=data, headers=ZIP)
            assert (status, code) == (409, "BUNDLE_BINDS_SECRETS")
            assert f"bind={guilty}" in message
            assert TOKEN not in message
            assert await rig.ok("GET", f"/api/domains/{domain}") == before
            preview = await bring_over(rig, domain, data, dryRun="true")
            if servers and guilty == "evil":
                assert ("TEAM", "evil", "confirm") in [tuple(secret.values()) for secret in preview["secrets"]]
        moved_bundle = pack(plain(servers={"evil": evil}))
        report = await bring_over(rig, domain, moved_bundle, bind="evil")
        assert ("TEAM", "evil", "set") in [tuple(secret.values()) for secret in report["secrets"]]


async def test_a_bundle_that_claims_a_secret_is_set_is_refused(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await fill(rig)
        tools = {"type": "http", "url": "https://evil.example/mcp", "headers": {"Authorization": {"set": True}}}
        data = pack(plain(servers={"tools": tools}))
        answer = await rig.refused("POST", f"/api/domains/{domain}/bundle", content=data, headers=ZIP)
        assert answer[:2] == (422, "BUNDLE_REFUSED")


async def test_an_imported_command_line_without_permission_is_disabled_and_reported(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        servers = {"run": {"command": "/usr/bin/env", "args": ["sh", "-c", "touch /tmp/ran"]}}
        imported = await bring(rig, pack(plain(servers=servers)))
        assert [server["server"] for server in imported["withheld"]] == ["run"]
        domain = imported["domainId"]
        server_settings = (await rig.ok("GET", f"/api/domains/{domain}"))["settings"]["mcpServers"]["run"]
        assert server_settings["enabled"] is False
        change = {"settings": {"mcpServers": {"run": {**server_settings, "enabled": True}}}}
        assert (await rig.refused("PATCH", f"/api/domains/{domain}", change))[1] == "MCP_COMMAND_NOT_ALLOWED"


async def test_an_import_notes_server_specific_parts_and_keeps_roles_unchanged(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        rig.application.begin()
        members = plain(primaryRoleId="nobody", language="de")
        members["roles/broken.role.md"] = BROKEN_ROLE.encode()
        members["documents/strange.xyz"] = b"\0\1\2"
        members["documents/broken.pdf"] = b"%PDF-1.7 no more"
        imported = await bring(rig, pack(members))
        notes = {note["path"].partition(":")[0]: note["text"] for note in imported["findings"]}
        assert "'nobody'" in notes["settings.primaryRoleId"]
        assert any(path.endswith("broken.role.md") for path in notes)
        domain = imported["domainId"]
        await rig.taken_up(domain)
        items = (await rig.ok("GET", f"/api/domains/{domain}/documents"))["items"]
        assert {item["status"] for item in items} == {"failed"}
        assert all(item["error"]["message"] for item in items)
        assert (await rig.ok("GET", f"/api/domains/{domain}"))["settings"]["language"] == "de"
    assert await examine(rig.settings, False) == []


async def test_only_admins_export_and_only_operators_create_domains(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        data = await export(rig, domain)
        keys = {role: await make_key(rig, role, role, domain) for role in ("member", "author", "admin")}
        path = f"/api/domains/{domain}/bundle"
        for role, key in keys.items():
            headers = {**bearer(key), **ZIP}
            status = 200 if role == "admin" else 403
            assert (await rig.http.get(path, headers=headers)).status_code == status
            assert (await rig.http.post(path, headers=headers, content=data)).status_code == status
            assert (await rig.http.post("/api/bundles", headers=headers, content=data)).status_code == 403


async def test_unportable_names_are_changed_in_a_bundle(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.application.begin()
        domain = await rig.domain()
        folder = rig.settings.workspaces / domain / "documents"
        for number, name in enumerate(("a.md", "A.md", "b\\c.md", "deep/d\u200b.md")):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(f"# {number}\n\nSome text.\n")
        await rig.ok("POST", f"/api/domains/{domain}/documents/rescan")
        data = await export(rig, domain)
        names = sorted(name for name in members_of(data) if name.startswith("documents/"))
        assert names == ["documents/A.md", "documents/a (2).md", "documents/b_c.md", "documents/deep/d_.md"]
        copy = (await bring(rig, data))["domainId"]
        assert await export(rig, copy) == data


async def test_roles_whose_names_differ_only_in_case_are_all_moved(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.application.begin()
        domain = await rig.domain()
        folder = rig.settings.workspaces / domain / ".promptx" / "resource"
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("clerk.role.md", "Clerk.role.md", "e\u0301.thought.md", "\xe9.thought.md"):
            kind = name.split(".")[1]
            tag = "personality" if kind == "role" else "reasoning"
            (folder / name).write_text(f"<{kind}><{tag}>I am {name!a}.</{tag}></{kind}>\n")
        data = await export(rig, domain)
        names = sorted(name for name in members_of(data) if name.startswith("roles/"))
        second = "roles/\xe9-2.thought.md"
        assert names == ["roles/Clerk.role.md", "roles/clerk-2.role.md", "roles/e\u0301.thought.md", second]
        copy = (await bring(rig, data))["domainId"]
        roles = (await rig.ok("GET", f"/api/domains/{copy}/roles"))["items"]
        assert {"Clerk", "clerk-2"} <= {role["id"] for role in roles}
        assert await export(rig, copy) == data
        assert (await bring_over(rig, domain, data, dryRun="true"))["differences"] == []


@pytest.mark.parametrize("roles", [("clerk", "Clerk"), ("clerk",)])
async def test_roles_whose_names_differ_only_in_case_have_separate_memories(
    tmp_path: Path, roles: tuple[str, ...]
) -> None:
    async with Rig(tmp_path) as rig:
        rig.application.begin()
        domain = await rig.domain()
        workspace = rig.settings.workspaces / domain
        folder = workspace / ".promptx" / "resource"
        folder.mkdir(parents=True, exist_ok=True)
        for role in ("clerk", "Clerk"):
            (folder / f"{role}.role.md").write_text(f"<role><personality>I am {role}.</personality></role>\n")
        for role in roles:
            remember(workspace, role)
        data = await export(rig, domain, memories="true")
        copy = (await bring(rig, data))["domainId"]
        page = await rig.ok("GET", f"/api/domains/{copy}/memories")
        assert sorted(page["roles"]) == sorted(role.replace("clerk", "clerk-2") for role in roles)
        assert await export(rig, copy, memories="true") == data
        await bring_over(rig, domain, data)
        page = await rig.ok("GET", f"/api/domains/{domain}/memories")
        assert (sorted(page["roles"]), page["total"]) == (sorted(roles), len(roles))


async def test_a_repacked_bundle_is_the_same_domain(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await fill(rig)
        data = await export(rig, domain)
        members = members_of(data)
        for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            buffer = io.BytesIO()
            with zipfile.ZipFile(buffer, "w", compression) as archive:
                for folder in sorted({f"{name.rpartition('/')[0]}/" for name in members if "/" in name}):
                    archive.writestr(folder, b"")  # as other programs write a folder
                for name, content in members.items():
                    archive.writestr(name, content)
            copy = (await bring(rig, buffer.getvalue()))["domainId"]
            await rig.taken_up(copy)
            assert await export(rig, copy) == data, compression


async def test_an_import_without_space_at_its_end_is_ended_by_the_next_scan(tmp_path: Path) -> None:
    full = {"bundle.file": True}

    def fill_up(place: str) -> None:
        if full.get(place):
            raise OSError(28, "No space left on device")

    async with Rig(tmp_path, failpoint=fill_up) as rig:
        domain = await fill(rig)
        members = members_of(await export(rig, domain))
        members |= {"prompt/01-tone.md": b"Be brief.\n", "prompt/02-more.md": b"And kind.\n"}
        place = f"/api/domains/{domain}/bundle"
        answer = await rig.refused("POST", place, content=pack(members), headers=ZIP)
        assert answer[:2] == (507, "STORAGE_FULL")
        await rig.application.services.imports.resume()
        full.clear()
        await rig.application.services.imports.resume()
        assert members_of(await export(rig, domain)).items() >= {"prompt/02-more.md": b"And kind.\n"}.items()
        assert not any((rig.settings.data / "imports").iterdir())
    assert await examine(rig.settings, False) == []


async def test_a_link_in_the_target_folder_is_reported_before_any_change(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await fill(rig)
        data = pack({**plain(language="fr"), "prompt/new.md": b"New.\n", "documents/deep/a.md": b"# A\n\nText.\n"})
        (tmp_path / "elsewhere").mkdir()
        (rig.settings.workspaces / domain / "documents" / "deep").symlink_to(tmp_path / "elsewhere")
        answer = await rig.refused("POST", f"/api/domains/{domain}/bundle", content=data, headers=ZIP)
        assert answer[:2] == (409, "WORKSPACE_REFUSED")
        assert (await rig.ok("GET", f"/api/domains/{domain}"))["settings"]["language"] == "de"
        names = [
            component["name"]
            for component in (await rig.ok("GET", f"/api/domains/{domain}/prompt-components"))["items"]
        ]
        assert names == ["01-tone.md"]
        assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_a_file_that_changes_during_an_export_leaves_no_complete_bundle(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await fill(rig)
        bundle = await rig.application.services.exports.prepare(LOCAL, domain, memories=False)
        (rig.settings.workspaces / domain / "documents" / "pump.md").write_bytes(b"# Pump\n\nIt holds 9 litres.\n")
        content = b"".join([piece async for piece in bundle.pieces()])
        assert len(content) < bundle.contents.size
        assert not zipfile.is_zipfile(io.BytesIO(content))


async def test_a_secret_in_a_users_text_is_not_sent_and_stays_in_the_text(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.application.begin()
        domain = await fill(rig)
        secret = "team-secret-value"
        text = f"Say {secret}.\n"
        await rig.ok("PUT", f"/api/domains/{domain}/prompt-components/02-said.md", {"content": text})
        settings = {"expertise": f"Knows {secret}.", "variables": {"HOST": "tools.example", "SAID": secret}}
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": settings})
        (rig.settings.workspaces / domain / "skills" / "sums" / "more.md").write_bytes(b"\xff " + secret.encode())
        data = await export(rig, domain, memories="true")
        assert secret.encode() not in data
        members = members_of(data)
        assert members["prompt/02-said.md"] == b"Say [secret TEAM].\n"
        assert members["skills/sums/more.md"] == b"\xff [secret TEAM]"
        report = await bring_over(rig, domain, data)
        assert {difference["kind"] for difference in report["differences"]} == {"memory"}
        manifest = json.loads(members["domain.json"])
        manifest["settings"]["variables"]["HOST"] = "other.example"
        members["domain.json"] = json.dumps(manifest).encode()
        await bring_over(rig, domain, pack(members), removeOthers="true", bind="tools")
        stored_settings = await rig.application.services.directory.settings(domain)
        assert stored_settings.variables == {"HOST": "other.example", "SAID": secret}
        items = (await rig.ok("GET", f"/api/domains/{domain}/prompt-components"))["items"]
        assert (rig.settings.workspaces / domain / "prompt" / "02-said.md").read_text() == text
        assert {item["name"] for item in items} == {"01-tone.md", "02-said.md"}


async def test_a_bundle_of_the_former_zip_writer_is_imported_with_the_same_files(tmp_path: Path) -> None:
    """``own_zip_writer.zip`` was exported before `zipfile` wrote the bundles."""
    data = await anyio.Path(__file__).parent.joinpath("data", "own_zip_writer.zip").read_bytes()
    async with Rig(tmp_path) as rig:
        rig.application.begin()
        imported = await bring(rig, data)
        await rig.taken_up(imported["domainId"])
        second_export = await export(rig, imported["domainId"], memories="true")
        assert members_of(second_export) == members_of(data)


async def test_a_bundle_adds_notifications_up_to_the_limits_of_a_domain(tmp_path: Path) -> None:
    endpoint = {"channel": "webhook", "events": ["turn.failed"]}
    schedule = {"cron": "0 6 * * *", "prompt": "Hi"}
    source = {"website": {"urls": ["https://example.org/"]}}
    bundled = {
        noun: [{"name": f"{noun} {number}", **fields} for number in range(limit)]
        for noun, fields, limit in (
            ("endpoints", endpoint, MAX_ENDPOINTS + 1),
            ("schedules", schedule, MAX_SCHEDULES + 1),
            ("sources", source, MAX_SOURCES + 1),
        )
    }
    data = pack({**plain(), "notifications.json": json.dumps(bundled).encode()})
    async with Rig(tmp_path) as rig:
        existing = await rig.domain()
        hook = {"name": "Mine", "url": "https://hooks.invalid/", "events": ["turn.failed"]}
        await rig.ok("POST", f"/api/domains/{existing}/endpoints", hook)
        for domain, left_out in ((None, 3), (existing, 4)):
            report = await (bring(rig, data) if domain is None else bring_over(rig, domain, data))
            notes = [note for note in report["findings"] if "is left out: a domain has at most" in str(note)]
            assert len(notes) == left_out
            path = f"/api/domains/{report['domainId']}"
            counts = [len((await rig.ok("GET", f"{path}/{noun}"))["items"]) for noun in bundled]
            assert counts == [MAX_ENDPOINTS, MAX_SCHEDULES, MAX_SOURCES]
