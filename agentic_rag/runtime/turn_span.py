"""The span of one agent's turn: its parent span, its attributes, and the ids in its log lines.

Knows no agent.
"""

from agentic_rag.base.ids import TurnId
from agentic_rag.base.telemetry import Fact, Kind, Observer, Span, working_in
from agentic_rag.base.terminal import log_turn
from agentic_rag.runtime.log.child_log import ChildLog
from agentic_rag.runtime.log.runlog import RunLog
from agentic_rag.runtime.tool_calls import ToolCalls
from agentic_rag.store.sessions import SessionLabels


class ObservedTurn:
    """Context manager that begins the span of a turn. The caller ends the span."""

    def __init__(
        self,
        observer: Observer,
        labels: SessionLabels,
        turn_id: TurnId,
        role: str,
        log: RunLog | ChildLog,
        above: ToolCalls | None,
    ) -> None:
        """``role``: the definition's role, which names the span of the main agent.

        ``above``: the calls of the parent agent.
        """
        name = labels.agent.rpartition("/")[2] or role or "assistant"
        facts: dict[str, Fact] = {
            "turn_id": turn_id,
            "conversation_id": labels.conversation_id,
            "domain_id": labels.domain_id,
            "agent": labels.agent,
        }
        if above is not None and isinstance(log, ChildLog):
            self._span = above.span_of(log.call_id).begin(Kind.TURN, name, **facts)
        else:
            traceparent = log.traceparent if isinstance(log, RunLog) else ""
            self._span = observer.begin(Kind.TURN, name, traceparent=traceparent, **facts)
        self._named = log_turn(turn_id, self._span.trace_id)
        self._working = working_in(self._span)

    def __enter__(self) -> Span:
        self._named.__enter__()
        self._working.__enter__()
        return self._span

    def __exit__(self, kind: object, exc: object, trace: object) -> None:
        self._working.__exit__(None, None, None)
        self._named.__exit__(None, None, None)
