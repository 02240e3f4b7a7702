"""Intake: turns uploads and files of the documents folder into records, and removes them.

Owns two rules: the folder decides which documents exist, and files with the same bytes are one document. Also owns the
single order of steps that removes a document. Knows no search and no request; `ingestion` turns a file into chunks.
"""

import logging
from collections.abc import Callable, Collection
from functools import partial
from pathlib import PurePosixPath

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from agentic_rag.access.auditing import audit, change
from agentic_rag.base import failpoints
from agentic_rag.base.errors import NotFound, QuotaExceeded, SearchUnavailable, WorkspaceUnavailable
from agentic_rag.base.ids import DocumentId
from agentic_rag.documents.document_services import DocumentServices
from agentic_rag.documents.files import Incoming, documents_of, place, split_name, stamp_of
from agentic_rag.documents.ingestion import Ingestion, Pauses
from agentic_rag.documents.reindexing import Reindexing
from agentic_rag.documents.search import index_errors
from agentic_rag.store import documents, sources
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.documents import (
    DenseState,
    DocumentFields,
    DocumentRecord,
    DocumentStatus,
    ExpectedLabelsRecord,
)
from agentic_rag.store.domains import DomainRecord
from mcp_servers.retriever.errors import MISSING_FILE, DocumentCode, DocumentError
from mcp_servers.retriever.formats import media_type
from mcp_servers.safe_files import Folder, Refused, is_text

log = logging.getLogger(__name__)

MISSING: DocumentCode = "DOCUMENT_MISSING"
"""The error code of a document whose file was removed from the folder."""


