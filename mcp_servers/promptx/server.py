"""The MCP edge: tools, arguments and results. A host uses it in process, and `__main__` runs it alone.

Owns tool names, descriptions, schemas, and the binding of a call to its caller. Knows nothing of the implementation of
roles and memories. Blocking work runs in worker threads, so that the event loop never waits.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol, TypeVar, TypeVarTuple, Unpack

import anyio.to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field, PlainValidator, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from mcp_servers import __version__
from mcp_servers.promptx.builtin import BUILTIN_ROLES
from mcp_servers.promptx.dpml import KINDS, Resources
from mcp_servers.promptx.errors import BadRoleFile, NotAllowed, NotBound, PromptXError, RoleNotReachable, UnknownRole
from mcp_servers.promptx.ledger import Engram
from mcp_servers.promptx.memory import SHELF, Memory, MemoryCache, memory_folder
from mcp_servers.promptx.new_engrams import read_batch
from mcp_servers.promptx.nuwa import RoleFile
from mcp_servers.promptx.presentation import (
    Json,
    Result,
    describe_activation,
    describe_error,
    describe_findings,
    describe_forgotten,
    describe_recollection,
    describe_roles,
    describe_saved,
    describe_skill,
    describe_skill_file,
    describe_written,
)
from mcp_servers.promptx.roles import RoleLibrary
from mcp_servers.promptx.skills import BODY, SkillLibrary

META_PREFIX: Final = "agentic_rag/"
META_WORKSPACE: Final = "agentic_rag/workspace"
META_USER: Final = "agentic_rag/user"
META_SCOPE: Final = "agentic_rag/scope"
META_ADMIN: Final = "agentic_rag/admin"
META_TURN: Final = "agentic_rag/turn"
META_ROLE: Final = "agentic_rag/role"
META_MEMORY_ROLES: Final = "agentic_rag/memory_roles"
"""Ids of other roles whose memories a call may use: the domain's primary role, its sub-roles, activated ones."""
META_DRAFT: Final = "agentic_rag/draft"
"""Draft files of the role that an author tries, each ``{kind, id, content}``. They count like written files."""

HiddenTurns = Callable[[Json], Awaitable[frozenset[str]]]
"""A host's function that returns the turns whose memories a caller must not see.

Its argument has the members of the call's meta without their prefix.
"""

T = TypeVar("T")
Args = TypeVarTuple("Args")

SAVE_SECONDS: Final = 10.0
"""How long the end of a session waits for saving the memories, in seconds. The end of the process saves again."""


@dataclass(frozen=True, slots=True)
class PromptXConfig:
    """The configuration of a server, including the source of each call's caller.

    `bound_by_meta` True (in process): the caller comes only from each request's `_meta`. False (alone): the caller
    comes from the other fields, and `_meta` is ignored. `role_write` adds the two author tools to a server that runs
    alone. `max_memories`: maximum number of engrams of one memory. None: no limit.
    """

    workspace: Path | None = None
    builtin_roles: Path = BUILTIN_ROLES
    scope: str = "domain"
    user: str | None = None
    bound_by_meta: bool = False
    role_write: bool = False
    max_memories: int | None = None


class Threads(Protocol):
    """Threads for blocking work. A host limits the threads of each workspace, so that a slow one delays no other."""

    async def run(self, owner: str, work: Callable[[Unpack[Args]], T], *args: *Args) -> T:
        """Run work for ``owner``, the path of a workspace. May raise `WorkspaceBusy` before the work begins."""
        ...


class OneWorkspace:
    """The threads of a server that runs alone and has only one workspace."""

    async def run(self, owner: str, work: Callable[[Unpack[Args]], T], *args: *Args) -> T:
        """Run work; see `Threads.run`."""
        return await anyio.to_thread.run_sync(work, *args)


