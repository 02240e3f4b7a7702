"""Errors of servers that run elsewhere, and of requests for resources.

Owns their codes. Knows nothing of the modules that raise them.
"""

from agentic_rag.base.errors import AgenticRagError, ServerUnavailable


class ServerElsewhere(ServerUnavailable, code="MCP_SERVER_ELSEWHERE"):
    """Another process that shares the store is the home of a domain's stateful servers, and runs this one."""

    reason: str = "its state is kept by another server of this installation, which runs it. Try again in a moment"


class RequestFailed(AgenticRagError, code="MCP_REQUEST_FAILED", status=502, facts=("server", "reason")):
    """An MCP server answered a request for resources with an error."""

    server: str
    reason: str
    text = "The MCP server {self.server!r} answered: {self.reason}"


class AppUnreadable(AgenticRagError, code="MCP_APP_UNREADABLE", status=502, facts=("uri", "problem")):
    """The page of an MCP server's app cannot be shown."""

    uri: str
    problem: str
    text = "The app {self.uri!r} cannot be shown: {self.problem}."


class AppToolUnavailable(AgenticRagError, code="MCP_APP_TOOL_UNAVAILABLE", status=404, facts=("server", "tool")):
    """An app asked for a tool that its server does not offer to apps."""

    server: str
    tool: str
    text = (
        "The MCP server {self.server!r} offers no tool {self.tool!r} to its apps. An app can call only tools of its "
        'own server whose `_meta.ui.visibility` contains "app".'
    )


class AppNotAllowed(AgenticRagError, code="MCP_APP_NOT_ALLOWED", status=403, facts=("server",)):
    """The domain does not show apps of this MCP server."""

    server: str
    text = (
        "Apps of the MCP server {self.server!r} are not shown here. An admin can add it to `mcpApps` in the settings."
    )
