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
from agentic_rag.backup.jobs import BackupJobs
from agentic_rag.backup.schedule import ScheduledBackups
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
from agentic_rag.evaluation.retrieval import RetrievalTier
from agentic_rag.evaluation.runs import SILENT_SECONDS, Runs
from agentic_rag.evaluation.score_batches import LOOK_SECONDS as SCORING_SECONDS
from agentic_rag.evaluation.score_batches import ScoreBatches
from agentic_rag.evaluation.suggestions import Suggestions
from agentic_rag.evaluation.swap import ReindexGate
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
from agentic_rag.roles.memory_moves import open_shelf
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


@dataclass(frozen=True, slots=True)
class Ground:
    """The parts that all others need: the data folder, the database, and access control."""

    settings: Settings
    folder: DataFolder
    database: Database
    redactor: Redactor
    access: Access
    key_use: KeyUse
    audit: AuditLog
    directory: Directory
    vault: Vault
    file_history: FileHistory
    payloads: PayloadFiles
    threads: DomainThreads
    watched: WatchedWorkspaces
    memories: MemoryCache
    spending: Spending
    counts: Counts | None
    """None if metrics are off."""
    observer: Observer


@dataclass(frozen=True, slots=True)
class Machinery:
    """The parts that run turns: the model, the document index, the MCP servers and the roles."""

    choice: ChosenModel
    calls: ModelCalls
    knowledge: Knowledge
    attachments: Attachments
    policy: LaunchPolicy
    pool: McpPool
    tool_lists: ToolLists
    tools: TurnTools
    sign_ins: SignInSource
    roles: Roles
    title_news: TitleNews
    naming: Naming
    runtime: Runtime
    cluster: SharedStore | None
    """The other servers of the database; None beside a SQLite file."""

    @property
    def model(self) -> Model:
        return self.choice.model


@dataclass(frozen=True, slots=True)
class Application:
    """All parts of one process, created by `open_application`. ``app`` answers requests."""

    ground: Ground
    machinery: Machinery
    business: RouteServices
    doctor: Doctor
    maintenance: Maintenance
    workers: Workers
    app: Starlette
    web_files: WebFiles

    @property
    def settings(self) -> Settings:
        return self.ground.settings

    @property
    def database(self) -> Database:
        return self.ground.database

    @property
    def access(self) -> Access:
        return self.ground.access

    def announce(self, url: str) -> None:
        """Publish this process's address in its folder and among the servers of its database."""
        try:
            self.ground.folder.announce(url, self.access.local_key)
        except OSError as exc:
            refused = refused_write(exc)
            if refused is None:
                raise
            log.error("the command line does not find this server yet: %s", refused)
            self.business.health.note_refused(refused.reason)
            self.workers.start("telling the command line", partial(self._announce_later, url))
        if self.machinery.cluster is not None:
            self.machinery.cluster.members.locate(url)

    async def _announce_later(self, url: str) -> None:
        while True:
            await anyio.sleep(ANNOUNCE_SECONDS)
            with suppress(OSError):
                await anyio.to_thread.run_sync(self.ground.folder.announce, url, self.access.local_key)
                return

    def begin(self) -> None:
        """Start the background work of a serving process. Called when the server listens."""
        self.business.health.begin_loading()
        self.maintenance.begin(self.workers)
        load = partial(load_what_turns_need, self.machinery.model, self.machinery.pool, self.business.health)
        self.workers.start("loading what turns need", load)
        self.workers.start("packing the page", partial(anyio.to_thread.run_sync, self.web_files.pack))
        look = partial(garbage.look_where_quiet, self.machinery.runtime)
        self.workers.repeat("looking for garbage", look, garbage.QUIET_SECONDS, at_once=False)

    async def drain(self, seconds: float) -> int:
        """Wait at most ``seconds`` for running turns. Returns how many are left for the next start to resume."""
        await self.machinery.naming.stop()
        cluster, runtime = self.machinery.cluster, self.machinery.runtime
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
        folder, database = await open_store(stack, settings, meanwhile, revisions)
        ground = await _open_ground(
            stack, settings, folder, database, redactor, serving, first_document_seconds, local_key
        )
        policy = _launch_policy(settings, ground.access, any_command, unsandboxed)
        machinery = await _open_machinery(stack, ground, policy, _choose_model(settings, providers, model))
        backups = ScheduledBackups(settings)
        business = _make_business(ground, machinery, backups)
        doctor = Doctor(ground.database, ground.payloads, machinery.knowledge.index)
        maintenance = _make_maintenance(ground, machinery, business, doctor, scan_seconds)
        web_files = WebFiles()
        app = await _open_app(stack, ground, policy, business, dialect, web_files, whole=local_key is None)
        # Entered last, so closed first: no background work uses a part that is closed already.
        workers = await stack.enter_async_context(Workers(IndexFault))
        await maintenance.prepare()
        workers.start("installing what was approved", business.launch_requests.run)
        if serving:
            await business.gate.resume()
        workers.repeat("evaluating searches", business.gate.work_searches, EVALUATION_SECONDS)
        workers.repeat("evaluating answers", business.gate.work_answers, EVALUATION_SECONDS)
        if serving:
            await _begin_work(workers, ground, policy, machinery, business)
            keep_spare = partial(anyio.to_thread.run_sync, ground.folder.keep_spare)
            maintenance.keep_records(workers, ground.access, ground.audit, business.health, keep_spare)
            backups.begin(workers, maintenance.alone)
            workers.start("backups that were asked for", business.backups.run)
        yield Application(ground, machinery, business, doctor, maintenance, workers, app, web_files)


