"""Page layout: from lines with positions to paragraphs, headings and tables.

The module does no I/O. Lines come from a PDF's text layer or from OCR, in reading order, in an upright frame: x grows
along the text, y grows upwards. A ruled table is a grid of the page's straight lines; an unruled one is found by its
columns. If the columns are ambiguous, the lines stay prose and the page gets a note, because a wrong cell is worse than
a missing one.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from operator import itemgetter
from statistics import median, median_low
from typing import NamedTuple

from mcp_servers.retriever.document import Block, heading, row_groups

HEADING_RATIO = 1.15
"""A line this much larger than the body text is a heading."""

PARAGRAPH_GAP = 1.45
"""Distance between lines, relative to the usual one, from which a new paragraph starts."""

MAX_HEADING_CHARACTERS = 120

CELL_GAP = 0.9
"""White space of this many font sizes inside a line separates two cells: justified text has less."""

MIN_CORRIDOR = 0.4
"""Font sizes between two columns of a table that no line crosses; a space is narrower."""

MIN_ALIGNED_CORRIDOR = 0.15
MIN_CORRIDOR_ROWS = 6

MIN_ROWS = 3
"""Minimum number of rows whose cells, returned as separate lines, are joined."""

MAX_CELL_WORDS = 6
"""Mean number of words of a line from which lines beside each other are columns of prose, not cells."""

MAX_ROW_DISTANCE = 3.5
"""Font sizes between two rows of one unruled table."""

MAX_INTERRUPTION = 4
"""Lines between two parts of one unruled table."""

MAX_REST_LINES = 2
"""Lines on each of two pages that a row between them may have, if they were not read as a part of its table."""

MAX_CROSSINGS = 250_000
"""Maximum number of pairs of horizontal and vertical lines compared on one page; only drawings have more."""

MAX_GRID_CELLS = 20_000

TOLERANCE = 2.0
"""Points by which the ends of two touching lines may differ."""

RUNNING_PAGES = 3
"""A line repeated at one height on this many pages, and on at least half of all, is a running header or footer."""

RUNNING_LINES = 3
"""Lines from the top and the bottom of a page that may be running headers or footers."""

_HYPHENS = "\x02\ufffe\xad"
_DIVIDED = re.compile(r"[^\W_]-$")
"""A hyphen at the end of a line, printed as a usual one."""
_WORD = re.compile(r"[^\W_]+")
_CONJUNCTIONS = frozenset({"and", "bis", "e", "et", "nor", "o", "oder", "or", "ou", "sowie", "to", "und", "y"})
"""Words after a hyphen that stands for the rest of a word, as in "short- and long-term"."""
_CJK = re.compile(r"[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]")
_BULLETS = "-*•·‣▪–○●◦□■➢❖✓"
_BULLET = re.compile(rf"[{_BULLETS}]\s")
_ITEM = re.compile(rf"^(?:[{_BULLETS}]\s|\(?\d{{1,3}}[.)、]\s|[（(]?[一二三四五六七八九十]+[)）、])")
_MARKER = re.compile(
    rf"(?:[{_BULLETS}o]|\(?(?:\d{{1,3}}|[a-zA-Z]|[ivxIVX]{{1,5}})[.)、]|[（(]?[一二三四五六七八九十]+[)）、])(?:\d+\.?)*"
)
_NUMBER = re.compile(r"\d+")
_FIGURE = re.compile(r"[(+−-]?[$€£¥]?\d[\d.,:/'%€$£¥)-]*")


class Word(NamedTuple):
    """A run of characters without white space; ``middle`` is its vertical centre."""

    text: str
    left: float
    right: float
    middle: float

    @property
    def centre(self) -> float:
        return (self.left + self.right) / 2


class Line:
    """Words on one baseline. ``base`` is the height of the baseline, ``size`` the font size in points."""

    __slots__ = ("_parts", "_text", "base", "size", "words")

    def __init__(self, words: Sequence[Word], size: float, base: float) -> None:
        self.words = words
        self.size = size
        self.base = base
        self._text = ""
        self._parts: Sequence[Word] = ()

    @property
    def text(self) -> str:
        if not self._text:
            self._text = " ".join([word.text for word in self.words])
        return self._text

    @property
    def left(self) -> float:
        return min(word.left for word in self.words)

    @property
    def right(self) -> float:
        return max(word.right for word in self.words)

    @property
    def parts(self) -> Sequence[Word]:
        """The line's pieces between wide gaps, each as one word."""
        if not self._parts:
            self._parts = [_merge(words) for words in split_at_gaps(self.words, self.size)]
        return self._parts

    def with_words(self, words: Sequence[Word]) -> Line:
        return Line(words, self.size, self.base)

    def with_parts(self, parts: Sequence[Word]) -> Line:
        line = Line(self.words, self.size, self.base)
        line._parts = parts
        return line


Segment = tuple[float, float, float]
"""A straight line: its start, its end, and its place on the other axis."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Straight lines of a page, merged by `merge_collinear`.

    Horizontal ones are (left, right, y), vertical ones (bottom, top, x).
    """

    horizontal: tuple[Segment, ...] = ()
    vertical: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True)
