"""Records of files: made, changed, renamed and removed as the files in the documents folders are.

Owns the rule that a folder says which documents there are, and the look into it. Knows no upload and no search.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import anyio.to_thread
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from agentic_rag.access.auditing import audit, change
from agentic_rag.directory.directory import Directory
from agentic_rag.documents.files import files_of, hash_of, stamp_of
from agentic_rag.documents.knowledge import Knowledge
from agentic_rag.documents.names import media_type
from agentic_rag.errors import IndexUnavailable
from agentic_rag.store import documents
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.documents import DocumentFields, DocumentRecord
from mcp_servers.retriever.errors import MISSING_FILE, IndexFault

log = logging.getLogger(__name__)

MISSING = "DOCUMENT_MISSING"
"""The code of a document whose file was taken away."""


class Intake:
    """The records of all domains' files. Every change of a file's bytes, name or presence comes through here."""

    def __init__(self, database: Database, directory: Directory, knowledge: Knowledge) -> None:
        self._db = database
        self._directory = directory
        self._ingestion = knowledge.ingestion
        self._reindexing = knowledge.reindexing
        self._failpoint = knowledge.failpoint
        self._copies: dict[tuple[str, str], tuple[str, str]] = {}
        """Stamp and hash of files that are copies of a document, by domain and path: each is hashed once."""

    async def insert(
        self, domain_id: str, file: Path, path: str, size: int, sha256: str
    ) -> tuple[DocumentRecord, bool]:
        """Store a queued document and submit it; returns the one that was quicker with the same bytes, and False."""
        created = now()
        document = DocumentRecord(
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

    async def changed(self, document: DocumentRecord, file: Path, size: int, sha256: str) -> DocumentRecord:
        """Ingest a document's new bytes; other bytes have other chunks, so that no old citation gets a new text."""
        stamp = await anyio.to_thread.run_sync(stamp_of, file)
        try:
            return await self._again(document, {"size": size, "sha256": sha256, "file_stamp": stamp})
        except IntegrityError:  # another document has these bytes: this one is a second name of it
            await self.forget(document)
            known = await self._db.read(lambda conn: documents.by_sha(conn, document.domain_id, sha256))
            return known or document

    async def _again(self, document: DocumentRecord, fields: DocumentFields) -> DocumentRecord:
        """Ingest a document anew with other facts about its file; as it was when it is deleted meanwhile."""
        await self._ingestion.stop(document.id)
        await self._ingestion.requeue(document.id, fields)
        queued = await self._db.read(lambda conn: documents.get(conn, document.id))
        if queued is None:
            return document
        self._ingestion.submit(queued)
        return queued

    async def forget(self, document: DocumentRecord) -> None:
        """Remove chunks and record.

        Raises:
            IndexUnavailable: the chunks cannot be removed now; it is still listed.
        """
        told = change("document.delete", f"{document.domain_id}/{document.id}", name=document.name)

        def remove(conn: Connection) -> None:
            if documents.delete(conn, document.id):
                audit(conn, told)

        await self._ingestion.stop(document.id)
        try:
            await self._reindexing.delete_document(document.domain_id, document.id)
            await self._db.write(remove, durable=True)
            # Once more: a rebuilt collection may have taken the place of the other in between.
            await self._reindexing.delete_document(document.domain_id, document.id)
        except IndexFault as exc:
            raise IndexUnavailable(str(exc)) from exc
        finally:
            self._directory.collection_changed(document.domain_id)

    async def rescan(self, domain_id: str, folder: Path) -> int:
        """Follow a documents folder: files that came, changed, were renamed or are gone. Return how many came in.

        A document whose file is gone fails as `MISSING` and loses its chunks; when the file is back, so is it.

        Raises:
            NotFound: the domain is being deleted.
        """
        listed = await self._db.read(lambda conn: documents.list_of(conn, domain_id))
        if not await anyio.to_thread.run_sync(folder.is_dir):  # a disk that is not mounted: nothing was deleted
            log.warning("%s is not there", folder)
            return 0
        found = await anyio.to_thread.run_sync(lambda: dict(files_of(folder)))
        known = {document.path: document for document in listed}
        gone = {document.sha256: document for document in listed if document.path not in found}
        here = {document.sha256 for document in listed if document.path in found}
        taken = 0
        for path, stamp in found.items():
            before = known.get(path)
            if self._is_old(domain_id, path, stamp, before, here):
                continue
            await self._directory.get(domain_id)  # its deletion waits for this look to end
            try:
                size, digest = await anyio.to_thread.run_sync(hash_of, folder / path)
            except OSError as exc:
                log.warning("%s cannot be read: %s", folder / path, exc.strerror)
                continue
            if before is None and digest in gone:
                await self._renamed(gone.pop(digest), path, stamp)
                taken += 1
            elif before is None:
                _, new = await self.insert(domain_id, folder / path, path, size, digest)
                taken += new
                if not new:
                    self._copies[domain_id, path] = stamp, digest
            elif before.sha256 != digest or before.error_code == MISSING:
                await self.changed(before, folder / path, size, digest)
                taken += 1
        await self._lose(gone, folder)
        return taken

    def _is_old(self, domain_id: str, path: str, stamp: str, before: DocumentRecord | None, here: set[str]) -> bool:
        """Whether nothing is new about a file: a document's, or a copy of one's that is still there."""
        if before is not None:
            return before.file_stamp == stamp and before.error_code != MISSING
        then, digest = self._copies.get((domain_id, path), ("", ""))
        return then == stamp and digest in here

    async def _renamed(self, document: DocumentRecord, path: str, stamp: str) -> None:
        """Ingest a document again under the name that its file has now."""
        name = Path(path).name
        await self._again(document, {"name": name, "path": path, "media_type": media_type(name), "file_stamp": stamp})

    async def _lose(self, gone: Mapping[str, DocumentRecord], folder: Path) -> None:
        """Documents whose files were taken away are found and cited no more; their records say why."""
        for document in gone.values():
            file = folder / document.path
            if document.error_code == MISSING or await anyio.to_thread.run_sync(file.is_file):
                continue
            log.warning("%s was taken away", file)
            await self._ingestion.stop(document.id)
            fields: DocumentFields = {
                "status": "failed",
                "error_code": MISSING,
                "error_message": MISSING_FILE,
                "dense_state": "none",
                "chunk_count": None,
                "updated_at": now(),
            }
            try:
                await self._reindexing.delete_document(document.domain_id, document.id)
                await self._write(document.id, fields)
                # Once more: a collection that is rebuilt may have got them in between.
                await self._reindexing.delete_document(document.domain_id, document.id)
            except IndexFault as exc:  # unless its record says so already, the next look finds it again
                log.warning("chunks of %s cannot be removed now: %s", document.name, exc)
            finally:
                self._directory.collection_changed(document.domain_id)

    async def _write(self, document_id: str, fields: DocumentFields) -> None:
        await self._db.write(lambda conn: documents.update(conn, document_id, **fields), durable=True)
