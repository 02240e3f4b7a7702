"""A server for the chat client: the real `/ws` over conversations in memory, and the REST routes it needs."""

import io
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from rich.console import Console
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute

from agentic_rag.access.users import User
from agentic_rag.base.errors import AgenticRagError, NotFound
from agentic_rag.base.redaction import Redactor
from agentic_rag.chat.screen import Screen
from agentic_rag.server.auth import Guard
from agentic_rag.server.replies import Replies
from agentic_rag.server.ws.fast_socket import SocketProtocol
from agentic_rag.server.ws.socket import websocket_endpoint
from tests.ws.memory import Desk, NoWaits
from tests.ws.serving import serving

LOCAL = User("local")


class Connections(SocketProtocol):
    """Records every connection, so that a test can break it as a network does."""

    open_connections: list["Connections"]

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.open_connections.append(self)


def break_connections() -> None:
    for connection in Connections.open_connections:
        connection.transport.abort()
    Connections.open_connections.clear()


@asynccontextmanager
async def chat_server(desk: Desk) -> AsyncGenerator[str]:
    """Serve and yield the URL. Each POST opens the next conversation of the domain ``demo``."""

    async def create(request: Request) -> Response:
        domain = (await request.json())["domainId"]
        if domain != "demo":
            raise NotFound("domain", domain)
        conversation_id = f"conv_{len(desk.conversations) + 1}"
        desk.open(conversation_id)
        return JSONResponse({"id": conversation_id, "domainId": domain}, 201)

    async def get(request: Request) -> Response:
        conversation = await desk.get(LOCAL, request.path_params["id"])
        return JSONResponse({"id": conversation.id, "domainId": "demo"})

    async def messages(request: Request) -> Response:
        conversation = await desk.get(LOCAL, request.path_params["id"])
        items = [
            {"role": "assistant", "turnId": turn.id, "content": f"stored {turn.id}"} for turn in conversation.turns
        ]
        return JSONResponse({"items": items})

    async def refuse(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, AgenticRagError)
        return Replies(Redactor()).refusal(exc, request)

    app = Starlette(
        routes=[
            Route("/api/conversations", create, methods=["POST"]),
            Route("/api/conversations/{id}", get),
            Route("/api/conversations/{id}/messages", messages),
            WebSocketRoute("/ws", websocket_endpoint(desk, desk, NoWaits(), Redactor())),
        ],
        exception_handlers={AgenticRagError: refuse},
    )
    Connections.open_connections = []
    async with serving(Guard(app), ws=Connections) as address:
        yield f"http://{address}"


class Paper:
    """A screen whose output is text."""

    def __init__(self, *, as_json: bool = False) -> None:
        self._out = io.StringIO()
        self._err = io.StringIO()
        self.screen = Screen(Console(file=self._out), Console(file=self._err), as_json=as_json)

    @property
    def out(self) -> str:
        return self._out.getvalue()

    @property
    def err(self) -> str:
        return self._err.getvalue()
