"""The first tables: business records; images, sessions, messages, turns, their run log and tool calls."""

from alembic import op
from sqlalchemy import JSON, Boolean, Column, Integer, LargeBinary, PrimaryKeyConstraint, UniqueConstraint
from sqlmodel import AutoString

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _business()
    _transcripts()
    _turns()


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
        Column("created_at", AutoString(), nullable=False),
        Column("updated_at", AutoString(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_documents_domain_sha", "documents", ["domain_id", "sha256"], unique=True)
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
        Column("created_at", AutoString(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_sessions_parent", "sessions", ["parent_turn_id", "tool_call_id"])


def _turns() -> None:
    op.create_table(
        "run_events",
        Column("turn_id", AutoString(), nullable=False),
        Column("seq", Integer(), nullable=False),
        Column("payload", LargeBinary(), nullable=False),
        PrimaryKeyConstraint("turn_id", "seq"),
        sqlite_with_rowid=False,
    )
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
