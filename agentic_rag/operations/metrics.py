"""The metrics of this process, and their text at ``/metrics`` in Prometheus format.

Durations, tokens, outcomes and errors are counted when a span ends; the health of the server is read at a scrape. No
label is an id of a user or a conversation. A series with more than `MOST` label sets counts further ones as ``other``.
The library that writes the format is imported on the first request.
"""

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Final, Protocol

import anyio.to_thread

from agentic_rag import __version__
from agentic_rag.access.users import LOCAL
from agentic_rag.base.errors import NotFound
from agentic_rag.base.health_signals import PartState
from agentic_rag.base.telemetry import Span, WorkKind
from agentic_rag.operations.budgets import Budgets, BudgetState
from agentic_rag.operations.health import Health, HealthReport
from agentic_rag.runtime.runtime import Runtime

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX: Final = "agentic_rag_"
MOST: Final = 200
"""Maximum number of label sets in one series."""
OTHER: Final = "other"
SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
COMMIT_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
EVENTS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
TOKEN_KINDS: Final = ("input", "cache_read", "cache_write", "output")
OF_USERS: Final = "(user)"
"""Label for all tools of users' servers, because strangers choose their names."""
UNKNOWN: Final = "(unknown)"
"""Label for all calls of unknown tools, because models invent their names."""


