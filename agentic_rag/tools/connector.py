"""Create connections: to our own servers in memory, and to users' servers as the launch policy permits.

Owns how a server is reached: its transport, its credentials, and the rules that are checked before each attempt. The
pool decides which requests share a connection. This module imports the MCP library, which takes half a second, so the
pool gets its connector after the server listens.
"""

from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import anyio
from mcp.client import Transport
from mcp.server import MCPServer

from agentic_rag.base.errors import AgenticRagError, CommandNotAllowed, InvalidInput, ServerUnavailable, TooManyServers
from agentic_rag.base.redaction import Redactor
from agentic_rag.base.threads import DomainThreads
from agentic_rag.tools.attempt import Dial
from agentic_rag.tools.base import SystemServer
from agentic_rag.tools.connection import Connection
from agentic_rag.tools.entries.entry import HttpKind, HttpTarget
from agentic_rag.tools.launch.policy import LaunchPolicy
from agentic_rag.tools.launch.spec import LaunchSpec
from agentic_rag.tools.oauth.credentials import Accounts, Credentials
from agentic_rag.tools.server_affinity import HeldTransport, Homes
from agentic_rag.tools.status import ConnectionTimeouts, State
from agentic_rag.tools.transports.http import HttpTransport
from agentic_rag.tools.transports.stdio import StdioTransport

REMEMBERED = 1024
"""Maximum number of servers whose protocol era is remembered."""


@dataclass(frozen=True, slots=True)
class MachineShare:
    """The part of the machine that one domain may use, for all its users.

    ``servers``: how many run at most. ``starts``: how many start concurrently.
    """

    servers: int = 32
    starts: int = 4


class RefusalObserver(Protocol):
    """Receives the refusals of the launch policy."""

    async def server_refused(self, spec: LaunchSpec, error: AgenticRagError) -> None:
        """Record that policy forbids an entry to start or to reach its address; awaited before the attempt ends."""
        ...


