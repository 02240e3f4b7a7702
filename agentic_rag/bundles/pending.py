"""Pending imports: accepted imports whose files are not all in place, to be completed or undone.

This module owns their rows and folders. The row of a new domain means that its workspace may exist without the domain.
A row over an existing domain means that its settings are stored, and that its files follow from the folder
``{id}.over``. Removals are never repeated.
"""

import logging
import shutil
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from agentic_rag.access.document_views import EVERY_DOCUMENT
from agentic_rag.base import failpoints
from agentic_rag.base.errors import AgenticRagError, NotFound
from agentic_rag.base.threads import DomainThreads
from agentic_rag.bundles.contents import PLACES
from agentic_rag.bundles.form import DOCUMENTS
from agentic_rag.bundles.placing import Owners, import_fitting_memories, place_files, read_expected, remove_files
from agentic_rag.directory.directory import Directory
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.documents.documents import Documents
from agentic_rag.documents.intake import MISSING
from agentic_rag.domains.domains import Domains
from agentic_rag.domains.file_history import ChangeNotice, FileHistory
from agentic_rag.domains.workspaces import remove_workspace
from agentic_rag.store import domains, imports
from agentic_rag.store.database import Database
from agentic_rag.store.domains import DomainRecord
from agentic_rag.store.imports import ImportRecord
from agentic_rag.tools.entries.reading import Note

log = logging.getLogger(__name__)

MAX_LOOKS = 4
"""Maximum scans of the documents after an import: if two names swapped their bytes, one waits for the other."""


