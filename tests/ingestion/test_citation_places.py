"""The place of a citation on its page, in its table or between its paragraphs, as text and as safe HTML."""

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from agentic_rag.models.base import ModelRequest
from agentic_rag.testing.steps import Cite, Say, Step, use
from tests.access.tenants import as_operator, bearer, make_key
from tests.ingestion.test_pages import pdf_of
from tests.retriever import files
from tests.server.rig import Rig

LINES: list[files.Line] = [
    (18, "Rates"),
    (11, "Each of the full-time employees has twenty-five days of effi-"),
    (11, "cient leave. A part of it may be carried over to the next year."),
    (0, ""),
    (11, "The office closes at six. Nobody stays longer than that."),
]
CARRIED = "A part of it may be carried over to the next year."


async def chunks_of(rig: Rig, domain: str, name: str, data: bytes) -> list[dict[str, Any]]:
    document = await rig.upload(domain, name, data)
    assert document["status"] == "indexed", document
    answer = await rig.ok("GET", f"/api/domains/{domain}/documents/{document['id']}/chunks")
    return list(answer["items"])


async def place_of(rig: Rig, domain: str, chunk: str, **params: Any) -> dict[str, Any]:
    place = await rig.ok("GET", f"/api/domains/{domain}/chunks/{chunk}/place", params=params)
    return dict(place)


def is_inside(box: dict[str, float], boxes: list[dict[str, float]]) -> bool:
    """Return whether the middle of a box lies inside another one."""
    middle_x, middle_y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    return any(
        outer["x"] <= middle_x <= outer["x"] + outer["width"] and outer["y"] <= middle_y <= outer["y"] + outer["height"]
        for outer in boxes
    )


async def test_a_sentence_is_marked_on_the_page_of_a_pdf(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        (chunk,) = await chunks_of(rig, domain, "a.pdf", files.pdf(tmp_path / "a.pdf", [LINES]).read_bytes())
        start = chunk["text"].index(CARRIED)
        place = await place_of(rig, domain, chunk["chunkId"], start=start, end=start + len(CARRIED))
        assert (place["kind"], place["headingPath"]) == ("page", ["Rates"])
        assert place["cited"] == {"start": start, "end": start + len(CARRIED), "text": CARRIED}
        page = place["page"]
        assert (page["number"], page["found"], place["notes"]) == (1, "whole", [])
        assert (round(page["width"]), round(page["height"])) == (595, 842)
        assert len(page["passage"]) == 3, "one for each line"
        (mark,) = page["cited"]
        assert is_inside(mark, page["passage"])
        top = 1 - (800 - 18 * 1.2 - 11 * 1.2) / page["height"]  # the baseline of its line
        assert mark["y"] < top < mark["y"] + mark["height"] + 0.005
        assert mark["x"] > 60 / page["width"] + 0.05, "not from the beginning of the line"
        by_text = await place_of(rig, domain, chunk["chunkId"], text=f"  {CARRIED.upper()} ")
        assert by_text == {**place, "cited": {**place["cited"], "end": by_text["cited"]["end"], "text": CARRIED[:-1]}}
        answer = await rig.http.get(page["image"], params={"width": 300})
        assert answer.headers["content-type"] == "image/png"


def page_of_text(content: bytes, boxes: bytes) -> bytes:
    """Return a PDF of one page with the content, in Helvetica, and with the boxes."""
    return pdf_of(
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            b"<< /Type /Page /Parent 2 0 R %s /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>" % boxes,
            b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
            b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        ]
    )


def rotated_pdf() -> bytes:
    """Return a PDF whose page is rotated, and whose origin is not zero."""
    content = b"BT /F1 12 Tf 120 680 Td (Turned pages are shown as readers hold them.) Tj ET"
    return page_of_text(content, b"/MediaBox [0 0 600 800] /CropBox [100 100 500 700] /Rotate 90")


