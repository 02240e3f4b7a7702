"""Ingestion: turns a file in a workspace into searchable chunks, with durable rows that survive a kill.

Owns the workers, the stages, the lease that lets one process work on a document, and the failure states. Knows no
upload and no request. Every stage can be repeated: chunk ids depend only on document, bytes, chunker and position, so a
restarted job leaves no duplicates. Separate processes read, chunk and weigh the text. This process waits for the index
batch by batch and never holds a whole document in memory.
"""

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import BinaryIO, Protocol, Unpack

import anyio
from sqlalchemy import Connection

from agentic_rag.base import failpoints
from agentic_rag.base.errors import AgenticRagError, StorageError
from agentic_rag.base.ids import DocumentId
from agentic_rag.base.json_form import Json
from agentic_rag.base.workers import FairQueue
from agentic_rag.directory.collection import collection_of
from agentic_rag.documents.child import ScansOfJob
from agentic_rag.documents.dense_vectors import DenseVectors
from agentic_rag.documents.disk_reserve import DiskReserve
from agentic_rag.documents.document_services import DocumentServices
from agentic_rag.documents.files import documents_of, open_document
from agentic_rag.documents.model_scans import ModelPageReader
from agentic_rag.documents.reading import FileSummary, ReadingProcess
from agentic_rag.documents.scan_reading import OcrProcess, ScanStore
from agentic_rag.documents.search import index_errors
from agentic_rag.store import context_lines, documents, domains, scans
from agentic_rag.store.clock import later, new_id, now
from agentic_rag.store.documents import DenseState, DocumentFields, DocumentProgress, DocumentRecord, DocumentStatus
from agentic_rag.store.quotas import Quotas
from mcp_servers.retriever.document import ParseLimits
from mcp_servers.retriever.errors import DocumentError, IndexFault
from mcp_servers.retriever.formats.scans import BY_MODEL, NO_TEXT_LAYER, ScansWanted
from mcp_servers.safe_files import Folder

log = logging.getLogger(__name__)

SCANS_OF_A_TURN = 4
"""Scanned pages of one document that are read before another domain has its turn."""
MODEL_WORKERS = 2
"""Documents in parallel whose scanned pages models read."""
OF_A_DOMAIN = 2
"""Documents of one domain in parallel: each has its own reading process, so two keep two cores busy."""
WORKERS = OF_A_DOMAIN + 1
"""Documents in parallel: one worker stays free for another domain, however long the first domain's documents take."""
LEASE_SECONDS = 30.0
"""How long a document stays leased to a process that no longer renews its lease."""
HEARTBEAT_SECONDS = LEASE_SECONDS / 3
SWEEP_SECONDS = 30.0
"""Seconds between two sweeps for documents without a worker and documents that failed for a temporary reason."""
RESTART_SECONDS = 1.0
"""Seconds after which a worker restarts after an internal error."""
PROGRESS_SECONDS = 0.5
"""Seconds between two progress reports of stored chunks; each report is a write."""
PASSING = ("INDEX_UNAVAILABLE", "STORAGE_FULL", "STORAGE_UNAVAILABLE")
"""Error codes of temporary failures that no file causes; the sweep retries them after the index answers again."""


class _ScansFirst(Exception):
    """Signals that ``pages`` must be read before the document is read again; ``pages_read`` pages were read before.

    ``by_model``: the domain's model reads them, not OCR.
    """

    def __init__(
        self, document: DocumentRecord, folder: Folder, pages: Sequence[int], pages_read: int, by_model: bool
    ) -> None:
        super().__init__(document.id)
        self.document = document
        self.folder = folder
        self.pages = list(pages)
        self.pages_read = pages_read
        self.by_model = by_model


class _PageReader(Protocol):
    """Reads scanned pages: OCR, or the model of a domain."""

    async def read(self, file: BinaryIO, document: DocumentRecord, page: int) -> Json: ...

    async def reset(self) -> None: ...

    async def aclose(self) -> None: ...


class _DocumentLost(Exception):
    """The document was deleted, or another process leases it: this process must not write its row any more."""


