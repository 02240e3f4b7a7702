"""Initial tables."""

import sqlalchemy as sa
from alembic import op

from agentic_rag.store.clock import new_id, now

revision = "1000"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "attachments",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("media_type", sa.String(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("ref", sa.String(), nullable=False),
        sa.Column("text_ref", sa.String(), nullable=False),
        sa.Column("pages", sa.Integer(), nullable=True),
        sa.Column("passages", sa.Integer(), nullable=False),
        sa.Column("languages", sa.JSON(), nullable=False),
        sa.Column("outline", sa.JSON(), nullable=False),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.Column("turn_id", sa.String(), nullable=True),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("attachments", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_attachments_session_id"), ["session_id"], unique=False)

    op.create_table(
        "audit",
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("previous", sa.String(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "budget_reservations",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("turn_id", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("sent", sa.BigInteger(), nullable=False),
        sa.Column("received", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("budget_reservations", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_budget_reservations_domain_id"), ["domain_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_budget_reservations_key_id"), ["key_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_budget_reservations_user_id"), ["user_id"], unique=False)

    op.create_table(
        "budgets",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("unit", sa.String(), nullable=False),
        sa.Column("period", sa.String(), nullable=False),
        sa.Column("soft", sa.String(), nullable=True),
        sa.Column("hard", sa.String(), nullable=True),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("updated_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("scope", "subject", "unit", "period"),
    )
    op.create_table(
        "collections",
        sa.Column("domain_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("lines", sa.String(), nullable=False),
        sa.Column("updated_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("domain_id"),
    )
    op.create_table(
        "compactions",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("summary", sa.String(), nullable=False),
        sa.Column("from_seq", sa.Integer(), nullable=False),
        sa.Column("to_seq", sa.Integer(), nullable=False),
        sa.Column("message_count", sa.Integer(), nullable=False),
        sa.Column("leaf_message_id", sa.String(), nullable=True),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("compactions", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_compactions_session_id"), ["session_id"], unique=False)

    op.create_table(
        "context_lines",
        sa.Column("document_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.String(), autoincrement=False, nullable=False),
        sa.Column("model", sa.String(), autoincrement=False, nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("line", sa.String(), nullable=False),
        sa.Column("failure", sa.String(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("retry_at", sa.String(), nullable=False),
        sa.Column("batch_id", sa.String(), nullable=False),
        sa.Column("batch_at", sa.String(), nullable=False),
        sa.Column("updated_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("document_id", "digest", "model"),
    )
    with op.batch_alter_table("context_lines", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_context_lines_batch_id"), ["batch_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_context_lines_domain_id"), ["domain_id"], unique=False)

    op.create_table(
        "contexts",
        sa.Column("message_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("window_start", sa.Integer(), nullable=False),
        sa.Column("window_set_at", sa.Integer(), nullable=False),
        sa.Column("head", sa.JSON(), nullable=True),
        sa.Column("compaction_id", sa.String(), nullable=True),
        sa.Column("compacted_to", sa.Integer(), nullable=False),
        sa.Column("gap_from", sa.Integer(), nullable=False),
        sa.Column("gap_to", sa.Integer(), nullable=False),
        sa.Column("prompt_id", sa.String(), nullable=True),
        sa.Column("told_id", sa.String(), nullable=True),
        sa.Column("late_tools", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("message_id"),
    )
    with op.batch_alter_table("contexts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_contexts_session_id"), ["session_id"], unique=False)

    op.create_table(
        "conversation_documents",
        sa.Column("conversation_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("document_id", sa.String(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("conversation_id", "document_id"),
    )
    op.create_table(
        "conversations",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("owner_id", sa.String(), nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("title", sa.String(), nullable=False),
        sa.Column("title_source", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("message_count", sa.Integer(), nullable=False),
        sa.Column("compacted_count", sa.Integer(), nullable=False),
        sa.Column("image_id", sa.String(), nullable=True),
        sa.Column("context_document_ids", sa.JSON(), nullable=False),
        sa.Column("meta", sa.JSON(), nullable=False),
        sa.Column("transient", sa.Boolean(), nullable=False),
        sa.Column("started_at", sa.String(), nullable=False),
        sa.Column("updated_at", sa.String(), nullable=False),
        sa.Column("last_message_at", sa.String(), nullable=True),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("folder", sa.String(), nullable=True),
        sa.Column("outcome", sa.String(), nullable=True),
        sa.Column("model", sa.String(), nullable=True),
        sa.Column("client_name", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("owner_id", "domain_id", "client_name"),
        sa.UniqueConstraint("session_id"),
    )
    with op.batch_alter_table("conversations", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_conversations_domain_id"), ["domain_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_conversations_owner_id"), ["owner_id"], unique=False)

    op.create_table(
        "deliveries",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("endpoint_id", sa.String(), nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("transaction", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("conversation_id", sa.String(), nullable=False),
        sa.Column("once", sa.String(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("problem", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("ended_at", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("endpoint_id", "once"),
    )
    with op.batch_alter_table("deliveries", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_deliveries_conversation_id"), ["conversation_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_deliveries_domain_id"), ["domain_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_deliveries_ended_at"), ["ended_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_deliveries_endpoint_id"), ["endpoint_id"], unique=False)
        batch_op.create_index(
            "ix_deliveries_pending",
            ["endpoint_id", "transaction", "id"],
            unique=False,
            sqlite_where=sa.text("state = 'pending'"),
            postgresql_where=sa.text("state = 'pending'"),
        )

    op.create_table(
        "documents",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("media_type", sa.String(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("dense_state", sa.String(), nullable=False),
        sa.Column("lines_joined", sa.Boolean(), nullable=False),
        sa.Column("progress", sa.JSON(), nullable=False),
        sa.Column("page_count", sa.Integer(), nullable=True),
        sa.Column("chunk_count", sa.Integer(), nullable=True),
        sa.Column("error_code", sa.String(), nullable=True),
        sa.Column("error_message", sa.String(), nullable=True),
        sa.Column("file_stamp", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("lease_until", sa.String(), nullable=True),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("own_date", sa.String(), nullable=True),
        sa.Column("review_by", sa.String(), nullable=True),
        sa.Column("source_id", sa.String(), nullable=False),
        sa.Column("source_uri", sa.String(), nullable=True),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("updated_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("documents", schema=None) as batch_op:
        batch_op.create_index("ix_documents_domain_sha", ["domain_id", "sha256"], unique=True)
        batch_op.create_index(batch_op.f("ix_documents_source_id"), ["source_id"], unique=False)

    op.create_table(
        "domains",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("description", sa.String(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("workspace", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("updated_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "endpoints",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("channel", sa.String(), nullable=False),
        sa.Column("shown", sa.String(), nullable=False),
        sa.Column("events", sa.JSON(), nullable=False),
        sa.Column("with_texts", sa.Boolean(), nullable=False),
        sa.Column("recipient", sa.String(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("problem", sa.String(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("retry_at", sa.String(), nullable=True),
        sa.Column("sent_at", sa.String(), nullable=True),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("updated_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("endpoints", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_endpoints_domain_id"), ["domain_id"], unique=False)

    op.create_table(
        "engram_cues",
        sa.Column("memory_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("word", sa.String(), autoincrement=False, nullable=False),
        sa.Column("engram_id", sa.String(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("memory_id", "word", "engram_id"),
    )
    with op.batch_alter_table("engram_cues", schema=None) as batch_op:
        batch_op.create_index("ix_engram_cues_engram", ["memory_id", "engram_id"], unique=False)

    op.create_table(
        "engrams",
        sa.Column("memory_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("content", sa.String(), nullable=False),
        sa.Column("cues", sa.String(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("strength", sa.Float(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("author", sa.String(), nullable=False),
        sa.Column("turn_id", sa.String(), nullable=False),
        sa.Column("replaces", sa.String(), nullable=False),
        sa.Column("replaced_by", sa.String(), nullable=False),
        sa.Column("proposed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("memory_id", "id"),
    )
    with op.batch_alter_table("engrams", schema=None) as batch_op:
        batch_op.create_index("ix_engrams_number", ["memory_id", "number"], unique=True)

    op.create_table(
        "evaluation_cases",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("questions", sa.JSON(), nullable=False),
        sa.Column("expect", sa.JSON(), nullable=False),
        sa.Column("note", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("source", sa.JSON(), nullable=False),
        sa.Column("author", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("session_id", sa.String(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("updated_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("evaluation_cases", schema=None) as batch_op:
        batch_op.create_index("ix_evaluation_cases_digest", ["domain_id", "digest"], unique=True)
        batch_op.create_index(batch_op.f("ix_evaluation_cases_session_id"), ["session_id"], unique=False)

    op.create_table(
        "evaluation_drafts",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("label", sa.String(), nullable=False),
        sa.Column("change", sa.JSON(), nullable=False),
        sa.Column("author", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("decision", sa.JSON(), nullable=False),
        sa.Column("before_run", sa.String(), nullable=False),
        sa.Column("after_run", sa.String(), nullable=False),
        sa.Column("tier", sa.String(), nullable=False),
        sa.Column("then_apply", sa.Boolean(), nullable=False),
        sa.Column("decided_by", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("updated_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("evaluation_drafts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_evaluation_drafts_domain_id"), ["domain_id"], unique=False)

    op.create_table(
        "evaluation_results",
        sa.Column("run_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("case_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("repeat", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("question", sa.String(), nullable=False),
        sa.Column("case_version", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("checks", sa.JSON(), nullable=False),
        sa.Column("observed", sa.JSON(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "case_id", "repeat"),
    )
    with op.batch_alter_table("evaluation_results", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_evaluation_results_domain_id"), ["domain_id"], unique=False)

    op.create_table(
        "evaluation_runs",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("tier", sa.String(), nullable=False),
        sa.Column("purpose", sa.String(), nullable=False),
        sa.Column("label", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("subject", sa.JSON(), nullable=False),
        sa.Column("image_id", sa.String(), nullable=False),
        sa.Column("case_ids", sa.JSON(), nullable=False),
        sa.Column("repeats", sa.Integer(), nullable=False),
        sa.Column("done", sa.Integer(), nullable=False),
        sa.Column("passed", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("gone", sa.Integer(), nullable=False),
        sa.Column("unknown", sa.Integer(), nullable=False),
        sa.Column("unchecked", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("max_tokens", sa.Integer(), nullable=True),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("draft_id", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("beat_at", sa.String(), nullable=False),
        sa.Column("scoring", sa.String(), nullable=False),
        sa.Column("batch_id", sa.String(), nullable=False),
        sa.Column("batch_at", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("ended_at", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("evaluation_runs", schema=None) as batch_op:
        batch_op.create_index("ix_evaluation_runs_domain", ["domain_id", "id"], unique=False)

    op.create_table(
        "expected_labels",
        sa.Column("domain_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("sha256", sa.String(), autoincrement=False, nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("own_date", sa.String(), nullable=True),
        sa.Column("review_by", sa.String(), nullable=True),
        sa.Column("source_id", sa.String(), nullable=False),
        sa.Column("source_uri", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("domain_id", "sha256"),
    )
    op.create_table(
        "extractions",
        sa.Column("session_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("conversation_id", sa.String(), nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("every", sa.Integer(), nullable=False),
        sa.Column("turn_count", sa.Integer(), nullable=False),
        sa.Column("turn_ids", sa.JSON(), nullable=False),
        sa.Column("proposals", sa.JSON(), nullable=False),
        sa.Column("proposed_from", sa.JSON(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("last_at", sa.String(), nullable=False),
        sa.Column("claimed_until", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("session_id"),
    )
    op.create_table(
        "feedback",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("conversation_id", sa.String(), nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("rating", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("feedback", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_feedback_domain_id"), ["domain_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_feedback_session_id"), ["session_id"], unique=False)

    op.create_table(
        "firings",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("schedule_id", sa.String(), nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("slot", sa.String(), nullable=False),
        sa.Column("payload", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("conversation_id", sa.String(), nullable=False),
        sa.Column("turn_id", sa.String(), nullable=False),
        sa.Column("detail", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("ended_at", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("schedule_id", "slot"),
    )
    with op.batch_alter_table("firings", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_firings_domain_id"), ["domain_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_firings_ended_at"), ["ended_at"], unique=False)
        batch_op.create_index(
            "ix_firings_open",
            ["schedule_id", "id"],
            unique=False,
            sqlite_where=sa.text("state IN ('claimed', 'running')"),
            postgresql_where=sa.text("state IN ('claimed', 'running')"),
        )
        batch_op.create_index(batch_op.f("ix_firings_turn_id"), ["turn_id"], unique=False)

    op.create_table(
        "history",
        sa.Column("domain_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("n", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("author", sa.String(), nullable=False),
        sa.Column("at", sa.String(), nullable=False),
        sa.Column("content", sa.String(), nullable=True),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("redacted", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("domain_id", "n"),
    )
    with op.batch_alter_table("history", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_history_author"), ["author"], unique=False)
        batch_op.create_index("ix_history_subject", ["domain_id", "kind", "subject"], unique=False)

    op.create_table(
        "images",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("definition", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("images", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_images_domain_id"), ["domain_id"], unique=False)

    op.create_table(
        "imports",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("removed", sa.JSON(), nullable=False),
        sa.Column("begun_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "keys",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=True),
        sa.Column("domains", sa.JSON(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("groups", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("revoked_at", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("sha256"),
    )
    op.create_table(
        "label_versions",
        sa.Column("domain_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("domain_id"),
    )
    op.create_table(
        "launch_requests",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("server", sa.String(), nullable=False),
        sa.Column("command", sa.String(), nullable=False),
        sa.Column("args", sa.JSON(), nullable=False),
        sa.Column("env", sa.JSON(), nullable=False),
        sa.Column("template", sa.JSON(), nullable=False),
        sa.Column("secrets", sa.JSON(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("pending", sa.String(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("requested_by", sa.String(), nullable=False),
        sa.Column("requested_at", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("grant", sa.JSON(), nullable=True),
        sa.Column("catalogue_id", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("decided_by", sa.String(), nullable=False),
        sa.Column("decided_at", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("domain_id", "pending"),
    )
    with op.batch_alter_table("launch_requests", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_launch_requests_state"), ["state"], unique=False)

    op.create_table(
        "leases",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("until", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "logins",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("expires_at", sa.String(), nullable=False),
        sa.Column("ends_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("sha256"),
    )
    with op.batch_alter_table("logins", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_logins_user_id"), ["user_id"], unique=False)

    op.create_table(
        "logins_begun",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("browser_sha256", sa.String(), nullable=False),
        sa.Column("nonce", sa.String(), nullable=False),
        sa.Column("verifier", sa.String(), nullable=False),
        sa.Column("return_to", sa.String(), nullable=False),
        sa.Column("expires_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("logins_begun", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_logins_begun_expires_at"), ["expires_at"], unique=False)

    op.create_table(
        "mcp_accounts",
        sa.Column("domain_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("server", sa.String(), autoincrement=False, nullable=False),
        sa.Column("user_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("issuer", sa.String(), nullable=False),
        sa.Column("account", sa.String(), nullable=False),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("signed_in_by", sa.String(), nullable=False),
        sa.Column("signed_in_at", sa.String(), nullable=False),
        sa.Column("expires_at", sa.String(), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("renewing_until", sa.String(), nullable=True),
        sa.Column("step_ups", sa.Integer(), nullable=False),
        sa.Column("stepped_at", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("domain_id", "server", "user_id"),
    )
    op.create_table(
        "memories",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("counts", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("memories", schema=None) as batch_op:
        batch_op.create_index("ix_memories_place", ["domain_id", "user_id", "role"], unique=True)

    op.create_table(
        "memory_sources",
        sa.Column("domain_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("turn_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("document_ids", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("domain_id", "turn_id"),
    )
    op.create_table(
        "message_texts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("conversation_id", sa.String(), nullable=False),
        sa.Column("message_id", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("words", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("message_texts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_message_texts_session_id"), ["session_id"], unique=False)

    op.create_table(
        "messages",
        sa.Column("session_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("turn_id", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("message_id", sa.String(), nullable=False),
        sa.Column("parent_message_id", sa.String(), nullable=True),
        sa.Column("model", sa.String(), nullable=True),
        sa.Column("usage", sa.JSON(), nullable=True),
        sa.Column("partial", sa.Boolean(), nullable=False),
        sa.Column("rewritten_at", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "seq"),
    )
    with op.batch_alter_table("messages", schema=None) as batch_op:
        batch_op.create_index("ix_messages_message", ["session_id", "message_id"], unique=False)

    op.create_table(
        "oauth_authorizations",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("client_id", sa.String(), nullable=False),
        sa.Column("client_name", sa.String(), nullable=False),
        sa.Column("redirect_uri", sa.String(), nullable=False),
        sa.Column("resource", sa.String(), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("used_at", sa.String(), nullable=True),
        sa.Column("expires_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("oauth_authorizations", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_oauth_authorizations_domain_id"), ["domain_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_oauth_authorizations_expires_at"), ["expires_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_oauth_authorizations_user_id"), ["user_id"], unique=False)

    op.create_table(
        "oauth_clients",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("redirect_uris", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("used_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("oauth_clients", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_oauth_clients_used_at"), ["used_at"], unique=False)

    op.create_table(
        "oauth_codes",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("authorization_id", sa.String(), nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("challenge", sa.String(), nullable=False),
        sa.Column("expires_at", sa.String(), nullable=False),
        sa.Column("used", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("oauth_codes", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_oauth_codes_authorization_id"), ["authorization_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_oauth_codes_domain_id"), ["domain_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_oauth_codes_expires_at"), ["expires_at"], unique=False)

    op.create_table(
        "oauth_requests",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("client_id", sa.String(), nullable=False),
        sa.Column("client_name", sa.String(), nullable=False),
        sa.Column("redirect_uri", sa.String(), nullable=False),
        sa.Column("issuer", sa.String(), nullable=False),
        sa.Column("resource", sa.String(), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(), nullable=True),
        sa.Column("challenge", sa.String(), nullable=False),
        sa.Column("expires_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("oauth_requests", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_oauth_requests_domain_id"), ["domain_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_oauth_requests_expires_at"), ["expires_at"], unique=False)

    op.create_table(
        "oauth_tokens",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("authorization_id", sa.String(), nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("expires_at", sa.String(), nullable=False),
        sa.Column("used", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("oauth_tokens", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_oauth_tokens_authorization_id"), ["authorization_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_oauth_tokens_domain_id"), ["domain_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_oauth_tokens_expires_at"), ["expires_at"], unique=False)

    op.create_table(
        "origin",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("store_id", sa.String(), nullable=False),
        sa.Column("made_at", sa.String(), nullable=False),
        sa.Column("restored_from", sa.String(), nullable=True),
        sa.Column("restored_store", sa.String(), nullable=True),
        sa.Column("restored_at", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "payloads",
        sa.Column("ref", sa.String(), autoincrement=False, nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("media_type", sa.String(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("ref"),
    )
    with op.batch_alter_table("payloads", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_payloads_session_id"), ["session_id"], unique=False)

    op.create_table(
        "probe",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "prompts",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("system", sa.JSON(), nullable=False),
        sa.Column("tools", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "replicas",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("leaving", sa.Boolean(), nullable=False),
        sa.Column("started_at", sa.String(), nullable=False),
        sa.Column("heartbeat_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "retrievals",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("conversation_id", sa.String(), nullable=False),
        sa.Column("turn_id", sa.String(), nullable=False),
        sa.Column("query", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("trace", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("retrievals", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_retrievals_conversation_id"), ["conversation_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_retrievals_domain_id"), ["domain_id"], unique=False)

    op.create_table(
        "run_events",
        sa.Column("turn_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("last_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("turn_id", "last_seq"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "run_groups",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "scans",
        sa.Column("document_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("sha256", sa.String(), autoincrement=False, nullable=False),
        sa.Column("page", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("document_id", "sha256", "page"),
    )
    with op.batch_alter_table("scans", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_scans_domain_id"), ["domain_id"], unique=False)

    op.create_table(
        "schedules",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("owner_id", sa.String(), nullable=False),
        sa.Column("cron", sa.String(), nullable=False),
        sa.Column("time_zone", sa.String(), nullable=False),
        sa.Column("prompt", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("allowed_tools", sa.JSON(), nullable=False),
        sa.Column("max_tokens", sa.Integer(), nullable=True),
        sa.Column("endpoint_id", sa.String(), nullable=False),
        sa.Column("catch_up", sa.String(), nullable=False),
        sa.Column("max_failures", sa.Integer(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("problem", sa.String(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.String(), nullable=True),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("updated_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("domain_id", "name"),
    )
    with op.batch_alter_table("schedules", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_schedules_domain_id"), ["domain_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_schedules_next_at"), ["next_at"], unique=False)

    op.create_table(
        "schema_support",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("revision", sa.String(), nullable=False),
        sa.Column("oldest", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "secrets",
        sa.Column("domain_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("name", sa.String(), autoincrement=False, nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("updated_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("domain_id", "name"),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("parent_turn_id", sa.String(), nullable=True),
        sa.Column("tool_call_id", sa.String(), nullable=True),
        sa.Column("last_seq", sa.Integer(), nullable=False),
        sa.Column("leaf_message_id", sa.String(), nullable=True),
        sa.Column("branched", sa.Boolean(), nullable=False),
        sa.Column("window_start", sa.Integer(), nullable=False),
        sa.Column("window_set_at", sa.Integer(), nullable=False),
        sa.Column("head", sa.JSON(), nullable=True),
        sa.Column("compaction_id", sa.String(), nullable=True),
        sa.Column("compacted_to", sa.Integer(), nullable=False),
        sa.Column("gap_from", sa.Integer(), nullable=False),
        sa.Column("gap_to", sa.Integer(), nullable=False),
        sa.Column("prompt_id", sa.String(), nullable=True),
        sa.Column("told_id", sa.String(), nullable=True),
        sa.Column("late_tools", sa.JSON(), nullable=True),
        sa.Column("writer", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("sessions", schema=None) as batch_op:
        batch_op.create_index("ix_sessions_parent", ["parent_turn_id", "tool_call_id"], unique=False)

    op.create_table(
        "shares",
        sa.Column("token_hash", sa.String(), autoincrement=False, nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("conversation_id", sa.String(), nullable=False),
        sa.Column("leaf_message_id", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("token_hash"),
        sa.UniqueConstraint("session_id"),
    )
    op.create_table(
        "sign_ins",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("server", sa.String(), nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("state_hash", sa.String(), nullable=False),
        sa.Column("browser_hash", sa.String(), nullable=False),
        sa.Column("begun_by", sa.String(), nullable=False),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("step_up", sa.Boolean(), nullable=False),
        sa.Column("expires_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("sign_ins", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_sign_ins_state_hash"), ["state_hash"], unique=False)

    op.create_table(
        "signals",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("transaction", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("detail", sa.String(), nullable=False),
        sa.Column("sent_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("signals", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_signals_transaction"), ["transaction"], unique=False)

    op.create_table(
        "source_items",
        sa.Column("source_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("uri", sa.String(), autoincrement=False, nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("document_id", sa.String(), nullable=False),
        sa.Column("error_code", sa.String(), nullable=False),
        sa.Column("error", sa.String(), nullable=False),
        sa.Column("seen_at", sa.String(), nullable=False),
        sa.Column("missing_since", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("source_id", "uri"),
    )
    with op.batch_alter_table("source_items", schema=None) as batch_op:
        batch_op.create_index("ix_source_items_document", ["document_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_source_items_domain_id"), ["domain_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_source_items_missing_since"), ["missing_since"], unique=False)

    op.create_table(
        "sources",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("folder", sa.String(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("exclude", sa.JSON(), nullable=False),
        sa.Column("interval_minutes", sa.Integer(), nullable=False),
        sa.Column("grace_hours", sa.Integer(), nullable=False),
        sa.Column("max_items", sa.Integer(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("owner_id", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("requested", sa.Boolean(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("next_at", sa.String(), nullable=True),
        sa.Column("started_at", sa.String(), nullable=True),
        sa.Column("ended_at", sa.String(), nullable=True),
        sa.Column("problem_code", sa.String(), nullable=False),
        sa.Column("problem", sa.String(), nullable=False),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.Column("counts", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("updated_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("domain_id", "folder"),
        sa.UniqueConstraint("domain_id", "name"),
    )
    with op.batch_alter_table("sources", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_sources_domain_id"), ["domain_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_sources_next_at"), ["next_at"], unique=False)

    op.create_table(
        "tickets",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("seconds", sa.Integer(), nullable=True),
        sa.Column("expires_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("tickets", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_tickets_key_id"), ["key_id"], unique=False)

    op.create_table(
        "tool_calls",
        sa.Column("turn_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("tool_call_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("server", sa.String(), nullable=False),
        sa.Column("tool_name", sa.String(), nullable=False),
        sa.Column("arguments", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("started_at", sa.String(), nullable=False),
        sa.Column("duration_ms", sa.Integer(), nullable=True),
        sa.Column("size", sa.Integer(), nullable=True),
        sa.Column("ref", sa.String(), nullable=True),
        sa.Column("task", sa.String(), nullable=False),
        sa.Column("app_of", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("turn_id", "tool_call_id"),
    )
    with op.batch_alter_table("tool_calls", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_tool_calls_session_id"), ["session_id"], unique=False)

    op.create_table(
        "tool_lists",
        sa.Column("domain_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("server", sa.String(), autoincrement=False, nullable=False),
        sa.Column("user_id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("entry_hash", sa.String(), nullable=False),
        sa.Column("tools", sa.JSON(), nullable=False),
        sa.Column("accepted", sa.JSON(), nullable=False),
        sa.Column("updated_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("domain_id", "server", "user_id"),
    )
    op.create_table(
        "turns",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("conversation_id", sa.String(), nullable=False),
        sa.Column("client_message_id", sa.String(), nullable=True),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("content", sa.String(), nullable=False),
        sa.Column("images", sa.JSON(), nullable=False),
        sa.Column("attachments", sa.JSON(), nullable=False),
        sa.Column("user_message_id", sa.String(), nullable=False),
        sa.Column("message_id", sa.String(), nullable=False),
        sa.Column("parent_message_id", sa.String(), nullable=True),
        sa.Column("branch_of", sa.String(), nullable=True),
        sa.Column("began", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("end_reason", sa.String(), nullable=True),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("image_id", sa.String(), nullable=False),
        sa.Column("role_hashes", sa.JSON(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("lease_until", sa.String(), nullable=True),
        sa.Column("interrupt_asked", sa.Boolean(), nullable=False),
        sa.Column("resumes", sa.Integer(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("usage", sa.JSON(), nullable=True),
        sa.Column("references", sa.JSON(), nullable=False),
        sa.Column("timings", sa.JSON(), nullable=False),
        sa.Column("started_at", sa.String(), nullable=False),
        sa.Column("ended_at", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("session_id", "client_message_id"),
    )
    with op.batch_alter_table("turns", schema=None) as batch_op:
        batch_op.create_index(
            "ix_turns_unfinished",
            ["status"],
            unique=False,
            sqlite_where=sa.text("ended_at IS NULL"),
            postgresql_where=sa.text("ended_at IS NULL"),
        )

    op.create_table(
        "usage",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("turn_id", sa.String(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("conversation_id", sa.String(), nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("input", sa.Integer(), nullable=False),
        sa.Column("cache_read", sa.Integer(), nullable=False),
        sa.Column("cache_write", sa.Integer(), nullable=False),
        sa.Column("output", sa.Integer(), nullable=False),
        sa.Column("dropped_citations", sa.Integer(), nullable=False),
        sa.Column("unverified_citations", sa.Integer(), nullable=False),
        sa.Column("cache_miss", sa.String(), nullable=False),
        sa.Column("cache_missed", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("usage", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_usage_turn_id"), ["turn_id"], unique=False)

    op.create_table(
        "usage_day_sums",
        sa.Column("scope", sa.String(), autoincrement=False, nullable=False),
        sa.Column("subject", sa.String(), autoincrement=False, nullable=False),
        sa.Column("day", sa.String(), autoincrement=False, nullable=False),
        sa.Column("model", sa.String(), autoincrement=False, nullable=False),
        sa.Column("input", sa.BigInteger(), nullable=False),
        sa.Column("cache_read", sa.BigInteger(), nullable=False),
        sa.Column("cache_write", sa.BigInteger(), nullable=False),
        sa.Column("output", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "subject", "day", "model"),
    )
    op.create_table(
        "users",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("display_name", sa.String(), nullable=False),
        sa.Column("operator", sa.Boolean(), nullable=False),
        sa.Column("grants", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=True),
        sa.Column("groups", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("updated_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("number"),
        sa.UniqueConstraint("subject"),
    )
    op.create_table(
        "waits",
        sa.Column("id", sa.String(), autoincrement=False, nullable=False),
        sa.Column("turn_id", sa.String(), nullable=False),
        sa.Column("root_turn_id", sa.String(), nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("conversation_id", sa.String(), nullable=False),
        sa.Column("domain_id", sa.String(), nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("tool_call_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("answerer", sa.String(), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("held", sa.JSON(), nullable=True),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("live", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("answer", sa.JSON(), nullable=True),
        sa.Column("remembered", sa.Boolean(), nullable=False),
        sa.Column("answered_by", sa.String(), nullable=False),
        sa.Column("taken", sa.Boolean(), nullable=False),
        sa.Column("opened_at", sa.String(), nullable=False),
        sa.Column("answered_at", sa.String(), nullable=True),
        sa.Column("expires_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("waits", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_waits_conversation_id"), ["conversation_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_waits_root_turn_id"), ["root_turn_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_waits_state"), ["state"], unique=False)
        batch_op.create_index(batch_op.f("ix_waits_turn_id"), ["turn_id"], unique=False)

    origin = sa.table("origin", sa.column("id"), sa.column("store_id"), sa.column("made_at"))
    op.bulk_insert(origin, [{"id": 1, "store_id": new_id("store"), "made_at": now()}])
    if op.get_context().dialect.name == "sqlite":
        op.execute(
            "CREATE VIRTUAL TABLE message_search USING fts5"
            "(words, content='message_texts', content_rowid='id', tokenize='ascii', columnsize=0)"
        )
        op.execute(
            "CREATE TRIGGER message_search_insert AFTER INSERT ON message_texts BEGIN"
            " INSERT INTO message_search(rowid, words) VALUES (new.id, new.words); END"
        )
        op.execute(
            "CREATE TRIGGER message_search_delete AFTER DELETE ON message_texts BEGIN"
            " INSERT INTO message_search(message_search, rowid, words) VALUES ('delete', old.id, old.words); END"
        )
    else:
        op.execute(
            "CREATE INDEX message_search ON message_texts USING gin (array_to_tsvector(string_to_array(words, ' ')))"
        )
    support = sa.table("schema_support", sa.column("id"), sa.column("revision"), sa.column("oldest"))
    op.bulk_insert(support, [{"id": 1, "revision": revision, "oldest": revision}])
