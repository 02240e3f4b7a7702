"""Header rows, number formats, comments and delimited texts: the blocks contain what a person sees in the file."""

import datetime
from pathlib import Path
from typing import Any

import docx
import openpyxl
import pptx
import pytest
from openpyxl.comments import Comment
from reportlab.lib.pagesizes import A4, landscape
from reportlab.platypus import SimpleDocTemplate, Table

from mcp_servers.retriever.document import join_headers, join_row
from mcp_servers.retriever.formats.number_formats import show_date, show_number
from mcp_servers.retriever.parsing import parse

DATA = ["A", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("rows", "header"),
    [
        (
            [["Berth", "2030", "2030", "2031", "2031"], ["Berth", "Q1", "Q2", "Q1", "Q2"], DATA],
            ["Berth", "2030 Q1", "2030 Q2", "2031 Q1", "2031 Q2"],
        ),
        (
            [["", "Summer", "", "Winter", ""], ["Berth", "day", "week", "day", "week"], DATA],
            ["Berth", "Summer day", "Summer week", "Winter day", "Winter week"],
        ),
        (
            [["Berth", "Fee", "Fee", "Winter", "Note"], ["Berth", "day", "week", "day", "Note"], DATA],
            ["Berth", "Fee day", "Fee week", "Winter day", "Note"],
        ),
        (
            [["x", "All", "All", "All", "All"], ["x", "a", "a", "b", "b"], ["x", "1st", "2nd", "1st", "2nd"], DATA],
            ["x", "All a 1st", "All a 2nd", "All b 1st", "All b 2nd"],
        ),
        ([["Rule", "Text", "Text"], ["one", "be", "quiet"], ["two", "be", "kind"]], ["Rule", "Text", "Text"]),
        ([["Rule", "Fee", "Fee"], ["one", "1", "2"], ["two", "3", "4"]], ["Rule", "Fee", "Fee"]),
        ([["a", "b", ""], ["x", "y", "z"], ["1", "2", "3"]], ["a", "b", ""]),
    ],
)
def test_group_headings_are_joined_with_the_header_below_them_and_data_is_not(
    rows: list[list[str]], header: list[str]
) -> None:
    joined_header, row_count = join_headers(rows)
    assert list(joined_header) == header
    is_joined = header != rows[0]
    assert row_count == (len(rows) - 1 if is_joined else 1)


