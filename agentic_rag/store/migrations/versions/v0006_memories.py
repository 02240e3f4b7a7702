"""Memories of roles, for servers that share a store."""

from alembic import op
from sqlalchemy import JSON, BigInteger, Boolean, Column, Float, PrimaryKeyConstraint, String

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "memories",
        Column("id", String(), nullable=False),
        Column("domain_id", String(), nullable=False),
        Column("user_id", String(), nullable=False),
        Column("role", String(), nullable=False),
        Column("counts", JSON(none_as_null=True), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_memories_place", "memories", ["domain_id", "user_id", "role"], unique=True)
    op.create_table(
        "engrams",
        Column("memory_id", String(), nullable=False),
        Column("id", String(), nullable=False),
        Column("number", BigInteger(), nullable=False),
        Column("content", String(), nullable=False),
        Column("cues", String(), nullable=False),
        Column("type", String(), nullable=False),
        Column("strength", Float(), nullable=False),
        Column("created_ms", BigInteger(), nullable=False),
        Column("author", String(), nullable=False),
        Column("turn_id", String(), nullable=False),
        Column("replaces", String(), nullable=False),
        Column("replaced_by", String(), nullable=False),
        Column("proposed", Boolean(), nullable=False),
        PrimaryKeyConstraint("memory_id", "id"),
    )
    op.create_index("ix_engrams_number", "engrams", ["memory_id", "number"], unique=True)
    op.create_table(
        "engram_cues",
        Column("memory_id", String(), nullable=False),
        Column("word", String(), nullable=False),
        Column("engram_id", String(), nullable=False),
        PrimaryKeyConstraint("memory_id", "word", "engram_id"),
    )
    op.create_index("ix_engram_cues_engram", "engram_cues", ["memory_id", "engram_id"])
