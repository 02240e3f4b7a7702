"""REST routes for the place of a citation: the image of a page, and the position of a passage.

This module defines the forms and answers. It knows neither PDF nor table formats.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field
from starlette.requests import Request

from agentic_rag.access.document_views import DocumentView
from agentic_rag.base.errors import DocumentUnsupported, InvalidInput, NotFound, PagesBusy, PageUnreadable
from agentic_rag.base.forms import Form
from agentic_rag.base.ids import DocumentId
from agentic_rag.base.json_form import Absent
from agentic_rag.base.redaction import Redactor
from agentic_rag.documents.documents import Documents
from agentic_rag.documents.passage_html import passage_html, table_html
from agentic_rag.documents.places import CitationPlace, Found, Kind, OnPage, Places
from agentic_rag.documents.text_positions import Range
from agentic_rag.server.replies import Redacted, answer, answer_from
from agentic_rag.server.routes.page_images import PageFile, knows, tag_of
from agentic_rag.server.routing import route
from agentic_rag.store.documents import DocumentRecord

DOMAIN = "/api/domains/{domain}"
PAGE = f"{DOMAIN}/documents/{{document}}/pages/{{page}}"

# Requests


class PageSize(Form):
    """Image width in pixels. The image is smaller if the page would become too large."""

    width: int = Field(1_000, ge=200, le=2_000)


class PlaceQuery(Form):
    """The cited part of a passage, given by offsets or by its text.

    ``start`` and ``end`` are offsets in the passage. ``text`` is a citation's ``citedText``. With ``format=html`` the
    answer also contains ``html``.
    """

    start: int | None = Field(None, ge=0)
    end: int | None = Field(None, ge=1)
    text: str | None = Field(None, max_length=4_000)
    format: Literal["text", "html"] = "text"

    def part(self) -> Range | None:
        """Return the range given by the offsets, or None without offsets.

        Raises:
            InvalidInput: the offsets are no range, or ``text`` is given, too.
        """
        if self.start is None and self.end is None:
            return None
        if self.start is None or self.end is None or self.start >= self.end:
            raise InvalidInput("end", "start and end are needed together, and end is after start.")
        if self.text is not None:
            raise InvalidInput("text", "either start and end, or text.")
        return Range(self.start, self.end)


# Answers


@answer()
class CitedRange:
    """The cited part: offsets in the passage's ``text``, and the text between them."""

    start: int
    end: int
    text: str


@answer()
class NearbyParagraph:
    """The paragraph before or after a passage, with its own headings and page."""

    chunk_id: str
    text: str
    heading_path: Sequence[str]
    page: int | None


@answer()
class TableRow:
    """A row of a table.

    ``start`` and ``end`` are offsets in the passage's ``text``; ``number`` is the row in the sheet.
    """

    cells: Sequence[str]
    start: int
    end: int
    cited: bool
    number: Absent[int] = None


@answer()
class SheetTable:
    """The rows of a passage and their header. The header is empty if unknown."""

    header: Sequence[str]
    rows: Sequence[TableRow]


@answer()
class BoxAnswer:
    """A rectangle in shares of the page, 0 to 1, measured from the upper left corner."""

    x: float
    y: float
    width: float
    height: float


@answer()
class PagePlace:
    """A passage on a page. ``image`` is the address of the page's image.

    ``width`` and ``height`` are in points, and absent if the page cannot be read. ``passage`` and ``cited`` mark the
    passage and its cited part; ``found`` tells how much of the passage they cover.
    """

    number: int
    image: str
    found: Found
    passage: Sequence[BoxAnswer]
    cited: Sequence[BoxAnswer]
    width: Absent[float] = None
    height: Absent[float] = None


