"""Backups over REST: a separate process writes and verifies them, reports progress, and leaves nothing if stopped."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import anyio

from agentic_rag.backup.backups_folder import FOLDER
from tests.access.tenants import audited, bearer, make_key
from tests.server.rig import Json, Rig
from tests.waiting import pause


async def wait_until(rig: Rig, condition: Callable[[Json], Any]) -> Json:
    """Return the list of backups once a condition holds."""
    with anyio.fail_after(240):
        checks = count()
        while True:
            backups: Json = await rig.ok("GET", "/api/backups")
            if condition(backups):
                return backups
            await pause(next(checks))


def has_ended(backups: Json) -> bool:
    return bool(backups["job"]["state"] != "running")


async def test_an_operators_backup_is_written_verified_and_audited(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "leave.md", b"# Leave\n\nTwenty-five days.")
        before = await rig.ok("GET", "/api/backups")
        assert (before["items"], "job" in before, "everyHours" in before) == ([], False, False)
        started_job = await rig.ok("POST", "/api/backups")
        assert (started_job["kind"], started_job["state"], started_job["by"]) == ("write", "running", "local")
        assert (await rig.refused("POST", "/api/backups"))[:2] == (409, "BACKUP_REFUSED")
        backups = await wait_until(rig, has_ended)
        (item,) = backups["items"]
        assert (backups["job"]["state"], backups["job"]["name"]) == ("done", item["name"])
        assert item["sizeBytes"] > 0
        assert not item["beforeUpgrade"]
        assert backups["job"]["bytes"] > 0
        await rig.ok("POST", f"/api/backups/{item['name']}/verify")
        assert (await wait_until(rig, has_ended))["job"]["state"] == "done"
        file = rig.settings.data / FOLDER / item["name"]
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        await rig.ok("POST", f"/api/backups/{item['name']}/verify")
        job = (await wait_until(rig, has_ended))["job"]
        assert job["state"] == "failed"
        assert "its bytes are not those that were written" in job["reason"]
        for name in ("nothing.tar.zst", "%2e%2e%2fagentic-rag.db"):
            status, code, _ = await rig.refused("POST", f"/api/backups/{name}/verify")
            assert (status, code) in ((404, "BACKUP_NOT_FOUND"), (404, "NOT_FOUND"))
        actions = [row["action"] for row in await audited(rig, outcome="done")]
        assert actions.count("backup.begin") == 1
        assert actions.count("backup.verify") == 2


async def test_a_stopped_backup_leaves_nothing_and_another_can_start(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        assert await rig.ok("POST", "/api/backups/stop") == {"stopped": False}
        await rig.ok("POST", "/api/backups")
        await wait_until(rig, lambda backups: backups["job"]["name"])
        assert await rig.ok("POST", "/api/backups/stop") == {"stopped": True}
        last_state = await wait_until(rig, has_ended)
        assert (last_state["job"]["state"], last_state["items"]) == ("stopped", [])
        assert [path.name for path in (rig.settings.data / FOLDER).iterdir()] == [".lock"]
        await rig.ok("POST", "/api/backups")
        assert (await wait_until(rig, has_ended))["job"]["state"] == "done"


async def test_backups_catalogue_and_provider_mapping_are_for_operators_only(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        key = await make_key(rig, "ann", "admin", domain)
        for method, path in (
            ("GET", "/api/backups"),
            ("POST", "/api/backups"),
            ("POST", "/api/backups/stop"),
            ("GET", "/api/launch-catalogue"),
            ("DELETE", "/api/launch-catalogue/fetch"),
            ("GET", "/api/auth/oidc/mapping"),
        ):
            assert (await rig.refused(method, path, headers=bearer(key)))[:2] == (403, "FORBIDDEN"), path
        assert (await rig.refused("GET", "/api/auth/oidc/mapping"))[:2] == (404, "PROVIDER_NOT_FOUND")
        items = (await rig.ok("GET", "/api/launch-catalogue"))["items"]
        assert {entry["origin"] for entry in items} == {"builtin"}
        assert all(entry["command"] and entry["arguments"] for entry in items)
        assert (await rig.refused("DELETE", f"/api/launch-catalogue/{items[0]['id']}"))[0] == 404
        rig.application.services.catalogue.put({"id": "mine", "npm": "mine@1.0.0", "args": ["{text}"]})
        items = (await rig.ok("GET", "/api/launch-catalogue"))["items"]
        (own_entry,) = [entry for entry in items if entry["origin"] == "allowed"]
        assert (own_entry["id"], own_entry["command"], own_entry["arguments"]) == (
            "mine",
            "npx -y mine@1.0.0",
            "{text}",
        )
        await rig.ok("DELETE", "/api/launch-catalogue/mine")
        assert (await rig.refused("DELETE", "/api/launch-catalogue/mine"))[0] == 404
        assert [row["target"] for row in await audited(rig, action="mcp.revoke")] == ["mine"]
