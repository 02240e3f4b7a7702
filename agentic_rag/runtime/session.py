"""A live session: the transcript in memory, as the store holds it.

Owns the order of messages and the numbers they get. The store is the truth; a live session is its copy, kept
so that a turn re-reads nothing. Knows no SQL.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentic_rag.messages import Message


@dataclass(frozen=True, slots=True)
class Entry:
    """One message with its place. ``message_id`` is what clients know it by."""

    seq: int
    turn_id: str
    step: int
    message_id: str
    message: Message


@dataclass(slots=True)
class Session:
    """``labels`` are opaque: conversation_id, domain_id, user_id. ``window_start``: first seq that is sent."""

    id: str
    labels: Mapping[str, Any]
    window_start: int = 0
    entries: list[Entry] = field(default_factory=list)

    @property
    def last_seq(self) -> int:
        return self.entries[-1].seq if self.entries else 0

    def planned(self, turn_id: str, step: int, message_id: str, messages: Iterable[Message]) -> list[Entry]:
        """Number messages that are about to be stored; `extend` takes them once they are."""
        return [
            Entry(self.last_seq + 1 + offset, turn_id, step, message_id, message)
            for offset, message in enumerate(messages)
        ]

    def extend(self, entries: Iterable[Entry]) -> None:
        """Take messages that the store has committed."""
        self.entries.extend(entries)

    def window(self) -> list[Message]:
        """Return the messages that are sent to the model, oldest first."""
        return [entry.message for entry in self.entries if entry.seq >= self.window_start]

    def of_turn(self, turn_id: str) -> list[Message]:
        """Return a turn's messages, its user message first."""
        return [entry.message for entry in self.entries if entry.turn_id == turn_id]
