"""DOCX to blocks: headings by style or outline level, lists, tables, notes and text boxes in reading order.

The reader returns the text of the printed page, including automatic numbers, headers, footers and tracked insertions.
Deletions and hidden text are not read, but get a note. Comments and descriptions of pictures are read and labelled.
The module walks the XML, since python-docx ignores content controls, insertions, notes and text boxes.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import docx
from docx.oxml.ns import qn

from mcp_servers.retriever.document import (
    Block,
    Json,
    ParsedDocument,
    ParseLimits,
    blocks_of_table,
    full_rows,
    heading,
    spread,
)
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats.drawing import alt_text, graphic_blocks, local
from mcp_servers.retriever.formats.formulas import formula_text
from mcp_servers.retriever.formats.numbering import Numbering, read_numbering
from mcp_servers.retriever.formats.package import Parts, open_office, package_date, read_integer, unread_parts
from mcp_servers.retriever.formats.symbols import SYMBOL_FONTS, symbol_text
from mcp_servers.retriever.formats.text import strike_out, to_superscript, with_address

MAX_NESTING = 16
"""Maximum number of levels of nested text boxes and tables; deeper ones get a note."""

_HEADING = re.compile(r"heading ([1-9])", re.IGNORECASE)
_BULLETS = re.compile(r"List\b.*?(\d?)")
_LINK_FIELD = re.compile(r'\s*HYPERLINK\s+(?:\\\w\s+)*"([^"]{1,2000})"', re.IGNORECASE)
_PAGE_FIELD = re.compile(r"\s*(?:PAGE|NUMPAGES|SECTIONPAGES)\b", re.IGNORECASE)
_PAGE = "\0"
"""Placeholder for a page number until the paragraph is complete."""
_PAGE_WORDS = re.compile(
    r"(?:\b(?:page|pages|seite|página|pagina|pág\.|strana|страница|стр\.|p\.)\s*|第\s*|[-–|·•/]\s*)?\0"
    r"(?:\s*(?:of|von|de|di|sur|z|из|/|,|，|[页頁]\s*[,，/]?\s*共)\s*\0)?\s*(?:[页頁]|\b(?:pages|seiten)\b)?(?:\s*[-–|])?",
    re.IGNORECASE,
)

_FORMULA = "{http://schemas.openxmlformats.org/officeDocument/2006/math}oMath"
_MATH_TEXT = "{http://schemas.openxmlformats.org/officeDocument/2006/math}t"
_ALTERNATIVES = "{http://schemas.openxmlformats.org/markup-compatibility/2006}AlternateContent"
_W14 = "{http://schemas.microsoft.com/office/word/2010/wordml}"
_TEXTS = {qn("w:t"), _MATH_TEXT}
_LITERALS = {qn("w:tab"): "\t", qn("w:ptab"): "\t", qn("w:br"): "\n", qn("w:cr"): "\n", qn("w:noBreakHyphen"): "-"}
_UNREAD = {
    qn("w:del"): "tracked deletions were not read: {}",
    qn("w:moveFrom"): "tracked deletions were not read: {}",
    qn("w:rt"): "readings beside characters (ruby) were not read: {}",
}
_SKIPPED = {
    *_UNREAD,
    *(qn(f"w:{name}") for name in ("pPr", "rPr", "instrText", "sdtPr", "sdtEndPr", "tblPr", "trPr", "tblGrid")),
    *(qn(f"w:{name}") for name in ("delInstrText", "sectPr", "tcPr", "rubyPr")),
}
_NOTES = {qn("w:footnoteReference"): "footnotes", qn("w:endnoteReference"): "endnotes"}
_BOX = qn("w:txbxContent")
_FRAMES = {qn("wp:inline"), qn("wp:anchor")}
_ON = ("1", "true", "on")
_CHECKED, _UNCHECKED = "☒", "☐"


def read_docx(path: Path, limits: ParseLimits) -> ParsedDocument:
    office = open_office(path, limits)
    with office.open() as stream, ZipFile(stream) as archive:
        document = docx.Document(stream)
        parts = Parts(archive)
        main = str(document.part.partname).lstrip("/")
        reader = _WordReader(main, parts, limits)
        body = list(reader.blocks(document.element.body))
        blocks = [*reader.headers_and_footers(document), *body]
        notes = (*office.notes, *reader.notes(), *unread_parts(path, parts))
    return ParsedDocument(tuple(_join_lists(iter(blocks))), notes=notes, date=package_date(path))


@dataclass(frozen=True, slots=True)
class _Style:
    """The role of a paragraph.

    ``level`` is 1.. for a heading, 0 for other text; ``depth`` is 0.. for a list item, None for other text.
    ``numbering`` and ``counted`` are the id and level of the numbering that counts the paragraph.
    """

    level: int = 0
    depth: int | None = None
    numbering: str = ""
    counted: int = 0


@dataclass(slots=True)
class _Inline:
    """The text of a paragraph, and the notes, comments, pictures and text boxes anchored in it."""

    text: list[str] = field(default_factory=list)
    beside: list[Any] = field(default_factory=list)
    fields: list["_Field"] = field(default_factory=list)


@dataclass(slots=True)
class _Field:
    """An open field: its instruction, and the start of its result in the text of its paragraph."""

    instruction: str = ""
    begin: int | None = None


class _WordReader:
    """Walks a document's parts; a missing or broken part does not affect the others."""

    def __init__(self, main: str, parts: Parts, limits: ParseLimits) -> None:
        self._parts = parts
        self._main = main
        self._part = main
        self._limits = limits
        parts.mark_read(main)
        numbering = self._one(main, "numbering")
        self._numbering = Numbering() if numbering is None else read_numbering(numbering)
        self._styles, self._hidden_styles = _styles(self._one(main, "styles"), self._numbering)
        self._notes = self._by_id("footnotes", "endnotes")
        self._comments = self._by_id("comments")
        self._nesting = 0
        self._in_margin = False
        self._unread: Counter[str] = Counter()
        self._extra_notes: list[str] = []
        self._inline: dict[str, Callable[[Any, _Inline], None]] = {
            qn("w:r"): self._run,
            qn("w:sym"): self._symbol,
            **dict.fromkeys(_NOTES, self._note),
            qn("w:commentReference"): self._comment,
            **dict.fromkeys(_FRAMES, self._frame),
            _BOX: self._box,
            _ALTERNATIVES: self._alternatives,
            **dict.fromkeys((qn("w:hyperlink"), qn("w:fldSimple")), self._link),
            **dict.fromkeys((qn("w:fldChar"), qn("w:instrText")), self._field),
            qn("w:sdt"): self._control,
            _FORMULA: self._formula,
        }

    def _one(self, part: str, kind: str) -> Any:
        return next((self._parts.xml(name) for name in self._parts.related_parts(part, kind)), None)

    def _by_id(self, *kinds: str) -> dict[tuple[str, str], tuple[str, Any]]:
        """Return the notes or comments of the document by kind and id, each with its part."""
        by_id: dict[tuple[str, str], tuple[str, Any]] = {}
        for kind in kinds:
            for name in self._parts.related_parts(self._main, kind):
                root = self._parts.xml(name)
                for note in () if root is None else root:
                    if isinstance(note.tag, str):
                        by_id[kind, note.get(qn("w:id"), "")] = name, note
        return by_id

    def notes(self) -> Iterator[str]:
        """Yield notes on unread contents with their counts."""
        yield from (note.format(count) for note, count in self._unread.items() if count)
        yield from dict.fromkeys(self._extra_notes)

    def headers_and_footers(self, document: Any) -> Iterator[Block]:
        """Yield each distinct header, then each distinct footer, once and without page numbers."""
        settings = self._one(self._main, "settings")
        odd_and_even = settings is not None and _is_on(settings.find(qn("w:evenAndOddHeaders")))
        unused: set[str] = set()
        shown_texts: set[str] = set()
        for kind in ("header", "footer"):
            names: dict[str, None] = {}
            for section in document.element.body.iter(qn("w:sectPr")):
                first = _is_on(section.find(qn("w:titlePg")))
                for reference in section.iter(qn(f"w:{kind}Reference")):
                    relation = self._parts.relations(self._main).get(reference.get(qn("r:id"), ""))
                    used = {"first": first, "even": odd_and_even}.get(reference.get(qn("w:type"), ""), True)
                    if relation is not None and used:
                        names[relation.target] = None
            unused |= {name for name in self._parts.related_parts(self._main, kind) if name not in names}
            for name in names:
                root = self._parts.xml(name)
                if root is not None:
                    for block in self._margin_blocks(name, root):
                        if block.text not in shown_texts:
                            shown_texts.add(block.text)
                            yield block
        for name in unused:
            root = self._parts.xml(name)
            if root is not None and any((element.text or "").strip() for element in root.iter(qn("w:t"))):
                self._unread["headers and footers that no page shows were not read: {}"] += 1

    def _margin_blocks(self, name: str, root: Any) -> Iterator[Block]:
        self._in_margin = True
        yield from self._inside(name, root)
        self._in_margin = False

    def _inside(self, part: str, element: Any) -> Iterator[Block]:
        """Yield the blocks of an element of another part, resolving links by the relations of that part."""
        before, self._part = self._part, part
        yield from self.blocks(element)
        self._part = before

    def blocks(self, parent: Any) -> Iterator[Block]:
        """Yield the blocks of everything below an element, in order, including the contents of containers."""
        if self._nesting >= MAX_NESTING:
            self._extra_notes.append(f"tables and text boxes deeper than {MAX_NESTING} in each other were not read")
            return
        self._nesting += 1
        for child in parent:
            tag = child.tag
            if tag == qn("w:p"):
                yield from self._paragraph(child)
            elif tag == qn("w:tbl"):
                yield from self._table(child)
            elif tag == qn("w:altChunk"):
                yield from self._read_included(child)
            elif tag == _ALTERNATIVES:
                yield from self.blocks(child[:1])
            elif tag in _UNREAD:
                self._count_unread(child)
            elif tag not in _SKIPPED and isinstance(tag, str):
                if tag == qn("w:sdt"):
                    self._count_choices(child)
                yield from self.blocks(child)
        self._nesting -= 1

    def _count_unread(self, element: Any) -> None:
        if any((run.text or "").strip() for run in element.iter(qn("w:t"), qn("w:delText"), _MATH_TEXT)):
            self._unread[_UNREAD[element.tag]] += 1

    def _read_included(self, chunk: Any) -> Iterator[Block]:
        """Yield the blocks of another document that this one includes (altChunk)."""
        # Documents that include others are rare, and the module for mails imports `email` and the HTML reader.
        from mcp_servers.retriever.formats.mail import read_part

        relation = self._parts.relations(self._part).get(chunk.get(qn("r:id"), ""))
        data = None if relation is None or relation.is_external else self._parts.bytes(relation.target)
        if relation is None or data is None:
            self._extra_notes.append("an included document (altChunk) is missing")
            return
        try:
            parsed = read_part(relation.target, data, self._limits)
        except DocumentError as exc:
            self._extra_notes.append(f"the included document {relation.target[:80]} was not read: {exc}")
            return
        self._extra_notes += [f"{relation.target[:80]}: {note}" for note in parsed.notes]
        yield from parsed.blocks

    def _paragraph(self, element: Any) -> Iterator[Block]:
        inline = _Inline()
        self._collect(element, inline)
        text = "".join(inline.text).strip()
        if self._in_margin and _PAGE in text:
            text = _PAGE_WORDS.sub(" ", text).strip(" \t\n-–|·•/")
        text = text.replace(_PAGE, "")
        style = self._style(element)
        number = ""
        # Word counts an empty paragraph too, but not one whose text was deleted under review
        if style.numbering and (text or next(element.iter(*_UNREAD), None) is None):
            number = self._numbering.number(style.numbering, style.counted)
        numbered = f"{number} {text}" if number else text
        if text and style.level:
            yield heading(numbered, style.level)
        elif text and style.depth is not None:
            yield Block("list", f"{'  ' * style.depth}{number or '-'} {' '.join(text.split())}")
        elif text:
            yield Block("prose", text)
        for beside in inline.beside:
            yield from self._beside(beside)

    def _beside(self, beside: Any) -> Iterator[Block]:
        if isinstance(beside, tuple):
            part, element = beside
            if local(element) != "comment":
                yield from self._inside(part, element)
                return
            author = " ".join(element.get(qn("w:author"), "").split())[:80]
            text = " ".join(block.text for block in self._inside(part, element))
            if text.strip():
                yield Block("prose", f"Comment{f' by {author}' if author else ''}: {' '.join(text.split())}")
        elif beside.tag in _FRAMES:
            yield from graphic_blocks(beside, self._parts, self._part)
            if words := alt_text(beside):
                yield Block("prose", f"Picture: {words}")
            for link in beside.iter("{http://schemas.openxmlformats.org/drawingml/2006/main}hlinkClick"):
                relation = self._parts.relations(self._part).get(link.get(qn("r:id"), ""))
                if relation is not None and relation.is_external:
                    yield Block("prose", f"Link: {with_address('', relation.target)}")
        elif beside.tag == _BOX:
            yield from self.blocks(beside)
        else:  # a shape of the older kind
            words = " ".join((beside.get("alt") or "").split())
            yield from [Block("prose", f"Picture: {words}")] if words else []

    def _style(self, element: Any) -> _Style:
        """Return the role of a paragraph by its own properties, else by its style."""
        properties = element.find(qn("w:pPr"))
        if properties is None:
            return self._styles.get("", _Style())
        named = _value(properties.find(qn("w:pStyle")), "")
        style = self._styles.get(named, self._styles.get("", _Style()))
        level = _number(properties.find(qn("w:outlineLvl")), -1)
        own = properties.find(qn("w:numPr"))
        level = level + 2 if 0 <= level < 9 else style.level
        if own is None:
            return replace(style, level=level)
        ident = _value(own.find(qn("w:numId")), style.numbering)
        counted = min(max(_number(own.find(qn("w:ilvl")), style.counted), 0), 8)
        return _Style(level) if ident == "0" else _Style(level, counted, ident, counted)

    def _collect(self, element: Any, into: _Inline) -> None:
        """Collect the text below an element; elements without a rule are replaced by their children."""
        for child in element:
            tag = child.tag
            if tag in _TEXTS:
                into.text.append(child.text or "")
            elif tag in _LITERALS:
                into.text.append(_LITERALS[tag])
            elif tag in self._inline:
                self._inline[tag](child, into)
            elif tag in _UNREAD:
                self._count_unread(child)
            elif tag not in _SKIPPED and isinstance(tag, str):
                self._shape(child, into)
                self._collect(child, into)

    def _note(self, reference: Any, into: _Inline) -> None:
        note = self._notes.get((_NOTES[reference.tag], reference.get(qn("w:id"), "")))
        into.beside += [note] if note is not None else []

    def _comment(self, reference: Any, into: _Inline) -> None:
        comment = self._comments.get(("comments", reference.get(qn("w:id"), "")))
        into.beside += [comment] if comment is not None else []

    def _formula(self, element: Any, into: _Inline) -> None:
        into.text.append(formula_text(element))

    def _frame(self, frame: Any, into: _Inline) -> None:
        into.beside.append(frame)
        self._collect(frame, into)

    def _box(self, box: Any, into: _Inline) -> None:
        into.beside.append(box)

    def _alternatives(self, element: Any, into: _Inline) -> None:
        # The children are the same shape in a new and an old form; Word shows one of them.
        self._collect(element[:1], into)

    def _shape(self, element: Any, into: _Inline) -> None:
        """Collect text in the attributes of an older (VML) shape: its description, a watermark's words."""
        name = local(element)
        if name == "textpath" and (words := (element.get("string") or "").strip()):
            into.text.append(f" {words} ")
        elif name in ("shape", "rect", "group") and (element.get("alt") or "").strip():
            into.beside.append(element)

    def _run(self, run: Any, into: _Inline) -> None:
        properties = run.find(qn("w:rPr"))
        if properties is not None:
            hidden = properties.find(qn("w:vanish"))
            style = _value(properties.find(qn("w:rStyle")), "")
            if _is_on(hidden) or (hidden is None and style in self._hidden_styles):
                shown = "".join(piece.text or "" for piece in run.iter(qn("w:t")))
                self._unread["hidden texts were not read: {}"] += bool(shown.strip())
                return
            fonts = properties.find(qn("w:rFonts"))
            font = "" if fonts is None else fonts.get(qn("w:ascii")) or fonts.get(qn("w:hAnsi")) or ""
            start = len(into.text)
            if font in SYMBOL_FONTS:
                self._collect(run, into)
                into.text[start:] = [
                    "".join(symbol_text(font, ord(char)) or char for char in "".join(into.text[start:]))
                ]
                return
            if _value(properties.find(qn("w:vertAlign")), "") == "superscript":
                self._collect(run, into)
                into.text[start:] = [to_superscript("".join(into.text[start:]))]
                return
            if any(_is_on(properties.find(qn(f"w:{name}"))) for name in ("strike", "dstrike")):
                self._collect(run, into)
                text = strike_out("".join(into.text[start:]))
                if start and into.text[start - 1].endswith("~~") and text.startswith("~~"):
                    text = into.text[start - 1][:-2] + text[2:]  # Word may divide a word into several runs
                    start -= 1
                into.text[start:] = [text]
                return
        self._collect(run, into)

    def _symbol(self, element: Any, into: _Inline) -> None:
        font, code = element.get(qn("w:font"), ""), element.get(qn("w:char"), "")
        text = symbol_text(font, int(code, 16)) if re.fullmatch("[0-9A-Fa-f]{1,6}", code) else ""
        if not text:
            self._unread["symbols of a font were not read: {}"] += 1
        into.text.append(text)

    def _link(self, element: Any, into: _Inline) -> None:
        """Collect a link with its address, or a field with its instruction in one attribute."""
        start = len(into.text)
        self._collect(element, into)
        if element.tag == qn("w:fldSimple"):
            self._finish_field(_Field(element.get(qn("w:instr"), ""), start), into)
            return
        relation = self._parts.relations(self._part).get(element.get(qn("r:id"), ""))
        if relation is not None and relation.is_external:
            into.text[start:] = [with_address("".join(into.text[start:]), relation.target)]

    def _field(self, element: Any, into: _Inline) -> None:
        if element.tag == qn("w:instrText"):
            if into.fields:
                into.fields[-1].instruction += element.text or ""
            return
        kind = element.get(qn("w:fldCharType"))
        if kind == "begin":
            into.fields.append(_Field())
            self._form_field(element, into)
        elif kind == "separate" and into.fields:
            into.fields[-1].begin = len(into.text)
        elif kind == "end" and into.fields:
            self._finish_field(into.fields.pop(), into)

    def _finish_field(self, finished: _Field, into: _Inline) -> None:
        begin = len(into.text) if finished.begin is None else finished.begin
        if link := _LINK_FIELD.match(finished.instruction):
            into.text[begin:] = [with_address("".join(into.text[begin:]), link[1])]
        elif self._in_margin and _PAGE_FIELD.match(finished.instruction):
            into.text[begin:] = [_PAGE]

    def _form_field(self, element: Any, into: _Inline) -> None:
        """Collect the state of an older check box or list; the value of a text field is its result."""
        box = element.find(f"{qn('w:ffData')}/{qn('w:checkBox')}")
        if box is not None:
            state = box.find(qn("w:checked"))
            state = box.find(qn("w:default")) if state is None else state
            into.text.append(_CHECKED if _is_on(state) else _UNCHECKED)
        choices = element.find(f"{qn('w:ffData')}/{qn('w:ddList')}")
        if choices is not None:
            entries = [entry.get(qn("w:val"), "") for entry in choices.iter(qn("w:listEntry"))]
            at = _number(choices.find(qn("w:result")), 0)
            into.text.append(entries[at] if 0 <= at < len(entries) else "")
            self._unread["lists of choices in form controls were not read: {}"] += len(entries) > 1

    def _control(self, element: Any, into: _Inline) -> None:
        start = len(into.text)
        self._count_choices(element)
        self._collect(element, into)
        box = element.find(f"{qn('w:sdtPr')}/{_W14}checkbox")
        # The mark is usually in the control's text as well; only without it is the state shown.
        if box is not None and not "".join(into.text[start:]).strip():
            state = box.find(f"{_W14}checked")
            is_checked = state is not None and state.get(f"{_W14}val") in _ON
            into.text.append(_CHECKED if is_checked else _UNCHECKED)

    def _count_choices(self, control: Any) -> None:
        properties = control.find(qn("w:sdtPr"))
        if properties is not None and next(properties.iter(qn("w:listItem")), None) is not None:
            self._unread["lists of choices in form controls were not read: {}"] += 1

    def _table(self, element: Any) -> Iterator[Block]:
        rows: list[list[str]] = []
        above: dict[int, str] = {}
        for row in self._below(element, qn("w:tr")):
            properties = row.find(qn("w:trPr"))
            before = None if properties is None else properties.find(qn("w:gridBefore"))
            cells: list[str] = [""] * min(max(_number(before, 0), 0), 63)  # Word's tables have at most 63 columns
            all_cells = list(self._below(row, qn("w:tc")))
            for cell in all_cells:
                of_cell = cell.find(qn("w:tcPr"))
                merged = None if of_cell is None else of_cell.find(qn("w:vMerge"))
                goes_on = merged is not None and merged.get(qn("w:val"), "continue") == "continue"
                column = len(cells)
                text = above.get(column, "") if goes_on else self._cell(cell)
                span = 1 if of_cell is None else min(max(_number(of_cell.find(qn("w:gridSpan")), 1), 1), 63)
                for at in range(column, column + span):
                    above[at] = text
                cells += spread(text, span, alone=len(all_cells) == 1)
            rows.append(cells)
        rows = full_rows(rows)
        if rows:
            yield from blocks_of_table(rows)

    def _cell(self, cell: Any) -> str:
        """Return all text of a cell; of a table inside it, cells are divided by strokes and rows by semicolons."""
        texts = []
        for block in self.blocks(cell):
            text = block.text.replace(" | ", " / ").replace("\n", "; ") if block.kind == "table" else block.text
            texts.append(text)
        return "\n".join(texts)

    def _below(self, element: Any, tag: str) -> Iterator[Any]:
        """Yield the nearest elements of a kind, also inside content controls and insertions."""
        for child in element:
            if child.tag == tag:
                properties = child.find(qn("w:trPr"))
                if properties is not None and properties.find(qn("w:del")) is not None:
                    self._unread[_UNREAD[qn("w:del")]] += 1
                    continue
                yield child
            elif child.tag in _UNREAD:
                self._count_unread(child)
            elif child.tag not in _SKIPPED and isinstance(child.tag, str):
                yield from self._below(child, tag)


