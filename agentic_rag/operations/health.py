"""Health of the server's components: model, embedder, index, store, disk and MCP servers.

This module combines them into one report, decides which user sees which fields, and probes the store by writing. Each
component records its recent outcomes itself. Members see states; operators also see reasons, without secrets. Knows no
request.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from agentic_rag.access.users import User
from agentic_rag.base.errors import ServerStopping, StorageError, StorageFull, StorageUnavailable, WritesRefused
from agentic_rag.base.health_signals import Outcomes, PartState, worst
from agentic_rag.base.json_form import Absent, Json
from agentic_rag.base.redaction import Redactor
from agentic_rag.base.startup_errors import ServerStarting
from agentic_rag.documents.disk_reserve import DiskReserve
from agentic_rag.documents.knowledge import EMBEDDED, Knowledge
from agentic_rag.models.calls import ModelCalls
from agentic_rag.models.retirement import Retirement, retirements_of
from agentic_rag.operations.members import Members, MemberView
from agentic_rag.runtime.runtime import Runtime
from agentic_rag.store import domains, probe, turns
from agentic_rag.store.clock import now, today
from agentic_rag.store.database import Database
from agentic_rag.tools.launch.policy import LaunchPolicy
from agentic_rag.tools.pool import McpPool
from agentic_rag.tools.server_answers import DroppedTool
from agentic_rag.tools.status import ConnectionState, State

NEEDS_QDRANT = (
    "several servers share this database, and each has an index of its own: documents that one of them indexed look "
    "lost to the others. Set QDRANT_URL to one Qdrant server for all of them"
)
PROBE_SECONDS = 15.0
"""Interval of the writes that probe the store."""
ROOM_BYTES = 1024 * 1024
"""Free bytes that the disk must have after a refused write before the server is ready again."""

_SERVER_STATES = {
    State.STARTING: PartState.READY,
    State.READY: PartState.READY,
    State.DEGRADED: PartState.DEGRADED,
    State.FAILED: PartState.DOWN,
    State.STOPPED: PartState.READY,
}
"""A starting server and one that was stopped as unused have not failed."""


@dataclass(frozen=True, slots=True)
class LastFailure:
    """Time and error code of a component's last failure."""

    at: str
    code: str


@dataclass(frozen=True, slots=True)
class RecentCalls:
    """Calls and failures of a component in the last five minutes."""

    calls: int
    failures: int


@dataclass(frozen=True, slots=True)
class DomainRebuilding:
    """Progress of rebuilding a domain's lost index, in documents."""

    domain: str
    done: int
    of: int


@dataclass(frozen=True, slots=True)
class PartHealth:
    """A component of the server.

    ``mode`` describes an unusual state. An embedder is ``lexical``, ``loading``, ``fetching`` (``bytes`` downloaded
    ``of`` all) or ``failing``; an index is ``rebuilding``; a store is ``stalled`` or ``full``. ``reads_tokens`` is the
    number of tokens that an embedder reads at once; it embeds longer passages in overlapping windows. Only operators
    see the fields from ``reason`` on.
    """

    name: str | None
    state: PartState
    mode: Absent[str] = None
    bytes: Absent[int] = None
    of: Absent[int] = None
    collections_to_reindex: Absent[int] = None
    rebuilding: Absent[Sequence[DomainRebuilding]] = None
    reads_tokens: Absent[int] = None
    reason: Absent[str] = None
    last_success: Absent[str] = None
    last_failure: Absent[LastFailure] = None
    recently: Absent[RecentCalls] = None


@dataclass(frozen=True, slots=True)
class DiskHealth:
    """The disk of the data folder. ``free`` and ``reserve`` are bytes; uploads leave the reserve free.

    Only operators see the numbers and the reason.
    """

    state: PartState
    reason: Absent[str] = None
    free: Absent[int] = None
    reserve: Absent[int] = None