def word_table(rows: list[list[str]]) -> Any:
    document = docx.Document()
    table = document.add_table(len(rows), len(rows[0]))
    for position, text in enumerate(text for row in rows for text in row):
        table.cell(position // len(rows[0]), position % len(rows[0])).text = text
    return document, table


def test_a_title_over_a_table_is_not_the_header_of_its_rows(tmp_path: Path) -> None:
    rows = [["Fees of 2031", "", ""], ["Berth", "Day", "Week"], ["A", "10", "60"]]
    document, table = word_table(rows)
    table.cell(0, 0).merge(table.cell(0, 2))
    document.save(str(tmp_path / "a.docx"))
    cells = "<tr><th>Berth<th>Day<th>Week<tr><td>A<td>10<td>60</table>"
    (tmp_path / "a.html").write_text(f"<table><tr><td colspan=3>Fees of 2031{cells}")
    (tmp_path / "b.html").write_text(f"<table><caption>Fees of 2031</caption>{cells}")
    slides = pptx.Presentation()
    frame = slides.slides.add_slide(slides.slide_layouts[6]).shapes.add_table(3, 3, 0, 0, 10**6, 10**6).table
    for position, text in enumerate(text for row in rows for text in row):
        frame.cell(position // 3, position % 3).text = text
    frame.cell(0, 0).merge(frame.cell(0, 2))
    slides.save(str(tmp_path / "a.pptx"))
    for name in ("a.docx", "a.html", "b.html", "a.pptx"):
        texts = [block.text for block in parse(tmp_path / name, name).blocks if block.kind != "heading"]
        assert texts == ["Fees of 2031", "Berth | Day | Week\nA | 10 | 60"], name


def test_a_name_over_two_columns_of_properties_stays_in_the_table(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<table><tr><th colspan=2>Vega<tr><th>Owner<td>Acme<tr><th>Speed<td>21 kn</table>")
    assert parse(tmp_path / "a.html", "a.html").text == "Vega |\nOwner | Acme\nSpeed | 21 kn"


def test_each_group_of_rows_has_the_joined_header_in_sheets_and_letters(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Fees"
    for row in (["Berth", "Summer", None, "Winter", None], [None, "day", "week", "day", "week"]):
        sheet.append(row)
    for merge in ("A1:A2", "B1:C1", "D1:E1"):
        sheet.merge_cells(merge)
    for number in range(60):
        sheet.append([f"Berth {number} on the long quay of the harbour", number, 2 * number, 3, 4])
    sheet["B3"].comment = Comment("Ann Lee:\nask again", "Ann Lee")
    book.save(tmp_path / "a.xlsx")
    parsed = parse(tmp_path / "a.xlsx", "a.xlsx")
    tables = [block for block in parsed.blocks if block.kind == "table"]
    assert len(tables) > 1
    header = "Berth | Summer day | Summer week | Winter day | Winter week"
    assert {block.text.partition("\n")[0] for block in tables} == {header}
    assert (tables[0].cells or "").startswith("Fees!A3:E")
    assert "- Comment on B3 by Ann Lee: ask again" in parsed.text
    letter = docx.Document()
    table = letter.add_table(3, 3)
    for position, text in enumerate(("Berth", "Fee", "", "", "day", "week", "A", "10", "60")):
        table.cell(position // 3, position % 3).text = text
    table.cell(0, 1).merge(table.cell(0, 2))
    table.cell(0, 0).merge(table.cell(1, 0))
    letter.save(str(tmp_path / "a.docx"))
    assert parse(tmp_path / "a.docx", "a.docx").text == "Berth | Fee day | Fee week\nA | 10 | 60"


@pytest.mark.parametrize(
    ("value", "code", "expected"),
    [
        (1.5, "# ?/?", "1 1/2"),
        (2.375, "# ??/16", "2 6/16"),
        (0.25, "# ?/?", "1/4"),
        (3, "# ?/?", "3"),
        (-1.3333, "# ?/?", "-1 1/3"),
        (1.75, "?/?", "7/4"),
        (0.000012, "General", "1.2E-05"),
    ],
)
def test_fractions_and_small_numbers_are_shown_as_in_a_sheet(value: float, code: str, expected: str) -> None:
    assert show_number(value, code) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("[$-407]d. mmmm yyyy", "2. August 2031"),
        ("[$-40C]dddd d mmmm yyyy", "samedi 2 août 2031"),
        ("[$-0419]d mmmm yyyy", "2 августа 2031"),
        ("[$-2C0A]dddd", "sábado"),
        ("[$-409]mmm d", "Aug 2"),
        ("[$-804]mmmm", "八月"),
        ("[$-7FFF]mmmm", "August"),
    ],
)
def test_names_of_months_are_in_the_language_of_the_format(code: str, expected: str) -> None:
    assert show_date(datetime.datetime(2031, 8, 2), code) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Name;Preis\nSeil;12,50\nBoje;1.234,00\n".encode("cp1252"), "Name | Preis\nSeil | 12,50\nBoje | 1.234,00"),
        (b"name|price\nrope|12.50\n", "name | price\nrope | 12.50"),
        (b"name\tprice\nrope, long\t12,5\n", "name | price\nrope, long | 12,5"),
        ("name;price\nrope;12,5\n".encode("utf-16"), "name | price\nrope | 12,5"),
        ("name,price\nrope,12.5\n".encode("utf-16-be"), "name | price\nrope | 12.5"),
        ("\ufeffname,price\nrope,12.5\n".encode(), "name | price\nrope | 12.5"),
        (b"Price list, valid from 2031\nName,Price,Unit\nRope,12.50,m\nLamp,3.00,pc\n", "Price list, valid from 2031"),
        (b"a,b,c\n1,2\n3,4,5,6\n", "a | b | c |\n1 | 2 |  |\n3 | 4 | 5 | 6"),
    ],
)
def test_delimited_texts_of_all_kinds_become_their_table(tmp_path: Path, text: bytes, expected: str) -> None:
    (tmp_path / "a.csv").write_bytes(text)
    assert parse(tmp_path / "a.csv", "a.csv").blocks[0].text == expected


WIDE = [[f"B{number}", str(number), str(2 * number), str(3 * number)] for number in range(1, 8)]


@pytest.mark.parametrize(
    ("header", "rows", "expected_header"),
    [
        ([["Berth", "day", "week", "x"]], WIDE, "Berth | day | week | x"),
        (
            [["Berth", "Summer", "", "Winter", ""], ["", "day", "week", "day", "week"]],
            [[*row, "5"] for row in WIDE],
            "Berth | Summer day | Summer week | Winter day | Winter week",
        ),
        (
            [["Berth", "day", "week", "x", "y"]],
            [[*row[:2], "", *row[2:]] for row in WIDE],
            "Berth | day | week | x | y",
        ),
    ],
    ids=["plain", "two header rows", "empty column"],
)
def test_a_table_without_rules_keeps_its_rows_across_wide_gaps(
    tmp_path: Path, header: list[list[str]], rows: list[list[str]], expected_header: str
) -> None:
    path = tmp_path / "wide.pdf"
    for width in (40, 70, 100):
        SimpleDocTemplate(str(path), pagesize=landscape(A4)).build([Table([*header, *rows], colWidths=width)])
        (block,) = parse(path, path.name).blocks
        assert block.text.split("\n") == [expected_header, *(join_row(row) for row in rows)], (
            f"columns of {width} points"
        )


@pytest.mark.parametrize(
    ("title", "row"),
    [("Titel; des Blatts", "B-20;1,50;Köln"), ("Preisliste 2030", "B-20;1,50;Köln"), ("Stock | all", "B-20|1,50|Köln")],
)
def test_a_title_above_the_header_does_not_decide_the_delimiter(tmp_path: Path, title: str, row: str) -> None:
    mark = ";" if ";" in row else "|"
    path = tmp_path / "a.csv"
    path.write_text("\n".join([title, mark.join(("Artikel", "Preis", "Ort")), row, row.replace("20", "21"), ""]))
    text = "\n".join(block.text for block in parse(path, "a.csv").blocks)
    assert "B-20 | 1,50 | Köln" in text


def test_a_semicolon_inside_cells_does_not_divide_a_file_with_commas(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("name,price\nred;blue,1\ngreen;white,2\n")
    text = "\n".join(block.text for block in parse(path, "a.csv").blocks)
    assert "red;blue | 1" in text


def test_an_unclosed_quotation_mark_loses_no_row(tmp_path: Path) -> None:
    path = tmp_path / "pipes.csv"
    path.write_text('Pipe,Price\n"5 inch,12\n"6, long",14\n"two\nlines",15\n"7 inch,16\n8 inch,18\n')
    parsed = parse(path, path.name)
    assert [block.text for block in parsed.blocks] == [
        'Pipe | Price\n"5 inch | 12\n6, long | 14\ntwo lines | 15\n"7 inch | 16\n8 inch | 18'
    ]
    assert [note.split(" has")[0] for note in parsed.notes] == [
        "the quotation mark in line 2",
        "the quotation mark in line 6",
    ]


def test_struck_out_text_is_marked_and_does_not_join_the_text_behind_it(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<p>The limit is <del>40</del><ins>55</ins> bar, <s>5 <b>EUR</b></s> 4 EUR")
    document = docx.Document()
    paragraph = document.add_paragraph("The limit is ")
    paragraph.add_run("40").font.strike = True
    paragraph.add_run("55 bar, ")
    paragraph.add_run("5 E").font.double_strike = True
    paragraph.add_run("UR").font.double_strike = True
    paragraph.add_run(" 4 EUR")
    document.save(str(tmp_path / "a.docx"))
    for name in ("a.html", "a.docx"):
        assert parse(tmp_path / name, name).text == "The limit is ~~40~~55 bar, ~~5 EUR~~ 4 EUR"


def test_struck_out_text_that_is_not_ended_ends_with_its_cell(tmp_path: Path) -> None:
    source = "<table><tr><td>Fee<td><s>40<tr><td>Tax<td>5</table><p>Valid.<p><s>Old.<p>Older.</s> New."
    (tmp_path / "a.html").write_text(source)
    assert parse(tmp_path / "a.html", "a.html").text == "Fee | ~~40~~\nTax | 5\n\nValid.\n\n~~Old.~~\n\n~~Older.~~ New."


def test_a_second_table_of_numbers_with_units_has_its_own_header(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    rows: list[list[object]] = [
        ["Ship", "Crew"],
        ["Vega", 12],
        ["Lyra", 9],
        [],
        ["Port", "Depth"],
        ["Oslo", "9 m"],
        ["Rome", "7 m"],
    ]
    for row in rows:
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    texts = [block.text for block in parse(tmp_path / "a.xlsx", "a.xlsx").blocks if block.kind == "table"]
    assert texts == ["Ship | Crew\nVega | 12\nLyra | 9", "Port | Depth\nOslo | 9 m\nRome | 7 m"]


def test_groups_of_names_below_one_header_stay_one_table(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for row in (
        ["Name", "Seat"],
        ["Ann", "Hall"],
        ["Ben", "Desk"],
        [],
        ["Cleo", "Lobby"],
        ["Dan", "Room 9"],
        ["Eve", "Room 7"],
    ):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    texts = [block.text for block in parse(tmp_path / "a.xlsx", "a.xlsx").blocks if block.kind == "table"]
    assert texts == ["Name | Seat\nAnn | Hall\nBen | Desk\nCleo | Lobby\nDan | Room 9\nEve | Room 7"]
