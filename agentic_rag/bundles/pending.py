"""Imports that are decided and not all in place: they are ended, now or later, or taken back.

Owns their rows and folders. A new domain's row says that its workspace may be there without it; over a domain, that its
settings are stored and its files follow, from the folder ``{id}.over``. What was removed once is not removed again.
"""

import logging
import shutil
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from agentic_rag import failpoints
from agentic_rag.bundles.contents import PLACES
from agentic_rag.bundles.form import DOCUMENTS
from agentic_rag.bundles.placing import Owners, bring_files, bring_what_fits, read_expected, remove_files
from agentic_rag.directory.directory import Directory
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.documents.documents import Documents
from agentic_rag.documents.intake import MISSING
from agentic_rag.domains.domains import Domains
from agentic_rag.domains.file_history import FileHistory, Notice
from agentic_rag.domains.workspaces import remove_workspace
from agentic_rag.errors import AgenticRagError, NotFound
from agentic_rag.store import domains, imports
from agentic_rag.store.database import Database
from agentic_rag.store.domains import DomainRecord
from agentic_rag.store.imports import ImportRecord
from agentic_rag.threads import DomainThreads
from agentic_rag.tools.entries.reading import Note

log = logging.getLogger(__name__)

MAX_LOOKS = 4
"""Into a documents folder after an import: of two names that swapped their bytes, one waits for the other's."""


