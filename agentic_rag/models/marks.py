"""Citations for models without native citations, by numbered passages and marks in the text.

Renders ``search_result`` blocks as numbered text, adds the instruction to cite them, and converts marks (`mark_reader`)
to the events of a model with native citations. Pure; knows no provider and no stream format, so that every adapter can
use this module.

Passage ``n`` is the search result with the ``search_result_index`` ``n - 1``. The numbers run over the whole request.
"""

import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from agentic_rag.base.messages import Block, Message, text_block
from agentic_rag.models.base import (
    BlockStarted,
    BlockStopped,
    Citation,
    CitationDelta,
    InputDelta,
    ModelEvent,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
)
from agentic_rag.models.mark_reader import Mark, MarkReader
from agentic_rag.models.words import CJK, is_stop_word

INSTRUCTION = (
    "Search results are given to you as numbered passages: [1], [2] and so on. Right after each statement that "
    "rests on a passage, write the passage's number in double square brackets, for example [[2]]; for several "
    "passages write [[2]][[5]]. Use no other form of citation, and only numbers you were given."
)

_BELONGS_BEFORE = re.compile(r"(?:\s*[.,;:!?)\]。，；：！？、）」』”])*")
"""Punctuation behind a mark that still belongs to the marked statement, with blanks only before it."""

_SENTENCE_END = re.compile(r"(?<=[.!?。！？\n])\s*")
_WORD = re.compile(rf"[^\W{CJK}]+")
_CJK = re.compile(rf"[{CJK}]+")


def with_numbered_passages(request: ModelRequest) -> tuple[ModelRequest, list[Block]]:
    """Return the request with its search results as numbered text, and these results in order.

    The instruction is added even without results, so that the first search does not change the system prompt.
    """
    passages: list[Block] = []
    messages = tuple(_message(message, passages) for message in request.messages)
    return replace(request, system=(*request.system, text_block(INSTRUCTION)), messages=messages), passages


def _message(message: Message, passages: list[Block]) -> Message:
    return {"role": message["role"], "content": [_block(block, passages) for block in message["content"]]}


def _block(block: Block, passages: list[Block]) -> Block:
    if block["type"] == "text" and block.get("citations"):
        return _with_marks(block, passages)
    if block["type"] == "tool_result" and isinstance(block.get("content"), list):
        return {**block, "content": [_block(inner, passages) for inner in block["content"]]}
    if block["type"] != "search_result":
        return block
    passages.append(block)
    # One line per sentence, because the blocks carry no separators.
    lines = "\n".join(inner["text"] for inner in block["content"])
    return text_block(f"[{len(passages)}] {block['title']}\n{lines}")


def _with_marks(block: Block, passages: Sequence[Block]) -> Block:
    """Return an earlier answer's text with its marks restored. A model that sees no marks stops writing marks."""
    numbers = [
        number
        for citation in block["citations"]
        for number, passage in enumerate(passages, 1)
        if citation.get("search_result_index") == number - 1 and citation.get("source") == passage["source"]
    ]
    rest = {key: value for key, value in block.items() if key != "citations"}
    text = block["text"]
    end = len(text.rstrip())
    return {**rest, "text": text[:end] + "".join(f"[[{number}]]" for number in numbers) + text[end:]}


