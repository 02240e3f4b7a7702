"""Integrity checks for the doctor: below the tables, and between records.

They only read, and repair nothing. `find_file_damage` does not open the SQLite file through
`agentic_rag.store.database`, because migrating a damaged file would damage it more.
"""

import sqlite3
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import Connection, exists, or_, select

from agentic_rag.store.conversations import CONVERSATIONS
from agentic_rag.store.sessions import MESSAGES, SESSIONS
from agentic_rag.store.turns import FINISHED, TURNS, TurnStatus

MAX_PROBLEMS = 20
"""Maximum number of problems that SQLite reports for a file."""
LOCK_SECONDS = 5.0

_POSTGRES_INDEXES = sa.text(
    "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE NOT i.indisvalid ORDER BY 1"
)
_POSTGRES_CHECKSUMS = sa.text("SELECT checksum_failures FROM pg_stat_database WHERE datname = current_database()")
_conversations, _sessions, _turns, _messages = CONVERSATIONS.c, SESSIONS.c, TURNS.c, MESSAGES.c


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


def conversations_without_session(conn: Connection) -> list[str]:
    """Return the ids of conversations without a session."""
    there = exists().where(_sessions.id == _conversations.session_id)
    return list(conn.execute(select(_conversations.id).where(~there)).scalars())


def sessions_without_owner(conn: Connection) -> list[str]:
    """Return the ids of sessions that belong to no conversation and to no turn that delegated to them."""
    owned = exists().where(_conversations.session_id == _sessions.id)
    delegated = exists().where(_turns.id == _sessions.parent_turn_id)
    return list(conn.execute(select(_sessions.id).where(~owned, ~delegated)).scalars())


def stale_leases(conn: Connection, now: str) -> list[str]:
    """Return the ids of turns that have ended but still hold a lease, or that run although their lease has expired."""
    ended = _turns.status.in_(FINISHED) & _turns.lease_until.is_not(None)
    overdue = (_turns.status == TurnStatus.RUNNING) & (_turns.lease_until < now)
    return list(conn.execute(select(_turns.id).where(or_(ended, overdue))).scalars())


def turns_without_message(conn: Connection) -> list[str]:
    """Return the ids of running turns that have no message and therefore cannot be resumed."""
    there = exists().where(_messages.session_id == _turns.session_id, _messages.turn_id == _turns.id)
    return list(conn.execute(select(_turns.id).where(_turns.status == TurnStatus.RUNNING, ~there)).scalars())
