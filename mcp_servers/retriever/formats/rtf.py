"""RTF reader on striprtf: paragraphs and tables, with the addresses of links.

striprtf drops the contents of separate groups (notes, headers, comments) and all properties of text and cells. This
module reads those groups one by one, and marks cells, rows and headings with characters that the text cannot contain.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from striprtf.striprtf import rtf_to_text

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
from mcp_servers.retriever.formats.text import to_superscript, with_address

_CELL = "\ue000"
"""End mark of a cell: a private character, which `_mark` removes from the file."""
_ROW = "\ue001"
"""End mark of a row, followed by the number of its shape and `_SHAPE`."""
_SHAPE = "\ue002"
_BREAK = "\ue003"
"""End of a line or a paragraph inside a cell."""
_HEADING = "\ue010"
"""Mark of a heading before its end; the level is added to the character."""
_MARKS = range(0xE000, 0xE020)
_PRIVATE = re.compile("[\ue000-\ue01f]")
_TOKEN = re.compile(r"\\([a-z]{1,32})(-?\d{1,10})? ?|\\'[0-9a-fA-F]{2}|\\.|[{}]|[^\\{}]+|\\", re.DOTALL)
_BOUNDARIES = frozenset({"cell", "nestcell", "row", "nestrow", "par", "line", "sect", "page"})
_STYLESHEET = re.compile(r"\{\\stylesheet")
_STYLE = re.compile(r"\{\\s(\d{1,5})(?!\d)[^{}]{0,2000}?(?:\b|\s)(?:heading (\d)|title)\s?;\}", re.IGNORECASE)
_CODEPAGE = re.compile(rb"\\ansicpg(\d{1,5})")
_TITLE = re.compile(r"\{\\title\s+")
_MADE = re.compile(r"\{\\(?:creatim|revtim)((?:\\(?:yr|mo|dy|hr|min|sec)-?\d{1,4})+)\}")
_BESIDE = {
    "header": "",
    "headerl": "",
    "headerr": "",
    "headerf": "",
    "footer": "",
    "footerl": "",
    "footerr": "",
    "footerf": "",
    "footnote": "",
    "annotation": "Comment: ",
    "shptxt": "",
}
"""Visible groups that striprtf leaves out, and the label of their text."""
_MARGINS = frozenset(name for name in _BESIDE if name.startswith(("header", "footer")))
_GROUP = re.compile(r"\{(?:\\\*)?\\(" + "|".join(_BESIDE) + r"|pict|object|deleted)(?![a-z])[ ]?")
_BRACES = re.compile(r"\\[\\{}]|[{}]")
_FIELD = re.compile(r"\{\\field(?![a-z])")
_INSTRUCTION = re.compile(
    r'\{\s*(?:\\\*)?\\fldinst(?![a-z])[^"{}]*(?:\{[^"{}]*)?HYPERLINK\s+"([^"]{1,2000})"', re.IGNORECASE
)
_PAGE_FIELD = re.compile(r"\\chpgn|\\fldinst[^{}]*(?:\{[^{}]*)?\s(?:PAGE|NUMPAGES)\b", re.IGNORECASE)
_BINARY = re.compile(rb"\\bin(\d{1,9}) ?")
MAX_GROUPS = 20_000
MAX_CELLS = 63
"""Maximum number of cells of a row; Word's limit."""
EDGE_TWIPS = 30
"""Cells whose edges differ by less end in one column; a twip is a twentieth of a point."""


