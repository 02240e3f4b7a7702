"""Leases: which process of a shared store does a job that one is enough for.

Owns one row for each job. Time is the database's. Knows no job.
"""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert

from agentic_rag.store.database_time import DatabaseTime
from agentic_rag.store.records import RecordTable


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """Who has a job, and how long. ``id``: the job's name; ``owner``: the process."""

    id: str
    owner: str
    until: str


LEASES = RecordTable(LeaseRecord, "leases")
_leases = LEASES.c


def take(conn: Connection, name: str, owner: str, seconds: float) -> bool:
    """Take a lease, or keep it for so many seconds more; False: another process has it. On PostgreSQL only."""
    values = {"owner": owner, "until": DatabaseTime(seconds)}
    statement = insert(LEASES.table).values(id=name, **values)
    free = sa.or_(_leases.owner == owner, _leases.until < DatabaseTime())
    taken = statement.on_conflict_do_update(index_elements=[_leases.id], set_=values, where=free)
    return conn.execute(taken.returning(_leases.id)).first() is not None


def find_owner(conn: Connection, name: str) -> str | None:
    """Return who has a lease, None: nobody."""
    held = sa.select(_leases.owner).where(_leases.id == name, _leases.owner != "", _leases.until >= DatabaseTime())
    found: str | None = conn.execute(held).scalar()
    return found


def home_of(domain_id: str) -> str:
    """Return the name of the lease of a domain's home: the process that runs its stateful servers."""
    return f"home:{domain_id}"


def free(conn: Connection, owner: str) -> None:
    """End all leases of a process that is dead."""
    conn.execute(sa.update(LEASES.table).where(_leases.owner == owner).values(owner="", until=DatabaseTime()))


def rest(conn: Connection, name: str, owner: str, seconds: float) -> None:
    """Let nobody take a lease for so many seconds, if it is ``owner``'s still; it is nobody's afterwards."""
    mine = sa.update(LEASES.table).where(_leases.id == name, _leases.owner == owner)
    conn.execute(mine.values(owner="", until=DatabaseTime(seconds)))
