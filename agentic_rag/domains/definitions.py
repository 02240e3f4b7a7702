"""What a turn of a domain runs on: its record, settings, collection and prompt components as a `Definition`.

Owns what the operator decides for all domains, and how the two meet. Pure: knows no database and no file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from agentic_rag.access.users import User
from agentic_rag.directory.server_map import CollectionFacts, collection_note, collection_of, entries
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.runtime.core.definition import Definition, Limits, Persona
from agentic_rag.store.tables import Conversation, Domain


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the operator decides for all domains. ``only_model``: no other model can be asked for."""

    model: str
    only_model: bool = False
    thinking: Literal["off", "adaptive"] = "off"
    single_user: Callable[[], bool] = lambda: True
    """Whether nobody but the local user can come in: memories are then shared, and effects allowed."""


def definition_of(
    user: User,
    conversation: Conversation,
    record: Domain,
    facts: CollectionFacts,
    components: tuple[str, ...],
    defaults: Defaults,
) -> Definition:
    """Return what a turn of the conversation runs on now. ``components``: texts of the workspace's prompt files."""
    settings = DomainSettings.model_validate(record.settings)
    alone = defaults.single_user()
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
        model=defaults.model if defaults.only_model else settings.model or defaults.model,
        max_tokens=settings.max_tokens,
        servers=entries(settings, facts, author=user.administers(record.id)),
        temperature=settings.temperature,
        thinking=defaults.thinking,
        limits=Limits(
            settings.max_steps,
            settings.turn_timeout_seconds,
            settings.tool_timeout_seconds,
            settings.context_tokens,
            settings.context_messages,
        ),
        bound={
            "workspace": record.workspace,
            "collection": collection_of(record.id),
            "documents": list(conversation.context_document_ids) or None,
            "top_k": settings.retrieval_top_k,
            "threshold": settings.retrieval_threshold,
            "user": user.id,
            "scope": settings.memory_scope or ("domain" if alone else "user"),
            "admin": user.administers(record.id),
            "sub_roles": list(settings.sub_role_ids),
        },
        tool_policy=settings.tool_policy,
        effects_allowed_by_default=alone,
        collection_note=collection_note(facts, settings.expertise),
    )
