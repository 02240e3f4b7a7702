"""The audit log records changes, denied calls and refused entries."""

import sys
from pathlib import Path

import anyio.to_thread
from typer.testing import CliRunner

from agentic_rag.access.acts import Acts, act
from agentic_rag.commands.mcp import mcp_app
from agentic_rag.store.audit import page
from agentic_rag.store.database import Database
from agentic_rag.testing.steps import Step, Use, say
from tests.access.tenants import as_operator, audited, bearer, make_key
from tests.databases import database_at
from tests.server.rig import Rig


async def test_every_admin_change_is_reported_with_actor_and_field_but_no_value(tmp_path: Path) -> None:
    async with Rig(tmp_path, requests_per_second=10_000) as rig:
        domain = await rig.domain()
        key = await make_key(rig, "ann", "admin", domain)
        rig.http.headers.update(bearer(key))
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"expertise": "The plan is hidden."}})
        await rig.ok("PUT", f"/api/domains/{domain}/secrets/TOKEN", {"value": "swordfish-swordfish"})
        document = await rig.upload(domain, "a.md", b"# A\n\nText.")
        await rig.ok("POST", f"/api/domains/{domain}/documents/rescan")
        await rig.ok("DELETE", f"/api/domains/{domain}/documents/{document['id']}")
        as_operator(rig)
        await rig.ok("DELETE", f"/api/domains/{domain}")
        rows = await audited(rig, outcome="done")
        entries = [(row["actor"], row["action"]) for row in reversed(rows)]
        creations = [("local", "domain.create"), ("local", "user.create"), ("local", "key.create")]
        assert entries[:4] == [*creations, ("ann", "domain.update")]
        assert ("ann", "document.create") in entries
        assert ("ann", "document.delete") in entries
        assert ("ann", "POST /api/domains/{domain}/documents/rescan") in entries
        assert any(actor == "ann" and "secret" in action for actor, action in entries)
        assert entries[-1] == ("local", "domain.delete")
        assert not any(word in str(rows) for word in ("hidden", "swordfish", key))


async def test_a_row_is_redacted_before_it_is_hashed_but_keeps_the_ids(tmp_path: Path) -> None:
    async with Rig(tmp_path, requests_per_second=10_000) as rig:
        domain, other_domain = await rig.domain(), await rig.domain()
        rig.http.headers.update(bearer(await make_key(rig, "ann", "admin", domain)))
        for name, value in {"TOKEN": "swordfish-swordfish", "HIDDEN": domain, "ACTION": "document.create"}.items():
            await rig.ok("PUT", f"/api/domains/{domain}/secrets/{name}", {"value": value})
        document = await rig.upload(domain, "swordfish-swordfish.md", b"# A\n\nText.")
        await rig.ok("DELETE", f"/api/domains/{domain}/documents/{document['id']}")
        as_operator(rig)
        await rig.upload(other_domain, "swordfish-swordfish.md", b"# B\n\nText.")
        rows = await audited(rig)
        assert "swordfish" not in str([row for row in rows if domain in row["target"]])
        created, deleted = (
            next(row for row in rows if row["action"] == action and domain in row["target"])
            for action in ("document.create", "document.delete")
        )
        assert created["target"] == deleted["target"] == f"{domain}/{document['id']}"
        assert "TOKEN" in created["details"]["name"]
        assert "swordfish-swordfish.md" in str([row for row in rows if other_domain in row["target"]])
        assert (await rig.ok("GET", "/api/audit/verify"))["intact"] is True