@dataclass(frozen=True, slots=True)
class _Caller:
    """The caller of one tool call."""

    workspace: Path
    scope: str
    user: str | None
    admin: bool
    roles: RoleLibrary
    shelf: MemoryCache
    turn: str = ""
    """Id of the calling turn. Empty if the server runs alone."""
    role: str = ""
    """The role whose memory a call without a role uses. Empty if the server runs alone: calls must name a role."""
    memory_roles: tuple[str, ...] = ()
    """Other roles whose memories a call may use, bound by the host."""
    hidden: frozenset[str] = frozenset()
    """Ids of turns whose memories this caller must not see, named by the host."""

    @property
    def own_only(self) -> bool:
        """Whether the caller may change only their own engrams: in a host's shared memory, unless they are an admin."""
        return bool(self.role) and self.scope == "domain" and not self.admin

    def is_of_others(self, engrams: Iterable[Engram]) -> bool:
        """Return whether other people than this user may have written engrams. True in any shared memory of a host."""
        shared = self.scope == "domain" and bool(self.turn)
        return any(shared or engram.author not in ("", self.user or "") for engram in engrams)

    def role_named(self, role: str) -> str:
        """Return the role whose memory a call uses: ``role``, or the conversation's role if the call names none.

        Raises:
            RoleNotReachable: the host binds the possible roles, and ``role`` is not among them.
        """
        if not self.role:
            return role
        possible = dict.fromkeys((self.role, *self.memory_roles))
        if role and role not in possible:
            raise RoleNotReachable(role, list(possible))
        return role or self.role

    def memory(self, role: str) -> AbstractContextManager[Memory]:
        """Open the part of a role's memory that this caller may see. Raises like `whole_memory`."""
        return self.shelf.visible(self.whole_memory(role).folder, self.hidden)

    def whole_memory(self, role: str) -> Memory:
        """Return the memory of a role that exists, or that left a memory (for example in a copied PromptX folder).

        Raises:
            BadRoleId, UnknownRole, RoleNotReachable, BadScope.
        """
        role = self.role_named(role)
        if self.role:  # the host binds roles that exist
            return self.shelf.memory(memory_folder(self.workspace, self.scope, self.user, role))
        folder = memory_folder(self.workspace, self.scope, self.user, role)
        if not self.shelf.has(folder) and folder.name not in (role_ids := self.roles.ids()):
            raise UnknownRole(role, role_ids)
        return self.shelf.memory(folder)


