"""Documents: files of a domain, from upload or the operator's folder to their deletion.

Owns the originals in ``{workspace}/documents``, the rule that the same bytes are one document, and the searches
an admin makes. How a file becomes chunks is `ingestion`'s. Knows no request.
"""

import hashlib
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import IO, Self

import anyio
import anyio.to_thread
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from agentic_rag.document_names import clean_name, media_type, numbered, split_name
from agentic_rag.domain_settings import DomainSettings
from agentic_rag.domains import Domains
from agentic_rag.errors import (
    AgenticRagError,
    DocumentTooLarge,
    DocumentUnsupported,
    InvalidInput,
    NotFound,
    StorageFull,
)
from agentic_rag.ingestion import Ingestion
from agentic_rag.server_map import collection_of
from agentic_rag.store import documents
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.tables import Document, Domain
from mcp_servers.retriever.errors import IndexFault, UnknownDocument
from mcp_servers.retriever.formats import SUFFIXES
from mcp_servers.retriever.index import Index
from mcp_servers.retriever.retrieval import Retrieval, Retriever

log = logging.getLogger(__name__)

WRITE_BYTES = 256 * 1024
"""Uploaded bytes are collected to this size before a thread writes them."""


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


class Incoming:
    """A file on its way in: an async context manager; leaving it before `finish` leaves nothing behind.

    Made by `Documents.receive`.
    """

    def __init__(self, name: str, path: Path, limit: int, finish: Callable[["Incoming"], Awaitable[Document]]) -> None:
        self.name = name
        self.path = path
        self.size = 0
        self._limit = limit
        self._finish = finish
        self._digest = hashlib.sha256()
        self._pending = bytearray()
        self._file: IO[bytes]

    async def __aenter__(self) -> Self:
        self._file = await anyio.to_thread.run_sync(_create, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    async def write(self, data: bytes) -> None:
        """Take more bytes.

        Raises:
            DocumentTooLarge: the file is over the limit.
            StorageFull: it cannot be written.
        """
        self.size += len(data)
        if self.size > self._limit:
            raise DocumentTooLarge(self.name, self._limit)
        self._pending += data
        if len(self._pending) >= WRITE_BYTES:
            await self._flush()

    async def finish(self) -> Document:
        """Make it a document of the domain, or return the one that has these bytes already."""
        await self._flush()
        return await self._finish(self)

    async def _flush(self) -> None:
        pending, self._pending = bytes(self._pending), bytearray()
        await anyio.to_thread.run_sync(self._write, pending)

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as exc:
            raise StorageFull(exc.strerror or "unknown reason") from exc


class Documents:
    """The documents of all domains. ``incoming`` is the folder where uploads grow, on the workspaces' disk."""

    def __init__(
        self,
        database: Database,
        domains: Domains,
        ingestion: Ingestion,
        index: Index,
        retriever: Retriever,
        incoming: Path,
        max_bytes: int,
    ) -> None:
        self._db = database
        self._domains = domains
        self._ingestion = ingestion
        self._index = index
        self._retriever = retriever
        self._incoming = incoming
        self._max_bytes = max_bytes
        domains.before_delete.append(ingestion.stop_domain)

    async def receive(self, domain_id: str, name: str) -> Incoming:
        """Begin to take a file. ``name`` is what the client calls it; only its last component is kept.

        Raises:
            NotFound: there is no such domain.
            DocumentUnsupported: files of this kind cannot be read.
        """
        domain = await self._domains.get(domain_id)
        cleaned = clean_name(name)
        if split_name(cleaned)[1].lower() not in SUFFIXES:
            raise DocumentUnsupported(cleaned, tuple(sorted(SUFFIXES)))

        async def finish(incoming: Incoming) -> Document:
            return await self._adopt(domain, incoming)

        return Incoming(cleaned, self._incoming / new_id("up"), self._max_bytes, finish)

    async def _adopt(self, domain: Domain, incoming: Incoming) -> Document:
        known = await self._db.read(lambda conn: documents.by_sha(conn, domain.id, incoming.sha256))
        if known is not None:
            return known
        folder = Path(domain.workspace) / "documents"
        path = await anyio.to_thread.run_sync(_place, incoming.path, folder, incoming.name)
        document, new = await self._insert(domain.id, path.name, path.name, incoming.size, incoming.sha256)
        if not new and document.path != path.name:  # the same bytes came twice at once
            path.unlink(missing_ok=True)
        return document

    async def _insert(self, domain_id: str, name: str, path: str, size: int, sha256: str) -> tuple[Document, bool]:
        """Store a queued document and submit it; returns the one that was quicker with the same bytes, and False."""
        created = now()
        document = Document(
            id=new_id("doc"),
            domain_id=domain_id,
            name=name,
            media_type=media_type(name),
            size=size,
            sha256=sha256,
            path=path,
            progress={"stage": "queued"},
            created_at=created,
            updated_at=created,
        )
        try:
            await self._db.write(lambda conn: documents.insert(conn, document), durable=True)
        except IntegrityError:
            known = await self._db.read(lambda conn: documents.by_sha(conn, domain_id, sha256))
            if known is None:
                raise
            return known, False
        self._ingestion.submit(document)
        return document, True

    async def rescan(self, domain_id: str) -> int:
        """Take in files that the operator put into the documents folder; return how many were new.

        A file at a known path is not looked at again: replace one by deleting its document.
        """
        domain = await self._domains.get(domain_id)
        known = {document.path for document in await self._db.read(lambda conn: documents.list_of(conn, domain_id))}
        folder = Path(domain.workspace) / "documents"
        added = 0
        for path in await anyio.to_thread.run_sync(lambda: [p for p in _files(folder) if p not in known]):
            try:
                size, digest = await anyio.to_thread.run_sync(_hash, folder / path)
            except OSError as exc:
                log.warning("%s cannot be read: %s", folder / path, exc.strerror)
                continue
            _, new = await self._insert(domain_id, Path(path).name, path, size, digest)
            added += new
        return added

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
            raise NotFound("document", document_id)
        return document

    async def retry(self, domain_id: str, document_id: str) -> Document:
        """Queue a failed document again; one in any other state stays as it is.

        Raises:
            NotFound: the domain has no such document.
        """
        document = await self.get(domain_id, document_id)
        if document.status != "failed":
            return document

        def requeue(conn: Connection) -> Document | None:
            documents.update(
                conn,
                document_id,
                status="queued",
                progress={"stage": "queued"},
                error_code=None,
                error_message=None,
                updated_at=now(),
            )
            return documents.get(conn, document_id)

        queued = await self._db.write(requeue, durable=True)
        if queued is None:
            raise NotFound("document", document_id)
        self._ingestion.submit(queued)
        return queued

    async def delete(self, domain_id: str, document_id: str) -> None:
        """Remove file, chunks and record, after interrupting the domain's turns. Repeatable until it succeeds.

        The file goes first: were it the record, a kill in between would have the file ingested again.

        Raises:
            NotFound: the domain has no such document.
        """
        document = await self.get(domain_id, document_id)
        domain = await self._domains.get(domain_id)
        await self._domains.interrupt_turns(domain_id)
        await self._ingestion.stop(document_id)
        path = Path(domain.workspace) / "documents" / document.path
        await anyio.to_thread.run_sync(lambda: path.unlink(missing_ok=True))
        try:
            await self._index.delete_document(collection_of(domain_id), document_id)
        except IndexFault as exc:
            raise IndexUnavailable(str(exc)) from exc
        await self._db.write(lambda conn: documents.delete(conn, document_id), durable=True)
        self._domains.collection_changed(domain_id)

    async def search(
        self, domain_id: str, query: str, top_k: int | None = None, threshold: float | None = None
    ) -> Retrieval:
        """Search as the model's tool does; None takes the domain's settings.

        Raises:
            NotFound: there is no such domain.
            InvalidInput: the query is blank.
            IndexUnavailable: the index cannot answer now.
        """
        settings = DomainSettings.model_validate((await self._domains.get(domain_id)).settings)
        if not query.strip():
            raise InvalidInput("query", "at least one visible character is needed.")
        try:
            return await self._retriever.search(
                collection_of(domain_id),
                query.strip(),
                settings.retrieval_top_k if top_k is None else top_k,
                settings.retrieval_threshold if threshold is None else threshold,
            )
        except UnknownDocument as exc:
            raise InvalidInput("document", str(exc)) from exc
        except IndexFault as exc:
            raise IndexUnavailable(str(exc)) from exc


async def missing_chunks(index: Index, domain_id: str, chunk_ids: set[str]) -> set[str]:
    """Return those of the chunks that can no longer be cited. An index that does not answer misses none."""
    try:
        return chunk_ids - await index.existing(collection_of(domain_id), chunk_ids)
    except IndexFault:
        return set()


def _create(path: Path) -> IO[bytes]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("xb")
    except OSError as exc:
        raise StorageFull(exc.strerror or "unknown reason") from exc


def _place(source: Path, folder: Path, name: str) -> Path:
    """Give a received file its place under a free name; a link is atomic and never overwrites."""
    folder.mkdir(parents=True, exist_ok=True)
    for candidate in numbered(name):
        try:
            os.link(source, folder / candidate)
        except FileExistsError:
            continue
        except OSError as exc:
            raise StorageFull(exc.strerror or "unknown reason") from exc
        return folder / candidate
    raise AssertionError("numbers do not end")


def _files(folder: Path) -> Iterator[str]:
    """Paths of the regular files below a folder, relative to it, in order; hidden ones and links do not count."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(place, name)
            if not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path.relative_to(folder).as_posix()


def _hash(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()
