"""PDF by PDFium: lines to paragraphs by their distance, headings by their size, table rows by the gaps in them.

PDFium is not thread-safe: each upload is read in a process of its own.
"""

import ctypes
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median_low
from typing import NamedTuple

import pypdfium2
import pypdfium2.raw as pdfium

from mcp_servers.retriever.document import Block, ParsedDocument, ParseLimits, heading, row_groups
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats.dates import latest_date

HEADING_RATIO = 1.15
"""A line this much larger than the body text is a heading."""

PARAGRAPH_GAP = 1.45
"""A distance between lines of this many usual ones starts a paragraph."""

MAX_HEADING_CHARACTERS = 120

CELL_GAP = 0.9
"""White space of this many font sizes inside a line stands between two cells: justified text has less."""

_HYPHENS = re.compile("[\x02\ufffe\xad]$")
_JOINTS = re.compile("[\x02\ufffe](?=\\S)")
"""Where PDFium itself joined a word that two lines share."""
_SPACES = re.compile(r"\s+")
_CJK_END = re.compile(r"[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]$")
_CJK_START = re.compile(r"^[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]")
_ITEM = re.compile(r"^(?:[-*•·‣▪–]\s|\(?\d{1,3}[.)、]\s|[（(]?[一二三四五六七八九十]+[)）、])")


class _Line(NamedTuple):
    """`size` is the font size in points; `top` the height of its base above the page's foot; `cells` are its parts
    where wide gaps stand in it."""

    text: str
    size: float
    top: float
    cells: tuple[str, ...] = ()


def open_pdf(data: bytes) -> pypdfium2.PdfDocument:
    """Open a PDF; the caller closes it. Raises `DocumentError` where it is protected or none."""
    try:
        return pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as exc:
        # PDFium's last error is the only place that tells a password from a broken file.
        if pdfium.FPDF_GetLastError() == pdfium.FPDF_ERR_PASSWORD or "assword" in str(exc):
            raise DocumentError("DOCUMENT_ENCRYPTED", "the PDF is protected by a password") from exc
        raise DocumentError("DOCUMENT_BROKEN", "the file is not a readable PDF") from exc


def read_pdf(path: Path, limits: ParseLimits) -> ParsedDocument:
    with open_pdf(path.read_bytes()) as document:  # a path it would resolve, and an open descriptor's has none
        count = len(document)
        if count > limits.max_pages:
            message = f"the PDF has {count} pages; the limit is {limits.max_pages}"
            raise DocumentError("DOCUMENT_TOO_LARGE", message)
        pages = [_lines(document, index) for index in range(count)]
        date = latest_date(*map(document.get_metadata_value, ("CreationDate", "ModDate")))
    empty = sum(1 for lines in pages if not lines)
    missing = f"no text layer on {empty} of {count} pages"
    if empty == count:
        raise DocumentError("DOCUMENT_SCANNED", f"scanned PDF: {missing}")
    sizes, spacing = _heading_sizes(pages), _line_spacing(pages)
    blocks = tuple(block for number, lines in enumerate(pages, 1) for block in _page(lines, number, sizes, spacing))
    return ParsedDocument(blocks, count, (missing,) if empty else (), date)


def _lines(document: pypdfium2.PdfDocument, index: int) -> list[_Line]:
    page = document[index]
    text_page = page.get_textpage()
    try:
        text = text_page.get_text_range()
        lines: list[_Line] = []
        start = 0
        for raw in text.split("\n"):
            if stripped := raw.strip():
                at = start + raw.index(stripped[0])
                size = pdfium.FPDFText_GetFontSize(text_page, at)
                cells = _cells(text_page, stripped, at, size)
                text = _JOINTS.sub("", stripped)
                lines.append(_Line(text, size, _base(text_page, at), cells if len(cells) > 1 else ()))
            start += len(raw) + 1
        return lines
    finally:
        text_page.close()
        page.close()


