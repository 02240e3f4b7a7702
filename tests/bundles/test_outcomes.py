"""An import whose commit was cancelled, or whose outcome is unknown: stored records have their files."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from agentic_rag.access.users import LOCAL
from agentic_rag.base.errors import StorageFull, StorageUnavailable
from agentic_rag.bundles.importing import ImportOptions
from agentic_rag.commands.doctor import examine
from tests.server.rig import Rig
from tests.store.conftest import needs_postgresql, postgresql_server

from .making import ZIP, pack, plain

MEMBERS = {**plain(language="fr"), "prompt/a.md": b"A.\n", "documents/a.md": b"# A\n\nText.\n"}


async def pieces() -> AsyncIterator[bytes]:
    yield pack(MEMBERS)


class Canceller:
    """Cancels ``scope`` during a commit: the first one after ``place``."""

    def __init__(self, place: str) -> None:
        self.scope = anyio.CancelScope()
        self.rig: Rig
        self.loop = asyncio.get_running_loop()
        self._place = place
        self._armed = False

    def __call__(self, place: str) -> None:
        if place == self._place:
            self._armed = True
        elif self._armed and place == "commit.ready":  # in the writing thread
            self._armed = False
            asyncio.run_coroutine_threadsafe(self._cancel(), self.loop).result(60)

    async def _cancel(self) -> None:
        self.scope.cancel()
        for _ in range(20):  # event loop rounds in which a cancelled importer could delete its files
            await self.rig.application.database.read(lambda conn: None)
            await anyio.to_thread.run_sync(lambda: None)


async def count_rows(rig: Rig) -> int:
    database = rig.application.database
    return int(await database.read(lambda conn: conn.exec_driver_sql("SELECT count(*) FROM imports").scalar_one()))


@pytest.mark.sqlite("holds the thread that writes")
async def test_a_new_domain_whose_commit_is_cancelled_has_its_workspace(tmp_path: Path) -> None:
    canceller = Canceller("bundle.placed")
    async with Rig(tmp_path, failpoint=canceller) as rig:
        canceller.rig = rig
        with canceller.scope:
            await rig.application.services.imports.create(LOCAL, pieces(), ImportOptions())
        assert canceller.scope.cancelled_caught
        (domain,) = (await rig.ok("GET", "/api/domains"))["items"]
        workspace = rig.settings.workspaces / domain["id"]
        assert (workspace / "prompt" / "a.md").read_bytes() == b"A.\n"
        assert (workspace / "documents" / "a.md").is_file()
        assert await count_rows(rig) == 0
    assert await examine(rig.settings, False) == []


@pytest.mark.sqlite("holds the thread that writes")
async def test_an_import_whose_commit_is_cancelled_is_ended(tmp_path: Path) -> None:
    canceller = Canceller("bundle.begun")
    async with Rig(tmp_path, failpoint=canceller) as rig:
        canceller.rig = rig
        domain = await rig.domain(language="de")
        with canceller.scope:
            await rig.application.services.imports.update(LOCAL, domain, pieces(), ImportOptions())
        assert (await rig.ok("GET", f"/api/domains/{domain}"))["settings"]["language"] == "fr"
        assert (rig.settings.workspaces / domain / "prompt" / "a.md").read_bytes() == b"A.\n"
        assert await count_rows(rig) == 0
        assert not any((rig.settings.data / "imports").iterdir())


class Unavailable:
    """A store that does not answer the first commit after ``place``."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._armed = False

    def __call__(self, place: str) -> None:
        if place == self._place:
            self._armed = True
        elif self._armed and place == "commit.begin":
            self._armed = False
            raise StorageUnavailable("the connection was lost")


async def lose_new(folder: Path, other_folder: Path | None = None, **settings: Any) -> None:
    """Lose the outcome of a new domain's commit, and start again.

    ``other_folder``: another server used the data folder meanwhile.
    """
    async with Rig(folder, failpoint=Unavailable("bundle.placed"), **settings) as rig:
        answer = await rig.refused("POST", "/api/bundles", content=pack(MEMBERS), headers=ZIP)
        assert answer[:2] == (503, "STORAGE_UNAVAILABLE")
        assert await count_rows(rig) == 1
        assert [path for path in rig.settings.workspaces.iterdir() if path.is_dir()] != [], "it may have been stored"
    if other_folder is not None:
        async with Rig(other_folder, **settings) as rig:
            assert await count_rows(rig) == 1, "it is not this one's"
    async with Rig(folder, **settings) as rig:
        assert await count_rows(rig) == 0
        assert [path for path in rig.settings.workspaces.iterdir() if path.is_dir()] == []


async def test_an_uncertain_commit_is_left_to_the_next_start(tmp_path: Path) -> None:
    await lose_new(tmp_path)


@needs_postgresql
@pytest.mark.nightly("with SQLite it runs every time")
async def test_leftovers_of_a_failed_import_are_deleted_on_postgresql_too(tmp_path: Path) -> None:
    with postgresql_server() as server:
        await lose_new(tmp_path / "one", tmp_path / "other", database_url=server.url)


async def test_files_over_a_domain_wait_while_its_commit_is_uncertain(tmp_path: Path) -> None:
    async with Rig(tmp_path, failpoint=Unavailable("bundle.begun")) as rig:
        domain = await rig.domain()
        answer = await rig.refused("POST", f"/api/domains/{domain}/bundle", content=pack(MEMBERS), headers=ZIP)
        assert answer[:2] == (503, "STORAGE_UNAVAILABLE")
        assert [path.suffix for path in (rig.settings.data / "imports").iterdir()] == [".over"]
    async with Rig(tmp_path) as rig:
        assert not any((rig.settings.data / "imports").iterdir())
        assert not (rig.settings.workspaces / domain / "prompt" / "a.md").exists()


@pytest.mark.sqlite("whoever had it is dead")
async def test_an_import_with_missing_files_removes_nothing(tmp_path: Path) -> None:
    def refuse(place: str) -> None:
        if place == "bundle.stored":
            raise StorageFull("it is full")

    async with Rig(tmp_path, failpoint=refuse) as rig:
        rig.application.begin()
        domain = await rig.domain()
        await rig.upload(domain, "mine.md", b"# Mine\n\nText.\n")
        params = {"removeOthers": "true"}
        answer = await rig.refused(
            "POST", f"/api/domains/{domain}/bundle", content=pack(MEMBERS), headers=ZIP, params=params
        )
        assert answer[1] == "STORAGE_FULL"
        assert await count_rows(rig) == 1
        for folder in (rig.settings.data / "imports").iterdir():
            shutil.rmtree(folder)
    async with Rig(tmp_path) as rig:
        key = {"Authorization": f"Bearer {rig.application.access.local_key}"}
        documents = (await rig.http.get(f"/api/domains/{domain}/documents", headers=key)).json()["items"]
        assert [document["name"] for document in documents] == ["mine.md"]
        assert await count_rows(rig) == 0