def _make_maintenance(
    ground: Ground, machinery: Machinery, business: RouteServices, doctor: Doctor, scan_seconds: float
) -> Maintenance:
    return Maintenance(
        ground.settings,
        ground.folder.incoming,
        ExclusiveJobs(ground.database, machinery.runtime.owner),
        ground.database,
        ground.directory,
        business.domains,
        business.documents,
        machinery.knowledge,
        business.deletion,
        business.imports,
        business.file_history,
        doctor,
        scan_seconds,
    )


async def _begin_work(
    workers: Workers, ground: Ground, policy: LaunchPolicy, machinery: Machinery, business: RouteServices
) -> None:
    """Start a server's background work."""
    await _install_in_background(workers, policy, business)
    workers.start("ending what a single user allowed", partial(_end_single_use, ground.access, machinery))
    if machinery.cluster is not None:
        # Before turns are resumed: a second server of this name is refused here, and a dead one's turns become free.
        await machinery.cluster.members.join()
        if not ground.settings.qdrant_url and len(await machinery.cluster.members.list_alive()) > 1:
            log.warning("the index needs Qdrant: %s", NEEDS_QDRANT)
    await machinery.runtime.recover()
    if machinery.cluster is not None:
        machinery.cluster.connect(
            workers,
            ground.directory,
            ground.vault,
            ground.access,
            ground.spending,
            machinery.pool,
            machinery.tool_lists,
            machinery.naming,
        )
        machinery.cluster.take_up(workers, machinery.runtime)
    workers.repeat("releasing reservations", ground.spending.release_left_behind, LEFT_SECONDS, at_once=False)
    workers.repeat("naming conversations", machinery.naming.run, NAMING_SECONDS, at_once=False)
    workers.repeat("proposing memories", business.extraction.run, LOOK_SECONDS, at_once=False)
    _begin_notifications(workers, ground, policy, machinery, business)
    # Each of these is one job of all servers of the database, so it runs under a lease.
    exclusive = ExclusiveJobs(ground.database, machinery.runtime.owner)
    nightly = exclusive.job("nightly evaluation", business.gate.run_nightly)
    scoring = exclusive.job("scoring answers", business.scoring.look)
    lines = exclusive.job("context lines", machinery.knowledge.lines.look)
    workers.repeat("writing context lines", lines, LINES_SECONDS, at_once=True)
    workers.repeat("scoring answers in batches", scoring, SCORING_SECONDS, at_once=True)
    workers.repeat("starting nightly evaluations", nightly, NIGHTLY_SECONDS, at_once=False)
    if machinery.cluster is not None:  # without other servers, only a start finds trials of a dead process
        settling = exclusive.job("settling trials", business.gate.settle_abandoned)
        workers.repeat("settling trials", settling, SILENT_SECONDS, at_once=False)


