"""The application: all routes behind one guard.

Contains the routes that belong to no other module, and assembles the application. Knows no rule and no record.
"""

from typing import TYPE_CHECKING

import anyio.to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import WebSocketRoute

from agentic_rag import __version__
from agentic_rag.access.auditing import AuditLog
from agentic_rag.access.keys import Access
from agentic_rag.access.users import User
from agentic_rag.base.errors import NotFound
from agentic_rag.base.threads import DomainThreads, one_thread
from agentic_rag.documents.places import Places
from agentic_rag.operations.calls import Calls
from agentic_rag.operations.health import Health, HealthReport
from agentic_rag.operations.metrics import Exposition
from agentic_rag.reach.links import PATH as ANSWERS
from agentic_rag.server.auth import RESOURCE_METADATA, Gate, Guard
from agentic_rag.server.compression import Compression
from agentic_rag.server.dialects import DEFAULT_DIALECT
from agentic_rag.server.doors.a2a import AgentRoutes
from agentic_rag.server.doors.ag_ui import AG_UI, AgUiRoutes, AgUiRuns
from agentic_rag.server.doors.ag_ui_socket import run_socket_endpoint
from agentic_rag.server.doors.authorization import FOLDER as OAUTH
from agentic_rag.server.doors.authorization import OPENID_METADATA, SERVER_METADATA, AuthorizationRoutes, OwnServer
from agentic_rag.server.doors.durable_streams import DurableStreamRoutes
from agentic_rag.server.doors.legacy import ChatRoutes, KnowledgeRoutes
from agentic_rag.server.doors.mcp import McpDoor, McpRoutes
from agentic_rag.server.doors.openai import OpenAiRoutes
from agentic_rag.server.doors.ui_message import UiMessageRoutes
from agentic_rag.server.openapi import OpenApi
from agentic_rag.server.replies import MetricsText, Replies, answer
from agentic_rag.server.root_path import RootPath
from agentic_rag.server.routes.answer_links import AnswerRoutes
from agentic_rag.server.routes.apps import AppRoutes
from agentic_rag.server.routes.attachments import AttachmentRoutes
from agentic_rag.server.routes.backups import BackupRoutes
from agentic_rag.server.routes.budgets import BudgetRoutes
from agentic_rag.server.routes.bundles import BundleRoutes
from agentic_rag.server.routes.console import FOLDER, WebRoutes
from agentic_rag.server.routes.conversation_answers import MessagePages
from agentic_rag.server.routes.conversations import ConversationRoutes, TurnRoutes
from agentic_rag.server.routes.documents import CollectionRoutes, DocumentRoutes
from agentic_rag.server.routes.domains import DomainRoutes
from agentic_rag.server.routes.endpoints import EndpointRoutes
from agentic_rag.server.routes.evaluation import CaseRoutes, EvaluationRoutes
from agentic_rag.server.routes.feedback import FeedbackRoutes
from agentic_rag.server.routes.history import HistoryRoutes
from agentic_rag.server.routes.keys import AuditRoutes, KeyRoutes, TicketRoutes
from agentic_rag.server.routes.launch_requests import CatalogueRoutes, LaunchRequestRoutes
from agentic_rag.server.routes.logins import LoginRoutes
from agentic_rag.server.routes.oauth import OAuthRoutes
from agentic_rag.server.routes.oidc import OidcRoutes, ProviderDepartures
from agentic_rag.server.routes.places import PlaceRoutes
from agentic_rag.server.routes.render import RenderRoutes
from agentic_rag.server.routes.roles import MemoryRoutes, PromptRoutes, RoleRoutes, SkillRoutes
from agentic_rag.server.routes.schedules import TRIGGERS, ScheduleRoutes
from agentic_rag.server.routes.servers import SecretRoutes, ServerRoutes
from agentic_rag.server.routes.sharing import SHARED_FOLDER, SharingRoutes
from agentic_rag.server.routes.sources import SourceRoutes
from agentic_rag.server.routes.usage import UsageRoutes
from agentic_rag.server.routes.users import UserRoutes
from agentic_rag.server.routes.waits import WaitRoutes
from agentic_rag.server.routing import HttpEdge, declarations_of, route
from agentic_rag.server.services import (
    AccessServices,
    ConversationServices,
    DocumentRouteServices,
    DomainServices,
    DoorServices,
    EvaluationServices,
    OperationServices,
    ReachServices,
    RoleServices,
    RouteServices,
    ServerServices,
)
from agentic_rag.server.web_files import WebFiles
from agentic_rag.server.ws.socket import websocket_endpoint

if TYPE_CHECKING:
    from agentic_rag.access.oidc.logins import ProviderLogins