class Distribution:
    """A histogram. ``counts`` has one entry per bound of its series, and one for larger values."""

    __slots__ = ("counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0


@dataclass(frozen=True, slots=True)
class Distributions:
    """A series of histograms. ``labels`` holds the label names."""

    name: str
    doc: str
    labels: tuple[str, ...]
    bounds: tuple[float, ...] = SECONDS
    values: dict[tuple[str, ...], Distribution] = field(default_factory=dict)

    def note(self, value: float, *labels: str) -> None:
        """Record one value."""
        distribution = self.values.get(labels)
        if distribution is None:
            labels = _fitting(self.values, labels)
            distribution = self.values.setdefault(labels, Distribution(self.bounds))
        distribution.counts[bisect_left(self.bounds, value)] += 1
        distribution.total += value


@dataclass(frozen=True, slots=True)
class Counter:
    """A series of numbers that only grow."""

    name: str
    doc: str
    labels: tuple[str, ...]
    values: dict[tuple[str, ...], float] = field(default_factory=dict)

    def add(self, amount: float, *labels: str) -> None:
        """Add an amount to the counter with these labels."""
        if labels not in self.values:
            labels = _fitting(self.values, labels)
        self.values[labels] = self.values.get(labels, 0) + amount


def _fitting(values: Mapping[tuple[str, ...], object], labels: tuple[str, ...]) -> tuple[str, ...]:
    return labels if len(values) < MOST else (OTHER,) * len(labels)


class Counts:
    """The series of this process; implements `agentic_rag.base.telemetry.Metrics`."""

    def __init__(self) -> None:
        self.turns = Counter("turns", "Turns of users by how they ended.", ("domain", "end"))
        self.delegates = Counter("delegates", "Turns of delegates by how they ended.", ("domain", "end"))
        self.turn_seconds = Distributions("turn_seconds", "How long turns of users took.", ("domain",))
        self.first_seconds = Distributions(
            "time_to_first_token_seconds", "From the start of a user's turn to its first token.", ("domain",)
        )
        self.step_seconds = Distributions("model_call_seconds", "Calls of models.", ("model", "outcome"))
        self.step_first_seconds = Distributions(
            "model_first_token_seconds", "From a model's call to its first token.", ("model",)
        )
        self.tokens = Counter("tokens", "Tokens of model calls.", ("domain", "model", "kind"))
        self.tool_seconds = Distributions("tool_seconds", "Calls that models asked for.", ("tool", "outcome"))
        self.request_seconds = Distributions("mcp_request_seconds", "Calls of MCP servers.", ("origin", "outcome"))
        self.retrieval_seconds = Distributions("retrieval_seconds", "Searches of turns.", ("source",))
        self.batch_events = Distributions(
            "journal_batch_events", "Events of run logs that one transaction stored.", (), EVENTS
        )
        self.commit_seconds = Distributions(
            "journal_commit_seconds",
            "Transactions of run logs; durable ones with an fsync.",
            ("durable",),
            COMMIT_SECONDS,
        )
        self.cases = Counter("evaluation_cases", "Evaluation cases by their verdict.", ("domain", "tier", "verdict"))
        self.case_seconds = Distributions("evaluation_case_seconds", "How long evaluation cases took.", ("tier",))
        self.errors = Counter("errors", "Refusals and failures by code.", ("code",))

    @property
    def counters(self) -> tuple[Counter, ...]:
        return self.turns, self.delegates, self.tokens, self.cases, self.errors

    @property
    def distributions(self) -> tuple[Distributions, ...]:
        return (
            self.turn_seconds,
            self.first_seconds,
            self.step_seconds,
            self.step_first_seconds,
            self.tool_seconds,
            self.request_seconds,
            self.retrieval_seconds,
            self.case_seconds,
            self.batch_events,
            self.commit_seconds,
        )

    def note_commit(self, events: int, seconds: float, *, durable: bool) -> None:
        """See `agentic_rag.base.telemetry.Metrics.note_commit`."""
        self.batch_events.note(events)
        self.commit_seconds.note(seconds, "true" if durable else "false")

    def note_error(self, code: str) -> None:
        """See `agentic_rag.base.telemetry.Metrics.note_error`."""
        self.errors.add(1, code)

    def record(self, span: Span) -> None:
        """See `agentic_rag.base.telemetry.Metrics.record`."""
        name, domain, facts, seconds, outcome = span.name, span.domain_id, span.facts, span.seconds, span.outcome
        match span.kind:
            case WorkKind.TURN:
                self._record_turn(span)
            case WorkKind.STEP:
                self.step_seconds.note(seconds, name, outcome or "ok")
                if span.first_seconds is not None:
                    self.step_first_seconds.note(span.first_seconds, name)
                for kind in TOKEN_KINDS:
                    if amount := facts.get(kind):
                        self.tokens.add(float(amount), domain, name, kind)
            case WorkKind.TOOL:
                self.tool_seconds.note(seconds, _tool_label(span), outcome or "ok")
            case WorkKind.MCP:
                self.request_seconds.note(seconds, str(facts.get("origin")), outcome or "ok")
            case WorkKind.RETRIEVAL:
                self.retrieval_seconds.note(seconds, str(facts.get("source")))
            case WorkKind.EVALUATION:
                self.cases.add(1, domain, name, str(facts.get("verdict")))
                self.case_seconds.note(seconds, name)

    def _record_turn(self, span: Span) -> None:
        if span.facts.get("agent"):
            self.delegates.add(1, span.domain_id, span.outcome)
            return
        self.turns.add(1, span.domain_id, span.outcome)
        self.turn_seconds.note(span.seconds, span.domain_id)
        if span.first_seconds is not None:
            self.first_seconds.note(span.first_seconds, span.domain_id)
        if span.outcome.isupper():  # an error code; other outcomes are reasons to stop
            self.errors.add(1, span.outcome)


def _tool_label(span: Span) -> str:
    """Return the tool's name, unless a stranger or a model chose it."""
    origin = span.facts.get("origin")
    if not origin:
        return UNKNOWN
    return OF_USERS if origin == "user" else span.name


class OpenConnections(Protocol):
    """The connections that clients hold open."""

    @property
    def open_count(self) -> int:
        """Number of open sockets and event streams."""
        ...


class Exposition:
    """Writes the metrics of one process. ``counts`` is None if metrics are off."""

    def __init__(
        self, counts: Counts | None, health: Health, budgets: Budgets, runtime: Runtime, connections: OpenConnections
    ) -> None:
        self._counts = counts
        self._health = health
        self._budgets = budgets
        self._runtime = runtime
        self._connections = connections

    async def text(self) -> bytes:
        """Return the current metrics.

        Raises:
            NotFound: metrics are off.
            StorageError: the budgets cannot be read.
        """
        if self._counts is None:
            raise NotFound("metrics", "AGENTIC_RAG_METRICS=off")
        report = await self._health.report(LOCAL)
        standings = await self._budgets.list_of_domains(MOST)
        readers, connections = self._runtime.reader_count, self._connections.open_count
        present = _Collector(self._counts, report, standings, readers, connections)
        return await anyio.to_thread.run_sync(present.text)


class _Collector:
    """The metrics of one moment; a collector for the Prometheus library."""

    def __init__(
        self, counts: Counts, report: HealthReport, budgets: Sequence[BudgetState], readers: int, connections: int
    ) -> None:
        self._counts = counts
        self._report = report
        self._budgets = budgets
        self._readers = readers
        self._connections = connections

    def text(self) -> bytes:
        # The library is imported at the first scrape, here and below: most servers are never scraped.
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> "Iterator[Metric]":
        """Yield all metrics. The library requires this name."""
        yield from self._collect_counts()
        yield from self._collect_state()

    def _collect_counts(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        for counter in self._counts.counters:
            family = CounterMetricFamily(PREFIX + counter.name, counter.doc, labels=counter.labels)
            for labels, value in list(counter.values.items()):
                family.add_metric(labels, value)
            yield family
        for series in self._counts.distributions:
            histogram = HistogramMetricFamily(PREFIX + series.name, series.doc, labels=series.labels)
            for labels, distribution in list(series.values.items()):
                total, buckets = 0, []
                for bound, count in zip((*map(str, series.bounds), "+Inf"), list(distribution.counts), strict=True):
                    total += count
                    buckets.append((bound, total))
                histogram.add_metric(labels, buckets, distribution.total)
            yield histogram

    def _collect_state(self) -> "Iterator[Metric]":
        from prometheus_client.core import InfoMetricFamily

        report, queue = self._report, self._report.queue
        yield InfoMetricFamily(f"{PREFIX}server", "The server.", value={"version": __version__})
        if queue is not None:
            yield _gauge("turns_running", "Turns that run in this process.", queue.running)
            yield _gauge("documents_waiting", "Documents that are not indexed yet.", queue.documents)
            if queue.waiting is not None:
                yield _gauge("turns_queued", "Turns that wait behind others.", queue.waiting)
        yield _gauge("subscribers", "Readers that follow turns.", self._readers)
        yield _gauge("connections", "Sockets and event streams that clients hold open.", self._connections)
        if report.disk.free is not None:
            yield _gauge("disk_free_bytes", "Free bytes of the data folder's disk.", report.disk.free)
        if report.backup is not None and report.backup.age_seconds is not None:
            yield _gauge("backup_age_seconds", "Age of the newest backup.", report.backup.age_seconds)
        parts = {
            "model": report.model.state,
            "embedder": report.embedder.state,
            "index": report.index.state,
            "store": report.store.state,
            "disk": report.disk.state,
        }
        states: dict[tuple[str, ...], float] = {(name,): list(PartState).index(state) for name, state in parts.items()}
        yield _gauges("part_state", "How a part is: 0 ready, 1 degraded, 2 down.", ("part",), states)
        servers: dict[tuple[str, ...], float] = dict(Tally((server.mode,) for server in report.servers))
        yield _gauges("mcp_servers", "MCP servers by the state of their connection.", ("state",), servers)
        used: dict[tuple[str, ...], float] = {
            (budget_state.subject, budget_state.budget.unit.value, budget_state.budget.period.value): _share(
                budget_state
            )
            for budget_state in self._budgets
        }
        labels = ("domain", "unit", "period")
        yield _gauges("budget_used_ratio", "Spent and reserved of domains' budgets; 1: all.", labels, used)


def _share(state: BudgetState) -> float:
    bound = Decimal(state.budget.hard or state.budget.soft or 0)
    used = state.standing.used if state.standing is not None else Decimal(0)
    return float(used / bound) if bound else float(used > 0)


def _gauge(name: str, doc: str, value: float) -> "Metric":
    return _gauges(name, doc, (), {(): value})


def _gauges(name: str, doc: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]) -> "Metric":
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(PREFIX + name, doc, labels=labels)
    for place, value in values.items():
        family.add_metric(place, value)
    return family
