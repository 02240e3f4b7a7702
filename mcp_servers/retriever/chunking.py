"""Chunks: the indexed pieces of a parsed document, each with the sentences that can be cited from it.

The module does no I/O and knows nothing of file formats, vectors or the index.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import NamedTuple, Self
from uuid import UUID, uuid5

from mcp_servers.retriever.document import SEPARATOR, Block, Json, ParsedDocument, join_row, split_row
from mcp_servers.retriever.sentences import TextSpan, estimate_tokens, fit, split_sentences

__all__ = ["CHUNKER_VERSION", "Chunk", "ChunkTable", "TextSpan", "chunk_document", "chunk_id", "outline_of"]

CHUNKER_VERSION = "3"
"""Version in every chunk id and in a collection's metadata; change it with every change of spans."""

TARGET_TOKENS = 300
OVERLAP_TOKENS = 40
"""Largest last sentence that is repeated at the start of the next chunk, so that a pronoun keeps its noun."""

MINIMUM_TOKENS = 60
"""Smallest last chunk; a shorter rest joins the chunk before it, because short chunks match by accident."""

OUTLINE = 40
OUTLINE_CHARACTERS = 80
"""Maximum number of headings of an outline, and of characters of each."""

_NAMESPACE = UUID("6f2cf5c1-2f0c-5c0b-9a67-2d1f0a4c7a11")  # arbitrary, but the ids of all stored chunks derive from it


class ChunkTable(NamedTuple):
    """Lines `text[start:end]` of a chunk that belong to one table.

    `header` are the cells of the table's header, empty for a table of a single row. The header's line is the first of
    these lines only if the chunk contains the start of the table.
    """

    start: int
    end: int
    header: tuple[str, ...]

    def begins_with_header(self, text: str) -> bool:
        """Return whether the first line of the table in the chunk's `text` is the header."""
        first = text[self.start : self.end].partition("\n")[0]
        return bool(self.header) and first.strip() == join_row(self.header)


@dataclass(frozen=True, slots=True)
class Chunk:
    """An indexed piece of a document.

    `text` equals `parsed.text[start:end]`, and `sentences` are offsets within `text`, in order.
    `chunk_id` is a UUID in its usual text form, so that it is a valid point id. `tables` are the tables among the
    lines, in order. `scanned` means that OCR read the text from an image, or a language model
    if `scanned_by` is "model".

    `context` is a line about the chunk that a language model wrote. It is embedded and indexed with the text, and never
    shown, cited or searched as text.
    """

    chunk_id: str
    document_id: str
    document_name: str
    ordinal: int
    heading_path: tuple[str, ...]
    page: int | None
    cells: str | None
    text: str
    start: int
    end: int
    sentences: tuple[TextSpan, ...]
    tables: tuple[ChunkTable, ...] = ()
    scanned: bool = False
    scanned_by: str = ""
    context: str = ""

    def to_json(self) -> Json:
        """Return the chunk as JSON values for a point's payload on a server and for the output of a reading process.

        ``sentences`` alternates starts and ends, because one list is cheaper than many.
        """
        offsets = [offset for span in self.sentences for offset in span]
        values = {name: getattr(self, name) for name in self.__slots__}
        tables = [[*table[:2], [*table.header]] for table in self.tables]
        return {**values, "heading_path": [*self.heading_path], "sentences": offsets, "tables": tables}

    @classmethod
    def from_json(cls, data: Json) -> Self:
        """Reverse `to_json`; ignore unknown members, and accept older chunks without the newest members."""
        values = {name: data[name] for name in cls.__slots__ if name in data}
        starts, ends = data["sentences"][::2], data["sentences"][1::2]
        lists = {
            "heading_path": tuple(data["heading_path"]),
            "sentences": tuple(map(TextSpan, starts, ends)),
            "tables": tuple(ChunkTable(start, end, tuple(header)) for start, end, header in data.get("tables", ())),
        }
        return cls(**{**values, **lists})


class _Unit(NamedTuple):
    """A sentence or a line that no chunk boundary splits; offsets into the parsed text.

    `table` is the span and header of the table block to which the line belongs. `room` is the number of tokens that a
    chunk must have free for the unit: for the first line of a table, the whole block if it fits into one chunk.
    """

    start: int
    end: int
    tokens: int
    prose: bool
    room: int
    table: ChunkTable | None = None


class _Place(NamedTuple):
    """The properties that all text of one chunk shares."""

    heading_path: tuple[str, ...]
    page: int | None
    cells: str | None
    scanned: bool
    scanned_by: str


def chunk_id(document_id: str, ordinal: int) -> str:
    """Return the id of a document's chunk, which is deterministic."""
    return str(uuid5(_NAMESPACE, f"{document_id}\0{CHUNKER_VERSION}\0{ordinal}"))


