"""The composition root: every part made once, in the order in which they need each other.

Owns the lives of the parts, from the data folder's lock to the ASGI application. Knows no rule of any part. What is
slow to import is loaded in a thread when it is first needed or once the server listens, so that a process is ready
within a second.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import anyio
from starlette.applications import Starlette

from agentic_rag.access.acts import Acts
from agentic_rag.access.auditing import AuditLog
from agentic_rag.access.keys import Access
from agentic_rag.agent_services import Services
from agentic_rag.business import Business
from agentic_rag.conversations.conversations import Conversations, TurnBookkeeping
from agentic_rag.directory.directory import FIRST_DOCUMENT_SECONDS, Directory
from agentic_rag.documents.disk_reserve import DiskReserve
from agentic_rag.documents.documents import Documents
from agentic_rag.documents.knowledge import Knowledge, open_knowledge
from agentic_rag.domains.definitions import Defaults, Definitions
from agentic_rag.domains.domains import Domains
from agentic_rag.domains.servers import Servers
from agentic_rag.domains.vault import Vault
from agentic_rag.errors import StorageFull, StorageUnavailable
from agentic_rag.mcp_hub import McpHub, launch_policy
from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.models.base import Model, ThinkingMode
from agentic_rag.models.calls import ModelCalls
from agentic_rag.models.extractive import ExtractiveModel
from agentic_rag.models.profile_file import read_profiles
from agentic_rag.models.profiles import use_operator_profiles
from agentic_rag.models.providers import ChosenModel, choose_model
from agentic_rag.operations.data_folder import DataFolder
from agentic_rag.operations.deletion import Deletion
from agentic_rag.operations.doctor import Doctor
from agentic_rag.operations.health import Health
from agentic_rag.operations.lifecycle import Lifecycle
from agentic_rag.operations.upkeep import SCAN_SECONDS, Upkeep
from agentic_rag.operations.usage import UsageReports
from agentic_rag.redaction import Redactor, redacted_logs
from agentic_rag.roles.birth import Births
from agentic_rag.roles.memories import Memories
from agentic_rag.roles.roles import Roles
from agentic_rag.runtime.children import Delegations
from agentic_rag.runtime.runtime import Runtime
from agentic_rag.runtime.services import Patience
from agentic_rag.server.auth import Gate, KeyUse
from agentic_rag.server.hosts import Hosts, is_loopback
from agentic_rag.server.http import make_app
from agentic_rag.server.limits import Limits
from agentic_rag.settings import Settings
from agentic_rag.store.database import Database
from agentic_rag.store.payloads import PayloadFiles
from agentic_rag.store.quotas import Holdings, Quotas
from agentic_rag.threads import DomainThreads
from agentic_rag.tools.launch.policy import LaunchPolicy
from agentic_rag.workers import Workers
from mcp_servers.retriever.errors import IndexFault

RETRY_SECONDS = 1.0
"""Between two looks whether the store is there."""
TAKE_UP_SECONDS = 5.0
"""Between two looks for turns whose server died, where several share a store."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ground:
    """What everything else stands on: the data folder, its database, and who may come in."""

    settings: Settings
    folder: DataFolder
    database: Database
    redactor: Redactor
    access: Access
    key_use: KeyUse
    audit: AuditLog
    directory: Directory
    vault: Vault
    payloads: PayloadFiles
    threads: DomainThreads


@dataclass(frozen=True, slots=True)
class Machinery:
    """What turns run on: the model, the documents' index, the MCP servers, the roles."""

    choice: ChosenModel
    calls: ModelCalls
    knowledge: Knowledge
    policy: LaunchPolicy
    tools: McpHub
    roles: Roles
    runtime: Runtime

    @property
    def model(self) -> Model:
        return self.choice.model


