"""What is known of a session while something runs, waits or was recent.

Owns which turn or compaction runs, who is told when that changes, what a waiting reader is given next, and which
transcripts stay in memory. Knows no SQL.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

import anyio

from agentic_rag.errors import NotFound
from agentic_rag.events import Error
from agentic_rag.runtime.agent import Agent
from agentic_rag.runtime.compaction import Compaction
from agentic_rag.runtime.core.session import Session
from agentic_rag.runtime.log.runlog import RunLog
from agentic_rag.store.turns import TurnRecord

MAX_TRANSCRIPTS = 256
"""Idle sessions whose transcripts stay in memory."""


@dataclass(frozen=True, slots=True)
class Unended:
    """A turn whose terminal event was delivered and not stored: the store took nothing then."""

    row: TurnRecord
    log: RunLog
    final: Error


@dataclass(slots=True)
class Live:
    """What is known of a session while something runs, waits or was recent.

    ``compact_past``: tokens before which no further automatic compaction is tried, since one has failed.
    ``unended``: turns whose end is stored with the next message, oldest first.
    """

    id: str
    session: Session | None = None
    agent: Agent | None = None
    turn_id: str | None = None
    compaction: Compaction | None = None
    compact_past: float = 0
    unended: list[Unended] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    changed: anyio.Event = field(default_factory=anyio.Event)
    accepting: anyio.Lock = field(default_factory=anyio.Lock)
    dropped: bool = False

    def begin(self, turn_id: str, agent: Agent) -> None:
        """Note that a turn starts, and wake who waits for the next one. From here on it can be interrupted."""
        self.turn_id = turn_id
        self.agent = agent
        self.order = [*self.order[-15:], turn_id]
        self.wake()

    def end(self) -> None:
        """Note that the running turn ended."""
        self.turn_id = None
        self.agent = None
        self.wake()

    def wake(self) -> None:
        """Tell who waits that something changed."""
        self.changed.set()
        self.changed = anyio.Event()

    @property
    def ending(self) -> bool:
        """Whether the running turn has come to its terminal event, so that the next may be sent."""
        return self.agent is not None and self.agent.over

    @property
    def held(self) -> bool:
        """Whether who sends must wait for a moment: a turn is ending or was interrupted, or a compaction runs."""
        stopping = self.agent is not None and self.agent.interrupted
        return stopping or self.ending or self.compaction is not None

    @property
    def idle(self) -> bool:
        return self.turn_id is None and self.compaction is None

    def following(self, after: str | None) -> str | None:
        """Return the turn that started after another one, or the running one; None: not yet."""
        if after in self.order:
            rest = self.order[self.order.index(after) + 1 :]
            return rest[0] if rest else None
        return self.turn_id if self.turn_id != after else None


class LiveSessions:
    """The sessions of this process by id; ``load`` reads a transcript from the store."""

    def __init__(self, load: Callable[[str], Awaitable[Session]]) -> None:
        self._load = load
        self._live: dict[str, Live] = {}

    def __iter__(self) -> Iterator[Live]:
        return iter(list(self._live.values()))

    def get(self, session_id: str) -> Live | None:
        """Return what is known of a session, None when that is nothing."""
        return self._live.get(session_id)

    def of(self, session_id: str) -> Live:
        """Return what is known of a session, transcript or not."""
        return self._live.setdefault(session_id, Live(session_id))

    async def loaded(self, session_id: str) -> Live:
        """Return a session with its transcript.

        Raises:
            NotFound: there is no such session.
        """
        live = self.of(session_id)
        self._live[session_id] = self._live.pop(session_id)  # the last one used stands last
        if live.session is None:
            async with live.accepting:
                if live.session is None:
                    try:
                        live.session = await self._load(session_id)
                    except NotFound:
                        self._live.pop(session_id, None)
                        raise
        return live

    def forget(self, session_id: str) -> None:
        """Know nothing of a session any more."""
        self._live.pop(session_id, None)

    def trim(self) -> None:
        """Forget the transcripts of the sessions that have been idle longest."""
        idle = [live for live in self._live.values() if live.session is not None and live.idle]
        for live in idle[: max(0, len(idle) - MAX_TRANSCRIPTS)]:
            live.session = None
