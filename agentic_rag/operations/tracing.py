"""Traces of turns for OpenTelemetry, with its conventions for GenAI and MCP, sent by OTLP over HTTP.

Defines the names and attributes of spans and the recorded content. A bounded queue with its own thread feeds the
collector, so a slow or missing collector costs spans but delays no turn. If the client sent no trace context, the trace
id derives from the turn id: a turn interrupted by a restart or a wait stays one trace. OpenTelemetry is the extra
``otel``; only `agentic_rag.app.application` imports this module, and only if traces are configured.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import anyio
import anyio.to_thread
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from agentic_rag import __version__
from agentic_rag.base.json_form import Json, to_text
from agentic_rag.base.messages import Block, without_private
from agentic_rag.base.redaction import Redactor
from agentic_rag.base.telemetry import Fact, Span, SpanContent, TraceSpan, WorkKind

QUEUE: Final = 4_096
"""Maximum number of spans that wait for the collector; further spans are dropped."""
BATCH: Final = 512
"""Number of spans in one request to the collector."""
DELAY_SECONDS: Final = 1.0
EXPORT_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 5.0
"""How long the end of the process waits for the last spans to be sent."""
MAX_CONTENT: Final = 65_536
"""Maximum characters of one content attribute."""

_ATTRIBUTES: Final = {
    "conversation_id": "gen_ai.conversation.id",
    "turn_id": "agentic_rag.turn.id",
    "domain_id": "agentic_rag.domain.id",
    "agent": "agentic_rag.delegate",
    "provider": "gen_ai.provider.name",
    "max_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "answered_by": "gen_ai.response.model",
    "cache_read": "gen_ai.usage.cache_read.input_tokens",
    "cache_write": "gen_ai.usage.cache_creation.input_tokens",
    "output": "gen_ai.usage.output_tokens",
    "call_id": "gen_ai.tool.call.id",
    "server": "agentic_rag.mcp.server",
    "origin": "agentic_rag.mcp.origin",
    "protocol": "mcp.protocol.version",
    "source": "gen_ai.data_source.id",
    "top_k": "gen_ai.retrieval.top_k",
    "hits": "agentic_rag.retrieval.hits",
}
"""Attribute names of facts. The conventions have no name for the ``agentic_rag.`` ones."""
_OPERATIONS: Final = {
    WorkKind.TURN: "invoke_agent",
    WorkKind.STEP: "chat",
    WorkKind.TOOL: "execute_tool",
    WorkKind.MCP: "tools/call",
    WorkKind.RETRIEVAL: "retrieval",
    WorkKind.EVALUATION: "evaluate",
}
_CONTENT: Final = {
    SpanContent.SYSTEM: "gen_ai.system_instructions",
    SpanContent.REQUEST: "gen_ai.input.messages",
    SpanContent.ANSWER: "gen_ai.output.messages",
    SpanContent.ARGUMENTS: "gen_ai.tool.call.arguments",
    SpanContent.RESULT: "gen_ai.tool.call.result",
    SpanContent.QUERY: "gen_ai.retrieval.query.text",
}


class _Ids(RandomIdGenerator):
    """Generates random ids, except for a requested trace id."""

    wanted: int | None = None

    def generate_trace_id(self) -> int:
        trace_id, self.wanted = self.wanted, None
        return super().generate_trace_id() if trace_id is None else trace_id


class Tracing:
    """Implements `agentic_rag.base.telemetry.Tracer`. Call `aclose` at the end.

    ``content`` records messages and tool data, without the secrets that ``redactor`` knows.
    """

    def __init__(self, endpoint: str, redactor: Redactor, *, content: bool) -> None:
        self._ids = _Ids()
        resource = Resource.create({"service.name": "agentic-rag", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        waiting = BatchSpanProcessor(
            OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", timeout=EXPORT_SECONDS),
            max_queue_size=QUEUE,
            schedule_delay_millis=DELAY_SECONDS * 1000,
            max_export_batch_size=BATCH,
        )
        self._provider.add_span_processor(waiting)
        self._content = content
        self._redactor = redactor
        self._tracer = self._provider.get_tracer("agentic_rag", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, span: Span, parent: TraceSpan | None, traceparent: str) -> TraceSpan:
        """See `agentic_rag.base.telemetry.Tracer.begin`."""
        if isinstance(parent, _TracedSpan):
            context = set_span_in_context(parent.span, Context())
        else:
            turn_id = span.facts.get("turn_id")
            self._ids.wanted = None if traceparent or not turn_id else _trace_of(str(turn_id))
            context = self._propagator.extract({"traceparent": traceparent}, Context()) if traceparent else Context()
        started = self._tracer.start_span(
            f"{_OPERATIONS[span.kind]} {span.name}",
            context=context,
            kind=SpanKind.CLIENT if span.kind in (WorkKind.STEP, WorkKind.MCP) else SpanKind.INTERNAL,
            attributes={**_attributes_of(span.kind, span.name), **dict(_shown_facts(span.facts))},
        )
        # without a domain, the secrets to redact are unknown
        redact = self._redactor.of(span.domain_id).json if self._content and span.domain_id else None
        return _TracedSpan(started, redact)

    async def aclose(self) -> None:
        """Send the waiting spans, for at most `CLOSE_SECONDS`."""
        with anyio.move_on_after(CLOSE_SECONDS):
            await anyio.to_thread.run_sync(self._provider.shutdown, abandon_on_cancel=True)


class _TracedSpan:
    """Implements `TraceSpan`. ``redact`` removes secrets from content; None if no content is recorded."""

    def __init__(self, span: OtelSpan, redact: Callable[[object], object] | None) -> None:
        self.span = span
        self._redact = redact if span.is_recording() else None
        self._started = time.time_ns()

    @property
    def traceparent(self) -> str:
        context = self.span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 1:02x}"

    @property
    def trace_id(self) -> str:
        return f"{self.span.get_span_context().trace_id:032x}"

    @property
    def wants_content(self) -> bool:
        return self._redact is not None

    def say(self, what: SpanContent, value: object) -> None:
        if self._redact is not None:
            content = self._redact(_show(what, value))
            text = content if isinstance(content, str) else to_text(content)
            self.span.set_attribute(_CONTENT[what], text[:MAX_CONTENT])

    def end(self, span: Span) -> None:
        facts, outcome = span.facts, span.outcome
        self.span.set_attributes(dict(_shown_facts(facts)))
        failed = bool(outcome)
        if span.kind is WorkKind.TURN:
            self.span.set_attribute("agentic_rag.turn.end", outcome)
            failed = outcome.isupper()  # an error code; other outcomes are reasons to stop
        elif span.kind is WorkKind.STEP and span.first_seconds is not None:
            self.span.add_event("gen_ai.first_chunk", timestamp=self._started + int(span.first_seconds * 1e9))
        elif span.kind is WorkKind.EVALUATION and "verdict" in facts:
            self.span.add_event("gen_ai.evaluation.result", _shown_verdict(facts))
        if failed:
            self.span.set_attribute("error.type", outcome)
            self.span.set_status(Status(StatusCode.ERROR))
        self.span.end()


def _shown_facts(facts: dict[str, Fact]) -> Iterator[tuple[str, AttributeValue]]:
    for name, value in facts.items():
        if value is None or value == "":
            continue
        if name == "input":  # the conventions count all tokens that were sent
            sent = [facts.get(field) for field in ("input", "cache_read", "cache_write")]
            yield "gen_ai.usage.input_tokens", sum(int(tokens or 0) for tokens in sent)
        elif name == "stop_reason":
            yield "gen_ai.response.finish_reasons", [str(value)]
        elif name in _ATTRIBUTES:
            yield _ATTRIBUTES[name], value


def _shown_verdict(facts: dict[str, Fact]) -> dict[str, AttributeValue]:
    """Return the attributes of the event that the conventions define for an evaluation's result."""
    return {
        "gen_ai.evaluation.name": str(facts.get("case") or ""),
        "gen_ai.evaluation.score.value": float(facts.get("score") or 0),
        "gen_ai.evaluation.score.label": str(facts["verdict"]),
        "gen_ai.evaluation.explanation": str(facts.get("reason") or "")[:MAX_CONTENT],
        "agentic_rag.evaluation.run": str(facts.get("run") or ""),
    }


