"""The pool of MCP connections of the process.

Owns the task group in which every connection lives, the rules by which requests share a connection, and their parallel,
lazy start. Knows no tool names and no domains beyond the label in a spec.
"""

from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Protocol, Self
from weakref import WeakKeyDictionary, WeakValueDictionary

import anyio
from anyio.abc import TaskGroup
from mcp.client import Transport
from mcp.server import MCPServer

from agentic_rag.base.errors import AgenticRagError, CommandNotAllowed, InvalidInput, ServerUnavailable, TooManyServers
from agentic_rag.base.redaction import Redactor
from agentic_rag.base.threads import DomainThreads
from agentic_rag.tools.attempt import Dial
from agentic_rag.tools.base import SystemServer
from agentic_rag.tools.connection import Connection
from agentic_rag.tools.entries.entry import HttpKind, HttpTarget
from agentic_rag.tools.launch.catalogue import CatalogueEntry
from agentic_rag.tools.launch.policy import LaunchPolicy, Trust
from agentic_rag.tools.launch.spec import LaunchSpec
from agentic_rag.tools.oauth.credentials import Accounts, Credentials
from agentic_rag.tools.server_affinity import HeldTransport, Homes
from agentic_rag.tools.status import ConnectionState, ConnectionTimeouts, State
from agentic_rag.tools.transports.http import HttpTransport
from agentic_rag.tools.transports.stdio import StdioTransport

CLOSE_SECONDS = 10.0
"""Time limit for closing all connections, after which they are cancelled (children are killed in any case)."""


REMEMBERED = 1024
"""Maximum number of servers whose protocol era is remembered."""


@dataclass(frozen=True, slots=True)
class Share:
    """The part of the machine that one domain may use, for all its users.

    ``servers``: how many run at most. ``starts``: how many start concurrently.
    """

    servers: int = 32
    starts: int = 4


class HubObserver(Protocol):
    """Receives the refusals of the hub."""

    async def server_refused(self, spec: LaunchSpec, error: AgenticRagError) -> None:
        """Record that policy forbids an entry to start or to reach its address; awaited before the attempt ends."""
        ...


