"""A domain's MCP servers while they run: the effective set with states, a trial, a restart, an admin's acceptance.

Owns what an admin sees and may do there. Knows no MCP: connections are the pool's, which the composition root gives.
Everything that is shown is redacted with that domain's secrets, a trial's answer also with those it brought.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import anyio.to_thread

from agentic_rag.access.users import User
from agentic_rag.directory.directory import Directory
from agentic_rag.directory.server_launch import Values, resolved
from agentic_rag.directory.server_map import our_entries
from agentic_rag.directory.server_settings import ServerSettings, changed_servers
from agentic_rag.directory.settings import Admit, DomainSettings
from agentic_rag.domains.domains import Domains
from agentic_rag.domains.vault import Vault
from agentic_rag.errors import AgenticRagError, CommandNotAllowed, InvalidInput, NotFound, ServerReserved
from agentic_rag.redaction import Redaction
from agentic_rag.runtime.core.definition import ServerEntry
from agentic_rag.store.domains import DomainRecord
from agentic_rag.tools.entries.names import is_reserved
from agentic_rag.tools.entries.reading import Note
from agentic_rag.tools.launch.policy import LaunchPolicy, ServerSpec

MAX_TRIALS = 10
"""How many entries one trial starts."""


@dataclass(frozen=True, slots=True)
class Running:
    """One connection as the pool has it. ``tools``: ``{name, description, inputSchema}``; ``log``: stderr's end."""

    name: str
    state: str
    user: str = ""
    reason: str = ""
    protocol: str = ""
    tools: Sequence[Mapping[str, Any]] = ()
    log: Sequence[str] = ()


class Pool(Protocol):
    """The part of the hub that this module needs."""

    async def running(self, domain: str) -> Sequence[Running]:
        """Return the connections of a domain, and those to our own servers."""
        ...

    async def restart(self, spec: ServerSpec) -> Running:
        """Start a server anew, wherever it runs for its domain, and wait for it."""
        ...

    async def trial(self, spec: ServerSpec) -> Running:
        """Start a server beside all others, list its tools, and end it."""
        ...

    async def pending(self, domain: str, entries: Mapping[str, str]) -> Mapping[str, Sequence[str]]:
        """Return server → names of tools that are new or changed and wait for `accept`.

        ``entries``: the servers there are, each with its `ServerSpec.entry_hash`.
        """
        ...

    async def accept(self, domain: str, server: str, entry: str) -> Sequence[str]:
        """Accept the tools of a server as they were last listed under ``entry``; return the names that waited."""
        ...


@dataclass(frozen=True, slots=True)
class Trial:
    """What a trial of pasted entries found; nothing was saved."""

    servers: tuple[Running, ...]
    changes: tuple[Note, ...]
    warnings: tuple[Note, ...]


class Servers:
    """The MCP servers of all domains."""

    def __init__(self, directory: Directory, domains: Domains, vault: Vault, pool: Pool, policy: LaunchPolicy) -> None:
        self._directory = directory
        self._domains = domains
        self._vault = vault
        self._pool = pool
        self._policy = policy

    async def effective(self, domain_id: str) -> list[dict[str, Any]]:
        """Return the merged set, each entry as a GET shows it, with what its connections are doing.

        Raises:
            NotFound: there is no such domain.
        """
        record = await self._directory.get(domain_id)
        view = await self._domains.view(record)
        settings = DomainSettings.model_validate(record.settings)
        values = await self._vault.values(domain_id) if settings.mcp_servers else {}
        specs = {
            name: spec_of(record, _definition_entry(name, entry, settings), values, "")
            for name, entry in settings.mcp_servers.items()
        }
        connections = await self._pool.running(domain_id)
        pending = await self._pool.pending(domain_id, {name: spec.entry_hash() for name, spec in specs.items()})
        shown = []
        for name, entry in view.settings["mcpServers"].items():
            mine = [each for each in connections if each.name == name]
            if not mine and name in specs and entry["enabled"]:
                mine = [Running(name, "stopped", reason=await anyio.to_thread.run_sync(self._obstacle, specs[name]))]
            shown.append({"name": name, **entry, **_state(mine, self._vault.redact.of(domain_id))})
            shown[-1]["pendingTools"] = list(pending.get(name, ()))
        return shown

    def _obstacle(self, spec: ServerSpec) -> str:
        """Return why a server would not start now; empty when nothing is known to stand in its way. Blocks."""
        try:
            package = self._policy.review(spec).uninstalled
        except AgenticRagError as exc:
            return str(exc)
        return uninstalled(package) if package else ""

    async def restart(self, user: User, domain_id: str, name: str) -> Running:
        """Start a user's server anew and return how it fares.

        Raises:
            NotFound: the domain has no such server of its own.
            InvalidInput: it is disabled.
        """
        record = await self._directory.get(domain_id)
        entry, settings = _own(record, name)
        if not entry.enabled:
            raise InvalidInput(f"mcpServers.{name}.enabled", "the server is disabled; enable it to start it.")
        values = await self._vault.values(domain_id)
        spec = spec_of(record, _definition_entry(name, entry, settings), values, user.id)
        return _redacted(await self._pool.restart(spec), self._vault.redact.of(domain_id))

    async def accept(self, domain_id: str, name: str) -> list[str]:
        """Accept the tools of a user's server as it lists them now; return the names that were waiting.

        Raises:
            NotFound: the domain has no such server of its own.
        """
        record = await self._directory.get(domain_id)
        entry, settings = _own(record, name)
        spec = spec_of(record, _definition_entry(name, entry, settings), {}, "")
        return list(await self._pool.accept(domain_id, name, spec.entry_hash()))

    async def trial(self, user: User, domain_id: str, document: object) -> Trial:
        """Start the entries of a document as if they were saved, one after the other, and list their tools.

        Raises:
            NotFound: there is no such domain.
            InvalidInput, ServerReserved, CommandNotAllowed: an entry could not be saved either; nothing was started.
        """
        record = await self._directory.get(domain_id)
        settings = DomainSettings.model_validate(record.settings)
        ours = our_entries(record, settings)
        change = changed_servers(settings.mcp_servers, document, ours, replace=True, path="mcpServers")
        if not 1 <= len(change.servers) <= MAX_TRIALS:
            raise InvalidInput("mcpServers", f"between 1 and {MAX_TRIALS} servers can be tested at once.")
        values = {**await self._vault.values(domain_id), **change.secrets}
        admit = admission(self._policy, domain_id, record.workspace, "")
        notes: list[Note] = []
        specs: list[ServerSpec] = []
        with self._vault.redact.trying(domain_id, change.secrets) as redact:
            for name, entry in change.servers.items():
                spec = spec_of(record, _definition_entry(name, entry, settings), values, user.id)
                admitted, sentences, _ = await anyio.to_thread.run_sync(admit, name, entry, spec.filled())
                notes += [Note(f"mcpServers.{name}", sentence) for sentence in sentences]
                specs.append(spec_of(record, _definition_entry(name, admitted, settings), values, user.id))
            found = [_redacted(await self._pool.trial(spec), redact) for spec in specs]
        return Trial(tuple(found), (*change.changes, *notes), change.warnings)


