"""The tables' versions, applied at start.

Owns the upgrade of a connected database to `HEAD`, and the making of tables of an older version. Alembic (0.5 s to
import) is loaded only when a step has to run: the usual start asks the version table and is done.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from agentic_rag.startup_errors import BadConfiguration
from agentic_rag.store import schema_support

log = logging.getLogger(__name__)

HEAD = "0010"
"""The revision of the newest file in ``versions``."""
FOLDER = Path(__file__).resolve().parent

_LOCK = 0x61726167  # any constant of ours: replicas that start together upgrade one after the other


@dataclass(frozen=True, slots=True)
class Revisions:
    """The steps of the tables: the folder that Alembic reads them from, and the newest of them."""

    folder: Path = FOLDER
    head: str = HEAD


OWN = Revisions()
"""Those of this program."""


def upgrade(conn: Connection, revisions: Revisions = OWN, to: str | None = None) -> None:
    """Bring the tables to a revision (None: the newest) inside the transaction of ``conn``.

    Newer ones stay as they are if their steps say that they serve this program, too: a step's ``oldest`` names the
    revision of the oldest program that goes on working with what it makes; without it that is its own.

    Raises:
        BadConfiguration: the tables are of a version that does not serve this program, or ``to`` is none.
    """
    if conn.dialect.name == "postgresql":
        conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    current = version(conn)
    wanted = to or revisions.head
    if current == wanted:
        return
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
            log.warning("the tables have version %s, which is newer and serves this program, too", current)
            return
        problem = f"the tables have version {current or wanted!r}, which this program does not know. Use a newer one."
        raise BadConfiguration("AGENTIC_RAG_DATABASE_URL", problem) from exc
    steps = ScriptDirectory.from_config(config).iterate_revisions(wanted, current or "base")
    needed = [str(getattr(step.module, "oldest", step.revision)) for step in steps]
    support = schema_support.get(conn)
    schema_support.put(conn, wanted, max([*needed, *([support.oldest] if support else [])]))


def list_steps(revisions: Revisions, current: str) -> list[tuple[str, str]]:
    """Return the steps from a revision to the newest in their order, each with what it says of itself.

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
    """Return the revision of the tables; None: there are none yet."""
    if not inspect(conn).has_table("alembic_version"):
        return None
    found: str | None = conn.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return found
