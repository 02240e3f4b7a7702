"""Scanned pages: read by OCR, kept page by page, marked on the scan, and named where they are not read."""

import io
from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFont

from agentic_rag.store import scans
from tests.retriever import files
from tests.server.rig import Json, Rig

needs_ocr = pytest.mark.skipif(find_spec("rapidocr") is None, reason="needs the extra ocr")

NOTICE = ["The inner berth is closed from 5 May to 23 May.", "Divers work between 07:00 and 15:30."]
ORDER = ["The warehouse orders forty new fenders in June.", "They are delivered to the outer quay."]


def picture(lines: list[str], *, turn: int = 0) -> Image.Image:
    """Return an image of text lines on a page of 620 × 440 pixels, turned clockwise."""
    image = Image.new("RGB", (620, 440), "white")
    font = ImageFont.load_default(22)
    for number, line in enumerate(lines):
        ImageDraw.Draw(image).text((40, 60 + 60 * number), line, fill="black", font=font)
    return image.rotate(-turn, expand=True)


def scan(*pages: Image.Image) -> bytes:
    """Return a PDF whose pages are images."""
    file = io.BytesIO()
    pages[0].save(file, "PDF", save_all=True, append_images=pages[1:], resolution=100)
    return file.getvalue()


async def chunks_of(rig: Rig, domain: str, document: str) -> list[Json]:
    found: list[Json] = (await rig.ok("GET", f"/api/domains/{domain}/documents/{document}/chunks"))["items"]
    return found


@needs_ocr
async def test_a_scan_is_searched_cited_and_marked_and_says_that_it_is_one(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "notice.pdf", scan(picture(NOTICE), picture(ORDER)))
        assert document["status"] == "indexed"
        assert document["progress"]["notes"] == ["read from a scan by OCR: pages 1-2"]
        found = await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": "new fenders"})
        (hit,) = [each for each in found["hits"] if each["page"] == 2]
        assert hit["scanned"] is True
        assert hit["sentences"][0]["text"] == ORDER[0]
        chunk = hit["sentences"][0]["chunkId"]
        query = {"text": ORDER[1]}
        place = await rig.ok("GET", f"/api/domains/{domain}/chunks/{chunk}/place", params=query)
        assert (place["kind"], place["page"]["found"]) == ("page", "whole")
        (box,) = place["page"]["cited"]
        assert 0.2 < box["y"] < 0.35, "the second line of the page"
        assert box["x"] < 0.1
        assert 0.4 < box["width"] < 0.9


@needs_ocr
async def test_pages_with_text_are_read_as_text_and_only_the_others_as_scans(tmp_path: Path) -> None:
    import pypdfium2

    whole = pypdfium2.PdfDocument(files.pdf(tmp_path / "a.pdf", [[(10, "The keeper signs the list.")]]))
    whole.import_pages(pypdfium2.PdfDocument(scan(picture(NOTICE))))
    file = io.BytesIO()
    whole.save(file)
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "mixed.pdf", file.getvalue())
        assert document["progress"]["notes"] == ["read from a scan by OCR: pages 2"]
        assert [(each["page"], each["text"]) for each in await chunks_of(rig, domain, document["id"])] == [
            (1, "The keeper signs the list."),
            (2, " ".join(NOTICE)),
        ]


@needs_ocr
async def test_the_budget_of_pages_is_kept_and_the_rest_is_named(tmp_path: Path) -> None:
    async with Rig(tmp_path, ocr_pages=1) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "notice.pdf", scan(picture(NOTICE), picture(ORDER)))
        assert document["progress"]["notes"] == [
            "read from a scan by OCR: pages 1",
            "no text layer on 1 of 2 pages; OCR reads 1 pages of a document",
        ]
        assert {each["page"] for each in await chunks_of(rig, domain, document["id"])} == {1}


@needs_ocr
async def test_pages_that_were_read_are_not_read_again_and_go_with_their_document(tmp_path: Path) -> None:
    pages: list[str] = []
    async with Rig(tmp_path, failpoint=pages.append) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "notice.pdf", scan(picture(NOTICE)))
        read = pages.count("ingest.scanned")
        await rig.ok("POST", f"/api/domains/{domain}/documents/{document['id']}/retry")
        await rig.settled(domain, document["id"])
        assert (read, pages.count("ingest.scanned")) == (1, 1)
        await rig.ok("DELETE", f"/api/domains/{domain}/documents/{document['id']}")
        count = await rig.application.database.read(
            lambda conn: len(scans.of_document(conn, document["id"], document["sha256"]))
        )
        assert count == 0


@needs_ocr
async def test_an_image_is_a_document_in_whichever_direction_it_was_taken(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        for turn, name in ((0, "a.png"), (90, "b.webp"), (180, "c.tiff")):
            file = io.BytesIO()
            picture(NOTICE, turn=turn).save(file, Path(name).suffix[1:].upper())
            document = await rig.upload(domain, name, file.getvalue())
            assert [each["text"] for each in await chunks_of(rig, domain, document["id"])] == [" ".join(NOTICE)]


@needs_ocr
async def test_noise_and_an_image_of_too_many_pixels_say_what_they_are(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        noise = io.BytesIO()
        Image.effect_noise((400, 400), 90).save(noise, "PNG")
        huge = io.BytesIO()
        Image.new("1", (30_000, 30_000), 1).save(huge, "PNG")
        failed = {}
        for name, data in (("noise.png", noise.getvalue()), ("huge.png", huge.getvalue()), ("cut.png", b"\x89PNG\r\n")):
            failed[name] = (await rig.upload(domain, name, data))["error"]
        assert (failed["noise.png"]["code"], failed["noise.png"]["message"]) == (
            "DOCUMENT_EMPTY",
            "no text was found on the image",
        )
        assert failed["huge.png"]["message"] == "the image has 30,000 × 30,000 pixels; the limit is 120 million"
        assert failed["cut.png"]["code"] == "DOCUMENT_BROKEN"


async def test_without_ocr_a_scan_says_so(tmp_path: Path) -> None:
    async with Rig(tmp_path, ocr_pages=0) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "notice.pdf", scan(picture(NOTICE)))
        assert document["error"]["code"] == "DOCUMENT_SCANNED"
        assert document["error"]["message"].startswith("scanned PDF: no text layer on 1 of 1 pages")
