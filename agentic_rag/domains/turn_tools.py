"""The tools of a turn, from its definition: our own servers and the domain's, with the vault's rules around them.

Makes launch specs from a definition's entries and caches the toolsets of turns that use our own servers only. The pool
connects to the servers, and `guarded_tools` applies the rules.
"""

from collections import OrderedDict
from collections.abc import Sequence

from agentic_rag.domains.guarded_tools import guard_tools
from agentic_rag.domains.vault import Vault
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.tools.base import SystemServer, ToolInfo, Toolset
from agentic_rag.tools.launch.spec import LaunchSpec, Secrets, spec_of
from agentic_rag.tools.lists import ToolLists
from agentic_rag.tools.pool import McpPool

MAX_CACHED = 256
"""Maximum number of domains whose toolsets of our own servers are cached."""


class TurnTools:
    """Opens the tools of turns, and lists those of a turn that has not begun."""

    def __init__(self, pool: McpPool, lists: ToolLists, vault: Vault) -> None:
        self._pool = pool
        self._lists = lists
        self._vault = vault
        self._own: OrderedDict[str, tuple[tuple[SystemServer, ...], Toolset]] = OrderedDict()
        """Toolsets without users' servers by domain, least recently used first."""

    async def open(self, definition: Definition) -> Toolset:
        """Start the servers of a definition and return the tools of a turn.

        Secrets are read now, and only for users' servers. An entry with missing values fails with the reason; the
        others continue. If a turn uses only our own servers and their lists have not changed, the toolset of the
        domain's last turn is returned.
        """
        await self._pool.wait_loaded()
        if not definition.entries and (cached := self._find_own(definition)) is not None:
            return cached
        from agentic_rag.tools.toolset import open_toolset  # imports the MCP library, which the pool has loaded

        # Our own servers get no secrets, and a turn without others should not wait for the store.
        secrets = await self._vault.values(definition.domain_id) if definition.entries else {}
        servers: list[SystemServer | LaunchSpec] = [*definition.system, *_specs(definition, secrets)]
        opened = await open_toolset(self._pool, servers, lists=self._lists)
        toolset = guard_tools(opened, definition, self._vault.redact.of(definition.domain_id))
        if not definition.entries:
            self._own[definition.domain_id] = definition.system, toolset
            if len(self._own) > MAX_CACHED:
                self._own.popitem(last=False)
        return toolset

    async def known_tools(self, definition: Definition) -> Sequence[ToolInfo]:
        """Return the known tools of a turn without starting users' servers."""
        await self._pool.wait_loaded()
        from agentic_rag.tools.toolset import list_known_tools

        return await list_known_tools(self._pool, definition.system, _specs(definition, {}), self._lists)

    def _find_own(self, definition: Definition) -> Toolset | None:
        """Return the cached toolset of our own servers for a domain, or None if it is outdated."""
        system, toolset = self._own.get(definition.domain_id, ((), None))
        if toolset is None or system != definition.system or not toolset.fresh:
            return None
        self._own.move_to_end(definition.domain_id)
        return toolset


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
