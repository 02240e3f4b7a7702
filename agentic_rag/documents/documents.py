"""Documents: files of a domain, from upload or the operator's folder to their deletion.

Owns the originals in ``{workspace}/documents``, the rule that the same bytes are one document, and the searches
an admin makes. How a file becomes chunks is `ingestion`'s. Knows no request.
"""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from agentic_rag.access.auditing import audit, change
from agentic_rag.documents.files import files_of, hash_of, place, stamp_of
from agentic_rag.documents.incoming import Incoming
from agentic_rag.documents.knowledge import Knowledge
from agentic_rag.documents.names import clean_name, media_type, split_name
from agentic_rag.documents.search import SearchOptions
from agentic_rag.domains.domains import Domains
from agentic_rag.domains.server_map import collection_of
from agentic_rag.domains.settings import DomainSettings
from agentic_rag.errors import AgenticRagError, DocumentUnsupported, InvalidInput, NotFound
from agentic_rag.store import documents
from agentic_rag.store.audit import Entry
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.tables import CollectionRow, Document, Domain, RetrievalRow
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.errors import IndexFault, UnknownDocument
from mcp_servers.retriever.formats import SUFFIXES
from mcp_servers.retriever.index import Index
from mcp_servers.retriever.retrieval import Retrieval

log = logging.getLogger(__name__)


class IndexUnavailable(AgenticRagError):
    """The index cannot be searched now."""

    code = "INDEX_UNAVAILABLE"
    status = 503
    retryable = True

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"The documents cannot be searched now: {self.reason}."


