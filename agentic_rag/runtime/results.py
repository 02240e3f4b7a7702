"""From a tool's outcome to the block the model reads and the events a client sees. Pure.

Owns the size budgets of results, the ``search_result`` blocks made from hits, and the ``retrieval`` events.
Private keys (``_passage``, ``_role``) keep beside a block what later steps need and no model is sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentic_rag.events import EventBody, Hit, Retrieval, ToolResult
from agentic_rag.messages import Block, clean_text, plain_text, text_block, tool_result_block
from agentic_rag.tools.base import CallOutcome, ToolInfo

RESULT_BUDGET = 16 * 1024
"""Characters of a user server's text result that go to the model; the rest is cut from the middle."""
ROLE_BUDGET = 96 * 1024
"""Characters of an activated role."""
SNIPPET = 240
"""Characters of a hit's snippet in a ``retrieval`` event."""

SEARCH_TOOL = "search_documents"
RECALL_TOOL = "promptx_recall"
ACTION_TOOL = "promptx_action"


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """A call's end: the block for the transcript and the events for the log."""

    block: Block
    bodies: tuple[EventBody, ...]


def finished_call(
    call_id: str, name: str, tool: ToolInfo | None, arguments: Mapping[str, Any], outcome: CallOutcome
) -> FinishedCall:
    """Turn an outcome into its ``tool_result`` block and events (``retrieval`` first, if there are hits)."""
    structured = outcome.structured if isinstance(outcome.structured, dict) else {}
    ours = tool is not None and tool.origin != "user"
    ok = outcome.status == "ok"
    hits: tuple[Hit, ...] = ()
    source: Any = "documents"
    content, truncated = _bounded(outcome.content, ROLE_BUDGET if ours else RESULT_BUDGET)
    shown = plain_text(content)
    private: Block = {}
    if ours and ok and name == SEARCH_TOOL and structured.get("hits"):
        content = [search_result_block(hit) for hit in structured["hits"]]
        hits = tuple(_document_hit(hit) for hit in structured["hits"])
        truncated = False
    elif ours and ok and name == RECALL_TOOL and structured.get("engrams"):
        hits = tuple(_memory_hit(engram) for engram in structured["engrams"])
        source = "memory"
    elif ours and ok and name == ACTION_TOOL and structured.get("hash"):
        private = {"_role": {"role": structured.get("role"), "hash": structured["hash"]}}
    block = tool_result_block(call_id, content, is_error=not ok) | private
    result = ToolResult(
        tool_call_id=call_id,
        tool_name=name,
        server=tool.server if tool else "",
        status=outcome.status,
        content=shown,
        truncated=truncated,
        duration_ms=outcome.duration_ms,
    )
    if not hits:
        return FinishedCall(block, (result,))
    return FinishedCall(block, (Retrieval(source=source, query=_query(arguments), hits=hits), result))


def search_result_block(hit: Mapping[str, Any]) -> Block:
    """Return the ``search_result`` block of one hit of `search_documents`: one text block a sentence."""
    heading = " › ".join(hit.get("heading_path") or [])
    place = f" ({_place(hit)})" if _place(hit) else ""
    name = hit["document_name"]
    return {
        "type": "search_result",
        "source": hit["document_id"],
        "title": clean_text(f"{name} › {heading}{place}" if heading else f"{name}{place}"),
        "content": [text_block(clean_text(sentence["text"])) for sentence in hit["sentences"]],
        "citations": {"enabled": True},
        "_passage": {
            "document_id": hit["document_id"],
            "document_name": name,
            "chunk_ids": [sentence["chunk_id"] for sentence in hit["sentences"]],
            "page": hit.get("page"),
            "cells": hit.get("cells"),
            "score": hit.get("relevance_score", hit.get("score", 0.0)),
        },
    }


def _place(hit: Mapping[str, Any]) -> str:
    if hit.get("page") is not None:
        return f"p. {hit['page']}"
    return str(hit.get("cells") or "")


def _query(arguments: Mapping[str, Any]) -> str:
    query = arguments.get("query")
    return query if isinstance(query, str) else ""


def _document_hit(hit: Mapping[str, Any]) -> Hit:
    first = hit["sentences"][0]
    return Hit(
        id=first["chunk_id"],
        name=hit["document_name"],
        snippet=" ".join(sentence["text"] for sentence in hit["sentences"])[:SNIPPET],
        score=hit.get("relevance_score", hit.get("score", 0.0)),
        document_id=hit["document_id"],
        chunk_id=first["chunk_id"],
        page=hit.get("page"),
    )


def _memory_hit(engram: Mapping[str, Any]) -> Hit:
    cues = engram.get("cues") or []
    return Hit(
        id=str(engram["id"]),
        name=" ".join(cues[:3]) if cues else str(engram.get("type", "")),
        snippet=str(engram["content"])[:SNIPPET],
        score=float(engram.get("strength", 0.0)),
    )


def _bounded(blocks: tuple[Block, ...], budget: int) -> tuple[list[Block], bool]:
    """Cut text past the budget out of the middle, with a mark; other blocks stay."""
    content = [{**block, "text": clean_text(block["text"])} if block["type"] == "text" else block for block in blocks]
    content = [block for block in content if block["type"] != "text" or block["text"].strip()]
    length = sum(len(block["text"]) for block in content if block["type"] == "text")
    if length <= budget:
        return content, False
    text = plain_text(content)
    head, tail = budget * 3 // 4, budget // 4
    mark = f"\n[… {length - head - tail} of {length} characters left out …]\n"
    others = [block for block in content if block["type"] != "text"]
    return [text_block(text[:head] + mark + text[-tail:]), *others], True
