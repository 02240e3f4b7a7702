"""Scanned pages are read by OCR, stored page by page, marked on the scan, and named if they are not read."""

import io
from base64 import b64decode
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import anyio
import pypdfium2
import pytest
from PIL import Image, ImageDraw, ImageFont

from agentic_rag.documents.model_scans import NO_TEXT
from agentic_rag.testing.failpoints import EXIT_CODE, VARIABLE
from agentic_rag.testing.scripted import ScriptedModel
from agentic_rag.testing.steps import Cite, Say, Step, say, use
from mcp_servers.retriever.document import ParseLimits
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats.ocr import read_image
from tests.e2e.serving import environment
from tests.programs import run_victim
from tests.retriever import files
from tests.server.rig import Json, Rig
from tests.waiting import pause

needs_ocr = pytest.mark.skipif(find_spec("rapidocr") is None, reason="needs the extra ocr")

REPOSITORY = Path(__file__).resolve().parents[2]
NOTICE = ["The inner berth is closed from 5 May to 23 May.", "Divers work between 07:00 and 15:30."]


def draw_lines(lines: list[str], *, turn: int = 0) -> Image.Image:
    """Return an image of text lines on a page of 620 × 440 pixels, turned clockwise."""
    image = Image.new("RGB", (620, 440), "white")
    font = ImageFont.load_default(22)
    for number, line in enumerate(lines):
        ImageDraw.Draw(image).text((40, 60 + 60 * number), line, fill="black", font=font)
    return image.rotate(-turn, expand=True)


PATIENCE_SECONDS = 240.0
"""OCR runs at low priority, so a page takes a while on a busy machine."""


def make_scan(*pages: Image.Image) -> bytes:
    """Return a PDF whose pages are images."""
    file = io.BytesIO()
    pages[0].save(file, "PDF", save_all=True, append_images=pages[1:], resolution=100)
    return file.getvalue()


async def upload_file(rig: Rig, domain: str, name: str, data: bytes) -> Json:
    """Return an uploaded document after the end of its ingestion."""
    answer = await rig.ok("POST", f"/api/domains/{domain}/documents", files={"f": (name, data)})
    return await wait_until_ingested(rig, domain, answer["items"][0]["id"])


async def wait_until_ingested(rig: Rig, domain: str, document: str) -> Json:
    with anyio.fail_after(PATIENCE_SECONDS):
        checks = count()
        while True:
            record: Json = await rig.ok("GET", f"/api/domains/{domain}/documents/{document}")
            if record["status"] in ("indexed", "failed"):
                return record
            await pause(next(checks))


@needs_ocr
async def test_scanned_pages_are_read_once_within_the_budget_cited_and_marked(tmp_path: Path) -> None:
    mixed_pdf = pypdfium2.PdfDocument(files.pdf(tmp_path / "a.pdf", [[(10, "The keeper signs the list.")]]))
    mixed_pdf.import_pages(pypdfium2.PdfDocument(make_scan(draw_lines(NOTICE), draw_lines(["beyond the budget"]))))
    file = io.BytesIO()
    mixed_pdf.save(file)
    places: list[str] = []
    async with Rig(tmp_path, failpoint=places.append, ocr_pages=1) as rig:
        domain = await rig.domain()
        document = await upload_file(rig, domain, "mixed.pdf", file.getvalue())
        assert document["progress"]["notes"] == [
            "read from a scan by OCR: pages 2",
            "no text layer on 1 of 3 pages; OCR reads 1 pages of a document",
        ]
        path = f"/api/domains/{domain}/documents/{document['id']}"
        text_chunk, scanned_chunk = (await rig.ok("GET", f"{path}/chunks"))["items"]
        assert (text_chunk["page"], text_chunk["text"], "scanned" in text_chunk) == (
            1,
            "The keeper signs the list.",
            False,
        )
        assert (scanned_chunk["page"], scanned_chunk["text"], scanned_chunk["scanned"]) == (2, " ".join(NOTICE), True)
        query = {"text": NOTICE[1]}
        place = await rig.ok("GET", f"/api/domains/{domain}/chunks/{scanned_chunk['chunkId']}/place", params=query)
        assert (place["kind"], place["page"]["found"]) == ("page", "whole")
        (box,) = place["page"]["cited"]
        assert 0.2 < box["y"] < 0.35, "the second line of the page"
        assert box["x"] < 0.1
        assert 0.4 < box["width"] < 0.9
        assert await rig.ok("POST", f"{path}/retry")
        assert (await wait_until_ingested(rig, domain, document["id"]))["progress"]["notes"] == document["progress"][
            "notes"
        ]
        assert places.count("ingest.scanned") == 1, "a page is read once"
        await rig.ok("DELETE", path)


