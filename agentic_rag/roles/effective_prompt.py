"""Show an author everything that a model gets before the first message: prompt, components and role, with sizes.

Also estimates the cost of each server's tools. Starts no users' servers, but uses the tools that they listed last.
Knows no request.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from agentic_rag.access.users import User
from agentic_rag.base.errors import NotFound
from agentic_rag.base.ids import ConversationId, SessionId
from agentic_rag.base.messages import plain_text
from agentic_rag.domains.definitions import DefinitionDraft, Definitions
from agentic_rag.domains.turn_tools import TurnTools
from agentic_rag.roles.roles import Roles, RoleView
from agentic_rag.runtime.core.deferred_tools import list_deferred, many_tokens
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.prompt import skills_block
from agentic_rag.runtime.core.request import begin_prompt_state, prompt_of, tool_specs
from agentic_rag.runtime.core.window import tokens_of
from agentic_rag.runtime.payload_reader import with_own_tools
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.tools.base import ToolInfo


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A text of the prompt. ``name`` is its file name or its kind; ``tokens`` is an estimate."""

    name: str
    text: str

    @property
    def characters(self) -> int:
        return len(self.text)

    @property
    def tokens(self) -> int:
        return tokens_of(self.text)


@dataclass(frozen=True, slots=True)
class ServerTokens:
    """Estimated tokens per request for the tool definitions of a server.

    ``deferred`` tools cost tokens only after the model has found them. ``tools`` is 0 for a server that has never
    listed its tools.
    """

    name: str
    tools: int
    tokens: int
    deferred: bool


@dataclass(frozen=True, slots=True)
class EffectivePrompt:
    """The prompt of a new conversation.

    ``bootstrap``, ``components``, ``skills``, ``catalogue`` (of deferred tools) and ``present`` (the date and the user)
    form the system prompt, in this order. ``role`` is loaded by a tool call. ``tools`` are those that the model sees at
    once, and ``tool_tokens`` is the estimate of their definitions. ``problems`` holds (file, problem) of components
    that are unreadable or cut. ``context_tokens`` is the domain's limit for a request.
    """

    bootstrap: PromptPart
    components: tuple[PromptPart, ...]
    skills: PromptPart | None
    catalogue: PromptPart | None
    present: PromptPart
    problems: tuple[tuple[str, str], ...]
    role_id: str
    role: RoleView | None
    tools: tuple[str, ...]
    tool_tokens: int
    servers: tuple[ServerTokens, ...]
    context_tokens: int


async def definition_now(
    definitions: Definitions, user: User, domain_id: str, draft: DefinitionDraft | None = None
) -> Definition:
    """Return the definition for a new conversation of the user, with the changes of a draft.

    Raises:
        NotFound: there is no such domain.
    """
    # No conversation exists yet, so every id is empty.
    place = ConversationRecord(
        id=ConversationId(""),
        domain_id=domain_id,
        owner_id=user.id,
        session_id=SessionId(""),
        context_document_ids=[],
        meta={},
        started_at="",
        updated_at="",
    )
    definition, _ = await definitions.definition(user, place, draft)
    return definition


async def effective_prompt(
    definitions: Definitions,
    roles: Roles,
    turn_tools: TurnTools,
    user: User,
    domain_id: str,
    draft: DefinitionDraft | None = None,
) -> EffectivePrompt:
    """Return the prompt of the user's next conversation, with the changes of a draft.

    Raises:
        NotFound: there is no such domain.
    """
    definition = await definition_now(definitions, user, domain_id, draft)
    workspace = Path(definition.binding.workspace)
    read = await definitions.components(domain_id, workspace, draft)
    tools = with_own_tools(definition, tuple(await turn_tools.known_tools(definition)))
    first = begin_prompt_state(definition, prompt_of(definition, tools, str(date.today())), tools).first
    # The blocks have no names, so they are taken off the end in the reverse of the order in which they are built.
    *texts, present = (plain_text([block]) for block in first.system)
    listed = PromptPart("catalogue", texts.pop()) if list_deferred(tools, many_tokens(definition.model)) else None
    has_skills = skills_block(definition.persona, [tool.name for tool in tools])
    skills = PromptPart("skills", texts.pop()) if has_skills else None
    same = read.texts == definition.persona.components  # a file may have changed between the two reads
    names = read.names if same and len(read.names) == len(texts) - 1 else ("",) * (len(texts) - 1)
    role_id = definition.persona.role
    try:
        role = await roles.get(domain_id, role_id)
    except NotFound:
        role = None
    return EffectivePrompt(
        PromptPart("bootstrap", texts[0]),
        tuple(PromptPart(name, text) for name, text in zip(names, texts[1:], strict=True)),
        skills,
        listed,
        PromptPart("present", present),
        (*read.problems, *read.cuts),
        role_id,
        role,
        tuple(tool["name"] for tool in first.tools),
        tokens_of(first.tools) if first.tools else 0,
        tuple(_costs(definition, tools)),
        definition.limits.context_tokens,
    )


def _costs(definition: Definition, tools: Sequence[ToolInfo]) -> Iterator[ServerTokens]:
    """Yield the cost of each server: built-in ones first, then users'."""
    deferred = {tool.name for tool in list_deferred(tools, many_tokens(definition.model))}
    names = dict.fromkeys([*(tool.server for tool in tools), *(entry.name for entry in definition.entries)])
    for name in names:
        own = [tool for tool in tools if tool.server == name]
        yield ServerTokens(
            name, len(own), tokens_of(tool_specs(definition, own)) if own else 0, any(t.name in deferred for t in own)
        )
