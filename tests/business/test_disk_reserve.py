"""A disk without room is detected by trial writes, and reported before a user needs the space."""

from pathlib import Path

import pytest

from agentic_rag.base.errors import StorageFull
from agentic_rag.documents.disk_reserve import DiskReserve
from tests.server.rig import Rig

READ_ONLY = Path("/proc")
"""A folder in which no user can create a file."""


async def test_a_folder_that_cannot_be_written_refuses_uploads_until_it_can(tmp_path: Path) -> None:
    reserve = DiskReserve(READ_ONLY, 0)
    await reserve.check()
    await reserve.probe()
    with pytest.raises(StorageFull, match="nothing can be written to the data folder now"):
        await reserve.check()
    disk_reserve = DiskReserve(tmp_path, 0)
    await disk_reserve.probe()
    await disk_reserve.check()
    assert not any(tmp_path.iterdir())  # noqa: ASYNC240 - a folder of nothing


async def test_health_reports_a_read_only_data_folder_and_uploads_are_refused(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        health = rig.application.services.health
        folder = rig.settings.data
        moved = folder.rename(tmp_path / "away")  # like a volume that was unmounted
        try:
            await health.probe()
            report = await rig.ok("GET", "/api/health")
            assert (report["status"], report["disk"]["state"]) == ("degraded", "degraded")
            assert "nothing can be written" in report["disk"]["reason"]
            files = {"file": ("a.md", b"# A", "text/markdown")}
            refusal = await rig.refused("POST", f"/api/domains/{domain}/documents", files=files)
            assert refusal[:2] == (507, "STORAGE_FULL")
        finally:
            moved.rename(folder)
        await health.probe()
        assert (await rig.ok("GET", "/api/health"))["status"] == "ok"
