"""What the engine tells of its work to whoever measures it: spans of turns, calls and requests, and a few counts.

Owns the two protocols, the one that listens to nothing, and where the running span and a client's trace are found: in
the context of the task, beside the call, as a request's id is. Knows neither metrics nor traces; what is told here must
not wait, must not fail, and is never asked for per delta.
"""

import re
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from enum import StrEnum
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

Fact = str | int | float | bool | None
"""One thing known of a span. The names in use stand at `Span.note`."""

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""W3C Trace Context, version 00."""


class Kind(StrEnum):
    """What a span is of."""

    TURN = "turn"
    """A turn of a user, or a delegate's."""
    STEP = "step"
    """One call of a model."""
    TOOL = "tool"
    """A call that a model asked for."""
    MCP = "mcp"
    """One request to an MCP server."""
    RETRIEVAL = "retrieval"
    """A search of documents or memories, as its turn sees it."""


class Content(StrEnum):
    """What was said inside a span: told only to who wants content."""

    SYSTEM = "system"
    REQUEST = "request"
    ANSWER = "answer"
    ARGUMENTS = "arguments"
    RESULT = "result"
    QUERY = "query"


class Span(Protocol):
    """Something that takes time. It is ended once; what is told after that is lost."""

    @property
    def traceparent(self) -> str:
        """What another process continues the trace with (W3C); empty: there is none."""
        ...

    @property
    def trace_id(self) -> str:
        """The trace's id in hexadecimal; empty: there is none."""
        ...

    @property
    def wants_content(self) -> bool:
        """Whether the operator records what is said."""
        ...

    def begin(self, kind: Kind, name: str, **facts: Fact) -> "Span":
        """Begin a span inside of this one; in a turn's, what a step asked for belongs to that step."""
        ...

    def note(self, **facts: Fact) -> None:
        """Tell what is known by now.

        Of a turn: ``turn_id``, ``conversation_id``, ``domain_id``, ``delegate``. Of a step: ``provider``,
        ``max_tokens``, ``temperature``, ``answered_by``, ``stop_reason``, ``input``, ``cache_read``, ``cache_write``,
        ``output``, and where it is inside of no turn ``domain_id``. Of a tool: ``call_id``, ``server``, ``origin``. Of
        a request: ``server``, ``origin``, ``protocol``. Of a retrieval: ``source``, ``hits``.
        """
        ...

    def note_first(self) -> None:
        """Tell that the first of an answer is there; the first time counts, also for the spans around."""
        ...

    def say(self, what: Content, value: object) -> None:
        """Tell what was said, as JSON; for who `wants_content`."""
        ...

    def end(self, outcome: str = "") -> None:
        """End it. ``outcome``: how a turn or a tool's call ended, or the code of what failed; empty: well."""
        ...


class Observer(Protocol):
    """Who measures."""

    def begin(self, kind: Kind, name: str, *, traceparent: str = "", **facts: Fact) -> Span:
        """Begin a span that is inside of none here. ``traceparent``: of the client's, empty: it has none."""
        ...

    def note_commit(self, events: int, seconds: float, *, durable: bool) -> None:
        """Tell that so many events of run logs were committed, and how long that took; ``durable``: with an fsync."""
        ...

    def note_error(self, code: str) -> None:
        """Tell that a request was refused or failed."""
        ...


class _NoSpan:
    """Implements `Span`, and costs what an empty call does."""

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
    """Implements `Observer`."""

    def begin(self, kind: Kind, name: str, *, traceparent: str = "", **facts: Fact) -> Span:
        return NO_SPAN

    def note_commit(self, events: int, seconds: float, *, durable: bool) -> None:
        pass

    def note_error(self, code: str) -> None:
        pass


NOBODY: Final[Observer] = _NoopTelemetry()
"""Where nothing is measured."""

_running: ContextVar[Span] = ContextVar("running_span", default=NO_SPAN)
_domain: ContextVar[str] = ContextVar("working_domain", default="")
_given: ContextVar[str] = ContextVar("given_traceparent", default="")


def running_span() -> Span:
    """Return the span that the task works in."""
    return _running.get()


class _Within:
    """A block in which a variable of the context has a value: what `contextmanager` makes, in fewer calls."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable: ContextVar[Any] = variable
        self._value = value

    def __enter__(self) -> None:
        self._token = self._variable.set(self._value)

    def __exit__(self, kind: object, exc: object, trace: object) -> None:
        self._variable.reset(self._token)


def working_in(span: Span) -> AbstractContextManager[None]:
    """Work in a span inside of the block, and in the tasks that are started there."""
    return _Within(_running, span)


def working_domain() -> str:
    """Return the domain for which something is done outside of a turn; empty: none is known."""
    return _domain.get()


def working_for(domain_id: str) -> AbstractContextManager[None]:
    """Work for a domain inside of the block: a span that begins there is its, though it is inside of no turn."""
    return _Within(_domain, domain_id)


def given_traceparent() -> str:
    """Return the client's place in its trace, empty: it has told none."""
    return _given.get()


_UNCHANGED: Final = nullcontext()


def continuing(traceparent: str | None) -> AbstractContextManager[None]:
    """Let what begins inside of the block be part of a client's trace; what is no traceparent changes nothing."""
    if not traceparent or _TRACEPARENT.fullmatch(traceparent) is None:
        return _UNCHANGED
    return _Within(_given, traceparent)
