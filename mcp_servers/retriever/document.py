"""The parsed document: the common result of all format readers, and the input of chunking.

The module holds plain values and knows neither files nor formats nor chunks.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mcp_servers.retriever.sentences import estimate_tokens

Json = Mapping[str, Any]
"""A JSON object."""

SEPARATOR = "\n\n"
"""Separator of blocks in `ParsedDocument.text`, included in character offsets."""

HEADING_LIMIT = 200
"""Maximum number of characters of a heading: longer ones are body text in large type."""

ROW_GROUP_TOKENS = 250
"""Approximate size of a group of whole table rows, each group with the table's header."""

MAX_HEADER_ROWS = 3
"""Maximum number of rows that are joined as the header of a table."""

MAX_TITLE_ROWS = 3
"""Maximum number of rows above the header of a table that are read as its titles."""

_HAS_DIGIT = re.compile(r"\d")
_FIGURE = re.compile(r"\s*+(?!(?:19|20)\d\d\s*$)[(+−-]?[$€£¥]?\s?\d[\d\s.,:/'%€$£¥)-]*")
"""A number, an amount, a date or a time, which rarely occurs in a header, unlike a year."""

CELL_SEPARATOR = " | "
"""Separator of the cells of a table row in a block's text."""

BlockKind = Literal["heading", "prose", "list", "code", "table"]