def _cells(text_page: pypdfium2.PdfTextPage, text: str, start: int, size: float) -> tuple[str, ...]:
    """The parts of a line between its wide gaps; ``start`` is the index of its first character on the page."""
    cuts = [0]
    x, y = ctypes.c_double(), ctypes.c_double()  # used again and again: a page has hundreds of spaces
    for space in _SPACES.finditer(text):
        pdfium.FPDFText_GetCharOrigin(text_page, start + space.start(), x, y)
        left = x.value
        pdfium.FPDFText_GetCharOrigin(text_page, start + space.end(), x, y)
        if x.value - left > CELL_GAP * size > 0:
            cuts.append(space.end())
    return tuple(text[one:other].strip() for one, other in pairwise([*cuts, len(text)]))


def _base(text_page: pypdfium2.PdfTextPage, index: int) -> float:
    x, y = ctypes.c_double(), ctypes.c_double()
    pdfium.FPDFText_GetCharOrigin(text_page, index, x, y)
    return y.value


def _heading_sizes(pages: Sequence[Sequence[_Line]]) -> list[float]:
    """Font sizes of headings, largest first; the size most characters have is the body's."""
    weight: Counter[float] = Counter()
    for lines in pages:
        for line in lines:
            weight[round(line.size, 1)] += len(line.text)
    body = weight.most_common(1)[0][0]
    return sorted((size for size in weight if size >= body * HEADING_RATIO), reverse=True)


def _line_spacing(pages: Sequence[Sequence[_Line]]) -> float:
    """The usual distance between lines of a paragraph, in font sizes."""
    pairs = ((above, below) for lines in pages for above, below in pairwise(lines) if above.size == below.size > 0)
    return median_low(
        [(above.top - below.top) / above.size for above, below in pairs if above.top > below.top] or [1.2]
    )


def _page(lines: Sequence[_Line], page: int, sizes: list[float], spacing: float) -> Iterator[Block]:
    """Blocks of a page: two lines with gaps, one below the other, begin a table."""
    for is_table, run in groupby(_mark_rows(lines), lambda marked: marked[0]):
        part = [line for _, line in run]
        if is_table:
            rows = [line.cells for line in part]
            yield from (Block("table", text, page=page) for _, _, text in row_groups(rows))
        else:
            yield from _prose(part, page, sizes, spacing)


def _mark_rows(lines: Sequence[_Line]) -> Iterator[tuple[bool, _Line]]:
    """Each line with whether it is a row of a table."""
    for at, line in enumerate(lines):
        beside = (*lines[max(0, at - 1) : at], *lines[at + 1 : at + 2])
        yield bool(line.cells) and any(other.cells and other.size == line.size for other in beside), line


def _prose(lines: Sequence[_Line], page: int, sizes: list[float], spacing: float) -> Iterator[Block]:
    paragraph: list[str] = []
    titles: list[str] = []
    previous: _Line | None = None
    for line in lines:
        size = round(line.size, 1)
        is_heading = size in sizes and len(line.text) <= MAX_HEADING_CHARACTERS
        apart = previous is None or not 0 <= previous.top - line.top <= spacing * PARAGRAPH_GAP * line.size
        if previous is not None and (apart or size != round(previous.size, 1) or _ITEM.match(line.text)):
            yield from _finish(paragraph, titles, previous, page, sizes)
        (titles if is_heading else paragraph).append(line.text)
        previous = line
    if previous is not None:
        yield from _finish(paragraph, titles, previous, page, sizes)


def _finish(paragraph: list[str], titles: list[str], line: _Line, page: int, sizes: list[float]) -> Iterator[Block]:
    """The block that ends with `line`; empties both lists."""
    if titles:
        yield heading(_join(titles), min(sizes.index(round(line.size, 1)) + 1, 6), page)
    if paragraph:
        yield Block("prose", _join(paragraph), page=page)
    titles.clear()
    paragraph.clear()


def _join(lines: Sequence[str]) -> str:
    """Lines of a paragraph as one: no space between Chinese characters, none for a hyphen of the typesetter."""
    text = lines[0]
    for line in lines[1:]:
        if _HYPHENS.search(text):
            text = text[:-1] + line
        elif _CJK_END.search(text) and _CJK_START.search(line):
            text += line
        else:
            text += " " + line
    return _HYPHENS.sub("", text)
