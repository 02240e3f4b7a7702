"""Documents that the records call searchable and the index no longer has: found, and said in every search.

Owns the comparison of records and index, and the count of what is back. An index that has fewer chunks of a document
than its record says was damaged, dropped or deleted. Who makes them anew is `recovery`. Knows no file.
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
    """How many of a domain's documents are back (or failed, with their reason), of how many."""

    domain: str
    done: int
    of: int

    def __str__(self) -> str:
        return (
            f"The index of these documents was lost and is being rebuilt: {self.done} of {self.of} documents can be "
            "found so far. Missing information may be in the others; try again later."
        )


class LostDocuments:
    """By domain, the documents that are to come back."""

    def __init__(self, database: Database, index: Index) -> None:
        self._db = database
        self._index = index
        self._missing: dict[str, set[str]] = {}
        self._of: dict[str, int] = {}
        self._losses: Counter[str] = Counter()
        self._queueing: set[str] = set()
        self._doubted = anyio.Event()
        self._compared: set[str] = set()  # domains of which nothing was missing, since the last doubt

    async def find(self, domain_id: str) -> list[DocumentRecord]:
        """Return the documents of a domain of which the index lacks chunks.

        Raises:
            IndexFault: the index cannot be asked.
        """
        state = await self._db.read(lambda conn: collections.get(conn, domain_id))
        if state is not None and state.state is CollectionState.REBUILDING:
            return []  # the exchange counts what it brought
        indexed = await self._db.read(lambda conn: documents.list_of(conn, domain_id, DocumentStatus.INDEXED))
        collection = collection_of(domain_id)
        if await self._index.count(collection) >= sum(document.chunk_count or 0 for document in indexed):
            return []
        return [
            document
            for document in indexed
            if await self._index.count(collection, document.id) < (document.chunk_count or 0)
        ]

    @contextmanager
    def expect(self, domain_id: str, lost: Sequence[str], of: int) -> Iterator[None]:
        """Note documents that are made anew, of all that the domain has; inside, their records may not say so yet."""
        self._missing.setdefault(domain_id, set()).update(lost)
        self._of[domain_id] = of
        self._losses[domain_id] += 1
        self._queueing.add(domain_id)
        try:
            yield
        finally:
            self._queueing.discard(domain_id)

    def losses(self, domain_id: str) -> int:
        """Return how often something of a domain was found lost."""
        return self._losses[domain_id]

    async def rebuilding(self, domain_id: str) -> Rebuilding | None:
        """Return how far a domain is; None when nothing of it is lost."""
        missing = self._missing.get(domain_id)
        if missing is None:
            return None
        if domain_id in self._queueing:
            return self._progress(domain_id)
        listed = await self._db.read(lambda conn: documents.list_of(conn, domain_id))
        if domain_id not in self._queueing:  # nor since then
            missing &= {document.id for document in listed if document.status not in SETTLED}
        if not missing:
            self._missing.pop(domain_id, None)
            return None
        self._of[domain_id] = len(listed)
        return self._progress(domain_id)

    async def before_search(self, domain_id: str) -> Rebuilding | None:
        """Return what a search has to say besides its hits: how far a domain is of which something is lost.

        Records and index are compared first, if nobody did since something may have been lost: a search that comes
        before `Recovery` has looked says so too.

        Raises:
            IndexFault: the index cannot be asked.
        """
        if domain_id in self._compared or domain_id in self._missing:
            return await self.rebuilding(domain_id)
        compared = self._compared
        lost = await self.find(domain_id)
        if not lost:
            compared.add(domain_id)  # no longer ours if there was a doubt meanwhile
            return await self.rebuilding(domain_id)
        self.doubt()
        return await self.rebuilding(domain_id) or await self._all_but(domain_id, len(lost))

    async def _all_but(self, domain_id: str, lost: int) -> Rebuilding:
        count = await self._db.read(lambda conn: documents.count_indexed(conn, domain_id))
        return Rebuilding(domain_id, max(count - lost, 0), count)

    async def look_into(self, domain_id: str, losses: int) -> Rebuilding | None:
        """Return what a search that found nothing has to say: that all was lost, or would have been found since.

        ``losses`` is what `losses` returned before it.

        Raises:
            IndexFault: the index cannot be asked.
        """
        lost = await self.find(domain_id)
        if self.losses(domain_id) == losses and not lost:
            return None
        if lost:
            self.doubt()
        return await self.rebuilding(domain_id) or await self._all_but(domain_id, len(lost))

    def doubt(self) -> None:
        """Have everything looked at again."""
        self._compared = set()
        self._doubted.set()

    async def wait_for_doubt(self, seconds: float) -> bool:
        """Return True once something is to be looked at, False after so long."""
        with anyio.move_on_after(seconds):
            await self._doubted.wait()
            self._doubted = anyio.Event()
            return True
        return False

    def all_rebuilding(self) -> list[Rebuilding]:
        """Return how far all domains were when they were looked at last."""
        return [self._progress(domain_id) for domain_id in self._missing]

    def _progress(self, domain_id: str) -> Rebuilding:
        of = self._of[domain_id]
        return Rebuilding(domain_id, max(of - len(self._missing[domain_id]), 0), of)