def _trace_of(turn_id: str) -> int:
    return int.from_bytes(hashlib.sha256(turn_id.encode()).digest()[:16], "big") or 1


def _attributes_of(kind: WorkKind, name: str) -> dict[str, str]:
    match kind:
        case WorkKind.TURN:
            own_attributes = {"gen_ai.agent.name": name}
        case WorkKind.STEP:
            own_attributes = {"gen_ai.request.model": name}
        case WorkKind.TOOL:
            own_attributes = {"gen_ai.tool.name": name, "gen_ai.tool.type": "function"}
        case WorkKind.MCP:
            own_attributes = {"gen_ai.tool.name": name, "mcp.method.name": "tools/call"}
        case WorkKind.RETRIEVAL | WorkKind.EVALUATION:
            own_attributes = {}
    operation = "execute_tool" if kind is WorkKind.MCP else _OPERATIONS[kind]
    return {"gen_ai.operation.name": operation, **own_attributes}


def _show(what: SpanContent, value: Any) -> object:
    """Return the content in the form that the conventions define."""
    match what:
        case SpanContent.SYSTEM:
            return _parts(value)
        case SpanContent.REQUEST:
            return [{"role": message["role"], "parts": _parts(message["content"])} for message in value]
        case SpanContent.ANSWER:
            return [{"role": "assistant", "parts": _parts(value)}]
        case SpanContent.RESULT:
            return _parts(value)
        case _:
            return value


def _parts(blocks: list[Block]) -> list[Json]:
    return [_part(block) for block in without_private(blocks)]


def _part(block: Block) -> Json:
    match block["type"]:
        case "text":
            return {"type": "text", "content": block["text"]}
        case "thinking":
            return {"type": "reasoning", "content": block["thinking"]}
        case "tool_use":
            return {"type": "tool_call", "id": block["id"], "name": block["name"], "arguments": block["input"]}
        case "tool_result":
            return {"type": "tool_call_response", "id": block["tool_use_id"], "response": _parts(block["content"])}
        case "image":
            return {"type": "blob", "modality": "image"}
        case _:
            return dict(block)
