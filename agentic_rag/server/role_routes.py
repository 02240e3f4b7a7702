"""REST of roles, of memories, and of the prompt a model gets.

Owns what these routes take and answer. Knows no rule: whose role or memory may be changed is the business layer's.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeVar

from pydantic import Field, StringConstraints, field_validator

from agentic_rag.access.users import User
from agentic_rag.domains.definitions import Definitions
from agentic_rag.forms import Form
from agentic_rag.json_form import Absent, Json
from agentic_rag.roles.effective_prompt import EffectivePrompt, PromptPart, effective_prompt
from agentic_rag.roles.memories import Memories
from agentic_rag.roles.roles import Roles, RoleView
from agentic_rag.server.replies import Items, Redacted, answer, answer_from
from agentic_rag.server.routes import route
from mcp_servers.promptx.dpml import MAX_CHARS, Kind
from mcp_servers.promptx.ids import is_plain
from mcp_servers.promptx.ledger import Engram
from mcp_servers.promptx.lint import Finding
from mcp_servers.promptx.memory import MAX_CONTENT, MAX_CUES, MAX_SCHEMA
from mcp_servers.promptx.nuwa import MAX_FILES, RoleFile

T = TypeVar("T")

DOMAIN = "/api/domains/{domain}"
ROLE = f"{DOMAIN}/roles/{{role}}"
MEMORIES = f"{DOMAIN}/memories"

MAX_IMPORT = 1_000
"""Engrams of one request."""

LATEST_MS = 4_102_444_800_000
"""The year 2100: what another program dated later is shown as this, and refused when it is brought in."""

# What is taken


class NewFile(Form):
    """One file of a role: ``{id}.{kind}.md``."""

    kind: Kind
    id: str
    content: Annotated[str, StringConstraints(max_length=MAX_CHARS)]


class NewRole(Form):
    """Without ``files`` the template of a new role is written. ``replace`` false: a file that exists is a refusal."""

    files: tuple[NewFile, ...] | None = Field(None, min_length=1, max_length=MAX_FILES)
    replace: bool = True


class MemoryQuery(Form):
    """Which memories: of one role or of all; ``q`` is part of the content or a keyword."""

    role: str | None = None
    q: str = Field("", max_length=2_000)
    offset: int = Field(0, ge=0, le=1_000_000)
    limit: int = Field(50, ge=1, le=100)


class OfRole(Form):
    """The role whose memory is meant; all when left out."""

    role: str | None = None


class WholeMemory(Form):
    """The role whose memory is meant."""

    role: str


PlainText = Annotated[str, StringConstraints(min_length=1)]


class NewEngram(Form):
    """A memory of another place, with the id and the time it has there (``createdAt`` in milliseconds)."""

    id: Annotated[PlainText, StringConstraints(max_length=100)]
    content: Annotated[PlainText, StringConstraints(max_length=MAX_CONTENT)]
    cues: tuple[PlainText, ...] = Field(min_length=2, max_length=MAX_CUES)
    type: Literal["ATOMIC", "LINK", "PATTERN"]
    strength: float = Field(ge=0, le=1)
    created_at: int = Field(ge=0, le=LATEST_MS)

    @field_validator("cues")
    @classmethod
    def _cues_fit(cls, cues: tuple[str, ...]) -> tuple[str, ...]:
        if sum(map(len, cues)) > MAX_SCHEMA or not all(map(is_plain, cues)):
            raise ValueError(f"at most {MAX_SCHEMA} characters of plain Unicode")
        return cues

    @field_validator("id", "content")
    @classmethod
    def _is_plain(cls, text: str) -> str:
        if not is_plain(text):
            raise ValueError("plain Unicode text is expected, without NUL")
        return text


class NewMemories(Form):
    """Memories to add, and how often each cue was recalled."""

    engrams: tuple[NewEngram, ...] = Field((), max_length=MAX_IMPORT)
    frequencies: dict[str, Annotated[int, Field(ge=0, le=2**31)]] = Field(default_factory=dict)


# What is answered


@answer()
class RoleLine:
    """One line of a list of roles; ``findings`` counts those of its own file."""

    id: str
    source: str
    title: str
    findings: int


@answer()
class RoleText:
    """One file of a role; ``content`` is null when it cannot be read."""

    kind: str
    id: str
    source: str
    file: str
    content: str | None


@answer()
class Role:
    """A role as a model would get it, with its findings and files; ``text`` is null when its file is broken.

    ``characters`` and ``tokens``: how large the text is, where a prompt is shown.
    """

    id: str
    source: str
    text: str | None
    hash: str | None
    notes: Sequence[str]
    findings: Sequence[Finding]
    files: Sequence[RoleText]
    characters: Absent[int] = None
    tokens: Absent[int] = None


@answer(kw_only=True)
class WrittenRole(Role):
    """A role with the paths of the files that were just written."""

    written: Sequence[str]


@answer()
class Part:
    """A text of the prompt and its size."""

    name: str
    text: str
    characters: int
    tokens: int


@answer()
class PromptProblem:
    """A component that is not in the prompt, and why."""

    name: str
    problem: str


@answer()
class Size:
    """The size of a text; ``tokens``: about."""

    characters: int
    tokens: int


@answer()
class Prompt:
    """The prompt with the size of each part; ``present`` is the day, and who asks; ``role`` is null when there is none
    of that id."""

    bootstrap: Part
    components: Sequence[Part]
    present: Part
    problems: Sequence[PromptProblem]
    role: Role | None
    role_id: str
    tools: Sequence[str]
    system: Size


@answer()
class Memory:
    """One memory of a role."""

    role: str
    id: str
    content: str
    cues: Sequence[str]
    type: str
    strength: float
    created_at: str
    author: str
    """Id of the user in whose turn it was remembered, or who added it; empty when nobody knows."""
    turn_id: str


@answer()
class MemoryPage(Items[T]):
    """Part of what there is, newest first; ``roles`` are those that have memories, ``total`` counts all that match."""

    scope: str
    roles: Sequence[str]
    total: int


@answer()
class MemoryExport:
    """A whole memory; ``createdAt`` in milliseconds, as PromptX keeps it and an import takes it."""

    role: str
    scope: str
    engrams: Sequence[Json]
    frequencies: dict[str, int]


@answer()
class ImportedMemories:
    """How many memories came, and how many were there before."""

    added: int
    known: int


class RoleRoutes:
    """Roles of a domain, and the prompt."""

    def __init__(self, roles: Roles, definitions: Definitions) -> None:
        self._roles = roles
        self._definitions = definitions

    @route("GET", f"{DOMAIN}/roles")
    async def list_roles(self, domain: str) -> Items[RoleLine]:
        """List roles."""
        return Items([answer_from(RoleLine, info) for info in await self._roles.list_of(domain)])

    @route("GET", f"{DOMAIN}/role-findings")
    async def check(self, domain: str) -> Items[Finding]:
        """Check the files of all roles."""
        return Items(await self._roles.check(domain))

    @route("GET", ROLE)
    async def get(self, domain: str, role: str) -> Role:
        """Show a role as a model would get it."""
        return _role(await self._roles.get(domain, role))

    @route("PUT", ROLE)
    async def put(self, domain: str, role: str, body: NewRole) -> WrittenRole:
        """Write a role's files."""
        files = None if body.files is None else [RoleFile(each.kind, each.id, each.content) for each in body.files]
        paths = await self._roles.write(domain, role, files, replace=body.replace)
        return answer_from(WrittenRole, _role(await self._roles.get(domain, role)), written=paths)

    @route("DELETE", ROLE)
    async def delete(self, domain: str, role: str) -> None:
        """Delete a role's files."""
        await self._roles.delete(domain, role)

    @route("GET", f"{DOMAIN}/effective-prompt")
    async def prompt(self, user: User, domain: str) -> Prompt:
        """Show what a model is told before the first message."""
        return _prompt(await effective_prompt(self._definitions, self._roles, user, domain))