async def test_marks_cover_the_text_of_a_rotated_and_cropped_page(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        (chunk,) = await chunks_of(rig, domain, "a.pdf", rotated_pdf())
        page = (await place_of(rig, domain, chunk["chunkId"], text=chunk["text"]))["page"]
        assert (page["width"], page["height"]) == (600, 400)
        (box,) = page["cited"]
        assert box["height"] > box["width"], "the line runs down the page"
        assert box["x"] > 0.9, "what was at the top is at the right"
        assert box["y"] < 0.1


def table_pdf(turn: bytes = b"") -> bytes:
    """Return a PDF with a table of a header and three rows, and a page number below it; ``turn``: its entry /Rotate."""
    rows = [
        ("Grade", "Days", "Notice"),
        ("Junior", "25", "one month"),
        ("Senior", "28", "three months"),
        ("Lead", "30", "six"),
    ]
    cells = [
        (60 + 160 * column, 700 - 20 * row, text) for row, line in enumerate(rows) for column, text in enumerate(line)
    ]
    content = b"".join(b"BT /F1 11 Tf %d %d Td (%s) Tj ET\n" % (x, y, text.encode()) for x, y, text in cells)
    return page_of_text(content + b"BT /F1 11 Tf 300 40 Td (1) Tj ET", b"/MediaBox [0 0 600 800] " + turn)


async def test_the_row_of_a_table_in_a_pdf_is_marked(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        chunks = await chunks_of(rig, domain, "a.pdf", table_pdf())
        chunk = next(candidate for candidate in chunks if "Senior" in candidate["text"])
        assert "Senior | 28 | three months" in chunk["text"], "the cells are told apart"
        page = (await place_of(rig, domain, chunk["chunkId"], text="Senior | 28 | three months"))["page"]
        middle = 1 - (700 - 40 + 4) / 800
        assert page["cited"]
        assert all(box["y"] < middle < box["y"] + box["height"] for box in page["cited"])
        assert min(box["x"] for box in page["cited"]) < 0.11
        assert max(box["x"] + box["width"] for box in page["cited"]) > 380 / 600


@pytest.mark.parametrize(
    "turn",
    [0, 90, *(pytest.param(turn, marks=pytest.mark.nightly("a turned page runs every time")) for turn in (180, 270))],
)
async def test_a_cited_cell_keeps_its_header_and_row_from_the_upload_to_the_page(tmp_path: Path, turn: int) -> None:
    def answer(request: ModelRequest) -> Step:
        (texts,) = [
            [text_block["text"] for text_block in part["content"]]
            for block in request.messages[-1]["content"]
            for part in block["content"]
            if part["type"] == "search_result"
        ]
        (senior,) = [number for number, text in enumerate(texts) if text.startswith("Senior")]
        return Step(
            (
                Say("A month. ", (Cite(0, senior, senior + 1, "Senior | 28 | three months"),)),
                Say("Another row's. ", (Cite(0, senior, senior + 1, "Senior | 25"),)),
                Say("Another header's. ", (Cite(0, senior, senior + 1, "Senior | three months"),)),
            )
        )

    async with Rig(tmp_path, use("search_documents", query="notice of a senior"), answer) as rig:
        domain = await rig.domain()
        data = table_pdf(b"/Rotate %d" % turn)
        assert (await rig.upload(domain, "grades.pdf", data))["status"] == "indexed"
        events = await rig.say(await rig.conversation(domain), "Which notice has a senior?")
        (reference,) = [event for event in events if event["type"] == "source_reference"]
        assert reference["table"] == {"header": ["Grade", "Days", "Notice"], "rows": [["Senior", "28", "three months"]]}
        assert (reference["page"], "scanned" in reference) == (1, False)
        place = await place_of(rig, domain, reference["chunkId"], text=reference["citedText"])
        assert [row["cells"] for row in place["table"]["rows"] if row["cited"]] == [["Senior", "28", "three months"]]
        page = place["page"]
        assert (await rig.http.get(page["image"])).headers["content-type"] == "image/png"
        # the left end of the row and of its last cell, on its upright middle
        row_start, last_cell = (60, 664), (380, 664)
        assert page["cited"]
        for x, y in (row_start, last_cell):
            position = {0: (x, 800 - y), 90: (y, x), 180: (600 - x, y), 270: (800 - y, 600 - x)}[turn]
            width, height = (600, 800) if turn % 180 == 0 else (800, 600)
            place_on_page = {"x": position[0] / width, "y": position[1] / height, "width": 0.02, "height": 0.0}
            if turn in (180, 270):
                place_on_page = {**place_on_page, "width": -0.02 if turn == 180 else 0.0}
            if turn in (90, 270):
                place_on_page = {**place_on_page, "width": 0.0, "height": 0.02 if turn == 90 else -0.02}
            assert is_inside(place_on_page, page["cited"]), (turn, page["cited"])


async def test_chinese_is_marked_on_a_page_and_a_missing_file_is_reported(tmp_path: Path) -> None:
    lines: list[files.Line] = [
        (12, "每位全职员工每年享有二十五天带薪年"),
        (12, "假。病假需要医生证明，并且要提前一天通知。"),
    ]
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        data = files.pdf(tmp_path / "a.pdf", [lines], font="STSong-Light").read_bytes()
        (chunk,) = await chunks_of(rig, domain, "年假.pdf", data)
        place = await place_of(rig, domain, chunk["chunkId"], text="每位全职员工每年享有二十五天带薪年假。")
        assert len(place["page"]["cited"]) == 2
        (rig.settings.workspaces / domain / "documents" / "年假.pdf").unlink()
        without = await place_of(rig, domain, chunk["chunkId"], text="病假需要医生证明")
        assert without["page"]["found"] == "none"
        assert without["cited"]["text"] == "病假需要医生证明"
        assert without["notes"]


async def test_the_row_of_a_sheet_has_its_header_and_its_number(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        chunks = await chunks_of(rig, domain, "rates.xlsx", files.workbook(tmp_path / "a.xlsx").read_bytes())
        chunk = next(candidate for candidate in chunks if "City number 50 " in candidate["text"])
        place = await place_of(rig, domain, chunk["chunkId"], text="City number 50 | 75", format="html")
        assert (place["kind"], place["cells"]) == ("table", chunk["cells"])
        assert place["table"]["header"] == ["city", "rate"]
        (row,) = [row for row in place["table"]["rows"] if row["cited"]]
        assert (row["cells"], row["number"]) == (["City number 50", "75"], 53)
        assert place["text"][row["start"] : row["end"]] == "City number 50 | 75"
        assert "<th>city</th>" in place["html"]
        assert "<tr><td><mark>City number 50</mark></td><td><mark>75</mark></td></tr>" in place["html"]


async def test_rows_too_long_for_one_passage_keep_their_header(tmp_path: Path) -> None:
    rows = [
        ["name", "about"],
        *([f"n{number}", f"word{number} sentence number {number}. " * 90] for number in range(3)),
    ]
    workbook, file = openpyxl.Workbook(), io.BytesIO()
    for row in rows:
        workbook.active.append(row)
    workbook.save(file)
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        chunks = await chunks_of(rig, domain, "long.xlsx", file.getvalue())
        assert any(chunk_before["cells"] == chunk_after["cells"] for chunk_before, chunk_after in pairwise(chunks))
        for chunk in chunks:
            assert (await place_of(rig, domain, chunk["chunkId"]))["table"]["header"] == ["name", "about"]


PLAIN = """# Leave

## Days

Staff have <b>twenty-five</b> days. <script>alert(1)</script> & more.

They are "booked" with the manager.

# Pay

Pay comes at the end of the month.
"""


async def test_a_paragraph_is_shown_below_its_headings_between_its_neighbours(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        first, second = await chunks_of(rig, domain, "a.md", PLAIN.encode())
        place = await place_of(rig, domain, first["chunkId"], text='They are "booked"', format="html")
        assert (place["kind"], place["headingPath"], place["before"]) == ("text", ["Leave", "Days"], None)
        assert place["after"] == {
            "chunkId": second["chunkId"],
            "text": "Pay comes at the end of the month.",
            "headingPath": ["Pay"],
            "page": None,
        }
        assert "page" not in place
        assert "table" not in place
        citation = place["cited"]
        assert place["text"][citation["start"] : citation["end"]] == citation["text"] == 'They are "booked"'
        assert place["html"].count("<mark>") == 1
        assert "<script" not in place["html"]
        assert "<b>" not in place["html"]
        second_place = await place_of(rig, domain, second["chunkId"], text="Something that is not there")
        assert second_place["cited"] is None
        assert second_place["before"]["text"].startswith("They are")


@pytest.mark.attack(kind="markup")
async def test_document_text_never_becomes_markup(tmp_path: Path) -> None:
    hostile = '"><img src=x onerror=alert(1)> <svg/onload=alert(1)> </mark><style>*{}</style> <a href="javascript:1">'
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        table = f'name,about\n"a","{hostile.replace(chr(34), chr(34) * 2)}"\nb,c\n'.encode()
        for name, data in (("a.txt", hostile.encode()), ("a.csv", table)):
            for chunk in await chunks_of(rig, domain, name, data):
                place = await place_of(rig, domain, chunk["chunkId"], start=0, end=len(chunk["text"]), format="html")
                without = place["html"]
                for tag in ("p", "mark", "table", "thead", "tbody", "tr", "th", "td"):
                    without = without.replace(f"<{tag}>", "").replace(f"</{tag}>", "")
                assert "<" not in without.replace("<br>", "")
                assert "onerror" in without


async def test_a_secret_in_a_document_is_redacted_in_every_form_of_its_place(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        secret = "s&cret<value>"
        await rig.ok("PUT", f"/api/domains/{domain}/secrets/KEY", {"value": secret})
        (chunk,) = await chunks_of(rig, domain, "a.txt", f"The password is {secret} and no other.".encode())
        answer = await rig.http.get(f"/api/domains/{domain}/chunks/{chunk['chunkId']}/place?format=html&start=4&end=9")
        assert answer.status_code == 200
        assert secret not in answer.text
        assert "s&amp;cret" not in answer.text
        assert "[secret KEY]" in answer.json()["html"]


async def test_invalid_and_unauthorised_requests_for_places_are_refused(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain, other_domain = await rig.domain(), await rig.domain()
        (chunk, *_) = await chunks_of(rig, domain, "a.md", PLAIN.encode())
        path = f"/api/domains/{domain}/chunks/{chunk['chunkId']}/place"
        for params, field in (
            ({"start": 3}, "end"),
            ({"start": 3, "end": 3}, "end"),
            ({"start": 0, "end": len(chunk["text"]) + 1}, "end"),
            ({"start": 0, "end": 2, "text": "x"}, "text"),
            ({"format": "pdf"}, "format"),
            ({"text": "x" * 4_001}, "text"),
        ):
            status, code, message = await rig.refused("GET", path, params=params)
            assert (status, code) == (422, "VALIDATION_ERROR"), params
            assert message.startswith(f"{field}: "), message
        stranger_key = await make_key(rig, "bob", "member", other_domain)
        for domain_id in (domain, other_domain):
            response = await rig.http.get(path.replace(domain, domain_id), headers=bearer(stranger_key))
            assert response.status_code == 404
        as_operator(rig)
        (document,) = (await rig.ok("GET", f"/api/domains/{domain}/documents"))["items"]
        await rig.ok("DELETE", f"/api/domains/{domain}/documents/{document['id']}")
        assert (await rig.refused("GET", path))[0] == 404