INTERFACES = ("/api", "/v1", "/mcp", "/a2a", "/oauth", "/.well-known", "/metrics", "/client-metadata.json")
"""Path prefixes for programs, as listed in the documentation; other paths are the page's files."""


BARE_FOLDERS = (ANSWERS, TRIGGERS, OAUTH, RESOURCE_METADATA, SERVER_METADATA, OPENID_METADATA)
"""Path prefixes whose requests prove by themselves what they permit. Their credentials and cookies are ignored."""


def _operation_routes(services: OperationServices, audit: AuditLog) -> list[object]:
    return [
        ProcessRoutes(services.health, services.exposition),
        UsageRoutes(services.usage),
        BudgetRoutes(services.budgets),
        BackupRoutes(services.backups, audit),
        AuditRoutes(audit),
    ]


def _access_routes(
    services: AccessServices,
    access: Access,
    gate: Gate,
    provider: "ProviderLogins | None",
    public_url: str,
    mcp_sign_in: OwnServer,
    mcp_issuer: str,
) -> list[object]:
    departures = None if provider is None else ProviderDepartures(provider, public_url)
    return [
        KeyRoutes(access, services.logins, gate),
        UserRoutes(services.people, access, services.erasure),
        LoginRoutes(services.logins, gate, departures),
        OidcRoutes(provider, gate),
        AuthorizationRoutes(
            services.authorizations, services.oauth_clients, services.directory, gate, mcp_sign_in, mcp_issuer
        ),
        TicketRoutes(gate),
    ]


def _domain_routes(services: DomainServices) -> list[object]:
    return [
        DomainRoutes(
            services.domains,
            services.directory,
            services.deletion,
            services.births,
            services.conversations,
            services.gate,
            services.documents,
            services.views,
        ),
        BundleRoutes(services.exports, services.imports),
        HistoryRoutes(services.history),
    ]


def _role_routes(services: RoleServices) -> list[object]:
    return [
        RoleRoutes(services.roles, services.definitions, services.turn_tools, services.domains, services.gate),
        PromptRoutes(services.prompts, services.gate),
        SkillRoutes(services.skills),
        MemoryRoutes(services.memories),
    ]


def _server_routes(services: ServerServices, gate: Gate, audit: AuditLog) -> list[object]:
    return [
        SecretRoutes(services.directory, services.vault),
        ServerRoutes(services.servers, services.paste_checks),
        LaunchRequestRoutes(services.launch_requests, services.logins, gate),
        OAuthRoutes(services.sign_ins, services.directory),
        CatalogueRoutes(services.catalogue, audit),
    ]


def _document_routes(services: DocumentRouteServices, thread: DomainThreads) -> list[object]:
    places = PlaceRoutes(services.documents, Places(services.documents), services.vault.redact)
    return [
        DocumentRoutes(services.documents, services.deletion, thread, services.gate),
        CollectionRoutes(services.documents, services.conversations, services.stale_reports),
        places,
        AttachmentRoutes(services.conversations, services.attachments, places),
        SourceRoutes(services.sources),
    ]


def _evaluation_routes(services: EvaluationServices) -> list[object]:
    return [
        CaseRoutes(services.cases, services.suggestions),
        EvaluationRoutes(services.cases, services.runs, services.gate),
    ]


def _reach_routes(services: ReachServices) -> list[object]:
    return [
        EndpointRoutes(services.endpoints, services.directory),
        ScheduleRoutes(services.schedules),
        AnswerRoutes(services.answer_links, services.vault.redact),
    ]


def _conversation_routes(services: ConversationServices, thread: DomainThreads) -> list[object]:
    pages = MessagePages(thread, services.usage)
    return [
        ConversationRoutes(services.conversations, services.conversation_search, services.deletion, pages),
        SharingRoutes(services.sharing, services.vault.redact, thread),
        TurnRoutes(services.conversations),
        FeedbackRoutes(services.feedback),
        RenderRoutes(thread),
        AppRoutes(services.apps),
        DurableStreamRoutes(services.conversations),
        WaitRoutes(services.waits),
    ]


def _door_routes(services: DoorServices, runs: AgUiRuns, mcp_door: McpDoor) -> list[object]:
    calls = Calls(services.conversations, services.deletion, services.waits)
    return [
        OpenAiRoutes(services.directory, services.conversations, calls, services.embedding),
        AgentRoutes(
            services.directory,
            services.conversations,
            services.client_names,
            services.waits,
            services.deletion,
            calls,
            services.vault.redact,
        ),
        KnowledgeRoutes(services.conversations, services.deletion),
        ChatRoutes(services.conversations),
        AgUiRoutes(runs),
        UiMessageRoutes(services.conversations, services.client_names, services.waits),
        McpRoutes(services.directory, mcp_door),
    ]