@dataclass(frozen=True, slots=True)
class Block:
    """A structural piece of a document.

    `level` is 1..6 for a heading, else 0. `page` counts from 1; a slide is a page. `cells` is `Sheet!A2:D9` for rows of
    a sheet. Each line of a `list`, `code` or `table` block is a unit that no chunk boundary cuts. A `table` block with
    several lines begins with its header; each line is a row, written by `join_row`. `scanned` marks text that OCR read
    from an image; with `scanned_by` "model", a language model read it.
    """

    kind: BlockKind
    text: str
    level: int = 0
    page: int | None = None
    cells: str | None = None
    scanned: bool = False
    scanned_by: str = ""


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """Blocks in reading order, the page count for formats with pages, and notes about unread contents.

    `date` is the latest date in the file's metadata, as `YYYY-MM-DD`. `unread_scans` are the numbers of pages without a
    text layer that OCR has not read.
    """

    blocks: tuple[Block, ...]
    pages: int | None = None
    notes: tuple[str, ...] = ()
    date: str | None = None
    unread_scans: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The complete text; spans of chunks are offsets into it."""
        return SEPARATOR.join(block.text for block in self.blocks)


@dataclass(frozen=True, slots=True)
class ParseLimits:
    """Limits for parsing one file. The child process enforces memory and CPU time, the parent wall time and output."""

    max_bytes: int = 100 * 2**20
    max_pages: int = 1_000
    max_characters: int = 20_000_000
    max_unpacked_bytes: int = 400 * 2**20
    memory_bytes: int = 1536 * 2**20
    seconds: float = 120.0


def heading(text: str, level: int, page: int | None = None) -> Block:
    """Return a heading block, or a prose block if the text is too long for a heading."""
    text = " ".join(text.split())
    if len(text) > HEADING_LIMIT:
        return Block("prose", text, page=page)
    return Block("heading", text, min(max(level, 1), 6), page)


_BAR = re.compile(r"\s*\|\s*")


def join_row(cells: Sequence[str]) -> str:
    """Return a table's row as one line; `split_row` reverses it.

    White space inside a cell becomes one space, and a bar inside a cell loses the spaces around it, so that only
    `CELL_SEPARATOR` separates cells. Empty cells stay: `Ada |  | 50`.
    """
    shown = [" ".join(cell.split()) for cell in cells]
    return CELL_SEPARATOR.join([_BAR.sub("|", cell) if "|" in cell else cell for cell in shown]).strip()


def split_row(line: str) -> tuple[str, ...]:
    """Return the cells of a line from `join_row`, including empty ones."""
    line = line.strip()
    start = " " if line.startswith("| ") else ""
    end = " " if line.endswith(" |") else ""
    return tuple((f"{start}{line}{end}" if line != "|" else CELL_SEPARATOR).split(CELL_SEPARATOR))


def row_groups(rows: Sequence[Sequence[str]]) -> Iterable[tuple[int, int, str]]:
    """Split a table into groups of whole rows, and repeat the header in each group.

    The header is the first row, or the first rows joined by `join_headers`. Yields `(first, last, text)`: indexes into
    `rows` (without the header) and the lines, written by `join_row`. A table of one row is its own group.
    """
    lines = [join_row(row) for row in rows]
    if len(lines) == 1:
        yield 0, 0, lines[0]
        return
    joined, first = join_headers(rows)
    header = join_row(joined)
    tokens = [estimate_tokens(line) for line in lines]
    least = size = estimate_tokens(header)
    for index in range(first, len(lines)):
        if index > first and size + tokens[index] > ROW_GROUP_TOKENS:
            yield first, index - 1, "\n".join([header, *lines[first:index]])
            first, size = index, least
        size += tokens[index]
    yield first, len(lines) - 1, "\n".join([header, *lines[first:]])


def blocks_of_table(rows: Sequence[Sequence[str]], page: int | None = None) -> Iterable[Block]:
    """Yield the blocks of a table in a text: the titles in its first rows as prose, then groups of rows."""
    first = _count_titles(rows)
    for row in rows[:first]:
        yield Block("prose", " ".join(row[0].split()), page=page)
    yield from (Block("table", text, page=page) for _, _, text in row_groups(rows[first:]) if text.strip())


def _count_titles(rows: Sequence[Sequence[str]]) -> int:
    """Return the number of first rows with a single text above the header; the header fills all of its columns.

    A table of two columns has none: its first row may be the name of a thing, with properties and values below.
    """
    for count, row in enumerate(rows[: min(MAX_TITLE_ROWS + 1, max(len(rows) - 1, 0))]):
        filled = [cell for cell in row if cell.strip()]
        if len(row) < 3 or len(filled) != 1 or not row[0].strip():
            is_header = count > 0 and len(filled) == len(row) and not any(map(_FIGURE.fullmatch, row))
            return count if is_header else 0
    return 0


def join_headers(rows: Sequence[Sequence[str]]) -> tuple[Sequence[str], int]:
    """Return the header of a table of at least two rows, and the number of rows of which it consists.

    A row of group headings above the header is joined with it: `2030 | 2030` above `Q1 | Q2` is `2030 Q1 | 2030 Q2`. In
    such a row, a heading covers several columns: its text is repeated in each of them, or the cells after it are empty.
    A column outside of the groups, and always the first one, has a cell in one of the two rows only, or the same text
    in both. Figures below the two rows show that they are no data.
    """
    header: Sequence[str] = rows[0]
    best = header, 1
    for count in range(1, min(len(rows) - 1, MAX_HEADER_ROWS)):
        joined = _join_groups(header, rows[count])
        if joined is None:
            break
        header = joined
        names = [cell for cell in joined if cell]
        if len(set(names)) == len(names) and any(map(_HAS_DIGIT.search, rows[count + 1])):
            best = joined, count + 1
    return best


def _join_groups(groups: Sequence[str], header: Sequence[str]) -> list[str] | None:
    """Return two rows joined as one header, or None if the first one has no headings over groups of columns."""
    if len(groups) != len(header) or any(map(_FIGURE.fullmatch, header)):
        return None
    above = [cell.strip() for cell in groups]
    below = [cell.strip() for cell in header]
    for at in range(1, len(above)):  # a heading whose cells are not merged
        if not above[at] and below[at] and below[at - 1] and above[at - 1] and above[at - 1] != below[at - 1]:
            above[at] = above[at - 1]
    in_group = [
        bool(cell) and cell in (above[at - 1 : at] + above[at + 1 : at + 2]) and cell != below[at]
        for at, cell in enumerate(above)
    ]
    alone = [at for at, grouped in enumerate(in_group) if not grouped]
    names = [below[at] for at, grouped in enumerate(in_group) if grouped]
    spanning = [at for at in alone if not above[at] or not below[at] or above[at] == below[at]]
    if not names or not all(names) or not spanning or (0 in alone and 0 not in spanning):
        return None
    pairs = zip(above, below, strict=True)
    return [upper if upper == lower else f"{upper} {lower}".strip() for upper, lower in pairs]


def full_rows(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the rows of a table with text, all with the same number of cells."""
    width = max(map(len, rows), default=0)
    return [[*row, *[""] * (width - len(row))] for row in rows if any(cell.strip() for cell in row)]


def spread(text: str, columns: int, *, alone: bool) -> list[str]:
    """Return the cells for a cell over several columns: its text in each of them, or once if it is alone in its row."""
    return [text, *[""] * (columns - 1)] if alone else [text] * columns
