"""The messages of a conversation as requests to one model contain them, each converted once. Pure.

Owns which parts of a transcript are sent, their repair (every ``tool_use`` gets a result), and the numbering of search
results. Messages that can no longer change are settled, and the next request continues after them. Knows no definition,
no tools of a request, and no bytes of images.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter

from agentic_rag.base.messages import (
    MADE_BY,
    NAMED,
    NOTE,
    Block,
    Message,
    Passage,
    has_kept_image,
    image_in_words,
    is_words,
    ref_of_image,
    results_first,
    text_block,
    tool_result_block,
    tool_uses,
)
from agentic_rag.models.encoded import Encoded, Settled
from agentic_rag.models.profiles import is_claude, profile_of
from agentic_rag.runtime.core.deferred_tools import has_references, references_in_words
from agentic_rag.runtime.core.passage_dedup import Repeats, without_repeats_in
from agentic_rag.runtime.core.window import as_sent, has_results, pictures_in
from agentic_rag.tools.base import ToolInfo
from agentic_rag.tools.image_headers import MOST, count_beyond

OUTCOME_UNKNOWN = "outcome unknown: the server stopped while this ran"
REMOVED = "[removed]"
"""Replacement for a sentence of a deleted document, for models other than Claude.

The number of blocks stays the same, so that the indexes of citations stay valid.
"""
BLIND = "[this model cannot be shown images]"
MESSAGE_BYTES = 64
"""Memory of a message that is sent unchanged: its entries in lists."""
MADE_BYTES = 500
"""Memory of a message that had to be converted, without the blocks that it shares with the transcript."""
PASSAGE_BYTES = 800
SENTENCE_BYTES = 80
"""Memory of a passage that can be cited, and of each of its sentences."""

_ROLE = itemgetter("role")


@dataclass(frozen=True, slots=True)
class CitablePassage:
    """A ``search_result`` of a request. ``texts[i]`` is its block i. A deleted chunk has an empty id."""

    source: Passage
    texts: tuple[str, ...]


@dataclass(slots=True)
class Sent:
    """Messages as requests contain them, without the bytes of images.

    ``passages[i]`` is the passage that the API calls ``search_result_index`` i, or None if nothing there may be cited.
    ``call_ids``: ids of all calls. ``pictured``: indexes of messages with images. ``open_ids``: calls of the last
    message.
    """

    messages: list[Message] = field(default_factory=list)
    passages: list[CitablePassage | None] = field(default_factory=list)
    call_ids: set[str] = field(default_factory=set)
    pictured: list[int] = field(default_factory=list)
    open_ids: list[str] = field(default_factory=list)

    def copy(self) -> "Sent":
        """Return a copy that can grow without changing this one."""
        return Sent(
            self.messages.copy(), self.passages.copy(), self.call_ids.copy(), self.pictured.copy(), self.open_ids
        )


class SentMessages:
    """The sent form of one conversation for one model, which grows with the conversation.

    A changed message, model or tool definition needs a new instance (`continues`). All messages are settled except the
    last run of messages with one role: more messages may join the run, and its calls may still get results.
    """

    def __init__(self, model: str, gone_chunks: Collection[str], hidden: Collection[str] = ()) -> None:
        """``gone_chunks``: ids of deleted chunks. ``hidden``: ids of documents that the reader may not see."""
        self._model, self._hidden = model, frozenset(hidden)
        self._gone = frozenset(gone_chunks)
        self._tools: tuple[ToolInfo, ...] = ()
        self._profile = profile_of(model)
        self._stays = is_claude(self._profile.name)
        """Whether sentences of deleted chunks stay, because no earlier message may change."""
        self._named = False
        """Whether messages contain definitions of tools."""
        self._repeats = Repeats(() if self._stays else self._gone)
        self._taken: list[Message] = []
        """The settled messages of the conversation."""
        self._settled = Sent()
        self._encoded = Encoded()
        self._memory = 0

    @property
    def memory(self) -> int:
        """The approximate bytes in memory, without the parts shared with the transcript."""
        return self._memory + self._encoded.size

    @property
    def settled(self) -> Settled:
        """The part of a request that need not be encoded again.

        It ends before the first image: bytes are encoded each time.
        """
        places = self._settled.pictured
        return Settled(places[0] if places else len(self._settled.messages), self._encoded)

    def continues(
        self,
        model: str,
        tools: Sequence[ToolInfo],
        gone_chunks: Collection[str],
        conversation: Sequence[Message],
        hidden: Collection[str] = (),
    ) -> bool:
        """Return whether a conversation begins with the settled messages and all other inputs are the same."""
        same = self._model == model and self._profile == profile_of(model) and self._gone == gone_chunks
        same = same and self._hidden == frozenset(hidden)
        settled = len(self._taken)
        return same and (not self._named or self._tools == tuple(tools)) and conversation[:settled] == self._taken

    def take(self, conversation: Sequence[Message], tools: Sequence[ToolInfo]) -> Sent:
        """Return the sent form of a conversation that continues this one, with the settled part from memory.

        ``tools``: the turn's tools, whose definitions are sent as text if the service does not support references to
        them.
        """
        self._tools = tuple(tools)
        # The API requires alternating roles, so each run of messages with one role becomes one message.
        runs = [list(run) for _, run in groupby(conversation[len(self._taken) :], key=_ROLE)]
        for run in runs[:-1]:
            self._memory += self._add(self._settled, run, self._repeats)
            self._taken += run
        sent = self._settled.copy()
        # The last run is converted for this request only: the state behind it must not learn its passages.
        for run in runs[-1:]:
            self._add(sent, run, Repeats(self._repeats.apart, self._repeats))
        if sent.open_ids:  # the conversation ends with calls that have no results
            sent.messages.append({"role": "user", "content": list(map(_unknown, sent.open_ids))})
        return sent

    def _add(self, sent: Sent, run: list[Message], repeats: Repeats) -> int:
        """Add consecutive messages of one role as one message. Return the approximate bytes of memory for them."""
        if self._hidden and run[0]["role"] == "assistant":
            run = [_without_citations(message, self._hidden) for message in run]
        if len(run) == 1 and not sent.open_ids and is_words(run[0]):  # most messages are sent unchanged
            if sent.messages or run[0]["role"] == "user":
                sent.messages.append(run[0])
            return MESSAGE_BYTES
        message = run[0] if len(run) == 1 else {"role": run[0]["role"], "content": _blocks_of(run)}
        message = without_others(message, self._model)
        passages = len(sent.passages)
        if message["role"] == "user":
            message = self._answering(message, sent.open_ids, repeats, sent.passages)
            sent.open_ids = []
            if not message["content"]:
                return MESSAGE_BYTES
        elif not sent.messages:  # a request must begin with a user message; the orphan is dropped
            return MESSAGE_BYTES
        else:
            sent.open_ids = [block["id"] for block in tool_uses(message["content"])]
            sent.call_ids.update(sent.open_ids)
        for sent_message in _with_system_message(message) if self._profile.system_messages else (message,):
            if any(map(has_kept_image, sent_message["content"])):
                sent.pictured.append(len(sent.messages))
            sent.messages.append(sent_message)
        new = [passage for passage in sent.passages[passages:] if passage is not None]
        passage_bytes = sum(PASSAGE_BYTES + SENTENCE_BYTES * len(passage.texts) for passage in new)
        return MESSAGE_BYTES + (0 if message is run[0] else MADE_BYTES) + passage_bytes

    def _answering(
        self,
        message: Message,
        open_ids: Sequence[str],
        repeats: Repeats,
        passages: list[CitablePassage | None],
    ) -> Message:
        """Return a user's message as it is sent after an answer with these calls. Adds its passages to ``passages``."""
        if not self._profile.deferred_tools and any(map(has_references, message["content"])):
            self._named = True
            message = references_in_words(message, self._tools, self._model)
        message = with_results(results_first(message), open_ids)
        if not has_results(message):
            return message
        message = without_repeats_in(message, repeats)
        content = [
            self._render(block, passages) if block["type"] == "tool_result" else block for block in message["content"]
        ]
        return _with_content(message, content)

    def _render(self, result: Block, passages: list[CitablePassage | None]) -> Block:
        if not self._hidden.isdisjoint(result.get(NAMED, ())):
            return {**result, "content": [text_block(REMOVED)]}
        result = as_sent(result)
        if not any(part["type"] == "search_result" for part in result["content"]):
            return result
        content: list[Block] = []
        for part in result["content"]:  # in order, because a delegate's text comes before its passages
            if part["type"] == "search_result":
                part, passage = _search_result(part, self._gone, self._hidden, stays=self._stays)
                passages.append(passage)
            content.append(part)
        if any(part["type"] == "search_result" and part["source"] in self._hidden for part in content):
            # a note beside the passages may name the document
            content = [text_block(REMOVED) if part["type"] == "text" else part for part in content]
        return {**result, "content": content}


