"""Reads and writes of turns in the store, as functions of a connection.

Owns the rows of messages, calls, usage and the end of a turn, and the state from which a cut-off turn resumes. Knows no
agent and no event number.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from agentic_rag.base.errors import NotFound
from agentic_rag.base.events import Done, Error, Interrupted, Terminal, ToolStatus, Usage
from agentic_rag.base.ids import SessionId, TurnId
from agentic_rag.base.json_form import from_json
from agentic_rag.base.messages import NAMED, RETRIEVALS, Block, Message, Passage, ToolSpec
from agentic_rag.runtime.core.calls import PlannedCall
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.prompt_state import Prompt, PromptState
from agentic_rag.runtime.core.results import FinishedCall
from agentic_rag.runtime.core.transcript import Measure, Transcript, without_bound
from agentic_rag.runtime.core.turn import Commit, Spent, Turn
from agentic_rag.runtime.core.window import TranscriptEntry
from agentic_rag.store import (
    budgets,
    conversations,
    domains,
    images,
    payloads,
    prompts,
    provenance,
    retrievals,
    run_events,
    run_groups,
    sessions,
    signals,
    tool_calls,
    turns,
    usage,
    waits,
)
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.prompts import PromptRecord
from agentic_rag.store.signals import SignalKind
from agentic_rag.store.tool_calls import ToolCallRecord
from agentic_rag.store.turns import TurnRecord, TurnStatus
from agentic_rag.store.usage import UsageRecord
from agentic_rag.store.waits import WaitRecord
from agentic_rag.tools.base import CallOutcome
from agentic_rag.tools.system import RECALL

logger = logging.getLogger(__name__)

_END: dict[type, tuple[TurnStatus, str]] = {
    Done: (TurnStatus.DONE, ""),
    Error: (TurnStatus.FAILED, "error"),
    Interrupted: (TurnStatus.INTERRUPTED, "interrupted"),
}


def end_of(final: Terminal) -> str:
    """Return the reason of a turn's end in one word: the model's stop reason, an error code, or ``interrupted``."""
    if isinstance(final, Done):
        return final.stop_reason
    return final.code if isinstance(final, Error) else "interrupted"


def store_commit(
    conn: Connection,
    transcript: Transcript,
    row: TurnRecord,
    entries: Sequence[TranscriptEntry],
    commit: Commit,
    model: str,
) -> None:
    """Store a commit's messages, calls and usage."""
    at = now()
    for entry in entries:
        sessions.append_message(conn, _message_row(row, entry, commit, model, at))
    tool_calls.start(conn, [_call_row(call, row, transcript.labels.agent, at) for call in commit.calls])
    for ended in commit.ended:
        store_result(conn, row, ended.call, ended.outcome, ended.finished)
    usage.put(conn, [usage_row(transcript, row.id, spent, at, row.key_id) for spent in commit.spent])


def store_result(
    conn: Connection, row: TurnRecord, call: PlannedCall, outcome: CallOutcome, finished: FinishedCall
) -> None:
    """Store the end of a call and the records of its payloads."""
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
    retrievals.link(conn, finished.block.get(RETRIEVALS, ()), row.conversation_id, row.id)
    _note_reading(conn, row, call, outcome, finished)
    for payload in finished.kept:
        payloads.put(conn, payloads.record_of(payload.ref, row.session_id, payload.media_type, payload.data))


def _note_reading(
    conn: Connection, row: TurnRecord, call: PlannedCall, outcome: CallOutcome, finished: FinishedCall
) -> None:
    """Record the documents that a result of our own tools shows, so that memories of them can be hidden later."""
    if call.tool is None or call.tool.origin == "user" or outcome.status is not ToolStatus.OK:
        return
    passages = (Passage.of(part) for part in finished.block["content"])
    document_ids: list[str] = [passage.document_id for passage in passages if passage is not None]
    structured = outcome.structured if isinstance(outcome.structured, dict) else {}
    document_ids += finished.block.get(NAMED, ())
    # In the transaction of the result, so that no passage is in a transcript without its document being known.
    provenance.note_read(conn, row.conversation_id, document_ids)
    if call.name == RECALL.name and structured.get("turns"):
        conversation = conversations.get(conn, row.conversation_id)
        if conversation is not None:
            provenance.note_recalled(conn, conversation.domain_id, conversation.id, structured["turns"])


