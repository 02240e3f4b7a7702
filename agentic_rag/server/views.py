"""Records as clients see them: the objects of the wire, in camelCase.

Owns field names and what is left out. Pure.
"""

from typing import Any

from agentic_rag.access.users import User
from agentic_rag.conversations.shown_messages import ShownMessage
from agentic_rag.documents.search import KeptSearch, Trace
from agentic_rag.domains.domains import DomainView, Saved
from agentic_rag.events import Reference
from agentic_rag.json_form import to_json
from agentic_rag.messages import without_private
from agentic_rag.store.collections import CollectionRecord
from agentic_rag.store.compactions import CompactionRecord
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.store.documents import DocumentRecord
from agentic_rag.store.retrievals import RetrievalRecord
from agentic_rag.store.tool_calls import ToolCallRecord
from agentic_rag.store.turns import TurnRecord
from agentic_rag.tools.entries.reading import Note
from mcp_servers.promptx.lint import Finding
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.hits import Retrieval

Json = dict[str, Any]

SNIPPET = 300
"""Characters shown of a candidate's chunk."""


def domain(view: DomainView, user: User) -> Json:
    """Return a ``Domain``; its settings are for its admins."""
    shown = _whole_domain(view)
    return shown if user.administers(view.record.id) else {**shown, "settings": {}}


def _whole_domain(view: DomainView) -> Json:
    """Return a ``Domain`` as its admins see it; ``documentCount`` counts those that can be searched."""
    record = view.record
    return {
        "id": record.id,
        "name": record.name,
        "description": record.description,
        "settings": view.settings,
        "documentCount": view.documents,
        "version": record.version,
        "createdAt": record.created_at,
        "updatedAt": record.updated_at,
    }


def saved(view: DomainView, result: Saved) -> Json:
    """Return a ``Domain`` with what its admin should know of the change that was just stored."""
    notes = {"changes": result.changes, "warnings": result.warnings}
    return {**_whole_domain(view), **{name: [note(each) for each in found] for name, found in notes.items()}}


def note(found: Note) -> Json:
    """Return a note on a configuration."""
    return {"path": found.path, "text": found.text}


def document(record: DocumentRecord) -> Json:
    """Return a ``Document``."""
    shown: Json = {
        "id": record.id,
        "domainId": record.domain_id,
        "name": record.name,
        "mediaType": record.media_type,
        "size": record.size,
        "status": record.status,
        "denseState": record.dense_state,
        "progress": {name: value for name, value in to_json(record.progress).items() if value is not None},
        "pageCount": record.page_count,
        "chunkCount": record.chunk_count,
        "createdAt": record.created_at,
    }
    if record.error_code is not None:
        shown["error"] = {"code": record.error_code, "message": record.error_message}
    return shown


def finding(found: Finding) -> Json:
    """Return one lint finding."""
    return {
        "file": found.file,
        "line": found.line,
        "column": found.column,
        "severity": found.severity,
        "code": found.code,
        "message": found.message,
        "hint": found.hint,
    }


def conversation(record: ConversationRecord) -> Json:
    """Return a ``Conversation``."""
    return {
        "id": record.id,
        "domainId": record.domain_id,
        "ownerId": record.owner_id,
        "title": record.title,
        "titleSource": record.title_source,
        "status": record.status,
        "messageCount": record.message_count,
        "contextDocumentIds": record.context_document_ids,
        "metadata": record.meta,
        "startedAt": record.started_at,
        "updatedAt": record.updated_at,
        "lastMessageAt": record.last_message_at,
    }


def message(shown: ShownMessage) -> Json:
    """Return a ``Message``."""
    return {
        "id": shown.id,
        "conversationId": shown.conversation_id,
        "turnId": shown.turn_id,
        "role": shown.role,
        "content": shown.content,
        "blocks": shown.blocks,
        "references": [reference(each) for each in shown.references],
        "metadata": shown.metadata,
        "createdAt": shown.created_at,
    }


def archive(record: CompactionRecord) -> Json:
    """Return one archive: the summary that stands for its messages."""
    return {
        "id": record.id,
        "summary": record.summary,
        "messageCount": record.message_count,
        "createdBy": record.created_by,
        "createdAt": record.created_at,
    }


def tool_call(record: ToolCallRecord) -> Json:
    """Return the record of one tool call; ``result`` are the blocks the model got, null while it runs."""
    result = None if record.result is None else without_private(record.result["content"])
    return {
        "toolCallId": record.tool_call_id,
        "turnId": record.turn_id,
        "server": record.server,
        "toolName": record.tool_name,
        "arguments": record.arguments,
        "status": record.status,
        "result": result,
        "size": record.size,
        "ref": record.ref,
        "startedAt": record.started_at,
        "durationMs": record.duration_ms,
    }


def reference(cited: Reference) -> Json:
    """Return a ``Reference``; its page and cells only where the document has such."""
    return {name: value for name, value in to_json(cited).items() if value is not None}


def turn(record: TurnRecord) -> Json:
    """Return a ``Turn``."""
    shown: Json = {
        "id": record.id,
        "conversationId": record.conversation_id,
        "status": record.status,
        "endReason": record.end_reason,
        "usage": record.usage.to_json() if record.usage else {},
        "imageId": record.image_id,
        "startedAt": record.started_at,
        "endedAt": record.ended_at,
    }
    if record.error is not None:
        shown["error"] = to_json(record.error)
    return shown


def retrieval(found: Retrieval) -> Json:
    """Return a search with the scores of each leg."""
    return {
        "retrievalId": found.retrieval_id,
        "query": found.query,
        "mode": found.mode,
        **_trace(Trace.of(found)),
    }


def kept_retrieval(row: RetrievalRecord) -> Json:
    """Return one line of a list of kept searches."""
    return {"retrievalId": row.id, "query": row.query, "mode": row.mode, "createdAt": row.created_at}


def kept_search(kept: KeptSearch) -> Json:
    """Return a kept search with what it weighed, and what still exists of its candidates."""
    shown = kept_retrieval(kept.record) | _trace(kept.trace)
    for candidate in shown["candidates"]:
        if (chunk := kept.chunks.get(candidate["chunkId"])) is not None:
            candidate |= {
                "documentId": chunk.document_id,
                "documentName": chunk.document_name,
                "headingPath": list(chunk.heading_path),
                "ordinal": chunk.ordinal,
                "snippet": chunk.text[:SNIPPET],
            }
    return shown


def _trace(trace: Trace) -> Json:
    shown: Json = to_json(trace) | {"tookMs": round(trace.took_ms, 3)}
    if not trace.note:
        del shown["note"]
    return shown


def chunk(found: Chunk) -> Json:
    """Return an indexed piece of a document; ``sentences`` are offsets in its text."""
    shown: Json = to_json(found)
    del shown["documentId"], shown["documentName"]
    return shown


def collection(row: CollectionRecord) -> Json:
    """Return where a domain's collection stands."""
    shown: Json = {"domainId": row.domain_id, "state": row.state, "updatedAt": row.updated_at}
    if row.reason is not None:
        shown["reason"] = row.reason
    return shown
