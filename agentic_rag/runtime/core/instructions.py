"""What a turn asks its shell to do. Values only.

Owns their shapes; `turn` decides when, `agent` does them. Pure.
"""

from dataclasses import dataclass

from agentic_rag.events import EventBody, Terminal, Usage
from agentic_rag.messages import Message
from agentic_rag.runtime.core.calls import PlannedCall
from agentic_rag.runtime.core.results import FinishedCall
from agentic_rag.tools.base import CallOutcome


@dataclass(frozen=True, slots=True)
class CallModel:
    """Build a request, call `Turn.begin_step`, stream the model into `Turn.receive`."""

    iteration: int


@dataclass(frozen=True, slots=True)
class CallTools:
    """Run these in parallel; hand each outcome to `Turn.finish_call` as it comes."""

    calls: tuple[PlannedCall, ...]


@dataclass(frozen=True, slots=True)
class Spent:
    """The tokens of one model call of a step, whole or cut off."""

    step: int
    model: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class EndedCall:
    """A call that did not run to its end: the turn ended first, or its message was cut off."""

    call: PlannedCall
    outcome: CallOutcome
    finished: FinishedCall


@dataclass(frozen=True, slots=True)
class Commit:
    """Store ``messages`` with all events so far and ``bodies`` in one transaction, then `Turn.committed`.

    ``calls`` are started by it: their ``tool_call`` events are in ``bodies``. ``ended`` are calls that end with it,
    their ``tool_result`` events too. ``final`` is the terminal event (not in ``bodies``); with it the turn is over.
    ``partial`` marks a message that was cut off. ``spent`` are the model calls that no commit has stored yet.
    """

    step: int
    messages: tuple[Message, ...]
    bodies: tuple[EventBody, ...] = ()
    calls: tuple[PlannedCall, ...] = ()
    partial: bool = False
    usage: Usage | None = None
    final: Terminal | None = None
    spent: tuple[Spent, ...] = ()
    ended: tuple[EndedCall, ...] = ()


Instruction = CallModel | CallTools | Commit
