"""Deduplication of passages in a request: a repeated passage is replaced by its title. Pure.

Owns which passages of results repeat earlier ones, and the text that replaces them. The decision is made for each
request from the messages that are sent, not when a result is stored. Once the earlier result is cut off, summarised or
outside the window, the later one is whole again, so no passage is ever lost. A new message changes nothing before it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from agentic_rag.base.messages import PASSAGE, SHED, SHOWN_BEFORE, Block, Message, text_block


@dataclass(slots=True)
class Repeats:
    """Deduplicates the results of a request, which must be passed in order.

    ``apart``: chunks that are never replaced by their title, because their earlier text is not sent any more.
    ``before``: the state of earlier results, which is read and never changed.
    """

    apart: Collection[str] = ()
    before: "Repeats | None" = None
    _titles: dict[str, str] = field(default_factory=dict)
    """The title under which each chunk was shown."""
    _texts: dict[str, set[str]] = field(default_factory=dict)
    """The sentences that were shown, by document."""

    def leave_out(self, result: Block) -> Block:
        """Return a ``tool_result`` without the passages that earlier results show, or the same object without repeats.

        A repeated passage is replaced by the title of its first occurrence, where the model can cite the passage.
        """
        if SHED in result or not any(PASSAGE in part for part in result["content"]):
            return result
        parts: list[Block] = []
        titles: list[str] = []
        changed = False
        for part in result["content"]:
            new_parts, repeated = self._split(part) if PASSAGE in part else ([part], [])
            changed = changed or bool(repeated)
            titles += [title for title in repeated if title not in titles]
            if new_parts and titles:
                parts.append(_name_shown(titles))
                titles = []
            parts += new_parts
        if titles:
            parts.append(_name_shown(titles))
        return {**result, "content": parts} if changed else result

    def _split(self, part: Block) -> tuple[list[Block], list[str]]:
        """Return the new parts of a passage in order, and the titles under which the other chunks were shown."""
        passage = part[PASSAGE]
        texts = self._texts.setdefault(passage["documentId"], set())
        sentences = list(zip(passage["chunkIds"], part["content"], strict=True))
        chunks = [
            (chunk, [sentence for _, sentence in group])
            for chunk, group in groupby(sentences, key=lambda pair: pair[0])
        ]
        earlier = self.before.shown_of(passage["documentId"]) if self.before is not None else ()
        titles = [self._title(chunk) for chunk, _ in chunks]
        again = [
            title is not None
            and chunk not in self.apart
            and all(sentence["text"] in texts or sentence["text"] in earlier for sentence in sentences)
            for (chunk, sentences), title in zip(chunks, titles, strict=True)
        ]
        repeated = [title for title, is_repeat in zip(titles, again, strict=True) if is_repeat and title is not None]
        for (chunk, group), title in zip(chunks, titles, strict=True):
            self._titles.setdefault(chunk, part["title"] if title is None else title)
            texts.update(sentence["text"] for sentence in group)
        if not repeated:
            return [part], []
        runs = groupby(zip(chunks, again, strict=True), key=lambda pair: pair[1])
        return [
            _part_of(part, passage, [chunk for chunk, _ in run]) for is_repeat, run in runs if not is_repeat
        ], repeated

    def shown_of(self, document_id: str) -> Collection[str]:
        """Return the sentences of a document that were shown."""
        return self._texts.get(document_id, ())

    def _title(self, chunk: str) -> str | None:
        title = self._titles.get(chunk)
        return self.before._title(chunk) if title is None and self.before is not None else title


def _name_shown(titles: Sequence[str]) -> Block:
    return text_block("\n".join([SHOWN_BEFORE, *titles]))


def _part_of(part: Block, passage: Mapping[str, object], chunks: Sequence[tuple[str, list[Block]]]) -> Block:
    """Return a copy of the passage with only these chunks."""
    ids = [chunk for chunk, sentences in chunks for _ in sentences]
    content = [sentence for _, sentences in chunks for sentence in sentences]
    return {**part, "content": content, PASSAGE: {**passage, "chunkIds": ids}}


def without_repeats_in(message: Message, repeats: Repeats) -> Message:
    """Return a message without the passages that were shown before, or the same object without repeats."""
    before = message["content"]
    if not any(block["type"] == "tool_result" for block in before):  # the usual case, in every request
        return message
    content = [repeats.leave_out(block) if block["type"] == "tool_result" else block for block in before]
    same = all(new is old for new, old in zip(content, before, strict=True))
    return message if same else {"role": "user", "content": content}
