"""A cache of idle sessions' transcripts: the most recently used ones, within a number of bytes.

Owns the order and the sum of sizes. The caller passes the size of a transcript. Busy sessions keep their transcripts
and are not counted.
"""

from collections import OrderedDict
from typing import Protocol

from agentic_rag.base.ids import SessionId

DEFAULT_BYTES = 256 * 1024 * 1024


class Holder(Protocol):
    """A session with a transcript in memory."""

    @property
    def id(self) -> SessionId:
        """The id of the session."""
        ...

    @property
    def idle(self) -> bool:
        """Whether the transcript is unused now."""
        ...

    def unload(self) -> None:
        """Drop the transcript from memory."""
        ...


class TranscriptCache:
    """The transcripts of idle sessions.

    ``most``: limit for their bytes together. One transcript is kept in any case.
    """

    def __init__(self, most: int = DEFAULT_BYTES) -> None:
        self._most = most
        self._holders: OrderedDict[SessionId, tuple[Holder, int]] = OrderedDict()
        """The most recently used one is last."""
        self.size = 0
        """Bytes of all transcripts."""

    def keep(self, holder: Holder, size: int) -> None:
        """Add an idle session with the size of its transcript, and unload the oldest ones above the limit."""
        self.forget(holder.id)
        self._holders[holder.id] = holder, size
        self.size += size
        while self.size > self._most and len(self._holders) > 1:
            oldest, _ = next(iter(self._holders.values()))
            self.forget(oldest.id)
            if oldest.idle:  # a busy one is added again when it becomes idle
                oldest.unload()

    def use(self, session_id: SessionId) -> None:
        """Mark a session as recently used if it is counted. Its size stays."""
        if session_id in self._holders:
            self._holders.move_to_end(session_id)

    def forget(self, session_id: SessionId) -> None:
        """Stop counting a session, because it is busy or has unloaded its transcript."""
        self.size -= self._holders.pop(session_id, (None, 0))[1]