@dataclass(frozen=True, slots=True)
class QueueHealth:
    """Running and waiting turns, and documents that are not indexed yet. ``waiting`` is absent if the store fails."""

    running: int
    documents: int
    waiting: Absent[int] = None


@dataclass(frozen=True, slots=True)
class BackupHealth:
    """The newest automatic backup.

    ``age_seconds`` is absent if there is none. ``every_hours`` is absent if automatic backups are off.
    """

    state: PartState
    age_seconds: Absent[int] = None
    every_hours: Absent[float] = None
    reason: Absent[str] = None


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """A running MCP server. ``mode`` is the state of its connection; ``domain`` is absent for built-in servers.

    ``dropped_tools`` are listed by the server but hidden from models. Only operators see them; absent if there are
    none.
    """

    name: str
    state: PartState
    mode: str
    domain: Absent[str] = None
    reason: Absent[str] = None
    dropped_tools: Absent[Sequence[DroppedTool]] = None


@dataclass(frozen=True, slots=True)
class HealthReport:
    """All components with their states. ``status`` is ``ok`` or the worst state of the components that turns need.

    ``anyCommand`` and ``unsandboxed`` show the launch policy for MCP servers of a single user. Only operators see the
    fields from ``providers`` on. ``providers`` are the model providers that were called, if there are several.
    ``retiring`` are models of the server and its domains that their service retires within 60 days, or has retired.
    ``replicas`` are the living servers of a shared database.
    """

    status: str
    model: PartHealth
    embedder: PartHealth
    index: PartHealth
    store: PartHealth
    disk: DiskHealth
    servers: Sequence[ServerHealth]
    any_command: bool
    unsandboxed: bool
    providers: Absent[Sequence[PartHealth]] = None
    queue: Absent[QueueHealth] = None
    backup: Absent[BackupHealth] = None
    retiring: Absent[Sequence[Retirement]] = None
    replicas: Absent[Sequence[MemberView]] = None


class BackupAges(Protocol):
    """The place of the automatic backups."""

    async def report(self) -> BackupHealth:
        """Return the age of the newest backup."""
        ...