def _begin_notifications(
    workers: Workers, ground: Ground, policy: LaunchPolicy, machinery: Machinery, business: RouteServices
) -> None:
    """Start sending notifications, and running schedules and sources.

    Raises:
        BadConfiguration: the SMTP relay's settings are malformed.
    """
    relay = MailRelay.of(ground.settings.smtp_url, ground.settings.mail_from)
    owner = machinery.runtime.owner
    sender = Sender(ground.database, ground.vault, policy, business.answer_links, relay, owner)
    workers.start("sending notifications", sender.run)
    firings = Firings(ground.database, ground.access, business.conversations, owner)
    workers.start("running schedules", firings.run)
    runs = SourceRuns(
        ground.database,
        ground.directory,
        business.documents,
        business.sources,
        ground.access,
        ground.vault,
        machinery.pool,
        machinery.tool_lists,
        policy,
        AllowedFolders(ground.settings.source_folders, ground.settings.data),
        ground.threads,
        owner,
    )
    workers.start("running sources", runs.run)
    alone = ExclusiveJobs(ground.database, owner)
    for name, prune in (
        ("removing old notifications", sender.prune),
        ("removing old runs", firings.prune),
        ("removing expired authorizations", business.authorizations.prune),
    ):
        workers.repeat(name, alone.job(name, prune), PRUNE_SECONDS)


async def _open_app(
    stack: AsyncExitStack,
    ground: Ground,
    policy: LaunchPolicy,
    business: RouteServices,
    dialect: str,
    web_files: WebFiles,
    *,
    whole: bool,
) -> Starlette:
    # A client's next connection may reach another worker, which does not know this worker's sessions.
    door = await stack.enter_async_context(McpDoor(business, keeps_sessions=whole))
    provider = await _open_provider(stack, ground, business)
    return make_app(
        business,
        ground.access,
        ground.audit,
        _gate(ground, policy, provider, business.authorizations),
        door,
        dialect,
        provider=provider,
        public_url=ground.settings.public_address,
        root_path=ground.settings.root_path,
        mcp_sign_in=ground.settings.mcp_sign_in,
        mcp_issuer=ground.settings.oidc_issuer,
        web_files=web_files,
    )


def _choose_model(settings: Settings, providers: Providers, instead: Model | None) -> ChosenModel:
    """Return the model of the operator's settings and files, or its replacement."""
    use_profiles(settings, providers)
    for retirement in retirements_of([settings.model], today()):
        log.warning("%s", retirement.text(today()))
    return choose_model(settings, providers) if instead is None else ChosenModel(instead, settings.model, instead.name)


async def _install_in_background(workers: Workers, policy: LaunchPolicy, business: RouteServices) -> None:
    """Install packages in the background: for entries saved from now on, and for earlier approvals."""
    if policy.installations is not None:
        workers.start("installing packages", policy.installations.run)
    await business.launch_requests.take_up()


async def _end_single_use(access: Access, machinery: Machinery) -> None:
    """When the first key is created, stop everything that only a single user allowed.

    Servers that still may start restart.
    """
    await access.first_key.wait()
    if machinery.policy.single_user:
        machinery.pool.restart_users()


