"""Measure table reading on thirty generated PDFs: the share of cells read in the right row below the right header.

Run `python -m bench.reading.tables`. Kinds: ruled, unruled, turned pages, merged, wrapped and empty cells, Chinese.
"""

import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from reportlab.lib import colors
from reportlab.lib.pagesizes import A4, landscape
from reportlab.lib.styles import getSampleStyleSheet
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.cidfonts import UnicodeCIDFont
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import Paragraph, SimpleDocTemplate, Spacer, Table, TableStyle

from mcp_servers.retriever.document import split_row
from mcp_servers.retriever.parsing import parse

pdfmetrics.registerFont(UnicodeCIDFont("STSong-Light"))

NOUNS = [
    "pump",
    "seal",
    "valve",
    "rope",
    "lamp",
    "anchor",
    "buoy",
    "crane",
    "hatch",
    "ladder",
    "winch",
    "fender",
    "chart",
    "radio",
    "engine",
    "filter",
]
LONG = [
    "to",
    "be",
    "ordered",
    "again",
    "before",
    "the",
    "winter",
    "comes",
    "and",
    "the",
    "road",
    "to",
    "the",
    "harbour",
    "is",
    "closed",
]
CHINESE = [
    "水泵",
    "阀门",
    "缆绳",
    "灯具",
    "锚链",
    "浮标",
    "起重机",
    "舱盖",
    "舷梯",
    "绞车",
    "护舷",
    "海图",
    "电台",
    "主机",
    "滤器",
]

Rows = list[list[str]]


@dataclass(frozen=True)
class Case:
    """A generated file and the expected rows, header first."""

    name: str
    write: Callable[[Path], None]
    rows: Rows


def rows_of(seed: int, columns: int, count: int, *, empty: float = 0.0, chinese: bool = False) -> Rows:
    """Return a header and rows of figures and words. ``empty``: share of empty cells, except in the first column."""
    chance = random.Random(seed)
    names = CHINESE if chinese else NOUNS
    header = (
        ["名称", "数量", "单价", "备注", "库位", "日期"]
        if chinese
        else ["Article", "Stock", "Price", "Remark", "Shelf", "Day"]
    )[:columns]
    rows = [header]
    for number in range(count):
        row = [f"{chance.choice(names)}{'' if chinese else ' '}{number + 1}"]
        makers = [
            lambda: str(chance.randint(1, 9_999)),
            lambda: f"{chance.randint(1, 900)}.{chance.randint(10, 99)}",
            lambda: chance.choice(names),
            lambda: f"{chance.choice('ABCDEF')}{chance.randint(1, 60)}",
            lambda: f"{chance.randint(1, 28)} May",
        ]
        row += ["" if chance.random() < empty else make() for make in makers[: columns - 1]]
        rows.append(row)
    return rows


def platypus(
    rows: Rows, style: list[tuple], *, size: tuple[float, float] = A4, font: str = "Helvetica", turn: int = 0
) -> Callable[[Path], None]:
    """Return a function that writes a page with a paragraph, the table and another paragraph."""

    def write(path: Path) -> None:
        normal = getSampleStyleSheet()["Normal"]
        table = Table(rows, style=TableStyle([("FONT", (0, 0), (-1, -1), font, 10), *style]))
        story = [
            Paragraph("The keeper counts the stores twice a year and signs the list below.", normal),
            Spacer(1, 12),
            table,
            Spacer(1, 12),
            Paragraph("Whatever is missing is ordered before the end of the month.", normal),
        ]

        def turned(canvas: Canvas, _: object) -> None:
            if turn:
                canvas.setPageRotation(turn)

        SimpleDocTemplate(str(path), pagesize=size).build(story, onFirstPage=turned, onLaterPages=turned)

    return write


