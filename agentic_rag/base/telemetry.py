"""Telemetry interface of the engine: spans of turns, calls and requests, and a few counts.

Owns the span, and the context variables for the running span and a client's trace. They belong to the task's context,
like a request's id. A span collects facts, and gives them at its end to the process's `Metrics` and to its trace.
Telemetry calls must not wait, must not fail, and are never made per delta. The decision record on telemetry in
``docs/decisions`` says why the engine does not call OpenTelemetry here.
"""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from enum import StrEnum
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

Fact = str | int | float | bool | None
"""A fact about a span. `Span` lists the names in use."""

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""W3C Trace Context, version 00."""


class WorkKind(StrEnum):
    """The kind of work that a span measures."""

    TURN = "turn"
    """A turn of a user or of a delegate."""
    STEP = "step"
    """One call of a model."""
    TOOL = "tool"
    """A call that a model asked for."""
    MCP = "mcp"
    """One request to an MCP server."""
    RETRIEVAL = "retrieval"
    """A search of documents or memories, seen from its turn."""
    EVALUATION = "evaluation"
    """One case of an evaluation run."""


class SpanContent(StrEnum):
    """Kinds of content inside a span, recorded only if the observer wants content."""

    SYSTEM = "system"
    REQUEST = "request"
    ANSWER = "answer"
    ARGUMENTS = "arguments"
    RESULT = "result"
    QUERY = "query"


class TraceSpan(Protocol):
    """The span of a trace, in the form of the tracing library."""

    @property
    def traceparent(self) -> str: ...

    @property
    def trace_id(self) -> str: ...

    @property
    def wants_content(self) -> bool: ...

    def say(self, what: SpanContent, value: object) -> None: ...

    def end(self, span: "Span") -> None:
        """End the span with all facts of ``span``."""
        ...


class Tracer(Protocol):
    """Begins the spans of traces."""

    def begin(self, span: "Span", parent: TraceSpan | None, traceparent: str) -> TraceSpan:
        """Begin a span inside ``parent``, or without one inside the client's ``traceparent``, or in a new trace."""
        ...


class Metrics(Protocol):
    """Counts measurements of this process."""

    def record(self, span: "Span") -> None:
        """Record a span that has just ended."""
        ...

    def note_commit(self, events: int, seconds: float, *, durable: bool) -> None:
        """Record the commit of run log events: their number, and the duration; ``durable``: with an fsync."""
        ...

    def note_error(self, code: str) -> None:
        """Record that a request was refused or failed."""
        ...


class Observer:
    """Begins spans, and passes measurements to the metrics and the tracer of this process, if it has them.

    ``clock`` returns seconds that never go back.
    """

    def __init__(
        self, clock: Callable[[], float], metrics: Metrics | None = None, tracer: Tracer | None = None
    ) -> None:
        self.clock = clock
        self.metrics = metrics
        self.tracer = tracer

    def begin(self, kind: WorkKind, name: str, *, traceparent: str = "", **facts: Fact) -> "Span":
        """Begin a span without a parent in this process. ``traceparent``: the client's, empty if it has none."""
        if self.metrics is None and self.tracer is None:
            return NO_SPAN  # nothing measures: no span is built for any turn
        return Span(self, kind, name, facts, str(facts.get("domain_id") or ""), traceparent=traceparent)

    def note_commit(self, events: int, seconds: float, *, durable: bool) -> None:
        """See `Metrics.note_commit`."""
        if self.metrics is not None:
            self.metrics.note_commit(events, seconds, durable=durable)

    def note_error(self, code: str) -> None:
        """See `Metrics.note_error`."""
        if self.metrics is not None:
            self.metrics.note_error(code)


