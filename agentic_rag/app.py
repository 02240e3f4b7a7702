"""The composition root: every part made once, in the order in which they need each other.

Owns the lives of the parts, from the data folder's lock to the ASGI application, and the background work of a
serving process. Knows no rule of any part. What is slow to import is loaded in a thread when it is first needed
or once the server listens, so that a process is ready within a second.
"""

import importlib
import logging
import shutil
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from starlette.applications import Starlette

from agentic_rag.business import Business
from agentic_rag.conversations import Conversations, count_turn
from agentic_rag.data_folder import DataFolder
from agentic_rag.documents import Documents, missing_chunks
from agentic_rag.domains import Defaults, Domains
from agentic_rag.errors import AgenticRagError, InvalidInput, NotFound
from agentic_rag.events import Notice
from agentic_rag.ingestion import Ingestion
from agentic_rag.models.anthropic import AnthropicModel
from agentic_rag.models.base import Model
from agentic_rag.models.extractive import ExtractiveModel
from agentic_rag.roles import Roles
from agentic_rag.runtime.agent import World
from agentic_rag.runtime.definition import Definition
from agentic_rag.runtime.runtime import Runtime
from agentic_rag.server.auth import is_loopback
from agentic_rag.server.http import make_app
from agentic_rag.settings import Settings
from agentic_rag.store import run_events
from agentic_rag.store.database import Database
from agentic_rag.tools.base import Toolset
from agentic_rag.tools.launch import LaunchPolicy
from mcp_servers.retriever.edge_index import EdgeIndex
from mcp_servers.retriever.errors import IndexFault
from mcp_servers.retriever.retrieval import Retriever

if TYPE_CHECKING:
    from agentic_rag.tools.hub import Hub

log = logging.getLogger(__name__)

PRUNE_SECONDS = 3600.0
"""How often logs of turns that ended long ago are removed."""

EXTRACTIVE = Notice(
    "EXTRACTIVE_MODEL",
    "No language model is configured: answers are quotes from the documents. Set ANTHROPIC_API_KEY for full answers.",
)


class ToolServers:
    """The hub, loaded when first needed; one task owns it from then to the end.

    An async context manager. `open` is what the runtime calls before each turn.
    """

    def __init__(self, retriever: Retriever, roles: Path, policy: LaunchPolicy) -> None:
        self._retriever = retriever
        self._roles = roles
        self._policy = policy
        self._wanted = anyio.Event()
        self._ready = anyio.Event()
        self._leaving = anyio.Event()
        self._hub: Hub
        self._tasks: TaskGroup

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._own)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        self._leaving.set()
        if not self._ready.is_set():
            self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(exc_type, exc, tb)

    def load(self) -> None:
        """Begin to load, if that has not begun."""
        self._wanted.set()

    async def open(self, definition: Definition) -> Toolset:
        """Return the tools of a turn, once loaded."""
        self.load()
        await self._ready.wait()
        from agentic_rag.tool_servers import open_tools  # loaded by now

        return await open_tools(self._hub, definition)

    def status(self) -> list[dict[str, Any]]:
        """Return the state of each connection."""
        if not self._ready.is_set():
            return [{"name": name, "state": "starting"} for name in ("promptx", "retriever")]
        return [
            {"name": each.name, "state": each.state, **({"domain": each.domain} if each.domain else {})}
            for each in self._hub.status()
        ]

    async def _own(self) -> None:
        await self._wanted.wait()
        await anyio.to_thread.run_sync(importlib.import_module, "agentic_rag.tool_servers")
        from agentic_rag.tool_servers import make_hub

        async with make_hub(self._retriever, self._roles, self._policy) as self._hub:
            self._ready.set()
            await self._leaving.wait()