def _without_citations(message: Message, sources: Collection[str]) -> Message:
    """Return an assistant's message without its citations of these documents, which repeat their words and names."""
    return _with_content(message, [_without_cited(block, sources) for block in message["content"]])


def _without_cited(block: Block, sources: Collection[str]) -> Block:
    citations = block.get("citations")
    if block["type"] != "text" or not citations or not any(citation.get("source") in sources for citation in citations):
        return block
    remaining = [citation for citation in citations if citation.get("source") not in sources]
    return {key: value for key, value in block.items() if key != "citations"} | (
        {"citations": remaining} if remaining else {}
    )


def _blocks_of(messages: Iterable[Message]) -> list[Block]:
    return [block for message in messages for block in message["content"]]


def _with_content(message: Message, content: list[Block]) -> Message:
    """Return a message with other blocks, or the same object if each block is the same object."""
    before = message["content"]
    same = all(new is old for new, old in zip(content, before, strict=True))
    return message if same else {"role": message["role"], "content": content}


def without_others(message: Message, model: str) -> Message:
    """Return a message without the thinking of other models, or the same object if it has none."""
    content = message["content"]
    if all(block.get(MADE_BY, model) == model for block in content):
        return message
    return {"role": message["role"], "content": [block for block in content if block.get(MADE_BY, model) == model]}


