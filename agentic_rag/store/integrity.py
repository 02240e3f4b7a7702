"""Integrity checks below the tables: SQLite's check of its file, and the damage that PostgreSQL records.

Nothing is written. The SQLite file is not opened through `agentic_rag.store.database`, because migrating a damaged file
would damage it more.
"""

import sqlite3
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import Connection

MAX_PROBLEMS = 20
"""Maximum number of problems that SQLite reports for a file."""
LOCK_SECONDS = 5.0

_POSTGRES_INDEXES = sa.text(
    "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE NOT i.indisvalid ORDER BY 1"
)
_POSTGRES_CHECKSUMS = sa.text("SELECT checksum_failures FROM pg_stat_database WHERE datname = current_database()")


def find_file_damage(path: Path) -> list[str]:
    """Return the problems inside a SQLite file, at most `MAX_PROBLEMS`; empty if the file is sound. Blocks."""
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=LOCK_SECONDS)
    except sqlite3.Error as exc:
        return [str(exc)]
    try:
        problems = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({MAX_PROBLEMS})")]
    except sqlite3.Error as exc:
        return [str(exc)]
    finally:
        connection.close()
    return [] if problems == ["ok"] else problems


def find_server_damage(conn: Connection) -> list[str]:
    """Return the damage that a PostgreSQL server has recorded; only the catalogue is read."""
    if conn.dialect.name != "postgresql":
        return []
    damage = [f"the index {name} is not valid" for name in conn.execute(_POSTGRES_INDEXES).scalars()]
    if failures := conn.execute(_POSTGRES_CHECKSUMS).scalar():
        damage.append(f"{failures} of its pages did not have their checksum")
    return damage
