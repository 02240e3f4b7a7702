"""The messages of a transcript that requests hold, with what a turn asks of them. Pure.

Owns what is known of them as they grow: tokens, turns, passages, images, notes. Each is looked at once.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from agentic_rag.ids import MessageId, TurnId
from agentic_rag.messages import ACTIVATION, DOWN, GONE, SHED, Activation, Block, Message, Passage, refs_of_images
from agentic_rag.runtime.core.repeats import Repeats, without_repeats_in
from agentic_rag.runtime.core.shedding import count_old, has_results, sheddable_in
from agentic_rag.runtime.core.sizes import message_tokens

CHUNK_BYTES = 600
"""What is kept of a chunk: its passage, its title and its sentences, which are the transcript's."""


@dataclass(frozen=True, slots=True)
class TurnSize:
    """One turn of a window: the place of its first message, and its tokens."""

    first_seq: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One message with its place. ``message_id`` is what clients know it by."""

    seq: int
    turn_id: TurnId
    step: int
    message_id: MessageId
    message: Message


def cited_chunks(transcript: Iterable[Message]) -> set[str]:
    """Return the ids of all chunks whose sentences stand in a transcript."""
    return {
        chunk
        for message in transcript
        for block in message["content"]
        if block["type"] == "tool_result" and SHED not in block
        for part in block["content"]
        if (passage := Passage.of(part)) is not None
        for chunk in passage.chunk_ids
    }


class Passages:
    """The passages of results in some messages, by the chunks that their sentences are of."""

    def __init__(self) -> None:
        self.chunks: dict[str, list[int]] = {}
        """In which passages each chunk stands, by their places."""
        self._passages: list[tuple[str, str, frozenset[str]]] = []
        """Document, its name, chunks."""
        self._told_gone: set[str] = set()

    def add(self, message: Message) -> None:
        """Take the passages of a message, and what a note in it says of deleted documents."""
        for block in message["content"]:
            self._told_gone.update(block.get(GONE, ()))
            if block["type"] != "tool_result" or SHED in block:
                continue
            for part in block["content"]:
                if (passage := Passage.of(part)) is not None:
                    for chunk in dict.fromkeys(passage.chunk_ids):
                        self.chunks.setdefault(chunk, []).append(len(self._passages))
                    chunks = frozenset(passage.chunk_ids)
                    self._passages.append((passage.document_id, passage.document_name, chunks))

    def find_lost(self, gone: Collection[str]) -> dict[str, str]:
        """Return the documents of passages all of whose sentences are gone and of which no note tells: id and name."""
        places = sorted({place for chunk in gone for place in self.chunks.get(chunk, ())})
        lost = [self._passages[place] for place in places if self._passages[place][2].issubset(gone)]
        return {ident: name for ident, name, _ in lost if ident not in self._told_gone}


def last_activation(transcript: Sequence[Message]) -> Activation | None:
    """Return the newest role activation in a transcript, or None."""
    blocks = (block for message in reversed(transcript) for block in reversed(message["content"]))
    return next((found for block in blocks if (found := Activation.of(block)) is not None), None)


class Window:
    """The entries that requests hold, with what is asked of them several times a step.

    It only grows. Whatever changes a message or the window's start takes a new one, so that a long conversation is not
    walked again for each question about it.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.messages: list[Message] = []
        self.turns: list[TurnSize] = []
        self.pictures: set[str] = set()
        """Where its images are kept."""
        self.passages = Passages()
        self.activation: Activation | None = None
        self.down: tuple[str, ...] = ()
        """See `Transcript.down`."""
        self._repeats = Repeats()
        self._places: list[int] = []
        self._steps: list[int] = []
        """Of the messages with results, by how many stand before them."""
        self._names: dict[str, str] = {}
        self._saved = [0]
        """What could be left out of the first messages, by how many: of old ones, where somebody asks for it."""
        self._tokens = [0]
        """Of the first entries together, by how many: what stands in the window twice counts once."""

    def add(self, entry: Entry, size: int) -> None:
        """Take an entry. ``size``: what its message costs by itself."""
        message = entry.message
        sent = without_repeats_in(message, self._repeats) if message["role"] == "user" else message
        self._tokens.append(self._tokens[-1] + (size if sent is message else message_tokens(sent)))
        if self.entries and self.entries[-1].turn_id == entry.turn_id:
            last = self.turns.pop()
            self.turns.append(TurnSize(last.first_seq, last.tokens + size))
        else:
            self.turns.append(TurnSize(entry.seq, size))
        self.pictures |= refs_of_images([message])
        self.passages.add(message)
        self.activation = last_activation([message]) or self.activation
        self.down = next((tuple(each[DOWN]) for each in reversed(message["content"]) if DOWN in each), self.down)
        if has_results(message):
            self._steps.append(len(self.entries))
        self.entries.append(entry)
        self.messages.append(message)
        self._places.append(entry.seq)

    def take_back(self, entry: Entry, size: int) -> bool:
        """Take back the last entry, if this is it and nothing is known of it but its size; return whether it was."""
        if not self.entries or self.entries[-1] is not entry or any(map(_is_more_than_words, entry.message["content"])):
            return False
        for grown in (self.entries, self.messages, self._places, self._tokens):
            grown.pop()
        last = self.turns.pop()
        if last.first_seq != entry.seq:
            self.turns.append(TurnSize(last.first_seq, last.tokens - size))
        return True

    @property
    def memory(self) -> int:
        """About how many bytes are kept of its passages; the rest is little, and counted with the entries."""
        return CHUNK_BYTES * len(self.passages.chunks)

    def tokens(self, first: int, end: int | None) -> int:
        """Return the tokens of the entries from one place to before another."""
        low = bisect_left(self._places, first)
        high = len(self._places) if end is None else bisect_left(self._places, end)
        return self._tokens[max(low, high)] - self._tokens[low]

    def saved_by_old(self) -> int:
        """Return how many tokens all results have together that may be left out before the newest steps."""
        old = count_old(self.messages, self._steps)
        for message in self.messages[len(self._saved) - 1 : old]:
            self._saved.append(self._saved[-1] + sum(each.saved for each in sheddable_in(message, self._names)))
        return self._saved[old]


def _is_more_than_words(block: Block) -> bool:
    return block["type"] != "text" or not block.keys().isdisjoint((ACTIVATION, DOWN, GONE))
