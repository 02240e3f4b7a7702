"""Ingestion: from a file in a workspace to searchable chunks, as durable rows that survive a kill.

Owns the workers, the stages, and what a failure becomes. Knows no upload and no request. Every stage can be
repeated: chunk ids depend on document, chunker and place only, so that a job begun anew leaves no duplicates.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from agentic_rag.errors import AgenticRagError, DocumentTooLarge, StorageFull
from agentic_rag.languages import languages_of
from agentic_rag.server_map import collection_of
from agentic_rag.store import documents, domains
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.documents import DocumentFields
from agentic_rag.store.tables import Document
from mcp_servers.retriever.chunking import Chunk, chunk_document
from mcp_servers.retriever.errors import DocumentError, IndexFault
from mcp_servers.retriever.index import Index
from mcp_servers.retriever.parsing import ParsedDocument, ParseLimits, parse_in_child

log = logging.getLogger(__name__)

WORKERS = 2
"""Documents at once: parsing has a process of its own, so two keep two cores busy and the server responsive."""
BATCH = 256
"""Chunks between two reports of progress."""


@dataclass(slots=True)
class _Job:
    """A document in the queue or at work. ``ended`` is set once nothing touches its chunks any more."""

    domain_id: str
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)
    begun: bool = False


class Ingestion:
    """Works on documents as long as it is entered; leaving stops the jobs, the next start goes on with them.

    ``changed`` is called with a domain's id when its searchable documents changed.
    """

    def __init__(
        self,
        database: Database,
        index: Index,
        changed: Callable[[str], None],
        *,
        max_bytes: int,
    ) -> None:
        self._db = database
        self._index = index
        self._changed = changed
        self._limits = ParseLimits(max_bytes=max_bytes)
        self._jobs: dict[str, _Job] = {}
        self._send: MemoryObjectSendStream[str]
        self._queue: MemoryObjectReceiveStream[str]
        self._tasks: TaskGroup

    async def __aenter__(self) -> Self:
        self._send, self._queue = anyio.create_memory_object_stream[str](float("inf"))
        self._tasks = await anyio.create_task_group().__aenter__()
        for _ in range(WORKERS):
            self._tasks.start_soon(self._work)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        self._tasks.cancel_scope.cancel()
        try:
            return await self._tasks.__aexit__(exc_type, exc, tb)
        finally:
            self._send.close()
            self._queue.close()

    async def resume(self) -> int:
        """Queue what an earlier process left unfinished; return how many documents that are."""
        left = await self._db.read(documents.unfinished)
        for document in left:
            self.submit(document)
        return len(left)

    def submit(self, document: Document) -> None:
        """Queue a document whose row says ``queued`` (or is unfinished); one that is queued already stays so."""
        if document.id not in self._jobs:
            self._jobs[document.id] = _Job(document.domain_id)
            self._send.send_nowait(document.id)

    async def stop(self, document_id: str) -> None:
        """End the work on a document and wait until its chunks are left alone."""
        job = self._jobs.get(document_id)
        if job is not None:
            job.scope.cancel()
            if job.begun:
                await job.ended.wait()
            else:
                del self._jobs[document_id]

    async def stop_domain(self, domain_id: str) -> None:
        """`stop` for all documents of a domain."""
        for document_id, job in list(self._jobs.items()):
            if job.domain_id == domain_id:
                await self.stop(document_id)

    async def _work(self) -> None:
        async for document_id in self._queue:
            job = self._jobs.get(document_id)
            if job is None or job.begun:  # stopped while it waited, and perhaps queued anew
                continue
            job.begun = True
            try:
                with job.scope:
                    await self._run(document_id)
            finally:
                self._jobs.pop(document_id, None)
                job.ended.set()

    async def _run(self, document_id: str) -> None:
        """Ingest one document; a failure is a state of its row, never the end of the worker."""
        try:
            await self._ingest(document_id)
        except (DocumentError, AgenticRagError) as exc:
            await self._failed(document_id, exc.code, str(exc))
        except IndexFault as exc:
            await self._failed(document_id, "INDEX_UNAVAILABLE", f"{exc}")
        except Exception as exc:  # the server must outlive any file
            log.error("ingesting %s failed", document_id, exc_info=exc)
            await self._failed(document_id, "INTERNAL_ERROR", "something went wrong on the server; see its log")

    async def _failed(self, document_id: str, code: str, message: str) -> None:
        try:
            await self._set(document_id, status="failed", error_code=code, error_message=message)
        except StorageFull as exc:  # the row stays unfinished: the next start tries again
            log.error("ingesting %s: %s", document_id, exc)

    async def _ingest(self, document_id: str) -> None:
        document, workspace = await self._find(document_id)
        if document is None or workspace is None or document.status in documents.SETTLED:
            return
        path = workspace / "documents" / document.path
        await self._set(document_id, status="parsing", progress={"stage": "parsing"})
        parsed = await self._parse(path, document.name)
        await self._set(document_id, status="chunking", progress={"stage": "chunking"}, page_count=parsed.pages)
        chunks = await anyio.to_thread.run_sync(chunk_document, parsed, document_id, document.name)
        await self._store(document, chunks)
        progress = {"stage": "indexed", "languages": languages_of(parsed.text), "notes": list(parsed.notes)}
        await self._set(document_id, status="indexed", progress=progress, chunk_count=len(chunks))
        self._changed(document.domain_id)

    async def _find(self, document_id: str) -> tuple[Document | None, Path | None]:
        document = await self._db.read(lambda conn: documents.get(conn, document_id))
        if document is None:
            return None, None
        domain = await self._db.read(lambda conn: domains.get(conn, document.domain_id))
        return document, None if domain is None else Path(domain.workspace)

    async def _parse(self, path: Path, name: str) -> ParsedDocument:
        def size() -> int | None:
            return path.stat().st_size if path.is_file() else None

        found = await anyio.to_thread.run_sync(size)
        if found is None:
            raise DocumentError("DOCUMENT_BROKEN", "the file is not in the workspace's documents folder any more")
        if found > self._limits.max_bytes:
            raise DocumentTooLarge(name, self._limits.max_bytes)
        return await parse_in_child(path, name, self._limits)

    async def _store(self, document: Document, chunks: list[Chunk]) -> None:
        collection = collection_of(document.domain_id)
        # An earlier run, of another chunker perhaps, may have left some.
        await self._index.delete_document(collection, document.id)
        began = time.monotonic()
        for at in range(0, len(chunks), BATCH):
            spent = time.monotonic() - began
            rate = round(at / spent) if at else None
            progress = {"stage": "indexing", "chunks": at, "of": len(chunks), "chunksPerSecond": rate}
            await self._set(document.id, status="indexing", progress=progress)
            await self._index.upsert(collection, chunks[at : at + BATCH])

    async def _set(self, document_id: str, **fields: object) -> None:
        change: DocumentFields = {"updated_at": now(), **fields}  # type: ignore[typeddict-item]
        await self._db.write(lambda conn: documents.update(conn, document_id, **change))
