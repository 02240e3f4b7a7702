"""Records as clients see them: the objects of the wire, in camelCase.

Owns field names and what is left out. Pure.
"""

from typing import Any

from agentic_rag.domains import DomainView
from agentic_rag.roles import RoleView
from agentic_rag.shown_messages import ShownMessage
from agentic_rag.store.tables import Conversation, Document
from agentic_rag.store.turns import StoredTurn
from mcp_servers.promptx.lint import Finding
from mcp_servers.promptx.roles import RoleInfo
from mcp_servers.retriever.retrieval import Retrieval

Json = dict[str, Any]


def domain(view: DomainView) -> Json:
    """Return a ``Domain``; ``documentCount`` counts those that can be searched."""
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


def document(record: Document) -> Json:
    """Return a ``Document``."""
    shown: Json = {
        "id": record.id,
        "domainId": record.domain_id,
        "name": record.name,
        "mediaType": record.media_type,
        "size": record.size,
        "status": record.status,
        "denseState": record.dense_state,
        "progress": record.progress,
        "pageCount": record.page_count,
        "chunkCount": record.chunk_count,
        "createdAt": record.created_at,
    }
    if record.error_code is not None:
        shown["error"] = {"code": record.error_code, "message": record.error_message}
    return shown


def role_info(info: RoleInfo) -> Json:
    """Return one line of a role list; its path stays out, since it tells of the host."""
    return {"id": info.id, "source": info.source, "title": info.title, "findings": info.findings}


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


def role(view: RoleView) -> Json:
    """Return a rendered role with its findings; ``text`` is null when its file is broken."""
    return {"id": view.id, "text": view.text, "hash": view.hash, "findings": [finding(each) for each in view.findings]}


def conversation(record: Conversation) -> Json:
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


def reference(stored: Json) -> Json:
    """Return a ``Reference`` from the form a turn's row keeps."""
    shown: Json = {
        "number": stored["number"],
        "documentId": stored["document_id"],
        "documentName": stored["document_name"],
        "chunkId": stored["chunk_id"],
        "citedText": stored["cited_text"],
        "relevanceScore": stored["relevance_score"],
    }
    if stored.get("page") is not None:
        shown["page"] = stored["page"]
    return shown


def turn(record: StoredTurn) -> Json:
    """Return a ``Turn``."""
    shown: Json = {
        "id": record.id,
        "conversationId": record.conversation_id,
        "status": record.status,
        "endReason": record.end_reason,
        "usage": record.usage,
        "imageId": record.image_id,
        "startedAt": record.started_at,
        "endedAt": record.ended_at,
    }
    if record.error is not None:
        shown["error"] = record.error
    return shown


def retrieval(found: Retrieval) -> Json:
    """Return a search with the scores of each leg."""
    return {
        "retrievalId": found.retrieval_id,
        "query": found.query,
        "mode": found.mode,
        "tookMs": round(found.took_ms, 3),
        "hits": [
            {
                "documentId": hit.document_id,
                "documentName": hit.document_name,
                "headingPath": list(hit.heading_path),
                "page": hit.page,
                "cells": hit.cells,
                "score": hit.score,
                "relevanceScore": hit.relevance,
                "sentences": [
                    {"chunkId": each.chunk_id, "text": each.text, "start": each.start, "end": each.end}
                    for each in hit.sentences
                ],
            }
            for hit in found.hits
        ],
        "candidates": [
            {
                "chunkId": each.chunk_id,
                "lexical": each.lexical,
                "dense": each.dense,
                "fused": each.fused,
                "relevanceScore": each.relevance,
            }
            for each in found.candidates
        ],
    }
