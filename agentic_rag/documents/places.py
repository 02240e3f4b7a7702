"""The position of a citation: its passage on the page, in its table, below its headings, between its neighbours.

Owns the look-ups for a citation and the form of their result. `passages` finds positions in a text, `pages` on a page.
Knows no request.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentic_rag.access.document_views import DocumentView
from agentic_rag.base.errors import InvalidInput, NotFound, PagesBusy, PageUnreadable
from agentic_rag.base.ids import DocumentId
from agentic_rag.documents.documents import Documents
from agentic_rag.documents.page_job import Marks
from agentic_rag.documents.pages import PDF
from agentic_rag.documents.passages import (
    Neighbour,
    Table,
    cited_part,
    paragraph_after,
    paragraph_before,
    table_of,
    table_within,
)
from agentic_rag.documents.scan_reading import marks_on_scan
from agentic_rag.documents.text_positions import Range
from agentic_rag.store.attachments import AttachmentRecord
from agentic_rag.store.documents import DocumentRecord
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.formats import IMAGE_TYPES
from mcp_servers.retriever.formats.scans import BY_MODEL

GROUP_CHUNKS = 8
"""Number of preceding chunks searched for the header of a chunk's rows.

A group of rows has one chunk, or two with long rows.
"""

NO_MARKS = "the text layer of this page does not have the passage as it was read; the page is shown without marks"
NO_SCAN_MARKS = "the scan of this page was not read as the passage says; the page is shown without marks"
BY_MODEL_NOTE = "a model read this page from a scan, without positions; the page is shown without marks"
PARTLY = "parts of the passage were not found in the text layer of this page"

Kind = Literal["page", "table", "text"]
Found = Literal["whole", "partly", "none"]


@dataclass(frozen=True, slots=True)
class OnPage:
    """A passage on a page of a PDF, or on an image.

    ``marks`` is None if the page cannot be searched; ``note`` then says why.
    """

    number: int
    marks: Marks | None
    note: str | None

    @property
    def found(self) -> Found:
        """How much of the passage was found on the page."""
        if self.marks is None or not self.marks.passage:
            return "none"
        return "whole" if self.marks.whole else "partly"


@dataclass(frozen=True, slots=True)
class CitationPlace:
    """A passage in its surroundings.

    ``cited`` is the requested part; None if none was requested or the passage does not contain it. ``before`` and
    ``after`` are the neighbouring paragraphs. ``table`` is set for rows of a table, ``page`` for a PDF or an image.
    """

    document: DocumentRecord | AttachmentRecord
    chunk: Chunk
    kind: Kind
    cited: Range | None
    before: Neighbour | None
    after: Neighbour | None
    table: Table | None = None
    page: OnPage | None = None


class Places:
    """Looks up the positions of citations in all domains."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    async def of(
        self,
        domain_id: str,
        chunk_id: str,
        view: DocumentView,
        part: Range | None = None,
        text: str | None = None,
    ) -> CitationPlace:
        """Return the position of a passage, and of a part of it, given by its offsets or its text.

        Raises:
            NotFound: the domain has no such chunk, no longer has it, or the view does not show its document.
            InvalidInput: the passage has no such part.
            IndexUnavailable: the index cannot answer now.
        """
        chunk, near = await self._documents.chunk(domain_id, chunk_id, view)
        document = await self._documents.get(domain_id, DocumentId(chunk.document_id), view)
        if part is not None and part.end > len(chunk.text):
            raise InvalidInput("end", f"the passage has {len(chunk.text)} characters.")
        cited = part or (cited_part(chunk, text) if text else None)
        before, after = (
            next((neighbour for neighbour in near if neighbour.ordinal == chunk.ordinal + step), None)
            for step in (-1, 1)
        )
        around = (
            None if before is None else paragraph_before(chunk, before),
            None if after is None else paragraph_after(chunk, after),
        )
        if chunk.cells is not None:
            table = table_of(chunk, await self._group(domain_id, chunk, view), cited)
            return CitationPlace(document, chunk, "table", cited, *around, table=table)
        rows = table_within(chunk, cited)
        has_pages = document.media_type == PDF or document.media_type in IMAGE_TYPES
        if not has_pages or chunk.page is None:
            return CitationPlace(document, chunk, "table" if rows else "text", cited, *around, table=rows)
        page = await self._on_page(document, chunk, chunk.page, cited)
        return CitationPlace(document, chunk, "page", cited, *around, table=rows, page=page)

    async def _group(self, domain_id: str, chunk: Chunk, view: DocumentView) -> Sequence[Chunk]:
        """Return the chunks with the same cells as ``chunk``, in order."""
        first = max(0, chunk.ordinal - GROUP_CHUNKS)
        listed = await self._documents.chunks(domain_id, DocumentId(chunk.document_id), first, 2 * GROUP_CHUNKS, view)
        same = [other for other in listed if (other.cells, other.heading_path) == (chunk.cells, chunk.heading_path)]
        return same or [chunk]

    async def _on_page(self, document: DocumentRecord, chunk: Chunk, number: int, cited: Range | None) -> OnPage:
        sentences = [Range(*span) for span in chunk.sentences]
        if chunk.scanned:
            scan = (await self._documents.knowledge.scans.pages(document, number)).get(number)
            if chunk.scanned_by == BY_MODEL:
                return OnPage(number, None, BY_MODEL_NOTE)
            marks = None if scan is None else marks_on_scan(scan, chunk.text, sentences, cited)
            if marks is None or not marks.passage:
                return OnPage(number, marks, NO_SCAN_MARKS)
            return OnPage(number, marks, None if marks.whole else PARTLY)
        try:
            marks = await self._documents.knowledge.pages.marks(document, number, chunk.text, sentences, cited)
        except (PageUnreadable, NotFound, PagesBusy) as exc:  # show the text without its page
            return OnPage(number, None, str(exc))
        if not marks.passage:
            return OnPage(number, marks, NO_MARKS)
        return OnPage(number, marks, None if marks.whole else PARTLY)
