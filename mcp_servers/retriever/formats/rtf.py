"""RTF reader on striprtf: paragraphs and tables, with the addresses of links.

striprtf drops the contents of separate groups (notes, headers, comments) and separates the cells of a row with bars.
This module reads those groups one by one, and marks cells with a character that the text cannot contain.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from striprtf.striprtf import rtf_to_text

from mcp_servers.retriever.document import Block, ParsedDocument, ParseLimits, full_rows, heading, row_groups
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats.dates import latest_date
from mcp_servers.retriever.formats.text import to_superscript, with_address

_CELL = "\ue000"
"""End mark of a cell: a private character, which is first removed from the file."""
_ROW = "\ue001"
_CELL_WORD = re.compile(r"\\(?:nest)?cell(?![a-z])[ ]?")
_ROW_WORD = re.compile(r"\\(?:row|nestrow)(?![a-z])[ ]?")
_PRIVATE = re.compile("[\ue000-\ue00f]")
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
_GROUP = re.compile(r"\{(?:\\\*)?\\(" + "|".join(_BESIDE) + r"|pict|object|deleted|v)(?![a-z])[ ]?")
_BRACES = re.compile(r"\\[\\{}]|[{}]")
_FIELD = re.compile(r"\{\\field(?![a-z])")
_INSTRUCTION = re.compile(
    r'\{\s*(?:\\\*)?\\fldinst(?![a-z])[^"{}]*(?:\{[^"{}]*)?HYPERLINK\s+"([^"]{1,2000})"', re.IGNORECASE
)
_PAGE_FIELD = re.compile(r"\\chpgn|\\fldinst[^{}]*(?:\{[^{}]*)?\s(?:PAGE|NUMPAGES)\b", re.IGNORECASE)
_BINARY = re.compile(rb"\\bin(\d{1,9}) ?")
_RAISED = re.compile(
    r"(\{(?:\\[a-z]{1,20}-?\d{0,9} ?){0,9}\\super(?:\\[a-z]{1,20}-?\d{0,9}){0,9}[ ]?)(\d{1,3}\)?)(?=\})"
)
"""A group of raised digits."""
MAX_GROUPS = 20_000


def read_rtf(path: Path, limits: ParseLimits) -> ParsedDocument:
    data = path.read_bytes()
    if not data.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"{\\rtf"):
        raise DocumentError("DOCUMENT_BROKEN", "the file is not RTF, despite its name")
    declared = _CODEPAGE.search(data[:4096])
    encoding = f"cp{declared[1].decode()}" if declared else "cp1252"
    source = _PRIVATE.sub("", _without_binary(data).decode("latin-1"))
    groups, main = _take_groups(source)
    prefix = _prefix(source)
    blocks: list[Block] = []
    title = _title(source, encoding)
    main_blocks = list(_blocks(_text(_with_links(main), encoding)))
    before: dict[str, None] = {}
    beside: list[Block] = []
    pictures = objects = hidden = 0
    for name, inner in groups:
        pictures += name == "pict"
        objects += name == "object"
        hidden += name in ("v", "deleted")
        if name not in _BESIDE:
            continue
        if name in _MARGINS:
            inner = re.sub(r"\{\\field.*?\}\}\}?", "", inner) if _PAGE_FIELD.search(inner) else inner
        text = " ".join(
            _text(prefix + _with_links(inner) + "}", encoding).replace(_CELL, " ").replace(_ROW, " ").split()
        )
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
    return "".join(f"\\u{ord(character)}?" for character in text)


def _text(source: str, encoding: str) -> str:
    source = _RAISED.sub(
        lambda match: match[1] + "".join(f"\\u{ord(char)}?" for char in to_superscript(match[2])), source
    )
    marked = _ROW_WORD.sub(f"\\\\u{ord(_ROW)}?", _CELL_WORD.sub(f"\\\\u{ord(_CELL)}?", source))
    convert = cast(Callable[..., str], rtf_to_text)
    try:
        text = convert(marked, encoding=encoding, errors="replace")
    except LookupError:  # an unknown code page
        text = convert(marked, encoding="cp1252", errors="replace")
    # RTF escapes each half of a surrogate pair on its own; in UTF-16 the halves are one character.
    return text.replace("\xad", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _blocks(text: str) -> Iterator[Block]:
    """Yield the paragraphs of a text; adjacent rows form a table."""
    rows: list[list[str]] = []
    pieces = text.split(_ROW)
    for number, piece in enumerate(pieces):
        is_row = number < len(pieces) - 1
        lines = piece.split("\n")
        first_cell = next((at for at, line in enumerate(lines) if _CELL in line), len(lines))
        # paragraphs in a row's first cell look like those before the table: take the last one as the cell's
        ahead = lines[:first_cell] if is_row else lines
        if any(line.strip() for line in ahead):
            yield from _table(rows)
            rows = []
        yield from (Block("prose", line.strip()) for line in ahead if line.strip())
        if is_row:
            cells = " ".join(lines[first_cell:]).split(_CELL)
            rows.append([cell.strip() for cell in (cells[:-1] if not cells[-1].strip() else cells)])
    yield from _table(rows)


def _table(rows: list[list[str]]) -> Iterator[Block]:
    if any(cell for row in rows for cell in row):
        yield from (Block("table", text) for _, _, text in row_groups(full_rows(rows)))


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
