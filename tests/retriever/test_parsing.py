"""Every format, and every kind of bad file: parsed to blocks, or refused with a coded error."""

from pathlib import Path

import pytest

from mcp_servers.retriever.document import Block, ParsedDocument, ParseLimits
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.parsing import DEFAULT_LIMITS, parse

from . import files


def read(path: Path, limits: ParseLimits = DEFAULT_LIMITS) -> ParsedDocument:
    return parse(path, path.name, limits)


def write_file(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def refuse(path: Path, limits: ParseLimits = DEFAULT_LIMITS) -> tuple[str, str]:
    with pytest.raises(DocumentError) as exc_info:
        read(path, limits)
    return exc_info.value.code, str(exc_info.value)


def test_markdown_becomes_headings_prose_lists_tables_and_code(tmp_path: Path) -> None:
    source = """---
title: Guide
---
# Guide *one*

See [the page](http://x) and `code`.
Second line.

1. first
2. second
   - nested

| a | b |
|---|---|
| 1 | 2 |

> quoted

```python
x = 1

y = 2
```
<div>inside html</div>
"""
    assert read(write_file(tmp_path / "a.md", source)).blocks == (
        Block("code", "title: Guide"),
        Block("heading", "Guide one", 1),
        Block("prose", "See the page (http://x) and code.\nSecond line."),
        Block("list", "1. first\n2. second\n  - nested"),
        Block("table", "a | b\n1 | 2"),
        Block("prose", "quoted"),
        Block("code", "x = 1\n\ny = 2"),
        Block("prose", "inside html"),
    )


def test_code_and_html_inside_a_list_keep_their_text(tmp_path: Path) -> None:
    source = "- step one\n\n      make all\n\n  continued\n- step two\n\n  <b>bold</b>\n"
    parsed = read(write_file(tmp_path / "a.md", source))
    assert [block.kind for block in parsed.blocks] == ["list", "code", "list"]
    assert parsed.text == "- step one\n\nmake all\n\n  continued\n- step two\n  bold"


@pytest.mark.attack(kind="files")
def test_html_is_read_as_shown_without_scripts_or_markup(tmp_path: Path) -> None:
    source = """<html><head><title>t</title><style>p{}</style></head><body><h1>Gu&amp;ide</h1>
<script>alert(1)</script><p>Some <b>bold</b> text.<p>More<br>lines<ul><li>one<li>two</ul>
<table><caption>Days</caption><tr><th>a<th>b<tr><td>1<td>2</table><pre>x = 1
  y</pre>tail</body></html>"""
    assert read(write_file(tmp_path / "a.html", source)).blocks == (
        Block("heading", "Gu&ide", 1),
        Block("prose", "Some bold text."),
        Block("prose", "More lines"),
        Block("list", "- one\n- two"),
        Block("prose", "Days"),
        Block("table", "a | b\n1 | 2"),
        Block("code", "x = 1\n  y"),
        Block("prose", "tail"),
    )


def test_html_in_a_declared_legacy_encoding_is_decoded(tmp_path: Path) -> None:
    source = '<meta charset="gb2312"><p>员工享有年假。</p>'.encode("gb18030")
    assert read(write_file(tmp_path / "a.html", source)).text == "员工享有年假。"


def test_word_keeps_headings_lists_and_tables_in_order(tmp_path: Path) -> None:
    assert read(files.word(tmp_path / "a.docx")).blocks == (
        Block("heading", "Policy", 1),
        Block("heading", "Leave", 2),
        Block("prose", "Staff get twenty-five days."),
        Block("list", "- on full pay\n- once a year"),
        Block("table", "grade | days\njunior | 25\ntotal |"),
        Block("prose", "病假需要医生证明。"),
    )


def test_slides_are_pages_with_their_title_as_heading(tmp_path: Path) -> None:
    parsed = read(files.slides(tmp_path / "a.pptx"))
    assert parsed.pages == 2
    assert parsed.blocks == (
        Block("heading", "Roadmap", 1, 1),
        Block("list", "First step\nSecond step", page=1),
        Block("heading", "Risks", 1, 2),
        Block("list", "None known", page=2),
        Block("prose", "Ask the board.", page=2),
    )


def test_sheets_become_row_groups_with_header_and_cell_range(tmp_path: Path) -> None:
    heading, *groups = read(files.workbook(tmp_path / "a.xlsx")).blocks
    assert heading == Block("heading", "Rates", 1)
    assert all(group.text.startswith("city | rate\nCity number ") for group in groups)
    assert groups[0].cells is not None
    assert groups[0].cells.startswith("Rates!A3:B")
    assert groups[-1].cells is not None
    assert groups[-1].cells.endswith(":B62")
    assert sum(group.text.count("\n") for group in groups) == 60


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_in_any_dialect_becomes_rows(tmp_path: Path, separator: str) -> None:
    source = f'姓名{separator}备注\n张三{separator}"早{separator}晚"\n李四{separator}无\n'
    (block,) = read(write_file(tmp_path / "a.csv", source.encode("gb18030"))).blocks
    assert block == Block(
        "table", f"姓名 | 备注\n张三 | {' '.join(f'早{separator}晚'.split())}\n李四 | 无", cells="A2:B3"
    )


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("utf-8", "Café 年假"),
        ("utf-8-sig", "Hello"),
        ("utf-16", "Hello 年假"),
        ("utf-32", "Hello 年假"),
        ("gb18030", "员工每年享有十五天带薪年假。这是规定。"),
        ("big5", "員工每年享有十五天帶薪年假。這是規定。"),
        ("shift_jis", "社員は毎年十五日の有給休暇があります。"),
        ("euc_kr", "직원은 매년 십오일의 유급 휴가를 받습니다."),
        ("cp1251", "Сотрудники получают двадцать дней отпуска в год."),
        ("cp1252", "Les employés ont été informés à l’été. Çà et là."),
    ],
)
def test_plain_text_is_decoded_whatever_its_encoding(tmp_path: Path, encoding: str, text: str) -> None:
    assert read(write_file(tmp_path / "a.txt", text.encode(encoding))).text == text


