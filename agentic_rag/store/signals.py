"""Signals: what one process of a shared store tells the others, as rows.

Owns their rows and which of them a reader has not seen yet. A signal is stored in the transaction of what it tells of,
so that no kill loses one; how the others come to look is `signal_feed`'s. A SQLite file has one process alone: there
nothing is written. Knows nobody who listens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.clock import new_id
from agentic_rag.store.database_time import DatabaseTime
from agentic_rag.store.records import BigInt, Prepared, RecordTable, parameter


class SignalKind(StrEnum):
    """What has happened; after it what ``subject`` names."""

    INTERRUPT = "interrupt"
    """A turn is to end: the turn."""
    ANSWERED = "answered"
    """A wait has ended: the wait."""
    BEGAN = "began"
    """A turn was begun or gone on with: its session; ``detail`` is the turn."""
    TURNS = "turns"
    """Turns wait for somebody to run them: a session, or nothing for all."""
    DOMAIN = "domain"
    """A domain's record, settings or secrets changed: the domain."""
    TOOLS = "tools"
    """A tool list was stored or accepted: the domain."""
    DOCUMENTS = "documents"
    """A document became searchable, or ceased to be: the domain."""
    ACCESS = "access"
    """Users, keys or sign-ins changed: nothing."""
    BUDGETS = "budgets"
    """A budget was set or removed: nothing."""
    TITLE = "title"
    """A conversation got another title between turns: the conversation; ``detail`` is the turn it was made from."""
    GAP = "gap"
    """Signals may have been missed for good: nothing. A reader tells itself; it is no row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRecord:
    """One signal. ``transaction``: the number of the one that stored it, by which readers know what is new.

    ``kind``: a `SignalKind`, or one that only a newer version of the product knows.
    """

    id: str
    transaction: BigInt
    kind: str
    subject: str
    detail: str = ""
    sent_at: str


SIGNALS = RecordTable(SignalRecord, "signals", indexed=("transaction",))
_signals = SIGNALS.c
_SENT = "signals"
"""Under which a connection keeps what its transaction has sent."""
_NUMBER = "CAST(CAST({} AS text) AS bigint)"
_INSERT = Prepared(
    sa.insert(SIGNALS.table).values(
        **{name: parameter(_signals[name]) for name in ("id", "kind", "subject", "detail")},
        transaction=sa.text(_NUMBER.format("pg_current_xact_id()")),
        sent_at=DatabaseTime(),
    )
)
_FINISHED = Prepared(sa.text(f"SELECT {_NUMBER.format('pg_snapshot_xmin(pg_current_snapshot())')}"))
_NEW = Prepared(
    SIGNALS.select.where(_signals.transaction >= parameter(_signals.transaction)).order_by(
        _signals.transaction, _signals.id
    )
)

_Said = tuple[SignalKind, str, str]


def send(conn: Connection, kind: SignalKind, subject: str = "", detail: str = "") -> None:
    """Tell the other processes of the store, once this transaction is committed; the same twice in it is one."""
    if conn.dialect.name != "postgresql":
        return
    sent: dict[_Said, str] = conn.info.setdefault(_SENT, {})
    if (kind, subject, detail) not in sent:
        ident = sent[kind, subject, detail] = new_id("sig")
        _INSERT.run(conn, id=ident, kind=kind, subject=subject, detail=detail)


def take_sent(conn: Connection) -> Sequence[str]:
    """Return the ids of what the connection's transactions have sent since this was asked last."""
    sent: dict[_Said, str] = conn.info.pop(_SENT, {})
    return tuple(sent.values())


def position(conn: Connection) -> int:
    """Return the number of a transaction before which all have ended: nothing older will ever appear."""
    row = _FINISHED.first(conn)
    assert row is not None
    return int(row[0])


def read(conn: Connection, since: int) -> tuple[list[SignalRecord], int]:
    """Return the signals from a `position` on, and the one to read from next time.

    Some of them come again then: those of transactions that overlapped with the reading.
    """
    found = SIGNALS.all(conn, _NEW, transaction=since)
    return found, position(conn)


def prune(conn: Connection, older_than: float) -> int:
    """Delete the signals that are older than so many seconds, and return how many."""
    old = _signals.sent_at < DatabaseTime(-older_than)
    return conn.execute(sa.delete(SIGNALS.table).where(old)).rowcount
