"""A relay with a fixed address that forwards connections to a server which may restart elsewhere.

`Relay.cut` closes open connections and refuses new ones until `Relay.mend`, like a network failure.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, SocketAttribute, SocketStream


class Relay:
    """The open connections and their target. ``target`` is the port of the server on this machine."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._is_cut = False
        self._open: set[SocketStream] = set()

    async def cut(self) -> None:
        """Close all connections and refuse new ones."""
        self._is_cut = True
        for connection in [*self._open]:
            await anyio.aclose_forcefully(connection)

    def mend(self) -> None:
        """Accept connections again."""
        self._is_cut = False

    async def serve(self, client: SocketStream) -> None:
        """Forward one connection to its end."""
        async with client:
            if self._is_cut:
                return
            try:
                server = await anyio.connect_tcp("127.0.0.1", self.target)
            except OSError:
                return
            self._open |= {client, server}
            try:
                async with server, anyio.create_task_group() as tasks:
                    tasks.start_soon(_carry, client, server, tasks.cancel_scope)
                    tasks.start_soon(_carry, server, client, tasks.cancel_scope)
            finally:
                self._open -= {client, server}


async def _carry(source: ByteReceiveStream, sink: ByteSendStream, scope: anyio.CancelScope) -> None:
    try:
        async for data in source:
            await sink.send(data)
    except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass
    scope.cancel()


@asynccontextmanager
async def relaying(target: int) -> AsyncIterator[tuple[Relay, str]]:
    """Relay on a free port, and yield the relay with its address (``http://…``)."""
    relay = Relay(target)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, relay.serve)
        yield relay, f"http://127.0.0.1:{port}"
        tasks.cancel_scope.cancel()
