"""Evaluation: cases, runs, results and drafts of changes."""

from alembic import op
from sqlalchemy import JSON, Boolean, Column, Float, Integer, PrimaryKeyConstraint, String

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "evaluation_cases",
        Column("id", String(), nullable=False),
        Column("domain_id", String(), nullable=False),
        Column("questions", JSON(), nullable=False),
        Column("expect", JSON(), nullable=False),
        Column("note", String(), nullable=False),
        Column("state", String(), nullable=False),
        Column("origin", String(), nullable=False),
        Column("source", JSON(), nullable=False),
        Column("author", String(), nullable=False),
        Column("digest", String(), nullable=False),
        Column("session_id", String(), nullable=True),
        Column("version", Integer(), nullable=False),
        Column("created_at", String(), nullable=False),
        Column("updated_at", String(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_evaluation_cases_digest", "evaluation_cases", ["domain_id", "digest"], unique=True)
    op.create_index("ix_evaluation_cases_session_id", "evaluation_cases", ["session_id"])
    op.create_table(
        "evaluation_runs",
        Column("id", String(), nullable=False),
        Column("domain_id", String(), nullable=False),
        Column("tier", String(), nullable=False),
        Column("purpose", String(), nullable=False),
        Column("label", String(), nullable=False),
        Column("state", String(), nullable=False),
        Column("subject", JSON(), nullable=False),
        Column("image_id", String(), nullable=False),
        Column("case_ids", JSON(), nullable=False),
        Column("repeats", Integer(), nullable=False),
        *(
            Column(name, Integer(), nullable=False)
            for name in ("done", "passed", "failed", "gone", "unknown", "unchecked", "tokens")
        ),
        Column("max_tokens", Integer(), nullable=True),
        Column("seconds", Float(), nullable=False),
        Column("reason", String(), nullable=False),
        Column("user_id", String(), nullable=False),
        Column("draft_id", String(), nullable=False),
        Column("owner", String(), nullable=False),
        Column("beat_at", String(), nullable=False),
        Column("created_at", String(), nullable=False),
        Column("ended_at", String(), nullable=True),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_evaluation_runs_domain", "evaluation_runs", ["domain_id", "id"])
    op.create_table(
        "evaluation_results",
        Column("run_id", String(), nullable=False),
        Column("case_id", String(), nullable=False),
        Column("repeat", Integer(), nullable=False),
        Column("domain_id", String(), nullable=False),
        Column("question", String(), nullable=False),
        Column("case_version", Integer(), nullable=False),
        Column("outcome", String(), nullable=False),
        Column("reason", String(), nullable=False),
        Column("rank", Integer(), nullable=True),
        Column("checks", JSON(), nullable=False),
        Column("observed", JSON(), nullable=False),
        Column("seconds", Float(), nullable=False),
        Column("tokens", Integer(), nullable=False),
        Column("at", String(), nullable=False),
        PrimaryKeyConstraint("run_id", "case_id", "repeat"),
    )
    op.create_index("ix_evaluation_results_domain_id", "evaluation_results", ["domain_id"])
    op.create_table(
        "evaluation_drafts",
        Column("id", String(), nullable=False),
        Column("domain_id", String(), nullable=False),
        Column("kind", String(), nullable=False),
        Column("label", String(), nullable=False),
        Column("change", JSON(), nullable=False),
        Column("author", String(), nullable=False),
        Column("state", String(), nullable=False),
        Column("decision", JSON(), nullable=False),
        Column("before_run", String(), nullable=False),
        Column("after_run", String(), nullable=False),
        Column("tier", String(), nullable=False),
        Column("then_apply", Boolean(), nullable=False),
        Column("decided_by", String(), nullable=False),
        Column("created_at", String(), nullable=False),
        Column("updated_at", String(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_evaluation_drafts_domain_id", "evaluation_drafts", ["domain_id"])
