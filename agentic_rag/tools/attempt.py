"""One session with an MCP server, from dial to close.

Owns the reasons a session ends and the text that calls in flight fail with. Knows nothing about when or why a session
is opened.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
from mcp.client import ClientSession, Transport
from mcp.server import MCPServer

from agentic_rag.tools.exchange import REASON_CHARS

Dial = Callable[[Callable[[str], None], "deque[str]"], Awaitable[Transport | MCPServer]]
"""Open the transport (or in-process server) that one attempt's `mcp.Client` talks over.

The arguments are a function to call, with the reason, once nothing more can arrive, and the deque to fill with the last
stderr lines. May raise `AgenticRagError` if the entry cannot be started.
"""


@dataclass(slots=True, eq=False)
class Attempt:
    """One session from dial to close."""

    end: anyio.Event = field(default_factory=anyio.Event)
    """Set once the session takes no more calls."""
    doubted: anyio.Event = field(default_factory=anyio.Event)
    """Set when a request was not answered in time: the owner task then pings the server."""
    closed_here: bool = False
    """Whether this process ended the session, rather than the server or the network."""
    reason: str = ""
    """Why the session was lost; empty if it was not."""
    calls: set[anyio.CancelScope] = field(default_factory=set)
    """The scopes of the calls in flight. The owner task cancels them when the session ends."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """The scope of the whole session. Its deadline limits the start and the closing."""
    session: ClientSession | None = None
    """None until the server is initialized and its tools are listed."""
    stale: bool = False
    """Whether the server may have changed its tools since they were listed."""
    answered: bool = False
    """Whether the server answered at least one call."""
    silent: bool = False
    """Whether the session was lost because the server answered neither a call nor a ping."""

    @property
    def ready(self) -> bool:
        return self.session is not None and not self.end.is_set()

    def finish(self) -> None:
        """End the session on purpose, also while it is still opening."""
        self.closed_here = True
        self.end.set()
        if self.session is None:
            self.scope.cancel()

    def release(self) -> None:
        """Cancel the calls that wait for an answer of this session."""
        self.end.set()
        for scope in self.calls:
            scope.cancel()

    def lose(self, reason: str) -> None:
        """Record why the session was lost. Only the first reason counts, and none after `finish`."""
        if not self.reason and not self.closed_here:
            self.reason = reason[:REASON_CHARS]
        self.end.set()

    def doubt(self) -> None:
        """Have the owner task check whether the server still answers."""
        self.doubted.set()

    def why(self) -> str:
        """Return the reason with which a call in flight fails."""
        return self.reason or ("it was stopped" if self.closed_here else "the connection was lost")
