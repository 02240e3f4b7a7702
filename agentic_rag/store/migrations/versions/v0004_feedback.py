"""Feedback on answers."""

from alembic import op
from sqlalchemy import Column, PrimaryKeyConstraint, String

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "feedback",
        Column("id", String(), nullable=False),
        Column("session_id", String(), nullable=False),
        Column("conversation_id", String(), nullable=False),
        Column("domain_id", String(), nullable=False),
        Column("user_id", String(), nullable=False),
        Column("rating", String(), nullable=False),
        Column("reason", String(), nullable=False),
        Column("created_at", String(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    for column in ("session_id", "domain_id"):
        op.create_index(f"ix_feedback_{column}", "feedback", [column])
