"""The composition root: create all parts in the order of their dependencies.

This module opens and closes the parts, from the data folder's lock to the ASGI application. It knows no rule of any
part. Slow imports happen in a thread, on first use or after the server listens, so that a process is ready within a
second.
"""

import importlib
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread
from starlette.applications import Starlette

from agentic_rag.access.acts import Acts
from agentic_rag.access.auditing import AuditLog
from agentic_rag.access.authorizations import Authorizations
from agentic_rag.access.keys import Access
from agentic_rag.access.logins import Logins, LoginTimes
from agentic_rag.access.oauth_clients import OAuthClients
from agentic_rag.access.people import People
from agentic_rag.app.agent_services import HiddenFromReaders, Services
from agentic_rag.app.cluster import SharedStore, join_store, open_replica
from agentic_rag.app.open_store import open_store
from agentic_rag.backup.jobs import BackupJobs, ScheduledBackups
from agentic_rag.base import garbage
from agentic_rag.base.errors import InvalidInput, refused_write
from agentic_rag.base.redaction import Redactor, redacted_logs
from agentic_rag.base.settings import Settings, client_environment
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.base.telemetry import Observer
from agentic_rag.base.threads import DomainThreads
from agentic_rag.base.workers import Workers
from agentic_rag.bundles.exporting import Exports
from agentic_rag.bundles.importing import Imports
from agentic_rag.bundles.pending import PendingImports
from agentic_rag.bundles.placing import Owners
from agentic_rag.bundles.receiving import Reception
from agentic_rag.conversations.bookkeeping import TurnBookkeeping
from agentic_rag.conversations.client_names import ClientNames
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.conversations.feedback import Feedback
from agentic_rag.conversations.naming import LOOK_SECONDS as NAMING_SECONDS
from agentic_rag.conversations.naming import Naming, TitleNews
from agentic_rag.conversations.search import ConversationSearch
from agentic_rag.conversations.server_apps import ServerApps
from agentic_rag.conversations.sharing import Sharing
from agentic_rag.conversations.waits import SignInWaits, Waits
from agentic_rag.directory.directory import FIRST_DOCUMENT_SECONDS, Directory
from agentic_rag.documents.attachments import Attachments
from agentic_rag.documents.context_lines import LOOK_SECONDS as LINES_SECONDS
from agentic_rag.documents.disk_reserve import DiskReserve
from agentic_rag.documents.documents import Documents
from agentic_rag.documents.knowledge import Knowledge, open_knowledge
from agentic_rag.documents.line_writer import LineWriter
from agentic_rag.documents.model_scans import PageModel
from agentic_rag.documents.stale_report import StaleReports
from agentic_rag.domains.definitions import Defaults, Definitions
from agentic_rag.domains.domains import Domains
from agentic_rag.domains.file_history import FileHistory
from agentic_rag.domains.launch_requests import make_launch_requests
from agentic_rag.domains.paste_check import PasteChecks
from agentic_rag.domains.prompt_files import PromptFiles
from agentic_rag.domains.servers import Servers, make_lists
from agentic_rag.domains.sign_in_source import SignInSource
from agentic_rag.domains.turn_tools import TurnTools
from agentic_rag.domains.vault import Vault
from agentic_rag.domains.watched_workspaces import WatchedWorkspaces
from agentic_rag.evaluation.answers import AnswerTier
from agentic_rag.evaluation.cases import Cases
from agentic_rag.evaluation.gate import ChangeGate
from agentic_rag.evaluation.judging import AnswerJudge
from agentic_rag.evaluation.reindex_gate import ReindexGate
from agentic_rag.evaluation.retrieval import RetrievalTier
from agentic_rag.evaluation.runs import SILENT_SECONDS, Runs
from agentic_rag.evaluation.score_batches import LOOK_SECONDS as SCORING_SECONDS
from agentic_rag.evaluation.score_batches import ScoreBatches
from agentic_rag.evaluation.suggestions import Suggestions
from agentic_rag.models.base import Model, ThinkingMode
from agentic_rag.models.calls import ModelCalls
from agentic_rag.models.extractive import ExtractiveModel
from agentic_rag.models.pool import WarmModel
from agentic_rag.models.prices import read_prices
from agentic_rag.models.provider_file import Providers, read_providers
from agentic_rag.models.providers import ChosenModel, choose_model, secrets_of, use_profiles
from agentic_rag.models.retirement import retirements_of
from agentic_rag.models.traced_model import observe
from agentic_rag.operations.budgets import Budgets
from agentic_rag.operations.data_folder import DataFolder, ServerAddress, open_command
from agentic_rag.operations.deletion import Deletion
from agentic_rag.operations.doctor import Doctor
from agentic_rag.operations.erasure import Erasure
from agentic_rag.operations.exclusive_jobs import ExclusiveJobs
from agentic_rag.operations.health import NEEDS_QDRANT, Health
from agentic_rag.operations.history import History
from agentic_rag.operations.lifecycle import Lifecycle
from agentic_rag.operations.maintenance import SCAN_SECONDS, Maintenance
from agentic_rag.operations.metrics import Counts, Exposition
from agentic_rag.operations.server_affinity import DomainHomes
from agentic_rag.operations.usage import UsageReports
from agentic_rag.reach.endpoints import Endpoints
from agentic_rag.reach.links import AnswerLinks
from agentic_rag.reach.schedules import Firings, Schedules
from agentic_rag.reach.sending import MailRelay, Sender
from agentic_rag.roles.birth import DomainCreation
from agentic_rag.roles.extraction import LOOK_SECONDS, Extraction
from agentic_rag.roles.memories import Memories
from agentic_rag.roles.memory_store import open_memory_cache
from agentic_rag.roles.roles import Roles
from agentic_rag.roles.skills import Skills
from agentic_rag.roles.trials import Trials
from agentic_rag.runtime.delegates import Delegations
from agentic_rag.runtime.paid_calls import PaidCalls
from agentic_rag.runtime.runtime import Runtime
from agentic_rag.runtime.services import Answers, TurnTimeouts
from agentic_rag.runtime.spending import LEFT_SECONDS, Spending
from agentic_rag.server.auth import DoorTokens, Gate, KeyUse
from agentic_rag.server.dialects import get_dialect
from agentic_rag.server.doors.mcp import McpDoor
from agentic_rag.server.hosts import hosts_of, is_loopback, url_of
from agentic_rag.server.http import make_app
from agentic_rag.server.limits import KeyLimits
from agentic_rag.server.services import RouteServices
from agentic_rag.server.web_files import WebFiles
from agentic_rag.sources.folder import AllowedFolders
from agentic_rag.sources.runs import SourceRuns
from agentic_rag.sources.sources import Sources
from agentic_rag.store.clock import new_id, today
from agentic_rag.store.database import Database
from agentic_rag.store.migrations import OWN, Revisions
from agentic_rag.store.payloads import PayloadFiles
from agentic_rag.store.quotas import Holdings, Quotas
from agentic_rag.tools.launch.addresses import parse_hosts
from agentic_rag.tools.launch.allowed import LaunchCatalogue
from agentic_rag.tools.launch.packages import Packages
from agentic_rag.tools.launch.policy import LaunchPolicy, LiftedRules
from agentic_rag.tools.launch.registry_clients import client_sandbox
from agentic_rag.tools.lists import ToolLists
from agentic_rag.tools.pool import McpPool
from agentic_rag.tools.system import PROMPTX, RETRIEVER
from mcp_servers.promptx.memory import MemoryCache
from mcp_servers.retriever.errors import IndexFault

