"""Build the `Definition` of a turn from the domain's record, settings, collection and prompt components.

Combines the operator's defaults with the domain's settings. Knows no message and no request.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from agentic_rag.access.document_views import DocumentViews
from agentic_rag.access.keys import Access
from agentic_rag.access.users import User
from agentic_rag.base.errors import ModelNotAllowed
from agentic_rag.base.events import Notice
from agentic_rag.base.ids import DocumentId
from agentic_rag.base.threads import DomainThreads
from agentic_rag.directory.collection import CollectionFacts, collection_note, collection_of
from agentic_rag.directory.directory import Directory, IngestionQueue
from agentic_rag.directory.server_map import system_servers, turn_entries
from agentic_rag.directory.settings import DomainSettings, GrantName
from agentic_rag.domains.components import FILE_LIMIT, ComponentFiles, Components, clean_within, cut
from agentic_rag.domains.watched_workspaces import SnapshotCache, WatchedWorkspaces, WorkspaceSnapshot
from agentic_rag.domains.workspaces import find_misplaced
from agentic_rag.models.names import ModelNames
from agentic_rag.models.profiles import refusal_of
from agentic_rag.runtime.core.definition import Definition, Limits, Persona, SkillLine
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.store.domains import DomainRecord
from agentic_rag.tools.base import Binding, Verdict
from agentic_rag.tools.listing import owner_of
from mcp_servers.promptx.roles import RoleLibrary
from mcp_servers.promptx.skills import SkillLibrary

MOST_KEPT = 1_024
"""Maximum number of cached definitions; the least recently used one is dropped."""
_path = lru_cache(MOST_KEPT)(Path)


@dataclass(frozen=True, slots=True)
class Defaults:
    """The operator's settings for all domains.

    ``only_model`` allows no other model. ``names`` resolves model names. ``fallbacks`` maps a provider to the models to
    ask in place of its own, for domains that name no fallback models.
    """

    model: str
    names: ModelNames
    only_model: bool = False
    thinking: Literal["off", "auto"] = "auto"
    fallbacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def choices(self, settings: DomainSettings) -> tuple[str, ...]:
        """Return the models that a user may choose, the domain's own first; empty without a choice."""
        if self.only_model or not settings.allowed_models:
            return ()
        configured = (settings.model or self.model, *settings.allowed_models)
        choices = tuple(dict.fromkeys(map(self.names.keep, configured)))
        return choices if len(choices) > 1 else ()

    def chain(self, settings: DomainSettings, chosen: str | None = None) -> tuple[str, ...]:
        """Return the models of a turn in the order in which they are asked, without duplicates.

        ``chosen``: the conversation's model, which counts while the domain allows it.
        """
        if self.only_model:
            return (self.model,)
        model = self.names.keep(settings.model or self.model)
        if chosen is not None and chosen in self.choices(settings):
            model = chosen
        fallbacks = settings.fallback_models
        if fallbacks is None:
            fallbacks = self.fallbacks.get(self.names.split(model)[0], ())
        return tuple(dict.fromkeys((model, *(self.names.keep(name) for name in fallbacks))))


@dataclass(frozen=True, slots=True)
class WorkspaceTexts:
    """The parts of the prompt that come from the workspace: prompt files and skills."""

    components: tuple[str, ...] = ()
    skills: tuple[SkillLine, ...] = ()


@dataclass(frozen=True, slots=True)
class DefinitionDraft:
    """Unsaved changes of an admin or author: settings, and texts of prompt files by name.

    A text of None means that the file would be deleted.
    """

    settings: DomainSettings | None = None
    components: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Staging:
    """A turn that tries a draft for an evaluation: no person reads along, and no tool with effects runs.

    ``documents`` are the searchable ones, None for all.
    """

    draft: DefinitionDraft
    documents: tuple[DocumentId, ...] | None = None

    def apply(self, definition: Definition) -> Definition:
        """Return the definition with the visible documents, without a person and without effects."""
        documents = self.documents if self.documents is not None else definition.binding.documents
        binding = replace(definition.binding, documents=documents)
        return replace(without_person(definition), binding=binding, denies_effects=True)


