"""Telemetry interface of the engine: spans of turns, calls and requests, and a few counts.

Owns the two protocols, their no-op implementation, and the context variables for the running span and a client's trace.
They belong to the task's context, like a request's id. Knows neither metrics nor traces. Telemetry calls must not wait,
must not fail, and are never made per delta.
"""

import re
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from enum import StrEnum
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

Fact = str | int | float | bool | None
"""A fact about a span. `Span.note` lists the names in use."""

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""W3C Trace Context, version 00."""


class Kind(StrEnum):
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


class Content(StrEnum):
    """Kinds of content inside a span, recorded only if the observer wants content."""

    SYSTEM = "system"
    REQUEST = "request"
    ANSWER = "answer"
    ARGUMENTS = "arguments"
    RESULT = "result"
    QUERY = "query"


class Span(Protocol):
    """Work that takes time. A span is ended once; facts that are noted later are lost."""

    @property
    def traceparent(self) -> str:
        """The W3C value with which another process continues the trace; empty if there is no trace."""
        ...

    @property
    def trace_id(self) -> str:
        """The trace's id in hexadecimal; empty if there is no trace."""
        ...

    @property
    def wants_content(self) -> bool:
        """Whether the operator records content."""
        ...

    def begin(self, kind: Kind, name: str, **facts: Fact) -> "Span":
        """Begin a span inside this one; inside a turn, the calls that a step asked for belong to that step."""
        ...

    def note(self, **facts: Fact) -> None:
        """Record the facts that are known so far.

        For a turn: ``turn_id``, ``conversation_id``, ``domain_id``, ``delegate``. For a step: ``provider``,
        ``max_tokens``, ``temperature``, ``answered_by``, ``stop_reason``, ``input``, ``cache_read``, ``cache_write``,
        ``output``, and outside a turn ``domain_id``. For a tool: ``call_id``, ``server``, ``origin``. For a request:
        ``server``, ``origin``, ``protocol``. For a retrieval: ``source``, ``hits``. For an evaluation: ``case``,
        ``run``, ``verdict``, ``score``, ``reason``.
        """
        ...

    def note_first(self) -> None:
        """Record the arrival of an answer's first part; only the first call counts, also for the enclosing spans."""
        ...

    def say(self, what: Content, value: object) -> None:
        """Record content as JSON; only if `wants_content`."""
        ...

    def end(self, outcome: str = "") -> None:
        """End the span. ``outcome``: the result of a turn or tool call, or the code of a failure; empty: success."""
        ...


class Observer(Protocol):
    """Receives measurements."""

    def begin(self, kind: Kind, name: str, *, traceparent: str = "", **facts: Fact) -> Span:
        """Begin a span without a parent in this process. ``traceparent``: the client's, empty if it has none."""
        ...

    def note_commit(self, events: int, seconds: float, *, durable: bool) -> None:
        """Record the commit of run log events: their number, and the duration; ``durable``: with an fsync."""
        ...

    def note_error(self, code: str) -> None:
        """Record that a request was refused or failed."""
        ...


class _NoSpan:
    """A no-op `Span` that costs one empty call."""

    traceparent = ""
    trace_id = ""
    wants_content = False

    def begin(self, kind: Kind, name: str, **facts: Fact) -> Span:
        return self

    def note(self, **facts: Fact) -> None:
        pass

    def note_first(self) -> None:
        pass

    def say(self, what: Content, value: object) -> None:
        pass

    def end(self, outcome: str = "") -> None:
        pass


NO_SPAN: Final[Span] = _NoSpan()


class _NoopTelemetry:
    """A no-op `Observer`."""

    def begin(self, kind: Kind, name: str, *, traceparent: str = "", **facts: Fact) -> Span:
        return NO_SPAN

    def note_commit(self, events: int, seconds: float, *, durable: bool) -> None:
        pass

    def note_error(self, code: str) -> None:
        pass


NOBODY: Final[Observer] = _NoopTelemetry()
"""The observer that measures nothing."""

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
