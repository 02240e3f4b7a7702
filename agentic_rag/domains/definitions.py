"""What a turn of a domain runs on: its record, settings, collection and prompt components as a `Definition`.

Owns what the operator decides for all domains, and how the two meet. Knows no message and no request.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from agentic_rag.access.keys import Access
from agentic_rag.access.users import User
from agentic_rag.directory.collection import CollectionFacts, collection_note, collection_of
from agentic_rag.directory.directory import Arrivals, Directory
from agentic_rag.directory.server_map import system_servers, turn_entries
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.domains.components import ComponentFiles, Components
from agentic_rag.domains.workspaces import find_misplaced
from agentic_rag.events import Notice
from agentic_rag.runtime.core.definition import Definition, Limits, Persona
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.store.domains import DomainRecord
from agentic_rag.threads import DomainThreads
from agentic_rag.tools.base import Binding
from mcp_servers.promptx.roles import RoleLibrary


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the operator decides for all domains. ``only_model``: no other model can be asked for.

    ``provider``: whose models they are; a domain may name one with it, as ``provider:name``.
    """

    model: str
    only_model: bool = False
    thinking: Literal["off", "auto"] = "auto"
    provider: str = ""

    def bare(self, name: str) -> str:
        """Return a model's name as its provider knows it."""
        return name.removeprefix(f"{self.provider}:")


class Definitions:
    """Makes the definitions of turns.

    Args:
        access: tells whether nobody but the local user can come in: memories are then shared, and effects allowed.
        arrivals: tells whether a domain's documents are on their way; the first one is waited for.
        roles: the folder of the built-in roles.
    """

    def __init__(
        self,
        directory: Directory,
        access: Access,
        arrivals: Arrivals,
        defaults: Defaults,
        threads: DomainThreads,
        roles: Path,
    ) -> None:
        self._directory = directory
        self._access = access
        self._arrivals = arrivals
        self._defaults = defaults
        self._threads = threads
        self._roles = roles
        self._components = ComponentFiles()

    async def definition(self, user: User, conversation: ConversationRecord) -> tuple[Definition, tuple[Notice, ...]]:
        """Return what a turn of the conversation runs on now, and what its reader should be told first.

        Raises:
            NotFound: the domain is gone.
            WorkspaceUnavailable: its workspace does not answer.
        """
        domain_id = conversation.domain_id
        facts = await self._directory.first_facts(domain_id, self._arrivals)
        settings = await self._directory.settings(domain_id)
        record = await self._directory.get(domain_id)
        workspace = Path(record.workspace)
        library, sub_roles = RoleLibrary(workspace, self._roles), settings.sub_role_ids
        lines = await self._threads.read(domain_id, library.summaries, sub_roles) if sub_roles else {}
        components = await self.components(domain_id, workspace)
        misplaced = await self._threads.read(domain_id, find_misplaced, workspace)
        alone = self._access.alone
        definition = definition_of(
            user, conversation, record, settings, facts, components.texts, self._defaults, alone=alone
        )
        broken = [("PROMPT_COMPONENT_BROKEN", f"prompt/{name}", problem) for name, problem in components.problems]
        broken += [("WORKSPACE_FOLDER_BROKEN", name, problem) for name, problem in misplaced]
        notices = tuple(Notice(code, f"{name} cannot be used: {problem}.") for code, name, problem in broken)
        return replace(definition, role_lines=lines), notices

    async def components(self, domain_id: str, workspace: Path) -> Components:
        """Return the prompt components of a domain's workspace as they are now.

        Raises:
            WorkspaceUnavailable: the workspace does not answer.
        """
        return await self._threads.read(domain_id, self._components.read, workspace)


def definition_of(
    user: User,
    conversation: ConversationRecord,
    record: DomainRecord,
    settings: DomainSettings,
    facts: CollectionFacts,
    components: tuple[str, ...],
    defaults: Defaults,
    *,
    alone: bool,
) -> Definition:
    """Return what a turn of the conversation runs on.

    ``components``: texts of the workspace's prompt files. ``alone``: nobody but the local user can come in.
    """
    return Definition(
        domain_id=record.id,
        persona=Persona(
            name=record.name,
            role=settings.primary_role_id,
            language=settings.language,
            style=settings.response_style,
            tone=settings.tone,
            expertise=settings.expertise,
            components=components,
        ),
        model=defaults.model if defaults.only_model else defaults.bare(settings.model or defaults.model),
        max_tokens=settings.max_tokens,
        system=system_servers(settings, author=user.administers(record.id)),
        entries=turn_entries(settings),
        temperature=settings.temperature,
        thinking=settings.thinking or defaults.thinking,
        effort=settings.effort,
        fallback_model=None
        if defaults.only_model or settings.fallback_model is None
        else defaults.bare(settings.fallback_model),
        limits=Limits(
            settings.max_steps,
            settings.turn_timeout_seconds,
            settings.tool_timeout_seconds,
            settings.context_tokens,
            settings.context_messages,
        ),
        binding=Binding(
            workspace=record.workspace,
            collection=collection_of(record.id),
            documents=tuple(conversation.context_document_ids) or None,
            top_k=settings.retrieval_top_k,
            threshold=settings.retrieval_threshold,
            user=user.id,
            scope=settings.memory_scope or ("domain" if alone else "user"),
            admin=user.administers(record.id),
            sub_roles=tuple(settings.sub_role_ids),
        ),
        tool_policy=settings.tool_policy,
        effects_allowed_by_default=alone,
        collection_note=collection_note(facts, settings.expertise),
    )
