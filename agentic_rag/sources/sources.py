"""Sources of domains: creating, changing and deleting them, and what an admin sees of them.

Owns the checks of a source's values, and the labels of its documents. `runs` does the work.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import anyio
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.users import ActiveUsers, User
from agentic_rag.base.errors import InvalidInput, LimitReached, NotFound, SourceExists
from agentic_rag.base.forms import line
from agentic_rag.base.ids import DocumentId
from agentic_rag.base.json_form import Json
from agentic_rag.directory.directory import Directory
from agentic_rag.directory.source_forms import (
    FolderSource,
    McpSource,
    SourceChange,
    SourceForm,
    WebsiteSource,
    free_folder,
)
from agentic_rag.sources.folder import AllowedFolders
from agentic_rag.sources.website import check_website
from agentic_rag.store import documents, sources
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.sources import MAX_SOURCES, SourceItemRecord, SourceKind, SourceRecord, SourceState
from agentic_rag.tools.launch.addresses import AddressRules

MAX_ROWS = 500
"""Maximum number of documents whose labels one statement reads."""


@dataclass(frozen=True, slots=True)
class ShownSource:
    """A source with the number of its items, and of those with an error."""

    record: SourceRecord
    items: int
    failed: int


class Sources:
    """The sources of all domains."""

    def __init__(
        self,
        database: Database,
        directory: Directory,
        people: ActiveUsers,
        addresses: AddressRules,
        folders: AllowedFolders,
    ) -> None:
        self._db = database
        self._directory = directory
        self._people = people
        self._addresses = addresses
        self._folders = folders
        self._changed = anyio.Event()

    async def wait_changed(self, seconds: float) -> None:
        """Wait until a request has changed a source in this process, ``seconds`` at most."""
        with anyio.move_on_after(seconds):
            await self._changed.wait()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def list_of(self, domain_id: str) -> list[ShownSource]:
        """Return the sources of a domain by name.

        Raises:
            NotFound: there is no such domain.
        """
        domain = await self._directory.get(domain_id)

        def read(conn: Connection) -> list[ShownSource]:
            counts = sources.count_items(conn, domain.id)
            records = sources.of_domain(conn, domain.id)
            return [ShownSource(record, *counts.get(record.id, (0, 0))) for record in records]

        return await self._db.read(read)

    async def get(self, domain_id: str, source_id: str) -> ShownSource:
        """Return a source of a domain.

        Raises:
            NotFound: there is no such source.
        """
        source = next((shown for shown in await self.list_of(domain_id) if shown.record.id == source_id), None)
        if source is None:
            raise NotFound("source", source_id)
        return source

    async def create(self, user: User, domain_id: str, form: SourceForm) -> ShownSource:
        """Create a source, whose first run begins soon.

        Raises:
            InvalidInput: a value is invalid.
            NotFound: there is no such domain.
            LimitReached: the domain has `MAX_SOURCES` sources.
            SourceExists: the domain has a source of this name.
        """
        domain = await self._directory.get(domain_id)
        kind, config = await self._check_kind(user, domain_id, form)
        name = line("name", form.name, 200, required=True)
        at = now()
        record = SourceRecord(
            id=new_id("src"),
            domain_id=domain.id,
            name=name,
            kind=kind,
            config=config,
            folder="",
            labels=form.labels,
            exclude=form.exclude,
            interval_minutes=form.interval_minutes,
            grace_hours=form.grace_hours,
            max_items=form.max_items,
            enabled=form.enabled,
            owner_id=user.id,
            next_at=at,
            created_at=at,
            updated_at=at,
        )
        audit_entry = change("source.create", record.id, domainId=domain.id, kind=kind.value, labels=form.labels)

        def store(conn: Connection) -> SourceRecord:
            existing = sources.of_domain(conn, domain.id)
            if len(existing) >= MAX_SOURCES:
                raise LimitReached("sources", MAX_SOURCES)
            stored = record.replace(folder=free_folder(name, [source.folder for source in existing]))
            stored.insert(conn)
            audit(conn, audit_entry)
            return stored

        try:
            stored = await self._db.write(store, durable=True)
        except IntegrityError as exc:
            raise SourceExists(name) from exc
        self._note_change()
        return ShownSource(stored, 0, 0)

    async def change(self, user: User, domain_id: str, source_id: str, form: SourceChange) -> ShownSource:
        """Change a source, and the labels of its documents in the same transaction.

        A run in progress stops, and another one begins with the new values. From now on, MCP servers are called for
        this user.

        Raises:
            InvalidInput, NotFound, SourceExists: as `create`.
        """
        before = (await self.get(domain_id, source_id)).record
        values: Json = {name: value for name in SourceChange.model_fields if (value := getattr(form, name)) is not None}
        if "name" in values:
            values["name"] = line("name", values["name"], 200, required=True)
        configured = {kind.value for kind in SourceKind} & values.keys()
        if configured - {before.kind.value}:
            raise InvalidInput(
                min(configured - {before.kind.value}), f"this source is of the kind {before.kind.value}."
            )
        if configured:
            _, values["config"] = await self._check_kind(user, domain_id, form)
            del values[before.kind.value]
        elif before.kind is SourceKind.MCP:
            self._check_owner(user)
        audit_entry = change("source.change", source_id, domainId=domain_id, fields=sorted(values))
        at = now()

        def store(conn: Connection) -> None:
            current = sources.lock(conn, source_id)
            if current is None or current.state is SourceState.DELETING:
                raise NotFound("source", source_id)
            next_run = {"requested": True} if values.get("enabled", current.enabled) else {}
            no_run = {"run_id": "", "state": SourceState.IDLE}  # a run in progress stops at its next write
            sources.update(conn, source_id, **values, **next_run, **no_run, owner_id=user.id, updated_at=at)
            if "labels" in values:
                _relabel(conn, current, values["labels"])
            audit(conn, audit_entry)

        try:
            await self._db.write(store, durable=True)
        except IntegrityError as exc:
            raise SourceExists(str(values.get("name"))) from exc
        if "labels" in values:
            self._directory.collection_changed(domain_id)
        self._note_change()
        return await self.get(domain_id, source_id)

    async def delete(self, domain_id: str, source_id: str, *, keep_documents: bool) -> None:
        """Delete a source. Its documents stay, or a run removes them and then the source.

        Raises:
            NotFound: there is no such source.
        """
        await self.get(domain_id, source_id)
        audit_entry = change("source.delete", source_id, domainId=domain_id, keepDocuments=keep_documents)

        def store(conn: Connection) -> None:
            if sources.lock(conn, source_id) is None:
                raise NotFound("source", source_id)
            if keep_documents:
                documents.release_source(conn, source_id)
                sources.delete(conn, source_id)
            else:
                # `SourceRuns` removes the documents: they may be many, and a removal also changes the index.
                sources.update(conn, source_id, state=SourceState.DELETING, run_id="", updated_at=now())
            audit(conn, audit_entry)

        await self._db.write(store, durable=True)
        self._note_change()

    async def run_now(self, domain_id: str, source_id: str) -> ShownSource:
        """Request a run, also of a disabled source. It begins within seconds.

        Raises:
            NotFound: there is no such source.
        """
        await self.get(domain_id, source_id)
        audit_entry = change("source.run", source_id, domainId=domain_id)

        def store(conn: Connection) -> None:
            if sources.update(conn, source_id, requested=True):
                audit(conn, audit_entry)

        await self._db.write(store, durable=True)
        self._note_change()
        return await self.get(domain_id, source_id)

    async def items(
        self, domain_id: str, source_id: str, after: str, limit: int, *, failed: bool
    ) -> list[SourceItemRecord]:
        """Return items of a source by address, those after ``after``. ``failed``: only those with an error.

        Raises:
            NotFound: there is no such source.
        """
        await self.get(domain_id, source_id)
        return await self._db.read(lambda conn: sources.list_items(conn, source_id, after, limit, failed=failed))

    async def _check_kind(self, user: User, domain_id: str, form: SourceForm | SourceChange) -> tuple[SourceKind, Json]:
        """Return the kind of a form and its checked configuration."""
        parts: list[McpSource | FolderSource | WebsiteSource] = [
            part for part in (form.mcp, form.folder, form.website) if part is not None
        ]
        if len(parts) != 1:
            raise InvalidInput("body", "exactly one of mcp, folder and website is needed.")
        part = parts[0]
        if isinstance(part, McpSource):
            kind = SourceKind.MCP
            self._check_owner(user)
            await self._check_server(domain_id, part)
        elif isinstance(part, FolderSource):
            kind = SourceKind.FOLDER
            self._folders.find(domain_id, part.path)
        else:
            kind = SourceKind.WEBSITE
            check_website(part, self._addresses.reach)
        return kind, part.model_dump(mode="json", by_alias=True)

    def _check_owner(self, user: User) -> None:
        if self._people.user_named(user.id) is None:
            problem = "an MCP server is called for the user who saves the source; use a key of that user."
            raise InvalidInput("owner", problem)

    async def _check_server(self, domain_id: str, form: McpSource) -> None:
        settings = await self._directory.settings(domain_id)
        entry = settings.mcp_servers.get(form.server)
        if entry is None:
            names = ", ".join(sorted(settings.mcp_servers)[:20]) or "none"
            raise InvalidInput("mcp.server", f"{form.server[:100]!r} is no MCP server of this domain; it has: {names}.")
        if (form.list_tool is None) != (form.read_tool is None):
            missing = "readTool" if form.read_tool is None else "listTool"
            raise InvalidInput(f"mcp.{missing}", "a source by tools needs one that lists and one that reads.")


def _relabel(conn: Connection, source: SourceRecord, labels: Sequence[str]) -> None:
    """Give a source's documents its new labels. Former labels go, unless another source gives them as well."""
    added, removed = set(labels) - set(source.labels), set(source.labels) - set(labels)
    # Documents that the source added, and those that already had the bytes of one of its items.
    added_by_it = {document.id for document in documents.of_source(conn, source.id)}
    ids = sorted(added_by_it | sources.documents_of(conn, source.id))
    for start in range(0, len(ids), MAX_ROWS):
        part = ids[start : start + MAX_ROWS]
        labels_of_others = sources.labels_of_others(conn, source.id, part)
        for document_id in part:
            document = documents.get(conn, DocumentId(document_id))
            if document is None:
                continue
            remaining = set(document.labels) - (removed - labels_of_others.get(document_id, set()))
            new_labels = tuple(sorted(remaining | added))
            if new_labels != document.labels:
                documents.update(conn, document.id, labels=new_labels)
    if ids:
        documents.announce(conn, source.domain_id)
