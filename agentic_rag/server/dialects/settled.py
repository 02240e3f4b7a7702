"""The events of a turn without retracted content, for readers that cannot retract.

Works on whole and on partial logs. Pure.
"""

from collections.abc import Sequence

from agentic_rag.base.events import AgentEvent

_TAKEN_BACK = frozenset({"text", "thinking", "tool_call_started", "tool_arguments", "source_reference"})


def settle(events: Sequence[AgentEvent]) -> list[AgentEvent]:
    """Return the events without ``step_reset`` and without the content that it retracts."""
    settled: list[AgentEvent] = []
    starts: dict[str, int] = {}  # start of each agent's current step in ``settled``
    for event in events:
        agent = str(event.fields().get("agent", "")) if event.type in _MARKS else ""
        if event.type == "step_reset":
            start = starts.get(agent, len(settled))
            settled[start:] = [earlier for earlier in settled[start:] if not _is_of(earlier, agent)]
            continue
        if event.type == "iteration_start":
            starts[agent] = len(settled)
        settled.append(event)
    return settled


_MARKS = frozenset({"iteration_start", "step_reset"})


def _is_of(event: AgentEvent, agent: str) -> bool:
    """Return whether an event belongs to the agent and is of a retractable kind."""
    return event.type in _TAKEN_BACK and event.fields().get("agent", "") == agent