class ConnectionOwner(Protocol):
    """The pool, as its connections see it."""

    def spawn(self, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a connection's task in the pool's task group.

        Raises:
            ServerUnavailable: the pool is closing.
        """
        ...

    def note_state(self, connection: Connection) -> None:
        """Handle a change of a connection's state."""
        ...

    def count_running(self, domain: str) -> int:
        """Return how many of a domain's servers have a child process, or soon get one."""
        ...


class Connector:
    """Creates the connections of a pool. None of them is started."""

    def __init__(
        self,
        builtin: Mapping[str, MCPServer] | None = None,
        policy: LaunchPolicy | None = None,
        *,
        patience: ConnectionTimeouts | None = None,
        redactor: Redactor | None = None,
        observer: RefusalObserver | None = None,
        share: MachineShare | None = None,
        threads: DomainThreads | None = None,
        accounts: Accounts | None = None,
        homes: Homes | None = None,
    ) -> None:
        """Store the collaborators.

        ``builtin`` holds our own servers by name, each created once. Without a ``policy``, no other server may be
        started or connected to. ``redactor`` removes secrets from everything a domain's servers send. ``observer``
        receives the refusals. ``threads`` run the look-up of commands. ``accounts`` hold the sign-ins at servers;
        without them, no sign-in is possible. ``homes`` decide which process runs stateful servers; None means this one,
        because no other process shares the store.
        """
        self._builtin = dict(builtin or {})
        self._policy = policy
        self._patience = patience or ConnectionTimeouts()
        self._redactor = redactor or Redactor()
        self._observer = observer
        self._share = share or MachineShare()
        self._threads = threads or DomainThreads()
        self._accounts = accounts
        self._homes = homes
        self._starts: dict[str, anyio.Semaphore] = {}
        self._eras: dict[tuple[str, ...], str] = {}

    def for_trials(self) -> "Connector":
        """Return a connector with the same rules that knows none of our own servers and no other process."""
        return Connector(None, self._policy, observer=self._observer, threads=self._threads, accounts=self._accounts)

    async def prepare(self, spec: LaunchSpec) -> None:
        """Install a server's package if it is not installed yet; see `LaunchPolicy.prepare`."""
        if self._policy is None:
            return
        try:
            await self._policy.prepare(spec)
        except AgenticRagError as exc:
            await self._report_refusal(spec, exc)
            raise

    def connect_own(self, server: SystemServer, owner: ConnectionOwner) -> Connection:
        """Return a connection to one of our own servers, which all domains share."""

        async def dial(on_lost: Callable[[str], None], tail: deque[str]) -> MCPServer:
            built = self._builtin.get(server.name)
            if built is None:
                raise InvalidInput(f"mcpServers.{server.name}", "there is no in-process server of this name.")
            return built

        # No redaction: each domain redacts the results of this connection itself.
        # Our own servers cost nothing while they are idle, and starting them would delay a turn.
        patience = replace(self._patience, idle=None)
        return Connection(server.name, dial, owner.spawn, in_process=True, patience=patience, on_state=owner.note_state)

    def connect(self, spec: LaunchSpec, owner: ConnectionOwner) -> Connection:
        """Return a connection to a user's server. Each attempt checks the policy and the domain's share again."""

        def note_state(connection: Connection) -> None:
            if connection.state is State.READY:
                self._remember_era(spec, connection.era)
            owner.note_state(connection)

        credentials = self._credentials(spec)
        return Connection(
            spec.name,
            self._dial(spec, credentials, owner),
            owner.spawn,
            domain=spec.domain,
            user=spec.owner,
            entry=spec.entry.hash(),
            patience=self._patience,
            on_state=note_state,
            redaction=self._redactor.of(spec.domain),
            era=self._eras.get(_era_key(spec), "auto"),
            starts=self._starts.setdefault(spec.domain, anyio.Semaphore(self._share.starts)),
            credentials=credentials,
        )

    def _remember_era(self, spec: LaunchSpec, era: str) -> None:
        """Remember a server's protocol era for its next connection, which may come much later."""
        if len(self._eras) >= REMEMBERED:
            self._eras.clear()
        self._eras[_era_key(spec)] = era

    def _credentials(self, spec: LaunchSpec) -> Credentials | None:
        """Return the OAuth credentials for a connection, or None for stdio servers and entries with their own."""
        if self._accounts is None or not isinstance(spec.target, HttpTarget):
            return None
        # An entry with its own key needs no sign-in. A refusal then is a wrong key, which the admin must see.
        has_own = any(name.lower() == "authorization" for name in spec.target.headers) or bool(spec.target.url_secrets)
        return None if has_own else Credentials(spec, self._accounts)

    def _dial(self, spec: LaunchSpec, credentials: Credentials | None, owner: ConnectionOwner) -> Dial:
        """Return the function that opens a new transport to the server for each attempt."""
        last: HttpTransport | None = None

        async def dial(on_lost: Callable[[str], None], tail: deque[str]) -> Transport:
            nonlocal last
            if self._policy is None:
                raise ServerUnavailable(spec.name, "this process starts no other servers")
            try:
                if isinstance(spec.resolved, HttpTarget):
                    endpoint, kind = self._policy.endpoint(spec), _next_kind(spec.resolved.kind, last)
                    note = "" if kind is spec.resolved.kind else _other_kind_note(spec.resolved.kind, kind)
                    last = HttpTransport(endpoint, kind, on_lost, report_refusal, credentials, note)
                    return last
                if owner.count_running(spec.domain) > self._share.servers:
                    raise TooManyServers(spec.name, self._share.servers)
                # In a thread, because hashing files takes time. Nothing is started before the result is there.
                command = await self._threads.run(spec.domain, self._policy.resolve, spec)
                child = StdioTransport(command, on_lost, tail, report_refusal)
                if command.lock is None or self._homes is None:
                    return child
                # Another process may still run this server, and two of them would write the same state.
                await self._homes.wait_free(spec.domain, spec.name)
                return HeldTransport(child, self._homes.hold(spec.domain, spec.name, on_lost))
            except AgenticRagError as exc:
                await self._report_refusal(spec, exc)
                raise

        async def report_refusal(reason: str) -> None:
            place = "url" if isinstance(spec.entry.target, HttpTarget) else "command"
            await self._report_refusal(spec, CommandNotAllowed(f"{spec.path}.{place}", reason))

        return dial

    async def _report_refusal(self, spec: LaunchSpec, error: AgenticRagError) -> None:
        if self._observer is not None:
            await self._observer.server_refused(spec, error)


def _era_key(spec: LaunchSpec) -> tuple[str, ...]:
    return spec.domain, spec.owner, spec.name, spec.entry.hash()


def _next_kind(entry_kind: HttpKind, last: HttpTransport | None) -> HttpKind:
    """Return the transport for the next attempt: the entry's kind, unless the address spoke the other one."""
    opposite = HttpKind.HTTP if entry_kind is HttpKind.SSE else HttpKind.SSE
    if last is None:
        return entry_kind
    if last.kind is entry_kind:
        return opposite if last.suggests_other else entry_kind
    return opposite if last.answered else entry_kind


def _other_kind_note(entry_kind: HttpKind, kind: HttpKind) -> str:
    transport_name = "streamable HTTP" if kind is HttpKind.HTTP else "the older SSE transport"
    used = f"this address speaks {transport_name}, which is used"
    return f"The entry says type {entry_kind}, and {used}. Set its type to {kind}."
