"""Building one model request from a definition and a transcript. Pure.

Owns what of a transcript is sent, its repair (every ``tool_use`` answered), the map from
``search_result_index`` to passages, and the notes of a turn. Everything in ``system`` and ``tools`` depends
on the definition and the tool list only, and messages only grow, so that each request of a session has the
previous one as its prefix (a deleted document aside). Knows no store and no clock.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from agentic_rag.json_form import Json
from agentic_rag.messages import (
    SHED,
    Activation,
    Block,
    Message,
    Passage,
    ToolSpec,
    join_neighbours,
    text_block,
    tool_result_block,
    tool_uses,
)
from agentic_rag.models.base import ModelRequest
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.prompt import bootstrap_prompt
from agentic_rag.runtime.core.transcript import as_sent, tokens_of
from agentic_rag.tools.base import ToolInfo
from agentic_rag.tools.system import ACTION, SEARCH

OUTCOME_UNKNOWN = "outcome unknown: the server stopped while this ran"
REMOVED = "[removed]"
"""What a sentence of a deleted document reads; block counts stay, so that indexes do."""


@dataclass(frozen=True, slots=True)
class CitablePassage:
    """One ``search_result`` of a request: ``texts[i]`` is its block i. A chunk that is gone has no id."""

    source: Passage
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BuiltRequest:
    """``passages[i]`` is what the API calls ``search_result_index`` i; None where nothing may be cited.

    ``call_ids``: of all calls in it.
    """

    request: ModelRequest
    passages: tuple[CitablePassage | None, ...]
    call_ids: frozenset[str]


def tool_specs(definition: Definition, tools: Iterable[ToolInfo]) -> tuple[ToolSpec, ...]:
    """Return the tools as the model sees them; the search tool also describes the collection."""
    return tuple(
        ToolSpec(
            name=tool.name,
            description=f"{tool.description}\n{definition.collection_note}".strip()
            if tool.name == SEARCH.name and tool.origin == "builtin"
            else tool.description,
            input_schema=dict(tool.input_schema),
        )
        for tool in tools
    )


def build_request(
    definition: Definition,
    tools: Sequence[ToolInfo],
    transcript: Sequence[Message],
    *,
    gone: Collection[str] = (),
    tool_choice: Json | None = None,
) -> BuiltRequest:
    """Build the request of the next step.

    Args:
        definition: what the turn runs on.
        tools: the turn's tools in stable order.
        transcript: the messages from the window's start, oldest first.
        gone: ids of chunks that no longer exist; their sentences read `REMOVED`.
        tool_choice: None, or an API value; without tools there is no choice to make.
    """
    messages, passages = _render(answer_calls(transcript), frozenset(gone))
    request = ModelRequest(
        model=definition.model,
        max_tokens=definition.max_tokens,
        system=_system(definition, tools),
        messages=tuple(messages),
        tools=tool_specs(definition, tools),
        tool_choice=tool_choice if tools else None,
        temperature=definition.temperature,
        thinking=definition.thinking,
        effort=definition.effort,
    )
    call_ids = frozenset(
        use["id"] for each in messages if each["role"] == "assistant" for use in tool_uses(each["content"])
    )
    return BuiltRequest(request, tuple(passages), call_ids)


def fixed_tokens(definition: Definition, tools: Sequence[ToolInfo]) -> int:
    """Return about how many tokens system and tools cost in every request."""
    return tokens_of([_system(definition, tools), tool_specs(definition, tools)])


def _system(definition: Definition, tools: Sequence[ToolInfo]) -> tuple[Block, ...]:
    names = [tool.name for tool in tools]
    return bootstrap_prompt(definition.persona, names, definition.binding.sub_roles)


def answer_calls(transcript: Sequence[Message]) -> list[Message]:
    """Return the transcript joined by role, with a result for every ``tool_use``.

    A transcript cut at any point (a crash, a kill) stays sendable: calls without a result get one that says
    that the outcome is unknown. Results without a call, which only a moved window can leave, are dropped.
    """
    merged = join_neighbours(transcript)
    result: list[Message] = []
    open_ids: list[str] = []
    for message in merged:
        if message["role"] == "user":
            message = _with_results(message, open_ids)
            open_ids = []
            if not message["content"]:
                continue
        elif not result:  # a request begins with a user: an answer whose question is gone goes too
            continue
        if message["role"] == "assistant":
            open_ids = [block["id"] for block in tool_uses(message["content"])]
        result.append(message)
    if open_ids:
        result.append({"role": "user", "content": [_unknown(ident) for ident in open_ids]})
    return result


def _with_results(message: Message, open_ids: Sequence[str]) -> Message:
    if not open_ids and all(block["type"] != "tool_result" for block in message["content"]):
        return message
    present = {
        block["tool_use_id"]: block
        for block in message["content"]
        if block["type"] == "tool_result" and block["tool_use_id"] in open_ids
    }
    results = [present.get(ident) or _unknown(ident) for ident in open_ids]
    return {"role": "user", "content": results + [b for b in message["content"] if b["type"] != "tool_result"]}


def _unknown(tool_use_id: str) -> Block:
    return tool_result_block(tool_use_id, [text_block(OUTCOME_UNKNOWN)], is_error=True)


def _render(messages: list[Message], gone: frozenset[str]) -> tuple[list[Message], list[CitablePassage | None]]:
    passages: list[CitablePassage | None] = []
    for message in messages:
        if message["role"] != "user":
            continue
        for position, block in enumerate(message["content"]):
            if block["type"] != "tool_result":
                continue
            block = message["content"][position] = as_sent(block)
            content = block["content"]
            if not any(part["type"] == "search_result" for part in content):
                continue
            kept = [_search_result(part, gone) for part in content if part["type"] == "search_result"]
            passages += [passage for _, passage in kept]
            others = [part for part in content if part["type"] != "search_result"]
            message["content"][position] = {**block, "content": [part for part, _ in kept] + others}
    return messages, passages


def _search_result(block: Block, gone: frozenset[str]) -> tuple[Block, CitablePassage | None]:
    passage = Passage.of(block)
    if passage is None:
        return block, None
    if not gone.isdisjoint(passage.chunk_ids):
        content = [
            text_block(REMOVED) if chunk in gone else part
            for chunk, part in zip(passage.chunk_ids, block["content"], strict=True)
        ]
        block = {**block, "content": content}
        if all(chunk in gone for chunk in passage.chunk_ids):
            return {**block, "title": REMOVED}, None
        passage = replace(passage, chunk_ids=tuple("" if chunk in gone else chunk for chunk in passage.chunk_ids))
    return block, CitablePassage(passage, tuple(part["text"] for part in block["content"]))


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


def last_activation(transcript: Sequence[Message]) -> Activation | None:
    """Return the newest role activation in a transcript, or None."""
    blocks = (block for message in reversed(transcript) for block in reversed(message["content"]))
    return next((found for block in blocks if (found := Activation.of(block)) is not None), None)


def turn_notes(unavailable: Sequence[tuple[str, str]], changed_role: str | None) -> list[Block]:
    """Return the notes that stand at the start of a new user message, possibly none.

    Whatever varies by turn stands here and is stored with the message, so that the prefix stays the same.
    """
    notes = [f"[note: the server {name} is not available now: {reason}]" for name, reason in unavailable]
    if changed_role is not None:
        notes.append(
            f'[note: the role "{changed_role}" was edited; call {ACTION.name} with role "{changed_role}" again]'
        )
    return [text_block("\n".join(notes))] if notes else []