if TYPE_CHECKING:
    from agentic_rag.access.oidc.logins import ProviderLogins  # imports joserfc: only servers with a provider need it
    from agentic_rag.tools.connector import Connector  # imports the MCP library

MAX_BESIDE_DOCUMENTS = 2**30
"""Maximum total bytes of a bundle's members other than documents."""

ANNOUNCE_SECONDS: Final = 5.0
"""Seconds between attempts to write the server's address for the command line, if the disk was full at the start."""

NIGHTLY_SECONDS: Final = 600.0
"""Between two looks for domains whose nightly evaluation is due."""

PRUNE_SECONDS: Final = 3_600.0
"""Between two removals of old notifications, firings and authorizations."""

EVALUATION_SECONDS: Final = 2.0
"""Before evaluation runs continue after a failure."""

LOADING_SECONDS: Final = 60.0
"""Time limit for loading what turns need. The clients of models and of MCP take seconds on an idle machine."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationParts:
    """The parts of a process from which its services are made."""

    settings: Settings
    folder: DataFolder
    database: Database
    cluster: SharedStore | None
    """The other servers of the database; None beside a SQLite file."""

    access: Access
    key_use: KeyUse
    audit: AuditLog
    vault: Vault
    redactor: Redactor

    directory: Directory
    file_history: FileHistory
    watched_workspaces: WatchedWorkspaces
    payloads: PayloadFiles
    threads: DomainThreads

    chosen_model: ChosenModel
    model_calls: ModelCalls
    spending: Spending
    counts: Counts | None
    """None if metrics are off."""
    observer: Observer

    knowledge: Knowledge
    attachments: Attachments
    roles: Roles
    memory_cache: MemoryCache

    policy: LaunchPolicy
    pool: McpPool
    tool_lists: ToolLists
    turn_tools: TurnTools
    sign_ins: SignInSource

    runtime: Runtime
    naming: Naming
    title_news: TitleNews

    @property
    def model(self) -> Model:
        return self.chosen_model.model


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """All parts of one process, created by `open_application`. ``app`` answers requests."""

    parts: ApplicationParts
    services: RouteServices
    doctor: Doctor
    maintenance: Maintenance
    workers: Workers
    app: Starlette
    web_files: WebFiles

    @property
    def settings(self) -> Settings:
        return self.parts.settings

    @property
    def database(self) -> Database:
        return self.parts.database

    @property
    def access(self) -> Access:
        return self.parts.access

    def announce(self, url: str) -> None:
        """Publish this process's address in its folder and among the servers of its database."""
        try:
            self.parts.folder.announce(url, self.access.local_key)
        except OSError as exc:
            refused = refused_write(exc)
            if refused is None:
                raise
            log.error("the command line does not find this server yet: %s", refused)
            self.services.health.note_refused(refused.reason)
            self.workers.start("telling the command line", partial(self._announce_later, url))
        if self.parts.cluster is not None:
            self.parts.cluster.members.locate(url)

    async def _announce_later(self, url: str) -> None:
        while True:
            await anyio.sleep(ANNOUNCE_SECONDS)
            with suppress(OSError):
                await anyio.to_thread.run_sync(self.parts.folder.announce, url, self.access.local_key)
                return

    def begin(self) -> None:
        """Start the background work of a serving process. Called when the server listens."""
        self.services.health.begin_loading()
        self.maintenance.begin(self.workers)
        load = partial(load_what_turns_need, self.parts.model, self.parts.pool, self.services.health)
        self.workers.start("loading what turns need", load)
        self.workers.start("packing the page", partial(anyio.to_thread.run_sync, self.web_files.pack))
        look = partial(garbage.look_where_quiet, self.parts.runtime)
        self.workers.repeat("looking for garbage", look, garbage.QUIET_SECONDS, at_once=False)

    async def drain(self, seconds: float) -> int:
        """Wait at most ``seconds`` for running turns. Returns how many are left for the next start to resume."""
        await self.parts.naming.stop()
        cluster, runtime = self.parts.cluster, self.parts.runtime
        return await (runtime.drain(seconds) if cluster is None else cluster.drain(runtime, seconds))


