"""Uploads that fail: domains deleted meanwhile, clients that disconnect, bad files among good ones."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentic_rag.store import documents
from agentic_rag.store.documents import DocumentRecord
from tests.access.tenants import audited
from tests.server.rig import WAIT_SECONDS, Json, Rig
from tests.waiting import pause

TEXT = b"# Holidays\n\nEveryone has twenty-five days of paid leave a year.\n"
OTHER = b"# Pumps\n\nThe pump holds twelve bar.\n"
MULTIPART = {"content-type": "multipart/form-data; boundary=x"}
END = b"\r\n--x--\r\n"


def part(name: str) -> bytes:
    return f'--x\r\nContent-Disposition: form-data; name="f"; filename="{name}"\r\n\r\n'.encode()


async def rows(rig: Rig, domain: str) -> list[DocumentRecord]:
    return await rig.application.database.read(lambda conn: documents.list_of(conn, domain))


async def check_nothing_left(rig: Rig, domain: str) -> None:
    assert await rows(rig, domain) == []
    assert not (rig.settings.workspaces / domain).exists()
    incoming = rig.settings.data / "incoming"
    assert not incoming.exists() or list(incoming.iterdir()) == []


async def test_an_upload_that_ends_after_its_domains_deletion_leaves_nothing(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()

        async def body() -> AsyncIterator[bytes]:
            yield part("a.md") + TEXT
            await rig.ok("DELETE", f"/api/domains/{domain}?workspace=true")
            yield END

        refusal = await rig.refused("POST", f"/api/domains/{domain}/documents", content=body(), headers=MULTIPART)
        assert refusal[:2] == (404, "DOMAIN_NOT_FOUND")
        await check_nothing_left(rig, domain)


async def test_an_upload_that_ends_during_its_domains_deletion_leaves_nothing(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        path = f"/api/domains/{domain}"
        async with anyio.create_task_group() as tasks:

            async def body() -> AsyncIterator[bytes]:
                yield part("a.md") + TEXT
                tasks.start_soon(rig.ok, "DELETE", f"{path}?workspace=true")
                with anyio.fail_after(WAIT_SECONDS):
                    while (await rig.http.get(path)).status_code == 200:
                        await pause()
                yield END

            refusal = await rig.refused("POST", f"{path}/documents", content=body(), headers=MULTIPART)
            assert refusal[:2] == (404, "DOMAIN_NOT_FOUND")
        await check_nothing_left(rig, domain)


async def test_a_scan_of_a_deleted_domains_folder_leaves_no_record(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        folder = rig.settings.workspaces / domain / "documents"
        for number in range(50):
            (folder / f"{number}.md").write_bytes(TEXT + str(number).encode())

        async def look() -> None:
            await rig.http.post(f"/api/domains/{domain}/documents/rescan")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
            with anyio.fail_after(WAIT_SECONDS):
                while len(await rows(rig, domain)) < 2:
                    await pause()
            await rig.ok("DELETE", f"/api/domains/{domain}")
        assert await rows(rig, domain) == []


async def test_a_client_that_leaves_during_an_upload_leaves_no_file_and_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        incoming = rig.settings.data / "incoming"
        counts: list[int] = []
        pieces: list[Json] = [
            {"type": "http.request", "body": part("a.md") + TEXT, "more_body": True},
            {"type": "http.request", "body": TEXT, "more_body": True},
        ]

        async def receive() -> Json:
            counts.append(len(list(incoming.iterdir())) if incoming.exists() else 0)
            return pieces.pop(0) if pieces else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            """Nobody listens."""

        with caplog.at_level(logging.WARNING):
            for path in (f"/api/domains/{domain}/documents", "/api/domains"):
                await rig.application.app(request_scope(path), receive, send)
        assert max(counts) == 1
        assert list(incoming.iterdir()) == []
        assert await rows(rig, domain) == []
        assert caplog.records == []
        assert await audited(rig, outcome="refused") == []


def request_scope(path: str) -> Json:
    """Return a POST as it comes from our own process, which needs no key."""
    headers = [(b"host", b"127.0.0.1"), *((name.encode(), value.encode()) for name, value in MULTIPART.items())]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", None),
    }


async def test_all_readable_files_are_ingested_and_the_others_have_a_reason(tmp_path: Path) -> None:
    async with Rig(tmp_path, max_upload_bytes=1_000) as rig:
        domain = await rig.domain()
        path = f"/api/domains/{domain}/documents"
        files = [("a.md", TEXT), ("tool.exe", b"MZ"), ("large.md", b"word " * 300), ("b.md", OTHER)]
        upload = await rig.ok("POST", path, files=[("f", file) for file in files])
        assert [item["name"] for item in upload["items"]] == ["a.md", "tool.exe", "large.md", "b.md"]
        first, program, large, second = upload["items"]
        assert "error" not in first
        assert (program["status"], program["error"]["code"]) == ("refused", "DOCUMENT_UNSUPPORTED")
        assert (large["status"], large["error"]["code"]) == ("refused", "DOCUMENT_TOO_LARGE")
        assert "large.md" in large["error"]["message"]
        assert "id" not in program
        for item in (first, second):
            assert (await rig.settled(domain, item["id"]))["status"] == "indexed"
        assert [row.name for row in await rows(rig, domain)] == ["a.md", "b.md"]
        assert list((rig.settings.data / "incoming").iterdir()) == []


async def test_an_upload_without_a_valid_file_returns_the_first_error(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        path = f"/api/domains/{await rig.domain()}/documents"
        for files in ([("a.exe", b"MZ")], [("a.exe", b"MZ"), ("b.dll", b"MZ")]):
            refusal = await rig.refused("POST", path, files=[("f", file) for file in files])
            assert refusal[:2] == (415, "DOCUMENT_UNSUPPORTED")
            assert "a.exe" in refusal[2]


@pytest.mark.parametrize(
    ("last_part", "code"),
    [
        (part("b.md") + b"half", "VALIDATION_ERROR"),
        (part("endless.md") + b"word " * 300, "DOCUMENT_TOO_LARGE"),
        (part("endless.exe") + b"word " * 300, "DOCUMENT_UNSUPPORTED"),
    ],
    ids=["cut off", "endless", "endless of no known kind"],
)
async def test_an_interrupted_upload_lists_the_files_already_received(
    tmp_path: Path, last_part: bytes, code: str
) -> None:
    pieces = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal pieces
        yield part("a.md") + TEXT + b"\r\n"
        yield last_part
        while code != "VALIDATION_ERROR" and pieces < 100:
            pieces += 1
            yield b"word " * 300

    async with Rig(tmp_path, max_upload_bytes=1_000) as rig:
        domain = await rig.domain()
        upload = await rig.ok("POST", f"/api/domains/{domain}/documents", content=body(), headers=MULTIPART)
        first, second_item = upload["items"]
        assert (await rig.settled(domain, first["id"]))["status"] == "indexed"
        assert (second_item["name"], second_item["error"]["code"]) == (
            last_part.split(b'filename="')[1].split(b'"')[0].decode(),
            code,
        )
        assert pieces <= 1, "the rest was not waited for"
        assert list((rig.settings.data / "incoming").iterdir()) == []


async def test_files_beyond_the_upload_limit_are_refused_by_name(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        path = f"/api/domains/{await rig.domain()}/documents"
        files = [("f", (f"{number}.md", f"Text {number}.".encode())) for number in range(102)]
        items = (await rig.ok("POST", path, files=files))["items"]
        assert [item.get("error", {}).get("code") for item in items] == [None] * 100 + ["VALIDATION_ERROR"]


async def test_a_domain_deleted_between_two_files_is_one_error(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()

        async def body() -> AsyncIterator[bytes]:
            yield part("a.md") + TEXT + b"\r\n" + part("b.md") + OTHER
            await rig.ok("DELETE", f"/api/domains/{domain}?workspace=true")
            yield END

        refusal = await rig.refused("POST", f"/api/domains/{domain}/documents", content=body(), headers=MULTIPART)
        assert refusal[:2] == (404, "DOMAIN_NOT_FOUND")
        await check_nothing_left(rig, domain)


async def test_replacing_a_document_by_another_ones_bytes_keeps_one(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        path = f"/api/domains/{domain}/documents"
        dup = await rig.upload(domain, "dup.md", TEXT)
        await rig.upload(domain, "rep.md", OTHER)
        for _ in range(2):  # a repetition changes nothing
            uploaded_again = await rig.ok("POST", f"{path}?replace=true", files={"f": ("rep.md", TEXT)})
            assert [item["id"] for item in uploaded_again["items"]] == [dup["id"]]
            assert [row.name for row in await rows(rig, domain)] == ["dup.md"]
            assert (await rig.ok("POST", f"{path}/search", {"query": "pump"}))["hits"] == []
            assert len((await rig.ok("POST", f"{path}/search", {"query": "paid leave"}))["hits"]) == 1
            folder = rig.settings.workspaces / domain / "documents"
            assert [file.name for file in folder.iterdir()] == ["dup.md"]
        uploaded_again = await rig.ok("POST", f"{path}?replace=true", files={"f": ("dup.md", TEXT)})
        assert [item["id"] for item in uploaded_again["items"]] == [dup["id"]], "its own bytes replace nothing"


async def test_a_multipart_boundary_that_is_too_long_is_an_invalid_body(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        headers = {"content-type": "multipart/form-data; boundary=" + "x" * 5_000}
        path = f"/api/domains/{await rig.domain()}/documents"
        refusal = await rig.refused("POST", path, content=part("a.md") + TEXT + END, headers=headers)
        assert refusal[:2] == (422, "VALIDATION_ERROR")
