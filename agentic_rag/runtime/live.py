"""What is known of a session while something runs, waits or was recent.

Owns which turn runs, who is told when that changes, and what a waiting reader is given next. Knows no store.
"""

from dataclasses import dataclass, field

import anyio

from agentic_rag.runtime.agent import Agent
from agentic_rag.runtime.session import Session


@dataclass(slots=True)
class Live:
    """What is known of a session while something runs, waits or was recent."""

    id: str
    session: Session | None = None
    agent: Agent | None = None
    turn_id: str | None = None
    order: list[str] = field(default_factory=list)
    changed: anyio.Event = field(default_factory=anyio.Event)
    accepting: anyio.Lock = field(default_factory=anyio.Lock)
    dropped: bool = False

    def begin(self, turn_id: str, agent: Agent) -> None:
        """Note that a turn starts, and wake who waits for the next one. From here on it can be interrupted."""
        self.turn_id = turn_id
        self.agent = agent
        self.order = [*self.order[-15:], turn_id]
        self._changed()

    def end(self) -> None:
        """Note that the running turn ended."""
        self.turn_id = None
        self.agent = None
        self._changed()

    def _changed(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    @property
    def ending(self) -> bool:
        """Whether the running turn has come to its terminal event, so that the next may be sent."""
        return self.agent is not None and self.agent.over

    def following(self, after: str | None) -> str | None:
        """Return the turn that started after another one, or the running one; None: not yet."""
        if after in self.order:
            rest = self.order[self.order.index(after) + 1 :]
            return rest[0] if rest else None
        return self.turn_id if self.turn_id != after else None
