"""How much of a session is sent: counting tokens, moving the window, leaving out results. Pure.

Owns the rules of runtime.md, "Building the request", about size. Tokens are what the model last reported plus a
third of the UTF-8 bytes that were added since. Knows no store: what it decides, `context` carries out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from agentic_rag.messages import Block, Message, plain_text, text_block, tool_uses, without_private
from agentic_rag.runtime.core.definition import Limits
from agentic_rag.store import json_text

ROLE_CARRIED = '[carried over: the role "{role}", activated earlier in this conversation]\n{text}'
SHED_MARK = "[result of {name} kept as ref {ref}]"


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


def tokens_of(value: Any) -> int:
    """Return about how many tokens a JSON value costs; private keys are not sent and cost nothing."""
    return (len(json_text.dumps(without_private(value)).encode("utf-8", "replace")) + 2) // 3


def message_tokens(message: Message) -> int:
    """Return about how many tokens a message costs as it is sent."""
    return sum(tokens_of(as_sent(block)) for block in message["content"]) + 4


# The window


def moved_start(turns: Sequence[TurnSize], tokens: int, fixed: int, limits: Limits) -> int | None:
    """Return where the window starts now, or None when it stays.

    It moves when ``tokens`` pass ``contextTokens``, or the messages ``contextMessages``, and then leaves half of
    that. The turn that begins always stays, and the one before it as long as both fit: without it a follow-up
    question would mean nothing.

    Args:
        turns: the window's turns, oldest first; the last one is the turn that begins.
        tokens: of the request that would be sent.
        fixed: what of it no window changes (system, tools, what stands before the window).
        limits: the definition's.
    """
    count = len(turns) * 2 - 1
    crowded = limits.context_messages is not None and count > limits.context_messages
    if len(turns) < 2 or not (crowded or tokens > limits.context_tokens):
        return None
    # where bytes say less than the model reported, they say so of every turn
    scale = max(1.0, tokens / max(1, fixed + sum(turn.tokens for turn in turns)))
    most = (limits.context_messages or count) // 2 if crowded else count
    kept = len(turns)
    while kept > 1 and (
        kept == len(turns)
        or kept * 2 - 1 > max(1, most)
        or (fixed + sum(turn.tokens for turn in turns[-kept:])) * scale > limits.context_tokens / 2
    ):
        kept -= 1
    pair = (fixed + sum(turn.tokens for turn in turns[-2:])) * scale
    if kept == 1 and len(turns) > 2 and pair <= limits.context_tokens and most >= 3:
        kept = 2
    return turns[-kept].first_seq


def moved_head(head: Sequence[Block], fallen: Sequence[Message], kept: Sequence[Message]) -> list[Block]:
    """Return what stands before a window that has moved: what stood there, and the role if it fell out.

    A role that is still activated inside the window is not said twice.
    """
    others = [block for block in head if "_role" not in block]
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
    role = found["_role"]
    text = ROLE_CARRIED.format(role=role["role"], text=plain_text(found["content"]))
    return text_block(text) | {"_role": role}


def _activation(messages: Sequence[Message]) -> Block | None:
    for message in reversed(messages):
        for block in reversed(message["content"]):
            if "_role" in block:
                return block
    return None


# Inside a running turn


def as_sent(block: Block) -> Block:
    """Return a block as requests hold it: a result that was left out is a mark."""
    shed = block.get("_shed")
    if shed is None:
        return block
    mark = text_block(SHED_MARK.format(name=shed["name"], ref=shed["ref"]))
    return {**{key: value for key, value in block.items() if key != "_shed"}, "content": [mark]}


def sheddable(messages: Iterable[Message]) -> list[Sheddable]:
    """Return the tool results of a running turn that may be left out, oldest first.

    A role stays: the model acts by it. What is smaller than its mark stays too.
    """
    names: dict[str, str] = {}
    found = []
    for message in messages:
        names |= {use["id"]: use["name"] for use in tool_uses(message["content"])}
        for block in message["content"]:
            if block["type"] != "tool_result" or "_role" in block or "_shed" in block:
                continue
            name = names.get(block["tool_use_id"], "a tool")
            mark = SHED_MARK.format(name=name, ref=block.get("_ref") or "ref_" + "0" * 26)
            saved = tokens_of(block["content"]) - tokens_of([text_block(mark)])
            if saved > 0:
                ref = block.get("_ref", "")
                found.append(Sheddable(block["tool_use_id"], name, result_text(block), ref, saved))
    return found


def chosen_to_shed(results: Sequence[Sheddable], excess: int) -> list[Sheddable]:
    """Return as many of the oldest results as must go to save ``excess`` tokens, or all of them."""
    chosen: list[Sheddable] = []
    for result in results:
        if excess <= 0:
            break
        chosen.append(result)
        excess -= result.saved
    return chosen


def shed_blocks(content: Sequence[Block], refs: dict[str, Block]) -> list[Block]:
    """Return a message's blocks with the named results marked as left out; ``refs``: by call id."""
    return [
        {**block, "_shed": refs[block["tool_use_id"]]}
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
    return "\n\n".join(parts)
