"""One session with an MCP server, from dial to close.

Owns what ends it and what is told to the calls in flight. Knows neither who opens it nor why.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
from mcp.client import ClientSession, Transport
from mcp.server import MCPServer

from agentic_rag.tools.exchange import REASON_CHARS

Dial = Callable[[Callable[[str], None], "deque[str]"], Awaitable[Transport | MCPServer]]
"""Makes what a `mcp.Client` is driven over, for one attempt.

Takes a function to call, with the reason, once nothing more can arrive, and the tail of stderr lines to fill.
May raise `AgenticRagError`: the entry cannot be started.
"""


@dataclass(slots=True, eq=False)
class Attempt:
    """One session from dial to close. ``end`` is set once it takes no more calls; ``ours``: because we said so."""

    end: anyio.Event = field(default_factory=anyio.Event)
    doubted: anyio.Event = field(default_factory=anyio.Event)
    """Set when a request was not answered in time: the owner asks the server for a sign of life."""
    ours: bool = False
    reason: str = ""
    calls: set[anyio.CancelScope] = field(default_factory=set)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    session: ClientSession | None = None
    stale: bool = False
    answered: bool = False
    """Whether the server answered a call."""
    silent: bool = False
    """Whether it is lost because the server answers nothing."""

    @property
    def ready(self) -> bool:
        return self.session is not None and not self.end.is_set()

    def finish(self) -> None:
        """End it on our word, also while it is still opening."""
        self.ours = True
        self.end.set()
        if self.session is None:
            self.scope.cancel()

    def release(self) -> None:
        """End the calls that wait for an answer of a session that gives none any more."""
        self.end.set()
        for scope in self.calls:
            scope.cancel()

    def lose(self, reason: str) -> None:
        """Record why the server is gone; the first reason counts, and none after we ended it."""
        if not self.reason and not self.ours:
            self.reason = reason[:REASON_CHARS]
        self.end.set()

    def doubt(self) -> None:
        """Have the owner check whether the server still answers anything."""
        self.doubted.set()

    def why(self) -> str:
        """Return what a call in flight is told."""
        return self.reason or ("it was stopped" if self.ours else "the connection was lost")
