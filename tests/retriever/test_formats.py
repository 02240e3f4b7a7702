"""Files as people make them: merged cells, notes, text boxes, broken bytes, tables used for layout."""

import time
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import docx
import openpyxl
import pptx
import pytest
from docx.enum.style import WD_STYLE_TYPE
from docx.oxml import parse_xml
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Inches
from reportlab.lib.styles import getSampleStyleSheet
from reportlab.platypus import Paragraph, SimpleDocTemplate, Table

from mcp_servers.retriever.chunking import chunk_document
from mcp_servers.retriever.document import Block, ParsedDocument
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats.dates import iso_date
from mcp_servers.retriever.parsing import parse

from . import files

WORD = (
    'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" '
    'xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape" '
    'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
)


def read(path: Path, data: bytes | str | None = None) -> ParsedDocument:
    if data is not None:
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return parse(path, path.name)


def texts_of(parsed: ParsedDocument) -> list[str]:
    return [block.text for block in parsed.blocks]


def write_sheet(path: Path, *rows: list[Any]) -> Path:
    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    for row in rows:
        sheet.append(row)
    book.save(path)
    return path


def test_each_table_of_a_sheet_has_its_own_title_header_and_range(tmp_path: Path) -> None:
    rows: list[list[Any]] = [
        ["Sales 2024"],
        [],
        ["city", "amount"],
        ["Bonn", 3],
        [],
        ["Staff"],
        ["name", "age"],
        ["Ann", 44],
    ]
    assert read(write_sheet(tmp_path / "a.xlsx", *rows)).blocks == (
        Block("heading", "Sheet", 1),
        Block("heading", "Sales 2024", 2),
        Block("table", "city | amount\nBonn | 3", cells="Sheet!A4:B4"),
        Block("heading", "Sheet", 1),
        Block("heading", "Staff", 2),
        Block("table", "name | age\nAnn | 44", cells="Sheet!A8:B8"),
    )


def test_an_empty_row_inside_a_table_does_not_end_it(tmp_path: Path) -> None:
    rows: list[list[Any]] = [["city", "amount"], ["Bonn", 3], [], ["Kiel", 4]]
    (_, table) = read(write_sheet(tmp_path / "a.xlsx", *rows)).blocks
    assert table == Block("table", "city | amount\nBonn | 3\nKiel | 4", cells="Sheet!A2:B4")


def test_cells_are_read_as_displayed(tmp_path: Path) -> None:
    path = write_sheet(tmp_path / "a.xlsx", ["share", "sum", "open"], [0.256, 0.1 + 0.2, True])
    book = openpyxl.load_workbook(path)
    book["Sheet"]["A2"].number_format = "0.0%"
    book.save(path)
    assert texts_of(read(path))[1] == "share | sum | open\n25.6% | 0.3 | TRUE"


def test_hidden_sheets_are_left_out_and_a_chart_sheet_is_not_an_error(tmp_path: Path) -> None:
    path = write_sheet(tmp_path / "a.xlsx", ["city", "amount"], ["Bonn", 3])
    book = openpyxl.load_workbook(path)
    book.create_sheet("Secret").append(["salary"])
    book["Secret"].sheet_state = "veryHidden"
    book.create_chartsheet("Chart")
    book.save(path)
    parsed = read(path)
    assert "salary" not in parsed.text
    assert parsed.notes == ("hidden sheets were not read: 1",)


def test_a_cell_in_the_last_corner_of_a_sheet_is_cheap_to_read(tmp_path: Path) -> None:
    path = write_sheet(tmp_path / "a.xlsx", ["city", "amount"], ["Bonn", 3])
    book = openpyxl.load_workbook(path)
    book["Sheet"]["XFD1048576"] = "end"
    book.save(path)
    assert texts_of(read(path))[1] == "city | amount |\nBonn | 3 |\n|  | end"


