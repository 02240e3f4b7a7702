"""LISTEN and NOTIFY over a connection that ends in each way in which a server ends one."""

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.abc import SocketAttribute, SocketStream
from sqlalchemy import make_url

from agentic_rag.store.database import Database
from tests.store.conftest import needs_postgresql
from tests.waiting import pause

pytestmark = needs_postgresql

PATIENCE = 240.0
FIELDS = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
FATAL = b"E" + struct.pack("!i", len(FIELDS) + 4) + FIELDS
"""ErrorResponse, of PostgreSQL's frontend/backend protocol."""


class Relay:
    """A proxy between a client and a server that can announce, as the server, that it terminates the connection."""

    def __init__(self) -> None:
        self.clients: list[SocketStream] = []
        self.url = ""

    async def terminate(self) -> None:
        """Send the announcement on each open connection, and leave it open."""
        for client in self.clients:
            await client.send(FATAL)
        self.clients.clear()


@asynccontextmanager
async def relay_connections(url: str) -> AsyncIterator[Relay]:
    target = make_url(url)
    host, port = target.host, target.port
    assert host is not None
    assert port is not None
    relay = Relay()

    async def forward(source: SocketStream, sink: SocketStream) -> None:
        with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for data in source:
                await sink.send(data)
        await anyio.aclose_forcefully(sink)

    async def serve(client: SocketStream) -> None:
        relay.clients.append(client)
        async with client, await anyio.connect_tcp(host, port) as server, anyio.create_task_group() as tasks:
            tasks.start_soon(forward, client, server)
            tasks.start_soon(forward, server, client)

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        relay.url = target.set(port=listener.extra(SocketAttribute.local_port)).render_as_string()
        tasks.start_soon(listener.serve, serve)
        yield relay
        tasks.cancel_scope.cancel()


async def test_a_terminated_connection_that_stays_open_is_replaced(postgresql_url: str) -> None:
    payloads: list[str | None] = []
    async with relay_connections(postgresql_url) as relay:
        database = await Database.open(relay.url)
        assert database.server is not None
        notifications = database.server.notifications
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(notifications.run)
                notifications.listen("one", payloads.append)
                with anyio.fail_after(PATIENCE):
                    while not payloads:
                        await pause()
                    await relay.terminate()
                    while "after" not in payloads:
                        notifications.notify("one", "after")
                        await pause()
                tasks.cancel_scope.cancel()
        finally:
            await database.aclose()
