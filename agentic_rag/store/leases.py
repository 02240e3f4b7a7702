"""Leases: which process of a shared store runs a job that only a single process may run.

There is one row per job. All times are the database's.
"""

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert

from agentic_rag.store.columns import Key
from agentic_rag.store.database_time import DatabaseTime
from agentic_rag.store.record import Record


class LeaseRecord(Record, table=True):
    """The holder of a job and the end of the lease. ``id`` is the job's name, ``owner`` the process."""

    __tablename__ = "leases"

    id: Key[str]
    owner: str
    until: str


LEASES = LeaseRecord.__table__
_leases = LEASES.c


def take(conn: Connection, name: str, owner: str, seconds: float) -> bool:
    """Take or renew a lease for ``seconds``; False if another process holds it. PostgreSQL only."""
    values = {"owner": owner, "until": DatabaseTime(seconds)}
    statement = insert(LEASES).values(id=name, **values)
    free = sa.or_(_leases.owner == owner, _leases.until < DatabaseTime())
    upsert = statement.on_conflict_do_update(index_elements=[_leases.id], set_=values, where=free)
    return conn.execute(upsert.returning(_leases.id)).first() is not None


def find_owner(conn: Connection, name: str) -> str | None:
    """Return the current owner of a lease, or None."""
    query = sa.select(_leases.owner).where(_leases.id == name, _leases.owner != "", _leases.until >= DatabaseTime())
    current_owner: str | None = conn.execute(query).scalar()
    return current_owner


def home_of(domain_id: str) -> str:
    """Return the lease name of a domain's home: the process that runs its stateful servers."""
    return f"home:{domain_id}"


def free(conn: Connection, owner: str) -> None:
    """End all leases of a dead process."""
    conn.execute(sa.update(LEASES).where(_leases.owner == owner).values(owner="", until=DatabaseTime()))


def rest(conn: Connection, name: str, owner: str, seconds: float) -> None:
    """Release ``owner``'s lease and block it for ``seconds``, so that no process can take it meanwhile."""
    release = sa.update(LEASES).where(_leases.id == name, _leases.owner == owner)
    conn.execute(release.values(owner="", until=DatabaseTime(seconds)))
