"""Alembic's environment: runs the migrations on the connection passed by `agentic_rag.store.migrations.upgrade`.

No URL and no configuration file is read; there is no offline mode.
"""

from typing import Any, Literal

from alembic import context
from sqlalchemy import Connection, TypeDecorator

from agentic_rag.store.migrations import is_compared
from agentic_rag.store.record import METADATA


def render_item(kind: str, item: Any, _context: object) -> str | Literal[False]:
    """Write the column types of records as those of SQLAlchemy, so that a migration does not depend on our code."""
    if kind != "type":
        return False
    stored = item.impl_instance if isinstance(item, TypeDecorator) else item
    text = f"sa.{type(stored).__name__}()"
    variants = getattr(stored, "_variant_mapping", {})
    return text + "".join(
        f'.with_variant(sa.{type(variant).__name__}(), "{name}")' for name, variant in variants.items()
    )


connection = context.config.attributes["connection"]
assert isinstance(connection, Connection)
context.configure(
    connection=connection,
    target_metadata=METADATA,
    include_name=is_compared,
    render_as_batch=True,
    render_item=render_item,
    compare_type=False,  # SQLite's types are wider than those of the records
    transactional_ddl=False,  # the caller's transaction covers everything
)
context.run_migrations()
