"""PPTX to blocks: a slide is a page, its title a heading; lists, tables, charts and speaker notes below it."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pptx

from mcp_servers.retriever.document import Block, ParsedDocument, ParseLimits, heading, row_groups
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats.package import check_package, package_date

MAX_GROUP_DEPTH = 16


def read_pptx(path: Path, limits: ParseLimits) -> ParsedDocument:
    check_package(path, limits)
    slides = pptx.Presentation(str(path)).slides
    if len(slides) > limits.max_pages:
        message = f"the presentation has {len(slides)} slides; the limit is {limits.max_pages}"
        raise DocumentError("DOCUMENT_TOO_LARGE", message)
    blocks: list[Block] = []
    for page, slide in enumerate(slides, 1):
        shown = list(_slide(slide, page))
        titled = slide.shapes.title is not None and slide.shapes.title.text_frame.text.strip()
        blocks += shown if titled or len(shown) > 1 else []
    return ParsedDocument(tuple(blocks), len(slides), date=package_date(path))


def _slide(slide: Any, page: int) -> Iterator[Block]:
    title = slide.shapes.title
    name = title.text_frame.text.strip() if title is not None else ""
    # Without a heading of its own, a slide would stand below that of the one before.
    yield heading(name or f"Slide {page}", 1, page)
    for shape in _flat(slide.shapes):
        if title is not None and shape.shape_id == title.shape_id:
            continue
        if getattr(shape, "has_table", False):
            yield from _table(_cells(shape.table), page)
        elif getattr(shape, "has_chart", False):
            yield from _chart(shape.chart, page)
        elif shape.has_text_frame:
            lines = [("  " * each.level, each.text.strip()) for each in shape.text_frame.paragraphs]
            if text := "\n".join(depth + line.replace("\v", " ") for depth, line in lines if line):
                yield Block("list", text, page=page)
    notes = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
    if notes is not None and notes.text.strip():
        yield Block("prose", notes.text.strip(), page=page)


def _table(rows: list[list[str]], page: int) -> Iterator[Block]:
    if any(cell.strip() for row in rows for cell in row):
        yield from (Block("table", text, page=page) for _, _, text in row_groups(rows))


def _cells(table: Any) -> list[list[str]]:
    """Rows of a table; a cell over several rows stands in each of them, one over several columns once."""
    above: dict[int, tuple[int, str]] = {}
    rows: list[list[str]] = []
    for row in table.rows:
        cells: list[str] = []
        for column, cell in enumerate(row.cells):
            left, text = above.get(column, (0, ""))
            if cell.is_merge_origin:
                above[column] = cell.span_height - 1, cell.text
            elif cell.is_spanned and left:
                above[column] = left - 1, text
            if not cell.is_spanned or left:
                cells.append(text if cell.is_spanned else cell.text)
        rows.append(cells)
    return rows


def _chart(chart: Any, page: int) -> Iterator[Block]:
    """The numbers behind a chart as a table, its title in the corner: the picture itself has no text."""
    named = chart.has_title and chart.chart_title.has_text_frame
    corner = chart.chart_title.text_frame.text if named else ""
    for plot in chart.plots:
        series = list(plot.series)
        labels = [str(label) for label in plot.categories] or [""] * max(
            (len(each.values) for each in series), default=0
        )
        rows = [[corner, *(each.name or "" for each in series)]]
        rows += [[label, *(_value(each.values, at) for each in series)] for at, label in enumerate(labels)]
        yield from _table(rows, page)


def _value(values: Sequence[float | None], at: int) -> str:
    value = values[at] if at < len(values) else None
    return "" if value is None else f"{value:g}"


def _flat(shapes: Iterable[Any], depth: int = 0) -> Iterator[Any]:
    """Shapes with those of groups in their place."""
    for shape in shapes:
        if hasattr(shape, "shapes"):
            if depth < MAX_GROUP_DEPTH:
                yield from _flat(shape.shapes, depth + 1)
        else:
            yield shape