async def test_changes_of_roles_and_collections_are_reported_once_by_name(tmp_path: Path) -> None:
    role = {"kind": "role", "id": "clerk", "content": "<role><personality>Counts.</personality></role>"}
    async with Rig(tmp_path, requests_per_second=10_000) as rig:
        domain = await rig.domain()
        path = f"/api/domains/{domain}"
        rig.http.headers.update(bearer(await make_key(rig, "ann", "admin", domain)))
        await rig.upload(domain, "a.md", b"# A\n\nText.")
        await rig.ok("PUT", f"{path}/roles/clerk", {"files": [role]})
        assert (await rig.refused("PUT", f"{path}/roles/clerk", {"files": [{**role, "content": "half"}]}))[0] == 422
        await rig.ok("DELETE", f"{path}/roles/clerk")
        await rig.ok("POST", f"{path}/reindex", {})
        assert (await rig.reindexed(domain))["state"] == "ready"
        await rig.ok("POST", f"{path}/reindex", {"rollback": True})
        rows = await audited(rig, actor="ann", outcome="done")
        assert [(row["action"], row["target"]) for row in reversed(rows)][1:] == [
            ("role.write", f"{domain}/clerk"),
            ("role.delete", f"{domain}/clerk"),
            ("collection.rebuild", domain),
            ("collection.rollback", domain),
        ]
        assert rows[-2]["details"]["files"] == [".promptx/resource/role/clerk/clerk.role.md"]


async def test_a_denied_tool_call_is_audited_and_the_turn_continues(tmp_path: Path) -> None:
    calls = Step((Use("promptx_discover", {}),))
    async with Rig(tmp_path, calls, say("Without it then.")) as rig:
        domain = await rig.domain(toolPolicy={"promptx_discover": "deny"})
        conversation = await rig.conversation(domain)
        events = await rig.say(conversation, "Look around")
        assert [event["status"] for event in events if event["type"] == "tool_result"] == ["denied"]
        assert events[-1]["type"] == "done"
        (row,) = await audited(rig, outcome="denied")
        assert (row["actor"], row["action"], row["target"]) == ("local", "tool.call", "promptx_discover")
        assert row["details"]["conversationId"] == conversation


async def test_a_refused_mcp_entry_is_audited(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        entry = {"x": {"command": "bash", "args": ["-c", "id"]}}
        refusal = await rig.refused("PATCH", f"/api/domains/{domain}", {"settings": {"mcpServers": entry}})
        assert refusal[:2] == (422, "MCP_COMMAND_NOT_ALLOWED")
        (row,) = await audited(rig, outcome="refused")
        assert (row["action"], row["details"]["code"]) == ("PATCH /api/domains/{domain}", "MCP_COMMAND_NOT_ALLOWED")


async def test_command_line_actions_beside_a_server_are_audited(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        folder = rig.application.settings.data

        def type_in(*words: str) -> str:
            result = CliRunner().invoke(mcp_app, [words[0], "--data", str(folder), *words[1:]])
            assert result.exit_code == 0, result.output
            return str(result.stdout)

        output = await anyio.to_thread.run_sync(
            type_in, "allow", "--network", "--env", "TOKEN", "--", sys.executable, "-I", str(Path(__file__))
        )
        ident = output.removeprefix("allowed ").partition(":")[0]
        await anyio.to_thread.run_sync(type_in, "revoke", ident)
        entries = [(row["actor"], row["action"], row["target"], row["details"]) for row in await audited(rig)]
        assert entries[:2] == [
            ("local", "mcp.revoke", ident, {"by": "command line"}),
            (
                "local",
                "mcp.allow",
                ident,
                {"network": True, "readOnly": [], "env": ["TOKEN"], "read": 0, "by": "command line"},
            ),
        ]
        assert [row["action"] for row in await audited(rig)].count("mcp.allow") == 1


async def test_offline_actions_are_audited_in_order_and_invalid_notes_set_aside(tmp_path: Path) -> None:
    acts = Acts(tmp_path)
    for name in ("one", "two"):
        acts.leave(act("mcp.revoke", name))
    (tmp_path / "acts" / "act_0.json").write_text("{half")
    database = await Database.open(database_at(tmp_path / "test.db"))
    try:
        assert [await acts.take_in(database) for _ in range(2)] == [2, 0]
        rows = await database.read(lambda conn: page(conn, 10))
    finally:
        await database.aclose()
    assert [row.target for row in rows] == ["two", "one"]
    assert [path.name for path in (tmp_path / "acts").iterdir()] == ["act_0.damaged"]
