"""The services of the business layer by route family: the parts that the routes of each family may use.

`server.http` passes each route object the parts of its family that it needs. The composition root creates all parts as
one `RouteServices`, which is a member of every family. A part that several families use is listed in each of them.
"""

from dataclasses import dataclass

from agentic_rag.access.auditing import AuditLog
from agentic_rag.access.authorizations import Authorizations
from agentic_rag.access.document_views import DocumentViews
from agentic_rag.access.logins import Logins
from agentic_rag.access.oauth_clients import OAuthClients
from agentic_rag.access.people import People
from agentic_rag.backup.jobs import BackupJobs
from agentic_rag.base.telemetry import Observer
from agentic_rag.bundles.exporting import Exports
from agentic_rag.bundles.importing import Imports
from agentic_rag.conversations.client_names import ClientNames
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.conversations.feedback import Feedback
from agentic_rag.conversations.naming import TitleNews
from agentic_rag.conversations.search import ConversationSearch
from agentic_rag.conversations.server_apps import ServerApps
from agentic_rag.conversations.sharing import Sharing
from agentic_rag.conversations.waits import Waits
from agentic_rag.directory.directory import Directory
from agentic_rag.documents.attachments import Attachments
from agentic_rag.documents.documents import Documents
from agentic_rag.documents.embedding_state import EmbeddingState
from agentic_rag.documents.stale_report import StaleReports
from agentic_rag.domains.definitions import Definitions
from agentic_rag.domains.domains import Domains
from agentic_rag.domains.file_history import FileHistory
from agentic_rag.domains.launch_requests import LaunchRequests
from agentic_rag.domains.paste_check import PasteChecks
from agentic_rag.domains.prompt_files import PromptFiles
from agentic_rag.domains.servers import Servers
from agentic_rag.domains.sign_in_source import SignInSource
from agentic_rag.domains.turn_tools import TurnTools
from agentic_rag.domains.vault import Vault
from agentic_rag.evaluation.cases import Cases
from agentic_rag.evaluation.gate import ChangeGate
from agentic_rag.evaluation.runs import Runs
from agentic_rag.evaluation.score_batches import ScoreBatches
from agentic_rag.evaluation.suggestions import Suggestions
from agentic_rag.operations.budgets import Budgets
from agentic_rag.operations.deletion import Deletion
from agentic_rag.operations.erasure import Erasure
from agentic_rag.operations.health import Health
from agentic_rag.operations.history import History
from agentic_rag.operations.metrics import Exposition
from agentic_rag.operations.usage import UsageReports
from agentic_rag.reach.endpoints import Endpoints
from agentic_rag.reach.links import AnswerLinks
from agentic_rag.reach.schedules import Schedules
from agentic_rag.roles.birth import DomainCreation
from agentic_rag.roles.extraction import Extraction
from agentic_rag.roles.memories import Memories
from agentic_rag.roles.roles import Roles
from agentic_rag.roles.skills import Skills
from agentic_rag.runtime.runtime import Runtime
from agentic_rag.sources.sources import Sources
from agentic_rag.tools.launch.allowed import LaunchCatalogue


@dataclass(frozen=True, kw_only=True)
class OperationServices:
    """The services of the process: health, metrics, usage, budgets and backups."""

    health: Health
    exposition: Exposition
    usage: UsageReports
    budgets: Budgets
    backups: BackupJobs


@dataclass(frozen=True, kw_only=True)
class AccessServices:
    """The services of users, keys, sign-ins of people, and the programs that they authorize."""

    people: People
    logins: Logins
    erasure: Erasure
    authorizations: Authorizations
    oauth_clients: OAuthClients
    directory: Directory


@dataclass(frozen=True, kw_only=True)
class DomainServices:
    """The services of domains, their history and their bundles."""

    domains: Domains
    directory: Directory
    deletion: Deletion
    births: DomainCreation
    conversations: Conversations
    documents: Documents
    views: DocumentViews
    gate: ChangeGate
    history: History
    exports: Exports
    imports: Imports


@dataclass(frozen=True, kw_only=True)
class RoleServices:
    """The services of roles, prompt files, skills and memories."""

    roles: Roles
    definitions: Definitions
    turn_tools: TurnTools
    domains: Domains
    prompts: PromptFiles
    skills: Skills
    memories: Memories
    gate: ChangeGate


@dataclass(frozen=True, kw_only=True)
class ServerServices:
    """The services of MCP servers, their secrets and sign-ins, and the operator's catalogue."""

    servers: Servers
    paste_checks: PasteChecks
    launch_requests: LaunchRequests
    catalogue: LaunchCatalogue
    sign_ins: SignInSource
    directory: Directory
    vault: Vault
    logins: Logins


@dataclass(frozen=True, kw_only=True)
class DocumentRouteServices:
    """The services of documents, attachments and sources."""

    documents: Documents
    attachments: Attachments
    sources: Sources
    stale_reports: StaleReports
    conversations: Conversations
    deletion: Deletion
    vault: Vault
    gate: ChangeGate


@dataclass(frozen=True, kw_only=True)
class EvaluationServices:
    """The services of cases and evaluation runs."""

    cases: Cases
    suggestions: Suggestions
    runs: Runs
    gate: ChangeGate


@dataclass(frozen=True, kw_only=True)
class ReachServices:
    """The services of notification endpoints, schedules, and links to answers."""

    endpoints: Endpoints
    schedules: Schedules
    answer_links: AnswerLinks
    directory: Directory
    vault: Vault


@dataclass(frozen=True, kw_only=True)
class ConversationServices:
    """The services of conversations, turns, waits and feedback, and of the native socket."""

    conversations: Conversations
    conversation_search: ConversationSearch
    deletion: Deletion
    usage: UsageReports
    sharing: Sharing
    feedback: Feedback
    waits: Waits
    runtime: Runtime
    title_news: TitleNews
    apps: ServerApps
    vault: Vault


@dataclass(frozen=True, kw_only=True)
class DoorServices:
    """The services of doors for clients of other protocols over HTTP."""

    conversations: Conversations
    client_names: ClientNames
    deletion: Deletion
    waits: Waits
    directory: Directory
    embedding: EmbeddingState
    vault: Vault


@dataclass(frozen=True, kw_only=True)
class McpServices:
    """The services of the MCP door."""

    conversations: Conversations
    deletion: Deletion
    waits: Waits
    documents: Documents
    views: DocumentViews
    directory: Directory
    roles: Roles
    skills: Skills
    memories: Memories
    vault: Vault
    audit: AuditLog


@dataclass(frozen=True, kw_only=True)
class RouteServices(
    OperationServices,
    AccessServices,
    DomainServices,
    RoleServices,
    ServerServices,
    DocumentRouteServices,
    EvaluationServices,
    ReachServices,
    ConversationServices,
    DoorServices,
    McpServices,
):
    """All services. The fields below belong to no family: every route's edge and background work use them."""

    observer: Observer
    extraction: Extraction
    scoring: ScoreBatches
    file_history: FileHistory
