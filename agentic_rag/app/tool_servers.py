"""Create the project's own MCP servers, and open the tools of a turn from its definition.

This module decides which servers run in this process, and makes launch specs from entries. Importing it takes 0.5 s
(`mcp`), so the hub imports it in a thread after the server listens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple, Unpack

from sqlalchemy import Connection

from agentic_rag.access.auditing import audit
from agentic_rag.access.document_views import DocumentReader, DocumentViews
from agentic_rag.base.errors import AgenticRagError, SourceItemUnreadable, SourceUnreadable, WorkspaceUnavailable
from agentic_rag.base.json_form import Json
from agentic_rag.base.redaction import Redaction, Redactor
from agentic_rag.base.threads import DomainThreads
from agentic_rag.directory.collection import domain_of
from agentic_rag.documents.attachments import Attachments
from agentic_rag.documents.search import DomainSearch
from agentic_rag.domains.sign_in_secrets import OwnAddress, SignInListener
from agentic_rag.domains.sign_ins import SignIns
from agentic_rag.domains.vault import Vault
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.store import tool_lists
from agentic_rag.store.audit import Entry
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.tool_lists import ToolListRecord
from agentic_rag.tools.base import ToolInfo
from agentic_rag.tools.connection import Connection as ServerConnection
from agentic_rag.tools.elicitation import InputRound
from agentic_rag.tools.fingerprints import ToolList
from agentic_rag.tools.hub import Hub, HubObserver
from agentic_rag.tools.launch.policy import LaunchPolicy
from agentic_rag.tools.launch.spec import LaunchSpec, Secrets, spec_of
from agentic_rag.tools.lists import Key, ToolLists
from agentic_rag.tools.oauth.credentials import Accounts
from agentic_rag.tools.server_affinity import Homes
from agentic_rag.tools.status import ConnectionState, State
from agentic_rag.tools.system import DELEGATION, PROMPTX, RETRIEVER
from agentic_rag.tools.toolset import ServerToolset, list_known_tools, open_toolset
from mcp_servers.delegate.server import ChildRunner
from mcp_servers.delegate.server import create_server as create_delegate
from mcp_servers.promptx.errors import WorkspaceBusy
from mcp_servers.promptx.memory import MemoryCache
from mcp_servers.promptx.server import PromptXConfig
from mcp_servers.promptx.server import create_server as create_promptx
from mcp_servers.retriever.server import create_server as create_retriever

T = TypeVar("T")
Args = TypeVarTuple("Args")

TRIAL_SECONDS = 25.0
"""How long a server may take to start when an admin requested the start. This suffices to try both protocol eras."""

SOURCE_SECONDS = 60.0
"""Time limit of one request of a document source, unless the server's entry has its own."""


def make_hub(
    knowledge: DomainSearch,
    attachments: Attachments,
    views: DocumentViews,
    roles: Path,
    policy: LaunchPolicy,
    redactor: Redactor,
    children: ChildRunner,
    observer: HubObserver,
    max_memories: int,
    threads: DomainThreads,
    accounts: Accounts,
    shelf: MemoryCache,
    homes: Homes | None,
) -> Hub:
    """Create our own servers and return the pool that connects to them.

    ``roles`` is the folder of the built-in roles. ``shelf`` caches everyone's memories.
    """

    async def hidden_turns(bound: Json) -> frozenset[str]:
        domain_id = domain_of(str(bound.get("collection")))
        return await views.hidden_turns(DocumentReader.of_call(bound), domain_id)

    builtin = {
        DELEGATION: create_delegate(children),
        PROMPTX: create_promptx(
            PromptXConfig(builtin_roles=roles, bound_by_meta=True, max_memories=max_memories),
            _WorkspaceThreads(threads),
            shelf,
            hidden_turns,
        ),
        RETRIEVER: create_retriever(
            knowledge, knowledge, bound_by_meta=True, visible=knowledge.visible, attached=attachments.of_call
        ),
    }
    policy.sweep()
    return Hub(builtin, policy, redactor=redactor, observer=observer, threads=threads, accounts=accounts, homes=homes)


