"""Tool results that requests leave out when there is no room for them: which may go, which go first. Pure.

Owns the choice among the messages of a window. What it comes to in memory and in the store, `context` carries out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentic_rag.messages import (
    ACTIVATION,
    REF,
    SHED,
    Block,
    Message,
    image_in_words,
    ref_of_image,
    text_block,
    tool_uses,
)
from agentic_rag.runtime.core.sizes import SHED_MARK, picture_tokens, pictures_in, tokens_of
from agentic_rag.tools.pictures import count_beyond

KEPT_STEPS = 3
"""The newest steps, whose results are left out last."""


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


def count_seen(messages: Sequence[Message]) -> int:
    """Return how many of a window's messages the model has seen: those before its newest answer."""
    places = range(len(messages) - 1, -1, -1)
    return next((place for place in places if messages[place]["role"] == "assistant"), 0)


def sheddable(messages: Iterable[Message]) -> list[Sheddable]:
    """Return the tool results that may be left out of requests, oldest first.

    A role stays: the model acts by it. What is smaller than its mark stays too.
    """
    names: dict[str, str] = {}
    return [each for message in messages for each in sheddable_in(message, names)]


def sheddable_in(message: Message, names: dict[str, str]) -> list[Sheddable]:
    """Return those of one message; ``names``: of the tools that were called before it, by call; its own are added."""
    names |= {use["id"]: use["name"] for use in tool_uses(message["content"])}
    found = []
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
    steps = [place for place, message in enumerate(messages) if has_results(message)]
    old = sheddable(messages[: count_old(messages, steps)])
    chosen = _first_to_save(old, excess + spare) if excess > 0 else []
    saved = sum(result.saved for result in chosen)
    if saved < excess and not old_only:
        chosen += _first_to_save(sheddable(messages[: count_seen(messages)])[len(old) :], excess - saved)
    return chosen


def count_old(messages: Sequence[Message], steps: Sequence[int]) -> int:
    """Return how many messages stand before the newest steps and were seen; ``steps``: places of those with results."""
    return min(steps[-KEPT_STEPS:][0] if steps else 0, count_seen(messages))


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


def has_results(message: Message) -> bool:
    """Tell whether a message holds results of tools."""
    return any(block["type"] == "tool_result" for block in message["content"])


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
