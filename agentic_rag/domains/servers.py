"""A domain's running MCP servers: their states, trials, restarts, and an admin's acceptance of tools.

Decides what an admin may see and do. The pool speaks MCP. All output is redacted with the domain's secrets, and a
trial's output also with the secrets in its document.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.document_views import EVERY_DOCUMENT
from agentic_rag.access.users import User
from agentic_rag.base.errors import AgenticRagError, InvalidInput, NotFound, ServerReserved
from agentic_rag.base.json_form import Json, to_json
from agentic_rag.base.redaction import Redactor
from agentic_rag.base.threads import DomainThreads
from agentic_rag.directory.directory import Directory
from agentic_rag.directory.server_map import own_documents
from agentic_rag.directory.settings import DomainSettings, change_entries
from agentic_rag.domains.domains import Domains
from agentic_rag.domains.vault import Vault
from agentic_rag.runtime.refused_tools import RefusedTools
from agentic_rag.store import tool_lists
from agentic_rag.store.audit import Entry
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.domains import DomainRecord
from agentic_rag.store.tool_lists import ToolListRecord
from agentic_rag.tools.entries.entry import McpEntry
from agentic_rag.tools.entries.names import is_reserved
from agentic_rag.tools.entries.reading import Note
from agentic_rag.tools.fingerprints import ToolList
from agentic_rag.tools.launch.policy import LaunchPolicy
from agentic_rag.tools.launch.spec import LaunchSpec, Secrets, spec_of
from agentic_rag.tools.lists import Key, ToolLists
from agentic_rag.tools.pool import McpPool
from agentic_rag.tools.server_answers import DroppedTool
from agentic_rag.tools.status import LISTED_TWICE, ConnectionState, PendingTools, State

MAX_TRIALS = 10
"""Maximum entries that one trial starts."""


@dataclass(frozen=True, slots=True)
class EffectiveServer:
    """One server of a domain's merged set.

    ``document`` is its REST form. ``connections`` counts those that are not stopped. ``state`` is that of the first
    connection, if there are several (``identity: user``). ``pending`` holds the tools that an admin has to review.
    """

    name: str
    document: Json
    state: ConnectionState
    connections: int
    pending: PendingTools

    def to_json(self) -> Json:
        """Return the server as a client sees it."""
        waiting = {"connections": self.connections, "pendingTools": list(self.pending.names)}
        doubled = (DroppedTool(name, LISTED_TWICE) for name in self.pending.doubled)
        dropped = to_json(tuple(dict.fromkeys((*self.state.dropped_tools, *doubled))))
        return {"name": self.name, **self.document, **self.state.to_json(), **waiting, "droppedTools": dropped}


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a trial of pasted entries; nothing was saved."""

    servers: tuple[ConnectionState, ...]
    changes: tuple[Note, ...]
    warnings: tuple[Note, ...]


