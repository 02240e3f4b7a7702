"""Re-indexing: rebuild a domain's collection next to the live one, exchange the two, and roll back on request.

Owns the order of steps that loses nothing. Searches continue in the old collection. Documents that are added or removed
during the rebuild change in the new collection too. After a kill at any point, the next start resumes the rebuild.
Knows no request.
"""

import logging
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import anyio
from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.base import failpoints
from agentic_rag.base.errors import AgenticRagError, NothingToRollBack, ReindexHeld, ReindexRunning, StorageError
from agentic_rag.base.ids import DocumentId
from agentic_rag.base.workers import Queue
from agentic_rag.directory.collection import collection_of
from agentic_rag.documents.child import ScansOfJob
from agentic_rag.documents.dense_vectors import DenseVectors
from agentic_rag.documents.document_services import DocumentServices
from agentic_rag.documents.embedding_state import EmbeddingState
from agentic_rag.documents.files import documents_of, open_document
from agentic_rag.documents.ingestion import RESTART_SECONDS, Ingestion
from agentic_rag.documents.line_writer import with_lines
from agentic_rag.documents.reading import ReadingProcess
from agentic_rag.documents.scan_reading import ScanStore
from agentic_rag.documents.search import DomainSearch
from agentic_rag.store import collections, context_lines, documents, domains
from agentic_rag.store.audit import Entry
from agentic_rag.store.clock import now
from agentic_rag.store.collections import CollectionRecord, CollectionState, LinesUse
from agentic_rag.store.documents import DenseState, DocumentRecord, DocumentStatus
from mcp_servers.retriever.document import ParseLimits
from mcp_servers.retriever.errors import DocumentError, EmbeddingError, IndexDamaged, IndexFault
from mcp_servers.retriever.index import CollectionMeta
from mcp_servers.safe_files import Folder

log = logging.getLogger(__name__)

PAGE = 64
"""Chunks copied per batch."""


class SwapGate(Protocol):
    """Decides whether a rebuilt collection may go live."""

    async def compares(self, domain_id: str) -> bool:
        """Return whether a rebuilt collection of a domain is compared with the live one."""
        ...

    async def refusal(self, search: DomainSearch, domain_id: str, collection: str, *, adds_lines: bool) -> str:
        """Return the reason why the rebuilt collection must not go live, or an empty text.

        ``adds_lines``: it has context lines, and the live one has none. Then it must make a case better.
        """
        ...


