"""Migrations of the tables, applied at start.

This module upgrades a connected database to `HEAD`, and can create tables of an older version. Alembic takes 0.5 s to
import and is loaded only if a migration has to run: usually the start only reads the version table.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.store import schema_support

log = logging.getLogger(__name__)

FIRST = "1000"
"""The initial revision. Smaller numbers are of the development before the first release: no program reads them now."""
HEAD = FIRST
"""The revision of the newest file in ``versions``."""
FOLDER = Path(__file__).resolve().parent

_LOCK = 0x61726167  # an arbitrary constant: the lock makes replicas that start together upgrade one after the other


@dataclass(frozen=True, slots=True)
class Revisions:
    """A set of migrations: the folder that Alembic reads them from, and the newest revision."""

    folder: Path = FOLDER
    head: str = HEAD


OWN = Revisions()
"""This program's migrations."""


def upgrade(conn: Connection, revisions: Revisions = OWN, to: str | None = None) -> None:
    """Migrate the tables to a revision (None: the newest) inside the transaction of ``conn``.

    Newer tables stay unchanged if their migrations support this program. A migration's ``oldest`` names the revision of
    the oldest program that can use its tables; the default is its own revision.

    Raises:
        BadConfiguration: the tables have a version that does not support this program, or ``to`` does not exist.
    """
    setting = "AGENTIC_RAG_DATA"
    if conn.dialect.name == "postgresql":
        setting = "AGENTIC_RAG_DATABASE_URL"
        conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    current = version(conn)
    wanted = to or revisions.head
    if current == wanted:
        return
    if current is not None and is_unreleased(current):
        raise BadConfiguration(setting, explain_unknown(current))
    # Alembic is imported only for a database that has to be migrated
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError

    config = Config(attributes={"connection": conn})
    config.set_main_option("script_location", str(revisions.folder).replace("%", "%%"))
    try:
        command.upgrade(config, wanted)
    except CommandError as exc:
        support = schema_support.get(conn) if to is None else None
        if support is not None and support.revision == current and support.oldest <= wanted:
            log.warning("the tables have version %s, which is newer and also supports this program", current)
            return
        raise BadConfiguration(setting, explain_unknown(current or wanted)) from exc
    steps = ScriptDirectory.from_config(config).iterate_revisions(wanted, current or "base")
    needed = [str(getattr(step.module, "oldest", step.revision)) for step in steps]
    support = schema_support.get(conn)
    schema_support.put(conn, wanted, max([*needed, *([support.oldest] if support else [])]))


def is_compared(name: str | None, kind: str, _parents: object) -> bool:
    """Return whether autogenerate compares a table or an index with the records: not those of the full-text search."""
    return not (kind in ("table", "index") and (name or "").startswith("message_search"))


def is_unreleased(revision: str) -> bool:
    """Return whether tables of a revision were made by the development before the first release."""
    return revision < FIRST


def explain_unknown(revision: str) -> str:
    """Return why this program cannot use tables of a revision, and what to do."""
    tables = f"the tables have version {revision[:20]!r}"
    if is_unreleased(revision):
        return (
            f"{tables}, of a development version before 0.1.0, which no release reads. Start with a new data folder"
            " (and a new PostgreSQL database, if you use one), and upload the documents again."
        )
    return f"{tables}, which this program does not know. Use a newer one."


def list_steps(revisions: Revisions, current: str) -> list[tuple[str, str]]:
    """Return the migrations from a revision to the newest in order, each with its description.

    Raises:
        KeyError: this program does not know the revision.
    """
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from alembic.script.revision import RevisionError
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(revisions.folder).replace("%", "%%"))
    try:
        steps = list(ScriptDirectory.from_config(config).iterate_revisions(revisions.head, current))
    except (CommandError, RevisionError) as exc:
        raise KeyError(current) from exc
    return [(step.revision, step.doc) for step in reversed(steps)]


def version(conn: Connection) -> str | None:
    """Return the revision of the tables, or None if there are no tables yet."""
    if not inspect(conn).has_table("alembic_version"):
        return None
    revision: str | None = conn.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return revision