# Calls and their results


def with_results(message: Message, open_ids: Sequence[str]) -> Message:
    """Return a user's message with exactly one result for each of these calls, or the same object if that holds.

    A call without a result, which a crash or a kill causes, gets a result that says that the outcome is unknown.
    Results without a call, which only a moved window causes, are dropped.
    """
    content = message["content"]
    results = [block for block in content if block["type"] == "tool_result"]
    if [block["tool_use_id"] for block in results] == list(open_ids):
        return message
    present = {block["tool_use_id"]: block for block in results}
    answers = [present.get(ident) or _unknown(ident) for ident in open_ids]
    return {"role": "user", "content": answers + [block for block in content if block["type"] != "tool_result"]}


def _unknown(tool_use_id: str) -> Block:
    return tool_result_block(tool_use_id, [text_block(OUTCOME_UNKNOWN)], is_error=True)


def _search_result(
    block: Block, gone_chunks: frozenset[str], hidden: frozenset[str], *, stays: bool
) -> tuple[Block, CitablePassage | None]:
    """Return a passage as it is sent, and its citable form; None if nothing of it may be cited.

    For a Claude model, whose earlier messages must not change, only documents that the reader may no longer see are
    replaced.
    """
    passage = Passage.of(block)
    if passage is None:
        return block, None
    if passage.document_id in hidden:
        content = [text_block(REMOVED) for _ in block["content"]]
        return {**block, "content": content, "title": REMOVED}, None
    if not gone_chunks.isdisjoint(passage.chunk_ids):
        all_gone = all(chunk in gone_chunks for chunk in passage.chunk_ids)
        if not stays:
            content = [
                text_block(REMOVED) if chunk in gone_chunks else part
                for chunk, part in zip(passage.chunk_ids, block["content"], strict=True)
            ]
            block = {**block, "content": content, **({"title": REMOVED} if all_gone else {})}
        if all_gone:
            return block, None
        passage = replace(
            passage, chunk_ids=tuple("" if chunk in gone_chunks else chunk for chunk in passage.chunk_ids)
        )
    return block, CitablePassage(passage, tuple(part["text"] for part in block["content"]))


def _with_system_message(message: Message) -> tuple[Message, ...]:
    """Move the notes of a user's message to a system message after it, which no user can write."""
    notes = [block for block in message["content"] if NOTE in block]
    if message["role"] != "user" or not notes or len(notes) == len(message["content"]):
        return (message,)
    other_blocks = [block for block in message["content"] if NOTE not in block]
    return {"role": "user", "content": other_blocks}, {"role": "system", "content": notes}


# Images


def show_pictures(sent: Sent, pictures: Mapping[str, str] | None) -> None:
    """Insert the images as base64 from ``pictures`` (by ref). None: the model does not support images."""
    pictured = [sent.messages[place] for place in sent.pictured]
    # More images than one request allows, none of them seen by the model: the excess is described by text.
    if pictures is not None and count_beyond(
        [picture for message in pictured for picture in pictures_in(message["content"])]
    ):
        small = [ref for ref in pictures if not _is_large(ref, pictured)]
        pictures = {ref: pictures[ref] for ref in small[:MOST]}
    for place, message in zip(sent.pictured, pictured, strict=True):
        sent.messages[place] = _with_content(message, [_with_picture(block, pictures) for block in message["content"]])


def _is_large(ref: str, messages: Sequence[Message]) -> bool:
    blocks = (block for message in messages for block in message["content"])
    parts = (part for block in blocks for part in (block["content"] if block["type"] == "tool_result" else (block,)))
    return any(picture.is_large for part in parts if ref_of_image(part) == ref for picture in pictures_in([part]))


def _with_picture(block: Block, pictures: Mapping[str, str] | None) -> Block:
    """Return a block with the bytes of its images, or the same object without images."""
    if block["type"] == "tool_result":
        content = [_with_picture(part, pictures) for part in block["content"]]
        return {**block, "content": content} if has_kept_image(block) else block
    ref = ref_of_image(block)
    if ref is None:
        return block
    if pictures is None:
        return text_block(f"{image_in_words(block)}\n{BLIND}")
    if ref not in pictures:
        return text_block(image_in_words(block))
    source = {"type": "base64", "media_type": block["source"]["media_type"], "data": pictures[ref]}
    return {"type": "image", "source": source}
