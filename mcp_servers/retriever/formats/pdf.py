"""PDF reader on PDFium: text with its positions, rules, form fields, links, comments, and notes on unread parts.

PDFium is not thread-safe, so each upload is read in a separate process. The reader first turns every page so that its
text runs from left to right; vertical Chinese and Japanese text is such a page turned by 270°.
"""

import ctypes
import math
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import pypdfium2
import pypdfium2.raw as pdfium

from mcp_servers.retriever.document import Block, ParsedDocument, ParseLimits
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.extensions import OCR_HINT, has_ocr
from mcp_servers.retriever.formats.dates import latest_date
from mcp_servers.retriever.formats.layout import Line, Page, Rules, Segment, Word, lay_out, merge_collinear
from mcp_servers.retriever.formats.pdf_marks import PageAnnotations, names_of_attachments, read_marks
from mcp_servers.retriever.formats.pdf_salvage import is_cut_off, salvage
from mcp_servers.retriever.formats.scans import BY_MODEL, NO_TEXT_LAYER, Scans, lay_out_scan
from mcp_servers.retriever.formats.text import to_superscript

MAX_OBJECTS = 50_000
"""Objects of a page that are searched for rules."""

MAX_PATH_SEGMENTS = 50_000
"""Segments of all paths of a page that are searched for rules."""

MAX_DEPTH = 3
"""Form objects inside form objects that are searched for rules."""

THIN = 2.5
"""Points: a filled rectangle up to this thickness is a rule."""

THIN_STROKE = 1.5
"""Points: a stroke up to this width hardly extends beyond its line, so its bounds serve as the line."""

FIRST_CJK = "\u2e80"
"""Chinese and Japanese characters, which alone are written vertically, begin here."""

SHORT = 3.0
"""Points: shorter lines are no rules."""

MIN_IMAGE = 24.0
"""Points: smaller images are ornaments."""

NO_TEXT_FOUND = "no text was found on the scanned pages"
CUT_OFF = "incomplete: the end of the file is missing"
UNCLEAR = "columns of tables could not be told; their lines were read as text"

Stroke = tuple[float, float, float, float]
"""A line from one point to another, or a box: left, bottom, right, top."""

_JOINTS = re.compile("[\x02\ufffe](?=\\S)")
"""Marks where PDFium joined a word that was split over two lines."""
_LEFT = itemgetter(1)
"""The left end of a word."""

_RAISED_SIZE = 0.85
"""Maximum height of a raised digit, relative to the first character of its word."""
_RAISED_BY = 0.1
"""Minimum height of a raised digit's foot above the line, relative to the first character of its word."""
MAX_MARK = 4
"""Maximum number of characters of a footnote's mark."""
_DIGITS = frozenset("0123456789)")

_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]")
_WORDS = re.compile(r"[^\s\0]+")
_NAMES = {
    **dict(zip("\x0b\x0c\x0e\x0f", "ﬀﬁﬃﬄ", strict=True)),
    **dict(zip("\x1b\x1c\x1d\x1e\x1f", "ﬀﬁﬂﬃﬄ", strict=True)),
    **dict(zip("\uf0a7\uf0b7\uf076\uf0d8\uf0fc", "▪•❖➢✓", strict=True)),
}
"""Characters that a PDF has as codes of their font: ligatures of TeX's bitmap fonts, and bullets of Word's lists."""
_ALEF_LAM = re.compile("[\u0622\u0623\u0625\u0627]\u0644")
"""The article, or the ligature of lam and alef, whose characters PDFium has in the wrong order."""
_UNNAMED = re.compile(
    r"[\x0b\x0c\x0e\x0f\x1b-\x1f](?=[a-zA-Z])|(?<=[a-zA-Z])[\x0b\x0c\x0e\x0f\x1b-\x1f]"
    r"|[\uf0a7\uf0b7\uf076\uf0d8\uf0fc](?=\s)"
)


def _bound(function: Any, result: Any, *arguments: Any) -> Any:
    """Return a function of PDFium that takes and returns plain addresses.

    pypdfium2's own functions make a typed pointer object for each handle and release the interpreter's lock. Those
    called for every character or path of a page take a microsecond, and cost half as much without either.
    """
    return ctypes.PYFUNCTYPE(result, *arguments)(ctypes.cast(function, ctypes.c_void_p).value or 0)


