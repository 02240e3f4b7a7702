"""Documents: files of a domain, from upload or the operator's folder to their deletion.

Owns the originals in ``{workspace}/documents``, the rule that the same bytes are one document, and the searches
an admin makes. How a file becomes chunks is `ingestion`'s. Knows no request.
"""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread

from agentic_rag.directory.collection import collection_of
from agentic_rag.directory.directory import Directory
from agentic_rag.documents.files import place
from agentic_rag.documents.incoming import Incoming
from agentic_rag.documents.intake import Intake
from agentic_rag.documents.knowledge import Knowledge
from agentic_rag.documents.names import clean_name, split_name
from agentic_rag.documents.pauses import Pauses
from agentic_rag.documents.search import SearchOptions
from agentic_rag.errors import DocumentUnsupported, IndexUnavailable, InvalidInput, NotFound
from agentic_rag.store import documents
from agentic_rag.store.clock import new_id
from agentic_rag.store.collections import CollectionRecord
from agentic_rag.store.database import Database
from agentic_rag.store.documents import DocumentRecord
from agentic_rag.store.domains import DomainRecord
from agentic_rag.store.retrievals import RetrievalRecord
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.errors import IndexFault, UnknownDocument
from mcp_servers.retriever.formats import SUFFIXES
from mcp_servers.retriever.retrieval import Retrieval

log = logging.getLogger(__name__)