def make_sign_ins(
    database: Database, vault: Vault, policy: LaunchPolicy, address: OwnAddress, listener: SignInListener
) -> SignIns:
    """Return the sign-ins at users' servers. They follow the policy's network rules."""
    return SignIns(database, vault, policy, address, listener)


class _WorkspaceThreads:
    """Adapts the domains' threads for our roles and memories. Implements `mcp_servers.promptx.server.Threads`."""

    def __init__(self, threads: DomainThreads) -> None:
        self._threads = threads

    async def run(self, owner: str, work: Callable[[Unpack[Args]], T], *args: *Args) -> T:
        """See `Threads.run`."""
        try:
            return await self._threads.run(owner, work, *args)
        except WorkspaceUnavailable as exc:
            raise WorkspaceBusy(exc.reason) from exc


def make_lists(database: Database, redactor: Redactor) -> ToolLists:
    """Return the tool lists of users' servers. The database stores them without the secrets of their domain."""

    async def load(key: Key) -> ToolList | None:
        row = await database.read(lambda conn: tool_lists.get(conn, *key))
        return None if row is None else _list(row)

    async def save(lists: Mapping[Key, ToolList], note: object) -> None:
        def store(conn: Connection) -> None:
            for (domain, server, user), stored in lists.items():
                row = ToolListRecord(
                    domain_id=domain,
                    server=server,
                    user_id=user,
                    entry_hash=stored.entry,
                    tools=[dict(tool) for tool in stored.tools],
                    accepted=[dict(tool) for tool in stored.accepted],
                    updated_at=now(),
                )
                tool_lists.put(conn, row)
            if isinstance(note, Entry):
                audit(conn, note)

        await database.write(store, durable=note is not None)

    async def of_domain(domain: str) -> dict[Key, ToolList]:
        rows = await database.read(lambda conn: tool_lists.of_domain(conn, domain))
        return {(row.domain_id, row.server, row.user_id): _list(row) for row in rows}

    return ToolLists(load, save, of_domain, redactor)


def _list(row: ToolListRecord) -> ToolList:
    return ToolList(row.entry_hash, tuple(row.tools), tuple(row.accepted))


async def open_tools(hub: Hub, definition: Definition, secrets: Secrets, lists: ToolLists) -> ServerToolset:
    """Start the servers of a definition and return the tools of a turn. ``secrets`` are the domain's.

    An entry with missing values fails with the reason; the others continue.
    """
    return await open_toolset(hub, [*definition.system, *_specs(definition, secrets)], lists=lists)


async def known_tools(hub: Hub, definition: Definition, lists: ToolLists) -> tuple[ToolInfo, ...]:
    """Return the known tools of a turn without starting users' servers."""
    return await list_known_tools(hub, definition.system, _specs(definition, {}), lists)


def _specs(definition: Definition, secrets: Secrets) -> list[LaunchSpec]:
    return [
        spec_of(
            entry,
            domain=definition.domain_id,
            workspace=definition.binding.workspace,
            user=definition.binding.user,
            secrets=secrets,
        )
        for entry in definition.entries
    ]


def running(hub: Hub, domain: str) -> list[ConnectionState]:
    """Return the connections of a domain, and those to our own servers."""
    return [each.status() for each in hub.connections() if each.domain in ("", domain)]


async def restart(hub: Hub, spec: LaunchSpec) -> ConnectionState:
    """Restart a server and wait for it. A missing package is installed first."""
    try:
        await hub.prepare(spec)
    except AgenticRagError as exc:  # the running server continues; the state says why the saved entry cannot start
        return ConnectionState(spec.name, State.FAILED, reason=str(exc))
    hub.restart(spec.name, spec.domain)
    connections = await hub.acquire([spec], TRIAL_SECONDS)
    return _in_time(connections[spec.name], TRIAL_SECONDS)