class Documents:
    """The documents of all domains. ``incoming`` is the folder where uploads grow, on the workspaces' disk."""

    def __init__(
        self,
        database: Database,
        domains: Domains,
        knowledge: Knowledge,
        incoming: Path,
        max_bytes: int,
    ) -> None:
        self._db = database
        self._domains = domains
        self._index = knowledge.index
        self._ingestion = knowledge.ingestion
        self._search = knowledge.search
        self._reindexing = knowledge.reindexing
        self._traces = knowledge.traces
        self._failpoint = knowledge.failpoint
        self._incoming = incoming
        self._max_bytes = max_bytes
        domains.before_delete.append(self._ingestion.stop_domain)
        domains.before_delete.append(self._reindexing.stop)

    async def receive(self, domain_id: str, name: str, *, replace: bool = False) -> Incoming:
        """Begin to take a file. ``name`` is what the client calls it; only its last component is kept.

        ``replace``: a document of that name gets the new bytes, instead of a second one with a number.

        Raises:
            NotFound: there is no such domain.
            DocumentUnsupported: files of this kind cannot be read.
        """
        domain = await self._domains.get(domain_id)
        cleaned = clean_name(name)
        if split_name(cleaned)[1].lower() not in SUFFIXES:
            raise DocumentUnsupported(cleaned, tuple(sorted(SUFFIXES)))
        finish = partial(self._adopt, domain, replace)
        return Incoming(cleaned, self._incoming / new_id("up"), self._max_bytes, finish)

    async def _adopt(self, domain: Domain, replace: bool, incoming: Incoming) -> Document:
        known = await self._db.read(lambda conn: documents.by_sha(conn, domain.id, incoming.sha256))
        if known is not None:
            if known.status != "failed" or split_name(known.name)[1] == split_name(incoming.name)[1]:
                return known
            await self._remove(domain, known)  # its ending was wrong; this one may be right
        folder = Path(domain.workspace) / "documents"
        before = None
        if replace:
            before = await self._db.read(lambda conn: documents.by_path(conn, domain.id, incoming.name))
        path = await anyio.to_thread.run_sync(
            partial(place, incoming.path, folder, incoming.name, replace=before is not None)
        )
        self._failpoint("upload.placed")
        if before is not None:
            return await self._changed(before, path, incoming.size, incoming.sha256)
        document, new = await self._insert(domain.id, path, path.name, incoming.size, incoming.sha256)
        if not new and document.path != path.name:  # the same bytes came twice at once
            path.unlink(missing_ok=True)
        return document

    async def _insert(self, domain_id: str, file: Path, path: str, size: int, sha256: str) -> tuple[Document, bool]:
        """Store a queued document and submit it; returns the one that was quicker with the same bytes, and False."""
        created = now()
        document = Document(
            id=new_id("doc"),
            domain_id=domain_id,
            name=file.name,
            media_type=media_type(file.name),
            size=size,
            sha256=sha256,
            path=path,
            progress={"stage": "queued"},
            file_stamp=await anyio.to_thread.run_sync(stamp_of, file),
            created_at=created,
            updated_at=created,
        )
        told = change("document.create", f"{domain_id}/{document.id}", name=document.name, size=size)

        def save(conn: Connection) -> None:
            documents.insert(conn, document)
            audit(conn, told)

        try:
            await self._db.write(save, durable=True)
        except IntegrityError:
            known = await self._db.read(lambda conn: documents.by_sha(conn, domain_id, sha256))
            if known is None:
                raise
            return known, False
        self._failpoint("upload.recorded")
        self._ingestion.submit(document)
        return document, True

    async def _changed(self, document: Document, file: Path, size: int, sha256: str) -> Document:
        """Ingest a document's new bytes; other bytes have other chunks, so that no old citation gets a new text."""
        stamp = await anyio.to_thread.run_sync(stamp_of, file)
        await self._ingestion.stop(document.id)
        try:
            await self._ingestion.requeue(document.id, {"size": size, "sha256": sha256, "file_stamp": stamp})
        except IntegrityError:  # another document has these bytes: this one is a second name of it
            await self._forget(document)
            known = await self._db.read(lambda conn: documents.by_sha(conn, document.domain_id, sha256))
            return known or document
        queued = await self.get(document.domain_id, document.id)
        self._ingestion.submit(queued)
        return queued

    async def rescan(self, domain_id: str) -> int:
        """Take in files that the operator put into the documents folder, or changed; return how many there were."""
        domain = await self._domains.get(domain_id)
        known = {document.path: document for document in await self.list_of(domain_id)}
        folder = Path(domain.workspace) / "documents"
        taken = 0
        for path, stamp in await anyio.to_thread.run_sync(lambda: list(files_of(folder))):
            before = known.get(path)
            if before is not None and before.file_stamp == stamp:
                continue
            try:
                size, digest = await anyio.to_thread.run_sync(hash_of, folder / path)
            except OSError as exc:
                log.warning("%s cannot be read: %s", folder / path, exc.strerror)
                continue
            if before is None:
                _, new = await self._insert(domain_id, folder / path, path, size, digest)
                taken += new
            elif before.sha256 != digest:
                await self._changed(before, folder / path, size, digest)
                taken += 1
        return taken

    async def list_of(self, domain_id: str, status: str | None = None) -> list[Document]:
        """Return the domain's documents, oldest first.

        Raises:
            NotFound: there is no such domain.
        """
        await self._domains.get(domain_id)
        return await self._db.read(lambda conn: documents.list_of(conn, domain_id, status))

    async def get(self, domain_id: str, document_id: str) -> Document:
        """Return one document.

        Raises:
            NotFound: the domain has no such document.
        """
        await self._domains.get(domain_id)
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

    async def retry(self, domain_id: str, document_id: str) -> Document:
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
        """Remove file, chunks and record, after interrupting the domain's turns. Repeatable until it succeeds.

        The file goes first: were it the record, a kill in between would have the file ingested again.

        Raises:
            NotFound: the domain has no such document.
            IndexUnavailable: its chunks cannot be removed now; it is still listed.
        """
        document = await self.get(domain_id, document_id)
        domain = await self._domains.get(domain_id)
        await self._domains.interrupt_turns(domain_id)
        await self._remove(domain, document)

    async def _remove(self, domain: Domain, document: Document) -> None:
        """Remove file, chunks and record, in this order."""
        path = Path(domain.workspace) / "documents" / document.path
        await anyio.to_thread.run_sync(lambda: path.unlink(missing_ok=True))
        await self._forget(document)

    async def _forget(self, document: Document) -> None:
        """Remove chunks and record."""
        told = change("document.delete", f"{document.domain_id}/{document.id}", name=document.name)
        await self._ingestion.stop(document.id)
        try:
            await self._reindexing.delete_document(document.domain_id, document.id)
            await self._db.write(lambda conn: _delete(conn, document, told), durable=True)
            # Once more: a rebuilt collection may have taken the place of the other in between.
            await self._reindexing.delete_document(document.domain_id, document.id)
        except IndexFault as exc:
            raise IndexUnavailable(str(exc)) from exc
        finally:
            self._domains.collection_changed(document.domain_id)

    async def search(self, domain_id: str, query: str, options: SearchOptions) -> Retrieval:
        """Search as the model's tool does; what ``options`` leave open takes the domain's settings.

        Raises:
            NotFound: there is no such domain.
            InvalidInput: the query is blank, or the document named is not one.
            IndexUnavailable: the index cannot answer now.
        """
        settings = DomainSettings.model_validate((await self._domains.get(domain_id)).settings)
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
            raise InvalidInput("document", str(exc)) from exc
        except IndexFault as exc:
            raise IndexUnavailable(str(exc)) from exc

    async def retrievals(self, domain_id: str, limit: int) -> list[RetrievalRow]:
        """Return the domain's last searches, newest first.

        Raises:
            NotFound: there is no such domain.
        """
        await self._domains.get(domain_id)
        return await self._traces.list_of(domain_id, limit)

    async def retrieval(self, domain_id: str, retrieval_id: str) -> tuple[RetrievalRow, dict[str, dict[str, Any]]]:
        """Return a kept search, and what there still is of its candidates' chunks.

        Raises:
            NotFound: the domain has no such search.
        """
        await self._domains.get(domain_id)
        return await self._traces.get(domain_id, retrieval_id)

    async def reindex(self, domain_id: str, *, rollback: bool = False) -> CollectionRow:
        """Begin to make the domain's collection anew, or take the last exchange back.

        Raises:
            NotFound: there is no such domain.
            ReindexRunning, NothingToRollBack: it cannot be taken back.
            IndexUnavailable: the index cannot answer now.
        """
        await self._domains.get(domain_id)
        try:
            if rollback:
                return await self._reindexing.roll_back(domain_id)
            return await self._reindexing.request(domain_id)
        except IndexFault as exc:
            raise IndexUnavailable(str(exc)) from exc

    async def reindex_state(self, domain_id: str) -> CollectionRow:
        """Return where the domain's collection stands.

        Raises:
            NotFound: there is no such domain.
        """
        await self._domains.get(domain_id)
        return await self._reindexing.state(domain_id)


def _delete(conn: Connection, document: Document, told: Entry) -> None:
    if documents.delete(conn, document.id):
        audit(conn, told)


async def missing_chunks(index: Index, domain_id: str, chunk_ids: set[str]) -> set[str]:
    """Return those of the chunks that can no longer be cited. An index that does not answer misses none."""
    try:
        return chunk_ids - await index.existing(collection_of(domain_id), chunk_ids)
    except IndexFault:
        return set()