async def load_what_turns_need(model: Model, pool: McpPool, health: Health, seconds: float = LOADING_SECONDS) -> None:
    """Load the clients of model and tools before the server reports that it is ready.

    After ``seconds`` the server reports that it is ready. Turns then wait for the missing parts or report the problem.
    """
    try:
        with anyio.move_on_after(seconds) as loading:
            pool.load()
            # Otherwise the first call of a tool imports it, which blocks the event loop for a tenth of a second.
            await anyio.to_thread.run_sync(importlib.import_module, "jsonschema")
            if isinstance(model, WarmModel):
                await model.warm_up()
            await pool.wait_loaded()
        if loading.cancelled_caught:
            log.warning("what turns need is not loaded after %g s: turns wait for it", seconds)
    finally:
        garbage.set_aside()  # the loaded modules are never freed
        health.end_loading()


@asynccontextmanager
async def open_application(
    settings: Settings,
    *,
    model: Model | None = None,
    serving: bool = True,
    any_command: bool = False,
    unsandboxed: bool = False,
    scan_seconds: float = SCAN_SECONDS,
    first_document_seconds: float = FIRST_DOCUMENT_SECONDS,
    meanwhile: AbstractAsyncContextManager[None] | None = None,
    revisions: Revisions = OWN,
    local_key: str | None = None,
) -> AsyncIterator[Application]:
    """Open every part in order. On exit they are closed in reverse order.

    Args:
        settings: the operator's settings.
        model, revisions: replace those of the settings and of the program (tests).
        serving: False for a command that only uses the data folder and leaves others' turns and files alone.
        any_command: users' stdio servers may run any program. Applies only to a single user on loopback.
        unsandboxed: without bubblewrap, servers run without a sandbox. Applies only to a single user on loopback.
        scan_seconds: interval between scans of the document folders.
        first_document_seconds: how long a turn waits for a domain's first document.
        meanwhile: entered while waiting for the folder or the database. With None, there is no waiting.
        local_key: the command line's key, which all workers of one server share. None for a server of one process,
            which makes its own key.

    Raises:
        DataFolderOwned, BadConfiguration, StorageError: on entering; nothing is left open.
    """
    # A mistake in the configuration is reported before anything is locked or opened.
    dialect = _socket_dialect(settings)
    providers = read_providers(settings.providers)
    redactor = Redactor(secrets_of(settings, providers))
    async with AsyncExitStack() as stack:
        stack.enter_context(redacted_logs(redactor))
        folder, database = await open_store(stack, settings, meanwhile, revisions)
        parts = await _open_parts(
            stack,
            settings,
            folder,
            database,
            redactor,
            chosen_model=_choose_model(settings, providers, model),
            serving=serving,
            any_command=any_command,
            unsandboxed=unsandboxed,
            first_document_seconds=first_document_seconds,
            local_key=local_key,
        )
        backups = ScheduledBackups(settings)
        services = _make_services(parts, backups)
        doctor = Doctor(parts.database, parts.payloads, parts.knowledge.index)
        maintenance = _make_maintenance(parts, services, doctor, scan_seconds)
        web_files = WebFiles()
        app = await _open_app(stack, parts, services, dialect, web_files, whole=local_key is None)
        # Entered last, so closed first: no background work uses a part that is closed already.
        workers = await stack.enter_async_context(Workers(IndexFault))
        await maintenance.prepare()
        workers.start("installing what was approved", services.launch_requests.run)
        if serving:
            await services.gate.resume()
        workers.repeat("evaluating searches", services.gate.work_searches, EVALUATION_SECONDS)
        workers.repeat("evaluating answers", services.gate.work_answers, EVALUATION_SECONDS)
        if serving:
            await _begin_work(workers, parts, services)
            keep_spare = partial(anyio.to_thread.run_sync, folder.keep_spare)
            maintenance.keep_records(workers, parts.access, parts.audit, services.health, keep_spare)
            backups.begin(workers, maintenance.alone)
            workers.start("backups that were asked for", services.backups.run)
        yield Application(
            parts=parts,
            services=services,
            doctor=doctor,
            maintenance=maintenance,
            workers=workers,
            app=app,
            web_files=web_files,
        )


