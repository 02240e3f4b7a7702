"""Sources in bundles, after erasing their owner, and on the command line."""

from pathlib import Path

from tests.access.tenants import as_operator, bearer, make_key
from tests.bundles.making import bring
from tests.server.rig import Rig
from tests.server.test_cli import run

MANUAL = {"name": "Manual", "website": {"urls": ["https://docs.example/a"]}, "labels": ["board"], "enabled": False}


async def test_a_bundle_imports_sources_disabled_and_without_an_erased_owner(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        ann = bearer(await make_key(rig, "ann", "admin", domain))
        path = f"/api/domains/{domain}/sources"
        created = await rig.http.post(path, json=MANUAL, headers=ann)
        assert created.status_code == 201, created.text
        assert created.json()["ownerId"] == "ann"
        as_operator(rig)
        bundle = (await rig.http.get(f"/api/domains/{domain}/bundle")).content
        report = await bring(rig, bundle)
        assert [difference["subject"] for difference in report["differences"] if difference["kind"] == "source"] == [
            "Manual"
        ]
        (imported,) = (await rig.ok("GET", f"/api/domains/{report['domainId']}/sources"))["items"]
        assert (imported["enabled"], imported["labels"], imported["website"]) == (
            False,
            ["board"],
            created.json()["website"],
        )
        assert "disabled until an admin completes it" in imported["notes"][0]
        await rig.ok("DELETE", "/api/users/ann")
        (remaining,) = (await rig.ok("GET", path))["items"]
        assert remaining["ownerId"].startswith("#")


async def test_the_command_line_creates_lists_and_removes_sources(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()

    def ok(*arguments: str) -> str:
        result = run(tmp_path, "sources", *arguments, "--domain", domain)
        assert result.returncode == 0, result.stderr
        return result.stdout

    output = ok("add-website", "Manual", "https://docs.example/a", "--label", "board")
    source = output.split("\t")[0]
    assert "website" in ok("list")
    assert '"labels": [' in ok("list", "--json")
    ok("pause", source)
    refusal = run(tmp_path, "sources", "add-folder", "Share", "/etc", "--domain", domain)
    assert refusal.returncode == 1
    assert "AGENTIC_RAG_SOURCE_FOLDERS" in refusal.stderr
    ok("remove", source, "--documents", "keep")
    assert source not in ok("list")