@needs_ocr
async def test_an_image_is_cited_as_a_scan_and_shown_with_the_line_marked(tmp_path: Path) -> None:
    file = io.BytesIO()
    draw_lines(NOTICE).save(file, "PNG")
    steps = (use("search_documents", query="when do divers work"), say("From seven.", Cite(0, 1)))
    async with Rig(tmp_path, *steps) as rig:
        domain = await rig.domain()
        assert (await upload_file(rig, domain, "notice.png", file.getvalue()))["status"] == "indexed"
        events = await rig.say(await rig.conversation(domain), "When do the divers work?")
        (reference,) = [event for event in events if event["type"] == "source_reference"]
        assert (reference["scanned"], reference["page"]) == (True, 1)
        assert reference["citedText"] == NOTICE[1]
        query = {"text": NOTICE[1]}
        place = await rig.ok("GET", f"/api/domains/{domain}/chunks/{reference['chunkId']}/place", params=query)
        assert (place["kind"], place["page"]["found"]) == ("page", "whole")
        (box,) = place["page"]["cited"]
        assert box["y"] < 134 / 440 < box["y"] + box["height"], "the second line of the image"
        response = await rig.http.get(place["page"]["image"], params={"width": 310})
        with Image.open(io.BytesIO(response.content)) as page_image:
            assert (page_image.format, page_image.size) == ("PNG", (310, 220))


@needs_ocr
@pytest.mark.sqlite("the killed server has a file")
@pytest.mark.parametrize("place", ["ingest.scan:2", "ingest.scanned"])
async def test_a_killed_server_continues_at_the_next_page(tmp_path: Path, place: str) -> None:
    (tmp_path / "notice.pdf").write_bytes(make_scan(draw_lines(NOTICE[:1]), draw_lines(NOTICE[1:])))
    variables = environment(**{VARIABLE: place})
    process = await run_victim("tests.ingestion.ocr_victim", tmp_path, tmp_path / "notice.pdf", env=variables)
    assert process.returncode == EXIT_CODE, process.stderr[-2000:]
    places: list[str] = []
    async with Rig(tmp_path, failpoint=places.append) as rig:
        rig.application.begin()
        (domain,) = [item["id"] for item in (await rig.ok("GET", "/api/domains"))["items"]]
        (document,) = (await rig.ok("GET", f"/api/domains/{domain}/documents"))["items"]
        assert (await wait_until_ingested(rig, domain, document["id"]))["status"] == "indexed"
        chunks = (await rig.ok("GET", f"/api/domains/{domain}/documents/{document['id']}/chunks"))["items"]
        assert [(chunk["page"], chunk["text"]) for chunk in chunks] == list(enumerate(NOTICE, 1))
        assert places.count("ingest.scanned") == 1, "the first page was stored before the kill"


async def test_unreadable_images_have_the_reason(tmp_path: Path) -> None:
    limits = ParseLimits()
    for name, data, reason in (
        ("huge.png", files.white_png(30_000, 30_000), "the image has 30,000 × 30,000 pixels; the limit is 120 million"),
        ("cut.png", b"\x89PNG\r\n", "the file is no readable PNG, JPEG, TIFF or WebP image"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DocumentError) as exc_info:
            read_image(tmp_path / name, limits)
        assert exc_info.value.message == reason


async def test_without_ocr_a_scan_has_a_note(tmp_path: Path) -> None:
    async with Rig(tmp_path, ocr_pages=0) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "notice.pdf", make_scan(draw_lines(NOTICE)))
        assert document["error"]["code"] == "DOCUMENT_SCANNED"
        assert "scanned PDF: no text layer on 1 of 1 pages" in document["error"]["message"]


class SeeingModel(ScriptedModel):
    """A scripted model that records the images it receives."""

    @property
    def images(self) -> list[Image.Image]:
        """The images of all requests so far."""
        blocks = [block for request in self.requests for block in request.messages[0]["content"]]
        data = [b64decode(block["source"]["data"]) for block in blocks if block["type"] == "image"]
        return [Image.open(io.BytesIO(image_bytes)) for image_bytes in data]


PAGE_AS_MARKDOWN = "# Notice 7\n\nThe inner berth is closed.\n\n| Quay | Fee |\n|---|---|\n| North |  |\n| South | 12 |"