@dataclass(slots=True)
class _Job:
    """A document in the queue or at work. ``ended`` is set when no task touches its chunks any more."""

    domain_id: str
    seize: bool
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)
    begun: bool = False
    scans: _ScansFirst | None = None
    """The scanned pages that are still to be read."""
    waits_for_scans: bool = False
    """Whether the job waits in a queue of scans, where no task touches its chunks."""


class Ingestion:
    """The ingestion queue: `WORKERS` tasks, each with one document, and domains in turn.

    The tasks run as long as the workers of ``workshop``. Ending those workers stops the jobs; the next start resumes
    them.
    """

    def __init__(self, workshop: DocumentServices, dense: DenseVectors, reserve: DiskReserve) -> None:
        self._db = workshop.database
        self._index = workshop.index
        self._directory = workshop.directory
        self._dense = dense
        self._threads = workshop.threads
        self._limits = ParseLimits(max_bytes=workshop.max_bytes)
        self._reserve = reserve
        self._ocr = workshop.ocr
        self._scans = ScanStore(workshop.database)
        self._page_model = workshop.page_model
        self._scan_queue: FairQueue[tuple[str, DocumentId]] = FairQueue(1)
        self._model_queue: FairQueue[tuple[str, DocumentId]] = FairQueue(1)
        self._owner = new_id("proc")
        self._jobs: dict[DocumentId, _Job] = {}
        self._queue: FairQueue[tuple[str, DocumentId]] = FairQueue(OF_A_DOMAIN)
        self._pauses = Pauses()
        for _ in range(WORKERS):
            workshop.workers.repeat("taking in documents", self._work, RESTART_SECONDS)
        if self._ocr.usable:
            ocr = partial(self._work_on_scans, self._scan_queue, partial(OcrProcess, self._ocr))
            workshop.workers.repeat("reading scans", ocr, RESTART_SECONDS)
        if self._page_model is not None and self._page_model.usable:
            by_model = partial(self._work_on_scans, self._model_queue, partial(ModelPageReader, self._page_model))
            for _ in range(MODEL_WORKERS):
                workshop.workers.repeat("reading scans with models", by_model, RESTART_SECONDS)
        workshop.workers.repeat("keeping leases of documents", self._renew_leases, HEARTBEAT_SECONDS, at_once=False)
        workshop.workers.repeat("taking up documents", self.sweep, SWEEP_SECONDS, at_once=False)

    async def resume(self, *, alone: bool) -> int:
        """Queue the documents that earlier processes left unfinished; return their number.

        ``alone``: no other process shares the database, so the owner of every lease is dead. Otherwise a document with
        a running lease is left for a later sweep.
        """
        unfinished = await self._db.read(lambda conn: documents.list_unfinished(conn, free_at=None if alone else now()))
        for document in unfinished:
            self.submit(document, seize=alone)
        return len(unfinished)

    def submit(self, document: DocumentRecord, *, seize: bool = False) -> None:
        """Queue a document whose row is ``queued`` or unfinished; a document already in the queue keeps its place."""
        if document.id not in self._jobs:
            self._jobs[document.id] = _Job(document.domain_id, seize)
            self._queue.put(document.domain_id, (document.domain_id, document.id))

    async def give_back(self) -> None:
        """Release the leases of unfinished documents so that other processes can resume them at once.

        Call it after this process's work has ended.
        """
        await self._db.write(partial(documents.give_back, owner=self._owner))

    @property
    def count(self) -> int:
        """Number of documents in the queue or at work."""
        return len(self._jobs)

    def working_on(self, domain_id: str) -> bool:
        """Whether documents of a domain are in the queue or at work."""
        return any(job.domain_id == domain_id for job in self._jobs.values())

    async def stop(self, document_id: DocumentId) -> None:
        """End the work on a document and wait until no task touches its chunks."""
        job = self._jobs.get(document_id)
        if job is not None:
            job.scope.cancel()
            # The queue keeps its entry in the first and third case; the worker that gets it finds no job and skips it.
            if job.waits_for_scans:
                del self._jobs[document_id]
                job.ended.set()
            elif job.begun:
                await job.ended.wait()  # its worker has to leave the index call it is in
            else:
                del self._jobs[document_id]

    async def stop_domain(self, domain_id: str) -> None:
        """Stop the work on all documents of a domain."""
        for document_id, job in list(self._jobs.items()):
            if job.domain_id == domain_id:
                await self.stop(document_id)

    def pause(self, domain_id: str) -> AbstractAsyncContextManager[None]:
        """Return a context in which no document of the domain is stored: running jobs have ended, and new ones wait."""
        return self._pauses.pause(domain_id)

    async def sweep(self) -> None:
        """Queue documents whose lease has run out, and documents that failed because of the index or the disk.

        Raises:
            IndexUnavailable: there are such failures, and the index still does not answer.
        """
        moment = now()
        for document in await self._db.read(lambda conn: documents.list_unfinished(conn, free_at=moment)):
            self.submit(document)
        stuck = await self._db.read(lambda conn: documents.failed_with(conn, PASSING))
        if stuck:  # one call tells whether the index answers; without it every document would fail once more
            with index_errors():
                await self._index.count(collection_of(stuck[0].domain_id), stuck[0].id)
        for document in stuck:
            if await self.requeue(document.id):
                self.submit(document)

    async def can_read_more(self, document: DocumentRecord) -> bool:
        """Return whether an indexed document has scanned pages without text, and something that can read them."""
        limit = None if self._page_model is None else await self._page_model.page_limit(document.domain_id)
        if document.status is not DocumentStatus.INDEXED or (limit is None and not self._ocr.usable):
            return False
        contents = (await self._scans.pages(document)).values()
        return (
            any(note.startswith(NO_TEXT_LAYER) for note in document.progress.notes or ())
            or any(content.get("error") for content in contents)
            or (limit is not None and any(content.get("reader") != BY_MODEL for content in contents))
        )

    async def requeue(
        self,
        document_id: DocumentId,
        fields: DocumentFields | None = None,
        quotas: Quotas | None = None,
        expected: DocumentRecord | None = None,
    ) -> bool:
        """Set a document's row to ``queued`` and clear its failure, optionally with other ``fields`` of its file.

        Returns False if the document is gone. Also returns False if its state, bytes or chunks are no longer those of
        ``expected``.

        Raises:
            IntegrityError: another document of the domain has these bytes.
            QuotaExceeded: the new bytes would exceed the domain's quota.
        """
        change: DocumentFields = {**_QUEUED, **(fields or {}), "updated_at": now()}

        def save(conn: Connection) -> bool:
            before = documents.get(conn, document_id)
            if expected is not None and (before is None or _expectation(before) != _expectation(expected)):
                return False
            if before is not None and "sha256" in change:
                documents.apply_expected(conn, before, change["sha256"])
            scans.delete_failed(conn, document_id)
            updated = documents.update(conn, document_id, **change)
            if quotas is not None and before is not None and change.get("size", 0) > before.size:
                quotas.check_documents(conn, before.domain_id)
            return updated

        return await self._db.write(save, durable=True)

    async def _renew_leases(self) -> None:
        """Renew the leases of running jobs; cancel jobs whose document was deleted or leased to another process."""
        running = {document_id: job for document_id, job in self._jobs.items() if job.begun}
        if running:
            until = later(LEASE_SECONDS)
            renewed = await self._db.write(lambda conn: documents.renew(conn, list(running), self._owner, until))
            for document_id in running.keys() - renewed:
                running[document_id].scope.cancel()

    async def _work(self) -> None:
        async with aclosing(ReadingProcess(self._limits)) as reader:
            while True:
                domain_id, document_id = await self._queue.get()
                try:
                    job = self._jobs.get(document_id)
                    if job is not None and not job.begun:  # else: stopped while it waited, and perhaps queued again
                        await self._do(document_id, job, reader)
                finally:
                    self._queue.release(domain_id)

    async def _do(self, document_id: DocumentId, job: _Job, reader: ReadingProcess) -> None:
        job.begun = True
        try:
            with job.scope:
                async with self._pauses.working(job.domain_id):
                    await self._run(document_id, job, reader)
        finally:
            if job.scope.cancelled_caught:  # the reading process is still busy with this file
                await reader.reset()
            if job.scans is not None and not job.scope.cancel_called:
                self._queue_scans(document_id, job)
            else:
                self._end(document_id, job)

    def _end(self, document_id: DocumentId, job: _Job) -> None:
        self._jobs.pop(document_id, None)
        job.ended.set()
        self._tell_changed(job.domain_id)  # a turn that waits for a first document sees that this one ended

    def _queue_scans(self, document_id: DocumentId, job: _Job) -> None:
        job.scope, job.waits_for_scans = anyio.CancelScope(), True
        queue = self._model_queue if job.scans is not None and job.scans.by_model else self._scan_queue
        queue.put(job.domain_id, (job.domain_id, document_id))

    async def _work_on_scans(
        self, queue: FairQueue[tuple[str, DocumentId]], make_reader: Callable[[], _PageReader]
    ) -> None:
        async with aclosing(make_reader()) as reader:
            while True:
                domain_id, document_id = await queue.get()
                try:
                    job = self._jobs.get(document_id)
                    if job is not None and job.waits_for_scans:  # else: stopped while it waited
                        await self._do_scans(document_id, job, reader)
                finally:
                    queue.release(domain_id)

    async def _do_scans(self, document_id: DocumentId, job: _Job, reader: _PageReader) -> None:
        """Read some pages of a document, then requeue it behind others.

        After its last scanned page, the document is queued for reading.
        """
        assert job.scans is not None
        job.waits_for_scans = False
        failure: Exception | None = None
        try:
            with job.scope:
                await self._read_scans(job.scans, reader)
        except _DocumentLost:
            job.scope.cancel()
        except Exception as exc:  # the server must outlive any page
            if not isinstance(exc, (AgenticRagError, DocumentError)):
                log.error("reading a scanned page of %s failed", document_id, exc_info=exc)
            failure = exc
            job.scope.cancel()
        finally:
            if job.scope.cancel_called:
                with anyio.CancelScope(shield=True):
                    await reader.reset()
                    if failure is not None:
                        await self._record_failure(document_id, job.domain_id, failure)
                self._end(document_id, job)
        if job.scope.cancel_called:
            return
        if job.scans.pages:
            self._queue_scans(document_id, job)
            return
        job.scope, job.scans, job.begun, job.seize = anyio.CancelScope(), None, False, True
        self._queue.put(job.domain_id, (job.domain_id, document_id))

    async def _read_scans(self, scans: _ScansFirst, reader: _PageReader) -> None:
        document, count = scans.document, scans.pages_read + len(scans.pages)
        for page in scans.pages[:SCANS_OF_A_TURN]:
            progress = DocumentProgress(stage=DocumentStatus.PARSING, scanned=scans.pages_read, scans=count)
            await self._set(document.id, status=DocumentStatus.PARSING, progress=progress)
            await self._reserve.check()
            with await self._threads.run(document.domain_id, open_document, scans.folder, document.path) as file:
                content = await reader.read(file, document, page)
            failpoints.reached("ingest.scan")
            await self._scans.put(document, content)
            scans.pages.remove(page)
            scans.pages_read += 1
            failpoints.reached("ingest.scanned")

    def _tell_changed(self, domain_id: str) -> None:
        self._directory.collection_changed(domain_id)
        self._dense.wake()

    async def _run(self, document_id: DocumentId, job: _Job, reader: ReadingProcess) -> None:
        """Ingest one document. A failure becomes a state of its row and never ends the worker."""
        try:
            await self._ingest(document_id, job, reader)
            return
        except _DocumentLost:
            return
        except _ScansFirst as first:
            job.scans = first
            return
        except (DocumentError, AgenticRagError, IndexFault) as exc:
            failure: Exception = exc
        except Exception as exc:  # the server must outlive any file
            log.error("ingesting %s failed", document_id, exc_info=exc)
            failure = exc
        await reader.reset()
        await self._record_failure(document_id, job.domain_id, failure)

    async def _record_failure(self, document_id: DocumentId, domain_id: str, failure: Exception) -> None:
        """Set the document's row to ``failed``, with a sentence for the uploader, and remove its chunks."""
        if isinstance(failure, DocumentError) and failure.detail:
            log.info("reading %s failed: %s", document_id, failure.detail)
        try:
            await self._index.delete_document(collection_of(domain_id), document_id)  # no half-indexed document
        except IndexFault as exc:
            log.warning("chunks of %s are left until it is tried again: %s", document_id, exc)
        try:
            code, message = await self._explain(document_id, failure)
            await self._set(
                document_id,
                status=DocumentStatus.FAILED,
                dense_state=DenseState.NONE,
                error_code=code,
                error_message=message,
                chunk_count=None,
                lease_until=None,
            )
        except _DocumentLost:
            return
        except StorageError as exc:  # the row stays unfinished: the sweep finds it when the lease has run out
            log.error("ingesting %s: %s", document_id, exc)
            return
        self._tell_changed(domain_id)

    async def _explain(self, document_id: DocumentId, failure: Exception) -> tuple[str, str]:
        """Return the code and the text of a failure; the text of an unreadable file names the file and what to do."""
        if isinstance(failure, DocumentError):
            document = await self._db.read(lambda conn: documents.get(conn, document_id))
            return failure.code, str(failure) if document is None else failure.sentence(document.name)
        if isinstance(failure, AgenticRagError):
            return failure.code, str(failure)
        if isinstance(failure, IndexFault):
            return "INDEX_UNAVAILABLE", str(failure)
        return "INTERNAL_ERROR", "something went wrong on the server; see its log"

    async def _ingest(self, document_id: DocumentId, job: _Job, reader: ReadingProcess) -> None:
        document, folder = await self._claim(document_id, job.seize)
        failpoints.reached("ingest.claimed")
        await self._set(
            document_id, status=DocumentStatus.PARSING, progress=DocumentProgress(stage=DocumentStatus.PARSING)
        )
        await self._reserve.check()
        with await self._threads.run(document.domain_id, open_document, folder, document.path) as file:
            failpoints.reached("ingest.parsing")
            summary = await self._begin(document, folder, file, reader)
        progress = DocumentProgress(stage=DocumentStatus.CHUNKING, pages=summary.pages, of=summary.chunks)
        await self._set(document_id, status=DocumentStatus.CHUNKING, progress=progress, page_count=summary.pages)
        failpoints.reached("ingest.chunking")
        # An earlier run, perhaps with other bytes or another chunker, may have left chunks.
        await self._index.delete_document(collection_of(document.domain_id), document_id)
        failpoints.reached("ingest.cleared")
        await self._store(document, summary, reader)
        failpoints.reached("ingest.stored")
        await self._set(
            document_id,
            status=DocumentStatus.INDEXED,
            dense_state=DenseState.PENDING if self._dense.wanted else DenseState.NONE,
            lines_joined=False,
            progress=DocumentProgress(
                stage=DocumentStatus.INDEXED,
                languages=summary.languages,
                notes=summary.notes,
                date=summary.date,
                outline=summary.outline,
            ),
            chunk_count=summary.chunks,
            lease_until=None,
        )
        failpoints.reached("ingest.indexed")
        self._tell_changed(document.domain_id)

    async def _begin(
        self, document: DocumentRecord, folder: Folder, file: BinaryIO, reader: ReadingProcess
    ) -> FileSummary:
        """Read the file, with the scanned pages that have been read so far.

        Raises:
            _ScansFirst: further pages are to be read first.
        """
        pages = await self._scans.pages(document)
        limit = None if self._page_model is None else await self._page_model.page_limit(document.domain_id)
        by_model = limit is not None
        if by_model:  # the admin chose the model instead of OCR, also for pages that OCR has read
            pages = {page: content for page, content in pages.items() if content.get("reader") == BY_MODEL}
        elif self._ocr.usable:
            limit = self._ocr.pages
        left = 0 if limit is None else limit - len(pages)
        wanted_scans = ScansOfJob(tuple(pages.values()), left > 0, limit, by_model)
        try:
            return await reader.begin(file, document.name, document.id, document.sha256, wanted_scans)
        except ScansWanted as unread:
            raise _ScansFirst(document, folder, unread.pages[: max(left, 0)], len(pages), by_model) from None

    async def _claim(self, document_id: DocumentId, seize: bool) -> tuple[DocumentRecord, Folder]:
        moment, until = now(), later(LEASE_SECONDS)

        def take(conn: Connection) -> tuple[DocumentRecord, Folder] | None:
            document = documents.claim(conn, document_id, self._owner, moment, until, seize=seize)
            domain = None if document is None else domains.get(conn, document.domain_id)
            return None if document is None or domain is None else (document, documents_of(domain.workspace))

        claimed = await self._db.write(take)
        if claimed is None:
            raise _DocumentLost
        return claimed

    async def _store(self, document: DocumentRecord, summary: FileSummary, reader: ReadingProcess) -> None:
        collection = collection_of(document.domain_id)
        began = reported = time.monotonic()
        stored = 0
        progress = DocumentProgress(stage=DocumentStatus.INDEXING, pages=summary.pages, chunks=0, of=summary.chunks)
        await self._set(document.id, status=DocumentStatus.INDEXING, progress=progress)
        lines = await self._db.read(lambda conn: context_lines.in_use(conn, document.domain_id, document.id))
        while batch := await reader.batch():
            failpoints.reached("ingest.batch")
            chunks, lexical = batch.with_lines(lines)
            await self._index.upsert(collection, chunks, lexical=lexical)
            failpoints.reached("ingest.upserted")
            stored += len(batch.chunks)
            if (moment := time.monotonic()) - reported >= PROGRESS_SECONDS:
                reported = moment
                rate = round(stored / (moment - began))
                await self._set(document.id, progress=replace(progress, chunks=stored, chunks_per_second=rate))

    async def _set(self, document_id: DocumentId, **fields: Unpack[DocumentFields]) -> None:
        """Change the row while this process owns it. Raises `_DocumentLost`."""
        change: DocumentFields = {"updated_at": now(), **fields}
        if not await self._db.write(lambda conn: documents.update_owned(conn, document_id, self._owner, change)):
            raise _DocumentLost


