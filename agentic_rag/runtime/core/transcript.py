"""A session's transcript in memory, and how much of it is sent. Pure.

Owns the order of messages and the numbers they get; the rules about size: moving the window, leaving out results.
Tokens are what the model last reported plus what was added since (`sizes`). The store is the truth; a transcript is its
copy, kept so that a turn re-reads nothing. No message changes in place. What is decided here, `context` carries out.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from agentic_rag.ids import MessageId, SessionId, TurnId
from agentic_rag.messages import (
    ACTIVATION,
    DOWN,
    GONE,
    REF,
    REFUSED,
    SHED,
    Activation,
    Block,
    Message,
    Passage,
    image_in_words,
    plain_text,
    ref_of_image,
    refs_of_images,
    text_block,
    tool_uses,
)
from agentic_rag.runtime.core.definition import Limits
from agentic_rag.runtime.core.repeats import Repeats, without_repeats_in
from agentic_rag.runtime.core.sent_messages import SentMessages
from agentic_rag.runtime.core.sizes import (
    SHED_MARK,
    memory_of,
    message_tokens,
    picture_tokens,
    pictures_in,
    tokens_of,
)
from agentic_rag.runtime.core.told import Told
from agentic_rag.store.sessions import SessionLabels
from agentic_rag.tools.pictures import count_beyond

ROLE_CARRIED = '[carried over: the role "{role}", activated earlier in this conversation]\n{text}'
KEPT_STEPS = 3
"""The newest steps, whose results are left out last."""
KEPT_SHARE = 0.25
"""Share of the limit that they may have when a compaction leaves them where they are."""


FIXED_BYTES = 2_000
"""What a transcript has in memory besides its messages and what it was told."""
RESTING_BYTES = 256 * 1024
"""Of encoded messages that stay between turns; of more, a turn's first request is encoded anew."""
ENTRY_BYTES = 800
"""What an entry has besides its content: its ids, its message, what was counted of it."""


@dataclass(frozen=True, slots=True)
class TurnSize:
    """One turn of a window: the place of its first message, and its tokens."""

    first_seq: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Sheddable:
    """A tool result that may be left out of requests. ``ref`` is where its whole is kept already, or empty."""

    tool_use_id: str
    name: str
    text: str
    ref: str
    saved: int
    pictures: int = 0


def pictures_to_shed(messages: Sequence[Message]) -> list[Sheddable]:
    """Return the oldest results with images that must go, since a request takes large images in small numbers only."""
    excess = count_beyond([picture for message in messages for picture in pictures_in(message["content"])])
    chosen = []
    for result in sheddable(messages[: count_seen(messages)]) if excess > 0 else ():
        if result.pictures and excess > 0:
            chosen.append(result)
            excess -= result.pictures
    return chosen


# The window


def move_start(turns: Sequence[TurnSize], tokens: int, fixed: int, limits: Limits, least: int = 1) -> int | None:
    """Return where the window starts now, or None when it stays.

    It moves when ``tokens`` pass ``contextTokens``, or the messages ``contextMessages``, and then leaves half of
    that. The turn that begins always stays, and the one before it as long as both fit: without it a follow-up
    question would mean nothing.

    Args:
        turns: the window's turns, oldest first; the last one is the turn that begins.
        tokens: of the request that would be sent.
        fixed: what of it no window changes (system, tools, what stands before the window).
        limits: the definition's.
        least: how many of the newest turns stay in any case.
    """
    count = len(turns) * 2 - 1
    crowded = limits.context_messages is not None and count > limits.context_messages
    if len(turns) <= least or not (crowded or tokens > limits.context_tokens):
        return None
    # where bytes say less than the model reported, they say so of every turn
    scale = max(1.0, tokens / max(1, fixed + sum(turn.tokens for turn in turns)))
    most = (limits.context_messages or count) // 2 if crowded else count
    kept = len(turns)
    while kept > least and (
        kept == len(turns)
        or kept * 2 - 1 > max(1, most)
        or (fixed + sum(turn.tokens for turn in turns[-kept:])) * scale > limits.context_tokens / 2
    ):
        kept -= 1
    pair = (fixed + sum(turn.tokens for turn in turns[-2:])) * scale
    if kept == 1 and len(turns) > 2 and pair <= limits.context_tokens and most >= 3:
        kept = 2
    return turns[-kept].first_seq