def test_pdf_lines_join_to_paragraphs_below_headings_found_by_size(tmp_path: Path) -> None:
    pages = [
        [(20, "Handbook"), (0, ""), (14, "Leave"), (10, "Every employee has twenty-five days"), (10, "of paid leave.")],
        [(10, "Unused days expire."), (0, ""), (10, "They are not paid out.")],
    ]
    parsed = read(files.pdf(tmp_path / "a.pdf", pages))
    assert parsed.pages == 2
    assert parsed.blocks == (
        Block("heading", "Handbook", 1, 1),
        Block("heading", "Leave", 2, 1),
        Block("prose", "Every employee has twenty-five days of paid leave.", page=1),
        Block("prose", "Unused days expire.", page=2),
        Block("prose", "They are not paid out.", page=2),
    )


def test_chinese_pdf_lines_join_without_a_space(tmp_path: Path) -> None:
    pages = [[(10, "员工每年享有十五天"), (10, "带薪年假。")]]
    assert read(files.pdf(tmp_path / "a.pdf", pages, font="STSong-Light")).text == "员工每年享有十五天带薪年假。"


def test_a_partly_scanned_pdf_is_read_with_a_note(tmp_path: Path) -> None:
    parsed = read(files.pdf(tmp_path / "a.pdf", [[(10, "Text.")], [], []]))
    (note,) = parsed.notes
    assert note.startswith("no text layer on 2 of 3 pages")


def test_a_scanned_pdf_says_how_many_pages_lack_text(tmp_path: Path) -> None:
    code, message = refuse(files.pdf(tmp_path / "a.pdf", [[], []]))
    assert code == "DOCUMENT_SCANNED"
    assert message.startswith("scanned PDF: no text layer on 2 of 2 pages")