@dataclass(frozen=True, slots=True)
class _Contents:
    """The contents of a workspace for a turn. ``misplaced`` lists unusable entries, each with the reason."""

    role_lines: Mapping[str, str]
    components: Components
    skills: tuple[SkillLine, ...]
    misplaced: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _Cached:
    """A cached definition with its notices, and all inputs that it was built from."""

    user: User
    record: DomainRecord
    settings: DomainSettings
    facts: CollectionFacts
    contents: _Contents
    alone: bool
    definition: Definition
    notices: tuple[Notice, ...]

    def holds(
        self,
        user: User,
        record: DomainRecord,
        settings: DomainSettings,
        facts: CollectionFacts,
        contents: _Contents,
        *,
        alone: bool,
    ) -> bool:
        """Return whether a new definition would be the same. Unchanged inputs are the same objects."""
        same = self.record is record and self.settings is settings and self.facts is facts and self.contents is contents
        return same and self.alone is alone and (self.user is user or self.user == user)


class Definitions:
    """Builds the definitions of turns, and caches them.

    Args:
        access: tells whether only the local user has access. Then memories are shared and effects allowed.
        arrivals: tells whether documents of a domain are still being indexed; the first one is waited for.
    """

    def __init__(
        self,
        directory: Directory,
        access: Access,
        arrivals: IngestionQueue,
        defaults: Defaults,
        threads: DomainThreads,
        watched: WatchedWorkspaces,
        views: DocumentViews,
    ) -> None:
        self._views = views
        self._directory = directory
        self._access = access
        self._arrivals = arrivals
        self._defaults = defaults
        self._threads = threads
        self._watched = watched
        self._components = ComponentFiles()
        self._snapshots: SnapshotCache[tuple[Path, tuple[str, ...]], _Contents] = SnapshotCache(watched)
        """By workspace and sub-roles."""
        self._cache: OrderedDict[tuple[str, str, tuple[DocumentId, ...], bool, str | None], _Cached] = OrderedDict()
        """By domain, user, context documents, whether the conversation is transient, and its chosen model."""

    async def choices(self, domain_id: str) -> tuple[str, ...]:
        """Return the models that a user may choose in a domain, the domain's own first; empty without a choice.

        Raises:
            NotFound: there is no such domain.
        """
        return self._defaults.choices(await self._directory.settings(domain_id))

    async def check_choice(self, domain_id: str, model: str) -> str | None:
        """Return the stored form of a chosen model; None for the domain's own, which may change later.

        Raises:
            ModelNotAllowed: the domain does not allow this model.
        """
        choices, name = await self.choices(domain_id), self._defaults.names.keep(model)
        if name not in choices:
            raise ModelNotAllowed(model, choices)
        return None if name == choices[0] else name

    async def definition(
        self, user: User, conversation: ConversationRecord, draft: DefinitionDraft | None = None
    ) -> tuple[Definition, tuple[Notice, ...]]:
        """Return the definition for a turn of the conversation now, and notices for the reader.

        ``draft`` replaces saved settings and prompt files.

        Raises:
            NotFound: the domain was deleted.
            WorkspaceUnavailable: its workspace does not answer.
        """
        domain_id = conversation.domain_id
        if draft is None:
            facts = await self._directory.first_facts(domain_id, self._arrivals)
        else:  # a preview while typing does not wait for documents
            facts = await self._directory.facts(domain_id)
        view = await self._views.of(user, domain_id)
        # The prompt describes the collection, so it must not name documents that this user may not see.
        if view.visible is not None:
            facts = await self._directory.facts_of(domain_id, view.visible)
        saved = await self._directory.settings(domain_id)
        settings = saved if draft is None or draft.settings is None else draft.settings
        record = await self._directory.get(domain_id)
        contents = await self._contents_of(domain_id, _path(record.workspace), tuple(settings.sub_role_ids), draft)
        alone, components = self._access.alone, contents.components
        documents = tuple(conversation.context_document_ids)
        key = (domain_id, user.id, documents, conversation.transient, conversation.model)
        cached = self._cache.get(key) if draft is None else None
        if cached is not None and cached.holds(user, record, settings, facts, contents, alone=alone):
            self._cache.move_to_end(key)
            return cached.definition, cached.notices
        texts = WorkspaceTexts(components.texts, contents.skills)
        definition = definition_of(user, conversation, record, settings, facts, texts, self._defaults, alone=alone)
        broken = [("PROMPT_COMPONENT_BROKEN", f"prompt/{name}", problem) for name, problem in components.problems]
        broken += [("WORKSPACE_FOLDER_BROKEN", name, problem) for name, problem in contents.misplaced]
        notices = tuple(Notice(code, f"{name} cannot be used: {problem}.") for code, name, problem in broken)
        if conversation.model is not None and definition.model != conversation.model:
            # The admin has removed the model since the user chose it.
            text = f"{conversation.model} can no longer be chosen in this domain; {definition.model} answers."
            notices = (*notices, Notice("MODEL_NOT_ALLOWED", text))
        definition = replace(definition, role_lines=contents.role_lines)
        if draft is None:
            self._cache[key] = _Cached(user, record, settings, facts, contents, alone, definition, notices)
            if len(self._cache) > MOST_KEPT:
                self._cache.popitem(last=False)
        return definition, notices

    async def _contents_of(
        self, domain_id: str, workspace: Path, sub_roles: tuple[str, ...], draft: DefinitionDraft | None
    ) -> _Contents:
        """Return the contents of a workspace, from the cache if nothing has changed."""
        if draft is not None:
            return await self._threads.read(domain_id, self._read_contents, workspace, sub_roles, draft)
        key = (workspace, sub_roles)
        if (cached := self._snapshots.find(key)) is not None:
            return cached.found
        snapshot = await self._threads.read(domain_id, self._read_watched, workspace, sub_roles)
        self._snapshots.keep(key, snapshot)
        return snapshot.found

    def _read_watched(self, workspace: Path, sub_roles: Sequence[str]) -> WorkspaceSnapshot[_Contents]:
        # Begin watching before the read: a change between the two would otherwise go unnoticed.
        return WorkspaceSnapshot(self._watched.begin(workspace), self._read_contents(workspace, sub_roles, None))

    def _read_contents(self, workspace: Path, sub_roles: Sequence[str], draft: DefinitionDraft | None) -> _Contents:
        """Read all parts of a workspace that a turn needs.

        One call reads them all, because switching to a thread costs more than the read.
        """
        return _Contents(
            RoleLibrary(workspace, self._watched.roles).summaries(sub_roles) if sub_roles else {},
            self._read_components(workspace, draft),
            tuple(SkillLine(*summary) for summary in SkillLibrary(workspace).summaries()),
            find_misplaced(workspace),
        )

    def _read_components(self, workspace: Path, draft: DefinitionDraft | None) -> Components:
        return self._components.read(workspace, None if draft is None else draft.components)

    async def components(self, domain_id: str, workspace: Path, draft: DefinitionDraft | None = None) -> Components:
        """Return the current prompt components of a domain, with the changes of a draft.

        Raises:
            WorkspaceUnavailable: the workspace does not answer.
        """
        return await self._threads.read(domain_id, self._read_components, workspace, draft)


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """The terms of a run of a schedule.

    ``role``: replaces the primary role, if given. ``allowed_tools``: names of tools that run without approval, unless a
    rule for the tool's own name denies them. ``max_tokens``: tokens that the turn may use. ``sender``: who wrote the
    untrusted part of the message, if there is one.
    """

    role: str = ""
    allowed_tools: tuple[str, ...] = ()
    max_tokens: int | None = None
    sender: str = ""

    def apply(self, definition: Definition) -> Definition:
        """Return the definition under these terms."""
        rules = dict(definition.tool_policy)
        # A schedule may allow a tool in advance, but not against the admin.
        rules |= {name: "allow" for name in self.allowed_tools if rules.get(name) != "deny"}
        persona, binding = definition.persona, definition.binding
        if self.role:
            persona = replace(persona, role=self.role)
            roles = tuple(dict.fromkeys((self.role, *binding.memory_roles)))
            binding = replace(binding, role=self.role, memory_roles=roles)
        limits = replace(definition.limits, turn_tokens=self.max_tokens)
        untrusted = self.sender or None
        return replace(
            definition, tool_policy=rules, persona=persona, binding=binding, limits=limits, untrusted=untrusted
        )