_ADDRESS, _INT = ctypes.c_void_p, ctypes.c_int
_font_size = _bound(pdfium.FPDFText_GetFontSize, ctypes.c_double, _ADDRESS, _INT)
_character_matrix = _bound(pdfium.FPDFText_GetMatrix, _INT, _ADDRESS, _INT, _ADDRESS)
_character_origin = _bound(pdfium.FPDFText_GetCharOrigin, _INT, _ADDRESS, _INT, _ADDRESS, _ADDRESS)
_character_box = _bound(pdfium.FPDFText_GetLooseCharBox, _INT, _ADDRESS, _INT, _ADDRESS)
_page_object = _bound(pdfium.FPDFPage_GetObject, _ADDRESS, _ADDRESS, _INT)
_object_kind = _bound(pdfium.FPDFPageObj_GetType, _INT, _ADDRESS)
_object_matrix = _bound(pdfium.FPDFPageObj_GetMatrix, _INT, _ADDRESS, _ADDRESS)
_object_bounds = _bound(pdfium.FPDFPageObj_GetBounds, _INT, _ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS)
_form_count = _bound(pdfium.FPDFFormObj_CountObjects, _INT, _ADDRESS)
_form_object = _bound(pdfium.FPDFFormObj_GetObject, _ADDRESS, _ADDRESS, ctypes.c_ulong)
_segment_count = _bound(pdfium.FPDFPath_CountSegments, _INT, _ADDRESS)
_draw_mode = _bound(pdfium.FPDFPath_GetDrawMode, _INT, _ADDRESS, _ADDRESS, _ADDRESS)
_path_segment = _bound(pdfium.FPDFPath_GetPathSegment, _ADDRESS, _ADDRESS, _INT)
_segment_kind = _bound(pdfium.FPDFPathSegment_GetType, _INT, _ADDRESS)
_segment_point = _bound(pdfium.FPDFPathSegment_GetPoint, _INT, _ADDRESS, _ADDRESS, _ADDRESS)
_segment_closes = _bound(pdfium.FPDFPathSegment_GetClose, _INT, _ADDRESS)


_new_word = partial(tuple.__new__, Word)
"""Creates a word from a tuple in half the time of ``Word(...)``; a page has hundreds of words."""


def _join(word: str) -> str:
    """Join a word that was divided at the end of a line. The hyphen stays in a word with another one."""
    return _JOINTS.sub(lambda mark: "-" if "-" in word[: mark.start()] else "", word)


class _Buffer:
    """A reusable buffer for the numbers that PDFium writes."""

    def __init__(self, layout: str) -> None:
        struct = Struct(layout)
        self._numbers = (ctypes.c_char * struct.size)()
        self.address = ctypes.addressof(self._numbers)
        self.read = partial(struct.unpack, self._numbers)


