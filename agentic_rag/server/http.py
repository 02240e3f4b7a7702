"""The application: all routes behind one guard.

Owns the routes that belong to no noun, and the assembly. Knows no rule and no record.
"""

from functools import partial

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute

from agentic_rag import __version__
from agentic_rag.access.auditing import AuditLog
from agentic_rag.access.keys import Access
from agentic_rag.business import Business
from agentic_rag.server.auth import Guard, user_of
from agentic_rag.server.conversation_routes import conversation_routes, turn_routes
from agentic_rag.server.document_routes import document_routes
from agentic_rag.server.domain_routes import domain_routes
from agentic_rag.server.gate import Gate
from agentic_rag.server.key_routes import audit_routes, key_routes, ticket_routes
from agentic_rag.server.permits import EXCEPTION_HANDLERS, permitted
from agentic_rag.server.replies import outside_domains, reply
from agentic_rag.server.role_routes import memory_routes, role_routes
from agentic_rag.server.server_routes import secret_routes, server_routes
from agentic_rag.server.ws import websocket_endpoint


def make_app(business: Business, access: Access, audit: AuditLog, gate: Gate) -> Starlette:
    """Return the ASGI application over a running business layer; it has no lifespan of its own."""
    errors = partial(outside_domains, business.vault.redact)
    routes = [
        *_process_routes(business),
        *domain_routes(business),
        *role_routes(business),
        *memory_routes(business),
        *secret_routes(business),
        *server_routes(business),
        *document_routes(business),
        *conversation_routes(business),
        *turn_routes(business),
        *key_routes(access),
        *audit_routes(audit),
        *ticket_routes(gate),
        WebSocketRoute("/ws", websocket_endpoint(business.conversations, business.runtime, errors)),
    ]
    app = Starlette(
        routes=permitted(routes, audit),
        middleware=[Middleware(Guard, gate=gate)],
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.state.redact = business.vault.redact
    return app


def _process_routes(business: Business) -> list[Route]:
    async def health(request: Request) -> Response:
        shown, user = business.health.report(), user_of(request.scope)
        for part in shown.values():
            if isinstance(part, dict) and "reason" in part:  # the rest are our own words, and must stay them
                part["reason"] = business.vault.redact(part["reason"])
        # whose servers these are is nobody else's business
        shown["servers"] = [each for each in shown["servers"] if "domain" not in each or user.sees(each["domain"])]
        return reply(shown)

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
