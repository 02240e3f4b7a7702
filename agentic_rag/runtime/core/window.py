"""The window of a transcript that requests contain: its size, its facts, and the results to leave out. Pure.

Owns the facts about a window's messages (tokens, turns, passages, images, notes), which are collected once per message,
and the choice of the tool results that requests leave out if there is no room for them. Tokens are estimated as a third
of the UTF-8 bytes, images by their pixels. `context` leaves the chosen results out, in memory and in the store.
"""

import sys
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from agentic_rag.base.ids import MessageId, TurnId
from agentic_rag.base.json_form import to_text
from agentic_rag.base.messages import (
    ACTIVATION,
    DOWN,
    GONE,
    NAMED,
    REF,
    SHED,
    SIZE,
    Activation,
    Block,
    Message,
    Passage,
    image_in_words,
    is_words,
    ref_of_image,
    refs_of_images,
    text_block,
    tool_uses,
    without_private,
)
from agentic_rag.runtime.core.passage_dedup import Repeats, without_repeats_in
from agentic_rag.tools.image_headers import Picture, count_beyond

SHED_MARK = "[result of {name}, kept as ref {ref}]"


def tokens_of(value: Any) -> int:
    """Return the approximate tokens of a JSON value. Private keys are not sent and cost nothing."""
    return _tokens_of_sent(without_private(value))


def _tokens_of_sent(value: Any) -> int:
    # English has about four bytes a token and Chinese three, so the count is rather too high than too low.
    return (len(to_text(value).encode("utf-8", "replace")) + 2) // 3


def memory_of(value: Any) -> int:
    """Return the approximate bytes of a JSON value in memory. Shared values count, keys do not."""
    size, values = 0, [value]
    for node in values:  # grows during the loop: this runs for each message, and a call per value would be slow
        size += sys.getsizeof(node)
        if isinstance(node, dict):
            values += node.values()
        elif isinstance(node, list | tuple):
            values += node
    return size


def message_tokens(message: Message) -> int:
    """Return the approximate tokens of a message as it is sent, with images by their pixels."""
    if is_words(message):
        return sum(map(_tokens_of_sent, message["content"])) + 4
    sent = [as_sent(block) for block in message["content"]]
    return sum(map(tokens_of, sent)) + picture_tokens(sent) + 4


def pictures_in(content: Iterable[Block]) -> list[Picture]:
    """Return the images in some blocks as requests contain them, also those inside results."""
    pictures = []
    for block in content:
        if block["type"] == "tool_result" and SHED not in block:
            pictures += pictures_in(block["content"])
        elif block["type"] == "image" and SIZE in block:
            pictures.append(Picture(block["source"]["media_type"], *block[SIZE]))
    return pictures


def picture_tokens(content: Iterable[Block]) -> int:
    """Return the tokens of the images in some blocks."""
    return sum(picture.tokens for picture in pictures_in(content))


def as_sent(block: Block) -> Block:
    """Return a block as requests contain it. A result that was left out becomes a mark."""
    shed = block.get(SHED)
    if shed is None:
        return block
    mark = text_block(SHED_MARK.format(name=shed["name"], ref=shed["ref"]))
    return {**{key: value for key, value in block.items() if key != SHED}, "content": [mark]}


# Results that are left out


KEPT_STEPS = 3
"""How many of the newest steps keep their results longest."""


@dataclass(frozen=True, slots=True)
class Sheddable:
    """A tool result that requests may leave out.

    ``ref``: the payload with the whole result, or empty if there is none.
    """

    tool_use_id: str
    name: str
    text: str
    ref: str
    saved: int
    pictures: int = 0


def pictures_to_shed(messages: Sequence[Message]) -> list[Sheddable]:
    """Return the oldest results with images that must be left out.

    A request may have only a few large images.
    """
    excess = count_beyond([picture for message in messages for picture in pictures_in(message["content"])])
    chosen = []
    for result in sheddable(messages[: count_seen(messages)]) if excess > 0 else ():
        if result.pictures and excess > 0:
            chosen.append(result)
            excess -= result.pictures
    return chosen


def count_seen(messages: Sequence[Message]) -> int:
    """Return how many of a window's messages the model has seen: those before its newest answer."""
    places = range(len(messages) - 1, -1, -1)
    return next((place for place in places if messages[place]["role"] == "assistant"), 0)


def sheddable(messages: Iterable[Message]) -> list[Sheddable]:
    """Return the tool results that requests may leave out, oldest first.

    A role stays, because the model acts on it. A result smaller than its mark stays too.
    """
    names: dict[str, str] = {}
    return [result for message in messages for result in sheddable_in(message, names)]


