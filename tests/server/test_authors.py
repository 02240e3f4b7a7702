"""The author of a change to a file is its author in the history, also if another person opens the folder next."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.bundles.making import bring_over, pack, plain
from tests.server.rig import Rig


class Scanner:
    """Scans a domain's files, as maintenance does, when a thread first reaches ``place`` while it is ``due``."""

    def __init__(self, place: str) -> None:
        self.rig: Rig
        self.domain = ""
        self.due: Callable[[], bool] = lambda: False
        self._loop = asyncio.get_running_loop()
        self._place = place
        self.scan: Future[int] | None = None

    def __call__(self, place: str) -> None:
        if place != self._place or self.scan is not None or not self.due():
            return
        history = self.rig.application.services.file_history
        self.scan = asyncio.run_coroutine_threadsafe(history.notice(self.domain), self._loop)
        asyncio.run_coroutine_threadsafe(self._run_reads(), self._loop).result(60)  # it gets as far as it can

    async def _run_reads(self) -> None:
        for _ in range(10):
            await self.rig.application.database.read(lambda conn: None)

    async def authors(self) -> set[tuple[str, str]]:
        assert self.scan is not None, "no scan was started"
        await asyncio.wrap_future(self.scan)
        items = (await self.rig.ok("GET", f"/api/domains/{self.domain}/history", params={"kind": "prompt"}))["items"]
        return {(item["subject"], item["author"]) for item in items}


@pytest.mark.sqlite("holds the thread that writes")
async def test_a_component_has_its_writers_version_during_concurrent_scans(tmp_path: Path) -> None:
    scanner = Scanner("commit.ready")
    async with Rig(tmp_path, failpoint=scanner) as rig:
        scanner.rig, scanner.domain = rig, await rig.domain()
        file = rig.settings.workspaces / scanner.domain / "prompt" / "a.md"
        place = f"/api/domains/{scanner.domain}/prompt-components/a.md"
        scanner.due = file.exists
        await rig.ok("PUT", place, {"content": "One.\n"})
        assert await scanner.authors() == {("a.md", "local")}
        scanner.scan, scanner.due = None, lambda: not file.exists()
        await rig.ok("DELETE", place)
        assert await scanner.authors() == {("a.md", "local")}


@pytest.mark.sqlite("holds the thread that writes")
async def test_files_of_an_import_have_its_author_despite_concurrent_scans(tmp_path: Path) -> None:
    scanner = Scanner("bundle.file")
    async with Rig(tmp_path, failpoint=scanner) as rig:
        scanner.rig, scanner.domain, scanner.due = rig, await rig.domain(), lambda: True
        await bring_over(rig, scanner.domain, pack({**plain(), "prompt/a.md": b"A.\n"}))
        assert await scanner.authors() == {("a.md", "local")}
