"""The REST route for pages of MCP servers' apps.

The page is a stranger's program. It is served with a policy under which a browser gives it no origin and no network,
also if a person opens its address in a window. `conversations.server_apps` decides who gets which page.
"""

from typing import Final

from starlette.responses import HTMLResponse

from agentic_rag.access.users import User
from agentic_rag.base.ids import TurnId
from agentic_rag.conversations.server_apps import ServerApps
from agentic_rag.server.routes import route
from agentic_rag.tools.apps import PERMISSIONS, POLICY
from agentic_rag.tools.errors import AppNotAllowed, AppUnreadable

HEADERS: Final = {
    "content-security-policy": POLICY,
    "permissions-policy": PERMISSIONS,
    "x-frame-options": "SAMEORIGIN",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
"""Headers of an app's page."""


class AppRoutes:
    """Pages of MCP servers' apps."""

    def __init__(self, apps: ServerApps) -> None:
        self._apps = apps

    @route(
        "GET",
        "/api/turns/{turn}/tool-calls/{call}/app",
        allow="user",
        errors=[AppNotAllowed, AppUnreadable],
        large=True,
    )
    async def page(self, user: User, turn: TurnId, call: str) -> HTMLResponse:
        """Show the page in which an MCP server's app presents the result of a tool call.

        The page runs without an origin and without network. It speaks the protocol of MCP Apps (SEP-1865) with the
        page that frames it.
        """
        return HTMLResponse(await self._apps.page_of_call(user, turn, call), headers=HEADERS)