async def trial(
    policy: LaunchPolicy,
    spec: LaunchSpec,
    observer: HubObserver,
    threads: DomainThreads,
    accounts: Accounts | None = None,
    seconds: float = TRIAL_SECONDS,
) -> ConnectionState:
    """Start a server in a separate pool, list its tools, and stop it. It may take ``seconds`` to start."""
    async with Hub(None, policy, observer=observer, threads=threads, accounts=accounts) as hub:
        try:
            await hub.prepare(spec)
        except AgenticRagError as exc:
            return ConnectionState(spec.name, State.FAILED, reason=str(exc))
        connections = await hub.acquire([spec], seconds)
        return _in_time(connections[spec.name], seconds)


class HubSource:
    """The connection of a document source to its server. Implements `agentic_rag.sources.mcp.SourceServer`."""

    def __init__(self, connection: ServerConnection, spec: LaunchSpec, lists: ToolLists, redact: Redaction) -> None:
        self._connection = connection
        self._spec = spec
        self._lists = lists
        self._redact = redact
        timeout = spec.entry.timeout_ms
        self._seconds = SOURCE_SECONDS if timeout is None else timeout / 1000

    async def list_resources(self, cursor: str | None) -> tuple[Json, str | None]:
        """See `SourceServer.list_resources`."""
        return await self._connection.list_resources(cursor, self._seconds)

    async def read_resource(self, uri: str) -> Json:
        """See `SourceServer.read_resource`."""
        return await self._connection.read_resource(uri, self._seconds)

    async def call(self, tool: str, arguments: Json) -> tuple[Sequence[Json], Any]:
        """See `SourceServer.call`. The rules for tools apply: excluded and changed ones do not run."""
        await self._check(tool)
        if self._redact.found_in(arguments):
            raise SourceUnreadable(f"an argument of {tool!r} contains a secret of the domain")
        result = await self._connection.call(tool, arguments, timeout=self._seconds)
        if isinstance(result, InputRound):
            raise SourceItemUnreadable(f"{tool!r} asks for a person's answer, which a source has not")
        blocks = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content]
        if result.is_error:
            text = " ".join(str(block.get("text", "")) for block in blocks)[:500]
            raise SourceItemUnreadable(f"{tool!r} failed: {text}")
        return blocks, result.structured_content

    async def _check(self, tool: str) -> None:
        """Check that a tool may run.

        Raises:
            SourceUnreadable: it is not listed, excluded, or changed since an admin accepted it.
        """
        entry = self._spec.entry
        listed = await self._connection.tools(self._seconds)
        accepted, changed = await self._lists.current(self._spec, listed)
        excluded = tool in entry.exclude or (entry.include and tool not in entry.include)
        if excluded or all(each.name != tool for each in accepted):
            why = "is excluded in the server's entry" if excluded else "is not among its accepted tools"
            raise SourceUnreadable(f"the tool {tool!r} of {entry.name!r} {why}")
        if tool in changed:
            raise SourceUnreadable(f"the tool {tool!r} of {entry.name!r} has changed; an admin has to accept it again")


async def open_source(hub: Hub, spec: LaunchSpec, lists: ToolLists, redact: Redaction) -> HubSource:
    """Start a server for a source, unless it runs. The first request reports why a server cannot start."""
    connection = (await hub.acquire([spec], TRIAL_SECONDS))[spec.name]
    return HubSource(connection, spec, lists, redact)


def _in_time(connection: ServerConnection, seconds: float) -> ConnectionState:
    """Return the state of a server after its time to start.

    If it is still starting, the state says that it took too long.
    """
    state = connection.status()
    if state.state is State.READY or state.reason:
        return state
    return replace(state, reason=f"it was not ready after {seconds:g} s")
