"""The application: all routes behind one guard.

Owns the routes that belong to no noun, and the assembly. Knows no rule and no record.
"""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute

from agentic_rag import __version__
from agentic_rag.business import Business
from agentic_rag.errors import AgenticRagError
from agentic_rag.server.auth import Guard
from agentic_rag.server.conversation_routes import conversation_routes, turn_routes
from agentic_rag.server.document_routes import document_routes
from agentic_rag.server.domain_routes import domain_routes
from agentic_rag.server.replies import on_refusal, on_routing, reply
from agentic_rag.server.ws import websocket_endpoint


def make_app(business: Business) -> Starlette:
    """Return the ASGI application over a running business layer; it has no lifespan of its own."""
    return Starlette(
        routes=[
            *_process_routes(business),
            *domain_routes(business),
            *document_routes(business),
            *conversation_routes(business),
            *turn_routes(business),
            WebSocketRoute("/ws", websocket_endpoint(business.conversations, business.runtime)),
        ],
        middleware=[Middleware(Guard)],
        exception_handlers={AgenticRagError: on_refusal, HTTPException: on_routing},
    )


def _process_routes(business: Business) -> list[Route]:
    async def health(request: Request) -> Response:
        return reply(business.health())

    async def ready(request: Request) -> Response:
        # The process listens only once its store is open: whoever reads this may send a message.
        return reply({"ready": True})

    async def version(request: Request) -> Response:
        return reply({"version": __version__})

    return [
        Route("/api/health", health, methods=["GET"]),
        Route("/api/ready", ready, methods=["GET"]),
        Route("/api/version", version, methods=["GET"]),
    ]