async def _open_ground(
    stack: AsyncExitStack,
    settings: Settings,
    folder: DataFolder,
    database: Database,
    redactor: Redactor,
    serving: bool,
    first_document_seconds: float,
    local_key: str | None,
) -> Ground:
    stack.enter_context(redacted_logs(redactor))
    # A command that only uses the folder has to be able to create the first key.
    key_use = KeyUse(_limits(settings))
    beyond = serving and not is_loopback(settings.host)
    access = Access(database, required=beyond, use=key_use, provider=bool(settings.oidc_issuer), local_key=local_key)
    await access.open()
    audit = AuditLog(database, redactor, Acts(settings.data))
    stack.push_async_callback(audit.flush)
    vault = await Vault.open(database, settings.data, settings.secret_key, redactor)
    directory = Directory(database, first_document_seconds=first_document_seconds, quotas=_quotas(settings))
    threads, watched = DomainThreads(), WatchedWorkspaces(settings.roles)
    stack.callback(watched.close)
    spending = Spending(database, read_prices(settings.prices))
    await spending.release_left()  # before this process makes reservations
    await spending.refresh()
    counts = Counts() if settings.metrics == "on" else None
    return Ground(
        settings=settings,
        folder=folder,
        database=database,
        redactor=redactor,
        access=access,
        key_use=key_use,
        audit=audit,
        directory=directory,
        vault=vault,
        file_history=FileHistory(database, directory, vault, threads),
        payloads=PayloadFiles(settings.data / "payloads"),
        threads=threads,
        watched=watched,
        memories=await open_shelf(stack, database),
        spending=spending,
        counts=counts,
        observer=_open_observer(stack, settings, redactor, counts),
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


async def _open_machinery(
    stack: AsyncExitStack, ground: Ground, policy: LaunchPolicy, choice: ChosenModel
) -> Machinery:
    settings, database, observer = ground.settings, ground.database, ground.observer
    calls = ModelCalls(choice.model.name, choice.names)
    stack.push_async_callback(choice.model.aclose)
    reindex_gate = ReindexGate(database, ground.directory)
    model, chain = _language_model(choice.model, observer), _defaults(settings, choice).chain
    paid = None if model is None else PaidCalls(database, model, calls, ground.spending)
    page_model = PageModel(ground.directory, paid, chain)
    writer = LineWriter(paid, choice.model, ground.spending, ground.redactor, chain)
    knowledge = await stack.enter_async_context(
        open_knowledge(settings, database, ground.directory, ground.threads, page_model, reindex_gate, writer)
    )
    reserve = DiskReserve(settings.data, settings.disk_reserve)
    attachments = Attachments(
        database, ground.payloads, ground.folder.incoming, reserve, ground.threads, settings.max_upload_bytes
    )
    stack.push_async_callback(attachments.aclose)
    roles = Roles(database, settings.roles, ground.threads, ground.file_history, ground.watched, ground.directory)
    delegations, answers = Delegations(), Answers()
    owner = new_id("run")  # this process's name in leases
    sign_ins = SignInSource(database, ground.vault, policy, _own_address(settings), SignInWaits(database, answers))

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
                ground.threads,
                ground.memories,
            ),
            policy,
            redactor=ground.vault.redact,
            observer=ground.audit,
            threads=ground.threads,
            accounts=await sign_ins.sign_ins(),
            homes=DomainHomes(database, owner) if database.shared else None,
        )

    pool = await stack.enter_async_context(
        McpPool(load_connector, policy, ground.threads, builtin=(PROMPTX, RETRIEVER))
    )
    lists = make_lists(database, ground.vault.redact)
    tools = TurnTools(pool, lists, ground.vault)
    news = TitleNews()
    naming = Naming(database, None if settings.titles == "message" else paid, ground.redactor, news)
    replica = await open_replica(stack, settings, database, owner)
    runtime = await stack.enter_async_context(
        Runtime(
            Services(
                observe(choice.model, observer),
                calls,
                tools,
                roles,
                knowledge,
                database,
                ground.access,
                ground.directory,
            ),
            TurnBookkeeping(naming, ground.spending),
            database=database,
            payloads=ground.payloads,
            redactor=ground.redactor,
            delegations=delegations,
            patience=TurnTimeouts(
                settings.model_idle_seconds, settings.retry_budget_seconds, 3600 * settings.wait_hours
            ),
            answers=answers,
            replica=replica,
            transcript_bytes=settings.transcript_bytes,
            spending=ground.spending,
            observer=observer,
            hidden_documents=HiddenFromReaders(knowledge.search.views),
        )
    )
    return Machinery(
        choice=choice,
        calls=calls,
        knowledge=knowledge,
        attachments=attachments,
        policy=policy,
        pool=pool,
        tool_lists=lists,
        tools=tools,
        sign_ins=sign_ins,
        roles=roles,
        title_news=news,
        naming=naming,
        runtime=runtime,
        cluster=join_store(stack, settings, database, replica, runtime),
    )


def _launch_policy(settings: Settings, access: Access, any_command: bool, unsandboxed: bool) -> LaunchPolicy:
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


