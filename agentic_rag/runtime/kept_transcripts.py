"""Which idle sessions keep their transcripts in memory: those that were used last, within a number of bytes.

Owns the order and the sum. What a transcript weighs it is told; a session that is busy needs its own and is not
counted.
"""

from collections import OrderedDict
from typing import Protocol

from agentic_rag.ids import SessionId

DEFAULT_BYTES = 256 * 1024 * 1024


class Holder(Protocol):
    """A session with a transcript in memory."""

    @property
    def id(self) -> SessionId:
        """Whose transcript it is."""
        ...

    @property
    def idle(self) -> bool:
        """Whether nothing needs the transcript now."""
        ...

    def unload(self) -> None:
        """Let the transcript go."""
        ...


class KeptTranscripts:
    """The transcripts of idle sessions. ``most``: the bytes that they may have together; one is kept in any case."""

    def __init__(self, most: int = DEFAULT_BYTES) -> None:
        self._most = most
        self._kept: OrderedDict[SessionId, tuple[Holder, int]] = OrderedDict()
        """The one that was used last at the end."""
        self.size = 0
        """Bytes of all of them."""

    def keep(self, holder: Holder, size: int) -> None:
        """Take note that an idle session was used and what its transcript weighs; let go those that are over it."""
        self.forget(holder.id)
        self._kept[holder.id] = holder, size
        self.size += size
        while self.size > self._most and len(self._kept) > 1:
            oldest, _ = next(iter(self._kept.values()))
            self.forget(oldest.id)
            if oldest.idle:  # a busy one comes back when it rests
                oldest.unload()

    def use(self, session_id: SessionId) -> None:
        """Take note that a session was used, if it is counted; it weighs what it weighed."""
        if session_id in self._kept:
            self._kept.move_to_end(session_id)

    def forget(self, session_id: SessionId) -> None:
        """Count a session no more: it is busy, or has let its transcript go."""
        self.size -= self._kept.pop(session_id, (None, 0))[1]