class Hub:
    """All MCP connections; an async context manager, entered once for the life of the process.

    ``builtin`` holds the project's own servers by name, each built once. All domains share the one in-memory connection
    to each. Without a ``policy``, no server may be started or connected to.
    """

    def __init__(
        self,
        builtin: Mapping[str, MCPServer] | None = None,
        policy: LaunchPolicy | None = None,
        *,
        patience: ConnectionTimeouts | None = None,
        redactor: Redactor | None = None,
        observer: HubObserver | None = None,
        share: Share | None = None,
        threads: DomainThreads | None = None,
        accounts: Accounts | None = None,
        homes: Homes | None = None,
    ) -> None:
        """Store the collaborators; nothing is started.

        ``redactor`` removes secrets from everything a domain's servers send. ``threads`` run the look-up of commands.
        ``accounts`` hold the sign-ins at servers; without them, no sign-in is possible. ``homes`` decide which process
        runs stateful servers; None means this one, because no other process shares the store.
        """
        self._homes = homes
        self._redactor = redactor or Redactor()
        self._observer = observer
        self._share = share or Share()
        self._threads = threads or DomainThreads()
        self._accounts = accounts
        self._builtin = dict(builtin or {})
        self._policy = policy
        self._patience = patience or ConnectionTimeouts()
        self._pool: WeakValueDictionary[str, Connection] = WeakValueDictionary()
        self._trusted: WeakKeyDictionary[Connection, tuple[tuple[CatalogueEntry, ...], Trust]] = WeakKeyDictionary()
        self._live: set[Connection] = set()
        """Holds all connections that are not stopped. A stopped one lives as long as a toolset refers to it."""
        self._starts: dict[str, anyio.Semaphore] = {}
        self._eras: dict[tuple[str, ...], str] = {}
        self._tasks: TaskGroup | None = None

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
        tasks.cancel_scope.shield = True
        tasks.cancel_scope.deadline = anyio.current_time() + CLOSE_SECONDS
        await tasks.__aexit__(None, None, None)

    async def acquire(self, specs: Iterable[SystemServer | LaunchSpec], wait: float = 5.0) -> dict[str, Connection]:
        """Return a connection for each spec, by name, started in parallel.

        Waits until each is ready or has failed, ``wait`` seconds at most for all together. A later call on a connection
        that is not ready waits for it. Entries that may not be started come back as ``failed``.
        """
        connections = {spec.name: self._connection(spec) for spec in specs}
        for connection in connections.values():
            connection.start()
        with anyio.move_on_after(wait):
            for connection in connections.values():
                await connection.wait_settled()
        return connections

    def status(self, domain: str | None = None) -> tuple[ConnectionState, ...]:
        """Return the state of every connection that is not stopped, of one domain if given."""
        wanted = [each for each in self._live if domain is None or each.domain == domain]
        return tuple(
            sorted((each.status() for each in wanted), key=lambda status: (status.domain, status.name, status.user))
        )

    def connections(self) -> list[Connection]:
        """Return every connection that is not stopped, in the order of `status`."""
        return sorted(self._live, key=lambda each: (each.domain, each.name, each.user, each.retired))

    def keep(self, domain: str, entries: Mapping[str, str]) -> list[Connection]:
        """Stop a domain's connections to servers that are not among ``entries``; return those, which end soon.

        ``entries`` are the current servers, each with its `McpEntry.hash`. A connection created for another entry of
        the same name is retired.
        """
        leaving = []
        for key, connection in list(self._pool.items()):
            if connection.domain != domain or connection.in_process:
                continue
            if connection.name not in entries:
                leaving.append(connection)
                self._pool.pop(key, None)  # it never starts again: a later server of this name gets a new one
                connection.stop()
            elif connection.entry != entries[connection.name]:
                connection.retire()
        return leaving

    async def prepare(self, spec: LaunchSpec) -> None:
        """Install a server's package if it is not installed yet; see `LaunchPolicy.prepare`."""
        if self._policy is None:
            return
        try:
            await self._policy.prepare(spec)
        except AgenticRagError as exc:
            await self._refuse(spec, exc)
            raise

    def trust(self, spec: LaunchSpec, connection: Connection) -> Trust:
        """Return which tools of a server the launch catalogue trusts; ``connection`` is the one of the spec."""
        if self._policy is None:
            return Trust()
        entries = self._policy.catalogue.entries()
        known = self._trusted.get(connection)
        if known is None or known[0] != entries:  # one connection belongs to one entry with all its values
            known = self._trusted[connection] = entries, self._policy.trust(spec)
        return known[1]

    def restart(self, name: str, domain: str | None = None) -> int:
        """Restart all connections of this name (in one domain, if given); returns how many there are."""
        named = [each for each in self._pool.values() if each.name == name and domain in (None, each.domain)]
        wanted = [each for each in named if not each.retired]
        for connection in wanted:
            connection.restart()
        return len(wanted)

    def restart_users(self) -> None:
        """Restart all connections except those to our own servers."""
        for connection in list(self._live):
            if not connection.in_process:
                connection.restart()

    def _connection(self, server: SystemServer | LaunchSpec) -> Connection:
        key = f"memory:{server.name}" if isinstance(server, SystemServer) else server.key()
        connection = self._pool.get(key)
        if connection is None:
            connection = self._connect_own(server) if isinstance(server, SystemServer) else self._connect(server)
            self._pool[key] = connection
            for older in [each for each in self._live if _label(each) == _label(connection)]:
                older.retire()  # the entry or one of its values was changed
                if older.state is State.FAILED:
                    self._live.discard(older)
        return connection

    def _connect_own(self, server: SystemServer) -> Connection:
        async def dial(lost: Callable[[str], None], tail: deque[str]) -> MCPServer:
            built = self._builtin.get(server.name)
            if built is None:
                raise InvalidInput(f"mcpServers.{server.name}", "there is no in-process server of this name.")
            return built

        patience = replace(self._patience, idle=None)
        # All domains share this connection, so each domain redacts its results itself.
        return Connection(server.name, dial, self._spawn, in_process=True, patience=patience, on_state=self._heard)

    def _connect(self, spec: LaunchSpec) -> Connection:
        era = self._eras.get((spec.domain, spec.owner, spec.name, spec.entry.hash()), "auto")
        credentials = self._credentials(spec)
        return Connection(
            spec.name,
            self._dial(spec, credentials),
            self._spawn,
            domain=spec.domain,
            user=spec.owner,
            entry=spec.entry.hash(),
            patience=self._patience,
            on_state=self._heard,
            redaction=self._redactor.of(spec.domain),
            era=era,
            starts=self._starts.setdefault(spec.domain, anyio.Semaphore(self._share.starts)),
            credentials=credentials,
        )

    def _credentials(self, spec: LaunchSpec) -> Credentials | None:
        """Return the OAuth credentials for a connection, or None for stdio servers and entries with their own."""
        if self._accounts is None or not isinstance(spec.target, HttpTarget):
            return None
        given = any(name.lower() == "authorization" for name in spec.target.headers) or bool(spec.target.url_secrets)
        return None if given else Credentials(spec, self._accounts)

    def _dial(self, spec: LaunchSpec, credentials: Credentials | None) -> Dial:
        """Return the function that opens a new transport to the server for each attempt."""
        last: HttpTransport | None = None

        async def dial(lost: Callable[[str], None], tail: deque[str]) -> Transport:
            nonlocal last
            if self._policy is None:
                raise ServerUnavailable(spec.name, "this process starts no other servers")
            try:
                if isinstance(spec.resolved, HttpTarget):
                    endpoint, kind = self._policy.endpoint(spec), _next_kind(spec.resolved.kind, last)
                    note = "" if kind is spec.resolved.kind else _other_kind_note(spec.resolved.kind, kind)
                    last = HttpTransport(endpoint, kind, lost, tell_refusal, credentials, note)
                    return last
                self._check_room(spec)
                # In a thread, because hashing files takes time. Nothing is started before the result is there.
                command = await self._threads.run(spec.domain, self._policy.resolve, spec)
                child = StdioTransport(command, lost, tail, tell_refusal)
                if command.lock is None or self._homes is None:
                    return child
                await self._homes.wait_free(spec.domain, spec.name)
                return HeldTransport(child, self._homes.hold(spec.domain, spec.name, lost))
            except AgenticRagError as exc:
                await self._refuse(spec, exc)
                raise

        async def tell_refusal(reason: str) -> None:
            place = "url" if isinstance(spec.entry.target, HttpTarget) else "command"
            await self._refuse(spec, CommandNotAllowed(f"{spec.path}.{place}", reason))

        return dial

    def _check_room(self, spec: LaunchSpec) -> None:
        running = [each for each in self._live if each.domain == spec.domain and not each.in_process]
        if sum(each.state in _RUNNING for each in running) > self._share.servers:
            raise TooManyServers(spec.name, self._share.servers)

    async def _refuse(self, spec: LaunchSpec, error: AgenticRagError) -> None:
        if self._observer is not None:
            await self._observer.server_refused(spec, error)

    def _spawn(self, owner: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._tasks is None:
            raise ServerUnavailable("hub", "the process is stopping")
        self._tasks.start_soon(owner)

    def _remember_era(self, connection: Connection) -> None:
        """Remember a server's protocol era for its next connection, which may come much later."""
        if len(self._eras) >= REMEMBERED:
            self._eras.clear()
        self._eras[connection.domain, connection.user, connection.name, connection.entry] = connection.era

    def _heard(self, connection: Connection) -> None:
        if connection.state is State.READY and not connection.in_process:
            self._remember_era(connection)
        if connection.state is State.STOPPED:
            self._live.discard(connection)
        else:
            self._live.add(connection)


_RUNNING = (State.STARTING, State.READY, State.DEGRADED)
"""States of a connection that has a child process or soon gets one."""


def _next_kind(written: HttpKind, last: HttpTransport | None) -> HttpKind:
    """Return the transport for the next attempt: the entry's kind, unless the address spoke the other one."""
    other = HttpKind.HTTP if written is HttpKind.SSE else HttpKind.SSE
    if last is None:
        return written
    if last.kind is written:
        return other if last.suggests_other else written
    return other if last.answered else written


def _other_kind_note(written: HttpKind, kind: HttpKind) -> str:
    spoken = "streamable HTTP" if kind is HttpKind.HTTP else "the older SSE transport"
    return f"The entry says type {written}, and this address speaks {spoken}, which is used. Set its type to {kind}."


def _label(connection: Connection) -> tuple[str, str, str]:
    return connection.domain, connection.user, connection.name
