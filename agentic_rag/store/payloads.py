"""Payloads as records: which results are kept whole, and whose they are.

Owns the binding of a ``ref`` to its session. Knows no file; `payload_files` holds the bytes.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, delete, select

from agentic_rag.store import sessions
from agentic_rag.store.records import RecordTable


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadRecord:
    """A result too large for the transcript; its bytes are a file of the data folder named ``ref``."""

    ref: str
    session_id: str
    media_type: str
    size: int
    """Bytes."""
    created_at: str


PAYLOADS = RecordTable(PayloadRecord, "payloads", key=("ref",), indexed=("session_id",), part_of="session")
_payloads = PAYLOADS.c


def put(conn: Connection, payload: PayloadRecord) -> None:
    """Store the record of a file that is already written.

    Raises:
        IntegrityError: the ref is taken.
    """
    PAYLOADS.insert(conn, payload)


def get(conn: Connection, session_id: str, ref: str) -> PayloadRecord | None:
    """Return the session's payload; None when it has none of that ref, whoever else may."""
    return PAYLOADS.first(conn, PAYLOADS.select.where(_payloads.ref == ref, _payloads.session_id == session_id))


def refs_of(conn: Connection, session_id: str) -> list[str]:
    """Return the refs of a session and of its delegates' sessions, to be read before those are deleted."""
    own = list(conn.execute(select(_payloads.ref).where(_payloads.session_id == session_id)).scalars())
    return own + [ref for child in sessions.children(conn, session_id) for ref in refs_of(conn, child)]


def all_refs(conn: Connection) -> set[str]:
    """Return every ref."""
    return set(conn.execute(select(_payloads.ref)).scalars())


def forget(conn: Connection, refs: list[str]) -> None:
    """Delete records whose files are gone."""
    conn.execute(delete(PAYLOADS.table).where(_payloads.ref.in_(refs)))
