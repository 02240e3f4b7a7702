"""Documents as records: files of a domain and where their ingestion stands.

Owns the rule that the same bytes are one document of a domain. Knows no file, chunk or vector.
"""

from typing import Any, TypedDict, Unpack

import sqlalchemy as sa
from sqlalchemy import Connection, Select

from agentic_rag.store.rows import values
from agentic_rag.store.tables import Document, table

SETTLED = ("indexed", "failed")
"""The states in which nothing is left to do."""

_documents = table(Document)
_NAMES = tuple(_documents.c.keys())
_DOCUMENTS = sa.select(_documents).order_by(_documents.c.created_at, _documents.c.id)


class DocumentFields(TypedDict, total=False):
    """What `update` may change."""

    status: str
    dense_state: str
    progress: dict[str, Any]
    page_count: int | None
    chunk_count: int | None
    error_code: str | None
    error_message: str | None
    updated_at: str


def insert(conn: Connection, document: Document) -> None:
    """Store a new document.

    Raises:
        IntegrityError: the domain has a document of these bytes (or the id is taken).
    """
    conn.execute(sa.insert(_documents), values(document, _NAMES))


def get(conn: Connection, document_id: str) -> Document | None:
    """Return the document, None when there is none."""
    return _first(conn, _DOCUMENTS.where(_documents.c.id == document_id))


def by_sha(conn: Connection, domain_id: str, sha256: str) -> Document | None:
    """Return the domain's document of these bytes, None when there is none."""
    return _first(conn, _DOCUMENTS.where(_documents.c.domain_id == domain_id, _documents.c.sha256 == sha256))


def list_of(conn: Connection, domain_id: str, status: str | None = None) -> list[Document]:
    """Return the domain's documents, oldest first; only those of one status when given."""
    query = _DOCUMENTS.where(_documents.c.domain_id == domain_id)
    return _all(conn, query if status is None else query.where(_documents.c.status == status))


def unfinished(conn: Connection) -> list[Document]:
    """Return the documents of all domains whose ingestion has still to run, oldest first."""
    return _all(conn, _DOCUMENTS.where(_documents.c.status.not_in(SETTLED)))


def count_indexed(conn: Connection, domain_id: str) -> int:
    """Return how many documents of the domain can be searched."""
    query = sa.select(sa.func.count()).where(_documents.c.domain_id == domain_id, _documents.c.status == "indexed")
    return conn.execute(query).scalar_one()


def update(conn: Connection, document_id: str, **fields: Unpack[DocumentFields]) -> bool:
    """Change the given fields. Returns False when there is no such document (it was deleted meanwhile)."""
    query = sa.update(_documents).where(_documents.c.id == document_id).values(dict(fields))
    return conn.execute(query).rowcount == 1


def delete(conn: Connection, document_id: str) -> bool:
    """Delete the record. Returns False when there was none."""
    return conn.execute(sa.delete(_documents).where(_documents.c.id == document_id)).rowcount == 1


def _first(conn: Connection, query: Select[Any]) -> Document | None:
    row = conn.execute(query).mappings().first()
    return None if row is None else Document(**row)


def _all(conn: Connection, query: Select[Any]) -> list[Document]:
    return [Document(**row) for row in conn.execute(query).mappings()]
