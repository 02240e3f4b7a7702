"""Results of OCR on images of pages: lines with their positions, and their layout.

The server stores a `ScanPage` with its document: highlights use its boxes, and parsing the document again needs no OCR.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple, Self, TypedDict

from mcp_servers.retriever.document import Json
from mcp_servers.retriever.formats.layout import Line, Page, Word

SIZE_OF_HEIGHT = 0.72
"""Ratio of a line's font size to the height of its box."""

SIZE_STEP = 1.45
"""Lines whose sizes differ by less than this factor get the same size, because boxes are inexact."""

Corners = tuple[float, float, float, float, float, float, float, float]
"""x and y of the upper left, upper right, lower right and lower left corner, along the text, as shares of the page."""


@dataclass(frozen=True, slots=True)
class ScanLine:
    """A line of text with the corners of its box; shares count from the page's upper left corner."""

    text: str
    score: float
    corners: Corners

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom as shares of the page."""
        xs, ys = self.corners[::2], self.corners[1::2]
        return min(xs), min(ys), max(xs), max(ys)


NO_TEXT_LAYER = "no text layer on"
"""Beginning of the note on pages that were not read, because they are images."""
BY_MODEL = "model"
"""``reader`` of a page that a language model has read; its lines are Markdown and have no position."""


class ScanForm(TypedDict):
    """A `ScanPage` as JSON values. A line is its text, its score and its eight corners."""

    page: int
    width: float
    height: float
    turn: int
    lines: list[list[str | float]]
    error: str | None
    reader: str


@dataclass(frozen=True, slots=True)
class ScanPage:
    """The result of OCR, or of a language model, on a page of this size.

    ``turn`` is the clockwise rotation of the text in degrees: 0, 90, 180 or 270. ``error`` is the reason if reading
    failed, or why the lines are not all. ``reader`` is `BY_MODEL`, or empty for OCR.
    """

    page: int
    width: float
    height: float
    turn: int
    lines: tuple[ScanLine, ...]
    error: str | None = None
    reader: str = ""

    def to_json(self) -> ScanForm:
        """Return the page as JSON values; `from_json` reverses it."""
        return {
            "page": self.page,
            "width": self.width,
            "height": self.height,
            "turn": self.turn,
            "lines": [[line.text, line.score, *line.corners] for line in self.lines],
            "error": self.error,
            "reader": self.reader,
        }

    @classmethod
    def from_json(cls, data: Json) -> Self:
        """Reverse `to_json`. Raises KeyError, TypeError and ValueError on anything else."""
        lines = []
        for text, score, *numbers in data["lines"]:
            left_x, left_y, right_x, right_y, end_x, end_y, last_x, last_y = map(float, numbers)
            corners = (left_x, left_y, right_x, right_y, end_x, end_y, last_x, last_y)
            lines.append(ScanLine(str(text), float(score), corners))
        return cls(
            int(data["page"]),
            float(data["width"]),
            float(data["height"]),
            int(data["turn"]),
            tuple(lines),
            data.get("error"),
            data.get("reader", ""),
        )


@dataclass(frozen=True, slots=True)
class Scans:
    """Scanned pages that have been read, by number.

    ``wanted`` means that further pages can be read if the reader names them. ``limit`` is the most pages that are read
    of a document. ``by_model``: a language model reads them instead of OCR.
    """

    pages: Mapping[int, ScanPage] = field(default_factory=dict)
    wanted: bool = False
    limit: int | None = None
    by_model: bool = False


class ScansWanted(Exception):
    """Pages without a text layer, which OCR should read before the document is parsed again. ``pages`` count from 1."""

    def __init__(self, pages: Sequence[int], count: int) -> None:
        super().__init__(f"{len(pages)} pages are to be read by OCR")
        self.pages = tuple(pages)
        self.count = count


def lay_out_scan(scan: ScanPage) -> Page:
    """Return a page's lines in an upright frame: turned by its direction, then by the mean slope of its lines.

    The lines of a language model are Markdown without positions: they become blocks at once.
    """
    if scan.reader == BY_MODEL:
        from mcp_servers.retriever.formats.markdown import markdown_blocks  # loaded only for such pages

        blocks = markdown_blocks("\n".join(line.text for line in scan.lines))
        own = (replace(block, page=scan.page, scanned=True, scanned_by=BY_MODEL) for block in blocks)
        return Page((), after=tuple(block for block in own if block.text.strip()))
    lines = []
    for pieces in _rows(scan):
        first = pieces[0]
        lines.append(Line([piece.word for piece in pieces], first.size, first.word.middle - first.size / 3))
    return Page(tuple(lines), scanned=True)


def in_reading_order(scan: ScanPage) -> list[ScanLine]:
    """Return the lines of a page in the order of `lay_out_scan`."""
    return [piece.line for pieces in _rows(scan) for piece in pieces]


class _Piece(NamedTuple):
    """A line that OCR found, in the upright frame."""

    word: Word
    size: float
    line: ScanLine


def _rows(scan: ScanPage) -> list[list[_Piece]]:
    """Return the pieces from top to bottom; pieces at one height form a row, from left to right."""
    boxes = [_points(scan, line) for line in scan.lines]
    slope = _mean_slope(boxes)
    cos, sin = math.cos(-slope), math.sin(-slope)
    upright = [[(x * cos - y * sin, x * sin + y * cos) for x, y in box] for box in boxes]
    heights = [max(1.0, math.dist(box[0], box[3])) for box in upright]
    body = median(heights) if heights else 1.0
    pieces = []
    for line, box, height in zip(scan.lines, upright, heights, strict=True):
        left, right = min(x for x, _ in box), max(x for x, _ in box)
        differs = not body / SIZE_STEP <= height <= body * SIZE_STEP
        step = round(math.log(height / body, SIZE_STEP)) if differs else 0
        size = round(SIZE_OF_HEIGHT * body * SIZE_STEP**step, 1)
        pieces.append(_Piece(Word(line.text, left, right, sum(y for _, y in box) / 4), size, line))
    rows: list[list[_Piece]] = []
    for piece in sorted(pieces, key=lambda item: -item.word.middle):
        last = rows[-1][0] if rows else None
        if last is not None and abs(last.word.middle - piece.word.middle) < 0.55 * min(piece.size, last.size):
            rows[-1].append(piece)
        else:
            rows.append([piece])
    return [sorted(row, key=lambda item: item.word.left) for row in rows]


def _points(scan: ScanPage, line: ScanLine) -> list[tuple[float, float]]:
    """Return the corners in points, with y upwards, turned so that text of the page's direction runs to the right."""
    turned = {0: (1, 0), 90: (0, -1), 180: (-1, 0), 270: (0, 1)}[scan.turn]
    cos, sin = turned[0], -turned[1]
    points = [
        (x * scan.width, (1 - y) * scan.height) for x, y in zip(line.corners[::2], line.corners[1::2], strict=True)
    ]
    return [(x * cos - y * sin, x * sin + y * cos) for x, y in points]


def _mean_slope(boxes: Sequence[Sequence[tuple[float, float]]]) -> float:
    """Return the angle of the lines in radians, weighted by their lengths, because long lines are more precise."""
    across = sum(box[1][0] - box[0][0] for box in boxes)
    up = sum(box[1][1] - box[0][1] for box in boxes)
    angle = math.atan2(up, across) if across > 0 else 0.0
    return angle if abs(angle) < math.radians(20) else 0.0