def store_end(conn: Connection, row: TurnRecord, turn: Turn, final: Terminal) -> None:
    """Store the end of a turn with its totals."""
    status, reason = _END[type(final)]
    end = turns.TurnEnd(
        status=status,
        end_reason=final.stop_reason if isinstance(final, Done) else reason,
        ended_at=now(),
        steps=turn.iteration,
        usage=turn.usage,
        error=final if isinstance(final, Error) else None,
        references=turn.references,
        timings=turn.timings,
        role_hashes=turn.role_hashes,
    )
    turns.finish(conn, row.id, end)


def end_without_agent(conn: Connection, row: TurnRecord, final: Terminal) -> None:
    """Store the end of a turn that no agent runs, and of its delegates."""
    waits.cancel(conn, row.id, now())
    end_delegates(conn, row.id)
    status, reason = _END[type(final)]
    end = turns.TurnEnd(
        status=status,
        end_reason=reason,
        ended_at=now(),
        steps=row.steps,
        usage=row.usage,
        error=final if isinstance(final, Error) else None,
    )
    turns.finish(conn, row.id, end)


def end_delegates(conn: Connection, turn_id: TurnId) -> None:
    """Store the ends of a turn's delegates that were suspended or cut off and not resumed."""
    for session in sessions.list_delegated(conn, turn_id):
        for child in turns.of_session(conn, session.id):
            if child.status not in turns.FINISHED:
                end_without_agent(conn, child, Interrupted())


def usage_row(transcript: Transcript, turn_id: TurnId | None, spent: Spent, at: str, key_id: str = "") -> UsageRecord:
    """Return the usage row of one model call. ``key_id``: the API key that sent the message."""
    return UsageRecord(
        id=new_id("usage"),
        session_id=transcript.session_id,
        turn_id=turn_id,
        step=spent.step,
        conversation_id=transcript.labels.conversation_id,
        domain_id=transcript.labels.domain_id,
        user_id=transcript.labels.user_id,
        key_id=key_id,
        agent=transcript.labels.agent,
        model=spent.model,
        input=spent.usage.input,
        cache_read=spent.usage.cache_read,
        cache_write=spent.usage.cache_write,
        output=spent.usage.output,
        dropped_citations=spent.dropped_citations,
        unverified_citations=spent.unverified_citations,
        cache_miss=spent.cache_miss.reason if spent.cache_miss else "",
        cache_missed=spent.cache_miss.tokens if spent.cache_miss else 0,
        created_at=at,
    )


def _message_row(
    row: TurnRecord, entry: TranscriptEntry, commit: Commit, model: str, at: str
) -> sessions.MessageRecord:
    assistant = entry.message["role"] == "assistant"
    return sessions.MessageRecord(
        session_id=row.session_id,
        seq=entry.seq,
        turn_id=entry.turn_id,
        step=entry.step,
        role=entry.message["role"],
        content=entry.message["content"],
        message_id=entry.message_id,
        parent_message_id=row.user_message_id,
        created_at=at,
        model=model if assistant else None,
        usage=commit.usage if assistant else None,
        partial=commit.partial and assistant,
    )


def _call_row(call: PlannedCall, row: TurnRecord, agent: str, started_at: str) -> ToolCallRecord:
    return ToolCallRecord(
        turn_id=row.id,
        tool_call_id=call.id,
        session_id=row.session_id,
        agent=agent,
        server=call.server,
        tool_name=call.name,
        arguments=call.arguments,
        started_at=started_at,
    )


# Reading back


