"""Deliveries: one row for each notification that an endpoint has to receive.

A delivery is stored in the transaction of the event that it reports, so that neither a crash nor a rollback separates
the two. A sender delivers the rows of an endpoint in order, at least once. The order is that of the transactions that
stored the rows, and within one transaction the order of creation. Callers check permissions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection, Index, UniqueConstraint, text
from sqlalchemy.dialects import postgresql, sqlite

from agentic_rag.base.ids import ConversationId
from agentic_rag.store import endpoints
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.columns import BigInt, Indexed, Key
from agentic_rag.store.database_time import DatabaseTime
from agentic_rag.store.endpoints import ENDPOINTS, EndpointRecord, EventKind
from agentic_rag.store.record import Record
from agentic_rag.store.statements import Prepared, parameter

SHOWN_TEXT: Final = 4_000
"""Maximum characters of each text in a notification."""


class DeliveryState(StrEnum):
    """The state of a delivery: waiting for its attempt, received, or given up after all attempts."""

    PENDING = "pending"
    DELIVERED = "delivered"
    PARKED = "parked"


_PENDING = "state = 'pending'"


class DeliveryRecord(Record, table=True):
    """A notification for one endpoint. ``id`` is the message's id in all attempts."""

    __tablename__ = "deliveries"
    __table_args__ = (
        UniqueConstraint("endpoint_id", "once"),
        Index(
            "ix_deliveries_pending",
            "endpoint_id",
            "transaction",
            "id",
            sqlite_where=text(_PENDING),
            postgresql_where=text(_PENDING),
        ),
    )
    part_of = "domain"

    id: Key[str]
    endpoint_id: Indexed[str]
    domain_id: Indexed[str]
    """The domain of the event."""
    transaction: BigInt
    """Number of the transaction that stored the row; 0 in a SQLite file, whose transactions are in order of the ids."""
    kind: EventKind
    data: dict[str, Any]
    user_id: str
    """The person whom the event concerns, or empty."""
    conversation_id: Indexed[str]
    """The conversation that the event concerns, or empty."""
    once: str | None = None
    """Key of an event that an endpoint receives only once."""
    state: DeliveryState = DeliveryState.PENDING
    attempts: int = 0
    status: int | None = None
    """HTTP status of the last attempt."""
    problem: str = ""
    """The error of the last attempt."""
    created_at: str
    ended_at: Indexed[str | None] = None
    """The time at which the delivery was received or parked."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event to be sent to the endpoints of a domain.

    ``facts`` go to every endpoint: ids, names, states and times. ``texts`` go to endpoints that include texts, and if
    they are ``private``, only to those whose recipient is ``user_id``: only that person may read the conversation. Long
    texts are cut to `SHOWN_TEXT` characters. ``once``: an endpoint receives only one event with this key.
    """

    kind: EventKind
    domain_id: str
    facts: Mapping[str, object]
    texts: Mapping[str, object] = field(default_factory=dict)
    user_id: str = ""
    conversation_id: ConversationId | str = ""
    once: str | None = None
    private: bool = False


DELIVERIES = DeliveryRecord.__table__
_rows = DELIVERIES.c
_IN_ORDER = (_rows.transaction, _rows.id)
_PENDING_ROWS = _rows.state == DeliveryState.PENDING
# As text in the next two: a partial index only serves a query that states its condition, and a parameter states none.
_HEAD = Prepared(
    sa.select(DELIVERIES)
    .where(_rows.endpoint_id == parameter(_rows.endpoint_id), sa.text(_PENDING))
    .order_by(*_IN_ORDER)
    .limit(1)
)
_DUE = Prepared(
    sa.select(ENDPOINTS.c.id)
    .where(
        ENDPOINTS.c.enabled.is_(True),
        sa.or_(ENDPOINTS.c.retry_at.is_(None), ENDPOINTS.c.retry_at <= DatabaseTime()),
        ENDPOINTS.c.id.in_(sa.select(_rows.endpoint_id).where(sa.text("deliveries.state = 'pending'"))),
    )
    .order_by(ENDPOINTS.c.id)
)
_TRANSACTION = "CAST(CAST(pg_current_xact_id() AS text) AS bigint)"


def announce(conn: Connection, event: Event, *, without: str = "") -> None:
    """Store a delivery of an event for each endpoint that receives it. Part of the event's transaction.

    ``without``: the id of an endpoint that gets the event by `send_to`.
    """
    for endpoint in endpoints.of_event(conn, event.kind, event.domain_id):
        if endpoint.id == without:
            continue
        may_read = not event.private or endpoint.recipient == event.user_id
        send_to(conn, endpoint, event, with_texts=endpoint.with_texts and may_read)


def send_to(conn: Connection, endpoint: EndpointRecord, event: Event, *, with_texts: bool) -> str:
    """Store a delivery for one endpoint, even if it does not receive such events. Returns the delivery's id."""
    data = {"domainId": event.domain_id, **_present(event.facts)}
    if with_texts:
        data |= _present(event.texts)
    transaction = 0
    if conn.dialect.name == "postgresql":
        transaction = conn.execute(sa.text(f"SELECT {_TRANSACTION}")).scalar_one()
    record = DeliveryRecord(
        id=new_id("msg"),
        endpoint_id=endpoint.id,
        domain_id=event.domain_id,
        transaction=transaction,  # type: ignore[arg-type]
        kind=event.kind,
        data=data,
        user_id=event.user_id,
        conversation_id=event.conversation_id,
        once=event.once,
        created_at=now(),
    )
    if event.once is None:
        record.insert(conn)
    else:  # another process may report the same event at the same time, which must not end the event's transaction
        insert = (postgresql if conn.dialect.name == "postgresql" else sqlite).insert(DELIVERIES)
        conn.execute(insert.values(**record.column_values()).on_conflict_do_nothing())
    return record.id


