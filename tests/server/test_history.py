"""Changes in a domain are recorded with their author: shown, compared, and reverted by a new change."""

from pathlib import Path
from typing import Any

import pytest

from agentic_rag.store.audit import Entry, append
from tests.access.tenants import bearer, make_key
from tests.backup.making import read_rows
from tests.server.rig import Json, Rig

ROLE = "<role>\n  <personality>\n    {}\n  </personality>\n</role>\n"
SECRET = "a-secret-that-nobody-keeps"
PLACE = ".promptx/resource/role/lawyer/lawyer.role.md"


async def lines(rig: Rig, domain: str, **params: Any) -> list[Json]:
    return list((await rig.ok("GET", f"/api/domains/{domain}/history", params=params))["items"])


async def write_role(rig: Rig, domain: str, words: str, **options: Any) -> None:
    files = [{"kind": "role", "id": "lawyer", "content": ROLE.format(words)}]
    await rig.ok("PUT", f"/api/domains/{domain}/roles/lawyer", {"files": files}, **options)


@pytest.mark.sqlite("reads all rows of the file")
async def test_settings_and_servers_are_compared_and_restored(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain(language="de", variables={"A": "1", "B": "2"})
        path = f"/api/domains/{domain}"
        server = {"type": "http", "url": "https://one.example/mcp", "headers": {"Authorization": SECRET}}
        await rig.ok("PATCH", path, {"settings": {"language": "fr", "retrievalTopK": 9}, "name": "Renamed"})
        await rig.ok("PATCH", path, {"settings": {"mcpServers": {"tools": server}}})
        moved_server = {**server, "url": "https://two.example/mcp", "headers": {"Authorization": {"set": True}}}
        await rig.ok("PATCH", path, {"settings": {"mcpServers": {"tools": moved_server}}})
        await rig.ok("PATCH", path, {"settings": {"retrievalTopK": 9}})  # the same content is no change
        records = await lines(rig, domain)
        assert [(record["kind"], record["subject"], record["author"]) for record in records] == [
            ("server", "tools", "local"),
            ("server", "tools", "local"),
            ("settings", "", "local"),
            ("settings", "", "local"),
        ]
        newest, first, renamed, created = (record["n"] for record in records)
        version = await rig.ok("GET", f"{path}/history/{newest}")
        assert version["before"] == first
        assert version["changes"] == [
            {"path": "url", "before": "https://one.example/mcp", "after": "https://two.example/mcp"}
        ]
        version = await rig.ok("GET", f"{path}/history/{renamed}")
        assert {change["path"] for change in version["changes"]} == {
            "name",
            "settings.language",
            "settings.retrievalTopK",
        }
        back = await rig.ok("GET", f"{path}/history/{created}", params={"against": renamed})
        assert {(change["path"], change["after"]) for change in back["changes"]} >= {("name", "Law")}
        status, code, _ = await rig.refused("GET", f"{path}/history/{created}", params={"against": newest})
        assert (status, code) == (422, "VALIDATION_ERROR")
        await rig.ok("POST", f"{path}/history/{created}/restore")
        domain_now = await rig.ok("GET", path)
        assert (domain_now["name"], domain_now["settings"]["language"]) == ("Law", "de")
        assert domain_now["settings"]["retrievalTopK"] == 5
        assert domain_now["settings"]["mcpServers"]["tools"]["url"] == "https://two.example/mcp", "servers stay"
        await rig.ok("POST", f"{path}/history/{first}/restore")
        tools = (await rig.ok("GET", path))["settings"]["mcpServers"]["tools"]
        assert (tools["url"], tools["headers"]["Authorization"]["set"]) == ("https://one.example/mcp", True)
        await rig.ok("PATCH", path, {"settings": {"mcpServers": {"tools": None}}})
        removal, *_ = await lines(rig, domain, kind="server")
        assert removal["gone"] is True
        status, code, message = await rig.refused("POST", f"{path}/history/{first}/restore")
        assert (status, code, "give the value" in message) == (422, "VALIDATION_ERROR", True), "its secret is gone"
        assert [line["n"] for line in await lines(rig, domain, kind="settings", limit=2)] == [5, 2]
        actions = [row["action"] for row in (await rig.ok("GET", "/api/audit"))["items"]]
        assert actions.count("history.restore") == 2
        rows = read_rows(rig.settings.data / "agentic-rag.db")
    assert SECRET not in repr(rows["history"])
    assert rows["history"]


async def test_files_changed_by_api_and_on_disk_are_recorded_once_with_authors(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        path, workspace = f"/api/domains/{domain}", rig.settings.workspaces / domain
        ann = bearer(await make_key(rig, "ann", "author", domain))
        await rig.ok("PUT", f"{path}/prompt-components/a.md", {"content": "One.\n"}, headers=ann)
        await write_role(rig, domain, "Calm.", headers=ann)
        (workspace / "prompt" / "a.md").write_text("Two.\n")
        (workspace / PLACE).write_text(ROLE.format("Quick."))
        (workspace / "prompt" / "none.md").write_bytes(b"\xff\xfe no text")
        await lines(rig, domain)
        changes = [(line["kind"], line["subject"], line["author"]) for line in await lines(rig, domain)]
        assert changes[:4] == [
            ("role", PLACE, "disk"),
            ("prompt", "a.md", "disk"),
            ("role", PLACE, "ann"),
            ("prompt", "a.md", "ann"),
        ]
        assert len(changes) == 5
        (workspace / "prompt" / "a.md").unlink()
        newest, *_ = await lines(rig, domain)
        assert (newest["gone"], newest["author"], newest["subject"]) == (True, "disk", "a.md")
        version = await rig.ok("GET", f"{path}/history/{newest['n']}")
        assert version["lines"].splitlines()[1:] == ["-Two."]
        # a model wrote it in a turn of ann, as the audit log says
        audit_entry = Entry("ann", "role.write", f"{domain}/lawyer")
        await rig.application.database.write(lambda conn: append(conn, audit_entry), durable=True)
        (workspace / PLACE).write_text(ROLE.format("Written by a model."))
        newest, *_ = await lines(rig, domain)
        assert (newest["author"], newest["subject"]) == ("ann", PLACE)
        count = len(await lines(rig, domain))
    (workspace / "prompt" / "b.md").write_text("While nobody served.\n")
    async with Rig(tmp_path) as rig:
        key = bearer(rig.application.access.local_key)
        answer = (await rig.http.get(f"{path}/history", headers=key)).json()["items"]
        assert len(answer) == count + 1
        assert (answer[0]["author"], answer[0]["subject"]) == ("disk", "b.md")
        assert (await rig.http.get(f"{path}/history", headers=key)).json()["items"] == answer


async def test_a_missing_workspace_is_not_recorded_as_a_deletion(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        await rig.ok("PUT", f"/api/domains/{domain}/prompt-components/a.md", {"content": "One.\n"})
        before = await lines(rig, domain)
        workspace = rig.settings.workspaces / domain
        workspace.rename(tmp_path / "away")
        assert await lines(rig, domain) == before
        (tmp_path / "away").rename(workspace)
        assert await lines(rig, domain) == before


@pytest.mark.sqlite("reads all rows of the file")
async def test_components_and_roles_are_restored_through_the_same_checks(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        path, workspace = f"/api/domains/{domain}", rig.settings.workspaces / domain
        await rig.ok("PUT", f"{path}/secrets/TOKEN", {"value": SECRET})
        for words in ("One.\n", "Two.\n"):
            await rig.ok("PUT", f"{path}/prompt-components/a.md", {"content": words})
            await write_role(rig, domain, words.strip())
        one_role, one_text = (await lines(rig, domain))[2:4]
        await rig.ok("POST", f"{path}/history/{one_role['n']}/restore")
        await rig.ok("POST", f"{path}/history/{one_text['n']}/restore")
        assert (workspace / PLACE).read_text() == ROLE.format("One.")
        assert (workspace / "prompt" / "a.md").read_text() == "One.\n"
        assert [line["author"] for line in await lines(rig, domain, limit=2)] == ["local", "local"]
        await rig.ok("DELETE", f"{path}/roles/lawyer")
        removal, *_ = await lines(rig, domain)
        assert removal["gone"] is True
        await rig.ok("POST", f"{path}/history/{one_role['n']}/restore")
        assert (workspace / PLACE).read_text() == ROLE.format("One.")
        await rig.ok("POST", f"{path}/history/{removal['n']}/restore")
        assert not (workspace / PLACE).exists()
        (workspace / PLACE).parent.mkdir(parents=True, exist_ok=True)
        (workspace / PLACE).write_text("<role>\n  <personality>\n  never closed")
        broken_version, *_ = await lines(rig, domain)
        await write_role(rig, domain, "Whole.")
        status, code, message = await rig.refused("POST", f"{path}/history/{broken_version['n']}/restore")
        assert (status, code, "never closed" in message) == (422, "VALIDATION_ERROR", True)
        (workspace / "prompt" / "a.md").write_text(f"Use {SECRET}.\n")
        redacted_version, *_ = await lines(rig, domain)
        assert redacted_version["redacted"] is True
        assert SECRET not in str(await rig.ok("GET", f"{path}/history/{redacted_version['n']}"))
        status, code, message = await rig.refused("POST", f"{path}/history/{redacted_version['n']}/restore")
        assert (status, "a secret stood in it" in message) == (422, True)
        rows = read_rows(rig.settings.data / "agentic-rag.db")
    assert SECRET not in repr(rows["history"])


async def test_authors_see_prompts_and_roles_admins_everything_and_members_nothing(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain, other_domain = await rig.domain(), await rig.domain()
        path = f"/api/domains/{domain}/history"
        await rig.ok("PUT", f"/api/domains/{domain}/prompt-components/a.md", {"content": "One.\n"})
        keys = {role: bearer(await make_key(rig, role, role, domain)) for role in ("member", "author", "admin")}
        keys["stranger"] = bearer(await make_key(rig, "eve", "admin", other_domain))
        kinds: dict[str, Any] = {}
        for role, headers in keys.items():
            answer = await rig.http.get(path, headers=headers)
            kinds[role] = answer.status_code
            if answer.status_code == 200:
                kinds[role] = {item["kind"] for item in answer.json()["items"]}
        assert kinds == {"member": 403, "author": {"prompt"}, "admin": {"prompt", "settings"}, "stranger": 404}
        for place, method in ((f"{path}/1", "GET"), (f"{path}/1/restore", "POST")):
            assert (await rig.http.request(method, place, headers=keys["author"])).status_code == 404
            assert (await rig.http.request(method, place, headers=keys["member"])).status_code == 403
        assert (await rig.http.get(f"{path}/1", headers=keys["admin"])).status_code == 200
        assert (await rig.http.post(f"{path}/2/restore", headers=keys["author"])).status_code == 204


@pytest.mark.parametrize("number", ["0", "99", "-1", "1e3", "x", "٣", "9" * 40])
async def test_an_unknown_number_is_not_found(tmp_path: Path, number: str) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        assert (await rig.refused("GET", f"/api/domains/{domain}/history/{number}"))[0] == 404


async def test_an_erased_user_is_a_number_in_the_history(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        headers = bearer(await make_key(rig, "ann", "admin", domain))
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"language": "fr"}}, headers=headers)
        operator = bearer(await make_key(rig, "root", "operator"))
        assert (await rig.ok("GET", f"/api/domains/{domain}/history", headers=operator))["items"][0]["author"] == "ann"
        number = await rig.application.services.erasure.erase("ann")
        records = (await rig.ok("GET", f"/api/domains/{domain}/history", headers=operator))["items"]
        assert records[0]["author"] == f"#{number}"
        assert "ann" not in {record["author"] for record in records}
