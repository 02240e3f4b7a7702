"""The directory: cached read access to the records, settings and collection facts of all domains.

Owns the cache and its invalidation. The directory changes no record: `Domains` does, and then invalidates the cache.
The application creates the directory before every component that reads domains.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import anyio

from agentic_rag.base.errors import NotFound
from agentic_rag.base.ids import DocumentId
from agentic_rag.directory.collection import CollectionFacts
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.store import documents, domains
from agentic_rag.store.database import Database
from agentic_rag.store.documents import DocumentRecord, DocumentStatus
from agentic_rag.store.domains import DomainRecord
from agentic_rag.store.quotas import Holdings, Quotas, holdings

FIRST_DOCUMENT_SECONDS = 10.0
"""How long a turn of a domain without searchable documents waits for the first document in ingestion, in seconds."""


MOST_PARTIAL_FACTS = 256
"""Maximum number of cached facts about the documents that some readers may see."""


class IngestionQueue(Protocol):
    """The queue of documents that are being ingested."""

    def working_on(self, domain_id: str) -> bool:
        """Return whether documents of a domain are queued or being ingested."""
        ...


class Directory:
    """The domains of one database, cached in this process.

    `forget` and `collection_changed` invalidate the cache, and each raises an epoch. A read caches its result only if
    the epoch has not changed since the read began. ``first_document_seconds``: how long `first_facts` waits.
    """

    def __init__(
        self,
        database: Database,
        *,
        first_document_seconds: float = FIRST_DOCUMENT_SECONDS,
        quotas: Quotas | None = None,
    ) -> None:
        self.quotas = quotas or Quotas()
        """The limits of each domain. Code that adds to a domain checks them in the same transaction."""
        self._db = database
        self._first_document_seconds = first_document_seconds
        self._records: dict[str, DomainRecord] = {}
        self._settings: dict[str, DomainSettings] = {}
        self._facts: dict[str, CollectionFacts] = {}
        self._partial_facts: dict[tuple[str, frozenset[DocumentId]], CollectionFacts] = {}
        self._leaving: set[str] = set()
        self._unseen: set[str] = set()
        self._epoch = 0
        self._changed = anyio.Event()

    async def holdings(self, domain_id: str) -> Holdings:
        """Return a domain's current counts and bytes, which its quotas limit."""
        return await self._db.read(lambda conn: holdings(conn, domain_id))

    async def get(self, domain_id: str) -> DomainRecord:
        """Return the record of a domain.

        Raises:
            NotFound: there is no such domain, or it is being deleted.
        """
        record, epoch = self._records.get(domain_id), self._epoch
        if record is None:
            record = await self._db.read(lambda conn: domains.get(conn, domain_id))
        if record is None or domain_id in self._leaving:
            raise NotFound("domain", domain_id)
        if epoch == self._epoch:
            self._records[domain_id] = record
        return record

    async def settings(self, domain_id: str) -> DomainSettings:
        """Return the settings of a domain with their defaults.

        Raises:
            NotFound: there is no such domain, or it is being deleted.
        """
        epoch = self._epoch
        record = await self.get(domain_id)
        settings = self._settings.get(domain_id)
        if settings is None:
            settings = DomainSettings.model_validate(record.settings)
            if epoch == self._epoch:
                self._settings[domain_id] = settings
        return settings

    async def list_all(self) -> list[DomainRecord]:
        """Return all records, oldest first."""
        return await self._db.read(domains.list_all)

    async def facts(self, domain_id: str) -> CollectionFacts:
        """Return the collection facts of a domain. They are cached until `collection_changed` or `forget`."""
        facts, epoch = self._facts.get(domain_id), self._epoch
        if facts is None:
            indexed = await self._db.read(lambda conn: documents.list_of(conn, domain_id, DocumentStatus.INDEXED))
            facts = _facts_of(indexed)
            if epoch == self._epoch:
                self._facts[domain_id] = facts
        return facts

    async def facts_of(self, domain_id: str, visible: frozenset[DocumentId]) -> CollectionFacts:
        """Return the facts of a domain for a reader who may see only the ``visible`` documents."""
        facts, epoch = self._partial_facts.get((domain_id, visible)), self._epoch
        if facts is None:
            indexed = await self._db.read(lambda conn: documents.list_of(conn, domain_id, DocumentStatus.INDEXED))
            facts = _facts_of([document for document in indexed if document.id in visible])
            if epoch == self._epoch:
                if len(self._partial_facts) >= MOST_PARTIAL_FACTS:
                    self._partial_facts.clear()  # each is one read away, so no order of use is kept
                self._partial_facts[domain_id, visible] = facts
        return facts

    def documents_mark(self, domain_id: str) -> object:
        """Return an object that stays identical while no searchable document of a domain changes.

        Returns None if the facts of the domain are not cached.
        """
        return self._facts.get(domain_id)

    async def first_facts(self, domain_id: str, arrivals: IngestionQueue) -> CollectionFacts:
        """Return the collection facts. If there are none yet, first wait for a document that is being ingested.

        A user who adds a document and asks at once means that document. The wait is bounded by
        ``first_document_seconds``.
        """
        facts = await self.facts(domain_id)
        if facts.count or not self._expects(domain_id, arrivals):
            return facts
        with anyio.move_on_after(self._first_document_seconds):
            while self._expects(domain_id, arrivals):
                changed = self._changed  # before the read, so that a change during the read is not missed
                if (facts := await self.facts(domain_id)).count:
                    return facts
                await changed.wait()
        return await self.facts(domain_id)

    def _expects(self, domain_id: str, arrivals: IngestionQueue) -> bool:
        return domain_id in self._unseen or arrivals.working_on(domain_id)

    def expect_files(self, domain_id: str) -> None:
        """Record that a new domain has files in its folder that no scan has read yet."""
        self._unseen.add(domain_id)

    def folder_seen(self, domain_id: str) -> None:
        """Record that a scan has turned the files of a domain's folder into documents, or has rejected them."""
        if domain_id in self._unseen:
            self._unseen.remove(domain_id)
            self.collection_changed(domain_id)

    def collection_changed(self, domain_id: str) -> None:
        """Invalidate a domain and wake the waiting turns.

        Called when a document becomes searchable, ceases to be searchable, or when no further one is being ingested.
        """
        self.forget(domain_id)
        self._changed.set()
        self._changed = anyio.Event()  # anyio's events cannot be cleared

    def forget(self, domain_id: str) -> None:
        """Drop the cached data of a domain, because its record has changed or may have changed."""
        self._epoch += 1
        self._records.pop(domain_id, None)
        self._settings.pop(domain_id, None)
        self._facts.pop(domain_id, None)
        self._partial_facts.clear()

    def forget_all(self) -> None:
        """Drop the cached data of every domain."""
        for domain_id in {*self._records, *self._facts}:
            self.forget(domain_id)

    @contextmanager
    def hide(self, domain_id: str) -> Iterator[None]:
        """Hide a domain during its deletion: `get` and `settings` raise `NotFound` for it."""
        self._leaving.add(domain_id)
        try:
            yield
        finally:
            self._leaving.discard(domain_id)  # also if the deletion failed: then the domain is there again
            self.forget(domain_id)


def _facts_of(indexed: Sequence[DocumentRecord]) -> CollectionFacts:
    languages = {language for document in indexed for language in document.progress.languages or ()}
    return CollectionFacts(len(indexed), tuple(sorted(languages)))
