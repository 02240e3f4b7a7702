"""DOCX to blocks: headings by style or outline level, lists, tables, notes and text boxes in reading order.

What a reader of the printed page sees is read: insertions under review are, deletions and hidden text are not. The
XML is walked here, since python-docx passes over content controls, insertions, notes and text boxes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import docx
from docx.oxml import parse_xml
from docx.oxml.ns import qn

from mcp_servers.retriever.document import Block, ParsedDocument, ParseLimits, heading, row_groups
from mcp_servers.retriever.formats.package import check_package, package_date

MAX_NESTING = 16
"""Of text boxes and tables in each other; what lies deeper is left out."""

_HEADING = re.compile(r"heading ([1-9])", re.IGNORECASE)
_BULLETS = re.compile(r"List\b.*?(\d?)")

_MATH_TEXT = "{http://schemas.openxmlformats.org/officeDocument/2006/math}t"
_ALTERNATIVES = "{http://schemas.openxmlformats.org/markup-compatibility/2006}AlternateContent"
_TEXTS = {qn("w:t"), _MATH_TEXT}
_LITERALS = {qn("w:tab"): "\t", qn("w:br"): "\n", qn("w:cr"): "\n", qn("w:noBreakHyphen"): "-"}
_SKIPPED = {qn(f"w:{name}") for name in ("del", "moveFrom", "pPr", "rPr", "instrText", "rt", "sdtPr", "tblPr", "trPr")}
_NOTES = {qn("w:footnoteReference"): "footnotes", qn("w:endnoteReference"): "endnotes"}
_BOX = qn("w:txbxContent")


def read_docx(path: Path, limits: ParseLimits) -> ParsedDocument:
    check_package(path, limits)
    document = docx.Document(str(path))
    reader = _Reader(_styles(document), _notes(document))
    return ParsedDocument(tuple(_joined_lists(reader.blocks(document.element.body))), date=package_date(path))


@dataclass(frozen=True, slots=True)
class _Style:
    """``level`` 1.. of a heading, 0 of other text; ``depth`` 0.. of a list item, None of other text."""

    level: int = 0
    depth: int | None = None


@dataclass(slots=True)
class _Inline:
    """The text of a paragraph, and what is shown beside it: notes and text boxes."""

    text: list[str] = field(default_factory=list)
    beside: list[Any] = field(default_factory=list)


class _Reader:
    """Walks a document's body. ``notes`` are footnotes and endnotes by kind and id."""

    def __init__(self, styles: dict[str, _Style], notes: dict[tuple[str, str], Any]) -> None:
        self._styles = styles
        self._notes = notes
        self._nesting = 0

    def blocks(self, parent: Any) -> Iterator[Block]:
        """Blocks of everything below an element, in order; containers of all kinds are seen through."""
        if self._nesting >= MAX_NESTING:
            return
        self._nesting += 1
        for child in parent:
            if child.tag == qn("w:p"):
                yield from self._paragraph(child)
            elif child.tag == qn("w:tbl"):
                yield from self._table(child)
            elif child.tag == _ALTERNATIVES:
                yield from self.blocks(child[:1])
            elif child.tag not in _SKIPPED and isinstance(child.tag, str):
                yield from self.blocks(child)
        self._nesting -= 1

    def _paragraph(self, element: Any) -> Iterator[Block]:
        inline = _Inline()
        self._collect(element, inline)
        text = "".join(inline.text).strip()
        style = self._style(element)
        if text and style.level:
            yield heading(text, style.level)
        elif text and style.depth is not None:
            yield Block("list", f"{'  ' * style.depth}- {' '.join(text.split())}")
        elif text:
            yield Block("prose", text)
        for beside in inline.beside:
            yield from self.blocks(beside)

    def _style(self, element: Any) -> _Style:
        """A paragraph's own words about itself, else those of its style."""
        properties = element.find(qn("w:pPr"))
        if properties is None:
            return self._styles.get("", _Style())
        named = _value(properties.find(qn("w:pStyle")), "")
        style = self._styles.get(named, _Style())
        level = _number(properties.find(qn("w:outlineLvl")), -1)
        depth = _depth(properties)
        return _Style(level + 2 if 0 <= level < 9 else style.level, style.depth if depth is None else depth)

    def _collect(self, element: Any, into: _Inline) -> None:
        for child in element:
            tag = child.tag
            if tag in _TEXTS:
                into.text.append(child.text or "")
            elif tag in _LITERALS:
                into.text.append(_LITERALS[tag])
            elif tag in _NOTES:
                note = self._notes.get((_NOTES[tag], child.get(qn("w:id"), "")))
                into.beside += [note] if note is not None else []
            elif tag == _BOX:
                into.beside.append(child)
            elif tag == _ALTERNATIVES:
                # The same shape in a new and an old form: one of them is shown.
                self._collect(child[:1], into)
            elif tag not in _SKIPPED and isinstance(tag, str) and not (tag == qn("w:r") and _is_hidden(child)):
                self._collect(child, into)

    def _table(self, element: Any) -> Iterator[Block]:
        rows: list[list[str]] = []
        above: dict[int, str] = {}
        for row in _below(element, qn("w:tr")):
            cells: list[str] = []
            column = 0
            for cell in _below(row, qn("w:tc")):
                properties = cell.find(qn("w:tcPr"))
                merged = None if properties is None else properties.find(qn("w:vMerge"))
                goes_on = merged is not None and merged.get(qn("w:val"), "continue") == "continue"
                text = above.get(column, "") if goes_on else self._cell(cell)
                cells.append(text)
                above[column] = text
                column += 1 if properties is None else max(1, _number(properties.find(qn("w:gridSpan")), 1))
            rows.append(cells)
        rows = [row for row in rows if any(cell.strip() for cell in row)]
        if rows:
            yield from (Block("table", text) for _, _, text in row_groups(rows))

    def _cell(self, cell: Any) -> str:
        """All text of a cell; rows of a table inside it are lines."""
        return "\n".join(block.text for block in self.blocks(cell))


