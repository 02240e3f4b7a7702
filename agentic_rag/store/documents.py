"""Document records: files of a domain and the state of their ingestion.

This module enforces that the same bytes are one document per domain, and holds the lease that lets a single process
work on a document. The files are in the workspace, and chunks and vectors are in the retriever's index.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, TypedDict, Unpack

import orjson
import sqlalchemy as sa
from sqlalchemy import Connection, Index
from sqlalchemy.dialects import postgresql, sqlite

from agentic_rag.base.ids import DocumentId
from agentic_rag.store import context_lines, deliveries, scans, signals, sources
from agentic_rag.store.columns import BigInt, Indexed, Key
from agentic_rag.store.deliveries import Event
from agentic_rag.store.endpoints import EventKind
from agentic_rag.store.record import Record
from agentic_rag.store.signals import SignalKind
from agentic_rag.store.statements import in_parts


class DocumentStatus(StrEnum):
    """The state of a document's ingestion. `SETTLED` lists the final states.

    ``deleting`` is a tombstone: the document is hidden from everyone while its remains are being removed.
    """

    QUEUED = "queued"
    PARSING = "parsing"
    CHUNKING = "chunking"
    INDEXING = "indexing"
    INDEXED = "indexed"
    FAILED = "failed"
    DELETING = "deleting"


SETTLED = (DocumentStatus.INDEXED, DocumentStatus.FAILED, DocumentStatus.DELETING)
"""The states in which no work is left."""


class DenseState(StrEnum):
    """The state of a document's dense vectors: not wanted, pending, or complete."""

    NONE = "none"
    PENDING = "pending"
    READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentProgress:
    """The progress of the current stage and facts learned about the document; None if unknown in this stage."""

    stage: DocumentStatus
    pages: int | None = None
    scanned: int | None = None
    """Pages that OCR has read so far, while a scan is being read; ``scans`` is the total."""
    scans: int | None = None
    chunks: int | None = None
    """Number of chunks stored so far; ``of`` is the total."""
    of: int | None = None
    chunks_per_second: float | None = None
    languages: tuple[str, ...] | None = None
    notes: tuple[str, ...] | None = None
    """Content left out of the text, in plain words."""
    date: str | None = None
    """The latest date found in the file itself, `YYYY-MM-DD`."""
    outline: tuple[str, ...] | None = None
    """The document's first headings."""


_URI: Final = re.compile(r"(?i:(?!(?:javascript|vbscript|data|blob):)[a-z][a-z0-9+.-]+):(?: |[^\s\x00-\x1f\x7f])+")
_USER_INFO: Final = re.compile(r"^([^:/?#]+://)[^/?#\\]*@")


class DocumentRecord(Record, table=True):
    """A file of a domain and the state of its ingestion."""

    __tablename__ = "documents"
    # unique: the same bytes are one document, even if two uploads race
    __table_args__ = (Index("ix_documents_domain_sha", "domain_id", "sha256", unique=True),)
    part_of = "domain"

    id: Key[DocumentId]
    domain_id: str
    name: str
    media_type: str
    size: int
    sha256: str
    path: str
    """The path relative to the workspace's ``documents`` folder."""
    status: DocumentStatus = DocumentStatus.QUEUED
    dense_state: DenseState = DenseState.NONE
    lines_joined: bool = False
    """Whether its passages in the index have all context lines that are stored, as far as the domain uses lines."""
    progress: DocumentProgress = DocumentProgress(stage=DocumentStatus.QUEUED)
    page_count: int | None = None
    chunk_count: int | None = None
    error_code: str | None = None
    error_message: str | None = None
    file_stamp: str = ""
    """Size and time of the file when its bytes were last read."""
    owner: str = ""
    """The process that ingests the document, while ``lease_until`` is in the future."""
    lease_until: str | None = None
    labels: tuple[str, ...] = ()
    """The document's own labels, sorted. Folder rules of the domain may add more (`document_labels`)."""
    own_date: str | None = None
    """The date that an admin or a source gave the document, `YYYY-MM-DD`. It replaces the date found in the file."""
    review_by: str | None = None
    """The date until which the document should be reviewed, `YYYY-MM-DD`."""
    source_id: Indexed[str] = ""
    """The source that added the document and removes it with its item; empty for uploads and files in the folder."""
    source_uri: str | None = None
    """The address of the document's item at its source. It stays when the source is deleted."""
    created_at: str
    updated_at: str

    @property
    def date(self) -> str:
        """The document's date, `YYYY-MM-DD`: the given one, else the file's own, else the day it was added."""
        return self.own_date or self.progress.date or self.created_at[:10]

    @property
    def public_uri(self) -> str | None:
        """The address of the document's item as readers of a citation get it, or None.

        That is a URI without a user name and a password. Paths of folder sources, other addresses without a scheme, and
        schemes whose links run a script in a browser are left out.
        """
        if self.source_uri is None or not _URI.fullmatch(self.source_uri):
            return None
        return _USER_INFO.sub(r"\1", self.source_uri).replace(" ", "%20")


