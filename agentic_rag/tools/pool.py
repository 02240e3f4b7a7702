"""All MCP connections of the process: which requests share one, when each starts, and when it ends.

Owns the task group in which every connection lives. Knows no tool names and no domains beyond the label in a spec. This
module is cheap to import: the connector, which needs the MCP library, is loaded on first use.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary, WeakValueDictionary

import anyio
from anyio.abc import TaskGroup

from agentic_rag.base.errors import AgenticRagError, ServerUnavailable
from agentic_rag.base.threads import DomainThreads
from agentic_rag.tools.base import SystemServer
from agentic_rag.tools.launch.catalogue import CatalogueEntry
from agentic_rag.tools.launch.policy import LaunchPolicy, Trust
from agentic_rag.tools.launch.spec import LaunchSpec
from agentic_rag.tools.status import ConnectionState, State

if TYPE_CHECKING:  # these modules import the MCP library
    from agentic_rag.tools.connection import Connection
    from agentic_rag.tools.connector import Connector

CLOSE_SECONDS = 10.0
"""Time limit for closing all connections, after which they are cancelled (children are killed in any case)."""
END_SECONDS = 10.0
"""How long deleting a domain waits for its servers to end. They are killed in any case."""
START_SECONDS = 25.0
"""How long a server may take to start when an admin requested the start. This suffices to try both protocol eras."""

_RUNNING = (State.STARTING, State.READY, State.DEGRADED)
"""States of a connection that has a child process or soon gets one."""


class McpPool:
    """All MCP connections; an async context manager, entered once for the life of the process.

    All domains share the one in-memory connection to each of our own servers. Nothing is loaded or started on entering:
    `load` or the first method that needs a connection begins to load the connector.
    """

    def __init__(
        self,
        load: Callable[[], Awaitable["Connector"]],
        policy: LaunchPolicy | None = None,
        threads: DomainThreads | None = None,
        *,
        builtin: Sequence[str] = (),
    ) -> None:
        """Store the collaborators.

        ``load`` creates the connector; the pool calls it at most once. ``policy`` says which tools are trusted and owns
        the private folders of servers. ``threads`` run the removal of these folders. ``builtin`` names our own servers
        that `status` reports as starting until the connector is loaded.
        """
        self._load_connector = load
        self._policy = policy
        self._threads = threads or DomainThreads()
        self._builtin = builtin
        self._connector: Connector
        self._loading = False
        self._loaded = anyio.Event()
        # By the key of the spec, which covers its secrets. A stopped connection leaves when no toolset refers to it.
        self._shared: WeakValueDictionary[str, Connection] = WeakValueDictionary()
        self._trusted: WeakKeyDictionary[Connection, tuple[tuple[CatalogueEntry, ...], Trust]] = WeakKeyDictionary()
        self._live: set[Connection] = set()
        """Holds all connections that are not stopped. A stopped one lives as long as a toolset refers to it."""
        self._tasks: TaskGroup | None = None

    @classmethod
    def of(cls, connector: "Connector", policy: LaunchPolicy | None = None) -> Self:
        """Return a pool with a connector that exists already."""

        async def load() -> "Connector":
            return connector

        return cls(load, policy)

    # -- the life of the pool ---------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close every connection in parallel, at most `CLOSE_SECONDS` long, also when the body was cancelled."""
        tasks, self._tasks = self._tasks, None
        if tasks is None:
            return
        for connection in list(self._live):
            connection.stop()
        tasks.cancel_scope.shield = True  # a cancelled body must not kill servers that are about to close
        tasks.cancel_scope.deadline = anyio.current_time() + CLOSE_SECONDS
        if not self._loaded.is_set():  # there are no connections yet
            tasks.cancel_scope.cancel()
        await tasks.__aexit__(None, None, None)

    def load(self) -> None:
        """Start loading the connector in the background, unless that has begun.

        Raises:
            ServerUnavailable: the pool is closing.
        """
        if not self._loading:
            self.spawn(self._load)
            self._loading = True

    async def wait_loaded(self) -> None:
        """Load the connector if needed, and wait until it is there."""
        if not self._loaded.is_set():  # waiting for a set event would still yield to the event loop
            self.load()
            await self._loaded.wait()

    async def _load(self) -> None:
        self._connector = await self._load_connector()
        self._loaded.set()

    # -- connections ------------------------------------------------------------------------------------------

    async def acquire(self, specs: Iterable[SystemServer | LaunchSpec], wait: float = 5.0) -> "dict[str, Connection]":
        """Return a connection for each spec, by name, started in parallel.

        Waits until each is ready or has failed, ``wait`` seconds at most for all together. A later call on a connection
        that is not ready waits for it. Entries that may not be started come back as ``failed``.
        """
        await self.wait_loaded()
        connections = {spec.name: self._connection(spec) for spec in specs}
        for connection in connections.values():
            connection.start()
        with anyio.move_on_after(wait):
            for connection in connections.values():
                await connection.wait_settled()
        return connections

    def connections(self) -> "list[Connection]":
        """Return every connection that is not stopped, in the order of `status`."""
        return sorted(
            self._live, key=lambda connection: (connection.domain, connection.name, connection.user, connection.retired)
        )

    def status(self, domain: str | None = None) -> tuple[ConnectionState, ...]:
        """Return the state of every connection that is not stopped, of one domain if given."""
        if not self._loaded.is_set():
            return tuple(ConnectionState(name, State.STARTING) for name in self._builtin)
        states = [connection.status() for connection in self._live if domain is None or connection.domain == domain]
        return tuple(sorted(states, key=lambda state: (state.domain, state.name, state.user)))

    async def running(self, domain: str) -> list[ConnectionState]:
        """Return the connections of a domain, and those to our own servers."""
        await self.wait_loaded()
        return [connection.status() for connection in self.connections() if connection.domain in ("", domain)]

    def trust(self, spec: LaunchSpec, connection: "Connection") -> Trust:
        """Return which tools of a server the launch catalogue trusts; ``connection`` is the one of the spec."""
        if self._policy is None:
            return Trust()
        entries = self._policy.catalogue.entries()
        cached = self._trusted.get(connection)
        if cached is None or cached[0] != entries:  # one connection belongs to one entry with all its values
            cached = self._trusted[connection] = entries, self._policy.trust(spec)
        return cached[1]

    # -- changes ----------------------------------------------------------------------------------------------

    def restart(self, name: str, domain: str | None = None) -> int:
        """Restart all connections of this name (in one domain, if given); returns how many there are."""
        same_name = [
            connection
            for connection in self._shared.values()
            if connection.name == name and domain in (None, connection.domain)
        ]
        to_restart = [connection for connection in same_name if not connection.retired]
        for connection in to_restart:
            connection.restart()
        return len(to_restart)

    async def restart_entry(self, spec: LaunchSpec) -> ConnectionState:
        """Restart a server and wait for it, `START_SECONDS` at most. A missing package is installed first."""
        await self.wait_loaded()
        try:
            await self._connector.prepare(spec)
        except AgenticRagError as exc:  # the running server continues; the state says why the saved entry cannot start
            return ConnectionState(spec.name, State.FAILED, reason=str(exc))
        self.restart(spec.name, spec.domain)
        return await self._start(spec, START_SECONDS)

    async def trial(self, spec: LaunchSpec, seconds: float = START_SECONDS) -> ConnectionState:
        """Start a separate instance of a server, list its tools, and stop it. It may take ``seconds`` to start."""
        await self.wait_loaded()
        try:
            await self._connector.prepare(spec)
        except AgenticRagError as exc:
            return ConnectionState(spec.name, State.FAILED, reason=str(exc))
        async with McpPool.of(self._connector.for_trials()) as pool:
            return await pool._start(spec, seconds)

    def restart_users(self) -> None:
        """Restart all connections except those to our own servers. A server that may no longer start stays down."""
        for connection in list(self._live):
            if not connection.in_process:
                connection.restart()

    def keep(self, domain: str, entries: Mapping[str, str]) -> "list[Connection]":
        """Stop a domain's connections to servers that are not among ``entries``; return those, which end soon.

        ``entries`` are the current servers, each with its `McpEntry.hash`. A connection created for another entry of
        the same name is retired.
        """
        leaving = []
        for key, connection in list(self._shared.items()):
            if connection.domain != domain or connection.in_process:
                continue
            if connection.name not in entries:
                leaving.append(connection)
                self._shared.pop(key, None)  # it never starts again: a later server of this name gets a new one
                connection.stop()
            elif connection.entry != entries[connection.name]:
                connection.retire()
        return leaving

    async def servers_changed(self, domain: str, entries: Mapping[str, str] | None) -> None:
        """Stop the servers of a domain that are removed or disabled; see `keep`.

        ``entries`` is None for a deleted domain: all its servers are stopped, and their private folders are removed
        when they have ended, or after `END_SECONDS`.
        """
        leaving = self.keep(domain, entries or {})
        if entries is not None:
            return  # no caller waits for the servers to end
        with anyio.move_on_after(END_SECONDS):
            for connection in leaving:
                await connection.wait_ended()
        if self._policy is not None:
            await self._threads.run(domain, self._policy.remove_homes, domain)

    # -- for connections, see `ConnectionOwner` ---------------------------------------------------------------

    def spawn(self, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a connection's task in the pool's task group.

        Raises:
            ServerUnavailable: the pool is closing.
        """
        if self._tasks is None:
            raise ServerUnavailable("hub", "the process is stopping")
        self._tasks.start_soon(task)

    def note_state(self, connection: "Connection") -> None:
        """Keep the connections that are not stopped."""
        if connection.state is State.STOPPED:
            self._live.discard(connection)
        else:
            self._live.add(connection)

    def count_running(self, domain: str) -> int:
        """Return how many of a domain's servers have a child process, or soon get one."""
        users = [connection for connection in self._live if connection.domain == domain and not connection.in_process]
        return sum(connection.state in _RUNNING for connection in users)

    async def _start(self, spec: LaunchSpec, seconds: float) -> ConnectionState:
        """Start a server and return its state. If it is still starting, the state says that it took too long."""
        state = (await self.acquire([spec], seconds))[spec.name].status()
        if state.state is State.READY or state.reason:
            return state
        return replace(state, reason=f"it was not ready after {seconds:g} s" if seconds else "it is still starting")

    def _connection(self, server: SystemServer | LaunchSpec) -> "Connection":
        """Return the connection for a spec. A new one retires those of the same server with an older spec."""
        key = f"memory:{server.name}" if isinstance(server, SystemServer) else server.key()
        connection = self._shared.get(key)
        if connection is None:
            if isinstance(server, SystemServer):
                connection = self._connector.connect_own(server, self)
            else:
                connection = self._connector.connect(server, self)
            self._shared[key] = connection
            for older in [live for live in self._live if _label(live) == _label(connection)]:
                older.retire()  # the entry or one of its values was changed
                if older.state is State.FAILED:
                    self._live.discard(older)
        return connection


def _label(connection: "Connection") -> tuple[str, str, str]:
    return connection.domain, connection.user, connection.name
