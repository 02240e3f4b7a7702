"""${message}."""

import sqlalchemy as sa
from alembic import op
% if down_revision is None:

from agentic_rag.store.clock import new_id, now
% endif

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    ${upgrades}
% if down_revision is None:
    origin = sa.table("origin", sa.column("id"), sa.column("store_id"), sa.column("made_at"))
    op.bulk_insert(origin, [{"id": 1, "store_id": new_id("store"), "made_at": now()}])
    support = sa.table("schema_support", sa.column("id"), sa.column("revision"), sa.column("oldest"))
    op.bulk_insert(support, [{"id": 1, "revision": revision, "oldest": revision}])
% endif
