"""Numbers as people see them: number formats of spreadsheets, automatic numbers of Word, symbols of fonts."""

from datetime import datetime, time, timedelta
from pathlib import Path

import openpyxl
import pytest
from docx.oxml import parse_xml

from mcp_servers.retriever.formats.number_formats import show_date, show_number
from mcp_servers.retriever.formats.numbering import read_numbering, show_count
from mcp_servers.retriever.formats.symbols import symbol_text
from mcp_servers.retriever.parsing import parse

from . import office_files


@pytest.mark.parametrize(
    ("value", "code", "expected"),
    [
        (70, "00000", "00070"),
        (123456789, "000-00-0000", "123-45-6789"),
        (8613812345678, "000 0000 0000", "86138 1234 5678"),
        (0.05, "0%", "5%"),
        (0.256, "0.0%", "25.6%"),
        (1234567.891, "#,##0.00", "1,234,567.89"),
        (1.25, '#,##0.00 "€"', "1.25 €"),
        (5, "[$€-407] #,##0.00", "€ 5.00"),
        (-5, "0;(0)", "(5)"),
        (0, '0;-0;"nil"', "nil"),
        (-3.5, "#,##0.00_);[Red](#,##0.00)", "(3.50)"),
        (1234567, "#,##0,", "1,235"),
        (1200000, '0.0,,"M"', "1.2M"),
        (1.5e10, "0.00E+00", "1.50E+10"),
        (3, "0.##", "3"),
        (0.5, ".00", ".50"),
        (0.1 + 0.2, "General", "0.3"),
        (12, '0 "kg"', "12 kg"),
        (3, ";;;", "3"),
        (float("nan"), "0", "nan"),
    ],
)
def test_a_number_is_shown_as_its_format_says(value: float, code: str, expected: str) -> None:
    assert show_number(value, code) == expected


MOMENT = datetime(2031, 1, 2, 15, 4, 5)


@pytest.mark.parametrize(
    ("value", "code", "expected"),
    [
        (MOMENT, "dd.mm.yyyy", "02.01.2031"),
        (MOMENT, "d mmm yyyy", "2 Jan 2031"),
        (MOMENT, "[$-409]dddd, mmmm dd, yyyy;@", "Thursday, January 02, 2031"),
        (MOMENT, 'yyyy"年"m"月"d"日"', "2031年1月2日"),
        (MOMENT, "h:mm AM/PM", "3:04 PM"),
        (MOMENT, "mm:ss", "04:05"),
        (MOMENT, "mm-dd-yy", "2031-01-02"),
        (time(7, 30), "h:mm", "7:30"),
        (timedelta(hours=37, minutes=30), "[h]:mm:ss", "37:30:00"),
        (timedelta(minutes=90), "[mm]:ss", "90:00"),
        (timedelta(hours=-2), "[h]:mm", "-2:00"),
    ],
)
def test_a_date_or_duration_is_shown_as_its_format_says(value: datetime, code: str, expected: str) -> None:
    assert show_date(value, code) == expected


