"""Errors of servers that run elsewhere.

Owns their codes. Knows nothing of the modules that raise them.
"""

from agentic_rag.base.errors import ServerUnavailable


class ServerElsewhere(ServerUnavailable, code="MCP_SERVER_ELSEWHERE"):
    """Another process that shares the store is the home of a domain's stateful servers, and runs this one."""

    reason: str = "its state is kept by another server of this installation, which runs it. Try again in a moment"