class PendingImports:
    """The imports of one data folder that are under way. ``folder``: where they lie; ``workspaces``: of domains."""

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
        """Imports over domains that this process is at, from before their row is there."""

    def folder_of(self, import_id: str) -> Path:
        """Return where the files of an import over a domain wait for their places."""
        return self._folder / f"{import_id}.over"

    # -- one import -------------------------------------------------------------------------------------------

    async def take_back(self, under_way: ImportRecord) -> bool:
        """Remove what was put in place of a domain that was not made; one that was, stays. False: not now."""
        try:
            if await self._db.read(lambda conn: domains.get(conn, under_way.domain_id)) is None:
                target = self._place_of(under_way)
                await anyio.to_thread.run_sync(remove_workspace, self._workspaces, target)
            await self._db.write(lambda conn: imports.delete(conn, under_way.id), durable=True)
        except (AgenticRagError, OSError) as exc:
            log.warning("what is left of the import %s is removed by the next start: %s", under_way.id, exc)
            return False
        return True

    def _place_of(self, under_way: ImportRecord) -> Path:
        """Return where the workspace of a new domain lies."""
        return (self._workspaces / under_way.domain_id).absolute()

    async def give_up(self, under_way: ImportRecord) -> None:
        """Forget the files of an import that was not stored; where nobody knows whether it was, the next start does."""
        try:
            left = await self._db.read(imports.list_all)
        except AgenticRagError:
            return
        if under_way.id not in [each.id for each in left]:
            await self._drop(under_way)

    async def end(self, under_way: ImportRecord) -> list[Note]:
        """Bring the files of an import whose settings are stored, then forget it; return what was left out of it.

        Done twice it is the same.

        Raises:
            WorkspaceRefused, StorageFull: `resume` goes on with it.
        """
        record = await self._directory.get(under_way.domain_id)
        files = self.folder_of(under_way.id) / "files"
        if not await anyio.to_thread.run_sync(files.is_dir):  # by hand, or a restore of the store alone
            log.warning("an import over %s has lost its files: nothing more is brought or removed", record.id)
            await self._db.write(partial(imports.delete, import_id=under_way.id), durable=True)
            return []
        notes = await self._bring(under_way, record, files)
        failpoints.reached("bundle.applied")
        await self._db.write(partial(imports.delete, import_id=under_way.id), durable=True)
        failpoints.reached("bundle.done")
        await self._drop(under_way)
        await self.follow(record.id)
        return notes

    async def _bring(self, under_way: ImportRecord, record: DomainRecord, files: Path) -> list[Note]:
        """Remove what is to go, and bring the files and memories; return what was left out."""
        workspace, removed = Path(record.workspace), under_way.removed
        expected = await anyio.to_thread.run_sync(read_expected, files.parent)
        notes = await self._remove_documents(record.id, removed, expected) if removed else []
        async with self._history.changing(record.id) as notice:
            try:
                if removed:
                    notes += await self._threads.run(record.id, remove_files, workspace, removed, expected)
                    await self._db.write(partial(imports.end_removal, import_id=under_way.id), durable=True)
                    failpoints.reached("bundle.cleared")
                texts = PLACES.keys() - {DOCUMENTS}
                notes += await self._threads.run(record.id, bring_files, files, texts, workspace, expected)
            finally:  # what there is by now is the importer's
                await self.note(under_way, notice)
        notes += await self._threads.run(record.id, bring_files, files, [DOCUMENTS], workspace, expected)
        owner = self._owners.of(under_way.user_id, DomainSettings.model_validate(record.settings))
        return notes + await self._threads.run(record.id, bring_what_fits, files, workspace, owner)

    async def _drop(self, under_way: ImportRecord) -> None:
        await anyio.to_thread.run_sync(partial(shutil.rmtree, self.folder_of(under_way.id), ignore_errors=True))

    async def _remove_documents(
        self, domain_id: str, removed: Sequence[str], expected: Mapping[str, str]
    ) -> list[Note]:
        wanted = {path.removeprefix(DOCUMENTS): path for path in removed if path.startswith(DOCUMENTS)}
        notes = []
        for document in await self._documents.list_of(domain_id) if wanted else ():
            path = wanted.get(document.path)
            if path is None:
                continue
            if document.error_code != MISSING and expected.get(path, document.sha256) != document.sha256:
                notes.append(Note(path, "it stays: it was changed meanwhile"))
                continue
            await self._documents.delete(domain_id, document.id)
            failpoints.reached("bundle.removed")
        return notes

    async def note(self, under_way: ImportRecord, notice: Notice) -> None:
        """Have the files of an import be its user's in the history, if they can be looked at now."""
        try:
            await notice(under_way.user_id)
        except AgenticRagError as exc:
            log.warning("the files of %s enter the history later: %s", under_way.domain_id, exc)

    async def follow(self, domain_id: str) -> None:
        """Take the documents in; what cannot be now is by the next look into the folders."""
        self._directory.expect_files(domain_id)
        try:
            for _ in range(MAX_LOOKS):
                if not await self._documents.rescan(domain_id):
                    break
        except AgenticRagError as exc:
            log.warning("the documents of %s are taken in later: %s", domain_id, exc)
        finally:
            self._directory.folder_seen(domain_id)

    # -- those that earlier processes, and full disks, left ----------------------------------------------------

    async def finish(self) -> None:
        """End or take back what an earlier process left, and remove what it was taking in."""
        left = set()
        for under_way in await self._db.read(imports.list_all):
            try:
                await self._directory.get(under_way.domain_id)
            except NotFound:
                places = (self._folder / under_way.id, self._place_of(under_way))
                if await self._is_ours(*places) and not await self.take_back(under_way):
                    left.add(under_way.id)
                continue
            kept = self.folder_of(under_way.id)
            if await self._is_ours(kept) and not await self._resume(under_way):
                left.add(kept.name)
        await anyio.to_thread.run_sync(_sweep, self._folder, left)

    async def resume(self) -> None:
        """Go on with imports over domains that could not be ended when they were stored: there was no room."""
        for domain_id in {each.domain_id for each in await self._waiting()}:
            async with self._domains.changing(domain_id):
                for under_way in await self._waiting():  # another import may have ended some of them
                    if under_way.domain_id == domain_id:
                        await self._resume(under_way)

    async def end_earlier(self, domain_id: str) -> None:
        """End what waits of a domain before something newer comes over it; `Domains.changing` is held.

        Raises:
            WorkspaceRefused, StorageFull: it cannot be ended yet.
        """
        for under_way in await self._waiting():
            if under_way.domain_id == domain_id:
                await self.end(under_way)

    async def _waiting(self) -> list[ImportRecord]:
        """Return those over domains that wait for their files, of this data folder."""
        found = [each for each in await self._db.read(imports.list_all) if each.id not in self.busy]
        return await anyio.to_thread.run_sync(lambda: [each for each in found if self.folder_of(each.id).is_dir()])

    async def _resume(self, under_way: ImportRecord) -> bool:
        try:
            for note in await self.end(under_way):
                log.warning("an import over %s: %s: %s", under_way.domain_id, note.path, note.text)
        except AgenticRagError as exc:
            log.warning("an import over %s is not complete, and is tried again: %s", under_way.domain_id, exc)
            return False
        return True

    async def _is_ours(self, *places: Path) -> bool:
        """Whether an import is of this data folder, where it has one of the places; several may share a store."""
        return not self._db.shared or await anyio.to_thread.run_sync(lambda: any(each.is_dir() for each in places))


def _sweep(folder: Path, kept: Collection[str]) -> None:
    """Remove what killed processes were taking in."""
    for each in folder.iterdir() if folder.is_dir() else ():
        if each.name not in kept:
            shutil.rmtree(each, ignore_errors=True)
