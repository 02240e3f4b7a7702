"""Mail, books, OpenDocument, RTF, data and old formats, and hostile files of these kinds."""

import base64
import io
import json
import zipfile
from email.message import EmailMessage
from pathlib import Path

import openpyxl
import pytest

from mcp_servers.retriever.document import Block, ParsedDocument, ParseLimits
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats import SAVE_INSTEAD, all_formats
from mcp_servers.retriever.parsing import DEFAULT_LIMITS, parse

from . import files, office_files


def read(path: Path, data: bytes | str | None = None, limits: ParseLimits = DEFAULT_LIMITS) -> ParsedDocument:
    if data is not None:
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return parse(path, path.name, limits)


def refuse(path: Path, data: bytes | str | None = None, limits: ParseLimits = DEFAULT_LIMITS) -> tuple[str, str]:
    with pytest.raises(DocumentError) as exc_info:
        read(path, data, limits)
    return exc_info.value.code, str(exc_info.value)


def texts_of(parsed: ParsedDocument) -> list[str]:
    return [block.text for block in parsed.blocks]


def make_mail(subject: str, body: str, *attachments: tuple[str, bytes]) -> EmailMessage:
    message = EmailMessage()
    message["Subject"], message["From"] = subject, "ada@works.example"
    message.set_content(body)
    for name, data in attachments:
        message.add_attachment(data, maintype="application", subtype="octet-stream", filename=name)
    return message


def test_a_mail_is_read_with_its_attachments_and_names_the_unread_ones(tmp_path: Path) -> None:
    workbook = files.workbook(tmp_path / "rates.xlsx", 1).read_bytes()
    message = make_mail("Rates", "See below.", ("rates.xlsx", workbook), ("run.exe", b"MZ"), ("bad.docx", b"no zip"))
    parsed = read(tmp_path / "a.eml", message.as_bytes())
    assert "city | rate\nCity number 0 | 0" in texts_of(parsed)
    assert ("heading", "Attachment: rates.xlsx", 1) in [(b.kind, b.text, b.level) for b in parsed.blocks]
    assert [note.split(" was")[0] for note in parsed.notes] == ["the attachment 'run.exe'", "the attachment 'bad.docx'"]


def test_nested_mail_is_read_two_levels_deep_and_the_third_is_named(tmp_path: Path) -> None:
    message = make_mail("third", "deepest words", ("notes.txt", b"never read"))
    for subject, body in (("second", "words of the second"), ("first", "words of the first"), ("outer", "outer words")):
        outer = make_mail(subject, body)
        outer.add_attachment(message)
        message = outer
    parsed = read(tmp_path / "a.eml", message.as_bytes())
    assert "words of the second" in parsed.text
    assert "deepest words" not in parsed.text
    assert any("third" in note and "levels deep" in note for note in parsed.notes)


def test_a_mail_of_ten_thousand_nested_parts_is_cut_and_has_a_note(tmp_path: Path) -> None:
    parts = b"".join(b"--b\r\nContent-Type: text/plain\r\n\r\npart %d\r\n" % number for number in range(10_000))
    source = b'Subject: many\r\nContent-Type: multipart/mixed; boundary="b"\r\n\r\n' + parts + b"--b--\r\n"
    parsed = read(tmp_path / "a.eml", source)
    assert "part 100" in parsed.text
    assert "the mail has more than 5000 parts; the rest was not read" in parsed.notes


