"""PDFs from practice: tables, rotated pages, forms, links, running lines, and truncated files."""

import re
import zlib
from collections.abc import Sequence
from pathlib import Path

import pypdfium2
import pytest
from reportlab.lib import colors
from reportlab.lib.styles import ParagraphStyle, getSampleStyleSheet
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import Paragraph, SimpleDocTemplate, Spacer, Table, TableStyle

from bench.reading.tables import Case, cases, score
from mcp_servers.folding import fold_text
from mcp_servers.retriever.chunking import chunk_document
from mcp_servers.retriever.document import ParsedDocument, split_row
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.parsing import parse

FIXTURES = Path(__file__).parent.parent / "fixtures" / "reading"
SMALL = [case for case in cases() if "three pages" not in case.name]
GRID = ("GRID", (0, 0), (-1, -1), 0.5, colors.black)


def read(path: Path) -> ParsedDocument:
    return parse(path, path.name)


def rows_of(parsed: ParsedDocument) -> list[tuple[str, ...]]:
    return [split_row(line) for block in parsed.blocks if block.kind == "table" for line in block.text.split("\n")]


def write_table(path: Path, rows: Sequence[Sequence[str]], *style: tuple[object, ...]) -> Path:
    SimpleDocTemplate(str(path)).build([Table(rows, style=TableStyle([GRID, *style]))])
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gap_small.pdf", "Name | Debit | Credit\nAda |  | 50\nBo | 20 |"),
        ("landscape_table.pdf", "Room | Monday | Tuesday\nA1 | yoga | choir\nA2 | chess | dance\nA3 | drums | flute"),
        ("form.pdf", "Applicant: Rosalind Quill Bank account: XX00 7781 2234 Wants parking: [x]"),
    ],
)
def test_files_from_practice_are_read_as_displayed(name: str, text: str) -> None:
    parsed = read(FIXTURES / name)
    assert (parsed.text, parsed.notes) == (text, ())


def test_sixty_ruled_tables_keep_all_their_cells() -> None:
    parsed = read(FIXTURES / "o02_tables60.pdf")
    rows = [row for row in rows_of(parsed) if row[0] != "Item"]
    assert parsed.notes == ()
    assert [row[:2] for row in rows] == [
        (f"Part {page}-{number}", str(100 * page + number)) for page in range(1, 61) for number in range(1, 26)
    ]
    wrapped = "to be ordered again before the winter comes and the road closes"
    for number, row in enumerate(rows):
        part = number % 25 + 1
        assert row[2] == ("" if part % 5 == 0 and part % 2 else row[2])
        assert row[2] in ("", str(2 * part))
        assert row[3] in ("", "ok", wrapped)
        assert (row[3] == wrapped) == (part % 7 == 0)


def test_two_columns_of_text_are_read_in_sequence_below_one_header() -> None:
    parsed = read(FIXTURES / "o01_twocol.pdf")
    assert parsed.text.count("Journal of Harbour Works") == 1
    places = [parsed.text.index(f"Sentence {section}.1.1 ") for section in range(1, 7)]
    assert places == sorted(places)


@pytest.mark.parametrize("case", SMALL, ids=[case.name for case in SMALL])
def test_generated_tables_are_read_without_a_wrong_cell(tmp_path: Path, case: Case) -> None:
    cell_count, right_count, wrong_count = score(case, tmp_path)
    assert wrong_count == 0
    assert right_count >= 0.85 * cell_count


def test_a_table_continued_without_its_header_keeps_it_on_the_next_page(tmp_path: Path) -> None:
    rows = [["Name", "Quantity"], *([f"Item {number}", str(number)] for number in range(60))]
    parsed = read(write_table(tmp_path / "a.pdf", rows))
    (second_table,) = [block for block in parsed.blocks if block.page == 2]
    assert second_table.text.split("\n")[0] == "Name | Quantity"
    assert second_table.text.split("\n")[-1] == "Item 59 | 59"
    for chunk in chunk_document(parsed, "d", "a.pdf"):
        assert [part.header for part in chunk.tables] == [("Name", "Quantity")]


