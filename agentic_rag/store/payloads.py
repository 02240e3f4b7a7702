"""Payloads as records: which results are kept whole, and whose they are.

Owns the binding of a ``ref`` to its session. Knows no file; `payload_files` holds the bytes.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select

from agentic_rag.store import sessions
from agentic_rag.store.rows import columns, names, values
from agentic_rag.store.tables import PayloadRow, table


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPayload:
    """One row of ``payloads``; fields as in `tables.PayloadRow`."""

    ref: str
    session_id: str
    media_type: str
    size: int
    created_at: str


_payloads = table(PayloadRow)
_NAMES = names(StoredPayload)
_PAYLOADS = select(*columns(_payloads, StoredPayload))


def put(conn: Connection, payload: StoredPayload) -> None:
    """Store the record of a file that is already written.

    Raises:
        IntegrityError: the ref is taken.
    """
    conn.execute(insert(_payloads), values(payload, _NAMES))


def get(conn: Connection, session_id: str, ref: str) -> StoredPayload | None:
    """Return the session's payload; None when it has none of that ref, whoever else may."""
    query = _PAYLOADS.where(_payloads.c.ref == ref, _payloads.c.session_id == session_id)
    row = conn.execute(query).mappings().first()
    return None if row is None else StoredPayload(**row)


def refs_of(conn: Connection, session_id: str) -> list[str]:
    """Return the refs of a session and of its delegates' sessions, to be read before those are deleted."""
    own = list(conn.execute(select(_payloads.c.ref).where(_payloads.c.session_id == session_id)).scalars())
    return own + [ref for child in sessions.children(conn, session_id) for ref in refs_of(conn, child)]


def all_refs(conn: Connection) -> set[str]:
    """Return every ref."""
    return set(conn.execute(select(_payloads.c.ref)).scalars())


def forget(conn: Connection, refs: list[str]) -> None:
    """Delete records whose files are gone."""
    conn.execute(delete(_payloads).where(_payloads.c.ref.in_(refs)))
