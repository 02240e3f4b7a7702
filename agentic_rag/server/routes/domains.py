"""REST routes for domains.

This module defines the forms and answers. The business layer decides the rules.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from pydantic import Field
from starlette.requests import Request

from agentic_rag.access.document_views import EVERY_DOCUMENT, DocumentView, DocumentViews
from agentic_rag.access.users import User
from agentic_rag.base.errors import (
    ChangeHeld,
    ChangeOnTrial,
    CommandNotAllowed,
    InvalidInput,
    NotFound,
    SecretLimit,
    ServerReserved,
    VersionConflict,
)
from agentic_rag.base.forms import Form
from agentic_rag.base.json_form import Absent, Json, camel
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.directory.directory import Directory
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.documents.documents import Documents
from agentic_rag.documents.starters import draft_starters
from agentic_rag.domains.domains import DomainDetails, Domains, Saved
from agentic_rag.evaluation.gate import ChangeGate, DomainChangeForm
from agentic_rag.operations.deletion import Deletion
from agentic_rag.roles.birth import DomainCreation, first_message
from agentic_rag.server.replies import Items, answer, answer_from
from agentic_rag.server.routing import route
from agentic_rag.store.documents import DocumentStatus
from agentic_rag.store.quotas import Holdings
from agentic_rag.tools.entries.reading import Note

DOMAINS = "/api/domains"
DOMAIN = "/api/domains/{domain}"

KEPT_OF_DOMAINS = ("usage records", "rows of the audit log", "backups and bundles written earlier")
"""Data of a deleted domain that stays outside its workspace."""

CHANGE_ERRORS = (VersionConflict, ServerReserved, CommandNotAllowed, SecretLimit, ChangeHeld, ChangeOnTrial)
"""Reasons to refuse a change of settings, besides invalid values."""


class NewDomain(Form):
    """A domain to create. With ``describe`` the role nuwa writes the domain's role, in a first conversation."""

    name: str
    describe: str | None = None
    description: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)


class DomainChange(Form):
    """Changes to a domain.

    An absent key stays unchanged, and ``null`` resets it. The extra keys of a GET are ignored.
    """

    name: str | None = None
    description: str | None = None
    settings: dict[str, Any] | None = None
    version: int | None = None
    id: str | None = Field(None, exclude=True)
    document_count: int | None = Field(None, exclude=True)
    created_at: str | None = Field(None, exclude=True)
    updated_at: str | None = Field(None, exclude=True)
    changes: list[Any] | None = Field(None, exclude=True)
    warnings: list[Any] | None = Field(None, exclude=True)


class DeletionQuery(Form):
    """``workspace``: also remove the domain's folder."""

    workspace: bool = False


@answer()
class Domain:
    """A domain. Only its admins get ``settings``. ``documentCount`` counts the searchable documents.

    ``models`` are those that a user may choose for a conversation, the domain's own first; absent without a choice.
    """

    id: str
    name: str
    description: str
    settings: Json
    document_count: int
    version: int
    created_at: str
    updated_at: str
    models: Absent[Sequence[str]] = None
    apps: Absent[Sequence[str]] = None
    """MCP servers whose apps the page offers below their calls."""


@answer(kw_only=True)
class SavedDomain(Domain):
    """A domain after a change, with hints for its admin about the change."""

    changes: Sequence[Note]
    warnings: Sequence[Note]
    conversation_id: Absent[str] = None
    """The conversation in which nuwa writes the role of a described domain. ``turnId`` is its first turn."""
    turn_id: Absent[str] = None


@answer()
class DeletedDomain:
    """A deleted domain. ``workspace`` is the folder that is still on disk, or null.

    ``kept`` lists the other data that stays.
    """

    id: str
    workspace: str | None
    kept: Sequence[str]


@answer()
class Starter:
    """A question that a new conversation offers. ``documentName`` is the document from which it was drafted."""

    text: str
    document_name: Absent[str] = None


@answer()
class Quota:
    """The used amount of one resource in a domain, and its limit."""

    noun: str
    used: int
    limit: int


