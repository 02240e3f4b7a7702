"""Launch requests: server command lines that a domain's admins request and operators approve or refuse.

This module owns the rows and the permitted changes of state. The requested line never changes: another line is another
request. Nothing is installed here.
"""

from collections.abc import Sequence
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy import Connection, UniqueConstraint

from agentic_rag.store.columns import Indexed, Key
from agentic_rag.store.record import Record
from agentic_rag.tools.launch.facts import Facts
from agentic_rag.tools.launch.requests import LaunchGrant


class RequestState(StrEnum):
    """The state of a request: waiting for an operator, being installed, installed, refused, or withdrawn."""

    OPEN = "open"
    APPROVED = "approved"
    INSTALLED = "installed"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"


PENDING = (RequestState.OPEN, RequestState.APPROVED)


class LaunchRequestRecord(Record, table=True):
    """A command line that a domain's admin requested. Values of variables are not stored.

    ``server`` is the entry's name. ``env`` lists the names of its variables, and ``secrets`` the variables declared
    secret. ``template`` is the proposed form of its arguments.
    """

    __tablename__ = "launch_requests"
    __table_args__ = (UniqueConstraint("domain_id", "pending"),)
    part_of = "domain"

    id: Key[str]
    domain_id: str
    server: str
    command: str
    args: tuple[str, ...]
    env: tuple[str, ...]
    template: tuple[str, ...]
    secrets: tuple[str, ...]
    facts: Facts
    fingerprint: str
    """Fingerprint of line and facts: an approval applies to exactly these."""
    pending: str | None
    """The line's hash while the request is open or being installed; a domain has one such request per line."""
    state: Indexed[RequestState]
    requested_by: str
    requested_at: str
    reason: str = ""
    """The reason for a refusal, or the error of an approval that failed."""
    grant: LaunchGrant | None = None
    catalogue_id: str = ""
    sha256: str = ""
    """Checksum of the installed content, compared at each start."""
    decided_by: str = ""
    decided_at: str | None = None


LAUNCH_REQUESTS = LaunchRequestRecord.__table__
_rows = LAUNCH_REQUESTS.c


def insert(conn: Connection, record: LaunchRequestRecord) -> None:
    """Store a request.

    Raises:
        IntegrityError: the domain already has a pending request for this line.
    """
    record.insert(conn)


def get(conn: Connection, request_id: str) -> LaunchRequestRecord | None:
    """Return the request, or None."""
    return LaunchRequestRecord.first(conn, sa.select(LAUNCH_REQUESTS).where(_rows.id == request_id))


def of_line(conn: Connection, domain_id: str, pending: str) -> LaunchRequestRecord | None:
    """Return the pending request for a line, or None."""
    query = sa.select(LAUNCH_REQUESTS).where(_rows.domain_id == domain_id, _rows.pending == pending)
    return LaunchRequestRecord.first(conn, query)


def list_newest(
    conn: Connection, limit: int | None, *, domain_id: str | None = None, states: Sequence[RequestState] = ()
) -> list[LaunchRequestRecord]:
    """Return requests, newest first, optionally of one domain or in some states. A ``limit`` of None returns all."""
    query = sa.select(LAUNCH_REQUESTS).order_by(_rows.id.desc()).limit(limit)
    if domain_id is not None:
        query = query.where(_rows.domain_id == domain_id)
    if states:
        query = query.where(_rows.state.in_(states))
    return LaunchRequestRecord.all(conn, query)


def move(
    conn: Connection,
    request_id: str,
    before: RequestState,
    after: RequestState,
    **values: object,
) -> bool:
    """Change the state and other columns of a request. Returns False, without a change, if it is not in ``before``."""
    settled: dict[str, object] = {} if after in PENDING else {"pending": None}
    statement = (
        sa.update(LAUNCH_REQUESTS)
        .where(_rows.id == request_id, _rows.state == before)
        .values(state=after, **settled, **values)
    )
    return conn.execute(statement).rowcount == 1


def withdraw_others(conn: Connection, domain_id: str, server: str, kept_id: str) -> None:
    """Withdraw the open requests of an entry except one, because its admin now requests another line."""
    conn.execute(
        sa.update(LAUNCH_REQUESTS)
        .where(
            _rows.domain_id == domain_id,
            _rows.server == server,
            _rows.id != kept_id,
            _rows.state == RequestState.OPEN,
        )
        .values(state=RequestState.WITHDRAWN, pending=None, reason="another line was asked for under this name")
    )
