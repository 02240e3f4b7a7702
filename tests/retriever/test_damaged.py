"""Damaged files: one bad part costs one part, and each refusal tells a person what to do."""

import random
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_servers.retriever.document import ParsedDocument
from mcp_servers.retriever.errors import ADVICE, DocumentError
from mcp_servers.retriever.parsing import parse

from . import files, office_files

TESTS = Path(__file__).parents[1]
CORPUS = sorted(
    path
    for folder in (TESTS / "fixtures" / "field", TESTS.parent / "bench" / "questions" / "documents")
    for path in folder.iterdir()
    if path.suffix not in (".py", ".json")
)
MACHINE_WORDS = re.compile(r"[A-Za-z]+(?:Error|Exception|Warning)\b|\w+Zip\w+|Errno|Traceback|argument|0x|rId\d|None\b")
"""Technical words that a sentence for the uploader must not contain."""


def cut_bytes(data: bytearray, rng: random.Random) -> bytearray:
    return data[: rng.randrange(1, len(data))]


def flip_bits(data: bytearray, rng: random.Random) -> bytearray:
    for _ in range(1 + len(data) // 4000):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def overwrite_bytes(data: bytearray, rng: random.Random) -> bytearray:
    start = rng.randrange(len(data))
    end = min(len(data), start + rng.randrange(1, 600))
    data[start:end] = rng.randbytes(end - start)
    return data


NUMBERS = {
    "docx": ("idx", "srcOrd", "w:val"),
    "xlsx": ("idx", "max", "min"),
    "pptx": ("cy", "id", "idx", "lvl", "srcOrd", "startAt", "x", "y"),
    "odt": ("text:level", "text:display-levels", "text:outline-level", "text:start-value"),
}
"""Attributes that our own readers take for numbers."""


@pytest.mark.attack(kind="files")
@pytest.mark.parametrize(
    ("make", "ending"),
    [
        (office_files.word, "docx"),
        (office_files.sheets, "xlsx"),
        (office_files.slides, "pptx"),
        (office_files.open_text, "odt"),
    ],
)
def test_a_number_that_is_none_or_has_5000_digits_costs_no_text(
    make: Callable[[Path], Path], ending: str, tmp_path: Path
) -> None:
    path = make(tmp_path / f"whole.{ending}")
    with zipfile.ZipFile(path) as package:
        members = {name: package.read(name) for name in package.namelist()}
    whole = parse(path, path.name)
    for attribute in NUMBERS[ending]:
        pattern = re.compile(rf"""(?<![\w:-]){attribute}=(["'])-?\d+\1""".encode())
        for value in ("x", "9" * 5_000, "999999999", "-1"):
            changed = files.package(
                tmp_path / f"changed{path.suffix}",
                {
                    name: pattern.sub(f'{attribute}="{value}"'.encode(), data) if name.endswith(".xml") else data
                    for name, data in members.items()
                },
            )
            blocks = parse(changed, changed.name).blocks
            assert len(blocks) >= len(whole.blocks), f"{attribute}={value[:9]}"


@pytest.mark.attack(kind="files")
@pytest.mark.parametrize("path", CORPUS, ids=[path.name for path in CORPUS])
def test_a_damaged_file_is_read_or_refused_with_its_name_and_a_remedy(path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    refusals: list[DocumentError] = []
    for seed, damage in enumerate((cut_bytes, flip_bits, overwrite_bytes, cut_bytes, flip_bits)):
        damaged_path = tmp_path / f"bad{path.suffix}"
        damaged_path.write_bytes(damage(bytearray(content), random.Random(f"{path.name} {seed}")))
        try:
            parse(damaged_path, path.name)
        except DocumentError as error:
            refusals.append(error)
    for refusal in refusals:
        sentence = refusal.sentence(path.name)
        assert sentence.startswith(f'"{path.name}" was not read: ')
        assert sentence.endswith(ADVICE[refusal.code])
        assert not MACHINE_WORDS.search(sentence), sentence


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("no-object.pdf", b"%PDF-1.7\n"),
        (
            "empty-object-stream.pdf",
            b"%PDF-1.7\n1 0 obj <</Type/ObjStm/N 3/First 9>> stream\nx\nendobj\n2 0 obj <</Type",
        ),
        ("odd-object-stream.pdf", b"%PDF-1.7\n1 0 obj\n"),
    ],
)
def test_a_truncated_pdf_without_a_complete_page_is_refused_with_the_reason(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DocumentError) as exc_info:
        parse(tmp_path / name, name)
    assert "its end is missing, and no page is whole" in exc_info.value.sentence(name)