class ExpectedLabelsRecord(Record, table=True):
    """Labels for bytes that are about to become a document of a domain, for example those of a bundle.

    The labels are stored before the file appears in the documents folder, so that no scan can add it without them.
    """

    __tablename__ = "expected_labels"
    part_of = "domain"

    domain_id: Key[str]
    sha256: Key[str]
    labels: tuple[str, ...]
    own_date: str | None = None
    review_by: str | None = None
    source_id: str = ""
    """The source that delivered the bytes. The document gets the labels that the source has when it becomes visible."""
    source_uri: str | None = None


class LabelVersionRecord(Record, table=True):
    """A number that grows whenever a document of a domain is added or deleted, or its labels or its path change.

    Readers cache what follows from the labels of a domain as long as the number stays the same.
    """

    __tablename__ = "label_versions"
    part_of = "domain"

    domain_id: Key[str]
    number: BigInt


LABEL_VERSIONS = LabelVersionRecord.__table__
_versions = LABEL_VERSIONS.c
EXPECTED_LABELS = ExpectedLabelsRecord.__table__
_expected = EXPECTED_LABELS.c
DOCUMENTS = DocumentRecord.__table__
_documents = DOCUMENTS.c
_LISTED = _documents.status != DocumentStatus.DELETING
_IN_ORDER = sa.select(DOCUMENTS).order_by(_documents.id)


class DocumentFields(TypedDict, total=False):
    """The fields that `update` can change."""

    name: str
    path: str
    media_type: str
    status: DocumentStatus
    dense_state: DenseState
    lines_joined: bool
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
    labels: tuple[str, ...]
    own_date: str | None
    review_by: str | None
    source_id: str
    source_uri: str | None
    updated_at: str


def insert(conn: Connection, document: DocumentRecord) -> DocumentRecord:
    """Store a new document with the labels and the source that are expected for its bytes, and return it.

    Raises:
        IntegrityError: the domain has a document with the same bytes, or the id is taken.
    """
    expected = take_expected(conn, document.domain_id, document.sha256)
    if expected is not None:
        document = document.replace(
            labels=tuple(sorted({*document.labels, *_labels_of(conn, expected)})),
            own_date=document.own_date or expected.own_date,
            review_by=document.review_by or expected.review_by,
            source_id=expected.source_id,
            source_uri=expected.source_uri,
        )
    document.insert(conn)
    note_labels(conn, document.domain_id)
    return document


def _labels_of(conn: Connection, expected: ExpectedLabelsRecord) -> set[str]:
    """Return the labels that bytes bring: the stored ones, and those that their source has now.

    The source is locked, so a change of its labels either comes first or finds the document.
    """
    source = sources.lock(conn, expected.source_id) if expected.source_id else None
    return {*expected.labels, *(source.labels if source is not None else ())}


def note_labels(conn: Connection, domain_id: str) -> None:
    """Record that labels, paths or the set of documents of a domain have changed."""
    dialect = postgresql if conn.dialect.name == "postgresql" else sqlite
    first = dialect.insert(LABEL_VERSIONS).values(domain_id=domain_id, number=1)
    grown = {"number": _versions.number + 1}
    conn.execute(first.on_conflict_do_update(index_elements=[_versions.domain_id], set_=grown))


def label_version(conn: Connection, domain_id: str) -> int:
    """Return the number that `note_labels` increases. Read it before the labels, so that a cache is never too new."""
    return conn.execute(sa.select(_versions.number).where(_versions.domain_id == domain_id)).scalar() or 0


def apply_expected(conn: Connection, document: DocumentRecord, sha256: str) -> None:
    """Give a document the labels, dates and address that are expected for its new bytes."""
    expected = take_expected(conn, document.domain_id, sha256)
    if expected is not None:
        add_labels(conn, document.id, _labels_of(conn, expected))
        dates = {"own_date": expected.own_date, "review_by": expected.review_by, "source_uri": expected.source_uri}
        known_dates = {name: value for name, value in dates.items() if value is not None}
        if known_dates:
            conn.execute(sa.update(DOCUMENTS).where(_documents.id == document.id).values(known_dates))