@pytest.mark.parametrize(
    ("head", "body", "expected"),
    [
        (
            "Subject: 通知\r\nContent-Type: text/plain; charset=us-ascii\r\n\r\n".encode(),
            "锅炉检修".encode("gbk"),
            "锅炉检修",
        ),
        (
            b"Subject: =?gb2312?B?zajWqg==?=\r\nContent-Type: text/plain; charset=gbk\r\n\r\n",
            "镕基".encode("gbk"),
            "镕基",
        ),
        (b"Subject: x\r\nContent-Type: text/plain; charset=no-such\r\n\r\n", "Größe".encode(), "Größe"),
        (
            b"Subject: x\r\nContent-Type: text/html; charset=utf-8\r\n\r\n",
            "<p>Größe der Öffnung".encode("cp1252"),
            "Größe der Öffnung",
        ),
    ],
)
def test_mail_whose_encoding_is_declared_wrongly_is_read(
    tmp_path: Path, head: bytes, body: bytes, expected: str
) -> None:
    parsed = read(tmp_path / "a.eml", head + body)
    assert expected in parsed.text
    assert "\ufffd" not in parsed.text
    assert "通知" in parsed.blocks[0].text or parsed.blocks[0].text == "x"


@pytest.mark.parametrize(
    "day", ["Mon, 01 Jan 99999999999 00:00:00 GMT", "Mon, 01 Jan 2026 00:00:00 +9999999999999999999", "soon"]
)
def test_a_mail_with_an_impossible_date_is_read_without_one(tmp_path: Path, day: str) -> None:
    parsed = read(tmp_path / "a.eml", f"Date: {day}\r\nSubject: Trains\r\n\r\nBook here".encode())
    assert "Book here" in parsed.text
    assert parsed.date is None


def test_the_web_form_of_a_mail_is_read_with_its_table_and_links(tmp_path: Path) -> None:
    message = make_mail("Trains", "Train Price\nA 3\nBook here")
    table = "<table><tr><th>Train<th>Price<tr><td>A<td>3</table><p><a href='https://t.example.org/b'>Book here</a>"
    message.add_alternative(table, subtype="html")
    assert texts_of(read(tmp_path / "a.eml", message.as_bytes()))[2:] == [
        "Train | Price\nA | 3",
        "Book here (https://t.example.org/b)",
    ]


def test_a_saved_web_page_is_read_without_its_pictures_and_styles(tmp_path: Path) -> None:
    page = base64.b64encode(b"<html><head><title>Locks</title></head><body><p>Oil them in May.</p></body></html>")
    source = (
        b"From: <Saved by Blink>\r\nSnapshot-Content-Location: https://locks.example.org/\r\nSubject: Locks\r\n"
        b'Content-Type: multipart/related; type="text/html"; boundary="b"\r\n\r\n--b\r\nContent-Type: text/html\r\n'
        b"Content-Transfer-Encoding: base64\r\nContent-Location: https://locks.example.org/\r\n\r\n"
        + page
        + b"\r\n--b\r\n"
        b"Content-Type: text/css\r\n\r\np {}\r\n--b\r\nContent-Type: image/png\r\n\r\nx\r\n--b--\r\n"
    )
    parsed = read(tmp_path / "a.mht", source)
    assert texts_of(parsed) == ["Locks", "Oil them in May.", "Saved from https://locks.example.org/"]
    assert parsed.notes == ("text in pictures was not read: 1 pictures",)


def write_book(path: Path, spine: str, members: dict[str, str]) -> Path:
    package = f'<package xmlns="http://www.idpf.org/2007/opf"><metadata/><manifest>{spine}</manifest><spine>'
    package += (
        "".join(f'<itemref idref="i{number}"/>' for number in range(spine.count("<item "))) + "</spine></package>"
    )
    container = '<container><rootfiles><rootfile full-path="OEBPS/c.opf"/></rootfiles></container>'
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("META-INF/container.xml", container)
        archive.writestr("OEBPS/c.opf", package)
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def test_a_book_with_links_outside_its_archive_is_read_and_has_a_note(tmp_path: Path) -> None:
    (tmp_path / "secret.xhtml").write_text("<p>secret words</p>")
    hrefs = [
        "../../secret.xhtml",
        "/etc/passwd",
        "file:///etc/passwd",
        "https://evil.example/x.xhtml",
        "gone.xhtml",
        "a.xhtml",
    ]
    spine = "".join(
        f'<item id="i{number}" href="{href}" media-type="application/xhtml+xml"/>' for number, href in enumerate(hrefs)
    )
    parsed = read(
        write_book(tmp_path / "a.epub", spine, {"OEBPS/a.xhtml": "<html><body><p>A red lock.</p></body></html>"})
    )
    assert texts_of(parsed) == ["A red lock."]
    assert len(parsed.notes) == 5
    assert all("outside of the book" in note or "missing in the book" in note for note in parsed.notes)