def read_rtf(path: Path, limits: ParseLimits) -> ParsedDocument:
    data = path.read_bytes()
    if not data.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"{\\rtf"):
        raise DocumentError("DOCUMENT_BROKEN", "the file is not RTF, despite its name")
    declared = _CODEPAGE.search(data[:4096])
    encoding = f"cp{declared[1].decode()}" if declared else "cp1252"
    source = _without_binary(data).decode("latin-1")
    groups, main = _take_groups(source)
    prefix = _prefix(source)
    blocks: list[Block] = []
    title = _title(source, encoding)
    marked = _mark(_with_links(main), _heading_styles(source))
    main_blocks = list(_blocks(_plain_text(marked.source, encoding), marked.shapes))
    before: dict[str, None] = {}
    beside: list[Block] = []
    pictures = objects = 0
    hidden = marked.hidden
    for name, inner in groups:
        pictures += name == "pict"
        objects += name == "object"
        hidden += name == "deleted"
        if name not in _BESIDE:
            continue
        if name in _MARGINS:
            inner = re.sub(r"\{\\field.*?\}\}\}?", "", inner) if _PAGE_FIELD.search(inner) else inner
        text = " ".join(_text(prefix + _with_links(inner) + "}", encoding).split())
        if not re.search(r"\w", text):
            continue
        if name in _MARGINS:
            before[text] = None
        else:
            beside.append(Block("prose", f"{_BESIDE[name]}{text}"))
    if title and not any(title in block.text for block in main_blocks):
        blocks.append(heading(title, 1))
    blocks += [Block("prose", text) for text in before]
    blocks += [*main_blocks, *beside]
    notes = [f"text in pictures was not read: {pictures} pictures"] if pictures else []
    notes += [f"embedded objects were not read: {objects}"] if objects else []
    notes += [f"hidden and deleted texts were not read: {hidden}"] if hidden else []
    return ParsedDocument(tuple(blocks), notes=tuple(notes), date=latest_date(*_dates(source)))


def _without_binary(data: bytes) -> bytes:
    """Return the file without the bytes of its pictures, which may look like braces."""
    pieces: list[bytes] = []
    at = 0
    while match := _BINARY.search(data, at):
        pieces.append(data[at : match.start()])
        at = match.end() + int(match[1])
    return b"".join([*pieces, data[at:]])


def _end_of_group(source: str, start: int) -> int:
    """Return the end of the group that begins at ``start``."""
    depth = 0
    for match in _BRACES.finditer(source, start):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return len(source)


def _take_groups(source: str) -> tuple[list[tuple[str, str]], str]:
    """Return the groups that striprtf leaves out, by name, and the text without them."""
    groups: list[tuple[str, str]] = []
    pieces: list[str] = []
    at = 0
    while len(groups) < MAX_GROUPS and (match := _GROUP.search(source, at)):
        end = _end_of_group(source, match.start())
        groups.append((match[1], source[match.end() : end - 1]))
        pieces.append(source[at : match.start()])
        at = end
    return groups, "".join([*pieces, source[at:]])


def _prefix(source: str) -> str:
    """Return the start of the file with its table of fonts, which has the encodings of characters."""
    match = re.search(r"\{\\fonttbl", source[:100_000])
    table = "" if match is None else source[match.start() : _end_of_group(source, match.start())]
    start = re.match(r"\{\\rtf[^{}]{0,500}", source.lstrip())
    return f"{start[0] if start else chr(123) + chr(92) + 'rtf1'}{table} "


def _with_links(source: str) -> str:
    """Replace each link by its result and address as plain RTF."""
    pieces: list[str] = []
    at = 0
    while match := _FIELD.search(source, at):
        end = _end_of_group(source, match.start())
        group = source[match.start() : end]
        pieces.append(source[at : match.start()])
        if (link := _INSTRUCTION.search(group)) and (result := re.search(r"\{\s*\\fldrslt(?![a-z])[ ]?", group)):
            inner = group[result.end() : _end_of_group(group, result.start()) - 1]
            # A placeholder stands for the text of the link, so that only the address in brackets is left.
            address = with_address("\0", link[1].replace("\\\\", "\\"))[1:]
            escaped = re.sub(r"([\\{}])", r"\\\1", address)
            shown = link[1] in inner
            pieces.append(f"{{{inner}}}" if shown else f"{{{inner}}}{{\\f0 {escaped}}}")
        else:
            pieces.append(group)
        at = end
    return "".join([*pieces, source[at:]])


def _escape(text: str) -> str:
    """Return characters as RTF in a group, because the text around it may declare other numbers of fallbacks."""
    return "{\\uc1" + "".join(f"\\u{ord(character)}?" for character in text) + "}"


@dataclass(frozen=True, slots=True)
class _Cell:
    """The right edge of a cell in twips, and whether the text of the cell above or before it extends into it."""

    edge: int
    continues_above: bool = False
    continues_before: bool = False


