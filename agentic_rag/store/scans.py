"""Pages that OCR read: their lines and boxes, kept as long as their document.

Owns the rows. What a page's content means is known to the retriever's ``formats.scans`` alone.
"""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.ids import DocumentId
from agentic_rag.json_form import Json
from agentic_rag.store.records import RecordTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRecord:
    """A page, from 1, of a document with these bytes; ``content`` is a `ScanPage` as JSON."""

    document_id: DocumentId
    sha256: str
    page: int
    domain_id: str
    content: Json
    created_at: str


SCANS = RecordTable(
    ScanRecord, "scans", key=("document_id", "sha256", "page"), indexed=("domain_id",), part_of="domain"
)
_scans = SCANS.c


def put(conn: Connection, scan: ScanRecord) -> None:
    """Store a page in place of an earlier reading of it."""
    its_page = (_scans.document_id == scan.document_id, _scans.sha256 == scan.sha256, _scans.page == scan.page)
    conn.execute(sa.delete(SCANS.table).where(*its_page))
    SCANS.insert(conn, scan)


def of_document(conn: Connection, document_id: DocumentId, sha256: str, page: int | None = None) -> list[ScanRecord]:
    """Return the pages that were read of a document with these bytes, or one of them, in order."""
    query = SCANS.select.where(_scans.document_id == document_id, _scans.sha256 == sha256)
    if page is not None:
        query = query.where(_scans.page == page)
    return SCANS.all(conn, query.order_by(_scans.page))


def delete(conn: Connection, document_id: DocumentId, *, except_sha256: str = "") -> None:
    """Delete a document's pages, but not those of the bytes ``except_sha256``."""
    conn.execute(sa.delete(SCANS.table).where(_scans.document_id == document_id, _scans.sha256 != except_sha256))
