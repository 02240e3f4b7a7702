"""HTML reader: headings, paragraphs, lists, tables and code as visible on the page, without scripts and markup."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urljoin

from mcp_servers.retriever.document import (
    Block,
    ParsedDocument,
    ParseLimits,
    blocks_of_table,
    full_rows,
    heading,
    spread,
)
from mcp_servers.retriever.formats.dates import latest_date
from mcp_servers.retriever.formats.html_tokens import EndTag, StartTag, tokens
from mcp_servers.retriever.formats.numbering import show_count
from mcp_servers.retriever.formats.text import decode_as, strike_out, to_superscript, with_address

_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?\s*([\w-]{2,30})", re.IGNORECASE)
_XML_ENCODING = re.compile(rb"\s*<\?xml[^>]{0,100}encoding\s*=\s*[\"']([\w-]{2,30})", re.IGNORECASE)
_META = re.compile(r"<meta\b([^<>]{0,1000})>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"([a-z-]{1,20})\s?=\s?[\"']([^\"']{0,200})[\"']", re.IGNORECASE)
_DATE_NAMES = frozenset(
    f"{prefix}{name}" for prefix in ("", "dc.", "dcterms.") for name in ("date", "created", "modified", "issued")
) | {"article:published_time", "article:modified_time", "last-modified"}
HEAD_CHARACTERS = 65_536
"""Characters at the start of a page that are searched for `meta` elements."""
_SKIPPED = frozenset({"script", "style", "template", "noscript", "title", "textarea", "select"})
_BLOCKS = frozenset(
    re.findall(
        r"\w+",
        """address article aside blockquote body caption center col colgroup dd details dialog dir div dl dt fieldset
        figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html iframe legend li
        listing main menu nav object ol optgroup option p plaintext pre search section summary svg table tbody td text
        tfoot th thead tr tspan ul video xmp""",
    )
)
"""Elements that begin and end a block. Like a browser, the reader takes any other element as part of a line.

Source: https://html.spec.whatwg.org/multipage/rendering.html#flow-content-3, and the texts of SVG.
"""
_FORMULA = frozenset({"mi", "mn", "mo", "ms", "mtext"})
"""Elements of MathML with text."""
_STRUCK = frozenset({"del", "s", "strike"})
_NOTE_MARK = re.compile(r"\s*\d{1,3}\s*")
"""Text of a link to a footnote."""
_BEFORE_NOTE_MARK = re.compile(r"[^\W_\u2e80-\u9fff]|[.,;:!?%)\]\"'”’»。，、；：！？」』）]")
"""Character before the mark of a footnote. Behind others, as in `subsection (2)` or `第3条`, the number is text."""
_VOID = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"})
_OPEN_ENDED = frozenset({"p", "li", "dt", "dd", "td", "th", "tr", "option"})
"""Elements whose end tag may be left out."""

_NOT_SHOWN = re.compile(r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*hidden)", re.IGNORECASE)
MAX_INDENTATION = 8
MAX_SPAN = 1_000
"""Maximum number of rows or columns of one cell; browsers have the same limit."""


def read_html(path: Path, limits: ParseLimits) -> ParsedDocument:
    return html_parts(decode_html(path.read_bytes()))


def html_parts(source: str, *, is_chapter: bool = False) -> ParsedDocument:
    """Read a page: its title is the first heading if the page has no `h1`, and a note if it has another one.

    The title of a chapter of a book is often a file name, and is not read.
    """
    builder = _build(source)
    blocks = builder.finish()
    title = " ".join("".join(builder.title).split())
    notes = [f"hidden elements were not read: {builder.hidden}"] if builder.hidden else []
    if title and not is_chapter:
        if not builder.has_main_heading:
            blocks.insert(0, heading(title, 1))
        elif not any(block.kind == "heading" and title in block.text for block in blocks):
            notes.append(f"the page's title is {title[:200]!r}")
    return ParsedDocument(tuple(blocks), notes=tuple(notes), date=latest_date(*_dates(source)))


def html_blocks(source: str) -> list[Block]:
    """Return the blocks of a piece of a page."""
    return _build(source).finish()


def _build(source: str) -> "_Builder":
    builder = _Builder()
    for token in tokens(source):
        if isinstance(token, StartTag):
            builder.begin(token.name, token.attributes)
        elif isinstance(token, EndTag):
            builder.end(token.name)
        else:
            builder.add(token)
    return builder


def _dates(source: str) -> Iterator[str]:
    """Yield the dates of writing and changes from the `meta` elements of a page's head."""
    for element in _META.findall(source[:HEAD_CHARACTERS]):
        attributes = {name.lower(): value for name, value in _ATTRIBUTE.findall(element)}
        if (attributes.get("name") or attributes.get("property") or "").lower() in _DATE_NAMES:
            yield attributes.get("content", "")


