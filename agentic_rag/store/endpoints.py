"""Endpoints: addresses that receive notifications of a domain, or of all domains of the server.

This module owns the rows and their state of delivery: failures in a row, and the time of the next attempt. The address
and the secret are sealed (`agentic_rag.reach.endpoints`). Callers check permissions.
"""

from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.columns import Indexed, Key
from agentic_rag.store.database_time import DatabaseTime
from agentic_rag.store.record import Record
from agentic_rag.store.statements import Prepared, parameter

SERVER = "@server"
"""The ``domain_id`` of an endpoint that receives the events of all domains."""
MAX_ENDPOINTS = 20
"""Maximum endpoints of a domain, and of the server."""


class EventKind(StrEnum):
    """The kind of an event that is sent to endpoints."""

    WAIT_CREATED = "wait.created"
    WAIT_ANSWERED = "wait.answered"
    TURN_FAILED = "turn.failed"
    DOCUMENT_FAILED = "document.failed"
    BUDGET_CROSSED = "budget.crossed"
    EVALUATION_FINISHED = "evaluation.finished"
    SCHEDULE_FINISHED = "schedule.finished"
    SIGN_IN_NEEDED = "server.signin_needed"
    FEEDBACK_CREATED = "feedback.created"


class Channel(StrEnum):
    """The form in which an endpoint receives notifications: Standard Webhooks, a messenger's webhook, or mail."""

    WEBHOOK = "webhook"
    SLACK = "slack"
    TEAMS = "teams"
    FEISHU = "feishu"
    DINGTALK = "dingtalk"
    WECOM = "wecom"
    MAIL = "mail"


class EndpointRecord(Record, table=True):
    """An address that receives notifications."""

    __tablename__ = "endpoints"
    part_of = "domain"

    id: Key[str]
    domain_id: Indexed[str]
    """The domain whose events are sent, or `SERVER`."""
    name: str
    channel: Channel
    shown: str
    """The part of the address that people may see: a host, or a mail address."""
    events: tuple[EventKind, ...]
    with_texts: bool = False
    """Whether notifications include texts: questions, arguments, reasons, answers."""
    recipient: str = ""
    """The user to whom the address belongs. Notifications of waits then carry a link to answer as this user."""
    enabled: bool = True
    problem: str = ""
    """Why the server disabled the endpoint, or the error of the last attempt."""
    failures: int = 0
    """Failed attempts since the last successful one."""
    retry_at: str | None = None
    """The earliest time of the next attempt, by the database's clock."""
    sent_at: str | None = None
    """The time of the last successful delivery."""
    created_by: str
    created_at: str
    updated_at: str


ENDPOINTS = EndpointRecord.__table__
_rows = ENDPOINTS.c
_OF_EVENT = Prepared(
    sa.select(ENDPOINTS)
    .where(_rows.enabled.is_(True), sa.or_(_rows.domain_id == parameter(_rows.domain_id), _rows.domain_id == SERVER))
    .order_by(_rows.id)
)


def get(conn: Connection, endpoint_id: str) -> EndpointRecord | None:
    """Return the endpoint, or None."""
    return EndpointRecord.first(conn, sa.select(ENDPOINTS).where(_rows.id == endpoint_id))


def of_domain(conn: Connection, domain_id: str) -> list[EndpointRecord]:
    """Return the endpoints of a domain, or of the server (`SERVER`), oldest first."""
    return EndpointRecord.all(conn, sa.select(ENDPOINTS).where(_rows.domain_id == domain_id).order_by(_rows.id))


def of_event(conn: Connection, kind: EventKind, domain_id: str) -> list[EndpointRecord]:
    """Return the enabled endpoints that receive this event of a domain."""
    return [
        endpoint for endpoint in EndpointRecord.all(conn, _OF_EVENT, domain_id=domain_id) if kind in endpoint.events
    ]


def count(conn: Connection, domain_id: str) -> int:
    """Return the number of endpoints of a domain, or of the server."""
    query = sa.select(sa.func.count()).select_from(ENDPOINTS).where(_rows.domain_id == domain_id)
    return int(conn.execute(query).scalar_one())


def update(conn: Connection, endpoint_id: str, **values: object) -> bool:
    """Change columns of an endpoint. Returns False if it does not exist."""
    return conn.execute(sa.update(ENDPOINTS).where(_rows.id == endpoint_id).values(**values)).rowcount == 1


def delete(conn: Connection, endpoint_id: str) -> None:
    """Delete an endpoint. Its deliveries and secrets are the caller's to delete."""
    conn.execute(sa.delete(ENDPOINTS).where(_rows.id == endpoint_id))


def note_success(conn: Connection, endpoint_id: str, at: str) -> None:
    """Record a successful attempt."""
    update(conn, endpoint_id, failures=0, retry_at=None, problem="", sent_at=at)


def note_failure(conn: Connection, endpoint_id: str, problem: str, seconds: float) -> None:
    """Record a failed attempt. The next one follows ``seconds`` later, by the database's clock."""
    failures = _rows.failures + 1
    update(conn, endpoint_id, failures=failures, retry_at=DatabaseTime(seconds), problem=problem)


def forget_user(conn: Connection, user_id: str, instead: str) -> list[EndpointRecord]:
    """Remove a user's name. Returns the endpoints whose recipient was this user, which the caller has to delete."""
    conn.execute(sa.update(ENDPOINTS).where(_rows.created_by == user_id).values(created_by=instead))
    return EndpointRecord.all(conn, sa.select(ENDPOINTS).where(_rows.recipient == user_id))
