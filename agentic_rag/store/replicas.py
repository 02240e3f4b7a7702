"""Replica records: the processes that share a store.

There is one row per process: its name, the owner name of its leases, and the time of its last heartbeat by the
database's clock.
"""

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.columns import Key
from agentic_rag.store.database_time import DatabaseTime
from agentic_rag.store.record import Record

ALIVE_SECONDS = 15.0
"""Seconds after its last heartbeat for which a replica counts as alive; equal to a turn's lease."""


class ReplicaRecord(Record, table=True):
    """One process. ``run`` is the owner in its turns' leases, ``address`` the address at which users reach it."""

    __tablename__ = "replicas"

    id: Key[str]
    run: str
    version: str
    address: str
    leaving: bool = False
    """Whether the process accepts no more turns because it is about to end."""
    started_at: str
    heartbeat_at: str


REPLICAS = ReplicaRecord.__table__
_replicas = REPLICAS.c
_ALIVE = _replicas.heartbeat_at >= DatabaseTime(-ALIVE_SECONDS)


def get(conn: Connection, replica_id: str) -> ReplicaRecord | None:
    """Return the row of that name, even if its process is dead."""
    return ReplicaRecord.first(conn, sa.select(REPLICAS).where(_replicas.id == replica_id))


def list_alive(conn: Connection) -> list[ReplicaRecord]:
    """Return the living replicas by name."""
    return ReplicaRecord.all(conn, sa.select(REPLICAS).where(_ALIVE).order_by(_replicas.id))


def is_alive(conn: Connection, replica_id: str) -> bool:
    """Return whether a process of that name is alive."""
    return conn.execute(sa.select(_replicas.id).where(_replicas.id == replica_id, _ALIVE)).first() is not None


def is_running(conn: Connection, run: str, silent: float) -> bool:
    """Return whether process ``run`` had a heartbeat within ``silent`` seconds and is not about to end."""
    conditions = (_replicas.run == run, _replicas.heartbeat_at >= DatabaseTime(-silent), sa.not_(_replicas.leaving))
    return conn.execute(sa.select(_replicas.id).where(*conditions)).first() is not None


def join(
    conn: Connection, replica_id: str, run: str, version: str, address: str, dead: ReplicaRecord | None = None
) -> bool:
    """Take a name; False, without a change, if a living process has it.

    ``dead`` is an earlier reading of a replica that has had no heartbeat since. If the row is unchanged, that replica
    counts as dead, even with a recent heartbeat.
    """
    if conn.dialect.name == "postgresql":  # the lock lets the second of two concurrent replicas see the first
        conn.execute(sa.text("LOCK TABLE replicas IN SHARE ROW EXCLUSIVE MODE"))
    if is_alive(conn, replica_id) and (dead is None or get(conn, replica_id) != dead):
        return False
    conn.execute(sa.delete(REPLICAS).where(_replicas.id == replica_id))
    now = DatabaseTime()
    values = {"id": replica_id, "run": run, "version": version, "address": address, "leaving": False}
    conn.execute(sa.insert(REPLICAS).values(**values, started_at=now, heartbeat_at=now))
    return True


def beat(conn: Connection, run: str, address: str, *, leaving: bool = False) -> bool:
    """Record a process's heartbeat; False if its name now belongs to another process."""
    statement = sa.update(REPLICAS).where(_replicas.run == run)
    values = {"heartbeat_at": DatabaseTime(), "address": address, "leaving": leaving}
    return conn.execute(statement.values(**values)).rowcount == 1


def leave(conn: Connection, run: str) -> None:
    """Release this replica's name so that its next start can reuse it."""
    conn.execute(sa.delete(REPLICAS).where(_replicas.run == run))


def prune(conn: Connection, older_than: float) -> int:
    """Delete the rows of processes without a heartbeat for more than ``older_than`` seconds; return their number."""
    old = _replicas.heartbeat_at < DatabaseTime(-older_than)
    return conn.execute(sa.delete(REPLICAS).where(old)).rowcount
