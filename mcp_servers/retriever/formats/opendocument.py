"""OpenDocument to blocks: texts (.odt), spreadsheets (.ods) and presentations (.odp).

The reader returns the text of the printed page, with automatic numbers, notes, headers and footers. Comments and
descriptions of pictures are labelled. Tracked deletions, hidden sheets and embedded objects get a note.
Source: OASIS OpenDocument 1.3, part 3.
"""

import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lxml import etree

from mcp_servers.retriever.document import (
    Block,
    ParsedDocument,
    ParseLimits,
    blocks_of_table,
    full_rows,
    heading,
    spread,
)
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats.dates import latest_date
from mcp_servers.retriever.formats.drawing import local
from mcp_servers.retriever.formats.formulas import formula_text
from mcp_servers.retriever.formats.numbering import show_count
from mcp_servers.retriever.formats.package import (
    DAMAGED_MEMBER,
    Parts,
    check_prologues,
    open_zip,
    parse_xml,
    read_integer,
    unread_parts,
)
from mcp_servers.retriever.formats.sheets import Merge, repeat_merged, sheet_row, table_blocks
from mcp_servers.retriever.formats.text import to_superscript, with_address

_NO_DOCUMENT = "the file is not an OpenDocument file, or it is damaged"
_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
_DRAW = "{urn:oasis:names:tc:opendocument:xmlns:drawing:1.0}"
_STYLE = "{urn:oasis:names:tc:opendocument:xmlns:style:1.0}"
_PRESENTATION = "{urn:oasis:names:tc:opendocument:xmlns:presentation:1.0}"
_FORM = "{urn:oasis:names:tc:opendocument:xmlns:form:1.0}"
_XLINK = "{http://www.w3.org/1999/xlink}"
_SVG = "{urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0}"
_KINDS = {"1": "decimal", "a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}
_UNREAD = {
    "tracked-changes": "tracked deletions were not read: {}",
    "ruby-text": "readings beside characters (ruby) were not read: {}",
    "forms": "form controls were not read: {}",
    "scripts": "macros were not read: {}",
    "event-listeners": "",
    "content-validations": "data validations (rules for the input of cells) were not read: {}",
    "named-expressions": "defined names were not read: {}",
    "database-ranges": "",
    "data-pilot-tables": "",
    "calculation-settings": "",
    "sequence-decls": "",
    "variable-decls": "",
    "user-field-decls": "",
    "note-citation": "",
    "page-number": "",
    "page-count": "",
    "list-header-mark": "",
    "desc": "",
    "title": "",
}
_COUNTED = {"tracked-changes": "deletion", "content-validations": "content-validation"}
"""Elements for which only children of one kind are counted; for others, every child."""
MAX_NESTING = 64
MAX_COLUMN = 16_384
MAX_LEVELS = 10
"""Levels of lists and headings in the format."""
MAX_REPEATED_ROWS = 10_000
"""Maximum number of repetitions of a row with text: an author may fill a column to the end of the sheet."""


def read_odt(path: Path, limits: ParseLimits) -> ParsedDocument:
    return _read(path, limits, "text")


def read_ods(path: Path, limits: ParseLimits) -> ParsedDocument:
    return _read(path, limits, "spreadsheet")


def read_odp(path: Path, limits: ParseLimits) -> ParsedDocument:
    return _read(path, limits, "presentation")


def _read(path: Path, limits: ParseLimits, kind: str) -> ParsedDocument:
    with path.open("rb") as file, open_zip(file, limits, _NO_DOCUMENT) as archive:
        names = archive.NameToInfo
        try:
            if "META-INF/manifest.xml" in names and b"encryption-data" in archive.read("META-INF/manifest.xml"):
                raise DocumentError("DOCUMENT_ENCRYPTED", "the file is protected by a password")
            check_prologues(archive, (".xml",))
            content = parse_xml(archive.read("content.xml"))
            styles, meta = _read_optional(archive, "styles.xml"), _read_optional(archive, "meta.xml")
        except (KeyError, etree.XMLSyntaxError, *DAMAGED_MEMBER) as exc:
            raise DocumentError("DOCUMENT_BROKEN", _NO_DOCUMENT) from exc
        body = content.find(f"{_OFFICE}body/{_OFFICE}{kind}")
        if body is None:
            raise DocumentError("DOCUMENT_BROKEN", _NO_DOCUMENT)
        parts = Parts(archive)
        parts.mark_read("content.xml", "styles.xml")
        reader = _OpenDocumentReader(content, styles, parts, limits)
        pages = None
        if kind == "spreadsheet":
            blocks = list(reader.sheets(body))
        elif kind == "presentation":
            slides = list(body.iter(f"{_DRAW}page"))
            if len(slides) > limits.max_pages:
                message = f"the presentation has {len(slides)} slides; the limit is {limits.max_pages}"
                raise DocumentError("DOCUMENT_TOO_LARGE", message)
            blocks, pages = list(reader.slides(slides)), len(slides)
        else:
            blocks = [*reader.margins(), *reader.blocks(body)]
        lost = [name for name, part in (("styles.xml", styles), ("meta.xml", meta)) if part is None and name in names]
        notes = [f"incomplete: damaged parts of the file were not read: {', '.join(lost)}"] if lost else []
        notes += [*reader.notes(), *unread_parts(path, parts)]
    dates = () if meta is None else meta.iter("{*}creation-date", "{http://purl.org/dc/elements/1.1/}date")
    date = latest_date(*(element.text or "" for element in dates))
    return ParsedDocument(tuple(_join_lists(blocks)), pages, notes=tuple(notes), date=date)


def _read_optional(archive: zipfile.ZipFile, name: str) -> Any:
    """Return the root of a part without which the others can be read, or None if it is missing or damaged."""
    try:
        return parse_xml(archive.read(name)) if name in archive.NameToInfo else None
    except (etree.XMLSyntaxError, *DAMAGED_MEMBER):
        return None


@dataclass(frozen=True, slots=True)
class _Level:
    """A level of a list: the format of its numbers, or a mark instead of numbers."""

    kind: str = "bullet"
    prefix: str = ""
    suffix: str = ""
    start: int = 1
    shown: int = 1


@dataclass(slots=True)
class _List:
    """An open list: its levels, and the count of each."""

    levels: dict[int, _Level]
    counts: dict[int, int] = field(default_factory=dict)

    def number(self, depth: int, start: str | None) -> str:
        """Count an item and return its number with a space, or a hyphen."""
        level = self.levels.get(depth, _Level())
        self.counts[depth] = read_integer(start, self.counts.get(depth, level.start - 1) + 1)
        for deeper in [other for other in self.counts if other > depth]:
            del self.counts[deeper]
        if level.kind == "bullet":
            return "- "
        first = max(depth - level.shown + 1, 0)
        numbers = [self._show(at) for at in range(first, depth + 1)]
        text = f"{level.prefix}{'.'.join(filter(None, numbers))}{level.suffix}".strip()
        return f"{text} " if text else ""

    def _show(self, depth: int) -> str:
        level = self.levels.get(depth, _Level())
        return (
            show_count(self.counts.get(depth, level.start), level.kind) if level.kind not in ("bullet", "none") else ""
        )


class _OpenDocumentReader:
    """Walks the content of a document."""

    def __init__(self, content: Any, styles: Any, parts: Parts, limits: ParseLimits) -> None:
        self._styles = styles
        self._parts = parts
        self._limits = limits
        self._unread: Counter[str] = Counter()
        self._extra_notes: dict[str, None] = {}
        self._nesting = 0
        self._beside: list[Any] = []
        roots = [content, *([styles] if styles is not None else [])]
        self._lists = {
            style.get(f"{_STYLE}name", ""): dict(_levels(style))
            for root in roots
            for style in root.iter(f"{_TEXT}list-style")
        }
        outline = next((style for root in roots for style in root.iter(f"{_TEXT}outline-style")), None)
        self._outline = _List({} if outline is None else dict(_levels(outline)))
        self._open_lists: dict[str, _List] = {}
        text_styles = [
            (style.get(f"{_STYLE}name", ""), properties)
            for root in roots
            for style in root.iter(f"{_STYLE}style")
            for properties in style.iter(f"{_STYLE}text-properties")
        ]
        self._raised_styles = {
            name
            for name, properties in text_styles
            if re.match(r"super|[1-9]", properties.get(f"{_STYLE}text-position", ""))
        }
        self._hidden_styles = {
            name for name, properties in text_styles if properties.get(f"{_TEXT}display") in ("none", "condition")
        }
        self._hidden_tables = {
            style.get(f"{_STYLE}name", "")
            for style in content.iter(f"{_STYLE}style")
            for properties in style.iter(f"{_STYLE}table-properties")
            if properties.get(f"{_TABLE}display") == "false"
        }

    def notes(self) -> Iterator[str]:
        """Yield notes on unread contents with their counts."""
        yield from (note.format(count) for note, count in self._unread.items() if count and note)
        yield from self._extra_notes

    def margins(self) -> Iterator[Block]:
        """Yield each distinct header and footer of the page styles once."""
        shown_texts: set[str] = set()
        for name in ("header", "footer"):
            for root in (
                ()
                if self._styles is None
                else self._styles.iter(f"{_STYLE}{name}", f"{_STYLE}{name}-left", f"{_STYLE}{name}-first")
            ):
                for block in self.blocks(root):
                    words = block.text.strip(" -–|/")
                    if words.lower() not in ("", "page", "seite", "page of") and words not in shown_texts:
                        shown_texts.add(words)
                        yield Block("prose" if block.kind == "heading" else block.kind, words)

    def blocks(self, parent: Any, depth: int = -1, items: _List | None = None) -> Iterator[Block]:
        """Yield the blocks of everything below an element, in order, including the contents of containers."""
        if self._nesting >= MAX_NESTING:
            self._extra_notes[f"parts deeper than {MAX_NESTING} in each other were not read"] = None
            return
        self._nesting += 1
        for child in parent:
            name = local(child)
            if child.tag in (f"{_TEXT}p", f"{_TEXT}h"):
                yield from self._paragraph(child)
            elif child.tag == f"{_TEXT}list":
                yield from self._list(child, depth + 1, items)
            elif child.tag == f"{_TABLE}table":
                yield from self._table(child)
            elif child.tag in (f"{_DRAW}frame", f"{_DRAW}custom-shape", f"{_DRAW}g", f"{_DRAW}rect", f"{_DRAW}control"):
                yield from self._shape(child)
            elif child.tag == f"{_OFFICE}annotation":
                yield from self._annotation(child)
            # `text:title` is a field with text; the other titles describe pictures, and `_shape` reads them.
            elif name in _UNREAD and child.tag != f"{_TEXT}title":
                self._count(child, name)
            elif name:
                yield from self.blocks(child, depth, items)
        self._nesting -= 1

    def _count(self, element: Any, name: str) -> None:
        kind = _COUNTED.get(name)
        children = (
            [descendant for descendant in element.iter() if local(descendant) == kind]
            if kind
            else list(element) or [element]
        )
        self._unread[_UNREAD[name]] += len(children)

    def _paragraph(self, element: Any) -> Iterator[Block]:
        before, self._beside = self._beside, []
        text = self._inline(element).strip()
        beside, self._beside = self._beside, before
        if text and element.tag == f"{_TEXT}h":
            level = _count(element, f"{_TEXT}outline-level", MAX_LEVELS)
            number = self._outline.number(level - 1, element.get(f"{_TEXT}start-value")) if self._outline.levels else ""
            is_numbered = number and number != "- " and element.get(f"{_TEXT}is-list-header") != "true"
            yield heading(f"{number if is_numbered else ''}{text}", level)
        elif text:
            yield Block("prose", text)
        # What is anchored in a paragraph follows it: in its middle it would divide a sentence.
        for anchored in beside:
            if anchored.tag == f"{_OFFICE}annotation":
                yield from self._annotation(anchored)
            elif anchored.tag == f"{_TEXT}note-body":
                yield from self.blocks(anchored)
            else:
                yield from self._shape(anchored)

    def _annotation(self, element: Any) -> Iterator[Block]:
        author = "".join((creator.text or "") for creator in element.iter("{http://purl.org/dc/elements/1.1/}creator"))[
            :80
        ]
        words = " ".join(self._inline(paragraph) for paragraph in element.iter(f"{_TEXT}p"))
        if words.strip():
            yield Block("prose", f"Comment{f' by {author}' if author else ''}: {' '.join(words.split())}")

    def _inline(self, element: Any) -> str:
        pieces = [element.text or ""]
        for child in element:
            name = local(child)
            if child.tag == f"{_TEXT}s":
                pieces.append(" " * _count(child, f"{_TEXT}c", 100))
            elif child.tag == f"{_TEXT}tab":
                pieces.append("\t")
            elif child.tag == f"{_TEXT}line-break":
                pieces.append("\n")
            elif child.tag == f"{_TEXT}a":
                pieces.append(with_address(self._inline(child), child.get(f"{_XLINK}href")))
            elif child.tag == f"{_TEXT}note":
                self._beside += child.iter(f"{_TEXT}note-body")
            # Without a name, the child is a comment or an instruction, whose tag is no text.
            elif name and (child.tag == f"{_OFFICE}annotation" or child.tag.startswith(_DRAW)):
                self._beside.append(child)
            elif child.tag in (f"{_TEXT}p", f"{_TEXT}h"):
                pieces.append(f" {self._inline(child)} ")
            elif self._is_hidden(child):
                self._unread["hidden texts were not read: {}"] += bool("".join(child.itertext()).strip())
            elif name in _UNREAD and child.tag != f"{_TEXT}title":
                self._count(child, name) if _UNREAD[name] else None
            elif name:
                text = self._inline(child)
                pieces.append(to_superscript(text) if child.get(f"{_TEXT}style-name") in self._raised_styles else text)
            pieces.append(child.tail or "")
        return "".join(pieces)

    def _is_hidden(self, element: Any) -> bool:
        if element.tag in (f"{_TEXT}hidden-text", f"{_TEXT}hidden-paragraph"):
            return True
        return element.get(f"{_TEXT}style-name") in self._hidden_styles

    def _list(self, element: Any, depth: int, items: _List | None) -> Iterator[Block]:
        style = element.get(f"{_TEXT}style-name", "")
        if items is None:
            goes_on = element.get(f"{_TEXT}continue-numbering") == "true" or element.get(f"{_TEXT}continue-list")
            if not (goes_on and style in self._open_lists):
                self._open_lists[style] = _List(self._lists.get(style, {}))
            items = self._open_lists[style]
        elif style and style in self._lists and style not in self._open_lists:
            items = _List(self._lists[style], items.counts)
        for item in element:
            mark = ""
            if item.tag == f"{_TEXT}list-item":
                first = next((child for child in item if local(child)), None)
                # An item that begins with a deeper list has no separate number.
                if first is None or first.tag != f"{_TEXT}list":
                    mark = items.number(depth, item.get(f"{_TEXT}start-value"))
            indentation = "  " * min(depth, 8)
            for block in self.blocks(item, depth, items):
                if block.kind == "prose":
                    line = " ".join(block.text.split())
                    yield Block("list", f"{indentation}{mark or '  '}{line}")
                    mark = ""
                else:
                    yield block

    def _shape(self, shape: Any) -> Iterator[Block]:
        """Yield the text of a frame or shape, its table, its chart, and its description."""
        for child in shape:
            if child.tag in (f"{_DRAW}text-box", f"{_DRAW}image"):
                yield from self.blocks(child)
            elif child.tag == f"{_TABLE}table":
                yield from self._table(child)
            elif child.tag == f"{_DRAW}object":
                yield from self._object(child)
        if shape.tag != f"{_DRAW}frame":
            yield from self.blocks(shape)
        for name in ("desc", "title"):
            words = " ".join((child.text or "") for child in shape if child.tag == f"{_SVG}{name}").strip()
            if words:
                yield Block("prose", f"Picture: {' '.join(words.split())}")
                break

    def _object(self, element: Any) -> Iterator[Block]:
        """Yield the table of an embedded chart; other objects get a note."""
        place = element.get(f"{_XLINK}href", "").removeprefix("./").rstrip("/")
        root = self._parts.xml(f"{place}/content.xml") if place else None
        chart = None if root is None else next(root.iter("{*}chart"), None)
        self._parts.mark_read(f"{place}/styles.xml", f"{place}/meta.xml")
        if root is None:
            self._unread["embedded objects were not read: {}"] += 1
            return
        if local(root) == "math":
            yield Block("prose", formula_text(root))
            return
        if chart is not None:
            titles = [" ".join("".join(title.itertext()).split()) for title in chart.iter("{*}title", "{*}subtitle")]
            if any(titles):
                yield Block("list", "\n".join(filter(None, titles)))
            # In the cells of its table, a chart names the cells of the sheet from which its numbers come.
            for place in list(chart.iter(f"{_DRAW}g")):
                place.getparent().remove(place)
        for table in root.iter(f"{_TABLE}table"):
            yield from self._table(table)
        if chart is None:
            body = root.find(f"{_OFFICE}body")
            yield from () if body is None else self.blocks(body)

    def _table(self, element: Any) -> Iterator[Block]:
        rows: list[list[str]] = []
        above: dict[int, tuple[int, str]] = {}
        room = self._limits.max_characters
        for row in element.iter(f"{_TABLE}table-row"):
            owner = next(ancestor for ancestor in row.iterancestors() if ancestor.tag == f"{_TABLE}table")
            # `iter` also yields the rows of tables in cells, which `_cell` reads.
            if owner is not element:
                continue
            cells: list[str] = []
            own = [child for child in row if child.tag in (f"{_TABLE}table-cell", f"{_TABLE}covered-table-cell")]
            alone = len([cell for cell in own if cell.tag == f"{_TABLE}table-cell"]) == 1
            for cell in own:
                column = len(cells)
                if cell.tag == f"{_TABLE}covered-table-cell":
                    left, text = above.get(column, (0, ""))
                    above[column] = (left - 1, text)
                    if left > 0:
                        cells.append(text)
                    continue
                text = self._cell(cell)
                span = _count(cell, f"{_TABLE}number-columns-spanned", 1_000)
                repeated = _count(cell, f"{_TABLE}number-columns-repeated", 1_000 if text else 64)
                down = _count(cell, f"{_TABLE}number-rows-spanned", 100_000) - 1
                for at in range(column, column + span):
                    above[at] = (down, text)
                cells += spread(text, span, alone=alone) if span > 1 else [text] * repeated
            room -= sum(map(len, cells))
            if room < 0:
                raise DocumentError("DOCUMENT_TOO_LARGE", "the tables hold more characters than can be read")
            rows.append(cells)
        rows = _without_empty_end(full_rows(rows))
        if rows:
            yield from blocks_of_table(rows)

    def _cell(self, cell: Any) -> str:
        texts = [
            block.text.replace(" | ", " / ").replace("\n", "; ") if block.kind == "table" else block.text
            for block in self.blocks(cell)
        ]
        return "\n".join(texts)

    def sheets(self, body: Any) -> Iterator[Block]:
        """Yield the blocks of each visible sheet."""
        room = self._limits.max_characters
        for child in body:
            if child.tag != f"{_TABLE}table":
                if local(child) in _UNREAD:
                    self._count(child, local(child))
                continue
            title = child.get(f"{_TABLE}name", "")
            if child.get(f"{_TABLE}style-name", "") in self._hidden_tables:
                self._unread["hidden sheets were not read: {}"] += 1
                continue
            rows: dict[int, dict[int, str]] = {}
            merges: list[Merge] = []
            beside: list[Block] = []
            number = 1
            for row in child.iter(f"{_TABLE}table-row"):
                count = _count(row, f"{_TABLE}number-rows-repeated", 1 << 21)
                cells = self._sheet_row(row, number, merges, beside)
                if cells and row.get(f"{_TABLE}visibility") in ("collapse", "filter"):
                    self._unread["hidden rows were read too: {}"] += 1
                for at in range(number, number + min(count, MAX_REPEATED_ROWS)) if cells else ():
                    rows[at] = cells
                    room -= sum(map(len, cells.values()))
                    if room < 0:
                        raise DocumentError("DOCUMENT_TOO_LARGE", "the sheets hold more characters than can be read")
                if cells and count > MAX_REPEATED_ROWS:
                    self._extra_notes[f"rows that are alike were read {MAX_REPEATED_ROWS} times at most"] = None
                number += count
            filled, unrepeated = repeat_merged([sheet_row(at, cells) for at, cells in rows.items()], merges)
            if unrepeated:
                self._unread["merged cells whose value stands in their first cell only: {}"] += unrepeated
            for shapes in child.iter(f"{_TABLE}shapes"):
                beside += self.blocks(shapes)
            shown = list(table_blocks(filled, title))
            yield from shown if shown or not beside else [heading(title, 1)]
            yield from beside

    def _sheet_row(self, row: Any, number: int, merges: list[Merge], beside: list[Block]) -> dict[int, str]:
        cells: dict[int, str] = {}
        column = 0
        for cell in row:
            if cell.tag not in (f"{_TABLE}table-cell", f"{_TABLE}covered-table-cell"):
                continue
            lines = [self._inline(paragraph) for paragraph in cell if paragraph.tag in (f"{_TEXT}p", f"{_TEXT}h")]
            for child in cell:
                if child.tag == f"{_OFFICE}annotation":
                    beside += self._annotation(child)
                elif child.tag.startswith(_DRAW) if isinstance(child.tag, str) else False:
                    beside += self._shape(child)
            beside += [block for shape in self._beside for block in self._shape(shape)]
            self._beside.clear()
            text = "\n".join(lines).strip() or (cell.get(f"{_OFFICE}value") or cell.get(f"{_OFFICE}string-value") or "")
            if not text and cell.get(f"{_TABLE}formula"):
                self._unread["formulas without a value: {}; open the file in a spreadsheet program and save it"] += 1
                text = "=" + cell.get(f"{_TABLE}formula", "").partition("=")[2]
            repeated = _count(cell, f"{_TABLE}number-columns-repeated", MAX_COLUMN)
            across = _count(cell, f"{_TABLE}number-columns-spanned", MAX_COLUMN)
            down = _count(cell, f"{_TABLE}number-rows-spanned", 1 << 21)
            if text and (across > 1 or down > 1):
                merges.append(Merge(number, number + down - 1, column, column + across - 1))
            for at in range(column, min(column + repeated, MAX_COLUMN)) if text else ():
                cells[at] = text
            column += repeated
        return cells

    def slides(self, slides: list[Any]) -> Iterator[Block]:
        """Yield the blocks of each slide: its title as a heading, its shapes from top to bottom, then its notes."""
        for page, slide in enumerate(slides, 1):
            shapes = [child for child in slide if isinstance(child.tag, str)]
            title = next((shape for shape in shapes if shape.get(f"{_PRESENTATION}class") == "title"), None)
            words = "" if title is None else " ".join(" ".join(block.text.split()) for block in self._shape(title))
            blocks: list[Block] = []
            placed = [shape for shape in shapes if shape is not title and shape.tag != f"{_PRESENTATION}notes"]
            for shape in sorted(
                placed, key=lambda item: (_length(item.get(f"{_SVG}y")), _length(item.get(f"{_SVG}x")))
            ):
                blocks += self._shape(shape) if shape.tag.startswith(_DRAW) else self.blocks([shape])
            for notes in slide.iter(f"{_PRESENTATION}notes"):
                blocks += self.blocks(notes)
            if words or blocks:
                yield heading(words or f"Slide {page}", 1, page)
            for block in blocks:
                kind = "list" if block.kind == "heading" else block.kind
                yield Block(kind, block.text, page=page)


def _levels(style: Any) -> Iterator[tuple[int, _Level]]:
    for element in style:
        name = local(element)
        if not name.startswith(("list-level-style-", "outline-level-style")):
            continue
        depth = _count(element, f"{_TEXT}level", MAX_LEVELS) - 1
        code = element.get(f"{_STYLE}num-format")
        kind = (
            "bullet"
            if name.endswith(("bullet", "image"))
            else _KINDS.get(code or "", "none" if not code else "decimal")
        )
        yield (
            depth,
            _Level(
                kind,
                element.get(f"{_STYLE}num-prefix", ""),
                element.get(f"{_STYLE}num-suffix", ""),
                read_integer(element.get(f"{_TEXT}start-value"), 1),
                _count(element, f"{_TEXT}display-levels", MAX_LEVELS),
            ),
        )


def _count(element: Any, name: str, most: int) -> int:
    """Return an attribute as a number from 1 to ``most``; 1 if it is missing or none."""
    return min(max(read_integer(element.get(name), 1), 1), most)


def _without_empty_end(rows: list[list[str]]) -> list[list[str]]:
    """Return rows without columns at the right end that are empty in all of them."""
    width = max((at + 1 for row in rows for at, cell in enumerate(row) if cell.strip()), default=0)
    return [row[:width] for row in rows]


_INCHES = {"cm": 2.54, "mm": 25.4, "in": 1.0, "pt": 72.0, "pc": 6.0, "px": 96.0}


def _length(text: str | None) -> float:
    """Return a length in inches, rounded to a twentieth of a page, so that shapes side by side are level."""
    for unit, per_inch in _INCHES.items():
        if text and text.endswith(unit):
            try:
                return round(float(text.removesuffix(unit)) / per_inch * 4) / 4
            except ValueError:
                return -1.0
    return -1.0


def _join_lists(blocks: list[Block]) -> Iterator[Block]:
    """Yield the blocks, with adjacent list items on one page joined to one block."""
    lines: list[str] = []
    page: int | None = None
    for block in blocks:
        if lines and (block.kind != "list" or block.page != page):
            yield Block("list", "\n".join(lines), page=page)
            lines = []
        if block.kind == "list":
            lines.append(block.text)
            page = block.page
        else:
            yield block
    if lines:
        yield Block("list", "\n".join(lines), page=page)