def _address_of(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


class _Frame(NamedTuple):
    """Turns the page's coordinates so that text of one direction runs from left to right."""

    turn: int

    def point(self, x: float, y: float) -> tuple[float, float]:
        if self.turn == 0:
            return x, y
        if self.turn == 90:
            return y, -x
        return (-x, -y) if self.turn == 180 else (-y, x)

    def box(self, left: float, bottom: float, right: float, top: float) -> Stroke:
        """Return a rectangle's left, bottom, right and top in the frame."""
        if self.turn == 0:
            return left, bottom, right, top
        x, y = self.point(left, bottom)
        other_x, other_y = self.point(right, top)
        return min(x, other_x), min(y, other_y), max(x, other_x), max(y, other_y)


FRAMES = {turn: _Frame(turn) for turn in (0, 90, 180, 270)}


@dataclass(slots=True)
class _Unread:
    """Parts that were not read, by page or as a count."""

    images: int = 0
    broken_pages: list[int] = field(default_factory=list)
    drawn_pages: set[int] = field(default_factory=set)
    """Pages with anything on them; a blank page needs no OCR."""
    marks: Counter[str] = field(default_factory=Counter)
    files: list[str] = field(default_factory=list)


def open_pdf(data: bytes) -> pypdfium2.PdfDocument:
    """Open a PDF, which the caller closes. Raises `DocumentError` if the file is protected or not a PDF."""
    try:
        return pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as exc:
        # Only PDFium's last error distinguishes a password from a broken file.
        if pdfium.FPDF_GetLastError() == pdfium.FPDF_ERR_PASSWORD or "assword" in str(exc):
            raise DocumentError("DOCUMENT_ENCRYPTED", "the PDF is protected by a password") from exc
        raise DocumentError("DOCUMENT_BROKEN", "the file is not a readable PDF") from exc


def open_whole_or_cut(data: bytes) -> tuple[pypdfium2.PdfDocument, bool]:
    """Open a PDF, or the complete pages of a truncated one; the flag is true for a truncated file.

    Raises:
        DocumentError: no page can be opened.
    """
    cut_off = is_cut_off(data)
    try:
        document = open_pdf(data)
        if len(document) or not cut_off:
            return document, cut_off
        document.close()
    except DocumentError as exc:
        if exc.code != "DOCUMENT_BROKEN" or not cut_off:
            raise
    repaired = salvage(data)
    if repaired is None:
        raise DocumentError(
            "DOCUMENT_BROKEN", "the file is not a readable PDF: its end is missing, and no page is whole"
        )
    return open_pdf(repaired), True


def read_pdf(path: Path, limits: ParseLimits, scans: Scans = Scans()) -> ParsedDocument:  # noqa: B008 (frozen)
    """Read a PDF. Pages without a text layer are taken from ``scans``, or listed in ``unread_scans``.

    Raises:
        DocumentError: the file is protected, broken or too long, or OCR found no text on scanned pages.
    """
    # PDFium would resolve a path, and the path of an open descriptor has no target.
    document, incomplete = open_whole_or_cut(path.read_bytes())
    with document:
        count = len(document)
        if count > limits.max_pages:
            message = f"the PDF has {count} pages; the limit is {limits.max_pages}"
            raise DocumentError("DOCUMENT_TOO_LARGE", message)
        form_kind = document.get_formtype()
        if form_kind != pdfium.FORMTYPE_NONE:
            document.init_forms()
        unread = _Unread(files=names_of_attachments(document))
        pages = [_read_page(document, index, unread) for index in range(count)]
        date = latest_date(*map(document.get_metadata_value, ("CreationDate", "ModDate")))
        is_xfa = form_kind in (pdfium.FORMTYPE_XFA_FULL, pdfium.FORMTYPE_XFA_FOREGROUND)
    empty = [number for number, page in enumerate(pages, 1) if not page.lines and number not in unread.broken_pages]
    if incomplete and len(empty) == count:
        raise DocumentError("DOCUMENT_BROKEN", f"{CUT_OFF}; no page has text")
    # Pages of a truncated file may be empty because their text is in the missing part.
    scanned = [number for number in empty if number in unread.drawn_pages and not incomplete]
    read = [scans.pages[number] for number in empty if number in scans.pages]
    for scan in read:
        page = lay_out_scan(scan)
        pages[scan.page - 1] = replace(page, after=(*page.after, *pages[scan.page - 1].after))
    left = tuple(number for number in scanned if number not in scans.pages)
    layout = lay_out(pages)
    notes = [
        *([f"{CUT_OFF}; {count - len(empty)} of {count} pages have text"] if incomplete else []),
        *_scan_notes(empty, scans, count, incomplete),
        *([f"pages that cannot be read: {_numbers(unread.broken_pages)}"] if unread.broken_pages else []),
        *([f"{UNCLEAR}: pages {_numbers(layout.unclear_pages)}"] if layout.unclear_pages else []),
        *(["the dynamic parts of the form (XFA) were not read"] if is_xfa else []),
        *([f"images were not read: {unread.images}"] if unread.images else []),
        *([f"embedded files were not read: {', '.join(unread.files)}"] if unread.files else []),
        *(f"{kind}: {number}" for kind, number in sorted(unread.marks.items())),
    ]
    if not layout.blocks and read and not left:
        raise DocumentError("DOCUMENT_EMPTY", next((scan.error for scan in read if scan.error), NO_TEXT_FOUND))
    return ParsedDocument(tuple(layout.blocks), count, tuple(notes), date, left)


def _scan_notes(empty: Sequence[int], scans: Scans, count: int, incomplete: bool) -> list[str]:
    """Return notes on the pages without a text layer: those read by OCR and those not read."""
    read = [scans.pages[number] for number in empty if number in scans.pages]
    missing = [number for number in empty if number not in scans.pages]
    blank = [scan.page for scan in read if not scan.lines and not scan.error]
    notes = []
    for reader, who in (("", "OCR"), (BY_MODEL, "the model")):
        if own := [scan.page for scan in read if scan.lines and scan.reader == reader]:
            notes.append(f"read from a scan by {who}: pages {_numbers(own)}")
    if blank:
        notes.append(f"no text was found on scanned pages: {_numbers(blank)}")
    failed: dict[tuple[str, str], list[int]] = defaultdict(list)
    for scan in read:
        if scan.error:
            failed["only read in part" if scan.lines else "not read", scan.error].append(scan.page)
    notes += [f"scanned pages {_numbers(pages)} were {how}: {error}" for (how, error), pages in failed.items()]
    if missing and not incomplete:
        hint = "" if has_ocr() else f"; {OCR_HINT}"
        if scans.limit is not None and len(scans.pages) >= scans.limit:
            hint = f"; {'the model' if scans.by_model else 'OCR'} reads {scans.limit} pages of a document"
        notes.append(f"{NO_TEXT_LAYER} {len(missing)} of {count} pages{hint}")
    return notes


def _numbers(pages: Sequence[int]) -> str:
    """Return page numbers as a short list: 1, 3-7."""
    spans: list[list[int]] = []
    for page in pages:
        if spans and page == spans[-1][1] + 1:
            spans[-1][1] = page
        else:
            spans.append([page, page])
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans[:20])
    return shown + (" and more" if len(spans) > 20 else "")


