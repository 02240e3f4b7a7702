"""Runs of sources: list the items, store new and changed ones as documents, and remove those that are gone.

One process runs a source at a time (`ExclusiveJobs`). A kill at any point loses and doubles nothing:

1. A run compares the list with the items' rows. A row is written after its document, so a repeated run reads at most
   one item again, and finds the document by its bytes.
2. Labels and source of a file are stored before the file is in the documents folder (`Intake`).
3. A document is removed before its item's row. A change of the source ends the run (`SourceRecord.run_id`).
"""

import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final

import anyio
from anyio.abc import TaskGroup
from sqlalchemy import Connection

from agentic_rag.access.users import ActiveUsers
from agentic_rag.base import failpoints
from agentic_rag.base.errors import (
    AgenticRagError,
    DocumentTooLarge,
    DocumentUnsupported,
    NotFound,
    QuotaExceeded,
    ServerUnavailable,
    SourceItemSilent,
    SourceOwnerGone,
    SourceUnreadable,
    StorageError,
    StorageFull,
    WorkspaceRefused,
    WorkspaceUnavailable,
)
from agentic_rag.base.forms import one_line
from agentic_rag.base.ids import DocumentId
from agentic_rag.base.json_form import Json
from agentic_rag.base.threads import DomainThreads
from agentic_rag.base.workers import attempt
from agentic_rag.directory.directory import Directory
from agentic_rag.directory.source_forms import FolderSource, McpSource, WebsiteSource
from agentic_rag.documents.documents import Documents
from agentic_rag.documents.files import Origin, split_name
from agentic_rag.domains.vault import Vault
from agentic_rag.operations.exclusive_jobs import ExclusiveJobs
from agentic_rag.runtime.core.calls import Policy
from agentic_rag.sources.folder import AllowedFolders, FolderReader
from agentic_rag.sources.items import (
    ItemContent,
    ItemGone,
    ItemReader,
    Patterns,
    RunNotes,
    SourceItem,
    date_of,
    file_name,
)
from agentic_rag.sources.mcp import McpReader, SourceServer
from agentic_rag.sources.sources import Sources
from agentic_rag.sources.website import website_reader
from agentic_rag.store import documents, sources
from agentic_rag.store.clock import later, new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.documents import HeldDocument
from agentic_rag.store.sources import RunCounts, SourceItemRecord, SourceKind, SourceRecord, SourceState
from agentic_rag.tools.launch.addresses import AddressRules
from agentic_rag.tools.launch.spec import spec_of
from agentic_rag.tools.lists import ToolLists
from agentic_rag.tools.pool import START_SECONDS, McpPool

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
MAX_AT_ONCE: Final = 4
"""Sources that one process runs at once, each of another domain."""
LIST_SECONDS: Final = 900.0
"""Seconds for the whole list of a source."""
RETRY_MINUTES: Final = 15
"""Minutes until a run that failed is repeated, if the source's interval is longer."""
SILENT_ITEMS: Final = 5
"""This many items in a row that do not arrive in time end a run."""
ROWS: Final = 500
"""Items of one statement."""
DUE_ROWS: Final = 1_000

_ENDS_RUN = (
    ServerUnavailable,
    SourceUnreadable,
    SourceOwnerGone,
    StorageError,
    StorageFull,
    QuotaExceeded,
    WorkspaceRefused,
    WorkspaceUnavailable,
)
"""Errors that do not belong to one item."""
_LASTING = (DocumentUnsupported, DocumentTooLarge)
"""Errors of an item that remain as long as its version stays the same."""


class Superseded(Exception):
    """The source was changed or deleted, or another run has begun: this run may write nothing more."""