def make_app(
    services: RouteServices,
    access: Access,
    audit: AuditLog,
    gate: Gate,
    mcp_door: McpDoor,
    socket_dialect: str = DEFAULT_DIALECT,
    *,
    provider: "ProviderLogins | None" = None,
    public_url: str = "",
    root_path: str = "",
    mcp_sign_in: OwnServer = "own",
    mcp_issuer: str = "",
    web_files: WebFiles | None = None,
) -> Starlette:
    """Return the ASGI application over a running business layer. The application has no lifespan.

    ``socket_dialect`` is the default dialect of `/ws`. ``provider`` signs people in at an OpenID provider, if there is
    one. ``public_url`` is the server's public address with its root path; if empty, the browser's address is used.
    ``root_path`` is the path below which a proxy serves this application, or empty. ``mcp_sign_in`` says who issues
    tokens for the MCP door, and ``mcp_issuer`` is the OpenID provider's issuer. ``web_files`` are the console's.
    """
    redactor = services.vault.redact
    runs = AgUiRuns(services.conversations, services.client_names, services.waits)
    thread = one_thread()
    edge = HttpEdge(Replies(redactor), audit, thread, services.views, services.observer, services.health.note_refused)
    owners: list[object] = [
        *_operation_routes(services, audit),
        *_domain_routes(services),
        *_role_routes(services),
        *_server_routes(services, gate, audit),
        *_document_routes(services, thread),
        *_evaluation_routes(services),
        *_reach_routes(services),
        *_conversation_routes(services, thread),
        *_door_routes(services, runs, mcp_door),
        *_access_routes(services, access, gate, provider, public_url, mcp_sign_in, mcp_issuer),
    ]
    # These two are made below, from what the declarations say, and are declared like the others.
    kinds = [*map(type, owners), DocumentationRoutes, WebRoutes]
    declarations = [declaration for kind in kinds for declaration in declarations_of(kind)]
    owners.append(
        DocumentationRoutes(
            OpenApi([declaration for declaration in declarations if declaration.path.startswith(INTERFACES)])
        )
    )
    owners.append(WebRoutes(web_files))
    open_paths = frozenset(declaration.path for declaration in declarations if declaration.rule.allow == "anyone")
    endpoint = websocket_endpoint(
        services.conversations,
        services.runtime,
        services.waits,
        redactor,
        socket_dialect,
        news=services.title_news,
        check_replay=services.conversations.check_replay_of,
    )
    below = [Middleware(RootPath, root=root_path)] if root_path else []
    sockets = [WebSocketRoute("/ws", endpoint), WebSocketRoute(AG_UI, run_socket_endpoint(runs, redactor))]
    return Starlette(
        routes=[*(entry for owner in owners for entry in edge.routes_of(owner)), *sockets],
        # Outermost first: paths lose the root path before the guard compares them, and refusals are compressed, too.
        middleware=[
            *below,
            Middleware(Compression),
            Middleware(
                Guard,
                gate=gate,
                open_paths=open_paths,
                open_folders=(SHARED_FOLDER,),
                bare_folders=BARE_FOLDERS,
                page_folder=FOLDER,
            ),
        ],
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

    def __init__(self, health: Health, exposition: Exposition) -> None:
        self._health = health
        self._exposition = exposition

    @route("GET", "/api/health", allow="user")
    async def health(self, user: User) -> HealthReport:
        """Show the health of every component. Operators also see recent failures and their reasons."""
        return await self._health.report(user)

    @route("GET", "/api/ready", allow="anyone")
    async def ready(self) -> Ready:
        """Answer if messages may be sent. Refuse while the server loads or drains, or its store accepts no writes."""
        self._health.check_ready()
        return Ready(True)

    @route("GET", "/api/version", allow="anyone")
    async def version(self) -> Version:
        """Show the version."""
        return Version(__version__)

    @route("GET", "/metrics", errors=[NotFound])
    async def metrics(self) -> MetricsText:
        """Show the server's metrics in Prometheus format."""
        return MetricsText(await self._exposition.text())


class DocumentationRoutes:
    """The documentation of the routes. It is the same for everyone and contains nothing specific to this server."""

    def __init__(self, openapi: OpenApi) -> None:
        self._openapi = openapi

    @route("GET", "/api/openapi.json", allow="anyone")
    async def openapi(self) -> Response:
        """Show this document: OpenAPI 3.1 of all routes."""
        # In a thread: the first request makes the schemas of all forms and answers, which takes a while.
        return Response(await anyio.to_thread.run_sync(lambda: self._openapi.document), media_type="application/json")
