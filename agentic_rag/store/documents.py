"""Documents as records: files of a domain and where their ingestion stands.

Owns the rule that the same bytes are one document of a domain, and the lease by which one process at a time works
on it. Knows no file, chunk or vector.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict, Unpack

import sqlalchemy as sa
from sqlalchemy import Connection, Index

from agentic_rag.ids import DocumentId
from agentic_rag.store import scans, signals
from agentic_rag.store.records import RecordTable
from agentic_rag.store.signals import SignalKind


class DocumentStatus(StrEnum):
    """Where a document's ingestion stands. `SETTLED` are its ends.

    ``deleting`` is a tombstone: nobody is shown the document any more, and what there still is of it is being removed.
    """

    QUEUED = "queued"
    PARSING = "parsing"
    CHUNKING = "chunking"
    INDEXING = "indexing"
    INDEXED = "indexed"
    FAILED = "failed"
    DELETING = "deleting"


SETTLED = (DocumentStatus.INDEXED, DocumentStatus.FAILED, DocumentStatus.DELETING)
"""The states in which nothing is left to do."""


class DenseState(StrEnum):
    """Whether a document's dense vectors are there: not wanted, still to be made, or complete."""

    NONE = "none"
    PENDING = "pending"
    READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentProgress:
    """How far the present stage has come, and what was learned of the document; None: not known in this stage."""

    stage: DocumentStatus
    pages: int | None = None
    scanned: int | None = None
    """Pages that OCR has read, while a scan is being read; ``scans``: how many it reads."""
    scans: int | None = None
    chunks: int | None = None
    """How many of the chunks are stored; ``of``: how many there are."""
    of: int | None = None
    chunks_per_second: float | None = None
    languages: tuple[str, ...] | None = None
    notes: tuple[str, ...] | None = None
    """What was left out of the text, in plain words."""
    date: str | None = None
    """The latest that the file gives itself, `YYYY-MM-DD`."""
    outline: tuple[str, ...] | None = None
    """Its first headings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentRecord:
    """A file of a domain and where its ingestion stands."""

    id: DocumentId
    domain_id: str
    name: str
    media_type: str
    size: int
    sha256: str
    path: str
    """Relative to the workspace's ``documents`` folder."""
    status: DocumentStatus = DocumentStatus.QUEUED
    dense_state: DenseState = DenseState.NONE
    progress: DocumentProgress = DocumentProgress(stage=DocumentStatus.QUEUED)
    page_count: int | None = None
    chunk_count: int | None = None
    error_code: str | None = None
    error_message: str | None = None
    file_stamp: str = ""
    """Size and time of the file when its bytes were last looked at."""
    owner: str = ""
    """The process that ingests it, while ``lease_until`` lies ahead."""
    lease_until: str | None = None
    created_at: str
    updated_at: str


DOCUMENTS = RecordTable(
    DocumentRecord,
    "documents",
    # unique: the same bytes twice are one document, also when two uploads race
    Index("ix_documents_domain_sha", "domain_id", "sha256", unique=True),
    part_of="domain",
)
_documents = DOCUMENTS.c
_LISTED = _documents.status != DocumentStatus.DELETING
_IN_ORDER = DOCUMENTS.select.order_by(_documents.id)


class DocumentFields(TypedDict, total=False):
    """What `update` may change."""

    name: str
    path: str
    media_type: str
    status: DocumentStatus
    dense_state: DenseState
    progress: DocumentProgress
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


def insert(conn: Connection, document: DocumentRecord) -> None:
    """Store a new document.

    Raises:
        IntegrityError: the domain has a document of these bytes (or the id is taken).
    """
    DOCUMENTS.insert(conn, document)


def get(conn: Connection, document_id: DocumentId) -> DocumentRecord | None:
    """Return the document, None when there is none."""
    return DOCUMENTS.first(conn, _IN_ORDER.where(_documents.id == document_id))


def by_sha(conn: Connection, domain_id: str, sha256: str) -> DocumentRecord | None:
    """Return the domain's document of these bytes, a tombstone perhaps; None when there is none."""
    return DOCUMENTS.first(conn, _IN_ORDER.where(_documents.domain_id == domain_id, _documents.sha256 == sha256))


def by_path(conn: Connection, domain_id: str, path: str) -> DocumentRecord | None:
    """Return the domain's document that lies there, None when there is none."""
    return DOCUMENTS.first(conn, _IN_ORDER.where(_documents.domain_id == domain_id, _documents.path == path, _LISTED))


def list_of(conn: Connection, domain_id: str, status: DocumentStatus | None = None) -> list[DocumentRecord]:
    """Return the domain's documents, oldest first; only those of one status when given. No tombstone is one."""
    query = _IN_ORDER.where(_documents.domain_id == domain_id)
    return DOCUMENTS.all(conn, query.where(_LISTED if status is None else _documents.status == status))


def list_deleting(conn: Connection, domain_id: str | None = None) -> list[DocumentRecord]:
    """Return the tombstones of a domain, or of all, oldest first."""
    query = _IN_ORDER.where(_documents.status == DocumentStatus.DELETING)
    return DOCUMENTS.all(conn, query if domain_id is None else query.where(_documents.domain_id == domain_id))


