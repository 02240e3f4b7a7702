"""What a model is sent before the first message, shown to its author: prompt, components, role, with sizes.

Owns the assembly of that view. Starts no server: only our own tools have words in the prompt, and which of them a
turn has follows from its definition. Knows no request.
"""

from dataclasses import dataclass
from datetime import date
from pathlib import Path

from agentic_rag.access.users import User
from agentic_rag.domains.definitions import Definitions
from agentic_rag.errors import NotFound
from agentic_rag.messages import plain_text
from agentic_rag.roles.roles import Roles, RoleView
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.request import prompt_of
from agentic_rag.runtime.core.transcript import tokens_of
from agentic_rag.runtime.kept_results import with_own_tools
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.tools.base import SystemServer, ToolInfo
from agentic_rag.tools.system import SYSTEM_TOOLS


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A text of the prompt; ``name`` is its file's, or what it is. ``tokens``: about."""

    name: str
    text: str

    @property
    def characters(self) -> int:
        return len(self.text)

    @property
    def tokens(self) -> int:
        return tokens_of(self.text)


@dataclass(frozen=True, slots=True)
class EffectivePrompt:
    """``bootstrap``, ``components`` and ``present`` (the day, and who asks) are the system prompt, in order; ``role``
    comes through the tool, if it does.

    ``tools``: our own tools of a turn of this user. ``problems``: (file, problem) of components.
    """

    bootstrap: PromptPart
    components: tuple[PromptPart, ...]
    present: PromptPart
    problems: tuple[tuple[str, str], ...]
    role_id: str
    role: RoleView | None
    tools: tuple[str, ...]


async def definition_now(definitions: Definitions, user: User, domain_id: str) -> Definition:
    """Return what a turn of a new conversation of the user would run on.

    Raises:
        NotFound: there is no such domain.
    """
    place = ConversationRecord(
        id="",
        domain_id=domain_id,
        owner_id=user.id,
        session_id="",
        context_document_ids=[],
        meta={},
        started_at="",
        updated_at="",
    )
    definition, _ = await definitions.definition(user, place)
    return definition


async def effective_prompt(definitions: Definitions, roles: Roles, user: User, domain_id: str) -> EffectivePrompt:
    """Return the prompt of the user's next conversation.

    Raises:
        NotFound: there is no such domain.
    """
    definition = await definition_now(definitions, user, domain_id)
    workspace = Path(definition.binding.workspace)
    read = await definitions.components(domain_id, workspace)
    tools = with_own_tools(definition, tuple(tool for server in definition.system for tool in _own_tools(server)))
    *texts, present = (plain_text([block]) for block in prompt_of(definition, tools, str(date.today())).system)
    same = read.texts == definition.persona.components  # a file may have been edited in between
    names = read.names if same and len(read.names) == len(texts) - 1 else ("",) * (len(texts) - 1)
    role_id = definition.persona.role
    try:
        role = await roles.get(domain_id, role_id)
    except NotFound:
        role = None
    return EffectivePrompt(
        PromptPart("bootstrap", texts[0]),
        tuple(PromptPart(name, text) for name, text in zip(names, texts[1:], strict=True)),
        PromptPart("present", present),
        read.problems,
        role_id,
        role,
        tuple(tool.name for tool in tools),
    )


def _own_tools(server: SystemServer) -> list[ToolInfo]:
    """The tools of one of our own servers, by name alone: the prompt asks for no more."""
    every = tuple(tool.name for tool in SYSTEM_TOOLS if tool.server == server.name)
    names = every if server.tools is None else server.tools
    return [ToolInfo(name, name, server.name, server.origin, "", {"type": "object"}) for name in names]