def move_head(head: Sequence[Block], fallen: Sequence[Message], kept: Sequence[Message]) -> list[Block]:
    """Return what stands before a window that has moved: what stood there, and the role if it fell out.

    A role that is still activated inside the window is not said twice.
    """
    others = [block for block in head if ACTIVATION not in block]
    if _activation(kept) is not None:
        return others
    before: list[Message] = [{"role": "user", "content": list(head)}, *fallen]
    role = carried_role(before)
    return others if role is None else [*others, role]


def carried_role(messages: Sequence[Message]) -> Block | None:
    """Return the newest role activation as text that needs no tool call before it; None when there is none."""
    found = _activation(messages)
    if found is None or found["type"] == "text":
        return found
    role = found[ACTIVATION]
    text = ROLE_CARRIED.format(role=role["role"], text=plain_text(found["content"]))
    return text_block(text) | {ACTIVATION: role}


def _activation(messages: Sequence[Message]) -> Block | None:
    for message in reversed(messages):
        for block in reversed(message["content"]):
            if ACTIVATION in block:
                return block
    return None


# Inside a running turn


def count_seen(messages: Sequence[Message]) -> int:
    """Return how many of a window's messages the model has seen: those before its newest answer."""
    places = range(len(messages) - 1, -1, -1)
    return next((place for place in places if messages[place]["role"] == "assistant"), 0)


def without_bound(content: Sequence[Block]) -> list[Block]:
    """Return an answer as it may go on when something before it was rewritten: without thinking and citations.

    Thinking is bound to the words before it, citations count their search results.
    """
    kept = [block for block in content if block["type"] not in ("thinking", "redacted_thinking")]
    return [{key: value for key, value in block.items() if key != "citations"} for block in kept]


def sheddable(messages: Iterable[Message]) -> list[Sheddable]:
    """Return the tool results that may be left out of requests, oldest first.

    A role stays: the model acts by it. What is smaller than its mark stays too.
    """
    names: dict[str, str] = {}
    found = []
    for message in messages:
        names |= {use["id"]: use["name"] for use in tool_uses(message["content"])}
        for block in message["content"]:
            if block["type"] != "tool_result" or ACTIVATION in block or SHED in block:
                continue
            name = names.get(block["tool_use_id"], "a tool")
            mark = SHED_MARK.format(name=name, ref=block.get(REF) or "ref_" + "0" * 26)
            saved = tokens_of(block["content"]) + picture_tokens(block["content"]) - tokens_of([text_block(mark)])
            if saved > 0:
                alone = ref_of_image(block["content"][0]) if len(block["content"]) == 1 else None
                ref = block.get(REF) or alone or ""
                pictures = len(pictures_in([block]))
                found.append(Sheddable(block["tool_use_id"], name, result_text(block), ref, saved, pictures))
    return found


def choose_to_shed(
    messages: Sequence[Message], excess: int, spare: int = 0, *, old_only: bool = False
) -> list[Sheddable]:
    """Return the results of a window that must go to save ``excess`` tokens, oldest first; all that may, if too few.

    What the model has not seen yet stays. ``spare`` is saved beyond the need, so that it happens rarely, but not of the
    newest steps, which go last, and with ``old_only`` not at all.
    """
    steps = [place for place, message in enumerate(messages) if any(map(_is_result, message["content"]))]
    newest = steps[-KEPT_STEPS:][0] if steps else 0
    old = sheddable(messages[: min(newest, count_seen(messages))])
    chosen = _first_to_save(old, excess + spare) if excess > 0 else []
    saved = sum(result.saved for result in chosen)
    if saved < excess and not old_only:
        chosen += _first_to_save(sheddable(messages[: count_seen(messages)])[len(old) :], excess - saved)
    return chosen


def largest_to_shed(messages: Sequence[Message], excess: int) -> list[Sheddable]:
    """Return the largest results of a window, seen or not, that save ``excess`` tokens together; one in any case."""
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


def _is_result(block: Block) -> bool:
    return bool(block["type"] == "tool_result")


def shed_results(content: Sequence[Block], refs: dict[str, Block]) -> list[Block]:
    """Return a message's blocks with the named results marked as left out; ``refs``: by call id."""
    return [
        {**block, SHED: refs[block["tool_use_id"]]}
        if block["type"] == "tool_result" and block["tool_use_id"] in refs
        else block
        for block in content
    ]


