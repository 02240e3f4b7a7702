"""Rebuild a stored turn as an OpenAI response, from its log or, once the log is deleted, from the stored messages.

The rebuilt events contain the same text, citations and calls. The text is in one piece after the calls. This module
knows no route.
"""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing

from agentic_rag.access.users import User
from agentic_rag.base.errors import BeyondLog, GenerationAborted, LogGone
from agentic_rag.base.events import (
    AgentEvent,
    Delegate,
    Done,
    Error,
    EventBody,
    Interrupted,
    IterationStart,
    SourceReference,
    Terminal,
    Text,
    ToolCall,
    ToolResult,
    ToolStatus,
    TurnStarted,
    Usage,
)
from agentic_rag.base.json_form import Json
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.conversations.shown_messages import ShownMessage
from agentic_rag.operations.calls import StoredTurn
from agentic_rag.runtime.core.window import result_text
from agentic_rag.runtime.log.encoder import Encoder
from agentic_rag.server.dialects.openai_responses import OpenAiResponses, ResponseFrame, response_id
from agentic_rag.server.dialects.settled import settle
from agentic_rag.store.tool_calls import ToolCallRecord
from agentic_rag.store.turns import FINISHED, TurnRecord, TurnStatus

MAX_CALLS = 1_000
"""Maximum calls of a conversation in which to look for those of a turn."""


def frame_of(stored: StoredTurn) -> ResponseFrame:
    """Return the parts of a response that do not come from the turn. The instructions of the request are not stored."""
    before = None if stored.follows is None else response_id(stored.follows)
    return ResponseFrame(
        stored.conversation.domain_id, None, before, stored.conversation.id, functions=stored.functions
    )


async def stored_response(conversations: Conversations, user: User, stored: StoredTurn, frame: ResponseFrame) -> Json:
    """Return the response of a turn in its current state, without waiting for its end."""
    encoder = OpenAiResponses(frame, retracts=True)
    for event in await turn_events(conversations, user, stored):
        encoder.take(event)
    return encoder.response()


async def check_place(
    conversations: Conversations, user: User, stored: StoredTurn, frame: ResponseFrame, after: int
) -> None:
    """Check that a finished response has events after number ``after``, the last one that the client has.

    Raises:
        BeyondLog: the response has no event with this number.
    """
    if after < 0 or stored.turn.status not in FINISHED:  # a turn that runs can still write an event of this number
        return
    # The numbers are those of the encoder, which makes several events of one, so only encoding tells how many.
    encoder = OpenAiResponses(frame)
    written = sum(len(encoder.frames(event)) for event in await turn_events(conversations, user, stored))
    if after >= written:
        raise BeyondLog(stored.turn.id, after)


async def stored_events(conversations: Conversations, user: User, stored: StoredTurn) -> AsyncGenerator[AgentEvent]:
    """Yield the events of a turn from the start. For a finished turn, retracted content is left out."""
    if stored.turn.status in FINISHED:
        for event in await turn_events(conversations, user, stored):
            yield event
        return
    async with aclosing(conversations.events(stored.turn.id)) as events:
        async for event in events:
            yield event


async def turn_events(conversations: Conversations, user: User, stored: StoredTurn) -> Sequence[AgentEvent]:
    """Return the events of a turn up to now. Retracted content is left out."""
    try:
        await conversations.check_replay(user, stored.turn)
        reader = conversations.log(stored.turn.id)
        events: list[AgentEvent] = []
        while batch := await reader.take():
            events += batch
        return settle(events)
    except LogGone:
        pass  # events of old turns are deleted; what follows is made from the stored records
    conversation = stored.conversation
    message = await conversations.message(user, conversation.id, stored.turn.message_id)
    calls = await conversations.tool_calls(user, conversation.id, limit=MAX_CALLS)
    own_calls = [call for call in calls if call.turn_id == stored.turn.id]
    delegated = [call for child in await conversations.children(user, stored.turn.id) for call in child.tool_calls]
    return list(events_of(stored.turn, message, [*own_calls, *delegated]))


def events_of(turn: TurnRecord, message: ShownMessage, calls: Sequence[ToolCallRecord]) -> Iterator[AgentEvent]:
    """Yield events equivalent to those of a finished turn, rebuilt from its stored records."""
    encoder = Encoder(turn.conversation_id, turn.id)
    for seq, (body, agent) in enumerate(_bodies(turn, message, calls), 1):
        # The records do not tell when the events between start and end were sent.
        at = turn.ended_at if isinstance(body, Terminal) else None
        yield encoder.encode(body, seq, at or turn.started_at, agent)


def _bodies(
    turn: TurnRecord, message: ShownMessage, calls: Sequence[ToolCallRecord]
) -> Iterator[tuple[EventBody, Delegate | None]]:
    model = str(message.metadata.get("model") or "")
    yield TurnStarted(turn.user_message_id, turn.message_id, turn.content, model, turn.image_id), None
    for call in calls:
        agent = Delegate(call.agent, "") if call.agent else None
        yield ToolCall(call.tool_call_id, call.tool_name, call.server, call.arguments), agent
        if call.status is not ToolStatus.RUNNING:
            yield _result(call), agent
    yield IterationStart(1, False), None
    if message.content:
        yield Text(message.content), None
    references = {reference.number: reference for reference in message.references}
    for cited in message.citations:
        reference = references.get(cited.number)
        if reference is not None:
            yield (
                SourceReference(
                    reference.number,
                    1,
                    cited.end,
                    cited.end,
                    reference.document_id,
                    reference.document_name,
                    reference.chunk_id,
                    reference.cited_text,
                    reference.score,
                    reference.page,
                    reference.cells,
                    reference.verified,
                    reference.table,
                    reference.scanned,
                    reference.document_date,
                    reference.review_by,
                    reference.scanned_by,
                    reference.source_uri,
                ),
                None,
            )
    yield _end(turn, model, tuple(message.metadata.get("retrievalIds") or ())), None


def _result(call: ToolCallRecord) -> ToolResult:
    content = "" if call.result is None else result_text(call.result)
    return ToolResult(
        call.tool_call_id,
        call.tool_name,
        call.server,
        call.status,
        content,
        truncated=call.ref is not None,
        duration_ms=call.duration_ms or 0,
    )


def _end(turn: TurnRecord, model: str, retrieval_ids: tuple[str, ...]) -> EventBody:
    if turn.status is TurnStatus.INTERRUPTED:
        return Interrupted(turn.message_id)
    if turn.status is TurnStatus.FAILED:
        return turn.error or Error(GenerationAborted.code, str(GenerationAborted()), False)
    usage = turn.usage or Usage()
    return Done(turn.message_id, usage, turn.end_reason or "", turn.references, model, turn.timings, retrieval_ids)