def _make_business(ground: Ground, machinery: Machinery, backups: ScheduledBackups) -> RouteServices:
    settings, database, threads = ground.settings, ground.database, ground.threads
    directory, vault = ground.directory, ground.vault
    knowledge, roles, runtime, pool = machinery.knowledge, machinery.roles, machinery.runtime, machinery.pool
    defaults = _defaults(settings, machinery.choice)
    default_model = "" if defaults.only_model else defaults.model
    lifecycle = Lifecycle(roles, pool, settings.model_cache.expanduser(), default_model)
    domains = _make_domains(ground, machinery, lifecycle, defaults)
    views = knowledge.search.views
    definitions = Definitions(directory, ground.access, knowledge.ingestion, defaults, threads, ground.watched, views)
    births = DomainCreation(directory, domains, roles)
    prompts = PromptFiles(database, directory, threads, ground.file_history)
    reserve = DiskReserve(settings.data, settings.disk_reserve)
    documents = Documents(knowledge, ground.folder.incoming, reserve)
    conversations = Conversations(
        database, directory, definitions, runtime, births, Trials(roles), settings.default_domain, views
    )
    memories = Memories(definitions, views, settings.quota_memories, threads, ground.memories)
    deletion = Deletion(
        database, directory, conversations, documents, runtime, vault, lifecycle, settings.workspaces, threads
    )
    health = _make_health(ground, machinery, reserve, backups, default_model)
    cases = Cases(database, directory, vault)
    runs = _make_runs(ground, machinery, definitions, conversations, deletion)
    quotes_only = isinstance(machinery.model, ExtractiveModel)
    budgets = Budgets(database, ground.spending)
    gate = ChangeGate(database, directory, domains, prompts, roles, documents, runs, quotes_only=quotes_only)
    waits, mails = Waits(database, conversations, runtime, domains, gate), settings.smtp_url is not None
    return RouteServices(
        people=People(database, ground.access),
        logins=_make_logins(ground),
        directory=directory,
        domains=domains,
        definitions=definitions,
        prompts=prompts,
        roles=roles,
        skills=Skills(database, settings.roles, threads),
        births=births,
        memories=memories,
        extraction=_extraction(ground, machinery, definitions),
        documents=documents,
        attachments=machinery.attachments,
        views=views,
        stale_reports=StaleReports(database, directory),
        exports=Exports(database, directory, memories, ground.vault, threads),
        imports=_imports(ground, domains, documents, roles, reserve),
        conversations=conversations,
        conversation_search=ConversationSearch(database),
        sharing=Sharing(database, directory, conversations, runtime, settings.share_links),
        client_names=ClientNames(database, conversations),
        title_news=machinery.title_news,
        deletion=deletion,
        erasure=Erasure(database, directory, ground.access, deletion, memories),
        runtime=runtime,
        vault=vault,
        turn_tools=machinery.tools,
        servers=Servers(
            directory, domains, vault, pool, machinery.tool_lists, machinery.policy, threads, runtime.refused_tools
        ),
        paste_checks=PasteChecks(directory, domains, vault, pool, machinery.tool_lists, machinery.policy, threads),
        launch_requests=make_launch_requests(directory, database, vault, machinery.policy, threads),
        history=History(database, directory, domains, prompts, roles, ground.file_history, cases),
        file_history=ground.file_history,
        health=health,
        usage=UsageReports(database, ground.spending.prices),
        budgets=budgets,
        exposition=Exposition(ground.counts, health, budgets, runtime, ground.key_use),
        observer=ground.observer,
        embedding=knowledge.embedding,
        waits=waits,
        audit=ground.audit,
        authorizations=Authorizations(database, ground.access),
        oauth_clients=OAuthClients(database, machinery.policy.reach, registration=settings.mcp_registration),
        endpoints=Endpoints(database, vault, ground.access, machinery.policy, mails=mails),
        schedules=Schedules(database, directory, vault, ground.access),
        sources=Sources(
            database,
            directory,
            ground.access,
            machinery.policy,
            AllowedFolders(settings.source_folders, settings.data),
        ),
        answer_links=AnswerLinks(database, vault, ground.access, waits, directory, _own_address(settings)),
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
            machinery.tool_lists,
            definitions,
            ground.access,
            waits,
            ground.spending,
        ),
        scoring=ScoreBatches(
            database,
            machinery.choice.model,
            ground.spending,
            ground.redactor,
            AnswerJudge(conversations, deletion),
            default_model,
        ),
        sign_ins=machinery.sign_ins,
        catalogue=machinery.policy.catalogue,
        backups=BackupJobs(settings),
    )


def _make_runs(
    ground: Ground,
    machinery: Machinery,
    definitions: Definitions,
    conversations: Conversations,
    deletion: Deletion,
) -> Runs:
    knowledge, index = machinery.knowledge, machinery.knowledge.index
    return Runs(
        ground.database,
        ground.directory,
        definitions,
        knowledge.embedding,
        RetrievalTier(knowledge.search, index),
        AnswerTier(ground.database, conversations, deletion, index),
        ground.observer,
        machinery.runtime.owner,
    )


def _make_domains(ground: Ground, machinery: Machinery, lifecycle: Lifecycle, defaults: Defaults) -> Domains:
    return Domains(
        ground.database,
        ground.directory,
        ground.settings.workspaces,
        ground.vault,
        machinery.policy,
        lifecycle,
        ground.threads,
        "" if defaults.only_model else defaults.model,
        machinery.choice.refusal,
    )


