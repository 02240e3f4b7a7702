"""Several processes on one database: signals, replicas, session writers, interrupts, tickets, jobs, run-log groups."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, PrimaryKeyConstraint, String

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "signals",
        Column("id", String(), nullable=False),
        Column("transaction", BigInteger(), nullable=False),
        Column("kind", String(), nullable=False),
        Column("subject", String(), nullable=False),
        Column("detail", String(), nullable=False),
        Column("sent_at", String(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_signals_transaction", "signals", ["transaction"])
    op.create_table(
        "replicas",
        Column("id", String(), nullable=False),
        Column("run", String(), nullable=False),
        Column("version", String(), nullable=False),
        Column("address", String(), nullable=False),
        Column("leaving", Boolean(), nullable=False),
        Column("started_at", String(), nullable=False),
        Column("heartbeat_at", String(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    support = op.create_table(
        "schema_support",
        Column("id", sa.Integer(), nullable=False),
        Column("revision", String(), nullable=False),
        Column("oldest", String(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.bulk_insert(support, [{"id": 1, "revision": revision, "oldest": revision}])
    op.create_table(
        "leases",
        Column("id", String(), nullable=False),
        Column("owner", String(), nullable=False),
        Column("until", String(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "tickets",
        Column("id", String(), nullable=False),
        Column("key_id", String(), nullable=False),
        Column("seconds", sa.Integer(), nullable=True),
        Column("expires_at", String(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_tickets_key_id", "tickets", ["key_id"])
    op.add_column("sessions", Column("writer", String(), nullable=False, server_default=sa.text("''")))
    op.add_column("turns", Column("interrupt_asked", Boolean(), nullable=False, server_default=sa.false()))
