"""PDF by PDFium: lines to paragraphs by their distance, headings by their size. One file per process.

PDFium is not thread-safe: uploads come here in a child process of their own (`parsing.parse_in_child`).
"""

import ctypes
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median_low
from typing import NamedTuple

import pypdfium2
import pypdfium2.raw as pdfium

from mcp_servers.retriever.document import Block, ParsedDocument, ParseLimits, heading
from mcp_servers.retriever.errors import DocumentError

HEADING_RATIO = 1.15
"""A line this much larger than the body text is a heading."""

PARAGRAPH_GAP = 1.45
"""A distance between lines of this many usual ones starts a paragraph."""

MAX_HEADING_CHARACTERS = 120

_HYPHENS = re.compile("[\x02\ufffe\xad]$")
_CJK_END = re.compile(r"[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]$")
_CJK_START = re.compile(r"^[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]")
_ITEM = re.compile(r"^(?:[-*•·‣▪–]\s|\(?\d{1,3}[.)、]\s|[（(]?[一二三四五六七八九十]+[)）、])")


class _Line(NamedTuple):
    """`size` is the font size in points; `top` the height of its base above the page's foot."""

    text: str
    size: float
    top: float


def read_pdf(path: Path, limits: ParseLimits) -> ParsedDocument:
    try:
        document = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as exc:
        # PDFium's last error is the only place that tells a password from a broken file.
        if pdfium.FPDF_GetLastError() == pdfium.FPDF_ERR_PASSWORD or "assword" in str(exc):
            raise DocumentError("DOCUMENT_ENCRYPTED", "the PDF is protected by a password") from exc
        raise DocumentError("DOCUMENT_BROKEN", "the file is not a readable PDF") from exc
    with document:
        count = len(document)
        if count > limits.max_pages:
            message = f"the PDF has {count} pages; the limit is {limits.max_pages}"
            raise DocumentError("DOCUMENT_TOO_LARGE", message)
        pages = [_lines(document, index) for index in range(count)]
    empty = sum(1 for lines in pages if not lines)
    missing = f"no text layer on {empty} of {count} pages"
    if empty == count:
        raise DocumentError("DOCUMENT_SCANNED", f"scanned PDF: {missing}")
    sizes, spacing = _heading_sizes(pages), _line_spacing(pages)
    blocks = tuple(block for number, lines in enumerate(pages, 1) for block in _page(lines, number, sizes, spacing))
    return ParsedDocument(blocks, count, (missing,) if empty else ())


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
                lines.append(_Line(stripped, pdfium.FPDFText_GetFontSize(text_page, at), _base(text_page, at)))
            start += len(raw) + 1
        return lines
    finally:
        text_page.close()
        page.close()


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
