"""The directory: what everybody reads of domains. Their records, settings, and what their collections are like.

Owns what is remembered of them between two reads, and when it is forgotten. It changes no record: `Domains` does,
and says so here. Made before everything that reads domains.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import anyio

from agentic_rag.base.errors import NotFound
from agentic_rag.directory.collection import CollectionFacts
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.store import documents, domains
from agentic_rag.store.database import Database
from agentic_rag.store.documents import DocumentStatus
from agentic_rag.store.domains import DomainRecord
from agentic_rag.store.quotas import Holdings, Quotas, holdings

FIRST_DOCUMENT_SECONDS = 10.0
"""How long a turn of a domain without documents waits for the first of those that are just being taken in."""


class IngestionQueue(Protocol):
    """Who works on documents before they can be searched."""

    def working_on(self, domain_id: str) -> bool:
        """Whether documents of a domain are in the queue or at work."""
        ...


class Directory:
    """The domains of one database; this process remembers what it has read of them.

    What is remembered is dropped by `forget` and `collection_changed`. A read that such a change overtakes is
    answered, but not remembered: each change raises an epoch, and only a read that began in the present epoch is
    kept. ``first_document_seconds``: how long `first_facts` waits.
    """

    def __init__(
        self,
        database: Database,
        *,
        first_document_seconds: float = FIRST_DOCUMENT_SECONDS,
        quotas: Quotas | None = None,
    ) -> None:
        self.quotas = quotas or Quotas()
        """What each domain may hold; who adds to one checks it in the same transaction."""
        self._db = database
        self._first_document_seconds = first_document_seconds
        self._records: dict[str, DomainRecord] = {}
        self._settings: dict[str, DomainSettings] = {}
        self._facts: dict[str, CollectionFacts] = {}
        self._leaving: set[str] = set()
        self._unseen: set[str] = set()
        self._epoch = 0
        self._changed = anyio.Event()

    async def holdings(self, domain_id: str) -> Holdings:
        """Return what a domain holds now."""
        return await self._db.read(lambda conn: holdings(conn, domain_id))

    async def get(self, domain_id: str) -> DomainRecord:
        """Return the record.

        Raises:
            NotFound: there is none, or it is being deleted.
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
        """Return the settings with their defaults.

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
        """Return what the searchable documents are like; remembered until `collection_changed`."""
        facts, epoch = self._facts.get(domain_id), self._epoch
        if facts is None:
            indexed = await self._db.read(lambda conn: documents.list_of(conn, domain_id, DocumentStatus.INDEXED))
            languages = {language for document in indexed for language in document.progress.languages or ()}
            facts = CollectionFacts(len(indexed), tuple(sorted(languages)))
            if epoch == self._epoch:
                self._facts[domain_id] = facts
        return facts

    def documents_mark(self, domain_id: str) -> object:
        """Return what is the same object as long as no searchable document of a domain changes; None: unknown."""
        return self._facts.get(domain_id)

    async def first_facts(self, domain_id: str, arrivals: IngestionQueue) -> CollectionFacts:
        """Return the facts; where there is no document yet but one on its way, once it is searchable.

        A user who adds a document and asks at once means that document. The wait is bounded.
        """
        facts = await self.facts(domain_id)
        if facts.count or not self._expects(domain_id, arrivals):
            return facts
        with anyio.move_on_after(self._first_document_seconds):
            while self._expects(domain_id, arrivals):
                changed = self._changed
                if (facts := await self.facts(domain_id)).count:
                    return facts
                await changed.wait()
        return await self.facts(domain_id)

    def _expects(self, domain_id: str, arrivals: IngestionQueue) -> bool:
        return domain_id in self._unseen or arrivals.working_on(domain_id)

    def expect_files(self, domain_id: str) -> None:
        """Note that a domain was made with files in its folder that nobody has looked at yet."""
        self._unseen.add(domain_id)

    def folder_seen(self, domain_id: str) -> None:
        """Note that the files of a domain's folder are documents now, or will not be."""
        if domain_id in self._unseen:
            self._unseen.remove(domain_id)
            self.collection_changed(domain_id)

    def collection_changed(self, domain_id: str) -> None:
        """Note that a document became searchable, or ceased to be; or that no more of them is on its way."""
        self.forget(domain_id)
        self._changed.set()
        self._changed = anyio.Event()

    def forget(self, domain_id: str) -> None:
        """Drop what is remembered of a domain, because its record was, or may have been, changed."""
        self._epoch += 1
        self._records.pop(domain_id, None)
        self._settings.pop(domain_id, None)
        self._facts.pop(domain_id, None)

    def forget_all(self) -> None:
        """Drop what is remembered of every domain."""
        for domain_id in {*self._records, *self._facts}:
            self.forget(domain_id)

    @contextmanager
    def hide(self, domain_id: str) -> Iterator[None]:
        """Hide a domain while it is deleted: for everybody else there is none any more."""
        self._leaving.add(domain_id)
        try:
            yield
        finally:
            self._leaving.discard(domain_id)
            self.forget(domain_id)