def result_text(block: Block) -> str:
    """Return the text of a tool result; a search result is its title and its sentences."""
    parts = []
    for part in block["content"]:
        if part["type"] == "text":
            parts.append(part["text"])
        elif part["type"] == "search_result":
            parts.append(f"{part['title']}\n" + " ".join(each["text"] for each in part["content"]))
        elif ref_of_image(part):
            parts.append(image_in_words(part))
    return "\n\n".join(parts)


def list_rewrites(entries: Iterable["Entry"]) -> list[tuple["Entry", list[Block]]]:
    """Return the answers among these that change when something before them was rewritten, with their content then."""
    answers = [(entry, without_bound(entry.message["content"])) for entry in entries if _is_answer(entry)]
    return [(entry, content) for entry, content in answers if content != entry.message["content"]]


def _is_answer(entry: "Entry") -> bool:
    return entry.message["role"] == "assistant"


# The transcript


@dataclass(frozen=True, slots=True)
class Entry:
    """One message with its place. ``message_id`` is what clients know it by."""

    seq: int
    turn_id: TurnId
    step: int
    message_id: MessageId
    message: Message


@dataclass(frozen=True, slots=True)
class Measure:
    """What a model reported of a request that held the messages before ``until``."""

    tokens: int
    until: int


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

    def lost(self, gone: Collection[str]) -> dict[str, str]:
        """Return the documents of passages all of whose sentences are gone and of which no note tells: id and name."""
        places = sorted({place for chunk in gone for place in self.chunks.get(chunk, ())})
        lost = [self._passages[place] for place in places if self._passages[place][2].issubset(gone)]
        return {ident: name for ident, name, _ in lost if ident not in self._told_gone}


def last_activation(transcript: Sequence[Message]) -> Activation | None:
    """Return the newest role activation in a transcript, or None."""
    blocks = (block for message in reversed(transcript) for block in reversed(message["content"]))
    return next((found for block in blocks if (found := Activation.of(block)) is not None), None)


class _Window:
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

    def tokens(self, first: int, end: int | None) -> int:
        """Return the tokens of the entries from one place to before another."""
        low = bisect_left(self._places, first)
        high = len(self._places) if end is None else bisect_left(self._places, end)
        return self._tokens[max(low, high)] - self._tokens[low]


def _is_more_than_words(block: Block) -> bool:
    return block["type"] != "text" or not block.keys().isdisjoint((ACTIVATION, DOWN, GONE))


def _place_of(entry: Entry) -> int:
    return entry.seq


def _weight_of(entry: Entry) -> int:
    return ENTRY_BYTES + memory_of(entry.message["content"])