@pytest.mark.parametrize(
    ("source", "text", "cells"),
    [
        ("\ufeffname;age\nAnn;3\n", "name | age\nAnn | 3", "A2:B2"),
        ("sep=;\nname;age\nAnn, B.;3\n", "name | age\nAnn, B. | 3", "A3:B3"),
        ('name,note\nAnn,"one\ntwo"\nBob,""\n', "name | note\nAnn | one two\nBob |", "A2:B3"),
        ("a,b\r1,2\r", "a | b\n1 | 2", "A2:B2"),
        ('n,note\n1,"plain"\n' + "2,x\n" * 6_000 + '3,"say ""hi"", twice"\n', '3 | say "hi", twice', None),
    ],
)
def test_csv_dialects_of_all_kinds_are_understood(tmp_path: Path, source: str, text: str, cells: str | None) -> None:
    parsed = read(tmp_path / "a.csv", source)
    assert text in parsed.text
    assert cells is None or parsed.blocks[0].cells == cells


def write_word(path: Path, *parts: str) -> Path:
    """Make a document whose paragraphs have the given XML."""
    document = docx.Document()
    for part in parts:
        document.add_paragraph("seen ")._p.append(parse_xml(part.replace(">", f" {WORD}>", 1)))
    document.save(str(path))
    return path


def run(text: str, properties: str = "") -> str:
    return f"<w:r>{properties}<w:t>{text}</w:t></w:r>"


def test_word_text_in_links_controls_and_insertions_is_read_and_hidden_text_is_not(tmp_path: Path) -> None:
    path = write_word(
        tmp_path / "a.docx",
        f"<w:hyperlink>{run('a link')}</w:hyperlink>",
        f"<w:sdt><w:sdtContent>{run('a control')}</w:sdtContent></w:sdt>",
        f"<w:ins w:id='1' w:author='x'>{run('an insertion')}</w:ins>",
        "<w:del w:id='2' w:author='x'><w:r><w:delText>a deletion</w:delText></w:r></w:del>",
        run("a hidden word", "<w:rPr><w:vanish/></w:rPr>"),
    )
    assert texts_of(read(path)) == ["seen a link", "seen a control", "seen an insertion", "seen", "seen"]


def test_a_word_text_box_appears_once_after_its_paragraph(tmp_path: Path) -> None:
    box = f"<w:txbxContent><w:p>{run('in the box')}</w:p></w:txbxContent>"
    shape = (
        f"<w:r><mc:AlternateContent><mc:Choice Requires='wps'><wps:txbx>{box}</wps:txbx></mc:Choice>"
        f"<mc:Fallback><w:pict>{box}</w:pict></mc:Fallback></mc:AlternateContent></w:r>"
    )
    assert texts_of(read(write_word(tmp_path / "a.docx", shape))) == ["seen", "in the box"]


def test_word_headings_are_recognised_by_outline_and_base_style(tmp_path: Path) -> None:
    document = docx.Document()
    style = document.styles.add_style("House head", WD_STYLE_TYPE.PARAGRAPH)
    style.base_style = document.styles["Heading 2"]
    document.add_paragraph("Based", style="House head")
    outlined = document.add_paragraph("Outlined")
    outlined._p.get_or_add_pPr().append(parse_xml(f'<w:outlineLvl {WORD} w:val="0"/>'))
    document.add_paragraph("one", style="List Bullet")
    document.add_paragraph("deeper", style="List Bullet 2")
    document.save(str(tmp_path / "a.docx"))
    assert read(tmp_path / "a.docx").blocks == (
        Block("heading", "Based", 3),
        Block("heading", "Outlined", 2),
        Block("list", "- one\n  - deeper"),
    )


def test_merged_word_cells_and_nested_tables_keep_their_rows(tmp_path: Path) -> None:
    document = docx.Document()
    table = document.add_table(3, 2)
    for row, words in zip(table.rows, [("grade", "days"), ("junior", "25"), ("", "20")], strict=True):
        for cell, word in zip(row.cells, words, strict=True):
            cell.text = word
    table.cell(1, 0).merge(table.cell(2, 0)).text = "junior"
    inner_table = table.cell(0, 1).add_table(1, 2)
    inner_table.cell(0, 0).text, inner_table.cell(0, 1).text = "a", "b"
    document.save(str(tmp_path / "a.docx"))
    assert texts_of(read(tmp_path / "a.docx")) == ["grade | days a / b\njunior | 25\njunior | 20"]


