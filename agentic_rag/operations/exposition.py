"""The metrics at ``/metrics`` in Prometheus format: counters and the current health of the server.

Defines names and units. The library that writes the format is imported on the first request.
"""

from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Final, Protocol

import anyio.to_thread

from agentic_rag import __version__
from agentic_rag.access.users import LOCAL
from agentic_rag.base.errors import NotFound
from agentic_rag.base.health_signals import PartState
from agentic_rag.operations.budgets import Budgets, BudgetState
from agentic_rag.operations.counts import MOST, Counts
from agentic_rag.operations.health import Health, HealthReport
from agentic_rag.runtime.runtime import Runtime

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX: Final = "agentic_rag_"


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