def _make_maintenance(
    parts: ApplicationParts, services: RouteServices, doctor: Doctor, scan_seconds: float
) -> Maintenance:
    return Maintenance(
        parts.settings,
        parts.folder.incoming,
        ExclusiveJobs(parts.database, parts.runtime.owner),
        parts.database,
        parts.directory,
        services.domains,
        services.documents,
        parts.knowledge,
        services.deletion,
        services.imports,
        services.file_history,
        doctor,
        scan_seconds,
    )


async def _begin_work(workers: Workers, parts: ApplicationParts, services: RouteServices) -> None:
    """Start a server's background work."""
    if parts.policy.installations is not None:  # of entries that are saved from now on, and of earlier approvals
        workers.start("installing packages", parts.policy.installations.run)
    await services.launch_requests.take_up()
    workers.start("ending what a single user allowed", partial(_end_single_use, parts))
    if parts.cluster is not None:
        # Before turns are resumed: a second server of this name is refused here, and a dead one's turns become free.
        await parts.cluster.members.join()
        if not parts.settings.qdrant_url and len(await parts.cluster.members.list_alive()) > 1:
            log.warning("the index needs Qdrant: %s", NEEDS_QDRANT)
    await parts.runtime.recover()
    if parts.cluster is not None:
        parts.cluster.connect(
            workers,
            parts.directory,
            parts.vault,
            parts.access,
            parts.spending,
            parts.pool,
            parts.tool_lists,
            parts.naming,
        )
        parts.cluster.take_up(workers, parts.runtime)
    workers.repeat("releasing reservations", parts.spending.release_left_behind, LEFT_SECONDS, at_once=False)
    workers.repeat("naming conversations", parts.naming.run, NAMING_SECONDS, at_once=False)
    workers.repeat("proposing memories", services.extraction.run, LOOK_SECONDS, at_once=False)
    _begin_notifications(workers, parts, services)
    # Each of these is one job of all servers of the database, so it runs under a lease.
    exclusive = ExclusiveJobs(parts.database, parts.runtime.owner)
    nightly = exclusive.job("nightly evaluation", services.gate.run_nightly)
    scoring = exclusive.job("scoring answers", services.scoring.look)
    lines = exclusive.job("context lines", parts.knowledge.lines.look)
    workers.repeat("writing context lines", lines, LINES_SECONDS, at_once=True)
    workers.repeat("scoring answers in batches", scoring, SCORING_SECONDS, at_once=True)
    workers.repeat("starting nightly evaluations", nightly, NIGHTLY_SECONDS, at_once=False)
    if parts.cluster is not None:  # without other servers, only a start finds trials of a dead process
        settling = exclusive.job("settling trials", services.gate.settle_abandoned)
        workers.repeat("settling trials", settling, SILENT_SECONDS, at_once=False)


def _begin_notifications(workers: Workers, parts: ApplicationParts, services: RouteServices) -> None:
    """Start sending notifications, and running schedules and sources.

    Raises:
        BadConfiguration: the SMTP relay's settings are malformed.
    """
    relay = MailRelay.of(parts.settings.smtp_url, parts.settings.mail_from)
    owner = parts.runtime.owner
    sender = Sender(parts.database, parts.vault, parts.policy, services.answer_links, relay, owner)
    workers.start("sending notifications", sender.run)
    firings = Firings(parts.database, parts.access, services.conversations, owner)
    workers.start("running schedules", firings.run)
    runs = SourceRuns(
        parts.database,
        parts.directory,
        services.documents,
        services.sources,
        parts.access,
        parts.vault,
        parts.pool,
        parts.tool_lists,
        parts.policy,
        AllowedFolders(parts.settings.source_folders, parts.settings.data),
        parts.threads,
        owner,
    )
    workers.start("running sources", runs.run)
    alone = ExclusiveJobs(parts.database, owner)
    for name, prune in (
        ("removing old notifications", sender.prune),
        ("removing old runs", firings.prune),
        ("removing expired authorizations", services.authorizations.prune),
    ):
        workers.repeat(name, alone.job(name, prune), PRUNE_SECONDS)


