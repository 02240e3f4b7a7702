"""The first tables: business records; images, sessions, messages, turns, their run log, tool calls, usage, payloads."""

from alembic import op
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    UniqueConstraint,
)

from agentic_rag.store.clock import new_id, now

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _business()
    _knowledge()
    _secrets()
    _sign_ins()
    _transcripts()
    _contexts()
    _turns()
    _tool_calls()
    _beside_transcripts()
    _extractions()
    _waits()
    _launch_requests()
    _people()
    _access()


def _business() -> None:
    op.create_table(
        "conversations",
        Column("id", String(), nullable=False),
        Column("domain_id", String(), nullable=False),
        Column("owner_id", String(), nullable=False),
        Column("session_id", String(), nullable=False),
        Column("title", String(), nullable=False),
        Column("title_source", String(), nullable=False),
        Column("status", String(), nullable=False),
        Column("message_count", Integer(), nullable=False),
        Column("compacted_count", Integer(), nullable=False),
        Column("image_id", String(), nullable=True),
        Column("context_document_ids", JSON(), nullable=False),
        Column("meta", JSON(), nullable=False),
        Column("transient", Boolean(), nullable=False),
        Column("started_at", String(), nullable=False),
        Column("updated_at", String(), nullable=False),
        Column("last_message_at", String(), nullable=True),
        Column("client_name", String(), nullable=True),
        PrimaryKeyConstraint("id"),
        UniqueConstraint("session_id"),
        UniqueConstraint("owner_id", "domain_id", "client_name"),
    )
    op.create_index("ix_conversations_domain_id", "conversations", ["domain_id"])
    op.create_index("ix_conversations_owner_id", "conversations", ["owner_id"])
    op.create_table(
        "domains",
        Column("id", String(), nullable=False),
        Column("name", String(), nullable=False),
        Column("description", String(), nullable=False),
        Column("settings", JSON(), nullable=False),
        Column("workspace", String(), nullable=False),
        Column("version", Integer(), nullable=False),
        Column("created_at", String(), nullable=False),
        Column("updated_at", String(), nullable=False),
        PrimaryKeyConstraint("id"),
    )