def expect_labels(conn: Connection, expected: ExpectedLabelsRecord) -> None:
    """Store labels and dates for bytes that will become a document, or new bytes of one.

    A document that has these bytes gets them at once.
    """
    document = by_sha(conn, expected.domain_id, expected.sha256)
    if document is not None:
        add_labels(conn, document.id, _labels_of(conn, expected))
        if document.status not in (DocumentStatus.FAILED, DocumentStatus.DELETING):
            return
    where = (_expected.domain_id == expected.domain_id, _expected.sha256 == expected.sha256)
    before = ExpectedLabelsRecord.first(conn, sa.select(EXPECTED_LABELS).where(*where))
    if before is not None:
        conn.execute(sa.delete(EXPECTED_LABELS).where(*where))
        expected = expected.replace(
            labels=tuple(sorted({*before.labels, *expected.labels})),
            own_date=expected.own_date or before.own_date,
            review_by=expected.review_by or before.review_by,
            source_id=expected.source_id or before.source_id,
            source_uri=expected.source_uri or before.source_uri,
        )
    expected.insert(conn)


def take_expected(conn: Connection, domain_id: str, sha256: str) -> ExpectedLabelsRecord | None:
    """Return and delete the labels that are expected for these bytes, or return None."""
    where = (_expected.domain_id == domain_id, _expected.sha256 == sha256)
    expected = ExpectedLabelsRecord.first(conn, sa.select(EXPECTED_LABELS).where(*where))
    if expected is not None:
        conn.execute(sa.delete(EXPECTED_LABELS).where(*where))
    return expected


def add_labels(conn: Connection, document_id: DocumentId, labels: Collection[str]) -> None:
    """Add labels to a document, also to one that is being deleted. Labels are never removed here."""
    current = conn.execute(sa.select(_documents.labels).where(_documents.id == document_id)).scalar()
    joined = tuple(sorted({*(current or ()), *labels}))
    if current is not None and joined != tuple(current):
        query = sa.update(DOCUMENTS).where(_documents.id == document_id).values(labels=joined)
        conn.execute(query)
        domain_id = str(conn.execute(sa.select(_documents.domain_id).where(_documents.id == document_id)).scalar())
        note_labels(conn, domain_id)
        signals.send(conn, SignalKind.DOCUMENTS, domain_id)


NO_LABELS = "[]"
"""The stored form of a document's labels, if it has none."""


class LabelledDocument(NamedTuple):
    """The fields of a document that decide who sees it."""

    id: DocumentId
    path: str
    labels: tuple[str, ...]


def list_labelled(conn: Connection, domain_id: str) -> list[LabelledDocument]:
    """Return the domain's documents, also those that are being deleted, with the fields that decide who sees them."""
    labels = sa.cast(_documents.labels, sa.Text)  # most are empty, and need no conversion
    query = sa.select(_documents.id, _documents.path, labels).where(_documents.domain_id == domain_id)
    return [
        LabelledDocument(ident, path, () if text == NO_LABELS else tuple(orjson.loads(text)))
        for ident, path, text in conn.execute(query)
    ]


class HeldDocument(NamedTuple):
    """The fields of a document that tell a source whether the document still holds an item's bytes."""

    id: DocumentId
    sha256: str
    source_id: str


def list_held(conn: Connection, domain_id: str) -> dict[str, HeldDocument]:
    """Return the domain's documents by id, without those that are being deleted."""
    query = sa.select(_documents.id, _documents.sha256, _documents.source_id)
    rows = conn.execute(query.where(_documents.domain_id == domain_id, _LISTED))
    return {row[0]: HeldDocument(*row) for row in rows}


def of_source(conn: Connection, source_id: str) -> list[DocumentRecord]:
    """Return the documents that a source has added, without those that are being deleted."""
    return DocumentRecord.all(conn, _IN_ORDER.where(_documents.source_id == source_id, _LISTED))


def release_source(conn: Connection, source_id: str) -> None:
    """Let a source's documents stay in the domain after the source is deleted."""
    conn.execute(sa.update(DOCUMENTS).where(_documents.source_id == source_id).values(source_id=""))


def has_labels(conn: Connection, domain_id: str) -> bool:
    """Return whether a document of the domain has labels of its own."""
    labelled = sa.cast(_documents.labels, sa.Text) != NO_LABELS
    query = sa.select(sa.literal(1)).where(_documents.domain_id == domain_id, labelled).limit(1)
    return conn.execute(query).scalar() is not None