def test_an_entity_bomb_in_a_book_is_not_expanded(tmp_path: Path) -> None:
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "lol"}">' for n in range(10))
    spine = '<item id="i0" href="a.xhtml" media-type="application/xhtml+xml"/>'
    chapter = f"<!DOCTYPE html [{entities}]><html><body><p>words &e9;</p></body></html>"
    assert len(read(write_book(tmp_path / "a.epub", spine, {"OEBPS/a.xhtml": chapter})).text) < 2_000
    for name in ("a.odt", "a.ods"):
        bomb = files.package(tmp_path / name, {"content.xml": f"<!DOCTYPE x [{entities}]><x>&e9;</x>".encode()})
        assert refuse(bomb)[0] == "DOCUMENT_BROKEN"


@pytest.mark.attack(kind="files")
@pytest.mark.parametrize("name", ["a.epub", "a.odt", "a.ods", "a.odp"])
def test_a_zip_with_too_large_content_is_not_unpacked(tmp_path: Path, name: str) -> None:
    bomb = files.package(tmp_path / name, {"content.xml": files.zeros(64), "META-INF/container.xml": b"<x/>"})
    assert refuse(bomb, limits=ParseLimits(max_unpacked_bytes=2**25))[0] == "DOCUMENT_TOO_LARGE"
    assert refuse(tmp_path / name, b"PK\x03\x04broken")[0] == "DOCUMENT_BROKEN"
    assert refuse(tmp_path / name, b"plain text")[0] == "DOCUMENT_BROKEN"


def cell_xml(text: str, attributes: str = "") -> str:
    return f"<table:table-cell {attributes}><text:p>{text}</text:p></table:table-cell>"


def test_an_open_spreadsheet_shows_values_merges_and_hidden_sheets(tmp_path: Path) -> None:
    rows = (
        f"<table:table-row>{cell_xml('site')}{cell_xml('guard')}</table:table-row>"
        f"<table:table-row>{cell_xml('North', 'table:number-rows-spanned=' + chr(34) + '2' + chr(34))}{cell_xml('Ana')}"
        "</table:table-row><table:table-row><table:covered-table-cell/>"
        f"{cell_xml('00070')}</table:table-row>"
        "<table:table-row table:number-rows-repeated='1048000'><table:table-cell "
        "table:number-columns-repeated='16384'/></table:table-row>"
    )
    styles = (
        "<office:automatic-styles><style:style style:name='ta2' style:family='table'><style:table-properties "
        "table:display='false'/></style:style></office:automatic-styles>"
    )
    body = (
        f"<table:table table:name='Shifts'>{rows}</table:table>"
        f"<table:table table:name='Away' table:style-name='ta2'><table:table-row>{cell_xml('secret')}</table:table-row>"
        "</table:table>"
    )
    parsed = read(office_files.open_package(tmp_path / "a.ods", "spreadsheet", body, styles))
    assert parsed.blocks == (
        Block("heading", "Shifts", 1),
        Block("table", "site | guard\nNorth | Ana\nNorth | 00070", cells="Shifts!A2:B3"),
    )
    assert parsed.notes == ("hidden sheets were not read: 1",)