def decode_html(data: bytes) -> str:
    """Decode a page in its declared encoding if the bytes are valid in it, else in a detected encoding."""
    declared = _CHARSET.search(data[:4096]) or _XML_ENCODING.match(data[:200])
    return decode_as(data, declared[1].decode("ascii") if declared else "")


_LIST_KINDS = {"a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}
"""Kinds of numbers by the ``type`` of an ordered list."""


@dataclass(slots=True)
class _List:
    """An open list; ``number`` is the number of the next item, None for a list without numbers.

    ``kind`` is the ``type`` of an ordered list: 1, a, A, i or I.
    """

    number: int | None
    kind: str = "1"
    step: int = 1


@dataclass(slots=True)
class _Table:
    """An open table. ``spans`` has, by column, the cells that extend into later rows: number of rows and text."""

    rows: list[list[str]] = field(default_factory=list)
    spans: dict[int, tuple[int, str]] = field(default_factory=dict)
    column: int = 0
    open: tuple[int, int] | None = None
    """Columns and rows of the cell that is open."""
    alone: list[bool] = field(default_factory=list)
    """Whether a row consists of one cell over several columns."""
    titles: list[str] = field(default_factory=list)
    """The caption, and other text before the first row."""

    def begin_row(self) -> None:
        self._fill()
        self.rows.append([])
        self.alone.append(False)
        self.column = 0

    def add(self, text: str) -> None:
        """End the open cell, or add text between cells as a separate row."""
        columns, rows = self.open or (1, 1)
        if self.open is None or not self.rows:
            self.begin_row()
        self.alone[-1] = not self.rows[-1] and columns > 1 and not self.spans
        for _ in range(columns):
            self._fill()
            self.rows[-1].append(text)
            if rows > 1:
                self.spans[self.column] = rows - 1, text
            self.column += 1
        self.open = None

    def _fill(self) -> None:
        """Fill the next columns of this row with cells of earlier rows that extend into it."""
        while self.rows and self.column in self.spans:
            left, text = self.spans.pop(self.column)
            self.rows[-1].append(text)
            if left > 1:
                self.spans[self.column] = left - 1, text
            self.column += 1


class _Builder:
    """Collects blocks from a page's tags and text; broken nesting ends a block early and loses no text."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._lines: list[str] = []
        self._text: list[str] = []
        self._skipping = 0
        self._hidden = ("", 0)
        self._heading = 0
        self._preformatted = 0
        self._lists: list[_List] = []
        self._item = ""
        self._table: _Table | None = None
        self._link: tuple[str, int] | None = None
        """The address of the open link, and the start of its text in the open block."""
        self._struck: int | None = None
        """The start of struck out text in the open block."""
        self._struck_in_cell = False
        """Whether that text began in a table's cell, with which it ends."""
        self._inline = ("", 0)
        """The open raised text, reading or formula, and its start in the open block."""
        self._readings: list[str] = []
        self._navigation = 0
        self._base = ""
        self._title_open = False
        self._field = ""
        self.title: list[str] = []
        self.has_main_heading = False
        self.hidden = 0

    def begin(self, tag: str, attributes: Mapping[str, str | None]) -> None:
        """Process a start tag."""
        if self._is_hidden(tag, attributes):
            return
        if tag in _SKIPPED:
            self._skipping += 1
            self._title_open = tag == "title" and not self.title
            self._field = tag if tag in ("textarea", "select") else ""
        elif tag == "option" and self._field:
            self._field = "option" if "selected" in attributes else "select"
        elif tag in ("br", "img", "input", "base"):
            self._void(tag, attributes)
        elif tag == "a":
            self._end_link()
            self._begin_link(attributes)
        elif self._table is not None and tag != "table" and not re.fullmatch("h[1-6]", tag):
            self._in_table(self._table, tag, attributes)
        elif tag in _BLOCKS:
            self._leave_layout()
            self.flush()
            self._enter(tag, attributes)
        else:
            self._begin_inline(tag, attributes)

    def end(self, tag: str) -> None:
        """Process an end tag."""
        if self._hidden[1]:
            self._end_hidden(tag)
        elif tag in _SKIPPED:
            self._skipping = max(0, self._skipping - 1)
            self._title_open = False
            self._field = ""
        elif tag == "a":
            self._end_link()
        elif self._table is not None:
            if tag in ("td", "th", "tr", "caption"):
                self._end_cell(self._table)
            elif tag == "table":
                self._finish_table()
            elif tag in _BLOCKS:
                self._text.append("\n")
            else:
                self._end_inline(tag)
        elif tag in _BLOCKS:
            self.flush()
            self._leave(tag)
        else:
            self._end_inline(tag)

    def add(self, text: str) -> None:
        """Process text."""
        if self._title_open:
            self.title.append(text)
        elif self._field in ("textarea", "option") and not self._hidden[1]:
            self._text.append(f" {text.strip()} ")
        elif not self._skipping and not self._hidden[1]:
            self._text.append(text)

    def _void(self, tag: str, attributes: Mapping[str, str | None]) -> None:
        """Process an element without content: a break, a picture with its description, the value of a form field."""
        kind = (attributes.get("type") or "text").lower()
        if tag == "br":
            self._text.append("\n")
        elif tag == "img":
            self._text.append(attributes.get("alt") or "")
        elif tag == "base":
            self._base = attributes.get("href") or ""
        elif kind in ("checkbox", "radio"):
            self._text.append(f" {'☒' if 'checked' in attributes else '☐'} ")
        elif kind not in ("hidden", "password", "image", "file"):
            self._text.append(f" {attributes.get('value') or ''} ")

    def _begin_inline(self, tag: str, attributes: Mapping[str, str | None]) -> None:
        """Process the start tag of raised or struck out text, of the reading of characters (ruby) or of a formula."""
        if tag in _STRUCK and self._struck is None:
            self._struck, self._struck_in_cell = len(self._text), self._table is not None
        elif tag in ("sup", "math", "rt", "rp", "rb"):
            self._end_reading()
            self._inline = tag, len(self._text)
            if tag == "math" and (words := attributes.get("alttext")):
                self._text.append(words)
                self._inline = "alttext", len(self._text)
        elif tag == "annotation" and self._inline[0] == "math":
            is_source = "tex" in (attributes.get("encoding") or "").lower()
            self._inline = ("alttext" if is_source else "annotation"), self._inline[1]
            if is_source:
                del self._text[self._inline[1] :]  # the same formula, written as characters
        elif tag in _FORMULA:
            self._text.append(" ")

    def _end_inline(self, tag: str) -> None:
        opened, start = self._inline
        if tag == "sup" and opened == "sup":
            self._text[start:] = [to_superscript("".join(self._text[start:]))]
            self._inline = "", 0
        elif tag in _STRUCK:
            self._end_struck()
        elif tag in ("rt", "rp", "ruby"):
            self._end_reading()
        elif tag == "annotation" and opened == "alttext":
            self._inline = "alttext", len(self._text)
        elif tag == "math":
            if opened == "alttext":
                del self._text[start:]
            self._inline = "", 0

    def _end_reading(self) -> None:
        """Move the reading of characters behind the block, so that it does not divide their word."""
        opened, start = self._inline
        if opened in ("rt", "rp"):
            reading = "".join(self._text[start:]).strip()
            del self._text[start:]
            self._readings += [reading] if reading and opened == "rt" else []
        self._inline = "", 0

    def _end_struck(self) -> None:
        start, self._struck = self._struck, None
        if start is not None:
            self._text[start:] = [strike_out("".join(self._text[start:]))]

    def _take_text(self) -> str:
        """Return the text of the open block or cell, and empty it."""
        self._end_reading()
        if self._struck is not None:
            self._end_struck()
            self._struck = None if self._struck_in_cell else 0
        text = "".join(self._text)
        if self._readings:
            text = f"{text.rstrip()} ({' '.join(self._readings)})"
        self._text.clear()
        self._readings.clear()
        return text

    def _begin_link(self, attributes: Mapping[str, str | None]) -> None:
        """Open a link. Addresses within the same site are left out in navigation."""
        address = (attributes.get("href") or "").strip()
        is_outside = re.match(r"(?:[a-z][a-z0-9+.-]*:|//)", address, re.IGNORECASE) is not None
        if address and (is_outside or not self._navigation):
            with suppress(ValueError):  # an invalid address
                address = urljoin(self._base, address) if self._base and not address.startswith("#") else address
            self._link = address, len(self._text)

    def _end_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            address, start = link
            text = "".join(self._text[start:])
            before = "".join(self._text[max(start - 2, 0) : start])
            if "#" in address and _NOTE_MARK.fullmatch(text) and _BEFORE_NOTE_MARK.fullmatch(before[-1:]):
                self._text[start:] = [to_superscript(text)]  # of books and letters that raise it in a style sheet
            elif text.strip():
                self._text[start:] = [with_address(text, address)]

    def finish(self) -> list[Block]:
        """Return all blocks after the last token."""
        self.flush()
        self._end_list()
        return self._blocks

    def flush(self) -> None:
        """End the open block. A link over several blocks shows its address at the end of the first."""
        if self._link is not None and "".join(self._text[self._link[1] :]).strip():
            self._end_link()
        elif self._link is not None:
            self._link = self._link[0], 0
        if self._table is not None:
            self._finish_table()
        raw = self._take_text()
        if not raw.strip():
            return
        if self._preformatted:
            self._add(Block("code", raw.strip("\n").rstrip()))
            return
        text = " ".join(raw.split())
        if self._heading:
            self._add(heading(text, self._heading))
        elif self._lists:
            # Further text of the same item goes below, without a mark.
            indentation = "  " * min(len(self._lists) - 1, MAX_INDENTATION)
            self._lines.append(indentation + (self._item or "  ") + text)
            self._item = ""
        else:
            self._add(Block("prose", text))

    def _add(self, *blocks: Block) -> None:
        self._end_list()
        self._blocks += blocks

    def _end_list(self) -> None:
        """Add the lines of the open lists as a block; adjacent lists form one block."""
        if self._lines:
            self._blocks.append(Block("list", "\n".join(self._lines)))
            self._lines.clear()

    def _enter(self, tag: str, attributes: Mapping[str, str | None]) -> None:
        if re.fullmatch("h[1-6]", tag):
            self._heading = int(tag[1])
            self.has_main_heading = self.has_main_heading or tag == "h1"
        elif tag == "nav":
            self._navigation += 1
        elif tag == "pre":
            self._preformatted += 1
        elif tag in ("ul", "ol"):
            number = _count(attributes.get("start"), 1) if tag == "ol" else None
            falls = "reversed" in attributes
            # without a start, a falling list begins with the number of its items, which is not known yet
            number = None if falls and not attributes.get("start") else number
            self._lists.append(_List(number, str(attributes.get("type") or "1"), -1 if falls else 1))
            self._item = "- "
        elif tag == "li" and self._lists:
            number = self._lists[-1].number
            number = None if number is None else _count(attributes.get("value"), number)
            kind = _LIST_KINDS.get(self._lists[-1].kind, "decimal")
            self._item = "- " if number is None else f"{show_count(number, kind)}. "
            self._lists[-1].number = None if number is None else number + self._lists[-1].step
        elif tag == "table":
            self._table = _Table()

    def _leave(self, tag: str) -> None:
        if re.fullmatch("h[1-6]", tag):
            self._heading = 0
        elif tag == "nav":
            self._navigation = max(0, self._navigation - 1)
        elif tag == "pre":
            self._preformatted = max(0, self._preformatted - 1)
        elif tag in ("ul", "ol") and self._lists:
            self._lists.pop()
            self._item = ""

    def _in_table(self, table: _Table, tag: str, attributes: Mapping[str, str | None]) -> None:
        if tag in ("tr", "td", "th"):
            self._end_cell(table)
            if tag == "tr" or not table.rows:
                table.begin_row()
            if tag != "tr":
                table.open = _count(attributes.get("colspan"), 1), _count(attributes.get("rowspan"), 1)
        elif tag in _BLOCKS:
            self._text.append("\n")  # paragraphs of a cell are words apart
        else:
            self._begin_inline(tag, attributes)

    def _end_cell(self, table: _Table) -> None:
        """Close the open cell, whose end tag is optional."""
        self._end_link()
        text = self._take_text()
        if table.open is None and not table.rows:
            table.titles += [text] if text.strip() else []
        elif table.open is not None or text.strip():
            table.add(text)

    def _finish_table(self) -> None:
        table, self._table = self._table, None
        if table is None:
            return
        self._end_cell(table)
        pairs = zip(table.rows, table.alone, strict=True)
        rows = full_rows([spread(row[0], len(row), alone=True) if alone else row for row, alone in pairs])
        blocks = [Block("prose", " ".join(title.split())) for title in table.titles]
        blocks += blocks_of_table(rows) if rows else []
        if blocks:
            self._add(*blocks)

    def _leave_layout(self) -> None:
        """Close a table with headings or tables inside: it serves layout, so its cells are read one by one."""
        if self._table is None:
            return
        self._end_link()
        text = self._take_text()
        self._table.open = None
        self._finish_table()
        self._text.append(text)

    def _is_hidden(self, tag: str, attributes: Mapping[str, str | None]) -> bool:
        """Return whether a tag is inside a hidden element or begins one."""
        name, depth = self._hidden
        if depth and name in _OPEN_ENDED and tag in _BLOCKS:
            self._hidden = "", 0
        elif depth:
            self._hidden = name, depth + (tag == name)
            return True
        if tag in _VOID or not ("hidden" in attributes or _NOT_SHOWN.search(attributes.get("style") or "")):
            return False
        self._hidden = tag, 1
        self.hidden += 1
        return True

    def _end_hidden(self, tag: str) -> None:
        name, depth = self._hidden
        self._hidden = name, depth - (tag == name)


def _count(text: str | None, default: int) -> int:
    digits = (text or "").strip()
    if not digits.isdecimal():
        return default
    # Python refuses to convert more than 4 300 digits. Nine of them are more than the limit already.
    return min(max(int(digits.lstrip("0")[:9] or 0), 1), MAX_SPAN)