class PendingImports:
    """The pending imports of one data folder. ``folder`` holds their files, ``workspaces`` the domains' workspaces."""

    def __init__(
        self,
        database: Database,
        directory: Directory,
        domains: Domains,
        documents: Documents,
        history: FileHistory,
        threads: DomainThreads,
        owners: Owners,
        folder: Path,
        workspaces: Path,
    ) -> None:
        self._db = database
        self._directory = directory
        self._domains = domains
        self._documents = documents
        self._history = history
        self._threads = threads
        self._owners = owners
        self._folder = folder
        self._workspaces = workspaces
        self.busy: set[str] = set()
        """Imports over domains that this process is working on, starting before their row exists."""

    def folder_of(self, import_id: str) -> Path:
        """Return the folder in which the files of an import over a domain wait to be moved."""
        return self._folder / f"{import_id}.over"

    # -- one import -------------------------------------------------------------------------------------------

    async def undo(self, pending_import: ImportRecord) -> bool:
        """Remove the workspace of a domain that was not created; an existing domain is kept. False: failed for now."""
        try:
            if await self._db.read(lambda conn: domains.get(conn, pending_import.domain_id)) is None:
                target = self._workspace_of(pending_import)
                await anyio.to_thread.run_sync(remove_workspace, self._workspaces, target)
            await self._db.write(lambda conn: imports.delete(conn, pending_import.id), durable=True)
        except (AgenticRagError, OSError) as exc:
            problem = "the remaining files of import %s will be removed at the next start: %s"
            log.warning(problem, pending_import.id, exc)
            return False
        return True

    def _workspace_of(self, pending_import: ImportRecord) -> Path:
        """Return the path of a new domain's workspace."""
        return (self._workspaces / pending_import.domain_id).absolute()

    async def remove_unstored(self, pending_import: ImportRecord) -> None:
        """Remove the files of an import that was not stored; if that is unknown, the next start decides."""
        try:
            current = await self._db.read(imports.list_all)
        except AgenticRagError:
            return
        if pending_import.id not in [pending.id for pending in current]:
            await self._remove_files(pending_import)

    async def complete(self, pending_import: ImportRecord) -> list[Note]:
        """Move the files of a stored import into place, then delete the import; return notes about omitted parts.

        Repeating the call has the same result.

        Raises:
            WorkspaceRefused, StorageFull: the import stays, and `resume` continues it.
        """
        record = await self._directory.get(pending_import.domain_id)
        files = self.folder_of(pending_import.id) / "files"
        if not await anyio.to_thread.run_sync(files.is_dir):  # deleted by hand, or only the store was restored
            log.warning("an import over %s has lost its files: nothing more is added or removed", record.id)
            await self._db.write(partial(imports.delete, import_id=pending_import.id), durable=True)
            return []
        notes = await self._place(pending_import, record, files)
        failpoints.reached("bundle.applied")
        # The row goes before the folder: a row without files would be reported as lost.
        await self._db.write(partial(imports.delete, import_id=pending_import.id), durable=True)
        failpoints.reached("bundle.done")
        await self._remove_files(pending_import)
        await self.add_documents(record.id)
        return notes

    async def _place(self, pending_import: ImportRecord, record: DomainRecord, files: Path) -> list[Note]:
        """Remove the files to be removed, then move files and memories into place; return notes about omitted parts."""
        workspace, removed = Path(record.workspace), pending_import.removed
        expected = await anyio.to_thread.run_sync(read_expected, files.parent)
        notes = await self._remove_documents(record.id, removed, expected) if removed else []
        async with self._history.changing(record.id) as notice:
            try:
                if removed:
                    notes += await self._threads.run(record.id, remove_files, workspace, removed, expected)
                    # Noted, so that a retry does not remove files that a person has put there since.
                    await self._db.write(partial(imports.end_removal, import_id=pending_import.id), durable=True)
                    failpoints.reached("bundle.cleared")
                texts = PLACES.keys() - {DOCUMENTS}
                notes += await self._threads.run(record.id, place_files, files, texts, workspace, expected)
            finally:  # from now on the files belong to the importing user
                await self.attribute(pending_import, notice)
        notes += await self._threads.run(record.id, place_files, files, [DOCUMENTS], workspace, expected)
        owner = self._owners.of(pending_import.user_id, DomainSettings.model_validate(record.settings))
        return notes + await self._threads.run(record.id, import_fitting_memories, files, workspace, owner)

    async def _remove_files(self, pending_import: ImportRecord) -> None:
        await anyio.to_thread.run_sync(partial(shutil.rmtree, self.folder_of(pending_import.id), ignore_errors=True))

    async def _remove_documents(
        self, domain_id: str, removed: Sequence[str], expected: Mapping[str, str]
    ) -> list[Note]:
        by_document_path = {path.removeprefix(DOCUMENTS): path for path in removed if path.startswith(DOCUMENTS)}
        notes = []
        for document in await self._documents.list_of(domain_id, EVERY_DOCUMENT) if by_document_path else ():
            path = by_document_path.get(document.path)
            if path is None:
                continue
            if document.error_code != MISSING and expected.get(path, document.sha256) != document.sha256:
                notes.append(Note(path, "it stays: it was changed meanwhile"))
                continue
            await self._documents.delete(domain_id, document.id)
            failpoints.reached("bundle.removed")
        return notes

    async def attribute(self, pending_import: ImportRecord, notice: ChangeNotice) -> None:
        """Attribute the files of an import to its user in the history, if they can be read now."""
        try:
            await notice(pending_import.user_id)
        except AgenticRagError as exc:
            log.warning("the files of %s enter the history later: %s", pending_import.domain_id, exc)

    async def add_documents(self, domain_id: str) -> None:
        """Add the documents; the next scan of the folders adds those that fail now."""
        self._directory.expect_files(domain_id)
        try:
            for _ in range(MAX_LOOKS):
                if not await self._documents.rescan(domain_id):
                    break
        except AgenticRagError as exc:
            log.warning("the documents of %s are taken in later: %s", domain_id, exc)
        finally:
            self._directory.folder_seen(domain_id)

    # -- imports left by earlier processes and full disks -----------------------------------------------------

    async def finish(self) -> None:
        """Complete or undo the imports of an earlier process, and remove its temporary files."""
        kept_names = set()
        for pending_import in await self._db.read(imports.list_all):
            try:
                await self._directory.get(pending_import.domain_id)
            except NotFound:
                places = (self._folder / pending_import.id, self._workspace_of(pending_import))
                if await self._is_ours(*places) and not await self.undo(pending_import):
                    kept_names.add(pending_import.id)
                continue
            place = self.folder_of(pending_import.id)
            if await self._is_ours(place) and not await self._resume(pending_import):
                kept_names.add(place.name)
        await anyio.to_thread.run_sync(_remove_leftovers, self._folder, kept_names)

    async def resume(self) -> None:
        """Resume imports over domains that could not be completed when they were stored, because the disk was full."""
        for domain_id in {pending.domain_id for pending in await self._list_waiting()}:
            async with self._domains.changing(domain_id):
                for pending_import in await self._list_waiting():  # another import may have completed some of them
                    if pending_import.domain_id == domain_id:
                        await self._resume(pending_import)

    async def complete_earlier(self, domain_id: str) -> None:
        """Complete the pending imports of a domain before a newer one; the caller holds `Domains.changing`.

        Raises:
            WorkspaceRefused, StorageFull: an import cannot be completed yet.
        """
        for pending_import in await self._list_waiting():
            if pending_import.domain_id == domain_id:
                await self.complete(pending_import)

    async def _list_waiting(self) -> list[ImportRecord]:
        """Return this data folder's imports over domains that wait for their files."""
        candidates = [pending for pending in await self._db.read(imports.list_all) if pending.id not in self.busy]
        return await anyio.to_thread.run_sync(
            lambda: [pending for pending in candidates if self.folder_of(pending.id).is_dir()]
        )

    async def _resume(self, pending_import: ImportRecord) -> bool:
        try:
            for note in await self.complete(pending_import):
                log.warning("an import over %s: %s: %s", pending_import.domain_id, note.path, note.text)
        except AgenticRagError as exc:
            log.warning("an import over %s is not complete, and is tried again: %s", pending_import.domain_id, exc)
            return False
        return True

    async def _is_ours(self, *places: Path) -> bool:
        """Return whether an import belongs to this data folder, which then has one of the places.

        Several data folders may share a store.
        """
        return not self._db.shared or await anyio.to_thread.run_sync(lambda: any(place.is_dir() for place in places))


def _remove_leftovers(folder: Path, kept_names: Collection[str]) -> None:
    """Remove the temporary folders of killed processes."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name not in kept_names:
            shutil.rmtree(path, ignore_errors=True)
