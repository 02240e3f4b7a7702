"""Signals between the processes of a shared store, as rows.

This module stores the rows and finds those that a reader has not seen. A signal is stored in the transaction of the
change that it announces, so that no crash loses it. The `signal_feed` module notifies the other processes. A SQLite
file has a single process, so nothing is written there.
"""

from collections.abc import Sequence
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.clock import new_id
from agentic_rag.store.columns import BigInt, Indexed, Key
from agentic_rag.store.database_time import DatabaseTime
from agentic_rag.store.record import Record
from agentic_rag.store.statements import Prepared, parameter


class SignalKind(StrEnum):
    """The kind of a change. The description of each kind says what ``subject`` names."""

    INTERRUPT = "interrupt"
    """A turn is to end. ``subject``: the turn."""
    ANSWERED = "answered"
    """A wait has ended. ``subject``: the wait."""
    BEGAN = "began"
    """A turn was begun or resumed. ``subject``: its session; ``detail``: the turn."""
    TURNS = "turns"
    """Turns are ready for any process to run. ``subject``: a session, or empty for all."""
    DOMAIN = "domain"
    """A domain's record, settings or secrets changed. ``subject``: the domain."""
    TOOLS = "tools"
    """A tool list was stored or accepted. ``subject``: the domain."""
    DOCUMENTS = "documents"
    """A document became searchable, or ceased to be. ``subject``: the domain."""
    ACCESS = "access"
    """Users, keys or sign-ins changed. ``subject`` is empty."""
    BUDGETS = "budgets"
    """A budget was set or removed. ``subject`` is empty."""
    TITLE = "title"
    """A conversation's title changed between turns. ``subject``: the conversation; ``detail``: the title's turn."""
    GAP = "gap"
    """Signals may have been missed for good. The reader creates this signal itself; it is never a row."""


class SignalRecord(Record, table=True):
    """One signal. ``transaction`` is the number of the storing transaction, by which readers find new signals.

    ``kind`` is a `SignalKind`, or a kind that only a newer version of the product knows.
    """

    __tablename__ = "signals"

    id: Key[str]
    transaction: Indexed[BigInt]
    kind: str
    subject: str
    detail: str = ""
    sent_at: str


SIGNALS = SignalRecord.__table__
_signals = SIGNALS.c
_SENT = "signals"
"""Key in ``conn.info`` of the signals that the connection's transaction has sent."""
# by way of text, because PostgreSQL has no cast from a transaction's number (xid8) to an integer
_NUMBER = "CAST(CAST({} AS text) AS bigint)"
_INSERT = Prepared(
    sa.insert(SIGNALS).values(
        **{name: parameter(_signals[name]) for name in ("id", "kind", "subject", "detail")},
        transaction=sa.text(_NUMBER.format("pg_current_xact_id()")),
        sent_at=DatabaseTime(),
    )
)
_FINISHED = Prepared(sa.text(f"SELECT {_NUMBER.format('pg_snapshot_xmin(pg_current_snapshot())')}"))
_NEW = Prepared(
    sa.select(SIGNALS)
    .where(_signals.transaction >= parameter(_signals.transaction))
    .order_by(_signals.transaction, _signals.id)
)

_Said = tuple[SignalKind, str, str]


def send(conn: Connection, kind: SignalKind, subject: str = "", detail: str = "") -> None:
    """Send a signal to the other processes when this transaction commits; duplicates within it are sent once."""
    if conn.dialect.name != "postgresql":
        return
    sent: dict[_Said, str] = conn.info.setdefault(_SENT, {})
    if (kind, subject, detail) not in sent:
        ident = sent[kind, subject, detail] = new_id("sig")
        _INSERT.run(conn, id=ident, kind=kind, subject=subject, detail=detail)


def take_sent(conn: Connection) -> Sequence[str]:
    """Return the ids of the signals that the connection has sent since the last call."""
    sent: dict[_Said, str] = conn.info.pop(_SENT, {})
    return tuple(sent.values())


def position(conn: Connection) -> int:
    """Return the number of a transaction before which all have ended, so that no older signal can appear."""
    row = _FINISHED.first(conn)
    assert row is not None
    return int(row[0])


def read(conn: Connection, since: int) -> tuple[list[SignalRecord], int]:
    """Return the signals from a `position` on, and the position to read from next time.

    The next read returns some signals again: those of transactions that overlapped with this one.
    """
    records = SignalRecord.all(conn, _NEW, transaction=since)
    return records, position(conn)


def prune(conn: Connection, older_than: float) -> int:
    """Delete the signals older than ``older_than`` seconds; return their number."""
    old = _signals.sent_at < DatabaseTime(-older_than)
    return conn.execute(sa.delete(SIGNALS).where(old)).rowcount