def _read_page(document: pypdfium2.PdfDocument, index: int, unread: _Unread) -> Page:
    """Read one page; a page that cannot be loaded is empty and counted."""
    try:
        page = document[index]
    except pypdfium2.PdfiumError:
        unread.broken_pages.append(index + 1)
        return Page(())
    text_page = None
    try:
        text_page = page.get_textpage()
        strokes, images = _StrokeReader().read(page)
        if pdfium.FPDFPage_CountObjects(page.raw):
            unread.drawn_pages.add(index + 1)
        rules = _RulesByTurn(strokes)
        lines, turn = _arrange(_lines(text_page, rules))
        marks = read_marks(document, page)
        lines = _with_marks(lines, marks, FRAMES[turn])
        if lines:  # the image of a page without text is a scan, which has separate notes
            unread.images += images
        unread.marks.update(marks.unread)
        unread.files += marks.files
        after = tuple(Block("prose", text, page=index + 1) for text in marks.comments)
        return Page(tuple(lines), rules[turn], after)
    except pypdfium2.PdfiumError:
        unread.broken_pages.append(index + 1)
        return Page(())
    finally:
        if text_page is not None:
            text_page.close()
        page.close()


# Text


def _lines(text_page: pypdfium2.PdfTextPage, rules: Mapping[int, Rules]) -> dict[int, list[Line]]:
    """Return the lines of a page by their direction, in the order of the text layer."""
    text = _text(text_page)
    reader = _CharacterReader(text_page)
    if _ALEF_LAM.search(text):
        text = _ALEF_LAM.sub(lambda match: match[0][::-1] if reader.is_ligature(match.start()) else match[0], text)
    lines: dict[int, list[Line]] = defaultdict(list)
    start = 0
    for raw in text.split("\n"):
        spans = _split_words(raw, start)
        start += len(raw) + 1
        if not spans:
            continue
        size, turn = reader.style(spans[0][0])
        turn = turn if raw.isascii() else _vertical_turn(reader, spans, size, turn)
        frame = FRAMES[turn]
        has_joints = "\x02" in raw or "\ufffe" in raw
        words = reader.words(frame, spans, rules[turn].vertical, has_joints)
        # A line with a joint may begin at the end of the line above, behind a raised number.
        if words[0].left > words[-1].left and not has_joints and not _RIGHT_TO_LEFT.search(raw):
            words.sort(key=_LEFT)  # PDFium orders the pieces of an upside-down page's lines as they are shown
        line = Line(words, size, frame.point(*reader.origin(spans[0][0]))[1])
        if lines[turn] and _is_mark_of(lines[turn][-1], line):
            _append_mark(lines[turn], line.text)
        else:
            lines[turn].append(line)
    return lines