def test_a_bar_inside_a_cell_is_not_a_border(tmp_path: Path) -> None:
    parsed = read(write_table(tmp_path / "a.pdf", [["Key", "Value"], ["a | b", "c"]]))
    assert rows_of(parsed) == [("Key", "Value"), ("a|b", "c")]


def test_a_box_around_a_paragraph_is_not_a_table(tmp_path: Path) -> None:
    canvas = Canvas(str(tmp_path / "a.pdf"))
    canvas.rect(60, 600, 400, 100)
    canvas.drawString(70, 650, "A warning in a box.")
    canvas.save()
    assert [(block.kind, block.text) for block in read(tmp_path / "a.pdf").blocks] == [("prose", "A warning in a box.")]


def test_numbered_items_with_a_wide_gap_are_not_a_table(tmp_path: Path) -> None:
    canvas = Canvas(str(tmp_path / "a.pdf"))
    for number in range(1, 5):
        canvas.drawString(60, 700 - 20 * number, f"{number}.")
        canvas.drawString(100, 700 - 20 * number, f"The keeper signs list {number}.")
    canvas.save()
    parsed = read(tmp_path / "a.pdf")
    assert {block.kind for block in parsed.blocks} == {"prose"}
    assert "3. The keeper signs list 3." in parsed.text


