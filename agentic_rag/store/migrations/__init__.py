"""The tables' versions, applied at start.

Owns the upgrade of a connected database to `HEAD`. Alembic (0.5 s to import) is loaded only when a step
has to run: the usual start asks the version table and is done.
"""

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from agentic_rag.errors import BadConfiguration

HEAD = "0001"
"""The revision of the newest file in ``versions``."""
FOLDER = Path(__file__).resolve().parent

_LOCK = 0x61726167  # any constant of ours: replicas that start together upgrade one after the other


def upgrade(conn: Connection) -> None:
    """Bring the tables to `HEAD` inside the transaction of ``conn``.

    Raises:
        BadConfiguration: the tables are of a version this program does not know.
    """
    if conn.dialect.name == "postgresql":
        conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    current = version(conn)
    if current == HEAD:
        return
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config(attributes={"connection": conn})
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    try:
        command.upgrade(config, HEAD)
    except CommandError as exc:
        problem = f"the tables have version {current!r}, which this program does not know. Use a newer one."
        raise BadConfiguration("AGENTIC_RAG_DATABASE_URL", problem) from exc


def version(conn: Connection) -> str | None:
    """Return the revision of the tables; None: there are none yet."""
    if not inspect(conn).has_table("alembic_version"):
        return None
    found: str | None = conn.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return found
