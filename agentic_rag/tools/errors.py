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