def test_word_footnotes_follow_their_paragraph(tmp_path: Path) -> None:
    write_word(tmp_path / "plain.docx", "<w:r><w:footnoteReference w:id='2'/></w:r>", run("end"))
    kind = "officeDocument/2006/relationships/footnotes"
    with zipfile.ZipFile(tmp_path / "plain.docx") as package:
        members = {name: package.read(name) for name in package.namelist()}
    members["[Content_Types].xml"] = members["[Content_Types].xml"].replace(
        b"</Types>",
        b'<Override PartName="/word/footnotes.xml" ContentType="application/vnd.openxmlformats-officedocument.'
        b'wordprocessingml.footnotes+xml"/></Types>',
    )
    relation = f'<Relationship Id="rId99" Type="http://schemas.openxmlformats.org/{kind}" Target="footnotes.xml"/>'
    rels = members["word/_rels/document.xml.rels"]
    members["word/_rels/document.xml.rels"] = rels.replace(b"</Relationships>", f"{relation}</Relationships>".encode())
    note = f"<w:footnotes {WORD}><w:footnote w:id='2'><w:p>{run('The note.')}</w:p></w:footnote></w:footnotes>"
    members["word/footnotes.xml"] = note.encode()
    assert texts_of(read(files.package(tmp_path / "a.docx", members))) == ["seen", "The note.", "seen end"]


def test_slides_give_tables_charts_and_their_slide_number(tmp_path: Path) -> None:
    deck = pptx.Presentation()
    box = (Inches(1), Inches(1), Inches(4), Inches(2))
    first = deck.slides.add_slide(deck.slide_layouts[5])
    first.shapes.title.text = "Sales"
    table = first.shapes.add_table(3, 2, *box).table
    for row, words in enumerate([("city", "amount"), ("Bonn", "3"), ("", "4")]):
        for column, word in enumerate(words):
            table.cell(row, column).text = word
    table.cell(1, 0).merge(table.cell(2, 0))
    data: Any = CategoryChartData()  # type: ignore[no-untyped-call]
    data.categories = ["East", "West"]
    data.add_series("Growth", (1.5, 2.5))
    first.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, *box, data)
    untitled = deck.slides.add_slide(deck.slide_layouts[6])
    frame = untitled.shapes.add_textbox(*box).text_frame
    frame.text = "above"
    below = frame.add_paragraph()
    below.text, below.level = "below", 1
    deck.slides.add_slide(deck.slide_layouts[6])
    deck.save(str(tmp_path / "a.pptx"))
    parsed = read(tmp_path / "a.pptx")
    assert parsed.pages == 3
    assert [(block.text, block.page) for block in parsed.blocks] == [
        ("Sales", 1),
        ("city | amount\nBonn | 3\nBonn | 4", 1),
        ("| Growth\nEast | 1.5\nWest | 2.5", 1),
        ("Slide 2", 2),
        ("above\n  below", 2),
    ]


def test_pdf_tables_keep_their_rows_over_pages(tmp_path: Path) -> None:
    style = getSampleStyleSheet()["Normal"]
    rows = [["Name", "Quantity", "Price"], *([f"Item {n}", str(n), f"{n * 1.5:.2f}"] for n in range(60))]
    story = [Paragraph("Before it.", style), Table(rows, repeatRows=1), Paragraph("After it.", style)]
    SimpleDocTemplate(str(tmp_path / "a.pdf")).build(story)
    parsed = read(tmp_path / "a.pdf")
    assert parsed.blocks[0] == Block("prose", "Before it.", page=1)
    assert parsed.blocks[-1] == Block("prose", "After it.", page=2)
    lines = [line for block in parsed.blocks if block.kind == "table" for line in block.text.split("\n")]
    assert {" | ".join(row) for row in rows} == set(lines)
    for chunk in chunk_document(parsed, "d", "a.pdf"):
        sentences = [chunk.text[span.start : span.end] for span in chunk.sentences]
        assert all(sentence in lines or sentence.endswith("it.") for sentence in sentences), "a row is a sentence"