def drawn(
    rows: Rows, xs: list[float], *, right: bool = False, pitch: float = 18, turn: int = 0
) -> Callable[[Path], None]:
    """Return a function that writes each cell's text separately, without rules. ``turn``: degrees of page rotation."""

    def write(path: Path) -> None:
        canvas = Canvas(str(path), pagesize=A4)
        canvas.setFont("Helvetica", 10)
        if turn == 90:
            canvas.rotate(90)
            canvas.translate(0, -A4[0])
            canvas.setPageRotation(90)
        top = 520 if turn else 760
        canvas.drawString(xs[0], top + 40, "The keeper counts the stores twice a year and signs the list below.")
        for number, row in enumerate(rows):
            for column, cell in enumerate(row):
                if right and column:
                    canvas.drawRightString(xs[column] + 60, top - number * pitch, cell)
                else:
                    canvas.drawString(xs[column], top - number * pitch, cell)
        canvas.showPage()
        canvas.save()

    return write


GRID = [("GRID", (0, 0), (-1, -1), 0.5, colors.black)]
BOOK = [
    ("LINEABOVE", (0, 0), (-1, 0), 1, colors.black),
    ("LINEBELOW", (0, 0), (-1, 0), 0.5, colors.black),
    ("LINEBELOW", (0, -1), (-1, -1), 1, colors.black),
]
ROWS = [("LINEBELOW", (0, 0), (-1, -1), 0.3, colors.black)]
COLUMNS = [
    ("BOX", (0, 0), (-1, -1), 0.5, colors.black),
    ("INNERGRID", (0, 0), (-1, 0), 0.5, colors.black),
    ("LINEBELOW", (0, 0), (-1, 0), 0.5, colors.black),
    *(("LINEAFTER", (c, 0), (c, -1), 0.5, colors.black) for c in range(6)),
]


def wrapped(rows: Rows, column: int) -> Rows:
    """Return the rows with long texts, wrapped over several lines, in one column."""
    return [
        row
        if not n or n % 3
        else [
            *row[:column],
            "\n".join([" ".join(LONG[:5]), " ".join(LONG[5:11]), " ".join(LONG[11:])]),
            *row[column + 1 :],
        ]
        for n, row in enumerate(rows)
    ]


def one_line(rows: Rows) -> Rows:
    return [[" ".join(cell.split()) for cell in row] for row in rows]


def merged(seed: int) -> Case:
    """Return a case with cells merged over rows, and a header of two rows with cells over two columns."""
    rows = rows_of(seed, 5, 9)
    shown = [list(row) for row in rows]
    style = list(GRID)
    for first in (1, 4, 7):
        style.append(("SPAN", (0, first), (0, first + 2)))
        for row in (first + 1, first + 2):
            rows[row][0] = rows[first][0]
            shown[row][0] = ""
    head = ["Article", "Amounts", "", "Place", ""]
    below = ["", *rows[0][1:]]
    style += [("SPAN", (0, 0), (0, 1)), ("SPAN", (1, 0), (2, 0)), ("SPAN", (3, 0), (4, 0))]
    style = [
        s if s[0] != "SPAN" or s[1][1] in (0,) else ("SPAN", (s[1][0], s[1][1] + 1), (s[2][0], s[2][1] + 1))
        for s in style
    ]
    header = [
        "Article",
        *[f"{top} {name}" for top, name in zip(["Amounts", "Amounts", "Place", "Place"], rows[0][1:], strict=True)],
    ]
    return Case(f"merged {seed}", platypus([head, below, *shown[1:]], style), [header, *rows[1:]])