def test_open_slides_are_pages_with_title_shapes_by_position_and_notes(tmp_path: Path) -> None:
    def box(text: str, top: int, kind: str = "") -> str:
        return (
            f"<draw:frame svg:y='{top}cm' svg:x='1cm' {kind}><draw:text-box><text:p>{text}</text:p></draw:text-box>"
            "</draw:frame>"
        )

    title = box("Drill", 1, "presentation:class='title'")
    body = (
        f"<draw:page>{box('second', 12)}{box('first', 5)}{title}<presentation:notes>{box('say it', 1)}"
        f"</presentation:notes></draw:page><draw:page>{box('alone', 1)}</draw:page>"
    )
    parsed = read(office_files.open_package(tmp_path / "a.odp", "presentation", body))
    assert parsed.pages == 2
    assert [(block.text, block.page) for block in parsed.blocks] == [
        ("Drill", 1),
        ("first", 1),
        ("second", 1),
        ("say it", 1),
        ("Slide 2", 2),
        ("alone", 2),
    ]


def test_rtf_keeps_notes_headers_links_and_tables_and_counts_what_it_cannot(tmp_path: Path) -> None:
    source = (
        r"{\rtf1\ansi\ansicpg936{\fonttbl{\f0\fcharset134 SimSun;}}"
        r"{\header Header text {\field{\*\fldinst PAGE}{\fldrslt 3}}\par}"
        r"\f0 \'b9\'f8\'c2\'af {\footnote Note text.} and {\*\annotation Remark.}more\par"
        r"{\field{\*\fldinst {HYPERLINK "
        r'"https://a.example.org/x"}}{\fldrslt {the form}}}\par'
        r"\trowd A\cell B\cell\row\trowd 1\cell\cell\row\pard after{\pict\pngblip 00ff}{\b\v\fs20 hidden}\par}"
    )
    parsed = read(tmp_path / "a.rtf", source)
    assert "锅炉" in parsed.text
    assert [
        text for text in ("Header text", "Note text.", "Comment: Remark.", "after") if text not in parsed.text
    ] == []
    assert "the form (https://a.example.org/x)" in texts_of(parsed)
    assert "A | B\n1 |" in texts_of(parsed)
    assert parsed.notes == ("text in pictures was not read: 1 pictures", "hidden and deleted texts were not read: 1")
    assert refuse(tmp_path / "b.rtf", "plain text")[0] == "DOCUMENT_BROKEN"


def test_opendocument_text_that_its_style_hides_is_counted_and_not_read(tmp_path: Path) -> None:
    style = (
        "<style:style style:name='T1' style:family='text'><style:text-properties text:display='none'/></style:style>"
    )
    body = "<text:p>shown <text:span text:style-name='T1'>secret</text:span> text</text:p>"
    parsed = parse(office_files.open_package(tmp_path / "a.odt", "text", body, style), "a.odt")
    assert (parsed.text, parsed.notes) == ("shown  text", ("hidden texts were not read: 1",))


def test_the_table_of_an_opendocument_chart_has_its_numbers_only(tmp_path: Path) -> None:
    cell = "<table:table-cell><text:p>%s</text:p><draw:g><svg:desc>Sheet.B1:B1</svg:desc></draw:g></table:table-cell>"
    rows = "".join(f"<table:table-row>{cell % a}{cell % b}</table:table-row>" for a, b in (("", "Crew"), ("Vega", 12)))
    space = "urn:oasis:names:tc:opendocument:xmlns:chart:1.0"
    chart = f"<chart:chart xmlns:chart='{space}'><table:table>{rows}</table:table></chart:chart>"
    with zipfile.ZipFile(office_files.open_package(tmp_path / "chart.odt", "chart", chart)) as package:
        content = package.read("content.xml")
    body = "<text:p><draw:frame><draw:object xlink:href='./Object 1'/></draw:frame></text:p>"
    path = office_files.open_package(tmp_path / "a.odt", "text", body)
    with zipfile.ZipFile(path, "a") as package:
        package.writestr("Object 1/content.xml", content)
    assert texts_of(parse(path, "a.odt")) == ["| Crew\nVega | 12"]