_QUEUED: DocumentFields = {
    "status": DocumentStatus.QUEUED,
    "dense_state": DenseState.NONE,
    "progress": DocumentProgress(stage=DocumentStatus.QUEUED),
    "error_code": None,
    "error_message": None,
    "owner": "",
    "lease_until": None,
}


def _expectation(document: DocumentRecord) -> tuple[DocumentStatus, str, int | None]:
    """Return the fields of a document that determine its chunks in the index."""
    return document.status, document.sha256, document.chunk_count


class Pauses:
    """Shared and exclusive access per domain: many jobs share a domain, or one pause has it exclusively.

    A pause is used while a collection is exchanged.
    """

    def __init__(self) -> None:
        self._changed = anyio.Condition()
        self._working: Counter[str] = Counter()
        self._paused: set[str] = set()

    @asynccontextmanager
    async def working(self, domain_id: str) -> AsyncIterator[None]:
        """Share a domain's access; wait while the domain is paused."""
        async with self._changed:
            while domain_id in self._paused:
                await self._changed.wait()
            self._working[domain_id] += 1
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):  # the lock is held for one line only, so this wait is short
                async with self._changed:
                    self._working[domain_id] -= 1
                    self._changed.notify_all()

    @asynccontextmanager
    async def pause(self, domain_id: str) -> AsyncIterator[None]:
        """Pause a domain: wait until no job works in it, and keep new jobs out."""
        async with self._changed:
            while domain_id in self._paused:
                await self._changed.wait()
            self._paused.add(domain_id)  # before waiting: otherwise new jobs could keep the domain busy forever
            try:
                while self._working[domain_id]:
                    await self._changed.wait()
            except BaseException:
                self._paused.discard(domain_id)
                self._changed.notify_all()
                raise
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):  # as above
                async with self._changed:
                    self._paused.discard(domain_id)
                    self._changed.notify_all()
