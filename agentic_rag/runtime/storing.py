"""What a turn's commits write: functions of a connection.

Owns the rows of messages, calls, usage and of a turn's end. Every one of them holds the turn's lease, so that a
process that has lost it writes nothing more. Knows no agent and no event's number.
"""

from collections.abc import Sequence

from sqlalchemy import Connection

from agentic_rag.events import Done, Error, Interrupted, Terminal
from agentic_rag.runtime.core.calls import PlannedCall
from agentic_rag.runtime.core.instructions import Commit, Spent
from agentic_rag.runtime.core.results import FinishedCall
from agentic_rag.runtime.core.session import Entry, Session
from agentic_rag.runtime.core.turn import Turn
from agentic_rag.store import payloads, sessions, tool_calls, turns, usage
from agentic_rag.store.clock import later, new_id, now
from agentic_rag.store.payloads import PayloadRecord
from agentic_rag.store.tool_calls import ToolCallRecord
from agentic_rag.store.turns import TurnRecord
from agentic_rag.store.usage import UsageRecord
from agentic_rag.tools.base import CallOutcome

LEASE_SECONDS = 15.0
"""How long after its last commit a turn's owner is taken to be alive."""

_END: dict[type, tuple[str, str]] = {
    Done: ("done", ""),
    Error: ("failed", "error"),
    Interrupted: ("interrupted", "interrupted"),
}


def hold(conn: Connection, row: TurnRecord) -> None:
    """Check and extend the turn's lease; the first statement of every transaction of its owner.

    Raises:
        LeaseLost: another process runs the turn.
    """
    turns.hold(conn, row.id, row.fence, later(LEASE_SECONDS))


def store_commit(
    conn: Connection, session: Session, row: TurnRecord, entries: Sequence[Entry], commit: Commit, model: str
) -> None:
    """Store a commit's messages, calls and usage.

    Raises:
        LeaseLost: another process runs the turn; nothing is kept.
    """
    hold(conn, row)
    at = now()
    for entry in entries:
        sessions.append_message(conn, _message(session.id, entry, commit, model, at))
    tool_calls.start(conn, [_call(call, row, at) for call in commit.calls])
    for ended in commit.ended:
        store_result(conn, row, ended.call, ended.outcome, ended.finished)
    usage.put(conn, [usage_row(session, row.id, spent, at) for spent in commit.spent])


def store_result(
    conn: Connection, row: TurnRecord, call: PlannedCall, outcome: CallOutcome, finished: FinishedCall
) -> None:
    """Store the end of a call and the records of what is kept whole of it."""
    tool_calls.finish(
        conn,
        row.id,
        call.id,
        status=outcome.status,
        result=finished.block,
        duration_ms=outcome.duration_ms,
        size=finished.size,
        ref=finished.ref,
    )
    for kept in finished.kept:
        payload = PayloadRecord(
            ref=kept.ref,
            session_id=row.session_id,
            media_type=kept.media_type,
            size=len(kept.data),
            created_at=now(),
        )
        payloads.put(conn, payload)


def store_end(conn: Connection, row: TurnRecord, turn: Turn, final: Terminal) -> None:
    """Store the end of a turn with its totals."""
    status, reason = _END[type(final)]
    turns.finish(
        conn,
        row.id,
        status=status,
        end_reason=final.stop_reason if isinstance(final, Done) else reason,
        ended_at=now(),
        steps=turn.iteration,
        usage=turn.usage.wire(),
        error=error_json(final),
        references=[{name: getattr(ref, name) for name in ref.__slots__} for ref in turn.references],
        timings=turn.timings,
    )


def end_unrun(conn: Connection, row: TurnRecord, final: Terminal) -> None:
    """Store the end of a turn that no agent runs."""
    status, reason = _END[type(final)]
    turns.finish(
        conn,
        row.id,
        status=status,
        end_reason=reason,
        ended_at=now(),
        steps=row.steps,
        usage=row.usage,
        error=error_json(final),
    )


def error_json(final: Terminal) -> dict[str, object] | None:
    """Return the form in which a turn's row keeps its error; None when it has none."""
    if not isinstance(final, Error):
        return None
    return {"code": final.code, "message": final.message, "retryable": final.retryable}


def usage_row(session: Session, turn_id: str | None, spent: Spent, at: str) -> UsageRecord:
    """Return the row of one model call."""
    return UsageRecord(
        id=new_id("usage"),
        session_id=session.id,
        turn_id=turn_id,
        step=spent.step,
        labels=dict(session.labels),
        agent=session.labels.get("agent", ""),
        model=spent.model,
        input=spent.usage.input,
        cache_read=spent.usage.cache_read,
        cache_write=spent.usage.cache_write,
        output=spent.usage.output,
        created_at=at,
    )


def _message(session_id: str, entry: Entry, commit: Commit, model: str, at: str) -> sessions.MessageRecord:
    assistant = entry.message["role"] == "assistant"
    return sessions.MessageRecord(
        session_id=session_id,
        seq=entry.seq,
        turn_id=entry.turn_id,
        step=entry.step,
        role=entry.message["role"],
        content=entry.message["content"],
        message_id=entry.message_id,
        created_at=at,
        model=model if assistant else None,
        usage=commit.usage.wire() if assistant and commit.usage is not None else None,
        partial=commit.partial and assistant,
    )


def _call(call: PlannedCall, row: TurnRecord, started_at: str) -> ToolCallRecord:
    return ToolCallRecord(
        turn_id=row.id,
        tool_call_id=call.id,
        session_id=row.session_id,
        server=call.server,
        tool_name=call.name,
        arguments=call.arguments,
        started_at=started_at,
    )