def sheddable_in(message: Message, names: dict[str, str]) -> list[Sheddable]:
    """Return the tool results of one message that requests may leave out.

    ``names``: tool names of earlier calls, by call id. This function adds the calls of the message.
    """
    names |= {use["id"]: use["name"] for use in tool_uses(message["content"])}
    results = []
    for block in message["content"]:
        if block["type"] != "tool_result" or ACTIVATION in block or SHED in block:
            continue
        name = names.get(block["tool_use_id"], "a tool")
        # A ref has 26 characters after its prefix; a result gets one when it is left out.
        mark = SHED_MARK.format(name=name, ref=block.get(REF) or "ref_" + "0" * 26)
        saved = tokens_of(block["content"]) + picture_tokens(block["content"]) - tokens_of([text_block(mark)])
        if saved > 0:
            alone = ref_of_image(block["content"][0]) if len(block["content"]) == 1 else None
            ref = block.get(REF) or alone or ""
            pictures = len(pictures_in([block]))
            results.append(Sheddable(block["tool_use_id"], name, result_text(block), ref, saved, pictures))
    return results


def choose_to_shed(
    messages: Sequence[Message], excess: int, spare: int = 0, *, old_only: bool = False
) -> list[Sheddable]:
    """Return the results to leave out to save ``excess`` tokens, oldest first, or all if they save too little.

    Results that the model has not seen stay. ``spare`` tokens are saved in addition, so that this happens rarely, but
    only from results before the newest steps. Results of the newest steps are chosen last, and with ``old_only`` never.
    """
    steps = [place for place, message in enumerate(messages) if has_results(message)]
    old = sheddable(messages[: count_old(messages, steps)])
    chosen = _first_to_save(old, excess + spare) if excess > 0 else []
    saved = sum(result.saved for result in chosen)
    if saved < excess and not old_only:
        chosen += _first_to_save(sheddable(messages[: count_seen(messages)])[len(old) :], excess - saved)
    return chosen


def count_old(messages: Sequence[Message], steps: Sequence[int]) -> int:
    """Return how many seen messages come before the newest steps. ``steps``: indexes of the messages with results."""
    return min(steps[-KEPT_STEPS:][0] if steps else 0, count_seen(messages))


def largest_to_shed(messages: Sequence[Message], excess: int) -> list[Sheddable]:
    """Return the largest results of a window, seen or not, that save ``excess`` tokens together, at least one."""
    by_size = sorted(sheddable(messages), key=lambda result: -result.saved)
    return _first_to_save(by_size, max(1, excess))


def _first_to_save(results: Iterable[Sheddable], tokens: int) -> list[Sheddable]:
    chosen: list[Sheddable] = []
    for result in results:
        if tokens <= 0:
            break
        chosen.append(result)
        tokens -= result.saved
    return chosen


def has_results(message: Message) -> bool:
    """Return whether a message contains results of tools."""
    return any(block["type"] == "tool_result" for block in message["content"])


def shed_results(content: Sequence[Block], refs: dict[str, Block]) -> list[Block]:
    """Return a message's blocks with the results in ``refs`` (by call id) marked as left out."""
    return [
        {**block, SHED: refs[block["tool_use_id"]]}
        if block["type"] == "tool_result" and block["tool_use_id"] in refs
        else block
        for block in content
    ]


def result_text(block: Block) -> str:
    """Return the text of a tool result. A search result becomes its title and its sentences."""
    parts = []
    for part in block["content"]:
        if part["type"] == "text":
            parts.append(part["text"])
        elif part["type"] == "search_result":
            parts.append(f"{part['title']}\n" + " ".join(sentence["text"] for sentence in part["content"]))
        elif ref_of_image(part):
            parts.append(image_in_words(part))
    return "\n\n".join(parts)


# The window


CHUNK_BYTES = 600
"""Memory of a chunk's passage, title and list of sentences. The transcript owns the sentences."""


@dataclass(frozen=True, slots=True)
class TurnSize:
    """One turn of a window: the number of its first message, and its tokens."""

    first_seq: int
    tokens: int


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """One message with its number in the session. ``message_id``: the id that clients use."""

    seq: int
    turn_id: TurnId
    step: int
    message_id: MessageId
    message: Message