class Application:
    """Everything one process runs; an async context manager. Inside it, `app` answers requests.

    Args:
        settings: what the operator decided.
        model: replaces the one the settings stand for (tests).
        serving: False for a command that only uses the data folder: turns and files of others are left alone.
        any_command: users' stdio servers may run anything; counts on loopback only.

    Raises:
        DataFolderOwned, BadConfiguration, StorageFull: on entering; nothing is left open.
    """

    def __init__(
        self, settings: Settings, *, model: Model | None = None, serving: bool = True, any_command: bool = False
    ) -> None:
        self.settings = settings
        self.app: Starlette
        self.business: Business
        self.folder: DataFolder
        self.database: Database
        self._given_model = model
        self._serving = serving
        self._any_command = any_command and is_loopback(settings.host)
        self._stack: AsyncExitStack
        self._tasks: TaskGroup
        self._tools: ToolServers
        self._model: Model
        self._ingestion: Ingestion

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
        self.database = database = await Database.open(settings.database_url or settings.data / "agentic-rag.db")
        stack.push_async_callback(database.aclose)
        index = await anyio.to_thread.run_sync(EdgeIndex, settings.index)
        stack.push_async_callback(index.aclose)
        retriever = Retriever(index)
        policy = LaunchPolicy(
            settings.data / "mcp" / "homes",
            allow_any_command=self._any_command,
            loopback=is_loopback(settings.host),
        )
        self._model = self._given_model or _model(settings)
        stack.push_async_callback(self._model.aclose)
        self._tools = await stack.enter_async_context(ToolServers(retriever, settings.roles, policy))
        roles = Roles(database, settings.roles)
        world = World(
            database=database,
            model=self._model,
            open_toolset=self._tools.open,
            role_hash=roles.hash,
            missing=partial(missing_chunks, index),
            on_end=count_turn,
            opening=(EXTRACTIVE,) if self._quotes_only else (),
            model_idle=settings.model_idle_seconds,
            retry_budget=settings.retry_budget_seconds,
        )
        runtime = await stack.enter_async_context(Runtime(world))
        domains = Domains(database, runtime, settings.workspaces, self._defaults(), roles.check_ids, index.drop)
        self._ingestion = await stack.enter_async_context(
            Ingestion(database, index, domains.collection_changed, max_bytes=settings.max_upload_bytes)
        )
        incoming = settings.data / "incoming"
        await anyio.to_thread.run_sync(partial(shutil.rmtree, incoming, ignore_errors=True))  # of a killed process
        documents = Documents(database, domains, self._ingestion, index, retriever, incoming, settings.max_upload_bytes)
        conversations = Conversations(database, domains, runtime)
        self.business = Business(domains, roles, documents, conversations, runtime, self._health)
        self.app = make_app(self.business)
        self._tasks = await stack.enter_async_context(anyio.create_task_group())
        await self._load_demo()
        if self._serving:
            await runtime.recover()
            self._tasks.start_soon(self._keep_pruning)

    def begin(self) -> None:
        """Start what a serving process does beside answering; called once it listens."""
        self._tools.load()
        self._tasks.start_soon(self._beside, "taking up files", self._take_up_files)
        if isinstance(self._model, AnthropicModel):
            self._tasks.start_soon(self._beside, "loading the model client", self._model.warm_up)

    async def _beside(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run background work whose failure must not end the process: what it did not do is met again later."""
        try:
            await work()
        except (AgenticRagError, IndexFault) as exc:
            log.error("%s: %s", name, exc)

    async def drain(self, seconds: float) -> int:
        """Let running turns end, at most so long; return how many are left to be resumed by the next start."""
        return await self.business.runtime.drain(seconds)

    async def _take_up_files(self) -> None:
        """Go on with what was left, then look for files that came while no server ran."""
        await self._ingestion.resume()
        for domain in await self.business.domains.list_all():
            try:
                await self.business.documents.rescan(domain.id)
            except NotFound:
                continue  # deleted meanwhile

    async def _load_demo(self) -> None:
        """Make the demo domain at the first start; once it was deleted it does not come back."""
        marker = self.settings.workspaces / ".demo-loaded"
        template = self.settings.templates / "demo"
        if await anyio.to_thread.run_sync(lambda: marker.exists() or not (template / "domain.json").is_file()):
            return
        try:
            await self.business.domains.get(template.name)
        except NotFound:
            await anyio.to_thread.run_sync(lambda: marker.parent.mkdir(parents=True, exist_ok=True))
            try:
                await self.business.domains.load_template(template)
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

    async def _keep_pruning(self) -> None:
        while True:
            await self._beside("removing old logs", self._prune)
            await anyio.sleep(PRUNE_SECONDS)

    @property
    def _quotes_only(self) -> bool:
        return isinstance(self._model, ExtractiveModel)

    def _defaults(self) -> Defaults:
        return Defaults(
            model=self._model.name if self._quotes_only else self.settings.model,
            only_model=self._quotes_only,
            thinking=self.settings.thinking,
            any_command=self._any_command,
        )

    def _health(self) -> dict[str, Any]:
        return {
            "status": "ok",
            "model": {"name": self._model.name, "state": "ready"},
            "embedder": {"name": None, "state": "lexical"},
            "store": {"name": "postgresql" if self.settings.database_url else "sqlite", "state": "ready"},
            "index": {"name": "embedded", "state": "ready"},
            "servers": self._tools.status(),
            "anyCommand": self._any_command,
        }


def _model(settings: Settings) -> Model:
    key = settings.anthropic_api_key
    if key is None or not key.get_secret_value().strip():
        return ExtractiveModel()
    return AnthropicModel(key.get_secret_value(), settings.anthropic_base_url, citations=settings.citations)