class PageTable:
    """Rows with equal numbers of cells. ``columns`` are the ends of each column; ``title`` is above the header."""

    rows: tuple[tuple[str, ...], ...]
    columns: tuple[tuple[float, float], ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """The contents of a page. ``after`` are blocks to add at its end, for example comments."""

    lines: tuple[Line, ...]
    rules: Rules = Rules()
    after: tuple[Block, ...] = ()
    scanned: bool = False


@dataclass(slots=True)
class Layout:
    """The blocks of a document, and the pages with ambiguous columns."""

    blocks: list[Block] = field(default_factory=list)
    unclear_pages: list[int] = field(default_factory=list)


def _merge(words: Sequence[Word]) -> Word:
    text = " ".join(word.text for word in words)
    return Word(text, words[0].left, max(word.right for word in words), words[0].middle)


def split_at_gaps(words: Sequence[Word], size: float) -> Iterator[list[Word]]:
    """Yield the runs of words between gaps of `CELL_GAP` font sizes."""
    run = [words[0]]
    for word, other in pairwise(words):
        if size > 0 and other.left - word.right > CELL_GAP * size:
            yield run
            run = []
        run.append(other)
    yield run


def lay_out(pages: Sequence[Page]) -> Layout:
    """Return the blocks of a document's pages, in order."""
    grids = [find_grids(page.rules) for page in pages]
    body = _body_size(pages)
    pages = _without_running_lines(pages, grids, body)
    sizes = _heading_sizes(pages, body)
    spacing = _line_spacing(pages)
    layout = Layout()
    open_table: PageTable | None = None
    for number, page in enumerate(pages, 1):
        items, unclear = _items(page, grids[number - 1])
        if unclear:
            layout.unclear_pages.append(number)
        for at, item in enumerate(items):
            if isinstance(item, PageTable):
                table = (
                    _continue_table(item, open_table) if open_table and not any(map(_is_table, items[:at])) else item
                )
                open_table = table
                blocks = _table_blocks(table, number)
            else:
                if open_table and not _is_rest_of_row(item, open_table):
                    open_table = None
                blocks = _prose(item, number, sizes, spacing)
            layout.blocks += (replace(block, scanned=page.scanned) for block in blocks)
        layout.blocks += page.after
    return layout


def join_lines(lines: Sequence[str]) -> str:
    """Join the lines of a paragraph, without spaces between Chinese characters and without hyphens of divided words.

    The hyphen stays before a capital letter or a digit (10-12), and in a word with another hyphen (state-of-the-art).
    """
    text = lines[0]
    for line in lines[1:]:
        if text and text[-1] in _HYPHENS:
            text = text[:-1] + line
        elif _DIVIDED.search(text) and (following := _WORD.match(line)):
            is_one_word = following[0][0].islower() and text[-2].isalpha() and "-" not in text[:-1].rpartition(" ")[2]
            gap = " " if following[0] in _CONJUNCTIONS else ""
            text = f"{text[:-1]}{line}" if is_one_word and not gap else f"{text}{gap}{line}"
        elif text and line and _CJK.match(text[-1]) and _CJK.match(line):
            text += line
        else:
            text += " " + line
    return text[:-1] if text and text[-1] in _HYPHENS else text


# Running headers and footers


def _without_running_lines(pages: Sequence[Page], grids: Sequence[Sequence[Grid]], body: float) -> Sequence[Page]:
    """Return the pages with each running header and footer on its first page only."""
    if len(pages) < RUNNING_PAGES:
        return pages
    places: dict[tuple[int, str], list[tuple[int, Line]]] = defaultdict(list)
    for number, page in enumerate(pages):
        for line in _outer_lines(page, grids[number]):
            if line.size < body * HEADING_RATIO:
                places[round(line.base / TOLERANCE), _NUMBER.sub("0", line.text)].append((number, line))
    printed = sum(1 for page in pages if page.lines)
    dropped: set[int] = set()
    for occurrences in places.values():
        repeated = [(number, line) for number, line in occurrences if _is_repetition(occurrences[0], (number, line))]
        if len({number for number, _ in repeated}) >= max(RUNNING_PAGES, printed // 2):
            dropped |= {id(line) for _, line in repeated[1:]}
    for page in pages:
        # By identity: a page may have two lines with the same text and place.
        if all(id(line) in dropped for line in page.lines):  # a page keeps some text
            dropped -= set(map(id, page.lines))
    if not dropped:
        return pages
    return [replace(page, lines=tuple(line for line in page.lines if id(line) not in dropped)) for page in pages]


def _outer_lines(page: Page, grids: Sequence[Grid]) -> list[Line]:
    """Return the highest and lowest lines of a page, without those that may be rows of a table."""
    by_height = sorted(page.lines, key=lambda line: -line.base)
    outer = by_height[:RUNNING_LINES] + by_height[RUNNING_LINES:][-RUNNING_LINES:]
    if not outer:
        return []
    return [
        line
        for line in outer
        if not any(grid.ys[-1] - TOLERANCE < line.base < grid.ys[0] + TOLERANCE for grid in grids)
        and not (len(line.parts) > 1 and any(_is_row_beside(line, other) for other in page.lines))
    ]


def _is_row_beside(line: Line, other: Line) -> bool:
    """Return whether two lines have cells and are close enough to be rows of one table."""
    distance = abs(line.base - other.base)
    return other is not line and 0 < distance <= MAX_ROW_DISTANCE * line.size and len(other.parts) > 1


def _is_repetition(first: tuple[int, Line], other: tuple[int, Line]) -> bool:
    """Return whether a line on another page repeats the first one; only the page number, from any start, may grow."""
    # Cut off, because Python refuses to convert a number of thousands of digits.
    numbers = [[int(number[:9]) for number in _NUMBER.findall(line.text)] for _, line in (first, other)]
    return all(after - before in (0, other[0] - first[0]) for before, after in zip(*numbers, strict=True))


# Prose


def _body_size(pages: Sequence[Page]) -> float:
    weight: Counter[float] = Counter()
    for page in pages:
        for line in page.lines:
            weight[line.size] += len(line.text) + 1
    rounded: Counter[float] = Counter()
    for size, characters in weight.items():
        rounded[round(size, 1)] += characters
    return rounded.most_common(1)[0][0] if rounded else 0.0


def _heading_sizes(pages: Sequence[Page], body: float) -> list[float]:
    """Return the font sizes of headings, largest first. The size of most characters is the body's.

    Sizes of scanned lines are estimates: there, a heading must be larger by half.
    """
    larger = {
        round(line.size, 1)
        for page in pages
        for line in page.lines
        if line.size >= body * (1.5 if page.scanned else HEADING_RATIO)
    }
    return sorted((size for size in larger if size >= body * HEADING_RATIO), reverse=True)


def _line_spacing(pages: Sequence[Page]) -> float:
    """Return the usual distance between lines of a paragraph, in font sizes."""
    pairs = ((above, below) for page in pages for above, below in pairwise(page.lines) if above.size == below.size > 0)
    return median_low(
        [(above.base - below.base) / above.size for above, below in pairs if above.base > below.base] or [1.2]
    )


def _prose(lines: Sequence[Line], page: int, sizes: list[float], spacing: float) -> Iterator[Block]:
    paragraph: list[str] = []
    titles: list[str] = []
    previous: Line | None = None
    for line in lines:
        size = round(line.size, 1)
        is_heading = size in sizes and len(line.text) <= MAX_HEADING_CHARACTERS and not _BULLET.match(line.text)
        apart = previous is None or not 0 <= previous.base - line.base <= spacing * PARAGRAPH_GAP * line.size
        if previous is not None and (apart or size != round(previous.size, 1) or _ITEM.match(line.text)):
            yield from _finish(paragraph, titles, previous, page, sizes)
        (titles if is_heading else paragraph).append(line.text)
        previous = line
    if previous is not None:
        yield from _finish(paragraph, titles, previous, page, sizes)


def _finish(paragraph: list[str], titles: list[str], line: Line, page: int, sizes: list[float]) -> Iterator[Block]:
    """Yield the block that ends with `line`; empties both lists."""
    if titles:
        yield heading(join_lines(titles), min(sizes.index(round(line.size, 1)) + 1, 6), page)
    if paragraph:
        yield Block("prose", join_lines(paragraph), page=page)
    titles.clear()
    paragraph.clear()


# Tables


def _table_blocks(table: PageTable, page: int) -> Iterator[Block]:
    if table.title:
        yield Block("prose", table.title, page=page)
    yield from (Block("table", text, page=page) for _, _, text in row_groups(table.rows))


def _is_table(item: PageTable | list[Line]) -> bool:
    return isinstance(item, PageTable)


def _is_rest_of_row(lines: Sequence[Line], table: PageTable) -> bool:
    """Return whether lines between two parts of a table are those of a row that a page's end divides.

    A line in the first column alone may be the title of another table.
    """
    parts = [part for line in lines for part in line.parts]
    is_title = any(len(line.parts) == 1 and _overlap(line.parts[0], table.columns[0]) > 0 for line in lines)
    return (
        not is_title
        and len(lines) <= MAX_REST_LINES
        and all(sum(_overlap(part, column) > 0 for column in table.columns) == 1 for part in parts)
    )


def _continue_table(table: PageTable, before: PageTable) -> PageTable:
    """Return the table with the header of the last table on the page before, if it continues that table."""
    header = before.rows[0]
    if table.title or len(before.rows) < 2 or table.rows[0] == header or not _same_columns(table, before):
        return table
    has_figures = sum(any(map(_NUMBER.search, row)) for row in before.rows[1:]) * 2 > len(before.rows) - 1
    if has_figures and all(table.rows[0]) and not any(map(_NUMBER.search, table.rows[0])):
        return table  # it has its own header
    return replace(table, rows=(header, *table.rows))


def _same_columns(table: PageTable, other: PageTable) -> bool:
    return len(table.columns) == len(other.columns) and all(
        min(a[1], b[1]) - max(a[0], b[0]) > 0.5 * min(a[1] - a[0], b[1] - b[0])
        for a, b in zip(table.columns, other.columns, strict=True)
    )


def _items(page: Page, grids: Sequence[Grid]) -> tuple[list[PageTable | list[Line]], bool]:
    """Return tables and runs of lines in reading order, and whether some columns are ambiguous."""
    unclear = False
    sequence: list[PageTable | Line] = list(page.lines)
    for grid in grids:
        sequence = _with_grid(sequence, grid)
    items: list[PageTable | list[Line]] = []
    run: list[Line] = []
    for item in [*sequence, None]:
        if isinstance(item, Line):
            run.append(item)
            continue
        if run:
            inner, was_unclear = _find_unruled(run, page.rules)
            items += inner
            unclear = unclear or was_unclear
            run = []
        if item is not None:
            items.append(item)
    return items, unclear


# Ruled tables


@dataclass(frozen=True, slots=True)
class Grid:
    """A ruled table: ascending ``xs`` and descending ``ys`` of its lines, and the region of each elementary cell.

    ``regions[row][column]`` is the (row, column) of the region's upper left cell.
    """

    xs: tuple[float, ...]
    ys: tuple[float, ...]
    regions: Regions
    rising: tuple[float, ...]
    """``ys`` in ascending order."""

    def row_at(self, y: float) -> int | None:
        """Return the row at a height, None outside the grid."""
        row = len(self.ys) - 1 - bisect_left(self.rising, y)
        return row if 0 <= row < len(self.ys) - 1 else None


def find_grids(rules: Rules) -> list[Grid]:
    """Return the grids that straight lines of a page form, from top to bottom."""
    horizontal, vertical = rules.horizontal, rules.vertical
    if not horizontal or len(vertical) < 2 or len(horizontal) * len(vertical) > MAX_CROSSINGS:
        return []
    groups = _group_connected(horizontal, vertical)
    grids = [grid for lines, posts in groups if (grid := _grid(lines, posts)) is not None]
    return sorted(grids, key=lambda grid: -grid.ys[0])


def merge_collinear(segments: Iterable[Segment]) -> list[Segment]:
    """Join touching segments of one line: tables are often drawn cell by cell."""
    merged: list[Segment] = []
    for position in _clusters(segments):
        start, end, at = position[0]
        for other in position[1:]:
            if other[0] <= end + TOLERANCE:
                end = max(end, other[1])
            else:
                merged.append((start, end, at))
                start, end, at = other
        merged.append((start, end, at))
    return merged


def _clusters(segments: Iterable[Segment]) -> Iterator[list[Segment]]:
    """Yield the segments of each line, sorted by their start."""
    cluster: list[Segment] = []
    for segment in sorted(segments, key=lambda line: line[2]):
        if cluster and segment[2] - cluster[-1][2] > TOLERANCE / 2:
            yield sorted(cluster)
            cluster = []
        cluster.append(segment)
    if cluster:
        yield sorted(cluster)


def _group_connected(
    horizontal: Sequence[Segment], vertical: Sequence[Segment]
) -> Iterator[tuple[list[Segment], list[Segment]]]:
    """Yield the groups of lines that touch each other."""
    if _is_one_group(horizontal, vertical):
        yield list(horizontal), list(vertical)
        return
    # Union-find: each line points to another line of its group, and the root of a group to itself.
    parents = list(range(len(horizontal) + len(vertical)))

    def root(at: int) -> int:
        while parents[at] != at:
            parents[at] = parents[parents[at]]
            at = parents[at]
        return at

    posts = [
        (at, bottom - TOLERANCE, top + TOLERANCE, x) for at, (bottom, top, x) in enumerate(vertical, len(horizontal))
    ]
    for row, (left, right, y) in enumerate(horizontal):
        start, end = left - TOLERANCE, right + TOLERANCE
        for column, low, high, x in posts:
            if start <= x <= end and low <= y <= high and parents[column] != parents[row]:
                parents[root(column)] = root(row)
    groups: dict[int, tuple[list[Segment], list[Segment]]] = defaultdict(lambda: ([], []))
    for at, segment in enumerate(horizontal):
        groups[root(at)][0].append(segment)
    for at, segment in enumerate(vertical, len(horizontal)):
        groups[root(at)][1].append(segment)
    yield from groups.values()


def _is_one_group(horizontal: Sequence[Segment], vertical: Sequence[Segment]) -> bool:
    """Return whether the longest line of each direction touches all lines of the other direction.

    This is true on most pages with one table, and far cheaper than comparing each pair of lines.
    """
    left, right, y = max(horizontal, key=lambda segment: segment[1] - segment[0])
    bottom, top, x = max(vertical, key=lambda segment: segment[1] - segment[0])
    left, right, bottom, top = left - TOLERANCE, right + TOLERANCE, bottom - TOLERANCE, top + TOLERANCE
    return all(
        start - TOLERANCE <= y <= end + TOLERANCE and left <= at <= right for start, end, at in vertical
    ) and all(start - TOLERANCE <= x <= end + TOLERANCE and bottom <= at <= top for start, end, at in horizontal)


def _grid(horizontal: Sequence[Segment], vertical: Sequence[Segment]) -> Grid | None:
    """Return the grid of lines that touch each other, or None if they are a box, a drawing or not rectangular."""
    if not horizontal or not vertical:
        return None
    left, right = min(segment[0] for segment in horizontal), max(segment[1] for segment in horizontal)
    bottom, top = min(segment[0] for segment in vertical), max(segment[1] for segment in vertical)
    xs = _positions([*(segment[2] for segment in vertical), left, right])
    ys = _positions([*(segment[2] for segment in horizontal), bottom, top])[::-1]
    rows, columns = len(ys) - 1, len(xs) - 1
    if columns < 2 or rows < 1 or rows * columns > MAX_GRID_CELLS:
        return None
    regions = _regions(xs, ys, horizontal, vertical)
    if regions is None or regions[0][0] == regions[-1][-1]:  # one region
        return None
    return Grid(tuple(xs), tuple(ys), regions, tuple(reversed(ys)))


def _positions(values: Iterable[float]) -> list[float]:
    positions: list[float] = []
    for value in sorted(values):
        if not positions or value - positions[-1] > TOLERANCE:
            positions.append(value)
    return positions


Regions = tuple[tuple[tuple[int, int], ...], ...]


def _regions(
    xs: Sequence[float], ys: Sequence[float], horizontal: Sequence[Segment], vertical: Sequence[Segment]
) -> Regions | None:
    """Merge cells without a line between them; return None if a merged region is not a rectangle."""
    rows, columns = len(ys) - 1, len(xs) - 1
    posts, beams = _segments_at(xs, vertical), _segments_at(ys, horizontal)
    if all(_is_whole(lines, ys[-1], ys[0]) for lines in posts[1:-1]) and all(
        _is_whole(lines, xs[0], xs[-1]) for lines in beams[1:-1]
    ):  # most tables: no cell is merged
        return tuple(tuple((row, column) for column in range(columns)) for row in range(rows))
    first = {(row, column): (row, column) for row in range(rows) for column in range(columns)}

    def root(cell: tuple[int, int]) -> tuple[int, int]:
        while first[cell] != cell:
            cell = first[cell]
        return cell

    def join(cell: tuple[int, int], other: tuple[int, int]) -> None:
        cell, other = root(cell), root(other)
        first[max(cell, other)] = min(cell, other)

    for row, column in list(first):
        x, y = (xs[column] + xs[column + 1]) / 2, (ys[row] + ys[row + 1]) / 2
        if column + 1 < columns and not _is_drawn(posts[column + 1], y):
            join((row, column), (row, column + 1))
        if row + 1 < rows and not _is_drawn(beams[row + 1], x):
            join((row, column), (row + 1, column))
    regions = tuple(tuple(root((row, column)) for column in range(columns)) for row in range(rows))
    return regions if _are_rectangles(regions) else None


def _segments_at(positions: Sequence[float], segments: Sequence[Segment]) -> list[Sequence[Segment]]:
    """Return the segments near each position."""
    segments = sorted(segments, key=lambda line: line[2])
    places = [segment[2] for segment in segments]
    return [
        segments[bisect_left(places, position - TOLERANCE) : bisect_right(places, position + TOLERANCE)]
        for position in positions
    ]


def _are_rectangles(regions: Regions) -> bool:
    cells: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for row, line in enumerate(regions):
        for column, region in enumerate(line):
            cells[region].append((row, column))
    return all(
        (members[-1][0] - members[0][0] + 1)
        * (max(column for _, column in members) - min(column for _, column in members) + 1)
        == len(members)
        for members in cells.values()
    )


def _is_whole(segments: Sequence[Segment], start: float, end: float) -> bool:
    return any(segment[0] - TOLERANCE <= start and end <= segment[1] + TOLERANCE for segment in segments)


def _is_drawn(segments: Sequence[Segment], along: float) -> bool:
    return any(start - TOLERANCE <= along <= end + TOLERANCE for start, end, _ in segments)


def _with_grid(sequence: Sequence[PageTable | Line], grid: Grid) -> list[PageTable | Line]:
    """Return the sequence with the lines inside a grid replaced by its table; lines partly inside are cut."""
    inside: dict[tuple[int, int], list[tuple[Line, list[Word]]]] = defaultdict(list)
    result: list[PageTable | Line] = []
    place: int | None = None
    xs = grid.xs
    no_regions: tuple[tuple[int, int], ...] = ()
    for item in sequence:
        if isinstance(item, PageTable):
            result.append(item)
            continue
        outside: list[Word] = []
        height, regions = math.nan, no_regions
        region: tuple[int, int] | None = None
        run: list[Word] = []
        for word in item.words:
            _, left, right, middle = word
            if middle != height:  # most words of a line have one height
                row = grid.row_at(middle)
                height, regions, region = middle, no_regions if row is None else grid.regions[row], None
            column = bisect_right(xs, (left + right) / 2) - 1
            if not 0 <= column < len(regions):
                outside.append(word)
                continue
            if regions[column] is not region:
                region = regions[column]
                cell_lines = inside[region]
                if not cell_lines or cell_lines[-1][0] is not item:
                    cell_lines.append((item, []))
                run = cell_lines[-1][1]
            run.append(word)
        if len(outside) < len(item.words) and place is None:
            place = len(result)
        if outside:
            result.append(item if len(outside) == len(item.words) else item.with_words(outside))
    if place is None or len(inside) < 2:
        return list(sequence)
    table = _ruled_table(grid, inside)
    if table is None:
        return list(sequence)
    result.insert(place, table)
    return result


def _ruled_table(grid: Grid, inside: dict[tuple[int, int], list[tuple[Line, list[Word]]]]) -> PageTable | None:
    columns = tuple(pairwise(grid.xs))
    rows: list[tuple[str, ...]] = []
    spans: list[Sequence[tuple[int, int]]] = []
    texts = {region: _cell_text(cell_lines) for region, cell_lines in inside.items()}
    for row, regions in enumerate(grid.regions):
        # At most a header and one ruled row below it: its cells may hold all rows of an unruled table body.
        if len(grid.ys) <= 3 and row == len(grid.ys) - 2:
            contents = {region: inside.get(region, []) for region in regions}
            split = _rows_without_lines(regions, contents)
            if split is not None:
                rows += split
                spans += [regions] * len(split)
                continue
        if len(regions) > 1 and regions[0] == regions[-1]:  # one cell over all columns: its text once
            text = texts.get(regions[0], "") if regions[0][0] == row else ""
            rows.append((text, *[""] * (len(regions) - 1)))
        else:
            rows.append(tuple([texts.get(region, "") for region in regions]))
        spans.append(regions)
    title: list[str] = []
    # A first row of one cell over all columns is the title of the table.
    while len(rows) > 1 and len(set(spans[0])) == 1:
        title += [rows[0][0]] if rows[0][0] else []
        rows, spans = rows[1:], spans[1:]
    filled_rows = [(row, regions) for row, regions in zip(rows, spans, strict=True) if any(row)]
    if not filled_rows:
        return None
    rows, spans = [row for row, _ in filled_rows], [regions for _, regions in filled_rows]
    # A cell of the first row spans columns: the header has a second row with the names of these columns.
    if len(rows) > 2 and len(set(spans[0])) < len(spans[0]):
        header = tuple(" ".join(dict.fromkeys(filter(None, cells))) for cells in zip(rows[0], rows[1], strict=True))
        rows = [header, *rows[2:]]
    used = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    if len(used) < 2:
        return None
    trimmed = tuple(tuple(row[at] for at in used) for row in rows)
    return PageTable(trimmed, tuple(columns[at] for at in used), join_lines(title) if title else "")


_LEFT = itemgetter(1)
"""The left end of a word."""


def _cell_text(cell_lines: Sequence[tuple[Line, list[Word]]]) -> str:
    """Return the text of a cell, its lines from top to bottom."""
    if not cell_lines:
        return ""
    if len(cell_lines) == 1:
        words = cell_lines[0][1]
        if len(words) == 1:
            return words[0][0]
        if len({word[3] for word in words}) == 1:
            return join_lines([" ".join([word[0] for word in sorted(words, key=_LEFT)])])
    size = max(cell_lines[0][0].size, 1.0)
    lines: list[tuple[float, list[Word]]] = []
    for _, words in sorted(cell_lines, key=lambda entry: -entry[1][0].middle):
        if lines and abs(lines[-1][0] - words[0].middle) < 0.4 * size:
            lines[-1][1].extend(words)
        else:
            lines.append((words[0].middle, list(words)))
    return join_lines([" ".join(word.text for word in sorted(words, key=_LEFT)) for _, words in lines])


def _rows_without_lines(
    regions: Sequence[tuple[int, int]], contents: dict[tuple[int, int], list[tuple[Line, list[Word]]]]
) -> list[tuple[str, ...]] | None:
    """Return the rows of a table body with ruled columns and unruled rows, or None if it is a single row."""
    heights: list[_TableRow] = []
    for column, region in enumerate(regions):
        if regions.index(region) != column:
            continue
        for line, words in contents[region]:
            row = next((existing for existing in heights if abs(existing.base - line.base) < 0.4 * line.size), None)
            if row is None:
                row = _TableRow(line.base, line.size, [""] * len(regions), line.base)
                heights.append(row)
            row.cells[column] = " ".join(filter(None, [row.cells[column], *(word.text for word in words)]))
    full = [row for row in heights if row.cells[0] and sum(map(bool, row.cells)) > 1]
    if len(full) < 3:
        return None
    return [tuple(row.cells) for row in _stack(sorted(heights, key=lambda row: -row.base), ())]


# Tables without lines


@dataclass(slots=True)
class _TableRow:
    """One row of a table, from one line of cells or several. ``last`` is the base of the lowest line."""

    base: float
    size: float
    cells: list[str]
    last: float

    @property
    def filled(self) -> list[int]:
        return [at for at, cell in enumerate(self.cells) if cell]


def _find_unruled(lines: Sequence[Line], rules: Rules) -> tuple[list[PageTable | list[Line]], bool]:
    """Find tables by their columns; return them with the lines between, and whether some columns are ambiguous."""
    lines = _join_rows(_local_order(lines))
    items: list[PageTable | list[Line]] = []
    unclear = False
    done = 0
    for start, end in _candidate_runs(lines):
        start = max(start, done)
        run = lines[start:end]
        if sum(len(line.parts) > 1 for line in run) < 2:
            continue
        if _is_marked_list(run):
            continue
        if columns := _prose_columns(run):
            if done < start:
                items.append(list(lines[done:start]))
            items += columns
            done = end
            continue
        result = _find_table(lines, start, end, done, rules)
        unclear = unclear or result is None
        if result is None:
            continue
        table, first, end = result
        before = items[-1] if items and first - done <= MAX_INTERRUPTION else None
        if isinstance(before, PageTable) and table.rows[0] != before.rows[0]:
            table = _below_same_header(table, before)
        if done < first:
            items.append(list(lines[done:first]))
        items.append(table)
        done = end
    if done < len(lines):
        items.append(list(lines[done:]))
    return items, unclear


def _find_table(
    lines: Sequence[Line], start: int, end: int, free: int, rules: Rules
) -> tuple[PageTable, int, int] | None:
    """Return the table of a run with the numbers of its first line and of the line below it, or None."""
    result = _table_of_run(lines, start, end, free, rules)
    if result is not None:
        return *result, end
    if between := _table_between_corridors(lines, start, end, free, rules):
        return between
    if end - start > MIN_ROWS:
        # The headings over groups of columns are in no single column.
        below = _table_of_run(lines, start + 1, end, start + 1, rules)
        if below is not None and (joined := _with_groups(below[0], lines[start])):
            return joined, start, end
        if below is not None and _is_header(below[0].rows[0]):
            return *below, end
    return None


def _table_between_corridors(
    lines: Sequence[Line], start: int, end: int, free: int, rules: Rules
) -> tuple[PageTable, int, int] | None:
    """Return the table around a run whose cells stand as near to each other as words do, with its first and last line.

    Its columns, at least three, are divided where no word of any line stands. Returns None if the first line, the
    header, does not fill all columns, if a row inside the table has no first cell, which may be the rest of a cell in
    another row, or if two columns may be one.
    """
    corridors = _corridors(lines[start:end])
    while start > free and (narrower := _beside_row(corridors, lines[start - 1], lines[start])):
        corridors = narrower
        start -= 1
    while end < len(lines) and (narrower := _beside_row(corridors, lines[end], lines[end - 1])):
        below = lines[end].base - MAX_ROW_DISTANCE * lines[end].size
        if lines[end].right <= narrower[0][0] and not any(below < y < lines[end].base for _, _, y in rules.horizontal):
            break  # a line below the table that is short enough for the first column
        corridors = narrower
        end += 1
    count, starts = len(corridors), [right for _, right in corridors]
    if count < 2 or end - start < MIN_CORRIDOR_ROWS:
        return None
    for first in range(start, start + MIN_ROWS):
        divided = _divide(lines[first:end], starts)
        if len(divided[0].parts) > count:
            result = _table_of_run(divided, 0, len(divided), 0, rules)
            return (result[0], first, end) if result is not None and _is_plausible(result[0].rows) else None
    return None


def _is_plausible(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether there is a header, each row has a first cell, and no column has texts with figures behind them."""
    if any(map(_FIGURE.fullmatch, rows[0])) or not all(row[0] for row in rows[1:-1]):
        return False
    for header, *cells in zip(*rows, strict=True):
        words = [cell.split() for cell in cells if cell]
        if " " in header and sum(len(cell) > 1 and bool(_FIGURE.fullmatch(cell[-1])) for cell in words) * 2 > len(
            words
        ):
            return False
    return True


def _beside_row(corridors: Sequence[tuple[float, float]], line: Line, row: Line) -> list[tuple[float, float]] | None:
    """Return corridors without the space of another line, or None if that is no row of the table beside this row."""
    distance = abs(line.base - row.base)
    if abs(line.size - row.size) > 0.11 * row.size or distance > MAX_ROW_DISTANCE * row.size:
        return None
    narrower = []
    for left, right in corridors:
        middle = (left + right) / 2
        left = max([left, *(word.right for word in line.words if word.centre < middle)])
        right = min([right, *(word.left for word in line.words if word.centre >= middle)])
        if right - left < MIN_ALIGNED_CORRIDOR * row.size:
            return None
        narrower.append((left, right))
    return narrower


def _corridors(lines: Sequence[Line]) -> list[tuple[float, float]]:
    """Return the gaps between the words of all lines that divide columns.

    Such a gap is wider than a space, or most lines have a word that ends where it begins or begins where it ends.
    """
    size = lines[0].size
    spans = _unions(word for line in lines for word in line.words)
    gaps = [(left, right) for (_, left), (right, _) in pairwise(spans) if right - left >= MIN_ALIGNED_CORRIDOR * size]
    return [
        (left, right) for left, right in gaps if right - left >= MIN_CORRIDOR * size or _is_aligned(lines, left, right)
    ]


def _is_aligned(lines: Sequence[Line], left: float, right: float) -> bool:
    near = MIN_ALIGNED_CORRIDOR * lines[0].size
    ends = sum(any(abs(word.right - left) < near for word in line.words) for line in lines)
    starts = sum(any(abs(word.left - right) < near for word in line.words) for line in lines)
    return max(ends, starts) * 2 > len(lines)


def _divide(lines: Sequence[Line], starts: Sequence[float]) -> list[Line]:
    """Return the rows of words in these lines, from top to bottom, each divided where another column starts.

    A PDF has cells that are centred beside a wrapped one as parts of its lines, although they are not as high.
    """
    size = lines[0].size
    drop = median(line.words[0].middle - line.base for line in lines)
    words = sorted((word for line in lines for word in line.words), key=lambda word: -word.middle)
    divided: list[Line] = []
    start = 0
    while start < len(words):
        height, end = words[start].middle, start + 1
        while end < len(words) and height - words[end].middle < 0.3 * size:
            end += 1
        row = sorted(words[start:end], key=_LEFT)
        start = end
        cells = groupby(row, lambda word: bisect_right(starts, word.centre))
        divided.append(Line(row, size, height - drop).with_parts([_merge(list(members)) for _, members in cells]))
    return divided


def _is_header(row: Sequence[str]) -> bool:
    """Return whether a row has names for at least three columns; the first one may have none."""
    return len(row) > 2 and all(row[1:]) and not any(map(_FIGURE.fullmatch, row))


def _with_groups(table: PageTable, line: Line) -> PageTable | None:
    """Return a table whose header includes a line of headings over groups of columns.

    Each heading is centred over its group, and the groups are equally wide and end at the last column. Returns None if
    that is true for no size of groups, or for two.
    """
    count, columns = len(line.parts), table.columns
    headers = []
    for first in range(len(columns)):
        width, rest = divmod(len(columns) - first, count)
        starts = range(first, len(columns), width) if width > 1 and not rest else ()
        spans = [(columns[start][0], columns[start + width - 1][1]) for start in starts]
        if spans and all(
            abs(part.centre - (left + right) / 2) < line.size
            for part, (left, right) in zip(line.parts, spans, strict=True)
        ):
            names = ["", *(part.text for part in line.parts)]
            header = [
                f"{names[max(0, at - first + width) // width]} {cell}".strip() for at, cell in enumerate(table.rows[0])
            ]
            headers.append(tuple(header))
    return replace(table, rows=(headers[0], *table.rows[1:])) if len(headers) == 1 else None


def _join_rows(lines: Sequence[Line]) -> list[Line]:
    """Join the cells of a row that PDFium returns as lines of one height, because the gaps between them are wide.

    Only at least `MIN_ROWS` such rows, one below the other and with short texts, are a table.
    """
    rows: list[list[Line]] = []
    for line in lines:
        last = rows[-1][-1] if rows else None
        if last is not None and _is_beside(last, line):
            rows[-1].append(line)
        else:
            rows.append([line])
    joined: list[Line] = []
    run: list[list[Line]] = []
    for row in [*rows, []]:
        has_cells = len(row) > 1 or (bool(row) and len(row[0].parts) > 1)
        is_next = has_cells and (not run or 0 < run[-1][0].base - row[0].base <= MAX_ROW_DISTANCE * row[0].size)
        if not is_next:
            joined += _joined_run(run)
            run = []
        if has_cells:
            run.append(row)
        else:
            joined += row
    return joined


def _joined_run(rows: Sequence[Sequence[Line]]) -> Iterator[Line]:
    pieces = [line for row in rows for line in row]
    is_table = len(rows) >= MIN_ROWS and sum(len(line.words) for line in pieces) < MAX_CELL_WORDS * len(pieces)
    for row in rows:
        if is_table and len(row) > 1:
            yield row[0].with_words([word for line in row for word in line.words])
        else:
            yield from row


def _is_beside(line: Line, other: Line) -> bool:
    """Return whether a line is to the right of another one, at the same height and in the same size."""
    return (
        abs(line.base - other.base) < 0.1 * line.size
        and abs(line.size - other.size) < 0.11 * line.size
        and other.left >= line.right
    )


def _local_order(lines: Sequence[Line]) -> list[Line]:
    """Sort the lines within each row from top to bottom.

    A PDF stores a wrapped cell after its row, even if the cell begins higher. Columns of text, whose lines are far
    higher than the lines before them, stay one after the other.
    """
    ordered: list[Line] = []
    for line in lines:
        at = len(ordered)
        while at and len(ordered) - at < 8 and 0.35 * line.size < line.base - ordered[at - 1].base <= 4 * line.size:
            if ordered[at - 1].left < line.right and line.left < ordered[at - 1].right:
                break  # one is above the other: not parts of one row
            at -= 1
        ordered.insert(at, line)
    return ordered


def _below_same_header(table: PageTable, before: PageTable) -> PageTable:
    """Return the table with the header of the table closely above it, if its columns are a subset of that table's."""
    places = []
    for column in table.columns:
        overlapping = [
            at for at, other in enumerate(before.columns) if min(column[1], other[1]) > max(column[0], other[0])
        ]
        if len(overlapping) != 1:
            return table
        places.append(overlapping[0])
    if len(set(places)) < len(places):
        return table
    rows = []
    for row in table.rows:
        cells = [""] * len(before.columns)
        for place, cell in zip(places, row, strict=True):
            cells[place] = cell
        rows.append(tuple(cells))
    return PageTable((before.rows[0], *rows), before.columns)


def _candidate_runs(lines: Sequence[Line]) -> list[tuple[int, int]]:
    """Return runs that begin and end with lines of several parts; lines of one part may be between."""
    runs: list[tuple[int, int]] = []
    rows = [at for at, line in enumerate(lines) if len(line.parts) > 1]
    at = 0
    while at < len(rows):
        last = at
        while last + 1 < len(rows) and _is_same_run(lines, rows[last], rows[last + 1]):
            last += 1
        end = rows[last] + 1
        while end < len(lines) and _continues_cell(lines, rows[at], rows[last], end):
            end += 1
        if last > at:
            runs.append((rows[at], end))
        at = last + 1
    return runs


def _is_same_run(lines: Sequence[Line], first: int, other: int) -> bool:
    """Return whether two lines with several parts may be rows of one table, judged by the lines between."""
    size = lines[first].size
    between = lines[first : other + 1]
    if other - first > 8 or any(abs(line.size - size) > 0.11 * size for line in between):
        return False
    if any(not -0.4 * size <= above.base - below.base <= MAX_ROW_DISTANCE * size for above, below in pairwise(between)):
        return False
    parts = [*lines[first].parts, *lines[other].parts]
    columns = _unions(parts)
    return all(sum(_overlap(line.parts[0], column) > 0 for column in columns) < 2 for line in between[1:-1])


def _continues_cell(lines: Sequence[Line], first: int, last: int, at: int) -> bool:
    """Return whether a line after the last row of several parts continues one of its cells."""
    above, line = lines[at - 1], lines[at]
    distance = above.base - line.base
    near = -0.35 * line.size <= distance <= 1.35 * line.size
    if len(line.parts) > 1 or abs(line.size - above.size) > 0.11 * above.size or not near:
        return False
    row = lines[last].parts
    rows = pairwise(lines[first : last + 1])
    pitches = [pitch for upper, other in rows if len(other.parts) > 1 and (pitch := upper.base - other.base) > 0]
    if pitches and distance > 0.9 * min(pitches):
        return False
    return _fits_one(line.parts[0], [part for run_line in lines[first : last + 1] for part in run_line.parts]) and (
        line.left > row[0].right or line.right < row[1].left
    )


def _fits_one(part: Word, parts: Sequence[Word]) -> bool:
    """Return whether a part overlaps exactly one column of the parts of rows."""
    columns = _unions(parts)
    return sum(_overlap(part, column) > 0 for column in columns) == 1


def _unions(parts: Iterable[Word | tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the unions of overlapping spans, from left to right."""
    spans = sorted((part.left, part.right) if isinstance(part, Word) else part for part in parts)
    columns: list[tuple[float, float]] = []
    for left, right in spans:
        if columns and left < columns[-1][1] - 0.5:
            columns[-1] = columns[-1][0], max(columns[-1][1], right)
        else:
            columns.append((left, right))
    return columns


def _overlap(part: Word, column: tuple[float, float]) -> float:
    return min(part.right, column[1]) - max(part.left, column[0])


def _is_marked_list(run: Sequence[Line]) -> bool:
    """Return whether the first parts of the lines are bullets or numbers of a list, each followed by its text."""
    rows = [line.parts for line in run if len(line.parts) > 1]
    return all(len(row) == 2 and _MARKER.fullmatch(row[0].text) for row in rows)


def _prose_columns(run: Sequence[Line]) -> list[list[Line]] | None:
    """Return columns of running text that a PDF stores line by line across columns, or None for any other run."""
    rows = [line for line in run if len(line.parts) > 1]
    if len(rows) < 4 or len(rows) < 0.7 * len(run):
        return None
    columns = _unions(part for line in rows for part in line.parts)
    if not 2 <= len(columns) <= 3:
        return None
    cells = [[(line, part) for line in run for part in line.parts if _overlap(part, column) > 0] for column in columns]
    for column, members in zip(columns, cells, strict=True):
        words = sum(len(part.text.split()) + len(part.text) // 12 for _, part in members) / max(len(members), 1)
        width = median(part.right - part.left for _, part in members)
        if words < 6 or width < 0.8 * (column[1] - column[0]):
            return None
    return [[line.with_words([part]) for line, part in members] for members in cells]


def _table_of_run(lines: Sequence[Line], start: int, end: int, free: int, rules: Rules) -> tuple[PageTable, int] | None:
    """Return the table of a run with the number of its first line, which may be a header above the run.

    Returns None if the columns are ambiguous.
    """
    run = lines[start:end]
    columns = _columns(run)
    if columns is None:
        return None
    rows = _rows_of(run, columns)
    if rows is None:
        return None
    first = start
    while first > free and (row := _header_above(lines[first - 1], lines[first], columns)) is not None:
        rows.insert(0, row)
        first -= 1
        if all(row.cells):
            break
    else:
        rows, first = rows[start - first :], start  # a line that fills only some columns may not be a header
    columns, rows = _without_complements(columns, rows)
    bands = sorted({y for left, right, y in rules.horizontal if right - left > 0.6 * (columns[-1][1] - columns[0][0])})
    stacked = _stack(rows, bands)
    if len(stacked) < 2 or len(columns) < 2:
        return None
    return PageTable(tuple(tuple(row.cells) for row in stacked), tuple(columns)), first


def _columns(run: Sequence[Line]) -> list[tuple[float, float]] | None:
    """Return the columns of a run as unions of overlapping parts, or None if a row has two parts in one column."""
    rows = [line.parts for line in run if len(line.parts) > 1]
    most = max(map(len, rows))
    full = [row for row in rows if len(row) == most]
    base = _unions(part for row in full for part in row)
    if len(base) < most:
        return None
    parts = [part for line in run for part in line.parts if sum(_overlap(part, column) > 0.5 for column in base) < 2]
    columns = _unions(parts)
    return columns if len(columns) >= most else None


def _rows_of(run: Sequence[Line], columns: Sequence[tuple[float, float]]) -> list[_TableRow] | None:
    """Return the cells of each line, or None if a part spans several columns or two parts share one."""
    rows: list[_TableRow] = []
    for line in run:
        same = rows[-1] if rows and abs(rows[-1].base - line.base) < 0.35 * line.size else None
        row = same or _TableRow(line.base, line.size, [""] * len(columns), line.base)
        for part in line.parts:
            at = _column_of(part, columns)
            if at is None or row.cells[at]:
                return None
            row.cells[at] = part.text
        if same is None:
            rows.append(row)
    return rows


def _column_of(part: Word, columns: Sequence[tuple[float, float]]) -> int | None:
    overlaps = [(_overlap(part, column), at) for at, column in enumerate(columns)]
    overlapping = [at for overlap, at in overlaps if overlap > 0.5]
    if len(overlapping) == 1:
        return overlapping[0]
    if not overlapping and max(overlaps)[0] > -0.5:
        return max(overlaps)[1]
    return None


def _header_above(line: Line, below: Line, columns: Sequence[tuple[float, float]]) -> _TableRow | None:
    """Return the cells of a line above a table if its words are in several of the columns, else None."""
    distance = line.base - below.base
    if abs(line.size - below.size) > 0.11 * below.size or not 0 < distance <= 2.5 * line.size or len(line.words) > 40:
        return None
    middles = [(column[1] + other[0]) / 2 for column, other in pairwise(columns)]
    cells: list[list[Word]] = [[] for _ in columns]
    for word in line.words:
        if sum(_overlap(word, column) > 0.5 for column in columns) > 1:
            return None
        at = _column_of(word, columns)
        cells[bisect_right(middles, word.centre) if at is None else at].append(word)
    filled = [words for words in cells if words]
    if len(filled) < 2 or any(other[0].left - cell[-1].right < 0.45 * line.size for cell, other in pairwise(filled)):
        return None
    if [word for words in cells for word in words] != list(line.words):
        return None
    return _TableRow(line.base, line.size, [" ".join(word.text for word in words) for words in cells], line.base)


def _without_complements(
    columns: list[tuple[float, float]], rows: list[_TableRow]
) -> tuple[list[tuple[float, float]], list[_TableRow]]:
    """Join a column that has only a header with a neighbour without one, as happens with right-aligned figures."""
    at = 0
    while at + 1 < len(columns):
        header, *body = rows
        own, other = [bool(row.cells[at]) for row in body], [bool(row.cells[at + 1]) for row in body]
        least = max(2, round(0.6 * len(body)))  # a few cells beside a header are cells of a column without one
        is_left = header.cells[at] and not header.cells[at + 1] and not any(own) and sum(other) >= least
        is_right = header.cells[at + 1] and not header.cells[at] and not any(other) and sum(own) >= least
        ambiguous = is_left and at > 0 and not header.cells[at - 1]
        if (is_left or is_right) and not ambiguous:
            columns = [*columns[:at], (columns[at][0], columns[at + 1][1]), *columns[at + 2 :]]
            for row in rows:
                row.cells[at : at + 2] = [row.cells[at] or row.cells[at + 1]]
            continue
        at += 1
    return columns, rows


def _stack(rows: Sequence[_TableRow], bands: Sequence[float]) -> list[_TableRow]:
    """Join lines that continue the cells of the row above or below them.

    Horizontal rules (``bands``) between two lines keep them apart. Lines between two rules are one row if at most one
    of them fills several columns. A line that fills one column continues the nearest row. A line without its first
    cell, close below a row, continues that row if rows are further apart.
    """
    rows = _join_between_rules(rows, bands)
    distances = [upper.base - other.base for upper, other in pairwise(rows) if upper.base > other.base]
    full = [row for row in rows if row.cells[0] and len(row.filled) > 1]
    pitches = [upper.base - other.base for upper, other in pairwise(full) if upper.base > other.base]
    pitch = min(pitches, default=0.0)
    least = min(distances, default=0.0)
    result: list[_TableRow] = []
    for at, row in enumerate(rows):
        above = result[-1] if result else None
        below = rows[at + 1] if at + 1 < len(rows) else None
        if above is not None and _ruled_between(bands, above.last, row.base):
            above = None
        if below is not None and _ruled_between(bands, row.base, below.base):
            below = None
        if _is_continuation(row, above, pitch, least):
            assert above is not None
            if below is not None and len(row.filled) == 1 and _is_nearer(row, below, above):
                rows[at + 1].cells[:] = _join_cells(row.cells, below.cells)
            else:
                above.cells[:] = _join_cells(above.cells, row.cells)
                above.last = row.base
            continue
        if above is None and below is not None and len(row.filled) == 1 and 0 < row.base - below.base < 0.95 * row.size:
            below.cells[:] = _join_cells(row.cells, below.cells)  # the first line of a cell centred beside its row
            continue
        result.append(_TableRow(row.base, row.size, list(row.cells), row.last))
    return result


def _join_between_rules(rows: Sequence[_TableRow], bands: Sequence[float]) -> Sequence[_TableRow]:
    if not bands:
        return rows
    result: list[_TableRow] = []
    for _, group in groupby(rows, lambda row: bisect_right(bands, row.base)):
        lines = list(group)
        if sum(len(row.filled) > 1 for row in lines) <= 1 or _is_one_row(lines):
            cells = [""] * len(lines[0].cells)
            for row in lines:
                cells = _join_cells(cells, row.cells)
            lines = [_TableRow(lines[0].base, lines[0].size, cells, lines[-1].base)]
        result += lines
    return result


def _is_one_row(lines: Sequence[_TableRow]) -> bool:
    """Return whether lines between two rules are a row with one wrapped text, beside which others may be centred."""
    columns = [[line.cells[at] for line in lines if line.cells[at]] for at in range(len(lines[0].cells))]
    wrapped = [cells for cells in columns if len(cells) > 1]
    figures = any(sum(_NUMBER.search(cell) is not None for cell in cells) > 1 for cells in wrapped)
    texts = sum(sum(any(map(str.isalpha, cell)) for cell in cells) > 1 for cells in wrapped)
    return len(columns[0]) == 1 and texts <= 1 and not (figures and len(wrapped) > 1)


def _is_continuation(row: _TableRow, above: _TableRow | None, pitch: float, least: float) -> bool:
    if above is None or not row.filled:
        return False
    distance = above.last - row.base
    if len(row.filled) == 1:
        is_label = row.filled == [0] and distance > 1.15 * least and distance >= 0.9 * pitch > 0
        return not is_label and distance <= 1.6 * row.size
    return not row.cells[0] and distance <= 1.12 * least and least < 0.8 * pitch and distance <= 1.35 * row.size


def _is_nearer(row: _TableRow, below: _TableRow, above: _TableRow) -> bool:
    return row.base - below.base < 0.8 * (above.last - row.base) and row.base - below.base < 0.95 * row.size


def _ruled_between(bands: Sequence[float], high: float, low: float) -> bool:
    return any(low < band < high for band in bands)


def _join_cells(above: Sequence[str], below: Sequence[str]) -> list[str]:
    return [join_lines([*filter(None, pair)]) if any(pair) else "" for pair in zip(above, below, strict=True)]
