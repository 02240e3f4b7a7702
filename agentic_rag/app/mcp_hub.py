"""The MCP hub of this process. It is loaded on first use and serves the business layer.

This module runs the task that owns the hub, and opens the tools of a turn's definition. Importing it is cheap, because
a thread loads `tool_servers` and the protocol library later.
"""

import importlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from agentic_rag.access.keys import Access
from agentic_rag.base.settings import Settings, client_environment
from agentic_rag.base.threads import DomainThreads
from agentic_rag.documents.attachments import Attachments
from agentic_rag.documents.search import DomainSearch
from agentic_rag.domains.guarded_tools import guard_tools
from agentic_rag.domains.sign_in_secrets import OwnAddress, SignInListener
from agentic_rag.domains.vault import Vault
from agentic_rag.operations.server_affinity import DomainHomes
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.server.hosts import is_loopback
from agentic_rag.store.audit import Entry
from agentic_rag.store.clock import new_id
from agentic_rag.store.database import Database
from agentic_rag.tools.base import SystemServer, ToolInfo, Toolset
from agentic_rag.tools.launch.addresses import parse_hosts
from agentic_rag.tools.launch.allowed import LaunchCatalogue
from agentic_rag.tools.launch.packages import Packages
from agentic_rag.tools.launch.policy import LaunchPolicy
from agentic_rag.tools.launch.registry_clients import client_sandbox
from agentic_rag.tools.launch.spec import LaunchSpec
from agentic_rag.tools.status import ConnectionState, PendingTools, State
from mcp_servers.promptx.memory import MemoryCache

if TYPE_CHECKING:
    from agentic_rag.app.tool_servers import HubSource
    from agentic_rag.domains.sign_ins import SignIns
    from agentic_rag.tools.hub import Hub, HubObserver
    from agentic_rag.tools.lists import ToolLists
    from mcp_servers.delegate.server import ChildRunner


KEPT_TOOLS = 256
"""Maximum number of domains whose toolsets of our own servers are cached."""
END_SECONDS = 10.0
"""How long deleting a domain waits for its servers to end. They are killed in any case."""


