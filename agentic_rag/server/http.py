"""The application: all routes behind one guard.

Contains the routes that belong to no other module, and assembles the application. Knows no rule and no record.
"""

from typing import TYPE_CHECKING

import anyio.to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse, Response
from starlette.routing import WebSocketRoute

from agentic_rag import __version__
from agentic_rag.access.auditing import AuditLog
from agentic_rag.access.keys import Access
from agentic_rag.access.users import User
from agentic_rag.base.errors import NotFound
from agentic_rag.base.threads import DomainThreads, one_thread
from agentic_rag.documents.places import Places
from agentic_rag.operations.calls import Calls
from agentic_rag.operations.health import HealthReport
from agentic_rag.reach.links import PATH as ANSWERS
from agentic_rag.server.a2a_routes import AgentRoutes
from agentic_rag.server.ag_ui_routes import AG_UI, AgUiRoutes, Runs
from agentic_rag.server.ag_ui_socket import run_socket_endpoint
from agentic_rag.server.answer_routes import AnswerRoutes
from agentic_rag.server.attachment_routes import AttachmentRoutes
from agentic_rag.server.auth import RESOURCE_METADATA, Gate, Guard
from agentic_rag.server.authorization_routes import FOLDER as OAUTH
from agentic_rag.server.authorization_routes import OPENID_METADATA, SERVER_METADATA, AuthorizationRoutes, OwnServer
from agentic_rag.server.backup_routes import BackupRoutes
from agentic_rag.server.budget_routes import BudgetRoutes
from agentic_rag.server.bundle_routes import BundleRoutes
from agentic_rag.server.catalogue_routes import CatalogueRoutes
from agentic_rag.server.compression import Compression
from agentic_rag.server.conversation_answers import Pages
from agentic_rag.server.conversation_routes import ConversationRoutes, TurnRoutes
from agentic_rag.server.dialects import DEFAULT_DIALECT
from agentic_rag.server.docs_page import POLICY
from agentic_rag.server.document_routes import CollectionRoutes, DocumentRoutes
from agentic_rag.server.domain_routes import DomainRoutes
from agentic_rag.server.durable_streams import DurableStreamRoutes
from agentic_rag.server.endpoint_routes import EndpointRoutes
from agentic_rag.server.evaluation_routes import CaseRoutes, EvaluationRoutes
from agentic_rag.server.feedback_routes import FeedbackRoutes
from agentic_rag.server.history_routes import HistoryRoutes
from agentic_rag.server.key_routes import AuditRoutes, KeyRoutes, TicketRoutes
from agentic_rag.server.launch_request_routes import LaunchRequestRoutes
from agentic_rag.server.legacy_routes import ChatRoutes, KnowledgeRoutes
from agentic_rag.server.login_routes import LoginRoutes
from agentic_rag.server.mcp_door import McpDoor, McpRoutes
from agentic_rag.server.oauth_routes import OAuthRoutes
from agentic_rag.server.oidc_routes import OidcRoutes, ProviderDepartures
from agentic_rag.server.openai_routes import OpenAiRoutes
from agentic_rag.server.openapi import OpenApi
from agentic_rag.server.place_routes import PlaceRoutes
from agentic_rag.server.render_routes import RenderRoutes
from agentic_rag.server.replies import MetricsText, Replies, answer
from agentic_rag.server.role_routes import MemoryRoutes, PromptRoutes, RoleRoutes, SkillRoutes
from agentic_rag.server.root_path import RootPath
from agentic_rag.server.routes import Edge, declarations_of, route
from agentic_rag.server.schedule_routes import TRIGGERS, ScheduleRoutes
from agentic_rag.server.server_routes import SecretRoutes, ServerRoutes
from agentic_rag.server.services import RouteServices
from agentic_rag.server.sharing_routes import SHARED_FOLDER, SharingRoutes
from agentic_rag.server.source_routes import SourceRoutes
from agentic_rag.server.ui_message_routes import UiMessageRoutes
from agentic_rag.server.usage_routes import UsageRoutes
from agentic_rag.server.user_routes import UserRoutes
from agentic_rag.server.wait_routes import WaitRoutes
from agentic_rag.server.web_routes import FOLDER, WebRoutes
from agentic_rag.server.ws import websocket_endpoint

if TYPE_CHECKING:
    from agentic_rag.access.oidc.logins import ProviderLogins


INTERFACES = ("/api", "/v1", "/mcp", "/a2a", "/oauth", "/.well-known", "/metrics", "/client-metadata.json")
"""Path prefixes for programs, as listed in the documentation; other paths are the page's files."""


BARE_FOLDERS = (ANSWERS, TRIGGERS, OAUTH, RESOURCE_METADATA, SERVER_METADATA, OPENID_METADATA)
"""Path prefixes whose requests prove by themselves what they permit. Their credentials and cookies are ignored."""


def _routes_of_domains(business: RouteServices, thread: DomainThreads, gate: Gate) -> list[object]:
    places = PlaceRoutes(business.documents, Places(business.documents), business.vault.redact)
    return [
        ProcessRoutes(business),
        DomainRoutes(
            business.domains,
            business.directory,
            business.deletion,
            business.births,
            business.conversations,
            business.gate,
            business.documents,
            business.views,
        ),
        RoleRoutes(business.roles, business.definitions, business.turn_tools, business.domains, business.gate),
        PromptRoutes(business.prompts, business.gate),
        SkillRoutes(business.skills),
        MemoryRoutes(business.memories),
        SecretRoutes(business.directory, business.vault),
        ServerRoutes(business.servers, business.paste_checks),
        LaunchRequestRoutes(business.launch_requests, business.logins, gate),
        OAuthRoutes(business.sign_ins, business.directory),
        DocumentRoutes(business.documents, business.deletion, thread, business.gate),
        CollectionRoutes(business.documents, business.conversations, business.stale_reports),
        places,
        AttachmentRoutes(business.conversations, business.attachments, places),
        BundleRoutes(business.exports, business.imports),
        HistoryRoutes(business.history),
        CaseRoutes(business.cases, business.suggestions),
        EvaluationRoutes(business.cases, business.runs, business.gate),
        EndpointRoutes(business.endpoints, business.directory),
        ScheduleRoutes(business.schedules),
        SourceRoutes(business.sources),
    ]