def list_unfinished(conn: Connection, *, free_at: str | None = None) -> list[DocumentRecord]:
    """Return the documents of all domains whose ingestion has still to run, oldest first.

    ``free_at``: only those that nobody holds a lease on at that time.
    """
    query = _IN_ORDER.where(_documents.status.not_in(SETTLED))
    return DOCUMENTS.all(conn, query if free_at is None else query.where(_free(free_at)))


def failed_with(conn: Connection, codes: Collection[str]) -> list[DocumentRecord]:
    """Return the documents of all domains that failed with one of these codes."""
    return DOCUMENTS.all(
        conn, _IN_ORDER.where(_documents.status == DocumentStatus.FAILED, _documents.error_code.in_(codes))
    )


def pending_dense(conn: Connection, domain_id: str | None = None) -> list[DocumentRecord]:
    """Return the searchable documents whose dense vectors have still to be made."""
    query = _IN_ORDER.where(_documents.status == DocumentStatus.INDEXED, _documents.dense_state == DenseState.PENDING)
    return DOCUMENTS.all(conn, query if domain_id is None else query.where(_documents.domain_id == domain_id))


def count_chunks(conn: Connection) -> dict[str, int]:
    """Return how many chunks the indexed documents of each domain have by their records; of a domain without any,
    nothing."""
    of = _documents.domain_id
    query = sa.select(of, sa.func.sum(_documents.chunk_count)).where(_documents.status == DocumentStatus.INDEXED)
    return {domain_id: int(count) for domain_id, count in conn.execute(query.group_by(of))}


def count_indexed(conn: Connection, domain_id: str) -> int:
    """Return how many documents of the domain can be searched."""
    query = sa.select(sa.func.count()).where(
        _documents.domain_id == domain_id, _documents.status == DocumentStatus.INDEXED
    )
    return conn.execute(query).scalar_one()


def update(conn: Connection, document_id: DocumentId, **fields: Unpack[DocumentFields]) -> bool:
    """Change the given fields. Returns False when there is no such document (it was deleted meanwhile)."""
    query = sa.update(DOCUMENTS.table).where(_documents.id == document_id, _LISTED).values(dict(fields))
    return _change(conn, query, fields.get("status"))


def claim(
    conn: Connection, document_id: DocumentId, owner: str, now: str, until: str, *, seize: bool
) -> DocumentRecord | None:
    """Take an unfinished document for ``owner``; None when it is settled, gone, or somebody else's until later.

    ``seize``: whoever held it is known to be dead.
    """
    query = sa.update(DOCUMENTS.table).where(_documents.id == document_id, _documents.status.not_in(SETTLED))
    if not seize:
        query = query.where(sa.or_(_documents.owner == owner, _free(now)))
    if conn.execute(query.values(owner=owner, lease_until=until, updated_at=now)).rowcount != 1:
        return None
    return get(conn, document_id)


def update_owned(conn: Connection, document_id: DocumentId, owner: str, fields: DocumentFields) -> bool:
    """`update` as long as ``owner`` has it. Returns False when it is deleted or somebody else's."""
    query = sa.update(DOCUMENTS.table).where(_documents.id == document_id, _documents.owner == owner, _LISTED)
    return _change(conn, query.values(dict(fields)), fields.get("status"))


def _change(conn: Connection, query: sa.Update, status: DocumentStatus | None) -> bool:
    """Run a change of one document; other processes hear of one that may be searched from now on, or no more."""
    domain_id = conn.execute(query.returning(_documents.domain_id)).scalar()
    if domain_id is not None and status in (DocumentStatus.INDEXED, DocumentStatus.DELETING):
        signals.send(conn, SignalKind.DOCUMENTS, domain_id)
    return domain_id is not None


def renew(conn: Connection, document_ids: Sequence[str], owner: str, until: str) -> set[str]:
    """Prolong leases; return the ids that are still ``owner``'s."""
    mine = sa.and_(_documents.id.in_(document_ids), _documents.owner == owner)
    conn.execute(sa.update(DOCUMENTS.table).where(mine).values(lease_until=until))
    return set(conn.execute(sa.select(_documents.id).where(mine)).scalars())


def give_back(conn: Connection, owner: str) -> None:
    """End the leases of a process that ends: what it has not finished is anybody's at once."""
    conn.execute(sa.update(DOCUMENTS.table).where(_documents.owner == owner).values(lease_until=None))


def set_dense(conn: Connection, before: DenseState, after: DenseState) -> int:
    """Move all searchable documents from one dense state to another; return how many."""
    query = sa.update(DOCUMENTS.table).where(
        _documents.status == DocumentStatus.INDEXED, _documents.dense_state == before
    )
    return conn.execute(query.values(dense_state=after)).rowcount


def dense_ready(conn: Connection, read: Sequence[DocumentRecord]) -> None:
    """Mark documents whose vectors are all there, unless they changed since they were ``read``."""
    for document in read:
        same = sa.and_(_documents.id == document.id, _documents.updated_at == document.updated_at)
        conn.execute(sa.update(DOCUMENTS.table).where(same).values(dense_state=DenseState.READY))


def delete(conn: Connection, document_id: DocumentId) -> bool:
    """Delete the record, and what OCR read of its pages. Returns False when there was none."""
    scans.delete(conn, document_id)
    return conn.execute(sa.delete(DOCUMENTS.table).where(_documents.id == document_id)).rowcount == 1


def _free(moment: str) -> sa.ColumnElement[bool]:
    return sa.or_(_documents.lease_until.is_(None), _documents.lease_until < moment)
