"""Combine several observers into one.

A combined span holds one span of each observer. For values such as ``trace_id``, the first span that has one answers.
"""

from collections.abc import Sequence

from agentic_rag.base.telemetry import NOBODY, Content, Fact, Kind, Observer, Span


def join(observers: Sequence[Observer]) -> Observer:
    """Return one observer that calls all of them, or `NOBODY` if there are none."""
    if not observers:
        return NOBODY
    return observers[0] if len(observers) == 1 else _CombinedTelemetry(tuple(observers))


class _CombinedTelemetry:
    """Implements `Observer`."""

    def __init__(self, observers: tuple[Observer, ...]) -> None:
        self._observers = observers

    def begin(self, kind: Kind, name: str, *, traceparent: str = "", **facts: Fact) -> Span:
        return _SpanOfEach(
            tuple(observer.begin(kind, name, traceparent=traceparent, **facts) for observer in self._observers)
        )

    def note_commit(self, events: int, seconds: float, *, durable: bool) -> None:
        for observer in self._observers:
            observer.note_commit(events, seconds, durable=durable)

    def note_error(self, code: str) -> None:
        for observer in self._observers:
            observer.note_error(code)


class _SpanOfEach:
    """Implements `Span`."""

    __slots__ = ("_spans",)

    def __init__(self, spans: tuple[Span, ...]) -> None:
        self._spans = spans

    @property
    def traceparent(self) -> str:
        return next((span.traceparent for span in self._spans if span.traceparent), "")

    @property
    def trace_id(self) -> str:
        return next((span.trace_id for span in self._spans if span.trace_id), "")

    @property
    def wants_content(self) -> bool:
        return any(span.wants_content for span in self._spans)

    def begin(self, kind: Kind, name: str, **facts: Fact) -> Span:
        return _SpanOfEach(tuple(span.begin(kind, name, **facts) for span in self._spans))

    def note(self, **facts: Fact) -> None:
        for span in self._spans:
            span.note(**facts)

    def note_first(self) -> None:
        for span in self._spans:
            span.note_first()

    def say(self, what: Content, value: object) -> None:
        for span in self._spans:
            span.say(what, value)

    def end(self, outcome: str = "") -> None:
        for span in self._spans:
            span.end(outcome)
