"""A session's transcript in memory, and the window of it that is sent. Pure.

Owns the order and the numbers of messages, and the rules about size: when the window moves, and which results are left
out. Tokens are those of the model's last report plus those added since. The store is the truth; a transcript is its
copy, so that a turn does not read the store again. Messages are replaced, never changed in place. `context` carries out
the decisions of this module.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from agentic_rag.base.ids import MessageId, SessionId, TurnId
from agentic_rag.base.messages import (
    ACTIVATION,
    REFUSED,
    Activation,
    Block,
    Message,
    plain_text,
    refs_of_images,
    text_block,
)
from agentic_rag.runtime.core.definition import Limits
from agentic_rag.runtime.core.prompt_state import PromptState
from agentic_rag.runtime.core.sent_messages import SentMessages
from agentic_rag.runtime.core.window import (
    KEPT_STEPS,
    Passages,
    Sheddable,
    TranscriptEntry,
    TurnSize,
    Window,
    cited_chunks,
    count_seen,
    has_results,
    last_activation,
    memory_of,
    message_tokens,
    pictures_to_shed,
    tokens_of,
)
from agentic_rag.store.sessions import SessionLabels

ROLE_CARRIED = '[carried over: the role "{role}", activated earlier in this conversation]\n{text}'
KEPT_SHARE = 0.25
"""Share of the limit for the newest steps that a compaction does not archive."""


FIXED_BYTES = 2_000
"""Memory of a transcript besides its messages and its prompt state."""
ENTRY_BYTES = 800
"""Memory of an entry besides its content: ids, the message, and counts."""
ASKED_BYTES = 64
"""Memory for the id of a chunk whose existence was checked."""


# The window


def move_start(turns: Sequence[TurnSize], tokens: int, fixed: int, limits: Limits, least: int = 1) -> int | None:
    """Return the new start of the window, or None if the window does not move.

    The window moves when ``tokens`` exceed ``contextTokens``, or the messages exceed ``contextMessages``. It then keeps
    half of that limit. The turn that begins always stays. The turn before it stays if both fit, because without it a
    follow-up question would have no meaning.

    Args:
        turns: the window's turns, oldest first; the last one is the turn that begins.
        tokens: tokens of the next request.
        fixed: the tokens that no window changes (system, tools, the blocks before the window).
        limits: the definition's limits.
        least: how many of the newest turns stay in any case.
    """
    count = len(turns) * 2 - 1
    crowded = limits.context_messages is not None and count > limits.context_messages
    if len(turns) <= least or not (crowded or tokens > limits.context_tokens):
        return None
    # if the model reported more tokens than the bytes suggest, that holds for every turn
    scale = max(1.0, tokens / max(1, fixed + sum(turn.tokens for turn in turns)))
    most = (limits.context_messages or count) // 2 if crowded else count
    turn_count = len(turns)
    while turn_count > least and (
        turn_count == len(turns)
        or turn_count * 2 - 1 > max(1, most)
        or (fixed + sum(turn.tokens for turn in turns[-turn_count:])) * scale > limits.context_tokens / 2
    ):
        turn_count -= 1
    pair = (fixed + sum(turn.tokens for turn in turns[-2:])) * scale
    if turn_count == 1 and len(turns) > 2 and pair <= limits.context_tokens and most >= 3:
        turn_count = 2
    return turns[-turn_count].first_seq


def move_head(head: Sequence[Block], fallen: Sequence[Message], remaining: Sequence[Message]) -> list[Block]:
    """Return the blocks before a moved window: those before the old one, and the role if it fell out.

    A role that is activated inside the window is not repeated.
    """
    other_blocks = [block for block in head if ACTIVATION not in block]
    if _activation(remaining) is not None:
        return other_blocks
    before: list[Message] = [{"role": "user", "content": list(head)}, *fallen]
    role = carried_role(before)
    return other_blocks if role is None else [*other_blocks, role]


def carried_role(messages: Sequence[Message]) -> Block | None:
    """Return the newest role activation as a text block that needs no tool call before it, or None without one."""
    activation = _activation(messages)
    if activation is None or activation["type"] == "text":
        return activation
    role = activation[ACTIVATION]
    text = ROLE_CARRIED.format(role=role["role"], text=plain_text(activation["content"]))
    return text_block(text) | {ACTIVATION: role}


def _activation(messages: Sequence[Message]) -> Block | None:
    for message in reversed(messages):
        for block in reversed(message["content"]):
            if ACTIVATION in block:
                return block
    return None


# Inside a running turn


def without_bound(content: Sequence[Block]) -> list[Block]:
    """Return an answer without thinking and citations, for use after something before it was rewritten.

    Thinking is bound to the words before it, and citations number the search results before them.
    """
    blocks = [block for block in content if block["type"] not in ("thinking", "redacted_thinking")]
    return [{key: value for key, value in block.items() if key != "citations"} for block in blocks]


def list_rewrites(entries: Iterable["TranscriptEntry"]) -> list[tuple["TranscriptEntry", list[Block]]]:
    """Return the answers that change when something before them was rewritten, with their new content."""
    answers = [(entry, without_bound(entry.message["content"])) for entry in entries if _is_answer(entry)]
    return [(entry, content) for entry, content in answers if content != entry.message["content"]]


def _is_answer(entry: "TranscriptEntry") -> bool:
    return entry.message["role"] == "assistant"


# The transcript


@dataclass(frozen=True, slots=True)
class Measure:
    """The tokens that a model reported for a request with the messages before ``until``."""

    tokens: int
    until: int


def _place_of(entry: TranscriptEntry) -> int:
    return entry.seq


def _weight_of(entry: TranscriptEntry) -> int:
    return ENTRY_BYTES + memory_of(entry.message["content"])


@dataclass(frozen=True, slots=True)
class GoneChunks:
    """The chunks that were looked up in the index, and those that no longer exist.

    The result is valid while ``mark`` stays the same, which changes with every document.
    """

    mark: object = None
    asked: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()


class Transcript:
    """The messages of one session that are not archived, as the store has them.

    Args:
        session_id: id of the session.
        labels: the session's conversation, domain, user and agent.
        entries: the messages, oldest first.
        window_start: number of the first message that is sent.
        head: the blocks before that message.
        base_seq: the last number given to a message.
        measure: the last reported tokens, or None if the request has changed since in other ways than by growing.
        prompt_state: the session's prompt state, or None if the next turn sets it.
    """

    def __init__(
        self,
        session_id: SessionId,
        labels: SessionLabels,
        *,
        entries: Iterable[TranscriptEntry] = (),
        window_start: int = 0,
        head: Iterable[Block] = (),
        base_seq: int = 0,
        measure: Measure | None = None,
        prompt_state: PromptState | None = None,
    ) -> None:
        self.session_id = session_id
        self.labels = labels
        self.entries = list(entries)
        self.window_start = window_start
        self.head = list(head)
        self.measure = measure
        self.prompt_state = prompt_state
        self.compact_past = 0.0
        """Tokens below which no compaction is tried, because one has failed."""
        self._base_seq = base_seq
        self._refused = {
            entry.turn_id for entry in self.entries for block in entry.message["content"] if REFUSED in block
        }
        self._window = Window()
        self._taken = 0
        """How many entries were offered to the window."""
        self._sizes: dict[int, tuple[list[Block], int]] = {}
        """Tokens by message number, each with the counted content. Other content is counted again."""
        self._weighed_prompt: tuple[PromptState | None, int] = (None, 0)
        self._weighed, self._weight = 0, 0
        """How many entries were weighed, and their bytes."""
        self._sent: SentMessages | None = None
        self._answer = "", ""
        """The provider that gave the newest answer in this process, and its id of that answer."""
        self.gone_chunks = GoneChunks()

    @property
    def memory(self) -> int:
        """The approximate bytes in memory. Each entry is weighed once."""
        self._weight += sum(map(_weight_of, self.entries[self._weighed :]))
        self._weighed = len(self.entries)
        sent = 0 if self._sent is None else self._sent.memory
        asked_bytes = ASKED_BYTES * len(self.gone_chunks.asked)
        return FIXED_BYTES + self._weight + self._prompt_weight() + self._window.memory + sent + asked_bytes

    def _prompt_weight(self) -> int:
        state = self.prompt_state
        if self._weighed_prompt[0] is not state:
            parts = [] if state is None else [state.first, *([] if state.latest is state.first else [state.latest])]
            weight = sum(memory_of([*part.system, *part.tools]) for part in parts)
            self._weighed_prompt = state, weight + (0 if state is None else memory_of(state.late))
        return self._weighed_prompt[1]

    @property
    def last_seq(self) -> int:
        """The last message number in the session, which may belong to another branch."""
        return max(self._base_seq, self.entries[-1].seq if self.entries else 0)

    @property
    def message_count(self) -> int:
        """Messages as clients count them: two per turn."""
        return len({entry.message_id for entry in self.entries})

    def plan(
        self, turn_id: TurnId, step: int, message_id: MessageId, messages: Iterable[Message]
    ) -> list[TranscriptEntry]:
        """Number messages that are about to be stored. After the commit, `extend` adds them."""
        return [
            TranscriptEntry(self.last_seq + 1 + offset, turn_id, step, message_id, message)
            for offset, message in enumerate(messages)
        ]

    def extend(self, entries: Iterable[TranscriptEntry]) -> None:
        """Add messages that the store has committed."""
        self.entries.extend(entries)

    def append(self, seq: int, turn_id: TurnId, step: int, message_id: MessageId, message: Message) -> None:
        """Add one message that the store has committed."""
        self.entries.append(TranscriptEntry(seq, turn_id, step, message_id, message))

    def window(self) -> list[Message]:
        """Return the messages that are sent to the model, oldest first, with the blocks before them."""
        sent = self._present_window().messages
        return [{"role": "user", "content": list(self.head)}, *sent] if self.head else list(sent)

    def in_window(self) -> list[TranscriptEntry]:
        """Return the entries from the window's start, without the turns that a model declined to answer."""
        return list(self._present_window().entries)

    @property
    def cited(self) -> set[str]:
        """The ids of all chunks with sentences in the sent messages."""
        chunks = set(self._present_window().passages.chunks)
        return chunks | cited_chunks([{"role": "user", "content": self.head}]) if self.head else chunks

    @property
    def cited_documents(self) -> dict[str, set[str]]:
        """The chunks with sentences in the sent messages, by the ids of their documents."""
        by_document = self._present_window().passages.chunks_by_document()
        if self.head:
            before = Passages()
            before.add({"role": "user", "content": self.head})
            for ident, chunks in before.chunks_by_document().items():
                by_document.setdefault(ident, set()).update(chunks)
        return by_document

    def lost_documents(self, gone_chunks: Collection[str]) -> dict[str, str]:
        """Return the documents of passages whose chunks are all gone and that no note mentions: id and name."""
        return self._present_window().passages.find_lost(gone_chunks) if gone_chunks else {}

    def note_gone(self, gone_chunks: GoneChunks) -> None:
        """Store the result of the check for deleted chunks."""
        self.gone_chunks = gone_chunks

    @property
    def pictures(self) -> AbstractSet[str]:
        """The refs of the sent images."""
        pictures = self._present_window().pictures
        return pictures | refs_of_images([{"role": "user", "content": self.head}]) if self.head else set(pictures)

    @property
    def down(self) -> tuple[str, ...]:
        """Names of the servers that the newest note on servers reports as unavailable."""
        return self._present_window().down

    @property
    def activation(self) -> Activation | None:
        """The newest role activation in the sent messages."""
        newest = self._present_window().activation
        return newest or (last_activation([{"role": "user", "content": self.head}]) if self.head else None)

    def _present_window(self) -> Window:
        while self._taken < len(self.entries):
            entry = self.entries[self._taken]
            if self.is_sent(entry):
                self._window.add(entry, self._size(entry))
            self._taken += 1
        return self._window

    def _begin_window(self) -> None:
        """Rebuild the window, because its entries or the choice of sent entries changed."""
        self._window = Window()
        self._taken = 0

    def rewrite(self, entry: TranscriptEntry, content: list[Block]) -> None:
        """Replace the content of a message after the store has committed the change."""
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

    def question_of(self, turn_id: TurnId) -> TranscriptEntry:
        """Return the user's message with which a turn began."""
        return next(entry for entry in reversed(self.entries) if entry.turn_id == turn_id and entry.step == 0)

    def set_prompt_state(self, state: PromptState) -> None:
        """Set the prompt state that the store has committed."""
        self.prompt_state = state

    def leave_out(self, question: TranscriptEntry, content: list[Block]) -> None:
        """Mark a question that the model declined to answer, as the store has. Its turn is not sent any more."""
        self._refused.add(question.turn_id)
        self.rewrite(question, content)
        self.measure = None

    # State for its requests

    def take_sent(self) -> SentMessages | None:
        """Return and forget the state of the last request, or None without one. The next request uses it up."""
        sent, self._sent = self._sent, None
        return sent

    def keep_sent(self, sent: SentMessages) -> None:
        """Store the state of a request for the next one."""
        self._sent = sent

    def previous_answer(self, model: str) -> str:
        """Return the id that the model's provider gave to its newest answer here, or an empty text without one."""
        provider, answer_id = self._answer
        return answer_id if provider == model.rpartition(":")[0] else ""

    def note_answer(self, model: str, answer_id: str) -> None:
        """Store the id of the newest answer. Only this process knows it; after a restart the first request has none."""
        if answer_id:
            self._answer = model.rpartition(":")[0], answer_id

    # Size

    def tokens(self, fixed: int) -> int:
        """Return the approximate tokens of the next request. ``fixed``: the tokens of system and tools."""
        # this runs several times a step, so it avoids the property's work
        window = self._window if self._taken == len(self.entries) else self._present_window()
        if self.measure is not None:
            return self.measure.tokens + window.tokens(self.measure.until)
        return fixed + self.head_tokens + window.tokens()

    def sent_tokens(self, first: int = 0, end: int | None = None) -> int:
        """Return the approximate tokens of the sent messages from number ``first`` to before ``end``.

        A passage that is in the window twice counts once.
        """
        return self._present_window().tokens(first, end)

    def pictures_to_shed(self) -> list[Sheddable]:
        """Return the results of `window.pictures_to_shed`.

        Without images, which is the usual case, no message is walked.
        """
        window = self._present_window()
        return pictures_to_shed(window.messages) if window.pictures else []

    def _size(self, entry: TranscriptEntry) -> int:
        content, cached = entry.message["content"], self._sizes.get(entry.seq)
        if cached is None or cached[0] is not content:
            cached = self._sizes[entry.seq] = content, message_tokens(entry.message)
        return cached[1]

    @property
    def head_tokens(self) -> int:
        return tokens_of(self.head) if self.head else 0

    def turn_sizes(self) -> list[TurnSize]:
        """Return the turns of the window, oldest first."""
        return list(self._present_window().turns)

    def saved_by_old(self) -> int:
        """Return the tokens saved by leaving out all results before the newest steps."""
        return self._present_window().saved_by_old()

    def unseen_turns(self) -> int:
        """Return the number of turns from the first with results that no model has seen to the newest."""
        entries = self._present_window().entries
        for entry in entries[count_seen(self._present_window().messages) :]:
            if has_results(entry.message):
                turns = dict.fromkeys(entry.turn_id for entry in entries)
                return len(turns) - list(turns).index(entry.turn_id)
        return 0

    def set_window(self, start: int, head: list[Block]) -> None:
        """Set a window that the store has committed."""
        self.window_start = start
        self.head = head
        self.measure = None
        self.prompt_state = None
        self._begin_window()

    def is_sent(self, entry: TranscriptEntry) -> bool:
        """Return whether requests contain an entry."""
        return entry.seq >= self.window_start and entry.turn_id not in self._refused

    def split(self, turn_id: TurnId | None, limit: int) -> tuple[list[TranscriptEntry], list[TranscriptEntry]]:
        """Return the entries that a compaction may archive, and those that stay.

        Turns with results that no model has seen stay. Of the running turn ``turn_id`` the question and the newest
        steps stay, as far as they are small. ``limit``: tokens that a request may have.
        """
        unseen = self.unseen_turns()
        turns = list(dict.fromkeys(entry.turn_id for entry in self.in_window()))[-unseen:] if unseen else []
        steps = [] if turn_id is None else self._newest_steps(turn_id, round(limit * KEPT_SHARE))
        staying = [entry.seq for entry in self.entries if entry.turn_id in turns]
        first = min([*staying, *(entry.seq for entry in steps)], default=self.last_seq + 1)
        remaining = [
            entry for entry in self.entries if entry.seq >= first and (entry.turn_id != turn_id or entry in steps)
        ]
        places = {entry.seq for entry in remaining}
        return [entry for entry in self.entries if entry.seq not in places], remaining

    def _newest_steps(self, turn_id: TurnId, budget: int) -> list[TranscriptEntry]:
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
        """Return the approximate tokens of the next request that a compaction would replace."""
        return sum(self._size(entry) for entry in self.split(turn_id, limit)[0] if self.is_sent(entry))

    def archive(self, remaining: Sequence[TranscriptEntry], start: int, head: list[Block]) -> None:
        """Drop all other messages, which the store has archived. ``head`` replaces them."""
        self._base_seq = self.last_seq
        self.entries = list(remaining)
        self._sizes.clear()
        self._weighed = self._weight = 0
        self.compact_past = 0.0
        self.set_window(start, head)