async def _open_app(
    stack: AsyncExitStack,
    parts: ApplicationParts,
    services: RouteServices,
    dialect: str,
    web_files: WebFiles,
    *,
    whole: bool,
) -> Starlette:
    # A client's next connection may reach another worker, which does not know this worker's sessions.
    door = await stack.enter_async_context(McpDoor(services, keeps_sessions=whole))
    provider = await _open_provider(stack, parts, services)
    return make_app(
        services,
        parts.access,
        parts.audit,
        _make_gate(parts, provider, services.authorizations),
        door,
        dialect,
        provider=provider,
        public_url=parts.settings.public_address,
        root_path=parts.settings.root_path,
        mcp_sign_in=parts.settings.mcp_sign_in,
        mcp_issuer=parts.settings.oidc_issuer,
        web_files=web_files,
    )


def _choose_model(settings: Settings, providers: Providers, instead: Model | None) -> ChosenModel:
    """Return the model of the operator's settings and files, or its replacement."""
    use_profiles(settings, providers)
    for retirement in retirements_of([settings.model], today()):
        log.warning("%s", retirement.text(today()))
    return choose_model(settings, providers) if instead is None else ChosenModel(instead, settings.model, instead.name)


async def _end_single_use(parts: ApplicationParts) -> None:
    """When the first key is created, stop everything that only a single user allowed.

    Servers that still may start restart.
    """
    await parts.access.first_key.wait()
    if parts.policy.single_user:
        parts.pool.restart_users()


async def _open_parts(
    stack: AsyncExitStack,
    settings: Settings,
    folder: DataFolder,
    database: Database,
    redactor: Redactor,
    *,
    chosen_model: ChosenModel,
    serving: bool,
    any_command: bool,
    unsandboxed: bool,
    first_document_seconds: float,
    local_key: str | None,
) -> ApplicationParts:
    """Open the parts in the order of their dependencies. See `open_application` for the arguments."""
    # A command that only uses the folder has to be able to create the first key.
    key_use = KeyUse(
        KeyLimits(
            settings.requests_per_second,
            settings.messages_per_minute,
            settings.connections_per_key,
            settings.subscriptions_per_key,
        )
    )
    beyond = serving and not is_loopback(settings.host)
    access = Access(database, required=beyond, use=key_use, provider=bool(settings.oidc_issuer), local_key=local_key)
    await access.open()
    audit = AuditLog(database, redactor, Acts(settings.data))
    stack.push_async_callback(audit.flush)
    vault = await Vault.open(database, settings.data, settings.secret_key, redactor)

    limits = Holdings(settings.quota_documents, settings.quota_document_bytes, settings.quota_conversations)
    directory = Directory(database, first_document_seconds=first_document_seconds, quotas=Quotas(limits))
    threads, watched_workspaces = DomainThreads(), WatchedWorkspaces(settings.roles)
    stack.callback(watched_workspaces.close)
    file_history = FileHistory(database, directory, vault, threads)
    payloads = PayloadFiles(settings.data / "payloads")
    memory_cache = await open_memory_cache(stack, database)

    spending = Spending(database, read_prices(settings.prices))
    await spending.release_left()  # before this process makes reservations
    await spending.refresh()
    counts = Counts() if settings.metrics == "on" else None
    observer = _open_observer(stack, settings, redactor, counts)
    model_calls = ModelCalls(chosen_model.model.name, chosen_model.names)
    stack.push_async_callback(chosen_model.model.aclose)
    language_model = _language_model(chosen_model.model, observer)
    paid_calls = None if language_model is None else PaidCalls(database, language_model, model_calls, spending)

    chain = _make_defaults(settings, chosen_model).chain
    page_model = PageModel(directory, paid_calls, chain)
    line_writer = LineWriter(paid_calls, chosen_model.model, spending, redactor, chain)
    reindex_gate = ReindexGate(database, directory)
    knowledge = await stack.enter_async_context(
        open_knowledge(settings, database, directory, threads, page_model, reindex_gate, line_writer)
    )
    reserve = DiskReserve(settings.data, settings.disk_reserve)
    attachments = Attachments(database, payloads, folder.incoming, reserve, threads, settings.max_upload_bytes)
    stack.push_async_callback(attachments.aclose)
    roles = Roles(database, settings.roles, threads, file_history, watched_workspaces, directory)

    policy = _make_launch_policy(settings, access, any_command, unsandboxed)
    delegations, answers = Delegations(), Answers()
    owner = new_id("run")  # this process's name in leases
    sign_ins = SignInSource(database, vault, policy, _own_address(settings), SignInWaits(database, answers))

    async def load_connector() -> "Connector":
        """Create our own servers. A thread imports the MCP library, which takes half a second."""
        for module in ("agentic_rag.app.own_servers", "agentic_rag.tools.connector", "agentic_rag.tools.toolset"):
            await anyio.to_thread.run_sync(importlib.import_module, module)
        from agentic_rag.app.own_servers import make_own_servers
        from agentic_rag.tools.connector import Connector

        # before the first server of ours starts
        await anyio.to_thread.run_sync(policy.sweep)
        return Connector(
            make_own_servers(
                knowledge.search,
                attachments,
                settings.roles,
                delegations,
                settings.quota_memories,
                threads,
                memory_cache,
            ),
            policy,
            redactor=vault.redact,
            observer=audit,
            threads=threads,
            accounts=await sign_ins.sign_ins(),
            homes=DomainHomes(database, owner) if database.shared else None,
        )

    pool = await stack.enter_async_context(McpPool(load_connector, policy, threads, builtin=(PROMPTX, RETRIEVER)))
    tool_lists = make_lists(database, vault.redact)
    turn_tools = TurnTools(pool, tool_lists, vault)

    title_news = TitleNews()
    naming = Naming(database, None if settings.titles == "message" else paid_calls, redactor, title_news)
    replica = await open_replica(stack, settings, database, owner)
    runtime = await stack.enter_async_context(
        Runtime(
            Services(
                observe(chosen_model.model, observer),
                model_calls,
                turn_tools,
                roles,
                knowledge,
                database,
                access,
                directory,
            ),
            TurnBookkeeping(naming, spending),
            database=database,
            payloads=payloads,
            redactor=redactor,
            delegations=delegations,
            patience=TurnTimeouts(
                settings.model_idle_seconds, settings.retry_budget_seconds, 3600 * settings.wait_hours
            ),
            answers=answers,
            replica=replica,
            transcript_bytes=settings.transcript_bytes,
            spending=spending,
            observer=observer,
            hidden_documents=HiddenFromReaders(knowledge.search.views),
        )
    )
    return ApplicationParts(
        settings=settings,
        folder=folder,
        database=database,
        cluster=join_store(stack, settings, database, replica, runtime),
        access=access,
        key_use=key_use,
        audit=audit,
        vault=vault,
        redactor=redactor,
        directory=directory,
        file_history=file_history,
        watched_workspaces=watched_workspaces,
        payloads=payloads,
        threads=threads,
        chosen_model=chosen_model,
        model_calls=model_calls,
        spending=spending,
        counts=counts,
        observer=observer,
        knowledge=knowledge,
        attachments=attachments,
        roles=roles,
        memory_cache=memory_cache,
        policy=policy,
        pool=pool,
        tool_lists=tool_lists,
        turn_tools=turn_tools,
        sign_ins=sign_ins,
        runtime=runtime,
        naming=naming,
        title_news=title_news,
    )


