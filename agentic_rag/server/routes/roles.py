"""REST routes of roles, memories, and the prompt of a model.

Defines request and answer models. The business layer decides who may change a role or memory.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, StringConstraints, field_validator
from starlette.requests import Request

from agentic_rag.access.users import User
from agentic_rag.base.errors import (
    BodyTooLarge,
    ChangeOnTrial,
    CommandNotAllowed,
    Forbidden,
    QuotaExceeded,
    ServerReserved,
)
from agentic_rag.base.forms import Form
from agentic_rag.base.ids import TurnId
from agentic_rag.base.json_form import Absent, Json
from agentic_rag.domains.component_errors import ComponentChanged
from agentic_rag.domains.components import READ_LIMIT
from agentic_rag.domains.definitions import DefinitionDraft, Definitions
from agentic_rag.domains.domains import Domains
from agentic_rag.domains.prompt_files import NOT_THERE, PromptFile, PromptFiles, check_name
from agentic_rag.domains.turn_tools import TurnTools
from agentic_rag.evaluation.gate import ChangeGate
from agentic_rag.roles.effective_prompt import EffectivePrompt, PromptPart, effective_prompt
from agentic_rag.roles.memories import Memories
from agentic_rag.roles.roles import Roles, RoleView
from agentic_rag.roles.skills import Skills
from agentic_rag.server.replies import Items, Redacted, answer, answer_from
from agentic_rag.server.routes.role_forms import DraftedFiles, NewRole
from agentic_rag.server.routing import route
from mcp_servers.promptx.ids import is_plain
from mcp_servers.promptx.ledger import Engram, Which
from mcp_servers.promptx.lint import Finding
from mcp_servers.promptx.new_engrams import MAX_CONTENT, MAX_CUES, MAX_SCHEMA
from mcp_servers.promptx.skills import SkillFile

T = TypeVar("T")

DOMAIN = "/api/domains/{domain}"
ROLE = f"{DOMAIN}/roles/{{role}}"
COMPONENTS = f"{DOMAIN}/prompt-components"
MEMORIES = f"{DOMAIN}/memories"

MAX_IMPORT = 1_000
"""Maximum engrams of one request."""
IMPORTED_VALUES = 100_000
"""Maximum JSON items and members of such a request: engrams with keywords, and recall counts."""

LATEST_MS = 4_102_444_800_000
"""The year 2100. Later dates of other programs are shown as this one, and refused in an import."""

# Requests


class NewComponent(Form):
    """A prompt component: Markdown."""

    content: str = Field(max_length=READ_LIMIT)


class DraftComponent(Form):
    """A draft of a prompt component. A null ``content`` stands for a deleted component."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    content: str | None = Field(max_length=READ_LIMIT)


class PromptDraft(Form):
    """Unsaved changes: ``settings`` as in PATCH of the domain (admins only), and ``components`` by name."""

    settings: dict[str, Any] = Field(default_factory=dict)
    components: tuple[DraftComponent, ...] = Field((), max_length=100)


class MemoryQuery(Form):
    """Filter for memories of one role or of all. ``q`` searches contents and keywords.

    ``show`` selects current, replaced or proposed memories, or all.
    """

    role: str | None = None
    q: str = Field("", max_length=2_000)
    show: Which = "current"
    offset: int = Field(0, ge=0, le=1_000_000)
    limit: int = Field(50, ge=1, le=100)


class RecallQuery(Form):
    """A query: the words of ``q``, or one cue by name. Without either, the strongest memories are recalled."""

    role: str
    q: str = Field("", max_length=2_000)
    cue: str = Field("", max_length=2_000)
    mode: Literal["creative", "balanced", "focused"] = "balanced"

    @property
    def asked(self) -> str | tuple[str, ...] | None:
        return (self.cue,) if self.cue else self.q or None


class OfRole(Form):
    """The role of the memory; all roles if omitted."""

    role: str | None = None


class WholeMemory(Form):
    """The role of the memory."""

    role: str


PlainText = Annotated[str, StringConstraints(min_length=1)]