class SourceRuns:
    """Runs the sources of all domains.

    ``changes`` reports changes by requests to this process. ``owner`` is this process's name in leases.
    """

    def __init__(
        self,
        database: Database,
        directory: Directory,
        documents: Documents,
        changes: Sources,
        people: ActiveUsers,
        vault: Vault,
        pool: McpPool,
        lists: ToolLists,
        addresses: AddressRules,
        folders: AllowedFolders,
        threads: DomainThreads,
        owner: str,
        *,
        look: float = LOOK_SECONDS,
    ) -> None:
        self._db = database
        self._directory = directory
        self._documents = documents
        self._changes = changes
        self._people = people
        self._vault = vault
        self._pool = pool
        self._lists = lists
        self._addresses = addresses
        self._folders = folders
        self._threads = threads
        self._jobs = ExclusiveJobs(database, owner)
        self._look_seconds = look
        self._busy: dict[str, str] = {}
        """The domains of the sources that this process runs now, by source."""

    async def run(self) -> None:
        """Run due sources until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                await attempt("looking for sources to run", partial(self._look, tasks))
                await self._changes.wait_changed(self._look_seconds)

    async def _look(self, tasks: TaskGroup) -> None:
        for source in await self._db.read(lambda conn: sources.list_due(conn, DUE_ROWS)):
            if len(self._busy) < MAX_AT_ONCE and source.domain_id not in self._busy.values():
                self._busy[source.id] = source.domain_id
                tasks.start_soon(self._serve, source.id)

    async def _serve(self, source_id: str) -> None:
        try:
            work = partial(self._jobs.run, f"source:{source_id}", partial(self.work, source_id))
            await attempt(f"running the source {source_id}", work)
        finally:
            self._busy.pop(source_id, None)

    async def work(self, source_id: str) -> None:
        """Run a source if it is still due, or finish its deletion. The caller holds its lease."""
        # Another process may have run the source since this one saw that it is due.
        due = await self._db.read(lambda conn: sources.list_due(conn, DUE_ROWS))
        source = next((candidate for candidate in due if candidate.id == source_id), None)
        if source is None:
            return
        try:
            if source.state is SourceState.DELETING:
                await self._delete(source)
                return
            run_id, at = new_id("run"), now()
            begun = await self._db.write(lambda conn: sources.begin(conn, source_id, run_id, at), durable=True)
            if begun is None:
                return
            failpoints.reached("source.begun")
            await _Run(self, begun).work()
        except Superseded:
            log.info("a run of the source %s was ended by a change of it", source_id)
        except NotFound as exc:  # the domain is being deleted
            log.info("the source %s is not run: %s", source_id, exc)

    async def _delete(self, source: SourceRecord) -> None:
        """Remove a source's documents, and then the source. Documents that another source also has stay with it."""
        for document in await self._db.read(lambda conn: documents.of_source(conn, source.id)):
            await self.drop_document(source, document.id)
            failpoints.reached("source.removed")
        await self._db.write(lambda conn: sources.delete(conn, source.id), durable=True)

    async def drop_document(self, source: SourceRecord, document_id: DocumentId, uri: str | None = None) -> bool:
        """Remove a document of a source. If another item has it, the document stays and belongs to that item's source.

        ``uri``: only this item of the source goes; None: all of them. Returns whether the document was removed.
        """

        def hand_over(conn: Connection) -> bool:
            for holder_id, holder_uri in sources.sources_with(conn, document_id):
                if holder_id != source.id or (uri is not None and holder_uri != uri):
                    documents.update(conn, document_id, source_id=holder_id, source_uri=holder_uri)
                    return True
            return False

        if await self._db.write(hand_over, durable=True):
            return False
        try:
            await self._documents.delete(source.domain_id, document_id)
        except NotFound:
            await self._directory.get(source.domain_id)  # raises if the domain is being deleted
        return True

    @asynccontextmanager
    async def reader_of(self, source: SourceRecord) -> AsyncIterator[ItemReader]:
        """Open the reader of a source.

        Raises:
            SourceOwnerGone, SourceUnreadable, InvalidInput, ServerUnavailable: the source cannot be read now.
        """
        domain = await self._directory.get(source.domain_id)
        limit = self._documents.max_bytes
        if source.kind is SourceKind.FOLDER:
            form = FolderSource.model_validate(source.config)
            yield FolderReader(self._folders.find(domain.id, form.path), form, domain.id, self._threads, limit)
        elif source.kind is SourceKind.WEBSITE:
            website = WebsiteSource.model_validate(source.config)
            async with website_reader(website, self._addresses.reach, limit) as reader:
                yield reader
        else:
            user = self._people.user_named(source.owner_id)
            if user is None or not user.administers(source.domain_id):
                raise SourceOwnerGone(source.owner_id)
            server = McpSource.model_validate(source.config)
            settings = await self._directory.settings(domain.id)
            entry = settings.mcp_servers.get(server.server)
            if entry is None or not entry.enabled:
                why = "is disabled" if entry is not None else "is no server of this domain any more"
                raise SourceUnreadable(f"the MCP server {server.server!r} {why}")
            policy = Policy(settings.rules_for("admin"))
            for use in (server.list_tool, server.read_tool):
                if use is not None and policy.denies(server.server, use.tool):
                    raise SourceUnreadable(f"the setting toolPolicy denies the tool {use.tool!r} of {server.server!r}")
            spec = spec_of(
                entry.with_variables(settings.variables),
                domain=domain.id,
                workspace=domain.workspace,
                user=user.id,
                secrets=await self._vault.values(domain.id),
            )
            # If the server cannot start, the first request fails with the reason.
            connection = (await self._pool.acquire([spec], START_SECONDS))[spec.name]
            redact = self._vault.redact.of(domain.id)
            yield McpReader(SourceServer(connection, spec, self._lists, redact), server, redact)

    @property
    def database(self) -> Database:
        """The database of the sources."""
        return self._db

    @property
    def documents(self) -> Documents:
        """The documents of all domains."""
        return self._documents

    def redact(self, domain_id: str, text: str) -> str:
        """Return a text for a domain's admins on one line, at most 500 characters, without the domain's secrets."""
        return one_line(self._vault.redact.of(domain_id)(text[:1_000]))[:500]


