"""A turn's events as they were left standing: without what its steps took back.

Owns that reading of a log, whole or as far as it goes. For readers that begin at the start and cannot take anything
back. Pure.
"""

from collections.abc import Sequence

from agentic_rag.events import AgentEvent

_TAKEN_BACK = frozenset({"text", "thinking", "tool_call_started", "tool_arguments", "source_reference"})


def settle(events: Sequence[AgentEvent]) -> list[AgentEvent]:
    """Return the events without those that a ``step_reset`` takes back, and without it."""
    kept: list[AgentEvent] = []
    begun: dict[str, int] = {}  # by agent: where its step begins among those that are kept
    for event in events:
        agent = str(event.fields().get("agent", "")) if event.type in _MARKS else ""
        if event.type == "step_reset":
            start = begun.get(agent, len(kept))
            kept[start:] = [each for each in kept[start:] if not _is_of(each, agent)]
            continue
        if event.type == "iteration_start":
            begun[agent] = len(kept)
        kept.append(event)
    return kept


_MARKS = frozenset({"iteration_start", "step_reset"})


def _is_of(event: AgentEvent, agent: str) -> bool:
    """Whether an event is of a kind that is taken back, and the agent's."""
    return event.type in _TAKEN_BACK and event.fields().get("agent", "") == agent