class EngramForm(Form):
    """A memory from another store, with its id and time there (``createdAt`` in milliseconds)."""

    id: Annotated[PlainText, StringConstraints(max_length=100)]
    content: Annotated[PlainText, StringConstraints(max_length=MAX_CONTENT)]
    cues: tuple[PlainText, ...] = Field(min_length=2, max_length=MAX_CUES)
    type: Literal["ATOMIC", "LINK", "PATTERN"]
    strength: float = Field(ge=0, le=1)
    created_at: int = Field(ge=0, le=LATEST_MS)
    replaces: str = Field("", max_length=100)
    replaced_by: str = Field("", max_length=100)

    @field_validator("cues")
    @classmethod
    def _cues_fit(cls, cues: tuple[str, ...]) -> tuple[str, ...]:
        if sum(map(len, cues)) > MAX_SCHEMA or not all(map(is_plain, cues)):
            raise ValueError(f"at most {MAX_SCHEMA} characters of plain Unicode")
        return cues

    @field_validator("id", "content", "replaces", "replaced_by")
    @classmethod
    def _is_plain(cls, text: str) -> str:
        if not is_plain(text):
            raise ValueError("plain Unicode text is expected, without NUL")
        return text


class NewMemories(Form):
    """Memories to add, and recall counts of cues."""

    engrams: tuple[EngramForm, ...] = Field((), max_length=MAX_IMPORT)
    frequencies: dict[str, Annotated[int, Field(ge=0, le=2**31)]] = Field(default_factory=dict)


# Answers


@answer()
class RoleLine:
    """One line of a list of roles. ``findings`` counts those of its own file."""

    id: str
    source: str
    title: str
    findings: int


@answer()
class SkillAnswer:
    """A skill in the workspace. ``usable`` skills are offered. Digests are SHA-256."""

    name: str
    description: str
    usable: bool
    files: Sequence[SkillFile]
    findings: Sequence[Finding]
    digest: str


@answer()
class ExportedSkill:
    """The name of a role as a skill, and its ``SKILL.md``."""

    name: str
    content: str


@answer()
class RoleTextAnswer:
    """One file of a role. ``content`` is null if it is unreadable."""

    kind: str
    id: str
    source: str
    file: str
    content: str | None


@answer()
class Role:
    """A role as a model would get it, with findings and files. ``text`` is null if its file is broken.

    ``characters`` and ``tokens`` are the size of the text in a prompt.
    """

    id: str
    source: str
    text: str | None
    hash: str | None
    notes: Sequence[str]
    findings: Sequence[Finding]
    files: Sequence[RoleTextAnswer]
    characters: Absent[int] = None
    tokens: Absent[int] = None


@answer(kw_only=True)
class WrittenRoleAnswer(Role):
    """A role, and the paths of the files just written."""

    written: Sequence[str]


@answer()
class PromptPreviewPart:
    """A text of the prompt and its size."""

    name: str
    text: str
    characters: int
    tokens: int


@answer()
class PromptProblem:
    """A component that is missing from the prompt, with the reason."""

    name: str
    problem: str


@answer()
class Size:
    """The size of a text; ``tokens`` is an estimate."""

    characters: int
    tokens: int


@answer()
class ServerCostAnswer:
    """Tokens per request for the tool definitions of a server. ``deferred`` tools cost none until the model finds them.

    ``tools`` is 0 for a server that has never listed its tools.
    """

    name: str
    tools: int
    tokens: int
    deferred: bool


@answer()
class PromptAnswer:
    """The prompt, and the size of each part.

    ``present`` is the date and the user. ``role`` is null if there is no such role, ``skills`` if there are none,
    ``catalogue`` if no tools are deferred. ``tools`` are those that the model sees at once, ``toolTokens`` the size of
    their definitions, and ``requestTokens`` that plus the system prompt: the start of each request, whose limit is
    ``contextTokens``. ``counted`` names the method: ``estimate`` is the server's own, a third of the bytes. A role's
    text is added once it is activated.
    """

    bootstrap: PromptPreviewPart
    components: Sequence[PromptPreviewPart]
    skills: PromptPreviewPart | None
    catalogue: PromptPreviewPart | None
    present: PromptPreviewPart
    problems: Sequence[PromptProblem]
    role: Role | None
    role_id: str
    tools: Sequence[str]
    servers: Sequence[ServerCostAnswer]
    system: Size
    tool_tokens: int
    request_tokens: int
    context_tokens: int
    counted: Literal["estimate"] = "estimate"


