"""Domains: named knowledge areas with their workspace, settings and versions.

Owns how they are made, changed and deleted, and their folders. What is read of them is the directory's. Knows no
document's bytes, no message and no request.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.to_thread
from sqlalchemy import Connection

from agentic_rag.access.auditing import audit
from agentic_rag.access.auditing import change as audited
from agentic_rag.directory.collection import collection_of
from agentic_rag.directory.directory import Directory
from agentic_rag.directory.server_map import enabled, our_entries, server_map
from agentic_rag.directory.settings import Admit, DomainSettings, Merged, merged
from agentic_rag.domains.vault import Vault
from agentic_rag.domains.workspaces import copy_template, make_workspace, remove_workspace
from agentic_rag.errors import NotFound, VersionConflict
from agentic_rag.forms import line, wire
from agentic_rag.store import conversations, domains, secrets, sessions
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.domains import DomainRecord
from agentic_rag.store.secrets import SecretRecord
from agentic_rag.tools.entries.reading import Note

MAX_NAME = 200
MAX_DESCRIPTION = 4_000


@dataclass(frozen=True, slots=True)
class DomainView:
    """A domain as a client sees it: settings with defaults, and the merged server map."""

    record: DomainRecord
    settings: dict[str, Any]
    documents: int


@dataclass(frozen=True, slots=True)
class Saved:
    """A stored domain, and what its admin should be told: what was changed to fit, what was not used."""

    record: DomainRecord
    changes: tuple[Note, ...] = ()
    warnings: tuple[Note, ...] = ()


class Sessions(Protocol):
    """The part of the runtime that domains need."""

    async def interrupt(self, session_id: str, *, turn_id: str | None = None, queued: bool = False) -> bool: ...
    async def drop(self, session_id: str) -> None: ...


class Domains:
    """The domains of one data folder; this process is the only one that changes them.

    Args:
        folder: where workspaces are made.
        check_roles: raises `InvalidInput` when one of the role ids does not exist for a workspace (blocking).
        drop_collection: removes the vectors of a domain.
        vault: seals the secrets in MCP entries.
        admission: for a domain's id and workspace, what decides which MCP entries may be stored (blocking).
        reranker_problem: for a reranker's name, why nothing would be reranked by it; empty when it can be (blocking).
    """

    def __init__(
        self,
        database: Database,
        directory: Directory,
        sessions: Sessions,
        folder: Path,
        check_roles: Callable[[Path, Sequence[tuple[str, str]]], None],
        drop_collection: Callable[[str], Awaitable[None]],
        vault: Vault,
        admission: Callable[[str, str], Admit],
        reranker_problem: Callable[[str], str] = lambda name: "",
    ) -> None:
        self._db = database
        self._directory = directory
        self._sessions = sessions
        self._folder = folder
        self._check_roles = check_roles
        self._drop_collection = drop_collection
        self._vault = vault
        self._admission = admission
        self._reranker_problem = reranker_problem
        self._merging: dict[str, anyio.Lock] = {}
        """Held from reading a record to writing what was merged from it."""
        self.before_delete: list[Callable[[str], Awaitable[None]]] = []
        """Awaited with the id before the records go: whoever works on a domain stops there."""
        self.servers_changed: list[Callable[[str, Mapping[str, str] | None], Awaitable[None]]] = []
        """Awaited with the id and the enabled servers, each with its `ServerSpec.entry_hash`, once they are stored;
        with None when the domain is being deleted and no turn of it runs any more."""

    async def create(self, name: str, description: str = "", settings: Mapping[str, Any] | None = None) -> Saved:
        """Make a domain with an empty workspace.

        Raises:
            InvalidInput, ServerReserved, CommandNotAllowed: a value does not fit; nothing was made.
        """
        return await self._insert(new_id("dom"), name, description, settings or {})

    async def load_template(self, template: Path) -> Saved:
        """Make the domain of a template: its id is the folder's name, ``domain.json`` holds name and settings."""
        workspace = self._folder / template.name
        about = json.loads(await anyio.to_thread.run_sync(lambda: (template / "domain.json").read_text("utf-8")))
        await anyio.to_thread.run_sync(copy_template, template, workspace)
        return await self._insert(template.name, about["name"], about.get("description", ""), about.get("settings", {}))

    async def _insert(self, domain_id: str, name: str, description: str, settings: Mapping[str, Any]) -> Saved:
        workspace = (self._folder / domain_id).absolute()
        admit = self._admission(domain_id, str(workspace))
        merge = partial(merged, {}, settings, {}, admit, replace_maps=True, secrets={})
        change = await anyio.to_thread.run_sync(merge)
        checked = change.settings
        await self._check_role_ids(workspace, checked, DomainSettings())
        created = now()
        record = DomainRecord(
            id=domain_id,
            name=line("name", name, MAX_NAME, required=True),
            description=line("description", description, MAX_DESCRIPTION, required=False, breaks=True),
            settings=checked.stored(),
            workspace=str(workspace),
            created_at=created,
            updated_at=created,
        )
        await anyio.to_thread.run_sync(make_workspace, workspace)
        sealed = self._sealed(domain_id, change)
        told = audited("domain.create", domain_id, settings=sorted(settings))

        def save(conn: Connection) -> None:
            domains.insert(conn, record)
            audit(conn, told)
            for row in sealed:
                secrets.put(conn, row)

        await self._db.write(save, durable=True)
        return Saved(record, change.changes, (*change.warnings, *await self._advice(checked, DomainSettings())))

    def _sealed(self, domain_id: str, change: Merged) -> list[SecretRecord]:
        return [self._vault.seal(domain_id, name, value) for name, value in change.servers.secrets.items()]

    async def view(self, record: DomainRecord) -> DomainView:
        """Return what a client sees of a domain. ``documents`` counts those that can be searched."""
        facts = await self._directory.facts(record.id)
        settings = DomainSettings.model_validate(record.settings)  # of this record, not of a later one
        shown = wire(settings)
        masks = await self._vault.masks(record.id) if settings.mcp_servers else {}
        shown["mcpServers"] = server_map(record, settings, facts, masks)
        return DomainView(record, shown, facts.count)

    async def update(
        self,
        domain_id: str,
        *,
        name: str | None = None,
        description: str | None = None,
        settings: Mapping[str, Any] | None = None,
        replace_maps: bool,
        version: int | None = None,
    ) -> Saved:
        """Merge a change (`settings.merged` has the rules) and return the record with its new version.

        Raises:
            NotFound: there is no such domain.
            VersionConflict: ``version`` is given and not the current one.
            InvalidInput, ServerReserved, CommandNotAllowed: a value does not fit; nothing was changed.
        """
        await self._directory.get(domain_id)
        async with self._merging.setdefault(domain_id, anyio.Lock()):
            while True:
                try:
                    return await self._update(domain_id, name, description, settings or {}, replace_maps, version)
                except VersionConflict:  # another process's: each one is a change that was stored, so this ends
                    self._forget(domain_id)
                    if version is not None:
                        raise

    async def _update(
        self,
        domain_id: str,
        name: str | None,
        description: str | None,
        change: Mapping[str, Any],
        replace_maps: bool,
        version: int | None,
    ) -> Saved:
        record = await self._directory.get(domain_id)
        if version is not None and version != record.version:
            raise VersionConflict(version, record.version)
        before = DomainSettings.model_validate(record.settings)
        known = await self._vault.values(domain_id)
        shown = our_entries(record, before)
        admit = self._admission(domain_id, record.workspace)
        merge = partial(merged, record.settings, change, shown, admit, replace_maps=replace_maps, secrets=known)
        found = await anyio.to_thread.run_sync(merge)  # programs are looked at
        settings = found.settings
        await self._check_role_ids(Path(record.workspace), settings, before)
        fields: domains.DomainFields = {"settings": settings.stored()}
        if name is not None:
            fields["name"] = line("name", name, MAX_NAME, required=True)
        if description is not None:
            fields["description"] = line("description", description, MAX_DESCRIPTION, required=False, breaks=True)

        sealed = self._sealed(domain_id, found)
        told = audited("domain.update", domain_id, fields=sorted(fields), settings=sorted(change))

        def save(conn: Connection) -> DomainRecord | None:
            domains.update(conn, domain_id, version=record.version, updated_at=now(), **fields)
            audit(conn, told)
            secrets.delete(conn, domain_id, found.servers.dropped)
            for row in sealed:
                secrets.put(conn, row)
            return domains.get(conn, domain_id)

        try:
            saved = await self._db.write(save, durable=True)
        finally:  # a cancelled writer does not know whether it was stored
            self._forget(domain_id)
        if saved is None:
            raise NotFound("domain", domain_id)
        if settings.mcp_servers != before.mcp_servers:
            await self._tell_servers(domain_id, settings)
        return Saved(saved, found.changes, (*found.warnings, *await self._advice(settings, before)))

    async def _advice(self, settings: DomainSettings, before: DomainSettings) -> list[Note]:
        """Return what an admin should know of a value that is stored although it may not work."""
        if settings.reranker is None or settings.reranker == before.reranker:
            return []
        problem = await anyio.to_thread.run_sync(self._reranker_problem, settings.reranker)
        return [Note("settings.reranker", problem)] if problem else []

    async def delete(self, domain_id: str, *, workspace: bool = False) -> None:
        """Remove a domain with its conversations, sessions, documents and vectors, after ending its turns.

        ``workspace``: remove its folder too. Cut off half way it can be repeated: the record goes last.

        Raises:
            NotFound: there is no such domain.
        """
        record = await self._directory.get(domain_id)
        try:
            with self._directory.hidden(domain_id):
                await self._remove(record, workspace)
        finally:
            self._merging.pop(domain_id, None)
            self._vault.changed(domain_id)

    async def _remove(self, record: DomainRecord, workspace: bool) -> None:
        domain_id = record.id
        for stop in self.before_delete:
            await stop(domain_id)
        owned = await self._db.read(lambda conn: conversations.ids_of_domain(conn, domain_id))
        for _, session_id in owned:
            await self._sessions.drop(session_id)
        await self._tell_servers(domain_id, None)
        await self._drop_collection(collection_of(domain_id))
        told = audited("domain.delete", domain_id, workspace=workspace)
        if workspace:
            await anyio.to_thread.run_sync(remove_workspace, self._folder, Path(record.workspace))

        def forget(conn: Connection) -> None:
            for conversation_id, session_id in conversations.ids_of_domain(conn, domain_id):
                sessions.delete(conn, session_id)
                conversations.delete(conn, conversation_id)
            domains.delete(conn, domain_id)
            audit(conn, told)

        await self._db.write(forget, durable=True)

    async def _tell_servers(self, domain_id: str, settings: DomainSettings | None) -> None:
        for tell in self.servers_changed:
            await tell(domain_id, None if settings is None else enabled(settings))

    async def interrupt_turns(self, domain_id: str) -> None:
        """Interrupt what runs in the domain's conversations."""
        for _, session_id in await self._db.read(lambda conn: conversations.ids_of_domain(conn, domain_id)):
            await self._sessions.interrupt(session_id)

    def _forget(self, domain_id: str) -> None:
        """Drop what is remembered of a domain and its secrets."""
        self._directory.forget(domain_id)
        self._vault.changed(domain_id)

    async def _check_role_ids(self, workspace: Path, settings: DomainSettings, before: DomainSettings) -> None:
        """Only changed ids are checked: a role file that went away must not block other changes."""
        wanted: list[tuple[str, str]] = []
        if settings.primary_role_id != before.primary_role_id:
            wanted.append(("settings.primaryRoleId", settings.primary_role_id))
        if settings.sub_role_ids != before.sub_role_ids:
            wanted += [(f"settings.subRoleIds.{at}", role) for at, role in enumerate(settings.sub_role_ids)]
        if wanted:
            await anyio.to_thread.run_sync(self._check_roles, workspace, wanted)
