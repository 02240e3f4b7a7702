"""The composition root: every part made once, in the order in which they need each other.

Owns the lives of the parts, from the data folder's lock to the ASGI application, and the background work of a
serving process. Knows no rule of any part. What is slow to import is loaded in a thread when it is first needed
or once the server listens, so that a process is ready within a second.
"""

import logging
import shutil
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from starlette.applications import Starlette

from agentic_rag.access.auditing import FLUSH_SECONDS, AuditLog
from agentic_rag.access.keys import REFRESH_SECONDS, Access
from agentic_rag.business import Business
from agentic_rag.conversations.conversations import Conversations, TurnBookkeeping
from agentic_rag.directory.directory import FIRST_DOCUMENT_SECONDS, Directory
from agentic_rag.documents.documents import Documents
from agentic_rag.documents.knowledge import Knowledge, open_knowledge
from agentic_rag.documents.search import missing_chunks
from agentic_rag.domains.definitions import Defaults, Definitions
from agentic_rag.domains.domains import Domains
from agentic_rag.domains.servers import Servers, admission
from agentic_rag.domains.vault import Vault
from agentic_rag.errors import AgenticRagError, InvalidInput, NotFound
from agentic_rag.events import Notice
from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.models.base import Model
from agentic_rag.models.extractive import ExtractiveModel
from agentic_rag.models.providers import ChosenModel, choose_model
from agentic_rag.operations.data_folder import DataFolder
from agentic_rag.operations.deletion import Deletion
from agentic_rag.operations.doctor import Doctor
from agentic_rag.operations.lifecycle import Lifecycle
from agentic_rag.redaction import Redactor, redacted_logs
from agentic_rag.roles.memories import Memories
from agentic_rag.roles.roles import Roles
from agentic_rag.runtime.children import Delegations
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.runtime import Runtime
from agentic_rag.runtime.services import Patience
from agentic_rag.server.gate import Gate
from agentic_rag.server.hosts import Hosts, is_loopback
from agentic_rag.server.http import make_app
from agentic_rag.server.limits import Limits
from agentic_rag.settings import Settings
from agentic_rag.store import run_events
from agentic_rag.store.database import Database
from agentic_rag.store.payload_files import PayloadFiles
from agentic_rag.tool_pool import ToolServers, launch_policy
from agentic_rag.tools.base import Toolset
from agentic_rag.tools.launch.policy import LaunchPolicy
from mcp_servers.retriever.errors import IndexFault

log = logging.getLogger(__name__)

SCAN_SECONDS = 30.0
"""Between two looks for files that were put into a documents folder, changed or taken away."""
PRUNE_SECONDS = 3600.0
"""How often logs of turns that ended long ago are removed."""

EXTRACTIVE = Notice(
    "EXTRACTIVE_MODEL",
    "No language model is configured: answers are quotes from the documents. Set ANTHROPIC_API_KEY for full answers.",
)