class DomainRoutes:
    """Domains."""

    def __init__(
        self,
        domains: Domains,
        directory: Directory,
        deletion: Deletion,
        births: DomainCreation,
        conversations: Conversations,
        gate: ChangeGate,
        documents: Documents,
        views: DocumentViews,
    ) -> None:
        self._documents = documents
        self._views = views
        self._gate = gate
        self._births = births
        self._conversations = conversations
        self._domains = domains
        self._directory = directory
        self._deletion = deletion

    @route("GET", "/api/domain-settings", allow="user")
    async def describe_settings(self) -> Json:
        """Show the JSON Schema of domain settings with types, bounds and defaults.

        A null default means the operator's value.
        """
        schema = DomainSettings.model_json_schema()
        hidden = {"mcpServers", "adoptRole"}  # the first accepts other clients' forms, the second is internal
        properties = {
            name: property_schema for name, property_schema in schema["properties"].items() if name not in hidden
        }
        return {**schema, "properties": properties}

    @route("GET", DOMAINS, allow="user")
    async def list_domains(self, user: User) -> Items[Domain]:
        """List the domains that the caller may use."""
        records = [record for record in await self._directory.list_all() if user.sees(record.id)]
        shown = [(record, await self._views.of(user, record.id)) for record in records]
        return Items([await self._show(await self._domains.view(record, view), user) for record, view in shown])

    @route("POST", DOMAINS, status=201, errors=[NotFound, ServerReserved, CommandNotAllowed, SecretLimit])
    async def create(self, user: User, body: NewDomain) -> SavedDomain:
        """Create a domain. A described domain starts with a conversation in which nuwa writes its role."""
        if body.describe is None:
            return await self._show_saved(await self._domains.create(body.name, body.description, body.settings))
        saved = await self._births.begin(body.name, body.description, body.settings, body.describe)
        domain = saved.record.id
        conversation = await self._conversations.create(user, domain, saved.record.name)
        accepted = await self._conversations.send(user, conversation.id, first_message(domain, body.describe))
        shown = await self._show_saved(saved)
        return answer_from(SavedDomain, shown, conversation_id=conversation.id, turn_id=accepted.turn_id)

    @route("GET", DOMAIN, allow="member")
    async def get(self, user: User, domain: str, view: DocumentView) -> Domain:
        """Show a domain."""
        await self._births.adopt(domain)
        return await self._show(await self._domains.view(await self._directory.get(domain), view), user)

    @route("GET", f"{DOMAIN}/starters", allow="member")
    async def starters(self, domain: str, view: DocumentView) -> Items[Starter]:
        """List the questions that a new conversation offers: the domain's own, or drafts from its documents."""
        settings = await self._directory.settings(domain)
        if settings.starters is not None:
            return Items([Starter(text) for text in settings.starters])
        drafts = draft_starters(await self._documents.list_of(domain, view, DocumentStatus.INDEXED))
        return Items([Starter(draft.text, draft.document_name) for draft in drafts])

    @route("GET", f"{DOMAIN}/quotas", allow="admin")
    async def quotas(self, domain: str) -> Items[Quota]:
        """Show the used amounts and limits of a domain."""
        await self._directory.get(domain)
        holdings, limits = await self._directory.holdings(domain), self._directory.quotas.limits
        nouns = [field.name for field in fields(Holdings)]
        return Items([Quota(camel(noun), getattr(holdings, noun), getattr(limits, noun)) for noun in nouns])

    @route("PUT", DOMAIN, errors=CHANGE_ERRORS)
    async def put(self, request: Request, domain: str, body: DomainChange) -> SavedDomain:
        """Change a domain, replacing ``mcpServers``, ``variables`` and ``toolPolicy``."""
        return await self._change(request, domain, body, replace_maps=True)

    @route("PATCH", DOMAIN, errors=CHANGE_ERRORS)
    async def patch(self, request: Request, domain: str, body: DomainChange) -> SavedDomain:
        """Change a domain, merging ``mcpServers``, ``variables`` and ``toolPolicy`` by name."""
        return await self._change(request, domain, body, replace_maps=False)

    @route("DELETE", DOMAIN, allow="operator")
    async def delete(self, domain: str, query: DeletionQuery) -> DeletedDomain:
        """Delete a domain with its conversations, documents, index and secrets. The answer lists what stays on disk."""
        folder = await self._deletion.domain(domain, workspace=query.workspace)
        if folder is None:
            return DeletedDomain(domain, None, KEPT_OF_DOMAINS)
        files = "the workspace folder with documents, roles, memories, prompt files and the files of MCP servers"
        return DeletedDomain(domain, str(folder), [files, *KEPT_OF_DOMAINS])

    async def _change(self, request: Request, domain: str, body: DomainChange, *, replace_maps: bool) -> SavedDomain:
        version = body.version if body.version is not None else _version(request.headers.get("if-match"))
        values = {"name": body.name, "description": body.description, "settings": body.settings}
        keys = {key for key, value in values.items() if value is not None}
        # The first argument names the fields that were sent, so that the gate takes no default for a change.
        tried = DomainChangeForm.model_construct(
            keys | {"replace_maps"},
            name=body.name,
            description=body.description,
            settings=body.settings,
            replace_maps=replace_maps,
        )
        warnings = await self._gate.guard(domain, tried, version)
        saved = await self._domains.update(
            domain,
            name=body.name,
            description=body.description,
            settings=body.settings,
            replace_maps=replace_maps,
            version=version,
        )
        notes = tuple(Note("settings", text) for text in warnings)
        return await self._show_saved(replace(saved, warnings=(*saved.warnings, *notes)))

    async def _show_saved(self, saved: Saved) -> SavedDomain:
        view = await self._domains.view(saved.record, EVERY_DOCUMENT)
        return answer_from(
            SavedDomain,
            saved.record,
            settings=view.settings,
            document_count=view.documents,
            models=await self._models(saved.record.id),
            changes=saved.changes,
            warnings=saved.warnings,
        )

    async def _models(self, domain: str) -> Sequence[str] | None:
        return await self._conversations.model_choices(domain) or None

    async def _show(self, view: DomainDetails, user: User) -> Domain:
        settings = view.settings if user.administers(view.record.id) else {}
        models = await self._models(view.record.id)
        apps = (await self._directory.settings(view.record.id)).mcp_apps or None
        return answer_from(
            Domain, view.record, settings=settings, document_count=view.documents, models=models, apps=apps
        )


def _version(if_match: str | None) -> int | None:
    """Return the version that the change is based on, from ``If-Match``."""
    if if_match is None or if_match.strip() == "*":
        return None
    try:
        return int(if_match.strip().removeprefix("W/").strip('"'))
    except ValueError as exc:
        raise InvalidInput("If-Match", "the version number of the domain is expected.") from exc
