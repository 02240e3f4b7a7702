"""The first tables: business records; images, sessions, messages, turns, their run log, tool calls, usage, payloads."""

from alembic import op
from sqlalchemy import JSON, Boolean, Column, Integer, LargeBinary, PrimaryKeyConstraint, UniqueConstraint
from sqlmodel import AutoString

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _business()
    _knowledge()
    _secrets()
    _transcripts()
    _turns()
    _tool_calls()
    _beside_transcripts()
    _access()


def _business() -> None:
    op.create_table(
        "conversations",
        Column("id", AutoString(), nullable=False),
        Column("domain_id", AutoString(), nullable=False),
        Column("owner_id", AutoString(), nullable=False),
        Column("session_id", AutoString(), nullable=False),
        Column("title", AutoString(), nullable=False),
        Column("title_source", AutoString(), nullable=False),
        Column("status", AutoString(), nullable=False),
        Column("message_count", Integer(), nullable=False),
        Column("context_document_ids", JSON(), nullable=False),
        Column("meta", JSON(), nullable=False),
        Column("started_at", AutoString(), nullable=False),
        Column("updated_at", AutoString(), nullable=False),
        Column("last_message_at", AutoString(), nullable=True),
        PrimaryKeyConstraint("id"),
        UniqueConstraint("session_id"),
    )
    op.create_index("ix_conversations_domain_id", "conversations", ["domain_id"])
    op.create_index("ix_conversations_owner_id", "conversations", ["owner_id"])
    op.create_table(
        "domains",
        Column("id", AutoString(), nullable=False),
        Column("name", AutoString(), nullable=False),
        Column("description", AutoString(), nullable=False),
        Column("settings", JSON(), nullable=False),
        Column("workspace", AutoString(), nullable=False),
        Column("version", Integer(), nullable=False),
        Column("created_at", AutoString(), nullable=False),
        Column("updated_at", AutoString(), nullable=False),
        PrimaryKeyConstraint("id"),
    )