class MarkedAnswer:
    """Converts the events of an answer with marks to those of an answer with citations.

    A `CitationDelta` replaces each mark. The statement before the mark gets a separate text block, as with native
    citations. The following text opens a new block, so blocks are renumbered.

    A mark with an unknown number, or before any statement, becomes a `CitationDelta` that cites nothing, so that the
    citation check counts it. A repeated mark of the same passage behind the same statement is dropped.
    """

    def __init__(self, passages: Sequence[Block]) -> None:
        self._passages = passages
        self._count = 0  # blocks opened so far
        self._reader = MarkReader()  # reads the model's current text block
        self._text = ""  # text of the open block
        self._blank = ""  # white space behind a mark; belongs to this block or to the next one
        self._citations: list[Citation] = []  # citations of the open block
        self._claim: Set[str] = frozenset()  # words of the statement that these citations support
        self._words: dict[int, list[set[str]]] = {}  # words of each block of the cited passages

    def take(self, event: ModelEvent) -> list[ModelEvent]:
        """Convert one event of the model. Text may be held back until the next event."""
        if isinstance(event, TextDelta):
            return [out for part in self._reader.feed(event.text) for out in self._take_part(part)]
        if isinstance(event, BlockStarted):
            self._count += 1
            self._reader = MarkReader()
            self._text, self._blank, self._citations = "", "", []
            return [BlockStarted(self._count - 1, event.block)]
        if isinstance(event, BlockStopped):
            if event.block["type"] != "text":
                return [BlockStopped(self._count - 1, event.block)]
            rest = [out for part in self._reader.end() for out in self._take_part(part)]
            if self._blank:
                rest.append(self._delta(self._blank))
            return [*rest, self._stop()]
        if isinstance(event, ThinkingDelta | InputDelta | CitationDelta):
            return [replace(event, index=self._count - 1)]
        return [event]

    def _take_part(self, part: str | Mark) -> list[ModelEvent]:
        if isinstance(part, str):
            return self._say(part)
        if not self._passages and not part.sure:
            return self._say(part.text)
        return [event for number in part.numbers for event in self._cite(number)]

    def _say(self, text: str) -> list[ModelEvent]:
        events: list[ModelEvent] = []
        if self._citations:  # the block of the cited statement is still open: its punctuation may follow the mark
            text, self._blank = self._blank + text, ""
            before = _BELONGS_BEFORE.match(text)
            cut = before.end() if before else 0
            if cut:
                events.append(self._delta(text[:cut]))
            text = text[cut:]
            if not text.strip():
                self._blank = text
                return events
            events += [self._stop(), BlockStarted(self._count, text_block(""))]
            self._count += 1
            self._text, self._citations = "", []
        return [*events, self._delta(text)]

    def _delta(self, text: str) -> ModelEvent:
        self._text += text
        return TextDelta(self._count - 1, text)

    def _stop(self) -> ModelEvent:
        block = text_block(self._text)
        if self._citations:
            block["citations"] = [citation.raw for citation in self._citations]
        return BlockStopped(self._count - 1, block)

    def _cite(self, number: int) -> list[ModelEvent]:
        if any(number - 1 == citation.search_result_index for citation in self._citations):
            return []
        if not 1 <= number <= len(self._passages) or not self._text.strip():
            return [CitationDelta(self._count - 1, Citation(number - 1, 0, 0, "", {}))]
        if not self._citations:  # text behind a mark in the same block holds no words
            self._claim = claim_of(self._text)
        passage = self._passages[number - 1]
        if number not in self._words:
            self._words[number] = words_of(passage)
        start, end = best_blocks(self._words[number], self._claim)
        cited = "".join(block["text"] for block in passage["content"][start:end])
        raw = {
            "type": "search_result_location",
            "cited_text": cited,
            "search_result_index": number - 1,
            "source": passage["source"],
            "title": passage["title"],
            "start_block_index": start,
            "end_block_index": end,
        }
        shares = any(not is_stop_word(word) for word in self._claim & frozenset().union(*self._words[number]))
        citation = Citation(number - 1, start, end, cited, raw, verified=shares)
        self._citations.append(citation)
        return [CitationDelta(self._count - 1, citation)]


def claim_of(text: str) -> Set[str]:
    """Return the words of the last sentence of a text."""
    sentences = [part for part in _SENTENCE_END.split(text) if part.strip()]
    return _words(sentences[-1]) if sentences else frozenset()


def words_of(passage: Block) -> list[set[str]]:
    """Return the words of each block of a passage."""
    return [_words(block["text"]) for block in passage["content"]]


def best_blocks(words: Sequence[Set[str]], claim: Set[str]) -> tuple[int, int]:
    """Return the block range of a passage that most likely supports a sentence.

    ``words``: the words of each block. ``claim``: the words of the sentence. The range is the first block with the most
    shared words, or the whole passage if no block shares a word.
    """
    shared = [len(claim & block) for block in words]
    most = max(shared)
    if not most:
        return 0, len(shared)
    start = shared.index(most)
    return start, start + 1


def count_shared(claim: str, texts: Iterable[str]) -> int:
    """Return how many words of a claim occur in at least one of the texts."""
    return len(_words(claim) & set().union(*map(_words, texts)))


def _words(text: str) -> set[str]:
    """Return the words of a text, and pairs of neighbouring characters for scripts without spaces."""
    folded = text.casefold()
    words = set(_WORD.findall(folded))
    for run in _CJK.findall(folded):
        words.update(run[i : i + 2] for i in range(max(1, len(run) - 1)))
    return words