class _Run:
    """One run of one source."""

    def __init__(self, runs: SourceRuns, source: SourceRecord) -> None:
        self._runs = runs
        self._db = runs.database
        self._source = source
        self._counts = RunCounts()
        self._notes = RunNotes()
        self._documents: Mapping[str, HeldDocument] = {}
        """The documents of the domain when the run began, by id."""
        self._silent_items = 0
        """Items that did not arrive in time since the last one that did."""

    async def work(self) -> None:
        """Do the run, and store how it ended."""
        problem: AgenticRagError | None = None
        try:
            async with self._runs.reader_of(self._source) as reader:
                await self._read_all(reader)
        except NotFound:  # the domain is being deleted, and its source with it: there is nothing to store
            raise
        except Superseded:
            raise
        except AgenticRagError as exc:
            problem = exc
        except Exception:
            # Without a stored end the source would stay due, and every look would repeat the whole run.
            log.exception("the run of the source %s failed", self._source.id)
            problem = SourceUnreadable("an internal error, which the server's log describes")
        await self._end(problem)

    async def _end(self, problem: AgenticRagError | None) -> None:
        source = self._source
        # A server that is down for an hour must not leave the documents of a weekly source a week old.
        minutes = source.interval_minutes if problem is None else min(source.interval_minutes, RETRY_MINUTES)
        redact = partial(self._runs.redact, source.domain_id)
        values: Json = {
            "state": SourceState.IDLE,
            "ended_at": now(),
            "next_at": later(60 * minutes),
            "problem_code": "" if problem is None else problem.code,
            "problem": "" if problem is None else redact(str(problem)),
            "notes": tuple(redact(note) for note in self._notes.texts),
            "counts": self._counts,
        }
        await self._write(lambda conn: None, values)
        failpoints.reached("source.ended")

    async def _write(self, change: Callable[[Connection], object], values: Json | None = None) -> None:
        """Run a transaction if this run may still write.

        Raises:
            Superseded: the source was changed or deleted.
        """
        source = self._source

        def store(conn: Connection) -> None:
            current = sources.lock(conn, source.id)
            if current is None or current.run_id != source.run_id:
                raise Superseded(source.id)
            change(conn)
            sources.update(conn, source.id, **(values or {"counts": self._counts}))

        await self._db.write(store, durable=True)

    async def _read_all(self, reader: ItemReader) -> None:
        source = self._source
        try:
            with anyio.fail_after(LIST_SECONDS):
                listing = await reader.list_items(source.max_items)
        except TimeoutError as exc:
            raise SourceUnreadable(f"its list was not complete after {LIST_SECONDS:g} s") from exc
        for note in listing.notes:
            self._notes.add(note)
        failpoints.reached("source.listed")
        excluded = Patterns(source.exclude)
        items = [item for item in listing.items if not excluded.match(item.uri)]
        rows = await self._db.read(lambda conn: sources.items_of(conn, source.id))
        self._documents = await self._db.read(lambda conn: documents.list_held(conn, source.domain_id))
        self._counts = RunCounts(listed=len(items))
        for item in await self._skip_unchanged(items, rows):
            await self._read(reader, item, rows.get(item.uri))
        # Last, so that a document whose item was only renamed is still there when its bytes arrive under the new name.
        if listing.complete:
            await self._remove_missing({item.uri for item in items}, rows)

    async def _skip_unchanged(
        self, items: Sequence[SourceItem], rows: Mapping[str, SourceItemRecord]
    ) -> list[SourceItem]:
        """Return the items that have to be read; those that failed before come last, so that others do not wait."""
        to_read, failed_before = list[SourceItem](), list[SourceItem]()
        unchanged, failed = list[str](), 0
        for item in items:
            row = rows.get(item.uri)
            if row is None or not item.version or row.version != item.version:
                (failed_before if row is not None and row.error_code else to_read).append(item)
            elif row.error_code:  # this version can never be read: see `_LASTING`
                unchanged.append(item.uri)
                failed += 1
            elif self._is_current(row):
                unchanged.append(item.uri)
            else:
                to_read.append(item)
        at = now()
        self._counts = replace(self._counts, unchanged=len(unchanged) - failed, failed=failed)
        for start in range(0, len(unchanged), ROWS):
            uris = unchanged[start : start + ROWS]
            await self._write(partial(sources.note_seen, source_id=self._source.id, uris=uris, at=at))
        return [*to_read, *failed_before]

    def _is_current(self, row: SourceItemRecord) -> bool:
        """Return whether the domain still has the document with the bytes of an item."""
        document = self._documents.get(row.document_id)
        return document is not None and document.sha256 == row.sha256

    async def _read(self, reader: ItemReader, item: SourceItem, row: SourceItemRecord | None) -> None:
        """Read an item and store its document. An error of the item costs only the item.

        ``row``: the stored record of the item; None if it is new.
        """
        source = self._source
        current = row if row is not None and not row.error_code and self._is_current(row) else None
        at = now()
        new_row = SourceItemRecord(source_id=source.id, uri=item.uri, domain_id=source.domain_id, seen_at=at)
        if row is not None:
            new_row = row.replace(seen_at=at, missing_since=None, error_code="", error="")
        new_row = new_row.replace(name=one_line(item.name[:300]), version=item.version)
        try:
            async with reader.read_item(item, current) as content:
                if content is None:
                    assert current is not None
                    new_row = new_row.replace(version=current.version)
                    self._counts = replace(self._counts, unchanged=self._counts.unchanged + 1)
                else:
                    new_row = await self._store(item, content, new_row, row, current)
            self._silent_items = 0
        except ItemGone:
            # The list was older than the item's removal. Its document stays for the grace period, like that of an item
            # that a list lacks.
            if row is not None:
                await self._write(partial(sources.note_missing, source_id=source.id, uris=[item.uri], at=at))
                self._counts = replace(self._counts, missing=self._counts.missing + 1)
            else:
                self._notes.add(f"{item.uri[:150]} does not exist at the source")
            return
        except (NotFound, *_ENDS_RUN):
            raise
        except AgenticRagError as exc:
            new_row = self._note_failure(new_row, exc)
        await self._write(partial(sources.put_item, item=new_row))
        failpoints.reached("source.noted")
        if self._silent_items >= SILENT_ITEMS:
            raise SourceUnreadable(f"{SILENT_ITEMS} items in a row did not arrive; the last one: {new_row.error[:200]}")

    def _note_failure(self, new_row: SourceItemRecord, exc: AgenticRagError) -> SourceItemRecord:
        """Return the row of an item that could not be read. The document with its earlier bytes stays."""
        self._counts = replace(self._counts, failed=self._counts.failed + 1)
        self._silent_items = self._silent_items + 1 if isinstance(exc, SourceItemSilent) else 0
        text = self._runs.redact(self._source.domain_id, str(exc))
        # Without a version, the next run reads the item again.
        version = new_row.version if isinstance(exc, _LASTING) else ""
        return new_row.replace(error_code=exc.code, error=text, version=version)

    async def _store(
        self,
        item: SourceItem,
        content: ItemContent,
        new_row: SourceItemRecord,
        row: SourceItemRecord | None,
        current: SourceItemRecord | None,
    ) -> SourceItemRecord:
        """Store the content of an item as a document, and return the item's row.

        ``row`` is the stored row, and ``current`` the same row if the domain still has the item's document.
        """
        source = self._source
        name = file_name(item, content)
        replaced_id = None if row is None else await self._replaceable(row, name)
        folder = f"{source.folder}/{item.path}" if item.path else source.folder
        modified = item.modified or content.modified or ""
        origin = Origin(source.id, item.uri, folder, replaced_id, date_of(modified))
        version = item.version if content.version is None else content.version
        async with await self._runs.documents.receive(source.domain_id, name, origin=origin) as incoming:
            async for chunk in content.chunks:
                await incoming.write(chunk)
            digest = await incoming.digest()
            self._counts = replace(self._counts, fetched=self._counts.fetched + 1)
            if current is not None and digest == current.sha256:
                self._counts = replace(self._counts, unchanged=self._counts.unchanged + 1)
                return new_row.replace(version=version)
            failpoints.reached("source.fetched")
            document = await incoming.finish()
        self._counts = replace(self._counts, changed=self._counts.changed + 1)
        failpoints.reached("source.stored")
        if row is not None and row.document_id not in ("", document.id):
            await self._drop_document_of(row)
        return new_row.replace(version=version, sha256=digest, document_id=document.id)

    async def _replaceable(self, row: SourceItemRecord, name: str) -> DocumentId | None:
        """Return the document of an item if it can get the item's new bytes.

        That is a document which this source added, which no other item has, and whose ending stays the same.
        """
        document_id = DocumentId(row.document_id)
        document = await self._db.read(lambda conn: documents.get(conn, document_id))
        if document is None or document.source_id != self._source.id:
            return None
        if split_name(document.name)[1].lower() != split_name(name)[1].lower():
            return None
        holders = await self._db.read(lambda conn: sources.sources_with(conn, document_id))
        return document.id if holders == [(row.source_id, row.uri)] else None

    async def _drop_document_of(self, row: SourceItemRecord) -> None:
        """Remove the document of an item's earlier bytes, unless it is a person's or another item has it."""
        document_id = DocumentId(row.document_id)
        document = await self._db.read(lambda conn: documents.get(conn, document_id))
        if document is not None and document.source_id == self._source.id:
            await self._runs.drop_document(self._source, document_id, row.uri)

    async def _remove_missing(self, listed: Collection[str], rows: Mapping[str, SourceItemRecord]) -> None:
        """Note the items that a complete list lacks, and remove those that are missing for the grace period."""
        source, at = self._source, now()
        missing = [uri for uri in rows if uri not in listed]
        for start in range(0, len(missing), ROWS):
            uris = missing[start : start + ROWS]
            await self._write(partial(sources.note_missing, source_id=source.id, uris=uris, at=at))
        self._counts = replace(self._counts, missing=self._counts.missing + len(missing))
        before = later(-3_600 * source.grace_hours)
        while expired := await self._db.read(lambda conn: sources.list_expired(conn, source.id, before, ROWS)):
            for row in expired:
                await self._write(lambda conn: None)  # ends here if the source was changed
                # The document goes first: after a kill in between, the next run finds the row and continues.
                if row.document_id:
                    await self._drop_document_of(row)
                failpoints.reached("source.removed")
                counts = self._counts
                self._counts = replace(counts, missing=counts.missing - 1, removed=counts.removed + 1)
                await self._write(partial(sources.delete_item, source_id=source.id, uri=row.uri))
