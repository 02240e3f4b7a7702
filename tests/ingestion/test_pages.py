"""Pages of PDFs are drawn and searched outside the server, within limits, for people who may see the document."""

import io
import sys
import zlib
from base64 import b64decode
from collections.abc import Callable
from contextlib import aclosing
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from PIL import Image

from agentic_rag.base.errors import PagesBusy, PageUnreadable
from agentic_rag.documents.child_process import ChildProcess
from agentic_rag.documents.page_job import PageJob
from agentic_rag.documents.pages import CHILD, WAITING, PageCache, PageImage, PageKey
from agentic_rag.documents.pdf_pages import encode_png
from mcp_servers.retriever.errors import DocumentError
from tests.access.tenants import bearer, make_key
from tests.retriever import files
from tests.server.rig import Rig

LINES: list[files.Line] = [
    (18, "Rates"),
    (11, "Each of the full-time employees has twenty-five days of effi-"),
    (11, "cient leave. A part of it may be carried over to the next year."),
    (0, ""),
    (11, "The office closes at six. Nobody stays longer than that."),
]


def page_of(domain: str, document: str, page: object = 1) -> str:
    return f"/api/domains/{domain}/documents/{document}/pages/{page}"


def size_of(png: bytes) -> tuple[int, int]:
    """Return the size of a PNG after unpacking it completely."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
    length = int.from_bytes(png[33:37], "big")
    depth = {0: 1, 2: 3}[png[25]]
    assert len(zlib.decompress(png[41 : 41 + length])) == height * (depth * width + 1)
    return width, height


async def upload_file(rig: Rig, domain: str, path: Path) -> dict[str, Any]:
    return await rig.upload(domain, path.name, await anyio.Path(path).read_bytes())


async def test_a_member_gets_a_page_once_and_then_by_its_tag(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain, other_domain = await rig.domain(), await rig.domain()
        document = await upload_file(rig, domain, files.pdf(tmp_path / "a.pdf", [LINES, LINES]))
        member_key, stranger_key = (
            await make_key(rig, "ann", "member", domain),
            await make_key(rig, "bob", "member", other_domain),
        )
        path = page_of(domain, document["id"], 2)
        answer = await rig.http.get(path, params={"width": 400}, headers=bearer(member_key))
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "image/png"
        assert answer.headers["cache-control"] == "private, no-cache"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in answer.headers["content-security-policy"]
        assert size_of(answer.content) == (400, 566)
        tag = answer.headers["etag"]
        headers = {"if-none-match": f'W/"x", {tag}', **bearer(member_key)}
        unchanged = await rig.http.get(path, params={"width": 400}, headers=headers)
        assert (unchanged.status_code, unchanged.content, unchanged.headers["etag"]) == (304, b"", tag)
        wider = await rig.http.get(path, params={"width": 401}, headers=headers)
        assert (wider.status_code, wider.headers["etag"] == tag) == (200, False)
        for domain_id in (domain, other_domain):
            refusal = await rig.http.get(
                page_of(domain_id, document["id"]), headers={**headers, **bearer(stranger_key)}
            )
            assert refusal.status_code == 404
        await rig.ok("DELETE", f"/api/domains/{domain}/documents/{document['id']}")
        answer_after = await rig.http.get(path, params={"width": 400}, headers=headers)
        assert (answer_after.status_code, answer_after.json()["error"]["code"]) == (404, "DOCUMENT_NOT_FOUND")


@pytest.mark.parametrize("pixel", [(0, 0, 0), (9, 9, 9), (1, 2, 3)])
@pytest.mark.parametrize(("width", "height"), [(1, 1), (3, 2), (200, 7)])
def test_a_png_has_its_original_pixels(pixel: tuple[int, int, int], width: int, height: int) -> None:
    pixels = bytes(pixel) + bytes(3 * (width * height - 1))
    png = encode_png(pixels, width, height)
    assert size_of(png) == (width, height)
    parts, offset = {}, 8
    while offset < len(png):
        length, kind = int.from_bytes(png[offset : offset + 4], "big"), png[offset + 4 : offset + 8]
        parts[kind] = png[offset + 8 : offset + 8 + length]
        assert zlib.crc32(kind + parts[kind]).to_bytes(4, "big") == png[offset + 8 + length : offset + 12 + length]
        offset += 12 + length
    assert list(parts) == [b"IHDR", b"IDAT", b"IEND"]
    rows = zlib.decompress(parts[b"IDAT"])
    grey = len(set(pixel)) == 1
    size = width * (1 if grey else 3) + 1
    assert [rows[start] for start in range(0, len(rows), size)] == [0] * height
    samples = b"".join(rows[start + 1 : start + size] for start in range(0, len(rows), size))
    assert (bytes(value for sample in samples for value in (sample,) * 3) if grey else samples) == pixels


async def test_the_server_starts_without_pdfium_and_without_the_mcp_library() -> None:
    libraries = {"pypdfium2", "mcp", "mcp_types"}
    script = f"import sys, agentic_rag.app.serving, agentic_rag.server.http; print(*{libraries} & set(sys.modules))"
    process = await anyio.run_process([sys.executable, "-c", script])
    assert process.stdout.decode().split() == []


async def test_an_invalid_pdf_page_is_refused_by_name(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        document = (await upload_file(rig, domain, files.pdf(tmp_path / "a.pdf", [LINES])))["id"]
        for page in (0, 2, 10**7, "-1", "1.0", "x", "１", "9" * 50):
            assert (await rig.refused("GET", page_of(domain, document, page)))[:2] == (404, "PAGE_NOT_FOUND"), page
        for width in ("199", "2001", "x"):
            refusal = await rig.refused("GET", page_of(domain, document), params={"width": width})
            assert refusal[:2] == (422, "VALIDATION_ERROR")
            assert refusal[2].startswith("width: ")
        text = (await rig.upload(domain, "a.md", b"# Leave\n\nTwenty days."))["id"]
        assert (await rig.refused("GET", page_of(domain, text)))[:2] == (415, "DOCUMENT_UNSUPPORTED")
        (rig.settings.workspaces / domain / "documents" / "a.pdf").unlink()
        assert (await rig.refused("GET", page_of(domain, document)))[:2] == (404, "FILE_NOT_FOUND")


def encrypted(path: Path) -> bytes:
    return files.pdf(path, [LINES], password="secret").read_bytes()


def cut_off(path: Path) -> bytes:
    return files.pdf(path, [LINES]).read_bytes()[:300]


def no_pdf(path: Path) -> bytes:
    return b"MZ" + bytes(range(256)) * 8


def pages_in_a_circle(path: Path) -> bytes:
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [2 0 R] /Count 1 >>",
    ]
    return pdf_of(objects)


def pdf_of(objects: list[bytes]) -> bytes:
    """Return a PDF of some objects, the first one its catalogue."""
    data = bytearray(b"%PDF-1.7\n")
    places = []
    for number, item in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, item)
    start = len(data)
    data += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    for place in places:
        data += b"%010d 00000 n \n" % place
    data += b"trailer\n<< /Root 1 0 R /Size %d >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)
    return bytes(data)


def page_sized(width: float, height: float, content: bytes = b"") -> bytes:
    stream = b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content)
    box = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 %g %g] /Contents 4 0 R >>" % (width, height)
    return pdf_of([b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>", box, stream])


@pytest.mark.attack(kind="files")
@pytest.mark.parametrize(
    ("make", "reason"),
    [(encrypted, "DOCUMENT_ENCRYPTED"), (cut_off, "DOCUMENT_BROKEN"), (no_pdf, "DOCUMENT_BROKEN")],
)
async def test_a_pdf_that_cannot_be_opened_gives_the_reason(
    tmp_path: Path, make: Callable[[Path], bytes], reason: str
) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "a.pdf", make(tmp_path / "made.pdf"))
        for _ in range(2):  # the second time from the cache
            answer = await rig.http.get(page_of(domain, document["id"]))
            assert answer.status_code == 422, answer.text
            error = answer.json()["error"]
            assert (error["code"], error["details"]["reason"]) == ("PAGE_UNREADABLE", reason)


@pytest.mark.attack(kind="files")
async def test_pages_of_any_shape_are_drawn_within_a_number_of_pixels(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        shapes = [(14_400, 14_400), (14_400, 1), (1, 14_400), (200_000, 200_000), (0.001, 3)]
        for number, (width, height) in enumerate(shapes):
            document = await rig.upload(domain, f"{number}.pdf", page_sized(width, height))
            answer = await rig.http.get(page_of(domain, document["id"]), params={"width": 2_000})
            assert answer.status_code == 200, answer.text
            png_width, png_height = size_of(answer.content)
            assert 1 <= png_width <= 2_000
            assert png_width * png_height <= 6_000_000
        circle = await rig.upload(domain, "circle.pdf", pages_in_a_circle(tmp_path))
        answer = await rig.http.get(page_of(domain, circle["id"]))
        assert answer.json()["error"]["code"] in ("PAGE_NOT_FOUND", "PAGE_UNREADABLE")


@pytest.mark.attack(kind="files")
async def test_one_of_two_thousand_pages_is_drawn(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        document = await upload_file(rig, domain, files.pdf(tmp_path / "a.pdf", [[(10, "x")]] * 2_000))
        assert document["error"]["code"] == "DOCUMENT_TOO_LARGE"  # not searched, but the file exists
        answer = await rig.http.get(page_of(domain, document["id"], 2_000), params={"width": 200})
        assert size_of(answer.content) == (200, 283)
        assert (await rig.refused("GET", page_of(domain, document["id"], 2_001)))[1] == "PAGE_NOT_FOUND"


@pytest.mark.attack(kind="files")
async def test_a_page_image_that_takes_too_long_times_out_and_the_next_is_drawn(tmp_path: Path) -> None:
    tangle = b"0 0 m " + b"500 500 l 0 500 l 500 0 l 3 7 l " * 100_000 + b"f*\n"
    slow_pdf, fast_pdf = page_sized(595, 842, tangle * 3), files.pdf(tmp_path / "a.pdf", [LINES]).read_bytes()
    async with aclosing(ChildProcess(CHILD, 120.0, "drawing the page")) as process:
        with pytest.raises(DocumentError) as exc_info:
            await draw_page(process, tmp_path / "slow.pdf", slow_pdf, seconds=1)
        assert exc_info.value.code == "DOCUMENT_TIMEOUT"
        await process.reset()
        assert size_of(b64decode((await draw_page(process, tmp_path / "fine.pdf", fast_pdf))["png"])) == (300, 424)


async def test_an_image_is_drawn_with_its_orientation_and_all_frames(tmp_path: Path) -> None:
    turned, frames = io.BytesIO(), io.BytesIO()
    orientation = Image.Exif()
    orientation[0x0112] = 6  # the camera was held upright
    Image.new("RGB", (600, 400), "white").save(turned, "JPEG", exif=orientation)
    Image.new("L", (90, 60)).save(frames, "TIFF", save_all=True, append_images=[Image.new("RGBA", (900, 300))])
    async with aclosing(ChildProcess(CHILD, 60.0, "drawing the page")) as process:
        frame = await draw_page(process, tmp_path / "a.jpg", turned.getvalue(), is_image=True)
        assert size_of(b64decode(frame["png"])) == (300, 450)
        frame = await draw_page(process, tmp_path / "a.tif", frames.getvalue(), is_image=True)
        assert (frame["pages"], size_of(b64decode(frame["png"]))) == (2, (90, 60))
        frame = await draw_page(process, tmp_path / "a.tif", frames.getvalue(), is_image=True, page=2)
        assert size_of(b64decode(frame["png"])) == (300, 100)
        assert await draw_page(process, tmp_path / "a.tif", frames.getvalue(), is_image=True, page=3) == {"pages": 2}
        with pytest.raises(DocumentError, match="30,000 × 30,000 pixels"):
            await draw_page(process, tmp_path / "a.png", files.white_png(30_000, 30_000), is_image=True)


@pytest.mark.attack(kind="files")
async def test_a_page_image_with_too_much_memory_or_other_bytes_is_refused(tmp_path: Path) -> None:
    data = files.pdf(tmp_path / "a.pdf", [LINES]).read_bytes()
    async with aclosing(ChildProcess(CHILD, 60.0, "drawing the page")) as process:
        with pytest.raises(DocumentError) as exc_info:
            await draw_page(process, tmp_path / "a.pdf", data + bytes(64 * 2**20), memory_bytes=48 * 2**20)
        assert exc_info.value.code in ("DOCUMENT_TOO_LARGE", "DOCUMENT_BROKEN")
        with pytest.raises(DocumentError, match="not the one that was read") as exc_info:
            await draw_page(process, tmp_path / "a.pdf", data, sha256="0" * 64)
        assert exc_info.value.code == "DOCUMENT_MISSING"


async def draw_page(process: ChildProcess, path: Path, data: bytes, **options: Any) -> Any:
    await anyio.Path(path).write_bytes(data)
    job = {"sha256": sha256(data).hexdigest(), "memory_bytes": 2**30, "seconds": 60.0, "page": 1, **options}
    with path.open("rb") as file:
        await process.send(orjson.dumps(PageJob("", width=300, **job)), file)
        frame = await process.frame()
    assert await process.frame() is None
    return frame


async def test_domains_alternate_after_a_limited_number_of_pages(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        busy_domain, other_domain = await rig.domain(), await rig.domain()
        count = WAITING + 8
        long_document = await upload_file(rig, busy_domain, files.pdf(tmp_path / "many.pdf", [[(10, "x")]] * count))
        short_document = await upload_file(rig, other_domain, files.pdf(tmp_path / "one.pdf", [LINES]))
        answers: list[tuple[str, int]] = []

        async def ask(domain: str, document: str, page: int) -> None:
            answer = await rig.http.get(page_of(domain, document, page), params={"width": 200})
            answers.append((domain, answer.status_code))

        async with anyio.create_task_group() as tasks:
            for page in range(1, count + 1):
                tasks.start_soon(ask, busy_domain, long_document["id"], page)
            tasks.start_soon(ask, other_domain, short_document["id"], 1)
        assert (other_domain, 200) in answers[:-1], "another domain's page does not wait for all of these"
        refusals = [status for domain, status in answers if status != 200]
        assert refusals
        assert set(refusals) == {429}
        assert len(refusals) <= 8


async def test_concurrent_requests_for_a_page_share_one_drawing(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        document = await upload_file(rig, domain, files.pdf(tmp_path / "a.pdf", [LINES]))
        images: list[bytes] = []

        async def ask() -> None:
            images.append((await rig.http.get(page_of(domain, document["id"]))).content)

        async with anyio.create_task_group() as tasks:
            for _ in range(WAITING + 20):  # more than may wait for different ones
                tasks.start_soon(ask)
        assert len(images) == WAITING + 20
        assert len(set(images)) == 1
        assert size_of(images[0]) == (1_000, 1_414)


async def test_a_citation_is_read_without_its_page_while_the_pages_of_others_are_drawn(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        document = await upload_file(rig, domain, files.pdf(tmp_path / "a.pdf", [LINES]))
        chunks = await rig.ok("GET", f"/api/domains/{domain}/documents/{document['id']}/chunks")
        place = f"/api/domains/{domain}/chunks/{chunks['items'][0]['chunkId']}/place"
        page_refused = anyio.Event()

        async def draw(width: int) -> None:
            answer = await rig.http.get(page_of(domain, document["id"]), params={"width": width})
            if answer.status_code == 429:
                page_refused.set()

        async with anyio.create_task_group() as tasks:
            for number in range(WAITING + 20):
                tasks.start_soon(draw, 2_000 - number)
            await page_refused.wait()
            citation = await rig.ok("GET", place)
            tasks.cancel_scope.cancel()
        assert "twenty-five days" in citation["text"]
        assert citation["page"]["number"] == 1
        assert citation["notes"] or citation["page"]["passage"]


def test_the_page_cache_is_bounded_and_drops_the_oldest() -> None:
    cache = PageCache(10_000)
    keys = [PageKey("doc", "hash", page, 200) for page in range(1, 30)]
    for key in keys:
        cache.put(key, PageImage(bytes(2_000)))
        assert cache.get(keys[0]) is not None, "what is asked for stays"
        assert cache.size <= 10_000
    assert cache.get(keys[-1]) is not None
    assert cache.get(keys[1]) is None
    cache.put(PageKey("doc", "hash", 99, 200), PageImage(bytes(10_001)))
    assert cache.size <= 10_000
    cache.put(PageKey("doc", "hash", 98, 200), PagesBusy(1.0))
    assert cache.get(PageKey("doc", "hash", 98, 200)) is None
    cache.put(PageKey("doc", "hash", 97, 200), PageUnreadable("DOCUMENT_BROKEN", "no"))
    assert cache.get(PageKey("doc", "hash", 97, 200)) is not None
