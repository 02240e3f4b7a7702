"""Everything that stands between a domain's files and its searches, made in the order in which it is needed.

Owns the lives of index, embedder, ingestion, dense vectors, re-indexing and kept searches, and the choice of the
index. Knows no rule of any of them and no request.
"""

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.to_thread

from agentic_rag.directory.directory import Directory
from agentic_rag.documents.dense_vectors import DenseVectors
from agentic_rag.documents.embedding_state import EmbeddingState
from agentic_rag.documents.ingestion import Ingestion
from agentic_rag.documents.reindexing import Reindexing
from agentic_rag.documents.retrieval_traces import RetrievalTraces
from agentic_rag.documents.search import DomainSearch
from agentic_rag.errors import BadConfiguration
from agentic_rag.settings import Settings
from agentic_rag.store.database import Database
from mcp_servers.retriever.edge_index import EdgeIndex
from mcp_servers.retriever.errors import IndexFault
from mcp_servers.retriever.fast_embedder import FastReranker
from mcp_servers.retriever.index import Index

log = logging.getLogger(__name__)

PROBE_SECONDS = 15.0
"""Between two questions to the index whether it answers, for health."""
PROBED = "health-probe"
"""A collection that does not exist."""


class Knowledge:
    """An async context manager."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        directory: Directory,
        failpoint: Callable[[str], object] = lambda name: None,
    ) -> None:
        self._settings = settings
        self._db = database
        self._directory = directory
        self.failpoint = failpoint
        self._index_problem: str | None = None
        self._stack: AsyncExitStack
        self.embedding = _embedding(settings)
        self.index: Index
        self.traces: RetrievalTraces
        self.search: DomainSearch
        self.ingestion: Ingestion
        self.dense: DenseVectors
        self.reindexing: Reindexing

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._open(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(exc_type, exc, tb)

    async def _open(self, stack: AsyncExitStack) -> None:
        cache, most = self._settings.model_cache.expanduser(), self._settings.max_upload_bytes
        stack.push_async_callback(self.embedding.aclose)
        self.index = await anyio.to_thread.run_sync(_open_index, self._settings)
        stack.push_async_callback(self.index.aclose)
        self.traces = RetrievalTraces(self._db, self.index)
        self.search = DomainSearch(
            self.index, self.embedding, self._directory, lambda name: FastReranker(name, cache), self.traces.keep
        )
        self.dense = await stack.enter_async_context(
            DenseVectors(self._db, self.index, self.embedding, self.search.calibrate, self.failpoint)
        )
        self.ingestion = await stack.enter_async_context(
            Ingestion(
                self._db,
                self.index,
                self._indexed,
                max_bytes=most,
                dense_wanted=lambda: self.embedding.wanted,
                failpoint=self.failpoint,
            )
        )
        self.reindexing = await stack.enter_async_context(
            Reindexing(
                self._db,
                self.index,
                self.ingestion,
                self.dense,
                self.embedding,
                self._directory.collection_changed,
                max_bytes=most,
                failpoint=self.failpoint,
            )
        )

    def _indexed(self, domain_id: str) -> None:
        self._directory.collection_changed(domain_id)
        self.dense.wake()

    async def resume(self) -> None:
        """Go on with the ingestion that earlier processes left."""
        await self.ingestion.resume(alone=not self._settings.database_url)

    async def begin(self) -> None:
        """Prepare the embedder, and go on with the vectors and the re-indexing that earlier processes left."""
        await self.dense.begin()
        await self.reindexing.resume()

    async def watch(self) -> None:
        """Ask the index for ever whether it answers."""
        while True:
            try:
                await self.index.meta(PROBED)
                self._index_problem = None
            except IndexFault as exc:
                self._index_problem = str(exc)
                log.warning("the index does not answer: %s", exc)
            await anyio.sleep(PROBE_SECONDS)

    def health(self) -> dict[str, dict[str, Any]]:
        """Return the states of embedder and index as JSON."""
        index: dict[str, Any] = {"name": "qdrant" if self._settings.qdrant_url else "embedded"}
        index["state"] = "ready" if self._index_problem is None else "unavailable"
        if self._index_problem is not None:
            index["reason"] = self._index_problem
        return {"embedder": self.embedding.health() | self.dense.health(), "index": index}


def _embedding(settings: Settings) -> EmbeddingState:
    key = settings.embedding_key.get_secret_value() if settings.embedding_key else ""
    try:
        return EmbeddingState(settings.embedding, settings.model_cache.expanduser(), key)
    except ValueError as exc:
        raise BadConfiguration("AGENTIC_RAG_EMBEDDING", str(exc)) from exc


def _open_index(settings: Settings) -> Index:
    if not settings.qdrant_url:
        return EdgeIndex(settings.index)
    # Imported here: half a second that the embedded index does without.
    from qdrant_client import AsyncQdrantClient

    from mcp_servers.retriever.server_index import TIMEOUT_SECONDS, ServerIndex

    key = settings.qdrant_api_key.get_secret_value() if settings.qdrant_api_key else None
    client = AsyncQdrantClient(url=settings.qdrant_url, api_key=key, timeout=TIMEOUT_SECONDS, check_compatibility=False)
    return ServerIndex(client)
