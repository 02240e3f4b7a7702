"""Scanned pages: the results of OCR in the store, and the process that reads further pages.

Owns the stored form of a page and the budget. Ingestion decides when a document's pages are read. A page that cannot be
read is stored with its error, so that it costs its time only once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import orjson
from sqlalchemy import Connection

from agentic_rag.base.json_form import Json
from agentic_rag.documents.child_process import ChildProcess
from agentic_rag.documents.page_job import Box, Marks
from agentic_rag.documents.text_positions import Range, locate
from agentic_rag.store import scans
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.documents import DocumentRecord
from agentic_rag.store.scans import ScanRecord
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.extensions import has_ocr
from mcp_servers.retriever.formats.scans import ScanLine, ScanPage, in_reading_order

CHILD = "agentic_rag.documents.ocr_child"
PDF = "application/pdf"
MEMORY_BYTES = 2048 * 2**20
"""Address space of one page's process; the process uses some 600 MB."""
WALL_FACTOR = 8
"""Limit of wall time of a page, as a multiple of its CPU time: the process runs at low priority."""


@dataclass(frozen=True, slots=True)
class OcrBudget:
    """The maximum number of pages per document for OCR, and the CPU seconds for one page. 0 pages disable OCR."""

    pages: int
    seconds: float

    @property
    def usable(self) -> bool:
        """Whether OCR is enabled and its extra is installed."""
        return self.pages > 0 and has_ocr()


class ScanStore:
    """The stored results of OCR, by document."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def pages(self, document: DocumentRecord, page: int | None = None) -> dict[int, Json]:
        """Return the OCR results for a document's bytes by page number, or for one page."""
        rows = await self._db.read(lambda conn: scans.of_document(conn, document.id, document.sha256, page))
        return {row.page: row.content for row in rows}

    async def put(self, document: DocumentRecord, content: Json) -> None:
        """Store a page, and delete pages of earlier bytes of the document."""
        row = ScanRecord(
            document_id=document.id,
            sha256=document.sha256,
            page=int(content["page"]),
            domain_id=document.domain_id,
            content=content,
            created_at=now(),
        )

        def save(conn: Connection) -> None:
            scans.delete(conn, document.id, except_sha256=document.sha256)
            scans.put(conn, row)

        await self._db.write(save, durable=True)


def marks_on_scan(content: Json, passage: str, sentences: Sequence[Range], cited: Range | None) -> Marks:
    """Return the position of a passage on a scanned page, by the boxes of its lines."""
    scan = ScanPage.from_json(content)
    lines = in_reading_order(scan)
    located = locate("\n".join(line.text for line in lines), passage, sentences, cited)
    marked, cited_boxes = tuple(_boxes(lines, located.passage)), tuple(_boxes(lines, located.cited))
    return Marks(scan.width, scan.height, marked, cited_boxes, located.whole)


def _boxes(lines: Sequence[ScanLine], ranges: Sequence[Range]) -> Iterator[Box]:
    """Yield a box for each line, or part of a line, that the ranges of the joined lines cover."""
    start = 0
    for line in lines:
        end = start + len(line.text)
        for part in ranges:
            first, last = max(part.start, start) - start, min(part.end, end) - start
            if first < last:
                yield _box(line, first / len(line.text), last / len(line.text))
        start = end + 1


def _box(line: ScanLine, first: float, last: float) -> Box:
    """Return the box of a fraction of a line's characters, along the direction of its text."""
    # Clockwise from the upper left, so that the fourth corner is below the first one.
    x, y, end_x, end_y, _, _, start_x, start_y = line.corners
    points = [
        (x + (end_x - x) * share + dx, y + (end_y - y) * share + dy)
        for share in (first, last)
        for dx, dy in ((0.0, 0.0), (start_x - x, start_y - y))
    ]
    left, top = min(point[0] for point in points), min(point[1] for point in points)
    right, bottom = max(point[0] for point in points), max(point[1] for point in points)
    return Box(round(left, 5), round(top, 5), round(right - left, 5), round(bottom - top, 5))


class OcrProcess:
    """A capped process that reads one page after the other. It starts on first use and serves one task."""

    def __init__(self, budget: OcrBudget) -> None:
        self._budget = budget
        self._process = ChildProcess(CHILD, budget.seconds * WALL_FACTOR, "reading the scanned page")

    async def read(self, file: BinaryIO, document: DocumentRecord, page: int) -> Json:
        """Return a page as JSON of a `ScanPage`; a page that cannot be read has an ``error``."""
        job = {
            "path": "",
            "page": page,
            "is_pdf": document.media_type == PDF,
            "memory_bytes": MEMORY_BYTES,
            "seconds": self._budget.seconds,
        }
        try:
            await self._process.send(orjson.dumps(job), file)
            frame: Mapping[str, object] | None = await self._process.frame()
            if frame is None or await self._process.frame() is not None:
                raise DocumentError("DOCUMENT_BROKEN", "the reader crashed on this page")
        except DocumentError as exc:
            await self._process.reset()
            return {"page": page, "width": 0.0, "height": 0.0, "turn": 0, "lines": [], "error": exc.message}
        return dict(frame)

    async def reset(self) -> None:
        """Kill the process if a page is unfinished."""
        await self._process.reset()

    async def aclose(self) -> None:
        """Kill the process and wait a bounded time for its end."""
        await self._process.aclose()
