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
    """Split a table into groups of whole rows, and repeat the first row as the header of each group.

    Yields `(first, last, text)`: indexes into `rows` (without the repeated header) and the lines, written by
    `join_row`. A table of one row is its own group.
    """
    lines = [join_row(row) for row in rows]
    if len(lines) == 1:
        yield 0, 0, lines[0]
        return
    header, first = lines[0], 1
    tokens = [estimate_tokens(line) for line in lines]
    size = tokens[0]
    for index in range(1, len(lines)):
        if index > first and size + tokens[index] > ROW_GROUP_TOKENS:
            yield first, index - 1, "\n".join([header, *lines[first:index]])
            first, size = index, tokens[0]
        size += tokens[index]
    yield first, len(lines) - 1, "\n".join([header, *lines[first:]])


def full_rows(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the rows of a table with text, all with the same number of cells."""
    width = max(map(len, rows), default=0)
    return [[*row, *[""] * (width - len(row))] for row in rows if any(cell.strip() for cell in row)]


def spread(text: str, columns: int, *, alone: bool) -> list[str]:
    """Return the cells for a cell over several columns: its text in each of them, or once if it is alone in its row."""
    return [text, *[""] * (columns - 1)] if alone else [text] * columns
