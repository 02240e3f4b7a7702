"""Domains: named knowledge areas with their workspace, settings and versions.

Owns how they are made and changed, and their folders. What is read of them is the directory's; how they are deleted
is `operations.deletion`'s. Knows no document, no message and no request.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

import anyio
from sqlalchemy import Connection

from agentic_rag.access.auditing import audit
from agentic_rag.access.auditing import change as audited
from agentic_rag.directory.directory import Directory
from agentic_rag.directory.server_map import own_documents, server_map
from agentic_rag.directory.settings import DomainSettings, MergedSettings, merge_settings
from agentic_rag.domains.lifecycle import DomainLifecycle
from agentic_rag.domains.vault import Vault, check_limits
from agentic_rag.domains.workspaces import copy_template, make_workspace
from agentic_rag.errors import InvalidInput, NotFound, VersionConflict
from agentic_rag.forms import line, to_json
from agentic_rag.json_form import Json
from agentic_rag.store import domains, secrets
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.domains import DomainRecord
from agentic_rag.store.secrets import SecretRecord
from agentic_rag.threads import DomainThreads
from agentic_rag.tools.entries.reading import Note
from agentic_rag.tools.launch.policy import LaunchPolicy

MAX_NAME = 200
MAX_DESCRIPTION = 4_000


@dataclass(frozen=True, slots=True)
class DomainView:
    """A domain as a client sees it: settings with defaults, and the merged server map."""

    record: DomainRecord
    settings: Json
    documents: int


@dataclass(frozen=True, slots=True)
class Saved:
    """A stored domain, and what its admin should be told: what was changed to fit, what was not used."""

    record: DomainRecord
    changes: tuple[Note, ...] = ()
    warnings: tuple[Note, ...] = ()


ModelRefusal = Callable[[str], Awaitable[str | None]]


async def refuse_no_model(name: str) -> None:
    """Take every name, where no model is asked."""


class Domains:
    """The domains of one data folder; this process is the only one that changes them.

    Args:
        folder: where workspaces are made.
        vault: seals the secrets in MCP entries.
        policy: decides which MCP entries may be stored.
        lifecycle: what others have to say to a change, and do after it.
        threads: where folders are looked at and made.
        default_model: what answers in a domain that names none; empty: no language model at all.
        model_refusal: says why a domain cannot name a model, None when it can.
    """

    def __init__(
        self,
        database: Database,
        directory: Directory,
        folder: Path,
        vault: Vault,
        policy: LaunchPolicy,
        lifecycle: DomainLifecycle,
        threads: DomainThreads,
        default_model: str = "",
        model_refusal: ModelRefusal = refuse_no_model,
    ) -> None:
        self._db = database
        self._directory = directory
        self._folder = folder
        self._vault = vault
        self._policy = policy
        self._lifecycle = lifecycle
        self._default_model = default_model
        self._threads = threads
        self._model_refusal = model_refusal
        self._merging: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        """Held from reading a record to writing what was merged from it."""

    async def create(self, name: str, description: str = "", settings: Json | None = None) -> Saved:
        """Make a domain with an empty workspace.

        Raises:
            InvalidInput, ServerReserved, CommandNotAllowed: a value does not fit; nothing was made.
        """
        return await self._insert(new_id("dom"), name, description, settings or {})

    async def load_template(self, template: Path) -> Saved:
        """Make the domain of a template: its id is the folder's name, ``domain.json`` holds name and settings."""
        workspace = self._folder / template.name
        about = json.loads(await self._threads.run(template.name, (template / "domain.json").read_text, "utf-8"))
        await self._threads.run(template.name, copy_template, template, workspace)
        return await self._insert(template.name, about["name"], about.get("description", ""), about.get("settings", {}))

    async def _insert(self, domain_id: str, name: str, description: str, settings: Json) -> Saved:
        workspace = (self._folder / domain_id).absolute()
        place = str(workspace)
        merge = partial(
            merge_settings,
            {},
            settings,
            self._policy,
            domain=domain_id,
            workspace=place,
            replace_maps=True,
            default_model=self._default_model,
        )
        change = await self._threads.read(domain_id, merge)
        checked = change.settings
        await self._check_models(DomainSettings(), checked)
        advice = await self._threads.read(domain_id, self._lifecycle.changing, workspace, DomainSettings(), checked)
        created = now()
        record = DomainRecord(
            id=domain_id,
            name=line("name", name, MAX_NAME, required=True),
            description=line("description", description, MAX_DESCRIPTION, required=False, breaks=True),
            settings=checked.to_json(),
            workspace=str(workspace),
            created_at=created,
            updated_at=created,
        )
        await self._threads.run(domain_id, make_workspace, workspace)
        sealed = self._seal_values(domain_id, change)
        told = audited("domain.create", domain_id, settings=sorted(settings))

        def save(conn: Connection) -> None:
            domains.insert(conn, record)
            audit(conn, told)
            self._put_secrets(conn, domain_id, sealed)

        await self._db.write(save, durable=True)
        return Saved(record, change.changes, (*change.warnings, *advice))

    async def _check_models(self, before: DomainSettings, after: DomainSettings) -> None:
        """Refuse the name of a model that nobody here serves; one that stays is not asked about again."""
        named = (("model", before.model, after.model), ("fallbackModel", before.fallback_model, after.fallback_model))
        for key, old, new in named:
            if new and new != old and (reason := await self._model_refusal(new)) is not None:
                raise InvalidInput(f"settings.{key}", reason)

    def _seal_values(self, domain_id: str, change: MergedSettings) -> list[SecretRecord]:
        return [self._vault.seal(domain_id, name, value) for name, value in change.secrets.items()]

    @staticmethod
    def _put_secrets(conn: Connection, domain_id: str, sealed: Sequence[SecretRecord]) -> None:
        for row in sealed:
            secrets.put(conn, row)
        if sealed:
            check_limits(conn, domain_id, "mcpServers")

    async def view(self, record: DomainRecord) -> DomainView:
        """Return what a client sees of a domain. ``documents`` counts those that can be searched."""
        facts = await self._directory.facts(record.id)
        settings = DomainSettings.model_validate(record.settings)  # of this record, not of a later one
        shown = to_json(settings)
        masks = await self._vault.masks(record.id) if settings.mcp_servers else {}
        shown["mcpServers"] = server_map(record, settings, facts, masks)
        return DomainView(record, shown, facts.count)

    async def update(
        self,
        domain_id: str,
        *,
        name: str | None = None,
        description: str | None = None,
        settings: Json | None = None,
        replace_maps: bool,
        version: int | None = None,
    ) -> Saved:
        """Merge a change (`merge_settings` has the rules) and return the record with its new version.

        Raises:
            NotFound: there is no such domain.
            VersionConflict: ``version`` is given and not the current one.
            InvalidInput, ServerReserved, CommandNotAllowed: a value does not fit; nothing was changed.
        """
        await self._directory.get(domain_id)
        merging = self._merging.setdefault(domain_id, anyio.Lock())
        async with merging:
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
        change: Json,
        replace_maps: bool,
        version: int | None,
    ) -> Saved:
        record = await self._directory.get(domain_id)
        if version is not None and version != record.version:
            raise VersionConflict(version, record.version)
        before = DomainSettings.model_validate(record.settings)
        known = await self._vault.values(domain_id)
        merge = partial(
            merge_settings,
            record.settings,
            change,
            self._policy,
            domain=domain_id,
            workspace=record.workspace,
            replace_maps=replace_maps,
            own=own_documents(record, before),
            secrets=known,
            default_model=self._default_model,
        )
        found = await self._threads.read(domain_id, merge)  # programs are looked at
        settings = found.settings
        await self._check_models(before, settings)
        advice = await self._threads.read(domain_id, self._lifecycle.changing, Path(record.workspace), before, settings)
        fields: domains.DomainFields = {"settings": settings.to_json()}
        if name is not None:
            fields["name"] = line("name", name, MAX_NAME, required=True)
        if description is not None:
            fields["description"] = line("description", description, MAX_DESCRIPTION, required=False, breaks=True)

        sealed = self._seal_values(domain_id, found)
        told = audited("domain.update", domain_id, fields=sorted(fields), settings=sorted(change))

        def save(conn: Connection) -> DomainRecord | None:
            domains.update(conn, domain_id, version=record.version, updated_at=now(), **fields)
            audit(conn, told)
            secrets.delete(conn, domain_id, found.dropped)
            self._put_secrets(conn, domain_id, sealed)
            return domains.get(conn, domain_id)

        try:
            saved = await self._db.write(save, durable=True)
        finally:  # a cancelled writer does not know whether it was stored
            self._forget(domain_id)
        if saved is None:
            raise NotFound("domain", domain_id)
        await self._lifecycle.settings_changed(domain_id, before, settings)
        return Saved(saved, found.changes, (*found.warnings, *advice))

    def _forget(self, domain_id: str) -> None:
        """Drop what is remembered of a domain and its secrets."""
        self._directory.forget(domain_id)
        self._vault.forget(domain_id)
