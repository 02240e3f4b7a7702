"""What users' servers listed as their tools, and what the admin accepted of it.

Owns putting, getting and removing. Knows no fingerprint and no server.
"""

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.rows import values
from agentic_rag.store.tables import ToolListRow, table

_lists = table(ToolListRow)
_NAMES = tuple(_lists.c.keys())
_KEY = ("domain_id", "server", "user_id")


def put(conn: Connection, row: ToolListRow) -> None:
    """Store a list in place of the one before."""
    key = [_lists.c[name] == getattr(row, name) for name in _KEY]
    changed = conn.execute(sa.update(_lists).where(*key), values(row, _NAMES))
    if not changed.rowcount:
        conn.execute(sa.insert(_lists), values(row, _NAMES))


def get(conn: Connection, domain_id: str, server: str, user_id: str = "") -> ToolListRow | None:
    """Return the list, None when there is none."""
    query = sa.select(_lists).where(
        _lists.c.domain_id == domain_id, _lists.c.server == server, _lists.c.user_id == user_id
    )
    row = conn.execute(query).mappings().first()
    return None if row is None else ToolListRow(**row)


def of_domain(conn: Connection, domain_id: str) -> list[ToolListRow]:
    """Return all lists of a domain, by server."""
    query = sa.select(_lists).where(_lists.c.domain_id == domain_id).order_by(_lists.c.server, _lists.c.user_id)
    return [ToolListRow(**row) for row in conn.execute(query).mappings()]


def remove_domain(conn: Connection, domain_id: str) -> None:
    """Remove all lists of a domain."""
    conn.execute(sa.delete(_lists).where(_lists.c.domain_id == domain_id))