@answer()
class MemoryAnswer:
    """One memory of a role."""

    role: str
    id: str
    content: str
    cues: Sequence[str]
    type: str
    strength: float
    created_at: str
    author: str
    """Id of the user who added the memory or in whose turn it was saved; empty if unknown."""
    turn_id: TurnId
    """The turn in which it was said."""
    proposed: bool
    """True if the server extracted the memory from that turn without a request. Deleting it undoes that."""
    replaces: Absent[str] = None
    replaced_by: Absent[str] = None


@answer()
class MemoryPageAnswer(Items[T]):
    """A page of memories, newest first. ``roles`` are those with memories, ``total`` counts all matches."""

    scope: str
    roles: Sequence[str]
    total: int


@answer()
class RecallEdge:
    """A step from one cue to another; ``source`` was activated first."""

    source: str
    target: str
    weight: float


@answer()
class Recall:
    """The memories that a role recalls: the activated cues in order, the steps between them, and the results.

    ``center`` is the first cue. ``fallback`` says why words other than the query's were used. ``engrams`` are ranked.
    ``overview`` holds the strongest memories, if nothing was asked or found. ``matched`` counts the ``engrams`` with
    words of the query.
    """

    role: str
    activated: Sequence[str]
    edges: Sequence[RecallEdge]
    center: str | None
    mode: str
    fallback: str | None
    engrams: Sequence[MemoryAnswer]
    overview: Sequence[MemoryAnswer]
    matched: int
    mindmap: Sequence[str]


@answer()
class MemoryExport:
    """A whole memory; ``createdAt`` is in milliseconds, as in PromptX and in an import."""

    role: str
    scope: str
    engrams: Sequence[Json]
    frequencies: dict[str, int]


@answer()
class ImportedMemories:
    """Numbers of added and of already known memories."""

    added: int
    known: int


class RoleRoutes:
    """Roles of a domain, and the prompt."""

    def __init__(
        self, roles: Roles, definitions: Definitions, turn_tools: TurnTools, domains: Domains, gate: ChangeGate
    ) -> None:
        self._gate = gate
        self._domains = domains
        self._roles = roles
        self._definitions = definitions
        self._turn_tools = turn_tools

    @route("GET", f"{DOMAIN}/roles", allow="author")
    async def list_roles(self, domain: str) -> Items[RoleLine]:
        """List roles."""
        return Items([answer_from(RoleLine, info) for info in await self._roles.list_of(domain)])

    @route("GET", f"{DOMAIN}/role-findings", allow="author")
    async def check(self, domain: str) -> Items[Finding]:
        """Check the files of all roles."""
        return Items(await self._roles.check(domain))

    @route("GET", ROLE, allow="author")
    async def get(self, domain: str, role: str) -> Role:
        """Show a role as a model would get it."""
        return _role(await self._roles.get(domain, role))

    @route("PUT", ROLE, allow="author", errors=[ChangeOnTrial])
    async def put(self, domain: str, role: str, body: NewRole) -> WrittenRoleAnswer:
        """Write a role's files."""
        files = body.to_files()
        await self._gate.guard_role(domain, role, files)
        paths = await self._roles.write(domain, role, files, replace=body.replace)
        return answer_from(WrittenRoleAnswer, _role(await self._roles.get(domain, role)), written=paths)

    @route("POST", f"{ROLE}/check", allow="author", audited=False)
    async def check_draft(self, domain: str, role: str, body: DraftedFiles) -> Role:
        """Show a role as a model would get it with these files, and the findings; nothing is stored."""
        return _role(await self._roles.draft(domain, role, body.to_files()))

    @route("DELETE", ROLE, allow="author")
    async def delete(self, domain: str, role: str) -> None:
        """Delete a role's files."""
        await self._roles.delete(domain, role)

    @route("GET", f"{DOMAIN}/effective-prompt", allow="author")
    async def prompt(self, user: User, domain: str) -> PromptAnswer:
        """Show the prompt of a model before the first message, and the token cost of each server's tools."""
        return _prompt(await effective_prompt(self._definitions, self._roles, self._turn_tools, user, domain))

    @route(
        "POST",
        f"{DOMAIN}/effective-prompt",
        allow="author",
        audited=False,
        errors=[BodyTooLarge, ServerReserved, CommandNotAllowed],
    )
    async def draft_prompt(self, user: User, domain: str, body: PromptDraft) -> PromptAnswer:
        """Show the prompt with unsaved settings and components; nothing is stored."""
        if body.settings and not user.administers(domain):
            raise Forbidden("Only an admin of the domain may try other settings; an author may try other components.")
        settings = await self._domains.settings_after(domain, body.settings) if body.settings else None
        draft = DefinitionDraft(settings, _drafts(body.components))
        return _prompt(await effective_prompt(self._definitions, self._roles, self._turn_tools, user, domain, draft))


