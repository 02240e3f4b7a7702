"""Documents over REST: from upload to citable chunks, and deleted without a trace."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.server.rig import Rig

TEXT = b"# Holidays\n\nEveryone has twenty-five days of paid leave a year.\n"


async def test_an_uploaded_file_is_indexed_and_found(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "handbook.md", TEXT)
        assert (document["status"], document["denseState"], document["chunkCount"]) == ("indexed", "none", 1)
        assert document["progress"]["languages"] == ["en"]
        search_result = await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": "paid leave"})
        assert search_result["mode"] == "lexical"
        assert search_result["hits"][0]["documentId"] == document["id"]
        assert search_result["hits"][0]["headingPath"] == ["Holidays"]
        original = rig.settings.workspaces / domain / "documents" / "handbook.md"
        assert original.read_bytes() == TEXT
        assert list((rig.settings.data / "incoming").iterdir()) == []


async def test_several_files_are_ingested_from_one_upload_and_other_fields_ignored(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        files = [("a", ("one.md", TEXT)), ("b", ("two.txt", b"Another text entirely."))]
        upload = await rig.ok("POST", f"/api/domains/{domain}/documents", files=files, data={"note": "x"})
        assert [item["name"] for item in upload["items"]] == ["one.md", "two.txt"]


async def test_equal_bytes_are_one_document_and_equal_names_two(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        first = await rig.upload(domain, "a.md", TEXT)
        assert (await rig.upload(domain, "b.md", TEXT))["id"] == first["id"]
        second_document = await rig.upload(domain, "a.md", TEXT + b"More.")
        assert (second_document["name"], second_document["id"] == first["id"]) == ("a (2).md", False)
        folder = rig.settings.workspaces / domain / "documents"
        assert sorted(path.name for path in folder.iterdir()) == ["a (2).md", "a.md"]


@pytest.mark.attack(kind="files")
@pytest.mark.parametrize(
    ("name", "stored_name"),
    [
        ("../../etc/passwd.txt", "passwd.txt"),
        ("C:\\temp\\notes.md", "notes.md"),
        ("/abs/.hidden.md", "hidden.md"),
        ("a\u202etxt.md", "atxt.md"),
        ("说明书.md", "说明书.md"),
    ],
)
async def test_a_file_name_is_data_and_never_a_path(tmp_path: Path, name: str, stored_name: str) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        assert (await rig.upload(domain, name, TEXT))["name"] == stored_name
        folder = rig.settings.workspaces / domain / "documents"
        assert [path.parent for path in folder.rglob("*.md")] + [path.parent for path in folder.rglob("*.txt")] == [
            folder
        ]


@pytest.mark.attack(kind="files")
async def test_files_that_cannot_be_stored_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    async with Rig(tmp_path, max_upload_bytes=1000) as rig:
        domain = await rig.domain()
        path = f"/api/domains/{domain}/documents"
        assert (await rig.refused("POST", path, files={"f": ("x.exe", b"MZ")}))[:2] == (415, "DOCUMENT_UNSUPPORTED")
        large = await rig.refused("POST", path, files={"f": ("x.md", b"a" * 1001)})
        assert large[:2] == (413, "DOCUMENT_TOO_LARGE")
        assert (await rig.refused("POST", path, {"path": "/etc/passwd"}))[:2] == (422, "VALIDATION_ERROR")
        headers = {"content-type": "multipart/form-data; boundary=x"}
        for body in (b"", b"nonsense", b'--x\r\nContent-Disposition: form-data; name="f"; filename="a.md"\r\n\r\nhalf'):
            assert (await rig.refused("POST", path, content=body, headers=headers))[:2] == (422, "VALIDATION_ERROR")
        assert (await rig.refused("POST", "/api/domains/dom_x/documents", files={"f": ("x.md", TEXT)}))[0] == 404
        assert (await rig.ok("GET", path))["items"] == []
        assert list((rig.settings.workspaces / domain / "documents").iterdir()) == []
        incoming = rig.settings.data / "incoming"
        assert not incoming.exists() or list(incoming.iterdir()) == []


async def test_an_unreadable_file_fails_with_a_reason_and_can_be_retried(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "scan.pdf", b"%PDF-1.7 broken")
        assert document["status"] == "failed"
        assert document["error"]["code"].startswith("DOCUMENT_")
        assert document["error"]["message"]
        path = f"/api/domains/{domain}/documents/{document['id']}"
        assert (await rig.ok("POST", f"{path}/retry"))["status"] == "queued"
        assert (await rig.settled(domain, document["id"]))["status"] == "failed"
        good = await rig.upload(domain, "a.md", TEXT)
        assert (await rig.ok("POST", f"/api/domains/{domain}/documents/{good['id']}/retry"))["status"] == "indexed"


async def test_a_deleted_document_is_gone_from_disk_index_and_list(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "a.md", TEXT)
        path = f"/api/domains/{domain}/documents"
        await rig.ok("DELETE", f"{path}/{document['id']}")
        assert (await rig.refused("GET", f"{path}/{document['id']}"))[:2] == (404, "DOCUMENT_NOT_FOUND")
        assert (await rig.ok("POST", f"{path}/search", {"query": "paid leave"}))["hits"] == []
        assert list((rig.settings.workspaces / domain / "documents").iterdir()) == []
        assert await rig.ok("POST", f"{path}/rescan") == {"added": 0}


@pytest.mark.attack(kind="files")
async def test_another_domains_document_is_not_found(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        document = await rig.upload(await rig.domain(), "a.md", TEXT)
        other_domain = await rig.domain()
        assert (await rig.refused("GET", f"/api/domains/{other_domain}/documents/{document['id']}"))[0] == 404
        assert (await rig.refused("DELETE", f"/api/domains/{other_domain}/documents/{document['id']}"))[0] == 404
        assert (await rig.ok("POST", f"/api/domains/{other_domain}/documents/search", {"query": "leave"}))["hits"] == []


async def test_files_added_by_the_operator_are_ingested(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        folder = rig.settings.workspaces / domain / "documents"
        (folder / "more").mkdir()
        (folder / "more" / "deep.md").write_bytes(TEXT)
        (folder / "tool.exe").write_bytes(b"MZ")
        (folder / ".DS_Store").write_bytes(b"x")
        (folder / "link.md").symlink_to("/etc/hostname")
        path = f"/api/domains/{domain}/documents"
        assert await rig.ok("POST", f"{path}/rescan") == {"added": 2}
        for item in (await rig.ok("GET", path))["items"]:
            document = await rig.settled(domain, item["id"])
            assert document["status"] == ("indexed" if item["name"] == "deep.md" else "failed")
        assert await rig.ok("POST", f"{path}/rescan") == {"added": 0}


async def test_documents_left_unfinished_by_a_stopped_server_are_finished_by_the_next(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        upload = await rig.ok("POST", f"/api/domains/{domain}/documents", files={"f": ("a.md", TEXT)})
    async with Rig(tmp_path) as rig:
        rig.application.begin()
        document = await rig.settled(domain, upload["items"][0]["id"])
        assert (document["status"], document["chunkCount"]) == ("indexed", 1)
        search_result = await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": "paid leave"})
        assert len(search_result["candidates"]) == 1


@pytest.mark.parametrize("body", [{"query": " "}, {}, {"query": "x", "topK": 0}, {"query": "x", "topK": 51}])
async def test_a_bad_search_is_refused(tmp_path: Path, body: dict[str, object]) -> None:
    async with Rig(tmp_path) as rig:
        path = f"/api/domains/{await rig.domain()}/documents/search"
        assert (await rig.refused("POST", path, body))[:2] == (422, "VALIDATION_ERROR")


@pytest.mark.parametrize("with_length", [True, False])
async def test_an_endless_upload_is_refused_early_and_leaves_nothing(tmp_path: Path, with_length: bool) -> None:
    size, piece = 10 * 2**30, b"a" * 2**16
    sent_bytes = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent_bytes
        yield b'--x\r\nContent-Disposition: form-data; name="f"; filename="endless.md"\r\n\r\n'
        while sent_bytes < size:
            sent_bytes += len(piece)
            yield piece

    headers = {"content-type": "multipart/form-data; boundary=x"}
    headers |= {"content-length": str(size)} if with_length else {"transfer-encoding": "chunked"}
    async with Rig(tmp_path, max_upload_bytes=2**20) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "good.md", TEXT)
        path = f"/api/domains/{domain}/documents"
        status, code, message = await rig.refused("POST", path, content=body(), headers=headers)
        if with_length:
            assert (status, code) == (413, "BODY_TOO_LARGE"), "refused before any of it is read"
        else:
            assert (status, code) == (413, "DOCUMENT_TOO_LARGE")
            assert "endless.md" in message
        assert sent_bytes <= 2**20 + 2 * len(piece), "the rest was not waited for"
        assert list((rig.settings.data / "incoming").iterdir()) == []
        assert [item["name"] for item in (await rig.ok("GET", path))["items"]] == ["good.md"]
        assert len((await rig.ok("POST", f"{path}/search", {"query": "paid leave"}))["hits"]) == 1
