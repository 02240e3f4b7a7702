"""PPTX reader: a slide is a page, its title a heading; shapes follow from top to bottom, then notes and comments."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pptx

from mcp_servers.retriever.document import Block, ParsedDocument, ParseLimits, heading
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats.drawing import local, shape_blocks, shown_children, text_lines, unescape
from mcp_servers.retriever.formats.package import Parts, open_office, package_date, unread_parts

_BANDS = 40
"""Bands of a slide's height: shapes that begin in the same band are read from left to right."""
_FURNITURE = ("sldNum", "ftr", "dt", "hdr")
"""Placeholders that repeat on every slide: number, footer, date, header."""


def read_pptx(path: Path, limits: ParseLimits) -> ParsedDocument:
    office = open_office(path, limits)
    with office.open() as stream, ZipFile(stream) as archive:
        presentation = pptx.Presentation(stream)
        slides = presentation.slides
        if len(slides) > limits.max_pages:
            message = f"the presentation has {len(slides)} slides; the limit is {limits.max_pages}"
            raise DocumentError("DOCUMENT_TOO_LARGE", message)
        band = max(_height(presentation) // _BANDS, 1)
        blocks: list[Block] = []
        hidden: list[int] = []
        parts = Parts(archive)
        repeated = _Repeated(parts)
        for page, slide in enumerate(slides, 1):
            slide_blocks = list(_slide(slide, page, parts, band, repeated))
            titled = _title(slide) is not None and slide_blocks[0].text != f"Slide {page}"
            blocks += slide_blocks if titled or len(slide_blocks) > 1 else []
            if slide._element.get("show") in ("0", "false"):
                hidden.append(page)
        parts.mark_read(*repeated.layouts)
        unread = [
            *office.notes,
            *([f"hidden slides were read too: {', '.join(map(str, hidden[:20]))}"] if hidden else []),
            *unread_parts(path, parts),
        ]
    return ParsedDocument(tuple(blocks), len(slides), notes=tuple(unread), date=package_date(path))


class _Repeated:
    """Texts repeated on many slides: footers, dates, and texts of layouts and masters. Each is read once."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._texts: set[str] = set()
        self.layouts: set[str] = set()

    def is_new(self, text: str) -> bool:
        """Return whether a text was not read yet, and record it."""
        if text in self._texts:
            return False
        self._texts.add(text)
        return True

    def of_layout(self, slide: Any, page: int) -> Iterator[Block]:
        """Yield the blocks of the fixed shapes of a slide's layout and master that no slide before has shown."""
        try:
            sources = (slide.slide_layout, slide.slide_layout.slide_master)
        except KeyError:  # the relations of a part are damaged
            return
        for source in sources:
            name = str(source.part.partname).lstrip("/")
            if name in self.layouts:
                continue
            self.layouts.add(name)
            for shape in shown_children(source._element.find(".//{*}spTree")):
                if shape.find(".//{*}nvPr/{*}ph") is None:
                    for block in shape_blocks(shape, self._parts, name, page):
                        if self.is_new(block.text):
                            yield block


def _title(slide: Any) -> Any:
    title = slide.shapes.title
    return None if title is None else title._element


def _position(shape: Any) -> tuple[int | None, int | None]:
    """Return the top and left of a shape, which a placeholder takes from its layout."""
    try:
        return shape.top, shape.left
    except (KeyError, ValueError):  # the relations of the layout are damaged, or a position is no number
        return None, None


def _height(presentation: Any) -> int:
    try:
        return presentation.slide_height or 0
    except ValueError:  # it is no number
        return 0


def _id_of(element: Any) -> str:
    properties = next(element.iter("{*}cNvPr"), None)
    return "" if properties is None else str(properties.get("id", ""))


def _slide(slide: Any, page: int, parts: Parts, band: int, repeated: _Repeated) -> Iterator[Block]:
    part = str(slide.part.partname).lstrip("/")
    parts.mark_read(part)
    title = _title(slide)
    body = None if title is None else title.find("{*}txBody")
    name = "" if body is None else " ".join(text_lines(body, parts, part))
    # Without its own heading, a slide would belong to the heading of the slide before.
    yield heading(name or f"Slide {page}", 1, page)
    tops = {_id_of(shape._element): _position(shape) for shape in slide.shapes}
    placed: list[tuple[int, int, int, Any]] = []
    for at, shape in enumerate(shown_children(slide._element.find(".//{*}spTree"))):
        top, left = tops.get(_id_of(shape), (None, None))
        placed.append((-1 if top is None else top // band, left or 0, at, shape))
    for _, _, _, shape in sorted(placed, key=lambda entry: entry[:3]):
        if shape is title:
            continue
        kind = shape.find(".//{*}nvPr/{*}ph")
        is_furniture = kind is not None and kind.get("type") in _FURNITURE
        if is_furniture and kind.get("type") == "sldNum":
            continue
        for block in shape_blocks(shape, parts, part, page):
            if not is_furniture or repeated.is_new(block.text):
                yield block
    yield from repeated.of_layout(slide, page)
    for notes in parts.related_parts(part, "notesSlide"):
        yield from _notes(notes, page, parts)
    yield from _comments(part, page, parts)


def _notes(name: str, page: int, parts: Parts) -> Iterator[Block]:
    """Yield the speaker notes of a slide: the text of the notes page without number, date, header and footer."""
    root = parts.xml(name)
    for shape in () if root is None else root.iter("{*}sp"):
        kind = shape.find(".//{*}nvPr/{*}ph")
        body = shape.find("{*}txBody")
        if body is None or (kind is not None and kind.get("type") in (*_FURNITURE, "sldImg")):
            continue
        if text := "\n".join(text_lines(body, parts, name)):
            yield Block("prose", text, page=page)
    for frame in () if root is None else root.iter("{*}graphicFrame"):
        yield from shape_blocks(frame, parts, name, page)


def _comments(slide: str, page: int, parts: Parts) -> Iterator[Block]:
    """Yield the comments on a slide, of older and newer versions of PowerPoint."""
    lines: list[str] = []
    authors = _authors(parts)
    for relation in parts.relations(slide).values():
        if relation.kind == "comments" and relation.target in parts:
            root = parts.xml(relation.target)
            for element in () if root is None else root.iter():
                if local(element) == "text":
                    words = unescape(element.text or "")
                elif local(element) == "txBody":
                    words = " ".join(text_lines(element, parts, relation.target))
                else:
                    continue
                author = authors.get(element.getparent().get("authorId", ""), "")
                if words.strip():
                    lines.append(f"- Comment{f' by {author}' if author else ''}: {' '.join(words.split())}")
    if lines:
        yield Block("list", "\n".join(lines), page=page)


def _authors(parts: Parts) -> dict[str, str]:
    """Return the names of the authors of comments by their ids."""
    names = {}
    for kind in ("commentAuthors", "authors"):
        for part in parts.related_parts("ppt/presentation.xml", kind):
            root = parts.xml(part)
            for author in () if root is None else root.iter("{*}cmAuthor", "{*}author"):
                names[author.get("id", "")] = " ".join(author.get("name", "").split())[:80]
    return names