WISHES = "The client's program asks for this answer (wishes of form and subject, below all rules above):"
"""Precedes the text of a client's own system messages."""


def with_wishes(definition: Definition, wishes: str) -> Definition:
    """Add a client's own system messages to a definition as the last prompt component, cut and cleaned like a file.

    The component ranks below the domain's own texts and changes neither tools nor policy.
    """
    text, length = clean_within(wishes, FILE_LIMIT) if wishes else ("", 0)
    if not text:
        return definition
    persona = definition.persona
    component = f"{WISHES}\n{cut(text, FILE_LIMIT, length)}"
    return replace(definition, persona=replace(persona, components=(*persona.components, component)))


def without_person(definition: Definition) -> Definition:
    """Return a definition for a turn without a reader: requests to a person are declined."""
    return replace(definition, has_person=False, ask_user=False)


def without_tools(definition: Definition, names: Sequence[str]) -> Definition:
    """Return a definition for a turn in which the model may not call these tools."""
    if not names:
        return definition
    return replace(definition, tool_policy={**definition.tool_policy, **dict.fromkeys(names, "deny")})


def _grant_of(user: User, domain_id: str) -> GrantName:
    """Return the grant of a user who sees a domain."""
    if user.administers(domain_id):
        return "admin"
    return "author" if user.writes(domain_id) else "member"


