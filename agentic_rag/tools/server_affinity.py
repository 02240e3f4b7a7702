"""Stateful servers in a shared store: each domain's servers run in one process, its home.

Owns the protocol, and the transport that a home holds. Knows no store: the implementation of `Homes` decides which
process is a domain's home.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # imports the MCP library
    from agentic_rag.tools.transports.stdio import StdioTransport, Streams

TellLost = Callable[[str], None]
"""Receives the reason for which a child process must end."""


class Homes(Protocol):
    """Decides which process of a shared store is the home of a domain's stateful servers."""

    async def wait_free(self, domain: str, server: str) -> None:
        """Wait while the home's process dies or leaves.

        Raises:
            ServerElsewhere: Another process is the home and is alive.
            StorageError: The home cannot be determined now.
        """
        ...

    def hold(self, domain: str, server: str, on_lost: TellLost) -> AbstractAsyncContextManager[None]:
        """Be the home while the context lasts; entering raises the same errors as `wait_free`.

        ``on_lost`` is called, with the reason, when this process cannot confirm in time that it is still the home. The
        child must end then.
        """
        ...


class HeldTransport:
    """A child process that runs in its domain's home only, as a `mcp.client.Transport`.

    The home is held from before the child's start until after its end. Single use.
    """

    def __init__(self, child: "StdioTransport", home: AbstractAsyncContextManager[None]) -> None:
        self._child = child
        self._home = home
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Streams":
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._home)
            streams = await stack.enter_async_context(self._child)
            self._stack = stack.pop_all()
        return streams

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(exc_type, exc, traceback)