class Documents:
    """The documents of all domains. ``incoming`` is the folder where uploads grow, on the workspaces' disk;
    ``max_bytes`` is what a file may have."""

    def __init__(
        self,
        database: Database,
        directory: Directory,
        knowledge: Knowledge,
        incoming: Path,
        max_bytes: int,
    ) -> None:
        self._db = database
        self._directory = directory
        self._index = knowledge.index
        self._ingestion = knowledge.ingestion
        self._search = knowledge.search
        self._reindexing = knowledge.reindexing
        self._intake = Intake(database, directory, knowledge)
        self._traces = knowledge.traces
        self._failpoint = knowledge.failpoint
        self._incoming = incoming
        self.max_bytes = max_bytes
        self._storing = Pauses()

    async def receive(self, domain_id: str, name: str, *, replace: bool = False) -> Incoming:
        """Begin to take a file. ``name`` is what the client calls it; only its last component is kept.

        ``replace``: a document of that name gets the new bytes, instead of a second one with a number.

        Raises:
            NotFound: there is no such domain.
            DocumentUnsupported: files of this kind cannot be read.
        """
        domain = await self._directory.get(domain_id)
        cleaned = clean_name(name)
        if split_name(cleaned)[1].lower() not in SUFFIXES:
            raise DocumentUnsupported(cleaned, tuple(sorted(SUFFIXES)))
        finish = partial(self._adopt, domain.id, replace)
        return Incoming(cleaned, self._incoming / new_id("up"), self.max_bytes, finish)

    async def stop(self, domain_id: str) -> None:
        """End all work on a domain's documents. While it is deleted, nothing more begins."""
        async with self._storing.paused(domain_id):  # wait for what is being stored
            pass
        await self._ingestion.stop_domain(domain_id)
        await self._reindexing.stop(domain_id)

    async def _adopt(self, domain_id: str, replace: bool, incoming: Incoming) -> DocumentRecord:
        async with self._storing.working(domain_id):
            domain = await self._directory.get(domain_id)  # it may be gone since the upload began
            return await self._store(domain, replace, incoming)

    async def _store(self, domain: DomainRecord, replace: bool, incoming: Incoming) -> DocumentRecord:
        folder = Path(domain.workspace) / "documents"
        before = None
        if replace:
            before = await self._db.read(lambda conn: documents.by_path(conn, domain.id, incoming.name))
        known = await self._db.read(lambda conn: documents.by_sha(conn, domain.id, incoming.sha256))
        if known is not None:
            if known.status != "failed" or split_name(known.name)[1] == split_name(incoming.name)[1]:
                if before is not None and before.id != known.id:
                    await self._remove(domain, before)  # one document has these bytes: this was a second name of it
                return await self._restored(known, folder / known.path, incoming)
            await self._remove(domain, known)  # its ending was wrong; this one may be right
        path = await anyio.to_thread.run_sync(
            partial(place, incoming.path, folder, incoming.name, replace=before is not None)
        )
        self._failpoint("upload.placed")
        if before is not None:
            return await self._intake.changed(before, path, incoming.size, incoming.sha256)
        document, new = await self._intake.insert(domain.id, path, path.name, incoming.size, incoming.sha256)
        if not new and document.path != path.name:  # the same bytes came twice at once
            path.unlink(missing_ok=True)
        return document

    async def _restored(self, known: DocumentRecord, file: Path, incoming: Incoming) -> DocumentRecord:
        """Return the document that has these bytes; if its file was taken away, the new one takes the place."""
        if await anyio.to_thread.run_sync(file.is_file):
            return known
        again = await anyio.to_thread.run_sync(place, incoming.path, file.parent, file.name)
        return await self._intake.changed(known, again, incoming.size, incoming.sha256)

    async def rescan(self, domain_id: str) -> int:
        """Follow what the operator did in the documents folder (see `Intake.rescan`); return how many files came in.

        Raises:
            NotFound: there is no such domain.
        """
        async with self._storing.working(domain_id):
            domain = await self._directory.get(domain_id)
            return await self._intake.rescan(domain_id, Path(domain.workspace) / "documents")

    async def list_of(self, domain_id: str, status: str | None = None) -> list[DocumentRecord]:
        """Return the domain's documents, oldest first.

        Raises:
            NotFound: there is no such domain.
        """
        await self._directory.get(domain_id)
        return await self._db.read(lambda conn: documents.list_of(conn, domain_id, status))

    async def get(self, domain_id: str, document_id: str) -> DocumentRecord:
        """Return one document.

        Raises:
            NotFound: the domain has no such document.
        """
        await self._directory.get(domain_id)
        document = await self._db.read(lambda conn: documents.get(conn, document_id))
        if document is None or document.domain_id != domain_id:
            raise NotFound("document", document_id, hidden=document is not None)
        return document

    async def chunks(self, domain_id: str, document_id: str, offset: int, limit: int) -> list[Chunk]:
        """Return the document's chunks with ordinals from ``offset``, in order.

        Raises:
            NotFound: the domain has no such document.
            IndexUnavailable: the index cannot answer now.
        """
        await self.get(domain_id, document_id)
        try:
            return await self._index.chunks(collection_of(domain_id), document_id, offset, limit)
        except IndexFault as exc:
            raise IndexUnavailable(str(exc)) from exc

    async def retry(self, domain_id: str, document_id: str) -> DocumentRecord:
        """Queue a failed document again; one in any other state stays as it is.

        Raises:
            NotFound: the domain has no such document.
        """
        document = await self.get(domain_id, document_id)
        if document.status != "failed":
            return document
        await self._ingestion.requeue(document_id)
        queued = await self.get(domain_id, document_id)
        self._ingestion.submit(queued)
        return queued

    async def delete(self, domain_id: str, document_id: str) -> None:
        """Remove file, chunks and record, once the domain's turns are interrupted. Repeatable until it succeeds.

        The file goes first: were it the record, a kill in between would have the file ingested again.

        Raises:
            NotFound: the domain has no such document.
            IndexUnavailable: its chunks cannot be removed now; it is still listed.
        """
        document = await self.get(domain_id, document_id)
        domain = await self._directory.get(domain_id)
        await self._remove(domain, document)

    async def _remove(self, domain: DomainRecord, document: DocumentRecord) -> None:
        """Remove file, chunks and record, in this order."""
        path = Path(domain.workspace) / "documents" / document.path
        await anyio.to_thread.run_sync(lambda: path.unlink(missing_ok=True))
        await self._intake.forget(document)

    async def search(self, domain_id: str, query: str, options: SearchOptions) -> Retrieval:
        """Search as the model's tool does; what ``options`` leave open takes the domain's settings.

        Raises:
            NotFound: there is no such domain.
            InvalidInput: the query is blank, or the document named is not one.
            IndexUnavailable: the index cannot answer now.
        """
        settings = await self._directory.settings(domain_id)
        if not query.strip():
            raise InvalidInput("query", "at least one visible character is needed.")
        try:
            return await self._search.with_options(
                collection_of(domain_id),
                query.strip(),
                settings.retrieval_top_k if options.top_k is None else options.top_k,
                settings.retrieval_threshold if options.threshold is None else options.threshold,
                options,
            )
        except UnknownDocument as exc:
            raise InvalidInput("filters.document", str(exc)) from exc
        except IndexFault as exc:
            raise IndexUnavailable(str(exc)) from exc

    async def retrievals(self, domain_id: str, limit: int) -> list[RetrievalRecord]:
        """Return the domain's last searches, newest first.

        Raises:
            NotFound: there is no such domain.
        """
        await self._directory.get(domain_id)
        return await self._traces.list_of(domain_id, limit)

    async def retrieval(self, domain_id: str, retrieval_id: str) -> tuple[RetrievalRecord, dict[str, dict[str, Any]]]:
        """Return a kept search, and what there still is of its candidates' chunks.

        Raises:
            NotFound: the domain has no such search.
        """
        await self._directory.get(domain_id)
        return await self._traces.get(domain_id, retrieval_id)

    async def reindex(self, domain_id: str, *, rollback: bool = False) -> CollectionRecord:
        """Begin to make the domain's collection anew, or take the last exchange back.

        Raises:
            NotFound: there is no such domain.
            ReindexRunning, NothingToRollBack: it cannot be taken back.
            IndexUnavailable: the index cannot answer now.
        """
        await self._directory.get(domain_id)
        try:
            if rollback:
                return await self._reindexing.roll_back(domain_id)
            return await self._reindexing.request(domain_id)
        except IndexFault as exc:
            raise IndexUnavailable(str(exc)) from exc

    async def reindex_state(self, domain_id: str) -> CollectionRecord:
        """Return where the domain's collection stands.

        Raises:
            NotFound: there is no such domain.
        """
        await self._directory.get(domain_id)
        return await self._reindexing.state(domain_id)