class Reindexing:
    """Rebuilds collections one after the other, as long as the workers of ``workshop`` live.

    ``search`` searches a rebuilt collection for the ``gate``, which may refuse that the collection goes live.
    """

    def __init__(
        self,
        workshop: DocumentServices,
        ingestion: Ingestion,
        dense: DenseVectors,
        embedding: EmbeddingState,
        search: DomainSearch,
        gate: SwapGate | None = None,
    ) -> None:
        self._search = search
        self._gate = gate
        self._ungated: set[str] = set()
        """Domains whose next rebuild goes live without asking the gate."""
        self._threads = workshop.threads
        self._db = workshop.database
        self._index = workshop.index
        self._directory = workshop.directory
        self._ingestion = ingestion
        self._dense = dense
        self._embedding = embedding
        self._limits = ParseLimits(max_bytes=workshop.max_bytes)
        self._scans = ScanStore(workshop.database)
        self._scopes: dict[str, anyio.CancelScope] = {}
        """Cancel scopes of the domains that are queued or being rebuilt."""
        self._queue: Queue[str] = Queue()
        workshop.workers.repeat("rebuilding collections", self._work, RESTART_SECONDS)

    async def state(self, domain_id: str) -> CollectionRecord:
        """Return the state of a domain's collection."""
        row = await self._db.read(lambda conn: collections.get(conn, domain_id))
        return row or CollectionRecord(domain_id=domain_id, updated_at=now())

    async def request(self, domain_id: str, *, anyway: bool = False) -> CollectionRecord:
        """Queue the rebuild of a domain's collection; a running rebuild continues.

        ``anyway``: skip the gate.
        """
        if anyway:
            self._ungated.add(domain_id)
        row = await self.state(domain_id)
        if row.state is not CollectionState.REBUILDING:
            row = await self._put(
                domain_id, CollectionState.REBUILDING, row.generation, entry=change("collection.rebuild", domain_id)
            )
        if domain_id not in self._scopes:
            self._scopes[domain_id] = anyio.CancelScope()
            self._queue.put(domain_id)
        return row

    async def resume(self) -> None:
        """Resume rebuilds that earlier processes left, and rebuild collections of another embedder or chunker."""
        for domain_id in await self._db.read(collections.list_rebuilding):
            await self.request(domain_id)
        for domain in await self._db.read(domains.list_all):
            try:
                meta = await self._index.meta(collection_of(domain.id))
            except IndexDamaged:  # the index sets the collection aside, and `recovery` indexes its documents again
                continue
            if meta is not None and await self._is_outdated(domain.id, meta):
                log.info("the collection of %s was built with other settings: it is rebuilt", domain.id)
                await self.request(domain.id)

    async def roll_back(self, domain_id: str) -> CollectionRecord:
        """Make the collection before the last exchange live again, and ingest the documents that it lacks.

        Raises:
            ReindexRunning: a rebuild is running.
            NothingToRollBack: there was no exchange.
        """
        row = await self.state(domain_id)
        if row.state is CollectionState.REBUILDING:
            raise ReindexRunning(domain_id)
        collection = collection_of(domain_id)
        async with self._ingestion.pause(domain_id):
            if not await self._index.roll_back(collection):
                raise NothingToRollBack(domain_id)
            # The next start must not rebuild this collection as outdated: it stays until someone requests a rebuild.
            entry = change("collection.rollback", domain_id)
            lines = LinesUse.NONE if row.lines is LinesUse.NONE else LinesUse.HELD
            row = await self._put(domain_id, CollectionState.ROLLED_BACK, row.generation, entry=entry, lines=lines)
            for document in await self._db.read(
                lambda conn: documents.list_of(conn, domain_id, DocumentStatus.INDEXED)
            ):
                count = await self._index.count(collection, document.id)
                if count:
                    await self._db.write(partial(documents.update, document_id=document.id, chunk_count=count))
                else:
                    await self._ingestion.requeue(document.id)
                    self._ingestion.submit(document)
        self._tell_exchanged(domain_id)
        return row

    async def delete_document(self, domain_id: str, document_id: DocumentId) -> None:
        """Remove a document's chunks from every collection of the domain: the live, the previous and the new one.

        Raises:
            IndexFault: the index failed; call again.
        """
        collection = collection_of(domain_id)
        await self._index.delete_document(collection, document_id)
        row = await self.state(domain_id)
        for generation in range(1, row.generation + 1):  # deleted generations cost nothing
            await self._index.delete_document(f"{collection}@{generation}", document_id)

    async def stop(self, domain_id: str) -> None:
        """Stop rebuilding a domain's collection."""
        scope = self._scopes.get(domain_id)
        if scope is not None:
            scope.cancel()

    async def _is_outdated(self, domain_id: str, meta: CollectionMeta) -> bool:
        fresh = CollectionMeta()
        if (await self.state(domain_id)).state is CollectionState.ROLLED_BACK:
            return False
        if (meta.tokenizer, meta.chunker) != (fresh.tokenizer, fresh.chunker):
            return True
        return self._embedding.usable and meta.embedder not in (None, self._embedding.name)

    async def _put(
        self,
        domain_id: str,
        state: CollectionState,
        generation: int,
        reason: str | None = None,
        entry: Entry | None = None,
        lines: LinesUse | None = None,
    ) -> CollectionRecord:
        def save(conn: Connection) -> CollectionRecord:
            before = collections.get(conn, domain_id)
            use = lines if lines is not None else before.lines if before is not None else LinesUse.NONE
            row = CollectionRecord(
                domain_id=domain_id, state=state, generation=generation, reason=reason, lines=use, updated_at=now()
            )
            collections.put(conn, row)
            if entry is not None:
                audit(conn, entry)
            return row

        return await self._db.write(save, durable=True)

    async def use_lines(self, domain_id: str, lines: LinesUse) -> None:
        """Record whether the live collection has context lines, or a rebuild tries them."""

        def save(conn: Connection) -> None:
            before = collections.get(conn, domain_id) or CollectionRecord(domain_id=domain_id, updated_at=now())
            collections.put(conn, before.replace(lines=lines, updated_at=now()))

        await self._db.write(save, durable=True)

    async def _work(self) -> None:
        while True:
            domain_id = await self._queue.get()
            try:
                with self._scopes[domain_id]:
                    await self._attempt(domain_id)
            finally:
                del self._scopes[domain_id]
            await self._look_again(domain_id)

    async def _look_again(self, domain_id: str) -> None:
        """Rebuild a collection again if the embedder changed during the rebuild."""
        try:
            meta = await self._index.meta(collection_of(domain_id))
            if (
                meta is not None
                and (await self.state(domain_id)).state is CollectionState.READY
                and await self._is_outdated(domain_id, meta)
            ):
                await self.request(domain_id)
        except (IndexFault, StorageError) as exc:
            log.warning(
                "whether the collection of %s is of this embedder is asked at the next start: %s", domain_id, exc
            )

    async def _attempt(self, domain_id: str) -> None:
        """Rebuild a collection. A failure keeps the live collection unchanged and is recorded as its state."""
        try:
            await self._rebuild(domain_id)
        except (AgenticRagError, IndexFault, EmbeddingError) as exc:
            log.error("rebuilding the collection of %s: %s", domain_id, exc)
            with suppress(StorageError):  # the state stays "rebuilding", and the next start rebuilds again
                await self._put(domain_id, CollectionState.FAILED, (await self.state(domain_id)).generation, str(exc))

    async def _rebuild(self, domain_id: str) -> None:
        collection = collection_of(domain_id)
        await self._embedding.prepare()
        self._embedding.forget_dimension()
        generation = await self._index.rebuild(collection, CollectionMeta())
        await self._put(domain_id, CollectionState.REBUILDING, int(generation.partition("@")[2]))
        failpoints.reached("reindex.begun")
        run = _Run(domain_id, generation, await self._takes_lines(domain_id))
        async with aclosing(ReadingProcess(self._limits)) as reader:
            while await self._fill(run, reader):  # until a round finds no document that arrived during the last one
                pass
        if self._embedding.usable:
            await self._dense.fill(generation)
        failpoints.reached("reindex.filled")
        if self._gate is not None and domain_id not in self._ungated:
            before = (await self.state(domain_id)).lines
            adds_lines = run.with_lines and before is not LinesUse.LIVE
            refusal = await self._gate.refusal(self._search, domain_id, generation, adds_lines=adds_lines)
            if refusal:
                if before is LinesUse.TRYING:
                    await self.use_lines(domain_id, LinesUse.HELD)
                raise ReindexHeld(refusal)
        # Ingestion pauses for the few documents that arrived since. Copying their chunks is faster than reading them.
        async with self._ingestion.pause(domain_id):
            for document in await self._missing(run):
                # Set before copying, so that `_settle` removes a document that is deleted in the meantime.
                run.done[document.id] = document.sha256
                await self._index.delete_document(generation, document.id)
                await self._copy(run, document)
            await self._index.swap(collection, generation)
            failpoints.reached("reindex.swapped")
            await self._settle(run)
        self._ungated.discard(domain_id)
        self._tell_exchanged(domain_id)

    async def _takes_lines(self, domain_id: str) -> bool:
        """Return whether a rebuilt collection gets context lines.

        It does if the live one has them, if this rebuild tries them, or if an admin applies them after the gate held
        them.
        """
        use = (await self.state(domain_id)).lines
        wants_lines = (await self._directory.settings(domain_id)).context_lines
        applied = use is LinesUse.HELD and domain_id in self._ungated
        return wants_lines and (use in (LinesUse.LIVE, LinesUse.TRYING) or applied)

    def _tell_exchanged(self, domain_id: str) -> None:
        self._directory.collection_changed(domain_id)
        self._dense.collection_exchanged(domain_id)

    async def _missing(self, run: "_Run") -> list[DocumentRecord]:
        """Return the indexed documents that the new generation lacks, or has with other bytes."""
        indexed = await self._db.read(lambda conn: documents.list_of(conn, run.domain_id, DocumentStatus.INDEXED))
        return [document for document in indexed if run.done.get(document.id) != document.sha256]

    async def _fill(self, run: "_Run", reader: ReadingProcess) -> int:
        """Read the missing documents again and add them to the generation; return their number."""
        domain = await self._db.read(lambda conn: domains.get(conn, run.domain_id))
        if domain is None:
            return 0
        missing = await self._missing(run)
        for document in missing:
            await self._read_into(run, document, documents_of(domain.workspace), reader)
            run.done[document.id] = document.sha256
            failpoints.reached("reindex.document")
        return len(missing)

    async def _lines(self, run: "_Run", document: DocumentRecord) -> dict[str, str]:
        """Return the context lines that a document gets in the new generation."""
        if not run.with_lines:
            return {}
        return await self._db.read(lambda conn: context_lines.of_document(conn, document.id))

    async def _read_into(self, run: "_Run", document: DocumentRecord, folder: Folder, reader: ReadingProcess) -> None:
        generation, lines = run.generation, await self._lines(run, document)
        await self._index.delete_document(generation, document.id)
        try:
            with await self._threads.run(document.domain_id, open_document, folder, document.path) as file:
                scans = ScansOfJob(tuple((await self._scans.pages(document)).values()))
                await reader.begin(file, document.name, document.id, document.sha256, scans)
            while batch := await reader.batch():
                chunks, lexical = batch.with_lines(lines)
                await self._index.upsert(generation, chunks, lexical=lexical)
        except DocumentError as exc:
            log.warning("%s cannot be read again, its chunks are copied: %s", document.name, exc)
            await reader.reset()
            await self._index.delete_document(generation, document.id)
            await self._copy(run, document)

    async def _copy(self, run: "_Run", document: DocumentRecord) -> None:
        collection = collection_of(document.domain_id)
        lines = await self._lines(run, document)
        offset = 0
        while chunks := await self._index.chunks(collection, document.id, offset, PAGE):
            await self._index.upsert(run.generation, with_lines(chunks, lines))
            offset += PAGE

    async def _settle(self, run: "_Run") -> None:
        """Update the records after the exchange: store the new chunk counts and remove deleted or lost documents."""
        collection = collection_of(run.domain_id)
        listed = await self._db.read(lambda conn: documents.list_of(conn, run.domain_id))
        for document_id in run.done.keys() - {
            document.id for document in listed if document.status is not DocumentStatus.FAILED
        }:
            await self._index.delete_document(collection, document_id)
        counts = {
            document.id: await self._index.count(collection, document.id)
            for document in listed
            if document.status is DocumentStatus.INDEXED
        }
        dense = DenseState.PENDING if self._embedding.wanted else DenseState.NONE

        def save(conn: Connection) -> None:
            for document_id, count in counts.items():
                documents.update(conn, document_id, chunk_count=count, dense_state=dense, lines_joined=False)

        await self._db.write(save)
        generation = (await self.state(run.domain_id)).generation
        lines = LinesUse.LIVE if run.with_lines else None
        await self._put(run.domain_id, CollectionState.READY, generation, lines=lines)


@dataclass(slots=True)
class _Run:
    """One rebuild. ``done`` maps a document's id to the SHA-256 of the bytes that the generation has of it.

    ``with_lines``: passages get their context lines.
    """

    domain_id: str
    generation: str
    with_lines: bool = False
    done: dict[str, str] = field(default_factory=dict)
