"""Pages read by OCR."""

from alembic import op
from sqlalchemy import JSON, Column, Integer, PrimaryKeyConstraint, String

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "scans",
        Column("document_id", String(), nullable=False),
        Column("sha256", String(), nullable=False),
        Column("page", Integer(), nullable=False),
        Column("domain_id", String(), nullable=False),
        Column("content", JSON(), nullable=False),
        Column("created_at", String(), nullable=False),
        PrimaryKeyConstraint("document_id", "sha256", "page"),
    )
    op.create_index("ix_scans_domain_id", "scans", ["domain_id"])
