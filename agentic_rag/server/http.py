"""The application: all routes behind one guard.

Owns the routes that belong to no noun, and the assembly. Knows no rule and no record.
"""

import anyio.to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import WebSocketRoute

from agentic_rag import __version__
from agentic_rag.access.auditing import AuditLog
from agentic_rag.access.keys import Access
from agentic_rag.access.users import User
from agentic_rag.business import Business
from agentic_rag.operations.health import HealthReport
from agentic_rag.server.auth import Gate, Guard
from agentic_rag.server.conversation_routes import ConversationRoutes, TurnRoutes
from agentic_rag.server.document_routes import CollectionRoutes, DocumentRoutes
from agentic_rag.server.domain_routes import DomainRoutes
from agentic_rag.server.key_routes import AuditRoutes, KeyRoutes, TicketRoutes
from agentic_rag.server.openapi import OpenApi
from agentic_rag.server.replies import Replies, answer
from agentic_rag.server.role_routes import MemoryRoutes, RoleRoutes
from agentic_rag.server.routes import Edge, declarations_of, route
from agentic_rag.server.server_routes import SecretRoutes, ServerRoutes
from agentic_rag.server.usage_routes import UsageRoutes
from agentic_rag.server.ws import websocket_endpoint


def make_app(business: Business, access: Access, audit: AuditLog, gate: Gate) -> Starlette:
    """Return the ASGI application over a running business layer; it has no lifespan of its own."""
    redactor = business.vault.redact
    edge = Edge(Replies(redactor), audit)
    owners = [
        ProcessRoutes(business),
        DomainRoutes(business.domains, business.directory, business.deletion, business.births, business.conversations),
        RoleRoutes(business.roles, business.definitions),
        MemoryRoutes(business.memories),
        SecretRoutes(business.directory, business.vault),
        ServerRoutes(business.servers),
        DocumentRoutes(business.documents, business.deletion),
        CollectionRoutes(business.documents),
        ConversationRoutes(business.conversations, business.deletion),
        TurnRoutes(business.conversations),
        KeyRoutes(access),
        AuditRoutes(audit),
        UsageRoutes(business.usage),
        TicketRoutes(gate.use),
    ]
    kinds = [*map(type, owners), DocumentationRoutes]
    declarations = [each for kind in kinds for each in declarations_of(kind)]
    owners.append(DocumentationRoutes(OpenApi(declarations)))
    open_paths = frozenset(each.path for each in declarations if each.rule.allow == "anyone")
    socket = WebSocketRoute("/ws", websocket_endpoint(business.conversations, business.runtime, redactor))
    return Starlette(
        routes=[*(each for owner in owners for each in edge.routes_of(owner)), socket],
        middleware=[Middleware(Guard, gate=gate, open_paths=open_paths)],
        exception_handlers=edge.exception_handlers(),
    )


@answer()
class Ready:
    """Whether requests are answered."""

    ready: bool


@answer()
class Version:
    """The version of the server."""

    version: str


class ProcessRoutes:
    """The process itself."""

    def __init__(self, business: Business) -> None:
        self._business = business

    @route("GET", "/api/health", allow="user")
    async def health(self, user: User) -> HealthReport:
        """Show every part with its state; operators also see what lately became of it, and why."""
        return await self._business.health.report(user)

    @route("GET", "/api/ready", allow="anyone")
    async def ready(self) -> Ready:
        """Answer when messages may be sent, refuse while the server drains or its store takes nothing."""
        self._business.health.check_ready()
        return Ready(True)

    @route("GET", "/api/version", allow="anyone")
    async def version(self) -> Version:
        """Show the version."""
        return Version(__version__)


class DocumentationRoutes:
    """The documentation of the routes."""

    def __init__(self, openapi: OpenApi) -> None:
        self._openapi = openapi

    @route("GET", "/api/openapi.json", allow="user")
    async def openapi(self) -> Response:
        """Show this document: OpenAPI 3.1 of all routes."""
        return Response(await anyio.to_thread.run_sync(lambda: self._openapi.document), media_type="application/json")