@dataclass(frozen=True, slots=True)
class Application:
    """Everything one process runs; made by `open_application`. ``app`` answers requests."""

    ground: Ground
    machinery: Machinery
    business: Business
    doctor: Doctor
    upkeep: Upkeep
    workers: Workers
    app: Starlette

    @property
    def settings(self) -> Settings:
        return self.ground.settings

    @property
    def database(self) -> Database:
        return self.ground.database

    @property
    def access(self) -> Access:
        return self.ground.access

    def begin(self) -> None:
        """Start what a serving process does beside answering; called once it listens."""
        self.machinery.tools.load()
        self.upkeep.begin(self.workers)
        if isinstance(self.machinery.model, AnthropicModel):
            self.workers.start("loading the model client", self.machinery.model.warm_up)

    async def drain(self, seconds: float) -> int:
        """Let running turns end, at most so long; return how many are left to be resumed by the next start."""
        return await self.machinery.runtime.drain(seconds)


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
) -> AsyncIterator[Application]:
    """Open every part, in order; leaving closes them in the reverse order.

    Args:
        settings: what the operator decided.
        model: replaces the one the settings stand for (tests).
        serving: False for a command that only uses the data folder: turns and files of others are left alone.
        any_command: users' stdio servers may run anything; counts for a single user on loopback only.
        unsandboxed: where there is no bubblewrap they run without a sandbox; counts for a single user on loopback.
        scan_seconds: between two looks into the documents folders.
        first_document_seconds: how long a turn waits for a domain's first document.
        meanwhile: entered where the folder or the database is not there yet, and left once they are; None: they are
            not waited for.

    Raises:
        DataFolderOwned, BadConfiguration, StorageError: on entering; nothing is left open.
    """
    async with AsyncExitStack() as stack:
        folder, database = await _open_store(stack, settings, meanwhile)
        ground = await _open_ground(stack, settings, folder, database, serving, first_document_seconds)
        policy = launch_policy(settings, ground.access, any_command, unsandboxed)
        use_operator_profiles(read_profiles(settings.model_profiles) if settings.model_profiles else {})
        machinery = await _open_machinery(
            stack,
            ground,
            policy,
            choose_model(settings) if model is None else ChosenModel(model, settings.model, model.name),
        )
        business = _make_business(ground, machinery)
        doctor = Doctor(ground.database, ground.payloads, machinery.knowledge.index)
        upkeep = Upkeep(
            settings,
            ground.database,
            ground.directory,
            business.domains,
            business.documents,
            machinery.knowledge,
            doctor,
            scan_seconds,
        )
        app = make_app(business, ground.access, ground.audit, _gate(ground, policy))
        workers = await stack.enter_async_context(Workers(IndexFault))
        await upkeep.prepare()
        if serving:
            workers.start("ending what a single user allowed", partial(_end_single_use, ground.access, machinery))
            await machinery.runtime.recover()
            if ground.database.shared:
                workers.repeat("taking up turns", partial(_take_up_turns, machinery), TAKE_UP_SECONDS, at_once=False)
            upkeep.keep_records(workers, ground.access, ground.audit, business.health)
        yield Application(ground, machinery, business, doctor, upkeep, workers, app)


async def _take_up_turns(machinery: Machinery) -> None:
    """Go on with what other servers of the store left when they died."""
    await machinery.runtime.recover()


async def _end_single_use(access: Access, machinery: Machinery) -> None:
    """With the first key, end what runs because one user alone allowed it; what may start again does."""
    await access.first_key.wait()
    if machinery.policy.single_user:
        machinery.tools.restart_users()


async def _open_store(
    stack: AsyncExitStack, settings: Settings, meanwhile: AbstractAsyncContextManager[None] | None
) -> tuple[DataFolder, Database]:
    """Take the data folder and open the database, as soon as they are there."""
    folder: DataFolder | None = None
    said = ""
    async with AsyncExitStack() as waiting:
        while True:
            try:
                if folder is None:
                    folder = DataFolder.own(settings.data)
                    stack.callback(folder.release)
                database = await Database.open(settings.database_url or settings.data / "agentic-rag.db")
                stack.push_async_callback(database.aclose)
                return folder, database
            except (StorageUnavailable, StorageFull) as exc:
                if meanwhile is None:
                    raise
                if not said:
                    await waiting.enter_async_context(meanwhile)
                if said != str(exc):
                    said = str(exc)
                    log.warning("the store is waited for: %s", said)
            await anyio.sleep(RETRY_SECONDS)


async def _open_ground(
    stack: AsyncExitStack,
    settings: Settings,
    folder: DataFolder,
    database: Database,
    serving: bool,
    first_document_seconds: float,
) -> Ground:
    redactor = Redactor()
    stack.enter_context(redacted_logs(redactor))
    # A command that only uses the folder has to make the first key.
    key_use = KeyUse(_limits(settings))
    access = Access(database, required=serving and not is_loopback(settings.host), use=key_use)
    await access.open()
    audit = AuditLog(database, redactor, Acts(settings.data))
    stack.push_async_callback(audit.flush)
    vault = await Vault.open(database, settings.data, settings.secret_key, redactor)
    directory = Directory(database, first_document_seconds=first_document_seconds, quotas=_quotas(settings))
    payloads = PayloadFiles(settings.data / "payloads")
    threads = DomainThreads()
    return Ground(settings, folder, database, redactor, access, key_use, audit, directory, vault, payloads, threads)