class PromptRoutes:
    """Prompt components: Markdown files that are part of the system prompt."""

    def __init__(self, files: PromptFiles, gate: ChangeGate) -> None:
        self._files = files
        self._gate = gate

    @route("GET", COMPONENTS, allow="author")
    async def list_components(self, domain: str) -> Items[PromptFile]:
        """List prompt components with their texts, in order."""
        return Items(await self._files.list_of(domain))

    @route("PUT", f"{COMPONENTS}/{{name}}", allow="author", errors=[BodyTooLarge, ComponentChanged, ChangeOnTrial])
    async def put(self, request: Request, domain: str, name: str, body: NewComponent) -> PromptFile:
        """Write a prompt component. The change takes effect at the next turn.

        ``If-Match`` names the expected ``version``. With ``If-None-Match: *``, the component must not exist yet.
        """
        await self._gate.guard_component(domain, name, body.content)
        return await self._files.write(domain, name, body.content, _version(request))

    @route("DELETE", f"{COMPONENTS}/{{name}}", allow="author", errors=[ChangeOnTrial])
    async def delete(self, domain: str, name: str) -> None:
        """Delete a prompt component."""
        await self._gate.guard_component(domain, name, None)
        await self._files.delete(domain, name)


class SkillRoutes:
    """Skills of a domain's workspace, and its roles in the form of skills."""

    def __init__(self, skills: Skills) -> None:
        self._skills = skills

    @route("GET", f"{DOMAIN}/skills", allow="author")
    async def list_skills(self, domain: str) -> Items[SkillAnswer]:
        """List the skills of the workspace, including broken ones, with their files and findings."""
        return Items([answer_from(SkillAnswer, skill) for skill in await self._skills.list_of(domain)])

    @route("GET", f"{ROLE}/skill", allow="author")
    async def export(self, domain: str, role: str) -> ExportedSkill:
        """Show a role in the form of a skill."""
        return ExportedSkill(*await self._skills.export(domain, role))


