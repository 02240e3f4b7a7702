"""Alembic's environment: runs the steps on the connection that `agentic_rag.store.migrations.upgrade` gives.

Knows no URL and no configuration file; there is no offline mode.
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
    transactional_ddl=False,  # the caller's transaction holds all of it
)
context.run_migrations()