def cases() -> Iterator[Case]:
    """Yield the thirty cases."""
    for seed in range(4):
        rows = rows_of(seed, 3 + seed % 4, 12, empty=0.2)
        yield Case(f"ruled {seed}", platypus(rows, GRID), rows)
    for seed in range(4, 7):
        rows = wrapped(rows_of(seed, 4, 12, empty=0.2), 3)
        yield Case(f"ruled, wrapped {seed}", platypus(rows, GRID), one_line(rows))
    for seed in range(7, 10):
        yield merged(seed)
    for seed in range(10, 13):
        rows = rows_of(seed, 5, 10, empty=0.3)
        yield Case(f"ruled, turned {seed}", platypus(rows, GRID, size=landscape(A4), turn=90 * (seed - 9)), rows)
    for seed in range(13, 17):
        rows = rows_of(seed, 4, 12, empty=0.3)
        yield Case(f"unruled {seed}", drawn(rows, [72, 200, 300, 400], right=seed % 2 == 0), rows)
    for seed in range(17, 19):
        rows = rows_of(seed, 4, 10, empty=0.2)
        yield Case(f"unruled, turned {seed}", drawn(rows, [72, 220, 340, 460], turn=90), rows)
    for seed in range(19, 21):
        rows = wrapped(rows_of(seed, 4, 9, empty=0.2), 3)
        yield Case(f"unruled, wrapped {seed}", platypus(rows, [("VALIGN", (0, 0), (-1, -1), "TOP")]), one_line(rows))
    for seed in range(21, 23):
        rows = rows_of(seed, 4, 10, empty=0.2)
        yield Case(f"header rules {seed}", platypus(rows, BOOK), rows)
    for seed in range(23, 25):
        rows = wrapped(rows_of(seed, 4, 9, empty=0.2), 3)
        yield Case(f"row rules, wrapped {seed}", platypus(rows, ROWS), one_line(rows))
    for seed in range(25, 27):
        rows = rows_of(seed, 4, 10, empty=0.2)
        yield Case(f"column rules {seed}", platypus(rows, COLUMNS), rows)
    for seed in range(27, 29):
        rows = rows_of(seed, 4, 10, empty=0.2, chinese=True)
        yield Case(f"Chinese {seed}", platypus(rows, GRID if seed % 2 else [], font="STSong-Light"), rows)
    rows = rows_of(29, 4, 90, empty=0.2)
    yield Case("ruled, three pages", platypus(rows, GRID), rows)


def cells_of(rows: list[tuple[str, ...]] | Rows) -> dict[tuple[str, int, str], str]:
    """Return the cells by key: the first cell of the row, its occurrence, and the cell's header."""
    header, occurrences, cells = rows[0], {}, {}
    for row in rows[1:]:
        occurrences[row[0]] = occurrences.get(row[0], -1) + 1
        for name, cell in zip(header[1:], row[1:], strict=False):
            cells[row[0], occurrences[row[0]], name] = cell
    return cells


def read_rows(path: Path) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for block in parse(path, path.name).blocks:
        if block.kind == "table":
            part = [split_row(line) for line in block.text.split("\n")]
            # a table that continues on the next page repeats its header there
            rows += part if not rows else part[1:] if part[0] == rows[0] else part
    return rows


def score(case: Case, folder: Path) -> tuple[int, int, int]:
    """Return the number of expected cells, of cells read right, and of cells read as a wrong, non-empty text."""
    path = folder / "table.pdf"
    case.write(path)
    wanted = cells_of(case.rows)
    rows = read_rows(path)
    cells = cells_of(rows) if rows else {}
    right = sum(cells.get(key) == cell for key, cell in wanted.items())
    wrong = sum(bool(cells.get(key)) and cells[key] != cell for key, cell in wanted.items())
    return len(wanted), right, wrong


def main() -> int:
    """Print a line for each file and the total. The exit code is 1 below 95 %."""
    expected = right = wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for case in cases():
            counts = score(case, Path(folder))
            print(f"{case.name:28} {counts[1]:4} of {counts[0]:4} right, {counts[2]} wrong")
            expected, right, wrong = expected + counts[0], right + counts[1], wrong + counts[2]
    print(f"{right} of {expected} cells right ({right / expected:.1%}), {wrong} wrong")
    return 0 if right >= 0.95 * expected else 1


if __name__ == "__main__":
    sys.exit(main())