def get(conn: Connection, document_id: DocumentId) -> DocumentRecord | None:
    """Return the document, or None."""
    return DocumentRecord.first(conn, _IN_ORDER.where(_documents.id == document_id))


def by_sha(conn: Connection, domain_id: str, sha256: str) -> DocumentRecord | None:
    """Return the domain's document with these bytes, possibly a tombstone, or None."""
    return DocumentRecord.first(conn, _IN_ORDER.where(_documents.domain_id == domain_id, _documents.sha256 == sha256))


def by_path(conn: Connection, domain_id: str, path: str) -> DocumentRecord | None:
    """Return the domain's document at this path, or None."""
    return DocumentRecord.first(
        conn, _IN_ORDER.where(_documents.domain_id == domain_id, _documents.path == path, _LISTED)
    )


def list_of(conn: Connection, domain_id: str, status: DocumentStatus | None = None) -> list[DocumentRecord]:
    """Return the domain's documents, oldest first, optionally of one status; without it, tombstones are left out."""
    query = _IN_ORDER.where(_documents.domain_id == domain_id)
    return DocumentRecord.all(conn, query.where(_LISTED if status is None else _documents.status == status))


def list_deleting(conn: Connection, domain_id: str | None = None) -> list[DocumentRecord]:
    """Return the tombstones of one domain or of all domains, oldest first."""
    query = _IN_ORDER.where(_documents.status == DocumentStatus.DELETING)
    return DocumentRecord.all(conn, query if domain_id is None else query.where(_documents.domain_id == domain_id))


def list_unfinished(conn: Connection, *, free_at: str | None = None) -> list[DocumentRecord]:
    """Return the documents of all domains whose ingestion is unfinished, oldest first.

    ``free_at``: only documents without a lease at that time.
    """
    query = _IN_ORDER.where(_documents.status.not_in(SETTLED))
    return DocumentRecord.all(conn, query if free_at is None else query.where(_free(free_at)))


def failed_with(conn: Connection, codes: Collection[str]) -> list[DocumentRecord]:
    """Return the documents of all domains that failed with one of these codes."""
    return DocumentRecord.all(
        conn, _IN_ORDER.where(_documents.status == DocumentStatus.FAILED, _documents.error_code.in_(codes))
    )


def pending_dense(conn: Connection, domain_id: str | None = None) -> list[DocumentRecord]:
    """Return the searchable documents whose dense vectors are pending."""
    query = _IN_ORDER.where(_documents.status == DocumentStatus.INDEXED, _documents.dense_state == DenseState.PENDING)
    return DocumentRecord.all(conn, query if domain_id is None else query.where(_documents.domain_id == domain_id))


def count_chunks(conn: Connection) -> dict[str, int]:
    """Return the number of chunks in the indexed documents of each domain, according to their records.

    A domain without indexed documents has no entry.
    """
    of = _documents.domain_id
    query = sa.select(of, sa.func.sum(_documents.chunk_count)).where(_documents.status == DocumentStatus.INDEXED)
    return {domain_id: int(count) for domain_id, count in conn.execute(query.group_by(of))}


def count_indexed(conn: Connection, domain_id: str) -> int:
    """Return the number of searchable documents of the domain."""
    query = sa.select(sa.func.count()).where(
        _documents.domain_id == domain_id, _documents.status == DocumentStatus.INDEXED
    )
    return conn.execute(query).scalar_one()


def update(conn: Connection, document_id: DocumentId, **fields: Unpack[DocumentFields]) -> bool:
    """Change the given fields. Returns False if the document does not exist or was deleted meanwhile."""
    query = sa.update(DOCUMENTS).where(_documents.id == document_id, _LISTED).values(dict(fields))
    if fields.keys() & {"labels", "path"}:
        domain_id = conn.execute(sa.select(_documents.domain_id).where(_documents.id == document_id)).scalar()
        if domain_id is not None:
            note_labels(conn, domain_id)
    return _change(conn, query, fields.get("status"))


def claim(
    conn: Connection, document_id: DocumentId, owner: str, now: str, until: str, *, seize: bool
) -> DocumentRecord | None:
    """Lease an unfinished document to ``owner``; None if it is settled, gone, or leased to another process.

    ``seize``: the previous owner is known to be dead, so its lease is ignored.
    """
    query = sa.update(DOCUMENTS).where(_documents.id == document_id, _documents.status.not_in(SETTLED))
    if not seize:
        query = query.where(sa.or_(_documents.owner == owner, _free(now)))
    if conn.execute(query.values(owner=owner, lease_until=until, updated_at=now)).rowcount != 1:
        return None
    return get(conn, document_id)


