"""What roles, models and MCP servers do in the life of a domain: implements `DomainLifecycle`.

Owns which of them is asked what. Knows no database.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from agentic_rag.directory.server_map import enabled_hashes
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.roles.roles import Roles
from agentic_rag.tools.entries.reading import Note
from mcp_servers.retriever.model_files import reranker_problem


class ServerPool(Protocol):
    """Where a domain's MCP servers run."""

    async def servers_changed(self, domain: str, entries: Mapping[str, str] | None) -> None:
        """End what runs for other servers than ``entries`` (name → hash); None: end all, with what they kept."""
        ...


class Lifecycle:
    """Implements `agentic_rag.domains.lifecycle.DomainLifecycle`. ``model_cache``: where rerankers lie."""

    def __init__(self, roles: Roles, servers: ServerPool, model_cache: Path) -> None:
        self._roles = roles
        self._servers = servers
        self._model_cache = model_cache

    def changing(self, workspace: Path, before: DomainSettings, after: DomainSettings) -> Sequence[Note]:
        """See `DomainLifecycle.changing`."""
        named: list[tuple[str, str]] = []
        if after.primary_role_id != before.primary_role_id:
            named.append(("settings.primaryRoleId", after.primary_role_id))
        if after.sub_role_ids != before.sub_role_ids:
            named += [(f"settings.subRoleIds.{at}", role) for at, role in enumerate(after.sub_role_ids)]
        if named:
            self._roles.check_ids(workspace, named)
        if after.reranker is None or after.reranker == before.reranker:
            return ()
        problem = reranker_problem(after.reranker, self._model_cache)
        return [Note("settings.reranker", problem)] if problem else ()

    async def settings_changed(self, domain_id: str, before: DomainSettings, after: DomainSettings) -> None:
        """See `DomainLifecycle.changed`."""
        if after.mcp_servers != before.mcp_servers:
            await self._servers.servers_changed(domain_id, enabled_hashes(after))

    async def leaving(self, domain_id: str) -> None:
        """See `DomainLifecycle.leaving`."""
        await self._servers.servers_changed(domain_id, None)