def test_a_hyphenated_word_of_a_pdf_is_joined(tmp_path: Path) -> None:
    pages = [[(10, "Everybody has a right to con-"), (10, "tinuous leave.")]]
    assert read(files.pdf(tmp_path / "a.pdf", pages)).text == "Everybody has a right to continuous leave."


def read_html(tmp_path: Path, source: str) -> list[str]:
    return texts_of(read(tmp_path / "a.html", source))


def test_html_lists_keep_depth_numbers_and_paragraphs(tmp_path: Path) -> None:
    source = "<ul><li>one<ul><li>deep</ul><li>two<p>more</ul><ol start=3><li>third<li>fourth</ol>"
    assert read_html(tmp_path, source) == ["- one\n  - deep\n- two\n  more\n3. third\n4. fourth"]


def test_html_cells_keep_words_apart_and_fill_their_row_spans(tmp_path: Path) -> None:
    first = "<tr><th>city<th colspan=2>rates<tr><td rowspan=2>Bonn<td><p>3</p><p>4</p><td>5"
    source = f"<table>{first}<tr><td>6<td>7</table>"
    assert read_html(tmp_path, source) == ["city | rates | rates\nBonn | 3 4 | 5\nBonn | 6 | 7"]


def test_numbers_of_5000_digits_in_html_cost_no_text(tmp_path: Path) -> None:
    number = "9" * 5_000
    table = f"<table><tr><th>city<th colspan={number}>rates<tr><td rowspan={number}>Bonn<td>3</table>"
    source = f"{table}<ol start={number}><li value={number}>first</ol>"
    rows, items = read_html(tmp_path, source)
    assert rows.splitlines()[1].startswith("Bonn | 3 |")
    assert items.endswith(". first")


def test_layout_tables_in_html_are_read_as_text(tmp_path: Path) -> None:
    source = "<table><tr><td><h1>Leave</h1><p>25 days.</p><td><table><tr><td>a<td>b<tr><td>1<td>2</table>end</table>"
    assert read_html(tmp_path, source) == ["Leave", "25 days.", "a | b\n1 | 2", "end"]


@pytest.mark.parametrize(
    "source",
    [
        "<div hidden>x<div>y</div></div>seen",
        "<p style='color:red; display: none'>x<p>seen",
        "<section style='visibility:hidden'><b>x</b></section><p>seen</p>",
        "<script>x</script><p>seen",
    ],
)
def test_hidden_html_is_not_read(tmp_path: Path, source: str) -> None:
    assert read_html(tmp_path, source) == ["seen"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("<p>one<!-- a > b --><p>two", ["one", "two"]),
        ("<p>one <!-- never <b>ended", ["one ended"]),
        ("<p>a < b, a <3 and 1<2", ["a < b, a <3 and 1<2"]),
        ("<p>one<![endif]><? php ?></ x><p>two", ["one", "two"]),
        ("<p>one<![<![ never", ["one<![<![ never"]),
        ("<p>one<a href='never", ["one<a href='never"]),
        ('<p title="a > b" class=x data-y= z>one</p >two', ["one", "two"]),
        ("<script>if (a<b) '</p>'</SCRIPT ><p>one<style>never", ["one"]),
        ("<IMG ALT='a &lt; b'/>&eacute;&#x4e2d;&#99999999999;", ["a < bé中\ufffd"]),
        ("<p>&#" + "9" * 5000 + ";", ["&#" + "9" * 5000 + ";"]),
    ],
)
def test_broken_html_is_read_like_in_a_browser_without_loss(tmp_path: Path, source: str, expected: list[str]) -> None:
    assert read_html(tmp_path, source) == expected


