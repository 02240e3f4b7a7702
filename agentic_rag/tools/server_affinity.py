"""Where the servers run that keep a state: in one process of a shared store, each domain's in one.

Owns the protocol, and the transport that is held by it. Knows no store: who has a domain's home is told by what is
given.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Protocol

from agentic_rag.tools.transports.stdio import StdioTransport, Streams

TellLost = Callable[[str], None]
"""Takes the reason for which a child must end."""


class Homes(Protocol):
    """Which process of a shared store is the home of a domain's stateful servers."""

    async def wait_free(self, domain: str, server: str) -> None:
        """Wait while the home's process dies or leaves.

        Raises:
            ServerElsewhere: another process is the home, and lives.
            StorageError: that cannot be known now.
        """
        ...

    def hold(self, domain: str, server: str, lost: TellLost) -> AbstractAsyncContextManager[None]:
        """Be the home as long as the context lasts; raises as `wait_free` when it is entered.

        ``lost`` is called, with the reason, when it cannot be said in time that it still is: then the child must end.
        """
        ...


class HeldTransport:
    """A child that runs in its domain's home only, as a `mcp.client.Transport`: held from before its start to after
    its end. Single use.
    """

    def __init__(self, child: StdioTransport, home: AbstractAsyncContextManager[None]) -> None:
        self._child = child
        self._home = home
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Streams:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._home)
            streams = await stack.enter_async_context(self._child)
            self._stack = stack.pop_all()
        return streams

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(exc_type, exc, traceback)
