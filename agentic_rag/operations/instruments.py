"""Choose what this process measures: metrics, traces, both or nothing, as the settings say."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agentic_rag.base.redaction import Redactor
from agentic_rag.base.settings import Settings
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.base.telemetry import Observer
from agentic_rag.operations.counts import Counts
from agentic_rag.operations.observers import join


@dataclass(frozen=True, slots=True)
class Measuring:
    """``observer`` receives the engine's spans. ``counts`` is None if metrics are off."""

    observer: Observer
    counts: Counts | None


@asynccontextmanager
async def open_measuring(settings: Settings, redactor: Redactor) -> AsyncIterator[Measuring]:
    """Yield the configured observers. On exit, send the waiting spans.

    Raises:
        BadConfiguration: traces are configured, but the ``otel`` extra is not installed.
    """
    counts = Counts() if settings.metrics == "on" else None
    own: list[Observer] = [] if counts is None else [counts]
    if not settings.otlp_endpoint:
        yield Measuring(join(own), counts)
        return
    try:
        from agentic_rag.operations.tracing import Tracing
    except ImportError as exc:
        problem = f"traces need the extra otel: pip install 'agentic-rag[otel]' ({exc})"
        raise BadConfiguration("AGENTIC_RAG_OTLP_ENDPOINT", problem) from exc
    tracing = Tracing(settings.otlp_endpoint, redactor, content=settings.trace_content)
    try:
        yield Measuring(join([*own, tracing]), counts)
    finally:
        await tracing.aclose()