class Span:
    """Work that takes time. A span is ended once; facts that are noted later are lost.

    Attributes:
        facts: the facts known so far. For a turn: ``turn_id``, ``conversation_id``, ``domain_id``, ``agent``. For a
            step: ``provider``, ``max_tokens``, ``temperature``, ``answered_by``, ``stop_reason``, ``input``,
            ``cache_read``, ``cache_write``, ``output``, and outside a turn ``domain_id``. For a tool: ``call_id``,
            ``server``, ``origin``. For a request: ``server``, ``origin``, ``protocol``. For a retrieval: ``source``,
            ``top_k``, ``hits``. For an evaluation: ``case``, ``run``, ``verdict``, ``score``, ``reason``.
        domain_id: the domain of the work; empty if unknown. Spans inside this one inherit it.
        seconds: duration, once the span has ended.
        first_seconds: time from the start to the answer's first part; None if there was none.
        outcome: the result of a turn or tool call, or the code of a failure; empty means success.
    """

    __slots__ = (
        "_began", "_last_step", "_observer", "_parent", "_trace",
        "domain_id", "facts", "first_seconds", "kind", "name", "outcome", "seconds",
    )  # fmt: skip

    def __init__(
        self,
        observer: Observer,
        kind: WorkKind,
        name: str,
        facts: dict[str, Fact],
        domain_id: str,
        *,
        parent: "Span | None" = None,
        traceparent: str = "",
    ) -> None:
        self._observer = observer
        self._parent = parent
        self._last_step: Span | None = None
        self.kind = kind
        self.name = name
        self.facts = facts
        self.domain_id = domain_id
        self.outcome = ""
        self.seconds = 0.0
        self.first_seconds: float | None = None
        self._began = observer.clock()
        tracer = observer.tracer
        above = parent._trace if parent is not None else None
        self._trace: TraceSpan | None = None if tracer is None else tracer.begin(self, above, traceparent)

    @property
    def traceparent(self) -> str:
        """The W3C value with which another process continues the trace; empty if there is no trace."""
        return self._trace.traceparent if self._trace is not None else ""

    @property
    def trace_id(self) -> str:
        """The trace's id in hexadecimal; empty if there is no trace."""
        return self._trace.trace_id if self._trace is not None else ""

    @property
    def wants_content(self) -> bool:
        """Whether the operator records content."""
        return self._trace is not None and self._trace.wants_content

    def begin(self, kind: WorkKind, name: str, **facts: Fact) -> "Span":
        """Begin a span inside this one; inside a turn, the calls that a step asked for belong to that step."""
        if self is NO_SPAN:
            return self
        parent = self._last_step if kind is WorkKind.TOOL and self._last_step is not None else self
        span = Span(self._observer, kind, name, facts, self.domain_id, parent=parent)
        if kind is WorkKind.STEP:
            self._last_step = span
        return span

    def note(self, **facts: Fact) -> None:
        """Add facts."""
        if self is not NO_SPAN:
            self.facts.update(facts)

    def note_first(self) -> None:
        """Record the arrival of an answer's first part; only the first call counts, also for the step's turn."""
        if self.first_seconds is None and self is not NO_SPAN:
            self.first_seconds = self._observer.clock() - self._began
            if self.kind is WorkKind.STEP and self._parent is not None:
                self._parent.note_first()

    def say(self, what: SpanContent, value: object) -> None:
        """Record content as JSON, if `wants_content`."""
        if self._trace is not None:
            self._trace.say(what, value)

    def end(self, outcome: str = "") -> None:
        """End the span."""
        if self is NO_SPAN:
            return
        self.seconds = self._observer.clock() - self._began
        self.outcome = outcome
        if self._observer.metrics is not None:
            self._observer.metrics.record(self)
        if self._trace is not None:
            self._trace.end(self)


NO_OBSERVER: Final = Observer(lambda: 0.0)
"""The observer that measures nothing."""
NO_SPAN: Final = Span(NO_OBSERVER, WorkKind.TURN, "", {}, "")
"""The span of work that is not measured. All its methods do nothing."""

_running: ContextVar[Span] = ContextVar("running_span", default=NO_SPAN)
_domain: ContextVar[str] = ContextVar("working_domain", default="")
_given: ContextVar[str] = ContextVar("given_traceparent", default="")


def running_span() -> Span:
    """Return the span that the task works in."""
    return _running.get()


class _Within:
    """A block in which a context variable has a value: like `contextmanager`, with fewer calls."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable: ContextVar[Any] = variable
        self._value = value

    def __enter__(self) -> None:
        self._token = self._variable.set(self._value)

    def __exit__(self, kind: object, exc: object, trace: object) -> None:
        self._variable.reset(self._token)


def working_in(span: Span) -> AbstractContextManager[None]:
    """Work in a span inside the block, and in the tasks that are started there."""
    return _Within(_running, span)


def working_domain() -> str:
    """Return the domain of work outside a turn; empty if none is known."""
    return _domain.get()


def working_for(domain_id: str) -> AbstractContextManager[None]:
    """Work for a domain inside the block: a span that begins there outside a turn belongs to the domain."""
    return _Within(_domain, domain_id)


def given_traceparent() -> str:
    """Return the client's traceparent, empty if it sent none."""
    return _given.get()


_UNCHANGED: Final = nullcontext()


def continuing(traceparent: str | None) -> AbstractContextManager[None]:
    """Make everything that begins inside the block part of a client's trace; an invalid traceparent changes nothing."""
    if not traceparent or _TRACEPARENT.fullmatch(traceparent) is None:
        return _UNCHANGED
    return _Within(_given, traceparent)
