"""Dense vectors that join later: documents are searchable by their words at once, by their meaning when this is done.

Owns the background work that embeds what has no vectors yet, its patience with an embedder that fails, and the dense
state of documents. Knows no file and no request.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.abc import TaskGroup

from agentic_rag.directory.collection import collection_of
from agentic_rag.documents.embedding_state import EmbeddingState
from agentic_rag.errors import StorageError
from agentic_rag.store import documents
from agentic_rag.store.database import Database
from mcp_servers.retriever.errors import EmbeddingError, IndexFault, IndexMismatch
from mcp_servers.retriever.index import Dense, Index, searchable_text

log = logging.getLogger(__name__)

BATCH = 32
"""Chunks embedded at a time; a kill loses no more."""
PAUSE_SECONDS = 1.0
"""After the first failure; doubled after each further one."""
PAUSE_LIMIT = 60.0


class DenseVectors:
    """Makes the vectors that are pending, as long as it is entered and once it was woken.

    Args:
        changed: called with a domain's id when its searches got their dense leg.
        calibrate: measures what the dense leg of a collection is worth.
        failpoint: called with the name of each place at which a kill must do no harm (tests).
    """

    def __init__(
        self,
        database: Database,
        index: Index,
        embedding: EmbeddingState,
        calibrate: Callable[[str], Awaitable[object]],
        failpoint: Callable[[str], object] = lambda name: None,
    ) -> None:
        self._db = database
        self._index = index
        self._embedding = embedding
        self._calibrate = calibrate
        self._failpoint = failpoint
        self._wanted = anyio.Event()
        self._mismatched: dict[str, str] = {}
        self._tasks: TaskGroup

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._work)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(exc_type, exc, tb)

    def wake(self) -> None:
        """Look for pending documents; costs nothing while the embedder is not usable."""
        if self._embedding.usable:
            self._wanted.set()

    async def begin(self) -> None:
        """Take up what earlier processes left, once the embedder is prepared."""
        await self._embedding.prepare()
        before, after = ("none", "pending") if self._embedding.wanted else ("pending", "none")
        await self._db.write(lambda conn: documents.set_dense(conn, before, after))
        self.wake()

    def rebuilt(self, domain_id: str) -> None:
        """A domain's collection was exchanged: what was wrong with the old one is over."""
        self._mismatched.pop(domain_id, None)
        self.wake()

    async def fill(self, collection: str) -> int:
        """Embed all chunks of a collection that have no vectors; return how many got some.

        Raises:
            EmbeddingError: the embedder failed.
            IndexMismatch: the collection has vectors of another kind.
            IndexFault: the index failed.
        """
        filled = 0
        while chunks := await self._index.without_dense(collection, BATCH):
            vectors = await self._embedding.embed_documents([searchable_text(chunk) for chunk in chunks])
            self._failpoint("dense.embedded")
            dense = Dense(self._embedding.name, vectors)
            await self._index.add_dense(collection, [chunk.chunk_id for chunk in chunks], dense)
            self._failpoint("dense.stored")
            filled += len(chunks)
        return filled

    def health(self) -> dict[str, Any]:
        """Return how many collections have vectors of another embedder, and so no dense leg."""
        return {"collectionsToReindex": len(self._mismatched)} if self._mismatched else {}

    async def _work(self) -> None:
        pause = PAUSE_SECONDS
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            try:
                await self._fill_all()
            except (EmbeddingError, IndexFault, StorageError) as exc:
                log.warning("dense vectors: %s; next attempt in %.0f s", exc, pause)
                await anyio.sleep(pause)
                pause = min(pause * 2, PAUSE_LIMIT)
                self._wanted.set()
            else:
                pause = PAUSE_SECONDS

    async def _fill_all(self) -> None:
        pending = await self._db.read(documents.pending_dense)
        for domain_id in dict.fromkeys(document.domain_id for document in pending):
            collection = collection_of(domain_id)
            meta = await self._index.meta(collection)
            if meta is not None and meta.embedder not in (None, self._embedding.name):
                self._mismatched[domain_id] = f"its vectors are of {meta.embedder}"
                continue
            seen = [document for document in pending if document.domain_id == domain_id]
            try:
                await self.fill(collection)
                await self._db.write(partial(documents.dense_ready, seen=seen))
                await self._calibrate(collection)
            except IndexMismatch as exc:
                self._mismatched[domain_id] = str(exc)
