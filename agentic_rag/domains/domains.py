"""Create and change domains: named knowledge areas with a workspace, settings and versions.

The directory reads domains; `agentic_rag.operations.deletion` deletes them. Knows no document, no message and no
request.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

import anyio
from sqlalchemy import Connection

from agentic_rag.access.auditing import audit
from agentic_rag.access.auditing import change as audited
from agentic_rag.access.document_views import DocumentView
from agentic_rag.access.users import acting
from agentic_rag.base.errors import (
    AgenticRagError,
    CommandNotAllowed,
    InvalidInput,
    NotFound,
    ServerReserved,
    VersionConflict,
    problems_of,
    raise_first,
)
from agentic_rag.base.forms import line, to_json
from agentic_rag.base.json_form import Json
from agentic_rag.base.threads import DomainThreads
from agentic_rag.directory.cases import CaseForm
from agentic_rag.directory.directory import Directory
from agentic_rag.directory.server_map import own_documents, server_map
from agentic_rag.directory.settings import DomainSettings, MergedSettings, merge_settings
from agentic_rag.domains.case_records import merge_cases
from agentic_rag.domains.lifecycle import DomainLifecycle
from agentic_rag.domains.record_history import record_changes
from agentic_rag.domains.sign_in_secrets import forget_servers
from agentic_rag.domains.vault import Vault, check_limits
from agentic_rag.domains.workspaces import copy_template, make_workspace, read_template_cases
from agentic_rag.store import domains, history, secrets
from agentic_rag.store.audit import Entry
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.domains import DomainRecord
from agentic_rag.store.evaluation import CaseOrigin
from agentic_rag.store.secrets import SecretRecord
from agentic_rag.tools.entries.reading import Note
from agentic_rag.tools.launch.policy import LaunchPolicy

MAX_NAME = 200
MAX_DESCRIPTION = 4_000


@dataclass(frozen=True, slots=True)
class DomainDetails:
    """A domain as a client sees it: settings with defaults, and the merged server map."""

    record: DomainRecord
    settings: Json
    documents: int


@dataclass(frozen=True, slots=True)
class Saved:
    """A stored domain, with notes for its admin about adjusted and unused values."""

    record: DomainRecord
    changes: tuple[Note, ...] = ()
    warnings: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class DomainDraft:
    """A domain as it would be stored. ``before`` is the record to change, None for a new domain."""

    record: DomainRecord
    before: DomainRecord | None
    change: MergedSettings
    advice: tuple[Note, ...]


ModelRefusal = Callable[[str], Awaitable[str | None]]


async def refuse_no_model(name: str) -> None:
    """Accept every model name, if there is no model to check with."""


class Domains:
    """Creates and changes the domains of one data folder.

    Args:
        folder: the folder of new workspaces.
        vault: seals the secrets in MCP entries.
        policy: decides which MCP entries may be stored.
        lifecycle: validates changes and reacts to them.
        threads: runs blocking work on folders.
        default_model: the model of domains that name none; empty if there is no language model.
        model_refusal: returns why a domain cannot use a model, or None.
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
        """Held from the read of a record until the write of the merged result."""

    async def create(self, name: str, description: str = "", settings: Json | None = None) -> Saved:
        """Create a domain with an empty workspace.

        Raises:
            InvalidInput, ServerReserved, CommandNotAllowed: a value is invalid; nothing was created.
        """
        return await self._make(new_id("dom"), name, description, settings or {})

    async def load_template(self, template: Path) -> Saved:
        """Create a domain from a template folder. Its name is the id; ``domain.json`` holds name and settings."""
        workspace = self._folder / template.name
        about = json.loads(await self._threads.run(template.name, (template / "domain.json").read_text, "utf-8"))
        await self._threads.run(template.name, copy_template, template, workspace)
        parsed = await self._threads.run(template.name, read_template_cases, template)
        raise_first(parsed.problems)
        settings = about.get("settings", {})
        return await self._make(template.name, about["name"], about.get("description", ""), settings, parsed.cases)

    async def _make(
        self, domain_id: str, name: str, description: str, settings: Json, cases: Sequence[CaseForm] = ()
    ) -> Saved:
        # Validated before the folder is made, so that a refused domain leaves nothing behind.
        draft = await self.draft(domain_id, name, description, settings)
        await self._threads.run(domain_id, make_workspace, Path(draft.record.workspace))
        audit_entry = audited("domain.create", domain_id, settings=sorted(settings))
        redaction, author = self._vault.redact.of(domain_id), acting().user_id

        def tell(conn: Connection) -> None:
            audit(conn, audit_entry)
            merge_cases(conn, domain_id, cases, CaseOrigin.TEMPLATE, author, redaction)

        return await self.insert(draft, tell)

    async def draft(
        self,
        domain_id: str,
        name: str,
        description: str,
        settings: Json,
        *,
        roles_in: Path | None = None,
        withheld: dict[str, CommandNotAllowed] | None = None,
    ) -> DomainDraft:
        """Return a new domain as `insert` would store it, without side effects.

        ``roles_in`` is the workspace to look up roles in, while the domain's own does not exist yet. ``withheld`` is as
        in `merge_settings`.

        Raises:
            InvalidInput, ServerReserved, CommandNotAllowed: a value is invalid.
        """
        workspace = (self._folder / domain_id).absolute()
        merge = partial(
            merge_settings,
            {},
            settings,
            self._policy,
            domain=domain_id,
            workspace=str(workspace),
            replace_maps=True,
            default_model=self._default_model,
            withheld=withheld,
        )
        change = await self._threads.read(domain_id, merge)
        checked = change.settings
        await self._check_models(DomainSettings(), checked)
        look = partial(self._lifecycle.changing, roles_in or workspace, None, checked)
        advice = await self._threads.read(domain_id, look)
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
        return DomainDraft(record, None, change, tuple(advice))

    async def insert(self, draft: DomainDraft, tell: Callable[[Connection], object]) -> Saved:
        """Store a new domain whose workspace exists. ``tell`` writes to the same transaction."""
        record = draft.record
        sealed = self._seal_values(record.id, draft.change)
        changes = record_changes(None, record, acting().user_id, self._vault.redact.of(record.id))

        def save(conn: Connection) -> None:
            domains.insert(conn, record)
            tell(conn)
            history.append(conn, record.id, changes, record.created_at)
            self._put_secrets(conn, record.id, sealed)

        await self._db.write(save, durable=True)
        self._install(draft.change)
        return Saved(record, draft.change.changes, (*draft.change.warnings, *draft.advice))

    async def _check_models(self, before: DomainSettings, after: DomainSettings) -> None:
        """Refuse unknown model names. A name that was already set is not checked again."""
        earlier = {before.model, *(before.fallback_models or ()), *before.allowed_models}
        named_models = [("model", after.model), *(("fallbackModel", name) for name in after.fallback_models or ())]
        named_models += [(f"allowedModels.{at}", name) for at, name in enumerate(after.allowed_models)]
        problems = [
            InvalidInput(f"settings.{key}", reason)
            for key, name in named_models
            if name and name not in earlier and (reason := await self._model_refusal(name)) is not None
        ]
        raise_first(problems)

    def _install(self, change: MergedSettings) -> None:
        """Start installing the packages of new entries, so that the first turn finds them."""
        for package in change.wanted:
            self._policy.install(package)

    def _seal_values(self, domain_id: str, change: MergedSettings) -> list[SecretRecord]:
        return [self._vault.seal(domain_id, name, value) for name, value in change.secrets.items()]

    @staticmethod
    def _put_secrets(conn: Connection, domain_id: str, sealed: Sequence[SecretRecord]) -> None:
        for row in sealed:
            secrets.put(conn, row)
        if sealed:
            check_limits(conn, domain_id, "mcpServers")

    async def view(self, record: DomainRecord, documents: DocumentView) -> DomainDetails:
        """Return a domain as a client sees it. The number of documents counts the searchable ones in the view."""
        facts = await self._directory.facts(record.id)
        if documents.visible is not None:
            facts = await self._directory.facts_of(record.id, documents.visible)
        settings = DomainSettings.model_validate(record.settings)  # this record may be older than the directory's
        document = to_json(settings)
        masks = await self._vault.masks(record.id) if settings.mcp_servers else {}
        document["mcpServers"] = server_map(record, settings, facts, masks)
        return DomainDetails(record, document, facts.count)

    async def settings_after(self, domain_id: str, settings: Json, *, replace_maps: bool = False) -> DomainSettings:
        """Return the settings after a change (`update`). Nothing is stored, sealed or installed.

        Raises:
            NotFound: there is no such domain.
            InvalidInput, ServerReserved, CommandNotAllowed: a value is invalid.
        """
        record = await self._directory.get(domain_id)
        return (await self._merge(record, settings, replace_maps=replace_maps)).settings

    async def _merge(
        self,
        record: DomainRecord,
        change: Json,
        *,
        replace_maps: bool,
        withheld: dict[str, CommandNotAllowed] | None = None,
    ) -> MergedSettings:
        merge = partial(
            merge_settings,
            record.settings,
            change,
            self._policy,
            domain=record.id,
            workspace=record.workspace,
            replace_maps=replace_maps,
            own=own_documents(record, DomainSettings.model_validate(record.settings)),
            secrets=await self._vault.values(record.id),
            default_model=self._default_model,
            withheld=withheld,
        )
        return await self._threads.read(record.id, merge)  # checks programs on disk

    async def update(
        self,
        domain_id: str,
        *,
        name: str | None = None,
        description: str | None = None,
        settings: Json | None = None,
        replace_maps: bool,
        version: int | None = None,
        tell: Callable[[Connection], object] = lambda conn: None,
    ) -> Saved:
        """Merge a change into a domain (for the rules see `merge_settings`) and return it with its new version.

        ``tell`` writes to the same transaction. If it raises an error, nothing is changed.

        Raises:
            NotFound: there is no such domain.
            VersionConflict: ``version`` is given and not the current one.
            InvalidInput, ServerReserved, CommandNotAllowed: a value is invalid; nothing was changed.
        """
        await self._directory.get(domain_id)
        # A merge reads the record first. Two concurrent merges would lose one change, or retry without need.
        async with self.changing(domain_id):
            while True:
                try:
                    changes = settings or {}
                    draft = await self.draft_change(domain_id, name, description, changes, replace_maps, version)
                    fields = {"settings", *(["name"] if name is not None else [])}
                    fields |= {"description"} if description is not None else set()
                    audit_entry = audited("domain.update", domain_id, fields=sorted(fields), settings=sorted(changes))

                    def note(conn: Connection, audit_entry: Entry = audit_entry) -> None:
                        audit(conn, audit_entry)
                        tell(conn)

                    return await self.store_change(draft, note)
                # Another process stored a change; every retry means that one succeeded, so this loop ends.
                except VersionConflict:
                    self._forget(domain_id)
                    if version is not None:
                        raise

    @asynccontextmanager
    async def changing(self, domain_id: str) -> AsyncIterator[None]:
        """Lock a domain against other changes by this process."""
        merging = self._merging.setdefault(domain_id, anyio.Lock())
        async with merging:
            yield

    async def draft_change(
        self,
        domain_id: str,
        name: str | None,
        description: str | None,
        change: Json,
        replace_maps: bool,
        version: int | None = None,
        *,
        roles_in: Path | None = None,
        withheld: dict[str, CommandNotAllowed] | None = None,
    ) -> DomainDraft:
        """Return a domain as `store_change` would store it, without side effects. See `update` and `draft`."""
        record = await self._directory.get(domain_id)
        if version is not None and version != record.version:
            raise VersionConflict(version, record.version)
        before = DomainSettings.model_validate(record.settings)
        problems: list[AgenticRagError] = []
        merged: MergedSettings | None = None
        advice: Sequence[Note] = ()
        try:
            # Each part is checked on its own, so that one answer shows the problems of all.
            merged = await self._merge(record, change, replace_maps=replace_maps, withheld=withheld)
            await self._check_models(before, merged.settings)
            look = partial(self._lifecycle.changing, roles_in or Path(record.workspace), before, merged.settings)
            advice = await self._threads.read(domain_id, look)
        except (InvalidInput, ServerReserved, CommandNotAllowed) as exc:
            problems += problems_of(exc)
        after = record
        try:
            if name is not None:
                after = after.replace(name=line("name", name, MAX_NAME, required=True))
        except InvalidInput as exc:
            problems.append(exc)
        try:
            if description is not None:
                cleaned = line("description", description, MAX_DESCRIPTION, required=False, breaks=True)
                after = after.replace(description=cleaned)
        except InvalidInput as exc:
            problems.append(exc)
        raise_first(problems)
        assert merged is not None
        return DomainDraft(after.replace(settings=merged.settings.to_json()), record, merged, tuple(advice))

    async def store_change(self, draft: DomainDraft, tell: Callable[[Connection], object]) -> Saved:
        """Store a changed domain. The caller holds `changing`; ``tell`` writes to the same transaction.

        Raises:
            VersionConflict: another process has changed the domain; nothing was stored.
            NotFound: the domain was deleted.
        """
        record, merged = draft.record, draft.change
        assert draft.before is not None
        before, settings = DomainSettings.model_validate(draft.before.settings), merged.settings
        fields: domains.DomainFields = {"settings": record.settings}
        if record.name != draft.before.name:
            fields["name"] = record.name
        if record.description != draft.before.description:
            fields["description"] = record.description
        sealed = self._seal_values(record.id, merged)
        removed = [server for server in before.mcp_servers if server not in settings.mcp_servers]
        changes = record_changes(draft.before, record, acting().user_id, self._vault.redact.of(record.id))

        def save(conn: Connection) -> DomainRecord | None:
            domains.update(conn, record.id, version=record.version, updated_at=now(), **fields)
            tell(conn)
            history.append(conn, record.id, changes, now())
            secrets.delete(conn, record.id, merged.dropped)
            # A server that is added again under this name may be another one: it must not get the old tokens.
            forget_servers(conn, record.id, removed)
            self._put_secrets(conn, record.id, sealed)
            return domains.get(conn, record.id)

        try:
            saved = await self._db.write(save, durable=True)
        finally:  # a cancelled writer cannot know whether the change was stored
            self._forget(record.id)
        if saved is None:
            raise NotFound("domain", record.id)
        self._install(merged)
        await self._lifecycle.settings_changed(record.id, before, settings)
        return Saved(saved, merged.changes, (*merged.warnings, *draft.advice))

    def _forget(self, domain_id: str) -> None:
        """Drop the caches of a domain and its secrets."""
        self._directory.forget(domain_id)
        self._vault.forget(domain_id)
