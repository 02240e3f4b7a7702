"""Minimal records for tests. A test only sets the fields that it is about."""

from typing import Any

from agentic_rag.base.ids import SessionId
from agentic_rag.store.compactions import CompactedBy, CompactionRecord
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.store.documents import DocumentRecord
from agentic_rag.store.domains import DomainRecord
from agentic_rag.store.payloads import PayloadRecord
from agentic_rag.store.sessions import MessageRecord
from agentic_rag.store.tool_calls import ToolCallRecord
from agentic_rag.store.turns import TurnRecord
from agentic_rag.store.usage import UsageRecord

AT = "2026-11-21T12:00:00.000Z"


def turn(turn_id: str = "turn_1", session_id: str = "sess_1", **fields: Any) -> TurnRecord:
    defaults: dict[str, Any] = {
        "id": turn_id,
        "session_id": session_id,
        "conversation_id": "conv_1",
        "content": "How long is the notice period?",
        "user_message_id": f"msg_u_{turn_id}",
        "message_id": f"msg_a_{turn_id}",
        "image_id": "img_1",
        "started_at": AT,
    }
    return TurnRecord(**{**defaults, **fields})


def message(seq: int, text: str = "hello", **fields: Any) -> MessageRecord:
    defaults: dict[str, Any] = {
        "session_id": "sess_1",
        "seq": seq,
        "turn_id": "turn_1",
        "step": 0,
        "role": "user",
        "content": [{"type": "text", "text": text}],
        "message_id": f"msg_{seq}",
        "created_at": AT,
    }
    return MessageRecord(**{**defaults, **fields})


def tool_call(tool_call_id: str = "toolu_1", turn_id: str = "turn_1", **fields: Any) -> ToolCallRecord:
    defaults: dict[str, Any] = {
        "turn_id": turn_id,
        "tool_call_id": tool_call_id,
        "session_id": "sess_1",
        "server": "retriever",
        "tool_name": "search_documents",
        "arguments": {"query": "notice period"},
        "started_at": AT,
    }
    return ToolCallRecord(**{**defaults, **fields})


def domain(domain_id: str = "dom_1", **fields: Any) -> DomainRecord:
    defaults: dict[str, Any] = {
        "id": domain_id,
        "name": "Legal",
        "settings": {"language": "auto"},
        "workspace": "/data/workspaces/legal",
        "created_at": AT,
        "updated_at": AT,
    }
    return DomainRecord(**{**defaults, **fields})


def conversation(conversation_id: str = "conv_1", **fields: Any) -> ConversationRecord:
    defaults: dict[str, Any] = {
        "id": conversation_id,
        "domain_id": "dom_1",
        "owner_id": "local",
        "session_id": f"sess_{conversation_id}",
        "started_at": AT,
        "updated_at": AT,
    }
    return ConversationRecord(**{**defaults, **fields})


def document(document_id: str = "doc_1", **fields: Any) -> DocumentRecord:
    defaults: dict[str, Any] = {
        "id": document_id,
        "domain_id": "dom_1",
        "name": "handbook.md",
        "media_type": "text/markdown",
        "size": 12,
        "sha256": f"sha of {document_id}",
        "path": "handbook.md",
        "created_at": AT,
        "updated_at": AT,
    }
    return DocumentRecord(**{**defaults, **fields})


def payload(ref: str = "ref_1", session_id: str = "sess_1") -> PayloadRecord:
    return PayloadRecord(
        ref=ref, session_id=SessionId(session_id), media_type="text/plain", size=3, sha256="", created_at=AT
    )


def usage_record(usage_id: str = "usage_1", session_id: str = "sess_1", **fields: Any) -> UsageRecord:
    defaults: dict[str, Any] = {
        "id": usage_id,
        "session_id": session_id,
        "user_id": "local",
        "model": "m",
        "input": 1,
        "cache_read": 2,
        "cache_write": 3,
        "output": 4,
        "created_at": AT,
    }
    return UsageRecord(**{**defaults, **fields})


def compaction(compaction_id: str = "comp_1", session_id: str = "sess_1", **fields: Any) -> CompactionRecord:
    defaults: dict[str, Any] = {
        "id": compaction_id,
        "session_id": session_id,
        "summary": "They spoke of the notice period.",
        "from_seq": 1,
        "to_seq": 2,
        "message_count": 2,
        "created_by": CompactedBy.USER,
        "created_at": AT,
    }
    return CompactionRecord(**{**defaults, **fields})