def _query(value: object) -> object:
    """Return a query that is text, a list of texts, or None. Raises `ValueError` for other values."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return value
    raise ValueError("query must be text, a list of cues, or null")


RoleId = Annotated[str, Field(description="A role's id.")]
HiddenRole = Annotated[SkipJsonSchema[str], Field(description="A role's id.")]
"""PromptX clients and role files pass the role in every call. Other callers need not know the parameter."""
NewRoleId = Annotated[str, Field(description="Id of the role to create or change.")]
Mode = Annotated[
    Literal["creative", "balanced", "focused"],
    Field(description="focused: few and close; creative: many and far."),
]
# Declared as plain `str` because the SDK parses every other argument type as JSON first, which would turn the
# query "null" into None. The validator lets None and lists through.
Query = Annotated[
    str,
    PlainValidator(_query),
    WithJsonSchema({"type": "string"}),  # a list of cues is also accepted, as in PromptX
    Field(description="Words of the map, or of the question."),
]
Engrams = Annotated[
    list[Any],
    WithJsonSchema(
        {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["content", "schema", "strength", "type"],
                "properties": {
                    "content": {"type": "string"},
                    "schema": {"type": "string", "description": "Two or more keywords that lead to it."},
                    "strength": {"type": "number", "minimum": 0, "maximum": 1},
                    "type": {"enum": ["ATOMIC", "LINK", "PATTERN"]},
                    "replaces": {"type": "string", "description": "Id of the memory that no longer holds."},
                },
            },
        }
    ),
]
Files = Annotated[
    list[Any],
    WithJsonSchema(
        {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["kind", "id", "content"],
                "properties": {
                    "kind": {"enum": list(KINDS)},
                    "id": {"type": "string", "description": "File name without its suffix, any script."},
                    "content": {"type": "string", "description": "The whole file, in its <kind>…</kind> tag."},
                },
            },
        }
    ),
    Field(description="Files of this role; a role refers to the others as @!kind://id."),
]

SkillName = str
SkillPath = Annotated[str, Field(description="Without it, its instructions.")]
SkillStart = Annotated[int, Field(ge=0)]

_READS: Final = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
_ADDS: Final = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False
)
_REPLACES: Final = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False
)


class _Tools:
    """The implementations of the tools. Their parameters are the schema that the model sees."""

    def __init__(
        self, config: PromptXConfig, threads: Threads, shelf: MemoryCache, hidden_turns: HiddenTurns | None
    ) -> None:
        self._config = config
        self._threads = threads
        self._shelf = shelf
        self._hidden_turns = hidden_turns

    async def action(self, ctx: Context, role: RoleId, roleResources: Resources = "all") -> CallToolResult:
        def work(caller: _Caller) -> Result:
            return describe_activation(caller.roles.activate(role, roleResources))

        return await self._run(ctx, work)

    async def recall(
        self, ctx: Context, query: Query = "", mode: Mode = "balanced", role: HiddenRole = ""
    ) -> CallToolResult:
        return await self.recall_as(ctx, role, query, mode)

    async def recall_as(self, ctx: Context, role: RoleId, query: Query = "", mode: Mode = "balanced") -> CallToolResult:
        def work(caller: _Caller) -> Result:
            with caller.memory(role) as memory:
                recollection = memory.recall(query or None, mode, _now_ms())
            return describe_recollection(
                recollection, others_text=caller.is_of_others((*recollection.answer, *recollection.overview))
            )

        return await self._run(ctx, work)

    async def remember(self, ctx: Context, engrams: Engrams, role: HiddenRole = "") -> CallToolResult:
        return await self.remember_as(ctx, role, engrams)

    async def remember_as(self, ctx: Context, role: RoleId, engrams: Engrams) -> CallToolResult:
        limit = self._config.max_memories

        def work(caller: _Caller) -> Result:
            batch, author = read_batch(engrams), caller.user or ""
            with caller.memory(role) as memory:
                done = memory.remember(
                    batch, _now_ms(), author=author, turn=caller.turn, limit=limit, own_only=caller.own_only
                )
            return describe_saved(done, caller.role_named(role), others_text=caller.is_of_others(done.others))

        return await self._run(ctx, work)

    async def forget(self, ctx: Context, id: str, role: HiddenRole = "") -> CallToolResult:
        return await self.forget_as(ctx, role, id)

    async def forget_as(self, ctx: Context, role: RoleId, id: str) -> CallToolResult:
        def work(caller: _Caller) -> Result:
            # Looked up in the visible part, where a hidden engram does not exist, and deleted from the whole memory,
            # so that its predecessors are deleted even if they are hidden.
            with caller.memory(role) as memory:
                memory.check_known(id)
            whole = caller.whole_memory(role)
            return describe_forgotten(whole.forget(id, caller.user or "", own_only=caller.own_only))

        return await self._run(ctx, work)

    async def discover(self, ctx: Context) -> CallToolResult:
        def work(caller: _Caller) -> Result:
            return describe_roles(caller.roles.list())

        return await self._run(ctx, work)

    async def read_skill_file(
        self, ctx: Context, skill: SkillName, path: SkillPath = "", start: SkillStart = 0
    ) -> CallToolResult:
        def work(caller: _Caller) -> Result:
            library = SkillLibrary(caller.workspace)
            if path in ("", BODY) and not start:
                return describe_skill(library.get(skill))
            name = path or BODY
            return describe_skill_file(skill, name, library.read(skill, name), start)

        return await self._run(ctx, work)

    async def role_write(self, ctx: Context, role: NewRoleId, files: Files) -> CallToolResult:
        def work(caller: _Caller) -> Result:
            if not caller.admin:
                raise NotAllowed("role_write")
            return describe_written(role, caller.roles.write(role, _files(files)), caller.workspace)

        return await self._run(ctx, work)

    async def role_check(self, ctx: Context, role: RoleId = "") -> CallToolResult:
        def work(caller: _Caller) -> Result:
            if not caller.admin:
                raise NotAllowed("role_check")
            return describe_findings(caller.roles.check(role or None))

        return await self._run(ctx, work)

    async def _run(self, ctx: Context, work: Callable[[_Caller], Result]) -> CallToolResult:
        """Run blocking work in a worker thread. A `PromptXError` becomes an error result for the model."""
        try:
            caller = self._caller(ctx)
            if self._hidden_turns is not None:
                caller = replace(caller, hidden=await self._hidden_turns(_bound_members(ctx)))
            text, structured = await self._threads.run(str(caller.workspace), work, caller)
        except PromptXError as exc:
            return CallToolResult(
                content=[TextContent(text=str(exc))], structured_content=describe_error(exc), is_error=True
            )
        return CallToolResult(content=[TextContent(text=text)], structured_content=structured)

    def _caller(self, ctx: Context) -> _Caller:
        config = self._config
        if not config.bound_by_meta:
            workspace = config.workspace or Path.cwd()
            roles = RoleLibrary(workspace, config.builtin_roles)
            return _Caller(workspace, config.scope, config.user, config.role_write, roles, self._shelf)
        meta: dict[str, Any] = dict(ctx.request_context.meta or {})
        where, scope, user = meta.get(META_WORKSPACE), meta.get(META_SCOPE), meta.get(META_USER)
        if not isinstance(where, str) or not Path(where).is_absolute():
            raise NotBound(META_WORKSPACE, "the absolute path of the workspace")
        if scope not in ("user", "domain"):
            raise NotBound(META_SCOPE, "'user' or 'domain'")
        if scope == "user" and not (isinstance(user, str) and user):
            raise NotBound(META_USER, "the id of the user")
        workspace = Path(where)
        turn, role = meta.get(META_TURN), meta.get(META_ROLE)
        if not (isinstance(role, str) and role):
            raise NotBound(META_ROLE, "the id of the role whose memory it is")
        turn = turn if isinstance(turn, str) else ""
        drafts = _files(meta.get(META_DRAFT) or [])
        roles = RoleLibrary(workspace, config.builtin_roles, drafted=role, drafts=drafts)
        admin, named_roles = meta.get(META_ADMIN) is True, meta.get(META_MEMORY_ROLES)
        memory_roles = tuple(str(role) for role in named_roles) if isinstance(named_roles, list | tuple) else ()
        return _Caller(workspace, scope, user, admin, roles, self._shelf, turn, role, memory_roles)


def _bound_members(ctx: Context) -> Json:
    """Return the members of a call's meta that the host binds, without their prefix."""
    meta: dict[str, Any] = dict(ctx.request_context.meta or {})
    return {key.removeprefix(META_PREFIX): value for key, value in meta.items() if key.startswith(META_PREFIX)}