def make_app(
    business: RouteServices,
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
) -> Starlette:
    """Return the ASGI application over a running business layer. The application has no lifespan.

    ``socket_dialect`` is the default dialect of `/ws`. ``provider`` signs people in at an OpenID provider, if there is
    one. ``public_url`` is the server's public address with its root path; if empty, the browser's address is used.
    ``root_path`` is the path below which a proxy serves this application, or empty. ``mcp_sign_in`` says who issues
    tokens for the MCP door, and ``mcp_issuer`` is the OpenID provider's issuer.
    """
    redactor = business.vault.redact
    runs = Runs(business.conversations, business.client_names, business.waits)
    thread = one_thread()
    edge = Edge(Replies(redactor), audit, thread, business.views, business.observer, business.health.note_refused)
    departures = None if provider is None else ProviderDepartures(provider, public_url)
    calls = Calls(business.conversations, business.deletion, business.waits)
    owners: list[object] = [
        *_routes_of_domains(business, thread, gate),
        ConversationRoutes(
            business.conversations, business.conversation_search, business.deletion, Pages(thread, business.usage)
        ),
        SharingRoutes(business.sharing, redactor, thread),
        TurnRoutes(business.conversations),
        FeedbackRoutes(business.feedback),
        RenderRoutes(thread),
        DurableStreamRoutes(business.conversations),
        WaitRoutes(business.waits),
        AnswerRoutes(business.answer_links, redactor),
        OpenAiRoutes(
            business.directory,
            business.conversations,
            calls,
            business.embedding,
        ),
        AgentRoutes(business, calls),
        KeyRoutes(access, business.logins, gate),
        UserRoutes(business.people, access, business.erasure),
        LoginRoutes(business.logins, gate, departures),
        OidcRoutes(provider, gate),
        AuthorizationRoutes(
            business.authorizations,
            business.oauth_clients,
            business.directory,
            gate,
            mcp_sign_in,
            mcp_issuer,
        ),
        AuditRoutes(audit),
        BackupRoutes(business.backups, audit),
        CatalogueRoutes(business.catalogue, audit),
        UsageRoutes(business.usage),
        BudgetRoutes(business.budgets),
        TicketRoutes(gate),
        KnowledgeRoutes(business.conversations, business.deletion),
        ChatRoutes(business.conversations),
        AgUiRoutes(runs),
        UiMessageRoutes(business.conversations, business.client_names, business.waits),
        McpRoutes(business.directory, mcp_door),
    ]
    kinds = [*map(type, owners), DocumentationRoutes, WebRoutes]
    declarations = [each for kind in kinds for each in declarations_of(kind)]
    owners.append(DocumentationRoutes(OpenApi([each for each in declarations if each.path.startswith(INTERFACES)])))
    owners.append(WebRoutes())
    open_paths = frozenset(each.path for each in declarations if each.rule.allow == "anyone")
    endpoint = websocket_endpoint(
        business.conversations,
        business.runtime,
        business.waits,
        redactor,
        socket_dialect,
        news=business.title_news,
        check_replay=business.conversations.check_replay_of,
    )
    below = [Middleware(RootPath, root=root_path)] if root_path else []
    sockets = [WebSocketRoute("/ws", endpoint), WebSocketRoute(AG_UI, run_socket_endpoint(runs, redactor))]
    return Starlette(
        routes=[*(each for owner in owners for each in edge.routes_of(owner)), *sockets],
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

    def __init__(self, business: RouteServices) -> None:
        self._business = business

    @route("GET", "/api/health", allow="user")
    async def health(self, user: User) -> HealthReport:
        """Show the health of every component. Operators also see recent failures and their reasons."""
        return await self._business.health.report(user)

    @route("GET", "/api/ready", allow="anyone")
    async def ready(self) -> Ready:
        """Answer if messages may be sent. Refuse while the server loads or drains, or its store accepts no writes."""
        self._business.health.check_ready()
        return Ready(True)

    @route("GET", "/api/version", allow="anyone")
    async def version(self) -> Version:
        """Show the version."""
        return Version(__version__)

    @route("GET", "/metrics", errors=[NotFound])
    async def metrics(self) -> MetricsText:
        """Show the server's metrics in Prometheus format."""
        return MetricsText(await self._business.exposition.text())


class DocumentationRoutes:
    """The documentation of the routes. It is the same for everyone and contains nothing specific to this server."""

    def __init__(self, openapi: OpenApi) -> None:
        self._openapi = openapi

    @route("GET", "/api/openapi.json", allow="anyone")
    async def openapi(self) -> Response:
        """Show this document: OpenAPI 3.1 of all routes."""
        return Response(await anyio.to_thread.run_sync(lambda: self._openapi.document), media_type="application/json")

    @route("GET", "/api/docs", allow="anyone")
    async def docs(self) -> HTMLResponse:
        """Show the documentation of all routes as a page."""
        page = await anyio.to_thread.run_sync(lambda: self._openapi.page)
        return HTMLResponse(page, headers={"content-security-policy": POLICY})