RTF_HEAD = r"{\rtf1\ansi{\stylesheet{\s1\sb240\b heading 1;}{\s9\qc Title;}{\s2\fs20 text;}}"


def test_rtf_cells_of_paragraphs_stay_in_their_row(tmp_path: Path) -> None:
    row = r"{\trowd\cellx2000\cellx4000{{\pard\intbl %s\par}\cell}{{\pard\intbl %s\par}\cell}\intbl\row}"
    source = RTF_HEAD + row % ("Model", "Flow") + row % (r"P-100\par big", "12.5") + r"{\pard after\par}}"
    assert texts_of(read(tmp_path / "a.rtf", source)) == ["Model | Flow\nP-100 big | 12.5", "after"]


def test_rtf_merged_cells_repeat_their_text_below_their_headings(tmp_path: Path) -> None:
    source = (
        RTF_HEAD + r"\trowd\cellx6000\pard\intbl Rates\cell\row"
        r"\trowd\cellx2000\cellx4000\cellx6010\pard\intbl Zone\cell Day\cell Night\cell\row"
        r"\trowd\clvmgf\cellx2000\cellx4000\cellx6000\pard\intbl North\cell 10\cell 20\cell\row"
        r"\trowd\clvmrg\cellx2000\cellx6000\pard\intbl\cell 12\cell\row"
        r"\trowd\cellx3000\cellx5000\pard\intbl Ship\cell Crew\cell\row"
        r"\trowd\cellx3000\cellx5000\pard\intbl Vega\cell 9\cell\row}"
    )
    assert texts_of(read(tmp_path / "a.rtf", source)) == [
        "Rates",
        "Zone | Day | Night\nNorth | 10 | 20\nNorth | 12 | 12",
        "Ship | Crew\nVega | 9",
    ]


def test_rtf_headings_are_those_of_its_styles_and_outline_levels(tmp_path: Path) -> None:
    source = (
        RTF_HEAD + r"\pard\s9 Manual\par\pard\s1 Costs\par\pard\s2 Text.\par\pard\outlinelevel1 Fees\par\pard 5\par}"
    )
    blocks = read(tmp_path / "a.rtf", source).blocks
    assert [(block.text, block.level) for block in blocks] == [
        ("Manual", 1),
        ("Costs", 2),
        ("Text.", 0),
        ("Fees", 3),
        ("5", 0),
    ]


def test_hidden_rtf_text_is_left_out_when_it_is_not_ascii(tmp_path: Path) -> None:
    parsed = read(tmp_path / "a.rtf", r"{\rtf1\ansi shown {\v secret \u22823?\u24184?}end\par}")
    assert parsed.text == "shown end"


@pytest.mark.parametrize("fallback", [r"\uc0 It\u8217 s", r"\uc2 It\u8217 ??s"])
def test_rtf_tables_are_read_whatever_the_number_of_fallback_characters_is(tmp_path: Path, fallback: str) -> None:
    row = r"\trowd\cellx2000\cellx4000\pard\intbl %s\cell %s\cell\row"
    source = (
        r"{\rtf1\ansi" + fallback + r"\par" + row % ("Model", "Flow") + row % ("P-100", "12.5") + r"\pard after\par}"
    )
    assert texts_of(read(tmp_path / "a.rtf", source)) == ["It’s", "Model | Flow\nP-100 | 12.5", "after"]


def test_private_characters_in_rtf_are_no_marks_of_rows(tmp_path: Path) -> None:
    assert read(tmp_path / "a.rtf", r"{\rtf1\ansi a\u57345?9\u57346?b\par c\u-8176?\par}").text == "a?9?b\n\nc?"


def test_json_on_one_line_is_formatted_without_loss(tmp_path: Path) -> None:
    data = {"name": "锅炉", "list": [1.10, {"a": "x, y: {z}"}], "long": "w" * 1_000}
    text = read(tmp_path / "a.json", json.dumps(data)).text
    assert json.loads(text) == data
    assert '"name": "锅炉",' in text.split("\n")[1]
    broken = '{"a": 1, "a": 2, "b": [' + "[" * 5_000
    assert "".join(read(tmp_path / "b.json", broken).text.split()) == "".join(broken.split())