class MemoryRoutes:
    """Memories; whose they are follows from the caller and the domain's ``memoryScope``."""

    def __init__(self, memories: Memories) -> None:
        self._memories = memories

    @route("GET", MEMORIES, allow="member")
    async def list_memories(self, user: User, domain: str, query: MemoryQuery) -> Redacted[MemoryPage[Memory]]:
        """List memories, newest first."""
        page = await self._memories.browse(
            user, domain, role=query.role, q=query.q, offset=query.offset, limit=query.limit
        )
        items = [_memory(role, engram) for role, engram in page.items]
        return Redacted(domain, answer_from(MemoryPage, page, items=items))

    @route("GET", f"{MEMORIES}/export", allow="member", large=True)
    async def export(self, user: User, domain: str, query: WholeMemory) -> Redacted[MemoryExport]:
        """Show all memories of a role, in the form that an import takes."""
        export = await self._memories.export(user, domain, query.role)
        return Redacted(domain, answer_from(MemoryExport, export, engrams=[each.to_json() for each in export.engrams]))

    @route("POST", f"{MEMORIES}/import", allow="member", audited=True)
    async def add(self, user: User, domain: str, query: WholeMemory, body: NewMemories) -> ImportedMemories:
        """Add memories to a role's; ids that are there stay as they are."""
        engrams = [
            Engram(each.id, each.content, each.type, each.strength, each.created_at, each.cues) for each in body.engrams
        ]
        added = await self._memories.add(user, domain, query.role, engrams, body.frequencies)
        return ImportedMemories(added, len(engrams) - added)

    @route("DELETE", f"{MEMORIES}/{{memory}}", allow="member", audited=True)
    async def delete(self, user: User, domain: str, memory: str, query: OfRole) -> None:
        """Forget one memory, its bytes too."""
        await self._memories.delete(user, domain, memory, role=query.role)


def _role(view: RoleView) -> Role:
    files = [answer_from(RoleText, each) for each in view.files]
    return answer_from(Role, view, source=view.files[0].source, files=files)


def _prompt(prompt: EffectivePrompt) -> Prompt:
    parts = [prompt.bootstrap, *prompt.components, prompt.present]
    role = None if prompt.role is None else _role(prompt.role)
    if role is not None and role.text is not None:
        part = PromptPart("role", role.text)
        role = answer_from(Role, role, characters=part.characters, tokens=part.tokens)
    return Prompt(
        bootstrap=answer_from(Part, prompt.bootstrap),
        components=[answer_from(Part, each) for each in prompt.components],
        present=answer_from(Part, prompt.present),
        problems=[PromptProblem(name, problem) for name, problem in prompt.problems],
        role=role,
        role_id=prompt.role_id,
        tools=prompt.tools,
        system=Size(sum(each.characters for each in parts), sum(each.tokens for each in parts)),
    )


def _memory(role: str, engram: Engram) -> Memory:
    return answer_from(Memory, engram, role=role, created_at=_time(engram.created_at), turn_id=engram.turn)


def _time(ms: int) -> str:
    moment = datetime.fromtimestamp(min(max(0, ms), LATEST_MS) / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