async def test_a_domains_model_reads_scans_within_its_page_limit_with_cost_and_failures_per_page(
    tmp_path: Path,
) -> None:
    mixed_pdf = pypdfium2.PdfDocument(files.pdf(tmp_path / "a.pdf", [[(10, "The keeper signs the list.")]]))
    mixed_pdf.import_pages(pypdfium2.PdfDocument(make_scan(*(draw_lines([str(number)]) for number in range(4)))))
    file = io.BytesIO()
    mixed_pdf.save(file)
    model = SeeingModel(
        say(PAGE_AS_MARKDOWN),
        Step((Say("no"),), stop_reason="refusal"),
        Step((Say("first line\nhalf a li"),), stop_reason="max_tokens"),
        say("second attempt"),
        say(NO_TEXT),
        use("search_documents", query="which fee has the south quay"),
        say("Twelve.", Cite(0, 1)),
    )
    async with Rig(tmp_path, instead=model, ocr_pages=0) as rig:
        domain = await rig.domain(scans={"reader": "model", "pages": 3})
        document = await upload_file(rig, domain, "mixed.pdf", file.getvalue())
        assert document["progress"]["notes"] == [
            "read from a scan by the model: pages 2, 4",
            f"scanned pages 3 were not read: the model '{model.requests[1].model}' declined to read it",
            "scanned pages 4 were only read in part: its text is longer than 8,192 tokens",
            "no text layer on 1 of 5 pages; the model reads 3 pages of a document",
        ]
        assert [(max(image.size), image.format) for image in model.images] == [(1240, "PNG")] * 3
        assert not any(request.tools for request in model.requests)
        path = f"/api/domains/{domain}/documents/{document['id']}"
        chunks = (await rig.ok("GET", f"{path}/chunks"))["items"]
        by_page = {chunk["page"]: chunk for chunk in chunks}
        assert [chunk["page"] for chunk in chunks] == [1, 2, 4]
        assert by_page[2]["headingPath"] == ["Notice 7"]
        assert by_page[2]["text"] == "The inner berth is closed.\n\nQuay | Fee\nNorth | \nSouth | 12".replace(
            "| \n", "|\n"
        )
        assert (by_page[2]["scanned"], by_page[2]["scannedBy"]) == (True, "model")
        assert by_page[4]["text"] == "first line"
        usage = await rig.ok("GET", "/api/usage?groupBy=agent")
        assert [(row["agent"], row["calls"], row["input"] > 0) for row in usage["items"]] == [("(scan)", 3, True)]
        await rig.ok("POST", f"{path}/retry")
        retried = await wait_until_ingested(rig, domain, document["id"])
        assert retried["progress"]["notes"][:2] == [
            "read from a scan by the model: pages 2-3",
            "no text was found on scanned pages: 4",
        ], "the failed pages were read again"
        events = await rig.say(await rig.conversation(domain), "Which fee has the south quay?")
        (reference,) = [event for event in events if event["type"] == "source_reference"]
        assert (reference["scanned"], reference["scannedBy"], reference["page"]) == (True, "model", 2)
        place = await rig.ok("GET", f"/api/domains/{domain}/chunks/{reference['chunkId']}/place")
        note = "a model read this page from a scan, without positions; the page is shown without marks"
        assert place["notes"][0] == note


async def test_an_unexpected_error_on_a_scanned_page_fails_its_document_only(tmp_path: Path) -> None:
    failures = [RuntimeError("nobody thought of this")]

    def fail_once(place: str) -> None:
        if place == "ingest.scan" and failures:
            raise failures.pop()

    model = SeeingModel(say("The inner berth is closed."), say("The outer berth is open."))
    async with Rig(tmp_path, instead=model, ocr_pages=0, failpoint=fail_once) as rig:
        domain = await rig.domain(scans={"reader": "model"})
        failed_document = await upload_file(rig, domain, "first.pdf", make_scan(draw_lines(["one"])))
        assert (failed_document["status"], failed_document["error"]["code"]) == ("failed", "INTERNAL_ERROR")
        assert (await upload_file(rig, domain, "second.pdf", make_scan(draw_lines(["two"]))))["status"] == "indexed"


async def test_a_model_without_image_input_is_refused_for_reading_scans(tmp_path: Path) -> None:
    async with Rig(tmp_path, scripted=False, model="extractive") as rig:
        domain = await rig.domain()
        status, code, message = await rig.refused(
            "PATCH", f"/api/domains/{domain}", {"settings": {"scans": {"reader": "model"}}}
        )
        assert (status, code) == (422, "VALIDATION_ERROR")
        assert message == "settings.scans.reader: there is no language model."
