"""Documents as records: files of a domain and where their ingestion stands.

Owns the rule that the same bytes are one document of a domain, and the lease by which one process at a time works
on it. Knows no file, chunk or vector.
"""

from collections.abc import Collection, Sequence
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

    name: str
    path: str
    media_type: str
    status: str
    dense_state: str
    progress: dict[str, Any]
    page_count: int | None
    chunk_count: int | None
    error_code: str | None
    error_message: str | None
    size: int
    sha256: str
    file_stamp: str
    owner: str
    lease_until: str | None
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


def by_path(conn: Connection, domain_id: str, path: str) -> Document | None:
    """Return the domain's document that lies there, None when there is none."""
    return _first(conn, _DOCUMENTS.where(_documents.c.domain_id == domain_id, _documents.c.path == path))


def list_of(conn: Connection, domain_id: str, status: str | None = None) -> list[Document]:
    """Return the domain's documents, oldest first; only those of one status when given."""
    query = _DOCUMENTS.where(_documents.c.domain_id == domain_id)
    return _all(conn, query if status is None else query.where(_documents.c.status == status))


def unfinished(conn: Connection, *, free_at: str | None = None) -> list[Document]:
    """Return the documents of all domains whose ingestion has still to run, oldest first.

    ``free_at``: only those that nobody holds a lease on at that time.
    """
    query = _DOCUMENTS.where(_documents.c.status.not_in(SETTLED))
    return _all(conn, query if free_at is None else query.where(_free(free_at)))


def failed_with(conn: Connection, codes: Collection[str]) -> list[Document]:
    """Return the documents of all domains that failed with one of these codes."""
    return _all(conn, _DOCUMENTS.where(_documents.c.status == "failed", _documents.c.error_code.in_(codes)))


def pending_dense(conn: Connection, domain_id: str | None = None) -> list[Document]:
    """Return the searchable documents whose dense vectors have still to be made."""
    query = _DOCUMENTS.where(_documents.c.status == "indexed", _documents.c.dense_state == "pending")
    return _all(conn, query if domain_id is None else query.where(_documents.c.domain_id == domain_id))


def count_indexed(conn: Connection, domain_id: str) -> int:
    """Return how many documents of the domain can be searched."""
    query = sa.select(sa.func.count()).where(_documents.c.domain_id == domain_id, _documents.c.status == "indexed")
    return conn.execute(query).scalar_one()


def update(conn: Connection, document_id: str, **fields: Unpack[DocumentFields]) -> bool:
    """Change the given fields. Returns False when there is no such document (it was deleted meanwhile)."""
    query = sa.update(_documents).where(_documents.c.id == document_id).values(dict(fields))
    return conn.execute(query).rowcount == 1


def claim(conn: Connection, document_id: str, owner: str, now: str, until: str, *, seize: bool) -> Document | None:
    """Take an unfinished document for ``owner``; None when it is settled, gone, or somebody else's until later.

    ``seize``: whoever held it is known to be dead.
    """
    query = sa.update(_documents).where(_documents.c.id == document_id, _documents.c.status.not_in(SETTLED))
    if not seize:
        query = query.where(sa.or_(_documents.c.owner == owner, _free(now)))
    if conn.execute(query.values(owner=owner, lease_until=until, updated_at=now)).rowcount != 1:
        return None
    return get(conn, document_id)


def update_owned(conn: Connection, document_id: str, owner: str, fields: DocumentFields) -> bool:
    """`update` as long as ``owner`` has it. Returns False when it is deleted or somebody else's."""
    query = sa.update(_documents).where(_documents.c.id == document_id, _documents.c.owner == owner)
    return conn.execute(query.values(dict(fields))).rowcount == 1


def renew(conn: Connection, document_ids: Sequence[str], owner: str, until: str) -> set[str]:
    """Prolong leases; return the ids that are still ``owner``'s."""
    mine = sa.and_(_documents.c.id.in_(document_ids), _documents.c.owner == owner)
    conn.execute(sa.update(_documents).where(mine).values(lease_until=until))
    return set(conn.execute(sa.select(_documents.c.id).where(mine)).scalars())


def set_dense(conn: Connection, before: str, after: str) -> int:
    """Move all searchable documents from one dense state to another; return how many."""
    query = sa.update(_documents).where(_documents.c.status == "indexed", _documents.c.dense_state == before)
    return conn.execute(query.values(dense_state=after)).rowcount


def dense_ready(conn: Connection, seen: Sequence[Document]) -> None:
    """Mark documents whose vectors are all there, unless they changed since they were ``seen``."""
    for document in seen:
        same = sa.and_(_documents.c.id == document.id, _documents.c.updated_at == document.updated_at)
        conn.execute(sa.update(_documents).where(same).values(dense_state="ready"))


def delete(conn: Connection, document_id: str) -> bool:
    """Delete the record. Returns False when there was none."""
    return conn.execute(sa.delete(_documents).where(_documents.c.id == document_id)).rowcount == 1


def _free(moment: str) -> sa.ColumnElement[bool]:
    return sa.or_(_documents.c.lease_until.is_(None), _documents.c.lease_until < moment)


def _first(conn: Connection, query: Select[Any]) -> Document | None:
    row = conn.execute(query).mappings().first()
    return None if row is None else Document(**row)


def _all(conn: Connection, query: Select[Any]) -> list[Document]:
    return [Document(**row) for row in conn.execute(query).mappings()]
