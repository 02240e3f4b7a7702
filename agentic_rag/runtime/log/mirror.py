"""A copy of the log of a turn in another process, for the readers in this one.

Owns which events are visible here: live events as they arrive, and rows for the gaps, in order and without holes.
Events that were delivered live and became void by a takeover stay delivered, as in every process. Has the reading
interface of `RunLog`. Pure.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from agentic_rag.base.events import AgentEvent
from agentic_rag.base.ids import ConversationId, TurnId

TAIL_EVENTS = 1024
"""Events in memory. Older ones are read from the store."""
AHEAD_EVENTS = 256
"""Live events that may wait for missing earlier ones."""


class Wake(Protocol):
    """Wakes a reader. Must not wait and not raise."""

    def __call__(self) -> None: ...


class Mirror:
    """The visible part of one turn's log in this process. ``stored``: the number of its last event in the store."""

    def __init__(self, conversation_id: ConversationId, turn_id: TurnId, stored_seq: int) -> None:
        self.conversation_id = conversation_id
        self.turn_id = turn_id
        self.visible = stored_seq
        self.stored: int = stored_seq
        """The last number known to be in the store."""
        self.ended = False
        self.moved = False
        """Whether readers must look up the log again: the turn runs here now, or the mirror was unused."""
        self.newest: AgentEvent | None = None
        """See `RunLog.newest`."""
        self._tail: deque[AgentEvent] = deque()
        self._ahead: dict[int, AgentEvent] = {}
        self._readers: tuple[Wake, ...] = ()

    @property
    def behind(self) -> bool:
        """Whether events are missing that must be read from rows."""
        return not self.ended and (bool(self._ahead) or self.stored > self.visible)

    @property
    def read(self) -> bool:
        """Whether a reader waits for events of this mirror."""
        return bool(self._readers)

    def take_live(self, events: Sequence[AgentEvent]) -> None:
        """Add live events with consecutive numbers. They may be repeated, or have a gap before them."""
        before = self.visible
        for event in events:
            if event.seq == self.visible + 1 and not self.ended:
                self._add(event)
            elif event.seq > self.visible and len(self._ahead) < AHEAD_EVENTS:
                self._ahead[event.seq] = event
        self._take_ahead()
        if self.visible != before:
            self.wake_readers()

    def take_stored(self, events: Sequence[AgentEvent]) -> None:
        """Add the events after `visible` from the store. A number missing among them will never exist."""
        for event in events:
            if event.seq <= self.visible or self.ended:
                continue
            if event.seq != self.visible + 1:
                self._tail.clear()  # an epoch of another owner
            self._add(event)
        self.stored = max(self.stored, self.visible) if events else self.stored
        self._take_ahead()
        if events:
            self.wake_readers()

    def _take_ahead(self) -> None:
        while (event := self._ahead.pop(self.visible + 1, None)) is not None:
            self._add(event)
        if self._ahead and (self.ended or min(self._ahead) <= self.visible):
            self._ahead = {seq: event for seq, event in self._ahead.items() if seq > self.visible and not self.ended}

    def _add(self, event: AgentEvent) -> None:
        self._tail.append(event)
        self.newest = event
        self.visible = event.seq
        self.ended = event.terminal
        if len(self._tail) > TAIL_EVENTS and self._tail[0].seq <= self.stored:
            self._tail.popleft()

    def learn(self, stored_seq: int) -> None:
        """Note that the store has rows up to ``stored_seq``."""
        self.stored = max(self.stored, stored_seq)

    def end(self) -> None:
        """End the log, because its rows were removed."""
        self.ended = True
        self.wake_readers()

    def hand_over(self) -> None:
        """Make readers look up the log again."""
        self.moved = True
        self.wake_readers()

    # Interface of `RunLog`

    def since(self, after: int) -> list[AgentEvent] | None:
        """See `RunLog.since`."""
        if after >= self.visible:
            return []
        first = self.first
        if after + 1 < first:
            return None
        return [self._tail[index] for index in range(after + 1 - first, len(self._tail))]

    @property
    def first(self) -> int:
        """See `RunLog.first`."""
        return self._tail[0].seq if self._tail else self.visible + 1

    def listen(self, wake: Wake) -> None:
        """See `RunLog.listen`."""
        self._readers = (*self._readers, wake)

    def unlisten(self, wake: Wake) -> None:
        """See `RunLog.unlisten`."""
        self._readers = tuple(reader for reader in self._readers if reader != wake)

    def wake_readers(self) -> None:
        """See `RunLog.wake_readers`."""
        for wake in self._readers:
            wake()