def _make_health(
    ground: Ground, machinery: Machinery, reserve: DiskReserve, backups: ScheduledBackups, default_model: str
) -> Health:
    return Health(
        machinery.calls,
        machinery.knowledge,
        machinery.pool,
        machinery.policy,
        ground.database,
        reserve,
        machinery.runtime,
        ground.vault.redact,
        backups,
        None if machinery.cluster is None else machinery.cluster.members,
        default_model,
    )


def _make_logins(ground: Ground) -> Logins:
    minutes, hours = ground.settings.sign_in_minutes, ground.settings.sign_in_hours
    return Logins(ground.database, ground.access, LoginTimes(minutes * 60, hours * 3600))


def _imports(ground: Ground, domains: Domains, documents: Documents, roles: Roles, reserve: DiskReserve) -> Imports:
    """Return the service for importing bundles. Their documents count against a domain's quotas."""
    settings, quotas = ground.settings, ground.directory.quotas
    total = quotas.limits.document_bytes + MAX_BESIDE_DOCUMENTS
    reception = Reception(ground.folder.imports, reserve, settings.max_upload_bytes, total)
    database, directory, history, threads = ground.database, ground.directory, ground.file_history, ground.threads
    owners = Owners(ground.access, settings.quota_memories, ground.memories)
    pending = PendingImports(
        database, directory, domains, documents, history, threads, owners, reception.folder, settings.workspaces
    )
    return Imports(database, directory, domains, roles, ground.vault, history, threads, reception, owners, pending)


def _extraction(ground: Ground, machinery: Machinery, definitions: Definitions) -> Extraction:
    return Extraction(
        ground.database,
        ground.directory,
        definitions,
        _language_model(machinery.model, ground.observer),
        machinery.calls,
        ground.redactor,
        ground.threads,
        ground.settings.quota_memories,
        ground.spending,
        ground.memories,
    )


def _language_model(model: Model, observer: Observer) -> Model | None:
    """Return the model if it can answer free prompts, or None for the model that only quotes documents."""
    return None if isinstance(model, ExtractiveModel) else observe(model, observer)


def _defaults(settings: Settings, choice: ChosenModel) -> Defaults:
    quotes_only = isinstance(choice.model, ExtractiveModel)
    name = choice.model.name if quotes_only else choice.name
    thinking: ThinkingMode = "off" if settings.thinking == "off" else "auto"
    return Defaults(name, choice.names, only_model=quotes_only, thinking=thinking, fallbacks=choice.fallbacks)


async def _open_provider(stack: AsyncExitStack, ground: Ground, business: RouteServices) -> "ProviderLogins | None":
    """Return the sign-in at the operator's OpenID provider, or None without a provider.

    Raises:
        BadConfiguration: a required setting is missing, or the mapping file cannot be used.
    """
    settings = ground.settings
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
    return ProviderLogins(ground.database, ground.access, business.people, business.logins, provider, grants)


def _gate(
    ground: Ground, policy: LaunchPolicy, tokens: "ProviderLogins | None", authorizations: Authorizations
) -> Gate:
    """Return the gate.

    Raises:
        BadConfiguration: the OpenID provider is to issue tokens for the MCP door, and there is none.
    """
    settings = ground.settings
    door: DoorTokens | None = authorizations if settings.mcp_sign_in == "own" else None
    if settings.mcp_sign_in == "provider":
        from agentic_rag.access.oidc.logins import ProviderDoor

        if tokens is None:
            raise BadConfiguration("AGENTIC_RAG_MCP_SIGN_IN", "'provider' needs AGENTIC_RAG_OIDC_ISSUER")
        door = ProviderDoor(tokens)
    return Gate(
        ground.access,
        ground.audit,
        use=ground.key_use,
        hosts=hosts_of(settings),
        servers=policy,
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


def _limits(settings: Settings) -> KeyLimits:
    return KeyLimits(
        settings.requests_per_second,
        settings.messages_per_minute,
        settings.connections_per_key,
        settings.subscriptions_per_key,
    )


def _quotas(settings: Settings) -> Quotas:
    return Quotas(
        Holdings(
            settings.quota_documents,
            settings.quota_document_bytes,
            settings.quota_conversations,
        )
    )