def test_a_half_of_a_character_is_replaced_because_no_store_accepts_it(tmp_path: Path) -> None:
    assert read(tmp_path / "half.json", r'{"a": "\ud83d one", "b": "\ud83d\ude00 \u00e4"}').text == (
        '{"a": "\ufffd one", "b": "\U0001f600 ä"}'
    )


def test_xml_shows_its_characters_in_the_declared_encoding_and_expands_no_entities(tmp_path: Path) -> None:
    source = '<?xml version="1.0" encoding="gb2312"?><a><b>锅炉 &#x4e2d; &lt;</b></a>'.encode("gbk")
    assert "锅炉 中 &lt;" in read(tmp_path / "a.xml", source).text
    bomb = '<!DOCTYPE d [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><d>&b;</d>'
    assert "&b;" in read(tmp_path / "b.xml", bomb).text


@pytest.mark.parametrize("name", ["a.yaml", "a.toml", "a.log", "a.py", "a.sql", "a.ini"])
def test_settings_logs_and_source_files_are_read_as_code(tmp_path: Path, name: str) -> None:
    assert read(tmp_path / name, "first: 1\r\n\r\n  second: 2\r\n").blocks == (
        Block("code", "first: 1\n\n  second: 2"),
    )


@pytest.mark.parametrize(
    ("name", "instead"), [("a.doc", ".docx"), ("a.ppt", ".pptx"), ("a.msg", ".eml"), ("a.PAGES", ".pdf")]
)
def test_an_unsupported_format_says_how_to_save_the_file_instead(tmp_path: Path, name: str, instead: str) -> None:
    code, message = refuse(tmp_path / name, b"x")
    assert code == "DOCUMENT_UNSUPPORTED"
    assert instead in message


def test_no_format_is_both_read_and_refused() -> None:
    assert {ending for ending in SAVE_INSTEAD if ending in all_formats()} <= {".xls"}
    assert ".xls" in all_formats(), "the extra is installed for tests"


def test_a_damaged_old_workbook_is_reported(tmp_path: Path) -> None:
    assert refuse(tmp_path / "a.xls", b"\xd0\xcf\x11\xe0" + bytes(600))[0] == "DOCUMENT_BROKEN"
    book_of_today = files.workbook(tmp_path / "b.xlsx", 1).rename(tmp_path / "b.xls")
    assert "City number 0 | 0" in read(book_of_today).text


def sheet_xml(*rows: str, after: str = "") -> bytes:
    spaces = f'xmlns="{office_files.S}"'
    return f"<worksheet {spaces}><sheetData>{''.join(rows)}</sheetData>{after}</worksheet>".encode()


def write_workbook(path: Path, sheet: bytes) -> Path:
    members: dict[str, str | bytes] = {
        "xl/workbook.xml": f'<workbook xmlns="{office_files.S}" xmlns:r="{office_files.OFFICE}"><sheets>'
        '<sheet name="S" sheetId="1" r:id="r1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": office_files.relationships_xml(
            ("r1", "worksheet", "worksheets/sheet1.xml"), ("r3", "styles", "styles.xml")
        ),
        "xl/styles.xml": f'<styleSheet xmlns="{office_files.S}"><cellXfs><xf/></cellXfs></styleSheet>',
        "xl/worksheets/sheet1.xml": sheet,
    }
    return office_files.package(path, "spreadsheetml.sheet", "xl/workbook.xml", members)