def damage_part(path: Path, part: str) -> Path:
    """Damage the compressed data of a part of a package, so that its checksum is wrong."""
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo(part)
    data = bytearray(path.read_bytes())
    start = (
        member.header_offset
        + 30
        + int.from_bytes(data[member.header_offset + 26 : member.header_offset + 28], "little")
    )
    start += int.from_bytes(data[member.header_offset + 28 : member.header_offset + 30], "little")
    for offset in range(start + member.compress_size // 2, start + member.compress_size):
        data[offset] ^= 0x5A
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("name", "make", "part", "remaining_text"),
    [
        ("a.docx", office_files.word, "word/comments.xml", "link text"),
        ("a.xlsx", office_files.sheets, "xl/worksheets/sheet2.xml", "header one"),
        ("a.pptx", files.slides, "ppt/slides/slide1.xml", ""),
        ("b.pptx", files.slides, "ppt/slideLayouts/slideLayout1.xml", ""),
        ("c.pptx", files.slides, "ppt/slideLayouts/_rels/slideLayout1.xml.rels", ""),
        ("d.pptx", files.slides, "ppt/theme/theme1.xml", ""),
        ("b.docx", files.word, "docProps/core.xml", ""),
        ("b.xlsx", files.workbook, "docProps/app.xml", ""),
    ],
)
def test_a_damaged_part_costs_only_itself_and_is_named(
    tmp_path: Path, name: str, make: Callable[[Path], Path], part: str, remaining_text: str
) -> None:
    undamaged = read(make(tmp_path / name))
    parsed = read(damage_part(tmp_path / name, part))
    assert f"incomplete: damaged parts of the file were not read: {part}" in parsed.notes
    assert remaining_text in parsed.text
    assert {block.text for block in parsed.blocks} <= {block.text for block in undamaged.blocks} | {"Slide 1"}
    assert len(parsed.text) > len(undamaged.text) / 3


@pytest.mark.parametrize(
    ("name", "make", "part"),
    [
        ("a.docx", files.word, "word/document.xml"),
        ("a.xlsx", files.workbook, "xl/styles.xml"),
        ("a.pptx", files.slides, "ppt/presentation.xml"),
    ],
)
def test_a_file_with_a_damaged_main_part_is_refused_by_the_parts_name(
    tmp_path: Path, name: str, make: Callable[[Path], Path], part: str
) -> None:
    make(tmp_path / name)
    with pytest.raises(DocumentError) as exc_info:
        read(damage_part(tmp_path / name, part))
    assert (
        exc_info.value.sentence(name)
        == f'"{name}" was not read: its part {part} is damaged. {ADVICE["DOCUMENT_BROKEN"]}'
    )


def test_a_damaged_chapter_of_a_book_costs_only_that_chapter(tmp_path: Path) -> None:
    chapters = "".join(f'<item id="c{n}" href="c{n}.xhtml" media-type="application/xhtml+xml"/>' for n in (1, 2))
    spine = '<itemref idref="c1"/><itemref idref="c2"/>'
    members = {
        "META-INF/container.xml": '<container><rootfile full-path="book.opf"/></container>',
        "book.opf": f"<package><manifest>{chapters}</manifest><spine>{spine}</spine></package>",
        "c1.xhtml": "<html><body><p>first chapter</p></body></html>" * 9,
        "c2.xhtml": "<html><body><p>second chapter</p></body></html>",
    }
    book = files.package(tmp_path / "a.epub", {member: text.encode() for member, text in members.items()})
    parsed = read(damage_part(book, "c1.xhtml"))
    assert parsed.text == "second chapter"
    assert parsed.notes == ("a chapter is damaged and was not read: 'c1.xhtml'",)


def read(path: Path) -> ParsedDocument:
    return parse(path, path.name)