@dataclass(frozen=True, slots=True)
class Resume:
    """The stored state of a turn that a server left, or that was suspended.

    ``messages``: the turn's messages after the user's own, oldest first, also summarised ones. ``finished``: the
    ``tool_result`` blocks of ended calls by call id. ``usage``: the usage so far. ``waits``: the waits of its own
    calls, oldest first.
    """

    messages: tuple[Message, ...]
    finished: Mapping[str, Block]
    usage: Usage
    waits: tuple[WaitRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class InterruptedTurn:
    """A turn that a stopped server left. ``last_seq``: number of its last stored event.

    ``definition``: None if it was deleted, or has a version that this program cannot run.
    """

    last_seq: int
    definition: Definition | None
    resume: Resume


def read_interrupted(conn: Connection, row: TurnRecord) -> InterruptedTurn:
    """Read the state from which a cut-off turn resumes."""
    calls = {call.tool_call_id: call.result for call in tool_calls.of_turn(conn, row.id)}
    children = [turns.of_session(conn, session.id)[0] for session in sessions.list_delegated(conn, row.id)]
    # running delegates are counted when they end, with all of their usage
    delegated = [child.usage for child in children if child.status in turns.FINISHED and child.usage]
    return InterruptedTurn(
        last_seq=run_events.last_seq(conn, row.id),
        definition=stored_definition(conn, row.image_id),
        resume=Resume(
            messages=tuple(
                _message(message)
                for message in sessions.transcript(conn, row.session_id)
                if message.turn_id == row.id and message.step > 0
            ),
            finished={ident: result for ident, result in calls.items() if result is not None},
            usage=sum(delegated, usage.of_turn(conn, row.id)),
            waits=tuple(waits.of_turn(conn, row.id)),
        ),
    )


def stored_definition(conn: Connection, image_id: str) -> Definition | None:
    """Return a stored definition, or None if it was deleted or has a version that this program cannot run.

    The workspace is the domain's current folder: a turn that was moved with its folder, by a restore or by hand, must
    not continue in the old one.
    """
    image = images.record(conn, image_id)
    if image is None:
        return None
    try:
        definition = Definition.from_json(image.definition)
    except (TypeError, KeyError, ValueError) as exc:
        logger.error("a stored definition cannot be used: %r", exc)
        return None
    domain = domains.get(conn, image.domain_id)
    if domain is None:
        return definition
    return replace(definition, binding=replace(definition.binding, workspace=domain.workspace))


@dataclass(frozen=True, slots=True)
class TakeoverResult:
    """The turns that a process took over from dead ones: turns to resume, and queued turns with their domains.

    ``orphans``: delegates whose parents have ended. Other delegates are not included, because their parents resume
    them.
    """

    running: tuple[TurnRecord, ...]
    queued: tuple[tuple[TurnRecord, str], ...]
    orphans: tuple[TurnRecord, ...]


def take_abandoned(
    conn: Connection, owner: str, *, alone: bool, first: bool, room: int | None = None
) -> TakeoverResult:
    """Make ``owner`` the owner of turns without a living owner. ``alone``: no other process can exist.

    ``first``: ``owner`` runs nothing yet. If it is alone, groups of the run log then belong to a dead process.
    ``room``: most turns to take; None: all.

    A cut-off turn counts one more resume. A turn that was left on purpose does not. The reservations of the taken
    turns' calls are released. Turns queued behind a turn of a living process stay with that process.
    """
    if alone and first:
        # The groups of a dead process become event rows before any reader counts events.
        run_groups.settle(conn)
    abandoned = turns.lock_abandoned(conn, owner, alone=alone)
    running = {row.id: row for row in turns.list_running(conn)} if abandoned else {}
    parents = sessions.parents(conn, [row.session_id for row in running.values()])

    def is_orphan(row: TurnRecord) -> bool:
        parent = parents.get(row.session_id)
        return parent is not None and (parent not in running or is_orphan(running[parent]))

    # Delegates are resumed by their parents, which find their calls unfinished.
    to_resume = [row for row in abandoned if row.status is TurnStatus.RUNNING and row.session_id not in parents]
    resumed = tuple(_take(conn, row, owner) for row in to_resume[:room])
    # The calls that these amounts were reserved for died with their process.
    budgets.release_of_turns(conn, [row.id for row in resumed])
    busy_sessions = {row.session_id for row in running.values() if row.owner != owner} - {
        row.session_id for row in resumed
    }
    queued = [row for row in abandoned if row.status is TurnStatus.QUEUED and row.session_id not in busy_sessions]
    queued = queued if room is None else queued[: max(0, room - len(resumed))]
    turns.take_queued(conn, [row.id for row in queued], owner)
    return TakeoverResult(
        resumed,
        tuple((row.replace(owner=owner), images.domain_of(conn, row.image_id)) for row in queued),
        tuple(row for row in abandoned if row.status is TurnStatus.RUNNING and is_orphan(row)),
    )


@dataclass(frozen=True, slots=True)
class WaitingTurn:
    """A user's turn that is suspended until a person answers. ``last_seq``: number of its last event."""

    turn: TurnRecord
    domain_id: str
    last_seq: int


def list_waiting(conn: Connection) -> list[WaitingTurn]:
    """Return the suspended turns of users."""
    rows = turns.list_waiting(conn)
    delegated = sessions.parents(conn, [row.session_id for row in rows])
    return [
        WaitingTurn(row, images.domain_of(conn, row.image_id), run_events.last_seq(conn, row.id))
        for row in rows
        if row.session_id not in delegated
    ]


def _take(conn: Connection, row: TurnRecord, owner: str) -> TurnRecord:
    # A suspended turn has no owner; only a turn that was cut off counts towards the limit of resumes.
    resumes = turns.count_resume(conn, row.id) if row.owner else row.resumes
    resumed_row = row.replace(owner=owner, fence=turns.take_lease(conn, row.id, owner), resumes=resumes)
    sessions.set_writer(conn, row.session_id, owner)
    signals.send(conn, SignalKind.BEGAN, row.session_id, row.id)
    return resumed_row


def load_transcript(conn: Connection, session_id: SessionId) -> Transcript:
    """Return the messages of a session's active branch without those that a summary replaced.

    Raises:
        NotFound: the session does not exist.
    """
    session = sessions.get(conn, session_id)
    if session is None:
        raise NotFound("session", session_id)
    all_rows = sessions.transcript(conn, session_id, session.compacted_to + 1)
    sent = [row for row in all_rows if not session.gap_from <= row.seq <= session.gap_to]
    rows = _still_fitting(sent, session.window_start)
    measure = None
    for row in reversed(rows):
        if row.seq <= session.window_set_at:
            break
        if row.usage and row.usage.sent:
            measure = Measure(row.usage.sent, row.seq)
            break
    transcript = Transcript(
        session_id,
        session.labels,
        entries=[TranscriptEntry(row.seq, row.turn_id, row.step, row.message_id, _message(row)) for row in rows],
        window_start=session.window_start,
        head=session.head or (),
        base_seq=session.last_seq,
        measure=measure,
        prompt_state=_load_prompt_state(conn, session),
    )
    _ = transcript.memory  # measured here, in the store's thread
    return transcript


def _still_fitting(rows: Sequence[sessions.MessageRecord], window_start: int) -> list[sessions.MessageRecord]:
    """Remove thinking and citations from answers after a message that was rewritten while another branch was active.

    Messages that were rewritten together (by a moved window, or by results left out) fit together already.
    """
    messages: list[sessions.MessageRecord] = []
    rewritten_at = 0
    for row in rows:
        if row.role == "assistant" and row.seq <= rewritten_at and row.rewritten_at < rewritten_at:
            row = row.replace(content=without_bound(row.content))
        if row.seq >= window_start:
            rewritten_at = max(rewritten_at, row.rewritten_at)
        messages.append(row)
    return messages


def _load_prompt_state(conn: Connection, session: sessions.SessionRecord) -> PromptState | None:
    first, latest = prompts.get(conn, session.prompt_id), prompts.get(conn, session.told_id)
    if first is None or latest is None:
        return None
    late = tuple(from_json(ToolSpec, tool) for tool in session.late_tools or ())
    begun = _prompt(first)
    return PromptState(begun, begun if latest.id == first.id else _prompt(latest), late)


def _prompt(row: PromptRecord) -> Prompt:
    return Prompt(tuple(row.system), tuple(from_json(ToolSpec, tool) for tool in row.tools))


def store_prompt_state(conn: Connection, session_id: SessionId, state: PromptState) -> None:
    """Store the session's prompt state."""
    # The two are one row as long as the prompt has not changed.
    for prompt in {state.first.id: state.first, state.latest.id: state.latest}.values():
        row = PromptRecord(
            id=prompt.id, system=list(prompt.system), tools=[dict(tool) for tool in prompt.tools], created_at=now()
        )
        prompts.put(conn, row)
    sessions.set_prompt_state(conn, session_id, state.first.id, state.latest.id, [dict(tool) for tool in state.late])


def _message(row: sessions.MessageRecord) -> Message:
    return {"role": "assistant" if row.role == "assistant" else "user", "content": row.content}