def test_html_declared_latin_1_is_decoded_like_in_browsers(tmp_path: Path) -> None:
    source = '<meta charset="iso-8859-1"><p>“Größe” – 5 €</p>'.encode("cp1252")
    assert read(tmp_path / "a.html", source).text == "“Größe” – 5 €"


def test_html_inside_markdown_is_read_as_html(tmp_path: Path) -> None:
    source = "<script>\nx\n</script>\n\n<table><tr><td>a</td><td>b</td></tr>\n<tr><td>1</td><td>2</td></tr></table>\n"
    assert texts_of(read(tmp_path / "a.md", source)) == ["a | b\n1 | 2"]


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("utf-16-le", "Hello world without a mark."),
        ("utf-16-be", "Hello world without a mark."),
        ("gb18030", "规定"),
        ("gb18030", "附件一：差旅费报销标准（试行）\n住宿费按职级核定。"),
        ("big5", "員工手冊：特別休假"),
        ("big5", "請假規定"),
        ("shift_jis", "就業規則（抜粋）\n第一条　総則"),
        ("euc_jp", "社員は毎年十五日の有給休暇があります。"),
        ("iso2022_jp", "社員は毎年十五日の有給休暇があります。"),
        ("euc_kr", "취업 규칙: 연차 휴가"),
        ("koi8-r", "Сотрудники получают двадцать дней отпуска."),
        ("cp1251", "Отпуск. Порядок предоставления"),
        ("cp1253", "Οι εργαζόμενοι δικαιούνται άδεια είκοσι πέντε ημερών."),
        ("cp1255", "העובדים זכאים לחופשה שנתית"),
        ("cp1256", "يحق للموظفين إجازة سنوية"),
        ("cp874", "พนักงานมีสิทธิลาพักร้อน"),
        ("cp1250", "Zaměstnanci mají nárok na dovolenou, říká předpis."),
        ("cp1250", "Pracownicy mają prawo do urlopu; każdy, także początkujący."),
        ("cp1254", "Çalışanların yıllık izin hakkı yirmi gündür."),
        ("cp1252", "Größe der Öffnung: drei Ellen"),
        ("cp1252", "Größe;Preis\nGröße M;5\nGröße L;6"),
        ("cp1252", "•First item, £5 each\n•Second item, 3 m²"),
        ("cp932", "品名,単価,在庫\nボルト,1200円,35\n座金㈱,80円,1200\nナット①,45円,不明"),
        ("cp950", "電話,地址\n02-1234,台北"),
        ("cp949", "품명,단가,재고\n볼트,1200원,창고\n너트,300원,현관\n베어링,15000원,주문중"),
        ("cp1252", "La dirección informó al empleado; ¿cuándo? Mañana."),
    ],
)
def test_legacy_encodings_are_recognised_by_their_text(tmp_path: Path, encoding: str, text: str) -> None:
    assert read(tmp_path / "a.txt", text.encode(encoding)).text == text


def test_a_calendar_has_its_continued_lines_in_one(tmp_path: Path) -> None:
    summary, place = "SUMMARY:General meet\r\n ing of the club", "LOCATION:Hall 7\\, Quay\\nNorth"
    source = f"BEGIN:VCALENDAR\r\n{summary}\r\n{place}\r\nEND:VCALENDAR\r\n"
    text = read(tmp_path / "a.ics", source.encode()).text
    assert text.split("\n")[1:3] == ["SUMMARY:General meeting of the club", "LOCATION:Hall 7, Quay North"]


def test_a_damaged_utf8_file_loses_only_the_damaged_characters(tmp_path: Path) -> None:
    cut_text = "每年享有十五天带薪年假。".encode()[:-1]
    assert read(tmp_path / "a.txt", cut_text).text == "每年享有十五天带薪年假\ufffd"
    mixed_text = "Größe.\n".encode() * 20 + "Öffnung.".encode("cp1252")
    assert read(tmp_path / "b.txt", mixed_text).text == "Größe.\n" * 20 + "Öffnung."


