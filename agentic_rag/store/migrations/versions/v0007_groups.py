"""Groups of the run log as separate records."""

from alembic import op
from sqlalchemy import BigInteger, Column, LargeBinary, PrimaryKeyConstraint

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "run_groups",
        Column("id", BigInteger(), nullable=False),
        Column("payload", LargeBinary(), nullable=False),
        PrimaryKeyConstraint("id"),
        sqlite_with_rowid=False,
    )