def chunk_document(parsed: ParsedDocument, document_id: str, document_name: str) -> list[Chunk]:
    """Cut `parsed` into chunks of about `TARGET_TOKENS`, in reading order.

    Headings go to the `heading_path` of the chunks below them; a heading with nothing below becomes text. A chunk never
    spans two sections, pages or cell ranges. Every character that is not white space is in a chunk or a heading.
    """
    text = parsed.text
    chunks: list[Chunk] = []
    for place, units in _sections(parsed.blocks):
        for group in _pack(units):
            start, end = group[0].start, group[-1].end
            chunks.append(
                Chunk(
                    chunk_id=chunk_id(document_id, len(chunks)),
                    document_id=document_id,
                    document_name=document_name,
                    ordinal=len(chunks),
                    heading_path=place.heading_path,
                    page=place.page,
                    cells=place.cells,
                    text=text[start:end],
                    start=start,
                    end=end,
                    sentences=tuple(TextSpan(unit.start - start, unit.end - start) for unit in group),
                    tables=tuple(_tables(group)),
                    scanned=place.scanned,
                    scanned_by=place.scanned_by,
                )
            )
    return chunks


def outline_of(chunks: Sequence[Chunk]) -> tuple[str, ...]:
    """Return the first headings of a document in reading order, at most `OUTLINE`.

    These are the headings of the highest level, or of the next one if the highest level has only the title.
    """
    paths = dict.fromkeys(chunk.heading_path[:2] for chunk in chunks)
    highest = dict.fromkeys(path[0] for path in paths if path)
    if len(highest) == 1 and (below := dict.fromkeys(path[1] for path in paths if len(path) > 1)):
        highest = below
    return tuple(heading[:OUTLINE_CHARACTERS] for heading in islice(highest, OUTLINE))


def _sections(blocks: tuple[Block, ...]) -> Iterator[tuple[_Place, list[_Unit]]]:
    """Yield runs of units that share one place."""
    path: list[tuple[int, str]] = []
    place: _Place | None = None
    units: list[_Unit] = []
    offset = 0
    for index, block in enumerate(blocks):
        is_body = block.kind != "heading"  # a heading without text below would not be in any chunk's text
        if block.kind == "heading" and block.text.strip():
            path = [*(above for above in path if above[0] < block.level), (block.level, block.text)]
            is_body = not _has_body(blocks, index)
        if is_body:
            headings = tuple(title for _, title in path)
            here = _Place(headings, block.page, block.cells, block.scanned, block.scanned_by)
            if here != place:
                if place and units:
                    yield place, units
                place, units = here, []
            units.extend(_units(block, offset))
        offset += len(block.text) + len(SEPARATOR)
    if place and units:
        yield place, units


def _has_body(blocks: tuple[Block, ...], index: int) -> bool:
    """Return whether text, or a deeper heading that becomes text, follows the heading at `index`."""
    following = (blocks[place] for place in range(index + 1, len(blocks)))
    below = next((block for block in following if block.text.strip()), None)
    return below is not None and (below.kind != "heading" or below.level > blocks[index].level)


def _units(block: Block, offset: int) -> Iterator[_Unit]:
    prose = block.kind in ("prose", "heading")
    table, whole = None, 0
    if block.kind == "table":
        first, _, below = block.text.partition("\n")
        table = ChunkTable(offset, offset + len(block.text), split_row(first) if below else ())
        whole = estimate_tokens(block.text)
    for span in split_sentences(block.text) if prose else _lines(block):
        tokens = estimate_tokens(block.text[span.start : span.end])
        # The first line of a table asks for room for all of it, so that a small table is not split.
        room = whole if span.start == 0 and whole <= TARGET_TOKENS else tokens
        yield _Unit(offset + span.start, offset + span.end, tokens, prose, max(room, tokens), table)


def _tables(group: Sequence[_Unit]) -> Iterator[ChunkTable]:
    """Yield the tables of a chunk, with offsets within its text."""
    first = group[0].start
    for table, lines in groupby(group, lambda unit: unit.table):
        if table is not None:
            units = list(lines)
            yield ChunkTable(units[0].start - first, units[-1].end - first, table.header)


def _lines(block: Block) -> Iterator[TextSpan]:
    """Yield lines of code, rows of a table, or the sentences of each list item."""
    start = 0
    for line in block.text.split("\n"):
        if block.kind == "list":
            yield from (TextSpan(start + span.start, start + span.end) for span in split_sentences(line))
        else:
            yield from fit(block.text, TextSpan(start, start + len(line)))
        start += len(line) + 1


def _pack(units: list[_Unit]) -> list[list[_Unit]]:
    """Group units into chunks of the target size; a later chunk may start with the last sentence of the one before.

    A table that fits into one chunk is not split. A few words before a table may share its chunk.
    """
    groups: list[list[_Unit]] = [[]]
    size = repeated = 0
    for unit in units:
        allowance = MINIMUM_TOKENS if unit.table and size < MINIMUM_TOKENS else 0
        if groups[-1] and size + unit.room > TARGET_TOKENS + allowance:
            last = groups[-1][-1]
            overlap = [last] if last.prose and last.tokens <= OVERLAP_TOKENS and len(groups[-1]) > 1 else []
            groups.append(overlap)
            repeated = len(overlap)
            size = sum(unit.tokens for unit in overlap)
        groups[-1].append(unit)
        size += unit.tokens
    rest = groups[-1][repeated:]  # the repeated sentence is in the group before already
    if len(groups) > 1 and sum(unit.tokens for unit in rest) < MINIMUM_TOKENS:
        groups[-2:] = [groups[-2] + rest]
    return groups