class Intake:
    """The records of all domains' files. Every change of a file's bytes, name or presence passes through this class."""

    def __init__(self, workshop: DocumentServices, ingestion: Ingestion, reindexing: Reindexing) -> None:
        self._db = workshop.database
        self._directory = workshop.directory
        self._ingestion = ingestion
        self._reindexing = reindexing
        self._threads = workshop.threads
        self._storing = Pauses()
        self._copies: dict[tuple[str, str], tuple[str, str]] = {}
        """Stamp and hash of files that are copies of a document, by domain and path, so that each is hashed once."""
        self._strange: dict[str, frozenset[str]] = {}
        """Entries of a domain's folder that are not regular files, so that each is logged once."""

    async def take(self, incoming: Incoming[DocumentRecord]) -> DocumentRecord:
        """Turn a received file into a document of its domain; return the existing document if one has the same bytes.

        Raises:
            NotFound: the domain was deleted since the upload began.
            WorkspaceRefused, StorageFull: the documents folder cannot be written.
            QuotaExceeded: the domain has reached its quota of documents.
        """
        async with self._storing.working(incoming.domain_id):
            return await self._store(await self._directory.get(incoming.domain_id), incoming)

    async def _add_labels(self, document: DocumentRecord, labels: Collection[str]) -> DocumentRecord:
        """Add labels to a document before its bytes or its other name change, and return it."""
        if set(labels) <= set(document.labels):
            return document
        joined = tuple(sorted({*document.labels, *labels}))
        entry = change("document.update", f"{document.domain_id}/{document.id}", name=document.name, labels=joined)

        def store(conn: Connection) -> None:
            documents.add_labels(conn, document.id, labels)
            audit(conn, entry)

        await self._db.write(store, durable=True)
        self._directory.collection_changed(document.domain_id)
        return document.replace(labels=joined)

    async def _store(self, domain: DomainRecord, incoming: Incoming[DocumentRecord]) -> DocumentRecord:
        folder = documents_of(domain.workspace)
        before = await self._find_replaced(domain.id, incoming)
        existing = await self._db.read(lambda conn: documents.by_sha(conn, domain.id, incoming.sha256))
        if existing is not None:
            if existing.status is DocumentStatus.DELETING:
                # Its removal was interrupted. Afterwards these bytes become a new document.
                await self._finish_removal(domain, existing)
                return await self._store(domain, incoming)
            if (
                existing.status is not DocumentStatus.FAILED
                or split_name(existing.name)[1] == split_name(incoming.name)[1]
            ):
                existing = await self._adopt(existing, incoming)
                if before is not None and before.id != existing.id:
                    existing = await self._add_labels(existing, before.labels)
                    await self.remove(domain, before)  # both names now have the same bytes, which are one document
                return await self._restore(existing, folder, incoming)
            await self.remove(domain, existing)  # the old file ending may have caused the failure
        await self._check_room(domain.id, before, incoming)
        if before is not None:
            before = await self._add_labels(before, incoming.labels)
        await self._expect(domain.id, incoming)
        path = await self._threads.run(domain.id, _place, folder, incoming, before)
        failpoints.reached("upload.placed")
        if before is not None:
            return await self._change_bytes(before, folder, path, incoming.size, incoming.sha256)
        try:
            document, new = await self._insert(domain.id, folder, path, incoming.size, incoming.sha256, incoming.labels)
        except QuotaExceeded:
            await self._threads.run(domain.id, folder.remove, path)
            await self._db.write(lambda conn: documents.take_expected(conn, domain.id, incoming.sha256))
            raise
        if not new and document.path != path:  # a concurrent upload stored the same bytes first
            await self._threads.run(domain.id, folder.remove, path)
        return document

    async def _find_replaced(self, domain_id: str, incoming: Incoming[DocumentRecord]) -> DocumentRecord | None:
        """Return the document that gets the bytes of a received file, or None if the file becomes a new document."""
        origin = incoming.origin
        if origin is not None and origin.instead is not None:
            replaced_id = origin.instead
            document = await self._db.read(lambda conn: documents.get(conn, replaced_id))
            listed = document is not None and document.status is not DocumentStatus.DELETING
            return document if listed and document is not None and document.domain_id == domain_id else None
        if not incoming.replace:
            return None
        return await self._db.read(lambda conn: documents.by_path(conn, domain_id, incoming.name))

    async def _expect(self, domain_id: str, incoming: Incoming[DocumentRecord]) -> None:
        """Store labels and source of a received file before the file is in the folder.

        A scan of the folder then adds the file with them, even if this process is killed before it adds the file.
        """
        origin = incoming.origin
        if not incoming.labels and origin is None:
            return
        expected = ExpectedLabelsRecord(
            domain_id=domain_id, sha256=incoming.sha256, labels=tuple(sorted(set(incoming.labels)))
        )
        if origin is not None:
            expected = expected.replace(own_date=origin.date, source_id=origin.source_id, source_uri=origin.uri)
        await self._db.write(lambda conn: documents.expect_labels(conn, expected), durable=True)

    async def _adopt(self, document: DocumentRecord, incoming: Incoming[DocumentRecord]) -> DocumentRecord:
        """Add the labels of a received file to the document that has its bytes already, and return the document.

        An upload of a person makes the document the person's: its source does not remove it any more.
        """
        if incoming.origin is None:
            document = await self._add_labels(document, incoming.labels)
            if document.source_id:
                await self._db.write(lambda conn: documents.update(conn, document.id, source_id=""), durable=True)
            return document.replace(source_id="")
        source_id, uri = incoming.origin.source_id, incoming.origin.uri

        def store(conn: Connection) -> DocumentRecord | None:
            source = sources.lock(conn, source_id)
            documents.add_labels(conn, document.id, [*incoming.labels, *(source.labels if source else ())])
            if document.source_uri is None:
                documents.update(conn, document.id, source_uri=uri)
            return documents.get(conn, document.id)

        adopted = await self._db.write(store, durable=True)
        self._directory.collection_changed(document.domain_id)
        return adopted or document

    async def _check_room(
        self, domain_id: str, before: DocumentRecord | None, incoming: Incoming[DocumentRecord]
    ) -> None:
        """Refuse a file over quota before it is placed; the transaction that adds the document checks again."""
        more, size = (1, incoming.size) if before is None else (0, incoming.size - before.size)
        if size > 0:
            quotas = self._directory.quotas
            await self._db.read(lambda conn: quotas.check_more_documents(conn, domain_id, more, size))

    async def _restore(
        self, document: DocumentRecord, folder: Folder, incoming: Incoming[DocumentRecord]
    ) -> DocumentRecord:
        """Return the document that has these bytes; if its file is missing, the new file replaces it."""
        if await self._threads.read(document.domain_id, folder.is_file, document.path):
            return document
        around, _, name = document.path.rpartition("/")
        again = await self._threads.run(document.domain_id, place, incoming.path, folder.at(around), name)
        path = f"{around}/{again}" if around else again
        return await self._change_bytes(document, folder, path, incoming.size, incoming.sha256)

    async def _insert(
        self, domain_id: str, folder: Folder, path: str, size: int, sha256: str, labels: Collection[str] = ()
    ) -> tuple[DocumentRecord, bool]:
        """Insert a queued document and submit it; return it and True.

        If a concurrent upload stored the same bytes first, return that document and False.
        """
        created = now()
        name = PurePosixPath(path).name
        document = DocumentRecord(
            id=DocumentId(new_id("doc")),
            domain_id=domain_id,
            name=name,
            media_type=media_type(name),
            size=size,
            sha256=sha256,
            path=path,
            file_stamp=await self._threads.run(domain_id, stamp_of, folder, path),
            labels=tuple(sorted(set(labels))),
            created_at=created,
            updated_at=created,
        )
        entry = change("document.create", f"{domain_id}/{document.id}", name=document.name, size=size)
        stored: list[DocumentRecord] = []

        def save(conn: Connection) -> None:
            stored.append(documents.insert(conn, document))
            self._directory.quotas.check_documents(conn, domain_id)
            audit(conn, entry)

        try:
            await self._db.write(save, durable=True)
        except IntegrityError:
            existing = await self._db.read(lambda conn: documents.by_sha(conn, domain_id, sha256))
            if existing is None:
                raise
            return await self._add_labels(existing, labels), False
        failpoints.reached("upload.recorded")
        self._ingestion.submit(stored[-1])
        return stored[-1], True

    async def _change_bytes(
        self, document: DocumentRecord, folder: Folder, path: str, size: int, sha256: str
    ) -> DocumentRecord:
        """Ingest a document's new bytes; other bytes get other chunk ids, so that no old citation shows a new text."""
        stamp = await self._threads.run(document.domain_id, stamp_of, folder, path)
        try:
            return await self._ingest_again(document, {"size": size, "sha256": sha256, "file_stamp": stamp})
        except IntegrityError:  # another document already has these bytes
            existing = await self._db.read(lambda conn: documents.by_sha(conn, document.domain_id, sha256))
            if existing is not None:
                existing = await self._add_labels(existing, document.labels)
            await self._forget(document)
            return existing or document

    async def _ingest_again(self, document: DocumentRecord, fields: DocumentFields) -> DocumentRecord:
        """Update the file fields of a document and queue it for ingestion again.

        Returns the given record if the document is deleted in the meantime.
        """
        await self._ingestion.stop(document.id)
        await self._ingestion.requeue(document.id, fields, self._directory.quotas)
        queued = await self._db.read(lambda conn: documents.get(conn, document.id))
        if queued is None:
            return document
        self._ingestion.submit(queued)
        return queued

    # Removal: on request, by hand in the folder, as a duplicate of another document, or with the domain.

    async def remove(self, domain: DomainRecord, document: DocumentRecord) -> None:
        """Remove a document: first mark it as deleted, then remove its file and its chunks, and its record last.

        Once marked, the document is invisible to everyone. If a kill interrupts the rest, `finish_removals` completes
        it.
        """
        entry = change("document.delete", f"{document.domain_id}/{document.id}", name=document.name)

        def mark(conn: Connection) -> None:
            if documents.update(conn, document.id, status=DocumentStatus.DELETING, updated_at=now()):
                audit(conn, entry)

        await self._ingestion.stop(document.id)
        await self._db.write(mark, durable=True)
        self._directory.collection_changed(document.domain_id)
        failpoints.reached("delete.marked")
        await self._threads.run(domain.id, _remove_file, documents_of(domain.workspace), document)
        failpoints.reached("delete.unlinked")
        try:
            await self._take_out(document, lambda conn: documents.delete(conn, document.id))
        except SearchUnavailable as exc:
            log.warning("chunks of %s are removed later: %s", document.name, exc)

    async def finish_removals(self) -> None:
        """Finish removals that were interrupted by a kill or by an index that did not answer."""
        for document in await self._db.read(documents.list_deleting):
            try:
                await self._finish_removal(await self._directory.get(document.domain_id), document)
            except NotFound:
                continue  # deleting its domain also removes the document
            except (SearchUnavailable, WorkspaceUnavailable) as exc:
                log.warning("the rest of %s will be removed later: %s", document.name, exc)

    async def _finish_removal(self, domain: DomainRecord, document: DocumentRecord) -> None:
        """Resume a removal. The file stays if another file has taken its name in the meantime.

        Raises:
            IndexUnavailable: the chunks cannot be removed now.
        """
        folder = documents_of(domain.workspace)

        def unlink() -> None:
            if stamp_of(folder, document.path) == document.file_stamp:
                _remove_file(folder, document)

        await self._threads.run(domain.id, unlink)
        await self._take_out(document, lambda conn: documents.delete(conn, document.id))

    async def _forget(self, document: DocumentRecord) -> None:
        """Remove a document whose bytes another document has; its file stays, as a copy."""
        entry = change("document.delete", f"{document.domain_id}/{document.id}", name=document.name)

        def delete(conn: Connection) -> None:
            if documents.delete(conn, document.id):
                audit(conn, entry)

        await self._take_out(document, delete)

    async def _take_out(self, document: DocumentRecord, change_record: Callable[[Connection], object]) -> None:
        """End the work on a document, remove its chunks from every collection, and change its record.

        Raises:
            IndexUnavailable: the chunks cannot be removed now; the record is unchanged.
        """
        domain_id = document.domain_id
        await self._ingestion.stop(document.id)
        try:
            with index_errors():
                await self._reindexing.delete_document(domain_id, document.id)
                await self._db.write(change_record, durable=True)
                # Delete again: a rebuilt collection may have gone live between the two statements above.
                await self._reindexing.delete_document(domain_id, document.id)
        finally:
            self._directory.collection_changed(domain_id)

    async def stop_domain(self, domain_id: str) -> None:
        """End all work on a domain that is being deleted. No new work begins: the domain's record is already hidden."""
        async with self._storing.pause(domain_id):
            pass
        await self._ingestion.stop_domain(domain_id)
        await self._reindexing.stop(domain_id)

    # The documents folder.

    async def rescan(self, domain_id: str) -> int:
        """Apply changes of a documents folder: new, changed, renamed and missing files. Return the number taken in.

        A document whose file is missing fails as `MISSING` and loses its chunks. When the file returns, the document is
        ingested again.

        Raises:
            NotFound: there is no such domain, or it is being deleted.
        """
        async with self._storing.working(domain_id):
            domain = await self._directory.get(domain_id)
            return await self._follow_folder(domain_id, documents_of(domain.workspace))

    async def _follow_folder(self, domain_id: str, folder: Folder) -> int:
        listed = await self._db.read(lambda conn: documents.list_of(conn, domain_id))
        removed = await self._db.read(partial(documents.list_deleting, domain_id=domain_id))
        deleting = {document.path for document in removed}
        if not await self._threads.read(domain_id, folder.is_there):  # a disk that is not mounted: nothing was deleted
            log.warning("%s is not there, or is a link, which is not followed", folder.path)
            return 0
        entries = await self._threads.run(domain_id, lambda: list(folder.walk(hidden=False)))
        stamps = {entry.path: entry.stamp for entry in entries if entry.kind == "file" and is_text(entry.path)}
        self._tell_strange(domain_id, frozenset(entry.path for entry in entries if entry.path not in stamps))
        by_path = {document.path: document for document in listed}
        missing = {document.sha256: document for document in listed if document.path not in stamps}
        present_hashes = {document.sha256 for document in listed if document.path in stamps}
        count = 0
        for path, stamp in stamps.items():
            before = by_path.get(path)
            if path in deleting or self._is_old(domain_id, path, stamp, before, present_hashes):
                continue
            await self._directory.get(domain_id)  # a deletion of the domain waits for this scan to end
            try:
                size, digest = await self._threads.run(domain_id, folder.hash, path)
            except OSError as exc:
                log.warning("%s cannot be read: %s", folder.path / path, exc.strerror)
                continue
            try:
                if before is None and digest in missing:
                    await self._rename(missing.pop(digest), path, stamp)
                    count += 1
                elif before is None:
                    _, new = await self._insert(domain_id, folder, path, size, digest)
                    count += new
                    if not new:
                        self._copies[domain_id, path] = stamp, digest
                elif before.sha256 != digest or before.error_code == MISSING:
                    await self._change_bytes(before, folder, path, size, digest)
                    count += 1
            except QuotaExceeded as exc:  # a later scan takes the file in when the quota has room
                log.warning("%s is not taken in: %s", folder.path / path, exc)
        for document in missing.values():  # renamed documents have left this map, so these files are really missing
            await self._lose(document, folder)
        return count

    def _tell_strange(self, domain_id: str, names: frozenset[str]) -> None:
        for name in sorted(names - self._strange.get(domain_id, frozenset())):
            shown, why = (name, "is a link or no regular file") if is_text(name) else (ascii(name), "is not UTF-8")
            log.warning("%s in the documents of %s %s, and is not read", shown, domain_id, why)
        self._strange[domain_id] = names

    def _is_old(
        self, domain_id: str, path: str, stamp: str, before: DocumentRecord | None, present_hashes: set[str]
    ) -> bool:
        """Whether a file is unchanged: a known document's file, or a known copy of an existing document's file."""
        if before is not None:
            return before.file_stamp == stamp and before.error_code != MISSING
        then, digest = self._copies.get((domain_id, path), ("", ""))
        return then == stamp and digest in present_hashes

    async def _rename(self, document: DocumentRecord, path: str, stamp: str) -> None:
        """Ingest a document again under the current name of its file."""
        name = PurePosixPath(path).name
        fields: DocumentFields = {"name": name, "path": path, "media_type": media_type(name), "file_stamp": stamp}
        await self._ingest_again(document, fields)

    async def _lose(self, document: DocumentRecord, folder: Folder) -> None:
        """Mark a document as failed because its file is missing, and remove its chunks."""
        if document.error_code == MISSING or await self._threads.read(
            document.domain_id, folder.is_file, document.path
        ):
            return
        log.warning("%s was taken away", folder.path / document.path)
        fields: DocumentFields = {
            "status": DocumentStatus.FAILED,
            "error_code": MISSING,
            "error_message": DocumentError(MISSING, MISSING_FILE).sentence(document.name),
            "dense_state": DenseState.NONE,
            "chunk_count": None,
            "updated_at": now(),
        }
        try:
            await self._take_out(document, lambda conn: documents.update(conn, document.id, **fields))
        except SearchUnavailable as exc:  # the next scan tries again
            log.warning("chunks of %s are not removed: %s", document.name, exc)


def _place(folder: Folder, incoming: Incoming[DocumentRecord], before: DocumentRecord | None) -> str:
    """Move a received file into the documents folder, over the file of ``before`` if given, and return its path."""
    origin = incoming.origin
    if origin is None:
        return place(incoming.path, folder, incoming.name, replace=before is not None)
    if before is not None:
        around, _, name = before.path.rpartition("/")
        place(incoming.path, folder.at(around), name, replace=True)
        return before.path
    path = f"{origin.folder}/{incoming.name}"
    try:  # a kill may have ended an earlier attempt after this step
        if folder.hash(path) == (incoming.size, incoming.sha256):
            return path
    except OSError:
        pass
    return f"{origin.folder}/{place(incoming.path, folder.at(origin.folder), incoming.name)}"


def _remove_file(folder: Folder, document: DocumentRecord) -> None:
    """Remove a document's file; leave anything else at its path (a folder, a link) untouched."""
    try:
        folder.remove(document.path)
    except (Refused, IsADirectoryError) as exc:
        log.warning("the file of %s is not removed: %s", document.id, exc.strerror)
