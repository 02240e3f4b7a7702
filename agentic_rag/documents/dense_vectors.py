"""Background embedding: documents are searchable by words at once, and by meaning when their vectors are complete.

Owns the background work that embeds chunks without vectors, its backoff when an embedder fails, and the dense state of
documents. Knows no file and no request.
"""

import logging
from collections import deque
from collections.abc import Sequence
from functools import partial

import anyio

from agentic_rag.base import failpoints
from agentic_rag.base.errors import StorageError
from agentic_rag.directory.collection import collection_of
from agentic_rag.documents.document_services import DocumentServices
from agentic_rag.documents.embedding_state import EmbeddingState
from agentic_rag.documents.search import DomainSearch
from agentic_rag.store import documents
from agentic_rag.store.documents import DenseState
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.embedding import Embedder
from mcp_servers.retriever.errors import EmbeddingError, IndexFault, IndexMismatch
from mcp_servers.retriever.windows import embed_chunks

log = logging.getLogger(__name__)

BATCH = 32
"""Chunks embedded per batch; a kill loses at most one batch."""
PAUSE_SECONDS = 1.0
"""Backoff in seconds after the first failure; doubled after each further failure, up to `PAUSE_LIMIT`."""
PAUSE_LIMIT = 60.0


class DenseVectors:
    """A worker that embeds pending documents after each wake-up, for as long as the workers of the services run."""

    def __init__(self, workshop: DocumentServices, embedding: EmbeddingState, search: DomainSearch) -> None:
        self._db = workshop.database
        self._index = workshop.index
        self._embedding = embedding
        self._search = search
        self._wake = anyio.Event()
        self._writing = anyio.Lock()
        """Held while vectors are made from texts of the index and stored, so that no older text's vectors come last."""
        self._mismatched: set[str] = set()
        """Domains whose vectors come from another embedder."""
        workshop.workers.repeat("dense vectors", self._work, PAUSE_LIMIT)

    @property
    def wanted(self) -> bool:
        """Whether newly indexed documents will get dense vectors, now or later."""
        return self._embedding.wanted

    def wake(self) -> None:
        """Start looking for pending documents; does nothing while the embedder is not usable."""
        if self._embedding.usable:
            self._wake.set()

    async def begin(self) -> None:
        """Prepare the embedder, update the dense states that earlier processes stored, and wake the worker."""
        await self._embedding.prepare()
        before, after = (DenseState.NONE, DenseState.PENDING)
        if not self._embedding.wanted:
            before, after = after, before
        await self._db.write(lambda conn: documents.set_dense(conn, before, after))
        self.wake()

    async def follow_default(self) -> bool:
        """Fetch the default embedder if the settings want it, and queue documents without vectors for embedding.

        Returns True if the embedder was fetched. The caller then rebuilds collections with another embedder's vectors.
        """
        if not await self._embedding.fetch_default():
            return False
        await self._db.write(lambda conn: documents.set_dense(conn, DenseState.NONE, DenseState.PENDING))
        self.wake()
        return True

    def collection_exchanged(self, domain_id: str) -> None:
        """Resume embedding for a domain whose collection was rebuilt for the current embedder.

        Before, the worker skipped the domain, because its collection had another embedder's vectors.
        """
        self._mismatched.discard(domain_id)
        self.wake()

    async def fill(self, collection: str) -> int:
        """Embed all chunks of a collection that have no vectors; return the number of embedded chunks.

        Raises:
            EmbeddingError: the embedder failed.
            IndexMismatch: the collection has another embedder's vectors.
            IndexFault: the index failed.
        """
        count = 0
        while some := await self._fill_some(collection):
            count += some
        return count

    async def _fill_some(self, collection: str) -> int:
        """Embed up to `BATCH` chunks that have no vectors; return the number of embedded chunks. Raises like `fill`."""
        async with self._writing:
            chunks = await self._index.without_dense(collection, BATCH)
            if chunks:
                await self._embedding.warm_up()  # takes seconds, in which a better model may arrive: choose after it
                dense = await embed_chunks(await self._embedder_of(collection), chunks)
                failpoints.reached("dense.embedded")
                await self._index.add_dense(collection, [chunk.chunk_id for chunk in chunks], dense)
                failpoints.reached("dense.stored")
            return len(chunks)
        raise AssertionError("the lock suppresses no exception")

    async def replace(self, collection: str, chunks: Sequence[Chunk]) -> None:
        """Index chunks again whose context line has changed, with new vectors if the collection has any.

        Chunks that were deleted meanwhile are skipped. Raises like `fill`.
        """
        async with self._writing:
            meta = await self._index.meta(collection)
            dense = None
            if meta is not None and meta.embedder is not None:
                await self._embedding.warm_up()
                dense = await embed_chunks(await self._embedder_of(collection), chunks)
            await self._index.upsert(collection, chunks, dense, known_only=True)

    async def _embedder_of(self, collection: str) -> Embedder:
        """Return the embedder that made a collection's vectors, even if another embedder has become the default since.

        Raises:
            IndexMismatch: this process has no such embedder.
        """
        meta = await self._index.meta(collection)
        name = self._embedding.name if meta is None or meta.embedder is None else meta.embedder
        embedder = self._embedding.find(name)
        if embedder is None:
            if name == self._embedding.name:
                return self._embedding  # raises its own error when used
            raise IndexMismatch("embedder", name, self._embedding.name)
        return embedder

    @property
    def collections_to_reindex(self) -> int:
        """Number of collections with another embedder's vectors, which dense search skips."""
        return len(self._mismatched)

    async def _work(self) -> None:
        pause = PAUSE_SECONDS
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()  # before the work, so that a wake-up during the work is not lost
            try:
                await self._fill_all()
            except (EmbeddingError, IndexFault, StorageError) as exc:
                log.warning("dense vectors: %s; next attempt in %.0f s", exc, pause)
                await anyio.sleep(pause)
                pause = min(pause * 2, PAUSE_LIMIT)
                self._wake.set()
            else:
                pause = PAUSE_SECONDS

    async def _fill_all(self) -> None:
        """Give each domain one batch in turn, so that no domain waits for all the vectors of another."""
        pending = await self._db.read(documents.pending_dense)
        turns = deque(dict.fromkeys(document.domain_id for document in pending))
        while turns:
            domain_id = turns.popleft()
            collection = collection_of(domain_id)
            try:
                if await self._fill_some(collection):
                    turns.append(domain_id)
                    continue
                # Only documents that were pending at the start: a document added since may still lack vectors.
                embedded = [document for document in pending if document.domain_id == domain_id]
                unfinished = await self._db.read(documents.list_unfinished)
                if is_complete := all(document.domain_id != domain_id for document in unfinished):
                    # Measured before the documents count as ready, so that equal content gets equal answers.
                    await self._search.calibrate(collection, exactly=True)
                await self._db.write(partial(documents.dense_ready, read=embedded))
                if not is_complete:
                    await self._search.calibrate(collection)
            except IndexMismatch:
                self._mismatched.add(domain_id)