def update_owned(conn: Connection, document_id: DocumentId, owner: str, fields: DocumentFields) -> bool:
    """Run `update` if ``owner`` holds the document. Returns False if it was deleted or has another owner."""
    query = sa.update(DOCUMENTS).where(_documents.id == document_id, _documents.owner == owner, _LISTED)
    return _change(conn, query.values(dict(fields)), fields.get("status"))


def _change(conn: Connection, query: sa.Update, status: DocumentStatus | None) -> bool:
    """Change one document. Notify other processes when it becomes searchable or not, and endpoints when it fails."""
    changed = conn.execute(query.returning(_documents.domain_id, _documents.id)).first()
    if changed is None:
        return False
    domain_id, document_id = changed
    if status in (DocumentStatus.INDEXED, DocumentStatus.DELETING):
        signals.send(conn, SignalKind.DOCUMENTS, domain_id)
    if status is DocumentStatus.FAILED:
        _announce_failure(conn, document_id)
    return True


def _announce_failure(conn: Connection, document_id: DocumentId) -> None:
    document = get(conn, document_id)
    assert document is not None
    facts = {"documentId": document.id, "name": document.name, "code": document.error_code}
    texts = {"message": document.error_message}
    deliveries.announce(conn, Event(EventKind.DOCUMENT_FAILED, document.domain_id, facts, texts))


def announce(conn: Connection, domain_id: str) -> None:
    """Notify other processes that the labels or dates of a document have changed."""
    signals.send(conn, SignalKind.DOCUMENTS, domain_id)


def renew(conn: Connection, document_ids: Sequence[str], owner: str, until: str) -> set[str]:
    """Extend leases; return the ids that ``owner`` still holds."""
    of_owner = sa.and_(_documents.id.in_(document_ids), _documents.owner == owner)
    conn.execute(sa.update(DOCUMENTS).where(of_owner).values(lease_until=until))
    return set(conn.execute(sa.select(_documents.id).where(of_owner)).scalars())


def give_back(conn: Connection, owner: str) -> None:
    """Release the leases of a process that ends, so that others can take its unfinished documents at once."""
    conn.execute(sa.update(DOCUMENTS).where(_documents.owner == owner).values(lease_until=None))


def set_dense(conn: Connection, before: DenseState, after: DenseState) -> int:
    """Move all searchable documents from one dense state to another; return their number."""
    query = sa.update(DOCUMENTS).where(_documents.status == DocumentStatus.INDEXED, _documents.dense_state == before)
    return conn.execute(query.values(dense_state=after)).rowcount


def mark_joined(conn: Connection, read: DocumentRecord) -> bool:
    """Note that a document's passages have their context lines, unless the document changed since it was ``read``."""
    same = sa.and_(
        _documents.id == read.id,
        _documents.updated_at == read.updated_at,
        _documents.status == DocumentStatus.INDEXED,
    )
    return conn.execute(sa.update(DOCUMENTS).where(same).values(lines_joined=True)).rowcount == 1


def unmark_joined(conn: Connection, domain_id: str, document_ids: Collection[str] | None = None) -> None:
    """Have the passages of some documents, or of all documents of a domain, compared with the stored context lines."""
    query = sa.update(DOCUMENTS).where(_documents.domain_id == domain_id, _documents.lines_joined)
    query = query.values(lines_joined=False)
    if document_ids is None:
        conn.execute(query)
        return
    for part in in_parts(document_ids):
        conn.execute(query.where(_documents.id.in_(part)))


def dense_ready(conn: Connection, read: Sequence[DocumentRecord]) -> None:
    """Mark documents whose vectors are complete, unless they changed since they were ``read``."""
    for document in read:
        same = sa.and_(_documents.id == document.id, _documents.updated_at == document.updated_at)
        conn.execute(sa.update(DOCUMENTS).where(same).values(dense_state=DenseState.READY))


def delete(conn: Connection, document_id: DocumentId) -> bool:
    """Delete the record, the OCR text of its pages and its context lines. Returns False if there was no record."""
    scans.delete(conn, document_id)
    context_lines.delete(conn, document_id)
    domain_id = conn.execute(sa.select(_documents.domain_id).where(_documents.id == document_id)).scalar()
    if domain_id is not None:
        note_labels(conn, domain_id)
    return conn.execute(sa.delete(DOCUMENTS).where(_documents.id == document_id)).rowcount == 1


def _free(moment: str) -> sa.ColumnElement[bool]:
    return sa.or_(_documents.lease_until.is_(None), _documents.lease_until < moment)
