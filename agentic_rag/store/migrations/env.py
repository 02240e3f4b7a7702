"""Alembic's environment: runs the migrations on the connection passed by `agentic_rag.store.migrations.upgrade`.

No URL and no configuration file is read; there is no offline mode.
"""

from alembic import context
from sqlalchemy import Connection

from agentic_rag.store.records import METADATA

connection = context.config.attributes["connection"]
assert isinstance(connection, Connection)
context.configure(
    connection=connection,
    target_metadata=METADATA,
    render_as_batch=True,
    transactional_ddl=False,  # the caller's transaction covers everything
)
context.run_migrations()
