"""A real uvicorn on a free port, and a real client."""

import socket
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from agentic_rag.base.redaction import Redactor
from agentic_rag.server.auth import Guard
from agentic_rag.server.http_protocol import Entrance
from agentic_rag.server.ws.fast_socket import UVICORN_OPTIONS
from agentic_rag.server.ws.socket import ConversationService, Turns, websocket_endpoint
from tests.ws.memory import NoWaits

PATIENCE = 240.0
"""Seconds after which a waiting test fails."""


def application(business: ConversationService, turns: Turns) -> ASGIApp:
    """Return the smallest application with `/ws`, behind the product's guard."""
    return Guard(Starlette(routes=[WebSocketRoute("/ws", websocket_endpoint(business, turns, NoWaits(), Redactor()))]))


@asynccontextmanager
async def serving(app: ASGIApp, **options: Any) -> AsyncGenerator[str]:
    """Serve and yield the address (``127.0.0.1:port``)."""
    uvicorn_options = {"http": Entrance(), **UVICORN_OPTIONS, **options}
    config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=5, **uvicorn_options)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    listener = socket.create_server(("127.0.0.1", 0))
    await server.startup(sockets=[listener])
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await server.shutdown(sockets=[listener])


@asynccontextmanager
async def client(address: str, dialect: str | None = "native") -> AsyncGenerator["Client"]:
    """Connect to `/ws` of an address."""
    offered = None if dialect is None else [Subprotocol(f"agentic-rag.{dialect}")]
    async with connect(f"ws://{address}/ws", subprotocols=offered, compression=None, proxy=None) as connection:
        yield Client(connection)


class Client:
    """A connection for JSON frames, with time limits."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def say(self, kind: str, **fields: object) -> None:
        await self.connection.send(orjson.dumps({"type": kind, **fields}).decode())

    async def hear(self) -> dict[str, Any]:
        """Return the next frame."""
        with anyio.fail_after(PATIENCE):
            frame: dict[str, Any] = orjson.loads(await self.connection.recv())
        return frame

    async def ask(self, kind: str, **fields: object) -> dict[str, Any]:
        """Send a frame and return the next one."""
        await self.say(kind, **fields)
        return await self.hear()

    async def hear_turn(self) -> list[dict[str, Any]]:
        """Return frames up to the next terminal event, inclusive."""
        frames = [await self.hear()]
        while frames[-1]["type"] not in ("done", "interrupted") and not _ended_by_error(frames[-1]):
            frames.append(await self.hear())
        return frames

    async def close_code(self) -> int | None:
        """Read to the end of the connection and return its close code."""
        with anyio.fail_after(PATIENCE), suppress(ConnectionClosed):
            while True:
                await self.connection.recv()
        return self.connection.close_code


def _ended_by_error(frame: dict[str, Any]) -> bool:
    return frame["type"] == "error" and "turnId" in frame


def numbers(frames: Iterable[dict[str, Any]]) -> list[int]:
    """Return the event numbers of frames."""
    return [frame["seq"] for frame in frames]


def types(frames: Iterable[dict[str, Any]]) -> list[str]:
    """Return the types of frames."""
    return [frame["type"] for frame in frames]