def _files(items: Sequence[Any]) -> list[RoleFile]:
    """Return the role files that the model sent.

    Raises:
        BadRoleFile: an item is not `{kind, id, content}`.
    """
    files: list[RoleFile] = []
    for index, item in enumerate(items):
        values = item if isinstance(item, dict) else {}
        kind, key, content = values.get("kind"), values.get("id"), values.get("content")
        known_kind = next((candidate for candidate in KINDS if candidate == kind), None)
        if known_kind is None or not isinstance(key, str) or not isinstance(content, str):
            raise BadRoleFile(index)
        files.append(RoleFile(known_kind, key, content))
    return files


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_ABOUT_ACTION: Final = (
    "Take on a role and follow what comes back. Call it at the start, or when the task needs another role."
)
_ABOUT_RECALL: Final = (
    "Look into your memory: before a task without query, for the map of what is known; then with words. Of what "
    "contradicts, the newest holds."
)
_ABOUT_REMEMBER: Final = (
    "Save facts (ATOMIC), relations (LINK), procedures (PATTERN) worth knowing next time, nothing that a document "
    "says. "
    'Example: {"content": "Ana wants invoices as PDF", "schema": "Ana invoices PDF", "strength": 0.8, "type": "ATOMIC"}'
)
_ABOUT_FORGET: Final = "Delete a memory for good."
_ABOUT_DISCOVER: Final = "List the roles that can be activated, each with one line about it."
_ABOUT_SKILL: Final = "Read a skill before its task, or a file of it from a character on."
_ABOUT_WRITE: Final = (
    "Create or replace files of a role in this workspace. All files are checked first; if one has an error, nothing "
    "is written and the findings come back. The role is live at its next activation."
)
_ABOUT_CHECK: Final = "Check role files, all or those of one role. Returns findings with file, line, column and hint."