def _is_mark_of(before: Line, line: Line) -> bool:
    """Whether a line is a raised number directly behind another line: PDFium ends a line where the size changes."""
    return (
        len(line.text) <= MAX_MARK
        and _DIGITS.issuperset(line.text)
        and line.size < _RAISED_SIZE * before.size
        and _RAISED_BY < (line.base - before.base) / before.size < 1
        and abs(line.left - before.words[-1].right) < 0.2 * before.size
    )


def _append_mark(lines: list[Line], mark: str) -> None:
    """Append a raised number to the last word of the last line."""
    last = lines[-1].words[-1]
    lines[-1] = lines[-1].with_words([*lines[-1].words[:-1], last._replace(text=last.text + to_superscript(mark))])


def _split_words(line: str, start: int) -> list[tuple[int, str]]:
    """Return the words of a line with their indexes; the line's own is ``start``."""
    line = line.rstrip("\r")
    if not line.isascii() or not line.isprintable():
        return [(start + match.start(), match[0]) for match in _WORDS.finditer(line)]
    spans = []
    for word in line.split(" "):  # in a fifth of the time
        if word:
            spans.append((start, word))
        start += len(word) + 1
    return spans


def _text(text_page: pypdfium2.PdfTextPage) -> str:
    """Return the page's text with one character for each that PDFium counts, so that offsets are indexes."""
    text = text_page.get_text_range()
    count = text_page.count_chars()
    if len(text) != count:
        codes = (pdfium.FPDFText_GetUnicode(text_page.raw, at) for at in range(count))
        text = "".join(chr(code) if 0 < code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd" for code in codes)
    return _UNNAMED.sub(lambda match: _NAMES[match[0]], text)


class _CharacterReader:
    """Reads the positions of characters from PDFium, with reused buffers, since a page has thousands of calls."""

    def __init__(self, text_page: pypdfium2.PdfTextPage) -> None:
        self._page = _address_of(text_page.raw)
        self._box = _Buffer("4f")
        self._matrix = _Buffer("6f")
        self._point = _Buffer("2d")

    def style(self, at: int) -> tuple[float, int]:
        """Return the font size of a character in points, and the direction of its text in degrees."""
        size: float = _font_size(self._page, at)
        if not _character_matrix(self._page, at, self._matrix.address):
            return size, 0
        a, b, c, d, _, _ = self._matrix.read()
        if a > 0 and b == 0:
            return round(size * abs(d), 2), 0
        scale = math.hypot(c, d)
        turn = round(math.degrees(math.atan2(b, a)) / 90) * 90 % 360
        return (round(size * scale, 2) if scale > 0 and math.isfinite(scale) else size), turn

    def origin(self, at: int) -> tuple[float, float]:
        address = self._point.address
        _character_origin(self._page, at, address, address + 8)
        x, y = self._point.read()
        return x, y

    def is_ligature(self, at: int) -> bool:
        """Return whether a character and the next one are one glyph."""
        return self.origin(at) == self.origin(at + 1)

    def box(self, at: int) -> Stroke:
        """Return left, bottom, right and top of a character's full height and width."""
        _character_box(self._page, at, self._box.address)
        left, top, right, bottom = self._box.read()
        return left, bottom, right, top

    def words(
        self, frame: _Frame, spans: Sequence[tuple[int, str]], posts: Sequence[Segment], has_joints: bool
    ) -> list[Word]:
        """Return the words at these indexes, split at vertical rules between their characters."""
        words: list[Word] = []
        xs = [post[2] for post in posts]  # ascending
        get_box, page, address, read = _character_box, self._page, self._box.address, self._box.read
        turned = frame.turn != 0
        for at, characters in spans:
            get_box(page, at, address)
            left, top, right, bottom = read()
            if turned:
                left, bottom, right, top = frame.box(left, bottom, right, top)
            middle = (bottom + top) / 2
            joint = _JOINTS.search(characters) if has_joints else None
            last = at + (joint.start() if joint and joint.start() else len(characters)) - 1
            if last > at:
                get_box(page, last, address)
                start, high, end, low = read()
                if turned:
                    start, low, end, high = frame.box(start, low, end, high)
                height = top - bottom
                if high - low < _RAISED_SIZE * height and low - bottom > _RAISED_BY * height:
                    characters = self._raise_digits(frame, at, characters, bottom + _RAISED_BY * height)
                if end > left or joint:
                    right = max(right, end)
                else:  # text from right to left
                    left = min(left, start)
                if xs and not joint:
                    post = bisect_right(xs, left + 1)
                    if post < len(xs) and xs[post] < right - 1:
                        cuts = [x for low, high, x in posts[post:] if x < right - 1 and low <= middle <= high]
                        if cuts:
                            words += self._cut(frame, at, characters, cuts, middle)
                            continue
            words.append(_new_word((_join(characters) if joint else characters, left, right, middle)))
        return words

    def _raise_digits(self, frame: _Frame, at: int, characters: str, foot: float) -> str:
        """Return a word with superscript characters for the digits at its end that begin above ``foot``."""
        start = len(characters)
        while start > 1 and characters[start - 1] in _DIGITS and frame.box(*self.box(at + start - 1))[1] > foot:
            start -= 1
        return characters[:start] + to_superscript(characters[start:])

    def _cut(self, frame: _Frame, at: int, characters: str, cuts: Sequence[float], middle: float) -> list[Word]:
        """Return the parts of a word between vertical rules; the centre of a character decides its part."""
        words: list[Word] = []
        cell = -1
        for offset, character in enumerate(characters):
            left, _, right, _ = frame.box(*self.box(at + offset))
            its_cell = sum(x < (left + right) / 2 for x in cuts)
            if its_cell == cell:
                words[-1] = Word(words[-1].text + character, words[-1].left, right, middle)
            else:
                words.append(Word(character, left, right, middle))
                cell = its_cell
        return words


def _vertical_turn(reader: _CharacterReader, spans: Sequence[tuple[int, str]], size: float, turn: int) -> int:
    """Return 270 for a line of vertical writing, whose characters are below each other; else its turn."""
    at, characters = spans[0] if len(spans) == 1 else max(spans, key=lambda span: len(span[1]))
    if turn != 0 or len(characters) < 2 or characters < FIRST_CJK:
        return turn
    first, other = reader.origin(at), reader.origin(at + 1)
    is_below = first[1] - other[1] > 0.5 * size and abs(first[0] - other[0]) < 0.3 * size
    return 270 if is_below else turn


def _arrange(lines_by_turn: Mapping[int, list[Line]]) -> tuple[list[Line], int]:
    """Return all lines, beginning with the direction of most text, and this direction."""
    if list(lines_by_turn) == [0]:
        return lines_by_turn[0], 0
    turns = sorted(lines_by_turn, key=lambda turn: (-sum(len(line.text) for line in lines_by_turn[turn]), turn))
    lines: list[Line] = []
    for turn in turns:
        turn_lines = lines_by_turn[turn]
        lines += _vertical_order(turn_lines) if turn == 270 else turn_lines
    return lines, turns[0] if turns else 0


def _vertical_order(lines: list[Line]) -> list[Line]:
    """Sort columns of vertical writing from right to left, tier by tier; keep lines in any other order."""
    ordered: list[Line] = []
    tier: list[Line] = []
    end = -math.inf
    for line in sorted(lines, key=lambda other: other.left):
        if tier and line.left > end + line.size:
            ordered += sorted(tier, key=lambda other: -other.base)
            tier = []
        tier.append(line)
        end = max(end, line.right)
    return ordered + sorted(tier, key=lambda other: -other.base)


# Rules and images


class _Matrix(NamedTuple):
    a: float
    b: float
    c: float
    d: float
    e: float
    f: float

    def then(self, other: "_Matrix") -> "_Matrix":
        """Return the transformation by this matrix followed by another."""
        return _Matrix(
            self.a * other.a + self.b * other.c,
            self.a * other.b + self.b * other.d,
            self.c * other.a + self.d * other.c,
            self.c * other.b + self.d * other.d,
            self.e * other.a + self.f * other.c + other.e,
            self.e * other.b + self.f * other.d + other.f,
        )


_IDENTITY = _Matrix(1.0, 0.0, 0.0, 1.0, 0.0, 0.0)


class _StrokeReader:
    """Finds the straight lines and the images of a page, with buffers reused for each path."""

    def __init__(self) -> None:
        self._strokes: list[Stroke] = []
        self._images = 0
        self._objects_left = MAX_OBJECTS
        self._segments_left = MAX_PATH_SEGMENTS
        self._matrix = _Buffer("6f")
        self._bounds = _Buffer("4f")
        self._point = _Buffer("2f")
        self._mode = _Buffer("2i")

    def read(self, page: pypdfium2.PdfPage) -> tuple[list[Stroke], int]:
        """Return the lines of a page and the number of its images."""
        count = min(pdfium.FPDFPage_CountObjects(page.raw), self._objects_left)
        raw = _address_of(page.raw)
        self._walk((_page_object(raw, at) for at in range(count)), _IDENTITY, 0)
        return self._strokes, self._images

    def _walk(self, page_objects: Iterable[int | None], outer: _Matrix, depth: int) -> None:
        text_kind, path_kind = pdfium.FPDF_PAGEOBJ_TEXT, pdfium.FPDF_PAGEOBJ_PATH
        for page_object in page_objects:
            self._objects_left -= 1
            if self._objects_left < 0:
                return
            kind = _object_kind(page_object)
            if kind == text_kind:
                continue
            if kind == path_kind:
                self._add_path(page_object, outer)
            elif kind == pdfium.FPDF_PAGEOBJ_IMAGE:
                self._images += self._is_large(page_object)
            elif kind == pdfium.FPDF_PAGEOBJ_FORM and depth < MAX_DEPTH:
                count = min(_form_count(page_object), self._objects_left)
                inner = (_form_object(page_object, at) for at in range(count))
                self._walk(inner, self._matrix_of(page_object).then(outer), depth + 1)

    def _matrix_of(self, page_object: int | None) -> _Matrix:
        if not _object_matrix(page_object, self._matrix.address):
            return _IDENTITY
        return _Matrix(*self._matrix.read())

    def _bounds_of(self, page_object: int | None) -> Stroke | None:
        """Return an object's left, bottom, right and top on the page, with the width of its stroke."""
        address = self._bounds.address
        if not _object_bounds(page_object, address, address + 4, address + 8, address + 12):
            return None
        left, bottom, right, top = self._bounds.read()
        return left, bottom, right, top

    def _is_large(self, image: int | None) -> bool:
        bounds = self._bounds_of(image)
        return bounds is not None and min(bounds[2] - bounds[0], bounds[3] - bounds[1]) >= MIN_IMAGE

    def _add_thin_stroke(self, path: int | None) -> bool:
        """Add a single straight line by its bounds (one call instead of seven); return False if thick or slanted."""
        bounds = self._bounds_of(path)
        if bounds is None:
            return False
        left, bottom, right, top = bounds
        if top - bottom <= THIN_STROKE < right - left:
            self._strokes.append((left, (bottom + top) / 2, right, (bottom + top) / 2))
            return True
        if right - left <= THIN_STROKE < top - bottom:
            self._strokes.append(((left + right) / 2, bottom, (left + right) / 2, top))
            return True
        return False

    def _add_path(self, path: int | None, outer: _Matrix) -> None:
        """Add the lines of a path: its strokes, or filled rectangles thin enough to be lines."""
        count = _segment_count(path)
        if not 1 < count <= self._segments_left:
            return
        _draw_mode(path, self._mode.address, self._mode.address + 4)
        fill, stroke = self._mode.read()
        if not stroke and (not fill or count < 3):
            return
        self._segments_left -= count
        if count == 2 and outer is _IDENTITY and self._add_thin_stroke(path):
            return
        matrix = self._matrix_of(path)
        if outer is not _IDENTITY:
            matrix = matrix.then(outer)
        for points, is_straight in self._outlines(path, count, matrix):
            if stroke:
                self._strokes += ((*point, *other) for point, other in pairwise(points))
            elif is_straight:
                self._add_thin(points)

    def _outlines(
        self, path: int | None, count: int, matrix: _Matrix
    ) -> Iterator[tuple[list[tuple[float, float]], bool]]:
        """Yield the corners of each part of a path, and whether no curve is in it. A curve begins another part."""
        points: list[tuple[float, float]] = []
        is_straight = True
        x_address, y_address, read = self._point.address, self._point.address + 4, self._point.read
        a, b, c, d, e, f = matrix
        for index in range(count):
            segment = _path_segment(path, index)
            kind = _segment_kind(segment)
            _segment_point(segment, x_address, y_address)
            x, y = read()
            if kind != pdfium.FPDF_SEGMENT_LINETO:
                if points:
                    yield points, is_straight
                points = []
                is_straight = kind == pdfium.FPDF_SEGMENT_MOVETO
            points.append((a * x + c * y + e, b * x + d * y + f))
            if len(points) > 2 and _segment_closes(segment):
                points.append(points[0])
        yield points, is_straight

    def _add_thin(self, points: Sequence[tuple[float, float]]) -> None:
        if len(points) < 3:
            return
        left, right = min(x for x, _ in points), max(x for x, _ in points)
        bottom, top = min(y for _, y in points), max(y for _, y in points)
        if top - bottom <= THIN < right - left:
            self._strokes.append((left, (bottom + top) / 2, right, (bottom + top) / 2))
        elif right - left <= THIN < top - bottom:
            self._strokes.append(((left + right) / 2, bottom, (left + right) / 2, top))


class _RulesByTurn(dict[int, Rules]):
    """The rules of a page in each direction of its text, computed on first use."""

    def __init__(self, strokes: Sequence[Stroke]) -> None:
        super().__init__()
        self._strokes = strokes

    def __missing__(self, turn: int) -> Rules:
        self[turn] = _rules(self._strokes, FRAMES[turn])
        return self[turn]


def _rules(strokes: Sequence[Stroke], frame: _Frame) -> Rules:
    horizontal: list[tuple[float, float, float]] = []
    vertical: list[tuple[float, float, float]] = []
    for stroke in strokes:
        left, bottom, right, top = frame.box(*stroke)
        if top - bottom <= 1.0 and right - left >= SHORT:
            horizontal.append((left, right, (bottom + top) / 2))
        elif right - left <= 1.0 and top - bottom >= SHORT:
            vertical.append((bottom, top, (left + right) / 2))
    return Rules(tuple(merge_collinear(horizontal)), tuple(merge_collinear(vertical)))


# Fields and links at their places


def _with_marks(lines: list[Line], marks: PageAnnotations, frame: _Frame) -> list[Line]:
    """Return the lines with the values of fields at their places, and each link's address after its words."""
    for rectangle, address in marks.links:
        lines = _with_address(lines, frame.box(*rectangle), address)
    for rectangle, name, value in marks.fields:
        lines = _with_value(lines, frame.box(*rectangle), name, value)
    return lines


def _with_address(lines: list[Line], box: Stroke, address: str) -> list[Line]:
    left, bottom, right, top = box
    for at in reversed(range(len(lines))):
        words = lines[at].words
        covered = [
            index
            for index, word in enumerate(words)
            if left - 1 <= word.centre <= right + 1 and bottom - 1 <= word.middle <= top + 1
        ]
        if not covered:
            continue
        shown = " ".join(words[index].text for index in covered)
        if address.removeprefix("mailto:").rstrip("/") in shown.replace(" ", ""):
            return lines
        last = words[covered[-1]]
        added = Word(f"({address})", last.right, last.right, last.middle)
        words = (*words[: covered[-1] + 1], added, *words[covered[-1] + 1 :])
        return [*lines[:at], lines[at].with_words(words), *lines[at + 1 :]]
    return [*lines, Line((Word(address, left, right, (bottom + top) / 2),), max(top - bottom, 1.0), bottom)]


def _with_value(lines: list[Line], box: Stroke, name: str, value: str) -> list[Line]:
    """Add a field's value to the line at its position, or as a line below its name if there is none."""
    left, bottom, right, top = box
    middle = (bottom + top) / 2
    height = top - bottom
    beside = [
        at
        for at, line in enumerate(lines)
        if bottom - 0.35 * line.size <= line.base <= top
        and (height <= 2.6 * line.size or line.base >= top - 2 * line.size)
        and (line.right <= left + 2 or line.left >= right - 2 or any(w.right <= left + 2 for w in line.words))
    ]
    if beside:
        at = min(beside, key=lambda index: (lines[index].left > left, abs(left - _end_before(lines[index], left))))
        line = lines[at]
        place = sum(word.right <= left + 2 for word in line.words)
        word = Word(value, left, right, line.words[0].middle)
        words = [*line.words[:place], word, *line.words[place:]]
        return [*lines[:at], line.with_words(words), *lines[at + 1 :]]
    size = min(max(height * 0.7, 6.0), 12.0)
    line = Line((Word(f"{name}: {value}" if name else value, left, right, middle),), size, bottom)
    place = next((at for at, other in enumerate(lines) if other.base < bottom), len(lines))
    return [*lines[:place], line, *lines[place:]]


def _end_before(line: Line, left: float) -> float:
    return max((word.right for word in line.words if word.right <= left + 2), default=line.left)