_Shape = tuple[_Cell, ...]
"""The cells of a row."""


@dataclass(frozen=True, slots=True)
class _State:
    """The properties that a group restores at its end."""

    in_table: bool = False
    is_raised: bool = False
    is_hidden: bool = False
    level: int = 0
    shape: _Shape = ()
    above: bool = False
    before: bool = False
    """The properties of the next cell of the shape."""


@dataclass(slots=True)
class _Marked:
    """RTF with marks, the shapes of its rows, and the number of hidden texts that were left out."""

    source: str = ""
    shapes: list[_Shape] = field(default_factory=list)
    hidden: int = 0


def _heading_styles(source: str) -> dict[int, int]:
    """Return the levels of the paragraph styles for headings; "Title" is the level above "heading 1"."""
    match = _STYLESHEET.search(source[:100_000])
    sheet = "" if match is None else source[match.start() : _end_of_group(source, match.start())]
    return {int(number): int(level or 0) + 1 for number, level in _STYLE.findall(sheet)}


def _mark(source: str, styles: dict[int, int]) -> _Marked:
    """Mark the cells, rows and headings of RTF, write raised digits as such characters, and leave out hidden text."""
    marked = _Marked()
    pieces: list[str] = []
    state = _State()
    groups: list[_State] = []
    for token in _TOKEN.finditer(source):
        text, word, number = token[0], token[1], int(token[2] or 0)
        if text == "{":
            groups.append(state)
        elif text == "}":
            state = groups.pop() if groups else state
        elif word in _BOUNDARIES:
            text = _boundary(text, word, state, marked.shapes)
        elif word == "u":
            is_left_out = state.is_hidden or number % 0x10000 in _MARKS
            text = "" if is_left_out else text
        elif word is not None:
            state = _with_property(state, word, number, token[2] is None, styles)
        elif state.is_hidden:
            marked.hidden += bool(text.strip()) and not text.startswith("\\")
            text = ""
        elif state.is_raised and not text.startswith("\\"):
            text = "".join(char if char.isascii() else _escape(char) for char in to_superscript(text))
        pieces.append(text)
    marked.source = "".join(pieces)
    return marked


def _boundary(text: str, word: str, state: _State, shapes: list[_Shape]) -> str:
    """Return the mark for the end of a cell, row, paragraph or line; the shape of a row is added to ``shapes``."""
    if word == "nestcell":
        return " / "
    if word == "cell":
        return _escape(_CELL)
    if word == "row":
        shapes.append(state.shape)
        return _escape(f"{_ROW}{len(shapes) - 1}{_SHAPE}")
    if word == "nestrow" or state.in_table:
        return _escape(_BREAK)
    return _escape(chr(ord(_HEADING) + state.level)) + text if word == "par" and state.level else text


def _with_property(state: _State, word: str, number: int, is_on: bool, styles: dict[int, int]) -> _State:
    """Return the state after a control word for a property."""
    if word == "pard":
        return replace(state, in_table=False, level=0)
    if word == "plain":
        return replace(state, is_raised=False, is_hidden=False)
    if word == "intbl":
        return replace(state, in_table=True)
    if word in ("super", "nosupersub"):
        return replace(state, is_raised=word == "super" and is_on)
    if word == "v":
        return replace(state, is_hidden=is_on)
    if word == "s":
        return replace(state, level=styles.get(number, 0))
    if word == "outlinelevel":
        return replace(state, level=number + 2 if 0 <= number < 9 else state.level)
    if word == "trowd":
        return replace(state, shape=(), above=False, before=False)
    if word in ("clvmrg", "clmrg"):
        return replace(state, above=state.above or word == "clvmrg", before=state.before or word == "clmrg")
    if word == "cellx" and len(state.shape) < MAX_CELLS:
        cell = _Cell(number, state.above, state.before)
        return replace(state, shape=(*state.shape, cell), above=False, before=False)
    return state


def _text(source: str, encoding: str) -> str:
    """Return the text of a piece of RTF without marks."""
    return _PRIVATE.sub(" ", re.sub(f"{_ROW}\\d+{_SHAPE}", " ", _plain_text(_mark(source, {}).source, encoding)))