def _knowledge() -> None:
    op.create_table(
        "documents",
        Column("id", String(), nullable=False),
        Column("domain_id", String(), nullable=False),
        Column("name", String(), nullable=False),
        Column("media_type", String(), nullable=False),
        Column("size", Integer(), nullable=False),
        Column("sha256", String(), nullable=False),
        Column("path", String(), nullable=False),
        Column("status", String(), nullable=False),
        Column("dense_state", String(), nullable=False),
        Column("progress", JSON(), nullable=False),
        Column("page_count", Integer(), nullable=True),
        Column("chunk_count", Integer(), nullable=True),
        Column("error_code", String(), nullable=True),
        Column("error_message", String(), nullable=True),
        Column("file_stamp", String(), nullable=False),
        Column("owner", String(), nullable=False),
        Column("lease_until", String(), nullable=True),
        Column("created_at", String(), nullable=False),
        Column("updated_at", String(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_documents_domain_sha", "documents", ["domain_id", "sha256"], unique=True)
    op.create_table(
        "collections",
        Column("domain_id", String(), nullable=False),
        Column("state", String(), nullable=False),
        Column("generation", Integer(), nullable=False),
        Column("reason", String(), nullable=True),
        Column("updated_at", String(), nullable=False),
        PrimaryKeyConstraint("domain_id"),
    )
    op.create_table(
        "retrievals",
        Column("id", String(), nullable=False),
        Column("domain_id", String(), nullable=False),
        Column("conversation_id", String(), nullable=False),
        Column("turn_id", String(), nullable=False),
        Column("query", String(), nullable=False),
        Column("mode", String(), nullable=False),
        Column("trace", JSON(), nullable=False),
        Column("created_at", String(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_retrievals_domain_id", "retrievals", ["domain_id"])
    op.create_index("ix_retrievals_conversation_id", "retrievals", ["conversation_id"])


def _secrets() -> None:
    op.create_table(
        "secrets",
        Column("domain_id", String(), nullable=False),
        Column("name", String(), nullable=False),
        Column("sealed", LargeBinary(), nullable=False),
        Column("updated_at", String(), nullable=False),
        PrimaryKeyConstraint("domain_id", "name"),
    )


def _sign_ins() -> None:
    op.create_table(
        "sign_ins",
        Column("id", String(), nullable=False),
        Column("domain_id", String(), nullable=False),
        Column("server", String(), nullable=False),
        Column("user_id", String(), nullable=False),
        Column("url", String(), nullable=False),
        Column("state_hash", String(), nullable=False),
        Column("browser_hash", String(), nullable=False),
        Column("begun_by", String(), nullable=False),
        Column("scope", String(), nullable=False),
        Column("step_up", Boolean(), nullable=False),
        Column("expires_at", String(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_sign_ins_state_hash", "sign_ins", ["state_hash"])
    op.create_table(
        "mcp_accounts",
        Column("domain_id", String(), nullable=False),
        Column("server", String(), nullable=False),
        Column("user_id", String(), nullable=False),
        Column("url", String(), nullable=False),
        Column("issuer", String(), nullable=False),
        Column("account", String(), nullable=False),
        Column("scope", String(), nullable=False),
        Column("signed_in_by", String(), nullable=False),
        Column("signed_in_at", String(), nullable=False),
        Column("expires_at", String(), nullable=True),
        Column("generation", Integer(), nullable=False),
        Column("renewing_until", String(), nullable=True),
        Column("step_ups", Integer(), nullable=False),
        Column("stepped_at", String(), nullable=True),
        PrimaryKeyConstraint("domain_id", "server", "user_id"),
    )


def _transcripts() -> None:
    op.create_table(
        "images",
        Column("id", String(), nullable=False),
        Column("domain_id", String(), nullable=False),
        Column("definition", JSON(), nullable=False),
        Column("created_at", String(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_images_domain_id", "images", ["domain_id"])
    op.create_table(
        "messages",
        Column("session_id", String(), nullable=False),
        Column("seq", Integer(), nullable=False),
        Column("turn_id", String(), nullable=False),
        Column("step", Integer(), nullable=False),
        Column("role", String(), nullable=False),
        Column("content", JSON(), nullable=False),
        Column("message_id", String(), nullable=False),
        Column("parent_message_id", String(), nullable=True),
        Column("model", String(), nullable=True),
        Column("usage", JSON(), nullable=True),
        Column("partial", Boolean(), nullable=False),
        Column("rewritten_at", Integer(), nullable=False),
        Column("created_at", String(), nullable=False),
        PrimaryKeyConstraint("session_id", "seq"),
    )
    op.create_index("ix_messages_message", "messages", ["session_id", "message_id"])
    op.create_table(
        "sessions",
        Column("id", String(), nullable=False),
        Column("labels", JSON(), nullable=False),
        Column("parent_turn_id", String(), nullable=True),
        Column("tool_call_id", String(), nullable=True),
        Column("last_seq", Integer(), nullable=False),
        Column("leaf_message_id", String(), nullable=True),
        Column("branched", Boolean(), nullable=False),
        Column("window_start", Integer(), nullable=False),
        Column("window_set_at", Integer(), nullable=False),
        Column("head", JSON(), nullable=True),
        Column("compaction_id", String(), nullable=True),
        Column("compacted_to", Integer(), nullable=False),
        Column("gap_from", Integer(), nullable=False),
        Column("gap_to", Integer(), nullable=False),
        Column("prompt_id", String(), nullable=True),
        Column("told_id", String(), nullable=True),
        Column("late_tools", JSON(), nullable=True),
        Column("created_at", String(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "prompts",
        Column("id", String(), nullable=False),
        Column("system", JSON(), nullable=False),
        Column("tools", JSON(), nullable=False),
        Column("created_at", String(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_sessions_parent", "sessions", ["parent_turn_id", "tool_call_id"])


def _contexts() -> None:
    op.create_table(
        "contexts",
        Column("message_id", String(), nullable=False),
        Column("session_id", String(), nullable=False),
        Column("window_start", Integer(), nullable=False),
        Column("window_set_at", Integer(), nullable=False),
        Column("head", JSON(), nullable=True),
        Column("compaction_id", String(), nullable=True),
        Column("compacted_to", Integer(), nullable=False),
        Column("gap_from", Integer(), nullable=False),
        Column("gap_to", Integer(), nullable=False),
        Column("prompt_id", String(), nullable=True),
        Column("told_id", String(), nullable=True),
        Column("late_tools", JSON(), nullable=True),
        PrimaryKeyConstraint("message_id"),
    )
    op.create_index("ix_contexts_session_id", "contexts", ["session_id"])


def _turns() -> None:
    op.create_table(
        "run_events",
        Column("turn_id", String(), nullable=False),
        Column("last_seq", BigInteger(), nullable=False),
        Column("first_seq", BigInteger(), nullable=False),
        Column("payload", LargeBinary(), nullable=False),
        PrimaryKeyConstraint("turn_id", "last_seq"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "turns",
        Column("id", String(), nullable=False),
        Column("session_id", String(), nullable=False),
        Column("conversation_id", String(), nullable=False),
        Column("client_message_id", String(), nullable=True),
        Column("key_id", String(), nullable=False),
        Column("content", String(), nullable=False),
        Column("images", JSON(), nullable=False),
        Column("user_message_id", String(), nullable=False),
        Column("message_id", String(), nullable=False),
        Column("parent_message_id", String(), nullable=True),
        Column("branch_of", String(), nullable=True),
        Column("began", Boolean(), nullable=False),
        Column("status", String(), nullable=False),
        Column("end_reason", String(), nullable=True),
        Column("error", JSON(), nullable=True),
        Column("image_id", String(), nullable=False),
        Column("role_hashes", JSON(), nullable=False),
        Column("owner", String(), nullable=False),
        Column("fence", Integer(), nullable=False),
        Column("lease_until", String(), nullable=True),
        Column("resumes", Integer(), nullable=False),
        Column("steps", Integer(), nullable=False),
        Column("usage", JSON(), nullable=True),
        Column("references", JSON(), nullable=False),
        Column("timings", JSON(), nullable=False),
        Column("started_at", String(), nullable=False),
        Column("ended_at", String(), nullable=True),
        PrimaryKeyConstraint("id"),
        UniqueConstraint("session_id", "client_message_id"),
    )
    op.create_index("ix_turns_conversation_id", "turns", ["conversation_id"])
    op.create_index("ix_turns_status", "turns", ["status"])


def _tool_calls() -> None:
    op.create_table(
        "tool_calls",
        Column("turn_id", String(), nullable=False),
        Column("tool_call_id", String(), nullable=False),
        Column("session_id", String(), nullable=False),
        Column("agent", String(), nullable=False),
        Column("server", String(), nullable=False),
        Column("tool_name", String(), nullable=False),
        Column("arguments", JSON(), nullable=False),
        Column("status", String(), nullable=False),
        Column("result", JSON(), nullable=True),
        Column("started_at", String(), nullable=False),
        Column("duration_ms", Integer(), nullable=True),
        Column("size", Integer(), nullable=True),
        Column("ref", String(), nullable=True),
        PrimaryKeyConstraint("turn_id", "tool_call_id"),
    )
    op.create_index("ix_tool_calls_session_id", "tool_calls", ["session_id"])
    op.create_table(
        "tool_lists",
        Column("domain_id", String(), nullable=False),
        Column("server", String(), nullable=False),
        Column("user_id", String(), nullable=False),
        Column("entry_hash", String(), nullable=False),
        Column("tools", JSON(), nullable=False),
        Column("accepted", JSON(), nullable=False),
        Column("updated_at", String(), nullable=False),
        PrimaryKeyConstraint("domain_id", "server", "user_id"),
    )


def _launch_requests() -> None:
    op.create_table(
        "launch_requests",
        Column("id", String(), nullable=False),
        Column("domain_id", String(), nullable=False),
        Column("server", String(), nullable=False),
        Column("command", String(), nullable=False),
        Column("args", JSON(), nullable=False),
        Column("env", JSON(), nullable=False),
        Column("template", JSON(), nullable=False),
        Column("secrets", JSON(), nullable=False),
        Column("facts", JSON(), nullable=False),
        Column("fingerprint", String(), nullable=False),
        Column("pending", String(), nullable=True),
        Column("state", String(), nullable=False),
        Column("requested_by", String(), nullable=False),
        Column("requested_at", String(), nullable=False),
        Column("reason", String(), nullable=False),
        Column("grant", JSON(), nullable=True),
        Column("catalogue_id", String(), nullable=False),
        Column("sha256", String(), nullable=False),
        Column("decided_by", String(), nullable=False),
        Column("decided_at", String(), nullable=True),
        PrimaryKeyConstraint("id"),
        UniqueConstraint("domain_id", "pending"),
    )
    op.create_index("ix_launch_requests_state", "launch_requests", ["state"])


def _extractions() -> None:
    op.create_table(
        "extractions",
        Column("session_id", String(), nullable=False),
        Column("conversation_id", String(), nullable=False),
        Column("domain_id", String(), nullable=False),
        Column("user_id", String(), nullable=False),
        Column("every", Integer(), nullable=False),
        Column("turn_count", Integer(), nullable=False),
        Column("turn_ids", JSON(), nullable=False),
        Column("proposals", JSON(), nullable=False),
        Column("proposed_from", JSON(), nullable=False),
        Column("tries", Integer(), nullable=False),
        Column("last_at", String(), nullable=False),
        Column("claimed_until", String(), nullable=False),
        PrimaryKeyConstraint("session_id"),
    )


def _waits() -> None:
    op.create_table(
        "waits",
        Column("id", String(), nullable=False),
        Column("turn_id", String(), nullable=False),
        Column("root_turn_id", String(), nullable=False),
        Column("session_id", String(), nullable=False),
        Column("conversation_id", String(), nullable=False),
        Column("domain_id", String(), nullable=False),
        Column("user_id", String(), nullable=False),
        Column("agent", String(), nullable=False),
        Column("tool_call_id", String(), nullable=False),
        Column("kind", String(), nullable=False),
        Column("answerer", String(), nullable=False),
        Column("request", JSON(), nullable=False),
        Column("held", JSON(), nullable=True),
        Column("subject", String(), nullable=False),
        Column("live", Boolean(), nullable=False),
        Column("state", String(), nullable=False),
        Column("answer", JSON(), nullable=True),
        Column("remembered", Boolean(), nullable=False),
        Column("answered_by", String(), nullable=False),
        Column("taken", Boolean(), nullable=False),
        Column("opened_at", String(), nullable=False),
        Column("answered_at", String(), nullable=True),
        Column("expires_at", String(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    for column in ("turn_id", "root_turn_id", "conversation_id", "state"):
        op.create_index(f"ix_waits_{column}", "waits", [column])


def _beside_transcripts() -> None:
    op.create_table(
        "compactions",
        Column("id", String(), nullable=False),
        Column("session_id", String(), nullable=False),
        Column("summary", String(), nullable=False),
        Column("from_seq", Integer(), nullable=False),
        Column("to_seq", Integer(), nullable=False),
        Column("message_count", Integer(), nullable=False),
        Column("leaf_message_id", String(), nullable=True),
        Column("created_by", String(), nullable=False),
        Column("created_at", String(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_compactions_session_id", "compactions", ["session_id"])
    op.create_table(
        "payloads",
        Column("ref", String(), nullable=False),
        Column("session_id", String(), nullable=False),
        Column("media_type", String(), nullable=False),
        Column("size", Integer(), nullable=False),
        Column("sha256", String(), nullable=False),
        Column("created_at", String(), nullable=False),
        PrimaryKeyConstraint("ref"),
    )
    op.create_index("ix_payloads_session_id", "payloads", ["session_id"])
    op.create_table(
        "usage",
        Column("id", String(), nullable=False),
        Column("session_id", String(), nullable=False),
        Column("turn_id", String(), nullable=True),
        Column("step", Integer(), nullable=False),
        Column("conversation_id", String(), nullable=False),
        Column("domain_id", String(), nullable=False),
        Column("user_id", String(), nullable=False),
        Column("key_id", String(), nullable=False),
        Column("agent", String(), nullable=False),
        Column("model", String(), nullable=False),
        Column("input", Integer(), nullable=False),
        Column("cache_read", Integer(), nullable=False),
        Column("cache_write", Integer(), nullable=False),
        Column("output", Integer(), nullable=False),
        Column("dropped_citations", Integer(), nullable=False),
        Column("unverified_citations", Integer(), nullable=False),
        Column("created_at", String(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_usage_created_at", "usage", ["created_at"])
    op.create_index("ix_usage_session_id", "usage", ["session_id"])
    op.create_index("ix_usage_turn_id", "usage", ["turn_id"])


def _people() -> None:
    op.create_table(
        "users",
        Column("id", String(), nullable=False),
        Column("number", Integer(), nullable=False),
        Column("display_name", String(), nullable=False),
        Column("operator", Boolean(), nullable=False),
        Column("grants", JSON(), nullable=False),
        Column("state", String(), nullable=False),
        Column("origin", String(), nullable=False),
        Column("subject", String(), nullable=True),
        Column("created_at", String(), nullable=False),
        Column("updated_at", String(), nullable=False),
        PrimaryKeyConstraint("id"),
        UniqueConstraint("number"),
        UniqueConstraint("subject"),
    )
    op.create_table(
        "logins",
        Column("id", String(), nullable=False),
        Column("user_id", String(), nullable=False),
        Column("key_id", String(), nullable=False),
        Column("sha256", String(), nullable=False),
        Column("created_at", String(), nullable=False),
        Column("expires_at", String(), nullable=False),
        Column("ends_at", String(), nullable=False),
        PrimaryKeyConstraint("id"),
        UniqueConstraint("sha256"),
    )
    op.create_index("ix_logins_user_id", "logins", ["user_id"])
    op.create_table(
        "logins_begun",
        Column("id", String(), nullable=False),
        Column("browser_sha256", String(), nullable=False),
        Column("nonce", String(), nullable=False),
        Column("verifier", String(), nullable=False),
        Column("return_to", String(), nullable=False),
        Column("expires_at", String(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_logins_begun_expires_at", "logins_begun", ["expires_at"])


def _access() -> None:
    op.create_table(
        "keys",
        Column("id", String(), nullable=False),
        Column("user_id", String(), nullable=False),
        Column("role", String(), nullable=True),
        Column("domains", JSON(), nullable=False),
        Column("sha256", String(), nullable=False),
        Column("created_at", String(), nullable=False),
        Column("revoked_at", String(), nullable=True),
        PrimaryKeyConstraint("id"),
        UniqueConstraint("sha256"),
    )
    op.create_table(
        "audit",
        Column("seq", Integer(), autoincrement=False, nullable=False),
        Column("at", String(), nullable=False),
        Column("actor", String(), nullable=False),
        Column("action", String(), nullable=False),
        Column("target", String(), nullable=False),
        Column("outcome", String(), nullable=False),
        Column("details", JSON(), nullable=False),
        Column("count", Integer(), nullable=False),
        Column("previous", String(), nullable=False),
        Column("hash", String(), nullable=False),
        PrimaryKeyConstraint("seq"),
    )
    op.create_table(
        "audit_head",
        Column("id", Integer(), autoincrement=False, nullable=False),
        Column("seq", Integer(), nullable=False),
        Column("hash", String(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    origin = op.create_table(
        "origin",
        Column("id", Integer(), autoincrement=False, nullable=False),
        Column("store_id", String(), nullable=False),
        Column("made_at", String(), nullable=False),
        Column("restored_from", String(), nullable=True),
        Column("restored_store", String(), nullable=True),
        Column("restored_at", String(), nullable=True),
        PrimaryKeyConstraint("id"),
    )
    op.bulk_insert(origin, [{"id": 1, "store_id": new_id("store"), "made_at": now()}])
    op.create_table(
        "probe",
        Column("id", Integer(), autoincrement=False, nullable=False),
        Column("at", String(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
