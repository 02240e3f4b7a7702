"""Conversations and turns in memory, controlled by the test, as the lower layers of a socket."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import anyio
import anyio.lowlevel

from agentic_rag.access.users import User
from agentic_rag.base.errors import LogGone, MessageContentRequired, NotFound, TurnInProgress
from agentic_rag.base.events import AgentEvent, Done, EventBody, Interrupted, Text, TurnStarted, Usage, WaitAction
from agentic_rag.base.ids import ConversationId, MessageId, SessionId, TurnId, WaitId
from agentic_rag.base.json_form import Json
from agentic_rag.conversations.sent_images import GivenImage
from agentic_rag.runtime.log.encoder import encode

DONE = Done("msg_a", Usage(1, 0, 0, 1), "end_turn", (), "scripted")

QUESTION = MessageId("msg_u")
ANSWER = MessageId("msg_a")


@dataclass
class MemoryConversation:
    id: str
    owner: str
    session_id: SessionId
    turns: list["MemoryTurn"] = field(default_factory=list)


@dataclass
class MemoryTurn:
    id: str
    conversation_id: ConversationId
    client_message_id: str | None
    content: str
    events: list[AgentEvent] = field(default_factory=list)
    pruned: bool = False

    @property
    def ended(self) -> bool:
        return bool(self.events) and self.events[-1].terminal


@dataclass(frozen=True)
class MemoryAccepted:
    turn_id: TurnId
    client_message_id: str | None
    duplicate: bool = False
    queued: bool = False
    user_message_id: MessageId = QUESTION
    message_id: MessageId = ANSWER


@dataclass
class MemoryWait:
    """A wait. In memory there are none."""

    id: WaitId
    state: str


class NoWaits:
    """A service without waits."""

    async def answer(self, user: User, wait_id: WaitId, action: WaitAction, content: Json) -> MemoryWait:
        raise NotFound("wait", wait_id)


class Desk:
    """A business layer and a runtime. ``on_start`` is called for each turn that starts, before its send returns."""

    def __init__(self, on_start: Callable[[str], None] = lambda turn_id: None) -> None:
        self.conversations: dict[str, MemoryConversation] = {}
        self.turns: dict[str, MemoryTurn] = {}
        self.on_start = on_start
        self.broken = False
        self.deaf = False
        self.prompt = False
        """Whether the sender gets its turn before readers do."""
        self.listeners: list[Callable[[], None]] = []
        self._changed = anyio.Event()

    def open(self, conversation_id: str, owner: str = "local") -> None:
        self.conversations[conversation_id] = MemoryConversation(
            conversation_id, owner, SessionId(f"sess_{conversation_id}")
        )

    def say(self, turn_id: str, *bodies: EventBody) -> None:
        """Append events to a turn."""
        turn = self.turns[turn_id]
        for body in bodies:
            seq = len(turn.events) + 1
            ts = "2026-01-01T00:00:00.000Z"
            turn.events.append(encode(body, conversation_id=turn.conversation_id, turn_id=turn_id, seq=seq, ts=ts))
        self._wake()
        if turn.ended:
            self._start_queued(self.conversations[turn.conversation_id])

    def answer(self, turn_id: str, *texts: str) -> None:
        """Append text events and end the turn."""
        self.say(turn_id, *(Text(text) for text in texts), DONE)

    def prune(self, turn_id: str) -> None:
        """Delete the events of a finished turn, as the server does after a day."""
        self.turns[turn_id].pruned = True

    # The business layer

    async def get(self, user: User, conversation_id: ConversationId) -> MemoryConversation:
        if self.broken:
            raise ValueError("a bug")
        conversation = self.conversations.get(conversation_id)
        if conversation is None or conversation.owner != user.id:
            raise NotFound("conversation", conversation_id)
        return conversation

    async def turn(self, user: User, turn_id: TurnId) -> MemoryTurn:
        turn = self.turns.get(turn_id)
        if turn is None or self.conversations[turn.conversation_id].owner != user.id:
            raise NotFound("turn", turn_id)
        return turn

    async def is_first_turn(self, user: User, turn_id: TurnId) -> bool:
        turn = await self.turn(user, turn_id)
        return self.conversations[turn.conversation_id].turns[0] is turn

    async def send(
        self,
        user: User,
        conversation_id: ConversationId,
        content: str,
        *,
        client_message_id: str | None = None,
        on_busy: Literal["reject", "queue", "join"] = "reject",
        images: Sequence[GivenImage] = (),
        model: str | None = None,
        attachments: Sequence[str] = (),
    ) -> MemoryAccepted:
        conversation = await self.get(user, conversation_id)
        if not content.strip():
            raise MessageContentRequired
        for turn in conversation.turns:
            if client_message_id is not None and turn.client_message_id == client_message_id:
                return MemoryAccepted(TurnId(turn.id), client_message_id, duplicate=True)
        running = self.running(conversation.session_id)
        if running is not None and on_busy == "join" and self.turns[running].content == content:
            return MemoryAccepted(running, client_message_id, duplicate=True)
        if running is not None and on_busy != "queue":
            raise TurnInProgress(running)
        turn = MemoryTurn(f"turn_{len(self.turns) + 1}", conversation_id, client_message_id, content)
        self.turns[turn.id] = turn
        conversation.turns.append(turn)
        if running is None:
            self._start(turn)
        if not self.prompt:
            await anyio.lowlevel.checkpoint()  # lets readers run before the sender gets its turn
            await anyio.lowlevel.checkpoint()
        return MemoryAccepted(TurnId(turn.id), client_message_id, queued=running is not None)

    async def answer_again(
        self,
        user: User,
        conversation_id: ConversationId,
        message_id: MessageId,
        content: str | None = None,
        *,
        client_message_id: str | None = None,
        model: str | None = None,
    ) -> MemoryAccepted:
        return await self.send(user, conversation_id, content or message_id, client_message_id=client_message_id)

    async def interrupt(
        self, user: User, conversation_id: ConversationId, *, turn_id: TurnId | None = None, queued: bool = False
    ) -> bool:
        conversation = await self.get(user, conversation_id)
        running = self.running(conversation.session_id)
        if queued:
            for turn in [turn for turn in conversation.turns if not turn.events]:
                conversation.turns.remove(turn)
        if running is None or turn_id not in (None, running) or self.deaf:
            return False
        self.say(running, Interrupted())
        return True

    # The runtime

    async def find_running(self, session_id: SessionId) -> TurnId | None:
        return self.running(session_id)

    def running(self, session_id: SessionId) -> TurnId | None:
        conversation = self.conversations[session_id.removeprefix("sess_")]
        return next((TurnId(turn.id) for turn in conversation.turns if turn.events and not turn.ended), None)

    def read(self, turn_id: TurnId, after: int = 0) -> "MemoryReader":
        return MemoryReader(self, self.turns[turn_id], after)

    @property
    def shared(self) -> bool:
        return False

    async def next_turn(self, session_id: SessionId, after: TurnId | None = None) -> TurnId:
        conversation = self.conversations[session_id.removeprefix("sess_")]
        while True:
            turn_ids = [turn.id for turn in conversation.turns if turn.events]
            if after in turn_ids:
                turn_ids = turn_ids[turn_ids.index(after) + 1 :]
            elif after is None:
                turn_ids = [turn_id for turn_id in [self.running(session_id)] if turn_id is not None]
            if turn_ids:
                return TurnId(turn_ids[0])
            await self._changed.wait()

    def _start(self, turn: MemoryTurn) -> None:
        self.say(turn.id, TurnStarted("msg_u", "msg_a", turn.content, "scripted", "img_1", turn.client_message_id))
        self.on_start(turn.id)

    def _start_queued(self, conversation: MemoryConversation) -> None:
        waiting = next((turn for turn in conversation.turns if not turn.events), None)
        if waiting is not None:
            self._start(waiting)

    def _wake(self) -> None:
        for wake in list(self.listeners):
            wake()
        self._changed.set()
        self._changed = anyio.Event()


class MemoryReader:
    """A reader like the runtime's. It is notified while it waits."""

    def __init__(self, desk: Desk, turn: MemoryTurn, after: int) -> None:
        self._desk = desk
        self._turn = turn
        self._after = after

    async def check(self) -> None:
        if self._turn.pruned:
            raise LogGone(self._turn.id)

    async def next(self, push: Callable[[Sequence[AgentEvent]], int]) -> Sequence[AgentEvent]:
        if self._turn.pruned:
            raise LogGone(self._turn.id)
        wake_event = anyio.Event()

        def wake() -> None:
            events = self._coming()
            if wake_event.is_set() or not events:
                return
            self._after += push(events)
            if self._coming() or self._turn.ended:
                wake_event.set()

        while not self._coming() and not self._turn.ended:
            self._desk.listeners.append(wake)
            try:
                await wake_event.wait()
            finally:
                self._desk.listeners.remove(wake)
        events = self._coming()
        self._after = len(self._turn.events)
        return events

    def _coming(self) -> list[AgentEvent]:
        return self._turn.events[self._after :]
