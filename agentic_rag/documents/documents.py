"""Documents as requests see them: uploads, states, deletion, searches and re-indexing.

Owns the operations that a request may call on a domain's documents, and their errors. Each read takes the reader's
`DocumentView`. A document outside of the view does not exist for the reader. The components of `Knowledge` do the work.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.document_views import EVERY_DOCUMENT, DocumentView
from agentic_rag.base.errors import DocumentUnsupported, InvalidInput, NotFound
from agentic_rag.base.ids import ConversationId, DocumentId
from agentic_rag.directory.collection import collection_of
from agentic_rag.directory.document_labels import LabelRules
from agentic_rag.documents.disk_reserve import DiskReserve
from agentic_rag.documents.files import Incoming, Origin, Original, clean_name, documents_of, open_original, split_name
from agentic_rag.documents.knowledge import Knowledge
from agentic_rag.documents.lost_documents import Rebuilding
from agentic_rag.documents.pages import PageImage
from agentic_rag.documents.search import SearchOptions, StoredSearch, index_errors
from agentic_rag.store import documents
from agentic_rag.store.clock import new_id
from agentic_rag.store.collections import CollectionRecord
from agentic_rag.store.context_lines import LineCounts
from agentic_rag.store.documents import DocumentFields, DocumentRecord, DocumentStatus
from agentic_rag.store.retrievals import RetrievalRecord
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.errors import DocumentError, UnknownDocument
from mcp_servers.retriever.formats import SAVE_INSTEAD, suffixes
from mcp_servers.retriever.hits import Retrieval

_CHUNK_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Documents:
    """The documents of all domains.

    ``incoming`` is the folder for unfinished uploads, on the workspaces' disk. ``reserve`` is the space that uploads
    must leave free there. ``max_bytes`` is the size limit of a file.
    """

    def __init__(self, knowledge: Knowledge, incoming: Path, reserve: DiskReserve) -> None:
        workshop = knowledge.workshop
        self._db = workshop.database
        self._directory = workshop.directory
        self._incoming = incoming
        self._threads = workshop.threads
        self.knowledge = knowledge
        self.max_bytes = workshop.max_bytes
        self._reserve = reserve

    async def receive(
        self,
        domain_id: str,
        name: str,
        *,
        replace: bool = False,
        labels: Sequence[str] = (),
        origin: Origin | None = None,
    ) -> Incoming[DocumentRecord]:
        """Begin an upload. ``name`` is the client's file name; only its last component is kept.

        ``replace``: an existing document of that name gets the new bytes. Otherwise a second document gets a number.
        ``labels`` are added to those that the document has. ``origin``: the source that delivers the file; the document
        also gets the labels of the source.

        Raises:
            NotFound: there is no such domain.
            DocumentUnsupported: files of this kind cannot be read.
            StorageFull: the disk has no more room than its reserve.
        """
        await self._directory.get(domain_id)
        cleaned = clean_name(name)
        ending = split_name(cleaned)[1].lower()
        if ending not in suffixes():
            raise DocumentUnsupported(cleaned, suffixes(), SAVE_INSTEAD.get(ending, ""))
        await self._reserve.check()
        path = self._incoming / new_id("up")
        return Incoming(
            self.knowledge.intake,
            domain_id,
            cleaned,
            path,
            self.max_bytes,
            self._reserve,
            self._threads,
            replace=replace,
            labels=labels,
            origin=origin,
        )

    async def rescan(self, domain_id: str) -> int:
        """Apply the operator's changes in the documents folder (`Intake.rescan`); return the number of files taken in.

        Raises:
            NotFound: there is no such domain.
        """
        return await self.knowledge.intake.rescan(domain_id)

    async def stop(self, domain_id: str) -> None:
        """End all work on a domain's documents. No new work begins while the domain is being deleted."""
        await self.knowledge.intake.stop_domain(domain_id)

    async def drop(self, domain_id: str) -> None:
        """Delete a domain's index after its work has ended (`stop`); its files stay.

        Raises:
            IndexFault: the index does not answer now.
        """
        await self.knowledge.index.drop(collection_of(domain_id))

    async def list_of(
        self, domain_id: str, view: DocumentView, status: DocumentStatus | None = None
    ) -> list[DocumentRecord]:
        """Return the domain's documents in the view, oldest first.

        Raises:
            NotFound: there is no such domain.
        """
        await self._directory.get(domain_id)
        listed = await self._db.read(lambda conn: documents.list_of(conn, domain_id, status))
        return [document for document in listed if view.shows(document.id)]

    async def get(self, domain_id: str, document_id: DocumentId, view: DocumentView) -> DocumentRecord:
        """Return one document.

        Raises:
            NotFound: the domain has no such document, or the view does not show it.
        """
        await self._directory.get(domain_id)
        document = await self._db.read(lambda conn: documents.get(conn, document_id))
        in_domain = document is not None and document.domain_id == domain_id
        if (
            document is None
            or not in_domain
            or document.status is DocumentStatus.DELETING
            or not view.shows(document_id)
        ):
            raise NotFound("document", document_id, hidden=document is not None)
        return document

    async def line_counts(self, domain_id: str) -> dict[DocumentId, LineCounts]:
        """Return the context lines of each indexed document; nothing while the domain has them off.

        Raises:
            NotFound: there is no such domain.
        """
        return await self.knowledge.lines.counts(domain_id)

    async def label_rules(self, domain_id: str) -> LabelRules:
        """Return the domain's rules for labels.

        Raises:
            NotFound: there is no such domain.
        """
        return LabelRules.of_settings((await self._directory.get(domain_id)).settings)

    async def change(self, domain_id: str, document_id: DocumentId, fields: DocumentFields) -> DocumentRecord:
        """Change the labels or dates of a document, for an admin. They count from the next request and tool call.

        Raises:
            NotFound: the domain has no such document.
        """
        before = await self.get(domain_id, document_id, EVERY_DOCUMENT)
        entry = change("document.update", f"{domain_id}/{document_id}", name=before.name, **fields)

        def store(conn: Connection) -> None:
            # Values that the document has already are no change: nothing to announce or to record.
            if documents.update(conn, document_id, **fields):
                documents.announce(conn, domain_id)
                audit(conn, entry)

        await self._db.write(store, durable=True)
        self._directory.collection_changed(domain_id)
        return await self.get(domain_id, document_id, EVERY_DOCUMENT)

    async def original(self, domain_id: str, document_id: DocumentId, view: DocumentView) -> Original:
        """Open a document's file as it was uploaded; the caller closes it.

        Raises:
            NotFound: the domain has no such document, or its file no longer exists.
            WorkspaceUnavailable: the folder does not answer.
        """
        document = await self.get(domain_id, document_id, view)
        folder = documents_of((await self._directory.get(domain_id)).workspace)
        try:
            file, size = await self._threads.run(domain_id, open_original, folder, document.path)
        except DocumentError as exc:
            raise NotFound("file", document.name) from exc
        return Original(domain_id, document.name, document.media_type, size, file, self._threads)

    async def page(
        self, domain_id: str, document_id: DocumentId, page: int, width: int, view: DocumentView
    ) -> PageImage:
        """Return a page of a PDF as an image, as `PageImages.image` does.

        Raises:
            NotFound: the domain has no such document, or the document has no such page.
            DocumentUnsupported, PageUnreadable, PagesBusy: the page has no image, or none now.
        """
        return await self.knowledge.pages.image(await self.get(domain_id, document_id, view), page, width)

    async def chunks(
        self, domain_id: str, document_id: DocumentId, offset: int, limit: int, view: DocumentView
    ) -> list[Chunk]:
        """Return the document's chunks with ordinals from ``offset``, in order.

        Raises:
            NotFound: the domain has no such document.
            IndexUnavailable: the index cannot answer now.
        """
        await self.get(domain_id, document_id, view)
        with index_errors():
            return await self.knowledge.index.chunks(collection_of(domain_id), document_id, offset, limit)

    async def chunk(self, domain_id: str, chunk_id: str, view: DocumentView) -> tuple[Chunk, list[Chunk]]:
        """Return a cited chunk and the chunks directly before and after it in its document.

        Raises:
            NotFound: the domain has no such chunk, no longer has it, or the view does not show its document.
            IndexUnavailable: the index cannot answer now.
        """
        await self._directory.get(domain_id)
        collection, index = collection_of(domain_id), self.knowledge.index
        with index_errors():
            chunk = (await index.get(collection, [chunk_id])).get(chunk_id) if _CHUNK_ID.fullmatch(chunk_id) else None
        if chunk is None or not view.shows(chunk.document_id):
            raise NotFound("chunk", chunk_id, hidden=chunk is not None)
        near = await self.chunks(domain_id, DocumentId(chunk.document_id), max(0, chunk.ordinal - 1), 3, view)
        return chunk, [neighbour for neighbour in near if abs(neighbour.ordinal - chunk.ordinal) == 1]

    async def retry(self, domain_id: str, document_id: DocumentId) -> DocumentRecord:
        """Queue a failed document again, or an indexed one with scanned pages that can be read now.

        A document in any other state is returned unchanged.

        Raises:
            NotFound: the domain has no such document.
        """
        document = await self.get(domain_id, document_id, EVERY_DOCUMENT)
        if document.status is not DocumentStatus.FAILED and not await self.knowledge.ingestion.can_read_more(document):
            return document
        await self.knowledge.ingestion.requeue(document_id)
        queued = await self.get(domain_id, document_id, EVERY_DOCUMENT)
        self.knowledge.ingestion.submit(queued)
        return queued

    async def delete(self, domain_id: str, document_id: DocumentId) -> None:
        """Remove a document; see `Intake.remove`. Running turns continue, but can no longer cite the document.

        Raises:
            NotFound: the domain has no such document.
        """
        document = await self.get(domain_id, document_id, EVERY_DOCUMENT)
        domain = await self._directory.get(domain_id)
        await self.knowledge.intake.remove(domain, document)

    async def search(self, domain_id: str, query: str, options: SearchOptions, view: DocumentView) -> Retrieval:
        """Search like the model's search tool; fields that ``options`` leave unset use the domain's settings.

        Only the documents in the view are searched.

        Raises:
            NotFound: there is no such domain.
            InvalidInput: the query is blank, or the document filter names no document.
            IndexUnavailable: the index cannot answer now.
        """
        settings = await self._directory.settings(domain_id)
        if not query.strip():
            raise InvalidInput("query", "at least one visible character is needed.")
        try:
            with index_errors():
                return await self.knowledge.search.search_with(
                    replace(options, document_ids=view.within(options.document_ids)),
                    collection_of(domain_id),
                    query.strip(),
                    settings.retrieval_top_k if options.top_k is None else options.top_k,
                    settings.retrieval_threshold if options.threshold is None else options.threshold,
                )
        except UnknownDocument as exc:
            raise InvalidInput("filters.document", str(exc)) from exc

    async def candidate_chunks(self, domain_id: str, retrieval: Retrieval, view: DocumentView) -> Mapping[str, Chunk]:
        """Return the candidate chunks of a search by their ids, without those outside of the view.

        Raises:
            IndexUnavailable: the index cannot answer now.
        """
        with index_errors():
            ids = [candidate.chunk_id for candidate in retrieval.candidates]
            chunks = await self.knowledge.index.get(collection_of(domain_id), ids)
        return {ident: chunk for ident, chunk in chunks.items() if view.shows(chunk.document_id)}

    async def retrievals(
        self, domain_id: str, limit: int, conversation_id: ConversationId | None = None
    ) -> list[RetrievalRecord]:
        """Return the domain's last searches (or those of one conversation), newest first.

        Raises:
            NotFound: there is no such domain.
        """
        await self._directory.get(domain_id)
        return await self.knowledge.traces.list_of(domain_id, limit, conversation_id)

    async def retrieval(self, domain_id: str, retrieval_id: str, view: DocumentView) -> StoredSearch:
        """Return a stored search, and those chunks of its candidates that still exist.

        Hits and candidates of documents outside of the view are left out.

        Raises:
            NotFound: the domain has no such search.
        """
        await self._directory.get(domain_id)
        return await self.knowledge.traces.get(domain_id, retrieval_id, view)

    async def reindex(self, domain_id: str, *, rollback: bool = False, anyway: bool = False) -> CollectionRecord:
        """Begin to rebuild the domain's collection, or return to the previous collection.

        ``rollback``: return to the collection before the last exchange. ``anyway``: the new collection goes live even
        if evaluation cases have worse results with it.

        Raises:
            NotFound: there is no such domain.
            ReindexRunning, NothingToRollBack: the rollback is not possible.
            IndexUnavailable: the index cannot answer now.
        """
        await self._directory.get(domain_id)
        with index_errors():
            if rollback:
                return await self.knowledge.reindexing.roll_back(domain_id)
            return await self.knowledge.reindexing.request(domain_id, anyway=anyway)

    async def reindex_state(self, domain_id: str) -> CollectionRecord:
        """Return the state of the domain's collection.

        Raises:
            NotFound: there is no such domain.
        """
        await self._directory.get(domain_id)
        return await self.knowledge.reindexing.state(domain_id)

    async def rebuilding(self, domain_id: str) -> Rebuilding | None:
        """Return the progress of rebuilding a lost index; None when no index was lost."""
        return await self.knowledge.lost.rebuilding(domain_id)