def admission(policy: LaunchPolicy, domain_id: str, workspace: str, path: str = "settings.") -> Admit:
    """Return what decides whether an entry of a domain may be stored, and in which form. Starts nothing; blocks.

    ``path``: what stands before ``mcpServers`` in messages.
    """

    def admit(
        name: str, entry: ServerSettings, filled: Mapping[str, Any]
    ) -> tuple[ServerSettings, tuple[str, ...], tuple[str, ...]]:
        spec = ServerSpec(
            name, "user", entry.type, entry.config, domain=domain_id, workspace=workspace, resolve=lambda: filled
        )
        try:
            review = policy.review(spec)
        except CommandNotAllowed as exc:
            place = f"{path}{exc.path}"
            raise CommandNotAllowed(place, exc.reason, exc.remedy, command=exc.command, allow=exc.allow) from exc
        except InvalidInput as exc:
            raise InvalidInput(f"{path}{exc.path}", exc.problem) from exc
        kept = {key: value for key, value in review.config.items() if key not in ("identity", "enabled")}
        stored = {**kept, "enabled": entry.enabled, "identity": entry.identity}
        advice = (uninstalled(review.uninstalled),) if review.uninstalled and entry.enabled else ()
        return ServerSettings.model_validate(stored), review.changes, advice

    return admit


def uninstalled(package: str) -> str:
    """Return what an admin is told of an entry whose package is not there."""
    return f"{package} is not installed yet: test or restart the server to install it. A turn fetches nothing."


def spec_of(record: DomainRecord, entry: ServerEntry, values: Values, user: str) -> ServerSpec:
    """Return what starts an entry of a domain's own."""
    config = {key: value for key, value in entry.config.items() if key != "variables"}
    return ServerSpec(
        name=entry.name,
        origin=entry.origin,
        kind=entry.kind,
        config=config,
        tools=entry.tools,
        domain=record.id,
        workspace=str(Path(record.workspace)),
        user=user,
        resolve=filled(entry, values),
    )


def filled(entry: ServerEntry, values: Values) -> Callable[[], Mapping[str, Any]]:
    """Return what gives the entry with its values in place; it raises `InvalidInput` for one that is not set."""
    return lambda: resolved(entry.name, entry.config, values)


def _own(record: DomainRecord, name: str) -> tuple[ServerSettings, DomainSettings]:
    settings = DomainSettings.model_validate(record.settings)
    entry = settings.mcp_servers.get(name)
    if entry is None and is_reserved(name):
        raise ServerReserved(f"mcpServers.{name}", "this is a server of ours; it cannot be restarted or accepted.")
    if entry is None:
        raise NotFound("mcp_server", name)
    return entry, settings


def _definition_entry(name: str, entry: ServerSettings, settings: DomainSettings) -> ServerEntry:
    include = entry.tools.include if entry.tools else ()
    config = {**entry.config, "variables": dict(settings.variables)}
    return ServerEntry(name, "user", entry.type, config, include or None)


def _redacted(found: Running, redact: Redaction) -> Running:
    return Running(
        found.name,
        found.state,
        found.user,
        redact(found.reason),
        found.protocol,
        redact.json(list(found.tools)),
        redact.json(list(found.log)),
    )


def _state(connections: Sequence[Running], redact: Redaction) -> dict[str, Any]:
    """Return the states of one entry: of several connections (``identity: user``) the first one stands above."""
    if not connections:
        return {"state": "stopped", "reason": "", "protocol": "", "tools": [], "log": [], "connections": 0}
    first = _redacted(connections[0], redact)
    return {
        "state": first.state,
        "reason": first.reason,
        "protocol": first.protocol,
        "tools": list(first.tools),
        "log": list(first.log),
        "connections": sum(each.state != "stopped" for each in connections),
    }
