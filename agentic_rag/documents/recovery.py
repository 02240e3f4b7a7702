"""Recovery: documents that the index has lost are indexed again while the server keeps working.

Owns the times at which documents are compared with the index. These are the start, a restart of the index process,
damage that the index process has set aside, and a search without hits in a domain with documents. `ingestion` indexes
the documents and resumes after a kill.
"""

import logging

from agentic_rag.documents.document_services import DocumentServices
from agentic_rag.documents.ingestion import Ingestion
from agentic_rag.documents.lost_documents import SETTLED, LostDocuments
from agentic_rag.store import documents, domains
from agentic_rag.store.documents import DocumentRecord
from mcp_servers.retriever.errors import IndexDamaged, IndexFault

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""Seconds between two updates of the progress, and before a retry after a failure."""


class Recovery:
    """Compares records with the index and queues lost documents, from `begin` until the workers of ``workshop`` end."""

    def __init__(self, workshop: DocumentServices, lost: LostDocuments, ingestion: Ingestion) -> None:
        self._db = workshop.database
        self._index = workshop.index
        self._lost = lost
        self._ingestion = ingestion
        self._workers = workshop.workers

    def begin(self) -> None:
        """Check all domains now, and again after each signal of a possible loss."""
        self._lost.doubt()
        self._workers.repeat("looking for lost documents", self._work, LOOK_SECONDS)
        self._workers.repeat("hearing of a lost index", self._hear, LOOK_SECONDS)

    async def _hear(self) -> None:
        while True:
            await self._index.wait_for_loss()
            self._lost.doubt()

    async def _work(self) -> None:
        while True:
            if not await self._lost.wait_for_doubt(LOOK_SECONDS):
                for progress in self._lost.all_rebuilding():
                    await self._lost.rebuilding(progress.domain)
                continue
            try:
                for domain in await self._db.read(domains.list_all):
                    await self.recover(domain.id)
            except IndexFault as exc:  # the index process restarts and `_hear` then requests another check
                log.warning("checking the index for lost documents failed: %s", exc)

    async def recover(self, domain_id: str) -> int:
        """Queue the lost documents of a domain again; return their number.

        Raises:
            IndexFault: the index does not answer.
        """
        try:
            lost = await self._lost.find(domain_id)
        except IndexDamaged:  # the index has set the damaged collection aside: all its documents are lost
            lost = await self._lost.find(domain_id)
        if not lost:
            return 0
        listed = await self._db.read(lambda conn: documents.list_of(conn, domain_id))
        waiting = [document.id for document in listed if document.status not in SETTLED]
        log.error("the index lacks %d documents of %s: they are indexed again", len(lost), domain_id)
        with self._lost.expect(domain_id, [*waiting, *(document.id for document in lost)], len(listed)):
            for document in lost:
                await self._queue(document)
        return len(lost)

    async def _queue(self, document: DocumentRecord) -> None:
        if await self._ingestion.requeue(document.id, expected=document):
            self._ingestion.submit(document)
