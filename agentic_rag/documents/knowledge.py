"""All components between a domain's files and its searches, created in dependency order.

Owns the lifecycle of index, embedder, ingestion, dense vectors, re-indexing and stored searches, and the choice of the
index. Knows no rule of any of them and no request.
"""

import logging
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Final

import anyio.to_thread

from agentic_rag.base.settings import Settings
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.base.threads import DomainThreads
from agentic_rag.base.workers import Workers, attempt
from agentic_rag.directory.directory import Directory
from agentic_rag.documents.context_lines import ContextLines
from agentic_rag.documents.dense_vectors import DenseVectors
from agentic_rag.documents.disk_reserve import DiskReserve
from agentic_rag.documents.document_services import DocumentServices
from agentic_rag.documents.embedding_state import EmbeddingState
from agentic_rag.documents.ingestion import Ingestion
from agentic_rag.documents.intake import Intake
from agentic_rag.documents.line_writer import LineWriter
from agentic_rag.documents.lost_documents import LostDocuments
from agentic_rag.documents.model_scans import PageModel
from agentic_rag.documents.pages import PageImages
from agentic_rag.documents.recovery import Recovery
from agentic_rag.documents.reindexing import Reindexing, SwapGate
from agentic_rag.documents.scan_reading import OcrBudget, ScanStore
from agentic_rag.documents.search import DomainSearch, SearchTraces, index_errors
from agentic_rag.store import documents
from agentic_rag.store.database import Database
from mcp_servers.retriever.errors import IndexFault
from mcp_servers.retriever.formats import all_formats
from mcp_servers.retriever.index import Index
from mcp_servers.retriever.process_index import open_process_index

log = logging.getLogger(__name__)

PROBE_SECONDS = 15.0
"""Seconds between two health probes of the index."""
PROBED = "health-probe"
"""The name of a collection that does not exist, for the health probe."""

EMBEDDED: Final = "embedded"
"""The name of an index that runs in a process of a single server."""


class Knowledge:
    """All components for documents and searches. Each lives as long as the context of `open_knowledge`."""

    def __init__(
        self,
        settings: Settings,
        workshop: DocumentServices,
        embedding: EmbeddingState,
        gate: SwapGate | None = None,
        writer: LineWriter | None = None,
    ) -> None:
        database, index = workshop.database, workshop.index
        self.workshop = workshop
        self._alone = not settings.database_url
        self.index_name = "qdrant" if settings.qdrant_url else EMBEDDED
        self.index = index
        self.embedding = embedding
        self.traces = SearchTraces(database, index)
        self.lost = LostDocuments(database, index)
        models = settings.model_cache.expanduser()
        self.search = DomainSearch(database, index, self.embedding, workshop.directory, self.traces, self.lost, models)
        self.dense = DenseVectors(workshop, self.embedding, self.search)
        reserve = DiskReserve(settings.data, settings.disk_reserve // 2)
        self.ingestion = Ingestion(workshop, self.dense, reserve)
        self.recovery = Recovery(workshop, self.lost, self.ingestion)
        self.reindexing = Reindexing(workshop, self.ingestion, self.dense, self.embedding, self.search, gate)
        self.lines = ContextLines(workshop, self.dense, self.reindexing, writer, gate)
        self.intake = Intake(workshop, self.ingestion, self.reindexing)
        self.pages = PageImages(workshop)
        self.scans = ScanStore(workshop.database)

    async def resume(self) -> None:
        """Resume the ingestion that earlier processes left unfinished."""
        await self.ingestion.resume(alone=self._alone)

    async def begin(self) -> None:
        """Prepare the embedder, and resume the embedding and re-indexing that earlier processes left unfinished.

        Raises:
            IndexUnavailable: the index does not answer now.
        """
        self.workshop.workers.repeat("asking the index whether it answers", self._probe, PROBE_SECONDS)
        self.recovery.begin()
        with index_errors():
            await self.dense.begin()
            self.workshop.workers.start("fetching the default embedder", self._follow_default)
            await self.reindexing.resume()
        if await self.workshop.database.read(documents.count_chunks):
            self.workshop.workers.start("loading the embedder", self.embedding.warm_up)

    async def _follow_default(self) -> None:
        if await self.dense.follow_default():
            await self.reindexing.resume()

    async def _probe(self) -> None:
        try:
            await self.index.count(PROBED, "none")  # no index answers this from memory
        except IndexFault as exc:
            self.search.note_fault(exc)
            log.warning("the index does not answer: %s", exc)
        else:
            self.search.outcomes.note_success(time.time())


@asynccontextmanager
async def open_knowledge(
    settings: Settings,
    database: Database,
    directory: Directory,
    threads: DomainThreads,
    page_model: PageModel | None = None,
    gate: SwapGate | None = None,
    writer: LineWriter | None = None,
) -> AsyncIterator[Knowledge]:
    """Open the index and create all components. At the end, their work stops before the index is closed.

    ``page_model`` reads scanned pages with the models of their domains, if there is a language model. ``gate`` decides
    whether rebuilt collections go live. ``writer`` writes context lines.

    Raises:
        BadConfiguration: the embedder's setting has no known form.
        IndexFault: the index cannot be opened.
    """
    await anyio.to_thread.run_sync(all_formats)  # finds installed formats now, so that the first upload need not wait
    async with (
        aclosing(_embedding(settings)) as embedding,
        _open_index(settings) as index,
    ):
        async with Workers() as workers:
            ocr = OcrBudget(settings.ocr_pages, settings.ocr_seconds)
            most = settings.max_upload_bytes
            workshop = DocumentServices(database, directory, index, threads, workers, most, ocr, page_model)
            knowledge = Knowledge(settings, workshop, embedding, gate, writer)
            yield knowledge
        if database.shared:  # otherwise other replicas would wait until the leases run out
            await attempt("giving documents back", knowledge.ingestion.give_back)


def _embedding(settings: Settings) -> EmbeddingState:
    key = settings.embedding_key.get_secret_value() if settings.embedding_key else ""
    try:
        cache, may_fetch = settings.model_cache.expanduser(), settings.fetch_model == "auto"
        return EmbeddingState(settings.embedding, cache, key, may_fetch=may_fetch)
    except ValueError as exc:
        raise BadConfiguration("AGENTIC_RAG_EMBEDDING", str(exc)) from exc


@asynccontextmanager
async def _open_index(settings: Settings) -> AsyncIterator[Index]:
    if not settings.qdrant_url:
        async with open_process_index(settings.index) as index:
            yield index
    else:
        async with aclosing(await anyio.to_thread.run_sync(_connect, settings.qdrant_url, settings)) as index:
            yield index


def _connect(url: str, settings: Settings) -> Index:
    # Imported here: the import takes half a second, which the embedded index saves.
    from qdrant_client import AsyncQdrantClient

    from mcp_servers.retriever.server_index import TIMEOUT_SECONDS, ServerIndex

    key = settings.qdrant_api_key.get_secret_value() if settings.qdrant_api_key else None
    try:
        client = AsyncQdrantClient(url=url, api_key=key, timeout=TIMEOUT_SECONDS, check_compatibility=False)
    except ValueError as exc:  # not quoted, because the address may contain a password
        raise BadConfiguration("QDRANT_URL", "must be a URL such as http://127.0.0.1:6333") from exc
    return ServerIndex(client)