async def _open_machinery(
    stack: AsyncExitStack, ground: Ground, policy: LaunchPolicy, choice: ChosenModel
) -> Machinery:
    settings, database = ground.settings, ground.database
    calls = ModelCalls(choice.model.name)
    stack.push_async_callback(choice.model.aclose)
    knowledge = await stack.enter_async_context(open_knowledge(settings, database, ground.directory, ground.threads))
    roles = Roles(database, settings.roles, ground.threads)
    delegations = Delegations()
    tools = await stack.enter_async_context(
        McpHub(
            knowledge.search,
            settings.roles,
            policy,
            ground.vault,
            database,
            delegations,
            ground.audit,
            settings.quota_memories,
            ground.threads,
        )
    )
    runtime = await stack.enter_async_context(
        Runtime(
            Services(choice.model, calls, tools, roles, knowledge, database, ground.access),
            TurnBookkeeping(),
            database=database,
            payloads=ground.payloads,
            redactor=ground.redactor,
            delegations=delegations,
            patience=Patience(settings.model_idle_seconds, settings.retry_budget_seconds),
        )
    )
    return Machinery(choice, calls, knowledge, policy, tools, roles, runtime)


def _make_business(ground: Ground, machinery: Machinery) -> Business:
    settings, database, threads = ground.settings, ground.database, ground.threads
    directory, vault = ground.directory, ground.vault
    knowledge, roles, runtime, tools = machinery.knowledge, machinery.roles, machinery.runtime, machinery.tools
    lifecycle = Lifecycle(roles, tools, settings.model_cache.expanduser())
    defaults = _defaults(settings, machinery.choice)
    default_model = "" if defaults.only_model else defaults.model
    domains = Domains(
        database,
        directory,
        settings.workspaces,
        vault,
        machinery.policy,
        lifecycle,
        threads,
        default_model,
        machinery.choice.refusal,
    )
    definitions = Definitions(directory, ground.access, knowledge.ingestion, defaults, threads, settings.roles)
    births = Births(directory, domains, roles)
    reserve = DiskReserve(settings.data, settings.disk_reserve)
    documents = Documents(
        database, directory, knowledge, settings.incoming, settings.max_upload_bytes, reserve, threads
    )
    conversations = Conversations(database, directory, definitions, runtime, births, settings.default_domain)
    return Business(
        directory=directory,
        domains=domains,
        definitions=definitions,
        roles=roles,
        births=births,
        memories=Memories(definitions, settings.quota_memories, threads),
        documents=documents,
        conversations=conversations,
        deletion=Deletion(
            database,
            directory,
            conversations,
            documents,
            runtime,
            vault,
            knowledge.index,
            lifecycle,
            settings.workspaces,
            threads,
        ),
        runtime=runtime,
        vault=vault,
        servers=Servers(directory, domains, vault, tools, machinery.policy, threads),
        health=Health(machinery.calls, knowledge, tools, machinery.policy, database, reserve, runtime, vault.redact),
        usage=UsageReports(database),
    )


def _defaults(settings: Settings, choice: ChosenModel) -> Defaults:
    quotes_only = isinstance(choice.model, ExtractiveModel)
    name = choice.model.name if quotes_only else choice.name
    thinking: ThinkingMode = "off" if settings.thinking == "off" else "auto"
    return Defaults(name, only_model=quotes_only, thinking=thinking, provider=choice.provider)


def _gate(ground: Ground, policy: LaunchPolicy) -> Gate:
    settings = ground.settings
    return Gate(ground.access, ground.audit, use=ground.key_use, hosts=hosts_of(settings), servers=policy)


def hosts_of(settings: Settings) -> Hosts:
    """Return the names that a server with these settings answers to."""
    names = frozenset(name.strip() for name in settings.allowed_hosts.split(",") if name.strip())
    return Hosts(loopback=is_loopback(settings.host), names=names)


def _limits(settings: Settings) -> Limits:
    return Limits(
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