def _styles(root: Any, numbering: Numbering) -> tuple[dict[str, _Style], frozenset[str]]:
    """Return the roles of the document's paragraph styles by id ("" for the default style), and the hidden styles."""
    elements: dict[str, Any] = {}
    hidden: set[str] = set()
    default = ""
    for style in () if root is None else root.iter(qn("w:style")):
        ident = style.get(qn("w:styleId"), "")
        if style.get(qn("w:type")) == "paragraph":
            elements[ident] = style
            default = ident if style.get(qn("w:default")) in _ON else default
        properties = style.find(qn("w:rPr"))
        if properties is not None and _is_on(properties.find(qn("w:vanish"))):
            hidden.add(ident)
    styles = {ident: _meaning(ident, elements, numbering) for ident in elements}
    return {**styles, "": styles.get(default, _Style())}, frozenset(hidden)


def _meaning(ident: str, elements: Json, numbering: Numbering) -> _Style:
    """Return the role of a style, or of the style on which it is based."""
    level: int | None = None
    depth: int | None = None
    counted: int | None = None
    number: str | None = None
    visited: set[str] = set()  # styles of a damaged file may be based on each other
    while ident in elements and ident not in visited:
        visited.add(ident)
        element = elements[ident]
        name = _value(element.find(qn("w:name")), "")
        properties = element.find(qn("w:pPr"))
        outline = -1 if properties is None else _number(properties.find(qn("w:outlineLvl")), -1)
        if level is None:
            if match := _HEADING.fullmatch(name):
                # "Title" is the level above "heading 1": a document's parts are below its name.
                level = int(match[1]) + 1
            elif name.casefold() == "title":
                level = 1
            elif 0 <= outline < 9:
                level = outline + 2
        own = None if properties is None else properties.find(qn("w:numPr"))
        if own is not None and number is None:
            number = _value(own.find(qn("w:numId")), "") or None
            linked = numbering.by_style.get(ident)
            counted = min(max(_number(own.find(qn("w:ilvl")), linked[1] if linked else 0), 0), 8)
        if depth is None and (listed := _BULLETS.fullmatch(name)) and level is None:
            depth = max(int(listed[1] or 1) - 1, 0)
        ident = _value(element.find(qn("w:basedOn")), "")
    if number == "0":
        return _Style(level or 0)
    return _Style(level or 0, counted if depth is None else depth, number or "", counted or 0)


def _is_on(element: Any) -> bool:
    return element is not None and element.get(qn("w:val"), "1") not in ("0", "false", "off")


def _value(element: Any, default: str) -> str:
    return default if element is None else str(element.get(qn("w:val"), default))


def _number(element: Any, default: int) -> int:
    return read_integer(_value(element, ""), default)


def _join_lists(blocks: Iterator[Block]) -> Iterator[Block]:
    for is_list, run in groupby(blocks, key=lambda block: block.kind == "list"):
        if is_list:
            yield Block("list", "\n".join(block.text for block in run))
        else:
            yield from run