def _open_observer(stack: AsyncExitStack, settings: Settings, redactor: Redactor, counts: Counts | None) -> Observer:
    """Return the observer that the settings describe. On exit, it sends the spans that still wait.

    Raises:
        BadConfiguration: traces are configured, but the ``otel`` extra is not installed.
    """
    if not settings.otlp_endpoint:
        return Observer(time.monotonic, counts)
    try:
        from agentic_rag.operations.tracing import Tracing  # needs an extra
    except ImportError as exc:
        problem = f"traces need the extra otel: pip install 'agentic-rag[otel]' ({exc})"
        raise BadConfiguration("AGENTIC_RAG_OTLP_ENDPOINT", problem) from exc
    tracing = Tracing(settings.otlp_endpoint, redactor, content=settings.trace_content)
    stack.push_async_callback(tracing.aclose)
    return Observer(time.monotonic, counts, tracing)


def _make_launch_policy(settings: Settings, access: Access, any_command: bool, unsandboxed: bool) -> LaunchPolicy:
    """Return the policy that decides which servers may start or be connected to. Its data is below ``{data}/mcp``.

    Only the homes of child processes are below this process's own folder, where it finds those left by an earlier
    process.
    """
    folder = settings.data / "mcp"
    lifted = LiftedRules(any_command, unsandboxed, is_loopback(settings.host), access)
    return LaunchPolicy(
        settings.own / "mcp" / "homes",
        catalogue=LaunchCatalogue(folder),
        packages=Packages(folder, client_environment(), sandbox=partial(client_sandbox, unsandboxed=lifted.requested)),
        hosts=parse_hosts(settings.mcp_hosts),
        lifted=lifted,
        data=settings.data,
        programs=folder / "local",
        disk_reserve=settings.disk_reserve,
        shared=folder if settings.database_url else None,
    )


def _own_address(settings: Settings) -> ServerAddress:
    local = url_of(settings.host, settings.port) if is_loopback(settings.host) else None
    return ServerAddress(settings.public_address, local, settings.own)


