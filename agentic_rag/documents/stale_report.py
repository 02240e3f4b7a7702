"""The report of stale documents: which documents that need a review answers lean on most.

A document is stale if the day of its review has passed, if the domain has a newer version of it, or if it has no review
date and is older than a number of days. The citations come from the stored answers of the last days.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum

from sqlalchemy import Connection

from agentic_rag.access.document_views import DocumentView
from agentic_rag.directory.directory import Directory
from agentic_rag.documents.versions import VersionFacts, series_of
from agentic_rag.store import conversations, documents
from agentic_rag.store.database import Database
from agentic_rag.store.documents import DocumentRecord, DocumentStatus

MOST_ANSWERS = 20_000
"""Maximum number of answers that a report reads, the newest first."""


class StaleReason(StrEnum):
    """Why a document is stale."""

    REVIEW = "review"
    """The day of its review has passed."""
    SUPERSEDED = "superseded"
    """The domain has a newer version of it."""
    OLD = "old"
    """It has no review date, and its date is longer ago than the report allows."""


@dataclass(frozen=True, slots=True)
class StaleDocument:
    """A stale document. ``citations`` and ``answers`` count where answers cite it; ``newer`` is its newest version."""

    document: DocumentRecord
    reason: StaleReason
    citations: int
    answers: int
    last_cited: str | None
    newer: DocumentRecord | None = None


class StaleReports:
    """Makes the reports of all domains."""

    def __init__(self, database: Database, directory: Directory) -> None:
        self._db = database
        self._directory = directory

    async def of(
        self, domain_id: str, view: DocumentView, *, days: int, older_than: int, today: date | None = None
    ) -> list[StaleDocument]:
        """Return the stale documents in the view, those that answers cite most often first.

        ``days``: how far back citations count. ``older_than``: days after which a document without review date is old.

        Raises:
            NotFound: there is no such domain.
        """
        await self._directory.get(domain_id)
        day = today or date.today()
        since = (day - timedelta(days=days)).isoformat()

        def read(conn: Connection) -> list[StaleDocument]:
            listed = documents.list_of(conn, domain_id, DocumentStatus.INDEXED)
            answers = conversations.cited_since(conn, domain_id, since, MOST_ANSWERS)
            return _report([document for document in listed if view.shows(document.id)], answers, day, older_than)

        return await self._db.read(read)


def _report(
    listed: Sequence[DocumentRecord], answers: Sequence[tuple[str, Sequence[str]]], day: date, older_than: int
) -> list[StaleDocument]:
    """Return the stale documents. ``answers``: the time of each answer, and the documents of its citations."""
    citations, cited_in, last = Counter[str](), Counter[str](), dict[str, str]()
    for at, cited in answers:
        citations.update(cited)
        for document_id in set(cited):  # an answer may cite a document several times
            cited_in[document_id] += 1
            last[document_id] = max(last.get(document_id, ""), at)
    newest = _newest_versions(listed)
    stale = []
    for document in listed:
        newer = newest[series_of(document.name)]
        reason = _reason(document, newer, day, older_than)
        if reason is not None:
            successor = None if newer.id == document.id else newer
            counts = citations[document.id], cited_in[document.id], last.get(document.id)
            stale.append(StaleDocument(document, reason, *counts, successor))
    return sorted(stale, key=lambda entry: (-entry.citations, -entry.answers, entry.document.date, entry.document.name))


def _newest_versions(listed: Sequence[DocumentRecord]) -> Mapping[str, DocumentRecord]:
    newest: dict[str, DocumentRecord] = {}
    for document in listed:
        current = newest.setdefault(series_of(document.name), document)
        if _age(document) > _age(current):
            newest[series_of(document.name)] = document
    return newest


def _age(document: DocumentRecord) -> tuple[str, str, str]:
    facts = VersionFacts(document.name, document.date, document.created_at)
    return facts.date, facts.added, document.id


def _reason(document: DocumentRecord, newest: DocumentRecord, day: date, older_than: int) -> StaleReason | None:
    if document.review_by is not None and document.review_by < day.isoformat():
        return StaleReason.REVIEW
    if newest.id != document.id:
        return StaleReason.SUPERSEDED
    if document.review_by is None and document.date < (day - timedelta(days=older_than)).isoformat():
        return StaleReason.OLD
    return None
