"""What the extractive model does next: the calls it makes, or the answer it gives. Pure.

Owns the plan of a turn (activate, recall, search, answer; or remember, confirm), the arguments of its calls and
the length of its answers. It calls only tools it is offered. Deliberately knows no server behind a tool, no
stream and no clock; the same request always gives the same answer.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from agentic_rag.messages import Block, ToolSpec, without_private
from agentic_rag.models.base import ModelRequest
from agentic_rag.models.extractive_answer import about, answer, greeting, remembered
from agentic_rag.models.extractive_reading import Reading, read
from agentic_rag.models.extractive_score import understand
from agentic_rag.models.extractive_summary import summary
from agentic_rag.models.extractive_words import content_words, language_of

ACTION = "promptx_action"
RECALL = "promptx_recall"
REMEMBER = "promptx_remember"
SEARCH = "search_documents"

MAX_QUERY = 1_000
"""Characters of a search query; more words only blur it."""
MAX_KEYWORDS = 8


def decide(request: ModelRequest) -> list[Block]:
    """Return the blocks of the next assistant message: either only ``tool_use`` blocks, or only text blocks."""
    summed_up = summary(request)
    if summed_up is not None:
        return summed_up
    reading = read(request)
    calls = _calls(reading, request)
    return calls or _within(_reply(reading), request.max_tokens)


def _calls(reading: Reading, request: ModelRequest) -> list[Block]:
    choice = request.tool_choice or {}
    if choice.get("type") == "none":
        return []
    offered = {tool["name"]: tool for tool in request.tools}
    wanted = [
        (name, arguments)
        for name, values in _plan(reading)
        if name in offered and (arguments := _fitting(offered[name], values)) is not None
    ]
    if any(name == ACTION for name, _ in wanted):
        # The role comes first: it may say how to search. Recall needs only the role's name.
        wanted = [(name, arguments) for name, arguments in wanted if name in (ACTION, RECALL)]
    if choice.get("disable_parallel_tool_use"):
        wanted = wanted[:1]
    taken = set(reading.call_ids)
    blocks: list[Block] = []
    for name, arguments in wanted:
        ident = _call_id(taken, name, reading.question)
        taken.add(ident)
        blocks.append({"type": "tool_use", "id": ident, "name": name, "input": arguments})
    return blocks


def _plan(reading: Reading) -> list[tuple[str, dict[str, Any]]]:
    """The calls that are still to be made in this turn, each with all arguments it may take."""
    plan: list[tuple[str, dict[str, Any]]] = []
    if reading.role and reading.activate:
        plan.append((ACTION, {"role": reading.role}))
    if reading.to_remember:
        if REMEMBER not in reading.called:
            plan.append((REMEMBER, {"role": reading.role, "engrams": [_engram(reading.to_remember)]}))
        return plan
    if RECALL not in reading.called:
        words = content_words(reading.question)
        # Cues are compared letter by letter, and ours are saved in lower case.
        query = " ".join(dict.fromkeys([*words, *(word.lower() for word in words)]))
        plan.append((RECALL, {"role": reading.role, "query": query[:MAX_QUERY]}))
    if SEARCH not in reading.called and reading.intent == "question":
        query = " ".join([reading.question, *content_words(reading.before)])
        plan.append((SEARCH, {"query": query[:MAX_QUERY]}))
    return plan


def _engram(content: str) -> dict[str, Any]:
    """A memory with the keywords it will be found by: PromptX refuses fewer than two."""
    keywords = list(dict.fromkeys(word.lower() for word in content_words(content)))[:MAX_KEYWORDS]
    spare = ("备忘", "记忆") if language_of(content) == "zh" else ("note", "memory")
    keywords += [word for word in spare if word not in keywords][: max(0, 2 - len(keywords))]
    return {"content": content, "schema": "\n".join(keywords), "strength": 0.8, "type": "ATOMIC"}


def _fitting(tool: ToolSpec, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """The values that the tool's schema declares and that are not empty; None when a required one is missing."""
    schema = tool["input_schema"]
    declared: Mapping[str, Any] = schema.get("properties") or {}
    arguments = {}
    for name, value in values.items():
        if value and name in declared:
            limit = declared[name].get("maxLength")
            arguments[name] = value[:limit] if isinstance(value, str) and isinstance(limit, int) else value
    return arguments if set(schema.get("required") or ()) <= set(arguments) else None


def _call_id(taken: set[str], name: str, question: str) -> str:
    """An id no call of the request has, made of the request alone."""
    number = len(taken)
    while True:
        digest = hashlib.sha256(f"{number}\0{name}\0{question}".encode("utf-8", "replace")).hexdigest()
        ident = f"toolu_x{digest[:23]}"
        if ident not in taken:
            return ident
        number += 1


def _reply(reading: Reading) -> list[Block]:
    language = reading.language
    if reading.to_remember:
        problems = reading.findings.problems
        saved = REMEMBER in reading.called and all(name != REMEMBER for name, _ in problems)
        return remembered(language, reading.to_remember, problems, saved=saved)
    if reading.intent == "about":
        return about(language)
    if reading.intent in ("greeting", "thanks"):
        return greeting(language, thanks=reading.intent == "thanks")
    return answer(understand(reading.question, reading.before), language, reading.findings)


def _within(blocks: list[Block], max_tokens: int) -> list[Block]:
    """The blocks that fit; the first always stays, because an answer is never empty."""
    kept, spent = blocks[:1], tokens_of(blocks[:1])
    for block in blocks[1:]:
        spent += tokens_of([block])
        if spent > max_tokens:
            break
        kept.append(block)
    return kept


def tokens_of(value: Any) -> int:
    """About the number of tokens: bytes of JSON by three, as the runtime counts."""
    text = json.dumps(without_private(value), ensure_ascii=False)
    return (len(text.encode("utf-8", "replace")) + 2) // 3
