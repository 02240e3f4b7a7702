"""Manual changes in a documents folder: add, remove, restore, rename."""

from itertools import count
from pathlib import Path

import anyio

from agentic_rag.directory.collection import collection_of
from tests.ingestion.test_crash import text_of
from tests.server.rig import WAIT_SECONDS, Json, Rig
from tests.waiting import pause

TEXT = b"# Holidays\n\nEveryone has twenty-five days of paid leave a year.\n"
OTHER = b"# Pumps\n\nThe pump holds twelve bar.\n"


def folder_of(rig: Rig, domain: str) -> Path:
    return rig.settings.workspaces / domain / "documents"


async def list_documents(rig: Rig, domain: str) -> dict[str, Json]:
    return {item["name"]: item for item in (await rig.ok("GET", f"/api/domains/{domain}/documents"))["items"]}


async def rescan(rig: Rig, domain: str) -> int:
    answer: Json = await rig.ok("POST", f"/api/domains/{domain}/documents/rescan")
    return int(answer["added"])


async def find_names(rig: Rig, domain: str, query: str) -> list[str]:
    answer = await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": query})
    return [hit["documentName"] for hit in answer["hits"]]


async def test_a_document_whose_file_was_deleted_is_not_found_and_has_the_reason(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "leave.md", TEXT)
        await rig.upload(domain, "pump.md", OTHER)
        (folder_of(rig, domain) / "leave.md").unlink()
        assert await rescan(rig, domain) == 0
        missing = (await list_documents(rig, domain))["leave.md"]
        assert (missing["status"], missing["error"]["code"]) == ("failed", "DOCUMENT_MISSING")
        assert "Put it back" in missing["error"]["message"]
        path = f"/api/domains/{domain}/documents/{document['id']}"
        assert (await rig.ok("GET", f"{path}/chunks"))["items"] == []
        assert await find_names(rig, domain, "paid leave") == []
        assert await find_names(rig, domain, "pump") == ["pump.md"]
        await rig.ok("POST", f"{path}/retry")
        assert (await rig.settled(domain, document["id"]))["error"]["code"] == "DOCUMENT_MISSING"


async def test_a_document_returns_under_its_id_with_its_file(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "leave.md", TEXT)
        path = f"/api/domains/{domain}/documents/{document['id']}"
        before = await rig.ok("GET", f"{path}/chunks")
        file, moved_file = folder_of(rig, domain) / "leave.md", tmp_path / "aside.md"
        file.rename(moved_file)
        await rescan(rig, domain)
        moved_file.rename(file)
        assert await rescan(rig, domain) == 1
        assert (await rig.settled(domain, document["id"]))["status"] == "indexed"
        assert await rig.ok("GET", f"{path}/chunks") == before, "old citations mean the same passage again"


async def test_uploading_a_deleted_file_restores_it(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "leave.md", TEXT)
        for rescans in (False, True):
            (folder_of(rig, domain) / "leave.md").unlink()
            if rescans:
                await rescan(rig, domain)
            upload = await rig.upload(domain, "copy.md", TEXT)
            assert (upload["id"], upload["status"]) == (document["id"], "indexed")
            assert [file.name for file in folder_of(rig, domain).iterdir()] == ["leave.md"]
            assert await rescan(rig, domain) == 0


async def test_a_renamed_file_is_the_same_document_under_its_new_name(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "leave.md", TEXT)
        folder = folder_of(rig, domain)
        (folder / "hr").mkdir()
        (folder / "leave.md").rename(folder / "hr" / "holidays.txt")
        assert await rescan(rig, domain) == 1
        renamed = await rig.settled(domain, document["id"])
        assert (renamed["name"], renamed["mediaType"], renamed["status"]) == ("holidays.txt", "text/plain", "indexed")
        assert await find_names(rig, domain, "paid leave") == ["holidays.txt"]
        assert await rescan(rig, domain) == 0


async def test_a_copy_replaces_its_deleted_original(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "leave.md", TEXT)
        folder = folder_of(rig, domain)
        (folder / "copy.md").write_bytes(TEXT)
        assert await rescan(rig, domain) == 0
        (folder / "leave.md").unlink()
        assert await rescan(rig, domain) == 1
        assert (await rig.settled(domain, document["id"]))["name"] == "copy.md"
        assert list(await list_documents(rig, domain)) == ["copy.md"]


async def test_a_missing_folder_deletes_no_documents(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "leave.md", TEXT)
        folder_of(rig, domain).rename(tmp_path / "unmounted")
        assert await rescan(rig, domain) == 0
        assert await find_names(rig, domain, "paid leave") == ["leave.md"]


async def test_files_added_while_no_server_ran_are_ingested_by_the_next(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        (folder_of(rig, domain) / "leave.md").write_bytes(TEXT)
        rig.application.begin()
        with anyio.fail_after(WAIT_SECONDS):
            checks = count()
            while (await list_documents(rig, domain)).get("leave.md", {}).get("status") != "indexed":
                await pause(next(checks))


async def test_a_serving_process_scans_the_folders_repeatedly(tmp_path: Path) -> None:
    async with Rig(tmp_path, scan_seconds=0.01) as rig:
        domain, other_domain = await rig.domain(), await rig.domain()
        folder = folder_of(rig, domain)
        rig.application.begin()

        async def wait_until(name: str, status: str) -> None:
            with anyio.fail_after(WAIT_SECONDS):
                checks = count()
                while (await list_documents(rig, domain)).get(name, {}).get("status") != status:
                    await pause(next(checks))

        (folder / "first.md").write_bytes(TEXT)
        await wait_until("first.md", "indexed")
        await rig.ok("DELETE", f"/api/domains/{other_domain}")
        (folder / "second.md").write_bytes(OTHER)
        await wait_until("second.md", "indexed")
        (folder / "first.md").unlink()
        await wait_until("first.md", "failed")
        assert await find_names(rig, domain, "pump") == ["second.md"]


async def test_a_file_deleted_during_a_rebuild_is_not_in_the_new_collection(tmp_path: Path) -> None:
    begun = anyio.Event()

    def failpoint(name: str) -> None:
        if name == "reindex.begun":
            begun.set()

    async with Rig(tmp_path, failpoint=failpoint) as rig:
        domain = await rig.domain()
        cars = await rig.upload(domain, "cars.md", text_of(2_500))
        await rig.upload(domain, "pump.md", OTHER)
        parts = rig.application.services.documents
        index = parts.knowledge.index
        await rig.ok("POST", f"/api/domains/{domain}/reindex")
        with anyio.fail_after(WAIT_SECONDS):
            await begun.wait()
            generation = f"{collection_of(domain)}@{(await parts.reindex_state(domain)).generation}"
            while not await index.count(generation, cars["id"]):
                await pause()
        (folder_of(rig, domain) / "cars.md").unlink()
        await rescan(rig, domain)
        assert (await rig.reindexed(domain))["state"] == "ready"
        assert (await list_documents(rig, domain))["cars.md"]["error"]["code"] == "DOCUMENT_MISSING"
        assert await index.count(collection_of(domain), cars["id"]) == 0
        assert await find_names(rig, domain, "car number") == []
        assert await find_names(rig, domain, "pump") == ["pump.md"]
