"""The services of the business layer, collected for routes, sockets and commands.

The composition root creates the collection.
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
from agentic_rag.conversations.naming import Naming
from agentic_rag.conversations.search import ConversationSearch
from agentic_rag.conversations.sharing import Sharing
from agentic_rag.conversations.title_news import TitleNews
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
from agentic_rag.evaluation.gate import Gate
from agentic_rag.evaluation.runs import Runs
from agentic_rag.evaluation.suggestions import Suggestions
from agentic_rag.operations.budgets import Budgets
from agentic_rag.operations.deletion import Deletion
from agentic_rag.operations.erasure import Erasure
from agentic_rag.operations.exposition import Exposition
from agentic_rag.operations.health import Health
from agentic_rag.operations.history import History
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


@dataclass(frozen=True, slots=True)
class RouteServices:
    """All services that routes, sockets and commands use."""

    people: People
    logins: Logins
    directory: Directory
    domains: Domains
    definitions: Definitions
    prompts: PromptFiles
    roles: Roles
    skills: Skills
    births: DomainCreation
    memories: Memories
    extraction: Extraction
    documents: Documents
    attachments: Attachments
    views: DocumentViews
    stale_reports: StaleReports
    exports: Exports
    imports: Imports
    conversations: Conversations
    conversation_search: ConversationSearch
    sharing: Sharing
    client_names: ClientNames
    naming: Naming
    title_news: TitleNews
    deletion: Deletion
    erasure: Erasure
    runtime: Runtime
    vault: Vault
    turn_tools: TurnTools
    servers: Servers
    paste_checks: PasteChecks
    launch_requests: LaunchRequests
    history: History
    file_history: FileHistory
    health: Health
    usage: UsageReports
    budgets: Budgets
    exposition: Exposition
    observer: Observer
    waits: Waits
    embedding: EmbeddingState
    audit: AuditLog
    authorizations: Authorizations
    oauth_clients: OAuthClients
    endpoints: Endpoints
    schedules: Schedules
    sources: Sources
    answer_links: AnswerLinks
    feedback: Feedback
    cases: Cases
    runs: Runs
    gate: Gate
    suggestions: Suggestions
    sign_ins: SignInSource
    catalogue: LaunchCatalogue
    backups: BackupJobs