class Application:
    """Everything one process runs; an async context manager. Inside it, `app` answers requests.

    Args:
        settings: what the operator decided.
        model: replaces the one the settings stand for (tests).
        serving: False for a command that only uses the data folder: turns and files of others are left alone.
        any_command: users' stdio servers may run anything; counts on loopback only.
        scan_seconds: between two looks into the documents folders.
        first_document_seconds: how long a turn waits for a domain's first document.
        unsandboxed: where there is no bubblewrap they run without a sandbox; counts on loopback only.
        failpoint: called at places where a kill must do no harm (tests).

    Raises:
        DataFolderOwned, BadConfiguration, StorageFull: on entering; nothing is left open.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        model: Model | None = None,
        serving: bool = True,
        any_command: bool = False,
        unsandboxed: bool = False,
        scan_seconds: float = SCAN_SECONDS,
        first_document_seconds: float = FIRST_DOCUMENT_SECONDS,
        failpoint: Callable[[str], object] = lambda name: None,
    ) -> None:
        self.settings = settings
        self.app: Starlette
        self.access: Access
        self.audit: AuditLog
        self.business: Business
        self.folder: DataFolder
        self.database: Database
        self._given_model = model
        self._failpoint = failpoint
        self._serving = serving
        self._any_command = any_command and is_loopback(settings.host)
        self._allow_unsandboxed = unsandboxed
        self._scan_seconds = scan_seconds
        self._first_document_seconds = first_document_seconds
        self._stack: AsyncExitStack
        self._policy: LaunchPolicy
        self._tasks: TaskGroup
        self._tools: ToolServers
        self._model: Model
        self._knowledge: Knowledge

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._open(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        self._tasks.cancel_scope.cancel()
        return await self._stack.__aexit__(exc_type, exc, tb)

    async def _open(self, stack: AsyncExitStack) -> None:
        settings = self.settings
        self.folder = DataFolder.own(settings.data)
        stack.callback(self.folder.release)
        where = settings.database_url or settings.data / "agentic-rag.db"
        self.database = database = await Database.open(where, failpoint=self._failpoint)
        stack.push_async_callback(database.aclose)
        stack.enter_context(redacted_logs(redact := Redactor()))
        await self._open_access(stack, redact)
        directory = Directory(database, first_document_seconds=self._first_document_seconds)
        vault = await Vault.open(database, settings.data, settings.secret_key, redact)
        knowledge = self._knowledge = await stack.enter_async_context(open_knowledge(settings, database, directory))
        policy = self._policy = launch_policy(
            settings,
            self._any_command and not self.access.required,
            self._allow_unsandboxed and not self.access.required,
        )
        given = self._given_model
        self._choice = choose_model(settings) if given is None else ChosenModel(given, settings.model)
        self._model = self._choice.model
        stack.push_async_callback(self._model.aclose)
        delegations = Delegations()
        self._tools = await stack.enter_async_context(
            ToolServers(
                knowledge.search, settings.roles, policy, vault, database, delegations, self.audit.server_refused
            )
        )
        roles = Roles(database, settings.roles)
        runtime = await stack.enter_async_context(self._runtime(redact, roles, delegations))
        lifecycle = Lifecycle(roles, self._tools, settings.model_cache.expanduser())
        domains = Domains(database, directory, settings.workspaces, vault, partial(admission, policy), lifecycle)
        definitions = Definitions(directory, self.access, knowledge.ingestion, self._defaults())
        documents = Documents(database, directory, knowledge, settings.data / "incoming", settings.max_upload_bytes)
        conversations = Conversations(database, directory, definitions, runtime)
        deletion = Deletion(
            database,
            directory,
            conversations,
            documents,
            runtime,
            vault,
            knowledge.index,
            lifecycle,
            settings.workspaces,
        )
        servers = Servers(directory, domains, vault, self._tools, policy)
        self.business = Business(
            directory,
            domains,
            definitions,
            roles,
            Memories(definitions),
            documents,
            conversations,
            deletion,
            runtime,
            vault,
            servers,
            self._health,
        )
        self.app = make_app(self.business, self.access, self.audit, self._gate())
        await self._start(stack)

    async def _start(self, stack: AsyncExitStack) -> None:
        self._tasks = await stack.enter_async_context(anyio.create_task_group())
        incoming = self.settings.data / "incoming"
        await anyio.to_thread.run_sync(partial(shutil.rmtree, incoming, ignore_errors=True))  # of a killed process
        await self._load_demo()
        if self._serving:
            await self.business.runtime.recover()
            self._tasks.start_soon(self._repeat, "removing old logs", self._prune, PRUNE_SECONDS)
            self._tasks.start_soon(self._repeat, "reading the keys", self.access.refresh, REFRESH_SECONDS)
            self._tasks.start_soon(self._repeat, "writing the audit log", self.audit.write_due, FLUSH_SECONDS)

    def _runtime(self, redactor: Redactor, roles: Roles, delegations: Delegations) -> Runtime:
        return Runtime(
            Services(self._model, self._tools, roles, self._knowledge, self.database),
            TurnBookkeeping(),
            database=self.database,
            payloads=PayloadFiles(self.settings.data / "payloads"),
            redactor=redactor,
            delegations=delegations,
            patience=Patience(self.settings.model_idle_seconds, self.settings.retry_budget_seconds),
        )

    async def _open_access(self, stack: AsyncExitStack, redact: Redactor) -> None:
        # A command that only uses the folder has to make the first key.
        required = self._serving and not is_loopback(self.settings.host)
        self.access = Access(self.database, required=required)
        await self.access.open()
        self.access.on_required.append(self._no_longer_alone)
        self.audit = AuditLog(self.database, redact.json)
        stack.push_async_callback(self.audit.flush)

    def _no_longer_alone(self) -> None:
        """What only a single user may allow himself ends with the first key."""
        self._policy.any_command = self._policy.unsandboxed = False

    def _gate(self) -> Gate:
        settings = self.settings
        names = frozenset(name.strip() for name in settings.allowed_hosts.split(",") if name.strip())
        limits = Limits(
            settings.requests_per_second,
            settings.messages_per_minute,
            settings.connections_per_key,
            settings.subscriptions_per_key,
        )
        hosts = Hosts(loopback=is_loopback(settings.host), names=names)
        return Gate(self.access, self.audit, hosts=hosts, limits=limits)

    def begin(self) -> None:
        """Start what a serving process does beside answering; called once it listens."""
        self._tools.load()
        self._tasks.start_soon(self._beside, "taking up files", self._take_up_files)
        self._tasks.start_soon(self._beside, "dense vectors", self._knowledge.begin)
        self._tasks.start_soon(self._beside, "the consistency check", self._examine)
        if isinstance(self._model, AnthropicModel):
            self._tasks.start_soon(self._beside, "loading the model client", self._model.warm_up)

    async def _examine(self) -> None:
        """Say in the log what does not fit together; ``agentic-rag doctor --repair`` mends it."""
        for finding in await self.doctor().examine():
            log.warning("consistency check: %s", finding)

    def doctor(self) -> Doctor:
        """Return who examines this data folder."""
        files = PayloadFiles(self.settings.data / "payloads")
        return Doctor(self.database, files, self._knowledge.index)

    async def _beside(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run background work whose failure must not end the process: what it did not do is met again later."""
        try:
            await work()
        except (AgenticRagError, IndexFault) as exc:
            log.error("%s: %s", name, exc)
        except Exception as exc:  # nothing that is done beside answering may end the server
            log.error("%s failed", name, exc_info=exc)

    async def drain(self, seconds: float) -> int:
        """Let running turns end, at most so long; return how many are left to be resumed by the next start."""
        return await self.business.runtime.drain(seconds)

    async def _take_up_files(self) -> None:
        """Go on with what was left, then follow what operators do in the documents folders."""
        await self._beside("going on with documents", self._knowledge.resume)
        await self._repeat("looking into the documents folders", self._look_for_files, self._scan_seconds)

    async def _look_for_files(self) -> None:
        for domain in await self.business.directory.list_all():
            try:
                await self.business.documents.rescan(domain.id)
            except NotFound:
                continue  # deleted meanwhile
            finally:
                self.business.directory.folder_seen(domain.id)

    async def _load_demo(self) -> None:
        """Make the demo domain at the first start; once it was deleted it does not come back."""
        marker = self.settings.workspaces / ".demo-loaded"
        template = self.settings.templates / "demo"
        if await anyio.to_thread.run_sync(lambda: marker.exists() or not (template / "domain.json").is_file()):
            return
        try:
            await self.business.directory.get(template.name)
        except NotFound:
            await anyio.to_thread.run_sync(lambda: marker.parent.mkdir(parents=True, exist_ok=True))
            try:
                await self.business.domains.load_template(template)
                self.business.directory.expect_files(template.name)
            except (InvalidInput, ValueError) as exc:  # somebody edited the template: no reason not to start
                log.warning("the demo domain was not made: %s", exc)
                return
        await anyio.to_thread.run_sync(marker.touch)

    async def _prune(self) -> None:
        """Remove logs of turns that ended long ago; in small steps, since there is one writer."""
        keep = timedelta(hours=self.settings.run_log_hours)
        before = (datetime.now(UTC) - keep).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
        while await self.database.write(partial(run_events.prune, ended_before=before)):
            pass

    async def _repeat(self, name: str, work: Callable[[], Awaitable[None]], seconds: float) -> None:
        while True:
            await self._beside(name, work)
            await anyio.sleep(seconds)

    @property
    def _quotes_only(self) -> bool:
        return isinstance(self._model, ExtractiveModel)

    def _defaults(self) -> Defaults:
        return Defaults(
            model=self._model.name if self._quotes_only else self._choice.name,
            only_model=self._quotes_only,
            thinking=self.settings.thinking,
        )

    def _health(self) -> dict[str, Any]:
        return {
            "status": "ok",
            "model": {"name": self._model.name, "state": "ready"},
            **self._knowledge.health(),
            "store": {"name": "postgresql" if self.settings.database_url else "sqlite", "state": "ready"},
            "servers": self._tools.status(),
            "anyCommand": self._policy.any_command,
            "unsandboxed": self._policy.unsandboxed,
        }


class Services:
    """What turns need from outside. Implements `agentic_rag.runtime.services.AgentServices`."""

    def __init__(
        self, model: Model, tools: ToolServers, roles: Roles, knowledge: Knowledge, database: Database
    ) -> None:
        self._model = model
        self._tools = tools
        self._roles = roles
        self._knowledge = knowledge
        self._database = database

    @property
    def opening_notices(self) -> Sequence[Notice]:
        return (EXTRACTIVE,) if isinstance(self._model, ExtractiveModel) else ()

    def model(self, domain_id: str) -> Model:
        return self._model

    async def open_toolset(self, definition: Definition) -> Toolset:
        return await self._tools.open(definition)

    async def role_hash(self, domain_id: str, role: str) -> str | None:
        return await self._roles.hash(domain_id, role)

    async def missing_chunks(self, domain_id: str, chunk_ids: set[str]) -> set[str]:
        return await missing_chunks(self._knowledge.index, self._database, domain_id, chunk_ids)
