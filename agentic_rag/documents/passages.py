"""The surroundings of a cited sentence: its neighbour paragraphs, and its table row with the header. Pure.

Owns the splitting of chunk texts into paragraphs and rows. Knows no index and no format of files.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentic_rag.documents.text_positions import Range, find_text, sentences_within
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.document import SEPARATOR, split_row

_LAST_ROW = re.compile(r"(?:^|!)[A-Z]{1,3}(\d{1,9}):[A-Z]{1,3}(\d{1,9})$")


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The paragraph before or after a passage, with its own headings and page."""

    chunk_id: str
    text: str
    heading_path: tuple[str, ...]
    page: int | None


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table.

    ``start`` and ``end`` are offsets in the passage's text. ``number`` is the row's number in its sheet, None if the
    passage omits rows. ``cited``: the row contains some of the cited part.
    """

    cells: tuple[str, ...]
    start: int
    end: int
    number: int | None
    cited: bool


@dataclass(frozen=True, slots=True)
class Table:
    """Rows below their header; the header is empty if unknown."""

    header: tuple[str, ...]
    rows: tuple[Row, ...]


def cited_part(chunk: Chunk, text: str) -> Range | None:
    """Return the position of a cited text in a chunk.

    If the text extends beyond the chunk, return the position of those of its sentences that are in the chunk.
    """
    position = find_text(chunk.text, text)
    if position is not None:
        return position
    return sentences_within(chunk.text, [Range(*span) for span in chunk.sentences], text)


def paragraph_before(chunk: Chunk, other: Chunk) -> Neighbour | None:
    """Return the last paragraph of the previous chunk, without the overlap of both; None if nothing is left."""
    text = other.text[: max(0, chunk.start - other.start)].rstrip()
    last = text.rsplit(SEPARATOR, 1)[-1].strip()
    return Neighbour(other.chunk_id, last, other.heading_path, other.page) if last else None


def paragraph_after(chunk: Chunk, other: Chunk) -> Neighbour | None:
    """Return the first paragraph of the next chunk, without the overlap of both; None if nothing is left."""
    text = other.text[max(0, chunk.end - other.start) :].lstrip()
    first = text.split(SEPARATOR, 1)[0].strip()
    return Neighbour(other.chunk_id, first, other.heading_path, other.page) if first else None


def table_of(chunk: Chunk, group: Sequence[Chunk], cited: Range | None) -> Table:
    """Return the rows of a chunk of a sheet.

    ``group``: all chunks of the same cells in order, including ``chunk``; the first one begins with the header.
    """
    first = group[0]
    header, _, below = first.text.partition("\n")
    titles = split_row(header) if below or len(group) > 1 else ()
    lines = _lines(chunk.text)
    if titles and chunk.chunk_id == first.chunk_id:
        lines = lines[1:]
    numbers = _numbers(chunk, len(lines)) if len(group) == 1 else None
    return Table(titles, _rows(chunk, lines, cited, numbers))


def table_within(chunk: Chunk, cited: Range | None) -> Table | None:
    """Return the rows of the chunk's table that contains the cited part, or of a chunk that is one table.

    Returns None if the cited part reaches beyond one table.
    """
    for part in chunk.tables:
        whole = part.start == 0 and part.end >= len(chunk.text.rstrip())
        if not (whole if cited is None else part.start <= cited.start and cited.end <= part.end):
            continue
        inside = _lines(chunk.text[part.start : part.end])
        lines = [Range(part.start + line.start, part.start + line.end) for line in inside]
        return Table(part.header, _rows(chunk, lines[part.begins_with_header(chunk.text) :], cited, None))
    return None


def _rows(chunk: Chunk, lines: Sequence[Range], cited: Range | None, number: int | None) -> tuple[Row, ...]:
    return tuple(
        Row(
            split_row(chunk.text[line.start : line.end]),
            line.start,
            line.end,
            None if number is None else number + at,
            cited is not None and line.start < cited.end and cited.start < line.end,
        )
        for at, line in enumerate(lines)
    )


def _lines(text: str) -> list[Range]:
    lines: list[Range] = []
    start = 0
    for line in text.split("\n"):
        if line.strip():
            lines.append(Range(start, start + len(line)))
        start += len(line) + 1
    return lines


def _numbers(chunk: Chunk, count: int) -> int | None:
    """Return the sheet's row number of the first of ``count`` rows; None if the chunk omits rows."""
    match = _LAST_ROW.search(chunk.cells or "")
    if match is None or int(match[2]) - int(match[1]) + 1 != count:
        return None
    return int(match[1])
