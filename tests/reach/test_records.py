"""Endpoints and schedules in bundles, after erasing a person and deleting a domain, and on the command line."""

import io
import json
import zipfile
from pathlib import Path

import pytest

from agentic_rag.store import deliveries, endpoints, schedules, secrets
from agentic_rag.store.deliveries import Event
from agentic_rag.store.endpoints import EventKind
from tests.access.tenants import as_operator, bearer, make_key
from tests.bundles.making import bring
from tests.reach.test_schedules import NIGHTLY
from tests.server.rig import Rig
from tests.server.test_cli import run

HOOK = {"name": "Hook", "url": "https://example.org/secret-path", "events": ["turn.failed"], "withTexts": True}


async def test_a_bundle_carries_endpoints_and_schedules_without_secrets_and_imports_them_disabled(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        path = f"/api/domains/{domain}"
        created = await rig.ok("POST", f"{path}/endpoints", {**HOOK, "recipient": "local"})
        hook = await rig.ok("POST", f"{path}/schedules", {**NIGHTLY, "name": "By hook", "cron": ""})
        await rig.ok("POST", f"{path}/schedules", {**NIGHTLY, "maxTokens": 5_000, "allowedTools": ["a__b"]})
        bundle = (await rig.http.get(f"{path}/bundle")).content
        with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
            notifications = json.loads(archive.read("notifications.json"))
        for secret in (created["secret"], hook["secret"], "secret-path", "example.org"):
            assert secret not in json.dumps(notifications)
        report = await bring(rig, bundle)
        imported = report["domainId"]
        changes = [difference for difference in report["differences"] if difference["kind"] in ("endpoint", "schedule")]
        assert sorted(difference["subject"] for difference in changes) == ["By hook", "Hook", "Nightly"]
        (endpoint,) = (await rig.ok("GET", f"/api/domains/{imported}/endpoints"))["items"]
        assert (endpoint["enabled"], endpoint["address"], endpoint["recipient"]) == (False, "", "")
        assert (await rig.refused("PATCH", f"/api/domains/{imported}/endpoints/{endpoint['id']}", {"enabled": True}))[
            0
        ] == 422
        change = {"enabled": True, "url": "https://example.org/new"}
        completed = await rig.ok("PATCH", f"/api/domains/{imported}/endpoints/{endpoint['id']}", change)
        assert (completed["enabled"], completed["address"]) == (True, "example.org")
        schedules_by_name = {
            schedule["name"]: schedule
            for schedule in (await rig.ok("GET", f"/api/domains/{imported}/schedules"))["items"]
        }
        nightly = schedules_by_name["Nightly"]
        assert (nightly["enabled"], nightly["nextAt"], nightly["maxTokens"]) == (False, None, 5_000)
        resumed = await rig.ok("PATCH", f"/api/domains/{imported}/schedules/{nightly['id']}", {"enabled": True})
        assert resumed["nextAt"] is not None


async def test_a_bundle_carries_two_endpoints_of_one_name(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        path = f"/api/domains/{await rig.domain()}"
        for event in ("turn.failed", "budget.crossed"):
            await rig.ok("POST", f"{path}/endpoints", {**HOOK, "events": [event]})
        imported = (await bring(rig, (await rig.http.get(f"{path}/bundle")).content))["domainId"]
        imported_endpoints = (await rig.ok("GET", f"/api/domains/{imported}/endpoints"))["items"]
        assert sorted(endpoint["events"] for endpoint in imported_endpoints) == [["budget.crossed"], ["turn.failed"]]


async def test_erasing_a_person_and_deleting_a_domain_leave_nothing(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain, other_domain = await rig.domain(), await rig.domain()
        ann = bearer(await make_key(rig, "ann", "admin", domain))
        path = f"/api/domains/{domain}"
        for name, recipient in (("Mine", "ann"), ("Ours", "")):
            body = {**HOOK, "name": name, "recipient": recipient}
            assert (await rig.http.post(f"{path}/endpoints", json=body, headers=ann)).status_code == 201
        for name, cron in (("Hook", ""), ("Nightly", NIGHTLY["cron"])):
            body = {**NIGHTLY, "name": name, "cron": cron}
            assert (await rig.http.post(f"{path}/schedules", json=body, headers=ann)).status_code == 201
        as_operator(rig)
        database = rig.application.database
        event = Event(EventKind.TURN_FAILED, domain, {"userId": "ann"}, user_id="ann")
        await database.write(lambda conn: deliveries.announce(conn, event))
        await rig.ok("POST", f"/api/domains/{other_domain}/endpoints", HOOK)
        await rig.ok("DELETE", "/api/users/ann")
        (endpoint,) = await database.read(lambda conn: endpoints.of_domain(conn, domain))
        assert (endpoint.name, endpoint.created_by) == ("Ours", "#1")
        assert await database.read(lambda conn: schedules.of_domain(conn, domain)) == []
        assert await database.read(lambda conn: deliveries.list_newest(conn, endpoint.id, None, 10)) == []
        names = [secret.name for secret in await database.read(secrets.list_all) if secret.domain_id == domain]
        assert names == [secrets.endpoint_secret(endpoint.id)]
        await rig.ok("DELETE", path)
        assert await database.read(lambda conn: endpoints.of_domain(conn, domain)) == []
        assert {secret.domain_id for secret in await database.read(secrets.list_all)} == {other_domain}


@pytest.mark.slow("six processes")
def test_the_command_line_adds_lists_and_removes(tmp_path: Path) -> None:
    def ok(*arguments: str) -> str:
        result = run(tmp_path, *arguments)
        assert result.returncode == 0, result.stderr
        return str(result.stdout)

    domain = ok("domains", "create", "Law").split()[0]
    created = ok("endpoints", "add", "Hook", "https://example.org/x", "--events", "turn.failed", "--domain", domain)
    assert "whsec_" in created
    endpoint = created.split()[0]
    added = ok(
        "schedules",
        "add",
        "Weekly",
        "What is new?",
        "--domain",
        domain,
        "--cron",
        "0 7 * * MON",
        "--zone",
        "Asia/Shanghai",
    )
    assert "0 7 * * MON" in added
    refusal = run(tmp_path, "schedules", "add", "Bad", "x", "--domain", domain, "--cron", "* * * * *")
    assert refusal.returncode == 1
    assert "at least 300 s" in refusal.stderr
    ok("endpoints", "remove", endpoint, "--domain", domain)
    assert endpoint not in ok("endpoints", "list", "--domain", domain)
