"""A live session: the transcript in memory, as the store holds it.

Owns the order of messages, the numbers they get, and what is known of their size. The store is the truth; a
live session is its copy, kept so that a turn re-reads nothing. Knows no SQL.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from agentic_rag.messages import Block, Message
from agentic_rag.runtime.core.window import TurnSize, message_tokens, tokens_of


@dataclass(frozen=True, slots=True)
class Entry:
    """One message with its place. ``message_id`` is what clients know it by."""

    seq: int
    turn_id: str
    step: int
    message_id: str
    message: Message


@dataclass(frozen=True, slots=True)
class Measure:
    """What a model reported of a request that held the messages before ``until``."""

    tokens: int
    until: int


@dataclass(slots=True)
class Session:
    """``labels`` are opaque: conversation_id, domain_id, user_id; a delegate's also has ``agent``, its path.

    ``head`` stands before the messages from ``window_start`` on. ``base_seq`` is the last place ever given out.
    ``measure`` is None when the request has changed in other ways than by growing.
    """

    id: str
    labels: Mapping[str, Any]
    window_start: int = 0
    head: list[Block] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    base_seq: int = 0
    measure: Measure | None = None
    _sizes: dict[int, tuple[list[Block], int]] = field(default_factory=dict, repr=False, compare=False)
    """Tokens by place, each with the content that was counted: other content is counted anew."""

    @property
    def last_seq(self) -> int:
        return self.entries[-1].seq if self.entries else self.base_seq

    @property
    def message_count(self) -> int:
        """Messages as clients count: two a turn."""
        return len({entry.message_id for entry in self.entries})

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
        """Return the messages that are sent to the model, oldest first, what stands before them included."""
        sent = [entry.message for entry in self.in_window()]
        return [{"role": "user", "content": list(self.head)}, *sent] if self.head else sent

    def in_window(self) -> list[Entry]:
        """Return the entries from the window's start on."""
        return [entry for entry in self.entries if entry.seq >= self.window_start]

    def of_turn(self, turn_id: str) -> list[Message]:
        """Return a turn's messages, its user message first."""
        return [entry.message for entry in self.entries if entry.turn_id == turn_id]

    # Size

    def tokens(self, fixed: int) -> int:
        """Return about how many tokens the next request has; ``fixed``: those of system and tools."""
        if self.measure is not None:
            until = self.measure.until
            return self.measure.tokens + sum(self._size(entry) for entry in self.in_window() if entry.seq >= until)
        return fixed + self.head_tokens + sum(map(self._size, self.in_window()))

    def _size(self, entry: Entry) -> int:
        content, known = entry.message["content"], self._sizes.get(entry.seq)
        if known is None or known[0] is not content:
            known = self._sizes[entry.seq] = content, message_tokens(entry.message)
        return known[1]

    @property
    def head_tokens(self) -> int:
        return tokens_of(self.head) if self.head else 0

    def turn_sizes(self) -> list[TurnSize]:
        """Return the turns of the window, oldest first."""
        sizes = []
        for _, group in groupby(self.in_window(), key=lambda entry: entry.turn_id):
            entries = list(group)
            sizes.append(TurnSize(entries[0].seq, sum(map(self._size, entries))))
        return sizes

    def set_window(self, start: int, head: list[Block]) -> None:
        """Take a window that the store has committed."""
        self.window_start = start
        self.head = head
        self.measure = None

    def archive(self, head: list[Block]) -> None:
        """Forget all messages, which the store has archived; ``head`` stands for them."""
        self.base_seq = self.last_seq
        self.entries = []
        self._sizes.clear()
        self.set_window(self.base_seq + 1, head)