def test_right_to_left_text_keeps_its_logical_order(tmp_path: Path) -> None:
    assert read_html(tmp_path, "<p dir=rtl>שלום עולם (2024)</p>") == ["שלום עולם (2024)"]


def test_a_pdf_of_a_thousand_pages_is_read_and_a_longer_one_refused(tmp_path: Path) -> None:
    pages = [[(10, f"Page {number}.")] for number in range(1, 1_002)]
    parsed = read(files.pdf(tmp_path / "a.pdf", pages[:1_000]))
    assert (parsed.pages, parsed.blocks[-1]) == (1_000, Block("prose", "Page 1000.", page=1_000))
    with pytest.raises(DocumentError) as exc_info:
        read(files.pdf(tmp_path / "b.pdf", pages))
    assert exc_info.value.code == "DOCUMENT_TOO_LARGE"


def test_a_documents_date_is_the_latest_in_its_metadata(tmp_path: Path) -> None:
    files = {
        "front.md": "---\ntitle: Rules\ndate: 2023-01-02\nupdated: '2024-05-01T10:00:00'\n---\n# Rules\n\nText.\n",
        "page.html": '<html><head><meta property="article:published_time" content="2022-02-03T00:00Z">'
        "<meta content='2021-01-01' name='date'></head><body><p>Text.</p></body></html>",
        "wrong.md": "---\ndate: 2023-02-31\n---\nText.\n",
        "plain.txt": "date: 2023-01-02\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    word = docx.Document()
    word.add_paragraph("Text.")
    word.core_properties.created = datetime(2020, 1, 1, tzinfo=UTC)
    word.core_properties.modified = datetime(2021, 6, 7, tzinfo=UTC)
    word.save(str(tmp_path / "memo.docx"))
    SimpleDocTemplate(str(tmp_path / "new.pdf")).build([Paragraph("Text.", getSampleStyleSheet()["Normal"])])
    dates = {path.name: parse(path, path.name).date for path in sorted(tmp_path.iterdir())}
    assert dates == {
        "front.md": "2024-05-01",
        "page.html": "2022-02-03",
        "wrong.md": None,
        "plain.txt": None,
        "memo.docx": "2021-06-07",
        "new.pdf": iso_date(time.strftime("%Y-%m-%d")),
    }


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("D:20240501120000+02'00'", "2024-05-01"),
        ("20240501", "2024-05-01"),
        ("2024-05-01", "2024-05-01"),
        ("2024-13-01", None),
        ("", None),
        ("May 2024", None),
    ],
)
def test_dates_in_all_notations_are_normalised(text: str, date: str | None) -> None:
    assert iso_date(text) == date


def test_lines_in_another_encoding_are_read_in_that_encoding(tmp_path: Path) -> None:
    lines = [*["每位员工每年享有二十五天带薪年假。".encode()] * 3, "每年结算一次。".encode("gb18030"), "Größe".encode()]
    (tmp_path / "a.txt").write_bytes(b"\n".join(lines))
    assert parse(tmp_path / "a.txt", "a.txt").text.split("\n")[2:] == [
        "每位员工每年享有二十五天带薪年假。",
        "每年结算一次。",
        "Größe",
    ]
    mixed = ("Größe der Öffnung".encode(), "Türen prüfen".encode("cp1252"), "锅炉检修".encode("gbk"))
    (tmp_path / "a.txt").write_bytes(b"\n".join(mixed))
    assert parse(tmp_path / "a.txt", "a.txt").text == "Größe der Öffnung\nTüren prüfen\n锅炉检修"
    (tmp_path / "a.txt").write_bytes("Größe Füße Äpfel ".encode() + b"Stra\xdfe")
    parsed = parse(tmp_path / "a.txt", "a.txt")
    assert parsed.notes == ("characters that could not be decoded: 1",)
