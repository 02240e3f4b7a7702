"""Budgets, reservations of running calls, and the sums of usage by day that budgets are checked against."""

from alembic import op
from sqlalchemy import BigInteger, Column, PrimaryKeyConstraint, String, UniqueConstraint, text

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_TOKENS = ("input", "cache_read", "cache_write", "output")


def upgrade() -> None:
    op.create_table(
        "budgets",
        Column("id", String(), nullable=False),
        Column("scope", String(), nullable=False),
        Column("subject", String(), nullable=False),
        Column("unit", String(), nullable=False),
        Column("period", String(), nullable=False),
        Column("soft", String(), nullable=True),
        Column("hard", String(), nullable=True),
        Column("created_at", String(), nullable=False),
        Column("updated_at", String(), nullable=False),
        PrimaryKeyConstraint("id"),
        UniqueConstraint("scope", "subject", "unit", "period"),
    )
    op.create_table(
        "budget_reservations",
        Column("id", String(), nullable=False),
        Column("domain_id", String(), nullable=False),
        Column("user_id", String(), nullable=False),
        Column("key_id", String(), nullable=False),
        Column("turn_id", String(), nullable=False),
        Column("model", String(), nullable=False),
        Column("sent", BigInteger(), nullable=False),
        Column("received", BigInteger(), nullable=False),
        Column("until", String(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    for name in ("domain_id", "user_id", "key_id"):
        op.create_index(f"ix_budget_reservations_{name}", "budget_reservations", [name])
    op.create_table(
        "usage_day_sums",
        Column("scope", String(), nullable=False),
        Column("subject", String(), nullable=False),
        Column("day", String(), nullable=False),
        Column("model", String(), nullable=False),
        *(Column(name, BigInteger(), nullable=False) for name in _TOKENS),
        PrimaryKeyConstraint("scope", "subject", "day", "model"),
    )
    sums = ", ".join(f"sum({name})" for name in _TOKENS)
    for scope in ("domain", "user", "key"):  # earlier usage counts
        op.execute(
            text(
                f"INSERT INTO usage_day_sums (scope, subject, day, model, {', '.join(_TOKENS)}) "
                f"SELECT '{scope}', {scope}_id, substr(created_at, 1, 10), model, {sums} FROM usage "
                f"WHERE {scope}_id <> '' GROUP BY {scope}_id, substr(created_at, 1, 10), model"
            )
        )
