"""History of settings, servers, prompt components and roles; imports in progress."""

from alembic import op
from sqlalchemy import JSON, Boolean, Column, Integer, PrimaryKeyConstraint, String

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "history",
        Column("domain_id", String(), nullable=False),
        Column("n", Integer(), autoincrement=False, nullable=False),
        Column("kind", String(), nullable=False),
        Column("subject", String(), nullable=False),
        Column("author", String(), nullable=False),
        Column("at", String(), nullable=False),
        Column("content", String(), nullable=True),
        Column("size", Integer(), nullable=False),
        Column("sha256", String(), nullable=False),
        Column("redacted", Boolean(), nullable=False),
        PrimaryKeyConstraint("domain_id", "n"),
    )
    op.create_index("ix_history_author", "history", ["author"])
    op.create_index("ix_history_subject", "history", ["domain_id", "kind", "subject"])
    op.create_table(
        "imports",
        Column("id", String(), nullable=False),
        Column("domain_id", String(), nullable=False),
        Column("user_id", String(), nullable=False),
        Column("removed", JSON(), nullable=False),
        Column("begun_at", String(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