def cited_chunks(transcript: Iterable[Message]) -> set[str]:
    """Return the ids of all chunks with sentences in a transcript."""
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
    """The passages of results in some messages, indexed by chunk."""

    def __init__(self) -> None:
        self.chunks: dict[str, list[int]] = {}
        """The indexes of the passages that contain each chunk."""
        self._passages: list[tuple[str, str, frozenset[str]]] = []
        """Document id, document name, chunks."""
        self._reported_gone: set[str] = set()
        self._named: set[str] = set()
        """The documents that results name without a passage."""

    def add(self, message: Message) -> None:
        """Add the passages of a message, and the documents that its note reports as deleted."""
        for block in message["content"]:
            self._reported_gone.update(block.get(GONE, ()))
            if block["type"] != "tool_result" or SHED in block:
                continue
            self._named.update(block.get(NAMED, ()))
            for part in block["content"]:
                if (passage := Passage.of(part)) is not None:
                    for chunk in dict.fromkeys(passage.chunk_ids):
                        self.chunks.setdefault(chunk, []).append(len(self._passages))
                    chunks = frozenset(passage.chunk_ids)
                    self._passages.append((passage.document_id, passage.document_name, chunks))

    def chunks_by_document(self) -> dict[str, set[str]]:
        """Return the chunks of the passages by document. A document that is only named has none."""
        by_document: dict[str, set[str]] = {document_id: set() for document_id in self._named}
        for ident, _, chunks in self._passages:
            by_document.setdefault(ident, set()).update(chunks)
        return by_document

    def find_lost(self, gone_chunks: Collection[str]) -> dict[str, str]:
        """Return the documents of passages whose sentences are all gone and that no note mentions: id and name."""
        places = sorted({place for chunk in gone_chunks for place in self.chunks.get(chunk, ())})
        lost_passages = [self._passages[place] for place in places if self._passages[place][2].issubset(gone_chunks)]
        return {ident: name for ident, name, _ in lost_passages if ident not in self._reported_gone}


def last_activation(transcript: Sequence[Message]) -> Activation | None:
    """Return the newest role activation in a transcript, or None."""
    blocks = (block for message in reversed(transcript) for block in reversed(message["content"]))
    return next((activation for block in blocks if (activation := Activation.of(block)) is not None), None)


class Window:
    """The entries that requests contain, with facts that each step needs several times.

    A window only grows, so that a long conversation is not walked again for each question. A changed message or a moved
    start needs a new window.
    """

    def __init__(self) -> None:
        self.entries: list[TranscriptEntry] = []
        self.messages: list[Message] = []
        self.turns: list[TurnSize] = []
        self.pictures: set[str] = set()
        """The refs of its images."""
        self.passages = Passages()
        self.activation: Activation | None = None
        self.down: tuple[str, ...] = ()
        """See `Transcript.down`."""
        self._repeats = Repeats()
        self._places: list[int] = []
        self._steps: list[int] = []
        """For each message with results, the number of messages before it."""
        self._names: dict[str, str] = {}
        self._saved = [0]
        """Index n: tokens saved by leaving out all results in the first n messages.

        Filled when needed, for old ones.
        """
        self._tokens = [0]
        """Index n: tokens of the first n entries together. A passage that is in the window twice counts once."""

    def add(self, entry: TranscriptEntry, size: int) -> None:
        """Add an entry. ``size``: the tokens of its message without deduplication."""
        message = entry.message
        sent = message if is_words(message) else self._note(message)
        # Sums from the start, so that the tokens of any range are one subtraction.
        self._tokens.append(self._tokens[-1] + (size if sent is message else message_tokens(sent)))
        if self.entries and self.entries[-1].turn_id == entry.turn_id:
            last = self.turns.pop()
            self.turns.append(TurnSize(last.first_seq, last.tokens + size))
        else:
            self.turns.append(TurnSize(entry.seq, size))
        self.entries.append(entry)
        self.messages.append(message)
        self._places.append(entry.seq)

    def _note(self, message: Message) -> Message:
        """Collect the facts of the next message. Return it without passages that are in the window already."""
        self.pictures |= refs_of_images([message])
        self.passages.add(message)
        self.activation = last_activation([message]) or self.activation
        self.down = next((tuple(block[DOWN]) for block in reversed(message["content"]) if DOWN in block), self.down)
        if not has_results(message):
            return message
        self._steps.append(len(self.entries))
        return without_repeats_in(message, self._repeats)

    def take_back(self, entry: TranscriptEntry, size: int) -> bool:
        """Remove ``entry`` if it is the last one and has only words. Return whether it was removed."""
        if not self.entries or self.entries[-1] is not entry or not is_words(entry.message):
            return False
        for grown in (self.entries, self.messages, self._places, self._tokens):
            grown.pop()
        last = self.turns.pop()
        # The entry was not the only one of its turn.
        if last.first_seq != entry.seq:
            self.turns.append(TurnSize(last.first_seq, last.tokens - size))
        return True

    @property
    def memory(self) -> int:
        """The approximate bytes of its passages. The rest is small and counted with the entries."""
        return CHUNK_BYTES * len(self.passages.chunks)

    def tokens(self, first: int = 0, end: int | None = None) -> int:
        """Return the tokens of the entries from number ``first`` to before ``end``."""
        low = bisect_left(self._places, first)
        if end is None:
            return self._tokens[-1] - self._tokens[low]
        return self._tokens[max(low, bisect_left(self._places, end))] - self._tokens[low]

    def saved_by_old(self) -> int:
        """Return the tokens saved by leaving out all results before the newest steps."""
        old = count_old(self.messages, self._steps)
        # Old messages do not change, so each is measured once.
        for message in self.messages[len(self._saved) - 1 : old]:
            self._saved.append(self._saved[-1] + sum(result.saved for result in sheddable_in(message, self._names)))
        return self._saved[old]