def test_cells_of_a_workbook_are_shown_with_formats_and_links(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.append(["code", "share", "time", "day", "link"])
    sheet.append([7, 0.5, timedelta(hours=30), MOMENT, "form"])
    for cell, code in {"A2": "000", "B2": "0.0%", "C2": "[h]:mm", "D2": "dd/mm/yyyy"}.items():
        sheet[cell].number_format = code
    sheet["E2"].hyperlink = "https://s.example/x"
    sheet.append(["=1+1", "", "", "", '=HYPERLINK("https://s.example/y","there")'])
    sheet.merge_cells("B3:D3")
    sheet["B3"] = "over three"
    book.save(tmp_path / "a.xlsx")
    parsed = parse(tmp_path / "a.xlsx", "a.xlsx")
    lines = parsed.blocks[1].text.split("\n")
    assert lines[1] == "007 | 50.0% | 30:00 | 02/01/2031 | form (https://s.example/x)"
    assert lines[2].startswith("=1+1 | over three | over three | over three | =HYPERLINK(")
    assert parsed.notes[0].startswith("formulas without a value: 2")


@pytest.mark.parametrize(
    ("number", "kind", "expected"),
    [
        (4, "upperRoman", "IV"),
        (28, "lowerLetter", "bb"),
        (3, "decimalZero", "03"),
        (12, "ordinal", "12th"),
        (22, "ordinal", "22nd"),
        (2, "ordinalText", "Second"),
        (10, "chineseCounting", "十"),
        (14, "chineseCountingThousand", "十四"),
        (21, "japaneseCounting", "二十一"),
        (105, "chineseCountingThousand", "一百零五"),
        (23, "chineseLegalSimplified", "贰拾叁"),
        (2, "ideographTraditional", "乙"),
        (3, "decimalEnclosedCircle", "③"),
        (2, "ganada", "나"),
        (7, "no such format", "7"),
    ],
)
def test_word_list_numbers_are_counted_in_many_formats(number: int, kind: str, expected: str) -> None:
    assert show_count(number, kind) == expected


def level_xml(depth: int, kind: str, text: str, extra: str = "") -> str:
    kinds = f'<w:start w:val="1"/><w:numFmt w:val="{kind}"/>'
    return f'<w:lvl w:ilvl="{depth}">{kinds}{extra}<w:lvlText w:val="{text}"/></w:lvl>'


def test_levels_restart_share_counts_and_follow_overrides() -> None:
    abstract = (
        level_xml(0, "upperRoman", "Part %1"),
        level_xml(1, "decimal", "%1.%2", "<w:isLgl/>"),
        level_xml(2, "lowerLetter", "(%3)"),
        level_xml(3, "decimal", "%4)", '<w:lvlRestart w:val="0"/>'),
        level_xml(4, "bullet", "o"),
    )
    nums = "".join(
        f'<w:num w:numId="{number_id}"><w:abstractNumId w:val="1"/>{extra}</w:num>'
        for number_id, extra in (
            ("5", ""),
            ("6", ""),
            ("7", '<w:lvlOverride w:ilvl="0"><w:startOverride w:val="9"/></w:lvlOverride>'),
        )
    )
    source = f'<w:abstractNum w:abstractNumId="1">{"".join(abstract)}</w:abstractNum>{nums}'
    numbering = read_numbering(parse_xml(f'<w:numbering xmlns:w="{office_files.W}">{source}</w:numbering>'))
    positions = [
        ("5", 0),
        ("5", 1),
        ("5", 1),
        ("5", 2),
        ("5", 3),
        ("6", 0),
        ("5", 1),
        ("5", 2),
        ("5", 3),
        ("7", 0),
        ("7", 0),
    ]
    numbers = [numbering.number(number_id, depth) for number_id, depth in positions]
    assert numbers == ["Part I", "1.1", "1.2", "(a)", "1)", "Part II", "2.1", "(a)", "2)", "Part IX", "Part X"]
    assert (numbering.number("5", 4), numbering.number("gone", 0)) == ("", "")


def test_headings_get_style_numbers_unless_a_paragraph_removes_them(tmp_path: Path) -> None:
    def style(depth: int, numbering: str) -> str:
        properties = f"<w:pPr><w:numPr>{numbering}</w:numPr></w:pPr>"
        name = f'<w:name w:val="heading {depth}"/>'
        return f'<w:style w:type="paragraph" w:styleId="H{depth}">{name}{properties}</w:style>'

    paragraphs = (
        ("H1", "Scope", ""),
        ("H2", "Who", ""),
        ("H2", "Where", ""),
        ("H1", "Preface", '<w:numPr><w:numId w:val="0"/></w:numPr>'),
        ("H1", "End", ""),
    )
    body = "".join(
        f'<w:p><w:pPr><w:pStyle w:val="{name}"/>{own}</w:pPr>{office_files.run(text)}</w:p>'
        for name, text, own in paragraphs
    )
    spaces = office_files.SPACES
    ident = '<w:numId w:val="3"/>'
    styles = style(1, ident) + style(2, f'<w:ilvl w:val="1"/>{ident}')
    levels = level_xml(0, "chineseCounting", "第%1章") + level_xml(1, "decimal", "%1.%2", "<w:isLgl/>")
    numbering = (
        f'<w:abstractNum w:abstractNumId="1">{levels}</w:abstractNum>'
        '<w:num w:numId="3"><w:abstractNumId w:val="1"/></w:num>'
    )
    members: dict[str, str | bytes] = {
        "word/document.xml": f"<w:document {spaces}><w:body>{body}</w:body></w:document>",
        "word/_rels/document.xml.rels": office_files.relationships_xml(
            ("rS", "styles", "styles.xml"), ("rN", "numbering", "numbering.xml")
        ),
        "word/styles.xml": f"<w:styles {spaces}>{styles}</w:styles>",
        "word/numbering.xml": f"<w:numbering {spaces}>{numbering}</w:numbering>",
    }
    path = office_files.package(tmp_path / "a.docx", "wordprocessingml.document", "word/document.xml", members)
    assert [block.text for block in parse(path, "a.docx").blocks] == [
        "第一章 Scope",
        "1.1 Who",
        "1.2 Where",
        "Preface",
        "第二章 End",
    ]


@pytest.mark.parametrize(
    ("font", "code", "expected"),
    [
        ("Wingdings", 0xF0FE, "☑"),
        ("Wingdings", 0xF0A8, "☐"),
        ("Wingdings", 0xFC, "✓"),
        ("Wingdings 2", 0xF052, "☑"),
        ("Symbol", 0xF061, "α"),
        ("Symbol", 0xF0B3, "≥"),
        ("MS Gothic", 0x2612, "☒"),
        ("Acme Icons", 0xF041, ""),
    ],
)
def test_a_symbol_is_the_character_it_shows(font: str, code: int, expected: str) -> None:
    assert symbol_text(font, code) == expected