class Health:
    """Builds health reports and decides whether the server is ready."""

    def __init__(
        self,
        model: ModelCalls,
        knowledge: Knowledge,
        servers: McpPool,
        policy: LaunchPolicy,
        database: Database,
        reserve: DiskReserve,
        runtime: Runtime,
        redactor: Redactor,
        backups: BackupAges,
        members: Members | None = None,
        default_model: str = "",
    ) -> None:
        self._default_model = default_model
        self._model = model
        self._knowledge = knowledge
        self._servers = servers
        self._policy = policy
        self._db = database
        self._reserve = reserve
        self._runtime = runtime
        self._redact = redactor
        self._backups = backups
        self._members = members
        self._loading = False
        self._refused: str | None = None
        """Reason of the last refused file write, until `probe` finds space."""
        self._room_at = 0.0
        """When `probe` last found space after a refused write."""

    def note_refused(self, reason: str) -> None:
        """Record that the disk refused a write. The server is not ready until `probe` finds space.

        With a separate database server, turns do not need this disk; then only `report` shows the problem.
        """
        if not self._db.shared:
            self._refused = reason

    def begin_loading(self) -> None:
        """Mark the server as not ready until `end_loading`, because turns would wait for a component that loads."""
        self._loading = True

    def end_loading(self) -> None:
        """Mark loading as finished."""
        self._loading = False

    async def report(self, user: User) -> HealthReport:
        """Return the health report for a user."""
        at = time.time()
        disk = self._disk()
        model = replace(_part(self._model.name, self._model.outcomes, at, calls=True), state=self._model.state(at))
        members = await self._replicas()
        index, embedder = self._index(at, len(members or ())), self._embedder(at)
        store = self._store(at, disk)
        servers = [self._server(status) for status in self._servers.status()]
        own = [server.state for server in servers if server.domain is None]
        state = worst([model.state, index.state, embedder.state, store.state, disk.state, *own])
        report = HealthReport(
            status="ok" if state is PartState.READY else state.value,
            model=model,
            embedder=embedder,
            index=index,
            store=store,
            disk=disk,
            # users see only the servers and documents of their own domains
            servers=[server for server in servers if server.domain is None or user.sees(server.domain)],
            any_command=self._policy.any_command,
            unsandboxed=self._policy.unsandboxed,
        )
        if not user.operator:
            return _for_members(report, user)
        providers = [
            _part(name, provider, at, calls=True) for name, provider in sorted(self._model.by_provider.items())
        ]
        shown_providers = providers if len(providers) > 1 else None
        queue, backup = await self._queue(), await self._backups.report()
        retiring = await self._retiring()
        return replace(
            report, providers=shown_providers, queue=queue, backup=backup, retiring=retiring, replicas=members
        )

    async def _retiring(self) -> Sequence[Retirement] | None:
        """Return the models in use that are about to be retired, or None. Empty settings count as the default model."""
        try:
            records = await self._db.read(domains.list_all)
        except StorageError:
            records = []
        names = [self._default_model]
        for record in records:
            names += [record.settings.get("model") or "", *_fallbacks_of(record.settings)]
        return retirements_of(names, today()) or None

    def check_ready(self) -> None:
        """Check that messages may be sent now.

        Raises:
            ServerStarting: a component that turns need is loading.
            ServerStopping: the server drains.
            WritesRefused: the disk refused a write, and no space was found since.
            StorageUnavailable: the last write to the store failed.
        """
        if self._runtime.draining:
            raise ServerStopping
        if self._loading:
            raise ServerStarting
        if (reason := self._why_full()) is not None:
            raise WritesRefused(reason.removesuffix("."))
        if self._db.outcomes.failing:
            raise StorageUnavailable("it takes nothing now")

    def _why_full(self) -> str | None:
        """Return the reason for refusing writes, or None if the last write succeeded or there is space again.

        A small write that still fits does not end the refusal: `probe` must find `ROOM_BYTES`.
        """
        failure = self._db.outcomes.last_failure
        if failure is not None and failure.code == StorageFull.code and failure.at > self._room_at:
            return failure.reason
        return self._refused

    async def probe(self) -> None:
        """Write a row to detect a failing store or disk before a user needs it."""
        began, is_full = time.time(), self._why_full() is not None
        await self._reserve.probe(ROOM_BYTES if is_full else 0)
        try:
            await self._db.write(lambda conn: probe.touch(conn, now()))
        except StorageError:
            return  # the database records the failure
        if is_full and self._reserve.refused is None:
            self._refused, self._room_at = None, began

    def _store(self, at: float, disk: DiskHealth) -> PartHealth:
        part = _part(self._db.name, self._db.outcomes, at)
        if (reason := self._why_full()) is not None:
            return replace(part, state=worst([part.state, PartState.DEGRADED]), mode="full", reason=reason)
        if self._db.outcomes.failing:
            return replace(part, mode="stalled")
        return part if disk.state is PartState.READY else replace(part, mode="full")

    def _disk(self) -> DiskHealth:
        free, reserve = self._reserve.free(), self._reserve.bytes_kept
        if self._reserve.refused is not None:
            return DiskHealth(PartState.DEGRADED, self._reserve.refused, free, reserve)
        if free is None or free >= reserve:
            return DiskHealth(PartState.READY, free=free, reserve=reserve)
        return DiskHealth(PartState.DEGRADED, self._reserve.words(free), free, reserve)

    def _index(self, at: float, members: int) -> PartHealth:
        part = _part(self._knowledge.index_name, self._knowledge.search.outcomes, at)
        part = replace(part, reason=part.reason and self._redact(part.reason))
        rebuilding = [
            DomainRebuilding(item.domain, item.done, item.of) for item in self._knowledge.lost.all_rebuilding()
        ]
        if members > 1 and self._knowledge.index_name == EMBEDDED:
            return replace(part, state=worst([part.state, PartState.DEGRADED]), reason=NEEDS_QDRANT)
        if rebuilding and part.state is PartState.READY:
            return replace(part, state=PartState.DEGRADED, mode="rebuilding", rebuilding=rebuilding)
        return part

    def _embedder(self, at: float) -> PartHealth:
        embedding = self._knowledge.embedding
        name = None if embedding.state == "lexical" else embedding.name
        part = _part(name, embedding.outcomes, at)
        here, expected = embedding.progress if embedding.state == "fetching" and embedding.progress else (None, None)
        # searches continue with keywords only, so this is not an outage
        missing = embedding.required and not embedding.usable and embedding.reason is not None
        return replace(
            part,
            state=PartState.DEGRADED if missing or embedding.outcomes.failing else PartState.READY,
            mode=None if embedding.state == "ready" else embedding.state,
            reason=embedding.reason and self._redact(embedding.reason),
            bytes=here,
            of=expected,
            collections_to_reindex=self._knowledge.dense.collections_to_reindex or None,
            reads_tokens=embedding.limit if name else None,
        )

    def _server(self, state: ConnectionState) -> ServerHealth:
        reason = self._redact(state.reason) if state.reason else None
        refused = self._runtime.refused_tools.of_server(state.domain, state.name)
        dropped = [
            DroppedTool(self._redact(tool.name), self._redact(tool.reason))
            for tool in dict.fromkeys((*state.dropped_tools, *refused))
        ]
        part = _SERVER_STATES[state.state]
        return ServerHealth(state.name, part, state.state.value, state.domain or None, reason, dropped or None)

    async def _replicas(self) -> Sequence[MemberView] | None:
        try:
            return None if self._members is None else await self._members.list_alive()
        except StorageError:
            return None

    async def _queue(self) -> QueueHealth:
        running, documents = self._runtime.running_count, self._knowledge.ingestion.count
        try:
            waiting = await self._db.read(lambda conn: len(turns.list_queued(conn)))
        except StorageError:
            return QueueHealth(running, documents)
        return QueueHealth(running, documents, waiting)