def _present(values: Mapping[str, object]) -> dict[str, object]:
    present = {name: value for name, value in values.items() if value is not None and value != ""}
    return {name: value[:SHOWN_TEXT] if isinstance(value, str) else value for name, value in present.items()}


def due_endpoints(conn: Connection) -> list[str]:
    """Return the ids of the endpoints with pending deliveries whose next attempt is due."""
    return [str(row[0]) for row in _DUE.all(conn)]


def head(conn: Connection, endpoint_id: str) -> DeliveryRecord | None:
    """Return the first pending delivery of an endpoint, or None."""
    return DeliveryRecord.first(conn, _HEAD, endpoint_id=endpoint_id)


def get(conn: Connection, delivery_id: str) -> DeliveryRecord | None:
    """Return the delivery, or None."""
    return DeliveryRecord.first(conn, sa.select(DELIVERIES).where(_rows.id == delivery_id))


def list_newest(
    conn: Connection, endpoint_id: str, state: DeliveryState | None, limit: int, offset: int = 0
) -> list[DeliveryRecord]:
    """Return deliveries of an endpoint, newest first, optionally in one state."""
    query = sa.select(DELIVERIES).where(_rows.endpoint_id == endpoint_id)
    if state is not None:
        query = query.where(_rows.state == state)
    newest = query.order_by(_rows.transaction.desc(), _rows.id.desc())
    return DeliveryRecord.all(conn, newest.limit(limit).offset(offset))


def count_by_state(conn: Connection, endpoint_ids: Sequence[str]) -> dict[tuple[str, DeliveryState], int]:
    """Return the numbers of deliveries by endpoint and state."""
    counts = sa.select(_rows.endpoint_id, _rows.state, sa.func.count()).where(_rows.endpoint_id.in_(endpoint_ids))
    return {(row[0], row[1]): int(row[2]) for row in conn.execute(counts.group_by(_rows.endpoint_id, _rows.state))}


def settle(
    conn: Connection, delivery_id: str, state: DeliveryState, *, status: int | None = None, problem: str = ""
) -> None:
    """Record an attempt and its result."""
    ended = None if state is DeliveryState.PENDING else now()
    values = {"state": state, "status": status, "problem": problem, "ended_at": ended, "attempts": _rows.attempts + 1}
    pending = sa.update(DELIVERIES).where(_rows.id == delivery_id, _PENDING_ROWS)
    conn.execute(pending.values(**values))


def park(conn: Connection, endpoint_id: str, problem: str, *, created_before: str | None = None) -> int:
    """Give up the pending deliveries of an endpoint, optionally only old ones. Returns their number."""
    chosen = sa.update(DELIVERIES).where(_rows.endpoint_id == endpoint_id, _PENDING_ROWS)
    if created_before is not None:
        chosen = chosen.where(_rows.created_at < created_before)
    return conn.execute(chosen.values(state=DeliveryState.PARKED, problem=problem, ended_at=now())).rowcount


def replay(conn: Connection, delivery_id: str) -> bool:
    """Send a delivery again, with the same id. Returns False if it is pending or does not exist."""
    ended = sa.update(DELIVERIES).where(_rows.id == delivery_id, ~_PENDING_ROWS)
    return conn.execute(ended.values(state=DeliveryState.PENDING, attempts=0, ended_at=None)).rowcount == 1


def replay_parked(conn: Connection, endpoint_id: str) -> int:
    """Send all parked deliveries of an endpoint again. Returns their number."""
    parked = sa.update(DELIVERIES).where(_rows.endpoint_id == endpoint_id, _rows.state == DeliveryState.PARKED)
    return conn.execute(parked.values(state=DeliveryState.PENDING, attempts=0, ended_at=None)).rowcount


def delete_of_endpoint(conn: Connection, endpoint_id: str) -> None:
    """Delete all deliveries of an endpoint."""
    conn.execute(sa.delete(DELIVERIES).where(_rows.endpoint_id == endpoint_id))


def delete_of_conversation(conn: Connection, conversation_id: str) -> None:
    """Delete the deliveries about a conversation that was deleted."""
    conn.execute(sa.delete(DELIVERIES).where(_rows.conversation_id == conversation_id))


def delete_of_user(conn: Connection, user_id: str) -> None:
    """Delete the deliveries about a person who was erased."""
    conn.execute(sa.delete(DELIVERIES).where(_rows.user_id == user_id))


def prune(conn: Connection, received_before: str, ended_before: str, most: int) -> int:
    """Delete at most ``most`` old deliveries. Returns their number.

    ``received_before`` applies to received ones, ``ended_before`` to parked ones and to events that are sent once.
    """
    received = sa.and_(_rows.state == DeliveryState.DELIVERED, _rows.once.is_(None), _rows.ended_at < received_before)
    old = sa.select(_rows.id).where(~_PENDING_ROWS, sa.or_(received, _rows.ended_at < ended_before)).limit(most)
    return conn.execute(sa.delete(DELIVERIES).where(_rows.id.in_(old))).rowcount
