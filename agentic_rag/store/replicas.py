"""Replicas: the processes that share a store, as records.

Owns one row for each: its name, the owner name under which it holds leases, and when it was last heard of by the
database's clock. Knows no turn.
"""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.database_time import DatabaseTime
from agentic_rag.store.records import RecordTable

ALIVE_SECONDS = 15.0
"""How long after its last word a replica is taken to be alive, as long as a turn's lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRecord:
    """One process. ``run``: the owner in its turns' leases; ``address``: where people find it."""

    id: str
    run: str
    version: str
    address: str
    leaving: bool = False
    """Whether it takes no turns any more, because it is about to end."""
    started_at: str
    heartbeat_at: str


REPLICAS = RecordTable(ReplicaRecord, "replicas")
_replicas = REPLICAS.c
_ALIVE = _replicas.heartbeat_at >= DatabaseTime(-ALIVE_SECONDS)


def get(conn: Connection, replica_id: str) -> ReplicaRecord | None:
    """Return the row of that name, whether its process lives or not."""
    return REPLICAS.first(conn, REPLICAS.select.where(_replicas.id == replica_id))


def list_alive(conn: Connection) -> list[ReplicaRecord]:
    """Return those that live, by name."""
    return REPLICAS.all(conn, REPLICAS.select.where(_ALIVE).order_by(_replicas.id))


def is_alive(conn: Connection, replica_id: str) -> bool:
    """Whether a process of that name was heard of lately."""
    return conn.execute(sa.select(_replicas.id).where(_replicas.id == replica_id, _ALIVE)).first() is not None


def is_running(conn: Connection, run: str, silent: float) -> bool:
    """Whether a process that is not about to end was heard of within so many seconds. ``run``: its name in leases."""
    heard = (_replicas.run == run, _replicas.heartbeat_at >= DatabaseTime(-silent), sa.not_(_replicas.leaving))
    return conn.execute(sa.select(_replicas.id).where(*heard)).first() is not None


def join(
    conn: Connection, replica_id: str, run: str, version: str, address: str, dead: ReplicaRecord | None = None
) -> bool:
    """Take a name; False, and nothing changes, when a living process has it.

    ``dead``: what was read of one that has said nothing since, and is taken to be dead whatever its time.
    """
    if conn.dialect.name == "postgresql":  # of two that come at once the second one sees the first
        conn.execute(sa.text("LOCK TABLE replicas IN SHARE ROW EXCLUSIVE MODE"))
    if is_alive(conn, replica_id) and (dead is None or get(conn, replica_id) != dead):
        return False
    conn.execute(sa.delete(REPLICAS.table).where(_replicas.id == replica_id))
    now = DatabaseTime()
    values = {"id": replica_id, "run": run, "version": version, "address": address, "leaving": False}
    conn.execute(sa.insert(REPLICAS.table).values(**values, started_at=now, heartbeat_at=now))
    return True


def beat(conn: Connection, run: str, address: str, *, leaving: bool = False) -> bool:
    """Say that a process lives; False when its name is another's by now."""
    statement = sa.update(REPLICAS.table).where(_replicas.run == run)
    values = {"heartbeat_at": DatabaseTime(), "address": address, "leaving": leaving}
    return conn.execute(statement.values(**values)).rowcount == 1


def leave(conn: Connection, run: str) -> None:
    """Give the name back."""
    conn.execute(sa.delete(REPLICAS.table).where(_replicas.run == run))


def prune(conn: Connection, older_than: float) -> int:
    """Delete the rows of processes that were last heard of more than so many seconds ago."""
    old = _replicas.heartbeat_at < DatabaseTime(-older_than)
    return conn.execute(sa.delete(REPLICAS.table).where(old)).rowcount