@answer()
class PassagePlace:
    """A passage and its place in the document.

    ``kind`` is the best way to show it; `page` and `table` are set accordingly. ``cited`` is null if no part was asked
    for, or if the passage does not contain it. ``html`` is the passage with ``mark`` around the cited part, and is safe
    to insert into a page. ``notes`` tell which parts could not be shown, and what is known about the document that
    explains it. ``sourceUri`` is the document's address in the system it came from.
    """

    chunk_id: str
    document_id: str
    document_name: str
    media_type: str
    kind: Kind
    heading_path: Sequence[str]
    ordinal: int
    text: str
    cited: CitedRange | None
    before: NearbyParagraph | None
    after: NearbyParagraph | None
    notes: Sequence[str]
    cells: Absent[str] = None
    page: Absent[PagePlace] = None
    table: Absent[SheetTable] = None
    html: Absent[str] = None
    source_uri: Absent[str] = None


class PlaceRoutes:
    """Places of citations in their documents."""

    def __init__(self, documents: Documents, places: Places, redactor: Redactor) -> None:
        """Take the services.

        ``redactor`` removes secrets from a text before it becomes HTML, where they would look different.
        """
        self._documents = documents
        self._places = places
        self._redactor = redactor

    @route("GET", PAGE, allow="member", errors=[DocumentUnsupported, PageUnreadable, PagesBusy])
    async def get_page(
        self, request: Request, domain: str, document: DocumentId, page: str, query: PageSize, view: DocumentView
    ) -> PageFile:
        """Send a page of a PDF, or an image, as a PNG image; pages are counted from 1."""
        record = await self._documents.get(domain, document, view)
        if not (page.isascii() and page.isdigit() and len(page) < 9 and int(page)):
            raise NotFound("page", page)
        tag = tag_of(domain, record.id, record.sha256, page, query.width)
        if knows(request, tag):
            return PageFile(None, tag)
        image = await self._documents.page(domain, document, int(page), query.width, view)
        return PageFile(image.png, tag)

    @route("GET", f"{DOMAIN}/chunks/{{chunk}}/place", allow="member")
    async def get_place(self, domain: str, chunk: str, query: PlaceQuery, view: DocumentView) -> Redacted[PassagePlace]:
        """Show the place of a cited passage: on its page, in its table, or between its neighbouring paragraphs."""
        place = await self._places.of(domain, chunk, view, query.part(), query.text)
        return self.show(domain, place, query)

    def show(self, domain: str, place: CitationPlace, query: PlaceQuery) -> Redacted[PassagePlace]:
        """Return the answer for the place of a passage."""
        html = self._html(domain, place) if query.format == "html" else None
        return Redacted(domain, _show(domain, place, html))

    def _html(self, domain: str, place: CitationPlace) -> str:
        redact = self._redactor.of(domain)
        if place.table is not None:
            return table_html(place.table, redact)
        return passage_html(place.chunk.text, place.cited, redact)


def _show(domain: str, place: CitationPlace, html: str | None) -> PassagePlace:
    chunk, part, document = place.chunk, place.cited, place.document
    page, table = place.page, place.table
    notes = document.progress.notes or () if isinstance(document, DocumentRecord) else document.notes
    return PassagePlace(
        chunk_id=chunk.chunk_id,
        document_id=place.document.id,
        document_name=place.document.name,
        media_type=place.document.media_type,
        kind=place.kind,
        heading_path=chunk.heading_path,
        ordinal=chunk.ordinal,
        text=chunk.text,
        cited=None if part is None else CitedRange(part.start, part.end, chunk.text[part.start : part.end]),
        before=answer_from(NearbyParagraph, place.before) if place.before else None,
        after=answer_from(NearbyParagraph, place.after) if place.after else None,
        notes=[*filter(None, [page.note if page else None]), *notes],
        cells=chunk.cells,
        page=None if page is None else _page(domain, place.document.id, page),
        table=None if table is None else SheetTable(table.header, [answer_from(TableRow, row) for row in table.rows]),
        html=html,
        source_uri=document.public_uri if isinstance(document, DocumentRecord) else None,
    )


def _page(domain: str, document: str, page: OnPage) -> PagePlace:
    image = PAGE.format(domain=domain, document=document, page=page.number)
    marks = page.marks
    if marks is None:
        return PagePlace(page.number, image, page.found, (), ())
    passage, cited = ([answer_from(BoxAnswer, box) for box in boxes] for boxes in (marks.passage, marks.cited))
    return PagePlace(page.number, image, page.found, passage, cited, marks.width, marks.height)