def replace_part(path: Path, part: str, content: bytes | None) -> Path:
    """Write a package again with other content in a part, or without the part."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    assert part in members
    members[part] = content if content is not None else b""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            if name != part or content is not None:
                archive.writestr(name, data)
    return path


WHOLE_PARTS: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    "a.docx": (files.word, "word/styles.xml", "Staff get twenty-five days."),
    "b.docx": (files.word, "docProps/core.xml", "Staff get twenty-five days."),
    "a.pptx": (files.slides, "ppt/slides/slide2.xml", "Roadmap"),
    "b.pptx": (files.slides, "ppt/slideLayouts/slideLayout2.xml", "Roadmap"),
    "a.xlsx": (files.workbook, "xl/worksheets/sheet2.xml", "City number 59"),
    "a.odt": (office_files.open_text, "styles.xml", "plain text"),
    "b.odt": (office_files.open_text, "meta.xml", "plain text"),
}


@pytest.mark.parametrize(
    "content", [b"", b"\0\xff<notxml", b"<?xml version='1.0'?><a><b>"], ids=["empty", "noise", "cut"]
)
@pytest.mark.parametrize("name", WHOLE_PARTS)
def test_a_part_that_is_no_xml_costs_that_part_only(tmp_path: Path, name: str, content: bytes) -> None:
    write, part, text = WHOLE_PARTS[name]
    path = write(tmp_path / name)
    with zipfile.ZipFile(path, "a") as archive:
        if part not in archive.namelist():
            archive.writestr(part, b"")
    parsed = parse(replace_part(path, part, content), name)
    assert text in parsed.text
    assert any(note.startswith("incomplete") and part in note for note in parsed.notes)


@pytest.mark.parametrize("encoding", ["utf8", "gb2312", "utf-16"])
def test_a_part_in_any_encoding_of_xml_is_not_damaged(tmp_path: Path, encoding: str) -> None:
    content = "<w:p><w:r><w:t>Gebühr 锅炉</w:t></w:r></w:p>".replace("ü", "u" if encoding == "gb2312" else "ü")
    space = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    head = f"<?xml version='1.0' encoding='{encoding}'?><w:document xmlns:w='{space}'>"
    part = f"{head}<w:body>{content}</w:body></w:document>"
    path = replace_part(office_files.word(tmp_path / "a.docx"), "word/document.xml", part.encode(encoding))
    parsed = parse(path, "a.docx")
    assert "锅炉" in parsed.text
    assert not any(note.startswith("incomplete") for note in parsed.notes)


@pytest.mark.parametrize(
    ("name", "write", "part"),
    [
        ("a.pptx", files.slides, "ppt/slides/slide2.xml"),
        ("a.xlsx", files.workbook, "xl/worksheets/sheet2.xml"),
    ],
)
def test_a_missing_slide_or_sheet_costs_that_one_only(
    tmp_path: Path, name: str, write: Callable[[Path], Path], part: str
) -> None:
    parsed = parse(replace_part(write(tmp_path / name), part, None), name)
    assert parsed.blocks
    assert any(note.startswith("incomplete") and part in note for note in parsed.notes)


def test_a_chapter_that_ends_in_its_middle_is_read_and_noted(tmp_path: Path) -> None:
    path = tmp_path / "a.epub"
    container = "<container><rootfiles><rootfile full-path='b.opf'/></rootfiles></container>"
    package = "<package><manifest><item id='c' href='c.xhtml'/></manifest><spine><itemref idref='c'/></spine></package>"
    chapter = "<html><body><p>Before the end.</p><p>And the"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in (("META-INF/container.xml", container), ("b.opf", package), ("c.xhtml", chapter)):
            archive.writestr(name, text)
    parsed = parse(path, path.name)
    assert "Before the end." in parsed.text
    assert parsed.notes == ("incomplete: the end of a chapter is missing: 'c.xhtml'",)
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in (("META-INF/container.xml", container), ("b.opf", package)):
            archive.writestr(name, text)
        archive.writestr("c.xhtml", f"{chapter} end.</p></body></html>".encode("utf-16"))
    assert parse(path, path.name).notes == ()
