"""Pages of MCP servers' apps, for the people whose tool calls they show.

Decides whether a domain shows apps of a server (its setting ``mcpApps``), and reads the page from the server. The page
belongs to a call: only a person who may see the call gets it. `agentic_rag.tools.apps` has the rules for the content.
"""

from typing import Final

from agentic_rag.access.users import User
from agentic_rag.base.errors import NotFound
from agentic_rag.base.ids import TurnId
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.directory.directory import Directory
from agentic_rag.domains.vault import Vault
from agentic_rag.store import conversations, tool_calls
from agentic_rag.store.database import Database
from agentic_rag.tools.apps import app_meta_of, read_app_page
from agentic_rag.tools.errors import AppNotAllowed
from agentic_rag.tools.launch.spec import LaunchSpec, spec_of
from agentic_rag.tools.listing import exposed_name, title_of
from agentic_rag.tools.lists import ToolLists
from agentic_rag.tools.pool import START_SECONDS, McpPool

REQUEST_SECONDS: Final = 60.0
"""Time limit of one request, unless the server's entry has its own."""


class ServerApps:
    """Reads pages of apps."""

    def __init__(
        self,
        database: Database,
        directory: Directory,
        conversations: Conversations,
        vault: Vault,
        pool: McpPool,
        lists: ToolLists,
    ) -> None:
        self._db = database
        self._directory = directory
        self._conversations = conversations
        self._vault = vault
        self._pool = pool
        self._lists = lists

    async def page_of_call(self, user: User, turn_id: TurnId, call_id: str) -> str:
        """Return the HTML of the app that shows the result of a tool call, without the domain's secrets.

        Raises:
            NotFound: the user may not see the turn, there is no such call, or its tool has no app.
            AppNotAllowed: the domain does not show apps of the call's server.
            AppUnreadable, AgenticRagError: the server gave no page.
        """
        turn = await self._conversations.turn(user, turn_id)
        call = await self._db.read(lambda conn: tool_calls.get(conn, turn_id, call_id))
        record = await self._db.read(lambda conn: conversations.get(conn, turn.conversation_id))
        if call is None or record is None:
            raise NotFound("tool_call", call_id)
        domain = await self._directory.get(record.domain_id)
        settings = await self._directory.settings(domain.id)
        entry = settings.mcp_servers.get(call.server)
        if entry is None or not entry.enabled:
            raise NotFound("mcp_server", call.server)
        if call.server not in settings.mcp_apps:
            raise AppNotAllowed(call.server)
        spec = spec_of(
            entry.with_variables(settings.variables),
            domain=domain.id,
            workspace=domain.workspace,
            user=user.id,
            secrets=await self._vault.values(domain.id),
        )
        return self._vault.redact.of(domain.id)(await self._read_app(spec, call.tool_name))

    async def _read_app(self, spec: LaunchSpec, tool: str) -> str:
        """Return the HTML of a tool's app. A tool that changed since an admin accepted it has no app.

        Raises:
            NotFound: the server has no such tool, or the tool has no app.
            AppUnreadable: the server's answer holds no page.
            AgenticRagError: the server cannot be asked now.
        """
        entry = spec.entry
        connection = (await self._pool.acquire([spec], START_SECONDS))[spec.name]
        seconds = REQUEST_SECONDS if entry.timeout_ms is None else entry.timeout_ms / 1000
        accepted, changed = await self._lists.current(spec, await connection.tools(seconds))
        for each in accepted:
            if each.name in changed or exposed_name(entry.name, each.name, title_of(each)) != tool:
                continue
            uri = app_meta_of(each).get("resourceUri")
            if isinstance(uri, str):
                return read_app_page(uri, await connection.read_resource(uri, seconds))
        raise NotFound("mcp_app", tool)
