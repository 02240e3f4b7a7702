"""Launch requests: lines that a domain's admins asked for and operators allow or refuse.

Owns the rows and which change of a state is possible. What was asked for never changes: another line is another
request. Knows no catalogue and installs nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy import Connection, UniqueConstraint

from agentic_rag.store.records import RecordTable
from agentic_rag.tools.launch.facts import Facts
from agentic_rag.tools.launch.requests import LaunchGrant


class RequestState(StrEnum):
    """Where a request is: it waits for an operator, is being installed, may run, was refused, was taken back."""

    OPEN = "open"
    APPROVED = "approved"
    INSTALLED = "installed"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"


PENDING = (RequestState.OPEN, RequestState.APPROVED)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequestRecord:
    """A line that a domain's admin asked for. It holds no value of a variable.

    ``server``: the entry's name. ``env``: names of its variables. ``template``: what is proposed for its arguments.
    ``secrets``: which of its variables are secret, as far as somebody said so.
    """

    id: str
    domain_id: str
    server: str
    command: str
    args: tuple[str, ...]
    env: tuple[str, ...]
    template: tuple[str, ...]
    secrets: tuple[str, ...]
    facts: Facts
    fingerprint: str
    """Of line and facts: an approval is of exactly these."""
    pending: str | None
    """The line's hash as long as it is open or being installed: a domain asks for each once."""
    state: RequestState
    requested_by: str
    requested_at: str
    reason: str = ""
    """Why it was refused, or what came of an approval that could not be carried out."""
    grant: LaunchGrant | None = field(default=None)
    catalogue_id: str = ""
    sha256: str = ""
    """Of what was installed, as it is compared at each start."""
    decided_by: str = ""
    decided_at: str | None = None


LAUNCH_REQUESTS = RecordTable(
    LaunchRequestRecord,
    "launch_requests",
    UniqueConstraint("domain_id", "pending"),
    indexed=("state",),
    part_of="domain",
)
_rows = LAUNCH_REQUESTS.c


def insert(conn: Connection, record: LaunchRequestRecord) -> None:
    """Store a request.

    Raises:
        IntegrityError: the domain asks for this line already.
    """
    LAUNCH_REQUESTS.insert(conn, record)


def get(conn: Connection, request_id: str) -> LaunchRequestRecord | None:
    """Return one, None when there is none."""
    return LAUNCH_REQUESTS.first(conn, LAUNCH_REQUESTS.select.where(_rows.id == request_id))


def of_line(conn: Connection, domain_id: str, pending: str) -> LaunchRequestRecord | None:
    """Return the pending request of a line, None when there is none."""
    query = LAUNCH_REQUESTS.select.where(_rows.domain_id == domain_id, _rows.pending == pending)
    return LAUNCH_REQUESTS.first(conn, query)


def list_newest(
    conn: Connection, limit: int, *, domain_id: str | None = None, states: Sequence[RequestState] = ()
) -> list[LaunchRequestRecord]:
    """Return requests, newest first: of one domain, in one of some states, or all."""
    query = LAUNCH_REQUESTS.select.order_by(_rows.id.desc()).limit(limit)
    if domain_id is not None:
        query = query.where(_rows.domain_id == domain_id)
    if states:
        query = query.where(_rows.state.in_(states))
    return LAUNCH_REQUESTS.all(conn, query)


def move(
    conn: Connection,
    request_id: str,
    before: RequestState,
    after: RequestState,
    **values: object,
) -> bool:
    """Change the state of a request, with other columns; False, and no change, when it is not ``before``."""
    settled: dict[str, object] = {} if after in PENDING else {"pending": None}
    statement = (
        sa.update(LAUNCH_REQUESTS.table)
        .where(_rows.id == request_id, _rows.state == before)
        .values(state=after, **settled, **values)
    )
    return conn.execute(statement).rowcount == 1


def withdraw_others(conn: Connection, domain_id: str, server: str, kept: str) -> None:
    """Take back the open requests of an entry but one: its admin asks for another line now."""
    conn.execute(
        sa.update(LAUNCH_REQUESTS.table)
        .where(
            _rows.domain_id == domain_id,
            _rows.server == server,
            _rows.id != kept,
            _rows.state == RequestState.OPEN,
        )
        .values(state=RequestState.WITHDRAWN, pending=None, reason="another line was asked for under this name")
    )