class McpHub:
    """All MCP connections of this process. One task owns them from their first use to the end.

    An async context manager. Implements `agentic_rag.domains.servers.Pool`. `open` is called before each turn.
    """

    def __init__(
        self,
        knowledge: DomainSearch,
        attachments: Attachments,
        roles: Path,
        policy: LaunchPolicy,
        vault: Vault,
        database: Database,
        children: "ChildRunner",
        observer: "HubObserver",
        max_memories: int,
        threads: DomainThreads,
        address: OwnAddress,
        listener: SignInListener,
        shelf: MemoryCache,
    ) -> None:
        """Take the collaborators.

        ``observer`` is notified of each entry that may not start or may not connect to its address. ``max_memories``
        limits one role's memories of one user. ``shelf`` caches the memories. ``address`` is the address to which
        browsers return from a sign-in. ``listener`` is notified of each completed sign-in.
        """
        self.owner = new_id("run")
        """This process's name in leases, including those of its turns."""
        self._max_memories = max_memories
        self._threads = threads
        self._shelf = shelf
        self._address = address
        self._listener = listener
        self._children = children
        self._observer = observer
        self._knowledge = knowledge
        self._attachments = attachments
        self._roles = roles
        self._policy = policy
        self._vault = vault
        self._database = database
        self._wanted = anyio.Event()
        self._ready = anyio.Event()
        self._leaving = anyio.Event()
        self._own_tools: OrderedDict[str, tuple[tuple[SystemServer, ...], Toolset]] = OrderedDict()
        """Toolsets without users' servers by domain, least recently used first."""
        self._hub: Hub
        self._lists: ToolLists
        self._sign_ins: SignIns
        self._tasks: TaskGroup

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._own)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        self._leaving.set()
        if not self._ready.is_set():
            self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(exc_type, exc, tb)

    def load(self) -> None:
        """Start loading, unless it has started."""
        self._wanted.set()

    async def open(self, definition: Definition) -> Toolset:
        """Return the tools of a turn when loading is complete. Secrets are read now, and only for users' servers.

        If a turn uses only our own servers and their lists have not changed, the toolset of the domain's last turn is
        returned.
        """
        await self.wait_loaded()
        if not definition.entries and (known := self._find_own(definition)) is not None:
            return known
        from agentic_rag.app.tool_servers import open_tools  # `wait_loaded` imported this module already

        values = await self._vault.values(definition.domain_id) if definition.entries else {}
        redact = self._vault.redact.of(definition.domain_id)
        made = guard_tools(await open_tools(self._hub, definition, values, self._lists), definition, redact)
        if not definition.entries:
            self._own_tools[definition.domain_id] = definition.system, made
            if len(self._own_tools) > KEPT_TOOLS:
                self._own_tools.popitem(last=False)
        return made

    async def open_source(self, spec: LaunchSpec) -> "HubSource":
        """Return the connection of a document source. See `agentic_rag.sources.runs.SourceServers`."""
        await self.wait_loaded()
        from agentic_rag.app.tool_servers import open_source

        return await open_source(self._hub, spec, self._lists, self._vault.redact.of(spec.domain))

    def _find_own(self, definition: Definition) -> Toolset | None:
        """Return the cached toolset of our own servers for a domain, or None if it is outdated."""
        system, tools = self._own_tools.get(definition.domain_id, ((), None))
        if tools is None or system != definition.system or not tools.fresh:
            return None
        self._own_tools.move_to_end(definition.domain_id)
        return tools

    async def sign_ins(self) -> "SignIns":
        """Return the sign-ins at users' servers, when loading is complete."""
        await self.wait_loaded()
        return self._sign_ins

    async def known_tools(self, definition: Definition) -> Sequence[ToolInfo]:
        """See `Pool.known_tools`."""
        await self.wait_loaded()
        from agentic_rag.app.tool_servers import known_tools

        return await known_tools(self._hub, definition, self._lists)

    async def running(self, domain: str) -> Sequence[ConnectionState]:
        """See `Pool.running`."""
        await self.wait_loaded()
        from agentic_rag.app.tool_servers import running

        return running(self._hub, domain)

    async def restart(self, spec: LaunchSpec) -> ConnectionState:
        """See `Pool.restart`."""
        await self.wait_loaded()
        from agentic_rag.app.tool_servers import restart

        return await restart(self._hub, spec)

    async def trial(self, spec: LaunchSpec) -> ConnectionState:
        """See `Pool.trial`."""
        await self.wait_loaded()
        from agentic_rag.app.tool_servers import trial

        return await trial(self._policy, spec, self._observer, self._threads, self._sign_ins)

    async def pending(self, domain: str, entries: Mapping[str, str]) -> dict[str, PendingTools]:
        """See `Pool.pending`."""
        await self.wait_loaded()
        return await self._lists.pending(domain, entries)

    async def accept(self, domain: str, server: str, entry: str, seen: str, told: Entry) -> tuple[str, ...]:
        """See `Pool.accept`."""
        await self.wait_loaded()
        return await self._lists.accept(domain, server, entry, seen, told)

    def forget_lists(self, domain: str | None) -> None:
        """Drop the cached tool lists of a domain, or of all domains for None."""
        if self._ready.is_set():
            self._lists.forget(domain)

    async def servers_changed(self, domain: str, entries: Mapping[str, str] | None) -> None:
        """Stop the servers of a domain that are removed or disabled. ``entries`` is None for a deleted domain.

        For a deleted domain all servers are stopped and their private folders are removed.
        """
        leaving = self._hub.keep(domain, entries or {}) if self._ready.is_set() else []
        if entries is not None:
            return  # no caller waits for the servers to end
        with anyio.move_on_after(END_SECONDS):
            for connection in leaving:
                await connection.wait_ended()
        await self._threads.run(domain, self._policy.remove_homes, domain)

    def restart_users(self) -> None:
        """Restart all users' servers that may still start."""
        if self._ready.is_set():
            self._hub.restart_users()

    def status(self) -> Sequence[ConnectionState]:
        """Return the state of each connection."""
        if not self._ready.is_set():
            return [ConnectionState(name, State.STARTING) for name in ("promptx", "retriever")]
        return self._hub.status()

    async def wait_loaded(self) -> None:
        """Start loading if needed, and wait until it is complete."""
        if not self._ready.is_set():  # waiting for a set event would still yield to the event loop
            self.load()
            await self._ready.wait()

    async def _own(self) -> None:
        await self._wanted.wait()
        await anyio.to_thread.run_sync(importlib.import_module, "agentic_rag.app.tool_servers")
        from agentic_rag.app.tool_servers import make_hub, make_lists, make_sign_ins

        redactor = self._vault.redact
        self._lists = make_lists(self._database, redactor)
        self._sign_ins = make_sign_ins(self._database, self._vault, self._policy, self._address, self._listener)
        async with make_hub(
            self._knowledge,
            self._attachments,
            self._knowledge.views,
            self._roles,
            self._policy,
            redactor,
            self._children,
            self._observer,
            self._max_memories,
            self._threads,
            self._sign_ins,
            self._shelf,
            DomainHomes(self._database, self.owner) if self._database.shared else None,
        ) as self._hub:
            self._ready.set()
            await self._leaving.wait()


def launch_policy(settings: Settings, access: Access, any_command: bool, unsandboxed: bool) -> LaunchPolicy:
    """Return the policy that decides which servers may start or be connected to. Its data is below ``{data}/mcp``.

    Only the homes of child processes are below this process's own folder, where it finds those left by an earlier
    process.
    """
    folder = settings.data / "mcp"
    lifted = (unsandboxed or any_command) and is_loopback(settings.host)
    return LaunchPolicy(
        settings.own / "mcp" / "homes",
        catalogue=LaunchCatalogue(folder),
        packages=Packages(folder, client_environment(), sandbox=partial(client_sandbox, unsandboxed=lifted)),
        hosts=parse_hosts(settings.mcp_hosts),
        allow_any_command=any_command,
        allow_unsandboxed=unsandboxed,
        loopback=is_loopback(settings.host),
        people=access,
        data=settings.data,
        programs=folder / "local",
        disk_reserve=settings.disk_reserve,
        shared=folder if settings.database_url else None,
    )