def _plain_text(marked: str, encoding: str) -> str:
    convert = cast(Callable[..., str], rtf_to_text)
    try:
        text = convert(marked, encoding=encoding, errors="replace")
    except LookupError:  # an unknown code page
        text = convert(marked, encoding="cp1252", errors="replace")
    # RTF escapes each half of a surrogate pair on its own; in UTF-16 the halves are one character.
    return text.replace("\xad", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _blocks(text: str, shapes: Sequence[_Shape]) -> Iterator[Block]:
    """Yield the paragraphs of a marked text; adjacent rows form a table."""
    rows: list[tuple[list[str], _Shape]] = []
    pieces = re.split(f"{_ROW}(\\d+){_SHAPE}", text)
    for piece, shape in zip(pieces[::2], [*pieces[1::2], ""], strict=True):
        lines = piece.split("\n")
        first_cell = next((at for at, line in enumerate(lines) if _CELL in line), len(lines))
        ahead = lines[:first_cell] if shape else lines
        if any(line.strip() for line in ahead):
            yield from _tables(rows)
            rows = []
        yield from (_paragraph(line) for line in ahead if line.strip())
        if shape:
            cells = " ".join(lines[first_cell:]).replace(_BREAK, "\n").split(_CELL)
            cells = [cell.strip() for cell in (cells[:-1] if not cells[-1].strip() else cells)]
            rows.append((cells, shapes[int(shape)]))
    yield from _tables(rows)


def _paragraph(line: str) -> Block:
    text = line.replace(_BREAK, " ").replace(_CELL, " ").strip()
    level = ord(text[-1]) - ord(_HEADING) if text and text[-1] >= _HEADING else 0
    return heading(text[:-1], level) if 0 < level < 16 else Block("prose", text)


def _tables(rows: Sequence[tuple[list[str], _Shape]]) -> Iterator[Block]:
    """Yield the tables of adjacent rows: a row whose edges cross those above begins another table."""
    table: list[tuple[list[str], _Shape]] = []
    edges: set[int] = set()
    for cells, shape in rows:
        shape = tuple(replace(cell, edge=_nearest(cell.edge, edges)) for cell in shape)
        own = {cell.edge for cell in shape}
        if table and own and edges and not (own <= edges or edges <= own):
            yield from _table(table, sorted(edges))
            table, edges = [], set()
        table.append((cells, shape if len(own) == len(cells) else ()))
        edges |= own
    yield from _table(table, sorted(edges))


def _nearest(edge: int, edges: Collection[int]) -> int:
    """Return the edge of the column in which a cell ends, or its own edge if that begins another column."""
    return next((column for column in edges if abs(column - edge) < EDGE_TWIPS), edge)


def _table(rows: Sequence[tuple[list[str], _Shape]], edges: Sequence[int]) -> Iterator[Block]:
    """Yield a table's blocks, with the text of merged cells in each column and row that they cover."""
    texts: list[list[str]] = []
    for cells, shape in rows:
        if not shape:
            texts.append(cells)
            continue
        row: list[str] = []
        for cell, text in zip(shape, cells, strict=True):
            start, end = len(row), edges.index(cell.edge) + 1
            if cell.continues_before and row:
                text = row[-1]
            elif cell.continues_above and texts and start < len(texts[-1]):
                text = texts[-1][start]
            row += spread(text, end - start, alone=len(shape) == 1) if end > start else []
        texts.append(row)
    if any(cell for row in texts for cell in row):
        yield from blocks_of_table(full_rows(texts))


def _title(source: str, encoding: str) -> str:
    match = _TITLE.search(source[:100_000])
    if match is None:
        return ""
    inner = source[match.end() : _end_of_group(source, match.start()) - 1]
    return " ".join(_text(f"{{\\rtf1 {inner}}}", encoding).split())


def _dates(source: str) -> Iterator[str]:
    for stamp in _MADE.findall(source[:100_000]):
        numbers = dict(re.findall(r"\\(yr|mo|dy)(\d{1,4})", stamp))
        if len(numbers) == 3:
            yield f"{int(numbers['yr']):04d}-{int(numbers['mo']):02d}-{int(numbers['dy']):02d}"