def _make_services(parts: ApplicationParts, backups: ScheduledBackups) -> RouteServices:
    settings, database, access, directory = parts.settings, parts.database, parts.access, parts.directory
    vault, threads, file_history, policy = parts.vault, parts.threads, parts.file_history, parts.policy
    knowledge, roles, runtime, pool = parts.knowledge, parts.roles, parts.runtime, parts.pool
    defaults = _make_defaults(settings, parts.chosen_model)
    default_model = "" if defaults.only_model else defaults.model
    lifecycle = Lifecycle(roles, pool, settings.model_cache.expanduser(), default_model)
    domains = Domains(
        database,
        directory,
        settings.workspaces,
        vault,
        policy,
        lifecycle,
        threads,
        default_model,
        parts.chosen_model.refusal,
    )
    views = knowledge.search.views
    definitions = Definitions(
        directory, access, knowledge.ingestion, defaults, threads, parts.watched_workspaces, views
    )
    births = DomainCreation(directory, domains, roles)
    prompts = PromptFiles(database, directory, threads, file_history)
    reserve = DiskReserve(settings.data, settings.disk_reserve)
    documents = Documents(knowledge, parts.folder.incoming, reserve)
    conversations = Conversations(
        database, directory, definitions, runtime, births, Trials(roles), settings.default_domain, views
    )
    memories = Memories(definitions, views, settings.quota_memories, threads, parts.memory_cache)
    deletion = Deletion(
        database, directory, conversations, documents, runtime, vault, lifecycle, settings.workspaces, threads
    )
    health = _make_health(parts, reserve, backups, default_model)
    cases = Cases(database, directory, vault)
    runs = Runs(
        database,
        directory,
        definitions,
        knowledge.embedding,
        RetrievalTier(knowledge.search, knowledge.index),
        AnswerTier(database, conversations, deletion, knowledge.index),
        parts.observer,
        runtime.owner,
    )
    quotes_only = isinstance(parts.model, ExtractiveModel)
    budgets = Budgets(database, parts.spending)
    gate = ChangeGate(database, directory, domains, prompts, roles, documents, runs, quotes_only=quotes_only)
    waits, mails = Waits(database, conversations, runtime, domains, gate), settings.smtp_url is not None
    return RouteServices(
        people=People(database, access),
        logins=Logins(database, access, LoginTimes(settings.sign_in_minutes * 60, settings.sign_in_hours * 3600)),
        directory=directory,
        domains=domains,
        definitions=definitions,
        prompts=prompts,
        roles=roles,
        skills=Skills(database, settings.roles, threads),
        births=births,
        memories=memories,
        extraction=_make_extraction(parts, definitions),
        documents=documents,
        attachments=parts.attachments,
        views=views,
        stale_reports=StaleReports(database, directory),
        exports=Exports(database, directory, memories, vault, threads),
        imports=_make_imports(parts, domains, documents, roles, reserve),
        conversations=conversations,
        conversation_search=ConversationSearch(database),
        sharing=Sharing(database, directory, conversations, runtime, settings.share_links),
        client_names=ClientNames(database, conversations),
        title_news=parts.title_news,
        deletion=deletion,
        erasure=Erasure(database, directory, access, deletion, memories),
        runtime=runtime,
        vault=vault,
        turn_tools=parts.turn_tools,
        servers=Servers(directory, domains, vault, pool, parts.tool_lists, policy, threads, runtime.refused_tools),
        paste_checks=PasteChecks(directory, domains, vault, pool, parts.tool_lists, policy, threads),
        launch_requests=make_launch_requests(directory, database, vault, policy, threads),
        history=History(database, directory, domains, prompts, roles, file_history, cases),
        file_history=file_history,
        health=health,
        usage=UsageReports(database, parts.spending.prices),
        budgets=budgets,
        exposition=Exposition(parts.counts, health, budgets, runtime, parts.key_use),
        observer=parts.observer,
        embedding=knowledge.embedding,
        waits=waits,
        audit=parts.audit,
        authorizations=Authorizations(database, access),
        oauth_clients=OAuthClients(database, policy.reach, registration=settings.mcp_registration),
        endpoints=Endpoints(database, vault, access, policy, mails=mails),
        schedules=Schedules(database, directory, vault, access),
        sources=Sources(
            database,
            directory,
            access,
            policy,
            AllowedFolders(settings.source_folders, settings.data),
        ),
        answer_links=AnswerLinks(database, vault, access, waits, directory, _own_address(settings)),
        feedback=Feedback(database, conversations),
        cases=cases,
        runs=runs,
        suggestions=Suggestions(
            database, directory, conversations, deletion, knowledge.index, cases, quotes_only=quotes_only
        ),
        gate=gate,
        apps=ServerApps(
            database,
            directory,
            conversations,
            vault,
            pool,
            parts.tool_lists,
            definitions,
            access,
            waits,
            parts.spending,
        ),
        scoring=ScoreBatches(
            database,
            parts.chosen_model.model,
            parts.spending,
            parts.redactor,
            AnswerJudge(conversations, deletion),
            default_model,
        ),
        sign_ins=parts.sign_ins,
        catalogue=policy.catalogue,
        backups=BackupJobs(settings),
    )


def _make_health(
    parts: ApplicationParts, reserve: DiskReserve, backups: ScheduledBackups, default_model: str
) -> Health:
    return Health(
        parts.model_calls,
        parts.knowledge,
        parts.pool,
        parts.policy,
        parts.database,
        reserve,
        parts.runtime,
        parts.vault.redact,
        backups,
        None if parts.cluster is None else parts.cluster.members,
        default_model,
    )


