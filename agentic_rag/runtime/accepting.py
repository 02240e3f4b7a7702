"""Accepting a message: what the accepting transaction refuses, and what it stores. Functions of a connection.

Owns idempotency, the limit of the queue, and the first rows of a turn. Knows no agent and no task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from agentic_rag.errors import IdempotencyMismatch, NotFound, TurnInProgress
from agentic_rag.events import AgentEvent, EventBody, TurnStarted, Usage
from agentic_rag.messages import Block, Message
from agentic_rag.runtime.core.session import Entry, Measure, Session
from agentic_rag.runtime.log.runlog import RunLog
from agentic_rag.store import images, run_events, sessions, tool_calls, turns, usage
from agentic_rag.store.turns import TurnRecord

MAX_QUEUED = 5
"""Messages that may wait behind a running turn."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A message that will not be lost. ``duplicate``: the same client message id came before."""

    turn_id: str
    user_message_id: str
    message_id: str
    client_message_id: str | None
    duplicate: bool
    queued: bool


class Duplicate(Exception):
    """Carries the turn an already accepted message made out of the accepting transaction."""

    def __init__(self, turn: TurnRecord) -> None:
        super().__init__(turn.id)
        self.turn = turn


def refuse_busy(conn: Connection, row: TurnRecord, busy: str | None, on_busy: str) -> None:
    """Refuse a message that was sent before, or that comes while turn ``busy`` runs.

    Raises:
        Duplicate: the same client message id and content made a turn already.
        IdempotencyMismatch: the same id came with other content.
        TurnInProgress: a turn runs and ``on_busy`` is not ``queue``, or the queue is full.
    """
    if row.client_message_id is not None:
        known = turns.by_client_message(conn, row.session_id, row.client_message_id)
        if known is not None and known.content != row.content:
            raise IdempotencyMismatch(row.client_message_id)
        if known is not None:
            raise Duplicate(known)
    if busy is None:
        return
    if on_busy != "queue":
        raise TurnInProgress(busy)
    if len(turns.queued(conn, row.session_id)) >= MAX_QUEUED:
        raise TurnInProgress(busy, f"{MAX_QUEUED} messages wait already, which is the limit.")


def store_start(
    conn: Connection,
    row: TurnRecord,
    entries: Sequence[Entry],
    log: RunLog,
    extra: Sequence[EventBody],
    model: str,
) -> list[AgentEvent]:
    """Store the user message and the first events of a turn that starts; return those events."""
    store_user_message(conn, row, entries)
    started = TurnStarted(
        user_message_id=row.user_message_id,
        message_id=row.message_id,
        content=row.content,
        model=model,
        image_id=row.image_id,
        client_message_id=row.client_message_id,
    )
    first = [log.number(body) for body in (started, *extra)]
    run_events.append(conn, [(event.turn_id, event.seq, event.data) for event in first])
    return first


def store_user_message(conn: Connection, row: TurnRecord, entries: Sequence[Entry]) -> None:
    """Store the message with which a turn starts."""
    for entry in entries:
        sessions.append_message(
            conn,
            sessions.MessageRecord(
                session_id=row.session_id,
                seq=entry.seq,
                turn_id=row.id,
                step=0,
                role="user",
                content=entry.message["content"],
                message_id=row.user_message_id,
                created_at=row.started_at,
            ),
        )


def accepted_as(row: TurnRecord, *, duplicate: bool) -> Accepted:
    """Return what the sender of a message is told."""
    return Accepted(
        turn_id=row.id,
        user_message_id=row.user_message_id,
        message_id=row.message_id,
        client_message_id=row.client_message_id,
        duplicate=duplicate,
        queued=row.status == "queued",
    )


@dataclass(frozen=True, slots=True)
class Left:
    """What a stopped server left of a turn: its last event's number, definition, ended calls and usage."""

    last: int
    image: Mapping[str, Any] | None
    finished: Mapping[str, Block]
    spent: Usage


def read_left(conn: Connection, row: TurnRecord) -> Left:
    """Read what a turn that was cut off is resumed from."""
    calls = {call.tool_call_id: call.result for call in tool_calls.of_turn(conn, row.id)}
    children = [turns.of_session(conn, session_id)[0] for session_id in sessions.delegated(conn, row.id)]
    # those that go on are counted when they end, with all that they have spent
    delegated = [Usage.from_wire(child.usage) for child in children if child.status in turns.FINISHED and child.usage]
    return Left(
        last=run_events.last_seq(conn, row.id),
        image=images.get(conn, row.image_id),
        finished={ident: result for ident, result in calls.items() if result is not None},
        spent=sum(delegated, usage.of_turn(conn, row.id)),
    )


def left_running(conn: Connection) -> tuple[list[TurnRecord], list[TurnRecord]]:
    """Return the turns a stopped server left running: those to resume, and delegates whose parents have ended.

    Other delegates are in neither list: who asked for them goes on with them.
    """
    left = turns.running(conn)
    parents = sessions.parents(conn, [row.session_id for row in left])
    known = {row.id: row for row in left}

    def orphaned(row: TurnRecord) -> bool:
        parent = parents.get(row.session_id)
        return parent is not None and (parent not in known or orphaned(known[parent]))

    return [row for row in left if row.session_id not in parents], [row for row in left if orphaned(row)]


def load_session(conn: Connection, session_id: str) -> Session:
    """Return a session with the messages that are not archived.

    Raises:
        NotFound: there is no such session.
    """
    stored = sessions.get(conn, session_id)
    if stored is None:
        raise NotFound("session", session_id)
    rows = sessions.transcript(conn, session_id)
    measure = None
    for row in reversed(rows):
        if row.seq <= stored.window_set_at:
            break
        if row.usage and row.usage["inputTokens"]:
            measure = Measure(row.usage["inputTokens"], row.seq)
            break
    return Session(
        id=session_id,
        labels=stored.labels,
        window_start=stored.window_start,
        head=stored.head or [],
        entries=[Entry(row.seq, row.turn_id, row.step, row.message_id, _message(row)) for row in rows],
        base_seq=stored.last_seq,
        measure=measure,
    )


def _message(row: sessions.MessageRecord) -> Message:
    return {"role": "assistant" if row.role == "assistant" else "user", "content": row.content}