def test_a_hundred_thousand_merged_cells_cost_little_and_are_counted(tmp_path: Path) -> None:
    cells = "".join(
        f'<row r="{row}"><c r="A{row}"><v>{row}</v></c><c r="C{row}"><v>1</v></c></row>' for row in range(1, 200)
    )
    merges = "".join(f'<mergeCell ref="A{1 + number % 199}:XFD1048576"/>' for number in range(100_000))
    after = f'<mergeCells count="100000">{merges}</mergeCells>'
    parsed = read(write_workbook(tmp_path / "a.xlsx", sheet_xml(cells, after=after)))
    assert "199 | 1 | 1" in parsed.text or "199 |" in parsed.text
    assert any(note.startswith("merged cells whose value stands in their first cell only:") for note in parsed.notes)


def test_values_in_scattered_columns_do_not_fill_the_table_between(tmp_path: Path) -> None:
    letters = [openpyxl.utils.get_column_letter(number) for number in range(1, 4_001)]
    rows = "".join(
        f'<row r="{number}"><c r="{name}{number}"><v>{number}</v></c></row>' for number, name in enumerate(letters, 1)
    )
    parsed = read(write_workbook(tmp_path / "a.xlsx", sheet_xml(rows)))
    assert parsed.blocks[-1].cells == "S!A1:EWV4000"
    assert "EWV4000: 4000" in parsed.text
    assert len(parsed.text) < 100_000


def test_a_broken_part_of_an_office_file_costs_only_that_part(tmp_path: Path) -> None:
    intact = office_files.word(tmp_path / "whole.docx")
    broken = tmp_path / "a.docx"
    with zipfile.ZipFile(intact) as source, zipfile.ZipFile(broken, "w") as archive:
        for name in source.namelist():
            if name != "word/footnotes.xml":
                archive.writestr(name, b"<broken" if name == "word/comments.xml" else source.read(name))
    parsed = read(broken)
    assert "plain text" in parsed.text
    assert "incomplete: damaged parts of the file were not read: word/comments.xml" in parsed.notes
    assert "parts that the file refers to are missing in it: 1" in parsed.notes


def test_strict_workbooks_and_slides_are_read_like_transitional_ones(tmp_path: Path) -> None:
    def strict(path: Path) -> Path:
        target = path.with_name(f"strict-{path.name}")
        with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as archive:
            for name in source.namelist():
                data = source.read(name).replace(
                    b"schemas.openxmlformats.org/officeDocument/2006/relationships/extended-properties",
                    b"purl.oclc.org/ooxml/officeDocument/relationships/extendedProperties",
                )
                for kind in (b"spreadsheetml", b"presentationml", b"drawingml", b"officeDocument"):
                    for word in (b"main", b"relationships", b"chart"):
                        new = b"http://purl.oclc.org/ooxml/%s/%s" % (kind, word)
                        data = data.replace(b"http://schemas.openxmlformats.org/%s/2006/%s" % (kind, word), new)
                archive.writestr(name, data)
        return target

    for path in (
        files.workbook(tmp_path / "a.xlsx", 2),
        files.slides(tmp_path / "a.pptx"),
        files.word(tmp_path / "a.docx"),
    ):
        assert read(strict(path)).blocks == read(path).blocks


