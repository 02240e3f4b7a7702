"""Scanned pages: the lines that OCR or a model read, and the boxes of OCR, kept as long as their document.

Only the retriever's ``formats.scans`` interprets a page's content.
"""

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.base.ids import DocumentId
from agentic_rag.base.json_form import Json
from agentic_rag.store.columns import Indexed, Key
from agentic_rag.store.record import Record


class ScanRecord(Record, table=True):
    """A page (counted from 1) of a document with these bytes; ``content`` is a `ScanPage` as JSON."""

    __tablename__ = "scans"
    part_of = "domain"

    document_id: Key[DocumentId]
    sha256: Key[str]
    page: Key[int]
    domain_id: Indexed[str]
    content: Json
    created_at: str


SCANS = ScanRecord.__table__
_scans = SCANS.c


def put(conn: Connection, scan: ScanRecord) -> None:
    """Store a page, replacing an earlier reading of the page."""
    its_page = (_scans.document_id == scan.document_id, _scans.sha256 == scan.sha256, _scans.page == scan.page)
    conn.execute(sa.delete(SCANS).where(*its_page))
    scan.insert(conn)


def of_document(conn: Connection, document_id: DocumentId, sha256: str, page: int | None = None) -> list[ScanRecord]:
    """Return the pages read from a document with these bytes, or a single page, in order."""
    query = sa.select(SCANS).where(_scans.document_id == document_id, _scans.sha256 == sha256)
    if page is not None:
        query = query.where(_scans.page == page)
    return ScanRecord.all(conn, query.order_by(_scans.page))


def delete_failed(conn: Connection, document_id: DocumentId) -> None:
    """Delete the pages of a document that could not be read, so that another attempt reads them."""
    rows = ScanRecord.all(conn, sa.select(SCANS).where(_scans.document_id == document_id))
    for page in [row.page for row in rows if row.content.get("error")]:
        conn.execute(sa.delete(SCANS).where(_scans.document_id == document_id, _scans.page == page))


def delete(conn: Connection, document_id: DocumentId, *, except_sha256: str = "") -> None:
    """Delete a document's pages, except those of the bytes ``except_sha256``."""
    conn.execute(sa.delete(SCANS).where(_scans.document_id == document_id, _scans.sha256 != except_sha256))