class Servers:
    """The MCP servers of all domains."""

    def __init__(
        self,
        directory: Directory,
        domains: Domains,
        vault: Vault,
        pool: McpPool,
        lists: ToolLists,
        policy: LaunchPolicy,
        threads: DomainThreads,
        refused: RefusedTools,
    ) -> None:
        """Create the service. ``refused`` holds the tools that model providers refused."""
        self._refused = refused
        self._directory = directory
        self._domains = domains
        self._vault = vault
        self._pool = pool
        self._lists = lists
        self._policy = policy
        self._threads = threads

    async def effective(self, domain_id: str) -> list[EffectiveServer]:
        """Return the merged set of servers with the states of their connections.

        Raises:
            NotFound: there is no such domain.
        """
        record = await self._directory.get(domain_id)
        view = await self._domains.view(record, EVERY_DOCUMENT)
        settings = DomainSettings.model_validate(record.settings)  # settings of the record that is shown
        secrets = await self._vault.values(domain_id) if settings.mcp_servers else {}
        connections = await self._pool.running(domain_id)
        hashes = {name: entry.hash() for name, entry in settings.mcp_servers.items()}
        pending = await self._lists.pending(domain_id, hashes)
        redaction = self._vault.redact.of(domain_id)
        servers = []
        for name, document in view.settings["mcpServers"].items():
            states = [connection.redact(redaction) for connection in connections if connection.name == name]
            state = states[0] if states else ConnectionState(name, State.STOPPED)
            # No connection has tried yet, so the policy says what would keep the server from starting.
            if not states and name in settings.mcp_servers and document["enabled"]:
                spec = _spec(record, _own_entry(settings, name), secrets)
                before, obstacle = await self._threads.read(domain_id, self._obstacle, spec)
                state = ConnectionState(name, before, reason=redaction(obstacle))
            dropped = dict.fromkeys((*state.dropped_tools, *self._refused.of_server(domain_id, name)))
            state = replace(state, dropped_tools=tuple(dropped))
            count = sum(state.state is not State.STOPPED for state in states)
            servers.append(EffectiveServer(name, document, state, count, pending.get(name, PendingTools())))
        return servers

    def _obstacle(self, spec: LaunchSpec) -> tuple[State, str]:
        """Return why a server would not start now; empty if no obstacle is known. Blocks."""
        try:
            review = self._policy.review(spec)
        except AgenticRagError as exc:
            return State.STOPPED, str(exc)
        state = State.INSTALLING if self._policy.is_installing(review) else State.STOPPED
        return state, self._policy.advise(review)

    async def restart(self, user: User, domain_id: str, name: str) -> ConnectionState:
        """Restart a user's server and return its state.

        Raises:
            NotFound: the domain has no such server of its own.
            InvalidInput: the server is disabled.
        """
        record = await self._directory.get(domain_id)
        entry = _own_entry(DomainSettings.model_validate(record.settings), name)
        if not entry.enabled:
            raise InvalidInput(f"mcpServers.{name}.enabled", "the server is disabled; enable it to start it.")
        spec = _spec(record, entry, await self._vault.values(domain_id), user.id)
        return (await self._pool.restart_entry(spec)).redact(self._vault.redact.of(domain_id))

    async def pending(self, domain_id: str, name: str) -> PendingTools:
        """Return the new and changed tools of a user's server, each in its accepted and its current form.

        Raises:
            NotFound: the domain has no such server of its own.
        """
        entry = _own_entry(await self._directory.settings(domain_id), name)
        return (await self._lists.pending(domain_id, {name: entry.hash()}))[name]

    async def accept(self, domain_id: str, name: str, reviewed: str) -> list[str]:
        """Accept the waiting tools of a user's server as they were shown. Returns their names.

        ``reviewed`` is the fingerprint from `pending`.

        Raises:
            NotFound: the domain has no such server of its own.
            ToolsChanged: other tools, or other descriptions, are waiting now.
        """
        entry = _own_entry(await self._directory.settings(domain_id), name)
        note = change("mcp.accept", f"{domain_id}/{name}", fingerprint=reviewed)
        return list(await self._lists.accept(domain_id, name, entry.hash(), reviewed, note))

    async def trial(self, user: User, domain_id: str, document: object) -> Trial:
        """Start the entries of a document one after the other without saving them, and list their tools.

        Raises:
            NotFound: there is no such domain.
            InvalidInput, ServerReserved, CommandNotAllowed: an entry could not be saved; nothing was started.
        """
        record = await self._directory.get(domain_id)
        settings = DomainSettings.model_validate(record.settings)
        own = own_documents(record, settings)
        change = change_entries(settings.mcp_servers, document, own, replaces=True, path="mcpServers")
        if not 1 <= len(change.entries) <= MAX_TRIALS:
            raise InvalidInput("mcpServers", f"between 1 and {MAX_TRIALS} servers can be tested at once.")
        secrets = {**await self._vault.values(domain_id), **change.secrets}
        notes: list[Note] = []
        specs: list[LaunchSpec] = []
        with self._vault.redact.trying(domain_id, change.secrets) as redaction:
            for name, entry in change.entries.items():
                entry = entry.with_variables(settings.variables)
                draft = spec_of(entry, domain=record.id, workspace=record.workspace, secrets=secrets, draft=True)
                # Check the command before missing values.
                await self._threads.read(domain_id, self._policy.review, draft)
                spec = _spec(record, entry, secrets, user.id)
                review = await self._threads.read(domain_id, self._policy.review, spec)
                notes += [Note(f"mcpServers.{name}", sentence) for sentence in review.changes]
                specs.append(_spec(record, replace(entry, target=review.target), secrets, user.id))
            states = []
            for spec in specs:
                state = (await self._pool.trial(spec)).redact(redaction)
                self._lists.note_trial(spec, state)
                states.append(state)
        return Trial(tuple(states), (*change.changes, *notes), change.warnings)


def _spec(record: DomainRecord, entry: McpEntry, secrets: Secrets, user: str = "") -> LaunchSpec:
    return spec_of(entry, domain=record.id, workspace=record.workspace, user=user, secrets=secrets)


def _own_entry(settings: DomainSettings, name: str) -> McpEntry:
    """Return one of the domain's own entries with the current variables."""
    entry = settings.mcp_servers.get(name)
    if entry is None and is_reserved(name):
        raise ServerReserved(f"mcpServers.{name}", "this is a server of ours; it cannot be restarted or accepted.")
    if entry is None:
        raise NotFound("mcp_server", name)
    return entry.with_variables(settings.variables)


def make_lists(database: Database, redactor: Redactor) -> ToolLists:
    """Return the tool lists of users' servers. The database stores them without the secrets of their domain."""

    async def load(key: Key) -> ToolList | None:
        record = await database.read(lambda conn: tool_lists.get(conn, *key))
        return None if record is None else _list_of(record)

    async def save(lists: Mapping[Key, ToolList], note: object) -> None:
        def store(conn: Connection) -> None:
            for (domain, server, user), tool_list in lists.items():
                record = ToolListRecord(
                    domain_id=domain,
                    server=server,
                    user_id=user,
                    entry_hash=tool_list.entry,
                    tools=[dict(tool) for tool in tool_list.tools],
                    accepted=[dict(tool) for tool in tool_list.accepted],
                    updated_at=now(),
                )
                tool_lists.put(conn, record)
            if isinstance(note, Entry):
                audit(conn, note)

        await database.write(store, durable=note is not None)

    async def load_domain(domain: str) -> dict[Key, ToolList]:
        records = await database.read(lambda conn: tool_lists.of_domain(conn, domain))
        return {(record.domain_id, record.server, record.user_id): _list_of(record) for record in records}

    return ToolLists(load, save, load_domain, redactor)


def _list_of(record: ToolListRecord) -> ToolList:
    return ToolList(record.entry_hash, tuple(record.tools), tuple(record.accepted))