def test_a_file_without_text_names_its_unread_parts(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    book.create_sheet("Away").append(["secret"])
    book["Away"].sheet_state = "hidden"
    book.save(tmp_path / "a.xlsx")
    message = "the file holds no text (hidden sheets were not read: 1)"
    assert refuse(tmp_path / "a.xlsx") == ("DOCUMENT_EMPTY", message)


@pytest.mark.parametrize(
    ("name", "source", "first"),
    [
        ("a.csv", "Preis, EUR\tArtikel\n2,50\tPumpe\n7,90\tVentil\textra\n", "Preis, EUR | Artikel |"),
        ("b.csv", "Preis, EUR;Artikel\n2,50;Pumpe\n7,90;Ventil\n", "Preis, EUR | Artikel"),
        ("c.csv", "name,note\nAnn,a; b\nBo,c\n", "name | note"),
        ("d.tsv", "a,b\n1,2\n", "a | b"),
        ("e.tsv", 'Preis\t"Artikel\tArt"\n2\tPumpe\n', "Preis | Artikel Art"),
        ("f.csv", "Name|Preis, netto\nPumpe|2,50\n", "Name | Preis, netto"),
    ],
)
def test_the_delimiter_follows_the_suffix_and_the_first_lines(
    tmp_path: Path, name: str, source: str, first: str
) -> None:
    assert read(tmp_path / name, source).text.split("\n")[0] == first


@pytest.mark.parametrize(
    ("source", "date"),
    [
        ("--- \ntitle: x\ndate: 2031-02-03\n---\t\n\nText.", "2031-02-03"),
        ("\ufeff---\r\ntitle: x\r\ndate: 2031-02-03\r\n...\r\n\r\nText.", "2031-02-03"),
        ('+++\ntitle = "x"\ndate = 2031-02-03T10:00:00Z\n+++\nText.', "2031-02-03"),
        ("\n---yaml\ndate: 2031-02-03\n---\nText.", "2031-02-03"),
        (f"---\ntitle: x\n{chr(10) * 50_000}date: 2031-02-03\n---\nText.", "2031-02-03"),
        ("---\n---\nText.", None),
        ("---\n\nText.\n\n---\n\nText.", None),
    ],
)
def test_front_matter_in_its_variants_is_data_and_gives_the_date(tmp_path: Path, source: str, date: str | None) -> None:
    parsed = read(tmp_path / "a.md", source)
    assert (parsed.date, parsed.blocks[-1]) == (date, Block("prose", "Text."))
    assert not any(block.kind == "heading" for block in parsed.blocks)


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        (
            "a.md",
            "[a][spec]\n\n[spec]: https://s.example/x\n[other]: https://s.example/y",
            "other: https://s.example/y",
        ),
        ("a.md", "[a][spec]\n\n[spec]: https://s.example/x", "a (https://s.example/x)"),
        ("a.md", "<https://s.example/x>", "https://s.example/x"),
        ("a.md", "See <a href='https://s.example/x'>this</a> now.", "See this (https://s.example/x) now."),
        ("a.md", "- [a](https://s.example/x)\n\n| [b](https://s.example/y) |\n|---|", "b (https://s.example/y)"),
        ("a.md", "[a](docs/plan.pdf) [b](#top)", "a (docs/plan.pdf) b"),
        ("a.html", "<a href='mailto:ada@works.example'>Ada</a>", "Ada (ada@works.example)"),
        ("a.html", "<a href='https://s.example/x'><h2>Head</h2></a><p>x", "Head (https://s.example/x)"),
        ("a.html", "<table><tr><td><a href='https://s.example/x'>a</a><td>b</table>", "a (https://s.example/x) | b"),
        ("a.html", "<base href='https://s.example/'><a href='plan.pdf'>a</a>", "a (https://s.example/plan.pdf)"),
        ("a.html", "<a href='javascript:x()'>a</a> <a href='https://s.example'>s.example</a>", "a s.example"),
    ],
)
def test_the_address_of_a_link_stays_readable(tmp_path: Path, name: str, source: str, expected: str) -> None:
    assert expected in read(tmp_path / name, source).text


def test_forms_of_a_web_page_show_their_values(tmp_path: Path) -> None:
    source = (
        "<input type=checkbox checked>Yes <input type=radio>No <input value='Ada'><input type=password value=x>"
        "<select><option>one<option selected>two</select><textarea>words</textarea>"
    )
    assert read(tmp_path / "a.html", source).text == "☒ Yes ☐ No Ada two words"


def test_a_mails_attachment_is_read_from_memory(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x", "y")
    message = make_mail("x", "words", ("a.xlsx", stream.getvalue()), ("empty.txt", b""), ("page.html", b"<p>web words"))
    parsed = read(tmp_path / "a.eml", message.as_bytes())
    assert "web words" in parsed.text
    assert len(parsed.notes) == 1