class MemoryRoutes:
    """Memories of the caller or of the domain, depending on the domain's ``memoryScope``."""

    def __init__(self, memories: Memories) -> None:
        self._memories = memories

    @route("GET", MEMORIES, allow="member")
    async def list_memories(
        self, user: User, domain: str, query: MemoryQuery
    ) -> Redacted[MemoryPageAnswer[MemoryAnswer]]:
        """List memories, newest first."""
        page = await self._memories.browse(
            user, domain, role=query.role, q=query.q, offset=query.offset, limit=query.limit, which=query.show
        )
        items = [_memory(role, engram) for role, engram in page.items]
        return Redacted(domain, answer_from(MemoryPageAnswer, page, items=items))

    @route("GET", f"{MEMORIES}/recall", allow="member")
    async def recall(self, user: User, domain: str, query: RecallQuery) -> Redacted[Recall]:
        """Show which memories a role would recall, and the network it uses. No recall is counted."""
        recalled = await self._memories.recall(user, domain, query.role, query.asked, query.mode)
        return Redacted(
            domain,
            answer_from(
                Recall,
                recalled,
                role=query.role,
                activated=recalled.mind.activated,
                edges=[RecallEdge(edge.source, edge.target, edge.weight) for edge in recalled.edges],
                engrams=[_memory(query.role, engram) for engram in recalled.answer],
                overview=[_memory(query.role, engram) for engram in recalled.overview],
            ),
        )

    @route("GET", f"{MEMORIES}/export", allow="member", large=True)
    async def export(self, user: User, domain: str, query: WholeMemory) -> Redacted[MemoryExport]:
        """Show all memories of a role, in the form of an import."""
        export = await self._memories.export(user, domain, query.role)
        return Redacted(
            domain, answer_from(MemoryExport, export, engrams=[engram.to_json() for engram in export.engrams])
        )

    @route(
        "POST", f"{MEMORIES}/import", allow="member", audited=True, max_values=IMPORTED_VALUES, errors=[QuotaExceeded]
    )
    async def add(self, user: User, domain: str, query: WholeMemory, body: NewMemories) -> ImportedMemories:
        """Add memories to a role. Memories with known ids stay unchanged."""
        engrams = [
            Engram(
                engram.id,
                engram.content,
                engram.type,
                engram.strength,
                engram.created_at,
                engram.cues,
                replaces=engram.replaces,
                replaced_by=engram.replaced_by,
            )
            for engram in body.engrams
        ]
        added = await self._memories.add(user, domain, query.role, engrams, body.frequencies)
        return ImportedMemories(added, len(engrams) - added)

    @route("DELETE", f"{MEMORIES}/{{memory}}", allow="member", audited=True)
    async def delete(self, user: User, domain: str, memory: str, query: OfRole) -> None:
        """Delete one memory and the memories it replaced, including their bytes on disk."""
        await self._memories.delete(user, domain, memory, role=query.role)


def _role(view: RoleView) -> Role:
    files = [answer_from(RoleTextAnswer, file) for file in view.files]
    return answer_from(Role, view, source=view.files[0].source, files=files)


def _drafts(components: Sequence[DraftComponent]) -> dict[str, str | None]:
    """Return the texts of components by name.

    Raises:
        InvalidInput: a name is not valid.
    """
    for at, component in enumerate(components):
        check_name(component.name, f"components.{at}.name")
    return {component.name: component.content for component in components}


def _prompt(prompt: EffectivePrompt) -> PromptAnswer:
    listed = [part for part in (prompt.skills, prompt.catalogue) if part]
    parts = [prompt.bootstrap, *prompt.components, *listed, prompt.present]
    size = Size(sum(part.characters for part in parts), sum(part.tokens for part in parts))
    role = None if prompt.role is None else _role(prompt.role)
    if role is not None and role.text is not None:
        part = PromptPart("role", role.text)
        role = answer_from(Role, role, characters=part.characters, tokens=part.tokens)
    return PromptAnswer(
        bootstrap=answer_from(PromptPreviewPart, prompt.bootstrap),
        components=[answer_from(PromptPreviewPart, component) for component in prompt.components],
        skills=answer_from(PromptPreviewPart, prompt.skills) if prompt.skills else None,
        catalogue=answer_from(PromptPreviewPart, prompt.catalogue) if prompt.catalogue else None,
        present=answer_from(PromptPreviewPart, prompt.present),
        problems=[PromptProblem(name, problem) for name, problem in prompt.problems],
        role=role,
        role_id=prompt.role_id,
        tools=prompt.tools,
        servers=[answer_from(ServerCostAnswer, server) for server in prompt.servers],
        system=size,
        tool_tokens=prompt.tool_tokens,
        request_tokens=size.tokens + prompt.tool_tokens,
        context_tokens=prompt.context_tokens,
    )


def _version(request: Request) -> str | None:
    """Return the version that a component must have by the request's conditions; None: any."""
    if request.headers.get("if-none-match", "").strip() == "*":
        return NOT_THERE
    condition = request.headers.get("if-match", "*").strip()
    # A proxy that compresses answers makes their tags weak.
    return None if condition == "*" else condition.removeprefix("W/").strip('"')


def _memory(role: str, engram: Engram) -> MemoryAnswer:
    return answer_from(
        MemoryAnswer,
        engram,
        role=role,
        created_at=_time(engram.created_at),
        turn_id=engram.turn,
        replaces=engram.replaces or None,
        replaced_by=engram.replaced_by or None,
    )


def _time(ms: int) -> str:
    moment = datetime.fromtimestamp(min(max(0, ms), LATEST_MS) / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