def _part(name: str | None, outcomes: Outcomes, at: float, *, calls: bool = False) -> PartHealth:
    """Return a component's health from its recent outcomes. ``calls`` adds the number of calls."""
    success, failure = outcomes.last_success, outcomes.last_failure
    count = outcomes.count(at)
    return PartHealth(
        name,
        outcomes.state(at),
        reason=failure.reason if failure and outcomes.failing else None,
        last_success=None if success is None else _time(success),
        last_failure=None if failure is None else LastFailure(_time(failure.at), failure.code),
        recently=RecentCalls(*count) if calls and count[0] else None,
    )


def _fallbacks_of(settings: Json) -> Sequence[str]:
    fallbacks = settings.get("fallbackModel") or ()
    return [fallbacks] if isinstance(fallbacks, str) else list(fallbacks)


def _for_members(report: HealthReport, user: User) -> HealthReport:
    """Return the report without reasons and locations, for chat clients."""
    embedder = report.embedder
    remote = embedder.name is not None and embedder.name.startswith("http:")
    return replace(
        report,
        model=_plain(report.model),
        embedder=replace(_plain(embedder), name=None if remote else embedder.name),
        index=_plain(report.index, user),
        store=_plain(report.store),
        disk=DiskHealth(report.disk.state),
        servers=[replace(server, reason=None, dropped_tools=None) for server in report.servers],
    )


def _plain(part: PartHealth, user: User | None = None) -> PartHealth:
    visible = [item for item in part.rebuilding or () if user is not None and user.sees(item.domain)] or None
    return replace(part, reason=None, last_success=None, last_failure=None, recently=None, rebuilding=visible)


def _time(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