def test_encrypted_files_are_reported_as_encrypted(tmp_path: Path) -> None:
    locked = files.pdf(tmp_path / "a.pdf", [[(10, "Secret.")]], password="pw")
    assert refuse(locked) == ("DOCUMENT_ENCRYPTED", "the PDF is protected by a password")
    ole = write_file(tmp_path / "a.docx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(512))
    assert refuse(ole)[0] == "DOCUMENT_ENCRYPTED"


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("a.exe", b"MZ", "DOCUMENT_UNSUPPORTED"),
        ("noending", b"x", "DOCUMENT_UNSUPPORTED"),
        ("a.md", b"", "DOCUMENT_EMPTY"),
        ("a.md", b" \n\n ", "DOCUMENT_EMPTY"),
        ("a.txt", bytes(range(256)) * 16, "DOCUMENT_BROKEN"),
        ("a.pdf", b"%PDF-1.7 nothing", "DOCUMENT_BROKEN"),
        ("a.pdf", b"plain text", "DOCUMENT_BROKEN"),
        ("a.docx", b"plain text", "DOCUMENT_BROKEN"),
        ("a.xlsx", b"PK\x03\x04broken", "DOCUMENT_BROKEN"),
    ],
)
def test_files_that_cannot_be_read_have_a_code(tmp_path: Path, name: str, data: bytes, code: str) -> None:
    assert refuse(write_file(tmp_path / name, data))[0] == code


@pytest.mark.attack(kind="files")
def test_an_office_package_of_another_kind_is_refused_as_broken(tmp_path: Path) -> None:
    assert refuse(files.slides(tmp_path / "a.pptx").rename(tmp_path / "a.xlsx"))[0] == "DOCUMENT_BROKEN"
    for name in ("b.docx", "b.xlsx", "b.pptx"):
        package = files.package(tmp_path / name, {"hello.txt": b"x"})
        assert refuse(package) == ("DOCUMENT_BROKEN", "the file is not an Office document, or it is damaged")


@pytest.mark.attack(kind="files")
def test_a_package_with_too_large_content_is_not_unpacked(tmp_path: Path) -> None:
    bomb = files.package(tmp_path / "a.docx", {"word/document.xml": files.zeros(64)})
    assert bomb.stat().st_size * 100 < 64 * 2**20
    assert refuse(bomb, ParseLimits(max_unpacked_bytes=2**25))[0] == "DOCUMENT_TOO_LARGE"


@pytest.mark.attack(kind="files")
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_xml_entities_are_refused_before_they_expand(tmp_path: Path, encoding: str) -> None:
    bomb_text = '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><x>&b;</x>'.encode(encoding)
    assert refuse(files.package(tmp_path / "a.docx", {"word/document.xml": bomb_text}))[0] == "DOCUMENT_BROKEN"


@pytest.mark.attack(kind="files")
def test_too_many_bytes_pages_or_characters_are_too_large(tmp_path: Path) -> None:
    text = write_file(tmp_path / "a.txt", "word " * 100)
    paged = files.pdf(tmp_path / "a.pdf", [[(10, "x")]] * 3)
    sheet = files.workbook(tmp_path / "a.xlsx")
    assert refuse(text, ParseLimits(max_bytes=100)) == (
        "DOCUMENT_TOO_LARGE",
        "the file has 0.0 MiB; the limit is 0.0 MiB",
    )
    assert refuse(text, ParseLimits(max_characters=100))[0] == "DOCUMENT_TOO_LARGE"
    assert refuse(paged, ParseLimits(max_pages=2)) == ("DOCUMENT_TOO_LARGE", "the PDF has 3 pages; the limit is 2")
    assert refuse(sheet, ParseLimits(max_characters=100))[0] == "DOCUMENT_TOO_LARGE"
