"""Messages, tool calls and waits of a conversation whose reader may no longer see some of the documents it has read.

An answer keeps its own text and the numbers of its citations. The names and quotes of hidden documents and all results
of tools are replaced by `REMOVED`, because a result may show a document in any of its texts. A wait names documents
without their ids, so all of these names are replaced. Pure.
"""

from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from agentic_rag.base.events import Reference
from agentic_rag.base.ids import DocumentId
from agentic_rag.base.messages import Block, is_attachment, text_block
from agentic_rag.conversations.shown_messages import ShownMessage
from agentic_rag.store.tool_calls import ToolCallRecord
from agentic_rag.store.turns import TurnRecord
from agentic_rag.store.waits import WaitRecord

REMOVED = "[removed]"
"""Replacement for names, quotes and results."""


def hide_in_message(message: ShownMessage, hidden: AbstractSet[str]) -> ShownMessage:
    """Return a message without what it shows of hidden documents."""
    return replace(
        message,
        blocks=[_hide_in_block(block, hidden) for block in message.blocks],
        references=_hide_in_references(message.references, hidden),
    )


def without_attachments(message: ShownMessage) -> ShownMessage:
    """Return a message without the names, quotes and passages of files attached to the conversation."""
    cited = {reference.document_id for reference in message.references if is_attachment(reference.document_id)}
    visible = hide_in_message(message, frozenset(cited)) if cited else message
    return replace(visible, attachments=())


def hide_in_turn(turn: TurnRecord, hidden: AbstractSet[str]) -> TurnRecord:
    """Return a turn without the names and quotes of hidden documents."""
    return turn.replace(references=_hide_in_references(turn.references, hidden))


def hide_in_call(call: ToolCallRecord) -> ToolCallRecord:
    """Return a call without its result."""
    return call.replace(result=None if call.result is None else _hide_in_block(call.result, frozenset()), ref=None)


def hide_in_wait(wait: WaitRecord) -> WaitRecord:
    """Return a wait without the names of the documents that the model had read before it."""
    sources = [
        {**source, "name": REMOVED} if source["kind"] == "document" else source for source in wait.request["sources"]
    ]
    return wait.replace(request={**wait.request, "sources": sources})


def names_documents(wait: WaitRecord) -> bool:
    """Return whether a wait names documents that the model had read before it."""
    return any(source["kind"] == "document" for source in wait.request.get("sources") or ())


def _hide_in_references(references: tuple[Reference, ...], hidden: AbstractSet[str]) -> tuple[Reference, ...]:
    return tuple(
        _hide_reference(reference) if reference.document_id in hidden else reference for reference in references
    )


def _hide_reference(reference: Reference) -> Reference:
    """Return a citation that keeps its number and its ids, which lead nowhere for this reader."""
    return Reference(
        number=reference.number,
        document_id=DocumentId(reference.document_id),
        document_name=REMOVED,
        chunk_id=reference.chunk_id,
        cited_text="",
        score=0.0,
    )


def _hide_in_block(block: Block, hidden: AbstractSet[str]) -> Block:
    if block["type"] == "text" and "citations" in block:  # as the model's service sent them, with quotes and titles
        kept_citations = [citation for citation in block["citations"] if citation.get("source") not in hidden]
        return {**block, "citations": kept_citations}
    if block["type"] != "tool_result":
        return block
    # The members that begin with ``_`` hold ids, names and refs of the same result.
    public: dict[str, Any] = {key: value for key, value in block.items() if key != "structuredContent"}
    return {key: value for key, value in public.items() if not key.startswith("_")} | {"content": [text_block(REMOVED)]}