def _lifespan(shelf: MemoryCache) -> Callable[[MCPServer[Any]], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(server: MCPServer[Any]) -> AsyncIterator[None]:
        """Complete the memories' files at the end of a session, so that their folders can be copied."""
        try:
            yield
        finally:
            # Shielded, because a session often ends by being cancelled. A thread that takes longer is left behind.
            with anyio.move_on_after(SAVE_SECONDS, shield=True):
                await anyio.to_thread.run_sync(shelf.save, abandon_on_cancel=True)

    return lifespan


def create_server(
    config: PromptXConfig,
    threads: Threads | None = None,
    shelf: MemoryCache = SHELF,
    hidden_turns: HiddenTurns | None = None,
) -> MCPServer[Any]:
    """Return the MCP server. In process, create it once and open many sessions on it.

    ``threads``: threads for blocking work. ``shelf``: the cache of open memories. ``hidden_turns``: names the memories
    that a caller must not see.

    In process (`config.bound_by_meta`) the server has `promptx_action`, `promptx_recall`, `promptx_remember`,
    `promptx_forget`, `promptx_discover`, `read_skill_file`, `role_write` and `role_check`. The host binds the role for
    calls that name none, and the other roles that a call may name. The host hides the last three tools where they do
    not apply. In any case, the last two require `_meta["agentic_rag/admin"]` at the call.

    Alone, the server has the first five tools, also under their names without prefix. As in PromptX, the memory's role
    is a required argument. `config.role_write` adds the last two tools. Other hosts read skills themselves.
    """
    server: MCPServer[Any] = MCPServer(
        "promptx", title="PromptX roles and memory", version=__version__, lifespan=_lifespan(shelf)
    )
    tools = _Tools(config, threads or OneWorkspace(), shelf, hidden_turns)
    bound = config.bound_by_meta
    recall, remember, forget = (
        (tools.recall, tools.remember, tools.forget) if bound else (tools.recall_as, tools.remember_as, tools.forget_as)
    )
    for prefix in ("promptx_",) if bound else ("promptx_", ""):
        server.add_tool(tools.action, f"{prefix}action", "Activate role", _ABOUT_ACTION, _READS)
        server.add_tool(recall, f"{prefix}recall", "Recall", _ABOUT_RECALL, _READS)
        server.add_tool(remember, f"{prefix}remember", "Remember", _ABOUT_REMEMBER, _ADDS)
        server.add_tool(forget, f"{prefix}forget", "Forget", _ABOUT_FORGET, _REPLACES)
        server.add_tool(tools.discover, f"{prefix}discover", "Discover roles", _ABOUT_DISCOVER, _READS)
    if config.bound_by_meta:
        server.add_tool(tools.read_skill_file, "read_skill_file", "Read a skill", _ABOUT_SKILL, _READS)
    if config.bound_by_meta or config.role_write:
        server.add_tool(tools.role_write, "role_write", "Write role", _ABOUT_WRITE, _REPLACES)
        server.add_tool(tools.role_check, "role_check", "Check roles", _ABOUT_CHECK, _READS)
    return server
