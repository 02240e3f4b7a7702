"""Workspace files with undecodable names or unstorable text block nothing."""

import os
from pathlib import Path

from tests.bundles.making import bring_over, export
from tests.server.rig import Rig

ROLE = b"<role>\n  <personality>\n    You know the law.\n  </personality>\n</role>\n"


def spoil(workspace: Path) -> None:
    """Put files of every kind with names that are not UTF-8 into a workspace, and one text with a NUL."""
    role = workspace / ".promptx" / "resource" / "role" / "lawyer"
    role.mkdir(parents=True)
    skill = workspace / "skills" / "sums"
    skill.mkdir(parents=True)
    for folder, name, content in (
        (workspace / "prompt", b"\xff.md", b"Be calm.\n"),
        (workspace / "documents", b"\xff.md", b"# A\n\nSome text.\n"),
        (role, b"\xff.role.md", ROLE),
        (skill, b"\xff.md", b"More.\n"),
    ):
        (folder / os.fsdecode(name)).write_bytes(content)
    (workspace / "prompt" / "nul.md").write_bytes(b"Be\0calm.\n")


async def test_names_that_are_not_text_are_ignored(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.application.begin()
        domain = await rig.domain()
        path, workspace = f"/api/domains/{domain}", rig.settings.workspaces / domain
        spoil(workspace)
        (workspace / "prompt" / "good.md").write_text("Be kind.\n")
        (workspace / "documents" / "good.md").write_text("# Good\n\nSome other text.\n")
        history = (await rig.ok("GET", f"{path}/history"))["items"]
        assert [(entry["kind"], entry["subject"]) for entry in history if entry["kind"] != "settings"] == [
            ("prompt", "good.md")
        ]
        await rig.ok("POST", f"{path}/documents/rescan")
        await rig.taken_up(domain)
        assert [item["name"] for item in (await rig.ok("GET", f"{path}/documents"))["items"]] == ["good.md"]
        names = [item["name"] for item in (await rig.ok("GET", f"{path}/prompt-components"))["items"]]
        assert names == ["good.md", "nul.md"]
        for resource in ("roles", "roles/check", "skills", "effective-prompt"):
            answer = await rig.http.get(f"{path}/{resource}")
            assert answer.status_code in (200, 404, 405), answer.text
        report = await bring_over(rig, domain, await export(rig, domain), removeOthers="true")
        assert {difference["action"] for difference in report["differences"]} <= {"add"}


async def test_one_unreadable_domain_does_not_block_the_scan_of_others(tmp_path: Path) -> None:
    async with Rig(tmp_path, scan_seconds=0.01) as rig:
        strange, plain_domain = await rig.domain(), await rig.domain()
        for domain in (strange, plain_domain):
            workspace = rig.settings.workspaces / domain
            (workspace / "prompt" / "good.md").write_text("Be kind.\n")
            (workspace / "documents" / "good.md").write_text(f"# Good\n\nSome text of {domain}.\n")
        spoil(rig.settings.workspaces / strange)
        rig.application.begin()
        await rig.taken_up(strange)
        await rig.taken_up(plain_domain)
