"""Scanned pages: which were read by OCR already, and the process that reads the others.

Owns what is stored of a page and the budget. Ingestion decides when a document's pages are read. A page that cannot be
read is stored with its reason, so that it costs its time once.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import BinaryIO

import orjson
from sqlalchemy import Connection

from agentic_rag.documents.child_process import ChildProcess
from agentic_rag.json_form import Json
from agentic_rag.store import scans
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.documents import DocumentRecord
from agentic_rag.store.scans import ScanRecord
from mcp_servers.retriever.errors import DocumentError

CHILD = "agentic_rag.documents.ocr_child"
PDF = "application/pdf"
MEMORY_BYTES = 2048 * 2**20
"""Of the address space of one page's process; it uses some 600 MB."""
WALL_FACTOR = 8
"""Wall time of a page, in limits of its processor time: it runs at low priority."""


@dataclass(frozen=True, slots=True)
class OcrBudget:
    """How many pages of one document OCR reads, and the processor's seconds that one page may take. 0 pages: none."""

    pages: int
    seconds: float

    @property
    def usable(self) -> bool:
        """Whether scans are read: allowed, and the extra is installed."""
        return self.pages > 0 and is_installed()


@functools.cache
def is_installed() -> bool:
    """Whether the extra ``ocr`` is there. Asked here, so that the server loads no reader."""
    return find_spec("rapidocr") is not None and find_spec("onnxruntime") is not None


class ScanStore:
    """The pages that OCR read, by document."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def pages(self, document: DocumentRecord, page: int | None = None) -> dict[int, Json]:
        """Return what was read of a document's bytes by page, or of one page."""
        rows = await self._db.read(lambda conn: scans.of_document(conn, document.id, document.sha256, page))
        return {row.page: row.content for row in rows}

    async def put(self, document: DocumentRecord, content: Json) -> None:
        """Store a page; pages of other bytes of the document go."""
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


class OcrProcess:
    """Reads one page after the other in a capped process; started when first needed. Used by one task."""

    def __init__(self, budget: OcrBudget) -> None:
        self._budget = budget
        self._process = ChildProcess(CHILD, budget.seconds * WALL_FACTOR, "reading the scanned page")

    async def read(self, file: BinaryIO, document: DocumentRecord, page: int) -> Json:
        """Return a page as JSON of a `ScanPage`; one that cannot be read has an ``error``."""
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
                raise DocumentError("DOCUMENT_BROKEN", "the page made its reader crash")
        except DocumentError as exc:
            await self._process.reset()
            return {"page": page, "width": 0.0, "height": 0.0, "turn": 0, "lines": [], "error": exc.message}
        return dict(frame)

    async def reset(self) -> None:
        """End the process if it is in the middle of a page."""
        await self._process.reset()

    async def aclose(self) -> None:
        """End the process and wait for it, bounded."""
        await self._process.aclose()