def _limits_of(settings: DomainSettings) -> Limits:
    return Limits(
        settings.max_steps,
        settings.turn_timeout_seconds,
        settings.tool_timeout_seconds,
        settings.context_tokens,
        settings.context_messages,
    )


def _rules_of_enabled(settings: DomainSettings, rules: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Return the rules without those that allow a tool of a disabled server: another server may use that name."""
    disabled = {name for name, entry in settings.mcp_servers.items() if not entry.enabled}
    return {
        glob: verdict
        for glob, verdict in rules.items()
        if verdict != "allow" or not disabled or owner_of(glob, settings.mcp_servers) not in disabled
    }


def definition_of(
    user: User,
    conversation: ConversationRecord,
    record: DomainRecord,
    settings: DomainSettings,
    facts: CollectionFacts,
    texts: WorkspaceTexts,
    defaults: Defaults,
    *,
    alone: bool,
) -> Definition:
    """Return the definition for a turn of the conversation.

    ``alone`` says that only the local user has access.
    """
    chain = defaults.chain(settings, conversation.model)
    # A model that a user chose may lack the domain's effort; then it answers with its own. If the domain's own model
    # lacks it, the admin must see the error.
    refusal = refusal_of(chain[0], effort=settings.effort)
    return Definition(
        domain_id=record.id,
        persona=Persona(
            name=record.name,
            role=settings.primary_role_id,
            language=settings.language,
            style=settings.response_style,
            tone=settings.tone,
            expertise=settings.expertise,
            components=texts.components,
            skills=texts.skills,
        ),
        model=chain[0],
        max_tokens=settings.max_tokens,
        system=system_servers(settings, author=user.writes(record.id), skills=bool(texts.skills)),
        entries=turn_entries(settings),
        temperature=settings.temperature,
        thinking=settings.thinking or defaults.thinking,
        effort=None if refusal is not None and chain[0] == conversation.model else settings.effort,
        fallback_models=chain[1:],
        limits=_limits_of(settings),
        binding=Binding(
            workspace=record.workspace,
            collection=collection_of(record.id),
            documents=tuple(conversation.context_document_ids) or None,
            top_k=settings.retrieval_top_k,
            threshold=settings.retrieval_threshold,
            user=user.id,
            scope=settings.memory_scope or ("domain" if alone else "user"),
            role=settings.primary_role_id,
            admin=user.administers(record.id),
            sub_roles=tuple(settings.sub_role_ids),
            memory_roles=tuple(dict.fromkeys((settings.primary_role_id, *settings.sub_role_ids))),
            key=user.key_id,
            trusted=user.reads_every_document(record.id),
        ),
        tool_policy=_rules_of_enabled(settings, settings.rules_for(_grant_of(user, record.id))),
        effects_allowed_by_default=alone,
        has_person=not conversation.transient,
        ask_user=settings.ask_user and not conversation.transient,
        collection_note=collection_note(facts, settings.expertise),
    )