def _styles(document: Any) -> dict[str, _Style]:
    """What the document's paragraph styles mean, by id; the one of "" is the default's."""
    elements = {
        style.style_id: style.element for style in document.styles if style.element.get(qn("w:type")) == "paragraph"
    }
    found = {ident: _meaning(element, elements) for ident, element in elements.items()}
    default = next((ident for ident, element in elements.items() if element.get(qn("w:default")) in ("1", "true")), "")
    return {**found, "": found.get(default, _Style())}


def _meaning(element: Any, elements: dict[str, Any]) -> _Style:
    """A style is what it says, or what the style that it is based on says."""
    seen: list[Any] = []
    while element is not None and element not in seen:
        seen.append(element)
        name = _value(element.find(qn("w:name")), "")
        properties = element.find(qn("w:pPr"))
        level = -1 if properties is None else _number(properties.find(qn("w:outlineLvl")), -1)
        depth = None if properties is None else _depth(properties)
        if found := _HEADING.fullmatch(name):
            # "Title" is the level above: a document's parts stand below its name.
            return _Style(int(found[1]) + 1)
        if name.casefold() == "title":
            return _Style(1)
        if 0 <= level < 9:
            return _Style(level + 2)
        if listed := _BULLETS.fullmatch(name):
            return _Style(0, max(int(listed[1] or 1) - 1, 0))
        if depth is not None:
            return _Style(0, depth)
        element = elements.get(_value(element.find(qn("w:basedOn")), ""))
    return _Style()


def _depth(properties: Any) -> int | None:
    """The depth that a numbering gives; number 0 takes an inherited one away, which is rare enough to be a text."""
    numbering = properties.find(qn("w:numPr"))
    if numbering is None or _number(numbering.find(qn("w:numId")), 1) == 0:
        return None
    return min(max(_number(numbering.find(qn("w:ilvl")), 0), 0), 8)


def _notes(document: Any) -> dict[tuple[str, str], Any]:
    found: dict[tuple[str, str], Any] = {}
    for relation in document.part.rels.values():
        kind = relation.reltype.rsplit("/", 1)[-1]
        if kind in _NOTES.values() and not relation.is_external:
            for note in parse_xml(relation.target_part.blob):
                found[kind, note.get(qn("w:id"), "")] = note
    return found


def _below(element: Any, tag: str) -> Iterator[Any]:
    """The nearest elements of a kind, also inside content controls and insertions."""
    for child in element:
        if child.tag == tag:
            yield child
        elif child.tag not in _SKIPPED and isinstance(child.tag, str):
            yield from _below(child, tag)


def _is_hidden(run: Any) -> bool:
    properties = run.find(qn("w:rPr"))
    hidden = None if properties is None else properties.find(qn("w:vanish"))
    return hidden is not None and hidden.get(qn("w:val"), "1") not in ("0", "false", "off")


def _value(element: Any, default: str) -> str:
    return default if element is None else str(element.get(qn("w:val"), default))


def _number(element: Any, default: int) -> int:
    text = _value(element, "")
    return int(text) if text.lstrip("-").isdigit() else default


def _joined_lists(blocks: Iterator[Block]) -> Iterator[Block]:
    for is_list, run in groupby(blocks, key=lambda block: block.kind == "list"):
        if is_list:
            yield Block("list", "\n".join(block.text for block in run))
        else:
            yield from run
