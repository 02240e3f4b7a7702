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
            "CREATE INDEX message_search ON message_texts"
            " USING gin (array_to_tsvector(string_to_array(words, ' ')))"
        )
    support = sa.table("schema_support", sa.column("id"), sa.column("revision"), sa.column("oldest"))
    op.bulk_insert(support, [{"id": 1, "revision": revision, "oldest": revision}])
% endif
