"""Lost documents: documents that are indexed by their record but missing from the index. Every search reports them.

Owns the comparison of records with the index, and the count of restored documents. If the index has fewer chunks of a
document than the record says, it was damaged, dropped or deleted. `recovery` restores the documents. Knows no file.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import anyio

from agentic_rag.directory.collection import collection_of
from agentic_rag.store import collections, documents
from agentic_rag.store.collections import CollectionState
from agentic_rag.store.database import Database
from agentic_rag.store.documents import DocumentRecord, DocumentStatus
from mcp_servers.retriever.index import Index

SETTLED = (DocumentStatus.INDEXED, DocumentStatus.FAILED)


@dataclass(frozen=True, slots=True)
class Rebuilding:
    """The progress of a domain: ``done`` documents are restored (or failed, with their reason), ``of`` is the total."""

    domain: str
    done: int
    of: int

    def __str__(self) -> str:
        return (
            f"The index of these documents was lost and is being rebuilt: {self.done} of {self.of} documents can be "
            "found so far. Missing information may be in the others; try again later."
        )


class LostDocuments:
    """The documents to be restored, by domain."""

    def __init__(self, database: Database, index: Index) -> None:
        self._db = database
        self._index = index
        self._missing: dict[str, set[str]] = {}
        self._of: dict[str, int] = {}
        self._losses: Counter[str] = Counter()
        self._queueing: set[str] = set()
        self._doubted = anyio.Event()
        self._compared: set[str] = set()  # complete domains since the last `doubt`

    async def find(self, domain_id: str) -> list[DocumentRecord]:
        """Return the documents of a domain with chunks that are missing from the index.

        Raises:
            IndexFault: the index does not answer.
        """
        state = await self._db.read(lambda conn: collections.get(conn, domain_id))
        if state is not None and state.state is CollectionState.REBUILDING:
            return []  # the rebuild counts the chunks itself when it ends
        indexed = await self._db.read(lambda conn: documents.list_of(conn, domain_id, DocumentStatus.INDEXED))
        collection = collection_of(domain_id)
        # One count of the whole collection first: usually nothing is lost, and counts by document are many calls.
        if await self._index.count(collection) >= sum(document.chunk_count or 0 for document in indexed):
            return []
        return [
            document
            for document in indexed
            if await self._index.count(collection, document.id) < (document.chunk_count or 0)
        ]

    @contextmanager
    def expect(self, domain_id: str, document_ids: Sequence[str], of: int) -> Iterator[None]:
        """Register lost documents of a domain with ``of`` documents in total.

        Inside the context, the caller queues the documents, so their records may still say that they are indexed.
        """
        self._missing.setdefault(domain_id, set()).update(document_ids)
        self._of[domain_id] = of
        self._losses[domain_id] += 1
        self._queueing.add(domain_id)
        try:
            yield
        finally:
            self._queueing.discard(domain_id)

    def losses(self, domain_id: str) -> int:
        """Return how many times documents of a domain were found lost."""
        return self._losses[domain_id]

    async def rebuilding(self, domain_id: str) -> Rebuilding | None:
        """Return the progress of a domain; None when nothing of the domain is lost."""
        missing = self._missing.get(domain_id)
        if missing is None:
            return None
        if domain_id in self._queueing:
            return self._progress(domain_id)
        listed = await self._db.read(lambda conn: documents.list_of(conn, domain_id))
        if domain_id not in self._queueing:  # checked again: a loss may have been registered during the read
            missing &= {document.id for document in listed if document.status not in SETTLED}
        if not missing:
            self._missing.pop(domain_id, None)
            return None
        self._of[domain_id] = len(listed)
        return self._progress(domain_id)

    async def before_search(self, domain_id: str) -> Rebuilding | None:
        """Return the progress of a domain with lost documents, which a search reports beside its hits.

        If no search compared records and index since the last `doubt`, this call compares them first. A search that
        comes before the check by `Recovery` therefore also reports lost documents.

        Raises:
            IndexFault: the index does not answer.
        """
        if domain_id in self._compared or domain_id in self._missing:
            return await self.rebuilding(domain_id)
        compared = self._compared
        lost = await self.find(domain_id)
        if not lost:
            compared.add(domain_id)  # a `doubt` in the meantime replaced this set
            return await self.rebuilding(domain_id)
        self.doubt()
        return await self.rebuilding(domain_id) or await self._all_but(domain_id, len(lost))

    async def _all_but(self, domain_id: str, lost_count: int) -> Rebuilding:
        count = await self._db.read(lambda conn: documents.count_indexed(conn, domain_id))
        return Rebuilding(domain_id, max(count - lost_count, 0), count)

    async def look_into(self, domain_id: str, losses: int) -> Rebuilding | None:
        """Return the progress of a domain after a search without hits; None if no documents were lost.

        ``losses`` is the result of `losses` before the search. A higher number now means that a loss was found during
        the search, and a repeated search may find more.

        Raises:
            IndexFault: the index does not answer.
        """
        lost = await self.find(domain_id)
        if self.losses(domain_id) == losses and not lost:
            return None
        if lost:
            self.doubt()
        return await self.rebuilding(domain_id) or await self._all_but(domain_id, len(lost))

    def doubt(self) -> None:
        """Request a new comparison of records and index for all domains."""
        self._compared = set()
        self._doubted.set()

    async def wait_for_doubt(self, seconds: float) -> bool:
        """Wait for a call of `doubt`; return True after one, False after the given number of seconds."""
        with anyio.move_on_after(seconds):
            await self._doubted.wait()
            self._doubted = anyio.Event()
            return True
        return False

    def all_rebuilding(self) -> list[Rebuilding]:
        """Return the last known progress of all domains with lost documents."""
        return [self._progress(domain_id) for domain_id in self._missing]

    def _progress(self, domain_id: str) -> Rebuilding:
        of = self._of[domain_id]
        return Rebuilding(domain_id, max(of - len(self._missing[domain_id]), 0), of)