def test_links_comments_fields_and_files_are_read_or_named(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    canvas = Canvas(str(path))
    canvas.drawString(60, 700, "Read the rules before you sign.")
    canvas.linkURL("https://rules.example/2031", (80, 695, 140, 712))
    canvas.linkAbsolute("back", "start", (60, 650, 100, 660))
    canvas.bookmarkPage("start")
    canvas.textAnnotation("Ask Mira first.", (200, 690, 220, 710))
    canvas.highlightAnnotation("", (60, 695, 100, 712))
    form = canvas.acroForm
    form.textfield(name="city", x=60, y=600, width=100, height=20, value="Bergen")
    form.checkbox(name="pier", x=60, y=560, checked=False)
    form.textfield(name="empty", x=60, y=500, width=100, height=20)
    canvas.save()
    document = pypdfium2.PdfDocument(path)
    document.new_attachment("rates.csv").set_data(b"a,b")
    document.save(tmp_path / "b.pdf")
    parsed = read(tmp_path / "b.pdf")
    assert "Read the rules (https://rules.example/2031) before you sign." in parsed.text
    assert "Ask Mira first." in parsed.text
    assert "Bergen" in parsed.text
    assert "[ ]" in parsed.text
    assert "embedded files were not read: rates.csv" in parsed.notes
    assert "links within the document: 1" in parsed.notes
    assert "empty form fields: 1" in parsed.notes
    assert any(note.startswith("annotations without text (highlights)") for note in parsed.notes)


def test_a_running_header_that_only_counts_pages_is_kept_once_and_others_stay(tmp_path: Path) -> None:
    canvas = Canvas(str(tmp_path / "a.pdf"))
    for page in range(1, 5):
        canvas.setFont("Helvetica", 9)
        canvas.drawString(60, 800, "Port manual, edition 2031")
        canvas.drawString(60, 40, f"Page {page} of 4")
        canvas.drawString(60, 55, f"Invoice {1000 + 7 * page}")
        canvas.setFont("Helvetica", 11)
        for line in range(12):
            canvas.drawString(60, 700 - 14 * line, f"Line {line} of page {page} tells about berth {page * line}.")
        canvas.showPage()
    canvas.save()
    text = read(tmp_path / "a.pdf").text
    assert (text.count("Port manual"), text.count("Page ")) == (1, 1)
    assert [f"Invoice {1000 + 7 * page}" in text for page in range(1, 5)] == [True] * 4
    assert "Line 11 of page 4 tells about berth 44." in text


def test_half_a_pdf_is_read_and_marked_as_incomplete(tmp_path: Path) -> None:
    style = getSampleStyleSheet()["Normal"]
    story = [Paragraph(f"Paragraph {number}. " + "The keeper counts the stores. " * 30, style) for number in range(60)]
    SimpleDocTemplate(str(tmp_path / "whole.pdf")).build(story)
    data = (tmp_path / "whole.pdf").read_bytes()
    (tmp_path / "half.pdf").write_bytes(data[: len(data) * 3 // 4])
    parsed = read(tmp_path / "half.pdf")
    assert parsed.notes[0].startswith("incomplete: the end of the file is missing; ")
    assert "Paragraph 1." in parsed.text
    (tmp_path / "start.pdf").write_bytes(data[:300])
    with pytest.raises(DocumentError) as exc_info:
        read(tmp_path / "start.pdf")
    assert exc_info.value.code == "DOCUMENT_BROKEN"


def test_a_pdf_without_its_page_tree_has_its_pages_in_order(tmp_path: Path) -> None:
    canvas = Canvas(str(tmp_path / "whole.pdf"))
    for page in range(1, 13):
        canvas.drawString(60, 700, f"The list of berth {page}.")
        canvas.showPage()
    canvas.save()
    data = (tmp_path / "whole.pdf").read_bytes()
    data = re.sub(rb"\d+ 0 obj\s*<<(?:(?!endobj).)*?/Type /(?:Catalog|Pages)\b.*?endobj", b"", data, flags=re.DOTALL)
    (tmp_path / "cut.pdf").write_bytes(data[: data.rindex(b"endobj") + 6])
    parsed = read(tmp_path / "cut.pdf")
    assert [(block.page, block.text) for block in parsed.blocks] == [
        (page, f"The list of berth {page}.") for page in range(1, 13)
    ]
    assert parsed.notes == ("incomplete: the end of the file is missing; 12 of 12 pages have text",)


def test_pages_packed_in_an_object_stream_survive_the_loss_of_the_page_tree(tmp_path: Path) -> None:
    texts = [b"BT /F 12 Tf 20 100 Td (The %s list.) Tj ET" % name for name in (b"first", b"second")]
    objects = [b"<</Length %d>>stream\n%s\nendstream" % (len(text), text) for text in texts]
    objects.append(b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>")
    pages = [
        b"<</Type/Page/MediaBox[0 0 300 200]/Contents %d 0 R/Resources<</Font<</F 3 0 R>>>>>>" % number
        for number in (1, 2)
    ]
    index = b"4 0 5 %d " % (len(pages[0]) + 1)
    compressed = zlib.compress(index + b" ".join(pages))
    head = b"<</Type/ObjStm/N 2/First %d/Filter/FlateDecode/Length %d>>" % (len(index), len(compressed))
    objects += [b"", b"", head + b"stream\n" + compressed + b"\nendstream"]
    body_bytes = b"".join(b"%d 0 obj\n%s\nendobj\n" % (number, body) for number, body in enumerate(objects, 1) if body)
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.5\n" + body_bytes + b"7 0 obj\n<</Type/Pages/Ki")
    parsed = read(tmp_path / "a.pdf")
    assert [(block.page, block.text) for block in parsed.blocks] == [(1, "The first list."), (2, "The second list.")]


def test_cells_in_different_columns_are_never_put_below_each_other(tmp_path: Path) -> None:
    canvas = Canvas(str(tmp_path / "a.pdf"))
    for row, cells in enumerate([("Pump", "", "12.50"), ("Valve", "40", "")]):
        for column, cell in enumerate(cells):
            canvas.drawString(60 + 120 * column, 700 - 20 * row, cell)
    canvas.save()
    assert rows_of(read(tmp_path / "a.pdf")) == [("Pump", "", "12.50"), ("Valve", "40", "")]


def write_named(path: Path, drawing: bytes, names: dict[int, str]) -> Path:
    """Write a page whose font gives Unicode characters for some codes only, as fonts of TeX and bullets do."""
    lines = "".join(f"<{code:02x}> <{name.encode('utf-16-be').hex()}>\n" for code, name in names.items())
    mapping = f"begincmap 1 begincodespacerange <00> <ff> endcodespacerange {len(names)} beginbfchar\n{lines}endbfchar"
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(drawing), drawing),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding/ToUnicode 6 0 R>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(mapping), mapping.encode()),
    ]
    body = b"".join(b"%d 0 obj\n%s\nendobj\n" % (number, content) for number, content in enumerate(objects, 1))
    path.write_bytes(b"%PDF-1.4\n" + body + b"trailer<</Root 1 0 R/Size 7>>\n%%EOF\n")
    return path


def test_ligatures_that_are_control_characters_do_not_divide_words(tmp_path: Path) -> None:
    drawing = b"BT /F 12 Tf 50 700 Td (an e\\001cient o\\002er for \\003re\\003ghting) Tj ET"
    parsed = read(write_named(tmp_path / "a.pdf", drawing, {1: "\x1e", 2: "\x1b", 3: "\x1c"}))
    assert fold_text(parsed.text) == "an efficient offer for firefighting"


def test_a_ligature_of_arabic_has_its_letters_in_order(tmp_path: Path) -> None:
    drawing = b"BT /F 12 Tf 50 700 Td (abc defa) Tj ET"  # from left to right, as a page is drawn
    names = {"a": "م", "b": "\u0644\u0627", "c": "س", "d": "ب", "e": "\u0644", "f": "\u0627"}
    parsed = read(write_named(tmp_path / "a.pdf", drawing, {ord(code): name for code, name in names.items()}))
    assert parsed.text == "مالب س\u0644\u0627م"


def test_items_with_the_bullets_of_word_are_a_list_and_neither_table_nor_heading(tmp_path: Path) -> None:
    items = b"".join(b"BT /F 12 Tf 50 %d Td (x) Tj 40 0 Td (Item %d) Tj ET\n" % (600 - 14 * at, at) for at in range(3))
    large = b"BT /F 18 Tf 50 700 Td (x Large item) Tj ET\n"
    parsed = read(write_named(tmp_path / "a.pdf", large + items, {120: "\uf0b7"}))
    assert [(block.kind, block.text) for block in parsed.blocks] == [
        ("prose", f"• {text}") for text in ("Large item", "Item 0", "Item 1", "Item 2")
    ]


def test_words_behind_a_raised_number_stay_in_their_order(tmp_path: Path) -> None:
    drawing = (
        b"BT /F 12 Tf 50 700 Td (five configurations) Tj /F 7 Tf 96.7 4.4 Td (1) Tj /F 12 Tf 4 -4.4 Td (. In\\001) Tj"
        b" -100.7 -14 Td (ternationalization is) Tj ET"
    )
    parsed = read(write_named(tmp_path / "a.pdf", drawing, {1: "\xad"}))
    assert parsed.text == "five configurations¹ . Internationalization is"


def test_headings_centred_over_columns_without_rules_are_joined_with_the_header(tmp_path: Path) -> None:
    rows = [[f"Region {number}", "1.2", "1.3", "1.4", "1.5"] for number in range(4)]
    header = [["", "2030", "", "2031", ""], ["Region", "H1", "H2", "H1", "H2"]]
    style = TableStyle([("SPAN", (1, 0), (2, 0)), ("SPAN", (3, 0), (4, 0)), ("ALIGN", (1, 0), (-1, -1), "CENTER")])
    SimpleDocTemplate(str(tmp_path / "a.pdf")).build([Table([*header, *rows], style=style)])
    joined = ("Region", "2030 H1", "2030 H2", "2031 H1", "2031 H2")
    assert rows_of(read(tmp_path / "a.pdf")) == [joined, *map(tuple, rows)]


WORDS = ("anchor", "bollard", "cable", "drum", "engine", "fender", "gasket", "horn", "ladder", "pump", "rope", "winch")


def near_rows(count: int) -> list[list[str]]:
    """Rows with a code, a text of one or two lines, a number that is sometimes missing, and a price."""
    rows = []
    for at in range(count):
        words = [WORDS[(at * 7 + place * 5 + place * place) % len(WORDS)] for place in range(3 + at % 4 * 4)]
        rows.append([f"PX-{1000 + 7 * at}", " ".join(words), "" if at % 5 == 4 else str(3 * at), f"{at * 41.5:,.2f}"])
    return rows


@pytest.mark.parametrize("ruled", [False, True])
def test_cells_as_near_as_words_are_divided_where_no_word_stands(tmp_path: Path, ruled: bool) -> None:
    text = ParagraphStyle("cell", fontName="Helvetica", fontSize=10, leading=12)
    rows = near_rows(20)
    cells = [[code, Paragraph(words, text), *numbers] for code, words, *numbers in rows]
    style = TableStyle(
        [
            ("FONTSIZE", (0, 0), (-1, -1), 10),
            ("LEFTPADDING", (0, 0), (-1, -1), 2),
            ("RIGHTPADDING", (0, 0), (-1, -1), 3),
            ("ALIGN", (2, 0), (-1, -1), "RIGHT"),
            ("VALIGN", (0, 0), (-1, -1), "MIDDLE" if ruled else "TOP"),
            *([("LINEBELOW", (0, 0), (-1, -1), 0.5, colors.grey)] if ruled else []),
        ]
    )
    header = ["Code", "Name", "Stock", "Price"]
    table = Table([header, *cells], style=style, colWidths=[45, 190, 30, 42])
    above, below = Paragraph("The prices of the year are net.", text), Paragraph("Net.", text)
    SimpleDocTemplate(str(tmp_path / "a.pdf")).build([above, Spacer(1, 20), table, Spacer(1, 8), below])
    parsed = read(tmp_path / "a.pdf")
    assert [row for row in rows_of(parsed) if row != tuple(header)] == [tuple(row) for row in rows]
    assert rows_of(parsed)[0] == tuple(header)
    assert [block.text for block in parsed.blocks if block.kind != "table"] == [above.text, below.text]


def test_lines_of_running_text_are_not_divided_into_columns(tmp_path: Path) -> None:
    normal = getSampleStyleSheet()["Normal"]
    texts = [" ".join(WORDS[(at * at + place * 3) % len(WORDS)] for place in range(60)) for at in range(6)]
    SimpleDocTemplate(str(tmp_path / "a.pdf")).build([Paragraph(text, normal) for text in texts])
    parsed = read(tmp_path / "a.pdf")
    assert {block.kind for block in parsed.blocks} == {"prose"}
    assert " ".join(block.text for block in parsed.blocks) == " ".join(texts)


def test_a_row_divided_by_the_end_of_a_page_does_not_become_a_header(tmp_path: Path) -> None:
    canvas = Canvas(str(tmp_path / "a.pdf"))

    def draw(y: int, *cells: str) -> None:
        for x, cell in zip((60, 200, 400), cells, strict=True):
            canvas.drawString(x, y, cell)

    draw(760, "Item", "Kind", "Price")
    for number in range(5):
        draw(740 - 20 * number, f"IT-{number}", "Steel plate, galvanised,", f"{number}.50")
    canvas.showPage()
    draw(760, "", "for outdoor use", "")
    for number in range(5, 10):
        draw(840 - 20 * number, f"IT-{number}", "Steel plate, galvanised,", f"{number}.50")
    canvas.save()
    tables = [block for block in read(tmp_path / "a.pdf").blocks if block.kind == "table"]
    assert [block.text.partition("\n")[0] for block in tables] == ["Item | Kind | Price"] * 2
    assert tables[1].page == 2
    assert "IT-5 | Steel plate, galvanised, | 5.50" in tables[1].text


def test_a_table_below_its_own_title_does_not_get_the_header_of_the_page_before(tmp_path: Path) -> None:
    canvas = Canvas(str(tmp_path / "a.pdf"))

    def draw(y: int, *cells: str) -> None:
        for x, cell in zip((60, 250, 400), cells, strict=True):
            canvas.drawString(x, y, cell)

    for season, years in (("Winter", ("2024", "2025")), ("Summer", ("2026", "2027"))):
        draw(760, season, "", "")
        draw(740, "Route number", f"Price {years[0]}", f"Price {years[1]}")
        for number in range(5):
            draw(720 - 20 * number, f"Route {number}", f"{number}.50", f"{number}.70")
        canvas.showPage()
    canvas.save()
    tables = [block.text for block in read(tmp_path / "a.pdf").blocks if block.kind == "table"]
    assert [table.partition("\n")[0] for table in tables] == [
        "Route number | Price 2024 | Price 2025",
        "Route number | Price 2026 | Price 2027",
    ]
