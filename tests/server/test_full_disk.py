"""A disk without room or inodes: the server starts, reads, says why it cannot write, and recovers without help."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import anyio
import pytest

from agentic_rag.operations.data_folder import DataFolder
from tests.server.rig import Rig
from tests.waiting import pause


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The data folder of a rig on a separate disk of 48 MiB and 2000 inodes."""
    folder = tmp_path / "data"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=48m,nr_inodes=2000", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(["mount", *options], capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def fill_disk(disk: Path) -> Iterator[None]:
    """Use up all space of a disk while the block runs."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                pass
    try:
        yield
    finally:
        ballast.unlink()


@contextmanager
def use_all_inodes(disk: Path) -> Iterator[None]:
    """Use up all inodes of a disk while the block runs."""
    folder = disk / "many"
    folder.mkdir()
    files: list[Path] = []
    try:
        while True:
            files.append(folder / str(len(files)))
            files[-1].touch()
    except OSError:
        files.pop()
    try:
        yield
    finally:
        for path in files:
            path.unlink()
        folder.rmdir()


Full = Callable[[Path], AbstractContextManager[None]]
FULL = pytest.mark.parametrize("full", [fill_disk, use_all_inodes])


async def wait_until_ready(rig: Rig) -> None:
    with anyio.fail_after(240):
        while (await rig.http.get("/api/ready")).status_code != 200:
            await rig.application.services.health.probe()
            await pause()


@FULL
async def test_a_server_on_a_full_disk_refuses_writes_and_recovers(small_disk: Path, full: Full) -> None:
    async with Rig(small_disk.parent, disk_reserve=0) as rig:
        conversation = await rig.conversation()
        assert await rig.ok("GET", "/api/ready") == {"ready": True}
        with full(small_disk):
            status, code, _ = await rig.refused("POST", "/api/domains", {"name": "x" * 100})
            assert (status, code) == (507, "STORAGE_FULL")
            status, code, words = await rig.refused("GET", "/api/ready")
            assert (status, code) == (503, "STORAGE_UNAVAILABLE")
            assert "cannot" in words
            assert ".." not in words
            health = await rig.ok("GET", "/api/health")
            assert health["store"]["mode"] == "full"
            assert "no space" in health["store"]["reason"].lower() or "full" in health["store"]["reason"]
            await rig.application.services.health.probe()  # new writes do not fit either
            assert (await rig.refused("GET", "/api/ready"))[0] == 503
            assert (await rig.ok("GET", f"/api/conversations/{conversation}"))["id"] == conversation
        await wait_until_ready(rig)
        assert (await rig.ok("POST", "/api/domains", {"name": "now"}))["id"]


@FULL
async def test_a_server_starts_on_a_full_disk_and_reads(small_disk: Path, full: Full) -> None:
    async with Rig(small_disk.parent, disk_reserve=0) as rig:
        conversation = await rig.conversation()
    with full(small_disk):
        async with Rig(small_disk.parent, disk_reserve=0) as rig:
            assert (await rig.ok("GET", f"/api/conversations/{conversation}"))["id"] == conversation
            answer = await rig.http.post("/api/domains", json={"name": "x" * 100})
            while answer.is_success:  # space freed by the start or by an ended process is soon used up
                answer = await rig.http.post("/api/domains", json={"name": "x" * 100})
            assert (answer.status_code, answer.json()["error"]["code"]) == (507, "STORAGE_FULL")
            assert (await rig.refused("GET", "/api/ready"))[0] == 503
        async with Rig(small_disk.parent, disk_reserve=0) as rig:  # the stop was clean
            assert (await rig.ok("GET", f"/api/conversations/{conversation}"))["id"] == conversation


@FULL
def test_a_full_disk_delays_ownership_of_a_folder_until_there_is_space(small_disk: Path, full: Full) -> None:
    DataFolder.own(small_disk).release()
    with full(small_disk):
        folder = DataFolder.own(small_disk)
        with pytest.raises(OSError, match="No space"):
            folder.announce("http://127.0.0.1:1", "key")
    folder.announce("http://127.0.0.1:1", "key")
    assert (small_disk / "server.json").exists()
    folder.release()