class Transcript:
    """The messages of one session that are not archived, as the store holds them.

    Args:
        session_id: the session's.
        labels: whose the session is.
        entries: the messages, oldest first.
        window_start: the place from which on they are sent.
        head: what stands before those.
        base_seq: the last place ever given out.
        measure: None when the request has changed in other ways than by growing.
        told: what the session was told before its messages; None: the next turn tells it what holds then.
    """

    def __init__(
        self,
        session_id: SessionId,
        labels: SessionLabels,
        *,
        entries: Iterable[Entry] = (),
        window_start: int = 0,
        head: Iterable[Block] = (),
        base_seq: int = 0,
        measure: Measure | None = None,
        told: Told | None = None,
    ) -> None:
        self.session_id = session_id
        self.labels = labels
        self.entries = list(entries)
        self.window_start = window_start
        self.head = list(head)
        self.measure = measure
        self.told = told
        self.compact_past = 0.0
        """Tokens below which no compaction is tried again, since one has failed."""
        self._base_seq = base_seq
        self._refused = {
            entry.turn_id for entry in self.entries for block in entry.message["content"] if REFUSED in block
        }
        self._window = _Window()
        self._taken = 0
        """How many of the entries were offered to the window."""
        self._sizes: dict[int, tuple[list[Block], int]] = {}
        """Tokens by place, each with the content that was counted: other content is counted anew."""
        self._told_weighed: tuple[Told | None, int] = (None, 0)
        self._weighed, self._weight = 0, 0
        """How many of the entries were weighed, and their bytes."""
        self._sent: SentMessages | None = None

    @property
    def memory(self) -> int:
        """About how many bytes it has in memory; what was counted once is not walked again."""
        self._weight += sum(map(_weight_of, self.entries[self._weighed :]))
        self._weighed = len(self.entries)
        return FIXED_BYTES + self._weight + self._told_weight() + (0 if self._sent is None else self._sent.memory)

    def _told_weight(self) -> int:
        told = self.told
        if self._told_weighed[0] is not told:
            parts = [] if told is None else [told.first, *([] if told.latest is told.first else [told.latest])]
            weight = sum(memory_of([*part.system, *part.tools]) for part in parts)
            self._told_weighed = told, weight + (0 if told is None else memory_of(told.late))
        return self._told_weighed[1]

    @property
    def last_seq(self) -> int:
        """The last place in the session, which may be another branch's."""
        return max(self._base_seq, self.entries[-1].seq if self.entries else 0)

    @property
    def message_count(self) -> int:
        """Messages as clients count: two a turn."""
        return len({entry.message_id for entry in self.entries})

    def plan(self, turn_id: TurnId, step: int, message_id: MessageId, messages: Iterable[Message]) -> list[Entry]:
        """Number messages that are about to be stored; `extend` takes them once they are."""
        return [
            Entry(self.last_seq + 1 + offset, turn_id, step, message_id, message)
            for offset, message in enumerate(messages)
        ]

    def extend(self, entries: Iterable[Entry]) -> None:
        """Take messages that the store has committed."""
        self.entries.extend(entries)

    def append(self, seq: int, turn_id: TurnId, step: int, message_id: MessageId, message: Message) -> None:
        """Take one message that the store has committed."""
        self.entries.append(Entry(seq, turn_id, step, message_id, message))

    def window(self) -> list[Message]:
        """Return the messages that are sent to the model, oldest first, what stands before them included."""
        sent = self._present_window().messages
        return [{"role": "user", "content": list(self.head)}, *sent] if self.head else list(sent)

    def in_window(self) -> list[Entry]:
        """Return the entries from the window's start on; turns that a model declined to answer are not among them."""
        return list(self._present_window().entries)

    @property
    def cited(self) -> set[str]:
        """Ids of all chunks whose sentences stand in what is sent."""
        return self._present_window().passages.chunks.keys() | cited_chunks([{"role": "user", "content": self.head}])

    def lost_documents(self, gone: Collection[str]) -> dict[str, str]:
        """Return the documents of passages all of whose chunks are gone and of which no note tells: id and name."""
        return self._present_window().passages.lost(gone)

    @property
    def pictures(self) -> AbstractSet[str]:
        """Where the images are kept that are sent."""
        return self._present_window().pictures | refs_of_images([{"role": "user", "content": self.head}])

    @property
    def down(self) -> tuple[str, ...]:
        """Names of the servers that the newest note on servers says cannot be called."""
        return self._present_window().down

    @property
    def activation(self) -> Activation | None:
        """The newest role activation in what is sent."""
        newest = self._present_window().activation
        return newest or last_activation([{"role": "user", "content": self.head}])

    def _present_window(self) -> _Window:
        while self._taken < len(self.entries):
            entry = self.entries[self._taken]
            if self.is_sent(entry):
                self._window.add(entry, self._size(entry))
            self._taken += 1
        return self._window

    def _begin_window(self) -> None:
        """Look at all entries anew: some of them, or which of them are sent, has changed."""
        self._window = _Window()
        self._taken = 0

    def rewrite(self, entry: Entry, content: list[Block]) -> None:
        """Take other content of a message, which the store has committed."""
        place = bisect_left(self.entries, entry.seq, key=_place_of)
        before = self.entries[place]
        after = replace(before, message={"role": before.message["role"], "content": content})
        self.entries[place] = after
        if place < self._weighed:
            self._weight += _weight_of(after) - _weight_of(before)
        if self._taken == len(self.entries) == place + 1 and self._window.take_back(before, self._size(before)):
            self._taken -= 1
        else:
            self._begin_window()

    def question_of(self, turn_id: TurnId) -> Entry:
        """Return the user's message with which a turn began."""
        return next(entry for entry in reversed(self.entries) if entry.turn_id == turn_id and entry.step == 0)

    def tell(self, told: Told) -> None:
        """Take what the store has committed of what the session was told."""
        self.told = told

    def leave_out(self, question: Entry, content: list[Block]) -> None:
        """Take a question that the store has marked as one the model declined to answer; its turn is sent no more."""
        self._refused.add(question.turn_id)
        self.rewrite(question, content)
        self.measure = None

    # What its requests are built from

    def take_sent(self) -> SentMessages | None:
        """Return what the last request was built from, for the next one, which uses it up; None: nothing is kept."""
        sent, self._sent = self._sent, None
        return sent

    def keep_sent(self, sent: SentMessages) -> None:
        """Keep what a request was built from, until the next one."""
        self._sent = sent

    def rest(self) -> int:
        """Let go of encoded messages, if they are many, since nothing needs the transcript now; return its memory."""
        if self._sent is not None:
            self._sent.forget_bytes(RESTING_BYTES)
        return self.memory

    # Size

    def tokens(self, fixed: int) -> int:
        """Return about how many tokens the next request has; ``fixed``: those of system and tools."""
        if self.measure is not None:
            return self.measure.tokens + self.sent_tokens(self.measure.until)
        return fixed + self.head_tokens + self.sent_tokens()

    def sent_tokens(self, first: int = 0, end: int | None = None) -> int:
        """Return about how many tokens the messages from one place to before another have as they are sent: what
        stands in the window twice counts once."""
        return self._present_window().tokens(first, end)

    def pictures_to_shed(self) -> list[Sheddable]:
        """See `pictures_to_shed`; most conversations have no images, and are not walked for it."""
        window = self._present_window()
        return pictures_to_shed(window.messages) if window.pictures else []

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
        return list(self._present_window().turns)

    def unseen_turns(self) -> int:
        """Return how many of the newest turns hold results that no model has seen, and all after them."""
        entries = self._present_window().entries
        for entry in entries[count_seen(self._present_window().messages) :]:
            if any(map(_is_result, entry.message["content"])):
                turns = dict.fromkeys(each.turn_id for each in entries)
                return len(turns) - list(turns).index(entry.turn_id)
        return 0

    def set_window(self, start: int, head: list[Block]) -> None:
        """Take a window that the store has committed."""
        self.window_start = start
        self.head = head
        self.measure = None
        self.told = None
        self._begin_window()

    def is_sent(self, entry: Entry) -> bool:
        """Whether requests hold an entry."""
        return entry.seq >= self.window_start and entry.turn_id not in self._refused

    def split(self, turn_id: TurnId | None, limit: int) -> tuple[list[Entry], list[Entry]]:
        """Return the entries that a compaction may archive, and those that stay.

        What no model has seen stays with its turn, and of the running turn ``turn_id`` the question and the newest
        steps, as far as they are small. ``limit``: tokens that a request may have.
        """
        unseen = self.unseen_turns()
        turns = list(dict.fromkeys(entry.turn_id for entry in self.in_window()))[-unseen:] if unseen else []
        steps = [] if turn_id is None else self._newest_steps(turn_id, round(limit * KEPT_SHARE))
        staying = [entry.seq for entry in self.entries if entry.turn_id in turns]
        first = min([*staying, *(entry.seq for entry in steps)], default=self.last_seq + 1)
        kept = [entry for entry in self.entries if entry.seq >= first and (entry.turn_id != turn_id or entry in steps)]
        places = {entry.seq for entry in kept}
        return [entry for entry in self.entries if entry.seq not in places], kept

    def _newest_steps(self, turn_id: TurnId, budget: int) -> list[Entry]:
        own = [entry for entry in self.entries if entry.turn_id == turn_id]
        begun = [place for place, entry in enumerate(own) if entry.message["role"] == "assistant"]
        first = len(own) if begun else 1
        for place in reversed(begun[-KEPT_STEPS:]):
            budget -= sum(map(self._size, own[place:first]))
            if budget < 0 and first < len(own):
                break
            first = place
        return own[:1] + own[first:]

    def tokens_to_archive(self, turn_id: TurnId | None, limit: int) -> int:
        """Return about how many tokens of the next request a compaction would replace."""
        return sum(self._size(entry) for entry in self.split(turn_id, limit)[0] if self.is_sent(entry))

    def archive(self, kept: Sequence[Entry], start: int, head: list[Block]) -> None:
        """Forget all other messages, which the store has archived; ``head`` stands for them."""
        self._base_seq = self.last_seq
        self.entries = list(kept)
        self._sizes.clear()
        self._weighed = self._weight = 0
        self.compact_past = 0.0
        self.set_window(start, head)