def _knowledge() -> None:
    op.create_table(
        "documents",
        Column("id", AutoString(), nullable=False),
        Column("domain_id", AutoString(), nullable=False),
        Column("name", AutoString(), nullable=False),
        Column("media_type", AutoString(), nullable=False),
        Column("size", Integer(), nullable=False),
        Column("sha256", AutoString(), nullable=False),
        Column("path", AutoString(), nullable=False),
        Column("status", AutoString(), nullable=False),
        Column("dense_state", AutoString(), nullable=False),
        Column("progress", JSON(), nullable=False),
        Column("page_count", Integer(), nullable=True),
        Column("chunk_count", Integer(), nullable=True),
        Column("error_code", AutoString(), nullable=True),
        Column("error_message", AutoString(), nullable=True),
        Column("file_stamp", AutoString(), nullable=False),
        Column("owner", AutoString(), nullable=False),
        Column("lease_until", AutoString(), nullable=True),
        Column("created_at", AutoString(), nullable=False),
        Column("updated_at", AutoString(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_documents_domain_sha", "documents", ["domain_id", "sha256"], unique=True)
    op.create_table(
        "collections",
        Column("domain_id", AutoString(), nullable=False),
        Column("state", AutoString(), nullable=False),
        Column("generation", Integer(), nullable=False),
        Column("reason", AutoString(), nullable=True),
        Column("updated_at", AutoString(), nullable=False),
        PrimaryKeyConstraint("domain_id"),
    )
    op.create_table(
        "retrievals",
        Column("id", AutoString(), nullable=False),
        Column("domain_id", AutoString(), nullable=False),
        Column("query", AutoString(), nullable=False),
        Column("mode", AutoString(), nullable=False),
        Column("trace", JSON(), nullable=False),
        Column("created_at", AutoString(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_retrievals_domain_id", "retrievals", ["domain_id"])


def _secrets() -> None:
    op.create_table(
        "secrets",
        Column("domain_id", AutoString(), nullable=False),
        Column("name", AutoString(), nullable=False),
        Column("sealed", LargeBinary(), nullable=False),
        Column("updated_at", AutoString(), nullable=False),
        PrimaryKeyConstraint("domain_id", "name"),
    )


def _transcripts() -> None:
    op.create_table(
        "images",
        Column("id", AutoString(), nullable=False),
        Column("domain_id", AutoString(), nullable=False),
        Column("definition", JSON(), nullable=False),
        Column("created_at", AutoString(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_images_domain_id", "images", ["domain_id"])
    op.create_table(
        "messages",
        Column("session_id", AutoString(), nullable=False),
        Column("seq", Integer(), nullable=False),
        Column("turn_id", AutoString(), nullable=False),
        Column("step", Integer(), nullable=False),
        Column("role", AutoString(), nullable=False),
        Column("content", JSON(), nullable=False),
        Column("message_id", AutoString(), nullable=False),
        Column("parent_message_id", AutoString(), nullable=True),
        Column("model", AutoString(), nullable=True),
        Column("usage", JSON(), nullable=True),
        Column("partial", Boolean(), nullable=False),
        Column("archived_in", AutoString(), nullable=True),
        Column("created_at", AutoString(), nullable=False),
        PrimaryKeyConstraint("session_id", "seq"),
    )
    op.create_index("ix_messages_message", "messages", ["session_id", "message_id"])
    op.create_table(
        "sessions",
        Column("id", AutoString(), nullable=False),
        Column("labels", JSON(), nullable=False),
        Column("parent_turn_id", AutoString(), nullable=True),
        Column("tool_call_id", AutoString(), nullable=True),
        Column("last_seq", Integer(), nullable=False),
        Column("window_start", Integer(), nullable=False),
        Column("window_set_at", Integer(), nullable=False),
        Column("head", JSON(), nullable=True),
        Column("compaction_id", AutoString(), nullable=True),
        Column("created_at", AutoString(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_sessions_parent", "sessions", ["parent_turn_id", "tool_call_id"])


def _turns() -> None:
    op.create_table(
        "run_events",
        Column("turn_id", AutoString(), nullable=False),
        Column("last_seq", Integer(), nullable=False),
        Column("first_seq", Integer(), nullable=False),
        Column("payload", LargeBinary(), nullable=False),
        PrimaryKeyConstraint("turn_id", "last_seq"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "turns",
        Column("id", AutoString(), nullable=False),
        Column("session_id", AutoString(), nullable=False),
        Column("conversation_id", AutoString(), nullable=False),
        Column("client_message_id", AutoString(), nullable=True),
        Column("content", AutoString(), nullable=False),
        Column("user_message_id", AutoString(), nullable=False),
        Column("message_id", AutoString(), nullable=False),
        Column("status", AutoString(), nullable=False),
        Column("end_reason", AutoString(), nullable=True),
        Column("error", JSON(), nullable=True),
        Column("image_id", AutoString(), nullable=False),
        Column("role_hashes", JSON(), nullable=False),
        Column("owner", AutoString(), nullable=False),
        Column("fence", Integer(), nullable=False),
        Column("lease_until", AutoString(), nullable=True),
        Column("resumes", Integer(), nullable=False),
        Column("steps", Integer(), nullable=False),
        Column("usage", JSON(), nullable=False),
        Column("references", JSON(), nullable=False),
        Column("timings", JSON(), nullable=False),
        Column("started_at", AutoString(), nullable=False),
        Column("ended_at", AutoString(), nullable=True),
        PrimaryKeyConstraint("id"),
        UniqueConstraint("session_id", "client_message_id"),
    )
    op.create_index("ix_turns_conversation_id", "turns", ["conversation_id"])
    op.create_index("ix_turns_status", "turns", ["status"])


def _tool_calls() -> None:
    op.create_table(
        "tool_calls",
        Column("turn_id", AutoString(), nullable=False),
        Column("tool_call_id", AutoString(), nullable=False),
        Column("session_id", AutoString(), nullable=False),
        Column("server", AutoString(), nullable=False),
        Column("tool_name", AutoString(), nullable=False),
        Column("arguments", JSON(), nullable=False),
        Column("status", AutoString(), nullable=False),
        Column("result", JSON(), nullable=True),
        Column("started_at", AutoString(), nullable=False),
        Column("duration_ms", Integer(), nullable=True),
        Column("size", Integer(), nullable=True),
        Column("ref", AutoString(), nullable=True),
        PrimaryKeyConstraint("turn_id", "tool_call_id"),
    )
    op.create_index("ix_tool_calls_session_id", "tool_calls", ["session_id"])
    op.create_table(
        "tool_lists",
        Column("domain_id", AutoString(), nullable=False),
        Column("server", AutoString(), nullable=False),
        Column("user_id", AutoString(), nullable=False),
        Column("entry_hash", AutoString(), nullable=False),
        Column("tools", JSON(), nullable=False),
        Column("accepted", JSON(), nullable=False),
        Column("updated_at", AutoString(), nullable=False),
        PrimaryKeyConstraint("domain_id", "server", "user_id"),
    )


def _beside_transcripts() -> None:
    op.create_table(
        "compactions",
        Column("id", AutoString(), nullable=False),
        Column("session_id", AutoString(), nullable=False),
        Column("summary", AutoString(), nullable=False),
        Column("from_seq", Integer(), nullable=False),
        Column("to_seq", Integer(), nullable=False),
        Column("message_count", Integer(), nullable=False),
        Column("created_by", AutoString(), nullable=False),
        Column("created_at", AutoString(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_compactions_session_id", "compactions", ["session_id"])
    op.create_table(
        "payloads",
        Column("ref", AutoString(), nullable=False),
        Column("session_id", AutoString(), nullable=False),
        Column("media_type", AutoString(), nullable=False),
        Column("size", Integer(), nullable=False),
        Column("created_at", AutoString(), nullable=False),
        PrimaryKeyConstraint("ref"),
    )
    op.create_index("ix_payloads_session_id", "payloads", ["session_id"])
    op.create_table(
        "usage",
        Column("id", AutoString(), nullable=False),
        Column("session_id", AutoString(), nullable=False),
        Column("turn_id", AutoString(), nullable=True),
        Column("step", Integer(), nullable=False),
        Column("labels", JSON(), nullable=False),
        Column("agent", AutoString(), nullable=False),
        Column("model", AutoString(), nullable=False),
        Column("input", Integer(), nullable=False),
        Column("cache_read", Integer(), nullable=False),
        Column("cache_write", Integer(), nullable=False),
        Column("output", Integer(), nullable=False),
        Column("created_at", AutoString(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_usage_session_id", "usage", ["session_id"])
    op.create_index("ix_usage_turn_id", "usage", ["turn_id"])


def _access() -> None:
    op.create_table(
        "keys",
        Column("id", AutoString(), nullable=False),
        Column("user_id", AutoString(), nullable=False),
        Column("role", AutoString(), nullable=False),
        Column("domains", JSON(), nullable=False),
        Column("sha256", AutoString(), nullable=False),
        Column("created_at", AutoString(), nullable=False),
        Column("revoked_at", AutoString(), nullable=True),
        PrimaryKeyConstraint("id"),
        UniqueConstraint("sha256"),
    )
    op.create_table(
        "audit",
        Column("seq", Integer(), autoincrement=False, nullable=False),
        Column("at", AutoString(), nullable=False),
        Column("actor", AutoString(), nullable=False),
        Column("action", AutoString(), nullable=False),
        Column("target", AutoString(), nullable=False),
        Column("outcome", AutoString(), nullable=False),
        Column("details", JSON(), nullable=False),
        Column("count", Integer(), nullable=False),
        Column("previous", AutoString(), nullable=False),
        Column("hash", AutoString(), nullable=False),
        PrimaryKeyConstraint("seq"),
    )
    op.create_table(
        "audit_head",
        Column("id", Integer(), autoincrement=False, nullable=False),
        Column("seq", Integer(), nullable=False),
        Column("hash", AutoString(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