def _make_imports(
    parts: ApplicationParts, domains: Domains, documents: Documents, roles: Roles, reserve: DiskReserve
) -> Imports:
    """Return the service for importing bundles. Their documents count against a domain's quotas."""
    settings, quotas = parts.settings, parts.directory.quotas
    total = quotas.limits.document_bytes + MAX_BESIDE_DOCUMENTS
    reception = Reception(parts.folder.imports, reserve, settings.max_upload_bytes, total)
    database, directory, history, threads = parts.database, parts.directory, parts.file_history, parts.threads
    owners = Owners(parts.access, settings.quota_memories, parts.memory_cache)
    pending = PendingImports(
        database, directory, domains, documents, history, threads, owners, reception.folder, settings.workspaces
    )
    return Imports(database, directory, domains, roles, parts.vault, history, threads, reception, owners, pending)


def _make_extraction(parts: ApplicationParts, definitions: Definitions) -> Extraction:
    return Extraction(
        parts.database,
        parts.directory,
        definitions,
        _language_model(parts.model, parts.observer),
        parts.model_calls,
        parts.redactor,
        parts.threads,
        parts.settings.quota_memories,
        parts.spending,
        parts.memory_cache,
    )


def _language_model(model: Model, observer: Observer) -> Model | None:
    """Return the model if it can answer free prompts, or None for the model that only quotes documents."""
    return None if isinstance(model, ExtractiveModel) else observe(model, observer)


def _make_defaults(settings: Settings, choice: ChosenModel) -> Defaults:
    quotes_only = isinstance(choice.model, ExtractiveModel)
    name = choice.model.name if quotes_only else choice.name
    thinking: ThinkingMode = "off" if settings.thinking == "off" else "auto"
    return Defaults(name, choice.names, only_model=quotes_only, thinking=thinking, fallbacks=choice.fallbacks)


async def _open_provider(
    stack: AsyncExitStack, parts: ApplicationParts, services: RouteServices
) -> "ProviderLogins | None":
    """Return the sign-in at the operator's OpenID provider, or None without a provider.

    Raises:
        BadConfiguration: a required setting is missing, or the mapping file cannot be used.
    """
    settings = parts.settings
    if not settings.oidc_issuer:
        return None
    from agentic_rag.access.oidc.logins import ProviderLogins
    from agentic_rag.access.oidc.mapping import GroupGrants
    from agentic_rag.access.oidc.tokens import OidcProvider, ProviderClient

    if not settings.oidc_client_id:
        raise BadConfiguration("AGENTIC_RAG_OIDC_CLIENT_ID", "with an issuer, the id of this server there is needed")
    if settings.oidc_grants is None:
        raise BadConfiguration("AGENTIC_RAG_OIDC_GRANTS", "an issuer needs a file with the rights of its groups")
    secret = settings.oidc_client_secret
    grants = GroupGrants(settings.oidc_grants)
    grants.rights_of(())
    client = ProviderClient(
        settings.oidc_issuer,
        settings.oidc_client_id,
        "" if secret is None else secret.get_secret_value(),
        settings.oidc_scopes,
        settings.oidc_audience,
        frozenset(name.strip() for name in settings.oidc_clients.split(",") if name.strip()),
        settings.oidc_groups_claim,
        settings.oidc_name_claim,
    )
    provider = OidcProvider(client)
    stack.push_async_callback(provider.aclose)
    return ProviderLogins(parts.database, parts.access, services.people, services.logins, provider, grants)


def _make_gate(parts: ApplicationParts, tokens: "ProviderLogins | None", authorizations: Authorizations) -> Gate:
    """Return the gate.

    Raises:
        BadConfiguration: the OpenID provider is to issue tokens for the MCP door, and there is none.
    """
    settings = parts.settings
    door: DoorTokens | None = authorizations if settings.mcp_sign_in == "own" else None
    if settings.mcp_sign_in == "provider":
        from agentic_rag.access.oidc.logins import ProviderDoor

        if tokens is None:
            raise BadConfiguration("AGENTIC_RAG_MCP_SIGN_IN", "'provider' needs AGENTIC_RAG_OIDC_ISSUER")
        door = ProviderDoor(tokens)
    return Gate(
        parts.access,
        parts.audit,
        use=parts.key_use,
        hosts=hosts_of(settings),
        servers=parts.policy,
        tokens=tokens,
        door=door,
        public_url=settings.public_address,
        open_command=open_command(settings.data),
    )


def _socket_dialect(settings: Settings) -> str:
    """Return the default dialect of WebSockets.

    Raises:
        BadConfiguration: the configured dialect does not exist.
    """
    try:
        return get_dialect(settings.ws_dialect).name
    except InvalidInput as exc:
        raise BadConfiguration("AGENTIC_RAG_WS_DIALECT", exc.problem) from exc
