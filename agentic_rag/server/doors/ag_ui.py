"""AG-UI over HTTP: POST starts a run, and GET resumes one as TanStack AI does.

This module defines the request forms and maps a client's ids (thread, run, offset) to the server's ids.
``dialects.ag_ui`` encodes the events. ``ag_ui_socket`` offers the same over a WebSocket.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import anyio.to_thread
from pydantic import ConfigDict
from starlette.requests import Request

from agentic_rag.access.users import User
from agentic_rag.base.errors import Forbidden, ImageTooLarge, ImageUnsupported, InvalidInput, NotFound, WaitAnswered
from agentic_rag.base.events import AgentEvent
from agentic_rag.base.forms import Form
from agentic_rag.base.ids import TurnId, WaitId
from agentic_rag.base.json_form import Json
from agentic_rag.conversations.client_names import ClientNames, check_name
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.conversations.sent_images import MAX_IMAGES_JSON
from agentic_rag.conversations.waits import Waits
from agentic_rag.server.dialects.ag_ui import AgUi, Offset
from agentic_rag.server.dialects.ag_ui_input import RunRequest, input_model, read_run
from agentic_rag.server.dialects.base import KnownWaits
from agentic_rag.server.dialects.settled import settle
from agentic_rag.server.routing import route
from agentic_rag.server.sse import EventStream
from agentic_rag.store.turns import FINISHED, TurnRecord

AG_UI = "/api/ag-ui/{domain}"
FROM_START = "-1"


class AgUiRunQuery(Form):
    """The run to resume and the position in it.

    ``offset`` is the id of the last received event, or ``-1`` for the whole run. ``Last-Event-ID`` takes precedence.
    """

    model_config = ConfigDict(extra="ignore")

    run_id: str
    offset: str | None = None


@dataclass(frozen=True, slots=True)
class AgUiRun:
    """The events of a run and their encoder."""

    events: AsyncIterator[AgentEvent]
    encoder: AgUi


class AgUiRuns:
    """Runs of AG-UI clients. Each run is a turn, returned as a stream of events with their encoder."""

    def __init__(self, conversations: Conversations, names: ClientNames, waits: Waits) -> None:
        self._conversations = conversations
        self._names = names
        self._waits = waits

    async def begin(self, user: User, domain_id: str, body: object, last: str | None = None) -> "AgUiRun":
        """Start a run, or find the run that this ``runId`` already started.

        ``last`` is the id of the last event that the client has received.

        Raises:
            InvalidInput: the input is invalid, or ``last`` is not an event of this run.
            AgenticRagError: the message or the answer to an interrupt is refused; see `Conversations.send` and
                `Waits.answer`.
        """
        await anyio.to_thread.run_sync(input_model)  # the first call imports the official package
        request = read_run(body)
        check_name("threadId", request.thread_id)
        check_name("runId", request.run_id)
        after = None if last is None else Offset.parse(last)
        if request.resume:
            return await self._go_on(user, domain_id, request, after)
        conversation = await self._names.find_or_begin(user, domain_id, request.thread_id)
        if after is not None:
            _check_offset(after, await self._names.turn_in(conversation, request.run_id))
        accepted = await self._conversations.send(
            user, conversation.id, request.content, client_message_id=request.run_id, images=request.images
        )
        ended = await self._waits.ended_of(accepted.turn_id) if accepted.duplicate else frozenset[str]()
        encoder = AgUi(request.thread_id, request.run_id, request.history, after, KnownWaits(ended))
        return AgUiRun(self._conversations.events(accepted.turn_id), encoder)

    async def _go_on(self, user: User, domain_id: str, request: RunRequest, after: Offset | None) -> "AgUiRun":
        """Answer the waits of a turn and return the events that follow.

        Repeating the same answers returns the same events.
        """
        conversation = await self._names.find(user, domain_id, request.thread_id)
        pairs = [(entry, await self._waits.get(user, WaitId(entry.wait_id))) for entry in request.resume]
        for _, wait in pairs:
            if conversation is None or wait.conversation_id != conversation.id:
                raise NotFound("wait", wait.id)
        turn_id = pairs[0][1].root_turn_id
        if any(wait.root_turn_id != turn_id for _, wait in pairs):
            raise InvalidInput("resume", "the interrupts of one run are expected, not of several turns.")
        if after is not None and after.turn_id != turn_id:
            raise InvalidInput("offset", "this is the id of an event of another run.")
        for wait, (action, content) in [(wait, entry.answer(wait.kind)) for entry, wait in pairs]:
            await self._waits.settle(user, wait, action, content)
        waits = KnownWaits(await self._waits.ended_of(turn_id), frozenset(wait.id for _, wait in pairs))
        encoder = AgUi(request.thread_id, request.run_id, request.history, after, waits)
        await self._conversations.check_replay(user, await self._conversations.turn(user, turn_id))
        return AgUiRun(self._conversations.events(turn_id), encoder)

    async def resume(self, user: User, domain_id: str, run_id: str, offset: str | None) -> "AgUiRun":
        """Return the events of a run after the client's position.

        Raises:
            NotFound: this user has no such run in this domain.
            InvalidInput: the offset is missing, or is not an event of this run.
        """
        if offset is None:
            raise InvalidInput("offset", "required: the id of the last event you have, or -1 for all of the run.")
        turn, after = await self._find(user, domain_id, run_id, offset)
        conversation = await self._conversations.get(user, turn.conversation_id)
        waits = KnownWaits(await self._waits.ended_of(turn.id))
        encoder = AgUi(conversation.client_name or conversation.id, run_id, after=after, waits=waits)
        await self._conversations.check_replay(user, turn)
        events = self._conversations.events(turn.id)
        return AgUiRun(_replay(events, after) if turn.status in FINISHED else events, encoder)

    async def interrupt(self, user: User, domain_id: str, run_id: str) -> None:
        """Stop a run. A run that has ended stays unchanged.

        Raises:
            NotFound: this user has no such run.
        """
        turn = await self._names.turn(user, domain_id, run_id)
        await self._conversations.interrupt(user, turn.conversation_id, turn_id=turn.id)

    async def _find(self, user: User, domain_id: str, run_id: str, offset: str) -> tuple[TurnRecord, Offset | None]:
        if offset == FROM_START:
            return await self._names.turn(user, domain_id, run_id), None
        after = Offset.parse(offset)
        turn = await self._conversations.turn(user, TurnId(after.turn_id))
        conversation = await self._conversations.get(user, turn.conversation_id)
        if conversation.domain_id != domain_id:
            raise NotFound("turn", turn.id)
        _check_offset(after, turn if turn.client_message_id == run_id else None)
        return turn, after


def _check_offset(after: Offset, turn: TurnRecord | None) -> None:
    if turn is None or turn.id != after.turn_id:
        raise InvalidInput("offset", "this is the id of an event of another run.")


async def _replay(events: AsyncIterator[AgentEvent], after: Offset | None) -> AsyncIterator[AgentEvent]:
    """Yield the events of a finished turn. A replay from the start leaves out retracted content.

    Raises:
        InvalidInput: the turn ended before ``after``.
    """
    whole = [event async for event in events]
    if after is not None and whole and after.seq > whole[-1].seq:
        raise InvalidInput("offset", "this run has no such event.")
    for event in settle(whole) if after is None else whole:
        yield event


class AgUiRoutes:
    """Runs of AG-UI clients."""

    def __init__(self, runs: AgUiRuns) -> None:
        self._runs = runs

    @route(
        "POST",
        AG_UI,
        allow="member",
        sends=True,
        streams=True,
        max_bytes=MAX_IMAGES_JSON,
        errors=[ImageUnsupported, ImageTooLarge, WaitAnswered, Forbidden],
    )
    async def run(self, request: Request, user: User, domain: str, body: Json) -> EventStream:
        """Run the agent of a domain on a ``RunAgentInput``, answering the last message of the user.

        ``threadId`` names the conversation, which is created if it does not exist. ``runId`` names the turn, so a
        repeated request returns the same turn. With ``Last-Event-ID`` the answer continues after that event. With
        ``resume`` the request answers interrupts, and the waiting turn continues.
        """
        run = await self._runs.begin(user, domain, body, request.headers.get("last-event-id"))
        return EventStream(run.events, run.encoder)

    @route("GET", AG_UI, allow="member", streams=True)
    async def resume(self, request: Request, user: User, domain: str, query: AgUiRunQuery) -> EventStream:
        """Resume a run after an event, or replay all of it."""
        offset = request.headers.get("last-event-id") or query.offset
        run = await self._runs.resume(user, domain, query.run_id, offset)
        return EventStream(run.events, run.encoder)
