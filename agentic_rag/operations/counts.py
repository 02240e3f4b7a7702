"""Metrics of this process: durations, tokens, outcomes and errors, with few distinct labels.

No label is an id of a user or a conversation. A series with more than `MOST` label sets counts further ones as
``other``. The output format is `agentic_rag.operations.exposition`'s concern.
"""

import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from agentic_rag.base.telemetry import Content, Fact, Kind, Span

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
    """Implements `Observer`: records every span when it ends."""

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

    def begin(self, kind: Kind, name: str, *, traceparent: str = "", **facts: Fact) -> Span:
        """See `Observer.begin`."""
        return _MeasuredSpan(self, kind, name, str(facts.get("domain_id") or ""), facts)

    def note_commit(self, events: int, seconds: float, *, durable: bool) -> None:
        """See `Observer.note_commit`."""
        self.batch_events.note(events)
        self.commit_seconds.note(seconds, "true" if durable else "false")

    def note_error(self, code: str) -> None:
        """See `Observer.note_error`."""
        self.errors.add(1, code)


class _MeasuredSpan:
    """Implements `Span`."""

    __slots__ = ("_around", "_began", "_counts", "_domain", "_facts", "_first", "_kind", "_name")

    traceparent = ""
    trace_id = ""
    wants_content = False

    def __init__(
        self,
        counts: Counts,
        kind: Kind,
        name: str,
        domain: str,
        facts: dict[str, Fact],
        around: "_MeasuredSpan | None" = None,
    ) -> None:
        self._counts = counts
        self._kind = kind
        self._name = name
        self._domain = domain
        self._facts = facts
        self._around = around
        self._began = time.monotonic()
        self._first = 0.0

    def begin(self, kind: Kind, name: str, **facts: Fact) -> "_MeasuredSpan":
        return _MeasuredSpan(self._counts, kind, name, self._domain, facts, self)

    def note(self, **facts: Fact) -> None:
        self._facts.update(facts)

    def note_first(self) -> None:
        if not self._first:
            self._first = time.monotonic()
            if self._kind is Kind.STEP and self._around is not None:
                self._around.note_first()

    def say(self, what: Content, value: object) -> None:
        pass

    def end(self, outcome: str = "") -> None:
        counts, facts = self._counts, self._facts
        seconds = time.monotonic() - self._began
        match self._kind:
            case Kind.TURN:
                self._end_turn(outcome, seconds)
            case Kind.STEP:
                counts.step_seconds.note(seconds, self._name, outcome or "ok")
                if self._first:
                    counts.step_first_seconds.note(self._first - self._began, self._name)
                for kind in TOKEN_KINDS:
                    if amount := facts.get(kind):
                        counts.tokens.add(float(amount), self._domain, self._name, kind)
            case Kind.TOOL:
                counts.tool_seconds.note(seconds, self._tool_label(), outcome or "ok")
            case Kind.MCP:
                counts.request_seconds.note(seconds, str(facts.get("origin")), outcome or "ok")
            case Kind.RETRIEVAL:
                counts.retrieval_seconds.note(seconds, str(facts.get("source")))
            case Kind.EVALUATION:
                counts.cases.add(1, self._domain, self._name, str(facts.get("verdict")))
                counts.case_seconds.note(seconds, self._name)

    def _tool_label(self) -> str:
        origin = self._facts.get("origin")
        if not origin:
            return UNKNOWN
        return OF_USERS if origin == "user" else self._name

    def _end_turn(self, outcome: str, seconds: float) -> None:
        counts = self._counts
        if self._facts.get("agent"):
            counts.delegates.add(1, self._domain, outcome)
            return
        counts.turns.add(1, self._domain, outcome)
        counts.turn_seconds.note(seconds, self._domain)
        if self._first:
            counts.first_seconds.note(self._first - self._began, self._domain)
        if outcome.isupper():  # an error code; other outcomes are reasons to stop
            counts.errors.add(1, outcome)
