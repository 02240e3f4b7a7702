"""No part of an Office file vanishes: each text of each part is in the output, or a note names its kind."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from lxml import etree

from mcp_servers.retriever.document import ParsedDocument
from mcp_servers.retriever.parsing import parse

from . import office_files

NOTED = {
    "deleted text": "deletions",
    "moved away": "deletions",
    "hidden text": "hidden texts",
    "reading": "ruby",
    "header of no page": "headers and footers that no page shows",
    "block": "building blocks",
    "bound value": "attached XML data",
    "part of a later version": "future.xml",
    "7": "",  # a page number of a header
    "page": "",
    "1": "",
    "secret": "hidden sheets",
    "other workbook": "linked workbooks",
    "0.19": "defined names",
    '"a,b"': "data validations",
    "A1>1": "conditional formats",
    "1+1": "formulas without a value",
    "0.25": "",  # 25%
    "0": "",  # the end of a placeholder
    "&Lprinted header &P": "",
}
"""Texts that no reader shows, each with a word of the note that represents them."""
MACHINERY = (
    "docProps/",
    "[Content_Types].xml",
    "_rels/",
    "/theme/",
    "/slideMasters/",
    "/notesMasters/",
    "printerSettings",
)
CODES = ("instrText", "formatCode", "idx", "tableStyleId", "posOffset")
"""Elements whose text describes a layout."""

FILES: tuple[tuple[str, Callable[[Path], Path]], ...] = (
    ("all.docx", office_files.word),
    ("all.xlsx", office_files.sheets),
    ("all.pptx", office_files.slides),
    ("all.odt", office_files.open_text),
)


def texts_of(path: Path) -> list[tuple[str, str]]:
    """Return each text of each XML part with content, with the name of its part."""
    texts = []
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if not name.endswith(".xml") or any(part in name for part in MACHINERY):
                continue
            for element in etree.fromstring(archive.read(name)).iter():
                words = " ".join((element.text or "").split())
                if words and etree.QName(element).localname not in CODES:
                    texts.append((name, words))
    return texts


def find_lost_texts(path: Path, parsed: ParsedDocument) -> list[tuple[str, str]]:
    """Return the texts of a file that are neither in the output nor named by a note."""
    output = " ".join(parsed.text.split())
    notes = " ".join(parsed.notes)
    return [
        (name, words)
        for name, words in texts_of(path)
        if words not in output and "slideLayout" not in name and not (words in NOTED and NOTED[words] in notes)
    ]


@pytest.mark.parametrize(("name", "make"), FILES, ids=[name for name, _ in FILES])
def test_all_text_of_each_part_is_read_or_named_in_a_note(
    tmp_path: Path, name: str, make: Callable[[Path], Path]
) -> None:
    path = make(tmp_path / name)
    parsed = parse(path, name)
    assert len(texts_of(path)) > 10
    assert find_lost_texts(path, parsed) == []


@pytest.mark.parametrize(
    ("name", "make", "expected", "notes"),
    [
        (
            "all.docx",
            office_files.word,
            (
                "running header",
                "footer text",
                "footnote text",
                "endnote text",
                "Comment by Ann: comment text",
                "link text (https://link.example.org/a)",
                "Picture: old picture",
                "Picture: alt text of a chart",
                "WATERMARK",
                "chart title | series name\ncategory one | 25%",
                "axis title",
                "smart parent\n  smart child",
                "☑ ticked box",
                "☒ old box",
                "E=mc2",
                "included text",
            ),
            (
                "choices in form controls were not read: 1",
                "embedded objects were not read: 1",
                "pictures was not read: 1",
                "symbols of a font were not read: 1",
                "ruby",
                "headers and footers that no page shows were not read: 1",
            ),
        ),
        (
            "all.xlsx",
            office_files.sheets,
            (
                "header one | header two | hidden column\nhidden row | =1+1 |",
                "linked cell (https://link.example.org/a) | TRUE |",
                "printed header",
                "- Comment on A1: comment text",
                "Picture: alt text",
                "chart title | series name\ncategory one | 25%",
            ),
            ("hidden rows were read too: 1", "hidden columns were read too: 1", "defined names were not read: TaxRate"),
        ),
        (
            "all.pptx",
            office_files.slides,
            (
                "linked words (https://link.example.org/a)",
                "Picture: alt text",
                "3. third step",
                "smart parent\n  smart child",
                "- Comment: comment text",
                "layout text",
                "cell text | next cell",
                "speaker notes",
            ),
            ("hidden slides were read too: 2", "embedded objects were not read: 1"),
        ),
        (
            "all.odt",
            office_files.open_text,
            (
                "running header",
                "linked words (https://link.example.org/a)",
                "Comment by Ann: comment text",
                "Picture: alt text",
                "1. first item\n  1.1 inner item",
                "cell text | right\ncell text | below",
                "chart title",
                "category one | 25 %",
            ),
            ("form controls were not read", "tracked deletions were not read: 1", "pictures was not read: 1 pictures"),
        ),
    ],
    ids=[name for name, _ in FILES],
)
def test_each_kind_of_part_is_read_as_text_or_counted_in_a_note(
    tmp_path: Path, name: str, make: Callable[[Path], Path], expected: tuple[str, ...], notes: tuple[str, ...]
) -> None:
    parsed = parse(make(tmp_path / name), name)
    assert [text for text in expected if text not in parsed.text] == []
    assert [note for note in notes if not any(note in actual for actual in parsed.notes)] == []
    assert "page" not in parsed.text.replace("no page shows", "")
