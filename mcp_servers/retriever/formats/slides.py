"""PPTX to blocks: a slide is a page, its title a heading; lists, tables and speaker notes below it."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pptx

from mcp_servers.retriever.document import Block, ParsedDocument, ParseLimits, heading, row_groups
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats.package import check_package

MAX_GROUP_DEPTH = 16


def read_pptx(path: Path, limits: ParseLimits) -> ParsedDocument:
    check_package(path, limits)
    slides = pptx.Presentation(str(path)).slides
    if len(slides) > limits.max_pages:
        message = f"the presentation has {len(slides)} slides; the limit is {limits.max_pages}"
        raise DocumentError("DOCUMENT_TOO_LARGE", message)
    return ParsedDocument(
        tuple(block for page, slide in enumerate(slides, 1) for block in _slide(slide, page)), len(slides)
    )


def _slide(slide: Any, page: int) -> Iterator[Block]:
    title = slide.shapes.title
    name = title.text_frame.text.strip() if title is not None else ""
    if name:
        yield heading(name, 1, page)
    for shape in _flat(slide.shapes):
        if title is not None and shape.shape_id == title.shape_id:
            continue
        if getattr(shape, "has_table", False):
            rows = [[cell.text for cell in row.cells] for row in shape.table.rows]
            if any(cell.strip() for row in rows for cell in row):
                yield from (Block("table", text, page=page) for _, _, text in row_groups(rows))
        elif shape.has_text_frame:
            lines = [paragraph.text.strip() for paragraph in shape.text_frame.paragraphs]
            if text := "\n".join(line.replace("\v", " ") for line in lines if line):
                yield Block("list", text, page=page)
    notes = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
    if notes is not None and notes.text.strip():
        yield Block("prose", notes.text.strip(), page=page)


def _flat(shapes: Iterable[Any], depth: int = 0) -> Iterator[Any]:
    """Shapes with those of groups in their place."""
    for shape in shapes:
        if hasattr(shape, "shapes"):
            if depth < MAX_GROUP_DEPTH:
                yield from _flat(shape.shapes, depth + 1)
        else:
            yield shape
